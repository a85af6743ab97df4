# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""Statements on memtables, compiled: check, make keys, look up, change, say what is to be logged.

`store.engine.engine` says what each statement does. One that this does not know (`REFER`: it needs a
decimal, a collation, a path, or is malformed) is handed to a reference engine, that one alone.
Statements stand one behind the other in an array of numbers, `COLUMNS` each; what came of them in
another, `RESULTS` each. Nothing recurses or believes a length.

==============  ====================================================================================
column          holds
==============  ====================================================================================
KIND            1 SELECT, 2 INSERT, 3 REPLACE, 4 UPDATE, 5 DELETE, 9 UPSERT
SPACE           number of its `Space` in the batch
INDEX           id of the index by which SELECT, UPDATE and DELETE find tuples
BASE            what the first field has for a number in operations; of SELECT the iterator, as
                `store.engine.select` numbers them, or 7: as `Engine.get`
FIRST, …_END    where in the batch's bytes the tuple stands; of SELECT, UPDATE and DELETE the key
OPS, …_END      where the operations stand; of SELECT behind what it goes on: a position or a tuple
                (`store.engine.paging`); both 0: there are none
LAST            1 at the last statement of a transaction
EXPECT          what must be so of the tuple with the primary key of INSERT, REPLACE, UPSERT, or
                which UPDATE and DELETE find: 0 anything; 1 it is absent; 2 present; 3 present, and
                field FIELD (from 0) is the unsigned integer VALUE; 4, of a REPLACE: what the
                batch's computer says, which makes its tuple: see `store.engine.computing`
FIELD, VALUE    see EXPECT; of SELECT limit and offset; a computer's own
AS_REPLACE      1: an UPDATE or UPSERT is logged as a REPLACE by the tuple that it made, if any; of
                SELECT 1: the position of its last tuple is wanted
==============  ====================================================================================

==============  ====================================================================================
result          holds
==============  ====================================================================================
STATUS          0 done; 1 refused; 3 undone: another statement of its transaction was refused;
                4 unmet: what is expected is not so. That is told with the old tuple; then, as
                after a refusal, nothing of its transaction is done
CODE, A, B      of one that was refused why: see `store.engine.refusal`; of a computed one the computer's;
                of a SELECT CODE is 1 if it saw nothing that the open layer changes, so that its
                answer is the same whatever becomes of that
OLD, …_END      where in the answers' bytes the old tuple stands; both 0: none, or computed upon; of
                SELECT the position of the last tuple, a MsgPack str
NEW, …_END      the new one likewise; of SELECT an array of all tuples
BODY, …_END     what is to be logged; both 0: nothing
==============  ====================================================================================
"""

from array import array

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.string cimport memcmp, memcpy, memset

from logweir.errors import RequestError

cimport logweir.store.schema.kernel as keys
cimport logweir.wal.kernel as rows
from logweir.store.engine.conditionkernel cimport (
    EXPECT_ABSENT, EXPECT_COMPUTED, EXPECT_VALUE, HALTED, KEPT, UNMET, check_columns, has_value)
from logweir.store.engine.selectkernel cimport PIECE_STEPS
from logweir.store.state.memtablenodes cimport THERE
from logweir.store.schema.packkernel cimport DONE, REFER, REFUSED, after, items_from

COLUMNS = 13
RESULTS = 10

cdef enum:
    UNDONE = 3

    SELECT = 1
    INSERT = 2
    REPLACE = 3
    UPDATE = 4
    DELETE = 5
    UPSERT = 9

    TUPLE_FOUND = 3
    MORE_THAN_ONE_TUPLE = 41
    CANT_UPDATE_PRIMARY_KEY = 94

    # Keys of a row's body.
    SPACE_ID = 0x10
    INDEX_ID = 0x11
    INDEX_BASE = 0x15
    TUPLE_KEY = 0x21
    KEY_KEY = 0x20
    OPS_KEY = 0x28

    CHECKED = 1  # in the table of a plan
    INDEXES = 128
    REFERENCE = 0xC1  # the first byte of a reference into the log: store.references
    BODY_ROOM = 40


cdef class Executor:
    """Executes batches of statements, one batch after another, for one thread at a time."""

    def __cinit__(self):
        self.updater = Updater()
        self.out, self.key, self.other, self.entries = Room(), Room(), Room(), Room()
        self.made = Room()
        self.selector = Selector(self.out)
        self.changes = <Change*>PyMem_Calloc(INDEXES, sizeof(Change))
        if self.changes == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_Free(self.changes)

    def execute(
        self, const unsigned char[::1] data, const u64[::1] columns, list spaces, Undo undo not None,
        reference, Py_ssize_t limit_bytes, Computer computer=None
    ):
        """Execute statements in the open layers of `spaces`, what they replace going into `undo`.

        `reference(number)` executes one that is not known here, or whose space is None, on the same
        layers and with the same `undo`, and returns an `executing.Answer` or raises `RequestError`;
        what `computer` or `reference` halts is not done, nor is its transaction, or what is behind
        it. The last transaction is the one behind which the answers have `limit_bytes`, or SELECTs
        have passed `PIECE_STEPS` entries.

        Returns the results (array, format "Q"), the bytes in which they point, the numbers of the
        statements that are not done, and the errors that `reference` raised by the numbers of
        theirs. Any other exception leaves the open layers half changed: roll `undo` back. Raises
        `ValueError`, before anything is done, for numbers that contradict one another.
        """
        cdef Py_ssize_t count = len(columns) // WIDTH, i = 0, k, first = 0, start = 0
        cdef u64[::1] results
        cdef bint is_alone, is_broken = False
        cdef list refused = []
        cdef Space space
        check_columns(len(data), columns, spaces)
        made = array("Q", bytes(8 * RESULT_WIDTH * count))
        failures = {}
        self.data = &data[0] if len(data) else NULL
        self.size, self.computer = len(data), computer
        self.out.size = 0
        self.selector.steps = 0
        if count:
            results = made
        while i < count:
            is_alone = i == first and columns[i * WIDTH + LAST] != 0
            if i == first:
                start = undo.room.size
            if is_broken:
                results[i * RESULT_WIDTH + STATUS] = UNDONE
            else:
                space = spaces[columns[i * WIDTH + SPACE]]
                k = REFER
                if space is not None:
                    k = self.statement(space, &columns[i * WIDTH], &results[i * RESULT_WIDTH])
                if k == REFER:
                    self.refer(undo, i, reference, failures, &results[i * RESULT_WIDTH])
                if results[i * RESULT_WIDTH + STATUS] == HALTED:
                    undo.back(start)
                    i = first
                    break
                if results[i * RESULT_WIDTH + STATUS] != DONE and not is_alone:
                    is_broken = True
                    undo.back(start)
                    for k in range(first, i):
                        memset(&results[k * RESULT_WIDTH], 0, RESULT_WIDTH * sizeof(u64))
                        results[k * RESULT_WIDTH + STATUS] = UNDONE
                        refused.append(k)
            if results[i * RESULT_WIDTH + STATUS] != DONE:
                refused.append(i)
            i += 1
            if columns[(i - 1) * WIDTH + LAST]:
                first, is_broken = i, False
                if self.out.size >= limit_bytes or self.selector.steps >= PIECE_STEPS:
                    break
        if i < count:
            results = None
            del made[i * RESULT_WIDTH:]
        return made, PyBytes_FromStringAndSize(<char*>self.out.data, self.out.size), refused, failures

    cdef int refer(
        self, Undo undo, Py_ssize_t number, reference, dict failures, u64* result
    ) except -1:
        """Have the reference engine execute a statement."""
        cdef Py_ssize_t mark = undo.room.size
        try:
            status, old, new, body, told = reference(number)
        except RequestError as error:
            undo.back(mark)
            failures[number] = error
            result[STATUS], result[CODE] = REFUSED, int(error.code)
            return 0
        result[STATUS] = status
        result[CODE], result[WHY_A], result[WHY_B] = told
        self.copy_out(old, &result[OLD])
        self.copy_out(new, &result[NEW])
        return self.copy_out(body, &result[BODY])

    cdef int copy_out(self, bytes value, u64* span) except -1:
        """Put bytes, or None, among the answers."""
        span[0] = span[1] = 0
        if value is not None:
            self.append(<Source><char*>value, len(value), span)
        return 0

    cdef int append(self, Source value, Py_ssize_t size, u64* span) except -1:
        self.out.need(size)
        memcpy(self.out.data + self.out.size, value, size)
        span[0] = self.out.size
        self.out.size += size
        span[1] = self.out.size
        return 0

    # --- statements -------------------------------------------------------------------------------
    cdef int statement(self, Space space, const u64* column, u64* result) except -1:
        """One statement: `DONE`, `REFUSED` or, with nothing done, `REFER`."""
        cdef Py_ssize_t start = self.out.size
        cdef int how = REFER
        if PyList_GET_SIZE(space.kept):
            space.kept.clear()
        if column[FIRST_END]:
            if column[KIND] == INSERT or column[KIND] == REPLACE:
                how = self.put(space, column, result)
            elif column[KIND] == UPDATE or column[KIND] == DELETE:
                how = self.by_key(space, column, result)
            elif column[KIND] == UPSERT:
                how = self.upsert(space, column, result)
            elif column[KIND] == SELECT:
                if space.undo is not None:
                    space.undo.is_own = False
                how = self.selector.one(
                    space, column[INDEX], column[BASE], column[FIELD], column[VALUE],
                    self.data + column[FIRST], column[FIRST_END] - column[FIRST],
                    self.data + column[OPS], column[OPS_END] - column[OPS], column[AS_REPLACE] != 0,
                    &result[NEW])
                if how == DONE and column[AS_REPLACE] and self.selector.given:
                    result[OLD] = self.out.size
                    self.selector.put_position()
                    result[OLD_END] = self.out.size
                if how == REFUSED:
                    self.why = self.selector.why
                result[CODE] = space.undo is not None and not space.undo.is_own
        if how == UNMET:
            result[STATUS] = how
        elif how != DONE:
            self.out.size = start
            memset(result, 0, RESULT_WIDTH * sizeof(u64))
            result[STATUS] = how
            if how == REFUSED:
                result[CODE] = self.why.code
                result[WHY_A] = self.why.first
                result[WHY_B] = self.why.second
        return how

    cdef int refuse(self, u64 code, u64 first, u64 second) noexcept:
        self.why.code, self.why.first, self.why.second = code, first, second
        return REFUSED

    cdef int put(self, Space space, const u64* column, u64* result) except -1:
        """INSERT, REPLACE."""
        cdef Plan plan = space.plan
        cdef Source new = self.data + column[FIRST]
        cdef Py_ssize_t size = column[FIRST_END] - column[FIRST]
        cdef Found old
        cdef int how
        if not plan.check(new, size, &self.fields):
            return plan.explain(new, size, &self.why)
        self.key.size = 0
        if plan.put_key(0, new, size, &self.fields, self.key) != DONE:
            return REFER
        how = space.find(0, self.key.data, self.key.size, &old)
        if how == DONE and column[EXPECT] == EXPECT_COMPUTED:
            return self.compute(space, column, &old, result)
        if how == DONE:
            how = self.met(column, &old, result)
        if how != DONE:
            return how
        if old.state == THERE:
            if column[KIND] == INSERT:
                return self.refuse(TUPLE_FOUND, 0, 0)
            if self.take_old(&old, result) != DONE:
                return REFER
        how = self.swap(space, &old, new, size)
        if how == DONE:
            self.body(space, column, False, result)
            result[NEW], result[NEW_END] = result[BODY_END] - size, result[BODY_END]
        return how

    cdef int compute(self, Space space, const u64* column, Found* old, u64* result) except -1:
        """A REPLACE whose tuple the computer makes. The primary key is in `key`."""
        cdef Plan plan = space.plan
        cdef bint is_there = old.state == THERE
        cdef int how
        if self.computer is None or (is_there and old.value[0] == REFERENCE):
            return REFER
        self.made.size = 0
        how = self.computer.compute(
            column[FIELD], column[VALUE], self.data + column[FIRST],
            column[FIRST_END] - column[FIRST], old.value if is_there else NULL,
            old.size if is_there else 0, self.made, &result[CODE])
        if how == KEPT:
            return self.take_old(old, result) if is_there else DONE
        if how != DONE:
            return how
        if not plan.check(self.made.data, self.made.size, &self.fields):
            return plan.explain(self.made.data, self.made.size, &self.why)
        self.other.size = 0
        if plan.put_key(0, self.made.data, self.made.size, &self.fields, self.other) != DONE:
            return REFER
        if not self.is_same_key():
            raise ValueError("a computed tuple has the key of another")
        how = self.swap(space, old, self.made.data, self.made.size)
        return how if how != DONE else self.tuple_body(
            space, self.made.data, self.made.size, result)

    cdef int upsert(self, Space space, const u64* column, u64* result) except -1:
        cdef Plan plan = space.plan
        cdef Source given = self.data + column[FIRST]
        cdef Py_ssize_t size = column[FIRST_END] - column[FIRST]
        cdef Found old
        cdef int how
        if not column[OPS_END]:
            return REFER
        if not plan.check(given, size, &self.fields):
            return plan.explain(given, size, &self.why)
        self.key.size = 0
        if plan.put_key(0, given, size, &self.fields, self.key) != DONE:
            return REFER
        how = self.updater.decode(
            self.data + column[OPS], column[OPS_END] - column[OPS], column[BASE], &plan.names)
        if how == DONE:
            how = space.find(0, self.key.data, self.key.size, &old)
        if how == DONE:
            how = self.met(column, &old, result)
        if how != DONE:
            return how
        if old.state == THERE:
            how = self.changed(space, &old, True, result)
            return self.body(space, column, False, result) if how == DONE else how
        how = self.swap(space, &old, given, size)
        if how == DONE and column[AS_REPLACE]:
            return self.tuple_body(space, given, size, result)
        if how == DONE:
            self.body(space, column, False, result)
            result[NEW], result[NEW_END] = result[BODY_END] - size, result[BODY_END]
        return how

    cdef int by_key(self, Space space, const u64* column, u64* result) except -1:
        """UPDATE, DELETE."""
        cdef Plan plan = space.plan
        cdef Py_ssize_t index = plan.find_index(column[INDEX])
        cdef bint is_update = column[KIND] == UPDATE
        cdef Found old
        cdef int how
        if index < 0 or is_update != (column[OPS_END] != 0):
            return REFER
        if not plan.indexes[index].is_unique:
            return self.refuse(MORE_THAN_ONE_TUPLE, 0, 0)
        self.key.size = 0
        how = plan.exact_key(index, self.data + column[FIRST],
                             column[FIRST_END] - column[FIRST], self.key, &self.why)
        if how != DONE:
            return how
        how = self.find_old(space, index, &old)
        if how == DONE:
            how = self.met(column, &old, result)
        if how != DONE:
            return how
        if old.state != THERE:
            return self.body(space, column, False, result)
        if is_update:
            how = self.updater.decode(
                self.data + column[OPS], column[OPS_END] - column[OPS], column[BASE], &plan.names)
            if how == DONE:
                how = self.changed(space, &old, False, result)
        else:
            how = self.take_old(&old, result)
            if how == DONE:
                how = self.swap(space, &old, NULL, 0)
        if how != DONE:
            return how
        if index == 0:
            return self.body(space, column, False, result)
        if not plan.places(old.value, old.size, &self.old_fields):
            return REFER
        self.other.size = 0
        plan.own_key(old.value, old.size, &self.old_fields, self.other)
        return self.body(space, column, True, result)

    cdef int met(self, const u64* column, Found* old, u64* result) except -1:
        """Whether what a statement expects is so: `DONE`, `UNMET` or `REFER`."""
        cdef bint is_so = True
        if column[EXPECT] == 0:
            return DONE
        if column[EXPECT] == EXPECT_ABSENT:
            is_so = old.state != THERE
        elif old.state != THERE:
            return UNMET
        elif old.value[0] == REFERENCE:
            return REFER
        elif column[EXPECT] == EXPECT_VALUE:
            is_so = has_value(old.value, old.size, column[FIELD], column[VALUE], self.updater.owed)
        if is_so:
            return DONE
        return REFER if self.take_old(old, result) != DONE else UNMET

    cdef bint is_same_key(self) noexcept:
        return self.other.size == self.key.size and not memcmp(
            self.other.data, self.key.data, self.key.size)

    cdef int find_old(self, Space space, Py_ssize_t index, Found* old) except -1:
        """The tuple whose entry in an index is `key`, which becomes its primary key."""
        cdef int how = space.find(index, self.key.data, self.key.size, old)
        if how != DONE or index == 0 or old.state != THERE:
            return how
        self.key.size = 0
        self.key.need(old.size)
        memcpy(self.key.data, old.value, old.size)
        self.key.size = old.size
        return space.find(0, self.key.data, self.key.size, old)

    cdef int take_old(self, Found* old, u64* result) except -1:
        """Put the old tuple among the answers. `REFER` where it stands in the log."""
        if old.size < 1 or old.value[0] == REFERENCE:
            return REFER
        self.append(old.value, old.size, &result[OLD])
        return DONE

    cdef int changed(self, Space space, Found* old, bint leave_out, u64* result) except -1:
        """Apply the operations and put the new tuple in the place of the old one."""
        cdef Plan plan = space.plan
        cdef Found other
        cdef Source new
        cdef Py_ssize_t size
        cdef int how = self.take_old(old, result)
        if how == DONE:
            how = self.updater.apply(old.value, old.size, leave_out)
        if how != DONE:
            self.why = self.updater.refusal
            return how
        result[NEW] = self.out.size
        self.updater.write(plan.types, plan.table[CHECKED], self.out)
        result[NEW_END] = self.out.size
        new = self.out.data + result[NEW]
        size = result[NEW_END] - result[NEW]
        if not plan.check(new, size, &self.fields):
            return plan.explain(new, size, &self.why)
        self.other.size = 0
        if plan.put_key(0, new, size, &self.fields, self.other) != DONE:
            return REFER
        if not self.is_same_key():
            if leave_out:
                return REFER  # it is ignored, refused or moves
            if space.find(0, self.other.data, self.other.size, &other) != DONE:
                return REFER
            if other.state == THERE:
                return self.refuse(TUPLE_FOUND, 0, 0)
            return self.refuse(CANT_UPDATE_PRIMARY_KEY, 0, 0)
        return self.swap(space, old, new, size)

    # --- indexes ----------------------------------------------------------------------------------
    cdef int swap(self, Space space, Found* old, Source new, Py_ssize_t new_size) except -1:
        """Put `new` (NULL: nothing) in the place of `old` in all indexes, or, where it is refused,
        nothing. The primary key is in `key`."""
        cdef Py_ssize_t i
        cdef Change* change
        cdef int how
        if old.state == THERE and old.size == new_size and memcmp(old.value, new, new_size) == 0:
            return DONE
        if space.plan.index_count > 1:
            how = self.entries_of(space, old, new, new_size)
            if how != DONE:
                return how
            for i in range(1, space.plan.index_count):
                change = &self.changes[i]
                if change.before_size:
                    space.put(i, self.entries.data + change.before, change.before_size, NULL, 0)
                if change.behind_size:
                    space.put(i, self.entries.data + change.behind, change.behind_size,
                              self.key.data, self.key.size)
        space.put(0, self.key.data, self.key.size, new, new_size)
        return DONE

    cdef int entries_of(self, Space space, Found* old, Source new, Py_ssize_t new_size) except -1:
        """What changes in the indexes other than the primary one. `REFUSED`: another tuple has
        one of the keys. The places of `new` are in `fields`."""
        cdef Plan plan = space.plan
        cdef Room entries = self.entries
        cdef Change* change
        cdef Found found
        cdef Py_ssize_t i
        entries.size = 0
        if old.state == THERE and not plan.places(old.value, old.size, &self.old_fields):
            return REFER
        for i in range(1, plan.index_count):
            change = &self.changes[i]
            change.before = entries.size
            if old.state == THERE:
                if plan.put_key(i, old.value, old.size, &self.old_fields, entries) != DONE:
                    return REFER
            change.behind = entries.size
            change.before_size = change.behind - change.before
            if new != NULL:
                if plan.put_key(i, new, new_size, &self.fields, entries) != DONE:
                    return REFER
            change.behind_size = entries.size - change.behind
            if change.before_size == change.behind_size and memcmp(
                entries.data + change.before, entries.data + change.behind, change.before_size
            ) == 0:
                change.before_size = change.behind_size = 0
            elif change.behind_size and plan.indexes[i].is_unique:
                if space.find(i, entries.data + change.behind, change.behind_size, &found) != DONE:
                    return REFER
                if found.state == THERE:
                    return self.refuse(TUPLE_FOUND, i, 0)
        return DONE

    # --- the log ----------------------------------------------------------------------------------
    cdef int body(self, Space space, const u64* column, bint by_primary, u64* result) except -1:
        """Write the body to be logged: see `store.engine.request`. `by_primary`: with the key in
        `other` instead of the given one."""
        cdef Py_ssize_t first_size = column[FIRST_END] - column[FIRST]
        cdef Py_ssize_t ops_size = column[OPS_END] - column[OPS]
        cdef bint has_key = column[KIND] == UPDATE or column[KIND] == DELETE
        cdef bint has_index = column[INDEX] != 0 and not by_primary
        cdef Py_ssize_t at
        cdef Target out
        if column[AS_REPLACE] and ops_size and result[NEW_END]:
            first_size = result[NEW_END] - result[NEW]
            self.out.need(BODY_ROOM + first_size)  # then it stays where it is
            return self.tuple_body(space, self.out.data + result[NEW], first_size, result)
        self.out.need(BODY_ROOM + first_size + ops_size + self.other.size)
        out = self.out.data
        at = self.out.size
        result[BODY] = at
        out[at] = 0x82 + has_index + (column[BASE] != 0) + (column[OPS_END] != 0)
        out[at + 1] = SPACE_ID
        at = rows.put_uint(out, at + 2, space.plan.space_id)
        if has_index:
            out[at] = INDEX_ID
            at = rows.put_uint(out, at + 1, column[INDEX])
        if column[BASE]:
            out[at] = INDEX_BASE
            at = rows.put_uint(out, at + 1, column[BASE])
        if not has_key and ops_size:
            out[at] = OPS_KEY
            memcpy(out + at + 1, self.data + column[OPS], ops_size)
            at += 1 + ops_size
        out[at] = KEY_KEY if has_key else TUPLE_KEY
        at += 1
        if by_primary:
            memcpy(out + at, self.other.data, self.other.size)
            at += self.other.size
        else:
            memcpy(out + at, self.data + column[FIRST], first_size)
            at += first_size
        if has_key and ops_size:
            out[at] = TUPLE_KEY
            memcpy(out + at + 1, self.data + column[OPS], ops_size)
            at += 1 + ops_size
        self.out.size = at
        result[BODY_END] = at
        return DONE

    cdef int tuple_body(self, Space space, Source new, Py_ssize_t size, u64* result) except -1:
        """The body of a REPLACE by a tuple, which then is the new one where it stands in it."""
        cdef Py_ssize_t at
        self.out.need(BODY_ROOM + size)
        result[BODY] = at = self.out.size
        self.out.data[at] = 0x82
        self.out.data[at + 1] = SPACE_ID
        at = rows.put_uint(self.out.data, at + 2, space.plan.space_id)
        self.out.data[at] = TUPLE_KEY
        memcpy(self.out.data + at + 1, new, size)
        result[NEW] = at + 1
        result[NEW_END] = result[BODY_END] = self.out.size = at + 1 + size
        return DONE
