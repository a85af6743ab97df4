# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""A space in its layers, compiled: look a key up from the newest down to the base; change; undo.

A layer is a list of memtables (`store.memtable`), one for each index of the space's plan in its
order. The first is open, the others are only read. In the primary index a key's value is the
tuple, in the others the primary key.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.string cimport memcpy

from logweir.store.memtablenodes cimport ABSENT, THERE, Value

cdef struct Change:
    # What one change replaced; the key stands behind it, and then the size of both.
    Py_ssize_t index
    Py_ssize_t size
    Value before


cdef class Scan:
    """Entries of the base in order, one at a time; here from a Python iterator of pairs."""

    cdef int step(self) except -1:
        """Go to the first or next entry, which holds until the next step."""
        self.pair = next(self.pairs, None)
        if self.pair is None:
            self.key = NULL
            return 0
        key, value = self.pair
        self.key, self.size = <Source>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        self.value, self.length = <Source>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        return 0


cdef class Base:
    """What lies under all layers. A subclass gives `get` and `scan`, or does it in C."""

    def __cinit__(self):
        self.kept = []

    def get(self, u64 space_id, u64 index_id, bytes key):
        """The value under a key of an index, None where there is none."""
        return None

    def scan(self, u64 space_id, u64 index_id, bytes start, stop, bint reverse):
        """Keys and values of an index, start ≤ key < stop (None: no end), in order or reversed."""
        return iter(())

    cdef int find(self, u64 space, u64 index, Source key, Py_ssize_t size, Found* found) except -1:
        """`get` in C. What it finds holds until `kept` is cleared: for one statement."""
        cdef object value = self.get(space, index, PyBytes_FromStringAndSize(<char*>key, size))
        found.state = ABSENT
        if value is not None:
            self.kept.append(value)
            found.state = THERE
            found.value = <Source>PyBytes_AS_STRING(value)
            found.size = PyBytes_GET_SIZE(value)
        return 0

    cdef Scan open_scan(
        self, u64 space, u64 index, Source key, Py_ssize_t size, bint has_bound, bint reverse
    ):
        """Entries from a key on, or, in reverse, below it; of all, if there is no bound."""
        cdef Scan made = Scan.__new__(Scan)
        bound = PyBytes_FromStringAndSize(<char*>key, size) if has_bound else None
        if reverse:
            made.pairs = iter(self.scan(space, index, b"", bound, True))
        else:
            made.pairs = iter(self.scan(space, index, bound or b"", None, False))
        return made


cdef class Space:
    """A space of a batch. `layers`: newest first, at least one; `base`: below them."""

    def __init__(self, Plan plan, list layers, Base base):
        cdef Py_ssize_t i, k, count = plan.index_count
        cdef Memtable table
        if not layers or self.flat != NULL:
            raise ValueError("a space has at least one layer, and they are given once")
        self.plan, self.layers, self.base = plan, [list(layer) for layer in layers], base
        self.undo = Room()
        self.flat = <void**>PyMem_Calloc(len(layers) * count + 1, sizeof(void*))
        if self.flat == NULL:
            raise MemoryError()
        self.depth = len(layers)
        for i in range(self.depth):
            if len(self.layers[i]) != count:
                raise ValueError("a layer has a memtable for each index")
            for k in range(count):
                table = self.layers[i][k]
                if table is None:
                    raise ValueError("a layer has a memtable for each index")
                self.flat[i * count + k] = <void*>table

    def __dealloc__(self):
        PyMem_Free(self.flat)

    cdef int find(self, Py_ssize_t index, Source key, Py_ssize_t size, Found* found) except -1:
        """Look a key up. What it finds holds until the base's `kept` is cleared."""
        cdef Py_ssize_t i
        for i in range(self.depth):
            found.state = (<Memtable>self.flat[i * self.plan.index_count + index]).find(
                key, size, &found.value, <size_t*>&found.size)
            if found.state != ABSENT:
                found.layer = <int>i
                return 0
        found.layer = <int>self.depth
        return self.base.find(self.plan.space_id, self.plan.indexes[index].id, key, size, found)

    cdef int put(
        self, Py_ssize_t index, Source key, Py_ssize_t size, Source value, Py_ssize_t length
    ) except -1:
        """Set a key in the open layer; to nothing, which means gone, where `length` is 0."""
        cdef Change change
        cdef Py_ssize_t whole = sizeof(Change) + size
        if not self.keeps_undo:
            return (<Memtable>self.flat[index]).set(key, size, value, length, NULL)
        self.undo.need(whole + sizeof(Py_ssize_t))
        change.index = index
        change.size = size
        (<Memtable>self.flat[index]).set(key, size, value, length, &change.before)
        memcpy(self.undo.data + self.undo.size, &change, sizeof(Change))
        memcpy(self.undo.data + self.undo.size + sizeof(Change), key, size)
        memcpy(self.undo.data + self.undo.size + whole, &whole, sizeof(Py_ssize_t))
        self.undo.size += whole + sizeof(Py_ssize_t)
        return 0

    # --- undo -------------------------------------------------------------------------------------
    def mark(self):
        """Keep from now on what changes replace; for `rollback` to here."""
        self.keeps_undo = True
        return self.undo.size

    def forget(self):
        """Nothing done until now will be undone."""
        self.keeps_undo = False
        self.undo.size = 0

    def rollback(self, Py_ssize_t mark):
        """Undo all changes since a mark."""
        cdef Py_ssize_t whole, start
        cdef Change change
        if not 0 <= mark <= self.undo.size:
            raise ValueError("no such mark")
        while self.undo.size > mark:
            memcpy(&whole, self.undo.data + self.undo.size - sizeof(Py_ssize_t), sizeof(Py_ssize_t))
            start = self.undo.size - sizeof(Py_ssize_t) - whole
            memcpy(&change, self.undo.data + start, sizeof(Change))
            (<Memtable>self.flat[change.index]).put_back(
                self.undo.data + start + sizeof(Change), change.size, change.before)
            self.undo.size = start

    # --- for the reference engine -----------------------------------------------------------------
    def get(self, Py_ssize_t index, bytes key):
        """The value under a key of the index at that place, None where there is none."""
        cdef Found found
        self.check_index(index)
        self.find(index, <Source>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), &found)
        if found.state != THERE:
            return None
        return PyBytes_FromStringAndSize(<char*>found.value, found.size)

    def set(self, Py_ssize_t index, bytes key, bytes value):
        """Set a value; an empty one means that the key is gone."""
        self.check_index(index)
        self.put(index, <Source>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key),
                 <Source>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))

    def check_index(self, Py_ssize_t index):
        """Raise `IndexError` where the plan has no index at that place."""
        if not 0 <= index < self.plan.index_count:
            raise IndexError(f"index {index} of {self.plan.index_count}")
