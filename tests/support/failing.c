/* Preloaded into a test's process: system calls about files of one folder fail when they are told to.
 *
 * fail_below(path): which folder, and all whose paths begin so. fail_at(n, number, lasts): the n-th such call from now on fails with
 * that errno, and if `lasts` all that follow; 0: none does. fail_name(): the first that failed, "" for
 * none. Calls of LMDB count as those of Python do. fail_only(name): no other calls count, "": all do.
 * With a number below 0 the call is not refused: that signal reaches the process before it is made.
 * With number 0 only calls count that write more than a byte: half of the bytes are written, and told.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 65536
#define PARTS 1024 /* of one call, which is all that the system takes */

static char folder[4096];
static unsigned char ours[FILES];
static int at, number, lasts, counted;
static char name_of_first[64];
static char only[64];

void fail_below(const char *path) { strncpy(folder, path, sizeof folder - 1); }

void fail_only(const char *name) { strncpy(only, name, sizeof only - 1); }

void fail_at(int n, int with, int on)
{
    counted = 0;
    name_of_first[0] = 0;
    number = with;
    lasts = on;
    at = n;
}

const char *fail_name(void) { return name_of_first; }

static int is_turn(const char *name)
{
    int now;
    if (!at || (only[0] && strncmp(name, only, strlen(only))))
        return 0;
    now = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
    if (now != at && !(lasts && now > at))
        return 0;
    if (!name_of_first[0])
        strncpy(name_of_first, name, sizeof name_of_first - 1);
    return 1;
}

static int fails(const char *name)
{
    if (!number || !is_turn(name))
        return 0;
    if (number < 0) {
        kill(getpid(), -number);
        return 0;
    }
    errno = number;
    return 1;
}

/* How much of a write of `size` bytes is to be made. */
static size_t kept(const char *name, size_t size)
{
    return number || size < 2 || !is_turn(name) ? size : size / 2;
}

/* The same of parts: `less` has those that are left; returns how many. */
static int kept_parts(const char *name, const struct iovec *parts, int count, struct iovec *less)
{
    size_t size = 0, left;
    int i;
    for (i = 0; i < count; i++)
        size += parts[i].iov_len;
    left = kept(name, size);
    for (i = 0; i < count && (left || !i); i++) {
        less[i] = parts[i];
        if (less[i].iov_len > left)
            less[i].iov_len = left;
        left -= less[i].iov_len;
    }
    return i;
}

static int is_ours(int fd) { return fd >= 0 && fd < FILES && ours[fd]; }

static int is_below(int dir, const char *path)
{
    if (!folder[0] || !path)
        return 0;
    if (path[0] == '/')
        return !strncmp(path, folder, strlen(folder));
    return dir != AT_FDCWD && is_ours(dir);
}

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static int note(int fd)
{
    if (fd >= 0 && fd < FILES)
        ours[fd] = 1;
    return fd;
}

#define MODE(flags, mode)                                                                          \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                         \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode = va_arg(rest, mode_t);                                                               \
        va_end(rest);                                                                              \
    }

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        static int (*call)(const char *, int, ...);                                                \
        MODE(flags, mode)                                                                          \
        if (!call)                                                                                 \
            call = real(#name);                                                                    \
        if (!is_below(AT_FDCWD, path))                                                             \
            return call(path, flags, mode);                                                        \
        return fails(#name) ? -1 : note(call(path, flags, mode));                                  \
    }

#define OPENAT(name)                                                                               \
    int name(int dir, const char *path, int flags, ...)                                            \
    {                                                                                              \
        static int (*call)(int, const char *, int, ...);                                           \
        MODE(flags, mode)                                                                          \
        if (!call)                                                                                 \
            call = real(#name);                                                                    \
        if (!is_below(dir, path))                                                                  \
            return call(dir, path, flags, mode);                                                   \
        return fails(#name) ? -1 : note(call(dir, path, flags, mode));                             \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* A call about a descriptor. */
#define OF_FD(kind, name, given, passed)                                                           \
    kind name given                                                                                \
    {                                                                                              \
        static kind(*call) given;                                                                  \
        if (!call)                                                                                 \
            call = real(#name);                                                                    \
        return is_ours(fd) && fails(#name) ? (kind)-1 : call passed;                               \
    }

OF_FD(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))
OF_FD(ssize_t, pread, (int fd, void *data, size_t size, off_t where), (fd, data, size, where))
OF_FD(ssize_t, pread64, (int fd, void *data, size_t size, off_t where), (fd, data, size, where))
OF_FD(int, ftruncate, (int fd, off_t size), (fd, size))
OF_FD(int, ftruncate64, (int fd, off_t size), (fd, size))
OF_FD(int, fsync, (int fd), (fd))
OF_FD(int, fdatasync, (int fd), (fd))
OF_FD(int, flock, (int fd, int what), (fd, what))
OF_FD(int, fchmod, (int fd, mode_t mode), (fd, mode))

/* A call that writes; `less` makes it short. */
#define WRITES(name, given, less, passed)                                                          \
    ssize_t name given                                                                             \
    {                                                                                              \
        static ssize_t(*call) given;                                                               \
        struct iovec some[PARTS];                                                                  \
        (void)some;                                                                                \
        if (!call)                                                                                 \
            call = real(#name);                                                                    \
        if (is_ours(fd)) {                                                                         \
            if (fails(#name))                                                                      \
                return -1;                                                                         \
            less(#name);                                                                           \
        }                                                                                          \
        return call passed;                                                                        \
    }

#define BYTES(name) size = kept(name, size)
#define SOME(name) count = kept_parts(name, parts, count, some), parts = some

WRITES(write, (int fd, const void *data, size_t size), BYTES, (fd, data, size))
WRITES(pwrite, (int fd, const void *data, size_t size, off_t where), BYTES, (fd, data, size, where))
WRITES(pwrite64, (int fd, const void *data, size_t size, off_t where), BYTES, (fd, data, size, where))
WRITES(writev, (int fd, const struct iovec *parts, int count), SOME, (fd, parts, count))
WRITES(pwritev, (int fd, const struct iovec *parts, int count, off_t where), SOME, (fd, parts, count, where))
WRITES(pwritev64, (int fd, const struct iovec *parts, int count, off_t where), SOME, (fd, parts, count, where))
WRITES(pwritev2, (int fd, const struct iovec *parts, int count, off_t where, int flags), SOME, (fd, parts, count, where, flags))
WRITES(pwritev64v2, (int fd, const struct iovec *parts, int count, off_t where, int flags), SOME, (fd, parts, count, where, flags))

/* A call about a path. */
#define OF_PATH(name, given, dir, path, passed)                                                    \
    int name given                                                                                 \
    {                                                                                              \
        static int(*call) given;                                                                   \
        if (!call)                                                                                 \
            call = real(#name);                                                                    \
        return is_below(dir, path) && fails(#name) ? -1 : call passed;                             \
    }

OF_PATH(unlink, (const char *path), AT_FDCWD, path, (path))
OF_PATH(unlinkat, (int dir, const char *path, int flags), dir, path, (dir, path, flags))
OF_PATH(rmdir, (const char *path), AT_FDCWD, path, (path))
OF_PATH(mkdir, (const char *path, mode_t mode), AT_FDCWD, path, (path, mode))
OF_PATH(mkdirat, (int dir, const char *path, mode_t mode), dir, path, (dir, path, mode))
OF_PATH(rename, (const char *path, const char *to), AT_FDCWD, path, (path, to))
OF_PATH(renameat, (int dir, const char *path, int to, const char *name), dir, path, (dir, path, to, name))

int close(int fd)
{
    static int (*call)(int);
    int mine = is_ours(fd), done;
    if (!call)
        call = real("close");
    if (fd >= 0 && fd < FILES)
        ours[fd] = 0;
    done = call(fd); /* even one that fails gives the descriptor back */
    return mine && fails("close") ? -1 : done;
}

#define MMAP(name)                                                                                 \
    void *name(void *place, size_t size, int rights, int flags, int fd, off_t where)               \
    {                                                                                              \
        static void *(*call)(void *, size_t, int, int, int, off_t);                                \
        if (!call)                                                                                 \
            call = real(#name);                                                                    \
        if (is_ours(fd) && fails(#name))                                                           \
            return MAP_FAILED;                                                                     \
        return call(place, size, rights, flags, fd, where);                                        \
    }

MMAP(mmap)
MMAP(mmap64)

DIR *opendir(const char *path)
{
    static DIR *(*call)(const char *);
    if (!call)
        call = real("opendir");
    return is_below(AT_FDCWD, path) && fails("opendir") ? NULL : call(path);
}
