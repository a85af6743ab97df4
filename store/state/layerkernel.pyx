# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""A space in its layers, compiled: look a key up from the newest down to the base; change; undo.

Each index has memtables (`store.state.memtable`), newest first. The first is open in a transaction that
writes, the others are only read. In the primary index a key's value is the tuple, in the others the
primary key.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.string cimport memcpy

from logweir.store.state.memtablenodes cimport ABSENT, THERE, Value, order_of
from logweir.store.schema.packkernel cimport DONE

cdef struct Change:
    # What one change replaced; the key stands behind it, and then the size of both.
    void* table
    Py_ssize_t size
    Value before


cdef class Undo:
    """What changes of memtables replaced, so that they can be taken back: of one transaction."""

    def __cinit__(self):
        self.room = Room()
        self.tables = []

    cdef int note(self, Memtable table) except -1:
        """Let a table live as long as this."""
        cdef Py_ssize_t i
        self.last = <void*>table
        for i in range(PyList_GET_SIZE(self.tables)):
            if <void*>PyList_GET_ITEM(self.tables, i) == self.last:
                return 0
        self.last = NULL  # should there be no memory
        self.tables.append(table)
        self.last = <void*>table
        return 0

    cdef int put(
        self, Memtable table, Source key, Py_ssize_t size, Source value, Py_ssize_t length,
        bytes held
    ) except -1:
        """Set a key; to nothing, which means gone, where `length` is 0. `held`: not None: the
        value as an object."""
        cdef Change change
        cdef Py_ssize_t whole = sizeof(Change) + size
        if <void*>table != self.last:
            self.note(table)
        self.room.need(whole + sizeof(Py_ssize_t))
        change.table, change.size = <void*>table, size
        if held is None:
            table.set(key, size, value, length, &change.before)
        else:
            table.set_object(key, size, held, &change.before)
        memcpy(self.room.data + self.room.size, &change, sizeof(Change))
        memcpy(self.room.data + self.room.size + sizeof(Change), key, size)
        memcpy(self.room.data + self.room.size + whole, &whole, sizeof(Py_ssize_t))
        self.room.size += whole + sizeof(Py_ssize_t)
        return 0

    cdef int back(self, Py_ssize_t mark) except -1:
        """Take all changes since a mark back."""
        cdef Py_ssize_t whole, start
        cdef Change change
        while self.room.size > mark:
            memcpy(&whole, self.room.data + self.room.size - sizeof(Py_ssize_t), sizeof(Py_ssize_t))
            start = self.room.size - sizeof(Py_ssize_t) - whole
            memcpy(&change, self.room.data + start, sizeof(Change))
            (<Memtable>change.table).put_back(
                self.room.data + start + sizeof(Change), change.size, change.before)
            self.room.size = start
        return 0

    def set(self, Memtable table not None, bytes key not None, bytes value not None):
        """Set a value; an empty one means that the key is gone."""
        self.put(table, <Source>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), NULL, 0, value)

    def mark(self):
        """A place to roll back to."""
        return self.room.size

    def rollback(self, Py_ssize_t mark):
        """Take all changes since a mark back."""
        if not 0 <= mark <= self.room.size:
            raise ValueError("no such mark")
        self.back(mark)

    def forget(self):
        """Nothing done until now will be taken back."""
        self.room.size = 0
        self.tables.clear()
        self.last = NULL


cdef class Scan:
    """Entries of the base in order, one at a time; here from a Python iterator of pairs."""

    cdef int check(self) except -1:
        """Raise where the entry at hand is no longer there to be read."""
        return 0

    cdef int step(self) except -1:
        """Go to the first or next entry, which holds until the next step. `DONE`, also behind the
        last one, or `REFER` where only Python can go on."""
        self.pair = next(self.pairs, None)
        if self.pair is None:
            self.key = NULL
            return DONE
        key, value = self.pair
        self.key, self.size = <Source>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        self.value, self.length = <Source>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        return DONE


cdef class Base:
    """What lies under all layers of one index, here nothing. A subclass gives `get`, `scan`, `count`
    and `last_key`, or does it in C (`basekernel.pyx`)."""

    def get(self, bytes key):
        """The value under a key, None where there is none."""
        return None

    def last_key(self):
        """The greatest key, None where there is none. It is asked once."""
        return None

    def count(self):
        """How many keys there are."""
        return 0

    def scan(self, bytes start, stop, bint reverse):
        """Keys and values, start ≤ key < stop (None: no end), in order or reversed."""
        return iter(())

    cdef int find(self, Source key, Py_ssize_t size, Found* found, list kept) except -1:
        """`get` in C: `DONE`, or `REFER` where only Python can tell. What it finds holds as long
        as it is in `kept`."""
        cdef object value
        found.state = ABSENT
        if not self.is_asked:
            self.last = self.last_key()
            self.is_asked = True
        if self.last is None or order_of(
            key, size, <Source>PyBytes_AS_STRING(self.last), PyBytes_GET_SIZE(self.last)
        ) > 0:
            return DONE
        value = self.get(PyBytes_FromStringAndSize(<char*>key, size))
        if value is not None:
            kept.append(value)
            found.state = THERE
            found.value = <Source>PyBytes_AS_STRING(value)
            found.size = PyBytes_GET_SIZE(value)
        return DONE

    cdef Scan open_scan(self, Source key, Py_ssize_t size, bint has_bound, bint reverse):
        """Entries from a key on, or, in reverse, below it; of all, if there is no bound."""
        cdef Scan made = Scan.__new__(Scan)
        bound = PyBytes_FromStringAndSize(<char*>key, size) if has_bound else None
        if reverse:
            made.pairs = iter(self.scan(b"", bound, True))
        else:
            made.pairs = iter(self.scan(bound or b"", None, False))
        return made


cdef class Space:
    """A space in one transaction. `tables`: of each index of the plan its memtables, newest first;
    `bases`: what lies below each. `undo`: of a transaction that writes, into the first table of
    each index; None: nobody does. `early`: of each index, how many memtables behind the first are
    not durable yet."""

    def __init__(self, Plan plan, list tables, list bases, Undo undo, early=()):
        cdef Py_ssize_t i, k, count = plan.index_count, room = count
        cdef Memtable table
        cdef Base base
        if self.stacks != NULL or len(tables) != count or len(bases) != count:
            raise ValueError("tables and a base are given for each index, once")
        self.plan, self.undo = plan, undo
        self.tables, self.bases = [list(stack) for stack in tables], list(bases)
        self.kept = []
        for stack in self.tables:
            if undo is not None and not stack:
                raise ValueError("what writes needs a memtable for each index")
            room += len(stack)
        self.stacks = <Stack*>PyMem_Calloc(count, sizeof(Stack))
        self.flat = <void**>PyMem_Calloc(room, sizeof(void*))
        if self.flat == NULL or self.stacks == NULL:
            raise MemoryError()
        room = 0
        for i in range(count):
            base = self.bases[i]
            stack = self.tables[i]
            if base is None:
                raise ValueError("tables and a base are given for each index, once")
            self.stacks[i].tables, self.stacks[i].base = &self.flat[room], <void*>base
            for k in range(len(stack)):
                table = stack[k]
                if table is None:
                    raise ValueError("a memtable is wanted")
                self.flat[room] = <void*>table
                room += 1
            self.stacks[i].depth = len(stack)
            if undo is not None and early:
                self.stacks[i].early = early[i]

    def __dealloc__(self):
        PyMem_Free(self.flat)
        PyMem_Free(self.stacks)

    cdef int find(self, Py_ssize_t index, Source key, Py_ssize_t size, Found* found) except -1:
        """Look a key up: `DONE`, or `REFER` where only Python can. What it finds holds until `kept`
        is cleared."""
        cdef Stack* stack = &self.stacks[index]
        cdef Py_ssize_t i
        for i in range(stack.depth):
            found.state = (<Memtable>stack.tables[i]).find(
                key, size, &found.value, <size_t*>&found.size)
            if found.state != ABSENT:
                if i <= stack.early and self.undo is not None:
                    if i:
                        self.undo.is_early = True
                    else:
                        self.undo.is_own = True
                return DONE
        return (<Base>stack.base).find(key, size, found, self.kept)

    cdef int put(
        self, Py_ssize_t index, Source key, Py_ssize_t size, Source value, Py_ssize_t length
    ) except -1:
        """Set a key in the open layer; to nothing, which means gone, where `length` is 0."""
        return self.undo.put(
            <Memtable>self.stacks[index].tables[0], key, size, value, length, None)
