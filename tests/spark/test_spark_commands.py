"""The commands of `spark-sink`: what they take, what they say, and with which exit code."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from spark_helpers import Node, feed_rows, invoked
from spark_helpers import filled as made
from support import forking, vectors
from support.interrupts import interrupted_at
from support.waiting import finished

from recon_node.ceramic import Event
from spark_sink.cli import main
from spark_sink.cli.event_printer import EventPrinter
from spark_sink.errors import TablesError
from spark_sink.run.pipeline import ROWS_PER_BATCH
from spark_sink.run.runner import Runner, RunSettings
from spark_sink.tables.catalog import table_status
from spark_sink.tables.tables import lock

COMMANDS = ("run", "status", "query", "rebuild", "optimize", "vacuum")
GONE = "http://127.0.0.1:1"


def shown(*arguments: object, **environ: str) -> str:
    result = invoked(*arguments, **environ)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: object, code: int = 1, **environ: str) -> str:
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
    made(directory, feed_rows(sample[:500]), epoch=full_node.epoch)
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
    return [url] if isinstance(url, str) else [address for many in url for address in many]


def test_the_node_is_that_of_recon_node() -> None:
    """The same names and the same defaults; what is more particular has precedence."""
    tables = ("--tables", "t")
    assert urls("run", *tables) == ["http://127.0.0.1:5101"]
    assert urls("status", *tables) == []
    environ = {"RECON_NODE_URL": "http://a:1"}
    for command in ("run", "status", "rebuild"):
        arguments = (*tables, "stream_tips") if command == "rebuild" else tables
        assert urls(command, *arguments, **environ) == ["http://a:1"]
        own = {**environ, f"SPARK_SINK_{command.upper()}_URL": "http://b:2"}
        assert urls(command, *arguments, **own) == ["http://b:2"]
        assert urls(command, *arguments, "--url", "c:3", **own) == ["http://c:3"]


def test_several_nodes_by_option_and_by_variable() -> None:
    tables = ("--tables", "t")
    two = ["http://a:1", "https://b:2"]
    assert urls("run", *tables, "--url", "a:1", "--url", "https://b:2") == two
    assert urls("run", *tables, "--url", "a:1,https://b:2") == two
    for text in ("a:1,https://b:2", "a:1 https://b:2", "a:1, https://b:2"):
        assert urls("run", *tables, SPARK_SINK_RUN_URL=text) == two
        assert urls("status", *tables, RECON_NODE_URL=text) == two
    text = refused("rebuild", *tables, "stream_tips", "--url", ",".join(two), code=2)
    assert "this command asks one node, and these are several" in text


def test_a_token_goes_to_a_node_that_wants_it(filled, tmp_path, monkeypatch):
    """By option, by file, and by both variables. The node is another one, but it says so."""
    token = "0123456789abcdef0123456789abcdef"

    def answer(_: object, request: httpx.Request) -> httpx.Response:
        if request.headers.get("authorization") != f"Bearer {token}":
            return httpx.Response(401, content=iter(()))
        return httpx.Response(200, content=iter([b'{"epoch": "another", "low": 0, "head": 0}']))

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


def test_a_token_file_that_cannot_be_read_is_reported(filled: Path, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    status = ("status", "--tables", filled)
    text = refused(*status, "--token-file", missing)
    assert text == f"Error: the token file {missing} cannot be read: No such file or directory"
    (tmp_path / "odd").write_bytes(b"\xff")
    assert "not ASCII" in refused(*status, RECON_NODE_TOKEN_FILE=str(tmp_path / "odd"))


def test_of_several_nodes_status_takes_the_one_that_is_read(filled, full_node, node):
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
    for part in ("position 500", "500 rows", "iB", "version 1", "old", "430 behind"):
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
    """Everything is reported in any case."""
    status = ("status", "--tables", filled)
    here = (*status, "--url", full_node.url)
    shown(*here, "--max-lag", "430", "--max-age", "1h")
    for arguments, words in (
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
        assert words in result.stderr
        as_json = invoked(*arguments, "--json")
        assert (as_json.exit_code, as_json.stderr) == (1, "")
        assert words in " ".join(json.loads(as_json.stdout)["troubles"])
    assert "name it with --url" in refused(*status, "--max-lag", "1", code=2)


def test_a_wrong_directory_is_reported(filled: Path) -> None:
    for command in (("status",), ("query", "SELECT 1"), ("verify",), ("view", "list")):
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


def test_run_is_refused_before_spark_starts(filled, node, full_node, monkeypatch):
    monkeypatch.setattr("spark_sink.run.runner._START_TIMEOUT", 0.1)
    assert "cannot be reached" in refused("run", "--url", GONE, "--tables", filled)
    text = refused("run", "--url", node.url, "--tables", filled)
    assert f"was made from log {full_node.epoch}, but the node has log {node.epoch}" in text
    with lock(filled):
        text = refused("run", "--url", full_node.url, "--tables", filled)
    assert "another spark-sink is writing the tables" in text
    text = refused("run", "--url", full_node.url, "--tables", filled, "--keep-free", "999999TB")
    assert f"the disk of {filled} is nearly full" in text
    assert "--keep-free is 888.2 PiB; free some space and start again, nothing is" in text


def test_the_waiting_for_a_node_is_reported_soon_and_with_its_reason(filled, monkeypatch):
    monkeypatch.setattr("spark_sink.run.runner._START_TIMEOUT", 2.0)
    monkeypatch.setattr("spark_sink.run.runner.SILENCE", 0.3)
    result = invoked("run", "--url", GONE, "--tables", filled)
    facts = json.loads(result.stdout)
    assert (facts["event"], facts["url"], facts["patience"]) == ("waiting", GONE, 2.0)
    # On a busy machine, the first attempt may not have failed by then.
    assert facts["reason"] in result.stderr or "has not answered yet" in facts["reason"]
    assert result.exit_code == 1
    assert "cannot be reached" in result.stderr


def ended(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """What a program in a new Python process did."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return finished(command, timeout=60)


def test_help_needs_no_extra_and_arrow_gives_memory_back() -> None:
    """Arrow's own allocator keeps what delta-rs frees in other threads."""
    code = (
        "import sys; extras = 'deltalake', 'duckdb', 'pandas', 'pyspark'; "
        "sys.modules |= dict.fromkeys(extras); from spark_sink.cli import main; "
        "import pyarrow; print(pyarrow.default_memory_pool().backend_name); main()"
    )
    done = ended(code, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("system\nUsage: ")


def test_a_missing_extra_is_named(filled: Path) -> None:
    """Of those that commands import for themselves."""
    code = (
        "import sys; sys.modules['duckdb'] = sys.modules['pyspark'] = None\n"
        "from spark_sink.cli import main\n"
        "for command in sys.argv[2:]:\n"
        "    try: main([*command.split(), '--tables', sys.argv[1]])\n"
        "    except SystemExit as exit: print(exit.code)"
    )
    done = ended(code, filled, "query x", "run --once")
    assert done.stdout == "1\n1\n"
    for package, line in zip(("duckdb", "pyspark"), done.stderr.splitlines(), strict=True):
        assert line.startswith(f"Error: the package {package} is missing; install it in the ")
        assert line.endswith("pip install --no-deps .")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        *(("500ms", 500), ("2s", 2_000), ("1 m", 60_000), ("1.5s", 1_500), ("0", 0)),
        *(("5 seconds", 5_000), ("1 minute", 60_000), ("2h", 7_200_000), ("7days", 604_800_000)),
    ],
)
def test_times(text: str, milliseconds: int) -> None:
    options = parsed("run", "--tables", "t", "--trigger", text, "--history", text)
    assert (options["trigger"], options["history"]) == (milliseconds, milliseconds / 3_600_000)


MASTERS = ("local", "local[4]", "local[*]", "local[*, 2]", "local[2,4]", "yarn")


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        *(("--master", text, text) for text in MASTERS),
        *(("--master", f"{kind}://a", f"{kind}://a") for kind in ("spark", "k8s://https")),
        ("--master", "local-cluster[2,1,512]", "local-cluster[2,1,512]"),
        *(("--keep-free", "64MB", 64_000_000), ("--keep-free", "2 GB", 2 * 10**9)),
        *(("--keep-free", "1k", 1000), ("--keep-free", "0", 0)),
        ("--max-rows-per-batch", "7", 7),
        ("--token-file", "/a", Path("/a")),
        ("--spark-conf", "spark.a=1=2 3", (("spark.a", "1=2 3"),)),
        ("--spark-conf", "spark.b=", (("spark.b", ""),)),
    ],
)
def test_values_of_options(option: str, text: str, value: object) -> None:
    options = parsed("run", "--tables", "t", option, text)
    assert options[option.removeprefix("--").replace("-", "_")] == value


def test_the_pipeline_says_how_many_rows_a_batch_has_if_nobody_else_does() -> None:
    assert parsed("run", "--tables", "t")["max_rows_per_batch"] == ROWS_PER_BATCH
    assert f"[default: {ROWS_PER_BATCH}; x>=1]" in " ".join(invoked("run", "--help").output.split())


def test_help_teaches() -> None:
    """Examples, what holds without an option, and a whole sentence for each command."""
    group = shown("-h")
    assert "RECON_NODE_URL" in group
    lines = group[group.index("Commands:") :].splitlines()
    for command in COMMANDS:
        [line] = [line for line in lines if line.split()[:1] == [command]]
        assert line.endswith(".")
        assert not line.endswith("...")
        text = shown(command, "-h")
        assert "Example" in text
        assert f"spark-sink {command} --" in text
        for parameter in main.commands[command].params:
            if parameter.param_type_name == "option":
                assert parameter.opts[0] in text


VECTORS = vectors.load("spark/command_refusals")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *VECTORS["run"],
        (f"--tables t --trigger {'9' * 400}s", "is not a time such as 500ms"),
        (f"--tables t --keep-free {'9' * 5_000}", "is not a size such as 64MB"),
    ],
)
def test_what_cannot_be_meant(options: str, words: str) -> None:
    assert words in refused("run", *options.split(), code=2)


def test_a_variable_that_is_not_an_option_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUN_TABELS", "RUN_TABLES", "QUERY_TABLES", "VIEW_CREATE_TABLES", "TABLES"):
        monkeypatch.setenv(f"SPARK_SINK_{name}", "t")
    warnings = invoked("query", "").stderr.splitlines()[:2]
    warning = "warning: the environment variable {} is not an option"
    assert warnings == [warning.format(f"SPARK_SINK_{name}") for name in ("RUN_TABELS", "TABLES")]


@pytest.mark.parametrize(
    ("options", "sql", "words"),
    VECTORS["query"],
)
def test_a_query_that_cannot_be_meant(options: str, sql: str, words: str) -> None:
    assert words in refused("query", "--tables", "t", *options.split(), sql, code=2)


def test_only_raw_events_can_be_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunSettings] = []

    def note(self: Runner, settings: RunSettings, *_: object) -> None:
        seen.append(settings)
        raise TablesError("seen")

    monkeypatch.setattr(Runner, "__init__", note)
    for wanted in (["raw_events"], ["raw_events", "stream_tips"]):
        refused("run", "--tables", "t", *(part for name in wanted for part in ("--table", name)))
    names = [settings.names for settings in seen]
    assert names == [(), ("stream_tips", "unprocessed_streams")]  # it says which are missing


def test_an_export_says_at_once_which_setting_of_kafka_is_wrong(filled: Path) -> None:
    words = ("export", "kafka", "--tables", filled, "--to", "127.0.0.1:9", "--once", "--setting")
    assert refused(*words, "nonsense=1").startswith(
        'Error: a setting of Kafka cannot be used: No such configuration property: "nonsense"'
    )
    assert "an option has the form KEY=VALUE" in refused(*words, "nonsense", code=2)
    words_of_refusal = "Error: the address, the prefix or a setting of Kafka is not text in UTF-8"
    for setting in ("\udcff=1", "sasl.password=\udcff"):
        assert refused(*words, setting) == words_of_refusal


def refusing_broker(listener: socket.socket) -> None:
    """Be a Kafka broker that takes no password; until the listener is closed."""
    apis = b"".join(struct.pack(">hhh", *api) for api in ((3, 0, 4), (17, 0, 1), (36, 0, 0)))
    answers = {17: struct.pack(">hih5s", 0, 1, 5, b"PLAIN")}  # by the kind of a request
    answers[36] = struct.pack(">hh5si", 58, 5, b"wrong", 0)
    with suppress(OSError):
        while True:
            with listener.accept()[0] as connection, connection.makefile("rwb") as file:
                while len(head := file.read(12)) == 12:
                    size, kind, version, number = struct.unpack(">ihhi", head)
                    file.read(size - 8)
                    body = answers.get(kind) or struct.pack(">hi", 35 * bool(version), 3) + apis
                    file.write(struct.pack(">ii", 4 + len(body), number) + body)
                    file.flush()


def test_an_export_does_not_wait_for_a_password_to_become_right(filled, monkeypatch) -> None:
    from spark_sink.export import kafka

    monkeypatch.setattr(kafka, "_BROKER_TIMEOUT", 3.0)
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    settings |= {"sasl.username": "me", "sasl.password": "secret"}
    options = [part for pair in settings.items() for part in ("--setting", "=".join(pair))]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=refusing_broker, args=(listener,), daemon=True).start()
        to = f"127.0.0.1:{listener.getsockname()[1]}"
        text = refused("export", "kafka", "--tables", filled, "--to", to, *options, "--once")
    assert text.startswith("Error: Kafka refuses: ")
    assert "SASL authentication error: wrong" in text


def test_an_export_waits_between_two_looks(filled: Path) -> None:
    message = refused("export", "postgres", "--tables", filled, "--every", "0", code=2)
    assert "less than 10ms would keep a core busy" in message


@pytest.mark.parametrize("package", ["click", "dataclasses", "duckdb"])
def test_ctrl_c_is_one_word_also_while_a_command_imports_what_it_needs(filled, package):
    done = ended(interrupted_at(package, "spark_sink"), "query", "--tables", filled, "x")
    assert (done.stdout, done.stderr, done.returncode) == ("", "Aborted!\n", 130)


def test_who_reads_no_more_ends_the_run_quietly(filled: Path) -> None:
    command = [sys.executable, "-m", "spark_sink", "run", "--url", GONE, "--tables", str(filled)]
    with forking.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_a_statement_without_end_is_given_up(filled: Path) -> None:
    result = invoked("query", "--tables", filled, "-", stdin=" " * (1024 * 1024 + 1))
    assert result.exit_code == 2
    assert "the SQL has more than 1,048,576 characters" in result.output


def test_looking_changes_nothing(filled: Path) -> None:
    before = table_status(filled)
    shown("status", "--tables", filled)
    shown("query", "--tables", filled, "SELECT count(*) FROM raw_events")
    assert table_status(filled) == before


def test_errors_have_no_passwords() -> None:
    done = CliRunner().invoke(main, ["status", "--tables", "s3://key:s3/cret@bucket/x"])
    assert done.exit_code == 1
    assert "cannot open the table s3://***@bucket/x/" in done.output
    assert "cret" not in done.output


def test_rows_are_printed_as_they_are_and_urls_without_passwords(capsys) -> None:
    content = {"see": "https://somebody@site.example/feed"}
    printed = EventPrinter(as_json=True)
    printed("row", {"table": "stream_states", "row": content})
    printed("resumed", {"url": "http://user:s3cret@node"})
    row, resumed = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["row"], resumed["url"]) == (content, "http://***@node")
