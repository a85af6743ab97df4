"""Requests as runs: those that are one already, a GET alone, and GET_MANY, which is many GETs whose
answers are put into one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from logweir.errors import DecodeError
from logweir.replication.greenstack.serve.commands import Answer
from logweir.replication.greenstack.serve.runs import Answered, RequestRun, run_of, take_run
from logweir.replication.greenstack.wire.codec import FlexKey, Frame, Opcode, Status
from logweir.replication.greenstack.wire.many import decode_get_many, encode_found, gets

__all__ = ["answer_run"]

_HEAD: Final = struct.Struct(">I7xH")  # of an answer without entries: its length and status


def answer_run(
    frame: Frame | RequestRun, look: Callable[[RequestRun], Answered | None]
) -> Answer | Answered | None:
    """What `look` answers to a request, which it is given as a run. None if it has no answer, or
    the request cannot be one."""
    if isinstance(frame, RequestRun):
        return look(frame)
    if frame.opcode == Opcode.GET_MANY:
        return _answer_many(frame, look)
    run = run_of(frame) if frame.opcode == Opcode.GET else None
    return None if run is None else look(run)


def _answer_many(frame: Frame, look: Callable[[RequestRun], Answered | None]) -> Answer | None:
    """The answer to a GET_MANY. What `look` leaves over is to be asked for again: TooBusy."""
    vbucket = frame.flex.get(FlexKey.VBUCKET)
    try:
        ids = decode_get_many(frame.payload)
    except DecodeError:
        return Status.INVALID_ARGUMENTS, b""
    if vbucket is None:
        return Status.INVALID_ARGUMENTS, b""
    if not ids:
        return Status.SUCCESS, encode_found(())
    run = take_run(gets(ids, {FlexKey.VBUCKET: vbucket}))
    if run is None or run.count < len(ids):  # an id that can be none
        return Status.INVALID_ARGUMENTS, b""
    answered = look(run)
    if answered is None:
        return None
    found: list[tuple[int, bytes]] = []
    at, said = 0, answered.said
    while at < len(said):
        size, status = _HEAD.unpack_from(said, at)
        begin, at = at + _HEAD.size, at + 4 + size
        found.append((status, said[begin:at]))
    found += [(Status.TOO_BUSY, b"")] * (len(ids) - len(found))
    return Status.SUCCESS, encode_found(found)
