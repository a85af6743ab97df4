# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""What statements expect of the tuples they find, and what computes new ones of them, compiled.

`store.engine.computing` says what a computer does, `store.engine.reference` what is expected; columns are told of
in `store.engine.statementkernel`. Nothing here believes a length.
"""

cimport logweir.store.schema.kernel as keys
cimport logweir.wal.kernel as rows
from logweir.store.state.layerkernel cimport Space
from logweir.store.schema.packkernel cimport REFER, after, items_from

cdef enum:
    REPLACE = 3
    UINT = 1  # as store.schema.fieldtype.MpType


cdef class Computer:
    """See `store.engine.computing`. A subclass gives `compute`, in C, `refer`, or both."""

    cdef int compute(
        self, u64 how, u64 number, Source given, Py_ssize_t given_size, Source old,
        Py_ssize_t old_size, Room made, u64* told
    ) except -1:
        """Write the new tuple into `made`, which is empty, or nothing; and three numbers into
        `told`. `old`: NULL: there is none. `DONE`, `KEPT`, `UNMET`, `HALTED` or `REFER`."""
        return REFER

    def refer(self, how, number, given, old):
        """The same in Python."""
        raise NotImplementedError


cdef bint has_value(
    Source data, Py_ssize_t size, u64 field, u64 value, Py_ssize_t* owed
) noexcept:
    """Whether a field of a stored tuple, counted from 0, is that unsigned integer."""
    cdef u64 count, number
    cdef Py_ssize_t at = items_from(data, size, &count), stop
    if at < 0 or field >= count:
        return False
    for number in range(field):
        at = after(data, at, size, owed)
        if at < 0:
            return False
    stop = after(data, at, size, owed)
    if stop < 0 or keys.KINDS[data[at]] != UINT:
        return False
    return rows.uint(data, at, stop) == value


cdef int check_columns(u64 size, const u64[::1] columns, list spaces) except -1:
    """Raise `ValueError` unless the numbers of a batch with so many bytes can be believed."""
    cdef Py_ssize_t at = 0
    cdef u64 count = len(spaces)
    if len(columns) % WIDTH or (len(columns) and not columns[len(columns) - WIDTH + LAST]):
        raise ValueError("the last statement ends a transaction")
    for space in spaces:
        if space is not None and not isinstance(space, Space):
            raise ValueError("spaces are wanted")
    while at < len(columns):
        if (
            columns[at + SPACE] >= count
            or not columns[at + FIRST] <= columns[at + FIRST_END] <= size
            or not columns[at + OPS] <= columns[at + OPS_END] <= size
            or columns[at + EXPECT] > EXPECT_COMPUTED
            or (columns[at + EXPECT] == EXPECT_COMPUTED and columns[at + KIND] != REPLACE)
        ):
            raise ValueError(f"statement {at // WIDTH} has spans that are not in its batch")
        at += WIDTH
    return 0
