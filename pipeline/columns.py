"""The columns of the Spark format `logweir`: names, types, and what each holds.

All may be null. The first fourteen are what a reader gets that names no columns; the others appear
where `columns=` or a user's schema asks for them.

====================  ===========  ===========================================================
column                type         holds
====================  ===========  ===========================================================
file                  STRING       name of the file, without its folder; of a peer: its address
block_offset          BIGINT       where the row's block begins in the file, in bytes
row_in_block          INT          number of the row in its block, from 0
type                  SMALLINT     2 insert, 3 replace, 4 update, 5 delete, 9 upsert, 12 nop
replica_id            INT          0 in snapshots and for rows that are not replicated
lsn, tsn              BIGINT       place of the row, and of its transaction, among those of
                                   its replica; in a snapshot a row number from 0
ts                    DOUBLE       seconds since the epoch
flags                 SMALLINT     bit 0: last row of its transaction, or the only one
space_id              BIGINT       null where the row names none
index_base            SMALLINT     what field numbers in `ops` count from
key, tuple, ops       BINARY       MsgPack as stored; `ops` are the operations of update and
                                   upsert, whatever body key they stand under
kind                  STRING       `xlog` or `snap`
file_seq              INT          number of the file in the order of reading
group_id              INT          1: replica-local
index_id              INT          of an update or delete that found nothing by that index
time                  TIMESTAMP    `ts`, to the microsecond; null where none can hold it
type_name             STRING       `INSERT` …; the number where it has no name
size                  BIGINT       bytes of key, tuple and ops
header, body          BINARY       the row's two MsgPack maps: nothing is ever lost
key_json, tuple_json  STRING       the same as JSON (`wal.render` says how)
ops_json              STRING
crc_ok                BOOLEAN      false: no row but a damaged place (`on_error=report`)
damage                STRING       what is wrong there
====================  ===========  ===========================================================

A number that a column cannot hold (a type over 32767) is an error that names the row: it is never
cut. `header` and `body` carry it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from logweir.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final[Mapping[str, str]] = {
    "file": "STRING",
    "block_offset": "BIGINT",
    "row_in_block": "INT",
    "type": "SMALLINT",
    "replica_id": "INT",
    "lsn": "BIGINT",
    "tsn": "BIGINT",
    "ts": "DOUBLE",
    "flags": "SMALLINT",
    "space_id": "BIGINT",
    "index_base": "SMALLINT",
    "key": "BINARY",
    "tuple": "BINARY",
    "ops": "BINARY",
    "kind": "STRING",
    "file_seq": "INT",
    "group_id": "INT",
    "index_id": "INT",
    "time": "TIMESTAMP",
    "type_name": "STRING",
    "size": "BIGINT",
    "header": "BINARY",
    "body": "BINARY",
    "key_json": "STRING",
    "tuple_json": "STRING",
    "ops_json": "STRING",
    "crc_ok": "BOOLEAN",
    "damage": "STRING",
}
"""Type of each column, as Spark's DDL names it."""

TOPIC_COLUMNS: Final = (
    "`topic` STRING, `partition` INT, `number` DECIMAL(20,0), `time_ms` DECIMAL(20,0), "
    "`key` BINARY, `content` BINARY"
)
"""A number is of 64 bits without sign, which no integer of Spark holds."""

DEFAULT_COLUMNS: Final = tuple(COLUMNS)[:14]


def check_columns(
    names: Sequence[str], *, origin: str = "option", known: Mapping[str, str] = COLUMNS
) -> tuple[str, ...]:
    """The names, if each is one of the `known` columns and stands once. Raises `ConfigError`."""
    for name in names:
        if name not in known:
            raise ConfigError(
                "columns",
                f"{name!r} is no column.",
                origin=origin,
                hint="columns are " + ", ".join(known),
            )
    if not names or len(set(names)) != len(names):
        raise ConfigError(
            "columns", f"{', '.join(names)!r} names none, or one twice", origin=origin
        )
    return tuple(names)


def ddl(names: Sequence[str], types: Mapping[str, str] = COLUMNS) -> str:
    """The schema of these columns as Spark reads it."""
    return ", ".join(f"{quoted(name)} {types[name]}" for name in names)


def quoted(name: str) -> str:
    """A column's name as it stands in expressions of Spark."""
    return f"`{name.replace('`', '``')}`"


def arrow_schema(names: Sequence[str], types: Mapping[str, str] = COLUMNS) -> pa.Schema:
    """The schema of these columns as Spark wants it in batches: every field may be null."""
    import pyarrow as pa

    made = {
        "STRING": pa.string(),
        "BIGINT": pa.int64(),
        "INT": pa.int32(),
        "SMALLINT": pa.int16(),
        "DOUBLE": pa.float64(),
        "BINARY": pa.binary(),
        "BOOLEAN": pa.bool_(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    }

    def kind(ddl: str) -> pa.DataType:
        if ddl.startswith("DECIMAL("):
            return pa.decimal128(*map(int, ddl[8:-1].split(",")))
        return made[ddl]

    return pa.schema([pa.field(name, kind(types[name])) for name in names])


def widened(
    batch: pa.RecordBatch, names: Sequence[str], types: Mapping[str, str]
) -> pa.RecordBatch:
    """The batch with all of these columns; those that it lacks are null."""
    import pyarrow as pa

    schema = arrow_schema(names, types)
    has = set(batch.schema.names)
    made = [
        batch.column(one.name) if one.name in has else pa.nulls(batch.num_rows, one.type)
        for one in schema
    ]
    return pa.RecordBatch.from_arrays(made, schema=schema)
