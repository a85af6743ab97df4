"""A broker's side of a connection: what a fetch gets and when, what a publish is told."""

from __future__ import annotations

import pytest
from support.tankserving import decode_chunk

from interop.tankmodel import Broker, MemoryTopics, frames
from logweir.limits import (
    FRAME_SECONDS,
    TANK_ANSWER_BYTES,
    TANK_SILENT_SECONDS,
    TANK_WAIT_MS,
    TANK_WAITING_FETCHES,
)
from logweir.replication.tank.push import WaitIndex
from logweir.replication.tank.server_session import ServerSession
from logweir.replication.tank.wire.codec import PING, decode_answer, encode_request, publish_results
from logweir.replication.tank.wire.messages import (
    FROM_END,
    Create,
    CreateAnswer,
    Fetch,
    FetchAnswer,
    FetchedPart,
    FetchPart,
    FetchStatus,
    Ping,
    Publish,
    PublishAnswer,
    PublishPart,
    PublishResult,
    Reload,
    ReloadAnswer,
    Request,
    Status,
    StatusAnswer,
)
from logweir.replication.topic.bundle import (
    NUMBER_MAX,
    Message,
    encode_bundle,
    read_head,
    split_chunk,
)

R = PublishResult
F = FetchStatus


def ordinary(count: int, size: int = 5) -> bytes:
    """A bundle of `count` messages of `size` bytes."""
    return encode_bundle([Message(0, 1, None, bytes(size))] * count, compress=False)


def sparse(*numbers: int) -> bytes:
    """A bundle that says its numbers."""
    return encode_bundle([Message(n, 1, None, b"%d" % n) for n in numbers], sparse=True)


class Client:
    """A connection to a broker over topics in memory."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.session = broker.connect()
        assert self.session.data_to_send() == PING
        self.ids = 0

    def send(self, request: Request) -> list[object]:
        """Send one request, return what is answered now."""
        return answers(self.broker.feed(self.session, encode_request(request)))

    def publish(self, topic: str, partition: int, bundle: bytes, first: int | None = None) -> R:
        """Publish one bundle."""
        self.ids += 1
        part = PublishPart(topic, partition, bundle, first)
        request = Publish(self.ids, ((topic, (part,)),), at_numbers=first is not None)
        (answer,) = self.send(request)
        assert isinstance(answer, PublishAnswer)
        ((result,),) = publish_results(answer, [1])
        return result

    def ask(self, *parts: FetchPart, max_wait_ms: int = 0, min_bytes: int = 0) -> list[object]:
        """Fetch from one topic, return what is answered now."""
        self.ids += 1
        groups = tuple((part.topic, (part,)) for part in parts)
        return self.send(Fetch(self.ids, groups, max_wait_ms, min_bytes))

    def fetch(self, start: int, size_bytes: int = 1 << 20) -> FetchedPart:
        """Fetch from t/0 without waiting."""
        (answer,) = self.ask(FetchPart("t", 0, start, size_bytes))
        assert isinstance(answer, FetchAnswer)
        return answer.parts[0]


def answers(data: bytes) -> list[object]:
    """Decoded frames without pings."""
    found = [decode_answer(*frame) for frame in frames(data)]
    return [answer for answer in found if not isinstance(answer, Ping)]


@pytest.fixture
def client() -> Client:
    """A client of a broker with topic t of two partitions."""
    topics = MemoryTopics()
    topics.create("t", 2)
    return Client(Broker(topics))


def waits(client: Client, *parts: FetchPart, min_bytes: int = 0) -> None:
    """Such a fetch is not answered at once."""
    assert client.ask(*parts, max_wait_ms=1000, min_bytes=min_bytes) == []


# --- section: what one partition gives --------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1, FROM_END])
def test_never_written_partition_waits(client: Client, start: int) -> None:
    """From the oldest, from the next number and from the end."""
    waits(client, FetchPart("t", 0, start, 1))
    part = client.fetch(start)
    assert (part.status, part.base, part.high_water_mark, part.chunk) == (F.FINE, 0, 0, b"")


def test_oldest_is_asked_with_zero(client: Client) -> None:
    """From the first number that is there, whatever it is."""
    client.publish("t", 0, sparse(7, 9))
    client.publish("t", 0, ordinary(2))
    part = client.fetch(0)
    assert part.status is F.SPARSE
    assert [m.number for m in decode_chunk(part.chunk, part.base)] == [7, 9, 10, 11]
    assert part.high_water_mark == 11


def test_end_waits_and_beyond_it_is_a_boundary_failure(client: Client) -> None:
    """last + 1 and 2^64-1 wait; last + 2 fails; below the first number fails."""
    client.publish("t", 0, sparse(5, 6))
    for start in (7, FROM_END):
        waits(client, FetchPart("t", 0, start, 1))
        part = client.fetch(start)
        assert (part.status, part.base, part.high_water_mark) == (F.FINE, 5, 6)
    for start in (8, 99999, FROM_END - 1, 1, 4):
        part = client.fetch(start)
        assert (part.status, part.base, part.chunk) == (F.BOUNDARY, 0, b"")
        assert (part.high_water_mark, part.first_available) == (6, 5)


def test_number_is_answered_from_the_bundle_that_holds_it(client: Client) -> None:
    """Whole, so with lower numbers too; a number in a gap gives the next bundle."""
    client.publish("t", 0, ordinary(3))
    client.publish("t", 0, ordinary(3))
    client.publish("t", 0, sparse(20, 30))
    part = client.fetch(5)
    assert (part.status, part.base) == (F.FINE, 4)
    assert [m.number for m in decode_chunk(part.chunk, part.base)] == [4, 5, 6, 20, 30]
    assert client.fetch(12).status is F.SPARSE
    assert [m.number for m in decode_chunk(client.fetch(25).chunk, 0)] == [20, 30]


def test_unknown_and_unreadable_partitions_are_told(client: Client) -> None:
    """At once, beside each other, also where others wait."""
    client.broker.topics.unreadable.add(("t", 1))
    parts = (
        FetchPart("t", 0, 0, 1),
        FetchPart("t", 1, 0, 1),
        FetchPart("t", 2, 0, 1),
        FetchPart("nosuch", 0, 0, 1),
    )
    (answer,) = client.ask(*parts, max_wait_ms=1000)
    assert isinstance(answer, FetchAnswer)
    assert [part.status for part in answer.parts] == [
        F.FINE,
        F.UNREADABLE,
        F.UNKNOWN_PARTITION,
        None,
    ]


def test_fetch_size_limits_after_the_first_bundle(client: Client) -> None:
    """Whole bundles only, at least one."""
    for _ in range(4):
        client.publish("t", 0, ordinary(1, 100))
    one = len(client.fetch(1, 0).chunk)
    for size, count in ((0, 1), (1, 1), (2 * one - 1, 1), (2 * one, 2), (1 << 30, 4)):
        assert len(split_chunk(client.fetch(1, size).chunk)[0]) == count


def test_one_answer_is_bounded_and_every_partition_gets_its_turn(client: Client) -> None:
    """Above the limit of one answer the other partitions come out empty, not always the same."""
    big = ordinary(1, TANK_ANSWER_BYTES)
    for partition in (0, 1):
        client.publish("t", partition, big)
    served = []
    for _ in range(4):
        (answer,) = client.ask(
            FetchPart("t", 0, 1, 1 << 30), FetchPart("t", 1, 1, 1 << 30), max_wait_ms=1000
        )
        assert isinstance(answer, FetchAnswer)
        assert [part.status for part in answer.parts] == [F.FINE, F.FINE]
        (index,) = (i for i, part in enumerate(answer.parts) if part.chunk)
        served.append(index)
    assert sorted(served) == [0, 0, 1, 1]


# --- section: when the answer is sent ---------------------------------------------------------


def test_data_or_error_answers_at_once_and_the_others_appear_empty(client: Client) -> None:
    """min bytes plays no part then."""
    client.publish("t", 0, ordinary(1))
    (answer,) = client.ask(
        FetchPart("t", 0, 1, 100), FetchPart("t", 1, 0, 100), max_wait_ms=1000, min_bytes=5000
    )
    assert isinstance(answer, FetchAnswer)
    assert bool(answer.parts[0].chunk)
    assert (answer.parts[1].status, answer.parts[1].chunk) == (F.FINE, b"")


def test_waiting_fetch_is_woken_by_the_first_publish(client: Client) -> None:
    """The base is the first number published since, the others come out empty with base 0."""
    client.publish("t", 0, ordinary(2))
    client.publish("t", 1, ordinary(1))
    waits(client, FetchPart("t", 0, 3, 1), FetchPart("t", 1, FROM_END, 1))
    other = Client(client.broker)
    assert other.publish("t", 0, ordinary(2)) is R.STORED
    (answer,) = answers(client.session.data_to_send())
    assert isinstance(answer, FetchAnswer)
    news, silent = answer.parts
    assert (news.status, news.base, news.high_water_mark) == (F.FINE, 3, 4)
    assert [m.number for m in decode_chunk(news.chunk, news.base)] == [3, 4]
    assert (silent.status, silent.base, silent.high_water_mark) == (F.FINE, 0, 1)
    assert len(client.broker.waiters) == 0


def test_min_bytes_are_waited_for_over_all_partitions(client: Client) -> None:
    """Counted with the length of each bundle; the fetch size plays no part then."""
    size = len(ordinary(1, 100)) + 1
    parts = (FetchPart("t", 0, 0, 1), FetchPart("t", 1, 0, 1))
    waits(client, *parts, min_bytes=3 * size)
    other = Client(client.broker)
    for partition in (0, 1):
        other.publish("t", partition, ordinary(1, 100))
        assert client.session.data_to_send() == b""
    other.publish("t", 0, ordinary(1, 100))
    (answer,) = answers(client.session.data_to_send())
    assert isinstance(answer, FetchAnswer)
    assert [len(part.chunk) for part in answer.parts] == [2 * size, size]


def test_end_of_the_wait_gives_what_there_is(client: Client) -> None:
    """Nothing: empty with base 0. Less than min bytes: that."""
    waits(client, FetchPart("t", 0, FROM_END, 1), min_bytes=5000)
    assert client.broker.advance(client.session, 0.5) == b""
    (answer,) = answers(client.broker.advance(client.session, 0.5))
    assert isinstance(answer, FetchAnswer)
    part = answer.parts[0]
    assert (part.status, part.base, part.high_water_mark, part.chunk) == (F.FINE, 0, 0, b"")
    waits(client, FetchPart("t", 0, FROM_END, 1), min_bytes=5000)
    Client(client.broker).publish("t", 0, sparse(500, 505))
    (answer,) = answers(client.broker.advance(client.session, 1))
    assert isinstance(answer, FetchAnswer)
    part = answer.parts[0]
    assert (part.status, part.base, part.high_water_mark) == (F.FINE, 500, 505)
    assert [m.number for m in decode_chunk(part.chunk, part.base)] == [500, 505]


def test_answers_overtake_one_another(client: Client) -> None:
    """A fetch that waits does not hold up the next one, nor a publish on the same connection."""
    client.publish("t", 0, ordinary(1))
    waits(client, FetchPart("t", 0, 2, 1))
    assert len(client.fetch(1).chunk) > 0
    part = PublishPart("t", 0, ordinary(1))
    data = client.broker.feed(client.session, encode_request(Publish(9, (("t", (part,)),))))
    assert sorted(type(answer).__name__ for answer in answers(data)) == [
        "FetchAnswer",
        "PublishAnswer",
    ]


def test_longest_wait_is_an_hour(client: Client) -> None:
    """Whatever is asked for."""
    client.ask(FetchPart("t", 0, 0, 1), max_wait_ms=2**64 - 1)
    assert client.session.next_deadline() == TANK_WAIT_MS / 1000


def test_too_many_waiting_fetches_are_answered_at_once(client: Client) -> None:
    """Of one connection, and of all together."""
    for _ in range(TANK_WAITING_FETCHES):
        waits(client, FetchPart("t", 0, 0, 1))
    (answer,) = client.ask(FetchPart("t", 0, 0, 1), max_wait_ms=1000)
    assert isinstance(answer, FetchAnswer)
    full: WaitIndex[object] = WaitIndex(limit=2)
    assert full.add([("t", 0), ("t", 0)], "a")
    assert not full.add([("t", 1), ("t", 2)], "b")
    assert full.add([("t", 1)], "c")
    assert full.waiters(("t", 1)) == ("c",)
    assert full.topics() == {"t"}
    full.discard([("t", 0), ("t", 5)], "a")
    assert len(full) == 1


def test_topic_that_goes_away_ends_the_wait(client: Client) -> None:
    """With the marker of an unknown topic, or the status of a partition that cannot be read."""
    waits(client, FetchPart("t", 0, 0, 1))
    client.broker.topics.unreadable.add(("t", 0))
    (first,) = answers(client.broker.advance(client.session, 1))
    assert isinstance(first, FetchAnswer)
    assert first.parts[0].status is F.UNREADABLE
    client.broker.topics.unreadable.clear()
    waits(client, FetchPart("t", 1, 0, 1))
    waits(client, FetchPart("t", 0, 0, 1), FetchPart("t", 1, 0, 1))
    del client.broker.topics.content["t"][1]
    (second, third) = answers(client.broker.advance(client.session, 1))
    assert isinstance(second, FetchAnswer)
    assert isinstance(third, FetchAnswer)
    assert second.parts[0].status is F.UNKNOWN_PARTITION
    assert third.parts[0].status is F.FINE
    waits(client, FetchPart("t", 0, 0, 1))
    waiting = client.broker.waiters.waiters(("t", 0))
    del client.broker.topics.content["t"]
    client.session.published(waiting[0])
    (fourth,) = answers(client.session.data_to_send())
    assert isinstance(fourth, FetchAnswer)
    assert fourth.parts[0].status is None
    client.session.published(waiting[0])
    assert client.session.data_to_send() == b""


def test_largest_fetch_waits_and_is_answered(client: Client) -> None:
    """255 times 255 partitions in one request, woken by one of them."""
    client.broker.topics.create("many", 255)
    group = tuple(FetchPart("many", partition, 0, 1) for partition in range(255))
    request = Fetch(1, (("many", group),) * 255, max_wait_ms=1000)
    assert client.send(request) == []
    assert len(client.broker.waiters) == 255
    Client(client.broker).publish("many", 254, ordinary(1))
    (answer,) = answers(client.session.data_to_send())
    assert isinstance(answer, FetchAnswer)
    assert len(answer.parts) == 255 * 255
    assert sum(bool(part.chunk) for part in answer.parts) == 255
    assert len(client.broker.waiters) == 0


def test_closed_session_waits_for_nothing(client: Client) -> None:
    """Its fetches leave the index of those who wait."""
    waits(client, FetchPart("t", 0, 0, 1))
    assert client.session.receive_eof(0.0) == ()
    assert client.session.close_reason
    assert len(client.broker.waiters) == 0
    assert client.session.next_deadline() is None


# --- section: publishing ----------------------------------------------------------------------


def test_numbers_follow_the_last_assigned_one(client: Client) -> None:
    """Ordinary after ordinary, explicit, sparse under either message, ordinary after sparse."""
    assert client.publish("t", 0, ordinary(3)) is R.STORED
    assert client.publish("t", 0, sparse(10, 12), first=10) is R.STORED
    assert client.publish("t", 0, sparse(20, 21)) is R.STORED
    assert client.publish("t", 0, ordinary(2)) is R.STORED
    assert client.publish("t", 0, ordinary(2), first=24) is R.STORED
    part = client.fetch(1)
    assert [m.number for m in decode_chunk(part.chunk, part.base)] == [
        *(1, 2, 3, 10, 12, 20, 21, 22, 23, 24, 25)
    ]


def test_ordinary_bundle_that_jumps_ahead_keeps_its_numbers(client: Client) -> None:
    """Its numbers are written into it."""
    client.publish("t", 0, ordinary(1))
    assert client.publish("t", 0, ordinary(3), first=1000) is R.STORED
    part = client.fetch(1000)
    assert [m.number for m in decode_chunk(part.chunk, 0)] == [1000, 1001, 1002]
    assert read_head(split_chunk(part.chunk)[0][0]).sparse


def test_numbers_that_do_not_rise_are_refused(client: Client) -> None:
    """Result 10, and nothing is stored."""
    client.publish("t", 0, sparse(10, 12))
    for bundle, first in (
        (ordinary(1), 12),
        (ordinary(1), 5),
        (ordinary(1), 0),
        (ordinary(2), NUMBER_MAX),
        (sparse(12, 13), 12),
        (sparse(20, 21), 19),
        (sparse(5), None),
    ):
        assert client.publish("t", 0, bundle, first) is R.BAD_NUMBERS
    assert client.fetch(0).high_water_mark == 12


@pytest.mark.parametrize(
    "bundle",
    [b"", b"\0\0", b"\x06" + bytes(20), ordinary(3)[:-1], b"\x08" + ordinary(3)[1:], b"\x05\xff"],
)
def test_bundle_that_no_client_could_read_is_refused(client: Client, bundle: bytes) -> None:
    """Result 10: a lie about count, length or Snappy, an unknown codec, nothing at all."""
    assert client.publish("t", 0, bundle) is R.BAD_NUMBERS
    assert client.fetch(0).high_water_mark == 0


def test_outcomes_stand_in_the_order_of_the_request(client: Client) -> None:
    """One byte for an unknown topic, one per partition else; the same partition may come twice."""
    good, bad = ordinary(1), b"\0\0"
    request = Publish(
        5,
        (
            ("nosuch", (PublishPart("nosuch", 0, good), PublishPart("nosuch", 1, good))),
            ("t", tuple(PublishPart("t", n, b) for n, b in ((0, good), (7, good), (0, bad)))),
            ("t", (PublishPart("t", 0, good),)),
        ),
    )
    (answer,) = client.send(request)
    assert answer == PublishAnswer(5, b"\xff\0\1\x0a\0")
    assert client.fetch(0).high_water_mark == 2
    assert client.send(Publish(6, ())) == [PublishAnswer(6, b"")]


def test_store_that_fails_is_told(client: Client) -> None:
    """Result 2 once every bundle of the request has its outcome."""
    part = PublishPart("t", 0, ordinary(1))
    client.session.receive_data(b"", 0.0)
    appends = client.session.publish([Publish(8, (("t", (part, part)),))])
    assert len(appends) == 2
    client.session.stored(appends[1:], [R.STORED])
    assert client.session.data_to_send() == b""
    client.session.stored(appends[:1], [R.FAILED])
    assert answers(client.session.data_to_send()) == [PublishAnswer(8, b"\2\0")]


def test_read_only_broker_says_so_once_per_topic(client: Client) -> None:
    """And creates nothing."""
    client.broker.topics.read_only = True
    part = PublishPart("t", 0, ordinary(1))
    assert client.send(Publish(5, (("t", (part, part)),))) == [PublishAnswer(5, b"\xfe")]
    (answer,) = client.send(Create(6, "new", 1))
    assert isinstance(answer, CreateAnswer)
    assert answer.error == 5


# --- section: everything else -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "partitions", "config", "error"),
    [
        ("new", 1, b"", 0),
        ("t", 1, b"", 1),
        ("a" * 64, 65530, b"", 0),
        ("a" * 65, 1, b"", 10),
        ("new", 0, b"", 10),
        ("new", 65531, b"", 10),
        ("", 1, b"", 10),
        ("-_", 1, b"", 10),
        ("a.b", 1, b"", 10),
        ("ünï", 1, b"", 10),
        ("new\n", 1, b"", 10),
        ("new", 1, b"nonsense", 4),
        ("new", 1, b"log.retention.bytes=7", 4),
        ("new", 1, b"\xff=1", 4),
        ("new", 1, b"# nothing\nlog.retention.secs = 2d + 4h", 0),
    ],
)
def test_creation_is_checked(
    client: Client, name: str, partitions: int, config: bytes, error: int
) -> None:
    """Name, number of partitions, configuration."""
    (answer,) = client.send(Create(3, name, partitions, config))
    assert isinstance(answer, CreateAnswer)
    assert (answer.topic, answer.error) == (name, error)


@pytest.mark.parametrize(
    ("topic", "partition", "error"),
    [("t", 0, 2), ("set", 0, 0), ("t", 2, 10), ("nosuch", 0, 11)],
)
def test_reload_is_told_what_it_found(
    client: Client, topic: str, partition: int, error: int
) -> None:
    """A topic without configuration, with one, and what is not there."""
    client.broker.topics.create("set", 1, b"log.segment.bytes=4096")
    (answer,) = client.send(Reload(3, topic, partition))
    assert isinstance(answer, ReloadAnswer)
    assert answer.error == error


def test_status_counts_topics_and_partitions(client: Client) -> None:
    """Of a broker without a cluster."""
    client.broker.topics.create("u", 3)
    (answer,) = client.send(Status(3))
    assert isinstance(answer, StatusAnswer)
    assert (answer.topics, answer.partitions, answer.version) == (2, 5, 400)


def test_owner_must_store_what_is_to_be_stored(client: Client) -> None:
    """A publish or a creation is no matter of `answer`."""
    with pytest.raises(TypeError):
        client.session.answer(Create(1, "x", 1), 0.0)


def test_silent_connection_ends() -> None:
    """One that never sent a byte, and one whose frame does not go on; else silence is no fault."""
    broker = Broker(MemoryTopics())
    session = broker.connect()
    assert session.next_deadline() == TANK_SILENT_SECONDS
    session.deadline_passed(TANK_SILENT_SECONDS)
    assert session.close_reason
    session = ServerSession(broker.topics, broker.waiters, 0.0)
    session.receive_data(b"\x0a", 1.0)
    assert session.next_deadline() == 1.0 + FRAME_SECONDS
    session.deadline_passed(FRAME_SECONDS)
    assert not session.close_reason
    session.receive_data(b"\x04\0\0\0\1\0\0\0", 2.0)
    assert session.next_deadline() is None
    session.receive_data(b"\x0a", 3.0)
    session.deadline_passed(3.0 + FRAME_SECONDS)
    assert session.close_reason


def test_requests_before_a_malformed_one_are_still_given_out() -> None:
    """The connection ends after them."""
    session = ServerSession(MemoryTopics(), WaitIndex(), 0.0)
    good = encode_request(Status(1))
    assert session.receive_data(good + b"\x20\0\0\0\0" + good, 0.0) == [Status(1)]
    assert "0x20" in session.close_reason
    session = ServerSession(MemoryTopics(), WaitIndex(), 0.0, frame_limit_bytes=10)
    assert session.receive_data(good + b"\x01\x0b\0\0\0", 0.0) == [Status(1)]
    assert "TANK_FRAME_BYTES" in session.close_reason


def test_what_is_kept_of_frames_under_way_is_told() -> None:
    """Bytes that have come; of a large frame what it is received into, whole from its header on;
    nothing of those that are complete."""
    session = ServerSession(MemoryTopics(), WaitIndex(), 0.0)
    session.receive_data(encode_request(Status(1)) + b"\x01\xff\0\0\0" + bytes(7), 0.0)
    assert session.kept_bytes == 12
    session.receive_data(bytes(3), 0.0)
    assert session.kept_bytes == 15
    session = ServerSession(MemoryTopics(), WaitIndex(), 0.0)
    frame = b"\x0a" + (300_000).to_bytes(4, "little") + bytes(300_000)
    for part in (frame[:5], frame[5:100]):
        room = session.room()
        room[: len(part)] = part
        session.received(len(part), 1.0)
    assert 300_005 <= session.kept_bytes <= 600_000
    rest = frame[100:]
    room = session.room()
    room[: len(rest)] = rest
    session.received(len(rest), 2.0)
    assert session.close_reason.startswith("malformed")
    assert session.kept_bytes == 0
