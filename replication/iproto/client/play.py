"""Replaying rows of log files and snapshots into a running server.

Each row is sent as the request that it was: its body as it stands in the file. So the order is kept
(one connection, answers in the order of effects), but rows become changes of the server's own, with
its replica id, and every row is a transaction by itself. Rows of system spaces and of replica-local
ones are left out unless asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logweir.errors import CorruptBlock, RequestError
from logweir.replication.iproto.client import Client, open_client
from logweir.replication.iproto.wire.codec import Answer
from logweir.replication.urls import Url
from logweir.wal.damage import TAIL_KINDS, Damage
from logweir.wal.reader import WalReader
from logweir.wal.xrow import RowType

_IN_FLIGHT: Final = 1000
_USER_SPACES: Final = 512
_PLAYED: Final = frozenset(
    (RowType.INSERT, RowType.REPLACE, RowType.UPDATE, RowType.DELETE, RowType.UPSERT)
)


@dataclass(slots=True)
class Played:
    """What was done. `sent`: rows that the server took; `left_out`: of spaces not asked for."""

    sent: int = 0
    left_out: int = 0


async def play(
    paths: Iterable[Path],
    url: Url,
    *,
    system: bool = False,
    local: bool = False,
    progress: Callable[[int], None] = lambda done_bytes: None,
) -> Played:
    """Send the rows of `paths`, in their order, to the server at `url`.

    `system`: rows of system spaces too; `local`: replica-local rows too. Stops at the first row
    that is refused: raises its `RequestError` with the row's place in `hint`. Raises
    `CorruptBlock` at damage, `Unreachable`.
    """
    played = Played()
    before = 0

    def advance(offset: int) -> None:
        progress(before + offset)

    async with open_client(url) as client:
        for path in paths:
            before += await _play_file(
                path, client, played, system=system, local=local, progress=advance
            )
    return played


async def _play_file(
    path: Path,
    client: Client,
    played: Played,
    *,
    system: bool,
    local: bool,
    progress: Callable[[int], None],
) -> int:
    """Send one file. Returns its size in bytes."""
    with WalReader(path) as reader:
        for block in reader.blocks():
            if isinstance(block, Damage):
                if block.kind in TAIL_KINDS:
                    break
                raise CorruptBlock(
                    block.message, path=block.file, offset=block.offset, hint=block.hint
                )
            columns = block.columns
            waiting: list[tuple[int, asyncio.Future[Answer]]] = []
            for row in range(len(columns)):
                kind = columns.type[row]
                if (
                    kind not in _PLAYED
                    or (columns.space_id[row] < _USER_SPACES and not system)
                    or (columns.group_id[row] and not local)
                ):
                    played.left_out += 1
                    continue
                waiting.append((row, client.send(kind, columns.body_bytes(row))))
                if len(waiting) >= _IN_FLIGHT:
                    await _settle(client, waiting, str(path), block.offset, played)
                    waiting = []
            await _settle(client, waiting, str(path), block.offset, played)
            progress(block.end)
        return reader.size


async def _settle(
    client: Client,
    waiting: list[tuple[int, asyncio.Future[Answer]]],
    path: str,
    offset: int,
    played: Played,
) -> None:
    client.flush()
    for row, future in waiting:
        answer = await future
        if answer.is_error:
            error = answer.error()
            raise RequestError(
                error.code,
                f"the server refused row {row} of the block at byte {offset} of {path}: "
                f"{error.message} (error {int(error.code)}), after {played.sent} rows.",
                hint="the spaces must be there and hold what the rows need",
            )
        played.sent += 1
