"""The pictures of `logweir pipeline`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

TEXT = "{http://www.w3.org/2000/svg}text"
PROGRAM = """
import json, sys
from pathlib import Path
import matplotlib
from logweir.tools.cli.chart import Bar, draw
matplotlib.rcParams["svg.fonttype"] = "none"
for line in sys.stdin:
    told = json.loads(line)
    bars = [Bar(name, part, tuple(values)) for name, part, values in told["bars"]]
    draw(Path(told["picture"]), ["rows", "bytes"], bars, in_order=told["in_order"])
    print("drawn", flush=True)
"""
"""Its own process: matplotlib keeps the files of its fonts open."""

Texts = Callable[..., list[str]]


@pytest.fixture(scope="module")
def drawing() -> Iterator[subprocess.Popen[str]]:
    """A process that draws a picture for each line."""
    command = [sys.executable, "-P", "-c", PROGRAM]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


@pytest.fixture
def texts(drawing: subprocess.Popen[str], tmp_path: Path) -> Texts:
    """What is written in a picture of bars, of two measures."""

    def drawn(bars: list[object], *, in_order: bool) -> list[str]:
        told = {"picture": str(tmp_path / "a.svg"), "bars": bars, "in_order": in_order}
        assert drawing.stdin is not None
        assert drawing.stdout is not None
        print(json.dumps(told), file=drawing.stdin, flush=True)
        assert drawing.stdout.readline() == "drawn\n"
        return [one.text or "" for one in ElementTree.parse(tmp_path / "a.svg").iter(TEXT)]

    return drawn


@pytest.mark.parametrize("spaces", [0, 1, 39, 60])
def test_each_space_has_a_bar_and_the_smallest_share_one(spaces: int, texts: Texts) -> None:
    """The names stand there, those of the most bytes first."""
    bars: list[object] = [
        (f"space {space}", kind, (1, 1000 + space))
        for space in range(spaces)
        for kind in ("INSERT", "DELETE")
    ]
    bars.append(("no space", "NOP", (3, 9999)))
    told = texts(bars, in_order=False)
    names = [one for one in told if one.endswith("others") or "space" in one]
    wanted = ["no space", *(f"space {space}" for space in reversed(range(spaces)))]
    if len(wanted) > 40:
        wanted[40:] = [f"{len(wanted) - 40} others"]
    assert names == wanted
    assert {"NOP", "rows", "bytes"} <= set(told)


def test_names_of_files_are_no_formulas(texts: Texts) -> None:
    """Nor need they be text."""
    names = ["$a$/1.xlog", "$\\frac{$/2.xlog", "\udcff/3.xlog"]
    told = texts([(name, "whole", (1, 1)) for name in names], in_order=True)
    assert [one for one in told if "xlog" in one] == [*names[:2], "\\udcff/3.xlog"]


@pytest.mark.parametrize(
    ("batches", "wanted"),
    [
        (0, []),
        (3, ["batch 0", "batch 1", "batch 2"]),
        (81, [f"batch {at} … batch {at + 2}" for at in range(0, 81, 3)]),
    ],
)
def test_what_has_an_order_keeps_it_and_neighbours_share_a_bar(
    batches: int, wanted: list[str], texts: Texts
) -> None:
    """And where all has one colour there is no legend."""
    bars: list[object] = [(f"batch {number}", "", (number % 7, 1)) for number in range(batches)]
    told = texts(bars, in_order=True)
    assert [one for one in told if one.startswith("batch")] == wanted
    assert ("nothing" in told) == (batches == 0)
    assert "" not in told
