# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""Selections over layers and their base, compiled: by full key, and ranges in order.

`store.engine.select` says what each iterator selects. `store.engine.statementkernel` has them among
its statements and calls this; whoever reads in the embedded API does too, in pieces, so that a long
selection takes little memory. Nothing recurses or believes a length.

Between two pieces nothing is known of what lies below but places, which are looked at before they
are used: a layer that was changed meanwhile raises RuntimeError, a transaction that has ended what
its end means.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from libc.string cimport memcmp, memcpy, memmove

cimport logweir.wal.kernel as rows
from logweir.store.state.layerkernel cimport Base, Found, Scan, Space, Stack
from logweir.store.state.memtablekernel cimport Memtable
from logweir.store.state.memtablenodes cimport (
    THERE, Entry, key_of, order_of, step, step_back, value_of)
from logweir.store.schema.plankernel cimport Index, Plan
from logweir.store.engine.tuplekernel cimport DEEP, rows_from, tuples_from
from logweir.store.schema.packkernel cimport (
    DONE, REFER, REFUSED, Room, Source, Target, items_from, put_sized, text_at, u64)

cdef enum:
    BY_EQ = 0
    BY_REQ = 1
    BY_ALL = 2
    BY_LT = 3
    BY_LE = 4
    BY_GE = 5
    BY_GT = 6
    BY_GET = 7

    MORE_THAN_ONE_TUPLE = 41
    REFERENCE = 0xC1
    REFERENCE_BYTES = 33
    REFERRED = 3
    HEAD_BYTES = 5
    BYTES = 0xC4
    TEXT = 0xD9

cdef const char* LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef class Selector:
    """Answers selections, one after another, for one thread at a time.

    For Python: `select` or `entries` begins one and puts its first tuples here, `more` the next
    ones; each returns 0, or 1 where `refusal` says why not, or 2 where the reference engine has to
    do it, or, behind pieces, the rest of it: what lies behind the `given` tuples of all pieces. Of
    a range it may also be 3: behind the piece stands a tuple of the log, see `referred`, and `more`
    goes on behind that.
    """

    def __cinit__(self):
        self.owed = <Py_ssize_t*>PyMem_Calloc(DEEP, sizeof(Py_ssize_t))
        if self.owed == NULL:
            raise MemoryError()

    def __init__(self, Room out=None):
        """`out`: where tuples go."""
        self.out = Room() if out is None else out
        self.key, self.bound, self.entry = Room(), Room(), Room()

    def __dealloc__(self):
        PyMem_Free(self.walks)
        PyMem_Free(self.owed)

    cdef int one(
        self, Space space, u64 index_id, u64 by, u64 limit, u64 offset, Source key,
        Py_ssize_t size, Source after, Py_ssize_t after_size, bint has_position, u64* span
    ) except -1:
        """Put the tuples of one selection behind what `out` has, as a MsgPack array (dd and four
        bytes), and tell where it stands: `DONE`, `REFUSED` or `REFER`, also where it is more than
        one piece. `has_position`: `put_position` comes next, if there are any."""
        cdef Py_ssize_t begin = self.out.size
        self.begin_piece()
        self.has_position, self.index_id = has_position, index_id
        cdef int how = self.begin(
            space, index_id, by, limit, offset, key, size, after, after_size)
        if how == DONE:
            self.out.need(HEAD_BYTES)
            self.out.size += HEAD_BYTES
            how = self.go_on(PIECE_BYTES)
            if not self.is_whole or how == REFERRED:
                how = REFER
        self.end()
        if how == DONE:
            self.out.data[begin] = 0xDD
            rows.put_number(self.out.data, begin + 1, self.given, 4)
            span[0], span[1] = begin, self.out.size
        return how

    # --- for Python -------------------------------------------------------------------------------
    def select(
        self, Space space not None, u64 index_id, u64 by, u64 limit, u64 offset,
        bytes key not None, Py_ssize_t room_bytes
    ):
        """Begin the selection that a request has in numbers: see `store.engine.statementkernel`.

        `room_bytes`: a piece ends with the tuple that reaches it, or behind `PIECE_STEPS`.
        """
        cdef int how
        self.out.size = 0
        self.has_position = False
        self.begin_piece()
        how = self.begin(
            space, index_id, by, limit, offset, <Source>PyBytes_AS_STRING(key),
            PyBytes_GET_SIZE(key), NULL, 0)
        return self.answer(self.go_on(room_bytes) if how == DONE else how)

    def entries(
        self, Space space not None, u64 index_id, bytes start not None, bytes stop, bint is_back,
        u64 limit, u64 offset, Py_ssize_t room_bytes
    ):
        """Begin with the tuples whose entries are in start ≤ entry < stop (None: no end)."""
        self.index = space.plan.find_index(index_id)
        self.out.size = 0
        self.begin_piece()
        self.is_exact, self.is_back, self.limit, self.offset = False, is_back, limit, offset
        self.given, self.piece, self.is_whole, self.has_position = 0, 0, False, False
        if self.index < 0:
            return REFER
        self.take(self.key, <Source>PyBytes_AS_STRING(start), PyBytes_GET_SIZE(start))
        self.has_low, self.has_high, self.bound.size = self.key.size != 0, stop is not None, 0
        if stop is not None:
            self.take(self.bound, <Source>PyBytes_AS_STRING(stop), PyBytes_GET_SIZE(stop))
        self.space = space
        self.start()
        return self.answer(self.go_on(room_bytes))

    def more(self, Py_ssize_t room_bytes):
        """The next piece."""
        self.out.size = 0
        self.begin_piece()
        self.piece = 0
        if self.is_whole or self.space is None:
            return DONE
        self.check()
        return self.answer(self.go_on(room_bytes))

    cdef int answer(self, int how) noexcept:
        """What a piece came to; what is whole holds nothing any more."""
        if self.is_whole or (how != DONE and how != REFERRED):
            self.end()
        return how

    @property
    def refusal(self):
        """Code and two numbers: see `store.engine.refusal`."""
        return self.why.code, self.why.first, self.why.second

    @property
    def held_bytes(self):
        """Memory that it keeps for pieces to come."""
        return self.out.room

    def tuples(self):
        """The tuples of the last piece, as MsgPack."""
        return tuples_from(self.out.data, self.out.size, self.piece, self.owed)

    def block(self):
        """How many these are, and they one behind the other."""
        return self.piece, PyBytes_FromStringAndSize(<char*>self.out.data, self.out.size)

    def rows(self):
        """The same as Python tuples."""
        return rows_from(self.out.data, self.out.size, self.piece, self.owed)

    def count(self, Space space not None, u64 index_id):
        """How many entries an index has, -1 where the reference engine has to count."""
        cdef Found found
        cdef Stack* stack
        cdef Py_ssize_t count, number
        cdef Entry* entry
        self.index = space.plan.find_index(index_id)
        if self.index < 0:
            return -1
        stack = &space.stacks[self.index]
        count = (<Base>stack.base).count()
        if count < 0:
            return -1
        self.space, self.is_back, self.has_low, self.has_high = space, False, False, False
        self.key.size = self.bound.size = 0
        self.scan, self.how = None, DONE
        self.start_layers()
        while True:
            number = self.pick()
            if number < 0:
                break
            entry = self.walks[number].entry
            if (<Base>stack.base).find(key_of(entry), entry.key_size, &found, space.kept) != DONE:
                count = -1
                break
            count += (entry.size != 0) - (found.state == THERE)
            space.kept.clear()
            self.pass_entry(number)
        self.end()
        return count

    # --- what is selected -------------------------------------------------------------------------
    cdef int take(self, Room to, Source data, Py_ssize_t size) except -1:
        to.size = 0
        to.need(size + 1)  # for C an empty copy needs a place too
        memcpy(to.data, data, size)
        to.size = size
        return 0

    cdef int begin(
        self, Space space, u64 index_id, u64 by, u64 limit, u64 offset, Source key,
        Py_ssize_t size, Source after, Py_ssize_t after_size
    ) except -1:
        """Find out what is selected, and where it begins: `DONE`, `REFUSED` or `REFER`.

        `by`: 0 EQ, 1 REQ, 2 ALL, 3 LT, 4 LE, 5 GE, 6 GT; 7: the one tuple with that key of a unique
        index, as `Engine.get`; `limit`: so many tuples at most; `offset`: so many are left out
        first; `after`: of `after_size` bytes, none for 0: behind what it goes on, as a request has
        it (`store.engine.paging`).
        """
        cdef Plan plan = space.plan
        cdef u64 count
        cdef Index* index
        cdef bint has_key
        cdef int how
        self.limit, self.offset, self.given, self.piece = limit, offset, 0, 0
        self.is_whole, self.is_exact = False, by == BY_GET
        if after_size == 1 and after[0] == 0xA0:
            after_size = 0  # the position before all
        self.index = plan.find_index(index_id)
        if self.index < 0 or by > BY_GET:
            return REFER
        index = &plan.indexes[self.index]
        self.key.size = 0
        self.key.need(1)
        if by == BY_GET:
            if not index.is_unique:
                self.why.code = MORE_THAN_ONE_TUPLE
                return REFUSED
            self.space = space
            return plan.exact_key(self.index, key, size, self.key, &self.why)
        how = plan.search_key(
            self.index, key, size, by == BY_ALL or by == BY_GT, self.key, &self.why)
        if how != DONE:
            return how
        if index.is_hash and by != BY_EQ and by != BY_ALL and by != BY_GT:
            return REFER
        if after_size and self.find_entry(space, after, after_size) != DONE:
            return REFER
        if after_size and not self.is_met(by):
            return REFER
        self.space = space
        if by <= BY_REQ and index.is_unique and index.used == index.own and not after_size:
            items_from(key, size, &count)
            if count == <u64>index.own:
                self.is_exact = True
                return DONE
        if index.is_hash and by == BY_ALL:
            self.key.size = 0
        has_key = self.key.size != 0
        self.is_back = by == BY_REQ or by == BY_LT or by == BY_LE
        self.take(self.bound, self.key.data, self.key.size)
        if by != BY_LT:
            self.succeed()  # of which the class byte of a part, below ff, leaves something
        if by == BY_GT:
            self.take(self.key, self.bound.data, self.bound.size)
        self.has_low = has_key and (by <= BY_REQ or not self.is_back)
        self.has_high = has_key and (by <= BY_REQ or self.is_back)
        if after_size:
            self.go_behind()
        return self.start()

    cdef int find_entry(self, Space space, Source after, Py_ssize_t size) except -1:
        """Put the entry that a position names, or that of a tuple, into `entry`; `REFER` where the
        reference engine has to look, which may refuse it."""
        cdef Py_ssize_t at, length, stop
        cdef Target out
        cdef u64 bits = 0, held = 0, letter
        self.entry.size = 0
        if not 0xA0 <= after[0] < 0xC0 and not TEXT <= after[0] <= TEXT + 2:
            if not space.plan.check(after, size, &self.fields):
                return REFER
            return space.plan.put_key(self.index, after, size, &self.fields, self.entry)
        at = text_at(after, 0, &length)
        self.entry.need(length)
        out = self.entry.data
        stop = 0
        for at in range(at, size):
            letter = after[at]
            if 65 <= letter <= 90:
                bits = bits << 6 | (letter - 65)
            elif 97 <= letter <= 122:
                bits = bits << 6 | (letter - 71)
            elif 48 <= letter <= 57:
                bits = bits << 6 | (letter + 4)
            elif letter == 43 or letter == 47:
                bits = bits << 6 | (62 if letter == 43 else 63)
            else:
                return REFER
            held += 6
            if held >= 8:
                held -= 8
                out[stop] = <unsigned char>(bits >> held & 0xFF)
                stop += 1
        at = rows.uint_end(out, 1, stop) if stop else -1
        if (
            at < 0 or held == 6 or out[0] != 0x92 or rows.uint(out, 1, at) != space.plan.indexes[self.index].id
            or stop < at + 2 or not BYTES <= out[at] <= BYTES + 2
            or stop < at + 1 + (1 << (out[at] - BYTES))
        ):
            return REFER
        at = text_at(out, at, &length)
        if stop - at != length:
            return REFER
        memmove(out, out + at, length)
        self.entry.size = length
        return DONE

    cdef bint is_met(self, u64 by) noexcept:
        """Whether `entry` is on the way of the selection whose key is in `key`."""
        cdef Py_ssize_t size = min(self.key.size, self.entry.size)
        cdef int order = order_of(self.entry.data, size, self.key.data, self.key.size)
        if by <= BY_REQ:
            return order == 0
        return order <= 0 if by == BY_LT or by == BY_LE else order >= 0

    cdef int go_behind(self) except -1:
        """Leave out what is not behind `entry`."""
        cdef Room end = self.bound if self.is_back else self.key
        cdef bint has_end = self.has_high if self.is_back else self.has_low
        if not self.is_back:
            self.entry.need(1)
            self.entry.data[self.entry.size] = 0  # the next one that there can be
            self.entry.size += 1
        cdef int order = order_of(self.entry.data, self.entry.size, end.data, end.size)
        if not has_end or (order < 0) == self.is_back:
            self.take(end, self.entry.data, self.entry.size)
        self.has_low, self.has_high = self.has_low or not self.is_back, self.has_high or self.is_back
        return 0

    cdef int put_position(self) except -1:
        """Put the position of the last tuple behind what `out` has: a MsgPack str."""
        cdef Py_ssize_t i, size
        cdef Source raw
        cdef u64 bits
        self.bound.size = 0
        self.bound.need(6)
        self.bound.data[0] = 0x92
        self.bound.size = rows.put_uint(self.bound.data, 1, self.index_id)
        put_sized(self.bound, self.entry.data, self.entry.size, BYTES)
        raw, size = self.bound.data, self.bound.size
        self.key.size = 0
        self.key.need(4 * size // 3 + 4)
        for i in range((4 * size + 2) // 3):
            bits = <u64>raw[i * 6 // 8] << 8
            if i * 6 // 8 + 1 < size:
                bits |= raw[i * 6 // 8 + 1]
            self.key.data[i] = LETTERS[bits >> (10 - i * 6 % 8) & 63]
        self.key.size = (4 * size + 2) // 3
        put_sized(self.out, self.key.data, self.key.size, TEXT)
        return 0

    cdef void succeed(self) noexcept:
        """Make `bound` the least key above all that begin with it."""
        while self.bound.size and self.bound.data[self.bound.size - 1] == 0xFF:
            self.bound.size -= 1
        if self.bound.size:
            self.bound.data[self.bound.size - 1] += 1

    cdef void end(self) noexcept:
        """Let go of what was read."""
        self.scan = self.space = None

    # --- pieces -----------------------------------------------------------------------------------
    cdef int go_on(self, Py_ssize_t room_bytes) except -1:
        """Put tuples behind what `out` has: all, or those of one piece."""
        return self.exact() if self.is_exact else self.walk(room_bytes)

    cdef void begin_piece(self) noexcept:
        self.last_step = self.steps + PIECE_STEPS

    cdef int exact(self) except -1:
        """The tuple whose entry in a unique index is `key`."""
        cdef Found found
        cdef int how
        self.is_whole = True
        if PyList_GET_SIZE(self.space.kept):
            self.space.kept.clear()
        how = self.space.find(self.index, self.key.data, self.key.size, &found)
        if how == DONE and found.state == THERE and self.limit and not self.offset:
            how = self.emit(found.value, found.size)
            if self.has_position:
                self.take(self.entry, self.key.data, self.key.size)
        return REFER if how == REFERRED else how

    cdef int walk(self, Py_ssize_t room_bytes) except -1:
        """The entries from `key` on, if there is a low end, to below `bound`, if there is a high
        one; in reverse from that end."""
        cdef Py_ssize_t number, size, length, first = self.out.size
        cdef Source key, value
        cdef int how = DONE
        while self.given < self.limit and how == DONE and self.how == DONE:
            if self.out.size - first >= room_bytes or self.steps >= self.last_step:
                return DONE
            self.steps += 1
            number = self.pick()
            if number < 0:
                break
            if number == self.depth:
                key, size = self.scan.key, self.scan.size
                value, length = self.scan.value, self.scan.length
            else:
                key, size = key_of(self.walks[number].entry), self.walks[number].entry.key_size
                value = value_of(self.walks[number].entry)
                length = self.walks[number].entry.size
            if self.is_outside(key, size):
                break
            if length:
                if self.offset:
                    self.offset -= 1
                else:
                    if PyList_GET_SIZE(self.space.kept):
                        self.space.kept.clear()  # of the tuple before
                    how = self.emit(value, length)
                    if self.has_position:
                        self.take(self.entry, key, size)
            if (how == DONE or how == REFERRED) and self.given < self.limit:
                self.pass_entry(number)
        if how == REFERRED:
            return how
        if self.given < self.limit and self.how != DONE:
            how = self.how
        self.is_whole = how == DONE
        return how

    cdef int start(self) except -1:
        """Go to the first entry of each layer and of the base."""
        cdef Room bound = self.bound if self.is_back else self.key
        cdef bint has_bound = self.has_high if self.is_back else self.has_low
        self.start_layers()
        self.scan = (<Base>self.space.stacks[self.index].base).open_scan(
            bound.data, bound.size, has_bound, self.is_back)
        self.how = self.scan.step()
        return DONE

    cdef int start_layers(self) except -1:
        cdef Room bound = self.bound if self.is_back else self.key
        cdef bint has_bound = self.has_high if self.is_back else self.has_low
        cdef Stack* stack = &self.space.stacks[self.index]
        cdef Memtable table
        cdef Py_ssize_t i
        cdef void* moved
        if self.space.undo is not None:
            if stack.early:
                self.space.undo.is_early = True
            if (<Memtable>stack.tables[0]).count:
                self.space.undo.is_own = True
        if self.walk_room < stack.depth:
            moved = PyMem_Realloc(self.walks, stack.depth * sizeof(Walk))
            if moved == NULL:
                raise MemoryError()
            self.walks, self.walk_room = <Walk*>moved, stack.depth
        self.depth = stack.depth
        for i in range(self.depth):
            table = <Memtable>stack.tables[i]
            if has_bound:
                self.walks[i].place = table.seek(bound.data, bound.size)
            elif self.is_back:
                self.walks[i].place = table.end()
            else:
                self.walks[i].place = table.start()
            self.walks[i].changes = table.changes
            self.pass_entry(i)
        return 0

    cdef int check(self) except -1:
        """Raise where places are of no use any more."""
        cdef Py_ssize_t i
        for i in range(self.depth):
            if (<Memtable>self.space.stacks[self.index].tables[i]).changes != self.walks[i].changes:
                raise RuntimeError("the memtable was changed while it was read")
        return self.scan.check()

    cdef int pass_entry(self, Py_ssize_t number) except -1:
        """Go on in a layer, or in the base, which comes last."""
        cdef Walk* walk
        if number == self.depth:
            self.how = self.scan.step()
            return 0
        walk = &self.walks[number]
        walk.entry = step_back(&walk.place) if self.is_back else step(&walk.place)
        return 0

    cdef int pick(self) except -2:
        """Whose entry comes next, the newest of those with the same key, the others of which are
        passed; -1: there are no more."""
        cdef Py_ssize_t i
        cdef int best = -1, order
        cdef Source key = NULL, other
        cdef size_t size = 0, other_size
        for i in range(self.depth + 1):
            if i == self.depth:
                if self.scan is None:
                    continue
                other, other_size = self.scan.key, self.scan.size
            elif self.walks[i].entry == NULL:
                continue
            else:
                other, other_size = key_of(self.walks[i].entry), self.walks[i].entry.key_size
            if other == NULL:
                continue
            if best >= 0:
                order = order_of(other, other_size, key, size)
                if order == 0:
                    self.pass_entry(i)
                if order == 0 or (order > 0) != self.is_back:
                    continue
            best, key, size = <int>i, other, other_size
        return best

    cdef bint is_outside(self, Source key, Py_ssize_t size) noexcept:
        if self.is_back:
            return self.has_low and order_of(key, size, self.key.data, self.key.size) < 0
        return self.has_high and order_of(key, size, self.bound.data, self.bound.size) >= 0

    cdef int emit(self, Source value, Py_ssize_t length) except -1:
        """Put the tuple of an entry into the answer. `REFERRED` where the log has it, `REFER` where
        it is not at hand."""
        cdef Found found
        if self.index:
            if self.space.find(0, value, length, &found) != DONE or found.state != THERE:
                return REFER
            value, length = found.value, found.size
        if length < 1:
            return REFER
        if value[0] == REFERENCE:
            if length != REFERENCE_BYTES:
                return REFER
            self.referred = PyBytes_FromStringAndSize(<const char*>value, length)
            self.given += 1
            return REFERRED
        self.out.need(length)
        memcpy(self.out.data + self.out.size, value, length)
        self.out.size += length
        self.given += 1
        self.piece += 1
        return DONE
