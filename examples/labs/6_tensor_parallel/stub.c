#include "lab.h"

/* The serial MLP: every rank has all weights and does all the work. */
struct mlp {
    lab_comm *c;
    float *a, *b, *da, *db;
    float x[ROWS * C], before[ROWS * HIDDEN], after[ROWS * HIDDEN]; /* gelu */
};

mlp *mlp_open(lab_comm *c, const float *a, const float *b)
{
    mlp *m = lab_alloc(c, sizeof *m);
    m->c = c;
    m->a = lab_alloc(c, 4 * C * HIDDEN), m->b = lab_alloc(c, 4 * C * HIDDEN);
    m->da = lab_alloc(c, 4 * C * HIDDEN), m->db = lab_alloc(c, 4 * C * HIDDEN);
    memcpy(m->a, a, 4 * C * HIDDEN), memcpy(m->b, b, 4 * C * HIDDEN);
    return m;
}

void mlp_forward(mlp *m, const float *x, float *y)
{
    memcpy(m->x, x, sizeof m->x);
    lab_matmul(x, m->a, m->before, ROWS, C, HIDDEN, 0);
    for (int i = 0; i < ROWS * HIDDEN; i++) m->after[i] = lab_gelu(m->before[i]);
    lab_matmul(m->after, m->b, y, ROWS, HIDDEN, C, 0);
}

void mlp_backward(mlp *m, const float *dy, float *dx)
{
    float d[ROWS * HIDDEN];
    lab_matmul(m->after, dy, m->db, HIDDEN, ROWS, C, LAB_TA);
    lab_matmul(dy, m->b, d, ROWS, C, HIDDEN, LAB_TB);
    for (int i = 0; i < ROWS * HIDDEN; i++) d[i] *= lab_gelu_slope(m->before[i]);
    lab_matmul(m->x, d, m->da, C, ROWS, HIDDEN, LAB_TA);
    lab_matmul(d, m->a, dx, ROWS, HIDDEN, C, LAB_TB);
}

void mlp_gradients(const mlp *m, float *da, float *db)
{
    memcpy(da, m->da, 4 * C * HIDDEN), memcpy(db, m->db, 4 * C * HIDDEN);
}

void mlp_close(mlp *m)
{
    lab_free(m->c, m->a), lab_free(m->c, m->b), lab_free(m->c, m->da), lab_free(m->c, m->db);
    lab_free(m->c, m);
}
