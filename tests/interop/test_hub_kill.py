"""A hub at work while it, its upstreams and its followers are killed: at the end every item is
compared. `LOGWEIR_HUB_MINUTES=10` in the environment makes it ten minutes, for which pytest needs
`-o faulthandler_timeout=0`."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import until

import logweir
from interop.hubfollowers import Follower, Hub
from interop.hubsides import KINDS, LOST, SPACES, STREAM, Contents, Program, folded, message
from logweir.replication.topic.bundle import decode_bundle

pytestmark = [pytest.mark.tarantool, pytest.mark.kill]

MINUTES = float(os.environ.get("LOGWEIR_HUB_MINUTES", "0.15"))
SEED = 20261123
SETTLE_SECONDS = 60 + 60 * MINUTES


class Writers:
    """A thread for each upstream that writes to it, again where it was cut off."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(kind,)) for kind in KINDS]
        self.lock = threading.Lock()
        """For the console of Tarantool, which one thread may use at a time."""
        self.written: Counter[str] = Counter()

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def _write(self, kind: str) -> None:
        guard = self.lock if kind == "tarantool" else contextlib.nullcontext()
        while not self._ended.wait(0.02):
            first = self.written[kind]
            try:
                with guard:
                    self._hub.upstreams.write(kind, range(first, first + 10))
            except LOST:
                continue
            self.written[kind] += 10


class Chain:
    """Another server, that follows the hub by four protocols, and is killed, too."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder = folder / "chain"
        urls = [
            f"tank://127.0.0.1:{hub.ports['tank']}/events",
            f"tap://127.0.0.1:{hub.ports['tap']}/sessions",
            f"greenstack://127.0.0.1:{hub.ports['greenstack']}/carts",
            f"synapse://127.0.0.1:{hub.ports['synapse']}?start=all&dialect=D1&streams={STREAM}",
        ]
        follow = [word for url in urls for word in ("--follow", url)]
        self.program = Program(self.folder, ["tarantool://127.0.0.1:0"], *follow)

    def contents(self, kind: str) -> Contents:
        """What it holds; it must not run."""
        with logweir.open(self.folder) as log:
            if log.schema.get(SPACES[kind]) is None:
                return {}
            rows = log.select(SPACES[kind])
        if kind == "tank":
            each = ((row[0], one) for row in rows for one in decode_bundle(row[4], row[1]))
            return dict(message(*one) for one in each)
        size = 3 if kind == "synapse" else 1
        return dict(folded(kind, row[:size], row) for row in rows)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub that runs, with its upstreams."""
    made = Hub(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.end()


def disturb(hub: Hub, chain: Chain, writers: Writers, chance: random.Random) -> str:
    """Kill one of them, or cut a connection, and start it again after a while. Returns which."""
    which = chance.choice(["hub", "hub", "chain", "cut", "cut", "replica", *KINDS])
    away = threading.Event()
    if which == "cut":
        chance.choice(hub.all_followers[1:]).cut()
    elif which == "replica":
        hub.all_followers[0].cut()
    elif which in ("hub", "chain"):
        program = hub.program if which == "hub" else chain.program
        program.kill()
        away.wait(chance.random() / 2)
        program.start(wait=False)
    else:
        with writers.lock if which == "tarantool" else contextlib.nullcontext():
            hub.upstreams.kill(which)
            away.wait(chance.random() / 2)
            hub.upstreams.restart(which)
    return which


@pytest.mark.timeout(int(600 + 180 * MINUTES))
def test_nothing_is_lost_or_doubled_whoever_is_killed(tmp_path: Path, hub: Hub) -> None:
    """Some followers are there from the beginning, others come when half of it is over."""
    chance = random.Random(SEED)
    chain = Chain(tmp_path, hub)
    early, late = hub.all_followers[::2], hub.all_followers[1::2]
    killed: Counter[str] = Counter()
    pause = threading.Event()
    try:
        with Writers(hub) as writers:
            until(hub.has_spaces, 60)
            chain.program.start()
            for one in early:
                one.start()
            end = time.monotonic() + 60 * MINUTES
            half = end - 30 * MINUTES
            while time.monotonic() < end:
                if late and time.monotonic() >= half:
                    for one in late:
                        one.start()
                    late = []
                killed[disturb(hub, chain, writers, chance)] += 1
                pause.wait(chance.random())
            for one in late:
                one.start()
        hub.upstreams.ready()
        held = {kind: hub.upstreams.contents(kind) for kind in KINDS}
        for kind in KINDS:
            for followed in KINDS:
                compare(hub.followers[followed][kind], kind, held[kind])
        until(lambda: same_in_chain(chain, held), SETTLE_SECONDS)
    finally:
        chain.program.kill()
    told = sum(one.told for one in hub.all_followers)
    print(f"written {dict(writers.written)}, killed {dict(killed)}, told {told}")
    assert min(writers.written.values()) > 0


def compare(follower: Follower, kind: str, held: Contents) -> None:
    """Wait until a follower has all, and nothing else; tell what it has not."""
    with contextlib.suppress(AssertionError):
        until(lambda: follower.contents(kind) == held, SETTLE_SECONDS)
    found = follower.contents(kind)
    differs = sorted(key for key in held.keys() | found.keys() if held.get(key) != found.get(key))
    shown = [(key, held.get(key), found.get(key)) for key in differs[:3]]
    assert found == held, (type(follower).__name__, kind, len(differs), shown, follower.trouble)


def same_in_chain(chain: Chain, held: dict[str, Contents]) -> bool:
    """Whether the chain has all; it is killed to look, and started again."""
    chain.program.kill()
    is_same = all(chain.contents(kind) == held[kind] for kind in KINDS if kind != "tarantool")
    if not is_same:
        chain.program.start()
        threading.Event().wait(1)  # it follows meanwhile
    return is_same
