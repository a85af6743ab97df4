"""What a tuple of a space must look like, and whether one does. Bytes in, verdict out; no I/O.

A format is a tree. Below its root stand the top-level fields: as many as the space's format names
or its indexes use. Below a field stand the steps of JSON paths of index parts; on the way to a
part a map or an array is required. Each node has a type (the stricter of what format and index
parts say) and a nullable action; `none` means nil and absence are fine.

Checks, in this order, first failure told:

====  ============================================================================================
code  when
====  ============================================================================================
38    the space has an exact field count and the tuple another
23    a field, in the order of the bytes, is not of its type, or nil where it may not be
39    a field that may not be nil is absent; the lowest one is named (inside a multikey array:
      per element, at its end)
110   the tuple with its header (14 bytes and 4 per offset kept) is larger than the limit
====  ============================================================================================

Fields beyond the format are free. Fields are named by number from 1, inner ones by path.
Building can fail too: 24 and 27 types of two definitions exclude each other, 162 their nullable
actions do, 194 a field is an array for one index and a multikey array for another, 149 two fields
have one name. Source: Tarantool 2.6.0, `tuple_format.c`, observed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from logweir.errors import ErrorCode, RequestError
from logweir.limits import TUPLE_BYTES
from logweir.store.schema import jsonpath
from logweir.store.schema.fieldtype import FieldType, MpType, admits, can_hold, mp_type
from logweir.store.schema.refused import refused
from logweir.store.schema.values import invalid_msgpack, read_array, read_bytes, read_map, skip

if TYPE_CHECKING:
    from logweir.store.schema.definition import FieldDef, PartDef

HEADER_BYTES: Final = 14
OFFSET_BYTES: Final = 4


@dataclass(slots=True, eq=False)
class FormatNode:
    """One node of a format: a field, or a place inside one that an index uses.

    `number`: order in which nodes were made, lower is told first when absent; `action`: nullable
    action; `required`: numbers of the nodes that each element of a multikey array must have.
    """

    number: int
    step: jsonpath.Step
    parent: FormatNode | None
    type: FieldType = FieldType.ANY
    action: str = "none"
    collation_id: int = 0
    children: dict[jsonpath.Step, FormatNode] = field(default_factory=dict)
    is_key_part: bool = False
    has_offset: bool = False
    required: frozenset[int] = frozenset()

    @property
    def is_nullable(self) -> bool:
        """Whether nil, or nothing, may stand there."""
        return self.action == "none"

    @property
    def is_multikey(self) -> bool:
        """Whether it is an array of which a multikey index uses each element."""
        return jsonpath.ANY in self.children

    @property
    def steps(self) -> tuple[jsonpath.Step, ...]:
        """The way to it: field number first."""
        above = self.parent.steps if self.parent is not None else ()
        return (*above, self.step)

    @property
    def label(self) -> str:
        """How messages call it: the number from 1, or the path."""
        if self.parent is None:
            assert isinstance(self.step, int)
            return str(self.step + 1)
        return jsonpath.render(self.steps)

    def child(self, step: jsonpath.Step) -> FormatNode | None:
        """The node one step further; the only one below a multikey array."""
        found = self.children.get(step)
        return self.children.get(jsonpath.ANY) if found is None else found

    def walk(self) -> Iterator[FormatNode]:
        """The node and all below it, each before what is below it."""
        yield self
        for child in self.children.values():
            yield from child.walk()


class TupleFormat:
    """The format of a space. Immutable once made.

    `fields`: the space's; `keys`: the parts of each of its indexes; `exact_count`: how many
    fields a tuple must have, 0 for any number. Raises `RequestError` as told above.
    `top`: the nodes of the top-level fields; `names`: field name → number.
    """

    __slots__ = ("_nodes_made", "exact_count", "max_bytes", "names", "required", "top")

    def __init__(
        self,
        fields: Sequence[FieldDef],
        keys: Sequence[Sequence[PartDef]],
        exact_count: int = 0,
        max_bytes: int = TUPLE_BYTES,
    ) -> None:
        self.exact_count = exact_count
        self.max_bytes = max_bytes
        self.names = _names(fields)
        indexed = max((part.field_no + 1 for parts in keys for part in parts), default=0)
        self._nodes_made = max(len(fields), indexed)
        self.top = [FormatNode(number, number, None) for number in range(self._nodes_made)]
        for node, one in zip(self.top, fields, strict=False):
            node.type, node.action = one.type, one.nullable_action
            node.collation_id = one.collation_id
        for parts in keys:
            in_order = all(
                part.field_no == at and part.path is None for at, part in enumerate(parts)
            )
            for part in parts:
                self._use(part, len(fields), in_order)
        self.required = self._find_required()

    # --- building ---------------------------------------------------------------------------------
    def _use(self, part: PartDef, field_count: int, in_order: bool) -> None:
        node = self._reach(part)
        if not in_order and (part.field_no > 0 or part.path is not None):
            node.has_offset = True
        if part.field_no >= field_count and not node.is_key_part:
            node.action = part.nullable_action
        self._join_action(node, part)
        if can_hold(node.type, part.type):
            node.type = part.type
        elif not can_hold(part.type, node.type):
            in_format = ErrorCode.FORMAT_MISMATCH_INDEX_PART
            code = ErrorCode.INDEX_PART_TYPE_MISMATCH if node.is_key_part else in_format
            raise _mismatch(node, part.type, code)
        node.is_key_part = True

    def _reach(self, part: PartDef) -> FormatNode:
        """The node of a part; what is missing on the way is made."""
        node = self.top[part.field_no]
        for step in part.steps:
            _require_container(node, step)
            below = node.children.get(step)
            if below is None:
                below = FormatNode(self._nodes_made, step, node)
                self._nodes_made += 1
                node.children[step] = below
            if node.is_multikey:
                node.has_offset = True
            if node.type in (FieldType.ARRAY, FieldType.MAP) and node.is_nullable:
                node.action = "default"
            node.is_key_part = True
            node = below
        if part.steps and node.type in (FieldType.ARRAY, FieldType.MAP) and node.is_nullable:
            node.action = "default"
        return node

    @staticmethod
    def _join_action(node: FormatNode, part: PartDef) -> None:
        """The stricter of two nullable actions; `default` gives way to any other but `none`."""
        if node.action == "default":
            if part.nullable_action != "none" or part.path is not None:
                node.action = part.nullable_action
        elif part.nullable_action == "default":
            if node.action == "none":
                node.action = "default"
        elif node.action != part.nullable_action:
            raise RequestError(
                ErrorCode.ACTION_MISMATCH,
                f"Field {node.label} contains {node.action} on conflict action, but "
                f"{part.nullable_action} in index parts",
            )

    def _find_required(self) -> frozenset[int]:
        required: set[int] = set()
        for top in self.top:
            for node in top.walk():
                if jsonpath.ANY in node.steps:
                    continue
                if node.is_multikey:
                    each = node.children[jsonpath.ANY]
                    each.required = frozenset(
                        below.number
                        for below in each.walk()
                        if not below.children and not below.is_nullable
                    )
                elif not node.children and not node.is_nullable:
                    required.add(node.number)
        return frozenset(required)

    # --- questions --------------------------------------------------------------------------------
    @property
    def has_paths(self) -> bool:
        """Whether an index looks into a field."""
        return any(node.children for node in self.top)

    @property
    def offsets_bytes(self) -> int:
        """What a tuple's table of offsets takes in memory there; it counts for the limit."""
        return OFFSET_BYTES * sum(node.has_offset for top in self.top for node in top.walk())

    def node_at(self, steps: Sequence[jsonpath.Step]) -> FormatNode | None:
        """The node of a place: field number, then steps. None if nothing is said of it."""
        first = steps[0]
        if not isinstance(first, int) or not 0 <= first < len(self.top):
            return None
        node: FormatNode | None = self.top[first]
        for step in steps[1:]:
            if node is None:
                return None
            node = node.child(step)
        return node

    def accepts_all_of(self, other: TupleFormat) -> bool:
        """Whether every tuple of format `other` surely is one of this format."""
        if self.exact_count != other.exact_count:
            return False
        for top in self.top:
            for node in top.walk():
                before = other.node_at(node.steps)
                if before is None:
                    if node.type is FieldType.ANY and node.is_nullable:
                        continue
                    return False
                if not can_hold(node.type, before.type):
                    return False
                if before.is_nullable and not node.is_nullable:
                    return False
        return True

    # --- checking ---------------------------------------------------------------------------------
    def check(self, data: bytes) -> None:
        """Check a whole tuple: one MsgPack array that fills `data`.

        Raises `RequestError` with the codes above, 22 for what is no array, 20 for no MsgPack.
        """
        if skip(data, 0) != len(data):
            raise invalid_msgpack()
        count, at = read_array(data, 0)
        if self.exact_count and count != self.exact_count:
            raise refused(ErrorCode.EXACT_FIELD_COUNT, count=count, wanted=self.exact_count)
        seen: set[int] = set()
        for node in self.top[:count]:
            at = self._check_node(node, data, at, seen)
        self._check_required(self.required, seen)
        total = HEADER_BYTES + self.offsets_bytes + len(data)
        if total > self.max_bytes:
            raise RequestError(
                ErrorCode.MEMTX_MAX_TUPLE_SIZE,
                f"Failed to allocate {total} bytes for tuple: tuple is too large. Check "
                "'memtx_max_tuple_size' configuration option.",
                hint=f"a tuple has at most {self.max_bytes} bytes here: `tuple_bytes` of "
                "`logweir.open`, `--tuple-bytes` of `serve` and `follow`",
            )

    def _check_node(self, node: FormatNode, data: bytes, at: int, seen: set[int]) -> int:
        """Check the value at `at` and note its node as seen. Returns where the value ends."""
        if not admits(node.type, data, at, node.is_nullable):
            raise refused(ErrorCode.FIELD_TYPE, field=node.label, type=node.type.label)
        seen.add(node.number)
        if not node.children:
            return skip(data, at)
        if mp_type(data, at) is MpType.ARRAY:
            return self._check_array(node, data, at, seen)
        return self._check_map(node, data, at, seen)

    def _check_array(self, node: FormatNode, data: bytes, at: int, seen: set[int]) -> int:
        count, at = read_array(data, at)
        if not node.is_multikey:
            for number in range(count):
                below = node.children.get(number)
                at = skip(data, at) if below is None else self._check_node(below, data, at, seen)
            return at
        each = node.children[jsonpath.ANY]
        for _ in range(count):
            inner: set[int] = set()
            at = self._check_node(each, data, at, inner)
            if each.children:
                self._check_required(each.required, inner)
        return at

    def _check_map(self, node: FormatNode, data: bytes, at: int, seen: set[int]) -> int:
        count, at = read_map(data, at)
        for _ in range(count):
            below = None
            if mp_type(data, at) is MpType.STR:
                begin, at = read_bytes(data, at)
                below = node.children.get(data[begin:at])
            else:
                at = skip(data, at)
            at = skip(data, at) if below is None else self._check_node(below, data, at, seen)
        return at

    def _check_required(self, required: frozenset[int], seen: set[int]) -> None:
        if required <= seen:
            return
        number = min(required - seen)
        label = next(node.label for top in self.top for node in top.walk() if node.number == number)
        raise refused(ErrorCode.FIELD_MISSING, field=label)


def _names(fields: Sequence[FieldDef]) -> dict[bytes, int]:
    names: dict[bytes, int] = {}
    for number, one in enumerate(fields):
        raw = one.name.encode("utf-8", "surrogateescape")
        if raw in names:
            raise refused(ErrorCode.SPACE_FIELD_IS_DUPLICATE, field=one.name)
        names[raw] = number
    return names


def _require_container(node: FormatNode, step: jsonpath.Step) -> None:
    """A path goes on below `node`: make it a map or an array, or tell why it cannot be."""
    wanted = FieldType.MAP if isinstance(step, bytes) else FieldType.ARRAY
    if not can_hold(node.type, wanted):
        raise _mismatch(node, wanted, ErrorCode.INDEX_PART_TYPE_MISMATCH)
    node.type = wanted
    one_for_all = step is jsonpath.ANY
    if node.children and one_for_all != node.is_multikey:
        raise refused(ErrorCode.MULTIKEY_INDEX_MISMATCH, field=node.label)


def _mismatch(node: FormatNode, wanted: FieldType, code: ErrorCode) -> RequestError:
    return refused(code, field=node.label, type=node.type.label, wanted=wanted.label)
