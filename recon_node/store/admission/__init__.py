"""The way of an event into the log: the rules, and the states that it passes through."""
