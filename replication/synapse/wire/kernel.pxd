# The types of kernel.py, for Cython. Nothing here is needed to run kernel.py as plain Python.
cimport cython
cimport logweir.wal.kernel as packed_rows

ctypedef unsigned long long u64
ctypedef const unsigned char* Source
ctypedef unsigned char* Target

cdef Py_ssize_t VALUE, KEY, AFTER, DEPTH, KEYS, OPEN_KEYS, ROOM
cdef u64 ONES, NUL
cdef bytes _hex, _short
cdef Source HEX, SHORT

cdef Py_ssize_t blank(Source data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(code=Py_ssize_t, i=Py_ssize_t, digit=Py_ssize_t)
cdef Py_ssize_t hex4(Source data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(size=Py_ssize_t, byte=Py_ssize_t, code=Py_ssize_t, low=Py_ssize_t)
cdef Py_ssize_t measure(Source data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* found) noexcept

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t put_size(Target to, Py_ssize_t used, Py_ssize_t size) noexcept

@cython.locals(byte=Py_ssize_t, code=Py_ssize_t, low=Py_ssize_t)
cdef Py_ssize_t put_text(
    Source data, Py_ssize_t at, Py_ssize_t stop, Target to, Py_ssize_t used) noexcept

@cython.locals(bits=u64, width=Py_ssize_t, i=Py_ssize_t)
cdef Py_ssize_t put_negative(u64 value, Target to, Py_ssize_t used) noexcept

cdef Py_ssize_t digits_end(Source data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(start=Py_ssize_t, first=Py_ssize_t, count=Py_ssize_t, value=u64, i=Py_ssize_t,
               bits=bytes)
cdef Py_ssize_t put_number(
    Source data, Py_ssize_t at, Py_ssize_t end, Target to, Py_ssize_t used,
    Py_ssize_t* found) noexcept

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t word(Source data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(at=Py_ssize_t)
cdef Py_ssize_t close(
    Target to, Py_ssize_t start, Py_ssize_t count, Py_ssize_t is_map, Py_ssize_t used) noexcept

@cython.locals(i=Py_ssize_t, j=Py_ssize_t, size=Py_ssize_t, at=Py_ssize_t)
cdef bint same_key(Target to, Py_ssize_t* keys, Py_ssize_t first, Py_ssize_t last) noexcept

@cython.locals(starts="Py_ssize_t[32]", counts="Py_ssize_t[32]", kinds="Py_ssize_t[32]",
               bases="Py_ssize_t[32]", keys="Py_ssize_t[256]", found="Py_ssize_t[1]",
               open_keys=Py_ssize_t, depth=Py_ssize_t, need=Py_ssize_t, byte=Py_ssize_t,
               top=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t)
cdef Py_ssize_t transcode(
    Source data, Py_ssize_t at, Py_ssize_t end, Target to, Py_ssize_t used) noexcept

@cython.locals(size=Py_ssize_t, raw=Source, to=Target)
cpdef Py_ssize_t encode(bytes text, bytearray out) except? -2

cdef bint starts_rdata(Source data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(stop=Py_ssize_t, token=u64, i=Py_ssize_t)
cdef u64 token_at(Source data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* found) noexcept

@cython.locals(start=Py_ssize_t, byte=Py_ssize_t)
cdef Py_ssize_t head_end(
    Source data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t words) noexcept

@cython.locals(raw=Source, to=Target, end=Py_ssize_t, room=Py_ssize_t, capacity=Py_ssize_t,
               found="Py_ssize_t[1]", rows=Py_ssize_t, used=Py_ssize_t, known=Py_ssize_t,
               known_size=Py_ssize_t, flow=u64, stop=Py_ssize_t, size=Py_ssize_t,
               head=Py_ssize_t, first=Py_ssize_t, same=bint, i=Py_ssize_t, token=u64,
               written=Py_ssize_t)
cpdef tuple scan(
    bytes data, Py_ssize_t at, Py_ssize_t words, dict heads, Py_ssize_t limit, bytearray out,
    u64[::1] flows, u64[::1] tokens, u64[::1] bounds)

@cython.locals(raw=Source, to=Target, count=Py_ssize_t, made=Py_ssize_t, used=Py_ssize_t,
               row=Py_ssize_t, at=Py_ssize_t, stop=Py_ssize_t, token=u64, size=Py_ssize_t,
               room=Py_ssize_t)
cpdef tuple units(
    u64[::1] flows, u64[::1] tokens, u64[::1] bounds, Py_ssize_t rows, u64 flow, bytes source,
    u64 last, bint joins, bytearray out, u64[::1] row_bounds, u64[::1] ends, u64[::1] unit_tokens)

@cython.locals(raw=Source, to=Target, name=Source, name_size=Py_ssize_t, used=Py_ssize_t,
               row=Py_ssize_t, unit=Py_ssize_t, place=u64, end=Py_ssize_t, i=Py_ssize_t,
               at=Py_ssize_t, stop=Py_ssize_t, size=Py_ssize_t, room=Py_ssize_t)
cpdef Py_ssize_t tuples(
    bytes source, u64[::1] bounds, u64[::1] ends, u64[::1] tokens, bytes label, bytearray out,
    u64[::1] tuple_bounds) except? -2
