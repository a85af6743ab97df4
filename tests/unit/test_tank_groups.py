"""Groups of consumers that share the partitions of a topic."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from support.loops import run, until
from support.tankserving import listening, served

import logweir
from interop.tankmodel import MemoryStore
from logweir.errors import ConfigError, PeerRefused
from logweir.limits import TANK_GROUP_MEMBERS
from logweir.replication.protocols import parse_listen_url
from logweir.replication.server import Server, ServerOptions
from logweir.replication.tank.client import Client, Member, Record, consumer, member, sync
from logweir.replication.tank.wire.messages import PublishPart, PublishResult
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.replication.topic.groups import Beat, Leases, Shares
from logweir.replication.topic.spaces import create_topic, set_partitions
from logweir.replication.urls import Url


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        """Now."""
        return self.seconds


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that say often that they are alive."""
    monkeypatch.setattr(member, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(member, "_WAIT_MS", 20)
    monkeypatch.setattr(consumer, "pause_seconds", lambda failures: 0.01)


# --- who has what ---------------------------------------------------------------------------------


def beat(leases: Leases, shares: Shares, name: str, *holds: int, count: int = 6) -> Shares:
    """The group after a sign of life."""
    said = json.dumps({"lease_ms": 10_000, "holds": list(holds)}).encode()
    made = leases.beat("g", "t", shares, name.encode(), said, count)
    assert made is not None
    return made


def test_partitions_move_only_when_they_are_given_up() -> None:
    """The first has all; the second gets half of them once the first does not hold those."""
    leases = Leases(Clock())
    shares = beat(leases, Shares(), "a")
    assert shares.held("a") == [0, 1, 2, 3, 4, 5]
    alone = shares.generation
    shares = beat(leases, shares, "b")
    assert (shares.held("a"), shares.held("b")) == ([0, 1, 2, 3, 4, 5], [])
    assert shares.surplus(6) == {"a": [3, 4, 5], "b": []}
    told = json.loads(shares.told(6))["members"]["a"]
    assert told == {"has": {str(n): alone for n in range(6)}, "gives_up": [3, 4, 5]}
    assert beat(leases, shares, "a", 0, 1, 2, 3, 4, 5) is shares
    shares = beat(leases, shares, "a", 0, 1, 2, 4)
    assert (shares.held("a"), shares.held("b")) == ([0, 1, 2, 4], [3, 5])
    assert shares.owners[3].generation == shares.generation > alone
    assert shares.fits(3, b"%d b" % shares.generation)
    for key in (b"%d a" % alone, b"%d b" % alone, b"%d a" % shares.generation, None):
        assert not shares.fits(3, key)
    assert not shares.fits(6, b"1 a")
    assert shares.fits(6, None)


def test_who_is_silent_too_long_is_gone_when_another_speaks() -> None:
    """Not before; one that comes back is given its old ones with a new generation."""
    clock = Clock()
    leases = Leases(clock)
    shares = beat(leases, beat(leases, Shares(), "a", count=2), "b", count=2)
    shares = beat(leases, shares, "a", 0, count=2)
    assert shares.held("b") == [1]
    clock.seconds += 10.1
    assert beat(leases, shares, "a", 0, count=2).held("a") == [0, 1]  # b did not speak either
    shares = beat(Leases(clock), shares, "a", 0, count=2)  # a server that was started anew
    assert shares.members.keys() == {"a", "b"}


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_one_s_own_and_become_equal(seed: int) -> None:
    """Members come, go, die and give up at any time: nobody gets what a living one may hold, and in
    the end each has as many as the others, or one more."""
    random, clock = Random(seed), Clock()
    leases, shares, count = Leases(clock), Shares(), random.randrange(1, 9)
    holds: dict[str, set[int]] = {}
    for step in range(200):
        clock.seconds += random.random() * 3
        name = random.choice("abcde")
        before = shares
        if random.random() < 0.1:
            made = leases.beat("g", "t", shares, name.encode(), b'{"leave": true}', count)
            assert made is not None
            shares = made
            holds.pop(name, None)
        else:
            told = json.loads(shares.told(count))["members"].get(name, {})
            gives_up = set(told.get("gives_up", ()))
            had = set(map(int, told.get("has", ())))
            mine = holds.setdefault(name, set())
            mine |= had - gives_up
            mine &= had
            if random.random() < 0.5:
                mine -= gives_up
            shares = beat(leases, shares, name, *mine, count=count)
        for number, owned in shares.owners.items():
            others = [one for one, held in holds.items() if number in held and one != owned.member]
            alive = [one for one in others if one in shares.members and one in before.members]
            is_new = before.owners.get(number) != owned
            assert not (is_new and alive), (step, number, alive)
            if is_new:
                assert owned.generation == shares.generation == before.generation + 1
    for _ in range(3):
        for name in shares.members:
            told = json.loads(shares.told(count))["members"][name]
            kept = set(map(int, told["has"])) - set(told["gives_up"])
            shares = beat(leases, shares, name, *kept, count=count)
    sizes = [len(shares.held(name)) for name in shares.members]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1


def test_what_is_no_sign_of_life_is_refused() -> None:
    """Anybody may publish anything."""
    leases, shares = Leases(Clock()), Shares()
    good = b'{"lease_ms": 1000, "holds": []}'
    bad = (
        *(b"", b"[]", b"1", b"{}", b"\xff", b"[" * 5000, b'{"lease_ms": 999, "holds": []}'),
        *(b'{"lease_ms": true, "holds": []}', b'{"lease_ms": 1000, "holds": {}}'),
        *(b'{"lease_ms": 1000, "holds": ["1"]}', b'{"lease_ms": 1e9, "holds": []}'),
    )
    for content in bad:
        assert Beat.read(content) is None
        assert leases.beat("g", "t", shares, b"a", content, 2) is None
    for key in (None, b"", b"x" * 65, b"a b", b"a\n"):
        assert leases.beat("g", "t", shares, key, good, 2) is None
    for number in range(TANK_GROUP_MEMBERS):
        made = leases.beat("g", "t", shares, b"%d" % number, good, 2)
        assert made is not None
        shares = made
    assert leases.beat("g", "t", shares, b"more", good, 2) is None


# --- over sockets ---------------------------------------------------------------------------------


@asynccontextmanager
async def broker(
    log: logweir.Log, clock: Clock | None = None, partitions: int = 4
) -> AsyncIterator[Url]:
    """A store with a topic, served."""
    if log.schema.get("t") is None:
        create_topic(log, "t", partitions, "", now_seconds=1.0)
    async with served(log, leases=Leases(clock or Clock())) as url:
        yield url


async def fill(client: Client, *numbers: int, partitions: int = 4) -> None:
    """Publish messages, each in one of the partitions."""
    async with client.producer() as producer:
        for number in numbers:
            await producer.send("t", b"%d" % number, partition=number % partitions)


async def take(one: Member, into: list[Record], *, commits: bool = True) -> None:
    """Work on what comes."""
    while True:
        found = await one.get_many(5)
        into += found
        if found and commits:
            await one.commit()


def numbers(records: list[Record]) -> list[int]:
    """What they say, in order."""
    return sorted(int(record.content) for record in records)


def test_members_share_a_topic_and_take_over_from_who_leaves(tmp_path: Path) -> None:
    """Each message is given to one of them; nobody has two partitions more than another."""

    async def test() -> None:
        with logweir.open(tmp_path / "s") as log:
            async with broker(log) as url, Client(url) as one, Client(url) as two:
                await fill(one, *range(200))
                first, second = one.member("t", group="g"), two.member("t", group="g")
                got: tuple[list[Record], list[Record]] = ([], [])
                async with first:
                    work = [asyncio.create_task(take(first, got[0]))]
                    await until(lambda: len(got[0]) == 200)
                    async with second:
                        work.append(asyncio.create_task(take(second, got[1])))
                        await until(lambda: len(second.partitions()) == 2)
                        assert not set(first.partitions()) & set(second.partitions())
                        await fill(one, *range(200, 400))
                        await until(lambda: len(got[0]) + len(got[1]) == 400)
                        assert len(got[1]) == 100
                        work.pop().cancel()
                    await until(lambda: len(first.partitions()) == 4)
                    await fill(one, *range(400, 440))
                    await until(lambda: len(got[0]) + len(got[1]) == 440)
                    set_partitions(log, "t", 6)
                    await until(lambda: len(first.partitions()) == 6)
                    await fill(one, *range(440, 500), partitions=6)
                    await until(lambda: len(got[0]) + len(got[1]) == 500)
                    work.pop().cancel()
                assert numbers(got[0] + got[1]) == list(range(500))

    run(test)


def test_a_dead_member_s_messages_come_again_and_its_commit_is_refused(tmp_path: Path) -> None:
    """From the place that it has committed; what it was given after that is given to another."""

    async def test() -> None:
        clock = Clock()
        with logweir.open(tmp_path / "s") as log:
            async with broker(log, clock, 1) as url, Client(url) as one, Client(url) as two:
                await fill(one, *range(10), partitions=1)
                dead = one.member("t", group="g")
                await dead.__aenter__()
                assert [int((await dead.get()).content) for _ in range(4)] == [0, 1, 2, 3]
                await dead.commit()
                assert [int((await dead.get()).content) for _ in range(3)] == [4, 5, 6]
                assert dead._task is not None
                dead._task.cancel()
                async with two.member("t", group="g") as heir:
                    assert await heir.get_many(100) == []
                    assert heir.partitions() == []
                    clock.seconds += 10.1
                    got = [await heir.get() for _ in range(6)]
                    assert [int(record.content) for record in got] == [4, 5, 6, 7, 8, 9]
                    with pytest.raises(PeerRefused) as refused:
                        await dead.commit()
                    assert refused.value.result == PublishResult.BAD_NUMBERS
                    assert await heir.committed() == {0: 5}
                    async with one.consumer("t", group="g") as stranger:
                        with pytest.raises(PeerRefused):
                            await stranger.commit()
                    await heir.commit()
                    assert await heir.committed() == {0: 11}
                    await dead._beat()  # it is back, and has nothing
                    assert await dead.get_many(10) == []
                    assert dead.partitions() == []

    run(test)


def test_a_member_that_reaches_nobody_gives_nothing_out(tmp_path: Path) -> None:
    """Once its lease is over here, whatever it has fetched; and goes on when the broker is back,
    which was stopped and has the same owners."""

    async def test() -> None:
        with logweir.open(tmp_path / "s") as log:
            async with broker(log, None, 2) as url:
                one = Client(url)
                await fill(one, *range(20), partitions=2)
                lonely = one.member("t", group="g")
                await lonely.__aenter__()
                assert len(await lonely.get_many(3)) == 3
                await lonely.commit()
                assert len(await lonely.get_many(3)) == 3
                before = [tuple(row) for row in log.select("logweir_group")]
            lonely._until = 0.0
            assert await lonely.get_many(3) == []
            async with served(log, leases=Leases(Clock())) as again:
                one.url = again
                got: list[Record] = []
                while len(got) < 17:
                    got += await lonely.get_many(100)
                assert len(set(numbers(got))) == 17
                assert [tuple(row) for row in log.select("logweir_group")] == before
                await lonely.commit()
                await lonely.__aexit__()
                assert [row[3:] for row in log.select("logweir_group")] == [({}, {})]
                await one.close()

    run(test)


def test_from_the_end_a_group_begins_once(tmp_path: Path) -> None:
    """Where the first member began is a place, which the next one goes on from."""

    async def test() -> None:
        with logweir.open(tmp_path / "s") as log:
            async with broker(log) as url, Client(url) as one:
                await fill(one, *range(40))
                async with one.member("t", group="g", start="end") as first:
                    await until_read(first, 4)
                await fill(one, *range(40, 60))
                async with one.member("t", group="g", start="end") as second:
                    got: list[Record] = []
                    while len(got) < 20:
                        got += await second.get_many()
                assert numbers(got) == list(range(40, 60))

    async def until_read(one: Member, count: int) -> None:
        while len(one.partitions()) < count:
            assert await one.get_many() == []

    run(test)


def test_a_partition_that_is_taken_up_commits_no_other(tmp_path: Path) -> None:
    """What was given of another one is not done yet; and the place of a partition counts as it is
    once the partition is this member's, not as it was before."""

    async def test() -> None:
        with logweir.open(tmp_path / "s") as log:
            async with broker(log, partitions=1) as url, Client(url) as client:
                await fill(client, *range(9), partitions=1)
                async with client.member("t", group="g") as one:
                    assert len(await one.get_many(5)) == 5
                    set_partitions(log, "t", 3)
                    read = one.committed

                    async def late() -> Mapping[int, int]:
                        places = await read()
                        while len(one._share.has) < 3:
                            await one._beat()
                        return places

                    one._share = member._Share({0: one._share.has[0], 1: 0})
                    one.committed = late  # type: ignore[method-assign]
                    await one._settle()
                    assert one.partitions() == [0]
                    one.committed = read  # type: ignore[method-assign]
                    await one._settle()
                    assert one.partitions() == [0, 1, 2]
                    assert await one.committed() == {0: 1, 1: 1, 2: 1}

    run(test)


def test_brokers_without_groups_and_options_that_cannot_be_say_so(tmp_path: Path) -> None:
    """A Tank broker knows no topic of that name."""

    async def test() -> None:
        store = MemoryStore()
        store.create("t", 2)
        async with listening(store) as url, Client(url) as client:
            with pytest.raises(PeerRefused, match="unknown topic"):
                async with client.member("t", group="g"):
                    pass
            with pytest.raises(ConfigError, match="group"):
                client.member("t")
            for make in (client.member, client.consumer):
                with pytest.raises(ConfigError, match=r"group .*'a/b' has a slash"):
                    make("t", group="a/b")
                with pytest.raises(ConfigError, match=r"topic .*'a/b' has a slash"):
                    make("a/b", group="g")
            with pytest.raises(ConfigError, match="lease_seconds"):
                client.member("t", group="g", lease_seconds=0.5)
        with logweir.open(tmp_path / "s") as log:
            async with broker(log) as url, Client(url) as client:
                part = PublishPart("group:g/t", 0, encode_bundle([Message(1, 1, b"a", b"{}")]))
                assert list(await client.publish([part])) == [PublishResult.BAD_NUMBERS]
                log.replace("logweir_group", ("odd", "t", 1, {}, {"x": [1]}))
                for name in ("group:odd/t", "consumer:odd/t"):
                    part = PublishPart(name, 0, encode_bundle([Message(1, 1, b"a", b"{}")]), 1)
                    asked = await client.publish([part], at_numbers=True)
                    assert list(asked) == [PublishResult.FAILED]
                assert await client.bundle_at("group:odd/t", 0, 0) == []
                for name in ("group:g", "group:/t", "group:g/none"):
                    part = PublishPart(name, 0, encode_bundle([Message(1, 1, b"a", b"{}")]))
                    assert list(await client.publish([part])) == [PublishResult.UNKNOWN_TOPIC]

    run(test)


def test_a_tank_broker_s_metrics_are_told(tmp_path: Path) -> None:
    """Of each topic that is published to and read; nothing of the names that groups have."""

    async def test() -> None:
        options = ServerOptions(listen=[parse_listen_url("tank://127.0.0.1:0")], guest="all")
        with logweir.open(tmp_path / "s") as log:
            create_topic(log, "t", 4, "", now_seconds=1.0)
            server = Server(log, options)
            (url,) = await server.start()
            async with Client(url) as client:
                await fill(client, *range(8))
                async with client.member("t", group="g") as one:
                    for _ in range(8):
                        await one.get()
                    await one.commit()
            text = server.shared.metrics.render().decode()
            await server.stop()
        found = re.findall(r'^(tanksrv_\w+){m="t"} (\S+)$', text, re.MULTILINE)
        told = {name.removeprefix("tanksrv_topic_"): float(value) for name, value in found}
        assert told["produced_msgs"] == 8
        assert told["consumed_bytes"] >= told["produced_bytes"] > 8
        assert text.count('{m="') == 3

    run(test)


def test_members_without_asyncio(tmp_path: Path) -> None:
    """The same class, each call waits."""

    async def test() -> None:
        with logweir.open(tmp_path / "s") as log:
            async with broker(log) as url, Client(url) as client:
                await fill(client, *range(8))
                await asyncio.to_thread(work, str(url))

    def work(url: str) -> None:
        with sync.Client(url) as client, client.member("t", group="g") as one:
            got = Counter(int(one.get().content) for _ in range(8))
            one.commit()
            assert one.partitions() == [0, 1, 2, 3]
        assert got == Counter(range(8))

    run(test)
