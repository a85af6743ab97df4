"""What a power cut may leave of a disk: the one model of it, below `sim` and `tools.crash`.

A `Disk` keeps two states of everything: what programs see, and what is on stable storage; and the
changes between the two, with their numbers. When the power goes, each of those changes is a `Doubt`
or a part of one: it may have arrived or not. An *answer* to a doubt says how many of its changes
are lost, from the newest on; 0: none. Answers to all doubts are one legal disk.

``posix``: what the standard leaves open.

* Each sector of a file, of 512 or of 4096 bytes, holds what it held at the last sync or behind any
  later change of the file, whatever other sectors hold: the system writes sectors back whenever it
  likes, in any order, a whole one at a time.
* The size is one that the file had at the last sync or since, or one in between at a border of 4096
  bytes. What was never written is zero.
* Every name that was changed since the last sync of its folder is the old or the new one.

``ext4``: what its ordered mode promises besides.

* Names, and sizes that were set, change in one order for the whole disk: of those changes since the
  last sync of anything, some of the newest are lost, all others are there. A sync of any file saves
  all names before it. Where a new size is lost, so is what was written to the file since.
* A size is never ahead of the data in blocks of 4096 bytes that are new to the file.
* A file that takes the name of another one has its data when it has the name (`auto_da_alloc`).

After a sync that failed (`Inode.fail_sync`) what was to be synced is doubtful: programs go on
seeing it, but no later sync makes it stable, unless the same sectors were written once more before
that. That is what Linux does (pages are marked clean).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

GRAINS: Final = (512, 4096)
"""How much is written to a disk at once, in bytes: the one or the other."""
BLOCK_BYTES: Final = 4096

Model: TypeAlias = Literal["posix", "ext4"]
Key: TypeAlias = tuple[str, int, str | int]


class Doubt(NamedTuple):
    """What a power cut decides. `key`: of what: ("sector", file, offset), ("size", file, 0),
    ("name", folder, name), ("moved", folder, 0), ("names", 0, 0); `lost`: numbers of the changes
    that may be lost, newest first."""

    key: Key
    lost: tuple[int, ...]


Answer: TypeAlias = Callable[[Doubt], int]


def answered(answers: Mapping[Key, int]) -> Answer:
    """Answers by a table; what is not in it loses nothing."""
    return lambda doubt: min(answers.get(doubt.key, 0), len(doubt.lost))


class Dice:
    """Random answers. `grain`: the size of a sector that was drawn with them."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
        self.grain = self._rng.choice((*GRAINS, GRAINS[0]))
        self._latest: dict[int, float] = {}  # file: how often a sector has its last change
        self._given: dict[Key, int] = {}

    def __call__(self, doubt: Doubt) -> int:
        """The answer to a doubt, the same whenever it is asked."""
        if doubt.key not in self._given:
            self._given[doubt.key] = self._draw(doubt)
        return self._given[doubt.key]

    def _draw(self, doubt: Doubt) -> int:
        kind, node, _ = doubt.key
        latest = 0.5
        if kind == "sector":
            if node not in self._latest:
                self._latest[node] = self._rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
            latest = self._latest[node]
        if self._rng.random() < latest:
            return 0
        return self._rng.randint(1 if kind in ("name", "moved") else 0, len(doubt.lost))


class Change(NamedTuple):
    """One change of a file: bytes at an offset, or, where `piece` is None, a new size."""

    offset: int
    piece: bytes | None
    number: int


@dataclass(slots=True, eq=False)
class Inode:
    """One file. `seen`: what programs see; `stable`: what survives for certain; `pending`: changes
    since then in order; `doubtful`: those before them that a sync failed to save."""

    number: int = 0
    seen: bytearray = field(default_factory=bytearray)
    stable: bytes = b""
    pending: list[Change] = field(default_factory=list)
    doubtful: list[Change] = field(default_factory=list)

    def sync(self, before: int | None = None) -> None:
        """Make stable what was changed; `before`: up to that number only."""
        synced = [one for one in self.pending if before is None or one.number <= before]
        if self.doubtful:  # only sectors that were written to since then are saved again
            size = len(self.seen)
            image = bytearray(self.stable[:size].ljust(size, b"\0"))
            saved: set[int] = set()
            for change in synced:
                saved |= {*_sectors(change.offset, change.offset + len(change.piece or b""))}
            for start in saved:
                image[start : start + GRAINS[0]] = self.seen[start : start + GRAINS[0]]
            self.stable = bytes(image)
            self.doubtful = [left for one in self.doubtful for left in _unsaved(one, saved, size)]
        elif len(synced) == len(self.pending):
            self.stable = bytes(self.seen)
        else:
            image = bytearray(self.stable)
            for change in synced:
                _apply(image, change)
            self.stable = bytes(image)
        self.pending = self.pending[len(synced) :]

    def fail_sync(self) -> None:
        """What a sync that fails does: what was pending is doubtful from now on."""
        self.doubtful += self.pending
        self.pending.clear()

    def survivor(
        self, answer: Answer, grain: int, model: Model, flushed: int = 0, end: float = math.inf
    ) -> bytes:
        """What is on the disk after a power cut. `flushed`: changes up to that number are there;
        `end`: those from that number on are not."""
        changes = [one for one in (*self.doubtful, *self.pending) if one.number < end]
        if not changes:
            return self.stable
        image = bytearray(self.stable)
        for change in changes:
            if change.number <= flushed:
                _apply(image, change)
        base = bytes(image)
        new_block = -(-len(base) // BLOCK_BYTES) * BLOCK_BYTES if model == "ext4" else None
        sizes = [(len(base), 0)]
        sectors: dict[int, list[tuple[int, bytes]]] = {}  # start: (number, what it held then)
        for change in changes:
            if change.number <= flushed:
                continue
            before = len(image)
            _apply(image, change)
            borders = range((before // BLOCK_BYTES + 1) * BLOCK_BYTES, len(image), BLOCK_BYTES)
            sizes += [(size, change.number) for size in borders if change.piece is not None]
            if len(image) != before:
                sizes.append((len(image), change.number))
            end = before if change.piece is None else change.offset + len(change.piece)
            for start in _sectors(change.offset, end, grain):
                held = bytes(image[start : start + grain])
                sectors.setdefault(start, []).append((change.number, held))
        largest = max(size for size, _ in sizes)
        data = bytearray(base)
        for start, versions in sorted(sectors.items()):
            lost = 0
            if new_block is None or start < new_block:
                numbers = tuple(number for number, _ in reversed(versions))
                lost = answer(Doubt(("sector", self.number, start), numbers))
            if lost < len(versions):
                piece = versions[-1 - lost][1].ljust(min(grain, largest - start), b"\0")
                _apply(data, Change(start, piece, 0))
        lost = 0
        if len(sizes) > 1:
            numbers = tuple(number for _, number in reversed(sizes[1:]))
            lost = answer(Doubt(("size", self.number, 0), numbers))
        size = sizes[-1 - lost][0]
        return bytes(data[:size].ljust(size, b"\0"))


@dataclass(slots=True, eq=False)
class Folder:
    """One folder: the names that programs see, and those that are stable; `changed`: the number of
    the last change of a name."""

    number: int = 0
    seen: dict[str, Node] = field(default_factory=dict)
    stable: dict[str, Node] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)

    def sync(self, before: int | None = None) -> None:
        """Make the names stable; `before`: of those that were changed up to that number."""
        for name in [*self.changed]:
            if before is None or self.changed[name] <= before:
                _set(self.stable, name, self.seen.get(name))
                del self.changed[name]


Node: TypeAlias = Inode | Folder


class _Named(NamedTuple):
    """A change of names, with what was there before, or, without names, of a size; `flushed`: the
    file whose data it saves."""

    number: int
    before: tuple[tuple[Folder, str, Node | None], ...]
    flushed: Inode | None


class Disk:
    """A tree of folders and files that can lose power. `number`: of the last change."""

    def __init__(self) -> None:
        self.number = 0
        self._nodes = 0
        self.root = self.folder()
        self._named: list[_Named] = []  # since the last sync of anything

    def folder(self) -> Folder:
        """A new one that has no name yet."""
        self._nodes += 1
        return Folder(self._nodes)

    def file(self, data: bytes = b"") -> Inode:
        """A new one that has no name yet; what is in it is stable."""
        self._nodes += 1
        return Inode(self._nodes, bytearray(data), data)

    def write(self, inode: Inode, offset: int, piece: bytes) -> None:
        """Put bytes into a file."""
        self._change(inode, offset, piece)

    def resize(self, inode: Inode, size: int) -> None:
        """Cut a file, or lengthen it by zeros."""
        self._change(inode, size, None)
        self._named.append(_Named(self.number, (), inode))

    def _change(self, inode: Inode, offset: int, piece: bytes | None) -> None:
        self.number += 1
        change = Change(offset, piece, self.number)
        inode.pending.append(change)
        _apply(inode.seen, change)

    def name(self, *changes: tuple[Folder, str, Node | None], flushed: Inode | None = None) -> None:
        """Give names, or take them away (None), all at one moment. `flushed`: a file that takes the
        name of another one."""
        self.number += 1
        before = tuple((folder, name, folder.seen.get(name)) for folder, name, _ in changes)
        self._named.append(_Named(self.number, before, flushed))
        for folder, name, node in changes:
            folder.changed[name] = self.number
            _set(folder.seen, name, node)

    def sync(self, node: Node, before: int | None = None) -> None:
        """Make a file's contents or a folder's names stable; `before`: up to that number only."""
        node.sync(before)
        self._named = [one for one in self._named if before is not None and one.number > before]

    def doubts(self, *, grain: int = GRAINS[0], model: Model = "posix") -> list[Doubt]:
        """All that a power cut now would decide."""
        found: dict[Key, Doubt] = {}

        def lose(everything: bool) -> Answer:
            def answer(doubt: Doubt) -> int:
                found[doubt.key] = doubt
                return len(doubt.lost) if everything else 0

            return answer

        self.crash(lose(False), grain=grain, model=model)
        self.crash(lose(True), grain=grain, model=model)
        return list(found.values())

    def crash(self, answer: Answer, *, grain: int = GRAINS[0], model: Model = "posix") -> Folder:
        """The tree after a power cut now; this one is left as it is."""
        if model == "posix":
            return _Survivors(answer, grain, self.root).root
        lost = 0
        if self._named:
            numbers = tuple(one.number for one in reversed(self._named))
            lost = answer(Doubt(("names", 0, 0), numbers))
        kept = len(self._named) - lost
        undone: dict[tuple[int, str], Node | None] = {}
        for one in reversed(self._named[kept:]):
            undone |= {(folder.number, name): node for folder, name, node in one.before}
        flushed = {one.flushed.number: one.number for one in self._named[:kept] if one.flushed}
        ends = {
            one.flushed.number: one.number
            for one in reversed(self._named[kept:])
            if one.flushed and not one.before
        }
        return _Undone(answer, grain, undone, flushed, ends).of(self.root)


class _Undone:
    """What is left where names are lost from the newest on."""

    def __init__(
        self,
        answer: Answer,
        grain: int,
        undone: dict[tuple[int, str], Node | None],
        flushed: dict[int, int],
        ends: dict[int, int],
    ) -> None:
        self._answer, self._grain, self._undone = answer, grain, undone
        self._flushed, self._ends = flushed, ends
        self._made: dict[int, Inode] = {}

    def of(self, folder: Folder) -> Folder:
        names = dict(folder.seen)
        for (number, name), node in self._undone.items():
            if number == folder.number:
                _set(names, name, node)
        after = Folder(folder.number)
        for name, node in sorted(names.items()):
            if isinstance(node, Folder):
                after.seen[name] = self.of(node)
                continue
            if node.number not in self._made:
                flushed = self._flushed.get(node.number, 0)
                end = self._ends.get(node.number, math.inf)
                data = node.survivor(self._answer, self._grain, "ext4", flushed, end)
                self._made[node.number] = Inode(node.number, bytearray(data), data)
            after.seen[name] = self._made[node.number]
        after.stable = dict(after.seen)
        return after


class _Survivors:
    """What is left of a tree of folders where every name is decided by itself: `root`."""

    def __init__(self, answer: Answer, grain: int, root: Folder) -> None:
        self._answer, self._grain = answer, grain
        self._made: dict[int, Inode] = {}
        self._moved: dict[int, bool] = {}  # a folder that was renamed: whether that survives
        seen, stable = _places(root, is_stable=False), _places(root, is_stable=True)
        for number, (place, _) in sorted(stable.items(), key=lambda one: one[1]):
            now, change = seen.get(number, (place, 0))
            if now != place:
                self._moved[number] = not answer(Doubt(("moved", number, 0), (change,)))
        self.root = self._of(root)

    def _of(self, folder: Folder) -> Folder:
        after = Folder(folder.number)
        for name in sorted({*folder.seen, *folder.stable}):
            node = self._choice(folder, name)
            if isinstance(node, Folder):
                after.seen[name] = self._of(node)
            elif node is not None:
                if node.number not in self._made:
                    data = node.survivor(self._answer, self._grain, "posix")
                    self._made[node.number] = Inode(node.number, bytearray(data), data)
                after.seen[name] = self._made[node.number]
        after.stable = dict(after.seen)
        return after

    def _choice(self, folder: Folder, name: str) -> Node | None:
        seen, stable = folder.seen.get(name), folder.stable.get(name)
        if seen is stable:
            return seen
        left = None if stable is not None and self._moved.get(stable.number) else stable
        if seen is not None and seen.number in self._moved:
            return seen if self._moved[seen.number] else left
        if stable is not None and stable.number in self._moved and left is not None:
            return left
        lost = self._answer(Doubt(("name", folder.number, name), (folder.changed.get(name, 0),)))
        return left if lost else seen


def _places(
    folder: Folder, *, is_stable: bool, path: str = "", change: int = 0
) -> dict[int, tuple[str, int]]:
    """Where every folder below `folder` is, as programs see it or as it is stable, and the number
    of the last change of a name on the way."""
    found: dict[int, tuple[str, int]] = {}
    for name, node in (folder.stable if is_stable else folder.seen).items():
        if isinstance(node, Folder):
            last = max(change, folder.changed.get(name, 0))
            found[node.number] = f"{path}/{name}", last
            found |= _places(node, is_stable=is_stable, path=f"{path}/{name}", change=last)
    return found


def settled(folder: Folder) -> Iterator[tuple[str, bytes | None]]:
    """What programs see below a folder: path and contents, None for a folder; folders first."""
    for name, node in sorted(folder.seen.items()):
        if isinstance(node, Inode):
            yield name, bytes(node.seen)
        else:
            yield name, None
            yield from ((f"{name}/{path}", data) for path, data in settled(node))


def _set(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _apply(data: bytearray, change: Change) -> None:
    offset, piece, _ = change
    if piece is None:
        del data[offset:]
    if len(data) < offset:
        data += bytes(offset - len(data))
    if piece is not None:
        data[offset : offset + len(piece)] = piece


def _sectors(start: int, end: int, size: int = GRAINS[0]) -> range:
    """Where the sectors of `size` bytes begin that hold the bytes start … end - 1."""
    return range(start // size * size, end, size)


def _unsaved(change: Change, saved: set[int], size: int) -> Iterator[Change]:
    """What is left of a doubtful change of a file that has `size` bytes by now."""
    offset, piece, number = change
    if piece is None:
        return  # the size was saved with the rest
    end = min(offset + len(piece), size)
    for start in _sectors(offset, end):
        if start not in saved:
            first, last = max(start, offset), min(start + GRAINS[0], end)
            yield Change(first, piece[first - offset : last - offset], number)
