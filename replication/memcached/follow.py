"""Following a memcached or Couchbase server by TAP: its changes become rows of a bucket here.

Asked for, under a name of our own that stays: acknowledgements, checkpoints, item flags in network
order; after the checkpoints that we have, if there are any, else everything. What comes in one
step is applied as one transaction, together with the ids of the checkpoints that ended (one map
from vbucket to id, in `logweir_position`), and acknowledged when it is durable. So a change is
taken once: what comes twice and is the same makes no row.

The path of the address names the bucket at both sides; without one it is the server's choice there
and `default` here.

Between INITIAL_VBUCKET_STREAM and CLOSE_BACKFILL the keys that come are noted (8 bytes each); at
the end what was not among them is removed here: a copy that breaks off removes nothing. A vbucket
that is not here yet becomes active. CAS, flags, datatype and private bytes stay as they came.

A server that gives no checkpoints is copied anew at each connection, which is told; one that sends
items without any mark and closes the connection (memcached's default engine, which streams nothing
live) is told as that. An expiry below 30 days is no time that an ep-engine sends, but memcached's
default engine does, which counts from its start. `expiry` in the address says what is made of one:

============  ==================================================================================
`ignore`      (if not given) the item never expires here
`relative`    it counts from the start of the producer, whose STAT is asked for before the stream;
              one that does not say when it was started stops the source
`absolute`    it is a Unix time like any other, long gone
============  ==================================================================================

With `vbuckets=5,8-10` in the address only these are followed. With `takeover=1` besides they are
taken over: the server gives them all it has, then makes them dead at its side and active here, and
the source ends. That they were taken stands in `logweir_position`, too, stream `takeover`, so that
it is not done twice. With `byteorder=big` item flags are taken as a big-endian producer sends them.

*Once*, the source asks for a DUMP instead, which is all that the server has at that moment, and
ends with it. A dump has no checkpoints, and makes void those that we had: what comes after them
would be older than what it gave. Where a dump is not known to be whole (see `Marks`) nothing
is removed here, and the source stops and says so; with `eof=whole` in the address the end of the
connection after at least one item is the end of a whole dump, and what was not in it is removed
from all vbuckets, or from those named.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from logweir.errors import ConfigError, LogweirError, SourceStopped, Unreachable
from logweir.limits import BACKFILL_CHUNK_ITEMS, TAP_VALUE_BYTES, UPSTREAM_STEP_BYTES
from logweir.replication.bucket.address import vbuckets_of
from logweir.replication.bucket.change import NO_REPLACE, TAKE
from logweir.replication.bucket.follow import BucketSource, SeenKeys
from logweir.replication.bucket.item import (
    RELATIVE_SECONDS,
    VbucketState,
    unpack_item,
)
from logweir.replication.bucket.store import Bucket, GroupItems, ViewItems
from logweir.replication.dialer import Inbox, dial_with
from logweir.replication.link import Link
from logweir.replication.logs import get_logger
from logweir.replication.memcached.client_session import (
    ClientSession,
    Refused,
    Started,
    StreamEvent,
)
from logweir.replication.memcached.serve.commands import Executor
from logweir.replication.memcached.wire.address import is_big_endian
from logweir.replication.memcached.wire.codec import Opcode, Status
from logweir.replication.memcached.wire.messages import Connect, Marks, Opaque, Option, TapMessage
from logweir.replication.runner import Progress, SourceState
from logweir.replication.service.shared import Shared
from logweir.replication.urls import Url, option_choice
from logweir.store.commit.group import Group

_log = get_logger("logweir.replication.memcached")

_OPTIONS: Final = Option.SUPPORT_ACK | Option.FIX_FLAG_BYTEORDER
_STREAM: Final = "tap"
_TAKEOVER: Final = "takeover"
_EXPIRIES: Final = ("ignore", "relative", "absolute")
_ACTIVE: Final = int(VbucketState.ACTIVE)


class _Upstream(Inbox[StreamEvent]):
    """The conversation of a consumer."""

    def __init__(self, link: Link, url: Url, session: ClientSession, alive: Callable[[], None]):
        super().__init__(link, url, _size, alive)
        self.session = session
        self.started = 0  # Unix seconds; 0: nobody asked

    async def begun(self) -> None:
        """Returns when the server has let us into the bucket, or the connection is gone. Raises
        what it was refused with."""
        with contextlib.suppress(Unreachable):  # which `step` raises
            await self.first()
        if self._waiting and isinstance(self._waiting[0], Refused):
            raise self._refusal(self._waiting[0])

    async def step(self) -> list[TapMessage]:
        """What is there, at most about `limits.UPSTREAM_STEP_BYTES`; at least one message.

        Raises `Unreachable` once the connection is gone and nothing is left, `SourceStopped`.
        """
        taken: list[TapMessage] = []
        while not taken:
            await self.first()
            size = 0
            while self._waiting and (size < UPSTREAM_STEP_BYTES or not taken):
                event = self._waiting.popleft()
                size += _size(event)
                if isinstance(event, Refused):
                    raise self._refusal(event)
                if isinstance(event, TapMessage):
                    taken.append(event)
                if isinstance(event, Started):
                    if event.at is None:
                        raise SourceStopped(
                            f"{self.url}: its STAT does not say when the server was started",
                            hint="write expiry=ignore or expiry=absolute",
                        )
                    self.started = event.at
            self._unanswered.add(-size)
        return taken

    def _refusal(self, event: Refused) -> SourceStopped | Unreachable:
        text = f"{event.what} was refused with status {event.status:#06x} {event.text}"
        if event.status == Status.UNKNOWN_COMMAND:
            return SourceStopped(
                f"{self.url}: {text}", hint="it does not speak TAP; Couchbase before 5.0 does"
            )
        if event.status == Status.TOO_BIG:
            return SourceStopped(f"{self.url}: {text}", hint=_TOO_BIG)
        if event.status == Status.NOT_FOUND:
            hint = "there is no such bucket: make it there, or name another in the address"
        else:
            hint = "check user and password, and its log"
        return Unreachable(str(self.url), text, hint=hint)


_TOO_BIG: Final = (
    f"a value above {TAP_VALUE_BYTES} bytes: make it shorter or remove it at the server, or leave "
    "its vbucket out with vbuckets="
)


def _size(event: StreamEvent) -> int:
    return len(event.key) + len(event.value) + 64 if isinstance(event, TapMessage) else 64


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """What an address says. `dumps`: what is asked for has an end, of its own."""

    expiry: str
    big_endian: bool
    vbuckets: frozenset[int]
    takes_over: bool
    dumps: bool
    eof_is_whole: bool

    @property
    def has_end(self) -> bool:
        """Whether the stream ends by itself."""
        return self.dumps or self.takes_over


def read_follow_options(url: Url, *, once: bool) -> FollowOptions:
    """The options of an upstream's address. `once`: see the module. Raises `ConfigError`."""
    vbuckets, takes_over = vbuckets_of(url), url.flag("takeover")
    if takes_over and not vbuckets:
        raise ConfigError("takeover", f"of which vbuckets, in {url}", hint="add vbuckets=0")
    dumps, eof = once and not takes_over, option_choice(url, "eof", ("", "whole"))
    if eof and not dumps:
        raise ConfigError(
            "eof", f"of a stream that has no end, in {url}", hint="follow it with --once"
        )
    expiry = option_choice(url, "expiry", _EXPIRIES)
    return FollowOptions(expiry, is_big_endian(url), vbuckets, takes_over, dumps, bool(eof))


class TapSource(BucketSource):
    """One server, for a `Runner`. `once`: see the module."""

    def __init__(self, shared: Shared, url: Url, *, once: bool = False) -> None:
        super().__init__(shared, url)
        self.options = options = read_follow_options(url, once=once)
        words = [url.option("name")]
        words.append(f"vb{min(options.vbuckets)}" if options.vbuckets else "")
        words.append("takeover" if options.takes_over else "dump" if options.dumps else "")
        # A server has one stream of a name, and other sources may have a part of the same bucket.
        self.name = b"-".join([self.name, *(word.encode() for word in words if word)])

    async def attempt(self, progress: Progress) -> None:
        bucket = await asyncio.to_thread(self.fill)
        if self.options.takes_over and self.taken(bucket).issuperset(self.options.vbuckets):
            progress.finished()
            return
        session = ClientSession(
            self._connect(bucket),
            user=self._url.user,
            password=self._url.secret(),
            bucket=self._url.path[0] if self._url.path else "",
            asks_start=self.options.expiry == "relative",
            big_endian_producer=self.options.big_endian,
        )
        link, upstream = await dial_with(
            self._url, lambda link: _Upstream(link, self._url, session, progress.alive)
        )
        try:
            await _Following(self, bucket, upstream, progress).run()
        finally:
            link.close("the consumer is done")

    def _connect(self, bucket: Bucket) -> Connect:
        vbuckets = tuple(sorted(self.options.vbuckets))
        pairs: tuple[tuple[int, int], ...] = ()
        options = _OPTIONS | (Option.LIST_VBUCKETS if vbuckets else Option(0))
        if self.options.takes_over:
            options |= Option.TAKEOVER_VBUCKETS
        elif self.options.dumps:
            options |= Option.DUMP
        else:
            pairs = tuple(sorted(self.tokens(bucket).items()))
            options |= Option.CHECKPOINT if pairs else Option.CHECKPOINT | Option.BACKFILL
        return Connect(self.name, options, vbuckets=vbuckets, checkpoints=pairs)

    def tokens(self, bucket: Bucket) -> dict[int, int]:
        """The ids of the checkpoints that we have, by vbucket."""
        found = self.position(_STREAM, bucket.name)
        return {int(vbucket): int(number) for vbucket, number in found.items()}

    def taken(self, bucket: Bucket) -> set[int]:
        """The vbuckets that were taken over."""
        return {int(vbucket) for vbucket in self.position(_TAKEOVER, bucket.name)}

    def others(
        self, bucket: Bucket, after: tuple[int, bytes], seen: SeenKeys
    ) -> tuple[list[bytes], tuple[int, bytes] | None]:
        """Keys among the next items of a vbucket, after `after`, that were not seen, and where to
        go on; None: that was all."""
        others: list[bytes] = []
        with self._shared.log.read_view() as view:
            items = ViewItems(bucket, view).ordered(after)
            for looked, data in enumerate(items, 1):
                item = unpack_item(data)
                if item.vbucket != after[0]:
                    break
                if item.key not in seen:
                    others.append(item.key)
                if looked == BACKFILL_CHUNK_ITEMS:
                    return others, (item.vbucket, item.key)
        return others, None

    def states(self, bucket: Bucket) -> Sequence[int]:
        """The vbuckets that are here."""
        with self._shared.log.read_view() as view:
            return list(ViewItems(bucket, view).states())

    def dated(self, message: TapMessage, started: int) -> TapMessage:
        """A mutation with the expiry of its item. `started`: when the producer was, in Unix
        seconds."""
        if 0 < message.expiry < RELATIVE_SECONDS and self.options.expiry != "absolute":
            return replace(message, expiry=started and started + message.expiry)
        return message

    def note(self, group: Group, stream: str, bucket: Bucket, numbers: Mapping[int, int]) -> None:
        """Keep numbers by vbucket, in the open transaction."""
        named = {str(vbucket): number for vbucket, number in numbers.items()}
        self.put_position(group, stream, bucket, named)


class _Following:
    """One connection: messages in, acknowledgements out."""

    def __init__(
        self, source: TapSource, bucket: Bucket, upstream: _Upstream, progress: Progress
    ) -> None:
        self._source = source
        self._options = source.options
        self._bucket = bucket
        self._upstream = upstream
        self._progress = progress
        self._tokens = source.tokens(bucket)
        self._is_resumed = bool(self._tokens) and not self._options.dumps
        self._seen: dict[int, SeenKeys] = {}
        self._follows = False
        self._marks = Marks()
        self._unmarked: dict[int, SeenKeys] = {}  # what comes in a dump before any mark
        self._taken = source.taken(bucket)

    async def run(self) -> None:
        """Until the connection ends, which raises."""
        bucket = self._bucket
        if self._upstream.session.bucket:
            await self._upstream.begun()
        self._progress.state(SourceState.SYNCING)
        if not (self._tokens or self._options.has_end):
            _log.info("tap.full_copy", url=self._source.url, bucket=bucket.name)
        if self._options.dumps and self._tokens:
            note = self._source.note
            await self._source.apply(
                bucket, lambda items, group: note(group, _STREAM, bucket, {}), 256
            )
            self._tokens = {}
        while True:
            try:
                messages = await self._upstream.step()
            except Unreachable as error:
                if not self._options.dumps or not self._marks.is_whole(
                    ended_whole=self._upstream.session.ended_whole,
                    eof_is_whole=self._options.eof_is_whole,
                ):
                    raise self._unmarked_end(error) from error
                if self._unmarked and not self._marks.any:  # nothing said what it was of
                    for vbucket in sorted(self._options.vbuckets or self._source.states(bucket)):
                        seen = self._unmarked.get(vbucket) or SeenKeys(b"")
                        await self._remove_others(vbucket, seen)
                self._progress.finished()
                return
            begin = 0
            for at, message in enumerate(messages):
                self._marks.take(message)
                if message.opcode == Opcode.TAP_OPAQUE:
                    await self._take(messages[begin:at])
                    await self._take_opaque(message)
                    begin = at + 1
            await self._take(messages[begin:])
            if self._options.takes_over and self._taken.issuperset(self._options.vbuckets):
                self._progress.finished()
                return
            if self._is_resumed and not self._seen:
                self._follow()

    def _unmarked_end(self, error: Unreachable) -> LogweirError:
        """Why a connection ended: `error`, unless it was after items and no mark at all."""
        is_ended = self._upstream.session.ended_whole and self._marks.items > 0
        if self._marks.any or self._tokens or not is_ended:
            return error
        text = (
            "the server sent items, but no mark of their beginning or end, and closed the "
            f"connection ({self._marks.items} messages)"
        )
        if self._options.dumps:
            return SourceStopped(
                f"{self._source.url}: {text}: what was deleted there stays here",
                hint="memcached's default engine ends its dumps so: add eof=whole for it",
            )
        return Unreachable(
            self._source.url,
            f"{text}: it streams nothing live, and is copied anew each time",
            hint="memcached's default engine does so: follow it with --once and eof=whole",
        )

    async def _take_opaque(self, message: TapMessage) -> None:
        vbucket = message.vbucket
        if message.number == Opaque.INITIAL_VBUCKET_STREAM:
            self._seen[vbucket] = SeenKeys(self._source.name[:64])
            self._tokens.pop(vbucket, None)
        elif message.number == Opaque.CLOSE_BACKFILL and vbucket in self._seen:
            await self._remove_others(vbucket, self._seen.pop(vbucket))
            if not self._seen:
                self._follow()
        self._acknowledge([message])

    async def _remove_others(self, vbucket: int, seen: SeenKeys) -> None:
        """Remove what the server has no more, some at a time."""
        after: tuple[int, bytes] | None = (vbucket, b"")
        while after is not None:
            others, after = self._source.others(self._bucket, after, seen)

            def work(items: GroupItems, group: Group, others: list[bytes] = others) -> None:
                for key in others:
                    items.remove(key, vbucket)
                    group.divide()

            if others:
                await self._source.apply(self._bucket, work, 512 * len(others))

    async def _take(self, messages: Sequence[TapMessage]) -> None:
        if not messages:
            return
        tokens = dict(self._tokens)
        taken = set(self._taken)

        def work(items: GroupItems, group: Group) -> None:
            for message in messages:
                self._apply(items, message, tokens)
                if message.opcode == Opcode.TAP_VBUCKET_SET and message.number == _ACTIVE:
                    taken.add(message.vbucket)
            if taken != self._taken:
                self._source.note(group, _TAKEOVER, self._bucket, dict.fromkeys(sorted(taken), 1))
            if tokens != self._tokens:
                self._source.note(group, _STREAM, self._bucket, tokens)

        await self._source.apply(self._bucket, work, sum(map(_size, messages)))
        self._tokens, self._taken = tokens, taken
        place = " ".join(f"{vbucket}:{number}" for vbucket, number in sorted(tokens.items()))
        self._progress.applied(len(messages), place, None)
        self._acknowledge(messages)

    def _apply(self, items: GroupItems, message: TapMessage, tokens: dict[int, int]) -> None:
        opcode, vbucket = message.opcode, message.vbucket
        if opcode == Opcode.TAP_CHECKPOINT_END:
            if vbucket not in self._seen and not self._options.dumps:
                tokens[vbucket] = message.number or 0
            return
        if opcode == Opcode.TAP_CHECKPOINT_START:
            return
        if opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE) and items.state(vbucket) is None:
            items.set_state(vbucket, VbucketState.ACTIVE)
        kind = TAKE
        if opcode == Opcode.TAP_MUTATION:
            seen = self._seen.get(vbucket)
            if seen is None and self._options.dumps and not self._marks.any:
                seen = self._unmarked.setdefault(vbucket, SeenKeys(self._source.name[:64]))
            if seen is not None:
                seen.add(message.key)
            message = self._source.dated(message, self._upstream.started)
            kind |= 0 if message.has_value else NO_REPLACE
        status = Executor(items, 0.0).apply(message, kind)
        if status != Status.SUCCESS:
            raise SourceStopped(
                f"{self._source.url}: opcode {opcode:#04x} for key {message.key!r} of vbucket "
                f"{vbucket} cannot be applied: status {status:#06x}",
                hint=f"a key above 250 bytes, a dead vbucket here, or {_TOO_BIG}",
            )

    def _acknowledge(self, messages: Sequence[TapMessage]) -> None:
        """Say that these, the oldest that wait, are durable."""
        self._upstream.session.acknowledge(sum(message.wants_ack for message in messages))
        self._upstream.link.flush()

    def _follow(self) -> None:
        if not (self._follows or self._options.has_end):
            self._follows = True
            self._progress.state(SourceState.FOLLOWING)
