"""Worlds of `sim.copystores` over Synapse's lines (D1): the source changes a space, each
transaction of which is a unit of its stream; each other store follows that, or one that follows it,
which serves the same tokens. What a store shows of the stream is the beginning of the source's.
"""

from __future__ import annotations

import random
from typing import Any, Final

from sim.copystores import FSYNC, SLOW, AppendNode, CopyStores

import logweir
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.urls import Url
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

__all__ = ["FSYNC", "SLOW", "StreamStores"]

_STREAM: Final = "orders"
_FORMAT: Final = [("id", "unsigned"), ("token", "unsigned"), ("text", "string")]
_KEYS: Final = 8
_OPS: Final = {RowType.INSERT: "insert", RowType.REPLACE: "replace", RowType.DELETE: "delete"}
Unit = tuple[int, list[Any]]
"""A token, and its rows."""


class StreamNode(AppendNode):
    """One of them. `read_to`: how far the source has read its log."""

    seen: dict[str, list[Unit]]

    def __init__(self, world: StreamStores, *given: Any) -> None:
        super().__init__(world, *given)
        self.read_to = VClock()

    def _listened(self) -> list[Url]:
        return [parse_listen_url(f"synapse://127.0.0.1:{self.port}")]

    def _address(self, port: int) -> Url:
        return parse_url(f"synapse://127.0.0.1:{port}?dialect=D1&start=all&streams={_STREAM}")

    def _take_up(self, log: logweir.Log) -> None:
        super()._take_up(log)
        if not self.number:
            log.retain("observer", VClock())  # whoever comes late is to have all of it

    def _found(self, log: logweir.Log) -> dict[str, list[Unit]]:
        if not self.number:
            units = [*self.seen.get(_STREAM, ()), *self._units(log)]
        elif log.schema.get(f"synapse_{_STREAM}") is None:
            return {}
        else:
            units = []
            for _, token, place, row in log.select(f"synapse_{_STREAM}"):
                if not place:
                    units.append((token, []))
                units[-1][1].append(row)
        return {_STREAM: units}

    def _units(self, log: logweir.Log) -> list[Unit]:
        """What the source has written since it looked last."""
        found: list[Unit] = []
        for made in log.rows(self.read_to):
            space, rows = log.schema.get(_STREAM), list[Any]()
            for row in made.rows:
                self.read_to = self.read_to.with_lsn(row.replica_id, row.lsn)
                body = row.decoded() if row.body else {}
                if space is not None and body.get("space_id") == space.id:
                    there = body.get("tuple")
                    key = body["key"] if there is None else there[:1]
                    rows.append([_OPS[RowType(row.type)], key, there])
            if rows:
                found.append((self.read_to.without_local().signature, rows))
        return found

    def has(self, put: list[Any]) -> bool:
        return any(put in rows for _, rows in self.seen[_STREAM])

    def _change(self, log: logweir.Log, dice: random.Random) -> None:
        """Make the space, or change it."""
        if log.schema.get(_STREAM) is None:
            log.create_space(
                _STREAM, [("id", "unsigned"), ("token", "unsigned"), ("text", "string")]
            )
            return
        made: list[list[Any]] = []
        with log.transaction() as tx:
            for key in dice.sample(range(_KEYS), dice.choice((1, 1, 3))):  # no row twice in a unit
                self.world.tokens += 1
                if dice.random() < 0.2:
                    tx.delete(_STREAM, [key])
                    continue
                text = "x" * dice.choice((1, 40, 900, 5000))
                tx.replace(_STREAM, [key, self.world.tokens, text])
                made.append(["replace", [key], [key, self.world.tokens, text]])
        self.world.put += made


class StreamStores(CopyStores):
    """See the module."""

    node_type = StreamNode
