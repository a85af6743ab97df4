/* The recorder's other half: calls about names and sizes, memory maps, copies, and streams of C. */
#include "recorder.h"

static int resized(int fd, const char *name, off64_t size, int grows, int done)
{
    uint32_t file = number_of(fd);
    struct stat found;
    (void)name;
    if (done == 0 && (!grows || (!fstat(fd, &found) && found.st_size == size)))
        note('t', file, size, 0, 0);
    return done;
}

/* `grows`: it only ever makes a file longer; `refused`: what is returned then. */
#define SIZED(name, given, passed, size, grows, refused)                                           \
    int name given                                                                                 \
    {                                                                                              \
        int done;                                                                                  \
        REAL(int, name, given);                                                                    \
        if (!number_of(fd))                                                                        \
            return call passed;                                                                    \
        lock();                                                                                    \
        done = fails(#name, grows, 0) ? refused : resized(fd, #name, size, grows, call passed);    \
        unlock();                                                                                  \
        return done;                                                                               \
    }
SIZED(ftruncate, (int fd, off_t size), (fd, size), size, 0, -1)
SIZED(ftruncate64, (int fd, off64_t size), (fd, size), size, 0, -1)
SIZED(fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), at + size, 1, -1)
SIZED(fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size), at + size, 1, -1)
SIZED(posix_fallocate, (int fd, off_t at, off_t size), (fd, at, size), at + size, 1, errno)
SIZED(posix_fallocate64, (int fd, off64_t at, off64_t size), (fd, at, size), at + size, 1, errno)

int truncate(const char *path, off_t size)
{
    int done, fd = open(path, O_WRONLY);
    if (fd < 0)
        return -1;
    done = ftruncate(fd, size);
    close(fd);
    return done;
}

int truncate64(const char *path, off64_t size) { return truncate(path, size); }

/* A call about one name. */
#define NAMED(kind, name, given, dir, path, passed, takes_room)                                    \
    int name given                                                                                 \
    {                                                                                              \
        char into[PATH_MAX];                                                                       \
        const char *found;                                                                         \
        int done;                                                                                  \
        REAL(int, name, given);                                                                    \
        if (!(found = below(dir, path, into)))                                                     \
            return call passed;                                                                    \
        lock();                                                                                    \
        done = fails(#name, takes_room, 0) ? -1 : call passed;                                     \
        if (!done)                                                                                 \
            note_path(kind, 0, 0, found, NULL);                                                    \
        unlock();                                                                                  \
        return done;                                                                               \
    }
NAMED('u', unlink, (const char *path), AT_FDCWD, path, (path), 0)
NAMED(flags & AT_REMOVEDIR ? 'd' : 'u', unlinkat, (int dir, const char *path, int flags), dir, path,
      (dir, path, flags), 0)
NAMED('d', rmdir, (const char *path), AT_FDCWD, path, (path), 0)
NAMED('m', mkdir, (const char *path, mode_t mode), AT_FDCWD, path, (path, mode), 1)
NAMED('m', mkdirat, (int dir, const char *path, mode_t mode), dir, path, (dir, path, mode), 1)

int remove(const char *path)
{
    int done = unlink(path);
    return done && (errno == EISDIR || errno == EPERM) ? rmdir(path) : done;
}

/* A call about two names. What is moved out of the folder is removed from it. */
#define MOVED(kind, name, given, from, path, to, target, passed)                                   \
    int name given                                                                                 \
    {                                                                                              \
        char first[PATH_MAX], second[PATH_MAX];                                                    \
        const char *old, *new;                                                                     \
        int done;                                                                                  \
        REAL(int, name, given);                                                                    \
        old = below(from, path, first);                                                            \
        new = below(to, target, second);                                                           \
        if (!old && !new)                                                                          \
            return call passed;                                                                    \
        lock();                                                                                    \
        done = fails(#name, kind == 'l', 0) ? -1 : call passed;                                    \
        if (!done && old && new)                                                                   \
            note_path(kind, 0, 0, old, new);                                                       \
        else if (!done && old && (kind) == 'r')                                                      \
            note_path('u', 0, 0, old, NULL);                                                       \
        unlock();                                                                                  \
        return done;                                                                               \
    }
MOVED('r', rename, (const char *old_, const char *new_), AT_FDCWD, old_, AT_FDCWD, new_, (old_, new_))
MOVED('r', renameat, (int from, const char *old_, int to, const char *new_), from, old_, to, new_,
      (from, old_, to, new_))
MOVED((flags & 2 ? 'x' : 'r'), renameat2, (int from, const char *old_, int to, const char *new_, unsigned flags),
      from, old_, to, new_, (from, old_, to, new_, flags))
MOVED('l', link, (const char *old_, const char *new_), AT_FDCWD, old_, AT_FDCWD, new_, (old_, new_))
MOVED('l', linkat, (int from, const char *old_, int to, const char *new_, int flags), from, old_, to, new_,
      (from, old_, to, new_, flags))

#define MAPPED(name, offset_t)                                                                     \
    void *name(void *place, size_t size, int rights, int flags, int fd, offset_t at)               \
    {                                                                                              \
        REAL(void *, name, (void *, size_t, int, int, int, offset_t));                             \
        if ((flags & MAP_SHARED) && (rights & PROT_WRITE) && !(flags & MAP_ANONYMOUS) &&           \
            number_of(fd)) {                                                                       \
            lock();                                                                                \
            note('p', number_of(fd), 0, 0, 0);                                               \
            unlock();                                                                              \
        }                                                                                          \
        return call(place, size, rights, flags, fd, at);                                           \
    }
MAPPED(mmap, off_t)
MAPPED(mmap64, off64_t)

/* Copies inside of the system become reads and writes. */
static ssize_t copied(int to, off64_t *target, int from, off64_t *source, size_t size)
{
    char *data = malloc(1 << 16);
    ssize_t whole = 0, some = 0;
    if (!data)
        return -1;
    while ((size_t)whole < size) {
        size_t wanted = size - whole < 1 << 16 ? size - whole : 1 << 16;
        some = source ? pread64(from, data, wanted, *source) : read(from, data, wanted);
        if (some <= 0)
            break;
        some = target ? pwrite64(to, data, some, *target) : write(to, data, some);
        if (some <= 0)
            break;
        if (source)
            *source += some;
        if (target)
            *target += some;
        whole += some;
    }
    free(data);
    return whole || !some ? whole : -1;
}

#define SENT(name, offset_t)                                                                       \
    ssize_t name(int to, int from, offset_t *at, size_t size)                                      \
    {                                                                                              \
        off64_t where = at ? *at : 0;                                                              \
        ssize_t done;                                                                              \
        REAL(ssize_t, name, (int, int, offset_t *, size_t));                                       \
        if (!number_of(to))                                                                        \
            return call(to, from, at, size);                                                       \
        done = copied(to, NULL, from, at ? &where : NULL, size);                                   \
        if (at)                                                                                    \
            *at = where;                                                                           \
        return done;                                                                               \
    }
SENT(sendfile, off_t)
SENT(sendfile64, off64_t)

ssize_t copy_file_range(int from, off64_t *source, int to, off64_t *target, size_t size, unsigned flags)
{
    REAL(ssize_t, copy_file_range, (int, off64_t *, int, off64_t *, size_t, unsigned));
    if (!number_of(to))
        return call(from, source, to, target, size, flags);
    return copied(to, target, from, source, size);
}

/* Streams of C call the system past every preloaded library: those that write into the folder, and
 * standard output, become streams that call the functions above. */
#define STREAMS 1024
static struct {
    FILE *stream;
    int fd;
} streams[STREAMS];

static ssize_t stream_read(void *fd, char *data, size_t size) { return read((intptr_t)fd, data, size); }

static ssize_t stream_write(void *fd, const char *data, size_t size)
{
    ssize_t done = write((intptr_t)fd, data, size);
    return done < 0 ? 0 : done;
}

static int stream_seek(void *fd, off64_t *at, int whence)
{
    off64_t found = lseek64((intptr_t)fd, *at, whence);
    if (found < 0)
        return -1;
    *at = found;
    return 0;
}

static int stream_close(void *fd)
{
    int number;
    for (number = 0; number < STREAMS; number++)
        if (streams[number].stream && streams[number].fd == (intptr_t)fd)
            streams[number].stream = NULL;
    return close((intptr_t)fd);
}

static FILE *streamed(int fd, const char *mode)
{
    cookie_io_functions_t calls = {stream_read, stream_write, stream_seek, stream_close};
    FILE *made = fopencookie((void *)(intptr_t)fd, mode, calls);
    int number;
    for (number = 0; made && number < STREAMS; number++)
        if (__sync_bool_compare_and_swap(&streams[number].stream, NULL, made)) {
            streams[number].fd = fd;
            break;
        }
    return made;
}

#define FOPEN(name)                                                                                \
    FILE *name(const char *path, const char *mode)                                                 \
    {                                                                                              \
        char into[PATH_MAX];                                                                       \
        int fd, flags = strchr(mode, '+') ? O_RDWR : O_WRONLY;                                     \
        REAL(FILE *, name, (const char *, const char *));                                          \
        if (!strpbrk(mode, "wa+") || !head || (!below(AT_FDCWD, path, into) && strcmp(into, head->acks))) \
            return call(path, mode);                                                               \
        flags |= *mode == 'w' ? O_CREAT | O_TRUNC : *mode == 'a' ? O_CREAT | O_APPEND : 0;         \
        flags |= (strchr(mode, 'x') ? O_EXCL : 0) | (strchr(mode, 'e') ? O_CLOEXEC : 0);           \
        fd = open(path, flags, 0666);                                                              \
        return fd < 0 ? NULL : streamed(fd, mode);                                                 \
    }
FOPEN(fopen)
FOPEN(fopen64)

FILE *fdopen(int fd, const char *mode)
{
    REAL(FILE *, fdopen, (int, const char *));
    return strpbrk(mode, "wa+") && (number_of(fd) || acknowledges(fd)) ? streamed(fd, mode) : call(fd, mode);
}

#define FILENO(name)                                                                               \
    int name(FILE *stream)                                                                         \
    {                                                                                              \
        int number;                                                                                \
        REAL(int, name, (FILE *));                                                                 \
        for (number = 0; number < STREAMS; number++)                                               \
            if (streams[number].stream == stream)                                                  \
                return streams[number].fd;                                                         \
        return call(stream);                                                                       \
    }
FILENO(fileno)
FILENO(fileno_unlocked)

void record_streams(void)
{
    if (acknowledges(1))
        stdout = streamed(1, "w");
}
