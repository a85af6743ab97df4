"""Several homeservers, topics and spaces in one store: what each is called when it is served."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.synapseclient import Client

import logweir
from interop.serving import Serving
from logweir.errors import ConfigError, SourceStopped
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import SourceState
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.synapse.wire.codec import encode_row
from logweir.replication.synapse.wire.units import Cursor, Unit
from logweir.replication.topic.spaces import create_topic


def homeserver(stack: ExitStack, folder: Path, name: str, rows: int) -> Serving:
    """A server with a stream `events` of so many rows."""
    listen = [parse_listen_url(f"synapse://:0?server_name={name}")]
    serving = stack.enter_context(Serving(folder, listen=listen))
    serving.log.create_space("events", [("id", "unsigned")], primary=["id"])
    for number in range(rows):
        serving.log.insert("events", [number])
    return serving


def unit(token: int, row: str, instance: str = "master") -> Unit:
    """A unit of a followed stream `events`."""
    cursor = Cursor(token, token)
    return Unit("events", instance, 1, token, [encode_row(row)], False, cursor)


def test_relay_of_two_homeservers_tells_where_each_stands(tmp_path: Path) -> None:
    """In D1 and D3: the rows and the POSITION of the one that fills the space."""
    with ExitStack() as stack:
        one = homeserver(stack, tmp_path / "one", "one.test", 50)
        two = homeserver(stack, tmp_path / "two", "two.test", 7)
        follow = [
            parse_url(f"synapse://127.0.0.1:{one.port}?start=all&dialect=D1"),
            parse_url(f"synapse://127.0.0.1:{two.port}?start=all&dialect=D1&name=two"),
        ]
        listen = [parse_listen_url(f"synapse://:0?dialect={one}") for one in ("D1", "D3")]
        relay = stack.enter_context(Serving(tmp_path / "relay", follow=follow, listen=listen))
        log = relay.log
        spaces = {"events": "synapse_events", "two_events": "synapse_two_events"}
        relay.wait(
            lambda: (
                [log.schema.get(name) is not None and log.count(name) for name in spaces.values()]
                == [50, 7]
            )
        )
        last = {name: log.select(space)[-1][1] for name, space in spaces.items()}
        assert last["events"] != last["two_events"]
        with Client(relay.urls[0].port) as client:
            client.send("REPLICATE events 0", "REPLICATE two_events 0")
            for name, count in (("events", 50), ("two_events", 7)):
                found = client.until("POSITION")
                assert found[-1] == f"POSITION {name} {last[name]}"
                assert len(found) == count + 1
            client.send(f"REPLICATE two_events {last['two_events']}")
            assert client.line() == f"POSITION two_events {last['two_events']}"
        with Client(relay.urls[1].port) as client:
            client.send("REPLICATE ")
            told: dict[str, str] = {}
            while not last.keys() <= told.keys():  # in the order in which the spaces were made
                line = client.until("POSITION")[-1]
                told[line.split(" ")[1]] = line
            for name, token in last.items():
                assert told[name] == f"POSITION {name} master {token} {token}"


def test_space_and_followed_stream_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """The followed stream keeps its name; the space is `space:events`, with its own tokens; who
    follows both has the rows of each."""
    listen = [parse_listen_url("synapse://:0")]
    with Serving(tmp_path / "hub", listen=listen) as hub:
        hub.log.create_space("events", [("id", "unsigned")], primary=["id"])
        hub.log.append("events", [[number] for number in range(5)], one_transaction=False)
        with Client(hub.port) as client:
            client.send("REPLICATE events NOW")
            assert client.line() == f"POSITION events {hub.log.vclock.signature}"
            intake = Intake(hub.log, "logweir.test")
            intake.store([unit(38, '["followed"]')])
            error = "ERROR stream events is another one now, follow it anew"
            assert client.until("ERROR") == [error]
            assert client.line() == ""
        with Client(hub.port) as client:
            client.send("REPLICATE events 0", "REPLICATE space:events 0")
            rows = ['RDATA events 38 ["followed"]', "POSITION events 38"]
            assert client.until("POSITION") == rows
            end = hub.log.vclock.signature
            found = client.until("POSITION")
            assert found[-1] == f"POSITION space:events {end}"
            assert len(found) == 6
            hub.log.insert("events", [90])
            assert client.line() == f'RDATA space:events {end + 1} ["insert",[90],[90]]'
        url = parse_url(f"synapse://127.0.0.1:{hub.port}?start=all")
        with Serving(tmp_path / "copy", follow=[url], listen=[]) as copy:
            status = lambda: copy.server.runners[0].status  # noqa: E731
            copy.wait(lambda: status().state == SourceState.FOLLOWING)
            assert copy.log.select("synapse_events") == [("master", 38, 0, ["followed"])]
            assert copy.log.count("synapse_space%3Aevents") == 6


def test_upstreams_of_one_name_are_refused_at_start(tmp_path: Path) -> None:
    """Nothing is followed; over TCP and Redis alike. With a name for one of them both are."""
    urls = [
        parse_url("synapse://127.0.0.1:1"),
        parse_url("synapse+redis://127.0.0.1:2/two.test"),
    ]
    with pytest.raises(ConfigError) as caught, Serving(tmp_path, follow=urls, listen=[]):
        pass
    assert f"it fills 'synapse_*' here, as does {urls[0]}" in str(caught.value)
    urls[1] = parse_url(f"{urls[1]}?name=two")
    with Serving(tmp_path, follow=urls, listen=[]) as serving:
        assert len(serving.server.runners) == 2


def test_sources_whose_spaces_meet_are_refused_before_a_row_is_mixed(tmp_path: Path) -> None:
    """`two_events` of the only source, and `events` of the one that is called `two`."""
    with logweir.open(tmp_path) as log:
        Intake(log, "two.test", name="two").store([unit(1, "[1]")])
        plain = Intake(log, "one.test")
        meeting: Any = Unit("two_events", "master", 1, 9, [encode_row("[9]")])
        with pytest.raises(SourceStopped) as caught:
            plain.store([meeting])
        assert "synapse_two_events holds what synapse:two.test#two sends" in str(caught.value)
        assert "name=" in caught.value.hint
        plain.store([unit(2, "[2]")])
        assert log.select("synapse_two_events") == [("master", 1, 0, [1])]
        with pytest.raises(SourceStopped):
            Intake(log, "other.test")


def test_what_the_program_keeps_for_itself_is_no_stream(tmp_path: Path) -> None:
    """Lists of topics, states of vbuckets, places: neither under ALL nor by name."""
    listen = [parse_listen_url(f"{one}://:0") for one in ("synapse", "tap", "tank")]
    with Serving(tmp_path / "hub", listen=listen) as hub:
        create_topic(hub.log, "events", 1, now_seconds=0)
        names = {space.name for space in hub.log.spaces()}
        assert {"logweir_topic", "logweir_vbucket"} <= names
        with Client(hub.port) as client:
            client.send("REPLICATE ALL NOW")
            told = {client.line().split()[1], client.line().split()[1]}
            assert told == {"default", "events"}
            client.send("REPLICATE logweir_topic NOW")
            assert "unknown stream logweir_topic" in client.until("ERROR")[-1]
