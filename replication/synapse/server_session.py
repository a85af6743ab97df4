"""A server's side of one Synapse connection. Keeps the contract of `logweir.replication.session`.

SERVER and PING go out at once. Events are the commands of a follower that its owner acts on:

=====================  ========================================================================
it sends               event, or what happens
=====================  ========================================================================
REPLICATE              itself; of all streams if the dialect knows no others
FEDERATION_ACK         itself
REMOTE_SERVER_UP       itself
NAME                   remembered
PING                   arms the timeout; answered by nothing
ERROR                  nothing; the follower closes
other known commands   nothing
blank line, one word   nothing
unknown word           `ERROR invalid command: …`, close
a server's command     `ERROR invalid command: …`, close
bad arguments          `ERROR failed to parse line: …`, close
line too long          `ERROR Line length exceeded`, close
not UTF-8              close
=====================  ========================================================================

PING goes out after `limits.SYNAPSE_PING_SECONDS` without another command. A follower that has sent
a PING and then nothing for `limits.SYNAPSE_TIMEOUT_SECONDS` gets `ERROR ping timeout` and is gone;
one that never sends a PING never is.

Source: Synapse 1.12.4 and 1.66.0, observed. Blank lines, a CR before the LF and commands of one
word are taken here in every dialect; USER_IP is forgotten at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from logweir.errors import DecodeError
from logweir.limits import SYNAPSE_PING_SECONDS, SYNAPSE_TIMEOUT_SECONDS
from logweir.replication.session import BaseSession
from logweir.replication.synapse.client_session import error_line
from logweir.replication.synapse.wire.codec import (
    ALL,
    CLIENT_WORDS,
    Command,
    Dialect,
    FederationAck,
    LineBuffer,
    NotText,
    Plain,
    Replicate,
    encode,
    parse,
    text_of,
)

Event = Replicate | FederationAck | Plain


class ServerSession(BaseSession[Event]):
    """One follower. `server_name`: ours; `now`: the clock of this session; `milliseconds`: what
    PING says."""

    peer = "the follower"

    def __init__(
        self,
        now: float,
        *,
        dialect: Dialect,
        server_name: str,
        milliseconds: Callable[[], int],
    ) -> None:
        super().__init__()
        self.dialect = dialect
        self.name = ""
        self._milliseconds = milliseconds
        self._lines = LineBuffer()
        self._heard = self._sent = now
        self._armed = False
        self.put(Plain("SERVER", server_name), now)
        self.put(Plain("PING", str(milliseconds())), now)

    def put(self, command: Command, now: float) -> None:
        """Send one command. Raises as `codec.encode`."""
        self.put_lines(encode(command, self.dialect), now)

    def put_lines(self, lines: bytes, now: float) -> None:
        """Send whole lines."""
        self._out.put(lines)
        self._sent = now

    def refuse(self, text: str) -> None:
        """Send ERROR and close."""
        if not self.close_reason:
            self._out.put(error_line(text))
            self.close_reason = text

    def receive_data(self, data: bytes, now: float) -> Sequence[Event]:
        if self.close_reason:
            return ()
        lines, problem = self._lines.feed(data)
        events: list[Event] = []
        for line in lines:
            try:
                text = text_of(line)
                if text:
                    self._act(self._command(text), now, events)
                    self._heard = now
            except NotText:
                self.close_reason = "the follower sent a line that is not UTF-8"
                return events
            except DecodeError as error:
                self.refuse(error.reason)
                return events
        if problem is not None:
            self.refuse("Line length exceeded")
        return events

    @property
    def kept_bytes(self) -> int:
        """See `Keeps` of `logweir.replication.link`."""
        return len(self._lines)

    def next_deadline(self) -> float | None:
        ping = self._sent + SYNAPSE_PING_SECONDS
        return min(ping, self._heard + SYNAPSE_TIMEOUT_SECONDS) if self._armed else ping

    def deadline_passed(self, now: float) -> Sequence[Event]:
        if self.close_reason:
            return ()
        if self._armed and now >= self._heard + SYNAPSE_TIMEOUT_SECONDS:
            self.refuse("ping timeout")
        elif now >= self._sent + SYNAPSE_PING_SECONDS:
            self.put(Plain("PING", str(self._milliseconds())), now)
        return ()

    def _command(self, text: str) -> Command:
        word = text.partition(" ")[0]
        if word not in CLIENT_WORDS:
            raise DecodeError(f"invalid command: {word[:40]}")
        try:
            return parse(text, self.dialect)
        except DecodeError as error:
            raise DecodeError(f"failed to parse line: {word}: {error.reason}") from error

    def _act(self, command: Command, now: float, events: list[Event]) -> None:
        match command:
            case Replicate() if self.dialect is not Dialect.D1:
                events.append(Replicate(ALL))
            case Replicate() | FederationAck() | Plain("REMOTE_SERVER_UP"):
                events.append(command)
            case Plain("PING"):
                self._armed = True
            case Plain("NAME", text):
                self.name = text
            case _:
                assert isinstance(command, Plain)  # known, and without effect on us
