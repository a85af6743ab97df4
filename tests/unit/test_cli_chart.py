"""The picture of `pipeline stats`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

TEXT = "{http://www.w3.org/2000/svg}text"
PROGRAM = """
import json, sys
from pathlib import Path
import matplotlib
from logweir.tools.cli.chart import draw_stats
matplotlib.rcParams["svg.fonttype"] = "none"
draw_stats(Path(sys.argv[1]), json.load(sys.stdin))
"""
"""Its own process: matplotlib keeps the files of its fonts open."""


@pytest.mark.parametrize("spaces", [0, 1, 39, 60])
def test_each_space_has_a_bar_and_the_smallest_share_one(spaces: int, tmp_path: Path) -> None:
    """The names stand there, those of the most bytes first."""
    rows = [
        {"kind": "xlog", "space_id": space, "type_name": kind, "rows": 1, "bytes": 1000 + space}
        for space in range(spaces)
        for kind in ("INSERT", "DELETE")
    ]
    rows.append({"kind": "snap", "space_id": None, "type_name": "NOP", "rows": 3, "bytes": 9999})
    picture = tmp_path / "a.svg"
    drawn = [sys.executable, "-P", "-c", PROGRAM, str(picture)]
    subprocess.run(drawn, input=json.dumps(rows).encode(), check=True, timeout=60)
    told = [one.text for one in ElementTree.parse(picture).iter(TEXT)]
    names = [one for one in told if one and one.endswith((", xlog", ", snap", "others"))]
    wanted = ["no space, snap", *(f"space {space}, xlog" for space in reversed(range(spaces)))]
    if len(wanted) > 40:
        wanted[40:] = [f"{len(wanted) - 40} others"]
    assert names == wanted
    assert {"NOP", "bytes of keys, tuples and operations"} <= set(told)
