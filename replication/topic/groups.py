"""Groups of consumers that share the partitions of a topic, kept under names ``group:GROUP/TOPIC``.

docs/tank.md says what a group is to its members, and how they speak: a member publishes a *beat*
(`Beat`) to that name, under an id that it makes anew each time that it joins; a fetch of the name
gives one message, whose number is the group's generation and whose content says who has what.

A partition has one owner at most, and gets another one only when that one left, was declared dead
because a beat of another member came after the end of its lease, or has told that it does not hold
what it is to give up. Who gets a partition gets it with a generation, which a commit has to name.

Owners stand in the space `logweir_group`, and change in the transaction of the beat that changes
them; leases are known to the server alone. One that was started anew gives every member its lease
once more. Everything here runs in the log's thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from logweir.limits import TANK_GROUP_MEMBERS
from logweir.store.engine.engine import Engine
from logweir.wal.mp import pack, unpack

GROUP_SPACE: Final = "logweir_group"
GROUP_FIELDS: Final = (
    ("group", "string"),
    ("topic", "string"),
    ("generation", "unsigned"),
    ("members", "map"),
    ("owners", "map"),
)

_MEMBER_BYTES: Final = 64
_LEASE_MS: Final = range(1000, 3_600_001)


@dataclass(frozen=True, slots=True)
class Owned:
    """A partition's owner, and the generation with which it became that."""

    member: str
    generation: int


@dataclass(frozen=True, slots=True)
class Shares:
    """A group. `members`: lease in ms of each; `owners`: by partition."""

    generation: int = 0
    members: Mapping[str, int] = field(default_factory=dict)
    owners: Mapping[int, Owned] = field(default_factory=dict)

    def held(self, member: str) -> list[int]:
        """The partitions of a member, in order."""
        return sorted(number for number, owned in self.owners.items() if owned.member == member)

    def wanted(self, partitions: int) -> dict[str, int]:
        """How many partitions each member is to have: as many as others, or one more. Those that
        have most get the ones that are left over."""
        if not self.members:
            return {}
        each, more = divmod(partitions, len(self.members))
        order = sorted(self.members, key=lambda member: (-len(self.held(member)), member))
        return {member: each + (number < more) for number, member in enumerate(order)}

    def surplus(self, partitions: int) -> dict[str, list[int]]:
        """What each member is to give up: the last ones that it has too many."""
        wanted = self.wanted(partitions)
        return {member: self.held(member)[count:] for member, count in wanted.items()}

    def without(self, gone: Iterable[str]) -> Shares:
        """After these members have gone."""
        left = {one: lease for one, lease in self.members.items() if one not in set(gone)}
        owners = {number: owned for number, owned in self.owners.items() if owned.member in left}
        return Shares(self.generation, left, owners)

    def after(self, member: str, beat: Beat, partitions: int) -> Shares:
        """After a member's beat, but for a new generation: what it does not hold and is to give up
        is nobody's, and what is nobody's goes to who has too little."""
        shares = Shares(self.generation, {**self.members, member: beat.lease_ms}, self.owners)
        given_up = set(shares.surplus(partitions)[member]) - beat.holds
        owners = {
            number: owned
            for number, owned in shares.owners.items()
            if number not in given_up and number < partitions
        }
        shares = Shares(self.generation, shares.members, owners)
        free = [number for number in range(partitions) if number not in owners]
        for one, count in shares.wanted(partitions).items():
            for number in free[: max(count - len(shares.held(one)), 0)]:
                owners[number] = Owned(one, self.generation + 1)
                free.remove(number)
        return shares

    def row(self, group: str, topic: str) -> bytes:
        """The tuple."""
        owners = {str(number): [one.member, one.generation] for number, one in self.owners.items()}
        return pack([group, topic, self.generation, dict(self.members), owners])

    def told(self, partitions: int) -> bytes:
        """What a fetch of the group's name gives: of each member `has`, its partitions with their
        generations, and `gives_up`, those of them that it is to do without."""
        surplus = self.surplus(partitions)
        members = {
            member: {
                "has": {str(one): self.owners[one].generation for one in self.held(member)},
                "gives_up": surplus[member],
            }
            for member in self.members
        }
        return json.dumps({"generation": self.generation, "members": members}).encode()

    def fits(self, partition: int, key: bytes | None) -> bool:
        """Whether the place of a partition may be set with that key: ``GENERATION MEMBER`` of its
        owner, or none while nobody has it."""
        owned = self.owners.get(partition)
        return key == (None if owned is None else f"{owned.generation} {owned.member}".encode())


@dataclass(frozen=True, slots=True)
class Beat:
    """What a member says. `lease_ms`: 0 if it leaves."""

    lease_ms: int
    holds: frozenset[int] = frozenset()

    @classmethod
    def read(cls, content: bytes) -> Beat | None:
        """None for what is none."""
        try:
            said: Any = json.loads(content)
            if said.get("leave") is True:
                return cls(0)
            lease_ms, holds = said["lease_ms"], said["holds"]
            if type(lease_ms) is not int or lease_ms not in _LEASE_MS:
                return None
            if not isinstance(holds, list) or any(type(one) is not int for one in holds):
                return None
            return cls(lease_ms, frozenset(holds))
        except (ValueError, KeyError, AttributeError, RecursionError):
            return None


def read_shares(engine: Engine, group: str, topic: str) -> Shares | None:
    """A group as the state has it; one without members if it is not there. None if the tuple is
    none of ours: anybody with the right may have written it."""
    space = engine.schema.get(GROUP_SPACE)
    if space is None or space.primary is None:
        return Shares()
    data = engine.get(space, space.primary, pack([group, topic]))
    if data is None:
        return Shares()
    try:
        _, _, generation, members, owners = unpack(data)
        found = {int(number): Owned(str(one), int(at)) for number, (one, at) in owners.items()}
        leases = {str(member): int(lease_ms) for member, lease_ms in members.items()}
        return Shares(generation, leases, found)
    except (ValueError, TypeError, AttributeError):
        return None


class Leases:
    """Until when members count as alive. `clock`: seconds that rise."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[tuple[str, str, str], float] = {}

    def beat(
        self, group: str, topic: str, shares: Shares, key: bytes | None, content: bytes, count: int
    ) -> Shares | None:
        """The group after a beat, which is the same if nothing has changed; None if it is none.
        `count`: of the topic's partitions."""
        member = "" if key is None or len(key) > _MEMBER_BYTES else key.decode(errors="replace")
        said = Beat.read(content)
        if not member.isprintable() or not member or " " in member or said is None:
            return None
        now = self._clock()
        for one, lease_ms in shares.members.items():
            self._until.setdefault((group, topic, one), now + lease_ms / 1000)
        gone = {one for one in shares.members if self._until[group, topic, one] < now} - {member}
        if not said.lease_ms:
            gone.add(member)
        for one in gone:
            self._until.pop((group, topic, one), None)
        made = shares.without(gone)
        if said.lease_ms:
            if member not in made.members and len(made.members) >= TANK_GROUP_MEMBERS:
                return None
            self._until[group, topic, member] = now + said.lease_ms / 1000
            made = made.after(member, said, count)
        if made == shares:
            return shares
        return Shares(shares.generation + 1, made.members, made.owners)
