"""Typed changes: the rows of one space of a scan, its fields as columns (`jobs.typed`).

====================  ====================================================================
column                holds
====================  ====================================================================
op                    INSERT, REPLACE, UPDATE, DELETE, UPSERT: `type_name` of the scan
replica_id, lsn       place of the row
time                  its time
the space's fields    of the tuple; of updates and deletes those of the key only
_rest                 JSON of what these could not hold
_ops                  JSON of the operations of updates and upserts
====================  ====================================================================

The definition is that of the end of the log. Once it was looked up, the option `space` has it as
text, so that planner, workers and a stream that is started again read by the same one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from logweir.errors import ConfigError
from logweir.pipeline.columns import DEFAULT_COLUMNS, arrow_schema, check_columns
from logweir.pipeline.jobs.typed import TypedColumns
from logweir.pipeline.options import ORIGIN, ScanOptions
from logweir.store.schema.definition import FieldDef, IndexDef, IndexType, PartDef, SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.named import REST

if TYPE_CHECKING:
    from logweir.pipeline.arrow import Taken

_FRONT: Final = {"op": "STRING", "replica_id": "INT", "lsn": "BIGINT", "time": "TIMESTAMP"}
_OPS: Final = "_ops"


def definition_text(space: SpaceDef) -> str:
    """What typed columns need of a definition, for the option `space`."""
    parts = space.primary.parts if space.primary is not None else ()
    return json.dumps(
        {
            "id": space.id,
            "name": space.name,
            "fields": [[one.name, one.type.label, one.is_nullable] for one in space.fields],
            "key": [[one.field_no, one.type.label, one.is_nullable, one.path] for one in parts],
        }
    )


def space_of_text(text: str) -> SpaceDef:
    """The reverse of `definition_text`. Raises `ConfigError`."""
    try:
        told = json.loads(text)
        fields = [
            FieldDef(name, FieldType[kind.upper()], null) for name, kind, null in told["fields"]
        ]
        parts = [
            PartDef(number, FieldType[kind.upper()], null, path=path)
            for number, kind, null, path in told["key"]
        ]
        space = SpaceDef(int(told["id"]), 1, str(told["name"]), fields=tuple(fields))
        primary = IndexDef(space.id, 0, "primary", IndexType.TREE, tuple(parts))
        return space.with_indexes((primary,)) if parts else space
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            "space",
            f"{text[:80]!r} is no definition: {type(error).__name__} {error}",
            origin=ORIGIN,
            hint="give the name or the id of a space",
        ) from error


def typed_rows(options: ScanOptions) -> TypedRows:
    """How rows of the space of resolved options become columns. Raises `ConfigError`."""
    wanted = () if options.columns == DEFAULT_COLUMNS else options.columns
    return _typed_rows(options.space, options.integers, options.decimals, wanted)


@lru_cache(maxsize=8)
def _typed_rows(
    definition: str, integers: str, decimals: str, wanted: tuple[str, ...]
) -> TypedRows:
    columns = TypedColumns(space_of_text(definition), integers, decimals, (*_FRONT, _OPS))
    return TypedRows(columns, wanted)


class TypedRows:
    """The columns of one space's rows. `columns`: of its fields; `wanted`: names, empty for all;
    `types`: of all that there are, as Spark's DDL names them. Raises `ConfigError` for a name that
    is none."""

    def __init__(self, columns: TypedColumns, wanted: tuple[str, ...] = ()) -> None:
        self._columns = columns
        self.types: Mapping[str, str] = {**_FRONT, **self._columns.types, _OPS: "STRING"}
        self.names = check_columns(wanted or tuple(self.types), known=self.types)
        self.schema = arrow_schema(self.names, self.types)

    def told(self) -> dict[str, object]:
        """How each column is made, for the reader in Java (`told`); nothing where it cannot."""
        kinds, key = self._columns.told()
        if max(key, default=-1) >= len(kinds):
            return {"columns": []}
        fields = self._columns.columns
        made = {
            **{"op": "type_name", _OPS: "ops_json", REST: "rest"},
            **{name: name for name in ("replica_id", "lsn", "time")},
            **{one.name: f"field {number} {one.kind}" for number, one in enumerate(fields)},
        }
        return {"columns": [[name, made[name]] for name in self.names], "fields": kinds, "key": key}

    def arrays(self, rows: Taken) -> list[pa.Array]:
        """The columns of some rows of a group. Raises `DecodeError` for a malformed tuple."""
        made: dict[str, Callable[[], pa.Array]] = {
            "op": rows.type_name,
            **{name: partial(rows.array, name) for name in ("replica_id", "lsn", "time")},
            _OPS: partial(rows.json, "ops"),
        }
        fields = [name for name in self.names if name not in made]
        cells = self._columns.of_spans(rows.data, rows.span("tuple"), rows.span("key"), only=fields)
        found = dict(zip(fields, cells, strict=True))
        return [found[name] if name in found else made[name]() for name in self.names]
