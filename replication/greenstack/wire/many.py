"""GET_MANY, logweir's own: many documents in one request, and what is told of each.

=================  =================================================================================
table              slots, as in `messages`
=================  =================================================================================
GetMany            ids texts req
GetManyResponse    found Founds req, one for each id, in the order of the ids
Found              document Document, status u16 [0]
=================  =================================================================================

The root of the answer to a GET is a Found that has a document alone, so such answers stand in a
GetManyResponse as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from logweir.limits import GREENSTACK_GETS
from logweir.replication.greenstack.wire.codec import Frame, Opcode, Status, encode_frame
from logweir.replication.greenstack.wire.flat import Kind, Slot, Table, read, write
from logweir.replication.greenstack.wire.messages import (
    DOCUMENT_TABLE,
    Document,
    document_from,
    encode_get,
)

_ASKED: Final = Table("GetMany", (Slot("ids", Kind.TEXTS, None, True, GREENSTACK_GETS),))
_FOUND: Final = Table(
    "Found", (Slot("document", Kind.TABLE, table=DOCUMENT_TABLE), Slot("status", Kind.U16, 0))
)
_ANSWER: Final = Table(
    "GetManyResponse", (Slot("found", Kind.TABLES, None, True, GREENSTACK_GETS, _FOUND),)
)
TABLES: Final = (_ASKED, _FOUND, _ANSWER)

FOUND_HEAD: Final = write(_ANSWER, ((),))[:-4]
"""The begin of an answer, up to the vector's count."""

NOTHING: Final = {status: write(_FOUND, (None, status)) for status in Status if status}
"""What is told of an id without a document, by the status."""

_GET: Final = encode_get(b"")[:-5]
"""The begin of the payload of a GET, up to the id's length."""


def encode_get_many(ids: Sequence[bytes]) -> bytes:
    """The payload of a request."""
    return write(_ASKED, (ids,))


def decode_get_many(payload: bytes) -> tuple[bytes, ...]:
    """The ids. Raises `DecodeError`."""
    ids: tuple[bytes, ...] = read(_ASKED, payload)[0]
    return ids


def gets(ids: Sequence[bytes], flex: dict[int, bytes]) -> bytes:
    """The frames of as many GETs, which have these entries, at least one."""
    bare = encode_frame(Frame(Opcode.GET, flex=flex))[4:] + _GET
    frames: list[bytes] = []
    for id_ in ids:
        size = (len(bare) + 5 + len(id_)).to_bytes(4, "big")
        frames += (size, bare, len(id_).to_bytes(4, "little"), id_, b"\0")
    return b"".join(frames)


def encode_found(found: Sequence[tuple[int, bytes]]) -> bytes:
    """The payload of an answer. `found`: of each id the status and the payload of the answer to a
    GET of it."""
    places: list[int] = []
    parts: list[bytes] = []
    at = len(FOUND_HEAD) + 4
    end = at + 4 * len(found)
    for status, payload in found:
        part = NOTHING[Status(status)] if status else payload
        if end & 7:
            parts.append(bytes(-end & 7))
            end += -end & 7
        parts.append(part)
        places.append(end + int.from_bytes(part[:4], "little") - at)
        at += 4
        end += len(part)
    vector = struct.pack(f"<{len(found) + 1}I", len(found), *places)
    return b"".join((FOUND_HEAD, vector, *parts))


def decode_found(payload: bytes) -> list[tuple[int, Document | None]]:
    """Of each id the status and the document. Raises `DecodeError`."""
    (found,) = read(_ANSWER, payload)
    return [(status, None if made is None else document_from(made)) for made, status in found]
