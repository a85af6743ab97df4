"""Our source on sockets: servers that refuse, ask for a login, fall silent, break off, know no
acknowledgements; vbuckets taken over."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tapmodel import packets, sent

import logweir
from interop.kvclient import KvClient, store
from interop.serving import Serving
from interop.tapserver import Peer, TapServer
from interop.test_iproto_cli import told
from interop.test_memcached_endpoint import serve, set_state
from logweir.errors import ConfigError
from logweir.replication.bucket.item import VbucketState
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_answer
from logweir.replication.memcached.wire.messages import Opaque, Option, TapMessage, decode_tap
from logweir.replication.protocols import parse_url
from logweir.replication.runner import SourceState, SourceStatus
from logweir.replication.service import users
from logweir.store.schema.access import Privilege
from logweir.wal.mp import unpack


def following(folder: Path, port: int, query: str = "", who: str = "", **options: Any) -> Serving:
    """A server of ours that follows bucket b there."""
    url = parse_url(f"tap://{who}127.0.0.1:{port}/b{query}")
    return serve(folder, follow=[url], **options)


def status(server: Serving) -> SourceStatus:
    """How its source stands."""
    return server.server.runners[0].status


def keys(server: Serving) -> set[bytes]:
    """What it has."""
    return {row[0] for row in server.log.select("b")} if server.log.schema.get("b") else set()


def mutation(key: bytes, value: bytes = b"v", *, wants_ack: bool = False, opaque: int = 0,
             cas: int = 7) -> TapMessage:  # fmt: skip
    """A mutation as ep-engine sends it."""
    return TapMessage(Opcode.TAP_MUTATION, key, value, cas=cas, wants_ack=wants_ack, opaque=opaque)


def opaque(number: Opaque, *, wants_ack: bool = False) -> TapMessage:
    """A control message of vbucket 0."""
    return TapMessage(Opcode.TAP_OPAQUE, number=number, wants_ack=wants_ack)


def test_once_is_a_dump_each_time(tmp_path: Path) -> None:
    """The program ends by itself; done again it has what changed, and lost what was removed."""
    with serve(tmp_path / "a") as upstream:
        for key in (b"k", b"l"):
            upstream.log.replace("b", (key, 0, b"v", 0, 0, 1, 0, 0, "", b""))
        url = f"tap://127.0.0.1:{upstream.port}/b"
        for value in (b"v", b"w"):
            upstream.log.replace("b", (b"k", 0, value, 0, 0, 2, 0, 0, "", b""))
            if value == b"w":
                upstream.log.delete("b", b"l")
            code, out, _ = told("follow", url, tmp_path / "s", "--once", "--json")
            assert (code, json.loads(out)["state"]) == (0, "stopped")
            with logweir.open(tmp_path / "s") as log:
                assert log.get("b", b"k")[2] == value
                assert (log.get("b", b"l") is None) == (value == b"w")


# --- refusals and logins --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "state"),
    [
        (Status.NOT_SUPPORTED, SourceState.WAITING),
        (Status.AUTH_ERROR, SourceState.WAITING),
        (Status.UNKNOWN_COMMAND, SourceState.STOPPED),
    ],
)
def test_a_refused_stream_is_told(tmp_path: Path, refusal: Status, state: SourceState) -> None:
    """With its status; who speaks no TAP is not asked again."""

    def refuse(peer: Peer) -> None:
        peer.connect()
        peer.socket.sendall(encode_answer(Packet(Opcode.TAP_CONNECT), refusal))

    with TapServer(refuse) as upstream, following(tmp_path / "s", upstream.port) as server:
        server.wait(lambda: f"{refusal:#06x}" in status(server).last_error)
        server.wait(lambda: status(server).state in (state, SourceState.CONNECTING))
        assert status(server).rows == 0


def test_a_real_memcached_speaks_no_tap(tmp_path: Path) -> None:
    """The answer that it was recorded to give stops the source."""

    def answer_as_recorded(peer: Peer) -> None:
        peer.connect()
        unknown = next(p for p in packets(sent("kv-memcached-1.6", "s2c")) if p.status == 0x81)
        peer.socket.sendall(encode_answer(Packet(Opcode.TAP_CONNECT), Status(unknown.status)))

    with TapServer(answer_as_recorded) as up, following(tmp_path / "s", up.port) as server:
        server.wait(lambda: status(server).state == SourceState.STOPPED)
        assert "does not speak TAP" in status(server).last_error


@pytest.mark.parametrize("is_plain_only", [True, False])
def test_the_source_logs_in(tmp_path: Path, is_plain_only: bool) -> None:
    """To a server of ours, by PLAIN where only that is offered, else by SCRAM; then it follows."""
    with serve(tmp_path / "a", guest="none") as upstream:
        users.add_user(upstream.log, "ada", password="love/lace")
        both = Privilege.READ | Privilege.WRITE
        users.grant(upstream.log, "ada", both, users.Target("space", "b"))
        if is_plain_only:
            upstream.log.delete("logweir_verifier", ("ada", "CRAM-MD5"))
        upstream.log.replace("b", (b"k", 0, b"v", 0, 0, 1, 0, 0, "", b""))
        who = "ada:love%2Flace@"
        with following(tmp_path / "b", upstream.port, who=who) as server:
            server.wait(lambda: keys(server) == {b"k"})
        with following(tmp_path / "c", upstream.port, who="ada:wrong@") as server:
            server.wait(lambda: "the login was refused" in status(server).last_error)
            assert keys(server) == set()


def test_a_source_without_a_login_is_told_that_it_needs_one(tmp_path: Path) -> None:
    """By the status with which the server ends, and tries again."""
    with (
        serve(tmp_path / "a", guest="none") as upstream,
        following(tmp_path / "b", upstream.port) as server,
    ):
        server.wait(lambda: "0x0020" in status(server).last_error)
        assert "'b'" in status(server).last_error


def test_an_unreachable_server_is_tried_again(tmp_path: Path) -> None:
    """Nobody listens there."""
    with TapServer(lambda peer: None) as upstream:
        port = upstream.port
    with following(tmp_path / "s", port) as server:
        server.wait(lambda: status(server).attempts >= 2)
        assert "refused" in status(server).last_error


# --- silence and breaks ---------------------------------------------------------------------------


def test_a_server_that_falls_silent_is_given_up(tmp_path: Path) -> None:
    """After the time in the address; signs of life keep a quiet one."""
    more = threading.Event()

    def fall_silent(peer: Peer) -> None:
        peer.connect()
        peer.send(mutation(b"first"))
        while peer.receive() is not None:
            pass

    def live(peer: Peer) -> None:
        peer.connect()
        for _ in range(200):
            peer.answer(Packet(Opcode.NOOP))
            if more.wait(0.05):
                break
        peer.send(mutation(b"last"))
        while peer.receive() is not None:
            pass

    with (
        TapServer(fall_silent, live) as upstream,
        following(tmp_path / "s", upstream.port, "?stall=0.5") as server,
    ):
        server.wait(lambda: "stalled" in status(server).last_error)
        assert keys(server) == {b"first"}
        server.wait(lambda: upstream.connections == 2)
        attempts = status(server).attempts
        waited = threading.Event()
        waited.wait(1.2)  # longer than a stall
        assert status(server).attempts == attempts
        more.set()
        server.wait(lambda: b"last" in keys(server))


def test_what_breaks_off_removes_nothing(tmp_path: Path) -> None:
    """What the server has no more is removed at CLOSE_BACKFILL, and not before."""

    def give(peer: Peer, *names: bytes, whole: bool) -> None:
        peer.connect()
        peer.send(opaque(Opaque.INITIAL_VBUCKET_STREAM))
        peer.send(*(mutation(name) for name in names))
        if whole:
            peer.send(opaque(Opaque.CLOSE_BACKFILL))
            peer.receive()

    with (
        TapServer(
            lambda peer: give(peer, b"a", b"b", b"c", whole=True),
            lambda peer: give(peer, b"d", whole=False),
        ) as upstream,
        following(tmp_path / "s", upstream.port) as server,
    ):
        server.wait(lambda: keys(server) == {b"a", b"b", b"c"})
        upstream._peers[0].socket.shutdown(2)
        server.wait(lambda: upstream.connections >= 3)
        assert keys(server) == {b"a", b"b", b"c", b"d"}
    with (
        TapServer(lambda peer: give(peer, b"c", b"e", whole=True)) as upstream,
        following(tmp_path / "s", upstream.port) as server,
    ):
        server.wait(lambda: keys(server) == {b"c", b"e"})


def test_a_server_without_acknowledgements_is_copied_anew_each_time(tmp_path: Path) -> None:
    """The recorded default engine: no frame, no acknowledgement, the end. The second copy of the
    same makes no row; its expiry times, which count from some start, are left out."""
    data = sent("default-engine-dump-go", "s2c")
    wanted = {m.key: m for m in map(decode_tap, packets(data))}

    def play(peer: Peer) -> None:
        peer.connect()
        peer.socket.sendall(data)

    with TapServer(play) as upstream, following(tmp_path / "s", upstream.port) as server:
        server.wait(lambda: upstream.connections >= 2 and keys(server) == set(wanted))
        before = server.log.vclock.signature
        server.wait(lambda: upstream.connections >= 4)
        assert server.log.vclock.signature == before
        for key, _, value, flags, expiry, *_ in server.log.select("b"):
            assert (value, flags, expiry) == (wanted[key].value, wanted[key].item_flags, 0)
        assert all(Option.BACKFILL in connect.options for connect in upstream.connects)


def test_acknowledgements_come_behind_the_disk(tmp_path: Path) -> None:
    """Whenever one arrives, what it covers is in the log; items twice: the later one wins."""
    seen: list[bool] = []
    made: list[Serving] = []
    is_made = threading.Event()

    def give(peer: Peer) -> None:
        peer.connect()
        is_made.wait(20)
        for number in range(1, 80):
            value = b"%d" % number
            peer.send(
                mutation(b"k%d" % (number % 5), b"old", opaque=2 * number),
                mutation(b"k%d" % (number % 5), value, wants_ack=True, opaque=2 * number + 1),
            )
            ack = peer.receive()
            assert ack is not None
            assert (ack.opaque, ack.status) == (2 * number + 1, 0)
            row = made[0].log.get("b", b"k%d" % (number % 5))
            seen.append(row is not None and row[2] == value)
        peer.receive()

    with TapServer(give) as upstream, following(tmp_path / "s", upstream.port) as server:
        made.append(server)
        is_made.set()
        server.wait(lambda: len(seen) == 79)
        assert all(seen)


def test_checkpoints_are_handed_back(tmp_path: Path) -> None:
    """Per vbucket, the last that ended, also after a restart of ours; none from a backfill."""

    def give(peer: Peer) -> None:
        peer.connect()
        for vbucket, number in ((0, 6), (3, 9)):
            for opcode in (Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END):
                peer.send(TapMessage(opcode, vbucket=vbucket, number=number))
        peer.send(mutation(b"k"))
        while peer.receive() is not None:
            pass

    with TapServer(give) as upstream:
        with following(tmp_path / "s", upstream.port) as server:
            server.wait(lambda: keys(server) == {b"k"})
        with following(tmp_path / "s", upstream.port) as server:
            server.wait(lambda: len(upstream.connects) == 2)
        first, second = upstream.connects
        assert (first.checkpoints, first.backfill) == ((), 0)
        assert second.checkpoints == ((0, 6), (3, 9))
        assert Option.BACKFILL not in second.options
        assert first.name == second.name


def test_positions_stand_in_the_transaction_of_what_they_cover(tmp_path: Path) -> None:
    """No row with checkpoint ids stands before an item of those checkpoints, and those that came in
    one step share one transaction."""

    def give(peer: Peer) -> None:
        peer.connect()
        for number in range(1, 40):
            batch = [TapMessage(Opcode.TAP_CHECKPOINT_START, number=number)]
            batch += [mutation(b"k%d" % number, cas=number)]
            batch += [TapMessage(Opcode.TAP_CHECKPOINT_END, number=number)]
            peer.send(*batch)
        peer.receive()

    with TapServer(give) as upstream, following(tmp_path / "s", upstream.port) as server:
        server.wait(lambda: len(keys(server)) == 39)
        server.wait(
            lambda: [row[3] for row in server.log.select("logweir_position")] == [{"0": 39}]
        )
        places = server.log.schema.space("logweir_position").id
        bucket = server.log.schema.space("b").id
        reached = together = 0
        for transaction in server.log.rows():
            spaces = [row.space_id for row in transaction.rows]
            reached += spaces.count(bucket)
            for row in transaction.rows:
                if row.space_id == places:
                    assert int(unpack(row.body)[0x21][3]["0"]) <= reached
                    together += bucket in spaces
        assert together > 0
        assert reached == 39


def test_a_full_copy_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the log of the program, each time one begins, with the server and the bucket."""
    caplog.set_level("INFO")
    data = sent("default-engine-dump-go", "s2c")

    def play(peer: Peer) -> None:
        peer.connect()
        peer.socket.sendall(data)

    with TapServer(play) as upstream, following(tmp_path / "s", upstream.port) as server:

        def told_of() -> list[str]:
            return [line for line in caplog.messages if "tap.full_copy" in line]

        server.wait(lambda: len(told_of()) >= 2)
        assert upstream.connections >= 2
        assert str(upstream.port) in told_of()[0]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x82" + bytes(23),
        b"\x80\x41\x00\x05\x10\x00\x00\x00\x00\x00\x00\x02" + bytes(12),
        b"\x80\x41\x00\x01\x10\x00\x00\x00\xff\xff\xff\xff" + bytes(12),
        b"\x80\x45\x00\x00\x08\x00\x00\x00\x00\x00\x00\x08" + bytes(20),
        b"\x81\x01" + bytes(22),
    ],
)
def test_a_server_that_sends_garbage_is_left_and_tried_again(
    tmp_path: Path, garbage: bytes
) -> None:
    """What came before it stays."""

    def give(peer: Peer) -> None:
        peer.connect()
        peer.send(mutation(b"good"))
        peer.socket.sendall(garbage)
        while peer.receive() is not None:
            pass

    with TapServer(give) as upstream, following(tmp_path / "s", upstream.port) as server:
        server.wait(lambda: upstream.connections >= 2)
        assert keys(server) == {b"good"}
        assert status(server).last_error


def test_what_cannot_be_kept_stops_the_source(tmp_path: Path) -> None:
    """A key that is too long: told with the key; nothing of it is acknowledged."""
    answers: list[Packet | None] = []

    def give(peer: Peer) -> None:
        peer.connect()
        peer.send(mutation(b"k" * 251, wants_ack=True, opaque=3))
        answers.append(peer.receive())

    with TapServer(give) as upstream, following(tmp_path / "s", upstream.port) as server:
        server.wait(lambda: status(server).state == SourceState.STOPPED)
        server.wait(lambda: bool(answers))
        assert answers == [None]
        assert "kkkk" in status(server).last_error


@pytest.mark.parametrize(
    "query", ["?vbuckets=x", "?vbuckets=70000", "?takeover=1", "?expiry=no", "?byteorder=up"]
)
def test_addresses_that_mean_nothing_are_refused(tmp_path: Path, query: str) -> None:
    """At the start."""
    with pytest.raises(ConfigError):
        following(tmp_path / "s", 1, query).__enter__()


# --- expiry ---------------------------------------------------------------------------------------

STARTED = 1_700_000_000
SMALL = 3887  # 3600 s set on a server up for 287 s, as memcached's default engine sends it
ABSOLUTE = 1_900_000_000


def statistics(peer: Peer, *lines: tuple[bytes, bytes]) -> None:
    """Answer STAT, which has to be next."""
    asked = peer.receive()
    assert asked is not None
    if asked.opcode == Opcode.SELECT_BUCKET:
        peer.socket.sendall(encode_answer(asked, Status.UNKNOWN_COMMAND, value=b""))
        asked = peer.receive()
        assert asked is not None
    assert asked.opcode == Opcode.STAT
    for name, text in (*lines, (b"", b"")):
        peer.socket.sendall(encode_answer(asked, key=name, value=text))


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("", {b"small": 0, b"late": ABSOLUTE, b"never": 0}),
        ("?expiry=ignore", {b"small": 0, b"late": ABSOLUTE, b"never": 0}),
        ("?expiry=relative", {b"small": STARTED + SMALL, b"late": ABSOLUTE, b"never": 0}),
        ("?expiry=absolute", {b"small": SMALL, b"late": ABSOLUTE, b"never": 0}),
    ],
)
def test_a_small_expiry_is_taken_as_the_address_says(
    tmp_path: Path, query: str, kept: dict[bytes, int]
) -> None:
    """Left out, from the producer's start, or as it stands; others are never touched."""

    def give(peer: Peer) -> None:
        if "relative" in query:
            now = (b"time", b"%d" % (STARTED + 287))
            statistics(peer, (b"pid", b"1"), (b"uptime", b"287"), now)
        peer.connect()
        for key, expiry in ((b"small", SMALL), (b"late", ABSOLUTE), (b"never", 0)):
            peer.send(replace(mutation(key), expiry=expiry))
        peer.receive()

    with (
        TapServer(give) as upstream,
        following(tmp_path / "s", upstream.port, query) as server,
    ):
        server.wait(lambda: len(keys(server)) == 3)
        assert {row[0]: row[4] for row in server.log.select("b")} == kept


def test_a_producer_that_does_not_say_when_it_started_stops_the_source(tmp_path: Path) -> None:
    """Since what counts from it would be wrong; the hint names the other choices."""

    def give(peer: Peer) -> None:
        statistics(peer, (b"pid", b"1"), (b"uptime", b"x"))
        peer.receive()

    with (
        TapServer(give) as upstream,
        following(tmp_path / "s", upstream.port, "?expiry=relative") as server,
    ):
        server.wait(lambda: status(server).state == SourceState.STOPPED)
        assert "started" in status(server).last_error


def test_our_own_start_is_told(tmp_path: Path) -> None:
    """One of ours, asked for it, streams as ever."""
    with serve(tmp_path / "a") as upstream, KvClient(upstream.port) as client:
        client.ask(store(b"k", expiry=3600))
        with following(tmp_path / "b", upstream.port, "?expiry=relative") as server:
            server.wait(lambda: keys(server) == {b"k"})
            assert server.log.get("b", b"k")[4] == upstream.log.get("b", b"k")[4] > ABSOLUTE - 2e8


# --- vbuckets -------------------------------------------------------------------------------------


def test_only_the_named_vbuckets_are_followed(tmp_path: Path) -> None:
    """`vbuckets=1,3-4`."""
    with serve(tmp_path / "a") as upstream, KvClient(upstream.port) as client:
        for vbucket in range(1, 6):
            set_state(client, vbucket, VbucketState.ACTIVE)
            client.ask(store(b"%d" % vbucket, vbucket=vbucket))
        with following(tmp_path / "b", upstream.port, "?vbuckets=1,3-4") as server:
            server.wait(lambda: keys(server) == {b"1", b"3", b"4"})
            server.wait(lambda: status(server).state == SourceState.FOLLOWING)
            client.ask(*(store(b"%d-" % n, vbucket=n) for n in range(1, 6)))
            server.wait(lambda: len(keys(server)) == 6)
            assert keys(server) == {b"1", b"3", b"4", b"1-", b"3-", b"4-"}


def test_a_takeover_under_writes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Our source takes a vbucket from our server while clients count in it: what was answered is
    there, once; requests that came here meanwhile waited; it is not done again after a restart."""
    with serve(tmp_path / "a") as one, KvClient(one.port) as client:
        set_state(client, 5, VbucketState.ACTIVE)
        client.batch(*(store(b"k%d" % n, b"v", Opcode.SETQ, vbucket=5) for n in range(2000)))
        counted = [0] * 3
        started = threading.Event()
        ports = [one.port]

        def count(place: int) -> None:
            key = b"counter%d" % place
            port = one.port
            client = KvClient(port)
            while counted[place] < 300 or port == one.port:
                extras = (1).to_bytes(8, "big") + (1).to_bytes(8, "big") + bytes(4)
                request = Packet(Opcode.INCREMENT, key, extras=extras, vbucket=5)
                answered = client.ask(request)[0].status
                if answered == 0:
                    counted[place] += 1
                    started.set()
                else:
                    assert answered == Status.NOT_MY_VBUCKET
                    client.close()
                    port = ports[-1]
                    client = KvClient(port)
            client.close()

        writers = [threading.Thread(target=count, args=(place,)) for place in range(3)]
        for writer in writers:
            writer.start()
        started.wait(20)
        query = "?takeover=1&vbuckets=5"
        with following(tmp_path / "b", one.port, query) as other:
            ports.append(other.port)
            other.wait(lambda: status(other).state == SourceState.STOPPED)
            assert status(other).last_error == ""
            for writer in writers:
                writer.join(30)
            found = {row[0]: row[2] for row in other.log.select("b")}
            assert len(found) == 2003
            assert [int(found[b"counter%d" % place]) for place in range(3)] == counted
        states = {row[1]: row[2] for row in one.log.select("logweir_vbucket")}
        assert states[5] == VbucketState.DEAD
        connections = len(one.server.listener.links)
        with following(tmp_path / "b", one.port, query) as other:
            other.wait(lambda: status(other).state == SourceState.STOPPED)
            states = {row[1]: row[2] for row in other.log.select("logweir_vbucket")}
            assert states[5] == VbucketState.ACTIVE
            assert len(one.server.listener.links) <= connections


def test_a_takeover_that_breaks_off_is_done_again_whole(tmp_path: Path) -> None:
    """The consumer is gone when the vbucket is dead already; another attempt brings everything."""
    with serve(tmp_path / "a") as one, KvClient(one.port) as client:
        set_state(client, 5, VbucketState.ACTIVE)
        client.ask(*(store(b"k%d" % n, vbucket=5) for n in range(50)))
        set_state(client, 5, VbucketState.DEAD)
        with following(tmp_path / "b", one.port, "?takeover=1&vbuckets=5") as other:
            other.wait(lambda: status(other).state == SourceState.STOPPED)
            assert len(keys(other)) == 50


def test_a_takeover_from_the_command_line_ends_by_itself(tmp_path: Path) -> None:
    """`logweir follow` takes the vbucket and ends with 0; once more there is nothing to do."""
    with serve(tmp_path / "a") as one, KvClient(one.port) as client:
        client.ask(store(b"k"))
        url = f"tap://127.0.0.1:{one.port}/b?takeover=1&vbuckets=0"
        for _ in range(2):
            code, out, err = told("follow", url, tmp_path / "b", "--json")
            assert (code, json.loads(out)["state"]) == (0, "stopped"), err
        assert client.ask(Packet(Opcode.GET, b"k"))[0].status == Status.NOT_MY_VBUCKET
    with logweir.open(tmp_path / "b") as log:
        assert log.count("b") == 1
        assert log.get("logweir_vbucket", ("b", 0)) == ("b", 0, VbucketState.ACTIVE)


def test_a_recorded_takeover_is_taken(tmp_path: Path) -> None:
    """What ep-engine sent to a migrator: pending, items, active, in order, acknowledged."""
    stream = packets(sent("takeover-vbucketmigrator-source", "s2c"))
    messages = [decode_tap(packet) for packet in stream]
    acknowledged: list[int] = []
    wanted = [m.opaque for m in messages if m.wants_ack]

    def play(peer: Peer) -> None:
        connect = peer.connect()
        assert connect.vbuckets == (1,)
        assert Option.TAKEOVER_VBUCKETS in connect.options
        for message in messages:
            peer.send(message)
            if message.wants_ack:
                answer = peer.receive()
                assert answer is not None
                acknowledged.append(answer.opaque)

    query = "?takeover=1&vbuckets=1"
    with TapServer(play) as upstream, following(tmp_path / "s", upstream.port, query) as server:
        server.wait(lambda: status(server).state == SourceState.STOPPED)
        assert status(server).last_error == ""
        server.wait(lambda: len(acknowledged) == len(wanted))
        assert acknowledged == wanted
        items = {m.key for m in messages if m.opcode == Opcode.TAP_MUTATION}
        removed = {m.key for m in messages if m.opcode == Opcode.TAP_DELETE}
        assert keys(server) == items - removed
        assert ("b", 1, VbucketState.ACTIVE) in list(server.log.select("logweir_vbucket"))
