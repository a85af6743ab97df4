"""Serving Synapse's protocol from a real store over real sockets."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.synapseclient import Client

import logweir
from interop.serving import Serving
from interop.synapsemodel import Peer, lines_of, wire, wire_rows
from logweir.limits import HUB_STEP_BYTES, SYNAPSE_OUTPUT_HIGH_BYTES
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import SourceState
from logweir.replication.synapse.client_session import Greeted
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.synapse.serve.protocol import SynapseProtocol
from logweir.replication.synapse.wire.codec import Dialect
from logweir.replication.synapse.wire.units import Change


def ingest(folder: Path, name: str) -> None:
    """A store that has followed a recording."""
    with logweir.open(folder) as log:
        peer = Peer()
        changes: list[Change] = []
        for line in lines_of(name, "S"):
            events = peer.session.receive_data(wire(line), 0.0)
            peer.act(events)
            changes += [one for one in events if not isinstance(one, Greeted)]
        Intake(log, "logweir.test").store(changes)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Serving]:
    """A D1 listener on a store that followed a D1 server."""
    ingest(tmp_path / "data", "D1/live")
    listen = [parse_listen_url("synapse://:0")]
    with Serving(tmp_path / "data", listen=listen) as serving:
        yield serving


def test_relayed_streams_have_the_upstream_s_rows_and_tokens(relay: Serving) -> None:
    """Caught up from 0, stream by stream, byte for byte what the real server sent."""
    lines = lines_of("D1/live", "S")
    expected = [line for line in lines if line.startswith("RDATA")]
    with Client(relay.port) as client:
        assert client.server == "SERVER logweir.test"
        for stream in wire_rows(expected, Dialect.D1):
            client.send(f"REPLICATE {stream} 0")
            found = client.until("POSITION")
            assert found[:-1] == [line for line in expected if line.split(" ")[1] == stream]
            last = found[-2].split(" ")[2]
            assert found[-1] == f"POSITION {stream} {last}"


def test_catch_up_begins_behind_any_token(relay: Serving) -> None:
    """NOW, the present, the middle, ahead, below zero."""
    with Client(relay.port) as client:
        for asked, first in (
            ("NOW", None),
            ("now", None),
            ("31", None),
            ("999999", None),
            ("30", "batch"),
            ("29", "30"),
            ("-5", "batch"),
        ):
            client.send(f"REPLICATE events {asked}")
            found = client.until("POSITION")
            assert found[-1] == "POSITION events 31"
            assert (found[0].split(" ")[2] if len(found) > 1 else None) == first


def test_stream_without_rows_has_a_position_and_an_unknown_one_an_error(relay: Serving) -> None:
    """A real follower waits for the POSITION of every stream it asked for."""
    with Client(relay.port) as client:
        client.send("REPLICATE pushers 3", "REPLICATE nosuch 1")
        assert client.line() == "POSITION pushers 3"
        assert client.line().startswith("ERROR failed to handle replicate: unknown stream")
        assert client.line() == ""


def space(serving: Serving) -> None:
    """A space with a few changes."""
    log = serving.log
    log.create_space("my space", [("id", "unsigned"), ("v", "any")], primary=["id"])
    log.insert("my space", [1, "caf\u00e9\n"])
    with log.transaction() as tx:
        tx.replace("my space", [2, [b"\x00", None]])
        tx.update("my space", 1, [("=", 1, "x")])
        tx.delete("my space", 2)


def test_any_space_is_a_stream(tmp_path: Path) -> None:
    """Rows of the log behind a token, a transaction as one unit, and what comes later."""
    with Serving(tmp_path, listen=[parse_listen_url("synapse://:0")]) as serving:
        start = serving.log.vclock.signature
        space(serving)
        end = serving.log.vclock.signature
        with Client(serving.port) as client:
            assert client.server == "SERVER logweir"
            client.send(f"REPLICATE my%20space {start}")
            head = "RDATA my%20space"
            assert client.until("POSITION") == [
                f'{head} {end - 3} ["insert",[1],[1,"caf\\u00e9\\n"]]',
                f'{head} batch ["replace",[2],[2,[{{"$bin":"AA=="}},null]]]',
                f'{head} batch ["update",[1],[1,"x"],[["=",1,"x"]]]',
                f'{head} {end} ["delete",[2],null]',
                f"POSITION my%20space {end}",
            ]
            serving.log.insert("my space", [7, None])
            assert client.line() == f'{head} {end + 1} ["insert",[7],[7,null]]'


def test_a_copy_is_kept_by_the_tuples_alone(tmp_path: Path) -> None:
    """Rows of updates and upserts have the tuple that stands there, whether they are caught up with
    or come as they are made; of one that is gone by then none, and its delete follows."""

    def keep(copy: dict[str, Any], lines: Sequence[str]) -> None:
        for line in lines:
            _, key, made, *_ = json.loads(line.split(" ", 3)[3])
            copy[str(key)] = made

    def stands(copy: dict[str, Any]) -> list[Any]:
        return sorted(made for made in copy.values() if made is not None)

    with Serving(tmp_path, listen=[parse_listen_url("synapse://:0")]) as serving:
        log = serving.log
        start = log.vclock.signature
        log.create_space("s", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
        for number in range(3):
            log.upsert("s", [number, number], [("+", 1, 10)])
            log.upsert("s", [number, number], [("+", 1, 10)])
        log.update("s", 1, [("=", 1, 99)])
        log.delete("s", 1)
        copy: dict[str, Any] = {}
        with Client(serving.port) as client:
            client.send(f"REPLICATE s {start}")
            caught_up = client.until("POSITION")
            keep(copy, caught_up[:-1])
            assert stands(copy) == [list(row) for row in log.select("s")] == [[0, 10], [2, 12]]
            log.update("s", 0, [("+", 1, 5)])
            log.upsert("s", [7, 7], [("=", 1, 0)])
            keep(copy, [client.line(), client.line()])
            assert stands(copy) == [list(row) for row in log.select("s")]


def test_token_older_than_the_log_is_refused_and_zero_gives_the_state(tmp_path: Path) -> None:
    """No silent jump: an error that names the oldest token, or everything there is."""
    options = {"checkpoint_count": 1}
    listen = [parse_listen_url("synapse://:0")]
    with Serving(tmp_path, listen=listen, open_options=options) as serving:
        space(serving)
        serving.log.append("my space", [[number, None] for number in range(10, 2500)])
        for number in range(2500, 2503):
            serving.log.insert("my space", [number, None])
            serving.log.snapshot()
        serving.log.insert("my space", [9999, None])
        oldest = serving.log.oldest_position.signature
        assert oldest > 3
        with Client(serving.port) as client:
            client.send("REPLICATE my%20space 3")
            assert client.line() == f"ERROR token too old: oldest is {oldest}"
        with Client(serving.port) as client:
            client.send("REPLICATE my%20space 0")
            found = client.until("POSITION")
            end = serving.log.vclock.signature
            assert found[-1] == f"POSITION my%20space {end}"
            assert len(found) - 1 == serving.log.count("my space")
            assert {line.split(" ")[2] for line in found[:-2]} == {"batch"}
            assert found[-2] == f'RDATA my%20space {end} ["replace",[9999],[9999,null]]'


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_row_that_is_too_long_is_told_or_left_out(tmp_path: Path, policy: str) -> None:
    """By configuration; live and in a catch-up alike."""
    listen = [parse_listen_url(f"synapse://:0?on_long_row={policy}")]
    with Serving(tmp_path, listen=listen) as serving:
        space(serving)
        with Client(serving.port) as client:
            client.send("REPLICATE my%20space NOW")
            client.until("POSITION")
            serving.log.insert("my space", [10, "x" * 20000])
            end = serving.log.vclock.signature
            if policy == "error":
                assert client.line() == f"ERROR row too long: my%20space {end}"
                assert client.line() == ""
                return
            assert client.line() == f"POSITION my%20space {end}"
            serving.log.insert("my space", [11, None])
            assert client.line().startswith(f"RDATA my%20space {end + 1} ")
            client.send(f"REPLICATE my%20space {end - 1}")
            found = client.until(f"POSITION my%20space {end + 1}")
            assert found[0] == f"POSITION my%20space {end}"
            assert len(found) == 3


def test_d3_sends_rows_unasked_and_positions_when_asked(tmp_path: Path) -> None:
    """Writers are named; REPLICATE takes no arguments."""
    ingest(tmp_path, "D3/live")
    listen = [parse_listen_url("synapse://:0?dialect=D3")]
    with Serving(tmp_path, listen=listen) as serving, Client(serving.port) as client:
        client.send("REPLICATE ")
        found = client.until("POSITION typing")
        assert "POSITION events master 31 31" in found
        peer = Peer()
        intake = Intake(serving.log, "logweir.test")
        peer.tracker = peer.tracker.__class__(intake.cursors())
        peer.greet()
        peer.lines("POSITION events master 31 31")
        events = peer.session.receive_data(b'RDATA events master 32 ["ev",[]]\n', 0.0)
        intake.store(events)  # type: ignore[arg-type]
        assert client.until("RDATA")[-1] == 'RDATA events master 32 ["ev",[]]'


@pytest.mark.parametrize("name", ["D1/live", "D3/live"])
def test_chain_of_two_stores_has_the_same_rows(tmp_path: Path, name: str) -> None:
    """A store that follows ours ends with the same tuples, from the beginning and live."""
    ingest(tmp_path / "one", name)
    listen = [parse_listen_url("synapse://:0?server_name=logweir.test")]
    with Serving(tmp_path / "one", listen=listen) as first:
        url = parse_url(f"synapse://127.0.0.1:{first.port}?start=all")
        with Serving(tmp_path / "two", listen=[], follow=[url]) as second:
            status = lambda: second.server.runners[0].status.state  # noqa: E731
            second.wait(lambda: status() == SourceState.FOLLOWING)
            names = [one.name for one in first.log.spaces() if one.name.startswith("synapse_")]
            assert len(names) > 9
            for one in names:
                assert second.log.select(one) == first.log.select(one)


def test_many_followers_get_the_same_and_a_stuck_one_stops_nobody(tmp_path: Path) -> None:
    """One reads nothing while others follow many rows; little is kept for it."""
    with Serving(tmp_path, listen=[parse_listen_url("synapse://:0")]) as serving:
        space(serving)
        clients = [Client(serving.port) for _ in range(20)]
        stuck = clients.pop()
        for client in (stuck, *clients):
            client.send("REPLICATE my%20space NOW")
        for client in clients:
            client.until("POSITION")
        for number in range(100, 150):
            rows = [[1000 * number + place, "x" * 900] for place in range(100)]
            serving.log.append("my space", rows)
        end = serving.log.vclock.signature
        for client in clients:
            last = client.until(f"RDATA my%20space {end} ")
            assert len(last) == 5000
        kept = max(link.unsent_bytes for link in serving.server.listener.links)
        assert 0 < kept < SYNAPSE_OUTPUT_HIGH_BYTES + 2 * HUB_STEP_BYTES
        for client in (*clients, stuck):
            client.__exit__(None, None, None)


def test_remote_server_up_is_passed_on_where_that_is_wanted(tmp_path: Path) -> None:
    """To every other follower."""
    listen = [parse_listen_url("synapse://:0?relay_up=1")]
    with (
        Serving(tmp_path, listen=listen) as serving,
        Client(serving.port) as one,
        Client(serving.port) as other,
    ):
        other.send("REPLICATE ALL NOW")
        one.send("REMOTE_SERVER_UP other.example")
        assert other.until("REMOTE")[-1] == "REMOTE_SERVER_UP other.example"


def test_follower_that_takes_nothing_is_told_that_it_failed_to_keep_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on its way arrives, then ERROR and the end; the others have everything."""
    made = SynapseProtocol.services

    def impatient(self: Any, url: Any) -> Any:
        ((where, service),) = made(self, url)
        service.options = replace(service.options, stall_seconds=0.5)
        return [(where, service)]

    monkeypatch.setattr(SynapseProtocol, "services", impatient)
    with Serving(tmp_path, listen=[parse_listen_url("synapse://:0")]) as server:
        space(server)
        with Client(server.port) as stuck, Client(server.port) as other:
            for client in (stuck, other):
                client.send("REPLICATE my%20space NOW")
                client.until("POSITION")
            rows = [[1000 + number, "x" * 900] for number in range(20_000)]
            server.log.append("my space", rows, one_transaction=False)
            end = server.log.vclock.signature
            assert len(other.until(f"RDATA my%20space {end} ")) == 20_000
            links = server.server.listener.links
            server.wait(lambda: any(link.close_reason for link in links))
            found = stuck.until("ERROR")
            assert found[-1] == "ERROR Failed to keep up"
            tokens = [int(line.split(" ")[2]) for line in found[:-1]]
            assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
            assert len(tokens) < 20_000
            assert stuck.line() == ""


def test_log_that_is_removed_under_a_follower_is_told_to_it(tmp_path: Path) -> None:
    """A follower still reads an old file when that goes: ERROR, and no row is left out silently."""
    options = {"checkpoint_count": 1, "wal_max_size": 1 << 20}
    listen = [parse_listen_url("synapse://:0")]
    with Serving(tmp_path, listen=listen, open_options=options) as server:
        space(server)
        with Client(server.port) as slow:
            slow.send("REPLICATE my%20space NOW")
            slow.until("POSITION")
            for turn in range(12):
                first = 1000 + 5000 * turn
                rows = [[first + number, "x" * 900] for number in range(5000)]
                server.log.append("my space", rows, one_transaction=False)
            server.log.snapshot()
            server.log.insert("my space", [9, None])
            server.log.snapshot()
            oldest = server.log.oldest_position.signature
            assert oldest > 50_000
            found = slow.until("ERROR")
            assert found[-1].startswith("ERROR Failed to keep up: ")
            tokens = [int(line.split(" ")[2]) for line in found[:-1]]
            assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
            assert slow.line() == ""


def test_flood_of_other_followers_ends_one_that_takes_nothing(tmp_path: Path) -> None:
    """As with a real server: 10 000 commands wait, with one more it failed to keep up."""
    listen = [parse_listen_url("synapse://:0?relay_up=1")]
    with (
        Serving(tmp_path, listen=listen) as server,
        Client(server.port) as stuck,
        Client(server.port) as one,
    ):
        name = "x" * 1000
        for turn in range(40):
            one.send(*(f"REMOTE_SERVER_UP {name}.{turn}.{number}" for number in range(1000)))
        found = stuck.until("ERROR")
        assert found[-1] == "ERROR Failed to keep up"
        assert 10_000 <= len(found) < 40_000
        last = f"REMOTE_SERVER_UP {name}.{(len(found) - 2) // 1000}.{(len(found) - 2) % 1000}"
        assert found[-2] == last
        assert stuck.line() == ""


def test_five_hundred_followers_that_read_nothing_cost_little(tmp_path: Path) -> None:
    """What waits for each is bounded, and one that reads is served meanwhile."""
    listen = [parse_listen_url("synapse://:0")]
    with Serving(tmp_path, listen=listen) as server, ExitStack() as stack:
        space(server)
        clients = [stack.enter_context(Client(server.port)) for _ in range(500)]
        for client in clients:
            client.send("REPLICATE my%20space NOW")
        for client in clients:
            client.until("POSITION")
        rows = [[1000 + number, "x" * 900] for number in range(4000)]
        server.log.append("my space", rows, one_transaction=False)
        end = server.log.vclock.signature
        assert len(clients[0].until(f"RDATA my%20space {end} ")) == 4000
        waiting = [link.unsent_bytes for link in server.server.listener.links]
        assert max(waiting) < SYNAPSE_OUTPUT_HIGH_BYTES + 2 * HUB_STEP_BYTES


def test_it_can_be_tried_with_nc(tmp_path: Path) -> None:
    """The session of the guide, typed into `nc`."""
    program = shutil.which("nc") or shutil.which("ncat")
    if program is None:
        pytest.skip("there is no nc on this machine")
    ingest(tmp_path, "D1/live")
    with Serving(tmp_path, listen=[parse_listen_url("synapse://:0")]) as server:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([program, "127.0.0.1", str(server.port)], **pipes) as nc:
            assert nc.stdin is not None
            assert nc.stdout is not None
            assert nc.stdout.readline() == "SERVER logweir.test\n"
            assert nc.stdout.readline().startswith("PING ")
            nc.stdin.write("REPLICATE events 30\n")
            nc.stdin.flush()
            found = [nc.stdout.readline()]
            while not found[-1].startswith("POSITION "):
                found.append(nc.stdout.readline())
            nc.terminate()
        expected = [line for line in lines_of("D1/live", "S") if line.startswith("RDATA events")]
        assert [line.rstrip("\n") for line in found[:-1]] == expected[-2:]
        assert found[-1] == "POSITION events 31\n"


def test_first_follower_does_not_read_what_was_there(tmp_path: Path) -> None:
    """A server that has just begun knows where its log ends."""
    with logweir.open(tmp_path) as log:
        log.create_space("s", [("id", "unsigned")], primary=["id"])
        log.append("s", [[number] for number in range(2000)])
    with Serving(tmp_path, listen=[parse_listen_url("synapse://:0")]) as server:
        place = server.server.places.before(server.log.vclock)
        assert place is not None
        assert (place.path, place.offset) == server.log.inner.durable_end
        with Client(server.port) as client:
            client.send("REPLICATE s NOW")
            client.until("POSITION")
            server.log.insert("s", [5000])
            end = server.log.vclock.signature
            assert client.line() == f'RDATA s {end} ["insert",[5000],[5000]]'


def test_requests_are_counted(tmp_path: Path) -> None:
    """What is asked for by lines and over HTTP, each under the scheme of its connections."""
    listen = [parse_listen_url("synapse://:0?dialect=D3&http=127.0.0.1:0&streams=a")]
    with Serving(tmp_path / "data", listen=listen) as serving:
        serving.log.create_space("a", [("id", "unsigned")], primary=["id"])
        with Client(serving.port) as client:
            client.send("REPLICATE")
            client.until("POSITION")
        port, page = serving.urls[1].port, "/_synapse/replication/get_repl_stream_updates/"
        for stream, status in (("a", 200), ("b", 400)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            with closing(connection):
                connection.request("GET", f"{page}{stream}/1?from_token=0&upto_token=9")
                assert connection.getresponse().status == status
        told = serving.server.metrics.requests()
    assert told == {"synapse": (1, 0), "synapse+http": (1, 1)}
