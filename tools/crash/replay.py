"""A recorded program's operations, done once more on a disk that can lose power.

`Replay` goes through them one by one; at any place its disk says what a power cut there may leave,
`acked` what had been acknowledged, and `told` what a change was, for people.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from logweir.errors import ConfigError
from logweir.recovery.faults.surviving import Disk, Folder, Inode, Node, settled
from logweir.tools.crash.recording import Operation

_SHOWN: int = 3
"""How many of the files that differ are named."""


class Replay:
    """`operations`, to be done on a disk that holds `start`: path to contents, None: a folder."""

    def __init__(
        self, operations: Sequence[Operation], start: Mapping[str, bytes | None] | None = None
    ) -> None:
        self.disk = Disk()
        self.acked = bytearray()
        self.place = 0
        """How many operations are done."""
        self.mapped: set[str] = set()
        """Files that were mapped for writing."""
        self.told: dict[int, str] = {}
        """Number of a change to what it was."""
        self.where: dict[int, int] = {}
        """Number of a change to the place of its operation."""
        self._operations = operations
        self._open: dict[int, Node] = {}
        self._syncs: dict[int, int] = {}
        self._paths: dict[int, str] = {}
        self._begun: list[tuple[Node, int]] = []
        for path, data in sorted((start or {}).items()):
            parent, name = self._parent(path)
            assert parent is not None
            node = self.disk.folder() if data is None else self.disk.file(data)
            parent.seen[name] = parent.stable[name] = node
            self._paths[node.number] = path

    def step(self) -> None:
        """Do the next operation."""
        operation = self._operations[self.place]
        before = self.disk.number
        what = self._do(operation)
        self.place += 1
        if self.disk.number > before:
            self.told[self.disk.number] = what
            self.where[self.disk.number] = self.place

    def acked_behind(self, number: int) -> bool:
        """Whether anything was acknowledged since that change."""
        return any(one.kind == "a" for one in self._operations[self.where[number] : self.place])

    def writes(self) -> list[tuple[str, int]]:
        """Path and offset of each write that is in a file which still has a name, in order."""
        found = [(self._paths.get(node.number, ""), node, at) for node, at in self._begun]
        return [(path, at) for path, node, at in found if path and self._node(path) is node]

    def go(self, place: int) -> None:
        """Do operations until so many are done."""
        while self.place < place:
            self.step()

    def _do(self, one: Operation) -> str:
        match one.kind:
            case "a":
                self.acked += one.data
            case "o":
                return self._opened(one)
            case "w" | "t" | "p":
                node = self._open.get(one.file)
                if isinstance(node, Inode):
                    return self._changed(one, node)
            case "s":
                self._syncs[one.at] = self.disk.number
            case "S":
                self._syncs[one.at] = self.disk.number
            case "f":
                node = self._open.get(one.file)
                if isinstance(node, Inode):
                    node.fail_sync()
            case "e":
                node = self._open.get(one.file)
                if node is not None:
                    self.disk.sync(node, self._syncs.pop(one.at))
            case "E":
                before = self._syncs.pop(one.at)
                for node in _nodes(self.disk.root):
                    self.disk.sync(node, before)
            case "r" | "x" | "l":
                return self._moved(one)
            case "u" | "d" | "m":
                return self._named(one)
        return ""

    def _opened(self, one: Operation) -> str:
        if one.path.endswith(" (deleted)"):
            self._open[one.file] = self.disk.file()
            return ""
        node = self._node(one.path)
        self._open[one.file] = node or self.disk.file()
        if node is None:
            parent, name = self._parent(one.path)
            if parent is not None:
                self.disk.name((parent, name, self._open[one.file]))
                self._paths[self._open[one.file].number] = one.path
            return f"the new file {one.path}"
        if one.at and isinstance(node, Inode) and node.seen:
            self.disk.resize(node, 0)
            return f"the cut of {one.path} to 0 bytes"
        return ""

    def _changed(self, one: Operation, node: Inode) -> str:
        path = self._paths.get(node.number, "a file without a name")
        if one.kind == "p":
            self.mapped.add(path)
            return ""
        if one.kind == "w":
            self._begun.append((node, one.at))
            self.disk.write(node, one.at, one.data)
            return f"the write of {len(one.data)} bytes at {one.at} of {path}"
        self.disk.resize(node, one.at)
        return f"the new size {one.at} of {path}"

    def _moved(self, one: Operation) -> str:
        target = one._replace(data=one.target).path
        node, there = self._node(one.path), self._node(target)
        (source, old), (parent, new) = self._parent(one.path), self._parent(target)
        if node is None or source is None or parent is None:
            return ""
        if one.kind == "l":
            self.disk.name((parent, new, node))
            return f"the link {one.path} → {target}"
        if there is node:
            return ""
        self._paths[node.number] = target
        if one.kind == "x" and there is not None:
            self._paths[there.number] = one.path
            self.disk.name((source, old, there), (parent, new, node))
            return f"the exchange of {one.path} and {target}"
        flushed = node if isinstance(node, Inode) and there is not None else None
        self.disk.name((source, old, None), (parent, new, node), flushed=flushed)
        return f"the rename {one.path} → {target}"

    def _named(self, one: Operation) -> str:
        parent, name = self._parent(one.path)
        if parent is None or not name:
            return ""
        if one.kind == "m":
            node = self.disk.folder()
            self._paths[node.number] = one.path
            self.disk.name((parent, name, node))
            return f"the new folder {one.path}"
        if name in parent.seen:
            self.disk.name((parent, name, None))
        return f"the removal of {one.path}"

    def _node(self, path: str) -> Node | None:
        node: Node = self.disk.root
        for name in path.split("/") if path else ():
            found = node.seen.get(name) if isinstance(node, Folder) else None
            if found is None:
                return None
            node = found
        return node

    def _parent(self, path: str) -> tuple[Folder | None, str]:
        above, _, name = path.rpartition("/")
        node = self._node(above)
        return (node if isinstance(node, Folder) else None), name

    def compare(self, folder: Path, *, without: Path | None) -> None:
        """Look whether the operations lead to what is in the folder. `without`: a file of it that
        does not count. Raises `ConfigError` where it was changed past the recorder."""
        mine = dict(settled(self.disk.root))
        there = contents(folder)
        left_out = set(self.mapped)
        if without is not None and without.is_relative_to(folder):
            left_out.add(str(without.relative_to(folder)))
        wrong = sorted(
            path
            for path in mine.keys() | there.keys()
            if path not in left_out and mine.get(path, 0) != there.get(path, 0)
        )
        if wrong:
            named = ", ".join(wrong[:_SHOWN]) + (" …" if len(wrong) > _SHOWN else "")
            raise ConfigError(
                "recorder",
                f"the program changed {named} in a way that the recorder does not see",
                hint="it sees calls of the C library; not a program that is linked statically or "
                "calls the system by itself, memory maps, io_uring, symbolic links",
            )


def _nodes(folder: Folder) -> list[Node]:
    found: list[Node] = [folder]
    for node in folder.seen.values():
        found += _nodes(node) if isinstance(node, Folder) else [node]
    return found


def contents(folder: Path) -> dict[str, bytes | None]:
    """Path to contents of what is in a folder, None for a folder; sockets and the like are left
    out."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            found[str(path.relative_to(folder))] = None
        elif stat.S_ISREG(mode):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def put(files: Iterable[tuple[str, bytes | None]], folder: Path) -> None:
    """Make a folder with these files: path and contents, None for a folder; folders first."""
    folder.mkdir()
    for path, data in files:
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)
