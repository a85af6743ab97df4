# The types of reads.py, for Cython. Nothing here is needed to run it as plain Python.
from logweir.replication.bucket.reads cimport ItemReads

cdef class Reads:
    cdef object _shared, _buckets, _statistics, _now, _log
    cdef ItemReads _reads
    cdef dict _looks
