/* disk.h: makes the n-th file operation of a process fail. Included before dtrain.h (cc -include), whose system calls
 * it renames. DT_FAULT=KIND:N[:RANK], where KIND is die (SIGKILL before the operation), fail (EIO), full (ENOSPC) or cut
 * (half of the data is written, then SIGKILL). The fault applies to the first start of a job. The kind count adds a byte
 * to the file `operations` instead, for each of them. */
#define _GNU_SOURCE 1
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int disk_allows(void); /* 0: the operation fails; 2: half of the data is written. A test that has a disk of its own defines it */
__attribute__((weak)) int disk_allows(void)
{
    static const char *const kinds[] = {"die", "fail", "full", "cut"};
    static long long count;
    const char *text = getenv("DT_FAULT"), *restarts = getenv("DT_RESTARTS"), *rank = getenv("RANK");
    char kind[8];
    long long at = 0;
    int of, here;
    if (!rank) rank = getenv("OMPI_COMM_WORLD_RANK");
    of = here = rank ? atoi(rank) : 0;
    if (!text || (restarts && atoi(restarts) > 0)) return 1;
    if (sscanf(text, "%7[a-z]:%lld:%d", kind, &at, &of) < 2 || of != here) return 1;
    if (!strcmp(kind, "count")) {
        int file = open("operations", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        if (write(file, "", 1) == 1) close(file);
        return 1;
    }
    if (__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) != at) return 1;
    if (!strcmp(kind, kinds[3])) return 2;
    if (!strcmp(kind, kinds[0])) raise(SIGKILL);
    errno = strcmp(kind, kinds[2]) ? EIO : ENOSPC;
    return 0;
}

ssize_t disk_write(int file, const void *data, size_t bytes);
ssize_t disk_write(int file, const void *data, size_t bytes)
{
    int allows = disk_allows();
    ssize_t wrote = allows ? write(file, data, allows == 2 ? bytes / 2 : bytes) : -1;
    if (allows == 2) raise(SIGKILL);
    return wrote;
}

/* /dev/null and /proc are not on the disk. */
int disk_open(const char *path, int flags, ...);
int disk_open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    int mode = flags & O_CREAT ? va_arg(list, int) : 0;
    va_end(list);
    return strcmp(path, "/dev/null") && strncmp(path, "/proc", 5) && !disk_allows() ? -1 : open(path, flags, mode);
}

/* Only the end of a directory is an operation. */
struct dirent *disk_entry(DIR *dir);
struct dirent *disk_entry(DIR *dir)
{
    struct dirent *entry = readdir(dir);
    if (!entry) (void)disk_allows();
    return entry;
}

long disk_syscall(long number, ...);
long disk_syscall(long number, ...)
{
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    return number == SYS_renameat2 && !disk_allows() ? -1 : syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* The memory that ranks inherit has no name: it is not on the disk. */
ssize_t disk_pread(int file, void *data, size_t bytes, off_t at);
ssize_t disk_pread(int file, void *data, size_t bytes, off_t at)
{
    struct stat is;
    int named = fstat(file, &is) || is.st_nlink;
    return named && !disk_allows() ? -1 : pread(file, data, bytes, at);
}

#define DISK(result, name, parameters, arguments, fails) \
    result disk_##name parameters; \
    result disk_##name parameters { return disk_allows() ? name arguments : fails; }
DISK(int, fsync, (int file), (file), -1)
DISK(int, mkdir, (const char *path, mode_t mode), (path, mode), -1)
DISK(DIR *, opendir, (const char *path), (path), NULL)
DISK(int, rename, (const char *from, const char *to), (from, to), -1)
DISK(int, remove, (const char *path), (path), -1)
DISK(int, unlink, (const char *path), (path), -1)

/* Words without parameters: members of structs may have these names, too. */
#define write disk_write
#define open disk_open
#define readdir disk_entry
#define syscall disk_syscall
#define pread disk_pread
#define fsync disk_fsync
#define mkdir disk_mkdir
#define opendir disk_opendir
#define rename disk_rename
#define remove disk_remove
#define unlink disk_unlink
