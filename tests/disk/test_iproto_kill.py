"""A server is killed at random moments while clients pipeline changes to it."""

from __future__ import annotations

import json
import random
import selectors
import signal
import socket
from pathlib import Path
from subprocess import PIPE

import pytest
from support.nursery import LOGWEIR, Program

import logweir
from logweir.replication.iproto.wire.codec import GREETING_BYTES
from logweir.store.log import Log

KILLS = 6
CLIENTS = 6
DEPTHS = (1, 3, 40, 400)
SEED = 20261121
ANSWER_BYTES = 35 + 1 + 5 + 9


def change(space: int, client: int, count: int) -> bytes:
    """The `count`-th REPLACE of a client, which has a few keys of its own."""
    key = 1_000_000 + client * 1000 + count % 700
    body = b"\x82\x10\xcd" + space.to_bytes(2, "big") + b"\x21"
    row = b"\x92\xce" + key.to_bytes(4, "big") + b"\xcf" + count.to_bytes(8, "big")
    payload = b"\x82\x00\x03\x01\xcf" + count.to_bytes(8, "big") + body + row
    return b"\xce" + len(payload).to_bytes(4, "big") + payload


def kill_amid(
    server: Program, port: int, space: int, counts: list[int], dice: random.Random
) -> list[int]:
    """Send changes, as many in flight as there is luck, and kill the server after some answers.
    Returns the last change of each client that was answered."""
    left = dice.randrange(100, 8000)
    with selectors.DefaultSelector() as selector:
        sent, received = list(counts), [0] * CLIENTS
        depths = [dice.choice(DEPTHS) for _ in counts]
        for client in range(CLIENTS):
            link = socket.create_connection(("127.0.0.1", port))
            while len(link.recv(GREETING_BYTES, socket.MSG_PEEK)) < GREETING_BYTES:
                pass
            link.recv(GREETING_BYTES)
            selector.register(link, selectors.EVENT_READ, client)
            sent[client] += depths[client]
            first = counts[client] + 1
            link.sendall(b"".join(change(space, client, first + i) for i in range(depths[client])))
        while selector.get_map():
            for key, _ in selector.select():
                client, link = key.data, key.fileobj
                assert isinstance(link, socket.socket)
                try:
                    data = link.recv(1 << 20)
                    before = received[client] // ANSWER_BYTES
                    received[client] += len(data)
                    more = received[client] // ANSWER_BYTES - before
                    first = sent[client] + 1
                    sent[client] += more
                    left -= more
                    if left <= 0:
                        server.kill()
                    link.sendall(b"".join(change(space, client, first + i) for i in range(more)))
                except OSError:
                    data = b""
                if not data:
                    selector.unregister(link)
                    link.close()
    return [count + size // ANSWER_BYTES for count, size in zip(counts, received, strict=True)]


def check(log: Log, answered: list[int]) -> list[int]:
    """Each key holds a change that is not older than its last answered one, and the changes of a
    client that are there are all up to one. Returns that one of each."""
    reached = []
    for client, last in enumerate(answered):
        start = 1_000_000 + client * 1000
        rows = [row for row in log.select("t", start, iterator="GE") if row[0] < start + 1000]
        counts = {int(str(row[1])) for row in rows}
        newest = max(counts, default=0)
        assert newest >= last
        assert counts == set(range(max(newest - 699, 1), newest + 1))
        reached.append(newest)
    return reached


@pytest.mark.kill
def test_killed_servers_lose_no_answered_change(tmp_path: Path) -> None:
    """Whatever was answered is there, and of each connection a prefix: the state, which may be
    behind the log, is brought to its end."""
    dice = random.Random(SEED)
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
        space = log.schema.space("t").id
    words = ["serve", str(tmp_path / "s"), "--listen", "tarantool://127.0.0.1:0"]
    words += ["--allow-guest", "all", "--json", "--quiet"]
    counts = [0] * CLIENTS
    for _ in range(KILLS):
        with LOGWEIR.begin(*words, stdout=PIPE) as process:
            assert process.stdout is not None
            port = int(json.loads(process.stdout.readline())["listen"][0].rpartition(":")[2])
            answered = kill_amid(process, port, space, counts, dice)
        assert process.returncode == -signal.SIGKILL
        with logweir.open(tmp_path / "s") as log:
            counts = check(log, answered)
    assert min(counts) > 0
