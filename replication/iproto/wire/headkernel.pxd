# The types of headkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.wal.kernel as rows

ctypedef unsigned long long u64

cdef u64 _KEY_END, _NOP
cdef int _WHOLE, _BROKEN, _BEHIND
cdef bytes _fits
cdef const unsigned char* FITS

@cython.locals(raw="const unsigned char*", owed="Py_ssize_t[512]", kind=u64, sync=u64,
               replica_id=u64, lsn=u64, bits=u64, version=u64, stream=u64, body=Py_ssize_t,
               last=Py_ssize_t, how=int, stop=Py_ssize_t, at=Py_ssize_t, left=u64,
               value=Py_ssize_t, key=u64)
cpdef tuple read_header(bytes data, Py_ssize_t start, Py_ssize_t end)
