"""Requests that wait: to a vbucket that is pending, until its state has changed; behind answers of
more than `limits.TAP_ANSWERS_BYTES`, until the client has taken those; behind what took long, until
the others have had their turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logweir.replication.memcached.serve.runs import RequestRun
    from logweir.replication.memcached.wire.codec import Packet

__all__ = ["Pending"]


class Pending(Exception):
    """A request waits, and nothing was done. `answers`: to those that were run before it; `rest`:
    itself and what stands behind it, where more than one was asked for; `is_held`: by the state of
    its vbucket."""

    def __init__(
        self,
        answers: bytes = b"",
        rest: Sequence[Packet | RequestRun] = (),
        *,
        is_held: bool = True,
    ) -> None:
        super().__init__("a request waits")
        self.answers = answers
        self.rest = rest
        self.is_held = is_held
