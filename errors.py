"""Every error that logweir raises on purpose.

::

    LogweirError                  message, hint
    ├─ DecodeError                reason, offset          bytes that are not what they should be
    ├─ WalError                   path, offset            a log, snapshot or directory on disk
    │  ├─ CorruptFile             reason                  header, or file as a whole, cannot be used
    │  ├─ CorruptBlock            reason                  damage inside a file
    │  ├─ ChainGap                expected, found         files do not follow one another
    │  ├─ RecoveryRefused         report                  what is on disk would lose rows if opened
    │  ├─ WriteFailed             errno                   nothing of the batch is in the log
    │  ├─ WriterPoisoned          first_cause             a sync failed: nothing more is taken
    │  ├─ StateFailed                                    made, but seen only after opening again
    │  ├─ LogStopped                                     after a failure nothing more is taken
    │  └─ DirectoryLocked         pid                     another process owns the folder
    ├─ RequestError               code, name              a change or read that the store refuses
    │  └─ UsedAfterFork                                   a child uses what its parent opened
    ├─ ProtocolError              (never raised itself)   a conversation with a peer
    │  ├─ LocalProtocolError                              we were asked to send what is not allowed
    │  └─ RemoteProtocolError     reply_hint              the peer sent what is not allowed
    ├─ LimitExceeded              limit_name, limit, got  see `logweir.limits`
    ├─ PositionUnavailable        wanted, oldest, newest  the log no longer holds that position
    ├─ WrongHistory               expected, found         a position of another log
    ├─ CallbackFailed             function, position      a program's own function raised
    ├─ StreamGap                  position, found         a follower would have missed rows
    ├─ PeerRefused                result, name            a peer answered with an error of its own
    ├─ SourceStopped                                      an upstream that only an operator can mend
    ├─ ConfigError                key, origin             a setting
    └─ Unreachable                url                     a peer that does not answer

Each says in one sentence what happened, where, and in `hint` what to do next.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CallbackFailed",
    "ChainGap",
    "ConfigError",
    "CorruptBlock",
    "CorruptFile",
    "DecodeError",
    "DirectoryLocked",
    "ErrorCode",
    "LimitExceeded",
    "LocalProtocolError",
    "LogStopped",
    "LogweirError",
    "PeerRefused",
    "PositionUnavailable",
    "ProtocolError",
    "RecoveryRefused",
    "RemoteProtocolError",
    "RequestError",
    "SourceStopped",
    "StateFailed",
    "StreamGap",
    "Unreachable",
    "UsedAfterFork",
    "WalError",
    "WriteFailed",
    "WriterPoisoned",
    "WrongHistory",
]

_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:/{1,2})([^/\s]\S*)")
_VALUES: Final = re.compile(
    r"(?i)((?:^|[&;])(?!password_file=)[\w.-]*"
    r"(?:secret|token|passw|pwd|access_?key|account_?key|api_?key|credential|signature|\bsig(?==))"
    r"[^=&;]*=)[^&;]*?(?=['\"]?[,:.)\]]*$|[&;])"
)


def without_secrets(text: str) -> str:
    """Text as it may be shown: of addresses in it without what stands in front of an `@` where a
    password is among that, and without values of options that are called like secrets.

    Where nobody can tell how far a password goes, as with a `?` in it, nothing behind the scheme
    is left. A password with a `/` in it is one, though by RFC 3986 the host ended there.
    """
    return _ADDRESS.sub(_cut, text) if ":/" in text else text


def _cut(address: re.Match[str]) -> str:
    head, mark, options = address[2].partition("?")
    before = head.find(":")
    if before >= 0 and "@" in address[2][before:]:
        if "@" in options:
            return f"{address[1]}…"
        head = "…@" + head.rpartition("@")[2]
    return address[1] + head + mark + _VALUES.sub(r"\1…", options)


class LogweirError(Exception):
    """The root of the tree. `message`: one sentence, which shows no password of an address;
    `hint`: what to do next, or ""."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        message = without_secrets(message)
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        # Those of Tarantool are no sentences: what its users look for ends without a full stop.
        stop = "" if self.message.endswith((".", "!", "?", "…")) else "."
        return f"{self.message}{stop} Hint: {self.hint}"


class DecodeError(LogweirError):
    """Bytes that do not hold what they should. `offset`: where in the buffer, in bytes; None: the
    whole of it, or not known."""

    def __init__(self, reason: str, *, offset: int | None = None, hint: str = "") -> None:
        super().__init__(reason if offset is None else f"{reason} (at byte {offset})", hint=hint)
        self.reason = reason
        self.offset = offset


class WalError(LogweirError):
    """Something on disk. `path`: the file or folder; `offset`: byte in it, None for the whole;
    `reason`: the message without them."""

    def __init__(
        self, message: str, *, path: str = "", offset: int | None = None, hint: str = ""
    ) -> None:
        where = ""
        path, message = without_secrets(path), without_secrets(message)
        if path:
            where = path if offset is None else f"{path} at byte {offset}"
            where += ": "
        super().__init__(where + message, hint=hint)
        self.path = path
        self.offset = offset
        self.reason = message


class CorruptFile(WalError):
    """A file whose header cannot be used, or that is not a log or snapshot at all."""


class CorruptBlock(WalError):
    """Damage inside a file: rows are missing or cannot be trusted from `offset` on."""


class ChainGap(WalError):
    """Two files do not follow one another: rows between `expected` and `found` are missing."""

    def __init__(
        self, message: str, *, path: str = "", expected: object, found: object, hint: str = ""
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.expected = expected
        self.found = found


class RecoveryRefused(WalError):
    """Opening this folder would lose rows. `report`: the `logweir.recovery.RecoveryReport`."""

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        offset: int | None = None,
        report: Any,
        hint: str = "",
    ) -> None:
        super().__init__(message, path=path, offset=offset, hint=hint)
        self.report = report


class WriteFailed(WalError):
    """A write failed before its sync: the file is cut back and holds nothing of the batch."""

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        offset: int | None = None,
        errno: int = 0,
        hint: str = "",
    ) -> None:
        super().__init__(message, path=path, offset=offset, hint=hint)
        self.errno = errno


class WriterPoisoned(WalError):
    """A sync, or the cut after a failed write, failed. Nothing more is acknowledged.

    The batch in flight may or may not be on disk; opening the folder again tells.
    """

    def __init__(self, message: str, *, path: str = "", first_cause: BaseException) -> None:
        super().__init__(
            message,
            path=path,
            hint="the disk lost data or may have; check it, then open the folder again",
        )
        self.first_cause = first_cause


class StateFailed(WalError):
    """The state could not take a change that is in the log. The change is made, as durable as
    `durability` says, and there when the folder is opened again."""


class LogStopped(WalError):
    """Writing was stopped by a failure or an interrupt, which is the cause; until the folder is
    opened again nothing more is written. What is asked for after it is not made; of the change that
    was stopped in the middle, opening again tells."""


class DirectoryLocked(WalError):
    """Another process has the folder open for writing. `pid`: its process id, 0 if unknown."""

    def __init__(self, message: str, *, path: str = "", pid: int = 0, hint: str = "") -> None:
        super().__init__(message, path=path, hint=hint)
        self.pid = pid


class ErrorCode(IntEnum):
    """Tarantool's error numbers that a store, a DML server or a replication source needs.

    Source: Tarantool 2.6.0 (read in `errcode.h`, most observed); from 229 on 2.11 (read).
    """

    UNKNOWN = 0
    ILLEGAL_PARAMS = 1
    MEMORY_ISSUE = 2
    TUPLE_FOUND = 3
    TUPLE_NOT_FOUND = 4
    UNSUPPORTED = 5
    NONMASTER = 6
    READONLY = 7
    CREATE_SPACE = 9
    SPACE_EXISTS = 10
    DROP_SPACE = 11
    ALTER_SPACE = 12
    INDEX_TYPE = 13
    MODIFY_INDEX = 14
    LAST_DROP = 15
    DROP_PRIMARY_KEY = 17
    KEY_PART_TYPE = 18
    EXACT_MATCH = 19
    INVALID_MSGPACK = 20
    TUPLE_NOT_ARRAY = 22
    FIELD_TYPE = 23
    INDEX_PART_TYPE_MISMATCH = 24
    UPDATE_SPLICE = 25
    UPDATE_ARG_TYPE = 26
    FORMAT_MISMATCH_INDEX_PART = 27
    UNKNOWN_UPDATE_OP = 28
    UPDATE_FIELD = 29
    FUNCTION_TX_ACTIVE = 30
    KEY_PART_COUNT = 31
    PROC_LUA = 32
    NO_SUCH_PROC = 33
    NO_SUCH_INDEX_ID = 35
    NO_SUCH_SPACE = 36
    NO_SUCH_FIELD_NO = 37
    EXACT_FIELD_COUNT = 38
    FIELD_MISSING = 39
    WAL_IO = 40
    MORE_THAN_ONE_TUPLE = 41
    ACCESS_DENIED = 42
    CREATE_USER = 43
    DROP_USER = 44
    NO_SUCH_USER = 45
    USER_EXISTS = 46
    PASSWORD_MISMATCH = 47
    UNKNOWN_REQUEST_TYPE = 48
    UNKNOWN_SCHEMA_OBJECT = 49
    CREATE_FUNCTION = 50
    NO_SUCH_FUNCTION = 51
    MULTISTATEMENT_TRANSACTION = 54
    USER_MAX = 56
    NO_SUCH_ENGINE = 57
    CFG = 59
    UNKNOWN_REPLICA = 62
    REPLICASET_UUID_MISMATCH = 63
    INVALID_UUID = 64
    REPLICASET_UUID_IS_RO = 65
    INSTANCE_UUID_MISMATCH = 66
    REPLICA_ID_IS_RESERVED = 67
    INVALID_ORDER = 68
    MISSING_REQUEST_FIELD = 69
    IDENTIFIER = 70
    DROP_FUNCTION = 71
    ITERATOR_TYPE = 72
    REPLICA_MAX = 73
    INVALID_XLOG = 74
    INVALID_XLOG_NAME = 75
    INVALID_XLOG_ORDER = 76
    NO_CONNECTION = 77
    TIMEOUT = 78
    ACTIVE_TRANSACTION = 79
    NO_SUCH_ROLE = 82
    CREATE_ROLE = 84
    INDEX_EXISTS = 85
    SESSION_CLOSED = 86
    ROLE_LOOP = 87
    GRANT = 88
    MISSING_SNAPSHOT = 93
    CANT_UPDATE_PRIMARY_KEY = 94
    UPDATE_INTEGER_OVERFLOW = 95
    TRANSACTION_CONFLICT = 97
    FUNCTION_LANGUAGE = 100
    PROTOCOL = 104
    WRONG_INDEX_RECORD = 106
    WRONG_INDEX_PARTS = 107
    WRONG_INDEX_OPTIONS = 108
    WRONG_SCHEMA_VERSION = 109
    MEMTX_MAX_TUPLE_SIZE = 110
    WRONG_SPACE_OPTIONS = 111
    UNSUPPORTED_INDEX_FEATURE = 112
    VIEW_IS_RO = 113
    NO_TRANSACTION = 114
    SYSTEM = 115
    LOADING = 116
    CONNECTION_TO_SELF = 117
    COMPRESSION = 119
    CHECKPOINT_IN_PROGRESS = 120
    DECOMPRESSION = 124
    INVALID_XLOG_TYPE = 125
    ALREADY_RUNNING = 126
    LOCAL_INSTANCE_ID_IS_READ_ONLY = 128
    CHECKPOINT_ROLLBACK = 134
    PARTIAL_KEY = 136
    TRUNCATE_SYSTEM_SPACE = 137
    WRONG_DD_VERSION = 140
    WRONG_SPACE_FORMAT = 141
    CREATE_SEQUENCE = 142
    ALTER_SEQUENCE = 143
    DROP_SEQUENCE = 144
    NO_SUCH_SEQUENCE = 145
    SEQUENCE_OVERFLOW = 147
    NO_SUCH_INDEX_NAME = 148
    SPACE_FIELD_IS_DUPLICATE = 149
    CANT_CREATE_COLLATION = 150
    WRONG_COLLATION_OPTIONS = 151
    NULLABLE_PRIMARY = 152
    NO_SUCH_GROUP = 155
    UPDATE_DECIMAL_OVERFLOW = 160
    ACTION_MISMATCH = 162
    VIEW_MISSING_SQL = 163
    DROP_COLLATION = 173
    SQL_SYNTAX = 184
    SQL_UNKNOWN_TOKEN = 185
    SQL_PARSER_LIMIT = 191
    MULTIKEY_INDEX_MISMATCH = 194
    CREATE_CK_CONSTRAINT = 195
    FUNC_INDEX_PARTS = 200
    NO_SUCH_FIELD_NAME = 201
    BOOTSTRAP_READONLY = 203
    SQL_BIND_IN_DDL = 206
    REPLICA_NOT_ANON = 207
    CANNOT_REGISTER = 208
    UNCOMMITTED_FOREIGN_SYNC_TXNS = 214
    SYNC_MASTER_MISMATCH = 215
    UNABLE_TO_PROCESS_IN_STREAM = 229
    UNABLE_TO_PROCESS_OUT_OF_STREAM = 230
    TRANSACTION_TIMEOUT = 231
    ITERATOR_POSITION = 247


class RequestError(LogweirError):
    """A change or a read that the store refuses, with Tarantool's error number.

    `code`: the number; `name`: its name in Tarantool, such as "TUPLE_FOUND"; `details`: what the
    message is made of (space, index, field, …) for programs.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        hint: str = "",
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.name = code.name
        self.details = dict(details or {})


class UsedAfterFork(RequestError):
    """A child made by `fork` uses what its parent opened. Nothing was done, to neither of them."""

    def __init__(self, what: str) -> None:
        super().__init__(
            ErrorCode.SESSION_CLOSED,
            f"{what} was opened before this process was forked: it belongs to the parent",
            hint="open the folder in the process that uses it, once nobody else has it open; "
            "`logweir.read` and `logweir cat` read it at any time",
        )


class ProtocolError(LogweirError):
    """A conversation with a peer went wrong. Only its two kinds are raised."""


class LocalProtocolError(ProtocolError):
    """We were about to send something that the protocol forbids in this state."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids. `reply_hint`: what to answer, if any."""

    def __init__(self, message: str, *, hint: str = "", reply_hint: object = None) -> None:
        super().__init__(message, hint=hint)
        self.reply_hint = reply_hint


class LimitExceeded(LogweirError):
    """Something is larger than logweir takes. `limit_name`: the name in `logweir.limits`."""

    def __init__(self, limit_name: str, limit: int, got: int, *, hint: str = "") -> None:
        super().__init__(f"{limit_name} is {limit}, got {got}.", hint=hint)
        self.limit_name = limit_name
        self.limit = limit
        self.got = got


class PositionUnavailable(LogweirError):
    """The log does not hold the rows after `wanted`; it holds those from `oldest` to `newest`.

    Times are floats, seconds since 1970, and told in UTC.
    """

    def __init__(self, wanted: object, oldest: object, newest: object, *, hint: str = "") -> None:
        what = "time" if isinstance(wanted, float) else "position"
        told, begin, end = (_moment(one) for one in (wanted, oldest, newest))
        held = begin if begin == end == "nothing" else f"{begin} to {end}"
        super().__init__(f"{what} {told} is not in the log, which holds {held}.", hint=hint)
        self.wanted = wanted
        self.oldest = oldest
        self.newest = newest


class WrongHistory(LogweirError):
    """A position that was noted of one log is asked of another. `expected`: the UUID of the replica
    set it was noted of; `found`: of the one that was asked, None if it tells none."""

    def __init__(self, where: str, expected: object, found: object) -> None:
        super().__init__(
            f"the token is of replica set {expected}, {where} is of {found or 'an unknown one'}.",
            hint="give the log it was taken of; or begin anew, without a token",
        )
        self.expected = expected
        self.found = found


class CallbackFailed(LogweirError):
    """A function that takes changes raised; what it raised is the `__cause__`. `function`: its
    name; `position`: the vclock after the transaction it was given, which is not taken."""

    def __init__(self, function: str, position: object, cause: BaseException, what: str) -> None:
        said = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        super().__init__(
            f"{function} raised {said}, given the transaction up to {position} ({what}).",
            hint="nothing was skipped: mend the function, and start again with this transaction",
        )
        self.function = function
        self.position = position


def _moment(value: object) -> object:
    """A time as people read it; anything else, and what no calendar has, as it is."""
    if isinstance(value, float):
        try:
            return datetime.fromtimestamp(value, UTC).isoformat().replace("+00:00", "Z")
        except (ValueError, OverflowError, OSError):
            pass
    return value


class StreamGap(LogweirError):
    """A follower at `position` was to be given rows after `found`: it would have missed some."""

    def __init__(self, position: object, found: object) -> None:
        super().__init__(
            f"the rows after {found} do not follow the position {position}: some would be missed.",
            hint="nothing was sent: connect again; this is a fault of the server, please report it",
        )
        self.position = position
        self.found = found


class PeerRefused(LogweirError):
    """A peer answered a request of ours with an error of its protocol.

    `result`: its number there; `name`: what it is called there.
    """

    def __init__(self, message: str, *, result: IntEnum, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.result = result
        self.name = result.name


class SourceStopped(LogweirError):
    """Following an upstream ended, and another attempt would end the same way."""


class ConfigError(LogweirError):
    """A setting that cannot be. `key`: its name; `origin`: where the value came from."""

    def __init__(self, key: str, message: str, *, origin: str = "argument", hint: str = "") -> None:
        super().__init__(f"{key} ({origin}): {message}", hint=hint)
        self.key = key
        self.origin = origin


class Unreachable(LogweirError):
    """A peer that cannot be reached. `url`: its address, without any password."""

    def __init__(self, url: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"{url}: {message}", hint=hint)
        self.url = url
