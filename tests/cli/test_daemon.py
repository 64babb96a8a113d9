"""The daemon as a process: how it starts, refuses to start, ends, and comes back."""

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import trio
from cli_run import Events, error_of, run
from support import forking
from support.waiting import finished, wait_until

import recon_node
from recon_node.api.server import GRACE
from recon_node.base.program import allow_files
from recon_node.ceramic import Network
from recon_node.cli.run import _give_up
from recon_node.store import open_store
from recon_node.store.db.saved_keys import SAVING
from recon_node.testnet import Testnet, TestnetError, TestnetNode

ANY_PORT = "/ip4/127.0.0.1/tcp/0"
COMMAND = [sys.executable, "-m", "recon_node"]


def post(node: TestnetNode, event: dict[str, str]) -> None:
    answer = httpx.post(f"{node.api_url}/ceramic/events", json={"data": event["car"]})
    assert answer.status_code == 204, answer.text


def feed(node: TestnetNode) -> list[str]:
    answer = httpx.get(f"{node.api_url}/ceramic/feed/events", params={"limit": 1000})
    return [event["id"] for event in answer.json()["events"]]


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not yet waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def half_a_post(node: TestnetNode, event: dict[str, str]) -> tuple[socket.socket, bytes]:
    """A connection on which the first half of a POST was sent, and the other half."""
    body = b'{"data":"' + event["car"].encode() + b'"}'
    head = f"POST /ceramic/events HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {len(body)}\r\n\r\n"
    port = int(node.api_url.rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(head.encode() + body[: len(body) // 2])
    return connection, body[len(body) // 2 :]


def answer_to(connection: socket.socket, rest: bytes) -> bytes:
    """What a node answers to the rest of a request; nothing if it cuts it off."""
    with connection, suppress(ConnectionError):
        connection.sendall(rest)
        return connection.recv(65536)
    return b""


def test_sigterm_in_the_middle_of_things_and_kill_9_lose_nothing(sample: Events) -> None:
    with Testnet(nodes=1) as net, ThreadPoolExecutor() as threads:
        [node] = net.nodes
        peer_id, url = node.peer_id, node.api_url
        for event in sample[:10]:
            post(node, event)
        ended: list[float] = []

        def wait_for_news() -> int:
            news = {"after": 10, "wait": 60}
            try:
                answer = httpx.get(f"{url}/ceramic/feed/head", params=news, timeout=90)
                return int(answer.json()["head"])
            finally:
                ended.append(time.monotonic())

        poll = threads.submit(wait_for_news)
        connection, rest = half_a_post(node, sample[10])
        under_way = "recon_http_requests_in_progress 3.0"  # those two, and the one that asks
        wait_until(lambda: under_way in httpx.get(f"{url}/metrics").text)
        stopped_at = time.monotonic()
        node.terminate()
        answer = answer_to(connection, rest)
        ended.append(time.monotonic())
        assert node.wait(50) == 0  # the poll alone would take 60 s
        cut_off = poll.exception() is not None
        # Nothing is cut off within GRACE. On a machine that stands still, it may be over.
        late = max(ended) - stopped_at >= GRACE
        accepted = answer.startswith(b"HTTP/1.1 204")
        assert accepted or late
        assert late or not cut_off, "the poll is let go of"
        assert cut_off or poll.result() in (10, 11)

        node.restart()
        assert (node.peer_id, node.api_url) == (peer_id, url)
        posted = [event["cid"] for event in sample[:11]]
        acknowledged = feed(node)
        assert acknowledged in ([posted] if accepted else [posted, posted[:10]])

        post(node, sample[11])
        node.kill()
        assert not node.running
        node.restart()
        assert feed(node) == [*acknowledged, sample[11]["cid"]]


def test_why_a_node_cannot_start_is_said_in_one_line(node: TestnetNode, tmp_path: Path) -> None:
    api = node.api_url.removeprefix("http://")
    listen = node.addresses[0].partition("/p2p/")[0]
    used, new, file = str(node.data_dir), str(tmp_path / "new"), tmp_path / "file"
    file.write_text("")
    other = tmp_path / "other"
    trio.run(make_log, other, "local-2")
    assert_refused(used, words=[used])
    assert_refused(new, "--api", api, words=[f"cannot listen on {api}: Address already in use"])
    assert_refused(new, "--listen", listen, words=[listen.rpartition("/")[2]])
    assert_refused(str(file / "x"), words=[str(file)])
    assert_refused(new, "--peer-id-file", str(file / "x"), words=[str(file / "x"), "peer_id_file"])
    assert_refused(str(other), words=[str(other), "local-1"])
    assert httpx.get(f"{node.api_url}/ceramic/liveness").status_code == 200


def assert_refused(data_dir: str, *flags: str, words: list[str]) -> None:
    """`recon-node run` ends with exit code 1, and its last line is the reason."""
    free = ["--api", "127.0.0.1:0", *(() if "--listen" in flags else ("--listen", ANY_PORT))]
    args = ("run", "--network", "local-1", "--data-dir", data_dir, *free, *flags)
    log = run(*args, code=1).stderr
    last = log.splitlines()[-1]
    assert last.startswith("Error: ")
    assert all(word in last for word in words), last
    assert "Traceback" not in log


def test_too_few_files_are_an_error_before_anything_is_opened(tmp_path: Path) -> None:
    """It said that the log's permissions were wrong, or the port was."""
    node = f"{sys.executable} -m recon_node run --network local-1 --data-dir {tmp_path / 'new'}"
    done = finished(["sh", "-c", f"ulimit -n 60 && exec {node}"])
    assert done.returncode == 1
    assert done.stderr.startswith("Error: only 60 files may be open, and a node needs 64")
    assert not (tmp_path / "new").exists()


async def make_log(data_dir: Path, network: str) -> None:
    async with open_store(data_dir, Network.parse(network)):
        pass


def test_bad_settings_are_exit_code_2() -> None:
    for args, words in (
        (["--network", "nowhere"], "Error: --network: no network is named 'nowhere'"),
        (["--api", "x"], "Error: --api: 'x' should be HOST:PORT"),
        (["--config", "/no/such.toml"], "Error: /no/such.toml: No such file or directory"),
        (["--bootstrap", "/ip4/127.0.0.1/tcp/1"], "Error: --bootstrap: "),
        (["--frobnicate"], "No such option"),
    ):
        error = error_of("run", *args, code=2)
        assert words in error
        assert "Traceback" not in error


def test_the_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    new = tmp_path / "new"
    identity = ("id", "--data-dir", new)
    assert "has no identity yet" in error_of(*identity)
    assert not new.exists()
    first = run(*identity, "--create")
    assert first.stdout.startswith("12D3KooW")
    [key] = new.iterdir()
    assert first.stderr == f"created a new identity: {key}\n"
    for again in (run(*identity), run(*identity, "--create")):
        assert (again.stdout, again.stderr) == (first.stdout, "")
    assert (new.stat().st_mode & 0o777, key.stat().st_mode & 0o777) == (0o700, 0o600)
    key.write_bytes(b"garbage")
    assert str(key) in error_of(*identity)


def start_testnet_command(nodes: int, directory: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """`recon-node testnet`, once it has printed its table: the process and its nodes' pids."""
    process = forking.Popen(
        [*COMMAND, "testnet", "--nodes", str(nodes), "--dir", str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    pids = []
    for line in process.stdout:
        if match := re.match(r"node-\d+ +http://127\.0\.0\.1:\d+ +(\d+) +12D3KooW", line):
            pids.append(int(match[1]))
        if "Ctrl-C" in line:
            return process, pids
    raise AssertionError(f"the testnet ended with exit code {process.wait()}")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_testnet_leaves_no_process_behind(tmp_path: Path, how: signal.Signals) -> None:
    process, pids = start_testnet_command(1, tmp_path)
    try:
        assert len(pids) == 1
        assert all(alive(pid) for pid in pids)
        process.send_signal(how)
        assert process.wait(60) == (0 if how is signal.SIGINT else -signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in pids))
    finally:
        process.kill()
        process.communicate()
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_testnet_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "node-1").write_text("a file where its data directory should be")
    with pytest.raises(
        TestnetError, match=r"^node-1 stopped while it was starting:\n(.|\n)*is a file"
    ):
        Testnet(nodes=1, directory=tmp_path).start()


@pytest.mark.parametrize("usual", ["SIG_DFL", "SIG_IGN"])
def test_sighup_stops_a_node_in_good_order_unless_it_is_ignored(tmp_path: Path, usual: str) -> None:
    """A terminal that closes sends SIGHUP; `nohup` has it ignored."""
    flags = ["run", "--network", "local-1", "--api", "127.0.0.1:0", "--listen", ANY_PORT]
    started = (
        f"import signal; signal.signal(signal.SIGHUP, signal.{usual}); "
        f"from recon_node.cli import main; main({[*flags, '--data-dir', str(tmp_path)]})"
    )
    stops = usual == "SIG_DFL"
    with forking.Popen([sys.executable, "-c", started], stderr=subprocess.PIPE) as node:
        try:
            next(line for line in node.stderr if b"Ready" in line)
            node.send_signal(signal.SIGHUP)
            if not stops:
                node.send_signal(signal.SIGTERM)
            log = node.stderr.read()
            assert node.wait(60) == 0
            assert (b"SIGHUP" in log, b"SIGTERM" in log) == (stops, not stops)
        finally:
            node.kill()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can become another user, with setpriv",
)
def test_a_user_without_a_home_directory_can_run_a_node() -> None:
    """As in a container with a user of its own: no HOME, no entry in the password database."""
    flags = ["run", "--network", "local-1", "--api", "127.0.0.1:0", "--listen", ANY_PORT]
    become = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(recon_node.__file__).parent.parent),
    }
    no_program = [*become, sys.executable, "-c", ""]
    if subprocess.run(no_program, env=environment, cwd="/", check=False).returncode:
        pytest.skip("no other user can run this Python")

    def started(*more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*become, *COMMAND, *flags, *more],
            env=environment,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    # Not in pytest's directory, which each run of it closes to other users.
    with tempfile.TemporaryDirectory() as data_dir:
        os.chown(data_dir, 12345, 12345)
        with started("--data-dir", data_dir) as node:
            try:
                assert any(b"Ready" in line for line in node.stderr)
                node.terminate()
                assert node.wait(60) == 0
            finally:
                node.kill()
    with started() as node:
        _, log = node.communicate(timeout=60)
    assert node.returncode == 2, log
    assert b"no home directory" in log


def test_the_node_may_open_more_files_than_is_usual() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] // 2, before[1]))
        allow_files(before[0])
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_shutdown_that_takes_long_waits_for_the_keys_to_be_saved(monkeypatch):
    exits: list[int] = []
    monkeypatch.setattr("os._exit", exits.append)
    SAVING.set()
    watchdog = threading.Thread(target=_give_up)
    try:
        watchdog.start()
        watchdog.join(0.5)
        assert watchdog.is_alive()
        assert exits == []
    finally:
        SAVING.clear()
        watchdog.join()
    assert exits == [1]
