"""A function called once for each transaction of a folder or server: `logweir capture`.

docs/capture.md says what is guaranteed where the place is kept in a store (`StoreKept`), and where
in a file (`TokenFile`). Nothing is skipped: a function that raises ends it with `CallbackFailed`,
and the next start begins with that transaction.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from logweir.errors import CallbackFailed, ConfigError, Unreachable
from logweir.replication.capture.following import Where
from logweir.replication.capture.images import Images
from logweir.replication.capture.stream import Capture, Captured, Spaces
from logweir.replication.stream import positions
from logweir.replication.urls import Url
from logweir.store import Log, Transaction
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import OS, FileSystem, explain
from logweir.wal.mp import Value
from logweir.wal.newfile import replace_file

Function = Callable[..., object]

_SOURCE: Final = "capture"
_TOKEN_BYTES: Final = 4096
_RETRY_SECONDS: Final = 1.0


class Kept:
    """Where the place of a capture is kept: see the subclasses."""

    def token(self) -> str | None:
        """The place, None before the first. Raises `WalError`."""
        raise NotImplementedError

    def begin(self, where: Where, spaces: Spaces, key: Value) -> Capture:
        """What goes on at the place. The arguments are those of `capture`, which says what is
        raised."""
        return Capture(where, self.token(), spaces, key)

    def take(self, captured: Captured, call: Callable[..., None]) -> None:
        """Let `call` deal with a transaction, and keep the place after it."""
        raise NotImplementedError


class StoreKept(Kept):
    """In a store, with what the function does there. `name`: of the capture; `images`: whether
    changes are given with the tuples before and after them, see `images`.

    The function is given the transaction from upstream and one of the store.
    """

    def __init__(self, log: Log, name: str, *, images: bool = False) -> None:
        self._log = log
        self._name = name
        self._images = Images(log, name) if images else None
        self._capture: Capture | None = None
        positions.make_spaces(log)

    def token(self) -> str | None:
        found = positions.position(self._log, _SOURCE, self._name, "")
        if found is None:
            return None
        if found["images"] != (self._images is not None):
            text = (
                f"capture {self._name!r} was begun {'with' if found['images'] else 'without'} them"
            )
            raise ConfigError("images", text, hint="go on so, or begin under another name")
        return str(found["token"])

    def begin(self, where: Where, spaces: Spaces, key: Value) -> Capture:
        """See `Kept`. With images it copies them first, and begins after that copy."""
        if self._images is not None and self.token() is None:
            token = self._images.fill(Capture(where, None, spaces, key))
            failpoint("capture.after_fill")
            with self._log.transaction() as tx:
                self._put(tx, str(token))
        self._capture = super().begin(where, spaces, key)
        return self._capture

    def _put(self, tx: Transaction, token: str) -> None:
        tokens = {"token": token, "images": self._images is not None}
        time_ms = int(self._log.inner.now() * 1000)
        positions.put_position(tx, _SOURCE, self._name, "", tokens, time_ms)

    def take(self, captured: Captured, call: Callable[..., None]) -> None:
        """See `Kept`. Raises what `Log.transaction` raises."""
        with self._log.transaction() as tx:
            if self._images is not None and self._capture is not None:
                captured = self._images.take(tx, captured, self._capture)
            call(captured, tx)
            self._put(tx, captured.token)
            failpoint("capture.before_commit")
        failpoint("capture.after_commit")


class TokenFile(Kept):
    """In a file, which is replaced durably. The function is given the transaction alone."""

    def __init__(self, path: Path, filesystem: FileSystem = OS) -> None:
        self._path = path
        self._filesystem = filesystem

    def token(self) -> str | None:
        try:
            with self._path.open("rb") as file:
                return file.read(_TOKEN_BYTES).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, str(self._path)) from error

    def take(self, captured: Captured, call: Callable[..., None]) -> None:
        """See `Kept`. Raises `WalError`."""
        call(captured)
        failpoint("capture.before_commit")
        try:
            replace_file(self._filesystem, self._path, captured.token.encode() + b"\n")
        except OSError as error:
            raise explain(error, str(self._path)) from error
        failpoint("capture.after_commit")


def run(
    where: str | os.PathLike[str] | Url,
    kept: Kept,
    function: Function,
    *,
    spaces: Spaces = (),
    key: Value = None,
    once: bool = False,
    stop: threading.Event | None = None,
    waiting: Callable[[Unreachable], None] | None = None,
) -> int:
    """Call `function` for each transaction of `where` after the place that is kept.

    The other arguments are those of `logweir.capture`. A server that goes away is tried again each
    second: `waiting` is told of it; with `once`, or without `waiting`, it is raised. Returns how
    many transactions the function was given. Raises `CallbackFailed`, and what `logweir.capture`
    and the place raise.
    """
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', function)}"
    given = 0
    stopped = stop or threading.Event()

    def call(captured: Captured, *transaction: Transaction) -> None:
        if captured.changes:
            with _explained(name, captured):
                function(captured, *transaction)
            failpoint("capture.after_function")

    while not stopped.is_set():
        try:
            found = kept.begin(where, spaces, key).run(once, stopped)
            with closing(found):
                for captured in found:
                    kept.take(captured, call)
                    given += bool(captured.changes)
            return given
        except Unreachable as error:
            if once or waiting is None:
                raise
            waiting(error)
            stopped.wait(_RETRY_SECONDS)
    return given


@contextmanager
def _explained(name: str, captured: Captured) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        first = captured.changes[0]
        what = f"{first.type_name} in {first.space}"
        if len(captured.changes) > 1:
            what += f" and {len(captured.changes) - 1} more"
        raise CallbackFailed(name, captured.vclock, error, what) from error


def load_function(name: str) -> Function:
    """The function that ``module:function`` names. Raises `ConfigError`."""
    module_name, _, path = name.partition(":")
    hint = "give it as module:function, the module as `import` finds it"
    if not module_name or not path:
        raise ConfigError("exec", f"{name!r} names no function", hint=hint)
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        text = f"{name!r} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError("exec", text, hint=hint) from error
    if not callable(found):
        raise ConfigError("exec", f"{name!r} is not callable", hint=hint)
    function: Function = found
    return function
