"""A program that commits in every way there is, for a trace of its system calls.

It writes `begin NAME` before and `answer NAME` after each change, to a file of its own; each change
has the bytes `<NAME>` in it. Run: `python committing.py FOLDER`. It ends by saying how
often the state took what was committed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent


class Commit:
    """Notes what is begun and what is answered."""

    def __init__(self, marks: int) -> None:
        self.marks = marks

    def begin(self, name: str) -> None:
        """Before the change is asked for."""
        os.write(self.marks, f"begin {name};".encode())

    def answer(self, name: str) -> None:
        """When it is answered."""
        os.write(self.marks, f"answer {name};".encode())

    def __call__(self, name: str, change: Callable[[str], object]) -> None:
        """Make a change."""
        self.begin(name)
        change(f"<{name}>")
        self.answer(name)


def main(folder: Path) -> None:
    sys.path.insert(0, str(TESTS))
    import logweir
    from logweir.store.state import stacked
    from logweir.wal import failpoint

    stacked.LAYER_BYTES = 100_000  # the state takes them again and again, between the commits
    taken: list[None] = []
    failpoint.arm("store.before_apply_commit", lambda: taken.append(None))
    commit = Commit(os.open(folder / "marks", os.O_WRONLY | os.O_CREAT))
    embedded(logweir, folder, commit)
    jobs(logweir, folder, commit)
    closing(logweir, folder)
    asyncio.run(tasks(folder, commit))
    served(folder, commit)
    print(len(taken))


def embedded(logweir: Any, folder: Path, commit: Commit) -> None:
    """What a program does with a store of its own."""
    fields = [("id", "unsigned"), ("value", "string")]
    with logweir.open(folder / "new" / "store", compress_threshold=None) as log:
        commit("define", lambda mark: log.create_space("t", [*fields, (mark, "any")]))
        commit("insert", lambda mark: log.insert("t", (1, mark, 0)))
        commit("replace", lambda mark: log.replace("t", (1, mark, 1)))
        commit("upsert", lambda mark: log.upsert("t", (1, "", 0), [("=", 2, mark)]))

        def transact(mark: str) -> None:
            with log.transaction() as tx:
                tx.insert("t", (2, mark, 0))
                tx.delete("t", 1)

        def alone(key: int, mark: str) -> None:
            with log.transaction() as tx:
                tx.insert("t", (key, mark, 0))

        commit("transaction", transact)
        commit("run", lambda mark: log.append("t", [(k, mark, 0) for k in range(10, 20)]))
        apart = [(k, "<apart>", 0) for k in range(30, 40)]
        commit("apart", lambda mark: log.append("t", apart, one_transaction=False))
        # So much waits for the state that it takes it during a sync.
        for number in range(4):
            first = 100_000 * (number + 1)
            rows = [(first + k, f"<much{number}>" + "x" * 100, 0) for k in range(8000)]
            commit(f"much{number}", lambda mark, rows=rows: log.append("t", rows))
        large = [(90 + k, "<large>" + "y" * 900_000, 0) for k in range(3)]
        commit("large", lambda mark: log.append("t", large))

        def share(number: int) -> None:
            commit(f"shared{number}", lambda mark: log.insert("t", (200 + number, mark, 0)))
            commit(f"ahead{number}", lambda mark: alone(300 + number, mark))

        threads = [threading.Thread(target=share, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.snapshot()
        commit("rotated", lambda mark: log.insert("t", (3, mark, 0)))
    with logweir.open(folder / "new" / "store", wal_max_size=2) as log:
        commit("reopened", lambda mark: log.insert("t", (4, mark, 0)))
        commit("full", lambda mark: log.insert("t", (5, mark, 0)))


def jobs(logweir: Any, folder: Path, commit: Commit) -> None:
    """How servers have changes made: jobs that wait, or tell when they are done."""
    from logweir.store.commit.append import append_tuples
    from logweir.store.commit.jobs import Job
    from logweir.store.engine.batches import puts
    from logweir.store.engine.statements import request_for
    from logweir.store.schema.definition import TOPIC_FIELDS
    from logweir.store.schema.values import LargeTuple
    from logweir.wal.mp import pack
    from logweir.wal.xrow import RowType

    with logweir.open(folder / "jobs", compress_threshold=None) as log:
        log.create_space("t", [("id", "unsigned"), ("value", "string")])
        log.create_space("topic", TOPIC_FIELDS, primary=["partition", "first"])
        space, topic = (log.schema.space(name).id for name in ("t", "topic"))

        def job(mark: str) -> Job:
            data = pack([1, mark])
            columns = puts(RowType.REPLACE, array("Q", (0, len(data))), None)

            def apply(group: Any) -> None:
                answers = group.execute_batch(data, columns, (space,), limit_bytes=1)
                assert not answers.refused

            return Job(apply, len(data))

        def submitted(mark: str) -> None:
            several = [job(mark) for _ in range(5)]
            done = threading.Event()
            several[-1].finished = lambda _: done.set()
            log.inner.submit_jobs(several)
            assert done.wait(30)
            assert [one.error for one in several] == [None] * 5

        def referred(mark: str) -> None:
            payload = mark.encode() + b"z" * 100_000
            data = pack([0, 1, 1, 0, payload])
            one = LargeTuple(data[: -len(payload)], payload)
            log.inner.run_job(Job(lambda group: append_tuples(group, topic, [one])))

        for number in range(20):
            commit(f"job{number}", lambda mark: log.inner.run_job(job(mark)))
        commit("together", lambda mark: log.inner.run_job(job(mark), [job(mark)]))
        commit("jobs", submitted)
        commit(
            "future",
            lambda mark: log.inner.submit(
                request_for(RowType.REPLACE, log.schema, "t", (2, mark))
            ).result(30),
        )
        commit("referred", referred)


def closing(logweir: Any, folder: Path) -> None:
    """Rows are written while the log is synced in another thread; then it is closed."""
    import logweir.store.log as module

    module.SYNC_ASIDE_BYTES = 20_000
    with logweir.open(folder / "aside", "write", compress_threshold=None) as log:
        log.create_space("t", [("id", "unsigned"), ("value", "string")])
        for number in range(30):
            log.insert("t", (number, "z" * 1000))


async def tasks(folder: Path, commit: Commit) -> None:
    """Tasks of an asyncio program, which share syncs."""
    from logweir import aio

    async with aio.open(folder / "tasks", compress_threshold=None) as log:
        await log.run(lambda sync: sync.create_space("t", [("id", "unsigned"), ("v", "string")]))

        async def one(number: int) -> None:
            await acommit(commit, f"task{number}", lambda mark: log.insert("t", (number, mark)))

        await asyncio.gather(*(one(number) for number in range(5)))

        async def transact(number: int) -> None:
            async def change(mark: str) -> None:
                async with log.transaction() as tx:
                    await tx.insert("t", (100 + number, mark))

            await acommit(commit, f"transacted{number}", change)

        await asyncio.gather(*(transact(number) for number in range(8)))


def served(folder: Path, commit: Commit) -> None:
    """What clients of a server do, and what a follower tells its master."""
    from interop.kvclient import KvClient, store
    from interop.serving import Serving
    from logweir.replication.iproto.follow.join import join
    from logweir.replication.protocols import parse_listen_url

    schemes = ("tarantool", "memcached", "tank", "greenstack")
    listen = [parse_listen_url(f"{scheme}://:0") for scheme in schemes]
    options = {"compress_threshold": None}
    with Serving(folder / "master", listen=listen, open_options=options, guest="all") as master:
        urls = dict(zip(schemes, master.urls, strict=True))
        master.log.create_space("t", [("id", "unsigned"), ("value", "string")])
        with KvClient(urls["memcached"].port) as client:
            commit("first", lambda mark: client.ask(store(b"k0", mark.encode())))
            commit("set", lambda mark: client.ask(store(b"k1", mark.encode())))
            several = [store(f"k{k}".encode(), b"<sets>") for k in range(9)]
            commit("sets", lambda mark: client.batch(*several))
        space = master.log.schema.space("t").id
        asyncio.run(requests(urls, space, commit))
        asyncio.run(join(urls["tarantool"], folder / "replica"))
        with Serving(
            folder / "replica",
            listen=[],
            open_options=options,
            guest="all",
            follow=[urls["tarantool"]],
        ) as replica:

            def replicated(mark: str) -> None:
                master.log.insert("t", (700, mark))
                wanted = master.log.vclock
                replica.wait(lambda: replica.log.vclock.covers(wanted))

            commit("followed", replicated)


async def requests(urls: Any, space: int, commit: Commit) -> None:
    """Requests of the other protocols, each of which is answered when it is durable."""
    from logweir.replication.greenstack.client import Client as Greenstack
    from logweir.replication.greenstack.client import Put
    from logweir.replication.iproto.client import open_client
    from logweir.replication.tank.client import Client as Tank
    from logweir.replication.tank.wire.messages import PublishPart
    from logweir.replication.topic.bundle import Message, encode_bundle
    from logweir.wal.mp import pack
    from logweir.wal.xrow import Key, RowType

    marks: list[tuple[str, Callable[[str], Any]]] = []
    async with open_client(urls["tarantool"]) as tarantool, Tank(urls["tank"]) as tank:

        async def put(kind: RowType, *rows: tuple[int, str]) -> None:
            for row in rows[1:]:
                tarantool.send(kind, pack({int(Key.SPACE_ID): space, int(Key.TUPLE): row}))
            await tarantool.call(kind, {int(Key.SPACE_ID): space, int(Key.TUPLE): rows[0]})

        several = range(510, 530)

        def bundle(mark: str, size: int) -> PublishPart:
            message = Message(1, 1, None, mark.encode() + b"z" * size)
            return PublishPart("topic", 0, encode_bundle([message], compress=False))

        await tank.create_topic("topic", 1)
        async with Greenstack(urls["greenstack"]) as greenstack:
            await greenstack.create_bucket("documents")
            await greenstack.select("documents")
            marks += [
                ("inserted", lambda mark: put(RowType.INSERT, (500, mark))),
                ("replaced", lambda mark: put(RowType.REPLACE, (500, mark))),
                (
                    "several",
                    lambda mark: put(RowType.INSERT, *((k, mark) for k in several)),
                ),
                ("document", lambda mark: greenstack.set(b"d", mark.encode())),
                ("documents", lambda mark: greenstack.set_all(documents(mark))),
                ("bundle", lambda mark: tank.publish([bundle(mark, 10)])),
                ("bundles", lambda mark: tank.publish([bundle(mark, 10) for _ in range(9)])),
                ("largest", lambda mark: tank.publish([bundle(mark, 3_000_000)])),
            ]

            def documents(mark: str) -> list[Put]:
                return [Put(f"d{number}".encode(), mark.encode()) for number in range(9)]

            for name, change in marks:
                await acommit(commit, name, change)


async def acommit(commit: Commit, name: str, change: Callable[[str], Any]) -> None:
    """`commit` of what is awaited."""
    commit.begin(name)
    await change(f"<{name}>")
    commit.answer(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
