"""Buckets as Greenstack clients see them: who may use which, making and removing them."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from logweir.errors import LogweirError, RequestError
from logweir.replication.bucket.feed import BucketFeed, Changes, Feed
from logweir.replication.bucket.item import DEFAULT_BUCKET, JSON_DATATYPE
from logweir.replication.bucket.store import STATES_SPACE, Bucket, Buckets
from logweir.replication.greenstack.serve.lanes import Pending
from logweir.replication.greenstack.wire.codec import Frame, Opcode, Status
from logweir.replication.greenstack.wire.messages import decode_create, decode_delete
from logweir.replication.outgoing.spacefeed import SpaceFeeds
from logweir.replication.service.shared import Shared
from logweir.replication.topic.views import SPACE_PREFIX
from logweir.store import Log
from logweir.store.schema.access import ALL_BITS, GUEST_ID, Privilege

_BUCKET_NAME: Final = re.compile(r"[A-Za-z0-9_\-.%]{1,100}", re.ASCII)
_TYPES: Final = range(3)


class Definitions:
    """The buckets of one store, and the grants of its users. `changes`: of buckets, as streams
    share them; `encoding`: of other spaces, see `logweir.replication.outgoing.spacefeed`."""

    def __init__(self, shared: Shared, buckets: Buckets, changes: Changes, encoding: str) -> None:
        self._shared = shared
        self._buckets = buckets
        self._changes = changes
        self._spaces = SpaceFeeds(shared.log, encoding, json_datatype=JSON_DATATYPE)
        self._names: dict[str, int] = {}
        self.news()

    def news(self) -> tuple[list[str], list[str]]:
        """The names of buckets that are gone, and that were made, since this was asked last."""
        before, now = self._names, {one.name: one.space_id for one in self._buckets.all()}
        self._names = now
        gone = sorted(name for name, number in before.items() if now.get(name) != number)
        return gone, sorted(name for name, number in now.items() if before.get(name) != number)

    def feed(self, name: str) -> Feed | None:
        """What a stream of that name is of, a bucket or `space:NAME`; None: there is none."""
        if name.startswith(SPACE_PREFIX):
            try:
                return self._spaces.get(name.removeprefix(SPACE_PREFIX))
            except RequestError:
                return None
        bucket = self._buckets.find(name)
        return None if bucket is None else self._feed(bucket)

    def _feed(self, bucket: Bucket) -> Feed:
        return BucketFeed(self._shared.log, bucket, self._changes)

    def readable(self, user_id: int) -> list[Feed]:
        """All buckets that a user may read."""
        return [
            self._feed(bucket)
            for bucket in self._buckets.all()
            if self.may(user_id, bucket, Privilege.READ)
        ]

    def may(self, user_id: int, bucket: Bucket | Feed, wanted: Privilege) -> bool:
        """Whether a user has a privilege on a bucket, or what a stream is of."""
        shared = self._shared
        known, asked = shared.let_in, (user_id, bucket.name, bucket.space_id, wanted)
        if asked in known:
            return True
        is_guest = user_id == GUEST_ID and bucket.name != DEFAULT_BUCKET
        if is_guest and shared.access(user_id).universe != ALL_BITS:
            return False
        if not shared.may(user_id, bucket.space_id, wanted, is_there=True):
            return False
        known.add(asked)
        return True

    def visible(self, user_id: int) -> list[str]:
        """The names of the buckets that a user may read or write."""
        wanted = (Privilege.READ, Privilege.WRITE)
        return sorted(
            bucket.name
            for bucket in self._buckets.all()
            if any(self.may(user_id, bucket, one) for one in wanted)
        )

    async def define(self, pending: Pending, read_only: Status) -> Status:
        """Make or remove a bucket. `read_only`: what is said on a read-only server."""
        assert isinstance(pending.frame, Frame)
        makes = pending.frame.opcode == Opcode.CREATE_BUCKET
        try:
            payload = pending.frame.payload
            name = decode_create(payload)[0] if makes else decode_delete(payload)[0]
        except LogweirError:
            return Status.INVALID_ARGUMENTS
        if makes and not (_BUCKET_NAME.fullmatch(name) and decode_create(payload)[2] in _TYPES):
            return Status.INVALID_ARGUMENTS
        found = self._buckets.find(name)
        space_id = -1 if makes or found is None else found.space_id
        wanted = Privilege.CREATE if makes else Privilege.DROP
        if not self._shared.may(pending.user_id, space_id, wanted):
            return Status.NO_ACCESS
        if self._shared.options.read_only:
            return read_only
        log = self._shared.log
        if makes:
            if log.schema.get(name) is not None:
                return Status.ALREADY_EXISTS
            await asyncio.to_thread(self._buckets.make, name)
        else:
            if found is None:
                return Status.NOT_FOUND
            await asyncio.to_thread(_drop, self._shared.log, found)
        return Status.SUCCESS


def _drop(log: Log, bucket: Bucket) -> None:
    """Remove a bucket and what is kept of its vbuckets."""
    with log.transaction() as tx:
        for row in tx.select(STATES_SPACE, [bucket.name], iterator="EQ"):
            tx.delete(STATES_SPACE, (row[0], row[1]))
        tx.drop_space(bucket.space_id)
