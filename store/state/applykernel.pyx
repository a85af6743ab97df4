# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
# distutils: libraries = lmdb
"""Memtables into LMDB, without an object for an entry and without the interpreter's lock.

`store.state.tree` says what it is for, and does the same in Python where this is missing.

LMDB keeps the pages that a transaction has written in a list that is sorted by their numbers, and
moves the list's end for each page that it inserts: half of the processor time of 100,000 random
changes of 2,000,000 tuples. So each `PART` entries have a nested transaction, with a list of their
own that LMDB merges in one pass.

The list has room for 131,071 pages. What is more a transaction writes early, but a nested one only
pages of its own, so that it fails where those around it have filled the list. Where that could come
about, by the most pages that the entries so far can have written, what is left is put into the
transaction itself. Source: `mdb_mid2l_insert`, `mdb_page_spill`, `MDB_IDL_UM_MAX` of LMDB 0.9.24.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from logweir.store.state.lmdbkernel cimport (
    WRITTEN, MDB_dbi, MDB_env, MDB_stat, MDB_txn, Change, Database, Transaction, apply as make_changes,
    failed, mdb_stat, mdb_txn_abort, mdb_txn_begin, mdb_txn_commit)
from logweir.store.state.memtablekernel cimport Memtable
from logweir.store.state.memtablenodes cimport Cursor, Entry, key_of, step, u8, value_of

cdef enum:
    STEP = 256  # changes that are made at a time
    PART = 1024  # changes of one nested transaction
    LISTED = 98304  # pages that may be in the list: the rest is for what else the transaction does
    ABOVE = 64  # pages that a part writes beside `WRITTEN` for an entry: branches on its way


cdef inline bint is_reference(const Entry* entry, u8 mark) noexcept nogil:
    return entry.size != 0 and value_of(entry)[0] == mark


cdef int pages_of(MDB_txn* txn, MDB_dbi dbi, size_t* pages) noexcept nogil:
    """How many pages a database has. Returns LMDB's code."""
    cdef MDB_stat found
    cdef int code = mdb_stat(txn, dbi, &found)
    if not code:
        pages[0] = found.ms_branch_pages + found.ms_leaf_pages + found.ms_overflow_pages
    return code


cdef int put_all(
    MDB_env* env, MDB_txn* txn, MDB_dbi dbi, Memtable table, size_t too_long, u8 mark,
    size_t* listed, bint* has_others
) noexcept nogil:
    """Make all changes whose keys are shorter than `too_long`. Returns LMDB's code.

    `listed`: at most so many pages are in the transaction's list, by this and what came before;
    `has_others`: whether there are longer ones, or references.
    """
    cdef Cursor place = table.start()
    cdef Entry* entry = step(&place)
    cdef MDB_txn* part
    cdef size_t first = 0, now = 0, written = 0, before = listed[0]
    cdef int code = pages_of(txn, dbi, &first)
    while entry != NULL and not code:
        code = pages_of(txn, dbi, &now)
        if code:
            break
        written += WRITTEN * PART + ABOVE
        listed[0] = before + min(written, max(first, now) + WRITTEN * PART + ABOVE)
        if listed[0] > LISTED:
            code = put_part(txn, dbi, &place, &entry, too_long, mark, has_others)
            continue
        code = mdb_txn_begin(env, txn, 0, &part)
        if code:
            break
        code = put_part(part, dbi, &place, &entry, too_long, mark, has_others)
        if code:
            mdb_txn_abort(part)
        else:
            code = mdb_txn_commit(part)
    return code


cdef int put_part(
    MDB_txn* txn, MDB_dbi dbi, Cursor* place, Entry** next_one, size_t too_long, u8 mark,
    bint* has_others
) noexcept nogil:
    """The same from `next_one` on, at most `PART` changes. Afterwards it is what stands behind."""
    cdef Change[STEP] changes
    cdef Entry* entry = next_one[0]
    cdef size_t count = 0, done = 0
    cdef int code = 0
    while entry != NULL and done < PART and not code:
        if entry.key_size >= too_long:
            has_others[0] = True
        else:
            has_others[0] = has_others[0] or is_reference(entry, mark)
            changes[count].gone = entry.size == 0
            changes[count].key.mv_data = <void*> key_of(entry)
            changes[count].key.mv_size = entry.key_size
            changes[count].value.mv_data = <void*> value_of(entry) if entry.size else NULL
            changes[count].value.mv_size = entry.size
            count += 1
        entry = step(place)
        if count == STEP or (entry == NULL and count):
            code = make_changes(txn, dbi, changes, count)
            done += count
            count = 0
    next_one[0] = entry
    return code


cdef tuple item(const Entry* entry):
    return (
        PyBytes_FromStringAndSize(<const char*> key_of(entry), entry.key_size),
        PyBytes_FromStringAndSize(
            <const char*> value_of(entry) if entry.size else NULL, entry.size))


def apply(
    Transaction txn not None, Database database not None, Memtable table not None,
    size_t too_long, u8 mark):
    """Make the changes of a memtable in a database, all but those with keys of `too_long` bytes or
    more. Returns these, and the entries whose values begin with `mark`: keys and values."""
    cdef MDB_dbi dbi = txn.number_of(database)
    cdef MDB_env* env = txn.env.env
    cdef MDB_txn* raw
    cdef bint has_others = False
    cdef int code
    cdef list long = [], marked = []
    cdef Cursor place
    cdef Entry* entry
    txn.enter()
    raw = txn.txn
    with nogil:
        code = put_all(env, raw, dbi, table, too_long, mark, &txn.listed, &has_others)
    txn.leave()
    txn.mutations += 1
    if code:
        raise failed("mdb_cursor_put", code)
    if has_others:
        place = table.start()
        entry = step(&place)
        while entry != NULL:
            if entry.key_size >= too_long:
                long.append(item(entry))
            if is_reference(entry, mark):
                marked.append(item(entry))
            entry = step(&place)
    return long, marked
