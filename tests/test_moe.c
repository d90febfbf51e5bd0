/* test_moe.c: mixtures of experts. The ops on routed rows have the bits of plain scalar loops on every instruction set
 * and with 1 and 2 threads (R3, R5, R10); values and gradients of dt_moe are those of a plain text in double and its
 * central differences; a leaf's gradients are chains over micro-batches (R3); drops, degenerate routings, errors. TAP. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/prose.h"
#include "slot.h"
#include "tap.h"
#include <unistd.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

static uint32_t state = 99;
static float draw(void)
{
    state = state * 1664525u + 1013904223u;
    return 3.0f * ((float)(state >> 8) / 16777216.0f - 0.5f);
}
static float *drawn(int64_t n)
{
    float *x = (float *)malloc(4 * (size_t)(n + 1));
    if (!x) tap_bail("no memory");
    for (int64_t i = 0; i < n; i++) x[i] = i % 7 == 3 ? -0.0f : draw();
    return x;
}

/* The machines that a case runs on: instruction set times workers. */
enum { MACHINES = 6 };
static dt_graph *machine(int which)
{
    dt_graph *g = NULL;
    if (!dt__isa_runs(which / 2)) return NULL;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    g->kernels = dt__isa_table(which / 2);
    dt__pool_close(&g->pool);
    if (dt__pool_open(&g->pool, 1 + which % 2)) tap_bail("%s", dt_last_error());
    return g;
}

/* ---- scalar loops ---------------------------------------------------------------------------------- */

enum { MOST = 64 };
typedef struct sizes {
    int64_t tokens, experts, active, capacity, in, out;
    int kind; /* of the routing: 0 any, 1 all to the first experts, 2 never to expert 1 */
} sizes;

/* Expert by expert, token by token: who[e][i] is the choice n*k + j of the i-th row of expert e. */
typedef struct routing {
    int64_t count[MOST];
    int32_t *who[MOST];
    int32_t *chosen, *row; /* (N,k) */
} routing;

static int32_t *ids_of(const sizes *s)
{
    int32_t *ids = (int32_t *)malloc(4 * (size_t)(s->tokens * s->active));
    if (!ids) tap_bail("no memory");
    for (int64_t n = 0; n < s->tokens; n++)
        for (int64_t j = 0, again; j < s->active; j += !again) {
            int32_t *id = ids + n * s->active + j;
            again = 0;
            *id = s->kind == 1 ? (int32_t)(s->active - 1 - j) : (int32_t)((draw() + 1.5f) / 3.0f * (float)s->experts) % (int32_t)s->experts;
            if (s->kind == 2 && *id == 1) again = 1;
            for (int64_t i = 0; i < j; i++) again |= ids[n * s->active + i] == *id;
        }
    return ids;
}

static routing route_by_hand(const sizes *s, const int32_t *ids)
{
    routing r;
    int64_t at = 0, choices = s->tokens * s->active;
    memset(&r, 0, sizeof r);
    r.chosen = (int32_t *)malloc(8 * (size_t)choices);
    if (!r.chosen) tap_bail("no memory");
    r.row = r.chosen + choices;
    for (int64_t n = 0; n < s->tokens; n++)
        for (int64_t e = 0, j = 0; e < s->experts; e++)
            for (int64_t i = 0; i < s->active; i++)
                if (ids[n * s->active + i] == e) r.chosen[n * s->active + j++] = (int32_t)e;
    for (int64_t e = 0; e < s->experts; e++) {
        r.who[e] = (int32_t *)malloc(4 * (size_t)(choices + 1));
        if (!r.who[e]) tap_bail("no memory");
        for (int64_t i = 0; i < choices; i++) {
            if (r.chosen[i] != e) continue;
            r.row[i] = r.count[e] < s->capacity ? (int32_t)at++ : -1;
            if (r.row[i] >= 0) r.who[e][r.count[e]++] = (int32_t)i;
        }
    }
    return r;
}

static float lanes_dot(const float *x, const float *y, int64_t n)
{
    float lane[32];
    for (int i = 0; i < 32; i++) lane[i] = 0.0f;
    for (int64_t i = 0; i < n; i++) lane[i % 32] = fmaf(x[i], y[i], lane[i % 32]);
    for (int half = 16; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
    return lane[0];
}

typedef struct tensors {
    float *x, *w, *bias, *gate, *dout;      /* (N,K), (E,K,H), (E*H), (N,k), (N,H) */
    float *out, *dx, *dw, *dbias, *dgate;   /* what a text makes of them */
} tensors;

/* out[n] = sum over the experts of n, in index order, of gate * (x[n] w[e] + bias[e]), and its gradients. */
static void by_hand(const sizes *s, const routing *r, tensors *t)
{
    int64_t K = s->in, H = s->out, k = s->active;
    float *y = (float *)calloc((size_t)(s->tokens * k * H), 4), *dx = (float *)calloc((size_t)(s->tokens * k * K), 4);
    float *dy = (float *)calloc((size_t)(s->tokens * k * H), 4);
    if (!y || !dy || !dx) tap_bail("no memory");
    for (int64_t e = 0; e < s->experts; e++)
        for (int64_t i = 0; i < r->count[e]; i++) {
            int64_t c = r->who[e][i], n = c / k;
            const float *w = t->w + e * K * H;
            for (int64_t h = 0; h < H; h++) {
                float acc = 0.0f;
                for (int64_t p = 0; p < K; p++) acc = fmaf(t->x[n * K + p], w[p * H + h], acc);
                y[c * H + h] = acc + t->bias[e * H + h];
                dy[c * H + h] = t->dout[n * H + h] * t->gate[c];
            }
            for (int64_t p = 0; p < K; p++) {
                float acc = 0.0f;
                for (int64_t h = 0; h < H; h++) acc = fmaf(dy[c * H + h], w[p * H + h], acc);
                dx[c * K + p] = acc;
            }
        }
    for (int64_t n = 0; n < s->tokens; n++) {
        for (int64_t h = 0; h < H; h++) t->out[n * H + h] = 0.0f;
        for (int64_t p = 0; p < K; p++) t->dx[n * K + p] = 0.0f;
        for (int64_t c = n * k; c < (n + 1) * k; c++) {
            t->dgate[c] = r->row[c] < 0 ? 0.0f : lanes_dot(t->dout + n * H, y + c * H, H);
            for (int64_t h = 0; r->row[c] >= 0 && h < H; h++) t->out[n * H + h] = fmaf(t->gate[c], y[c * H + h], t->out[n * H + h]);
            for (int64_t p = 0; r->row[c] >= 0 && p < K; p++) t->dx[n * K + p] = t->dx[n * K + p] + dx[c * K + p];
        }
    }
    for (int64_t e = 0; e < s->experts; e++)
        for (int64_t h = 0; h < H; h++) {
            float sum = 0.0f;
            for (int64_t i = 0; i < r->count[e]; i++) sum = sum + dy[r->who[e][i] * H + h];
            t->dbias[e * H + h] = sum;
            for (int64_t p = 0; p < K; p++) {
                float acc = 0.0f;
                for (int64_t i = 0; i < r->count[e]; i++) acc = fmaf(t->x[r->who[e][i] / k * K + p], dy[r->who[e][i] * H + h], acc);
                t->dw[(e * K + p) * H + h] = acc;
            }
        }
    free(y), free(dx), free(dy);
}

/* The same with the ops, in a graph whose loss has dout as the gradient of out. */
static void with_ops(const sizes *s, const int32_t *ids, const tensors *t, const routing *r, const tensors *want, int which)
{
    dt_graph *g = machine(which);
    dt_tensor x, w, b, gate, route, out;
    dt__route table;
    int64_t choices = s->tokens * s->active, wrong = 0;
    if (!g) {
        tap_skip(1, "%s: this processor lacks it", dt__isa_table(which / 2)->name);
        return;
    }
    x = dt_tensor_of(g, DT_F32, dt_shape2(s->tokens, s->in), t->x);
    w = dt_tensor_of(g, DT_F32, dt_shape3(s->experts, s->in, s->out), t->w);
    b = dt_tensor_of(g, DT_F32, dt_shape1(s->experts * s->out), t->bias);
    gate = dt_tensor_of(g, DT_F32, dt_shape2(s->tokens, s->active), t->gate);
    route = dt__moe_route(g, dt_tensor_of(g, DT_I32, dt_shape2(s->tokens, s->active), ids), s->experts, s->capacity);
    out = dt__moe_sum(g, dt__moe_linear(g, dt__moe_rows(g, x, route, dt__none()), route, w, b), route, gate);
    if (dt_backward(g, dt_sum(g, dt_mul(g, out, dt_tensor_of(g, DT_F32, dt_shape2(s->tokens, s->out), t->dout)), DT_ALL))) tap_bail("%s", dt_last_error());
    table = dt__route_at(dt__at(g, route), dt__at(g, route)->data);
    wrong += memcmp(table.chosen, r->chosen, 4 * (size_t)choices) != 0;
    wrong += memcmp(table.row, r->row, 4 * (size_t)choices) != 0;
    for (int64_t e = 0; e < s->experts; e++) wrong += table.begin[e + 1] - table.begin[e] != r->count[e];
    wrong += memcmp(dt_value(g, out), want->out, 4 * (size_t)(s->tokens * s->out)) != 0 ? 100 : 0;
    wrong += memcmp(dt_value(g, dt_grad(g, x)), want->dx, 4 * (size_t)(s->tokens * s->in)) != 0 ? 1000 : 0;
    wrong += memcmp(dt_value(g, dt_grad(g, w)), want->dw, 4 * (size_t)(s->experts * s->in * s->out)) != 0 ? 10000 : 0;
    wrong += memcmp(dt_value(g, dt_grad(g, b)), want->dbias, 4 * (size_t)(s->experts * s->out)) != 0 ? 100000 : 0;
    wrong += memcmp(dt_value(g, dt_grad(g, gate)), want->dgate, 4 * (size_t)choices) != 0 ? 1000000 : 0;
    tap_ok(!wrong, "%lld tokens, %lld of %lld experts, room for %lld, (%lld,%lld): scalar loops, %s, %d thread(s)%s", (long long)s->tokens,
           (long long)s->active, (long long)s->experts, (long long)s->capacity, (long long)s->in, (long long)s->out, g->kernels->name,
           1 + which % 2, wrong ? " DIFFER" : "");
    if (wrong) tap_note("code %lld: table 1, out 100, dx 1000, dw 10000, dbias 100000, dgate 1000000", (long long)wrong);
    dt_graph_close(&g);
}

static void test_exact(void)
{
    static const sizes cases[] = {{1, 1, 1, 1, 1, 1, 0},      {3, 2, 1, 3, 3, 5, 0},      {31, 5, 2, 31, 33, 17, 0},
                                  {32, 8, 2, 5, 32, 31, 0},   {33, 4, 4, 33, 31, 33, 0},  {17, 3, 2, 1, 7, 65, 0},
                                  {100, 8, 1, 100, 40, 9, 1}, {40, 6, 2, 40, 13, 40, 2},  {29, 4, 2, 7, 16, 48, 1},
                                  {1000, 64, 3, 20, 24, 35, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sizes *s = &cases[i];
        int64_t nk = s->tokens * s->active, ekh = s->experts * s->in * s->out;
        int32_t *ids = ids_of(s);
        routing r = route_by_hand(s, ids);
        tensors t, want;
        t.x = drawn(s->tokens * s->in), t.w = drawn(ekh), t.bias = drawn(s->experts * s->out), t.gate = drawn(nk);
        t.dout = drawn(s->tokens * s->out);
        want = t;
        want.out = drawn(s->tokens * s->out), want.dx = drawn(s->tokens * s->in), want.dw = drawn(ekh);
        want.dbias = drawn(s->experts * s->out), want.dgate = drawn(nk);
        by_hand(s, &r, &want);
        for (int which = 0; which < MACHINES; which++) with_ops(s, ids, &t, &r, &want, which);
        free(t.x), free(t.w), free(t.bias), free(t.gate), free(t.dout), free(ids), free(r.chosen);
        free(want.out), free(want.dx), free(want.dw), free(want.dbias), free(want.dgate);
        for (int64_t e = 0; e < s->experts; e++) free(r.who[e]);
    }
}

/* A batch of weights b (L,K,N) behind a (X,L,M,K): the gradient of each is one chain over X and M, whatever is transposed. */
static void test_batch_weights(void)
{
    enum { X = 3, L = 2, M = 7, K = 5, N = 4 };
    static float x[X][L][M][K], dout[X][L][M][N], given[X * L * M * K], want[L * K * N];
    float *w = drawn(L * K * N), *values = drawn(X * L * M * (K + N));
    memcpy(x, values, sizeof x), memcpy(dout, values + X * L * M * K, sizeof dout);
    for (int ta = 0; ta < 2; ta++)
        for (int tb = 0; tb < 2; tb++) {
            dt_graph *g = machine(0);
            dt_tensor a, b, y;
            for (int i = 0; i < X * L * M * K; i++) {
                int k = ta ? i / M % K : i % K, m = ta ? i % M : i / K % M;
                given[i] = x[i / (L * M * K)][i / (M * K) % L][m][k];
            }
            a = dt_tensor_of(g, DT_F32, ta ? dt_shape4(X, L, K, M) : dt_shape4(X, L, M, K), given);
            b = dt_tensor_of(g, DT_F32, tb ? dt_shape3(L, N, K) : dt_shape3(L, K, N), w);
            y = dt_mul(g, dt_matmul(g, a, b, ta, tb), dt_tensor_of(g, DT_F32, dt_shape4(X, L, M, N), &dout[0][0][0][0]));
            if (dt_backward(g, dt_sum(g, y, DT_ALL))) tap_bail("%s", dt_last_error());
            for (int i = 0; i < L * K * N; i++) {
                int k = tb ? i % K : i / N % K, n = tb ? i / K % N : i % N;
                float acc = 0.0f;
                for (int r = 0; r < X * M; r++) acc = fmaf(x[r / M][i / (K * N)][r % M][k], dout[r / M][i / (K * N)][r % M][n], acc);
                want[i] = acc;
            }
            tap_same_bits(dt_value(g, dt_grad(g, b)), want, L * K * N, "R3 the gradient of a batch of weights is one chain");
            dt_graph_close(&g);
        }
    free(w), free(values);
}

/* ---- the whole block in double --------------------------------------------------------------------------- */

enum { INPUTS = 6 }; /* x, gate, up, up bias, down, down bias; without biases x, gate, up, down */
typedef struct block {
    dt_moe_options o;
    int64_t tokens, width;
} block;

static double gelu(double x) { return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

/* w[INPUTS]: as above, absent biases NULL. Adds the two auxiliary losses times their coefficients to *extra. */
static void real_block(const block *b, double *const *w, double *out, double *extra)
{
    int64_t N = b->tokens, C = b->width, E = b->o.experts, k = b->o.active, H = b->o.width, U = b->o.gated ? 2 * H : H, cap = N;
    double p[MOST], mean[MOST], z = 0.0, hidden[MOST], *in;
    int64_t asked[MOST];
    int taken[MOST];
    memset(asked, 0, sizeof asked), memset(mean, 0, sizeof mean);
    if (b->o.capacity > 0.0f) cap = (int64_t)ceil((double)b->o.capacity * (double)(N * k) / (double)E);
    for (int64_t n = 0; n < N; n++) {
        double sum = 0.0, total = 0.0;
        in = w[0] + n * C;
        for (int64_t e = 0; e < E; e++) {
            p[e] = 0.0, taken[e] = 0;
            for (int64_t c = 0; c < C; c++) p[e] += in[c] * w[1][c * E + e];
            p[e] = exp(p[e]);
            sum += p[e];
        }
        z += log(sum) * log(sum) / (double)N;
        for (int64_t e = 0; e < E; e++) p[e] /= sum, mean[e] += p[e] / (double)N;
        for (int64_t j = 0; j < k; j++) {
            int64_t best = -1;
            for (int64_t e = 0; e < E; e++)
                if (!taken[e] && (best < 0 || p[e] > p[best])) best = e;
            taken[best] = 1, total += p[best];
        }
        if (b->o.raw_weights) total = 1.0;
        for (int64_t c = 0; c < C; c++) out[n * C + c] = 0.0;
        for (int64_t e = 0; e < E; e++) {
            if (!taken[e] || asked[e]++ >= cap) continue;
            for (int64_t u = 0; u < U; u++) {
                hidden[u] = w[3] ? w[3][e * U + u] : 0.0;
                for (int64_t c = 0; c < C; c++) hidden[u] += in[c] * w[2][(e * C + c) * U + u];
            }
            for (int64_t h = 0; h < H; h++) hidden[h] = b->o.gated ? hidden[h] / (1.0 + exp(-hidden[h])) * hidden[H + h] : gelu(hidden[h]);
            for (int64_t c = 0; c < C; c++) {
                double y = w[5] ? w[5][e * C + c] : 0.0;
                for (int64_t h = 0; h < H; h++) y += hidden[h] * w[4][(e * H + h) * C + c];
                out[n * C + c] += p[e] / total * y;
            }
        }
    }
    *extra = (double)b->o.z_loss * z;
    for (int64_t e = 0; e < E; e++) *extra += (double)b->o.balance * (double)E * (double)asked[e] / (double)(N * k) * mean[e];
}

static double real_loss(const block *b, double *const *w, const float *v, double *out)
{
    double loss;
    real_block(b, w, out, &loss);
    for (int64_t i = 0; i < b->tokens * b->width; i++) loss += out[i] * (double)v[i];
    return loss;
}


/* Largest distance of a gradient from central differences of the text in double. */
static double slopes(const block *b, double *const *w, int input, int64_t n, const float *grad, const float *v, double *out, double *scale)
{
    double worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double at = w[input][i], h = 1e-5, up, down;
        w[input][i] = at + h, up = real_loss(b, w, v, out);
        w[input][i] = at - h, down = real_loss(b, w, v, out);
        w[input][i] = at;
        *scale = fmax(*scale, fabs(up - down) / (2.0 * h));
        worst = fmax(worst, fabs((double)grad[i] - (up - down) / (2.0 * h)));
    }
    return worst;
}

/* The parameters of the block have its initial values; x is large enough for them to matter. */
static void test_block(const char *what, const block *b)
{
    static const int with_bias[] = {0, 1, 2, 3, 4, 5}, without[] = {0, 1, 2, 4};
    const int *place = b->o.bias ? with_bias : without;
    int64_t n = b->tokens * b->width, count;
    float *v = drawn(n), *start = drawn(n);
    double *w[INPUTS] = {NULL, NULL, NULL, NULL, NULL, NULL}, out[4096], extra, forward = 0.0, gradient = 0.0, scale = 1e-3, largest = 1e-3;
    dt_graph *g = machine(0);
    dt_tensor in[INPUTS], y, loss;
    int inputs = 1;
    for (int64_t i = 0; i < n; i++) start[i] *= 12.0f;
    in[0] = dt_tensor_of(g, DT_F32, dt_shape3(1, b->tokens, b->width), start);
    y = dt_moe(g, in[0], "moe", &b->o);
    for (int32_t id = 1; id < g->count; id++)
        if (g->nodes[id].op == DT__OP_PARAM && inputs < INPUTS) in[inputs++] = dt__tensor(g, id);
    loss = dt_sum(g, dt_mul(g, y, dt_tensor_of(g, DT_F32, dt_shape3(1, b->tokens, b->width), v)), DT_ALL);
    if (dt_backward(g, loss)) tap_bail("%s: %s", what, dt_last_error());
    for (int i = 0; i < inputs; i++) {
        count = dt__count(dt__at(g, in[i]));
        w[place[i]] = (double *)malloc(8 * (size_t)count);
        for (int64_t k = 0; w[place[i]] && k < count; k++) w[place[i]][k] = (double)dt_value(g, in[i])[k];
    }
    real_block(b, w, out, &extra);
    for (int64_t i = 0; i < n; i++) forward = fmax(forward, fabs((double)dt_value(g, y)[i] - out[i])), largest = fmax(largest, fabs(out[i]));
    for (int i = 0; i < inputs; i++)
        gradient = fmax(gradient, slopes(b, w, place[i], dt__count(dt__at(g, in[i])), dt_value(g, dt_grad(g, in[i])), v, out, &scale));
    tap_ok(inputs == (b->o.bias ? 6 : 4) && forward / largest <= 1e-6 && gradient / scale <= 1e-5, "%s: forward %.1e, gradients %.1e", what,
           forward / largest, gradient / scale);
    for (int i = 0; i < INPUTS; i++) free(w[i]);
    free(v), free(start);
    dt_graph_close(&g);
}

static dt_moe_options options(int64_t experts, int64_t active, int64_t width)
{
    dt_moe_options o;
    memset(&o, 0, sizeof o);
    o.experts = experts, o.active = active, o.width = width;
    return o;
}

static void test_blocks(void)
{
    block b;
    b.tokens = 13, b.width = 5, b.o = options(4, 2, 7);
    test_block("2 of 4 experts", &b);
    b.o.bias = 1, b.o.balance = 0.7f;
    test_block("with biases and the balance loss", &b);
    b.o.gated = 1, b.o.z_loss = 0.3f;
    test_block("gated, with the z-loss", &b);
    b.o.capacity = 0.6f, b.o.bias = 0;
    test_block("with drops", &b);
    b.o = options(3, 1, 4), b.o.raw_weights = 1, b.o.balance = 0.01f, b.o.capacity = 1.0f;
    test_block("1 of 3 experts, raw weights, drops", &b);
    b.o = options(4, 4, 3), b.o.bias = 1;
    test_block("all experts", &b);
    b.o = options(1, 1, 6), b.o.balance = 1.0f;
    test_block("one expert", &b);
}

/* ---- drops and degenerate routings ----------------------------------------------------------------------- */

/* All tokens are alike, so all go to the same expert. */
static void test_alike(void)
{
    enum { N = 10, C = 3, E = 4 };
    float x[N * C], zero[N * C], *dw;
    dt_moe_options o = options(E, 1, 5);
    dt_graph *g = machine(0);
    dt_tensor y, w = {0}, route = {0};
    dt__route table;
    int64_t rest = 0, chosen = 0;
    for (int i = 0; i < N * C; i++) x[i] = (float)(i % C + 1), zero[i] = 0.0f;
    o.capacity = 1.0f; /* 10 / 4 = 2.5: room for 3 */
    y = dt_moe(g, dt_tensor_of(g, DT_F32, dt_shape2(N, C), x), "moe", &o);
    if (dt_backward(g, dt_sum(g, y, DT_ALL))) tap_bail("%s", dt_last_error());
    for (int32_t id = g->count - 1; id > 0; id--) {
        if (g->nodes[id].op == DT__OP_MOE_ROUTE) route = dt__tensor(g, id);
        if (g->nodes[id].op == DT__OP_MOE_LINEAR && id < g->forward_count) w = dt__tensor(g, g->nodes[id].in[2]);
    }
    table = dt__route_at(dt__at(g, route), dt__at(g, route)->data);
    for (int e = 0; e < E; e++) chosen = table.asked[e] == N ? e : chosen;
    tap_ok(table.asked[chosen] == N && table.begin[E] == 3, "R10 ten tokens ask for one expert, three get it");
    tap_ok(memcmp(dt_value(g, y), zero, 4 * 3 * C) && !memcmp(dt_value(g, y), dt_value(g, y) + C, 4 * C) && !memcmp(dt_value(g, y) + 3 * C, zero, 4 * (N - 3) * C),
           "R10 the first three tokens in order; dropped ones give +0");
    dw = (float *)(uintptr_t)dt_value(g, dt_grad(g, w));
    for (int64_t e = 0; e < E; e++)
        for (int64_t i = 0; e != chosen && i < C * 5; i++) rest += memcmp(&dw[e * C * 5 + i], zero, 4) != 0;
    tap_ok(!rest, "experts without tokens have gradients of +0");
    dt_graph_close(&g);
}

/* ---- what goes wrong --------------------------------------------------------------------------------------- */

static void refused(const char *sentence, dt_moe_options o, int vector)
{
    float x[12] = {0};
    dt_graph *g = machine(0);
    dt_moe(g, dt_tensor_of(g, DT_F32, vector ? dt_shape1(12) : dt_shape2(4, 3), x), "moe", &o);
    tap_ok(dt_graph_result(g) != DT_OK && strstr(dt_last_error(), sentence), "refused: %s", dt_last_error());
    dt_graph_close(&g);
}

static void test_errors(void)
{
    float x[4] = {0};
    dt_graph *g = machine(0);
    dt_moe_options o = options(4, 2, 8);
    dt_tensor t = dt_tensor_of(g, DT_F32, dt_shape1(4), x);
    refused("(..,C)", o, 1);
    refused("active 5 is outside [1, 4]", options(4, 5, 8), 0);
    refused("active 0 is outside", options(4, 0, 8), 0);
    refused("experts 0 is outside [1, 65536]", options(0, 1, 8), 0);
    refused("width -1", options(4, 1, -1), 0);
    o.capacity = -1.0f;
    refused("capacity -1", o, 0);
    o = options(4, 2, 8), o.balance = NAN;
    refused("balance nan", o, 0);
    o = options(4, 2, 8), o.z_loss = INFINITY;
    refused("z_loss inf", o, 0);
    dt_auxiliary_loss(g, t, t, 1.0f);
    tap_ok(dt_graph_result(g) == DT_E_SHAPE && strstr(dt_last_error(), "must be a scalar"), "refused: %s", dt_last_error());
    dt_graph_close(&g);
    g = machine(0);
    t = dt_tensor_of(g, DT_F32, dt_shape1(4), x);
    dt_auxiliary_loss(g, t, dt_sum(g, t, DT_ALL), -0.5f);
    tap_ok(dt_graph_result(g) == DT_E_USAGE && strstr(dt_last_error(), "coefficient -0.5"), "refused: %s", dt_last_error());
    dt_graph_close(&g);
    g = machine(0), o = options(4, 2, 8);
    t = dt_tensor_of(g, DT_F32, dt_shape2(1, 4), x);
    for (int i = 0; i < 2; i++) dt_moe(g, t, "moe", &o);
    tap_ok(dt_graph_result(g) != DT_OK && strstr(dt_last_error(), "moe."), "a second mixture of one name is refused: %s", dt_last_error());
    dt_graph_close(&g);
}

/* ---- trained ------------------------------------------------------------------------------------------------ */

enum { WIDTH = 16 };
static dt_tensor embed(dt_graph *g, dt_tensor tokens, const void *user)
{
    return (void)user, dt_embed(g, dt_param(g, "table", dt_shape2(256, WIDTH), DT_INIT_NORMAL, 0.3f), tokens);
}
static dt_tensor mixture(dt_graph *g, dt_tensor x, const void *user)
{
    return dt_add(g, x, dt_moe(g, dt_rmsnorm(g, x, "norm", 1e-5f), "moe", (const dt_moe_options *)user));
}
/* A batch of weights, one matrix per part of the channels: (4,B*T,C/4) times (4,C/4,C/4), then with a batch in front. */
static dt_tensor parts(dt_graph *g, dt_tensor x, const void *user)
{
    static const int first[] = {1, 0, 2}, swap[] = {0, 2, 1, 3};
    int64_t B = dt_dim(g, x, 0), T = dt_dim(g, x, 1), part = WIDTH / 4;
    dt_tensor h = dt_permute(g, dt_reshape(g, x, dt_shape3(B * T, 4, part)), first);
    (void)user;
    h = dt_matmul(g, h, dt_param(g, "a", dt_shape3(4, part, part), DT_INIT_NORMAL, 0.3f), 0, 0);
    h = dt_permute(g, dt_reshape(g, dt_permute(g, h, first), dt_shape4(B, T, 4, part)), swap); /* (B,4,T,C/4) */
    h = dt_matmul(g, h, dt_param(g, "b", dt_shape3(4, part, part), DT_INIT_NORMAL, 0.3f), 0, 1);
    return dt_add(g, x, dt_reshape(g, dt_permute(g, h, swap), dt_shape3(B, T, WIDTH)));
}
static dt_tensor head(dt_graph *g, dt_tensor x, const void *user)
{
    return (void)user, dt_cross_entropy(g, dt_linear(g, x, "out", 256), dt_targets(g), 0.0f);
}

/* Hash and reports of three steps; 16 sequences in micro-batches of `micro`. */
typedef struct trained {
    char hash[65];
    float auxiliary, counts[MOST];
} trained;
static trained train(const char *file, const dt_moe_options *o, int64_t micro, int64_t shards)
{
    dt_segment net[] = {{"in", embed, NULL}, {"a", mixture, o}, {"b", parts, NULL}, {"c", mixture, o}, {"out", head, NULL}};
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    trained result;
    dt_result e;
    r.model = dt_model_segments(net, 5, 256);
    r.data = file, r.steps = 3, r.batch = 16, r.micro_batch = micro, r.sequence = 8, r.data_shards = shards, r.warmup = 0;
    l.output.quiet = 1, l.threads = 1, l.output.eval_batches = 1;
    memset(&result, 0, sizeof result);
    e = dt_trainer_open(&t, &r, &l);
    if (!e) e = dt_trainer_run(t, &info);
    if (!e) e = dt_trainer_experts(t, 1, result.counts);
    if (e) tap_bail("%s", dt_last_error());
    tap_ok(dt_trainer_experts(t, 2, result.counts) == DT_E_USAGE, "there is no third mixture: %s", dt_last_error());
    snprintf(result.hash, sizeof result.hash, "%s", dt_trainer_hash(t));
    result.auxiliary = info.auxiliary;
    dt_trainer_close(&t);
    return result;
}

static void test_trained(void)
{
    char file[] = "/tmp/dtrain_XXXXXX";
    dt_moe_options o = options(5, 2, 12), limited;
    trained one, two;
    float sum = 0.0f;
    int fd = mkstemp(file);
    if (fd < 0 || close(fd) || prose_generate(file, 20000, 1)) tap_bail("no text");
    one = train(file, &o, 16, 1), two = train(file, &o, 4, 1);
    tap_ok(!strcmp(one.hash, two.hash), "R3 gradients of experts, and of a batch of weights, are chains over micro-batches");
    for (int e = 0; e < 5; e++) sum += two.counts[e];
    tap_ok(sum == 16 * 8 * 2 && !memcmp(one.counts, two.counts, sizeof one.counts), "the counts of experts are those of the step's tokens");
    tap_ok(one.auxiliary == 0.0f, "no auxiliary loss without a coefficient");
    limited = o, limited.capacity = 1.0f;
    one = train(file, &limited, 16, 1), two = train(file, &limited, 4, 1);
    tap_ok(strcmp(one.hash, two.hash), "R10 capacity is a matter of the unit of work: other units, other drops");
    o.balance = 0.02f;
    one = train(file, &o, 8, 2);
    tap_ok(one.auxiliary >= 0.03f && one.auxiliary < 0.1f, "two mixtures report about twice 0.02: %.4f", (double)one.auxiliary);
    unlink(file);
}

/* ---- a tiny transformer of experts against PyTorch ------------------------------------------------------------ */

static tap_golden *golden;
static dt_trainer *tiny; /* a trainer without data: one unit of (B,T) is the batch */

static int64_t config(const char *name)
{
    char full[80];
    snprintf(full, sizeof full, "config.%s", name);
    return tap_golden_int(golden, full);
}

static void tiny_load(void *owner, int64_t shard, int64_t micro)
{
    int64_t words = config("batch") * config("sequence");
    (void)owner, (void)shard, (void)micro;
    dt__engine_samples(&tiny->e, (const uint32_t *)tap_golden_i32(golden, "tokens", words),
                       (const uint32_t *)tap_golden_i32(golden, "targets", words));
}
/* Context shards of the golden file, and so leaves of this rank. */
static int64_t contexts(void) { return tap_golden_find(golden, "config.context") ? config("context") : 1; }

static void tiny_open(int family, int64_t shards)
{
    dt_recipe *r;
    dt_result e;
    tiny = (dt_trainer *)dt__alloc((int64_t)sizeof *tiny, "a trainer");
    if (!tiny) tap_bail("no memory");
    r = &tiny->recipe;
    *r = dt_recipe_default();
    memset(&r->model, 0, sizeof r->model);
    r->model.layers = config("layers"), r->model.heads = config("heads"), r->model.width = config("width");
    r->model.vocabulary = config("vocabulary"), r->model.experts = config("experts"), r->model.active = config("active");
    r->model.capacity = *tap_golden_f32(golden, "config.capacity", 1), r->model.balance = *tap_golden_f32(golden, "config.balance", 1);
    r->model.family = family;
    if (family == DT_LLAMA) {
        const float *scaling = tap_golden_f32(golden, "config.rope_scaling", 4);
        r->model.kv_heads = config("kv_heads"), r->model.hidden = config("hidden");
        r->model.norm_eps = *tap_golden_f32(golden, "config.norm_eps", 1);
        r->model.rope_base = *tap_golden_f32(golden, "config.rope_base", 1);
        r->model.rope_scaling.factor = (double)scaling[0];
        r->model.rope_scaling.low_freq_factor = (double)scaling[1], r->model.rope_scaling.high_freq_factor = (double)scaling[2];
        r->model.rope_scaling.original_context = (int64_t)scaling[3];
    }
    r->batch = r->micro_batch = config("batch"), r->sequence = config("sequence"), r->data_shards = 1, r->tensor_shards = shards;
    r->context_shards = contexts();
    r->schedule = DT_CONSTANT, r->warmup = 0, r->clip = *tap_golden_f32(golden, "config.clip", 1);
    r->weight_decay = *tap_golden_f32(golden, "config.decay", 1), r->beta1 = 0.9f, r->beta2 = 0.95f, r->epsilon = 1e-8f;
    tiny->layout = dt_layout_default();
    tiny->layout.output.sample_length = 0, tiny->layout.no_memory_check = 1;
    e = dt_comm_open(&tiny->comm, NULL, NULL);
    tiny->e.p.recipe = r, tiny->e.p.layout = &tiny->layout, tiny->e.comm = tiny->comm;
    if (!e) e = dt__engine_begin(&tiny->e);
    if (!e) e = dt__pool_open(&tiny->pool, 2);
    if (!e) e = dt__choose_kernels(&tiny->e.k);
    tiny->counts = (float *)dt__alloc((int64_t)sizeof(dt_memory), "counts");
    if (!e) e = tiny->counts ? dt__trainer_model(tiny) : DT_E_MEMORY;
    if (!e) e = dt__trainer_engine(tiny);
    if (e) tap_bail("%s", dt_last_error());
    for (int32_t i = 0; i < tiny->e.p.net.param_count; i++) {
        const dt__net_param *p = &tiny->e.p.net.params[i];
        const float *start = tap_golden_f32(golden, p->is.name, dt_shape_count(p->is.shape));
        if (!start) tap_bail("no %s in the golden file", p->is.name);
        cut_up(&p->is, start, tiny->e.params + p->offset);
    }
}

/* Gradients ("grad." + name) or parameters ("stepN." + name). Keys' biases have no gradient but rounding noise. */
static void tiny_compare(const char *prefix, int gradients)
{
    for (int32_t i = 0; i < tiny->e.p.net.param_count; i++) {
        const dt__net_param *p = &tiny->e.p.net.params[i];
        const float *want;
        float *got = (float *)malloc(4 * (size_t)dt_shape_count(p->is.shape));
        int64_t count = dt_shape_count(p->is.shape);
        char name[160];
        if (!got) tap_bail("no memory");
        dt__param_whole(&p->is, gradients ? dt__own_gradient(&tiny->e, p) : tiny->e.params + p->offset, got);
        snprintf(name, sizeof name, "%s.%s", prefix, p->is.name);
        want = tap_golden_f32(golden, name, count);
        if (!gradients && strstr(name, "c_attn.bias")) {
            int64_t width = count / 3;
            tap_near(got, want, width, 1e-5, name);
            tap_near(got + 2 * width, want + 2 * width, width, 1e-5, name);
        } else tap_near(got, want, count, 1e-5, name);
        free(got);
    }
}

/* Drops and logits, after a forward alone: the logits are lost when the loss' gradient takes their place. */
static void tiny_forward(void)
{
    const dt__net *net = &tiny->e.p.net;
    const tap_tensor *dropped = tap_golden_find(golden, "dropped");
    const dt__segment_plan *head = net->segments[net->count - 1].plan;
    int64_t logits = config("batch") * config("sequence") * config("vocabulary");
    float *whole;
    dt__bind b;
    tiny_load(NULL, 0, 0);
    for (int64_t s = 0; s < net->count; s++) {
        const dt__segment_plan *p = net->segments[s].plan;
        dt__engine_forward(&tiny->e, s, 0);
        dt__engine_bind(&tiny->e, s, 0, -1, &b);
        for (int32_t id = 1; id < p->g->forward_count; id++) {
            dt__route r;
            int64_t wanted = 0;
            if (p->g->nodes[id].op != DT__OP_MOE_ROUTE) continue;
            r = dt__route_at(&p->g->nodes[id], dt__where(p, &b, id));
            if (dropped) memcpy(&wanted, (const char *)dropped->data + 8 * (s - 1), 8);
            tap_ok((wanted > 0) == (tiny->recipe.model.capacity > 0.0f) && r.tokens * r.active - r.begin[r.bins] == wanted, "block %d: %d choices find no room", (int)s - 1, (int)wanted);
        }
    }
    whole = (float *)malloc(4 * (size_t)logits);
    if (!whole || dt__whole_rows(&tiny->e, head->g, dt__at(head->g, head->g->logits), dt__where(head, &b, head->g->logits.id), config("batch"), whole))
        tap_bail("no logits");
    tap_near(whole, tap_golden_f32(golden, "logits", logits), logits, 1e-5, "logits");
    free(whole);
}

static void test_golden(const char *file, int family, int64_t shards)
{
    const float *rate, *loss, *norm;
    const int32_t *targets;
    int64_t valid = 0, words;
    golden = tap_golden_open(file);
    if (!golden) tap_bail("no golden file");
    tap_note("%s, %d tensor shards", file, (int)shards);
    tiny_open(family, shards);
    words = config("batch") * config("sequence");
    tiny_forward();
    targets = tap_golden_i32(golden, "targets", words);
    for (int64_t i = 0; i < words; i++) valid += targets[i] >= 0;
    rate = tap_golden_f32(golden, "step.lr", 3), loss = tap_golden_f32(golden, "step.loss", 3), norm = tap_golden_f32(golden, "step.norm", 3);
    tiny->e.inv_valid = 1.0f / (float)valid;
    for (int step = 0; step < 3; step++) {
        char prefix[16];
        float mean, auxiliary = 0.0f;
        tiny->recipe.learning_rate = rate[step];
        if (dt__engine_step(&tiny->e, tiny_load, NULL)) tap_bail("%s", dt_last_error());
        mean = 0.0f;
        for (int64_t l = 0; l < contexts(); l++) mean += tiny->e.shard_loss[l] / (float)valid;
        tap_near(&mean, loss + step, 1, 1e-5, "loss at the start of the step");
        tap_near(&tiny->e.norm, norm + step, 1, 1e-5, "gradient norm");
        for (int64_t s = 0; s < contexts() * tiny->e.p.net.count; s++)
            auxiliary += tiny->e.shard_auxiliary[s] * tiny->e.env.unit_share;
        if (!step) tap_near(&auxiliary, tap_golden_f32(golden, "auxiliary", 1), 1, 1e-5, "load-balance losses");
        if (!step) tiny_compare("grad", 1);
        snprintf(prefix, sizeof prefix, "step%d", step + 1);
        tiny_compare(prefix, 0);
        tiny->e.step++;
    }
    dt_trainer_close(&tiny);
    tap_golden_close(golden);
}

int main(void)
{
    for (int64_t shards = 1; shards <= 2; shards *= 2) {
        test_golden("moe_tiny.safetensors", DT_GPT2, shards);
        test_golden("llama_moe_tiny.safetensors", DT_LLAMA, shards);
        test_golden("llama_moe_context.safetensors", DT_LLAMA, shards);
    }
    test_exact();
    test_batch_weights();
    test_blocks();
    test_alike();
    test_errors();
    test_trained();
    return tap_done();
}
