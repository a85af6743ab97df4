"""Removing what names one user from the streams that are kept of homeservers.

A row names a user if one of its texts, at any depth, is the user's id or holds it as a whole:
membership, receipts, typing, presence, account data, devices. Rows that only tell what the user did
(an event by its id and room) name nobody, and stay; so does what the homeserver itself has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from logweir.errors import ConfigError
from logweir.limits import SYNAPSE_PAGE_ROWS
from logweir.replication.outgoing.shape import STREAM_FORMAT
from logweir.store import Log

__all__ = ["forget_user"]

_USER: Final = re.compile(r"@[^:\s]*:\S+")
_NAMES: Final = [name for name, _ in STREAM_FORMAT]


def forget_user(log: Log, user: str) -> dict[str, int]:
    """Delete every row that names `user` (``@name:server``), whole units cut if need be. Returns
    how many by space, of every space of a stream. Raises `ConfigError` for what is no user."""
    if not _USER.fullmatch(user):
        raise ConfigError("USER", f"{user!r} is no user", hint="write @name:server")
    names = re.compile(re.escape(user) + r"(?![\w.:-])").search
    return {
        space.name: _forget_in(log, space.id, names)
        for space in list(log.schema)
        if space.name.startswith("synapse_") and [one.name for one in space.fields] == _NAMES
    }


def _forget_in(log: Log, space: int, names: Callable[[str], object]) -> int:
    """The rows of one space, page by page."""
    removed, after = 0, None
    while True:
        iterator = "ALL" if after is None else "GT"
        rows = log.select(space, after, iterator=iterator, limit=SYNAPSE_PAGE_ROWS)
        if not rows:
            return removed
        found = [row[:3] for row in rows if any(map(names, _texts(row[3])))]
        if found:
            with log.transaction() as change:
                for key in found:
                    change.delete(space, key)
        removed += len(found)
        after = rows[-1][:3]


def _texts(value: Any) -> Iterator[str]:
    """Every text in a row."""
    ahead = [value]
    while ahead:
        one = ahead.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            ahead += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            ahead += one
