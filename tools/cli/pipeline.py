"""`logweir pipeline`: jobs over archives of any size, on Spark."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from logweir.errors import ConfigError
from logweir.recovery.report import RecoveryReport
from logweir.tools.cli.chart import Bar, draw
from logweir.tools.cli.common import (
    DecimalsOption,
    existing,
    given_vclock,
    show_damage,
    utc_text,
)
from logweir.tools.cli.jobbar import (
    Batch,
    asked_to_stop,
    job_bar,
    share_done,
    spark_is_interrupted,
    thin,
)
from logweir.tools.cli.jobtopics import TOPICS
from logweir.tools.cli.output import Output, human_bytes
from logweir.wal.render import value_json, words
from logweir.wal.selection import parse_time
from logweir.wal.vclock import VClock, vclock_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Job = Literal["verify", "compact", "export", "cdc", "state", "diff", "stats", "import"]
Format = Literal["parquet", "json", "csv", "delta", "tank"]
Until = VClock | float | None

_POLL_SECONDS: Final = 1


@dataclass(frozen=True, slots=True)
class _Call:
    """What was asked for."""

    out: Output
    paths: list[str]
    to: str | None
    format: str
    what: str
    space: str | None
    until: Until
    options: dict[str, Any]
    scan: dict[str, str]

    @property
    def target(self) -> str:
        assert self.to is not None
        return self.to

    def draw(self, measures: Sequence[str], bars: Iterable[Bar], *, in_order: bool = False) -> None:
        """Make the picture, if one is wanted."""
        if self.options["plot"] is not None:
            draw(self.options["plot"], measures, bars, in_order=in_order)

    def file_name(self, path: str | Path) -> str:
        """A file's name, with its folder's where there are several."""
        return "/".join(Path(path).parts[-1 if len(self.paths) == 1 else -2 :])

    @property
    def wanted_space(self) -> str | int | None:
        return int(self.space) if self.space and self.space.isdecimal() else self.space


def command(
    out: Output,
    context: typer.Context,
    job: Annotated[Job, typer.Argument(metavar="JOB", help="What to do.")],
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Folders or files; local or URLs.")
    ],
    to: Annotated[
        str | None, typer.Option("--to", metavar="NEW", help="The folder to write.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where Spark runs: local[4], spark://…, yarn, k8s://…"),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of Spark; repeatable."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="export of changes, cdc, stats: an option of the scan, as `time_from` or "
            "`max_rows_per_batch`; repeatable.",
        ),
    ] = None,
    format: Annotated[Format, typer.Option(help="export, cdc, import: of the files.")] = "parquet",
    what: Annotated[
        Literal["changes", "state"], typer.Option(help="export: rows of the log, or what is left.")
    ] = "changes",
    space: Annotated[
        str | None, typer.Option(help="One space only, its fields as columns; import: into it.")
    ] = None,
    at_vclock: Annotated[
        str | None, typer.Option(metavar="VCLOCK", help="The state at this vclock.")
    ] = None,
    at_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="The state at this time (ISO 8601, UTC).")
    ] = None,
    level: Annotated[
        Literal["rows", "unpack", "crc"],
        typer.Option(help="verify: everything; or checksums and endings; or these and unpacking."),
    ] = "rows",
    snapshot: Annotated[
        str | None, typer.Option(metavar="NAME", help="compact, state: the snapshot to start from.")
    ] = None,
    parts: Annotated[
        int | None, typer.Option(min=1, help="compact, state: parts of the result.")
    ] = None,
    integers: Annotated[
        Literal["decimal", "long"], typer.Option(help="Columns of integers: exact, or BIGINT.")
    ] = "decimal",
    decimals: DecimalsOption = "string",
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="cdc: the folder that remembers how far it is."),
    ] = None,
    every: Annotated[
        float | None, typer.Option(help="cdc: go on, a batch every so many seconds.")
    ] = None,
    mirror: Annotated[
        bool,
        typer.Option(
            "--mirror", help="cdc: a Delta table of what --space has, one row per key, by MERGE."
        ),
    ] = False,
    primary: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="import: a field of a new space's key; repeatable."),
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="NAME:TYPE",
            help="import: a new space's field of a type that its column does not tell, as map; "
            "repeatable.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Not of import: draw what was counted, at the end: a .png, .svg or .pdf.",
        ),
    ] = None,
) -> int:
    """Run a job over an archive on Spark: on this machine, or where --master says.

    JOB is verify, compact, export, cdc, state, diff, stats or import; logweir pipeline JOB --help
    tells what it does and takes.
    """
    if at_vclock is not None and at_time is not None:
        raise ConfigError("--at-time", "cannot be given together with --at-vclock.")
    call = _Call(
        out=out,
        paths=paths,
        to=to,
        format="delta" if mirror else format,
        what=what,
        space=space,
        until=_until(at_vclock, at_time),
        options={
            "level": level,
            "snapshot": snapshot,
            "parts": parts,
            "numbers": {"integers": integers, "decimals": decimals},
            "checkpoint": checkpoint,
            "every": every,
            "mirror": mirror,
            "primary": primary,
            "types": _pairs("--field", fields, ":"),
            "plot": plot,
        },
        scan=_pairs("--option", option),
    )
    settings = _pairs("--conf", conf)
    _refuse_others(context, job)
    _check(job, call)
    if job == "import" and format == "tank":
        return _import_tank(call)
    with _session(master, settings) as spark:
        return _JOBS[job](spark, call)


def _refuse_others(context: typer.Context, job: Job) -> None:
    """Refuse an option that is another job's, which would have no effect."""
    every = set().union(*(topic.options for topic in TOPICS.values()))
    for one in context.command.params:
        if one.name not in every or one.name in TOPICS[job].options:
            continue
        source = context.get_parameter_source(one.name or "")
        if source is not None and source.name != "DEFAULT":
            takers = ", ".join(name for name, topic in TOPICS.items() if one.name in topic.options)
            raise ConfigError(one.opts[0], f"is not for {job}", hint=f"it is for {takers}")


def _check(job: Job, call: _Call) -> None:
    """Refuse what cannot be before Spark is started."""
    from logweir.pipeline.options import check_decimals

    if job in ("compact", "export", "cdc", "import") and call.to is None:
        raise ConfigError("--to", "is missing", hint="name the folder to write")
    if job == "cdc" and call.options["checkpoint"] is None:
        raise ConfigError("--checkpoint", "is missing", hint="name a folder that stays")
    if job == "import" and call.format != "tank" and call.space is None:
        raise ConfigError("--space", "is missing", hint="name the space to fill")
    wanted = {"cdc": 1, "diff": 2}.get(job)
    if wanted is not None and len(call.paths) != wanted:
        raise ConfigError("PATH", f"this job takes {wanted}, not {len(call.paths)}")
    if call.options["mirror"] and call.space is None:
        raise ConfigError("--mirror", "is of one space", hint="name it with --space")
    if call.scan:
        _check_scan(job, call)
    check_decimals("--decimals", call.options["numbers"]["decimals"])
    for path in () if job == "import" else call.paths:  # those of import may be patterns
        if "://" not in path:
            existing(Path(path))
    if call.options["plot"] is not None:
        from logweir.tools.bench.report import check_plot

        check_plot(call.options["plot"])
    if job in ("export", "cdc") and call.format == "tank":
        raise ConfigError("--format", "tank is for import")
    if job in ("export", "cdc") and call.format == "delta":
        from logweir.pipeline.jobs.delta import delta

        delta()


def _pairs(name: str, given: list[str] | None, mark: str = "=") -> dict[str, str]:
    """Options of the form KEY=VALUE, or with another mark. Raises `ConfigError`."""
    found = {}
    for one in given or ():
        key, is_pair, value = one.partition(mark)
        if not is_pair or not key:
            raise ConfigError(name, f"{one!r} is not KEY{mark}VALUE")
        if name == "--conf" and not key.startswith("spark."):
            hint = "they begin with spark."
            raise ConfigError(name, f"{key!r} is no setting of Spark", hint=hint)
        found[key] = value
    return found


def _check_scan(job: Job, call: _Call) -> None:
    from logweir.pipeline.options import ScanOptions

    if job == "export" and call.what == "state":
        raise ConfigError("--option", "is for an export of changes, not of the state")
    if taken := {"path", "paths", "url", "space", "integers", "decimals"} & call.scan.keys():
        raise ConfigError("--option", f"{min(taken)} is given by the command's own arguments")
    ScanOptions.parse({"path": call.paths[0], **call.scan})


def _until(vclock: str | None, time: str | None) -> Until:
    if time is not None:
        return parse_time(time, origin="--at-time")
    return given_vclock("--at-vclock", vclock)


@contextlib.contextmanager
def _session(master: str | None, settings: dict[str, str]) -> Iterator[SparkSession]:
    from logweir.pipeline import javastart, session

    often = {"spark.executor.heartbeatInterval": "1s", **settings}  # which rows are counted by
    spark = session(master, app_name="logweir pipeline", **often)
    with contextlib.suppress(AttributeError):
        spark.sparkContext.setLogLevel("OFF")
    spark_is_interrupted()
    try:
        yield spark
        javastart.keep_classes(getattr(spark, "_jvm", None))
    finally:
        spark.stop()


# --- jobs -----------------------------------------------------------------------------------------


def _verify(spark: SparkSession, call: _Call) -> int:
    from logweir.pipeline.jobs import checks

    if (level := call.options["level"]) != "rows":
        with job_bar(call.out, "Checking") as told:
            found = [checks.verify(spark, path, level=level, told=told) for path in call.paths]
        files = tuple(file for one in found for file in one.files)
        call.draw(
            ("blocks", "bytes"),
            [Bar(call.file_name(f.file), _judged(f.ok), (f.blocks, f.size)) for f in files],
            in_order=True,
        )
        if call.out.as_json:
            call.out.json(checks.QuickReport(files).to_json())
        else:
            columns = ("file", "size", "blocks", "end", "bad at", "reason")
            rows = [
                (Path(f.file).name, human_bytes(f.size), f.blocks, f.end, f.offset, f.reason)
                for f in files
            ]
            call.out.table(columns, rows, right=("size", "blocks", "bad at"))
        return 0 if checks.QuickReport(files).ok else 3
    reports: list[RecoveryReport] = []
    with job_bar(call.out, "Checking") as told:
        reports += [checks.verify(spark, path, told=told) for path in call.paths]
    damaged = {one.file for report in reports for one in report.damage}
    seen = [one for report in reports for one in report.files]
    judged = [_judged(str(one.path) not in damaged) for one in seen]
    bars = [
        Bar(call.file_name(one.path), part, (one.rows, one.size))
        for one, part in zip(seen, judged, strict=True)
    ]
    call.draw(("rows", "bytes"), bars, in_order=True)
    for report in reports:
        if call.out.as_json:
            call.out.json(report.to_json())
            continue
        call.out.table(
            ("file", "size", "blocks", "rows", "from", "up to", "end"),
            [
                (
                    *(one.path.name, human_bytes(one.size), one.blocks, one.rows),
                    *(one.first_vclock, one.last_vclock, one.end.value if one.end else ""),
                )
                for one in report.files
            ],
            right=("size", "blocks", "rows"),
        )
        show_damage(call.out, report.damage)
        call.out.line(
            "everything is whole" if report.ok else words(len(report.damage), "damaged place")
        )
    return 0 if all(report.ok for report in reports) else 3


def _judged(is_whole: bool) -> str:
    return "whole" if is_whole else "damaged"


def _compact(spark: SparkSession, call: _Call) -> int:
    from logweir import pipeline

    with job_bar(call.out, "Compacting", spark) as told:
        done = pipeline.compact(
            spark,
            call.paths,
            call.target,
            until=call.until,
            snapshot=call.options["snapshot"],
            parts=call.options["parts"],
            told=told,
        )
    counts = {"rows read": done.read_rows, "rows of the snapshot": done.rows}
    call.draw(("rows",), [Bar(name, "", (count,)) for name, count in counts.items()], in_order=True)
    if call.out.as_json:
        call.out.json(
            {
                "snapshot": str(done.path),
                "vclock": vclock_json(done.vclock),
                "rows": done.rows,
                "read_rows": done.read_rows,
                "size": done.size,
                "parts": done.parts,
            }
        )
        return 0
    call.out.line(f"{done.path} holds the state at {done.vclock}")
    size = human_bytes(done.size)
    call.out.message(f"{done.rows} rows in {size}, made of {done.read_rows} by {done.parts} tasks")
    return 0


def _export(spark: SparkSession, call: _Call) -> int:
    from logweir import pipeline

    with job_bar(call.out, "Exporting", spark) as told:
        done = pipeline.export(
            spark,
            call.paths,
            call.target,
            format=call.format,
            what=call.what,
            space=call.wanted_space,
            until=call.until,
            **call.options["numbers"],
            told=told,
            **call.scan,
        )
    call.draw(("bytes",), [Bar(n, "", (size,)) for n, size in done.sizes.items()])
    told_of = {"path": done.path, "format": done.format, "files": done.files, "size": done.size}
    if call.out.as_json:
        call.out.json(told_of)
    else:
        call.out.line(f"{done.path}: {done.files} files of {done.format}, {human_bytes(done.size)}")
    return 0


def _cdc(spark: SparkSession, call: _Call) -> int:
    from logweir import pipeline
    from logweir.pipeline.jobs.work import typed_errors
    from logweir.pipeline.options import shown

    with typed_errors(where=shown(call.target)):
        query = pipeline.cdc(
            spark,
            call.paths[0],
            call.target,
            call.options["checkpoint"],
            format=call.format,
            space=call.wanted_space,
            **call.options["numbers"],
            mirror=call.options["mirror"],
            every_seconds=call.options["every"],
            **call.scan,
        )
        seen: dict[int, Batch] = {}
        first: list[Any] = []
        is_over = False
        with (
            asked_to_stop(is_caught=call.options["every"] is not None) as asked,
            call.out.progress("Following", 100) as advance,
        ):
            while not is_over:  # Spark keeps the last hundred
                is_over = bool(query.awaitTermination(_POLL_SECONDS))
                if asked.is_set():
                    query.stop()
                    is_over = True
                recent = query.recentProgress
                seen |= {one.batchId: Batch(one.timestamp, one.numInputRows) for one in recent}
                thin(seen)
                first = first or recent[:1]
                if recent:
                    advance(
                        share_done(first[0], recent[-1]), sum(one.rows for one in seen.values())
                    )
    rows = sum(one.rows for one in seen.values())
    count = sum(one.batches for one in seen.values())
    call.draw(
        ("rows",),
        [Bar(f"{number}, {one.time[:19]}", "", (one.rows,)) for number, one in seen.items()],
        in_order=True,
    )
    to = shown(call.target)
    told = {"to": to, "batches": count, "rows": rows}
    if call.out.as_json:
        call.out.json(told)
        return 0
    batches = f"{count} {'batch' if count == 1 else 'batches'}"
    if call.options["mirror"]:  # the copy that it begins with is in none of the batches
        done = f"as the space is; {words(rows, 'row')} of the log merged in {batches}"
    else:
        done = f"{words(rows, 'row')} in {batches}"
    call.out.line(f"{to}: {done}")
    return 0


def _state(spark: SparkSession, call: _Call) -> int:
    from logweir import pipeline
    from logweir.pipeline.jobs.work import typed_errors, watched

    given = {name: call.options[name] for name in ("snapshot", "parts")}
    if call.wanted_space is not None:
        given["spaces"] = [call.wanted_space]
    with job_bar(call.out, "Folding", spark) as told, watched(spark, told), typed_errors():
        rows = pipeline.state(spark, call.paths, until=call.until, **given)
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for row in rows.orderBy("space_id", "key").toLocalIterator():
            counts[str(row["space"])] += 1
            sizes[str(row["space"])] += len(row["tuple"])
            name = call.out.json_text(row["space"])
            data = value_json(bytes(row["tuple"]))
            call.out.line(f'{{"space_id": {row["space_id"]}, "space": {name}, "tuple": {data}}}')
    call.draw(("tuples", "bytes"), [Bar(one, "", (counts[one], sizes[one])) for one in counts])
    if not call.out.as_json:
        call.out.message(f"{words(counts.total(), 'tuple')} of {words(len(counts), 'space')}")
    return 0


def _diff(spark: SparkSession, call: _Call) -> int:
    from logweir import pipeline
    from logweir.pipeline.jobs.work import typed_errors, watched

    first, second = call.paths
    counts: Counter[tuple[str, str]] = Counter()
    with job_bar(call.out, "Comparing", spark) as told, watched(spark, told), typed_errors():
        rows = pipeline.diff(spark, first, second, first_until=call.until)
        for row in rows.toLocalIterator():
            counts[str(row["space"]), row["change"]] += 1
            parts = [f'"space_id": {row["space_id"]}']
            parts.append(f'"space": {call.out.json_text(row["space"])}')
            parts.append(f'"change": "{row["change"]}"')
            for name in ("before", "after"):
                if row[name] is not None:
                    parts.append(f'"{name}": {value_json(bytes(row[name]))}')
            call.out.line("{" + ", ".join(parts) + "}")
    call.draw(("tuples",), [Bar(*place, (count,)) for place, count in counts.items()])
    if not call.out.as_json:
        call.out.message(f"{words(counts.total(), 'tuple')} to change")
    return 1 if counts else 0


def _stats(spark: SparkSession, call: _Call) -> int:
    from logweir import pipeline
    from logweir.pipeline.jobs.work import typed_errors, watched

    with job_bar(call.out, "Counting") as told, watched(spark, told), typed_errors():
        rows = [row.asDict() for row in pipeline.stats(spark, *call.paths, **call.scan).collect()]
    call.draw(
        ("rows", "bytes of keys, tuples and operations"),
        [Bar(_place(row), row["type_name"], (row["rows"], row["bytes"])) for row in rows],
    )
    if call.out.as_json:
        for row in rows:
            call.out.json(row)
        return 0
    columns = ("kind", "space_id", "type_name", "rows", "bytes", "first_lsn", "last_lsn")
    shown = [
        (*(row[name] for name in columns), utc_text(row["first_ts"]), utc_text(row["last_ts"]))
        for row in rows
    ]
    numbers = ("space_id", "rows", "bytes", "first_lsn", "last_lsn")
    call.out.table((*columns, "first", "last"), shown, right=numbers)
    return 0


def _place(row: dict[str, Any]) -> str:
    space = "no space" if row["space_id"] is None else f"space {row['space_id']}"
    return f"{space}, {row['kind']}"


def _import(spark: SparkSession, call: _Call) -> int:
    from logweir import pipeline

    with job_bar(call.out, "Importing", spark) as told:
        done = pipeline.import_rows(
            spark,
            call.paths,
            call.target,
            call.space or "",
            format=call.format,
            primary=call.options["primary"],
            types=call.options["types"],
            told=told,
        )
    if call.out.as_json:
        call.out.json(
            {
                "to": str(done.directory),
                "space": done.space,
                "rows": done.rows,
                "created": done.created,
            }
        )
    else:
        call.out.line(f"{done.directory}: {done.rows} rows into {done.space}")
    return 0


def _import_tank(call: _Call) -> int:
    """A broker's folder is read by one process: its order is that of its files."""
    from logweir.pipeline.options import target_folder
    from logweir.tools.cli.topicimport import import_topics

    target = target_folder("--to", call.target)
    code = 0
    for path in call.paths:
        code = max(code, import_topics(call.out, Path(path), target))
    return code


_JOBS: dict[str, Callable[[Any, _Call], int]] = {
    "verify": _verify,
    "compact": _compact,
    "export": _export,
    "cdc": _cdc,
    "state": _state,
    "diff": _diff,
    "stats": _stats,
    "import": _import,
}
