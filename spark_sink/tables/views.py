"""Where the typed views of models are: Delta tables below `views`, which know their models.

A table's name is unique among tables and views, so a name is enough to find the table. All
functions raise `TablesError` if a view does not exist or cannot be opened.
"""

import re
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileType

from spark_sink.errors import TablesError, cannot_open
from spark_sink.schema import TABLES, TableSpec
from spark_sink.tables.commits import MODEL_PROPERTY
from spark_sink.tables.location import (
    FAULTS,
    Location,
    file_system,
    find_delta_table,
    is_delta,
)

#: The directory of the views, below that of the tables.
VIEWS: Final = "views"
#: The name of a view.
NAME: Final = re.compile("[a-z][a-z0-9_]{0,62}")


def view_names(directory: Location) -> list[str]:
    """Return the names of the views among the tables in a directory."""
    try:
        entries = file_system(directory).get_file_info(FileSelector(VIEWS, allow_not_found=True))
        names = (entry.base_name for entry in entries if entry.type is FileType.Directory)
        usable = (name for name in names if NAME.fullmatch(name))
        return sorted(name for name in usable if is_delta(directory / VIEWS / name))
    except FAULTS as error:
        raise cannot_open(directory / VIEWS, error) from error


def path_of(directory: Location, name: str) -> Location:
    """Return where a table or a view is."""
    return directory / name if name in TABLES else directory / VIEWS / name


def spec_of(name: str, table: DeltaTable) -> TableSpec:
    """Return what a table or a view is like."""
    if name in TABLES:
        return TABLES[name]
    model = table.metadata().configuration.get(MODEL_PROPERTY)
    if model is None:
        raise TablesError(f"{table.table_uri} is not a view that spark-sink made")
    return TableSpec(name, pa.schema(table.schema().to_arrow()), "stream_cid", model)


def open_view(directory: Location, name: str) -> tuple[TableSpec, DeltaTable]:
    """Open a view."""
    table = find_delta_table(directory / VIEWS / name)
    if table is None:
        there = ", ".join(view_names(directory)) or "none"
        raise TablesError(f"there is no view {name} in {directory}; there are: {there}")
    return spec_of(name, table), table
