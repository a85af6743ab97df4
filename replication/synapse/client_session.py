"""A follower's side of one Synapse connection. A session (`logweir.replication.session`).

===========  ======================================================  ==============================
state        what arrives                                            what happens
===========  ======================================================  ==============================
GREETING     SERVER                                                  event `Greeted`; a name other
                                                                     than the one configured:
                                                                     `ERROR Wrong remote`, close
GREETING     nothing for `limits.SYNAPSE_TIMEOUT_SECONDS`            close
SURVEYING    the first POSITION, which tells the dialect             state FOLLOWING
FOLLOWING    RDATA, POSITION                                         `cursors.Tracker` decides;
                                                                     events are its changes
any          ERROR                                                   remembered; the peer closes
any          blank line, word that is not known                      ignored
any          a row that is no JSON, or that cannot be stored         a gap
any          a follower's command, bad arguments                     `ERROR …`, close
any          a line that is too long                                 `ERROR Line length exceeded`,
                                                                     close
any          a line that is not UTF-8                                close
any          nothing for `limits.SYNAPSE_SILENCE_SECONDS`            `ERROR ping timeout`, close
===========  ======================================================  ==============================

NAME and PING go out at once. `begin` (after `Greeted`) sends `REPLICATE ALL NOW`: D1 answers with a
POSITION for every stream that it has and sends all of them from then on, D2 and D3 ignore the
arguments and answer likewise, so that one line finds out dialect, streams and positions. Whatever
is then missed is asked for stream by stream in D1, one at a time, so that an ERROR can be told to
belong to one; over HTTP in the others. Nothing else is ever sent: USER_SYNC, FEDERATION_ACK or
RDATA of ours would change what the server does. PING goes out after `limits.SYNAPSE_PING_SECONDS`
without another line.

Redis has no greeting, no PING and no ERROR: `RedisSession` reads single commands, ignores what it
cannot read, and the owner publishes `REPLICATE ` once the subscription is confirmed.

Source: Synapse 1.12.4, 1.21.2, 1.66.0, 1.163.2, observed: REPLICATE with arguments from D2 on, ALL
with NOW in D1, every row of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from logweir.errors import ConfigError, DecodeError, LimitExceeded
from logweir.limits import (
    SYNAPSE_LINE_BYTES,
    SYNAPSE_MESSAGE_BYTES,
    SYNAPSE_PING_SECONDS,
    SYNAPSE_ROW_BYTES,
    SYNAPSE_SILENCE_SECONDS,
    SYNAPSE_TIMEOUT_SECONDS,
)
from logweir.replication.session import BaseSession
from logweir.replication.synapse.follow.catchup import Page, Refused
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.synapse.wire.codec import (
    ALL,
    SERVER_WORDS,
    Command,
    Dialect,
    NotText,
    Plain,
    Position,
    Rdata,
    Replicate,
    encode,
    encode_row,
    parse,
    parse_rdata,
    text_of,
)
from logweir.replication.synapse.wire.rows import Reader
from logweir.replication.synapse.wire.units import Ask, Change, Fetch
from logweir.replication.urls import Url

_ERROR_CHARACTERS: Final = 300
_GROWTH: Final = 3
"""MsgPack of a JSON text is shorter than this many times the text."""
_DIALECTS: Final = {2: Dialect.D1, 3: Dialect.D2, 4: Dialect.D3}
_PASSING: Final = ("server shutting down", "ping timeout", "Failed to keep up")
"""ERROR texts that say nothing about a catch-up that is on its way."""


class LineTooLong(DecodeError):
    """A line that is over the limit, finished or not."""


@dataclass(frozen=True, slots=True)
class Greeted:
    """The server has said its name; it waits for `ClientSession.begin`."""

    server: str


Event = Greeted | Change


def dialect_of(url: Url) -> Dialect | None:
    """The dialect that an address names, None to find out. Raises `ConfigError`."""
    wanted = url.option("dialect") or "auto"
    known = {"auto": None, **{str(one): one for one in Dialect if one is not Dialect.D4}}
    if wanted not in known:
        raise ConfigError("dialect", f"{wanted!r} is not known", hint="auto, D1, D2 or D3")
    return known[wanted]


def error_line(text: str) -> bytes:
    """An ERROR line of one readable text."""
    clean = "".join(letter if letter >= " " else "?" for letter in text)
    return encode(Plain("ERROR", clean[:_ERROR_CHARACTERS]), Dialect.D3)


def take_page(tracker: Tracker, wanted: Fetch, page: Page | Refused) -> Sequence[Change]:
    """Tell the tracker what a `Fetch` was answered; returns what is to be done."""
    key = (wanted.stream, wanted.instance)
    if isinstance(page, Refused):
        tracker.not_fetched(*key, page.reason)
    else:
        tracker.fetched(*key, page.rows, page.upto, limited=page.limited, lost=page.lost)
    return tracker.take()


def _take_row(tracker: Tracker, found: Rdata) -> None:
    """One row by the ordinary way. If it cannot be stored the tracker is told."""
    try:
        row = encode_row(found.row)
    except DecodeError as error:
        tracker.unreadable(found.stream, found.instance, found.token, error.reason)
    else:
        tracker.rdata(found.stream, found.instance, found.token, row)


class ClientSession(BaseSession[Event]):
    """See the module's text.

    `dialect`: None to find out; `server_name`: the only one that is taken, "" for any; `name`: what
    we call ourselves; `now`: the clock of this session; `milliseconds`: what PING says.
    """

    def __init__(
        self,
        now: float,
        *,
        dialect: Dialect | None = None,
        server_name: str = "",
        name: str = "logweir",
        milliseconds: Callable[[], int],
    ) -> None:
        super().__init__()
        self.wrong_server = False
        self.dialect = dialect
        self.server = ""
        self.last_error = ""
        self._is_read = True
        self._wanted_server = server_name
        self._milliseconds = milliseconds
        self._rest = b""
        self._reader: Reader | None = None
        self._tracker: Tracker | None = None
        self._began = self._heard = self._sent = now
        self._put(Plain("NAME", name), now)
        self._put(Plain("PING", str(milliseconds())), now)

    # --- the contract -----------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> Sequence[Event]:
        if self.close_reason:
            return ()
        data = self._rest + data if self._rest else data
        events: list[Event] = []
        try:
            at = self._read(data, now, events)
        except NotText:
            self.end("the server sent a line that is not UTF-8")
        except LineTooLong:
            self._refuse("Line length exceeded")
        except DecodeError as error:
            self._refuse(f"failed to parse line: {error.reason}")
        except LimitExceeded as error:
            self._refuse(f"failed to parse line: {error.message}")
        else:
            self._rest = data[at:]
        if self._tracker is not None:
            for change in self._tracker.take():
                if type(change) is Ask:
                    self._put(Replicate(change.stream, change.token), now)
                else:
                    events.append(change)
        return events

    def receive_eof(self, now: float) -> Sequence[Event]:
        told = f" after the error {self.last_error!r}" if self.last_error else ""
        self.end(f"the server closed the connection{told}")
        return ()

    def next_deadline(self) -> float | None:
        if not self._is_read:
            return self._sent + SYNAPSE_PING_SECONDS
        silent = self._heard + SYNAPSE_SILENCE_SECONDS
        if not self.server:
            silent = min(silent, self._began + SYNAPSE_TIMEOUT_SECONDS)
        return min(silent, self._sent + SYNAPSE_PING_SECONDS)

    def deadline_passed(self, now: float) -> Sequence[Event]:
        if self.close_reason:
            return ()
        if not self._is_read:
            self._heard = now
        if now >= self._heard + SYNAPSE_SILENCE_SECONDS:
            self._refuse("ping timeout")
        elif not self.server and now >= self._began + SYNAPSE_TIMEOUT_SECONDS:
            self._refuse("no SERVER line came")
        elif now >= self._sent + SYNAPSE_PING_SECONDS:
            self._put(Plain("PING", str(self._milliseconds())), now)
        return ()

    # --- what the owner calls ---------------------------------------------------------------------

    def begin(self, tracker: Tracker, now: float, streams: Sequence[str] = ()) -> None:
        """Follow, from the cursors of `tracker`. `streams`: only these, if D1 is spoken."""
        self._tracker = tracker
        if self.dialect is not None:
            self._speak(self.dialect, tracker)
        for stream in streams or (ALL,):
            self._put(Replicate(stream), now)

    def reading(self, is_read: bool, now: float) -> None:
        """The owner stops or goes on reading: what is not read is no silence of the server."""
        self._is_read = is_read
        self._heard = now

    def take_page(self, wanted: Fetch, page: Page | Refused) -> Sequence[Change]:
        """The answer to a `Fetch`; see `Tracker.fetched` and `Tracker.not_fetched`."""
        assert self._tracker is not None
        return take_page(self._tracker, wanted, page)

    def lost(self) -> None:
        """The connection is gone."""
        if self._tracker is not None and self.last_error:
            self._tracker.refused()

    # --- inside -----------------------------------------------------------------------------------

    def _speak(self, dialect: Dialect, tracker: Tracker) -> None:
        tracker.connected(dialect)
        self._reader = Reader(dialect, SYNAPSE_LINE_BYTES)

    def _put(self, command: Command, now: float) -> None:
        self._out.put(encode(command, Dialect.D1))
        self._sent = now

    def _refuse(self, text: str) -> None:
        if self.close_reason:
            return
        self._out.put(error_line(text))
        self.close_reason = f"we closed the connection: {text[:_ERROR_CHARACTERS]}"

    def _read(self, data: bytes, now: float, events: list[Event]) -> int:
        """Act on the lines of `data`. Returns where an unfinished one begins.

        Raises `DecodeError`, `LimitExceeded` for the first that is at fault.
        """
        at = 0
        while not self.close_reason:
            if self._reader is not None and self._tracker is not None:
                batch, at = self._reader.read(data, at)
                if batch is not None:
                    self._heard = now
                    self._tracker.batch(batch)
                    continue
            end = data.find(b"\n", at)
            if (len(data) if end < 0 else end) - at > SYNAPSE_LINE_BYTES:
                raise LineTooLong("the line is too long")
            if end < 0:
                break
            self._line(text_of(data[at:end]), events)
            self._heard = now
            at = end + 1
        return at

    def _line(self, text: str, events: list[Event]) -> None:
        if not text:
            return
        if not text.startswith("RDATA "):
            self._act(self._command(text), events)
        elif self.dialect is not None:
            found = parse_rdata(text[6:], self.dialect)
            if self._reader is not None:
                self._reader.learn(found.stream, found.instance)
            if self._tracker is not None:
                _take_row(self._tracker, found)

    def _command(self, text: str) -> Command:
        word, _, rest = text.partition(" ")
        if word == "POSITION" and self.dialect is None:
            if self._tracker is None:
                return Plain("POSITION")
            self.dialect = _DIALECTS.get(len(rest.split(" ")))
            if self.dialect is None:
                raise DecodeError(f"POSITION has a form that is not known: {rest[:60]!r}")
            self._speak(self.dialect, self._tracker)
        command = parse(text, self.dialect or Dialect.D3)
        if word not in SERVER_WORDS and not (isinstance(command, Plain) and not command.known):
            raise DecodeError(f"invalid command: {word}")
        return command

    def _act(self, command: Command, events: list[Event]) -> None:
        match command:
            case Position(stream, instance, previous, token):
                if self._tracker is not None:
                    self._tracker.position(stream, instance, previous, token)
            case Plain("SERVER", name):
                self._greeted(name, events)
            case Plain("ERROR", text):
                if not text.startswith(_PASSING):
                    self.last_error = text[:_ERROR_CHARACTERS]

    def _greeted(self, name: str, events: list[Event]) -> None:
        if self._wanted_server and name != self._wanted_server:
            self.wrong_server = True
            self._out.put(error_line("Wrong remote"))
            self.close_reason = f"it is {name!r}, not the server {self._wanted_server!r} we want"
        elif not self.server:
            self.server = name
            events.append(Greeted(name))


class RedisSession:
    """What is published for one server, read message by message. See the module's text."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self.dialect: Dialect | None = None
        self.unreadable = 0
        self._reader = Reader(Dialect.D3, SYNAPSE_ROW_BYTES // _GROWTH)
        tracker.connected(Dialect.D3)

    def receive(self, messages: Sequence[bytes]) -> Sequence[Change]:
        """Take messages in their order; returns what is to be done."""
        data = b"".join(
            [
                message.replace(b"\n", b"\r") + b"\n"  # both are white space, if allowed at all
                for message in messages
                if message.startswith((b"RDATA ", b"POSITION "))
                and len(message) <= SYNAPSE_MESSAGE_BYTES
            ]
        )
        at = 0
        while at < len(data):
            batch, at = self._reader.read(data, at)
            if batch is not None:
                self._tracker.batch(batch)
                continue
            end = data.index(b"\n", at)
            message, at = data[at:end], end + 1
            if message.startswith(b"RDATA "):
                self._row(message)
            else:
                self._position(message)
        return self._tracker.take()

    def _row(self, message: bytes) -> None:
        try:
            found = parse_rdata(text_of(message)[6:], Dialect.D3)
        except DecodeError:
            self.unreadable += 1
            return
        self._reader.learn(found.stream, found.instance)
        _take_row(self._tracker, found)

    def _position(self, message: bytes) -> None:
        try:
            text = text_of(message)
            words = len(text.split(" ")) - 1
            dialect = Dialect.D2 if words == 3 else Dialect.D3
            position = parse(text, dialect)
        except DecodeError:
            self.unreadable += 1
            return
        self.dialect = dialect
        assert isinstance(position, Position)
        self._tracker.position(
            position.stream, position.instance, position.previous, position.token
        )
