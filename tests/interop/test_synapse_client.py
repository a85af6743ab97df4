"""The Python follower against servers of ours: tokens that last, reconnects, what is missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.synapseclient import Client

from interop.serving import Serving
from logweir.errors import ConfigError, SourceStopped
from logweir.replication.protocols import parse_listen_url
from logweir.replication.runner import Timing
from logweir.replication.synapse.client import Follower, Missing, Rows

FAST = Timing(first_seconds=0.001, max_seconds=0.01)


def run(work: Callable[[], Awaitable[None]]) -> None:
    """A scenario with an end."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


def listening(folder: Path, options: str = "", **more: Any) -> Serving:
    """A server of ours with a space `orders`."""
    return Serving(folder, listen=[parse_listen_url(f"synapse://:0{options}")], **more)


def make(serving: Serving) -> None:
    """The space."""
    serving.log.create_space("orders", [("id", "unsigned")], primary=["id"])


async def take(follower: Follower, count: int) -> list[Any]:
    """So many rows, each the key of what was inserted."""
    found: list[Any] = []
    async for change in follower:
        if isinstance(change, Rows) and change.stream == "orders":
            found += [row[1][0] for row in change.rows]
        if len(found) >= count:
            break
    return found


def address(serving: Serving) -> str:
    """Its address with where missed rows are."""
    http = [url for url in serving.urls if url.scheme == "synapse+http"]
    return f"synapse://127.0.0.1:{serving.port}" + "".join(
        f"?http=127.0.0.1:{url.port}" for url in http
    )


@pytest.mark.parametrize("options", ["", "?dialect=D3&http=127.0.0.1:0"])
def test_follower_goes_on_behind_what_it_committed(tmp_path: Path, options: str) -> None:
    """Rows committed do not come again, rows that were not do, rows of the time between come."""
    with listening(tmp_path / "data", options) as serving:
        make(serving)
        tokens = tmp_path / "tokens.json"

        async def scenario() -> None:
            insert = serving.log.insert
            async with Follower(address(serving), tokens=tokens, start="all") as follower:
                insert("orders", [1])
                assert await take(follower, 1) == [1]
                with serving.log.transaction() as tx:
                    tx.insert("orders", [2])
                    tx.insert("orders", [3])
                assert await take(follower, 2) == [2, 3]
                await follower.commit()
                insert("orders", [4])
                assert await take(follower, 1) == [4]
            insert("orders", [5])
            async with Follower(address(serving), tokens=tokens) as follower:
                found = await take(follower, 1)
                while 5 not in found:
                    found += await take(follower, 1)
                # D1: a unit's token may still be used, so the last one comes twice
                assert found == ([4, 5] if "D3" in options else [2, 3, 4, 5])
                insert("orders", [6])
                assert await take(follower, 1) == [6]

        run(scenario)
        assert json.loads(tokens.read_text())["server"] == "logweir"


@pytest.mark.parametrize("options", ["", "?dialect=D3&http=127.0.0.1:0"])
def test_stream_that_there_is_only_later_is_followed_from_its_first_row(
    tmp_path: Path, options: str
) -> None:
    """It was not there when all streams were asked for, and nobody connects again."""
    with listening(tmp_path / "data", options) as serving:
        serving.log.create_space("earlier", [("id", "unsigned")], primary=["id"])

        async def scenario() -> None:
            async with Follower(address(serving), start="all") as follower:
                serving.log.insert("earlier", [0])
                async for change in follower:
                    if isinstance(change, Rows):
                        break
                make(serving)
                for number in range(3):
                    serving.log.insert("orders", [number])
                assert await take(follower, 3) == [0, 1, 2]

        run(scenario)


def test_follower_comes_back_when_the_server_does(tmp_path: Path) -> None:
    """The server is away for a while; nothing is lost, and the cause can be seen."""

    async def scenario() -> None:
        with listening(tmp_path / "data") as first:
            make(first)
            port = first.port
            follower = Follower(
                f"synapse://127.0.0.1:{port}", start="all", streams=["orders"], timing=FAST
            )
            await follower.__aenter__()
            first.log.insert("orders", [1])
            assert await take(follower, 1) == [1]
        again = Serving(tmp_path / "data", listen=[parse_listen_url(f"synapse://:{port}")])
        with again:
            again.log.insert("orders", [2])
            found = await take(follower, 1)
            while 2 not in found:
                found += await take(follower, 1)
            assert found in ([2], [1, 2])
            assert follower.last_error
            await follower.close()

    run(scenario)


def test_rows_that_cannot_be_had_are_told(tmp_path: Path) -> None:
    """D3 without an address for missed rows: a `Missing` in their place."""
    with listening(tmp_path / "data", "?dialect=D3") as serving:
        make(serving)
        tokens = tmp_path / "tokens.json"

        async def scenario() -> None:
            async with Follower(address(serving), tokens=tokens, start="all") as follower:
                async for change in follower:
                    assert isinstance(change, Missing)
                    assert (change.stream, change.after) == ("orders", 0)
                    assert "http=" in change.reason
                    break
                serving.log.insert("orders", [1])
                assert await take(follower, 1) == [1]
                assert follower.tokens["orders", "logweir"] == serving.log.vclock.signature

        run(scenario)


def test_other_server_is_refused(tmp_path: Path) -> None:
    """Tokens of one server mean nothing at another."""
    with listening(tmp_path / "data", "?server_name=two.test") as serving:
        tokens = tmp_path / "tokens.json"
        tokens.write_text('{"server": "one.test", "streams": []}')

        async def scenario() -> None:
            async with Follower(address(serving), tokens=tokens, timing=FAST) as follower:
                with pytest.raises(SourceStopped, match=r"two\.test"):
                    await anext(follower)

        run(scenario)


@pytest.mark.parametrize("text", ["", "[]", '{"server": 1, "streams": [[1]]}', "\x00"])
def test_file_that_is_none_of_ours_is_refused(tmp_path: Path, text: str) -> None:
    """With its name, and what to do."""
    tokens = tmp_path / "tokens.json"
    tokens.write_text(text)

    async def scenario() -> None:
        with pytest.raises(ConfigError, match=r"tokens\.json"):
            await Follower("synapse://127.0.0.1:9", tokens=tokens).__aenter__()

    run(scenario)


def test_wrong_arguments_are_refused() -> None:
    """Before anything is connected."""
    for url, more in (
        ("tank://127.0.0.1:1", {}),
        ("synapse://127.0.0.1:1?dialect=D4", {}),
        ("synapse://127.0.0.1:1", {"start": "then"}),
    ):
        with pytest.raises(ConfigError):
            Follower(url, **more)  # type: ignore[arg-type]

    async def scenario() -> None:
        with pytest.raises(ConfigError):
            await Follower("synapse://127.0.0.1:1").commit()

    run(scenario)


def test_acknowledged_log_is_kept_until_it_is_given_up(tmp_path: Path) -> None:
    """FEDERATION_ACK of a named follower keeps the files behind it, where `keep` is on."""
    options = {"checkpoint_count": 1}
    with listening(tmp_path / "data", "?keep=1", open_options=options) as serving:
        make(serving)
        serving.log.insert("orders", [1])
        token = serving.log.vclock.signature

        def keepers() -> dict[str, Any]:
            found: dict[str, Any] = serving.log.status()["followers"]
            return found

        with Client(serving.port) as client:
            client.send(f"FEDERATION_ACK {token}")  # nobody: it has no name
            client.send("NAME shop", f"FEDERATION_ACK {token}")
            serving.wait(lambda: "synapse:shop" in keepers())
            assert set(keepers()) == {"synapse:shop"}
        for number in range(2, 6):
            serving.log.insert("orders", [number])
            serving.log.snapshot()
        assert serving.log.oldest_position.signature <= token
        with Client(serving.port) as client:
            client.send(f"REPLICATE orders {token}")
            assert len(client.until("POSITION")) == 5
            client.send("NAME shop", "FEDERATION_ACK -1")
            serving.wait(lambda: not keepers())
        serving.log.insert("orders", [9])
        serving.log.snapshot()
        assert serving.log.oldest_position.signature > token


def test_gaps_are_in_the_status(tmp_path: Path) -> None:
    """What was lost is told with the source, the places and the reason."""
    from logweir.replication.synapse.follow.ingest import Intake
    from logweir.replication.synapse.wire.units import Gap

    with listening(tmp_path / "data") as serving:
        Intake(serving.log, "x.test", clock=lambda: 2.0).store(
            [Gap("typing", "master", 4, 9, "no address")]
        )
        assert serving.server.status()["gaps"] == [
            {
                "source": "synapse:x.test",
                "stream": "typing",
                "instance": "master",
                "start": 5,
                "end": 9,
                "reason": "no address",
                "time_ms": 2000,
            }
        ]
