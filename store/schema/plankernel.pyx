# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""What is known of a space, compiled: does a tuple fit, which entries does it make, what is a key.

`store.schema.format` says what fits, `store.schema.keys` what keys look like; both are asked where this does not
know it: a value in a JSON path, a decimal, a collation. Nothing recurses or believes a length.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.string cimport memcpy

cimport logweir.store.schema.kernel as keys
cimport logweir.wal.kernel as rows
from logweir.store.schema.packkernel cimport DONE, REFER, REFUSED, after, items_from, put_items

cdef enum:
    # Numbers of a key plan: see store.kernel.
    EXACT = 0
    CHECKED = 1
    LIMIT = 2
    HEAD = 5
    ABSENT_BIT = 32

    INDEX_HEAD = 6  # numbers of an index before its parts
    PART_NUMBERS = 5
    PART_ROOM = 20  # as store.kernel.PART_BYTES
    INDEXES = 128
    NIL = 0xC0
    KEY_NIL = 0x10
    KIND_EXT = 10

    KEY_PART_TYPE = 18
    EXACT_MATCH = 19
    FIELD_TYPE = 23
    KEY_PART_COUNT = 31
    EXACT_FIELD_COUNT = 38
    FIELD_MISSING = 39
    PARTIAL_KEY = 136


cdef class Plan:
    """What is known of a space's format and of its indexes that are kept, the primary one first.

    `source`: the space's definition, for whom it may concern; `table`: of the primary index, as
    `bulk.KeyPlan.table` has it; `types`: of the fields that it checks; `indexes`: of each id, 1 if
    unique, 1 if HASH, own parts, wanted parts, parts, and then of each part field, type, kinds and
    extensions of a request's value, 1 if that may be nil; `blob`, `bounds`: names of fields, and
    where each begins. Arrays have format "Q". Raises `ValueError` for numbers that contradict one
    another.
    """

    def __cinit__(self):
        self.owed = <Py_ssize_t*>PyMem_Calloc(512, sizeof(Py_ssize_t))
        if self.owed == NULL:
            raise MemoryError()

    def __init__(self, u64 space_id, source, table, types, indexes, bytes blob, bounds):
        cdef const u64[::1] fields = table, kinds = types, names = bounds
        cdef Py_ssize_t i
        self.space_id = space_id
        self.source = source
        self.read_indexes(indexes)
        if len(fields) < HEAD or (<Py_ssize_t>len(fields) - HEAD) // 2 < <Py_ssize_t>fields[CHECKED]:
            raise ValueError("the table of the primary index ends too early")
        if len(kinds) != <Py_ssize_t>fields[CHECKED]:
            raise ValueError("types must be given for each field")
        for i in range(len(names) - 1):
            if not names[i] <= names[i + 1] <= <u64>len(blob):
                raise ValueError("a name is not in its buffer")
        self.blob = blob
        self.kept = (table, types, bounds)
        self.table = &fields[0]
        self.types = &kinds[0] if len(kinds) else NULL
        self.names.blob = <Source>PyBytes_AS_STRING(blob)
        self.names.bounds = &names[0]
        self.names.count = len(names) - 1

    def read_indexes(self, const u64[::1] numbers):
        """Take the indexes as `Plan` tells."""
        cdef Py_ssize_t at = 0, part = 0, count = len(numbers), k, other, alike
        cdef Index* index
        if self.indexes != NULL:
            raise ValueError("a plan is made once")
        self.indexes = <Index*>PyMem_Calloc(INDEXES, sizeof(Index))
        self.parts = <Part*>PyMem_Calloc(count // PART_NUMBERS + 1, sizeof(Part))
        if self.indexes == NULL or self.parts == NULL:
            raise MemoryError()
        while at < count:
            if self.index_count == INDEXES or count - at < INDEX_HEAD:
                raise ValueError("too many indexes")
            index = &self.indexes[self.index_count]
            index.id = numbers[at]
            index.is_unique, index.is_hash = numbers[at + 1] != 0, numbers[at + 2] != 0
            index.own, index.wanted = numbers[at + 3], numbers[at + 4]
            index.used = numbers[at + 5]
            index.first = part
            at += INDEX_HEAD
            if index.used > (count - at) // PART_NUMBERS or not 0 <= index.own <= index.used:
                raise ValueError("an index ends too early")
            index.alike = 1
            for k in range(index.used):
                self.parts[part].field = numbers[at]
                self.parts[part].type = numbers[at + 1]
                self.parts[part].plain = numbers[at + 2]
                self.parts[part].extensions = numbers[at + 3]
                self.parts[part].is_nullable = numbers[at + 4] != 0
                if numbers[at] >= PLACES:
                    raise ValueError("an index looks too far into tuples")
                alike = 0
                for other in range(index.first, part + 1):
                    alike += self.parts[other].field == numbers[at]
                index.alike = max(index.alike, alike)
                self.reach = max(self.reach, <Py_ssize_t>numbers[at] + 1)
                part += 1
                at += PART_NUMBERS
            self.index_count += 1
        if self.index_count == 0 or self.indexes[0].id != 0:
            raise ValueError("the primary index comes first")

    def __dealloc__(self):
        PyMem_Free(self.indexes)
        PyMem_Free(self.parts)
        PyMem_Free(self.owed)

    @property
    def index_ids(self):
        """The ids of the indexes, in the order in which tables of them are given."""
        return [self.indexes[i].id for i in range(self.index_count)]

    cdef Py_ssize_t find_index(self, u64 index_id) noexcept:
        """The place of the index of that id; -1: it is not kept, or not there."""
        cdef Py_ssize_t i
        for i in range(self.index_count):
            if self.indexes[i].id == index_id:
                return i
        return -1

    # --- tuples -----------------------------------------------------------------------------------
    cdef bint check(self, Source data, Py_ssize_t size, Fields* to) noexcept:
        """Whether a tuple fits, and where its first fields begin."""
        cdef u64 count, i
        cdef const u64* table = self.table
        cdef u64 checked = table[CHECKED]
        cdef Py_ssize_t stop
        cdef unsigned char first
        cdef Py_ssize_t at = items_from(data, size, &count)
        if at < 0 or <u64>size > table[LIMIT]:
            return False
        if table[EXACT] != 0 and count != table[EXACT]:
            return False
        for i in range(count):
            stop = after(data, at, size, self.owed)
            if stop < 0:
                return False
            if i < PLACES:
                to.at[i] = at
            if i < checked:
                first = data[at]
                if table[HEAD + 2 * i] >> keys.KINDS[first] & 1 == 0 or keys.KINDS[first] == KIND_EXT:
                    if not self.admits(table[HEAD + 2 * i], table[HEAD + 1 + 2 * i], data + at,
                                       False):
                        return False
            at = stop
        for i in range(count, checked):
            if table[HEAD + 1 + 2 * i] >> ABSENT_BIT & 1 == 0:
                return False
        to.count = <Py_ssize_t>count
        return at == size

    cdef bint admits(self, u64 plain, u64 extensions, Source value, bint is_nullable) noexcept:
        """Whether a whole value is of a kind, or an extension of a type, in the given sets."""
        cdef unsigned char first = value[0], code
        if keys.KINDS[first] != KIND_EXT:
            return plain >> keys.KINDS[first] & 1 or (is_nullable and first == NIL)
        code = value[1] if first >= 0xD4 else value[1 + (1 << (first - 0xC7))]
        return code < 128 and extensions >> (code & 31) & 1

    cdef int explain(self, Source data, Py_ssize_t size, Refusal* why) noexcept:
        """Why `check` fails, in the order of `TupleFormat.check`. `REFUSED`, or `REFER`."""
        cdef u64 count, i
        cdef const u64* table = self.table
        cdef Py_ssize_t at
        if rows.skip_value(data, 0, size, self.owed, 0) != size:
            return REFER
        at = items_from(data, size, &count)
        if at < 0:
            return REFER
        if table[EXACT] != 0 and count != table[EXACT]:
            why.code, why.first, why.second = EXACT_FIELD_COUNT, count, table[EXACT]
            return REFUSED
        for i in range(min(count, table[CHECKED])):
            if not self.admits(table[HEAD + 2 * i], table[HEAD + 1 + 2 * i], data + at, False):
                why.code, why.first, why.second = FIELD_TYPE, i + 1, self.types[i]
                return REFUSED
            at = after(data, at, size, self.owed)
            if at < 0:
                return REFER
        for i in range(count, table[CHECKED]):
            if table[HEAD + 1 + 2 * i] >> ABSENT_BIT & 1 == 0:
                why.code, why.first, why.second = FIELD_MISSING, i + 1, 0
                return REFUSED
        return REFER

    cdef bint places(self, Source data, Py_ssize_t size, Fields* to) noexcept:
        """Where the fields of a stored tuple begin that indexes use. False: it is no tuple."""
        cdef u64 count
        cdef Py_ssize_t at = items_from(data, size, &count)
        cdef Py_ssize_t i
        if at < 0:
            return False
        to.count = <Py_ssize_t>min(count, <u64>self.reach)
        for i in range(to.count):
            if at >= size:
                return False
            to.at[i] = at
            at = after(data, at, size, self.owed)
            if at < 0:
                return False
        return True

    cdef int put_key(
        self, Py_ssize_t number, Source data, Py_ssize_t size, Fields* fields, Room out
    ) except -1:
        """Write a tuple's entry in an index behind what `out` has. `DONE` or `REFER`."""
        cdef Index* index = &self.indexes[number]
        cdef Part* part = &self.parts[index.first]
        cdef Py_ssize_t wanted = index.wanted, k, at, used
        out.need(2 * size * index.alike + PART_ROOM * index.used)
        used = out.size
        for k in range(index.used):
            if k == wanted:
                break
            at = fields.at[part[k].field] if <Py_ssize_t>part[k].field < fields.count else -1
            if at < 0 or data[at] == NIL:
                out.data[used] = KEY_NIL
                used += 1
                wanted = index.used
                continue
            used = keys.put_part(data, at, part[k].type, out.data, used)
            if used < 0:
                return REFER
        out.size = used
        return DONE

    cdef int own_key(self, Source data, Py_ssize_t size, Fields* fields, Room out) except -1:
        """Write a tuple's primary key as a request would give it. `DONE` or `REFER`."""
        cdef Index* index = &self.indexes[0]
        cdef Py_ssize_t k, at, stop
        cdef u64 field
        out.need(5)
        out.size = put_items(out.data, out.size, index.own)
        for k in range(index.own):
            field = self.parts[index.first + k].field
            if <Py_ssize_t>field >= fields.count:
                return REFER
            at = fields.at[field]
            stop = after(data, at, size, self.owed)
            if stop < 0:
                return REFER
            out.need(stop - at)
            memcpy(out.data + out.size, data + at, stop - at)
            out.size += stop - at
        return DONE

    # --- keys of requests -------------------------------------------------------------------------
    cdef int exact_key(
        self, Py_ssize_t number, Source key, Py_ssize_t size, Room out, Refusal* why
    ) except -1:
        """As `keys.exact_key`: write the key behind what `out` has. `DONE`, `REFUSED`, `REFER`."""
        cdef Index* index = &self.indexes[number]
        cdef u64 count
        cdef Py_ssize_t at = items_from(key, size, &count)
        if at < 0 or rows.skip_value(key, 0, size, self.owed, 0) != size:
            return REFER
        if count != <u64>index.own:
            why.code, why.first, why.second = EXACT_MATCH, index.own, count
            return REFUSED
        return self.encode(index, key, at, size, <Py_ssize_t>count, False, out, why)

    cdef int search_key(
        self, Py_ssize_t number, Source key, Py_ssize_t size, bint all_allowed, Room out,
        Refusal* why
    ) except -1:
        """As `keys.search_key`; `why` then tells nothing."""
        cdef Index* index = &self.indexes[number]
        cdef u64 count
        cdef Py_ssize_t at = items_from(key, size, &count)
        if at < 0 or rows.skip_value(key, 0, size, self.owed, 0) != size:
            return REFER
        if count == 0 and (all_allowed or not index.is_hash):
            return DONE
        if count > <u64>index.own:
            why.code, why.first, why.second = KEY_PART_COUNT, index.own, count
            return REFUSED
        if index.is_hash and count < <u64>index.own:
            return REFER
        return self.encode(index, key, at, size, <Py_ssize_t>count, True, out, why)

    cdef int encode(
        self, Index* index, Source key, Py_ssize_t at, Py_ssize_t size, Py_ssize_t count,
        bint nullable, Room out, Refusal* why
    ) except -1:
        """The first `count` parts of a well-formed key."""
        cdef Part* part = &self.parts[index.first]
        cdef Py_ssize_t k, used
        out.need(2 * size + PART_ROOM * count)
        used = out.size
        for k in range(count):
            if not self.admits(part[k].plain, part[k].extensions, key + at,
                               nullable and part[k].is_nullable):
                why.code, why.first, why.second = KEY_PART_TYPE, k, part[k].type & 0xFF
                return REFUSED
            if key[at] == NIL:
                out.data[used] = KEY_NIL
                used += 1
            else:
                used = keys.put_part(key, at, part[k].type, out.data, used)
                if used < 0:
                    return REFER
            at = after(key, at, size, self.owed)
            if at < 0:
                return REFER
        out.size = used
        return DONE
