# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""GETs and GET_MANYs of the root lane from their frames to those of their answers.

Frames are specified in `greenstack.wire.codec`. What is known here are those of a run (`kernel`)
that have no lane.
"""

from libc.string cimport memcpy, memset

cimport logweir.replication.bucket.kernel as bucket
cimport logweir.replication.greenstack.wire.kernel as wire
cimport logweir.replication.greenstack.wire.pushkernel as documents
from logweir.replication.bucket.lookkernel cimport FOUND, MISSING, ODD, Looker
from logweir.store.schema.packkernel cimport Source, u64

from logweir.limits import GREENSTACK_GETS
from logweir.replication.greenstack.wire.many import FOUND_HEAD, NOTHING

cdef enum:
    GET = 0x0406
    GET_MANY = 0x0C07
    FRAME_MIN = 21
    HEAD = 15  # of a frame before its entries
    HAS_ENTRIES = 2
    QUIET = 16
    ENTRIES = 6  # bytes of a vbucket alone
    VBUCKET = 0x00070002
    NOT_FOUND = 0x08
    TOO_BUSY = 0x0F
    ROOM = 256  # of an answer without its item

    KEY_AT = 2
    KEY_BYTES = 3
    NUMBERS = 7

cdef bytes _head = FOUND_HEAD
cdef bytes _missing = NOTHING[NOT_FOUND]
cdef bytes _busy = NOTHING[TOO_BUSY]


cdef Py_ssize_t root_of(Source payload) noexcept:
    """Where the root of a payload is."""
    return payload[0] | payload[1] << 8 | payload[2] << 16 | <Py_ssize_t>payload[3] << 24


cdef class GetReader(Looker):
    """See `Looker`. `has_many`: the client may send GET_MANY."""

    cdef public bint has_many

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
        if size > end - at - 4 or size < FRAME_MIN - 4:
            return 0
        stop[0] = at + 4 + size
        if data[at + 10] & ~QUIET != HAS_ENTRIES or bucket.load4(data, at + 11) != ENTRIES:
            return 0
        if bucket.load4(data, at + HEAD) != VBUCKET:
            return 0
        if self.has_many and bucket.load2(data, at + 8) == GET_MANY:
            return self.answer_many(data, at, stop[0])
        if bucket.load2(data, at + 8) != GET:
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

    cdef int answer_many(self, Source data, Py_ssize_t at, Py_ssize_t end) except -1:
        """As `serve.many`: what GETs are answered, in one answer."""
        cdef u64[NUMBERS] asked
        cdef Py_ssize_t begin = self.out.size, payload = at + HEAD + ENTRIES, left = end - payload
        cdef Py_ssize_t count, first, vector, place, i
        if end - at < HEAD + ENTRIES or data[at + 10] & QUIET:
            return 0
        count = wire.read_many(data, payload, end, GREENSTACK_GETS, asked)
        if count < 1 or count > GREENSTACK_GETS:
            return 0
        self.out.need(ROOM + 4 * count)
        first = wire.put_head(
            self.out.data, begin, 0, bucket.load4(data, at + 4), GET_MANY, 0, NULL, -1)
        memcpy(self.out.data + first, <const char*>_head, len(_head))
        vector = first + len(_head) + 4
        documents.put_little(self.out.data, vector - 4, count, 4)
        self.out.size = vector + 4 * count
        for i in range(count):
            if wire.read_many(data, payload, end, i, asked) < 0:
                break
            left -= asked[KEY_BYTES]
            if left < 0:  # they overlap
                break
            self.out.need(ROOM)
            place = self.out.size
            memset(self.out.data + place, 0, 8)
            place += -(place - first) & 7
            self.out.size = place
            if not self.put_found(
                data + asked[KEY_AT], asked[KEY_BYTES], bucket.load2(data, at + HEAD + 4),
                place - first < self.limit_bytes,
            ):
                break
            documents.put_little(
                self.out.data, vector + 4 * i,
                place + root_of(self.out.data + place) - vector - 4 * i, 4)
        else:
            bucket.put4(self.out.data, begin, self.out.size - begin - 4)
            self.most -= count - 1
            return 1
        self.out.size = begin
        return 0

    cdef int put_found(
        self, Source key, Py_ssize_t size, Py_ssize_t vbucket, bint has_room
    ) except -1:
        """Write what is told of one id of many. 0: others have to look."""
        cdef u64[20] fields
        cdef unsigned char[24] scratch
        cdef bytes nothing = _missing if has_room else _busy
        cdef int how = self.find(key, size, vbucket) if has_room else MISSING
        if how == ODD:
            return 0
        if how != FOUND:
            memcpy(self.out.data + self.out.size, <const char*>nothing, len(nothing))
            self.out.size += len(nothing)
            return 1
        if documents.document_end(self.item, 0, self.size, fields, scratch) != self.size:
            return 0
        self.out.need(ROOM + self.size)
        self.out.size = documents.put_whole(self.item, fields, self.out.data, self.out.size)
        return 1
