# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""One index of the state in LMDB as what lies under the layers, without an object for a lookup or
an entry. `store.statebase` does the same in Python, where LMDB is called by py-lmdb.

Keys that LMDB does not take as they are (`store.longkeys`) are left to the reference engine, that
statement alone; so are values that refer to the log, by whoever finds them here. What is found is
LMDB's own memory: it holds while the interpreter's lock is kept and the transaction goes on, which
each step asks first.
"""

from logweir.store.state.layerkernel cimport Base, Found, Scan
from logweir.store.state.lmdbkernel cimport (
    MDB_FIRST, MDB_LAST, MDB_NOTFOUND, MDB_SUCCESS, Cursor, Database, Transaction, failed, find,
    seek, step)
from logweir.store.state.memtablenodes cimport ABSENT, THERE, order_of
from logweir.store.schema.packkernel cimport DONE, REFER, Source


cdef class StateScan(Scan):
    """Entries of LMDB in order."""

    cdef int check(self) except -1:
        self.cursor.check()
        return 0

    cdef int step(self) except -1:
        cdef Cursor cursor = self.cursor
        self.key = NULL
        cursor.check()
        if self.is_begun and cursor.is_placed:
            cursor.placed(step(cursor.cursor, self.is_back, &cursor.found, &cursor.data))
        self.is_begun = True
        if not cursor.is_placed:
            return DONE
        if cursor.found.mv_size >= self.too_long:
            return REFER
        self.key, self.size = <Source>cursor.found.mv_data, <Py_ssize_t>cursor.found.mv_size
        self.value, self.length = <Source>cursor.data.mv_data, <Py_ssize_t>cursor.data.mv_size
        return DONE


cdef class StateBase(Base):
    """One index in a transaction, which must outlive it.

    `tree`: the same in Python, whose `has_long` says whether there may be keys of `too_long` bytes
    and more, which are not kept as they are.
    """

    def __init__(self, tree not None, size_t too_long):
        self.tree, self.txn, self.database = tree, tree.raw, tree.handle
        if self.txn is None or self.database is None:
            raise ValueError("a transaction and a database are wanted")
        self.number = self.txn.number_of(self.database)
        self.too_long = too_long

    def count(self):
        """How many keys there are, -1 where only Python can tell."""
        return -1 if self.tree.has_long else self.txn.stat(self.database)["entries"]

    cdef bint is_past(self, Source key, size_t size) except -1:
        """Whether a key is greater than all that are there, so that it need not be looked up."""
        cdef Cursor cursor
        if not self.is_asked or self.seen != self.txn.mutations:
            cursor = self.txn.cursor(self.database)
            cursor.move(MDB_LAST)
            self.greatest, self.seen, self.is_asked = cursor.found, self.txn.mutations, True
            cursor.close()
        if self.greatest.mv_size == 0 or self.greatest.mv_size >= self.too_long:
            return False
        return order_of(key, size, <Source>self.greatest.mv_data, self.greatest.mv_size) > 0

    cdef int find(self, Source key, Py_ssize_t size, Found* found, list kept) except -1:
        cdef const char* value = NULL
        cdef size_t length = 0
        cdef int code
        found.state = ABSENT
        self.txn.check()
        if <size_t>size >= self.too_long:
            return REFER if self.tree.has_long else DONE
        if self.is_past(key, size):
            return DONE
        code = find(self.txn.txn, self.number, <const char*>key, size, &value, &length)
        if code == MDB_SUCCESS:
            found.state, found.value, found.size = THERE, <Source>value, <Py_ssize_t>length
        elif code != MDB_NOTFOUND:
            raise failed("mdb_get", code)
        return DONE

    cdef Scan open_scan(self, Source key, Py_ssize_t size, bint has_bound, bint reverse):
        cdef StateScan made = StateScan.__new__(StateScan)
        cdef Cursor cursor = self.txn.cursor(self.database)
        cdef size_t stored = min(<size_t>size, self.too_long)
        made.cursor, made.is_back, made.too_long = cursor, reverse, self.too_long
        if not has_bound:
            cursor.move(MDB_LAST if reverse else MDB_FIRST)
            return made
        cursor.placed(seek(cursor.cursor, <const char*>key, stored, &cursor.found, &cursor.data))
        if not reverse:
            return made
        if not cursor.is_placed:
            cursor.move(MDB_LAST)
        elif stored < self.too_long or order_of(
            <Source>cursor.found.mv_data, cursor.found.mv_size, key, stored
        ):
            cursor.placed(step(cursor.cursor, True, &cursor.found, &cursor.data))
        return made
