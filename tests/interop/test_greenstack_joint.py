"""What clients of a bucket ask for in one turn of the loop is one batch; each is told its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from interop.gsraw import RawClient, get, mutation, vbucket
from interop.serving import Serving
from interop.test_greenstack_sockets import serve
from logweir.replication.bucket import joint
from logweir.replication.bucket.batch import Requests
from logweir.replication.bucket.item import VbucketState
from logweir.replication.bucket.store import Buckets, GroupItems
from logweir.replication.greenstack.wire.codec import Flag, Frame, Status
from logweir.replication.greenstack.wire.messages import Operation, decode_get_answer
from logweir.replication.service import users
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.schema.access import Privilege


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each batch had."""
    found: list[int] = []
    whole = joint.Changes

    def noted(run: Requests, *others: object) -> joint.Changes:
        found.append(run.count)
        return whole(run, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(joint, "Changes", noted)
    return found


@contextmanager
def one_turn(server: Serving) -> Iterator[None]:
    """What is sent meanwhile is read in one turn of the server's loop."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        goes_on.wait()

    server._loop.call_soon_threadsafe(stand)
    stands.wait()
    try:
        yield
    finally:
        goes_on.set()


def told(client: RawClient, count: int = 1) -> list[tuple[int, int | None]]:
    """Opaque and status of the next answers."""
    answers = [client.answer() for _ in range(count)]
    return [(one.opaque, one.status) for one in answers]


def test_clients_that_ask_at_once_are_one_batch(tmp_path: Path, counts: list[int]) -> None:
    """One fails, one asks for what it may not do, one has gone before it is answered, one is of a
    vbucket that is not here: the others' requests are made, and answered to them."""
    with serve(tmp_path / "s", guest="none") as server, ExitStack() as stack:
        bucket = Buckets(server.log).make("default")

        def bury(group: Group) -> None:
            GroupItems(bucket, group, 0.0).set_state(9, VbucketState.DEAD)

        server.log.inner.run_job(Job(bury))
        rights = {"ada": Privilege.READ | Privilege.WRITE, "bob": Privilege.READ}
        for name, wanted in rights.items():
            users.add_user(server.log, name, password="secret")
            users.grant(server.log, name, wanted, users.Target("space", "default"))

        def client(name: str = "ada") -> RawClient:
            return stack.enter_context(RawClient(server.port, user=name, password="secret"))

        first, failing, stranger, gone, other, last = (
            client("bob" if number == 2 else "ada") for number in range(6)
        )
        assert first.ask(mutation(b"there", b"v")).status == Status.SUCCESS
        counts.clear()
        before = server.log.inner.commits
        with one_turn(server):
            first.send(mutation(b"a", b"1", opaque=1), mutation(b"b", b"2", opaque=2))
            failing.send(mutation(b"there", b"no", Operation.ADD, opaque=3))
            stranger.send(mutation(b"there", b"no", opaque=4))
            gone.send(mutation(b"c", b"3"))
            gone.socket.close()
            other.send(mutation(b"d", b"no", opaque=5, flex=vbucket(9)))
            last.send(mutation(b"e", b"4", opaque=6, flex=vbucket(0, lane=b"x")), get(b"there"))
        assert told(first, 2) == [(1, 0), (2, 0)]
        assert told(failing) == [(3, Status.ALREADY_EXISTS)]
        assert told(stranger) == [(4, Status.NO_ACCESS)]
        assert told(other) == [(5, Status.NOT_MY_VBUCKET)]
        assert sorted(told(last, 2)) == [(0, 0), (6, 0)]
        assert server.log.inner.commits == before + 1
        assert max(counts) >= 3
        keys = {row[0] for row in server.log.select("default")}
        assert keys in ({b"there", b"a", b"b", b"e"}, {b"there", b"a", b"b", b"c", b"e"})


def test_what_is_alike_is_one_batch(tmp_path: Path, counts: list[int]) -> None:
    """Each client's answer tells its own document, CAS and lsn."""
    with serve(tmp_path / "s") as server, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.port)) for _ in range(20)]
        with one_turn(server):
            for number, client in enumerate(clients):
                client.send(mutation(b"k%d" % number, b"v%d" % number, opaque=number))
        assert [told(client) for client in clients] == [[(n, 0)] for n in range(20)]
        assert counts == [20]
        assert len({row[5] for row in server.log.select("default")}) == 20
        for number, client in enumerate(reversed(clients)):
            found = decode_get_answer(client.ask(get(b"k%d" % number)).payload)
            assert found.value == b"v%d" % number


def test_requests_of_a_lane_keep_their_order_in_a_batch(tmp_path: Path) -> None:
    """Around a transaction, of which a part fails in one client's and none in the other's."""

    def requests(key: bytes, added: bytes) -> list[Frame]:
        return [
            mutation(key, b"1", opaque=1),
            mutation(key, b"2", opaque=2, flags=Flag.MORE),
            mutation(added, b"2", Operation.ADD, opaque=3),
            mutation(key + b"too", b"3", opaque=4),
            mutation(key, b"4", Operation.ADD, opaque=5),
        ]

    with serve(tmp_path / "s") as server, RawClient(server.port) as one:
        with RawClient(server.port) as other:
            before = server.log.inner.commits
            with one_turn(server):
                one.send(*requests(b"x", b"x"))
                other.send(*requests(b"y", b"z"))
            exists, undone = Status.ALREADY_EXISTS, Status.INVALID_STATE
            assert told(one, 5) == [(1, 0), (2, undone), (3, exists), (4, 0), (5, exists)]
            assert told(other, 5) == [(1, 0), (2, 0), (3, 0), (4, 0), (5, exists)]
            assert server.log.inner.commits == before + 1
        stored = {row[0]: row[2] for row in server.log.select("default")}
        assert stored == {b"x": b"1", b"xtoo": b"3", b"y": b"2", b"z": b"2", b"ytoo": b"3"}
        sizes = [len(one.rows) for one in server.log.rows() if one.rows[0].space_id >= 512]
        assert 2 in sizes
