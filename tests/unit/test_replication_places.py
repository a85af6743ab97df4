"""Places in the log from which followers read: the right one, and never too late a one."""

from __future__ import annotations

from pathlib import Path

import pytest

import logweir
from logweir.limits import PLACE_STEP_BYTES
from logweir.replication.stream.places import Place, Places
from logweir.wal.follow import Follower
from logweir.wal.vclock import VClock

ONE, TWO = Path("1.xlog"), Path("2.xlog")


def test_newest_place_that_the_position_covers_is_given() -> None:
    """None for a position before all of them, or one that is beside them."""
    places = Places()
    assert places.before(VClock({1: 5})) is None
    for lsn in range(1, 50):
        places.note(VClock({1: lsn}), ONE, lsn * PLACE_STEP_BYTES)
    newest = Place(VClock({1: 49}), ONE, 49 * PLACE_STEP_BYTES)
    assert places.before(VClock({1: 49})) == newest
    assert places.before(VClock({1: 70, 2: 1})) == newest
    found = places.before(VClock({1: 20, 2: 9}))
    assert found is not None
    assert 17 <= found.vclock[1] <= 20
    assert places.before(VClock({2: 9})) is None


def test_few_places_are_kept_of_many_commits() -> None:
    """One for about every step, one for each file, and the last."""
    places = Places()
    for number in range(10_000):
        places.note(VClock({1: number}), ONE, number * PLACE_STEP_BYTES // 1000)
    places.note(VClock({1: 10_000}), TWO, 100)
    assert len(places._kept) < 15
    found = places.before(VClock({1: 9_999}))
    assert found == Place(VClock({1: 9_999}), ONE, 9_999 * PLACE_STEP_BYTES // 1000)


def test_each_file_has_a_place_for_every_step() -> None:
    """Also those behind the first: who is a little behind reads none of them from its start."""
    places = Places()
    paths = [Path(f"{number}.xlog") for number in range(4)]
    for number in range(400):
        in_file = number % 100
        places.note(VClock({1: number}), paths[number // 100], in_file * PLACE_STEP_BYTES // 10)
    for behind in range(50, 400, 100):  # in the middle of each file
        found = places.before(VClock({1: behind}))
        assert found is not None
        assert found.path == paths[behind // 100]
        assert behind - found.vclock[1] <= 11
    assert len(places._kept) < 4 * 13


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_reading_from_a_place_gives_what_reading_from_the_start_gives(
    tmp_path: Path, at: int
) -> None:
    """For each position, across files, also where the place's file is gone."""
    places = Places()
    with logweir.open(tmp_path, wal_max_size=2000) as log:
        log.on_commit(lambda vclock: places.note(vclock, *log.inner.durable_end))
        log.create_space("t")
        for number in range(60):
            log.insert("t", (number, "x" * 100))
        after = VClock({1: log.vclock[1] - 60 + at})
        place = places.before(after)
        assert place is not None

        def rows(**options: object) -> list[int]:
            with Follower(tmp_path, after, **options) as follower:  # type: ignore[arg-type]
                return [lsn for block in follower.poll() for lsn in block.columns.lsn]

        wanted = rows()
        assert rows(place=(place.path, place.offset, place.vclock)) == wanted
        gone = (tmp_path / "00000000000000000000.gone", 100, place.vclock)
        assert rows(place=gone) == wanted
        assert wanted == list(range(after[1] + 1, log.vclock[1] + 1))
        assert len(wanted) == 60 - at
