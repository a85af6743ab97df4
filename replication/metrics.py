"""What a server counts, in the form that Prometheus reads.

Names are `logweir_<area>_<what>_<unit>[_total]`; durations are histograms that double from 1 ms.
One `Metrics` per server; its registry is its own, so that several servers can live in one process.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from logweir.errors import ConfigError
from logweir.replication.portkernel import Counted
from logweir.wal.writer import VERSION

try:
    from prometheus_client import (
        CollectorRegistry,
        Counter,
        Gauge,
        ProcessCollector,
        generate_latest,
    )
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
        UnknownMetricFamily,
    )
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError as error:
    raise ConfigError(
        "serve",
        "the package `prometheus-client` is not installed",
        hint="pip install 'logweir[serve]'",
    ) from error

_Family = GaugeMetricFamily | CounterMetricFamily | UnknownMetricFamily
_SECONDS = tuple(0.001 * 2**i for i in range(16))


class _Often(Collector):
    """What is counted with each request."""

    def __init__(self) -> None:
        self.counted = Counted(_SECONDS)

    def collect(self) -> Iterator[Metric]:
        """See the library."""
        requests = CounterMetricFamily(
            "logweir_request", "requests answered", labels=("scheme", "outcome")
        )
        for scheme, (done, failed) in self.counted.answered.items():
            requests.add_metric((scheme, "done"), done)
            requests.add_metric((scheme, "failed"), failed)
        yield requests
        bounds = [*map(floatToGoString, _SECONDS), "+Inf"]
        commits = HistogramMetricFamily(
            "logweir_commit_seconds", "from putting changes in line to their being durable"
        )
        counts = list(zip(bounds, accumulate(self.counted.commits), strict=True))
        commits.add_metric((), counts, self.counted.commit_seconds)
        yield commits


class StreamFigures(NamedTuple):
    """One writer's rows of one stream of an upstream. `token`: up to which it was read; `behind`:
    how many tokens the upstream said there are more; `gaps`: losses since this server began;
    `waits`: what was missed cannot be had now."""

    stream: str
    writer: str
    token: int
    behind: int
    gaps: int
    waits: bool


class TopicFigures(NamedTuple):
    """What was stored of a topic, and given to consumers, since the server began."""

    topic: str
    produced_bytes: int
    produced_messages: int
    consumed_bytes: int


LATENCY_BOUNDS_MS: Final = (
    *(1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 65, 75, 85, 95, 100),
    *(110, 120, 130, 140, 150, 200, 250, 300, 350, 400, 450, 500),
)
"""The bounds of a Tank broker's histogram."""


class Latencies(Collector):
    """How long it took to send bundles of each topic, in ms, under a Tank broker's name, bounds and
    label. Source: Tank's source."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def took(self, topics: Iterable[str], ms: float) -> None:
        """An answer with bundles of `topics`, each as often as it has partitions in it, was sent
        `ms` after it was begun."""
        index = bisect_left(LATENCY_BOUNDS_MS, ms)
        for topic in topics:
            counts = self._counts.get(topic)
            if counts is None:
                counts = self._counts[topic] = [0] * (len(LATENCY_BOUNDS_MS) + 1)
                self._sums[topic] = 0.0
            counts[index] += 1
            self._sums[topic] += ms

    def collect(self) -> Iterator[Metric]:
        """See the library."""
        bounds = [*map(str, LATENCY_BOUNDS_MS), "+Inf"]
        text = "milliseconds in which bundles were sent"
        family = HistogramMetricFamily("tanksrv_topic_latency", text, labels=("n",))
        for topic, counts in self._counts.items():
            shown = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric((topic,), shown, self._sums[topic])
        yield family


class ArchiveFigures(NamedTuple):
    """How far an archive is behind its store. `rows`, `bytes`: in the log and not archived;
    `seconds`: since a time at which all was, 0 while it is; `last_success`: when the last look
    began that archived all that it saw, in seconds since the epoch, 0 before; `errors`: looks that
    failed."""

    place: str
    rows: int
    bytes: int
    seconds: float
    last_success: float
    errors: int


class _Figures(Collector):
    """What is read when it is asked for. `reads`: give rows, of each the labels, then a figure for
    each family; by the address of an upstream, "" for others."""

    def __init__(self, labels: Sequence[str], *families: tuple[type[_Family], str, str]) -> None:
        self._labels = labels
        self._families = families
        self.reads: dict[str, Callable[[], Iterable[Sequence[Any]]]] = {}

    def collect(self) -> Iterator[Metric]:
        """See the library."""
        made = [kind(name, text, labels=self._labels) for kind, name, text in self._families]
        for read in self.reads.values():
            for one in read():
                for family, figure in zip(made, one[len(self._labels) :], strict=True):
                    family.add_metric(one[: len(self._labels)], figure)
        yield from made


def _streams() -> _Figures:
    """The streams of upstreams: see `StreamFigures`."""
    name = "logweir_source_stream_"
    return _Figures(
        ("url", "stream", "writer"),
        (GaugeMetricFamily, name + "token", "token up to which it was read"),
        (GaugeMetricFamily, name + "behind_tokens", "tokens that the upstream has more"),
        (CounterMetricFamily, name + "gaps", "losses that were put on record"),
        (GaugeMetricFamily, name + "waits", "1 while what was missed cannot be had"),
    )


def _topics() -> _Figures:
    """Topics under the names that a Tank broker's metrics have, so without `_total`, and of the
    type that has no suffix. Source: Tank's source."""
    name = "tanksrv_topic_"
    return _Figures(
        ("m",),
        (UnknownMetricFamily, name + "produced_bytes", "bytes of bundles that were stored"),
        (UnknownMetricFamily, name + "produced_msgs", "messages that were stored"),
        (UnknownMetricFamily, name + "consumed_bytes", "bytes of bundles given to consumers"),
    )


def _archive() -> _Figures:
    """The archive of the server's store."""
    name = "logweir_archive_"
    return _Figures(
        ("place",),
        (GaugeMetricFamily, name + "lag_rows", "rows that are not archived"),
        (GaugeMetricFamily, name + "lag_bytes", "bytes of logs not archived"),
        (GaugeMetricFamily, name + "lag_seconds", "since all was archived"),
        (GaugeMetricFamily, name + "last_success_timestamp_seconds", "when all was archived"),
        (CounterMetricFamily, name + "errors", "times that archiving failed"),
    )


class Metrics:
    """The counters of one server. `registry`: where they stand; a new one unless given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        ProcessCollector(registry=self.registry)
        self._gauge("build_info", "1, for the version of the program", "version").labels(
            VERSION
        ).set(1)
        self._open = self._gauge("link_open_connections", "connections that are open", "scheme")
        self._accepted = self._counter("link_accepted_total", "connections accepted", "scheme")
        self._refused = self._counter(
            "link_refused_total", "connections refused", "scheme", "reason"
        )
        self._login_failed = self._counter("login_failed_total", "logins that failed", "scheme")
        self._received = self._counter("link_received_bytes_total", "bytes received", "scheme")
        self._sent = self._counter("link_sent_bytes_total", "bytes sent", "scheme")
        self._often, self.latencies = _Often(), Latencies()
        self.answered = self._often.counted.answer
        """Requests of a scheme were answered: so many well, so many with an error."""
        self.committed = self._often.counted.commit
        """A group of changes became durable so many seconds after it was asked for."""
        self._streams, self._topics, self._archive = _streams(), _topics(), _archive()
        for one in (self._often, self._streams, self._topics, self.latencies, self._archive):
            self.registry.register(one)
        self._follower_lag = self._gauge(
            "follower_lag_rows", "rows that a follower has not acknowledged", "scheme", "follower"
        )
        self._source_state = self._gauge(
            "source_state", "1 for the state an upstream is in", "url", "state"
        )
        self._source_rows = self._counter("source_rows_total", "rows taken from upstreams", "url")
        self._stream_gaps = self._counter(
            "stream_gaps_total", "followers cut off because they would have missed rows"
        )
        self._oldest = self._gauge(
            "retention_pinned_bytes", "bytes of old logs kept for the follower named", "follower"
        )
        self._pinned_followers: set[str] = set()
        self._tuples = self._gauge(
            "space_tuples", "tuples of a space when its checksum was last asked for", "space"
        )
        self._checksum = self._gauge(
            "space_checksum", "checksum of a space's tuples when it was last asked for", "space"
        )
        self._evictions = self._counter(
            "retention_evicted_total", "followers whose old logs were given up", "follower"
        )
        self._resent = self._counter(
            "redis_resent_messages_total", "messages sent to subscribers that had been away"
        )
        self._lost = self._counter(
            "redis_lost_messages_total", "messages that named subscribers have missed for good"
        )

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge("logweir_" + name, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter("logweir_" + name, text, labels, registry=self.registry)

    def opened(self, scheme: str) -> None:
        """A connection was accepted."""
        self._open.labels(scheme).inc()
        self._accepted.labels(scheme).inc()

    def refused(self, scheme: str, reason: str) -> None:
        """A connection was refused; see `logweir.replication.listener` for the reasons."""
        self._refused.labels(scheme, reason).inc()

    def login_failed(self, scheme: str) -> None:
        """Somebody said a wrong name or password."""
        self._login_failed.labels(scheme).inc()

    def closed(self, scheme: str, received_bytes: int, sent_bytes: int) -> None:
        """A connection is gone; `received_bytes`, `sent_bytes`: of its whole life."""
        self._open.labels(scheme).dec()
        self._received.labels(scheme).inc(received_bytes)
        self._sent.labels(scheme).inc(sent_bytes)

    def requests(self) -> dict[str, tuple[int, int]]:
        """How many requests were answered so far, by scheme: well, and with an error."""
        answered = tuple(self._often.counted.answered.items())
        return {scheme: (done, failed) for scheme, (done, failed) in answered}

    def follower_lag(self, scheme: str, follower: str, rows: int) -> None:
        """How far a follower is behind."""
        self._follower_lag.labels(scheme, follower).set(rows)

    def follower_gone(self, scheme: str, follower: str) -> None:
        """A follower is not connected any more."""
        with contextlib.suppress(KeyError):
            self._follower_lag.remove(scheme, follower)

    def stream_gap(self) -> None:
        """A follower would have missed rows, and was cut off."""
        self._stream_gaps.inc()

    def pinned(self, follower: str, size_bytes: int) -> None:
        """Bytes of log files that are kept only because `follower` has not read them."""
        self._pinned_followers.add(follower)
        self._oldest.labels(follower).set(size_bytes)

    def pinned_followers(self) -> frozenset[str]:
        """For whom `pinned` was called, without those that `unpinned` named since."""
        return frozenset(self._pinned_followers)

    def unpinned(self, follower: str) -> None:
        """Nothing is kept for that follower any more."""
        self._pinned_followers.discard(follower)
        self._oldest.remove(follower)

    def space_checksum(self, space: str, tuples: int, crc32c: int) -> None:
        """Somebody asked for the content of a space."""
        self._tuples.labels(space).set(tuples)
        self._checksum.labels(space).set(crc32c)

    def evicted(self, follower: str) -> None:
        """Old logs were given up though a follower needed them."""
        self._evictions.labels(follower).inc()

    def resent(self, messages: int) -> None:
        """A subscriber of Redis's channels that had been away was sent what it had missed."""
        self._resent.inc(messages)

    def lost(self, messages: int) -> None:
        """What a named one has missed is not kept any more."""
        self._lost.inc(messages)

    def source_state(self, url: str, state: str, states: tuple[str, ...]) -> None:
        """An upstream's state changed to `state`, one of `states`."""
        for name in states:
            self._source_state.labels(url, name).set(1 if name == state else 0)

    def source_streams(self, url: str, read: Callable[[], Iterable[StreamFigures]]) -> None:
        """`read` tells how the streams of an upstream stand, whenever that is asked."""
        self._streams.reads[url] = lambda: ((url, *one) for one in read())

    def topics(self, read: Callable[[], Iterable[TopicFigures]]) -> None:
        """`read` tells what became of the topics, whenever that is asked."""
        self._topics.reads[""] = read

    def archive(self, read: Callable[[], ArchiveFigures]) -> None:
        """`read` tells how far the store is archived, whenever that is asked."""
        self._archive.reads[""] = lambda: (read(),)

    def source_rows(self, url: str, rows: int) -> None:
        """Rows of an upstream were applied."""
        self._source_rows.labels(url).inc(rows)

    def render(self) -> bytes:
        """Everything in the text form that Prometheus fetches."""
        text: bytes = generate_latest(self.registry)
        return text
