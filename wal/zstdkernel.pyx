# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=False
# distutils: libraries = zstd
"""zstd frames unpacked by the system's libzstd, with contexts that are kept.

A context and its tables are some 160 kB that are taken and given back for every frame where each
has one of its own, which costs as much as the small frames of a log themselves. `wal.block` is the
face: it takes whatever this does not, and says what is wrong with it.

What the headers of a frame and of its blocks say is checked here, as streams of libzstd do. Of the
bits inside a block the library judges, and versions differ: 1.5.4 unpacked some 270 of about 250,000 frames in
which bytes had been changed at random that 1.5.7, which comes with Python's module, refuses.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, malloc
cimport cython

cdef extern from "<zstd.h>" nogil:
    ctypedef struct ZSTD_DCtx:
        pass
    ZSTD_DCtx *ZSTD_createDCtx()
    size_t ZSTD_freeDCtx(ZSTD_DCtx *context)
    size_t ZSTD_decompressDCtx(
        ZSTD_DCtx *context, void *to, size_t room, const void *source, size_t size)
    unsigned ZSTD_isError(size_t code)

cdef extern from "<zstd_errors.h>" nogil:
    ctypedef enum ZSTD_ErrorCode:
        ZSTD_error_dstSize_tooSmall
    ZSTD_ErrorCode ZSTD_getErrorCode(size_t code)

cdef extern from *:
    """
    #include <string.h>
    static inline int logweir_holds(
        const unsigned char *data, size_t size, const unsigned char *wanted, size_t count)
    {
        unsigned char first, last;
        size_t at = 0, end;
        if (count == 0 || count > size) return 0;
        first = wanted[0];
        last = wanted[count - 1];
        end = size - count + 1;
        while (at < end) {
            size_t stop = at + 64 <= end ? at + 64 : end;
            if (stop - at == 64) {
                unsigned char any = 0;
                for (int i = 0; i < 64; i++)
                    any |= (data[at + i] == first) & (data[at + count - 1 + i] == last);
                if (!any) {
                    at = stop;
                    continue;
                }
            }
            for (; at < stop; at++)
                if (data[at] == first && memcmp(data + at, wanted, count) == 0) return 1;
        }
        return 0;
    }
    """
    bint holds_bytes "logweir_holds" (
        const unsigned char *data, size_t size, const unsigned char *wanted, size_t count
    ) noexcept nogil

cdef enum:
    HEADER = 19  # bytes in front of a payload: wal.block.FIXHEADER_BYTES
    ROOM = 1 << 18  # more than a block of Tarantool's, which it writes from 128 KiB on
    KEPT = 1 << 20  # of memory for what comes out
    MAGIC = 0xFD2FB528  # of a frame: another begins what is skipped, or what old versions wrote
    WINDOW = 17  # 128 MiB, which libzstd's streams take at most, as a power above 1 KiB
    BLOCK = 1 << 17  # bytes that one block of a frame holds at most


ctypedef unsigned long long u64


cdef inline size_t number(const unsigned char *data, size_t size) noexcept nogil:
    """`size` bytes as a number, the lowest first."""
    cdef size_t found = 0
    while size:
        size -= 1
        found = found << 8 | data[size]
    return found


cdef size_t held(const unsigned char *source, size_t size) noexcept nogil:
    """How many bytes one whole frame may hold by its headers, at least 1; 0 where it is none.

    A call that unpacks a frame at once, unlike a stream, does not look at what follows from its
    window: no block holds more than that, and no bytes further back are to be used. So a frame that
    holds more than its window is one for a stream. Source: RFC 8878.
    """
    cdef size_t at, window, block, header, part, field, most = 0
    cdef unsigned char told
    if size < 6 or number(source, 4) != MAGIC:
        return 0
    told = source[4]
    at = 5 + ((1 << (told & 3)) >> 1)  # behind the number of a dictionary
    field = <size_t> 1 << (told >> 6)
    if told & 0x20:
        if size < at + field:
            return 0
        window = number(source + at, field) + (256 if field == 2 else 0)
    else:
        if source[5] >> 3 >= WINDOW:
            return 0
        window = <size_t> 1 << (10 + (source[5] >> 3))
        window += (window >> 3) * (source[5] & 7)
        at += 1
        if field == 1:
            field = 0
    at += field
    block = min(window, <size_t> BLOCK)
    while True:
        if size < at + 3:
            return 0
        header = number(source + at, 3)
        part = header >> 3
        if header & 6 == 6 or part > block:
            return 0
        most += block if header & 6 == 4 else part
        at += 3 + (1 if header & 6 == 2 else part)
        if header & 1:
            break
    if at + (4 if told & 4 else 0) != size:
        return 0
    return max(min(most, window), <size_t> 1)


@cython.final
cdef class _Unpacker:
    cdef ZSTD_DCtx *context
    cdef unsigned char *to
    cdef size_t room

    def __cinit__(self):
        self.context = ZSTD_createDCtx()
        self.resize(ROOM)
        if self.context is NULL or self.to is NULL:
            raise MemoryError

    def __dealloc__(self):
        ZSTD_freeDCtx(self.context)
        free(self.to)

    cdef void resize(self, size_t room) noexcept nogil:
        free(self.to)
        self.to = <unsigned char *> malloc(room)
        self.room = 0 if self.to is NULL else room

    cdef bint unpack(
        self, const unsigned char *source, size_t size, size_t limit, size_t *count
    ) noexcept nogil:
        """Whether one whole frame with at most `limit` bytes was unpacked, and how many it has."""
        cdef bint done = False
        cdef size_t most = min(limit, held(source, size))
        while self.room and most:
            count[0] = ZSTD_decompressDCtx(self.context, self.to, self.room, source, size)
            done = not ZSTD_isError(count[0])
            if done or ZSTD_getErrorCode(count[0]) != ZSTD_error_dstSize_tooSmall:
                break
            if self.room > limit:
                break
            self.resize(min(4 * self.room, limit + 1))
        return done and count[0] <= most


cdef void rest(_Unpacker one):
    """Keep it for the next one."""
    if one.room > KEPT or one.room == 0:
        one.resize(ROOM)
    if one.room:
        _resting.append(one)


cdef list _resting = []  # taken and put back under the interpreter's lock, one for each thread


def unpack(const unsigned char[::1] payload, size_t limit):
    """What one whole frame holds, as `bytes`; None where it is anything else, or holds more than
    `limit` bytes. What a frame says of its size is not believed: room for more is taken when it
    turns out to be too little."""
    cdef size_t size = payload.shape[0]
    cdef const unsigned char *source
    cdef size_t count = 0
    cdef bint done = False
    cdef _Unpacker one
    if size == 0:
        return None
    source = &payload[0]
    one = _resting.pop() if _resting else _Unpacker()
    with nogil:
        done = one.unpack(source, size, limit, &count)
    found = PyBytes_FromStringAndSize(<char *> one.to, count) if done else None
    rest(one)
    return found


def odd(
    const unsigned char[::1] window, const u64[::1] table, Py_ssize_t stride, Py_ssize_t first,
    Py_ssize_t last, size_t limit, const unsigned char[::1] wanted
):
    """Which of the blocks first … last - 1 in `window` is the first that is compressed and is not
    one whole frame that holds at most `limit` bytes, or has `wanted`, unless that is empty, among
    these; `last` if none. `table`: columns of `stride` numbers, as `wal.kernel.walk` wrote them.
    Raises `IndexError` for a block that ends behind the window, and a table that is too short."""
    cdef Py_ssize_t number = first
    cdef size_t size, start, count = 0, whole = window.shape[0], letters = wanted.shape[0]
    cdef const unsigned char *data = &window[0] if whole else NULL
    cdef const unsigned char *text = &wanted[0] if letters else NULL
    cdef bint is_behind = False
    cdef _Unpacker one
    if not 0 <= first <= last <= stride or stride > table.shape[0] // 4:
        raise IndexError("the table is shorter than it should be")
    one = _resting.pop() if _resting else _Unpacker()
    with nogil:
        while number < last:
            if table[3 * stride + number]:
                start, size = table[number] + HEADER, table[stride + number]
                if start > whole or size > whole - start:
                    is_behind = True
                    break
                if not one.unpack(data + start, size, limit, &count):
                    break
                if letters and holds_bytes(one.to, count, text, letters):
                    break
            number += 1
    rest(one)
    if is_behind:
        raise IndexError("a block ends behind the data")
    return number


def holds(const unsigned char[::1] data, const unsigned char[::1] wanted):
    """Whether some bytes are among others; nothing is among none. Others may run meanwhile."""
    cdef size_t size = data.shape[0], count = wanted.shape[0]
    cdef bint found
    if size == 0 or count == 0:
        return False
    with nogil:
        found = holds_bytes(&data[0], size, &wanted[0], count)
    return found
