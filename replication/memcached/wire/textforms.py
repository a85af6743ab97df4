"""How text answers are told: numbers that lines and answers share. No I/O.

A line of the text protocol becomes requests of the binary one, whose opaque is the *form* of what
is told of their answers: in its highest byte one of those below; bit 23: the client wants to be
told nothing (`noreply`); bit 22: its answer is the last one of a `get`; its low bytes what the form
needs: the number of a line, or how many bytes the record of a meta command has (`metakernel`).

A NOOP stands for what needs no item: the end of a `get` without keys, and lines that say what is
wrong.
"""

from __future__ import annotations

from typing import Final

from logweir.replication.memcached.wire.codec import TEXTS, Status

LINE, VALUE, VALUE_CAS, END, STORE, CAS, KEEP, DELETE, TOUCH, COUNT = range(1, 11)
STAT, RESET, DONE, VERSION, META_GET, META_SET, META_DELETE, META_COUNT, META_DEBUG = range(11, 20)
QUIET: Final = 1 << 23
LAST: Final = 1 << 22

LINES: Final = (
    b"",
    b"END",
    b"STORED",
    b"NOT_STORED",
    b"EXISTS",
    b"NOT_FOUND",
    b"DELETED",
    b"TOUCHED",
    b"OK",
    b"RESET",
    b"MN",
    b"ERROR",
    b"CLIENT_ERROR bad command line format",
    b"CLIENT_ERROR bad data chunk",
    b"CLIENT_ERROR invalid exptime argument",
    b"CLIENT_ERROR invalid numeric delta argument",
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]",
    b"SERVER_ERROR object too large for cache",
    b"CLIENT_ERROR line too long",
    b"ERROR: shutdown not enabled",
    b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
    b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
    b"CLIENT_ERROR options flags are too long",
    b"CLIENT_ERROR options flags too long",
    b"CLIENT_ERROR duplicate flag",
    b"CLIENT_ERROR invalid flag",
    b"CLIENT_ERROR invalid or duplicate flag",
    b"CLIENT_ERROR error decoding key",
    b"CLIENT_ERROR bad token in command line format",
    b"CLIENT_ERROR incorrect length for M token",
    b"CLIENT_ERROR invalid numeric initial value",
    b"CLIENT_ERROR invalid numeric delta value",
    b"CLIENT_ERROR opaque token too long",
    b"CLIENT_ERROR invalid mode for ms M token",
    b"CLIENT_ERROR invalid mode for ma M token",
    b"CLIENT_ERROR usage: stats detail on|off|dump",
)
"""Whole lines. Source: memcached 1.6.18, its source and observed."""

SLOT_BYTES: Final = 80


def line_number(text: bytes) -> int:
    """The number of a line."""
    return LINES.index(text)


def _slots(lines: dict[int, bytes]) -> bytes:
    """Of each number the length of its line, with its end, and the line."""
    slots = bytearray(256 * SLOT_BYTES)
    for number, line in lines.items():
        text = line + b"\r\n" if line else b""
        slots[number * SLOT_BYTES] = len(text)
        slots[number * SLOT_BYTES + 1 : number * SLOT_BYTES + 1 + len(text)] = text
    return bytes(slots)


LINE_SLOTS: Final = _slots(dict(enumerate(LINES)))

REFUSALS: Final = _slots(
    {
        **{status & 0xFF: b"SERVER_ERROR " + text for status, text in TEXTS.items()},
        Status.TOO_BIG: b"SERVER_ERROR object too large for cache",
        Status.BAD_DELTA: b"CLIENT_ERROR cannot increment or decrement non-numeric value",
        Status.AUTH_ERROR: b"CLIENT_ERROR unauthenticated",
    }
)
"""By status, if the form has no line of its own for it."""


def _told() -> bytes:
    """By form and status below 8 the number of a line; 0: see `REFUSALS`."""
    told = bytearray(32 * 8)
    lines = {
        STORE: {Status.SUCCESS: b"STORED"},
        CAS: {
            Status.SUCCESS: b"STORED",
            Status.NOT_FOUND: b"NOT_FOUND",
            Status.EXISTS: b"EXISTS",
        },
        KEEP: {
            Status.SUCCESS: b"STORED",
            **dict.fromkeys((Status.NOT_FOUND, Status.EXISTS), b"NOT_STORED"),
            **dict.fromkeys((Status.TOO_BIG, Status.NOT_STORED), b"NOT_STORED"),
        },
        DELETE: {Status.SUCCESS: b"DELETED", Status.NOT_FOUND: b"NOT_FOUND"},
        TOUCH: {Status.SUCCESS: b"TOUCHED", Status.NOT_FOUND: b"NOT_FOUND"},
        COUNT: {Status.NOT_FOUND: b"NOT_FOUND"},
        STAT: {Status.SUCCESS: b"END", Status.NOT_FOUND: b"ERROR"},
        RESET: {Status.SUCCESS: b"RESET"},
        DONE: {Status.SUCCESS: b"OK"},
    }
    for form, by_status in lines.items():
        for status, line in by_status.items():
            told[8 * form + status] = line_number(line)
    return bytes(told)


TOLD: Final = _told()
