# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=False
# distutils: libraries = lmdb
"""LMDB, called from C: the part of py-lmdb that the store uses, under the same names.

`store.state.base` is its face and says what may be relied on; its types are in `lmdbkernel.pyi`, what
other kernels may call in `lmdbkernel.pxd`. It differs from py-lmdb in this:

* Only what takes long gives up the interpreter's lock, and once: `open`, `close`, `copy`, `sync`,
  the beginning and the end of a transaction that writes, `drop`, `putmulti`.
* What py-lmdb leaves undefined is refused with `Error`: a second thread in a transaction while a
  call goes on there, the end of a transaction that writes in another thread than its beginning, a
  database whose opening was aborted, anything but an end in a child made by `fork`.

All fields are read and written under the interpreter's lock. An object keeps what it is of; what is
of it stands in a list without references, from which it goes when it is collected.
"""

from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
)
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdlib cimport calloc, free, malloc
cimport cython

import errno
import os

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_cond_init(pthread_cond_t *changed, void *attributes)
    int pthread_cond_wait(pthread_cond_t *changed, pthread_mutex_t *mutex)
    int pthread_cond_broadcast(pthread_cond_t *changed)
    int pthread_cond_destroy(pthread_cond_t *changed)
    int pthread_atfork(void *prepare, void *parent, void (*child)() noexcept nogil)

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() nogil

cdef enum:
    STEP = 1024  # entries of a `putmulti` that are taken from its iterator at a time
    LIST_STEP = 16384  # the same of a list, whose entries are in memory already
    FEW = 64  # entries that are put sooner than the interpreter's lock is had again

cdef unsigned int generation = 0  # how many forks this process is away from the first
cdef size_t environments = 0
cdef dict open_files = {}  # (device, inode) of what is open: LMDB's locks are the process's


cdef void forked() noexcept nogil:
    global generation
    generation += 1


pthread_atfork(NULL, NULL, forked)


include "lmdberrors.pxi"


def version():
    """LMDB's version: major, minor, patch."""
    cdef int major, minor, patch
    mdb_version(&major, &minor, &patch)
    return major, minor, patch


# --- for other kernels ----------------------------------------------------------------------------

cdef int find(
    MDB_txn *txn, MDB_dbi dbi, const char *key, size_t key_bytes, const char **value, size_t *size
) noexcept nogil:
    cdef MDB_val wanted, data
    wanted.mv_data = <void *>key
    wanted.mv_size = key_bytes
    cdef int code = mdb_get(txn, dbi, &wanted, &data)
    if code == MDB_SUCCESS:
        value[0] = <const char *>data.mv_data
        size[0] = data.mv_size
    return code


cdef int seek(
    MDB_cursor *cursor, const char *key, size_t key_bytes, MDB_val *found, MDB_val *value
) noexcept nogil:
    found.mv_data = <void *>key
    found.mv_size = key_bytes
    return mdb_cursor_get(cursor, found, value, MDB_SET_RANGE if key_bytes else MDB_FIRST)


cdef int step(MDB_cursor *cursor, bint back, MDB_val *found, MDB_val *value) noexcept nogil:
    return mdb_cursor_get(cursor, found, value, MDB_PREV if back else MDB_NEXT)


cdef int apply(MDB_txn *txn, MDB_dbi dbi, Change *changes, size_t count) noexcept nogil:
    cdef MDB_cursor *cursor = NULL
    cdef MDB_val last, value
    cdef size_t at, behind = 0
    cdef int code
    for at in range(count):  # before there is a cursor, whose place they might take away
        if changes[at].gone:
            code = mdb_del(txn, dbi, &changes[at].key, NULL)
            if code and code != MDB_NOTFOUND:
                return code
    code = mdb_cursor_open(txn, dbi, &cursor)
    if code:
        return code
    code = mdb_cursor_get(cursor, &last, &value, MDB_LAST)
    if code == MDB_SUCCESS:
        behind = count
        while behind and mdb_cmp(txn, dbi, &changes[behind - 1].key, &last) > 0:
            behind -= 1
    elif code == MDB_NOTFOUND:
        code = 0
    for at in range(count):
        if code:
            break
        if not changes[at].gone:
            code = mdb_cursor_put(
                cursor, &changes[at].key, &changes[at].value, MDB_APPEND if at >= behind else 0
            )
    mdb_cursor_close(cursor)
    return code


# --- bytes ----------------------------------------------------------------------------------------

cdef bytes held(object data):
    """`data` as bytes, which give their place as long as they are kept."""
    if PyBytes_CheckExact(data):
        return <bytes>data
    if isinstance(data, str):
        raise TypeError("Won't implicitly convert Unicode to bytes; use .encode()")
    return memoryview(data).tobytes()


cdef inline void point(MDB_val *value, bytes data) noexcept:
    value.mv_data = PyBytes_AS_STRING(data)
    value.mv_size = PyBytes_GET_SIZE(data)


cdef inline bytes copied(MDB_val *value):
    return PyBytes_FromStringAndSize(<char *>value.mv_data, value.mv_size)


cdef dict pages(MDB_stat *found):
    return {
        "psize": found.ms_psize,
        "depth": found.ms_depth,
        "branch_pages": found.ms_branch_pages,
        "leaf_pages": found.ms_leaf_pages,
        "overflow_pages": found.ms_overflow_pages,
        "entries": found.ms_entries,
    }


# --- environments ---------------------------------------------------------------------------------

@cython.final
@cython.no_gc
cdef class Database:
    """A named database of an environment, to be handed to its transactions."""


@cython.final
@cython.no_gc
cdef class Environment:
    """A folder with LMDB in it. Raises `Error`, or `OSError` where the folder cannot be made."""

    def __cinit__(self):
        if pthread_mutex_init(&self.mutex, NULL) or pthread_cond_init(&self.changed, NULL):
            raise MemoryError("no lock can be had")
        self.generation = generation
        self.is_closing = True  # until it is open
        self.files = ()
        self.handles = {}

    def __init__(
        self, path, size_t map_size=10485760, *, bint readonly=False, bint metasync=True,
        bint sync=True, unsigned int mode=0o755, bint create=True, bint readahead=True,
        unsigned int max_readers=126, unsigned int max_dbs=0, int max_spare_txns=0, bint lock=True,
    ):
        cdef bytes place = os.fsencode(path)
        cdef const char *c_place = place
        cdef unsigned int flags = MDB_NOTLS
        cdef MDB_dbi main = 0
        cdef int code
        if self.env is not NULL or self.number:
            raise Error("An environment is opened once.")
        if create and not readonly:
            try:
                os.mkdir(place, mode)
            except FileExistsError:
                pass
        self.files = _identities(place)
        if any(open_files.get(one) == generation for one in self.files):
            self.files = ()
            raise Error(f"The environment '{os.fsdecode(place)}' is already open in this process.")
        if readonly:
            flags |= MDB_RDONLY
        if not metasync:
            flags |= MDB_NOMETASYNC
        if not sync:
            flags |= MDB_NOSYNC
        if not readahead:
            flags |= MDB_NORDAHEAD
        if not lock:
            flags |= MDB_NOLOCK
        self.spares = <MDB_txn **>calloc(max(max_spare_txns, 1), sizeof(MDB_txn *))
        if self.spares is NULL:
            raise failed("mdb_env_create", errno.ENOMEM)
        self.spare_max = max_spare_txns
        self.is_readonly = readonly
        code = mdb_env_create(&self.env)
        if code:
            raise failed("mdb_env_create", code)
        code = (
            mdb_env_set_mapsize(self.env, map_size)
            or mdb_env_set_maxreaders(self.env, max_readers)
            or mdb_env_set_maxdbs(self.env, max_dbs)
        )
        if not code:
            mode &= ~0o111
            with nogil:
                code = mdb_env_open(self.env, c_place, flags, mode) or know_main(self.env, &main)
        if code:
            mdb_env_close(self.env)
            self.env = NULL
            raise failed(os.fsdecode(place), code)
        global environments
        environments += 1
        self.number = environments
        self.main = Database.__new__(Database)
        self.main.dbi = main
        self.main.owner = self.number
        self.main.is_open = True
        self.files = _identities(place)  # those that were made are among them
        for one in self.files:
            open_files[one] = generation
        self.is_closing = False

    def __dealloc__(self):
        # Its transactions keep it, so there is none but an orphan.
        if self.generation == generation and self.env is not NULL:
            if self.orphan is not NULL and self.writer == PyThread_get_thread_ident():
                self.end_writer()
            self.end_readers()
            if self.orphan is NULL:
                mdb_env_close(self.env)
                for one in self.files:
                    open_files.pop(one, None)
        free(self.spares)
        pthread_cond_destroy(&self.changed)
        pthread_mutex_destroy(&self.mutex)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    cdef int check(self) except -1:
        if self.is_closing or self.is_broken:
            raise gone()
        if self.generation != generation:
            raise Error("The environment was opened by a process that this one was forked from.")
        if self.is_resizing:
            raise failed("The environment is being resized", errno.EINVAL)
        return 0

    cdef void wake(self) noexcept:
        if self.waiters:
            pthread_mutex_lock(&self.mutex)
            pthread_cond_broadcast(&self.changed)
            pthread_mutex_unlock(&self.mutex)

    cdef void wait(self, bint to_close) noexcept:
        """Until no call goes on without the interpreter's lock; `to_close`: nor is it being resized
        or has a thread the write transaction."""
        self.waiters += 1
        while self.running or to_close and (self.writer or self.is_resizing):
            with nogil:
                pthread_mutex_lock(&self.mutex)
                while self.running or to_close and (self.writer or self.is_resizing):
                    pthread_cond_wait(&self.changed, &self.mutex)
                pthread_mutex_unlock(&self.mutex)
        self.waiters -= 1

    cdef void end_readers(self) noexcept:
        cdef Transaction txn
        while self.first is not NULL:
            txn = <Transaction>self.first
            txn.end_below()
            mdb_txn_abort(txn.txn)
            txn.ended(False)
        while self.spare_count:
            self.spare_count -= 1
            mdb_txn_abort(self.spares[self.spare_count])

    def close(self):
        """End all transactions, and close. Waits for other threads to end theirs that write."""
        cdef MDB_env *env
        if self.generation != generation or self.env is NULL:
            return
        self.is_closing = True
        if self.writer == PyThread_get_thread_ident():
            self.end_writer()
        self.wait(True)
        if self.env is NULL:
            return  # another thread was first
        self.end_readers()
        for handle in self.handles.values():
            (<Database>handle).is_open = False
        self.handles.clear()
        env, self.env = self.env, NULL
        self.running += 1
        with nogil:
            mdb_env_close(env)
        self.running -= 1
        for one in self.files:
            open_files.pop(one, None)
        self.files = ()
        self.wake()

    cdef int end_writer(self) except -1:
        """Abort the write transaction, which is this thread's."""
        cdef Transaction txn
        cdef PyObject *at = self.first
        if self.orphan is not NULL:
            mdb_txn_abort(self.orphan)
            self.orphan = NULL
            self.writer = 0
            self.wake()
            return 0
        while at is not NULL:
            txn = <Transaction>at
            if txn.is_write:
                txn.abort()
                break
            at = txn.next_one
        return 0

    def begin(self, db=None, Transaction parent=None, bint write=False):
        """A transaction; `parent`: inside of that one, which waits."""
        cdef Transaction made = Transaction.__new__(Transaction)
        self.check()
        if db is not None:
            raise TypeError("a transaction has no database of its own: name it in each call")
        if parent is not None:
            if not write or not parent.is_write:
                raise failed("Read-only transactions cannot be nested.", errno.EINVAL)
            if parent.env is not self:
                raise failed("Parent transaction belongs to another environment.", errno.EINVAL)
            parent.check()
            parent.own()
            code = mdb_txn_begin(self.env, parent.txn, 0, &made.txn)
            if code:
                made.txn = NULL
                raise failed("mdb_txn_begin", code)
            made.used, made.owner, made.parent = parent.used, parent.owner, parent
            parent.child = <PyObject *>made
        else:
            made.txn = self.begun(write)
            made.used, made.owner = &made.in_use, PyThread_get_thread_ident()
            made.next_one = self.first
            if self.first is not NULL:
                (<Transaction>self.first).previous = <PyObject *>made
            self.first = <PyObject *>made
        made.env = self
        made.is_write = write
        return made

    cdef MDB_txn *begun(self, bint write) except NULL:
        """A new transaction, not nested."""
        cdef MDB_txn *txn = NULL
        cdef int code
        if write:
            if self.is_readonly:
                raise failed(
                    "Cannot start write transaction with read-only environment.", errno.EACCES
                )
            return self.begun_to_write()
        if self.spare_count:
            self.spare_count -= 1
            txn = self.spares[self.spare_count]
            code = mdb_txn_renew(txn)
            if code:
                mdb_txn_abort(txn)
                raise failed("mdb_txn_renew", code)
            return txn
        code = mdb_txn_begin(self.env, NULL, MDB_RDONLY, &txn)
        if code:
            raise failed("mdb_txn_begin", code)
        return txn

    cdef MDB_txn *begun_to_write(self) except NULL:
        cdef MDB_txn *txn = NULL
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef int code
        if self.orphan is not NULL:
            if self.writer != me:
                raise failed(
                    "A write transaction was begun by a thread that has not ended it.", errno.EBUSY
                )
            self.end_writer()
        if self.writer == me:
            raise failed(
                "Attempt to start a write transaction while another write transaction is active "
                "on the same thread. This would deadlock.",
                errno.EBUSY,
            )
        self.running += 1
        with nogil:
            code = mdb_txn_begin(self.env, NULL, 0, &txn)
        if not code and self.is_closing:
            mdb_txn_abort(txn)
        elif not code:
            self.writer = me
        self.running -= 1
        self.wake()
        if code:
            raise failed("mdb_txn_begin", code)
        if self.is_closing:
            raise gone()
        return txn

    def open_db(self, key=None, Transaction txn=None, bint create=True):
        """The database of that name, None for the main one. Opened in a transaction it goes with
        it where that is aborted, or only reads."""
        cdef MDB_dbi dbi
        cdef Database made
        cdef const char *name
        self.check()
        if key is None:
            return self.main
        if not isinstance(key, bytes):
            raise TypeError("the name of a database is bytes")
        if txn is None:
            txn = self.begin(write=not self.is_readonly)
            try:
                made = self.open_db(key, txn, create)
                if txn.is_write:
                    txn.commit()
                else:
                    txn.keep_opened()
                return made
            finally:
                txn.abort()
        if txn.env is not self:
            raise Error("The transaction belongs to another environment.")
        txn.check()
        name = key
        code = mdb_dbi_open(txn.txn, name, MDB_CREATE if create else 0, &dbi)
        if code:
            raise failed("mdb_dbi_open", code)
        txn.mutations += 1
        made = self.handles.get(key)
        if made is None or made.dbi != dbi or not made.is_open:
            made = Database.__new__(Database)
            made.dbi, made.owner, made.name, made.is_open = dbi, self.number, key, True
            self.handles[key] = made
            txn.opened.append(made)
        return made

    def set_mapsize(self, size_t map_size):
        """Map as many bytes. Transactions that read are ended; none may write."""
        cdef int code
        self.check()
        if self.writer:
            raise Error("Cannot set_mapsize while a write transaction is active")
        self.is_resizing = True
        self.wait(False)
        self.is_resizing = False
        try:
            self.check()
            if self.writer:
                raise Error("Cannot set_mapsize while a write transaction is active")
            self.end_readers()
            code = mdb_env_set_mapsize(self.env, map_size)
            if code:
                self.is_broken = True
                raise failed("mdb_env_set_mapsize", code)
        finally:
            self.wake()

    def sync(self, bint force=False):
        """Have what was committed on stable storage; `force`: also with `sync=False`."""
        cdef int code
        self.check()
        self.running += 1
        with nogil:
            code = mdb_env_sync(self.env, force)
        self.running -= 1
        self.wake()
        if code:
            raise failed("mdb_env_sync", code)

    def copy(self, path, bint compact=False):
        """Write what is committed to the empty folder `path`."""
        cdef bytes place = os.fsencode(path)
        cdef const char *c_place = place
        cdef unsigned int flags = MDB_CP_COMPACT if compact else 0
        cdef int code
        self.check()
        self.running += 1
        with nogil:
            code = mdb_env_copy2(self.env, c_place, flags)
        self.running -= 1
        self.wake()
        if code:
            raise failed("mdb_env_copy2", code)

    def stat(self):
        """Of the main database: see `Transaction.stat`."""
        cdef MDB_stat found
        self.check()
        code = mdb_env_stat(self.env, &found)
        if code:
            raise failed("mdb_env_stat", code)
        return pages(&found)

    def info(self):
        """Of the map: see `store.state.base`."""
        cdef MDB_envinfo found
        self.check()
        code = mdb_env_info(self.env, &found)
        if code:
            raise failed("mdb_env_info", code)
        return {
            "map_addr": <size_t>found.me_mapaddr,
            "map_size": found.me_mapsize,
            "last_pgno": found.me_last_pgno,
            "last_txnid": found.me_last_txnid,
            "max_readers": found.me_maxreaders,
            "num_readers": found.me_numreaders,
        }


cdef int know_main(MDB_env *env, MDB_dbi *main) noexcept nogil:
    """The number of the main database; LMDB learns here in which order its keys are."""
    cdef MDB_txn *txn = NULL
    cdef int code = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn)
    if code:
        return code
    code = mdb_dbi_open(txn, NULL, 0, main)
    if code:
        mdb_txn_abort(txn)
        return code
    return mdb_txn_commit(txn)


def _identities(bytes place):
    """Device and inode of the files that are there."""
    found = []
    for name in (b"data.mdb", b"lock.mdb"):
        try:
            status = os.stat(os.path.join(place, name))
        except OSError:
            continue
        found.append((status.st_dev, status.st_ino))
    return tuple(found)


include "lmdbtransaction.pxi"
