"""Commands on a bucket: what memcached answers, and what is stored."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tapmodel import NOW, StoreServer, packets, sent

import logweir
from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucket.item import Held, Item, VbucketState
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_request
from logweir.replication.memcached.wire.messages import Opaque, TapMessage, encode_tap

# Not compared: what is not the same everywhere. Behind the unknown VERBOSITY with a body,
# memcached 1.6.18 does not answer until more comes, and the client had gone.
DIFFERENT = {
    "kv-memcached-1.6": {
        Opcode.VERSION,
        Opcode.STAT,
        Opcode.VERBOSITY,
        Opcode.FLUSH,
        0x99,
        Opcode.TAP_CONNECT,
    },
    "kv-default-engine": {Opcode.VERSION, Opcode.STAT, Opcode.TOUCH, Opcode.TAP_CONNECT},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    """A bucket of a store, served."""
    with logweir.open(tmp_path / "s", clock=lambda: NOW, durability="write") as log:
        yield StoreServer(log)


def ask(server: StoreServer, *requests: Packet) -> list[Packet]:
    """The answers to some requests."""
    return packets(server.feed(b"".join(map(encode_request, requests))))


def store(key: bytes, value: bytes = b"v", opcode: int = Opcode.SET, **fields: Any) -> Packet:
    """A request that stores."""
    expiry = fields.pop("expiry", 0)
    return Packet(opcode, key, value, struct.pack(">II", 0, expiry), **fields)


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_recorded_commands_get_the_recorded_answers(server: StoreServer, name: str) -> None:
    """All commands of the recording: status, extras, key and value; CAS by what they refer to."""
    cas_of: dict[int, int] = {}
    left_out = {*DIFFERENT[name], Opcode.TAP_MUTATION}
    recorded = [p for p in packets(sent(name, "s2c")) if p.opcode not in left_out]
    total = len(recorded)
    for request in packets(sent(name, "c2s")):
        if server.session.close_reason or server.connected:
            server = StoreServer(server.log)
        request = replace(request, cas=cas_of.get(request.cas, request.cas))
        for answer in packets(server.feed(encode_request(request))):
            if answer.opcode in left_out:
                continue
            wanted = recorded.pop(0)
            if answer.status:
                wanted = replace(wanted, value=answer.value)
            assert bool(answer.cas) == bool(wanted.cas)
            cas_of[wanted.cas] = answer.cas
            assert answer == replace(wanted, cas=answer.cas)
    assert recorded == []
    assert total >= 36


def test_expiry_is_relative_up_to_thirty_days(server: StoreServer) -> None:
    """Above it is a Unix time, and 0 is never."""
    limit = 30 * 24 * 3600
    ask(server, store(b"never"), store(b"month", expiry=limit), store(b"time", expiry=limit + 1))
    found = {key: item.expiry for key, item in server.items.items()}
    assert found == {b"never": 0, b"month": int(NOW) + limit, b"time": limit + 1}


def test_an_expired_item_is_gone_and_removed(server: StoreServer) -> None:
    """Whoever looks first removes it; ADD succeeds behind it."""
    ask(server, store(b"k", expiry=10))
    server.now = NOW + 10
    (miss,) = ask(server, Packet(Opcode.GET, b"k"))
    assert miss.status == Status.NOT_FOUND
    assert server.rows() == [["REPLACE"], ["REPLACE", "DELETE"]]
    (added,) = ask(server, store(b"k", opcode=Opcode.ADD))
    assert added.status == Status.SUCCESS


def test_a_change_in_the_place_of_an_expired_item_is_a_transaction_of_its_own(
    server: StoreServer,
) -> None:
    """Behind that of the removal."""
    ask(server, store(b"k", expiry=10))
    server.now = NOW + 10
    (added,) = ask(server, store(b"k", opcode=Opcode.ADD))
    assert added.status == Status.SUCCESS
    assert server.rows() == [["REPLACE"], ["REPLACE", "DELETE"], ["REPLACE"]]


@pytest.mark.parametrize("opcode", [Opcode.GETQ, Opcode.GETKQ, Opcode.GATQ, Opcode.GATKQ])
def test_quiet_reads_say_nothing_of_a_miss_and_all_of_a_hit(
    server: StoreServer, opcode: Opcode
) -> None:
    """Only the hit is answered, behind it NOOP."""
    ask(server, store(b"k"))
    extras = bytes(4) if opcode in (Opcode.GATQ, Opcode.GATKQ) else b""
    answers = ask(
        server,
        Packet(opcode, b"missing", extras=extras),
        Packet(opcode, b"k", extras=extras),
        Packet(Opcode.NOOP),
    )
    assert [answer.opcode for answer in answers] == [opcode, Opcode.NOOP]
    assert answers[0].value == b"v"
    assert answers[0].key == (b"k" if opcode in (Opcode.GETKQ, Opcode.GATKQ) else b"")


def test_quiet_changes_say_only_what_failed(server: StoreServer) -> None:
    """Each quiet form that works is silent; its failure is not."""
    good = [
        store(b"k", b"1", Opcode.SETQ),
        store(b"k2", b"1", Opcode.ADDQ),
        store(b"k", b"5", Opcode.REPLACEQ),
        Packet(Opcode.APPENDQ, b"k", b"0"),
        Packet(Opcode.PREPENDQ, b"k", b"1"),
        Packet(Opcode.INCREMENTQ, b"k", extras=struct.pack(">QQI", 1, 0, 0)),
        Packet(Opcode.DECREMENTQ, b"k", extras=struct.pack(">QQI", 2, 0, 0)),
        Packet(Opcode.DELETEQ, b"k2"),
    ]
    assert ask(server, *good) == []
    assert server.items[b"k"].value == b"149"
    bad = [
        store(b"k", opcode=Opcode.ADDQ),
        store(b"no", opcode=Opcode.REPLACEQ),
        Packet(Opcode.APPENDQ, b"no", b"x"),
        Packet(Opcode.DELETEQ, b"no"),
    ]
    statuses = [answer.status for answer in ask(server, *bad)]
    assert statuses == [
        Status.EXISTS, Status.NOT_FOUND, Status.NOT_STORED, Status.NOT_FOUND
    ]  # fmt: skip
    assert ask(server, Packet(Opcode.FLUSHQ)) == []
    assert server.items == {}


@pytest.mark.parametrize(
    ("value", "delta", "result"),
    [
        (b"5", 1, b"6"),
        (b"18446744073709551615", 1, b"0".ljust(20)),
        (b"99", 1, b"100"),
        (b" 7", 1, b"8 "),
        (b"12 rest", 1, b"13     "),
        (b"+3", 0, b"3 "),
    ],
)
def test_numbers_are_text_up_to_a_blank(
    server: StoreServer, value: bytes, delta: int, result: bytes
) -> None:
    """The result keeps at least the length it had."""
    ask(server, store(b"n", value))
    ask(server, Packet(Opcode.INCREMENT, b"n", extras=struct.pack(">QQI", delta, 0, 0)))
    assert server.items[b"n"].value == result


@pytest.mark.parametrize("value", [b"", b"x", b"-5", b"1x", b"18446744073709551616", b"9" * 40])
def test_what_is_no_number_is_not_counted(server: StoreServer, value: bytes) -> None:
    """Status 06, and the value stays."""
    ask(server, store(b"n", value))
    (answer,) = ask(server, Packet(Opcode.DECREMENT, b"n", extras=struct.pack(">QQI", 1, 0, 0)))
    assert answer.status == Status.BAD_DELTA
    assert server.items[b"n"].value == value


def test_a_value_above_the_limit_leaves_the_item(server: StoreServer) -> None:
    """At the limit it is stored, above it 03; appending above it too."""
    (fits,) = ask(server, store(b"k", bytes(TAP_VALUE_BYTES)))
    (above,) = ask(server, store(b"k", bytes(TAP_VALUE_BYTES + 1)))
    (longer,) = ask(server, Packet(Opcode.APPEND, b"k", b"x"))
    huge = bytes(2 * 1024 * 1024)
    passed_over, after = ask(server, store(b"k", huge), Packet(Opcode.NOOP))
    assert [p.status for p in (fits, above, longer, passed_over)] == [0, 3, 3, 3]
    assert after.opcode == Opcode.NOOP
    assert len(server.items[b"k"].value) == TAP_VALUE_BYTES


@pytest.mark.parametrize(
    "request_",
    [
        Packet(Opcode.GET, b"k" * 251),
        Packet(Opcode.GET, b""),
        Packet(Opcode.GET, b"k", b"value"),
        Packet(Opcode.SET, b"k", b"v", bytes(4)),
        Packet(Opcode.DELETE, b"k", extras=bytes(1)),
        Packet(Opcode.INCREMENT, b"k", extras=bytes(8)),
        Packet(Opcode.FLUSH, extras=bytes(3)),
        Packet(Opcode.NOOP, b"k"),
    ],
)
def test_malformed_requests_end_the_connection(server: StoreServer, request_: Packet) -> None:
    """Status 04 behind the answers of what came before, and nothing behind it is done."""
    answers = ask(server, store(b"before"), request_, store(b"behind"))
    assert [answer.status for answer in answers] == [Status.SUCCESS, Status.INVALID]
    assert server.session.close_reason
    assert list(server.items) == [b"before"]


def test_a_key_of_250_bytes_is_fine(server: StoreServer) -> None:
    """The longest that is."""
    (answer,) = ask(server, store(b"k" * 250))
    assert answer.status == Status.SUCCESS


def test_unknown_commands_leave_the_connection_usable(server: StoreServer) -> None:
    """Status 81 without text."""
    unknown, noop = ask(server, Packet(0x99, b"k", b"v"), Packet(Opcode.NOOP))
    assert (unknown.status, unknown.value, noop.opcode) == (0x81, b"", Opcode.NOOP)
    assert server.session.close_reason == ""


def test_vbuckets_answer_by_their_state(server: StoreServer) -> None:
    """Only an active one is read and written; a request to a pending one waits."""
    states = {1: VbucketState.ACTIVE, 2: VbucketState.REPLICA, 3: VbucketState.PENDING,
              4: VbucketState.DEAD}  # fmt: skip
    for vbucket, state in states.items():
        ask(server, Packet(Opcode.SET_VBUCKET, extras=state.to_bytes(4, "big"), vbucket=vbucket))
    found = [ask(server, store(b"k", vbucket=n))[0].status for n in (1, 2, 4, 5)]
    assert found == [0, 7, 7, 7]
    with pytest.raises(Held):
        ask(StoreServer(server.log), store(b"k", vbucket=3))
    read = [ask(server, Packet(Opcode.GET_VBUCKET, vbucket=n))[0] for n in (3, 5)]
    assert (read[0].value, read[1].status) == (b"\0\0\0\3", 7)
    assert ask(server, Packet(Opcode.DEL_VBUCKET, vbucket=1))[0].status == 0
    assert ask(server, Packet(Opcode.DEL_VBUCKET, vbucket=1))[0].status == 7
    bad = ask(server, Packet(Opcode.SET_VBUCKET, extras=b"\0\0\0\x09", vbucket=1))
    assert bad[0].status == Status.INVALID
    assert server.items == {}


def test_a_recorded_producer_gets_the_answers_of_a_real_consumer(server: StoreServer) -> None:
    """Every packet type with the ACK flag; the same statuses, texts apart."""
    answers = packets(server.feed(sent("consumer-raw", "c2s")))
    wanted = packets(sent("consumer-raw", "s2c"))
    assert [(p.opcode, p.status, p.opaque) for p in answers] == [
        (p.opcode, p.status, p.opaque) for p in wanted
    ]
    assert server.states[3] == VbucketState.ACTIVE
    assert server.items == {}


def test_a_recorded_takeover_fills_the_destination(server: StoreServer) -> None:
    """The migrator's packets make vbucket 1 active with the items and answers of the recording."""
    name = "takeover-vbucketmigrator-destination"
    answers = packets(server.feed(sent(name, "c2s")))
    assert [(p.opcode, p.status, p.opaque) for p in answers] == [
        (p.opcode, p.status, p.opaque) for p in packets(sent(name, "s2c"))
    ]
    assert server.states[1] == VbucketState.ACTIVE
    found = {key: item.flags for key, item in server.items.items()}
    assert found[b"ncxcgu4t:lo"] == 0xDEADBEEF
    assert b"tr0" not in found


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (TapMessage(Opcode.TAP_MUTATION, b"k", ttl=0), Status.INVALID),
        (TapMessage(Opcode.TAP_MUTATION, b"k", ttl=1), Status.SUCCESS),
        (TapMessage(Opcode.TAP_MUTATION, b"k" * 251), Status.INVALID),
        (TapMessage(Opcode.TAP_MUTATION, b"k", bytes(TAP_VALUE_BYTES + 1)), Status.TOO_BIG),
        (TapMessage(Opcode.TAP_MUTATION, b"k", vbucket=9), Status.NOT_MY_VBUCKET),
        (TapMessage(Opcode.TAP_DELETE, b"missing"), Status.SUCCESS),
        (TapMessage(Opcode.TAP_VBUCKET_SET, number=7), Status.INVALID),
    ],
)
def test_what_a_producer_sends_is_taken_or_refused(
    server: StoreServer, message: TapMessage, status: Status
) -> None:
    """TTL 0, long keys, large values, vbuckets that are not here, states that are none."""
    assert server.executor.apply(message) == status


def test_failures_without_the_ack_flag_are_told_once_that_was_allowed(server: StoreServer) -> None:
    """Silence before ENABLE_AUTO_NACK, status 07 behind it."""
    lost = encode_tap(TapMessage(Opcode.TAP_MUTATION, b"k", vbucket=9, opaque=5))
    enable = encode_tap(TapMessage(Opcode.TAP_OPAQUE, number=Opaque.ENABLE_AUTO_NACK))
    assert server.feed(lost) == b""
    (refusal,) = packets(server.feed(enable + lost))
    assert (refusal.status, refusal.opaque) == (Status.NOT_MY_VBUCKET, 5)


def test_a_mutation_keeps_what_it_brings(server: StoreServer) -> None:
    """CAS, flags, expiry, private bytes, datatype and, less one, how far it may go."""
    message = TapMessage(
        Opcode.TAP_MUTATION, b"k", b"v", 0, 77, 0x01020304, 1_900_000_000, 1, b"nine byte"
    )
    server.feed(encode_tap(message))
    assert server.items[b"k"] == Item(
        b"k", 0, b"v", 0x01020304, 1_900_000_000, 77, 1, meta=b"nine byte", ttl=254
    )
