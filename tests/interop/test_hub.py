"""Five upstreams in, five followers out: what arrives, item by item."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.waiting import until

from interop.hubfollowers import Hub
from interop.hubsides import KINDS

pytestmark = [pytest.mark.tarantool, pytest.mark.kill]

FIRST, LAST = range(60), range(60, 120)
"""What is written before the followers come, and while they follow."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """All of it at once, with what was written before the followers came and behind them."""
    made = Hub(tmp_path_factory.mktemp("hub"))
    try:
        made.start()
        for kind in KINDS:
            made.upstreams.write(kind, FIRST)
        until(made.has_spaces, 40)
        for one in made.all_followers:
            one.start()
        for kind in KINDS:
            made.upstreams.write(kind, LAST)
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("followed", KINDS)
@pytest.mark.parametrize("upstream", KINDS)
def test_follower_of_any_protocol_gets_what_any_upstream_has(
    hub: Hub, upstream: str, followed: str
) -> None:
    """Every item, and nothing else: rows, messages with partition, number, time, key and content,
    items with their values, rows of streams with their tokens."""
    follower = hub.followers[followed][upstream]
    held = hub.upstreams.contents(upstream)
    assert len(held) > 50
    try:
        until(lambda: follower.contents(upstream) == held, 30)
    except AssertionError:
        assert follower.contents(upstream) == held, follower.trouble
