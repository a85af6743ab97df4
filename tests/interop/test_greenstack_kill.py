"""SIGKILL of the server in mid-stream and of the follower in mid-batch: each change once, whole."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest
from support.nursery import LOGWEIR, Program

import logweir
from interop.gsraw import RawClient, mutation
from interop.serving import Serving
from logweir.errors import Unreachable
from logweir.replication.greenstack.wire.codec import Flag, Frame
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import Timing
from logweir.replication.stream import positions
from logweir.store import Log

pytestmark = pytest.mark.kill

TURNS = 4
UNITS = 150  # transactions in each turn
PARTS = 5


def unit(number: int) -> list[Frame]:
    """One transaction of new documents."""
    keys = [b"%06d-%d" % (number, part) for part in range(PARTS)]
    more = [mutation(key, b"v", flags=Flag.QUIET | Flag.MORE) for key in keys[:-1]]
    return [*more, mutation(keys[-1], b"v", flags=Flag.QUIET)]


def keys_of(numbers: range) -> list[bytes]:
    """All keys of some transactions."""
    return [b"%06d-%d" % (number, part) for number in numbers for part in range(PARTS)]


def check_once(log: Log, expected: list[bytes]) -> None:
    """The log has one row for each key, in order; those of a transaction are in one."""
    space = log.schema.space("default").id
    seen: list[bytes] = []
    for transaction in log.rows():
        rows = [row for row in transaction.rows if row.body and row.space_id == space]
        keys = [row.decoded()["tuple"][0] for row in rows]
        seen += keys
    assert len(seen) == len(set(seen)), "a change was taken twice"
    assert sorted(seen) == sorted(expected)


def check_whole(log: Log) -> None:
    """What was one transaction at the server is in one here."""
    space = log.schema.space("default").id
    for transaction in log.rows():
        rows = [row for row in transaction.rows if row.body and row.space_id == space]
        keys = [row.decoded()["tuple"][0] for row in rows]
        numbers = [int(key[:6]) for key in keys if key != b"999999-0"]
        assert all(numbers.count(number) == PARTS for number in numbers)


def pushed_rows(server: Serving) -> int:
    """Rows that were pushed on the streams that are open."""
    try:
        conversations = tuple(server.server.protocol("greenstack").made[0].conversations)
        streams = [stream for one in conversations for stream in tuple(one.streams.values())]
    except RuntimeError:  # one came or went meanwhile, in the server's thread
        return 0
    return sum(stream.outgoing.rows for stream in streams)


def test_a_follower_killed_in_mid_batch_takes_everything_once(tmp_path: Path) -> None:
    """Kills while rows arrive, in the snapshot and behind it; then every change is there once."""
    listen = [parse_listen_url("greenstack://:0")]
    folder = tmp_path / "follower"
    with (
        Serving(tmp_path / "a", listen=listen, guest="all") as upstream,
        RawClient(upstream.port) as client,
    ):
        url = f"greenstack://127.0.0.1:{upstream.port}/default"
        for turn in range(TURNS):
            first = turn * UNITS
            for number in range(first, first + UNITS // 2):
                client.send(*unit(number))
            client.barrier()
            ours = LOGWEIR.begin("follow", url, folder, stderr=DEVNULL)
            try:
                upstream.wait(lambda: pushed_rows(upstream) > 0)
                for number in range(first + UNITS // 2, first + UNITS):
                    client.send(*unit(number))
            finally:
                ours.kill()
                ours.wait()
            client.barrier()
        code, _, complaints = LOGWEIR.run("follow", "--once", url, folder, timeout=60)
        assert code == 0, complaints
        reached = upstream.log.vclock.lsn(1)
    with logweir.open(folder) as log:
        check_once(log, keys_of(range(TURNS * UNITS)))
        place = positions.position(log, url, "greenstack", "default")
        assert place is not None
        assert place["1"] <= reached


def started(folder: Path, port: int) -> tuple[Program, int]:
    """A serving process on a port, 0 for a free one; and which."""
    words = ["serve", str(folder), "--listen", f"greenstack://127.0.0.1:{port}"]
    words += ["--allow-guest", "all", "--json", "--quiet"]
    process = LOGWEIR.begin(*words, stdout=PIPE, stderr=DEVNULL)
    assert process.stdout is not None
    (url,) = json.loads(process.stdout.readline())["listen"]
    return process, int(url.rpartition(":")[2])


def test_a_server_killed_in_mid_stream_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back on its port; the follower, which stays, goes on from where it stood."""
    timing = Timing(first_seconds=0.05, max_seconds=0.2)
    monkeypatch.setattr("logweir.replication.server.Timing", lambda **options: timing)
    process, port = started(tmp_path / "a", 0)
    source = parse_url(f"greenstack://127.0.0.1:{port}/default")
    listen = [parse_listen_url("greenstack://:0")]
    try:
        with Serving(tmp_path / "b", listen=listen, guest="all", follow=[source]) as follower:
            follower.wait(lambda: follower.server.is_caught_up)
            acknowledged: list[int] = []
            for turn in range(TURNS):
                with RawClient(port) as client:
                    acknowledged += write(client, process, range(turn * UNITS, (turn + 1) * UNITS))
                process.kill()
                process.wait()
                process.stdout.close()  # type: ignore[union-attr]
                process, _ = started(tmp_path / "a", port)

            def has_all() -> bool:
                found = {row[0] for row in follower.log.select("default")}
                return found >= {b"%06d-0" % number for number in acknowledged}

            follower.wait(has_all, 40)
            with RawClient(port) as client:
                client.ask(mutation(b"999999-0"))
            follower.wait(lambda: follower.log.get("default", b"999999-0") is not None)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
    with logweir.open(tmp_path / "a") as log:
        stored = sorted(row[0] for row in log.select("default"))
    numbers = {int(key[:6]) for key in stored}
    assert numbers >= set(acknowledged)
    assert acknowledged
    with logweir.open(tmp_path / "b") as log:
        assert sorted(row[0] for row in log.select("default")) == stored
        check_once(log, stored)
        check_whole(log)


def write(client: RawClient, process: Program, numbers: range) -> list[int]:
    """Write transactions and kill the server when half of them are answered: those that were."""
    frames = []
    for number in numbers:
        *parts, last = unit(number)
        loud = Frame(last.opcode, number, last.payload, None, 0, last.flex)
        frames += [*parts, loud]
    sender = threading.Thread(target=_send, args=(client, frames))
    sender.start()
    answered: list[int] = []
    while True:
        try:
            frame = client.receive()
        except (OSError, Unreachable):
            break
        if frame is None:
            break
        if frame.is_response:
            assert frame.status == 0
            answered.append(frame.opaque)
        if len(answered) == len(numbers) // 2:
            process.kill()
    sender.join(20)
    return answered


def _send(client: RawClient, frames: list[Frame]) -> None:
    for frame in frames:
        try:
            client.send(frame)
        except OSError:
            return
