"""Writing from the shell, and the examples of docs/client.md, against a real node."""

import importlib
import json
import re
import subprocess
import sys
import warnings
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from cli_run import run
from click.testing import Result
from eth_account import Account as EthAccount
from eth_account.messages import encode_defunct
from support import forking
from support.waiting import finished

from recon_node.client import METAMODEL, Ceramic, Key, OutsideInterestsWarning
from recon_node.testnet import TestnetNode

GUIDE = Path(__file__).parents[2] / "docs" / "client.md"
BLOG = GUIDE.parent / "examples" / "blog"
POST = {
    "name": "Post",
    "schema": {"properties": {"title": {"type": "string"}, "stars": {"type": "integer"}}},
}


class Shell:
    """Runs commands against a node, with a key."""

    def __init__(self, node: TestnetNode, key: Path) -> None:
        self._settings = {"RECON_NODE_URL": node.api_url, "RECON_NODE_KEY": str(key)}

    def __call__(self, *args: object, **options: Any) -> Result:
        return run(*args, **options, **self._settings)

    def line(self, *args: object, **options: Any) -> str:
        return self(*args, **options).stdout.strip()

    def json(self, *args: object) -> Any:
        return json.loads(self(*args, "--json").stdout)


@pytest.fixture
def shell(node: TestnetNode, tmp_path: Path) -> Shell:
    opened = Shell(node, tmp_path / "my.key")
    did = opened.line("key", "new", str(tmp_path / "my.key"))
    assert did == opened.line("key", "show", str(tmp_path / "my.key"))
    assert did.startswith("did:key:z6Mk")
    return opened


def test_the_examples_of_the_guide(node: TestnetNode, capsys: pytest.CaptureFixture[str]) -> None:
    """In order, in one program, but for the address of the node."""
    examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(examples) > 5
    names: dict[str, Any] = {}
    for example in examples:
        code = example.replace("http://127.0.0.1:5101", node.api_url)
        with warnings.catch_warnings():
            warnings.simplefilter("error", OutsideInterestsWarning)
            exec(compile(code, str(GUIDE), "exec"), names)
    assert "EventKind.DATA" in capsys.readouterr().out


def test_a_document_from_its_model_to_its_merge(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "post.json"
    file.write_text(json.dumps(POST))
    model = shell.line("model", "new", f"@{file}")
    post = shell.line("stream", "new", model, "-", data='{"title": "a", "stars": 1}')
    first = shell.json("stream", "update", post, '{"title": "b", "stars": 1}')
    assert (first["content"], first["open_tips"]) == ({"title": "b", "stars": 1}, [])
    same = shell("stream", "update", post, '{"title": "b", "stars": 1}')
    assert same.stdout == f"{first['event']}\n"
    assert "nothing to change" in same.stderr
    patch = '[{"op": "replace", "path": "/stars", "value": 2}]'
    second = shell.line("stream", "update", post, "--patch", patch)
    third = shell.json(
        "stream", "update", post, '{"title": "c", "stars": 1}', "--at", first["event"]
    )
    assert sorted(third["open_tips"]) == sorted([second, third["event"]])
    planned = json.loads(shell("stream", "merge", post, "--dry-run").stdout)
    assert planned["conflicts"] == []
    assert planned["content"] == {"title": "c", "stars": 2}
    merged = shell.json("stream", "merge", post)
    assert (merged["content"], merged["open_tips"]) == (planned["content"], [])
    again = shell("stream", "merge", post)
    assert (again.stdout, "nothing to merge" in again.stderr) == (f"{merged['event']}\n", True)
    assert json.loads(shell("stream", "get", post).stdout) == merged["content"]
    earlier = json.loads(shell("stream", "get", post, "--at", first["event"], "--json").stdout)
    assert (earlier["event"], earlier["content"]) == (first["event"], first["content"])
    assert shell("stream", "merge", post, "--dry-run").stdout == "null\n"


def test_a_writer_outside_of_the_interests_is_warned(shell: Shell, tmp_path: Path) -> None:
    model = shell.line("model", "new", json.dumps({**POST, "name": "Kept here"}))
    shell("interests", "add", str(METAMODEL))
    try:
        written = shell("stream", "new", model, '{"title": "a"}')
        assert written.stderr == (
            f"Warning: this node has no interest that covers model={model}: it keeps the event, "
            "but no peer gets it from here\n"
        )
        cid = shell.json("stream", "show", written.stdout.strip())["init"]
        car = shell.line("events", "get", cid)
        added = shell("events", "add", "-", data=f"{car}\n{car}\n")
        assert added.stderr.count(f"this node has no interest that covers model={model}") == 1
    finally:
        shell("interests", "remove", str(METAMODEL))
    assert shell("stream", "new", model, '{"title": "b"}').stderr == ""


def test_a_key_writes_for_an_account(shell: Shell, tmp_path: Path) -> None:
    """The text goes to the wallet by hand, and its signature comes back on standard input."""
    wallet = EthAccount.from_key(b"e" * 32)
    did = f"did:pkh:eip155:1:{wallet.address.lower()}"
    command = [sys.executable, "-m", "recon_node", "key", "sign-in", str(tmp_path / "my.key")]
    command += [str(tmp_path / "my.cacao"), "--account", did, "--expires", "1h", "--json"]
    with forking.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asking:
        text = "".join(takewhile(str.strip, asking.stderr))  # up to the blank line after it
        text += "\n" + "".join(takewhile(str.strip, asking.stderr))
        signed = wallet.sign_message(encode_defunct(text=text.rstrip("\n"))).signature
        shown, _ = asking.communicate("0x" + signed.hex() + "\n", timeout=60)
    assert asking.returncode == 0
    assert json.loads(shown)["did"] == did
    under = ("--capability", str(tmp_path / "my.cacao"))
    model = shell.line("model", "new", json.dumps(POST), *under)
    post = shell.json("stream", "new", model, '{"title": "a"}', *under)
    assert post["controller"] == did
    shell("stream", "update", post["id"], '{"title": "b"}', code=1)  # the key alone may not
    updated = shell.json("stream", "update", post["id"], '{"title": "b"}', *under)
    assert updated["content"] == {"title": "b"}
    (tmp_path / "my.cacao").write_text("u")
    error = shell("stream", "update", post["id"], "{}", *under, code=1).stderr
    assert "my.cacao" in error
    sign_in = ("key", "sign-in", str(tmp_path / "my.key"), str(tmp_path / "new"), "--account")
    assert "signature" in shell(*sign_in, did, data="0x00\n", code=1).stderr
    assert "not an account" in shell(*sign_in, "did:pkh:bip122:1:x", code=1).stderr
    assert not (tmp_path / "new").exists()


def test_a_conflict_is_shown_and_decided(shell: Shell) -> None:
    model = shell.line("model", "new", json.dumps(POST))
    post = shell.json("stream", "new", model, '{"title": "a"}')
    one, two = (
        shell.line("stream", "update", post["id"], content, "--at", post["event"])
        for content in ('{"title": "é"}', "{}")
    )
    shown = shell("stream", "merge", post["id"], code=1).stderr
    assert "  /content/title\n" in shown
    assert f'{one}: "é"' in shown
    assert f"{two}: (removed)" in shown
    for wrong, code in ((post["event"], 1), ("x", 2)):
        error = shell("stream", "merge", post["id"], "--prefer", wrong, code=code)
        assert "is not" in error.stderr
    decided = ("--prefer", one), ("--content", '{"title": "x"}')
    planned = [
        shell("stream", "merge", post["id"], "--dry-run", *decision).stdout for decision in decided
    ]
    assert [json.loads(line)["content"]["title"] for line in planned] == ["é", "x"]
    assert [json.loads(line)["conflicts"] for line in planned] == [[], []]
    merged = shell.json("stream", "merge", post["id"], "--prefer", two)
    assert (merged["content"], merged["open_tips"]) == ({}, [])


def test_errors_say_what_to_do(shell: Shell) -> None:
    unknown, post = "kh4q0ozorrgaq2mezktnrmdwleo1d", json.dumps(POST)
    for command, code, words in (
        (("model", "new", "{"), 2, "not JSON"),
        (("model", "new", "[]"), 2, "not a JSON object"),
        (("model", "new", "@nowhere"), 2, "No such file"),
        (("model", "new", "post.json"), 2, "to read it from a file, write @FILE"),
        (("model", "new", "{}"), 1, "the model has no name"),
        (("stream", "new", "x", "{}"), 1, "StreamID"),
        (("stream", "update", "x"), 2, "either the new CONTENT or a --patch"),
        (("stream", "update", "x", "--patch", "{}"), 2, "a JSON array of operations"),
        (("stream", "update", "x", "--patch", "[1]"), 2, "operation of a --patch is an object"),
        (("stream", "new", "x", '{"a": ' + "[" * 100_000), 2, "nested too deeply"),
        (("stream", "get", unknown), 1, "does not have the stream"),
        (("stream", "get", "x"), 1, "StreamID"),
        (("stream", "merge", unknown), 1, "does not have the stream"),
        (("stream", "merge", "x", "--prefer", "y"), 2, "'--prefer': 'y' is not a CID: 'y' is"),
        (("stream", "new", "x", "--key", "nowhere"), 1, "No such file"),
        (("stream", "new", "x", "--url", "127.0.0.1:1"), 1, "StreamID"),
        (("model", "new", post, "--url", "127.0.0.1:1"), 1, "no node answers"),
        (("key", "show", "nowhere"), 1, "No such file"),
    ):
        assert words in shell(*command, code=code).stderr, command
    of_a_file = shell("model", "new", f"@{__file__}", code=2).stderr
    assert "not JSON" in of_a_file
    assert "write @FILE" not in of_a_file


def test_a_key_is_not_overwritten(shell: Shell, tmp_path: Path) -> None:
    for kind, start in (("secp256k1", "did:key:zQ3s"), ("p256", "did:key:zDn")):
        assert shell.line("key", "new", str(tmp_path / kind), "--kind", kind).startswith(start)
    again = shell("key", "new", str(tmp_path / "p256"), code=1)
    assert "already exists; not overwriting" in again.stderr


MESSAGE = {
    "name": "Message",
    "schema": {"properties": {"text": {"type": "string"}, "tangles": {"type": "object"}}},
}


def test_a_thread(shell: Shell, tmp_path: Path) -> None:
    model = shell.line("model", "new", json.dumps(MESSAGE))
    links = {"thread": {"root": None, "previous": None}}
    root = shell.line("stream", "new", model, json.dumps({"text": "Hi", "tangles": links}))
    first = shell.line("tangle", "reply", root, '{"text": "one"}')
    second = shell.json("tangle", "reply", root, '{"text": "two"}')
    assert second["content"]["tangles"]["thread"] == {"root": root, "previous": [first]}
    where = ("tangle", "show", "--root", root, "--name", "thread")
    drawn = shell.json(*where)
    assert [message["id"] for message in drawn["messages"]] == [root, first, second["id"]]
    assert drawn["tips"] == [second["id"]]
    assert drawn["left_out"] == []
    stray = {"thread": {"root": root, "previous": []}}
    left_out = shell.line("stream", "new", model, json.dumps({"tangles": stray}))
    assert "3 messages, 1 tip" in shell.line(*where)
    author = second["controller"]
    assert f"  …{author[-12:]}  " in shell.line(*where)
    assert f"{left_out}  a message other than the root" in shell.line(*where)
    assert "no document" not in shell(*where, "--svg", str(tmp_path / "thread.svg")).output


def test_documents_that_relate_to_another(shell: Shell) -> None:
    relations = {"post": {"type": "document", "model": None}}
    comment = {"name": "Comment", "schema": {"properties": {"post": {"type": "string"}}}}
    post = shell.line("stream", "new", shell.line("model", "new", json.dumps(POST)), "{}")
    model = shell.line("model", "new", json.dumps({**comment, "relations": relations}))
    mine, _other = (
        shell.line("stream", "new", model, json.dumps(content)) for content in ({"post": post}, {})
    )
    listed = shell.json("stream", "list", "--model", model, "--where", f"post={post}")
    assert [row["id"] for row in listed] == [mine]
    assert len(shell.json("stream", "list", "--model", model, "--indexed")) == 2
    result = shell("stream", "list", "--model", model, "--where", f"post={mine}")
    assert result.stderr == "no such streams here yet\n"
    result = shell("stream", "list", "--controller", "did:key:zNobody")
    assert result.stderr == "no such streams here yet\n"
    alone = shell("stream", "list", "--where", "a=b", code=2)
    assert "give their --model, too" in alone.output


def test_what_is_wrong_with_a_thread(shell: Shell) -> None:
    model = shell.line("model", "new", json.dumps(MESSAGE))
    plain = shell.line("stream", "new", model, '{"text": "no tangle"}')
    assert "is missing" in shell("tangle", "reply", plain, "{}", code=1).output
    content = '{"tangles": {"thread": {}}}'
    assert "leave 'thread' out" in shell("tangle", "reply", plain, content, code=1).output
    assert "of a FILE" in shell("tangle", "show", "--feed", "@a.ed25519", code=2).output


@pytest.mark.parametrize("script", ["blog.py", "deploy.py"])
def test_an_example_without_arguments_says_which_it_takes(script: str) -> None:
    done = finished([sys.executable, BLOG / script])
    assert done.returncode
    assert done.stderr.startswith(f"usage: {script} ")


def test_the_example_blog(node, tmp_path, monkeypatch, capsys):
    """Its models have the types that are in docs/examples, and what its tour prints is right."""
    monkeypatch.syspath_prepend(BLOG)
    blog, models = (importlib.import_module(module) for module in ("blog", "deploy"))
    written = tmp_path / "blog_models.py"
    with Ceramic(node.api_url, key=Key.from_seed(b"blog" * 8)) as ceramic:
        ids = list(map(str, models.deploy(ceramic)))
        run("model", "codegen", *ids, "--out", written, node=node)
        assert written.read_text() == (BLOG / "blog_models.py").read_text()
        followed = run("model", "codegen", ids[2], node=node)
        assert all(name in followed.stdout for name in ("Profile(", "Post(", *ids))
    with Ceramic(node.api_url, key=Key.generate()) as ceramic:  # not the author of the models
        blog.tour(ceramic)
        blog.tour(ceramic)
    shown = ["The engine works! ['news', 'opinion']", "- How fast?", "- One an hour."]
    assert capsys.readouterr().out.splitlines() == shown * 2
