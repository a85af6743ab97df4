"""What events say, from a homeserver's database: what is kept, with what, and what is refused."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir.errors import ConfigError, LogweirError, SourceStopped, Unreachable
from logweir.limits import SYNAPSE_JSON_BYTES
from logweir.replication.protocols import parse_url
from logweir.replication.server import ServerOptions
from logweir.replication.synapse.follow.contents import (
    PORTION_EVENTS,
    Contents,
    Database,
    portions,
    read_database,
)
from logweir.replication.synapse.follow.forgetting import forget_user
from logweir.replication.synapse.follow.homeserver import read_homeserver
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.synapse.follow.kinds import enriched_streams
from logweir.replication.synapse.follow.retention import Expiry
from logweir.replication.synapse.wire.codec import encode_row
from logweir.replication.synapse.wire.rows import Run
from logweir.replication.synapse.wire.units import Change, Cursor, Gap, Unit, Units
from logweir.store import Log

ANN = "@ann:matrix.test"
TABLES = """
CREATE TABLE events (event_id TEXT, room_id TEXT, type TEXT, sender TEXT, origin_server_ts BIGINT);
CREATE TABLE event_json (event_id TEXT, json TEXT, internal_metadata TEXT);
CREATE TABLE state_events (event_id TEXT, state_key TEXT);
CREATE TABLE rejections (event_id TEXT, reason TEXT);
CREATE TABLE redactions (event_id TEXT, redacts TEXT);
CREATE TABLE account_data (user_id TEXT, account_data_type TEXT, content TEXT);
CREATE TABLE room_account_data
  (user_id TEXT, room_id TEXT, account_data_type TEXT, content TEXT);
CREATE TABLE room_tags (user_id TEXT, room_id TEXT, tag TEXT, content TEXT);
"""


class Home:
    """A small homeserver's database, of the tables that are read."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.database = sqlite3.connect(file)
        self.database.executescript(TABLES)

    def put(self, table: str, *values: Any) -> None:
        """A row."""
        marks = ", ".join("?" * len(values))
        with self.database:
            self.database.execute(f"INSERT INTO {table} VALUES ({marks})", values)

    def event(self, name: str, text: str | None = None, internal: str = "{}") -> None:
        """A message of Ann's with that id, or whatever JSON it is to have."""
        self.put("events", name, "!r", "m.room.message", ANN, 1000)
        content = json.dumps({"content": {"body": f"{name} says"}})
        self.put("event_json", name, content if text is None else text, internal)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """An empty one."""
    found = Home(tmp_path / "home?.db")
    with closing(found.database):
        yield found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A fresh store."""
    with logweir.open(tmp_path / "data") as opened:
        yield opened


def unit(token: int, *rows: Any, stream: str = "events") -> Unit:
    """Rows of one token."""
    packed = [encode_row(json.dumps(row)) for row in rows]
    return Unit(stream, "master", 1, token, packed, False, Cursor(token, token))


def says(name: str, redacts: str | None = None, *more: Any) -> list[Any]:
    """The row of an event."""
    return ["ev", [name, "!r", "m.room.message", None, redacts, None, *more]]


def take(home: Home, log: Log, *changes: Change, name: str = "") -> None:
    """Store changes with what their events say."""
    contents = Contents(Database("the database", file=str(home.file)))
    intake = Intake(log, "matrix.test", name=name)
    for portion, events in portions(changes):
        intake.store(portion, asyncio.run(contents.of(events)))


def kept(log: Log, space: str = "synapse_event_json") -> dict[str, tuple[Any, ...]]:
    """Sender, time, state and content of each event."""
    return {row[0]: (row[3], *row[5:]) for row in log.select(space)}


def test_each_event_says_what_it_is_and_whether_it_counts(home: Home, log: Log) -> None:
    """Whole, soft-failed, rejected, redacted, too long, unreadable, and not there."""
    home.event("$whole")
    home.event("$soft", internal='{"soft_failed": true}')
    home.event("$rejected")
    home.put("rejections", "$rejected", "auth")
    home.event("$redacted")
    home.put("redactions", "$r", "$redacted")
    home.event("$kept")  # what was to redact it was rejected
    home.put("redactions", "$rejected", "$kept")
    most = json.dumps({"content": "x"})
    home.event("$longest", most + " " * (SYNAPSE_JSON_BYTES - len(most)))
    home.event("$long", most + " " * (SYNAPSE_JSON_BYTES - len(most) + 1))
    home.event("$number", '{"content": {"n": 36893488147419103232}}')
    home.event("$broken", '{"content": ')
    home.event("$list", "[]")
    home.event("$bare", "{}")
    home.put("events", "$empty", "!r", "m.room.message", ANN, 1000)
    names = [name for (name,) in home.database.execute("SELECT event_id FROM events")]
    take(home, log, unit(1, *map(says, [*names, "$gone"])))
    assert kept(log) == {
        "$whole": (ANN, 1000, "whole", {"body": "$whole says"}),
        "$soft": (ANN, 1000, "soft_failed", {"body": "$soft says"}),
        "$rejected": (ANN, 1000, "rejected", {"body": "$rejected says"}),
        "$redacted": (ANN, 1000, "redacted", None),
        "$kept": (ANN, 1000, "whole", {"body": "$kept says"}),
        "$longest": (ANN, 1000, "whole", "x"),
        "$long": (ANN, 1000, "long", None),
        "$number": (ANN, 1000, "unreadable", None),
        "$broken": (ANN, 1000, "unreadable", None),
        "$list": (ANN, 1000, "unreadable", None),
        "$bare": (ANN, 1000, "whole", None),
        "$empty": (ANN, 1000, "missing", None),
        "$gone": (None, None, "missing", None),
    }
    assert log.get("synapse_event_json", "$gone")[:5] == (
        *("$gone", "!r", "m.room.message"),
        *(None, None),
    )


def test_values_of_other_types_than_synapse_gives_are_left_out(home: Home, log: Log) -> None:
    """SQLite keeps blobs and floats in any column; the events around them are stored."""
    content = json.dumps({"content": {"body": "x"}})
    for number, fields in enumerate(
        (
            (b"!r", "m.room.message", ANN, 1000),
            ("!r", b"\xff", ANN, 1000),
            ("!r", "m.room.message", b"\xff", 1000),
            ("!r", "m.room.message", ANN, 1.5),
            ("!r", "m.room.message", ANN, b"\xff"),
            ("!r", "m.room.message", ANN, 1000),
        )
    ):
        home.put("events", f"${number}", *fields)
        home.put("event_json", f"${number}", content, "{}")
    home.event("$text", b"\xff")  # type: ignore[arg-type]
    home.event("$internal", internal=b"\xff")  # type: ignore[arg-type]
    home.put("state_events", "$5", b"\xff")
    home.event("$whole")
    names = [name for (name,) in home.database.execute("SELECT event_id FROM events")]
    take(home, log, unit(1, *map(says, names)))
    bad = {f"${number}": (ANN, 1000, "unreadable", None) for number in range(6)}
    bad |= {"$2": (None, 1000, "unreadable", None), "$text": bad["$0"], "$internal": bad["$0"]}
    bad |= {"$3": (ANN, None, "unreadable", None), "$4": (ANN, None, "unreadable", None)}
    assert kept(log) == {**bad, "$whole": (ANN, 1000, "whole", {"body": "$whole says"})}
    assert log.get("synapse_event_json", "$0")[1] == log.get("synapse_event_json", "$1")[2] == ""
    assert log.get("synapse_event_json", "$5")[4] is None
    home.put("account_data", ANN, "t", b"\xff")
    take(home, log, unit(1, [ANN, None, "t"], stream="account_data"))
    assert log.get("synapse_account_json", (ANN, "", "t"))[4:] == ("unreadable", None)


def test_content_row_and_position_are_one_transaction(home: Home, log: Log) -> None:
    """Of each unit, also of those that come together; other streams are left alone."""
    home.event("$a")
    home.put("state_events", "$a", "")
    home.event("$b")
    state = ["state", ["!r", "m.room.topic", "", "$a"]]
    back = ["$b", "!r", "m.room.message", None, None, None]
    odd = [["ev", "$a"], ["ev", ["$a"]], "$a", ["ev", [1, "!r", "x", None, None]], says("\ud800")]
    take(
        home,
        log,
        unit(1, says("$a"), state),
        unit(2, back, stream="backfill"),
        unit(3, ["$b"], stream="receipts"),
        unit(4, *odd),
        Gap("events", "master", 5, 6, "lost"),
    )
    events, contents = (log.schema.space(f"synapse_{one}").id for one in ("events", "event_json"))
    shapes = [
        [row.space_id for row in one.rows] for one in log.rows() if one.rows[0].space_id >= 512
    ]
    position = log.schema.space("logweir_position").id
    backfill = log.schema.space("synapse_backfill").id
    assert [events, events, contents] in shapes
    assert [backfill, contents, position] in shapes
    assert [row[4] for row in log.select("synapse_event_json")] == ["", None]
    assert len(log.select("synapse_events")) == 2 + len(odd)
    assert [row[0] for row in log.select("synapse_event_json", "!r", index="room")] == ["$a", "$b"]


def test_a_redaction_takes_away_what_is_held(home: Home, log: Log) -> None:
    """When its row comes, whatever the database says by then, unless it was rejected; an event that
    is not held does not come by that."""
    for name in ("$a", "$b", "$c"):
        home.event(name)
    take(home, log, unit(1, says("$a")), unit(2, says("$b")))
    redacts = [unit(3, says("$x", "$a")), unit(4, says("$y", "$b", None, True, False))]
    take(home, log, *redacts, unit(5, says("$z", "$c")))
    assert kept(log)["$a"] == (ANN, 1000, "redacted", None)
    assert kept(log)["$b"][2] == "whole"
    assert "$c" not in kept(log)


def test_many_units_are_taken_in_portions(home: Home, log: Log) -> None:
    """A run of units is asked for some at a time; nothing is left out, and the position follows."""
    count = 2 * PORTION_EVENTS + 7
    for number in range(count):
        home.event(f"${number}")
    run = Run.of([(n + 1, [encode_row(json.dumps(says(f"${n}")))]) for n in range(count)])
    together = Units("events", "master", 1, run, 0, False, Cursor(count, count))
    sizes = [len(events) for _, events in portions([together])]
    assert sizes == [PORTION_EVENTS, PORTION_EVENTS, 7]
    take(home, log, together)
    assert {name: row[2] for name, row in kept(log).items()} == {
        f"${number}": "whole" for number in range(count)
    }
    assert Intake(log, "matrix.test").cursors() == {("events", "master"): Cursor(count, count)}


def test_what_is_removed_from_streams_goes_here_too(home: Home, log: Log) -> None:
    """By age, and by the name of who sent it or is mentioned."""
    for name in ("$a", "$b"):
        home.event(name)
    home.event("$m", json.dumps({"content": {"m.mentions": {"user_ids": ["@bob:matrix.test"]}}}))
    take(home, log, unit(1, says("$a")), name="two")
    now = 1000.0
    expiry = Expiry(log, Intake(log, "matrix.test", name="two"), (("events", 80),), lambda: now)
    expiry.run()
    take(home, log, unit(2, says("$b")), unit(3, says("$m")), name="two")
    now += 81
    assert expiry.run() == 1
    assert list(kept(log, "synapse_two_event_json")) == ["$b", "$m"]
    assert forget_user(log, "@bob:matrix.test")["synapse_two_event_json"] == 1
    assert forget_user(log, ANN)["synapse_two_event_json"] == 1


def test_a_space_of_that_name_that_holds_something_else_is_told(home: Home, log: Log) -> None:
    """Nothing is written into it."""
    log.create_space("synapse_event_json", [("id", "unsigned")], primary=["id"])
    with pytest.raises(SourceStopped, match="holds no contents"):
        take(home, log, unit(1, says("$a")))


def ask(file: Path) -> None:
    """For one event."""
    contents = Contents(Database("the database", file=str(file)))
    _, events = next(portions([unit(1, says("$a"))]))
    asyncio.run(contents.of(events))


def test_a_database_that_is_away_is_waited_for_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    """No file may come later; other tables do not."""
    with pytest.raises(Unreachable, match="the database: unable to open"):
        ask(tmp_path / "none.db")
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE t (a)")
    with pytest.raises(SourceStopped, match="no such table"):
        ask(tmp_path / "other.db")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("mysql://x", "no address of a database"),
        ("database", "no address of a database"),
        ("sqlite:///", "no address of a database"),
        ("postgresql://a:hidden%zz@h/d", "no address of a PostgreSQL"),
        ("postgresql://a:hidden@h/d", "others would see"),
        ("postgresql://a@h/d?password=hidden", "others would see"),
    ],
)
def test_what_is_no_database_is_refused_and_no_password_shown(value: str, told: str) -> None:
    """Before anything is followed."""
    with pytest.raises(ConfigError, match=told) as refused:
        read_database(parse_url(f"synapse://h:1?enrich={value.replace('%', '%25')}"))
    assert "hidden" not in f"{refused.value} {refused.value.hint} {refused.value.__cause__}"


def test_a_driver_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an option that cannot be; SQLite does without."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match="psycopg") as refused:
        read_database(parse_url("synapse://h:1?enrich=postgresql://h/d"))
    assert refused.value.hint == "pip install 'logweir[enrich]'"
    found = read_database(parse_url("synapse://h:1?enrich=sqlite:///tmp/a%2520b.db"))
    assert found == Database("sqlite:///tmp/a%20b.db", file="/tmp/a b.db")


def homeserver(folder: Path, database: Any) -> Database | None:
    """What `enrich=database` takes from a homeserver's file."""
    settings = {
        "server_name": "matrix.test",
        "redis": {"enabled": True},
        "instance_map": {"main": {"host": "h", "port": 1}},
        **({} if database is None else {"database": database}),
    }
    (folder / "hs.yaml").write_text(json.dumps(settings))
    return read_homeserver(parse_url(f"synapse+file://{folder}/hs.yaml?enrich=database")).database


def test_a_new_homeservers_database_need_not_be_there_yet(tmp_path: Path) -> None:
    """It waits for its Redis, which may be this server, before it makes that; another file is
    refused."""
    homeserver(tmp_path, {"name": "sqlite3", "args": {"database": str(tmp_path / "hs.db")}})
    address = parse_url(f"synapse+file://{tmp_path}/hs.yaml?enrich=database")
    ServerOptions(follow=[address])
    (tmp_path / "hs.db").write_text("another")
    with pytest.raises(ConfigError, match="no database of SQLite"):
        ServerOptions(follow=[address])


def test_database_of_a_homeservers_file_is_taken_with_its_password(tmp_path: Path) -> None:
    """PostgreSQL's and SQLite's; nothing of it is shown; what is not understood is told."""
    args = {
        "user": "s",
        "password": "hidden",
        "database": "d",
        "host": "h",
        "port": 5433,
        "cp_min": 5,
    }
    found = homeserver(tmp_path, {"name": "psycopg2", "args": args})
    assert found is not None
    assert dict(found.options) == {
        **{"user": "s", "password": "hidden", "dbname": "d"},
        **{"host": "h", "port": "5433"},
    }
    assert "hidden" not in repr(found)
    found = homeserver(tmp_path, {"name": "sqlite3", "args": {"database": "hs.db"}})
    assert found is not None
    assert found.file == str(tmp_path / "hs.db")
    wrong: list[tuple[Any, str]] = [
        (None, r"database\.args\.database"),
        ({"name": "mysql"}, r"database\.name"),
        ({"name": "psycopg2", "args": {"user": "x"}}, r"database\.args\.dbname"),
        ("x", "database"),
    ]
    for one, told in wrong:
        with pytest.raises(ConfigError, match=told):
            homeserver(tmp_path, one)


def test_password_file_that_cannot_be_read_ends_it(tmp_path: Path) -> None:
    """With its name; also where it was there at first, since it is read for each connection."""
    file = tmp_path / "none"
    url = parse_url(f"synapse://h:1?enrich=postgresql://h/d&enrich_password_file={file}")
    file.write_text("secret")
    database = read_database(url)
    assert database is not None
    file.unlink()
    _, events = next(portions([unit(1, says("$a"))]))
    with pytest.raises(LogweirError, match=r"enrich_password_file .*none: No such file"):
        asyncio.run(Contents(database).of(events))


def account(home: Home) -> None:
    """Ann's: one of all rooms, one of a room, and two tags of it."""
    home.put("account_data", ANN, "m.direct", '{"@bob:matrix.test": ["!r"]}')
    home.put("room_account_data", ANN, "!r", "org.mark", '{"n": 1}')
    home.put("room_tags", ANN, "!r", "m.favourite", '{"order": 0.5}')
    home.put("room_tags", ANN, "!r", 'u."x"', "{}")


def held(log: Log, space: str = "synapse_account_json") -> dict[tuple[str, ...], tuple[Any, ...]]:
    """Token, state and content of account data."""
    return {tuple(row[1:3]): row[3:] for row in log.select(space)}


def test_account_data_and_tags_say_what_they_are(home: Home, log: Log) -> None:
    """Of all rooms, of one, its tags by either stream; too long, unreadable, and not there."""
    account(home)
    most = '{"a": "' + "x" * (SYNAPSE_JSON_BYTES - 9) + '"}'
    home.put("account_data", ANN, "longest", most)
    home.put("account_data", ANN, "long", most + " ")
    home.put("account_data", ANN, "list", "[]")
    home.put("room_tags", ANN, "!broken", "t", "{")
    home.put("room_tags", ANN, "!long", "t", most)
    kinds = ["m.direct", "longest", "long", "list", "gone"]
    rows = [[ANN, None, kind] for kind in kinds]
    rows += [[ANN, "!r", "org.mark"], [ANN, "!r", "gone"], [ANN, "!r", "m.tag"]]
    rows += [[ANN, f"!{room}", "m.tag"] for room in ("broken", "long", "none")]
    odd = [[ANN], [1, None, "x"], [ANN, 2, "x"], [ANN, None, None], ANN]
    take(home, log, unit(7, *rows, *odd, stream="account_data"))
    tags = {"tags": {"m.favourite": {"order": 0.5}, 'u."x"': {}}}
    assert held(log) == {
        ("", "m.direct"): (7, "whole", {"@bob:matrix.test": ["!r"]}),
        ("", "longest"): (7, "whole", json.loads(most)),
        ("", "long"): (7, "long", None),
        ("", "list"): (7, "unreadable", None),
        ("", "gone"): (7, "missing", None),
        ("!r", "org.mark"): (7, "whole", {"n": 1}),
        ("!r", "gone"): (7, "missing", None),
        ("!r", "m.tag"): (7, "whole", tags),
        ("!broken", "m.tag"): (7, "unreadable", None),
        ("!long", "m.tag"): (7, "long", None),
        ("!none", "m.tag"): (7, "whole", {"tags": {}}),
    }
    take(home, log, unit(8, [ANN, "!r", "{}"], stream="tag_account_data"))
    assert held(log)["!r", "m.tag"] == (8, "whole", tags)


def test_account_data_stands_in_the_transaction_of_its_row(home: Home, log: Log) -> None:
    """Also of units that come together; what is there of a key is what came last."""
    account(home)
    run = Run.of([(n, [encode_row(json.dumps([ANN, None, "m.direct"]))]) for n in range(1, 9)])
    take(home, log, Units("account_data", "master", 1, run, 0, False, Cursor(8, 8)))
    assert held(log)["", "m.direct"][0] == 8
    spaces = [log.schema.space(f"synapse_account_{one}").id for one in ("data", "json")]
    shapes = [[row.space_id for row in one.rows[:2]] for one in log.rows()]
    assert shapes.count(spaces) == 8


def test_only_the_streams_that_are_chosen_get_contents(home: Home, log: Log) -> None:
    """Of the others the rows alone are kept, and the database is not asked for them."""
    account(home)
    home.event("$a")
    home.database.execute("DROP TABLE events")
    url = parse_url("synapse://h:1?enrich=sqlite:///x&enrich_streams=account_data")
    chosen = enriched_streams(url, is_asked=True)
    contents = Contents(Database("the database", file=str(home.file)))
    intake = Intake(log, "matrix.test", enriched=chosen)
    changes = [unit(1, says("$a")), unit(2, [ANN, None, "m.direct"], stream="account_data")]
    for portion, named in portions(changes, chosen):
        intake.store(portion, asyncio.run(contents.of(named)))
    assert list(held(log)) == [("", "m.direct")]
    assert log.schema.get("synapse_event_json") is None
    assert log.count("synapse_events") == 1


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("enrich=sqlite:///x&enrich_streams=events,typing", "'typing' is no stream with contents"),
        ("enrich_streams=events", "there is no database"),
    ],
)
def test_streams_that_say_nothing_are_refused(value: str, told: str) -> None:
    """Before anything is followed."""
    url = parse_url(f"synapse://h:1?{value}")
    with pytest.raises(ConfigError, match=told) as refused:
        enriched_streams(url, is_asked="enrich=" in value)
    assert refused.value.hint


def test_account_data_goes_by_age_and_with_its_user(home: Home, log: Log) -> None:
    """By age when the row that brought it last goes; who is named in it takes it along."""
    account(home)
    both = [[ANN, None, "m.direct"], [ANN, "!r", "org.mark"]]
    take(home, log, unit(1, *both, stream="account_data"))
    now = 1000.0
    expiry = Expiry(log, Intake(log, "matrix.test"), (("account_data", 80),), lambda: now)
    expiry.run()
    take(home, log, unit(2, both[0], [ANN, "!r", "m.tag"], stream="account_data"))
    now += 81
    assert expiry.run() == 2
    assert set(held(log)) == {("", "m.direct"), ("!r", "m.tag")}
    assert forget_user(log, "@bob:matrix.test")["synapse_account_json"] == 1
    assert forget_user(log, ANN) == {
        "synapse_account_data": 2,
        "synapse_account_json": 1,
    }
    assert not held(log)


def test_a_table_that_may_not_be_read_is_named(home: Home) -> None:
    """With those that are needed for that kind."""
    home.database.execute("DROP TABLE room_tags")
    _, named = next(portions([unit(1, [ANN, "!r", "m.tag"], stream="account_data")]))
    contents = Contents(Database("the database", file=str(home.file)))
    with pytest.raises(SourceStopped, match="no such table: room_tags") as stopped:
        asyncio.run(contents.of(named))
    assert "SELECT on room_tags;" in str(stopped.value.hint)
