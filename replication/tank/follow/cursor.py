"""The place of a reader in one partition, and how an answer moves it. No I/O, no clock.

Quirks of real brokers that are met here:

* A bundle holds lower numbers than asked for: they are dropped.
* The last bundle of a chunk may be cut (brokers before Tank 2): it is read with the next answer; if
  not even one bundle is whole, more is asked for.
* A bundle may be stored that no client can read. It is passed on with the numbers that it takes. If
  these are not certain the rest of the chunk is fetched anew, so that the broker says them; if it
  gives the same bundle again, the numbers it may take are passed one by one.
* A high water mark may be lower than the last message (after sparse bundles): nothing is dropped
  for it, and no place comes from it while data does.
* Bundles may overlap, where somebody gave them numbers that were taken: of the later one only what
  is above the earlier one is read. A broker that answers with what is before the number wanted says
  nothing of what is after it.
* A broker that lost the numbers of a bundle that jumped ahead answers the same lower numbers again
  and again while its high water mark is at or above the number asked: those numbers do not exist
  there any more. They are told as a gap, and reading goes on after the mark.

Source: Tank 4.0 and its clients, observed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logweir.errors import DecodeError
from logweir.limits import TANK_FETCH_BYTES
from logweir.replication.tank.wire.messages import FetchedPart, FetchPart, FetchStatus
from logweir.replication.topic.bundle import Message, decode_bundle, numbers_of, split_chunk


@dataclass(frozen=True, slots=True)
class ReceivedBundle:
    """One whole bundle with its numbers."""

    first: int
    last: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """What one answer, `part`, brought for one partition.

    `bundles`: those with a number at or above the one wanted; `messages`: only those; `gap`: first
    and last of the numbers that the broker says it has and does not give.
    """

    part: FetchedPart
    wanted: int
    bundles: Sequence[ReceivedBundle] = ()
    gap: tuple[int, int] | None = None

    def messages_of(self, bundle: ReceivedBundle) -> list[Message]:
        """Its messages at or above the number that was wanted. Raises `DecodeError`,
        `LimitExceeded`."""
        messages = decode_bundle(bundle.data, bundle.first)
        return [message for message in messages if message.number >= self.wanted]


class Cursor:
    """A place in one partition. `wanted`: the next number; `size_bytes`: fetch size."""

    def __init__(self, topic: str, partition: int, wanted: int, size_bytes: int) -> None:
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self._size_bytes = size_bytes
        self._asked_bytes = size_bytes

    def request(self) -> FetchPart:
        """What to ask for next."""
        return FetchPart(self.topic, self.partition, self.wanted, self._asked_bytes)

    def bundle(self, part: FetchedPart) -> list[Message]:
        """The messages of the first bundle of an answer, none if it has no data."""
        for found in _bundles(part, 0)[0][:1]:
            return decode_bundle(found.data, found.first)
        return []

    def take(self, part: FetchedPart) -> Reading:
        """Move after what an answer brought. Raises `DecodeError` for a chunk that is none."""
        assert part.status is not None
        wanted = self.wanted
        if part.status not in (FetchStatus.FINE, FetchStatus.SPARSE):
            return Reading(part, wanted)
        found, left, is_certain = _bundles(part, wanted)
        news = [bundle for bundle in found if bundle.last >= wanted]
        gap = None
        if news:
            self.wanted = news[-1].last + 1
            self._asked_bytes = self._size_bytes
        elif left or (part.chunk and not found):
            if self._asked_bytes >= TANK_FETCH_BYTES:
                raise DecodeError(
                    f"{part.topic}/{self.partition}: not one whole bundle in {left} bytes"
                )
            self._asked_bytes = min(TANK_FETCH_BYTES, max(4096, 2 * self._asked_bytes))
        elif found and part.high_water_mark >= wanted:
            gap = (wanted, part.high_water_mark if is_certain else wanted)
            self.wanted = gap[1] + 1
        return Reading(part, wanted, news, gap)


def _bundles(part: FetchedPart, wanted: int) -> tuple[list[ReceivedBundle], int, bool]:
    """The bundles of a chunk, how many bytes of a cut one follow them, and whether the numbers of
    the last one are certain. It ends before numbers that go back, once there is one wanted."""
    datas, end = split_chunk(part.chunk)
    out: list[ReceivedBundle] = []
    base = part.base
    is_certain = True
    for data in datas:
        first, last, is_certain = numbers_of(data, base)
        if last < first:
            continue  # it takes no number
        if first < base and out and out[-1].last >= wanted:
            break  # what comes after it is fetched anew
        out.append(ReceivedBundle(first, last, data))
        if not is_certain:
            break
        base = last + 1
    return out, len(part.chunk) - end, is_certain
