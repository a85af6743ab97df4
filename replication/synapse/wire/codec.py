"""Lines of Synapse's replication protocol ↔ commands. No I/O, no clock.

A line is UTF-8, at most `limits.SYNAPSE_LINE_BYTES` long, ended by one LF. The word up to the first
space is the command, in upper case; the rest is its argument text. Arguments are separated by
exactly one space, the last one takes the rest. An empty argument leaves a trailing space, which
every real sender writes. Over Redis a message is one command without LF and without that limit.

The protocol has four dialects, and nothing on the wire names them:

=======  =================  ===============================  =======================================
dialect  Synapse            POSITION                         RDATA
=======  =================  ===============================  =======================================
D1       0.21 … 1.12        stream token                     stream token row
D2       1.13 … 1.21        stream instance token            stream instance token row
D3       1.22 … 1.66        stream instance previous token   as D2
D4       1.67 … (Redis)     as D3                            as D2
=======  =================  ===============================  =======================================

A token is a decimal integer, signed 64-bit; in RDATA the word `batch` stands for "the same token as
the next numbered row of this stream". A row is JSON. REPLICATE takes `stream token` in D1, where
the stream may be ALL and the token NOW, and nothing in the others. The other commands:

==================  =======  ====  ================================================================
word                dialect  from  arguments
==================  =======  ====  ================================================================
SERVER              D1-D3    S     server name
ERROR, PING         D1-D3    both  any text
NAME                D1-D3    C     any text
SYNC                D1       S     any text
USER_SYNC           all      C     [instance, D2 on] user [device, D4] `start` or `end`, ms
CLEAR_USER_SYNC     D2 on    C     instance
FEDERATION_ACK      all      C     [instance] token
REMOVE_PUSHER       D1-D3    C     application, key, user
INVALIDATE_CACHE    D1-D2    C     cache name, JSON list or null
USER_IP             all      C     user, JSON list that holds a live access token
REMOTE_SERVER_UP    all      both  server name
LOCK_RELEASED       D4       both  JSON list
NEW_ACTIVE_TASK     D4       both  task
CANCEL_TASK         D4       both  task
==================  =======  ====  ================================================================

Of USER_IP only the user is kept when it is read: the rest is not for us.

Rows are stored as MsgPack: arrays, objects, strings, numbers, booleans and null are what they were
in JSON. A string with a lone surrogate keeps it (three bytes that are not UTF-8). A row with an
integer out of 64 bits, one nested deeper than `limits.MSGPACK_DEPTH`, or one of more than
`limits.SYNAPSE_ROW_BYTES` cannot be stored. JSON is
written with escapes for everything outside ASCII: with spaces after `,` and `:` in D1, without
from 1.19 on (D3 here). `NaN` and `Infinity` are no JSON.

Source: Synapse 1.12.4, 1.21.2, 1.66.0 and 1.163.2, observed; others read.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]

from logweir.errors import DecodeError, LimitExceeded, LocalProtocolError
from logweir.limits import MSGPACK_DEPTH, SYNAPSE_LINE_BYTES, SYNAPSE_ROW_BYTES
from logweir.wal.mp import Value
from logweir.wal.render import to_json

BATCH: Final = "batch"
NOW: Final = "NOW"
ALL: Final = "ALL"
_TOKEN: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_MASTER: Final = "master"


class Dialect(StrEnum):
    """Which of the protocol's four forms is spoken."""

    D1 = "D1"
    D2 = "D2"
    D3 = "D3"
    D4 = "D4"


class NotText(DecodeError):
    """A line that is not UTF-8: real peers answer nothing and drop the connection."""


class Rdata(NamedTuple):
    """One row. `token`: None for `batch`; `row`: its JSON text."""

    stream: str
    instance: str
    token: int | None
    row: str


@dataclass(frozen=True, slots=True)
class Position:
    """A stream stands at `token`. `previous`: nothing lies between it and `token` (D3 on)."""

    stream: str
    instance: str
    previous: int
    token: int


@dataclass(frozen=True, slots=True)
class Replicate:
    """A request for a stream. D1: `stream` may be ALL, `token` None for NOW; else both empty."""

    stream: str = ""
    token: int | None = None


@dataclass(frozen=True, slots=True)
class FederationAck:
    """Everything of stream `federation` up to `token` was sent."""

    instance: str
    token: int


@dataclass(frozen=True, slots=True)
class Plain:
    """Any other command: a word and one text. With `known` False a word that is none."""

    word: str
    text: str = ""
    known: bool = True


Command = Rdata | Position | Replicate | FederationAck | Plain


# --- lines ----------------------------------------------------------------------------------------
class LineBuffer:
    """Bytes → lines, in any portions. Keeps at most one unfinished line."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def __len__(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes) -> tuple[list[bytes], LimitExceeded | None]:
        """The lines that are complete now, without LF, and what is wrong after them."""
        lines = (self._rest + data).split(b"\n") if self._rest else data.split(b"\n")
        self._rest = lines.pop()
        limit = SYNAPSE_LINE_BYTES
        if lines and len(max(lines, key=len)) > limit:
            place = next(i for i, line in enumerate(lines) if len(line) > limit)
            size = len(lines[place])
            self._rest = b""
            return lines[:place], LimitExceeded("SYNAPSE_LINE_BYTES", limit, size)
        if len(self._rest) > limit:
            size = len(self._rest)
            self._rest = b""
            return lines, LimitExceeded("SYNAPSE_LINE_BYTES", limit, size)
        return lines, None


def _token(text: str) -> int:
    if _TOKEN.fullmatch(text) is not None:
        value = int(text)
        if -(2**63) <= value < 2**63:
            return value
    raise DecodeError(f"token {text[:40]!r} is not an integer of 64 bits")


def _split(text: str, count: int) -> list[str]:
    words = text.split(" ", count - 1)
    if len(words) != count:
        raise DecodeError(f"{len(words)} arguments instead of {count}")
    if "" in words[:-1]:
        raise DecodeError("an argument is empty")
    return words


def parse_rdata(text: str, dialect: Dialect) -> Rdata:
    """The arguments of RDATA. The row is not looked into. Raises `DecodeError`."""
    if dialect is Dialect.D1:
        stream, token, row = _split(text, 3)
        instance = _MASTER
    else:
        stream, instance, token, row = _split(text, 4)
    return Rdata(stream, instance, None if token == BATCH else _token(token), row)


def _parse_position(text: str, dialect: Dialect) -> Position:
    if dialect is Dialect.D1:
        stream, token = _split(text, 2)
        return Position(stream, _MASTER, _token(token), _token(token))
    if dialect is Dialect.D2:
        stream, instance, token = _split(text, 3)
        return Position(stream, instance, _token(token), _token(token))
    stream, instance, previous, token = _split(text, 4)
    return Position(stream, instance, _token(previous), _token(token))


def _parse_replicate(text: str, dialect: Dialect) -> Replicate:
    if dialect is not Dialect.D1:
        return Replicate()
    stream, token = _split(text, 2)
    return Replicate(stream, None if token in (NOW, "now") else _token(token))


def _parse_user_sync(text: str, dialect: Dialect) -> Plain:
    words = text.split(" ")
    counts = {Dialect.D1: (3,), Dialect.D4: (4, 5)}.get(dialect, (4,))
    if len(words) not in counts or "" in words:
        raise DecodeError(f"{len(words)} arguments instead of {counts[-1]}")
    if words[-2] not in ("start", "end"):
        raise DecodeError(f"state {words[-2][:20]!r} is neither start nor end")
    _token(words[-1])
    return Plain("USER_SYNC", text)


def _parse_ack(text: str, dialect: Dialect) -> FederationAck:
    words = text.split(" ")  # whatever the dialect: 1.18 added the instance in the middle of D2
    if len(words) > 2 or "" in words:
        raise DecodeError(f"{len(words)} arguments instead of 1 or 2")
    return FederationAck(words[0] if len(words) == 2 else _MASTER, _token(words[-1]))


def _parse_counted(word: str, text: str) -> Plain:
    count, types = _COUNTED[word]
    words = _split(text, count)
    if types and not isinstance(read_json(words[-1], "its list"), types):
        raise DecodeError("its last argument is not a JSON list")
    return Plain(word, words[0] if word == "USER_IP" else text)


_PARSERS: Final[dict[str, Callable[[str, Dialect], Command]]] = {
    "RDATA": parse_rdata,
    "POSITION": _parse_position,
    "REPLICATE": _parse_replicate,
    "USER_SYNC": _parse_user_sync,
    "FEDERATION_ACK": _parse_ack,
}
_COUNTED: Final[dict[str, tuple[int, tuple[type, ...]]]] = {
    "REMOVE_PUSHER": (3, ()),
    "INVALIDATE_CACHE": (2, (list, NoneType)),
    "USER_IP": (2, (list,)),
    "LOCK_RELEASED": (1, (list,)),
}
"""Words with so many arguments, the last of which is JSON of one of these types, if any."""
_FREE: Final = frozenset(
    (
        *("SERVER", "ERROR", "PING", "NAME", "CLEAR_USER_SYNC", "SYNC", "REMOTE_SERVER_UP"),
        *("NEW_ACTIVE_TASK", "CANCEL_TASK"),
    )
)
"""Words after which any text may stand."""
_KNOWN: Final = _FREE | _PARSERS.keys() | _COUNTED.keys()
_OF_SERVERS: Final = frozenset(("SERVER", "RDATA", "POSITION", "SYNC"))
SERVER_WORDS: Final = _OF_SERVERS.union(
    ("ERROR", "PING", "REMOTE_SERVER_UP"), ("LOCK_RELEASED", "NEW_ACTIVE_TASK", "CANCEL_TASK")
)
"""What a server may send."""

CLIENT_WORDS: Final = _KNOWN - _OF_SERVERS
"""What a follower may send."""


def text_of(line: bytes) -> str:
    """A line as text; a CR before the LF is dropped. Raises `NotText`."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise NotText("the line is not UTF-8", offset=error.start) from None
    return text[:-1] if text.endswith("\r") else text


def parse(text: str, dialect: Dialect) -> Command:
    """One line. A word that is not known gives `Plain` with `known` False.

    Raises `DecodeError` for arguments that are not what the word takes in that dialect.
    """
    word, _, rest = text.partition(" ")
    parser = _PARSERS.get(word)
    if parser is not None:
        return parser(rest, dialect)
    return _parse_counted(word, rest) if word in _COUNTED else Plain(word, rest, word in _FREE)


# --- writing --------------------------------------------------------------------------------------
def _arguments(command: Command, dialect: Dialect) -> tuple[str, tuple[str, ...]]:
    first = dialect is Dialect.D1
    match command:
        case Rdata(stream, instance, token, row):
            number = BATCH if token is None else str(token)
            where = (stream,) if first else (stream, instance)
            return "RDATA", (*where, number, row)
        case Position(stream, instance, previous, token):
            if first:
                return "POSITION", (stream, str(token))
            if dialect is Dialect.D2:
                return "POSITION", (stream, instance, str(token))
            return "POSITION", (stream, instance, str(previous), str(token))
        case Replicate(stream, token):
            if not first:
                return "REPLICATE", ("",)
            return "REPLICATE", (stream, NOW if token is None else str(token))
        case FederationAck(instance, token):
            return "FEDERATION_ACK", (str(token),) if first else (instance, str(token))
        case Plain(word, text):
            return word, (text,)


def encode(command: Command, dialect: Dialect) -> bytes:
    """One command as a line with its LF.

    Raises `LocalProtocolError` if an argument cannot be written (a space in an identifier, a
    LF), `LimitExceeded` if the line is too long.
    """
    word, arguments = _arguments(command, dialect)
    if any(" " in one or not one for one in arguments[:-1]):
        raise LocalProtocolError(f"{word} cannot be written: {arguments[:-1]} hold a space")
    line = f"{word} {' '.join(arguments)}"
    if "\n" in line:
        raise LocalProtocolError(f"{word} cannot be written: it holds a line end")
    data = line.encode("utf-8", "backslashreplace")
    if len(data) > SYNAPSE_LINE_BYTES:
        raise LimitExceeded("SYNAPSE_LINE_BYTES", SYNAPSE_LINE_BYTES, len(data))
    return data + b"\n"


# --- rows -----------------------------------------------------------------------------------------
def _refuse_constant(name: str) -> Value:
    raise ValueError(f"{name} is no JSON")


_JSON: Final = json.JSONDecoder(parse_constant=_refuse_constant)

_DEPTH: Final = MSGPACK_DEPTH - 1
"""Of a row: it stands in a tuple."""


def _depth(value: Value) -> int:
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, list | dict)]:
        depth += 1
        level = [item for one in level for item in (one.values() if type(one) is dict else one)]
    return depth


def encode_row(text: str) -> bytes:
    """One JSON text as MsgPack. Raises `DecodeError`."""
    return encode_value(read_json(text))


def read_json(text: str, what: str = "it") -> Value:
    """One JSON text. `what`: it is called in errors. Raises `DecodeError`."""
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{what} is not JSON: {error}") from error


def encode_value(value: Value) -> bytes:
    """One value that was JSON, as MsgPack. Raises `DecodeError`."""
    try:
        if _depth(value) > _DEPTH:
            raise ValueError(f"it is nested deeper than {_DEPTH}")
        packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
        if len(packed) > SYNAPSE_ROW_BYTES:
            raise ValueError(f"it has {len(packed)} bytes, {SYNAPSE_ROW_BYTES} are the most")
    except (ValueError, TypeError, OverflowError) as error:
        raise DecodeError(f"the row cannot be stored: {error}") from error
    return packed


def decode_row_value(packed: bytes) -> Value:
    """The values of a stored row."""
    return msgpack.unpackb(packed, raw=False, strict_map_key=False, unicode_errors="surrogatepass")


_SPACED: Final = json.JSONEncoder(allow_nan=False)
_COMPACT: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def row_text(value: Value, *, spaced: bool) -> str:
    """A value that came from JSON, as JSON. `spaced`: as D1 writes it."""
    encoder = _SPACED if spaced else _COMPACT
    try:
        return encoder.encode(value)
    except (ValueError, TypeError):  # nothing that Synapse sent
        return encoder.encode(to_json(value))


def row_json(value: Value) -> str:
    """Any value as JSON, as `logweir.wal.render` writes it, on one ASCII line."""
    return _COMPACT.encode(to_json(value))


# --- names ----------------------------------------------------------------------------------------
def stream_of_space(name: str) -> str:
    """The stream's name of a space: all but `A-Z a-z 0-9 _ - .` percent-encoded."""
    return urllib.parse.quote(name, safe="").replace("~", "%7E")


def instance_label(instance: str, epoch: int) -> str:
    """What an instance is called in stored rows: `name#2` after its tokens began anew once."""
    label = instance.replace("%", "%25").replace("#", "%23")
    return label if epoch <= 1 else f"{label}#{epoch}"


def read_label(label: str) -> tuple[str, int]:
    """The reverse of `instance_label`."""
    name, _, epoch = label.partition("#")
    number = int(epoch) if epoch.isascii() and epoch.isdigit() else 1
    return name.replace("%23", "#").replace("%25", "%"), number
