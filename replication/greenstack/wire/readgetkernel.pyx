# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""GETs of the root lane from their frames to those of their answers.

Frames are specified in `greenstack.wire.codec`. What is known here are those of a run (`kernel`)
that have no lane.
"""

cimport logweir.replication.bucket.kernel as bucket
cimport logweir.replication.greenstack.wire.kernel as wire
cimport logweir.replication.greenstack.wire.pushkernel as documents
from logweir.replication.bucket.lookkernel cimport FOUND, ODD, Looker
from logweir.store.schema.packkernel cimport Source, u64

cdef enum:
    GET = 0x0406
    FRAME_MIN = 21
    HEAD = 15  # of a frame before its entries
    HAS_ENTRIES = 2
    QUIET = 16
    ENTRIES = 6  # bytes of a vbucket alone
    VBUCKET = 0x00070002
    NOT_FOUND = 0x08
    ROOM = 256  # of an answer without its item

    KEY_AT = 2
    KEY_BYTES = 3
    NUMBERS = 7


cdef class GetReader(Looker):
    """See `Looker`."""

    cdef int answer(self, Source data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* stop) except -1:
        cdef u64[NUMBERS] asked
        cdef u64[20] fields
        cdef unsigned char[24] scratch
        cdef Py_ssize_t size, begin
        cdef u64 opaque
        cdef int how
        if end - at < FRAME_MIN:
            return 0
        size = bucket.load4(data, at)
        if size > end - at - 4 or size < FRAME_MIN - 4 or bucket.load2(data, at + 8) != GET:
            return 0
        stop[0] = at + 4 + size
        if data[at + 10] & ~QUIET != HAS_ENTRIES or bucket.load4(data, at + 11) != ENTRIES:
            return 0
        if bucket.load4(data, at + HEAD) != VBUCKET:
            return 0
        if not wire.read_get(data, at + HEAD + ENTRIES, stop[0], asked):
            return 0
        how = self.find(
            data + asked[KEY_AT], asked[KEY_BYTES], bucket.load2(data, at + HEAD + 4))
        if how == ODD:
            return 0
        opaque = bucket.load4(data, at + 4)
        begin = self.out.size
        self.out.need(ROOM)
        if how != FOUND:
            self.failed += 1
            self.out.size = wire.put_head(
                self.out.data, begin, 0, opaque, GET, NOT_FOUND, NULL, -1)
            return 1
        if documents.document_end(self.item, 0, self.size, fields, scratch) != self.size:
            return 0
        if not data[at + 10] & QUIET:
            self.out.need(ROOM + self.size)
            self.out.size = wire.put_head(self.out.data, begin, 0, opaque, GET, 0, NULL, -1)
            self.out.size = documents.put_whole(self.item, fields, self.out.data, self.out.size)
            bucket.put4(self.out.data, begin, self.out.size - begin - 4)
        return 1
