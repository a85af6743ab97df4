"""Random tuples, keys and update operations, as exact MsgPack, for comparison with Tarantool."""

from __future__ import annotations

import math
import random
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from interop.realtarantool import RealTarantool
from logweir.store.schema.schema import Schema
from logweir.store.schema.values import map_header, read_array
from logweir.wal.mp import encode_array_header, pack, skip, unpack

KEYS = ("a", "b", "c", "dd", "xy", "a b")
FIELDS = ("id", "name", "doc", "d", "n")

SETUP = """
local s = box.schema.space.create('t', {format = {
    {'id', 'unsigned'}, {'name', 'any'}, {'doc', 'any'},
    {'d', 'double', is_nullable = true}, {'n', 'number', is_nullable = true}}})
s:create_index('p')
s:create_index('x', {unique = false, parts = {{3, 'double', path = 'dd', is_nullable = true}}})
s:create_index('y', {unique = false, parts = {{6, 'double', path = '[2]', is_nullable = true}}})
"""
"""The space that `Cases` makes tuples and operations for."""


def schema_of(box: RealTarantool) -> Schema:
    """Our schema, made of the rows in a real Tarantool's system spaces."""
    schema = Schema()
    for space_id in (276, 280, 288, 284, 340):
        raw = box.eval_raw(
            "local t = {} for _, one in box.space[...]:pairs() do table.insert(t, one) end "
            "return unpack(t)",
            [space_id],
        )
        count, at = read_array(raw, 0)
        for _ in range(count):
            end = skip(raw, at)
            schema.apply(space_id, None, raw[at:end], is_insert=True, trusted=True)
            at = end
    return schema


def float32(value: float) -> bytes:
    """A 32-bit float."""
    return b"\xca" + struct.pack(">f", value)


def array(*items: bytes) -> bytes:
    """An array of values that are MsgPack already."""
    return encode_array_header(len(items)) + b"".join(items)


def mapping(*pairs: bytes) -> bytes:
    """A map of pairs that are MsgPack already, key and value joined."""
    return map_header(len(pairs)) + b"".join(pairs)


class Cases:
    """Makes values from one source of randomness; the same source makes the same values.

    `short_floats`: only floats that are finite and have few digits.
    """

    def __init__(self, source: random.Random, *, short_floats: bool = False) -> None:
        self.random = source
        self.short_floats = short_floats
        self.tuple = b""
        self.is_dotted = True
        self.used: list[bytes] = []

    def one_of(self, *makers: Callable[[], bytes]) -> bytes:
        """What one of these makes."""
        return self.random.choice(makers)()

    # --- scalars ----------------------------------------------------------------------------------
    def integer(self) -> bytes:
        """An integer, extremes included."""
        extremes = [0, -1, 127, 128, 255, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
        extremes += [-32, -33, -(2**31), -(2**53) - 1, -(2**63), -(2**63) + 1]
        if self.random.random() < 0.3:
            return pack(self.random.choice(extremes))
        return pack(self.random.randrange(-300, 300))

    def floating(self) -> bytes:
        """A float of 64 or 32 bits, extremes included, no NaN."""
        if self.short_floats:
            value = self.random.choice([0.0, -0.0, 0.1, 1e15, -1e-30, 1e300, 2.5])
            if self.random.random() < 0.6:
                value = round(self.random.uniform(-300, 300), 2)
            return (
                pack(value)
                if value * 4 % 1
                else self.one_of(lambda: pack(value), lambda: float32(max(min(value, 3e38), -3e38)))
            )
        value = self.random.choice(
            [0.5, 1.0, -2.25, 1e300, 0.1, math.inf, -math.inf, -0.0, 1e-320, 2.0**53, 2.0**64, 1e15]
        )
        if self.random.random() < 0.4:
            value = self.random.uniform(-300, 300)
        if self.random.random() < 0.3:
            return float32(max(min(value, 3e38), -3e38))
        return pack(value)

    def decimal(self) -> bytes:
        """A decimal, extremes included."""
        extremes = ["1", "1.00", "-2.50", "0.1", "9" * 38, "1E+5", "0E-10", "-0", "1e-38"]
        extremes += ["12345678901234567890.123456789", "9007199254740993", "-" + "9" * 38]
        if self.random.random() < 0.4:
            return pack(Decimal(self.random.choice(extremes)))
        return pack(
            Decimal(self.random.randrange(-(10**6), 10**6)).scaleb(-self.random.randrange(30))
        )

    def number(self) -> bytes:
        """Any number."""
        return self.one_of(self.integer, self.integer, self.floating, self.decimal)

    def text(self) -> bytes:
        """A string, some the beginning of another."""
        letters = self.random.choice(["ab", "a\0b", "aAbBäÄßéE zZ", "日本x"])
        size = self.random.choice([0, 1, 2, 3, 5, 40])
        return pack("".join(self.random.choice(letters) for _ in range(size)))

    def binary(self) -> bytes:
        """Some bytes."""
        return pack(bytes(self.random.choice([0, 1, 0xFF, 0x61]) for _ in range(self._few())))

    def boolean(self) -> bytes:
        """True or false."""
        return pack(self.random.random() < 0.5)

    def uuid(self) -> bytes:
        """A UUID."""
        return pack(
            uuid.UUID(int=self.random.choice([0, 1, 1 << 127, self.random.getrandbits(128)]))
        )

    def scalar(self) -> bytes:
        """What a field of type scalar takes."""
        return self.one_of(self.number, self.text, self.binary, self.boolean)

    def _few(self) -> int:
        return self.random.choice([0, 1, 2, 3, 4])

    # --- tuples -----------------------------------------------------------------------------------
    def value(self, depth: int = 0) -> bytes:
        """Any value, nested at most three deep."""
        what = self.random.randrange(10)
        if what < 5 or depth > 2:
            return self.one_of(self.number, self.scalar)
        if what == 5:
            return bytes.fromhex("cf0000000000000005") if self.random.random() < 0.5 else b"\xc0"
        if what < 8:
            return array(*(self.value(depth + 1) for _ in range(self._few())))
        pairs = [pack(key) + self.value(depth + 1) for key in self._some_keys(0)]
        if self.random.random() < 0.3:
            odd = pack(self.random.choice([7, 8, True])) + self.value(depth + 1)
            pairs.insert(self.random.randrange(len(pairs) + 1), odd)
        return mapping(*pairs)

    def _some_keys(self, least: int) -> list[str]:
        return self.random.sample(KEYS, self.random.randrange(least, 5))

    def whole(self) -> bytes:
        """A tuple that the space of `SETUP` takes."""
        keys = self._some_keys(1)
        doc = mapping(*(pack(key) + (pack(1.5) if key == "dd" else self.value()) for key in keys))
        fields = [pack(1), self.value(), doc]
        more = [
            lambda: pack(self.random.choice([0.5, 1.25, None])),
            lambda: self.one_of(self.number, lambda: b"\xc0"),
            lambda: pack([self.random.choice([1, "x"]), self.random.choice([2.5, None]), 7.0]),
            self.value,
        ]
        for make in more[: self.random.randrange(5)]:
            fields.append(make())
        self.tuple = array(*fields)
        self.is_dotted = self.random.random() < 0.5
        self.used = []
        return self.tuple

    # --- operations -------------------------------------------------------------------------------
    def _spell(self, key: str) -> str:
        return f".{key}" if self.is_dotted and key != "a b" else f'["{key}"]'

    def _step(self) -> str:
        if self.random.random() < 0.03:
            return self.random.choice(["[*]", ".9", "[0]", "[", ".a-", '["a', "..", "[1", "."])
        if self.random.random() < 0.6:
            return self._spell(self.random.choice(KEYS))
        return f"[{self.random.randrange(1, 5)}]"

    def _places(self, value: Any, path: str, found: list[str]) -> None:
        found.append(path)
        if isinstance(value, dict):
            for key, inner in value.items():
                if isinstance(key, str):
                    self._places(inner, path + self._spell(key), found)
        elif isinstance(value, list):
            for number, inner in enumerate(value, 1):
                self._places(inner, f"{path}[{number}]", found)

    def _field(self) -> bytes:
        if self.used and self.random.random() < 0.2:
            field = self.random.choice(self.used)
            path = unpack(field)
            if isinstance(path, str) and self.random.random() < 0.5:
                return pack(path + self._step())
            return field
        if self.random.random() < 0.25:
            return pack(self.random.randrange(-5, 9))
        if self.random.random() < 0.05:
            return pack(self.random.choice(["id", "zz", "[9]", "[0]", "", "a.b", "name ", None]))
        found: list[str] = []
        for number, value in enumerate(unpack(self.tuple)[1:], 1):
            is_named = number < len(FIELDS)
            self._places(value, FIELDS[number] if is_named else f"[{number + 1}]", found)
        path = self.random.choice(found)
        return pack(path + self._step() if self.random.random() < 0.25 else path)

    def operation(self) -> bytes:
        """One operation on the last tuple of `whole`, mostly a sensible one."""
        code = self.random.choice("=!#+-=!=+-:&|^")
        field = self._field()
        self.used.append(field)
        arguments: list[bytes]
        if code in "=!":
            arguments = [self.value()]
        elif code == "#":
            arguments = [pack(self.random.choice([1, 1, 1, 2, 3, 0, 9]))]
        elif code in "+-":
            arguments = [self.number()]
        elif code in "&|^":
            arguments = [pack(self.random.randrange(300))]
        else:
            position = self.random.choice([0, 1, 2, 9, -1, -3, 1.0, 1.5])
            arguments = [pack(position), pack(self.random.randrange(-3, 5)), self.text()]
        fault = self.random.random()
        if fault < 0.01:
            arguments.append(pack(1))
        elif fault < 0.02:
            arguments[0] = self.value()
        elif fault < 0.03:
            code = self.random.choice(["x", "", "=="])
        elif fault < 0.035:
            return pack(self.random.choice([1, "x", [], [1], ["x"], ["="], ["=", 1], {}]))
        return array(pack(code), field, *arguments)

    def operations(self) -> bytes:
        """The operations of one request."""
        count = self.random.choice([1, 1, 2, 2, 3, 4, 6])
        return array(*(self.operation() for _ in range(count)))
