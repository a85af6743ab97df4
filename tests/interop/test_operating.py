"""What operators do to a running server: users, snapshots, kept logs, topics, verify."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tarantool
from support.loops import run

import logweir
from interop.serving import Serving
from interop.test_iproto_cli import told
from logweir.replication.protocols import parse_listen_url
from logweir.replication.service import access, users
from logweir.replication.tank.client import Client
from logweir.replication.tank.client.producer import Producer
from logweir.store.schema.access import Privilege


@contextmanager
def operated(folder: Path, **options: object) -> Iterator[tuple[Serving, str]]:
    """A server, and its address for `op`, who may do everything."""
    with Serving(folder, **options) as serving:
        users.add_user(serving.log, "op", password="all")
        users.grant(serving.log, "op", Privilege.EXECUTE, users.Target("role", "super"))
        port = next(url.port for url in serving.urls if url.scheme == "tarantool")
        yield serving, f"tarantool://op:all@127.0.0.1:{port}"


def well(*words: object, stdin: str = "") -> str:
    """What a command prints that ends with 0."""
    code, out, err = told(*words, stdin=stdin)
    assert code == 0, err
    return out


def test_users_are_managed_while_they_are_served(tmp_path: Path) -> None:
    """Whom an operator adds can log in at once, by a client that is not ours, and may what was
    granted, until it is taken back; another password counts at once."""
    with operated(tmp_path) as (serving, url):
        serving.log.create_space("t")
        serving.log.insert("t", (1, "x"))
        port = int(url.rpartition(":")[2])
        well("user", "add", url, "bob", "--password-stdin", stdin="first\n")
        bob = tarantool.Connection("127.0.0.1", port, user="bob", password="first")
        with pytest.raises(tarantool.DatabaseError):
            bob.select("t", 1)
        well("user", "grant", url, "bob", "read", "--on", "space:t")
        bob.flush_schema()
        assert bob.select("t", 1).data == [[1, "x"]]
        listed = json.loads(well("user", "list", url, "--json"))
        (found,) = [one for one in listed if one["name"] == "bob"]
        assert found["password"] is True
        granted = {"on": "space", "object_name": "t", "rights": ["read"]}
        assert [one for one in found["grants"] if one.items() >= granted.items()]
        assert "read on space t" in well("user", "list", url)
        well("user", "revoke", url, "bob", "read", "--on", "space:t")
        with pytest.raises(tarantool.DatabaseError):
            bob.select("t", 1)
        bob.close()
        well("user", "passwd", url, "bob", "--password-stdin", stdin="second\n")
        with pytest.raises(tarantool.DatabaseError):
            tarantool.Connection("127.0.0.1", port, user="bob", password="first")
        tarantool.Connection("127.0.0.1", port, user="bob", password="second").close()
        well("user", "add", url, "readers", "--role")
        well("user", "grant", url, "bob", "readers")
        well("user", "drop", url, "bob")
        with pytest.raises(tarantool.DatabaseError):
            tarantool.Connection("127.0.0.1", port, user="bob", password="second")


def test_orders_leave_word_of_who_gave_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of one that was refused; never of a password."""
    caplog.set_level("INFO")
    with operated(tmp_path) as (_, url):
        for code in (0, 1):
            assert told("user", "add", url, "bob", "--password-stdin", stdin="s3cret\n")[0] == code
    lines = [one for one in caplog.messages if "operator.order" in one]
    assert len(lines) == 2
    for line in lines:
        for wanted in ("user='op'", "order='logweir.add_user'", "about='bob'", "peer='127.0.0.1:"):
            assert wanted in line
    assert ["refused=" in line for line in lines] == [False, True]
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("guest", ["none", "read", "write"])
def test_who_may_not_do_everything_gives_no_orders(tmp_path: Path, guest: str) -> None:
    """Neither guests nor users that may execute everything reach the calls of operators."""
    with operated(tmp_path, guest=guest) as (serving, url):
        users.add_user(serving.log, "runner", password="run")
        users.grant(serving.log, "runner", Privilege.EXECUTE, users.Target("universe"))
        at = url.rpartition("@")[2]
        for mine in (f"tarantool://runner:run@{at}", f"tarantool://{at}"):
            for words in (("snapshot",), ("user", "list"), ("retain", "list"), ("verify",)):
                code, _, err = told(*words, mine)
                assert code == 1
                assert "access to function" in err
                assert "role super" in err
        assert [one.name for one in access.read_directory(serving.log).users()][-1] == "runner"


def test_a_read_only_server_takes_no_new_users(tmp_path: Path) -> None:
    """Nor topics; a snapshot is no change."""
    with logweir.open(tmp_path) as log:
        users.change_password(log, "admin", "root")
    with Serving(tmp_path, read_only=True) as serving:
        url = f"tarantool://admin:root@127.0.0.1:{serving.port}"
        for words in (("user", "add", url, "bob", "--role"), ("topic", "create", url, "log")):
            code, _, err = told(*words)
            assert code == 1
            assert "the server is read-only" in err
        assert json.loads(well("snapshot", url, "--json"))["path"].endswith(".snap")


def test_a_snapshot_is_made_while_it_is_served(tmp_path: Path) -> None:
    """It holds all that was there, and the second time it is there already."""
    with operated(tmp_path) as (serving, url):
        serving.log.create_space("t")
        serving.log.append("t", [(number, "x") for number in range(1000)])
        made = json.loads(well("snapshot", url, "--json"))
        assert made["already_there"] is False
        assert json.loads(well("snapshot", url, "--json")) == {**made, "already_there": True}
        (*_, row) = json.loads(well("info", made["path"], "--json"))["spaces"]
        assert (row["name"], row["rows"]) == ("t", 1000)


def test_kept_logs_are_listed_and_given_up(tmp_path: Path) -> None:
    """A follower that is not there any more keeps no logs once it is released."""
    with operated(tmp_path) as (serving, url):
        serving.log.create_space("t")
        serving.log.retain("away", serving.log.vclock)
        serving.log.append("t", [(number, "x" * 100) for number in range(100)])
        serving.log.snapshot()
        serving.log.insert("t", (1000,))
        (kept,) = [json.loads(line) for line in well("retain", "list", url, "--json").splitlines()]
        assert kept["name"] == "away"
        assert kept["unread_bytes"] > 10_000 / 2
        code, _, err = told("retain", "release", url, "gone")
        assert code == 2
        assert "they are for away" in err
        well("retain", "release", url, "away")
        assert well("retain", "list", url, "--json") == ""
        before = sorted(tmp_path.glob("*.xlog"))
        well("snapshot", url)
        assert sorted(tmp_path.glob("*.xlog"))[0] > before[0]


def test_a_server_reads_its_own_folder(tmp_path: Path) -> None:
    """Whole while it is written to; damage in a log that it does not use any more is told as the
    folder's own report tells it."""
    with operated(tmp_path) as (serving, url):
        serving.log.create_space("t")
        serving.log.retain("away", serving.log.vclock)
        serving.log.append("t", [(number, "x" * 100) for number in range(100)])
        assert "everything is whole" in well("verify", url)
        serving.log.snapshot()
        serving.log.insert("t", (1000,))
        log = sorted(tmp_path.glob("*.xlog"))[0]
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1
        log.write_bytes(data)
        code, out, err = told("verify", url, "--json")
        assert code == 3, err
        report = json.loads(out)
        assert {Path(one["file"]).name for one in report["damage"]} == {log.name}
        code, out, _ = told("verify", url)
        assert code == 3
        assert f"in {log.name} at byte" in out
        code, out, _ = told("verify", tmp_path, "--json")
        assert (code, json.loads(out)["damage"]) == (3, report["damage"])
        assert told("verify", url, "--state")[0] == 2


def test_topics_are_managed_while_they_are_served(tmp_path: Path) -> None:
    """What is made, set and deleted by name counts for the Tank listener of the same server; a
    topic that is called as the view of all changes is one all the same, and hides the view."""
    listen = [parse_listen_url("tarantool://:0"), parse_listen_url("tank://:0")]
    with operated(tmp_path, listen=listen) as (serving, url):
        broker = str(next(one for one in serving.urls if one.scheme == "tank"))
        well("topic", "create", url, "log", "--partitions", "2", "--set", "log.roll.secs=60")
        assert "log.roll.secs=60" in well("topic", "config", url, "log")

        async def publish() -> None:
            async with Client(serving.urls[1]) as client, Producer(client) as producer:
                for value in (b"a", b"b"):
                    await producer.send("log", value, partition=1)

        run(publish)
        (topic,) = json.loads(well("topic", "list", url, "--json"))
        (same,) = json.loads(well("topic", "list", broker, "--json"))
        assert topic["partitions"] == same["partitions"]
        assert [one["last"] for one in topic["partitions"]] == ["0", "2"]
        well("topic", "config", url, "log", "--set", "retention.messages.count=1")
        text = well("topic", "config", url, "log")
        assert text.split() == ["log.roll.secs=60", "retention.messages.count=1"]
        well("topic", "delete", url, "log")
        assert json.loads(well("topic", "list", broker, "--json")) == []


def test_a_password_does_not_cross_a_network_in_the_clear() -> None:
    """It is refused before anything is sent."""
    url = "tarantool://admin:x@192.0.2.1:3301"
    code, _, err = told("user", "add", url, "bob", "--password-stdin", stdin="secret\n")
    assert code == 2
    assert "?tls=1" in err


def test_other_listeners_take_no_orders() -> None:
    """The address that does is named."""
    code, _, err = told("snapshot", "tank://127.0.0.1:11011")
    assert code == 2
    assert "tarantool://" in err


def test_spaces_of_a_server_are_listed(tmp_path: Path) -> None:
    """Those that its user may know; what else there is to do with them needs the folder."""
    with operated(tmp_path) as (serving, url):
        serving.log.create_space("t", [("id", "unsigned"), ("name", "string")])
        all_of_them = json.loads(well("space", "list", url, "--json"))
        (listed,) = (one for one in all_of_them if one["name"] == "t")
        assert [one["name"] for one in listed["fields"]] == ["id", "name"]
        assert "tuples" not in listed
        assert "-  id:unsigned name:string" in well("space", "list", url)
        (one,) = json.loads(well("space", "list", url, all_of_them[0]["name"], "--json"))
        assert one == all_of_them[0]
        code, _, err = told("space", "create", url, "u")
        assert (code, "stop the server and give its folder" in err) == (2, True)
        guest = f"tarantool://{url.rpartition('@')[2]}"
        assert json.loads(well("space", "list", guest, "--json")) == []


def test_who_is_refused_by_a_server_is_told_where(tmp_path: Path) -> None:
    """And what to do: a wrong password, a user that is not there, no right, an unknown space."""
    with operated(tmp_path) as (serving, url):
        serving.log.create_space("t")
        where = url.rpartition("@")[2]
        known = f"`logweir space list tarantool://{where}` shows"
        for words, hint in (
            (("get", f"tarantool://op:no@{where}", "t", "1"), "LOGWEIR_PASSWORD"),
            (("space", "list", f"tarantool://op:no@{where}"), "LOGWEIR_PASSWORD"),
            (("user", "list", f"tarantool://op:no@{where}"), "LOGWEIR_PASSWORD"),
            (("get", f"tarantool://{where}", "t", "1"), known),
            (("user", "drop", url, "nobody"), f"`logweir user list tarantool://op@{where}` shows"),
        ):
            code, out, err = told(*words)
            assert (code, out) == (1, "")
            assert where in err
            assert hint in err.partition(" hint: ")[2]
        assert serving.log.schema.get("t") is not None


def test_who_lacks_a_right_is_told_which_one(tmp_path: Path) -> None:
    """By what copies a server, by the list of spaces that is empty, and of a topic that is not."""
    with operated(tmp_path / "s") as (serving, url):
        serving.log.create_space("t")
        users.add_user(serving.log, "bob", password="b")
        bob = f"tarantool://bob:b@{url.rpartition('@')[2]}"
        code, _, err = told("backup", bob, "--to", tmp_path / "copy")
        assert code == 4
        assert "needs the role `replication`" in err
        code, out, err = told("space", "list", bob)
        assert (code, len(out.splitlines())) == (0, 1)
        assert "there is no space that bob may know" in err
        code, _, err = told("topic", "delete", url, "nope")
        assert code == 1
        assert "`logweir topic list " in err
