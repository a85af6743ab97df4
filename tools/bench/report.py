"""What `logweir bench statements` shows: a line for each cell, a page, a picture."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from logweir.errors import ConfigError
from logweir.tools.bench.cells import RATE, Figure, worst_of
from logweir.tools.page import Page, row
from logweir.wal import crc32c, kernel

PAGE: Final = Page("logweir bench statements --page")
"""Where the measured section of the matrix stands."""

_PLOT_ENDINGS: Final = (".png", ".svg", ".pdf")
_COLUMNS: Final = {
    "cell": 38,
    "logweir": 11,
    "peer": 11,
    "ratio": 7,
    "spread": 17,
    "unit": 14,
    "batch": 22,
    "bytes": 5,
    "synced": 6,
    "load": 5,
}
"""Columns, and how wide they are in a line."""


def machine() -> str:
    """What it was measured on, in one line."""
    what = "compiled" if kernel.COMPILED else "interpreted"
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    return (
        f"{os.cpu_count()} cores, {system}, Python {platform.python_version()}, "
        f"kernels {what}, CRC-32C by {crc32c.SOURCE}"
    )


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _values(figure: Figure) -> tuple[str, ...]:
    ratios = figure.ours.ratios
    has_peer = figure.theirs is not None
    cell = figure.cell
    return (
        cell.name,
        _number(figure.value),
        _number(figure.peer_value),
        f"{figure.ours.ratio:.2f}" if has_peer else "–",
        f"{min(ratios):.2f} … {max(ratios):.2f}" if has_peer else "–",
        f"{cell.what}/s" if cell.scale == RATE else "us processor",
        cell.batch,
        str(cell.payload_bytes),
        cell.durability,
        f"{figure.load:.1f}",
    )


def _aligned(values: Iterable[str]) -> str:
    left = {"cell", "spread", "unit", "batch", "synced"}
    parts = [
        value.ljust(width) if name in left else value.rjust(width)
        for (name, width), value in zip(_COLUMNS.items(), values, strict=True)
    ]
    return "  ".join(parts).rstrip()


HEADER: Final = _aligned(_COLUMNS)
"""Above the lines of `line_of`."""


def line_of(figure: Figure) -> str:
    """One cell on one line, for people."""
    return _aligned(_values(figure))


# --- the page -------------------------------------------------------------------------------------


def section(figures: Sequence[Figure]) -> Iterator[str]:
    """The lines of the measured section."""
    loads = [figure.load for figure in figures]
    rounds = len(figures[0].ours.rates)
    yield ""
    yield f"{machine()}; {rounds} rounds; load average {min(loads):.1f} … {max(loads):.1f}."
    for group in dict.fromkeys(figure.cell.group for figure in figures):
        yield from ("", f"### {group}", "")
        some = [figure for figure in figures if figure.cell.group == group]
        yield f"Next to: {'; '.join(dict.fromkeys(figure.peer for figure in some))}."
        yield from ("", row(_COLUMNS), row(["---"] * len(_COLUMNS)))
        for figure in some:
            name, *values = _values(figure)
            yield row([f"`{name}`", *values])
    worst = list(worst_of(figures))
    if worst:
        yield from ("", "### Worst cells, the worst last", "")
        yield ", ".join(f"`{figure.cell.name}` {figure.ours.ratio:.2f}" for figure in worst) + "."
    yield ""


# --- the picture ----------------------------------------------------------------------------------

_COLOURS: Final = {
    "server": "#3b6ea5",
    "embedded": "#4c9a62",
    "memcached": "#b5803a",
    "greenstack": "#8a5fa8",
}


def check_plot(path: Path) -> None:
    """Raises `ConfigError` if no picture can be made there."""
    if path.suffix not in _PLOT_ENDINGS:
        endings = ", ".join(_PLOT_ENDINGS)
        raise ConfigError("--plot", f"{path} is no picture's name", hint=f"end it with {endings}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError("--plot", f"there is no folder {folder}")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError("--plot", f"{path} cannot be written")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot", "matplotlib is not installed", hint="python -m pip install matplotlib"
        )


def plot(path: Path, figures: Sequence[Figure]) -> None:
    """Draw the ratios of all cells that have a peer: a bar each, a line from lowest to highest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure as Picture
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    compared = [figure for figure in figures if figure.theirs is not None]
    picture = Picture(figsize=(10, 1.8 + 0.19 * max(4, len(compared))), layout="constrained")
    axes: Any = picture.add_subplot()
    places = range(len(compared))
    ratios = [figure.ours.ratio for figure in compared]
    spread = [
        [ratio - min(figure.ours.ratios) for ratio, figure in zip(ratios, compared, strict=True)],
        [max(figure.ours.ratios) - ratio for ratio, figure in zip(ratios, compared, strict=True)],
    ]
    colours = [_COLOURS[figure.cell.group] for figure in compared]
    # Bars begin at 1, equal to the peer: to the right is ahead, to the left is behind.
    axes.barh(places, [ratio - 1 for ratio in ratios], left=1, color=colours, height=0.72)
    axes.errorbar(ratios, places, xerr=spread, fmt="none", ecolor="#222222", elinewidth=0.8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(list(places), [figure.cell.name for figure in compared], fontsize=7)
    axes.set_ylim(len(compared) - 0.4, -0.6)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("ratio to the peer, above 1 logweir is ahead (log scale; lines: all rounds)")
    rounds = len(figures[0].ours.rates)
    loads = [figure.load for figure in figures]
    axes.set_title(
        f"logweir bench statements, {rounds} rounds, load {min(loads):.1f} … {max(loads):.1f}\n"
        + "; ".join(dict.fromkeys(figure.peer for figure in compared)),
        fontsize=8,
    )
    picture.savefig(path, dpi=130)
