"""The page of `logweir report`: its numbers are right, bounded, and nothing in it is obeyed."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.logs import ORDERS, START, body, insert, write_log, write_snapshot
from typer.testing import CliRunner

import logweir
from logweir.tools.cli import main
from logweir.tools.cli.figures import INTERVALS, Figures, Frequent, Intervals
from logweir.wal.columns import RowColumns
from logweir.wal.reader import read_meta
from logweir.wal.xrow import Key, RowType

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "tarantool"


def report(path: Path, *words: str, code: int = 0) -> Any:
    """What `report --json` tells."""
    result = CliRunner().invoke(main.app, ["--json", "--quiet", "report", str(path), *words])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


class Page(HTMLParser):
    """The elements of a page, those that are open, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_numbers_of_a_tarantool(tmp_path: Path) -> None:
    """Rows, bytes and transactions are those of its files, however they are put together."""
    told = report(SAMPLES / "02-spaces")
    logs = [file for file in told["files"] if file["kind"] == "XLOG"]
    rows = sum(file["rows"] for file in logs)
    size = sum(file["raw_bytes"] for file in logs)
    changes, intervals = told["changes"], told["intervals"]["of"]
    assert sum(one["rows"] for one in changes) == rows == 1418
    assert sum(one["bytes"] for one in changes) == size
    assert sum(one["rows"] for one in intervals) + told["intervals"]["untimed_rows"] == rows
    assert sum(one["bytes"] for one in intervals) == size
    assert sum(one["rows"] for one in told["row_sizes"]) == rows
    many = sum(one["transactions"] for one in told["transaction_sizes"])
    assert many == sum(file["transactions"] for file in logs)
    assert told["largest_transaction"] == 400
    assert told["ok"]
    assert told["replicaset"]
    assert told["keys"]["why_not"] == ""
    by_space: Counter[int] = Counter()
    for one in changes:
        by_space[one["space"]] += one["rows"]
    assert {one["id"]: one["rows"] for one in told["spaces"]} == {
        space: count for space, count in by_space.items() if space is not None
    }


def test_keys_are_those_that_change(tmp_path: Path) -> None:
    """Whatever changes a tuple counts for its primary key; what a log without a snapshot has is not
    guessed."""
    folder = tmp_path / "store"
    with logweir.open(folder) as log:
        log.create_space("t")
        log.replace("t", [1, "a"])
        for number in range(5):
            log.replace("t", [7, number])
            log.update("t", [7], [("=", 1, "x")])
        log.delete("t", [7])
    told = report(folder)["keys"]
    found = {(one["name"], *one["key"]): one["changes"] for one in told["most"]}
    assert (found["t", 7], found["t", 1], told["too_low"]) == (11, 1, 0)
    for snap in folder.glob("*.snap"):
        snap.unlink()
    assert (
        report(folder, code=3)["keys"]["why_not"] == "there is no snapshot that defines the spaces"
    )


@pytest.mark.parametrize("case", sorted(path.name for path in (SAMPLES / "05-damaged").iterdir()))
def test_damage_is_told(case: str, tmp_path: Path) -> None:
    """Each damaged folder has its page, with file, byte, kind and what to do, and the exit code and
    the damage of `verify`."""
    folder = SAMPLES / "05-damaged" / case
    if not folder.is_dir():
        return
    result = CliRunner().invoke(main.app, ["--json", "verify", str(folder)])
    told = report(folder, "-o", str(tmp_path / "x.html"), code=result.exit_code)
    verified = json.loads(result.stdout)
    assert [one for one in told["damage"] if one in verified["damage"]] == verified["damage"]
    assert told["verdict"] == verified["verdict"]
    page = Page((tmp_path / "x.html").read_text())
    text = "".join(page.words)
    for one in verified["damage"]:
        assert f"{one['kind']} in {Path(one['file']).name} at byte {one['offset']:,}" in text
        assert one["hint"][:200] in text


def test_names_are_not_obeyed(tmp_path: Path) -> None:
    """Markup, control characters and marks of direction in names and keys are shown, no more."""
    evil = "<script>alert(1)</script>\"'><img src=x onerror=y>&amp;\x1b[31m\u202e\x00"
    folder = tmp_path / "<b>store"
    with logweir.open(folder) as log:
        log.create_space(evil.replace("\x00", "").replace("\x1b", "").replace("\u202e", ""))
        log.create_space("keys", [("id", "string")])
        log.replace("keys", [evil])
    target = tmp_path / "x.html"
    told = report(folder, "-o", str(target))
    assert ["keys", [evil]] in [[one["name"], one["key"]] for one in told["keys"]["most"]]
    text = target.read_text()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    page = Page(text)
    assert page.open == []
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "img", "b", "link", "iframe"})
    for _, attributes in page.elements:
        assert set(attributes).isdisjoint({"src", "href", "onerror", "onload", "style"})
    assert "<script>alert(1)</script>" in "".join(page.words)
    assert "url(" not in text
    assert "@import" not in text


def test_page_is_a_new_file(tmp_path: Path) -> None:
    """No file is written over, and no page is asked for without a name, but for JSON."""
    write_snapshot(tmp_path, {})
    write_log(tmp_path, ORDERS)
    log = next(tmp_path.glob("*.xlog"))
    before = log.read_bytes()
    for words in (["-o", str(log)], []):
        assert CliRunner().invoke(main.app, ["report", str(tmp_path), *words]).exit_code == 2
    assert log.read_bytes() == before
    target = tmp_path / "x.html"
    assert CliRunner().invoke(main.app, ["report", str(log), "-o", str(target)]).exit_code == 0
    assert "orders (512)" in "".join(Page(target.read_text()).words)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_rows_of_hostile_times_and_spaces_are_bounded(tmp_path: Path) -> None:
    """A time that is no date counts as none; a row without a space has none."""
    intervals = Intervals()
    times = [math.nan, math.inf, -1.0, 0.0, 1e300, START]
    intervals.add(times, [10] * 6)
    assert (intervals.untimed_rows, list(intervals.sums.values())) == (5, [[1, 10]])
    told = report_of([[(RowType.NOP, b"")], [insert(512, [1])]], tmp_path)
    assert [one["space"] for one in told["changes"]] == [512, None]


def report_of(transactions: Any, folder: Path) -> Any:
    """The report of a folder with such a log."""
    write_snapshot(folder, {})
    write_log(folder, transactions)
    return report(folder)


def test_tuple_without_its_key_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that does not fit its space costs its key only."""
    index = [512, 0, "pk", "tree", {"unique": True}, [[3, "unsigned"]]]
    space = [512, 1, "orders", "memtx", 0, {}, []]
    rows = [[insert(280, space)], [insert(288, index)], [insert(512, [1])]]
    folder = tmp_path / "store"
    logweir.open(folder).close()
    for log in folder.glob("*.xlog"):
        log.unlink()
    (snap,) = folder.glob("*.snap")
    meta = read_meta(snap)
    monkeypatch.setattr("support.logs.INSTANCE", meta.instance)
    write_log(folder, rows, start=meta.vclock)
    result = CliRunner().invoke(main.app, ["--json", "--quiet", "report", str(folder)])
    keys = json.loads(result.stdout)["keys"]
    assert (keys["why_not"], keys["left_out"]) == ("", 1)


@given(st.lists(st.integers(0, 60), max_size=400), st.integers(1, 20), st.randoms())
def test_frequent_never_lies(things: list[int], capacity: int, chance: random.Random) -> None:
    """A count is never too high, and too low by what is said at most; memory is bounded."""
    frequent: Frequent[int] = Frequent(capacity)
    at = 0
    while at < len(things):
        step = chance.randint(1, 7)
        frequent.add(things[at : at + step])
        at += step
    found = dict(frequent.most(1000))
    assert len(found) <= 2 * capacity + 7
    for thing, count in Counter(things).items():
        assert count - frequent.too_low <= found.get(thing, 0) <= count
    assert frequent.too_low <= len(things) / (capacity + 1)


@given(
    st.lists(st.lists(st.floats(0.001, 4e9, allow_nan=False), min_size=1, max_size=5), max_size=40)
)
def test_intervals_hold_all_and_are_few(blocks: list[list[float]]) -> None:
    """Every row is in the interval of its time, and there are so many of these at most."""
    intervals = Intervals()
    for times in blocks:
        intervals.add(times, [1] * len(times))
    width = intervals.width_ms
    wanted = Counter(int(time * 1000) // width for times in blocks for time in times)
    assert {number: rows for number, (rows, _) in intervals.sums.items()} == wanted
    if wanted:
        assert max(wanted) - min(wanted) < INTERVALS


def test_block_without_rows_counts_nothing() -> None:
    """An empty block is no row, no transaction."""
    figures = Figures()
    figures.add(RowColumns.scan(b""))
    assert (figures.largest, figures.sizes, figures.intervals.sums) == (0, {}, {})


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Further spaces are counted together."""
    monkeypatch.setattr("logweir.tools.cli.figures.GROUPS", 2)
    rows = [[(RowType.INSERT, body((Key.SPACE_ID, 600 + n), (Key.TUPLE, [1])))] for n in range(5)]
    told = report_of(rows, tmp_path)
    assert (len(told["changes"]), told["other_changes"]["rows"]) == (2, 3)


def test_a_page_tells_the_end_of_a_file_first_and_of_an_empty_store_that_it_is_empty(
    tmp_path: Path,
) -> None:
    """Columns behind it may be outside of the window; no heading stands without a word."""
    logweir.open(tmp_path / "store").close()
    report(tmp_path / "store", "-o", str(tmp_path / "x.html"))
    words = [one for one in Page((tmp_path / "x.html").read_text()).words if one.strip()]
    begin = words.index("Files")
    assert words[begin + 1 : begin + 4] == ["file", "end", "size"]
    assert words[words.index("Keys that change most often") + 1] == "There is no change to count."
