# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""Packets that ask for items, NOOP and VERSION, from their bytes to those of their answers.

Packets are specified in `memcached.wire.codec`. What is known here are those of a run (`kernel`)
that change nothing.
"""

cimport logweir.replication.bucket.kernel as bucket
cimport logweir.replication.memcached.wire.kernel as wire
from logweir.replication.bucket.lookkernel cimport FOUND, ODD, Looker
from logweir.store.schema.packkernel cimport Source, u64

cdef enum:
    REQUEST = 0x80
    HEADER = 24
    KEY_MAX = 250  # limits.TAP_KEY_BYTES
    ROOM = 512  # of an answer without its item

    # Kinds of `kernel`.
    GET = 1
    SIMPLE = 12
    FETCH = 13

    MARKS = 18
    STALE = 1
    TOLD = 2


cdef class ItemReader(Looker):
    """See `Looker`."""

    cdef int answer(self, Source data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* stop) except -1:
        cdef Py_ssize_t key_bytes, body, opcode, kind
        cdef u64 opaque
        cdef int how
        if end - at < HEADER or data[at] != REQUEST or data[at + 4]:
            return 0
        opcode = data[at + 1]
        kind = wire.KINDS[opcode]
        key_bytes, body = bucket.load2(data, at + 2), bucket.load4(data, at + 8)
        opaque = bucket.load4(data, at + 12)
        if body != key_bytes or body > KEY_MAX or body > end - at - HEADER:
            return 0
        self.out.need(ROOM)
        if kind == SIMPLE and not body:
            self.out.size = wire.put_simple(self.out.data, self.out.size, opcode, opaque)
        elif (kind == GET or kind == FETCH) and body:
            how = self.find(data + at + HEADER, body, bucket.load2(data, at + 6))
            if how == ODD:
                return 0
            if how == FOUND:
                if kind == FETCH and self.fields[MARKS] & (STALE | TOLD) == STALE:
                    return 0  # one of those that ask is told to make another value
                self.out.need(ROOM + self.size)
                self.out.size = wire.put_item(
                    self.out.data, self.out.size, opcode, opaque, self.item, self.fields, False)
            else:
                self.out.size = wire.put_missing(
                    data, at + HEADER, body, opcode, opaque, self.out.data, self.out.size)
        else:
            return 0
        stop[0] = at + HEADER + body
        return 1
