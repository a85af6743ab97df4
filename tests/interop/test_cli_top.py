"""`logweir top` beside a server that works, and one that goes away."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from rich.console import Console
from rich.screen import Screen
from support.loops import run
from support.nursery import LOGWEIR

import logweir
from interop.rawclient import RawClient
from interop.serving import Serving
from interop.test_iproto_cli import serving, told
from logweir.replication.iproto.client import open_client
from logweir.replication.iproto.wire.codec import RequestType
from logweir.replication.service.rates import rates_of
from logweir.tools.cli.top import _Fitted, _view


def test_two_looks_tell_what_happened_between_them(tmp_path: Path) -> None:
    """The second look counts the commit that came behind the first; the third one that the server
    went away."""
    with logweir.open(tmp_path / "one") as log:
        log.create_space("t")
    words = ["top", "--json", "--every", "0.1"]
    with serving(tmp_path / "one", "--allow-guest", "all") as ready:
        url = ready["listen"][0]
        with LOGWEIR.begin(*words, url, stdout=PIPE) as process:
            assert process.stdout is not None
            looks = iter(process.stdout)
            first = json.loads(next(looks))
            assert (first["rates"], first["unreachable"]) == ({}, "")
            with RawClient(int(url.rpartition(":")[2])) as client:
                assert not client.ask(3, {0x10: 512, 0x21: [100, "x"]}).is_error
            found = next(look for look in map(json.loads, looks) if look["rates"]["rows"])
            assert found["signature"] == first["signature"] + 1
            assert found["rates"]["commits"] > 0
            process.terminate()
        code, out, _ = told("top", url, "--count", "1")
        assert code == 0
        assert str(tmp_path / "one") not in out
        assert found["instance"] in out
        assert "{1: " in out
    code, _, err = told("top", url, "--count", "1")
    assert code == 4
    assert "hint" in err
    assert told("top", tmp_path / "one")[0] == 2


def test_a_server_that_goes_away_is_asked_again(tmp_path: Path) -> None:
    """What it said last stays, with why there is nothing newer."""
    with logweir.open(tmp_path / "one"):
        pass
    with serving(tmp_path / "one", "--allow-guest", "all") as ready:
        words = ["top", "--json", "--every", "0.1", ready["listen"][0]]
        process = LOGWEIR.begin(*words, stdout=PIPE)
        assert process.stdout is not None
        looks = map(json.loads, process.stdout)
        first = next(looks)
    with process:
        last = next(look for look in looks if look["unreachable"])
        process.terminate()
    assert last["instance"] == first["instance"]
    assert last["rates"] == {}


def test_rates_of_a_server_that_began_anew() -> None:
    """Counters that went back have no rate; an upstream is known by its address."""
    before = {"vclock": {1: 5}, "commits": 9, "sources": [{"url": "a", "rows": 3}]}
    now = {
        "vclock": {1: 9, 2: 6},
        "commits": 2,
        "sources": [{"url": "a", "rows": 13}, {"url": "b", "rows": 7}],
    }
    assert rates_of(before, now, 2.0) == {"rows": 5.0, "a": 5.0}
    assert rates_of({"vclock": {}}, {"vclock": {}}, 1.0) == {"rows": 0.0}
    assert rates_of(before, now, 0.0) == {}
    tank = {"scheme": "tank", "requests": 4, "received_bytes": 100, "sent_bytes": 9}
    later = {**tank, "requests": 10, "sent_bytes": 3}
    found = rates_of({"vclock": {}, "traffic": [tank]}, {"vclock": {}, "traffic": [later]}, 2.0)
    assert found == {"rows": 0.0, "tank requests": 3.0, "tank received_bytes": 0.0}


def test_texts_of_a_server_are_shown_and_not_obeyed() -> None:
    """Followers, upstreams and who keeps logs stand there; neither rich's markup nor a terminal's
    escapes in what the server says count."""
    status = {
        "url": "tarantool://h:1",
        "instance": "i",
        "vclock": {1: 5},
        "state": "running",
        "oldest_log_kept_by": "[red]one\x1b]0;x\x07",
        "log_keepers": [
            {"kind": "follower", "name": "one", "bytes": 2048, "age_seconds": 7200.0},
            {"kind": "process", "name": "71", "bytes": 0, "age_seconds": None},
        ],
        "errors": [
            {"time": "2026", "event": "link.failed", "where": "w\x1b", "why": "y", "hint": "h"}
        ],
        "replicas": [
            {"instance": "f", "peer": "p:1", "lag_rows": 1234, "acknowledged": {1: 4}},
        ],
        "readers": [
            {
                "scheme": "tank",
                "name": "p:2\x1b",
                "peer": "p:2",
                "position": "events/0: 7",
                "lag": 5678,
                "unit": "messages",
            },
        ],
        "sources": [
            {"url": "u", "state": "waiting", "lag_seconds": None, "last_error": "gone\x1b[2J"},
        ],
    }
    console = Console(width=100, force_terminal=True, color_system=None)
    with console.capture() as capture:
        rates = {"rows": 2.5, "u": 1.0, "tank requests": 7.25, "tap requests": 0.0}
        rates |= {"tank received_bytes": 3072.0, "tank sent_bytes": 12.5}
        console.print(_view(status, rates, "away"))
    text = capture.get()
    for wanted in ("unreachable: away", "[red]one\\u001b]0;x\\u0007", "1,234 rows", "2.0 KiB"):
        assert wanted in text
    for wanted in ("tank p:2\\u001b", "5,678 messages", "events/0: 7"):
        assert wanted in text
    for wanted in ("follower one", "2.0 h", "7.2 tank", "3.0 KiB tank", "12 B tank", "w\\u001b"):
        assert wanted in text
    assert "tap" not in text
    assert "gone\\u001b[2J" in text
    assert "2.5 rows" in text
    assert "\x1b" not in text


def many(count: int) -> dict[str, Any]:
    """What a server with so many upstreams tells; the last of them has stopped."""
    sources = [
        {"url": f"tank://broker:1/{number}", "state": "syncing", "lag_seconds": 0.5}
        | {"last_error": None}
        for number in range(count - 1)
    ]
    ill = {"url": f"tank://{'x' * 60}:1", "state": "stopped", "lag_seconds": 1.0}
    sources.append(ill | {"last_error": "refused"})
    server = {"url": "u", "instance": "i", "vclock": {1: 5}, "state": "running"}
    return {**server, "sources": sources}


@pytest.mark.parametrize(("width", "height", "unseen"), [(80, 24, 13), (200, 50, 0)])
def test_a_screen_begins_with_what_is_ill_and_tells_what_it_cuts(
    width: int, height: int, unseen: int
) -> None:
    """A stopped upstream stands first, in red, its address whole; nothing is cut in silence."""
    console = Console(width=width, height=height, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(Screen(_Fitted(_view(many(30), {}, ""))))
    told = capture.get()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", told).splitlines()
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    begin = next(number for number, line in enumerate(lines) if line.startswith("upstream"))
    assert "stopped" in lines[begin + 1]
    assert "".join(lines[begin + 1 : begin + 4]).count("x") >= 60
    assert "\x1b[1;31mtank://xxx" in told
    cut = [line.strip() for line in lines if "lines more" in line]
    assert cut == ([f"… {unseen} lines more: enlarge the terminal"] if unseen else [])
    assert ("tank://broker:1/28" in "".join(lines)) is (not unseen)


def test_a_greeting_that_comes_when_nobody_waits_any_more_is_no_error(tmp_path: Path) -> None:
    """As where Ctrl-C ends a look that is just connecting: nothing is written behind the screen."""

    async def test() -> None:
        async with open_client(server.urls[0]) as client:
            greeting = await client.greeting
            client.greeting = asyncio.get_running_loop().create_future()
            client.greeting.cancel()
            client.handle([greeting])
            assert client.greeting.cancelled()
            assert not (await client.call(RequestType.PING)).is_error

    with Serving(tmp_path) as server:
        run(test)
