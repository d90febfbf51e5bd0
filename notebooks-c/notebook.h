/* notebook.h: what a cell of a notebook has beside dtrain.h: ranks in threads, charts, pictures, checks.
 * The kernel (kernel.py) includes it, the declarations of dtrain.h and the headers below before the first cell. */
#ifndef NOTEBOOK_H
#define NOTEBOOK_H
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Runs `body` on n ranks, 1 to 16, which are threads of the notebook: ranks share its variables. Returns when all have
 * returned: DT_OK, or the result of the lowest rank that failed, whose error was printed. A rank that waits 5 s for a
 * peer fails with DT_E_TIMEOUT. */
dt_result ranks(int n, dt_result (*body)(dt_comm *c));
/* Bytes that this rank has sent to all others. */
int64_t sent(dt_comm *c);
/* Seconds on a clock that only goes forward. */
double seconds(void);

/* A chart: set the labels, add series, show it. chart_show also forgets the series. */
typedef struct chart {
    const char *title, *x, *y; /* the labels of the chart and of its axes */
    int log_x, log_y;          /* logarithmic axes, whose values are above 0 */
    char *data, *plots;        /* what the calls below have collected */
} chart;
void chart_line(chart *c, const char *name, const double *x, const double *y, int n);
void chart_points(chart *c, const char *name, const double *x, const double *y, int n);
void chart_show(chart *c);

/* Shows a picture: the text of an SVG file. */
void picture(const char *svg);

/* A graded statement: prints "ok" or "not ok" and the sentence. One that is not true makes the cell fail. */
#define check(...) nb_check(NB_KEY, __VA_ARGS__) /* is_true, sentence, ... */
/* A graded number: `what` names it, `because` is the reason. It is ok within `within` of what is expected. Else the
 * check says both numbers. 0 is what cells without an answer return: it is never ok, and does not show the answer. */
#define compare(...) nb_compare(NB_KEY, __VA_ARGS__) /* yours, expected, within, because, what, ... */
/* A number from low to just below high, another one whenever a graded cell runs. (int)drawn(2, 9) is 2 to 8. */
double drawn(double low, double high);

/* The kernel gives each run of a graded cell another key. The score counts the checks that say the key. */
#define NB_KEY 0
void nb_check(uint64_t key, int is_true, const char *sentence, ...) __attribute__((format(printf, 3, 4)));
void nb_compare(uint64_t key, double yours, double expected, double within, const char *because, const char *what, ...)
    __attribute__((format(printf, 6, 7)));
#endif
