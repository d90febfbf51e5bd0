/* disk.h: makes the n-th file operation of a process fail. Included before dtrain.h (cc -include): DT_FAULT=KIND:N[:RANK],
 * where KIND is die (SIGKILL before the operation), fail (EIO), full (ENOSPC) or cut (half of the data is written, then
 * SIGKILL). The fault applies to the first start of a job. The kind count adds a byte to the file `operations` instead,
 * for each of them. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int disk_allows(void); /* 0: the operation fails; 2: half of the data is written. A test that has a disk of its own defines it */
#define DT__FILE_ALLOWS() disk_allows()
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
