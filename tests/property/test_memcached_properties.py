"""Properties of packets, streams and buckets, with values that hypothesis makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tapmodel import MemoryBucket, oldest_opaque, packets

import logweir
from logweir.replication.bucket.item import Item, VbucketState, pack_item, unpack_item
from logweir.replication.memcached.client_session import ClientSession
from logweir.replication.memcached.push.stream import Producer, StreamOptions
from logweir.replication.memcached.serve.commands import Executor
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_request
from logweir.replication.memcached.wire.messages import (
    Connect,
    Option,
    TapMessage,
    decode_connect,
    decode_filter,
    decode_tap,
    encode_connect,
    encode_tap,
)
from logweir.replication.outgoing.spacefeed import ENCODINGS, SpaceFeed
from logweir.replication.service.sasl import MECHANISMS, Authentication, Credentials, Login
from logweir.replication.service.verifiers import ScramVerifier, cram_verifier, scram_verifier
from logweir.replication.session import Outbox
from logweir.wal.mp import pack, unpack
from logweir.wal.render import from_json

U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
OPTIONS = st.integers(0, 0x1FF).map(Option)


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    """Any TAP_CONNECT whose bodies fit its options."""
    options = draw(OPTIONS)
    closed_only = draw(st.none() | st.booleans())
    return Connect(
        draw(st.binary(max_size=300)),
        options,
        draw(U64) if options & Option.BACKFILL else 0,
        tuple(draw(st.lists(U16, max_size=5))) if options & Option.LIST_VBUCKETS else (),
        tuple(draw(st.lists(st.tuples(U16, U64), max_size=5)))
        if options & Option.CHECKPOINT
        else (),
        closed_only if options & Option.REGISTERED_CLIENT else None,
        draw(U32),
    )


@given(connects())
def test_any_connect_survives(connect: Connect) -> None:
    """Written and read it is the same."""
    (packet,) = packets(encode_connect(connect))
    assert decode_connect(packet) == connect


MUTATIONS = st.builds(
    TapMessage,
    opcode=st.just(Opcode.TAP_MUTATION),
    key=st.binary(min_size=1, max_size=250),
    value=st.binary(max_size=100),
    vbucket=U16,
    cas=U64,
    item_flags=U32,
    expiry=U32,
    datatype=st.integers(0, 255),
    private=st.sampled_from([b"", b"123456789"]),
    ttl=st.integers(0, 255),
    wants_ack=st.booleans(),
    opaque=U32,
)
DELETIONS = st.builds(
    TapMessage,
    opcode=st.just(Opcode.TAP_DELETE),
    key=st.binary(min_size=1, max_size=250),
    vbucket=U16,
    cas=U64,
    private=st.sampled_from([b"", b"12345678"]),
    wants_ack=st.booleans(),
    opaque=U32,
)


@given(MUTATIONS | DELETIONS, st.booleans())
def test_any_message_survives(message: TapMessage, fix_flags: bool) -> None:
    """In both byte orders of the item flags."""
    (packet,) = packets(encode_tap(message, fix_flags=fix_flags))
    assert decode_tap(packet) == message


ITEMS = st.builds(
    Item,
    key=st.binary(min_size=1, max_size=250),
    vbucket=U16,
    value=st.binary(max_size=100),
    flags=U32,
    expiry=U32,
    cas=U64,
    datatype=st.integers(0, 255),
    compression=st.integers(0, 255),
    expiration=st.text(max_size=10),
    meta=st.binary(max_size=10),
    ttl=st.integers(0, 255),
)


@given(ITEMS)
def test_any_item_survives(item: Item) -> None:
    """As a tuple, which begins as it is said to."""
    assert unpack_item(pack_item(item)) == item


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcde")),
        st.tuples(st.just("delete"), st.sampled_from("abcde")),
        st.tuples(st.just("ask"), st.just("")),
        st.tuples(st.just("deliver"), st.integers(0, 6).map(str)),
        st.tuples(st.just("busy"), st.just("")),
        st.tuples(st.just("reconnect"), st.just("")),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(STEPS)
def test_a_consumer_ends_with_the_producers_bucket(steps: list[tuple[str, str]]) -> None:
    """Whatever is delivered, refused as busy or lost in a reconnect: what was changed since the
    acknowledged position comes again, and both are the same at the end."""
    history: list[TapMessage] = []
    truth: dict[bytes, bytes] = {}
    bucket = MemoryBucket(states={0: VbucketState.ACTIVE})
    executor = Executor(bucket, bucket.now)
    now = 0.0
    opaque, acknowledged = 0, 0

    def connect() -> tuple[Producer[int], Outbox, ClientSession]:
        out = Outbox()
        request = Connect(b"n", Option.SUPPORT_ACK)
        producer: Producer[int] = Producer(
            request, out, now, options=StreamOptions(), opaque=opaque, acknowledged=acknowledged
        )
        consumer = ClientSession(request)
        consumer.data_to_send()
        for i, message in enumerate(history[acknowledged:], acknowledged + 1):
            producer.put(message, now, i)
        return producer, out, consumer

    def exchange(limit: int | None = None) -> None:
        rest.append(out.take())
        whole = b"".join(rest)
        cut = len(whole) if limit is None else limit * 20
        rest[:] = [whole[cut:]]
        for event in consumer.receive_data(whole[:cut], now):
            assert isinstance(event, TapMessage)
            assert executor.apply(event) == Status.SUCCESS
        consumer.acknowledge()
        for packet in packets(consumer.data_to_send()):
            producer.take_answer(packet, now)

    rest: list[bytes] = []
    producer, out, consumer = connect()
    for what, argument in steps:
        if what in ("put", "delete"):
            key, value = argument.encode(), b"%d" % len(history)
            is_put = what == "put"
            message = TapMessage(
                Opcode.TAP_MUTATION if is_put else Opcode.TAP_DELETE, key, value if is_put else b""
            )
            history.append(message)
            truth.pop(key, None)
            if is_put:
                truth[key] = value
            producer.put(message, now, len(history))
        elif what == "ask":
            producer.ask(now)
        elif what == "deliver":
            exchange(int(argument))
        elif what == "busy" and (oldest := oldest_opaque(producer)) is not None:
            status = Status.BUSY
            busy = Packet(Opcode.TAP_MUTATION, vbucket=status, opaque=oldest, is_response=True)
            producer.take_answer(busy, now)
            now += 10
            producer.deadline_passed(now)
        elif what == "reconnect":
            opaque, acknowledged = producer.opaque, producer.acknowledged or 0
            rest.clear()
            producer, out, consumer = connect()
    producer.ask(now)
    exchange()
    exchange()
    assert producer.unacknowledged == 0
    assert producer.acknowledged == len(history) or not history
    assert {key: item.value for key, item in bucket.items.items()} == truth


@given(st.lists(st.builds(Packet, opcode=st.integers(0, 255), key=st.binary(max_size=9)),
                max_size=9), st.integers(1, 40))  # fmt: skip
def test_any_packets_are_found_in_any_portions(sent: list[Packet], step: int) -> None:
    """Requests and responses alike."""
    sent = [replace(p, key=b"", extras=b"") if 0x41 <= p.opcode <= 0x47 else p for p in sent]
    data = b"".join(map(encode_request, sent))
    assert packets(data) == sent
    assert step > 0


PAIRS = st.lists(st.tuples(U16, U64), max_size=9)


@given(PAIRS, st.binary(max_size=9))
def test_any_filter_survives(pairs: list[tuple[int, int]], rest: bytes) -> None:
    """CHANGE_VB_FILTER, with anything behind it."""
    body = b"".join(v.to_bytes(2, "big") + n.to_bytes(8, "big") for v, n in pairs)
    value = len(pairs).to_bytes(2, "big") + body + rest
    assert decode_filter(Packet(Opcode.CHANGE_VB_FILTER, b"n", value)) == tuple(pairs)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MECHANISMS),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=80),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=80),
)
def test_a_login_succeeds_exactly_with_the_password(
    mechanism: str, user: str, password: str, given_password: str
) -> None:
    """By each mechanism, for any names and passwords; SCRAM's server proves itself as well."""

    class One(Credentials):
        def mechanisms(self) -> tuple[str, ...]:
            return (mechanism,)

        def check_password(self, name: str, word: str) -> bool:
            return (name, word) == (user, password)

        def cram(self, name: str) -> bytes | None:
            return cram_verifier(password) if name == user else None

        def scram(self, name: str, which: str) -> ScramVerifier | None:
            return scram_verifier(which, password, b"salt", 16) if name == user else None

    server = Authentication(One(), mechanism, bytes)
    login = Login(user, given_password, bytes)
    outcome = server.step(login.begin([mechanism]))
    while outcome.challenge is not None and outcome.user is None:
        outcome = server.step(login.step(outcome.challenge))
    # RFC 2104 fills a key up with zeros and hashes long ones, so CRAM-MD5 may know some as the same
    same = given_password == password
    if mechanism == "CRAM-MD5":
        same = cram_verifier(given_password) == cram_verifier(password)
    assert (outcome.user == user) == same
    if outcome.user is not None:
        login.finish(outcome.challenge or b"")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def any_space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[logweir.Log]:
    """A store with one space."""
    with logweir.open(tmp_path_factory.mktemp("any")) as log:
        log.create_space("any", [("id", "unsigned")], primary=["id"])
        yield log


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**64 - 1), st.lists(VALUES, max_size=5))
def test_any_tuple_of_a_space_can_be_read_back(
    any_space: logweir.Log, key: int, rest: list[object]
) -> None:
    """As JSON and as MsgPack."""
    data = pack((key, *rest))
    for encoding in ENCODINGS:
        feed = SpaceFeed(any_space, "any", encoding)
        (item,) = feed.items(feed.shape(), data)
        if encoding == "msgpack":
            assert (item.key, item.value) == (pack((key,)), data)
        else:
            assert json.loads(item.key) == [key]
            value = json.loads(item.value)
            if encoding == "envelope":
                assert json.loads(item.key) == value["key"]
                value = value["value"]
            assert from_json(value) == unpack(data)
