"""The page of a server over HTTP: who sees it, what is refused, that it costs a bounded amount."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import socket
import ssl
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.certificates import SERVER, SERVER_KEY
from support.synapseclient import Client as SynapseClient
from support.waiting import until

import logweir
from interop.serving import Serving
from logweir.errors import ConfigError
from logweir.limits import LOGIN_TRIES
from logweir.replication.greenstack.client import Client as GreenstackClient
from logweir.replication.listener import server_tls
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.service import users
from logweir.replication.tank.client.sync import Client as TankClient
from logweir.replication.urls import Url
from logweir.replication.web.board import bounded
from logweir.replication.web.history import History, sample_of
from logweir.store.schema.access import Privilege
from logweir.tools.cli.pageaddress import page_address

WEB = Url("web", "127.0.0.1", 0)
EVERYTHING = users.Target()
WEB_ROOM = "logweir.replication.web."


def web_port(server: Serving) -> int:
    """Where the page is."""
    (port,) = [url.port for url in server.server.listener.urls if url.scheme == "web"]
    return port


def asked(
    server: Serving, page: str, method: str = "GET", **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    """Status, text and headers of one answer."""
    connection = http.client.HTTPConnection("127.0.0.1", web_port(server), timeout=20)
    try:
        connection.request(method, page, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def login(user: str, password: str) -> str:
    """The header of a login."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Watching:
    """One reader of the stream of events."""

    def __init__(self, server: Serving, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", web_port(server), timeout=20)
        self._connection.request("GET", "/events", headers=headers)
        self.answer = self._connection.getresponse()

    def events(self) -> Iterator[tuple[str, Any]]:
        """Name and content of each event."""
        name = ""
        while line := self.answer.readline().decode():
            key, _, value = line.rstrip("\n").partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                yield name, json.loads(value)

    def close(self) -> None:
        """Leave."""
        self.answer.close()
        self._connection.close()


def test_page_and_its_parts_are_served_to_a_guest_who_may_call(tmp_path: Path) -> None:
    """The files, with a policy that lets a browser load and run nothing else."""
    with Serving(tmp_path, guest="all", web=WEB) as server:
        for page, kind, word in (
            ("/", "text/html", "<title>logweir</title>"),
            ("/?x=1", "text/html", "page.js"),
            ("/page.css", "text/css", "prefers-color-scheme"),
            ("/page.js", "text/javascript", "EventSource"),
        ):
            status, text, headers = asked(server, page)
            assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
            assert word in text
            policy = headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'")
            assert "unsafe" not in policy
            assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-store"
        for page in ("/x", "/page.py", "/../page.js", "/%2e%2e/limits.py", "//", "/files/page.js"):
            assert asked(server, page)[0] == 404, page
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "X"):
            assert asked(server, "/", method)[0] == 405
        status, text, headers = asked(server, "/", "HEAD")
        assert (status, text) == (200, "")
        assert int(headers["content-length"]) > 1000
        assert asked(server, "/" + "x" * 20_000)[0] == 431
        assert asked(server, "/", **{"Content-Length": str(1 << 30)})[0] == 400
        assert server.server.page_url == f"http://127.0.0.1:{web_port(server)}/"


def test_events_tell_what_the_server_does(tmp_path: Path) -> None:
    """First the numbers of the last looks, then looks; a change shows in the next one, and a page
    that comes later has it in its numbers."""
    listen = [parse_listen_url("tarantool://:0"), parse_listen_url("tank://:0")]
    gone = parse_url("tank://127.0.0.1:1/topic")
    with Serving(tmp_path, guest="all", web=WEB, listen=listen, follow=[gone]) as server:
        server.log.create_space("<script>", [("id", "unsigned")])
        watching = Watching(server)
        assert watching.answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = watching.events()
        name, told = next(events)
        assert name == "history"
        assert set(told) == {"times", "series"}
        for number in range(10):
            server.log.insert("<script>", (number,))
        look = next(told for _, told in events if told["sample"].get("rate rows", 0.0) > 0.0)
        assert look["status"]["signature"] == server.log.vclock.signature
        look = next(t for _, t in events if [s["tuples"] for s in t["status"]["spaces"]] == [10])
        (space,) = look["status"]["spaces"]
        assert (space["name"], space["engine"], space["indexes"]) == (
            "<script>",
            "memtx",
            ["primary"],
        )
        (source,) = look["status"]["sources"]
        assert source["url"] == str(gone)
        errors = look["status"]["errors"]
        waiting = next(one for one in errors if one["event"] == "source.waiting")
        assert waiting["where"] == str(gone)
        assert waiting["why"] == source["last_error"]
        assert "address" in waiting["hint"]
        watching.close()
        late = Watching(server)
        name, told = next(late.events())
        assert max(told["series"]["rate rows"][1:]) > 0
        assert len(told["times"]) == len(told["series"]["position"])
        late.close()


def test_followers_without_acknowledgement_show_how_far_they_are(tmp_path: Path) -> None:
    """A Greenstack stream and a follower of Synapse's by what they were sent, a Tank consumer by
    what it asked for: at the log's end, and gone with their connections."""
    schemes = ("greenstack", "synapse", "tank")
    listen = [parse_listen_url(f"{scheme}://:0") for scheme in schemes]
    with Serving(tmp_path, guest="all", listen=listen) as server:
        port = {url.scheme: url.port for url in server.urls}

        def told() -> dict[str, dict[str, Any]]:
            return {one["scheme"]: one for one in server.server.status()["readers"]}

        assert told() == {}
        with TankClient(f"tank://127.0.0.1:{port['tank']}") as tank:
            tank.create_topic("events")
            with tank.producer() as producer:
                for number in range(5):
                    producer.send("events", b"%d" % number)
            with (
                tank.consumer("events", start=2) as consumer,
                SynapseClient(port["synapse"]) as lines,
                greenstack(f"greenstack://127.0.0.1:{port['greenstack']}"),
            ):
                lines.send("NAME feed", "REPLICATE events 0")
                lines.until("POSITION events")
                consumer.get_many(wait_ms=100)
                consumer.get_many(wait_ms=100)
                until(lambda: set(told()) == {*schemes})
                until(lambda: [one["lag"] for one in told().values()] == [0, 0, 0])
                server.log.create_space("later")
                end = str(server.log.vclock)
                until(lambda: told()["synapse"]["position"] == end)
                until(lambda: told()["greenstack"]["position"] == end)
                shown = {one["name"]: one["unit"] for one in told().values()}
                assert shown == {"hub": "rows", "feed": "rows", told()["tank"]["peer"]: "messages"}
                assert told()["tank"]["position"] == "events/0: 5"
        until(lambda: told() == {})


@contextmanager
def greenstack(url: str) -> Iterator[None]:
    """A stream that somebody follows meanwhile."""
    stop = threading.Event()

    async def follow() -> None:
        async with GreenstackClient(url) as client, client.follow(b"hub") as steps:
            asyncio.get_running_loop().create_task(leave(asyncio.current_task()))
            with suppress(asyncio.CancelledError):
                async for _ in steps:
                    pass

    async def leave(task: Any) -> None:
        await asyncio.to_thread(stop.wait)
        task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(follow()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_page_is_for_those_who_may_ask_for_the_status(tmp_path: Path) -> None:
    """Guests, users without the right, wrong passwords, names that are none: all refused, each as
    it is to be; what is taken back is gone with the next event."""
    with logweir.open(tmp_path) as log:
        users.add_user(log, "ann", password="secret")
        users.add_user(log, "bob", password="büchse")
        users.grant(log, "ann", Privilege.EXECUTE, EVERYTHING)
    with Serving(tmp_path, web=WEB) as server:
        for page in ("/", "/page.js", "/events", "/x"):
            status, _, headers = asked(server, page)
            assert status == 401, page
            assert headers["WWW-Authenticate"].startswith('Basic realm="logweir"')
        for wrong in ("Basic", "Basic !", "Bearer x", login("ann", "x"), login("nobody", "secret")):
            status, text, _ = asked(server, "/", Authorization=wrong)
            assert (status, "wrong" in text) == (401, True)
            server.server.shared.logins._known.clear()  # not slowed for what comes next
        assert server.server.shared.logins.failed_in_all == 5
        assert server.server.listener.refusals.total() == 0
        status, text, _ = asked(server, "/", Authorization=login("bob", "büchse"))
        assert status == 403
        assert "logweir user grant DIR bob execute" in text
        assert asked(server, "/", Authorization=login("ann", "secret"))[0] == 200
        watching = Watching(server, Authorization=login("ann", "secret"))
        events = watching.events()
        assert next(events)[0] == "history"
        users.revoke(server.log, "ann", Privilege.EXECUTE, EVERYTHING)
        assert len(list(islice(events, 9))) <= 3  # the stream ends
        assert asked(server, "/", Authorization=login("ann", "secret"))[0] == 403
        watching.close()


def test_connection_that_guesses_passwords_is_closed(tmp_path: Path) -> None:
    """Each answer is given; behind the last one the connection ends."""
    with logweir.open(tmp_path) as log:
        users.add_user(log, "ann", password="secret")
    with Serving(tmp_path, web=WEB) as server:
        wrong = f"GET / HTTP/1.1\r\nAuthorization: {login('ann', 'x')}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", web_port(server)), 60) as client:
            data = b""
            client.sendall(wrong * LOGIN_TRIES)
            while more := client.recv(1 << 16):
                data += more
        assert data.count(b"HTTP/1.1 401 ") == LOGIN_TRIES
        assert data.count(b"The user or the password is wrong.\n") == LOGIN_TRIES
        assert server.server.shared.logins.failed_in_all == LOGIN_TRIES


def test_look_that_fails_is_told_and_the_next_one_comes(tmp_path: Path) -> None:
    """On the page, and in the log where it is a fault."""
    with Serving(tmp_path, guest="all", web=WEB) as server:
        watching = Watching(server)
        events = watching.events()
        failures = iter((KeyError("odd"), OSError("disk")))
        checkpoints = server.log.inner.checkpoints
        real = checkpoints.status

        def failing() -> dict[str, Any]:
            for error in failures:
                raise error
            return real()

        checkpoints.status = failing  # type: ignore[method-assign]
        assert next(told for _, told in events if "failed" in told) == {"failed": "'odd'"}
        assert next(events)[1] == {"failed": "disk"}
        look = next(told for _, told in events if "status" in told)
        (error,) = look["status"]["errors"]
        assert (error["event"], error["why"]) == ("web.look_failed", "KeyError: 'odd'")
        watching.close()


def test_guest_of_loopback_is_not_a_page_of_the_web(tmp_path: Path) -> None:
    """A name that leads to this machine shows nothing to a browser here without a login."""
    with logweir.open(tmp_path) as log:
        users.add_user(log, "ann", password="secret")
        users.grant(log, "ann", Privilege.EXECUTE, EVERYTHING)
    with Serving(tmp_path, guest="write", web=WEB) as server:
        for host in ("localhost:1", "LOCALHOST", "127.0.0.1", "[::1]:80", "10.1.2.3:8080"):
            assert asked(server, "/", Host=host)[0] == 200, host
        for host in ("evil.example:80", "localhost.evil.example", "", "[x]:1"):
            assert asked(server, "/", Host=host)[0] == 403, host
        ann = login("ann", "secret")
        assert asked(server, "/", Host="logs.example", Authorization=ann)[0] == 200


def test_page_over_tls_and_for_networks_that_name_users(tmp_path: Path) -> None:
    """HTTPS where there is a certificate, unless the address says otherwise; who comes from a
    network is the user that stands there, and who comes from no network is cut off."""
    with logweir.open(tmp_path) as log:
        users.add_user(log, "ann")
        users.grant(log, "ann", Privilege.EXECUTE, EVERYTHING)
    tls = server_tls(SERVER, SERVER_KEY)
    for options, secure in (("", True), ("&tls=0", False)):
        url = page_address("web", f":0?from=ann@127.0.0.1{options}", "--web")
        with Serving(tmp_path, web=url, tls=tls) as server:
            page = server.server.page_url
            assert page.startswith("https:" if secure else "http:")
            trust = ssl.create_default_context(cafile=str(SERVER)) if secure else None
            with urllib.request.urlopen(page, context=trust) as answer:
                assert answer.status == 200
    url = page_address("web", ":0?from=10.0.0.0/8", "--web")
    with Serving(tmp_path, guest="all", web=url) as server:
        with pytest.raises(ConnectionError):
            asked(server, "/")
        assert server.server.listener.refusals["address"] == 1


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that has it; the server does not start without the page it was to serve."""
    monkeypatch.setitem(sys.modules, "starlette", None)
    for name in [one for one in sys.modules if one.startswith(("starlette.", WEB_ROOM))]:
        monkeypatch.delitem(sys.modules, name)
    with (
        pytest.raises(ConfigError, match="`starlette` is not installed") as caught,
        Serving(tmp_path, guest="all", web=WEB),
    ):
        pass
    assert caught.value.hint == "pip install 'logweir[web]'"


def test_watchers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than the limit is refused, and let in when another one leaves."""
    monkeypatch.setattr("logweir.replication.web.service.WEB_WATCHERS", 3)
    with Serving(tmp_path, guest="all", web=WEB) as server:
        all_of_them = [Watching(server) for _ in range(3)]
        for one in all_of_them:
            assert next(one.events())[0] == "history"
        status, text, headers = asked(server, "/events")
        assert (status, headers["Retry-After"]) == (503, "10")
        assert "3 pages" in text
        assert asked(server, "/")[0] == 200
        all_of_them.pop().close()
        until(lambda: asked_once(server) == 200)
        for one in all_of_them:
            one.close()


def asked_once(server: Serving) -> int:
    """The status of a stream that is left at once."""
    watching = Watching(server)
    watching.close()
    return watching.answer.status


def test_slow_page_skips_looks_and_is_kept_no_memory_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many looks at a store with much to tell, to a page that reads nothing: what waits for it is
    bounded, and when it reads again it is told what is now."""
    monkeypatch.setattr("logweir.replication.web.board.WEB_SECONDS", 0.002)
    monkeypatch.setattr("logweir.replication.web.board._SHARE", 0)
    monkeypatch.setattr("logweir.replication.web.service.WEB_OUTPUT_HIGH_BYTES", 32 * 1024)
    with logweir.open(tmp_path) as log:
        for number in range(100):
            log.create_space(f"{number:04}" + "t" * 60)
    with (
        Serving(tmp_path, guest="all", web=WEB) as server,
        socket.create_connection(("127.0.0.1", web_port(server))) as slow,
    ):
        slow.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: [one.scheme for one in server.server.listener.links] == ["web"])
        (link,) = server.server.listener.links
        until(lambda: not link.writable, 60.0)
        sent = link.sent_bytes
        fast = Watching(server)
        events = fast.events()
        looks = [next(events) for _ in range(200)]
        assert looks
        assert link.sent_bytes == sent
        assert link.unsent_bytes < 64 * 1024
        server.log.insert(512, (1,))
        fast.close()
        slow.settimeout(20)
        seen = b""
        while b'"signature":%d,' % server.log.vclock.signature not in seen:
            data = slow.recv(1 << 16)
            assert data
            seen = (seen + data)[-(1 << 18) :]


def test_page_at_a_unix_socket(tmp_path: Path) -> None:
    """The rights of the file say who may connect."""
    url = page_address("web", f"unix/:{tmp_path / 's'}?mode=600", "--web")
    with (
        Serving(tmp_path / "store", guest="all", web=url) as server,
        socket.socket(socket.AF_UNIX) as client,
    ):
        assert server.server.page_url == ""
        client.connect(str(tmp_path / "s"))
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        data = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert data.startswith(b"HTTP/1.1 200 OK\r\n")
        assert data.endswith(b"</html>\n")


def test_old_clients_read_events_until_the_end(tmp_path: Path) -> None:
    """HTTP/1.0 has no chunks: the stream is as long as the connection."""
    with Serving(tmp_path, guest="all", web=WEB) as server:
        with socket.create_connection(("127.0.0.1", web_port(server)), 20) as client:
            client.sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
            data = b""
            while data.count(b"event: look") < 3:
                data += client.recv(1 << 16)
        head, _, body = data.partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert b"Connection: close" in head
        assert body.startswith(b"retry: 1000\nevent: history\n")


def test_what_is_open_to_the_network_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A page for everybody warns of that, and of that it is not encrypted."""
    caplog.set_level("WARNING")
    with Serving(tmp_path, guest="write", web=Url("web", "0.0.0.0", 0)):
        pass
    (told,) = [one for one in caplog.records if one.__dict__.get("event") == "listener.exposed"]
    reason = told.__dict__["fields"]["reason"]
    assert reason == "anybody may see the page without a login, and what is said goes unencrypted"
    caplog.clear()
    with Serving(tmp_path, guest="read", web=Url("web", "0.0.0.0", 0)):
        pass
    (told,) = [one for one in caplog.records if one.__dict__.get("event") == "listener.exposed"]
    assert told.__dict__["fields"]["reason"] == "what is said goes unencrypted"


@pytest.mark.parametrize(
    "text",
    [
        "nowhere",
        "h:70000",
        "h:1?x=1",
        "h:1?tls=1",
        "h:1?from=a&from=b",
        "unix/:/f?from=a",
        "unix/:",
    ],
)
def test_addresses_that_are_none(text: str) -> None:
    """The option is named, and what to write."""
    with pytest.raises(ConfigError, match=r"web \(--web\)") as caught:
        page_address("web", text, "--web")
    assert "HOST:PORT" in caught.value.hint


def test_addresses() -> None:
    """Host, port, options; a host that is left out is this machine."""
    assert page_address("web", "", "--web") is None
    url = page_address("web", "[::1]:80?from=10.0.0.0/8&tls=0", "--web")
    assert url is not None
    assert (url.host, url.port, url.option("from"), url.option("tls")) == (
        "::1",
        80,
        "10.0.0.0/8",
        "0",
    )
    url = page_address("web", ":80", "--web")
    assert url is not None
    assert url.host == "127.0.0.1"


def test_what_is_told_is_bounded() -> None:
    """Long texts, long lists, deep ones, and numbers that JavaScript does not have."""
    told = bounded(
        {
            "text": "x" * 10_000,
            "list": list(range(1000)),
            1: {"inf": float("inf"), "big": 2**60, "small": -(2**53)},
            "pair": (1, None, True, 2.5),
        }
    )
    assert len(told["text"]) == 501
    assert told["list"] == list(range(100))
    assert told["1"] == {"inf": None, "big": str(2**60), "small": -(2**53)}
    assert told["pair"] == [1, None, True, 2.5]


def test_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many samples, so many names; a name that is gone from all of them is dropped."""
    monkeypatch.setattr("logweir.replication.web.history.WEB_SAMPLES", 3)
    monkeypatch.setattr("logweir.replication.web.history.WEB_ITEMS", 4)
    history = History()
    history.add(1.0, {"a": 1.0})
    history.add(2.0, {"a": 2.0, "b": 0.12345})
    assert history.told() == {
        "times": [1.0, 2.0],
        "series": {"a": [1.0, 2.0], "b": [None, 0.123]},
    }
    for number in range(3, 6):
        history.add(float(number), {"b": 0.0})
    assert history.told() == {"times": [3.0, 4.0, 5.0], "series": {"b": [0.0] * 3}}
    sources = [{"url": f"u{n}", "lag_seconds": float("nan") if n == 1 else n} for n in range(9)]
    found = sample_of({"vclock": {1: 5, 2: 6}, "sources": sources}, {})
    assert found == {"position": 11, "memory": 0, "lag u0": 0}
