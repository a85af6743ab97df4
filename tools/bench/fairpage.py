"""The page of what `logweir bench fair` measured: a table for each protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from logweir.tools.bench.fair import OURS, Waits
from logweir.tools.bench.report import machine
from logweir.tools.page import Page, row

PAGE: Final = Page("logweir bench fair --page")
"""Where it stands."""


def section(waits: Sequence[Waits]) -> Iterator[str]:
    """The lines of the tables."""
    yield ""
    yield f"{machine()}. Milliseconds."
    for protocol in dict.fromkeys(one.protocol for one in waits):
        some = [one for one in waits if one.protocol == protocol]
        servers = list(dict.fromkeys((OURS, *(one.server for one in some))))
        columns = [f"{server}: {what}" for server in servers for what in ("median", "p99", "worst")]
        loads = [one.load for one in some]
        yield from ("", f"### {protocol}", "")
        yield f"Load average {min(loads):.1f} … {max(loads):.1f}."
        yield from ("", row(["command", *columns]))
        yield row(["---", *("---:" for _ in columns)])
        for flood in dict.fromkeys(one.flood for one in some):
            found = {one.server: one for one in some if one.flood == flood}
            cells = [cell for server in servers for cell in _cells(found.get(server))]
            yield row([f"`{flood}`", *cells])
    yield ""


def _cells(waits: Waits | None) -> tuple[str, ...]:
    if waits is None:
        return ("–", "–", "–")
    return tuple(f"{one:.1f}" for one in (waits.median_ms, waits.p99_ms, waits.worst_ms))
