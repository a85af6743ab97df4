"""What every follower keeps to, whatever the protocol: nothing is acknowledged before it is
durable, nothing lost, doubled or mixed up, what waits is bounded, and what cannot be stored is
told."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.followprocess import Follower
from support.waiting import until

import logweir
from interop.contractsides import FOLLOWERS, SIDES, Changing, Side
from interop.serving import Serving
from logweir.replication.protocols import parse_listen_url
from logweir.testing.valve import Valve
from logweir.wal.vclock import VClock

pytestmark = pytest.mark.kill
EACH = pytest.mark.parametrize("side", SIDES, ids=[side.name for side in SIDES])

COUNT, SIZE = 800, 15_000
"""What is more than one window, chunk or page of any protocol, without its limits changed."""

PART = 2 << 20
SEED = 20261122


@pytest.fixture(autouse=True, scope="module")
def followers() -> Iterator[None]:
    """All come from the same processes, which go in the end."""
    with FOLLOWERS:
        yield


def calm(side: Side, valve: Valve, copy: Follower) -> int:
    """How far is acknowledged, once that rises no more."""
    pause = threading.Event()
    found = -1
    while found != (found := side.acknowledged(valve.sent_up())):
        copy.content()
        pause.wait(0.1)
    return found


def once(side: Side, folder: Path) -> None:
    """Nothing was logged twice."""
    assert [key for key, count in side.logged(folder).items() if count > 1] == []


@EACH
def test_acknowledged_is_only_what_is_durable(tmp_path: Path, side: Side) -> None:
    """While a change waits to be stored, and while its sync does not return, nothing tells the
    upstream that it is here; a power cut then loses nothing."""
    with side.serve(tmp_path / "up") as up, Valve(up.port) as valve:
        side.create(up)
        side.put(up, range(20))
        with side.follower(tmp_path / "copy", valve) as copy:
            copy.wait("following")
            copy.until(lambda: side.content(up.log))
            before = calm(side, valve, copy)
            copy.hold("store")
            side.put(up, [20])
            copy.held()
            assert side.acknowledged(valve.sent_up()) == before
            copy.release()
            copy.until(lambda: side.content(up.log))
            if side.acknowledges:
                until(lambda: side.acknowledged(valve.sent_up()) > before)
            before = calm(side, valve, copy)
            copy.hold("sync")
            side.put(up, [21, 22, 23])
            told = copy.held()
            assert side.acknowledged(valve.sent_up()) == before
            copy.kill()
        os.truncate(told["path"], told["synced"])
        shutil.rmtree(tmp_path / "copy" / "state")
        with side.follower(tmp_path / "copy", valve) as copy:
            copy.until(lambda: side.content(up.log))
    once(side, tmp_path / "copy")


@EACH
def test_killed_inside_the_copy_it_is_made_whole(tmp_path: Path, side: Side) -> None:
    """Of more than one window, chunk or page a part has come; the rest comes after it, once."""
    with side.serve(tmp_path / "up") as up, Valve(up.port) as valve:
        side.create(up)
        side.put(up, range(COUNT), SIZE)
        side.disturb(valve, up)
        valve.allow(PART)
        with side.follower(tmp_path / "copy", valve) as copy:
            valve.until_stuck()
            copy.kill()
        valve.allow(None)
        with side.follower(tmp_path / "copy", valve) as copy:
            copy.until(lambda: side.content(up.log))
    once(side, tmp_path / "copy")


@EACH
def test_a_copy_anew_has_what_the_upstream_has(tmp_path: Path, side: Side) -> None:
    """Also where what is gone at the upstream is more than is looked through at once."""
    chunks = {"BACKFILL_CHUNK_ITEMS": 16, "UPSTREAM_STEP_BYTES": 4096}
    with side.serve(tmp_path / "up") as up, Valve(up.port) as valve:
        side.create(up)
        side.put(up, range(300), 200)
        with side.follower(tmp_path / "copy", valve, chunks) as copy:
            copy.until(lambda: side.content(up.log))
        side.forget(tmp_path / "copy")
        if isinstance(side, Changing):
            side.remove(up, range(0, 300, 2))
        side.put(up, range(300, 320))
        with side.follower(tmp_path / "copy", valve, chunks) as copy:
            copy.until(lambda: side.content(up.log))


@EACH
def test_an_older_copy_goes_on_from_where_it_is(tmp_path: Path, side: Side) -> None:
    """A folder that was restored has everything again, each change once."""
    with side.serve(tmp_path / "up") as up, Valve(up.port) as valve:
        side.create(up)
        side.put(up, range(30))
        with side.follower(tmp_path / "copy", valve) as copy:
            copy.wait("following")
            copy.until(lambda: side.content(up.log))
        shutil.copytree(tmp_path / "copy", tmp_path / "older")
        side.put(up, range(30, 60))
        with side.follower(tmp_path / "copy", valve) as copy:
            copy.until(lambda: side.content(up.log))
            if isinstance(side, Changing):
                side.remove(up, range(10, 40))
            side.put(up, range(60, 70))
            copy.until(lambda: side.content(up.log))
        with side.follower(tmp_path / "older", valve) as copy:
            copy.until(lambda: side.content(up.log))
    if not isinstance(side, Changing):
        once(side, tmp_path / "older")


def test_our_own_rows_are_asked_back(tmp_path: Path) -> None:
    """Of a member whose folder was restored from before it wrote them, if another one has them."""
    side = SIDES[0]
    with side.serve(tmp_path / "up") as up, Valve(up.port) as valve:
        side.create(up)
        side.put(up, range(10))
        with side.follower(tmp_path / "copy", valve) as copy:
            copy.wait("following")
            copy.until(lambda: side.content(up.log))
        shutil.copytree(tmp_path / "copy", tmp_path / "older")
    with side.serve(tmp_path / "copy") as ours:
        side.put(ours, range(100, 120))
        more = {"listen": [parse_listen_url("tarantool://:0")], "guest": "all"}
        with Serving(tmp_path / "up", follow=[ours.url], **more) as up:
            up.wait(lambda: side.content(up.log) == side.content(ours.log))
            valve = Valve(up.port)
            with valve, side.follower(tmp_path / "older", valve) as copy:
                copy.until(lambda: side.content(up.log))


@EACH
def test_another_upstream_at_the_address_is_not_mixed_in(tmp_path: Path, side: Side) -> None:
    """It is told, or copied whole; what is there is of the one or of the other."""
    with Valve() as valve, ExitStack() as following:
        with side.serve(tmp_path / "one") as up:
            valve.target = up.port
            side.create(up)
            side.put(up, range(40))
            copy = following.enter_context(side.follower(tmp_path / "copy", valve))
            copy.until(lambda: side.content(up.log))
            calm(side, valve, copy)
            valve.target = 0
            valve.cut()
            old = side.rows(up.log)
        with side.serve(tmp_path / "two") as up:
            side.create(up)
            side.put_other(up)
            valve.target = up.port
            copy.until(lambda: side.after_other(old, up.log))
            if side.other_stops:
                until(lambda: side.other_stops in copy.trouble())


def turn_over(side: Side, up: Serving, number: int) -> None:
    """Write and take snapshots, so that no log of before is needed for a restart."""
    for each in range(number, number + 3):
        side.put(up, [each])
        up.log.snapshot()
    up.log.inner.collect()


@contextmanager
def half_copied(folder: Path, side: Side) -> Iterator[tuple[Serving, VClock, Valve, Follower]]:
    """An upstream with where its log was, and a follower that has a part of it. Behind it the
    follower is gone, and no log is kept for it."""
    with side.serve(folder / "up", checkpoint_count=1) as up, Valve(up.port) as valve:
        side.create(up)
        side.put(up, range(COUNT), SIZE)
        begun = up.log.vclock
        valve.allow(PART)
        with side.follower(folder / "copy", valve) as copy:
            valve.until_stuck()
            yield up, begun, valve, copy
        side.retire(up)
        up.wait(lambda: not side.kept(up))
        turn_over(side, up, COUNT + 10)
        assert not begun.covers(up.log.oldest_position), "the log is kept for nobody"


@EACH
def test_the_log_stays_while_a_copy_is_sent_and_no_longer(tmp_path: Path, side: Side) -> None:
    """What was written meanwhile comes after it, and once the follower is gone nothing is kept."""
    with half_copied(tmp_path, side) as (up, begun, valve, copy):
        turn_over(side, up, COUNT)
        if side.keeps_log:
            assert begun.covers(up.log.oldest_position), "the log from then on is gone"
        valve.allow(None)
        copy.until(lambda: side.content(up.log))


@EACH
def test_a_follower_that_is_lost_inside_the_copy_keeps_nothing(tmp_path: Path, side: Side) -> None:
    """The logs that were kept for it go."""
    with half_copied(tmp_path, side) as (up, _, _, copy):
        assert bool(side.kept(up)) == side.keeps_log
        copy.kill()


FLOOD, PIECE = 2400, 10_000
SMALL = {"UPSTREAM_WAITING_BYTES": 1 << 20, "SYNAPSE_WAITING_BYTES": 1 << 20}
MOST = 16 << 20
"""What a follower with these limits takes in, with all that systems keep on the way."""


@EACH
def test_a_follower_that_stores_nothing_takes_in_little(
    tmp_path: Path, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upstream that sends all it has is not read any more at some point, and read on later."""
    side.generous(monkeypatch)
    with side.serve(tmp_path / "up") as up, Valve(up.port) as valve:
        side.create(up)
        side.put(up, [0])
        is_live = side.floods == "live"
        if not is_live:
            side.put(up, range(1, FLOOD), PIECE)
        with side.follower(tmp_path / "copy", valve, SMALL, "" if is_live else "store") as copy:
            before = 0
            if is_live:
                copy.wait("following")
                copy.until(lambda: side.content(up.log))
                before = valve.down
                copy.hold("store")
                side.put(up, range(1, FLOOD), PIECE)
            copy.held()
            valve.until_quiet()
            assert valve.down - before < MOST
            copy.release()
            copy.until(lambda: side.content(up.log))


@EACH
def test_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path, side: Side) -> None:
    """Two followers, one of them behind, while the upstream is written to."""
    dice = random.Random(SEED)
    names = ["ahead", "behind"]
    with side.serve(tmp_path / "up") as up, Valve(up.port) as valve:
        side.create(up)
        side.put(up, range(10))
        copies = {name: side.follower(tmp_path / name, valve) for name in names}
        numbers = iter(range(10, 100_000))
        try:
            for turn in range(3):
                for _ in range(dice.randrange(5, 60)):
                    side.put(up, [next(numbers) for _ in range(dice.randrange(1, 20))])
                    if isinstance(side, Changing):
                        side.put(up, dice.sample(range(10), 3), dice.randrange(10, 500))
                        side.remove(up, [dice.randrange(200)])
                name = names[turn % 2]
                copies[name].kill()
                side.put(up, [next(numbers) for _ in range(dice.randrange(1, 200))])
                copies[name] = side.follower(tmp_path / name, valve)
            for copy in copies.values():
                copy.until(lambda: side.content(up.log))
        finally:
            for copy in copies.values():
                copy.kill()
    if not isinstance(side, Changing):
        for name in names:
            once(side, tmp_path / name)


@EACH
def test_what_cannot_be_stored_is_told_and_named(tmp_path: Path, side: Side) -> None:
    """What came before it is there, what it was is in the error, and all the rest as it was."""
    with side.serve(tmp_path / "up") as up, Valve(up.port) as valve:
        side.create(up)
        side.put(up, range(10))
        with side.follower(tmp_path / "copy", valve) as copy:
            copy.until(lambda: side.content(up.log))
            side.settle(up)
        named = side.spoil(tmp_path / "copy")
        with logweir.open(tmp_path / "copy") as log:
            before = side.content(log)
        side.put(up, [10])
        with side.follower(tmp_path / "copy", valve) as copy:
            until(lambda: all(one in copy.trouble() for one in named))
            assert copy.content() == before
