cimport cython
cimport logweir.wal.kernel as rows

cdef unsigned int _HAS_KEY, _SAME_TIME, _NEXT_NUMBER
cdef unsigned long long HIGHEST
cdef Py_ssize_t _VIEWED_BYTES, _BUFFER_BYTES

cpdef bint compiled()

@cython.locals(value=cython.longlong, byte=cython.longlong, size=cython.longlong)
cdef long long varint(
    const unsigned char[::1] source, Py_ssize_t position, Py_ssize_t end) noexcept

@cython.locals(
    found=cython.longlong,
    end=Py_ssize_t, number=cython.ulonglong, time=cython.ulonglong, first_time=cython.ulonglong,
    index=cython.ulonglong, flags=cython.uint, value=cython.ulonglong, shift=cython.uint,
    byte=cython.ulonglong, key_start=Py_ssize_t, key_end=Py_ssize_t, size=Py_ssize_t,
)
cpdef tuple walk(
    object data, const unsigned char[::1] source, Py_ssize_t position, unsigned long long count, bint sparse,
    unsigned long long first, unsigned long long last, list out)

@cython.locals(value=cython.ulonglong)
cdef unsigned long long fixed(
    const unsigned char[::1] source, Py_ssize_t position, Py_ssize_t size) noexcept

@cython.locals(
    end=Py_ssize_t, position=Py_ssize_t, flags=cython.uint, count=cython.ulonglong,
    found=cython.longlong, first=cython.ulonglong, last=cython.ulonglong, sparse=bint,
    base=cython.ulonglong, until=cython.ulonglong,
)
cpdef tuple sound(const unsigned char[::1] source)

@cython.locals(to="unsigned char*", at=Py_ssize_t, width=Py_ssize_t)
cpdef bytes tuple_head(
    unsigned long long partition, unsigned long long first, unsigned long long last,
    unsigned long long time, unsigned long long size)

@cython.locals(
    source="const unsigned char[::1]", end=Py_ssize_t, size=cython.ulonglong, start=Py_ssize_t)
cpdef Py_ssize_t frames(
    object view, Py_ssize_t position, unsigned long long limit, list out) except -1

@cython.locals(
    end=Py_ssize_t, client_end=Py_ssize_t, at=Py_ssize_t, topics_left=int, topics=list,
    name_end=Py_ssize_t, left=int, parts=list, found=cython.longlong, size=Py_ssize_t,
    start=Py_ssize_t)
cpdef tuple publish(
    object payload, const unsigned char[::1] source, bint at_numbers, Py_ssize_t viewed,
    object make)

@cython.locals(ends=list, at=Py_ssize_t, count=Py_ssize_t)
cpdef list spans(list appends)

@cython.locals(size=Py_ssize_t)
cpdef Py_ssize_t size_of(list appends) except -1

@cython.locals(
    size=Py_ssize_t, first=cython.ulonglong, until=cython.ulonglong,
    count=cython.ulonglong, framed=Py_ssize_t)
cpdef tuple place(
    list appends, Py_ssize_t at, Py_ssize_t end, unsigned long long last, Py_ssize_t most,
    object stored, object make, list tuples, object outcome, list outcomes)

cdef Py_ssize_t varint_size(Py_ssize_t value) noexcept

@cython.locals(found="unsigned long long[::1]")
cpdef tuple stored(bytes data)

@cython.locals(at=Py_ssize_t, field=int, value=cython.ulonglong, width=Py_ssize_t)
cdef bint fields(
    const unsigned char* raw, Py_ssize_t at, Py_ssize_t end,
    unsigned long long[::1] out) noexcept

@cython.locals(
    flags=cython.uint, count=cython.ulonglong, found=cython.longlong, value=cython.ulonglong,
    size=Py_ssize_t, step=cython.ulonglong)
cpdef bint agrees(
    const unsigned char* raw, Py_ssize_t at, Py_ssize_t end, unsigned long long first,
    unsigned long long last) noexcept

@cython.locals(value=cython.longlong, byte=cython.longlong, size=cython.longlong)
cdef long long pointed(
    const unsigned char* raw, Py_ssize_t position, Py_ssize_t end) noexcept

@cython.locals(
    found="unsigned long long[::1]", raw="const unsigned char*", stop=Py_ssize_t,
    buffer=bytearray, room="unsigned char[::1]", start=Py_ssize_t, at=Py_ssize_t, held=Py_ssize_t,
    place=Py_ssize_t, after=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t, framed=Py_ssize_t,
    rest=cython.ulonglong, following=cython.ulonglong, base=cython.ulonglong,
    unreadable=Py_ssize_t, is_sound=bint, is_over=bint, is_viewed=bint, sparse=bint)
cpdef tuple chunk(
    bytes data, unsigned long long count, unsigned long long partition, unsigned long long highest,
    Py_ssize_t size, Py_ssize_t limit, list out)

cdef Py_ssize_t put_varint(
    unsigned char[::1] out, Py_ssize_t at, unsigned long long value) noexcept
