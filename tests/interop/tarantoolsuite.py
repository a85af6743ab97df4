"""tarantool-python's own tests, run as a program: `python tarantoolsuite.py SIDE MODULE…`.

`there` is a real Tarantool, as the tests start it. `here` stands a server of ours between: what a
test says to the Lua console goes to a real Tarantool, its connections to ours, and the two are
masters of each other, each waited for before and after every command. Run in a folder with `test`,
which is the suite's. Prints {test: "ok", "skipped" or the end of what it told} as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import re
import sys
import types
import unittest
from pathlib import Path
from typing import Any

from interop.serving import Serving
from logweir.replication.iproto.follow.join import join
from logweir.replication.protocols import parse_listen_url, parse_url

USER = (
    "box.schema.user.create('peer', {password = 'secret'}) "
    "box.schema.user.grant('peer', 'replication')"
)
WAIT = (
    "for i = 1, 10000 do if (box.info.vclock[%d] or 0) >= %d then return true end "
    "require('fiber').sleep(0.001) end return false"
)


THEIRS, OURS = 1, 2  # ids in the replica set


def ours(server: type, find_port: Any) -> type:
    """The suite's `TarantoolServer`, with a server of ours in front of it."""

    class Ours(server):  # type: ignore[misc]
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return object.__new__(cls)  # theirs names the class by its module

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.theirs = find_port(self.args["admin"] + 1)
            self.serving: Serving | None = None

        def generate_listen(self, port: int, port_only: bool) -> str:
            return super().generate_listen(port if port_only else self.theirs, port_only)

        def start(self) -> None:
            super().start()
            told = self.admin.execute
            folder = Path(self.vardir) / "ours"
            url = parse_url(f"tarantool://peer:secret@127.0.0.1:{self.theirs}")
            if not folder.exists():
                told(USER)
                asyncio.run(join(url, folder))
            at = self.args["primary"]
            where = f"127.0.0.1:{at}" if self._socket is None else f"unix/:{at}"
            self.serving = Serving(
                folder, listen=[parse_listen_url(f"tarantool://{where}")], follow=[url]
            )
            if self._socket is not None:
                Path(at).unlink()
            self.serving.__enter__()
            told(f"box.cfg{{replication = {{'peer:secret@{where}'}}}}")
            self.admin.execute = lambda command: self.say(told, command)

        def say(self, told: Any, command: str) -> Any:
            serving = self.serving
            if not command or serving is None:
                return None
            assert told(WAIT % (OURS, serving.log.vclock.get(OURS, 0))) == [True]
            answer = told(command)
            lsn = told("box.info.lsn")[0]
            serving.wait(lambda: serving.log.vclock.get(THEIRS, 0) >= lsn)
            return answer

        def stop(self) -> None:
            serving, self.serving = self.serving, None
            if serving is not None:
                del self.admin.execute
                serving.__exit__(None, None, None)
            super().stop()

    return Ours


class Told(unittest.TestResult):
    """Remembers what became of each test."""

    def __init__(self) -> None:
        super().__init__()
        self.all: dict[str, str] = {}

    def tell(self, test: unittest.TestCase, said: str) -> None:
        name = _short(test.id())
        self.all[name] = said if self.all.get(name, "ok") == "ok" else self.all[name]

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.tell(test, "ok")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.tell(test, "skipped")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.tell(test, f"{err[0].__name__}: {err[1]}"[-300:])

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.tell(test, f"{err[0].__name__}: {err[1]}"[-300:])


def _short(identity: str) -> str:
    """`suites.test_schema.TestSuiteSchemaBinaryConnection.test_08_x` is `schema.Binary.08_x`."""
    found = re.fullmatch(
        r"suites\.test_(\w+)\.\w+?(|Binary|Unicode)(?:Connection)?\.test_(\w+).*", identity
    )
    return ".".join(filter(None, found.groups())) if found else identity


def _cases(module: types.ModuleType) -> list[type[unittest.TestCase]]:
    return [
        one
        for one in vars(module).values()
        if isinstance(one, type)
        and issubclass(one, unittest.TestCase)
        and one.__module__ == module.__name__
        and not one.__name__.endswith("Abstract")
    ]


def main(side: str, *modules: str) -> None:
    """See the module's text."""
    suites = types.ModuleType("suites")
    suites.__path__ = [str(Path("test/suites").resolve())]
    sys.modules["suites"] = suites  # without what its own __init__ imports
    servers = importlib.import_module("suites.lib.tarantool_server")
    if side == "here":
        servers.TarantoolServer = ours(servers.TarantoolServer, servers.find_port)  # type: ignore[attr-defined]
    told = Told()
    with Path("told").open("a", encoding="utf-8") as quiet, contextlib.redirect_stderr(quiet):
        for name in modules:
            for case in _cases(importlib.import_module(f"suites.test_{name}")):
                unittest.defaultTestLoader.loadTestsFromTestCase(case).run(told)
    print(json.dumps(told.all))


if __name__ == "__main__":
    main(*sys.argv[1:])
