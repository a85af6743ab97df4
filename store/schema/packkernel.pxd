# MsgPack for the store's kernels.

ctypedef unsigned long long u64
ctypedef const unsigned char* Source
ctypedef unsigned char* Target

cdef enum:
    # How a statement, or a part of one, ended.
    DONE = 0
    REFUSED = 1
    REFER = 2  # the reference engine must do it

cdef class Room:
    cdef Target data
    cdef Py_ssize_t size
    cdef Py_ssize_t room
    cdef int need(self, Py_ssize_t more) except -1

cdef struct Refusal:
    u64 code
    u64 first
    u64 second

cdef struct Names:
    Source blob
    const u64* bounds
    Py_ssize_t count

cdef Py_ssize_t after(Source data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* owed) noexcept
cdef Py_ssize_t items_from(Source data, Py_ssize_t size, u64* count) noexcept
cdef Py_ssize_t text_at(Source data, Py_ssize_t at, Py_ssize_t* size) noexcept
cdef Py_ssize_t put_items(Target out, Py_ssize_t at, u64 count) noexcept
cdef Py_ssize_t put_sized(Room out, Source data, Py_ssize_t size, int first) except -1
cdef int put_value(Room out, object value, int deep) except -1
cdef int put_row(Room out, object values) except -1
cdef int put_items_of(Room out, object values, int deep) except -1
