#include "lab.h"

/* A shard has H hidden units: H columns of A and the same H rows of B. gelu looks at one hidden unit at a time, so a
 * shard needs no other one until the sum. */
typedef struct shard {
    float a[C * H], b[H * C], da[C * H], db[H * C];
    float before[ROWS * H], after[ROWS * H]; /* gelu */
} shard;

struct mlp {
    lab_comm *c;
    int own, first; /* shards of this rank */
    float x[ROWS * C];
    shard *shards;
};

mlp *mlp_open(lab_comm *c, const float *a, const float *b)
{
    mlp *m = lab_alloc(c, sizeof *m);
    m->c = c, m->own = SHARDS / lab_size(c), m->first = m->own * lab_rank(c);
    m->shards = lab_alloc(c, m->own * (int64_t)sizeof *m->shards);
    for (int s = 0; s < m->own; s++) {
        int unit = (m->first + s) * H;
        for (int k = 0; k < C; k++) memcpy(m->shards[s].a + k * H, a + k * HIDDEN + unit, 4 * H);
        memcpy(m->shards[s].b, b + unit * C, 4 * H * C);
    }
    return m;
}

/* The sum over all shards: always the same tree, whose lower part is inside a rank. */
static void sum(mlp *m, float part[SHARDS][ROWS * C], float *to)
{
    for (int n = m->own / 2; n > 0; n /= 2)
        for (int s = 0; s < n; s++)
            for (int i = 0; i < ROWS * C; i++) part[s][i] = part[2 * s][i] + part[2 * s + 1][i];
    lab_all_reduce(m->c, part[0], ROWS * C);
    memcpy(to, part[0], sizeof part[0]);
}

void mlp_forward(mlp *m, const float *x, float *y)
{
    float part[SHARDS][ROWS * C];
    memcpy(m->x, x, sizeof m->x);
    for (int s = 0; s < m->own; s++) {
        shard *h = &m->shards[s];
        lab_matmul(x, h->a, h->before, ROWS, C, H, 0);
        for (int i = 0; i < ROWS * H; i++) h->after[i] = lab_gelu(h->before[i]);
        lab_matmul(h->after, h->b, part[s], ROWS, H, C, 0);
    }
    sum(m, part, y);
}

void mlp_backward(mlp *m, const float *dy, float *dx)
{
    float part[SHARDS][ROWS * C], d[ROWS * H];
    for (int s = 0; s < m->own; s++) {
        shard *h = &m->shards[s];
        lab_matmul(h->after, dy, h->db, H, ROWS, C, LAB_TA);
        lab_matmul(dy, h->b, d, ROWS, C, H, LAB_TB);
        for (int i = 0; i < ROWS * H; i++) d[i] *= lab_gelu_slope(h->before[i]);
        lab_matmul(m->x, d, h->da, C, ROWS, H, LAB_TA);
        lab_matmul(d, h->a, part[s], ROWS, H, C, LAB_TB);
    }
    sum(m, part, dx); /* x went to all shards, so its gradient comes from all */
}

void mlp_gradients(const mlp *m, float *da, float *db)
{
    for (int s = 0; s < m->own; s++) {
        int unit = (m->first + s) * H;
        for (int k = 0; k < C; k++) memcpy(da + k * HIDDEN + unit, m->shards[s].da + k * H, 4 * H);
        memcpy(db + unit * C, m->shards[s].db, 4 * H * C);
    }
}

void mlp_close(mlp *m)
{
    lab_free(m->c, m->shards);
    lab_free(m->c, m);
}
