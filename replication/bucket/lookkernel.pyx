# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""Requests for items from their bytes to the bytes of their answers, in one call: what is the same
for each protocol, whose kernel (`readitemkernel`, `readgetkernel`) reads the one and writes the other.

What changes something, is odd or asks for an odd item is left, with all behind it, to who knows
every request. Nothing here believes a length.
"""

cimport logweir.replication.bucket.kernel as bucket
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from logweir.store.schema.packkernel cimport DONE
from logweir.store.state.layerkernel cimport Found
from logweir.store.state.memtablenodes cimport THERE

cdef enum:
    STATES = 1 << 16  # bucket.VBUCKETS
    ACTIVE = 1
    VBUCKET = 0
    EXPIRY = 2
    REFERENCE = 0xC1  # the first byte of a reference into the log
    KEY_ROOM = 8  # what stands before a key in MsgPack


cdef class Looker:
    """Answers requests, those of one read after another, for one thread at a time.

    `count`: how many were answered, `failed` of them with a failure; `is_over`: others are to have
    their turn; `wanted`: the vbucket before whose request it stopped as its state is not known, -1:
    it was not so; `expired`: keys and vbuckets of items that are to be removed, None: of none.
    """

    def __cinit__(self):
        self.out, self.asked, self.key = Room(), Room(), Room()

    def read(
        self, bytes data not None, Py_ssize_t at, Space space, bytearray states not None, u64 now,
        Py_ssize_t most, Py_ssize_t limit_bytes
    ):
        """Answer the requests that begin at `at`, as many as there are behind one another. Returns
        where it stopped.

        `space`: of the bucket, None: it is for the reference engine; `states`: see
        `Bucket.known_states`; `now`: Unix seconds; `most`: so many requests, and answers of
        `limit_bytes`, are a turn.
        """
        cdef Source raw = <Source>PyBytes_AS_STRING(data)
        cdef Py_ssize_t end = PyBytes_GET_SIZE(data), stop = 0
        self.out.size = self.count = self.failed = 0
        self.is_over, self.wanted, self.expired = False, -1, None
        if at < 0 or len(states) < STATES:
            raise IndexError("read: it begins before the data, or a table is too short")
        if space is None:
            return at
        self.space, self.known, self.now = space, states, now
        self.most, self.limit_bytes = most, limit_bytes
        try:
            while at < end:
                if self.count >= self.most or self.out.size >= limit_bytes:
                    self.is_over = True
                    break
                if not self.answer(raw, at, end, &stop):
                    break
                self.count += 1
                at = stop
        finally:
            self.space = None
        return at

    def take(self):
        """The answers of the last `read`."""
        return PyBytes_FromStringAndSize(<char*>self.out.data, self.out.size)

    cdef int answer(self, Source data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* stop) except -1:
        """Answer the request at `at`, and tell where it ends; 0: it is left. For a protocol."""
        return 0

    cdef int find(self, Source key, Py_ssize_t size, Py_ssize_t vbucket) except -1:
        """Look for the item of a vbucket with a key: `FOUND`, `MISSING`, or `ODD`: others have to
        look."""
        cdef Found found
        if self.known[vbucket] != ACTIVE:
            if not self.known[vbucket]:
                self.wanted = vbucket
            return ODD
        self.asked.size = 0
        self.asked.need(KEY_ROOM + size)
        self.asked.data[0] = 0x91
        self.asked.size = bucket.put_bin(key, 0, size, self.asked.data, 1)
        self.key.size = 0
        if self.space.plan.exact_key(
            0, self.asked.data, self.asked.size, self.key, &self.why
        ) != DONE:
            return ODD
        if PyList_GET_SIZE(self.space.kept):
            self.space.kept.clear()
        if self.space.find(0, self.key.data, self.key.size, &found) != DONE:
            return ODD
        if found.state != THERE:
            return MISSING
        if found.size < 1 or found.value[0] == REFERENCE:
            return ODD
        if not bucket.read_item(found.value, 0, found.size, self.fields):
            return ODD
        if self.fields[VBUCKET] != <u64>vbucket:
            return MISSING
        if 0 < self.fields[EXPIRY] <= self.now:
            if self.expired is None:
                self.expired = []
            self.expired.append((PyBytes_FromStringAndSize(<char*>key, size), vbucket))
            return MISSING
        self.item, self.size = found.value, found.size
        return FOUND
