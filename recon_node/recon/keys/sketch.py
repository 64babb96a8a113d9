"""A sketch of a set of keys, which shows how two sets differ; and an estimate of how many keys do.

Theory of operation
-------------------
A sketch is made of the keys' ids (key_hashes.py). It changes with its set: a key is added to it, or
taken out, whatever else it has.

It follows Yang, Gilad and Alizadeh, "Practical Rateless Set Reconciliation" (SIGCOMM 2024). A
*symbol* is the sum of some ids (modulo 2^64), of their checks (modulo 2^32), and their number.
Symbol 0 has all ids of the set, and symbol i has each with a probability of 1 / (1 + i/2), decided
by the id alone. So the symbols of two sets can be subtracted: what remains are the symbols of the
difference, in which the keys of one side count +1 and those of the other -1.

A symbol with a single id left in it is *pure*. Its count is 1 or -1, and its check fits its sum.
That id is taken out of all its other symbols, which makes more of them pure. Some 1.4 symbols for
each differing key are enough to find them all, however large the sets are. The difference is
complete when symbol 0 is empty.

How many symbols to send follows from an estimate. Each key also flips one bit of a small table: the
row is 0 with probability 1/2, 1 with probability 1/4 and so on, the column is random. In the XOR of
two such tables, each row is an odd sketch (Mitzenmacher, Pagh and Pham, WWW 2014) of a sample of
the difference: the share of its bits that are set shows how large that sample is. The most likely
number of differences, over all rows, is within a sixth of the truth for two of three sets.

Sums instead of XOR, and a non-linear check: a peer that chooses its keys cannot make them cancel
out by linear algebra. It can still search for two keys with the same id. Then the symbols do not
decode, and the session goes another way. No set is ever believed to be equal because of a sketch:
that takes an LtHash, which cannot be steered.

`decode` takes all pure symbols out at once, by numpy. For a handful of symbols, which is what a
session looks at first, numpy's calls take ten times as long as plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log, sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recon_node.recon.keys.key_hashes import Ids

MAX_SYMBOLS: Final = 1 << 15
"""Symbols that a sketch keeps: enough for some 20,000 differences."""
ROWS: Final = 12
"""Rows of the table of bits. The last one takes all keys that belong to none above it."""
COLUMNS: Final = 64
TABLE_SIZE: Final = ROWS * COLUMNS // 8
"""Bytes of the table."""
COUNTS: Final = 256
"""Counts are sent modulo this: only 1 and -1 need to be distinguished from the others."""

Signs = NDArray[np.int64]
_FEW_IDS: Final = 8
"""Ids up to which they are added one by one: to add one to all its symbols takes 15 calls of numpy
for each of about 20 indices, or one for all of them."""
_MANY_IDS: Final = 1024
"""Ids from which on they are added one index of all after the other: for fewer, that takes more
calls of numpy than it saves."""
_IDS_AT_ONCE: Final = 8192
"""Ids whose indices are found together: what is needed of them fits into a cache."""
_WORTH_KEEPING: Final = 0.8
"""The share of ids that have another index below which the others are taken out."""

_U = np.uint64
_64_BITS: Final = (1 << 64) - 1
# Each as Python's integer and as numpy's: converting one takes as long as a step of a loop.
_STEP: Final = 0xDA942042E4DD58B5
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_U_STEP, _U_MIX_1, _U_MIX_2 = _U(_STEP), _U(_MIX_1), _U(_MIX_2)
_TWO_32: Final = 2.0**32
_CHECK_BITS: Final = 32
_ROW_BITS: Final = ROWS - 1
_COLUMN_BITS: Final = COLUMNS.bit_length() - 1
_ROW_OF: Final = np.array(
    [min(_ROW_BITS, (n & -n).bit_length() - 1 if n else _ROW_BITS) for n in range(1 << _ROW_BITS)],
    dtype=np.int64,
)
"""The row of a key by the bits that decide it: the number of zeros below the lowest 1."""


def mix(ids: Ids) -> Ids:
    """Mix the bits of ids, as the finalizer of splitmix64 does. The check is the lower half."""
    mixed = ids ^ (ids >> _U(30))
    mixed *= _U_MIX_1
    mixed ^= mixed >> _U(27)
    mixed *= _U_MIX_2
    mixed ^= mixed >> _U(31)
    return mixed


def mix_one(id_: int) -> int:
    """Mix the bits of one id, as `mix` does."""
    id_ ^= id_ >> 30
    id_ = id_ * _MIX_1 & _64_BITS
    id_ ^= id_ >> 27
    id_ = id_ * _MIX_2 & _64_BITS
    return id_ ^ id_ >> 31


class Symbols(NamedTuple):
    """The first symbols of a set, or of the difference of two: three columns of equal length."""

    sums: Ids
    checks: NDArray[np.uint32]
    counts: NDArray[np.uint8]

    @classmethod
    def none(cls, number: int) -> Symbols:
        """Return the symbols of the empty set."""
        return cls(np.zeros(number, _U), np.zeros(number, np.uint32), np.zeros(number, np.uint8))

    def first(self, number: int) -> Symbols:
        """Return the first symbols; they share the memory of these."""
        return Symbols(self.sums[:number], self.checks[:number], self.counts[:number])

    def copy(self) -> Symbols:
        """Return a copy, which stays as it is when these change."""
        return Symbols(self.sums.copy(), self.checks.copy(), self.counts.copy())

    def __sub__(self, other: Symbols) -> Symbols:
        return Symbols(
            self.sums - other.sums, self.checks - other.checks, self.counts - other.counts
        )

    def __len__(self) -> int:
        return len(self.sums)

    @property
    def are_empty(self) -> bool:
        """Whether they are those of the empty set."""
        return not any(column.any() for column in self)

    def add(self, ids: Ids, signs: Signs) -> None:
        """Add ids to the symbols that have them; a sign of -1 takes one out."""
        checks = mix(ids).astype(np.uint32)
        if len(ids) <= _FEW_IDS:
            self._add_few(ids, checks, signs)
            return
        # Modulo 2^n, adding n-bit numbers signed or unsigned is the same.
        factors = signs.astype(_U)
        if len(ids) > _MANY_IDS:
            rests = (checks.astype(_U) << _U(_CHECK_BITS) | _U(1)) * factors
            self._add_many(ids, ids * factors, rests)
            return
        of, indices = _all_indices(ids, len(self))
        np.add.at(self.sums, indices, (ids * factors)[of])
        np.add.at(self.checks, indices, (checks * signs.astype(np.uint32))[of])
        np.add.at(self.counts, indices, signs.astype(np.uint8)[of])

    def _add_many(self, ids: Ids, sums: Ids, rests: Ids) -> None:
        """Add many ids, given what each adds to the sums, and to the checks and counts.

        A number of `rests` has the check in its upper half, and the count, which stays small, in
        its lower half.
        """
        sum_of, rest_of = np.zeros((2, len(self) + 1), _U)
        for start in range(0, len(ids), _IDS_AT_ONCE):
            part = slice(start, start + _IDS_AT_ONCE)
            _add_all(ids[part], sums[part], rests[part], sum_of, rest_of)
        counts = rest_of.astype(np.uint32).view(np.int32)
        rest_of -= counts.astype(np.int64).view(_U)
        self.sums[:] += sum_of[:-1]
        self.checks[:] += (rest_of >> _U(_CHECK_BITS)).astype(np.uint32)[:-1]
        self.counts[:] += counts.astype(np.uint8)[:-1]

    def _add_few(self, ids: Ids, checks: NDArray[np.uint32], signs: Signs) -> None:
        """Add a few ids, one after the other."""
        for id_, check, sign in zip(ids, checks, signs, strict=True):
            indices = indices_of(int(id_), len(self))
            if sign > 0:
                self.sums[indices] += id_
                self.checks[indices] += check
                self.counts[indices] += np.uint8(1)
            else:
                self.sums[indices] -= id_
                self.checks[indices] -= check
                self.counts[indices] -= np.uint8(1)


def _all_indices(ids: Ids, limit: int) -> tuple[Signs, Signs]:
    """Return for some ids which of the first symbols have them: the n of an id, and an index."""
    state, at, of = ids.copy(), np.zeros(len(ids), np.float64), np.arange(len(ids))
    step, owners, indices = np.empty(len(ids), np.float64), [of], [np.zeros(len(ids), np.int64)]
    while len(of):
        _to_next_index(state, at, step)
        inside = at < limit
        if not inside.all():  # at first all are
            state, at, of = state[inside], at[inside], of[inside]
            step = step[: len(of)]
        owners.append(of)
        indices.append(at.astype(np.int64))
    return np.concatenate(owners), np.concatenate(indices)


def _add_all(ids: Ids, sums: Ids, rests: Ids, sum_of: Ids, rest_of: Ids) -> None:
    """Add two numbers of each id to the symbols that have it, one index of all ids at a time.

    There is one more symbol than needed, for ids that have no other index. They stay for a while,
    because to take them out each time would take longer.
    """
    limit = len(sum_of) - 1
    state, at = ids.copy(), np.zeros(len(ids), np.float64)
    step, indices = np.empty(len(ids), np.float64), np.zeros(len(ids), np.int64)
    while len(state):
        np.add.at(sum_of, indices, sums)
        np.add.at(rest_of, indices, rests)
        _to_next_index(state, at, step)
        np.copyto(indices, np.minimum(at, limit, out=at), casting="unsafe")
        inside = at < limit
        number = int(np.count_nonzero(inside))
        if number < len(state) * _WORTH_KEEPING:
            state, at, indices = state[inside], at[inside], indices[inside]
            sums, rests, step = sums[inside], rests[inside], step[:number]


def _to_next_index(state: Ids, at: NDArray[np.float64], step: NDArray[np.float64]) -> None:
    """Do one step of `indices_of` for many ids, in place; `step` is for what lies in between."""
    state *= _U_STEP
    np.sqrt(np.add(state, 1.0, out=step), out=step)
    np.divide(_TWO_32, step, out=step)
    step -= 1
    step *= at + 1.5
    at += np.maximum(np.ceil(step, out=step), 1, out=step)


def indices_of(id_: int, limit: int) -> list[int]:
    """Return which of the first symbols have an id."""
    indices, index, state = [0], 0, id_
    while True:
        state = state * _STEP & _64_BITS
        index += max(1, ceil((index + 1.5) * (_TWO_32 / sqrt(state + 1.0) - 1)))
        if index >= limit:
            return indices
        indices.append(index)


class Sketch:
    """The symbols and the table of a set of ids, which changes."""

    SIZE: Final = MAX_SYMBOLS * (8 + 4 + 1) + TABLE_SIZE
    """Bytes when it is packed, with `MAX_SYMBOLS`."""

    __slots__ = ("_table", "symbols")

    def __init__(self) -> None:
        self.symbols = Symbols.none(MAX_SYMBOLS)
        self._table = 0

    def add(self, ids: Ids, signs: Signs | None = None) -> None:
        """Add ids that the set does not have, or, with a sign of -1, take some out that it has."""
        self.symbols.add(ids, np.ones(len(ids), np.int64) if signs is None else signs)
        mixed = mix(ids) >> _U(_CHECK_BITS)
        columns = mixed & _U(COLUMNS - 1)
        rows = _ROW_OF[(mixed >> _U(_COLUMN_BITS)) & _U((1 << _ROW_BITS) - 1)]
        flipped = np.bincount(rows * COLUMNS + columns.astype(np.int64), minlength=ROWS * COLUMNS)
        self._table ^= int.from_bytes(np.packbits((flipped & 1).astype(np.bool_)).tobytes(), "big")

    @property
    def table(self) -> bytes:
        """The table of bits, row by row, the first column in the highest bit of the first byte."""
        return self._table.to_bytes(TABLE_SIZE, "big")

    def packed(self) -> bytes:
        """Return it as `unpacked` takes it."""
        sums, checks, counts = self.symbols
        columns = sums.astype("<u8", copy=False), checks.astype("<u4", copy=False), counts
        return b"".join([*(column.tobytes() for column in columns), self.table])

    @classmethod
    def unpacked(cls, data: bytes) -> Sketch:
        """Return the sketch that was packed.

        Raises:
            ValueError: the data does not have `SIZE` bytes.
        """
        if len(data) != cls.SIZE:
            raise ValueError(f"a packed sketch has {cls.SIZE} bytes, not {len(data)}")
        made, at = cls(), 0
        for column in made.symbols:
            column += np.frombuffer(data, column.dtype.newbyteorder("<"), MAX_SYMBOLS, at)
            at += column.nbytes
        made._table = int.from_bytes(data[at:], "big")
        return made


def estimate_differences(ours: bytes, theirs: bytes) -> int:
    """Return about how many keys differ between two sets, given their tables.

    The true number is within a sixth of it for two of three sets. It is 0 if the tables are equal.
    Beyond some 60,000 it says nothing but "many".
    """
    bits = int.from_bytes(ours, "big") ^ int.from_bytes(theirs, "big")
    if not bits:
        return 0
    ones = [(bits >> shift & _ROW_MASK).bit_count() for shift in _ROW_SHIFTS]
    chances = np.array(ones, np.float64) @ _LOG_ODDS + _LOG_NONE
    return max(1, round(float(_CANDIDATES[chances.argmax()])))


def least_differences(ours: bytes, theirs: bytes) -> int:
    """Return a number of keys that must differ between two sets, given their tables.

    Each of them flips one bit.
    """
    return (int.from_bytes(ours, "big") ^ int.from_bytes(theirs, "big")).bit_count()


_CANDIDATES: Final = np.exp(np.arange(0.0, log(2.0**18), 0.02))
"""Numbers of differences from which the most likely one is chosen."""
_SHARES: Final = np.array([2.0 ** -min(row + 1, ROWS - 1) for row in range(ROWS)])
"""The share of all keys in each row."""
# A bit that n keys flip with probability p each is set with probability (1 - (1 - 2p)^n) / 2.
_P_ONE: Final = np.clip(
    (1 - np.exp(np.outer(np.log1p(-2 * _SHARES / COLUMNS), _CANDIDATES))) / 2, 1e-12, 1 - 1e-12
)
_LOG_ODDS: Final = np.log(_P_ONE) - np.log1p(-_P_ONE)
_LOG_NONE: Final = COLUMNS * np.log1p(-_P_ONE).sum(axis=0)
"""The logarithm of the chance that no bit is set."""
_ROW_MASK: Final = (1 << COLUMNS) - 1
_ROW_SHIFTS: Final = range(COLUMNS * (ROWS - 1), -1, -COLUMNS)

_SYMBOLS_EACH: Final = 1.37
_SPREAD: Final = 6.0
_ERROR: Final = 0.33
"""Twice the standard error of an estimate of more than a few keys."""
_FEWEST: Final = 4
"""The estimate may miss one or two keys altogether: if they flip the same bit."""


def symbols_for(differences: int) -> int:
    """Return how many symbols decode almost surely for an estimate of differences."""
    most = differences * (1 + _ERROR)
    return _FEWEST + round(_SYMBOLS_EACH * most + _SPREAD * sqrt(most))


_FEW_SYMBOLS: Final = 16
"""Symbols up to which they are decoded without numpy."""
_32_BITS: Final = (1 << 32) - 1
_MAX_STEPS: Final = 256


class Difference(NamedTuple):
    """The ids that only one of two sets has."""

    ours: Ids
    theirs: Ids


def decode(symbols: Symbols) -> Iterator[Difference | None]:
    """Find the difference of two sets, given our symbols minus theirs, in steps.

    Yields None between steps of a few milliseconds, and the difference at the end; nothing at the
    end if the symbols do not decode. However many keys differ, a dozen steps are usual; symbols
    that somebody made up to be decoded one by one are given up after `_MAX_STEPS`.
    """
    if len(symbols) <= _FEW_SYMBOLS:
        yield from _decode_few(symbols)
        return
    rest = symbols.copy()
    batches: list[Ids] = []
    signs: list[Signs] = []
    seen: set[int] = set()
    while True:
        ids, counts = _pure(rest)
        new = [index for index, id_ in enumerate(ids.tolist()) if id_ not in seen]
        if len(new) < len(ids) or len(batches) > _MAX_STEPS:
            return  # taken out before: these are not the symbols of a set
        if not len(ids):
            break
        seen.update(ids.tolist())
        rest.add(ids, -counts)
        batches.append(ids)
        signs.append(counts)
        yield None
    if len(rest) and rest.are_empty:
        every, sign = np.concatenate([np.zeros(0, _U), *batches]), np.concatenate([[0][:0], *signs])
        yield Difference(every[sign > 0], every[sign < 0])


def _pure(symbols: Symbols) -> tuple[Ids, Signs]:
    """Return the ids of the pure symbols, each once, and their counts."""
    sums, checks, counts = symbols
    single = np.flatnonzero((counts == 1) | (counts == COUNTS - 1))
    signs = np.where(counts[single] == 1, 1, -1).astype(np.int64)
    ids = sums[single] * signs.astype(_U)
    fit = mix(ids).astype(np.uint32) == checks[single] * signs.astype(np.uint32)
    ids, first = np.unique(ids[fit], return_index=True)
    return ids, signs[fit][first]


def _decode_few(symbols: Symbols) -> Iterator[Difference]:
    """Do as `decode`, with Python's integers, for a few symbols, and at once."""
    sums, checks, counts = (column.tolist() for column in symbols)
    size = len(sums)
    signs_of: dict[int, int] = {}
    while True:
        pure = _pure_of_few(sums, checks, counts)
        if not pure:
            break
        if len(signs_of) > size or not signs_of.keys().isdisjoint(pure):
            return  # these are not the symbols of a set
        for id_, sign in sorted(pure.items()):
            signs_of[id_] = sign
            check = mix_one(id_) & _32_BITS
            for index in indices_of(id_, size):
                sums[index] = sums[index] - sign * id_ & _64_BITS
                checks[index] = checks[index] - sign * check & _32_BITS
                counts[index] = (counts[index] - sign) % COUNTS
    if size and not (any(sums) or any(checks) or any(counts)):
        yield Difference(
            np.array([id_ for id_, sign in signs_of.items() if sign > 0], _U),
            np.array([id_ for id_, sign in signs_of.items() if sign < 0], _U),
        )


def _pure_of_few(sums: list[int], checks: list[int], counts: list[int]) -> dict[int, int]:
    """Do as `_pure`; return the sign of each id."""
    signs_of: dict[int, int] = {}
    for total, check, count in zip(sums, checks, counts, strict=True):
        if count == 1 or count == COUNTS - 1:
            sign = 1 if count == 1 else -1
            id_ = sign * total & _64_BITS
            is_known = id_ in signs_of  # most are in several symbols
            if not is_known and mix_one(id_) & _32_BITS == sign * check & _32_BITS:
                signs_of[id_] = sign
    return signs_of
