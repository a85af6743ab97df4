"""Random spaces and statements, many of them wrong, for engines that must do the same with them."""

from __future__ import annotations

import random
import struct
import uuid
from decimal import Decimal

from logweir.errors import RequestError
from logweir.store.engine.request import Request
from logweir.store.schema.definition import (
    CollationDef,
    FieldDef,
    IndexDef,
    IndexType,
    PartDef,
    SpaceDef,
)
from logweir.store.schema.fieldtype import FieldType
from logweir.wal.mp import encode_array_header, pack
from logweir.wal.xrow import RowType

_KEY_TYPES = (
    *(FieldType.UNSIGNED,) * 4,
    *(FieldType.STRING,) * 3,
    *(FieldType.INTEGER,) * 2,
    *(FieldType.NUMBER, FieldType.SCALAR, FieldType.BOOLEAN, FieldType.VARBINARY),
    *(FieldType.UUID, FieldType.DOUBLE),
)
_TYPES = (*_KEY_TYPES, FieldType.ANY, FieldType.ANY, FieldType.ARRAY, FieldType.MAP)
_UUIDS = [uuid.UUID(int=number) for number in (1, 2, 2**127)]
_WORDS = ["", "a", "b", "ab", "a\0", "b" * 40, "é"]
_FLOATS = [0.0, -0.0, 1.0, 1.5, -2.25, 0.1, 1e300, float("inf"), float("nan"), 2.0**60]
_WHOLES = [0, 1, 2, 3, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
_NEGATIVES = [-1, -2, -32, -33, -128, -129, -(2**15), -(2**15) - 1, -(2**31), -(2**63)]
_EDGES = [1, -1, -31, -32, -127, -128, 2**15 - 1, -(2**15) + 1, -(2**31), -(2**63), 2**64 - 1]
_UNICODE = CollationDef(1, "unicode", kind="ICU")


class Dice(random.Random):
    """Makes spaces, and statements on them whose keys meet often."""

    odd = 0.04
    """How often a value is of a wrong kind; also how often bytes are damaged."""

    has_rare = True
    """Whether there are things that only the reference engine knows."""

    # --- spaces -----------------------------------------------------------------------------------
    def space(self, space_id: int) -> SpaceDef:
        """A space with one to four indexes."""
        while True:
            try:
                return self._space(space_id)
            except RequestError:
                continue  # parts that contradict one another

    def _space(self, space_id: int) -> SpaceDef:
        types = [self.choice(_KEY_TYPES) for _ in range(self.randrange(1, 3))]
        types += [self.choice(_TYPES) for _ in range(self.randrange(4))]
        named = self.randrange(len(types) + 1)
        fields = tuple(
            FieldDef(f"f{number}", kind, number > 1 and self.random() < 0.4)
            for number, kind in enumerate(types[:named])
        )
        usable = [number for number, kind in enumerate(types) if kind in _KEY_TYPES]
        own = self.sample(usable, self.randrange(1, min(len(usable), 2) + 1))
        indexes = [self._index(space_id, 0, types, fields, own)]
        for number in range(1, self.choice((1, 1, 2, 3, 4))):
            parts = self.sample(usable, self.randrange(1, min(len(usable), 3) + 1))
            indexes.append(self._index(space_id, number, types, fields, parts))
        count = len(types) if named and self.random() < 0.1 else 0
        made = SpaceDef(space_id, 1, f"s{space_id}", field_count=count, fields=fields)
        return made.with_indexes(tuple(indexes))

    def _index(
        self,
        space_id: int,
        number: int,
        types: list[FieldType],
        fields: tuple[FieldDef, ...],
        places: list[int],
    ) -> IndexDef:
        parts = []
        for place in places:
            nullable = number > 0 and self.random() < 0.5
            if place < len(fields) and fields[place].is_nullable and number:
                nullable = True
            kind = types[place]
            rule = None
            if kind is FieldType.STRING and self.has_rare and self.random() < 0.05:
                rule = _UNICODE
            parts.append(PartDef(place, kind, nullable, rule))
        kind = IndexType.TREE
        unique = number == 0 or self.random() < 0.5
        if unique and self.random() < 0.15 and not any(part.is_nullable for part in parts):
            kind = IndexType.HASH
        return IndexDef(space_id, number, f"i{number}", kind, tuple(parts), unique)

    # --- values -----------------------------------------------------------------------------------
    def value(self, kind: FieldType) -> bytes:
        """A value in MsgPack, mostly one that the type admits."""
        if self.random() < self.odd:
            kind = self.choice(list(FieldType))
        match kind:
            case FieldType.UNSIGNED:
                return self.whole(self.choice(_WHOLES) if self.random() < 0.2 else self.below(6))
            case FieldType.STRING:
                return pack(self.choice(_WORDS))
            case FieldType.INTEGER:
                if self.random() < 0.2:
                    return self.whole(self.choice(_NEGATIVES + _WHOLES))
                return self.whole(self.randrange(-3, 4))
            case FieldType.BOOLEAN:
                return pack(self.random() < 0.5)
            case FieldType.VARBINARY:
                return pack(self.choice(_WORDS).encode())
            case FieldType.UUID:
                return pack(self.choice(_UUIDS))
            case FieldType.DOUBLE:
                return pack(self.choice(_FLOATS))
            case FieldType.DECIMAL if self.has_rare:
                return pack(Decimal(self.choice(["1", "1.5", "-2", "1e30"])))
            case FieldType.ARRAY:
                return pack([1] * self.below(3))
            case FieldType.MAP:
                return pack({"a": 1})
            case FieldType.NUMBER | FieldType.SCALAR | FieldType.ANY:
                return self.any_value(kind)
        return b"\xc0"

    def below(self, end: int) -> int:
        """A number from 0 on."""
        return self.randrange(end)

    def any_value(self, kind: FieldType) -> bytes:
        """A value of one of many types."""
        if self.random() < 0.3 and kind is FieldType.NUMBER:
            return self.whole(self.choice(_EDGES))
        if self.random() < 0.02 and self.has_rare:
            return self.choice((b"\xd4\xff\x00", b"\xd4\x05\x00", b"\xc7\x02\x80ab"))
        if self.random() < 0.1:
            return b"\xca" + struct.pack(">f", self.choice([0.0, 1.5, 0.1, -2.0]))
        number = (FieldType.INTEGER, FieldType.UNSIGNED, FieldType.DOUBLE)
        other = (FieldType.STRING, FieldType.BOOLEAN, FieldType.VARBINARY)
        return self.value(self.choice(number if kind is FieldType.NUMBER else number + other))

    def whole(self, value: int) -> bytes:
        """An integer, now and then in a longer form than needed."""
        if self.random() < 0.9:
            return pack(value)
        width = self.choice((1, 2, 4, 8))
        try:
            raw = value.to_bytes(width, "big", signed=self.random() < 0.5 or value < 0)
        except OverflowError:
            return pack(value)
        signed = value < 0 or int.from_bytes(raw, "big", signed=True) == value
        first = {1: 0xCC, 2: 0xCD, 4: 0xCE, 8: 0xCF}[width]
        return bytes((first + 4 if (signed and self.random() < 0.5) or value < 0 else first,)) + raw

    def array(self, items: list[bytes]) -> bytes:
        """An array of these values, now and then with a longer header than needed."""
        count = len(items)
        head = encode_array_header(count)
        if self.random() < 0.02:
            head = b"\xdc" + count.to_bytes(2, "big")
        return self.damaged(head + b"".join(items))

    def damaged(self, data: bytes) -> bytes:
        """The same bytes, or now and then others."""
        if self.random() > self.odd / 2 or not data:
            return data
        at = self.randrange(len(data))
        match self.randrange(4):
            case 0:
                return data[: at or 1]
            case 1:
                return data[:at] + bytes((self.randrange(256),)) + data[at + 1 :]
            case 2:
                return data[:at] + self.randbytes(self.randrange(4)) + data[at:]
        return data[:at] + b"\xdd\xff\xff\xff\xff"[: self.randrange(6)] + data[at:]

    # --- statements -------------------------------------------------------------------------------
    def kinds(self, space: SpaceDef) -> list[FieldType]:
        """The types of the fields that the format of a space tells."""
        return [node.type for node in space.format.top]

    def row(self, space: SpaceDef) -> bytes:
        """A tuple."""
        items = []
        for node in space.format.top:
            nil = node.is_nullable and self.random() < 0.2
            items.append(b"\xc0" if nil else self.value(node.type))
        if self.random() < 0.1:
            items = items[: self.randrange(len(items) + 1)]
        while self.random() < 0.3:
            items.append(self.value(FieldType.ANY))
        return self.array(items)

    def key(self, index: IndexDef, *, partial: float = 0.03) -> bytes:
        """A key of a request."""
        items = []
        for part in index.parts:
            nil = part.is_nullable and self.random() < 0.1
            items.append(b"\xc0" if nil else self.value(part.type))
        if self.random() < partial:
            items = items[: self.randrange(len(items) + 1)]
        if self.random() < 0.01:
            items.append(b"\x01")
        return self.array(items)

    def operation(self, space: SpaceDef, base: int) -> bytes:
        """One operation of an UPDATE or UPSERT."""
        sign = self.choice("===+++--&|^!#:" if self.random() > 0.01 else "?x")
        count = len(space.format.top)
        place = self.randrange(-count - 1, count + 3)
        field = self.whole(place + (base if place >= 0 else 0))
        if space.fields and self.random() < 0.2:
            field = pack(f"f{self.randrange(len(space.fields))}")
        elif self.random() < 0.02:
            odd = ["[1]", "nobody", 1.5, None, 2**40]
            # Tarantool 2.6 ends where a path leads into what another operation has changed.
            field = pack(self.choice([*odd, "f0.a"] if self.has_rare else odd))
        wanted = FieldType.ANY
        if 0 <= place < count:
            wanted = space.format.top[place].type
        if sign in "=!":
            arguments = [self.value(wanted)]
        elif sign == "#":
            arguments = [self.whole(self.choice((1, 1, 2, 0, 9)))]
        elif sign in "+-":
            arguments = [self.any_value(FieldType.NUMBER)]
        elif sign in "&|^":
            arguments = [self.value(FieldType.UNSIGNED)]
        else:
            at, cut = self.randrange(-4, 5), self.randrange(-3, 4)
            arguments = [self.whole(at), self.whole(cut), self.value(FieldType.STRING)]
        if self.random() < 0.01:
            arguments.append(b"\x01")
        return self.array([pack(sign), field, *arguments])

    def operations(self, space: SpaceDef, base: int) -> bytes:
        """The operations of an UPDATE or UPSERT."""
        count = self.choice((1, 1, 1, 2, 2, 3, 0))
        return self.array([self.operation(space, base) for _ in range(count)])

    def statement(self, space: SpaceDef) -> Request:
        """A statement on a space."""
        kind = self.choice(
            (
                *(RowType.INSERT,) * 3,
                *(RowType.REPLACE,) * 3,
                *(RowType.UPDATE,) * 4,
                *(RowType.UPSERT,) * 3,
                *(RowType.DELETE,) * 2,
            )
        )
        if kind in (RowType.INSERT, RowType.REPLACE):
            return Request(kind, space.id, tuple=self.row(space))
        base = int(self.random() < 0.3)
        ops = self.operations(space, base)
        if kind is RowType.UPSERT:
            return Request(kind, space.id, tuple=self.row(space), ops=ops, index_base=base)
        index = self.choice(space.indexes) if self.random() < 0.3 else space.indexes[0]
        return Request(
            kind,
            space.id,
            key=self.key(index),
            ops=ops if kind is RowType.UPDATE else None,
            index_id=index.id if self.random() > 0.005 else 77,
            index_base=base if kind is RowType.UPDATE else 0,
        )


class TarantoolDice(Dice):
    """Makes only what logweir means to do exactly as Tarantool 2.6."""

    has_rare = False

    def whole(self, value: int) -> bytes:
        """An integer in its shortest form."""
        return pack(value)

    def damaged(self, data: bytes) -> bytes:
        """The same bytes."""
        return data

    def value(self, kind: FieldType) -> bytes:
        """A value, no NaN or infinity among them."""
        while True:
            made = super().value(kind)
            if made[0] not in b"\xca\xcb" or abs(_float(made)) < 1e100:
                return made


def _float(data: bytes) -> float:
    found: float = struct.unpack(">f" if data[0] == 0xCA else ">d", data[1:])[0]
    return found if found == found else float("inf")


def collated_space(space_id: int) -> SpaceDef:
    """A space whose second index has the field of the first, which orders texts otherwise: so its
    entries have that field twice."""
    scalar = FieldType.SCALAR
    fields = (FieldDef("id", scalar), FieldDef("more", scalar, is_nullable=True))
    primary = IndexDef(space_id, 0, "p", IndexType.TREE, (PartDef(0, scalar),))
    parts = PartDef(1, scalar, is_nullable=True), PartDef(0, scalar, collation=_UNICODE)
    other = IndexDef(space_id, 1, "o", IndexType.TREE, parts, False)
    return SpaceDef(space_id, 1, "t", fields=fields).with_indexes((primary, other))
