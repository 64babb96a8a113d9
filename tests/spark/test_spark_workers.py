"""Spark's workers fail, are killed and run again: each row is in the tables once."""

import pytest
from spark_helpers import PATIENCE, environment_for
from spark_oracle import assert_tables
from spark_runs import CHILD, running
from spark_samples import TRAP

from spark_sink.tables.location import files_below

SAID = {"fail": "RuntimeError: the trap", "kill": "one of its Python processes was killed"}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(("place", "trap"), [("disk", "fail"), ("s3", "kill")], indirect=["place"])
def test_a_worker_that_ends_badly(node, sample, tmp_path, place, trap):
    """With a second try Spark goes on; without, the run ends and the next one goes on."""
    node.add_scenario(TRAP, sample[:150])
    feed = node.feed()
    tables = place / "tables"
    environ = environment_for(place, tmp_path / "state")
    options = ["--url", node.url, "--once", "--max-rows-per-batch", "50", "--tables"]
    child = (CHILD, trap, tmp_path / "a")
    twice = ("--master", "local[2,4]")
    with running(*options, str(tables), *twice, child=child, environ=environ) as run:
        assert run.next("stopped")["position"] == len(feed)
    assert len(list((tmp_path / "a").iterdir())) == 3
    assert_tables(tables, feed)
    assert not any("_stag" in file.path for file in files_below(tables))

    tables = place / "again"
    child = (CHILD, trap, tmp_path / "b")
    ends = 0
    while True:
        with running(*options, str(tables), child=child, environ=environ) as run:
            _, output = run.process.communicate(timeout=5 * PATIENCE)
        if run.process.returncode == 0:
            break
        ends += 1
        last = output.splitlines()[-1]  # Spark's own processes may have had their say before
        assert last.startswith(f"Error: Spark failed: {SAID[trap]}"), output
    assert ends >= 2
    assert_tables(tables, feed)
