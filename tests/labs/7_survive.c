#include "lab.h"

/* Two files without a rename: a save overwrites the older one or the broken one. */
typedef struct slot {
    lab_state state;
    uint32_t sum;
    int good;
} slot;

static uint32_t crc32_of(const lab_state *s)
{
    const unsigned char *byte = (const unsigned char *)s;
    uint32_t c = ~0u;
    for (size_t i = 0; i < sizeof *s; i++) {
        c ^= byte[i];
        for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
    }
    return ~c;
}

static void read_slot(const char *name, slot *s)
{
    char more;
    int f = lab_open(name);
    s->good = f >= 0 && lab_read(f, &s->state, sizeof s->state) == sizeof s->state;
    s->good = s->good && lab_read(f, &s->sum, 4) == 4 && lab_read(f, &more, 1) == 0 && s->sum == crc32_of(&s->state);
    if (f >= 0) lab_close(f);
}

static slot a, b;

/* Which of the two is the newest good one; NULL: none. */
static slot *newest(void)
{
    read_slot("a", &a), read_slot("b", &b);
    if (a.good && b.good) return a.state.step > b.state.step ? &a : &b;
    return a.good ? &a : b.good ? &b : NULL;
}

int load_state(lab_state *s)
{
    slot *from = newest();
    if (from) *s = from->state;
    return from != NULL;
}

int save_state(const lab_state *s)
{
    int f = lab_create(newest() == &a ? "b" : "a");
    uint32_t sum = crc32_of(s);
    int fine = f >= 0 && lab_write(f, s, sizeof *s) == sizeof *s && lab_write(f, &sum, 4) == 4 && !lab_sync(f);
    if (f >= 0) lab_close(f);
    return fine;
}

int save_interval(void) { return 30; }
