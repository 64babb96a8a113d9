"""Which tests of this folder there are."""

from pathlib import Path

# Event files of other implementations may not be copied into the project. Where a checkout has
# them beside it, they are tested, too; elsewhere those tests do not exist.
VECTORS = Path(__file__).parents[3] / "shared" / "vectors" / "events"

collect_ignore = [] if VECTORS.is_dir() else ["test_ceramic_vectors.py"]
