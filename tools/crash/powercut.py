"""Power cuts: one recorded run, and the disks that a cut at its places may leave.

`record` runs the program, `cut` tries: at places of the run, the interesting ones first
(behind acknowledgements and changes of names, before syncs), it makes legal disks, lays each out in
a folder and gives it to the check with exactly the lines that were acknowledged before. Each place
has its disks in this order: everything lost that can be; each operation in turn left as zeros,
lost, and torn; everything lost but one operation; then random ones. A failure is made smaller until
every operation that is still lost is needed for it.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from logweir.errors import ConfigError
from logweir.recovery.faults.surviving import (
    GRAINS,
    Dice,
    Disk,
    Doubt,
    Folder,
    Key,
    Model,
    answered,
    settled,
)
from logweir.tools.crash.keeping import Again, CrashTest, Tally
from logweir.tools.crash.programs import Checked, live
from logweir.tools.crash.recording import Operation, Recording
from logweir.tools.crash.replay import Replay, put

_PLACES_MIN: Final = 8
_STATES_A_PLACE: Final = 4
"""Places are chosen so that each gets so many of the states, if there are enough of them."""
_IDLE_LEVELS: Final = 4
"""So many random disks at each place that all were tried before: it is enough."""
_SMALLER_CHECKS: Final = 120

Answers = dict[Key, int]


class Losses(NamedTuple):
    """One legal disk at a place: `answers` to its doubts, with sectors of `grain` bytes."""

    answers: Answers
    grain: int = GRAINS[0]


class Life(NamedTuple):
    """Where a life of the program begins: its `number`, from 1; what is in its folder; what was
    acknowledged before."""

    number: int = 1
    start: Mapping[str, bytes | None] = MappingProxyType({})
    acked: bytes = b""


def record(test: CrashTest, tally: Tally, life: Life = Life()) -> list[Operation]:  # noqa: B008
    """Run the program once and return what it did; nothing if it failed to start on what a power
    cut left, which is kept. Raises `ConfigError` if it cannot be recorded, fails in its first
    life, or acknowledges nothing then."""
    directory = test.fresh("dir")
    put(life.start.items(), directory)
    commands = test.commands
    acks = commands.acks_file(directory)
    recording = Recording(test.fresh("trace"), directory, acks=acks)
    seed = test.seed + life.number - 1
    try:
        ended = live(
            commands.run_words(directory, seed),
            moment=None,
            acks=acks,
            recording=recording,
            timeout_seconds=commands.timeout_seconds,
        )
        recording.must_be_loaded(commands.run)
        operations = list(recording.operations())
    finally:
        recording.close()
    if life.number == 1:
        ended.must_be_well(commands)
    elif (found := ended.failure()).wrong:
        before = test.fresh("before")
        put(life.start.items(), before)
        what = f"the program was started on what a power cut in life {life.number - 1} left"
        test.kept(tally, before, life.acked, what, found, again=Again("start", start_seed=seed))
        return []
    replay = Replay(operations, life.start)
    replay.go(len(operations))
    replay.compare(directory, without=acks)
    if not replay.acked.startswith(ended.acked):
        raise ConfigError(
            "recorder",
            "the program's acknowledgements came past the recorder",
            hint="it sees calls of the C library; try --acks FILE",
        )
    if replay.mapped and life.number == 1:
        names = ", ".join(sorted(replay.mapped))
        tally.notes.append(f"{names}: written through memory maps, which is not recorded")
    return operations


def cut(test: CrashTest, *, states: int, lives: int, model: Model) -> Tally:
    """Record runs and try so many disks in all; every life but the first begins on one of the disks
    that the life before it left. Stops at the first failure, which is kept. Raises as `record`."""
    tally = Tally("power cut")
    life = Life()
    for number in range(1, lives + 1):
        until = states * number // lives
        next_life = _cut_life(test, tally, life._replace(number=number), until, model)
        if next_life is None or test.is_over:
            break
        life = next_life
    return tally


def _cut_life(test: CrashTest, tally: Tally, life: Life, until: int, model: Model) -> Life | None:
    """Try disks of one life, up to so many in all. Returns where the next one begins, None behind
    a failure."""
    operations = record(test, tally, life)
    tried: dict[bytes, int] = {}
    count = max(_PLACES_MIN, (until - tally.tried) // _STATES_A_PLACE)
    done: set[int] = set()
    dice = random.Random(test.seed + life.number)  # noqa: S311 - repeatable, nothing secret
    left_over = life
    while operations:
        places = [one for one in _places(operations, count) if one not in done]
        for replay, losses in _disks(operations, life, places, tried, model, test.seed):
            left = replay.disk.crash(answered(losses.answers), grain=losses.grain, model=model)
            acked = life.acked + replay.acked
            digest = _digest(left)
            if tried.get(digest, -1) >= len(acked):
                continue
            if tally.tried == until or test.is_over:
                return left_over
            tried[digest] = len(acked)
            tally.tried += 1
            tally.acknowledged += acked.count(b"\n")
            test.progress(tally.tried)
            if _try(test, left, acked).wrong:
                _keep_smallest(test, tally, _Smaller(test, replay, life, losses, model))
                return None
            if dice.random() < 1 / len(tried):
                left_over = Life(start=dict(settled(left)), acked=acked)
        done |= set(places)
        if count > len(operations):
            return left_over
        count *= 2
    return None


def _disks(
    operations: Sequence[Operation],
    life: Life,
    places: Sequence[int],
    tried: Sized,
    model: Model,
    seed: int,
) -> Iterator[tuple[Replay, Losses]]:
    """Disks at each of the places in turn, until no new ones come (`tried` does not grow)."""
    idle = 0
    for level in itertools.count():
        before = len(tried)
        is_random = True
        replay = Replay(operations, life.start)
        for place in places:
            replay.go(place)
            losses = next(itertools.islice(doubtful_disks(replay.disk, model), level, None), None)
            is_random &= losses is None
            yield replay, losses or _random(replay.disk, model, hash((seed, place, level)))
        idle = idle + 1 if is_random and len(tried) == before else 0
        if idle == _IDLE_LEVELS or not places:
            return


def _places(operations: Sequence[Operation], count: int) -> list[int]:
    """Where the power is cut: numbers of operations that are done by then, rising."""
    ranks: list[list[int]] = [[], [], []]
    for place, one in enumerate(operations, 1):
        after = operations[place].kind if place < len(operations) else ""
        if one.kind == "a":
            if after != "a":
                ranks[0].append(place)
        elif one.kind in "rxludmo" or (after in ("s", "S") and one.kind in "wt"):
            ranks[1].append(place)
        elif one.kind in "wt":
            ranks[2].append(place)
    chosen: list[int] = []
    for rank, places in enumerate(ranks):
        room = (count - len(chosen)) // (2 if rank == 0 and ranks[1] else 1)
        step = max(len(places) / room, 1.0) if room > 0 else len(places) + 1.0
        chosen += [places[int(one * step)] for one in range(int(len(places) / step))]
    return sorted(chosen)


def doubtful_disks(disk: Disk, model: Model) -> Iterator[Losses]:
    """Legal disks after a power cut now, the telling ones first; random ones are not among them."""
    doubts = disk.doubts(model=model)
    if not doubts:
        yield Losses({})
        return
    everything = _everything(doubts)
    yield Losses(everything)
    changes = sorted({number for doubt in doubts for number in doubt.lost}, reverse=True)
    is_name = {n for doubt in doubts if doubt.key[0] not in ("sector", "size") for n in doubt.lost}
    changes.sort(key=lambda number: number not in is_name)
    for number in changes:
        lost = _without(doubts, number)
        data = {key: count for key, count in lost.items() if key[0] == "sector"}
        if data:
            yield Losses(data)
        yield Losses(lost)
        if len(data) > 1:
            half = len(data) // 2
            yield Losses(dict(sorted(data.items())[half:]))
            yield Losses(dict(sorted(data.items())[:half]))
    for number in changes:
        yield Losses(everything | _only(doubts, number))
    for doubt in doubts:
        if doubt.key[0] == "size":
            yield from (Losses({doubt.key: lost}) for lost in range(1, len(doubt.lost) + 1))
    yield Losses({})


def everything_lost(disk: Disk) -> Folder:
    """What is left where all is lost that no sync has saved."""
    return disk.crash(answered(_everything(disk.doubts())))


def _everything(doubts: Iterable[Doubt]) -> Answers:
    return {doubt.key: len(doubt.lost) for doubt in doubts}


def _without(doubts: Iterable[Doubt], number: int) -> Answers:
    """Lose one change, and with it what came later in the same places."""
    return {one.key: one.lost.index(number) + 1 for one in doubts if number in one.lost}


def _only(doubts: Iterable[Doubt], number: int) -> Answers:
    """Where a change is, lose what came later only."""
    return {one.key: one.lost.index(number) for one in doubts if number in one.lost}


def _random(disk: Disk, model: Model, seed: int) -> Losses:
    dice = Dice(seed)
    doubts = disk.doubts(grain=dice.grain, model=model)
    return Losses({doubt.key: dice(doubt) for doubt in doubts}, dice.grain)


def _digest(root: Folder) -> bytes:
    found = hashlib.sha256()
    for path, data in settled(root):
        found.update(repr((path, len(data) if data is not None else None)).encode())
        found.update(data or b"")
    return found.digest()


def _try(test: CrashTest, root: Folder, acked: bytes) -> Checked:
    put(settled(root), test.fresh("before"))
    return test.checked(test.work / "before", acked)


@dataclass
class _Smaller:
    """A failure that gets smaller: less is lost, and the check still fails."""

    test: CrashTest
    replay: Replay
    life: Life
    losses: Losses
    model: Model
    left: int = field(default=_SMALLER_CHECKS)

    def doubts(self) -> list[Doubt]:
        return self.replay.disk.doubts(grain=self.losses.grain, model=self.model)

    def lay(self, answers: Answers) -> Checked:
        root = self.replay.disk.crash(answered(answers), grain=self.losses.grain, model=self.model)
        return _try(self.test, root, self.life.acked + self.replay.acked)

    def take(self, answers: Answers) -> None:
        """Lose only that, if the check fails then, too."""
        answers = {key: lost for key, lost in answers.items() if lost}
        if answers == self.losses.answers or not self.left or self.test.is_over:
            return
        self.left -= 1
        if self.lay(answers).wrong:
            self.losses = Losses(answers, self.losses.grain)

    def shrink(self) -> None:
        """First whole operations, then single places."""
        self.take({})
        doubts = {doubt.key: doubt for doubt in self.doubts()}
        self.losses = Losses(
            {key: lost for key, lost in self.losses.answers.items() if lost and key in doubts},
            self.losses.grain,
        )
        half = len(self.losses.answers) // 2
        for part in (slice(half, None), slice(half)):
            keys = set(sorted(self.losses.answers, key=str)[part])
            self.take({k: lost for k, lost in self.losses.answers.items() if k not in keys})
        oldest = {key: doubts[key].lost[lost - 1] for key, lost in self.losses.answers.items()}
        for number in sorted(set(oldest.values()), reverse=True):
            kept = {k: lost for k, lost in self.losses.answers.items() if oldest[k] != number}
            self.take(kept)
        for key in sorted(self.losses.answers, key=str):
            for fewer in range(self.losses.answers[key]):
                if self.losses.answers[key] > fewer:
                    self.take(self.losses.answers | {key: fewer})
                if key not in self.losses.answers:
                    break


def _keep_smallest(test: CrashTest, tally: Tally, smaller: _Smaller) -> None:
    smaller.shrink()
    found = smaller.lay(smaller.losses.answers)
    doubts = {doubt.key: doubt for doubt in smaller.doubts()}
    acked = smaller.life.acked + smaller.replay.acked
    lines = acked.count(b"\n")
    what = told_losses(smaller.replay, doubts, smaller.losses.answers, lines)
    if smaller.life.number > 1:
        what = f"in life {smaller.life.number}, which began on what a power cut had left, {what}"
    test.kept(tally, test.work / "before", acked, what, found)


def told_losses(replay: Replay, doubts: dict[Key, Doubt], answers: Answers, lines: int) -> str:
    """In a sentence what a power cut took. `lines`: how many were acknowledged before it."""
    lost = {number for key, count in answers.items() for number in doubts[key].lost[:count]}
    if not lost:
        return f"the power was cut behind {lines} acknowledged lines and nothing else was lost"
    told = []
    for number in sorted(lost):
        keys = [key for key, count in answers.items() if number in doubts[key].lost[:count]]
        what = replay.told[number]
        if all(key[0] == "size" for key in keys):
            what = f"the size that came of {what}"
        elif all(key[0] == "sector" for key in keys):
            everywhere = [k for k, one in doubts.items() if k[0] == "sector" and number in one.lost]
            what = f"{'a part' if len(keys) < len(everywhere) else 'the data'} of {what}"
        told.append((what, replay.acked_behind(number)))
    names = any(doubts[key].key[0] in ("name", "names", "moved") for key in answers)
    by = "its folder was synced" if names else "the file was synced"
    shown = "; ".join(what for what, _ in told[:3]) + (" …" if len(told) > 3 else "")
    if any(is_acked for _, is_acked in told):
        return f"lost: {shown}. It was acknowledged (line {lines} and before) before {by}"
    return f"lost: {shown}. Nothing was acknowledged behind it, but what is left is not accepted"
