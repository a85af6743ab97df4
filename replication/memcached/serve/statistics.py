"""What STAT tells: counts of what a listener answered, and groups of them by name. No I/O.

=========  =========================================================================================
group      what
=========  =========================================================================================
(none)     the general ones of memcached that mean something here, and ours: bucket, space_id,
           signature (position of the log), tap_streams
settings   how it is set
items      the items of the bucket, as those of slab 1
slabs      counts of slab 1, which is everything
reset      nothing; counts begin anew, but of the connections that are there
detail     on, off, dump: nothing, keys are not counted by their prefixes
vbucket    vb_N: active, replica, pending or dead
tap        ep_tap_count, and of each stream, those whose consumer is away too, eq_tapq:NAME:type,
           connected, registered (ours), ack_log_size (packets that are not acknowledged),
           rec_fetched (packets sent)
conns      of each connection of the listener, by its number: addr, listen_addr, state
           (conn_parse_cmd: who asks; else conn_read) and secs_since_last_cmd
=========  =========================================================================================

Any other group: 01. Requests are counted when they are answered. Names and what they count:
memcached 1.6.18, observed; vbucket and tap: ep-engine 1.8.1. Not as there: a counter that INCREMENT
makes is a hit and not in total_items; cas_hits, cas_misses and cas_badval count SET alone.
"""

from __future__ import annotations

import os
import resource
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucket.store import Bucket, ViewItems
from logweir.replication.link import UNIX_PEER, Link
from logweir.replication.memcached.wire import kernel
from logweir.replication.memcached.wire.codec import SERVER_VERSION, Opcode, Status
from logweir.replication.service.shared import Options
from logweir.store.log import Log

Stats = list[tuple[bytes, bytes]]
"""Names and texts."""

_GETS: Final = (*(Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ, Opcode.GETM, Opcode.GETR),)
_SETS: Final = (Opcode.SET, Opcode.SETQ, Opcode.SETM)
_STORES: Final = (
    *_SETS,
    *(Opcode.ADD, Opcode.ADDQ, Opcode.REPLACE, Opcode.REPLACEQ),
    *(Opcode.APPEND, Opcode.APPENDQ, Opcode.PREPEND, Opcode.PREPENDQ),
)
_DELETES: Final = (Opcode.DELETE, Opcode.DELETEQ)
_INCREMENTS: Final = (Opcode.INCREMENT, Opcode.INCREMENTQ, Opcode.INCREMENTM)
_DECREMENTS: Final = (Opcode.DECREMENT, Opcode.DECREMENTQ, Opcode.DECREMENTM)
_TOUCHES: Final = (
    *(Opcode.TOUCH, Opcode.GAT, Opcode.GATQ, Opcode.GATK, Opcode.GATKQ, Opcode.GATM),
)
_OF_SLABS: Final = frozenset(
    (
        *(b"get_hits", b"cmd_set", b"delete_hits", b"incr_hits", b"decr_hits"),
        *(b"cas_hits", b"cas_badval", b"touch_hits"),
    )
)


class Statistics:
    """The counts of one listener. `options`: of the server."""

    def __init__(self, log: Log, options: Options) -> None:
        self._log = log
        self._options = options
        self._clock = options.clock
        self._started_at = self._clock()
        self.links: dict[Link, int] = {}
        self._numbers_given = 0
        self._connections_made = 0
        self._logins = 0
        self._failed_logins = 0
        self.counts = _nothing()
        """See `kernel.tally`."""

    def opened(self, link: Link) -> None:
        """A client has come."""
        self._connections_made += 1
        self._numbers_given += 1
        self.links[link] = self._numbers_given

    def closed(self, link: Link) -> None:
        """A client has gone."""
        self.links.pop(link, None)

    def login(self, *, failed: bool) -> None:
        """Somebody said who it is."""
        self._logins += 1
        self._failed_logins += failed

    def tally_answers(self, answers: bytes) -> None:
        """These are some of the answers to requests that are not answered yet."""
        kernel.tally(answers, 0, len(answers), self.counts)

    def tally(self, data: bytes, stop: int, answers: bytes) -> None:
        """The requests in `data` up to `stop` got these answers."""
        kernel.tally(data, 0, stop, self.counts)
        kernel.tally(answers, 0, len(answers), self.counts)

    def tell(
        self, group: bytes, bucket: Bucket, streams: Sequence[Mapping[str, Any]], link: Link
    ) -> Stats | None:
        """The statistics of that group; None: there is no such group. `bucket`, `link`: of the
        client; `streams`: out of it, as `TapService.status` has them."""
        match group:
            case b"":
                return [
                    *self._of_bucket(bucket, sum(bool(one["peer"]) for one in streams)),
                    *self._general(),
                ]
            case b"settings":
                return _settings(self._options.connections)
            case b"slabs":
                told = [(name, text) for name, text in self._general() if name in _OF_SLABS]
                return [*((b"1:" + name, text) for name, text in told), (b"active_slabs", b"1")]
            case b"reset":
                self.counts = _nothing()
                self._connections_made = self._logins = self._failed_logins = 0
                return []
            case b"items":
                number = b"%d" % self._log.count(bucket.space_id)
                return [(b"items:1:number", number), (b"items:1:evicted", b"0")]
            case b"vbucket":
                return self._of_vbuckets(bucket)
            case b"tap":
                return _of_streams(streams)
            case b"conns":
                return self._of_connections(link)
            case b"detail on" | b"detail off" | b"detail dump":
                return []
        return None

    def _of_bucket(self, bucket: Bucket, streams: int) -> Stats:
        log, now = self._log, self._clock()
        return [
            (b"version", SERVER_VERSION),
            (b"bucket", bucket.name.encode()),
            *_numbers(
                pid=os.getpid(),
                uptime=int(now - self._started_at),
                time=int(now),
                pointer_size=64,
                space_id=bucket.space_id,
                signature=log.applied.signature,
                tap_streams=streams,
                curr_items=log.count(bucket.space_id),
            ),
        ]

    def _of_vbuckets(self, bucket: Bucket) -> Stats:
        with self._log.read_view() as view:
            states = ViewItems(bucket, view).states()
        return [
            (b"vb_%d" % vbucket, state.name.lower().encode())
            for vbucket, state in sorted(states.items())
        ]

    def _general(self) -> Stats:
        """What was counted, under memcached's names."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        gets, hits = self._asked(_GETS), self._told(_GETS, Status.SUCCESS)
        touches, touched = self._asked(_TOUCHES), self._told(_TOUCHES, Status.SUCCESS)
        missed = self._told(_SETS, Status.NOT_FOUND)
        changed = self._told(_SETS, Status.EXISTS)
        with_cas = sum(self._of(opcode, kernel.TALLY_CAS) for opcode in _SETS)
        return [
            (b"rusage_user", b"%.6f" % used.ru_utime),
            (b"rusage_system", b"%.6f" % used.ru_stime),
            *_numbers(
                max_connections=self._options.connections,
                curr_connections=len(self.links),
                total_connections=self._connections_made,
                cmd_get=gets,
                cmd_set=self._asked(_STORES),
                cmd_flush=self._asked((Opcode.FLUSH, Opcode.FLUSHQ)),
                cmd_touch=touches,
                get_hits=hits,
                get_misses=gets - hits,
                delete_misses=self._told(_DELETES, Status.NOT_FOUND),
                delete_hits=self._done(_DELETES),
                incr_misses=self._told(_INCREMENTS, Status.NOT_FOUND),
                incr_hits=self._done(_INCREMENTS),
                decr_misses=self._told(_DECREMENTS, Status.NOT_FOUND),
                decr_hits=self._done(_DECREMENTS),
                cas_misses=missed,
                cas_hits=max(with_cas - missed - changed, 0),
                cas_badval=changed,
                touch_hits=touched,
                touch_misses=touches - touched,
                store_too_large=self._told(_STORES, Status.TOO_BIG),
                auth_cmds=self._logins,
                auth_errors=self._failed_logins,
                limit_maxbytes=0,
                accepting_conns=1,
                threads=1,
                total_items=self._done(_STORES),
                evictions=0,
            ),
        ]

    def _of_connections(self, asking: Link) -> Stats:
        found: Stats = []
        for link, number in tuple(self.links.items()):
            ours = _address(link.reached_at)
            told = {
                "addr": ours if link.peer.startswith(UNIX_PEER) else _address(link.peer),
                "listen_addr": ours,
                "state": "conn_parse_cmd" if link is asking else "conn_read",
                "secs_since_last_cmd": str(int(link.time() - link.last_received)),
            }
            found += [(f"{number}:{name}".encode(), text.encode()) for name, text in told.items()]
        return found

    def _of(self, opcode: Opcode, column: int) -> int:
        return self.counts[opcode * kernel.TALLY_WIDTH + column]

    def _asked(self, opcodes: Sequence[Opcode]) -> int:
        return sum(self._of(opcode, kernel.TALLY_REQUESTS) for opcode in opcodes)

    def _told(self, opcodes: Sequence[Opcode], status: Status) -> int:
        """Answers with that status, one of the first six."""
        return sum(self._of(opcode, kernel.TALLY_ANSWERS + status) for opcode in opcodes)

    def _done(self, opcodes: Sequence[Opcode]) -> int:
        """Requests that were not answered with a failure."""
        failures = range(kernel.TALLY_ANSWERS + 1, kernel.TALLY_WIDTH)
        failed = sum(self._of(opcode, column) for opcode in opcodes for column in failures)
        return self._asked(opcodes) - failed


def _address(text: str) -> str:
    """As memcached writes it."""
    is_file = text.startswith(UNIX_PEER)
    return f"unix:{text.removeprefix(UNIX_PEER)}" if is_file else f"tcp:{text}"


def _numbers(**counts: int) -> Stats:
    return [(name.encode(), b"%d" % count) for name, count in counts.items()]


def _nothing() -> array[int]:
    return array("Q", bytes(8 * 256 * kernel.TALLY_WIDTH))


def _settings(connections: int) -> Stats:
    words = {
        "evictions": "off",
        "cas_enabled": "yes",
        "flush_enabled": "yes",
        "binding_protocol": "auto-negotiate",
        "auth_enabled_sasl": "yes",
    }
    numbers = _numbers(
        maxbytes=0, maxconns=connections, verbosity=0, num_threads=1, item_size_max=TAP_VALUE_BYTES
    )
    return numbers + [(name.encode(), text.encode()) for name, text in words.items()]


def _of_streams(streams: Sequence[Mapping[str, Any]]) -> Stats:
    found = [(b"ep_tap_count", b"%d" % len(streams))]
    for stream in streams:
        head = b"eq_tapq:%s:" % stream["name"].encode()
        found += [
            (head + b"type", b"producer"),
            (head + b"connected", b"true" if stream["peer"] else b"false"),
            (head + b"registered", b"true" if stream["registered"] else b"false"),
            (head + b"ack_log_size", b"%d" % stream["unacknowledged"]),
            (head + b"rec_fetched", b"%d" % stream["sent_packets"]),
        ]
    return found
