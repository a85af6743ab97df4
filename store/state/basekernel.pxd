# One index of the state in LMDB, for `basekernel.pyx`.
from logweir.store.state.layerkernel cimport Base, Found, Scan
from logweir.store.state.lmdbkernel cimport Cursor, Database, MDB_dbi, MDB_val, Transaction

cdef class StateScan(Scan):
    cdef Cursor cursor
    cdef bint is_back
    cdef bint is_begun
    cdef size_t too_long

cdef class StateBase(Base):
    cdef object tree
    cdef Transaction txn
    cdef Database database
    cdef MDB_dbi number
    cdef size_t too_long
    cdef MDB_val greatest  # key of the index; of 0 bytes: it is not known
    cdef unsigned long seen  # mutations of the transaction when that was asked
    cdef bint is_past(self, const unsigned char* key, size_t size) except -1
