"""The guided tour: its proof holds, and would fail if anything were lost, doubled or half there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import logweir
from logweir.tools import tour


class Enough(Exception):
    """Stops the writer."""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A store with ten orders."""

    def stop_at_ten(number: int) -> None:
        if number == 10:
            raise Enough

    folder = tmp_path / "shop"
    with pytest.raises(Enough):
        tour.write_orders(folder, stop_at_ten)
    return folder


@pytest.mark.kill
def test_tour_ends_well() -> None:
    """The whole tour, with a real kill, finds everything and shows the files."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "logweir.tools.tour"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "acknowledged orders are there, in order, none twice" in done.stdout
    assert "$ logweir info" in done.stdout
    assert "What to try next" in done.stdout
    assert ("A real Tarantool 2.6" in done.stdout) is (shutil.which("tarantool") is not None)
    assert "WRONG" not in done.stdout


def test_what_was_acknowledged_is_found(shop: Path) -> None:
    """Ten of ten, or nine of ten: the last may have died before it was acknowledged."""
    for acknowledged in (10, 9):
        found = tour.check_store(shop, list(range(1, acknowledged + 1)))
        assert (found.orders, found.counter, found.problems) == (10, 10, ())


def lose(log: logweir.Log) -> None:
    log.delete("orders", 10)
    log.update("totals", "orders", [["=", "value", 9]])


def leave_gap(log: logweir.Log) -> None:
    log.delete("orders", 4)
    log.insert("orders", (11, "x", 1))


def tear(log: logweir.Log) -> None:
    log.update("totals", "orders", [["+", "value", 1]])


def add(log: logweir.Log) -> None:
    log.append("orders", [(11, "x", 1), (12, "x", 1)])
    log.update("totals", "orders", [["=", "value", 12]])


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lose, "1 acknowledged orders are lost, the first is number 10"),
        (leave_gap, "missing in between"),
        (tear, "a transaction is there by half"),
        (add, "12 orders are there, 10 were acknowledged"),
    ],
)
def test_each_way_to_be_wrong_is_noticed(
    spoil: Callable[[logweir.Log], None], problem: str, shop: Path
) -> None:
    """A lost, a missing, a half and an invented order are each named."""
    with logweir.open(shop) as log:
        spoil(log)
    found = tour.check_store(shop, list(range(1, 11)))
    assert any(problem in text for text in found.problems), found.problems
