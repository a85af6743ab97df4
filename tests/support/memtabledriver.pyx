# cython: language_level=3
"""A kernel that uses memtables as other kernels do: by cimport, and without the interpreter."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from logweir.store.state.memtablekernel cimport Memtable
from logweir.store.state.memtablenodes cimport (
    ABSENT, Cursor, Entry, Value, key_of, step, step_back, u8, value_of)
from logweir.store.state.mergekernel cimport MergeCursor


cdef u8* _exact(bytes data) except NULL:
    """The bytes in a block that ends where they end, so that reading on is seen."""
    cdef u8* block = <u8*> malloc(PyBytes_GET_SIZE(data) or 1)
    memcpy(block, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return block


cdef class Driver:
    """One memtable, its changes, and how to take them back."""

    cdef readonly Memtable table
    cdef list undo

    def __init__(self, Memtable table):
        self.table = table
        self.undo = []

    def set(self, bytes key, bytes value):
        """Set a key, and note what stood there."""
        cdef u8* own_key = _exact(key)
        cdef u8* own_value = _exact(value)
        cdef size_t n = PyBytes_GET_SIZE(key)
        cdef size_t m = PyBytes_GET_SIZE(value)
        cdef Value before
        try:
            with nogil:
                self.table.set(own_key, n, own_value, m, &before)
        finally:
            free(own_key)
            free(own_value)
        self.undo.append((key, before.state, <size_t> before.held, before.size))

    def take_back(self):
        """Undo the last set."""
        cdef Value before
        key, before.state, held, before.size = self.undo.pop()
        before.held = <const void*> <size_t> held
        cdef u8* own_key = _exact(key)
        cdef size_t n = PyBytes_GET_SIZE(key)
        try:
            with nogil:
                self.table.put_back(own_key, n, before)
        finally:
            free(own_key)

    def unset(self, bytes key):
        """Whether the map had said something of it."""
        cdef u8* own_key = _exact(key)
        cdef size_t n = PyBytes_GET_SIZE(key)
        cdef bint found
        with nogil:
            found = self.table.unset(own_key, n)
        free(own_key)
        return found

    def find(self, bytes key):
        """The state of a key and its value."""
        cdef u8* own_key = _exact(key)
        cdef size_t n = PyBytes_GET_SIZE(key)
        cdef const u8* value = NULL
        cdef size_t m
        cdef int state
        with nogil:
            state = self.table.find(own_key, n, &value, &m)
        free(own_key)
        return state, value[:m] if m else b""

    def walk(self, bytes key, int forth, int back):
        """The keys that so many steps forth and then back pass, from a key on."""
        cdef u8* own_key = _exact(key)
        cdef Cursor place = self.table.seek(own_key, PyBytes_GET_SIZE(key))
        cdef Entry* entry
        free(own_key)
        passed = []
        for _ in range(forth):
            entry = step(&place)
            passed.append(None if entry == NULL else key_of(entry)[:entry.key_size])
        for _ in range(back):
            entry = step_back(&place)
            passed.append(None if entry == NULL else value_of(entry)[:entry.size])
        return passed


def merged(list tables, bytes bound, bint is_descending):
    """The states, keys and values that a merge passes, the gone ones too."""
    cdef MergeCursor layers = MergeCursor(tables, bound, is_descending)
    cdef int state
    passed = []
    while True:
        with nogil:
            state = layers.next()
        if state == ABSENT:
            return passed
        value = layers.seen.value[:layers.seen.size] if layers.seen.size else b""
        passed.append((state, layers.seen.key[:layers.seen.key_size], value))


def move_undo(Driver one, Driver other):
    """Let one take back what another did, which it must not: for a test that this is seen."""
    other.undo = one.undo
