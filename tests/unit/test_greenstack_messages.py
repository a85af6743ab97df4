"""Payloads: the libraries' bytes, the `flatbuffers` package as oracle, hostile buffers."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Any

import flatbuffers
import pytest
from flatbuffers import number_types as types
from flatbuffers.table import Table as Oracle
from support.gsmodel import malformed, spellings, vectors

from logweir.errors import DecodeError, LogweirError
from logweir.replication.greenstack.wire import many, messages
from logweir.replication.greenstack.wire.codec import Opcode, decode_frames
from logweir.replication.greenstack.wire.flat import Kind, Slot, Table, read, write
from logweir.replication.greenstack.wire.messages import (
    TABLES,
    Document,
    Hello,
    HelloAnswer,
    Mark,
    MutationAnswer,
    StreamOpen,
)
from logweir.wal.vclock import VClock

VECTORS = vectors()
CAS = 0x1122334455667788
FULL = Document(b"order:1001", b'{"qty":3}', 0xDEADBEEF, "2031-04-05T06:07:08Z", 1, 1, 2**64 - 1)


def payload(name: str) -> bytes:
    """The payload of one vector."""
    ((frame,), *_) = decode_frames(spellings(VECTORS[name])[0])
    return frame.payload


def test_documents_are_read_as_the_libraries_wrote_them() -> None:
    """Each spelling of each MUTATION and GET answer has the content that is noted."""
    seen = 0
    for vector in VECTORS.values():
        noted = (vector["decoded"].get("payload") or {}).get("document")
        if noted is None:
            continue
        for data in spellings(vector):
            ((frame,), *_) = decode_frames(data)
            if frame.is_response:
                document = messages.decode_get_answer(frame.payload)
            else:
                operation, document = messages.decode_mutation(frame.payload)
                assert operation == vector["decoded"]["payload"]["operation"]
            assert document.id.decode() == noted["id"]
            assert document.value.hex() == noted["value_hex"]
            for name in ("flags", "expiration", "compression", "datatype", "cas"):
                assert getattr(document, name) == noted[name]
            seen += 1
    assert seen == 20


ROUND_TRIPS = [
    (Hello("a", "1", "", (0x0C00, 0x0C01)), Hello.decode),
    (Hello("ä", "1", "c"), Hello.decode),
    (HelloAnswer("logweir", "1", "PLAIN CRAM-MD5", (0x0C02,)), HelloAnswer.decode),
    (MutationAnswer(2**64 - 1, 13, 5, 7), MutationAnswer.decode),
    (MutationAnswer(0, 0, 0, 0), MutationAnswer.decode),
    (StreamOpen(VClock({1: 5, 31: 2**60}), True, ("a", "b"), 9, False, 0), StreamOpen.decode),
    (StreamOpen(instance="6f1c", now=True), StreamOpen.decode),
    (StreamOpen(), StreamOpen.decode),
    (StreamOpen(prefix=b"a\xff", vbuckets=(0, 65535), keys_only=True), StreamOpen.decode),
    (Mark(3, VClock({2: 1}), 123456789), Mark.decode),
]


@pytest.mark.parametrize(("message", "decode"), ROUND_TRIPS)
def test_what_is_written_is_read(message: Any, decode: Any) -> None:
    """And what is cut or has a bit flipped is a value or our error."""
    data = message.encode()
    assert decode(data) == message
    assert decode(data + b"behind") == message
    for end in range(len(data)):
        with contextlib.suppress(DecodeError):  # one that lacks only padding is whole
            decode(data[:end])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decode(bytes(flipped))
        except LogweirError:
            continue


def test_other_payloads_are_written_and_read() -> None:
    """Those without a class of their own."""
    assert messages.decode_sasl(messages.encode_sasl("PLAIN", b"\0a\0b")) == ("PLAIN", b"\0a\0b")
    assert messages.decode_sasl_answer(messages.encode_sasl_answer()) == b""
    assert messages.decode_sasl_answer(messages.encode_sasl_answer(b"c")) == b"c"
    assert messages.decode_keepalive(messages.encode_keepalive(10)) == 10
    assert messages.decode_keepalive(messages.encode_keepalive(0)) == 0
    assert messages.decode_create(messages.encode_create("b", "c", 2)) == ("b", "c", 2)
    assert messages.decode_delete(messages.encode_delete("b", True)) == ("b", True)
    assert messages.decode_role(messages.encode_role("r")) == "r"
    assert messages.decode_remove(messages.encode_remove(b"k", 3)) == (b"k", 3)
    assert messages.decode_close(messages.encode_close(0x402, "x")) == (0x402, "x")
    assert messages.decode_notice(messages.encode_notice(3, "t", "{}")) == (3, "t", "{}")
    assert messages.decode_ack(messages.encode_ack(VClock({1: 2}), 5)) == (VClock({1: 2}), 5)
    assert messages.decode_opened(messages.encode_opened(VClock(), "u")) == (VClock(), "u")
    assert messages.decode_buckets(messages.encode_buckets(("a", "b"))) == ("a", "b")
    assert messages.decode_buckets(messages.encode_buckets(())) == ()


FOUND = (
    [],
    [(0x0008, None)],
    [(0, FULL), (0x000F, None), (0, Document(b"k")), (0, Document(b"odd", b"12345", cas=CAS))],
)


@pytest.mark.parametrize("found", FOUND)
def test_many_documents_are_written_and_read(found: list[tuple[int, Document | None]]) -> None:
    """Of each id what a GET is answered, aligned; cut and flipped ones are refused or read."""
    payloads = [b"" if one is None else one.encode_answer() for _, one in found]
    data = many.encode_found(
        [(status, body) for (status, _), body in zip(found, payloads, strict=True)]
    )
    assert many.decode_found(data) == found
    for _, one in found:
        if one is not None and one.cas:
            assert data.index(struct.pack("<Q", one.cas)) % 8 == 0
    for end in range(len(data)):
        with contextlib.suppress(DecodeError):
            many.decode_found(data[:end])
    assert many.decode_get_many(many.encode_get_many((b"a", b"\xff", b""))) == (b"a", b"\xff", b"")
    with pytest.raises(DecodeError, match="more than 1000"):
        many.decode_get_many(many.encode_get_many((b"a",) * 1001))


# --- the flatbuffers package as oracle --------------------------------------------------------


def oracle_fields(data: bytes) -> dict[str, Any]:
    """A MUTATION's payload, read by the `flatbuffers` package."""
    root = Oracle(data, struct.unpack_from("<I", data)[0])

    def table(parent: Oracle, slot: int) -> Oracle:
        at = parent.Offset(4 + 2 * slot)
        return Oracle(data, parent.Indirect(at + parent.Pos))

    def number(parent: Oracle, slot: int, flags: Any, default: int) -> int:
        at = parent.Offset(4 + 2 * slot)
        return parent.Get(flags, at + parent.Pos) if at else default

    document = table(root, 0)
    info = table(document, 0)
    at = document.Offset(6)
    start, length = document.Vector(at), document.VectorLen(at)
    return {
        "operation": number(root, 1, types.Int8Flags, 2),
        "id": info.String(info.Offset(4) + info.Pos),
        "flags": number(info, 1, types.Uint32Flags, 0),
        "expiration": info.String(info.Offset(8) + info.Pos),
        "compression": number(info, 3, types.Int8Flags, 0),
        "datatype": number(info, 4, types.Int8Flags, 0),
        "cas": number(info, 5, types.Uint64Flags, 0),
        "value": data[start : start + length],
    }


def oracle_mutation(document: Document, operation: int) -> bytes:
    """The same payload, made by the `flatbuffers` package."""
    builder = flatbuffers.Builder(0)
    value = builder.CreateByteVector(document.value)
    expiration = builder.CreateString(document.expiration)
    key = builder.CreateString(document.id)
    builder.StartObject(6)
    builder.PrependUOffsetTRelativeSlot(0, key, 0)
    builder.PrependUint32Slot(1, document.flags, 0)
    builder.PrependUOffsetTRelativeSlot(2, expiration, 0)
    builder.PrependInt8Slot(3, document.compression, 0)
    builder.PrependInt8Slot(4, document.datatype, 0)
    builder.PrependUint64Slot(5, document.cas, 0)
    info = builder.EndObject()
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, info, 0)
    builder.PrependUOffsetTRelativeSlot(1, value, 0)
    made = builder.EndObject()
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, made, 0)
    builder.PrependInt8Slot(1, operation, 2)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


@pytest.mark.parametrize("operation", [1, 2, 6])
@pytest.mark.parametrize("document", [FULL, Document(b"k"), Document(b"k", b"v", datatype=1)])
def test_the_flatbuffers_package_understands_us_and_we_it(
    document: Document, operation: int
) -> None:
    """Both ways, with and without defaults."""
    fields = oracle_fields(document.encode(operation))
    assert fields.pop("operation") == operation
    fields["expiration"] = fields["expiration"].decode()
    assert Document(**fields) == document
    assert messages.decode_mutation(oracle_mutation(document, operation)) == (operation, document)


def test_what_is_written_is_aligned() -> None:
    """Numbers stand where readers that need it find them: 8 bytes at multiples of 8."""
    for extra in range(9):
        data = Document(b"k" * extra + b"k", bytes(extra), 1, "", 0, 0, CAS).encode()
        assert data.index(struct.pack("<Q", CAS)) % 8 == 0


def test_the_schema_that_is_documented_is_ours() -> None:
    """Every table and slot of `docs/greenstack.fbs`, in order, and no other."""
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "greenstack.fbs").read_text()
    names = {
        **{Kind.BOOL: "bool", Kind.I8: "byte", Kind.U16: "ushort", Kind.U32: "uint"},
        **{Kind.U64: "ulong", Kind.TEXT: "string", Kind.BYTES: "[ubyte]", Kind.U16S: "[ushort]"},
        Kind.TEXTS: "[string]",
    }
    for table in (*TABLES, *many.TABLES):
        lines = []
        for slot in table.slots:
            kind = names.get(slot.kind) or slot.table.name  # type: ignore[union-attr]
            kind = f"[{kind}]" if slot.kind is Kind.TABLES else kind
            is_set = slot.default not in (None, 0, False, (), b"")
            value = f" = {str(slot.default).lower()}" if is_set else ""
            must = " (required)" if slot.required else ""
            lines.append(f"  {slot.name}: {kind}{value}{must};")
        body = "\n".join(lines)
        assert f"table {table.name} {{\n{body}\n}}\n" in text, table.name
    assert text.count("\ntable ") == len(TABLES) + len(many.TABLES)


# --- hostile ----------------------------------------------------------------------------------

DECODERS = {
    "hello": Hello.decode,
    "hello_rsp": HelloAnswer.decode,
    "sasl": messages.decode_sasl,
    "mutation": messages.decode_mutation,
    "get": messages.decode_get,
}


@pytest.mark.parametrize(
    ("name", "decode", "is_taken"),
    [
        ("hello_no_payload", Hello.decode, False),
        ("hello_garbage", Hello.decode, False),
        ("hello_missing_required", Hello.decode, False),
        ("hello_no_comment", Hello.decode, True),
        ("hello_trailing_bytes", Hello.decode, True),
        ("hello_error_rsp_no_payload", HelloAnswer.decode, False),
        ("sasl_error_rsp_no_payload", messages.decode_sasl_answer, False),
        ("sasl_error_rsp_empty_table", messages.decode_sasl_answer, True),
        ("sasl_req_no_mechanism", messages.decode_sasl, True),
        ("mutation_ok", messages.decode_mutation, True),
        ("mutation_op_99", messages.decode_mutation, True),
        ("get_rsp_ok_no_payload", messages.decode_get_answer, False),
    ],
)
def test_edge_case_payloads(name: str, decode: Any, is_taken: bool) -> None:
    """As the libraries' verifier has it; an operation is not the payload's affair."""
    ((frame,), *_) = decode_frames(bytes.fromhex(malformed()[name]["hex"]))
    if is_taken:
        decode(frame.payload)
    else:
        with pytest.raises(DecodeError):
            decode(frame.payload)


@pytest.mark.parametrize("missing", ["info", "value", "id", "document"])
def test_a_document_that_lacks_a_part_is_refused(missing: str) -> None:
    """Which the libraries' verifier takes, and then crashes on."""
    slot = {name: Slot(name, Kind.TEXT) for name in ("id", "value")}
    info = Table("Info", (slot["id"],))
    document = Table("Doc", (Slot("info", Kind.TABLE, table=info), slot["value"]))
    mutation = Table("Mutation", (Slot("document", Kind.TABLE, table=document),))
    inside = None if missing == "info" else (None if missing == "id" else b"k",)
    values = None if missing == "document" else (inside, None if missing == "value" else b"v")
    data = write(mutation, (values,))
    with pytest.raises(DecodeError, match=f"without {missing}"):
        messages.decode_mutation(data)


def hostile() -> dict[str, bytes]:
    """Buffers that try to make a reader loop, leave the buffer or allocate much."""
    mutation = bytearray(FULL.encode())
    names = bytearray(messages.encode_buckets(("x" * 100,)))
    u32 = struct.Struct("<I").pack
    return {
        "root outside": u32(0xFFFFFFFF) + bytes(60),
        "root at its own offset": u32(0) + bytes(60),
        "vtable before the buffer": u32(4) + struct.pack("<i", 100) + bytes(60),
        "vtable behind the buffer": u32(4) + struct.pack("<i", -100) + bytes(60),
        "vtable of odd size": u32(12) + struct.pack("<HHHH", 5, 8, 4, 4) + u32(8) + bytes(60),
        "vtable that is its table": u32(4) + struct.pack("<i", 0) + bytes(60),
        "all ones": b"\xff" * 200,
        "cut mutation": bytes(mutation[: len(mutation) // 2]),
        "names without end": bytes(names[:-8]),
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_buffers_give_our_error_or_a_value(name: str) -> None:
    """By every decoder."""
    for decode in (*DECODERS.values(), messages.decode_buckets, StreamOpen.decode, Mark.decode):
        try:
            decode(hostile()[name])
        except DecodeError:
            continue


def test_many_references_to_one_text_do_not_multiply_it() -> None:
    """10 000 names that are all the same 100 000 bytes are refused before they are copied."""
    text = struct.pack("<I", 100_000) + b"x" * 100_000 + b"\0"
    count = 10_000
    head = struct.pack("<IHHHH", 12, 6, 8, 4, 0) + struct.pack("<iI", 8, 4)
    places = b"".join(struct.pack("<I", 4 * (count - i)) for i in range(count))
    data = head + struct.pack("<I", count) + places + text
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="overlap"):
            messages.decode_buckets(data)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()


def test_a_vector_that_claims_more_than_there_is_allocates_nothing() -> None:
    """2^32 - 1 bytes of value in a frame of 200."""
    data = bytearray(FULL.encode())
    at = data.index(struct.pack("<I", len(FULL.value)) + FULL.value)
    data[at : at + 4] = b"\xff\xff\xff\xff"
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="passes the payload's end"):
            messages.decode_mutation(bytes(data))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_tables_that_refer_to_themselves_end() -> None:
    """A table that is its own member is read as deep as a message can be, no deeper."""
    inner: list[Table] = [Table("T", (Slot("n", Kind.U32, 0),))]
    for _ in range(8):
        inner.append(Table("T", (Slot("t", Kind.TABLE, table=inner[-1]),)))
    data = struct.pack("<IHHHH", 12, 6, 8, 4, 0) + struct.pack("<iI", 8, 0)
    with pytest.raises(DecodeError):
        read(inner[-1], data)


def test_positions_are_checked() -> None:
    """An origin that cannot be, one that comes twice, and more than there are."""
    origins = Table("Position", (Slot("origin", Kind.U32, 0), Slot("lsn", Kind.U64, 0)))
    mark = Table(
        "Mark", (Slot("kind", Kind.I8, 0), Slot("p", Kind.TABLES, (), limit=99, table=origins))
    )
    for pairs in (((32, 1),), ((0, 1),), ((1, 1), (1, 2)), ((1, 2**63),), ((1, 1),) * 40):
        with pytest.raises(DecodeError):
            Mark.decode(write(mark, (1, pairs)))
    assert Opcode.STREAM_MARK == 0x0C03
