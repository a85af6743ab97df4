"""Which rows of an upstream are new, which belong together, which were missed. No I/O, no clock.

A *unit* is the rows of one token: `batch` rows and the numbered row that ends them. It is stored
whole, as one transaction, with the cursor that it moves.

Per (stream, instance) a `Cursor` is kept: `last`, the token of the last unit; `resume`, the token
to ask from; `epoch`, how often the tokens began anew, from 1.
Per connection each is in one of these places:

==========  =======================================================================================
place       rows that arrive
==========  =======================================================================================
UNSEEN      are dropped: the POSITION that has to come tells whether something is missed
LIVE        are stored
WANTED      (D1) as ASKED; our REPLICATE waits for its turn
ASKED       (D1) are collected, by token, until the POSITION that ends the catch-up
FETCHING    (D2 on) wait until what was missed is fetched over HTTP
==========  =======================================================================================

POSITION in D1, where one instance, `master`, writes everything:

* no cursor yet: from now on the cursor is there; or, with `start_all`, ask from 0;
* below `last`: behind (see below);
* equal to `last` and `resume`: nothing was missed. Otherwise, since rows with the token `last` may
  still have followed it: ask from `resume`;
* in answer to our REPLICATE: what was collected is stored in ascending order of tokens, then both
  values become the position. Rows of a catch-up come with their number each, `batch` is not used,
  not always in order, and only POSITION ends them; if the connection is lost before, the cursor has
  not moved. A row that comes twice for one token in one catch-up is taken once: what arrives live
  before the catch-up begins is repeated by it.

A unit that arrives live with a greater token: `resume` becomes `last`, `last` the token. With an
equal token its rows are added to that unit; with a lower one it replaces what is stored there.
A catch-up that the server refuses twice in a row from the same token (a row that is too long, too
many rows) is given up: a gap is recorded and the stream goes on at its position.

POSITION from D2 on (`previous` is `token` in D2): unfinished units of the instance are dropped.
previous ≤ last ≤ token: nothing was missed. Below `last`: behind. Else (last, token] is fetched,
page by page, and what arrives meanwhile waits. Units with a token not above `last` are dropped.

Behind: the tokens began anew, as those of streams in memory do at each restart of the upstream,
those of 1.12 on SQLite too (account_data, tag_account_data, public_rooms, observed), and the last
tokens of a counter that two streams share (1.66.0: account_data, observed); or it is a server that
was restored, or another one of the same name. A gap is recorded, the next epoch begins, and what
there is is asked for from 0, since it cannot be told which rows are new; from D2 on, where a server
sets no bound, only up to `limits.SYNAPSE_ANEW_TOKENS`: above, the stream goes on at its position.

A row that cannot be stored is left out of its unit, and a gap at its token tells so. So is one that
the upstream cannot be made to give: a gap, and the stream goes on.

Source: Synapse 1.12.4, 1.21.2, 1.66.0 and 1.163.2, observed and read; the treatment of gaps, of
epochs and of streams that went back is ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import (
    SYNAPSE_ANEW_TOKENS,
    SYNAPSE_NAME_BYTES,
    SYNAPSE_PENDING_BYTES,
    SYNAPSE_STREAMS,
)
from logweir.replication.synapse.wire.codec import Dialect
from logweir.replication.synapse.wire.rows import Batch
from logweir.replication.synapse.wire.units import (
    ROW_BYTES,
    RUN_UNITS,
    Ask,
    Change,
    Cursor,
    Fetch,
    Flow,
    Gap,
    Moved,
    Place,
    Unit,
    Units,
)

REFUSALS_MAX: Final = 2
"""Refused catch-ups in a row after which a stream goes on with a gap."""


class Tracker:
    """All streams of one upstream, over as many connections as it takes.

    `cursors`: what is stored; `start_all`: a stream that is new here is taken from its beginning,
    not from now on; `takes`: whether a stream is followed at all; `limit_bytes`: of rows held back.
    """

    def __init__(
        self,
        cursors: Mapping[tuple[str, str], Cursor],
        *,
        start_all: bool = False,
        takes: Callable[[str], bool] = lambda stream: True,
        limit_bytes: int = SYNAPSE_PENDING_BYTES,
    ) -> None:
        self._start_all = start_all
        self._limit_bytes = limit_bytes
        self._takes = takes
        self._flows = {key: Flow(*key, cursor) for key, cursor in cursors.items() if takes(key[0])}
        self._dialect = Dialect.D1
        self._changes: list[Change] = []
        self._asks: deque[Flow] = deque()
        self._asked: Flow | None = None
        self._refusals: dict[str, tuple[int, int]] = {}
        self.held_bytes = 0
        """Of rows that are held back: unfinished units, a catch-up, what waits for a fetch."""

    # --- connections ------------------------------------------------------------------------------

    def connected(self, dialect: Dialect) -> None:
        """A connection begins: nothing is known about any stream yet."""
        self._dialect = dialect
        self._changes = []
        self._asks.clear()
        self._asked = None
        self.held_bytes = 0
        for key, flow in self._flows.items():
            cursor = flow.cursor
            if dialect is not Dialect.D1 and cursor is not None and cursor.resume < cursor.last:
                cursor = replace(cursor, last=cursor.resume)
            self._flows[key] = Flow(*key, cursor)

    def refused(self) -> None:
        """The connection ended with an error of the server while a catch-up was on its way."""
        flow = self._asked
        if flow is None or flow.cursor is None:
            return
        token, times = self._refusals.get(flow.stream, (0, 0))
        same = token == flow.cursor.resume
        self._refusals[flow.stream] = (flow.cursor.resume, times + 1 if same else 1)

    @property
    def cursors(self) -> dict[tuple[str, str], Cursor]:
        """Every cursor, as of the changes that were given out."""
        return {key: flow.cursor for key, flow in self._flows.items() if flow.cursor is not None}

    @property
    def behind(self) -> dict[tuple[str, str], int]:
        """How many tokens are still missing of what is fetched."""
        return {
            key: flow.target - flow.cursor.last
            for key, flow in self._flows.items()
            if flow.place is Place.FETCHING and flow.cursor is not None
        }

    @property
    def is_settled(self) -> bool:
        """Whether a POSITION came and nothing that was missed is still on its way."""
        unsettled = (Place.WANTED, Place.ASKED, Place.FETCHING)
        places = [flow.place for flow in self._flows.values()]
        return Place.LIVE in places and not any(place in unsettled for place in places)

    @property
    def is_empty(self) -> bool:
        """Whether no stream is known, neither here nor by a POSITION."""
        return not self._flows

    @property
    def has_none(self) -> bool:
        """Whether no stream is followed, or about to be."""
        return all(flow.place is Place.UNSEEN for flow in self._flows.values())

    @property
    def is_fetching(self) -> bool:
        """Whether rows wait for a fetch."""
        return any(flow.place is Place.FETCHING for flow in self._flows.values())

    @property
    def unseen(self) -> list[tuple[str, str]]:
        """Streams that are known here and had no POSITION on this connection."""
        return [key for key, flow in self._flows.items() if flow.place is Place.UNSEEN]

    def take(self) -> Sequence[Change]:
        """What is to be done, in order."""
        changes, self._changes = self._changes, []
        for change in changes:
            if type(change) is Unit:
                self._flows[change.stream, change.instance].open_unit = None
        return changes

    # --- what arrives -----------------------------------------------------------------------------

    def rdata(self, stream: str, instance: str, token: int | None, row: bytes) -> None:
        """A row. Raises `LimitExceeded` if too much would be held back."""
        flow = self._flows.get((stream, instance))
        if flow is None or flow.place is Place.UNSEEN:
            return
        place = flow.place
        if place is Place.FETCHING:
            self._hold(row)
            flow.queue.append(("row", token, 0, row))
        elif token is None:
            self._hold(row)
            flow.pending.append(row)
        elif place is not Place.LIVE:
            self._collect(flow, token, [row])
        elif flow.pending or flow.torn:
            self._end_unit(flow, token, [row])
        else:
            self._unit(flow, token, [row])

    def unreadable(self, stream: str, instance: str, token: int | None, reason: str) -> None:
        """A row that cannot be stored: its unit is stored without it, and a gap tells so."""
        flow = self._flows.get((stream, instance))
        if flow is None or flow.place is Place.UNSEEN:
            return
        if flow.place is Place.FETCHING:
            self._hold(b"")
            flow.queue.append(("torn", token, 0, reason.encode()))
        else:
            flow.torn = reason
            if token is None:
                return
            if flow.place is Place.LIVE:
                self._end_unit(flow, token, [])
            else:
                self._collect(flow, token, [])

    def batch(self, batch: Batch) -> None:
        """Rows of many flows. There is no order between flows, so each gets its own at once.

        Raises `LimitExceeded` as `rdata`.
        """
        for number, stream, instance in batch.flows():
            flow = self._flows.get((stream, instance))
            if flow is None or not self._take_run(flow, batch, number):
                for token, row in batch.each(number):
                    self.rdata(stream, instance, token, row)

    def _take_run(self, flow: Flow, batch: Batch, number: int) -> bool:
        """Take rows that are nothing but new units, if they are worth it."""
        cursor = flow.cursor
        if flow.place is not Place.LIVE or flow.pending or flow.torn or cursor is None:
            return False
        lags = self._dialect is Dialect.D1
        run = batch.run(number, cursor.last, joins=lags)
        if run is None or len(run) < RUN_UNITS:
            return False
        resume = run.tokens[-2 if lags else -1]
        flow.cursor = Cursor(run.tokens[-1], resume, cursor.epoch)
        flow.open_unit = None
        self._changes.append(
            Units(flow.stream, flow.instance, cursor.epoch, run, cursor.last, lags, flow.cursor)
        )
        for row in run.pending:
            self._hold(row)
            flow.pending.append(row)
        return True

    def position(self, stream: str, instance: str, previous: int, token: int) -> None:
        """A POSITION. Raises `LimitExceeded` for a flood of invented names, `DecodeError` if D1
        cannot be meant."""
        flow = self._flows.get((stream, instance))
        if flow is None:
            size = max(len(stream.encode()), len(instance.encode()))
            if not self._takes(stream) or size > SYNAPSE_NAME_BYTES:
                return
            if len(self._flows) >= SYNAPSE_STREAMS:
                raise LimitExceeded("SYNAPSE_STREAMS", SYNAPSE_STREAMS, len(self._flows) + 1)
            flow = self._flows[stream, instance] = Flow(stream, instance, None)
        if self._dialect is Dialect.D1:
            self._position_d1(flow, token)
        elif flow.place is Place.FETCHING:
            flow.queue.append(("position", previous, token, b""))
        else:
            self._position(flow, previous, token)

    def fetched(
        self,
        stream: str,
        instance: str,
        rows: Iterable[tuple[int, bytes]],
        upto: int,
        *,
        limited: bool,
        lost: Iterable[tuple[int, str]] = (),
    ) -> None:
        """The answer to a `Fetch`. `upto`: where it ends; `limited`: it is not all; `lost`: tokens
        of rows that cannot be stored, and why."""
        flow = self._flows[stream, instance]
        cursor = flow.cursor
        if flow.place is not Place.FETCHING or cursor is None:
            return
        if limited and upto <= cursor.last:
            reason = f"the rows after {cursor.last} were answered up to {upto} only"
            self.not_fetched(stream, instance, reason)
            return
        units: dict[int, list[bytes]] = {}
        for token, row in rows:
            if token <= flow.target:
                units.setdefault(token, []).append(row)
        for token in sorted(units):
            self._unit(flow, token, units[token])
        for token, reason in lost:
            if token <= flow.target:
                self._lacks(flow, token, reason)
        end = min(upto, flow.target) if limited else flow.target
        self._move(flow, end)
        if end < flow.target:
            self._changes.append(Fetch(stream, instance, end, flow.target))
        else:
            self._go_live(flow)

    def not_fetched(self, stream: str, instance: str, reason: str) -> None:
        """What a `Fetch` asked for cannot be had: go on with a gap."""
        flow = self._flows[stream, instance]
        cursor = flow.cursor
        if flow.place is not Place.FETCHING or cursor is None:
            return
        self._changes.append(Gap(stream, instance, cursor.last, flow.target, reason))
        self._move(flow, flow.target)
        self._go_live(flow)

    # --- inside: both -----------------------------------------------------------------------------

    def _hold(self, row: bytes) -> None:
        self.held_bytes += len(row) + ROW_BYTES
        if self.held_bytes > 2 * self._limit_bytes:
            raise LimitExceeded("SYNAPSE_PENDING_BYTES", self._limit_bytes, self.held_bytes)

    def _release(self, rows: Iterable[bytes]) -> None:
        for row in rows:
            self.held_bytes -= len(row) + ROW_BYTES

    def _lacks(self, flow: Flow, token: int, reason: str) -> None:
        self._changes.append(Gap(flow.stream, flow.instance, token - 1, token, reason))

    def _drop_unit(self, flow: Flow) -> None:
        """Forget the unit that is not finished."""
        self._release(flow.pending)
        flow.pending, flow.torn = [], ""

    def _end_unit(self, flow: Flow, token: int, rows: list[bytes]) -> None:
        """The unit that was begun ends with `rows`; it may lack some, or all."""
        assert flow.cursor is not None
        rows, torn = flow.pending + rows, flow.torn
        self._drop_unit(flow)
        if torn and (self._dialect is Dialect.D1 or token > flow.cursor.last):
            self._lacks(flow, token, torn)
        self._unit(flow, token, rows)

    def _unit(self, flow: Flow, token: int, rows: list[bytes]) -> None:
        cursor = flow.cursor
        assert cursor is not None
        made = Unit(flow.stream, flow.instance, cursor.epoch, token, rows)
        if token > cursor.last:
            resume = cursor.last if self._dialect is Dialect.D1 else token
            made.cursor = flow.cursor = Cursor(token, resume, cursor.epoch)
            if not rows:  # none of it can be stored
                flow.open_unit = None
                self._changes.append(Moved(flow.stream, flow.instance, flow.cursor))
                return
        elif not rows or self._dialect is not Dialect.D1:
            return
        elif token == cursor.last:
            if flow.open_unit is not None and flow.open_unit.token == token:
                flow.open_unit.rows += rows
                return
            made.more = True
        flow.open_unit = made
        self._changes.append(made)

    def _move(self, flow: Flow, token: int) -> None:
        cursor = flow.cursor
        assert cursor is not None
        if cursor.last != token or cursor.resume != token:
            self._set(flow, token, cursor.epoch)

    def _set(self, flow: Flow, token: int, epoch: int = 1) -> Cursor:
        """The cursor is there now."""
        flow.cursor = Cursor(token, token, epoch)
        self._changes.append(Moved(flow.stream, flow.instance, flow.cursor))
        return flow.cursor

    def _behind(self, flow: Flow, token: int) -> Cursor:
        """The tokens began anew: the cursor does so too, in the next epoch."""
        assert flow.cursor is not None
        self._drop_unit(flow)
        last, epoch = flow.cursor.last, flow.cursor.epoch + 1
        reason = f"reset: the upstream's tokens went back from {last} to {token}"
        start = 0
        if self._dialect is not Dialect.D1 and token > SYNAPSE_ANEW_TOKENS:
            start = token
            reason += f"; rows up to {token} that are new are missing"
        self._changes.append(Gap(flow.stream, flow.instance, last, token, reason))
        return self._set(flow, start, epoch)

    # --- inside: D1 -------------------------------------------------------------------------------

    def _position_d1(self, flow: Flow, token: int) -> None:
        cursor = flow.cursor
        if flow.place is Place.WANTED:
            return  # what we are about to ask for ends with another one
        if cursor is None:
            cursor = self._set(flow, 0 if self._start_all else token)
        if flow.place is Place.ASKED:
            self._asked = None
        if token < cursor.last:
            self._drop_collected(flow)
            if flow.began_anew:
                raise DecodeError(f"POSITION of {flow.stream} goes back again: {token}")
            flow.began_anew = True
            self._behind(flow, token)
            self._want(flow, token)
        elif flow.place is Place.ASKED:
            self._end_catch_up(flow, token)
        elif cursor.last == cursor.resume == token:
            flow.place = Place.LIVE
        else:
            self._want(flow, token)
        self._ask_next()

    def _want(self, flow: Flow, token: int) -> None:
        """Ask for what was missed up to `token`, unless it was refused too often."""
        cursor = flow.cursor
        assert cursor is not None
        refused_from, times = self._refusals.get(flow.stream, (0, 0))
        if times >= REFUSALS_MAX and refused_from == cursor.resume:
            del self._refusals[flow.stream]
            reason = f"the upstream refused {times} times to send it"
            self._changes.append(Gap(flow.stream, flow.instance, cursor.resume, token, reason))
            self._move(flow, token)
            flow.place = Place.LIVE
        elif token == cursor.resume:
            flow.place = Place.LIVE
        else:
            flow.place = Place.WANTED
            self._asks.append(flow)

    def _ask_next(self) -> None:
        if self._asked is None and self._asks:
            flow = self._asked = self._asks.popleft()
            assert flow.cursor is not None
            flow.place = Place.ASKED
            self._changes.append(Ask(flow.stream, flow.cursor.resume))

    def _collect(self, flow: Flow, token: int, rows: list[bytes]) -> None:
        if flow.torn:
            self._lacks(flow, token, flow.torn)
        for row in rows:
            self._hold(row)
        known = flow.collected.setdefault(token, {})
        for one in (*flow.pending, *rows):
            if one in known:
                self._release((one,))
            known[one] = None
        flow.pending, flow.torn = [], ""
        if self.held_bytes > self._limit_bytes:
            self._write_collected(flow)

    def _write_collected(self, flow: Flow) -> None:
        """Store what was collected; the cursor stays."""
        cursor = flow.cursor
        assert cursor is not None
        for token in sorted(flow.collected):
            rows = list(flow.collected[token])
            if not rows:
                continue
            self._release(rows)
            more = token in flow.written
            self._changes.append(
                Unit(flow.stream, flow.instance, cursor.epoch, token, rows, more=more)
            )
        flow.written.update(flow.collected)
        flow.collected = {}

    def _drop_collected(self, flow: Flow) -> None:
        for rows in flow.collected.values():
            self._release(rows)
        flow.collected = {}
        flow.written = set()

    def _end_catch_up(self, flow: Flow, token: int) -> None:
        self._refusals.pop(flow.stream, None)
        later = {one: flow.collected.pop(one) for one in sorted(flow.collected) if one > token}
        self._write_collected(flow)
        flow.written = set()
        self._move(flow, token)
        flow.place = Place.LIVE
        for number, rows in later.items():
            self._release(rows)
            self._unit(flow, number, list(rows))

    # --- inside: D2 on ----------------------------------------------------------------------------

    def _position(self, flow: Flow, previous: int, token: int) -> None:
        self._drop_unit(flow)
        cursor = flow.cursor
        if cursor is None:
            cursor = self._set(flow, 0 if self._start_all else token)
        if token < cursor.last:
            cursor = self._behind(flow, token)
            previous = token
        if previous <= cursor.last <= token:
            self._move(flow, token)
            flow.place = Place.LIVE
            return
        flow.place = Place.FETCHING
        flow.target = token
        self._changes.append(Fetch(flow.stream, flow.instance, cursor.last, token))

    def _go_live(self, flow: Flow) -> None:
        """What waited is taken, until it needs a fetch itself."""
        flow.place = Place.LIVE
        queue = flow.queue
        while queue and flow.place is Place.LIVE:
            kind, first, second, row = queue.popleft()
            if kind == "row":
                self._release((row,))
                self.rdata(flow.stream, flow.instance, first, row)
            elif kind == "torn":
                self._release((b"",))
                self.unreadable(flow.stream, flow.instance, first, row.decode())
            else:
                assert first is not None
                self._position(flow, first, second)
