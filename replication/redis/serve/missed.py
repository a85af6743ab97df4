"""Messages for subscribers with a name that are away for a while.

docs/synapse.md ("Subscribers with a name") says what they are sent. A *place* on a channel is the
last message that somebody was sent; it is kept as long as its messages could be there. Only on
channels on which somebody has a place anything is kept.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from logweir.limits import REDIS_SUBSCRIBER_BYTES

MISSED_SECONDS: Final = 60.0
"""How long something is kept, unless the listener's address says."""

MISSED_BYTES: Final = REDIS_SUBSCRIBER_BYTES // 2
"""Messages that one listener keeps: half of what may wait for one that comes back."""

_AWAY: Final = 10_000
"""Places of who is away; with more the first is forgotten."""

Who = tuple[str, bytes]
"""A user, and the name of a connection."""

_MESSAGE_BYTES: Final = 128  # what one costs beside its bytes, about


@dataclass(slots=True)
class _Place:
    """`present`: connections; `number`: the last message that was sent, while there are none."""

    present: int = 1
    number: int = 0


@dataclass(slots=True)
class _Channel:
    """`number`: of the newest message; `messages`: the last of them, up to that one, by number."""

    number: int = 0
    messages: dict[int, bytes] = field(default_factory=dict)
    places: dict[Who, _Place] = field(default_factory=dict)


class Missed:
    """Of one listener. `seconds`: how long something is kept; `lost`: called with a name, a channel
    and how many messages of it somebody has missed for good. Times are seconds of one clock."""

    def __init__(
        self,
        seconds: float,
        lost: Callable[[Who, bytes, int], None],
        *,
        limit_bytes: int = MISSED_BYTES,
        limit_away: int = _AWAY,
    ) -> None:
        self.size_bytes = 0
        self._seconds = seconds
        self._lost = lost
        self._limit_bytes = limit_bytes
        self._limit_away = limit_away
        self._channels: dict[bytes, _Channel] = {}
        self._order: deque[tuple[_Channel, float]] = deque()  # of each message, oldest first
        self._away: OrderedDict[tuple[bytes, Who], float] = OrderedDict()

    def publish(self, channel: bytes, message: bytes, now: float) -> int:
        """A message comes. Returns its number on the channel, 0: nobody has a place there."""
        self._trim(now)
        found = self._channels.get(channel)
        if found is None:
            return 0
        found.number += 1
        found.messages[found.number] = message
        self._order.append((found, now))
        self.size_bytes += len(message) + _MESSAGE_BYTES
        self._trim(now)
        return found.number

    def join(self, channel: bytes, who: Who, now: float) -> int:
        """Somebody subscribes. Returns the number of the last message that it has: `after` is asked
        for the next ones."""
        self._trim(now)
        found = self._channels.setdefault(channel, _Channel())
        place = found.places.get(who)
        if place is None:
            found.places[who] = _Place()
            return found.number
        place.present += 1
        if place.present > 1:
            return found.number
        del self._away[channel, who]
        return place.number

    def after(self, channel: bytes, who: Who, number: int) -> tuple[int, bytes] | None:
        """The first message behind `number` that is kept, and its own number; None: there is none.
        Those between are lost."""
        found = self._channels[channel]
        gone = found.number - len(found.messages)
        if gone > number:
            self._lost(who, channel, gone - number)
            number = gone
        return (number + 1, found.messages[number + 1]) if number < found.number else None

    def leave(self, channel: bytes, who: Who, now: float, number: int | None = None) -> None:
        """A connection is gone, which was sent all up to `number`; None: up to the newest."""
        found = self._channels[channel]
        place = found.places[who]
        place.present -= 1
        if not place.present:
            place.number = found.number if number is None else number
            self._away[channel, who] = now + self._seconds
            self._trim(now)

    def forget(self, channel: bytes, who: Who) -> None:
        """A connection wants no more of the channel."""
        place = self._channels[channel].places[who]
        place.present -= 1
        if not place.present:
            self._remove(channel, who)

    def _remove(self, channel: bytes, who: Who) -> None:
        found = self._channels[channel]
        del found.places[who]
        if not found.places:
            del self._channels[channel]

    def _trim(self, now: float) -> None:
        """Let go of what is too old or too much."""
        order, away = self._order, self._away
        while order and (order[0][1] + self._seconds <= now or self.size_bytes > self._limit_bytes):
            found = order.popleft()[0]
            oldest = found.messages.pop(found.number - len(found.messages) + 1)
            self.size_bytes -= len(oldest) + _MESSAGE_BYTES
        while away:
            (channel, who), until = next(iter(away.items()))
            if until > now and len(away) <= self._limit_away:
                break
            del away[channel, who]
            found = self._channels[channel]
            if missed := found.number - found.places[who].number:
                self._lost(who, channel, missed)
            self._remove(channel, who)
