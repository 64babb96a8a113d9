"""`recon-node dag` against three daemons in a row: what A is given, C gets through B."""

import json
import os
import random
import shutil
import stat
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from dag_nodes import Row, call, done
from dag_samples import Dag, contents, make_dag, make_files
from nacl.signing import SigningKey
from support import vectors
from support.waiting import wait_until

from recon_node.ceramic import parse_event
from recon_node.ceramic.auth.did import ed25519_did
from recon_node.cli import main
from recon_node.dag.dag_events import Identifier, Subject, sort_value
from recon_node.dag.dag_source import CarFile, FileTree
from recon_node.dag.protocol.dag_operations import Publish
from recon_node.dag.protocol.replica import decode_replica
from recon_node.dag.protocol.shards import walk
from recon_node.dag.protocol.ucan import parse_ucan
from recon_node.dag.unixfs import NodeType, UnixFs
from recon_node.ipld import CID, RAW, car, cid_of_block, multibase
from recon_node.testnet import TestnetNode

DATA = vectors.DATA / "ipld"
PAYLOAD = "bafyreieurbwudfasu3bf7ktoh7bpqb72xgt6fzd4bhscxo4erlnprqxbbm"
"""Of `jose_event.car`."""


def states(node: TestnetNode, root: str) -> dict[str, object]:
    return dict(httpx.get(f"{node.api_url}/ceramic/dag/{root}").raise_for_status().json())


def write_key(path: Path, seed: int) -> tuple[str, str]:
    """A key file and its did:key."""
    key = SigningKey(bytes([seed]) * 32)
    path.write_text(bytes(key).hex() + "\n")
    return str(path), ed25519_did(bytes(key.verify_key))


def test_a_new_key_is_announced_once(tmp_path: Path) -> None:
    env = {"RECON_NODE_DATA_DIR": str(tmp_path)}
    first, second = (CliRunner().invoke(main, ["dag", "key"], env=env) for _ in range(2))
    assert str(tmp_path / "dag.key") in first.stderr
    assert "recon-node backup" in first.stderr
    assert (second.stdout, second.stderr) == (first.stdout, "")


def test_a_directory_goes_from_a_to_c_through_b(row, home, tmp_path, rng):
    files = make_files(tmp_path / "files", rng, 1_500_000, 300_000, 0, 5, 900_000)
    root = done(row.a, "push", str(files))
    assert root == str(FileTree(files).root)
    assert stat.S_IMODE((home / "dag.key").stat().st_mode) == 0o600

    out = tmp_path / "back"
    pulled = done(row.c, "pull", root, "--out", str(out), "--timeout", "100", "--json")
    assert json.loads(pulled) == {"root": root, "path": str(out), "files": 5}
    assert contents(out) == contents(files)
    assert done(row.c, "status", root).startswith("complete: ")
    again = call(row.a, "push", str(files), "--json")
    assert ": 0 sent, 3 already there" in again.stderr
    pushed = json.loads(again.stdout)
    assert (pushed["root"], pushed["sent"], pushed["shards"]) == (root, 0, 3)
    # The replica may come after the last block.
    wait_until(lambda: states(row.c, root)["heads"] == states(row.a, root)["heads"])

    over = call(row.c, "pull", root, "--out", str(out))
    assert (over.exit_code, "already exists; not overwriting" in over.stderr) == (1, True)


def test_what_is_left_out_is_counted_and_named(row: Row, home: Path, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "files/pipe")
    pushed = call(row.a, "push", str(tmp_path / "files"), "--json")
    assert json.loads(pushed.stdout)["left_out"] == 1
    assert f"1 entry is a socket, FIFO or device and was not pushed:\n  {tmp_path}" in pushed.stderr
    root, out = json.loads(pushed.stdout)["root"], tmp_path / "back"
    pulled = done(row.a, "pull", root, "--out", str(out), "--json")
    assert json.loads(pulled) == {"root": root, "path": str(out), "files": 0, "symlinks": 1}
    assert str((out / "link").readlink()) == "nowhere"

    carv2 = DATA / "carv2-basic.car"
    [v0_root] = vectors.load("ipld/cars")["cars"]["carv2-basic.car"]["roots"]
    assert done(row.a, "push", str(carv2)) == str(cid_of_block(CID.parse(v0_root)))
    assert done(row.a, "status", v0_root).startswith("complete: 5 blocks")
    signed = call(row.a, "push", str(DATA / "jose_event.car"), "--root", PAYLOAD)
    assert "1 block of the file is not below the root and was not pushed" in signed.stderr
    whole = call(row.a, "push", str(DATA / "jose_event.car"), "--root", PAYLOAD, "--all-blocks")
    assert (whole.exit_code, "not pushed" in whole.stderr) == (0, False)


def test_an_interrupted_push_continues(row, home, tmp_path, rng):
    """As if killed: all of the blocks of one part came, none of the other, and no replica."""
    root, blocks = make_dag(40, 1000, rng)
    whole, path = list(blocks.items()), tmp_path / "dag.car"
    path.write_bytes(car.encode([root], dict(whole[:1] + whole[20:])))
    broken = call(row.a, "push", str(path), "--shard-bytes", "5000")
    assert (broken.exit_code, "dag.car lacks the block" in broken.stderr) == (1, True)
    path.write_bytes(car.encode([root], dict(reversed(whole))))
    assert done(row.a, "push", str(path), "--shard-bytes", "5000") == str(root)
    state = states(row.a, str(root))
    assert state["complete"]
    assert (state["unclaimed"], len(state["heads"])) == ([], 1)  # type: ignore[arg-type]

    back = tmp_path / "back.car"
    back.write_bytes(b"something else")
    over = call(row.a, "pull", str(root), "--car", str(back))
    assert (over.exit_code, back.read_bytes()) == (1, b"something else")
    assert "already exists: choose another name, or use --force" in over.stderr
    done(row.a, "pull", str(root), "--car", str(back), "--force")
    source = CarFile(back)
    assert dict(walk(root, source.read)) == blocks


@pytest.mark.long
def test_separate_pushes_of_a_dag_are_joined(row, home, tmp_path, rng):
    """Two cut the same DAG otherwise; each appends to what its node knew, and the next push joins
    the two."""
    root, blocks = make_dag(10, 1000, rng)
    path = tmp_path / "dag.car"
    path.write_bytes(car.encode([root], blocks))
    row.b.stop()
    row.c.stop()  # A and C know each other from B
    done(row.a, "push", str(path), "--shard-bytes", "3000")
    row.a.stop()
    row.c.restart()
    done(row.c, "push", str(path), "--shard-bytes", "4000")
    row.b.restart()
    row.a.restart()
    wait_until(lambda: len(states(row.a, str(root))["heads"]) == 2)  # type: ignore[arg-type]
    done(row.a, "push", str(path))
    state = states(row.a, str(root))
    assert len(state["heads"]) == 1  # type: ignore[arg-type]
    assert state["unclaimed"] == []


def publishes(node: TestnetNode, did: str) -> list[Publish]:
    """The publishes under an identifier that a node has."""
    value = did.removeprefix("did:key:")
    answer = httpx.get(f"{node.api_url}/ceramic/experimental/events/dag/{value}").json()
    assert answer["events"]
    events = [parse_event(multibase.decode(event["data"])) for event in answer["events"]]
    changes = [decode_replica(event.data["replica"]).change for event in events]
    return [change for change in changes if isinstance(change, Publish)]


def test_publish_resolve_and_pull_by_identifier(row, home, tmp_path, rng):
    first = make_files(tmp_path / "first", rng, 1000)
    second = make_files(tmp_path / "second", rng, 2000)
    did = CliRunner().invoke(main, ["dag", "key"]).stdout.strip()
    nothing = call(row.c, "resolve", did)
    assert (nothing.exit_code, nothing.stdout[:20]) == (1, "nothing is published")

    roots = [done(row.a, "push", str(files)) for files in (first, second)]
    for root in roots:
        assert done(row.a, "publish", root, "--expires", "90d") == did
    assert done(row.a, "resolve", did) == roots[1]
    for publish in publishes(row.a, did):
        assert publish.shard is not None
        assert str(publish.shard) in states(row.a, str(publish.link))["shards"]  # type: ignore[operator]

    shutil.rmtree(first)
    done(row.c, "pull", did, "--out", str(tmp_path / "back"), "--timeout", "100")
    wait_until(lambda: done(row.c, "resolve", did) == roots[1])
    resolved = done(row.c, "resolve", did, "-v").splitlines()
    assert resolved[0] == roots[1]
    assert [line[:3] for line in resolved[2:4]] == ["1. ", "2. "]
    assert json.loads(done(row.c, "resolve", did, "--json"))["link"] == roots[1]
    published = json.loads(done(row.a, "publish", roots[0], "--json"))
    assert (published["id"], published["link"]) == (did, roots[0])


def test_what_the_origin_does_not_contain_cannot_be_published(row, home, tmp_path, rng):
    root = done(row.a, "push", str(make_files(tmp_path / "files", rng, 10)))
    other = done(row.a, "push", str(make_files(tmp_path / "others", rng, 20)))
    absent = str(CID.of(RAW, b"absent"))
    origin = dict(states(row.a, other)["head"])["cid"]  # type: ignore[call-overload]
    refused = call(row.a, "publish", root, "--origin", origin)
    assert (refused.exit_code, f"does not contain {root}" in refused.stderr) == (1, True)
    unknown = call(row.a, "publish", root, "--origin", absent)
    assert (unknown.exit_code, "cannot tell whether" in unknown.stderr) == (1, True)
    did = CliRunner().invoke(main, ["dag", "key"]).stdout.strip()
    assert call(row.a, "resolve", did).exit_code == 1


def test_another_publishes_under_a_grant(row, home, tmp_path, rng):
    owner, owner_did = write_key(tmp_path / "owner.key", 1)
    writer, writer_did = write_key(tmp_path / "writer.key", 2)
    root = done(row.a, "push", str(make_files(tmp_path / "files", rng, 10)), "--key", writer)
    alone = call(row.a, "publish", root, "--id", owner_did, "--key", writer)
    assert (alone.exit_code, "shows no proof" in alone.stderr) == (1, True)

    args = ["dag", "grant", writer_did, "--key", owner, "--expires", "1h"]
    (tmp_path / "grant.ucan").write_text(CliRunner().invoke(main, args).stdout)
    proof = ["--proof", f"@{tmp_path / 'grant.ucan'}"]
    done(row.a, "publish", root, "--id", owner_did, "--key", writer, *proof)
    assert done(row.a, "resolve", owner_did) == root
    longer = ["--id", owner_did, "--key", writer, *proof, "--expires", "2h"]
    granted = parse_ucan((tmp_path / "grant.ucan").read_text().strip())
    narrowed = call(row.a, "publish", root, *longer, "--json")
    assert json.loads(narrowed.stdout)["expires"] == granted.expires
    assert "nodes accept it for as long as its proofs are valid" in narrowed.stderr


def test_interests_are_added_only_at_nodes_that_have_some(row, home, tmp_path, rng):
    root = done(row.a, "push", str(make_files(tmp_path / "files", rng, 10)))
    did = CliRunner().invoke(main, ["dag", "key"]).stdout.strip()
    done(row.a, "publish", root)
    other = CID.of(RAW, rng.randbytes(8))

    def interests() -> list[str]:
        answer = httpx.get(f"{row.c.api_url}/ceramic/experimental/interests").json()
        return [interest["sepValue"] for interest in answer["interests"]]

    done(row.c, "pull", root, "--car", str(tmp_path / "a.car"), "--timeout", "100")
    assert interests() == []
    body = {"sep": "dag", "sepValue": str(other)}
    httpx.post(f"{row.c.api_url}/ceramic/interests", json=body).raise_for_status()
    done(row.c, "pull", did, "--car", str(tmp_path / "b.car"), "--timeout", "100")
    wanted: list[Subject] = [other, Identifier.parse(did), CID.parse(root)]
    assert interests() == [sort_value(model) for model in wanted]
    assert (tmp_path / "a.car").read_bytes() == (tmp_path / "b.car").read_bytes()

    pushed = done(row.c, "push", str(make_files(tmp_path / "others", rng, 20)))
    assert interests()[-1] == sort_value(CID.parse(pushed))
    done(row.a, "pull", pushed, "--car", str(tmp_path / "c.car"), "--timeout", "100")


def test_what_is_missing_is_named(row, home, tmp_path, rng):
    root = str(CID.of(RAW, rng.randbytes(8)))
    gone = call(row.a, "pull", root, "--timeout", "0", "--car", str(tmp_path / "x.car"))
    assert gone.exit_code == 1
    assert f"the node has 0 blocks and lacks 1 or more ({root})" in gone.stderr
    assert call(row.a, "status", root).exit_code == 1
    nobody = ed25519_did(bytes(SigningKey(rng.randbytes(32)).verify_key))
    unknown = call(row.a, "pull", nobody, "--timeout", "0")
    assert (unknown.exit_code, "knows no publish of" in unknown.stderr) == (1, True)
    unpushed = call(row.a, "publish", root)
    assert (unpushed.exit_code, "knows no replica of" in unpushed.stderr) == (1, True)
    assert not list(tmp_path.glob("*.car*"))


@pytest.mark.parametrize(
    ("args", "complaint"),
    vectors.load("dag_refusals"),
)
def test_invalid_arguments_are_refused(row, home, args, complaint):
    result = call(row.a, *args)
    assert result.exit_code != 0
    assert complaint in result.stderr
    assert "Traceback" not in result.output
    assert "answered" not in result.output  # it is not the node's fault


def test_a_file_that_is_not_a_key_is_refused(row: Row, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("not hexadecimal")
    result = call(row.a, "publish", "bafkqaaa", "--key", str(tmp_path / "key"))
    assert (result.exit_code, "is not a key: it should be 64" in result.stderr) == (1, True)


def test_a_pull_writes_nothing_that_is_too_large(row: Row, home: Path, tmp_path: Path) -> None:
    """Some 100 kB of blocks that are 1.6 TB of files, and a directory that is just over a limit."""
    bomb = Dag()
    root = bomb.raw(bytes(10_000))
    for _ in range(3):
        root = bomb.node(UnixFs(NodeType.DIRECTORY), [(f"{n}", root) for n in range(550)])
    (tmp_path / "bomb.car").write_bytes(car.encode([root], bomb))
    done(row.a, "push", str(tmp_path / "bomb.car"))
    (tmp_path / "out").mkdir()
    out = str(tmp_path / "out" / "files")
    refused = call(row.a, "pull", str(root), "--out", out)
    assert refused.exit_code == 1
    assert "takes 2.1 TiB (166,678,051 files, directories and symlinks)" in refused.output
    assert "more than 16.0 GiB" in refused.output
    files = make_files(tmp_path / "files", random.Random(1), 300_000)
    pushed = done(row.a, "push", str(files))
    for kind in ("--out", "--car"):
        refused = call(row.a, "pull", pushed, kind, out, "--max-size", "300KB")
        assert (refused.exit_code, "allow more with --max-size" in refused.output) == (1, True)
        assert not list((tmp_path / "out").iterdir())
    done(row.a, "pull", pushed, "--out", out, "--max-size", "310KB")
    assert contents(tmp_path / "out" / "files") == contents(files)
