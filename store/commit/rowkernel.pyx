# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""The rows of a batch of statements, compiled: see `store.engine.statementkernel` for its numbers."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcpy

cimport logweir.wal.kernel as rows
from logweir.store.engine.statementkernel cimport (
    AS_REPLACE, BODY, BODY_END, KIND, LAST, NEW_END, OPS_END, RESULT_WIDTH, STATUS, WIDTH)
from logweir.store.schema.packkernel cimport DONE, Room, Source, u64

cdef enum:
    REPLACE = 3


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
