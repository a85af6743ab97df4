"""Mutants that nobody chose: one small change each, at a place that a seed draws on lines that run.

The tests of a room are run once with their lines noted, see `logweir.tools.linetrace`. A place is a
comparison, an `and` or `or`, a `not`, an operator of arithmetic, a number, a truth value, a
condition, a call whose answer nobody takes, an assignment in place, a `raise`, a `return`; never in
annotations or strings. Some of these changes change nothing that a program can see (an equivalent
mutant): a survivor is a place to look at, and not always a test that is missing.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "wal": ("wal/",),
    "recovery": ("recovery/", "testing/", "tools/crash/"),
    "store": ("store/", "aio.py"),
    "hub": ("replication/",),
    "iproto": ("replication/iproto/",),
    "tank": ("replication/tank/", "replication/topic/"),
    "memcached": ("replication/memcached/", "replication/bucket/"),
    "greenstack": ("replication/greenstack/",),
    "synapse": ("replication/synapse/", "replication/stream/"),
    "redis": ("replication/redis/",),
    "pipeline": ("pipeline/",),
    "archive": ("archive/",),
    "tools": ("tools/", "replication/web/"),
}
"""Room to the beginnings of its files' names; of two that fit the longer one counts."""

_SWAPPED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr},
    **{ast.BitOr: ast.BitAnd, ast.Mod: ast.Mult, ast.Div: ast.Mult},
}


class Change(NamedTuple):
    """One change of a source: from byte `start` to `end` stands `into`; `line`: where; `text`: what
    stood there."""

    line: int
    start: int
    end: int
    text: str
    into: str

    def applied(self, source: bytes) -> bytes:
        """The source with it."""
        return source[: self.start] + self.into.encode() + source[self.end :]


def room_of(file: str) -> str:
    """The room of a file, by its name relative to the tree; "" for none."""
    fits = [
        (len(begin), room)
        for room, begins in SOURCES.items()
        for begin in begins
        if file.startswith(begin)
    ]
    return max(fits, default=(0, ""))[1]


def changes(source: bytes) -> list[Change]:
    """All changes of the statements inside of functions, in their order."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def change(node: ast.expr | ast.stmt, into: str) -> Change:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        return Change(node.lineno, start, end, source[start:end].decode(), into)

    found = []
    for node in _inner(ast.parse(source)):
        found += [change(node, into) for into in _changed(node)]
        if isinstance(node, ast.If | ast.While):
            found.append(change(node.test, f"(not ({ast.unparse(node.test)}))"))
    return found


def _inner(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """What is run when a function is called: no signatures, annotations, strings."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _below(statement)


def _below(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr):
        return  # inner functions are met by themselves
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        if name == "annotation":
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST):
                yield from _below(one)


def _changed(node: ast.expr | ast.stmt) -> Iterator[str]:
    """What may stand in its place."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _SWAPPED:
            yield _swapped(node, "ops")
        case ast.BoolOp() | ast.BinOp() if type(node.op) in _SWAPPED:
            yield _swapped(node, "op")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value):
            yield str(value + 1)
        case ast.IfExp(test=test):
            yield f"({ast.unparse(_with(node, test=ast.UnaryOp(ast.Not(), test)))})"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise():
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return None"


def _swapped(node: ast.expr, field: str) -> str:
    old = getattr(node, field)
    one = old[0] if isinstance(old, list) else old
    new = _SWAPPED[type(one)]()
    return f"({ast.unparse(_with(node, **{field: [new] if isinstance(old, list) else new}))})"


def _with(node: ast.expr, **fields: object) -> ast.expr:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def draw(
    root: Path, room: str, lines: Mapping[str, Mapping[int, Sequence[str]]], seed: int
) -> list[tuple[str, Change]]:
    """The changes of files of a room at lines that were run, in the order that the seed gives them:
    that of each is its own, whatever others there are."""
    found = []
    for file in sorted(lines):
        if room_of(file) == room and file.endswith(".py"):
            some = changes((root / file).read_bytes())
            found += [(file, one) for one in some if lines[file].get(one.line)]
    return sorted(found, key=lambda one: lot(seed, one[0], *one[1]))


def lot(seed: int, *words: object) -> bytes:
    """The place of something in the order of a seed."""
    return hashlib.sha256(repr((seed, *words)).encode()).digest()
