"""Listeners give what the grants of the store give; Tank and Synapse, which know no login, too."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from support.loops import run
from support.synapseclient import Client as Follower

from interop.rawclient import RawClient
from interop.serving import Serving
from logweir.errors import ConfigError, ErrorCode, LogweirError, PeerRefused
from logweir.replication.iproto.wire.codec import RequestType
from logweir.replication.iproto.wire.requests import encode_request as iproto_request
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_request
from logweir.replication.protocols import parse_listen_url
from logweir.replication.service import users
from logweir.replication.service.rights import Rights
from logweir.replication.service.shared import LET_IN_MAX
from logweir.replication.tank.client import Client
from logweir.replication.tank.client.connection import fetches_of
from logweir.replication.tank.wire.messages import (
    CreateError,
    Fetch,
    FetchPart,
    FetchStatus,
    PublishPart,
    PublishResult,
)
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.replication.urls import Url
from logweir.store.schema.access import Privilege
from logweir.tools.bench.requests import PROTOCOLS, select_request

READ, WRITE, CREATE = Privilege.READ, Privilege.WRITE, Privilege.CREATE
BUNDLE = encode_bundle([Message(0, 5, None, b"x")])


def tank(folder: Path, guest: str, options: str = "") -> Serving:
    """A Tank listener."""
    return Serving(folder, listen=[parse_listen_url(f"tank://:0{options}")], guest=guest)


def synapse(folder: Path, guest: str, options: str = "") -> Serving:
    """A Synapse listener."""
    return Serving(folder, listen=[parse_listen_url(f"synapse://:0{options}")], guest=guest)


def talk(serving: Serving, what: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    """Do something with one client of a Tank listener."""

    async def main() -> None:
        async with Client(serving.url) as client:
            await what(client)

    run(main)


def give(serving: Serving, bits: Privilege, space: str = "", name: str = "guest") -> None:
    """Grant something on a space, or on all of them."""
    users.grant(serving.log, name, bits, users.Target("space", space))


def take(serving: Serving, bits: Privilege, space: str = "") -> None:
    """Take it from guest again."""
    users.revoke(serving.log, "guest", bits, users.Target("space", space))


async def publish(client: Client, topic: str, at: int | None = None) -> PublishResult:
    """The outcome of one bundle."""
    parts = [PublishPart(topic, 0, BUNDLE, at)]
    (result,) = await client.publish(parts, at_numbers=at is not None)
    return result


async def fetch(client: Client, topic: str, start: int = 1) -> FetchStatus | None:
    """The outcome of a fetch from a number; None: the topic is unknown."""
    (asked,) = fetches_of([FetchPart(topic, 0, start, 1000)])
    (part,) = (await (await client.connection()).fetch(asked)).parts
    return part.status


async def create(client: Client, topic: str) -> CreateError:
    """The outcome of making a topic."""
    try:
        await client.create_topic(topic)
    except PeerRefused as refused:
        return CreateError(refused.result)
    return CreateError.CREATED


def fill(folder: Path) -> None:
    """Topics `a` and `b` with a message each."""

    async def work(client: Client) -> None:
        for topic in ("a", "b"):
            assert await create(client, topic) is CreateError.CREATED
            assert await publish(client, topic) is PublishResult.STORED

    with tank(folder, "all") as serving:
        talk(serving, work)


GIVEN = {
    #         topics      publish                      fetch             create
    "none": ([], PublishResult.UNKNOWN_TOPIC, None, CreateError.READ_ONLY),
    "read": (["a", "b"], PublishResult.READ_ONLY, FetchStatus.FINE, CreateError.READ_ONLY),
    "replicate": (["a", "b"], PublishResult.READ_ONLY, FetchStatus.FINE, CreateError.READ_ONLY),
    "write": (["a", "b"], PublishResult.STORED, FetchStatus.FINE, CreateError.READ_ONLY),
    "all": (["a", "b"], PublishResult.STORED, FetchStatus.FINE, CreateError.CREATED),
}


@pytest.mark.parametrize("guest", GIVEN)
def test_guest_of_tank_may_what_the_server_allows(tmp_path: Path, guest: str) -> None:
    """And no more; with `none` not even the names are told."""
    fill(tmp_path)
    names, published, fetched, created = GIVEN[guest]

    async def work(client: Client) -> None:
        assert [name for name, _, _ in await client.topics()] == names
        assert (await client.status()).topics == len(names)
        assert await publish(client, "a") is published
        assert await fetch(client, "a") is fetched
        assert await create(client, "c") is created

    with tank(tmp_path, guest) as serving:
        talk(serving, work)


def test_grants_on_a_topic_count_and_are_gone_when_they_are_taken(tmp_path: Path) -> None:
    """On a connection that stays open; with write alone nothing can be read."""
    fill(tmp_path)
    with tank(tmp_path, "none") as serving:

        async def work(client: Client) -> None:
            assert await fetch(client, "a") is None
            give(serving, READ, "a")
            assert await client.topics() == (("a", True, 1),)
            assert await fetch(client, "a") is FetchStatus.FINE
            assert await fetch(client, "b") is None
            assert await publish(client, "a") is PublishResult.READ_ONLY
            take(serving, READ, "a")
            give(serving, WRITE, "a")
            assert await publish(client, "a") is PublishResult.STORED
            assert await fetch(client, "a") is FetchStatus.UNREADABLE
            take(serving, WRITE, "a")
            assert await publish(client, "a") is PublishResult.UNKNOWN_TOPIC
            assert await client.topics() == ()

        talk(serving, work)


def test_fetch_that_waits_gets_nothing_once_the_right_is_gone(tmp_path: Path) -> None:
    """It was allowed when it began to wait."""
    fill(tmp_path)
    with tank(tmp_path, "none") as serving:
        give(serving, READ, "a")

        async def work(client: Client) -> None:
            connection = await client.connection()
            part = FetchPart("a", 0, 2, 1000)
            asked = Fetch(0, (("a", (part,)),), max_wait_ms=60_000, client="x")
            waiting = asyncio.ensure_future(connection.fetch(asked))
            await client.status()  # answered behind it: now it waits
            take(serving, READ, "a")
            serving.log.insert("a", (0, 2, 2, 5, BUNDLE))
            (told,) = (await waiting).parts
            assert (told.status, told.chunk) == (None, b"")

        talk(serving, work)


def test_what_a_user_makes_is_its_own_and_what_guest_makes_is_not(tmp_path: Path) -> None:
    """So guest keeps nothing when it is allowed nothing any more."""
    fill(tmp_path)
    with tank(tmp_path, "none") as serving:
        assert [row[1] for row in serving.log.select("_space") if row[2] in ("a", "b")] == [1, 1]
        give(serving, CREATE)

        async def work(client: Client) -> None:
            assert await create(client, "mine") is CreateError.CREATED
            assert await publish(client, "mine") is PublishResult.UNKNOWN_TOPIC

        talk(serving, work)


def test_views_and_places_need_rights_of_their_spaces(tmp_path: Path) -> None:
    """A view its space, the whole log everything, a consumer's place `logweir_consumer`."""
    fill(tmp_path)
    with tank(tmp_path, "none") as serving:
        serving.log.create_space("orders", [("id", "unsigned")])
        serving.log.insert("orders", (1,))
        give(serving, READ, "orders")
        give(serving, READ, "a")

        async def work(client: Client) -> None:
            (state,) = await client.partitions("space:orders")
            assert state.last
            for hidden in ("space:_user", "space:b", "log"):
                with pytest.raises(PeerRefused):
                    await client.partitions(hidden)
            assert await publish(client, "consumer:g/a", 1) is PublishResult.READ_ONLY
            assert await publish(client, "consumer:g/b", 1) is PublishResult.UNKNOWN_TOPIC
            assert await publish(client, "group:g/a") is PublishResult.READ_ONLY
            assert await publish(client, "group:g/b") is PublishResult.UNKNOWN_TOPIC
            give(serving, WRITE)
            assert await publish(client, "consumer:g/a", 1) is PublishResult.STORED
            assert await publish(client, "group:g/a") is PublishResult.BAD_NUMBERS  # is no beat
            users.grant(serving.log, "guest", READ, users.Target())
            assert (await client.partitions("log"))[0].last

        talk(serving, work)


def test_a_tank_listener_shows_only_the_topics_its_address_names(tmp_path: Path) -> None:
    """Whatever a client may do elsewhere; other names cannot be made there either."""
    fill(tmp_path)

    async def work(client: Client) -> None:
        assert await client.topics() == (("a", True, 1),)
        assert await fetch(client, "b") is None
        assert await publish(client, "b") is PublishResult.UNKNOWN_TOPIC
        assert await publish(client, "consumer:g/b", 1) is PublishResult.UNKNOWN_TOPIC
        with pytest.raises(PeerRefused):
            await client.partitions("log")
        assert await create(client, "c") is CreateError.READ_ONLY
        assert await create(client, "log-1") is CreateError.CREATED
        assert await publish(client, "a") is PublishResult.STORED

    with tank(tmp_path, "all", "?topics=a,log-*") as serving:
        talk(serving, work)


@pytest.mark.parametrize("listen", ["tank://:0?topics=", "synapse://:0?streams=,"])
def test_a_choice_that_names_nothing_is_refused(tmp_path: Path, listen: str) -> None:
    """It would show nothing, which nobody asks for."""
    with pytest.raises(ConfigError) as caught, Serving(tmp_path, listen=[parse_listen_url(listen)]):
        pass
    assert "names nothing" in str(caught.value)
    assert "without it everything is" in str(caught.value)


# --- Synapse --------------------------------------------------------------------------------------

DENIED = "ERROR Read access to streams is denied for user 'guest'"


def spaces(serving: Serving) -> None:
    """Streams `a` and `b` with a row each."""
    for name in ("a", "b"):
        serving.log.create_space(name, [("id", "unsigned")])
        serving.log.insert(name, (1,))


@pytest.mark.parametrize("dialect", ["D1", "D3"])
def test_guest_of_synapse_gets_nothing_unless_it_is_granted(tmp_path: Path, dialect: str) -> None:
    """It is told so, and closed; it keeps no place in the log and passes nothing on."""
    options = f"?dialect={dialect}&keep=1&relay_up=1"
    with synapse(tmp_path, "none", options) as serving:
        spaces(serving)
        words = {"D1": "REPLICATE ALL 0", "D3": "REPLICATE"}[dialect]
        with Follower(serving.port) as other, Follower(serving.port) as client:
            client.send("NAME x", "REMOTE_SERVER_UP one.test", words)
            assert client.line() == DENIED
            assert client.line() == ""
            give(serving, READ, "a")
            other.send("PING 1", words)
            assert other.line().startswith("RDATA a" if dialect == "D1" else "POSITION a")
        take(serving, READ, "a")
        with Follower(serving.port) as client:
            acknowledged = {"D1": "FEDERATION_ACK 1", "D3": "FEDERATION_ACK x 1"}[dialect]
            client.send("NAME x", acknowledged)
            assert client.line() == DENIED
        assert serving.log.status()["followers"] == {}


def test_follower_of_synapse_gets_the_streams_it_may_read(tmp_path: Path) -> None:
    """By name, by ALL, and what comes later; what is granted or taken meanwhile ends it."""
    with synapse(tmp_path, "none") as serving:
        spaces(serving)
        give(serving, READ, "a")
        with Follower(serving.port) as client:
            client.send("REPLICATE b 0")
            denied = "Read access to stream 'b' is denied for user 'guest'"
            assert client.line() == f"ERROR failed to handle replicate: {denied}"
        with Follower(serving.port) as client, Follower(serving.port) as only:
            client.send("REPLICATE ALL NOW")
            only.send("REPLICATE a NOW")
            assert client.line().startswith("POSITION a ")
            assert only.line().startswith("POSITION a ")
            serving.log.insert("b", (2,))
            serving.log.insert("a", (2,))
            assert client.line().endswith('["insert",[2],[2]]')
            assert only.line().startswith("RDATA a ")
            give(serving, READ, "b")
            serving.log.insert("b", (3,))
            assert client.line() == "ERROR stream b may be read since now, follow it anew"
            serving.log.insert("a", (3,))
            assert only.line().startswith("RDATA a ")
            take(serving, READ, "a")
            serving.log.insert("a", (4,))
            assert only.line() == "ERROR Read access to stream 'a' is denied for user 'guest'"
            assert only.line() == ""


def test_a_synapse_listener_shows_only_the_streams_its_address_names(tmp_path: Path) -> None:
    """Others are unknown there."""
    with synapse(tmp_path, "all", "?streams=a*") as serving:
        spaces(serving)
        with Follower(serving.port) as client:
            client.send("REPLICATE ALL 0")
            assert [line.split()[:2] for line in (client.line(), client.line())] == [
                ["RDATA", "a"],
                ["POSITION", "a"],
            ]
            serving.log.insert("b", (2,))
            serving.log.insert("a", (2,))
            assert client.line().startswith("RDATA a ")
            client.send("REPLICATE b 0")
            assert client.line() == "ERROR failed to handle replicate: unknown stream b"


def test_missed_rows_over_http_need_the_same_rights(tmp_path: Path) -> None:
    """The address beside the listener shows what the listener shows."""
    with synapse(tmp_path, "none", "?dialect=D3&streams=a,b&http=127.0.0.1:0") as serving:
        spaces(serving)
        give(serving, READ, "a")

        def ask(stream: str) -> tuple[int, Any]:
            connection = http.client.HTTPConnection("127.0.0.1", serving.urls[1].port, timeout=30)
            path = f"/_synapse/replication/get_repl_stream_updates/{stream}/x"
            connection.request("GET", f"{path}?from_token=0&upto_token=99")
            with closing(connection), connection.getresponse() as answer:
                return answer.status, json.loads(answer.read())

        status, body = ask("a")
        assert (status, len(body["updates"])) == (200, 1)
        status, body = ask("b")
        assert (status, body["errcode"]) == (403, "M_FORBIDDEN")
        assert body["error"] == "Read access to stream 'b' is denied for user 'guest'"
        assert ask("logweir_topic")[0] == 400
        take(serving, READ, "a")
        assert ask("a")[0] == 403


def test_a_user_that_is_not_there_is_nobody(tmp_path: Path) -> None:
    """Rights are asked for by name once, and a dropped user may do nothing."""
    with tank(tmp_path, "all") as serving:
        shared = serving.server.shared
        users.add_user(serving.log, "ann")
        users.grant(serving.log, "ann", READ, users.Target())
        rights = Rights(shared, "ann")
        assert rights.may_all(READ)
        users.drop_user(serving.log, "ann")
        assert not rights.may_all(READ)
        assert not rights.may(READ, "_space")
        with pytest.raises(LogweirError):
            Rights(shared, "ann")


def exchange(peer: socket.socket, sent: bytes, answers: int, size: Callable[[bytes], int]) -> bytes:
    """What requests, sent at once, are answered."""
    peer.sendall(sent)
    told, at = b"", 0
    for _ in range(answers):
        while not (end := size(told[at:])) or len(told) < at + end:
            told += (more := peer.recv(65536))
            assert more
        at += end
    return told


def test_rights_that_change_count_for_the_next_request_of_a_connection(tmp_path: Path) -> None:
    """Of Tarantool's and memcached's: who asked before asks again, with the right to one of two
    spaces, to both, and to one again. A run of which a part is refused allows nothing later."""
    urls = [parse_listen_url(url) for url in ("tarantool://:0", "tap://:0")]
    with Serving(tmp_path, listen=urls, guest="none") as serving:
        for number, space in ((600, "one"), (601, "two")):
            serving.log.create_space(space, id=number)
            serving.log.insert(space, (1, f"in {space}"))
        both = select_request(600, 0).stream + select_request(601, 0).stream

        def shown(peer: socket.socket) -> list[bytes]:
            """The spaces whose tuples are told."""
            told = exchange(peer, both, 2, PROTOCOLS["iproto"].size)
            found = [name for name in (b"one", b"two") if b"in " + name in told]
            assert told.count(b"\xce\x00\x00\x80\x2a") == 2 - len(found)  # error 42
            return found

        def status(peer: socket.socket) -> int:
            get = encode_request(Packet(Opcode.GET, b"k"))
            return exchange(peer, get, 1, PROTOCOLS["memcached"].size)[7]

        def connected(url: Url) -> socket.socket:
            return socket.create_connection((url.host, url.port), 30)

        with connected(serving.urls[0]) as peer:
            assert len(peer.recv(128, socket.MSG_WAITALL)) == 128
            assert shown(peer) == []
            give(serving, READ, "one")
            assert [shown(peer) for _ in range(3)] == [[b"one"]] * 3
            give(serving, READ, "two")
            give(serving, READ, "default")
            assert [shown(peer) for _ in range(2)] == [[b"one", b"two"]] * 2
            with connected(serving.urls[1]) as other:
                assert [status(other) for _ in range(2)] == [Status.NOT_FOUND] * 2
                take(serving, READ, "two")
                take(serving, READ, "default")
                assert status(other) == Status.AUTH_ERROR
            assert [shown(peer) for _ in range(2)] == [[b"one"]] * 2


def test_a_client_that_asks_in_ever_other_orders_fills_no_memory(tmp_path: Path) -> None:
    """What a batch was allowed is kept by the order of its spaces, which the client chooses."""
    spaces = range(600, 607)
    orders = list(permutations(spaces))
    assert len(orders) > LET_IN_MAX
    with Serving(tmp_path, listen=[parse_listen_url("tarantool://:0")], guest="read") as serving:
        for number in spaces:
            serving.log.create_space(f"s{number}", id=number)
        ping = iproto_request(RequestType.PING, 1)  # behind which reads are a batch
        requests = {number: select_request(number, 0).stream for number in spaces}
        kept = []
        with socket.create_connection((serving.urls[0].host, serving.urls[0].port), 30) as peer:
            assert len(peer.recv(128, socket.MSG_WAITALL)) == 128
            for order in orders:
                sent = b"".join([ping, *(requests[number] for number in order)])
                exchange(peer, sent, 1 + len(order), PROTOCOLS["iproto"].size)
                kept.append(len(serving.server.shared.let_in))
        assert LET_IN_MAX // 2 < max(kept) <= LET_IN_MAX + len(spaces)


def test_another_login_on_a_connection_has_its_own_rights(tmp_path: Path) -> None:
    """Also for reads that are answered from their bytes, of which the rights are remembered."""
    with Serving(tmp_path, guest="none") as serving:
        space_id = serving.log.create_space("kept", [("id", "unsigned")])
        serving.log.insert("kept", [1])
        for name in ("reader", "stranger"):
            users.add_user(serving.log, name, password=name)
        users.grant(serving.log, "reader", Privilege.READ, users.Target("space", "kept"))
        select = {0x10: space_id, 0x11: 0, 0x12: 10, 0x13: 0, 0x14: 2, 0x20: []}
        with RawClient(serving.port, "reader", "reader") as client:
            assert client.ask(1, select).body[0x30] == [[1]]
            client.login("stranger", "stranger")
            assert client.ask(1, select).header.type == 0x8000 | ErrorCode.ACCESS_DENIED
            client.login("reader", "reader")
            assert client.ask(1, select).body[0x30] == [[1]]
