# Columns of statements, what they expect, and what computes new tuples of old ones.
from logweir.store.schema.packkernel cimport Room, Source, u64

cdef enum:
    # Columns of a statement: see store.engine.statementkernel.
    KIND = 0
    SPACE = 1
    INDEX = 2
    BASE = 3
    FIRST = 4
    FIRST_END = 5
    OPS = 6
    OPS_END = 7
    LAST = 8
    EXPECT = 9
    FIELD = 10
    VALUE = 11
    AS_REPLACE = 12
    WIDTH = 13

    # What it expects.
    EXPECT_ABSENT = 1
    EXPECT_PRESENT = 2
    EXPECT_VALUE = 3
    EXPECT_COMPUTED = 4

    # How a statement ended, beside those of store.engine.updatekernel.
    UNMET = 4
    HALTED = 5
    KEPT = 6  # of a computer: nothing changes

cdef class Computer:
    cdef public object obstacle
    cdef int compute(
        self, u64 how, u64 number, Source given, Py_ssize_t given_size, Source old,
        Py_ssize_t old_size, Room made, u64* told) except -1

cdef bint has_value(
    Source data, Py_ssize_t size, u64 field, u64 value, Py_ssize_t* owed) noexcept
cdef int check_columns(u64 size, const u64[::1] columns, list spaces) except -1
