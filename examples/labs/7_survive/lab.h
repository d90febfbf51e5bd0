/* Lab 7: a training run that is killed 20 times, and the disk that it saves to. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { WEIGHTS = 2048 };
typedef struct lab_state { /* without padding */
    int64_t step;
    uint64_t random; /* of the sampler */
    float w[WEIGHTS], m[WEIGHTS], v[WEIGHTS];
} lab_state;

/* Ticks of a training step, of a sync, and of any other call; a write takes a tick per 64 bytes, rounded up. The last
 * number is the mean time between two kills. */
enum { STEP_TICKS = 100, SYNC_TICKS = 20, CALL_TICKS = 1, KILL_TICKS = 8000 };

/* Files of one folder; names have no '/'. Results: -1 after a failure; a write or a read returns the bytes.
 * A kill stops the program inside a call: of a write, a part may be done. Half of the kills are power cuts: then what
 * was written and not synced is lost, although the file and its name stay. A rename replaces the file that has the
 * name. It happens at once or not at all, and survives a power cut. (On a real disk, fsync the folder, too.) */
int lab_create(const char *name); /* for writing; an old file of that name is emptied */
int lab_open(const char *name);   /* for reading */
int64_t lab_write(int file, const void *data, int64_t bytes);
int64_t lab_read(int file, void *data, int64_t bytes);
int lab_sync(int file);
int lab_close(int file);
int lab_rename(const char *from, const char *to);
int lab_remove(const char *name);

/* What you write. 1: done. 0: not; load_state then leaves *s as it was, and training begins at step 0. */
int save_state(const lab_state *s);
int load_state(lab_state *s);
int save_interval(void); /* steps between two calls of save_state */
