"""Topics that clients of a Tank server make."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from interop.serving import Serving
from logweir.replication.protocols import parse_listen_url
from logweir.replication.tank.client.sync import Client
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
