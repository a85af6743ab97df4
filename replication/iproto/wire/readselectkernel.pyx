# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""SELECTs from their frames to the bytes of their answers, in one call.

What is no SELECT of a run's form (`kernel`), is refused, or is more than a piece
(`store.engine.selectkernel`) is left, with all behind it, to `iproto.serve`, which knows all
requests. Nothing here believes a length: frames are read by `kernel.request_end`, which checks them,
and answers are written into room that was asked for.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE

cimport logweir.replication.iproto.wire.kernel as wire
from logweir.store.engine.selectkernel cimport PIECE_STEPS, Selector
from logweir.store.schema.packkernel cimport DONE, Room, Source, u64
from logweir.store.state.layerkernel cimport Space

cdef enum:
    SELECT = 1
    HEAD = 30  # kernel._ARRAY_AT

    # Of kernel.read_request.
    TYPE = 0
    SYNC = 1
    SPACE = 3
    INDEX = 4
    KEY = 6
    KEY_END = 7
    LIMIT = 12
    OFFSET = 13
    ITERATOR = 14
    STREAM = 15
    FETCH = 16
    AFTER = 17
    AFTER_END = 18
    FIELDS = 23

    NAMES = 129  # see `kernel.find_name`

    OWED = 512
    LEAST = 0xFFFFFFFF


cdef class SelectReader:
    """Answers SELECTs, those of one read after another, for one thread at a time.

    `count`: how many were answered; `is_over`: others are to have their turn; `wanted`: the id of
    the space before whose SELECT it stopped as it was not given that, -1: it was not so.
    """

    cdef Room out
    cdef Selector selector
    cdef readonly Py_ssize_t count
    cdef readonly bint is_over
    cdef readonly long long wanted

    def __init__(self):
        self.out = Room()
        self.selector = Selector(self.out)

    def read(
        self, bytes data not None, Py_ssize_t at, u64 version, set allowed not None,
        dict spaces not None, Py_ssize_t limit_bytes, ids, bint has_streams
    ):
        """Answer the SELECTs that begin at `at`, as many as there are behind one another. Returns
        where it stopped.

        `version`: of the schema; `allowed`: ids of spaces that may be read; `spaces`: a `Space` by
        its id, None: it is for the reference engine; `limit_bytes`: of answers, above which it is
        over; `ids`: see `kernel`; `has_streams`: those of a stream are for others.
        """
        cdef Source raw = <Source>PyBytes_AS_STRING(data)
        cdef Py_ssize_t end = PyBytes_GET_SIZE(data), stop, begin
        cdef u64[FIELDS] fields
        cdef Py_ssize_t[OWED] owed
        cdef long long[NAMES] names
        cdef u64[2] span
        cdef u64 last = 0
        cdef Space space = None
        self.out.size = self.count = 0
        self.is_over, self.wanted = False, -1
        self.selector.steps = names[0] = 0
        if at < 0:
            raise IndexError("read: it begins before the data")
        while at < end:
            if self.out.size >= limit_bytes or self.selector.steps >= PIECE_STEPS:
                self.is_over = True
                break
            stop = wire.request_end(raw, at, end, version, fields, owed, names, ids)
            if stop < 0 or fields[TYPE] != SELECT or (has_streams and fields[STREAM]):
                break
            if space is None or fields[SPACE] != last:
                last = fields[SPACE]
                number = last
                if number not in allowed or number not in spaces:
                    self.wanted = last if last <= LEAST else -1
                    break
                space = spaces[number]
                if space is None:
                    break
            if PyList_GET_SIZE(space.kept):
                space.kept.clear()
            begin = self.out.size
            self.out.need(HEAD)
            self.out.size += HEAD
            if self.selector.one(
                space, fields[INDEX], fields[ITERATOR], fields[LIMIT] & LEAST,
                fields[OFFSET] & LEAST, raw + fields[KEY], fields[KEY_END] - fields[KEY],
                raw + fields[AFTER], fields[AFTER_END] - fields[AFTER], fields[FETCH], span
            ) != DONE:
                self.out.size = begin
                break
            if fields[FETCH] and self.selector.given:
                self.out.need(1)
                self.out.size += 1
                self.selector.put_position()
            wire.put_head(
                self.out.data, begin, self.out.size - begin, fields[SYNC], version & LEAST)
            if self.out.size > <Py_ssize_t>span[1]:
                wire.put_position(self.out.data, begin, span[1] - begin)
            self.count += 1
            at = stop
        return at

    def take(self):
        """The answers of the last `read`."""
        return PyBytes_FromStringAndSize(<char*>self.out.data, self.out.size)
