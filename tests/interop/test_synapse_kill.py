"""SIGKILL of our process while it follows a homeserver: every unit is stored once, whole."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import logweir
from interop.test_synapse_source import Homeserver, http_of, serving
from logweir.replication.stream import positions
from logweir.store import Log
from logweir.wal.mp import unpack
from logweir.wal.xrow import Key

pytestmark = [pytest.mark.kill, pytest.mark.slow]

UNITS = 2000
TURNS = 2


def rows_of(token: int) -> list[list[int]]:
    """The rows of a unit: one, or several as a batch."""
    return [[token, place] for place in range(1 + token % 4)]


async def unit_by_unit(home: Homeserver, first: int, last: int) -> None:
    """Send units, giving the loop's other tasks a turn now and then."""
    for token in range(first, last):
        home.add("events", token, *rows_of(token))
        if token % 50 == 0:
            for writer in tuple(home.writers):
                await writer.drain()
            await asyncio.to_thread(int)  # the other process is stirred meanwhile


def stored_tokens(log: Log) -> list[int]:
    """The token of each transaction of the log, in order; a unit that is not whole fails here."""
    space = log.schema.space("synapse_events").id
    found = []
    for transaction in log.rows():
        rows = [row for row in transaction.rows if row.space_id == space]
        if rows:
            tuples = [unpack(row.body)[Key.TUPLE] for row in rows]
            tokens = {one[1] for one in tuples}
            assert len(tokens) == 1, "one transaction holds one unit"
            (token,) = tokens
            assert [one[2] for one in tuples] == list(range(1 + token % 4))
            found.append(token)
    return found


@pytest.mark.parametrize("dialect", ["D1", "D3"])
def test_killed_in_mid_batch_everything_is_stored_once(tmp_path: Path, dialect: str) -> None:
    """Kills at chance places; then the log holds each unit once and the position is right."""
    folder = tmp_path / "data"
    program = [sys.executable, "-P", "-c", "from logweir.tools.cli.main import run; run()"]

    async def scenario() -> None:
        home = Homeserver(dialect)
        with http_of(home) as address:
            async with serving(home):
                more = "" if dialect == "D1" else f"&http={address}"
                url = f"synapse://127.0.0.1:{home.port}?dialect={dialect}&start=all{more}"
                each = UNITS // TURNS
                for turn in range(TURNS):
                    home.arrived.clear()
                    ours = await asyncio.create_subprocess_exec(
                        *program, "follow", url, str(folder), stderr=subprocess.DEVNULL
                    )
                    await home.arrived.wait()
                    first = 1 + turn * each
                    await unit_by_unit(home, first, first + each - 20 * turn)
                    ours.kill()
                    await ours.wait()
                    home.drop()
                    await unit_by_unit(home, first + each - 20 * turn, first + each)
                last = await asyncio.create_subprocess_exec(
                    *program, "follow", "--once", url, str(folder), stderr=subprocess.DEVNULL
                )
                async with asyncio.timeout(60):
                    assert await last.wait() == 0

    asyncio.run(scenario())
    with logweir.open(folder) as log:
        expected = [
            ("master", token, place, row)
            for token in range(1, UNITS + 1)
            for place, row in enumerate(rows_of(token))
        ]
        assert log.select("synapse_events") == expected
        assert stored_tokens(log) == list(range(1, UNITS + 1))
        (position,) = log.select(
            positions.POSITION_SPACE, ["synapse:logweir.test", "events", "master"]
        )
        assert position[3]["last"] == UNITS
        assert not positions.gaps(log)
