"""Snapshots of a node's events in an object store that only serves values for keys."""
