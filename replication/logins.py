"""Failed logins of one server, of all protocols: counted, told sparingly, and slowed by address.

After `LOGIN_FREE` failures from an address, each further one doubles how long its connections are
not heard, the new ones as well as the one that failed, up to `LOGIN_DELAY_MAX_SECONDS`; one failure
is forgotten each `LOGIN_FORGET_SECONDS`. Above `LOGIN_WAITING` connections from one address that
wait for that, and after `LOGIN_TRIES` failures on one connection, connections are closed. Of IPv6
addresses the first 64 bits count. The table has at most `LOGIN_ADDRESSES` addresses; the one that
failed longest ago makes way. All these are in `logweir.limits`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

from logweir.limits import (
    LOGIN_ADDRESSES,
    LOGIN_DELAY_MAX_SECONDS,
    LOGIN_DELAY_SECONDS,
    LOGIN_FORGET_SECONDS,
    LOGIN_FREE,
    LOGIN_TRIES,
    LOGIN_WAITING,
)
from logweir.replication.link import Link
from logweir.replication.logs import SparingLog, get_logger

if TYPE_CHECKING:
    from logweir.replication.metrics import Metrics


@dataclass(slots=True)
class _Known:
    """What is known of an address. `failures`: as of `at`; `waiting`: connections that wait."""

    failures: float = 0.0
    at: float = 0.0
    waiting: int = 0


class Logins:
    """See the module's text. `clock`: seconds."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.failed_in_all = 0
        self._metrics = metrics
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._sparing = SparingLog(get_logger("logweir.replication"))

    def delay_seconds(self, address: str) -> float:
        """How long connections from an address are not heard, now."""
        known = self._known.get(_place(address))
        return 0.0 if known is None else _delay(self._left(known))

    @property
    def slowed(self) -> int:
        """Addresses whose connections are slowed, now."""
        return sum(_delay(self._left(known)) > 0.0 for known in tuple(self._known.values()))

    def failed(self, link: Link, user: str) -> bool:
        """A login on that connection failed. Returns whether it is to be closed."""
        self.failed_in_all += 1
        self._metrics.login_failed(link.scheme)
        self._sparing.warning("login.failed", scheme=link.scheme, peer=link.peer, user=user)
        link.failed_logins += 1
        place = _place(link.address)
        known = self._known.pop(place, None) or _Known()
        self._known[place] = known
        known.failures, known.at = self._left(known) + 1.0, self._clock()
        while len(self._known) > LOGIN_ADDRESSES:
            self._known.popitem(last=False)
        return link.failed_logins >= LOGIN_TRIES or not self.slow(link)

    def slow(self, link: Link) -> bool:
        """Do not hear a connection for as long as its address has deserved. Returns False if too
        many of that address wait already."""
        known = self._known.get(_place(link.address))
        seconds = 0.0 if known is None else _delay(self._left(known))
        if known is None or not seconds:
            return True
        if known.waiting >= LOGIN_WAITING:
            return False
        if link.deafen(seconds, lambda: _heard(known)):
            known.waiting += 1
        return True

    def _left(self, known: _Known) -> float:
        return max(known.failures - (self._clock() - known.at) / LOGIN_FORGET_SECONDS, 0.0)


def _heard(known: _Known) -> None:
    known.waiting -= 1


def _delay(failures: float) -> float:
    over = failures - LOGIN_FREE
    if over <= 0.0:
        return 0.0
    return float(min(LOGIN_DELAY_SECONDS * 2.0 ** min(over - 1.0, 32.0), LOGIN_DELAY_MAX_SECONDS))


def _place(address: str) -> str:
    """An IPv4 address, or the network of 64 bits that an IPv6 address is in."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or f"{int(found) >> 64:x}::/64")
    return str(found)
