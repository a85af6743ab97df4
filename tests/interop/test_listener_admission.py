"""Who comes in at a listener: by its network, by its certificate, and as whom."""

from __future__ import annotations

import asyncio
import gc
import http.client
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import bmemcached
import pytest
from support.certificates import SERVER, SERVER_KEY, Authority, options
from support.loops import run

import logweir
from interop.serving import Serving
from logweir.errors import ConfigError, LogweirError, RequestError
from logweir.limits import LOG_BURST_LINES, LOG_LINE_SECONDS
from logweir.replication.addresses import AddressList
from logweir.replication.greenstack.client import Client as GreenstackClient
from logweir.replication.iproto.client import open_client
from logweir.replication.iproto.wire.codec import IprotoKey, RequestType
from logweir.replication.listener import exposure, server_tls
from logweir.replication.logs import SparingLog
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.service import users
from logweir.replication.synapse.client import Follower, Rows
from logweir.replication.tank.client import Client as TankClient
from logweir.replication.topic.spaces import create_topic
from logweir.replication.urls import Url
from logweir.store.schema.access import Privilege

SCHEMES = ("tarantool", "tank", "tap", "memcached", "greenstack", "synapse")
READ = Privilege.READ
TOPIC_ID = 513


def serving(folder: Path, *listen: str, guest: str = "none", **more: Any) -> Serving:
    """Listeners in a new store, on free ports."""
    urls = [parse_listen_url(one) for one in listen]
    return Serving(folder, listen=urls, guest=guest, **more)


def first_bytes(port: int, host: str = "127.0.0.1") -> bytes:
    """What a listener says first; b"" where it closes, or waits for a request."""
    with socket.create_connection((host, port), 10) as peer:
        peer.settimeout(1)
        try:
            return peer.recv(100)
        except TimeoutError:
            return b"waits"
        except ConnectionResetError:
            return b""


# --- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("networks", "address", "user"),
    [
        ("10.0.0.0/8", "10.9.9.9", ""),
        ("10.0.0.0/8", "11.0.0.1", None),
        ("10.0.0.0/8,192.0.2.7", "192.0.2.7", ""),
        ("10.0.0.0/8,192.0.2.7", "192.0.2.8", None),
        ("10.0.0.0/8", "::ffff:10.1.2.3", ""),
        ("10.0.0.0/8", "::1", None),
        ("2001:db8::/32", "2001:db8::5", ""),
        ("fe80::/10", "fe80::1%eth0", ""),
        ("ann@10.0.0.0/8", "10.0.0.1", "ann"),
        ("10.0.0.0/8,ann@10.1.0.0/16,bob@10.1.1.1", "10.2.0.1", ""),
        ("10.0.0.0/8,ann@10.1.0.0/16,bob@10.1.1.1", "10.1.2.2", "ann"),
        ("10.0.0.0/8,ann@10.1.0.0/16,bob@10.1.1.1", "10.1.1.1", "bob"),
        ("0.0.0.0/0", "not an address", None),
    ],
)
def test_networks_of_an_address(networks: str, address: str, user: str | None) -> None:
    """Who is in it, and as whom; the longest prefix takes precedence."""
    found = AddressList.of(parse_listen_url(f"tank://:0?from={networks}"))
    assert found is not None
    assert found.find(address) == user


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ("", "names no network"),
        ("10.0.0.1/8", "has host bits set"),
        ("host.example", "does not appear to be"),
        ("@10.0.0.0/8", "no user before the @"),
    ],
)
def test_networks_that_are_none_are_refused(tmp_path: Path, networks: str, message: str) -> None:
    """The error says which, where, and how to write them."""
    with (
        pytest.raises(ConfigError) as caught,
        serving(tmp_path, f"tank://127.0.0.1:0?from={networks}"),
    ):
        pass
    assert message in str(caught.value)
    assert caught.value.origin == "--listen"
    assert "write networks such as" in caught.value.hint


@pytest.mark.parametrize("scheme", SCHEMES)
def test_who_is_in_no_network_is_cut_off(
    tmp_path: Path, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, counted, and told in a few lines however often it comes."""
    caplog.set_level("INFO")
    listen = [f"{scheme}://:0?from=10.0.0.0/8", f"{scheme}://:0?from=127.0.0.0/8"]
    with serving(tmp_path, *listen) as server:
        assert [first_bytes(server.urls[0].port) for _ in range(30)] == [b""] * 30
        assert first_bytes(server.urls[1].port) != b""
        status = server.server.status()
        assert status["refused_connections"] == {"address": 30}
        metrics = server.server.metrics.render().decode()
        counted = f'logweir_link_refused_total{{reason="address",scheme="{scheme}"}} 30.0'
        assert counted in metrics
        told = [one for one in caplog.messages if "listener.refused" in one]
        assert len(told) == LOG_BURST_LINES
        assert "reason='address'" in told[0]
        closed = [one for one in caplog.messages if "link.closed" in one]
        assert len(closed) <= 1  # of the one that was taken


def test_who_is_in_no_network_costs_no_tls(tmp_path: Path) -> None:
    """It is cut off before it has said a word."""
    tls = server_tls(SERVER, SERVER_KEY)
    with serving(tmp_path, "tank://:0?from=10.0.0.0/8", "tank://:0", tls=tls) as server:
        assert first_bytes(server.urls[0].port) == b""
        assert server.server.status()["refused_connections"] == {"address": 1}
        assert first_bytes(server.urls[1].port) == b"waits"


def test_networks_of_the_metrics(tmp_path: Path) -> None:
    """The port is one as any other: its list holds, and only `/metrics` is there."""
    for networks, taken in (("127.0.0.0/8", True), ("10.0.0.0/8", False)):
        metrics = Url("metrics", "127.0.0.1", 0, options=(("from", networks),))
        with serving(tmp_path / networks[:2], "tank://:0", metrics=metrics) as server:
            (where,) = [url for url in server.server.listener.urls if url.scheme == "metrics"]
            assert where not in server.urls
            address = f"http://127.0.0.1:{where.port}"
            if taken:
                with urllib.request.urlopen(f"{address}/metrics") as page:
                    assert b"logweir_link_accepted_total" in page.read()
                with pytest.raises(urllib.error.HTTPError) as caught:
                    urllib.request.urlopen(address)
                caught.value.close()
                assert caught.value.code == 404
            else:
                with pytest.raises((urllib.error.URLError, ConnectionError)):
                    urllib.request.urlopen(f"{address}/metrics")


def test_metrics_over_tls(folder: Path, authorities: tuple[Authority, Authority]) -> None:
    """As on every port: with a certificate of the authority, or, if asked for, in the open."""
    ours, _ = authorities
    tls = server_tls(SERVER, SERVER_KEY, ours.certificate)

    def read(scheme: str, *options: tuple[str, str], certificate: bool = False) -> bytes:
        context = ssl.create_default_context(cafile=SERVER)
        if certificate:
            context.load_cert_chain(*ours.sign("/CN=ann"))
        metrics = Url("metrics", "127.0.0.1", 0, options=options)
        with serving(folder, "tank://:0", metrics=metrics, tls=tls) as server:
            (where,) = [url for url in server.server.listener.urls if url.scheme == "metrics"]
            address = f"{scheme}://127.0.0.1:{where.port}/metrics"
            with urllib.request.urlopen(address, context=context) as page:
                return bytes(page.read())

    assert b"logweir_link_accepted_total" in read("https", certificate=True)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        read("https")
    with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
        read("http")
    assert b"logweir_link_accepted_total" in read("http", ("tls", "0"))


def test_sparing_log_tells_how_many_it_left_out() -> None:
    """So many at once, then one each while; another event has its own."""
    told: list[tuple[str, dict[str, Any]]] = []

    class Log:
        def warning(self, event: str, **fields: Any) -> None:
            told.append((event, fields))

    now = 0.0
    log = SparingLog(Log(), lambda: now)
    for number in range(LOG_BURST_LINES + 5):
        log.warning("a", number=number)
    log.warning("b")
    assert [event for event, _ in told] == ["a"] * LOG_BURST_LINES + ["b"]
    now = LOG_LINE_SECONDS
    log.warning("a", number=99)
    log.warning("a", number=100)
    assert told[LOG_BURST_LINES + 1 :] == [("a", {"number": 99, "left_out": 5})]


# --- what is open to all --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "networks", "is_encrypted", "asks", "open_to", "reasons"),
    [
        ("127.0.0.1", "", False, False, "read", ""),
        ("::1", "", False, False, "read", ""),
        ("192.0.2.1", "", False, False, "", "what is said goes unencrypted"),
        ("0.0.0.0", "", True, False, "read", "anybody may read without a login"),
        ("::", "", True, False, "", ""),
        ("::", "", True, True, "read", ""),
        ("0.0.0.0", "10.0.0.0/8", False, False, "read", ""),
        ("0.0.0.0", "0.0.0.0/0", True, False, "read, write", "anybody may read, write without"),
        ("0.0.0.0", "", False, False, "read", "without a login, and what is said goes unencrypted"),
    ],
)
def test_what_is_told_of_an_address_that_is_open(
    host: str, networks: str, is_encrypted: bool, asks: bool, open_to: str, reasons: str
) -> None:
    """Nothing on loopback or behind a list of networks."""
    options = f"?from={networks}" if networks else ""
    addresses = AddressList.of(parse_listen_url(f"tank://:0{options}"))
    found = exposure([host], addresses, open_to, is_encrypted=is_encrypted, asks_certificates=asks)
    assert reasons in found
    assert bool(found) == bool(reasons)


@pytest.mark.parametrize(("guest", "words"), [("none", ""), ("all", "anybody may read, write")])
def test_one_warning_for_an_address_that_is_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, guest: str, words: str
) -> None:
    """And none for one on loopback."""
    with serving(tmp_path, "tank://127.0.0.1:0", "tank://0.0.0.0:0", guest=guest) as server:
        (told,) = [one for one in caplog.records if "listener.exposed" in one.getMessage()]
        assert told.levelname == "WARNING"
        assert words in told.getMessage()
        assert str(server.urls[1]) in told.getMessage()
        public = [one["public"] for one in server.server.status()["listeners"]]
        assert public == [False, True]


def test_what_guest_may_is_read_from_its_grants(tmp_path: Path) -> None:
    """Those of rows and of roles, too, but not what everybody has."""
    with serving(tmp_path, "tank://127.0.0.1:0") as server:
        store_users, log = server.server.users, server.log
        assert store_users.guest_may() == ""
        users.add_user(log, "readers", role=True)
        users.grant(log, "readers", READ, users.Target())
        users.grant(log, "guest", READ, users.Target("role", "readers"))
        assert store_users.guest_may() == "read"
        log.create_space("s", [("id", "unsigned")])
        users.grant(log, "guest", Privilege.WRITE, users.Target("space", "s"))
        assert server.server.status()["guest_may"] == "read, write"


# --- as whom --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with something to read in each protocol, and user ann, who may read and write."""
    with logweir.open(tmp_path / "store") as log:
        create_topic(log, "topic", 1, now_seconds=0)
        log.insert("topic", (0, 1, 1, 1, b"x"))
        users.add_user(log, "ann", password="secret")
        users.grant(log, "ann", READ | Privilege.WRITE, users.Target("space"))
        assert log.schema.space("topic").id == TOPIC_ID
    return tmp_path / "store"


async def read_tarantool(url: Url) -> None:
    """Read a space."""
    async with open_client(url) as client:
        what = {int(IprotoKey.SPACE_ID): TOPIC_ID, int(IprotoKey.LIMIT): 1, int(IprotoKey.KEY): []}
        await client.call(RequestType.SELECT, what)


async def read_tank(url: Url) -> None:
    """See a topic."""
    async with TankClient(url) as client:
        if not await client.topics():
            raise PermissionError("no topics")


async def read_greenstack(url: Url) -> None:
    """Write and read a value."""
    async with GreenstackClient(replace(url, path=("default",))) as client:
        await client.set(b"k", b"v")


async def read_synapse(url: Url) -> None:
    """See a stream."""
    async with Follower(str(url), start="all") as follower:
        async for change in follower:
            if isinstance(change, Rows):
                return


async def read_tap(url: Url) -> None:
    """Write by a library for memcached, which knows nothing of users here."""
    context = None
    if url.flag("tls"):
        context = ssl.create_default_context(cafile=url.option("ca"))
        if url.option("certificate"):
            context.load_cert_chain(url.option("certificate"), url.option("key"))
    client = bmemcached.Client((f"127.0.0.1:{url.port}",), tls_context=context)
    try:
        if not await asyncio.to_thread(client.set, "k", "v"):
            raise PermissionError("it is not stored")
    finally:
        client.disconnect_all()


READS: dict[str, Callable[[Url], Any]] = {
    "tarantool": read_tarantool,
    "tank": read_tank,
    "tap": read_tap,
    "memcached": read_tap,
    "greenstack": read_greenstack,
}


def may(url: Url, more: str = "") -> bool:
    """Whether a client at that address may do something that guest may not."""
    scheme = url.scheme if url.scheme != "memcached" else "tap"
    target = parse_url(f"{scheme}://127.0.0.1:{url.port}{'?' + more if more else ''}")

    async def main() -> None:
        async with asyncio.timeout(10):
            await READS[url.scheme](target)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # bmemcached leaves sockets that failed
        try:
            run(main)
        except (LogweirError, RequestError, OSError, bmemcached.exceptions.MemcachedException):
            return False
        finally:
            gc.collect()
    return True


@pytest.mark.parametrize("scheme", READS)
def test_a_network_names_its_user(folder: Path, scheme: str) -> None:
    """Who comes from there acts as that user; who comes from elsewhere is guest."""
    listen = [f"{scheme}://:0?from=ann@127.0.0.1", f"{scheme}://:0?from=127.0.0.0/8"]
    with serving(folder, *listen) as server:
        assert [may(url) for url in server.urls] == [True, False]


def test_a_user_that_the_store_does_not_have_is_refused(folder: Path) -> None:
    """It is no guest: the address says that it is somebody."""
    with serving(folder, "tank://:0?from=bob@127.0.0.1", guest="all") as server:
        assert not may(server.url)
        users.add_user(server.log, "bob")
        users.grant(server.log, "bob", READ, users.Target())
        assert may(server.url)
        users.drop_user(server.log, "bob")
        assert not may(server.url)
        refused = server.server.status()["refused_connections"]
        assert set(refused) == {"user"}


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    """One that the server trusts, and another one."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program on this machine")
    folder = tmp_path_factory.mktemp("certificates")
    return Authority.new(folder), Authority.new(folder, "other")


@pytest.mark.parametrize("scheme", READS)
def test_a_certificate_names_its_user(
    folder: Path, scheme: str, authorities: tuple[Authority, Authority]
) -> None:
    """Its common name is the user; without one of this authority nobody comes in."""
    ours, other = authorities
    tls = server_tls(SERVER, SERVER_KEY, ours.certificate)
    listen = [f"{scheme}://:0", f"{scheme}://:0?from=ann@127.0.0.1"]
    with serving(folder, *listen, tls=tls) as server:
        assert may(server.url, options(ours.sign("/O=shop/CN=ann")))
        assert not may(server.url, options(None))
        assert not may(server.url, options(other.sign("/O=shop/CN=ann")))
        assert not may(server.url, options(ours.sign("/O=shop/CN=bob")))
        assert not may(server.url, options(ours.sign("/O=shop")))
        assert not may(server.url, options(ours.sign("/CN=ann/CN=admin")))
        assert not may(server.url, options(ours.sign("/CN=guest")))
        assert not may(server.urls[1], options(ours.sign("/CN=bob")))
        refused = server.server.status()["refused_connections"]
        assert refused["tls"] >= 2
        assert refused["user"] >= 4
        assert [one["client_certificates"] for one in server.server.status()["listeners"]] == [
            True,
            True,
        ]


def test_a_follower_of_synapse_shows_its_certificate(
    folder: Path, tmp_path: Path, authorities: tuple[Authority, Authority]
) -> None:
    """The Python follower, and a logweir that follows a logweir."""
    ours, _ = authorities
    tls = server_tls(SERVER, SERVER_KEY, ours.certificate)
    with serving(folder, "synapse://:0", tls=tls) as server:
        target = f"synapse://127.0.0.1:{server.port}?{options(ours.sign('/CN=ann'))}"

        async def main() -> None:
            await read_synapse(parse_url(target))

        run(main)
        with serving(tmp_path / "two", follow=[parse_url(f"{target}&start=all")]) as copy:
            copy.wait(
                lambda: copy.log.schema.get("synapse_topic") and copy.log.count("synapse_topic")
            )
            (row,) = copy.log.select("synapse_topic")
            assert row[0] == "master"  # D1 has one writer


def test_openssl_hears_nothing_without_a_certificate(
    folder: Path, authorities: tuple[Authority, Authority]
) -> None:
    """With one it gets the greeting."""
    ours, _ = authorities
    tls = server_tls(SERVER, SERVER_KEY, ours.certificate)
    with serving(folder, "tarantool://:0", tls=tls) as server:
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-quiet"]
        certificate, key = ours.sign("/CN=ann")

        def said(*words: str) -> str:
            with subprocess.Popen(
                [*command, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as process:
                assert process.stdout is not None
                found = b""
                while line := process.stdout.readline():
                    found += line
                    if b"Tarantool" in line:
                        break
                process.kill()
            return found.decode("utf-8", "replace")

        assert "Tarantool" not in said()
        assert "Tarantool" in said("-cert", str(certificate), "-key", str(key))


def test_an_authority_that_is_none_is_refused(tmp_path: Path) -> None:
    """The error names option and file."""
    for file in (tmp_path / "none", Path(__file__)):
        with pytest.raises(ConfigError) as caught:
            server_tls(SERVER, SERVER_KEY, file)
        assert caught.value.origin == "--tls-client-ca"
        assert str(file) in str(caught.value)
