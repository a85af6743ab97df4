"""The newest Synapse with several writers on PostgreSQL and Redis, followed."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from interop.realcluster import RealCluster
from interop.realpostgres import PASSWORD
from interop.serving import Serving
from interop.test_pipeline_spools import batch
from interop.test_real_synapse import follows
from logweir.replication.protocols import parse_url
from logweir.replication.runner import SourceState
from logweir.replication.stream import positions
from logweir.replication.synapse.follow.forgetting import forget_user
from logweir.store import Log
from logweir.wal.mp import unpack
from logweir.wal.xrow import Key

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.synapse]

PROGRAM = Path(sys.executable).parent / "logweir"
SERVER = "logweir.test"
BASE = "/_matrix/client/v3"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """One for all tests of this file."""
    with RealCluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


class Client:
    """A user in a room of its own."""

    def __init__(self, cluster: RealCluster, name: str) -> None:
        self.home = cluster.home
        self.writer_port = cluster.writers["writer1"].client_port
        self.user = f"@{name}:{SERVER}"
        self.token = self.home.register(name)
        self.rooms: dict[str, str] = {}
        """A room by the process that writes its events."""
        while len(self.rooms) < 2:
            room = self.call("POST", "/createRoom", {"preset": "private_chat"})["room_id"]
            found = cluster.postgres.sql(
                f"SELECT DISTINCT instance_name FROM events WHERE room_id = '{room}'"
            )
            self.rooms[found[0][0]] = room
        self.done = 0

    def call(self, method: str, path: str, body: Any) -> dict[str, Any]:
        """A request to the main process."""
        return self.home.call(method, BASE + path, body, self.token)

    def written(self, method: str, path: str, body: Any) -> dict[str, Any]:
        """A request to the process that writes what users do."""
        return self.home.call(method, BASE + path, body, self.token, port=self.writer_port)

    def act(self) -> None:
        """A message in each room, and more. Raises `AssertionError` or `OSError` where a process is
        away."""
        number = self.done
        for room in self.rooms.values():
            event = self.say(room, f"number {number}", str(number))
            if number % 5 == 0:
                path = f"/rooms/{room}/state/m.room.topic"
                self.call("PUT", path, {"topic": f"topic {number}"})
            if number % 2 == 0:
                self.written("POST", f"/rooms/{room}/receipt/m.read/{event}", {})
            path = f"/user/{self.user}/rooms/{room}/account_data/org.example.mark"
            self.written("PUT", path, {"number": number})
            self.written("PUT", f"/rooms/{room}/typing/{self.user}", {"typing": number % 2 == 0})
        self.written("PUT", f"/user/{self.user}/account_data/org.example.k", {"number": number})
        message = {"messages": {self.user: {"*": {"number": number}}}}
        self.written("PUT", f"/sendToDevice/org.example.note/{number}", message)
        rule = {"actions": ["notify"], "pattern": f"word{number}"}
        self.written("PUT", f"/pushrules/global/content/rule{number}", rule)
        self.done = number + 1

    def say(self, room: str, body: str, transaction: str) -> str:
        """A message. Returns its event's id."""
        path = f"/rooms/{room}/send/m.room.message/{transaction}"
        event: str = self.call("PUT", path, {"msgtype": "m.text", "body": body})["event_id"]
        return event


class Clients:
    """Clients that go on whatever is killed, in threads, until the `with` block ends."""

    def __init__(self, clients: list[Client]) -> None:
        self._clients = clients
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._go_on, args=(one,)) for one in clients]

    def _go_on(self, client: Client) -> None:
        while not self._stop.is_set():
            try:
                client.act()
            except (AssertionError, OSError):
                self._stop.wait(0.1)

    def done_more(self, count: int = 2) -> None:
        """Until every client has done so much more."""
        wanted = [one.done + count for one in self._clients]
        until = time.monotonic() + 60
        while any(one.done < goal for one, goal in zip(self._clients, wanted, strict=True)):
            assert time.monotonic() < until, [one.done for one in self._clients]
            self._stop.wait(0.02)

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def following(url: str, folder: Path) -> Iterator[None]:
    """The program follows until it is killed at the end of the block."""
    process = subprocess.Popen([PROGRAM, "follow", url, folder])
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


Row = tuple[str, int, Any]
"""Instance, token, row."""

KEPT = {
    "events": """SELECT e.instance_name, e.stream_ordering, json_build_array('ev',
        json_build_array(e.event_id, e.room_id, e.type, s.state_key, d.redacts, r.relates_to_id,
          m.membership, j.reason IS NOT NULL, e.outlier))
      FROM events AS e LEFT JOIN redactions AS d USING (event_id)
        LEFT JOIN state_events AS s USING (event_id) LEFT JOIN event_relations AS r USING (event_id)
        LEFT JOIN room_memberships AS m USING (event_id) LEFT JOIN rejections AS j USING (event_id)
      UNION ALL SELECT instance_name, stream_id, json_build_array('state',
        json_build_array(room_id, type, state_key, event_id)) FROM current_state_delta_stream""",
    "push_rules": """SELECT instance_name, stream_id, json_build_array(user_id)
      FROM push_rules_stream""",
    "caches": """SELECT instance_name, stream_id, json_build_array(cache_func, keys,
        invalidation_ts) FROM cache_invalidation_stream_by_instance""",
}
"""Streams of which the database keeps all rows."""
LATEST = {
    "receipts": """SELECT instance_name, stream_id, json_build_array(room_id, receipt_type, user_id,
        event_id, thread_id, data::json) FROM receipts_linearized""",
    "account_data": """SELECT 'writer1', stream_id, json_build_array(user_id, NULL,
        account_data_type) FROM account_data
      UNION ALL SELECT 'writer1', stream_id, json_build_array(user_id, room_id,
        account_data_type) FROM room_account_data""",
    "to_device": """SELECT instance_name, max(stream_id), json_build_array(user_id)
      FROM device_inbox GROUP BY instance_name, user_id""",
}
"""Those of which it keeps the newest row of each key: of so many fields, from the first."""
KEY_FIELDS = {"receipts": 3, "account_data": 3, "to_device": 1}


def of_database(cluster: RealCluster) -> dict[str, list[Row]]:
    """The rows of each stream, in the order of their texts."""
    found = (KEPT | LATEST).items()
    return {stream: sorted(cluster.postgres.sql(sql), key=repr) for stream, sql in found}


def of_log(log: Log) -> dict[str, list[Row]]:
    """The same that a store has."""
    found: dict[str, list[Row]] = {}
    for stream in (*KEPT, *LATEST):
        space = log.schema.get(f"synapse_{stream}")
        rows = [] if space is None else log.select(space.id)
        kept = [(row[0], row[1], plain(row[3])) for row in rows]
        if stream in LATEST:
            kept.sort(key=lambda row: row[1])
            kept = list({repr(row[2][: KEY_FIELDS[stream]]): row for row in kept}.values())
        found[stream] = sorted(kept, key=repr)
    return found


def plain(value: Any) -> Any:
    """With lists as JSON has them."""
    return json.loads(json.dumps(value))


def test_whatever_is_killed_the_log_holds_what_the_database_does(
    cluster: RealCluster, tmp_path: Path
) -> None:
    """Both that write events, one that writes other streams, Redis and the follower, by SIGKILL in
    turn, while two users go on, and Redis cuts all off twice: each row is there once, and none is
    missing."""
    url = f"{cluster.url}?start=all"
    data = tmp_path / "data"
    with Clients([Client(cluster, "ann"), Client(cluster, "bob")]) as clients:
        with following(url, data):
            clients.done_more()
            cluster.writers["persister1"].kill()
        cluster.writers["persister1"].start()  # the follower is away, too
        with following(url, data):
            clients.done_more(1)
            cluster.broker.kill()
            cluster.broker.start()
            clients.done_more(1)
            for name in ("writer1", "persister2"):
                cluster.writers[name].kill()
        for name in ("writer1", "persister2"):
            cluster.writers[name].start()
        with (
            Serving(data, follow=[parse_url(url)]) as serving,
            closing(redis.Redis(port=cluster.broker.port)) as admin,
        ):
            serving.wait(lambda: follows(serving), 60)
            assert admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub") > 0
            clients.done_more(1)
            serving.wait(lambda: follows(serving), 60)
            # a message larger than what may wait for a subscriber
            admin.config_set("client-output-buffer-limit", "pubsub 1024 1024 0")
            admin.publish(SERVER, "PING " + "x" * 4_000_000)
            admin.config_set("client-output-buffer-limit", "pubsub 33554432 8388608 60")
            clients.done_more(1)
            assert serving.server.runners[0].status.attempts > 2
    with Serving(data, follow=[parse_url(url)]) as serving:
        with contextlib.suppress(AssertionError):
            serving.wait(lambda: of_log(serving.log) == of_database(cluster), 40)
        assert of_log(serving.log) == of_database(cluster)
        assert len(of_log(serving.log)["events"]) > 60
        assert {gap.stream for gap in positions.gaps(serving.log)} <= {"typing"}


def contents_of_database(cluster: RealCluster) -> dict[str, tuple[Any, ...]]:
    """Room, type, sender, time and content of each event."""
    found = cluster.postgres.sql(
        "SELECT event_id, e.room_id, type, sender, origin_server_ts, json::json -> 'content'"
        " FROM events AS e JOIN event_json USING (event_id)"
    )
    return {row[0]: row[1:] for row in found}


def contents_of_log(log: Log) -> dict[str, tuple[Any, ...]]:
    """The same of those that are kept whole."""
    if log.schema.get("synapse_event_json") is None:
        return {}
    rows = [row for row in log.select("synapse_event_json") if row[6] == "whole"]
    return {row[0]: (*row[1:4], row[5], plain(row[7])) for row in rows}


def test_events_come_with_what_they_say_also_after_a_time_without_the_database(
    cluster: RealCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each in the transaction of its row. While we may not ask, and while PostgreSQL is down by
    SIGKILL, nothing is stored and the position stays; then all is filled in. What is redacted is
    taken away, and no password is told."""
    cluster.postgres.sql(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
    cluster.postgres.sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    (tmp_path / "word").write_text(PASSWORD + "\n")
    where = f"postgresql://reader@/synapse?host={cluster.postgres.folder}"
    options = f"start=all&enrich={where}&enrich_password_file={tmp_path}/word&streams=events"
    client = Client(cluster, "carl")
    room = next(iter(client.rooms.values()))
    said = client.say(room, "to be redacted", "said")
    with Serving(tmp_path / "data", follow=[parse_url(f"{cluster.url}?{options}")]) as serving:
        log, status = serving.log, lambda: serving.server.runners[0].status
        serving.wait(lambda: contents_of_log(log) == contents_of_database(cluster), 60)
        before, rows = contents_of_log(log), log.count("synapse_events")
        assert before[said][4]["body"] == "to be redacted"
        cluster.postgres.sql("ALTER ROLE reader NOLOGIN")
        cluster.postgres.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'"
        )
        client.say(room, "meanwhile", "meanwhile")
        serving.wait(lambda: "contents/database WAITS" in status().position, 60)
        assert database_waits(serving) == "1.0"
        serving.wait(lambda: "is not permitted to log in" in status().position, 60)
        assert log.count("synapse_events") == rows
        cluster.postgres.kill()
        serving.wait(lambda: "Connection refused" in status().position, 60)
        cluster.postgres.start()
        assert log.count("synapse_events") == rows
        cluster.postgres.sql("ALTER ROLE reader LOGIN")
        serving.wait(lambda: contents_of_log(log) == contents_of_database(cluster), 60)
        serving.wait(lambda: "WAITS" not in status().position)
        assert database_waits(serving) == "0.0"
        again(lambda: client.call("PUT", f"/rooms/{room}/redact/{said}/r", {"reason": "enough"}))
        serving.wait(lambda: log.get("synapse_event_json", said)[6:] == ("redacted", None), 60)
        events, contents = (log.schema.space(f"synapse_{s}").id for s in ("events", "event_json"))
        for transaction in log.rows():
            written = [(row.space_id, unpack(row.body)) for row in transaction.rows]
            kinds = [body[Key.TUPLE][3][0] for space, body in written if space == events]
            assert sum(space == contents for space, _ in written) >= kinds.count("ev")
        assert "synapse.waits" in caplog.text
        assert PASSWORD not in caplog.text + str(status())
    event = again(lambda: client.say(room, "once more", "last"))
    follow = parse_url(f"{cluster.url}?enrich=database&streams=events")
    with Serving(tmp_path / "data", follow=[follow]) as serving:
        serving.wait(lambda: event in contents_of_log(serving.log), 60)
        assert contents_of_log(serving.log)[event][4]["body"] == "once more"
    rejected = client.say(room, "nobody may see this", "rejected")
    cluster.postgres.sql(f"INSERT INTO rejections VALUES ('{rejected}', 'auth_error', '1')")
    metadata = "(internal_metadata::jsonb || '{\"soft_failed\": true}')::text"
    cluster.postgres.sql(
        f"UPDATE event_json SET internal_metadata = {metadata} WHERE event_id = '{event}'"
    )
    follow = parse_url(f"{cluster.url}?start=all&enrich=database&streams=events")
    with Serving(tmp_path / "anew", follow=[follow]) as serving:
        serving.wait(lambda: rejected in told(serving.log), 60)
        found = told(serving.log)
        assert found[rejected] == ("rejected", "nobody may see this")
        assert found[event] == ("soft_failed", "once more")
        assert found[said] == ("redacted", "")


ACCOUNT = """
SELECT user_id, '', account_data_type, content::json FROM account_data
UNION ALL SELECT user_id, room_id, account_data_type, content::json FROM room_account_data
UNION ALL SELECT user_id, room_id, 'm.tag',
  json_build_object('tags', json_object_agg(tag, content::json))
  FROM room_tags GROUP BY user_id, room_id
"""


def account_of_log(log: Log) -> dict[tuple[str, ...], Any]:
    """What each says, of those that are kept whole and say something."""
    if log.schema.get("synapse_account_json") is None:
        return {}
    rows = [row for row in log.select("synapse_account_json") if row[4] == "whole"]
    return {row[:3]: plain(row[5]) for row in rows if row[5] != {"tags": {}}}


def test_account_data_and_tags_come_with_what_they_say(
    cluster: RealCluster, tmp_path: Path
) -> None:
    """As they stand in the tables, also what is changed and what is taken away; rows of receipts
    carry their own. A user without a right on a table ends it, with its name, unless that stream
    is not asked for; what a user has is forgotten with the user, and nothing of others. Events that
    are kept for a while go with what they say, and what is written then comes."""
    cluster.postgres.sql(f"CREATE ROLE limited LOGIN PASSWORD '{PASSWORD}'")
    cluster.postgres.sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO limited")
    cluster.postgres.sql("REVOKE ALL ON room_tags FROM limited")
    client = again(lambda: Client(cluster, "fay"))
    room = next(iter(client.rooms.values()))
    client.act()
    tags = f"/user/{client.user}/rooms/{room}/tags"
    client.written("PUT", f"{tags}/u.work", {"order": 0.5})
    client.written("PUT", f"{tags}/m.favourite", {})

    def of_database() -> dict[tuple[str, ...], Any]:
        return {row[:3]: row[3] for row in cluster.postgres.sql(ACCOUNT)}

    follow = parse_url(f"{cluster.url}?start=all&enrich=database&streams=account_data,receipts")
    with Serving(tmp_path / "data", follow=[follow]) as serving:
        log = serving.log
        serving.wait(lambda: account_of_log(log) == of_database(), 60)
        both = account_of_log(log)[client.user, room, "m.tag"]
        assert both == {"tags": {"u.work": {"order": 0.5}, "m.favourite": {}}}
        client.written("DELETE", f"{tags}/u.work", {})
        client.written("PUT", f"/user/{client.user}/account_data/org.example.k", {"n": "new"})
        serving.wait(lambda: account_of_log(log) == of_database(), 60)
        assert account_of_log(log)[client.user, "", "org.example.k"] == {"n": "new"}
        data = log.schema.space("synapse_account_data").id
        beside = log.schema.space("synapse_account_json").id
        for transaction in log.rows():
            spaces = [row.space_id for row in transaction.rows]
            assert spaces.count(beside) == spaces.count(data)
        receipts = [row[3] for row in log.select("synapse_receipts")]
        assert receipts
        assert all(row[5]["ts"] > 1_600_000_000_000 for row in receipts)
        assert forget_user(log, client.user)["synapse_account_json"] >= 4
        others = {key: value for key, value in of_database().items() if key[0] != client.user}
        assert account_of_log(log) == others
    where = f"postgresql://limited@/synapse?host={cluster.postgres.folder}"
    (tmp_path / "word").write_text(PASSWORD + "\n")
    options = f"start=all&enrich={where}&enrich_password_file={tmp_path}/word"
    with Serving(tmp_path / "two", follow=[parse_url(f"{cluster.url}?{options}")]) as serving:
        runner = serving.server.runners[0]
        serving.wait(lambda: runner.status.state == SourceState.STOPPED, 60)
        assert "permission denied for table room_tags" in str(runner.status.last_error)
    options += "&enrich_streams=events,backfill&retention=events:2s"
    with Serving(tmp_path / "two", follow=[parse_url(f"{cluster.url}?{options}")]) as serving:
        log = serving.log
        serving.wait(lambda: contents_of_log(log).keys() >= {*last(cluster)}, 60)
        assert not account_of_log(log)
        serving.wait(lambda: not log.count("synapse_events"), 60)
        assert not log.count("synapse_event_json")
        event = client.say(room, "meanwhile", "meanwhile")
        serving.wait(lambda: event in contents_of_log(log), 60)
        assert contents_of_log(log) == {event: contents_of_database(cluster)[event]}


def last(cluster: RealCluster) -> list[str]:
    """The newest event."""
    sql = "SELECT event_id FROM events ORDER BY stream_ordering DESC LIMIT 1"
    return [row[0] for row in cluster.postgres.sql(sql)]


def told(log: Log) -> dict[str, tuple[str, str]]:
    """The state and the text of each event that there is."""
    if log.schema.get("synapse_event_json") is None:
        return {}
    rows = log.select("synapse_event_json")
    return {row[0]: (row[6], "" if row[7] is None else row[7].get("body", "")) for row in rows}


def database_waits(serving: Serving) -> str:
    """What the metrics say of it."""
    told = serving.server.metrics.render().decode()
    where = r'logweir_source_stream_waits\{stream="contents",url=".*",writer="database"\} (.*)'
    found = re.search(where, told)
    assert found is not None
    return found[1]


def again(act: Any) -> Any:
    """What it returns, tried until it works: a homeserver's connections to a database that was away
    fail once."""
    while True:
        with contextlib.suppress(AssertionError):
            return act()


def test_a_batch_of_the_pipeline_has_what_came_since_the_one_before(
    cluster: RealCluster, tmp_path: Path
) -> None:
    """Into a spool, from all writers, without a gap; without a spool all that there is."""
    options: dict[str, Any] = {"spool": tmp_path / "spool", "spaces": "synapse_events"}
    batch(cluster.url, **options)
    before = len(cluster.postgres.sql(KEPT["events"]))
    client = again(lambda: Client(cluster, "dora"))
    client.say(next(iter(client.rooms.values())), "news", "news")
    found = [(row[0], row[1], plain(row[3])) for _, row in batch(cluster.url, **options)]
    whole = sorted(cluster.postgres.sql(KEPT["events"]), key=repr)
    assert len(found) == len(whole) - before > 20
    assert set(map(repr, found)) < set(map(repr, whole))
    assert batch(cluster.url, **options | {"spaces": "logweir_gap"}) == []
    said = batch(f"{cluster.url}?enrich=database", spaces="synapse_event_json")
    assert {row[0] for _, row in said} == set(contents_of_database(cluster))
