# The types of jsonkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.wal.kernel as rows

ctypedef unsigned long long u64
ctypedef const unsigned char* Source
ctypedef unsigned char* Target

cdef extern from *:
    """
    #include <string.h>
    static inline int logweir_is_text(const unsigned char *data, Py_ssize_t at, Py_ssize_t stop) {
        while (at < stop) {
            unsigned char first = data[at];
            Py_ssize_t more;
            unsigned char low = 0x80, high = 0xBF;
            if (first < 0x80) {
                unsigned long long word;
                at++;
                while (stop - at >= 8 && (memcpy(&word, data + at, 8),
                                          !(word & 0x8080808080808080ULL)))
                    at += 8;
                continue;
            }
            if (first >= 0xC2 && first < 0xE0) {
                more = 1;
            } else if (first >= 0xE0 && first < 0xF0) {
                more = 2;
                if (first == 0xE0) low = 0xA0;
                if (first == 0xED) high = 0x9F;
            } else if (first >= 0xF0 && first < 0xF5) {
                more = 3;
                if (first == 0xF0) low = 0x90;
                if (first == 0xF4) high = 0x8F;
            } else {
                return 0;
            }
            if (stop - at <= more || data[at + 1] < low || data[at + 1] > high)
                return 0;
            for (Py_ssize_t i = 2; i <= more; i++)
                if ((data[at + i] & 0xC0) != 0x80)
                    return 0;
            at += more + 1;
        }
        return 1;
    }
    static inline Py_ssize_t logweir_put_float(
        unsigned char *out, Py_ssize_t at, unsigned long long bits) {
        double value;
        char *text;
        Py_ssize_t size;
        memcpy(&value, &bits, sizeof value);
        text = PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
        if (text == NULL)
            return -1;
        size = (Py_ssize_t)strlen(text);
        memcpy(out + at, text, size < 64 ? size : 64);
        PyMem_Free(text);
        return at + size;
    }
    static inline unsigned long long logweir_widened(unsigned long long bits) {
        unsigned int half = (unsigned int)bits;
        float narrow;
        double wide;
        unsigned long long found;
        memcpy(&narrow, &half, sizeof narrow);
        wide = narrow;
        memcpy(&found, &wide, sizeof found);
        return found;
    }
    """
    bint is_text "logweir_is_text" (Source data, Py_ssize_t at, Py_ssize_t stop)
    Py_ssize_t put_float "logweir_put_float" (Target out, Py_ssize_t at, u64 bits) except -1
    u64 widened "logweir_widened" (u64 bits)

cdef u64 ONES
cdef Py_ssize_t DEPTH, KEYS, MORE, NIL, FALSE, TRUE, EXT_DECIMAL, EXT_UUID, DIGITS, SCALE
cdef Py_ssize_t W_NULL, W_TRUE, W_FALSE, W_FLOAT, W_BIN, W_STR
cdef Py_ssize_t W_UUID, W_DECIMAL, W_EXT, W_ESCAPE, W_CLOSE
cdef bytes _letters, _hex, _words, _escapes
cdef Source LETTERS, HEX, WORDS, ESCAPES

@cython.locals(first=Py_ssize_t, head=Py_ssize_t)
cdef Py_ssize_t string_head(Source data, Py_ssize_t start, Py_ssize_t stop) noexcept

@cython.locals(first=Py_ssize_t, head=Py_ssize_t)
cdef Py_ssize_t binary_head(Source data, Py_ssize_t start, Py_ssize_t stop) noexcept

@cython.locals(first=Py_ssize_t, head=Py_ssize_t)
cdef Py_ssize_t extension_head(Source data, Py_ssize_t start, Py_ssize_t stop) noexcept

@cython.final
cdef class Texts:
    cdef bytes data
    cdef Source raw
    cdef bytearray out
    cdef Target to
    cdef Py_ssize_t room
    cdef readonly Py_ssize_t at
    cdef object show

    cpdef bytearray written(self)

    cdef Py_ssize_t reserve(self, Py_ssize_t size) except -1

    @cython.locals(raw=Source, first=Py_ssize_t, value=u64, bits=Py_ssize_t)
    cdef Py_ssize_t json(self, Py_ssize_t at, Py_ssize_t stop, Py_ssize_t depth) except -1

    @cython.locals(value=u64)
    cdef Py_ssize_t floating(self, Py_ssize_t at, Py_ssize_t stop) except -1

    @cython.locals(head=Py_ssize_t)
    cdef Py_ssize_t string(self, Py_ssize_t at, Py_ssize_t stop) except -1

    @cython.locals(raw=Source, began=Py_ssize_t, head=Py_ssize_t, code=Py_ssize_t)
    cdef Py_ssize_t extension(self, Py_ssize_t at, Py_ssize_t stop) except -1

    @cython.locals(owed="Py_ssize_t[512]", items=Py_ssize_t, number=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t array(self, Py_ssize_t at, Py_ssize_t stop, Py_ssize_t depth) except -1

    @cython.locals(owed="Py_ssize_t[512]", keys="Py_ssize_t[64]", raw=Source, began=Py_ssize_t,
                   items=Py_ssize_t, number=Py_ssize_t, other=Py_ssize_t, end=Py_ssize_t,
                   head=Py_ssize_t, is_key=bint)
    cdef bint map(self, Py_ssize_t at, Py_ssize_t stop, Py_ssize_t depth) except -1

    cdef Py_ssize_t item(
        self, Py_ssize_t number, Py_ssize_t at, Py_ssize_t stop, bint is_first) except -1

    @cython.locals(text=bytes)
    cdef Py_ssize_t shown(self, Py_ssize_t at, Py_ssize_t stop) except -1

    cdef void byte(self, Py_ssize_t value) noexcept

    @cython.locals(i=Py_ssize_t)
    cdef void word(self, Py_ssize_t start, Py_ssize_t size) noexcept

    @cython.locals(size=Py_ssize_t, i=Py_ssize_t, left=u64)
    cdef void number(self, u64 value) noexcept

    @cython.locals(raw=Source, to=Target, at=Py_ssize_t, i=Py_ssize_t, k=Py_ssize_t,
                   byte=Py_ssize_t)
    cdef Py_ssize_t quoted(self, Py_ssize_t start, Py_ssize_t stop) except -1

    @cython.locals(raw=Source, to=Target, at=Py_ssize_t, left=Py_ssize_t, bits=Py_ssize_t)
    cdef Py_ssize_t base64(self, Py_ssize_t start, Py_ssize_t stop) except -1

    @cython.locals(i=Py_ssize_t)
    cdef void uuid(self, Py_ssize_t start) noexcept

    @cython.locals(raw=Source, end=Py_ssize_t, scale=Py_ssize_t, count=Py_ssize_t, i=Py_ssize_t,
                   sign=Py_ssize_t, digits=Py_ssize_t, point=Py_ssize_t, shown=Py_ssize_t,
                   _=Py_ssize_t)
    cdef bint decimal(self, Py_ssize_t start, Py_ssize_t stop) except -1

@cython.locals(first=Py_ssize_t)
cdef Py_ssize_t head_end(Source data, Py_ssize_t at) noexcept

@cython.locals(first=Py_ssize_t, end=Py_ssize_t)
cdef Py_ssize_t integer_end(Source data, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(first=Py_ssize_t, bits=Py_ssize_t, value=u64)
cdef Py_ssize_t small_integer(Source data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(end=Py_ssize_t, scale=Py_ssize_t, digits=Py_ssize_t, i=Py_ssize_t,
               nibble=Py_ssize_t)
cdef Py_ssize_t decimal_digits(Source data, Py_ssize_t start, Py_ssize_t stop) noexcept

@cython.locals(size=Py_ssize_t)
cdef bint is_same(
    Source data, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t other, Py_ssize_t end) noexcept
