"""A picture of what `logweir pipeline stats` counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["draw_stats"]

_MOST_BARS: Final = 40


def draw_stats(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw rows and bytes of each space in each kind of file, by type of row, the most bytes first;
    what is behind the 40th is one bar. `rows`: of `pipeline.stats`; `path`: a .png, .svg or .pdf.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    sums: dict[str, int] = {}
    for row in rows:
        name = _name(row)
        sums[name] = sums.get(name, 0) + row["bytes"]
    names = sorted(sums, key=lambda name: -sums[name])
    if len(names) > _MOST_BARS:
        names[_MOST_BARS:] = [f"{len(names) - _MOST_BARS} others"]
    places = {name: place for place, name in enumerate(names)}
    picture = Figure(figsize=(11, 1.6 + 0.26 * max(4, len(names))), layout="constrained")
    types = sorted({row["type_name"] for row in rows})
    panels: Any = picture.subplots(1, 2, sharey=True)
    for axes, what in zip(panels, ("rows", "bytes"), strict=True):
        left = [0] * len(names)
        for kind in types:
            wide = [0] * len(names)
            for row in rows:
                if row["type_name"] == kind:
                    wide[places.get(_name(row), len(names) - 1)] += row[what]
            axes.barh(range(len(names)), wide, left=left, height=0.72, label=kind)
            left = [one + more for one, more in zip(left, wide, strict=True)]
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.set_xlabel("rows" if what == "rows" else "bytes of keys, tuples and operations")
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    panels[0].set_yticks(range(len(names)), names, fontsize=8)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    if types:
        picture.legend(types, loc="outside upper center", ncols=min(len(types), 8), fontsize=8)
    picture.savefig(path, dpi=130)


def _name(row: Mapping[str, Any]) -> str:
    space = "no space" if row["space_id"] is None else f"space {row['space_id']}"
    return f"{space}, {row['kind']}"
