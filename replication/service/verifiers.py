"""What is kept of passwords: Tarantool's own verifier, and what SCRAM and CRAM-MD5 need besides.

Tarantool's (`chap-sha1`, base64 of the double sha1) is a field of `_user`. The others stand in the
space `logweir_verifier`, which stays on this instance: user string, mechanism string, made_for
string, salt varbinary, iterations unsigned, stored varbinary, server varbinary; primary key (user,
mechanism).

=============  =====================================================================================
mechanism      salt, iterations, stored, server
=============  =====================================================================================
SCRAM-SHA-1    RFC 5802: salt of 16 random bytes, 4096, StoredKey, ServerKey
SCRAM-SHA-256
SCRAM-SHA-512
CRAM-MD5       "", 0, 32 bytes: MD5's state after the block `key xor 36…`, then that after the
               block `key xor 5c…` (key: the password, its MD5 if longer than 64 bytes, filled up
               with zeros to 64), each as four little-endian u32; ""
=============  =====================================================================================

`made_for` is the `chap-sha1` verifier that the user had then: once the password is another one,
however that came about, these count no more. They are made where the password is known: when it is
set by us, and when a client says it (SASL PLAIN). No password can be read from them, but whoever
has the one for CRAM-MD5 can log in by CRAM-MD5 with it. Source: RFC 1321, 2104, 2195, 5802.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import os
import struct
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final

from logweir.store.engine.request import Request
from logweir.wal.mp import Value, pack
from logweir.wal.xrow import RowType

if TYPE_CHECKING:  # clients log in without a store
    from logweir.store.commit.group import Group
    from logweir.store.log import Log

VERIFIERS_SPACE: Final = "logweir_verifier"
CRAM: Final = "CRAM-MD5"
SCRAM_HASHES: Final = {
    "SCRAM-SHA-1": "sha1",
    "SCRAM-SHA-256": "sha256",
    "SCRAM-SHA-512": "sha512",
}
_FORMAT: Final = (
    ("user", "string"),
    ("mechanism", "string"),
    ("made_for", "string"),
    ("salt", "varbinary"),
    ("iterations", "unsigned"),
    ("stored", "varbinary"),
    ("server", "varbinary"),
)
_ITERATIONS: Final = 4096
_SALT_BYTES: Final = 16
_MD5_BLOCK_BYTES: Final = 64


def verifier(password: str) -> str:
    """What `_user` keeps of a password for `chap-sha1`: base64 of its double sha1."""
    once = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    return base64.b64encode(hashlib.sha1(once, usedforsecurity=False).digest()).decode()


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What a server keeps for SCRAM; the password cannot be read from it."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def scram_verifier(
    mechanism: str, password: str, salt: bytes, iterations: int = _ITERATIONS
) -> ScramVerifier:
    """The verifier of a password for one of `SCRAM_HASHES`."""
    name = SCRAM_HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramVerifier(
        salt,
        iterations,
        hashlib.new(name, client_key).digest(),
        hmac.digest(salted, b"Server Key", name),
    )


# --- CRAM-MD5 -------------------------------------------------------------------------------------

_INITIAL: Final = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_SINES: Final = tuple(int(abs(math.sin(i + 1)) * 2**32) for i in range(64))
_SHIFTS: Final = ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21))
_WORD: Final = 0xFFFFFFFF
_State = tuple[int, int, int, int]


def _md5_block(state: _State, block: bytes) -> _State:
    """MD5's compression of one block of 64 bytes."""
    words = struct.unpack("<16I", block)
    a, b, c, d = state
    for i in range(64):
        match i >> 4:
            case 0:
                mixed, place = (b & c) | (~b & d), i
            case 1:
                mixed, place = (d & b) | (~d & c), (5 * i + 1) & 15
            case 2:
                mixed, place = b ^ c ^ d, (3 * i + 5) & 15
            case _:
                mixed, place = c ^ (b | (~d & _WORD)), (7 * i) & 15
        total = (a + mixed + _SINES[i] + words[place]) & _WORD
        shift = _SHIFTS[i >> 4][i & 3]
        turned = ((total << shift) | (total >> (32 - shift))) & _WORD
        a, d, c, b = d, c, b, (b + turned) & _WORD
    before = state
    return (
        (before[0] + a) & _WORD,
        (before[1] + b) & _WORD,
        (before[2] + c) & _WORD,
        (before[3] + d) & _WORD,
    )


def _finish_md5(state: _State, data: bytes) -> bytes:
    """The digest of one block, of which `state` is left, and `data` after it."""
    bits = 8 * (_MD5_BLOCK_BYTES + len(data))
    padded = data + b"\x80" + bytes(-(len(data) + 9) % _MD5_BLOCK_BYTES) + struct.pack("<Q", bits)
    for at in range(0, len(padded), _MD5_BLOCK_BYTES):
        state = _md5_block(state, padded[at : at + _MD5_BLOCK_BYTES])
    return struct.pack("<4I", *state)


def cram_verifier(password: str) -> bytes:
    """What is kept of a password for CRAM-MD5: 32 bytes."""
    key = password.encode()
    if len(key) > _MD5_BLOCK_BYTES:
        key = hashlib.md5(key, usedforsecurity=False).digest()
    key = key.ljust(_MD5_BLOCK_BYTES, b"\0")
    states = (_md5_block(_INITIAL, bytes(byte ^ pad for byte in key)) for pad in (0x36, 0x5C))
    return b"".join(struct.pack("<4I", *state) for state in states)


def cram_digest(kept: bytes, challenge: bytes) -> bytes:
    """HMAC-MD5 of a challenge under the password of which `kept` is left: 16 bytes."""
    inner: _State = struct.unpack("<4I", kept[:16])
    outer: _State = struct.unpack("<4I", kept[16:])
    return _finish_md5(outer, _finish_md5(inner, challenge))


# --- the space ------------------------------------------------------------------------------------


def make_space(log: Log) -> None:
    """Make the space if it is missing."""
    log.create_space(
        VERIFIERS_SPACE, _FORMAT, primary=("user", "mechanism"), local=True, if_not_exists=True
    )


def _rows(user: str, password: str, made_for: str) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = [(user, CRAM, made_for, b"", 0, cram_verifier(password), b"")]
    for mechanism in SCRAM_HASHES:
        made = scram_verifier(mechanism, password, os.urandom(_SALT_BYTES))
        rows.append((user, mechanism, made_for, *astuple(made)))
    return rows


def keep(log: Log, user: str, password: str, made_for: str) -> list[Request]:
    """The requests that keep the verifiers of a password. `made_for`: its `chap-sha1` verifier."""
    number = log.schema.space(VERIFIERS_SPACE).id
    rows = _rows(user, password, made_for)
    return [Request(RowType.REPLACE, number, tuple=pack(row)) for row in rows]


def forget(log: Log, user: str) -> list[Request]:
    """The requests that remove a user's verifiers."""
    space = log.schema.get(VERIFIERS_SPACE)
    if space is None:
        return []
    keys = [(user, mechanism) for mechanism in (CRAM, *SCRAM_HASHES)]
    return [Request(RowType.DELETE, space.id, key=pack(key)) for key in keys]


def change(group: Group, requests: list[Request]) -> None:
    """Do what `keep` or `forget` asks for, inside a commit."""
    for request in requests:
        group.execute(request)


def _find(log: Log, user: str, mechanism: str, made_for: str) -> tuple[Any, ...] | None:
    if log.schema.get(VERIFIERS_SPACE) is None:
        return None
    row = log.get(VERIFIERS_SPACE, (user, mechanism))
    return tuple(row) if row is not None and row[2] == made_for else None


def find_cram(log: Log, user: str, made_for: str) -> bytes | None:
    """What is kept for CRAM-MD5, if it was made of the password that the user has now."""
    row = _find(log, user, CRAM, made_for)
    kept: bytes | None = None if row is None else row[5]
    return kept


def find_scram(log: Log, user: str, mechanism: str, made_for: str) -> ScramVerifier | None:
    """What is kept for SCRAM, if it was made of the password that the user has now."""
    row = _find(log, user, mechanism, made_for)
    return None if row is None else ScramVerifier(*row[3:7])
