"""Text of strangers on terminals: shown, never obeyed.

Names, contents, file names, agents and errors come from anybody. A terminal obeys escape sequences
(they set its title, clear the screen, fill the clipboard), C1 controls, and marks that turn the
writing direction; a line break fakes a line. All commands print through `echo`, or through tables
and consoles that use `shown`.
"""

from __future__ import annotations

from typing import Any

import click


def shown(text: str, *, lines: bool = False) -> str:
    """Return text in which everything that does not print is escaped, as in Python: `\\x1b`.

    Args:
        text: of anybody.
        lines: whether line breaks and tabs stay; elsewhere, text is one line.
    """
    if text.isprintable():  # nearly always
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)


def shown_json(text: str) -> str:
    """Return JSON whose strings hold no character that a terminal obeys; it has the same value."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text)


def echo(message: Any = "", *, err: bool = False, lines: bool = False) -> None:
    """Print a line, or several ones; on standard error if `err` is set."""
    click.echo(shown(str(message), lines=lines), err=err)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
