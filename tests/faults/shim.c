/* Makes a process meet faults: preloaded, it stands between the process and the C library.
 *
 * It watches the files in one folder. What goes wrong is set in a control file that the harness shares (shim.py, struct
 * control): one rule for reads, writes and syncs, the space that is left on the disk, and the offset of the wall clock.
 * With HOLTMQ_FAULTS_LOG it also records every change of these files, every sync, and what is sent to clients, in the order
 * in which they happened (recording.py).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { READ = 1, WRITE = 2, SYNC = 4 };
enum { SHORT = 0, DIE = -1, SWALLOW = -2 }; /* instead of an errno */
enum { NAME_SIZE = 64, MOST_FILES = 65536, MOST_PIECES = 64 };

struct control {
    int64_t clock_offset_ns;
    int64_t sync_us; /* how long a sync takes */
    int64_t space; /* bytes by which the files may still grow; negative: any number */
    int64_t skip;  /* calls to let through before the rule applies */
    int64_t left;  /* calls to which the rule still applies */
    int64_t hits;  /* calls to which it applied */
    int32_t calls; /* READ, WRITE, SYNC */
    int32_t error; /* an errno, or one of the values above */
    char ending[16]; /* of the names of the files that it applies to */
    int64_t failures; /* syncs that have failed */
    char failed[64];  /* the file of the last of them */
};

struct record {
    int8_t kind;
    uint8_t name_size;
    uint16_t unused;
    int32_t process;
    int32_t stream;
    int32_t size; /* of the data, which follows the name */
    int64_t offset;
};

static struct control nothing = {.space = -1};
static struct control *control = &nothing;
static char folder[4096];
static size_t folder_size;
static int log_file = -1;
static char names[MOST_FILES][NAME_SIZE]; /* of the watched files that are open, by descriptor */
static int32_t streams[MOST_FILES];       /* the numbers of the clients to whom descriptors lead, from 1 */
static int32_t clients;                   /* the number of the last one */
static int64_t seen[MOST_FILES];          /* the failures that a descriptor has reported, or that were before it */

__attribute__((constructor)) static void set_up(void) {
    const char *path = getenv("HOLTMQ_FAULTS_CONTROL"), *watched = getenv("HOLTMQ_FAULTS_FOLDER");
    if (path == NULL || watched == NULL || strlen(watched) >= sizeof folder)
        return;
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    void *shared = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (shared != MAP_FAILED)
        control = shared;
    folder_size = strlen(strcpy(folder, watched));
    if ((path = getenv("HOLTMQ_FAULTS_LOG")) != NULL)
        log_file = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

/* The name of a path within the watched folder, "." for the folder itself, or NULL. */
static const char *name_of(const char *path) {
    if (folder_size == 0 || strncmp(path, folder, folder_size) != 0)
        return NULL;
    if (path[folder_size] == '\0')
        return ".";
    return path[folder_size] == '/' && strlen(path + folder_size) <= NAME_SIZE ? path + folder_size + 1 : NULL;
}

static const char *watched(int file) {
    return file >= 0 && file < MOST_FILES && names[file][0] ? names[file] : NULL;
}

/* Held while data is sent to a client and recorded: what a broker writes because of the answer comes later in the recording. */
static pthread_mutex_t sending = PTHREAD_MUTEX_INITIALIZER;

static void record(char kind, int stream, const char *name, int64_t offset, const struct iovec *data, int count, size_t size) {
    if (log_file < 0)
        return;
    struct record head = {kind, name ? strlen(name) : 0, 0, getpid(), stream, size, offset};
    struct iovec parts[2 + MOST_PIECES] = {{&head, sizeof head}, {(void *)name, head.name_size}};
    int used = 2;
    for (int i = 0; i < count && size > 0; i++) {
        size_t part = data[i].iov_len < size ? data[i].iov_len : size;
        parts[used++] = (struct iovec){data[i].iov_base, part};
        size -= part;
    }
    int before = errno, waits = clients > 0 && kind != 's';
    if (waits)
        pthread_mutex_lock(&sending);
    syscall(SYS_writev, log_file, parts, used);
    if (waits)
        pthread_mutex_unlock(&sending);
    errno = before;
}

static void record_file(char kind, const char *name, int64_t offset) { record(kind, -1, name, offset, NULL, 0, 0); }

/* Whether the rule applies to this call. */
static int applies(int call, const char *name) {
    if (!(control->calls & call) || __atomic_load_n(&control->left, __ATOMIC_SEQ_CST) <= 0)
        return 0;
    size_t size = strlen(name), ending = strnlen(control->ending, sizeof control->ending);
    if (ending > size || strncmp(name + size - ending, control->ending, ending) != 0)
        return 0;
    if (__atomic_fetch_sub(&control->skip, 1, __ATOMIC_SEQ_CST) > 0)
        return 0;
    if (__atomic_fetch_sub(&control->left, 1, __ATOMIC_SEQ_CST) <= 0)
        return 0;
    __atomic_fetch_add(&control->hits, 1, __ATOMIC_SEQ_CST);
    return 1;
}

static ssize_t failed(int error) {
    errno = error;
    return -1;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    pause();
}

/* Take the space for a file that grows to `end`. Return the number of bytes that do not fit. */
static int64_t take_space(int file, int64_t end) {
    struct stat about;
    if (control->space < 0 || fstat(file, &about) != 0)
        return 0;
    int64_t growth = end - about.st_size;
    if (growth <= 0)
        return 0;
    int64_t had = __atomic_fetch_sub(&control->space, growth, __ATOMIC_SEQ_CST);
    if (had >= growth)
        return 0;
    int64_t missing = growth - (had > 0 ? had : 0);
    __atomic_fetch_add(&control->space, missing, __ATOMIC_SEQ_CST);
    return missing;
}

static void give_space(int64_t size) {
    if (control->space >= 0)
        __atomic_fetch_add(&control->space, size, __ATOMIC_SEQ_CST);
}

static ssize_t write_watched(int file, const char *name, const void *data, size_t size, int64_t offset, int moves) {
    int64_t at = moves ? lseek(file, 0, SEEK_CUR) : offset;
    int dies = 0;
    if (applies(WRITE, name)) {
        if (control->error > 0)
            return failed(control->error);
        dies = control->error == DIE;
        size = size > 1 ? size / 2 : size;
    }
    int64_t missing = take_space(file, at + (int64_t)size);
    if (missing >= (int64_t)size)
        return failed(ENOSPC);
    size -= missing;
    ssize_t done = moves ? syscall(SYS_write, file, data, size) : syscall(SYS_pwrite64, file, data, size, offset);
    if (done > 0)
        record('w', -1, name, at, &(struct iovec){(void *)data, done}, 1, done);
    if (dies)
        die();
    return done;
}

static ssize_t read_watched(int file, const char *name, void *data, size_t size, int64_t offset, int moves) {
    if (applies(READ, name)) {
        if (control->error > 0)
            return failed(control->error);
        if (control->error == DIE)
            die();
        size = size > 1 ? size / 2 : size;
    }
    return moves ? syscall(SYS_read, file, data, size) : syscall(SYS_pread64, file, data, size, offset);
}

/* Linux reports a failed write once to every open descriptor of the file, not only to the one by which it was noticed. */
static int has_failed(int file, const char *name) {
    int64_t failures = __atomic_load_n(&control->failures, __ATOMIC_SEQ_CST), before = seen[file];
    seen[file] = failures;
    return failures != before && strcmp(control->failed, name) == 0;
}

/* Sync no disk, but take the time of one: a killed process loses nothing by it, and what a power cut leaves is computed. */
static int sync_watched(int file, const char *name) {
    if (has_failed(file, name))
        return failed(EIO);
    if (applies(SYNC, name)) {
        if (control->error == SWALLOW)
            return 0;
        if (control->error == DIE)
            die();
        record_file('f', name, 0);
        strcpy(control->failed, name);
        seen[file] = __atomic_add_fetch(&control->failures, 1, __ATOMIC_SEQ_CST);
        return failed(control->error > 0 ? control->error : EIO);
    }
    record('b', file, name, 0, NULL, 0, 0);
    if (control->sync_us > 0)
        usleep(control->sync_us);
    if (has_failed(file, name))
        return failed(EIO);
    record('e', file, name, 0, NULL, 0, 0);
    return 0;
}

/* While a process opens, deletes or renames a file and records that, no other process does: no record of a write to a new file
 * may come before that of the file. A process that dies gives the lock back. */
static void lock_names(short kind) {
    struct flock whole = {.l_type = kind, .l_whence = SEEK_SET};
    int before = errno;
    while (log_file >= 0 && syscall(SYS_fcntl, log_file, F_SETLKW, &whole) != 0 && errno == EINTR)
        ;
    errno = before;
}

static int open_watched(int at, const char *path, int flags, mode_t mode) {
    const char *name = name_of(path);
    if (name)
        lock_names(F_WRLCK);
    int is_new = name && flags & O_CREAT && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0;
    int file = syscall(SYS_openat, at, path, flags, mode);
    if (file >= 0 && is_new)
        record_file('c', name, 0);
    if (file >= 0 && name && flags & O_TRUNC && !is_new)
        record_file('t', name, 0);
    if (name)
        lock_names(F_UNLCK);
    if (file < 0 || file >= MOST_FILES)
        return file;
    streams[file] = 0;
    seen[file] = control->failures;
    strcpy(names[file], name ? name : "");
    return file;
}

#define MODE(flags, mode)                                                                                                     \
    mode_t mode = 0;                                                                                                          \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                                                  \
        va_list more;                                                                                                         \
        va_start(more, flags);                                                                                                \
        mode = va_arg(more, mode_t);                                                                                          \
        va_end(more);                                                                                                         \
    }

int open(const char *path, int flags, ...) {
    MODE(flags, mode)
    return open_watched(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags, mode)
    return open_watched(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
int openat(int at, const char *path, int flags, ...) {
    MODE(flags, mode)
    return open_watched(at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
    MODE(flags, mode)
    return open_watched(at, path, flags | O_LARGEFILE, mode);
}

int close(int file) {
    if (file >= 0 && file < MOST_FILES)
        streams[file] = names[file][0] = 0;
    return syscall(SYS_close, file);
}

ssize_t read(int file, void *data, size_t size) {
    const char *name = watched(file);
    return name ? read_watched(file, name, data, size, 0, 1) : syscall(SYS_read, file, data, size);
}
ssize_t pread(int file, void *data, size_t size, off_t offset) {
    const char *name = watched(file);
    return name ? read_watched(file, name, data, size, offset, 0) : syscall(SYS_pread64, file, data, size, offset);
}
ssize_t pread64(int file, void *data, size_t size, off64_t offset) { return pread(file, data, size, offset); }

/* The number of a client to whom a descriptor leads, 0 for the harness's pipe, -1 for what tells nobody anything. */
static int32_t stream_of(int file) {
    struct stat about;
    if (log_file < 0 || file <= STDERR_FILENO || file >= MOST_FILES)
        return -1;
    if (streams[file])
        return streams[file];
    return fstat(file, &about) == 0 && S_ISFIFO(about.st_mode) ? 0 : -1;
}

static void record_sent(int32_t stream, ssize_t left, const struct iovec *data, int count) {
    for (; left > 0; data += MOST_PIECES, count -= MOST_PIECES) {
        int pieces = count < MOST_PIECES ? count : MOST_PIECES;
        ssize_t size = 0;
        for (int i = 0; i < pieces; i++)
            size += data[i].iov_len;
        size = size < left ? size : left;
        record('s', stream, NULL, 0, data, pieces, size);
        left -= size;
    }
}

/* Call the kernel to send data, and record what it took. */
#define SEND(file, data, count, call)                                                                                         \
    int32_t stream = stream_of(file);                                                                                         \
    if (stream > 0)                                                                                                           \
        pthread_mutex_lock(&sending);                                                                                         \
    ssize_t done = call;                                                                                                      \
    if (stream >= 0)                                                                                                          \
        record_sent(stream, done, data, count);                                                                               \
    if (stream > 0)                                                                                                           \
        pthread_mutex_unlock(&sending);                                                                                       \
    return done;

ssize_t write(int file, const void *data, size_t size) {
    const char *name = watched(file);
    if (name)
        return write_watched(file, name, data, size, 0, 1);
    SEND(file, (&(struct iovec){(void *)data, size}), 1, syscall(SYS_write, file, data, size))
}
ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
    const char *name = watched(file);
    return name ? write_watched(file, name, data, size, offset, 0) : syscall(SYS_pwrite64, file, data, size, offset);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) { return pwrite(file, data, size, offset); }
ssize_t pwritev(int file, const struct iovec *data, int count, off_t offset) {
    const char *name = watched(file);
    if (name == NULL)
        return syscall(SYS_pwritev, file, data, count, offset, 0);
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t done = write_watched(file, name, data[i].iov_base, data[i].iov_len, offset + total, 0);
        if (done < 0)
            return total > 0 ? total : done;
        total += done;
        if ((size_t)done < data[i].iov_len)
            break;
    }
    return total;
}
ssize_t pwritev64(int file, const struct iovec *data, int count, off64_t offset) { return pwritev(file, data, count, offset); }

int posix_fallocate(int file, off_t offset, off_t size) {
    if (watched(file) && take_space(file, offset + size) > 0)
        return ENOSPC;
    return syscall(SYS_fallocate, file, 0, offset, size) == 0 ? 0 : errno;
}
int posix_fallocate64(int file, off64_t offset, off64_t size) { return posix_fallocate(file, offset, size); }

ssize_t writev(int file, const struct iovec *data, int count) {
    SEND(file, data, count, syscall(SYS_writev, file, data, count))
}
ssize_t sendmsg(int file, const struct msghdr *message, int flags) {
    SEND(file, message->msg_iov, message->msg_iovlen, syscall(SYS_sendmsg, file, message, flags))
}
ssize_t send(int file, const void *data, size_t size, int flags) {
    SEND(file, (&(struct iovec){(void *)data, size}), 1, syscall(SYS_sendto, file, data, size, flags, NULL, 0))
}

int accept4(int listener, struct sockaddr *address, socklen_t *size, int flags) {
    int file = syscall(SYS_accept4, listener, address, size, flags);
    if (file >= 0 && file < MOST_FILES)
        streams[file] = __atomic_add_fetch(&clients, 1, __ATOMIC_SEQ_CST);
    return file;
}

/* A copy of a descriptor leads to the same client. */
static int copied(int from, int file) {
    if (from >= 0 && from < MOST_FILES && file >= 0 && file < MOST_FILES)
        streams[file] = streams[from];
    return file;
}
int dup(int file) { return copied(file, syscall(SYS_dup, file)); }
static int control_file(int file, int command, void *argument) {
    int result = syscall(SYS_fcntl, file, command, argument);
    return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? copied(file, result) : result;
}
#define FCNTL(name)                                                                                                           \
    int name(int file, int command, ...) {                                                                                    \
        va_list more;                                                                                                         \
        va_start(more, command);                                                                                              \
        void *argument = va_arg(more, void *);                                                                                \
        va_end(more);                                                                                                         \
        return control_file(file, command, argument);                                                                         \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

int fsync(int file) {
    const char *name = watched(file);
    return name ? sync_watched(file, name) : syscall(SYS_fsync, file);
}
int fdatasync(int file) {
    const char *name = watched(file);
    return name ? sync_watched(file, name) : syscall(SYS_fdatasync, file);
}

int ftruncate(int file, off_t size) {
    const char *name = watched(file);
    if (name == NULL)
        return syscall(SYS_ftruncate, file, size);
    struct stat about;
    if (applies(WRITE, name) && control->error > 0)
        return failed(control->error);
    if (take_space(file, size) > 0)
        return failed(ENOSPC);
    if (fstat(file, &about) == 0 && about.st_size > size)
        give_space(about.st_size - size);
    int result = syscall(SYS_ftruncate, file, size);
    if (result == 0)
        record_file('t', name, size);
    return result;
}
int ftruncate64(int file, off64_t size) { return ftruncate(file, size); }

int unlink(const char *path) {
    struct stat about;
    const char *name = name_of(path);
    int64_t size = name && stat(path, &about) == 0 ? about.st_size : 0;
    if (name)
        lock_names(F_WRLCK);
    int result = syscall(SYS_unlink, path);
    if (result == 0 && name) {
        give_space(size);
        record_file('u', name, 0);
    }
    if (name)
        lock_names(F_UNLCK);
    return result;
}

int rename(const char *from, const char *to) {
    const char *old = name_of(from), *name = name_of(to);
    int is_watched = old && name;
    if (is_watched)
        lock_names(F_WRLCK);
    int result = syscall(SYS_rename, from, to);
    if (result == 0 && is_watched)
        record('r', -1, old, 0, &(struct iovec){(void *)name, strlen(name)}, 1, strlen(name));
    if (is_watched)
        lock_names(F_UNLCK);
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && control->clock_offset_ns != 0) {
        int64_t moved = now->tv_sec * 1000000000LL + now->tv_nsec + control->clock_offset_ns;
        now->tv_sec = moved / 1000000000LL;
        now->tv_nsec = moved % 1000000000LL;
    }
    return result;
}
int gettimeofday(struct timeval *restrict now, __attribute__((unused)) void *restrict zone) {
    struct timespec precise;
    int result = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return result;
}
time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where)
        *where = now.tv_sec;
    return now.tv_sec;
}
