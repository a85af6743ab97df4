"""A server's side of one Redis connection. Keeps the contract of `logweir.replication.session`.

Events are commands, lists of arguments. What is malformed is answered with ``-ERR Protocol error``,
after the answers to what came before it, and the connection is closed. Source: Redis 7.0,
observed.
"""

from __future__ import annotations

from collections.abc import Sequence

from logweir.replication.redis.wire import resp
from logweir.replication.session import BaseSession


class Malformed(str):
    """What is wrong with what came last; the owner calls `ServerSession.refuse` with it."""

    __slots__ = ()


class ServerSession(BaseSession[list[bytes] | Malformed]):
    """One client. `version`: of RESP, as it wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 2
        self._commands = resp.Commands()
        self._is_deaf = False

    def receive_data(self, data: bytes, now: float) -> Sequence[list[bytes] | Malformed]:
        if self.close_reason or self._is_deaf:
            return ()
        commands, problem = self._commands.feed(data)
        if not problem:
            return commands
        self._is_deaf = True
        return [*commands, Malformed(problem)]

    @property
    def kept_bytes(self) -> int:
        """See `Keeps` of `logweir.replication.link`."""
        return self._commands.kept_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of answers that were not taken yet."""
        return self._out.size_bytes

    def put(self, answer: bytes) -> None:
        """Send one answer, or message."""
        self._out.put(answer)

    def refuse(self, problem: str) -> None:
        """Tell what was malformed, and close."""
        self.put(resp.error(f"ERR Protocol error: {problem}"))
        self.end(f"malformed command: {problem}")
