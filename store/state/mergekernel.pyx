# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""What several memtables show together, and over a base; `store.state.memtable` says what each does."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport calloc, free
from logweir.store.state.memtablekernel cimport Memtable
from logweir.store.state.memtablenodes cimport (
    ABSENT, GONE, THERE, Cursor, Entry, key_of, order_of, step, step_back, u8, u64, value_of)


@cython.final
cdef class MergeCursor:
    """The entries of memtables, newest first, in order, of each key the newest; gone ones too.

    They begin with the key `bound`, or descending with the one before it (None: with the last).
    """

    def __cinit__(self, tables, bytes bound, bint is_descending):
        cdef Memtable table
        cdef int i
        self.tables = list(tables)
        self.count = len(self.tables)
        self.is_descending = is_descending
        self.cursors = <Cursor*> calloc(self.count + 1, sizeof(Cursor))
        self.entries = <Entry**> calloc(self.count + 1, sizeof(Entry*))
        self.changes = <u64**> calloc(self.count + 1, sizeof(u64*))
        self.known = <u64*> calloc(self.count + 1, sizeof(u64))
        if not self.cursors or not self.entries or not self.changes or not self.known:
            raise MemoryError("no memory to merge memtables")
        for i in range(self.count):
            table = self.tables[i]
            if bound is not None:
                self.cursors[i] = table.seek(
                    <const u8*> PyBytes_AS_STRING(bound), PyBytes_GET_SIZE(bound))
            else:
                self.cursors[i] = table.end() if is_descending else table.start()
            self.changes[i] = &table.changes
            self.known[i] = table.changes
            self._advance(i)

    def __dealloc__(self):
        free(self.cursors)
        free(self.entries)
        free(self.changes)
        free(self.known)

    cdef void _advance(self, int i) noexcept nogil:
        cdef Cursor* cursor = &self.cursors[i]
        self.entries[i] = step_back(cursor) if self.is_descending else step(cursor)

    cdef int next(self) except -1 nogil:
        cdef Entry* best = NULL
        cdef Entry* entry
        cdef int i, order
        cdef int first = 0
        for i in range(self.count):
            if self.changes[i][0] != self.known[i]:
                with gil:
                    raise RuntimeError("the memtable was changed while it was read")
            entry = self.entries[i]
            if entry == NULL:
                continue
            if best != NULL:
                order = order_of(key_of(entry), entry.key_size, key_of(best), best.key_size)
                if order == 0:
                    self._advance(i)  # a newer one says something of this key
                    continue
                if (order < 0) == self.is_descending:
                    continue
            best, first = entry, i
        if best == NULL:
            return ABSENT
        self._advance(first)
        self.seen.key, self.seen.key_size = key_of(best), best.key_size
        self.seen.value, self.seen.size = value_of(best), best.size
        return THERE if best.size else GONE


def merged_ascending(tables, bytes start not None, base):
    return _merged(MergeCursor(tables, start, False), iter(base))


def merged_descending(tables, bytes stop, base):
    return _merged(MergeCursor(tables, stop, True), iter(base))


def _merged(MergeCursor layers, base):
    cdef int state = layers.next()
    cdef int order
    cdef bytes key
    item = next(base, None)
    while item is not None or state != ABSENT:
        order = -1
        if item is not None:
            key = item[0]
            order = 1
            if state != ABSENT:
                order = order_of(
                    layers.seen.key, layers.seen.key_size,
                    <const u8*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
                if layers.is_descending:
                    order = -order
        if order > 0:
            yield item
        elif state == THERE:
            yield (
                PyBytes_FromStringAndSize(<const char*> layers.seen.key, layers.seen.key_size),
                PyBytes_FromStringAndSize(<const char*> layers.seen.value, layers.seen.size))
        if order >= 0:
            item = next(base, None)
        if order <= 0:
            state = layers.next()
