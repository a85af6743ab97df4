# Statements on memtables, compiled.
from logweir.store.engine.conditionkernel cimport (
    AS_REPLACE, BASE, EXPECT, FIELD, FIRST, FIRST_END, INDEX, KIND, LAST, OPS, OPS_END, SPACE, VALUE,
    WIDTH, Computer)
from logweir.store.state.layerkernel cimport Found, Space, Undo
from logweir.store.schema.plankernel cimport Fields, Index, Plan
from logweir.store.engine.selectkernel cimport Selector
from logweir.store.engine.updatekernel cimport Updater
from logweir.store.schema.packkernel cimport Refusal, Room, Source, Target, u64

cdef enum:
    # Numbers of its result.
    STATUS = 0
    CODE = 1
    WHY_A = 2
    WHY_B = 3
    OLD = 4
    OLD_END = 5
    NEW = 6
    NEW_END = 7
    BODY = 8
    BODY_END = 9
    RESULT_WIDTH = 10

cdef struct Change:
    # Of one index: where the entries of the old and the new tuple stand; no bytes: none.
    Py_ssize_t before
    Py_ssize_t before_size
    Py_ssize_t behind
    Py_ssize_t behind_size

cdef class Executor:
    cdef Updater updater
    cdef Selector selector
    cdef Room out  # the answers' bytes
    cdef Room made  # what was computed
    cdef Computer computer  # of the batch
    cdef Room key  # the primary key
    cdef Room other  # a second one
    cdef Room entries  # of both tuples in the other indexes
    cdef Change* changes
    cdef Refusal why
    cdef Fields fields
    cdef Fields old_fields
    cdef Source data
    cdef Py_ssize_t size
    cdef int statement(self, Space space, const u64* column, u64* result) except -1
    cdef int put(self, Space space, const u64* column, u64* result) except -1
    cdef int upsert(self, Space space, const u64* column, u64* result) except -1
    cdef int by_key(self, Space space, const u64* column, u64* result) except -1
    cdef int met(self, const u64* column, Found* old, u64* result) except -1
    cdef int compute(self, Space space, const u64* column, Found* old, u64* result) except -1
    cdef int tuple_body(self, Space space, Source new, Py_ssize_t size, u64* result) except -1
    cdef bint is_same_key(self) noexcept
    cdef int find_old(self, Space space, Py_ssize_t index, Found* old) except -1
    cdef int changed(self, Space space, Found* old, bint leave_out, u64* result) except -1
    cdef int refer(
        self, Undo undo, Py_ssize_t number, reference, dict failures, u64* result
    ) except -1
    cdef int copy_out(self, bytes value, u64* span) except -1
    cdef int append(self, Source value, Py_ssize_t size, u64* span) except -1
    cdef int swap(self, Space space, Found* old, Source new, Py_ssize_t new_size) except -1
    cdef int entries_of(self, Space space, Found* old, Source new, Py_ssize_t new_size) except -1
    cdef int take_old(self, Found* old, u64* result) except -1
    cdef int refuse(self, u64 code, u64 first, u64 second) noexcept
    cdef int body(self, Space space, const u64* column, bint by_primary, u64* result) except -1
