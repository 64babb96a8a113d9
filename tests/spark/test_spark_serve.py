"""The command `spark-sink serve`: what it prints, how it stops, and which options it refuses."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from flight_support import fill, raw_client, rows_of_scenario
from prometheus_client import CollectorRegistry
from pyarrow import flight
from spark_helpers import await_end_of, processes_under
from support import forking
from support.waiting import wait_until

from spark_sink import exposition
from spark_sink.cli import main
from spark_sink.serve.flight_messages import new, packed

SERVE = [sys.executable, "-m", "spark_sink", "serve", "--listen", "127.0.0.1:0", "--tables"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("served")
    fill(directory, rows_of_scenario())
    return directory


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_a_signal_ends_the_server_and_all_of_its_processes(directory: Path, number: int) -> None:
    serve = [*SERVE, str(directory), "--metrics", "127.0.0.1:0"]
    with forking.Popen(serve, stdout=subprocess.PIPE, text=True) as process:
        serving = json.loads(process.stdout.readline())
        assert (serving["level"], serving["event"]) == ("info", "serving")
        assert serving["tables"] == str(directory)
        url, page = serving["url"], serving["metrics"]
        command = packed(new("CommandStatementQuery", query="SELECT 1 FROM stream_tips_feed"))
        with raw_client(url) as raw:
            info = raw.get_flight_info(flight.FlightDescriptor.for_command(command))
            rows = raw.do_get(info.endpoints[0].ticket)
            rows.read_chunk()
            children = processes_under(process.pid)
            assert len(children) == 2  # the feed's worker and its parent
            assert 'spark_sink_flight_running{kind="feed"} 1.0' in httpx.get(page).text
            process.send_signal(number)
            with pytest.raises(flight.FlightError, match=r"(?i)stopping|unavailable|cancel"):
                rows.read_all()
        (stopped,) = map(json.loads, process.stdout)
        assert (stopped["event"], stopped["url"]) == ("stopped", url)
        assert process.wait(60) == 0
        await_end_of(children, "they end")


def test_on_a_terminal_it_prints_text(directory: Path) -> None:
    reader, terminal = os.openpty()
    with (
        os.fdopen(reader, closefd=True) as lines,
        forking.Popen([*SERVE, str(directory)], stdout=terminal) as process,
    ):
        os.close(terminal)
        line = lines.readline()
        assert re.fullmatch(r"serving the tables in \S+ by Flight SQL at grpc://\S+:\d+\n", line)
        process.terminate()
        assert lines.readline() == "stopped\n"


def test_it_says_that_there_are_no_tables_yet(tmp_path: Path) -> None:
    """And goes on when nobody reads its output any more."""
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # as it usually is
    command = [*SERVE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=buffered) as process:
        events = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdout.close()
        process.terminate()
        assert process.wait(60) == 0
    assert [event["event"] for event in events] == ["serving", "no_tables"]
    assert events[1]["level"] == "warning"
    assert events[1]["reason"] == f"there are no tables in {tmp_path}: spark-sink run creates them"


@pytest.mark.parametrize("option", ["--listen", "--metrics"])
def test_a_port_in_use_is_answered_with_what_to_do(tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(main, ["serve", "--tables", str(tmp_path), option, address])
    assert result.exit_code == 1
    assert f"{address}: Address already in use. Another node or program" in result.output
    assert f"or choose another port ({option})" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tls-cert", __file__], "both --tls-cert and --tls-key"),
        (["--tls-cert", __file__, "--tls-key", __file__], "the key must be the certificate's"),
        (["--tls-cert", "/dev/zero", "--tls-key", __file__], "it has more than 1048576 bytes"),
        (["--auth-token", "short"], "fewer than 16 characters"),
        (["--auth-token", ""], "fewer than 16 characters"),
        (["--auth-token", "0123456789abcdef", "--auth-token-file", __file__], "not both"),
        (["--auth-token-file", "/nowhere"], "does not exist"),
        (["--listen", "nowhere"], "HOST:PORT"),
    ],
)
def test_wrong_options_are_explained(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--tables", str(tmp_path), *arguments])
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.split())


def test_silent_clients_of_the_metrics_take_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they keep them for good."""
    monkeypatch.setattr(exposition._Handler, "timeout", 0.5)
    with exposition.served(CollectorRegistry(), "127.0.0.1:0") as url, ExitStack() as silent:
        where = "127.0.0.1", httpx.URL(str(url)).port
        clients = [
            silent.enter_context(socket.create_connection(where, timeout=60)) for _ in range(40)
        ]
        for client in clients:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        wait_until(partial(_is_answered, str(url)), "there is a place again")


def test_a_client_of_the_metrics_that_is_slow_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen that sent a byte now and then kept all others out for days."""
    monkeypatch.setattr(exposition._Handler, "timeout", 0.5)
    with exposition.served(CollectorRegistry(), "127.0.0.1:0") as url:
        where = "127.0.0.1", httpx.URL(str(url)).port
        with socket.create_connection(where, timeout=0.1) as client:

            def is_over() -> bool:
                try:
                    client.send(b"G")
                    return client.recv(1) == b""
                except TimeoutError:
                    return False
                except ConnectionError:
                    return True

            wait_until(is_over, "the server hangs up")


def test_only_some_clients_of_the_metrics_are_answered_at_once() -> None:
    with exposition.served(CollectorRegistry(), "127.0.0.1:0") as url, ExitStack() as places:

        def is_full() -> bool:
            while exposition._Handler.places.acquire(blocking=False):
                places.callback(exposition._Handler.places.release)
            return not _is_answered(str(url))

        wait_until(is_full, "those of an earlier test's clients are taken, too")


def _is_answered(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(url).is_success
    return False
