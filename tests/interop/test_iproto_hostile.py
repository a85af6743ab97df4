"""Masters that lie and peers that attack: nothing lost, nothing unbounded, a reason in the log."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logweir
from interop import functions
from interop.rawclient import RawClient
from interop.serving import Serving
from logweir.errors import ErrorCode, RemoteProtocolError, Unreachable
from logweir.limits import LOGIN_TRIES, UPSTREAM_WAITING_BYTES
from logweir.replication.iproto.client_session import Rows, Subscribed
from logweir.replication.iproto.follow.join import join
from logweir.replication.iproto.follow.upstream import connect
from logweir.replication.iproto.serve import endpoint
from logweir.replication.iproto.wire import codec, kernel
from logweir.replication.protocols import parse_url
from logweir.replication.runner import SourceState
from logweir.replication.service import users
from logweir.wal.mp import pack
from logweir.wal.vclock import VClock

MASTER = uuid.UUID("bbbbbbbb-0000-4000-8000-000000000001")
NOISE = bytes(range(32))
HELD = pack({0x22: "held", 0x21: []})


def row(
    lsn: int,
    key: int,
    *,
    replica_id: int = 5,
    kind: int = 2,
    tsn: int | None = None,
    last: bool = True,
) -> bytes:
    """One row of space 512 as a frame."""
    header: dict[int, Any] = {0: kind, 2: replica_id, 3: lsn, 4: 1.5}
    if tsn is not None:
        header |= {8: lsn - tsn, 9: 1} if last else {8: lsn - tsn}
    return codec.frame(pack(header) + pack({0x10: 512, 0x21: [key, "from the master"]}))


class FakeMaster:
    """Speaks as a master up to SUBSCRIBE, then sends what it is told; each connection alike."""

    def __init__(self, script: bytes, *, replicaset: uuid.UUID | None, answer: bytes = b"") -> None:
        self.script = script
        self.replicaset = replicaset
        self.answer = answer
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._peers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"tarantool://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self._peers.append(peer)
                self.connections += 1
                with contextlib.suppress(OSError):
                    self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        peer.sendall(codec.encode_greeting(MASTER, NOISE))
        peer.recv(1000)
        ballot = codec.Ballot(False, VClock(), VClock(), False)
        peer.sendall(codec.encode_answer(0, 80, ballot.body()))
        self.asked = peer.recv(1000)
        peer.sendall(
            self.answer
            or codec.encode_vclock_answer(VClock(), replica_id=5, replicaset=self.replicaset)
        )
        peer.sendall(codec.encode_heartbeat(5, time.time()))
        peer.sendall(self.script)

    def __enter__(self) -> FakeMaster:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for peer in self._peers:
            peer.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with logweir.open(tmp_path / "ours") as log:
        log.create_space("t")
    return tmp_path / "ours"


def replicaset_of(folder: Path) -> uuid.UUID:
    with logweir.open(folder) as log:
        found = log.get("_schema", "cluster")
    assert found is not None
    return uuid.UUID(found[1])


@contextlib.contextmanager
def followed(folder: Path, script: bytes, **options: Any) -> Iterator[tuple[Serving, FakeMaster]]:
    options.setdefault("replicaset", replicaset_of(folder))
    with (
        FakeMaster(script, **options) as master,
        Serving(folder, follow=[parse_url(master.url)]) as serving,
    ):
        yield serving, master


def state(serving: Serving) -> SourceState:
    return serving.server.runners[0].status.state


def test_our_own_rows_are_not_asked_for(folder: Path) -> None:
    """A master that has none which we lack is to leave them out."""
    with followed(folder, row(1, 1)) as (serving, master):
        serving.wait(lambda: serving.log.count("t") == 1)
        (start, end), *_ = codec.Splitter().split(master.asked)[0]
        assert codec.decode_answer(master.asked, start, end).body[0x51] == [1]


def test_gaps_are_taken_and_what_comes_twice_is_passed_over(folder: Path) -> None:
    """As a real replica does: a jump ahead is applied, a known lsn is left out in silence."""
    script = row(1, 1) + row(5, 2) + row(5, 2) + row(3, 3) + row(9, 4)
    with followed(folder, script) as (serving, _):
        serving.wait(lambda: serving.log.vclock.lsn(5) == 9)
        assert [one[0] for one in serving.log.select("t")] == [1, 2, 4]
        assert state(serving) == SourceState.FOLLOWING


def test_transaction_is_applied_whole_or_waits(folder: Path) -> None:
    """Rows of one that has not ended are not seen."""
    parts = row(1, 1), row(2, 2, tsn=2, last=False), row(3, 3, tsn=2, last=False)
    with followed(folder, b"".join(parts)) as (serving, _):
        serving.wait(lambda: serving.log.vclock.lsn(5) == 1)
        assert [one[0] for one in serving.log.select("t")] == [1]


@pytest.mark.parametrize("replica_id", [0, 32, 33, 1000])
def test_replica_id_out_of_range_ends_it(folder: Path, replica_id: int) -> None:
    """Ids are 1 … 31: nothing of such a row is stored, and the reason is told."""
    with followed(folder, row(1, 1) + row(2, 2, replica_id=replica_id)) as (serving, _):
        serving.wait(lambda: bool(serving.server.runners[0].status.last_error))
        assert state(serving) in (SourceState.STOPPED, SourceState.WAITING)
        assert [one[0] for one in serving.log.select("t")] in ([], [1])
        assert set(serving.log.vclock) <= {1, 5}
        serving.log.insert("t", (100,))


def test_other_replica_set_stops_the_source(folder: Path) -> None:
    """It is named, and nothing is applied."""
    other = uuid.UUID("cccccccc-0000-4000-8000-000000000001")
    with followed(folder, row(1, 1), replicaset=other) as (serving, _):
        serving.wait(lambda: state(serving) == SourceState.STOPPED)
        assert str(other) in serving.server.runners[0].status.last_error
        assert serving.log.select("t") == []


@pytest.mark.parametrize(
    "script",
    [
        b"\xff" * 100,
        b"GET / HTTP/1.1\r\n\r\n",
        codec.frame(b"\x81"),
        codec.frame(pack({0: 2, 2: 5, 3: 1}) + b"\x82\x10"),
        b"\xce\xff\xff\xff\xff" + bytes(100),
        row(1, 1, tsn=7),
        row(4, 1, tsn=4, last=False) + row(4, 2, tsn=4),
        row(1, 1, kind=77),
        row(1, 1, kind=3)[:-3] + b"\xc1\xc1\xc1",
        codec.frame(pack({0: 0, 2: 5, 4: "now"})),
        codec.frame(pack({0: 1 << 40})),
        row(1, 1, tsn=1, last=False) + row(2, 2, replica_id=6),
    ],
    ids=[
        *("noise", "http", "no header", "no body", "huge frame", "first row has another tsn"),
        *("lsn twice", "unknown type", "bad body", "bad time", "bad type", "two at once"),
    ],
)
def test_garbage_of_a_master_ends_the_connection(
    folder: Path, script: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source waits or stops with a reason; the store goes on."""
    monkeypatch.setattr("logweir.replication.iproto.client_session.SILENCE_SECONDS", 0.5)
    with followed(folder, script) as (serving, _):
        serving.wait(lambda: bool(serving.server.runners[0].status.last_error))
        assert serving.server.runners[0].status.last_error
        serving.log.insert("t", (100, "ours"))
        assert serving.log.get("t", 100) == (100, "ours")
    with logweir.open(folder) as log:
        assert log.get("t", 100) == (100, "ours")


@pytest.mark.parametrize(
    ("space_id", "values"),
    [
        (272, ["cluster", "no UUID"]),
        (272, ["cluster"]),
        (272, []),
        (272, {}),
        (320, [1, 7]),
        (320, [1, "no UUID"]),
        (288, [512]),
    ],
)
def test_definitions_of_a_copy_that_are_none_are_told(
    tmp_path: Path, space_id: int, values: Any
) -> None:
    """By a typed error; nothing is left."""
    begin = codec.encode_vclock_answer(VClock(), replica_id=5, replicaset=None)
    bad = codec.frame(pack({0: 2, 3: 1, 4: 1.5}) + pack({0x10: space_id, 0x21: values}))
    with FakeMaster(b"", replicaset=None, answer=begin + bad) as master:
        with pytest.raises((RemoteProtocolError, Unreachable)):
            asyncio.run(join(parse_url(master.url), tmp_path / "copy"))
        assert not list(tmp_path.iterdir())


def test_rows_of_unknown_spaces_and_raft_frames(folder: Path) -> None:
    """A raft row is left out; a row of a space that is not there stops the source by name."""
    raft = codec.frame(pack({0: 30, 2: 5, 3: 1, 4: 1.0, 7: 1}) + pack({0: 1}))
    strange = codec.frame(pack({0: 2, 2: 5, 3: 2, 4: 1.0}) + pack({0x10: 999, 0x21: [1]}))
    with followed(folder, raft + row(1, 1) + strange) as (serving, _):
        serving.wait(lambda: state(serving) == SourceState.STOPPED)
        assert "Space '999' does not exist" in serving.server.runners[0].status.last_error
        assert [one[0] for one in serving.log.select("t")] == [1]
        assert serving.log.vclock.lsn(5) == 1


# --- peers of our server --------------------------------------------------------------------------


def memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_wrong_password_storm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A few tries are refused with 47 and told in the log with the peer, then the connection is
    closed; the right one gets in, once the address is heard again."""
    monkeypatch.setattr("logweir.replication.logins.LOGIN_DELAY_MAX_SECONDS", 0.1)
    with logweir.open(tmp_path) as log:
        users.add_user(log, "alice", password="wonder")
    with Serving(tmp_path) as serving:
        with RawClient(serving.port) as client:
            guess = codec.frame(pack({0: 7, 1: 9}) + pack({0x23: "alice", 0x21: ["c", "x" * 20]}))
            client.send(guess * 3000)
            for _ in range(LOGIN_TRIES):
                assert int(client.receive().error().code) == 47
            with pytest.raises((EOFError, ConnectionError)):
                client.receive()
        with RawClient(serving.port) as client:
            assert int(client.ask(7, {0x23: "bob", 0x21: ["c", "x" * 20]}).error().code) == 45
        assert serving.server.status()["failed_logins"] == LOGIN_TRIES + 1
        assert RawClient(serving.port, "alice", "wonder").__exit__(None, None, None) is None
        lines = [one for one in caplog.messages if "login.failed" in one]
        assert lines
        assert "127.0.0.1:" in lines[0]
        assert "user='alice'" in lines[0]


def test_half_open_and_silent_sockets_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A frame that never ends is given up after its time, with the reason in the log."""
    monkeypatch.setattr("logweir.replication.iproto.server_session.FRAME_SECONDS", 0.3)
    caplog.set_level("INFO")
    with Serving(tmp_path) as serving, RawClient(serving.port) as client:
        client.send(b"\xce\x00\x10\x00\x00\x82")
        with pytest.raises(EOFError):
            client.receive()
        serving.wait(lambda: "frame does not go on" in caplog.text)
        assert "peer='127.0.0.1:" in caplog.text


def test_reset_in_the_middle_of_a_request_leaves_nothing(tmp_path: Path) -> None:
    """Connections cut with RST while answers are due: links are gone, the store works."""
    with Serving(tmp_path, guest="all") as serving:
        serving.log.create_space("t")
        request = codec.frame(pack({0: 3, 1: 1}) + pack({0x10: 512, 0x21: [1, "x" * 1000]}))
        for _ in range(50):
            client = RawClient(serving.port)
            client.send(request * 20)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.socket.close()
        serving.wait(lambda: not serving.server.listener.links)
        with RawClient(serving.port) as client:
            assert not client.ask(3, {0x10: 512, 0x21: [1, "y"]}).is_error


def test_flood_of_connections_is_bounded(tmp_path: Path) -> None:
    """Those above the limit are closed at once and counted; those below are served."""
    limited = Serving(tmp_path, guest="read", connections=50)
    with limited as serving, contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", serving.port), timeout=5))
            for _ in range(120)
        ]
        greeted = sum(len(peer.recv(128)) == 128 for peer in peers)
        assert greeted == 50
        assert (
            b'link_refused_total{reason="limit",scheme="tarantool"} 70.0'
            in serving.server.metrics.render()
        )
        for peer in peers[:10]:
            peer.close()
        serving.wait(lambda: len(serving.server.listener.links) <= 40)
        with RawClient(serving.port) as client:
            assert client.ask(64).header.type == 0


def test_slow_reader_holds_up_nobody_and_little_memory(tmp_path: Path) -> None:
    """A client that asks for much and reads nothing is not read any further."""
    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as slow:
        serving.log.create_space("t")
        serving.log.append("t", [(i, "x" * 10_000) for i in range(100)])
        ask = codec.frame(pack({0: 1, 1: 1}) + pack({0x10: 512, 0x12: 1000, 0x20: [], 0x14: 2}))
        before = memory_bytes()
        slow.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            slow.socket.sendall(ask * 200_000)
        with RawClient(serving.port) as client:
            assert client.ask(64).header.type == 0
            # Here, as one that is being closed is not writable either.
            (link,) = (one for one in serving.server.listener.links if not one.writable)
        assert link.unsent_bytes < 32 * 1024 * 1024
        assert memory_bytes() - before < 200 * 1024 * 1024


def test_large_answers_behind_a_change_keep_their_order(tmp_path: Path) -> None:
    """Reads that would not fit together are made one after the other, as of their place."""
    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as client:
        serving.log.create_space("t")
        serving.log.append("t", [(i, "x" * 10_000) for i in range(150)])
        parts = []
        for number in range(0, 40, 2):
            body = {0x10: 512, 0x21: [1000 + number]}
            parts.append(codec.frame(pack({0: 2, 1: number}) + pack(body)))
            body = {0x10: 512, 0x12: 1000, 0x20: [], 0x14: 2}
            parts.append(codec.frame(pack({0: 1, 1: number + 1}) + pack(body)))
        threading.Thread(target=client.send, args=(b"".join(parts),)).start()
        counts = {}
        for _ in range(40):
            answer = client.receive()
            assert not answer.is_error
            counts[answer.header.sync] = len(answer.body[0x30])
        assert [counts[number] for number in range(1, 40, 2)] == list(range(151, 171))
        assert sorted(counts) == list(range(40))


def test_large_answers_of_changes_keep_their_order(tmp_path: Path) -> None:
    """A run that is cut for its answers goes on before what came behind it; all is pipelined."""
    key, rise = {0x10: 512, 0x20: [1]}, [["+", 2, 1]]
    asked = (1, {**key, 0x12: 1})
    changes = [
        *[(4, {**key, 0x21: rise})] * 20,
        asked,
        (5, key),
        (2, {0x10: 512, 0x21: [1, "", 0]}),
    ]
    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as client:
        serving.log.create_space("t")
        serving.log.insert("t", (1, "x" * 900_000, 0))
        stream = [pack({0: kind, 1: at}) + pack(body) for at, (kind, body) in enumerate(changes)]
        client.send(b"".join(map(codec.frame, stream)))
        answers = [client.receive() for _ in changes]
        assert [one.header.sync for one in answers] == list(range(len(changes)))
        assert [one.body[0x30][0][2] for one in answers] == [*range(1, 21), 20, 20, 0]
        assert serving.log.select("t") == [(1, "", 0)]
        bodies = [row.body for one in serving.log.rows() for row in one.rows]
        assert len([one for one in bodies if pack(rise) in one]) == 20


def test_a_run_into_several_spaces_is_refused_for_those_that_are_not_there(tmp_path: Path) -> None:
    """The others' changes are made, and each request is answered."""
    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as client:
        for name in ("t", "u"):
            serving.log.create_space(name, indexes={"n": {"parts": [1], "unique": True}})
        spaces = [512, 999, 513, 999, 512, 513, 512]
        client.send(
            b"".join(
                codec.frame(pack({0: 2, 1: at}) + pack({0x10: space, 0x21: [at, at // 5]}))
                for at, space in enumerate(spaces)
            )
        )
        answers = {one.header.sync: one for one in (client.receive() for _ in spaces)}
        codes = [int(answers[at].error().code) if answers[at].is_error else 0 for at in range(7)]
        assert codes == [0, 36, 0, 36, 3, 0, 0]
        assert serving.log.select("t") == [(0, 0), (6, 1)]
        assert serving.log.select("u") == [(2, 0), (5, 1)]


def test_reads_and_changes_of_one_send_see_one_another(tmp_path: Path) -> None:
    """Each read what was changed before it; reads without a change before them, too."""
    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as client:
        serving.log.create_space("t", indexes={"n": {"parts": [1], "unique": False}})
        serving.log.append("t", [(at, at % 2) for at in range(6)])
        everything, odd = {0x12: 100, 0x14: 2, 0x20: []}, {0x11: 1, 0x12: 100, 0x20: [1]}
        script = [
            (1, {**odd, 0x13: 1}),
            (1, {**odd, 0x12: 0}),
            (5, {0x20: [1]}),
            (1, odd),
            (4, {0x20: [0], 0x21: [["=", 1, 1]]}),
            (1, {**odd, 0x14: 1}),
            (1, {0x11: 9, 0x12: 1, 0x20: []}),
            (9, {0x21: [7, 1], 0x28: [["+", 1, 1]]}),
            (1, everything),
        ]
        client.send(
            b"".join(
                codec.frame(pack({0: kind, 1: at}) + pack({0x10: 512, **body}))
                for at, (kind, body) in enumerate(script)
            )
        )
        answers = [client.receive() for _ in script]
        assert int(answers[6].error().code) == ErrorCode.NO_SUCH_INDEX_ID
        found = [one.body[0x30] for one in answers if not one.is_error]
        assert found == [
            [[3, 1], [5, 1]],
            [],
            [[1, 1]],
            [[3, 1], [5, 1]],
            [[0, 1]],
            [[5, 1], [3, 1], [0, 1]],
            [],
            [[0, 1], [2, 0], [3, 1], [4, 0], [5, 1], [7, 1]],
        ]


def test_answer_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Error 2, and the connection goes on; one row less is given."""
    where = "logweir.replication.iproto.serve.statements.IPROTO_ANSWER_BYTES"
    monkeypatch.setattr(where, 999_501)
    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as client:
        serving.log.create_space("t")
        serving.log.append("t", [(i, "x" * 9_990) for i in range(100)])
        body = {0x10: 512, 0x12: 100, 0x20: [], 0x14: 2}
        assert len(client.ask(1, body).body[0x30]) == 100
        serving.log.insert("t", (100, "y"))
        assert int(client.ask(1, {**body, 0x12: 101}).error().code) == 2
        assert len(client.ask(1, body).body[0x30]) == 100


def test_fault_of_the_program_in_a_change_ends_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told in the log with its traceback; others are served, and nothing was changed."""
    real = kernel.answers

    def faulty(columns: Any, syncs: Any, results: Any, made: bytes, *more: Any) -> int:
        if pack([13]) in made:
            raise ZeroDivisionError
        return real(columns, syncs, results, made, *more)

    monkeypatch.setattr(kernel, "answers", faulty)
    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as client:
        serving.log.create_space("t")
        client.send(codec.frame(pack({0: 2, 1: 1}) + pack({0x10: 512, 0x21: [13]})))
        with pytest.raises(EOFError):
            client.receive()
        assert "ZeroDivisionError" in caplog.text
        with RawClient(serving.port) as other:
            assert not other.ask(2, {0x10: 512, 0x21: [14]}).is_error
        assert serving.log.select("t") == [(14,)]


def test_fast_master_is_not_read_ahead_of_what_is_applied(folder: Path) -> None:
    """What waits to be applied is bounded (`limits.UPSTREAM_WAITING_BYTES`); all of it comes."""
    large = codec.frame(
        pack({0: 2, 2: 5, 3: 1, 4: 1.5}) + pack({0x10: 512, 0x21: [1, "x" * 500_000]})
    )
    offered = 6 * UPSTREAM_WAITING_BYTES

    async def flooded() -> tuple[int, int]:
        sent = taken = 0
        more = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(codec.encode_greeting(MASTER, NOISE))
            await reader.read(1000)
            ballot = codec.Ballot(False, VClock(), VClock(), False)
            writer.write(codec.encode_answer(0, 80, ballot.body()))
            await reader.read(1000)
            writer.write(codec.encode_vclock_answer(VClock(), replica_id=5))
            while sent < offered:
                writer.write(large)
                await writer.drain()
                sent += len(large)
                more.set()
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with connect(parse_url(f"tarantool://127.0.0.1:{port}")) as (upstream, _, _):
            upstream.session.subscribe(uuid.uuid4(), uuid.uuid4(), VClock())
            upstream.link.flush()
            await upstream.expect(Subscribed)
            with contextlib.suppress(TimeoutError):
                while True:  # until it sends no more
                    more.clear()
                    async with asyncio.timeout(1):
                        await more.wait()
            ahead = sent
            while taken < offered:
                event = await upstream.expect(Rows)
                taken += len(event.data)
        server.close()
        return ahead, taken

    ahead, taken = asyncio.run(flooded())
    # Besides what waits, the system keeps some for the sockets.
    assert ahead < 3 * UPSTREAM_WAITING_BYTES
    assert taken >= offered


def test_calls_in_flight_are_bounded_by_what_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is more than its frame. Of who sends more than fit nothing is read; none is refused."""
    count, limit_bytes = 1000, 1 << 20
    monkeypatch.setattr(endpoint, "IPROTO_PIPELINE_BYTES", limit_bytes)
    with Serving(tmp_path / "s", functions="interop.functions", guest="all") as server:
        budget = server.server.listener.budget
        with RawClient(server.port) as client:
            functions.gate.clear()
            try:
                client.send(b"".join(client.frame(10, HELD) for _ in range(count)))
                server.wait(lambda: budget.requests_bytes > limit_bytes)
                (link,) = server.server.listener.links
                with RawClient(server.port) as another:
                    assert not another.ask(64).is_error
                assert len(link._tasks) < count // 2
                assert budget.requests_bytes < 4 * limit_bytes
            finally:
                functions.gate.set()
            assert not any(client.receive().is_error for _ in range(count))
