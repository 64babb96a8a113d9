"""Syncing with peers: when and with whom, sessions, and fetching events."""
