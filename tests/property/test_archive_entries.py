"""Entries of archives: every value comes back, no other bytes are taken, nothing else is raised."""

from __future__ import annotations

import uuid
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutation import mutate

from logweir.archive.entry import Entry
from logweir.errors import DecodeError
from logweir.wal.crc32c import checksum
from logweir.wal.vclock import VClock

LSNS = st.dictionaries(st.integers(0, 31), st.integers(1, 2**62), max_size=4)
TIMES = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Any entry that can be."""
    kind = draw(st.sampled_from(("log", "tail", "snapshot")))
    start = VClock(draw(LSNS))
    suffix = "snap" if kind == "snapshot" else "xlog"
    return Entry(
        kind=kind,
        instance=uuid.UUID(int=draw(st.integers(0, 2**128 - 1))),
        file=f"{draw(st.integers(0, 10**20 - 1)):020d}.{suffix}",
        offset=draw(st.integers(0, 2**63)) if kind == "tail" else 0,
        size=draw(st.integers(1, 2**63)),
        sha256=f"{draw(st.integers(0, 2**256 - 1)):064x}",
        start=start,
        vclock=start.merge(VClock(draw(LSNS))),
        rows=draw(st.integers(0, 2**63)),
        first_time=draw(TIMES),
        last_time=draw(TIMES),
        archived=draw(st.floats(allow_nan=False, allow_infinity=False)),
    )


def signed(text: bytes) -> bytes:
    """With the checksum that belongs to it."""
    return text + f"Checksum: {checksum(text):08x}\n".encode()


@given(entries())
def test_every_entry_comes_back(entry: Entry) -> None:
    """And its name is that of a file in a folder."""
    assert Entry.decode(entry.encode()) == entry
    assert "/" not in entry.name


@given(entries(), st.randoms(use_true_random=False), st.booleans())
def test_other_bytes_are_refused(entry: Entry, random: Random, is_signed: bool) -> None:
    """Damaged ones; also with a checksum that is right: what is taken has one form."""
    data = entry.encode()
    text = mutate(random, data.rpartition(b"Checksum: ")[0] if is_signed else data)
    data = signed(text) if is_signed else text
    try:
        found = Entry.decode(data)
    except DecodeError:
        return
    assert found.encode() == data


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_no_reason_for_another_error(data: bytes, is_signed: bool) -> None:
    """Nothing but a value or our error."""
    try:
        found = Entry.decode(signed(data) if is_signed else data)
    except DecodeError:
        return
    assert found.encode()


PLAIN = Entry(
    kind="tail",
    instance=uuid.UUID(int=10**38),
    file=f"{7:020d}.xlog",
    offset=0,
    size=12,
    sha256="ab" * 32,
    start=VClock({1: 7}),
    vclock=VClock({1: 8}),
    rows=1,
    first_time=1000.5,
    last_time=1000.5,
    archived=2000.0,
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Size: 12", "Size: 012"),
        ("Size: 12", "Size: 1_2"),
        ("Size: 12", "Size:  12"),
        ("Size: 12", "Size: 0"),
        ("Offset: 0", "Offset: -1"),
        ("Archived: 2000.0", "Archived: 2e3"),
        ("Archived: 2000.0", "Archived: nan"),
        ("Last-Time: 1000.5", "Last-Time: inf"),
        ("VClock: {1: 8}", "VClock: {1:8}"),
        ("VClock: {1: 8}", "VClock: {1: 6}"),
        ("Kind: tail", "Kind: snapshot"),
        ("00000000000000000007.xlog", "../000000000000000007.xlog"),
        ("00000000000000000007.xlog", "00000000000000000007.snap"),
        ("LOGWEIR-ARCHIVE 1", "LOGWEIR-ARCHIVE 2"),
        ("Instance: ", "Instance: {"),
        ("abab", "ABAB"),
        ("Rows: 1\n", ""),
    ],
)
def test_a_value_has_one_form(old: str, new: str) -> None:
    """Another is refused, with a checksum that is right."""
    text = PLAIN.encode().rpartition(b"Checksum: ")[0]
    assert Entry.decode(signed(text)) == PLAIN
    assert old.encode() in text
    with pytest.raises(DecodeError):
        Entry.decode(signed(text.replace(old.encode(), new.encode())))
