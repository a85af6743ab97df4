# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""Selections over layers and their base, compiled: by full key, and ranges in order.

`store.engine.select` says what each iterator selects. `store.engine.statementkernel` has selections among its
statements and calls this. Nothing recurses or believes a length.
"""

from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.string cimport memcmp, memcpy, memset

cimport logweir.wal.kernel as rows
from logweir.store.state.layerkernel cimport Base, Found, Stack
from logweir.store.state.memtablekernel cimport Memtable
from logweir.store.state.memtablenodes cimport THERE, key_of, order_of, step, step_back, value_of
from logweir.store.schema.plankernel cimport Index, Plan
from logweir.store.schema.packkernel cimport DONE, REFER, REFUSED, items_from

cdef enum:
    BY_EQ = 0
    BY_REQ = 1
    BY_ALL = 2
    BY_LT = 3
    BY_LE = 4
    BY_GE = 5
    BY_GT = 6
    BY_GET = 7

    MORE_THAN_ONE_TUPLE = 41
    REFERENCE = 0xC1
    HEAD_BYTES = 5


cdef class Selector:
    """Answers selections, one after another, for one thread at a time."""

    def __init__(self, Room out not None):
        """`out`: where tuples go."""
        self.out, self.key, self.bound = out, Room(), Room()
        self.limit_bytes = <Py_ssize_t>1 << 60

    def __dealloc__(self):
        PyMem_Free(self.walks)

    cdef int one(
        self, Space space, u64 index_id, u64 by, u64 limit, u64 offset, Source key,
        Py_ssize_t size, u64* span
    ) except -1:
        """Put the tuples of one selection behind what `out` has, as a MsgPack array (dd and four
        bytes), and tell where it stands: `DONE`, `REFUSED` or `REFER`, also where it has more than
        `limit_bytes`.

        `by`: 0 EQ, 1 REQ, 2 ALL, 3 LT, 4 LE, 5 GE, 6 GT; 7: the one tuple with that key of a unique
        index, as `Engine.get`; `limit`: so many tuples at most; `offset`: so many are left out
        first.
        """
        cdef Plan plan = space.plan
        cdef Py_ssize_t place = plan.find_index(index_id)
        cdef u64 count
        cdef Index* index
        cdef bint has_key
        cdef int how
        self.limit, self.offset, self.count, self.begin = limit, offset, 0, self.out.size
        self.scan = None
        if place < 0 or by > BY_GET:
            return REFER
        index = &plan.indexes[place]
        self.key.size = 0
        self.key.need(1)  # for C an empty copy needs a place too
        if by == BY_GET:
            if not index.is_unique:
                self.why.code = MORE_THAN_ONE_TUPLE
                return REFUSED
            how = plan.exact_key(place, key, size, self.key, &self.why)
            return self.exact(space, place, span) if how == DONE else how
        how = plan.search_key(place, key, size, by == BY_ALL or by == BY_GT, self.key, &self.why)
        if how != DONE:
            return how
        if index.is_hash and by != BY_EQ and by != BY_ALL and by != BY_GT:
            return REFER
        if by <= BY_REQ and index.is_unique and index.used == index.own:
            items_from(key, size, &count)
            if count == <u64>index.own:
                return self.exact(space, place, span)
        if index.is_hash and by == BY_ALL:
            self.key.size = 0
        has_key = self.key.size != 0
        self.reverse = by == BY_REQ or by == BY_LT or by == BY_LE
        self.bound.size = 0
        self.bound.need(self.key.size + 1)
        memcpy(self.bound.data, self.key.data, self.key.size)
        self.bound.size = self.key.size
        if by != BY_LT:
            self.succeed()  # of which the class byte of a part, below ff, leaves something
        if by == BY_EQ or by == BY_REQ:
            return self.walk(space, place, has_key, has_key, span)
        if by == BY_GT:
            self.key.size = 0
            self.key.need(self.bound.size)
            memcpy(self.key.data, self.bound.data, self.bound.size)
            self.key.size = self.bound.size
        return self.walk(space, place, has_key and not self.reverse, has_key and self.reverse, span)

    cdef void succeed(self) noexcept:
        """Make `bound` the least key above all that begin with it."""
        while self.bound.size and self.bound.data[self.bound.size - 1] == 0xFF:
            self.bound.size -= 1
        if self.bound.size:
            self.bound.data[self.bound.size - 1] += 1

    cdef int exact(self, Space space, Py_ssize_t index, u64* span) except -1:
        """The tuple whose entry in a unique index is `key`."""
        cdef Found found
        cdef int how = DONE
        if PyList_GET_SIZE(space.kept):
            space.kept.clear()
        space.find(index, self.key.data, self.key.size, &found)
        self.open_answer()
        if found.state == THERE and self.limit and not self.offset:
            how = self.emit(space, index, found.value, found.size)
        self.close_answer(span)
        return how

    # --- ranges -----------------------------------------------------------------------------------
    cdef int walk(
        self, Space space, Py_ssize_t index, bint has_low, bint has_high, u64* span
    ) except -1:
        """The entries from `key` on, if there is a low end, to below `bound`, if there is a high
        one."""
        cdef Py_ssize_t number, size, length, i
        cdef u64 skipped = 0
        cdef Source key, value
        cdef int how = DONE
        if self.reverse:
            self.start(space, index, self.bound, has_high)
        else:
            self.start(space, index, self.key, has_low)
        self.open_answer()
        while self.count < self.limit and how == DONE:
            number = self.pick()
            if number < 0:
                break
            if number == self.depth:
                key, size = self.scan.key, self.scan.size
                value, length = self.scan.value, self.scan.length
            else:
                key, size = key_of(self.walks[number].entry), self.walks[number].entry.key_size
                value = value_of(self.walks[number].entry)
                length = self.walks[number].entry.size
            if self.is_outside(key, size, has_low, has_high):
                break
            if length:
                if skipped < self.offset:
                    skipped += 1
                else:
                    if PyList_GET_SIZE(space.kept):
                        space.kept.clear()  # of the tuple before
                    how = self.emit(space, index, value, length)
            self.pass_entry(number)
        self.close_answer(span)
        self.scan = None
        return how

    cdef int start(self, Space space, Py_ssize_t index, Room bound, bint has_bound) except -1:
        """Go to the first entry of each layer and of the base."""
        cdef Py_ssize_t i
        cdef Stack* stack = &space.stacks[index]
        cdef Memtable table
        cdef void* moved
        if self.walk_room < stack.depth:
            moved = PyMem_Realloc(self.walks, stack.depth * sizeof(Walk))
            if moved == NULL:
                raise MemoryError()
            self.walks, self.walk_room = <Walk*>moved, stack.depth
        self.depth = stack.depth
        for i in range(self.depth):
            table = <Memtable>stack.tables[i]
            if has_bound:
                self.walks[i].place = table.seek(bound.data, bound.size)
            elif self.reverse:
                self.walks[i].place = table.end()
            else:
                self.walks[i].place = table.start()
            self.pass_entry(i)
        self.scan = (<Base>stack.base).open_scan(bound.data, bound.size, has_bound, self.reverse)
        return self.scan.step()

    cdef int pass_entry(self, Py_ssize_t number) except -1:
        """Go on in a layer, or in the base, which comes last."""
        cdef Walk* walk
        if number == self.depth:
            return self.scan.step()
        walk = &self.walks[number]
        walk.entry = step_back(&walk.place) if self.reverse else step(&walk.place)
        return 0

    cdef int pick(self) except -2:
        """Whose entry comes next, the newest of those with the same key, the others of which are
        passed; -1: there are no more."""
        cdef Py_ssize_t i
        cdef int best = -1, order
        cdef Source key = NULL, other
        cdef size_t size = 0, other_size
        for i in range(self.depth + 1):
            if i == self.depth:
                other, other_size = self.scan.key, self.scan.size
            elif self.walks[i].entry == NULL:
                continue
            else:
                other, other_size = key_of(self.walks[i].entry), self.walks[i].entry.key_size
            if other == NULL:
                continue
            if best >= 0:
                order = order_of(other, other_size, key, size)
                if order == 0:
                    self.pass_entry(i)
                if order == 0 or (order > 0) != self.reverse:
                    continue
            best, key, size = <int>i, other, other_size
        return best

    cdef bint is_outside(
        self, Source key, Py_ssize_t size, bint has_low, bint has_high
    ) noexcept:
        if self.reverse:
            return has_low and order_of(key, size, self.key.data, self.key.size) < 0
        return has_high and order_of(key, size, self.bound.data, self.bound.size) >= 0

    # --- answers ----------------------------------------------------------------------------------
    cdef int emit(
        self, Space space, Py_ssize_t index, Source value, Py_ssize_t length
    ) except -1:
        """Put the tuple of an entry into the answer. `REFER` where it is not at hand."""
        cdef Found found
        if index:
            space.find(0, value, length, &found)
            if found.state != THERE:
                return REFER
            value, length = found.value, found.size
        if value[0] == REFERENCE or self.out.size - self.begin + length > self.limit_bytes:
            return REFER
        self.out.need(length)
        memcpy(self.out.data + self.out.size, value, length)
        self.out.size += length
        self.count += 1
        return DONE

    cdef int open_answer(self) except -1:
        """Leave room for the header of the array."""
        self.out.need(HEAD_BYTES)
        self.out.size += HEAD_BYTES
        return 0

    cdef void close_answer(self, u64* span) noexcept:
        """Write it."""
        self.out.data[self.begin] = 0xDD
        rows.put_number(self.out.data, self.begin + 1, self.count, 4)
        span[0], span[1] = self.begin, self.out.size
