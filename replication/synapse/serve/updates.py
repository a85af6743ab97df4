"""Answering requests for missed rows over HTTP, as followers of dialect D3 want it.

Requests and answers have the form that `follow.catchup` says; equal tokens are given whole.

==========================================  ========================================================
request                                     answer
==========================================  ========================================================
a range that ends before it begins          no rows
a range beyond the present                  no rows, its end told back
`&instance_name=<writer>`                   that writer's rows; without it those of the main
                                            process, or of the only writer. The answer names the
                                            writer that was asked for, if its rows are here
a space, `from_token=0`, rows are gone      all that is in it as `replace` rows of `upto_token`
a space, another token whose rows are gone  400 `M_UNKNOWN`, token too old
a stream that is not known                  400 `M_UNKNOWN`
a stream whose space may not be read        403 `M_FORBIDDEN`
arguments that are no integers              400 `M_INVALID_PARAM`
a wrong or missing secret                   401 `M_MISSING_TOKEN`
another path; another method                404; 405, `M_UNRECOGNIZED`
a request that cannot be read, or too long  400 or 431, close
==========================================  ========================================================

A page has about `limits.SYNAPSE_PAGE_ROWS` rows. For what is HTTP in it see
`logweir.replication.httpsession`.

Source: Synapse 1.66.0 and its workers, observed; what becomes of spaces is ours.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from logweir.errors import PositionUnavailable
from logweir.limits import (
    SYNAPSE_MESSAGE_BYTES,
    SYNAPSE_PAGE_ROWS,
    SYNAPSE_STEP_BYTES,
)
from logweir.replication.httpconversation import Answer, HttpConversation
from logweir.replication.httpsession import HttpSession, Request, error_body
from logweir.replication.link import Link
from logweir.replication.listener import Service
from logweir.replication.stream.hub import Hub
from logweir.replication.synapse.push import MASTER, Delivery, Stream, Streams
from logweir.replication.synapse.serve.shown import Shown, ShownTo
from logweir.replication.turns import Turn
from logweir.store import Log

_PREFIX: Final = ("_synapse", "replication", "get_repl_stream_updates")
_READ_BYTES: Final = 8 * 1024 * 1024
"""Of the log in one request."""

Failed = Callable[[Link, str], bool]
Answered = Callable[[str, int, int], None]

_Found = tuple[list[bytes], int, bool]
"""Rows with their tokens as JSON, one or more together, where they end, and whether there are more.
"""


class UpdatesService(Service):
    """The HTTP address of a D3 listener, for a `Listener`. `shown`: what the peer of a connection
    is shown, everything unless given; `secret`: "" for none; `failed`: is told of a wrong one, see
    `Logins.failed`; `answered`: of each request, see `Metrics.answered`."""

    def __init__(
        self,
        log: Log,
        hub: Hub,
        streams: Streams,
        shown: ShownTo | None = None,
        *,
        secret: str = "",
        failed: Failed = lambda link, user: False,
        answered: Answered = lambda scheme, done, failed: None,
    ) -> None:
        self.log = log
        self.hub = hub
        self.streams = streams
        self.shown: ShownTo = shown or (lambda link: Shown(streams))
        self._secret = secret.encode()
        self._failed = failed
        self._answered = answered

    def begin(self, link: Link) -> HttpConversation:
        shown = self.shown(link)

        async def respond(request: Request) -> Answer:
            found = Answer(*await self.respond(request, shown))
            is_done = found.status < 400
            self._answered(link.scheme, int(is_done), int(not is_done))
            is_wrong = found.status == 401 and "authorization" in request.headers
            if is_wrong and self._failed(link, ""):
                loop = asyncio.get_running_loop()
                loop.call_soon(link.close, "too many failed logins from there")  # once answered
            return found

        return HttpConversation(link, respond)

    def refusal(self, reason: str) -> bytes:
        session = HttpSession(0.0)
        session.answer(400, error_body("M_LIMIT_EXCEEDED", reason))
        return session.data_to_send()

    # --- requests ---------------------------------------------------------------------------------

    async def respond(self, request: Request, shown: Shown) -> tuple[int, bytes]:
        """Status and body of the answer to a client that is shown these streams."""
        parts = urllib.parse.urlsplit(request.target)
        path = tuple(map(urllib.parse.unquote, parts.path.split("/")))
        if len(path) != 6 or path[1:4] != _PREFIX:
            return 404, error_body("M_UNRECOGNIZED", "Unrecognized request")
        if request.method != "GET":
            return 405, error_body("M_UNRECOGNIZED", "only GET is answered here")
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
        if self._secret and not hmac.compare_digest(given, self._secret):
            return 401, error_body("M_MISSING_TOKEN", "the secret is missing or wrong")
        query = dict(urllib.parse.parse_qsl(parts.query))
        try:
            after, upto = _integer(query["from_token"]), _integer(query["upto_token"])
        except (KeyError, ValueError):
            text = "from_token and upto_token have to be integers of 64 bits"
            return 400, error_body("M_INVALID_PARAM", text)
        stream = shown.find(path[4])
        if stream is None and (refusal := shown.refusal(path[4])):
            return 403, error_body("M_FORBIDDEN", refusal)
        if stream is None:
            return 400, error_body("M_UNKNOWN", "Unknown stream")
        if upto <= after:
            return 200, _page([], upto, False)
        writer = query.get("instance_name", "")
        with self.log.read_view() as view:
            heads = {who: epoch for who, epoch, _ in self.streams.heads(view, stream)}
        try:
            if stream.relayed:
                found = self._relayed(stream, writer, heads, after, upto)
            else:
                found = await self._space(stream, after, upto)
            return 200, _page(*found, writer=writer if writer in heads else "")
        except PositionUnavailable as error:
            return 400, error_body("M_UNKNOWN", f"token too old: {error.message}")

    def _relayed(
        self, stream: Stream, writer: str, heads: Mapping[str, int], after: int, upto: int
    ) -> _Found:
        if not writer:
            writer = next(iter(heads)) if len(heads) == 1 else MASTER
        with self.log.read_view() as view:
            units, is_end = self.streams.stored_units(
                view, stream, writer, heads.get(writer, 1), after, SYNAPSE_PAGE_ROWS
            )
        rows = [_rows(token, texts) for token, texts in units if token <= upto]
        reached = units[-1][0] if units else upto
        is_all = is_end or reached >= upto
        return rows, upto if is_all else reached, not is_all

    async def _space(self, stream: Stream, after: int, upto: int) -> _Found:
        """From the log; after each step the others have their turn."""
        oldest = self.log.oldest_position.signature
        present = self.log.applied.signature
        if after >= present:
            return [], upto, False
        if after < oldest:
            if after > 0:
                raise PositionUnavailable(after, oldest, present)
            return await self._state(stream, upto)
        rows: list[bytes] = []
        count = read_bytes = 0
        start = self.streams.vclock_at(max(after, 0))
        reader = self.hub.reader(start, step_bytes=SYNAPSE_STEP_BYTES)
        try:
            if not self.log.inner.knows_settled(start):
                await reader.skip_in_background()
            while (window := reader.take()) is not None:
                turn = Turn()
                for unit in self.streams.units(window.start, window.blocks, stream):
                    if after < unit.signature <= upto:
                        texts = _texts(unit)
                        rows.append(_rows(unit.token, texts))
                        count += len(texts)
                    if turn.is_over(0):
                        await asyncio.sleep(0)
                        turn = Turn()
                end = window.end.signature
                read_bytes += window.size_bytes
                enough = count >= SYNAPSE_PAGE_ROWS or read_bytes >= _READ_BYTES
                if end >= upto or (enough and end > after):
                    return rows, min(end, upto), end < upto
                await asyncio.sleep(0)
        finally:
            reader.close()
        return rows, upto, False

    async def _state(self, stream: Stream, upto: int) -> _Found:
        """All that is in a space; after each part the others have their turn. What changes
        meanwhile comes again after it."""
        rows: list[bytes] = []
        key: bytes | None = None
        size = 0
        while True:
            with self.log.read_view() as view:
                texts, key = self.streams.state(view, stream, key)
            if key is None:
                return rows, upto, False
            rows.append(_rows(upto, texts))
            size += len(rows[-1])
            if size > SYNAPSE_MESSAGE_BYTES:
                oldest = self.log.oldest_position.signature
                raise PositionUnavailable(
                    0, oldest, self.log.applied.signature, hint="the space is too large"
                )
            await asyncio.sleep(0)


def _rows(token: int, texts: Sequence[str]) -> bytes:
    """Rows of one token, as they stand in an answer."""
    return ",".join([f"[{token},{text}]" for text in texts]).encode()


def _texts(unit: Delivery) -> list[str]:
    """The rows of a unit as JSON."""
    return [line.split(" ", 4)[4] for line in unit.lines.decode().split("\n")[:-1]]


def _integer(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise ValueError(text)
    return value


def _page(rows: Sequence[bytes], upto: int, limited: bool, *, writer: str = "") -> bytes:
    told = "true" if limited else "false"
    whose = f',"instance_name":{json.dumps(writer)}' if writer else ""
    end = f'],"upto_token":{upto},"limited":{told}{whose}}}'.encode()
    return b"".join((b'{"updates":[', b",".join(rows), end))
