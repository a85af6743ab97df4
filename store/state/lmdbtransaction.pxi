# Transactions and cursors: a part of `lmdbkernel.pyx`.


@cython.final
@cython.no_gc
cdef class Transaction:
    """One view of an environment, and what is changed in it. See `Environment.begin`."""

    def __cinit__(self):
        self.opened = []

    def __dealloc__(self):
        if self.txn is NULL or self.env is None or self.env.generation != generation:
            return
        if self.is_write and self.parent is None:
            if self.owner != PyThread_get_thread_ident():
                # Only its own thread can give up LMDB's lock: when it begins the next one.
                self.env.orphan = self.txn
                self.forget()
                return
        if self.is_write:
            mdb_txn_abort(self.txn)
            self.ended(False)
        else:
            self.end_reading()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.abort()
        elif self.txn is not NULL:
            self.commit()

    cdef int check(self) except -1:
        if self.txn is NULL:
            raise gone()
        self.env.check()
        if self.used[0]:
            raise Error("Another thread is using the transaction.")
        if self.child is not NULL:
            raise failed("The transaction has another one inside", MDB_BAD_TXN)
        return 0

    cdef int own(self) except -1:
        """Raise where another thread began it: LMDB's lock is that one's."""
        if self.is_write and self.owner != PyThread_get_thread_ident():
            raise Error("A write transaction is ended by the thread that began it.")
        return 0

    cdef int enter(self) except -1:
        self.check()
        self.used[0] = True
        self.env.running += 1
        return 0

    cdef void leave(self) noexcept:
        self.used[0] = False
        self.env.running -= 1
        self.env.wake()

    cdef MDB_dbi number_of(self, Database database) except? 0xFFFFFFFF:
        if database is None:
            return self.env.main.dbi
        if database.owner != self.env.number:
            raise Error("Database handle belongs to another environment.")
        if not database.is_open:
            raise gone()
        return database.dbi

    cdef void end_below(self) noexcept:
        """Close its cursors, and abort what is inside of it."""
        cdef Transaction below
        if self.child is not NULL:
            below = <Transaction>self.child
            below.end_below()
            mdb_txn_abort(below.txn)
            below.ended(False)
        while self.cursors is not NULL:
            (<Cursor>self.cursors).forget()

    cdef void forget(self) noexcept:
        """Take it out of its environment, or of its parent."""
        self.txn = NULL
        if self.parent is not None:
            self.parent.child = NULL
            self.parent.mutations += 1  # what its cursors have read may be gone
            return
        if self.previous is not NULL:
            (<Transaction>self.previous).next_one = self.next_one
        elif self.env.first == <PyObject *>self:
            self.env.first = self.next_one
        if self.next_one is not NULL:
            (<Transaction>self.next_one).previous = self.previous
        self.previous = self.next_one = NULL

    cdef void ended(self, bint kept) noexcept:
        """LMDB has ended it; `kept`: committed."""
        if kept and self.parent is not None:
            self.parent.opened += self.opened
        elif not kept:
            for database in self.opened:
                (<Database>database).is_open = False
        self.opened = []
        self.forget()
        if self.is_write and self.parent is None:
            if self.env.writer == self.owner:  # else another one had LMDB's lock before this line
                self.env.writer = 0
            self.env.wake()

    cdef void end_reading(self) noexcept:
        """End one that only reads."""
        if self.env.spare_count < self.env.spare_max and not self.env.is_closing:
            mdb_txn_reset(self.txn)
            self.env.spares[self.env.spare_count] = self.txn
            self.env.spare_count += 1
        else:
            mdb_txn_abort(self.txn)
        self.ended(False)

    cdef int keep_opened(self) except -1:
        """Commit one that only reads: databases opened in it stay open."""
        cdef int code
        self.check()
        self.end_below()
        code = mdb_txn_commit(self.txn)
        self.ended(not code)
        if code:
            raise failed("mdb_txn_commit", code)
        return 0

    def commit(self):
        """Make it last. Whatever this raises, the transaction has ended."""
        cdef MDB_txn *txn
        cdef int code
        if self.txn is NULL or self.env.generation != generation:
            raise gone()
        if self.used[0]:
            raise Error("Another thread is using the transaction.")
        self.own()
        if self.env.is_closing:
            self.abort()
            raise gone()
        self.end_below()
        if not self.is_write:
            self.end_reading()
            return
        try:
            self.enter()
        except Error:
            self.abort()
            raise
        txn = self.txn
        with nogil:
            code = mdb_txn_commit(txn)
        self.leave()
        self.ended(not code)
        if code:
            raise failed("mdb_txn_commit", code)

    def abort(self):
        """Forget it. Does nothing where it has ended."""
        cdef MDB_txn *txn
        if self.txn is NULL or self.env.generation != generation:
            return
        if self.used[0]:
            raise Error("Another thread is using the transaction.")
        self.own()
        self.end_below()
        if not self.is_write:
            self.end_reading()
            return
        self.used[0] = True
        self.env.running += 1
        txn = self.txn
        with nogil:
            mdb_txn_abort(txn)
        self.leave()
        self.ended(False)

    def stat(self, Database db=None):
        """How many entries and pages a database has."""
        cdef MDB_stat found
        cdef int code
        self.check()
        code = mdb_stat(self.txn, self.number_of(db), &found)
        if code:
            raise failed("mdb_stat", code)
        return pages(&found)

    def drop(self, Database db not None, bint delete=True):
        """Remove all entries; `delete`: the database, too."""
        cdef MDB_txn *txn
        cdef MDB_dbi dbi
        cdef int code
        cdef PyObject *at
        self.check()
        dbi = self.number_of(db)
        if delete:
            at = self.cursors
            while at is not NULL:
                cursor = <Cursor>at
                at = (<Cursor>at).next_one
                if (<Cursor>cursor).database is db:
                    (<Cursor>cursor).forget()
        self.enter()
        txn = self.txn
        with nogil:
            code = mdb_drop(txn, dbi, delete)
        self.leave()
        self.mutations += 1
        if code:
            raise failed("mdb_drop", code)
        if delete:
            db.is_open = False
            self.env.handles.pop(db.name, None)

    def get(self, key, default=None, Database db=None):
        """The value under a key, or `default`."""
        cdef bytes name = held(key)
        cdef const char *value
        cdef size_t size
        cdef int code
        self.check()
        code = find(
            self.txn, self.number_of(db), PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), &value,
            &size,
        )
        if code == MDB_SUCCESS:
            return PyBytes_FromStringAndSize(value, size)
        if code == MDB_NOTFOUND:
            return default
        raise failed("mdb_get", code)

    def put(self, key, value, bint dupdata=True, bint overwrite=True, bint append=False,
            Database db=None):
        """Set the value under a key. False where it is there and not to be overwritten."""
        cdef MDB_val wanted, data
        cdef bytes name = held(key)
        cdef Py_buffer view
        cdef int code
        cdef unsigned int flags = 0
        if isinstance(value, str):
            raise TypeError("Won't implicitly convert Unicode to bytes; use .encode()")
        self.check()
        if not overwrite:
            flags |= MDB_NOOVERWRITE
        if append:
            flags |= MDB_APPEND
        dbi = self.number_of(db)
        point(&wanted, name)
        PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
        data.mv_data, data.mv_size = view.buf, view.len
        code = mdb_put(self.txn, dbi, &wanted, &data, flags)
        PyBuffer_Release(&view)
        self.mutations += 1
        self.listed += WRITTEN
        if code and code != MDB_KEYEXIST:
            raise failed("mdb_put", code)
        return code == MDB_SUCCESS

    def delete(self, key, value=b"", Database db=None):
        """Remove a key. False where it is not there."""
        cdef MDB_val wanted
        cdef bytes name = held(key)
        cdef int code
        self.check()
        point(&wanted, name)
        code = mdb_del(self.txn, self.number_of(db), &wanted, NULL)
        self.mutations += 1
        self.listed += WRITTEN
        if code and code != MDB_NOTFOUND:
            raise failed("mdb_del", code)
        return code == MDB_SUCCESS

    def cursor(self, Database db=None):
        """A place among the entries of a database, at none yet."""
        cdef Cursor made = Cursor.__new__(Cursor)
        cdef int code
        self.check()
        code = mdb_cursor_open(self.txn, self.number_of(db), &made.cursor)
        if code:
            made.cursor = NULL
            raise failed("mdb_cursor_open", code)
        made.txn = self
        made.database = db
        made.seen = self.mutations
        made.next_one = self.cursors
        if self.cursors is not NULL:
            (<Cursor>self.cursors).previous = <PyObject *>made
        self.cursors = <PyObject *>made
        return made


@cython.final
@cython.no_gc
cdef class Cursor:
    """A place among the entries of a database. See `Transaction.cursor`."""

    def __dealloc__(self):
        if self.cursor is not NULL and self.txn.env.generation == generation:
            self.forget()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __iter__(self):
        return self.iternext()

    cdef int check(self) except -1:
        if self.cursor is NULL:
            raise gone()
        return self.txn.check()

    cdef void forget(self) noexcept:
        """Close it, and take it out of its transaction."""
        if not self.txn.used[0]:
            mdb_cursor_close(self.cursor)
        # else LMDB, which is at work there, frees it with the transaction, which writes
        self.cursor = NULL
        self.is_placed = False
        if self.previous is not NULL:
            (<Cursor>self.previous).next_one = self.next_one
        else:
            self.txn.cursors = self.next_one
        if self.next_one is not NULL:
            (<Cursor>self.next_one).previous = self.previous
        self.previous = self.next_one = NULL

    def close(self):
        """Give it up. Does nothing where that was done."""
        if self.cursor is not NULL and self.txn.env.generation == generation:
            self.forget()

    cdef bint move(self, MDB_cursor_op op) except -1:
        return self.placed(mdb_cursor_get(self.cursor, &self.found, &self.data, op))

    cdef bint placed(self, int code) except -1:
        """Note what a move came to. Returns whether it is at an entry."""
        self.is_placed = code == MDB_SUCCESS
        self.seen = self.txn.mutations
        if code:
            self.found.mv_size = self.data.mv_size = 0
            if code != MDB_NOTFOUND:
                raise failed("mdb_cursor_get", code)
        return self.is_placed

    cdef int refresh(self) except -1:
        """Point to the entry again where something was written since."""
        self.check()
        if self.seen != self.txn.mutations:
            code = mdb_cursor_get(self.cursor, &self.found, &self.data, MDB_GET_CURRENT)
            self.placed(MDB_NOTFOUND if code == errno.EINVAL else code)  # that: it is at none
        return 0

    def key(self):
        """The key there; no bytes where it is at none."""
        self.refresh()
        return copied(&self.found)

    def value(self):
        """The value there."""
        self.refresh()
        return copied(&self.data)

    def item(self):
        """Both."""
        self.refresh()
        return copied(&self.found), copied(&self.data)

    def first(self):
        """Go to the first entry. This and the next ones return whether there is such an entry."""
        self.check()
        return self.move(MDB_FIRST)

    def last(self):
        """Go to the last entry."""
        self.check()
        return self.move(MDB_LAST)

    def next(self):
        """Go to the next entry."""
        self.check()
        return self.placed(step(self.cursor, False, &self.found, &self.data))

    def prev(self):
        """Go to the entry before."""
        self.check()
        return self.placed(step(self.cursor, True, &self.found, &self.data))

    def set_range(self, key):
        """Go to the first key that is not below that one."""
        cdef bytes name = held(key)
        self.check()
        return self.placed(
            seek(
                self.cursor, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), &self.found,
                &self.data,
            )
        )

    def iternext(self, bint keys=True, bint values=True):
        """Entries from here on, or from the first."""
        self.check()
        if not self.is_placed:
            self.move(MDB_FIRST)
        return entries(self, False, keys, values)

    def iterprev(self, bint keys=True, bint values=True):
        """Entries from here back, or from the last."""
        self.check()
        if not self.is_placed:
            self.move(MDB_LAST)
        return entries(self, True, keys, values)

    def putmulti(self, items, bint dupdata=True, bint overwrite=True, bint append=False):
        """Set many entries. Returns how many were given, and how many were set."""
        cdef Py_ssize_t room = LIST_STEP if type(items) is list else STEP
        cdef Py_ssize_t taken = 0, added = 0, count
        cdef unsigned int flags = (0 if overwrite else MDB_NOOVERWRITE) | (MDB_APPEND if append else 0)
        cdef MDB_val *pairs
        cdef list kept = []
        cdef object failure = None
        self.check()
        iterator = iter(items)
        if type(items) is list and len(items) < room:
            room = max(len(items), 1)
        pairs = <MDB_val *>malloc(2 * room * sizeof(MDB_val))
        if pairs is NULL:
            raise failed("mdb_cursor_put", errno.ENOMEM)
        try:
            count = room
            while count == room and failure is None:
                kept.clear()
                try:
                    collect(iterator, room, pairs, kept)
                except BaseException as error:
                    failure = error
                count = len(kept) // 2
                if count:
                    added += self.put_pairs(pairs, count, flags, taken)
                    taken += count
        finally:
            free(pairs)
        if failure is not None:
            raise failure
        return taken, added

    cdef Py_ssize_t put_pairs(
        self, MDB_val *pairs, Py_ssize_t count, unsigned int flags, Py_ssize_t before
    ) except -1:
        cdef MDB_cursor *cursor
        cdef Py_ssize_t at = 0, added = 0
        cdef int code
        self.check()  # what gave the pairs may have closed it
        cursor = self.cursor
        self.txn.enter()
        if count < FEW:
            code = put_all(cursor, pairs, count, flags, &at, &added)
        else:
            with nogil:
                code = put_all(cursor, pairs, count, flags, &at, &added)
        self.txn.leave()
        self.txn.mutations += 1
        self.txn.listed += WRITTEN * count
        if code:
            raise failed(f"mdb_cursor_put() element #{before + at}", code)
        return added


cdef int put_all(
    MDB_cursor *cursor, MDB_val *pairs, Py_ssize_t count, unsigned int flags, Py_ssize_t *at,
    Py_ssize_t *added,
) noexcept nogil:
    cdef int code
    while at[0] < count:
        code = mdb_cursor_put(cursor, &pairs[2 * at[0]], &pairs[2 * at[0] + 1], flags)
        if code == MDB_SUCCESS:
            added[0] += 1
        elif code != MDB_KEYEXIST:
            return code
        at[0] += 1
    return 0


cdef int collect(object iterator, Py_ssize_t room, MDB_val *pairs, list kept) except -1:
    """Point to up to `room` pairs of `iterator`; `kept` keeps them, key and value in turn."""
    cdef Py_ssize_t count = 0
    cdef bytes key, value
    for item in iterator:
        if type(item) is not tuple or len(<tuple>item) != 2:
            raise TypeError("putmulti() elements must be 2-tuples")
        key = held((<tuple>item)[0])
        value = held((<tuple>item)[1])
        point(&pairs[2 * count], key)
        point(&pairs[2 * count + 1], value)
        kept.append(key)
        kept.append(value)
        count += 1
        if count == room:
            break
    return 0


@cython.final
@cython.no_gc
cdef class Entries:
    """What `Cursor.iternext` and `iterprev` return."""

    cdef Cursor cursor
    cdef bint back, keys, values, is_begun

    def __iter__(self):
        return self

    def __next__(self):
        cdef Cursor cursor = self.cursor
        cursor.check()
        if not cursor.is_placed:
            raise StopIteration
        if self.is_begun and not cursor.placed(
            step(cursor.cursor, self.back, &cursor.found, &cursor.data)
        ):
            raise StopIteration
        self.is_begun = True
        if not self.values:
            return cursor.key()
        return cursor.item() if self.keys else cursor.value()


cdef Entries entries(Cursor cursor, bint back, bint keys, bint values):
    cdef Entries made = Entries.__new__(Entries)
    made.cursor, made.back, made.keys, made.values = cursor, back, keys, values
    return made
