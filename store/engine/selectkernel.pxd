# Selections over layers, compiled.
from logweir.store.state.layerkernel cimport Scan, Space
from logweir.store.state.memtablenodes cimport Cursor, Entry
from logweir.store.schema.plankernel cimport Fields
from logweir.store.schema.packkernel cimport Refusal, Room, Source, u64

cdef enum:
    # A piece ends when so many entries were passed, for many may be left out; about a millisecond.
    PIECE_STEPS = 16384
    PIECE_BYTES = 262144  # of tuples in the answer to a statement; see reads.PIECE_BYTES

cdef struct Walk:
    # Of one layer: the place, the entry at hand, NULL at the end, and how often the layer's map had
    # been changed when that was found.
    Cursor place
    Entry* entry
    u64 changes

cdef class Selector:
    cdef Room out
    cdef Room key
    cdef Room bound
    cdef Room entry  # of the last tuple, if a position is wanted, or behind which it goes on
    cdef Fields fields
    cdef Py_ssize_t* owed
    cdef Walk* walks
    cdef Py_ssize_t walk_room
    cdef Py_ssize_t depth
    # The selection that is under way.
    cdef Space space  # None: there is none
    cdef Py_ssize_t index  # place among those of its plan
    cdef Scan scan
    cdef bint is_exact  # the one entry that is `key`
    cdef bint is_back
    cdef bint has_low  # `key` or more
    cdef bint has_high  # less than `bound`
    cdef bint has_position  # a position is wanted
    cdef u64 index_id
    cdef u64 limit
    cdef u64 offset
    cdef readonly u64 given  # so many tuples
    cdef readonly bytes referred  # where the log has the last of them, see store.state.references
    cdef u64 piece  # of them in the last piece
    cdef int how  # REFER where the base has an entry that is only for Python
    cdef readonly bint is_whole
    cdef Refusal why
    cdef u64 steps  # entries that were passed
    cdef u64 last_step  # a piece ends there
    cdef int one(
        self, Space space, u64 index_id, u64 by, u64 limit, u64 offset, Source key,
        Py_ssize_t size, Source after, Py_ssize_t after_size, bint has_position, u64* span
    ) except -1
    cdef int begin(
        self, Space space, u64 index_id, u64 by, u64 limit, u64 offset, Source key,
        Py_ssize_t size, Source after, Py_ssize_t after_size
    ) except -1
    cdef int find_entry(self, Space space, Source after, Py_ssize_t size) except -1
    cdef bint is_met(self, u64 by) noexcept
    cdef int go_behind(self) except -1
    cdef int put_position(self) except -1
    cdef int go_on(self, Py_ssize_t room_bytes) except -1
    cdef int exact(self) except -1
    cdef int walk(self, Py_ssize_t room_bytes) except -1
    cdef void begin_piece(self) noexcept
    cdef int start(self) except -1
    cdef int start_layers(self) except -1
    cdef int check(self) except -1
    cdef int pick(self) except -2
    cdef int pass_entry(self, Py_ssize_t number) except -1
    cdef bint is_outside(self, Source key, Py_ssize_t size) noexcept
    cdef int emit(self, Source value, Py_ssize_t length) except -1
    cdef int take(self, Room to, Source data, Py_ssize_t size) except -1
    cdef void succeed(self) noexcept
    cdef void end(self) noexcept
    cdef int answer(self, int how) noexcept
