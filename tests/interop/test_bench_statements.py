"""`logweir bench statements` against real programs: every cell runs, and disagreement is found."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until
from typer.testing import CliRunner

from logweir.errors import Unreachable
from logweir.tools.bench.load import LoadProcess
from logweir.tools.bench.servers import Server, logweir_server
from logweir.tools.bench.statements import all_cells
from logweir.tools.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
TYPES: dict[str, type | tuple[type, ...]] = {
    "suite": str,
    "cell": str,
    "unit": str,
    "logweir": float,
    "peer": str,
    "peer_value": float,
    "ratio": float,
    "ratio_low": float,
    "ratio_high": float,
    "rounds": int,
    "units": int,
    "durability": str,
    "batch": str,
    "payload_bytes": int,
    "load": float,
    "more": dict,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """The whole matrix, as small as it can be: what it told, and where picture and page are."""
    folder = tmp_path_factory.mktemp("bench")
    shutil.copy(ROOT / "docs" / "benchmarks.md", folder / "page.md")
    words = ["--json", "bench", "statements", "--rows", "200", "--rounds", "1"]
    words += ["--plot", str(folder / "ratios.png"), "--page", str(folder / "page.md")]
    # A process of its own: matplotlib keeps the files of its fonts open.
    code = "from logweir.tools.cli.main import run; run()"
    command = [sys.executable, "-P", "-c", code, *words, "--directory", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()], folder


@pytest.mark.tarantool
@pytest.mark.slow
def test_every_cell_runs_and_tells_what_it_measured(
    run: tuple[list[dict[str, Any]], Path],
) -> None:
    """That both sides answered alike and hold the same is seen while it runs: else it fails."""
    *told, last = run[0]
    assert [one["cell"] for one in told] == [cell.name for cell in all_cells("fsync")]
    for one in told:
        assert list(one) == list(TYPES)
        assert one["logweir"] > 0
        assert one["durability"] in ("fsync", "none")
        alone = one["peer"].startswith("memcached, not installed")
        assert alone == (one["ratio"] is None)
        if not alone:
            assert {key for key, type in TYPES.items() if not isinstance(one[key], type)} == set()
            assert one["ratio_low"] == one["ratio"] == one["ratio_high"] > 0
    more = {one["cell"]: one["more"] for one in told}
    assert set(more["server/insert/plain/1x1000"]) == {"cpu_us", "peer_cpu_us", "client_busy"}
    assert more["embedded/insert/plain"]["syncs"] == 20
    assert more["memcached/set/1x1/cpu"]["sync_cpu_us"] > 0
    assert set(last) == {"suite", "machine", "worst"}
    ratios = [one["ratio"] for one in told if one["ratio"] is not None]
    assert [one["ratio"] for one in last["worst"]] == sorted(
        (one["ratio"] for one in last["worst"]), reverse=True
    )
    assert last["worst"][-1]["ratio"] == min(ratios)


@pytest.mark.tarantool
@pytest.mark.slow
def test_the_picture_and_the_page_are_made(run: tuple[list[dict[str, Any]], Path]) -> None:
    """A PNG as tall as the cells need, and a line in the page for each cell."""
    data = (run[1] / "ratios.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert width > 1000
    assert height > 10 * len(all_cells("fsync"))
    page = (run[1] / "page.md").read_text("utf-8")
    for cell in all_cells("fsync"):
        assert page.count(f"| `{cell.name}` |") == 1
    assert "1 rounds" in page
    assert page.count("### Worst cells, the worst last") == 1


@pytest.mark.tarantool
def test_for_people_there_is_a_line_for_each_cell_and_the_worst_last(tmp_path: Path) -> None:
    """Without `--json`; `--cells` leaves out the rest."""
    words = ["bench", "statements", "--rows", "200", "--rounds", "2"]
    cells = "server/select/plain/1x1*"
    result = CliRunner().invoke(app, [*words, "--cells", cells, "--directory", str(tmp_path)])
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[1].startswith("next to Tarantool 2.6.0")
    assert lines[1].endswith("fsync; 2 rounds")
    assert lines[2].split() == (
        ["cell", "logweir", "peer", "ratio", "spread", "unit", "batch", "bytes", "synced", "load"]
    )
    names = [line.split()[0] for line in lines[3:6]]
    assert names == [f"server/select/plain/{shape}" for shape in ("1x1000", "1x100", "1x1")]
    assert lines[7] == "worst cells, the worst last:"
    assert sorted(line.split()[0] for line in lines[9:12]) == sorted(names)
    assert not list(tmp_path.iterdir())


def test_a_peer_that_is_missing_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then logweir is measured alone: no ratio, no worst cell."""
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["--json", "bench", "statements", "--rows", "200", "--rounds", "1"]
    cells = "server/insert/plain/1x1000,memcached/set/1x1000"
    result = CliRunner().invoke(app, [*words, "--cells", cells, "--directory", str(tmp_path)])
    assert result.exit_code == 0, result.stderr
    server, bucket, last = map(json.loads, result.stdout.splitlines())
    assert server["peer"] == "Tarantool, not installed, fsync"
    assert bucket["peer"] == "memcached, not installed, keeps nothing"
    for one in (server, bucket):
        assert one["ratio"] is one["peer_value"] is None
        assert one["logweir"] > 0
    assert last["worst"] == []


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LoadProcess, Server]]:
    """The client and a server of ours with the spaces 600, with an index, and 601."""
    folder = tmp_path_factory.mktemp("load") / "store"
    with LoadProcess() as load, logweir_server(folder, ["tarantool://127.0.0.1:0"]) as server:
        load.define(server.port, 600, index=True)
        load.define(server.port, 601, index=False)
        yield load, server


def inserts(space: int, round: int, count: int = 50) -> dict[str, Any]:
    """INSERTs of new tuples."""
    told = {"statement": "insert", "space": space, "rows": 200}
    return {**told, "count": count, "round": round}


def test_the_client_finds_refusals_and_other_contents(both: tuple[LoadProcess, Server]) -> None:
    """A taken key, a space that is not there, and spaces that differ in one tuple."""
    load, server = both
    one = load.exchange(server.port, "iproto", inserts(600, 1), 1, 10)
    two = load.exchange(server.port, "iproto", inserts(601, 1), 4, 3)
    assert one.digest == two.digest
    assert one.seconds > 0
    assert load.contents(server.port, 600, 0) == load.contents(server.port, 601, 0)
    assert load.contents(server.port, 600, 0) != load.contents(server.port, 600, 1)
    with pytest.raises(Unreachable, match=r"refused: .*Duplicate key"):
        load.exchange(server.port, "iproto", inserts(600, 1, count=1), 1, 1)
    with pytest.raises(Unreachable, match=r"refused: .*does not exist"):
        load.exchange(server.port, "iproto", inserts(699, 1), 16, 1)
    other = load.exchange(server.port, "iproto", inserts(601, 2, count=1), 1, 1)
    assert other.digest != one.digest
    assert load.contents(server.port, 600, 0) != load.contents(server.port, 601, 0)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (b"", "closed the connection"),
        (b"\xce\0\0\0\x17\x83\x00\xce\0\0\0\0\x01\xcf" + bytes(14), "have the answers of 1"),
    ],
    ids=["ended", "repeated"],
)
def test_the_client_finds_answers_that_are_missing_or_given_twice(
    answers: bytes, reason: str, both: tuple[LoadProcess, Server]
) -> None:
    """From a server that ends in the middle, and one that gives one answer to each request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(bytes(128))
                for _ in range(50):
                    if not peer.recv(1 << 16) or not answers:  # read, or it is a reset
                        return
                    peer.sendall(answers)
                peer.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(Unreachable, match=reason):
            both[0].exchange(port, "iproto", inserts(600, 3), 1, 1)
        thread.join()


def opened_files(process: Path) -> list[str]:
    """Of a process, by its folder in /proc."""
    found = []
    for one in (process / "fd").iterdir():
        with contextlib.suppress(OSError):  # it is closed already
            found.append(str(one.readlink()))
    return found


def test_sigterm_ends_the_servers_too(tmp_path: Path) -> None:
    """A bench that is told to end leaves no server behind, and no folder."""
    words = ["bench", "statements", "--cells", "memcached/get/1x1000", "--rounds", "100000"]
    code = "from logweir.tools.cli.main import run; run()"
    command = [sys.executable, "-P", "-c", code, *words, "--directory", str(tmp_path)]

    def started() -> list[Path]:
        tasks = Path(f"/proc/{bench.pid}/task").glob("*/children")
        return [Path("/proc", pid) for one in tasks for pid in one.read_text().split()]

    def serves() -> bool:
        with contextlib.suppress(OSError):  # one of them, or a thread, has ended meanwhile
            return any(name.endswith("data.mdb") for one in started() for name in opened_files(one))
        return False

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
        try:
            until(serves, 60)
            children = started()
            bench.terminate()
            assert bench.wait(60) == 143
        finally:
            bench.kill()
    until(lambda: not any(one.exists() for one in children))
    assert list(tmp_path.iterdir()) == []
