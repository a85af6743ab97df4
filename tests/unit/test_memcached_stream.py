"""The producer of a stream: flags, windows, acknowledgements, refusals, keepalive."""

from __future__ import annotations

from typing import Any

import pytest
from support.tapmodel import packets

from logweir.replication.memcached.push.stream import Producer, StreamOptions
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status
from logweir.replication.memcached.wire.messages import (
    Connect,
    Opaque,
    Option,
    TapMessage,
    decode_tap,
)
from logweir.replication.session import Outbox

ACK = Option.SUPPORT_ACK


class Stream:
    """A producer with its consumer's eyes."""

    def __init__(self, options: Option = ACK, settings: Any = None, **start: Any) -> None:
        self.out = Outbox()
        self.producer: Producer[int] = Producer(
            Connect(b"n", options, vbuckets=(1,)),
            self.out,
            0.0,
            options=settings or StreamOptions(),
            **start,
        )

    def sent(self) -> list[TapMessage]:
        """What came since the last look, NOOP left out."""
        found = packets(self.out.take())
        return [decode_tap(packet) for packet in found if packet.opcode != Opcode.NOOP]

    def put(self, *keys: str, now: float = 0.0) -> None:
        """Mutations, each with its number as position."""
        for key in keys:
            self.producer.put(TapMessage(Opcode.TAP_MUTATION, key.encode(), b"v"), now, int(key))

    def answer(self, opaque: int, status: int = 0, now: float = 0.0) -> None:
        """An acknowledgement."""
        packet = Packet(Opcode.TAP_MUTATION, vbucket=status, opaque=opaque, is_response=True)
        self.producer.take_answer(packet, now)


def test_the_last_packet_before_a_pause_wants_an_answer() -> None:
    """And each thousandth, and no other data packet."""
    stream = Stream(settings=StreamOptions(ack_interval_packets=3))
    stream.put("1", "2", "3", "4")
    assert [message.wants_ack for message in stream.sent()] == [False, False, True]
    stream.producer.ask(0.0)
    assert [(m.key, m.wants_ack) for m in stream.sent()] == [(b"4", True)]


def test_without_acknowledgements_no_packet_wants_one() -> None:
    """And everything counts as soon as it is sent."""
    stream = Stream(Option(0))
    stream.producer.begin(0.0)
    stream.put("1", "2")
    stream.producer.ask(0.0)
    assert [message.wants_ack for message in stream.sent()] == [False, False]
    assert stream.producer.acknowledged == 2
    assert stream.producer.has_room


def test_a_control_packet_is_a_gate() -> None:
    """Nothing more until it is acknowledged."""
    stream = Stream(ACK | Option.CHECKPOINT)
    stream.producer.begin(0.0)
    first, second = stream.sent()
    assert [first.number, second.number] == [Opaque.ENABLE_AUTO_NACK, Opaque.ENABLE_CHECKPOINT_SYNC]
    assert not stream.producer.has_room
    stream.answer(first.opaque)
    assert not stream.producer.has_room
    stream.answer(second.opaque)
    assert stream.producer.has_room


def test_an_acknowledgement_covers_everything_before_it() -> None:
    """The position is that of the last change covered."""
    stream = Stream()
    stream.put("1", "2", "3")
    stream.producer.ask(0.0)
    opaques = [message.opaque for message in stream.sent()]
    stream.answer(opaques[1])
    assert stream.producer.acknowledged == 2
    assert stream.producer.unacknowledged == 1
    stream.answer(opaques[0])
    assert stream.producer.acknowledged == 2
    assert stream.producer.unknown_acks == 1


@pytest.mark.parametrize("opaque", [0, 5, 99, 2**32 - 1])
def test_acknowledgements_of_nothing_are_counted(opaque: int) -> None:
    """A storm of them changes nothing."""
    stream = Stream()
    stream.put("1")
    stream.producer.ask(0.0)
    for _ in range(1000):
        stream.answer(opaque)
    assert stream.producer.unknown_acks == 1000
    assert stream.producer.acknowledged is None
    assert stream.producer.close_reason == ""


@pytest.mark.parametrize("packets_", [True, False])
def test_the_window_is_bounded_in_packets_and_bytes(packets_: bool) -> None:
    """A full one has no room until there is an acknowledgement."""
    settings = StreamOptions(window_packets=2) if packets_ else StreamOptions(window_bytes=84)
    stream = Stream(settings=settings)
    stream.put("1", "2")
    assert stream.producer.has_room
    stream.producer.ask(0.0)
    assert not stream.producer.has_room
    stream.answer(stream.sent()[-1].opaque)
    assert stream.producer.has_room
    assert stream.producer.unacknowledged_bytes == 0


@pytest.mark.parametrize("status", [Status.BUSY, Status.TEMPORARY_FAILURE])
def test_a_busy_consumer_gets_the_packet_again_later(status: Status) -> None:
    """Those before it count; it and those behind it are held, and come again under new opaques."""
    stream = Stream()
    stream.put("1", "2", "3")
    stream.producer.ask(0.0)
    opaques = [message.opaque for message in stream.sent()]
    size_bytes = stream.producer.unacknowledged_bytes // 3
    stream.answer(opaques[1], status, now=10.0)
    assert stream.producer.acknowledged == 1
    assert stream.producer.unacknowledged_bytes == 2 * size_bytes > 0
    assert not stream.producer.has_room
    assert stream.producer.next_deadline() == 15.0
    stream.producer.deadline_passed(14.0)
    assert stream.sent() == []
    stream.producer.deadline_passed(15.0)
    again = stream.sent()
    assert [message.key for message in again] == [b"2", b"3"]
    assert [message.opaque for message in again] == [opaques[2] + 1, opaques[2] + 2]
    assert again[-1].wants_ack
    assert stream.producer.unacknowledged_bytes == 2 * size_bytes
    stream.answer(again[-1].opaque)
    assert stream.producer.acknowledged == 3
    assert stream.producer.unacknowledged_bytes == 0


def test_a_consumer_that_stops_acknowledging_is_given_up() -> None:
    """After the grace period, and not before; an acknowledgement begins it anew."""
    stream = Stream(settings=StreamOptions(window_packets=1, noop_seconds=1e9))
    stream.put("1")
    stream.producer.ask(0.0)
    stream.producer.deadline_passed(299.0)
    assert stream.producer.close_reason == ""
    stream.producer.deadline_passed(300.0)
    assert "acknowledged nothing" in stream.producer.close_reason


def test_an_idle_stream_shows_that_it_lives() -> None:
    """NOOP after each pause, without extras."""
    stream = Stream(Option(0), StreamOptions(noop_seconds=5))
    assert stream.producer.next_deadline() == 5.0
    stream.producer.deadline_passed(4.0)
    assert stream.out.take() == b""
    stream.producer.deadline_passed(5.0)
    (noop,) = packets(stream.out.take())
    assert (noop.opcode, noop.extras, noop.opaque) == (Opcode.NOOP, b"", 0)
    assert stream.producer.next_deadline() == 10.0
    stream.producer.take_answer(Packet(Opcode.NOOP, is_response=True), 6.0)
    assert stream.producer.unknown_acks == 0


def test_opaques_wrap_without_zero() -> None:
    """And acknowledgements across the wrap are understood."""
    stream = Stream(opaque=2**32 - 3)
    stream.put("1", "2", "3", "4")
    stream.producer.ask(0.0)
    opaques = [message.opaque for message in stream.sent()]
    assert opaques == [2**32 - 2, 2**32 - 1, 1, 2]
    stream.answer(1)
    assert stream.producer.acknowledged == 3


def test_the_end_comes_after_the_last_acknowledgement() -> None:
    """CLOSE_TAP_STREAM first; without acknowledgements it ends at once."""
    stream = Stream()
    stream.put("1")
    stream.producer.end(0.0)
    last = stream.sent()
    assert [message.number for message in last] == [None, Opaque.CLOSE_TAP_STREAM]
    assert stream.producer.close_reason == ""
    stream.answer(last[0].opaque)
    assert stream.producer.close_reason == "the stream has ended"
    quick = Stream(Option(0))
    quick.producer.end(0.0)
    assert quick.producer.close_reason


def test_keys_only_leaves_values_out() -> None:
    """With the flag that says so; deletions are as ever."""
    stream = Stream(Option.REQUEST_KEYS_ONLY)
    stream.put("1")
    stream.producer.put(TapMessage(Opcode.TAP_DELETE, b"2"), 0.0)
    mutation, deletion = stream.sent()
    assert (mutation.value, mutation.has_value) == (b"", False)
    assert deletion.has_value


def test_item_flags_are_right_only_for_those_who_ask() -> None:
    """Reversed on the wire without option 100, which old consumers undo."""
    for option, flag in ((Option(0), 0), (Option.FIX_FLAG_BYTEORDER, 4)):
        stream = Stream(option)
        stream.producer.put(TapMessage(Opcode.TAP_MUTATION, b"k", item_flags=1), 0.0)
        (packet,) = packets(stream.out.take())
        assert packet.extras[3] & 4 == flag
        assert packet.extras[8:12] == (b"\0\0\0\1" if flag else b"\1\0\0\0")
        assert decode_tap(packet).item_flags == 1


def test_private_bytes_are_sent_only_in_the_form_that_has_them() -> None:
    """1.x by default, 2.x by setting."""
    for with_private in (False, True):
        stream = Stream(Option(0), StreamOptions(with_private=with_private))
        message = TapMessage(Opcode.TAP_MUTATION, b"k", private=b"123456789")
        stream.producer.put(message, 0.0)
        stream.producer.checkpoint(Opcode.TAP_CHECKPOINT_START, 0, 5, 0.0)
        mutation, start = stream.sent()
        assert mutation.private == (b"123456789" if with_private else b"")
        assert (len(start.private), start.number) == (8 if with_private else 0, 5)


def test_a_backfill_is_framed_for_each_vbucket() -> None:
    """With TAKEOVER and a list the consumer is told to make them pending first."""
    stream = Stream(Option.TAKEOVER_VBUCKETS | Option.LIST_VBUCKETS)
    stream.producer.open_backfill((1,), 0.0)
    stream.producer.close_backfill((1,), 0.0, 7)
    found = [(message.opcode, message.vbucket, message.number) for message in stream.sent()]
    assert found == [
        (Opcode.TAP_VBUCKET_SET, 1, 3),
        (Opcode.TAP_OPAQUE, 1, Opaque.INITIAL_VBUCKET_STREAM),
        (Opcode.TAP_OPAQUE, 1, Opaque.CLOSE_BACKFILL),
    ]
    assert stream.producer.acknowledged == 7
