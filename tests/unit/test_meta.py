"""The text header of files."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import DAMAGED, GOOD, damaged, sample

from logweir.errors import DecodeError
from logweir.limits import META_BYTES
from logweir.wal.meta import Meta, decode_meta
from logweir.wal.vclock import VClock

UPPER = "AAAAAAAA-AAAA-4AAA-8AAA-AAAAAAAAAAAA"
UUID = "11111111-1111-4111-8111-111111111111"


@pytest.mark.parametrize("name", GOOD)
def test_headers_of_the_samples(name: str) -> None:
    """Every header of the samples reads as the program reads it, and encodes to the same bytes."""
    summary = sample(name).summary
    for file in sample(name).files:
        data = file.path.read_bytes()
        meta, size = decode_meta(data[:META_BYTES])
        assert data[:size].decode().split("\n")[:-2] == file.meta
        assert meta.encode() == data[:size]
        assert meta.kind == {".xlog": "XLOG", ".snap": "SNAP"}[file.path.suffix]
        assert str(meta.instance) == summary["uuid"]
        assert meta.vclock.signature == int(file.path.stem)


@pytest.mark.parametrize("name", DAMAGED)
def test_headers_of_the_damaged_cases(name: str) -> None:
    """A header that the program does not read is refused here too."""
    for file in damaged(name).files:
        data = file.path.read_bytes()
        wrong_kind = name.startswith("k-") and file.path.suffix == ".xlog"
        if file.error is None:
            assert decode_meta(data)[0].encode() == data[: decode_meta(data)[1]]
            assert (decode_meta(data)[0].kind == "SNAP") == (
                wrong_kind or file.path.suffix == ".snap"
            )
        else:
            with pytest.raises(DecodeError):
                decode_meta(data)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("XLOG\n0.13\n\n", {}),
        ("VYLOG\n0.13\n\n", {"kind": "VYLOG"}),
        (f"SNAP\n0.12\nServer: {UUID}\n\n", {"kind": "SNAP", "version": "0.12", "instance": UUID}),
        (f"XLOG\n0.13\nInstance:{UUID}\n\n", {"instance": UUID}),
        (f"XLOG\n0.13\nInstance: \t {UUID}\n\n", {"instance": UUID}),
        (
            f"XLOG\n0.13\nInstance: {UUID.replace('1', 'A')}\n\n",
            {"instance": UUID.replace("1", "a")},
        ),
        ("XLOG\n0.13\nVClock: {} \n\n", {}),
        ("XLOG\n0.13\nVClock: {}\nVClock: {1: 2}\n\n", {"vclock": {1: 2}}),
        ("XLOG\n0.13\nPrevVClock: {1: 1}\n\n", {"prev_vclock": {1: 1}}),
        ("XLOG\n0.13\nVersion: 2.6.0-0-g47aa4e01e\n\n", {"program": "2.6.0-0-g47aa4e01e"}),
        (
            "XLOG\n0.13\nFoo: bar: x\nInstance : y\n\n",
            {"unknown": (("Foo", "bar: x"), ("Instance ", "y"))},
        ),
        ("XLOG\n0.13\nversion: 1\n: x\n\n", {"unknown": (("version", "1"), ("", "x"))}),
    ],
)
def test_headers_that_are_read(text: str, fields: dict[str, object]) -> None:
    """What Tarantool 2.6.0 takes (tried), this reads."""
    meta, size = decode_meta(text.encode() + b"\xd5\xba\x0b\xab")
    assert size == len(text)
    fields = {"kind": "XLOG", "version": "0.13", "vclock": {}} | fields
    for name, value in fields.items():
        got = getattr(meta, name)
        assert (str(got) if name == "instance" else got) == value


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", 0),
        ("XLOG\n", 5),
        ("XLOG\n0.13\nVersion: x\n", 21),
        ("xlog\n0.13\n\n", 0),
        ("\nXLOG\n0.13\n\n", 0),
        ("XLOG\n\n0.13\n\n", 5),
        ("XLOG\n0.11\n\n", 5),
        ("XLOG\n0.13 \n\n", 5),
        ("XLOG\n0.13\nFoo bar\n\n", 10),
        ("XLOG\n0.13\nVersion: žx\nFoo\n\n", 23),
        ("XLOG\n0.13\nInstance: \n\n", 10),
        (f"XLOG\n0.13\nVersion: x\nInstance: {UUID} \n\n", 21),
        (f"XLOG\n0.13\nInstance: {{{UUID}}}\n\n", 10),
        (f"XLOG\n0.13\nInstance: {UUID}1\n\n", 10),
        ("XLOG\n0.13\nServer: 1\n\n", 10),
        ("XLOG\n0.13\nVClock:\n\n", 10),
        ("XLOG\n0.13\nPrevVClock: {1: x\n\n", 14),
        ("XLOG\n0.13\nVersion: " + "x" * META_BYTES + "\n\n", META_BYTES),
    ],
)
def test_headers_that_are_refused(text: str, offset: int) -> None:
    """Anything else is refused, with the byte where the line begins or the vclock goes wrong."""
    with pytest.raises(DecodeError) as caught:
        decode_meta(text.encode())
    assert caught.value.offset == offset


def test_longest_header() -> None:
    """A header of exactly the largest size is read, one byte more is not."""
    head = b"XLOG\n0.13\nVersion: "
    longest = head + b"x" * (META_BYTES - len(head) - 2) + b"\n\n"
    assert len(longest) == META_BYTES
    assert decode_meta(longest)[1] == META_BYTES
    with pytest.raises(DecodeError, match="no empty line"):
        decode_meta(longest[:-2] + b"x\n\n")


def test_truncation_at_each_byte() -> None:
    """A header cut anywhere is refused: it ends only with its empty line."""
    data = Meta("XLOG", VClock({1: 2}), uuid.UUID(UUID), VClock({1: 1}), "logweir 0.1.0").encode()
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decode_meta(data[:size])
    assert decode_meta(data)[1] == len(data)


def test_flipped_bits() -> None:
    """Each bit of a header flipped gives a header or a DecodeError, nothing else."""
    data = Meta("SNAP", VClock({0: 8, 1: 436}), uuid.UUID(UUID), None, "2.6.0").encode()
    read = 0
    for bit in range(8 * len(data)):
        damaged_data = bytearray(data)
        damaged_data[bit // 8] ^= 1 << bit % 8
        try:
            meta, size = decode_meta(bytes(damaged_data))
        except DecodeError:
            continue
        read += 1
        assert size <= len(data)
        assert meta.kind == "SNAP"
    assert read > 50


lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n:"), max_size=10)


@given(
    st.sampled_from(["XLOG", "SNAP", "VYLOG"]),
    st.dictionaries(st.integers(0, 31), st.integers(1, 2**63 - 1), max_size=5).map(VClock),
    st.none() | st.uuids(),
    st.none() | st.just(VClock({3: 7})),
    lines.map(lambda text: text.lstrip(" \t")),
    st.lists(st.tuples(lines.map(lambda name: "X" + name), st.just("value")), max_size=3),
)
def test_round_trip(
    kind: object,
    vclock: VClock,
    instance: uuid.UUID | None,
    prev_vclock: VClock | None,
    program: str,
    unknown: list[tuple[str, str]],
) -> None:
    """What is written is read."""
    assert kind in ("XLOG", "SNAP", "VYLOG")
    meta = Meta(kind, vclock, instance, prev_vclock, program, unknown=tuple(unknown))  # type: ignore[arg-type]
    assert decode_meta(meta.encode()) == (meta, len(meta.encode()))


def test_names_that_are_not_utf8_survive() -> None:
    """Bytes of a header that are not UTF-8 come back as they were."""
    data = b"XLOG\n0.13\nVersion: a\xffb\nVClock: {}\n\n"
    meta, _ = decode_meta(data)
    assert meta.encode() == data
