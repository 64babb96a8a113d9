"""The attacks by name, each with the theory that it tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.attack.field import Field

Program = Callable[[Field], None]


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack: what it does to a node, and why that should not matter."""

    name: str
    run: Program
    flags: Callable[[], tuple[str, ...]]
    short: bool
    """Whether the test suite runs it, too."""

    @property
    def theory(self) -> str:
        """What the attacker hopes for, in one sentence."""
        return " ".join((self.run.__doc__ or "").split())


ATTACKS: Final[dict[str, Attack]] = {}


def attack(
    *, flags: Callable[[], tuple[str, ...]] = tuple, short: bool = False
) -> Callable[[Program], Program]:
    """Enter a program in the catalogue; its name and first sentence go into the table."""

    def enter(program: Program) -> Program:
        name = program.__name__.replace("_", " ")
        ATTACKS[name] = Attack(name, program, flags, short)
        return program

    return enter
