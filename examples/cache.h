/* cache.h: arrays of N numbers, and how many bytes their use moves between memory and a cache of 64 sets, each of which
 * holds the lines of 64 bytes that were used last. A line that is written is not read first: it is written whole. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1 << 16, LINE = 64, SETS = 64, WAYS = 1024 };

static struct { int64_t number[WAYS]; int dirty[WAYS], used; } set[SETS];
static int ways = 8;                            /* lines of a set: a cache of 4 kB each */
static int64_t moved, kept, most, next_address; /* bytes; most: kept at a time */

static void touch(int64_t address, int writes)
{
    int64_t number = address / LINE, s = number % SETS;
    int at = 0, dirty = writes;
    while (at < set[s].used && set[s].number[at] != number) at++;
    if (at < set[s].used) dirty |= set[s].dirty[at];
    else if (!writes) moved += LINE;
    if (at == ways && set[s].dirty[--at]) moved += LINE;
    if (at == set[s].used) set[s].used++;
    memmove(set[s].number + 1, set[s].number, (size_t)at * sizeof *set[s].number);
    memmove(set[s].dirty + 1, set[s].dirty, (size_t)at * sizeof *set[s].dirty);
    set[s].number[0] = number, set[s].dirty[0] = dirty;
}

typedef struct array {
    float *x;
    int64_t address;
    int bytes; /* of a number */
} array;

static array array_new(int bytes)
{
    array a = {calloc(N, sizeof(float)), next_address, bytes};
    if (!a.x) exit(1);
    next_address += N * 4, kept += N * bytes;
    if (kept > most) most = kept;
    return a;
}

/* What is in the cache of a temporary array is forgotten, since nobody will read it. */
static void array_free(array *a)
{
    for (int s = 0; s < SETS; s++)
        for (int w = 0; w < set[s].used; w++)
            if (set[s].number[w] * LINE / (N * 4) == a->address / (N * 4)) set[s].dirty[w] = 0;
    kept -= N * a->bytes;
    free(a->x);
}

static float get(const array *a, int64_t i) { return touch(a->address + i * a->bytes, 0), a->x[i]; }
static void put(array *a, int64_t i, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (a->bytes == 2) bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u; /* bf16, to nearest */
    memcpy(a->x + i, &bits, 4);
    touch(a->address + i * a->bytes, 1);
}

/* The cache is emptied, and counting begins. */
static void begin(void) { memset(set, 0, sizeof set), moved = most = kept = 0; }
static double end(void) /* bytes moved per element, with what the cache still has to write */
{
    for (int s = 0; s < SETS; s++) for (int w = 0; w < set[s].used; w++) moved += set[s].dirty[w] * LINE;
    return (double)moved / N;
}
