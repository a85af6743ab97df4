# cython: language_level=3
# What `store.state.lmdbkernel` offers other kernels: LMDB's own functions, and ways into what its classes
# hold. Source of LMDB's part: `lmdb.h` of LMDB 0.9.24.

from cpython.object cimport PyObject

cdef extern from "lmdb.h" nogil:
    ctypedef struct MDB_env:
        pass
    ctypedef struct MDB_txn:
        pass
    ctypedef struct MDB_cursor:
        pass
    ctypedef unsigned int MDB_dbi
    ctypedef struct MDB_val:
        size_t mv_size
        void *mv_data
    ctypedef struct MDB_stat:
        unsigned int ms_psize
        unsigned int ms_depth
        size_t ms_branch_pages
        size_t ms_leaf_pages
        size_t ms_overflow_pages
        size_t ms_entries
    ctypedef struct MDB_envinfo:
        void *me_mapaddr
        size_t me_mapsize
        size_t me_last_pgno
        size_t me_last_txnid
        unsigned int me_maxreaders
        unsigned int me_numreaders
    ctypedef enum MDB_cursor_op:
        MDB_FIRST
        MDB_GET_CURRENT
        MDB_LAST
        MDB_NEXT
        MDB_PREV
        MDB_SET_RANGE
    enum:
        MDB_RDONLY
        MDB_NOSYNC
        MDB_NOMETASYNC
        MDB_NOTLS
        MDB_NOLOCK
        MDB_NORDAHEAD
        MDB_CREATE
        MDB_NOOVERWRITE
        MDB_APPEND
        MDB_CP_COMPACT
        MDB_SUCCESS
        MDB_KEYEXIST
        MDB_NOTFOUND
        MDB_PAGE_NOTFOUND
        MDB_CORRUPTED
        MDB_PANIC
        MDB_VERSION_MISMATCH
        MDB_INVALID
        MDB_MAP_FULL
        MDB_DBS_FULL
        MDB_READERS_FULL
        MDB_TLS_FULL
        MDB_TXN_FULL
        MDB_CURSOR_FULL
        MDB_PAGE_FULL
        MDB_MAP_RESIZED
        MDB_INCOMPATIBLE
        MDB_BAD_RSLOT
        MDB_BAD_TXN
        MDB_BAD_VALSIZE
        MDB_BAD_DBI
    char *mdb_version(int *major, int *minor, int *patch)
    char *mdb_strerror(int error)
    int mdb_env_create(MDB_env **env)
    int mdb_env_open(MDB_env *env, const char *path, unsigned int flags, unsigned int mode)
    int mdb_env_copy2(MDB_env *env, const char *path, unsigned int flags)
    int mdb_env_stat(MDB_env *env, MDB_stat *stat)
    int mdb_env_info(MDB_env *env, MDB_envinfo *info)
    int mdb_env_sync(MDB_env *env, int force)
    void mdb_env_close(MDB_env *env)
    int mdb_env_set_mapsize(MDB_env *env, size_t size)
    int mdb_env_set_maxreaders(MDB_env *env, unsigned int readers)
    int mdb_env_set_maxdbs(MDB_env *env, MDB_dbi dbs)
    int mdb_txn_begin(MDB_env *env, MDB_txn *parent, unsigned int flags, MDB_txn **txn)
    int mdb_txn_commit(MDB_txn *txn)
    void mdb_txn_abort(MDB_txn *txn)
    void mdb_txn_reset(MDB_txn *txn)
    int mdb_txn_renew(MDB_txn *txn)
    int mdb_dbi_open(MDB_txn *txn, const char *name, unsigned int flags, MDB_dbi *dbi)
    int mdb_stat(MDB_txn *txn, MDB_dbi dbi, MDB_stat *stat)
    int mdb_cmp(MDB_txn *txn, MDB_dbi dbi, const MDB_val *one, const MDB_val *other)
    int mdb_drop(MDB_txn *txn, MDB_dbi dbi, int whole)
    int mdb_get(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, MDB_val *data)
    int mdb_put(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, MDB_val *data, unsigned int flags)
    int mdb_del(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, MDB_val *data)
    int mdb_cursor_open(MDB_txn *txn, MDB_dbi dbi, MDB_cursor **cursor)
    void mdb_cursor_close(MDB_cursor *cursor)
    int mdb_cursor_get(MDB_cursor *cursor, MDB_val *key, MDB_val *data, MDB_cursor_op op)
    int mdb_cursor_put(MDB_cursor *cursor, MDB_val *key, MDB_val *data, unsigned int flags)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass


cdef enum:
    WRITTEN = 3  # pages at most that an entry writes: its leaf, one beside that, its value


# One entry that is set, or removed where `gone`. Key and value stay where they are meanwhile.
ctypedef struct Change:
    bint gone
    MDB_val key
    MDB_val value


# These need no lock of the interpreter; whoever calls them holds the transaction between `enter`
# and `leave`. Each returns LMDB's code: 0, MDB_NOTFOUND, or an error.

# The value under a key: memory of LMDB, good until the transaction writes or ends.
cdef int find(
    MDB_txn *txn, MDB_dbi dbi, const char *key, size_t key_bytes, const char **value, size_t *size
) noexcept nogil
# The first entry whose key is not below `key` (of 0 bytes: the first of all).
cdef int seek(
    MDB_cursor *cursor, const char *key, size_t key_bytes, MDB_val *found, MDB_val *value
) noexcept nogil
# The entry behind the one that the cursor is at, or before it.
cdef int step(MDB_cursor *cursor, bint back, MDB_val *found, MDB_val *value) noexcept nogil
# Make changes of one database, ascending by key, each key once. A key that is to go and is not there
# is passed over. After an error the transaction must be aborted.
cdef int apply(MDB_txn *txn, MDB_dbi dbi, Change *changes, size_t count) noexcept nogil

# The exception for LMDB's code. This one needs the lock.
cdef object failed(str what, int code)


cdef class Database:
    cdef MDB_dbi dbi
    cdef size_t owner  # the number of its environment
    cdef bint is_open
    cdef bytes name


cdef class Environment:
    cdef MDB_env *env
    cdef size_t number
    cdef Database main
    cdef dict handles  # of names to databases that are open
    cdef bint is_readonly, is_closing, is_resizing, is_broken
    cdef unsigned int generation  # of the process
    cdef unsigned long writer  # the thread that has the write transaction, 0 for none
    cdef MDB_txn *orphan  # its transaction, which was collected in another thread
    cdef int running  # calls that go on without the interpreter's lock
    cdef int waiters
    cdef MDB_txn **spares
    cdef int spare_count, spare_max
    cdef PyObject *first  # of its transactions that are not nested: a list
    cdef pthread_mutex_t mutex
    cdef pthread_cond_t changed
    cdef tuple files
    cdef int check(self) except -1
    cdef void wake(self) noexcept
    cdef void wait(self, bint to_close) noexcept
    cdef void end_readers(self) noexcept
    cdef int end_writer(self) except -1
    cdef MDB_txn *begun(self, bint write) except NULL
    cdef MDB_txn *begun_to_write(self) except NULL


cdef class Transaction:
    cdef Environment env
    cdef Transaction parent
    cdef MDB_txn *txn
    cdef bint is_write, in_use
    cdef bint *used  # `in_use` of the outermost one: a call goes on without the interpreter's lock
    cdef unsigned long owner
    cdef unsigned long mutations
    cdef size_t listed  # pages that LMDB's list of those it has written has at most
    cdef list opened  # databases that go where it is aborted
    cdef PyObject *previous
    cdef PyObject *next_one
    cdef PyObject *cursors  # a list
    cdef PyObject *child
    cdef int check(self) except -1
    cdef MDB_dbi number_of(self, Database database) except? 0xFFFFFFFF
    # Around what is done without the interpreter's lock.
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int own(self) except -1
    cdef void end_below(self) noexcept
    cdef void ended(self, bint kept) noexcept
    cdef void end_reading(self) noexcept
    cdef void forget(self) noexcept
    cdef int keep_opened(self) except -1


cdef class Cursor:
    cdef Transaction txn
    cdef Database database
    cdef MDB_cursor *cursor
    cdef MDB_val found, data
    cdef bint is_placed
    cdef unsigned long seen  # mutations of the transaction
    cdef PyObject *previous
    cdef PyObject *next_one
    cdef int check(self) except -1
    cdef bint move(self, MDB_cursor_op op) except -1
    cdef bint placed(self, int code) except -1
    cdef int refresh(self) except -1
    cdef void forget(self) noexcept
    cdef Py_ssize_t put_pairs(
        self, MDB_val *pairs, Py_ssize_t count, unsigned int flags, Py_ssize_t before
    ) except -1
