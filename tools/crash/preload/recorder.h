/* What the two files of the recorder share. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 65536
#define HEAD 16384
#define LONG (PATH_MAX * 2)

struct head {
    uint64_t used, room; /* bytes of the trace; how many there can be */
    uint64_t is_full;    /* something did not fit */
    uint64_t stdout_device, stdout_inode;
    uint64_t fault_at; /* 0: none */
    uint64_t fault_kind; /* 1: errno for every call, 2: errno for what takes room, 3: short write, 4: SIGINT */
    uint64_t fault_errno;
    uint64_t fault_lasts; /* later ones fail, too */
    uint64_t counted;    /* calls so far that could fail */
    uint64_t files;      /* numbers of open files given so far */
    uint64_t state;      /* of the lock: 0 nothing, 1 being made, 2 there */
    uint64_t is_over;    /* nothing more is done from now on */
    uint64_t holding;    /* somebody is between a call and its note */
    char folder[PATH_MAX], acks[PATH_MAX];
    char failed[64]; /* the call that failed first */
    pthread_mutex_t lock;
};

/* kind: o open, w write, t new size, s sync begins, e it ends, f it failed, S, E: sync of everything,
 * r rename, x exchange, l link, u unlink, m mkdir, d rmdir, p mapped for writing, a acknowledgement,
 * q a process began */
struct note {
    char kind, pad[3];
    uint32_t file;
    uint64_t at;
    uint32_t size, more; /* bytes that follow: data or path; second path */
};

/* Not to be taken for the program's own functions of these names. */
#pragma GCC visibility push(hidden)
extern struct head *head;

void *real(const char *name);
void lock(void);
void unlock(void);
char *note(char kind, uint32_t file, uint64_t at, size_t size, size_t more);
void note_path(char kind, uint32_t file, uint64_t at, const char *path, const char *second);
uint32_t number_of(int fd);
int acknowledges(int fd);
int fails(const char *name, int takes_room, size_t size);
void wrote(int fd, const struct iovec *parts, int count, ssize_t size, off64_t at);
void opened(int fd, int flags);
const char *below(int dir, const char *path, char *into);
void record_streams(void); /* standard output of C becomes a stream that is recorded */
#pragma GCC visibility pop

#define REAL(kind, name, given)                                                                    \
    static kind(*call) given;                                                                      \
    if (!call)                                                                                     \
        call = real(#name)

