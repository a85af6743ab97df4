"""A server of ours for tests: a store, listening on a free port of loopback, in its own thread."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.leaks import SERVER

import logweir
from logweir.replication import loop
from logweir.replication import server as serving
from logweir.replication.protocols import parse_listen_url
from logweir.replication.runner import Runner
from logweir.replication.urls import Url


class _Server(serving.Server):
    """One that soon tries again to reach an upstream, for which tests wait often."""

    def runner(self, url: Url) -> Runner:
        made = super().runner(url)
        made._timing = replace(made._timing, first_seconds=0.05, max_seconds=0.25)
        return made


class Serving:
    """A running server. `options`: of `ServerOptions`; `open_options`: of `logweir.open`."""

    def __init__(
        self, folder: Path, *, open_options: dict[str, Any] | None = None, **options: Any
    ) -> None:
        self.folder = folder
        options.setdefault("listen", [parse_listen_url("tarantool://:0")])
        if {url.scheme for url in options["listen"]} & {"tank", "synapse"}:  # without a login
            options.setdefault("guest", "all")
        self._options = serving.ServerOptions(**options)
        self._open_options = open_options or {}
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=SERVER, daemon=True)

    def _run(self) -> None:
        try:
            with logweir.open(self.folder, **self._open_options) as self.log:
                loop.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.server = _Server(self.log, self._options)
        self.urls = await self.server.start()
        self._ready.set()
        await self._stop.wait()
        await self.server.stop()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive(), "the server did not stop"
        if self._failure is not None and error is None:
            raise self._failure

    @property
    def port(self) -> int:
        """Of its first address."""
        return self.urls[0].port

    @property
    def url(self) -> Url:
        """Its first address."""
        return self.urls[0]

    @property
    def open_views(self) -> int:
        """How many views of the store there are, of whichever thread."""
        return len(self.log.inner.committer.viewers._views)

    def wait(self, condition: Any, seconds: float = 60.0) -> None:
        """Until `condition()` holds, looked at after each commit and fifty times a second."""
        changed = threading.Event()
        forget = self.log.on_commit(lambda vclock: changed.set())
        try:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if condition():
                    return
                changed.wait(0.02)
                changed.clear()
        finally:
            forget()
        raise AssertionError(f"it did not come about in {seconds} s")
