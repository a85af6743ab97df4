"""`logweir bench statements` without a server: its cells, requests, page and refusals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logweir.errors import ConfigError, RemoteProtocolError
from logweir.replication.iproto.wire.codec import RequestType
from logweir.tools.bench import report
from logweir.tools.bench.cells import Cell, Figure, chosen, measure, worst_of
from logweir.tools.bench.requests import (
    PROTOCOLS,
    STATEMENTS,
    TUPLE_BYTES,
    Requests,
    bench_tuple,
    bucket_requests,
    statement_requests,
)
from logweir.tools.bench.spending import Ticks, ticks_between
from logweir.tools.bench.statements import all_cells
from logweir.tools.cli.main import app
from logweir.wal.mp import pack, unpack_at

ROOT = Path(__file__).resolve().parents[2]


def figure(name: str, ours: float, theirs: float | None) -> Figure:
    """A cell that was measured to take so many seconds for 10 units."""
    peer = None if theirs is None else lambda: theirs
    cell = Cell(name, "1x1 in flight", 100, "fsync")
    return measure(cell, ours=lambda: ours, theirs=peer, peer="peer", units=10, rounds=3)


def bodies(requests: Requests) -> list[tuple[int, int, dict[int, object]]]:
    """Type, sync and body of each request."""
    found = []
    for begin, end in zip(requests.bounds, requests.bounds[1:], strict=False):
        frame = requests.stream[begin:end]
        assert frame[0] == 0xCE
        assert int.from_bytes(frame[1:5], "big") == len(frame) - 5
        head, at = unpack_at(frame, 5)
        body, at = unpack_at(frame, at)
        assert at == len(frame)
        found.append((head[0], head[1], body))
    return found


def test_the_matrix_is_whole() -> None:
    """Nine statements, with an index and without, in four ways; no name comes twice."""
    names = [cell.name for cell in all_cells("fsync")]
    assert len(names) == len(set(names))
    for statement in STATEMENTS:
        for index in ("plain", "index"):
            for shape in ("1x1000", "1x100", "1x1", "16x1"):
                assert f"server/{statement}/{index}/{shape}" in names
    counts = Counter(name.split("/")[0] for name in names)
    assert counts == {"server": 74, "embedded": 15, "memcached": 10, "greenstack": 4}


def test_patterns_choose_cells_and_one_that_fits_none_is_refused() -> None:
    """Several patterns are parted by commas; the error names what a name looks like."""
    cells = all_cells("fsync")
    found = [cell.name for cell in chosen(cells, "embedded/get/*,server/delete/index/1x1*")]
    assert found == [
        "server/delete/index/1x1000",
        "server/delete/index/1x100",
        "server/delete/index/1x1",
        "embedded/get/plain",
    ]
    with pytest.raises(ConfigError, match="no cell's name fits 'server'") as caught:
        chosen(cells, "server")
    assert cells[0].name in caught.value.hint


def test_a_ratio_above_one_is_ahead_and_the_worst_come_last() -> None:
    """All that are behind their peer are named, and never one that has none."""
    figures = [figure(f"server/{n}", 1 + n / 10, 1.5) for n in range(20)]
    figures.append(figure("server/alone", 1, None))
    assert figures[0].ratio == 1.5
    assert figures[-1].ratio is None
    assert figures[-1].to_json()["peer_value"] is None
    named = [one.cell.name for one in worst_of(figures)]
    assert named == [f"server/{n}" for n in range(6, 20)]
    assert [one.cell.name for one in worst_of(figures[:4])] == [f"server/{n}" for n in range(4)]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_each_key_is_used_once_in_a_round(statement: str) -> None:
    """So what is there afterwards does not depend on the order; new keys are new in each round."""
    seen = set()
    for round in range(3):
        found = bodies(statement_requests(statement, 600, rows=400, count=300, round=round))
        assert [sync for _, sync, _ in found] == list(range(1, 301))
        keys = [body[0x20][0] if 0x20 in body else body[0x21][0] for _, _, body in found]  # type: ignore[index]
        if statement != "range":
            assert len(set(keys)) == 300
        new = {key for key in keys if key >= bench_tuple(400, 0)[0]}
        assert not seen & new
        seen |= new
    wanted = {"insert": 900, "delete": 900, "upsert": 450}
    assert len(seen) == wanted.get(statement, 0)


def test_mixes_have_their_share_of_changes_and_tuples_their_size() -> None:
    """One in twenty, and every other; 100 bytes each."""
    for statement, share in (("mixed95", 20), ("mixed50", 2)):
        found = bodies(statement_requests(statement, 600, rows=400, count=400, round=0))
        kinds = Counter(kind for kind, _, _ in found)
        assert kinds[RequestType.REPLACE] == 400 // share
        assert kinds[RequestType.SELECT] == 400 - 400 // share
    assert {len(pack(bench_tuple(key, key))) for key in (0, 17, 10**6)} == {TUPLE_BYTES}


def test_bucket_requests_have_other_values_in_each_round() -> None:
    """And the same ones for every server."""
    for protocol in ("memcached", "greenstack"):
        one = bucket_requests(protocol, "set", items=20, count=20, round=0)
        assert one == bucket_requests(protocol, "set", items=20, count=20, round=0)
        assert one != bucket_requests(protocol, "set", items=20, count=20, round=1)
        assert len(one) == 20


def test_a_refusal_is_no_answer() -> None:
    """In each protocol: what says that something went wrong is never counted."""
    error = b"\x83\x00\xce\0\0\x80\x03\x01\xcf\0\0\0\0\0\0\0\x07\x05\xce\0\0\0\x01\x80"
    refusals = {
        "iproto": b"\xce" + len(error).to_bytes(4, "big") + error,
        "memcached": b"\x81\x00\0\0\0\0\0\x01" + bytes(16),
        "greenstack": b"\0\0\0\x09\0\0\0\x01\x04\x06\x01\0\x08",
    }
    for name, answer in refusals.items():
        assert PROTOCOLS[name].size(answer) == len(answer)
        with pytest.raises(RemoteProtocolError, match="refused"):
            PROTOCOLS[name].read(answer)


def test_the_page_is_written_between_its_marks_only(tmp_path: Path) -> None:
    """What stands before and after stays; the section has each cell and the worst ones."""
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "benchmarks.md").read_text("utf-8") + "behind\n", "utf-8")
    before = page.read_text("utf-8")
    report.PAGE.check(page)
    both = [figure("server/a", 1, 2), figure("embedded/b", 3, None)]
    report.PAGE.write(page, report.section(both))
    text = page.read_text("utf-8")
    assert "| `server/a` | 10.00 | 5.00 | 2.00 | 2.00 … 2.00 |" in text
    assert "| `embedded/b` | 3.33 | – | – | – |" in text
    assert text.startswith(before.partition("begin -->")[0])
    assert text.endswith(before.partition(": end -->")[2])
    report.PAGE.write(page, report.section(both[:1]))
    assert "embedded/b" not in page.read_text("utf-8")


def test_a_page_that_is_not_there_is_made(tmp_path: Path) -> None:
    """And can be written again; one that cannot be is refused before anything is measured."""
    page = tmp_path / "page.md"
    report.PAGE.check(page)
    assert not page.exists()
    report.PAGE.write(page, report.section([figure("server/a", 1, 2)]))
    assert "| `server/a` | 10.00 |" in page.read_text("utf-8")
    report.PAGE.check(page)
    report.PAGE.write(page, report.section([figure("server/b", 1, 2)]))
    assert "server/a" not in page.read_text("utf-8")
    for wrong in (tmp_path, tmp_path / "none" / "page.md", page / "page.md"):
        with pytest.raises(ConfigError, match=f"{wrong} cannot be written: "):
            report.PAGE.check(wrong)


def test_the_documented_cells_are_those_that_are_measured() -> None:
    """docs/benchmarks.md has been written by the present matrix, whole."""
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    told = [
        line.split("`")[1] for line in text.splitlines() if line.startswith("| `") and " … " in line
    ]
    assert told == [cell.name for cell in all_cells("fsync")]


def test_the_json_of_a_cell_is_documented() -> None:
    """docs/json.md names each key of it, and no other."""
    text = (ROOT / "docs" / "json.md").read_text("utf-8")
    section = text.partition("## `bench statements`")[2].partition("\nThe last object")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    told = [key.strip(" `") for row in rows for key in row.split(",")]
    assert sorted(told) == sorted(figure("server/a", 1, 2).to_json())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["statements", "--rows", "199"], "--rows (argument): 199 rows are too few"),
        (["statements", "--rows", "0"], "--rows"),
        (["statements", "--rounds", "0"], "--rounds"),
        (["statements", "--cells", "server/nothing"], "--cells (argument): no cell's name fits"),
        (["fair", "--cells", "server/nothing"], "--cells (argument): no flood's name fits"),
        (["statements", "--plot", "ratios.txt"], "is no picture's name"),
        (["statements", "--plot", "no/such/folder/ratios.png"], "there is no folder"),
        (["statements", "--page", "no/such/page.md"], "--page (argument): no/such/page.md cannot"),
        (["statements", "--page", "README.md"], "has no place for what was measured"),
        (["append", "--cells", "*"], "`bench append` has no cells"),
        (["scan", "--plot", "ratios.png"], "`bench scan` has no cells"),
        (["scan", "--rows", "9999"], "--rows (argument): 9999 rows are too few"),
        (["serve"], "serve"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_measured(
    words: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With exit code 2 and one line, or the usage."""
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, ["bench", *words])
    assert result.exit_code == 2, result.output
    assert reason in result.stderr
    assert result.stdout == ""


def test_what_ended_processes_had_spent_is_not_taken_from_what_is_spent() -> None:
    """Of workers that nobody waits for, and once of those that somebody does."""
    before = {1: Ticks(0, 100, 50), 2: Ticks(1, 30, 0), 3: Ticks(1, 900, 40)}
    unwaited = {1: Ticks(0, 107, 50), 2: Ticks(1, 35, 0), 4: Ticks(1, 11, 0)}
    assert ticks_between(before, unwaited) == 7 + 5 + 11
    waited = {1: Ticks(0, 107, 50 + 940 + 3), 2: Ticks(1, 35, 0)}
    assert ticks_between(before, waited) == 7 + 5 + 3
    assert ticks_between({}, before) == 100 + 50 + 30 + 900 + 40
