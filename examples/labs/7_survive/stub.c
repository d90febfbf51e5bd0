#include "lab.h"

/* As many programs do it: the new state over the old one. */
int save_state(const lab_state *s)
{
    int f = lab_create("checkpoint");
    int fine = f >= 0 && lab_write(f, s, sizeof *s) == sizeof *s;
    if (f >= 0) lab_close(f);
    return fine;
}

int load_state(lab_state *s)
{
    int f = lab_open("checkpoint");
    if (f < 0) return 0;
    lab_read(f, s, sizeof *s);
    lab_close(f);
    return 1;
}

int save_interval(void) { return 100; }
