"""What tests of the Synapse protocol share: recordings, and an upstream's rows as plain values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from logweir.replication.synapse.client_session import ClientSession, Greeted
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.synapse.wire.codec import Dialect, decode_row_value
from logweir.replication.synapse.wire.units import Change, Cursor, Fetch, Unit, Units

DATA = Path(__file__).parent.parent / "data" / "synapse" / "captures.jsonl"

Rows = dict[tuple[str, str], list[tuple[int, int, Any]]]
"""(stream, label) → (token, place, value) in the order of the primary key."""


@cache
def captures() -> dict[str, dict[str, Any]]:
    """All recordings by name."""
    lines = DATA.read_text(encoding="utf-8").splitlines()
    return {item["name"]: item for item in map(json.loads, lines)}


def lines_of(name: str, side: str) -> list[str]:
    """The lines of one side of a recording."""
    return [text for who, text in captures()[name]["records"] if who == side]


def wire(text: str) -> bytes:
    """The bytes of one recorded line, with its LF (a portion without LF stays without)."""
    if match := re.fullmatch(r"<(\d+) bytes>", text):
        return b"x" * int(match[1])
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda hit: bytes([int(hit[1], 16)]), text.encode())
    return raw + b"\n"


def wire_rows(lines: Iterable[str], dialect: Dialect) -> dict[str, list[tuple[int, Any]]]:
    """RDATA lines, read without any code of the project: stream → (token, value); `batch` rows
    get the token that ends them."""
    found: dict[str, list[tuple[int, Any]]] = {}
    pending: dict[str, list[Any]] = {}
    for line in lines:
        words = line.split(" ", 3 if dialect is Dialect.D1 else 4)
        if words[0] != "RDATA":
            continue
        stream, token, value = words[1], words[-2], json.loads(words[-1])
        if token == "batch":
            pending.setdefault(stream, []).append(value)
            continue
        rows = [*pending.pop(stream, []), value]
        found.setdefault(stream, []).extend((int(token), row) for row in rows)
    return found


class Stored:
    """A stand-in for the spaces: does with changes what the store is asked to do."""

    def __init__(self) -> None:
        self.units: dict[tuple[str, str, int, int], list[bytes]] = {}
        self.cursors: dict[tuple[str, str], Cursor] = {}
        self.fetches: list[Fetch] = []
        self.other: list[Change] = []

    def apply(self, changes: Iterable[Any]) -> None:
        """Do what the changes say."""
        for change in changes:
            if isinstance(change, Units):
                self.apply(change.each())
            elif isinstance(change, Unit):
                key = (change.stream, change.instance, change.epoch, change.token)
                before = self.units.get(key, []) if change.more else []
                self.units[key] = before + change.rows
                if change.cursor is not None:
                    self.cursors[change.stream, change.instance] = change.cursor
            elif isinstance(change, Fetch):
                self.fetches.append(change)
            elif not isinstance(change, Greeted):
                self.other.append(change)
                if hasattr(change, "cursor"):
                    self.cursors[change.stream, change.instance] = change.cursor

    def rows(self, stream: str, epoch: int = 1, instance: str = "master") -> list[tuple[int, Any]]:
        """(token, value) of one stream in the order of the primary key."""
        return [
            (token, decode_row_value(row))
            for (name, who, number, token), rows in sorted(
                self.units.items(), key=lambda item: (item[0][:3], item[0][3])
            )
            if (name, who, number) == (stream, instance, epoch)
            for row in rows
        ]


class Peer:
    """A follower's session with what it would store; `answer` gives what it sent since."""

    def __init__(
        self,
        tracker: Tracker | None = None,
        *,
        dialect: Dialect | None = None,
        server_name: str = "",
    ) -> None:
        self.tracker = tracker or Tracker({})
        self.stored = Stored()
        self.now = 0.0
        self.session = ClientSession(
            0.0, dialect=dialect, server_name=server_name, milliseconds=lambda: 1
        )

    def feed(self, data: bytes) -> None:
        """Bytes of the server."""
        self.act(self.session.receive_data(data, self.now))

    def act(self, events: Sequence[Any]) -> None:
        """Events of the session."""
        for event in events:
            if isinstance(event, Greeted):
                self.session.begin(self.tracker, self.now)
        self.stored.apply(events)

    def lines(self, *texts: str) -> list[str]:
        """Lines of the server; returns what was sent."""
        for text in texts:
            self.feed(text.encode() + b"\n")
        return self.answer()

    def greet(self) -> list[str]:
        """The server's greeting."""
        return self.lines("SERVER logweir.test", "PING 1")

    def answer(self) -> list[str]:
        """Lines that were sent since the last call."""
        return self.session.data_to_send().decode().splitlines()
