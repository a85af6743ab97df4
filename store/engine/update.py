"""UPDATE and UPSERT: a tuple and operations → the new tuple. Bytes in, bytes out; no I/O.

Operations are applied one behind the other to a tree over the old tuple, and the tree is then
written out. What no operation touches keeps its exact bytes. A node of the tree is one of these:

=========  =======================================================================================
node       holds
=========  =======================================================================================
NOP        bytes as they were, or as an operation inserted them
SCALAR     the result of one operation in place of the value
ARRAY      its elements, each bytes or a node
MAP        items: a key with its node, and the pairs that follow it untouched; newest item first
BAR        bytes, and one operation somewhere inside, reached by a path
ROUTE      bytes, and one node somewhere inside, reached by a path that all operations share
=========  =======================================================================================

The top is an ARRAY. A first operation inside a field makes that field a BAR. A second one finds
where the two paths part: there an ARRAY or MAP is made with both in it, with a ROUTE above it if
the paths begin alike. A MAP is written with the keys that operations reached first, newest first,
then the rest: so the order of the pairs in a map changes, as in Tarantool.

Two operations on one existing value, or on a value and on something inside it, are refused with
29, but `=` at a top-level field, element or key replaces whatever was done to it before. Other
errors: 37, 201 no such field; 29 also for a step that does not fit the value, a key that exists
already (`!`), more than one deleted from a map.

Tarantool 2.6.0 crashes, or writes a broken tuple, for an operation inside a value that an earlier
one of the same request changes as a whole (29 here), for `#` with an integer key of a map, and for
three operations whose paths begin alike but are not spelt alike (these are done here).

UPSERT on an existing tuple leaves out each operation that fails on it and keeps the others.
Source: Tarantool 2.6.0, `xrow_update_*.c`, `memtx_space.c`, observed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Final

from logweir.errors import RequestError
from logweir.store.engine.operation import Operation, decode_operations
from logweir.store.schema import jsonpath
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.fieldtype import MpType, mp_type
from logweir.store.schema.format import FormatNode
from logweir.store.schema.values import (
    go_to,
    map_header,
    read_array,
    read_bytes,
    read_map,
    skip,
    string,
)
from logweir.wal.mp import encode_array_header

NOP: Final = 0
SCALAR: Final = 1
ARRAY: Final = 2
MAP: Final = 3
BAR: Final = 4
ROUTE: Final = 5

Steps = tuple[jsonpath.Step, ...]


@dataclass(slots=True, eq=False)
class _Item:
    """Of a MAP: a key with its value, both None if only pairs are left; `tail`: raw pairs."""

    key: bytes | None
    node: _Node
    tail: bytes


@dataclass(slots=True, eq=False)
class _Node:
    """One node. `data`: its bytes before any operation.

    Of a BAR: `parent`: where in `data` the container begins in which the operation works, `point`
    and `size`: what it works on there, `new_key`: of an insert into a map. Of a ROUTE: `point`,
    `size`: the bytes that `hop` stands for. `steps`: the way to it from `data`.
    """

    data: bytes
    kind: int = NOP
    op: Operation | None = None
    items: list[bytes | _Node] = field(default_factory=list)
    pairs: list[_Item] = field(default_factory=list)
    size: int = 0
    steps: Steps = ()
    parent: int = 0
    point: int = 0
    new_key: bytes = b""
    hop: _Node | None = None


# --- applying -------------------------------------------------------------------------------------
def _apply(op: Operation, node: _Node) -> None:
    """Apply an operation to a node; a path that is left leads into it."""
    if node.kind == ARRAY:
        _apply_to_array(op, node)
    elif node.kind == MAP:
        _apply_to_map(op, node)
    elif node.kind == NOP:
        _apply_inside(op, node)
    elif node.kind == BAR:
        _apply(op, _branch(node, op))
    elif node.kind == ROUTE:
        assert node.hop is not None
        _apply(op, node.hop if op.goes_along(node.steps) else _branch(node, op))
    else:
        raise op.inside_changed()


def _go_on(op: Operation, node: _Node) -> None:
    op.is_taken = True
    _apply(op, node)


def _set(op: Operation, node: _Node) -> None:
    node.kind = SCALAR
    node.op = op


def _compute(op: Operation, node: _Node) -> None:
    if node.kind != NOP:
        raise op.double_update()
    op.compute(node.data, 0)
    _set(op, node)


# --- arrays ---------------------------------------------------------------------------------------
def _make_array(node: _Node, data: bytes) -> None:
    """Make `node` the ARRAY of that array's elements."""
    count, at = read_array(data, 0)
    items: list[bytes | _Node] = []
    for _ in range(count):
        end = skip(data, at)
        items.append(data[at:end])
        at = end
    node.kind, node.data, node.items = ARRAY, data, items


def _place(op: Operation, count: int) -> int:
    """The number, 0 … count - 1, of the element that the step at hand means."""
    if op.field_no < 0:
        if op.field_no + count < 0:
            raise op.no_such_field()
        op.field_no += count
    elif op.field_no >= count:
        raise op.no_such_field()
    return op.field_no


def _element(op: Operation, node: _Node) -> _Node:
    number = _place(op, len(node.items))
    item = node.items[number]
    if isinstance(item, bytes):
        item = _Node(item)
        node.items[number] = item
    return item


def _apply_to_array(op: Operation, node: _Node) -> None:
    if op.is_taken:
        op.take_step()
    if not isinstance(op.step, int):
        raise op.error("can't update an array by a non-numeric index")
    is_append = op.code == "=" and op.field_no == len(node.items)
    if not op.is_last_step:
        _go_on(op, _element(op, node))
    elif op.code == "!" or is_append:
        node.items.insert(_place(op, len(node.items) + 1), op.value)
    elif op.code == "=":
        _set(op, _element(op, node))
    elif op.code == "#":
        number = _place(op, len(node.items))
        del node.items[number : number + op.count]
    else:
        _compute(op, _element(op, node))


# --- maps -----------------------------------------------------------------------------------------
def _make_map(node: _Node, data: bytes) -> None:
    """Make `node` the MAP of that map's pairs, none of them touched."""
    count, at = read_map(data, 0)
    node.kind, node.data, node.size = MAP, data, count
    node.pairs = [_Item(None, _Node(b""), data[at:])] if count else []


def _find_key(tail: bytes, key: bytes) -> tuple[int, int] | None:
    """Where in raw pairs the pair with that string key begins, and where its value does."""
    at = 0
    while at < len(tail):
        begin, at = at, skip(tail, at)
        if mp_type(tail, begin) is MpType.STR:
            first, last = read_bytes(tail, begin)
            if tail[first:last] == key:
                return begin, at
        at = skip(tail, at)
    return None


def _item(op: Operation, node: _Node) -> _Item | None:
    """The item of the key that the step at hand means; None if the map has no such key."""
    if op.is_taken:
        op.take_step()
        if not isinstance(op.step, bytes):
            raise op.error("can't update a map by not a string key")
    assert isinstance(op.step, bytes)
    for item in node.pairs:
        if item.key == op.step:
            return item
    for item in node.pairs:
        found = _find_key(item.tail, op.step)
        if found is None:
            continue
        begin, at = found
        end = skip(item.tail, at)
        value, rest = _Node(item.tail[at:end]), item.tail[end:]
        if begin == 0 and item.key is None:
            item.key, item.node, item.tail = op.step, value, rest
            return item
        item.tail = item.tail[:begin]
        node.pairs.insert(0, _Item(op.step, value, rest))
        return node.pairs[0]
    return None


def _apply_to_map(op: Operation, node: _Node) -> None:
    item = _item(op, node)
    if not op.is_last_step:
        if item is None:
            raise op.no_such_field()
        _go_on(op, item.node)
    elif op.code in "=!":
        if item is None:
            assert isinstance(op.step, bytes)
            node.size += 1
            node.pairs.insert(0, _Item(op.step, _Node(op.value), b""))
        elif op.code == "!":
            raise op.error("the key exists already")
        else:
            _set(op, item.node)
    elif op.code == "#":
        if op.count != 1:
            raise op.error("can delete only 1 field from a map in a row")
        if item is not None:
            item.key = None
            node.size -= 1
    elif item is None:
        raise op.no_such_field()
    else:
        _compute(op, item.node)


# --- inside a value that no operation has touched -------------------------------------------------
def _apply_inside(op: Operation, node: _Node) -> None:
    """Make a NOP a BAR: the operation works at the end of the path that is left."""
    bar = _Node(node.data)
    is_found = _locate(op, bar)
    if op.code == "!" and is_found and mp_type(bar.data, bar.parent) is MpType.MAP:
        raise op.error("the key exists already")
    if op.code == "=" and not is_found:
        op.code = "!"
    elif op.code == "#":
        _locate_deleted(op, bar)
    elif op.code not in "=!":
        op.compute(bar.data, bar.point)
    node.kind, node.op, node.steps = BAR, op, bar.steps
    node.parent, node.point, node.size = bar.parent, bar.point, bar.size
    node.new_key = bar.new_key


def _locate(op: Operation, bar: _Node) -> bool:
    """Go down the path that is left. Returns whether something stands at its end.

    If not, all but the last step must lead somewhere, and only `=` and `!` may do that.
    """
    data, at = bar.data, 0
    steps: list[jsonpath.Step] = []
    while (step := op.read_step()) is not None:
        if step is jsonpath.ANY:
            raise op.error(f"invalid JSON in position {op.characters - 1}")
        steps.append(step)
        bar.parent = at
        at = go_to(data, at, step)
        if at < 0:
            break
    bar.steps = tuple(steps)
    if at >= 0:
        bar.point, bar.size = at, skip(data, at) - at
        return True
    if op.code not in "=!" or op.read_step() is not None:
        raise op.no_such_field()
    last = steps[-1]
    kind = mp_type(data, bar.parent)
    if isinstance(last, int):
        if kind is not MpType.ARRAY:
            raise op.error("can not access by index a non-array field")
        if last > read_array(data, bar.parent)[0]:
            raise op.no_such_field()
        bar.point = skip(data, bar.parent)
    else:
        if kind is not MpType.MAP:
            raise op.error("can not access by key a non-map field")
        assert isinstance(last, bytes)
        bar.new_key = last
    return False


def _locate_deleted(op: Operation, bar: _Node) -> None:
    """Widen what a BAR works on to all that `#` deletes."""
    data = bar.data
    if mp_type(data, bar.parent) is MpType.ARRAY:
        number = bar.steps[-1]
        assert isinstance(number, int)
        op.argument = min(op.count, read_array(data, bar.parent)[0] - number)
        end = bar.point
        for _ in range(op.count):
            end = skip(data, end)
        bar.size = end - bar.point
        return
    if op.count != 1:
        raise op.error("can delete only 1 field from a map in a row")
    end = bar.point + bar.size
    _, at = read_map(data, bar.parent)
    while (value := skip(data, at)) != bar.point:
        at = skip(data, value)
    bar.point, bar.size = at, end - at


# --- where two paths part -------------------------------------------------------------------------
def _branch(node: _Node, op: Operation) -> _Node:
    """Split a BAR or ROUTE where a new operation leaves its path.

    Returns the ARRAY or MAP in which the old and the new way part; the caller applies the new
    operation to it. Raises 29, 201, and then nothing has changed.
    """
    data, at, shared = node.data, 0, 0
    while True:
        old = node.steps[shared] if shared < len(node.steps) else None
        new = op.read_step()
        if old is None and new is None:
            raise op.double_update()
        if old != new:
            break
        assert new is not None
        at = go_to(data, at, new)
        if at < 0:
            raise op.double_update() if op.is_last_step else op.inside_changed()
        shared += 1
    kind = mp_type(data, at)
    if kind is MpType.ARRAY:
        if not isinstance(new, int):
            raise op.error("can not update array by non-integer index")
    elif kind is not MpType.MAP:
        raise op.no_such_field()
    elif not isinstance(new, bytes):
        raise op.error("can not update map by non-string key")
    if old is None or isinstance(old, int) != (kind is MpType.ARRAY):
        raise op.inside_changed()
    op.step, op.is_taken = new, False
    if isinstance(new, int):
        op.field_no = new
    end = skip(data, at)
    fork = _Node(data[at:end]) if shared else node
    child = _cut_way(node, at, shared + 1, old)
    if isinstance(old, int):
        _fork_array(fork, data[at:end], child, old)
    else:
        assert isinstance(old, bytes)
        _fork_map(fork, data[at:end], child, old)
    if shared:
        node.kind, node.steps, node.hop = ROUTE, node.steps[:shared], fork
        node.point, node.size = at, end - at
    return fork


def _cut_way(node: _Node, at: int, taken: int, old: jsonpath.Step) -> _Node:
    """What a BAR or ROUTE is to the value one step into the container at `at`."""
    child = copy.copy(node)
    child.steps = node.steps[taken:]
    if node.kind == ROUTE and not child.steps:
        assert node.hop is not None
        return node.hop
    begin = go_to(node.data, at, old)
    if begin < 0 or _changes_container(child):
        return child
    child.data = node.data[begin : skip(node.data, begin)]
    child.parent -= begin
    child.point -= begin
    return child


def _changes_container(child: _Node) -> bool:
    """Whether it is an insert or delete that works on the container, not inside the value."""
    return child.kind == BAR and not child.steps and child.op is not None and child.op.code in "!#"


def _fork_array(fork: _Node, data: bytes, child: _Node, number: int) -> None:
    _make_array(fork, data)
    if not _changes_container(child):
        fork.items[number] = child
        return
    assert child.op is not None
    child.op.step, child.op.field_no, child.op.is_taken = number, number, False
    _apply_to_array(child.op, fork)


def _fork_map(fork: _Node, data: bytes, child: _Node, key: bytes) -> None:
    _make_map(fork, data)
    if _changes_container(child):
        assert child.op is not None
        child.op.step, child.op.is_taken = key, False
        _apply_to_map(child.op, fork)
        return
    (whole,) = fork.pairs
    found = _find_key(whole.tail, key)
    assert found is not None
    begin, at = found
    end = skip(whole.tail, at)
    fork.pairs = [
        _Item(key, child, whole.tail[end:]),
        _Item(None, _Node(b""), whole.tail[:begin]),
    ]


# --- writing --------------------------------------------------------------------------------------
def _follow(place: FormatNode | None, steps: Steps) -> FormatNode | None:
    """The format's node at the end of a path.

    Element numbers are looked up one too high: that is how Tarantool does it, and it decides
    whether a sum there is written as a 64-bit float.
    """
    for step in steps:
        if place is None:
            return None
        place = place.child(step + 1 if isinstance(step, int) else step)
    return place


def _result(op: Operation | None, place: FormatNode | None) -> bytes:
    assert op is not None
    return op.result(None if place is None else place.type)


def _write(node: _Node, place: FormatNode | None, out: bytearray) -> None:
    """Write a node. `place`: what the format says of where it stands."""
    if node.kind == NOP:
        out += node.data
    elif node.kind == SCALAR:
        out += _result(node.op, place)
    elif node.kind == ARRAY:
        out += encode_array_header(len(node.items))
        for number, item in enumerate(node.items):
            if isinstance(item, bytes):
                out += item
            else:
                _write(item, None if place is None else place.child(number), out)
    elif node.kind == MAP:
        _write_map(node, place, out)
    elif node.kind == BAR:
        _write_bar(node, place, out)
    else:
        assert node.hop is not None
        out += node.data[: node.point]
        _write(node.hop, _follow(place, node.steps), out)
        out += node.data[node.point + node.size :]


def _write_map(node: _Node, place: FormatNode | None, out: bytearray) -> None:
    out += map_header(node.size)
    for item in node.pairs:
        if item.key is not None:
            out += string(item.key)
            _write(item.node, None if place is None else place.child(item.key), out)
    for item in node.pairs:
        out += item.tail


def _write_bar(node: _Node, place: FormatNode | None, out: bytearray) -> None:
    op, data = node.op, node.data
    assert op is not None
    if op.code not in "!#":
        out += data[: node.point]
        out += _result(op, _follow(place, node.steps))
        out += data[node.point + node.size :]
        return
    out += data[: node.parent]
    if mp_type(data, node.parent) is MpType.ARRAY:
        count, at = read_array(data, node.parent)
        out += encode_array_header(count + 1 if op.code == "!" else count - op.count)
        out += data[at : node.point]
        at = node.point
    else:
        count, at = read_map(data, node.parent)
        out += map_header(count + 1 if op.code == "!" else count - 1)
        if op.code == "!":
            out += string(node.new_key)
        else:
            out += data[at : node.point]
            at = node.point
    if op.code == "!":
        out += op.value + data[at:]
    else:
        out += data[node.point + node.size :]


# --- the whole ------------------------------------------------------------------------------------
def _finish(root: _Node, space: SpaceDef) -> bytes:
    out = bytearray(encode_array_header(len(root.items)))
    top = space.format.top
    for number, item in enumerate(root.items):
        if isinstance(item, bytes):
            out += item
        else:
            _write(item, top[number] if number < len(top) else None, out)
    return bytes(out)


def check_ops(ops: bytes, *, index_base: int, space: SpaceDef) -> None:
    """Check operations for form, as an UPSERT does that inserts. Raises `RequestError`."""
    decode_operations(ops, space.format.names, index_base)


def apply_update(data: bytes, ops: bytes, *, index_base: int, space: SpaceDef) -> bytes:
    """The tuple after an UPDATE.

    `data`: the tuple; `ops`: MsgPack array of operations; `index_base`: from what their field
    numbers count, 0 or 1 (body key 15); `space`: for field names and types. Raises `RequestError`.
    That the result fits the format (`TupleFormat.check`), and the primary key is the same, is for
    the caller to check.
    """
    operations = decode_operations(ops, space.format.names, index_base)
    root = _Node(data)
    _make_array(root, data)
    for op in operations:
        _apply(op, root)
    return _finish(root, space)


def apply_upsert(
    data: bytes,
    ops: bytes,
    *,
    index_base: int,
    space: SpaceDef,
    left_out: list[RequestError] | None = None,
) -> bytes:
    """The tuple after an UPSERT that found it, without the operations that fail on it.

    Arguments as of `apply_update`; `left_out`: takes the errors of these operations, in order.
    Raises `RequestError` if an operation is malformed. If the result has another primary key,
    the whole upsert is to be ignored.
    """
    operations = decode_operations(ops, space.format.names, index_base)
    root = _Node(data)
    _make_array(root, data)
    for op in operations:
        try:
            _apply(op, root)
        except RequestError as error:
            if left_out is not None:
                left_out.append(error)
    return _finish(root, space)
