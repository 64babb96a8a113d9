"""The commands of `spark-sink`: what they take, what they say, and with which exit code."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from spark_helpers import Node, feed_rows
from support import forking

from recon_node.ceramic import Event
from spark_sink.cli import main
from spark_sink.cli.event_printer import print_line
from spark_sink.errors import TablesError
from spark_sink.run.pipeline import ROWS_PER_BATCH, Sink
from spark_sink.run.runner import Runner, RunSettings
from spark_sink.tables.directory import Tables, lock
from spark_sink.tables.status import table_status

COMMANDS = ("run", "status", "query", "rebuild", "optimize", "vacuum")
GONE = "http://127.0.0.1:1"


def invoked(*arguments: str | Path, **environ: str) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=environ)


def shown(*arguments: str | Path, **environ: str) -> str:
    result = invoked(*arguments, **environ)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str | Path, code: int = 1, **environ: str) -> str:
    result = invoked(*arguments, **environ)
    assert result.exit_code == code, result.output
    last = result.output.splitlines()[-1]
    assert last.startswith("Error: ")
    assert code == 2 or result.output.count("\n") == 1
    return last


@pytest.fixture(scope="module")
def first_500(
    full_node: Node, sample: list[Event], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Tables with the first 500 of the node's events; not to be changed."""
    directory = tmp_path_factory.mktemp("first") / "tables"
    sink = Sink(Tables(directory, full_node.epoch))
    sink.tables.append(feed_rows(sample[:500]))
    sink.catch_up()
    return directory


@pytest.fixture
def filled(first_500: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return shutil.copytree(first_500, tmp_path / "tables")


@pytest.fixture(autouse=True)
def _no_node_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("RECON_NODE_", "SPARK_SINK_"))]:
        monkeypatch.delenv(name)


def parsed(command: str, *arguments: str, **environ: str) -> dict[str, Any]:
    """What a command gets."""
    with CliRunner().isolation(env=environ), main.make_context("spark-sink", [command]) as group:
        return main.commands[command].make_context(command, list(arguments), parent=group).params


def urls(command: str, *arguments: str, **environ: str) -> list[str]:
    """The nodes that a command gets."""
    url = parsed(command, *arguments, **environ)["url"]
    return [url] if isinstance(url, str) else [each for some in url for each in some]


def test_the_node_is_that_of_recon_node(tmp_path: Path) -> None:
    """The same names and the same defaults; what is more particular has precedence."""
    tables = ("--tables", "t")
    assert urls("run", *tables) == ["http://127.0.0.1:5101"]
    assert urls("status", *tables) == []
    assert urls("run", *tables, "--url", "node:5101") == ["http://node:5101"]
    environ = {"RECON_NODE_URL": "http://a:1", "RECON_NODE_TOKEN": "secret"}
    for command in ("run", "status", "rebuild"):
        given = (*tables, "stream_tips") if command == "rebuild" else tables
        assert urls(command, *given, **environ) == ["http://a:1"]
        assert parsed(command, *given, **environ)["token"] == "secret"
        own = {**environ, f"SPARK_SINK_{command.upper()}_URL": "http://b:2"}
        assert urls(command, *given, **own) == ["http://b:2"]
        assert urls(command, *given, "--url", "http://c:3", **own) == ["http://c:3"]
    file = tmp_path / "token"
    assert parsed("run", *tables, RECON_NODE_TOKEN_FILE=str(file))["token_file"] == file


def test_several_nodes_by_option_and_by_variable() -> None:
    tables = ("--tables", "t")
    two = ["http://a:1", "https://b:2"]
    assert urls("run", *tables, "--url", "a:1", "--url", "https://b:2") == two
    assert urls("run", *tables, "--url", "a:1,https://b:2") == two
    for text in ("a:1,https://b:2", "a:1 https://b:2", "a:1, https://b:2"):
        assert urls("run", *tables, SPARK_SINK_RUN_URL=text) == two
        assert urls("status", *tables, RECON_NODE_URL=text) == two


def test_a_token_goes_to_a_node_that_wants_it(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By option, by file, and by both variables. The node is another one, but it says so."""
    token = "0123456789abcdef0123456789abcdef"

    def answer(_: object, request: httpx.Request) -> httpx.Response:
        if request.headers.get("authorization") != f"Bearer {token}":
            return httpx.Response(401)
        return httpx.Response(200, json={"epoch": "another", "low": 0, "head": 0})

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    for arguments, environ in (
        (("--token", token), {}),
        (("--token-file", str(file)), {}),
        ((), {"RECON_NODE_TOKEN": token}),
        ((), {"RECON_NODE_TOKEN_FILE": str(file)}),
    ):
        result = invoked("status", "--tables", filled, *arguments, RECON_NODE_URL=GONE, **environ)
        assert "has log another, not log " in result.stderr
    assert "401" in invoked("status", "--tables", filled, "--url", GONE).stderr


def test_a_token_file_that_cannot_be_read_is_told(filled: Path, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    status = ("status", "--tables", filled)
    text = refused(*status, "--token-file", missing)
    assert text == f"Error: the token file {missing} cannot be read: No such file or directory"
    (tmp_path / "odd").write_bytes(b"\xff")
    assert "not ASCII" in refused(*status, RECON_NODE_TOKEN_FILE=str(tmp_path / "odd"))


def test_commands_that_ask_one_node_refuse_several() -> None:
    text = invoked("rebuild", "--tables", "t", "stream_tips", "--url", "http://a:1,http://b:2")
    assert text.exit_code == 2
    assert "this command asks one node, and these are several" in text.output


def test_of_several_nodes_status_takes_the_one_that_is_read(
    filled: Path, full_node: Node, node: Node
) -> None:
    for urls in (("--url", node.url, "--url", full_node.url), ("--url", f"{GONE},{full_node.url}")):
        facts = json.loads(shown("status", "--tables", filled, "--json", *urls))
        assert (facts["node"]["url"], facts["troubles"]) == (full_node.url, [])
    assert facts["reading"] == {"log": full_node.epoch, "position": 500}
    none = invoked("status", "--tables", filled, "--url", node.url, "--url", GONE)
    assert none.exit_code == 1
    assert f"the node at {GONE} cannot be reached" in none.stderr
    assert f"not log {full_node.epoch}" in none.stderr


def test_status(filled: Path, full_node: Node) -> None:
    text = shown("status", "--tables", filled, "--url", full_node.url)
    line = next(line for line in text.splitlines() if line.startswith("raw_events"))
    for part in ("position 500", "500 rows", "MB", "version 1", "old", "430 behind"):
        assert part in line
    assert text.count("430 behind") == 6
    assert "behind" not in shown("status", "--tables", filled)
    facts = json.loads(shown("status", "--tables", filled, "--json", "--url", full_node.url))
    assert (facts["node"]["head"], facts["troubles"]) == (930, [])
    assert [(t["position"], t["lag"], t["version"]) for t in facts["tables"]] == [(500, 430, 1)] * 6
    for table in facts["tables"]:
        age = datetime.now(UTC) - datetime.fromisoformat(table["committed_at"])
        assert 0 <= table["age"] < 3600
        assert 0 <= age.total_seconds() < 3600
        parts = list((filled / table["name"]).glob("stream_cid_partition=*/*.parquet"))
        assert len(parts) == table["files"]
        assert sum(part.stat().st_size for part in parts) == table["size"]


def test_status_is_a_health_check(filled: Path, full_node: Node, node: Node) -> None:
    """What there is to tell is told in any case."""
    status = ("status", "--tables", filled)
    here = (*status, "--url", full_node.url)
    shown(*here, "--max-lag", "430", "--max-age", "1h")
    for arguments, told in (
        ((*here, "--max-lag", "429"), "raw_events is 430 events behind the node; the limit is 429"),
        ((*here, "--max-age", "0s"), "the last commit of raw_events was"),
        ((*status, "--url", GONE), f"the node at {GONE} cannot be reached"),
        (
            (*status, "--url", node.url),
            f"has log {node.epoch}, not log {full_node.epoch}: it was set up from scratch",
        ),
    ):
        result = invoked(*arguments)
        assert result.exit_code == 1
        assert "position 500" in result.stdout
        assert told in result.stderr
        as_json = invoked(*arguments, "--json")
        assert (as_json.exit_code, as_json.stderr) == (1, "")
        assert told in " ".join(json.loads(as_json.stdout)["troubles"])
    assert "name it with --url" in refused(*status, "--max-lag", "1", code=2)


def test_a_wrong_directory_is_told(filled: Path) -> None:
    for command in (("status",), ("query", "SELECT 1")):
        none = filled / "none"
        assert "the directory does not exist" in refused(*command, "--tables", none)
        none.mkdir()
        assert "spark-sink run creates them" in refused(*command, "--tables", none)
        none.rmdir()
        table = filled / "stream_tips"
        text = refused(*command, "--tables", table)
        assert text == f"Error: {table} is a table itself: the tables are in {filled}"
    log = filled / "stream_tips" / "_delta_log"
    next(log.glob("*.json")).write_text("{")
    assert "stream_tips" in refused("status", "--tables", filled)


def test_run_is_refused_before_spark_starts(
    filled: Path, node: Node, full_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.run.runner._START_TIMEOUT", 0.1)
    assert "cannot be reached" in refused("run", "--url", GONE, "--tables", filled)
    text = refused("run", "--url", node.url, "--tables", filled)
    assert f"was made from log {full_node.epoch}, but the node has log {node.epoch}" in text
    with lock(filled):
        text = refused("run", "--url", full_node.url, "--tables", filled)
    assert "another spark-sink is writing the tables" in text
    text = refused("run", "--url", full_node.url, "--tables", filled, "--keep-free", "999999TB")
    assert f"the disk of {filled} is nearly full" in text
    assert "free some space and start again, nothing is lost" in text


def test_the_waiting_for_a_node_is_told_soon_and_with_its_reason(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.run.runner._START_TIMEOUT", 2.0)
    monkeypatch.setattr("spark_sink.run.runner.SILENCE", 0.3)
    result = invoked("run", "--url", GONE, "--tables", filled)
    facts = json.loads(result.stdout)
    assert (facts["event"], facts["url"], facts["patience"]) == ("waiting", GONE, 2.0)
    # On a busy machine, the first attempt may not have failed by then.
    assert facts["reason"] in result.stderr or "has not answered yet" in facts["reason"]
    assert result.exit_code == 1
    assert "cannot be reached" in result.stderr


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({}, "the node at http://a does not answer; waiting"),
        ({"reason": "", "patience": 9}, "the node at http://a does not answer; waiting up to 9 s"),
        ({"reason": "it is off", "patience": 9}, "waiting up to 9 s: it is off"),
    ],
)
def test_the_waiting_for_a_node_in_words(
    facts: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_line("waiting", {"url": "http://a", **facts})
    assert capsys.readouterr().out == f"{line}\n"


def test_a_disk_that_fills_ends_the_run_after_the_batch(tmp_path: Path) -> None:
    """Before writing fails: there is room for what Spark and the tables write at their end."""
    runner = Runner(RunSettings("http://a:1", tmp_path, keep_free=10**18), lambda *_: None)
    with pytest.raises(TablesError, match=r"--keep-free is 1000000000000 MB; free some space"):
        runner._check_disk()


def test_help_needs_no_extra() -> None:
    code = (
        "import sys; "
        "sys.modules |= dict.fromkeys(['deltalake', 'duckdb', 'pandas', 'pyspark']); "
        "from spark_sink.cli import main; main()"
    )
    subprocess.run([sys.executable, "-c", code, "--help"], check=True, timeout=60)


def test_arrow_gives_memory_back() -> None:
    """Its own allocator keeps what delta-rs frees in other threads."""
    code = "import spark_sink.cli, pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    ended = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True
    )
    assert ended.stdout == "system\n"


@pytest.mark.parametrize(
    ("package", "command"),
    [("duckdb", ["query", "SELECT 1"]), ("pyspark", ["run", "--once"])],
)
def test_a_missing_extra_is_named(filled: Path, package: str, command: list[str]) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from spark_sink.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, *command, "--tables", str(filled)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"Error: the package {package} is missing; install it in the ")
    assert ended.stderr.endswith("pip install --no-deps .\n")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        *(("500ms", 500), ("2s", 2_000), ("1 m", 60_000), ("1.5s", 1_500), ("0", 0)),
        *(("5 seconds", 5_000), ("1 minute", 60_000), ("2h", 7_200_000), ("7days", 604_800_000)),
    ],
)
def test_times(text: str, milliseconds: int) -> None:
    found = parsed("run", "--tables", "t", "--trigger", text, "--history", text)
    assert (found["trigger"], found["history"]) == (milliseconds, milliseconds / 3_600_000)


def test_masters() -> None:
    masters = ("local", "local[4]", "local[*]", "local[*, 2]", "local[2,4]", "yarn")
    for master in (*masters, "spark://a:7077,b:7077", "k8s://https://a", "local-cluster[2,1,512]"):
        assert parsed("run", "--tables", "t", "--master", master)["master"] == master


@pytest.mark.parametrize(
    ("text", "size"), [("64MB", 64_000_000), ("2 GB", 2 * 10**9), ("1k", 1000), ("0", 0)]
)
def test_sizes(text: str, size: int) -> None:
    assert parsed("run", "--tables", "t", "--keep-free", text)["keep_free"] == size


def test_the_pipeline_says_how_many_rows_a_batch_has_if_nobody_else_does() -> None:
    assert parsed("run", "--tables", "t")["max_rows_per_batch"] is None
    assert parsed("run", "--tables", "t", "--max-rows-per-batch", "7")["max_rows_per_batch"] == 7
    assert f"({ROWS_PER_BATCH})" in invoked("run", "--help").output


def test_settings_of_spark() -> None:
    given = ("--spark-conf", "spark.a=1=2 3", "--spark-conf", "spark.b=")
    found = parsed("run", "--tables", "t", *given)["spark_conf"]
    assert found == (("spark.a", "1=2 3"), ("spark.b", ""))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(command: str) -> None:
    """Examples, and what holds without an option."""
    text = shown(command, "-h")
    assert "Example" in text
    assert f"spark-sink {command} --" in text
    for parameter in main.commands[command].params:
        if parameter.param_type_name == "option":
            assert parameter.opts[0] in text


def test_the_group_s_help_names_each_command_in_a_whole_sentence() -> None:
    text = shown("-h")
    lines = text[text.index("Commands:") :].splitlines()
    for command in COMMANDS:
        line = next(line for line in lines if line.split()[:1] == [command])
        assert line.endswith(".")
        assert not line.endswith("...")
    assert "RECON_NODE_URL" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "name the directory of the tables with --tables"),
        (["run", "--tables", "t", "--console"], "omit --tables"),
        (["run", "--tables", "t", "--trigger", "soon"], "'soon' is not a time such as 500ms"),
        (["run", "--tables", "t", "--history", "long"], "'long' is not a time such as 90m"),
        (["run", "--tables", "t", "--trigger", "5"], "'5' is not a time such as 500ms"),
        (["run", "--tables", "t", "--history", "5"], "'5' is not a time such as 90m"),
        (["run", "--tables", "t", "--history", "5 years"], "'5 years' is not a time such as 90m"),
        (["run", "--tables", "t", "--driver-memory", "1x"], "'1x' is not a Java memory size"),
        (["run", "--tables", "t", "--driver-memory", "0g"], "'0g' is not a Java memory size"),
        (
            ["run", "--tables", "t", "--checkpoint", "s3://bucket/t"],
            "'s3://bucket/t' is not a directory",
        ),
        (
            ["run", "--tables", "t", "--master", "yarnn"],
            "'yarnn' is not a Spark master: local[",
        ),
        (["run", "--tables", "t", "--master", "local[2"], "'local[2' is not a Spark master"),
        (
            ["run", "--tables", "t", "--master", "sc://a:15002"],
            "sc://a:15002 is a Spark Connect server",
        ),
        (["run", "--tables", "t", "--metrics", "9999"], "'9999' is not HOST:PORT"),
        (["run", "--tables", "t", "--metrics", "a:99999"], "'a:99999' is not HOST:PORT"),
        (["run", "--tables", "t", "--url", "foo://a"], "'foo://a' is not a URL such as http://"),
        (["query", "--tables", ".", ""], "the SQL is empty"),
        (["query", "--tables", ".", " ; "], "the SQL is empty"),
        (["query", "--tables", "t", "--as-of", "99999999999d", "x"], "is not a time such as"),
        (["run", "--tables", "t", "--keep-free", "some"], "'some' is not a size such as 64MB"),
        (["run", "--tables", "t", "--spark-conf", "x"], "'x' is not a setting such as spark."),
        (["query", "--tables", "t", "--as-of", "noon", "x"], "'noon' is not a time such as"),
        (["query", "--tables", "t", "--as-of", "1h", "--version", "1", "x"], "not both"),
    ],
)
def test_what_cannot_be_meant(arguments: list[str], told: str) -> None:
    assert told in refused(*arguments, code=2)


def test_only_raw_events_can_be_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunSettings] = []

    def note(self: Runner, settings: RunSettings, *_: object) -> None:
        seen.append(settings)
        raise TablesError("seen")

    monkeypatch.setattr(Runner, "__init__", note)
    for wanted in (["raw_events"], ["raw_events", "stream_tips"]):
        refused("run", "--tables", "t", *(part for name in wanted for part in ("--table", name)))
    assert [settings.names for settings in seen] == [(), ("stream_tips",)]


INTERRUPTED = """
import sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from spark_sink.cli import main
from spark_sink.cli.event_printer import print_line
main()
"""


@pytest.mark.parametrize("package", ["click", "duckdb"])
def test_ctrl_c_is_one_word_also_while_a_command_imports_what_it_needs(
    filled: Path, package: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(package), "query", "--tables", filled, "x"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "Aborted!\n", 130)


def test_who_reads_no_more_ends_the_run_quietly(filled: Path) -> None:
    command = [sys.executable, "-m", "spark_sink", "run", "--url", GONE, "--tables", str(filled)]
    with forking.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_the_tables_are_as_before(filled: Path) -> None:
    """Looking changes nothing."""
    before = table_status(filled)
    shown("status", "--tables", filled)
    shown("query", "--tables", filled, "SELECT count(*) FROM raw_events")
    assert table_status(filled) == before
