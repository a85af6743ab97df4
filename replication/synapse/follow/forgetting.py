"""Removing what names one user from the streams that are kept of homeservers.

A row names a user if one of its texts, at any depth, is the user's id or holds it as a whole; what
that means for each stream is in docs/synapse.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from logweir.errors import ConfigError
from logweir.limits import SYNAPSE_PAGE_ROWS
from logweir.replication.outgoing.shape import STREAM_FORMAT, STREAM_PREFIX
from logweir.replication.synapse.follow.kinds import ACCOUNT, EVENTS
from logweir.store import Log

_USER: Final = re.compile(r"@[^:\s]*:\S+")
_KEYS: Final = {
    tuple(name for name, _ in STREAM_FORMAT): 3,
    **{tuple(shape.fields): len(shape.key) for shape in (EVENTS, ACCOUNT)},
}
"""How many fields are the key, by the names of all."""


def forget_user(log: Log, user: str) -> dict[str, int]:
    """Delete every row that names `user` (``@name:server``), whole units cut if need be. Returns
    how many by space, of every space of a stream and of contents. Raises `ConfigError` for what is
    no user."""
    if not _USER.fullmatch(user):
        raise ConfigError("USER", f"{user!r} is no user", hint="write @name:server")
    names = re.compile(re.escape(user) + r"(?![\w.:-])").search
    removed = {}
    for space in list(log.schema):
        parts = _KEYS.get(tuple(one.name for one in space.fields))
        if parts is not None and space.name.startswith(STREAM_PREFIX):
            removed[space.name] = _forget_in(log, space.id, parts, names)
    return removed


def _forget_in(log: Log, space: int, parts: int, names: Callable[[str], object]) -> int:
    """The rows of one space, page by page. `parts`: how many fields are the key."""
    removed, after = 0, None
    while True:
        iterator = "ALL" if after is None else "GT"
        rows = log.select(space, after, iterator=iterator, limit=SYNAPSE_PAGE_ROWS)
        if not rows:
            return removed
        found = [row[:parts] for row in rows if any(map(names, _texts(row)))]
        if found:
            with log.transaction() as change:
                for key in found:
                    change.delete(space, key)
        removed += len(found)
        after = rows[-1][:parts]


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
