"""Following upstreams over real sockets: throw-away servers that keep a real server's rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import logweir
from interop.synapsehttp import listening
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_url
from logweir.replication.runner import Runner, SourceState, Timing
from logweir.replication.stream import positions
from logweir.replication.synapse.follow.source import SynapseSource
from logweir.store import Log

SECONDS = 30.0


class Homeserver:
    """Streams as a real server keeps them: `units` per stream, token → rows."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.units: dict[str, dict[int, list[Any]]] = {"events": {}, "typing": {}}
        self.writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self.asked: list[str] = []
        self.cut_after_rows: int | None = None
        self.port = 0
        self.arrived = asyncio.Event()
        self.left = asyncio.Event()

    def current(self, stream: str) -> int:
        """The stream's last token."""
        return max(self.units[stream], default=0)

    def add(self, stream: str, token: int, *rows: Any) -> None:
        """Write a unit, live to all."""
        self.units[stream][token] = list(rows)
        who = "" if self.dialect == "D1" else "master "
        for place, row in enumerate(rows):
            name = "batch" if place < len(rows) - 1 else token
            self.send(f"RDATA {stream} {who}{name} {json.dumps(row)}")

    def send(self, line: str) -> None:
        """One line to every follower."""
        for writer in tuple(self.writers):
            writer.write(line.encode() + b"\n")

    def position(self, stream: str) -> str:
        """Where a stream stands, as a line."""
        token = self.current(stream)
        form = {"D1": "{0} {1}", "D2": "{0} master {1}", "D3": "{0} master {1} {1}"}[self.dialect]
        return "POSITION " + form.format(stream, token)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One follower."""
        self.connections += 1
        writer.write(b"SERVER logweir.test\nPING 1\n")
        try:
            while line := (await reader.readline()).decode().rstrip("\n"):
                self.asked.append(line)
                if line.startswith("REPLICATE"):
                    self.replicate(line.split(" ")[1:], writer)
        finally:
            self.writers.discard(writer)
            writer.close()
            self.left.set()

    def replicate(self, words: list[str], writer: asyncio.StreamWriter) -> None:
        """Catch-up by the rules of the dialect."""
        if self.dialect != "D1" or words == ["ALL", "NOW"]:
            writer.write("".join(self.position(one) + "\n" for one in self.units).encode())
            self.writers.add(writer)
            self.arrived.set()
            return
        stream, after = words[0], int(words[1])
        sent = 0
        for token, rows in sorted(self.units[stream].items()):
            for row in rows if token > after else ():
                if self.cut_after_rows is not None and sent >= self.cut_after_rows:
                    self.cut_after_rows = None
                    writer.close()
                    return
                writer.write(f"RDATA {stream} {token} {json.dumps(row)}\n".encode())
                sent += 1
        writer.write(self.position(stream).encode() + b"\n")

    def drop(self) -> None:
        """Close every connection."""
        for writer in tuple(self.writers):
            writer.close()
        self.writers.clear()


@asynccontextmanager
async def serving(home: Homeserver) -> AsyncIterator[Homeserver]:
    """The server on a free port."""
    server = await asyncio.start_server(home.serve, "127.0.0.1", home.port)
    home.port = server.sockets[0].getsockname()[1]
    try:
        yield home
    finally:
        server.close()
        home.drop()


@contextmanager
def http_of(home: Homeserver) -> Iterator[str]:
    """Its replication listener over HTTP; gives the address."""

    def answer(stream: str, _writer: str, after: int, upto: int) -> tuple[int, bytes]:
        if stream not in home.units:
            return 400, json.dumps({"errcode": "M_UNKNOWN", "error": "Unknown stream"}).encode()
        found = [
            [token, row]
            for token, rows in sorted(home.units[stream].items())
            if after < token <= upto
            for row in rows
        ]
        limited = len({token for token, _ in found}) > 3
        if limited:
            found = [one for one in found if one[0] <= found[2][0]]
            upto = found[-1][0]
        body = {"updates": found, "upto_token": upto, "limited": limited}
        return 200, json.dumps(body).encode()

    with listening(answer) as address:
        yield address


class Following:
    """A source under a runner, in the test's loop."""

    def __init__(self, log: Log, home: Homeserver, options: str = "") -> None:
        url = parse_url(f"synapse://127.0.0.1:{home.port}?server_name=logweir.test{options}")
        timing = Timing(first_seconds=0.01, max_seconds=0.02)
        self.log = log
        self.runner = Runner(SynapseSource(url, log), metrics=Metrics(), timing=timing)
        self._task = asyncio.create_task(self.runner.run())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, looked at after every change of the status."""
        async with asyncio.timeout(SECONDS):
            while not condition():
                await self.runner.changed()

    async def following(self) -> None:
        """Wait until nothing is missed."""
        await self.until(lambda: self.runner.status.state == SourceState.FOLLOWING)

    def rows(self, stream: str) -> list[tuple[Any, ...]]:
        """(instance, token, row) of one stream."""
        if self.log.schema.get(f"synapse_{stream}") is None:
            return []
        return [(row[0], row[1], row[3]) for row in self.log.select(f"synapse_{stream}")]

    async def stop(self) -> None:
        """End following."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def expected(home: Homeserver, stream: str, instance: str = "master") -> list[tuple[Any, ...]]:
    """What should be stored of a stream."""
    return [
        (instance, token, row) for token, rows in sorted(home.units[stream].items()) for row in rows
    ]


def run(folder: Path, scenario: Callable[[Log], Any]) -> None:
    """Run an asynchronous scenario on a fresh store."""
    with logweir.open(folder) as log:
        asyncio.run(scenario(log))


def test_d1_is_followed_over_broken_connections(tmp_path: Path) -> None:
    """Live units, a lost connection, missed units, a catch-up that breaks: each row once."""

    async def scenario(log: Log) -> None:
        async with serving(Homeserver("D1")) as home:
            home.add("events", 5, ["before"])
            following = Following(log, home)
            await following.following()
            home.add("events", 6, ["a"], ["b"])
            home.add("events", 8, ["c"])
            await following.until(lambda: len(following.rows("events")) == 3)
            home.drop()
            home.cut_after_rows = 2
            home.add("events", 9, ["d"], ["e"])
            home.add("events", 12, ["f"])
            await following.until(lambda: len(following.rows("events")) == 6)
            del home.units["events"][5]
            assert following.rows("events") == expected(home, "events")
            assert "REPLICATE events 6" in home.asked
            assert following.runner.status.attempts >= 3
            await following.stop()

    run(tmp_path, scenario)


def test_d1_from_the_beginning_and_on_after_a_restart_of_ours(tmp_path: Path) -> None:
    """start=all takes what there is; a new process goes on where the store ends."""

    async def first(log: Log) -> None:
        async with serving(home):
            for token in range(1, 200):
                home.add("events", token, [token], *([token, place] for place in range(token % 3)))
            following = Following(log, home, "&start=all")
            await following.until(lambda: following.rows("events") == expected(home, "events"))
            await following.stop()

    async def second(log: Log) -> None:
        async with serving(home):
            home.add("events", 300, ["later"])
            following = Following(log, home)
            await following.until(lambda: following.rows("events") == expected(home, "events"))
            await following.stop()
            assert len(following.rows("events")) == 199 + 199 + 1  # units, further rows, later

    home = Homeserver("D1")
    run(tmp_path / "data", first)
    home.port = 0
    run(tmp_path / "data", second)


@pytest.mark.parametrize("dialect", ["D2", "D3"])
def test_what_was_missed_is_fetched(tmp_path: Path, dialect: str) -> None:
    """Live rows, then a lost connection with many units, fetched page by page."""

    async def scenario(log: Log) -> None:
        home = Homeserver(dialect)
        with http_of(home) as address:
            async with serving(home):
                following = Following(log, home, f"&http={address}")
                await following.following()
                home.add("events", 2, ["a"], ["b"])
                await following.until(lambda: len(following.rows("events")) == 2)
                home.drop()
                for token in range(3, 30):
                    home.add("events", token, [token], [token, 1])
                await following.until(lambda: len(following.rows("events")) == 56)
                home.add("events", 40, ["live"])
                await following.until(lambda: len(following.rows("events")) == 57)
                assert following.rows("events") == expected(home, "events")
                assert not positions.gaps(log)
                await following.stop()

    run(tmp_path, scenario)


def test_stream_in_memory_that_began_anew_gets_an_epoch(tmp_path: Path) -> None:
    """The server restarts: typing counts from 0 again, the old rows stay."""

    async def scenario(log: Log) -> None:
        home = Homeserver("D3")
        with http_of(home) as address:
            async with serving(home):
                following = Following(log, home, f"&http={address}")
                await following.following()
                home.add("typing", 1, ["old"])
                home.add("typing", 2, ["older"])
                await following.until(lambda: len(following.rows("typing")) == 2)
                home.units["typing"] = {1: [["new"]]}
                home.drop()
                await following.until(lambda: len(following.rows("typing")) == 3)
                assert following.rows("typing")[-1] == ("master#2", 1, ["new"])
                assert len(positions.gaps(log)) == 1
                await following.stop()

    run(tmp_path, scenario)


def test_upstream_that_went_back_goes_on_in_an_epoch(tmp_path: Path) -> None:
    """A homeserver that counts from the beginning after a restart: nothing is rewound, what it has
    now and what comes is stored under the next epoch, and a gap tells so once."""

    async def scenario(log: Log) -> None:
        async with serving(Homeserver("D1")) as home:
            following = Following(log, home)
            await following.following()
            home.add("events", 40, ["kept"])
            await following.until(lambda: len(following.rows("events")) == 1)
            home.units["events"] = {31: [["other"]]}
            home.drop()
            await following.until(lambda: len(following.rows("events")) == 2)
            home.add("events", 32, ["live"])
            await following.until(lambda: len(following.rows("events")) == 3)
            home.drop()
            home.add("events", 33, ["missed"])
            await following.until(lambda: len(following.rows("events")) == 4)
            assert following.rows("events") == [
                ("master", 40, ["kept"]),
                ("master#2", 31, ["other"]),
                ("master#2", 32, ["live"]),
                ("master#2", 33, ["missed"]),
            ]
            (gap,) = positions.gaps(log)
            assert (gap.start, gap.end) == (32, 40)
            assert gap.reason == "reset: the upstream's tokens went back from 40 to 31"
            await following.stop()

    run(tmp_path, scenario)


def test_missed_rows_without_an_http_address_are_a_gap(tmp_path: Path) -> None:
    """The stream goes on, and what was missed is told."""

    async def scenario(log: Log) -> None:
        async with serving(Homeserver("D2")) as home:
            home.add("events", 4, ["a"])
            following = Following(log, home)
            await following.following()
            home.drop()
            home.add("events", 6, ["missed"])
            await following.until(lambda: len(positions.gaps(log)) == 1)
            await following.following()
            home.add("events", 7, ["b"])
            await following.until(lambda: len(following.rows("events")) == 1)
            (gap,) = positions.gaps(log)
            assert (gap.stream, gap.start, gap.end) == ("events", 5, 6)
            assert "http=" in gap.reason
            await following.stop()

    run(tmp_path, scenario)


def test_server_of_another_name_is_left_alone(tmp_path: Path) -> None:
    """Refused with the text of real followers, and not tried again at once."""

    async def scenario(log: Log) -> None:
        async with serving(Homeserver("D1")) as home:
            url = parse_url(f"synapse://127.0.0.1:{home.port}?server_name=other.test")
            timing = Timing(first_seconds=0.001, max_seconds=0.001)
            runner = Runner(SynapseSource(url, log), metrics=Metrics(), timing=timing)
            task = asyncio.create_task(runner.run())
            async with asyncio.timeout(SECONDS):
                while runner.status.attempts < 2:
                    await runner.changed()
                await home.left.wait()
            assert "ERROR Wrong remote" in home.asked
            assert "other.test" in runner.status.last_error
            assert home.connections == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(tmp_path, scenario)


def test_flood_is_stored_whole_and_in_order(tmp_path: Path) -> None:
    """Twenty thousand single rows and their neighbours of another stream."""

    async def scenario(log: Log) -> None:
        async with serving(Homeserver("D1")) as home:
            following = Following(log, home)
            await following.following()
            for token in range(1, 20001):
                home.add("events", token, ["r", token])
                if token % 100 == 0:
                    home.add("typing", token, ["a"], ["b"])
            await following.until(
                lambda: (
                    log.schema.get("synapse_events") is not None
                    and log.count("synapse_events") == 20000
                )
            )
            await following.until(lambda: len(following.rows("typing")) == 400)
            assert following.rows("events") == expected(home, "events")
            await following.stop()

    run(tmp_path, scenario)
