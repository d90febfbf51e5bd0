/* Lab 6: an MLP, y = gelu(x A) B, whose weights are cut over the ranks. */
#include "../ranks.h"
#include <stdlib.h>
#include <string.h>
#pragma GCC poison malloc calloc realloc /* arrays of weights and gradients come from lab_alloc */

enum { ROWS = 16, C = 16, HIDDEN = 128, SHARDS = 4, H = HIDDEN / SHARDS };

/* y (n,m) = a (n,k) b (k,m). LAB_TA: a is stored as (k,n). LAB_TB: b is stored as (m,k). Sums go from 0 to k - 1. */
enum { LAB_TA = 1, LAB_TB = 2 };
void lab_matmul(const float *a, const float *b, float *y, int n, int k, int m, int form);
float lab_gelu(float x);
float lab_gelu_slope(float x); /* its derivative */

/* What you write. struct mlp is yours: the weights of this rank, their gradients, and what backward needs.
 * Rank r of n has hidden units r HIDDEN / n and up. a (C,HIDDEN) and b (HIDDEN,C) have room for all weights; those of
 * other ranks' units are not the real ones. */
typedef struct mlp mlp;
mlp *mlp_open(lab_comm *c, const float *a, const float *b);
/* x, y, dy and dx are (ROWS,C). x and dy are equal on all ranks; y and dx have to be. */
void mlp_forward(mlp *m, const float *x, float *y);
void mlp_backward(mlp *m, const float *dy, float *dx);
/* Writes the gradients of this rank's weights to their places in da (C,HIDDEN) and db (HIDDEN,C). */
void mlp_gradients(const mlp *m, float *da, float *db);
void mlp_close(mlp *m);
