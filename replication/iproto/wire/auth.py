"""Proving who one is: the method `chap-sha1`. Pure functions.

salt = first 20 bytes of the greeting's noise. s1 = sha1(password), s2 = sha1(s1), s3 = sha1(salt +
s2), scramble = s1 xor s3. The server keeps base64(s2) in field 5 of `_user`, ``{"chap-sha1": …}``,
and checks that sha1(scramble xor s3) is s2. Body of AUTH: {23: user, 21: [method, scramble]}.
Tarantool 2.6.0 does not look at the method's name, takes the scramble as str or bin, and lets
`guest` in with an empty array (observed). Whoever listens can try passwords offline: without TLS it
is for trusted networks only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from logweir.errors import DecodeError, ErrorCode, LimitExceeded, RequestError
from logweir.wal.mp import unpack

SCRAMBLE_BYTES = 20


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def scramble(password: str, salt: bytes) -> bytes:
    """The 20 bytes that prove to know `password`. `salt`: 20 bytes of the greeting."""
    once = _sha1(password.encode())
    return _xor(once, _sha1(salt + _sha1(once)))


def check(kept: str, salt: bytes, proof: bytes) -> bool:
    """Whether `proof` (20 bytes) was made from the password of which `kept` is the verifier."""
    try:
        twice = base64.b64decode(kept, validate=True)
    except (binascii.Error, ValueError):
        return False
    once = _xor(proof, _sha1(salt + twice))
    return hmac.compare_digest(_sha1(once), twice)


def read_scramble(data: bytes) -> bytes:
    """The proof in the array of an AUTH request; b"" for an empty array.

    `data`: MsgPack of an array. Raises `RequestError` 20.
    """
    try:
        parts = unpack(data)
    except (DecodeError, LimitExceeded) as error:
        raise RequestError(ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - packet body") from error
    if parts == []:
        return b""
    pair = isinstance(parts, list) and len(parts) >= 2
    if not pair or not isinstance(parts[0], str) or not isinstance(parts[1], str | bytes):
        raise RequestError(
            ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - authentication request body"
        )
    proof = parts[1]
    if isinstance(proof, str):
        proof = proof.encode("utf-8", "surrogateescape")
    if len(proof) != SCRAMBLE_BYTES:
        raise RequestError(ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - invalid scramble size")
    return proof
