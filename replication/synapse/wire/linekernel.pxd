# The types of linekernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.wal.kernel as packed_rows

ctypedef unsigned long long u64
ctypedef const unsigned char* Source
ctypedef unsigned char* Target

# What `put_chunk` is told: where it reads it does not write, so that a C compiler takes all at once.
cdef extern from *:
    """
    typedef unsigned char *restrict logweir_line_apart;
    typedef const unsigned char *restrict logweir_line_source;
    """
    ctypedef unsigned char* Apart "logweir_line_apart"
    ctypedef const unsigned char* ApartSource "logweir_line_source"

cdef Py_ssize_t ITEMS_FIRST, ITEMS, KEYS_FIRST, KEYS_MORE, OF_KEY, NO_KIND
cdef Py_ssize_t SPACED, STRICT, DEPTH, KEYS, LEFT, LAST_LEFT, KIND, LAST_KIND, ROOM
cdef Py_ssize_t INSERT, REPLACE, UPDATE, DELETE, UPSERT
cdef u64 ONES, NUL, EACH, SPACES, QUOTES, SLASHES, HIGHS
cdef bytes _digits, _null, _false, _true, _batch
cdef bytes _open, _insert, _replace, _delete
cdef Source DIGITS, WORD_NULL, WORD_FALSE, WORD_TRUE, WORD_BATCH
cdef Source OPEN, OP_INSERT, OP_REPLACE, OP_DELETE

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t put_escaped(Py_ssize_t code, Target to, Py_ssize_t used) noexcept

@cython.locals(word=u64, byte=u64, odd=u64, i=Py_ssize_t)
cdef bint put_chunk(
    ApartSource data, Py_ssize_t at, Py_ssize_t count, Apart to, Py_ssize_t used) noexcept

@cython.locals(byte=Py_ssize_t, short=Py_ssize_t, more=Py_ssize_t, code=Py_ssize_t,
               i=Py_ssize_t, plain=Py_ssize_t, slow=Py_ssize_t, left=Py_ssize_t,
               back=Py_ssize_t)
cdef Py_ssize_t put_string(
    Source data, Py_ssize_t at, Py_ssize_t stop, Py_ssize_t end, Target to, Py_ssize_t used,
    bint is_strict) noexcept

@cython.locals(count=Py_ssize_t, rest=u64, at=Py_ssize_t)
cdef Py_ssize_t put_decimal(u64 value, Target to, Py_ssize_t used) noexcept

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t put_bytes(Source found, Py_ssize_t size, Target to, Py_ssize_t used) noexcept

cdef Py_ssize_t put_comma(
    Target to, Py_ssize_t used, Py_ssize_t byte, Py_ssize_t form) noexcept

cdef Py_ssize_t text_start(Py_ssize_t first, Py_ssize_t at) noexcept

@cython.locals(value=u64)
cdef u64 big(Source data, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(first=Py_ssize_t, width=Py_ssize_t, bits=u64, number=double, shown=bytes)
cdef Py_ssize_t put_plain(
    Source data, Py_ssize_t at, Py_ssize_t end, Target to, Py_ssize_t used,
    Py_ssize_t* found) noexcept

@cython.locals(depth=Py_ssize_t, kind=Py_ssize_t, kind_then=Py_ssize_t, start=Py_ssize_t, first=Py_ssize_t,
               size=Py_ssize_t, is_map=Py_ssize_t, count=Py_ssize_t)
cdef Py_ssize_t item(
    Source data, Py_ssize_t at, Py_ssize_t end, Target to, Py_ssize_t used,
    Py_ssize_t form, Py_ssize_t* found) noexcept

@cython.locals(size=Py_ssize_t, used=Py_ssize_t, raw=Source, to=Target, found="Py_ssize_t[65]")
cpdef Py_ssize_t text(bytes data, Py_ssize_t form, bytearray out) except? -2

cdef bint is_alike(
    Source data, Source other, Py_ssize_t size, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(to=Target, start_of_line=Source, room=Py_ssize_t, head_size=Py_ssize_t,
               owed="Py_ssize_t[512]", ended="Py_ssize_t[65]", token_at=Py_ssize_t,
               count=Py_ssize_t, used=Py_ssize_t, made=Py_ssize_t, row=Py_ssize_t,
               packed=bytes, raw=Source, size=Py_ssize_t, begun=Py_ssize_t, is_last=bint,
               after=bytes, other=Source, place=Py_ssize_t, at=Py_ssize_t)
cpdef Py_ssize_t lines(
    list found, Py_ssize_t first, bytes head, Py_ssize_t form, bytearray out,
    Py_ssize_t label_size, Py_ssize_t limit, u64[::1] ends) except? -2

@cython.locals(row=Py_ssize_t)
cpdef bint is_run(const u64[::1] replicas, const u64[::1] lsns, Py_ssize_t count)

@cython.locals(space_id=u64, row=Py_ssize_t, missing=u64, made=Py_ssize_t, count=Py_ssize_t,
               owed="Py_ssize_t[512]", raw=Source, size=Py_ssize_t, transaction=Py_ssize_t,
               first=Py_ssize_t, label=Py_ssize_t, at=Py_ssize_t, stop=Py_ssize_t)
cpdef Py_ssize_t gather(
    bytes data, const u64[::1] types, const u64[::1] spaces, const u64[::1] spans,
    const u64[::1] lsns, const u64[::1] ends, list wanted, list found,
    u64[::1] signatures) except? -2

@cython.locals(i=Py_ssize_t)
cdef bint is_other(Source data, Py_ssize_t at, Py_ssize_t other, Py_ssize_t size) noexcept

@cython.locals(owed="Py_ssize_t[512]", first=Py_ssize_t, start=Py_ssize_t, i=Py_ssize_t,
               _=Py_ssize_t)
cdef Py_ssize_t put_key(
    Source data, Py_ssize_t at, Py_ssize_t end, const u64[::1] fields, Target to,
    Py_ssize_t used, Py_ssize_t* found) noexcept

@cython.locals(i=Py_ssize_t, j=Py_ssize_t)
cdef bint has_twice(const u64[::1] fields) noexcept

@cython.locals(stop=u64)
cdef bint is_span(u64 span, u64 size) noexcept

@cython.locals(space_id=u64, transaction=Py_ssize_t, missing=u64, to=Target, rows=Py_ssize_t,
               start_of_line=Source, raw=Source, room=Py_ssize_t, head_size=Py_ssize_t,
               size=Py_ssize_t, found="Py_ssize_t[65]", used=Py_ssize_t, made=Py_ssize_t,
               first_token=u64, token=u64, count=Py_ssize_t, row=Py_ssize_t, stop=Py_ssize_t,
               last=Py_ssize_t, begun=Py_ssize_t, written=Py_ssize_t, kind=u64, key=u64,
               span=u64, whole=Py_ssize_t, line=Py_ssize_t)
cpdef Py_ssize_t changes(
    bytes data, const u64[::1] types, const u64[::1] spaces, const u64[::1] keys,
    const u64[::1] tuples, const u64[::1] lsns, const u64[::1] ends,
    list wanted, const u64[::1] fields, bytes head, bytearray out, Py_ssize_t limit,
    u64[::1] told) except? -2

cdef Py_ssize_t put_change(
    Source data, u64 key, u64 span, const u64[::1] fields, Target to, Py_ssize_t used,
    Py_ssize_t* found) noexcept

cdef bint is_change(u64 kind) noexcept

cdef Py_ssize_t put_op(u64 kind, Target to, Py_ssize_t used) noexcept
