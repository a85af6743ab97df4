"""SASL as memcached clients use it: each side of one authentication. No I/O, no clock.

===========  ========================================  ============================================
mechanism    client                                    server
===========  ========================================  ============================================
PLAIN        authzid NUL user NUL password; the        –
             authzid is not looked at
CRAM-MD5     nothing; then user SP hex(hmac-md5(       challenge `<random@logweir>`
             password, challenge))
SCRAM-SHA-1  RFC 5802 without channel binding          the same
-256, -512
===========  ========================================  ============================================

CRAM-MD5 and SCRAM need a verifier of the user (`logweir.replication.service.verifiers`); PLAIN only
a check of the password. Source: RFC
4616, 2195, 5802; ep-engine's test server and memcached 1.8.1 (observed).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from logweir.errors import RemoteProtocolError
from logweir.limits import SCRAM_ITERATIONS_MAX
from logweir.replication.service.verifiers import CRAM, SCRAM_HASHES, ScramVerifier, cram_digest

MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-1", "CRAM-MD5", "PLAIN")


class Credentials(Protocol):
    """Who may come in."""

    def mechanisms(self) -> Sequence[str]:
        """Those of `MECHANISMS` that can be checked."""

    def check_password(self, user: str, password: str) -> bool:
        """Whether that is the user's password."""

    def cram(self, user: str) -> bytes | None:
        """What is kept of the user's password for CRAM-MD5; None if there is nothing."""

    def scram(self, user: str, mechanism: str) -> ScramVerifier | None:
        """The user's verifier; None if there is none."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The client is that user now."""

    user: str


@dataclass(frozen=True, slots=True)
class LoginFailed:
    """The client is not that user; "" if it has not said whom it means."""

    user: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """`user`: who it is, once known; `challenge`: what is sent; both None: refused."""

    user: str | None = None
    challenge: bytes | None = None


class Authentication:
    """The server's side of one attempt. `random`: returns that many random bytes."""

    def __init__(
        self, credentials: Credentials, mechanism: str, random: Callable[[int], bytes]
    ) -> None:
        self.mechanism = mechanism
        self._credentials = credentials
        self._random = random
        self._challenge = b""
        self._proof: Callable[[bytes], bytes | None] | None = None
        self._user = ""
        self.claimed = ""
        """Who the client says that it is, as far as it has said so."""

    def step(self, data: bytes) -> Outcome:
        """Take what the client sent. A refusal ends the attempt."""
        if self.mechanism not in self._credentials.mechanisms():
            return Outcome()
        try:
            if self.mechanism == "PLAIN":
                return self._plain(data)
            if self.mechanism == CRAM:
                return self._cram(data)
            return self._scram_first(data) if self._proof is None else self._scram_last(data)
        except (UnicodeDecodeError, ValueError, KeyError, binascii.Error):
            return Outcome()

    def _plain(self, data: bytes) -> Outcome:
        _, user, password = data.decode().split("\0")
        self.claimed = user
        right = self._credentials.check_password(user, password)
        return Outcome(user=user) if right else Outcome()

    def _cram(self, data: bytes) -> Outcome:
        if not self._challenge:
            self._challenge = b"<%s@logweir>" % self._random(16).hex().encode()
            return Outcome(challenge=self._challenge)
        user, digest = data.decode().rsplit(" ", 1)
        self.claimed = user
        kept = self._credentials.cram(user)
        wanted = cram_digest(kept or bytes(32), self._challenge).hex()
        right = hmac.compare_digest(wanted.encode(), digest.encode())
        return Outcome(user=user) if right and kept is not None else Outcome()

    def _scram_first(self, data: bytes) -> Outcome:
        binding, _, bare = data.decode().split(",", 2)
        if binding not in ("n", "y"):
            return Outcome()
        fields = _fields(bare)
        user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        self.claimed = user
        verifier = self._credentials.scram(user, self.mechanism)
        if verifier is None:
            return Outcome()
        nonce = fields["r"] + self._random(18).hex()
        salt = base64.b64encode(verifier.salt).decode()
        first = f"r={nonce},s={salt},i={verifier.iterations}"
        name = SCRAM_HASHES[self.mechanism]

        def proof(last: bytes) -> bytes | None:
            without, _, given = last.decode().rpartition(",p=")
            if _fields(without)["r"] != nonce:
                return None
            message = f"{bare},{first},{without}".encode()
            signature = hmac.digest(verifier.stored_key, message, name)
            sent = base64.b64decode(given, validate=True)
            if len(sent) != len(signature):
                return None
            key = bytes(a ^ b for a, b in zip(sent, signature, strict=True))
            if not hmac.compare_digest(hashlib.new(name, key).digest(), verifier.stored_key):
                return None
            return b"v=" + base64.b64encode(hmac.digest(verifier.server_key, message, name))

        self._user, self._proof = user, proof
        return Outcome(challenge=first.encode())

    def _scram_last(self, data: bytes) -> Outcome:
        assert self._proof is not None
        answer = self._proof(data)
        return Outcome() if answer is None else Outcome(user=self._user, challenge=answer)


def _fields(text: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


class Login:
    """The client's side of one attempt. `random`: returns that many random bytes."""

    def __init__(self, user: str, password: str, random: Callable[[int], bytes]) -> None:
        self.mechanism = ""
        self._user = user
        self._password = password
        self._random = random
        self._bare = ""
        self._server_signature: bytes | None = None

    def begin(self, offered: Sequence[str]) -> bytes:
        """Take the strongest of the mechanisms that a server offers, and say the first word.

        Raises `RemoteProtocolError` if none of them is known.
        """
        known = [mechanism for mechanism in MECHANISMS if mechanism in offered]
        if not known:
            names = " ".join(offered) or "none"
            raise RemoteProtocolError(
                f"none of the mechanisms that the server offers is known: {names}",
                hint=f"known are {' '.join(MECHANISMS)}",
            )
        self.mechanism = known[0]
        if self.mechanism == "PLAIN":
            return b"\0" + self._user.encode() + b"\0" + self._password.encode()
        if self.mechanism == CRAM:
            return b""
        name = self._user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._random(18).hex()}"
        return f"n,,{self._bare}".encode()

    def step(self, challenge: bytes) -> bytes:
        """What is answered to a challenge. Raises `RemoteProtocolError`."""
        if self.mechanism == CRAM:
            digest = hmac.new(self._password.encode(), challenge, "md5").hexdigest()
            return f"{self._user} {digest}".encode()
        if self._server_signature is not None:
            self.finish(challenge)
            return b""
        try:
            return self._scram(challenge.decode())
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"a challenge that is none: {challenge!r}") from error

    def _scram(self, first: str) -> bytes:
        name = SCRAM_HASHES[self.mechanism]  # KeyError: PLAIN has no challenge
        fields = _fields(first)
        nonce, iterations = fields["r"], int(fields["i"])
        salt = base64.b64decode(fields["s"], validate=True)
        if not nonce.startswith(_fields(self._bare)["r"]):
            raise ValueError("the nonce is not ours")
        if not 0 < iterations <= SCRAM_ITERATIONS_MAX:
            raise ValueError(f"{iterations} iterations")
        salted = hashlib.pbkdf2_hmac(name, self._password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", name)
        without = f"c=biws,r={nonce}"
        message = f"{self._bare},{first},{without}".encode()
        signature = hmac.digest(hashlib.new(name, client_key).digest(), message, name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", name)
        self._server_signature = hmac.digest(server_key, message, name)
        return f"{without},p={base64.b64encode(proof).decode()}".encode()

    def finish(self, text: bytes) -> None:
        """The server says that we are in. Raises `RemoteProtocolError` if it should have proved
        to know the password, and has not."""
        if self.mechanism not in SCRAM_HASHES:
            return
        proof = b"v=" + base64.b64encode(self._server_signature or b"")
        if self._server_signature is None or not hmac.compare_digest(text, proof):
            raise RemoteProtocolError("the server has not proved that it knows the password")
