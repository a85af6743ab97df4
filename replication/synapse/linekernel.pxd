# The types of linekernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.wal.kernel as packed_rows

ctypedef unsigned long long u64
ctypedef const unsigned char* Source
ctypedef unsigned char* Target

cdef Py_ssize_t ITEMS_FIRST, ITEMS, KEYS_FIRST, KEYS_MORE, OF_KEY, NO_KIND
cdef Py_ssize_t SPACED, STRICT, DEPTH, KEYS, ROOM
cdef u64 ONES, NUL
cdef bytes _digits
cdef Source DIGITS

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t put_escaped(Py_ssize_t code, Target to, Py_ssize_t used) noexcept

@cython.locals(byte=Py_ssize_t, short=Py_ssize_t, more=Py_ssize_t, code=Py_ssize_t,
               i=Py_ssize_t)
cdef Py_ssize_t put_string(
    Source data, Py_ssize_t at, Py_ssize_t stop, Target to, Py_ssize_t used,
    bint is_strict) noexcept

@cython.locals(count=Py_ssize_t, rest=u64, at=Py_ssize_t)
cdef Py_ssize_t put_decimal(u64 value, Target to, Py_ssize_t used) noexcept

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t put_bytes(bytes found, Target to, Py_ssize_t used) noexcept

cdef Py_ssize_t put_comma(
    Target to, Py_ssize_t used, Py_ssize_t byte, Py_ssize_t form) noexcept

@cython.locals(first=Py_ssize_t)
cdef Py_ssize_t text_start(Source data, Py_ssize_t at) noexcept

@cython.locals(value=u64)
cdef u64 big(Source data, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(first=Py_ssize_t, width=Py_ssize_t, bits=u64, number=double)
cdef Py_ssize_t put_plain(
    Source data, Py_ssize_t at, Target to, Py_ssize_t used, Py_ssize_t* found) noexcept

@cython.locals(left="Py_ssize_t[32]", kinds="Py_ssize_t[32]", found="Py_ssize_t[1]",
               depth=Py_ssize_t, kind=Py_ssize_t, start=Py_ssize_t, first=Py_ssize_t,
               size=Py_ssize_t, is_map=Py_ssize_t, count=Py_ssize_t)
cdef Py_ssize_t item(
    Source data, Py_ssize_t at, Py_ssize_t end, Target to, Py_ssize_t used,
    Py_ssize_t form) noexcept

@cython.locals(size=Py_ssize_t, raw=Source, to=Target, owed="Py_ssize_t[512]")
cpdef Py_ssize_t text(bytes data, Py_ssize_t form, bytearray out) except? -2

@cython.locals(place=Py_ssize_t, row=Py_ssize_t)
cdef bint parts(
    Source data, Py_ssize_t at, Py_ssize_t size, Py_ssize_t* owed, Py_ssize_t* found) noexcept

cdef bint is_alike(
    Source data, Source other, Py_ssize_t size, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(to=Target, start_of_line=Source, room=Py_ssize_t, head_size=Py_ssize_t,
               owed="Py_ssize_t[512]", where="Py_ssize_t[2]", token_at=Py_ssize_t,
               count=Py_ssize_t, used=Py_ssize_t, made=Py_ssize_t, row=Py_ssize_t,
               packed=bytes, raw=Source, size=Py_ssize_t, begun=Py_ssize_t, is_last=bint, after=bytes,
               other=Source, i=Py_ssize_t)
cpdef Py_ssize_t lines(
    list found, Py_ssize_t first, bytes head, Py_ssize_t form, bytearray out,
    Py_ssize_t label_size, Py_ssize_t limit, u64[::1] ends) except? -2
