"""A server is killed at random moments while clients pipeline MUTATIONs to it, loud and quiet."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
from pathlib import Path
from subprocess import PIPE

import pytest
from support.nursery import LOGWEIR

import logweir
from interop.gsraw import RawClient, mutation
from logweir.replication.greenstack.wire.codec import Flag, Frame, Opcode, Status
from logweir.replication.greenstack.wire.messages import MutationAnswer
from logweir.store.log import Log

KILLS = 4
CLIENTS = 3
KEYS = 700
DEPTHS = (1, 3, 40, 400)
SEED = 20261122


class Writer:
    """One client. `last`: its last change that is known to be durable, each being a number higher;
    `told`: what the answers to some said, by that number."""

    def __init__(self, client: int, last: int, dice: random.Random) -> None:
        self.last = last
        self.told: dict[int, MutationAnswer] = {}
        self._client = client
        self._dice = dice

    def key(self, number: int) -> bytes:
        """A few keys of its own."""
        return b"%d/%04d" % (self._client, number % KEYS)

    def run(self, port: int, note: threading.Semaphore) -> None:
        """Write until the server is gone."""
        try:
            client = RawClient(port)
        except (OSError, AssertionError):  # it was gone before it answered HELLO
            return
        with client, contextlib.suppress(OSError):
            while self._write(client):
                note.release()

    def _write(self, client: RawClient) -> bool:
        first = self.last + 1
        numbers = range(first, first + self._dice.choice(DEPTHS))
        flags = self._dice.choice((0, 0, Flag.QUIET))
        frames = [mutation(self.key(n), b"%d" % n, opaque=n, flags=flags) for n in numbers]
        if flags:
            frames.append(Frame(Opcode.NOOP, 1))
        client.send(*frames)
        for number in () if flags else numbers:
            answer = client.receive()
            if answer is None:
                return False
            assert (answer.opaque, answer.status) == (number, Status.SUCCESS)
            self.told[number] = MutationAnswer.decode(answer.payload)
            self.last = number
        if flags and client.receive() is None:
            return False
        self.last = numbers[-1]
        return True


def check(log: Log, writer: Writer) -> int:
    """Each key holds a change that is not older than its last answered one, and the changes that
    are there are all up to one, which is returned; what answers said is so."""
    prefix = writer.key(0)[:2]
    rows = [row for row in log.select("default") if bytes(row[0]).startswith(prefix)]
    counts = {int(bytes(row[2])) for row in rows}
    newest = max(counts, default=0)
    assert newest >= writer.last
    assert counts == set(range(max(newest - KEYS + 1, 1), newest + 1))
    for row in rows:
        told = writer.told.get(int(bytes(row[2])))
        assert told is None or told.cas == row[5]
    return newest


def check_rows(log: Log, writers: list[Writer]) -> None:
    """The lsns in the answers are those of the rows."""
    told = {one.seqno: (w.key(n), b"%d" % n) for w in writers for n, one in w.told.items()}
    space = log.schema.space("default").id
    found = {
        row.lsn: tuple(row.decoded()["tuple"][:3:2])
        for transaction in log.rows()
        for row in transaction.rows
        if row.lsn in told and row.space_id == space
    }
    assert found == told


@pytest.mark.kill
def test_killed_servers_lose_no_answered_mutation(tmp_path: Path) -> None:
    """Whatever was answered is there, and of each connection a prefix, in both indexes: the state,
    which may be behind the log, is brought to its end."""
    dice = random.Random(SEED)
    words = ["serve", str(tmp_path / "s"), "--listen", "greenstack://127.0.0.1:0"]
    words += ["--allow-guest", "all", "--json", "--quiet"]
    lasts = [0] * CLIENTS
    for _ in range(KILLS):
        with LOGWEIR.begin(*words, stdout=PIPE) as process:
            assert process.stdout is not None
            port = int(json.loads(process.stdout.readline())["listen"][0].rpartition(":")[2])
            note = threading.Semaphore(0)
            writers = [
                Writer(i, last, random.Random(dice.random())) for i, last in enumerate(lasts)
            ]
            threads = [threading.Thread(target=one.run, args=(port, note)) for one in writers]
            for thread in threads:
                thread.start()
            for _ in range(dice.randrange(10, 120)):
                assert note.acquire(timeout=60)
            process.kill()
            for thread in threads:
                thread.join()
        assert process.returncode == -signal.SIGKILL
        with logweir.open(tmp_path / "s") as log:
            lasts = [check(log, one) for one in writers]
            check_rows(log, writers)
            assert log.count("default") == len(log.select("default", 0, index="vbucket"))
    assert min(lasts) > 0
