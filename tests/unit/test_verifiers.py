"""What is kept of passwords besides Tarantool's verifier."""

from __future__ import annotations

import hmac
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logweir
from logweir.errors import RequestError
from logweir.replication.service import users
from logweir.replication.service.verifiers import (
    CRAM,
    SCRAM_HASHES,
    cram_digest,
    cram_verifier,
    find_cram,
    find_scram,
    scram_verifier,
    verifier,
)


@given(st.text(max_size=200), st.binary(max_size=200))
def test_cram_digest_is_hmac_md5_of_the_password(password: str, challenge: bytes) -> None:
    """For passwords and challenges of any length, from what is kept alone."""
    wanted = hmac.new(password.encode(), challenge, "md5").digest()
    assert cram_digest(cram_verifier(password), challenge) == wanted


def test_scram_verifier_has_its_golden_bytes() -> None:
    """RFC 7677's example: user "user", password "pencil"."""
    salt = b"[m\x99h\x9d\x125\x8e\xec\xa0K\x14\x126\xfa\x81"
    made = scram_verifier("SCRAM-SHA-256", "pencil", salt, 4096)
    auth = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,"
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    proof = hmac.digest(made.server_key, auth, "sha256")
    assert b64encode(proof) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", sorted(SCRAM_HASHES))
def test_another_password_ends_the_old_verifiers(tmp_path: Path, mechanism: str) -> None:
    """Set by us: new ones; set in any other way: the old ones count no more; dropped: gone."""
    with logweir.open(tmp_path / "s") as log:
        users.add_user(log, "ada", password="lovelace")
        assert find_cram(log, "ada", verifier("lovelace")) == cram_verifier("lovelace")
        first = find_scram(log, "ada", mechanism, verifier("lovelace"))
        assert first is not None
        assert first == scram_verifier(mechanism, "lovelace", first.salt)
        users.change_password(log, "ada", "byron")
        assert find_scram(log, "ada", mechanism, verifier("lovelace")) is None
        assert find_cram(log, "ada", verifier("byron")) == cram_verifier("byron")
        number, _, _, _, kept, *_ = log.select("_user", "ada", index="name")[0]
        assert kept == {"chap-sha1": verifier("byron")}
        log.update("_user", number, [["=", 4, {"chap-sha1": verifier("other")}]])
        assert find_cram(log, "ada", verifier("other")) is None
        users.drop_user(log, "ada")
        assert log.get("logweir_verifier", ("ada", CRAM)) is None


@pytest.mark.parametrize("name", ["", "a\nb", "a\u2028", "x" * 65_001])
def test_a_name_that_no_tarantool_takes_makes_no_user(tmp_path: Path, name: str) -> None:
    """Nor a role: replicas would stop at it."""
    with logweir.open(tmp_path / "s") as log:
        before = log.vclock
        for role in (False, True):
            with pytest.raises(RequestError, match=r"Invalid identifier|too long$"):
                users.add_user(log, name, role=role)
        assert log.vclock == before


def test_no_password_stands_in_the_log(tmp_path: Path) -> None:
    """In no file of the store."""
    with logweir.open(tmp_path / "s") as log:
        users.add_user(log, "ada", password="a secret that is long")
        log.snapshot()
    files = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert files
    assert not any(b"a secret that is long" in path.read_bytes() for path in files)
