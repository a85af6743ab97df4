"""`logweir bench`: how fast it is here, next to the raw disk and to peers, in one run."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from logweir.errors import ConfigError
from logweir.tools.bench.harness import Result, plain
from logweir.tools.cli.output import Output, human_bytes
from logweir.wal import crc32c, kernel


class Suite(StrEnum):
    """What can be measured."""

    APPEND = "append"
    SCAN = "scan"
    RECOVER = "recover"
    TANK = "tank"
    STATEMENTS = "statements"
    JOIN = "join"
    RELAY = "relay"
    FOLLOW = "follow"
    MEMCACHED = "memcached"
    SYNAPSE = "synapse"
    SPARK = "spark"
    GREENSTACK = "greenstack"
    FAIR = "fair"
    SUSTAINED = "sustained"


class Mode(StrEnum):
    """Durability of appends."""

    FSYNC = "fsync"
    WRITE = "write"


_ROWS: Final = 300_000
_ROWS_MIN: Final = 10_000
_STATEMENT_ROWS: Final = 20_000
_SUSTAINED_ROWS: Final = 50_000


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What was asked for. `given_rows`: None for as many as the suite is made for."""

    suite: Suite
    rounds: int
    given_rows: int | None
    durability: str
    minutes: float
    compress: bool
    cells: str | None
    plot: Path | None
    page: Path | None

    def check(self) -> None:
        """Raises `ConfigError` for what cannot be, before anything is measured."""
        from logweir.tools.bench import fairpage, report

        suite = self.suite
        given = {"--cells": self.cells, "--plot": self.plot, "--page": self.page}
        for name, value in given.items():
            if value is None or suite is Suite.STATEMENTS:
                continue
            if suite is not Suite.FAIR or name == "--plot":
                raise ConfigError(
                    name, f"`bench {suite.value}` has no cells", hint="it is for `bench statements`"
                )
        if suite is not Suite.STATEMENTS and self.rows < _ROWS_MIN:
            raise ConfigError(
                "--rows", f"{self.rows} rows are too few", hint=f"{_ROWS_MIN} at least"
            )
        if self.plot is not None:
            report.check_plot(self.plot)
        if self.page is not None:
            (fairpage if suite is Suite.FAIR else report).PAGE.check(self.page)

    @property
    def rows(self) -> int:
        """As given, or what the suite is made for."""
        made_for = {Suite.STATEMENTS: _STATEMENT_ROWS, Suite.SUSTAINED: _SUSTAINED_ROWS}
        return self.given_rows or made_for.get(self.suite, _ROWS)


def command(
    out: Output,
    suite: Annotated[Suite, typer.Argument(metavar="SUITE", help="What to measure.")],
    rounds: Annotated[
        int, typer.Option(help="How often each case runs, in turn with the others.", min=1)
    ] = 7,
    rows: Annotated[
        int | None,
        typer.Option(
            help="Rows of `scan`, `recover`, `join`, `relay`, `spark` (300000), or of each cell of "
            "`statements` (20000), or for each client of `sustained` (50000).",
            min=1,
        ),
    ] = None,
    durability: Annotated[
        Mode,
        typer.Option(
            help="When a change of `append`, `statements`, `follow`, `sustained` is done."
        ),
    ] = Mode.FSYNC,
    minutes: Annotated[
        float, typer.Option(help="How long `sustained` loads the server.", min=0.01)
    ] = 10,
    compress: Annotated[
        bool, typer.Option("--compress", help="Let `scan` read zstd blocks.")
    ] = False,
    directory: Annotated[
        Path | None,
        typer.Option(help="A folder on the disk to measure; default: where temporary files go."),
    ] = None,
    cells: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Only those cells of `statements`, or `fair`, whose name fits: "
            "`server/*/1x1,embedded/*`, `memcached/GET*`.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the ratios of `statements`: a .png, .svg or .pdf."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the measured section of docs/benchmarks.md, or of docs/fairness.md, anew; "
            "or a new page.",
        ),
    ] = None,
) -> int:
    """Measure statements, appends, scans, recovery or servers, as ratios to a peer.

    Cases run in turn, round by round; what is shown is the median of the rounds' ratios to the
    first case, and the lowest and highest. Peers that are not installed are left out.

    `statements` is the whole matrix, a line a cell: each kind of statement through a server next to
    Tarantool, embedded next to SQLite, and buckets next to memcached. The worst cells are named
    last. See docs/benchmarks.md.
    """
    chosen = _Chosen(suite, rounds, rows, durability.value, minutes, compress, cells, plot, page)
    chosen.check()
    with tempfile.TemporaryDirectory(prefix="logweir-bench-", dir=directory) as folder:
        _machine(out)
        _RUNS[suite](out, Path(folder), chosen)
    return 0


def _machine(out: Output) -> None:
    what = "compiled" if kernel.COMPILED else "interpreted"
    out.message(f"kernel {what}, CRC-32C by {crc32c.SOURCE}")


def _append(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench.append import BATCHES, run_append

    with out.progress("Appending", len(BATCHES)) as progress:
        measured = run_append(folder, durability=chosen.durability, rounds=chosen.rounds)
        for done, (batch, size, results) in enumerate(measured, 1):
            progress(done)
            title: dict[str, Any] = {"batch_rows": batch, "payload_bytes": size}
            title["durability"] = chosen.durability
            _show(out, "append", title, "rows/s", results)


def _scan(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench.scan import run_scan

    rows, compress = chosen.rows, chosen.compress
    size, results = run_scan(folder, rows=rows, compress=compress, rounds=chosen.rounds)
    blocks = "zstd, 128 KiB before compression" if compress else "plain, 128 KiB"
    _show(out, "scan", {"rows": rows, "file_bytes": size, "blocks": blocks}, "rows/s", results)


def _tank(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench import tank

    figures = tank.run_tank(folder, rounds=chosen.rounds)
    if out.as_json:
        out.json({"suite": "tank", **tank.to_json(figures)})
        return
    title = {"bundle_messages": tank.MESSAGES, "message_bytes": tank.MESSAGE_BYTES}
    for count, results in ((tank.MESSAGES, figures.fetch), (1, figures.fetch_small)):
        sizes = {**title, "bundle_messages": count, "fetch_bytes": tank.FETCH_BYTES}
        _show(out, "fetch", sizes, "bytes/s", results)
    for mode, results in (("write", figures.publish_write), ("fsync", figures.publish_fsync)):
        batch = {**title, "in_flight": tank.IN_FLIGHT, "durability": mode}
        _show(out, "publish", batch, "bundles/s", results)
    for name, ratio in figures.cpu_ratio.items():
        out.line(f"processor time of the raw machine over ours, {name}: {ratio:.2f}")
    for mode, cpu_us in figures.lone_cpu_us.items():
        out.line(
            f"bundles of one message, one at a time, durability {mode}: {cpu_us:.1f} us of CPU"
        )
    for mode, values in figures.latency_ms.items():
        out.line(
            f"one message of {tank.MESSAGE_BYTES} B to a consumer that waits, durability {mode}: "
            + ", ".join(f"{key} {value:.2f} ms" for key, value in values.items())
        )
    told = ", ".join(f"{key} {value:.2f}" for key, value in figures.waiting.items())
    out.line(f"fetches that wait: {told}")


def _memcached(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench import memcached

    figures = memcached.run_memcached(folder, rounds=chosen.rounds)
    if out.as_json:
        out.json({"suite": "memcached", **plain(figures)})
        return
    out.line(f"baseline: {figures.baseline}, which keeps nothing; load {os.getloadavg()[0]:.1f}")
    title = {"items": memcached.ITEMS, "value_bytes": memcached.VALUE_BYTES, "connections": 1}
    _show(out, "dump", title, "items/s", figures.dump)
    told = ", ".join(f"{case} {value:.2f}" for case, value in figures.cpu_us.items())
    out.line(f"dump, CPU of the server, us/item: {told}")
    out.line("")
    shown = ", ".join(f"{key} {value:.2f}" for key, value in figures.latency_ms.items())
    out.line(f"live change to packet, ms, {memcached.CHANGES} changes, durability fsync: {shown}")
    shown = ", ".join(
        f"{key.removesuffix(' bytes')} {human_bytes(int(value))}" if key.endswith("bytes")
        else f"{key} {value:.2f}"
        for key, value in figures.followers.items()
    )  # fmt: skip
    told = f"{memcached.FOLLOWED} items of {memcached.FOLLOWED_BYTES} bytes"
    out.line(f"{memcached.FOLLOWERS} followers, {told}, memory of the server: {shown}")


def _synapse(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench import synapse

    figures = synapse.run_synapse(folder, rounds=chosen.rounds)
    if out.as_json:
        out.json({"suite": "synapse", **synapse.to_json(figures)})
        return
    title = {"lines": synapse.LINES, "durability": "fsync"}
    _show(out, "ingest", title, "rows/s", figures.ingest)
    _show(out, "serve", title, "lines/s", figures.serve)
    for number, results in figures.relay.items():
        cpu = f"{figures.relay_cpu_us_per_line[number]:.2f}"
        more = {"durability": "fsync", "server_cpu_us_per_line": cpu}
        _show(out, f"relay to {number}", more, "lines/s", results)
    for name in ("ingest_cpu", "serve_cpu", "latency_ms", "followers", "stuck"):
        values = getattr(figures, name)
        out.line(f"{name}: " + ", ".join(f"{key} {value:.2f}" for key, value in values.items()))


def _spark(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench.spark import measure_spark

    for figure in measure_spark(folder, rows=chosen.rows, rounds=chosen.rounds):
        if out.as_json:
            out.json({"suite": "spark", **figure.to_json()})
        else:
            out.line(figure.to_text())
        sys.stdout.flush()


def _greenstack(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench import greenstack

    figures = greenstack.run_greenstack(folder, rounds=chosen.rounds)
    if out.as_json:
        out.json({"suite": "greenstack", **plain(figures)})
        return
    title = {"requests": greenstack.REQUESTS, "value_bytes": len(greenstack.VALUE)}
    _show(out, "replace", title, "requests/s", figures.replace)
    _show(out, "quiet", title, "requests/s", figures.quiet)
    _show(out, "stream", title, "rows/s", figures.stream)
    shown = ", ".join(f"{key} {value:.2f}" for key, value in figures.lanes_ms.items())
    out.line(f"lanes, ms: {shown}")


def _fair(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench import fair, fairpage

    patterns = chosen.cells or "*"
    figures = chain[fair.Waits | fair.Memory](
        fair.run_waits(folder / "waits", patterns=patterns),
        fair.run_memory(folder / "memory", patterns=patterns),
    )
    waits, is_any = [], False
    for figure in figures:
        is_any = True
        if out.as_json:
            out.json({"suite": "fair", **figure.to_json()})
        else:
            out.line(figure.to_text())
        out.flush()
        if isinstance(figure, fair.Waits):
            waits.append(figure)
    if not is_any:
        raise ConfigError(
            "--cells",
            f"no flood's name fits {patterns!r}",
            hint="names are such as 'tarantool/PING' and 'memcached/GET'",
        )
    if chosen.page is not None:
        fairpage.PAGE.write(chosen.page, fairpage.section(waits))


def _sustained(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench import sustained

    durability, rows = chosen.durability, chosen.rows
    samples: list[sustained.Sample] = []
    beside: list[sustained.Beside] = []
    title = {"suite": "sustained", "durability": durability, "rows": rows}
    for one in sustained.run_sustained(
        folder, minutes=chosen.minutes, durability=durability, rows=rows
    ):
        if isinstance(one, sustained.Reopened):
            _grown(out, title, sustained.growth(samples), one)
            continue
        is_beside = isinstance(one, sustained.Beside)
        if isinstance(one, sustained.Beside):
            beside.append(one)
            sizes = {"memory": one.memory_bytes}
        else:
            samples.append(one)
            sizes = {"layers": one.layers_bytes, "state": one.state_bytes, "log": one.log_bytes}
            sizes["memory"] = one.memory_bytes
        if out.as_json:
            out.json({**title, "server": "tarantool" if is_beside else "logweir", **plain(one)})
        else:
            shown = ", ".join(f"{name} {human_bytes(size)}" for name, size in sizes.items())
            pause = f"{'Tarantool, ' if is_beside else ''}pause {1000 * one.pause:.0f} ms"
            out.line(f"{one.seconds:6.1f} s  {one.rate:9,.0f} updates/s  {pause}, {shown}")
        out.flush()
    if ratio := sustained.against(samples, beside):
        if out.as_json:
            out.json({**title, "against": plain(ratio)})
            return
        rates = f"{ratio['rate']:,.0f} updates/s, Tarantool {ratio['tarantool_rate']:,.0f}"
        pauses = f"{1000 * ratio['pause']:.0f} ms and {1000 * ratio['tarantool_pause']:.0f} ms"
        told = f"{rates}: ratio {ratio['ratio']:.2f}; longest pauses {pauses}"
        out.line(f"{told} (2 x {rows:,} tuples of 100 bytes, {durability})")


def _grown(out: Output, title: dict[str, Any], grown: dict[str, float], reopened: Any) -> None:
    """`reopened`: of `sustained.Reopened`."""
    if out.as_json:
        out.json({**title, "growth": plain(grown), "reopened": plain(reopened)})
        return
    if grown:
        rate = grown.pop("rate")
        shown = ", ".join(
            f"{name.removesuffix('_bytes')} {value / 2**20:+.2f} MiB"
            for name, value in grown.items()
        )
        out.line(f"second half: {shown} a minute; rate {rate:.2f} of the first half's")
    spent = f"{reopened.cpu_seconds:.2f} s of processor time"
    out.line(f"opened after SIGKILL in {reopened.seconds:.2f} s, {spent}")


def _recover(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench.recover import run_recover

    rows = chosen.rows
    size, results = run_recover(folder, rows=rows, rounds=chosen.rounds)
    _show(out, "recover", {"rows": rows, "log_bytes": size}, "openings/s", results)


def _statements(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench import report
    from logweir.tools.bench.cells import worst_of
    from logweir.tools.bench.statements import run_statements

    figures = []
    peers: set[str] = set()
    for figure in run_statements(
        folder,
        rows=chosen.rows,
        rounds=chosen.rounds,
        durability=chosen.durability,
        cells=chosen.cells or "*",
    ):
        if out.as_json:
            out.json(figure.to_json())
        else:
            if figure.peer not in peers:
                for line in ("", f"next to {figure.peer}; {chosen.rounds} rounds", report.HEADER):
                    out.line(line)
            out.line(report.line_of(figure))
        peers.add(figure.peer)
        figures.append(figure)
        out.flush()
    worst = [(figure.cell.name, round(figure.ours.ratio, 3)) for figure in worst_of(figures)]
    if out.as_json:
        told = [{"cell": name, "ratio": ratio} for name, ratio in worst]
        out.json({"suite": "statements", "machine": report.machine(), "worst": told})
    elif worst:
        out.line("")
        out.line("worst cells, the worst last:")
        out.table(
            ("cell", "ratio"), [(name, f"{ratio:.2f}") for name, ratio in worst], right=("ratio",)
        )
    if chosen.plot is not None:
        report.plot(chosen.plot, figures)
    if chosen.page is not None:
        report.PAGE.write(chosen.page, report.section(figures))


def _join(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench.serve import run_join

    results = run_join(folder, rows=chosen.rows, rounds=chosen.rounds)
    _show(out, "join", {"rows": chosen.rows}, "rows/s", results)


def _relay(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench.serve import run_relay

    size, results = run_relay(folder, rows=chosen.rows, rounds=chosen.rounds)
    _show(out, "relay", {"rows": chosen.rows, "packet_bytes": size}, "bytes/s", results)


def _follow(out: Output, folder: Path, chosen: _Chosen) -> None:
    from logweir.tools.bench.following import RATE_ROWS
    from logweir.tools.bench.serve import run_follow

    for name, figures in run_follow(folder, durability=chosen.durability, rounds=chosen.rounds):
        if out.as_json:
            told = {"latency_ms": figures.latency_ms, "memory_bytes": figures.memory}
            out.json({"suite": "follow", "case": name, "rows_per_second": RATE_ROWS, **told})
            continue
        shown = ", ".join(f"{key} {value:.2f}" for key, value in figures.latency_ms.items())
        out.line(f"{name}, {RATE_ROWS} rows/s: {shown} (ms)")
        if figures.memory:
            shown = ", ".join(f"{key} {human_bytes(n)}" for key, n in figures.memory.items())
            out.line(f"{name}, memory: {shown}")


def _show(out: Output, suite: str, title: dict[str, Any], unit: str, results: list[Result]) -> None:
    if out.as_json:
        out.json(
            {"suite": suite, **title, "unit": unit, "cases": [one.to_json() for one in results]}
        )
        return
    told = ", ".join(
        f"{name.replace('_', ' ')} {human_bytes(value) if name.endswith('bytes') else value}"
        for name, value in title.items()
    )
    out.line(f"{suite}: {told}, {len(results[0].ratios)} rounds")
    out.table(
        ("case", unit, "ratio", "spread"),
        [
            (
                one.name,
                f"{one.rate:,.0f}" if one.rate >= 100 else f"{one.rate:,.2f}",
                f"{one.ratio:.2f}",
                f"{min(one.ratios):.2f} … {max(one.ratios):.2f}",
            )
            for one in results
        ],
        right=(unit, "ratio"),
    )
    out.line("")


_RUNS: Final[dict[Suite, Callable[[Output, Path, _Chosen], None]]] = {
    Suite.APPEND: _append,
    Suite.SCAN: _scan,
    Suite.RECOVER: _recover,
    Suite.TANK: _tank,
    Suite.STATEMENTS: _statements,
    Suite.JOIN: _join,
    Suite.RELAY: _relay,
    Suite.FOLLOW: _follow,
    Suite.MEMCACHED: _memcached,
    Suite.SYNAPSE: _synapse,
    Suite.SPARK: _spark,
    Suite.GREENSTACK: _greenstack,
    Suite.FAIR: _fair,
    Suite.SUSTAINED: _sustained,
}
"""What measures each of them, and shows what was measured."""
