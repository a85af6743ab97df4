"""Replicas and clients that ask for what cannot be: the numbers of a real server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.rawclient import RawClient
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.replication.iproto.wire.requests import encode_request

pytestmark = pytest.mark.tarantool

STRANGER = str(uuid.uuid4())
ASKED: list[tuple[int, dict[int, Any]]] = [
    (65, {0x24: "no uuid"}),
    (65, {}),
    (66, {0x24: STRANGER, 0x26: {}}),
    (66, {0x24: STRANGER, 0x26: {40: 1}}),
    (66, {0x24: STRANGER, 0x26: {1: 1}, 0x51: [32]}),
    (70, {0x24: "no uuid", 0x26: {}}),
    (71, {}),
    (78, {}),
]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    folder: Path = tmp_path_factory.mktemp("refusals")
    with (
        RealTarantool(folder / "real") as box,
        Serving(folder / "ours", guest="replicate") as serving,
    ):
        box.eval("box.schema.user.grant('guest', 'replication')")
        assert box.port is not None
        yield box.port, serving.port


def told(port: int, kind: int, body: dict[int, Any]) -> int:
    """The error number of the first error that comes, and 0 if none does before a heartbeat."""
    with RawClient(port) as client:
        client.send(encode_request(kind, 7, body))
        while True:
            answer = client.receive()
            if answer.is_error:
                return int(answer.error().code)


@pytest.mark.parametrize(("kind", "body"), ASKED)
def test_same_number_as_a_real_one(ports: tuple[int, int], kind: int, body: dict[int, Any]) -> None:
    """JOIN, SUBSCRIBE, REGISTER and requests of newer versions."""
    assert told(ports[1], kind, body) == told(ports[0], kind, body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (1, {0x10: 9999, 0x12: 1, 0x20: []}),
        (1, {0x10: 281, 0x12: 1, 0x20: ["x"]}),
        (2, {0x10: 272, 0x21: ["x", 1]}),
        (7, {0x23: "nobody", 0x21: []}),
        (99, {}),
    ],
)
def test_same_error_as_a_real_one(ports: tuple[int, int], kind: int, body: dict[int, Any]) -> None:
    """Message and stack, with its types and fields; file and line are of each one's own source."""
    found = []
    for port in ports:
        with RawClient(port) as client:
            answer = client.ask(kind, body).body
        for entry in answer[0x52][0]:
            assert isinstance(entry.pop(1), str)
            assert isinstance(entry.pop(2), int)
        found.append(answer)
    assert found[0] == found[1]


def test_join_with_the_uuid_of_the_server_itself(ports: tuple[int, int]) -> None:
    """Error 117 from both."""
    for port in ports:
        with RawClient(port) as client:
            own = str(client.greeting.instance)
        assert told(port, 65, {0x24: own}) == 117


def test_subscription_ahead_of_us_gets_heartbeats_only(ports: tuple[int, int]) -> None:
    """As with a real one, nothing is sent until we have caught up."""
    for port in ports:
        with RawClient(port) as client:
            body = {0x24: STRANGER, 0x26: {1: 10**6, 9: 5}, 0x06: 132608, 0x50: True}
            client.send(encode_request(66, 0, body))
            first, second, third = (client.receive() for _ in range(3))
            assert 0x26 in first.body
            assert second.header.timestamp > 0
            assert third.header.timestamp > second.header.timestamp


def test_silent_replica_is_told_and_dropped(tmp_path: Path) -> None:
    """After four timeouts without a word: error 115, then the end."""
    with (
        Serving(tmp_path, guest="replicate", replication_timeout_seconds=0.1) as serving,
        RawClient(serving.port) as client,
    ):
        body = {0x24: STRANGER, 0x26: {}, 0x06: 132608, 0x50: True}
        client.send(encode_request(66, 0, body))
        answer = client.receive()
        while not answer.is_error:
            answer = client.receive()
        assert int(answer.error().code) == 115
        with pytest.raises(EOFError):
            client.receive()
        serving.wait(lambda: not serving.server.protocol("tarantool").instance.followers)
