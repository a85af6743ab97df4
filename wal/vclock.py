"""The vector clock: which changes of which replica a log holds.

A vclock maps a replica id (0 … 31) to the lsn of the last change of that replica. Id 0 counts
replica-local changes. It is *the* position in a log; its sum, the *signature*, names files and
rises with every row.

Text form, as in file headers: ``{`` + components in ascending id, ``id: lsn``, joined by ``, `` +
``}``; empty is ``{}``. A component that was never set is not printed. Reading allows blanks around
every token and a comma after the last component; it refuses ids over 31, negative numbers and an id
given twice.
Source: the header of every file of Tarantool 2.6.0; `vclock_from_string` of the same version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Literal

from logweir.errors import DecodeError
from logweir.limits import VCLOCK_COMPONENTS

_TOKEN = re.compile(r"[ \t]*([{}:,]|[0-9]+)[ \t]*")
_ONE = re.compile(r"\{([1-9]: [1-9][0-9]{0,17})?\}")
_LSN_END = 2**63
_IDS = range(VCLOCK_COMPONENTS)


class VClock(Mapping[int, int]):
    """An immutable vclock. Components that are zero are left out, so equal clocks are equal maps.

    `components`: replica id (0 … 31) to lsn (0 … 2^63-1). Raises `ValueError` outside of that.
    """

    __slots__ = ("_lsns",)

    def __init__(self, components: Mapping[int, int] | None = None) -> None:
        lsns = {}
        for replica_id, lsn in sorted((components or {}).items()):
            if not 0 <= replica_id < VCLOCK_COMPONENTS:
                raise ValueError(f"replica id {replica_id} is not in 0 … {VCLOCK_COMPONENTS - 1}")
            if not 0 <= lsn < _LSN_END:
                raise ValueError(f"lsn {lsn} of replica {replica_id} is not in 0 … 2^63-1")
            if lsn:
                lsns[replica_id] = lsn
        self._lsns = lsns

    @classmethod
    def of_lsns(cls, lsns: Sequence[int]) -> VClock:
        """Of all components, by replica id, as `lsns` gives them."""
        made = cls.__new__(cls)  # each group makes one: nothing needs to be checked
        made._lsns = dict(zip(compress(_IDS, lsns), filter(None, lsns), strict=False))
        return made

    @classmethod
    def parse(cls, text: str) -> VClock:
        """Read the text form. Raises `DecodeError` that says what is wrong and at which letter."""
        if _ONE.fullmatch(text):  # as it is written, of one replica or none: not much to look at
            made = cls.__new__(cls)
            made._lsns = {int(text[1]): int(text[4:-1])} if len(text) > 2 else {}
            return made
        tokens: list[tuple[str, int]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise DecodeError(f"vclock has an unexpected {text[at]!r}", offset=at)
            tokens.append((match[1], match.start(1)))
            at = match.end()
        kinds = ["n" if token.isdigit() else token for token, _ in tokens]
        if re.fullmatch(r"\{(n:n(,n:n)*,?)?\}", "".join(kinds)) is None:
            raise DecodeError(f"vclock {text[:80]!r} is not of the form {{id: lsn, …}}", offset=0)
        # No number of more than 20 digits is in range, and Python reads none of thousands.
        numbers = [
            (int(token) if len(token.lstrip("0")) <= 20 else _LSN_END, at)
            for token, at in tokens
            if token.isdigit()
        ]
        lsns: dict[int, int] = {}
        for (replica_id, at), (lsn, lsn_at) in zip(numbers[::2], numbers[1::2], strict=True):
            if replica_id >= VCLOCK_COMPONENTS:
                raise DecodeError("vclock names a replica over 31", offset=at)
            if replica_id in lsns:
                raise DecodeError(f"vclock names replica {replica_id} twice", offset=at)
            if lsn >= _LSN_END:
                raise DecodeError("vclock has an lsn over 2^63-1", offset=lsn_at)
            lsns[replica_id] = lsn
        return cls(lsns)

    def __getitem__(self, replica_id: int) -> int:
        return self._lsns[replica_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._lsns)

    def __len__(self) -> int:
        return len(self._lsns)

    def __hash__(self) -> int:
        return hash(tuple(self._lsns.items()))

    def __eq__(self, other: object) -> bool:
        if type(other) is VClock:
            return other is self or self._lsns == other._lsns
        if isinstance(other, Mapping):
            return self._lsns == {k: v for k, v in other.items() if v}
        return NotImplemented

    def __str__(self) -> str:
        return "{" + ", ".join(f"{k}: {v}" for k, v in self._lsns.items()) + "}"

    def __repr__(self) -> str:
        return f"VClock({self._lsns})"

    def lsn(self, replica_id: int) -> int:
        """The lsn of one replica; 0 if it is not set."""
        return self._lsns.get(replica_id, 0)

    def lsns(self) -> list[int]:
        """All components, by replica id: as many as a vclock can have."""
        found = [0] * VCLOCK_COMPONENTS
        for replica_id, lsn in self._lsns.items():
            found[replica_id] = lsn
        return found

    @property
    def signature(self) -> int:
        """The sum of all components, id 0 included."""
        return sum(self._lsns.values())

    def compare(self, other: Mapping[int, int]) -> Literal["=", "<", ">", "!"]:
        """How this stands to `other`: equal, before, after; "!": neither holds the other."""
        mine = self._lsns
        its = other._lsns if type(other) is VClock else other
        less = more = False
        for i, lsn in mine.items():
            less |= lsn < (there := its.get(i, 0))
            more |= lsn > there
        less = less or any(lsn and i not in mine for i, lsn in its.items())
        if less and more:
            return "!"
        return "<" if less else ">" if more else "="

    def covers(self, other: Mapping[int, int]) -> bool:
        """Whether everything in `other` is in this."""
        return self.compare(other) in "=>"

    def merge(self, other: Mapping[int, int]) -> VClock:
        """Component-wise maximum."""
        ids = set(self._lsns) | set(other)
        return VClock({i: max(self.lsn(i), other.get(i, 0)) for i in ids})

    def minimum(self, other: Mapping[int, int]) -> VClock:
        """Component-wise minimum."""
        return VClock({i: min(lsn, other.get(i, 0)) for i, lsn in self._lsns.items()})

    def with_lsn(self, replica_id: int, lsn: int) -> VClock:
        """The same with one component set."""
        if replica_id not in self._lsns or not 0 < lsn < _LSN_END:
            return VClock({**self._lsns, replica_id: lsn})
        made = VClock.__new__(VClock)  # each group makes one: nothing else needs to be checked
        made._lsns = {**self._lsns, replica_id: lsn}
        return made

    def next(self, replica_id: int) -> tuple[int, VClock]:
        """The lsn of the next change of one replica, and the vclock with it."""
        lsn = self._lsns.get(replica_id, 0) + 1
        if lsn == 1 or lsn == _LSN_END:
            return lsn, self.with_lsn(replica_id, lsn)
        made = VClock.__new__(VClock)
        made._lsns = {**self._lsns, replica_id: lsn}
        return lsn, made

    def without_local(self) -> VClock:
        """The same without component 0, as it goes over the wire."""
        return VClock({i: lsn for i, lsn in self._lsns.items() if i})


def vclock_json(vclock: VClock) -> dict[str, int]:
    """A vclock as a JSON object."""
    return {str(replica_id): lsn for replica_id, lsn in vclock.items()}


def vclock_of(told: Mapping[str, int]) -> VClock:
    """The vclock that `vclock_json` made this of."""
    return VClock({int(replica_id): lsn for replica_id, lsn in told.items()})


def vclock_of_set(lsns: dict[int, int]) -> VClock:
    """Of the components that are set, by ascending replica id; nobody changes the map then."""
    made = VClock.__new__(VClock)
    made._lsns = lsns
    return made


def set_of_vclock(vclock: VClock) -> dict[int, int]:
    """The components that are set, by ascending replica id, in a map of the caller's own."""
    return vclock._lsns.copy()
