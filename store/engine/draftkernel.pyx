# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""The statements of an open transaction, one at a time, compiled: from what is given, Python values
or MsgPack, to what is to be logged.

`statementkernel.pyx` executes them. What it does not know is told by `NotImplemented`, with nothing
done: the reference engine is to do it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy, memset

from logweir.errors import LimitExceeded
from logweir.store.engine.refusal import refusal
from logweir.store.engine.request import UNPACKABLE, cannot_store, listed

from logweir.store.engine.conditionkernel cimport (
    BASE, EXPECT, EXPECT_COMPUTED, FIELD, FIRST, FIRST_END, INDEX, KIND, OPS, OPS_END, VALUE, WIDTH,
    Computer)
from logweir.store.engine.statementkernel cimport (
    BODY, BODY_END, CODE, NEW, NEW_END, OLD, OLD_END, RESULT_WIDTH, STATUS, WHY_A, WHY_B, Executor)
from logweir.store.engine.tuplekernel cimport row_from
from logweir.store.schema.packkernel cimport (
    DONE, REFER, REFUSED, Room, Source, items_from, put_items, put_items_of, put_row, u64)
from logweir.store.state.layerkernel cimport Space

cdef enum:
    SELECT = 1
    REPLACE = 3
    UPDATE = 4
    DELETE = 5
    UPSERT = 9
    GET = 7  # the iterator: see BASE
    NESTED = 16


cdef class Drafts:
    """Rows that are to be logged, each a type, a body and the definition of its space.

    `size_bytes`: of their bodies, `most_bytes` at most; `touched`: whether a statement has changed
    something, logged or not.
    """
    cdef Executor executor
    cdef Room given
    cdef u64[WIDTH] column
    cdef u64[RESULT_WIDTH] result
    cdef public list rows
    cdef public Py_ssize_t size_bytes
    cdef public bint touched
    cdef Py_ssize_t most_bytes
    cdef object definition  # of the space of the last statement
    cdef bint is_logged  # whether that is no temporary one

    def __init__(self, Executor executor not None, Py_ssize_t most_bytes):
        self.executor, self.most_bytes = executor, most_bytes
        self.given, self.rows = Room(), []

    def add(self, kind, bytes body not None, definition):
        """Take a row. Raises `LimitExceeded` where they are too many bytes."""
        self.take(kind, body, definition)

    cdef int take(self, kind, bytes body, definition) except -1:
        cdef Py_ssize_t size = self.size_bytes + PyBytes_GET_SIZE(body)
        if size > self.most_bytes:
            raise LimitExceeded(
                "TRANSACTION_BYTES", self.most_bytes, size,
                hint="divide it into several transactions")
        self.rows.append((kind, body, definition))
        self.size_bytes = size
        return 0

    def make(self, Space space not None, u64 kind, first, ops, u64 index):
        """Execute a statement in Python values. `first`: the tuple, or, for SELECT (of the tuple
        with a full key), UPDATE and DELETE the key: a list or tuple has its parts, anything else is
        its only one.

        Returns the tuple as it is stored then, of a DELETE the old one, None where there is none,
        and for UPSERT. Raises `RequestError` and `LimitExceeded` with nothing done.
        """
        cdef bint is_plain = False
        cdef str what = "the key"
        self.begin(kind, index)
        try:
            if kind == SELECT or kind == UPDATE or kind == DELETE:
                put_row(self.given, first if isinstance(first, (list, tuple)) else (first,))
            else:
                what = "the tuple"
                is_plain = put_row(self.given, first)
            self.column[FIRST_END] = self.column[OPS] = self.given.size
            if ops is not None:
                what = "the operations"
                put_items_of(self.given, listed(ops), NESTED)
        except UNPACKABLE as error:
            raise cannot_store(what, error) from error
        if kind == SELECT:
            self.column[BASE], self.column[FIELD] = GET, 1
        if self.run(space, ops is not None) == REFER:
            return NotImplemented
        if kind == DELETE:
            return self.row(OLD)
        if kind == UPSERT:
            return None
        if is_plain:
            return first if type(first) is tuple else tuple(first)
        return self.row(NEW)

    def execute(self, Space space not None, u64 kind, bytes first not None, bytes ops, u64 index,
                u64 base):
        """The same in MsgPack, but for SELECT. Returns the old and the new tuple."""
        if kind == SELECT:
            return NotImplemented
        self.begin(kind, index)
        self.column[BASE] = base
        self.give(first)
        self.column[FIRST_END] = self.column[OPS] = self.given.size
        if ops is not None:
            self.give(ops)
        if self.run(space, ops is not None) == REFER:
            return NotImplemented
        return self.part(OLD), self.part(NEW)

    def compute(self, Space space not None, bytes given not None, Computer computer not None,
                u64 how, u64 number):
        """A REPLACE whose tuple the computer makes: `how` and `number` are its FIELD and VALUE.
        Returns an `executing.Answer`; unless its status is `DONE` nothing is done."""
        self.begin(REPLACE, 0)
        self.give(given)
        self.column[FIRST_END] = self.given.size
        self.column[EXPECT], self.column[FIELD], self.column[VALUE] = EXPECT_COMPUTED, how, number
        self.executor.computer = computer
        try:
            if self.run(space, False) == REFER:
                return NotImplemented
        finally:
            self.executor.computer = None
        return (
            self.result[STATUS], self.part(OLD), self.part(NEW), self.part(BODY),
            (self.result[CODE], self.result[WHY_A], self.result[WHY_B]))

    cdef int begin(self, u64 kind, u64 index) except -1:
        memset(self.column, 0, sizeof(self.column))
        memset(self.result, 0, sizeof(self.result))
        self.given.size = 0
        self.column[KIND], self.column[INDEX] = kind, index
        return 0

    cdef int give(self, bytes data) except -1:
        self.given.need(PyBytes_GET_SIZE(data))
        memcpy(self.given.data + self.given.size, <Source>PyBytes_AS_STRING(data),
               PyBytes_GET_SIZE(data))
        self.given.size += PyBytes_GET_SIZE(data)
        return 0

    cdef int run(self, Space space, bint has_ops) except -1:
        """Execute the statement that `column` and `given` hold, and draft what is to be logged."""
        cdef Executor executor = self.executor
        cdef Py_ssize_t mark = 0 if space.undo is None else space.undo.room.size
        cdef int how
        if has_ops:
            self.column[OPS_END] = self.given.size
        else:
            self.column[OPS] = 0
        executor.data, executor.size = self.given.data, self.given.size
        executor.out.size = 0
        how = executor.statement(space, self.column, self.result)
        if how == REFUSED:
            raise refusal(
                space.plan.source, self.result[CODE], self.result[WHY_A], self.result[WHY_B],
                PyBytes_FromStringAndSize(<char*>self.given.data + self.column[OPS],
                                          self.column[OPS_END] - self.column[OPS]))
        if how != DONE or self.column[KIND] == SELECT:
            return how
        if self.definition is not space.plan.source:
            self.is_logged = not space.plan.source.is_temporary
            self.definition = space.plan.source
        if self.result[BODY_END]:
            try:
                if self.is_logged:
                    self.take(self.column[KIND], self.part(BODY), self.definition)
            except BaseException:
                space.undo.back(mark)
                raise
            self.touched = True
        return DONE

    cdef object part(self, int place):
        """What the answers hold there, as MsgPack; None: nothing."""
        cdef u64 start = self.result[place], end = self.result[place + 1]
        if end == 0:
            return None
        return PyBytes_FromStringAndSize(<char*>self.executor.out.data + start, end - start)

    cdef object row(self, int place):
        """The tuple that stands there, of a SELECT the one found."""
        cdef Py_ssize_t at = self.result[place], end = self.result[place + 1]
        cdef u64 count = 1
        if end and self.column[KIND] == SELECT:
            at += items_from(self.executor.out.data + at, end - at, &count)
        if end == 0 or count == 0:
            return None
        return row_from(self.executor.out.data, &at, end, self.executor.updater.owed)
