"""GET_MANY: many GETs, which are a run, whose answers are put into one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from logweir.errors import DecodeError
from logweir.replication.greenstack.serve.commands import Answer
from logweir.replication.greenstack.serve.runs import RequestRun, take_run
from logweir.replication.greenstack.wire.codec import FlexKey, Frame, Status
from logweir.replication.greenstack.wire.many import decode_get_many, encode_found, gets

_HEAD: Final = struct.Struct(">I7xH")  # of an answer without entries: its length and status


def answer_many(frame: Frame, look: Callable[[RequestRun], bytes]) -> Answer:
    """The answer to a GET_MANY. `look`: answers GETs. What it leaves over is to be asked for again:
    TooBusy."""
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
    found: list[tuple[int, bytes]] = []
    at, said = 0, look(run)
    while at < len(said):
        size, status = _HEAD.unpack_from(said, at)
        begin, at = at + _HEAD.size, at + 4 + size
        found.append((status, said[begin:at]))
    found += [(Status.TOO_BUSY, b"")] * (len(ids) - len(found))
    return Status.SUCCESS, encode_found(found)
