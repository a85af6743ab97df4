"""Requests to a vbucket that is pending: they wait until its state has changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logweir.replication.tap.codec import Packet
    from logweir.replication.tap.runs import RequestRun

__all__ = ["Pending"]


class Pending(Exception):
    """A request waits: its vbucket is pending, and nothing was done. `answers`: to those that were
    run before it; `rest`: itself and what stands behind it, where more than one was asked for."""

    def __init__(self, answers: bytes = b"", rest: Sequence[Packet | RequestRun] = ()) -> None:
        super().__init__("a vbucket is pending")
        self.answers = answers
        self.rest = rest
