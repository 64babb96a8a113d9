"""The documentation: the site builds without a warning, and its commands exist."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.waiting import finished

from recon_node.cli import main as recon_node
from spark_sink.cli import main as spark_sink

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = {"recon-node": recon_node, "spark-sink": spark_sink}
_FENCE = re.compile(r"^( *)```sh[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")


def commands(text: str) -> Iterator[str]:
    """What a page's shell blocks call of our programs, those in $(...) included."""
    for _, block in _FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            inner = _SUBSTITUTION.findall(line)
            for text in (*inner, _SUBSTITUTION.sub("X", line)):
                for part in re.split(r"[|;]|&&|\|\||\buntil\b", _without_quotes_hidden(text)):
                    match = re.search(r"\b(recon-node|spark-sink)\b.*", part)
                    if match and not part.strip().startswith("#"):
                        yield match[0].replace("\0", "|").replace("\1", ";")


def _without_quotes_hidden(line: str) -> str:
    """Hide separators of commands that are inside quotes."""

    def hidden(match: re.Match[str]) -> str:
        return match[0].replace("|", "\0").replace(";", "\1")

    return re.sub(r"'[^']*'|\"[^\"]*\"", hidden, line)


def fault_of(command: str) -> str | None:
    """What is wrong with a command's program, sub-commands, flags, or number of arguments."""
    name, *words = shlex.split(command, comments=True)
    words = [word for word in words if word not in ("&", "...", "[URL]") and word != "2>&1"]
    context = click.Context(PROGRAMS[name], info_name=name)
    called: click.Command = PROGRAMS[name]
    while isinstance(called, click.Group) and words and not words[0].startswith("-"):
        inner = called.get_command(context, words[0])
        if inner is None:
            return f"there is no {words[0]}"
        context = click.Context(inner, info_name=words.pop(0), parent=context)
        called = inner
    try:
        called.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        return error.format_message()
    return None


def test_every_command_of_the_docs_exists() -> None:
    calls = [
        (page.name, command) for page in PAGES for command in set(commands(page.read_text("utf-8")))
    ]
    assert len(calls) > 100
    assert [(*call, fault) for call in calls if (fault := fault_of(call[1]))] == []


def build_site(directory: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    where = ["-f", str(ROOT / "config/mkdocs.yml"), "-d", str(directory)]
    done = finished(command + where, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def check_links(directory: Path) -> tuple[int, list[str]]:
    command = [sys.executable, "config/check_links.py", str(directory)]
    checked = finished(command, cwd=ROOT)
    return checked.returncode, checked.stderr.splitlines()


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """Every link and anchor between pages leads somewhere, and every page is in the contents."""
    build_site(tmp_path)
    for page in ("index", "tutorial", "reference/settings", "reference/recon-node"):
        assert (tmp_path / f"{page}.html").exists()
    glossary = (tmp_path / "glossary.html").read_text("utf-8")
    assert glossary.count("<dt>") == glossary.count("<dd>") > 40


@pytest.mark.long
def test_no_link_of_the_whole_site_is_dead(tmp_path: Path) -> None:
    """With those that mkdocs does not see: into the Python reference, and in it."""
    build_site(tmp_path)
    reference = [sys.executable, "config/reference.py", str(tmp_path / "reference/python")]
    subprocess.run(reference, check=True, capture_output=True, timeout=300, cwd=ROOT)
    assert check_links(tmp_path) == (0, [])


@pytest.mark.long
def test_dead_links_are_reported(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<a id="here"></a><a href="odd.html"></a>')
    odd = '<a href="none.html"></a><a href="index.html#none"></a><a href="index.html#here"></a>'
    (tmp_path / "odd.html").write_text(odd)
    faults = ["dead link: odd.html: index.html#none", "dead link: odd.html: none.html"]
    assert check_links(tmp_path) == (1, faults)
