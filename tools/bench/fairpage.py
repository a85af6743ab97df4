"""The page of what `logweir bench fair` measured: a table for each protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from logweir.tools import page
from logweir.tools.bench.fair import OURS, Waits
from logweir.tools.bench.report import machine

_COMMAND: Final = "logweir bench fair --page"


def check_page(path: Path) -> None:
    """Raises `ConfigError` if `path` is no page with a place for the measured section."""
    page.check_page(path, _COMMAND)


def write_page(path: Path, waits: Sequence[Waits]) -> None:
    """Write the measured section of a page that `check_page` took, and nothing else of it."""
    page.write_page(path, _COMMAND, _section(waits))


def _section(waits: Sequence[Waits]) -> Iterator[str]:
    yield ""
    yield f"{machine()}. Milliseconds."
    for protocol in dict.fromkeys(one.protocol for one in waits):
        some = [one for one in waits if one.protocol == protocol]
        servers = list(dict.fromkeys((OURS, *(one.server for one in some))))
        columns = [f"{server}: {what}" for server in servers for what in ("median", "p99", "worst")]
        loads = [one.load for one in some]
        yield from ("", f"### {protocol}", "")
        yield f"Load average {min(loads):.1f} … {max(loads):.1f}."
        yield from ("", _row(["command", *columns]))
        yield _row(["---", *("---:" for _ in columns)])
        for flood in dict.fromkeys(one.flood for one in some):
            found = {one.server: one for one in some if one.flood == flood}
            cells = [cell for server in servers for cell in _cells(found.get(server))]
            yield _row([f"`{flood}`", *cells])
    yield ""


def _cells(waits: Waits | None) -> tuple[str, ...]:
    if waits is None:
        return ("–", "–", "–")
    return tuple(f"{one:.1f}" for one in (waits.median_ms, waits.p99_ms, waits.worst_ms))


def _row(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"
