"""`logweir.capture`: the chosen transactions of a folder or a server, with tokens.

Definitions are those of now, asked again after a row that changes them.
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from array import array
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from logweir.errors import ConfigError, PositionUnavailable, WrongHistory
from logweir.replication.capture.following import Where, asked, following
from logweir.replication.capture.token import Token, chosen
from logweir.replication.iproto.client.spaces import server_definitions
from logweir.replication.urls import Url
from logweir.store.choosing import Change, Changes, Chooser
from logweir.store.recover.defined import folder_definitions
from logweir.store.schema.schema import Definitions, Schema
from logweir.wal.mp import Value
from logweir.wal.vclock import VClock

__all__ = ["Capture", "Captured", "Change", "Spaces", "capture"]

Spaces = int | str | Sequence[int | str]
"""Names or ids of spaces, or one of them; none for all that are not the system's."""


@dataclass(frozen=True, slots=True)
class Captured(Changes):
    """A transaction of `capture`; without changes it only tells how far the log was read. `token`:
    its `vclock` as text, to go on from."""

    token: str


def capture(
    where: str | os.PathLike[str],
    after: str | Mapping[int, int] | None = None,
    *,
    spaces: Spaces = (),
    key: Value = None,
    once: bool = False,
    stop: threading.Event | None = None,
) -> Generator[Captured, None, None]:
    """The transactions after a place, oldest first, with the changes of some spaces; more as they
    come. Transactions without such a change are passed over; after a run of them one comes without
    changes, for its token.

    `where`, `once`, `stop`: as `logweir.follow` takes them; `after`: a token, or a vclock, which is
    not checked, None for the oldest row still there; `spaces`: what is chosen, none for all but the
    system's; `key`: of one space, the first parts of its primary key, for the last one
    `{"begins": text}` for all that begin so. What waits for the CONFIRM of a synchronous
    replication is not given of a folder; a server gives it as it comes.

    Not for event loops. Raises what `logweir.follow` raises; `ConfigError` for what is no token, or
    one of other spaces, `WrongHistory` for one of another log, `PositionUnavailable` if the log
    ends before it, `RequestError` for a space that is not there or a key that does not fit.
    """
    return Capture(where, after, spaces, key).run(once, stop)


class Capture:
    """What is known of a log while it is read. `source`: the server or folder; `chosen`: the
    checksum of what is asked for; the arguments are those of `capture`, which says what is
    raised."""

    def __init__(
        self,
        where: Where,
        after: str | Mapping[int, int] | None,
        spaces: Spaces,
        key: Value,
    ) -> None:
        spaces = (spaces,) if isinstance(spaces, int | str) else spaces
        self.chosen = chosen(spaces, key)
        self._token = Token.parse(after) if isinstance(after, str) else None
        if self._token is not None and self._token.chosen != self.chosen:
            raise ConfigError(
                "token",
                "was taken of other spaces, or another key: changes would be left out",
                origin="after",
                hint="ask for the same; or give the vclock instead of the token, knowingly",
            )
        vclock = self._token.vclock if self._token is not None else after
        self.source, self._after = asked(where, None if isinstance(vclock, str) else vclock)
        found = self._definitions()
        self._known = found.vclock  # the definitions are of there, or of later
        self.chooser = Chooser(spaces, key, found.schema, self._learn)
        self._replicaset: uuid.UUID | None = None
        self._lsns = array("Q")

    def run(self, once: bool, stop: threading.Event | None) -> Generator[Captured, None, None]:
        """See `capture`."""
        pieces = following(self.source, self._after, once=once, stop=stop, begun=self._begun)
        with closing(pieces):
            for columns in pieces:
                for one in self.chooser.taken(columns, self._lsns):
                    assert self._replicaset is not None
                    token = str(Token(self._replicaset, one.vclock, self.chosen))
                    yield Captured(one.changes, one.vclock, one.timestamp, token)
                    if stop is not None and stop.is_set():
                        return

    def _begun(self, replicaset: uuid.UUID | None, start: VClock, end: VClock) -> None:
        """Check that the place is one of this log."""
        token = self._token
        if replicaset is None or (token is not None and token.replicaset != replicaset):
            expected = "unknown" if token is None else token.replicaset
            raise WrongHistory(str(self.source), expected, replicaset)
        self._replicaset = replicaset
        self._lsns = array("Q", start.lsns())
        if not end.covers(start.without_local()):
            raise PositionUnavailable(
                start,
                VClock(),
                end,
                hint="the log was restored, or lost its newest rows: changes that were taken are "
                "not in it any more. Compare, then begin anew",
            )

    def _learn(self, reached: VClock) -> Schema | None:
        """The definitions after rows that define something."""
        if self._known.covers(reached.without_local()):
            return None
        found = self._definitions()
        self._known = found.vclock
        return found.schema

    def _definitions(self) -> Definitions:
        if isinstance(self.source, Url):
            return asyncio.run(server_definitions(self.source))
        return folder_definitions(self.source)
