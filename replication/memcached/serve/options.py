"""What stands in the address of a TAP listener.

=======  ======================  ===================================================================
option   values                  means
=======  ======================  ===================================================================
form     `1.x` (if not given),   how stream packets look: as those of Membase and Couchbase 1.6 to
         `2.x`                   1.8, or with private bytes, as those of 2.0 to 4.x
value    `json` (if not given),  how tuples are given if another space than a bucket is streamed
         `msgpack`, `envelope`
sweep    seconds, 60 if not      longest pause between walks that remove what has expired; 0: only
         given                   what somebody asks for is removed
idle     seconds, 0 if not       a client that asks for nothing for so long is disconnected, but for
         given                   consumers of streams; 0: never
noop     seconds, 20 if not      an idle stream sends a sign of life so often
         given
sasl     `required`              nothing is done for a client that has not logged in, whatever guest
                                 may do; if not given, that holds if guest may do nothing
=======  ======================  ===================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from logweir.limits import TAP_NOOP_SECONDS, TAP_SWEEP_SECONDS
from logweir.replication.memcached.push.stream import StreamOptions
from logweir.replication.outgoing.spacefeed import ENCODINGS
from logweir.replication.urls import Url, option_choice, option_seconds

_FORMS: Final = ("1.x", "2.x")
_SASL: Final = ("", "required")


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The options of one listener; see the module's text."""

    stream: StreamOptions
    encoding: str
    sweep_seconds: float
    idle_seconds: float
    must_login: bool


def read_listen_options(url: Url) -> ListenOptions:
    """The options of a listener's address. Raises `ConfigError`."""
    return ListenOptions(
        StreamOptions(
            noop_seconds=option_seconds(url, "noop", TAP_NOOP_SECONDS),
            with_private=option_choice(url, "form", _FORMS) == "2.x",
        ),
        option_choice(url, "value", ENCODINGS),
        option_seconds(url, "sweep", TAP_SWEEP_SECONDS, may_be_zero=True),
        option_seconds(url, "idle", 0.0, may_be_zero=True),
        option_choice(url, "sasl", _SASL) == "required",
    )
