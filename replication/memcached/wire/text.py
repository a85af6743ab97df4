"""memcached's text protocol, as another spelling of the binary one: lines ↔ binary packets.

What a client says in lines becomes binary requests, and the answers to those become lines, so that
whatever handles the requests knows one protocol. No I/O, no clock. See `textforms` for what ties
an answer to its line.

A line that has no end yet may be as long as `limits.TEXT_LINE_BYTES`; one that begins with `get` or
`gets` as `limits.TEXT_KEYS_BYTES`. A value is wanted as a whole before its command is handled; one
that is too long is passed over as it comes. Source: memcached 1.6.18, its source and observed.
"""

from __future__ import annotations

import re
from typing import Final

from logweir.errors import LimitExceeded
from logweir.limits import TAP_VALUE_BYTES, TEXT_KEYS_BYTES, TEXT_LINE_BYTES
from logweir.replication.memcached.wire import (
    linekernel,
    metakernel,
    tellkernel,
    textforms,
    wordkernel,
)
from logweir.replication.memcached.wire.codec import Opcode, Packet, encode_answer, encode_request
from logweir.replication.memcached.wire.textforms import QUIET, line_number
from logweir.replication.session import InputBuffer
from logweir.store.schema.bulk import interpret_calls

_FIRST: Final = tuple(bytes((letter,)) for letter in b"mgsacidt")
"""Letters with which commands begin; what begins otherwise may be a browser, which is hung up on.
Source: memcached 1.6.18."""
_KEYS: Final = re.compile(rb" {0,100}gets? ")
_NUMBER: Final = re.compile(rb"[ \t\n\v\f\r]*([+-]?[0-9]+)(?=[ \t\n\v\f\r]|\Z)")


interpret_calls(wordkernel, metakernel, linekernel, tellkernel)


class TextCodec:
    """One connection's lines."""

    def __init__(self) -> None:
        limit = TEXT_KEYS_BYTES + TAP_VALUE_BYTES + len(b"\r\n")
        self._kept = InputBuffer("TEXT_KEYS_BYTES", limit)
        self._is_value = False  # what is kept is a line and a part of its value
        self._is_keys = False  # it is a line of keys
        self._pass_bytes = 0
        records = bytearray()  # of meta commands that are not answered yet
        self._lines = linekernel.Lines(records)
        self._teller = tellkernel.Teller(records)
        self.tell = self._teller.tell

    def __len__(self) -> int:
        """Bytes of a command that is not whole yet, those still to be passed over included."""
        return self._kept.size_bytes + self._pass_bytes

    @property
    def kept_bytes(self) -> int:
        """Those that are in memory."""
        return self._kept.size_bytes

    def feed(self, data: bytes) -> tuple[bytes, LimitExceeded | None]:
        """The binary requests of the commands that are whole now, and what ends the connection
        after them, if anything."""
        if self._kept.size_bytes or self._pass_bytes:
            passed = min(self._pass_bytes, len(data))
            self._pass_bytes -= passed
            data = data[passed:]
            if self._kept.size_bytes and not self._is_value and b"\n" not in data:
                self._kept.add(data)
                return self._check_line()
            data = self._kept.join(data)
        lines = self._lines
        made = lines.take(data, 0, TAP_VALUE_BYTES)
        if lines.how == linekernel.WAITS and lines.at == len(data):
            return made, None
        return self._go_on(data, made)

    def finish(self, now: float) -> bytes:
        """What the client is told of a `get` whose end does not come."""
        end = encode_answer(Packet(Opcode.NOOP, opaque=textforms.END << 24))
        return self.tell(end, now) if self._teller.failed else b""

    def _go_on(self, data: bytes, made: bytes) -> tuple[bytes, LimitExceeded | None]:
        """`feed` behind what was `made` of lines that are about items."""
        lines, parts = self._lines, [made]
        while lines.how == linekernel.OTHER:
            parts.append(_other(data[lines.at : lines.about]))
            parts.append(lines.take(data, lines.about, TAP_VALUE_BYTES))
        problem = None
        if lines.how == linekernel.PASSES:
            self._pass_bytes = lines.about
        elif lines.at < len(data):
            self._is_value, self._is_keys = lines.about > 0, False
            self._kept.keep(data[lines.at :], lines.about)
            said, problem = self._check_line()
            parts.append(said)
        return b"".join(parts), problem

    def _check_line(self) -> tuple[bytes, LimitExceeded | None]:
        """What ends the connection if a line without an end has become too long."""
        size = len(self._kept)
        if self._is_value or size <= TEXT_LINE_BYTES:
            return b"", None
        if not self._is_keys:
            begun = self._kept.take()
            self._kept.keep(begun)
            self._is_keys = _KEYS.match(begun) is not None
        name, most = "TEXT_LINE_BYTES", TEXT_LINE_BYTES
        if self._is_keys:
            name, most = "TEXT_KEYS_BYTES", TEXT_KEYS_BYTES
        if size <= most:
            return b"", None
        return _line(b"CLIENT_ERROR line too long"), LimitExceeded(name, most, size)


def _line(text: bytes, quiet: bool = False) -> bytes:
    """The request that stands for an answer of one line."""
    if quiet:
        return b""
    return encode_request(Packet(Opcode.NOOP, opaque=textforms.LINE << 24 | line_number(text)))


def _request(opcode: Opcode, form: int, key: bytes = b"") -> bytes:
    return encode_request(Packet(opcode, key, opaque=form << 24))


def _short(word: bytes) -> int | None:
    """As `safe_strtol` of memcached reads it; None: it is no number."""
    match = _NUMBER.match(word)
    if match is None or not -(2**63) <= (value := int(match[1])) < 2**63:
        return None
    return (value + 2**31) % 2**32 - 2**31


def _other(line: bytes) -> bytes:
    """The requests of a line that is no command about an item."""
    text = line.partition(b"\0")[0].rstrip(b"\n").removesuffix(b"\r")
    words = [word for word in text.split(b" ") if word]
    quiet = words[-1:] == [b"noreply"]
    match words:
        case [b"stats"]:
            return _request(Opcode.STAT, textforms.STAT)
        case [b"stats", b"reset", *_]:
            return _request(Opcode.STAT, textforms.RESET, b"reset")
        case [b"stats", b"detail", *rest]:
            usage = b"CLIENT_ERROR usage: stats detail on|off|dump"
            known = {b"on": b"OK", b"off": b"OK", b"dump": b"END"}
            return _line(known.get(rest[0], usage) if rest else usage)
        case [b"stats", group, *_]:
            return _request(Opcode.STAT, textforms.STAT, group)
        case [b"flush_all", *rest] if len(rest) <= 2:
            return _flush(rest, quiet)
        case [b"quit", *_]:
            return _request(Opcode.QUITQ, 0)
        case [b"shutdown", *_]:
            return _line(b"ERROR: shutdown not enabled")
        case [b"cache_memlimit", size, *rest] if len(rest) <= 1:
            return _line(_memlimit(_short(size)), quiet)
    if words and words[0][:1] not in _FIRST and words[-1].startswith(b"HTTP/"):
        return _request(Opcode.QUITQ, 0)
    return _line(b"ERROR")


def _flush(rest: list[bytes], quiet: bool) -> bytes:
    delay: int | None = 0
    if len(rest) != quiet:
        delay = _short(rest[0])
    if delay is None:
        return _line(b"CLIENT_ERROR invalid exptime argument", quiet)
    extras = delay.to_bytes(4, "big") if delay > 0 else b""
    opaque = textforms.DONE << 24 | (QUIET if quiet else 0)
    return encode_request(Packet(Opcode.FLUSH, extras=extras, opaque=opaque))


def _memlimit(megabytes: int | None) -> bytes:
    """What memcached says; there is no limit here."""
    if megabytes is None or megabytes < 0:
        return b"ERROR"
    if megabytes < 8:
        return b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"
    if megabytes > 1_000_000_000:
        return b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes"
    return b"OK"
