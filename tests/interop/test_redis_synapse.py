"""A real homeserver and its worker that have a logweir where their Redis was."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.ports import free_port

import logweir
from interop.realsynapse import RealSynapse, RealWorker
from interop.serving import Serving
from interop.test_real_synapse import follows, stored
from interop.test_synapse_workers import until
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.service import users
from logweir.replication.stream import positions
from logweir.store.schema.access import Privilege

pytestmark = [pytest.mark.slow, pytest.mark.synapse]

PASSWORD = "a word"
_SUBSCRIBED = "Successfully subscribed to redis stream"


def said(log: logweir.Log) -> dict[tuple[str, ...], object]:
    """What account data says, by room and type."""
    if log.schema.get("synapse_account_json") is None:
        return {}
    return {row[1:3]: row[5] for row in log.select("synapse_account_json")}


def test_homeserver_and_worker_run_on_logweir_instead_of_redis(tmp_path: Path) -> None:
    """1.163.2: the worker learns what happens at the main process, also what did while it was cut
    off by our restart; all rows are kept, once and without a gap, with what events and account data
    say in SQLite."""
    home, work, data = tmp_path / "home", tmp_path / "work", tmp_path / "data"
    home.mkdir()
    work.mkdir()
    port = free_port()
    synapse = RealSynapse(home, "1.163.2", port, PASSWORD, starts=False)
    with logweir.open(data) as log:
        users.add_user(log, "default", password=PASSWORD)
        log.create_space("matrix")
        bits = Privilege.READ | Privilege.WRITE
        users.grant(log, "default", bits, users.Target("space", "matrix"))
    listen = [parse_listen_url(f"redis://127.0.0.1:{port}?space=matrix&channels=logweir.test*")]
    follow = [parse_url(f"synapse+file://{home}/hs.yaml?enrich=database")]
    with Serving(data, listen=listen, follow=follow) as serving:
        synapse.start()
        serving.wait(lambda: follows(serving), 60)
        token, room = synapse.activity("first")
        serving.wait(lambda: len(stored(serving.log).get("receipts", [])) == 1)
        worker = RealWorker(work, synapse)
        user = "@first:logweir.test"
        serving.wait(lambda: said(serving.log).items() >= {("", "org.example.k"): {"v": 1}}.items())
        tags = {"tags": {"u.work": {"order": 0.5}}}
        serving.wait(lambda: said(serving.log).get((room, "m.tag")) == tags)
        bodies = [row[7].get("body", "") for row in serving.log.select("synapse_event_json")]
        assert "caf\u00e9\nline 2" in bodies
        until(serving, lambda: "Connected to redis" in worker.text(), worker)
        synapse.type("first", token, room)
        until(serving, lambda: worker.typing_users(room, token) == [user], worker)
    meanwhile = threading.Thread(target=synapse.activity, args=("second",))
    try:
        synapse.register("away")
        synapse.type("first", token, room, ends=True)  # which nobody can be told
        meanwhile.start()  # a homeserver waits for its Redis at the first event
        with Serving(data, listen=listen, follow=follow) as serving:
            serving.wait(lambda: follows(serving), 60)
            serving.wait(lambda: len(stored(serving.log)["receipts"]) == 2, 60)
            until(serving, lambda: worker.text().count(_SUBSCRIBED) == 2, worker)
            until(serving, lambda: worker.typing_users(room, token) == [], worker)
            synapse.activity("third")
            serving.wait(lambda: len(stored(serving.log)["receipts"]) == 3, 60)
            synapse.type("first", token, room)
            until(serving, lambda: worker.typing_users(room, token) == [user], worker)
            tokens = [token for token, _ in stored(serving.log)["events"]]
            assert tokens == sorted(tokens)
            assert len(tokens) % 3 == 0
            assert not positions.gaps(serving.log)
    finally:
        worker.stop()
        synapse.stop()
        if meanwhile.is_alive():
            meanwhile.join()
