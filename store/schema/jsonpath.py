"""JSON paths of index parts and update operations: text ↔ steps. No I/O.

A path is a run of steps into a field: `.name` or `["name"]` or `['name']` (key of a map), `[n]`
(element of an array, n from 1; also the integer key n of a map), `[*]` (every element, in a
multikey index). The first step may be a bare `name`. A bare name begins with a letter or `_` and
goes on with letters, digits (of any script) and `_`; a quoted one holds anything but its quote,
and something. An error is told by its position: a count of characters from 1.
Source: Tarantool 2.6.0, `json.c`, observed.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final


class _Any:
    """The step `[*]`."""

    def __repr__(self) -> str:
        return "[*]"


ANY: Final = _Any()

Step = int | bytes | _Any
"""A step: element number from 0, map key as the bytes of its UTF-8, or `ANY`."""

_NUMBER_DIGITS: Final = 10
"""Numbers of more digits name no element anyway; so many are looked at."""

_BEGINS: Final = frozenset(("Lu", "Ll", "Lt", "Lm", "Lo"))
_GOES_ON: Final = _BEGINS | {"Nd", "Nl"}
"""Categories of the characters of bare names, besides `_`."""


class PathError(ValueError):
    """A path that is not one. `position`: character, from 1, where it goes wrong."""

    def __init__(self, position: int) -> None:
        super().__init__(f"invalid JSON in position {position}")
        self.position = position


@dataclass(slots=True)
class Tokenizer:
    """Takes a path apart step by step. `path`: its bytes; `at`: how many have been taken."""

    path: bytes
    at: int = 0
    characters: int = 0

    def next(self) -> Step | None:
        """The next step, None at the end. Raises `PathError`."""
        if self.at >= len(self.path):
            return None
        begin = self.at
        char = self._read()
        if char == "[":
            return self._bracket()
        if char == ".":
            if self.at >= len(self.path):
                raise PathError(self.characters + 1)
            return self._name()
        if begin != 0:
            raise PathError(self.characters)
        self.at, self.characters = 0, 0
        return self._name()

    def _read(self) -> str:
        """One character; a position error where the bytes are not UTF-8 or end."""
        first = self.path[self.at : self.at + 1]
        if not first:
            raise PathError(self.characters + 1)
        lead = first[0]
        size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        try:
            char = self.path[self.at : self.at + size].decode()
        except UnicodeDecodeError:
            raise PathError(self.characters + 1) from None
        self.at += size
        self.characters += 1
        return char

    def _name(self) -> bytes:
        begin = self.at
        char = self._read()
        if char != "_" and unicodedata.category(char) not in _BEGINS:
            raise PathError(self.characters)
        while self.at < len(self.path):
            before = self.at, self.characters
            try:
                char = self._read()
            except PathError:
                break
            if char != "_" and unicodedata.category(char) not in _GOES_ON:
                self.at, self.characters = before
                break
        return self.path[begin : self.at]

    def _bracket(self) -> Step:
        if self.at >= len(self.path):
            raise PathError(self.characters)
        lead = self.path[self.at]
        step: Step
        if lead in b"\"'":
            step = self._quoted(chr(lead))
        elif lead == 0x2A:
            self.at += 1
            self.characters += 1
            step = ANY
        else:
            step = self._number()
        if self.at >= len(self.path) or self.path[self.at] != 0x5D:
            raise PathError(self.characters + 1)
        self.at += 1
        self.characters += 1
        return step

    def _quoted(self, quote: str) -> bytes:
        self._read()
        begin = self.at
        while True:
            end = self.at
            if self._read() == quote:
                if end == begin:
                    raise PathError(self.characters)
                return self.path[begin:end]

    def _number(self) -> int:
        begin = self.at
        end = begin
        while end < len(self.path) and 0x30 <= self.path[end] <= 0x39:
            end += 1
        digits = self.path[begin:end].lstrip(b"0")
        if not digits:
            raise PathError(self.characters + 1)
        self.at = end
        self.characters += end - begin
        return int(digits[:_NUMBER_DIGITS]) - 1


def parse(path: str | bytes) -> tuple[Step, ...]:
    """All steps of a path. Raises `PathError`."""
    raw = path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path
    tokens = Tokenizer(raw)
    steps: list[Step] = []
    while (step := tokens.next()) is not None:
        steps.append(step)
    return tuple(steps)


def multikey_prefix(steps: tuple[Step, ...]) -> int | None:
    """How many steps stand before the first `[*]`; None if there is none."""
    return next((at for at, step in enumerate(steps) if step is ANY), None)


def render(steps: tuple[Step, ...]) -> str:
    """Steps as Tarantool writes them in messages: `[2]["name"][*]`."""
    parts = []
    for step in steps:
        if isinstance(step, bytes):
            parts.append(f'["{step.decode("utf-8", "surrogateescape")}"]')
        else:
            parts.append("[*]" if isinstance(step, _Any) else f"[{step + 1}]")
    return "".join(parts)
