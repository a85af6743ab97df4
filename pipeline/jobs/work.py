"""Running a job's tasks on Spark: one task per item, typed errors, progress.

A task that meets damage raises one of our errors. Spark makes text of it, and tries a task again
that failed, so the error travels as JSON in that text and is raised anew in the driver, as what it
was, with file and offset.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from logweir import errors
from logweir.errors import ConfigError, ErrorCode, LogweirError, WalError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Told = Callable[[int, int], None]
"""Called with how many tasks are done, and how many there are in the stages under way."""

Item = TypeVar("Item")
Batches = Iterator["pa.RecordBatch"]

_BEGIN: Final = "logweir-error:"
_MARK: Final = re.compile(re.escape(_BEGIN) + r"([A-Za-z0-9+/=]+):end")
_TRACED: Final = re.compile(
    r"logweir\.errors\.(?P<name>\w+): (?P<message>[^\n]*?)(?: Hint: (?P<hint>[^\n]*))?(?:\n|$)"
)
_IN_FILES: Final = ("WalError", "CorruptFile", "CorruptBlock", "ChainGap")
_IN_FILE: Final = re.compile(r"(?P<path>/[^:]*?)(?: at byte (?P<offset>\d+))?: (?P<message>.*)")
_POSITIONS: Final = re.compile(
    r"position (?P<wanted>.*) is not in the log, which holds (?P<oldest>.*) to (?P<newest>.*)\."
)
_SETTING: Final = re.compile(r"(?P<key>\S+) \((?P<origin>\w+)\): (?P<message>.*)")
_JAVA: Final = re.compile(r"\AAn error occurred while calling \S+\n: (?:[\w.$]+: )?")
_REFUSED: Final = re.compile(
    r"(?:\n: |Caused by: )(?:java\.n?io|org\.apache\.hadoop)\.[\w.$]+: (?P<said>[^\n]+)"
)
_ROOM: Final = "look at the place: is there room, and may it be written?"
_POLL_SECONDS: Final = 0.3


class TaskError(Exception):
    """An error of ours on its way from a task to the driver."""


def _fields(error: LogweirError) -> dict[str, Any]:
    """What the error's class must be called with; "message" first where it takes one."""
    own: dict[str, Any]
    if isinstance(error, errors.ChainGap):
        own = {"message": error.reason, "path": error.path}
        own |= {"expected": str(error.expected), "found": str(error.found)}
    elif isinstance(error, errors.WalError):
        own = {"message": error.reason, "path": error.path, "offset": error.offset}
    elif isinstance(error, errors.LimitExceeded):
        own = {"limit_name": error.limit_name, "limit": error.limit, "got": error.got}
    elif isinstance(error, errors.DecodeError):
        own = {"reason": error.reason, "offset": error.offset}
    elif isinstance(error, errors.ConfigError):
        text = error.message.partition("): ")[2]
        own = {"key": error.key, "message": text, "origin": error.origin}
    elif isinstance(error, errors.PositionUnavailable):
        own = {"wanted": str(error.wanted), "oldest": str(error.oldest)}
        own["newest"] = str(error.newest)
    elif isinstance(error, errors.RequestError):
        own = {"code": int(error.code), "message": error.message}
    else:
        own = {"message": error.message}
    return {**own, "hint": error.hint}


def carrying(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """A generator whose errors arrive at the driver as what they are."""

    @functools.wraps(function)
    def run(*given: Any) -> Iterator[Any]:
        try:
            yield from function(*given)
        except LogweirError as error:
            told = {"class": type(error).__name__, **_fields(error)}
            text = base64.b64encode(json.dumps(told, default=str).encode()).decode("ascii")
            raise TaskError(f"{error} {_BEGIN}{text}:end") from error

    return run


def _restored(told: dict[str, Any]) -> LogweirError:
    name = told.pop("class")
    kind = getattr(errors, name)
    if name == "RequestError":
        return errors.RequestError(ErrorCode(told.pop("code")), told.pop("message"), **told)
    if name in ("CorruptBlock", "CorruptFile", "WalError", "ChainGap"):
        return kind(told.pop("message"), **told)  # type: ignore[no-any-return]
    if name in ("LimitExceeded", "DecodeError", "ConfigError", "PositionUnavailable"):
        return kind(**told)  # type: ignore[no-any-return]
    return LogweirError(told["message"], hint=told["hint"])


@contextlib.contextmanager
def typed_errors(key: str = "", hint: str = "", *, where: str = "") -> Iterator[None]:
    """Raise an error of a task as what it was there; what a file system said to Spark, which writes
    to the place `where`, as `WalError`; any other failure of Spark as it is, or, where the body
    only hands Spark what the argument `key` names, as `ConfigError` with the first line of it."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        found = _MARK.search(text)
        told = _read(text) if found is None else json.loads(base64.b64decode(found[1]))
        if told is not None:
            raise _restored(told) from None
        if where and (refused := _REFUSED.search(text)):
            raise WalError(f"{refused['said'].rstrip('.')}.", path=where, hint=_ROOM) from None
        if not key:
            raise
        said = _JAVA.sub("", text).partition("\n")[0]
        raise ConfigError(key, f"Spark cannot use it: {said}", hint=hint) from None


def _read(text: str) -> dict[str, Any] | None:
    """What a traceback says of an error of ours, which the data source raised."""
    found = _TRACED.search(text)
    if found is None:
        return None
    name, message, hint = found["name"], found["message"].strip(), (found["hint"] or "").strip()
    if name == "PositionUnavailable" and (parts := _POSITIONS.fullmatch(message)):
        return {"class": name, **parts.groupdict(), "hint": hint}
    if name == "ConfigError" and (parts := _SETTING.fullmatch(message)):
        return {"class": name, **parts.groupdict(), "hint": hint}
    if name in _IN_FILES and (parts := _IN_FILE.fullmatch(message)):
        own = {"class": name, "path": parts["path"], "message": parts["message"], "hint": hint}
        if name == "ChainGap":
            return {**own, "expected": "", "found": ""}
        return {**own, "offset": int(parts["offset"]) if parts["offset"] else None}
    return {"class": "LogweirError", "message": message, "hint": hint}


def per_item(
    spark: SparkSession,
    items: Sequence[Item],
    work: Callable[[Item], Batches],
    ddl: Any,
) -> DataFrame:
    """A DataFrame of what `work` yields for each item, each in a task of its own.

    `work`: runs in the workers, where the package must be importable; `ddl`: columns of its
    batches, as text or a `StructType`.
    """
    every = list(items)

    def run(numbers: Iterable[pa.RecordBatch]) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from work(every[number])

    count = max(len(every), 1)
    return spark.range(0, len(every), 1, count).mapInArrow(carrying(run), ddl)


def mapped(frame: DataFrame, work: Callable[[Batches], Batches], ddl: str) -> DataFrame:
    """What `work` makes of the batches of a DataFrame whose columns have any names: Spark 4.3.0
    takes one that its own `mapInArrow` is given for an expression, in which a dot is no letter."""
    names = frame.columns

    def run(batches: Batches) -> Batches:
        return work(batch.rename_columns(names) for batch in batches)

    plain = frame.toDF(*(f"c{number}" for number in range(len(names))))
    return plain.mapInArrow(carrying(run), ddl)


def rows_under_way(spark: SparkSession) -> int:
    """How many rows the tasks of the stages under way have read, or handed on, so far, as far as
    Spark has heard of it; 0 where it does not say."""
    try:
        stages = spark.sparkContext.statusTracker().getActiveStageIds()
        store = spark.sparkContext._jsc.sc().statusStore()
        told = [store.lastStageAttempt(one) for one in stages]
        return sum(
            max(one.inputRecords(), one.shuffleReadRecords(), one.shuffleWriteRecords())
            for one in told
        )
    except Exception:  # what py4j raises is of many kinds; this is for a look only
        return 0


@contextlib.contextmanager
def watched(spark: SparkSession, told: Told | None) -> Iterator[None]:
    """Tell how many tasks are done while the body runs; where Spark does not say, nothing."""
    if told is None:
        yield
        return
    try:
        tracker = spark.sparkContext.statusTracker()
    except (AttributeError, RuntimeError, NotImplementedError):
        yield  # a Spark Connect client has none
        return
    over = threading.Event()

    def poll() -> None:
        while not over.wait(_POLL_SECONDS):
            infos = [tracker.getStageInfo(one) for one in tracker.getActiveStageIds()]
            known = [info for info in infos if info is not None]
            if known:
                done = sum(info.numCompletedTasks for info in known)
                told(done, sum(info.numTasks for info in known))

    thread = threading.Thread(target=poll, name="logweir-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
