"""Blocks and pages as RDATA lines: the compiled passes, the same interpreted, row by row."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.test_synapse_kernel import PLAIN_LINES

import logweir
from logweir.limits import SYNAPSE_LINE_BYTES
from logweir.replication.synapse import push as streams
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.synapse.push import Delivery, Streams
from logweir.replication.synapse.wire import linekernel, rows
from logweir.replication.synapse.wire.codec import Dialect, encode_row
from logweir.replication.synapse.wire.rows import render
from logweir.replication.synapse.wire.units import Cursor, Unit
from logweir.store import Log
from logweir.wal.follow import Follower
from logweir.wal.mp import pack
from logweir.wal.reader import Block
from logweir.wal.vclock import VClock

VALUES: list[Any] = [
    *(None, True, 0, -1, 2**63, -(2**63), 0.5, float("nan"), "", 'é\n"\\\x7f', "x" * 40),
    *(b"\x00\xff", [], [[1], {}], {"a": {"$b": [None]}}, {"k": "v"}, {1: 2}, "y" * 20000),
]


def change(log: Log, chance: random.Random, units: dict[str, int]) -> None:
    """One transaction: of one space, of several, or ingested."""
    kind = chance.randrange(8)
    number, value = chance.randrange(30), chance.choice(VALUES)
    if kind == 0:
        log.replace("plain", [number, value])
    elif kind == 1:
        log.replace("keyed", [value, f"k{number}", number])
    elif kind == 2:
        log.upsert("plain", [number, value], [("=", 1, value)])
    elif kind == 3:
        log.delete("plain", number)
    elif kind == 4:
        log.update("keyed", [number, f"k{number}"], [("=", 0, value)])
    elif kind == 5:
        with log.transaction() as tx:
            for _ in range(chance.randrange(1, 4)):
                tx.replace(chance.choice(["plain", "other"]), [chance.randrange(30), value])
    elif kind == 6:
        log.append("other", [[1000 + chance.randrange(10**9), "z"] for _ in range(20)])
    else:
        writer = chance.choice(["master", "w1"])
        units[writer] += chance.randrange(1, 3)
        text = chance.choice(["[1]", '["é\\n",{"a":[]}]', '["' + "q" * 20000 + '"]'])
        group = [encode_row(text)] * chance.choice([1, 1, 3])
        cursor = Cursor(units[writer], units[writer])
        Intake(log, "x.test").store(
            [Unit("events", writer, 1, units[writer], group, False, cursor)]
        )


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A store with spaces, streams of two writers, and everything that the passes find odd."""
    with logweir.open(tmp_path_factory.mktemp("blocks")) as made:
        made.create_space("plain", [("id", "unsigned"), ("v", "any")], primary=["id"])
        made.create_space("other", [("id", "unsigned"), ("v", "any")], primary=["id"])
        fields = [("v", "any"), ("name", "string"), ("id", "unsigned")]
        made.create_space("keyed", fields, primary=["id", "name"])
        chance, units = random.Random(8), {"master": 0, "w1": 0}
        for _ in range(250):
            change(made, chance, units)
        yield made


def blocks_after(log: Log, start: VClock) -> list[Block]:
    """The blocks that a follower at `start` is given."""
    with Follower(log.path, start) as follower:
        return list(follower.poll())


def by_flow(found: list[Delivery]) -> dict[tuple[str, str], tuple[bytes, int, int]]:
    """(stream, writer) → all lines, last token and signature."""
    told: dict[tuple[str, str], tuple[bytes, int, int]] = {}
    for unit in found:
        before, _, signature = told.get((unit.stream, unit.instance), (b"", 0, 0))
        assert unit.signature >= signature
        assert unit.first_signature <= unit.signature
        if unit.longest > SYNAPSE_LINE_BYTES:
            assert unit.first_signature == unit.signature
        told[unit.stream, unit.instance] = before + unit.lines, unit.token, unit.signature
    return told


@pytest.mark.parametrize("dialect", [Dialect.D1, Dialect.D3])
@pytest.mark.parametrize("module", [linekernel, PLAIN_LINES], ids=["compiled", "interpreted"])
def test_blocks_in_one_pass_give_what_transactions_by_themselves_give(
    log: Log, dialect: Dialect, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the beginning and from the middle; long and odd rows, several spaces, two writers."""
    monkeypatch.setattr(rows, "linekernel", module)
    served = Streams(log, dialect)
    (replica_id,) = [one for one in log.vclock if one]
    for lsn in (0, 7, log.vclock.lsn(replica_id) // 2):
        start = VClock({replica_id: lsn})
        blocks = blocks_after(log, start)
        whole = by_flow(served.deliveries(start, blocks))
        assert whole == by_flow(list(served.units(start, blocks)))
        expected = {("plain", "logweir"), ("other", "logweir"), ("keyed", "logweir")}
        expected |= {("events", "master")}
        if dialect is Dialect.D3:
            expected |= {("events", "w1")}
        assert set(whole) == expected
        assert all(token > 0 for _, token, _ in whole.values())


def test_row_that_is_too_long_stands_by_itself(log: Log) -> None:
    """So that it can be left out; everything around it is joined."""
    start = VClock()
    found = Streams(log, Dialect.D3).deliveries(start, blocks_after(log, start))
    long = [unit for unit in found if unit.longest > SYNAPSE_LINE_BYTES]
    assert {unit.stream for unit in long} >= {"plain", "keyed", "events"}
    assert len(found) < 4 * len(long) + 8


@pytest.mark.parametrize("module", [linekernel, PLAIN_LINES], ids=["compiled", "interpreted"])
def test_buffer_that_fills_up_ends_with_a_whole_transaction(
    log: Log, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines are the same with little room; what does not fit in goes the ordinary way."""
    start = VClock()
    blocks = blocks_after(log, start)
    expected = by_flow(Streams(log, Dialect.D1).deliveries(start, blocks))
    monkeypatch.setattr(rows, "linekernel", module)
    monkeypatch.setattr(rows, "_OUT_BYTES", 700)
    assert by_flow(Streams(log, Dialect.D1).deliveries(start, blocks)) == expected


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 1000])
def test_pages_of_a_stream_are_whole_units_of_one_writer(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units larger than a page, pages that end with a unit, other writers before and behind."""
    monkeypatch.setattr(streams, "SYNAPSE_CATCH_UP_ROWS", limit)
    with logweir.open(tmp_path) as log:
        intake = Intake(log, "x.test")
        for writer in ("a", "master", "w1", "zz"):
            for token in range(1, 30):
                group = [encode_row(f"[{token},{place}]") for place in range(1 + token % 7)]
                cursor = Cursor(token, token)
                intake.store([Unit("events", writer, 1, token, group, False, cursor)])
        served = Streams(log, Dialect.D3)
        stream = served.get("events")
        assert stream is not None
        for writer in ("a", "master", "zz"):
            lines, after = [], 0
            with log.read_view() as view:
                while found := served.stored(view, stream, writer, 1, after):
                    for unit in found:
                        lines += unit.lines.decode().splitlines()
                        after = unit.token
            expected = [
                f"RDATA events {writer} {token if place == token % 7 else 'batch'} "
                f"[{token},{place}]"
                for token in range(1, 30)
                for place in range(1 + token % 7)
            ]
            assert lines == expected


def test_strings_are_escaped_at_every_place() -> None:
    """Lengths and places around the eight bytes that are looked at together."""
    chance = random.Random(5)
    odd = ['"', "\\", "\x7f", "\x1f", "\x00", "\n", "é", "\u0800", "\uffff", "😀"]
    for length in range(34):
        for place in range(length + 1):
            for letter in odd:
                text = "".join(chance.choice(" !#[]~az") for _ in range(length))
                text = text[:place] + letter + text[place:]
                shown = render(pack([text, chance.choice(["", 1, "tail"])]), form="compact")
                assert shown is not None
                assert shown.startswith("[" + json.dumps(text) + ",")
        plain = "".join(chance.choice(" !#[]~az") for _ in range(length))
        assert render(pack(plain), form="strict") == json.dumps(plain)
