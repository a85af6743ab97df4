"""Members of a group and their broker are killed: every message is given, and what is committed
does not come again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port

from interop.hubsides import Program
from logweir.replication.tank.client import Client

PARTITIONS, MESSAGES = 3, 300

MEMBER = """
import json, sys, time
from logweir.errors import LogweirError
from logweir.replication.tank.client.sync import Client

url, path = sys.argv[1:]
with open(path, "a", buffering=1) as notes, Client(url) as client:
    with client.member("t", group="g", lease_seconds=1.0) as member:
        def note(*what):
            notes.write(json.dumps([time.monotonic(), *what]) + "\\n")
        while True:
            for record in member.get_many(3):
                note("given", record.partition, record.number)
            try:
                member.commit()
            except LogweirError:
                continue
            for partition in member.partitions():
                note("committed", partition, member.position(partition) - 1)
"""


def begin(url: str, notes: Path) -> subprocess.Popen[bytes]:
    """A member, as a process."""
    return subprocess.Popen([sys.executable, "-P", "-c", MEMBER, url, str(notes)])


def read(notes: Path) -> list[tuple[float, str, int, int]]:
    """What members have noted: when, what, partition and number."""
    found: list[Any] = []
    for line in notes.read_bytes().split(b"\n"):
        try:
            found.append(tuple(json.loads(line)))
        except ValueError:
            continue  # killed inside of it
    return sorted(found)


def until(what: str, notes: Path, count: int) -> None:
    """Wait for so many different messages of which that was noted."""
    pause, end = threading.Event(), time.monotonic() + 60
    while len({one[2:] for one in read(notes) if one[1] == what}) < count:
        assert time.monotonic() < end, (what, count)
        pause.wait(0.05)


async def fill(url: str) -> None:
    """A topic with messages."""
    async with Client(url) as client:
        await client.create_topic("t", PARTITIONS)
        async with client.producer() as producer:
            for number in range(MESSAGES):
                await producer.send("t", b"%d" % number, partition=number % PARTITIONS)


@pytest.mark.kill
def test_killed_members_and_brokers_lose_no_message(tmp_path: Path) -> None:
    """A member while it works, the broker, and a member that came later."""
    url, notes = f"tank://127.0.0.1:{free_port()}", tmp_path / "notes"
    notes.touch()
    broker = Program(tmp_path / "store", [url])
    broker.start()
    members: list[subprocess.Popen[bytes]] = []
    try:
        asyncio.run(fill(url))
        members += (begin(url, notes), begin(url, notes))
        until("given", notes, MESSAGES // 6)
        members[0].kill()
        until("given", notes, MESSAGES // 3)
        broker.kill()
        broker.start()
        members.append(begin(url, notes))
        until("given", notes, MESSAGES // 2)
        members[1].kill()
        until("given", notes, MESSAGES)
        until_all_committed(notes)
    finally:
        for one in members:
            one.kill()
            one.wait()
        broker.kill()
    committed = [0] * PARTITIONS
    for _, what, partition, number in read(notes):
        if what == "given":
            assert number > committed[partition]
        else:
            committed[partition] = max(committed[partition], number)
    assert committed == [MESSAGES // PARTITIONS] * PARTITIONS


def until_all_committed(notes: Path) -> None:
    """Wait until the last message of each partition is."""
    pause, end = threading.Event(), time.monotonic() + 60
    last = {(partition, MESSAGES // PARTITIONS) for partition in range(PARTITIONS)}
    while not last <= {one[2:] for one in read(notes) if one[1] == "committed"}:
        assert time.monotonic() < end
        pause.wait(0.05)
