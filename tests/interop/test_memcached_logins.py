"""Users of the store log in to a bucket server: SASL, and verifiers made on the way."""

from __future__ import annotations

from pathlib import Path

import bmemcached
import pytest

from interop.kvclient import KvClient, store
from interop.test_memcached_endpoint import serve
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status
from logweir.replication.service import users
from logweir.replication.service.sasl import MECHANISMS, Login
from logweir.replication.service.verifiers import verifier
from logweir.store.schema.access import Privilege


def log_in(client: KvClient, mechanism: str, password: str) -> int:
    """One login of ada; returns the last status."""
    login = Login("ada", password, bytes)
    word = login.begin([mechanism])
    name = mechanism.encode()
    (answer,) = client.ask(Packet(Opcode.SASL_AUTH, name, word))
    while answer.status == Status.AUTH_CONTINUE:
        (answer,) = client.ask(Packet(Opcode.SASL_STEP, name, login.step(answer.value)))
    if not answer.status:
        login.finish(answer.value)
    return answer.status


def offered(client: KvClient) -> list[str]:
    """The mechanisms that are offered."""
    (answer,) = client.ask(Packet(Opcode.SASL_LIST_MECHS))
    return answer.value.decode().split()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_users_of_the_store_log_in(tmp_path: Path, mechanism: str) -> None:
    """By each mechanism; a wrong password and a stranger do not come in."""
    with serve(tmp_path / "s", guest="none") as server:
        users.add_user(server.log, "ada", password="lovelace")
        both = Privilege.READ | Privilege.WRITE
        users.grant(server.log, "ada", both, users.Target("space", "b"))
        with KvClient(server.port) as client:
            assert mechanism in offered(client)
            assert log_in(client, mechanism, "byron") == Status.AUTH_ERROR
            assert log_in(client, mechanism, "lovelace") == 0
            assert client.ask(store(b"k"))[0].status == 0


def test_users_made_elsewhere_come_in_by_plain_first(tmp_path: Path) -> None:
    """Of them only Tarantool's verifier is kept; with the first login by PLAIN there are others,
    which end with the password."""
    with serve(tmp_path / "s", guest="none") as server:
        log = server.log
        log.insert("_user", (40, 1, "ada", "user", {"chap-sha1": verifier("lovelace")}))
        with KvClient(server.port) as client:
            assert offered(client) == ["PLAIN"]
            assert log_in(client, "SCRAM-SHA-256", "lovelace") == Status.AUTH_ERROR
            assert log_in(client, "PLAIN", "lovelace") == 0
            server.wait(lambda: log.count("logweir_verifier") == len(MECHANISMS) - 1)
            assert offered(client) == list(MECHANISMS)
            assert log_in(client, "SCRAM-SHA-256", "lovelace") == 0
            log.update("_user", 40, [["=", 4, {"chap-sha1": verifier("new")}]])
            assert offered(client) == ["PLAIN"]
            assert log_in(client, "CRAM-MD5", "lovelace") == Status.AUTH_ERROR
            assert log_in(client, "PLAIN", "lovelace") == Status.AUTH_ERROR


@pytest.mark.parametrize("opcode", [Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP])
def test_sasl_is_not_known_where_nobody_can_log_in(tmp_path: Path, opcode: Opcode) -> None:
    """Where guests may come in, as in a memcached without it. It is as soon as somebody has a
    password, for who comes then; and where guests may not, whoever there is."""
    key = b"" if opcode == Opcode.SASL_LIST_MECHS else b"PLAIN"
    asked = Packet(opcode, key, b"\0ada\0lovelace" if key else b"")
    known = Status.AUTH_ERROR if key else Status.SUCCESS
    with serve(tmp_path / "open", guest="read") as server:
        with KvClient(server.port) as client:
            answers = client.ask(asked, Packet(Opcode.GET, b"k"))
            assert [one.status for one in answers] == [Status.UNKNOWN_COMMAND, Status.NOT_FOUND]
        users.add_user(server.log, "byron", password="childe")
        with KvClient(server.port) as client:
            assert client.ask(asked)[0].status == known
    with serve(tmp_path / "shut", guest="none") as server, KvClient(server.port) as client:
        assert client.ask(asked)[0].status == known


def test_a_client_with_a_password_works_with_a_server_that_has_no_users(tmp_path: Path) -> None:
    """python-binary-memcached, which says who it is first."""
    with serve(tmp_path / "s", guest="write") as server:
        client = bmemcached.Client((f"127.0.0.1:{server.port}",), "ada", "lovelace")
        try:
            assert client.set("k", "v")
            assert client.get("k") == "v"
        finally:
            client.disconnect_all()
