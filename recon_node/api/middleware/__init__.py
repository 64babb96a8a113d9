"""What every request passes on its way to a handler."""
