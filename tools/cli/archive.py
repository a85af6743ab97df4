"""`logweir archive`: a continuous copy of a store at another place, and what can be told of it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logweir.errors import ConfigError, LogweirError
from logweir.tools.cli.common import existing, utc_text
from logweir.tools.cli.configfile import ConfigOption
from logweir.tools.cli.logoptions import LogFile, LogFormat, LogLevel, start_log
from logweir.tools.cli.output import Output, human_bytes
from logweir.tools.cli.reload import serving, until_stopped
from logweir.wal.logs import get_logger
from logweir.wal.render import words
from logweir.wal.vclock import vclock_json

if TYPE_CHECKING:  # the store, which `--help` and a wrong option do without
    from logweir.archive.archiver import Archiver, Progress

_ACTIONS = ("drill", "status")

_log = get_logger("logweir.archive")


def command(
    out: Output,
    context: typer.Context,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="The store's folder; or drill, or status.")
    ],
    where: Annotated[
        str, typer.Argument(metavar="[URL]", help="drill, status: the archive, a folder or URL.")
    ] = "",
    config: ConfigOption = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="PLACE", help="Where it is archived: a folder, s3://…, …"),
    ] = "",
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            allow_from_autoenv=False,
            help="Go on until it is stopped (Ctrl-C, SIGTERM).",
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.05, help="--follow: seconds from one look to the next.")
    ] = 1.0,
    keep_for: Annotated[
        float | None,
        typer.Option(
            "--keep-for",
            min=0,
            metavar="SECONDS",
            help="Remove what no restore point of the last so many seconds needs.",
        ),
    ] = None,
    keep_snapshots: Annotated[
        int | None,
        typer.Option(
            "--keep-snapshots",
            min=1,
            metavar="N",
            help="Remove what neither the newest N snapshots nor a point behind them needs.",
        ),
    ] = None,
    hold_bytes: Annotated[
        int,
        typer.Option(
            min=0, help="Bytes of closed logs that the store keeps for it; 0: without bound."
        ),
    ] = 0,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="drill: compare with the store in this folder; status: how far it is behind it.",
        ),
    ] = None,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    log_file: LogFile = None,
) -> int:
    """Archive a store: its closed logs, the open one's tail and snapshots, each verified.

    The store may be in use. Once, or with --follow again and again. --keep-for and --keep-snapshots
    together keep what either keeps; without both everything stays. `logweir restore --from URL`
    restores any transaction. With --follow, what goes wrong is logged, and SIGHUP has it read the
    log's level anew.

    logweir archive drill URL restores the newest state into a temporary folder, opens it, and with
    --against compares every tuple; exit code 3 if anything is damaged or differs. logweir archive
    status URL tells what can be restored; exit code 3 if objects are damaged or missing, 1 if
    there is no archive.
    """
    del config  # its values are those of the other options
    if where:
        if directory not in _ACTIONS:
            hint = "write logweir archive DIR --to PLACE, archive drill URL or archive status URL"
            raise ConfigError("DIR", f"{directory!r} is neither drill nor status", hint=hint)
        return (_drill if directory == "drill" else _status)(out, where, against)
    if not to:
        raise ConfigError("--to", "it is not said where to archive", hint="give --to PLACE")
    from logweir.archive.archiver import Archiver
    from logweir.archive.catalog import Keep
    from logweir.archive.objects import open_objects

    damaged: list[LogweirError] = []

    def tell(error: LogweirError) -> None:
        damaged.append(error)
        if follow:
            _log.error("archive.damaged", reason=str(error))
        else:
            out.warning(str(error))

    if follow:
        start_log(out, log_level, log_format, log_file)
    keep = Keep(keep_for, keep_snapshots)
    source = existing(Path(directory))
    archiver = Archiver(source, open_objects(to), keep=keep, hold_bytes=hold_bytes, tell=tell)
    if follow:
        with until_stopped() as signalled, archiver, serving(out, context, signalled):
            _follow(out, archiver, every, signalled.stop)
    else:
        with archiver:
            _tell(out, archiver.look())
    return 3 if damaged else 0


def _follow(out: Output, archiver: Archiver, every: float, stop: threading.Event) -> None:
    """Until somebody stops it; what is put is told."""
    place = archiver.catalog.objects.location
    told = ""
    seen = (-1, -1)

    def report(progress: Progress) -> None:
        nonlocal told, seen
        if progress.error and progress.error != told:
            _log.warning("archive.failed", place=place, reason=progress.error)
        told = progress.error
        if (progress.objects, progress.errors) != seen:
            seen = progress.objects, progress.errors
            if out.as_json:
                _tell(out, progress)
                out.flush()

    archiver.follow(every, stop, report)
    if not out.as_json:
        _tell(out, archiver.progress)


def _tell(out: Output, progress: Progress) -> None:
    if out.as_json:
        out.json(progress.to_json())
        return
    count = words(progress.objects, "object")
    out.line(f"archived up to {progress.vclock}: {count}, {human_bytes(progress.bytes)} put")
    if progress.removed:
        out.message(f"{words(progress.removed, 'object')} removed that nothing kept needs")


def _drill(out: Output, where: str, against: Path | None) -> int:
    from logweir.archive.fetch import drill

    began = time.monotonic()
    source = None if against is None else existing(against)
    found = drill(where, source, tell=out.warning)
    seconds = time.monotonic() - began
    if out.as_json:
        out.json(
            {
                "ok": found.ok,
                "vclock": vclock_json(found.vclock),
                "spaces": found.spaces,
                "tuples": found.tuples,
                "differing": found.differing,
                "unusable": list(found.passed),
                "seconds": seconds,
            }
        )
        return 0 if found.ok else 3
    out.line(
        f"restored and opened: {words(found.tuples, 'tuple')} of {words(found.spaces, 'space')} "
        f"at {found.vclock}, in {seconds:.1f} s"
    )
    for space, count in (found.differing or {}).items():
        out.line(f"{words(count, 'tuple')} of {space} differ from {against}")
    if found.differing == {}:
        out.line(f"every tuple is as in {against} at that position")
    return 0 if found.ok else 3


def _status(out: Output, where: str, against: Path | None) -> int:
    from logweir.archive.catalog import Catalog
    from logweir.archive.lag import lag_of
    from logweir.archive.objects import open_objects

    catalog = Catalog.load(open_objects(where))
    missing = [f"object {one.name} is missing" for one in catalog.missing()]
    lag = None if against is None else lag_of(existing(against), catalog)
    points = catalog.points()
    bad = [*catalog.damaged, *missing]
    kinds = [one.kind for one in catalog.entries.values()]
    told: dict[str, Any] = {
        "location": catalog.objects.location,
        "instance": None if catalog.instance is None else str(catalog.instance),
        "points": [
            {
                "from": vclock_json(one.start),
                "to": vclock_json(one.vclock),
                "first_time": utc_text(one.first_time),
                "last_time": utc_text(one.last_time),
            }
            for one in points
        ],
        "snapshots": kinds.count("snapshot"),
        "logs": kinds.count("log"),
        "tails": kinds.count("tail"),
        "bytes": sum(one.size for one in catalog.entries.values()),
        "damage": bad,
        "lag": None if lag is None else lag.to_json(),
    }
    if out.as_json:
        out.json(told)
    else:
        for one in points:
            times = " to ".join(filter(None, map(utc_text, (one.first_time, one.last_time))))
            out.line(f"restores {one.start} to {one.vclock}" + (f", {times}" if times else ""))
        snapshots, logs, tails = (
            words(int(told[f"{name}s"]), name) for name in ("snapshot", "log", "tail")
        )
        out.line(f"{snapshots}, {logs}, {tails}: {human_bytes(told['bytes'])}")
        for text in bad:
            out.warning(text)
        if lag is not None:
            text = f"{words(lag.rows, 'row')}, {human_bytes(lag.bytes)}"
            out.line(f"behind {against}: {text}, {lag.seconds:.1f} s")
    if bad:
        return 3
    return 0 if points else 1
