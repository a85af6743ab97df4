"""The signals of commands that go on until they are stopped: what SIGHUP has them take up.

Files are read anew: the configuration, of which the level of the log counts, certificates of TLS,
and the log's own file is opened again. Whatever of it cannot be read is told in one line of the
log (`config.refused`), and then everything stays as it was.
"""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import typer

from logweir.errors import LogweirError
from logweir.tools.cli.configfile import declared, evaluate, key_of
from logweir.tools.cli.logoptions import reopen_log, set_level
from logweir.tools.cli.notify import notify, reloading
from logweir.tools.cli.output import Output
from logweir.wal.filesystem import explain
from logweir.wal.logs import get_logger
from logweir.wal.process import start_thread

_T = TypeVar("_T")

_log = get_logger("logweir.tools")


def _nothing() -> Callable[[], None]:
    return lambda: None


def reload_on_hangup(
    out: Output, context: typer.Context, prepare: Callable[[], Callable[[], None]] = _nothing
) -> None:
    """Have SIGHUP reload what the command of `context` was given, in the running event loop.
    `prepare`: reads what else there is, and returns what takes it up; raises `LogweirError`."""
    read = _reading(out, context, prepare)
    loop, one_by_one = asyncio.get_running_loop(), asyncio.Lock()
    tasks: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        async with one_by_one:  # the disk may be slow, and the loop serves meanwhile
            (await asyncio.wrap_future(_in_thread(read)))()
        if len(tasks) == 1:  # else another one has told that it reloads
            notify("READY=1")

    def begin() -> None:
        reloading()
        task = loop.create_task(reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    with suppress(NotImplementedError, AttributeError):  # Windows has neither
        loop.add_signal_handler(signal.SIGHUP, begin)


@dataclass(frozen=True, slots=True)
class Signalled:
    """What signals have asked for: an end, and, each True, to reload."""

    stop: threading.Event = field(default_factory=threading.Event)
    hangups: queue.SimpleQueue[bool] = field(default_factory=queue.SimpleQueue)


@contextmanager
def until_stopped() -> Iterator[Signalled]:
    """What is done within, be it to open or to close a store, goes on until it sees the event, as
    Ctrl-C and SIGTERM set it, and needs no event loop. SIGHUP waits for `serving`."""
    signalled = Signalled()
    end = signalled.stop.set
    hang_up = partial(signalled.hangups.put, True)  # may be done in a signal's handler
    with _handled({"SIGINT": end, "SIGTERM": end, "SIGHUP": hang_up}):
        yield signalled


@contextmanager
def serving(out: Output, context: typer.Context, signalled: Signalled) -> Iterator[None]:
    """Tell the manager that it goes on now, and at the end that it does not; meanwhile SIGHUP
    reloads as `reload_on_hangup` says."""
    read = _reading(out, context, _nothing)
    lock, ended = threading.Lock(), threading.Event()

    def work() -> None:
        while signalled.hangups.get():
            reloading()
            take_up = read()
            with lock:
                if ended.is_set():
                    return
                take_up()
                notify("READY=1")

    notify("READY=1")
    start_thread("logweir-reload", work)
    try:
        yield
    finally:
        signalled.hangups.put(False)
        with lock:  # it is not waited for: the disk may give nothing
            ended.set()
        notify("STOPPING=1")


def _in_thread(work: Callable[[], _T]) -> Future[_T]:
    """Do it in a thread for which no end of a loop or of the program waits, as it would for one of
    the loop's own: a disk that gives nothing is no reason not to stop."""
    done: Future[_T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    start_thread("logweir-reload", run)
    return done


@contextmanager
def _handled(handlers: Mapping[str, Callable[[], object]]) -> Iterator[None]:
    """Call them for the signals of these names; at the end what was there before is there again."""
    before = {}
    try:
        for name, handler in handlers.items():
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            with suppress(ValueError):  # not in the main thread
                if number is not None:
                    before[number] = signal.signal(number, lambda *_, handler=handler: handler())
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _reading(
    out: Output, context: typer.Context, prepare: Callable[[], Callable[[], None]]
) -> Callable[[], Callable[[], None]]:
    """What reads all files anew, and returns what takes that up: see `reload_on_hangup`."""
    level = context.params["log_level"]

    def read() -> Callable[[], None]:
        values = evaluate(context.command, context.params["config"]).params
        take_up = prepare()
        reopen_log()
        return partial(_or_told, partial(take_up_all, values, take_up), None)

    def take_up_all(values: Mapping[str, Any], take_up: Callable[[], None]) -> None:
        nonlocal level
        take_up()
        given = {
            name
            for name in declared(context.command)
            if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
        }
        if "log_level" not in given:
            level = values["log_level"]
            set_level(out, level)
        later = [
            key_of(name)
            for name in declared(context.command)
            if name not in given and name != "log_level" and values[name] != context.params[name]
        ]
        _log.info("config.reloaded", log_level=level, needs_restart=later)

    return partial(_or_told, read, _nothing())


def _or_told(work: Callable[[], _T], otherwise: _T) -> _T:
    """Do it, or tell what is wrong."""
    try:
        return work()
    except LogweirError as error:
        _log.error("config.refused", reason=str(error))
    except OSError as error:
        _log.error("config.refused", reason=str(explain(error, str(error.filename or ""))))
    except Exception as error:  # nobody else would hear of it, and the manager waits
        reason = f"internal error: {type(error).__name__}"
        _log.error("config.refused", reason=reason, exc_info=error)
    return otherwise
