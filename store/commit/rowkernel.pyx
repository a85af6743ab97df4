# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""Statements become rows, and rows that were accepted before statements, compiled.

`store.engine.statementkernel` says what the numbers of a statement are, `wal.kernel` those of a row.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy, memset

from logweir.errors import RequestError

cimport logweir.wal.kernel as rows
from logweir.store.engine.conditionkernel cimport (
    AS_REPLACE, BASE, FIRST, FIRST_END, KIND, LAST, OPS, OPS_END, WIDTH)
from logweir.store.engine.statementkernel cimport (
    BODY, BODY_END, CODE, NEW_END, RESULT_WIDTH, STATUS, WHY_A, WHY_B, Executor)
from logweir.store.schema.packkernel cimport DONE, REFER, Room, Source, u64
from logweir.store.state.layerkernel cimport Space, Undo

cdef enum:
    TO_DO = 3  # none of `DONE`, `REFER`
    GROUP_LOCAL = 1  # as wal.xrow
    VCLOCK_COMPONENTS = 32  # as limits

    INSERT = 2
    REPLACE = 3
    UPDATE = 4
    DELETE = 5
    UPSERT = 9


def encode_rows(
    const u64[::1] columns not None, const u64[::1] results not None, bytes source not None,
    u64 replica_id, u64 group_id, u64 lsn, u64 tsn, bint is_open, u64 timestamp_bits,
    Py_ssize_t target_bytes
):
    """The rows of the statements of a batch that are done, as they stand in the log.

    `source`: the bytes in which the results point; `lsn`: of the first row; `tsn`: of the first
    transaction; `is_open`: the last one does not end here; `timestamp_bits`: of the 64-bit float.
    Returns the bytes in parts, each but the last of at least `target_bytes` and of whole
    transactions, and how many rows they are. Raises `ValueError` for results that contradict the
    rest.
    """
    cdef Py_ssize_t count = len(results) // RESULT_WIDTH, i, size
    cdef Source data = <Source><char*>source
    cdef u64 whole = len(source), number = lsn
    cdef u64[7] fields
    cdef const u64* column
    cdef const u64* result
    cdef Room out = Room()
    cdef list parts = []
    cdef bint is_end
    if len(columns) // WIDTH < count:
        raise ValueError("there are more results than statements")
    fields[1], fields[2], fields[4] = replica_id, group_id, timestamp_bits
    for i in range(count):
        column, result = &columns[i * WIDTH], &results[i * RESULT_WIDTH]
        is_end = column[LAST] != 0 and not (is_open and i == count - 1)
        if result[STATUS] == DONE and result[BODY_END]:
            if not result[BODY] <= result[BODY_END] <= whole:
                raise ValueError(f"the body of statement {i} is not among the answers")
            size = result[BODY_END] - result[BODY]
            out.need(rows.HEADER_BYTES + size)
            fields[0] = column[KIND]
            if column[AS_REPLACE] and column[OPS_END] and result[NEW_END]:
                fields[0] = REPLACE
            fields[3], fields[5], fields[6] = number, tsn, is_end
            out.size = rows.put_header(out.data, out.size, fields, 0)
            memcpy(out.data + out.size, data + result[BODY], size)
            out.size += size
            number += 1
        if is_end:
            tsn = number
            if out.size >= target_bytes:
                parts.append(PyBytes_FromStringAndSize(<char*>out.data, out.size))
                out.size = 0
    if out.size:
        parts.append(PyBytes_FromStringAndSize(<char*>out.data, out.size))
    return parts, number - lsn


def encode_transaction(
    list drafts not None, dict lsns not None, u64 replica_id, u64 timestamp_bits
):
    """The rows of one transaction, as they stand in the log, at least one, and whether it changes a
    synchronous space.

    `drafts`: type, body and definition of the space of each, None for a row of none; `lsns`: the
    last one of each component of the vclock that has any, which they move. The rest as for `encode_rows`. The
    transaction has the lsn of its first row that is not local, else of its first; behind a last one
    that is local, where others are not, comes a NOP that is not.
    """
    cdef Py_ssize_t count = len(drafts), i, size = 0
    cdef u64[7] fields
    cdef u64 component, first
    cdef bint is_local = False, has_own = False, is_sync = False, is_closed
    cdef object space = drafts  # which is none
    cdef bytes body = None
    cdef Room out = Room()
    if not count:
        raise ValueError("a transaction has a row")
    if replica_id >= VCLOCK_COMPONENTS:
        raise ValueError("no such component of a vclock")
    for _, _, other in drafts:
        if other is not space:
            space = other
            is_local = space is not None and space.is_local
            is_sync = is_sync or space is not None and space.is_sync
            has_own = has_own or not is_local
    is_closed = is_local and has_own
    fields[4] = timestamp_bits
    first = lsns.get(replica_id if has_own else 0, 0) + 1
    space = drafts
    for i in range(count + is_closed):
        if i == count:
            fields[0], size, is_local = rows.NOP, 0, False
        else:
            fields[0], body, other = drafts[i]
            size = PyBytes_GET_SIZE(body)
            if other is not space:
                space = other
                is_local = space is not None and space.is_local
        component = 0 if is_local else replica_id
        fields[1], fields[2] = component, GROUP_LOCAL if is_local else 0
        fields[3] = lsns.get(component, 0) + 1
        lsns[component] = fields[3]
        fields[5], fields[6] = first, i == count + is_closed - 1
        out.need(rows.HEADER_BYTES + size)
        out.size = rows.put_header(out.data, out.size, fields, 0)
        memcpy(out.data + out.size, <Source><char*>body, size)
        out.size += size
    return PyBytes_FromStringAndSize(<char*>out.data, out.size), is_sync


cdef int statement_of(
    const u64[::1] table, Py_ssize_t capacity, Py_ssize_t row, u64 size, u64* column
) except -1:
    """Make a statement of a row: `TO_DO`. `DONE`: it has no effect; `REFER`: none that is known here
    does what it does."""
    cdef u64 kind = table[rows.TYPE * capacity + row], first, ops = 0
    if kind == INSERT or kind == REPLACE:
        first = table[rows.TUPLE * capacity + row]
    elif kind == UPDATE or kind == DELETE:
        if table[rows.INDEX_ID * capacity + row]:
            return DONE  # it found nothing: see `RowColumns.index_id`
        first = table[rows.KEY * capacity + row]
        if kind == UPDATE:
            ops = table[rows.TUPLE * capacity + row] or table[rows.OPS * capacity + row]
    elif kind == UPSERT:
        first = table[rows.TUPLE * capacity + row]
        ops = table[rows.OPS * capacity + row]
    else:
        return REFER
    column[KIND], column[BASE] = kind, table[rows.INDEX_BASE * capacity + row]
    column[FIRST], column[FIRST_END] = first & rows.HALF, first >> 32
    column[OPS], column[OPS_END] = ops & rows.HALF, ops >> 32
    if not (column[FIRST] <= column[FIRST_END] <= size and column[OPS] <= column[OPS_END] <= size):
        raise ValueError(f"row {row} has spans that are not in its block")
    return TO_DO


def apply_rows(
    Executor executor not None, bytes data not None, const u64[::1] table not None,
    Py_ssize_t capacity, Py_ssize_t row, Py_ssize_t last, Undo undo not None, find, refer
):
    """Apply rows `row` … `last` - 1 of a table of rows, whose bytes are in `data`.

    `find(space_id)`: the open `Space`; None: it knows nothing of such rows. Those, and what the
    executor does not know, `refer(row)` applies, on the same layers and with the same `undo`, or
    raises `RequestError`; what `find` has found may be another then. Other exceptions leave the
    layers half changed.

    Returns None where all are applied. Else the row that is refused, the mark in `undo` at which
    its transaction began, to be rolled back to, the error that `refer` raised or None, and
    otherwise why: three numbers. Raises `ValueError` for a table that contradicts `data`.
    """
    cdef u64[WIDTH] column
    cdef u64[RESULT_WIDTH] result
    cdef u64 space_id = 0
    cdef Py_ssize_t start = undo.room.size
    cdef Space space = None
    cdef bint is_known = False
    cdef int how
    if not 0 <= row <= last <= capacity or len(table) // (rows.INDEX_ID + 1) < capacity:
        raise ValueError("these rows are not in the table")
    memset(column, 0, sizeof(column))
    while row < last:
        if table[rows.TYPE * capacity + row] != rows.NOP:
            if not is_known or space_id != table[rows.SPACE_ID * capacity + row]:
                space_id = table[rows.SPACE_ID * capacity + row]
                space = find(space_id)
                is_known = True
            how = REFER
            if space is not None:
                how = statement_of(table, capacity, row, len(data), column)
                if how == TO_DO:
                    memset(result, 0, sizeof(result))
                    executor.data, executor.size = <Source><char*>data, len(data)
                    executor.out.size = 0
                    how = executor.statement(space, column, result)
            if how == REFER:
                is_known = False
                try:
                    refer(row)
                except RequestError as error:
                    return row, start, error, 0, 0, 0
            elif how != DONE:
                return row, start, None, result[CODE], result[WHY_A], result[WHY_B]
        if table[rows.FLAGS * capacity + row] & rows.COMMIT:
            start = undo.room.size
        row += 1
    return None
