# The types of typedkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.pipeline.jsonkernel as texts
cimport logweir.wal.kernel as rows

ctypedef unsigned long long u64
ctypedef const unsigned char* Source
ctypedef unsigned char* Target

cdef Py_ssize_t LONG, DECIMAL, DOUBLE, STRING, BINARY, JSON, DECIMAL_TEXT, UUID_TEXT
cdef u64 HALF, ONES, MISFIT, NOWHERE
cdef Py_ssize_t STOP, NIL, FALSE, TRUE, EXT_DECIMAL, EXT_UUID

@cython.locals(raw=Source, owed="Py_ssize_t[512]", count=Py_ssize_t, i=Py_ssize_t, is_key=bint,
               span=u64, field=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t, head=Py_ssize_t,
               items=Py_ssize_t, number=Py_ssize_t, stop=Py_ssize_t)
cpdef Py_ssize_t split(
    bytes data, const u64[::1] tuples, const u64[::1] keys, const u64[::1] parts,
    Py_ssize_t keyed, Py_ssize_t width, u64[::1] table) except? -2

@cython.locals(raw=Source, bits=Target, count=Py_ssize_t, wide=Py_ssize_t, i=Py_ssize_t, span=u64,
               start=Py_ssize_t, stop=Py_ssize_t, value=u64, above=u64, found=bint,
               first=Py_ssize_t, size=Py_ssize_t)
cpdef bint fill(
    Py_ssize_t kind, bytes data, u64[::1] table, Py_ssize_t at, u64[::1] out, bytearray valid,
    bytearray odd) except? -1

@cython.locals(raw=Source, bits=Target, count=Py_ssize_t, i=Py_ssize_t, span=u64,
               start=Py_ssize_t, stop=Py_ssize_t, low=u64, high=u64, found=bint, head=Py_ssize_t,
               digits=Py_ssize_t, end=Py_ssize_t, more=Py_ssize_t, last=Py_ssize_t, k=Py_ssize_t,
               digit=u64, part=u64, over=u64, sign=Py_ssize_t)
cpdef Py_ssize_t fixed(
    Py_ssize_t scale, bytes data, u64[::1] table, Py_ssize_t at, u64[::1] out, bytearray valid,
    bytearray odd) except? -2

@cython.locals(raw=Source, bits=Target, to=Target, count=Py_ssize_t, i=Py_ssize_t, span=u64,
               start=Py_ssize_t, stop=Py_ssize_t)
cpdef bint booleans(
    bytes data, u64[::1] table, Py_ssize_t at, bytearray out, bytearray valid,
    bytearray odd) except? -1

@cython.locals(raw=Source, count=Py_ssize_t, i=Py_ssize_t, span=u64, start=u64, stop=u64,
               head=Py_ssize_t)
cpdef bint contents(
    Py_ssize_t kind, bytes data, u64[::1] table, Py_ssize_t at, u64[::1] out,
    bytearray odd) except? -1

@cython.locals(raw=Source, bits=Target, owed="Py_ssize_t[512]", count=Py_ssize_t, i=Py_ssize_t,
               span=u64, start=Py_ssize_t, stop=Py_ssize_t, found=bint, head=Py_ssize_t,
               code=Py_ssize_t)
cpdef bint write(
    Py_ssize_t kind, texts.Texts out, bytes data, u64[::1] table, Py_ssize_t at, int[::1] offsets,
    bytearray valid, bytearray odd) except? -1

@cython.locals(raw=Source, bits=Target, owed="Py_ssize_t[512]", count=Py_ssize_t, i=Py_ssize_t,
               began=Py_ssize_t, field=Py_ssize_t, span=u64, at=Py_ssize_t, end=Py_ssize_t,
               number=Py_ssize_t, stop=Py_ssize_t)
cpdef bint write_rest(
    texts.Texts out, bytes data, u64[::1] table, Py_ssize_t columns, Py_ssize_t width,
    int[::1] offsets, bytearray valid, bytearray odd) except? -1
