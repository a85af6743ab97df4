"""Changing a part of a JSON document: what MUTATION with operation Patch does. Pure functions.

A patch that is a JSON array is a JSON Patch (RFC 6902: add, remove, replace, move, copy, test, all
or none); anything else is a JSON Merge Patch (RFC 7396: members of objects are set one by one, null
removes). The result is written without blanks, in UTF-8, members in their order. Numbers with a
fraction or exponent are kept as 64 bit floats; NaN and infinities are refused. `PatchFailed` if
a step cannot be done, `DecodeError` for what is no JSON or no patch.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import GREENSTACK_PATCH_STEPS

_STEPS: Final = {
    "add": ("value",),
    "remove": (),
    "replace": ("value",),
    "move": ("from",),
    "copy": ("from",),
    "test": ("value",),
}


class PatchFailed(Exception):
    """The document does not have what a step of the patch needs."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _load(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"no JSON: {error}") from error


def _dump(value: Any) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"the result is no JSON: {error}") from error


def patch(document: bytes, change: bytes, limit_bytes: int) -> bytes:
    """The document with the change made. `limit_bytes`: of the result.

    Raises `DecodeError`, `PatchFailed`, `LimitExceeded`.
    """
    value, steps = _load(document), _load(change)
    if isinstance(steps, list):
        value = _Patching(value, limit_bytes).run(steps)
    else:
        value = _merge(value, steps)
    result = _dump(value)
    if len(result) > limit_bytes:
        raise LimitExceeded("TAP_VALUE_BYTES", limit_bytes, len(result))
    return result


def _merge(target: Any, change: Any) -> Any:
    """RFC 7396, section 2."""
    if not isinstance(change, dict):
        return change
    made = dict(target) if isinstance(target, dict) else {}
    for name, value in change.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merge(made.get(name), value)
    return made


class _Patching:
    """RFC 6902 on one document, which is changed in place. `left_bytes`: of what is copied."""

    def __init__(self, document: Any, limit_bytes: int) -> None:
        self._root = [document]
        self._limit_bytes = limit_bytes
        self._left_bytes = limit_bytes

    def run(self, steps: list[Any]) -> Any:
        if len(steps) > GREENSTACK_PATCH_STEPS:
            raise LimitExceeded("GREENSTACK_PATCH_STEPS", GREENSTACK_PATCH_STEPS, len(steps))
        for step in steps:
            if not isinstance(step, dict) or step.get("op") not in _STEPS:
                raise DecodeError("a step of a JSON Patch without an operation that is known")
            kind = step["op"]
            if not isinstance(step.get("path"), str) or any(n not in step for n in _STEPS[kind]):
                raise DecodeError(f"a step {kind!r} that lacks a member")
            self._step(kind, step)
        return self._root[0]

    def _step(self, kind: str, step: dict[str, Any]) -> None:
        path = _path(step["path"])
        if kind == "add":
            self._add(path, step["value"])
        elif kind == "remove":
            self._remove(path)
        elif kind == "replace":
            self._remove(path)
            self._add(path, step["value"])
        elif kind == "test":
            if not _same(self._find(path), step["value"]):
                raise PatchFailed("a test does not hold")
        else:
            source = _path(step["from"])
            if kind == "move":
                if path[: len(source)] == source and path != source:
                    raise PatchFailed("a value cannot be moved into itself")
                self._add(path, self._remove(source))
            else:
                self._add(path, self._copy(self._find(source)))

    def _copy(self, value: Any) -> Any:
        data = _dump(value)
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise LimitExceeded("TAP_VALUE_BYTES", self._limit_bytes, self._limit_bytes + 1)
        return json.loads(data)

    def _holder(self, path: list[str]) -> tuple[Any, Any]:
        """What holds the value at `path`, and under which name or number."""
        if not path:
            return self._root, 0
        holder = self._find(path[:-1])
        if isinstance(holder, dict):
            return holder, path[-1]
        if isinstance(holder, list):
            return holder, path[-1] if path[-1] == "-" else _number(path[-1])
        raise PatchFailed(f"there is nothing below /{'/'.join(path[:-1])}")

    def _find(self, path: list[str]) -> Any:
        value = self._root[0]
        for part in path:
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif isinstance(value, list) and part != "-" and _number(part) < len(value):
                value = value[_number(part)]
            else:
                raise PatchFailed(f"there is no /{'/'.join(path)}")
        return value

    def _add(self, path: list[str], value: Any) -> None:
        holder, name = self._holder(path)
        if holder is self._root:
            holder[:] = [value]
        elif isinstance(holder, dict):
            holder[name] = value
        else:
            place = len(holder) if name == "-" else name
            if place > len(holder):
                raise PatchFailed(f"there is no place /{'/'.join(path)}")
            holder.insert(place, value)

    def _remove(self, path: list[str]) -> Any:
        value = self._find(path)
        holder, name = self._holder(path)
        if holder is self._root:
            holder[:] = [None]
        else:
            del holder[name]
        return value


def _same(left: Any, right: Any) -> bool:
    """Whether two values are the same JSON: in Python True == 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _path(text: Any) -> list[str]:
    """The parts of a JSON Pointer (RFC 6901)."""
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise DecodeError(f"{text!r} is no JSON Pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _number(part: str) -> int:
    is_number = part.isascii() and part.isdigit() and (part == "0" or part[0] != "0")
    if not is_number or len(part) > 9:
        raise PatchFailed(f"{part!r} is no place in an array")
    return int(part)
