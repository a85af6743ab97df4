# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""MsgPack for the store's kernels: where values end, headers, and bytes that grow."""

from cpython.mem cimport PyMem_Free, PyMem_Realloc

cimport logweir.store.schema.kernel as keys
cimport logweir.wal.kernel as rows


cdef class Room:
    """Bytes that grow."""

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int need(self, Py_ssize_t more) except -1:
        """See that so many bytes can be written behind `size`. Pointers into it may end here."""
        cdef Py_ssize_t wanted
        cdef Target moved
        if more <= self.room - self.size:
            return 0
        if more > (<Py_ssize_t>1 << 40):
            raise MemoryError()
        wanted = 2 * self.room + more + 256
        moved = <Target>PyMem_Realloc(self.data, wanted)
        if moved == NULL:
            raise MemoryError()
        self.data = moved
        self.room = wanted
        return 0


cdef Py_ssize_t after(Source data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* owed) noexcept:
    """Where the value at `at` ends, which stands inside one other; -1: malformed."""
    cdef unsigned char first
    if at >= end:
        return -1
    first = data[at]
    if first < 0x80:
        return at + 1
    if 0xA0 <= first < 0xC0:
        at += 1 + (first & 0x1F)
        return at if at <= end else -1
    return rows.skip_value(data, at, end, owed, 1)


cdef Py_ssize_t items_from(Source data, Py_ssize_t size, u64* count) noexcept:
    """Where the items of the array at the front begin; -1: there is none."""
    cdef Py_ssize_t at = keys.items_at(data, 0, size)
    if at > 0:
        count[0] = data[0] & 0x0F if at == 1 else rows.load(data, 1, at - 1)
    return at


cdef Py_ssize_t text_at(Source data, Py_ssize_t at, Py_ssize_t* size) noexcept:
    """Where the bytes of the str or bin at `at`, which must be one and whole, begin."""
    cdef Py_ssize_t width
    if data[at] < 0xC0:
        size[0] = data[at] & 0x1F
        return at + 1
    width = 1 << (data[at] - 0xC4 if data[at] < 0xD9 else data[at] - 0xD9)
    size[0] = <Py_ssize_t>rows.load(data, at + 1, width)
    return at + 1 + width


cdef Py_ssize_t put_items(Target out, Py_ssize_t at, u64 count) noexcept:
    """Write the header of an array. Returns where it ends."""
    if count < 16:
        out[at] = <unsigned char>(0x90 | count)
        return at + 1
    if count < 0x10000:
        out[at] = 0xDC
        return rows.put_number(out, at + 1, count, 2)
    out[at] = 0xDD
    return rows.put_number(out, at + 1, count, 4)
