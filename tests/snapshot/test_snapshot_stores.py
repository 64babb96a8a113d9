"""Object stores that are real: a directory, S3 over HTTP (moto's server), a plain web server."""

import json
import os
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from snapshot_support import NETWORK, events, make_log, web
from support.web_server import serving

from recon_node.cli import main
from recon_node.snapshot.objects import (
    FILE_TIMEOUT,
    PARTS_AT_ONCE,
    MissingObjectError,
    ObjectError,
    Objects,
    UrlError,
)
from recon_node.snapshot.web import _requests

EVENTS = events(60, seed=4)


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """The environment that leads to an S3 server with the bucket `bucket`."""
    from moto.server import ThreadedMotoServer  # takes 0.3 s

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    httpx.put(f"{endpoint}/bucket").raise_for_status()
    yield {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    server.stop()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("log")
    make_log(data_dir, EVENTS)
    return data_dir


def run(*args: object, env: dict[str, str] | None = None) -> Result:
    settings = {"RECON_NODE_NETWORK": NETWORK.name, "RECON_NODE_VERIFIERS": "0", **(env or {})}
    return CliRunner().invoke(main, ["snapshot", *map(str, args)], env=settings)


def checked(*args: object, env: dict[str, str] | None = None) -> str:
    result = run(*args, env=env)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_backup_in_s3(log: Path, tmp_path: Path, s3: dict[str, str]) -> None:
    url, new = "s3://bucket/backups", str(tmp_path / "new")
    made = CliRunner().invoke(main, ["backup", url, "--data-dir", str(log), "--json"], env=s3)
    name = json.loads(made.stdout)["name"]
    restored = CliRunner().invoke(main, ["restore", f"{url}/{name}", "--data-dir", new], env=s3)
    assert restored.exit_code == 0, restored.output
    info = CliRunner().invoke(main, ["store", "info", "--data-dir", new, "--json"])
    assert json.loads(info.stdout)["events"] == len(EVENTS)
    missing = CliRunner().invoke(main, ["restore", f"{url}/none", "--data-dir", new], env=s3)
    assert (missing.exit_code, "none is missing in" in missing.stderr) == (1, True)


def test_the_commands_with_s3(log: Path, tmp_path: Path, s3: dict[str, str]) -> None:
    url, here = "s3://bucket/some/where", partial(checked, env=s3)
    assert f"wrote {len(EVENTS)} events" in here("create", url, "--data-dir", log)
    assert "nothing is new" in here("create", url, "--data-dir", log)
    assert f"{len(EVENTS)} of {len(EVENTS)} events sound" in here("verify", url)
    assert "did:key:z6Mk" in here("list", url)
    assert f"{len(EVENTS)} new, 0 known, 0 refused" in here("sync", url, "--data-dir", tmp_path)
    assert "0 new" in here("sync", url, "--data-dir", tmp_path)
    assert "deleted 0 snapshots and 0 packs" in here("gc", url, "--keep", 1, "--min-age", "0")


def test_the_commands_with_a_directory(log: Path, tmp_path: Path) -> None:
    one, both, node = tmp_path / "one", tmp_path / "both", tmp_path / "node"
    make_log(node, EVENTS[:30])
    checked("create", f"file://{one}", "--data-dir", node)
    checked("create", both, "--data-dir", log)
    assert "30 new" in checked("sync", both, one, "--data-dir", node)
    assert "0 new" in checked("sync", both, "--data-dir", node)


def test_a_part_of_the_events(log: Path, tmp_path: Path) -> None:
    model = f"model={EVENTS[0].header.sort_value}"
    output = checked("create", tmp_path / "part", "--data-dir", log, "--interest", model, "--json")
    assert '"new": true' in output
    whole = checked("create", tmp_path / "whole", "--data-dir", log)
    assert f"{len(EVENTS)} events" in whole
    of_model = sum(e.header is not None and f"model={e.header.sort_value}" == model for e in EVENTS)
    assert 0 < of_model < len(EVENTS)
    report = json.loads(checked("verify", tmp_path / "part", "--json"))
    assert of_model <= report["sound_events"] < len(EVENTS)


def test_a_web_server_is_enough_to_read(log: Path, tmp_path: Path) -> None:
    checked("create", tmp_path / "web", "--data-dir", log)
    with web(tmp_path / "web") as url:
        assert f"{len(EVENTS)} new" in checked("sync", url, "--data-dir", tmp_path / "node")
        assert "sound" in checked("verify", url)
        result = run("list", url)
        assert result.exit_code == 1
        assert "cannot be listed: a web server can only be read" in result.output
        with pytest.raises(ObjectError, match="cannot be written: a web server can only be read"):
            Objects.open(url).put("name", b"")


def test_the_signer_must_be_trusted(log: Path, tmp_path: Path) -> None:
    checked("create", tmp_path / "s", "--data-dir", log)
    other = "did:key:z6MktwupdmLXVVqTzCw4i46r4uGyosGXRnR3XjN4Zq7oMMsw"
    result = run("sync", tmp_path / "s", "--signer", other, "--data-dir", tmp_path / "node")
    assert result.exit_code == 1
    assert "not trusted" in result.output


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nothing://x", "cannot use the object store"),
        ("http://127.0.0.1:1/x", "cannot be read"),
        ("/dev/null/x", "does not exist"),
    ],
)
def test_a_url_that_leads_nowhere(url, message, tmp_path, monkeypatch):
    monkeypatch.setattr("recon_node.snapshot.objects.RETRIES", 0)
    result = run("sync", url, "--data-dir", tmp_path)
    assert result.exit_code == 1
    assert message in result.output


def test_a_proxy_that_cannot_be_used_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request of a process makes the client, which reads the environment."""
    monkeypatch.setenv("ALL_PROXY", "ftp://127.0.0.1:9")
    _requests.cache_clear()
    with pytest.raises(ObjectError, match="ALL_PROXY cannot be used"):
        Objects.open("https://example.com/snapshots").get("latest.car")


def test_an_empty_place_has_no_snapshot(tmp_path: Path) -> None:
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    assert "no snapshot exists there" in result.output


def test_a_store_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recon_node.snapshot.objects.RETRIES", 0)
    stopped = threading.Event()

    with serving(lambda _: stopped.wait(30)) as url:
        with pytest.raises(ObjectError, match=r"latest\.car in http"):
            Objects.open(url, timeout=0.3).get("latest.car")
        stopped.set()


@pytest.mark.parametrize("name", ["latest.car", "backup.tar"])
def test_a_pipe_is_not_an_object(name: str, tmp_path: Path) -> None:
    """It was opened, which ends when somebody writes to it."""
    os.mkfifo(tmp_path / name)
    objects = Objects.open(str(tmp_path))
    with pytest.raises(ObjectError, match="cannot be read: it is not a file"):
        objects.get(name)
    with pytest.raises(ObjectError, match="cannot be read: it is not a file"):
        objects.fetch(name, tmp_path / "copy")


def test_a_file_without_end_is_read_until_the_disk_has_no_room(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("recon_node.snapshot.objects.room_at", lambda directory: 3_000_000)

    def send(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("content-length", str(1 << 62))
        request.send_header("last-modified", "Tue, 01 Dec 2026 12:00:00 GMT")
        request.end_headers()
        while True:
            request.wfile.write(bytes(1 << 16))

    with serving(send) as url:
        objects = Objects.open(url, total_timeout=FILE_TIMEOUT)
        with pytest.raises(ObjectError, match=r"there is no room for backup\.tar of http"):
            objects.fetch("backup.tar", tmp_path / "backup.tar")
    assert (tmp_path / "backup.tar").stat().st_size <= 3_000_000


def test_missing_credentials_are_reported_in_a_sentence(monkeypatch, tmp_path: Path) -> None:
    """Not as the failure of a server that the user has not named."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ObjectError, match=r"cannot be read: there are no credentials for the store"
    ):
        Objects.open("s3://bucket/ceramic").get("latest.car")
    monkeypatch.setattr("recon_node.snapshot.objects.RETRIES", 0)
    with pytest.raises(ObjectError) as other:
        Objects.open("http://127.0.0.1:9/latest/api").fetch("backup.tar", tmp_path / "backup.tar")
    assert "credentials" not in str(other.value)


def test_a_slow_line_is_enough_for_files(monkeypatch: pytest.MonkeyPatch, s3) -> None:
    """To send a part counts as waiting for its answer, and all parts share the line."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    sent = Objects.open("s3://bucket/b", make=True)._store.client_options
    assert PARTS_AT_ONCE * 5 * 2**20 / seconds(sent["read_timeout"]) < 1.4e6 / 8
    assert seconds(sent["timeout"]) >= seconds(sent["read_timeout"])
    read = Objects.open("s3://bucket/b", total_timeout=FILE_TIMEOUT)._store
    assert seconds(read.client_options["timeout"]) == FILE_TIMEOUT
    assert read.retry_config["retry_timeout"].total_seconds() >= FILE_TIMEOUT


def test_a_large_file_has_no_more_parts_than_s3_takes(monkeypatch, s3, tmp_path: Path) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("recon_node.snapshot.objects._MAX_PARTS", 2)
    (tmp_path / "file").write_bytes(bytes(11 << 20))
    Objects.open("s3://bucket/large", make=True).put("file", tmp_path / "file")
    stored = httpx.head(f"{s3['AWS_ENDPOINT_URL']}/bucket/large/file")
    assert stored.headers["etag"].endswith('-2"')  # the number of its parts
    assert stored.headers["content-length"] == f"{11 << 20}"


def seconds(text: str) -> int:
    """Of a duration as the library shows it."""
    units = {"s": 1, "m": 60, "h": 3600, "day": 86400}
    return sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)([a-z]+)", text))


def test_objects_say_what_is_wrong() -> None:
    objects = Objects.open("memory://")
    objects.put("a/b", b"0123456789")
    assert objects.get_range("a/b", 2, 3) == b"234"
    objects.put_missing("a/b", b"abcdefghij")
    assert objects.get("a/b") == b"0123456789"
    objects.put_missing("a/b", b"012345678")
    assert objects.get("a/b") == b"012345678"
    with pytest.raises(ObjectError, match="truncated"):
        objects.get_range("a/b", 8, 9)
    with pytest.raises(MissingObjectError, match="a/c is missing"):
        objects.get("a/c")
    objects.put_missing("a/c", b"0")
    assert objects.get("a/c") == b"0"
    objects.delete(["a/b", "a/c"])
    assert objects.list("a") == []
    with pytest.raises(UrlError, match="cannot use"):
        Objects.open("s3:/")
