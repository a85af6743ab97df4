"""Topics that clients of a Tank server make."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from interop.serving import Serving
from logweir.replication.protocols import parse_listen_url
from logweir.replication.tank.client.sync import Client
from logweir.replication.tank.wire.codec import encode_request
from logweir.replication.tank.wire.messages import Create
from logweir.replication.topic import store


def test_creations_of_several_clients_run_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that compute take turns with the loop, for which all others wait: each one that is
    begun waits here for another one, which does not come."""
    together, met = threading.Barrier(2), list[str]()
    create = store.create_topic

    def create_topic(log: Any, name: str, *args: Any, **options: Any) -> None:
        try:
            together.wait(0.3)
            met.append(name)
        except threading.BrokenBarrierError:
            together.reset()
        create(log, name, *args, **options)

    monkeypatch.setattr(store, "create_topic", create_topic)
    names = [f"topic-{number}" for number in range(4)]
    with Serving(tmp_path, listen=[parse_listen_url("tank://:0")], guest="all") as serving:

        def make(name: str) -> None:
            with Client(serving.urls[0]) as client:
                client.create_topic(name)

        makers = [threading.Thread(target=make, args=(name,)) for name in names]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join()
        with Client(serving.urls[0]) as client:
            assert [len(client.partitions(name)) for name in names] == [1] * 4
    assert met == []


def test_a_topic_whose_client_left_is_made_and_those_behind_it_wait_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are answered meanwhile; nothing of the connection is left."""
    begun, go = list[str](), threading.Event()
    create = store.create_topic

    def create_topic(log: Any, name: str, *args: Any, **options: Any) -> None:
        begun.append(name)
        assert go.wait(30)
        create(log, name, *args, **options)

    monkeypatch.setattr(store, "create_topic", create_topic)
    with Serving(tmp_path, listen=[parse_listen_url("tank://:0")], guest="all") as serving:
        (service,) = next(one.made for one in serving.server.protocols if "tank" in one.schemes)
        with socket.create_connection((serving.url.host, serving.port)) as leaving:
            leaving.sendall(encode_request(Create(1, "left", 2)))
            serving.wait(lambda: begun)
        serving.wait(lambda: not service._conversations)
        with socket.create_connection((serving.url.host, serving.port)) as behind:
            behind.sendall(encode_request(Create(1, "behind", 1)))
            serving.wait(lambda: len(service.topics._tasks) == 2 or len(begun) == 2)
            with Client(serving.url) as client:
                assert list(client.topics()) == []
                assert begun == ["left"]
                go.set()
                both = [("behind", True, 1), ("left", True, 2)]
                serving.wait(lambda: sorted(client.topics()) == both)
        serving.wait(lambda: not service.topics._tasks and not service._conversations)
