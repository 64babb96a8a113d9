"""Attacks on a node by strangers, each with its bounds: see `__main__`."""
