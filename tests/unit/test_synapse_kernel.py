"""The compiled loops over Synapse's lines: the same as interpreted, and as the ordinary way."""

from __future__ import annotations

import json
import random
from array import array
from itertools import pairwise
from typing import Any

import pytest

from interop.synapsemodel import Peer, lines_of
from logweir.errors import DecodeError
from logweir.limits import SYNAPSE_LINE_BYTES
from logweir.replication.synapse.wire import kernel, linekernel, rows
from logweir.replication.synapse.wire.codec import Dialect, decode_row_value, encode_row, row_text
from logweir.replication.synapse.wire.rows import Lines, Reader, Run, Writer, pack_tuples, render
from logweir.store.schema.bulk import interpreted
from logweir.wal import kernel as rows_kernel
from logweir.wal.mp import pack, unpack

PLAIN = interpreted(kernel)


PLAIN_LINES: Any = interpreted(linekernel)
PLAIN_LINES.packed_rows = interpreted(rows_kernel)


def encoded(text: str, module: Any = kernel) -> bytes | None:
    """MsgPack by a kernel, None where it finds the text odd."""
    raw = text.encode()
    out = bytearray(3 * len(raw) + kernel.ROOM_BYTES)
    size = module.encode(raw, out)
    return None if size < 0 else bytes(out[:size])


def ordinary(text: str) -> bytes | None:
    """MsgPack by the ordinary way, None where it refuses."""
    try:
        return encode_row(text)
    except DecodeError:
        return None


def check(text: str) -> bool:
    """Both kernels agree, and with the ordinary way unless it is odd; whether it was not."""
    found = encoded(text)
    assert found == encoded(text, PLAIN), text
    expected = ordinary(text)
    if found is not None:
        assert found == expected, text
    if expected is not None:
        for form, spaced in (("compact", False), ("spaced", True)):
            shown = render(expected, form=form)
            out = bytearray(8 * len(expected) + 64)
            size = PLAIN_LINES.text(expected, linekernel.FORMS[form], out)
            assert shown == (None if size < 0 else out[:size].decode())
            if shown is not None:
                assert shown == row_text(decode_row_value(expected), spaced=spaced)
    return found is not None


@pytest.mark.parametrize(
    "text",
    [
        *("0", "-0", "31", "127", "128", "255", "256", "65535", "65536", "4294967295"),
        *("4294967296", "999999999999999999", "-1", "-32", "-33", "-128", "-129", "-32768"),
        *("-32769", "-2147483648", "-2147483649", "-999999999999999999", "0.5", "-1.5e-7"),
        *("1E+3", "true", "false", "null", '""', '"a"', '"' + "x" * 31 + '"'),
        *('"' + "x" * 32 + '"', '"' + "x" * 255 + '"', '"' + "x" * 256 + '"'),
        *(r'"\"\\\/\b\f\n\r\t"', r'"\u0000\u007f\u0080\u07ff\u0800\uffff"'),
        *(r'"\ud83d\ude00"', r'"\ud83d"', r'"\ude00\ud83d"', r'"\ud83dx"', r'"\uD83D\n"'),
        *("[]", "{}", "[[],{}]", '{"":0}', ' [ 1 ,\t"a" ] ', json.dumps(list(range(15)))),
        *(json.dumps(list(range(16))), json.dumps([list(range(40))] * 40)),
        *(json.dumps({f"k{i}": [i] for i in range(16)}), "[" * 32 + "]" * 32),
        '["ev",["$e","!r","m.room.message",null,null,null,"join",0,0]]\r',
    ],
)
def test_plain_json_is_the_msgpack_of_the_ordinary_way(text: str) -> None:
    """Every kind of value at its borders; nothing of it is odd."""
    assert check(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "[", "]", "[1", "[1,", "[1,]", "[,1]", "[1 2]", '{"a"}', '{"a":}', "{1:2}"),
        *('{"a":1,}', '{"a":1,"a":2}', "01", "-", "1.", ".5", "1e", "1e+", "+1", "0x1", "nul"),
        *("nullx", "tru", "fals", "NaN", "Infinity", "-Infinity", '"', '"\\"', '"\\x"'),
        *(
            r'"\u12"',
            r'"\u12g4"',
            r'"\ud83d\u12"',
            '"\n"',
            '"é"',
            "1 2",
            "[]]",
            "1000000000000000000",
        ),
        *("[" * 33 + "]" * 33, json.dumps({f"k{i}": 0 for i in range(17)}), "[1}", '{"a":1]'),
    ],
)
def test_odd_json_is_left_to_the_ordinary_way(text: str) -> None:
    """Malformed, or of a kind the loop does not take; both kernels say so."""
    assert not check(text)


def recorded() -> list[str]:
    """The rows of recordings."""
    found = []
    for name, words in (("D1/live", 3), ("D3/live", 4)):
        for line in lines_of(name, "S"):
            if line.startswith("RDATA "):
                found.append(line.split(" ", words)[words])
    return found


def test_recorded_rows_truncated_and_with_flipped_bits() -> None:
    """Cut at each byte, one bit flipped in each byte: the same answers everywhere."""
    chance = random.Random(3)
    for text in sorted(set(recorded()), key=len)[:40:3]:
        assert check(text)
        for cut in range(len(text)):
            check(text[:cut])
        for at in range(len(text)):
            broken = chr(ord(text[at]) ^ 1 << chance.randrange(7))
            check(text[:at] + broken + text[at + 1 :])


def test_msgpack_that_is_cut_or_broken_is_odd_or_the_same() -> None:
    """Bytes of a store that is damaged: no kernel reads beyond them."""
    chance = random.Random(4)
    for text in recorded()[:30:3]:
        packed = encode_row(text)
        for at in range(len(packed)):
            changed = (
                packed[:at] + bytes([packed[at] ^ 1 << chance.randrange(8)]) + packed[at + 1 :]
            )
            for data in (packed[:at], changed):
                out = bytearray(8 * len(data) + 64)
                size = PLAIN_LINES.text(data, linekernel.FORMS["strict"], out)
                assert render(data, form="strict") == (None if size < 0 else out[:size].decode())


def test_buffers_that_are_too_short_are_not_written() -> None:
    """The loop asks for room before it writes."""
    assert kernel.encode(b"[1]", bytearray(3 * 3 + kernel.ROOM_BYTES - 1)) == -1
    assert linekernel.text(b"\xc0", 0, bytearray(8 + linekernel.TEXT_ROOM_BYTES - 1)) == -1


def read_all(data: bytes, dialect: Dialect, module: Any = kernel) -> tuple[list[Any], int]:
    """What a reader takes of lines of `s` and `t` up to the first it does not."""
    known, rows.kernel = rows.kernel, module
    try:
        reader = Reader(dialect, SYNAPSE_LINE_BYTES)
        reader.learn("s", "master")
        reader.learn("t", "w1")
        batch, at = reader.read(data, 0)
        if batch is None:
            return [], at
        return [
            (stream, token, unpack(row))
            for number, stream, _ in batch.flows()
            for token, row in batch.each(number)
        ], at
    finally:
        rows.kernel = known


@pytest.mark.parametrize("module", [kernel, PLAIN], ids=["compiled", "interpreted"])
def test_lines_are_read_up_to_the_first_that_is_not_plain(module: Any) -> None:
    """Other commands, unknown streams, odd tokens, long and unfinished lines stop it there."""
    good = b'RDATA s 5 [1]\nRDATA s batch ["a"]\nRDATA t 18 null\n'
    expected = [("s", 5, [1]), ("s", None, ["a"]), ("t", 18, None)]
    assert read_all(good, Dialect.D1, module) == (expected, len(good))
    long = b'RDATA s 6 ["' + b"x" * SYNAPSE_LINE_BYTES + b'"]\n'
    for tail in (
        *(b"PING 5\n", b"\n", b"RDATA u 6 [1]\n", b"RDATA s -6 [1]\n", b"RDATA s x [1]\n"),
        *(b"RDATA s 6 [1]", b"RDATA s 6\n", b"RDATA s 6 \n", b"RDATA  6 [1]\n", b"RDATA s 6 [\n"),
        *(b"RDATA s batchx [1]\n", b"RDATA s 1234567890123456789 [1]\n", b"rdata s 6 [1]\n"),
        *(b"RDATA", b"RDATA \n", long, b'RDATA s 6 ["\xff"]\n', b"RDATA s bat\n"),
    ):
        assert read_all(good + tail + good, Dialect.D1, module) == (expected, len(good))
    named = b"RDATA s master 5 [1]\nRDATA t w1 6 [2]\nRDATA t master 7 [3]\n"
    assert read_all(named, Dialect.D3, module)[0] == [("s", 5, [1]), ("t", 6, [2])]


@pytest.mark.parametrize("module", [kernel, PLAIN], ids=["compiled", "interpreted"])
def test_units_are_made_of_rows_as_the_ordinary_way_makes_them(module: Any) -> None:
    """`batch` rows and their number, equal tokens, what is unfinished, what does not rise."""

    def run(data: bytes, last: int, joins: bool) -> Any:
        known, rows.kernel = rows.kernel, module
        try:
            reader = Reader(Dialect.D1, SYNAPSE_LINE_BYTES)
            reader.learn("s", "master")
            reader.learn("t", "master")
            batch, _ = reader.read(data, 0)
            assert batch is not None
            found = batch.run(0, last, joins=joins)
            if found is None:
                return None
            units = [(token, [unpack(row) for row in group]) for token, group in found.units()]
            assert Run.of(list(found.units())).rows == found.rows
            return units, [unpack(row) for row in found.pending]
        finally:
            rows.kernel = known

    data = b"RDATA s batch 1\nRDATA t 9 0\nRDATA s 5 2\nRDATA s 7 3\nRDATA s 7 4\nRDATA s batch 5\n"
    assert run(data, 4, True) == ([(5, [1, 2]), (7, [3, 4])], [5])
    assert run(data, 4, False) is None
    assert run(data, 5, True) is None
    assert run(data, -1, True) is None
    assert run(b"RDATA s batch 1\n", 4, True) == ([], [1])


def test_tuples_and_lines_are_each_other_s_reverse() -> None:
    """Rows → tuples of a stream space → lines, for both kernels, with units of several rows."""
    units = [
        (token, [encode_row(json.dumps([token, place])) for place in range(1 + token % 3)])
        for token in (1, 2, 3, 200, 70000, 2**40)
    ]
    packed, bounds = pack_tuples("master#2", Run.of(units))
    tuples = [packed[start:end] for start, end in pairwise(bounds)]
    assert [unpack(one) for one in tuples] == [
        ["master#2", token, place, [token, place]]
        for token, group in units
        for place in range(len(group))
    ]
    expected = ""
    for token, group in units:
        for place in range(len(group)):
            number = token if place == len(group) - 1 else "batch"
            expected += f"RDATA s {number} [{token}, {place}]\n"
    for module in (linekernel, PLAIN_LINES):
        known, rows.linekernel = rows.linekernel, module
        try:
            (found,) = Writer().lines(tuples, "master#2", "RDATA s ", spaced=True)
        finally:
            rows.linekernel = known
        assert isinstance(found, Lines)
        assert found.data.decode() == expected
        assert (found.first, found.last) == (0, len(tuples) - 1)
        assert found.data.count(b"\n") == len(tuples)


def test_unit_with_something_odd_in_it_is_given_back_whole() -> None:
    """Binary, a line too long, a tuple of another form: the units around it are written."""
    odd: list[list[Any]] = [[b"\x00"], ["x" * SYNAPSE_LINE_BYTES]]
    for row in odd:
        tuples = [
            pack(["master", token, place, value])
            for token, group in ((1, [[1]]), (2, [[2], row, [3]]), (3, [[4]]))
            for place, value in enumerate(group)
        ]
        found = list(Writer().lines(tuples, "master", "RDATA s ", spaced=False))
        assert [one if isinstance(one, slice) else (one.first, one.last) for one in found] == [
            (0, 0),
            slice(1, 4),
            (4, 4),
        ]
    assert list(Writer().lines([b"\x91\x01"], "master", "RDATA s ", spaced=False)) == [slice(0, 1)]
    assert list(Writer().lines([], "master", "RDATA s ", spaced=False)) == []


def test_tables_of_unit_ends_hold_what_was_written() -> None:
    """`ends` has two numbers per unit; a buffer that fills up ends with a whole unit."""
    tuples = [pack(["m", token, place, [1]]) for token in range(1, 40) for place in range(2)]
    ends = array("Q", bytes(16 * len(tuples)))
    out = bytearray(900)
    for module in (linekernel, PLAIN_LINES):
        made = module.lines(tuples, 0, b"RDATA s ", 0, out, 2, SYNAPSE_LINE_BYTES, ends)
        assert 0 < made < 39
        data = bytes(out[: ends[2 * made - 2]])
        assert data.count(b"\n") == ends[2 * made - 1] == 2 * made
        assert data.endswith(f"RDATA s {made} [1]\n".encode())


@pytest.mark.parametrize("dialect", [Dialect.D1, Dialect.D3])
@pytest.mark.parametrize("seed", range(8))
def test_many_units_together_are_stored_as_one_by_one(dialect: Dialect, seed: int) -> None:
    """Streams mixed, batches, equal and lower tokens, odd rows: in one read, or line by line."""
    chance = random.Random(seed)
    who = "" if dialect is Dialect.D1 else "master "
    form = "{0} 5" if dialect is Dialect.D1 else "{0} master 5 5"
    tokens = {"s": 5, "t": 5, "typing": 5}
    sent: list[str] = [f"POSITION {form.format(stream)}" for stream in tokens]
    for number in range(400):
        stream = chance.choice(list(tokens))
        row = chance.choice(["[1]", f'["x",{number}]', '{"a":{"b":[]}}', f'["é{number}"]'])
        step = chance.choice([0, 1, 1, 1, 2, 9] if chance.random() < 0.02 else [1, 1, 3])
        tokens[stream] += step
        for place in range(chance.choice([0, 0, 0, 1, 3])):
            sent.append(f"RDATA {stream} {who}batch [{number},{place}]")
        sent.append(f"RDATA {stream} {who}{tokens[stream]} {row}")
    sent.append(f"RDATA s {who}batch [0]")
    found = []
    for portion in (1, 7, len(sent)):
        peer = Peer()
        peer.greet()
        for at in range(0, len(sent), portion):
            peer.feed("".join(line + "\n" for line in sent[at : at + portion]).encode())
        assert not peer.session.close_reason
        rows_of = {
            stream: [(token, str(row)) for token, row in peer.stored.rows(stream)]
            for stream in tokens
        }
        found.append((rows_of, peer.tracker.cursors))
        assert peer.tracker.held_bytes > 0
    assert found[0] == found[1] == found[2]
    assert sum(map(len, found[0][0].values())) > 300


@pytest.mark.parametrize("module", [linekernel, PLAIN_LINES], ids=["compiled", "plain"])
def test_a_run_is_of_one_replica_and_without_a_gap(module: Any) -> None:
    """Wherever the one row stands that is of another, or behind a gap."""
    for count in range(1, 7):
        replicas, lsns = array("Q", [1] * count), array("Q", range(5, 5 + count))
        assert module.is_run(replicas, lsns, count)
        for row in range(1, count):
            others = array("Q", [2 if each == row else 1 for each in range(count)])
            assert not module.is_run(others, lsns, count)
            gap = array("Q", [lsn + (each >= row) for each, lsn in enumerate(lsns)])
            assert not module.is_run(replicas, gap, count)
            assert module.is_run(replicas, gap, row)
