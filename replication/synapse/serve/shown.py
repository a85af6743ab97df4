"""The streams of a store as one client may see them: those that the listener's choice takes and
whose space the client may read."""

from __future__ import annotations

from collections.abc import Callable

from logweir.replication.link import Link
from logweir.replication.service.rights import Choice, Rights
from logweir.replication.synapse.push import Stream, Streams
from logweir.store.schema.access import Privilege


class Shown:
    """See the module's text. `rights`: None for a client that may see everything; `ended`: why the
    connection has to begin anew, "" while it has not."""

    def __init__(
        self, streams: Streams, rights: Rights | None = None, choice: Choice | None = None
    ) -> None:
        self._streams = streams
        self._rights = rights
        self._choice = choice or Choice()
        self._left_out: set[str] = set()  # streams of which a row did not go to the client
        self.ended = ""

    def lets(self, name: str, *, is_live: bool, follows_all: bool) -> bool:
        """Whether the next row of a stream goes to the client. `is_live`: it follows the stream;
        `follows_all`: everything that it may see. A change of its rights sets `ended`, and nothing
        more goes: it begins anew, and so misses nothing."""
        if self.ended:
            return False
        if self.is_all and not self._left_out:
            return True
        is_shown = self.find(name) is not None
        if is_live and not is_shown:
            self.ended = self.refusal(name) or f"stream {name} is not there any more"
        elif is_shown and name in self._left_out:
            self.ended = f"stream {name} may be read since now, follow it anew"
        elif follows_all and not is_shown:
            self._left_out.add(name)
        return is_shown and not self.ended

    @property
    def is_all(self) -> bool:
        """Whether every stream is shown, now."""
        may_all = self._rights is None or self._rights.may_all(Privilege.READ)
        return may_all and self._choice.is_all

    @property
    def refusal_of_all(self) -> str:
        """Why the client is shown nothing at all; "" for one that may read something."""
        rights = self._rights
        if rights is None or rights.may_all(Privilege.READ) or self.all():
            return ""
        return f"Read access to streams is denied for user '{rights.user}'"

    def all(self) -> list[Stream]:
        """The streams that are shown, now."""
        return [stream for stream in self._streams.all() if self.shows(stream)]

    def shows(self, stream: Stream) -> bool:
        """Whether a stream is shown, now."""
        if not self._choice.takes(stream.name):
            return False
        return self._rights is None or self._rights.may(Privilege.READ, stream.space_id)

    def find(self, name: str) -> Stream | None:
        """A stream that is shown; None if there is none of that name."""
        stream = self._streams.get(name)
        return stream if stream is not None and self.shows(stream) else None

    def refusal(self, name: str) -> str:
        """Why there is no stream of that name for this client; "" if there is none at all."""
        stream = self._streams.get(name)
        if stream is None or not self._choice.takes(name) or self._rights is None:
            return ""
        return f"Read access to stream '{name}' is denied for user '{self._rights.user}'"


ShownTo = Callable[[Link], Shown]
"""What the peer of a connection is shown."""
