# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=False
"""CRC-32C as `wal.crc32c` defines it: by the processor's instruction where it has one (x86-64 with
SSE 4.2), else by tables for eight bytes at a time.

The instruction gives a result three steps after it began, and one begins at each step: so three
parts of `LANE` bytes are run side by side and joined, the first two moved over the zeros that stand
for what follows them.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    enum { LANE = 1024 };
    static uint32_t crc_tables[8][256];
    static uint32_t crc_moved[4][256]; /* a register with this byte, behind LANE zeros */
    static int crc_is_instruction;

    static uint32_t crc_by_tables(uint32_t crc, const unsigned char *at, size_t size) {
        for (; size >= 8; at += 8, size -= 8) {
            uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16
                                  | (uint32_t)at[3] << 24);
            crc = crc_tables[7][low & 255] ^ crc_tables[6][low >> 8 & 255]
                ^ crc_tables[5][low >> 16 & 255] ^ crc_tables[4][low >> 24]
                ^ crc_tables[3][at[4]] ^ crc_tables[2][at[5]]
                ^ crc_tables[1][at[6]] ^ crc_tables[0][at[7]];
        }
        for (; size; size--)
            crc = crc >> 8 ^ crc_tables[0][(crc ^ *at++) & 255];
        return crc;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    static uint32_t crc_move(uint32_t crc) {
        return crc_moved[0][crc & 255] ^ crc_moved[1][crc >> 8 & 255]
            ^ crc_moved[2][crc >> 16 & 255] ^ crc_moved[3][crc >> 24];
    }

    static uint64_t crc_word(const unsigned char *at) {
        uint64_t word;
        memcpy(&word, at, 8);
        return word;
    }

    __attribute__((target("sse4.2")))
    static uint32_t crc_by_instruction(uint32_t crc, const unsigned char *at, size_t size) {
        uint64_t one = crc, two, three;
        for (; size >= 3 * LANE; at += 3 * LANE, size -= 3 * LANE) {
            two = three = 0;
            for (const unsigned char *end = at + LANE, *from = at; from < end; from += 8) {
                one = __builtin_ia32_crc32di(one, crc_word(from));
                two = __builtin_ia32_crc32di(two, crc_word(from + LANE));
                three = __builtin_ia32_crc32di(three, crc_word(from + 2 * LANE));
            }
            one = crc_move(crc_move((uint32_t)one) ^ (uint32_t)two) ^ three;
        }
        for (; size >= 8; at += 8, size -= 8)
            one = __builtin_ia32_crc32di(one, crc_word(at));
        crc = (uint32_t)one;
        for (; size; size--)
            crc = __builtin_ia32_crc32qi(crc, *at++);
        return crc;
    }
    #else
    #define crc_by_instruction crc_by_tables
    #endif

    static void crc_prepare(void) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
            crc_tables[0][byte] = crc;
        }
        for (int table = 1; table < 8; table++)
            for (int byte = 0; byte < 256; byte++) {
                uint32_t crc = crc_tables[table - 1][byte];
                crc_tables[table][byte] = crc >> 8 ^ crc_tables[0][crc & 255];
            }
        static const unsigned char zeros[LANE];
        for (int at = 0; at < 4; at++)
            for (int byte = 1; byte < 256; byte++) {
                int rest = byte & (byte - 1); /* all but its lowest bit: moving is linear */
                crc_moved[at][byte] = rest
                    ? crc_moved[at][rest] ^ crc_moved[at][byte ^ rest]
                    : crc_by_tables((uint32_t)byte << 8 * at, zeros, LANE);
            }
    #if defined(__x86_64__) && defined(__GNUC__)
        crc_is_instruction = __builtin_cpu_supports("sse4.2");
    #endif
    }

    static uint32_t crc_find(uint32_t crc, const unsigned char *at, size_t size) {
        return crc_is_instruction ? crc_by_instruction(crc, at, size)
                                  : crc_by_tables(crc, at, size);
    }

    /* The first of `count` blocks whose payload is not as `crcs` say, -1 if one passes `size`. */
    static ptrdiff_t crc_wrong(const unsigned char *data, size_t size, size_t header,
                               const uint64_t *starts, const uint64_t *sizes,
                               const uint64_t *crcs, size_t count) {
        for (size_t block = 0; block < count; block++) {
            if (starts[block] > size || header > size - starts[block]
                || sizes[block] > size - starts[block] - header)
                return -1;
            if (crc_find(0, data + starts[block] + header, sizes[block]) != crcs[block])
                return (ptrdiff_t)block;
        }
        return (ptrdiff_t)count;
    }
    """
    unsigned crc_by_tables(unsigned crc, const unsigned char *at, size_t size) nogil
    unsigned crc_find(unsigned crc, const unsigned char *at, size_t size) nogil
    Py_ssize_t crc_wrong(const unsigned char *data, size_t size, size_t header,
                         const unsigned long long *starts, const unsigned long long *sizes,
                         const unsigned long long *crcs, size_t count) nogil
    void crc_prepare()

cdef enum:
    LONG = 1 << 15  # bytes from which on other threads may run meanwhile

crc_prepare()


def checksum(data, unsigned before=0, /):
    """See `logweir.wal.crc32c.checksum`."""
    cdef Py_buffer view
    cdef unsigned crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len < LONG:
        crc = crc_find(before, <const unsigned char *> view.buf, view.len)
    else:
        with nogil:
            crc = crc_find(before, <const unsigned char *> view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


def first_wrong(const unsigned char[::1] data, const unsigned long long[::1] table,
                Py_ssize_t stride, Py_ssize_t count, Py_ssize_t header, /):
    """See `logweir.wal.crc32c.first_wrong`."""
    cdef Py_ssize_t found
    if not 0 <= count <= stride or header < 0 or stride > table.shape[0] // 3:
        raise IndexError("the table is shorter than it should be")
    if not count or not data.shape[0]:
        if count:
            raise IndexError("a block ends behind the data")
        return 0
    with nogil:
        found = crc_wrong(&data[0], data.shape[0], header, &table[0], &table[stride],
                          &table[2 * stride], count)
    if found < 0:
        raise IndexError("a block ends behind the data")
    return found


def by_tables(data, unsigned before=0, /):
    """The same, whatever the processor can."""
    cdef const unsigned char[::1] view = data
    if not view.shape[0]:
        return before
    return crc_by_tables(before, &view[0], view.shape[0])
