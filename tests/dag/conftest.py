"""Fixtures of the daemons; see dag_nodes."""

from dag_nodes import home, row

__all__ = ["home", "row"]
