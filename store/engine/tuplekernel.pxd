# Stored tuples as Python objects.
from logweir.store.schema.packkernel cimport Source, u64

cdef enum:
    DEEP = 512  # numbers of `owed`, which `updatekernel.after` needs

# So many tuples, one behind the other: their bytes, or their values. Raise `DecodeError` where
# there are none.
cdef list tuples_from(Source data, Py_ssize_t size, u64 count, Py_ssize_t* owed)
cdef list rows_from(Source data, Py_ssize_t size, u64 count, Py_ssize_t* owed)

# The tuple that begins at `at`, which then is where it ends.
cdef tuple row_from(Source data, Py_ssize_t* at, Py_ssize_t size, Py_ssize_t* owed)
