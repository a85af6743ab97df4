# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""The compiled sorted map of one index of one layer; `store.state.memtable` says what it does.

A B+tree whose nodes, keys and small values lie in an arena: chunks of memory that are only ever
added to, and all freed at once. So nothing in it ever moves, an entry costs no object, and to drop
a map costs next to nothing. What is overwritten or taken back stays in the arena: a map is a layer
that ends soon.

======  ============================================================================================
node    `heads`: of each key the eight bytes behind what all keys that may be here share, big-endian,
        filled up with zeros, as a number. Only where two are equal the keys are looked at.
shared  So many first bytes are the same in the two separators between which the keys of a node lie,
        and so in all of them. Nodes at either edge of the tree have what all keys share; a key
        that differs earlier lessens that, and their heads are made anew.
leaf    Keys between its `low` and that of the leaf behind, which are the separators in the inner
        nodes. It may be empty: taking entries out leaves the nodes as they are.
run     Where keys rise, a full leaf is not halved but the next one begun, so that all get full.
large   A value of `LARGE` bytes or more is a block of its own, or a held `bytes` object, with a
        count of the maps that hold it.
======  ============================================================================================

What can fail is done before anything is changed: the nodes that splits need are made first.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset
from logweir.store.state.memtablenodes cimport (
    ABSENT, DEEPEST, GONE, LARGE, SLOTS, THERE, Blob, Chunk, Cursor, Entry, Inner, Leaf, Owned,
    Value, insert, insert_child, key_of, memtable_drop, memtable_share, order_of, renew_inner,
    renew_leaf, step, step_back, u8, u64, value_of, within)

cdef enum:
    FIRST_BYTES = 2048  # of an arena; each chunk is twice the one before
    MOST_BYTES = 1 << 18
    MANY = 16384  # entries that take longer than to have the interpreter's lock again

cdef u64 NO_ROOM = 1 << 48  # more bytes than any memory has


cdef int _no_memory() except -1 nogil:
    with gil:
        raise MemoryError("no memory for another entry of a memtable")


cdef bytes _key_object(const Entry* entry):
    return PyBytes_FromStringAndSize(<const char*> key_of(entry), <Py_ssize_t> entry.key_size)


cdef bytes _bytes_object(const u8* data, size_t size):
    return PyBytes_FromStringAndSize(<const char*> data, <Py_ssize_t> size)


@cython.final
cdef class Memtable:
    """A memtable that is a B+tree; see `store.state.memtable.PlainMemtable`, which does the same."""

    def __dealloc__(self):
        cdef Owned* owned = self.owned
        cdef Chunk* chunk = self.chunks
        cdef Chunk* next
        while owned != NULL:
            if memtable_drop(&owned.blob.refs):
                Py_XDECREF(owned.blob.object)
                free(owned.blob)
            owned = owned.next
        while chunk != NULL:
            next = chunk.next
            free(chunk)
            chunk = next

    # The arena.

    cdef void* _room(self, size_t size) noexcept nogil:
        """Room for `size` bytes at a multiple of eight, which stays until the map goes; or NULL."""
        cdef Chunk* chunk
        cdef u8* found
        cdef size_t wanted
        if size > NO_ROOM:
            return NULL
        size = (size + 7) & ~<size_t> 7
        if size <= self.room:
            found = self.free
            self.free += size
            self.room -= size
            return found
        if self.step_bytes == 0:
            self.step_bytes = FIRST_BYTES
        wanted = self.step_bytes if size <= self.step_bytes // 4 else size
        chunk = <Chunk*> malloc(sizeof(Chunk) + wanted)
        if chunk == NULL:
            return NULL
        found = <u8*> chunk + sizeof(Chunk)
        self.size_bytes += sizeof(Chunk) + wanted
        chunk.next = self.chunks
        self.chunks = chunk
        if wanted == self.step_bytes:
            self.free = found + size
            self.room = wanted - size
            if self.step_bytes < MOST_BYTES:
                self.step_bytes *= 2
        return found

    cdef int _own(self, Blob* blob, size_t size) noexcept nogil:
        """Hold a large value, for good; 0 if there is no memory to note that."""
        cdef Owned* owned = <Owned*> self._room(sizeof(Owned))
        if owned == NULL:
            return 0
        owned.blob = blob
        owned.next = self.owned
        self.owned = owned
        self.size_bytes += sizeof(Blob) + size
        return 1

    # The tree.

    cdef void _share(self, size_t shared) noexcept nogil:
        """Note that all keys, and one that comes, have so many first bytes in common."""
        cdef void* left = self.root
        cdef void* right = self.root
        cdef int level
        self.shared = shared
        for level in range(self.height):
            renew_inner(<Inner*> left, shared)
            renew_inner(<Inner*> right, shared)
            left = (<Inner*> left).children[0]
            right = (<Inner*> right).children[(<Inner*> right).count]
        renew_leaf(<Leaf*> left, shared)
        renew_leaf(<Leaf*> right, shared)

    cdef size_t _between(self, const Entry* low, const Entry* high) noexcept nogil:
        """How many first bytes the keys share that lie between two; NULL: at an edge."""
        cdef size_t same = self.shared
        if low != NULL and high != NULL:
            while (
                same < low.key_size and same < high.key_size
                and key_of(low)[same] == key_of(high)[same]
            ):
                same += 1
        return same

    cdef Leaf* _leaf(self, const u8* key, size_t n) noexcept nogil:
        """The leaf where a key belongs, in a map that has one, if it begins as all keys do."""
        cdef void* node = self.root
        cdef Inner* inner
        cdef bint found
        cdef int level, at
        for level in range(self.height):
            inner = <Inner*> node
            at = within(inner.heads, inner.entries, inner.count, inner.shared, key, n, &found)
            node = inner.children[at + found]
        return <Leaf*> node

    cdef bint _search(self, const u8* key, size_t n, Cursor* place) noexcept nogil:
        """Find the place before the first entry that is not less; whether it is of the key."""
        cdef size_t less = n if n < self.shared else self.shared
        cdef int order = memcmp(key, self.common, less) if less else 0
        cdef bint found = False
        if order > 0 or self.last == NULL:
            place[0] = self.end()
        elif order < 0 or n < self.shared:
            place[0] = self.start()
        else:
            place.leaf = self._leaf(key, n)
            place.at = within(
                place.leaf.heads, place.leaf.entries, place.leaf.count, place.leaf.shared, key, n,
                &found)
        return found

    cdef bint _belongs(self, Leaf* leaf, const u8* key, size_t n) noexcept nogil:
        cdef Entry* low = leaf.low
        cdef Entry* high = leaf.behind.low if leaf.behind != NULL else NULL
        return (low == NULL or order_of(key, n, key_of(low), low.key_size) >= 0) and (
            high == NULL or order_of(key, n, key_of(high), high.key_size) < 0)

    cdef Entry* _place(self, const u8* key, size_t n, size_t tail, bint* is_new) noexcept nogil:
        """The entry of a key; made with room for `tail` bytes behind the key if there is none.

        NULL if there is no memory, and nothing is changed then.
        """
        cdef Leaf* leaf = self.near
        cdef Entry* entry
        cdef bint found = False
        cdef int at = 0
        cdef size_t same = 0
        if self.shared and (n < self.shared or memcmp(key, self.common, self.shared)):
            while same < n and same < self.shared and key[same] == self.common[same]:
                same += 1
            self._share(same)
        if leaf != NULL:
            if not self.stays_near or not self._belongs(leaf, key, n):
                leaf = self._leaf(key, n)
                self.stays_near = leaf == self.near
            at = within(leaf.heads, leaf.entries, leaf.count, leaf.shared, key, n, &found)
            if found:
                is_new[0] = False
                self.near, self.near_at = leaf, at
                return leaf.entries[at]
        if n > NO_ROOM:
            return NULL
        entry = <Entry*> self._room(sizeof(Entry) + n + tail)
        if entry == NULL:
            return NULL
        entry.held, entry.size, entry.key_size = NULL, 0, n
        if n:
            memcpy(<u8*> key_of(entry), key, n)
        if leaf == NULL:
            leaf = <Leaf*> self._room(sizeof(Leaf))
            if leaf == NULL:
                return NULL
            memset(leaf, 0, sizeof(Leaf))
            self.root = self.first = self.last = leaf
            self.common, self.shared, leaf.shared = key_of(entry), n, n
        elif leaf.count == SLOTS:
            leaf = self._split(leaf, entry, &at)
            if leaf == NULL:
                return NULL
        insert(leaf, at, entry)
        self.near, self.near_at = leaf, at
        self.count += 1
        is_new[0] = True
        return entry

    cdef Leaf* _split(self, Leaf* leaf, Entry* entry, int* at) noexcept nogil:
        """Make room for `entry`, which belongs in the full `leaf` at `at`.

        Returns the leaf where it belongs then, with `at`; NULL if there is no memory.
        """
        cdef Inner* path[DEEPEST]
        cdef int places[DEEPEST]
        cdef void* spare[DEEPEST + 1]
        cdef void* node = self.root
        cdef Leaf* right
        cdef Inner* inner
        cdef Inner* other
        cdef Entry* lows[DEEPEST]
        cdef Entry* highs[DEEPEST]
        cdef Entry* low = NULL
        cdef Entry* high = NULL
        cdef Entry* up
        cdef void* child
        cdef bint found
        cdef int level, needed, used, cut, place
        cdef int kept = at[0]
        cdef bint is_run = kept == SLOTS and (
            leaf.behind == NULL or (self.near == leaf and self.near_at == SLOTS - 1))
        for level in range(self.height):
            inner = <Inner*> node
            place = within(
                inner.heads, inner.entries, inner.count, inner.shared, key_of(entry),
                entry.key_size, &found) + found
            path[level], places[level], lows[level], highs[level] = inner, place, low, high
            low = inner.entries[place - 1] if place else low
            high = inner.entries[place] if place < inner.count else high
            node = inner.children[place]
        needed = 0  # inner nodes
        while needed < self.height and path[self.height - 1 - needed].count == SLOTS:
            needed += 1
        if needed == self.height:
            needed += 1  # another root
            if self.height + 1 == DEEPEST:
                return NULL
        right = <Leaf*> self._room(sizeof(Leaf))
        if right == NULL:
            return NULL
        for used in range(needed):
            spare[used] = self._room(sizeof(Inner))
            if spare[used] == NULL:
                return NULL

        cut = SLOTS if is_run else SLOTS // 2
        memset(right, 0, sizeof(Leaf))
        right.count = SLOTS - cut
        memcpy(right.entries, &leaf.entries[cut], right.count * sizeof(Entry*))
        leaf.count = cut
        right.low = entry if is_run else right.entries[0]
        renew_leaf(leaf, self._between(low, right.low))
        renew_leaf(right, self._between(right.low, high))
        right.before, right.behind = leaf, leaf.behind
        if leaf.behind != NULL:
            leaf.behind.before = right
        else:
            self.last = right
        leaf.behind = right
        if kept > cut or is_run:
            leaf = right
            at[0] = kept - cut

        child, entry = right, right.low
        used = 0
        for level in range(self.height - 1, -1, -1):
            inner, place = path[level], places[level]
            if inner.count < SLOTS:
                insert_child(inner, place, entry, child)
                return leaf
            other = <Inner*> spare[used]
            used += 1
            cut = SLOTS - 1 if is_run and place == SLOTS else SLOTS // 2
            up = inner.entries[cut]
            other.count = SLOTS - cut - 1
            memcpy(other.entries, &inner.entries[cut + 1], other.count * sizeof(Entry*))
            memcpy(other.children, &inner.children[cut + 1], (other.count + 1) * sizeof(void*))
            inner.count = cut
            renew_inner(inner, self._between(lows[level], up))
            renew_inner(other, self._between(up, highs[level]))
            if place <= cut:
                insert_child(inner, place, entry, child)
            else:
                insert_child(other, place - cut - 1, entry, child)
            child, entry = other, up
        inner = <Inner*> spare[used]
        inner.count, inner.shared, inner.children[0] = 0, self.shared, self.root
        insert_child(inner, 0, entry, child)
        self.root = inner
        self.height += 1
        return leaf

    cdef int _store(
        self, const u8* key, size_t n, const void* source, size_t m, bint is_copied,
        Value* before) except -1 nogil:
        """Set a key to what `source` holds, which is small and `is_copied` or stays as it is."""
        cdef bint is_new = False
        cdef Entry* entry = self._place(key, n, m if is_copied else 0, &is_new)
        cdef void* room
        if entry == NULL:
            return _no_memory()
        if is_copied and m:
            room = <u8*> key_of(entry) + n if is_new else self._room(m)
            if room == NULL:
                return _no_memory()
            memcpy(room, source, m)
            source = room
        if before != NULL:
            before.state = ABSENT if is_new else THERE if entry.size else GONE
            before.held, before.size = entry.held, entry.size
        entry.held, entry.size = source if m else NULL, m
        self.changes += 1
        return 0

    # For other kernels; `memtablekernel.pxd` says what each does.

    cdef int find(self, const u8* key, size_t n, const u8** value, size_t* m) noexcept nogil:
        cdef Cursor place
        cdef Entry* entry
        m[0] = 0
        if not self._search(key, n, &place):
            return ABSENT
        entry = place.leaf.entries[place.at]
        if entry.size == 0:
            return GONE
        value[0], m[0] = value_of(entry), entry.size
        return THERE

    cdef int set(
        self, const u8* key, size_t n, const u8* value, size_t m, Value* before) except -1 nogil:
        cdef Blob* blob
        if m < LARGE:
            return self._store(key, n, value, m, True, before)
        blob = NULL if m > NO_ROOM else <Blob*> malloc(sizeof(Blob) + m)
        if blob == NULL:
            return _no_memory()
        blob.refs, blob.object, blob.bytes = 1, NULL, <u8*> blob + sizeof(Blob)
        memcpy(<u8*> blob.bytes, value, m)
        if not self._own(blob, m):
            free(blob)
            return _no_memory()
        return self._store(key, n, blob, m, False, before)

    cdef int set_object(self, const u8* key, size_t n, bytes value, Value* before) except -1:
        cdef size_t m = PyBytes_GET_SIZE(value)
        cdef const u8* data = <const u8*> PyBytes_AS_STRING(value)
        cdef Blob* blob
        if m < LARGE:
            return self._store(key, n, data, m, True, before)
        blob = <Blob*> malloc(sizeof(Blob))
        if blob == NULL:
            return _no_memory()
        blob.refs, blob.object, blob.bytes = 1, <PyObject*> value, data
        if not self._own(blob, m):
            free(blob)
            return _no_memory()
        Py_INCREF(value)
        return self._store(key, n, blob, m, False, before)

    cdef bint unset(self, const u8* key, size_t n) noexcept nogil:
        cdef Cursor place
        cdef Leaf* leaf
        cdef size_t moved
        if not self._search(key, n, &place):
            return False
        leaf = place.leaf
        leaf.count -= 1
        moved = leaf.count - place.at
        memmove(&leaf.heads[place.at], &leaf.heads[place.at + 1], moved * sizeof(u64))
        memmove(&leaf.entries[place.at], &leaf.entries[place.at + 1], moved * sizeof(Entry*))
        self.count -= 1
        self.changes += 1
        return True

    cdef int put_back(self, const u8* key, size_t n, Value before) except -1 nogil:
        if before.state == ABSENT:
            self.unset(key, n)
            return 0
        return self._store(key, n, before.held, before.size, False, NULL)

    cdef int take(self, Memtable newer) except -1 nogil:
        cdef Cursor cursor = newer.start()
        cdef Entry* entry
        cdef Blob* blob
        if newer is self:
            return 0
        while True:
            entry = step(&cursor)
            if entry == NULL:
                return 0
            if entry.size >= LARGE:
                blob = <Blob*> entry.held
                if not self._own(blob, entry.size):
                    return _no_memory()
                memtable_share(&blob.refs)
            self._store(
                key_of(entry), entry.key_size, entry.held, entry.size, entry.size < LARGE, NULL)

    cdef Cursor start(self) noexcept nogil:
        return Cursor(self.first, 0)

    cdef Cursor end(self) noexcept nogil:
        return Cursor(self.last, self.last.count if self.last != NULL else 0)

    cdef Cursor seek(self, const u8* key, size_t n) noexcept nogil:
        cdef Cursor place
        self._search(key, n, &place)
        return place

    # For Python; `store.state.memtable.PlainMemtable` says what each does.

    cdef object _object(self, int state, const void* held, size_t size):
        cdef const Blob* blob = <const Blob*> held
        if state == ABSENT:
            return None
        if size < LARGE:
            return _bytes_object(<const u8*> held, size)
        if blob.object != NULL:
            return <object> blob.object
        return _bytes_object(blob.bytes, size)

    cdef tuple _item(self, const Entry* entry):
        return _key_object(entry), self._object(THERE, entry.held, entry.size)

    def __len__(self):
        return self.count

    def get(self, bytes key not None):
        cdef Cursor place
        cdef Entry* entry
        if not self._search(<const u8*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), &place):
            return None
        entry = place.leaf.entries[place.at]
        return self._object(THERE, entry.held, entry.size)

    def put(self, bytes key not None, bytes value not None):
        cdef Value before
        self.set_object(
            <const u8*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), value, &before)
        return self._object(before.state, before.held, before.size)

    def restore(self, bytes key not None, bytes before):
        cdef const u8* data = <const u8*> PyBytes_AS_STRING(key)
        if before is None:
            self.unset(data, PyBytes_GET_SIZE(key))
        else:
            self.set_object(data, PyBytes_GET_SIZE(key), before, NULL)

    def merge(self, Memtable newer not None):
        if newer.count < MANY:
            self.take(newer)
        else:
            with nogil:
                self.take(newer)

    def ascending(self, bytes start not None=b""):
        cdef Cursor place = self.seek(
            <const u8*> PyBytes_AS_STRING(start), PyBytes_GET_SIZE(start))
        cdef u64 changes = self.changes
        cdef Entry* entry = step(&place)
        while entry != NULL:
            yield self._item(entry)
            self._unchanged(changes)
            entry = step(&place)

    def descending(self, bytes stop=None):
        cdef Cursor place = self.end() if stop is None else self.seek(
            <const u8*> PyBytes_AS_STRING(stop), PyBytes_GET_SIZE(stop))
        cdef u64 changes = self.changes
        cdef Entry* entry = step_back(&place)
        while entry != NULL:
            yield self._item(entry)
            self._unchanged(changes)
            entry = step_back(&place)

    cdef int _unchanged(self, u64 changes) except -1:
        if self.changes != changes:
            raise RuntimeError("the memtable was changed while it was read")
        return 0

    def parts(self, Py_ssize_t rows):
        cdef Cursor place = self.start()
        cdef u64 changes = self.changes
        cdef Entry* entry = step(&place)
        cdef list keys = []
        cdef list values = []
        while entry != NULL:
            if entry.size:
                if len(keys) >= rows and keys:
                    yield keys, values
                    self._unchanged(changes)
                    keys, values = [], []
                keys.append(_key_object(entry))
                values.append(self._object(THERE, entry.held, entry.size))
            entry = step(&place)
        if keys:
            yield keys, values

    def gone(self):
        cdef Cursor place = self.start()
        cdef Entry* entry = step(&place)
        cdef list keys = []
        while entry != NULL:
            if entry.size == 0:
                keys.append(_key_object(entry))
            entry = step(&place)
        return keys
