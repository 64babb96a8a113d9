"""What goes wrong on this floor, told to people."""


class DagError(Exception):
    """The index of DAGs cannot be used, or a DAG is not what is asked for."""


class IncompleteDagError(DagError):
    """Blocks of the DAG are not here."""
