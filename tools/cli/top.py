"""`logweir top`: what a running server does, looked at again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logweir.errors import ConfigError, Unreachable
from logweir.replication import loop
from logweir.replication.iproto.client.status import fetch_status
from logweir.replication.service.rates import rates_of
from logweir.replication.urls import Url
from logweir.tools.cli.operating import server_at
from logweir.tools.cli.output import Output, human_bytes, human_seconds, visible
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderResult
    from rich.table import Table

Told = Mapping[str, Any]

_NO_TERMINAL_WIDTH: Final = 200


def command(
    out: Output,
    where: Annotated[
        str, typer.Argument(metavar="URL", help="The server: tarantool://USER@HOST:PORT.")
    ],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds from one look to the next.")] = 2.0,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after so many looks.")
    ] = None,
) -> int:
    """Show what a running server does, until Ctrl-C: rates, lag of followers and upstreams, who
    keeps old logs, memory.

    Numbers are those of `logweir status`, rates those since the look before. A server that goes
    away meanwhile is asked again. With --json one object for each look.
    """
    url = server_at(where)
    if url is None:
        raise ConfigError("URL", f"{where!r} is no address", hint="write tarantool://HOST:PORT")
    if out.as_json:
        for status, rates, error in _looks(url, every, count):
            out.json({**status, "rates": rates, "unreachable": error})
            out.flush()
        return 0
    from rich.console import Console
    from rich.live import Live

    console = Console(width=None if out.is_terminal else _NO_TERMINAL_WIDTH)
    live = Live(console=console, screen=True, auto_refresh=False) if out.is_terminal else None
    looks = _looks(url, every, count)
    first = next(looks)  # an error is told on the terminal as it is
    with live or nullcontext():
        for look in chain((first,), looks):
            if live is None:
                console.print(_view(*look))
            else:
                live.update(_Fitted(_view(*look)), refresh=True)
    return 0


def _looks(
    url: Url, every: float, count: int | None
) -> Iterator[tuple[Told, dict[str, float], str]]:
    """The status, rates since the look before, and why there is no newer one, "" where it is new.
    Raises what the first look raises."""
    before: Told | None = None
    at = 0.0
    looks = 0
    while True:
        try:
            status: Told = loop.run(fetch_status(url))
        except Unreachable as error:
            if before is None:
                raise
            yield before, {}, error.message
        else:
            now = time.monotonic()
            yield status, {} if before is None else rates_of(before, status, now - at), ""
            before, at = status, now
        looks += 1
        if looks == count:
            return
        time.sleep(every)


# --- for people -----------------------------------------------------------------------------------


class _Fitted:
    """As much of a view as a screen has lines for; its last line tells how many are not seen."""

    def __init__(self, view: Group) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment
        from rich.text import Text

        lines = console.render_lines(self._view, options.update(height=None), pad=False)
        while lines and not any(segment.text.strip() for segment in lines[-1]):
            lines.pop()
        room = options.height or console.height
        unseen = len(lines) - room + 1 if len(lines) > room else 0
        for line in lines[: room - 1] if unseen else lines:
            yield from line
            yield Segment.line()
        if unseen:
            yield Text(f"… {unseen:,} lines more: enlarge the terminal", style="bold", end="")


def _view(status: Told, rates: Mapping[str, float], error: str) -> Group:
    """All of it, as wide as the terminal. No text of the server is obeyed."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Table | Text] = []
    if error:
        parts.append(Text(visible(f"unreachable: {error}"), style="bold red"))
    memory = status.get("memory", {})
    held = sum(value for name, value in memory.items() if name in _HELD)
    pairs: list[tuple[str, object]] = [
        ("server", f"{status['url']}  {status['instance']}"),
        ("vclock", VClock(status["vclock"])),
        ("state", status.get("error") or status.get("state")),
        ("a second", "  ".join(f"{rates[one]:,.1f} {one}" for one in _RATES if one in rates)),
        ("requests/s", _by_scheme(rates, "requests")),
        ("received/s", _by_scheme(rates, "received_bytes")),
        ("sent/s", _by_scheme(rates, "sent_bytes")),
        ("connections", status.get("connections")),
        (
            "memory held",
            f"{human_bytes(held)} of {human_bytes(memory['limit_bytes'])}" if memory else None,
        ),
        ("layers", human_bytes(status["layers_bytes"]) if "layers_bytes" in status else None),
        ("oldest log", status.get("oldest_log_kept_by")),
    ]
    parts.append(_table(("", ""), [pair for pair in pairs if pair[1] not in (None, "")]))
    sources = [
        (
            one["url"],
            one["state"],
            "" if one["lag_seconds"] is None else f"{one['lag_seconds']:.3f}",
            f"{rates[one['url']]:,.1f}" if one["url"] in rates else "",
            one["last_error"] or "",
        )
        for one in sorted(status.get("sources", ()), key=_is_well)
    ]
    if sources:
        ill = sum(not _is_well(one) for one in status["sources"])
        columns = ("upstream", "state", "lag s", "rows/s", "last error")
        parts.append(_table(columns, sources, ill=ill))
    followers = [
        (one["instance"], one["peer"], f"{one['lag_rows']:,} rows", VClock(one["acknowledged"]))
        for one in status.get("replicas", ())
    ]
    followers += [
        (
            f"{one['scheme']} {one['name']}",
            one["peer"],
            f"{one['lag']:,} {one['unit']}",
            one["position"],
        )
        for one in status.get("readers", ())
    ]
    if followers:
        parts.append(_table(("follower", "peer", "lag", "position"), followers))
    keepers = [
        (
            f"{one['kind']} {one['name']}",
            human_bytes(one["bytes"]),
            "" if one["age_seconds"] is None else human_seconds(one["age_seconds"]),
        )
        for one in status.get("log_keepers", ())
    ]
    if keepers:
        parts.append(_table(("logs kept for", "bytes", "oldest is of"), keepers))
    errors = [(one["time"], one["event"], one["where"], one["why"]) for one in _last(status)]
    if errors:
        parts.append(_table(("error at", "what", "where", "why"), errors))
    return Group(*(one for part in parts for one in (part, Text())))


def _is_well(source: Told) -> bool:
    """Whether nobody needs to look at an upstream: those that are ill stand first."""
    return not source["last_error"] and source["state"] != "stopped"


def _last(status: Told) -> Sequence[Mapping[str, Any]]:
    return list(status.get("errors", ()))[:_ERRORS]


def _by_scheme(rates: Mapping[str, float], what: str) -> str:
    """The rates of each protocol in which something happens."""
    found = ((name.rpartition(" "), rate) for name, rate in rates.items() if rate)
    return "  ".join(
        f"{human_bytes(int(rate)) if what.endswith('_bytes') else f'{rate:,.1f}'} {scheme}"
        for (scheme, _, of), rate in found
        if of == what
    )


_ERRORS: Final = 5
_RATES: Final = ("rows", "commits", "syncs")
_HELD: Final = ("unfinished_frames_bytes", "requests_bytes", "answers_bytes")
_NUMBERS: Final = frozenset(("lag s", "rows/s", "lag", "bytes"))


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, ill: int = 0) -> Table:
    """Texts that are too long go on in the next line, whole. `ill`: so many rows stand out, from
    the first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    for name in columns:
        right = name in _NUMBERS
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for number, row in enumerate(rows):
        style = "bold red" if number < ill else None
        table.add_row(*(Text(visible(str(one))) for one in row), style=style)
    return table
