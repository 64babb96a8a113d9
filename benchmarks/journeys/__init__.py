"""How many files of this project an event's journeys cross, counted by tracing real runs.

In reading order:

    tracer     what every traced process writes down
    routes     the journeys: real daemons, the command line, and Spark
    __main__   the table, and `--check` against the bounds
"""
