# The sorted map of `memtablekernel.pyx`, for kernels that cimport it.
#
# What is `nogil` takes no lock: one thread changes a map while no other uses it; any number may
# read one that nobody changes. A pointer to a key or a value holds as long as its Memtable lives,
# also when the entry is overwritten or taken back. Keys may be of any length, and empty; a value
# of no bytes means that the key is gone.

cdef class Memtable:
    pass
