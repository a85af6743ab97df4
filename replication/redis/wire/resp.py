"""RESP: commands as clients send them, answers in versions 2 and 3. No I/O, no clock.

A command is ``*<count>`` and, for each argument, ``$<size>`` and its bytes, each part ended by
CR LF; or one line of words with spaces between them. Empty ones are passed over. What has come of a
command is kept argument by argument, so that small portions cost no repeated reading.

Bounds: `limits.REDIS_ARGUMENTS` arguments, `limits.REDIS_COMMAND_BYTES` in all of one command,
`limits.REDIS_LINE_BYTES` of a line. Source: the RESP specification; Redis 7.0, observed: its words
for what is malformed, that it takes an LF alone after a line of words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from logweir.errors import DecodeError
from logweir.limits import REDIS_ARGUMENTS, REDIS_COMMAND_BYTES, REDIS_LINE_BYTES
from logweir.replication.session import InputBuffer

_ASTERISK: Final = ord("*")
_ARGUMENT_BYTES: Final = 64  # what one costs beside its bytes, about
_HEAD_BYTES: Final = 32
_NUMBER_DIGITS: Final = 18

OK: Final = b"+OK\r\n"
NIL: Final = {2: b"$-1\r\n", 3: b"_\r\n"}
"""Nothing, by version."""


class Commands:
    """What one client sends."""

    def __init__(self) -> None:
        self._input = InputBuffer("REDIS_COMMAND_BYTES", REDIS_COMMAND_BYTES + _HEAD_BYTES)
        self._arguments: list[bytes] = []
        self._left = 0  # arguments that are still to come
        self._size = -1  # of the next one, once it is known
        self._taken_bytes = 0  # of arguments

    @property
    def kept_bytes(self) -> int:
        """Of a command whose rest has not come."""
        return self._taken_bytes + _ARGUMENT_BYTES * len(self._arguments) + len(self._input)

    def feed(self, data: bytes) -> tuple[list[list[bytes]], str]:
        """Take bytes in any portions. Returns the commands that are whole now, and what is
        malformed after them, "" for nothing; then nothing more can be read."""
        commands: list[list[bytes]] = []
        data = self._input.join(data)
        if not data:
            return commands, ""
        at = 0
        try:
            while at < len(data):
                before = at
                at = self._step(data, at, commands)
                if at == before:
                    break
        except DecodeError as problem:
            return commands, problem.reason
        needed = self._size + 2 if self._size >= 0 else 0
        self._input.keep(data[at:] if at else data, needed if at < len(data) else 0)
        return commands, ""

    def _step(self, data: bytes, at: int, commands: list[list[bytes]]) -> int:
        """Read one part. Returns where the next begins; `at` where it is not whole. Raises
        `DecodeError`."""
        if self._size >= 0:
            end = at + self._size
            if len(data) < end + 2:
                return at
            if data[end : end + 2] != b"\r\n":
                raise DecodeError("expected CRLF after an argument")
            self._arguments.append(data[at:end])
            self._taken_bytes += self._size
            self._size = -1
            self._left -= 1
            if not self._left:
                commands.append(self._arguments)
                self._arguments, self._taken_bytes = [], 0
            return end + 2
        is_line = not self._left and data[at] != _ASTERISK
        limit = REDIS_LINE_BYTES if is_line else _HEAD_BYTES
        end = data.find(b"\n", at, at + limit)
        if end < 0:
            if len(data) - at >= limit:
                raise DecodeError(f"too big {'inline request' if is_line else 'count string'}")
            return at
        if self._left:
            self._begin_argument(data[at:end])
        elif not is_line:
            self._left = max(_number(data[at + 1 : end], REDIS_ARGUMENTS, "multibulk"), 0)
        elif words := _words(data[at:end]):
            commands.append(words)
        return end + 1

    def _begin_argument(self, line: bytes) -> None:
        if line[:1] != b"$":
            raise DecodeError(f"expected '$', got '{line[:1].decode('ascii', 'replace')}'")
        self._size = _number(line[1:], REDIS_COMMAND_BYTES - self._taken_bytes, "bulk")
        if self._size < 0:
            raise DecodeError("invalid bulk length")


def _words(line: bytes) -> list[bytes]:
    """Of a line, where spaces divide what stands in no quotes. Raises `DecodeError`."""
    if b'"' not in line and b"'" not in line:
        return line.split()
    words, at = [], 0
    while found := _WORD.match(line, at):
        words.append(_QUOTED.sub(_unquoted, found[1]))
        at = found.end()
    if line[at:].strip():
        raise DecodeError("unbalanced quotes in request")
    return words


def _unquoted(found: re.Match[bytes]) -> bytes:
    if found[2] is not None:
        return found[2].replace(b"\\'", b"'")
    return _ESCAPED.sub(_unescaped, found[1])


def _unescaped(found: re.Match[bytes]) -> bytes:
    if found[1]:
        return bytes((int(found[1], 16),))
    return found[2].translate(_LETTERS)


_QUOTED: Final = re.compile(rb"""\"((?:\\.|[^"\\])*)"|'((?:\\'|\\(?!')|[^'\\])*)'""", re.DOTALL)
_WORD: Final = re.compile(
    rb"""\s*((?:[^\s"']|(?:%s)(?=\s|$))+)""" % _QUOTED.pattern.replace(b"((?:", b"(?:(?:"),
    re.DOTALL,
)
_ESCAPED: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS: Final = bytes.maketrans(b"nrtba", b"\n\r\t\b\a")


def _number(line: bytes, limit: int, what: str) -> int:
    """A count with its CR. Raises `DecodeError`."""
    text = line[:-1]
    digits = text[1:] if text[:1] == b"-" else text
    if line[-1:] == b"\r" and digits.isdigit() and len(digits) <= _NUMBER_DIGITS:
        number = int(text)
        if number <= limit:
            return number
    raise DecodeError(f"invalid {what} length")


def simple(text: str) -> bytes:
    """A short text without line ends."""
    return b"+%s\r\n" % text.encode()


def error(text: str) -> bytes:
    """An error; its first word is its code. What would end the line becomes spaces."""
    return b"-%s\r\n" % text.encode().translate(_ONE_LINE)


_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


def integer(number: int) -> bytes:
    """A number."""
    return b":%d\r\n" % number


def bulk(data: bytes) -> bytes:
    """Any bytes."""
    return b"$%d\r\n%s\r\n" % (len(data), data)


def vector(parts: Sequence[bytes]) -> bytes:
    """Answers, one after the other."""
    return b"*%d\r\n%s" % (len(parts), b"".join(parts))


def push(parts: Sequence[bytes], version: int) -> bytes:
    """What nobody asked for."""
    return (b">%d\r\n%s" if version == 3 else b"*%d\r\n%s") % (len(parts), b"".join(parts))


def mapping(pairs: Sequence[tuple[str, bytes]], version: int) -> bytes:
    """Answers by name; a flat vector in version 2."""
    text = b"".join([bulk(name.encode()) + value for name, value in pairs])
    return (b"%%%d\r\n%s" if version == 3 else b"*%d\r\n%s") % (
        len(pairs) if version == 3 else 2 * len(pairs),
        text,
    )
