"""`open`: the way into the store of a folder."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from logweir.errors import ConfigError
from logweir.limits import (
    COMPRESS_THRESHOLD_BYTES,
    TOPIC_TUPLE_BYTES,
    TUPLE_BYTES,
    WAL_MAX_SIZE_BYTES,
    WRITE_AHEAD_BYTES,
)
from logweir.store.inner import Inner
from logweir.store.log import Durability, Log
from logweir.store.recover.checkpoint import CheckpointOptions
from logweir.store.recover.opening import open_folder
from logweir.store.state.state import typed
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.writer import WriterOptions


def open(
    path: str | os.PathLike[str],
    durability: Durability = "fsync",
    create: bool = True,
    *,
    force_recovery: bool = False,
    wal_max_size: int = WAL_MAX_SIZE_BYTES,
    compress_threshold: int | None = COMPRESS_THRESHOLD_BYTES,
    compress_level: int = 1,
    write_ahead: int = WRITE_AHEAD_BYTES,
    tuple_bytes: int = TUPLE_BYTES,
    checkpoint_count: int = 2,
    checkpoint_interval: float = 3600.0,
    checkpoint_wal_threshold: int = 0,
    filesystem: FileSystem = OS,
    clock: Callable[[], float] = time.time,
) -> Log:
    """Open the store in a folder, ours or one that a Tarantool 2.6 left; recover it first.

    `path`: the folder; `create`: make a store if there is none; `durability`: what is on
    stable storage when a change returns: "fsync" it is, "write" the system has it (a power cut
    may lose the newest), "none" nothing is logged until a snapshot (a crash may lose all since);
    `force_recovery`: open although rows are lost (`Log.report` says which);
    `wal_max_size`: a log file is closed from this size on, in bytes; `compress_threshold`: zstd
    for blocks from this size on, in bytes, None never; `compress_level`: 1 … 22;
    `write_ahead`: most zeros that the log has behind its last block, in bytes, 0 none;
    `tuple_bytes`: what one new tuple may take, from 1 MiB
    to `limits.TOPIC_TUPLE_BYTES`;
    `checkpoint_count`: snapshots kept; `checkpoint_interval`: seconds between two, 0 never;
    `checkpoint_wal_threshold`: bytes of log between two, 0 for any; `filesystem`, `clock`:
    replaced by tests.

    Raises `RecoveryRefused` if opening would lose rows, `DirectoryLocked` if another
    process has the folder, `ConfigError` for an option, and other `WalError`.
    """
    _check_path(path)
    modes = get_args(Durability)
    if durability not in modes:
        raise ConfigError(
            "durability", f"{durability!r} is not one of {', '.join(modes)}", origin="argument"
        )
    _check_numbers(
        wal_max_size=wal_max_size,
        compress_threshold=compress_threshold,
        compress_level=compress_level,
        write_ahead=write_ahead,
        tuple_bytes=tuple_bytes,
        checkpoint_count=checkpoint_count,
        checkpoint_wal_threshold=checkpoint_wal_threshold,
    )
    _check_tuple_bytes(tuple_bytes)
    if not isinstance(checkpoint_interval, int | float) or math.isnan(checkpoint_interval):
        raise ConfigError("checkpoint_interval", f"{checkpoint_interval!r} is not a number")
    checkpoints = CheckpointOptions(
        count=checkpoint_count,
        interval_seconds=checkpoint_interval,
        log_bytes=checkpoint_wal_threshold,
    )
    options = WriterOptions(
        is_synced=durability == "fsync",
        max_bytes=wal_max_size,
        compress_threshold_bytes=compress_threshold,
        compress_level=compress_level,
        write_ahead_bytes=write_ahead,
    )
    opened = None
    try:  # no stack that gives it up: an interrupt could come where that is told not to
        with typed(Path(path)):
            opened = open_folder(
                Path(path),
                create=create,
                force_recovery=force_recovery,
                options=options,
                filesystem=filesystem,
                clock=clock,
            )
            opened.schema.limit_tuples(tuple_bytes)
            inner = Inner(opened, durability=durability, checkpoints=checkpoints, clock=clock)
            log = Log(inner, opened.report)
            if opened.needs_snapshot:
                log.snapshot()
        return log
    except BaseException:
        if opened is not None:
            opened.release()
        raise


def _check_path(path: object) -> None:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(
            "path", f"{path!r} names no folder; give the path of one", origin="argument"
        )


def _check_tuple_bytes(tuple_bytes: int) -> None:
    if not TUPLE_BYTES <= tuple_bytes <= TOPIC_TUPLE_BYTES:
        raise ConfigError(
            "tuple_bytes",
            f"{tuple_bytes} is not from {TUPLE_BYTES} to {TOPIC_TUPLE_BYTES}",
            hint="give bytes; the default is 1 MiB",
        )


def _check_numbers(**options: int | None) -> None:
    for key, value in options.items():
        if value is None and key == "compress_threshold":
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(key, f"{value!r} is not a whole number")
        if value < 0:
            raise ConfigError(key, f"{value} is below 0")
