# The types of kernel.py, for Cython. Nothing here is needed to run kernel.py as plain Python.
cimport cython
cimport logweir.wal.kernel as rows

@cython.locals(i=Py_ssize_t)
cdef bint alike(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t model, Py_ssize_t place,
    Py_ssize_t width, Py_ssize_t tuple_at) noexcept

@cython.locals(start=Py_ssize_t, stop=Py_ssize_t, place=Py_ssize_t)
cdef Py_ssize_t lsn_place(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* owed) noexcept
