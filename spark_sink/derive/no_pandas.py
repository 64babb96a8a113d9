"""Processes that do without pandas.

pyarrow imports it with the first array, to recognize values that are pandas objects. There are none
in Spark's workers and in the processes that compute tables, and the import takes each of them a
third of a second of CPU time and 40 MB.
"""

import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    """Lets no import of pandas succeed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("there is no pandas in this process", name=fullname)


def do_without_pandas() -> None:
    """Have pyarrow find no pandas, if it has not looked for it yet."""
    if not any(isinstance(finder, _NoPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoPandas())
