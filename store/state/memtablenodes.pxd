# What memtables are made of: entries, nodes, places, and how keys are found in a node.
# `memtablekernel.pyx` tells of the whole.
from cpython.object cimport PyObject
from libc.string cimport memcmp, memmove

ctypedef unsigned char u8
ctypedef unsigned long long u64

cdef extern from *:
    """
    static inline unsigned long long memtable_head(const unsigned char* key, size_t n) {
        unsigned long long head = 0;
        if (n >= 8) n = 8;
        for (size_t i = 0; i < n; i++) head |= (unsigned long long) key[i] << (56 - 8 * i);
        return head;
    }
    static inline unsigned long long memtable_whole_head(const unsigned char* key) {
        unsigned long long head;
        memcpy(&head, key, 8);
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        head = __builtin_bswap64(head);
    #endif
        return head;
    }
    static inline int memtable_below(const unsigned long long* heads, int count,
                                     unsigned long long head) {
        int at = 0;
        while (count > 1) {
            int half = count / 2;
            at += heads[at + half - 1] < head ? half : 0;
            count -= half;
        }
        return at + (count && heads[at] < head);
    }
    static inline void memtable_share(long* refs) {
        __atomic_fetch_add(refs, 1, __ATOMIC_RELAXED);
    }
    static inline int memtable_drop(long* refs) {
        return __atomic_sub_fetch(refs, 1, __ATOMIC_ACQ_REL) == 0;
    }
    """
    u64 memtable_head(const u8* key, size_t n) noexcept nogil
    u64 memtable_whole_head(const u8* key) noexcept nogil
    int memtable_below(const u64* heads, int count, u64 head) noexcept nogil
    void memtable_share(long* refs) noexcept nogil
    bint memtable_drop(long* refs) noexcept nogil

cdef enum:
    ABSENT = 0  # this map says nothing of the key
    GONE = 1  # the key is gone
    THERE = 2
    LARGE = 4096  # bytes from which on a value lies by itself, and several maps may share it
    SLOTS = 32  # of a node
    DEEPEST = 48  # levels of inner nodes: more than fit into any memory

cdef struct Blob:  # a large value
    long refs  # maps that hold it
    PyObject* object  # whose bytes they are; NULL: they follow here
    const u8* bytes

cdef struct Entry:  # the bytes of its key follow, then often those of its first value
    const void* held  # the value's bytes; its Blob from LARGE bytes on
    size_t size  # of the value
    size_t key_size

cdef struct Leaf:
    u64 heads[SLOTS]  # of each key: eight of its bytes, as a number
    size_t shared  # so many first bytes all keys share that may be here; the heads come behind
    Entry* entries[SLOTS]
    int count
    Leaf* before
    Leaf* behind
    Entry* low  # no key here is less than its; NULL: any may be

cdef struct Inner:
    u64 heads[SLOTS]
    size_t shared
    Entry* entries[SLOTS]  # entry i: no key of child i + 1 is less than its, all of child i are
    int count  # of entries
    void* children[SLOTS + 1]

cdef struct Chunk:
    Chunk* next

cdef struct Owned:
    Owned* next
    Blob* blob

cdef struct Value:  # what stood at a key, to take a change back
    int state  # ABSENT, GONE or THERE
    const void* held
    size_t size

cdef struct Cursor:  # a place between two entries; of no use once its map has changed
    Leaf* leaf
    int at  # of the entry behind the place


cdef inline const u8* key_of(const Entry* entry) noexcept nogil:
    """The key, of `entry.key_size` bytes."""
    return <const u8*> entry + sizeof(Entry)


cdef inline const u8* value_of(const Entry* entry) noexcept nogil:
    """The value, of `entry.size` bytes, which are 0 if the key is gone."""
    if entry.size < LARGE:
        return <const u8*> entry.held
    return (<const Blob*> entry.held).bytes


cdef inline Entry* step(Cursor* cursor) noexcept nogil:
    """Pass the entry behind the place; NULL, and the place stays, at the end."""
    while cursor.leaf != NULL:
        if cursor.at < cursor.leaf.count:
            cursor.at += 1
            return cursor.leaf.entries[cursor.at - 1]
        if cursor.leaf.behind == NULL:
            break
        cursor.leaf = cursor.leaf.behind
        cursor.at = 0
    return NULL


cdef inline Entry* step_back(Cursor* cursor) noexcept nogil:
    """Pass the entry before the place; NULL, and the place stays, at the beginning."""
    while cursor.leaf != NULL:
        if cursor.at > 0:
            cursor.at -= 1
            return cursor.leaf.entries[cursor.at]
        if cursor.leaf.before == NULL:
            break
        cursor.leaf = cursor.leaf.before
        cursor.at = cursor.leaf.count
    return NULL


cdef inline u64 head_of(const u8* key, size_t n, size_t shared) noexcept nogil:
    if n >= shared + 8:
        return memtable_whole_head(key + shared)
    return memtable_head(key + shared, n - shared)


cdef inline void renew(
    u64* heads, Entry** entries, int count, size_t* own, size_t shared) noexcept nogil:
    """Make the heads of a node anew, for keys that share so many bytes."""
    cdef int i
    own[0] = shared
    for i in range(count):
        heads[i] = head_of(key_of(entries[i]), entries[i].key_size, shared)


cdef inline void renew_leaf(Leaf* leaf, size_t shared) noexcept nogil:
    renew(leaf.heads, leaf.entries, leaf.count, &leaf.shared, shared)


cdef inline void renew_inner(Inner* inner, size_t shared) noexcept nogil:
    renew(inner.heads, inner.entries, inner.count, &inner.shared, shared)


cdef inline int order_of(const u8* one, size_t n, const u8* other, size_t m) noexcept nogil:
    """How two keys compare: below, at or above 0."""
    cdef size_t less = n if n < m else m
    cdef int found = memcmp(one, other, less) if less else 0
    if found:
        return found
    return (n > m) - (n < m)


cdef inline int order_behind(
    const u8* key, size_t n, const Entry* entry, size_t known) noexcept nogil:
    """The same of keys whose first `known` bytes, filled up with zeros, are equal."""
    if n > known and entry.key_size > known:
        return order_of(key + known, n - known, key_of(entry) + known, entry.key_size - known)
    return (n > entry.key_size) - (n < entry.key_size)


cdef inline int within(
    const u64* heads, Entry** entries, int count, size_t shared, const u8* key, size_t n,
    bint* found) noexcept nogil:
    """How many keys of a node are less, and whether the next one is equal."""
    cdef u64 head = head_of(key, n, shared)
    cdef int at = memtable_below(heads, count, head)
    cdef int end, middle, order
    found[0] = False
    if at == count or heads[at] != head:
        return at
    end = count if head + 1 == 0 else at + memtable_below(heads + at, count - at, head + 1)
    while at < end:
        middle = (at + end) >> 1
        order = order_behind(key, n, entries[middle], shared + 8)
        if order == 0:
            found[0] = True
            return middle
        if order < 0:
            end = middle
        else:
            at = middle + 1
    return at


cdef inline void insert(Leaf* leaf, int at, Entry* entry) noexcept nogil:
    cdef size_t moved = leaf.count - at
    memmove(&leaf.heads[at + 1], &leaf.heads[at], moved * sizeof(u64))
    memmove(&leaf.entries[at + 1], &leaf.entries[at], moved * sizeof(Entry*))
    leaf.heads[at] = head_of(key_of(entry), entry.key_size, leaf.shared)
    leaf.entries[at] = entry
    leaf.count += 1


cdef inline void insert_child(Inner* node, int at, Entry* entry, void* child) noexcept nogil:
    cdef size_t moved = node.count - at
    memmove(&node.heads[at + 1], &node.heads[at], moved * sizeof(u64))
    memmove(&node.entries[at + 1], &node.entries[at], moved * sizeof(Entry*))
    memmove(&node.children[at + 2], &node.children[at + 1], moved * sizeof(void*))
    node.heads[at] = head_of(key_of(entry), entry.key_size, node.shared)
    node.entries[at] = entry
    node.children[at + 1] = child
    node.count += 1
