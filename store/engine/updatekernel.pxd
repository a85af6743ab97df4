# What the operations of an UPDATE or UPSERT do to a tuple, for `store.engine.statementkernel`.
from logweir.store.schema.packkernel cimport Names, Refusal, Room, Source, Target, u64

cdef enum:
    # Kinds of numbers.
    NO_NUMBER = 0
    WHOLE = 1
    FLOAT32_OR_64 = 2
    # How many fields and operations are known here; with more the reference engine is asked.
    ITEMS = 256
    OPERATIONS = 64

cdef struct Number:
    int kind
    bint is_negative
    u64 magnitude  # of a WHOLE one
    double real  # of any other

cdef struct Operation:
    unsigned char sign
    bint is_named
    long long field
    Py_ssize_t name_at  # in the operations' bytes
    Py_ssize_t name_size
    Source value  # of `=` `!` a MsgPack value, of `:` what is pasted, without its header
    Py_ssize_t size
    Number number  # of the others; once applied the result
    long long position
    long long cut
    Source kept  # of an applied `:` the string that it changed
    Py_ssize_t kept_size

cdef struct Item:
    Source value
    Py_ssize_t size
    int operation  # whose result stands here; -1: the bytes do

cdef class Updater:
    cdef Operation* operations
    cdef Item* items
    cdef Py_ssize_t* owed
    cdef Py_ssize_t count
    cdef Py_ssize_t fields
    cdef Refusal refusal
    cdef Room out  # of `changed`: the tuple, its key
    cdef Room key
    cdef int decode(self, Source ops, Py_ssize_t size, u64 base, Names* names) noexcept
    cdef int read_field(self, Source ops, Py_ssize_t at, u64 base, Names* names, Operation* to) noexcept
    cdef int read_argument(self, Source ops, Py_ssize_t at, Py_ssize_t end, u64 base, Operation* to) noexcept
    cdef int apply(self, Source old, Py_ssize_t size, bint leave_out) noexcept
    cdef int take_fields(self, Source old, Py_ssize_t size) noexcept
    cdef int apply_one(self, int number) noexcept
    cdef int compute(self, Operation* op, Item* item) noexcept
    cdef int splice(self, Operation* op, Item* item) noexcept
    cdef int refuse(self, u64 code, Operation* op, u64 wanted) noexcept
    cdef int write(self, const u64* types, Py_ssize_t typed, Room out) except -1
