"""A token: a place in the log of one replica set, as text that a program keeps.

``lw1`` + base64 (the URL's alphabet, no padding) of a MsgPack array and its checksum, 4 bytes,
big-endian. The array: the replica set's UUID (16 bytes), lsn by replica id, and the checksum of
what was asked for (spaces and key, as MsgPack; 0 for all), so that a token is not used where it
would leave changes out. The checksum is that of `logweir.wal.crc32c`.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from logweir.errors import ConfigError, LogweirError
from logweir.store.engine.request import pack_value
from logweir.wal.crc32c import checksum
from logweir.wal.mp import Value, pack, unpack
from logweir.wal.vclock import VClock

_PREFIX: Final = "lw1"
_CHARACTERS: Final = 2048


def chosen(spaces: Sequence[int | str], key: Value) -> int:
    """The checksum of what is asked for; 0 for all. Raises `RequestError` for what is no key."""
    names = sorted(map(str, spaces))
    return checksum(pack_value([names, key], "the key")) if names else 0


@dataclass(frozen=True, slots=True)
class Token:
    """`replicaset`: the UUID of the log; `vclock`: what was given; `chosen`: see `chosen`."""

    replicaset: uuid.UUID
    vclock: VClock
    chosen: int = 0

    def __str__(self) -> str:
        body = pack([self.replicaset.bytes, dict(self.vclock), self.chosen])
        whole = body + checksum(body).to_bytes(4, "big")
        return _PREFIX + base64.urlsafe_b64encode(whole).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str, *, origin: str = "after") -> Self:
        """Read the text. Raises `ConfigError` that says what is wrong with it."""
        if not text.startswith(_PREFIX) or not len(text) <= _CHARACTERS:
            raise _no_token(origin, f"it does not begin with {_PREFIX!r}, or is too long")
        coded = text.removeprefix(_PREFIX)
        try:
            whole = base64.b64decode(coded + "=" * (-len(coded) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise _no_token(origin, "it is no base64") from error
        body, told = whole[:-4], whole[-4:]
        if not body or checksum(body) != int.from_bytes(told, "big"):
            raise _no_token(origin, "its checksum is wrong: it was changed or cut")
        try:
            found, vclock, what = unpack(body)
            token = cls(uuid.UUID(bytes=found), VClock(vclock), what)
        except (LogweirError, TypeError, ValueError, AttributeError) as error:
            raise _no_token(origin, "it holds no position") from error
        if str(token) != text:
            raise _no_token(origin, "it is written in another way")
        return token


def _no_token(origin: str, reason: str) -> ConfigError:
    return ConfigError(
        "token", f"is no token: {reason}", origin=origin, hint="give it as it was told"
    )
