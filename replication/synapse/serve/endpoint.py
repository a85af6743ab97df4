"""Serving Synapse's line protocol: one task per follower reads the store at the follower's pace.

A follower of a stream gets what is stored after its token, page by page, then POSITION, then what
is committed. Nothing is queued for a follower: what it has not taken yet is read from the state or
the log when it takes it, and rows at the end of the log are read and written out once for all
(`logweir.replication.stream.hub`, `push.Streams`); so are the pages of those who catch up at the
same time. One that takes nothing for `limits.SYNAPSE_STALL_SECONDS`, or that is still at a place of
the log when that is removed, gets `ERROR Failed to keep up` after what is on its way to it.

====================================  ==============================================================
asked for                             gets
====================================  ==============================================================
NOW, or the token where it stands     POSITION
a token below                         the units after it, `batch` but for the last row, POSITION
a token above                         POSITION, which is lower
a space, below the oldest row kept    ERROR token too old; with 0 all that is in the space as
                                      `replace` rows in one unit, then POSITION
a stream that is not known            ERROR, close
ALL (D1)                              the same for every stream
ALL (D2 on)                           POSITION of every stream; rows come without being asked for
a stream that there is only later     (after ALL) POSITION before its first row, and what comes
====================================  ==============================================================

What waits for its turn is one question a stream: of several the lowest token. After each page, each
answer and each step of the log the others have their turn.

A row whose line is longer than `limits.SYNAPSE_LINE_BYTES` ends the connection with `ERROR row too
long: <stream> <token>`, or with `on_long_row="skip"` its unit is left out and a POSITION past it is
sent; each is counted.

With `keep` (docs/synapse.md) one FEDERATION_ACK is noted at a time, of each name the newest. A
client that may read no stream (`shown.Shown`) is told so and closed, and keeps no place.

Source: Synapse 1.12.4 and 1.66.0, observed, for what followers expect; tokens that are too old, the
pace and long rows are ours.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from logweir.errors import LimitExceeded, PositionUnavailable
from logweir.limits import (
    SYNAPSE_ACKNOWLEDGERS,
    SYNAPSE_LINE_BYTES,
    SYNAPSE_OUTPUT_HIGH_BYTES,
    SYNAPSE_PARK_SECONDS,
    SYNAPSE_QUEUED_COMMANDS,
    SYNAPSE_SHARED_BYTES,
    SYNAPSE_SHARED_WINDOWS,
    SYNAPSE_STEP_BYTES,
    SYNAPSE_STREAMS,
)
from logweir.replication.link import Link
from logweir.replication.listener import Service
from logweir.replication.logs import get_logger
from logweir.replication.service.rights import Choice, Rights
from logweir.replication.service.shared import Shared
from logweir.replication.stream.hub import Reader, Window
from logweir.replication.synapse.client_session import error_line
from logweir.replication.synapse.push import OWN_INSTANCE, Delivery, Stream, Streams
from logweir.replication.synapse.serve.options import Options
from logweir.replication.synapse.serve.shown import Shown
from logweir.replication.synapse.serve.updates import UpdatesService
from logweir.replication.synapse.server_session import Event, ServerSession
from logweir.replication.synapse.wire.codec import ALL, Dialect, FederationAck, Plain, Replicate
from logweir.store.view import ReadView
from logweir.wal.vclock import VClock

_log = get_logger("logweir.replication.synapse")


class SynapseService(Service):
    """The protocol, for a `Listener`."""

    def __init__(self, shared: Shared, options: Options, choice: Choice) -> None:
        self.log, self.hub = shared.log, shared.settled
        self.options = options
        self.streams = Streams(self.log, options.dialect, enveloped=options.enveloped)
        self.streams.on_taken = self._taken
        self.answered = shared.metrics.answered
        self.conversations: set[Conversation] = set()
        self._shared = shared
        self._choice = choice
        self._windows: OrderedDict[tuple[int, int], _Shared] = OrderedDict()
        self._windows_bytes = 0
        self._pages: OrderedDict[tuple[str, str, int, int], tuple[int, list[Delivery]]] = (
            OrderedDict()
        )
        self._pages_bytes = 0
        self._keeping = asyncio.Lock()
        self.hub.listen(self._committed)

    def shown(self, link: Link) -> Shown:
        """What the peer of a connection is shown."""
        return Shown(self.streams, Rights(self._shared, link.user), self._choice)

    def updates(self) -> UpdatesService:
        """What serves the HTTP address that belongs to this one."""
        return UpdatesService(
            self.log,
            self.hub,
            self.streams,
            self.shown,
            secret=self.options.secret,
            failed=self._shared.logins.failed,
            answered=self.answered,
        )

    async def keep(self, name: str, token: int) -> None:
        """A follower has everything up to `token`: keep the log after it; below 0: no longer."""
        label = f"synapse:{name}"
        async with self._keeping:
            if token < 0:
                await asyncio.to_thread(self.log.release, label)
                return
            known = (await asyncio.to_thread(self.log.inner.progress))["followers"]
            others = sum(one.startswith("synapse:") for one in known)
            if label not in known and others >= SYNAPSE_ACKNOWLEDGERS:
                _log.warning("synapse.not_kept", name=name, limit=SYNAPSE_ACKNOWLEDGERS)
                return
            position = self.streams.vclock_at(min(token, self.log.applied.signature))
            if known.get(label) != dict(position):
                await asyncio.to_thread(self.log.inner.retain_all, {label: position})

    def begin(self, link: Link) -> Conversation:
        made = Conversation(self, link)
        self.conversations.add(made)
        return made

    def refusal(self, reason: str) -> bytes:
        return error_line(reason)

    def server_name(self) -> str:
        """What we call ourselves."""
        return self.options.server_name or self.streams.server_name() or "logweir"

    def _committed(self) -> None:
        for conversation in self.conversations:
            conversation.wake()

    def _taken(self, names: Set[str]) -> None:
        """These streams are others than before: whoever follows one has to begin anew."""
        for conversation in self.conversations:
            conversation.stop_following(names)

    def shared(self, window: Window) -> _Shared:
        """The units of a window, made once for all followers that are there."""
        key = (window.start.signature, window.end.signature)
        known = self._windows.get(key)
        if known is None:
            units = self.streams.deliveries(window.start, window.blocks)
            known = self._windows[key] = _Shared(units, {})
            self._windows_bytes += _size(units)
            while len(self._windows) > 1 and (
                len(self._windows) > SYNAPSE_SHARED_WINDOWS
                or self._windows_bytes > SYNAPSE_SHARED_BYTES
            ):
                _, oldest = self._windows.popitem(last=False)
                self._windows_bytes -= _size(oldest.units)
        return known

    def page(
        self, view: ReadView, stream: Stream, instance: str, epoch: int, after: int
    ) -> list[Delivery]:
        """`Streams.stored`, made once for all who catch up from there if nothing is committed."""
        key = (stream.name, instance, epoch, after)
        signature = view.vclock.signature
        known = self._pages.pop(key, None)
        if known is None or known[0] != signature:
            if known is not None:
                self._pages_bytes -= _size(known[1])
            known = (signature, self.streams.stored(view, stream, instance, epoch, after))
            self._pages_bytes += _size(known[1])
        self._pages[key] = known
        while self._pages_bytes > SYNAPSE_SHARED_BYTES:
            _, (_, units) = self._pages.popitem(last=False)
            self._pages_bytes -= _size(units)
        return known[1]


def _size(units: Sequence[Delivery]) -> int:
    return sum(len(unit.lines) for unit in units)


@dataclass(frozen=True, slots=True)
class _Shared:
    """The units of a window, and what followers were sent of them: places in `units` → lines."""

    units: list[Delivery]
    joined: dict[tuple[int, ...], bytes]

    def lines(self, places: tuple[int, ...]) -> bytes:
        """The lines of some units, joined once for all who want the same."""
        known = self.joined.get(places)
        if known is None:
            known = self.joined[places] = b"".join([self.units[at].lines for at in places])
        return known


@dataclass(slots=True)
class _Live:
    """A stream that is sent. `behind`: transactions up to that signature were; `epoch`: of each
    writer whose POSITION was told."""

    behind: int
    epoch: dict[str, int]


class Conversation:
    """One follower."""

    def __init__(self, service: SynapseService, link: Link) -> None:
        self.service = service
        self.link = link
        log = service.log
        self._shown = service.shown(link)
        self.session = ServerSession(
            link.time(),
            dialect=service.options.dialect,
            server_name=service.server_name(),
            milliseconds=lambda: int(log.inner.now() * 1000),
        )
        self._asked: dict[str, int | None] = {}
        self._acknowledged: dict[str, int] = {}
        self._live: dict[str, _Live] = {}
        self.position = log.applied
        self._passed_on = 0  # commands since it could be sent anything
        self._is_d1 = service.options.dialect is Dialect.D1
        self._everything = not self._is_d1  # streams that nobody asked for are sent
        self._is_told = False  # where every stream stands: another one is new
        self._news = asyncio.Event()
        self.wake = self._news.set
        link.spawn(self._run())

    @property
    def follows(self) -> bool:
        """Whether it is sent anything."""
        return bool(self._live or self._everything)

    def handle(self, events: Sequence[Event]) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        for event in events:
            if isinstance(event, Replicate):
                self._ask(event)
            elif isinstance(event, FederationAck):
                if refusal := self._shown.refusal_of_all:
                    self._refuse(refusal)
                elif self.service.options.keep and self.session.name:
                    self._acknowledge(self.session.name, event.token)
            elif self.service.options.relay_up and not self._shown.refusal_of_all:
                for other in self.service.conversations - {self}:
                    other.pass_on(event)
        if asked := sum(isinstance(event, Replicate) for event in events):
            refused = int(self.session.close_reason != "")
            self.service.answered(self.link.scheme, asked - refused, refused)

    def _ask(self, event: Replicate) -> None:
        if refusal := self._shown.refusal_of_all:
            self._refuse(refusal)
            return
        after = event.token
        if event.stream in self._asked:
            known = self._asked[event.stream]
            after = known if after is None else after if known is None else min(known, after)
        elif len(self._asked) >= SYNAPSE_STREAMS:
            self._refuse("failed to handle replicate: too many streams are asked for")
            return
        self._asked[event.stream] = after
        self._news.set()

    def _acknowledge(self, name: str, token: int) -> None:
        is_idle = not self._acknowledged
        if name not in self._acknowledged and len(self._acknowledged) >= SYNAPSE_ACKNOWLEDGERS:
            self._refuse(f"more than {SYNAPSE_ACKNOWLEDGERS} names acknowledge")
            return
        self._acknowledged[name] = token
        if is_idle:
            self.link.spawn(self._keep())

    async def _keep(self) -> None:
        """Have noted what was acknowledged, until nothing newer is there."""
        while self._acknowledged:
            name, token = next(iter(self._acknowledged.items()))
            await self.service.keep(name, token)
            if self._acknowledged[name] == token:
                del self._acknowledged[name]

    def stop_following(self, names: Set[str]) -> None:
        """These streams are others than before."""
        if taken := sorted(names & self._live.keys()):
            self._refuse(f"stream {taken[0]} is another one now, follow it anew")

    def pass_on(self, command: Plain) -> None:
        """Send what another follower said; nothing else is queued for one that takes nothing."""
        self._passed_on = 0 if self.link.writable else self._passed_on + 1
        if self._passed_on > SYNAPSE_QUEUED_COMMANDS:
            self._refuse("Failed to keep up")
        elif not self.session.close_reason:
            self.session.put(command, self.link.time())
            self.link.flush()

    def closed(self, reason: str) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        self.service.conversations.discard(self)

    # --- the follower's task ----------------------------------------------------------------------

    async def _run(self) -> None:
        self.link.limit_output(SYNAPSE_OUTPUT_HIGH_BYTES)
        log, hub = self.service.log, self.service.hub
        reader = hub.reader(log.applied, step_bytes=SYNAPSE_STEP_BYTES)
        try:
            while self.link.is_open:
                if not self.link.writable:
                    await self._drained(reader)
                self._news.clear()
                if self._asked and self._is_d1:
                    stream = next(iter(self._asked))
                    await self._subscribe(stream, self._asked.pop(stream))
                elif (window := reader.take()) is not None:
                    self._send_live(window)
                    self.position = window.end
                    del window  # it may be long until the next
                else:
                    if self._asked:
                        self._send_positions(reader.vclock)  # else the commit to come is waited for
                    await self._news.wait()
                    continue
                await self._drained(reader)
        except PositionUnavailable as error:
            self._refuse(f"Failed to keep up: {error.message}")
        finally:
            reader.close()

    async def _drained(self, reader: Reader | None = None) -> None:
        """Let the others have their turn, and wait until the follower has taken what it was sent;
        one that takes nothing is told.

        `reader`: what holds its place in the log, which gives its file back meanwhile.
        """
        await asyncio.sleep(0)
        taken, waited = -1, 0.0
        each = min(SYNAPSE_PARK_SECONDS, self.service.options.stall_seconds)
        while not self.link.writable and self.link.is_open:
            before, taken = taken, self.link.sent_bytes - self.link.unsent_bytes
            waited = waited + each if taken == before else 0.0
            if waited >= self.service.options.stall_seconds:
                self._refuse("Failed to keep up")
                return
            try:
                async with asyncio.timeout(each):
                    await self.link.drained()
            except TimeoutError:
                if reader is not None:
                    reader.park()

    def _send(self, lines: bytes) -> None:
        self.session.put_lines(lines, self.link.time())
        self.link.flush()

    def _refuse(self, text: str) -> None:
        self.session.refuse(text)
        self.link.flush()

    def _fits(self, unit: Delivery) -> bool:
        """Whether a unit can be sent; if not, what is configured is done."""
        if unit.longest <= SYNAPSE_LINE_BYTES:
            return True
        if not self.service.options.skip_long_rows:
            self._refuse(f"row too long: {unit.stream} {unit.token}")
            return False
        stream = self.service.streams.get(unit.stream)
        assert stream is not None
        self._send(self.service.streams.position_line(stream, unit.instance, unit.token))
        return False

    def _send_unit(self, unit: Delivery) -> bool:
        """Send it, if it fits. False if the connection ends for it."""
        if self._fits(unit):
            self._send(unit.lines)
        return not self.session.close_reason

    # --- the end of the log -----------------------------------------------------------------------

    def _send_live(self, window: Window) -> None:
        shared = self.service.shared(window)
        if any(self._is_in_middle(unit) for unit in shared.units):
            units = self.service.streams.units(window.start, window.blocks)
            shared = _Shared(list(units), {})
        places: list[int] = []
        for place, unit in enumerate(shared.units):
            live = self._live.get(unit.stream)
            is_live = live is not None
            if not self._shown.lets(unit.stream, is_live=is_live, follows_all=self._everything):
                continue
            if live is None:
                if not self._everything:
                    continue
                live = self._live[unit.stream] = _Live(0, {})
            if unit.signature <= live.behind:
                continue
            if self._is_told and unit.instance not in live.epoch:
                self._send_shared(shared, places)
                places = []
                self._send(self.service.streams.first_position(unit))
            known = live.epoch.get(unit.instance, unit.epoch)
            if unit.epoch < known:
                continue
            if unit.epoch > known or unit.longest > SYNAPSE_LINE_BYTES:
                self._send_shared(shared, places)
                places = []
            if unit.epoch > known:
                stream = self.service.streams.get(unit.stream)
                assert stream is not None
                self._send(self.service.streams.position_line(stream, unit.instance, 0))
            live.epoch[unit.instance] = unit.epoch
            if self._fits(unit):
                places.append(place)
            elif self.session.close_reason:
                return
        self._send_shared(shared, places)
        if self._shown.ended:
            self._refuse(self._shown.ended)

    def _send_shared(self, shared: _Shared, places: list[int]) -> None:
        if places:
            self._send(shared.lines(tuple(places)))

    def _is_in_middle(self, unit: Delivery) -> bool:
        """Whether the follower has a part of it already."""
        live = self._live.get(unit.stream)
        return live is not None and unit.first_signature <= live.behind < unit.signature

    def _send_positions(self, reached: VClock) -> bool:
        """(D2 on) POSITION of every stream; False if more was committed than was sent."""
        streams = self.service.streams
        with self.service.log.read_view() as view:
            if view.vclock.signature > reached.signature:
                return False
            heads = [
                (stream, head)
                for stream in self._shown.all()
                for head in streams.heads(view, stream)
            ]
        self._asked.clear()
        lines = [
            streams.position_line(stream, instance, token) for stream, (instance, _, token) in heads
        ]
        self._send(b"".join(lines))
        self._live = {stream.name: _Live(reached.signature, {}) for stream, _ in heads}
        for stream, (instance, epoch, _) in heads:
            self._live[stream.name].epoch[instance] = epoch
        self._is_told = True
        return True

    # --- catching up ------------------------------------------------------------------------------

    async def _subscribe(self, name: str, after: int | None) -> None:
        if name == ALL:
            wanted: Sequence[Stream] = self._shown.all()
            self._everything = self._is_told = True
        elif (one := self._shown.find(name)) is not None:
            wanted = (one,)
        else:
            why = self._shown.refusal(name) or f"unknown stream {name}"
            self._refuse(f"failed to handle replicate: {why}")
            return
        for stream in wanted:
            self._live.pop(stream.name, None)
            if stream.relayed:
                await self._catch_up_relayed(stream, after)
            else:
                await self._catch_up_space(stream, after)
            if self.session.close_reason or not self.link.is_open:
                return
            await self._drained()

    async def _catch_up_relayed(self, stream: Stream, after: int | None) -> None:
        """Send what is stored after `after`, then POSITION."""
        streams = self.service.streams
        while True:
            with self.service.log.read_view() as view:
                heads = streams.heads(view, stream)
                signature = view.vclock.signature
                units = []
                if after is not None:
                    ((instance, epoch, _),) = heads  # D1 has one writer
                    units = self.service.page(view, stream, instance, epoch, after)
            for unit in units:
                if not self._send_unit(unit):
                    return
                after = unit.token
            await self._drained()
            if not units or not self.link.is_open:
                break
        if not self.link.is_open:
            return
        for instance, _, token in heads:
            if after is not None and after > token:
                _log.info("synapse.ahead", peer=self.link.peer, stream=stream.name, token=after)
            self._send(streams.position_line(stream, instance, token))
        self._live[stream.name] = _Live(signature, {who: epoch for who, epoch, _ in heads})

    async def _catch_up_space(self, stream: Stream, after: int | None) -> None:
        """The same of a space, from the log."""
        log, streams = self.service.log, self.service.streams
        target = log.applied.signature
        if after is not None and after > target:
            _log.info("synapse.ahead", peer=self.link.peer, stream=stream.name, token=after)
        elif after is not None and after < target:
            oldest = log.oldest_position.signature
            if after >= oldest:
                await self._replay(stream, max(after, 0), target)
            elif after <= 0:
                target = await self._send_state(stream)
            else:
                self._refuse(f"token too old: oldest is {oldest}")
            if self.session.close_reason or not self.link.is_open:
                return
        self._send(streams.position_line(stream, OWN_INSTANCE, target))
        self._live[stream.name] = _Live(target, {OWN_INSTANCE: 1})

    async def _replay(self, stream: Stream, after: int, target: int) -> None:
        streams = self.service.streams
        hub = self.service.hub
        start = streams.vclock_at(after)
        reader = hub.reader(start, step_bytes=SYNAPSE_STEP_BYTES)
        try:
            if not self.service.log.inner.knows_settled(start):
                await reader.skip_in_background()
            while (window := reader.take()) is not None:
                if window.end.signature <= after:
                    await asyncio.sleep(0)
                    continue
                is_cut = window.start.signature < after or window.end.signature > target
                make = streams.units if is_cut else streams.deliveries
                units: Iterable[Delivery] = make(window.start, window.blocks, stream)
                for unit in units:
                    if after < unit.signature <= target and not self._send_unit(unit):
                        return
                end = window.end.signature
                del window, units
                await self._drained(reader)
                if not self.link.is_open or end >= target:
                    return
        except PositionUnavailable as error:
            self._refuse(f"token too old: {error.message}")
        finally:
            reader.close()

    async def _send_state(self, stream: Stream) -> int:
        """Everything that is in a space, as one unit. Returns its token.

        It is read page by page; what changes meanwhile comes again after it.
        """
        log, streams = self.service.log, self.service.streams
        token = log.applied.signature
        key: bytes | None = None
        held: str | None = None
        while True:
            with log.read_view() as view:
                texts, key = streams.state(view, stream, key)
            for text in texts:
                try:
                    streams.row_line(stream, token, text)
                except LimitExceeded:
                    if not self.service.options.skip_long_rows:
                        self._refuse(f"row too long: {stream.name} {token}")
                        return token
                    continue
                if held is not None:
                    self._send(streams.row_line(stream, None, held))
                held = text
            await self._drained()
            if key is None or not self.link.is_open:
                break
        if held is not None:
            self._send(streams.row_line(stream, token, held))
        return token
