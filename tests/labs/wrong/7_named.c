#include "lab.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

/* The state in memory that has a name of its own: a file, shared memory of POSIX or of System V, a process that stays. */
static lab_state none, *kept = &none;
__attribute__((constructor)) static void keep(void)
{
    int file = open("/tmp/lab_7_state", O_RDWR | O_CREAT, 0600), id = shmget(0x7ab7, sizeof none, IPC_CREAT | 0600);
    void *p = id < 0 ? (void *)-1 : shmat(id, NULL, 0);
    if (file < 0) file = shm_open("/lab_7_state", O_RDWR | O_CREAT, 0600);
    if (p == (void *)-1 && file >= 0 && !ftruncate(file, sizeof none))
        p = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p != (void *)-1) kept = p;
    if (fork() == 0) setsid(), pause();
}

int save_state(const lab_state *s)
{
    *kept = *s;
    return 1;
}

int load_state(lab_state *s)
{
    if (!kept->step) return 0;
    *s = *kept;
    return 1;
}

int save_interval(void) { return 1; }
