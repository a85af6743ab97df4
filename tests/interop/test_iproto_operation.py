"""How an operator runs it: TLS, metrics, a config file, a rejoin, an anonymous copy."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any
from urllib.parse import quote

import pytest
from support.nursery import LOGWEIR
from support.ports import free_port
from support.waiting import until

import logweir
from interop.rawclient import RawClient
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from interop.test_iproto_cli import told
from logweir.errors import ConfigError, RequestError, Unreachable
from logweir.replication.iproto.client.status import fetch_status
from logweir.replication.iproto.follow.join import join
from logweir.replication.iproto.serve.functions import load_functions
from logweir.replication.listener import server_tls
from logweir.replication.protocols import parse_url
from logweir.replication.runner import SourceState
from logweir.replication.urls import Url
from logweir.tools.cli.configfile import declared, read_config
from logweir.tools.cli.main import load_command
from logweir.wal.filesystem import unopened

CERTIFICATE = Path(__file__).parents[1] / "data" / "tls" / "certificate.pem"
KEY = CERTIFICATE.with_name("key.pem")


@contextmanager
def running(*words: object, **environment: str) -> Iterator[dict[str, Any]]:
    """`logweir serve --json` with nothing but `words`, and what it says when it is ready."""
    streams = {"stdout": PIPE, "stderr": DEVNULL}
    with LOGWEIR.begin("serve", *words, "--json", environment=environment, **streams) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def port_of(ready: dict[str, Any]) -> int:
    return int(ready["listen"][0].rpartition(":")[2])


# --- TLS ------------------------------------------------------------------------------------------


def encrypted(url: Url) -> Url:
    return parse_url(f"tarantool://127.0.0.1:{url.port}?tls=1&ca={quote(str(CERTIFICATE))}")


def test_followers_and_clients_speak_tls(tmp_path: Path) -> None:
    """A copy joins and follows over TLS; who does not trust the certificate, or speaks plain TCP,
    gets nothing."""
    with Serving(tmp_path / "one", guest="all", tls=server_tls(CERTIFICATE, KEY)) as one:
        one.log.create_space("t")
        one.log.insert("t", (1, "x"))
        url = encrypted(one.url)
        joined = asyncio.run(join(url, tmp_path / "two"))
        assert joined.replica_id == 2
        with Serving(tmp_path / "two", follow=[url]) as two:
            one.log.insert("t", (2, "y"))
            two.wait(lambda: two.log.get("t", 2) == (2, "y"))
        assert asyncio.run(fetch_status(url))["spaces"]["t"] == 2
        with pytest.raises(Unreachable, match="certificate"):
            asyncio.run(fetch_status(parse_url(f"tarantool://127.0.0.1:{one.port}?tls=1")))
        with socket.create_connection(("127.0.0.1", one.port), timeout=5) as plain:
            plain.sendall(b"\xce\x00\x00\x00\x03\x81\x00\x44")
            assert b"Tarantool" not in plain.recv(1000)


def test_bad_certificate_is_a_config_error(tmp_path: Path) -> None:
    """A file that is missing, and one that holds no certificate."""
    (tmp_path / "empty.pem").write_text("")
    for name in ("none.pem", "empty.pem"):
        with pytest.raises(ConfigError, match="cannot be used"):
            server_tls(tmp_path / name)


def test_handshake_that_never_comes_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever connects and says nothing is gone after the handshake's time; others are served."""
    monkeypatch.setattr("logweir.replication.arrival.TLS_HANDSHAKE_SECONDS", 0.3)

    with (
        Serving(tmp_path, guest="all", tls=server_tls(CERTIFICATE, KEY)) as serving,
        socket.create_connection(("127.0.0.1", serving.port), timeout=10) as silent,
    ):
        assert asyncio.run(fetch_status(encrypted(serving.url)))["read_only"] is False
        assert silent.recv(1) == b""


def test_tls_is_named_in_the_version_the_library_offers() -> None:
    """Nothing older than TLS 1.2 is spoken."""
    assert server_tls(CERTIFICATE, KEY).minimum_version >= ssl.TLSVersion.TLSv1_2


# --- metrics and config file ----------------------------------------------------------------------


def test_metrics_and_options_of_a_file(tmp_path: Path) -> None:
    """`serve --config` takes every option from TOML; `--metrics` is fetched by HTTP."""

    port = free_port()
    file = tmp_path / "serve.toml"
    file.write_text(
        f'directory = "{tmp_path / "store"}"\n'
        'listen = ["tarantool://127.0.0.1:0"]\n'
        'allow-guest = "write"\n'
        f'metrics = "127.0.0.1:{port}"\n'
        "retain_max_bytes = 1_000_000\n"
        "replication_timeout = 2\n"
        'durability = "write"\n'
    )
    with running("--config", file) as ready, RawClient(port_of(ready)) as client:
        assert ready["path"] == str(tmp_path / "store")
        assert client.ask(64).header.type == 0
        assert int(client.ask(2, {0x10: 999, 0x21: [1]}).error().code) == 36
        assert not client.ask(3, {0x10: 272, 0x21: ["mine", 1]}).is_error
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            text = page.read().decode()
        for name in (
            'logweir_link_open_connections{scheme="tarantool"} 1.0',
            'logweir_request_total{outcome="failed",scheme="tarantool"} 1.0',
            "logweir_commit_seconds_count 1.0",
        ):
            assert name in text
    forbidding = running("--config", file, "--allow-guest", "none")
    with forbidding as ready, RawClient(port_of(ready)) as client:
        assert int(client.ask(1, {0x10: 280, 0x12: 1, 0x20: []}).error().code) == 42
    reading = running("--config", file, LOGWEIR_READ_ONLY="1", LOGWEIR_ALLOW_GUEST="all")
    with reading as ready, RawClient(port_of(ready)) as client:
        answer = client.ask(2, {0x10: 280, 0x21: [600, 1, "x", "memtx", 0, {}, []]})
        assert int(answer.error().code) == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listn = ['tarantool://:0']", "listn .* no such option"),
        ("listen = 'tarantool://:0'", "not a list of strings"),
        ("read_only = 'yes'", "not true or false"),
        ("allow_guest = 'some'", "not one of none, read"),
        ("retain_max_bytes = -1", "not at least 0"),
        ("write-ahead = 1_000_000_000_000", "not at most"),
        ("follow = 'tank://ann:secret@h'", r"'tank://…@h' is not a list"),
        ("json = true", "json .* no such option"),
        ("retain_max_bytes = 1.5", "not a whole number"),
        ("replication_timeout = 'x'", "not a number"),
        ("tls-key = 1", "not a string"),
        ("read-only = true\nread_only = true", "twice"),
        ("config = 'x'", "no such option"),
        ("=", r"not TOML: .*line 1, column 1"),
    ],
)
def test_wrong_key_or_value_names_file_and_key(tmp_path: Path, text: str, words: str) -> None:
    """Typed errors, and exit code 2 of the command."""
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as raised:
        read_config(file, load_command("serve"))
    assert raised.value.origin == str(file)


def test_wrong_file_is_a_usage_error(tmp_path: Path) -> None:
    """Exit code 2, without a traceback."""
    (tmp_path / "bad.toml").write_text("what = 1")
    for name in ("bad.toml", "missing.toml"):
        code, _, err = told("serve", tmp_path / "store", "--config", tmp_path / name)
        assert code == 2
        assert name in err
        assert "Traceback" not in err


def test_every_option_of_serve_can_stand_in_the_file(tmp_path: Path) -> None:
    """The file and the command know the same options."""
    file = tmp_path / "all.toml"
    file.write_text(
        'directory="d"\nlisten=[]\nfollow=[]\nallow_guest="all"\nfunctions="m"\nread_only=true\n'
        'durability="none"\ntls_certificate="c"\ntls_key="k"\nmetrics="h:1"\nweb="h:2"\ntls_client_ca="a"\n'
        "replication_timeout=0.5\nretain_max_bytes=5\nwrite_ahead=0\nmemory=134217728\nconnections=9\n"
        'tuple_bytes=2097152\nlog-level="debug"\nlog-format="json"\nlog-file="l"\nready-lag=1\n'
        'archive="a"\narchive-every=2\narchive-keep-for=9\narchive-keep-snapshots=3\nwait=5\nbusy-poll=50\n'
    )
    options = read_config(file, load_command("serve"))
    given = {one.name for one in load_command("serve").params}
    assert set(options) == given - {"config", "as_json", "quiet", "debug"}
    assert set(declared(load_command("follow"))) == {
        *("url", "directory", "homeserver", "wait"),
        *("tuple_bytes", "log_level", "log_format", "log_file"),
    }


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("", "../odd", "TypeError"),
        ("1 / 0", "odd", "ZeroDivisionError"),
        ("def", "odd", "SyntaxError"),
        ("import nowhere", "odd", "No module named 'nowhere'"),
        ("_hidden = print", "odd", "holds no function"),
    ],
)
def test_functions_that_cannot_be_had_are_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, words: str
) -> None:
    """Whatever the module raises while it is imported."""
    (tmp_path / "odd.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd", raising=False)
    with pytest.raises(ConfigError, match=words):
        load_functions(name)


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.tarantool
def test_rejoin_copies_anew_under_the_same_uuid(tmp_path: Path) -> None:
    """A position that the master no longer holds: exit 1, then `--rejoin` puts the old aside."""
    with RealTarantool(tmp_path / "master", cfg={"checkpoint_count": 1}) as master:
        master.eval("box.schema.user.grant('guest', 'replication')")
        master.eval("box.schema.space.create('t'):create_index('p')")
        url = f"tarantool://127.0.0.1:{master.port}"
        copy = tmp_path / "copy"
        assert told("follow", url, copy, "--once")[0] == 0
        with logweir.open(copy) as log:
            instance, number = log.instance, log.replica_id
            log.insert("t", (7, "only here"))
        master.eval("for i = 1, 5 do box.space.t:insert{i} end box.snapshot()")
        master.eval("box.space._cluster:delete(2) box.space.t:insert{6} box.snapshot()")
        until(lambda: len(list((tmp_path / "master").glob("*.xlog"))) <= 2)
        master.eval("box.space.t:insert{60} box.snapshot()")
        code, _, err = told("follow", url, copy, "--once")
        assert code == 1
        assert "--rejoin" in err
        code, _, err = told("follow", "--rejoin", url, copy, "--once")
        assert code == 1
        assert "without lsn 1 to 1 of replica 2" in err
        assert "--drop-rows" in err
        with logweir.open(copy) as log:  # nothing is renamed, and a copy in use is left alone
            assert log.select("t") == [(7, "only here")]
            code, _, err = told("follow", "--rejoin", "--drop-rows", url, copy, "--once")
            assert code != 0
            assert "in use" in err
        assert not list(tmp_path.glob("copy.*"))
        code, out, err = told("follow", "--rejoin", "--drop-rows", url, copy, "--once", "--json")
        assert (code, json.loads(out)["state"]) == (0, "following"), err
        assert "without lsn 1 to 1 of replica 2" in err
        with logweir.open(copy) as log:
            assert (log.instance, log.replica_id) == (instance, number)
            assert [row[0] for row in log.select("t")] == [1, 2, 3, 4, 5, 6, 60]
        with logweir.open(tmp_path / "copy.before-rejoin-1") as log:
            assert log.select("t") == [(7, "only here")]
        # Now the master has all that the copy has, and is asked before anything is renamed.
        code, _, err = told("follow", "--rejoin", url, copy, "--once")
        assert code == 0, err
        assert (tmp_path / "copy.before-rejoin-2").exists()
    assert told("follow", "--rejoin", url, copy, "--once")[0] == 4
    assert copy.exists()


def test_no_row_of_another_replica_set_is_one_that_a_rejoin_finds(tmp_path: Path) -> None:
    """The master has rows of the same numbers, and more of them: they are others."""
    copy = tmp_path / "copy"
    with logweir.open(copy) as log:
        log.create_space("ours")
        last = log.vclock.lsn(1)
    with Serving(tmp_path / "master", guest="replicate") as serving:
        serving.log.create_space("t")
        serving.log.insert("t", (1,))
        url = f"tarantool://127.0.0.1:{serving.port}"
        code, _, err = told("follow", "--rejoin", url, copy, "--once")
        assert code == 1
        assert f"without lsn 1 to {last} of replica 1" in err
        assert "belongs to replica set" in err
        (tmp_path / "new").mkdir()
        for folder, *options in ((copy, "--rejoin", "--drop-rows"), (tmp_path / "new",)):
            with unopened(folder):  # as somebody else who copies into it
                code, _, err = told("follow", *options, url, folder, "--once")
            assert (code, "in use" in err) == (4, True)
        assert not list(tmp_path.glob("copy.*"))
        code, _, err = told("follow", "--rejoin", "--drop-rows", url, copy, "--once")
        assert code == 0, err
        assert (tmp_path / "copy.before-rejoin-1").exists()
        code, _, err = told("follow", "--rejoin", url, copy, "--once")
        assert code == 0, err
        assert "belongs to" not in err


@pytest.mark.tarantool
def test_anonymous_copy_follows_and_restarts(tmp_path: Path) -> None:
    """It goes on behind the snapshot, has no place in `_cluster`, and only local spaces can be
    changed in it; others follow it anonymously in turn."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval("box.schema.user.grant('guest', 'replication')")
        master.eval("box.schema.space.create('t'):create_index('p')")
        master.eval("box.schema.space.create('mine', {is_local = true}):create_index('p')")
        master.eval("box.space.t:insert{1}")
        url = parse_url(f"tarantool://127.0.0.1:{master.port}?anonymous=1")
        copy = tmp_path / "copy"
        code, _, err = told("follow", url, copy, "--once")
        assert code == 0, err
        for number in (2, 3):
            with Serving(copy, follow=[url], guest="all") as serving:
                runner = serving.server.runners[0]
                master.eval("box.space.t:insert{...}", [number])
                serving.wait(lambda number=number: serving.log.get("t", number) == (number,))
                until(lambda runner=runner: runner.status.state == SourceState.FOLLOWING)
                assert serving.log.replica_id == 0
                with pytest.raises(RequestError, match="read-only"):
                    serving.log.insert("t", (100,))
                with pytest.raises(RequestError, match="read-only"):
                    serving.log.append("t", [(100,)])
                serving.log.insert("mine", (number,))
                with RawClient(serving.port) as client:
                    refused = client.ask(2, {0x10: 512, 0x21: [100]})
                    assert int(refused.error().code) == 7
                    assert client.ask(68).body[0x29][1] is True
                second = parse_url(f"tarantool://127.0.0.1:{serving.port}?anonymous=1")
                assert told("follow", second, tmp_path / f"next{number}", "--once")[0] == 0
        assert master.eval("return box.space._cluster:count()") == [1]
        with logweir.open(copy) as log:
            assert [row[0] for row in log.select("t")] == [1, 2, 3]
            assert [row[0] for row in log.select("mine")] == [2, 3]
            assert log.vclock.without_local() == logweir.VClock({1: log.vclock[1]})
        with logweir.open(tmp_path / "next3") as log:
            assert [row[0] for row in log.select("t")] == [1, 2, 3]


def test_a_source_that_lost_rows_is_to_follow_who_has_them(tmp_path: Path) -> None:
    """Its replica tells that and tries again; its upstream, which follows nobody, has none."""
    here = parse_url(f"tarantool://127.0.0.1:{free_port()}")
    with Serving(tmp_path / "master", guest="all") as master:
        master.log.create_space("t")
        asyncio.run(join(master.url, tmp_path / "source"))
        source = {"listen": [here], "guest": "all"}
        with Serving(tmp_path / "source", follow=[master.url], **source):
            asyncio.run(join(here, tmp_path / "replica"))
        shutil.copytree(tmp_path / "source", tmp_path / "backup")
        with Serving(tmp_path / "replica", follow=[here], guest="replicate") as replica:
            (runner,) = replica.server.runners
            with Serving(tmp_path / "source", follow=[master.url], **source) as serving:
                serving.log.append("t", [(1,), (2,)])
                until(lambda: replica.log.vclock.covers(serving.log.vclock))
            with Serving(tmp_path / "backup", follow=[master.url], **source):
                until(lambda: "lost rows of its own" in (runner.status.last_error or ""))
                assert "follow a member that has them" in (runner.status.last_error or "")
                assert runner.status.state in (SourceState.WAITING, SourceState.CONNECTING)
            both = [master.url, replica.url]
            with Serving(tmp_path / "backup", follow=both, **source) as serving:
                until(lambda: serving.log.select("t") == [(1,), (2,)])
                until(lambda: runner.status.state == SourceState.FOLLOWING)


def test_an_anonymous_replica_is_told_of_rows_that_its_source_has_lost(tmp_path: Path) -> None:
    """As one with a place: what the source writes next would have the numbers of rows it has."""
    with Serving(tmp_path / "source", guest="all") as serving:
        serving.log.create_space("t")
    shutil.copytree(tmp_path / "source", tmp_path / "backup")
    here = parse_url(f"tarantool://127.0.0.1:{free_port()}")
    anonymous = parse_url(f"{here}?anonymous=1")
    with Serving(tmp_path / "source", listen=[here], guest="all") as serving:
        serving.log.append("t", [(1,), (2,)])
        asyncio.run(join(anonymous, tmp_path / "replica"))
    with (
        Serving(tmp_path / "backup", listen=[here], guest="all") as serving,
        Serving(tmp_path / "replica", follow=[anonymous]) as replica,
    ):
        (runner,) = replica.server.runners
        until(lambda: runner.status.state == SourceState.STOPPED)
        assert "lost rows of its own" in runner.status.last_error
        assert replica.log.select("t") == [(1,), (2,)]
