"""What is counted with each request is told as the library tells it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from logweir.replication.metrics import _SECONDS, Metrics


def lines(text: bytes) -> list[str]:
    """Without when a counter was made."""
    return [line for line in text.decode().splitlines() if "_created" not in line]


@given(
    answered=st.lists(
        st.tuples(st.sampled_from(["tank", "tap"]), st.integers(0, 9), st.integers(0, 9))
    ),
    seconds=st.lists(st.one_of(st.sampled_from(_SECONDS), st.floats(0, 100))),
)
def test_requests_and_commits_are_told_as_the_library_does(
    answered: list[tuple[str, int, int]], seconds: list[float]
) -> None:
    """Counters by scheme and outcome, a histogram whose bounds belong to what is below them."""
    metrics = Metrics()
    registry = CollectorRegistry()
    labels = ("scheme", "outcome")
    requests = Counter("logweir_request", "requests answered", labels, registry=registry)
    text = "from putting changes in line to their being durable"
    commits = Histogram("logweir_commit_seconds", text, buckets=_SECONDS, registry=registry)
    for scheme, done, failed in answered:
        metrics.answered(scheme, done, failed)
        requests.labels(scheme, "done").inc(done)
        requests.labels(scheme, "failed").inc(failed)
    for one in seconds:
        metrics.committed(one)
        commits.observe(one)
    told = lines(metrics.render())
    assert [line for line in told if "_request_" in line or "_commit_" in line] == lines(
        generate_latest(registry)
    )


def test_a_follower_for_whom_nothing_is_kept_is_told_no_more() -> None:
    """The others are."""
    metrics = Metrics()
    metrics.pinned("a", 7)
    metrics.pinned("b", 8)
    metrics.unpinned("a")
    told = [line for line in lines(metrics.render()) if "follower=" in line]
    assert ["a" in line.partition("{")[2] for line in told] == [False]
    assert metrics.pinned_followers() == {"b"}
