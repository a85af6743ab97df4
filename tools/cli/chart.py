"""A picture of what a job of `logweir pipeline` counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

_MOST_BARS: Final = 40
_COLOURS: Final = {
    **{"whole": "tab:blue", "damaged": "tab:red"},
    **{"added": "tab:green", "changed": "tab:orange", "removed": "tab:red"},
}
"""Of parts that mean the same in every picture; others take what comes."""


class Bar(NamedTuple):
    """A part of a bar. `name`: of the bar; `part`: in the legend, "" for bars of one colour;
    `values`: one for each measure."""

    name: str
    part: str
    values: tuple[int, ...]


def draw(path: Path, measures: Sequence[str], bars: Iterable[Bar], *, in_order: bool) -> None:
    """Draw a panel for each measure with a bar for each name: `in_order` as they come, else the
    largest by the last measure first. There are 40: of more, neighbours share a bar, or the
    smallest do. `path`: a .png, .svg or .pdf.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    sums: dict[str, dict[str, list[int]]] = {}
    for bar in bars:
        values = sums.setdefault(bar.name, {}).setdefault(bar.part, [0] * len(measures))
        values[:] = [one + more for one, more in zip(values, bar.values, strict=True)]
    names = list(sums)
    if not in_order:
        names.sort(key=lambda name: -sum(values[-1] for values in sums[name].values()))
    groups = _in_order(names) if in_order else _largest(names)
    parts = sorted({part for one in sums.values() for part in one})
    picture = Figure(figsize=(11, 1.6 + 0.26 * max(4, len(groups))), layout="constrained")
    panels: Any = picture.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for number, (axes, measure) in enumerate(zip(panels, measures, strict=True)):
        left = [0] * len(groups)
        for part in parts:
            wide = [
                sum(sums[name][part][number] for name in group if part in sums[name])
                for group in groups.values()
            ]
            colour = _COLOURS.get(part)
            axes.barh(range(len(groups)), wide, left=left, height=0.72, label=part, color=colour)
            left = [one + more for one, more in zip(left, wide, strict=True)]
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlim(left=0)
        if not groups:
            axes.text(0.5, 0.5, "nothing", transform=axes.transAxes, ha="center", va="center")
        axes.set_xlabel(measure)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    shown = [name.encode("utf-8", "backslashreplace").decode() for name in groups]
    panels[0].set_yticks(range(len(groups)), shown, fontsize=8, parse_math=False)
    panels[0].set_ylim(len(groups) - 0.4, -0.6)
    if any(parts):
        picture.legend(parts, loc="outside upper center", ncols=min(len(parts), 8), fontsize=8)
    picture.savefig(path, dpi=130)


def _largest(names: list[str]) -> dict[str, list[str]]:
    """The names of each bar, the last ones together."""
    groups = {name: [name] for name in names[:_MOST_BARS]}
    if rest := names[_MOST_BARS:]:
        groups[f"{len(rest)} others"] = rest
    return groups


def _in_order(names: list[str]) -> dict[str, list[str]]:
    """The names of each bar, so many neighbours together that there are not too many bars."""
    many = -(-len(names) // _MOST_BARS)
    found = (names[at : at + many] for at in range(0, len(names), max(many, 1)))
    return {one[0] if len(one) == 1 else f"{one[0]} … {one[-1]}": one for one in found}
