/* Preloaded into the program that is tested: notes what it does to one folder, with all bytes.
 *
 * LOGWEIR_CRASH_TRACE names a file that all its processes map. Its first page is `struct head`, made
 * by record.py but for the lock; behind it stands the trace, one `struct note` with its bytes after
 * the other, in an order in which they can have happened: every call that changes the folder is made
 * and noted under one lock. Syncs are the exception: they are made outside of it and noted twice, so
 * that what is written while one runs is not taken for synced by it. An acknowledgement is what is
 * written to standard output, or to the file that head.acks names.
 *
 * A call may be made to fail, too: the head.fault_at-th one that could, counted over all processes.
 */
#include "recorder.h"

struct head *head;
static char folder[PATH_MAX];
static size_t folder_length;
static uint32_t file_of[FILES]; /* its number, 0: none of the folder's */
static ino_t inode_of[FILES];
static unsigned char is_acks[FILES], syncs[FILES];

void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

void lock(void)
{
    if (pthread_mutex_lock(&head->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&head->lock);
        head->holding = 0;
    }
    __atomic_add_fetch(&head->holding, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&head->is_over, __ATOMIC_SEQ_CST)) {
        __atomic_sub_fetch(&head->holding, 1, __ATOMIC_SEQ_CST);
        pthread_mutex_unlock(&head->lock);
        for (;;)
            pause();
    }
}

void unlock(void)
{
    int kept = errno;
    __atomic_sub_fetch(&head->holding, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&head->lock);
    errno = kept;
}

/* Under the lock. Returns where the bytes go, NULL if there is no room. */
char *note(char kind, uint32_t file, uint64_t at, size_t size, size_t more)
{
    size_t whole = (sizeof(struct note) + size + more + 7) & ~(size_t)7;
    struct note *next = (struct note *)((char *)head + HEAD + head->used);
    if (head->is_full || head->used + whole > head->room) {
        head->is_full = 1;
        return NULL;
    }
    next->kind = kind;
    next->file = file;
    next->at = at;
    next->size = size;
    next->more = more;
    head->used += whole;
    return (char *)(next + 1);
}

void note_path(char kind, uint32_t file, uint64_t at, const char *path, const char *second)
{
    size_t size = strlen(path), more = second ? strlen(second) : 0;
    char *place = note(kind, file, at, size, more);
    if (place) {
        memcpy(place, path, size);
        if (second)
            memcpy(place + size, second, more);
    }
}

/* The path below the folder, NULL if it is not in it. */
static const char *inside(const char *path)
{
    if (strncmp(path, folder, folder_length))
        return NULL;
    if (!path[folder_length])
        return path + folder_length;
    return path[folder_length] == '/' ? path + folder_length + 1 : NULL;
}

static int path_of(int fd, char *into)
{
    char link[64];
    ssize_t size;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, into, PATH_MAX - 1);
    if (size < 0)
        return 0;
    into[size] = 0;
    return 1;
}

/* The path of a name that need not be there: its folder with all links followed, and the name. */
static int place_of(int dir, const char *path, char *into)
{
    char whole[LONG], parent[PATH_MAX];
    char *last;
    size_t size;
    if (!path || strlen(path) >= PATH_MAX)
        return 0;
    if (path[0] == '/')
        snprintf(whole, sizeof whole, "%s", path);
    else {
        if (dir == AT_FDCWD ? !getcwd(parent, sizeof parent) : !path_of(dir, parent))
            return 0;
        snprintf(whole, sizeof whole, "%s/%s", parent, path);
    }
    size = strlen(whole);
    while (size > 1 && whole[size - 1] == '/')
        whole[--size] = 0;
    last = strrchr(whole, '/');
    if (!last || !strcmp(last, "/.") || !strcmp(last, "/.."))
        return realpath(whole, into) != NULL;
    *last = 0;
    if (!realpath(*whole ? whole : "/", parent) || strlen(parent) + strlen(last + 1) + 2 > PATH_MAX)
        return 0;
    strcpy(into, parent);
    strcat(into, parent[1] ? "/" : "");
    strcat(into, last + 1);
    return 1;
}

const char *below(int dir, const char *path, char *into)
{
    return head && place_of(dir, path, into) ? inside(into) : NULL;
}

/* A descriptor may have been closed past us, and be something else by now. */
uint32_t number_of(int fd)
{
    struct stat found;
    int kept = errno;
    if (!head || fd < 0 || fd >= FILES || !file_of[fd])
        return 0;
    if (fstat(fd, &found) || found.st_ino != inode_of[fd])
        file_of[fd] = 0;
    errno = kept;
    return file_of[fd];
}

int acknowledges(int fd)
{
    struct stat found;
    if (!head || fd < 0 || fd >= FILES)
        return 0;
    if (is_acks[fd])
        return 1;
    return !head->acks[0] && !number_of(fd) && head->stdout_inode && !fstat(fd, &found) &&
           found.st_ino == head->stdout_inode && found.st_dev == head->stdout_device;
}

/* A descriptor that has just come to be, under the lock. */
void opened(int fd, int flags)
{
    char path[PATH_MAX];
    const char *name;
    struct stat found;
    int kept = errno;
    if (fd < 0 || fd >= FILES)
        return;
    file_of[fd] = is_acks[fd] = syncs[fd] = 0;
    if (path_of(fd, path)) {
        if (head->acks[0] && !strcmp(path, head->acks))
            is_acks[fd] = 1;
        else if ((name = inside(path)) && !(flags & O_PATH) && !fstat(fd, &found)) {
            file_of[fd] = ++head->files;
            inode_of[fd] = found.st_ino;
            syncs[fd] = (flags & (O_SYNC | O_DSYNC)) != 0;
            note_path('o', file_of[fd], flags & O_TRUNC ? 1 : 0, name, NULL);
        }
    }
    errno = kept;
}

/* Whether this call is the one to fail; under the lock. */
int fails(const char *name, int takes_room, size_t size)
{
    uint64_t now;
    if (!head->fault_kind || (head->fault_kind == 2 && !takes_room) ||
        (head->fault_kind == 3 && size < 2))
        return 0;
    now = ++head->counted;
    if (!head->fault_at || !(now == head->fault_at || (head->fault_lasts && now > head->fault_at)))
        return 0;
    if (!head->failed[0])
        snprintf(head->failed, sizeof head->failed, "%s", name);
    if (head->fault_kind == 4) {
        kill(getpid(), SIGINT);
        return 0;
    }
    errno = head->fault_errno;
    return 1;
}

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("LOGWEIR_CRASH_TRACE");
    pthread_mutexattr_t kind;
    uint64_t nothing = 0;
    int fd, number;
    struct stat found;
    void *place;
    if (!name || (fd = open(name, O_RDWR | O_CLOEXEC)) < 0)
        return;
    if (fstat(fd, &found) ||
        (place = mmap(NULL, found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        return;
    close(fd);
    if (__atomic_compare_exchange_n(&((struct head *)place)->state, &nothing, 1, 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST)) {
        pthread_mutexattr_init(&kind);
        pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
        pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
        pthread_mutex_init(&((struct head *)place)->lock, &kind);
        __atomic_store_n(&((struct head *)place)->state, 2, __ATOMIC_SEQ_CST);
    }
    while (__atomic_load_n(&((struct head *)place)->state, __ATOMIC_SEQ_CST) != 2)
        usleep(100);
    strcpy(folder, ((struct head *)place)->folder);
    folder_length = strlen(folder);
    head = place;
    lock();
    note('q', 0, 0, 0, 0);
    for (number = 0; number < 1024; number++) /* what the program before this one left open */
        if ((fd = fcntl(number, F_GETFL)) >= 0)
            opened(number, fd);
    unlock();
    record_streams();
}

#define MODE(flags, mode)                                                                          \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                         \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode = va_arg(rest, mode_t);                                                               \
        va_end(rest);                                                                              \
    }

/* An open of either kind: `made` is the call. */
#define OPENED(dir, path, flags, made)                                                             \
    char into[PATH_MAX];                                                                           \
    int fd;                                                                                        \
    if (!head)                                                                                     \
        return made;                                                                               \
    if (!((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) && !below(dir, path, into))           \
        return made;                                                                               \
    lock();                                                                                        \
    if (((flags) & (O_CREAT | O_TRUNC)) && below(dir, path, into) && strcmp(into, head->acks) &&   \
        fails("open", 1, 0)) {                                                                     \
        unlock();                                                                                  \
        return -1;                                                                                 \
    }                                                                                              \
    fd = made;                                                                                     \
    if (fd >= 0)                                                                                   \
        opened(fd, flags);                                                                         \
    unlock();                                                                                      \
    return fd

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        MODE(flags, mode)                                                                          \
        REAL(int, name, (const char *, int, ...));                                                 \
        OPENED(AT_FDCWD, path, flags, call(path, flags, mode));                                    \
    }
#define OPENAT(name)                                                                               \
    int name(int dir, const char *path, int flags, ...)                                            \
    {                                                                                              \
        MODE(flags, mode)                                                                          \
        REAL(int, name, (int, const char *, int, ...));                                            \
        OPENED(dir, path, flags, call(dir, path, flags, mode));                                    \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
int __openat_2(int dir, const char *path, int flags) { return openat(dir, path, flags); }
int __openat64_2(int dir, const char *path, int flags) { return openat64(dir, path, flags); }
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* Calls of the C library that open a file inside of it. */
#define MADE(name, given, passed, flags)                                                           \
    int name given                                                                                 \
    {                                                                                              \
        int fd;                                                                                    \
        REAL(int, name, given);                                                                    \
        if (!head)                                                                                 \
            return call passed;                                                                    \
        lock();                                                                                    \
        if ((fd = call passed) >= 0)                                                               \
            opened(fd, flags);                                                                     \
        unlock();                                                                                  \
        return fd;                                                                                 \
    }
MADE(mkstemp, (char *name), (name), 0)
MADE(mkstemp64, (char *name), (name), 0)
MADE(mkostemp, (char *name, int flags), (name, flags), flags)
MADE(mkostemp64, (char *name, int flags), (name, flags), flags)
MADE(mkstemps, (char *name, int length), (name, length), 0)

static void copied(int from, int to)
{
    if (!head || to < 0 || to >= FILES)
        return;
    file_of[to] = number_of(from);
    inode_of[to] = from < FILES ? inode_of[from] : 0;
    is_acks[to] = from < FILES && is_acks[from];
    syncs[to] = from < FILES && syncs[from];
}

int dup(int fd)
{
    int to;
    REAL(int, dup, (int));
    if ((to = call(fd)) >= 0)
        copied(fd, to);
    return to;
}

int dup2(int fd, int wanted)
{
    int to;
    REAL(int, dup2, (int, int));
    if ((to = call(fd, wanted)) >= 0 && to != fd)
        copied(fd, to);
    return to;
}

int dup3(int fd, int wanted, int flags)
{
    int to;
    REAL(int, dup3, (int, int, int));
    if ((to = call(fd, wanted, flags)) >= 0)
        copied(fd, to);
    return to;
}

#define FCNTL(name)                                                                                \
    int name(int fd, int what, ...)                                                                \
    {                                                                                              \
        va_list rest;                                                                              \
        void *more;                                                                                \
        int to;                                                                                    \
        REAL(int, name, (int, int, void *));                                                       \
        va_start(rest, what);                                                                      \
        more = va_arg(rest, void *);                                                               \
        va_end(rest);                                                                              \
        to = call(fd, what, more);                                                                 \
        if (to >= 0 && (what == F_DUPFD || what == F_DUPFD_CLOEXEC))                               \
            copied(fd, to);                                                                        \
        return to;                                                                                 \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

int close(int fd)
{
    REAL(int, close, (int));
    if (head && fd >= 0 && fd < FILES)
        file_of[fd] = is_acks[fd] = syncs[fd] = 0;
    return call(fd);
}

static int synced(int fd, const char *name, int (*call)(int))
{
    int done;
    uint32_t file = number_of(fd);
    uint64_t token;
    if (!file)
        return call(fd);
    lock();
    if (fails(name, 0, 0)) {
        note('f', file, 0, 0, 0);
        unlock();
        return -1;
    }
    token = head->used;
    note('s', file, token, 0, 0);
    unlock();
    done = call(fd);
    if (!done) {
        lock();
        note('e', file, token, 0, 0);
        unlock();
    }
    return done;
}

int fsync(int fd)
{
    REAL(int, fsync, (int));
    return synced(fd, "fsync", call);
}

int fdatasync(int fd)
{
    REAL(int, fdatasync, (int));
    return synced(fd, "fdatasync", call);
}

static int nothing(int fd)
{
    (void)fd;
    return 0;
}

int syncfs(int fd)
{
    int done;
    uint64_t token;
    REAL(int, syncfs, (int));
    if (!head)
        return call(fd);
    lock();
    token = head->used;
    note('S', 0, token, 0, 0);
    unlock();
    if (!(done = call(fd))) {
        lock();
        note('E', 0, token, 0, 0);
        unlock();
    }
    return done;
}

void sync(void)
{
    int fd;
    REAL(void, sync, (void));
    if (!head || (fd = open(folder, O_RDONLY | O_DIRECTORY)) < 0) {
        call();
        return;
    }
    syncfs(fd);
    close(fd);
}

static void gather(char *into, const struct iovec *parts, int count, size_t size)
{
    int part;
    for (part = 0; part < count && size; part++) {
        size_t some = parts[part].iov_len < size ? parts[part].iov_len : size;
        memcpy(into, parts[part].iov_base, some);
        into += some;
        size -= some;
    }
}

/* Before a write, under the lock: 0: make it; -1: refused; else how many bytes of it to make. */
static ssize_t permitted(uint32_t file, const struct iovec *parts, int count)
{
    size_t size = 0;
    int part;
    for (part = 0; part < count; part++)
        size += parts[part].iov_len;
    if (!file || !fails("write", 1, size))
        return 0;
    return head->fault_kind == 3 ? (ssize_t)(size / 2) : -1;
}

/* After a write, under the lock. `at`: where it went, -1: to the file's place. */
void wrote(int fd, const struct iovec *parts, int count, ssize_t size, off64_t at)
{
    struct stat found;
    int kept = errno;
    char *into;
    uint32_t file = number_of(fd);
    if (size > 0) {
        if (!file)
            into = note('a', 0, 0, size, 0);
        else {
            if (at < 0)
                at = lseek64(fd, 0, SEEK_CUR) - size;
            else if ((fcntl(fd, F_GETFL) & O_APPEND) && !fstat(fd, &found))
                at = found.st_size - size;
            into = note('w', file, at, size, 0);
        }
        if (into)
            gather(into, parts, count, size);
    }
    errno = kept;
}

/* `some`: the call with so many bytes only, for a short write; `is_synced`: the write syncs. */
#define WRITTEN(parts, count, at, made, some, is_synced)                                           \
    ssize_t size, allowed;                                                                         \
    uint32_t file = number_of(fd);                                                                 \
    if (!file && !acknowledges(fd))                                                                \
        return made;                                                                               \
    lock();                                                                                        \
    allowed = permitted(file, parts, count);                                                       \
    size = allowed < 0 ? -1 : allowed ? some : made;                                               \
    wrote(fd, parts, count, size, at);                                                             \
    unlock();                                                                                      \
    if (size > 0 && file && (syncs[fd] || (is_synced)) && synced(fd, "write", nothing))            \
        return -1;                                                                                 \
    return size

ssize_t write(int fd, const void *data, size_t bytes)
{
    struct iovec part = {(void *)data, bytes};
    REAL(ssize_t, write, (int, const void *, size_t));
    WRITTEN(&part, 1, -1, call(fd, data, bytes), call(fd, data, allowed), 0);
}

#define PWRITE(name, offset_t)                                                                     \
    ssize_t name(int fd, const void *data, size_t bytes, offset_t at)                              \
    {                                                                                              \
        struct iovec part = {(void *)data, bytes};                                                 \
        REAL(ssize_t, name, (int, const void *, size_t, offset_t));                                \
        WRITTEN(&part, 1, at, call(fd, data, bytes, at), call(fd, data, allowed, at), 0);          \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

static ssize_t part_of(int fd, const struct iovec *parts, int count, ssize_t size, off64_t at)
{
    char *data = malloc(size);
    ssize_t done;
    static ssize_t (*put)(int, const void *, size_t, off64_t);
    static ssize_t (*next)(int, const void *, size_t);
    if (!put)
        put = real("pwrite64"), next = real("write");
    if (!data)
        return -1;
    gather(data, parts, count, size);
    done = at < 0 ? next(fd, data, size) : put(fd, data, size, at);
    free(data);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    REAL(ssize_t, writev, (int, const struct iovec *, int));
    WRITTEN(parts, count, -1, call(fd, parts, count), part_of(fd, parts, count, allowed, -1), 0);
}

#define PWRITEV(name, more, passed, is_synced)                                                     \
    ssize_t name(int fd, const struct iovec *parts, int count, off64_t at more)                    \
    {                                                                                              \
        REAL(ssize_t, name, (int, const struct iovec *, int, off64_t more));                       \
        WRITTEN(parts, count, at, call(fd, parts, count, at passed),                               \
                part_of(fd, parts, count, allowed, at), is_synced);                                \
    }
#define COMMA ,
PWRITEV(pwritev, , , 0)
PWRITEV(pwritev64, , , 0)
PWRITEV(pwritev2, COMMA int flags, COMMA flags, flags & (RWF_SYNC | RWF_DSYNC))
PWRITEV(pwritev64v2, COMMA int flags, COMMA flags, flags & (RWF_SYNC | RWF_DSYNC))
