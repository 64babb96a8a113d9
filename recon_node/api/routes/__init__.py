"""The handlers of the HTTP API, one module a group of paths."""
