"""Large bundles: stored one by one without joining them, above the size of other tuples."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

import logweir
from logweir.errors import RequestError
from logweir.limits import TANK_BUNDLE_BYTES, TANK_FRAME_BYTES, TOPIC_TUPLE_BYTES, TUPLE_BYTES
from logweir.replication.protocols import parse_listen_url
from logweir.replication.server import Server, ServerOptions
from logweir.replication.tank.client.connection import Connection
from logweir.replication.tank.wire.messages import (
    Create,
    Fetch,
    FetchPart,
    FetchStatus,
    Publish,
    PublishPart,
    PublishResult,
)
from logweir.replication.topic import publishing
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.store.commit.append import append_job, append_tuples
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.engine.request import Request
from logweir.store.engine.select import Select, select
from logweir.store.schema.values import LargeTuple
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

FIELDS = (
    ("partition", "unsigned"),
    ("first", "unsigned"),
    ("last", "unsigned"),
    ("time", "unsigned"),
    ("bundle", "varbinary"),
)


def bundle(size: int) -> bytes:
    """One message of so many bytes that do not compress."""
    return encode_bundle([Message(0, 1, None, os.urandom(size))], compress=False)


def run(folder: Path, test: Callable[[Connection], Awaitable[None]]) -> None:
    """Run `test` on a connection to a store in `folder` with topic t, five minutes at most."""

    async def limited() -> None:
        with logweir.open(folder, durability="write") as log:
            listen = [parse_listen_url("tank://127.0.0.1:0")]
            memory = 32 * TANK_FRAME_BYTES  # a stranger's frame may be a small part of it
            server = Server(log, ServerOptions(listen=listen, guest="all", memory_bytes=memory))
            (url,) = await server.start()
            connection = await Connection.open(url)
            await connection.ask(Create(0, "t", 3))
            async with asyncio.timeout(300):
                await test(connection)
            connection.close()
            await connection.wait_closed()
            await server.stop()

    asyncio.run(limited())


async def publish(connection: Connection, *parts: PublishPart) -> list[PublishResult]:
    """Publish parts of topic t in one request."""
    answered = await connection.ask(Publish(0, (("t", parts),)), timeout_seconds=300)
    return list(answered.results[0])


async def fetch(connection: Connection, partition: int, number: int, size: int = 1) -> bytes:
    """The chunk of a fetch."""
    request = Fetch(0, (("t", (FetchPart("t", partition, number, size),)),))
    (part,) = (await connection.fetch(request)).parts
    return part.chunk


def test_bundle_above_the_size_of_tuples_is_stored_and_kept(tmp_path: Path) -> None:
    """1, 3 and 40 MiB come back byte for byte, also from the log alone."""
    sent = [bundle(size) for size in (TUPLE_BYTES, 3 * TUPLE_BYTES, 40 * TUPLE_BYTES)]

    async def test(connection: Connection) -> None:
        for number, data in enumerate(sent, 1):
            assert await publish(connection, PublishPart("t", 0, data)) == [PublishResult.STORED]
            assert (await fetch(connection, 0, number)).endswith(data)

    run(tmp_path / "s", test)
    for file in (tmp_path / "s" / "state").iterdir():
        file.unlink()
    with logweir.open(tmp_path / "s") as log:
        assert [row[4] for row in log.select("t")] == sent


def test_only_topics_take_tuples_so_large(tmp_path: Path) -> None:
    """Another format keeps to the size that Tarantool has."""
    with logweir.open(tmp_path / "s", durability="write") as log:
        log.create_space("t", FIELDS, primary=["partition", "first"])
        log.create_space("u", [*FIELDS[:4], ("data", "varbinary")], primary=["partition"])
        row = (0, 1, 1, 0, bytes(2 * TUPLE_BYTES))
        assert log.insert("t", row) == row
        with pytest.raises(RequestError, match="tuple is too large"):
            log.insert("u", row)


def test_bundle_above_the_limit_is_refused_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n bytes are stored, n + 1 get result 2, what came with them is stored."""
    most = 100_000
    monkeypatch.setattr(publishing, "TANK_BUNDLE_BYTES", most)
    fits = bundle(most - 13)
    assert len(fits) == most
    over = bundle(most - 12)

    async def test(connection: Connection) -> None:
        parts = [PublishPart("t", 0, data) for data in (fits, over, fits)]
        results = await publish(connection, *parts)
        wanted = [PublishResult.STORED, PublishResult.FAILED, PublishResult.STORED]
        assert results == wanted

    run(tmp_path / "s", test)


@pytest.mark.slow
def test_bundle_refused_for_its_numbers_is_alone_in_its_group(tmp_path: Path) -> None:
    """Nothing is stored, the reason is told, and what follows gets the next number."""
    data = bundle(20_000)

    async def test(connection: Connection) -> None:
        assert await publish(connection, PublishPart("t", 0, data)) == [PublishResult.STORED]
        taken = Publish(0, (("t", (PublishPart("t", 0, data, 1),)),), at_numbers=True)
        answer = await connection.ask(taken)
        assert answer.results[0] == (PublishResult.BAD_NUMBERS,)
        assert await publish(connection, PublishPart("t", 0, data)) == [PublishResult.STORED]
        assert (await fetch(connection, 0, 2)).endswith(data)
        assert (await fetch(connection, 0, 3)) == b""

    run(tmp_path / "s", test)


def test_frame_of_256_mib_is_taken(tmp_path: Path) -> None:
    """Four of the largest bundles in one frame are stored; one that is as large as the frame gets
    result 2, and the connection stays."""
    data = bundle(TANK_BUNDLE_BYTES - 14)
    assert len(data) <= TANK_BUNDLE_BYTES

    async def test(connection: Connection) -> None:
        parts = [PublishPart("t", partition % 3, data) for partition in range(4)]
        assert await publish(connection, *parts) == [PublishResult.STORED] * 4
        assert (await fetch(connection, 2, 1)).endswith(data)
        huge = bundle(256 * 1024 * 1024 - 100)
        assert await publish(connection, PublishPart("t", 0, huge)) == [PublishResult.FAILED]
        assert await publish(connection, PublishPart("t", 1, data)) == [PublishResult.STORED]

    run(tmp_path / "s", test)


def test_partitions_in_any_order_keep_their_bundles(tmp_path: Path) -> None:
    """Keys that do not ascend, small and large bundles mixed, zeros, text that compresses."""
    kinds = [
        bundle(30_000),
        bundle(10),
        encode_bundle([Message(0, 1, None, bytes(60_000))], compress=False),
        encode_bundle([Message(0, 1, None, b"text " * 20_000)], compress=False),
        bundle(200_000),
    ]

    async def test(connection: Connection) -> None:
        sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        for turn in range(4):
            parts = []
            for at, data in enumerate(kinds):
                partition = (2 - at - turn) % 3
                sent[partition].append(data)
                parts.append(PublishPart("t", partition, data))
            assert await publish(connection, *parts) == [PublishResult.STORED] * len(kinds)
        for partition, wanted in sent.items():
            for number, data in enumerate(wanted, 1):
                assert (await fetch(connection, partition, number)).endswith(data)

    run(tmp_path / "s", test)
    kept = tmp_path / "s"
    with logweir.open(kept) as log:
        before = log.select("t")
    for file in (kept / "state").iterdir():
        file.unlink()
    with logweir.open(kept) as log:
        assert log.select("t") == before
        assert log.report.ok


def test_reading_in_order_sees_what_comes_and_what_goes(tmp_path: Path) -> None:
    """What was read ahead is not served when it is no longer so."""

    async def test(connection: Connection) -> None:
        sent = [bundle(20_000) for _ in range(30)]
        for data in sent:
            await publish(connection, PublishPart("t", 0, data))
        found = [await fetch(connection, 0, number, 45_000) for number in range(1, 31, 2)]
        for at, chunk in enumerate(found):
            assert chunk.endswith(sent[2 * at + 1])
            assert sent[2 * at] in chunk
        assert await fetch(connection, 0, 31) == b""
        await publish(connection, PublishPart("t", 0, sent[0]))
        assert (await fetch(connection, 0, 31)).endswith(sent[0])
        assert (await fetch(connection, 0, 30, 45_000)).endswith(sent[0])

    run(tmp_path / "s", test)


def test_damaged_bundle_is_unreadable_and_all_others_are_served(tmp_path: Path) -> None:
    """One flipped bit in the log under a running server: the bundles before it come, then status
    fb, and the connection stays."""

    async def test(connection: Connection) -> None:
        sent = [bundle(50_000) for _ in range(4)]
        for data in sent:
            await publish(connection, PublishPart("t", 0, data))
        path = max((tmp_path / "s").glob("*.xlog"))
        log = path.read_bytes()
        at = log.index(sent[2]) + 1000
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes((log[at] ^ 4,)))
        assert (await fetch(connection, 0, 1, 1_000_000)).endswith(sent[1])
        request = Fetch(0, (("t", (FetchPart("t", 0, 3, 1), FetchPart("t", 0, 4, 1))),))
        damaged, whole = (await connection.fetch(request)).parts
        assert damaged.status is FetchStatus.UNREADABLE
        assert whole.chunk.endswith(sent[3])

    run(tmp_path / "s", test)


def test_ranges_go_on_behind_what_stands_in_the_log(tmp_path: Path) -> None:
    """Any part of them, forward and back, is what the reference engine finds."""
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t", FIELDS, primary=["partition", "first"])
        space = log.schema.space("t").id
        contents = [os.urandom(40_000 if at % 3 else 100) for at in range(19)]
        rows = [(0, at, at, 0, data) for at, data in enumerate(contents)]
        for row in rows:
            if len(row[-1]) > 100:
                log.inner.run_job(
                    Job(functools.partial(append_tuples, space_id=space, tuples=[large(row)]))
                )
            else:
                log.insert("t", row)
        for offset, limit in ((0, None), (1, 7), (4, 5), (0, 1), (18, 9), (19, None)):
            for iterator in ("GE", "LE"):
                found = rows if iterator == "GE" else rows[::-1]
                wanted = found[offset:][:limit]
                kind = Select.of(
                    log.schema, "t", [0], iterator=iterator, offset=offset, limit=limit
                )
                with log.read_view() as view:
                    assert [tuple(unpack(data)) for data in select(view.engine, kind)] == wanted


def large(row: Sequence[object]) -> LargeTuple:
    """A tuple whose last field is a bin, in two parts."""
    data, payload = pack(row), row[-1]
    assert isinstance(payload, bytes)
    return LargeTuple(data[: len(data) - len(payload)], payload)


def test_both_ways_to_append_give_the_same_log_and_state(tmp_path: Path) -> None:
    """The rows of `append_tuples` are those of `append_job`, and it refuses what that refuses."""
    rows = [large([n % 3, n, n, 0, os.urandom(20_000)]) for n in range(1, 20)]
    found = []
    for name, together in (("one", True), ("two", False)):
        with logweir.open(tmp_path / name, durability="write") as log:
            log.create_space("t", FIELDS, primary=["partition", "first"])
            space = log.schema.space("t").id

            def apply(group: Group, together: bool = together, space: int = space) -> object:
                if together:
                    return append_tuples(group, space, rows)
                job = append_job(
                    space,
                    b"".join(map(LargeTuple.joined, rows)),
                    one_transaction=False,
                )
                return job(group)

            log.inner.run_job(Job(apply))
            new = large([9, 9, 9, 9, b"z"])
            huge = large([9, 9, 9, 9, bytes(TOPIC_TUPLE_BYTES)])
            bad_rows = (rows[3], large([1, 2, b"y"]), large([0, "x", 1, 1, b"y"]), huge)
            for bad in ([new, new], *([row] for row in bad_rows)):
                with pytest.raises(RequestError):
                    log.inner.run_job(
                        Job(functools.partial(append_tuples, space_id=space, tuples=bad))
                    )
            assert log.vclock.signature == log.vclock.lsn(1)
            found.append((log.select("t"), log.vclock.signature))
            found.append(
                [
                    (row.type, row.lsn, row.tsn, row.decoded())
                    for batch in log.rows()
                    for row in batch.rows
                    if row.decoded().get("space_id") == space
                ]
            )
    assert found[0] == found[2]
    assert found[1] == found[3]


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_jobs_of_the_same_commit_see_what_is_not_written_yet(
    tmp_path: Path, durability: str
) -> None:
    """Large tuples can be read, changed, removed and refused again before the log has them; then
    each is what it was made last."""
    rows = [large([0, n, n, 0, os.urandom(20_000)]) for n in range(1, 6)]
    whole = [unpack(row.joined()) for row in rows]
    with logweir.open(tmp_path / "s", durability=durability) as log:
        log.create_space("t", FIELDS, primary=["partition", "first"])
        space = log.schema.space("t").id
        seen: list[object] = []

        def see(group: Group) -> None:
            wanted = Select.of(group.schema, space, None)
            seen.extend(unpack(one) for one in select(group.engine, wanted))

        def change(group: Group) -> None:
            new = pack([0, 2, 2, 9, b"small"])
            before, _ = group.execute(Request(RowType.REPLACE, space, tuple=new))
            assert before == rows[1].joined()
            ops = pack([["=", 3, 8]])
            group.execute(Request(RowType.UPDATE, space, key=pack([0, 3]), ops=ops))
            group.execute(Request(RowType.DELETE, space, key=pack([0, 4])))

        again = Job(lambda group: append_tuples(group, space, rows[:1]))
        jobs = [Job(lambda group: append_tuples(group, space, rows)), Job(see), Job(change)]
        with pytest.raises(RequestError, match="Duplicate key"):
            log.inner.run_job(again, jobs)
        assert [job.error for job in jobs] == [None] * 3
        assert seen == whole
        left = [tuple(whole[0]), (0, 2, 2, 9, b"small"), (0, 3, 3, 8, whole[2][4]), tuple(whole[4])]
        assert log.select("t") == left
    if durability == "fsync":
        shutil.rmtree(tmp_path / "s" / "state")
        with logweir.open(tmp_path / "s") as log:
            assert log.select("t") == left


@pytest.mark.parametrize("before", [120, 250, 65_530])
def test_rows_keep_their_form_where_lsns_get_longer(tmp_path: Path, before: int) -> None:
    """A group across the place where a number takes more bytes is that of one tuple at a time."""
    rows = [large([0, n, n, 0, b"x" * 10_000]) for n in range(1, 13)]
    found = []
    for name, step in (("one", 12), ("two", 1)):
        with logweir.open(tmp_path / name, durability="write", clock=lambda: 7.0) as log:
            log.create_space("t", FIELDS, primary=["partition", "first"])
            log.create_space("u", [("n", "unsigned")], primary=["n"])
            log.append("u", [[n] for n in range(before - log.vclock.lsn(1))])
            assert log.vclock.lsn(1) == before
            space = log.schema.space("t").id
            for at in range(0, 12, step):
                some = rows[at : at + step]
                log.inner.run_job(
                    Job(functools.partial(append_tuples, space_id=space, tuples=some))
                )
            transactions = [batch for batch in log.rows() if batch.rows[0].lsn > before]
            assert len(transactions) == 12
            found.append(
                [
                    (row.type, row.lsn, row.tsn, row.decoded())
                    for batch in transactions
                    for row in batch.rows
                ]
            )
            assert log.select("t") == [tuple(unpack(row.joined())) for row in rows]
    assert found[0] == found[1]


def test_space_with_more_indexes_is_left_to_the_ordinary_way(tmp_path: Path) -> None:
    """Nothing is done, and that is told."""
    with logweir.open(tmp_path / "s", durability="write") as log:
        log.create_space(
            "t", FIELDS, primary=["partition", "first"], indexes={"by_time": ["time", "first"]}
        )
        space = log.schema.space("t").id
        job = Job(lambda group: append_tuples(group, space, [large([0, 1, 1, 0, b""])]))
        log.inner.run_job(job)
        assert job.result is False
        assert log.select("t") == []
