# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=False
# distutils: libraries = zstd
"""zstd frames unpacked by the system's libzstd, with contexts that are kept.

A context and its tables are some 160 kB that are taken and given back for every frame where each
has one of its own, which costs as much as the small frames of a log themselves. `wal.block` is the
face: it takes whatever this does not, and says what is wrong with it.
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
    size_t ZSTD_findFrameCompressedSize(const void *source, size_t size)
    unsigned ZSTD_isError(size_t code)

cdef extern from "<zstd_errors.h>" nogil:
    ctypedef enum ZSTD_ErrorCode:
        ZSTD_error_dstSize_tooSmall
    ZSTD_ErrorCode ZSTD_getErrorCode(size_t code)

cdef enum:
    ROOM = 1 << 18  # more than a block of Tarantool's, which it writes from 128 KiB on
    KEPT = 1 << 20  # of memory for what comes out
    MAGIC = 4
    WINDOW = 17  # 128 MiB, which libzstd's streams take at most, as a power above 1 KiB


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
    if size < MAGIC + 2:
        return None
    source = &payload[0]
    if not source[MAGIC] & 0x20 and source[MAGIC + 1] >> 3 >= WINDOW:
        return None
    one = _resting.pop() if _resting else _Unpacker()
    with nogil:
        while ZSTD_findFrameCompressedSize(source, size) == size:
            count = ZSTD_decompressDCtx(one.context, one.to, one.room, source, size)
            done = not ZSTD_isError(count)
            if done or ZSTD_getErrorCode(count) != ZSTD_error_dstSize_tooSmall:
                break
            if one.room > limit:
                break
            one.resize(min(4 * one.room, limit + 1))
            if one.room == 0:
                break
    found = PyBytes_FromStringAndSize(<char *> one.to, count) if done and count <= limit else None
    if one.room > KEPT or one.room == 0:
        one.resize(ROOM)
    if one.room:
        _resting.append(one)
    return found
