"""Tangles and feeds of Secure Scuttlebutt (SSB): woven, checked and drawn. Pure functions."""
