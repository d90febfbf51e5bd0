/* dtrain.h - v0.1.0 - trains a small transformer on one core or many ranks, to the same bits - MIT-0 or public domain
 *
 * QUICK START
 *     #define DTRAIN_IMPLEMENTATION        in one C or C++ file, before any other include
 *     #include "dtrain.h"
 *     #include <stdio.h>
 *
 *     int main(int argc, char **argv)
 *     {
 *         dt_recipe recipe = dt_recipe_default();        what is computed: decides the bits
 *         dt_layout layout = dt_layout_default();        where and when: never changes one
 *         dt_step_info info = dt_step_info_zero();
 *         dt_trainer *t = NULL;
 *         recipe.data = "book.txt";
 *         if (dt_launch(&argc, &argv) || dt_args(&argc, &argv, &recipe, &layout)) return dt_fail("start");
 *         if (dt_trainer_open(&t, &recipe, &layout) || dt_trainer_run(t, &info)) return dt_fail("training");
 *         if (dt_is_root(t)) printf("sha256 %s\n", dt_trainer_hash(t));
 *         dt_trainer_close(&t);
 *         return 0;
 *     }
 *
 *     cc -O2 main.c -lm -lpthread && ./a.out --ranks 2
 *
 * SWITCHES, before the include
 *     DTRAIN_IMPLEMENTATION   the implementation, in exactly one file (GNU C or C++, Linux or another POSIX)
 *     DT_STATIC               everything static: private to the file
 *     DT_MALLOC, DT_FREE      both: other allocators than malloc and free
 *     DT_ASSERT               checks of the library's own invariants, e.g. assert; default: none
 *     DT_NO_THREADS           no threads: one per rank, ranks are processes, data is read synchronously
 *     DT_DEBUG                no forced optimisation: for debuggers (slow)
 *     DT_HEADER               the name under which this file includes itself, default "dtrain.h"
 *
 * CONTENTS (search for the names)
 *     H1  base: results, memory, threads                H10 optimizer and schedules
 *     H2  numerics: Philox, exact math, SHA-256         H11 data, tokenizers
 *     H3  kernels                                       H12 probes
 *     H5  devices: CPU                                  H13 transports and collectives
 *     H6  tensors and graph                             H15 mesh, layout, step programs, executor
 *     H7  gradients                                     H16 trainer, launcher, restarts
 *     H8  models: segments, GPT-2, Llama
 *
 * THE ONE IDEA. A recipe says what is computed and decides every bit of the result. A layout says where and when; it
 * never changes a bit. Work is done per logical shard of data, tensors and sequences; a layout says who owns which, and
 * sums over shards follow one fixed tree. So the SHA-256 of the final weights is the same on 1 rank and on 8, however
 * data, tensors, sequences, layers and state are split over them, with any number of threads, with AVX-512, AVX2, NEON
 * or plain C.
 *
 * WHAT IT DOES NOT. One machine; arithmetic in fp32 only; no checkpoints; CPU only. It does not print, exit or abort
 * below the trainer and launcher. It is no general tensor library: it has the ops that its models need.
 */
#ifndef DT__ISA
#ifndef DTRAIN_H
#define DTRAIN_H

#if defined(DTRAIN_IMPLEMENTATION) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1 /* POSIX and Linux calls of the implementation; needs to come before the first system header */
#endif
#include <stddef.h>
#include <stdint.h>

#define DT_VERSION "0.1.0"
#define DT__LINK_VERSION dt__version_0_1_0

#ifdef __cplusplus
extern "C" {
#endif
#ifdef DT_STATIC
#define DT_API static
#else
#define DT_API extern
#endif

/* ---- H1  base: results and errors --------------------------------------------------------- */

/* X(code, exit status, sentence). The one list of results; dt_result_name() and the exit codes follow it. */
#define DT_RESULTS(X)                                                                                        \
    X(DT_OK, 0, "no error")                                                                                  \
    X(DT_E_HELP, 0, "help was asked for")                                                                    \
    X(DT_E_USAGE, 2, "a wrong option or argument")                                                           \
    X(DT_E_SHAPE, 1, "shapes or types that do not fit")                                                      \
    X(DT_E_MEMORY, 1, "not enough memory")                                                                   \
    X(DT_E_FILE, 1, "a file that cannot be read or written")                                                 \
    X(DT_E_DATA, 1, "a file whose content is not what it should be")                                         \
    X(DT_E_PEER, 1, "another rank is dead, frozen or disagrees")                                             \
    X(DT_E_NUMERIC, 1, "a number that is not finite")                                                        \
    X(DT_E_STOPPED, 130, "stopped on request")                                                               \
    X(DT_E_SYSTEM, 1, "the operating system refused")                                                        \
    X(DT_E_SELFCHECK, 1, "this build or processor does not compute exactly")

#define DT__RESULT_ENUM(code, status, sentence) code,
typedef enum dt_result { DT_RESULTS(DT__RESULT_ENUM) DT__RESULT_COUNT } dt_result;
#undef DT__RESULT_ENUM

/* The code's name, e.g. "DT_E_PEER". Static storage. */
DT_API const char *dt_result_name(dt_result r);
/* The exit status that a program should return for r: 0 fine, 1 failure, 2 usage, 130 stopped. */
DT_API int dt_exit_code(dt_result r);
/* What failed last on this thread, where, and how to mend it. Never NULL; valid until the next failure. */
DT_API const char *dt_last_error(void);
/* Prints "<what>: <dt_last_error()>" to standard error and returns the exit status. For main(). One rank speaks for all
 * that fail in the same way, the supervisor for a dead one; DT_E_HELP prints nothing. */
DT_API int dt_fail(const char *what);
/* Version of the implementation that was linked, e.g. "0.1.0". */
DT_API const char *dt_version(void);

/* ---- H5  devices --------------------------------------------------------------------------- */

/* The instruction set whose kernels run here: "avx512", "avx2", "neon" or "portable". The environment variable DT_ISA
 * forces one; the bits are the same with each. */
DT_API const char *dt_isa(void);

/* ---- H6  tensors and graph ----------------------------------------------------------------- */

#define DT_MAX_DIMS 6

/* A row-major shape: dims sizes in n[0..dims-1]. dims 0 is a scalar. */
typedef struct dt_shape {
    int32_t dims;
    int64_t n[DT_MAX_DIMS];
} dt_shape;
DT_API dt_shape dt_shape0(void);
DT_API dt_shape dt_shape1(int64_t a);
DT_API dt_shape dt_shape2(int64_t a, int64_t b);
DT_API dt_shape dt_shape3(int64_t a, int64_t b, int64_t c);
DT_API dt_shape dt_shape4(int64_t a, int64_t b, int64_t c, int64_t d);
/* Number of elements; 1 for a scalar. */
DT_API int64_t dt_shape_count(dt_shape s);

/* A graph of ops over tensors. Two kinds: an eager graph (dt_graph_open) computes every op as it is added, for
 * teaching and tests; a recorded graph is what a segment builds (H8) and a plan runs. One thread at a time.
 * Errors are sticky: a failed op returns a poisoned tensor, ops on poisoned tensors do nothing, and the first
 * error is kept; check dt_graph_result() once. */
typedef struct dt_graph dt_graph;
/* A value in a graph: a handle that lives as long as its graph. */
typedef struct dt_tensor {
    int32_t id; /* 0: poisoned */
} dt_tensor;

/* The type of a tensor's elements. Arithmetic is fp32. int32 holds tokens and indices. The others are storage of 2, 2,
 * 1 and 1 bytes: bfloat16, IEEE half, and the two 8-bit forms of the OCP specification (OFP8, 2023), e4m3 without
 * infinities. Ops that only move data (reshape, detach, permute, slice, chunk, expand, pad, concat, gather, embed) take
 * every type; all others take fp32, or int32 where they say so. Gradients are fp32, of 2- and 1-byte tensors too. */
typedef enum dt_dtype { DT_F32, DT_I32, DT_BF16, DT_F16, DT_F8_E4M3, DT_F8_E5M2 } dt_dtype;

/* Opens an eager graph. seed keys initialisation and dropout. */
DT_API dt_result dt_graph_open(dt_graph **graph, uint64_t seed);
DT_API void dt_graph_close(dt_graph **graph);
/* The first error of the graph (sentence in dt_last_error()), or DT_OK. */
DT_API dt_result dt_graph_result(const dt_graph *g);

DT_API dt_shape dt_shape_of(const dt_graph *g, dt_tensor t);
/* Size of one axis; negative axes count from the end. */
DT_API int64_t dt_dim(const dt_graph *g, dt_tensor t, int axis);
DT_API dt_dtype dt_dtype_of(const dt_graph *g, dt_tensor t);
/* Elements of an eager fp32 tensor, row-major, owned by the graph; NULL when poisoned, recorded, or of another type. */
DT_API const float *dt_value(const dt_graph *g, dt_tensor t);
/* The same for every type: dt_dtype_of() says what the elements are (2-byte types: uint16_t, 1-byte types: uint8_t). */
DT_API const void *dt_elements(const dt_graph *g, dt_tensor t);

/* A tensor with a copy of `data`; eager graphs only. Gradients flow into it like into a parameter. */
DT_API dt_tensor dt_tensor_from(dt_graph *g, dt_shape shape, const float *data);
/* Token ids, int32; eager graphs only. No gradient. */
DT_API dt_tensor dt_tokens_from(dt_graph *g, dt_shape shape, const int32_t *data);
/* A tensor of any type with a copy of `data`; eager graphs only. */
DT_API dt_tensor dt_tensor_of(dt_graph *g, dt_dtype dtype, dt_shape shape, const void *data);
/* A constant: every element is `value`; dt_shape0() makes a scalar, which broadcasts. No gradient. */
DT_API dt_tensor dt_full(dt_graph *g, dt_shape shape, float value);

/* How a parameter starts. DT_INIT_NORMAL: N(0, std^2), drawn from (seed, full name, element). */
typedef enum dt_init { DT_INIT_ZEROS, DT_INIT_ONES, DT_INIT_NORMAL } dt_init;
/* A trainable parameter. In a segment its full name is "<segment>.<name>"; a name that begins with '/' is absolute and
 * may be used by several segments (a tied weight: one parameter, one gradient per use). Weight decay applies to
 * parameters of two or more dimensions. */
DT_API dt_tensor dt_param(dt_graph *g, const char *name, dt_shape shape, dt_init init, float std);

/* Shapes. A reshape shares memory. Axes of permute: result axis i is axis axes[i] of x. Slice keeps [begin, end). */
DT_API dt_tensor dt_reshape(dt_graph *g, dt_tensor x, dt_shape shape);
DT_API dt_tensor dt_permute(dt_graph *g, dt_tensor x, const int *axes);
DT_API dt_tensor dt_slice(dt_graph *g, dt_tensor x, int axis, int64_t begin, int64_t end);
/* Repeats x along new leading axes and axes of size 1 until it has `shape` (the broadcasting of elementwise ops). */
DT_API dt_tensor dt_expand(dt_graph *g, dt_tensor x, dt_shape shape);
/* x with `before` and `after` zeros added along an axis. */
DT_API dt_tensor dt_pad(dt_graph *g, dt_tensor x, int axis, int64_t before, int64_t after);
/* `count` tensors one behind the other along an axis; their other sizes and their types are equal. */
DT_API dt_tensor dt_concat(dt_graph *g, const dt_tensor *tensors, int64_t count, int axis);
/* The reverse: x cut into `count` equal parts along an axis, written to parts[0..count-1]; poison on errors. */
DT_API dt_result dt_chunk(dt_graph *g, dt_tensor x, int axis, int64_t count, dt_tensor *parts);
/* x as a constant: no gradient flows through. Shares memory. */
DT_API dt_tensor dt_detach(dt_graph *g, dt_tensor x);
/* The same elements as another type; x itself when it has the type. To fewer bits: nearest, ties to even; beyond the
 * largest number: infinity, in DT_F8_E4M3, which has none, NaN (as PyTorch casts; nothing saturates). int32 to fp32:
 * nearest even. fp32 to int32: truncation; outside of int32 its nearest end, NaN gives 0. Between int32 and the small
 * types: through fp32. The gradient passes unchanged; through int32 there is none. */
DT_API dt_tensor dt_cast(dt_graph *g, dt_tensor x, dt_dtype dtype);

/* Indices are int32. One outside its axis is an error in an eager graph; in a plan, where nothing can fail any more, it
 * reads 0 and adds nothing. x and index have the same sizes but for `axis`.
 * gather: out[..,j,..] = x[..,index[..,j,..],..], shaped like index; the gradient is a scatter_add.
 * scatter_add: base with base[..,index[..,j,..],..] += x[..,j,..], one chain per element in the order of j. */
DT_API dt_tensor dt_gather(dt_graph *g, dt_tensor x, int axis, dt_tensor index);
DT_API dt_tensor dt_scatter_add(dt_graph *g, dt_tensor base, int axis, dt_tensor index, dt_tensor x);
/* int32 (..) -> (..,classes): 1 at the index, else 0; an index outside [0, classes) gives zeros. */
DT_API dt_tensor dt_one_hot(dt_graph *g, dt_tensor index, int64_t classes);
/* The k largest of the last axis in falling order, (..,n) -> (..,k); of equal ones the lower index comes first.
 * *indices, when not NULL, is where they were, int32 (..,k). The gradient goes to the elements that were picked. */
DT_API dt_tensor dt_top_k(dt_graph *g, dt_tensor x, int64_t k, dt_tensor *indices);
/* Sums of x up to and including each place of an axis: one chain from +0 in index order. */
DT_API dt_tensor dt_cumsum(dt_graph *g, dt_tensor x, int axis);


/* Elementwise, (..) -> (..). Ops of several tensors broadcast: shapes are aligned at the last axis, sizes equal or 1.
 * Every function is right for zeros of both signs, subnormals, inf and NaN. Errors against the real value, over all
 * floats (tests/ulp.md): exp, log, tanh below 2 ulp; sqrt and reciprocal rounded once; rsqrt 1.5 ulp; exp2, log2,
 * expm1, log1p, softplus, sigmoid, silu, gelu_erf, erf, sin, cos, tan, pow below 0.51 ulp. */
DT_API dt_tensor dt_neg(dt_graph *g, dt_tensor x);
DT_API dt_tensor dt_scale(dt_graph *g, dt_tensor x, float s);
DT_API dt_tensor dt_square(dt_graph *g, dt_tensor x);     /* x x */
DT_API dt_tensor dt_reciprocal(dt_graph *g, dt_tensor x); /* 1 / x */
DT_API dt_tensor dt_sqrt(dt_graph *g, dt_tensor x);
DT_API dt_tensor dt_rsqrt(dt_graph *g, dt_tensor x); /* 1 / sqrt(x) */
DT_API dt_tensor dt_exp(dt_graph *g, dt_tensor x);
DT_API dt_tensor dt_exp2(dt_graph *g, dt_tensor x);  /* 2^x */
DT_API dt_tensor dt_expm1(dt_graph *g, dt_tensor x); /* e^x - 1 */
DT_API dt_tensor dt_log(dt_graph *g, dt_tensor x);
DT_API dt_tensor dt_log2(dt_graph *g, dt_tensor x);
DT_API dt_tensor dt_log1p(dt_graph *g, dt_tensor x); /* log(1 + x) */
DT_API dt_tensor dt_sin(dt_graph *g, dt_tensor x);   /* x in radians, also huge ones */
DT_API dt_tensor dt_cos(dt_graph *g, dt_tensor x);
DT_API dt_tensor dt_tan(dt_graph *g, dt_tensor x);
DT_API dt_tensor dt_tanh(dt_graph *g, dt_tensor x);
DT_API dt_tensor dt_erf(dt_graph *g, dt_tensor x);
DT_API dt_tensor dt_sigmoid(dt_graph *g, dt_tensor x);  /* 1 / (1 + e^-x) */
DT_API dt_tensor dt_softplus(dt_graph *g, dt_tensor x); /* log(1 + e^x) */
/* x / (1 + e^-x) (Elfwing et al. 2018; Hendrycks and Gimpel 2016). -inf gives the limit, -0. */
DT_API dt_tensor dt_silu(dt_graph *g, dt_tensor x);
/* GELU, tanh form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016). */
DT_API dt_tensor dt_gelu(dt_graph *g, dt_tensor x);
/* GELU itself: x Phi(x) = x/2 (1 + erf(x / sqrt 2)). -inf gives the limit, -0. */
DT_API dt_tensor dt_gelu_erf(dt_graph *g, dt_tensor x);
/* x <= 0 ? +0 : x. Gradient 0 for x <= 0. NaN stays NaN. */
DT_API dt_tensor dt_relu(dt_graph *g, dt_tensor x);
/* |x|; gradient +0 at 0. */
DT_API dt_tensor dt_abs(dt_graph *g, dt_tensor x);
/* 1 or -1; zeros and NaN stay. Like the next three it is constant almost everywhere and passes no gradient on. */
DT_API dt_tensor dt_sign(dt_graph *g, dt_tensor x);
/* Whole numbers: below, above, nearest with ties to even. A zero has the sign of x. */
DT_API dt_tensor dt_floor(dt_graph *g, dt_tensor x);
DT_API dt_tensor dt_ceil(dt_graph *g, dt_tensor x);
DT_API dt_tensor dt_round(dt_graph *g, dt_tensor x);
/* x within [low, high]; the gradient is x's there, the bounds included, and +0 outside. NaN stays NaN. DT_E_USAGE:
 * low > high. */
DT_API dt_tensor dt_clamp(dt_graph *g, dt_tensor x, float low, float high);
DT_API dt_tensor dt_add(dt_graph *g, dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_sub(dt_graph *g, dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_mul(dt_graph *g, dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_div(dt_graph *g, dt_tensor a, dt_tensor b);
/* a^b with the special cases of C's pow. The gradient of a is +0 where b is 0, that of b is +0 where a is 0 and NaN
 * where a is negative. */
DT_API dt_tensor dt_pow(dt_graph *g, dt_tensor a, dt_tensor b);
/* a > b ? a : b, and a < b ? a : b (R14): b when they are equal or one is NaN. The gradient goes to the one taken. */
DT_API dt_tensor dt_maximum(dt_graph *g, dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_minimum(dt_graph *g, dt_tensor a, dt_tensor b);
/* 1 where it holds, else +0. With NaN only not_equal holds. No gradient. */
DT_API dt_tensor dt_equal(dt_graph *g, dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_not_equal(dt_graph *g, dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_less(dt_graph *g, dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_less_equal(dt_graph *g, dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_greater(dt_graph *g, dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_greater_equal(dt_graph *g, dt_tensor a, dt_tensor b);
/* mask != 0 ? a : b, element by element, all three broadcast. The gradient goes to the one taken and is +0 for the
 * other, whatever that holds; mask has none. */
DT_API dt_tensor dt_select(dt_graph *g, dt_tensor mask, dt_tensor a, dt_tensor b);

/* Reductions over the axes whose bits are set (bit i: axis i); the axes vanish. DT_ALL: every axis, gives a scalar.
 * With | DT_KEEP the axes stay with size 1, so that the result broadcasts against x. mean is sum * (1/n). The gradient
 * of max and min goes to the first one. */
#define DT_ALL 0x7fffffffu
#define DT_KEEP 0x80000000u
DT_API dt_tensor dt_sum(dt_graph *g, dt_tensor x, unsigned axes);
DT_API dt_tensor dt_mean(dt_graph *g, dt_tensor x, unsigned axes);
DT_API dt_tensor dt_max(dt_graph *g, dt_tensor x, unsigned axes);
DT_API dt_tensor dt_min(dt_graph *g, dt_tensor x, unsigned axes);
/* int32 index of the first maximum, row-major over the reduced axes (at least one). No gradient. */
DT_API dt_tensor dt_argmax(dt_graph *g, dt_tensor x, unsigned axes);
/* sum (x - mean)^2 / n, or / (n - 1) when `unbiased`. */
DT_API dt_tensor dt_var(dt_graph *g, dt_tensor x, unsigned axes, int unbiased);
/* max + log sum exp(x - max). */
DT_API dt_tensor dt_logsumexp(dt_graph *g, dt_tensor x, unsigned axes);
/* exp(x - max) / sum exp(x - max), and x - max - log sum exp(x - max), over one axis (negative: from the end). */
DT_API dt_tensor dt_softmax(dt_graph *g, dt_tensor x, int axis);
DT_API dt_tensor dt_log_softmax(dt_graph *g, dt_tensor x, int axis);

/* op(a) op(b), op transposing the last two axes when its flag is set: (..,M,K) x (..,K,N) -> (..,M,N). Leading axes
 * broadcast. A vector (K) is a row at the left, a column at the right (its flag is ignored), and its axis of size 1
 * vanishes from the result. Fastest: b a matrix and a not transposed, one product for the whole batch. */
DT_API dt_tensor dt_matmul(dt_graph *g, dt_tensor a, dt_tensor b, int transpose_a, int transpose_b);
/* x W + b: (..,K) -> (..,width), W (K,width) "<name>.weight" ~ N(0, 0.02^2), b (width) "<name>.bias" = 0. */
DT_API dt_tensor dt_linear(dt_graph *g, dt_tensor x, const char *name, int64_t width);
/* Column-parallel form of the same: tensor shards have columns of W and b, and its input gradient is Vt partial sums
 * and a COMBINE (R6). std of W is given. In a segment with Vt > 1 the result has this rank's columns, (..,width) only
 * where one rank has all shards, and until dt_linear_row only elementwise ops (no dropout), dt_rope and attention may
 * read it; heads are then those of the whole model and must be multiples of Vt. */
DT_API dt_tensor dt_linear_column(dt_graph *g, dt_tensor x, const char *name, int64_t width, float std);
/* Row-parallel form: tensor shards have rows of W, for the columns of x that dt_linear_column gave: Vt partial products
 * over slices of K, a COMBINE, then the bias, which is whole (R6). */
DT_API dt_tensor dt_linear_row(dt_graph *g, dt_tensor x, const char *name, int64_t width, float std);
/* Sums axis 0 of (V, ..), V a power of two, by the fixed tree. */
DT_API dt_tensor dt_combine(dt_graph *g, dt_tensor x);

/* The window of a convolution or a pooling along (height, width), or along the one axis of a sequence in [0]. */
typedef struct dt_window {
    int64_t size[2];     /* convolutions: at most 64 along an axis; dt_convolve takes it from the weight */
    int64_t stride[2];   /* 0: 1 for a convolution, size for a pooling */
    int64_t padding[2];  /* places outside the tensor at each side; pooling: at most half the size */
    int64_t dilation[2]; /* convolutions: distance of neighbouring taps, 0: 1 */
    int64_t groups;      /* convolutions: output channels of a group see the input channels of it alone; 0: 1 */
} dt_window;
/* Convolution (cross-correlation, LeCun et al. 1989): x (B,C,L) with weight (O,C/groups,K) -> (B,O,L'), or x (B,C,H,W)
 * with weight (O,C/groups,KH,KW) -> (B,O,H',W'); n' = (n + 2 padding - dilation (size - 1) - 1) / stride + 1. bias (O),
 * or a tensor with id 0. window may be NULL. Each output is one chain over (input channel, tap row, tap column), the
 * bias added last; its input's gradient one over (output channel, tap row, tap column); its weight's one over (sample,
 * position). Terms outside the tensor are in no chain. */
DT_API dt_tensor dt_convolve(dt_graph *g, dt_tensor x, dt_tensor weight, dt_tensor bias, const dt_window *window);
/* The same with parameters for `channels` outputs: "<name>.weight" ~ N(0, 2/n), n the inputs of an output (He et al.
 * 2015), and "<name>.bias" = 0. */
DT_API dt_tensor dt_conv1d(dt_graph *g, dt_tensor x, const char *name, int64_t channels, const dt_window *window);
DT_API dt_tensor dt_conv2d(dt_graph *g, dt_tensor x, const char *name, int64_t channels, const dt_window *window);
/* Largest element or mean of every window: (B,C,L) -> (B,C,L') or (B,C,H,W) -> (B,C,H',W'), sizes as above. Places
 * outside the tensor are no maximum; in a mean they count as zeros (sum in window order / size). The gradient of a
 * maximum goes to its first element. */
DT_API dt_tensor dt_max_pool(dt_graph *g, dt_tensor x, const dt_window *window);
DT_API dt_tensor dt_avg_pool(dt_graph *g, dt_tensor x, const dt_window *window);

/* Rows of table (V,C), of any type, picked by int32 tokens (..): (..,C). Tokens must lie in [0, V): the trainer refuses
 * data with others; one that a segment computes and that lies outside gives a row of zeros and no gradient. */
DT_API dt_tensor dt_embed(dt_graph *g, dt_tensor table, dt_tensor tokens);
/* (x - mean) / sqrt(var + 1e-5) * gamma + beta over the last axis; "<name>.weight" = 1, "<name>.bias" = 0 (C). */
DT_API dt_tensor dt_layernorm(dt_graph *g, dt_tensor x, const char *name);
/* x / sqrt(mean(x^2) + 1e-5) * gamma over the last axis (Zhang and Sennrich 2019); "<name>.weight" = 1 (C). */
DT_API dt_tensor dt_rmsnorm(dt_graph *g, dt_tensor x, const char *name);
/* Both with another eps, 0 or above. */
DT_API dt_tensor dt_layernorm_eps(dt_graph *g, dt_tensor x, const char *name, float eps);
DT_API dt_tensor dt_rmsnorm_eps(dt_graph *g, dt_tensor x, const char *name, float eps);
/* (x - mean) / sqrt(var + eps) * gamma + beta for each channel of (B,C,..), mean and biased variance over all other
 * axes (Ioffe and Szegedy 2015); "<name>.weight" = 1, "<name>.bias" = 0 (C). In a segment the statistics are those of
 * one unit of work, i.e. of one micro-batch of one data shard: the recipe decides them, no layout changes them, and
 * they are not averaged over shards. There is no hidden state: no running averages are kept, validation uses the
 * statistics of its own units. */
DT_API dt_tensor dt_batchnorm(dt_graph *g, dt_tensor x, const char *name, float eps);
/* The same with given mean and var (C), for inference: collect them yourself, e.g. with dt_mean and dt_var. */
DT_API dt_tensor dt_batchnorm_given(dt_graph *g, dt_tensor x, dt_tensor mean, dt_tensor var, const char *name,
                                    float eps);
/* Scaled dot-product attention of `heads` heads over rows [q | k | v]: (B,T,3C) -> (B,T,C), scale 1/sqrt(C/heads),
 * dropout with probability p on the weights (Vaswani et al. 2017). */
DT_API dt_tensor dt_attention(dt_graph *g, dt_tensor qkv, int64_t heads, int causal, float p);
/* How dt_attend works; what is 0 has its usual value. */
typedef struct dt_attention_options {
    int64_t heads;    /* H, of the queries */
    int64_t kv_heads; /* 0: H. Fewer, a divisor of H: each serves H/kv_heads neighbouring query heads */
    int causal;       /* query i sees the keys 0 .. i+S-T: the last query sees all, as with a cache of earlier keys */
    float dropout;    /* probability with which a weight becomes zero, the others grow by 1/(1-p) */
    float scale;      /* of the scores; 0: 1/sqrt(d) */
} dt_attention_options;
/* Attention with separate tensors: q (B,T,H*d), k and v (B,S,kv_heads*d) -> (B,T,H*d). mask, int32 or float, (T,S) or
 * (B,T,S): where it is 0 the query does not see the key; a tensor with id 0: no mask. A query that sees nothing gives
 * +0 and no gradient. Grouped queries: Ainslie et al. 2023. Its rows have the same bits whether computed together or,
 * against a cache of keys, one by one. */
DT_API dt_tensor dt_attend(dt_graph *g, dt_tensor q, dt_tensor k, dt_tensor v, dt_tensor mask,
                           const dt_attention_options *options);
/* Llama 3's slowing of rotary frequencies f, for contexts longer than the model was trained on: with w = f *
 * original_context / (2 pi) waves in the original context, f / factor where w < low_freq_factor, f where w >
 * high_freq_factor, and between the two in proportion to w. factor 0: none. */
typedef struct dt_rope_scaling {
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_context;
} dt_rope_scaling;
/* Rotary positions (Su et al. 2021): (B,T,H*d) -> same, d even. In every head of position t the pair (x_c, x_{c+d/2})
 * turns by (offset + t) base^(-2c/d) radians: (x_c cos - x_{c+d/2} sin, x_{c+d/2} cos + x_c sin), the half-split order
 * of Llama. scaling may be NULL. Angles are computed in double, their cosines and sines rounded to float: error below
 * 0.51 * 2^-24 up to position 2^20 (a float angle would be wrong by position * 2^-24). */
DT_API dt_tensor dt_rope(dt_graph *g, dt_tensor x, int64_t heads, double base, int64_t offset,
                         const dt_rope_scaling *scaling);
/* Zero with probability p, else x / (1-p). The mask is a function of (seed, step, sample, site, element): axis 0
 * counts samples. p = 0 returns x. */
DT_API dt_tensor dt_dropout(dt_graph *g, dt_tensor x, float p);
/* Losses are scalars. In an eager graph a loss is a mean. In a segment it is a sum, which the trainer divides by N, the
 * targets of the whole batch that are 0 or above (all of them where they are floats); a sum over fewer or more terms
 * than the unit has targets is scaled by targets / terms first. So the trainer shows, and differentiates, the mean over
 * the whole batch.
 *
 * -log softmax(logits)[target], (..,V) and int32 (..); targets below 0 are ignored. */
DT_API dt_tensor dt_cross_entropy(dt_graph *g, dt_tensor logits, dt_tensor targets);
/* The same with the share `smoothing` (0 to 1) of the target's weight spread over all V classes, its own included:
 * -sum_v w_v log softmax(logits)[v], w = smoothing/V, and + 1 - smoothing at the target (Szegedy et al. 2016). */
DT_API dt_tensor dt_cross_entropy_smooth(dt_graph *g, dt_tensor logits, dt_tensor targets, float smoothing);
/* Any loss that is a mean of terms, made of ops: (B,..) terms, e.g. |x - target|. Axis 0 counts samples. In a segment a
 * sample all of whose int32 targets are below 0 does not count (the trainer fills a validation's last unit with such,
 * or, where targets are floats, with samples that it knows). */
DT_API dt_tensor dt_loss(dt_graph *g, dt_tensor terms);
/* dt_loss of (x - target)^2; both fp32 (B,..) of one shape. The target of a forecaster that reads a series of tokens:
 * dt_scale(g, dt_cast(g, dt_targets(g), DT_F32), s), or a part of its own input; of a source, its float targets. */
DT_API dt_tensor dt_mse(dt_graph *g, dt_tensor x, dt_tensor target);
/* dt_loss of max(x,0) - x target + log(1 + exp(-|x|)): binary cross-entropy of sigmoid(x) and targets in [0, 1]. */
DT_API dt_tensor dt_bce_logits(dt_graph *g, dt_tensor x, dt_tensor target);

/* Adds coefficient * loss, a scalar of the graph, to what is trained, and returns x; x must lie on the way to the main
 * loss. In an eager graph the whole is main loss + coefficient * loss. In a segment each unit of work (a micro-batch of
 * a data shard) has a value of its own, and the whole is main loss + coefficient * mean of the units' values: the
 * recipe decides the units, no layout changes them. The loss that the trainer shows is the main one alone; the others
 * are dt_step_info.auxiliary. */
DT_API dt_tensor dt_auxiliary_loss(dt_graph *g, dt_tensor x, dt_tensor loss, float coefficient);

/* A mixture of E experts of which each token uses k (Shazeer et al. 2017); what is 0 has its usual value. */
typedef struct dt_moe_options {
    int64_t experts; /* E */
    int64_t active;  /* k, from 1 to E; 1: Fedus et al. 2022 (Switch), 2: Jiang et al. 2024 (Mixtral) */
    int64_t width;   /* H, hidden units of an expert; 0: 4 C */
    int gated;       /* experts are silu(x Wgate) * (x Wup) (Shazeer 2020); 0: gelu(x Wup) */
    int bias;        /* experts have biases */
    int raw_weights; /* a token's experts have their probabilities as weights; 0: divided by their sum, as Mixtral (with
                        k = 1 the weight is then 1 and only auxiliary losses train the router) */
    float capacity;  /* an expert takes at most ceil(capacity * tokens * k / E) tokens of a unit; 0: no limit */
    float balance;   /* coefficient of the load-balance loss */
    float z_loss;    /* coefficient of the mean over tokens of logsumexp(logits)^2 (Zoph et al. 2022) */
    float down_std;  /* standard deviation of the second weights at the start; 0: 0.02 */
} dt_moe_options;
/* sum of w_e expert_e(x) over the k experts with the largest p_e, p = softmax(x Wr): (..,C) -> (..,C). Of equal p the
 * lower expert is taken; a token adds its experts in index order. Tokens of a unit are routed in order; those that an
 * expert has no room for are dropped: it adds nothing to them, their other weights stay, a token dropped by all gives
 * +0. An expert multiplies the rows that it was given and no others. With context shards in the recipe a unit is what
 * one of them has of a micro-batch of a data shard: of each sample its early slice, then its late one. So capacity and
 * balance are of its tokens alone, however many ranks there are.
 * The load-balance loss is E * sum_e f_e P_e per unit, f_e the share of the unit's N k choices (drops included) that
 * expert e got, P_e the mean of p_e over the N tokens: 1 when all is even, E/k at most (Fedus et al. 2022, equation 4,
 * there for k = 1); gradients flow through P alone.
 * Parameters: Wr "<name>.gate.weight" (C,E), "<name>.experts.up_proj" (E,C,H), gated "<name>.experts.gate_up_proj"
 * (E,C,2H), gate first, and "<name>.experts.down_proj" (E,H,C), all ~ N(0, 0.02^2); biases = 0, with "_bias" behind
 * the names, those of all experts in one row: (E*H), (E*2H), (E*C). Memory is that of min(N k, E * capacity) rows of
 * a unit; where ep ranks share the experts (dt_layout), of ep * min(N min(k, E/ep), E/ep * capacity): without a
 * capacity all tokens of all these ranks may want the experts of one. */
DT_API dt_tensor dt_moe(dt_graph *g, dt_tensor x, const char *name, const dt_moe_options *options);

/* ---- H7  gradients ------------------------------------------------------------------------- */

/* Appends the gradient of scalar `loss` with respect to every tensor it depends on (reverse mode). Once per graph. */
DT_API dt_result dt_backward(dt_graph *g, dt_tensor loss);
/* The gradient of t after dt_backward, t's shape; poisoned when the loss does not depend on t. */
DT_API dt_tensor dt_grad(dt_graph *g, dt_tensor t);

/* ---- H8  models: segments, GPT-2, Llama ------------------------------------------------------ */

/* A segment builds a part of a model: from x it returns its output. The first segment's x is int32 tokens (B,T), or
 * what a dt_source says; the last one returns a loss (dt_cross_entropy, dt_loss, ..); between them x is what the one
 * before returned, fp32. B is the samples of one unit of work and is decided by the trainer: take sizes from dt_dim().
 * `user` must outlive the model. */
typedef dt_tensor (*dt_segment_fn)(dt_graph *g, dt_tensor x, const void *user);
typedef struct dt_segment {
    const char *name; /* prefix of its parameters; segments with the same build, user and shapes share one plan */
    dt_segment_fn build;
    const void *user;
} dt_segment;

/* The next tokens (B,T) that the model should predict, or the targets of a dt_source; for the last segment. */
DT_API dt_tensor dt_targets(dt_graph *g);
/* Marks x, fp32 (B,..), as what dt_trainer_predict() gives, once in a model, and returns it. Unmarked it is the logits
 * of dt_cross_entropy. */
DT_API dt_tensor dt_prediction(dt_graph *g, dt_tensor x);

typedef enum dt_family { DT_GPT2, DT_LLAMA } dt_family;

/* What is trained. Copied by value; what the pointers name must outlive it. */
typedef struct dt_model {
    const dt_segment *segments; /* own model; NULL: one of the family below */
    int64_t segment_count;
    int64_t layers, heads, width; /* blocks, attention heads, channels C */
    int64_t vocabulary;           /* 0: what the data has */
    float dropout;                /* GPT-2: probability at its three places; 0 in the named sizes */
    int32_t family;               /* dt_family */
    int32_t tied;                 /* Llama: 1: the head is the embedding's table (GPT-2's always is) */
    int64_t kv_heads;             /* Llama: heads of the keys and values, a divisor of heads; 0: heads */
    int64_t hidden;               /* Llama: width of the MLP; 0: 8/3 C, up to a multiple of 256 (C below 1024: of 32) */
    float rope_base;              /* Llama: of the rotary frequencies; 0: 10000 */
    float norm_eps;               /* Llama: of the normalisations; 0: 1e-5 */
    dt_rope_scaling rope_scaling; /* Llama: factor 0: none */
    int64_t experts;              /* a mixture of so many experts (dt_moe) in the place of each MLP; 0: the MLP */
    int64_t active;               /* experts per token; 0: 2. With 1 the weights are raw (Switch) */
    float capacity;               /* of an expert, as in dt_moe_options; 0: no limit */
    float balance;                /* coefficient of the load-balance loss; 0.01 in the named sizes */
} dt_model;

/* A named size of the GPT-2 family: "nano", "micro", "tiny", "small", "124M", "355M", "774M", "1558M"; layers is 0 when
 * the name is unknown (dt_trainer_open says which there are). Any other size: set the fields. */
DT_API dt_model dt_model_gpt2(const char *size);
/* A named size of the Llama family (Touvron et al. 2023, Llama 2 and 3): "llama-nano", "llama-micro", "llama-tiny",
 * "llama-small", as large as the GPT-2 sizes of these names; "llama-1.1B" (TinyLlama), "llama-7B", "llama-13B" (Llama
 * 2), "llama3-8B", "llama3.2-1B", as published but for the vocabulary. layers is 0 when the name is unknown.
 *
 * A block is x + o(attend(rope(q), rope(k), v)), q, k, v of rmsnorm(x), then x + down(silu(gate) * up), gate and up of
 * rmsnorm(x) (SwiGLU, Shazeer 2020); no biases. Parameters have Hugging Face's names, "model.layers.0.self_attn.q_proj.
 * weight" and so on. The seven *_proj.weight of a block are (in,out), as every linear weight here: a file for Hugging
 * Face transposes them. Tables and lm_head.weight (V,C) and norms are as they are there. */
DT_API dt_model dt_model_llama(const char *size);
/* A model of one's own; vocabulary as in dt_model. */
DT_API dt_model dt_model_segments(const dt_segment *segments, int64_t count, int64_t vocabulary);

/* ---- H10  recipe: what is computed (it decides the bits), optimizer, schedules ------------------ */

typedef enum dt_schedule { DT_CONSTANT, DT_COSINE, DT_LINEAR, DT_WSD } dt_schedule; /* WSD: warm-up, stable, decay */
/* How micro-batches add up (R3, R4). SHARD: one chain per data shard through all micro-batches, reduced once per step
 * (no_sync in between). EACH: every micro-batch is reduced and the totals are added. The bits differ. */
typedef enum dt_accumulation { DT_SHARD, DT_EACH } dt_accumulation;

/* Optimizers. g is the gradient after both clips, lr the learning rate, t the step from 1, d the weight decay, 0 for
 * parameters of fewer than two dimensions; b1, b2 are beta1, beta2. In brackets: bytes of state per weight.
 *
 * ADAMW (8): m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2,
 *     w = w (1 - lr d) - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) (Loshchilov and Hutter 2019).
 * ADAM (8): with decay in the gradient: g + d w in place of g, no (1 - lr d) (Kingma and Ba 2015).
 * SGD (0, with momentum 4): g + d w in place of g, u = momentum u + g, w = w - lr u;
 *     with nesterov w = w - lr (g + momentum u) (Sutskever et al. 2013).
 * LION (4): w = w (1 - lr d) - lr sign(b1 m + (1 - b1) g), then m = b2 m + (1 - b2) g; sign(0) is 0 (Chen et al. 2023).
 *     It wants a third to a tenth of AdamW's learning rate, and b2 = 0.99.
 * ADAMW8 (2.03): AdamW that keeps m and sqrt(v) in 8 bits between steps (after Dettmers et al. 2022), as shares of the
 *     largest of their block of 256 weights: m a sign, 4 bits of exponent and 3 of fraction; sqrt(v) 4 and 4, rounded
 *     to nearest even. They are off by 1/16 and 1/32 at most above 2^-15 of the largest, and reach down to about 2^-18
 *     and 2^-19 of it. A root above 0 never rounds to 0, so that no step divides by it. The step is made in fp32,
 *     before rounding. A block depends on no other, so storage may be cut at any. */
typedef enum dt_optimizer { DT_ADAMW, DT_ADAM, DT_SGD, DT_LION, DT_ADAMW8 } dt_optimizer;

/* Start from dt_recipe_default(); new fields will have defaults there. */
typedef struct dt_recipe {
    dt_model model;
    const char *data;            /* file, comma list or pattern of text files or .bin token shards (H11) */
    const char *tokenizer;       /* directory or file of the tokenizer of a text, and of samples; NULL: bytes (H11) */
    const struct dt_source *source; /* instead of data: samples of the program's own (H11); copied */
    int64_t steps;               /* optimizer steps */
    int64_t batch;               /* sequences per step */
    int64_t micro_batch;         /* sequences per micro-batch, divides batch; 0: batch */
    int64_t sequence;            /* T, tokens per sequence; with a source: its inputs */
    int64_t seed;
    int64_t data_shards;         /* Vd, a power of two that divides micro_batch; up to Vd ranks can share the work */
    int64_t tensor_shards;       /* Vt, a power of two that divides heads, hidden units, rows of a unit of work */
    int64_t context_shards;      /* Vc, a power of two; above 1 a sequence is 2 Vc slices, which divide it, and context
                                    shard c has the slices c and 2 Vc - 1 - c, which mixtures route alone (dt_moe) */
    int64_t warmup;              /* steps of linear warm-up from 0 */
    int64_t decay;               /* steps of the final decay of WSD; 0: a tenth of steps */
    int32_t schedule;            /* dt_schedule */
    int32_t accumulation;        /* dt_accumulation */
    float learning_rate;         /* peak */
    float final_rate;            /* share of the peak at the end of cosine, linear and WSD */
    float beta1, beta2, epsilon; /* AdamW, Adam; Lion's betas */
    float weight_decay;          /* parameters of two or more dimensions only */
    float clip;                  /* limit of the global gradient norm; 0: none */
    float dropout;               /* GPT-2; overrides model.dropout when above 0 */
    float validation;            /* share of the files kept for validation */
    int32_t optimizer;           /* dt_optimizer */
    int32_t nesterov;            /* SGD: look ahead by one momentum */
    float momentum;              /* SGD, in [0, 1); 0: none */
    float clip_value;            /* limit of every gradient element, after clip; 0: none */
    float ema;                   /* decay D of an average of the weights; 0: none. a starts as w; a = D a + (1 - D) w
                                    after each step (Polyak and Juditsky 1992). 4 more bytes per weight */
    int32_t evaluate_ema;        /* validation, predictions, text samples use the average */
} dt_recipe;
DT_API dt_recipe dt_recipe_default(void);
/* Bytes per weight that the recipe's optimizer keeps between steps, the average of the weights included. */
DT_API double dt_optimizer_bytes(const dt_recipe *recipe);

/* Learning rate of step `step` (0 first). Warm-up is lr (step+1)/warmup; cosine is
 * final + (1-final)(1 + cos(pi x))/2 with x from 0 after warm-up to 1 at the end (Loshchilov and Hutter 2017). */
DT_API float dt_learning_rate(const dt_recipe *recipe, int64_t step);

/* ---- H11  data, tokenizers ------------------------------------------------------------------ */

/* A byte-level BPE tokenizer (Sennrich et al. 2016; Radford et al. 2019): text is cut into pre-tokens by a rule, the
 * bytes of each are merged pair by pair, the pair of the lowest rank first, the leftmost of equals. Read-only once
 * open: any number of threads may use it at the same time; one thread opens and closes it. */
typedef struct dt_tokenizer dt_tokenizer;

/* How text is cut into pre-tokens, by the classes of Unicode 14.0 (L letters, N numbers, white space). A byte that is
 * no part of well-formed UTF-8 counts as one character of no class.
 * GPT2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * LLAMA3: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
 *         \s+(?!\S)|\s+ */
typedef enum dt_pretokens { DT_PRETOKENS_GPT2, DT_PRETOKENS_LLAMA3 } dt_pretokens;

/* Opens a directory that holds tokenizer.json (taken first), or vocab.json and merges.txt; or one such .json file, the
 * merges.txt of a vocab.json beside it. vocab.json means the rule GPT2; its entries that are longer than a byte and
 * made by no merge are special tokens. tokenizer.json is the format of Hugging Face: a BPE model, no normalizer, the
 * pre-tokenizer ByteLevel (GPT2) or Split by one of the rules and ByteLevel; its post-processor and decoder are not
 * read: encoding adds no tokens. Up to 1048576 ids. *t is NULL on errors; DT_E_FILE: cannot be read; DT_E_DATA:
 * damaged, with line and byte, or of a kind that is not supported. Close with dt_tokenizer_close(). */
DT_API dt_result dt_tokenizer_open(dt_tokenizer **t, const char *path);
/* Learns a vocabulary of up to `vocabulary` ids from texts, named as in dt_data_open(): ids 0..255 are the bytes in
 * the order of GPT-2, then the special tokens (a list that ends with NULL, or NULL; 2 or more printable ASCII
 * characters each; where they stand in the text, nothing is learned), then one id per merge. The next merge is the
 * pair with the highest count; of equal counts the one with the smallest left id, then right id. Pairs that occur once
 * are not merged: a short text gives fewer ids. Memory grows with the different pre-tokens, about 80 bytes for each of
 * their bytes. */
DT_API dt_result dt_tokenizer_train(dt_tokenizer **t, const char *path, int64_t vocabulary, dt_pretokens rule,
                                    const char *const *special);
/* Also sets *t to NULL; a NULL *t is fine. */
DT_API void dt_tokenizer_close(dt_tokenizer **t);
/* Writes tokenizer.json, vocab.json and merges.txt into a directory, which is made when it is missing; they appear
 * when all are complete. vocab.json and merges.txt do not tell the rule: only tokenizer.json keeps LLAMA3. */
DT_API dt_result dt_tokenizer_save(const dt_tokenizer *t, const char *folder);

/* The largest id + 1. */
DT_API int64_t dt_tokenizer_size(const dt_tokenizer *t);
/* The bytes of a token, not ended by a NUL, and how many; NULL when there is no such id. */
DT_API const char *dt_tokenizer_token(const dt_tokenizer *t, int64_t id, int64_t *bytes);
/* The id of the token with exactly these bytes, a special one first, such as "<|endoftext|>"; -1: none. */
DT_API int64_t dt_tokenizer_find(const dt_tokenizer *t, const void *bytes, int64_t count);
/* Number of merges, and the two ids that merge `rank` (0 first) joins; 0 when there is no such merge. */
DT_API int64_t dt_tokenizer_merges(const dt_tokenizer *t);
DT_API int dt_tokenizer_merge(const dt_tokenizer *t, int64_t rank, int32_t *left, int32_t *right);

/* Ids of a text. `ids` has room for `bytes` of them; *count becomes their number. special 1: special tokens in the
 * text become their ids; 0: they are text like any other. (Added tokens that are not special always become ids.) Takes
 * n log n for the longest pre-token of n bytes. */
DT_API dt_result dt_tokenizer_encode(const dt_tokenizer *t, const void *text, int64_t bytes, int special, int32_t *ids,
                                     int64_t *count);
/* The text of `count` ids; *bytes becomes its length. text NULL only counts. Decoding what was encoded gives the same
 * bytes, whatever they were. DT_E_DATA: an id that is not in the vocabulary. */
DT_API dt_result dt_tokenizer_decode(const dt_tokenizer *t, const int32_t *ids, int64_t count, char *text,
                                     int64_t *bytes);

/* A source of training sequences. It is read-only once open, so any number of threads may use it at the same time;
 * one thread opens and closes it. The files are memory-mapped: do not shorten them meanwhile. */
typedef struct dt_data dt_data;

typedef enum dt_split { DT_TRAIN, DT_VALIDATION } dt_split;

/* Opens a file, a comma-separated list of files, or a pattern with * or ? (its matches in byte order of their names);
 * several files are one after the other. Each is either
 *   - token ids in llm.c's .bin form: 256 int32 (20240520, version 1, number of tokens, 0...), then uint16 ids; or
 *   - anything else: every byte is a token. A file named *.bin must be of the first kind, and kinds do not mix.
 * `sequence` is T, the tokens of a sample. The last `validation_fraction` (0 to below 1) of the tokens is set apart;
 * if it is not 0, both parts must hold at least one sequence.
 * DT_E_FILE: cannot be read; DT_E_DATA: too short or damaged; *d is then NULL. Close with dt_data_close(). */
DT_API dt_result dt_data_open(dt_data **d, const char *path, int64_t sequence, double validation_fraction);
/* The same for a text that is encoded when it is opened, with its special tokens; token ids are taken as they are. The
 * ids stay in memory: 2 bytes each, 4 when the vocabulary is above 65536. It takes seconds per 10 MB and rank: turn a
 * large text into .bin shards by dt_data_tokenize(). NULL for t: as dt_data_open(). d does not need t later. */
DT_API dt_result dt_data_open_tokenized(dt_data **d, const char *path, const dt_tokenizer *t, int64_t sequence,
                                        double validation_fraction);
/* Also sets *d to NULL; a NULL *d is fine. */
DT_API void dt_data_close(dt_data **d);

/* Samples in a split: (its tokens - 1) / T, without the rest. */
DT_API int64_t dt_data_samples(const dt_data *d, dt_split split);
/* Tokens in a split. */
DT_API int64_t dt_data_tokens(const dt_data *d, dt_split split);
/* The smallest vocabulary that holds every token: 256 for bytes, its tokenizer's size for a text that was encoded. For
 * token ids it reads all of them: ask once. */
DT_API int64_t dt_data_vocabulary(const dt_data *d);

/* The training sample at place `global_index` >= 0 (step * batch + i) of an endless run: each epoch visits every
 * sample once, in an order that depends on (seed, epoch) and on nothing else (R16), so any rank can ask for any place
 * and a resumed run goes on where it was. Takes constant time. */
DT_API int64_t dt_data_sample(const dt_data *d, uint64_t seed, int64_t global_index);
/* Writes sample `sample` of the split: tokens (T) are its inputs, targets (T) the same shifted by one. */
DT_API dt_result dt_data_fetch(const dt_data *d, dt_split split, int64_t sample, int32_t *tokens, int32_t *targets);

/* Samples of the program's own, for models of any kind: images, series, measurements. fetch writes sample `sample`, 0
 * to samples[split] - 1, to input (inputs) and target (targets). The first segment's x is then (B,inputs) of type
 * input_type, dt_targets() is (B,targets) of target_type; dt_reshape gives them their shape. Order, shards, prefetch
 * and validation are those of files, and the contract is the same: any layout, the same bits.
 *
 * For that, what fetch writes must depend on (split, sample) alone, on every rank. It is called by several threads at
 * the same time (the trainer's, its prefetch thread, other ranks that are threads): it changes nothing that user points
 * to. It writes every element: floats finite, int32 inputs inside the table of the dt_embed that reads them; int32
 * targets below 0 are ignored by dt_cross_entropy and are not counted, floats always count. An error that it returns,
 * and its sentence if it came from a dt_ function, is what the step or validation that needs the sample returns. A
 * fetch of a training sample may take long (data_seconds tells); one of a validation sample, and with DT_NO_THREADS all
 * of them, must be done within --timeout, or the rank counts as frozen. Float arithmetic in fetch is the compiler's and
 * may differ between machines: make floats from integers, or scale whole numbers in the first segment. */
typedef struct dt_source {
    void *user;
    int64_t samples[2];               /* by dt_split; validation may be 0 */
    int64_t inputs, targets;          /* elements of a sample, 1 or more */
    dt_dtype input_type, target_type; /* DT_F32 or DT_I32 */
    dt_result (*fetch)(void *user, dt_split split, int64_t sample, void *input, void *target);
} dt_source;

/* Writes a text of exactly `bytes` bytes, English-like sentences of a small grammar decided by `seed`, for a machine
 * that has no text. The file appears under its name only when it is complete. */
DT_API dt_result dt_data_generate(const char *path, int64_t bytes, uint64_t seed);

/* Encodes texts, named as in dt_data_open(), into .bin files of `shard_tokens` ids each, the last one with the rest:
 * "NAME_000000.bin", "NAME_000001.bin" .. for an output NAME.bin; 0: all into `output`. special as in
 * dt_tokenizer_encode(); each text is encoded by itself, and nothing is added between two. The files
 * appear when all are complete; *tokens becomes the number of ids (may be NULL). DT_E_DATA: the vocabulary is above
 * 65536, or a file gets more than 2^31 - 1 ids. */
DT_API dt_result dt_data_tokenize(const char *path, const dt_tokenizer *t, const char *output, int64_t shard_tokens,
                                  int special, int64_t *tokens);

/* ---- H13  ranks and collectives ------------------------------------------------------------
 *     dt_comm *c = NULL;
 *     dt_result r = dt_comm_init(&c, &argc, &argv);              ./a --ranks 4 starts four of this program
 *     if (!r) r = dt_all_reduce(c, gradient, n, DT_SUM);
 *     dt_comm_free(&c);
 * Every program is its own launcher. Options, taken out of argc and argv:
 *     --ranks N         N local ranks (1..1024; default 1)
 *     --launch KIND     processes (default where there are any) or threads of this process
 *     --timeout SECONDS a rank that shows no sign of life for so long counts as frozen (default 10; DT_TIMEOUT)
 * The environment variable DT_LINK_RATE emulates a slow link: a collective on more than 2048 floats takes at least as
 * long as this rank's bytes need at so many bytes per second. What is computed meanwhile is not slowed down.
 *
 * A rank shows life in every call on a communicator: when the work between two calls takes longer, raise --timeout.
 * A dt_comm belongs to one thread. All ranks make the same calls in the same order, with the same counts, op and root;
 * else every rank gets DT_E_PEER with both calls named. When a rank dies, freezes or leaves, the others' calls return
 * DT_E_PEER: at once when dead, after the timeout when frozen. Ctrl-C or SIGTERM makes them return DT_E_STOPPED. From
 * then on the communicator stays failed: each call returns the same code and sentence; buffers may be half-written.
 * Counts are in floats and may be 0; shapes are row-major, (size,count) has rank r's part at r * count. Results are the
 * same bits for every transport, path and number of cores. DT_E_USAGE: a negative count, a rank outside 0..size-1. */
typedef struct dt_comm dt_comm;

/* DT_SUM adds in the fixed tree of rank numbers: neighbours (0,1) (2,3), then pairs of pairs, left operand first; a
 * last one without a partner moves up. DT_MAX is a > b ? a : b and DT_MIN a < b ? a : b, in the same tree. */
typedef enum dt_op { DT_SUM, DT_MAX, DT_MIN } dt_op;

/* First call of main(). With --ranks N it becomes the supervisor of N ranks and never returns: it exits with 0 when
 * all ranks did, else with the status of the first that failed, 128 + signal when it was killed, 130 or 143 when
 * stopped by Ctrl-C or SIGTERM. Returns DT_OK in a rank, and in a program that runs alone. DT_E_USAGE: a wrong option,
 * or a foreign launcher's environment; DT_E_SYSTEM, DT_E_MEMORY: the ranks cannot be started. */
DT_API dt_result dt_launch(int *argc, char ***argv);

/* dt_launch, then opens a communicator over all ranks (collective; freed with dt_comm_free, may be opened again later).
 * argc and argv may be NULL when dt_launch was called before. *c is NULL on errors. */
DT_API dt_result dt_comm_init(dt_comm **c, int *argc, char ***argv);

/* A communicator over the ranks that give the same color (>= 0), numbered in the order of their numbers in c.
 * Collective over c. c must live longer than *sub; memory of c's dt_comm_alloc is read in place by sub's collectives
 * too. */
DT_API dt_result dt_comm_split(dt_comm *c, int color, dt_comm **sub);

/* Leaves: peers that still wait for this rank get DT_E_PEER. Frees the communicator's dt_comm_alloc memory. NULL is
 * fine. */
DT_API void dt_comm_free(dt_comm **c);

DT_API int dt_comm_rank(const dt_comm *c);
DT_API int dt_comm_size(const dt_comm *c);
/* Bytes of this rank's data that have reached `peer` so far, over communicators split from c too: one element of the
 * communication matrix. */
DT_API int64_t dt_comm_sent(const dt_comm *c, int peer);

/* Returns when all ranks have called it. */
DT_API dt_result dt_barrier(dt_comm *c);
/* data (count): root's to all. */
DT_API dt_result dt_broadcast(dt_comm *c, float *data, int64_t count, int root);
/* data (count): replaced by the op over all ranks. Fastest when data lies in dt_comm_alloc memory. */
DT_API dt_result dt_all_reduce(dt_comm *c, float *data, int64_t count, dt_op op);
/* in (size,count), out (count): row `rank` of the op over all ranks' in. No overlap of in and out. */
DT_API dt_result dt_reduce_scatter(dt_comm *c, const float *in, float *out, int64_t count, dt_op op);
/* in (count), out (size,count): row r is rank r's in. in may be out + rank * count. */
DT_API dt_result dt_all_gather(dt_comm *c, const float *in, float *out, int64_t count);
/* in, out (size,count): row r of out is row `rank` of rank r's in. No overlap of in and out. */
DT_API dt_result dt_all_to_all(dt_comm *c, const float *in, float *out, int64_t count);

/* data (count) to one rank. Messages between two ranks arrive in order. dt_send returns when the other side has the
 * data; two ranks that both send first wait for each other, and get DT_E_PEER after the timeout. */
DT_API dt_result dt_send(dt_comm *c, const float *data, int64_t count, int to);
DT_API dt_result dt_recv(dt_comm *c, float *data, int64_t count, int from);

/* Symmetric memory: every rank gets `bytes` (the same number everywhere) of zeroed memory that its peers map too.
 * Collective. Belongs to the communicator. DT_E_MEMORY on all ranks when the machine does not have enough free. */
DT_API dt_result dt_comm_alloc(dt_comm *c, int64_t bytes, void **mine);
/* Where `rank`'s copy of the place `mine` is mapped here; NULL when `mine` is not in dt_comm_alloc memory. The caller
 * orders reads and writes with dt_barrier. */
DT_API void *dt_comm_peer(dt_comm *c, const void *mine, int rank);

/* ---- H15  layout: where and when (it never changes a bit), and the step program ------------------ */

/* How the next token is drawn from its logits: from softmax(logits / temperature) over the top_k largest logits, of
 * which the largest are kept until their probabilities sum to top_p or more (Holtzman et al. 2020). Of equal logits the
 * lower token counts as larger. All sums are chains in the order of tokens, those of top_p in falling order. Start from
 * dt_sampling_default(). */
typedef struct dt_sampling {
    int64_t top_k;     /* 0: all */
    int64_t seed;      /* a draw is decided by (recipe.seed, step, seed, its number in the text) */
    float temperature; /* 0: the largest, whatever the rest says */
    float top_p;       /* 0 or 1: all */
} dt_sampling;
/* Temperature 0.7 over all tokens, seed 0. */
DT_API dt_sampling dt_sampling_default(void);

/* How units of work, one (data shard, micro-batch) each, go through the stages of a pipeline. Each stage does: 1F1B, a
 * backward as soon as one is there, so that at most pp units are in flight (Narayanan et al. 2019); GPipe, all
 * forwards, then all backwards (Huang et al. 2019); interleaved, 1F1B over layout.chunks runs of segments per stage: a
 * smaller bubble for more messages (Narayanan et al. 2021); zero-bubble, 1F1B that puts the weights' gradients off to
 * where it would wait (ZB-H1 of Qi et al. 2023). */
typedef enum dt_pipeline { DT_1F1B, DT_GPIPE, DT_INTERLEAVED, DT_ZERO_BUBBLE } dt_pipeline;

/* What backward finds of the values of forward: all of them; all but what attention makes (Korthikanti et al. 2022; its
 * probabilities are never kept, so less is to be had here than elsewhere); or the inputs of segments alone (Chen et al.
 * 2016). The rest it computes again. */
typedef enum dt_recompute { DT_RECOMPUTE_NONE, DT_RECOMPUTE_SELECTIVE, DT_RECOMPUTE_FULL } dt_recompute;

/* Do gradients and weights go between data-parallel ranks while these compute (Li et al. 2020)? A thread per rank then
 * does it, which needs a core for itself: where ranks x threads are all the cores it takes from the work as much as it
 * hides. DT_OVERLAP_AUTO: when there are more cores than that, all the ranks being on one machine. With accumulation
 * `each` and with ZeRO 2 and 3 it also needs memory: a second bucket of gradients, a second segment's weights. */
typedef enum dt_overlap { DT_OVERLAP_AUTO, DT_OVERLAP_OFF, DT_OVERLAP_ON } dt_overlap;

/* Start from dt_layout_default(); new fields will have defaults there. */
typedef struct dt_layout {
    int64_t threads;      /* per rank; 0: cores / ranks */
    int64_t tp;           /* tensor parallel degree */
    int32_t sequence_parallel; /* the ranks of a tensor group also split the rows between its products (Korthikanti et
                                * al. 2022): the same bytes are sent, norms and residuals are kept once */
    int64_t pp;           /* stages of the pipeline */
    int64_t cp;           /* ranks that share the sequences (ring attention), a power of two that divides the recipe's
                           * context shards; the rest of the ranks is data parallel: dp = ranks / (tp pp cp) */
    const char *order; /* of the axes data (D), pipeline (P) and tensor (T), the slowest first: "DPT" ("cluster", NULL):
                        * neighbours share a tensor; "TPD" ("spread"): neighbours share data; or another permutation.
                        * Context (C) comes right behind D where it is not said */
    int32_t pipeline;     /* dt_pipeline */
    int64_t chunks;       /* runs of segments per stage of the interleaved schedule */
    float memory_weight;  /* segments are cut by time (0) to memory (1) */
    int64_t ep;           /* so many neighbouring data-parallel ranks share the experts of each mixture: a rank has
                           * experts / ep of them, and tokens go to where theirs are and back (Lepikhin et al. 2020);
                           * a power of two, and the ranks of a group have as many data shards each */
    int64_t zero; /* ranks share state (Rajbhandari et al. 2020): 1 the optimizer's, 2 and gradients, 3 and weights */
    int64_t zero_group;   /* so many of them; other groups have copies (hybrid sharding); 0: all data-parallel ranks */
    int32_t recompute;    /* dt_recompute */
    int32_t offload; /* with DT_RECOMPUTE_FULL: kept inputs of segments move to a second memory (not in DT_MEM_LIMIT) */
    int64_t horizon;      /* how many segments before its use an input is fetched back; 1 or more */
    float offload_rate;   /* bytes per second to and from the second memory together; 0: as fast as it goes */
    int64_t bucket;       /* bytes of gradient per reduction, reduced in backward order */
    int32_t overlap;      /* dt_overlap */
    int64_t eval_every;   /* steps between validations; 0: only at the end */
    int64_t eval_batches; /* batches per validation; 0: the whole validation part */
    int64_t sample_every; /* steps between text samples; 0: only at the end */
    int64_t sample_length; /* bytes per sample; 0, or a model without logits of the next token: no samples */
    dt_sampling sampling;  /* of the trainer's own samples */
    int32_t no_cache;      /* samples compute the whole sequence for every token (the same text, slower) */
    const char *metrics;  /* JSONL file that gets one line per step; NULL: none */
    const char *timeline; /* what every rank did when in the last step: a picture (SVG), or, in a file *.json, Chrome's
                           * trace event format, which trace viewers read; NULL: none */
    int32_t quiet;        /* no progress on standard output */
    int32_t show_program; /* print the step program of rank 0 before step 1 */
    int32_t no_memory_check; /* start although the plan needs more memory than is free */
} dt_layout;
DT_API dt_layout dt_layout_default(void);

/* Writes the mesh of `ranks` ranks as a table, one line per rank: its node (ranks_per_node in each), and its place on
 * the data, pipeline and tensor axes, with cp above 1 on the context axis too; and a warning when tensor groups lie
 * across nodes. DT_E_USAGE: the degrees do not divide the ranks, or `size` bytes are too few. */
DT_API dt_result dt_mesh_table(const dt_layout *l, int ranks, int ranks_per_node, char *text, int64_t size);

/* Cuts n segments of these costs into `parts` runs of neighbours: run i is [begin[i], begin[i + 1]), begin (parts + 1).
 * The dearest run is as cheap as it can be, and of all such cuts the runs are the most even (least sum of squares).
 * O(n^2 parts) in the worst case. DT_E_USAGE: more parts than segments. */
DT_API dt_result dt_partition(const double *costs, int64_t n, int64_t parts, int64_t *begin);

/* The schedule of layout.pp stages for `units` units of work as a picture, one line per stage: F forward, B backward
 * (twice as long; with zero-bubble as long), W gradients of weights; in small letters those of odd chunks. *idle, when
 * not NULL: the share of the stages' time in which they wait, with sending for nothing: (p-1)/(m+p-1) for GPipe and
 * 1F1B, (p-1)/(v m+p-1) interleaved over v chunks. text NULL: only that. DT_E_USAGE: what the schedule cannot do, or
 * too few bytes. */
DT_API dt_result dt_pipeline_grid(const dt_layout *l, int64_t units, char *text, int64_t size, double *idle);

/* One instruction of a rank's step program. Without overlap one thread runs the list in order. With it there are two:
 * line 0 runs its instructions in order, and where it comes to one of line 1 asks the other thread for it, which runs
 * those in the order in which they are asked for. `after` names what must have finished before, -1 where nothing must:
 * after[0] the one before it on its line, after[1] the last one on the other line that it needs, of the step before
 * when it stands behind it in the list. A simulator may rely on both.
 * X(code, name); meanings:
 *   LOAD       samples of (shard, micro)
 *   FORWARD    segment of (shard, micro), in a slot of its chunk
 *   RECOMPUTE  the same again, for the values that backward needs
 *   OFFLOAD    the input of a segment begins to move to the second memory
 *   FETCH      it begins to come back
 *   BACKWARD   segment of (shard, micro); gradients go on in set `set`, fresh in the first micro-batch
 *   WEIGHTS    zero-bubble: what BACKWARD left out, the gradients of weights
 *   SEND, RECV activations to or from a neighbour stage; with `back` gradients
 *   CONTEXT    the tree over the context ranks' sums of one data shard, over a bucket of set `set`, to each of them
 *   FOLD       set += from, over a bucket: two neighbours of the tree over data shards
 *   REDUCE     the tree over all ranks' partial sums, over a bucket: to every rank, or each piece to its owner (ZeRO)
 *   TOTAL      total += set, over a bucket
 *   GATHER     weights from their owners: of a segment before its work (ZeRO 3; with overlap before that of the segment
 *              before it, into the other one of two windows), or of a bucket after the update
 *   TIE        the uses of tied weights are added, across stages
 *   UPDATE     norm, clip, optimizer, average of the weights */
#define DT_INSTRUCTIONS(X)                                                                                             \
    X(DT_LOAD, "LOAD") X(DT_FORWARD, "FORWARD") X(DT_RECOMPUTE, "RECOMPUTE") X(DT_OFFLOAD, "OFFLOAD")                  \
    X(DT_FETCH, "FETCH") X(DT_BACKWARD, "BACKWARD") X(DT_WEIGHTS, "WEIGHTS") X(DT_SEND, "SEND") X(DT_RECV, "RECV")     \
    X(DT_CONTEXT, "CONTEXT") X(DT_FOLD, "FOLD") X(DT_REDUCE, "REDUCE") X(DT_TOTAL, "TOTAL")                            \
    X(DT_GATHER, "GATHER") X(DT_TIE, "TIE") X(DT_UPDATE, "UPDATE")
#define DT__INSTR_ENUM(code, name) code,
typedef enum dt_instr_op { DT_INSTRUCTIONS(DT__INSTR_ENUM) DT__INSTR_COUNT } dt_instr_op;
#undef DT__INSTR_ENUM
typedef struct dt_instr {
    int32_t op, segment, micro, shard, bucket, set, from, fresh;
    int32_t chunk, slot, back;
    int32_t line, after[2];
    int32_t window;    /* where the weights of the segment are gathered */
    int32_t completes; /* the gradients of the leaf are complete in this segment: their row slices are folded (R7) */
} dt_instr;

/* ---- H16  trainer ------------------------------------------------------------------------------ */

/* Reads the options of recipe and layout out of argv (long GNU options, "--name value" or "--name=value"; --help lists
 * them with their defaults). What is left in argv are the arguments that are no options. DT_E_USAGE: unknown option
 * (with the nearest name) or a bad value; DT_E_HELP: help was printed. Strings point into argv. */
DT_API dt_result dt_args(int *argc, char ***argv, dt_recipe *recipe, dt_layout *layout);

/* One rank's part of a training run. One thread at a time. Progress goes to standard output from rank 0 unless
 * layout.quiet; nothing else in the library prints. */
typedef struct dt_trainer dt_trainer;

/* What a step did. Start from dt_step_info_zero(). */
typedef struct dt_step_info {
    int64_t step;         /* steps done */
    int64_t tokens;       /* tokens of the step, all ranks; with a source: samples */
    float loss;           /* mean over the batch's valid targets; of a cross-entropy in nats */
    float auxiliary;      /* auxiliary losses times their coefficients, mean over units of work (dt_auxiliary_loss) */
    float norm;           /* global gradient norm before clipping */
    float learning_rate;  /* used in this step */
    float validation;     /* validation loss when it was measured after this step, else NaN */
    double seconds;       /* wall clock of the step */
    double gflops;        /* model GFLOP/s of all ranks */
    double peak_share;    /* of the GEMM rate measured at start */
    double comm_seconds;  /* of the step, in communication, from when it was due: gradients, weights, activations */
    double exposed_seconds; /* of these, those in which the rank did nothing else: without overlap, all */
    double data_seconds;  /* of the step, waiting for data */
    int64_t sent_bytes;   /* by this rank in the step, to all peers: also counts of targets, block sums, losses */
} dt_step_info;
DT_API dt_step_info dt_step_info_zero(void);

/* Collective over the ranks that dt_launch started. Checks recipe and layout, opens the data, plans and allocates all
 * memory, draws the parameters. The structs are copied; strings and segments must outlive the trainer. On errors *t is
 * NULL and nothing is left behind. */
DT_API dt_result dt_trainer_open(dt_trainer **t, const dt_recipe *recipe, const dt_layout *layout);
DT_API void dt_trainer_close(dt_trainer **t);
/* One optimizer step (collective), with validation and sample when they are due. DT_E_NUMERIC: loss or norm not finite,
 * the weights are those of the step before; DT_E_PEER, DT_E_STOPPED, DT_E_FILE (metrics). */
DT_API dt_result dt_trainer_step(dt_trainer *t, dt_step_info *info);
/* Runs all steps that are left. */
DT_API dt_result dt_trainer_run(dt_trainer *t, dt_step_info *info);
/* Is this rank 0, the one that prints? */
DT_API int dt_is_root(const dt_trainer *t);
/* Bytes that this rank has sent to `peer` since the trainer was opened: an element of the communication matrix. */
DT_API int64_t dt_trainer_sent(const dt_trainer *t, int peer);
/* SHA-256 over all weights, then what the optimizer keeps, array by array, each parameter by parameter in definition
 * order: AdamW and Adam m, v; SGD u, if any; Lion m; AdamW8 codes of m, codes of sqrt(v), scales of m's blocks, scales
 * of sqrt(v)'s; last the average of the weights, if any. Little-endian floats and bytes, without padding. 64 hex
 * digits, the same on every rank and in every layout. Valid until the next call or close. Where a rank has only a part
 * of the state (pp, tp or ep above 1, ZeRO) it is collective, but after the last step, when any rank alone may call it;
 * "" when that failed. */
DT_API const char *dt_trainer_hash(dt_trainer *t);
/* Mean validation loss over `batches` batches (0: all) and their valid targets. Collective. */
DT_API dt_result dt_trainer_evaluate(dt_trainer *t, int64_t batches, float *loss);
/* Continues `prompt` by `count` bytes of tokens drawn as `how` says (NULL: dt_sampling_default()): the recipe's
 * tokenizer's, the last one cut, or bytes of a byte vocabulary; text has room for count + 1 bytes.
 * Deterministic. Any rank alone may call it if it has the whole model (pp, tp and ep 1, ZeRO below 3), else all ranks
 * together; layout.sample_length must not be 0. The text may hold bytes 0, which an
 * untrained model draws: count tells its length. The families keep the keys and values of earlier tokens
 * (layout.no_cache: not), models of one's own compute the whole sequence for every token; the bits are the same. A text
 * that fills the sequence goes on from its later half. */
DT_API dt_result dt_trainer_sample(dt_trainer *t, const char *prompt, int64_t count, const dt_sampling *how,
                                   char *text);
/* What the model predicts (dt_prediction) for `count` samples: inputs (count, elements of a sample) of the data's input
 * type, predictions (count, each). No dropout; no targets are needed. Any rank alone may call it, between
 * steps, if it has the whole model (pp, tp and ep 1, ZeRO below 3) and cp is 1, else all ranks together. */
DT_API dt_result dt_trainer_predict(dt_trainer *t, const void *inputs, int64_t count, float *predictions, int64_t each);
/* How often tokens chose each expert in the last step, drops included, over all ranks (collective): counts (E), whole
 * numbers, for mixture `index`, 0 the first dt_moe of the model in the order of its segments. Exact below 2^24.
 * DT_E_USAGE: there is no such mixture. */
DT_API dt_result dt_trainer_experts(dt_trainer *t, int64_t index, float *counts);
/* Bytes of this rank, by category, as planned and allocated before step 1. With the environment variable DT_MEM_LIMIT
 * (bytes, or with k, M, G) opening a trainer whose total is more on any rank is DT_E_MEMORY. */
typedef struct dt_memory {
    int64_t weights, gradients, optimizer, activations, buffers, cache, total;
    int64_t offloaded; /* in the second memory: not in the total */
} dt_memory;
DT_API dt_memory dt_trainer_memory(const dt_trainer *t);
/* Number of weights. */
DT_API int64_t dt_trainer_weights(const dt_trainer *t);
/* Values (count) of the parameter with this full name, owned by the trainer, good until the next call for it; NULL when
 * there is none, or this rank has not all of it. */
DT_API const float *dt_trainer_parameter(const dt_trainer *t, const char *name, int64_t *count);
/* The same of the average of the weights; NULL also when recipe.ema is 0. */
DT_API const float *dt_trainer_average(const dt_trainer *t, const char *name, int64_t *count);

/* Using the library with an implementation of another version is a link error that names the version. */
#ifndef DT_STATIC
extern const int DT__LINK_VERSION;
#if defined(__GNUC__)
static const int *const dt__link_check __attribute__((used)) = &DT__LINK_VERSION;
#endif
#endif

#ifdef __cplusplus
}
#endif
#endif /* DTRAIN_H */

#if defined(DTRAIN_IMPLEMENTATION) && !defined(DTRAIN_IMPLEMENTED)
#define DTRAIN_IMPLEMENTED
#define DT__IMPLEMENT

/* ---- what the build must be like (R15) -------------------------------------------------------- */
#if !defined(__GNUC__)
#error "dtrain.h: the implementation needs gcc or clang (vector extensions)"
#endif
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) ||                         \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "dtrain.h: compile the implementation without -ffast-math and its parts (-Ofast sets it): they change results"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "dtrain.h: float arithmetic must be done in float (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dtrain.h: this is a big-endian target: token files and hashes are little-endian, choose a little-endian one"
#endif

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifndef DT_NO_THREADS
#include <pthread.h>
#endif
#ifdef __linux__
#include <linux/falloc.h>
#include <linux/futex.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#if defined(__linux__) && !defined(__USE_MISC)
#error "dtrain.h: POSIX is hidden: include it with DTRAIN_IMPLEMENTATION before any other header, or use -std=gnu11"
#endif

#ifndef DT_MALLOC
#define DT_MALLOC(size) malloc(size)
#define DT_FREE(pointer) free(pointer)
#endif
#ifndef DT_ASSERT
#define DT_ASSERT(condition) ((void)0)
#endif
#ifndef DT_HEADER
#define DT_HEADER "dtrain.h"
#endif

#undef DT_API
#ifdef DT_STATIC
#define DT_API static __attribute__((unused))
#else
#define DT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* No contraction of a * b + c, wherever the user's flags would allow it; and speed without -O (gcc). */
#if defined(__clang__)
#if defined(__x86_64__) /* clang 14 has it for no other target */
#pragma float_control(push)
#endif
#pragma STDC FP_CONTRACT OFF
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wunused-function"
#else
#ifdef __CUDACC__
#pragma nv_diag_suppress 1675 /* GCC pragmas that its own front end does not know */
#endif
#pragma GCC push_options
#ifdef DT_DEBUG
#pragma GCC optimize("fp-contract=off", "no-fast-math")
#else
#pragma GCC optimize("O2", "fp-contract=off", "no-fast-math")
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

#ifndef DT_STATIC
extern const int DT__LINK_VERSION;
const int DT__LINK_VERSION = 1;
#endif

/* ============================================================================================
 * H1  base: results, memory, threads
 * ========================================================================================= */

typedef struct dt__tls {
    char error[1024];
    dt_result code;
    struct dt__local_rank *rank; /* set in threads that are ranks (H13) */
} dt__tls;
static __thread dt__tls dt__thread;

/* Records the sentence and returns the code: `return dt__error(DT_E_FILE, "...", ...)`. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static dt_result dt__error(dt_result code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(dt__thread.error, sizeof dt__thread.error, format, args);
    va_end(args);
    dt__thread.code = code;
    return code;
}

DT_API const char *dt_last_error(void) { return dt__thread.error[0] ? dt__thread.error : "no error"; }

#define DT__RESULT_NAME(code, status, sentence) case code: return #code;
DT_API const char *dt_result_name(dt_result r)
{
    switch (r) { DT_RESULTS(DT__RESULT_NAME) default: break; }
    return "DT_E_?";
}
#define DT__RESULT_STATUS(code, status, sentence) case code: return status;
DT_API int dt_exit_code(dt_result r)
{
    switch (r) { DT_RESULTS(DT__RESULT_STATUS) default: break; }
    return 1;
}

DT_API const char *dt_version(void) { return DT_VERSION; }

enum { DT__BLOCK = 1024 }; /* floats: whole-tensor sums, pieces of reductions, parameter padding (R5, R11) */

static int64_t dt__min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t dt__max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t dt__round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static int64_t dt__ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }
static int dt__is_pow2(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

/* Monotonic seconds. For reports only: no decision of a training run uses time (R12). */
static double dt__now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Zeroed, 64-byte aligned memory from DT_MALLOC; NULL with the error recorded. */
static void *dt__alloc(int64_t bytes, const char *what)
{
    size_t size = (size_t)(bytes > 0 ? bytes : 1);
    char *raw = (char *)DT_MALLOC(size + 64 + sizeof(void *)), *p;
    if (!raw) {
        dt__error(DT_E_MEMORY, "no memory for %s (%.1f MB): use a smaller model, batch or sequence", what,
                  (double)bytes / 1e6);
        return NULL;
    }
    p = (char *)(((uintptr_t)raw + sizeof(void *) + 63) & ~(uintptr_t)63);
    memcpy(p - sizeof(void *), &raw, sizeof raw);
    memset(p, 0, size);
    return p;
}
static void dt__free(void *p)
{
    void *raw;
    if (!p) return;
    memcpy(&raw, (char *)p - sizeof(void *), sizeof raw);
    DT_FREE(raw);
}

/* Makes room for `wanted` items in a growing list, whose first `used` are kept; 0 without memory. New ones are zero. */
static int dt__reserve(void **list, int64_t used, int64_t *room, int64_t wanted, int64_t item, const char *what)
{
    int64_t bigger = dt__max(dt__max(wanted, 2 * *room), 64);
    void *memory;
    if (wanted <= *room) return 1;
    memory = dt__alloc(bigger * item, what);
    if (!memory) return 0;
    if (used) memcpy(memory, *list, (size_t)(used * item));
    dt__free(*list);
    *list = memory;
    *room = bigger;
    return 1;
}

/* Flush-to-zero and rounding mode belong to the process (linking one -ffast-math object sets FTZ for all of it), so
 * every thread that computes brackets its work with enter and leave (R15). */
static unsigned dt__fp_enter(void)
{
#if defined(__x86_64__)
    unsigned saved = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1f80u);
    return saved;
#elif defined(__aarch64__)
    uint64_t saved, clear = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"(clear) : "memory"); /* no work with memory moves before it */
    return (unsigned)saved;
#else
    return 0;
#endif
}
static void dt__fp_leave(unsigned saved)
{
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(saved);
#elif defined(__aarch64__)
    uint64_t value = saved;
    __asm__ volatile("msr fpcr, %0" : : "r"(value) : "memory");
#else
    (void)saved;
#endif
}

/* ---- threads of one rank -------------------------------------------------------------------
 * A pool runs `tasks` independent pieces of one operation. Pieces write disjoint outputs, so their order and the
 * number of workers never reach a bit. Each worker owns scratch memory, reserved before step 1.
 * One thread at a time may call dt__parallel on a pool. A NULL pool is one worker without scratch. */

typedef void (*dt__task_fn)(void *context, int64_t task, int worker);

typedef struct dt_pool {
    int workers;           /* the calling thread included */
    int64_t scratch_bytes; /* per worker */
    char *scratch;         /* (workers, scratch_bytes) */
    dt__task_fn fn;
    void *context;
    int64_t tasks, next; /* next: atomic */
    int round, running;  /* round: atomic, rises by one per dt__parallel; running: atomic, workers still inside */
    int quit;
#ifndef DT_NO_THREADS
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake;
#endif
} dt_pool;

static void dt__relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void *dt__scratch(dt_pool *pool, int worker) { return pool->scratch + (int64_t)worker * pool->scratch_bytes; }

static void dt__pool_work(dt_pool *pool, int worker)
{
    for (;;) {
        int64_t task = __atomic_fetch_add(&pool->next, 1, __ATOMIC_RELAXED);
        if (task >= pool->tasks) return;
        pool->fn(pool->context, task, worker);
    }
}

#ifndef DT_NO_THREADS
typedef struct dt__worker_start {
    dt_pool *pool;
    int worker;
} dt__worker_start;

static void *dt__pool_main(void *argument)
{
    dt__worker_start start = *(dt__worker_start *)argument;
    dt_pool *pool = start.pool;
    int seen = 0;
    unsigned saved = dt__fp_enter();
    dt__free(argument);
    for (;;) {
        int spin = 0, now;
        while ((now = __atomic_load_n(&pool->round, __ATOMIC_ACQUIRE)) == seen && ++spin < 4000) dt__relax();
        if (now == seen) {
            pthread_mutex_lock(&pool->lock);
            while ((now = __atomic_load_n(&pool->round, __ATOMIC_ACQUIRE)) == seen)
                pthread_cond_wait(&pool->wake, &pool->lock);
            pthread_mutex_unlock(&pool->lock);
        }
        seen = now;
        if (pool->quit) break;
        dt__pool_work(pool, start.worker);
        __atomic_fetch_sub(&pool->running, 1, __ATOMIC_RELEASE);
    }
    dt__fp_leave(saved);
    return NULL;
}

static void dt__pool_signal(dt_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    __atomic_fetch_add(&pool->round, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}
#endif

static void dt__parallel(dt_pool *pool, int64_t tasks, dt__task_fn fn, void *context)
{
    if (!pool || pool->workers == 1 || tasks <= 1) {
        for (int64_t i = 0; i < tasks; i++) fn(context, i, 0);
        return;
    }
#ifndef DT_NO_THREADS
    pool->fn = fn;
    pool->context = context;
    pool->tasks = tasks;
    pool->next = 0;
    __atomic_store_n(&pool->running, pool->workers - 1, __ATOMIC_RELAXED);
    dt__pool_signal(pool);
    dt__pool_work(pool, 0);
    for (int spin = 0; __atomic_load_n(&pool->running, __ATOMIC_ACQUIRE); spin++) {
        if (spin < 4000) dt__relax();
        else sched_yield();
    }
#endif
}

/* Grows every worker's scratch to at least `bytes`. Not while dt__parallel runs. */
static dt_result dt__pool_reserve(dt_pool *pool, int64_t bytes)
{
    char *scratch;
    bytes = dt__round_up(bytes, 4096);
    if (bytes <= pool->scratch_bytes) return DT_OK;
    scratch = (char *)dt__alloc(bytes * pool->workers, "the threads' scratch memory");
    if (!scratch) return DT_E_MEMORY;
    dt__free(pool->scratch);
    pool->scratch = scratch;
    pool->scratch_bytes = bytes;
    return DT_OK;
}

static void dt__pool_close(dt_pool **handle)
{
    dt_pool *pool = *handle;
    if (!pool) return;
#ifndef DT_NO_THREADS
    if (pool->threads) {
        pool->quit = 1;
        dt__pool_signal(pool);
        for (int i = 1; i < pool->workers; i++) pthread_join(pool->threads[i], NULL);
        pthread_mutex_destroy(&pool->lock);
        pthread_cond_destroy(&pool->wake);
        dt__free(pool->threads);
    }
#endif
    dt__free(pool->scratch);
    dt__free(pool);
    *handle = NULL;
}

static dt_result dt__pool_open(dt_pool **handle, int workers)
{
    dt_pool *pool = (dt_pool *)dt__alloc((int64_t)sizeof *pool, "a thread pool");
    *handle = pool;
    if (!pool) return DT_E_MEMORY;
    pool->workers = 1;
#ifndef DT_NO_THREADS
    if (workers > 1) {
        pthread_mutex_init(&pool->lock, NULL);
        pthread_cond_init(&pool->wake, NULL);
        pool->threads = (pthread_t *)dt__alloc((int64_t)sizeof(pthread_t) * workers, "a thread pool");
        if (!pool->threads) return dt__pool_close(handle), DT_E_MEMORY;
        for (; pool->workers < workers; pool->workers++) {
            dt__worker_start *start = (dt__worker_start *)dt__alloc((int64_t)sizeof *start, "a thread");
            if (!start) return dt__pool_close(handle), DT_E_MEMORY;
            start->pool = pool;
            start->worker = pool->workers;
            if (pthread_create(&pool->threads[pool->workers], NULL, dt__pool_main, start)) {
                dt__error(DT_E_SYSTEM, "cannot start thread %d of %d: lower --threads", pool->workers, workers);
                dt__free(start);
                dt__pool_close(handle);
                return DT_E_SYSTEM;
            }
        }
    }
#else
    (void)workers;
#endif
    return DT_OK;
}

/* ============================================================================================
 * H2  numerics: Philox, exact math, SHA-256
 * ========================================================================================= */

/* a * b + c rounded once. Without an FMA instruction: the product is exact in double (48 bits), the sum is made odd
 * when it was inexact (TwoSum gives the error), so that rounding it to float cannot round twice the same way. */
#if !defined(__FMA__) && !defined(__ARM_FEATURE_FMA)
static __attribute__((noinline)) float dt__fmaf_soft(float a, float b, float c)
{
    double product = (double)a * (double)b, sum = product + (double)c;
    double back = sum - product, error = (product - (sum - back)) + ((double)c - back);
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (error != 0.0 && !(bits & 1u) && (bits & 0x7ff0000000000000u) != 0x7ff0000000000000u) {
        if ((error > 0.0) == (sum > 0.0)) bits++;
        else bits--;
        memcpy(&sum, &bits, sizeof sum);
    }
    return (float)sum;
}
#define dt__fmaf(a, b, c) dt__fmaf_soft(a, b, c)
#else
#define dt__fmaf(a, b, c) __builtin_fmaf(a, b, c)
#endif

static float dt__sqrtf(float x)
{
#if defined(__x86_64__)
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#else
    return __builtin_sqrtf(x);
#endif
}

/* A random stream: its words depend on the key, the counter and the element, never on who asks (R16). */
typedef struct dt__rng {
    uint32_t key[2], counter[3];
} dt__rng;

/* ---- exp -----------------------------------------------------------------------------------
 * e^x = 2^n e^r with n = round(x / ln 2) by adding 1.5 * 2^23 and r = x - n ln 2 in two parts (n times the upper part
 * is exact); e^r by a polynomial fitted for this interval. 2^n is applied in two halves, so that subnormal results are
 * rounded once. Below -103.98 the result is +0, above 88.73 +inf; the error stays below 1 ulp. The vector kernels run
 * the very same operations. */
#define DT__EXP_MAX 89.0f
#define DT__EXP_MIN (-104.0f)
#define DT__EXP_LOG2E 0x1.715476p+0f
#define DT__EXP_ROUND 0x1.8p+23f
#define DT__EXP_LN2_HI 0x1.62e4p-1f
#define DT__EXP_LN2_LO 0x1.7f7d1cp-20f
#define DT__EXP_C2 0.5f
#define DT__EXP_C3 0x1.5554a2p-3f
#define DT__EXP_C4 0x1.555682p-5f
#define DT__EXP_C5 0x1.12306ap-7f
#define DT__EXP_C6 0x1.6b76p-10f

static float dt__float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint32_t dt__bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float dt__expf(float x)
{
    float t, n, r, q;
    int32_t whole, half;
    x = x > DT__EXP_MAX ? DT__EXP_MAX : x;
    x = x < DT__EXP_MIN ? DT__EXP_MIN : x;
    t = dt__fmaf(x, DT__EXP_LOG2E, DT__EXP_ROUND);
    n = t - DT__EXP_ROUND;
    r = dt__fmaf(n, -DT__EXP_LN2_HI, x);
    r = dt__fmaf(n, -DT__EXP_LN2_LO, r);
    q = dt__fmaf(DT__EXP_C6, r, DT__EXP_C5);
    q = dt__fmaf(q, r, DT__EXP_C4);
    q = dt__fmaf(q, r, DT__EXP_C3);
    q = dt__fmaf(q, r, DT__EXP_C2);
    q = dt__fmaf(q, r, 1.0f);
    q = dt__fmaf(q, r, 1.0f);
    whole = (int32_t)(dt__bits_of_float(t) - dt__bits_of_float(DT__EXP_ROUND));
    half = whole >> 1;
    q = q * dt__float_of_bits((uint32_t)(half + 127) << 23);
    return q * dt__float_of_bits((uint32_t)(whole - half + 127) << 23);
}

/* ---- large angles ---------------------------------------------------------------------------
 * x = quadrant * pi/2 + r for finite |x| >= 2^20: x * 2/pi modulo 4 in integers (Payne and Hanek 1983). x is m 2^e; of
 * 2/pi only 96 bits matter, those whose product with 2^e lies below 4 and above 2^-94. No float is nearer to a multiple
 * of pi/2 (but 0) than 2^-30, so r has 31 good bits and more. Inf and NaN give NaN. */
static double dt__large_angle(float x, uint64_t *quadrant)
{
    static const uint32_t two_over_pi[8] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                            0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
    uint32_t bits = dt__bits_of_float(x), m = (bits & 0x7fffffu) | 0x800000u, part[3];
    int e = (int)(bits >> 23 & 255) - 150, at = e + 30; /* at: first bit of the 96, counted in the table */
    uint64_t low, mid, high, turn;
    double r;
    *quadrant = 0;
    if (e == 105) return (double)(x - x);
    for (int i = 0; i < 3; i++) {
        const uint32_t *word = two_over_pi + at / 32 + i;
        part[i] = (uint32_t)(((uint64_t)word[0] << 32 | word[1]) << (at % 32) >> 32);
    }
    low = (uint64_t)m * part[2];
    mid = (uint64_t)m * part[1] + (low >> 32);
    high = (uint64_t)m * part[0] + (mid >> 32);
    turn = high << 32 | (mid & 0xffffffffu); /* of a full turn, 2^64 */
    *quadrant = (turn + 0x2000000000000000u) >> 62;
    r = (double)(int64_t)(turn - (*quadrant << 62)) * 0x1.921fb54442d18p-62;
    if (x >= 0.0f) return r;
    *quadrant = 0 - *quadrant;
    return -r;
}

/* ---- Philox4x32-10 -------------------------------------------------------------------------
 * Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). */
#define DT__PHILOX_M0 0xD2511F53u
#define DT__PHILOX_M1 0xCD9E8D57u
#define DT__PHILOX_W0 0x9E3779B9u
#define DT__PHILOX_W1 0xBB67AE85u

static void dt__philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)DT__PHILOX_M0 * x0, p1 = (uint64_t)DT__PHILOX_M1 * x2;
        x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)p1;
        x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)p0;
        k0 += DT__PHILOX_W0;
        k1 += DT__PHILOX_W1;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

/* The random word of one element: word e mod 4 of block e / 4. */
static uint32_t dt__rng_word(const dt__rng *r, uint64_t element)
{
    uint32_t counter[4], out[4];
    counter[0] = (uint32_t)(element >> 2);
    counter[1] = r->counter[0];
    counter[2] = r->counter[1];
    counter[3] = r->counter[2];
    dt__philox(counter, r->key, out);
    return out[element & 3];
}

/* cos(pi x) for 0 <= x <= 1, in double from +, -, * alone: the same bits with every compiler and libm. Taylor series
 * on [0, 1/4] after reflection; error below 1e-14. Used by the cosine schedule and the normal generator. */
static double dt__cospi(double x)
{
    double sign = 1.0, angle, z, p;
    if (x > 0.5) x = 1.0 - x, sign = -1.0;
    if (x > 0.25) { /* sin of the complement */
        angle = (0.5 - x) * 3.14159265358979323846;
        z = angle * angle;
        p = 1.0 / 6227020800.0 - z * (1.0 / 1307674368000.0);
        p = p * z - 1.0 / 39916800.0;
        p = p * z + 1.0 / 362880.0;
        p = p * z - 1.0 / 5040.0;
        p = p * z + 1.0 / 120.0;
        p = p * z - 1.0 / 6.0;
        return sign * (angle + angle * z * p);
    }
    angle = x * 3.14159265358979323846;
    z = angle * angle;
    p = 1.0 / 479001600.0 - z * (1.0 / 87178291200.0);
    p = p * z - 1.0 / 3628800.0;
    p = p * z + 1.0 / 40320.0;
    p = p * z - 1.0 / 720.0;
    p = p * z + 1.0 / 24.0;
    p = p * z - 0.5;
    return sign * (1.0 + z * p);
}

/* Natural logarithm of a normal positive double by the atanh series: host scalars only, error below 1e-14. */
static double dt__log_double(double x)
{
    uint64_t bits;
    double f, s, z, p;
    int exponent;
    memcpy(&bits, &x, sizeof bits);
    exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    memcpy(&f, &bits, sizeof f);
    if (f > 1.4142135623730951) f *= 0.5, exponent++;
    s = (f - 1.0) / (f + 1.0);
    z = s * s;
    p = z * (1.0 / 19.0) + 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    return (double)exponent * 0.69314718055994530942 + 2.0 * (s + s * z * p);
}

/* e^x by its Taylor series on [-ln 2 / 2, ln 2 / 2] and a power of two, |x| below 700: host scalars only, relative
 * error below 1e-15. */
static double dt__exp_double(double x)
{
    double n = (double)(int64_t)(x * 1.4426950408889634 + (x < 0.0 ? -0.5 : 0.5)), r, p = 1.0, scale;
    uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    r = x - n * 0.69314718036912382; /* ln 2 in two parts: n times the first is exact */
    r = r - n * 1.9082149292705877e-10;
    for (int i = 13; i > 0; i--) p = 1.0 + p * r / (double)i;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* cos(pi x) and sin(pi x) for x >= 0; the reduction to [0, 2) is exact. Absolute error below 1e-14. */
static void dt__cos_sin_pi(double x, double *cosine, double *sine)
{
    double r = x - 2.0 * (double)(int64_t)(x * 0.5), quarter = r < 0.5 ? 0.5 - r : r - 0.5;
    *cosine = dt__cospi(r <= 1.0 ? r : 2.0 - r);
    *sine = dt__cospi(quarter <= 1.0 ? quarter : 2.0 - quarter);
}

/* What a random stream is for; part of its key, so that no two uses ever share a number (R16). */
enum { DT__RNG_INIT = 1, DT__RNG_DROPOUT = 2, DT__RNG_SHUFFLE = 3, DT__RNG_TEXT = 4 };

static dt__rng dt__rng_make(uint64_t seed, int purpose, uint32_t a, uint32_t b, uint32_t c)
{
    dt__rng r;
    r.key[0] = (uint32_t)seed;
    r.key[1] = (uint32_t)(seed >> 32) ^ ((uint32_t)purpose << 24);
    r.counter[0] = a;
    r.counter[1] = b;
    r.counter[2] = c;
    return r;
}

/* Uniform in (0, 1): 32 random bits, centred. */
static double dt__unit(uint32_t word) { return ((double)word + 0.5) / 4294967296.0; }
static double dt__uniform(const dt__rng *r, uint64_t element) { return dt__unit(dt__rng_word(r, element)); }

/* Standard normals by Box and Muller (1958): element e uses words 2e and 2e + 1 of the stream. */
static void dt__normals(const dt__rng *r, uint64_t begin, uint64_t end, float std, float *out)
{
    uint32_t counter[4], word[4];
    memcpy(counter + 1, r->counter, sizeof r->counter);
    for (uint64_t e = begin; e < end; e++) {
        double radius, v;
        if (e == begin || !(e & 1u)) {
            counter[0] = (uint32_t)(e >> 1);
            dt__philox(counter, r->key, word);
        }
        radius = __builtin_sqrt(-2.0 * dt__log_double(dt__unit(word[2 * (e & 1u)])));
        v = dt__unit(word[2 * (e & 1u) + 1]);
        out[e - begin] = (float)(radius * (v < 0.5 ? dt__cospi(2.0 * v) : dt__cospi(2.0 - 2.0 * v))) * std;
    }
}

/* ---- SHA-256 (FIPS 180-4): the hash that every layout must reach ---------------------------- */

typedef struct dt__sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
} dt__sha256;

static void dt__sha256_block(uint32_t state[8], const uint8_t *p)
{
    static const uint32_t K[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
#define DT__ROTATE(x, n) (((x) >> (n)) | ((x) << (32 - (n))))
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6],
                    h = state[7];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 |
               (uint32_t)p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (DT__ROTATE(x, 7) ^ DT__ROTATE(x, 18) ^ x >> 3) + w[i - 7] +
               (DT__ROTATE(y, 17) ^ DT__ROTATE(y, 19) ^ y >> 10);
    }
    for (int i = 0; i < 64; i++) {
        uint32_t t1 =
            h + (DT__ROTATE(e, 6) ^ DT__ROTATE(e, 11) ^ DT__ROTATE(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
        uint32_t t2 = (DT__ROTATE(a, 2) ^ DT__ROTATE(a, 13) ^ DT__ROTATE(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e, state[5] += f, state[6] += g,
        state[7] += h;
#undef DT__ROTATE
}

static void dt__sha256_begin(dt__sha256 *h)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(h, 0, sizeof *h);
    memcpy(h->state, start, sizeof start);
}

static void dt__sha256_add(dt__sha256 *h, const void *data, int64_t bytes)
{
    const uint8_t *p = (const uint8_t *)data;
    while (bytes > 0) {
        int64_t used = (int64_t)(h->bytes & 63), take = dt__min(64 - used, bytes);
        if (used == 0 && bytes >= 64) {
            dt__sha256_block(h->state, p);
            take = 64;
        } else {
            memcpy(h->block + used, p, (size_t)take);
            if (used + take == 64) dt__sha256_block(h->state, h->block);
        }
        h->bytes += (uint64_t)take;
        p += take;
        bytes -= take;
    }
}

/* Ends the hash; hex receives 64 digits and a NUL. */
static void dt__sha256_end(dt__sha256 *h, char hex[65])
{
    static const uint8_t pad[64] = {0x80};
    uint64_t bits = h->bytes * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    dt__sha256_add(h, pad, 1 + (int64_t)((119 - (h->bytes & 63)) & 63));
    dt__sha256_add(h, length, 8);
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", h->state[i]);
}

/* ============================================================================================
 * H3  kernels
 * ============================================================================================
 * Plain structs of operands first; then this file includes itself once per instruction set, and the kernel text below
 * becomes functions named ..._portable, ..._avx2, ..._avx512 and ..._neon. The best one is chosen at run time (H5). */

/* ---- the ops -----------------------------------------------------------------------------------
 * X(NAME, in_place, run, grad): in_place is a mask of the inputs whose memory the result may take over; run computes
 * the value (H6), grad appends the nodes of the derivative (H7). The one list of ops.
 *
 * How to add an op. Four places, in the order of the file:
 *   1. a row in this table;
 *   2. its kernel in H3, in the vector text (elementwise ops: one `case` in dt__unary or dt__binary, or in their
 *      twins for functions in double);
 *   3. its builder in H6: check shapes, dt__push() the node; and its run function, or dt__run_unary / dt__run_binary;
 *      an op that takes other types than fp32 says so in dt__takes;
 *   4. its derivative in H7: dt__flow() for every input; NULL in the table where there is none.
 * Then a row in tests/test_ops.c, which checks finite differences, one in tests/interpreter.h, what it computes as
 * plain scalar text, and one in the `kinds` of tests/test_random.c, which puts it into random graphs. */
#define DT__OPS(X)                                                                                           \
    X(NONE, 0, NULL, NULL)                                                                                   \
    X(INPUT, 0, NULL, NULL)                                                                                  \
    X(PARAM, 0, NULL, NULL)                                                                                  \
    X(AUX, 0, NULL, NULL)                                                                                    \
    X(RESHAPE, 0, NULL, dt__grad_reshape)                                                                    \
    X(PERMUTE, 0, dt__run_permute, dt__grad_permute)                                                         \
    X(SLICE, 0, dt__run_slice, dt__grad_slice)                                                               \
    X(PAD, 0, dt__run_pad, dt__grad_pad)                                                                     \
    X(CONCAT, 0, dt__run_concat, dt__grad_concat)                                                            \
    X(DETACH, 0, NULL, NULL)                                                                                 \
    X(FULL, 0, dt__run_full, NULL)                                                                           \
    X(CAST, 0, dt__run_cast, dt__grad_cast)                                                                  \
    X(GATHER, 0, dt__run_gather, dt__grad_gather)                                                            \
    X(SCATTER_ADD, 0, dt__run_scatter_add, dt__grad_scatter_add)                                             \
    X(ONE_HOT, 0, dt__run_one_hot, NULL)                                                                     \
    X(TOP_K, 0, dt__run_top_k, NULL)                                                                         \
    X(CUMSUM, 0, dt__run_cumsum, dt__grad_cumsum)                                                            \
    X(EXPAND, 0, dt__run_expand, dt__grad_expand)                                                            \
    X(COMBINE, 0, dt__run_combine, dt__grad_combine)                                                         \
    X(ALL_ROWS, 0, dt__run_all_rows, dt__grad_all_rows)                                                      \
    X(OWN_ROWS, 0, dt__run_own_rows, dt__grad_own_rows)                                                      \
    X(SAME_ROWS, 0, NULL, dt__grad_same_rows)                                                                \
    X(NEG, 1, dt__run_unary, dt__grad_neg)                                                                   \
    X(SCALE, 1, dt__run_unary, dt__grad_scale)                                                               \
    X(EXP, 1, dt__run_unary, dt__grad_exp)                                                                   \
    X(LOG, 1, dt__run_unary, dt__grad_log)                                                                   \
    X(TANH, 1, dt__run_unary, dt__grad_tanh)                                                                 \
    X(SQRT, 1, dt__run_unary, dt__grad_sqrt)                                                                 \
    X(RSQRT, 1, dt__run_unary, dt__grad_rsqrt)                                                               \
    X(GELU, 1, dt__run_unary, dt__grad_gelu)                                                                 \
    X(GELU_ERF, 1, dt__run_unary, dt__grad_gelu_erf)                                                         \
    X(SILU, 1, dt__run_unary, dt__grad_silu)                                                                 \
    X(SIGMOID, 1, dt__run_unary, dt__grad_sigmoid)                                                           \
    X(SOFTPLUS, 1, dt__run_unary, dt__grad_softplus)                                                         \
    X(RELU, 1, dt__run_unary, dt__grad_relu)                                                                 \
    X(ABS, 1, dt__run_unary, dt__grad_abs)                                                                   \
    X(SIGN, 1, dt__run_unary, NULL)                                                                          \
    X(FLOOR, 1, dt__run_unary, NULL)                                                                         \
    X(CEIL, 1, dt__run_unary, NULL)                                                                          \
    X(ROUND, 1, dt__run_unary, NULL)                                                                         \
    X(SQUARE, 1, dt__run_unary, dt__grad_square)                                                             \
    X(RECIPROCAL, 1, dt__run_unary, dt__grad_reciprocal)                                                     \
    X(EXP2, 1, dt__run_unary, dt__grad_exp2)                                                                 \
    X(LOG2, 1, dt__run_unary, dt__grad_log2)                                                                 \
    X(EXPM1, 1, dt__run_unary, dt__grad_expm1)                                                               \
    X(LOG1P, 1, dt__run_unary, dt__grad_log1p)                                                               \
    X(ERF, 1, dt__run_unary, dt__grad_erf)                                                                   \
    X(SIN, 1, dt__run_unary, dt__grad_sin)                                                                   \
    X(COS, 1, dt__run_unary, dt__grad_cos)                                                                   \
    X(TAN, 1, dt__run_unary, dt__grad_tan)                                                                   \
    X(ADD, 3, dt__run_binary, dt__grad_add)                                                                  \
    X(SUB, 3, dt__run_binary, dt__grad_sub)                                                                  \
    X(MUL, 3, dt__run_binary, dt__grad_mul)                                                                  \
    X(DIV, 3, dt__run_binary, dt__grad_div)                                                                  \
    X(POW, 3, dt__run_binary, dt__grad_pow)                                                                  \
    X(MAXIMUM, 3, dt__run_binary, dt__grad_maximum)                                                          \
    X(MINIMUM, 3, dt__run_binary, dt__grad_minimum)                                                          \
    X(EQUAL, 3, dt__run_binary, NULL)                                                                        \
    X(NOT_EQUAL, 3, dt__run_binary, NULL)                                                                    \
    X(LESS, 3, dt__run_binary, NULL)                                                                         \
    X(LESS_EQUAL, 3, dt__run_binary, NULL)                                                                   \
    X(GREATER, 3, dt__run_binary, NULL)                                                                      \
    X(GREATER_EQUAL, 3, dt__run_binary, NULL)                                                                \
    X(SELECT, 7, dt__run_binary, dt__grad_select)                                                            \
    X(GELU_GRAD, 3, dt__run_binary, NULL)                                                                    \
    X(BCE, 3, dt__run_binary, dt__grad_bce)                                                                  \
    X(BCE_GRAD, 3, dt__run_binary, NULL)                                                                     \
    X(GELU_ERF_GRAD, 3, dt__run_binary, NULL)                                                                \
    X(SILU_GRAD, 3, dt__run_binary, NULL)                                                                    \
    X(ROW_SUM, 0, dt__run_row_sum, dt__grad_row_sum)                                                         \
    X(COL_SUM, 0, dt__run_col_sum, dt__grad_col_sum)                                                         \
    X(ROW_MAX, 0, dt__run_row_max, dt__grad_row_max)                                                         \
    X(MAX_GRAD, 0, dt__run_max_grad, NULL)                                                                   \
    X(ARGMAX, 0, dt__run_argmax, NULL)                                                                       \
    X(SOFTMAX, 1, dt__run_softmax, dt__grad_softmax)                                                         \
    X(SOFTMAX_GRAD, 2, dt__run_softmax_grad, NULL)                                                           \
    X(LOG_SOFTMAX, 1, dt__run_log_softmax, dt__grad_log_softmax)                                             \
    X(LOG_SOFTMAX_GRAD, 3, dt__run_log_softmax_grad, NULL)                                                   \
    X(MATMUL, 0, dt__run_matmul, dt__grad_matmul)                                                            \
    X(EMBED, 0, dt__run_embed, dt__grad_embed)                                                               \
    X(EMBED_GRAD, 0, dt__run_embed_grad, NULL)                                                               \
    X(LAYERNORM, 0, dt__run_layernorm, dt__grad_layernorm)                                                   \
    X(LAYERNORM_DX, 0, dt__run_layernorm_dx, NULL)                                                           \
    X(LAYERNORM_DGAMMA, 0, dt__run_layernorm_dgamma, NULL)                                                   \
    X(RMSNORM, 0, dt__run_rmsnorm, dt__grad_rmsnorm)                                                         \
    X(RMSNORM_DX, 0, dt__run_rmsnorm_dx, NULL)                                                               \
    X(ATTENTION, 0, dt__run_attention, dt__grad_attention)                                                   \
    X(ATTENTION_GRAD, 0, dt__run_attention_grad, NULL)                                                       \
    X(ROPE, 1, dt__run_rope, dt__grad_rope)                                                                  \
    X(POSITIONS, 0, dt__run_positions, NULL)                                                                 \
    X(CACHE, 0, dt__run_cache, NULL)                                                                         \
    X(CONV, 0, dt__run_conv, dt__grad_conv)                                                                  \
    X(CONV_DX, 0, dt__run_conv, NULL)                                                                        \
    X(CONV_DW, 0, dt__run_conv_dw, NULL)                                                                     \
    X(MAX_POOL, 0, dt__run_pool, dt__grad_pool)                                                              \
    X(AVG_POOL, 0, dt__run_pool, dt__grad_pool)                                                              \
    X(MAX_POOL_GRAD, 0, dt__run_pool_grad, NULL)                                                             \
    X(AVG_POOL_GRAD, 0, dt__run_pool_grad, NULL)                                                             \
    X(DROPOUT, 1, dt__run_dropout, dt__grad_dropout)                                                         \
    X(CROSS_ENTROPY, 0, dt__run_cross_entropy, dt__grad_cross_entropy)                                       \
    X(CROSS_ENTROPY_GRAD, 1, dt__run_cross_entropy_grad, NULL)                                               \
    X(LOSS, 0, dt__run_loss, dt__grad_loss)                                                                  \
    X(LOSS_GRAD, 0, dt__run_loss_grad, NULL)                                                                 \
    X(AUX_LOSS, 0, NULL, dt__grad_aux_loss)                                                                  \
    X(AUX_LOSS_GRAD, 0, dt__run_aux_loss_grad, NULL)                                                         \
    X(MOE_ROUTE, 0, dt__run_moe_route, NULL)                                                                 \
    X(MOE_BINS, 0, dt__run_moe_bins, NULL)                                                                   \
    X(MOE_ROWS, 0, dt__run_moe_rows, dt__grad_moe_rows)                                                      \
    X(MOE_TRADE, 0, dt__run_moe_trade, dt__grad_moe_trade)                                                   \
    X(MOE_LINEAR, 0, dt__run_moe_linear, dt__grad_moe_linear)                                                \
    X(MOE_DW, 0, dt__run_moe_dw, NULL)                                                                       \
    X(MOE_DB, 0, dt__run_moe_db, NULL)                                                                       \
    X(MOE_SUM, 0, dt__run_moe_sum, dt__grad_moe_sum)                                                         \
    X(MOE_DOT, 0, dt__run_moe_dot, NULL)                                                                     \
    X(ACCUMULATE, 0, dt__run_accumulate, NULL)

#define DT__OP_ENUM(name, in_place, run, grad) DT__OP_##name,
enum { DT__OPS(DT__OP_ENUM) DT__OP_COUNT };
#undef DT__OP_ENUM

/* C (m,n) = [C +] A (m,k) B (k,n): one fmaf chain per element, in k order (R5). */
typedef struct dt__gemm {
    int64_t m, n, k;
    const float *a; /* A(i,p) = a[i*ars + p*acs], one of the strides is 1 */
    int64_t ars, acs;
    const float *b; /* B(p,j) = b[p*brs + j*bcs], one of the strides is 1 */
    int64_t brs, bcs;
    float *c; /* C(i,j) = c[i*ldc + j] */
    int64_t ldc;
    int accumulate;    /* 0: chains start from +0 and C is not read; 1: they go on from C */
    const float *bias; /* (n) or NULL: added after the chain, rounded once more */
} dt__gemm;

typedef uint32_t dt__word __attribute__((may_alias)); /* the bits of a number */

/* Multi-head attention over all (sample, head) pairs; head j is the columns j*d .. j*d + d-1 of every row. The hk heads
 * of the keys serve h/hk neighbouring query heads each (grouped queries, Ainslie et al. 2023). */
typedef struct dt__attention {
    int64_t b, t, s, h, hk, d; /* batch, queries, keys, heads of the queries and of the keys, head width */
    int64_t first_head;        /* number of head 0 among those of all tensor shards */
    const float *q;            /* (b,t,h*d), row stride ld: q, k and v may be columns of one fused row */
    const float *k, *v;        /* (b,s,hk*d), row stride ldk, room rows from sample to sample */
    int64_t ld, ldk, room;     /* room > s: a cache of which only the first s keys count */
    int64_t gap;               /* other rows between the queries of two samples, and so in statistics of two heads */
    float *o;                  /* (b,t,h*d), row stride ldo; the backward pass reads it */
    int64_t ldo;
    float *row_max, *row_sum; /* (b,h,t): written forward, read backward; 0 and 1 for a query that sees nothing */
    float scale;
    int causal;              /* 1: query i sees the keys 0..i+s-t; 0: all */
    const dt__word *mask;    /* (t,s) or NULL: a word without a bit of mask_bits hides its key from its query */
    uint32_t mask_bits;      /* all of an int32, all but the sign of a float */
    int64_t mask_step;       /* words from one sample's mask to the next: t*s, or 0 when the samples share it */
    uint32_t drop_threshold; /* 0: no dropout; else a probability is dropped when its random word is below */
    float drop_scale;        /* 1 / (1 - p) */
    const dt__rng *rng;      /* (b): one stream per sample; element ((first_head + head)*t + query)*s + key */
    int64_t whole;           /* 0; or t and s are slices, the elements are those of (whole,whole), */
    int64_t t_at, s_at;      /* where query and key 0 stand here, */
    int part;                /* and o is not divided by the sums */
    const float *dout;       /* backward: (b,t,h*d), row stride lddo */
    int64_t lddo;
    float *dq, *dk, *dv; /* backward: like q, k, v with row strides lddq, lddk; overwritten */
    int64_t lddq, lddk;
} dt__attention;

/* What slices of the keys make of neighbouring queries of a head (R9): largest score, sum of exp(score - max), and the
 * chains of these times v. */
typedef struct dt__slice_sums {
    float *max, *sum, *o; /* (rows), (rows), (rows,d) with row stride ld */
    int64_t ld;
} dt__slice_sums;

/* The scalars of one step of an optimizer, computed once in double and rounded (R13). */
typedef struct dt__update {
    float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
    float clip;       /* gradient scale of this step, 1 when the norm is below the limit */
    float limit;      /* of every gradient element after that; infinity: none */
    float decay;      /* added to the gradient times the weight: Adam, SGD */
    float keep;       /* 1 - lr * decay where decay is decoupled, else 1 */
    float step;       /* lr / (1 - beta1^t); SGD, Lion: lr */
    float root_scale; /* 1 / sqrt(1 - beta2^t) */
    float momentum;
    int nesterov;
    float average, one_minus_average; /* of the weights */
} dt__update;

/* What an optimizer keeps of weights: up to two values; where they are codes, their blocks' scales; an average. */
enum { DT__STATE_FIRST, DT__STATE_SECOND, DT__STATE_SCALE1, DT__STATE_SCALE2, DT__STATE_AVERAGE, DT__STATE_COUNT };
enum { DT__MOMENT_BLOCK = 256 }; /* weights that share a scale; divides DT__BLOCK */

/* A dt_dtype: bytes of an element; of the small floats also how many mantissa bits fp32 has more, the exponent's bias,
 * the first code beyond the finite numbers, and the code that a NaN becomes. */
typedef struct dt__format {
    const char *name;
    int bytes, shift, bias, top, nan;
} dt__format;
static const dt__format dt__format_of[] = {
    {"fp32", 4, 0, 127, 0, 0},           {"int32", 4, 0, 0, 0, 0},           {"bf16", 2, 16, 127, 0x7f80, 0x7fc0},
    {"fp16", 2, 13, 15, 0x7c00, 0x7e00}, {"fp8 e4m3", 1, 20, 7, 0x7f, 0x7f}, {"fp8 e5m2", 1, 21, 15, 0x7c, 0x7f}};

/* Truncation, with the ends of int32 for what is beyond and 0 for NaN: C leaves those open and processors differ. */
static inline int32_t dt__to_int(float x)
{
    if (x >= 2147483648.0f) return INT32_MAX;
    if (x < -2147483648.0f) return INT32_MIN;
    return x == x ? (int32_t)x : 0;
}

/* The kernels of one instruction set. */
typedef struct dt__kernels {
    const char *name;
    void (*gemm)(dt_pool *pool, const dt__gemm *g);
    int64_t (*gemm_scratch)(void);
    void (*attention_forward)(dt_pool *pool, const dt__attention *a);
    void (*attention_backward)(dt_pool *pool, const dt__attention *a);
    int64_t (*attention_scratch)(int64_t s, int64_t d);
    void (*attention_join)(const dt__slice_sums *left, const dt__slice_sums *right, int64_t rows, int64_t d);
    void (*rope)(float *out, const float *x, const float *turn, int64_t heads, int64_t d, float sign);
    float (*row_sum)(const float *x, int64_t n);
    float (*row_dot)(const float *a, const float *b, int64_t n);
    float (*row_max)(const float *x, int64_t n);
    void (*add_scaled)(float *out, const float *x, int64_t n, float s);
    void (*col_sum)(float *sum, const float *x, int64_t rows, int64_t cols, int64_t ld);
    void (*unary)(int op, float *out, const float *x, int64_t n, float s);
    void (*binary)(int op, float *out, const float *a, int astep, const float *b, int bstep, int64_t n);
    void (*convert)(int to, void *out, int from, const void *x, int64_t n);
    void (*select)(float *out, const float *mask, int mstep, const float *a, int astep, const float *b, int bstep,
                   int64_t n);
    void (*layernorm)(float *out, float *stats, const float *x, const float *gamma, const float *beta, int64_t rows,
                      int64_t cols, float eps);
    void (*layernorm_dx)(float *out, const float *dy, const float *x, const float *stats, const float *gamma,
                         int64_t rows, int64_t cols, float *row);
    void (*layernorm_dgamma)(float *dgamma, const float *dy, const float *x, const float *stats, int64_t rows,
                             int64_t cols, int64_t ld);
    void (*cross_entropy)(float *loss, float *stats, const float *x, const int32_t *target, float smoothing,
                          int64_t rows, int64_t cols, float *row);
    void (*cross_entropy_grad)(float *out, const float *x, const float *stats, const int32_t *target, float smoothing,
                               float dloss, int64_t rows, int64_t cols, int64_t first, int64_t classes);
    void (*update)(int optimizer, float *w, void *const *state, const float *grad, int64_t n, const dt__update *u);
} dt__kernels;

#if !defined(__clang__) && !defined(DT_DEBUG)
#pragma GCC push_options
#pragma GCC optimize("O3") /* packing and row loops want the vectorizer; the rest of the file compiles faster without */
#endif
#define DT__ISA 0
#include DT_HEADER
#undef DT__ISA
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define DT__ISA 1
#include DT_HEADER
#undef DT__ISA
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw"))),                   \
                             apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw")
#endif
#define DT__ISA 2
#include DT_HEADER
#undef DT__ISA
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define DT__ISA 3
#include DT_HEADER
#undef DT__ISA
#endif
#if !defined(__clang__) && !defined(DT_DEBUG)
#pragma GCC pop_options
#endif

#endif /* implementation */
#endif /* DT__ISA */

#ifdef DT__ISA

/* ---- vectors: the same text at 4, 8 and 16 lanes -------------------------------------------
 * dt__vf and dt__vi are vectors of DT__W floats and int32s. +, -, *, / and comparisons are the compiler's vector
 * operators, each rounding once (contraction is off); fma and square root are the instructions. A comparison gives
 * all-ones or all-zeros lanes. Every function below is inlined into its kernel. */
#if DT__ISA == 2
#define DT__W 16
#define DT__K(name) name##_avx512
#elif DT__ISA == 1
#define DT__W 8
#define DT__K(name) name##_avx2
#elif DT__ISA == 3
#define DT__W 4
#define DT__K(name) name##_neon
#else
#define DT__W 4
#define DT__K(name) name##_portable
#endif
#define dt__vf DT__K(dt__vf)
#define dt__vfu DT__K(dt__vfu)
#define dt__vi DT__K(dt__vi)
#define dt__vl DT__K(dt__vl)
#define dt__v_load DT__K(dt__v_load)
#define dt__v_store DT__K(dt__v_store)
#define dt__v_loadn DT__K(dt__v_loadn)
#define dt__v_storen DT__K(dt__v_storen)
#define dt__v_set DT__K(dt__v_set)
#define dt__v_seti DT__K(dt__v_seti)
#define dt__v_fma DT__K(dt__v_fma)
#define dt__v_sqrt DT__K(dt__v_sqrt)
#define dt__v_abs DT__K(dt__v_abs)
#define dt__v_select DT__K(dt__v_select)
#define dt__v_max DT__K(dt__v_max)
#define dt__v_min DT__K(dt__v_min)

typedef float dt__vf __attribute__((vector_size(4 * DT__W), may_alias));
typedef float dt__vfu __attribute__((vector_size(4 * DT__W), aligned(4), may_alias));
typedef int32_t dt__vi __attribute__((vector_size(4 * DT__W), may_alias));
typedef uint64_t dt__vl __attribute__((vector_size(4 * DT__W), may_alias));
#define DT__INLINE static inline __attribute__((always_inline, unused))

DT__INLINE dt__vf dt__v_load(const float *p) { return (dt__vf) * (const dt__vfu *)p; }
DT__INLINE void dt__v_store(float *p, dt__vf v) { *(dt__vfu *)p = (dt__vfu)v; }

#if DT__ISA == 2
/* The maskz forms with all lanes set are the plain instructions; g++ 12 warns that the plain forms' headers read an
 * undefined vector. */
DT__INLINE dt__vf dt__v_set(float x) { return (dt__vf)_mm512_set1_ps(x); }
DT__INLINE dt__vi dt__v_seti(int32_t x) { return (dt__vi)_mm512_set1_epi32(x); }
DT__INLINE dt__vf dt__v_fma(dt__vf a, dt__vf b, dt__vf c)
{
    return (dt__vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
DT__INLINE dt__vf dt__v_sqrt(dt__vf a) { return (dt__vf)_mm512_maskz_sqrt_ps((__mmask16)0xffff, (__m512)a); }
/* First n lanes; the others read as +0 and are not touched in memory. 0 <= n <= DT__W. */
DT__INLINE dt__vf dt__v_loadn(const float *p, int64_t n)
{
    return (dt__vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
DT__INLINE void dt__v_storen(float *p, dt__vf v, int64_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)v);
}
#elif DT__ISA == 1
DT__INLINE dt__vf dt__v_set(float x) { return (dt__vf)_mm256_set1_ps(x); }
DT__INLINE dt__vi dt__v_seti(int32_t x) { return (dt__vi)_mm256_set1_epi32(x); }
DT__INLINE dt__vf dt__v_fma(dt__vf a, dt__vf b, dt__vf c)
{
    return (dt__vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
DT__INLINE dt__vf dt__v_sqrt(dt__vf a) { return (dt__vf)_mm256_sqrt_ps((__m256)a); }
DT__INLINE __m256i DT__K(dt__v_mask)(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
DT__INLINE dt__vf dt__v_loadn(const float *p, int64_t n) { return (dt__vf)_mm256_maskload_ps(p, DT__K(dt__v_mask)(n)); }
DT__INLINE void dt__v_storen(float *p, dt__vf v, int64_t n) { _mm256_maskstore_ps(p, DT__K(dt__v_mask)(n), (__m256)v); }
#else
DT__INLINE dt__vf dt__v_set(float x)
{
    dt__vf v = {x, x, x, x};
    return v;
}
DT__INLINE dt__vi dt__v_seti(int32_t x)
{
    dt__vi v = {x, x, x, x};
    return v;
}
#if DT__ISA == 3
DT__INLINE dt__vf dt__v_fma(dt__vf a, dt__vf b, dt__vf c)
{
    return (dt__vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
DT__INLINE dt__vf dt__v_sqrt(dt__vf a) { return (dt__vf)vsqrtq_f32((float32x4_t)a); }
#else
DT__INLINE dt__vf dt__v_fma(dt__vf a, dt__vf b, dt__vf c)
{
    for (int i = 0; i < DT__W; i++) c[i] = dt__fmaf(a[i], b[i], c[i]);
    return c;
}
DT__INLINE dt__vf dt__v_sqrt(dt__vf a)
{
    for (int i = 0; i < DT__W; i++) a[i] = dt__sqrtf(a[i]);
    return a;
}
#endif
DT__INLINE dt__vf dt__v_loadn(const float *p, int64_t n)
{
    dt__vf v = dt__v_set(0.0f);
    if (n == DT__W) return dt__v_load(p);
    for (int64_t i = 0; i < n; i++) v[i] = p[i];
    return v;
}
DT__INLINE void dt__v_storen(float *p, dt__vf v, int64_t n)
{
    if (n == DT__W) dt__v_store(p, v);
    else for (int64_t i = 0; i < n; i++) p[i] = v[i];
}
#endif

DT__INLINE dt__vf dt__v_abs(dt__vf x) { return (dt__vf)((dt__vi)x & dt__v_seti(0x7fffffff)); }
/* mask lane set ? a : b */
DT__INLINE dt__vf dt__v_select(dt__vi mask, dt__vf a, dt__vf b)
{
    return (dt__vf)(((dt__vi)a & mask) | ((dt__vi)b & ~mask));
}
/* R14: a > b ? a : b, and a < b ? a : b. The x86 instructions are defined so, zeros and NaN included; NEON's fmax and
 * fmin are not. */
#if DT__ISA == 2
DT__INLINE dt__vf dt__v_max(dt__vf a, dt__vf b)
{
    return (dt__vf)_mm512_maskz_max_ps((__mmask16)0xffff, (__m512)a, (__m512)b);
}
DT__INLINE dt__vf dt__v_min(dt__vf a, dt__vf b)
{
    return (dt__vf)_mm512_maskz_min_ps((__mmask16)0xffff, (__m512)a, (__m512)b);
}
#elif DT__ISA == 1
DT__INLINE dt__vf dt__v_max(dt__vf a, dt__vf b) { return (dt__vf)_mm256_max_ps((__m256)a, (__m256)b); }
DT__INLINE dt__vf dt__v_min(dt__vf a, dt__vf b) { return (dt__vf)_mm256_min_ps((__m256)a, (__m256)b); }
#else
DT__INLINE dt__vf dt__v_max(dt__vf a, dt__vf b) { return dt__v_select((dt__vi)(a > b), a, b); }
DT__INLINE dt__vf dt__v_min(dt__vf a, dt__vf b) { return dt__v_select((dt__vi)(a < b), a, b); }
#endif

/* ---- exp on vectors: dt__expf, operation for operation ------------------------------------- */
#define dt__v_exp DT__K(dt__v_exp)
DT__INLINE dt__vf dt__v_exp(dt__vf x)
{
    dt__vf t, n, r, q;
    dt__vi whole, half;
    x = dt__v_min(dt__v_set(DT__EXP_MAX), x); /* NaN stays: the second operand */
    x = dt__v_max(dt__v_set(DT__EXP_MIN), x);
    t = dt__v_fma(x, dt__v_set(DT__EXP_LOG2E), dt__v_set(DT__EXP_ROUND));
    n = t - dt__v_set(DT__EXP_ROUND);
    r = dt__v_fma(n, dt__v_set(-DT__EXP_LN2_HI), x);
    r = dt__v_fma(n, dt__v_set(-DT__EXP_LN2_LO), r);
    q = dt__v_fma(dt__v_set(DT__EXP_C6), r, dt__v_set(DT__EXP_C5));
    q = dt__v_fma(q, r, dt__v_set(DT__EXP_C4));
    q = dt__v_fma(q, r, dt__v_set(DT__EXP_C3));
    q = dt__v_fma(q, r, dt__v_set(DT__EXP_C2));
    q = dt__v_fma(q, r, dt__v_set(1.0f));
    q = dt__v_fma(q, r, dt__v_set(1.0f));
    whole = (dt__vi)t - (dt__vi)dt__v_set(DT__EXP_ROUND);
    half = whole >> 1;
    q = q * (dt__vf)((half + dt__v_seti(127)) << 23);
    return q * (dt__vf)((whole - half + dt__v_seti(127)) << 23);
}

/* ---- log, tanh, and GELU -------------------------------------------------------------------- */

/* Natural logarithm. x = 2^e m with m in [sqrt(1/2), sqrt(2)); log m = f - f^2/2 + f^3 P(f), f = m - 1 (the shape of
 * Cephes' logf; coefficients a minimax fit). 0 gives -inf, negative gives NaN, subnormals are scaled first. */
DT__INLINE dt__vf DT__K(dt__v_log)(dt__vf x)
{
    dt__vi tiny = (dt__vi)(x < dt__v_set(0x1p-126f)), bits, big;
    dt__vf scaled = dt__v_select(tiny, x * dt__v_set(0x1p23f), x), e, m, f, z, p, y;
    bits = (dt__vi)scaled;
    e = __builtin_convertvector((bits >> 23) - 126, dt__vf) - dt__v_select(tiny, dt__v_set(23.0f), dt__v_set(0.0f));
    m = (dt__vf)((bits & 0x007fffff) | 0x3f000000); /* [1/2, 1) */
    big = (dt__vi)(m < dt__v_set(0.707106781f));
    e = e - dt__v_select(big, dt__v_set(1.0f), dt__v_set(0.0f));
    f = dt__v_select(big, m + m, m) - dt__v_set(1.0f);
    z = f * f;
    p = dt__v_set(7.0376836292e-2f);
    p = dt__v_fma(p, f, dt__v_set(-1.1514610310e-1f));
    p = dt__v_fma(p, f, dt__v_set(1.1676998740e-1f));
    p = dt__v_fma(p, f, dt__v_set(-1.2420140846e-1f));
    p = dt__v_fma(p, f, dt__v_set(1.4249322787e-1f));
    p = dt__v_fma(p, f, dt__v_set(-1.6668057665e-1f));
    p = dt__v_fma(p, f, dt__v_set(2.0000714765e-1f));
    p = dt__v_fma(p, f, dt__v_set(-2.4999993993e-1f));
    p = dt__v_fma(p, f, dt__v_set(3.3333331174e-1f));
    y = dt__v_fma(p * f, z, e * dt__v_set(-2.12194440e-4f));
    y = dt__v_fma(dt__v_set(-0.5f), z, y);
    y = dt__v_fma(e, dt__v_set(0.693359375f), f + y);
    y = dt__v_select((dt__vi)(x == dt__v_set(__builtin_inff())), x, y);
    y = dt__v_select((dt__vi)(x == dt__v_set(0.0f)), dt__v_set(-__builtin_inff()), y);
    y = dt__v_select((dt__vi)(x < dt__v_set(0.0f)), dt__v_set(__builtin_nanf("")), y);
    return dt__v_select((dt__vi)(x != x), x, y);
}

/* tanh x = 1 - 2 / (exp(2|x|) + 1) with the sign of x; below 0.625 an odd polynomial, which keeps the relative error.
 */
DT__INLINE dt__vf DT__K(dt__v_tanh)(dt__vf x)
{
    dt__vi sign = (dt__vi)x & dt__v_seti((int32_t)0x80000000);
    dt__vf a = dt__v_abs(x), z = x * x, big, p;
    big = dt__v_set(1.0f) - dt__v_set(2.0f) / (DT__K(dt__v_exp)(a + a) + dt__v_set(1.0f));
    p = dt__v_set(-5.70498872745e-3f);
    p = dt__v_fma(p, z, dt__v_set(2.06390887954e-2f));
    p = dt__v_fma(p, z, dt__v_set(-5.37397155531e-2f));
    p = dt__v_fma(p, z, dt__v_set(1.33314422036e-1f));
    p = dt__v_fma(p, z, dt__v_set(-3.33332819422e-1f));
    p = dt__v_fma(p * z, a, a);
    a = dt__v_select((dt__vi)(a < dt__v_set(0.625f)), p, big);
    return (dt__vf)((dt__vi)a | sign);
}

/* GELU, tanh form (Hendrycks and Gimpel 2016): x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3). This is
 * x (1 + tanh u) / 2 without its cancellation for negative x. */
DT__INLINE dt__vf DT__K(dt__gelu_exp)(dt__vf x) /* exp(-2u) */
{
    return DT__K(dt__v_exp)(x * dt__v_fma(x * x, dt__v_set(-0.0713548163f), dt__v_set(-1.59576912f)));
}
DT__INLINE dt__vf DT__K(dt__v_gelu)(dt__vf x)
{
    return x * (dt__v_set(1.0f) / (dt__v_set(1.0f) + DT__K(dt__gelu_exp)(x)));
}

/* dy * (s + x s (1 - s) 2u') with the gate s = 1 / (1 + e); 1 - s is e s, which does not cancel. Where the second term
 * vanishes it is left out, since its factors may overflow there. */
DT__INLINE dt__vf DT__K(dt__v_gelu_grad)(dt__vf x, dt__vf dy)
{
    dt__vf e = DT__K(dt__gelu_exp)(x), s = dt__v_set(1.0f) / (dt__v_set(1.0f) + e), p = s * (e * s);
    dt__vf slope = dt__v_fma(x * x, dt__v_set(0.214064449f), dt__v_set(1.59576912f)); /* 2u' */
    return dy * dt__v_select((dt__vi)(p > dt__v_set(0.0f)), dt__v_fma(x * slope, p, s), s);
}

/* The gradient of SiLU: dy * (s + x s (1 - s)) with s = 1 / (1 + e^-x). With e = exp(-|x|), which does not overflow,
 * s (1 - s) is e / (1 + e)^2. */
DT__INLINE dt__vf DT__K(dt__v_silu_grad)(dt__vf x, dt__vf dy)
{
    const dt__vf one = dt__v_set(1.0f), most = dt__v_set(120.0f);
    dt__vf c = dt__v_max(-most, dt__v_min(most, x)), e = dt__v_exp(-dt__v_abs(c)), d = one / (one + e);
    dt__vf s = dt__v_select((dt__vi)(c < dt__v_set(0.0f)), e * d, d);
    return dy * dt__v_fma(c * d, e * d, s);
}

/* ---- steps and whole numbers -------------------------------------------------------------------- */

/* +0 for x <= 0, else x: NaN stays. */
DT__INLINE dt__vf DT__K(dt__v_relu)(dt__vf x)
{
    return dt__v_select((dt__vi)(x <= dt__v_set(0.0f)), dt__v_set(0.0f), x);
}
/* 1 or -1; zeros and NaN stay as they are. */
DT__INLINE dt__vf DT__K(dt__v_sign)(dt__vf x)
{
    dt__vf y = dt__v_select((dt__vi)(x > dt__v_set(0.0f)), dt__v_set(1.0f), x);
    return dt__v_select((dt__vi)(x < dt__v_set(0.0f)), dt__v_set(-1.0f), y);
}
/* Nearest whole number, ties to even: 2^23 leaves no place for a fraction. The sign stays, also that of a zero. */
DT__INLINE dt__vf DT__K(dt__v_round)(dt__vf x)
{
    dt__vf a = dt__v_abs(x), big = dt__v_set(0x1p23f), whole = (a + big) - big;
    whole = (dt__vf)((dt__vi)whole | ((dt__vi)x & dt__v_seti((int32_t)0x80000000)));
    return dt__v_select((dt__vi)(a < big), whole, x);
}
DT__INLINE dt__vf DT__K(dt__v_floor)(dt__vf x)
{
    dt__vf whole = DT__K(dt__v_round)(x);
    return dt__v_select((dt__vi)(whole > x), whole - dt__v_set(1.0f), whole);
}

/* ---- functions in double ----------------------------------------------------------------------
 * Half as many lanes, in double: then short formulas without corrections are good to about 2^-30, and rounding to float
 * is nearly all of the error. No fma, so that machines without the instruction are fast too. Coefficients are minimax
 * fits of the relative error (Remez exchange). Arguments and results are floats: no double in sight is subnormal. */
#define dt__vd DT__K(dt__vd)
#define dt__vh DT__K(dt__vh)
#define dt__vhu DT__K(dt__vhu)
typedef double dt__vd __attribute__((vector_size(4 * DT__W), may_alias));
typedef float dt__vh __attribute__((vector_size(2 * DT__W), may_alias)); /* as many floats */
typedef float dt__vhu __attribute__((vector_size(2 * DT__W), aligned(4), may_alias));

#if DT__ISA == 2
DT__INLINE dt__vd DT__K(dt__d_set)(double x) { return (dt__vd)_mm512_set1_pd(x); }
#elif DT__ISA == 1
DT__INLINE dt__vd DT__K(dt__d_set)(double x) { return (dt__vd)_mm256_set1_pd(x); }
#else
DT__INLINE dt__vd DT__K(dt__d_set)(double x)
{
    dt__vd v = {x, x};
    return v;
}
#endif
/* The first n lanes of DT__W / 2 >= n >= 1; the others read as +0 and are not touched in memory. */
DT__INLINE dt__vd DT__K(dt__d_load)(const float *p, int64_t n)
{
    dt__vh h;
    if (n == DT__W / 2) return __builtin_convertvector((dt__vh) * (const dt__vhu *)p, dt__vd);
    memset(&h, 0, sizeof h);
    memcpy(&h, p, sizeof(float) * (size_t)n);
    return __builtin_convertvector(h, dt__vd);
}
DT__INLINE void DT__K(dt__d_store)(float *p, dt__vd v, int64_t n)
{
    dt__vh h = __builtin_convertvector(v, dt__vh);
    if (n == DT__W / 2) *(dt__vhu *)p = (dt__vhu)h;
    else memcpy(p, &h, sizeof(float) * (size_t)n);
}
DT__INLINE dt__vd DT__K(dt__d_select)(dt__vl mask, dt__vd a, dt__vd b)
{
    return (dt__vd)(((dt__vl)a & mask) | ((dt__vl)b & ~mask));
}
#define DT__WHERE(condition, a, b) DT__K(dt__d_select)((dt__vl)(condition), a, b)
#define DT__SIGN 0x8000000000000000u
DT__INLINE dt__vd DT__K(dt__d_abs)(dt__vd x) { return (dt__vd)((dt__vl)x & ~DT__SIGN); }
DT__INLINE dt__vd DT__K(dt__d_sign)(dt__vd x, dt__vd s) { return (dt__vd)((dt__vl)x | ((dt__vl)s & DT__SIGN)); }

/* 2^v = s (1 + p): returns p = 2^f - 1 to 2^-32 of its value, and s = 2^n. v is kept within +-300, beyond which floats
 * over- and underflow. The low bits of v + 1.5 * 2^52 are n. */
#define DT__ROUND_52 0x1.8p52
DT__INLINE dt__vd DT__K(dt__d_exp2_parts)(dt__vd v, dt__vd *s)
{
    const dt__vd most = DT__K(dt__d_set)(300.0);
    dt__vd t, f, p;
    v = DT__WHERE(v > most, most, v);
    v = DT__WHERE(v < -most, -most, v);
    t = v + DT__ROUND_52;
    f = v - (t - DT__ROUND_52);
    p = f * 0x1.ffcc8f5d3cea2p-17 + 0x1.443f95dd95260p-13;
    p = p * f + 0x1.5d88bd5d2e65cp-10;
    p = p * f + 0x1.3b2a1bf5ae4e6p-7;
    p = p * f + 0x1.c6b08cb169959p-5;
    p = p * f + 0x1.ebfbe045708dcp-3;
    p = p * f + 0x1.62e42fefd3471p-1;
    *s = (dt__vd)(((dt__vl)t + 1023u) << 52);
    return p * f;
}
DT__INLINE dt__vd DT__K(dt__d_exp2)(dt__vd v)
{
    dt__vd s, p = DT__K(dt__d_exp2_parts)(v, &s);
    return p * s + s;
}

/* Base-2 logarithm of a float or of a sum of floats. x = 2^e m with m in [sqrt(1/2), sqrt(2)) and the atanh series of
 * s = (m - 1) / (m + 1), to 2^-45. 0 gives -inf, negative gives NaN. */
DT__INLINE dt__vd DT__K(dt__d_log2)(dt__vd x)
{
    const dt__vd inf = DT__K(dt__d_set)(__builtin_inf()), zero = DT__K(dt__d_set)(0.0);
    dt__vl e = ((dt__vl)x - 0x3fe6a09e00000000u + 0x3ff0000000000000u) >> 52; /* exponent + 1023 */
    dt__vd m = (dt__vd)((dt__vl)x - ((e - 1023u) << 52)), s = (m - 1.0) / (m + 1.0), z = s * s, p;
    p = z * 0x1.21b0ea97e634ap-2 + 0x1.47955635813fbp-2;
    p = p * z + 0x1.a61a2ec9b1b2bp-2;
    p = p * z + 0x1.2776c2933ecdcp-1;
    p = p * z + 0x1.ec709dc53c66bp-1;
    p = p * z + 0x1.71547652b8251p+1;
    p = p * s + ((dt__vd)(e | 0x4330000000000000u) - (0x1p52 + 1023.0)); /* e as a number */
    p = DT__WHERE(x - x != zero, x, p); /* inf and NaN */
    p = DT__WHERE(x == zero, -inf, p);
    return DT__WHERE(x < zero, inf - inf, p);
}

#define DT__LOG2E 0x1.71547652b82fep+0
#define DT__LN2 0x1.62e42fefa39efp-1

DT__INLINE dt__vd DT__K(dt__d_expm1)(dt__vd x)
{
    dt__vd s, p = DT__K(dt__d_exp2_parts)(x * DT__LOG2E, &s);
    return DT__K(dt__d_sign)(p * s + (s - 1.0), x);
}
/* Below 2^-12 the series: 1 + x would lose bits of x. */
DT__INLINE dt__vd DT__K(dt__d_log1p)(dt__vd x)
{
    dt__vd series = x * (1.0 - x * (0.5 - x * (1.0 / 3.0)));
    return DT__WHERE(DT__K(dt__d_abs)(x) < DT__K(dt__d_set)(0x1p-12), series, DT__K(dt__d_log2)(x + 1.0) * DT__LN2);
}
DT__INLINE dt__vd DT__K(dt__d_sigmoid)(dt__vd x) { return 1.0 / (1.0 + DT__K(dt__d_exp2)(x * -DT__LOG2E)); }
/* x / (1 + e^-x) (Elfwing et al. 2018); -inf gives the limit, -0. */
DT__INLINE dt__vd DT__K(dt__d_silu)(dt__vd x)
{
    const dt__vd least = DT__K(dt__d_set)(-1000.0);
    x = DT__WHERE(x < least, least, x);
    return x / (1.0 + DT__K(dt__d_exp2)(x * -DT__LOG2E));
}
/* log(1 + e^x) = max(x, 0) + log1p(e^-|x|) */
DT__INLINE dt__vd DT__K(dt__d_softplus)(dt__vd x)
{
    const dt__vd zero = DT__K(dt__d_set)(0.0);
    dt__vd rest = DT__K(dt__d_log1p)(DT__K(dt__d_exp2)(DT__K(dt__d_abs)(x) * -DT__LOG2E));
    return DT__WHERE(x > zero, x, zero) + rest;
}

/* erfc(a) for a >= 0, a2 = a^2: *gauss = e^-a2, times erfcx(a) as a polynomial of (a - 2.5) / (a + 2.5) for a <= 10.5;
 * there e^-a2 is below the least float. To 2^-31. */
DT__INLINE dt__vd DT__K(dt__d_erfc)(dt__vd a, dt__vd a2, dt__vd *gauss)
{
    const dt__vd most = DT__K(dt__d_set)(10.5);
    dt__vd u, p;
    a = DT__WHERE(a > most, most, a);
    u = (a - 2.5) / (a + 2.5);
    p = u * 0x1.9611616f8ebe3p-18 + 0x1.017360257f484p-16;
    p = p * u - 0x1.1c79214974016p-15;
    p = p * u - 0x1.0a44f2278fc81p-13;
    p = p * u + 0x1.df2f657b0122dp-13;
    p = p * u + 0x1.caefa976ad03cp-11;
    p = p * u - 0x1.5a58a1a4e97b9p-9;
    p = p * u - 0x1.05b9c319d0454p-8;
    p = p * u + 0x1.470ba47cd9655p-5;
    p = p * u - 0x1.001154fa20981p-3;
    p = p * u + 0x1.01c11a71aeeb9p-2;
    p = p * u - 0x1.7ca88dea40c6ep-2;
    p = p * u + 0x1.afbb3f3b6f3edp-3;
    *gauss = DT__K(dt__d_exp2)(a2 * -DT__LOG2E);
    return *gauss * p;
}
/* 1 - erfc|x|, and below 1/2, where that would cancel, x P(x^2). */
DT__INLINE dt__vd DT__K(dt__d_erf)(dt__vd x)
{
    dt__vd a = DT__K(dt__d_abs)(x), z = x * x, gauss, p, big = 1.0 - DT__K(dt__d_erfc)(a, z, &gauss);
    p = z * -0x1.9353b9fb51a53p-11 + 0x1.54ceb26ca754ep-8;
    p = p * z - 0x1.b820175f70c59p-6;
    p = p * z + 0x1.ce2ef1ab723a2p-4;
    p = p * z - 0x1.8127466e3cce2p-2;
    p = p * z + 0x1.20dd75041af20p+0;
    return DT__K(dt__d_sign)(DT__WHERE(a < DT__K(dt__d_set)(0.5), p * a, big), x);
}

/* Phi(x), the normal distribution: erfc(|x| / sqrt 2) / 2 or 1 minus that. *gauss = e^(-x^2/2). */
DT__INLINE dt__vd DT__K(dt__d_normal)(dt__vd x, dt__vd *gauss)
{
    dt__vd h = 0.5 * DT__K(dt__d_erfc)(DT__K(dt__d_abs)(x) * 0x1.6a09e667f3bcdp-1, 0.5 * (x * x), gauss);
    return DT__WHERE(x < DT__K(dt__d_set)(0.0), h, 1.0 - h);
}
/* x Phi(x); -inf gives the limit, -0. */
DT__INLINE dt__vd DT__K(dt__d_gelu_erf)(dt__vd x)
{
    const dt__vd least = DT__K(dt__d_set)(-40.0);
    dt__vd gauss, normal = DT__K(dt__d_normal)(x, &gauss);
    return DT__WHERE(x < least, least, x) * normal;
}
/* dy (Phi(x) + x phi(x)) */
DT__INLINE dt__vd DT__K(dt__d_gelu_erf_grad)(dt__vd x, dt__vd dy)
{
    const dt__vd most = DT__K(dt__d_set)(40.0);
    dt__vd gauss, normal;
    x = DT__WHERE(x < -most, -most, x);
    x = DT__WHERE(x > most, most, x);
    normal = DT__K(dt__d_normal)(x, &gauss);
    return dy * (normal + x * gauss * 0x1.9884533d43651p-2);
}

/* a^b = 2^(b log2 |a|), then C's rules: a^0 and 1^b are 1 (NaN included), (-1)^+-inf is 1, a negative a has the sign of
 * an odd b and no value for a b that is no whole number. Floats from 2^24 on are even. */
DT__INLINE dt__vd DT__K(dt__d_pow)(dt__vd a, dt__vd b)
{
    const dt__vd zero = DT__K(dt__d_set)(0.0), one = DT__K(dt__d_set)(1.0), even = DT__K(dt__d_set)(0x1p30);
    dt__vd size = DT__K(dt__d_abs)(a), y = DT__K(dt__d_exp2)(b * DT__K(dt__d_log2)(size)), c, t;
    dt__vl odd;
    c = DT__K(dt__d_abs)(b);
    c = DT__WHERE(c < even, c, even);
    t = c + DT__ROUND_52;
    odd = ((dt__vl)t << 63) & (dt__vl)(t - DT__ROUND_52 == c);
    y = DT__WHERE((size == one) & (b == b), one, y);
    y = (dt__vd)((dt__vl)y | (odd & (dt__vl)a));
    y = DT__WHERE((a < zero) & (a - a == zero) & (t - DT__ROUND_52 != c), zero / zero, y);
    return DT__WHERE((b == zero) | (a == one), one, y);
}

/* x = n pi/2 + r: returns r, |r| <= pi/4; the low two bits of *n are n. Up to 2^20 n times the upper 33 bits of pi/2 is
 * exact; beyond, and for inf and NaN, lane by lane. */
DT__INLINE dt__vd DT__K(dt__d_quadrant)(dt__vd x, dt__vl *n)
{
    dt__vd t = x * 0x1.45f306dc9c883p-1 + DT__ROUND_52, k = t - DT__ROUND_52;
    dt__vd r = (x - k * 0x1.921fb544p+0) - k * 0x1.0b4611a626331p-34;
    double angle[DT__W / 2], rest[DT__W / 2];
    uint64_t quadrant[DT__W / 2];
    int large = 0;
    memcpy(angle, &x, sizeof x);
    for (int i = 0; i < DT__W / 2; i++) large |= !(angle[i] < 0x1p20 && angle[i] > -0x1p20);
    *n = (dt__vl)t;
    if (!large) return r;
    memcpy(rest, &r, sizeof r);
    memcpy(quadrant, n, sizeof quadrant);
    for (int i = 0; i < DT__W / 2; i++)
        if (!(angle[i] < 0x1p20 && angle[i] > -0x1p20)) rest[i] = dt__large_angle((float)angle[i], &quadrant[i]);
    memcpy(&r, rest, sizeof r);
    memcpy(n, quadrant, sizeof quadrant);
    return r;
}
/* Sine and cosine of |r| <= pi/4: to 2^-37 and 2^-43. */
DT__INLINE dt__vd DT__K(dt__d_sin_near)(dt__vd r)
{
    dt__vd z = r * r, p = z * 0x1.6cd855cea9cc1p-19 - 0x1.a00f9db06d4aep-13;
    p = p * z + 0x1.1111089687705p-7;
    p = p * z - 0x1.5555554cbab88p-3;
    return r * (p * z + 1.0);
}
DT__INLINE dt__vd DT__K(dt__d_cos_near)(dt__vd r)
{
    dt__vd z = r * r, p = z * -0x1.23d8076123dadp-22 + 0x1.a00f11ddf3701p-16;
    p = p * z - 0x1.6c16b4018b649p-10;
    p = p * z + 0x1.55555546f7407p-5;
    p = p * z - 0x1.ffffffffec040p-2;
    return p * z + 1.0;
}
/* sin(x + quarters pi/2): the cosine is one quarter ahead. */
DT__INLINE dt__vd DT__K(dt__d_sin)(dt__vd x, uint64_t quarters)
{
    dt__vl n, odd;
    dt__vd r = DT__K(dt__d_quadrant)(x, &n), y;
    n = n + quarters;
    odd = 0u - (n & 1u);
    y = DT__K(dt__d_select)(odd, DT__K(dt__d_cos_near)(r), DT__K(dt__d_sin_near)(r));
    return (dt__vd)((dt__vl)y ^ ((n & 2u) << 62));
}
/* sin r / cos r, or a quarter on -cos r / sin r */
DT__INLINE dt__vd DT__K(dt__d_tan)(dt__vd x)
{
    dt__vl n, odd;
    dt__vd r = DT__K(dt__d_quadrant)(x, &n), s = DT__K(dt__d_sin_near)(r), c = DT__K(dt__d_cos_near)(r);
    odd = 0u - (n & 1u);
    return DT__K(dt__d_select)(odd, -c, s) / DT__K(dt__d_select)(odd, s, c);
}

/* ---- matrix product ------------------------------------------------------------------------
 * A register tile of DT__MR rows and up to DT__NV vectors of columns walks all of k with one accumulator per element,
 * so any tiling gives the same chain. Blocks of k store and reload the fp32 accumulator, which is exact. B is packed
 * into strips of DT__NR columns that stay in the second-level cache while the rows of A pass by; A is read in place
 * when its rows are contiguous, else packed one panel at a time. k is never padded; padded rows and columns are
 * computed aside and not stored. */
#if DT__ISA >= 2 /* 32 registers: 24 accumulators; else 16 of them */
#define DT__MR 8
#define DT__NV 3
#elif DT__ISA == 1
#define DT__MR 6
#define DT__NV 2
#else
#define DT__MR 4
#define DT__NV 4
#endif
#define DT__NR (DT__NV * DT__W)
#define DT__KC 384                       /* block of k: a strip of B and a panel of A of this depth share the caches */
#define DT__MC (4 * DT__MR)              /* rows of a transposed A that are packed together */
#define DT__NC (336 / DT__NR * DT__NR)   /* widest task: DT__KC * DT__NC floats of packed B fit the second level */
#ifndef DT__UNROLL
#if defined(__clang__)
#define DT__UNROLL _Pragma("clang loop unroll(full)")
#else
#define DT__UNROLL _Pragma("GCC unroll 16")
#endif
#endif

/* c (MR, nv*W) = [c +] a (MR,k) b (k, nv*W) [+ bias]. nv and one stride of a are constants where this is inlined. */
DT__INLINE void DT__K(dt__tile_body)(const int nv, int64_t k, const float *a, int64_t ars, int64_t acs, const float *b,
                                     int64_t brs, float *c, int64_t ldc, int load, const float *bias)
{
    dt__vf acc[DT__MR][DT__NV], bv[DT__NV];
    if (load) {
        DT__UNROLL for (int r = 0; r < DT__MR; r++) {
            DT__UNROLL for (int v = 0; v < nv; v++) acc[r][v] = dt__v_load(c + r * ldc + v * DT__W);
        }
    } else {
        DT__UNROLL for (int r = 0; r < DT__MR; r++) {
            DT__UNROLL for (int v = 0; v < nv; v++) acc[r][v] = dt__v_set(0.0f);
        }
    }
    for (int64_t p = 0; p < k; p++) {
        DT__UNROLL for (int v = 0; v < nv; v++) bv[v] = dt__v_load(b + v * DT__W);
        DT__UNROLL for (int r = 0; r < DT__MR; r++) {
            dt__vf av = dt__v_set(a[r * ars]);
            DT__UNROLL for (int v = 0; v < nv; v++) acc[r][v] = dt__v_fma(av, bv[v], acc[r][v]);
        }
        a += acs;
        b += brs;
    }
    if (bias) {
        DT__UNROLL for (int v = 0; v < nv; v++) bv[v] = dt__v_load(bias + v * DT__W);
        DT__UNROLL for (int r = 0; r < DT__MR; r++) {
            DT__UNROLL for (int v = 0; v < nv; v++) acc[r][v] = acc[r][v] + bv[v];
        }
    }
    DT__UNROLL for (int r = 0; r < DT__MR; r++) {
        DT__UNROLL for (int v = 0; v < nv; v++) dt__v_store(c + r * ldc + v * DT__W, acc[r][v]);
    }
}

static void DT__K(dt__tile)(int nv, int64_t k, const float *a, int64_t ars, int64_t acs, const float *b, int64_t brs,
                            float *c, int64_t ldc, int load, const float *bias)
{
#define DT__TILE(n)                                                                                          \
    if (nv == n && ars == 1) DT__K(dt__tile_body)(n, k, a, 1, acs, b, brs, c, ldc, load, bias);              \
    else if (nv == n) DT__K(dt__tile_body)(n, k, a, ars, 1, b, brs, c, ldc, load, bias);
    DT__TILE(1)
    DT__TILE(2)
#if DT__NV > 2
    DT__TILE(3)
#endif
#if DT__NV > 3
    DT__TILE(4)
#endif
#undef DT__TILE
}

/* A tile of which only rows x cols exist: computed in a full-size copy. */
static void DT__K(dt__tile_edge)(int64_t rows, int64_t cols, int64_t k, const float *a, int64_t ars, int64_t acs,
                                 const float *b, int64_t brs, float *c, int64_t ldc, int load, const float *bias)
{
    float t[DT__MR * DT__NR];
    memset(t, 0, sizeof t);
    for (int64_t i = 0; load && i < rows; i++) memcpy(t + i * DT__NR, c + i * ldc, (size_t)cols * sizeof *c);
    DT__K(dt__tile)((int)dt__ceil_div(cols, DT__W), k, a, ars, acs, b, brs, t, DT__NR, load, NULL);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) c[i * ldc + j] = bias ? t[i * DT__NR + j] + bias[j] : t[i * DT__NR + j];
    }
}

/* ---- packing ------------------------------------------------------------------------------- */

#if DT__ISA == 2
/* x[e] lane 4l+q = src[(4l+q)*stride + e]: four columns of a (16,4) block */
DT__INLINE void DT__K(dt__v_columns)(dt__vf x[4], const float *src, int64_t stride)
{
    __m512 q[4], lo01, hi01, lo23, hi23;
    DT__UNROLL for (int i = 0; i < 4; i++) {
        const float *s = src + i * stride;
        __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(s));
        v = _mm512_insertf32x4(v, _mm_loadu_ps(s + 4 * stride), 1);
        v = _mm512_insertf32x4(v, _mm_loadu_ps(s + 8 * stride), 2);
        q[i] = _mm512_insertf32x4(v, _mm_loadu_ps(s + 12 * stride), 3);
    }
    lo01 = _mm512_maskz_unpacklo_ps((__mmask16)0xffff, q[0], q[1]);
    hi01 = _mm512_maskz_unpackhi_ps((__mmask16)0xffff, q[0], q[1]);
    lo23 = _mm512_maskz_unpacklo_ps((__mmask16)0xffff, q[2], q[3]);
    hi23 = _mm512_maskz_unpackhi_ps((__mmask16)0xffff, q[2], q[3]);
    x[0] = (dt__vf)_mm512_maskz_unpacklo_pd((__mmask8)0xff, _mm512_castps_pd(lo01), _mm512_castps_pd(lo23));
    x[1] = (dt__vf)_mm512_maskz_unpackhi_pd((__mmask8)0xff, _mm512_castps_pd(lo01), _mm512_castps_pd(lo23));
    x[2] = (dt__vf)_mm512_maskz_unpacklo_pd((__mmask8)0xff, _mm512_castps_pd(hi01), _mm512_castps_pd(hi23));
    x[3] = (dt__vf)_mm512_maskz_unpackhi_pd((__mmask8)0xff, _mm512_castps_pd(hi01), _mm512_castps_pd(hi23));
}
#elif DT__ISA == 1
/* x[e] lane 4l+q = src[(4l+q)*stride + e]: four columns of an (8,4) block */
DT__INLINE void DT__K(dt__v_columns)(dt__vf x[4], const float *src, int64_t stride)
{
    __m256 q[4], lo01, hi01, lo23, hi23;
    DT__UNROLL for (int i = 0; i < 4; i++) {
        const float *s = src + i * stride;
        q[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(s)), _mm_loadu_ps(s + 4 * stride), 1);
    }
    lo01 = _mm256_unpacklo_ps(q[0], q[1]);
    hi01 = _mm256_unpackhi_ps(q[0], q[1]);
    lo23 = _mm256_unpacklo_ps(q[2], q[3]);
    hi23 = _mm256_unpackhi_ps(q[2], q[3]);
    x[0] = (dt__vf)_mm256_unpacklo_pd(_mm256_castps_pd(lo01), _mm256_castps_pd(lo23));
    x[1] = (dt__vf)_mm256_unpackhi_pd(_mm256_castps_pd(lo01), _mm256_castps_pd(lo23));
    x[2] = (dt__vf)_mm256_unpacklo_pd(_mm256_castps_pd(hi01), _mm256_castps_pd(hi23));
    x[3] = (dt__vf)_mm256_unpackhi_pd(_mm256_castps_pd(hi01), _mm256_castps_pd(hi23));
}
#elif DT__ISA == 3
/* x[e] lane q = src[q*stride + e]: four columns of a (4,4) block */
DT__INLINE void DT__K(dt__v_columns)(dt__vf x[4], const float *src, int64_t stride)
{
    float32x4_t a = vld1q_f32(src), b = vld1q_f32(src + stride);
    float32x4_t c = vld1q_f32(src + 2 * stride), d = vld1q_f32(src + 3 * stride);
    float32x4_t even0 = vtrn1q_f32(a, b), odd0 = vtrn2q_f32(a, b), even1 = vtrn1q_f32(c, d), odd1 = vtrn2q_f32(c, d);
    x[0] = (dt__vf)vcombine_f32(vget_low_f32(even0), vget_low_f32(even1));
    x[1] = (dt__vf)vcombine_f32(vget_low_f32(odd0), vget_low_f32(odd1));
    x[2] = (dt__vf)vcombine_f32(vget_high_f32(even0), vget_high_f32(even1));
    x[3] = (dt__vf)vcombine_f32(vget_high_f32(odd0), vget_high_f32(odd1));
}
#else
/* x[e] lane q = src[q*stride + e]: four columns of a (4,4) block */
DT__INLINE void DT__K(dt__v_columns)(dt__vf x[4], const float *src, int64_t stride)
{
    for (int e = 0; e < 4; e++) {
        dt__vf v = dt__v_set(0.0f);
        for (int q = 0; q < 4; q++) v[q] = src[q * stride + e];
        x[e] = v;
    }
}
#endif

/* dst[p*ld + j] = src[j*stride + p] for p < k, j < n <= W; the columns n..W-1 are zero. */
static void DT__K(dt__pack_transposed)(float *dst, int64_t ld, const float *src, int64_t stride, int64_t k, int64_t n)
{
    int64_t p = 0;
    for (; n == DT__W && p + 4 <= k; p += 4) {
        dt__vf x[4];
        DT__K(dt__v_columns)(x, src + p, stride);
        DT__UNROLL for (int e = 0; e < 4; e++) dt__v_store(dst + (p + e) * ld, x[e]);
    }
    for (; p < k; p++) {
        for (int64_t j = 0; j < DT__W; j++) dst[p * ld + j] = j < n ? src[j * stride + p] : 0.0f;
    }
}

/* Width of the strip that starts `left` columns before the end. */
static int64_t DT__K(dt__strip)(int64_t left)
{
    int64_t vectors = dt__ceil_div(left, DT__W);
    /* two even strips rather than a full one and a thin one */
    if (vectors == DT__NV + 1) return (DT__NV + 2) / 2 * DT__W;
    return dt__min(vectors, DT__NV) * DT__W;
}

/* dst[p*ld + j] = src[p*stride + j] for p < k, j < n; the columns up to the next whole vector are zero. */
static void DT__K(dt__pack_rows)(float *dst, int64_t ld, const float *src, int64_t stride, int64_t k, int64_t n)
{
    for (int64_t p = 0; p < k; p++, dst += ld, src += stride) {
        int64_t j = 0;
        for (; j + DT__W <= n; j += DT__W) dt__v_store(dst + j, dt__v_load(src + j));
        if (j < n) dt__v_store(dst + j, dt__v_loadn(src + j, n - j));
    }
}

/* B (k,n) into strips: each holds its columns as (k, width), one strip after the other. */
static void DT__K(dt__pack_b)(float *dst, const float *b, int64_t brs, int64_t bcs, int64_t k, int64_t n)
{
    for (int64_t j = 0, width; j < n; j += width, dst += k * width) {
        width = DT__K(dt__strip)(n - j);
        if (bcs == 1) DT__K(dt__pack_rows)(dst, width, b + j, brs, k, dt__min(width, n - j));
        for (int64_t u = 0; bcs != 1 && u < width; u += DT__W) {
            DT__K(dt__pack_transposed)(dst + u, width, b + (j + u) * bcs, bcs, k, dt__min(DT__W, n - j - u));
        }
    }
}

/* Rows of A as panels (k, MR), one after the other; rows that do not exist are zero. Where A is transposed, several
 * panels at once use whole cache lines. */
static void DT__K(dt__pack_a)(float *dst, const float *a, int64_t ars, int64_t acs, int64_t k, int64_t rows)
{
    int64_t whole = ars == 1 ? rows / DT__MR : 0;
    for (int64_t p = 0; p < k && whole; p++) {
        for (int64_t q = 0; q < whole; q++)
            memcpy(dst + (q * k + p) * DT__MR, a + p * acs + q * DT__MR, DT__MR * sizeof *a);
    }
    for (int64_t i = whole * DT__MR; i < rows; i += DT__MR) {
        for (int64_t p = 0; p < k; p++) {
            for (int64_t r = 0; r < DT__MR; r++)
                dst[i * k + p * DT__MR + r] = i + r < rows ? a[(i + r) * ars + p * acs] : 0.0f;
        }
    }
}

/* ---- tasks: output tiles ------------------------------------------------------------------- */

typedef struct DT__K(dt__gemm_job) {
    const dt__gemm *g;
    dt_pool *pool;
    int64_t mt, nt, across; /* a task is mt x nt elements of C; `across` tasks share the same rows */
} DT__K(dt__gemm_job);

static int64_t DT__K(dt__gemm_scratch)(void) { return DT__KC * (DT__NC + DT__MC) * (int64_t)sizeof(float); }

/* All strips of one panel of rows: c (rows,n) = [c +] a (rows,k) times packed B. */
static void DT__K(dt__gemm_panel)(int64_t rows, int64_t n, int64_t k, const float *a, int64_t ars, int64_t acs,
                                  const float *packed, float *c, int64_t ldc, int load, const float *bias)
{
    for (int64_t j = 0, width; j < n; j += width, packed += k * width) {
        const float *add = bias ? bias + j : NULL;
        width = DT__K(dt__strip)(n - j);
        if (rows == DT__MR && n - j >= width) {
            DT__K(dt__tile)((int)(width / DT__W), k, a, ars, acs, packed, width, c + j, ldc, load, add);
        } else {
            DT__K(dt__tile_edge)(rows, dt__min(width, n - j), k, a, ars, acs, packed, width, c + j, ldc, load, add);
        }
    }
}

/* One block of k of one task. */
static void DT__K(dt__gemm_block)(const dt__gemm *g, float *scratch, int64_t i0, int64_t m, int64_t j0, int64_t n,
                                  int64_t p0, int64_t k)
{
    float *panels = scratch, *packed = scratch + DT__KC * DT__MC;
    const float *bias = g->bias && p0 + k == g->k ? g->bias + j0 : NULL;
    int load = g->accumulate || p0 > 0;
    DT__K(dt__pack_b)(packed, g->b + p0 * g->brs + j0 * g->bcs, g->brs, g->bcs, k, n);
    for (int64_t i = i0, rows; i < i0 + m; i += rows) {
        const float *a = g->a + i * g->ars + p0 * g->acs;
        rows = dt__min(g->acs == 1 ? DT__MR : DT__MC, i0 + m - i);
        if (g->acs == 1 && rows == DT__MR) {
            DT__K(dt__gemm_panel)(rows, n, k, a, g->ars, 1, packed, g->c + i * g->ldc + j0, g->ldc, load, bias);
            continue;
        }
        DT__K(dt__pack_a)(panels, a, g->ars, g->acs, k, rows);
        for (int64_t r = 0; r < rows; r += DT__MR) {
            DT__K(dt__gemm_panel)(dt__min(DT__MR, rows - r), n, k, panels + r * k, 1, DT__MR, packed,
                                  g->c + (i + r) * g->ldc + j0, g->ldc, load, bias);
        }
    }
}

static void DT__K(dt__gemm_task)(void *context, int64_t task, int worker)
{
    const DT__K(dt__gemm_job) *job = (const DT__K(dt__gemm_job) *)context;
    const dt__gemm *g = job->g;
    int64_t i0 = task / job->across * job->mt, j0 = task % job->across * job->nt;
    int64_t m = dt__min(job->mt, g->m - i0), n = dt__min(job->nt, g->n - j0);
    int64_t blocks = dt__max(1, dt__ceil_div(g->k, DT__KC)), kc = dt__ceil_div(g->k, blocks);
    float *scratch = (float *)dt__scratch(job->pool, worker);
    for (int64_t block = 0; block < blocks; block++) {
        int64_t p0 = block * kc;
        DT__K(dt__gemm_block)(g, scratch, i0, m, j0, n, p0, dt__min(kc, g->k - p0));
    }
}

/* Tasks are as wide as the cache allows; for several workers narrower, or, where A must be packed by every task that
 * reads it, lower. */
static void DT__K(dt__gemm_run)(dt_pool *pool, const dt__gemm *g)
{
    DT__K(dt__gemm_job) job;
    int64_t strips = dt__ceil_div(g->n, DT__NR), want = pool->workers == 1 ? 1 : 3 * pool->workers, down;
    if (g->m <= 0 || g->n <= 0) return;
    job.g = g;
    job.pool = pool;
    job.across = dt__ceil_div(g->n, DT__NC);
    if (g->acs == 1) job.across = dt__max(job.across, dt__min(want, dt__ceil_div(strips, 2)));
    job.nt = dt__ceil_div(strips, job.across) * DT__NR;
    job.across = dt__ceil_div(g->n, job.nt);
    down = dt__min(dt__ceil_div(want, job.across), dt__ceil_div(g->m, 8 * DT__MR));
    job.mt = dt__round_up(dt__ceil_div(g->m, down), DT__MR);
    down = dt__ceil_div(g->m, job.mt);
    dt__parallel(pool, job.across * down, DT__K(dt__gemm_task), &job);
}

/* ---- exact attention -----------------------------------------------------------------------
 * One task is one head of the keys of one sample, with the query heads that it serves. Scores are made a panel of
 * DT__MR queries at a time by the register tiles of the matrix product; the softmax uses the true maximum of the row
 * (R9), so nothing is ever rescaled. The rows of a panel share most of their terms: those come in runs, which a
 * register tile walks; the terms that only some of the rows have (on the diagonal of a causal mask, at the edges of a
 * given one) are added row by row in their place, so a missing term is never a product (R5). */

#define DT__QB 96 /* queries per block of the backward pass: a multiple of every DT__MR */

typedef uint32_t DT__K(dt__vw) __attribute__((vector_size(4 * DT__W), may_alias));
typedef uint32_t DT__K(dt__vwu) __attribute__((vector_size(4 * DT__W), aligned(4), may_alias));
#define dt__vw DT__K(dt__vw)
#define dt__vwu DT__K(dt__vwu)

/* ---- random words of a row ----------------------------------------------------------------- */

/* 64-bit products of the lower halves of the 64-bit lanes */
DT__INLINE dt__vl DT__K(dt__v_mul_low)(dt__vl a, uint32_t b)
{
#if DT__ISA == 2
    return (dt__vl)_mm512_maskz_mul_epu32((__mmask8)0xff, (__m512i)a, _mm512_set1_epi64((long long)b));
#elif DT__ISA == 1
    return (dt__vl)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x((long long)b));
#elif DT__ISA == 3
    return (dt__vl)vmull_u32(vmovn_u64((uint64x2_t)a), vdup_n_u32(b));
#else
    return (a & 0xffffffffu) * (uint64_t)b;
#endif
}

/* *low, *high: the two words of each 32-bit lane of x times m */
DT__INLINE void DT__K(dt__v_mul_wide)(dt__vw x, uint32_t m, dt__vw *low, dt__vw *high)
{
    dt__vl even = DT__K(dt__v_mul_low)((dt__vl)x, m), odd = DT__K(dt__v_mul_low)((dt__vl)x >> 32, m);
    *low = (dt__vw)((even & 0xffffffffu) | (odd << 32));
    *high = (dt__vw)((even >> 32) | (odd & 0xffffffff00000000u));
}

/* words[e] = the random word of element 4*block + e, for 4*W elements */
static void DT__K(dt__rng_words)(uint32_t *words, const dt__rng *rng, uint32_t block)
{
    dt__vw x[4], low0, high0, low1, high1;
    uint32_t lane[4][DT__W], k0 = rng->key[0], k1 = rng->key[1];
    for (uint32_t i = 0; i < DT__W; i++) lane[0][i] = block + i;
    memcpy(&x[0], lane[0], sizeof x[0]);
    for (int w = 1; w < 4; w++) x[w] = (dt__vw)dt__v_seti((int32_t)rng->counter[w - 1]);
    for (int round = 0; round < 10; round++) {
        DT__K(dt__v_mul_wide)(x[0], DT__PHILOX_M0, &low0, &high0);
        DT__K(dt__v_mul_wide)(x[2], DT__PHILOX_M1, &low1, &high1);
        x[0] = high1 ^ x[1] ^ (dt__vw)dt__v_seti((int32_t)k0);
        x[1] = low1;
        x[2] = high0 ^ x[3] ^ (dt__vw)dt__v_seti((int32_t)k1);
        x[3] = low0;
        k0 += DT__PHILOX_W0;
        k1 += DT__PHILOX_W1;
    }
    memcpy(lane, x, sizeof lane);
    for (int i = 0; i < DT__W; i++) {
        for (int w = 0; w < 4; w++) words[4 * i + w] = lane[w][i];
    }
}

/* ---- one head ------------------------------------------------------------------------------ */

/* Neighbouring terms of a panel's chains. */
typedef struct DT__K(dt__run) {
    int32_t begin, end;
    uint32_t rows;  /* bit r: row r has them */
    int32_t wedge;  /* on the diagonal each row has one term less than the one before it (-1) or one more (1): */
    int32_t corner; /* row r has those from corner + r on (-1), or those before it (1) */
} DT__K(dt__run);

typedef struct DT__K(dt__head) {
    const dt__attention *a;
    int64_t t, s, d, lds;     /* lds: row stride of score panels, an odd number of cache lines */
    int64_t row, key_row;     /* rows of the sample's first query and first key */
    int64_t head, column;     /* head index and first column h*d */
    int64_t key_column;       /* first column of the head of the keys */
    const dt__rng *rng;       /* NULL: no dropout */
    const dt__word *mask;     /* (t,s) of this sample, or NULL */
    float *max, *sum;         /* (t) of this head */
    float *keys_t, *values_t; /* (d,s) packed: columns are keys */
    float *side;              /* (s,d) packed: V forward, K backward */
    float *probs, *grads;     /* (MR,s) forward; (QB,s) backward: dropped probabilities, score gradients */
    float *queries, *douts;   /* (QB,d) packed, backward */
    float *tile;              /* (MR,d rounded up to vectors) */
    float *panel;             /* (d,MR): the last rows of a matrix, padded */
    uint32_t *words;          /* random words of a row */
    DT__K(dt__run) *runs;     /* of the panel at work */
    int64_t run_count;
} DT__K(dt__head);

/* The next n floats of scratch memory; base NULL only counts. */
static float *DT__K(dt__take)(float *base, int64_t *at, int64_t n)
{
    float *p = base ? base + *at : NULL;
    *at += dt__round_up(n, 16);
    return p;
}

static int64_t DT__K(dt__head_layout)(DT__K(dt__head) *w, float *base, int64_t s, int64_t d)
{
    int64_t at = 0, sw = dt__round_up(s, DT__W), dw = dt__round_up(d, DT__W), terms = dt__max(s, DT__QB);
    w->s = s;
    w->d = d;
    w->lds = (dt__ceil_div(s, 16) | 1) * 16;
    w->keys_t = DT__K(dt__take)(base, &at, d * sw);
    w->values_t = DT__K(dt__take)(base, &at, d * sw);
    w->side = DT__K(dt__take)(base, &at, s * dw);
    w->probs = DT__K(dt__take)(base, &at, DT__QB * w->lds + DT__MR);
    w->grads = DT__K(dt__take)(base, &at, DT__QB * w->lds + DT__MR);
    w->queries = DT__K(dt__take)(base, &at, DT__QB * dw);
    w->douts = DT__K(dt__take)(base, &at, DT__QB * dw);
    w->tile = DT__K(dt__take)(base, &at, DT__MR * dw);
    w->panel = DT__K(dt__take)(base, &at, DT__MR * d);
    w->words = (uint32_t *)(void *)DT__K(dt__take)(base, &at, s + 8 * DT__W);
    w->runs = (DT__K(dt__run) *)(void *)DT__K(dt__take)(base, &at, 5 * terms);
    return at;
}

static int64_t DT__K(dt__attention_scratch)(int64_t s, int64_t d)
{
    DT__K(dt__head) w;
    return DT__K(dt__head_layout)(&w, NULL, s, d) * (int64_t)sizeof(float);
}

static void DT__K(dt__head_begin)(DT__K(dt__head) *w, const dt__attention *a, float *scratch, int64_t task)
{
    int64_t sample = task / a->hk;
    w->a = a;
    DT__K(dt__head_layout)(w, scratch, a->s, a->d);
    w->t = a->t;
    w->row = sample * (a->t + a->gap);
    w->key_row = sample * a->room;
    w->key_column = task % a->hk * a->d;
    w->rng = a->drop_threshold ? a->rng + sample : NULL;
    w->mask = a->mask ? a->mask + sample * a->mask_step : NULL;
}

/* The n-th of the query heads that the head of the keys `task` serves. */
static void DT__K(dt__head_next)(DT__K(dt__head) *w, int64_t task, int64_t n)
{
    const dt__attention *a = w->a;
    int64_t group = a->h / a->hk, all = task * group + n; /* all: counts the heads of all samples */
    w->head = all % a->h;
    w->column = w->head * a->d;
    w->max = a->row_max + all * (a->t + a->gap);
    w->sum = a->row_sum + all * (a->t + a->gap);
}

/* Row i of this head in a (b,t,*) matrix of queries, and in a (b,s,*) matrix of keys. */
#define DT__HEAD_ROW(w, matrix, ld, i) ((matrix) + ((w)->row + (i)) * (ld) + (w)->column)
#define DT__KEY_ROW(w, matrix, ld, i) ((matrix) + ((w)->key_row + (i)) * (ld) + (w)->key_column)

/* Keys that come before query i, masks aside. */
static int64_t DT__K(dt__keys)(const DT__K(dt__head) *w, int64_t i)
{
    return w->a->causal ? dt__max(0, i + 1 + w->s - w->t) : w->s;
}

static int DT__K(dt__masked)(const DT__K(dt__head) *w, int64_t query, int64_t key)
{
    return !(w->mask[query * w->s + key] & w->a->mask_bits);
}

/* The words of row i: words[key]. */
static const uint32_t *DT__K(dt__row_words)(const DT__K(dt__head) *w, int64_t i, int64_t keys)
{
    const dt__attention *a = w->a;
    int64_t t = a->whole ? a->whole : w->t, s = a->whole ? a->whole : w->s;
    uint64_t first = (uint64_t)((a->first_head + w->head) * t + a->t_at + i) * (uint64_t)s + (uint64_t)a->s_at;
    int64_t skip = (int64_t)(first & 3);
    if (!w->rng) return NULL;
    for (int64_t e = 0; e < skip + keys; e += 4 * DT__W)
        DT__K(dt__rng_words)(w->words + e, w->rng, (uint32_t)((first >> 2) + (uint64_t)(e >> 2)));
    return w->words + skip;
}

DT__INLINE dt__vf DT__K(dt__v_drop)(dt__vf x, const uint32_t *words, const dt__attention *a)
{
    dt__vw word = (dt__vw) * (const dt__vwu *)words;
    dt__vi keep = (dt__vi)(word >= (dt__vw)dt__v_seti((int32_t)a->drop_threshold));
    return (dt__vf)((dt__vi)(x * dt__v_set(a->drop_scale)) & keep);
}

/* Asks for `rows` rows of this head from row i on: they lie a whole matrix row apart, which no prefetcher follows. */
static void DT__K(dt__fetch)(const DT__K(dt__head) *w, const float *matrix, int64_t ld, int64_t i, int64_t rows)
{
    rows = dt__min(rows, w->t - i);
    for (int64_t r = 0; r < rows; r++) {
        const float *row = DT__HEAD_ROW(w, matrix, ld, i + r);
        for (int64_t c = 0; c < w->d; c += 16) __builtin_prefetch(row + c);
    }
}

/* out (MR, keys) = x (rows,d) times packed (d,s): whole vectors of columns are computed. */
static void DT__K(dt__score_panel)(const DT__K(dt__head) *w, const float *x, int64_t ld, int64_t rows, int64_t keys,
                                   const float *packed, float *out)
{
    int64_t ars = ld, acs = 1;
    if (rows < DT__MR) {
        DT__K(dt__pack_a)(w->panel, x, ld, 1, w->d, rows);
        x = w->panel;
        ars = 1;
        acs = DT__MR;
    }
    for (int64_t j = 0, width; j < keys; j += width, packed += w->d * width) {
        int nv = (int)dt__ceil_div(dt__min(width = DT__K(dt__strip)(w->s - j), keys - j), DT__W);
        DT__K(dt__tile)(nv, w->d, x, ars, acs, packed, width, out + j, w->lds, 0, NULL);
    }
}

/* ---- runs: which terms the rows of a panel have -------------------------------------------- */

/* The terms [begin, end) are those of `rows`: they continue the last run or begin one. Terms of no row are left out. */
static void DT__K(dt__run_add)(DT__K(dt__head) *w, int64_t begin, int64_t end, uint32_t rows)
{
    DT__K(dt__run) *next = w->runs + w->run_count;
    if (!rows || begin >= end) return;
    if (w->run_count && next[-1].end == begin && next[-1].rows == rows && !next[-1].wedge) {
        next[-1].end = (int32_t)end;
        return;
    }
    next->begin = (int32_t)begin;
    next->end = (int32_t)end;
    next->rows = rows;
    next->wedge = 0;
    w->run_count++;
}

/* The terms [begin, end) of a diagonal that crosses all `rows` rows. */
static void DT__K(dt__run_add_wedge)(DT__K(dt__head) *w, int64_t begin, int64_t end, int64_t rows, int wedge,
                                     int64_t corner)
{
    if (begin >= end) return;
    w->runs[w->run_count].begin = (int32_t)begin;
    w->runs[w->run_count].end = (int32_t)end;
    w->runs[w->run_count].rows = (1u << rows) - 1u;
    w->runs[w->run_count].wedge = wedge;
    w->runs[w->run_count++].corner = (int32_t)corner;
}

/* Rows are the queries i .. i + rows-1, terms are keys; query i + r sees those before common + r. */
static void DT__K(dt__query_runs)(DT__K(dt__head) *w, int64_t i, int64_t rows)
{
    int64_t common = w->a->causal ? i + 1 + w->s - w->t : w->s, end = DT__K(dt__keys)(w, i + rows - 1);
    uint32_t all = (1u << rows) - 1u;
    w->run_count = 0;
    if (!w->mask) {
        DT__K(dt__run_add)(w, 0, common, all);
        DT__K(dt__run_add_wedge)(w, dt__max(0, common), end, rows, 1, common);
        return;
    }
    for (int64_t key = 0; key < end; key++) {
        uint32_t bits = key < common ? all : all & ~((1u << (key - common + 1)) - 1u);
        for (int64_t r = 0; r < rows; r++)
            if (DT__K(dt__masked)(w, i + r, key)) bits &= ~(1u << r);
        DT__K(dt__run_add)(w, key, key + 1, bits);
    }
}

/* Rows are the keys j .. j + rows-1, terms are the queries i .. i + count-1; query i + n sees key j + r from n = corner
 * + r on. */
static void DT__K(dt__key_runs)(DT__K(dt__head) *w, int64_t j, int64_t rows, int64_t i, int64_t count)
{
    int64_t corner = w->a->causal ? j - i - w->s + w->t : -rows, come = dt__max(0, dt__min(count, corner + rows - 1));
    uint32_t all = (1u << rows) - 1u;
    w->run_count = 0;
    if (!w->mask) {
        DT__K(dt__run_add_wedge)(w, dt__max(0, corner), come, rows, -1, corner);
        DT__K(dt__run_add)(w, come, count, all);
        return;
    }
    for (int64_t n = 0; n < count; n++) {
        int64_t seen = dt__max(0, dt__min(rows, n - corner + 1));
        uint32_t bits = (1u << seen) - 1u;
        for (int64_t r = 0; r < seen; r++)
            if (DT__K(dt__masked)(w, i + n, j + r)) bits &= ~(1u << r);
        DT__K(dt__run_add)(w, n, n + 1, bits);
    }
}

/* c (rows,nv*W) += a run's terms, row by row; nv is a constant where this is inlined. */
DT__INLINE void DT__K(dt__some_rows_body)(const int nv, const DT__K(dt__run) *run, const float *x, int64_t xr,
                                          int64_t xn, const float *side, int64_t width, float *c, int64_t ldc)
{
    for (uint32_t rows = run->rows; rows; rows &= rows - 1) {
        int64_t r = __builtin_ctz(rows), begin = run->begin, end = run->end;
        dt__vf acc[DT__NV];
        if (run->wedge < 0) begin = dt__max(begin, run->corner + r);
        if (run->wedge > 0) end = dt__min(end, run->corner + r);
        if (begin >= end) continue;
        DT__UNROLL for (int v = 0; v < nv; v++) acc[v] = dt__v_load(c + r * ldc + v * DT__W);
        for (int64_t n = begin; n < end; n++) {
            dt__vf xv = dt__v_set(x[r * xr + n * xn]);
            DT__UNROLL for (int v = 0; v < nv; v++) {
                acc[v] = dt__v_fma(xv, dt__v_load(side + n * width + v * DT__W), acc[v]);
            }
        }
        DT__UNROLL for (int v = 0; v < nv; v++) dt__v_store(c + r * ldc + v * DT__W, acc[v]);
    }
}

static void DT__K(dt__some_rows)(int nv, const DT__K(dt__run) *run, const float *x, int64_t xr, int64_t xn,
                                 const float *side, int64_t width, float *c, int64_t ldc)
{
    if (nv == 1) DT__K(dt__some_rows_body)(1, run, x, xr, xn, side, width, c, ldc);
    else if (nv == 2) DT__K(dt__some_rows_body)(2, run, x, xr, xn, side, width, c, ldc);
#if DT__NV > 2
    else if (nv == 3) DT__K(dt__some_rows_body)(3, run, x, xr, xn, side, width, c, ldc);
#endif
#if DT__NV > 3
    else DT__K(dt__some_rows_body)(4, run, x, xr, xn, side, width, c, ldc);
#endif
}

/* Do all `rows` rows of the panel have all terms of the run? */
static int DT__K(dt__run_whole)(const DT__K(dt__run) *run, int64_t rows)
{
    return run->rows == (1u << rows) - 1u && !run->wedge;
}

/* tile (MR,d) = [tile +] the runs' terms: row r takes x[r*xr + n*xn] times row n of side (depth,d), packed. One of the
 * strides is 1. */
static void DT__K(dt__chain_panel)(const DT__K(dt__head) *w, int64_t rows, const float *x, int64_t xr, int64_t xn,
                                   const float *side, int64_t depth, int go_on)
{
    int64_t dw = dt__round_up(w->d, DT__W);
    if (!go_on && (!w->run_count || !DT__K(dt__run_whole)(w->runs, rows))) {
        memset(w->tile, 0, sizeof(float) * (size_t)(DT__MR * dw));
        go_on = 1;
    }
    for (int64_t j = 0, width; j < w->d; j += width, side += depth * width) {
        int nv = (int)((width = DT__K(dt__strip)(w->d - j)) / DT__W);
        for (int64_t k = 0; k < w->run_count; k++) {
            const DT__K(dt__run) *run = w->runs + k;
            if (DT__K(dt__run_whole)(run, rows)) {
                DT__K(dt__tile)(nv, run->end - run->begin, x + run->begin * xn, xr, xn, side + run->begin * width,
                                width, w->tile + j, dw, go_on || k, NULL);
            } else DT__K(dt__some_rows)(nv, run, x, xr, xn, side, width, w->tile + j, dw);
        }
    }
}

/* Butterfly over 32 lanes: 16, 8, 4, 2, 1. */
static float DT__K(dt__fold32)(float lane[32])
{
    for (int half = 16; half; half >>= 1) {
        for (int i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
    }
    return lane[0];
}

/* Largest lane. */
DT__INLINE float DT__K(dt__v_top)(dt__vf v)
{
    float lane[DT__W];
    dt__v_store(lane, v);
    for (int half = DT__W / 2; half; half /= 2) {
        for (int i = 0; i < half; i++) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    }
    return lane[0];
}

/* ---- forward ------------------------------------------------------------------------------- */

/* One vector of scores of a row: scaled, and -inf from the key `keys` on. */
DT__INLINE dt__vf DT__K(dt__v_score)(const float *x, int64_t j, int64_t keys, dt__vf scale)
{
    static const int32_t index[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    dt__vf v = dt__v_load(x + j) * scale;
    dt__vi lane;
    if (j + DT__W <= keys) return v;
    memcpy(&lane, index, sizeof lane);
    return dt__v_select(lane < dt__v_seti((int32_t)(keys - j)), v, dt__v_set(-__builtin_inff()));
}

/* Hidden keys' scores x (rows,s) become -inf. */
static void DT__K(dt__mask_panel)(const DT__K(dt__head) *w, float *x, int64_t i, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t key = 0; key < w->s; key++) {
            if (DT__K(dt__masked)(w, i + r, key)) x[r * w->lds + key] = -__builtin_inff();
        }
    }
}

/* Scores x (MR,s) of the queries from i on become exp(x*scale - max); what follows a row's last key becomes +0, and +0
 * leaves a sum of the lanes as it is. All rows go together: short rows alone are all latency. The maximum is +0, not
 * -0; a row without a key has maximum 0 and sum 1. */
static void DT__K(dt__softmax_panel)(const DT__K(dt__head) *w, float *x, int64_t i, int64_t rows)
{
    float lane[DT__MR][32];
    dt__vf max[DT__MR], scale = dt__v_set(w->a->scale);
    int64_t end = DT__K(dt__keys)(w, i + rows - 1), step = w->a->causal;
    int64_t first = step ? i + 1 + w->s - w->t : w->s;
    DT__UNROLL for (int r = 0; r < DT__MR; r++) max[r] = dt__v_set(-__builtin_inff());
    for (int64_t j = 0; j < end; j += DT__W) {
        DT__UNROLL for (int r = 0; r < DT__MR; r++) {
            dt__vf v = DT__K(dt__v_score)(x + r * w->lds, j, first + r * step, scale);
            dt__v_store(x + r * w->lds + j, v);
            max[r] = dt__v_max(v, max[r]);
        }
    }
    memset(lane, 0, sizeof lane);
    DT__UNROLL for (int r = 0; r < DT__MR; r++) {
        float top = DT__K(dt__v_top)(max[r]) + 0.0f;
        max[r] = dt__v_set(top == -__builtin_inff() ? 0.0f : top);
    }
    for (int64_t j = 0; j < end; j += DT__W) {
        DT__UNROLL for (int r = 0; r < DT__MR; r++) {
            dt__vf e = dt__v_exp(dt__v_load(x + r * w->lds + j) - max[r]);
            float *sum = lane[r] + j % 32;
            dt__v_store(x + r * w->lds + j, e);
            dt__v_store(sum, dt__v_load(sum) + e);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        w->max[i + r] = max[r][0];
        w->sum[i + r] = DT__K(dt__fold32)(lane[r]);
        if (w->sum[i + r] == 0.0f) w->sum[i + r] = 1.0f;
    }
}

/* o (rows,d) = softmax(q k^T scale) v for the queries i .. i + rows-1 */
static void DT__K(dt__forward_panel)(DT__K(dt__head) *w, int64_t i, int64_t rows)
{
    const dt__attention *a = w->a;
    int64_t keys = DT__K(dt__keys)(w, i + rows - 1);
    DT__K(dt__fetch)(w, a->o, a->ldo, i, rows);
    DT__K(dt__fetch)(w, a->q, a->ld, i + rows, DT__MR);
    DT__K(dt__score_panel)(w, DT__HEAD_ROW(w, a->q, a->ld, i), a->ld, rows, keys, w->keys_t, w->probs);
    if (w->mask) DT__K(dt__mask_panel)(w, w->probs, i, rows);
    DT__K(dt__softmax_panel)(w, w->probs, i, rows);
    for (int64_t r = 0; w->rng && r < rows; r++) {
        float *p = w->probs + r * w->lds;
        const uint32_t *words = DT__K(dt__row_words)(w, i + r, DT__K(dt__keys)(w, i + r));
        for (int64_t j = 0; j < DT__K(dt__keys)(w, i + r); j += DT__W)
            dt__v_store(p + j, DT__K(dt__v_drop)(dt__v_load(p + j), words + j, a));
    }
    DT__K(dt__query_runs)(w, i, rows);
    DT__K(dt__chain_panel)(w, rows, w->probs, w->lds, 1, w->side, w->s, 0);
    for (int64_t r = 0; r < rows; r++) {
        const float *from = w->tile + r * dt__round_up(w->d, DT__W);
        float *o = DT__HEAD_ROW(w, a->o, a->ldo, i + r), sum = a->part ? 1.0f : w->sum[i + r];
        for (int64_t c = 0; c < w->d; c += DT__W) {
            dt__v_storen(o + c, dt__v_load(from + c) / dt__v_set(sum), dt__min(DT__W, w->d - c));
        }
    }
}

typedef struct DT__K(dt__attention_job) {
    const dt__attention *a;
    dt_pool *pool;
} DT__K(dt__attention_job);

static void DT__K(dt__forward_task)(void *context, int64_t task, int worker)
{
    const DT__K(dt__attention_job) *job = (const DT__K(dt__attention_job) *)context;
    const dt__attention *a = job->a;
    DT__K(dt__head) w;
    DT__K(dt__head_begin)(&w, a, (float *)dt__scratch(job->pool, worker), task);
    DT__K(dt__pack_b)(w.keys_t, DT__KEY_ROW(&w, a->k, a->ldk, 0), 1, a->ldk, w.d, w.s);
    DT__K(dt__pack_b)(w.side, DT__KEY_ROW(&w, a->v, a->ldk, 0), a->ldk, 1, w.s, w.d);
    for (int64_t n = 0; n < a->h / a->hk; n++) {
        DT__K(dt__head_next)(&w, task, n);
        for (int64_t i = 0; i < w.t; i += DT__MR) DT__K(dt__forward_panel)(&w, i, dt__min(DT__MR, w.t - i));
    }
}

static void DT__K(dt__attention_forward)(dt_pool *pool, const dt__attention *a)
{
    DT__K(dt__attention_job) job;
    job.a = a;
    job.pool = pool;
    dt__parallel(pool, a->b * a->hk, DT__K(dt__forward_task), &job);
}

/* Of two neighbouring runs of keys: the sums of both, in the place of the left ones; what each has made counts times
 * exp(its maximum - the larger one). */
static void DT__K(dt__attention_join)(const dt__slice_sums *left, const dt__slice_sums *right, int64_t rows, int64_t d)
{
    for (int64_t i = 0, n; i < rows; i += n) {
        float a[DT__W], b[DT__W];
        dt__vf x = dt__v_loadn(left->max + i, n = dt__min(DT__W, rows - i)), y = dt__v_loadn(right->max + i, n);
        dt__vf max = dt__v_max(x, y), wx = dt__v_exp(x - max), wy = dt__v_exp(y - max);
        dt__vf sum = dt__v_fma(wy, dt__v_loadn(right->sum + i, n), wx * dt__v_loadn(left->sum + i, n));
        dt__v_storen(left->max + i, max, n);
        dt__v_storen(left->sum + i, sum, n);
        dt__v_store(a, wx);
        dt__v_store(b, wy);
        for (int64_t r = 0; r < n; r++) {
            float *o = left->o + (i + r) * left->ld;
            const float *p = right->o + (i + r) * right->ld;
            for (int64_t c = 0; c < d; c += DT__W) {
                int64_t m = dt__min(DT__W, d - c);
                dt__vf own = dt__v_set(a[r]) * dt__v_loadn(o + c, m);
                dt__v_storen(o + c, dt__v_fma(dt__v_set(b[r]), dt__v_loadn(p + c, m), own), m);
            }
        }
    }
}

/* ---- backward ------------------------------------------------------------------------------ */

/* Sum of x*y over n elements: element c to lane c mod 32, one fmaf each, then the butterfly. */
static float DT__K(dt__dot32)(const float *x, const float *y, int64_t n)
{
    float lane[32];
    dt__vf acc[32 / DT__W];
    int64_t c = 0;
    for (int u = 0; u < 32 / DT__W; u++) acc[u] = dt__v_set(0.0f);
    for (; c + 32 <= n; c += 32) {
        for (int u = 0; u < 32 / DT__W; u++) {
            acc[u] = dt__v_fma(dt__v_load(x + c + u * DT__W), dt__v_load(y + c + u * DT__W), acc[u]);
        }
    }
    for (int u = 0; u < 32 / DT__W; u++) dt__v_store(lane + u * DT__W, acc[u]);
    for (int u = 0; c < n; u++, c += DT__W) { /* only lanes whose element exists take a term */
        int64_t left = dt__min(DT__W, n - c);
        dt__v_storen(lane + u * DT__W, dt__v_fma(dt__v_loadn(x + c, left), dt__v_loadn(y + c, left), acc[u]), left);
    }
    return DT__K(dt__fold32)(lane);
}

/* The tile's rows to a gradient. */
static void DT__K(dt__tile_rows)(const DT__K(dt__head) *w, float *out, int64_t ld, int64_t rows)
{
    const float *from = w->tile;
    for (int64_t r = 0; r < rows; r++, from += dt__round_up(w->d, DT__W), out += ld) {
        for (int64_t c = 0; c < w->d; c += DT__W) dt__v_storen(out + c, dt__v_load(from + c), dt__min(DT__W, w->d - c));
    }
}

/* Row i of scores p and of dO V^T g becomes the dropped probabilities and the gradient of the scores; dot = dO . O. */
static void DT__K(dt__backward_row)(const DT__K(dt__head) *w, int64_t i, float dot_row, float *p, float *g)
{
    const dt__attention *a = w->a;
    int64_t keys = DT__K(dt__keys)(w, i);
    const uint32_t *words = DT__K(dt__row_words)(w, i, keys);
    dt__vf scale = dt__v_set(a->scale), max = dt__v_set(w->max[i]), sum = dt__v_set(w->sum[i]);
    dt__vf dot = dt__v_set(dot_row);
    for (int64_t j = 0; j < keys; j += DT__W) {
        dt__vf prob = dt__v_exp(dt__v_load(p + j) * scale - max) / sum, grad = dt__v_load(g + j);
        dt__v_store(p + j, words ? DT__K(dt__v_drop)(prob, words + j, a) : prob);
        if (words) grad = DT__K(dt__v_drop)(grad, words + j, a);
        dt__v_store(g + j, prob * (grad - dot) * scale);
    }
}

/* The rows i .. i + rows-1 of the block's panels, and dq of these queries. */
static void DT__K(dt__backward_panel)(DT__K(dt__head) *w, int64_t i, int64_t rows, float *probs, float *grads)
{
    const dt__attention *a = w->a;
    int64_t keys = DT__K(dt__keys)(w, i + rows - 1);
    float dot[DT__MR];
    DT__K(dt__fetch)(w, a->o, a->ldo, i, rows);
    DT__K(dt__fetch)(w, a->dq, a->lddq, i, rows);
    DT__K(dt__fetch)(w, a->dout, a->lddo, i + rows, DT__MR);
    DT__K(dt__fetch)(w, a->q, a->ld, i + rows, DT__MR);
    DT__K(dt__score_panel)(w, DT__HEAD_ROW(w, a->q, a->ld, i), a->ld, rows, keys, w->keys_t, probs);
    DT__K(dt__score_panel)(w, DT__HEAD_ROW(w, a->dout, a->lddo, i), a->lddo, rows, keys, w->values_t, grads);
    for (int64_t r = 0; r < rows; r++) {
        dot[r] = DT__K(dt__dot32)(DT__HEAD_ROW(w, a->dout, a->lddo, i + r), DT__HEAD_ROW(w, a->o, a->ldo, i + r), w->d);
    }
    for (int64_t r = 0; r < rows; r++)
        DT__K(dt__backward_row)(w, i + r, dot[r], probs + r * w->lds, grads + r * w->lds);
    DT__K(dt__query_runs)(w, i, rows);
    DT__K(dt__chain_panel)(w, rows, grads, w->lds, 1, w->side, w->s, 0);
    DT__K(dt__tile_rows)(w, DT__HEAD_ROW(w, a->dq, a->lddq, i), a->lddq, rows);
}

/* The chains of dk or dv of the keys j .. j + rows-1 go on over the runs' queries: x (count,s) is a score panel, y
 * (count,d) is packed. A first block of queries begins them. */
static void DT__K(dt__key_panel)(const DT__K(dt__head) *w, const float *x, const float *y, int64_t count, int64_t j,
                                 int64_t rows, float *out, int go_on)
{
    int64_t dw = dt__round_up(w->d, DT__W), ld = w->a->lddk;
    if (w->run_count == 1 && w->runs[0].end - w->runs[0].begin == count && DT__K(dt__run_whole)(w->runs, rows)) {
        DT__K(dt__gemm_panel)(rows, w->d, count, x + j, 1, w->lds, y, out, ld, go_on, NULL);
        return;
    }
    for (int64_t r = 0; go_on && r < rows; r++) memcpy(w->tile + r * dw, out + r * ld, sizeof(float) * (size_t)w->d);
    DT__K(dt__chain_panel)(w, rows, x + j, 1, w->lds, y, count, go_on);
    DT__K(dt__tile_rows)(w, out, ld, rows);
}

/* dk and dv: all keys that the queries i .. i + count-1 of this head see continue their chains; `first` of the query
 * heads begins them. */
static void DT__K(dt__backward_keys)(DT__K(dt__head) *w, int64_t i, int64_t count, int first)
{
    const dt__attention *a = w->a;
    int64_t keys = DT__K(dt__keys)(w, i + count - 1), begun = i ? DT__K(dt__keys)(w, i - 1) : 0;
    DT__K(dt__pack_b)(w->queries, DT__HEAD_ROW(w, a->q, a->ld, i), a->ld, 1, count, w->d);
    DT__K(dt__pack_b)(w->douts, DT__HEAD_ROW(w, a->dout, a->lddo, i), a->lddo, 1, count, w->d);
    for (int64_t j = 0; j < keys; j += DT__MR) {
        float *dk = DT__KEY_ROW(w, a->dk, a->lddk, j), *dv = DT__KEY_ROW(w, a->dv, a->lddk, j);
        int64_t rows = dt__min(DT__MR, w->s - j);
        int go_on = !first || j < begun;
        DT__K(dt__key_runs)(w, j, rows, i, count);
        DT__K(dt__key_panel)(w, w->grads, w->queries, count, j, rows, dk, go_on);
        DT__K(dt__key_panel)(w, w->probs, w->douts, count, j, rows, dv, go_on);
    }
}

static void DT__K(dt__backward_task)(void *context, int64_t task, int worker)
{
    const DT__K(dt__attention_job) *job = (const DT__K(dt__attention_job) *)context;
    const dt__attention *a = job->a;
    DT__K(dt__head) w;
    DT__K(dt__head_begin)(&w, a, (float *)dt__scratch(job->pool, worker), task);
    DT__K(dt__pack_b)(w.keys_t, DT__KEY_ROW(&w, a->k, a->ldk, 0), 1, a->ldk, w.d, w.s);
    DT__K(dt__pack_b)(w.values_t, DT__KEY_ROW(&w, a->v, a->ldk, 0), 1, a->ldk, w.d, w.s);
    DT__K(dt__pack_b)(w.side, DT__KEY_ROW(&w, a->k, a->ldk, 0), a->ldk, 1, w.s, w.d);
    for (int64_t n = 0; n < a->h / a->hk; n++) {
        DT__K(dt__head_next)(&w, task, n);
        for (int64_t i = 0, count; i < w.t; i += count) {
            count = dt__min(DT__QB, w.t - i);
            for (int64_t r = 0; r < count; r += DT__MR) {
                DT__K(dt__backward_panel)(&w, i + r, dt__min(DT__MR, count - r), w.probs + r * w.lds,
                                          w.grads + r * w.lds);
            }
            DT__K(dt__backward_keys)(&w, i, count, n == 0);
        }
    }
}

static void DT__K(dt__attention_backward)(dt_pool *pool, const dt__attention *a)
{
    DT__K(dt__attention_job) job;
    job.a = a;
    job.pool = pool;
    dt__parallel(pool, a->b * a->hk, DT__K(dt__backward_task), &job);
}

#undef dt__vw
#undef dt__vwu
#undef DT__HEAD_ROW
#undef DT__KEY_ROW

/* ---- rotary embedding (Su et al. 2021) --------------------------------------------------------
 * One position's heads (heads,d): the pairs (x_c, x_{c+d/2}) turn by the angles whose cosines and sines are turn
 * (2,d/2); sign -1 turns back. Each result is one product and one fma. In place allowed. */
static void DT__K(dt__rope)(float *out, const float *x, const float *turn, int64_t heads, int64_t d, float sign)
{
    int64_t half = d / 2;
    for (int64_t h = 0; h < heads; h++, x += d, out += d) {
        for (int64_t c = 0; c < half; c += DT__W) {
            int64_t n = half - c < DT__W ? half - c : DT__W;
            dt__vf low = dt__v_loadn(x + c, n), high = dt__v_loadn(x + half + c, n), cosine = dt__v_loadn(turn + c, n);
            dt__vf sine = dt__v_loadn(turn + half + c, n) * dt__v_set(sign);
            dt__v_storen(out + c, dt__v_fma(-high, sine, low * cosine), n);
            dt__v_storen(out + half + c, dt__v_fma(low, sine, high * cosine), n);
        }
    }
}

/* ---- row and column sums (R5) ---------------------------------------------------------------
 * A row sum has 32 lanes: element i goes to lane i mod 32 in order, then lanes fold 16, 8, 4, 2, 1. That is one warp,
 * two zmm, four ymm or eight xmm: the same additions on every machine. */

#define DT__LANES (32 / DT__W)

DT__INLINE float DT__K(dt__fold)(float lane[32])
{
    for (int width = 16; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] = lane[i] + lane[i + width];
    return lane[0];
}

static float DT__K(dt__row_sum)(const float *x, int64_t n)
{
    dt__vf sum[DT__LANES];
    float lane[32];
    int64_t i = 0;
    for (int l = 0; l < DT__LANES; l++) sum[l] = dt__v_set(0.0f);
    for (; i + 32 <= n; i += 32)
        for (int l = 0; l < DT__LANES; l++) sum[l] = sum[l] + dt__v_load(x + i + l * DT__W);
    for (int l = 0; l < DT__LANES; l++) dt__v_store(lane + l * DT__W, sum[l]);
    for (int l = 0; i < n; i++, l++) lane[l] = lane[l] + x[i];
    return DT__K(dt__fold)(lane);
}

/* Sum of a[i] * b[i], each step one fma. */
static float DT__K(dt__row_dot)(const float *a, const float *b, int64_t n)
{
    dt__vf sum[DT__LANES];
    float lane[32];
    int64_t i = 0;
    for (int l = 0; l < DT__LANES; l++) sum[l] = dt__v_set(0.0f);
    for (; i + 32 <= n; i += 32)
        for (int l = 0; l < DT__LANES; l++)
            sum[l] = dt__v_fma(dt__v_load(a + i + l * DT__W), dt__v_load(b + i + l * DT__W), sum[l]);
    for (int l = 0; l < DT__LANES; l++) dt__v_store(lane + l * DT__W, sum[l]);
    for (int l = 0; i < n; i++, l++) lane[l] = dt__fmaf(a[i], b[i], lane[l]);
    return DT__K(dt__fold)(lane);
}

static float DT__K(dt__row_max)(const float *x, int64_t n)
{
    dt__vf most = dt__v_set(-__builtin_inff());
    float lane[DT__W], m;
    int64_t i = 0;
    for (; i + DT__W <= n; i += DT__W) most = dt__v_max(most, dt__v_load(x + i));
    dt__v_store(lane, most);
    m = lane[0];
    for (int l = 1; l < DT__W; l++) m = m > lane[l] ? m : lane[l];
    for (; i < n; i++) m = m > x[i] ? m : x[i];
    return m + 0.0f; /* a zero is +0, whichever came first */
}

/* out[i] = fma(s, x[i], out[i]): one term of n chains. */
static void DT__K(dt__add_scaled)(float *out, const float *x, int64_t n, float s)
{
    const dt__vf scale = dt__v_set(s);
    int64_t i = 0;
    for (; i + DT__W <= n; i += DT__W) dt__v_store(out + i, dt__v_fma(scale, dt__v_load(x + i), dt__v_load(out + i)));
    if (i < n) dt__v_storen(out + i, dt__v_fma(scale, dt__v_loadn(x + i, n - i), dt__v_loadn(out + i, n - i)), n - i);
}

/* sum (cols) goes on with the rows of x (rows, cols) in order, one chain per column; ld is x's row stride. */
static void DT__K(dt__col_sum)(float *sum, const float *x, int64_t rows, int64_t cols, int64_t ld)
{
    int64_t c = 0;
    for (; c + DT__W <= cols; c += DT__W) {
        dt__vf s = dt__v_load(sum + c);
        for (int64_t r = 0; r < rows; r++) s = s + dt__v_load(x + r * ld + c);
        dt__v_store(sum + c, s);
    }
    for (; c < cols; c++)
        for (int64_t r = 0; r < rows; r++) sum[c] = sum[c] + x[r * ld + c];
}

/* ---- elementwise ---------------------------------------------------------------------------- */

#define DT__MAP(n, expression, tail)                                                                         \
    do {                                                                                                     \
        int64_t i = 0;                                                                                       \
        for (; i + DT__W <= (n); i += DT__W) dt__v_store(out + i, (expression));                             \
        for (int64_t left = (n) - i; left > 0; left = 0) dt__v_storen(out + i, (tail), left);                \
    } while (0)

/* max(x,0) - x t + log(1 + u), u = exp(-|x|). With w = 1 + u rounded, log(1 + u) is log(w) + (u - (w - 1)) / w: the
 * second term is what the rounding lost, so that small u keep their digits. */
DT__INLINE dt__vf DT__K(dt__v_bce)(dt__vf x, dt__vf t)
{
    const dt__vf one = dt__v_set(1.0f), zero = dt__v_set(0.0f);
    dt__vf u = dt__v_exp(dt__v_select(x > zero, -x, x)), w = one + u;
    dt__vf tail = DT__K(dt__v_log)(w) + (u - (w - one)) / w;
    return dt__v_fma(-x, t, dt__v_max(x, zero)) + tail;
}

/* sigmoid(x) - t: 1 / (1 + u) where x is above 0, else u / (1 + u). */
DT__INLINE dt__vf DT__K(dt__v_bce_grad)(dt__vf x, dt__vf t)
{
    const dt__vf one = dt__v_set(1.0f), zero = dt__v_set(0.0f);
    dt__vi above = x > zero;
    dt__vf u = dt__v_exp(dt__v_select(above, -x, x));
    return dt__v_select(above, one, u) / (one + u) - t;
}

/* The same in vectors of doubles, with one text for whole vectors and the tail. */
#define DT__MAP_DOUBLE(n, expression)                                                                        \
    for (int64_t i = 0, left; i < (n); i += DT__W / 2) {                                                     \
        left = (n) - i < DT__W / 2 ? (n) - i : DT__W / 2;                                                    \
        DT__K(dt__d_store)(out + i, (expression), left);                                                     \
    }

/* The functions that are computed in double. */
static void DT__K(dt__unary_double)(int op, float *out, const float *x, int64_t n)
{
#define DT__X DT__K(dt__d_load)(x + i, left)
    switch (op) {
    case DT__OP_EXP2: DT__MAP_DOUBLE(n, DT__K(dt__d_exp2)(DT__X)) break;
    case DT__OP_LOG2: DT__MAP_DOUBLE(n, DT__K(dt__d_log2)(DT__X)) break;
    case DT__OP_EXPM1: DT__MAP_DOUBLE(n, DT__K(dt__d_expm1)(DT__X)) break;
    case DT__OP_LOG1P: DT__MAP_DOUBLE(n, DT__K(dt__d_log1p)(DT__X)) break;
    case DT__OP_SIGMOID: DT__MAP_DOUBLE(n, DT__K(dt__d_sigmoid)(DT__X)) break;
    case DT__OP_SILU: DT__MAP_DOUBLE(n, DT__K(dt__d_silu)(DT__X)) break;
    case DT__OP_SOFTPLUS: DT__MAP_DOUBLE(n, DT__K(dt__d_softplus)(DT__X)) break;
    case DT__OP_ERF: DT__MAP_DOUBLE(n, DT__K(dt__d_erf)(DT__X)) break;
    case DT__OP_GELU_ERF: DT__MAP_DOUBLE(n, DT__K(dt__d_gelu_erf)(DT__X)) break;
    case DT__OP_SIN:
    case DT__OP_COS: DT__MAP_DOUBLE(n, DT__K(dt__d_sin)(DT__X, op == DT__OP_COS)) break;
    case DT__OP_TAN: DT__MAP_DOUBLE(n, DT__K(dt__d_tan)(DT__X)) break;
    default: break;
    }
#undef DT__X
}

/* out[i] = f(x[i]); in place allowed. `s` is the op's constant. */
static void DT__K(dt__unary)(int op, float *out, const float *x, int64_t n, float s)
{
    const dt__vf c = dt__v_set(s), one = dt__v_set(1.0f);
#define DT__X dt__v_load(x + i)
#define DT__XN dt__v_loadn(x + i, left)
    switch (op) {
    case DT__OP_NEG: DT__MAP(n, -DT__X, -DT__XN); break;
    case DT__OP_SCALE: DT__MAP(n, DT__X * c, DT__XN * c); break;
    case DT__OP_EXP: DT__MAP(n, DT__K(dt__v_exp)(DT__X), DT__K(dt__v_exp)(DT__XN)); break;
    case DT__OP_LOG: DT__MAP(n, DT__K(dt__v_log)(DT__X), DT__K(dt__v_log)(DT__XN)); break;
    case DT__OP_TANH: DT__MAP(n, DT__K(dt__v_tanh)(DT__X), DT__K(dt__v_tanh)(DT__XN)); break;
    case DT__OP_SQRT: DT__MAP(n, dt__v_sqrt(DT__X), dt__v_sqrt(DT__XN)); break;
    case DT__OP_RSQRT: DT__MAP(n, one / dt__v_sqrt(DT__X), one / dt__v_sqrt(DT__XN)); break;
    case DT__OP_GELU: DT__MAP(n, DT__K(dt__v_gelu)(DT__X), DT__K(dt__v_gelu)(DT__XN)); break;
    case DT__OP_RELU: DT__MAP(n, DT__K(dt__v_relu)(DT__X), DT__K(dt__v_relu)(DT__XN)); break;
    case DT__OP_ABS: DT__MAP(n, dt__v_abs(DT__X), dt__v_abs(DT__XN)); break;
    case DT__OP_SIGN: DT__MAP(n, DT__K(dt__v_sign)(DT__X), DT__K(dt__v_sign)(DT__XN)); break;
    case DT__OP_FLOOR: DT__MAP(n, DT__K(dt__v_floor)(DT__X), DT__K(dt__v_floor)(DT__XN)); break;
    case DT__OP_CEIL: DT__MAP(n, -DT__K(dt__v_floor)(-DT__X), -DT__K(dt__v_floor)(-DT__XN)); break;
    case DT__OP_ROUND: DT__MAP(n, DT__K(dt__v_round)(DT__X), DT__K(dt__v_round)(DT__XN)); break;
    case DT__OP_SQUARE: DT__MAP(n, DT__X * DT__X, DT__XN * DT__XN); break;
    case DT__OP_RECIPROCAL: DT__MAP(n, one / DT__X, one / DT__XN); break;
    default: DT__K(dt__unary_double)(op, out, x, n); break;
    }
#undef DT__X
#undef DT__XN
}

static void DT__K(dt__binary_double)(int op, float *out, const float *a, int astep, const float *b, int bstep,
                                     int64_t n)
{
    const dt__vd a0 = DT__K(dt__d_set)(n && !astep ? (double)a[0] : 0.0),
                 b0 = DT__K(dt__d_set)(n && !bstep ? (double)b[0] : 0.0);
#define DT__A (astep ? DT__K(dt__d_load)(a + i, left) : a0)
#define DT__B (bstep ? DT__K(dt__d_load)(b + i, left) : b0)
    switch (op) {
    case DT__OP_POW: DT__MAP_DOUBLE(n, DT__K(dt__d_pow)(DT__A, DT__B)) break;
    case DT__OP_GELU_ERF_GRAD: DT__MAP_DOUBLE(n, DT__K(dt__d_gelu_erf_grad)(DT__A, DT__B)) break;
    default: break;
    }
#undef DT__A
#undef DT__B
}

/* out[i] = a[i * astep] op b[i * bstep], steps 0 or 1; in place allowed. */
static void DT__K(dt__binary)(int op, float *out, const float *a, int astep, const float *b, int bstep, int64_t n)
{
    const dt__vf a0 = dt__v_set(n && !astep ? a[0] : 0.0f), b0 = dt__v_set(n && !bstep ? b[0] : 0.0f);
#define DT__A (astep ? dt__v_load(a + i) : a0)
#define DT__B (bstep ? dt__v_load(b + i) : b0)
#define DT__AN (astep ? dt__v_loadn(a + i, left) : a0)
#define DT__BN (bstep ? dt__v_loadn(b + i, left) : b0)
#define DT__FLAG(mask) ((dt__vf)((dt__vi)(mask) & dt__v_seti(0x3f800000))) /* 1.0f or +0 */
    switch (op) {
    case DT__OP_ADD: DT__MAP(n, DT__A + DT__B, DT__AN + DT__BN); break;
    case DT__OP_SUB: DT__MAP(n, DT__A - DT__B, DT__AN - DT__BN); break;
    case DT__OP_MUL: DT__MAP(n, DT__A * DT__B, DT__AN * DT__BN); break;
    case DT__OP_DIV: DT__MAP(n, DT__A / DT__B, DT__AN / DT__BN); break;
    case DT__OP_GELU_GRAD:
        DT__MAP(n, DT__K(dt__v_gelu_grad)(DT__A, DT__B), DT__K(dt__v_gelu_grad)(DT__AN, DT__BN));
        break;
    case DT__OP_BCE: DT__MAP(n, DT__K(dt__v_bce)(DT__A, DT__B), DT__K(dt__v_bce)(DT__AN, DT__BN)); break;
    case DT__OP_BCE_GRAD: DT__MAP(n, DT__K(dt__v_bce_grad)(DT__A, DT__B), DT__K(dt__v_bce_grad)(DT__AN, DT__BN)); break;
    case DT__OP_SILU_GRAD:
        DT__MAP(n, DT__K(dt__v_silu_grad)(DT__A, DT__B), DT__K(dt__v_silu_grad)(DT__AN, DT__BN));
        break;
    case DT__OP_MAXIMUM: DT__MAP(n, dt__v_max(DT__A, DT__B), dt__v_max(DT__AN, DT__BN)); break;
    case DT__OP_MINIMUM: DT__MAP(n, dt__v_min(DT__A, DT__B), dt__v_min(DT__AN, DT__BN)); break;
    case DT__OP_EQUAL: DT__MAP(n, DT__FLAG(DT__A == DT__B), DT__FLAG(DT__AN == DT__BN)); break;
    case DT__OP_NOT_EQUAL: DT__MAP(n, DT__FLAG(DT__A != DT__B), DT__FLAG(DT__AN != DT__BN)); break;
    case DT__OP_LESS: DT__MAP(n, DT__FLAG(DT__A < DT__B), DT__FLAG(DT__AN < DT__BN)); break;
    case DT__OP_LESS_EQUAL: DT__MAP(n, DT__FLAG(DT__A <= DT__B), DT__FLAG(DT__AN <= DT__BN)); break;
    case DT__OP_GREATER: DT__MAP(n, DT__FLAG(DT__A > DT__B), DT__FLAG(DT__AN > DT__BN)); break;
    case DT__OP_GREATER_EQUAL: DT__MAP(n, DT__FLAG(DT__A >= DT__B), DT__FLAG(DT__AN >= DT__BN)); break;
    default: DT__K(dt__binary_double)(op, out, a, astep, b, bstep, n); break;
    }
#undef DT__A
#undef DT__B
#undef DT__AN
#undef DT__BN
#undef DT__FLAG
}

/* out[i] = mask[i * mstep] != 0 ? a[i * astep] : b[i * bstep]; in place allowed. */
static void DT__K(dt__select)(float *out, const float *mask, int mstep, const float *a, int astep, const float *b,
                              int bstep, int64_t n)
{
    const dt__vf zero = dt__v_set(0.0f), m0 = dt__v_set(n && !mstep ? mask[0] : 0.0f),
                 a0 = dt__v_set(n && !astep ? a[0] : 0.0f), b0 = dt__v_set(n && !bstep ? b[0] : 0.0f);
    DT__MAP(n,
            dt__v_select((dt__vi)((mstep ? dt__v_load(mask + i) : m0) != zero), astep ? dt__v_load(a + i) : a0,
                         bstep ? dt__v_load(b + i) : b0),
            dt__v_select((dt__vi)((mstep ? dt__v_loadn(mask + i, left) : m0) != zero),
                         astep ? dt__v_loadn(a + i, left) : a0, bstep ? dt__v_loadn(b + i, left) : b0));
}

/* ---- conversions of storage types ---------------------------------------------------------------
 * All four are a sign, an exponent and a mantissa, narrower than fp32's by `shift` bits (dt__format, H3 above). */

/* mask lane set ? a : b */
DT__INLINE dt__vi DT__K(dt__v_pick)(dt__vi mask, dt__vi a, dt__vi b) { return (a & mask) | (b & ~mask); }

/* The codes of x: to nearest, ties to even. Where the result is normal its bits are the upper bits of x, rounded by an
 * integer addition; where it is not, adding a power of two whose last bit is the format's smallest number rounds. */
DT__INLINE dt__vi DT__K(dt__v_narrow)(dt__vf x, const dt__format *f)
{
    dt__vi u = (dt__vi)x, infinity = dt__v_seti(0x7f800000), a = u & dt__v_seti(0x7fffffff), magic, small, code;
    dt__vi nan = a > infinity;
    a = DT__K(dt__v_pick)(nan, infinity, a);
    magic = dt__v_seti((128 - f->bias + f->shift) << 23);
    small = (dt__vi)((dt__vf)a + (dt__vf)magic) - magic;
    code = (a + dt__v_seti((1 << (f->shift - 1)) - 1) + ((a >> f->shift) & dt__v_seti(1))) >> f->shift;
    code = code - dt__v_seti((127 - f->bias) << (23 - f->shift));
    code = DT__K(dt__v_pick)(a < dt__v_seti((128 - f->bias) << 23), small, code);
    code = DT__K(dt__v_pick)(code > dt__v_seti(f->top), dt__v_seti(f->top), code);
    code = DT__K(dt__v_pick)(nan, dt__v_seti(f->nan), code);
    return code | (((u >> 31) & dt__v_seti(1)) << (8 * f->bytes - 1));
}

/* The numbers of codes: exact. The shifted bits are the number over a power of two, subnormal or not. */
DT__INLINE dt__vf DT__K(dt__v_widen)(dt__vi code, const dt__format *f)
{
    dt__vi sign = (code >> (8 * f->bytes - 1)) << 31, a = code & dt__v_seti((1 << (8 * f->bytes - 1)) - 1);
    dt__vf x = (dt__vf)(a << f->shift) * (dt__vf)dt__v_seti((254 - f->bias) << 23);
    dt__vi special = (a << f->shift) | dt__v_seti(0x7f800000);
    return (dt__vf)(DT__K(dt__v_pick)(a >= dt__v_seti(f->top), special, (dt__vi)x) | sign);
}

/* n <= DT__W elements of type `from` as fp32, and the way back. */
DT__INLINE dt__vf DT__K(dt__v_from)(int from, const void *x, int64_t n)
{
    int32_t lane[DT__W];
    float number[DT__W];
    dt__vi code;
    memset(lane, 0, sizeof lane);
    if (from == DT_F32) return dt__v_loadn((const float *)x, n);
    if (from == DT_I32) {
        memcpy(lane, x, 4 * (size_t)n);
        for (int l = 0; l < DT__W; l++) number[l] = (float)lane[l];
        return dt__v_load(number);
    }
    for (int64_t l = 0; l < n; l++)
        lane[l] = dt__format_of[from].bytes == 2 ? ((const uint16_t *)x)[l] : ((const uint8_t *)x)[l];
    memcpy(&code, lane, sizeof code);
    return DT__K(dt__v_widen)(code, &dt__format_of[from]);
}
DT__INLINE void DT__K(dt__v_to)(int to, void *out, dt__vf x, int64_t n)
{
    int32_t lane[DT__W];
    float number[DT__W];
    dt__vi code;
    if (to == DT_F32) {
        dt__v_storen((float *)out, x, n);
        return;
    }
    if (to == DT_I32) {
        dt__v_store(number, x);
        for (int l = 0; l < DT__W; l++) lane[l] = dt__to_int(number[l]);
        memcpy(out, lane, 4 * (size_t)n);
        return;
    }
    code = DT__K(dt__v_narrow)(x, &dt__format_of[to]);
    memcpy(lane, &code, sizeof lane);
    for (int64_t l = 0; l < n; l++)
        if (dt__format_of[to].bytes == 2) ((uint16_t *)out)[l] = (uint16_t)lane[l];
        else ((uint8_t *)out)[l] = (uint8_t)lane[l];
}

/* out (n) of type `to` = x (n) of type `from` (dt_cast). */
static void DT__K(dt__convert)(int to, void *out, int from, const void *x, int64_t n)
{
    int64_t wide = dt__format_of[to].bytes, narrow = dt__format_of[from].bytes;
    for (int64_t i = 0; i < n; i += DT__W) {
        int64_t k = n - i < DT__W ? n - i : DT__W;
        DT__K(dt__v_to)(to, (char *)out + i * wide, DT__K(dt__v_from)(from, (const char *)x + i * narrow, k), k);
    }
}

/* ---- layer normalisation (Ba et al. 2016) -----------------------------------------------------
 * stats (rows, 2): mean and 1/sqrt(var + eps). xhat = (x - mean) * rstd; y = fma(xhat, gamma, beta). */

static void DT__K(dt__layernorm)(float *out, float *stats, const float *x, const float *gamma, const float *beta,
                                 int64_t rows, int64_t cols, float eps)
{
    for (int64_t r = 0; r < rows; r++, x += cols, out += cols, stats += 2) {
        float mean = DT__K(dt__row_sum)(x, cols) / (float)cols, rstd;
        dt__vf m = dt__v_set(mean), s;
        DT__MAP(cols, dt__v_load(x + i) - m, dt__v_loadn(x + i, left) - m);
        rstd = 1.0f / dt__sqrtf(DT__K(dt__row_dot)(out, out, cols) / (float)cols + eps);
        s = dt__v_set(rstd);
        DT__MAP(cols, dt__v_fma(dt__v_load(out + i) * s, dt__v_load(gamma + i), dt__v_load(beta + i)),
                dt__v_fma(dt__v_loadn(out + i, left) * s, dt__v_loadn(gamma + i, left), dt__v_loadn(beta + i, left)));
        stats[0] = mean;
        stats[1] = rstd;
    }
}

/* g = dy * gamma; dx = rstd * (g - mean(g) - xhat * mean(g xhat)). row: scratch of 2 * cols floats. */
static void DT__K(dt__layernorm_dx)(float *out, const float *dy, const float *x, const float *stats, const float *gamma,
                                    int64_t rows, int64_t cols, float *row)
{
    float *g = row, *xhat = row + cols;
    for (int64_t r = 0; r < rows; r++, x += cols, dy += cols, out += cols, stats += 2) {
        dt__vf m = dt__v_set(stats[0]), s = dt__v_set(stats[1]), mg, mx;
        float *row_out = out;
        for (int64_t i = 0; i < cols; i += DT__W) {
            int64_t n = cols - i < DT__W ? cols - i : DT__W;
            dt__v_storen(g + i, dt__v_loadn(dy + i, n) * dt__v_loadn(gamma + i, n), n);
            dt__v_storen(xhat + i, (dt__v_loadn(x + i, n) - m) * s, n);
        }
        mg = dt__v_set(DT__K(dt__row_sum)(g, cols) / (float)cols);
        mx = dt__v_set(DT__K(dt__row_dot)(g, xhat, cols) / (float)cols);
        for (int64_t i = 0; i < cols; i += DT__W) {
            int64_t n = cols - i < DT__W ? cols - i : DT__W;
            dt__v_storen(row_out + i, s * (dt__v_loadn(g + i, n) - mg - dt__v_loadn(xhat + i, n) * mx), n);
        }
    }
}

/* dgamma (cols) goes on over the rows in order: fma(dy, xhat, dgamma); ld is the row stride. */
static void DT__K(dt__layernorm_dgamma)(float *dgamma, const float *dy, const float *x, const float *stats,
                                        int64_t rows, int64_t cols, int64_t ld)
{
    for (int64_t i = 0; i < cols; i += DT__W) {
        int64_t n = cols - i < DT__W ? cols - i : DT__W;
        dt__vf sum = dt__v_loadn(dgamma + i, n);
        for (int64_t r = 0; r < rows; r++) {
            dt__vf xhat = (dt__v_loadn(x + r * ld + i, n) - dt__v_set(stats[2 * r])) * dt__v_set(stats[2 * r + 1]);
            sum = dt__v_fma(dt__v_loadn(dy + r * ld + i, n), xhat, sum);
        }
        dt__v_storen(dgamma + i, sum, n);
    }
}

/* ---- softmax cross-entropy -------------------------------------------------------------------
 * loss[r] = log(sum_c exp(x_c - max)) - (x_target - max); +0 where the target is no column (negative: ignored). With
 * smoothing e, (1 - e) times that, plus e (log(sum_c exp(x_c - max)) - mean_c(x_c - max)).
 * stats (rows, 2): max and sum. row: scratch of cols floats. */

static void DT__K(dt__cross_entropy)(float *loss, float *stats, const float *x, const int32_t *target, float smoothing,
                                     int64_t rows, int64_t cols, float *row)
{
    for (int64_t r = 0; r < rows; r++, x += cols, stats += 2) {
        float *out = row;
        float log_sum[DT__W];
        dt__vf m = dt__v_set(stats[0] = DT__K(dt__row_max)(x, cols));
        DT__MAP(cols, DT__K(dt__v_exp)(dt__v_load(x + i) - m), DT__K(dt__v_exp)(dt__v_loadn(x + i, left) - m));
        stats[1] = DT__K(dt__row_sum)(row, cols);
        dt__v_store(log_sum, DT__K(dt__v_log)(dt__v_set(stats[1])));
        loss[r] = target[r] < 0 || target[r] >= cols ? 0.0f : log_sum[0] - (x[target[r]] - stats[0]);
        if (smoothing > 0.0f && target[r] >= 0 && target[r] < cols) {
            DT__MAP(cols, dt__v_load(x + i) - m, dt__v_loadn(x + i, left) - m);
            log_sum[0] = log_sum[0] - DT__K(dt__row_sum)(row, cols) / (float)cols;
            loss[r] = (1.0f - smoothing) * loss[r] + smoothing * log_sum[0];
        }
    }
}

/* out = (exp(x - max) / sum - w) * dloss, w = e/classes, and 1 - e + e/classes at the target; rows of ignored targets
 * are +0. x has the columns [first, first + cols) of `classes`. In place allowed. Without smoothing p - w is p. */
static void DT__K(dt__cross_entropy_grad)(float *out, const float *x, const float *stats, const int32_t *target,
                                          float smoothing, float dloss, int64_t rows, int64_t cols, int64_t first,
                                          int64_t classes)
{
    const float spread = smoothing / (float)classes, on = 1.0f - smoothing + spread;
    for (int64_t r = 0; r < rows; r++, x += cols, out += cols, stats += 2) {
        dt__vf m = dt__v_set(stats[0]), s = dt__v_set(stats[1]), d = dt__v_set(dloss), w = dt__v_set(spread);
        int64_t at = target[r] - first;
        float at_target = at >= 0 && at < cols ? x[at] : 0.0f;
        if (target[r] < 0 || target[r] >= classes) {
            memset(out, 0, sizeof(float) * (size_t)cols);
            continue;
        }
        DT__MAP(cols, (DT__K(dt__v_exp)(dt__v_load(x + i) - m) / s - w) * d,
                (DT__K(dt__v_exp)(dt__v_loadn(x + i, left) - m) / s - w) * d);
        if (at >= 0 && at < cols) {
            float lane[DT__W];
            dt__v_store(lane, DT__K(dt__v_exp)(dt__v_set(at_target) - m) / s);
            out[at] = (lane[0] - on) * dloss;
        }
    }
}

/* ---- optimizer ------------------------------------------------------------------------------- */

/* One pass over n weights, their gradients and what the optimizer keeps. The formulas stand at dt_optimizer; the order
 * of roundings is the text below. */

/* The gradient, clipped by norm and by value. */
DT__INLINE dt__vf DT__K(dt__v_clipped)(const float *grad, int64_t k, const dt__update *u)
{
    dt__vf limit = dt__v_set(u->limit);
    return dt__v_max(dt__v_min(dt__v_loadn(grad, k) * dt__v_set(u->clip), limit), -limit);
}

/* Adam's step, before its rate. The moments go on; *root receives sqrt(var). */
DT__INLINE dt__vf DT__K(dt__v_adam)(dt__vf g, dt__vf *mean, dt__vf *var, dt__vf *root, const dt__update *u)
{
    *mean = dt__v_fma(dt__v_set(u->beta1), *mean, dt__v_set(u->one_minus_beta1) * g);
    *var = dt__v_fma(dt__v_set(u->beta2), *var, dt__v_set(u->one_minus_beta2) * (g * g));
    *root = dt__v_sqrt(*var);
    return *mean / dt__v_fma(*root, dt__v_set(u->root_scale), dt__v_set(u->eps));
}

DT__INLINE dt__vf DT__K(dt__v_lion)(dt__vf g, dt__vf *mean, const dt__update *u)
{
    dt__vf c = dt__v_fma(dt__v_set(u->beta1), *mean, dt__v_set(u->one_minus_beta1) * g), zero = dt__v_set(0.0f);
    *mean = dt__v_fma(dt__v_set(u->beta2), *mean, dt__v_set(u->one_minus_beta2) * g);
    return dt__v_select((dt__vi)(c > zero), dt__v_set(1.0f), dt__v_select((dt__vi)(c < zero), dt__v_set(-1.0f), zero));
}

/* w = keep w - step d, and the average follows. */
DT__INLINE void DT__K(dt__v_move)(float *w, float *average, dt__vf d, int64_t k, const dt__update *u)
{
    dt__vf x = dt__v_fma(dt__v_set(-u->step), d, dt__v_loadn(w, k) * dt__v_set(u->keep));
    dt__v_storen(w, x, k);
    if (!average) return;
    x = dt__v_fma(dt__v_set(u->average), dt__v_loadn(average, k), dt__v_set(u->one_minus_average) * x);
    dt__v_storen(average, x, k);
}

/* The optimizers that keep fp32; `optimizer` is a constant where this is inlined. */
DT__INLINE void DT__K(dt__update_floats)(const int optimizer, float *w, float *m, float *v, float *average,
                                         const float *grad, int64_t n, const dt__update *scalars)
{
    const dt__update u = *scalars; /* a copy, which the stores cannot change */
    for (int64_t i = 0; i < n; i += DT__W) {
        int64_t k = n - i < DT__W ? n - i : DT__W;
        dt__vf g = DT__K(dt__v_clipped)(grad + i, k, &u), mean = g, var, root;
        if (optimizer == DT_ADAM || optimizer == DT_SGD) g = dt__v_fma(dt__v_set(u.decay), dt__v_loadn(w + i, k), g);
        if (m) mean = dt__v_loadn(m + i, k);
        if (optimizer == DT_SGD) {
            mean = m ? dt__v_fma(dt__v_set(u.momentum), mean, g) : g;
            g = u.nesterov ? dt__v_fma(dt__v_set(u.momentum), mean, g) : mean;
        } else if (optimizer == DT_LION) {
            g = DT__K(dt__v_lion)(g, &mean, &u);
        } else {
            var = dt__v_loadn(v + i, k);
            g = DT__K(dt__v_adam)(g, &mean, &var, &root, &u);
            dt__v_storen(v + i, var, k);
        }
        if (m) dt__v_storen(m + i, mean, k);
        DT__K(dt__v_move)(w + i, average ? average + i : NULL, g, k, &u);
    }
}

/* ---- moments in 8 bits ---------------------------------------------------------------------------
 * A code is a small float: `bits` of fraction below 4 of exponent, and above them, for 3 bits, a sign. Its value is
 * that float, from 2^(-14 - bits) to 2 - 2^-bits, times the block's scale; so the largest of a block has the largest
 * code. A block whose largest is below 2^-100 is stored as zero. */

/* x = the values of codes (n); whole vectors are written. */
DT__INLINE void DT__K(dt__moment_decode)(float *x, const uint8_t *code, float scale, const int bits, int64_t n)
{
    int32_t word[DT__MOMENT_BLOCK];
    memset(word, 0, sizeof word);
    for (int64_t i = 0; i < n; i++) word[i] = code[i];
    for (int64_t i = 0; i < n; i += DT__W) {
        dt__vi c, sign = dt__v_seti(0);
        dt__vf value;
        memcpy(&c, word + i, sizeof c);
        if (bits == 3) sign = (c >> 7) * dt__v_seti(INT32_MIN), c = c & 127;
        value = (dt__vf)(c << (23 - bits)) * dt__v_set(0x1p112f); /* seen as a float, its exponent is 112 too low */
        dt__v_store(x + i, (dt__vf)((dt__vi)(value * dt__v_set(scale)) | sign));
    }
}

/* Codes of x (n), to nearest even, and their scale. Whole vectors of x are read. */
DT__INLINE void DT__K(dt__moment_encode)(uint8_t *code, float *scale, const float *x, const int bits, int64_t n)
{
    const float top = bits == 3 ? 1.875f : 1.9375f;
    const dt__vi least = dt__v_seti(113 << 23), magnitude = dt__v_seti(0x7fffffff); /* least: the exponent of 2^-14 */
    int32_t word[DT__MOMENT_BLOCK];
    float share[DT__MOMENT_BLOCK], most;
    memset(share, 0, sizeof share);
    for (int64_t i = 0; i < n; i += DT__W) dt__v_store(share + i, (dt__vf)((dt__vi)dt__v_load(x + i) & magnitude));
    most = DT__K(dt__row_max)(share, n);
    *scale = most < 0x1p-100f ? 0.0f : most / top;
    most = most < 0x1p-100f ? 0.0f : top / most;
    for (int64_t i = 0; i < n; i += DT__W) {
        dt__vf a = dt__v_load(share + i) * dt__v_set(most), power;
        dt__vi exponent = (dt__vi)a & 0x7f800000, c;
        exponent = (dt__vi)dt__v_select(exponent > least, (dt__vf)exponent, (dt__vf)least);
        power = (dt__vf)(((127 << 23) - exponent) + ((127 + bits) << 23)); /* 2^bits / 2^exponent */
        c = (dt__vi)(a * power + dt__v_set(DT__EXP_ROUND)) - (dt__vi)dt__v_set(DT__EXP_ROUND);
        c = c + ((exponent - least) >> (23 - bits));
        if (bits == 3) c = c | (((dt__vi)dt__v_load(x + i) >> 24) & 128);
        else c = c - ((dt__vi)(a > dt__v_set(0.0f)) & (dt__vi)(c == dt__v_seti(0))); /* above 0 stays above 0 */
        memcpy(word + i, &c, sizeof c);
    }
    for (int64_t i = 0; i < n; i++) code[i] = (uint8_t)word[i];
}

/* AdamW8 on one block, n <= DT__MOMENT_BLOCK. */
static void DT__K(dt__update_block)(float *w, uint8_t *m, uint8_t *r, float *m_scale, float *r_scale, float *average,
                                    const float *grad, int64_t n, const dt__update *scalars)
{
    const dt__update u = *scalars;
    float mean[DT__MOMENT_BLOCK], root[DT__MOMENT_BLOCK];
    DT__K(dt__moment_decode)(mean, m, *m_scale, 3, n);
    DT__K(dt__moment_decode)(root, r, *r_scale, 4, n);
    for (int64_t i = 0; i < n; i += DT__W) {
        int64_t k = n - i < DT__W ? n - i : DT__W;
        dt__vf first = dt__v_load(mean + i), second = dt__v_load(root + i), deviation, d;
        second = second * second;
        d = DT__K(dt__v_adam)(DT__K(dt__v_clipped)(grad + i, k, &u), &first, &second, &deviation, &u);
        dt__v_store(mean + i, first);
        dt__v_store(root + i, deviation);
        DT__K(dt__v_move)(w + i, average ? average + i : NULL, d, k, &u);
    }
    DT__K(dt__moment_encode)(m, m_scale, mean, 3, n);
    DT__K(dt__moment_encode)(r, r_scale, root, 4, n);
}

/* state: DT__STATE_COUNT arrays, NULL where the optimizer keeps none. */
static void DT__K(dt__update_run)(int optimizer, float *w, void *const *state, const float *grad, int64_t n,
                                  const dt__update *u)
{
    float *m = (float *)state[DT__STATE_FIRST], *v = (float *)state[DT__STATE_SECOND];
    float *average = (float *)state[DT__STATE_AVERAGE];
    switch (optimizer) {
    case DT_ADAMW: DT__K(dt__update_floats)(DT_ADAMW, w, m, v, average, grad, n, u); break;
    case DT_ADAM: DT__K(dt__update_floats)(DT_ADAM, w, m, v, average, grad, n, u); break;
    case DT_SGD: DT__K(dt__update_floats)(DT_SGD, w, m, v, average, grad, n, u); break;
    case DT_LION: DT__K(dt__update_floats)(DT_LION, w, m, v, average, grad, n, u); break;
    default:
        for (int64_t i = 0, block = 0; i < n; i += DT__MOMENT_BLOCK, block++) {
            uint8_t *codes = (uint8_t *)state[DT__STATE_FIRST] + i, *roots = (uint8_t *)state[DT__STATE_SECOND] + i;
            float *scale = (float *)state[DT__STATE_SCALE1] + block, *root = (float *)state[DT__STATE_SCALE2] + block;
            DT__K(dt__update_block)(w + i, codes, roots, scale, root, average ? average + i : NULL, grad + i,
                                    dt__min(DT__MOMENT_BLOCK, n - i), u);
        }
    }
}

static const dt__kernels DT__K(dt__table) = {
#if DT__ISA == 2
    "avx512",
#elif DT__ISA == 1
    "avx2",
#elif DT__ISA == 3
    "neon",
#else
    "portable",
#endif
    DT__K(dt__gemm_run),
    DT__K(dt__gemm_scratch),
    DT__K(dt__attention_forward),
    DT__K(dt__attention_backward),
    DT__K(dt__attention_scratch),
    DT__K(dt__attention_join),
    DT__K(dt__rope),
    DT__K(dt__row_sum),
    DT__K(dt__row_dot),
    DT__K(dt__row_max),
    DT__K(dt__add_scaled),
    DT__K(dt__col_sum),
    DT__K(dt__unary),
    DT__K(dt__binary),
    DT__K(dt__convert),
    DT__K(dt__select),
    DT__K(dt__layernorm),
    DT__K(dt__layernorm_dx),
    DT__K(dt__layernorm_dgamma),
    DT__K(dt__cross_entropy),
    DT__K(dt__cross_entropy_grad),
    DT__K(dt__update_run),
};

#undef DT__W
#undef DT__K
#undef dt__vf
#undef dt__vfu
#undef dt__vi
#undef dt__vl
#undef dt__v_load
#undef dt__v_store
#undef dt__v_loadn
#undef dt__v_storen
#undef dt__v_set
#undef dt__v_seti
#undef dt__v_fma
#undef dt__v_sqrt
#undef dt__v_select
#undef dt__v_abs
#undef dt__vd
#undef dt__vh
#undef dt__vhu
#undef dt__v_max
#undef dt__v_exp
#undef DT__INLINE
#undef DT__LANES
#undef DT__MAP
#undef DT__MAP_DOUBLE
#undef DT__WHERE
#undef DT__SIGN
#undef DT__ROUND_52
#undef DT__LOG2E
#undef DT__LN2
#undef DT__MR
#undef DT__NV
#undef DT__NR
#undef DT__KC
#undef DT__NC
#undef DT__QB
#undef DT__MC
#undef dt__v_min
#endif /* DT__ISA: end of the kernel text */

#ifndef DT__ISA
#ifdef DT__IMPLEMENT
#undef DT__IMPLEMENT

/* ============================================================================================
 * H5  devices: CPU
 * ========================================================================================= */

#define DT__ISA_COUNT 4

/* Can this processor run the kernels of instruction set i (0 portable, 1 AVX2 with FMA, 2 AVX-512, 3 NEON)? Where the
 * compiler may use NEON, all of the program does already. */
static int dt__isa_runs(int i)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (i == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (i == 2)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#elif defined(__aarch64__) && defined(__ARM_NEON)
    if (i == 3) return 1;
#endif
    return i == 0;
}

static const dt__kernels *dt__isa_table(int i)
{
#if defined(__x86_64__)
    if (i == 1) return &dt__table_avx2;
    if (i == 2) return &dt__table_avx512;
#elif defined(__aarch64__) && defined(__ARM_NEON)
    if (i == 3) return &dt__table_neon;
#endif
    return i == 0 ? &dt__table_portable : NULL;
}

/* The best instruction set of this processor, or the one that the environment variable DT_ISA names. */
static dt_result dt__choose_kernels(const dt__kernels **out)
{
    const char *wanted = getenv("DT_ISA");
    *out = NULL;
    for (int i = DT__ISA_COUNT - 1; i >= 0; i--) {
        const dt__kernels *k = dt__isa_table(i);
        if (!k || (wanted && wanted[0] && strcmp(wanted, k->name))) continue;
        if (dt__isa_runs(i)) return *out = k, DT_OK;
        if (wanted && wanted[0])
            return dt__error(DT_E_USAGE,
                             "DT_ISA=%s: this processor does not have it; leave DT_ISA unset for the best it has",
                             wanted);
    }
    return dt__error(DT_E_USAGE, "DT_ISA=%s is not an instruction set of this build: %sportable", wanted ? wanted : "",
                     dt__isa_table(3) ? "neon, " : dt__isa_table(2) ? "avx512, avx2, " : "");
}

DT_API const char *dt_isa(void)
{
    const dt__kernels *k;
    return dt__choose_kernels(&k) ? "none" : k->name;
}

static void dt__tree_sum(const dt__kernels *k, float *out, const float *x, int64_t parts, int64_t stride, int64_t n)
{
    float right[1024];
    if (parts == 1) {
        if (out != x) memcpy(out, x, 4 * (size_t)n);
        return;
    }
    if (parts == 2) {
        k->binary(DT__OP_ADD, out, x, 1, x + stride, 1, n);
        return;
    }
    dt__tree_sum(k, out, x, parts / 2, stride, n);
    dt__tree_sum(k, right, x + parts / 2 * stride, parts / 2, stride, n);
    k->binary(DT__OP_ADD, out, out, 1, right, 1, n);
}

/* ---- self-check (R15) -------------------------------------------------------------------------
 * Every kernel runs once on fixed input at start; one hash says whether this build computes as it must. It catches
 * compiler flags that define no macro, and processors that err. */

#define DT__SELF_CHECK "5efdc8e7eeb51805ed9b307e016b4b25c352310d9e51ee97714f0b4b3e5c0ef2"

static void dt__self_fill(float *x, int64_t n, uint32_t stream)
{
    dt__rng r = dt__rng_make(0, DT__RNG_INIT, stream, 0, 0);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(4.0 * dt__uniform(&r, (uint64_t)i) - 2.0);
}

enum { DT__SELF_N = 4096 };

/* The elementwise kernels of x in [-2, 2), and, where the function wants it, of 2 |x|. */
static void dt__self_elementwise(const dt__kernels *k, const float *x, const float *y, float *out, float *row,
                                 dt__sha256 *h)
{
    static const int unary[] = {DT__OP_GELU_ERF, DT__OP_SILU, DT__OP_SIGMOID, DT__OP_SOFTPLUS,   DT__OP_RELU,
                                DT__OP_ABS,      DT__OP_SIGN, DT__OP_FLOOR,   DT__OP_CEIL,       DT__OP_ROUND,
                                DT__OP_SQUARE,   DT__OP_EXP2, DT__OP_EXPM1,   DT__OP_ERF,        DT__OP_SIN,
                                DT__OP_COS,      DT__OP_TAN,  DT__OP_LOG2,    DT__OP_RECIPROCAL, DT__OP_LOG1P};
    static const int binary[] = {DT__OP_MAXIMUM, DT__OP_MINIMUM,    DT__OP_EQUAL,        DT__OP_NOT_EQUAL,
                                 DT__OP_LESS,    DT__OP_LESS_EQUAL, DT__OP_GREATER,      DT__OP_GREATER_EQUAL,
                                 DT__OP_POW,     DT__OP_SILU_GRAD,  DT__OP_GELU_ERF_GRAD};
    k->binary(DT__OP_ADD, row, x, 1, x, 1, 1001);
    k->unary(DT__OP_ABS, row, row, 1001, 0.0f);
    for (int i = 0; i < 20; i++) {
        k->unary(unary[i], out, unary[i] == DT__OP_LOG2 || unary[i] == DT__OP_LOG1P ? row : x, 1001, 0.0f);
        dt__sha256_add(h, out, 4 * 1001);
    }
    k->unary(DT__OP_SCALE, out, x, 1001, 1e30f);
    k->unary(DT__OP_SIN, out, out, 1001, 0.0f); /* large angles */
    dt__sha256_add(h, out, 4 * 1001);
    for (int i = 0; i < 11; i++) {
        k->binary(binary[i], out, row, 1, y, i & 1, 1001);
        dt__sha256_add(h, out, 4 * 1001);
    }
    k->binary(DT__OP_LESS, row, x, 1, y, 1, 1001);
    k->select(out, row, 1, x, 1, y, 1, 1001);
    dt__sha256_add(h, out, 4 * 1001);
}

static void dt__self_rows(const dt__kernels *k, const float *x, const float *y, float *out, float *row, dt__sha256 *h)
{
    static const int unary[] = {DT__OP_NEG,  DT__OP_SCALE, DT__OP_EXP,   DT__OP_LOG,
                                DT__OP_TANH, DT__OP_SQRT,  DT__OP_RSQRT, DT__OP_GELU};
    static const int binary[] = {DT__OP_ADD,       DT__OP_SUB, DT__OP_MUL,     DT__OP_DIV,
                                 DT__OP_GELU_GRAD, DT__OP_BCE, DT__OP_BCE_GRAD};
    int32_t target[40];
    for (int i = 0; i < 8; i++) {
        k->unary(unary[i], out, i == 3 || i >= 5 ? y + 2048 : x, 1001, 0.7f);
        if (i == 3 || i == 5 || i == 6)
            for (int j = 0; j < 1001; j++)
                if (out[j] != out[j]) out[j] = 0.0f; /* a NaN's payload is not part of the contract */
        dt__sha256_add(h, out, 4 * 1001);
    }
    for (int i = 0; i < 7; i++) {
        k->binary(binary[i], out, x, 1, y, i != 1, 1001);
        dt__sha256_add(h, out, 4 * 1001);
    }
    for (int to = DT_F32; to <= DT_F8_E5M2; to++) {
        k->convert(to, row, DT_F32, x, 1001);
        k->convert(DT_F32, out, to, row, 1001);
        dt__sha256_add(h, row, dt__format_of[to].bytes * 1001);
        dt__sha256_add(h, out, 4 * 1001);
    }
    out[0] = k->row_sum(x, 1001), out[1] = k->row_dot(x, y, 1001), out[2] = k->row_max(x, 1001);
    memcpy(out + 3, y, 4 * 97);
    k->col_sum(out + 3, x, 37, 97, 97);
    k->add_scaled(out + 3, x + 1, 97, 0.7f);
    dt__sha256_add(h, out, 4 * 100);
    k->rope(out, x, y, 3, 38, -1.0f);
    dt__sha256_add(h, out, 4 * 3 * 38);
    for (int i = 0; i < 40; i++) target[i] = (i * 7) % 97 - 1;
    k->layernorm(out, row, x, y, y + 100, 37, 97, 1e-5f);
    dt__sha256_add(h, out, 4 * 37 * 97);
    k->layernorm_dgamma(out, y, x, row, 37, 97, 97);
    dt__sha256_add(h, out, 4 * 97);
    k->layernorm_dx(out, y, x, row, y + 50, 37, 97, row + 1000);
    dt__sha256_add(h, out, 4 * 37 * 97);
    for (int i = 0; i < 2; i++) {
        float smoothing = 0.1f * (float)i;
        k->cross_entropy(row + 100, row, x, target, smoothing, 37, 97, row + 1000);
        dt__sha256_add(h, row + 100, 4 * 37);
        k->cross_entropy_grad(out, x, row, target, smoothing, 0.03f, 37, 97, 0, 97);
        dt__sha256_add(h, out, 4 * 37 * 97);
    }
}

/* Two steps of every optimizer; state has room for 4096 floats. */
static void dt__self_update(const dt__kernels *k, const float *x, const float *y, float *w, float *state, dt__sha256 *h)
{
    void *at[DT__STATE_COUNT];
    dt__update u;
    memset(&u, 0, sizeof u);
    u.beta1 = 0.9f, u.one_minus_beta1 = 0.1f, u.beta2 = 0.95f, u.one_minus_beta2 = 0.05f, u.eps = 1e-8f;
    u.clip = 0.5f, u.limit = 0.9f, u.decay = 0.01f, u.keep = 0.999f, u.step = 0.01f, u.root_scale = 1.5f;
    u.momentum = 0.8f, u.nesterov = 1, u.average = 0.75f, u.one_minus_average = 0.25f;
    for (int i = 0; i < DT__STATE_COUNT; i++)
        at[i] = state + (i < 2 ? 1024 * i : i < DT__STATE_AVERAGE ? 2048 + 8 * i : 3072);
    for (int optimizer = DT_ADAMW; optimizer <= DT_ADAMW8; optimizer++) {
        memcpy(w, x, 4 * 1001);
        memset(state, 0, 4 * 4096);
        k->update(optimizer, w, at, y, 1001, &u);
        k->update(optimizer, w, at, x, 1001, &u);
        dt__sha256_add(h, w, 4 * 1001);
        dt__sha256_add(h, state, 4 * 4096);
    }
}

/* Grouped heads, fewer queries than keys, and a mask that the sign bits of y are. */
static void dt__self_masked(const dt__kernels *k, dt_pool *pool, const float *x, const float *y, float *out,
                            dt__sha256 *h)
{
    dt__attention a;
    memset(&a, 0, sizeof a);
    a.b = 1, a.t = 29, a.s = a.room = 35, a.h = 4, a.hk = 2, a.d = 7;
    a.q = x, a.k = x + 1024, a.v = x + 2048, a.ld = a.ldo = a.lddo = a.lddq = 28, a.ldk = a.lddk = 14;
    a.row_max = out, a.row_sum = out + 128, a.o = out + 256;
    a.scale = 0.3f, a.causal = 1;
    a.mask = (const dt__word *)(const void *)y, a.mask_bits = 0x80000000u;
    a.dout = x + 3072;
    a.dq = out + 2048, a.dk = out + 3072, a.dv = out + 4096;
    k->attention_forward(pool, &a);
    k->attention_backward(pool, &a);
    dt__sha256_add(h, a.o, 4 * 29 * 28);
    dt__sha256_add(h, a.dq, 4 * 29 * 28);
    dt__sha256_add(h, a.dk, 4 * 35 * 14);
    dt__sha256_add(h, a.dv, 4 * 35 * 14);
}

/* The sums of two slices of keys. */
static void dt__self_join(const dt__kernels *k, const float *x, const float *y, float *out, dt__sha256 *h)
{
    dt__slice_sums side[2];
    for (int i = 0; i < 2; i++) {
        memcpy(out + 1024 * i, i ? y : x, 4 * 1024);
        side[i].max = out + 1024 * i, side[i].sum = side[i].max + 29, side[i].o = side[i].sum + 29, side[i].ld = 17;
    }
    k->attention_join(&side[0], &side[1], 29, 13);
    dt__sha256_add(h, out, 4 * 1024);
}

static void dt__self_matrix(const dt__kernels *k, dt_pool *pool, const float *x, const float *y, float *out,
                            dt__sha256 *h)
{
    dt__gemm g;
    dt__attention a;
    float *stats = out + 2048;
    memset(&g, 0, sizeof g);
    g.m = 37, g.n = 41, g.k = 53;
    g.a = x, g.ars = 53, g.acs = 1;
    g.b = y, g.brs = 1, g.bcs = 53;
    g.c = out, g.ldc = 41, g.bias = y;
    k->gemm(pool, &g);
    g.accumulate = 1, g.ars = 1, g.acs = 37, g.bias = NULL;
    k->gemm(pool, &g);
    dt__sha256_add(h, out, 4 * 37 * 41);
    memset(&a, 0, sizeof a);
    a.b = 1, a.t = a.s = a.room = 39, a.h = a.hk = 2, a.d = 13;
    a.q = x, a.k = x + 26, a.v = x + 52, a.ld = a.ldk = 78;
    a.o = out, a.ldo = a.lddo = 26;
    a.row_max = stats, a.row_sum = stats + 78;
    a.scale = 0.3f, a.causal = 1;
    k->attention_forward(pool, &a);
    dt__sha256_add(h, out, 4 * 39 * 26);
    a.dout = y, a.lddq = a.lddk = 78;
    a.dq = out + 4096, a.dk = a.dq + 26, a.dv = a.dq + 52;
    k->attention_backward(pool, &a);
    dt__sha256_add(h, a.dq, 4 * 39 * 78);
    dt__self_masked(k, pool, x, y, out, h);
    dt__self_join(k, x, y, out, h);
}

/* The hash of all kernels' results on the fixed input; pool needs its scratch reserved. */
static dt_result dt__self_hash(const dt__kernels *k, dt_pool *pool, char hex[65])
{
    float *x = (float *)dt__alloc(4 * 6 * DT__SELF_N, "the self-check"), *y, *out;
    dt__sha256 h;
    unsigned saved;
    if (!x) return DT_E_MEMORY;
    y = x + DT__SELF_N;
    out = y + DT__SELF_N;
    saved = dt__fp_enter();
    dt__self_fill(x, DT__SELF_N, 1);
    dt__self_fill(y, DT__SELF_N, 2);
    dt__sha256_begin(&h);
    dt__self_rows(k, x, y, out, out + DT__SELF_N, &h);
    dt__self_elementwise(k, x, y, out, out + DT__SELF_N, &h);
    dt__self_update(k, x, y, out, out + DT__SELF_N, &h);
    dt__self_matrix(k, pool, x, y, out, &h);
    dt__sha256_end(&h, hex);
    dt__fp_leave(saved);
    dt__free(x);
    return DT_OK;
}

static dt_result dt__self_check(const dt__kernels *k, dt_pool *pool)
{
    char hex[65];
    dt_result r = dt__pool_reserve(pool, dt__max(k->gemm_scratch(), k->attention_scratch(39, 13)));
    if (!r) r = dt__self_hash(k, pool, hex);
    if (!r && strcmp(hex, DT__SELF_CHECK))
        r = dt__error(DT_E_SELFCHECK,
                      "the %s kernels of this build do not compute exactly (self-check %.16s, expected %.16s): a "
                      "compiler flag changes "
                      "floating point; build without -ffast-math and its parts, or try DT_ISA=portable",
                      k->name, hex, DT__SELF_CHECK);
    return r;
}

/* ============================================================================================
 * H6  tensors and graph
 * ========================================================================================= */

#define DT__MAX_IN 8
enum { DT__TENSOR_SHARDS = 1024 }; /* the most */

/* One op and its value. Ids are positions in the graph's list, so inputs always come first. */
typedef struct dt__node {
    int32_t op, dtype; /* dtype: dt_dtype of the elements */
    dt_shape shape;
    int32_t in[DT__MAX_IN], inputs;
    int32_t use[DT__MAX_IN]; /* gradient slot of this use when the input is a parameter (recorded graphs) */
    int32_t needs_grad, aux; /* aux: id of the second output (row statistics), or 0 */
    int32_t slot;            /* the gradient slot that this node's value goes on accumulating into, or -1 */
    int32_t param;           /* PARAM: index into params */
    int64_t i[DT_MAX_DIMS];  /* the op's integers: axes, flags, parts, sites */
    float f;
    const float *table; /* the op's constants, owned by the graph; NULL for most */
    int32_t grad;       /* after dt_backward: id of the gradient, or 0 */
    int32_t cut;        /* its last axis holds this rank's tensor shards, one behind another, and no others */
    float *data;  /* eager: the value, owned */
} dt__node;

/* A parameter as the model speaks of it, and how tensor shards cut it. Names, hashes, files and first values are those
 * of the whole; a rank stores its part as arrays, one behind another: a tensor shard, an expert, or an expert's tensor
 * shard is one each (R11). Those of the whole are numbered by expert, then by shard. */
typedef struct dt__param {
    char name[96]; /* full name */
    dt_shape shape;
    dt_init init;
    float std;
    int32_t cut;    /* the axis that shards cut; -1: every rank has it whole */
    int32_t rows;   /* R7: its gradient is Vt sums over slices of rows, which 1: may be split, 2: are on all ranks */
    int64_t groups; /* the cut axis is so many equal pieces, each of which is cut: c_attn's q, k and v; else 1 */
    int64_t pad;    /* places behind the cut axis that make Vt divide it: of a vocabulary */
    int64_t experts; /* axis 0 is so many equal pieces, each of which is stored alone; 0: it is not of experts */
    int64_t first_expert, own_experts; /* this rank's run of them */
} dt__param;

/* One use of a parameter: it has a gradient of its own, reduced alone (R8). */
typedef struct dt__slot {
    int32_t param, use;
} dt__slot;

struct dt_graph {
    int eager;
    uint64_t seed;
    dt_result result;
    char sentence[512];
    dt__node *nodes; /* nodes[0] is the poison */
    int32_t count, capacity, forward_count;
    dt__param *params;
    int32_t param_count;
    dt__slot *slots;
    int32_t slot_count;
    float **tables; /* constants of ops */
    int32_t table_count, table_capacity;
    int64_t table_floats;  /* of all tables */
    int32_t sites;         /* random sites (dropout) so far */
    int64_t tensor_shards; /* Vt */
    int64_t first_shard, own_shards; /* this rank's run of them; own_shards 0: all, and parameters are stored whole */
    int sequence_parallel; /* between the parallel products a rank has its shards' slices of the rows alone */
    int64_t expert_ranks, expert_rank; /* the experts of a mixture are shared by so many ranks, of which this is one */
    int64_t context_shards, first_leaf, own_leaves; /* Vc, and this rank's run of them; 0: sequences are whole */
    int64_t context;       /* 0; or a decode graph's positions: its T tokens stand at dt__env.position, others before */
    int64_t samples, positions; /* of a unit of work: B, T; its leaves count as samples of T/Vc tokens */
    char prefix[64];       /* segment name */
    dt_tensor input, targets, logits, prediction, loss_seed;
    struct dt__shares *shares; /* while differentiating */
    const dt__kernels *kernels;
    dt_pool *pool;
};

/* What ranks that share a unit's tensor shards do together, all in the same order, `from` having count floats:
 * SUM: to (count) = TREE over the ranks of `from`; MAX likewise by R14; both may be in place. SCATTER: the same sums,
 * of which a rank gets its own slice of count / ranks floats. GATHER: to (ranks * count) = all ranks' floats by rank.
 * It cannot fail visibly: it notes errors at its own side. */
enum { DT__TP_SUM, DT__TP_MAX, DT__TP_SCATTER, DT__TP_GATHER };
typedef struct dt__tp {
    void (*combine)(void *user, int kind, float *to, const float *from, int64_t count);
    void *user;
} dt__tp;

/* What ranks that share experts do together, all in the same order: rank p gets rows [give[p * bins], give[(p + 1) *
 * bins]) of `from`, and this one gets its rows [take[p * bins], take[(p + 1) * bins]) of `to` from rank p; a row is
 * `width` floats. It cannot fail visibly: then `to` is +0. */
typedef struct dt__ep {
    void (*trade)(void *user, float *to, const int32_t *take, const float *from, const int32_t *give, int64_t bins,
                  int64_t width);
    void *user;
} dt__ep;

/* How the ranks that have the other context leaves of a unit exchange blocks. post sends data, which stays as it is
 * until settle() of its place, one of DT__CP_PLACES; take waits for what `from` has posted. Ranks are numbered along
 * the context axis. Errors are noted at their own side. */
enum { DT__CP_PLACES = 4 };
typedef struct dt__cp {
    void (*post)(void *user, int place, const float *data, int64_t count, int to);
    void (*settle)(void *user, int place);
    void (*take)(void *user, float *to, int64_t count, int from);
    void *user;
    float *work; /* (dt__net.sliced) */
} dt__cp;

/* What the ops of one run share. */
typedef struct dt__env {
    const dt__kernels *k;
    dt_pool *pool;
    dt__rng *rng;     /* one per sample of the unit; counter[2] is set per site */
    uint32_t segment; /* part of a random site's number */
    int inference;    /* no dropout */
    int64_t position; /* of the first token: 0 but in decode graphs */
    float unit_share; /* 1 / units of work of the step: the weight of a unit's auxiliary losses */
    dt__tp tp;        /* called when a graph has not all tensor shards */
    dt__ep ep;        /* called when a graph has not all experts */
    dt__cp cp;        /* called when a graph has not all context leaves; work is needed for slices in any case */
} dt__env;

/* One op being computed. fresh: a chain starts from +0 instead of going on from out. */
typedef struct dt__call {
    const dt_graph *g;
    const dt__node *n;
    const dt__env *env;
    float *out, *aux;
    float *slices;   /* of a gradient slot in row slices (R2, R7): those behind the first, which is out; or NULL */
    int64_t of_rank; /* of experts that ranks share: floats from the sum over one rank's tokens to the next one's */
    const float *in[DT__MAX_IN];
    int fresh;
} dt__call;

typedef void (*dt__run_fn)(const dt__call *c);
typedef void (*dt__grad_fn)(dt_graph *g, int32_t id, dt_tensor dy);
typedef struct dt__op {
    const char *name;
    unsigned in_place;
    dt__run_fn run;
    dt__grad_fn grad;
} dt__op;
static const dt__op *dt__op_of(int op);

/* ---- shapes --------------------------------------------------------------------------------- */

static dt_shape dt__shape(int dims, int64_t a, int64_t b, int64_t c, int64_t d)
{
    dt_shape s;
    memset(&s, 0, sizeof s);
    s.dims = dims;
    s.n[0] = a, s.n[1] = b, s.n[2] = c, s.n[3] = d;
    return s;
}
DT_API dt_shape dt_shape0(void) { return dt__shape(0, 0, 0, 0, 0); }
DT_API dt_shape dt_shape1(int64_t a) { return dt__shape(1, a, 0, 0, 0); }
DT_API dt_shape dt_shape2(int64_t a, int64_t b) { return dt__shape(2, a, b, 0, 0); }
DT_API dt_shape dt_shape3(int64_t a, int64_t b, int64_t c) { return dt__shape(3, a, b, c, 0); }
DT_API dt_shape dt_shape4(int64_t a, int64_t b, int64_t c, int64_t d) { return dt__shape(4, a, b, c, d); }

/* Product of the sizes of axes [begin, end). */
static int64_t dt__span(const dt_shape *s, int begin, int end)
{
    int64_t n = 1;
    for (int i = begin; i < end; i++) n *= s->n[i];
    return n;
}
DT_API int64_t dt_shape_count(dt_shape s) { return dt__span(&s, 0, s.dims); }
static int64_t dt__count(const dt__node *n) { return dt__span(&n->shape, 0, n->shape.dims); }
/* Bytes of an element, and the floats of memory that hold the value. */
static int64_t dt__width(const dt__node *n) { return dt__format_of[n->dtype].bytes; }
static int64_t dt__floats(const dt__node *n) { return dt__ceil_div(dt__count(n) * dt__width(n), 4); }
static int dt__same_shape(const dt_shape *a, const dt_shape *b)
{
    if (a->dims != b->dims) return 0;
    for (int i = 0; i < a->dims; i++)
        if (a->n[i] != b->n[i]) return 0;
    return 1;
}
/* The last axis and all before it, as (rows, cols). */
static int64_t dt__cols(const dt__node *n) { return n->shape.dims ? n->shape.n[n->shape.dims - 1] : 1; }
static int64_t dt__rows(const dt__node *n)
{
    int64_t cols = dt__cols(n);
    return cols ? dt__count(n) / cols : 0;
}

/* "(4,16,32)" for error sentences; `text` has 96 bytes. */
static const char *dt__shape_text(const dt_shape *s, char *text)
{
    int used = snprintf(text, 96, "(");
    for (int i = 0; i < s->dims && used < 70; i++)
        used += snprintf(text + used, 96 - (size_t)used, i ? ",%lld" : "%lld", (long long)s->n[i]);
    snprintf(text + used, 96 - (size_t)used, ")");
    return text;
}

/* The shape that a and b broadcast to; returns 0 when they do not. */
static int dt__broadcast(const dt_shape *a, const dt_shape *b, dt_shape *out)
{
    *out = a->dims >= b->dims ? *a : *b;
    for (int i = 1; i <= out->dims; i++) {
        int64_t x = i <= a->dims ? a->n[a->dims - i] : 1, y = i <= b->dims ? b->n[b->dims - i] : 1;
        if (x != y && x != 1 && y != 1) return 0;
        out->n[out->dims - i] = x == 1 ? y : x;
    }
    return 1;
}

/* Element strides of `s` seen as `to`: 0 along broadcast axes. */
static void dt__strides(const dt_shape *s, const dt_shape *to, int64_t stride[DT_MAX_DIMS])
{
    int64_t step = 1;
    for (int i = 1; i <= to->dims; i++) {
        int64_t n = i <= s->dims ? s->n[s->dims - i] : 1;
        stride[to->dims - i] = n == 1 ? 0 : step;
        step *= n;
    }
}

/* ---- tensor shards ---------------------------------------------------------------------------- */

/* Shards of this rank; are parameters stored in shards; are rows split between the parallel products? */
static int64_t dt__own(const dt_graph *g) { return g->own_shards ? g->own_shards : g->tensor_shards; }
static int dt__in_shards(const dt_graph *g) { return g->own_shards && g->tensor_shards > 1; }
static int dt__splits_rows(const dt_graph *g) { return g->sequence_parallel && dt__own(g) < g->tensor_shards; }
static int64_t dt__expert_ranks(const dt_graph *g) { return dt__max(1, g->expert_ranks); }
/* Context leaves of this rank: its rows are those of the first one's samples, then those of the next one's. */
static int64_t dt__leaves(const dt_graph *g) { return g->own_leaves ? g->own_leaves : 1; }
/* This rank's part of n of which every shard has an equal one. */
static int64_t dt__part_of(const dt_graph *g, int64_t n) { return n / g->tensor_shards * dt__own(g); }

static int dt__param_is_cut(const dt__param *p, int64_t vt) { return p->cut >= 0 && vt > 1; }
/* Places of the cut axis in a shard. */
static int64_t dt__param_width(const dt__param *p, int64_t vt) { return (p->shape.n[p->cut] + p->pad) / vt; }
/* Floats of an array, and from one to the next. */
static int64_t dt__shard_floats(const dt__param *p, int64_t vt)
{
    int64_t all = dt_shape_count(p->shape);
    if (dt__param_is_cut(p, vt)) all = all / p->shape.n[p->cut] * dt__param_width(p, vt);
    return all / dt__max(1, p->experts);
}
static int64_t dt__shard_step(const dt__param *p, int64_t vt)
{
    return dt__round_up(dt__shard_floats(p, vt), DT__BLOCK);
}
/* Arrays of the whole. Those that a rank with `own` tensor shards stores, and the floats from the first to the end of
 * the last. */
static int64_t dt__param_arrays(const dt__param *p, int64_t vt)
{
    return dt__max(1, p->experts) * (dt__param_is_cut(p, vt) ? vt : 1);
}
static int64_t dt__param_shards(const dt__param *p, int64_t vt, int64_t own)
{
    return dt__max(1, p->own_experts) * (dt__param_is_cut(p, vt) ? own : 1);
}
/* The number among all of array i of a rank whose `own` shards begin with the `first`. */
static int64_t dt__param_array(const dt__param *p, int64_t vt, int64_t first, int64_t own, int64_t i)
{
    return dt__param_is_cut(p, vt) ? (p->first_expert + i / own) * vt + first + i % own : p->first_expert + i;
}
/* Ranks that share the parameter's experts: a gradient is kept for the tokens of each of them. */
static int64_t dt__param_copies(const dt__param *p) { return p->own_experts ? p->experts / p->own_experts : 1; }
static int64_t dt__param_local(const dt__param *p, int64_t vt, int64_t own)
{
    return (dt__param_shards(p, vt, own) - 1) * dt__shard_step(p, vt) + dt__shard_floats(p, vt);
}
/* The element of the whole that is element i of an array; -1: padding. */
static int64_t dt__param_index(const dt__param *p, int64_t vt, int64_t array, int64_t i)
{
    int64_t inner, width, run, n, at, experts = dt__max(1, p->experts), of_expert;
    of_expert = dt_shape_count(p->shape) / experts;
    if (!dt__param_is_cut(p, vt)) return array * of_expert + i;
    inner = dt__span(&p->shape, p->cut + 1, p->shape.dims);
    n = p->shape.n[p->cut];
    width = dt__param_width(p, vt), run = width / p->groups;
    if (!p->cut) n /= experts, width /= experts;
    at = i / inner % width;
    at = at / run * (run * vt) + array % vt * run + at % run;
    return at < n ? array / vt * of_expert + (i / inner / width * n + at) * inner + i % inner : -1;
}
/* How many elements from element i of an array on are neighbours in the whole too, or padding. */
static int64_t dt__param_run(const dt__param *p, int64_t vt, int64_t i)
{
    int64_t run = dt__shard_floats(p, vt);
    if (dt__param_is_cut(p, vt))
        run = dt__param_width(p, vt) / p->groups * dt__span(&p->shape, p->cut + 1, p->shape.dims);
    if (dt__param_is_cut(p, vt) && p->pad) { /* the padding is a run of its own */
        int64_t inner = dt__span(&p->shape, p->cut + 1, p->shape.dims);
        return inner - i % inner;
    }
    return run - i % run;
}

/* Slices of a leaf's rows that a graph's rank sums the gradient of p by (R7), and those of all its leaves (R2). */
static int64_t dt__leaf_slices(const dt_graph *g, const dt__param *p)
{
    if (!p->rows || !dt__in_shards(g)) return 1;
    return p->rows == 1 && dt__splits_rows(g) ? g->own_shards : g->tensor_shards;
}
static int64_t dt__row_slices(const dt_graph *g, const dt__param *p) { return dt__leaves(g) * dt__leaf_slices(g, p); }

/* The parameter that a node is, or whose gradient it is; else NULL. When it is stored in shards; else NULL. */
static const dt__param *dt__node_param(const dt_graph *g, const dt__node *n)
{
    if (n->op == DT__OP_PARAM) return &g->params[n->param];
    return n->slot >= 0 ? &g->params[g->slots[n->slot].param] : NULL;
}
static const dt__param *dt__cut_param(const dt_graph *g, const dt__node *n)
{
    const dt__param *p = dt__node_param(g, n);
    return p && p->cut >= 0 && dt__in_shards(g) ? p : NULL;
}

/* ---- building ------------------------------------------------------------------------------- */

static dt_tensor dt__tensor(int32_t id)
{
    dt_tensor t;
    t.id = id;
    return t;
}
static dt__node *dt__at(const dt_graph *g, dt_tensor t) { return &g->nodes[t.id]; }

/* Keeps the first error and returns the poison: `return dt__poison(g, DT_E_SHAPE, "...", ...)`. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static dt_tensor dt__poison(dt_graph *g, dt_result code, const char *format, ...)
{
    va_list args;
    if (g->result) return dt__tensor(0);
    va_start(args, format);
    vsnprintf(g->sentence, sizeof g->sentence, format, args);
    va_end(args);
    g->result = dt__error(code, "%s%s%s", g->prefix, g->prefix[0] ? ": " : "", g->sentence);
    return dt__tensor(0);
}

DT_API dt_result dt_graph_result(const dt_graph *g)
{
    return g->result ? dt__error(g->result, "%s%s%s", g->prefix, g->prefix[0] ? ": " : "", g->sentence) : DT_OK;
}

static int dt__grow(void **list, int32_t count, int32_t *capacity, size_t item)
{
    int64_t room = *capacity;
    if (!dt__reserve(list, count, &room, count + 1, (int64_t)item, "a graph")) return 0;
    *capacity = (int32_t)room;
    return 1;
}

static dt_graph *dt__graph_new(int eager, uint64_t seed)
{
    dt_graph *g = (dt_graph *)dt__alloc((int64_t)sizeof *g, "a graph");
    if (!g) return NULL;
    g->eager = eager;
    g->seed = seed;
    g->tensor_shards = 1;
    g->nodes = NULL;
    if (!dt__grow((void **)&g->nodes, 0, &g->capacity, sizeof *g->nodes)) return dt__free(g), (dt_graph *)NULL;
    g->count = 1;
    return g;
}

static void dt__compute(dt_graph *g, int32_t id);

static dt__node dt__node_make(int op, dt_shape shape, dt_tensor a, dt_tensor b, dt_tensor c)
{
    dt__node n;
    memset(&n, 0, sizeof n);
    n.op = op;
    n.shape = shape;
    n.slot = -1;
    n.in[0] = a.id, n.in[1] = b.id, n.in[2] = c.id;
    n.inputs = c.id ? 3 : b.id ? 2 : a.id ? 1 : 0;
    return n;
}

static dt_tensor dt__append(dt_graph *g, const dt__node *node)
{
    if (!dt__grow((void **)&g->nodes, g->count, &g->capacity, sizeof *g->nodes))
        return dt__poison(g, DT_E_MEMORY, "no memory for the graph");
    g->nodes[g->count] = *node;
    return dt__tensor(g->count++);
}

/* A new gradient slot for a use of parameter `p`. */
static int32_t dt__new_slot(dt_graph *g, int32_t p)
{
    dt__slot *bigger = (dt__slot *)dt__alloc((int64_t)sizeof *bigger * (g->slot_count + 1), "a graph");
    int32_t uses = 0;
    if (!bigger) return -1;
    for (int32_t i = 0; i < g->slot_count; i++) {
        bigger[i] = g->slots[i];
        uses += g->slots[i].param == p;
    }
    dt__free(g->slots);
    g->slots = bigger;
    bigger[g->slot_count].param = p;
    bigger[g->slot_count].use = uses;
    return g->slot_count++;
}

enum { DT__ANY = -1 };

/* The type that input `input` of an op must have. Ops that take any type pass on that of input 0, but for CAST. */
static int dt__takes(int op, int input)
{
    switch (op) {
    case DT__OP_RESHAPE:
    case DT__OP_DETACH:
    case DT__OP_PERMUTE:
    case DT__OP_SLICE:
    case DT__OP_PAD:
    case DT__OP_EXPAND:
    case DT__OP_CONCAT:
    case DT__OP_CAST: return DT__ANY;
    case DT__OP_GATHER:
    case DT__OP_EMBED: return input == 0 ? (int)DT__ANY : (int)DT_I32;
    case DT__OP_MOE_ROUTE:
    case DT__OP_MOE_BINS:
    case DT__OP_ONE_HOT:
    case DT__OP_SCATTER_ADD:
    case DT__OP_EMBED_GRAD: return input == 0 ? DT_I32 : DT_F32;
    case DT__OP_MOE_ROWS:
    case DT__OP_MOE_LINEAR:
    case DT__OP_MOE_DW:
    case DT__OP_MOE_DB:
    case DT__OP_MOE_SUM:
    case DT__OP_MOE_DOT:
    case DT__OP_LOSS:
    case DT__OP_LOSS_GRAD: return input == 1 ? (int)DT__ANY : (int)DT_F32; /* targets are int32 or fp32 */
    case DT__OP_MOE_TRADE: return input ? (int)DT__ANY : (int)DT_F32; /* the tables */
    case DT__OP_CROSS_ENTROPY: return input == 1 ? DT_I32 : DT_F32;
    case DT__OP_CROSS_ENTROPY_GRAD: return input == 2 ? DT_I32 : DT_F32;
    case DT__OP_ATTENTION: return input == 3 ? (int)DT__ANY : (int)DT_F32; /* the mask */
    case DT__OP_ATTENTION_GRAD: return input == 6 ? (int)DT__ANY : (int)DT_F32;
    default: return DT_F32;
    }
}

/* Is the value of a new node cut over tensor shards along its last axis? -1: the op would mix shards, or sum over them,
 * without a COMBINE (R6). Elementwise ops keep the cut; a product with a cut weight makes one or ends it. */
static int dt__cut_of(const dt_graph *g, const dt__node *n)
{
    const dt__node *a = &g->nodes[n->in[0]], *b = &g->nodes[n->in[1]];
    int any = 0, same = 1;
    for (int i = 0; i < n->inputs; i++) {
        const dt__node *in = &g->nodes[n->in[i]];
        any |= in->cut;
        same &= in->cut || !in->shape.dims || in->shape.n[in->shape.dims - 1] == 1;
    }
    switch (n->op) {
    case DT__OP_MATMUL:
    case DT__OP_MOE_LINEAR: {
        const dt__param *p = dt__cut_param(g, n->op == DT__OP_MATMUL ? b : &g->nodes[n->in[2]]);
        int last = p && p->cut == p->shape.dims - 1, transposed = n->op == DT__OP_MATMUL && n->i[1];
        if (!p) return any ? -1 : 0;
        if (last != transposed) return a->cut ? -1 : 1;
        return a->cut ? 0 : -1;
    }
    case DT__OP_EMBED:
    case DT__OP_CROSS_ENTROPY: return 0;
    case DT__OP_ROPE:
    case DT__OP_CACHE: return a->cut;
    case DT__OP_ATTENTION: return a->cut && (!n->i[3] || (b->cut && g->nodes[n->in[2]].cut)) ? 1 : any ? -1 : 0;
    case DT__OP_SOFTMAX:
    case DT__OP_LOG_SOFTMAX:
    case DT__OP_DROPOUT: return any ? -1 : 0;
    default: return !any ? 0 : dt__op_of(n->op)->in_place && same ? 1 : -1;
    }
}

/* Adds the node (and its second output of shape *aux), and computes it when the graph is eager. */
static dt_tensor dt__push(dt_graph *g, dt__node *n, const dt_shape *aux)
{
    dt_tensor t;
    if (g->result) return dt__tensor(0);
    for (int i = 0; i < n->inputs; i++) {
        const dt__node *in = &g->nodes[n->in[i]];
        int wanted = dt__takes(n->op, i);
        if (!n->in[i]) return dt__poison(g, DT_E_USAGE, "an input of %s is a poisoned tensor", dt__op_of(n->op)->name);
        if (wanted != DT__ANY && wanted != in->dtype)
            return dt__poison(g, DT_E_SHAPE, "%s: input %d holds %s and must hold %s: dt_cast it to %s",
                              dt__op_of(n->op)->name, i, dt__format_of[in->dtype].name, dt__format_of[wanted].name,
                              wanted == DT_I32 ? "DT_I32" : "DT_F32");
        if (wanted == DT__ANY && i == 0 && n->op != DT__OP_CAST) n->dtype = in->dtype;
        if (dt__op_of(n->op)->grad && n->dtype != DT_I32) n->needs_grad |= in->needs_grad;
        n->use[i] = !g->eager && in->op == DT__OP_PARAM && !g->forward_count ? dt__new_slot(g, in->param) : -1;
    }
    if (dt__in_shards(g) && !g->forward_count && n->inputs) {
        n->cut = dt__cut_of(g, n);
        if (n->cut < 0)
            return dt__poison(g, DT_E_SHAPE,
                              "%s reads columns that are cut over tensor shards: only elementwise ops and attention "
                              "may stand between dt_linear_column and dt_linear_row",
                              dt__op_of(n->op)->name);
    }
    if (aux) n->aux = g->count + 1;
    t = dt__append(g, n);
    if (aux && t.id) {
        dt__node second = dt__node_make(DT__OP_AUX, *aux, t, dt__tensor(0), dt__tensor(0));
        dt__append(g, &second);
    }
    if (g->eager && !g->result) dt__compute(g, t.id);
    return g->result ? dt__tensor(0) : t;
}

static dt_tensor dt__push_op(dt_graph *g, int op, dt_shape shape, dt_tensor a, dt_tensor b, dt_tensor c)
{
    dt__node n = dt__node_make(op, shape, a, b, c);
    return dt__push(g, &n, NULL);
}

DT_API dt_shape dt_shape_of(const dt_graph *g, dt_tensor t) { return dt__at(g, t)->shape; }
DT_API int64_t dt_dim(const dt_graph *g, dt_tensor t, int axis)
{
    const dt_shape *s = &dt__at(g, t)->shape;
    if (axis < 0) axis += s->dims;
    return axis >= 0 && axis < s->dims ? s->n[axis] : 1;
}
DT_API dt_dtype dt_dtype_of(const dt_graph *g, dt_tensor t) { return (dt_dtype)dt__at(g, t)->dtype; }
DT_API const void *dt_elements(const dt_graph *g, dt_tensor t) { return t.id ? dt__at(g, t)->data : NULL; }
DT_API const float *dt_value(const dt_graph *g, dt_tensor t)
{
    return dt__at(g, t)->dtype == DT_F32 ? (const float *)dt_elements(g, t) : NULL;
}

static int dt__shape_ok(const dt_shape *s)
{
    if (s->dims < 0 || s->dims > DT_MAX_DIMS) return 0;
    for (int i = 0; i < s->dims; i++)
        if (s->n[i] < 1) return 0;
    return 1;
}

static int dt__is_dtype(int dtype) { return dtype >= DT_F32 && dtype <= DT_F8_E5M2; }

static dt_tensor dt__leaf(dt_graph *g, int op, dt_shape shape, int dtype)
{
    char text[96];
    dt__node n = dt__node_make(op, shape, dt__tensor(0), dt__tensor(0), dt__tensor(0));
    if (!dt__shape_ok(&shape))
        return dt__poison(g, DT_E_SHAPE, "shape %s has an axis below 1 or too many axes", dt__shape_text(&shape, text));
    n.dtype = dtype;
    n.needs_grad = dtype != DT_I32;
    return dt__push(g, &n, NULL);
}

DT_API dt_tensor dt_tensor_of(dt_graph *g, dt_dtype dtype, dt_shape shape, const void *data)
{
    dt_tensor t;
    if (!dt__is_dtype((int)dtype)) return dt__poison(g, DT_E_USAGE, "dt_tensor_of: %d is no dt_dtype", (int)dtype);
    if (!g->eager)
        return dt__poison(g, DT_E_USAGE,
                          "values are given to eager graphs only; a segment's values are its input and parameters");
    t = dt__leaf(g, DT__OP_INPUT, shape, (int)dtype);
    if (t.id) memcpy(dt__at(g, t)->data, data, (size_t)(dt__count(dt__at(g, t)) * dt__width(dt__at(g, t))));
    return t;
}
DT_API dt_tensor dt_tensor_from(dt_graph *g, dt_shape shape, const float *data)
{
    return dt_tensor_of(g, DT_F32, shape, data);
}
DT_API dt_tensor dt_tokens_from(dt_graph *g, dt_shape shape, const int32_t *data)
{
    return dt_tensor_of(g, DT_I32, shape, data);
}

/* Draws a parameter's first values on the pool. The stream is keyed by a hash of the full name (R16). */
typedef struct dt__init_job {
    const dt__param *p;
    dt__rng rng;
    float *data;
    int64_t begin, n, vt, array; /* floats [begin, begin + n) of the array */
} dt__init_job;
static void dt__init_task(void *context, int64_t task, int worker)
{
    const dt__init_job *j = (const dt__init_job *)context;
    int64_t end = dt__min(j->n, task * 65536 + 65536), run;
    (void)worker;
    for (int64_t at = task * 65536; at < end; at += run) {
        int64_t first = dt__param_index(j->p, j->vt, j->array, j->begin + at);
        run = dt__min(end - at, dt__param_run(j->p, j->vt, j->begin + at));
        if (first >= 0 && j->p->init == DT_INIT_NORMAL)
            dt__normals(&j->rng, (uint64_t)first, (uint64_t)(first + run), j->p->std, j->data + at);
        else
            for (int64_t i = at; i < at + run; i++) j->data[i] = first >= 0 && j->p->init == DT_INIT_ONES ? 1.0f : 0.0f;
    }
}
/* Floats [from, from + count) of what a rank stores of a parameter: shards [first, first + own) of vt, each at the next
 * multiple of a block; padding is +0. */
static void dt__init_shards(const dt__param *p, int64_t vt, int64_t first, int64_t own, uint64_t seed, dt_pool *pool,
                            float *data, int64_t from, int64_t count)
{
    dt__sha256 h;
    dt__init_job j;
    char hex[65];
    unsigned key[3] = {0, 0, 0}, saved;
    dt__sha256_begin(&h);
    dt__sha256_add(&h, p->name, (int64_t)strlen(p->name));
    dt__sha256_end(&h, hex);
    sscanf(hex, "%8x%8x%8x", &key[0], &key[1], &key[2]);
    j.p = p;
    j.rng = dt__rng_make(seed, DT__RNG_INIT, key[0], key[1], key[2]);
    j.vt = vt;
    saved = dt__fp_enter();
    for (int64_t v = 0; v < dt__param_shards(p, vt, own); v++) {
        int64_t at = v * dt__shard_step(p, vt), low = dt__max(from, at);
        j.array = dt__param_array(p, vt, first, own, v);
        j.begin = low - at;
        j.n = dt__min(from + count, at + dt__shard_floats(p, vt)) - low;
        j.data = data + low - from;
        if (j.n > 0) dt__parallel(pool, dt__ceil_div(j.n, 65536), dt__init_task, &j);
    }
    dt__fp_leave(saved);
}
static void dt__init_param(const dt__param *p, uint64_t seed, dt_pool *pool, float *data)
{
    dt__init_shards(p, 1, 0, 1, seed, pool, data, 0, dt_shape_count(p->shape));
}

/* "1, 2, 4": the powers of two that divide n, for error sentences. */
static const char *dt__shards_text(int64_t n, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int64_t v = 1; v <= n && n % v == 0 && used + 24 < size; v *= 2)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", used ? ", " : "", (long long)v);
    return text;
}

/* Can `n`, of which there is a slice on each tensor shard, be cut? */
static int dt__cuts(dt_graph *g, const char *what, int64_t n)
{
    char list[128];
    if (n % g->tensor_shards == 0) return 1;
    dt__poison(g, DT_E_USAGE, "%lld %s do not divide into %lld tensor shards: --tensor-shards one of %s", (long long)n,
               what, (long long)g->tensor_shards, dt__shards_text(n, list, sizeof list));
    return 0;
}

/* A parameter whose axis `cut` (-1: none) is `groups` pieces, each of them cut over the tensor shards; axis 0 is so
 * many experts (0: none). The node has the shape of this rank's part, without padding. */
static dt_tensor dt__param_of_experts(dt_graph *g, const char *name, dt_shape shape, dt_init init, float std, int cut,
                                      int64_t groups, int64_t pad, int64_t experts)
{
    dt__param *list, *p;
    dt_shape local = shape;
    dt_tensor t;
    if (cut >= 0 && dt__in_shards(g)) {
        int64_t width = (shape.n[cut] + pad) / g->tensor_shards, first = g->first_shard * width;
        if (!pad && !dt__cuts(g, "columns or rows of a weight", shape.n[cut] / groups)) return dt__tensor(0);
        local.n[cut] = dt__min(shape.n[cut], first + g->own_shards * width) - first;
    }
    if (experts) local.n[0] /= dt__expert_ranks(g);
    t = dt__leaf(g, DT__OP_PARAM, local, DT_F32);
    if (!t.id) return t;
    dt__at(g, t)->cut = cut == shape.dims - 1 && dt__in_shards(g);
    list = (dt__param *)dt__alloc((int64_t)sizeof *list * (g->param_count + 1), "a graph");
    if (!list) return dt__poison(g, DT_E_MEMORY, "no memory for parameter %s", name);
    if (g->param_count) memcpy(list, g->params, sizeof *list * (size_t)g->param_count);
    dt__free(g->params);
    g->params = list;
    p = &list[g->param_count];
    if (name[0] == '/') snprintf(p->name, sizeof p->name, "%s", name + 1);
    else snprintf(p->name, sizeof p->name, "%s%s%s", g->prefix, g->prefix[0] ? "." : "", name);
    p->shape = shape;
    p->init = init;
    p->std = std;
    p->cut = cut, p->rows = 0, p->groups = groups, p->pad = pad;
    p->experts = g->own_shards ? experts : 0;
    p->own_experts = p->experts / dt__expert_ranks(g);
    p->first_expert = p->own_experts * g->expert_rank;
    dt__at(g, t)->param = g->param_count++;
    if (g->eager) dt__init_param(p, g->seed, NULL, dt__at(g, t)->data);
    return t;
}
static dt_tensor dt__param_cut(dt_graph *g, const char *name, dt_shape shape, dt_init init, float std, int cut,
                               int64_t groups, int64_t pad)
{
    return dt__param_of_experts(g, name, shape, init, std, cut, groups, pad, 0);
}
DT_API dt_tensor dt_param(dt_graph *g, const char *name, dt_shape shape, dt_init init, float std)
{
    return dt__param_cut(g, name, shape, init, std, -1, 1, 0);
}

/* A table (vocabulary,width) whose rows are cut; padding makes the shards equal. No shard may be all padding. */
static dt_tensor dt__table_param(dt_graph *g, const char *name, int64_t vocabulary, int64_t width)
{
    int64_t vt = g->tensor_shards, rows = dt__ceil_div(vocabulary, vt);
    if ((vt - 1) * rows >= vocabulary)
        return dt__poison(g, DT_E_SHAPE, "%lld token ids are too few for %lld tensor shards: use fewer shards",
                          (long long)vocabulary, (long long)vt);
    return dt__param_cut(g, name, dt_shape2(vocabulary, width), DT_INIT_NORMAL, 0.02f, 0, 1, rows * vt - vocabulary);
}

/* Says that parameter t acts on rows, of which there are `rows` here (R7); kind as in dt__param.rows. */
static dt_tensor dt__param_rows(dt_graph *g, dt_tensor t, int64_t rows, int kind)
{
    int64_t slices;
    if (!t.id || !dt__in_shards(g)) return t;
    g->params[dt__at(g, t)->param].rows = kind;
    slices = dt__row_slices(g, &g->params[dt__at(g, t)->param]);
    if (rows % slices && !g->context) /* decode graphs have no gradient */
        return dt__poison(g, DT_E_USAGE,
                          "%s acts on %lld rows of a unit of work, which do not divide into %lld slices, one for each "
                          "tensor shard: change the micro-batch, --sequence or --tensor-shards",
                          g->params[dt__at(g, t)->param].name, (long long)rows, (long long)slices);
    return t;
}

/* ---- running: how an op is split over threads and called -------------------------------------- */

typedef void (*dt__body)(const dt__call *c, int64_t begin, int64_t end, int worker);
typedef struct dt__split_job {
    const dt__call *c;
    dt__body body;
    int64_t total, piece;
} dt__split_job;

static void dt__split_task(void *context, int64_t task, int worker)
{
    const dt__split_job *job = (const dt__split_job *)context;
    job->body(job->c, task * job->piece, dt__min(job->total, (task + 1) * job->piece), worker);
}

/* body over [0, total) in pieces of at least `grain`: pieces write disjoint outputs, so any cut gives the same bits. */
static void dt__split(const dt__call *c, int64_t total, int64_t grain, dt__body body)
{
    dt__split_job job;
    int64_t workers = c->env->pool ? c->env->pool->workers : 1;
    job.c = c;
    job.body = body;
    job.total = total;
    job.piece = dt__round_up(dt__max(grain, dt__ceil_div(total, workers * 4)), grain);
    if (workers == 1) body(c, 0, total, 0);
    else dt__parallel(c->env->pool, dt__ceil_div(total, job.piece), dt__split_task, &job);
}

static const dt__node *dt__in(const dt__call *c, int i) { return &c->g->nodes[c->n->in[i]]; }

/* Position in its sequence of row `row` of a unit, (samples, positions) of the graph. Context leaf c has slices c and
 * S-1-c of the S = 2 Vc of a sequence. */
static int64_t dt__row_position(const dt_graph *g, int64_t row)
{
    int64_t i = row % g->positions, slice = g->positions / 2, leaf;
    if (!g->context_shards) return i;
    leaf = g->first_leaf + row / g->positions / (g->samples / g->own_leaves);
    return i < slice ? leaf * slice + i : (2 * g->context_shards - 2 - leaf) * slice + i;
}

/* Row slices that the gradient in this call's slot is summed by (R2, R7), and where the sum of one of them is. */
static int64_t dt__slices(const dt__call *c)
{
    return c->slices ? dt__row_slices(c->g, &c->g->params[c->g->slots[c->n->slot].param]) : 1;
}
static float *dt__slice(const dt__call *c, int64_t slice)
{
    const dt__param *p = slice ? &c->g->params[c->g->slots[c->n->slot].param] : NULL;
    if (!slice) return c->out;
    return c->slices + (slice - 1) * dt__round_up(dt__param_local(p, c->g->tensor_shards, dt__own(c->g)), DT__BLOCK);
}

/* Sizes of an attention node or its gradient. It has one fused input [q | k | v] or separate ones, of which k and v
 * may have fewer heads. i: heads, causal, dropout site, heads of the keys (0: fused), bits of the scale, tensor shards
 * (0: the heads are not cut); of a fused input each shard has its own [q | k | v]. */
static dt__attention dt__attention_sizes(const dt_graph *g, const dt__node *n)
{
    const dt__node *q = &g->nodes[n->in[0]], *k = n->i[3] ? &g->nodes[n->in[1]] : q;
    dt__attention a;
    memset(&a, 0, sizeof a);
    a.b = q->shape.n[0], a.t = q->shape.n[1], a.s = a.room = k->shape.n[1];
    a.h = n->i[0], a.hk = n->i[3] ? n->i[3] : a.h;
    a.ld = dt__cols(q), a.ldk = dt__cols(k);
    a.d = a.ldk / a.hk / (n->i[3] ? 1 : 3);
    a.first_head = n->i[5] ? g->first_shard * (a.h / n->i[5]) : 0;
    a.causal = (int)n->i[1];
    a.scale = dt__float_of_bits((uint32_t)n->i[4]);
    return a;
}

/* Scratch bytes per worker that the node's kernel needs. */
static int64_t dt__node_scratch(const dt__kernels *k, const dt_graph *g, int32_t id)
{
    const dt__node *n = &g->nodes[id];
    if (n->op == DT__OP_MATMUL || n->op == DT__OP_CONV || n->op == DT__OP_CONV_DX || n->op == DT__OP_CONV_DW ||
        n->op == DT__OP_MOE_LINEAR || n->op == DT__OP_MOE_DW)
        return k->gemm_scratch();
    if (n->op == DT__OP_ATTENTION || n->op == DT__OP_ATTENTION_GRAD) {
        dt__attention a = dt__attention_sizes(g, n);
        return k->attention_scratch(a.s, a.d);
    }
    switch (n->op) {
    case DT__OP_LAYERNORM_DX:
    case DT__OP_RMSNORM_DX:
    case DT__OP_LOG_SOFTMAX:
    case DT__OP_LOG_SOFTMAX_GRAD:
    case DT__OP_CROSS_ENTROPY: return 8 * dt__cols(&g->nodes[n->in[0]]) + 64;
    default: return 0;
    }
}

/* Ops whose value is another name of their first input's. */
static int dt__is_alias(int op)
{
    return op == DT__OP_RESHAPE || op == DT__OP_DETACH || op == DT__OP_AUX_LOSS || op == DT__OP_SAME_ROWS;
}

/* Eager evaluation: memory for the node and its second output, then the op. Aliases copy. */
static void dt__compute(dt_graph *g, int32_t id)
{
    dt__node *n = &g->nodes[id];
    dt__env env;
    dt__call c;
    unsigned saved;
    n->data = (float *)dt__alloc(4 * dt__floats(n), "a tensor");
    if (n->aux) g->nodes[n->aux].data = (float *)dt__alloc(4 * dt__count(&g->nodes[n->aux]), "a tensor");
    if (!n->data || (n->aux && !g->nodes[n->aux].data)) {
        dt__poison(g, DT_E_MEMORY, "no memory for a tensor");
        return;
    }
    memset(&env, 0, sizeof env);
    memset(&c, 0, sizeof c);
    env.k = g->kernels;
    env.pool = g->pool;
    env.unit_share = 1.0f;
    c.g = g;
    c.n = n;
    c.env = &env;
    c.out = n->data;
    c.aux = n->aux ? g->nodes[n->aux].data : NULL;
    c.fresh = 1;
    for (int i = 0; i < n->inputs; i++) c.in[i] = g->nodes[n->in[i]].data;
    if (dt__is_alias(n->op)) memcpy(c.out, c.in[0], 4 * (size_t)dt__floats(n));
    if (!dt__op_of(n->op)->run) return;
    if (dt__pool_reserve(g->pool, dt__node_scratch(g->kernels, g, id))) {
        dt__poison(g, DT_E_MEMORY, "no memory for scratch");
        return;
    }
    if (n->op == DT__OP_DROPOUT || n->op == DT__OP_ATTENTION || n->op == DT__OP_ATTENTION_GRAD) {
        int64_t samples = g->nodes[n->in[0]].shape.n[0];
        env.rng = (dt__rng *)dt__alloc((int64_t)sizeof *env.rng * samples, "random streams");
        if (!env.rng) {
            dt__poison(g, DT_E_MEMORY, "no memory for random streams");
            return;
        }
        for (int64_t b = 0; b < samples; b++) env.rng[b] = dt__rng_make(g->seed, DT__RNG_DROPOUT, (uint32_t)b, 0, 0);
    }
    saved = dt__fp_enter();
    dt__op_of(n->op)->run(&c);
    dt__fp_leave(saved);
    dt__free(env.rng);
}

/* Eager graphs run on the calling thread. */
DT_API dt_result dt_graph_open(dt_graph **graph, uint64_t seed)
{
    const dt__kernels *k;
    dt_graph *g;
    dt_result r = dt__choose_kernels(&k);
    *graph = NULL;
    if (r) return r;
    g = dt__graph_new(1, seed);
    if (!g) return DT_E_MEMORY;
    g->kernels = k;
    r = dt__pool_open(&g->pool, 1);
    if (r) dt_graph_close(&g);
    *graph = g;
    return r;
}

DT_API void dt_graph_close(dt_graph **graph)
{
    dt_graph *g = *graph;
    if (!g) return;
    for (int32_t i = 0; i < g->count; i++) dt__free(g->nodes[i].data);
    for (int32_t i = 0; i < g->table_count; i++) dt__free(g->tables[i]);
    dt__free(g->nodes);
    dt__free(g->params);
    dt__free(g->slots);
    dt__free(g->tables);
    if (g->eager) dt__pool_close(&g->pool);
    dt__free(g);
    *graph = NULL;
}

/* ---- shape ops ------------------------------------------------------------------------------- */

/* `axis` of x counted from 0 (negative ones count from the end); -1, and the graph poisoned, when there is none. */
static int dt__axis(dt_graph *g, const char *op, dt_tensor x, int axis)
{
    int dims = dt__at(g, x)->shape.dims;
    if (!x.id) return -1;
    if (axis >= -dims && axis < dims) return axis < 0 ? axis + dims : axis;
    dt__poison(g, DT_E_SHAPE, "%s: there is no axis %d in a tensor of %d axes", op, axis, dims);
    return -1;
}

DT_API dt_tensor dt_reshape(dt_graph *g, dt_tensor x, dt_shape shape)
{
    char a[96], b[96];
    if (!x.id) return x;
    if (!dt__shape_ok(&shape) || dt_shape_count(shape) != dt__count(dt__at(g, x)))
        return dt__poison(g, DT_E_SHAPE, "reshape: %s does not have as many elements as %s", dt__shape_text(&shape, a),
                          dt__shape_text(&dt__at(g, x)->shape, b));
    return dt__push_op(g, DT__OP_RESHAPE, shape, x, dt__tensor(0), dt__tensor(0));
}

/* (..,K) as (rows,K). */
static dt_tensor dt__as_matrix(dt_graph *g, dt_tensor x)
{
    return dt__at(g, x)->shape.dims == 2 ? x
                                         : dt_reshape(g, x, dt_shape2(dt__rows(dt__at(g, x)), dt__cols(dt__at(g, x))));
}

DT_API dt_tensor dt_permute(dt_graph *g, dt_tensor x, const int *axes)
{
    const dt_shape *s = &dt__at(g, x)->shape;
    unsigned seen = 0;
    dt__node n = dt__node_make(DT__OP_PERMUTE, *s, x, dt__tensor(0), dt__tensor(0));
    if (!x.id) return x;
    for (int i = 0; i < s->dims; i++) {
        if (axes[i] < 0 || axes[i] >= s->dims || (seen >> axes[i] & 1u))
            return dt__poison(g, DT_E_SHAPE, "permute: axis %d is outside 0..%d or named twice", axes[i], s->dims - 1);
        seen |= 1u << axes[i];
        n.shape.n[i] = s->n[axes[i]];
        n.i[i] = axes[i];
    }
    return dt__push(g, &n, NULL);
}

/* Copies n elements of `width` bytes that lie `step` elements apart. */
static void dt__copy_elements(char *to, const char *from, int64_t n, int64_t step, int64_t width)
{
    if (step == 1) memcpy(to, from, (size_t)(n * width));
    else if (width == 4)
        for (int64_t i = 0; i < n; i++) memcpy(to + 4 * i, from + 4 * i * step, 4);
    else if (width == 2)
        for (int64_t i = 0; i < n; i++) memcpy(to + 2 * i, from + 2 * i * step, 2);
    else
        for (int64_t i = 0; i < n; i++) to[i] = from[i * step];
}

/* Copies x (strided by `stride` along out's axes) to the op's result, for rows [begin, end) of its leading axes. */
static void dt__copy_strided(const dt__call *c, const int64_t *stride, int64_t begin, int64_t end)
{
    const dt_shape *shape = &c->n->shape;
    int last = shape->dims - 1;
    int64_t cols = last < 0 ? 1 : shape->n[last], step = last < 0 ? 1 : stride[last], width = dt__width(c->n);
    for (int64_t r = begin; r < end; r++) {
        int64_t from = 0, rest = r;
        for (int a = last - 1; a >= 0; a--) {
            from += rest % shape->n[a] * stride[a];
            rest /= shape->n[a];
        }
        dt__copy_elements((char *)c->out + r * cols * width, (const char *)c->in[0] + from * width, cols, step, width);
    }
}

static void dt__permute_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t own[DT_MAX_DIMS], stride[DT_MAX_DIMS], step = 1;
    const dt_shape *in = &dt__in(c, 0)->shape;
    (void)worker;
    for (int i = in->dims - 1; i >= 0; i--) own[i] = step, step *= in->n[i];
    for (int i = 0; i < in->dims; i++) stride[i] = own[c->n->i[i]];
    dt__copy_strided(c, stride, begin, end);
}
static void dt__run_permute(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__permute_rows); }

DT_API dt_tensor dt_slice(dt_graph *g, dt_tensor x, int axis, int64_t begin, int64_t end)
{
    dt__node n = dt__node_make(DT__OP_SLICE, dt__at(g, x)->shape, x, dt__tensor(0), dt__tensor(0));
    if (!x.id) return x;
    if (axis < 0) axis += n.shape.dims;
    if (axis < 0 || axis >= n.shape.dims || begin < 0 || begin >= end || end > n.shape.n[axis])
        return dt__poison(g, DT_E_SHAPE, "slice: [%lld, %lld) of axis %d is outside the tensor", (long long)begin,
                          (long long)end, axis);
    n.shape.n[axis] = end - begin;
    n.i[0] = axis;
    n.i[1] = begin;
    return dt__push(g, &n, NULL);
}

/* Slice, pad and concat move boxes: outer x (length * inner) elements at an offset along the larger tensor's axis. */
static void dt__copy_box(void *out, const void *x, const dt__node *small, const dt__node *large, int axis,
                         int64_t begin, int out_is_small)
{
    const dt_shape *s = &small->shape;
    int64_t outer = dt__span(s, 0, axis), inner = dt__span(s, axis + 1, s->dims) * dt__width(small);
    int64_t length = s->n[axis] * inner, pitch = large->shape.n[axis] * inner;
    for (int64_t o = 0; o < outer; o++) {
        char *to = (char *)out + (out_is_small ? o * length : o * pitch + begin * inner);
        const char *from = (const char *)x + (out_is_small ? o * pitch + begin * inner : o * length);
        memcpy(to, from, (size_t)length);
    }
}
static void dt__run_slice(const dt__call *c)
{
    dt__copy_box(c->out, c->in[0], c->n, dt__in(c, 0), (int)c->n->i[0], c->n->i[1], 1);
}

DT_API dt_tensor dt_pad(dt_graph *g, dt_tensor x, int axis, int64_t before, int64_t after)
{
    dt__node n = dt__node_make(DT__OP_PAD, dt__at(g, x)->shape, x, dt__tensor(0), dt__tensor(0));
    axis = dt__axis(g, "pad", x, axis);
    if (axis < 0) return dt__tensor(0);
    if (before < 0 || after < 0)
        return dt__poison(g, DT_E_SHAPE, "pad: %lld before and %lld after: they must be 0 or more (dt_slice cuts)",
                          (long long)before, (long long)after);
    n.shape.n[axis] += before + after;
    n.i[0] = axis, n.i[1] = before;
    return dt__push(g, &n, NULL);
}
static void dt__run_pad(const dt__call *c)
{
    memset(c->out, 0, 4 * (size_t)dt__floats(c->n));
    dt__copy_box(c->out, c->in[0], dt__in(c, 0), c->n, (int)c->n->i[0], c->n->i[1], 0);
}

/* Do b's type and shape fit behind a's along `axis`? */
static int dt__joins(const dt__node *a, const dt__node *b, int axis)
{
    dt_shape s = b->shape;
    if (s.dims == a->shape.dims) s.n[axis] = a->shape.n[axis];
    return a->dtype == b->dtype && dt__same_shape(&a->shape, &s);
}

/* Up to DT__MAX_IN tensors by one op; more as a concat of that many concats. */
static dt_tensor dt__concat(dt_graph *g, const dt_tensor *tensors, int64_t count, int axis)
{
    dt__node n;
    dt_tensor part[DT__MAX_IN];
    int64_t parts = dt__min(count, DT__MAX_IN);
    for (int64_t i = 0; i < parts; i++) {
        int64_t begin = i * count / parts, end = (i + 1) * count / parts;
        part[i] = end - begin == 1 ? tensors[begin] : dt__concat(g, tensors + begin, end - begin, axis);
        if (!part[i].id) return dt__tensor(0);
    }
    n = dt__node_make(DT__OP_CONCAT, dt__at(g, part[0])->shape, dt__tensor(0), dt__tensor(0), dt__tensor(0));
    n.i[0] = axis;
    n.shape.n[axis] = 0;
    for (int64_t i = 0; i < parts; i++) {
        n.in[n.inputs++] = part[i].id;
        n.shape.n[axis] += dt__at(g, part[i])->shape.n[axis];
    }
    return dt__push(g, &n, NULL);
}
DT_API dt_tensor dt_concat(dt_graph *g, const dt_tensor *tensors, int64_t count, int axis)
{
    char a[96], b[96];
    if (count < 1)
        return dt__poison(g, DT_E_SHAPE, "concat: there must be a tensor at least, not %lld", (long long)count);
    axis = dt__axis(g, "concat", tensors[0], axis);
    for (int64_t i = 0; axis >= 0 && i < count; i++) {
        const dt__node *first = dt__at(g, tensors[0]), *other = dt__at(g, tensors[i]);
        if (!tensors[i].id) return dt__tensor(0);
        if (!dt__joins(first, other, axis))
            return dt__poison(g, DT_E_SHAPE,
                              "concat: tensor %lld, %s %s, and the first, %s %s, may differ in axis %d only",
                              (long long)i, dt__format_of[other->dtype].name, dt__shape_text(&other->shape, a),
                              dt__format_of[first->dtype].name, dt__shape_text(&first->shape, b), axis);
    }
    return axis < 0 || count == 1 ? dt__tensor(axis < 0 ? 0 : tensors[0].id) : dt__concat(g, tensors, count, axis);
}
static void dt__run_concat(const dt__call *c)
{
    int64_t at = 0;
    for (int i = 0; i < c->n->inputs; i++) {
        dt__copy_box(c->out, c->in[i], dt__in(c, i), c->n, (int)c->n->i[0], at, 0);
        at += dt__in(c, i)->shape.n[c->n->i[0]];
    }
}

DT_API dt_result dt_chunk(dt_graph *g, dt_tensor x, int axis, int64_t count, dt_tensor *parts)
{
    int64_t each;
    for (int64_t i = 0; i < count; i++) parts[i] = dt__tensor(0);
    axis = dt__axis(g, "chunk", x, axis);
    if (axis < 0) return dt_graph_result(g);
    if (count < 1 || dt_dim(g, x, axis) % count) {
        dt__poison(g, DT_E_SHAPE,
                   "chunk: axis %d of size %lld cannot be cut into %lld equal parts: dt_slice cuts others", axis,
                   (long long)dt_dim(g, x, axis), (long long)count);
        return dt_graph_result(g);
    }
    each = dt_dim(g, x, axis) / count;
    for (int64_t i = 0; i < count; i++) parts[i] = dt_slice(g, x, axis, i * each, (i + 1) * each);
    return dt_graph_result(g);
}

DT_API dt_tensor dt_detach(dt_graph *g, dt_tensor x)
{
    if (!x.id) return x;
    return dt__push_op(g, DT__OP_DETACH, dt__at(g, x)->shape, x, dt__tensor(0), dt__tensor(0));
}

DT_API dt_tensor dt_full(dt_graph *g, dt_shape shape, float value)
{
    dt__node n = dt__node_make(DT__OP_FULL, shape, dt__tensor(0), dt__tensor(0), dt__tensor(0));
    char text[96];
    if (!dt__shape_ok(&shape))
        return dt__poison(g, DT_E_SHAPE, "full: shape %s has an axis below 1 or too many axes",
                          dt__shape_text(&shape, text));
    n.f = value;
    return dt__push(g, &n, NULL);
}
static void dt__run_full(const dt__call *c)
{
    for (int64_t i = 0; i < dt__count(c->n); i++) c->out[i] = c->n->f;
}

DT_API dt_tensor dt_cast(dt_graph *g, dt_tensor x, dt_dtype dtype)
{
    dt__node n = dt__node_make(DT__OP_CAST, dt__at(g, x)->shape, x, dt__tensor(0), dt__tensor(0));
    if (!x.id) return x;
    if (!dt__is_dtype((int)dtype)) return dt__poison(g, DT_E_USAGE, "cast: %d is no dt_dtype", (int)dtype);
    if ((int)dtype == dt__at(g, x)->dtype) return x;
    n.dtype = (int32_t)dtype;
    return dt__push(g, &n, NULL);
}
static void dt__cast_part(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt__node *x = dt__in(c, 0);
    (void)worker;
    c->env->k->convert(c->n->dtype, (char *)c->out + begin * dt__width(c->n), x->dtype,
                       (const char *)c->in[0] + begin * dt__width(x), end - begin);
}
static void dt__run_cast(const dt__call *c) { dt__split(c, dt__count(c->n), 4096, dt__cast_part); }

DT_API dt_tensor dt_expand(dt_graph *g, dt_tensor x, dt_shape shape)
{
    dt_shape both;
    char a[96], b[96];
    if (!x.id) return x;
    if (!dt__shape_ok(&shape) || !dt__broadcast(&dt__at(g, x)->shape, &shape, &both) || !dt__same_shape(&both, &shape))
        return dt__poison(g, DT_E_SHAPE, "expand: %s does not broadcast to %s", dt__shape_text(&dt__at(g, x)->shape, a),
                          dt__shape_text(&shape, b));
    return dt__push_op(g, DT__OP_EXPAND, shape, x, dt__tensor(0), dt__tensor(0));
}
static void dt__expand_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t stride[DT_MAX_DIMS];
    (void)worker;
    dt__strides(&dt__in(c, 0)->shape, &c->n->shape, stride);
    dt__copy_strided(c, stride, begin, end);
}
static void dt__run_expand(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__expand_rows); }

DT_API dt_tensor dt_combine(dt_graph *g, dt_tensor x)
{
    dt_shape s = dt__at(g, x)->shape;
    if (!x.id) return x;
    if (s.dims < 1 || !dt__is_pow2(s.n[0]))
        return dt__poison(g, DT_E_SHAPE, "combine: axis 0 holds %lld parts; 1, 2, 4, .. are possible",
                          (long long)(s.dims ? s.n[0] : 0));
    memmove(s.n, s.n + 1, sizeof(int64_t) * (size_t)(s.dims - 1));
    s.dims--;
    return dt__push_op(g, DT__OP_COMBINE, s, x, dt__tensor(0), dt__tensor(0));
}

/* (1,rows,C): this rank's slices of the B*T rows of (B,T,C), while rows are split. */
static dt_shape dt__rows_shape(const dt_graph *g, const dt_shape *s)
{
    return dt_shape3(1, dt__part_of(g, dt__span(s, 0, s->dims - 1)), s->n[s->dims - 1]);
}
static int dt__rows_divide(dt_graph *g, const dt_shape *s)
{
    return dt__cuts(g, "rows of a unit of work", dt__span(s, 0, s->dims - 1) / dt__leaves(g));
}
/* dt__tp.combine leaf by leaf, where the ranks of a tensor group have equal parts of each leaf's rows. */
static void dt__combine_rows(const dt__call *c, int kind, float *to, int64_t to_count, const float *from, int64_t count)
{
    int64_t leaves = dt__leaves(c->g);
    for (int64_t l = 0; l < leaves; l++)
        c->env->tp.combine(c->env->tp.user, kind, to + l * (to_count / leaves), from + l * (count / leaves),
                           count / leaves);
}

/* Sums axis 0 of x (own shards, ..) over the tensor shards of all ranks. `scatter`: where rows are split, of the sums a
 * rank keeps its own rows. i: over ranks, scatter. A second output holds this rank's sums before they are scattered. */
static dt_tensor dt__combine_shards(dt_graph *g, dt_tensor x, int scatter)
{
    dt_shape s = dt__at(g, x)->shape, all;
    dt__node n;
    if (!x.id) return x;
    scatter = scatter && dt__splits_rows(g);
    memmove(s.n, s.n + 1, sizeof(int64_t) * (size_t)(--s.dims));
    all = s;
    if (scatter && !dt__rows_divide(g, &s)) return dt__tensor(0);
    if (scatter) s = dt__rows_shape(g, &s);
    n = dt__node_make(DT__OP_COMBINE, s, x, dt__tensor(0), dt__tensor(0));
    n.i[0] = dt__own(g) < g->tensor_shards, n.i[1] = scatter;
    return dt__push(g, &n, scatter && dt__own(g) > 1 ? &all : NULL);
}

/* All rows (B,T,C) of the unit from every rank's own (1,rows,C); x itself where rows are not split. Products that share
 * the result flow the gradient of a rank's own rows to it. */
static dt_tensor dt__all_rows(dt_graph *g, dt_tensor x)
{
    dt_shape s = dt__at(g, x)->shape;
    if (!x.id || !dt__splits_rows(g)) return x;
    return dt__push_op(g, DT__OP_ALL_ROWS, dt_shape3(g->samples, g->positions, s.n[s.dims - 1]), x, dt__tensor(0),
                       dt__tensor(0));
}
/* The same as (B*T,C). */
static dt_tensor dt__all_rows_matrix(dt_graph *g, dt_tensor x)
{
    int64_t cols = dt_dim(g, x, -1);
    if (!x.id || !dt__splits_rows(g)) return dt__as_matrix(g, x);
    return dt__push_op(g, DT__OP_ALL_ROWS, dt_shape2(g->samples * g->positions, cols), x, dt__tensor(0), dt__tensor(0));
}
/* All rows for work that every rank does alike: its gradient is whole on each, and a rank takes its own rows of it. */
static dt_tensor dt__same_rows(dt_graph *g, dt_tensor x)
{
    if (!x.id || dt__at(g, x)->op != DT__OP_ALL_ROWS) return x;
    return dt__push_op(g, DT__OP_SAME_ROWS, dt__at(g, x)->shape, x, dt__tensor(0), dt__tensor(0));
}
static void dt__run_all_rows(const dt__call *c)
{
    dt__combine_rows(c, DT__TP_GATHER, c->out, dt__count(c->n), c->in[0], dt__count(dt__in(c, 0)));
}

/* A rank's own rows of x (B,T,C), which is the same on all ranks. */
static dt_tensor dt__own_rows(dt_graph *g, dt_tensor x)
{
    dt_shape s = dt__at(g, x)->shape;
    if (!x.id || !dt__splits_rows(g)) return x;
    if (!dt__rows_divide(g, &s)) return dt__tensor(0);
    return dt__push_op(g, DT__OP_OWN_ROWS, dt__rows_shape(g, &s), x, dt__tensor(0), dt__tensor(0));
}
static void dt__run_own_rows(const dt__call *c)
{
    int64_t leaves = dt__leaves(c->g), own = dt__count(c->n) / leaves, all = dt__count(dt__in(c, 0)) / leaves;
    const float *from = c->in[0] + c->g->first_shard * (own / dt__own(c->g));
    for (int64_t l = 0; l < leaves; l++) memcpy(c->out + l * own, from + l * all, 4 * (size_t)own);
}

/* out = TREE over `parts` blocks of n floats that lie `stride` apart: pairs by index, then pairs of pairs. */
static void dt__combine_part(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt__node *in = dt__in(c, 0);
    float *out = c->n->aux ? c->aux : c->out;
    (void)worker;
    for (; begin < end; begin += 1024)
        dt__tree_sum(c->env->k, out + begin, c->in[0] + begin, in->shape.n[0], dt__count(in) / in->shape.n[0],
                     dt__min(1024, end - begin));
}
static void dt__run_combine(const dt__call *c)
{
    const dt__node *in = dt__in(c, 0);
    const dt__tp *tp = &c->env->tp;
    int64_t parts = in->shape.n[0], count = dt__count(in) / parts;
    const float *sums = parts == 1 ? c->in[0] : c->n->aux ? c->aux : c->out;
    if (parts > 1 || !c->n->i[0]) dt__split(c, count, 4096, dt__combine_part);
    if (c->n->i[1]) dt__combine_rows(c, DT__TP_SCATTER, c->out, dt__count(c->n), sums, count);
    else if (c->n->i[0]) tp->combine(tp->user, DT__TP_SUM, c->out, sums, count);
}

/* ---- elementwise ops --------------------------------------------------------------------------- */

/* A scalar, which broadcasts. */
static dt_tensor dt__constant(dt_graph *g, float value) { return dt_full(g, dt_shape0(), value); }

static dt_tensor dt__unary_op(dt_graph *g, int op, dt_tensor x, float s)
{
    dt__node n = dt__node_make(op, dt__at(g, x)->shape, x, dt__tensor(0), dt__tensor(0));
    if (!x.id) return x;
    n.f = s;
    return dt__push(g, &n, NULL);
}
DT_API dt_tensor dt_neg(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_NEG, x, 0.0f); }
DT_API dt_tensor dt_scale(dt_graph *g, dt_tensor x, float s) { return dt__unary_op(g, DT__OP_SCALE, x, s); }
DT_API dt_tensor dt_exp(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_EXP, x, 0.0f); }
DT_API dt_tensor dt_log(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_LOG, x, 0.0f); }
DT_API dt_tensor dt_tanh(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_TANH, x, 0.0f); }
DT_API dt_tensor dt_sqrt(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_SQRT, x, 0.0f); }
DT_API dt_tensor dt_rsqrt(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_RSQRT, x, 0.0f); }
DT_API dt_tensor dt_gelu(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_GELU, x, 0.0f); }
DT_API dt_tensor dt_gelu_erf(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_GELU_ERF, x, 0.0f); }
DT_API dt_tensor dt_silu(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_SILU, x, 0.0f); }
DT_API dt_tensor dt_sigmoid(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_SIGMOID, x, 0.0f); }
DT_API dt_tensor dt_softplus(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_SOFTPLUS, x, 0.0f); }
DT_API dt_tensor dt_relu(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_RELU, x, 0.0f); }
DT_API dt_tensor dt_abs(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_ABS, x, 0.0f); }
DT_API dt_tensor dt_sign(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_SIGN, x, 0.0f); }
DT_API dt_tensor dt_floor(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_FLOOR, x, 0.0f); }
DT_API dt_tensor dt_ceil(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_CEIL, x, 0.0f); }
DT_API dt_tensor dt_round(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_ROUND, x, 0.0f); }
DT_API dt_tensor dt_square(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_SQUARE, x, 0.0f); }
DT_API dt_tensor dt_reciprocal(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_RECIPROCAL, x, 0.0f); }
DT_API dt_tensor dt_exp2(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_EXP2, x, 0.0f); }
DT_API dt_tensor dt_log2(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_LOG2, x, 0.0f); }
DT_API dt_tensor dt_expm1(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_EXPM1, x, 0.0f); }
DT_API dt_tensor dt_log1p(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_LOG1P, x, 0.0f); }
DT_API dt_tensor dt_erf(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_ERF, x, 0.0f); }
DT_API dt_tensor dt_sin(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_SIN, x, 0.0f); }
DT_API dt_tensor dt_cos(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_COS, x, 0.0f); }
DT_API dt_tensor dt_tan(dt_graph *g, dt_tensor x) { return dt__unary_op(g, DT__OP_TAN, x, 0.0f); }

static void dt__unary_part(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    c->env->k->unary(c->n->op, c->out + begin, c->in[0] + begin, end - begin, c->n->f);
}
static void dt__run_unary(const dt__call *c) { dt__split(c, dt__count(c->n), 4096, dt__unary_part); }

static dt_tensor dt__binary_op(dt_graph *g, int op, dt_tensor a, dt_tensor b)
{
    dt_shape s;
    char x[96], y[96];
    if (!a.id || !b.id) return dt__tensor(0);
    if (!dt__broadcast(&dt__at(g, a)->shape, &dt__at(g, b)->shape, &s))
        return dt__poison(
            g, DT_E_SHAPE, "%s: shapes %s and %s do not broadcast: aligned at the last axis, sizes must be equal or 1",
            dt__op_of(op)->name, dt__shape_text(&dt__at(g, a)->shape, x), dt__shape_text(&dt__at(g, b)->shape, y));
    return dt__push_op(g, op, s, a, b, dt__tensor(0));
}
DT_API dt_tensor dt_add(dt_graph *g, dt_tensor a, dt_tensor b) { return dt__binary_op(g, DT__OP_ADD, a, b); }
DT_API dt_tensor dt_sub(dt_graph *g, dt_tensor a, dt_tensor b) { return dt__binary_op(g, DT__OP_SUB, a, b); }
DT_API dt_tensor dt_mul(dt_graph *g, dt_tensor a, dt_tensor b) { return dt__binary_op(g, DT__OP_MUL, a, b); }
DT_API dt_tensor dt_div(dt_graph *g, dt_tensor a, dt_tensor b) { return dt__binary_op(g, DT__OP_DIV, a, b); }
DT_API dt_tensor dt_pow(dt_graph *g, dt_tensor a, dt_tensor b) { return dt__binary_op(g, DT__OP_POW, a, b); }
DT_API dt_tensor dt_maximum(dt_graph *g, dt_tensor a, dt_tensor b) { return dt__binary_op(g, DT__OP_MAXIMUM, a, b); }
DT_API dt_tensor dt_minimum(dt_graph *g, dt_tensor a, dt_tensor b) { return dt__binary_op(g, DT__OP_MINIMUM, a, b); }
DT_API dt_tensor dt_equal(dt_graph *g, dt_tensor a, dt_tensor b) { return dt__binary_op(g, DT__OP_EQUAL, a, b); }
DT_API dt_tensor dt_not_equal(dt_graph *g, dt_tensor a, dt_tensor b)
{
    return dt__binary_op(g, DT__OP_NOT_EQUAL, a, b);
}
DT_API dt_tensor dt_less(dt_graph *g, dt_tensor a, dt_tensor b) { return dt__binary_op(g, DT__OP_LESS, a, b); }
DT_API dt_tensor dt_less_equal(dt_graph *g, dt_tensor a, dt_tensor b)
{
    return dt__binary_op(g, DT__OP_LESS_EQUAL, a, b);
}
DT_API dt_tensor dt_greater(dt_graph *g, dt_tensor a, dt_tensor b) { return dt__binary_op(g, DT__OP_GREATER, a, b); }
DT_API dt_tensor dt_greater_equal(dt_graph *g, dt_tensor a, dt_tensor b)
{
    return dt__binary_op(g, DT__OP_GREATER_EQUAL, a, b);
}

DT_API dt_tensor dt_select(dt_graph *g, dt_tensor mask, dt_tensor a, dt_tensor b)
{
    dt_shape both, s;
    char x[96], y[96], z[96];
    if (!mask.id || !a.id || !b.id) return dt__tensor(0);
    if (!dt__broadcast(&dt__at(g, a)->shape, &dt__at(g, b)->shape, &both) ||
        !dt__broadcast(&dt__at(g, mask)->shape, &both, &s))
        return dt__poison(g, DT_E_SHAPE,
                          "select: shapes %s, %s and %s do not broadcast: aligned at the last axis, sizes must be "
                          "equal or 1",
                          dt__shape_text(&dt__at(g, mask)->shape, x), dt__shape_text(&dt__at(g, a)->shape, y),
                          dt__shape_text(&dt__at(g, b)->shape, z));
    return dt__push_op(g, DT__OP_SELECT, s, mask, a, b);
}

/* The constants come first: of equal values both ops take the second operand, which is x and has the gradient. */
DT_API dt_tensor dt_clamp(dt_graph *g, dt_tensor x, float low, float high)
{
    if (!x.id) return x;
    if (!(low <= high))
        return dt__poison(g, DT_E_USAGE, "clamp: the lower bound %g is above the upper one, %g", (double)low,
                          (double)high);
    return dt_minimum(g, dt__constant(g, high), dt_maximum(g, dt__constant(g, low), x));
}

/* The longest run of last axes, [*axis, dims), that every input has whole or repeats one element over; step[i] is 1 or
 * 0 accordingly. Returns its number of elements. */
static int64_t dt__broadcast_run(const dt__call *c, int *axis, int step[DT__MAX_IN])
{
    const dt_shape *s = &c->n->shape;
    int64_t run = 1;
    for (int i = 0; i < c->n->inputs; i++) step[i] = 0;
    for (*axis = s->dims; *axis > 0; (*axis)--) {
        int fits = 1, moves[DT__MAX_IN];
        if (s->n[*axis - 1] == 1) continue;
        for (int i = 0; i < c->n->inputs; i++) {
            const dt_shape *in = &dt__in(c, i)->shape;
            int at = *axis - 1 - (s->dims - in->dims);
            moves[i] = at >= 0 && in->n[at] != 1;
            fits = fits && (run == 1 || moves[i] == step[i]);
        }
        if (!fits) break;
        for (int i = 0; i < c->n->inputs; i++) step[i] = moves[i];
        run *= s->n[*axis - 1];
    }
    return run;
}

/* n elements of a binary op or of select. */
static void dt__elementwise(const dt__call *c, float *out, const float *const in[DT__MAX_IN],
                            const int step[DT__MAX_IN], int64_t n)
{
    if (c->n->inputs == 3) c->env->k->select(out, in[0], step[0], in[1], step[1], in[2], step[2], n);
    else c->env->k->binary(c->n->op, out, in[0], step[0], in[1], step[1], n);
}

/* Every input is whole or a single element. */
static void dt__elementwise_part(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const float *in[DT__MAX_IN];
    int step[DT__MAX_IN], axis;
    (void)worker;
    dt__broadcast_run(c, &axis, step);
    for (int i = 0; i < c->n->inputs; i++) in[i] = c->in[i] + begin * step[i];
    dt__elementwise(c, c->out + begin, in, step, end - begin);
}

/* Broadcasting: rows are runs. */
static void dt__elementwise_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t stride[DT__MAX_IN][DT_MAX_DIMS], run;
    int step[DT__MAX_IN], first;
    (void)worker;
    run = dt__broadcast_run(c, &first, step);
    for (int i = 0; i < c->n->inputs; i++) dt__strides(&dt__in(c, i)->shape, &c->n->shape, stride[i]);
    for (int64_t r = begin; r < end; r++) {
        const float *in[DT__MAX_IN];
        int64_t rest = r;
        for (int i = 0; i < c->n->inputs; i++) in[i] = c->in[i];
        for (int axis = first - 1; axis >= 0; axis--) {
            int64_t at = rest % c->n->shape.n[axis];
            rest /= c->n->shape.n[axis];
            for (int i = 0; i < c->n->inputs; i++) in[i] += at * stride[i][axis];
        }
        dt__elementwise(c, c->out + r * run, in, step, run);
    }
}
/* Input 1 is a vector that is stored in shards: columns of input 0. */
static void dt__shard_columns(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt__param *p = dt__cut_param(c->g, dt__in(c, 1));
    int64_t cols = dt__cols(c->n), width = dt__param_width(p, c->g->tensor_shards);
    int64_t step = dt__shard_step(p, c->g->tensor_shards);
    (void)worker;
    for (int64_t r = begin; r < end; r++)
        for (int64_t at = 0; at < cols; at += width)
            c->env->k->binary(c->n->op, c->out + r * cols + at, c->in[0] + r * cols + at, 1,
                              c->in[1] + at / width * step, 1, width);
}

/* Binary ops and select. */
static void dt__run_binary(const dt__call *c)
{
    int step[DT__MAX_IN], axis;
    int64_t run, n = dt__count(c->n);
    if (c->n->inputs == 2 && dt__cut_param(c->g, dt__in(c, 1)) && dt__own(c->g) > 1) {
        dt__split(c, dt__rows(c->n), 8, dt__shard_columns);
        return;
    }
    run = dt__broadcast_run(c, &axis, step);
    if (run == n) dt__split(c, n, 4096, dt__elementwise_part);
    else dt__split(c, n / run, 8, dt__elementwise_rows);
}

/* ---- reductions -------------------------------------------------------------------------------- */

/* A whole-tensor sum: blocks of 1024 elements, then TREE (R5). */
static float dt__whole_sum(const dt__kernels *k, const float *x, int64_t n)
{
    int64_t half = DT__BLOCK;
    if (n <= DT__BLOCK) return k->row_sum(x, n);
    while (2 * half < n) half *= 2;
    return dt__whole_sum(k, x, half) + dt__whole_sum(k, x + half, n - half);
}

static void dt__row_sum_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t cols = dt__count(dt__in(c, 0)) / dt__count(c->n);
    (void)worker;
    for (int64_t r = begin; r < end; r++) c->out[r] = c->env->k->row_sum(c->in[0] + r * cols, cols);
}
static void dt__run_row_sum(const dt__call *c)
{
    if (!c->n->shape.dims) c->out[0] = dt__whole_sum(c->env->k, c->in[0], dt__count(dt__in(c, 0)));
    else dt__split(c, dt__count(c->n), 16, dt__row_sum_rows);
}

/* A gradient may be stored in shards of columns, or be in row slices. */
static void dt__col_sum_cols(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt__param *p = dt__cut_param(c->g, c->n);
    int64_t cols = dt__count(c->n), slices = dt__slices(c), rows = dt__count(dt__in(c, 0)) / cols / slices;
    int64_t width = p ? dt__param_width(p, c->g->tensor_shards) : cols;
    int64_t step = p ? dt__shard_step(p, c->g->tensor_shards) : 0;
    (void)worker;
    for (int64_t n; begin < end; begin += n) {
        n = dt__min(end, (begin / width + 1) * width) - begin;
        for (int64_t v = 0; v < slices; v++) {
            float *out = dt__slice(c, v) + begin / width * step + begin % width;
            if (c->fresh) memset(out, 0, 4 * (size_t)n);
            c->env->k->col_sum(out, c->in[0] + v * rows * cols + begin, rows, n, cols);
        }
    }
}
static void dt__run_col_sum(const dt__call *c) { dt__split(c, dt__count(c->n), 64, dt__col_sum_cols); }

static void dt__row_max_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t cols = dt__count(dt__in(c, 0)) / dt__count(c->n);
    (void)worker;
    for (int64_t r = begin; r < end; r++) c->out[r] = c->env->k->row_max(c->in[0] + r * cols, cols);
}
static void dt__run_row_max(const dt__call *c) { dt__split(c, dt__count(c->n), 16, dt__row_max_rows); }

/* Where a row's maximum comes first. */
static int64_t dt__first_max(const float *x, float max, int64_t cols)
{
    int64_t i = 0;
    while (i < cols - 1 && x[i] < max) i++;
    return i;
}

/* in: x (rows,cols), y = max (rows), dy (rows). */
static void dt__max_grad_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t cols = dt__count(c->n) / dt__count(dt__in(c, 1));
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        memset(c->out + r * cols, 0, 4 * (size_t)cols);
        c->out[r * cols + dt__first_max(c->in[0] + r * cols, c->in[1][r], cols)] = c->in[2][r];
    }
}
static void dt__run_max_grad(const dt__call *c) { dt__split(c, dt__count(dt__in(c, 1)), 16, dt__max_grad_rows); }

static void dt__argmax_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t cols = dt__count(dt__in(c, 0)) / dt__count(c->n);
    int32_t *out = (int32_t *)(void *)c->out;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *x = c->in[0] + r * cols;
        out[r] = (int32_t)dt__first_max(x, c->env->k->row_max(x, cols), cols);
    }
}
static void dt__run_argmax(const dt__call *c) { dt__split(c, dt__count(c->n), 16, dt__argmax_rows); }

/* Leading axes alone are a column sum, in row order; any others are permuted last and are an op over rows (R5). */
static dt_tensor dt__reduce_rows(dt_graph *g, int op, dt_tensor x, unsigned mask)
{
    dt_shape s = dt__at(g, x)->shape, out = dt_shape0();
    int order[DT_MAX_DIMS], count = 0, reduced = 0, moved = 0;
    dt__node n;
    for (int i = 0; i < s.dims; i++)
        if (!(mask >> i & 1u)) out.n[count] = s.n[i], order[count++] = i;
    out.dims = count;
    if (op == DT__OP_ROW_SUM && count && mask == (1u << (s.dims - count)) - 1u)
        return dt__push_op(g, DT__OP_COL_SUM, out, x, dt__tensor(0), dt__tensor(0));
    for (int i = 0; i < s.dims; i++)
        if (mask >> i & 1u) order[count + reduced++] = i;
    for (int i = 0; i < s.dims; i++) moved |= order[i] != i;
    if (moved) x = dt_permute(g, x, order);
    n = dt__node_make(op, out, x, dt__tensor(0), dt__tensor(0));
    if (op == DT__OP_ARGMAX) n.dtype = DT_I32;
    return dt__push(g, &n, NULL);
}

static dt_tensor dt__reduce_axes(dt_graph *g, int op, dt_tensor x, unsigned mask, const char *name)
{
    dt_shape s = dt__at(g, x)->shape;
    int keep = (mask & DT_KEEP) != 0;
    if (!x.id) return x;
    mask &= ~DT_KEEP;
    if (mask == DT_ALL) mask = (1u << s.dims) - 1u;
    if (mask >> s.dims)
        return dt__poison(g, DT_E_SHAPE, "%s: axis mask 0x%x names an axis that a tensor of %d axes does not have",
                          name, mask, s.dims);
    if (!mask && op == DT__OP_ARGMAX) return dt__poison(g, DT_E_SHAPE, "%s: the axis mask names no axis", name);
    if (!mask) return x;
    x = dt__reduce_rows(g, op, x, mask);
    for (int i = 0; i < s.dims; i++)
        if (mask >> i & 1u) s.n[i] = 1;
    return keep ? dt_reshape(g, x, s) : x;
}
DT_API dt_tensor dt_sum(dt_graph *g, dt_tensor x, unsigned axes)
{
    return dt__reduce_axes(g, DT__OP_ROW_SUM, x, axes, "sum");
}
DT_API dt_tensor dt_max(dt_graph *g, dt_tensor x, unsigned axes)
{
    return dt__reduce_axes(g, DT__OP_ROW_MAX, x, axes, "max");
}
DT_API dt_tensor dt_min(dt_graph *g, dt_tensor x, unsigned axes)
{
    return dt_neg(g, dt__reduce_axes(g, DT__OP_ROW_MAX, dt_neg(g, x), axes, "min"));
}
DT_API dt_tensor dt_argmax(dt_graph *g, dt_tensor x, unsigned axes)
{
    return dt__reduce_axes(g, DT__OP_ARGMAX, x, axes, "argmax");
}

/* sum / (terms - less), terms being the elements that went into one sum. */
static dt_tensor dt__mean(dt_graph *g, dt_tensor x, unsigned axes, int64_t less, const char *name)
{
    dt_tensor sum = dt__reduce_axes(g, DT__OP_ROW_SUM, x, axes, name);
    int64_t terms;
    if (!sum.id) return sum;
    terms = dt__count(dt__at(g, x)) / dt__count(dt__at(g, sum));
    if (terms <= less)
        return dt__poison(g, DT_E_SHAPE, "%s: the unbiased form needs two elements at least: ask for the biased one",
                          name);
    return dt_scale(g, sum, 1.0f / (float)(terms - less));
}
DT_API dt_tensor dt_mean(dt_graph *g, dt_tensor x, unsigned axes) { return dt__mean(g, x, axes, 0, "mean"); }
DT_API dt_tensor dt_var(dt_graph *g, dt_tensor x, unsigned axes, int unbiased)
{
    x = dt_sub(g, x, dt__mean(g, x, axes | DT_KEEP, 0, "var"));
    return dt__mean(g, dt_mul(g, x, x), axes, unbiased != 0, "var");
}

/* The maximum is a constant to the gradient, which is exp(x - max) / sum. */
DT_API dt_tensor dt_logsumexp(dt_graph *g, dt_tensor x, unsigned axes)
{
    dt_tensor max = dt_detach(g, dt__reduce_axes(g, DT__OP_ROW_MAX, x, axes | DT_KEEP, "logsumexp"));
    dt_tensor sum = dt_log(g, dt_sum(g, dt_exp(g, dt_sub(g, x, max)), axes));
    return sum.id ? dt_add(g, sum, dt_reshape(g, max, dt_shape_of(g, sum))) : sum;
}

/* ---- softmax: rows by the kernels' row and elementwise functions, which keep a row in the cache -------- */

/* op over `axis`, which changes places with the last one for it. */
static dt_tensor dt__along(dt_graph *g, int op, dt_tensor x, int axis, const char *name)
{
    int order[DT_MAX_DIMS], last = dt__at(g, x)->shape.dims - 1;
    axis = dt__axis(g, name, x, axis);
    if (axis < 0) return dt__tensor(0);
    for (int i = 0; i <= last; i++) order[i] = i;
    order[axis] = last, order[last] = axis;
    if (axis != last) x = dt_permute(g, x, order);
    x = dt__push_op(g, op, dt_shape_of(g, x), x, dt__tensor(0), dt__tensor(0));
    return axis != last && x.id ? dt_permute(g, x, order) : x;
}
DT_API dt_tensor dt_softmax(dt_graph *g, dt_tensor x, int axis)
{
    return dt__along(g, DT__OP_SOFTMAX, x, axis, "softmax");
}
DT_API dt_tensor dt_log_softmax(dt_graph *g, dt_tensor x, int axis)
{
    return dt__along(g, DT__OP_LOG_SOFTMAX, x, axis, "log_softmax");
}

static void dt__softmax_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt__kernels *k = c->env->k;
    int64_t cols = dt__cols(c->n);
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *x = c->in[0] + r * cols;
        float *y = c->out + r * cols, max = k->row_max(x, cols), sum;
        k->binary(DT__OP_SUB, y, x, 1, &max, 0, cols);
        k->unary(DT__OP_EXP, y, y, cols, 0.0f);
        sum = k->row_sum(y, cols);
        k->binary(DT__OP_DIV, y, y, 1, &sum, 0, cols);
    }
}
static void dt__run_softmax(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__softmax_rows); }

/* in: y, dy. dx = (dy - sum(dy y)) y. */
static void dt__softmax_grad_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt__kernels *k = c->env->k;
    int64_t cols = dt__cols(c->n);
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *y = c->in[0] + r * cols, *dy = c->in[1] + r * cols;
        float *dx = c->out + r * cols, dot = k->row_dot(dy, y, cols);
        k->binary(DT__OP_SUB, dx, dy, 1, &dot, 0, cols);
        k->binary(DT__OP_MUL, dx, dx, 1, y, 1, cols);
    }
}
static void dt__run_softmax_grad(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__softmax_grad_rows); }

static void dt__log_softmax_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt__kernels *k = c->env->k;
    int64_t cols = dt__cols(c->n);
    float *row = (float *)dt__scratch(c->env->pool, worker);
    for (int64_t r = begin; r < end; r++) {
        const float *x = c->in[0] + r * cols;
        float *y = c->out + r * cols, max = k->row_max(x, cols), sum;
        k->binary(DT__OP_SUB, y, x, 1, &max, 0, cols);
        k->unary(DT__OP_EXP, row, y, cols, 0.0f);
        sum = k->row_sum(row, cols);
        k->unary(DT__OP_LOG, &sum, &sum, 1, 0.0f);
        k->binary(DT__OP_SUB, y, y, 1, &sum, 0, cols);
    }
}
static void dt__run_log_softmax(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__log_softmax_rows); }

/* in: y, dy. dx = dy - exp(y) sum(dy). */
static void dt__log_softmax_grad_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt__kernels *k = c->env->k;
    int64_t cols = dt__cols(c->n);
    float *row = (float *)dt__scratch(c->env->pool, worker);
    for (int64_t r = begin; r < end; r++) {
        const float *y = c->in[0] + r * cols, *dy = c->in[1] + r * cols;
        float sum = k->row_sum(dy, cols);
        k->unary(DT__OP_EXP, row, y, cols, 0.0f);
        k->unary(DT__OP_SCALE, row, row, cols, sum);
        k->binary(DT__OP_SUB, c->out + r * cols, dy, 1, row, 1, cols);
    }
}
static void dt__run_log_softmax_grad(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__log_softmax_grad_rows); }

/* ---- matrix products ----------------------------------------------------------------------------- */

/* Shape of the product of a (..,M,K) and b (..,K,N), their transposes noted, leading axes broadcast; 0: none. */
static int dt__matmul_shape(const dt_shape *a, const dt_shape *b, int ta, int tb, dt_shape *out)
{
    dt_shape la = *a, lb = *b;
    if (a->dims < 2 || b->dims < 2 || a->n[a->dims - 1 - ta] != b->n[b->dims - 2 + tb]) return 0;
    la.dims -= 2;
    lb.dims -= 2;
    if (!dt__broadcast(&la, &lb, out)) return 0;
    out->n[out->dims++] = a->n[a->dims - 2 + ta];
    out->n[out->dims++] = b->n[b->dims - 1 - tb];
    return 1;
}

/* i: transpose_a, transpose_b, parts of K (0: an ordinary product), parts of the input gradient (0: likewise), place
 * among products that share a (dt__columns), and how many these are (0: one alone). */
static dt_tensor dt__matmul(dt_graph *g, dt_tensor a, dt_tensor b, int ta, int tb, int64_t parts, int64_t grad_parts)
{
    dt_shape sa = dt__at(g, a)->shape, sb = dt__at(g, b)->shape;
    dt__node n = dt__node_make(DT__OP_MATMUL, sa, a, b, dt__tensor(0));
    char x[96], y[96];
    int64_t k;
    if (!a.id || !b.id) return dt__tensor(0);
    if (!dt__matmul_shape(&sa, &sb, ta, tb, &n.shape))
        return dt__poison(
            g, DT_E_SHAPE,
            "matmul: %s%s and %s%s do not fit: inner sizes must be equal, leading axes equal, 1 or absent",
            dt__shape_text(&sa, x), ta ? "^T" : "", dt__shape_text(&sb, y), tb ? "^T" : "");
    k = sa.n[sa.dims - 1 - ta];
    if (parts && sa.dims == DT_MAX_DIMS)
        return dt__poison(g, DT_E_SHAPE, "matmul: a row-parallel product has at most %d axes", DT_MAX_DIMS - 1);
    if (parts && k % parts && !dt__cut_param(g, dt__at(g, b)))
        return dt__poison(g, DT_E_SHAPE, "matmul: %lld does not divide into %lld tensor shards", (long long)k,
                          (long long)parts);
    if (parts) {
        memmove(n.shape.n + 1, n.shape.n, sizeof(int64_t) * (size_t)n.shape.dims);
        n.shape.n[0] = parts;
        n.shape.dims++;
    }
    n.i[0] = ta, n.i[1] = tb, n.i[2] = parts, n.i[3] = grad_parts;
    return dt__push(g, &n, NULL);
}

/* A vector as a matrix of one row, or one column. */
static dt_tensor dt__vector_as_matrix(dt_graph *g, dt_tensor x, int column)
{
    int64_t n = dt_dim(g, x, 0);
    return dt__at(g, x)->shape.dims == 1 ? dt_reshape(g, x, column ? dt_shape2(n, 1) : dt_shape2(1, n)) : x;
}

DT_API dt_tensor dt_matmul(dt_graph *g, dt_tensor a, dt_tensor b, int transpose_a, int transpose_b)
{
    int row = dt__at(g, a)->shape.dims == 1, column = dt__at(g, b)->shape.dims == 1;
    dt_tensor y = dt__matmul(g, dt__vector_as_matrix(g, a, 0), dt__vector_as_matrix(g, b, 1), !row && transpose_a,
                             !column && transpose_b, 0, 0);
    dt_shape s = dt__at(g, y)->shape;
    if (!y.id || (!row && !column)) return y;
    if (row && !column) s.n[s.dims - 2] = s.n[s.dims - 1];
    s.dims -= row + column;
    return dt_reshape(g, y, s);
}

/* A product one of whose operands is stored in shards: b, a weight, or c, its gradient. The shards cut one of m, n and
 * k, and the others' columns or rows with it; cut along k, each makes a part of its own. */
static void dt__run_cut_product(const dt__call *c, dt__gemm *job, const dt__param *b, const dt__param *of_c)
{
    const dt__param *p = b ? b : of_c;
    const dt__gemm all = *job;
    int64_t vt = c->g->tensor_shards, width = dt__param_width(p, vt), step = dt__shard_step(p, vt);
    int along_m = !b && !p->cut, along_n = b ? p->cut != (int)c->n->i[1] : p->cut, along_k = !along_m && !along_n;
    int64_t *size = along_m ? &job->m : along_n ? &job->n : &job->k, total = *size;
    if (b && p->cut) *(c->n->i[1] ? &job->bcs : &job->brs) = width;
    if (!b && p->cut) job->ldc = width;
    for (int64_t v = 0; v * width < total; v++) {
        int64_t at = v * width;
        *size = dt__min(width, total - at);
        job->a = all.a + at * (along_m ? job->ars : along_k ? job->acs : 0);
        job->b = all.b + (b ? v * step : at * (along_n ? job->bcs : along_k ? job->brs : 0));
        job->c = all.c + (!b ? v * step : along_n ? at : along_k ? v * job->m * job->n : at * job->ldc);
        c->env->k->gemm(c->env->pool, job);
    }
}

/* A weight's gradient in row slices (R2, R7), and perhaps in shards. */
static void dt__run_sliced_product(const dt__call *c, const dt__gemm *all, const dt__param *of_c)
{
    int64_t slices = dt__slices(c);
    for (int64_t v = 0; v < slices; v++) {
        dt__gemm job = *all;
        job.k /= slices;
        job.a += v * job.k * job.acs;
        job.b += v * job.k * job.brs;
        job.c = dt__slice(c, v);
        if (of_c) dt__run_cut_product(c, &job, NULL, of_c);
        else c->env->k->gemm(c->env->pool, &job);
    }
}

/* The product of inputs `first` and first + 1. A matrix serves the whole batch as one tall product; otherwise one
 * product per batch entry. */
static void dt__run_product(const dt__call *c, int first)
{
    dt_shape sa = dt__in(c, first)->shape, sb = dt__in(c, first + 1)->shape, lead = c->n->shape;
    int ta = (int)c->n->i[0], tb = (int)c->n->i[1], tall = sb.dims == 2 && (!ta || sa.dims == 2);
    int64_t parts = dt__max(1, c->n->i[2]), batch = tall ? 1 : dt__span(&lead, 0, lead.dims - 2);
    int64_t stride_a[DT_MAX_DIMS], stride_b[DT_MAX_DIMS];
    const dt__param *b = dt__cut_param(c->g, dt__in(c, first + 1)), *of_c = dt__cut_param(c->g, c->n);
    dt__gemm job;
    memset(&job, 0, sizeof job);
    job.n = dt__cols(c->n);
    job.k = sa.n[sa.dims - 1 - ta];
    job.m = dt__count(c->n) / parts / batch / job.n;
    job.ars = ta ? 1 : job.k, job.acs = ta ? job.m : 1;
    job.brs = tb ? 1 : job.n, job.bcs = tb ? job.k : 1;
    job.ldc = job.n;
    job.accumulate = !c->fresh || first > 0;
    if (b || of_c || c->slices) {
        job.a = c->in[first], job.b = c->in[first + 1], job.c = c->out;
        if (b) dt__run_cut_product(c, &job, b, NULL);
        else dt__run_sliced_product(c, &job, of_c);
        return;
    }
    job.k /= parts;
    sa.dims -= 2, sb.dims -= 2, lead.dims -= 2;
    if (!tall) dt__strides(&sa, &lead, stride_a), dt__strides(&sb, &lead, stride_b);
    for (int64_t i = 0; i < batch * parts; i++) { /* batch or parts is 1 or both are: parts are slices of k */
        int64_t slice = parts > 1 ? i * job.k : 0, ia = 0, ib = 0, rest = i;
        for (int axis = lead.dims - 1; batch > 1 && axis >= 0; rest /= lead.n[axis--]) {
            ia += rest % lead.n[axis] * stride_a[axis];
            ib += rest % lead.n[axis] * stride_b[axis];
        }
        job.a = c->in[first] + ia * job.m * job.k + slice * job.acs;
        job.b = c->in[first + 1] + ib * job.k * job.n + slice * job.brs;
        job.c = c->out + i * job.m * job.n;
        c->env->k->gemm(c->env->pool, &job);
    }
}
/* Inputs a, b, and perhaps more pairs, whose products continue the chains of the first. */
static void dt__run_matmul(const dt__call *c)
{
    for (int i = 0; i < c->n->inputs; i += 2) dt__run_product(c, i);
}

/* The row-parallel product without a bias: x has this rank's part of K. */
static dt_tensor dt__row(dt_graph *g, dt_tensor x, const char *name, int64_t width, float std)
{
    char full[80];
    int64_t k = dt_dim(g, x, -1);
    dt_tensor w;
    if (!x.id) return x;
    snprintf(full, sizeof full, "%s.weight", name);
    if (dt__in_shards(g)) k = k / g->own_shards * g->tensor_shards;
    w = dt__param_cut(g, full, dt_shape2(k, width), DT_INIT_NORMAL, std, 0, 1, 0);
    return dt__combine_shards(g, dt__matmul(g, x, w, 0, 0, dt__own(g), 0), 1);
}

static dt_tensor dt__linear(dt_graph *g, dt_tensor x, const char *name, int64_t width, float std)
{
    char full[80];
    dt_tensor w, b;
    if (!x.id) return x;
    snprintf(full, sizeof full, "%s.weight", name);
    w = dt_param(g, full, dt_shape2(dt_dim(g, x, -1), width), DT_INIT_NORMAL, std);
    snprintf(full, sizeof full, "%s.bias", name);
    b = dt_param(g, full, dt_shape1(width), DT_INIT_ZEROS, 0.0f);
    return dt_add(g, dt__matmul(g, x, w, 0, 0, 0, 0), b);
}
DT_API dt_tensor dt_linear(dt_graph *g, dt_tensor x, const char *name, int64_t width)
{
    return dt__linear(g, x, name, width, 0.02f);
}

/* "<name>.weight" (K,width), whose columns are `groups` pieces, each of them cut. */
static dt_tensor dt__column_weight(dt_graph *g, dt_tensor x, const char *name, int64_t width, int64_t groups, float std)
{
    char full[80];
    snprintf(full, sizeof full, "%s.weight", name);
    return dt__param_cut(g, full, dt_shape2(dt_dim(g, x, -1), width), DT_INIT_NORMAL, std, 1, groups, 0);
}
static dt_tensor dt__linear_column(dt_graph *g, dt_tensor x, const char *name, int64_t width, int64_t groups, float std)
{
    char full[80];
    dt_tensor w, b;
    if (!x.id) return x;
    w = dt__column_weight(g, x, name, width, groups, std);
    snprintf(full, sizeof full, "%s.bias", name);
    b = dt__param_cut(g, full, dt_shape1(width), DT_INIT_ZEROS, 0.0f, 0, groups, 0);
    return dt_add(g, dt__matmul(g, dt__all_rows(g, x), w, 0, 0, 0, dt__own(g)), b);
}
DT_API dt_tensor dt_linear_column(dt_graph *g, dt_tensor x, const char *name, int64_t width, float std)
{
    return dt__linear_column(g, x, name, width, 1, std);
}
DT_API dt_tensor dt_linear_row(dt_graph *g, dt_tensor x, const char *name, int64_t width, float std)
{
    char full[80];
    dt_tensor y = dt__row(g, x, name, width, std), b;
    if (!y.id) return y;
    snprintf(full, sizeof full, "%s.bias", name);
    b = dt__param_rows(g, dt_param(g, full, dt_shape1(width), DT_INIT_ZEROS, 0.0f), dt__rows(dt__at(g, y)), 1);
    return dt_add(g, y, b);
}

/* Column-parallel products of one x with weights (K,widths[i]) "<names[i]>.weight", without biases: out[i] is
 * (..,widths[i]). They share x's gradient: one chain per slice through all of them in this order, then one COMBINE
 * (R6). An out[i] that is not used adds nothing. */
static void dt__columns(dt_graph *g, dt_tensor x, const char *const *names, const int64_t *widths, int count, float std,
                        dt_tensor *out)
{
    dt_tensor w[DT__MAX_IN / 2];
    DT_ASSERT(count <= DT__MAX_IN / 2);
    for (int i = 0; i < count; i++) w[i] = dt__column_weight(g, x, names[i], widths[i], 1, std);
    x = dt__all_rows(g, x);
    for (int i = 0; i < count; i++) { /* nodes in a row: dt__grad_matmul finds the others by their place */
        out[i] = dt__matmul(g, x, w[i], 0, 0, 0, dt__own(g));
        if (out[i].id) dt__at(g, out[i])->i[4] = i, dt__at(g, out[i])->i[5] = count;
    }
}

/* ---- convolution ------------------------------------------------------------------------------------
 * Taps that fall outside the tensor must not be multiplied by zeros (R5). Along each axis the results fall into classes
 * with the same existing taps: the interior, and a few at each border (for the gradient of the input, also by the
 * residue of the stride). For every pair of classes the existing terms are gathered into a dense matrix (im2col), and
 * the exact matrix product makes the chains. The gradient of the weight does the same tap by tap. */

enum {
    DT__CONV_TAPS = 64,       /* most taps along an axis */
    DT__CONV_FAR = 1 << 20,   /* largest stride, padding, dilation */
    DT__CONV_GATHER = 1 << 17 /* floats gathered at a time */
};

/* One convolution; a sequence has height 1. Axis 0 is the height. */
typedef struct dt__conv {
    int64_t batch, groups, from, to; /* from, to: channels of all groups that are read and made */
    int64_t in[2], out[2];           /* sizes of what is read and of what is made */
    int64_t taps[2], stride[2], padding[2], dilation[2];
    int transposed; /* 1: makes the gradient of the input out of that of the output */
} dt__conv;

/* The two spatial sizes of (B,C,L) or (B,C,H,W). */
static void dt__spatial(const dt_shape *s, int64_t size[2])
{
    size[0] = s->dims == 4 ? s->n[2] : 1;
    size[1] = s->n[s->dims - 1];
}

/* i: stride, padding, dilation of the height, then of the width. x, w, y: shapes of input, weight, output. */
static dt__conv dt__conv_make(const int64_t *i, const dt_shape *x, const dt_shape *w, const dt_shape *y)
{
    dt__conv c;
    memset(&c, 0, sizeof c);
    c.batch = x->n[0], c.from = x->n[1], c.to = y->n[1];
    c.groups = x->n[1] / w->n[1];
    dt__spatial(x, c.in);
    dt__spatial(y, c.out);
    dt__spatial(w, c.taps);
    for (int axis = 0; axis < 2; axis++)
        c.stride[axis] = i[3 * axis], c.padding[axis] = i[3 * axis + 1], c.dilation[axis] = i[3 * axis + 2];
    return c;
}

/* A CONV, CONV_DX or CONV_DW node's convolution: what it reads and makes is exchanged for DX. */
static dt__conv dt__conv_of(const dt_graph *g, const dt__node *n)
{
    const dt_shape *a = &g->nodes[n->in[0]].shape, *b = &g->nodes[n->in[1]].shape;
    dt__conv c;
    int64_t t;
    if (n->op == DT__OP_CONV) return dt__conv_make(n->i, a, b, &n->shape);
    if (n->op == DT__OP_CONV_DW) return dt__conv_make(n->i, b, &n->shape, a);
    c = dt__conv_make(n->i, &n->shape, b, a);
    c.transposed = 1;
    t = c.from, c.from = c.to, c.to = t;
    for (int axis = 0; axis < 2; axis++) t = c.in[axis], c.in[axis] = c.out[axis], c.out[axis] = t;
    return c;
}

/* The place that tap `tap` of result `at` reads, or -1 outside. */
static int64_t dt__conv_place(const dt__conv *c, int axis, int64_t at, int64_t tap)
{
    int64_t place;
    if (c->transposed) {
        place = at + c->padding[axis] - tap * c->dilation[axis];
        if (place < 0 || place % c->stride[axis]) return -1;
        place /= c->stride[axis];
    } else place = at * c->stride[axis] - c->padding[axis] + tap * c->dilation[axis];
    return place >= 0 && place < c->in[axis] ? place : -1;
}

/* Memory of a convolution node's second output, in elements of 4 bytes. */
typedef struct dt__conv_scratch {
    float *weight, *gather, *other, *result; /* products: weight or other times gather gives result */
    int32_t *list[2], *place[2];             /* per axis: results of a class; what its taps read, (taps, results) */
    uint64_t *existing[2];                   /* per axis and result: bit k: tap k exists */
    int64_t chunk;                           /* positions that are gathered at a time */
} dt__conv_scratch;

static int64_t dt__conv_take(int64_t *at, int64_t n)
{
    int64_t here = *at;
    *at += dt__round_up(n, 16);
    return here;
}

/* Lays the memory out in base; NULL only counts. */
static int64_t dt__conv_lay_out(const dt__conv *c, int weight_gradient, float *base, dt__conv_scratch *s)
{
    int64_t at = 0, from = c->from / c->groups, to = c->to / c->groups, taps = c->taps[0] * c->taps[1], offset[10];
    int64_t rows = weight_gradient ? from + to : from * taps;
    int64_t positions = c->batch * c->out[0] * c->out[1];
    s->chunk = dt__min(positions, dt__max(dt__round_up(DT__CONV_GATHER / rows, 48), 96));
    offset[0] = dt__conv_take(&at, weight_gradient ? 0 : to * from * taps);
    offset[1] = dt__conv_take(&at, (weight_gradient ? from : rows) * s->chunk);
    offset[2] = dt__conv_take(&at, weight_gradient ? to * s->chunk : 0);
    offset[3] = dt__conv_take(&at, weight_gradient ? to * from : to * s->chunk);
    for (int axis = 0; axis < 2; axis++) {
        offset[4 + axis] = dt__conv_take(&at, c->out[axis]);
        offset[6 + axis] = dt__conv_take(&at, c->taps[axis] * c->out[axis]);
        offset[8 + axis] = dt__conv_take(&at, 2 * c->out[axis]);
    }
    if (!base) return at;
    s->weight = base + offset[0], s->gather = base + offset[1], s->other = base + offset[2];
    s->result = base + offset[3];
    for (int axis = 0; axis < 2; axis++) {
        s->list[axis] = (int32_t *)(void *)(base + offset[4 + axis]);
        s->place[axis] = (int32_t *)(void *)(base + offset[6 + axis]);
        s->existing[axis] = (uint64_t *)(void *)(base + offset[8 + axis]);
    }
    return at;
}

/* A rectangle of places in every sample: position p counts (sample, row, column). */
typedef struct dt__patch {
    const int32_t *row, *column;
    int64_t rows, columns;
} dt__patch;

/* Work of dt__gather_task and dt__scatter_task: row `task` of a matrix (rows, end - begin) is what a channel has at the
 * positions [begin, end) of a patch. */
typedef struct dt__patch_job {
    const dt__conv *c;
    const dt__conv_scratch *s;
    const float *x; /* (B,channels,height,width) that is read, from the group's first channel */
    float *y;       /* that is written */
    const float *bias;
    float *matrix;
    int64_t channels, height, width, begin, end;
    uint64_t taps[2]; /* bit k: tap k exists; gathering reads its places */
    dt__patch patch;
} dt__patch_job;

static void dt__gather(const dt__patch *p, const float *x, int64_t sample_step, int64_t width, int64_t begin,
                       int64_t end, float *to)
{
    for (int64_t at = begin; at < end;) {
        int64_t column = at % p->columns, line = at / p->columns, n = dt__min(p->columns - column, end - at);
        const float *from = x + line / p->rows * sample_step + p->row[line % p->rows] * width;
        const int32_t *place = p->column + column;
        if (place[n - 1] - place[0] == n - 1) memcpy(to, from + place[0], sizeof *to * (size_t)n);
        else
            for (int64_t i = 0; i < n; i++) to[i] = from[place[i]];
        to += n;
        at += n;
    }
}

/* The n-th bit that is set. */
static int dt__nth_bit(uint64_t bits, int64_t n)
{
    while (n-- > 0) bits &= bits - 1;
    return __builtin_ctzll(bits);
}

/* Rows are (channel, tap row, tap column) over the existing taps. */
static void dt__gather_task(void *context, int64_t task, int worker)
{
    const dt__patch_job *j = (const dt__patch_job *)context;
    int64_t nx = __builtin_popcountll(j->taps[1]), ny = __builtin_popcountll(j->taps[0]), n = j->end - j->begin;
    int64_t ty = dt__nth_bit(j->taps[0], task / nx % ny), tx = dt__nth_bit(j->taps[1], task % nx);
    dt__patch p = j->patch;
    (void)worker;
    p.row = j->s->place[0] + ty * j->c->out[0];
    p.column = j->s->place[1] + tx * j->c->out[1];
    dt__gather(&p, j->x + task / (nx * ny) * j->height * j->width, j->channels * j->height * j->width, j->width,
               j->begin, j->end, j->matrix + task * n);
}

/* Rows are channels, read where the patch says. */
static void dt__gather_channel(void *context, int64_t task, int worker)
{
    const dt__patch_job *j = (const dt__patch_job *)context;
    (void)worker;
    dt__gather(&j->patch, j->x + task * j->height * j->width, j->channels * j->height * j->width, j->width, j->begin,
               j->end, j->matrix + task * (j->end - j->begin));
}

/* Results to their places, the bias added. */
static void dt__scatter_task(void *context, int64_t task, int worker)
{
    const dt__patch_job *j = (const dt__patch_job *)context;
    const dt__patch *p = &j->patch;
    const float *from = j->matrix + task * (j->end - j->begin);
    float *plane = j->y + task * j->height * j->width;
    (void)worker;
    for (int64_t at = j->begin; at < j->end; at++) {
        int64_t line = at / p->columns;
        float *to = plane + line / p->rows * j->channels * j->height * j->width + p->row[line % p->rows] * j->width +
                    p->column[at % p->columns];
        *to = j->bias ? *from++ + j->bias[task] : *from++;
    }
}

/* Which taps every result of an axis has. */
static void dt__conv_existing(const dt__conv *c, const dt__conv_scratch *s, int axis)
{
    for (int64_t at = 0; at < c->out[axis]; at++) {
        s->existing[axis][at] = 0;
        for (int64_t tap = 0; tap < c->taps[axis]; tap++)
            s->existing[axis][at] |= (uint64_t)(dt__conv_place(c, axis, at, tap) >= 0) << tap;
    }
}

/* Lists the results that have the taps of result `first`, and what their taps read; 0 when an earlier result's class
 * holds them already. */
static int64_t dt__conv_class(const dt__conv *c, const dt__conv_scratch *s, int axis, int64_t first)
{
    const uint64_t *existing = s->existing[axis];
    int64_t n = 0;
    for (int64_t at = 0; at < first; at++)
        if (existing[at] == existing[first]) return 0;
    for (int64_t at = first; at < c->out[axis]; at++) {
        if (existing[at] != existing[first]) continue;
        for (int64_t tap = 0; tap < c->taps[axis]; tap++)
            s->place[axis][tap * c->out[axis] + n] = (int32_t)dt__conv_place(c, axis, at, tap);
        s->list[axis][n++] = (int32_t)at;
    }
    return n;
}

/* The weights of a group for the existing taps: (to, from * taps), the results' channels first. */
static const float *dt__conv_weight(const dt__conv *c, const dt__conv_scratch *s, const float *w,
                                    const uint64_t taps[2])
{
    int64_t from = c->from / c->groups, to = c->to / c->groups, all = c->taps[0] * c->taps[1];
    float *out = s->weight;
    if (!c->transposed && __builtin_popcountll(taps[0]) * __builtin_popcountll(taps[1]) == all) return w;
    for (int64_t r = 0; r < to; r++)
        for (int64_t k = 0; k < from; k++) {
            const float *cell = w + (c->transposed ? k * to + r : r * from + k) * all;
            for (int64_t ty = 0; ty < c->taps[0]; ty++)
                for (int64_t tx = 0; tx < c->taps[1]; tx++)
                    if (taps[0] >> ty & taps[1] >> tx & 1u) *out++ = cell[ty * c->taps[1] + tx];
        }
    return s->weight;
}

/* One pair of classes of one group. */
static void dt__conv_rectangle(const dt__call *call, const dt__conv *c, const dt__conv_scratch *s, int64_t group,
                               const uint64_t taps[2], const dt__patch *patch)
{
    int64_t from = c->from / c->groups, to = c->to / c->groups, positions = c->batch * patch->rows * patch->columns;
    const float *w = call->in[1] + group * from * to * c->taps[0] * c->taps[1];
    dt__patch_job read, write;
    dt__gemm job;
    memset(&read, 0, sizeof read);
    memset(&job, 0, sizeof job);
    read.c = c, read.s = s, read.patch = *patch;
    read.taps[0] = taps[0], read.taps[1] = taps[1];
    write = read;
    read.x = call->in[0] + group * from * c->in[0] * c->in[1];
    read.channels = c->from, read.height = c->in[0], read.width = c->in[1], read.matrix = s->gather;
    write.y = call->out + group * to * c->out[0] * c->out[1];
    write.channels = c->to, write.height = c->out[0], write.width = c->out[1], write.matrix = s->result;
    write.bias = call->n->inputs > 2 ? call->in[2] + group * to : NULL;
    job.m = to, job.k = from * __builtin_popcountll(taps[0]) * __builtin_popcountll(taps[1]);
    job.a = dt__conv_weight(c, s, w, taps), job.ars = job.k, job.acs = 1;
    job.b = s->gather, job.bcs = 1, job.c = s->result;
    for (int64_t at = 0; at < positions; at = read.end) {
        read.begin = write.begin = at;
        read.end = write.end = dt__min(positions, at + s->chunk);
        job.n = job.brs = job.ldc = read.end - at;
        dt__parallel(call->env->pool, job.k, dt__gather_task, &read);
        call->env->k->gemm(call->env->pool, &job);
        dt__parallel(call->env->pool, to, dt__scatter_task, &write);
    }
}

/* CONV (in: x, weight, perhaps bias) and CONV_DX (in: dy, weight). */
static void dt__run_conv(const dt__call *call)
{
    dt__conv c = dt__conv_of(call->g, call->n);
    dt__conv_scratch s;
    dt__patch patch;
    uint64_t taps[2];
    dt__conv_lay_out(&c, 0, call->aux, &s);
    for (int axis = 0; axis < 2; axis++) dt__conv_existing(&c, &s, axis);
    patch.row = s.list[0];
    patch.column = s.list[1];
    for (int64_t y = 0; y < c.out[0]; y++) {
        patch.rows = dt__conv_class(&c, &s, 0, y);
        taps[0] = s.existing[0][y];
        for (int64_t x = 0; patch.rows && x < c.out[1]; x++) {
            patch.columns = dt__conv_class(&c, &s, 1, x);
            taps[1] = s.existing[1][x];
            for (int64_t group = 0; patch.columns && group < c.groups; group++)
                dt__conv_rectangle(call, &c, &s, group, taps, &patch);
        }
    }
}

/* Lists the results of an axis that have tap `tap`, and the places that it reads. */
static int64_t dt__conv_tap(const dt__conv *c, const dt__conv_scratch *s, int axis, int64_t tap)
{
    int64_t n = 0;
    for (int64_t at = 0; at < c->out[axis]; at++) {
        int64_t place = dt__conv_place(c, axis, at, tap);
        if (place < 0) continue;
        s->place[axis][n] = (int32_t)place;
        s->list[axis][n++] = (int32_t)at;
    }
    return n;
}

/* The gradient of one tap's weights (to,from) of one group; step floats lie between neighbouring ones in w. */
static void dt__conv_dw_tap(const dt__call *call, const dt__conv *c, const dt__conv_scratch *s, int64_t group,
                            const dt__patch *results, float *w, int64_t step)
{
    int64_t from = c->from / c->groups, to = c->to / c->groups;
    int64_t positions = c->batch * results->rows * results->columns;
    dt__patch_job dy, x;
    dt__gemm job;
    memset(&dy, 0, sizeof dy);
    memset(&job, 0, sizeof job);
    dy.patch = *results;
    x = dy;
    dy.x = call->in[0] + group * to * c->out[0] * c->out[1];
    dy.channels = c->to, dy.height = c->out[0], dy.width = c->out[1], dy.matrix = s->other;
    x.x = call->in[1] + group * from * c->in[0] * c->in[1];
    x.channels = c->from, x.height = c->in[0], x.width = c->in[1], x.matrix = s->gather;
    x.patch.row = s->place[0], x.patch.column = s->place[1];
    job.m = to, job.n = job.ldc = from;
    job.a = s->other, job.acs = 1, job.b = s->gather, job.brs = 1;
    job.c = s->result, job.accumulate = 1;
    for (int64_t i = 0; i < to * from; i++) s->result[i] = call->fresh ? 0.0f : w[i * step];
    for (int64_t at = 0; at < positions; at = dy.end) {
        dy.begin = x.begin = at;
        dy.end = x.end = dt__min(positions, at + s->chunk);
        job.k = job.ars = job.bcs = dy.end - at;
        dt__parallel(call->env->pool, to, dt__gather_channel, &dy);
        dt__parallel(call->env->pool, from, dt__gather_channel, &x);
        call->env->k->gemm(call->env->pool, &job);
    }
    for (int64_t i = 0; i < to * from; i++) w[i * step] = s->result[i];
}

/* in: dy, x. */
static void dt__run_conv_dw(const dt__call *call)
{
    dt__conv c = dt__conv_of(call->g, call->n);
    int64_t taps = c.taps[0] * c.taps[1], weights = c.to / c.groups * (c.from / c.groups) * taps;
    dt__conv_scratch s;
    dt__patch results;
    dt__conv_lay_out(&c, 1, call->aux, &s);
    results.row = s.list[0];
    results.column = s.list[1];
    for (int64_t ty = 0; ty < c.taps[0]; ty++) {
        results.rows = dt__conv_tap(&c, &s, 0, ty);
        for (int64_t tx = 0; tx < c.taps[1]; tx++) {
            results.columns = dt__conv_tap(&c, &s, 1, tx);
            for (int64_t group = 0; group < c.groups; group++)
                dt__conv_dw_tap(call, &c, &s, group, &results, call->out + group * weights + ty * c.taps[1] + tx, taps);
        }
    }
}

/* What is 0 has its usual value. */
static int64_t dt__or(int64_t value, int64_t usual) { return value ? value : usual; }

/* A convolution's scratch is its second output, so that it is planned like any value. */
static dt_shape dt__conv_aux(const dt_graph *g, const dt__node *n)
{
    dt__conv c = dt__conv_of(g, n);
    dt__conv_scratch s;
    return dt_shape1(dt__conv_lay_out(&c, n->op == DT__OP_CONV_DW, NULL, &s));
}

/* Number of windows along an axis of n places; 0: none fits. */
static int64_t dt__windows(int64_t n, int64_t size, int64_t stride, int64_t padding, int64_t dilation)
{
    int64_t left = n + 2 * padding - dilation * (size - 1) - 1;
    return left < 0 ? 0 : left / stride + 1;
}

DT_API dt_tensor dt_convolve(dt_graph *g, dt_tensor x, dt_tensor weight, dt_tensor bias, const dt_window *window)
{
    dt_shape sx = dt__at(g, x)->shape, sw = dt__at(g, weight)->shape;
    dt__node n = dt__node_make(DT__OP_CONV, sx, x, weight, bias);
    dt_window o;
    dt_shape scratch;
    int64_t groups;
    char a[96], b[96];
    if (!x.id || !weight.id) return dt__tensor(0);
    memset(&o, 0, sizeof o);
    if (window) o = *window;
    groups = dt__or(o.groups, 1);
    if (sx.dims < 3 || sx.dims > 4 || sw.dims != sx.dims || groups < 1 || sw.n[1] * groups != sx.n[1] ||
        sw.n[0] % groups || (bias.id && (dt__at(g, bias)->shape.dims != 1 || dt_dim(g, bias, 0) != sw.n[0])))
        return dt__poison(g, DT_E_SHAPE,
                          "convolve: x %s, weight %s and %lld groups must be (B,C,L) or (B,C,H,W), (O,C/groups,K) or "
                          "(O,C/groups,KH,KW), groups dividing C and O, and the bias (O)",
                          dt__shape_text(&sx, a), dt__shape_text(&sw, b), (long long)groups);
    n.shape.n[1] = sw.n[0];
    n.i[0] = 1, n.i[2] = 1;
    for (int k = 0; k < sx.dims - 2; k++) {
        int64_t *i = n.i + (sx.dims == 3 ? 3 : 3 * k), size = sw.n[2 + k];
        i[0] = dt__or(o.stride[k], 1), i[1] = o.padding[k], i[2] = dt__or(o.dilation[k], 1);
        if (i[0] < 1 || i[1] < 0 || i[2] < 1 || dt__max(i[0], dt__max(i[1], i[2])) > DT__CONV_FAR ||
            size > DT__CONV_TAPS || (o.size[k] && o.size[k] != size))
            return dt__poison(g, DT_E_SHAPE,
                              "convolve: stride and dilation must be at least 1, padding at least 0, none above 2^20; "
                              "the window's size must be that of the weight (%lld) and at most %d",
                              (long long)size, DT__CONV_TAPS);
        n.shape.n[2 + k] = dt__windows(sx.n[2 + k], size, i[0], i[1], i[2]);
        if (!n.shape.n[2 + k])
            return dt__poison(g, DT_E_SHAPE, "convolve: a window of %lld taps does not fit into %lld places",
                              (long long)size, (long long)sx.n[2 + k]);
    }
    scratch = dt__conv_aux(g, &n);
    return dt__push(g, &n, &scratch);
}

static dt_tensor dt__conv_named(dt_graph *g, dt_tensor x, const char *name, int64_t channels, const dt_window *window,
                                int dims)
{
    dt_shape w = dt__at(g, x)->shape;
    char full[80], text[96];
    dt_tensor weight, bias;
    int64_t groups = dt__or(window->groups, 1);
    if (!x.id) return x;
    if (w.dims != dims || groups < 1 || w.n[1] % groups)
        return dt__poison(g, DT_E_SHAPE, "conv%dd: x %s must be %s with C divisible by %lld groups", dims - 2,
                          dt__shape_text(&w, text), dims == 3 ? "(B,C,L)" : "(B,C,H,W)", (long long)groups);
    w.n[0] = channels;
    w.n[1] /= groups;
    for (int k = 0; k < dims - 2; k++) w.n[2 + k] = window->size[k];
    snprintf(full, sizeof full, "%s.weight", name);
    weight = dt_param(g, full, w, DT_INIT_NORMAL, dt__sqrtf(2.0f / (float)dt__span(&w, 1, dims)));
    snprintf(full, sizeof full, "%s.bias", name);
    bias = dt_param(g, full, dt_shape1(channels), DT_INIT_ZEROS, 0.0f);
    return dt_convolve(g, x, weight, bias, window);
}
DT_API dt_tensor dt_conv1d(dt_graph *g, dt_tensor x, const char *name, int64_t channels, const dt_window *window)
{
    return dt__conv_named(g, x, name, channels, window, 3);
}
DT_API dt_tensor dt_conv2d(dt_graph *g, dt_tensor x, const char *name, int64_t channels, const dt_window *window)
{
    return dt__conv_named(g, x, name, channels, window, 4);
}

/* ---- pooling ------------------------------------------------------------------------------------------ */

/* i: size, stride, padding of the height, then of the width. */
static dt_tensor dt__pool_op(dt_graph *g, int op, dt_tensor x, const dt_window *window)
{
    dt__node n = dt__node_make(op, dt__at(g, x)->shape, x, dt__tensor(0), dt__tensor(0));
    char text[96];
    if (!x.id) return x;
    if (n.shape.dims < 3 || n.shape.dims > 4)
        return dt__poison(g, DT_E_SHAPE, "%s: %s must be (B,C,L) or (B,C,H,W)", dt__op_of(op)->name,
                          dt__shape_text(&n.shape, text));
    n.i[0] = n.i[1] = 1;
    for (int k = 0; k < n.shape.dims - 2; k++) {
        int64_t *i = n.i + (n.shape.dims == 3 ? 3 : 3 * k), places = n.shape.n[2 + k];
        i[0] = window->size[k], i[1] = dt__or(window->stride[k], i[0]), i[2] = window->padding[k];
        if (i[0] < 1 || i[0] > INT32_MAX || i[1] < 1 || i[2] < 0 || i[2] > i[0] / 2 || window->dilation[k] > 1 ||
            window->groups > 1)
            return dt__poison(g, DT_E_SHAPE,
                              "%s: size and stride must be at least 1, padding at most half the size (%lld); there is "
                              "no dilation and there are no groups",
                              dt__op_of(op)->name, (long long)i[0]);
        n.shape.n[2 + k] = dt__windows(places, i[0], i[1], i[2], 1);
        if (!n.shape.n[2 + k])
            return dt__poison(g, DT_E_SHAPE, "%s: a window of %lld does not fit into %lld places", dt__op_of(op)->name,
                              (long long)i[0], (long long)places);
    }
    return dt__push(g, &n, NULL);
}
DT_API dt_tensor dt_max_pool(dt_graph *g, dt_tensor x, const dt_window *window)
{
    return dt__pool_op(g, DT__OP_MAX_POOL, x, window);
}
DT_API dt_tensor dt_avg_pool(dt_graph *g, dt_tensor x, const dt_window *window)
{
    return dt__pool_op(g, DT__OP_AVG_POOL, x, window);
}

/* The places [low, high) of window `at` that exist. */
typedef struct dt__pool_area {
    int64_t low[2], high[2];
} dt__pool_area;
static dt__pool_area dt__pool_window(const int64_t *i, const int64_t size[2], int64_t y, int64_t x)
{
    dt__pool_area w;
    for (int axis = 0; axis < 2; axis++, i += 3) {
        int64_t begin = (axis ? x : y) * i[1] - i[2];
        w.low[axis] = dt__max(0, begin);
        w.high[axis] = dt__min(size[axis], begin + i[0]);
    }
    return w;
}

/* The place of the window's first maximum in a plane. */
static int64_t dt__pool_first_max(const float *plane, const dt__pool_area *w, int64_t width)
{
    int64_t best = w->low[0] * width + w->low[1];
    for (int64_t y = w->low[0]; y < w->high[0]; y++)
        for (int64_t x = w->low[1]; x < w->high[1]; x++)
            if (plane[y * width + x] > plane[best]) best = y * width + x;
    return best;
}

static float dt__pool_sum(const float *plane, const dt__pool_area *w, int64_t width)
{
    float sum = 0.0f;
    for (int64_t y = w->low[0]; y < w->high[0]; y++)
        for (int64_t x = w->low[1]; x < w->high[1]; x++) sum = sum + plane[y * width + x];
    return sum;
}

static void dt__pool_planes(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const int64_t *i = c->n->i;
    int64_t in[2], out[2];
    dt__spatial(&dt__in(c, 0)->shape, in);
    dt__spatial(&c->n->shape, out);
    (void)worker;
    for (int64_t p = begin; p < end; p++) {
        const float *plane = c->in[0] + p * in[0] * in[1];
        float *to = c->out + p * out[0] * out[1];
        for (int64_t at = 0; at < out[0] * out[1]; at++) {
            dt__pool_area w = dt__pool_window(i, in, at / out[1], at % out[1]);
            to[at] = c->n->op == DT__OP_MAX_POOL ? plane[dt__pool_first_max(plane, &w, in[1])]
                                                 : dt__pool_sum(plane, &w, in[1]) / (float)(i[0] * i[3]);
        }
    }
}
static void dt__run_pool(const dt__call *c) { dt__split(c, c->n->shape.n[0] * c->n->shape.n[1], 1, dt__pool_planes); }

/* in: dy, x. Every place sums over the windows that hold it, in order; of a mean the sum is divided last. */
static void dt__pool_grad_planes(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const int64_t *i = c->n->i;
    int64_t in[2], out[2];
    dt__spatial(&c->n->shape, in);
    dt__spatial(&dt__in(c, 0)->shape, out);
    (void)worker;
    for (int64_t p = begin; p < end; p++) {
        float *dx = c->out + p * in[0] * in[1];
        const float *dy = c->in[0] + p * out[0] * out[1];
        memset(dx, 0, sizeof *dx * (size_t)(in[0] * in[1]));
        for (int64_t at = 0; at < out[0] * out[1]; at++) {
            dt__pool_area w = dt__pool_window(i, in, at / out[1], at % out[1]);
            if (c->n->op == DT__OP_MAX_POOL_GRAD) {
                float *to = dx + dt__pool_first_max(c->in[1] + p * in[0] * in[1], &w, in[1]);
                *to = *to + dy[at];
                continue;
            }
            for (int64_t y = w.low[0]; y < w.high[0]; y++)
                for (int64_t x = w.low[1]; x < w.high[1]; x++) dx[y * in[1] + x] = dx[y * in[1] + x] + dy[at];
        }
        for (int64_t k = 0; c->n->op == DT__OP_AVG_POOL_GRAD && k < in[0] * in[1]; k++)
            dx[k] = dx[k] / (float)(i[0] * i[3]);
    }
}
static void dt__run_pool_grad(const dt__call *c)
{
    dt__split(c, c->n->shape.n[0] * c->n->shape.n[1], 1, dt__pool_grad_planes);
}

/* ---- embedding ------------------------------------------------------------------------------------ */

DT_API dt_tensor dt_embed(dt_graph *g, dt_tensor table, dt_tensor tokens)
{
    dt_shape s = dt__at(g, tokens)->shape;
    if (!table.id || !tokens.id) return dt__tensor(0);
    if (dt__at(g, table)->shape.dims != 2 || dt__at(g, tokens)->dtype != DT_I32 || s.dims >= DT_MAX_DIMS)
        return dt__poison(g, DT_E_SHAPE, "embed: needs a table (V,C) and int32 tokens");
    for (int64_t i = 0; g->eager && i < dt_shape_count(s); i++) {
        int32_t token = ((const int32_t *)dt__at(g, tokens)->data)[i];
        if (token < 0 || token >= dt_dim(g, table, 0))
            return dt__poison(g, DT_E_SHAPE, "embed: token %d at %lld is outside [0, %lld)", token, (long long)i,
                              (long long)dt_dim(g, table, 0));
    }
    s.n[s.dims++] = dt_dim(g, table, 1);
    tokens = dt__push_op(g, DT__OP_EMBED, s, table, tokens, dt__tensor(0));
    if (!tokens.id || !dt__cut_param(g, dt__at(g, table))) return tokens;
    memmove(s.n + 1, s.n, sizeof(int64_t) * (size_t)s.dims++);
    s.n[0] = 1;
    return dt__combine_shards(g, dt_reshape(g, tokens, s), 0);
}

/* The element where row `token` of a table begins, p when it is stored in shards; -1: another rank has it, -2: none. */
static int64_t dt__table_at(const dt_graph *g, const dt__param *p, int64_t vocabulary, int64_t cols, int64_t token)
{
    int64_t width;
    if (token < 0 || token >= (p ? p->shape.n[0] : vocabulary)) return -2;
    if (!p) return token * cols;
    width = dt__param_width(p, g->tensor_shards);
    token -= g->first_shard * width;
    if (token < 0 || token >= g->own_shards * width) return -1;
    return token / width * dt__shard_step(p, g->tensor_shards) + token % width * cols;
}
/* A row of another rank is -0 here: x + -0 is x for every x, so that the sum over ranks is the row itself. A token that
 * no rank has is +0, from the first shard. */
static void dt__run_embed(const dt__call *c)
{
    const int32_t *tokens = (const int32_t *)c->in[1];
    const dt__param *p = dt__cut_param(c->g, dt__in(c, 0));
    int64_t rows = dt__rows(c->n), cols = dt__cols(c->n), width = dt__width(c->n);
    int64_t vocabulary = dt__in(c, 0)->shape.n[0];
    for (int64_t r = 0; r < rows; r++) {
        char *to = (char *)c->out + r * cols * width;
        int64_t at = dt__table_at(c->g, p, vocabulary, cols, tokens[r]);
        if (at >= 0) memcpy(to, (const char *)c->in[0] + at * width, (size_t)(cols * width));
        else if (at == -2 && !(p && c->g->first_shard)) memset(to, 0, (size_t)(cols * width));
        else
            for (int64_t i = 0; i < cols; i++) c->out[r * cols + i] = -0.0f;
    }
}

/* in: tokens, dy (..,C). Scatter-add in token order, into the sum of each leaf; threads split the columns. */
static void dt__embed_grad_cols(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const int32_t *tokens = (const int32_t *)c->in[0];
    const dt__param *p = dt__cut_param(c->g, c->n);
    int64_t vocabulary = c->n->shape.n[0], cols = dt__cols(c->n), rows = dt__rows(dt__in(c, 1)), n = end - begin;
    int64_t first = p ? c->g->first_shard * dt__param_width(p, c->g->tensor_shards) : 0, slices = dt__slices(c);
    (void)worker;
    for (int64_t i = 0; c->fresh && i < vocabulary * slices; i++) {
        int64_t at = dt__table_at(c->g, p, vocabulary, cols, first + i % vocabulary);
        memset(dt__slice(c, i / vocabulary) + at + begin, 0, 4 * (size_t)n);
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = dt__table_at(c->g, p, vocabulary, cols, tokens[r]);
        float *to = dt__slice(c, r / (rows / slices)) + dt__max(at, 0) + begin;
        if (at < 0) continue;
        c->env->k->binary(DT__OP_ADD, to, to, 1, c->in[1] + r * cols + begin, 1, n);
    }
}
static void dt__run_embed_grad(const dt__call *c) { dt__split(c, dt__cols(c->n), 64, dt__embed_grad_cols); }

/* ---- picking by index ------------------------------------------------------------------------------ */

/* index picks along `axis` of x: sizes are equal but there. In an eager graph no index is outside. */
static int dt__index_ok(dt_graph *g, const char *op, dt_tensor x, int axis, dt_tensor index)
{
    dt_shape sx = dt__at(g, x)->shape, si = dt__at(g, index)->shape, same = si;
    char a[96], b[96];
    if (axis < 0 || !index.id) return 0;
    if (same.dims == sx.dims) same.n[axis] = sx.n[axis];
    if (dt__at(g, index)->dtype != DT_I32 || !dt__same_shape(&same, &sx))
        return dt__poison(g, DT_E_SHAPE, "%s: index, %s %s, must be int32 and fit %s in all axes but %d", op,
                          dt__format_of[dt__at(g, index)->dtype].name, dt__shape_text(&si, a), dt__shape_text(&sx, b),
                          axis),
               0;
    for (int64_t i = 0; g->eager && i < dt_shape_count(si); i++) {
        int32_t at = ((const int32_t *)dt_elements(g, index))[i];
        if (at < 0 || at >= sx.n[axis])
            return dt__poison(g, DT_E_SHAPE, "%s: index %d at %lld is outside [0, %lld)", op, at, (long long)i,
                              (long long)sx.n[axis]),
                   0;
    }
    return 1;
}

DT_API dt_tensor dt_gather(dt_graph *g, dt_tensor x, int axis, dt_tensor index)
{
    dt__node n = dt__node_make(DT__OP_GATHER, dt__at(g, index)->shape, x, index, dt__tensor(0));
    axis = dt__axis(g, "gather", x, axis);
    if (!dt__index_ok(g, "gather", x, axis, index)) return dt__tensor(0);
    n.i[0] = axis;
    return dt__push(g, &n, NULL);
}
/* Rows of the result: (outer, place along the axis), each of `inner` elements. */
static void dt__gather_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt_shape *s = &c->n->shape;
    const int32_t *index = (const int32_t *)(const void *)c->in[1];
    int axis = (int)c->n->i[0];
    int64_t inner = dt__span(s, axis + 1, s->dims), from = dt__in(c, 0)->shape.n[axis], width = dt__width(c->n);
    (void)worker;
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < inner; i++) {
            int64_t to = r * inner + i, at = index[to];
            if (at < 0 || at >= from) memset((char *)c->out + to * width, 0, (size_t)width);
            else
                dt__copy_elements((char *)c->out + to * width,
                                  (const char *)c->in[0] + ((r / s->n[axis] * from + at) * inner + i) * width, 1, 1,
                                  width);
        }
}
static void dt__run_gather(const dt__call *c)
{
    dt__split(c, dt__span(&c->n->shape, 0, (int)c->n->i[0] + 1), 64, dt__gather_rows);
}

DT_API dt_tensor dt_scatter_add(dt_graph *g, dt_tensor base, int axis, dt_tensor index, dt_tensor x)
{
    dt_shape sx = dt__at(g, x)->shape, si = dt__at(g, index)->shape;
    dt__node n = dt__node_make(DT__OP_SCATTER_ADD, dt__at(g, base)->shape, index, x, base);
    char a[96], b[96];
    axis = dt__axis(g, "scatter_add", base, axis);
    if (!dt__index_ok(g, "scatter_add", base, axis, index) || !x.id) return dt__tensor(0);
    if (!dt__same_shape(&sx, &si))
        return dt__poison(g, DT_E_SHAPE, "scatter_add: x %s and index %s must have the same shape",
                          dt__shape_text(&sx, a), dt__shape_text(&si, b));
    n.i[0] = axis;
    return dt__push(g, &n, NULL);
}

/* The lanes of an axis: its lane (outer o, inner i) holds the elements (o * n + j) * inner + i. Of lanes [begin, end)
 * the first run with one o: where it begins, how long it is. */
static int64_t dt__lane_run(int64_t inner, int64_t begin, int64_t end, int64_t *o, int64_t *i)
{
    *o = begin / inner;
    *i = begin % inner;
    return dt__min(inner - *i, end - begin);
}

/* in: index, x, and base unless it is +0 or, for a parameter's gradient, what is in out. */
static void dt__scatter_lanes(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt_shape *s = &c->n->shape, *from = &dt__in(c, 0)->shape;
    const int32_t *index = (const int32_t *)(const void *)c->in[0];
    int axis = (int)c->n->i[0];
    int64_t inner = dt__span(s, axis + 1, s->dims), n = s->n[axis];
    (void)worker;
    for (int64_t o, i, run; begin < end; begin += run) {
        run = dt__lane_run(inner, begin, end, &o, &i);
        for (int64_t j = o * n; c->fresh && j < (o + 1) * n; j++) {
            if (c->n->inputs == 3) memcpy(c->out + j * inner + i, c->in[2] + j * inner + i, 4 * (size_t)run);
            else memset(c->out + j * inner + i, 0, 4 * (size_t)run);
        }
        for (int64_t j = o * from->n[axis]; j < (o + 1) * from->n[axis]; j++)
            for (int64_t e = i; e < i + run; e++) {
                int64_t at = index[j * inner + e];
                float *to = c->out + (o * n + at) * inner + e;
                if (at >= 0 && at < n) *to = *to + c->in[1][j * inner + e];
            }
    }
}
static int64_t dt__lanes(const dt__node *n) { return dt__count(n) / n->shape.n[n->i[0]]; }
static void dt__run_scatter_add(const dt__call *c) { dt__split(c, dt__lanes(c->n), 64, dt__scatter_lanes); }

DT_API dt_tensor dt_cumsum(dt_graph *g, dt_tensor x, int axis)
{
    dt__node n = dt__node_make(DT__OP_CUMSUM, dt__at(g, x)->shape, x, dt__tensor(0), dt__tensor(0));
    axis = dt__axis(g, "cumsum", x, axis);
    if (axis < 0) return dt__tensor(0);
    n.i[0] = axis;
    return dt__push(g, &n, NULL);
}
/* i[1]: the chains begin at the other end. */
static void dt__cumsum_lanes(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt_shape *s = &c->n->shape;
    int axis = (int)c->n->i[0];
    int64_t inner = dt__span(s, axis + 1, s->dims), n = s->n[axis], step = c->n->i[1] ? -inner : inner;
    (void)worker;
    for (int64_t o, i, run; begin < end; begin += run) {
        int64_t at;
        run = dt__lane_run(inner, begin, end, &o, &i);
        at = (o * n + (c->n->i[1] ? n - 1 : 0)) * inner + i;
        for (int64_t j = 0; j < n; j++, at += step)
            for (int64_t e = at; e < at + run; e++) c->out[e] = (j ? c->out[e - step] : 0.0f) + c->in[0][e];
    }
}
static void dt__run_cumsum(const dt__call *c) { dt__split(c, dt__lanes(c->n), 64, dt__cumsum_lanes); }

DT_API dt_tensor dt_one_hot(dt_graph *g, dt_tensor index, int64_t classes)
{
    dt_shape s = dt__at(g, index)->shape;
    if (!index.id) return index;
    if (classes < 1 || s.dims == DT_MAX_DIMS)
        return dt__poison(g, DT_E_SHAPE, "one_hot: needs a class at least and an index of at most %d axes",
                          DT_MAX_DIMS - 1);
    s.n[s.dims++] = classes;
    return dt__push_op(g, DT__OP_ONE_HOT, s, index, dt__tensor(0), dt__tensor(0));
}
static void dt__run_one_hot(const dt__call *c)
{
    const int32_t *index = (const int32_t *)(const void *)c->in[0];
    int64_t rows = dt__rows(c->n), cols = dt__cols(c->n);
    memset(c->out, 0, 4 * (size_t)(rows * cols));
    for (int64_t r = 0; r < rows; r++)
        if (index[r] >= 0 && index[r] < cols) c->out[r * cols + index[r]] = 1.0f;
}

/* The places first, then a gather, which carries the gradient. */
DT_API dt_tensor dt_top_k(dt_graph *g, dt_tensor x, int64_t k, dt_tensor *indices)
{
    dt__node n = dt__node_make(DT__OP_TOP_K, dt__at(g, x)->shape, x, dt__tensor(0), dt__tensor(0));
    int last = dt__axis(g, "top_k", x, -1);
    dt_tensor places;
    if (indices) *indices = dt__tensor(0);
    if (last < 0) return dt__tensor(0);
    if (k < 1 || k > n.shape.n[last])
        return dt__poison(g, DT_E_SHAPE, "top_k: k = %lld is outside 1..%lld, the size of the last axis", (long long)k,
                          (long long)n.shape.n[last]);
    n.shape.n[last] = k;
    n.dtype = DT_I32;
    places = dt__push(g, &n, NULL);
    if (indices) *indices = places;
    return places.id ? dt_gather(g, x, last, places) : places;
}
/* Insertion into the list of the best so far: only a larger one goes in front of what is there. */
static void dt__top_k_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t k = dt__cols(c->n), cols = dt__cols(dt__in(c, 0));
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *x = c->in[0] + r * cols;
        int32_t *best = (int32_t *)(void *)c->out + r * k;
        for (int64_t i = 0; i < cols; i++) {
            int64_t at = dt__min(i, k);
            if (at == k && !(x[i] > x[best[k - 1]])) continue;
            if (at == k) at--;
            for (; at > 0 && x[i] > x[best[at - 1]]; at--) best[at] = best[at - 1];
            best[at] = (int32_t)i;
        }
    }
}
static void dt__run_top_k(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__top_k_rows); }

/* ---- normalisation --------------------------------------------------------------------------------- */

/* Weight (1) or bias (0) of a normalisation over `width` numbers. */
static dt_tensor dt__norm_param(dt_graph *g, const char *name, const char *which, int64_t width, dt_init init)
{
    char full[80];
    snprintf(full, sizeof full, "%s.%s", name, which);
    return dt_param(g, full, dt_shape1(width), init, 0.0f);
}
static dt_tensor dt__norm_weight(dt_graph *g, const char *name, int64_t width)
{
    return dt__norm_param(g, name, "weight", width, DT_INIT_ONES);
}
static dt_tensor dt__norm_bias(dt_graph *g, const char *name, int64_t width)
{
    return dt__norm_param(g, name, "bias", width, DT_INIT_ZEROS);
}
/* The same over the rows of x. */
static dt_tensor dt__row_weight(dt_graph *g, const char *name, dt_tensor x)
{
    return dt__param_rows(g, dt__norm_weight(g, name, dt_dim(g, x, -1)), dt__rows(dt__at(g, x)), 1);
}
static dt_tensor dt__row_bias(dt_graph *g, const char *name, dt_tensor x)
{
    return dt__param_rows(g, dt__norm_bias(g, name, dt_dim(g, x, -1)), dt__rows(dt__at(g, x)), 1);
}
static int dt__eps_ok(dt_graph *g, const char *op, float eps)
{
    if (eps >= 0.0f && eps <= 1.0f) return 1;
    dt__poison(g, DT_E_USAGE, "%s: eps %g is outside [0, 1]", op, (double)eps);
    return 0;
}

DT_API dt_tensor dt_layernorm_eps(dt_graph *g, dt_tensor x, const char *name, float eps)
{
    dt_tensor gamma, beta;
    dt_shape stats;
    dt__node n;
    if (!x.id || !dt__eps_ok(g, "layernorm", eps)) return dt__tensor(0);
    gamma = dt__row_weight(g, name, x);
    beta = dt__row_bias(g, name, x);
    n = dt__node_make(DT__OP_LAYERNORM, dt__at(g, x)->shape, x, gamma, beta);
    n.f = eps;
    stats = dt_shape2(dt__rows(dt__at(g, x)), 2);
    return dt__push(g, &n, &stats);
}
DT_API dt_tensor dt_layernorm(dt_graph *g, dt_tensor x, const char *name)
{
    return dt_layernorm_eps(g, x, name, 1e-5f);
}
static void dt__layernorm_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t cols = dt__cols(c->n);
    (void)worker;
    c->env->k->layernorm(c->out + begin * cols, c->aux + begin * 2, c->in[0] + begin * cols, c->in[1], c->in[2],
                         end - begin, cols, c->n->f);
}
static void dt__run_layernorm(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__layernorm_rows); }

/* in: dy, x, stats, gamma. */
static void dt__layernorm_dx_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t cols = dt__cols(c->n), at = begin * cols;
    c->env->k->layernorm_dx(c->out + at, c->in[0] + at, c->in[1] + at, c->in[2] + begin * 2, c->in[3], end - begin,
                            cols, (float *)dt__scratch(c->env->pool, worker));
}
static void dt__run_layernorm_dx(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__layernorm_dx_rows); }

/* in: dy, x, stats. */
static void dt__layernorm_dgamma_cols(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t cols = dt__count(c->n), slices = dt__slices(c), rows = dt__rows(dt__in(c, 0)) / slices;
    (void)worker;
    for (int64_t v = 0; v < slices; v++) {
        float *out = dt__slice(c, v) + begin;
        int64_t at = v * rows * cols + begin;
        if (c->fresh) memset(out, 0, 4 * (size_t)(end - begin));
        c->env->k->layernorm_dgamma(out, c->in[0] + at, c->in[1] + at, c->in[2] + 2 * v * rows, rows, end - begin,
                                    cols);
    }
}
static void dt__run_layernorm_dgamma(const dt__call *c)
{
    dt__split(c, dt__count(c->n), 64, dt__layernorm_dgamma_cols);
}

DT_API dt_tensor dt_rmsnorm_eps(dt_graph *g, dt_tensor x, const char *name, float eps)
{
    dt_shape stats;
    dt__node n;
    if (!x.id || !dt__eps_ok(g, "rmsnorm", eps)) return dt__tensor(0);
    n = dt__node_make(DT__OP_RMSNORM, dt_shape_of(g, x), x, dt__row_weight(g, name, x), dt__tensor(0));
    n.f = eps;
    stats = dt_shape2(dt__rows(dt__at(g, x)), 2);
    return dt__push(g, &n, &stats);
}
DT_API dt_tensor dt_rmsnorm(dt_graph *g, dt_tensor x, const char *name) { return dt_rmsnorm_eps(g, x, name, 1e-5f); }

/* stats: +0, as if that were the mean, and 1/rms, so that the gradient of gamma is layer normalisation's. */
static void dt__rmsnorm_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt__kernels *k = c->env->k;
    int64_t cols = dt__cols(c->n);
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *x = c->in[0] + r * cols;
        float *y = c->out + r * cols, rrms = 1.0f / dt__sqrtf(k->row_dot(x, x, cols) / (float)cols + c->n->f);
        k->unary(DT__OP_SCALE, y, x, cols, rrms);
        k->binary(DT__OP_MUL, y, y, 1, c->in[1], 1, cols);
        c->aux[2 * r] = 0.0f;
        c->aux[2 * r + 1] = rrms;
    }
}
static void dt__run_rmsnorm(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__rmsnorm_rows); }

/* in: dy, x, stats, gamma. g = dy gamma; dx = (g - xhat mean(g xhat)) / rms. */
static void dt__rmsnorm_dx_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt__kernels *k = c->env->k;
    int64_t cols = dt__cols(c->n);
    float *g = (float *)dt__scratch(c->env->pool, worker), *xhat = g + cols;
    for (int64_t r = begin; r < end; r++) {
        float rrms = c->in[2][2 * r + 1];
        k->binary(DT__OP_MUL, g, c->in[0] + r * cols, 1, c->in[3], 1, cols);
        k->unary(DT__OP_SCALE, xhat, c->in[1] + r * cols, cols, rrms);
        k->unary(DT__OP_SCALE, xhat, xhat, cols, k->row_dot(g, xhat, cols) / (float)cols);
        k->binary(DT__OP_SUB, g, g, 1, xhat, 1, cols);
        k->unary(DT__OP_SCALE, c->out + r * cols, g, cols, rrms);
    }
}
static void dt__run_rmsnorm_dx(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__rmsnorm_dx_rows); }

/* (B,C,..) with the channels last, or back; the same tensor when it has two axes. */
static dt_tensor dt__channels(dt_graph *g, dt_tensor x, int last)
{
    int order[DT_MAX_DIMS], dims = dt__at(g, x)->shape.dims;
    if (dims == 2) return x;
    order[0] = 0;
    for (int i = 1; i < dims; i++) order[i] = last ? i % (dims - 1) + 1 : i == 1 ? dims - 1 : i - 1;
    return dt_permute(g, x, order);
}

/* With the channels last everything broadcasts from (C), and the gradients of gamma and beta are chains (R3). mean and
 * var may be poison: those of x. */
static dt_tensor dt__batchnorm(dt_graph *g, dt_tensor x, dt_tensor mean, dt_tensor var, const char *name, float eps)
{
    dt_shape s = dt_shape_of(g, x), one = dt_shape1(s.n[1]);
    unsigned others = (1u << (s.dims - 1)) - 1u;
    int given = mean.id;
    dt_tensor y = dt__channels(g, x, 1);
    if (!given) mean = dt_mean(g, y, others);
    y = dt_sub(g, y, mean);
    if (!given) var = dt_mean(g, dt_mul(g, y, y), others);
    y = dt_mul(g, y, dt_rsqrt(g, dt_add(g, var, dt_full(g, one, eps))));
    y = dt_mul(g, y, dt__norm_weight(g, name, s.n[1]));
    y = dt_add(g, y, dt__norm_bias(g, name, s.n[1]));
    return y.id ? dt__channels(g, y, 0) : y;
}
DT_API dt_tensor dt_batchnorm(dt_graph *g, dt_tensor x, const char *name, float eps)
{
    char a[96];
    if (!x.id || !dt__eps_ok(g, "batchnorm", eps)) return dt__tensor(0);
    if (dt__at(g, x)->shape.dims < 2)
        return dt__poison(g, DT_E_SHAPE, "batchnorm: x %s must have channels in axis 1: (B,C,..)",
                          dt__shape_text(&dt__at(g, x)->shape, a));
    return dt__batchnorm(g, x, dt__tensor(0), dt__tensor(0), name, eps);
}
DT_API dt_tensor dt_batchnorm_given(dt_graph *g, dt_tensor x, dt_tensor mean, dt_tensor var, const char *name,
                                    float eps)
{
    dt_shape s = dt_shape_of(g, x), c = dt_shape1(s.dims > 1 ? s.n[1] : 0);
    char a[96];
    if (!x.id || !mean.id || !var.id || !dt__eps_ok(g, "batchnorm_given", eps)) return dt__tensor(0);
    if (s.dims < 2 || !dt__same_shape(&dt__at(g, mean)->shape, &c) || !dt__same_shape(&dt__at(g, var)->shape, &c))
        return dt__poison(g, DT_E_SHAPE, "batchnorm_given: x %s must be (B,C,..), and mean and var (C)",
                          dt__shape_text(&s, a));
    return dt__batchnorm(g, x, mean, var, name, eps);
}

/* ---- trees that grow ------------------------------------------------------------------------------- */

/* A partial sum in place `set`: node `index` of tree level `level`: 1 << level leaves from index << level on. */
typedef struct dt__partial {
    int level, set;
    int64_t index;
} dt__partial;

/* Partial sums of a tree whose aligned runs come one by one: siblings join at once. */
typedef struct dt__stack {
    dt__partial node[64];
    int count, sets; /* sets: how many have ever been in use together */
    uint64_t used;   /* bit per set */
} dt__stack;

static void dt__stack_push(dt__stack *s, int level, int64_t index)
{
    dt__partial *n = &s->node[s->count++];
    DT_ASSERT(s->count <= 64);
    n->set = 0;
    while (s->used >> n->set & 1u) n->set++;
    s->used |= (uint64_t)1 << n->set;
    n->level = level;
    n->index = index;
    if (n->set + 1 > s->sets) s->sets = n->set + 1;
}

/* Joins the last node with its sibling when it is here too: the sum is the last node then, in the place of the left
 * one; returns whether it did, and which sets to add. */
static int dt__stack_join(dt__stack *s, int32_t *set, int32_t *from)
{
    dt__partial last;
    int at = 0;
    if (!s->count) return 0;
    last = s->node[s->count - 1];
    while (s->node[at].level != last.level || s->node[at].index != (last.index ^ 1))
        if (++at >= s->count) return 0;
    *set = last.index & 1 ? s->node[at].set : last.set;
    *from = last.index & 1 ? last.set : s->node[at].set;
    s->used &= ~((uint64_t)1 << *from);
    s->count--;
    for (; at < s->count - 1; at++) s->node[at] = s->node[at + 1];
    last.level++, last.index >>= 1, last.set = *set;
    s->node[s->count - 1] = last;
    return 1;
}

/* ---- attention and dropout ------------------------------------------------------------------------- */

static uint32_t dt__drop_threshold(float p) { return (uint32_t)((double)p * 4294967296.0); }

/* Points the unit's random streams at this site of this segment. */
static dt__rng *dt__site(const dt__call *c, int64_t samples, int64_t site)
{
    for (int64_t b = 0; b < samples; b++) c->env->rng[b].counter[2] = c->env->segment << 8 | (uint32_t)site;
    return c->env->rng;
}

/* Random streams belong to samples: in a segment axis 0 must be the unit's samples. */
static int dt__counts_samples(const dt_graph *g, int64_t n) { return g->eager || n == dt_dim(g, g->targets, 0); }

/* Both forms of the op: n has its inputs. */
static dt_tensor dt__attention_push(dt_graph *g, dt__node *n, const dt_attention_options *o, int64_t kv_heads,
                                    int64_t d)
{
    float scale = o->scale == 0.0f ? 1.0f / dt__sqrtf((float)d) : o->scale, p = o->dropout;
    dt_shape stats;
    if (!(p >= 0.0f && p < 1.0f))
        return dt__poison(g, DT_E_USAGE, "attention: dropout %g is outside [0, 1)", (double)p);
    if (!(scale > 0.0f && scale < __builtin_inff()))
        return dt__poison(g, DT_E_USAGE, "attention: scale %g is not positive; 0 means 1/sqrt(head width)",
                          (double)scale);
    if (p > 0.0f && !dt__counts_samples(g, n->shape.n[0]))
        return dt__poison(g, DT_E_SHAPE, "attention: with dropout axis 0 must count the unit's samples, it holds %lld",
                          (long long)n->shape.n[0]);
    DT_ASSERT(!g->context_shards || n->inputs <= 3); /* the families have no mask */
    n->shape.n[2] = o->heads * d;
    n->i[0] = o->heads, n->i[1] = o->causal != 0, n->i[2] = p > 0.0f ? g->sites++ : 0, n->i[3] = kv_heads;
    n->i[4] = (int64_t)dt__bits_of_float(scale);
    n->f = p;
    n->i[5] = dt__at(g, dt__tensor(n->in[0]))->cut ? g->own_shards : 0;
    stats = dt_shape4(2, n->shape.n[0], o->heads, n->shape.n[1]);
    return dt__push(g, n, &stats);
}

/* This rank's part of `heads` when x is cut, else all; 0 with the graph poisoned when they do not divide. */
static int64_t dt__heads_of(dt_graph *g, dt_tensor x, const char *what, int64_t heads)
{
    if (!dt__at(g, x)->cut) return heads;
    return heads < 1 || dt__cuts(g, what, heads) ? dt__part_of(g, heads) : 0;
}

/* In a decode graph: x (B,T,C) written behind the rows of earlier positions, as (B,context,C), of which the rows up to
 * these are valid. The memory stays from run to run. */
static dt_tensor dt__cache(dt_graph *g, dt_tensor x)
{
    dt_shape s = dt_shape_of(g, x);
    if (!x.id) return x;
    s.n[1] = g->context;
    return dt__push_op(g, DT__OP_CACHE, s, x, dt__tensor(0), dt__tensor(0));
}
static void dt__run_cache(const dt__call *c)
{
    const dt_shape *s = &dt__in(c, 0)->shape;
    int64_t rows = s->n[1] * s->n[2], room = c->n->shape.n[1] * s->n[2];
    for (int64_t b = 0; b < s->n[0]; b++)
        memcpy(c->out + b * room + c->env->position * s->n[2], c->in[0] + b * rows, 4 * (size_t)rows);
}

/* Piece `piece` of the `pieces` that each shard of x (..,C) has: (..,C/pieces), shards one behind another. */
static dt_tensor dt__shard_piece(dt_graph *g, dt_tensor x, int64_t pieces, int64_t piece)
{
    dt_shape s = dt_shape_of(g, x), apart = s;
    int32_t id = x.id, cut = dt__at(g, x)->cut;
    int64_t shards = cut ? g->own_shards : 1;
    if (!x.id) return x;
    s.n[s.dims - 1] /= pieces;
    apart.n[0] = dt__span(&s, 0, s.dims - 1), apart.n[1] = shards, apart.n[2] = pieces;
    apart.n[3] = s.n[s.dims - 1] / shards, apart.dims = 4;
    dt__at(g, x)->cut = 0; /* here shards are not mixed */
    x = dt_slice(g, dt_reshape(g, x, apart), 2, piece, piece + 1);
    x = dt_reshape(g, x, s);
    g->nodes[id].cut = cut;
    dt__at(g, x)->cut = x.id ? cut : 0;
    return x;
}

/* The heads of `o` are those of q, k and v. */
static dt_tensor dt__attend(dt_graph *g, dt_tensor q, dt_tensor k, dt_tensor v, dt_tensor mask,
                            const dt_attention_options *o)
{
    dt_shape sq = dt__at(g, q)->shape, sk = dt__at(g, k)->shape, sm = dt__at(g, mask)->shape;
    dt__node n = dt__node_make(DT__OP_ATTENTION, sq, q, k, v);
    int64_t heads = o->heads, kv_heads = o->kv_heads ? o->kv_heads : heads, d;
    char a[96], b[96], c[96];
    if (!q.id || !k.id || !v.id) return dt__tensor(0);
    if (heads < 1 || kv_heads < 1 || heads % kv_heads)
        return dt__poison(g, DT_E_SHAPE, "attend: %lld query heads are not a multiple of %lld key heads",
                          (long long)heads, (long long)kv_heads);
    d = sq.dims == 3 ? sq.n[2] / heads : 0;
    if (sq.dims != 3 || sq.n[2] % heads || sk.dims != 3 || sk.n[0] != sq.n[0] || sk.n[2] != kv_heads * d ||
        !dt__same_shape(&sk, &dt__at(g, v)->shape))
        return dt__poison(
            g, DT_E_SHAPE,
            "attend: q %s, k %s and v %s must be (B,T,%lld d), (B,S,%lld d) and like k: heads of one width",
            dt__shape_text(&sq, a), dt__shape_text(&sk, b), dt__shape_text(&dt__at(g, v)->shape, c), (long long)heads,
            (long long)kv_heads);
    if (mask.id && dt__at(g, mask)->dtype != DT_I32 && dt__at(g, mask)->dtype != DT_F32)
        return dt__poison(g, DT_E_SHAPE, "attend: the mask holds %s and must hold int32 or float: dt_cast it",
                          dt__format_of[dt__at(g, mask)->dtype].name);
    if (mask.id && (sm.dims < 2 || sm.dims > 3 || sm.n[sm.dims - 1] != sk.n[1] || sm.n[sm.dims - 2] != sq.n[1] ||
                    (sm.dims == 3 && sm.n[0] != sq.n[0])))
        return dt__poison(g, DT_E_SHAPE, "attend: mask %s must be (T,S) or (B,T,S) for q %s and k %s",
                          dt__shape_text(&sm, a), dt__shape_text(&sq, b), dt__shape_text(&sk, c));
    if (mask.id) n.in[n.inputs++] = mask.id;
    if (g->context) {
        DT_ASSERT(o->causal && !mask.id && sq.n[1] == sk.n[1]);
        n.in[1] = dt__cache(g, k).id, n.in[2] = dt__cache(g, v).id;
    }
    return dt__attention_push(g, &n, o, kv_heads, d);
}
DT_API dt_tensor dt_attend(dt_graph *g, dt_tensor q, dt_tensor k, dt_tensor v, dt_tensor mask,
                           const dt_attention_options *o)
{
    dt_attention_options own = *o;
    own.heads = dt__heads_of(g, q, "heads", o->heads);
    own.kv_heads = dt__heads_of(g, k, "heads of the keys", o->kv_heads);
    return dt__attend(g, q, k, v, mask, &own);
}

/* Fused attention of a decode graph: the same rows as three tensors. */
static dt_tensor dt__attention_cached(dt_graph *g, dt_tensor qkv, const dt_attention_options *o)
{
    dt_tensor part[3];
    for (int64_t i = 0; i < 3; i++) part[i] = dt__shard_piece(g, qkv, 3, i);
    return part[2].id ? dt__attend(g, part[0], part[1], part[2], dt__tensor(0), o) : part[2];
}

DT_API dt_tensor dt_attention(dt_graph *g, dt_tensor qkv, int64_t heads, int causal, float p)
{
    dt_shape s = dt__at(g, qkv)->shape;
    dt__node n = dt__node_make(DT__OP_ATTENTION, s, qkv, dt__tensor(0), dt__tensor(0));
    dt_attention_options o;
    if (!qkv.id) return qkv;
    heads = dt__heads_of(g, qkv, "heads", heads);
    if (s.dims != 3 || heads < 1 || s.n[2] % (3 * heads))
        return dt__poison(g, DT_E_SHAPE, "attention: input must be (B,T,3C) with C = %lld divisible by %lld heads",
                          (long long)(s.dims == 3 ? s.n[2] / 3 : 0), (long long)heads);
    memset(&o, 0, sizeof o);
    o.heads = heads, o.causal = causal, o.dropout = p;
    if (g->context) return dt__attention_cached(g, qkv, &o);
    return dt__attention_push(g, &n, &o, 0, s.n[2] / 3 / heads);
}

/* What forward and backward share; `mask` is the number of the mask's input. */
static dt__attention dt__attention_job(const dt__call *c, float *stats, int mask)
{
    const dt__node *n = c->n;
    dt__attention a = dt__attention_sizes(c->g, n);
    a.q = c->in[0];
    a.k = n->i[3] ? c->in[1] : a.q + a.h * a.d;
    a.v = n->i[3] ? c->in[2] : a.k + a.h * a.d;
    if (n->i[3] && mask < n->inputs) {
        a.mask = (const dt__word *)(const void *)c->in[mask];
        a.mask_bits = dt__in(c, mask)->dtype == DT_I32 ? 0xffffffffu : 0x7fffffffu;
        a.mask_step = dt__in(c, mask)->shape.dims == 3 ? a.t * a.s : 0;
    }
    if (c->g->context) a.s = c->env->position + a.t; /* of the cache's rows */
    a.ldo = a.lddo = a.h * a.d;
    a.row_max = stats, a.row_sum = stats + a.b * a.h * a.t;
    a.drop_threshold = c->env->inference ? 0 : dt__drop_threshold(n->f);
    a.drop_scale = 1.0f / (1.0f - n->f);
    if (a.drop_threshold) a.rng = dt__site(c, a.b, n->i[2]);
    return a;
}
/* Rows of a fused input hold [q | k | v] of one shard behind those of another: the job of the next one. Its statistics
 * lie behind the last one's. */
static dt__attention dt__attention_next(dt__attention a)
{
    int64_t row = a.h * a.d, stats = a.b * a.h * a.t;
    a.q += 3 * row, a.k += 3 * row, a.v += 3 * row, a.o += row;
    if (a.dout) a.dout += row, a.dq += 3 * row, a.dk += 3 * row, a.dv += 3 * row;
    a.row_max += 2 * stats, a.row_sum += 2 * stats;
    a.first_head += a.h;
    return a;
}
/* Of a whole fused job: that of its first shard. */
static dt__attention dt__attention_first(dt__attention a, int64_t shards)
{
    a.h /= shards, a.hk /= shards;
    a.k = a.q + a.h * a.d, a.v = a.k + a.h * a.d;
    a.row_sum = a.row_max + a.b * a.h * a.t;
    if (a.dout) a.dk = a.dq + a.h * a.d, a.dv = a.dk + a.h * a.d;
    return a;
}
/* ---- attention over context slices --------------------------------------------------------------------
 * A sequence is S = 2 Vc slices, and context leaf c has slices c and S-1-c, so that with a causal mask all leaves have
 * as much to do. Blocks of keys and values, those of a rank's leaves, travel round the ranks of a context group (ring
 * attention, Liu et al. 2023), the next one on its way while one is worked on. What a slice of queries makes of a slice
 * of keys is computed as that of whole sequences is, and becomes a node of the tree over slices (R9): of keys for the
 * output and dq, of queries for dk and dv, whose nodes go to the owner of the keys. Siblings join as soon as both are
 * there, so neither the number of ranks nor the order of arrival changes a bit. Slices that a causal mask hides from
 * each other are not computed, and an empty node leaves its sibling as it is. */

typedef struct dt__sliced {
    const dt__call *c;
    const dt__attention *a; /* all of this rank: (leaves samples, two slices) */
    int64_t leaves, slices; /* of this rank; of a sequence */
    int64_t samples, rows;  /* of a leaf; of a slice */
    int64_t width, pair;    /* floats of a row of queries, and of a row [k | v] of keys */
    int64_t stats, node;    /* floats of a node: row maxima, as many sums, o or dq */
    int64_t keys;           /* floats of the keys and values of a slice */
    int level, ranks, at;   /* leaves = 1 << level; of the context group, this one's place in it */
    float *block[2];        /* the block at work and the next one: (2 leaves, samples, rows, pair) */
    float *box[2], *inbox;  /* nodes of dk and dv on their way to the owner and from others */
    float *nodes, *key_nodes, *key_stack;
} dt__sliced;

/* The k-th slice of a rank's block by its number in the sequence, where it lies in the block, and its first row among
 * the rank's (leaves, samples, 2, rows). */
static int64_t dt__slice_number(const dt__sliced *s, int owner, int64_t k)
{
    return k < s->leaves ? owner * s->leaves + k : s->slices - (owner + 2) * s->leaves + k;
}
static int64_t dt__slice_place(const dt__sliced *s, int64_t k)
{
    return k < s->leaves ? 2 * k : 4 * s->leaves - 1 - 2 * k;
}
static int64_t dt__slice_row(const dt__sliced *s, int64_t place)
{
    return (place / 2 * s->samples * 2 + (place & 1)) * s->rows;
}

/* Have the queries [.., end) any that see key slice `key`; do the keys [begin, ..) have any that query slice sees? */
static int dt__slice_seen(const dt__sliced *s, int64_t end, int64_t key) { return !s->a->causal || end > key; }
static int dt__slice_sees(const dt__sliced *s, int64_t query, int64_t begin) { return !s->a->causal || begin <= query; }
/* Does a rank's half of the slices, the early ones or the late ones, make a node for this slice of keys? */
static int dt__slice_half(const dt__sliced *s, int rank, int half, int64_t key)
{
    return dt__slice_seen(s, half ? s->slices - rank * s->leaves : (rank + 1) * s->leaves, key);
}
/* Floats that `rank` makes for the keys of `owner`. */
static int64_t dt__slice_message(const dt__sliced *s, int rank, int owner)
{
    int64_t count = 0;
    for (int64_t k = 0; k < 4 * s->leaves; k++)
        count += dt__slice_half(s, rank, (int)(k & 1), dt__slice_number(s, owner, k / 2));
    return count * s->keys;
}

/* Nodes that are alive together, the most on any rank: of the tree over keys, or of that over queries at the owner. */
static int dt__sliced_alive(const dt__sliced *s, int over_queries)
{
    int most = 0;
    int32_t to, from;
    for (int at = 0; at < s->ranks; at++) {
        dt__stack tree;
        memset(&tree, 0, sizeof tree);
        for (int64_t i = 0; i < s->ranks * 2 * s->leaves; i++) {
            int step = (int)(i / (2 * s->leaves)), rank = (at + (over_queries ? step : s->ranks - step)) % s->ranks;
            int64_t number = dt__slice_number(s, rank, i % (2 * s->leaves));
            if (over_queries && number % s->leaves) continue;
            dt__stack_push(&tree, over_queries ? s->level : 0, over_queries ? number >> s->level : number);
            while (dt__stack_join(&tree, &to, &from)) continue;
        }
        most = tree.sets > most ? tree.sets : most;
    }
    return most;
}

/* Sizes of a job, and its places from `work` on; returns the floats of forward, or of backward. */
static int64_t dt__sliced_of(dt__sliced *s, const dt_graph *g, const dt__attention *a, float *work, int backward)
{
    int64_t block, box, at;
    memset(s, 0, sizeof *s);
    s->a = a;
    s->leaves = g->own_leaves, s->slices = 2 * g->context_shards;
    s->ranks = (int)(g->context_shards / s->leaves), s->at = (int)(g->first_leaf / s->leaves);
    while ((int64_t)1 << s->level < s->leaves) s->level++;
    s->samples = a->b / s->leaves, s->rows = a->t / 2;
    s->width = a->h * a->d, s->pair = 2 * a->hk * a->d;
    s->stats = backward ? 0 : a->b * a->h * a->t;
    s->node = 2 * s->stats + a->b * a->t * s->width;
    s->keys = s->samples * s->rows * s->pair;
    block = 2 * s->leaves * s->keys;
    box = backward ? dt__slice_message(s, s->at, s->at) : 0;
    s->block[0] = work, at = block;
    s->block[1] = work + at, at += s->ranks > 1 ? block : 0;
    s->box[0] = work + at, at += box;
    s->box[1] = work + at, at += s->ranks > 1 ? box : 0;
    s->inbox = work + at, at += s->ranks > 1 ? box : 0;
    s->key_stack = work + at, at += backward ? s->level * s->keys : 0;
    s->key_nodes = work + at, at += backward ? dt__sliced_alive(s, 1) * block : 0;
    s->nodes = work + at, at += dt__sliced_alive(s, 0) * s->node;
    return at;
}
/* Floats of dt__env.cp.work that an attention node needs, forward and backward. */
static int64_t dt__sliced_floats(const dt_graph *g, const dt__node *n)
{
    dt__attention a = dt__attention_sizes(g, n);
    dt__sliced s;
    if (!n->i[3]) a.h /= dt__max(1, n->i[5]), a.hk /= dt__max(1, n->i[5]);
    return dt__max(dt__sliced_of(&s, g, &a, NULL, 0), dt__sliced_of(&s, g, &a, NULL, 1));
}

/* Places ready, and the own block packed. */
static void dt__sliced_begin(dt__sliced *s, const dt__call *c, const dt__attention *a, int backward)
{
    int64_t half;
    (void)dt__sliced_of(s, c->g, a, c->env->cp.work, backward);
    s->c = c;
    half = s->pair / 2;
    for (int64_t i = 0; i < 2 * s->leaves * s->samples * s->rows; i++) {
        int64_t place = i / (s->samples * s->rows), sample = i / s->rows % s->samples;
        int64_t row = dt__slice_row(s, place) + sample * 2 * s->rows + i % s->rows;
        memcpy(s->block[0] + i * s->pair, a->k + row * a->ldk, 4 * (size_t)half);
        memcpy(s->block[0] + i * s->pair + half, a->v + row * a->ldk, 4 * (size_t)half);
    }
}

/* Step i of the ring works on the block of the i-th rank before this one. Before it is worked on it goes to the next
 * rank, afterwards the next block is taken. */
static int dt__sliced_owner(const dt__sliced *s, int step) { return (s->at + s->ranks - step) % s->ranks; }
static void dt__sliced_offer(const dt__sliced *s, int step)
{
    const dt__cp *cp = &s->c->env->cp;
    if (step + 1 < s->ranks)
        cp->post(cp->user, step & 1, s->block[step & 1], 2 * s->leaves * s->keys, (s->at + 1) % s->ranks);
}
static void dt__sliced_next(const dt__sliced *s, int step)
{
    const dt__cp *cp = &s->c->env->cp;
    if (step + 1 == s->ranks) return;
    cp->settle(cp->user, (step + 1) & 1);
    cp->take(cp->user, s->block[(step + 1) & 1], 2 * s->leaves * s->keys, (s->at + s->ranks - 1) % s->ranks);
}
/* All that was sent has been taken. */
static void dt__sliced_settle(const dt__sliced *s)
{
    const dt__cp *cp = &s->c->env->cp;
    for (int place = 0; place < DT__CP_PLACES && s->ranks > 1; place++) cp->settle(cp->user, place);
}

/* This rank's q-th slice of queries against the k-th slice of keys of the block of `owner`. */
static dt__attention dt__sliced_pair(const dt__sliced *s, int64_t q, const float *block, int owner, int64_t k)
{
    dt__attention j = *s->a;
    int64_t place = dt__slice_place(s, q), row = dt__slice_row(s, place);
    int64_t stat = place / 2 * s->samples * j.h * j.t + (place & 1) * s->rows;
    j.b = s->samples, j.t = j.s = j.room = j.gap = s->rows;
    j.q += row * j.ld;
    j.k = block + dt__slice_place(s, k) * s->keys, j.v = j.k + s->pair / 2, j.ldk = s->pair;
    j.o += row * j.ldo, j.row_max += stat, j.row_sum += stat;
    j.whole = s->slices * s->rows;
    j.t_at = dt__slice_number(s, s->at, q) * s->rows, j.s_at = dt__slice_number(s, owner, k) * s->rows;
    j.causal = j.causal && j.t_at == j.s_at;
    if (j.rng) j.rng += place / 2 * s->samples;
    if (j.dout) j.dout += row * j.lddo;
    return j;
}

/* ---- work on all samples of a slice ---- */

typedef struct dt__slice_job {
    const dt__sliced *s;
    float *to;
    const float *from;
    int64_t row, stat; /* of the slice in a node */
    int64_t n, step;   /* floats of a sample, and from one to the next; or two nodes */
    int copy;
} dt__slice_job;

static void dt__slice_add_task(void *context, int64_t task, int worker)
{
    const dt__slice_job *j = (const dt__slice_job *)context;
    float *to = j->to + task * j->step;
    const float *from = j->from + task * j->step;
    (void)worker;
    if (j->copy) memcpy(to, from, 4 * (size_t)j->n);
    else j->s->c->env->k->binary(DT__OP_ADD, to, to, 1, from, 1, j->n);
}
static void dt__slice_add(const dt__sliced *s, float *to, const float *from, int64_t n, int64_t step, int copy)
{
    dt__slice_job j;
    j.s = s, j.to = to, j.from = from, j.n = n, j.step = step, j.copy = copy;
    dt__parallel(s->c->env->pool, s->samples, dt__slice_add_task, &j);
}

/* One head of one sample of two nodes of the forward pass. */
static void dt__slice_join_task(void *context, int64_t task, int worker)
{
    const dt__slice_job *j = (const dt__slice_job *)context;
    const dt__sliced *s = j->s;
    const dt__attention *a = s->a;
    dt__slice_sums side[2];
    (void)worker;
    for (int i = 0; i < 2; i++) {
        float *node = s->nodes + (i ? j->n : j->step) * s->node;
        side[i].max = node + j->stat + task * a->t, side[i].sum = side[i].max + s->stats;
        side[i].o = node + 2 * s->stats + (j->row + task / a->h * a->t) * s->width + task % a->h * a->d;
        side[i].ld = s->width;
    }
    s->c->env->k->attention_join(&side[0], &side[1], s->rows, a->d);
}
static void dt__slice_end_task(void *context, int64_t task, int worker) /* out = o / sum of a sample */
{
    const dt__slice_job *j = (const dt__slice_job *)context;
    const dt__sliced *s = j->s;
    const dt__attention *a = s->a;
    (void)worker;
    for (int64_t i = 0; i < a->h * a->t; i++) {
        int64_t row = task * a->t + i % a->t, head = i / a->t, stat = task * a->h * a->t + i;
        const float *o = j->from + 2 * s->stats + row * s->width + head * a->d;
        a->row_max[stat] = j->from[stat], a->row_sum[stat] = j->from[s->stats + stat];
        for (int64_t c = 0; c < a->d; c++) a->o[row * a->ldo + head * a->d + c] = o[c] / j->from[s->stats + stat];
    }
}

/* Node `to` of the tree over keys takes up its right sibling, for each slice of queries that sees some of it. */
static void dt__sliced_join(const dt__sliced *s, const dt__partial *sum, int to, int from, int backward)
{
    int64_t middle = (2 * sum->index + 1) << (sum->level - 1);
    for (int64_t q = 0; q < 2 * s->leaves; q++) {
        int64_t place = dt__slice_place(s, q), row = dt__slice_row(s, place);
        dt__slice_job j;
        if (!dt__slice_sees(s, dt__slice_number(s, s->at, q), middle)) continue;
        if (backward) {
            dt__slice_add(s, s->nodes + to * s->node + row * s->width, s->nodes + from * s->node + row * s->width,
                          s->rows * s->width, 2 * s->rows * s->width, 0);
            continue;
        }
        j.s = s, j.row = row, j.stat = place / 2 * s->samples * s->a->h * s->a->t + (place & 1) * s->rows;
        j.step = to, j.n = from;
        dt__parallel(s->c->env->pool, s->samples * s->a->h, dt__slice_join_task, &j);
    }
}

static void dt__sliced_forward(const dt__call *c, const dt__attention *a)
{
    dt__sliced s;
    dt__stack tree;
    dt__slice_job end;
    int32_t to, from;
    memset(&tree, 0, sizeof tree);
    dt__sliced_begin(&s, c, a, 0);
    for (int step = 0; step < s.ranks; step++) {
        int owner = dt__sliced_owner(&s, step);
        dt__sliced_offer(&s, step);
        for (int64_t k = 0; k < 2 * s.leaves; k++) {
            float *node;
            dt__stack_push(&tree, 0, dt__slice_number(&s, owner, k));
            node = s.nodes + tree.node[tree.count - 1].set * s.node;
            for (int64_t q = 0; q < 2 * s.leaves; q++) {
                dt__attention j = dt__sliced_pair(&s, q, s.block[step & 1], owner, k);
                if (!dt__slice_sees(&s, j.t_at, j.s_at)) continue;
                j.row_max = node + (j.row_max - a->row_max), j.row_sum = j.row_max + s.stats;
                j.o = node + 2 * s.stats + dt__slice_row(&s, dt__slice_place(&s, q)) * s.width, j.ldo = s.width;
                j.part = 1;
                c->env->k->attention_forward(c->env->pool, &j);
            }
            while (dt__stack_join(&tree, &to, &from)) dt__sliced_join(&s, &tree.node[tree.count - 1], to, from, 0);
        }
        dt__sliced_next(&s, step);
    }
    dt__sliced_settle(&s);
    end.s = &s, end.from = s.nodes + tree.node[0].set * s.node;
    dt__parallel(c->env->pool, a->b, dt__slice_end_task, &end);
}

/* ---- backward: keys ---- */

/* Of a slice of keys: node `to` over queries takes up its right sibling. */
static void dt__sliced_join_keys(const dt__sliced *s, const dt__partial *sum, float *to, const float *from, int64_t key)
{
    int64_t middle = (2 * sum->index + 1) << (sum->level - 1), end = (sum->index + 1) << sum->level;
    if (dt__slice_seen(s, end, key))
        dt__slice_add(s, to, from, s->keys / s->samples, s->keys / s->samples, !dt__slice_seen(s, middle, key));
}

/* dq of the q-th slices of queries of one half into `node`, and the half's node of dk and dv of one slice of keys into
 * `out`. */
static void dt__sliced_half(const dt__sliced *s, const float *block, int owner, int64_t k, int half, float *node,
                            float *out)
{
    int64_t key = dt__slice_number(s, owner, k);
    dt__stack own;
    int32_t to, from;
    memset(&own, 0, sizeof own);
    for (int64_t q = half * s->leaves; q < (half + 1) * s->leaves; q++) {
        dt__attention j = dt__sliced_pair(s, q, block, owner, k);
        int64_t set;
        dt__stack_push(&own, 0, dt__slice_number(s, s->at, q));
        set = own.node[own.count - 1].set;
        j.dq = node + dt__slice_row(s, dt__slice_place(s, q)) * s->width, j.lddq = s->width;
        j.dk = set ? s->key_stack + (set - 1) * s->keys : out, j.dv = j.dk + s->pair / 2, j.lddk = s->pair;
        if (dt__slice_sees(s, j.t_at, j.s_at)) s->c->env->k->attention_backward(s->c->env->pool, &j);
        while (dt__stack_join(&own, &to, &from))
            dt__sliced_join_keys(s, &own.node[own.count - 1], to ? s->key_stack + (to - 1) * s->keys : out,
                                 s->key_stack + (from - 1) * s->keys, key);
    }
}

/* What `rank` made for this rank's keys: two nodes of the tree over queries. */
static void dt__sliced_arrive(const dt__sliced *s, dt__stack *tree, int rank, const float *message)
{
    int64_t block = 2 * s->leaves * s->keys;
    for (int half = 0; half < 2; half++) {
        const float *at = message;
        int32_t to, from;
        float *node;
        dt__stack_push(tree, s->level, half ? 2 * s->ranks - 1 - rank : rank);
        node = s->key_nodes + tree->node[tree->count - 1].set * block;
        for (int64_t i = 0; i < 4 * s->leaves; i++) {
            int64_t k = i / 2, size = s->keys / s->samples;
            if (!dt__slice_half(s, rank, (int)(i & 1), dt__slice_number(s, s->at, k))) continue;
            if ((int)(i & 1) == half) dt__slice_add(s, node + dt__slice_place(s, k) * s->keys, at, size, size, 1);
            at += s->keys;
        }
        while (dt__stack_join(tree, &to, &from))
            for (int64_t k = 0; k < 2 * s->leaves; k++) {
                float *keys = s->key_nodes + dt__slice_place(s, k) * s->keys;
                dt__sliced_join_keys(s, &tree->node[tree->count - 1], keys + to * block, keys + from * block,
                                     dt__slice_number(s, s->at, k));
            }
    }
}

/* One block: dq nodes of the tree over keys, and the message to its owner. */
static void dt__sliced_block(const dt__sliced *s, dt__stack *tree, int step)
{
    int owner = dt__sliced_owner(s, step);
    float *box = s->box[step & 1];
    int32_t to, from;
    for (int64_t k = 0; k < 2 * s->leaves; k++) {
        int64_t key = dt__slice_number(s, owner, k);
        dt__stack_push(tree, 0, key);
        for (int half = 0; half < 2; half++) {
            if (!dt__slice_half(s, s->at, half, key)) continue;
            dt__sliced_half(s, s->block[step & 1], owner, k, half, s->nodes + tree->node[tree->count - 1].set * s->node,
                            box);
            box += s->keys;
        }
        while (dt__stack_join(tree, &to, &from)) dt__sliced_join(s, &tree->node[tree->count - 1], to, from, 1);
    }
}

static void dt__sliced_backward(const dt__call *c, const dt__attention *a)
{
    const dt__cp *cp = &c->env->cp;
    dt__sliced s;
    dt__stack tree, keys;
    const float *dq, *dkv;
    memset(&tree, 0, sizeof tree);
    memset(&keys, 0, sizeof keys);
    dt__sliced_begin(&s, c, a, 1);
    for (int step = 0; step < s.ranks; step++) {
        int owner = dt__sliced_owner(&s, step), rank = (s.at + step) % s.ranks, place = 2 + (step & 1);
        dt__sliced_offer(&s, step);
        if (step > 1) cp->settle(cp->user, place);
        dt__sliced_block(&s, &tree, step);
        if (step) cp->post(cp->user, place, s.box[step & 1], dt__slice_message(&s, s.at, owner), owner);
        dt__sliced_next(&s, step);
        if (step) cp->take(cp->user, s.inbox, dt__slice_message(&s, rank, s.at), rank);
        dt__sliced_arrive(&s, &keys, rank, step ? s.inbox : s.box[0]);
    }
    dt__sliced_settle(&s);
    dq = s.nodes + tree.node[0].set * s.node;
    dkv = s.key_nodes + keys.node[0].set * 2 * s.leaves * s.keys;
    for (int64_t i = 0; i < a->b * a->t; i++) {
        int64_t place = i / (s.samples * s.rows), sample = i / s.rows % s.samples;
        int64_t row = dt__slice_row(&s, place) + sample * 2 * s.rows + i % s.rows;
        memcpy(a->dq + i * a->lddq, dq + i * s.width, 4 * (size_t)s.width);
        memcpy(a->dk + row * a->lddk, dkv + i * s.pair, 4 * (size_t)(s.pair / 2));
        memcpy(a->dv + row * a->lddk, dkv + i * s.pair + s.pair / 2, 4 * (size_t)(s.pair / 2));
    }
}

static void dt__run_attention(const dt__call *c)
{
    dt__attention a = dt__attention_job(c, c->aux, 3);
    int64_t shards = c->n->i[3] ? 1 : dt__max(1, c->n->i[5]);
    a.o = c->out;
    if (shards > 1) a = dt__attention_first(a, shards);
    for (int64_t v = 0; v < shards; v++, a = dt__attention_next(a)) {
        if (c->g->context_shards) dt__sliced_forward(c, &a);
        else c->env->k->attention_forward(c->env->pool, &a);
    }
}
/* in: qkv, stats, o, dout; or q, k, v, stats, o, dout, perhaps the mask: then out is dq, dk, dv in one row. */
static void dt__run_attention_grad(const dt__call *c)
{
    int fused = !c->n->i[3], first = fused ? 1 : 3;
    int64_t shards = fused ? dt__max(1, c->n->i[5]) : 1;
    float *stats, *o;
    dt__attention a;
    memcpy(&stats, &c->in[first], sizeof stats); /* read only: the struct serves both directions */
    memcpy(&o, &c->in[first + 1], sizeof o);
    a = dt__attention_job(c, stats, first + 3);
    a.o = o;
    a.dout = c->in[first + 2];
    a.dq = c->out;
    a.dk = a.dq + (fused ? a.ldo : a.b * a.t * a.ldo);
    a.dv = a.dk + (fused ? a.ldo : a.b * a.s * a.ldk);
    a.lddq = a.ld, a.lddk = a.ldk;
    if (shards > 1) a = dt__attention_first(a, shards);
    for (int64_t v = 0; v < shards; v++, a = dt__attention_next(a)) {
        if (c->g->context_shards) dt__sliced_backward(c, &a);
        else c->env->k->attention_backward(c->env->pool, &a);
    }
}

/* Turns per position / 2 of pair c: base^(-2c/d) / pi, slowed as Llama 3 does: waves longer than the original context
 * over low_freq_factor by `factor`, those shorter than it over high_freq_factor not, between them in proportion. */
static double dt__rope_frequency(int64_t c, int64_t d, double base, const dt_rope_scaling *scaling)
{
    double f = dt__exp_double(-dt__log_double(base) * (double)(2 * c) / (double)d), waves, keep;
    if (scaling && scaling->factor > 0.0) {
        waves = (double)scaling->original_context * f / 6.28318530717958647692; /* in the original context */
        keep = (waves - scaling->low_freq_factor) / (scaling->high_freq_factor - scaling->low_freq_factor);
        keep = keep < 0.0 ? 0.0 : keep > 1.0 ? 1.0 : keep;
        f = (1.0 - keep) * (f / scaling->factor) + keep * f;
    }
    return f * 0.31830988618379067154;
}

/* Cosines and sines (t,2,d/2) of the positions from offset on; NULL with the graph poisoned. */
static const float *dt__rope_table(dt_graph *g, int64_t t, int64_t d, double base, int64_t offset,
                                   const dt_rope_scaling *scaling)
{
    float *table = NULL;
    if (dt__grow((void **)&g->tables, g->table_count, &g->table_capacity, sizeof *g->tables))
        table = (float *)dt__alloc(4 * t * d, "a table of angles");
    if (!table) return dt__poison(g, DT_E_MEMORY, "rope: no memory for the table of angles"), (const float *)NULL;
    g->tables[g->table_count++] = table;
    g->table_floats += t * d;
    for (int64_t c = 0; c < d / 2; c++) {
        double f = dt__rope_frequency(c, d, base, scaling), cosine, sine;
        for (int64_t i = 0; i < t; i++) {
            dt__cos_sin_pi((double)(offset + i) * f, &cosine, &sine);
            table[i * d + c] = (float)cosine;
            table[i * d + d / 2 + c] = (float)sine;
        }
    }
    return table;
}

/* i: heads, direction. */
DT_API dt_tensor dt_rope(dt_graph *g, dt_tensor x, int64_t heads, double base, int64_t offset,
                         const dt_rope_scaling *scaling)
{
    dt_shape s = dt__at(g, x)->shape;
    dt__node n = dt__node_make(DT__OP_ROPE, s, x, dt__tensor(0), dt__tensor(0));
    char text[96];
    unsigned saved;
    if (!x.id) return x;
    heads = dt__heads_of(g, x, "heads", heads);
    if (s.dims != 3 || heads < 1 || s.n[2] % (2 * heads))
        return dt__poison(g, DT_E_SHAPE, "rope: %s must be (B,T,H*d) with %lld heads of an even width d",
                          dt__shape_text(&s, text), (long long)heads);
    if (!(base >= 1.0 && base <= 1e300) || offset < 0 || offset > INT32_MAX)
        return dt__poison(g, DT_E_USAGE, "rope: base %g must be at least 1 and offset %lld in [0, 2^31)", base,
                          (long long)offset);
    if (scaling && scaling->factor != 0.0 &&
        !(scaling->factor >= 1.0 && scaling->low_freq_factor > 0.0 &&
          scaling->high_freq_factor > scaling->low_freq_factor && scaling->original_context > 0))
        return dt__poison(g, DT_E_USAGE,
                          "rope: scaling needs factor >= 1, 0 < low_freq_factor < high_freq_factor, original_context");
    n.i[0] = heads, n.i[1] = 1;
    saved = dt__fp_enter();
    n.table = dt__rope_table(g, g->context ? g->context : s.n[1] * dt__max(1, g->context_shards), s.n[2] / heads, base,
                             offset, scaling);
    dt__fp_leave(saved);
    return dt__push(g, &n, NULL);
}
static void dt__rope_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t cols = dt__cols(c->n), t = c->n->shape.n[1], d = cols / c->n->i[0];
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = c->env->position + (c->g->context_shards ? dt__row_position(c->g, r) : r % t);
        c->env->k->rope(c->out + r * cols, c->in[0] + r * cols, c->n->table + at * d, c->n->i[0], d, (float)c->n->i[1]);
    }
}
static void dt__run_rope(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__rope_rows); }

/* Learned positions: "<name>" (T,C); in a decode graph the rows of its T tokens out of (context,C); those of a unit's
 * rows where context shards cut the sequences. */
static dt_tensor dt__positions(dt_graph *g, const char *name, int64_t t, int64_t width)
{
    int64_t all = g->context ? g->context : t * dt__max(1, g->context_shards);
    dt_tensor none = dt__tensor(0), table = dt_param(g, name, dt_shape2(all, width), DT_INIT_NORMAL, 0.01f);
    dt__node ids = dt__node_make(DT__OP_POSITIONS, dt_shape2(g->samples, t), none, none, none);
    if (g->context) return dt__push_op(g, DT__OP_POSITIONS, dt_shape2(t, width), table, none, none);
    ids.dtype = DT_I32;
    return g->context_shards ? dt_embed(g, table, dt__push(g, &ids, NULL)) : table;
}
static void dt__run_positions(const dt__call *c)
{
    int32_t *ids = (int32_t *)(void *)c->out;
    if (c->n->inputs) memcpy(c->out, c->in[0] + c->env->position * dt__cols(c->n), 4 * (size_t)dt__count(c->n));
    for (int64_t r = 0; !c->n->inputs && r < dt__count(c->n); r++) ids[r] = (int32_t)dt__row_position(c->g, r);
}

DT_API dt_tensor dt_dropout(dt_graph *g, dt_tensor x, float p)
{
    dt__node n = dt__node_make(DT__OP_DROPOUT, dt__at(g, x)->shape, x, dt__tensor(0), dt__tensor(0));
    if (!x.id) return x;
    if (!(p >= 0.0f && p < 1.0f)) return dt__poison(g, DT_E_USAGE, "dropout %g is outside [0, 1)", (double)p);
    if (n.shape.dims < 1) return dt__poison(g, DT_E_SHAPE, "dropout: axis 0 must count samples");
    if (p == 0.0f) return x;
    n.i[1] = dt__splits_rows(g) && n.shape.dims == 3 && n.shape.n[0] == 1 && /* own rows alone */
             n.shape.n[1] == dt__part_of(g, g->samples * g->positions);
    if (!n.i[1] && !dt__counts_samples(g, n.shape.n[0]))
        return dt__poison(g, DT_E_SHAPE, "dropout: axis 0 must count the unit's samples, it holds %lld",
                          (long long)n.shape.n[0]);
    n.f = p;
    n.i[0] = g->sites++;
    return dt__push(g, &n, NULL);
}
/* n elements of a sample from element i on. */
static void dt__drop(const dt__call *c, const dt__rng *rng, float *out, const float *x, int64_t i, int64_t n)
{
    uint32_t threshold = dt__drop_threshold(c->n->f), counter[4], word[4];
    float scale = 1.0f / (1.0f - c->n->f);
    memcpy(counter + 1, rng->counter, sizeof rng->counter);
    for (int64_t k = 0; k < n; k++, i++) {
        if (!k || !(i & 3)) {
            counter[0] = (uint32_t)(i >> 2);
            dt__philox(counter, rng->key, word);
        }
        out[k] = word[i & 3] < threshold ? 0.0f : x[k] * scale;
    }
}
/* Elements [begin, end) of sample b, those of its rows here; out and x are where its element 0 is or would be. */
static void dt__drop_sample(const dt__call *c, int64_t b, float *out, const float *x, int64_t begin, int64_t end)
{
    int64_t rows = c->g->context_shards ? c->g->positions : 0, half = rows / 2 * dt__cols(c->n);
    if (!rows) dt__drop(c, &c->env->rng[b], out + begin, x + begin, begin, end - begin);
    for (int64_t i = begin, n; rows && i < end; i += n) { /* a slice's rows are neighbours in the sequence */
        int64_t slice = i / half, shift = dt__row_position(c->g, b * rows + slice * rows / 2) * dt__cols(c->n);
        n = dt__min(end, (slice + 1) * half) - i;
        dt__drop(c, &c->env->rng[b], out + i, x + i, shift + i - slice * half, n);
    }
}
static void dt__dropout_samples(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t count = dt__count(c->n), first = 0, each = count / c->n->shape.n[0], samples = c->n->shape.n[0];
    (void)worker;
    if (c->n->i[1]) { /* elements [first, first + count) of a leaf's samples */
        samples = c->g->samples / dt__leaves(c->g);
        each = c->g->positions * dt__cols(c->n);
        count /= dt__leaves(c->g);
        first = count / dt__own(c->g) * c->g->first_shard;
    }
    for (int64_t b = begin; b < end; b++) {
        int64_t low = b % samples * each, from = dt__max(first, low), to = dt__min(first + count, low + each);
        int64_t at = b / samples * count + low - first;
        if (from < to) dt__drop_sample(c, b, c->out + at, c->in[0] + at, from - low, to - low);
    }
}
static void dt__run_dropout(const dt__call *c)
{
    int64_t samples;
    if (c->env->inference) {
        if (c->out != c->in[0]) memcpy(c->out, c->in[0], 4 * (size_t)dt__count(c->n));
        return;
    }
    samples = c->n->i[1] ? c->g->samples : c->n->shape.n[0];
    dt__site(c, samples, c->n->i[0]);
    dt__split(c, samples, 1, dt__dropout_samples);
}

/* ---- loss ------------------------------------------------------------------------------------------ */

/* The mean of `terms` terms from their sum: in a segment the sum that becomes it when it is divided by the targets. */
static dt_tensor dt__loss_mean(dt_graph *g, dt_tensor sum, int64_t terms)
{
    int64_t targets = g->eager ? 1 : dt__count(dt__at(g, g->targets));
    if (!sum.id || targets == terms) return sum;
    return dt_scale(g, sum, g->eager ? 1.0f / (float)terms : (float)targets / (float)terms);
}

/* All classes of logits that are cut, and the columns of a shard: those of the table whose product they come from. */
static int64_t dt__logit_classes(const dt_graph *g, dt_tensor logits, int64_t *width)
{
    int32_t id = logits.id;
    const dt__param *p = NULL;
    for (; id && !p; id = g->nodes[id].in[0])
        if (g->nodes[id].op == DT__OP_MATMUL) p = dt__cut_param(g, &g->nodes[g->nodes[id].in[1]]);
    *width = p ? dt__param_width(p, g->tensor_shards) : 0;
    return p ? p->shape.n[p->cut] : 0;
}

DT_API dt_tensor dt_cross_entropy_smooth(dt_graph *g, dt_tensor logits, dt_tensor targets, float smoothing)
{
    dt__node n = dt__node_make(DT__OP_CROSS_ENTROPY, dt_shape0(), logits, targets, dt__tensor(0));
    dt_shape stats;
    dt_tensor sum;
    int64_t valid = 0, rows;
    if (!logits.id || !targets.id) return dt__tensor(0);
    rows = dt__rows(dt__at(g, logits));
    if (!(smoothing >= 0.0f && smoothing <= 1.0f))
        return dt__poison(g, DT_E_USAGE, "cross_entropy: smoothing %g is outside [0, 1]", (double)smoothing);
    if (dt__at(g, targets)->dtype != DT_I32 || dt__count(dt__at(g, targets)) != rows)
        return dt__poison(g, DT_E_SHAPE, "cross_entropy: needs one int32 target per row of logits (%lld rows)",
                          (long long)rows);
    for (int64_t i = 0; g->eager && i < rows; i++) {
        int32_t target = ((const int32_t *)dt__at(g, targets)->data)[i];
        if (target >= dt_dim(g, logits, -1))
            return dt__poison(g, DT_E_SHAPE, "cross_entropy: target %d is outside the %lld classes", target,
                              (long long)dt_dim(g, logits, -1));
        valid += target >= 0;
    }
    stats = dt_shape2(3, rows); /* max and sum interleaved (rows,2), then the loss of each row */
    if (dt__at(g, logits)->cut) {
        n.i[0] = dt__logit_classes(g, logits, &n.i[1]);
        stats.n[0] = 7; /* and what dt__run_sliced_entropy needs */
    }
    n.f = smoothing;
    sum = dt__push(g, &n, &stats);
    g->logits = logits;
    return dt__loss_mean(g, sum, g->eager ? dt__max(valid, 1) : rows);
}
DT_API dt_tensor dt_cross_entropy(dt_graph *g, dt_tensor logits, dt_tensor targets)
{
    return dt_cross_entropy_smooth(g, logits, targets, 0.0f);
}
static void dt__cross_entropy_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t rows = dt__rows(dt__in(c, 0)), cols = dt__cols(dt__in(c, 0));
    c->env->k->cross_entropy(c->aux + 2 * rows + begin, c->aux + 2 * begin, c->in[0] + begin * cols,
                             (const int32_t *)c->in[1] + begin, c->n->f, end - begin, cols,
                             (float *)dt__scratch(c->env->pool, worker));
}

/* Logits cut over tensor shards. Behind max, sum and losses the second output holds, each (rows): the maxima; then what
 * is summed over shards: sum of exp(x - max), the target's logit, sum of x - max. */
static float *dt__entropy_part(const dt__call *c, int part) { return c->aux + (3 + part) * dt__rows(dt__in(c, 0)); }

static void dt__entropy_max_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t cols = dt__cols(dt__in(c, 0));
    (void)worker;
    for (int64_t r = begin; r < end; r++)
        dt__entropy_part(c, 0)[r] = c->env->k->row_max(c->in[0] + r * cols, cols);
}

/* Row sums per shard, TREE over this rank's; of the target's logit -0 where another rank has it. */
static void dt__entropy_sum_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    const dt__kernels *k = c->env->k;
    int64_t cols = dt__cols(dt__in(c, 0)), width = c->n->i[1], shards = dt__own(c->g);
    float *row = (float *)dt__scratch(c->env->pool, worker), sum[2][DT__TENSOR_SHARDS];
    for (int64_t r = begin; r < end; r++) {
        const float *x = c->in[0] + r * cols;
        float max = dt__entropy_part(c, 0)[r];
        int64_t target = ((const int32_t *)(const void *)c->in[1])[r] - c->g->first_shard * width;
        for (int64_t v = 0; v < shards; v++) {
            int64_t n = dt__min(width, cols - v * width);
            k->binary(DT__OP_SUB, row, x + v * width, 1, &max, 0, n);
            sum[1][v] = c->n->f > 0.0f ? k->row_sum(row, n) : 0.0f;
            k->unary(DT__OP_EXP, row, row, n, 0.0f);
            sum[0][v] = k->row_sum(row, n);
        }
        for (int64_t step = 1; step < shards; step *= 2)
            for (int64_t v = 0; v < shards; v += 2 * step)
                for (int i = 0; i < 2; i++) sum[i][v] = sum[i][v] + sum[i][v + step];
        dt__entropy_part(c, 1)[r] = sum[0][0];
        dt__entropy_part(c, 2)[r] = target >= 0 && target < cols ? x[target] : -0.0f;
        dt__entropy_part(c, 3)[r] = sum[1][0];
    }
}

static void dt__entropy_loss_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t rows = dt__rows(dt__in(c, 0)), classes = c->n->i[0];
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        int32_t target = ((const int32_t *)(const void *)c->in[1])[r];
        float max = dt__entropy_part(c, 0)[r], sum = dt__entropy_part(c, 1)[r], log_sum, loss, even;
        c->aux[2 * r] = max, c->aux[2 * r + 1] = sum;
        c->env->k->unary(DT__OP_LOG, &log_sum, &sum, 1, 0.0f);
        loss = log_sum - (dt__entropy_part(c, 2)[r] - max);
        even = log_sum - dt__entropy_part(c, 3)[r] / (float)classes;
        if (c->n->f > 0.0f) loss = (1.0f - c->n->f) * loss + c->n->f * even;
        c->aux[2 * rows + r] = target < 0 || target >= classes ? 0.0f : loss;
    }
}

/* The columns that a rank has of all classes: two exchanges, of the maxima and of the sums. */
static void dt__run_sliced_entropy(const dt__call *c)
{
    int64_t rows = dt__rows(dt__in(c, 0));
    int alone = dt__own(c->g) == c->g->tensor_shards;
    float *max = dt__entropy_part(c, 0), *sums = dt__entropy_part(c, 1);
    const dt__tp *tp = &c->env->tp;
    dt__split(c, rows, 16, dt__entropy_max_rows);
    if (!alone) tp->combine(tp->user, DT__TP_MAX, max, max, rows);
    dt__split(c, rows, 16, dt__entropy_sum_rows);
    if (!alone) tp->combine(tp->user, DT__TP_SUM, sums, sums, (c->n->f > 0.0f ? 3 : 2) * rows);
    dt__split(c, rows, 64, dt__entropy_loss_rows);
}

static void dt__run_cross_entropy(const dt__call *c)
{
    int64_t rows = dt__rows(dt__in(c, 0));
    if (c->n->i[0]) dt__run_sliced_entropy(c);
    else dt__split(c, rows, 16, dt__cross_entropy_rows);
    c->out[0] = c->env->k->row_sum(c->aux + 2 * rows, rows);
}
/* in: logits, stats, targets, dloss. */
static void dt__cross_entropy_grad_rows(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t cols = dt__cols(c->n);
    (void)worker;
    c->env->k->cross_entropy_grad(c->out + begin * cols, c->in[0] + begin * cols, c->in[1] + 2 * begin,
                                  (const int32_t *)c->in[2] + begin, c->n->f, c->in[3][0], end - begin, cols,
                                  c->g->first_shard * c->n->i[1], c->n->i[0] ? c->n->i[0] : cols);
}
static void dt__run_cross_entropy_grad(const dt__call *c)
{
    dt__split(c, dt__rows(c->n), 16, dt__cross_entropy_grad_rows);
}

/* i[0]: samples. */
DT_API dt_tensor dt_loss(dt_graph *g, dt_tensor terms)
{
    dt__node n = dt__node_make(DT__OP_LOSS, dt_shape0(), terms, g->eager ? dt__tensor(0) : g->targets, dt__tensor(0));
    dt_shape s = dt_shape_of(g, terms), sums;
    if (!terms.id) return terms;
    n.i[0] = s.dims ? s.n[0] : 1;
    if (!dt__counts_samples(g, n.i[0]))
        return dt__poison(g, DT_E_SHAPE, "loss: axis 0 must count the unit's samples, it holds %lld",
                          (long long)n.i[0]);
    sums = dt_shape1(n.i[0]);
    return dt__loss_mean(g, dt__push(g, &n, &sums), dt_shape_count(s));
}

/* How many of n targets count: int32 of 0 or above; floats that are numbers, as all are but the fill of a unit. */
static int64_t dt__valid_targets(const void *targets, dt_dtype type, int64_t n)
{
    const int32_t *ids = (const int32_t *)targets;
    const float *numbers = (const float *)targets;
    int64_t valid = 0;
    if (type == DT_I32) for (int64_t i = 0; i < n; i++) valid += ids[i] >= 0;
    else for (int64_t i = 0; i < n; i++) valid += numbers[i] == numbers[i];
    return valid;
}

/* Does sample b have a target? Without targets (in an eager graph) each has. */
static int dt__has_target(const dt__call *c, int64_t b, int64_t samples)
{
    int64_t each;
    if (c->n->inputs < 2) return 1;
    each = dt__count(dt__in(c, 1)) / samples;
    return dt__valid_targets(c->in[1] + b * each, (dt_dtype)dt__in(c, 1)->dtype, each) > 0;
}
static void dt__loss_samples(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t each = dt__count(dt__in(c, 0)) / c->n->i[0];
    (void)worker;
    for (int64_t b = begin; b < end; b++)
        c->aux[b] = dt__has_target(c, b, c->n->i[0]) ? dt__whole_sum(c->env->k, c->in[0] + b * each, each) : 0.0f;
}
static void dt__run_loss(const dt__call *c)
{
    dt__split(c, c->n->i[0], 1, dt__loss_samples);
    c->out[0] = dt__whole_sum(c->env->k, c->aux, c->n->i[0]);
}
/* in: dloss, targets unless eager. */
static void dt__loss_grad_samples(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    int64_t each = dt__count(c->n) / c->n->i[0];
    (void)worker;
    for (int64_t b = begin; b < end; b++) {
        float d = dt__has_target(c, b, c->n->i[0]) ? c->in[0][0] : 0.0f;
        for (int64_t i = b * each; i < (b + 1) * each; i++) c->out[i] = d;
    }
}
static void dt__run_loss_grad(const dt__call *c) { dt__split(c, c->n->i[0], 1, dt__loss_grad_samples); }

/* No broadcasting: (B,1) against (B) would be a loss of B x B terms. */
static int dt__loss_fits(dt_graph *g, const char *op, dt_tensor x, dt_tensor target)
{
    char a[96], b[96];
    if (!x.id || !target.id) return 0;
    if (dt__same_shape(&dt__at(g, x)->shape, &dt__at(g, target)->shape)) return 1;
    dt__poison(g, DT_E_SHAPE, "%s: x %s and target %s must have the same shape: dt_reshape one of them", op,
               dt__shape_text(&dt__at(g, x)->shape, a), dt__shape_text(&dt__at(g, target)->shape, b));
    return 0;
}
DT_API dt_tensor dt_mse(dt_graph *g, dt_tensor x, dt_tensor target)
{
    dt_tensor d;
    if (!dt__loss_fits(g, "mse", x, target)) return dt__tensor(0);
    d = dt_sub(g, x, target);
    return dt_loss(g, dt_mul(g, d, d));
}
DT_API dt_tensor dt_bce_logits(dt_graph *g, dt_tensor x, dt_tensor target)
{
    if (!dt__loss_fits(g, "bce_logits", x, target)) return dt__tensor(0);
    return dt_loss(g, dt__binary_op(g, DT__OP_BCE, x, target));
}

/* x, and in backward the seed of `loss`, one for each context leaf: a node of its own, which also keeps the loss
 * readable after forward. */
DT_API dt_tensor dt_auxiliary_loss(dt_graph *g, dt_tensor x, dt_tensor loss, float coefficient)
{
    dt__node n = dt__node_make(DT__OP_AUX_LOSS, dt__at(g, x)->shape, x, loss, dt__tensor(0));
    if (!x.id || !loss.id) return dt__tensor(0);
    if (dt__count(dt__at(g, loss)) != dt__leaves(g))
        return dt__poison(g, DT_E_SHAPE, "auxiliary_loss: the loss has %lld elements and must be a scalar: dt_mean it",
                          (long long)dt__count(dt__at(g, loss)));
    if (!(coefficient >= 0.0f && coefficient <= 3e38f))
        return dt__poison(g, DT_E_USAGE, "auxiliary_loss: coefficient %g must be 0 or more", (double)coefficient);
    n.f = coefficient;
    return dt__push(g, &n, NULL);
}
/* in: the loss. */
static void dt__run_aux_loss_grad(const dt__call *c)
{
    for (int64_t l = 0; l < dt__count(c->n); l++) c->out[l] = c->n->f * c->env->unit_share;
}

/* ---- mixture of experts ----------------------------------------------------------------------------
 * A routing table says which row of the gathered tensors (R,C) holds which choice of which token. With L context leaves
 * here (else 1) an expert has a bin of rows for each. The table is one int32 vector: begin (LE+1), the first row of
 * each bin; asked (L,E), how many tokens of the leaf chose the expert; chosen (N,k), the experts of each token in index
 * order; row (N,k), where the choice went, -1 when the bin was full; from (N*k), the choice n*k+j that each row holds.
 * Rows are sorted by the rank that has the expert, leaf, expert, token. R is the most rows that there can be, so that
 * memory is planned; what is behind the last row is +0 and is multiplied with nothing (R5). */

typedef struct dt__route {
    int64_t experts, active, tokens, leaves, bins;
    int32_t *begin, *asked, *chosen, *row, *from;
} dt__route;

static int64_t dt__route_size(int64_t bins, int64_t choices) { return 2 * bins + 1 + 3 * choices; }

/* The table of node n, whose value is at `data`. i: experts, experts per token, most rows of a bin, leaves. */
static dt__route dt__route_at(const dt__node *n, const float *data)
{
    dt__route r;
    int64_t choices;
    memcpy(&r.begin, &data, sizeof data); /* words seen as int32 */
    r.experts = n->i[0], r.leaves = n->i[3], r.bins = r.leaves * r.experts;
    choices = (dt__count(n) - dt__route_size(r.bins, 0)) / 3;
    r.active = n->i[1], r.tokens = choices / r.active;
    r.asked = r.begin + r.bins + 1;
    r.chosen = r.asked + r.bins;
    r.row = r.chosen + choices;
    r.from = r.row + choices;
    return r;
}
/* Input 1 of every op on routed rows. */
static dt__route dt__route_of(const dt__call *c) { return dt__route_at(dt__in(c, 1), c->in[1]); }

/* ids (N,k), the experts of each token by falling probability -> routing table. Tokens of a leaf come in order; what an
 * expert is asked for by them beyond `capacity` is dropped (R10). */
static dt_tensor dt__moe_route(dt_graph *g, dt_tensor ids, int64_t experts, int64_t capacity)
{
    int64_t size = dt__route_size(dt__leaves(g) * experts, dt__count(dt__at(g, ids)));
    dt__node n = dt__node_make(DT__OP_MOE_ROUTE, dt_shape1(size), ids, dt__tensor(0), dt__tensor(0));
    n.i[0] = experts, n.i[1] = dt_dim(g, ids, 1), n.i[2] = capacity, n.i[3] = dt__leaves(g);
    n.dtype = DT_I32;
    return dt__push(g, &n, NULL);
}
/* The bin of an expert and a leaf where a rank has `own` experts. */
static int64_t dt__route_bin(const dt__route *r, int64_t own, int64_t leaf, int64_t e)
{
    return (e / own * r->leaves + leaf) * own + e % own;
}
static void dt__run_moe_route(const dt__call *c)
{
    dt__route r = dt__route_at(c->n, c->out);
    const int32_t *ids = (const int32_t *)(const void *)c->in[0];
    int64_t choices = r.tokens * r.active, of_leaf = choices / r.leaves, own = r.experts / dt__expert_ranks(c->g);
    memset(r.begin, 0, 4 * (size_t)(2 * r.bins + 1));
    for (int64_t i = 0; i < choices; i++) {
        int64_t at = i, first = i - i % r.active;
        for (; at > first && r.chosen[at - 1] > ids[i]; at--) r.chosen[at] = r.chosen[at - 1];
        r.chosen[at] = ids[i];
        r.asked[i / of_leaf * r.experts + ids[i]]++;
        r.from[i] = -1;
    }
    for (int64_t i = 0; i < r.bins; i++)
        r.begin[1 + dt__route_bin(&r, own, i / r.experts, i % r.experts)] = (int32_t)dt__min(r.asked[i], c->n->i[2]);
    for (int64_t b = 0; b < r.bins; b++) r.begin[b + 1] += r.begin[b];
    memset(r.asked, 0, 4 * (size_t)r.bins);
    for (int64_t i = 0; i < choices; i++) {
        int64_t e = r.chosen[i], leaf = i / of_leaf;
        int32_t place = r.asked[leaf * r.experts + e]++;
        r.row[i] = place < c->n->i[2] ? r.begin[dt__route_bin(&r, own, leaf, e)] + place : -1;
        if (r.row[i] >= 0) r.from[r.row[i]] = (int32_t)i;
    }
}

/* in: x (N,C), table [, w (N,k)]. out (R,C): the token of each row [times the weight of its choice]. */
static dt_tensor dt__moe_rows(dt_graph *g, dt_tensor x, dt_tensor route, dt_tensor w)
{
    const dt__node *n = dt__at(g, route);
    dt__route r = dt__route_at(n, NULL);
    int64_t rows = dt__min(r.tokens * r.active, r.bins * n->i[2]);
    return dt__push_op(g, DT__OP_MOE_ROWS, dt_shape2(rows, dt_dim(g, x, 1)), x, route, w);
}
static void dt__moe_rows_part(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    dt__route r = dt__route_of(c);
    int64_t cols = dt__cols(c->n), used = r.begin[r.bins];
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *x = c->in[0] + (i < used ? r.from[i] / r.active * cols : 0);
        if (i >= used) memset(c->out + i * cols, 0, 4 * (size_t)cols);
        else if (c->n->inputs < 3) memcpy(c->out + i * cols, x, 4 * (size_t)cols);
        else c->env->k->unary(DT__OP_SCALE, c->out + i * cols, x, cols, c->in[2][r.from[i]]);
    }
}
static void dt__run_moe_rows(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__moe_rows_part); }

/* The table of the rows that an owner of experts has: those of rank 0's first leaf for its first expert, its second,
 * .., of the rank's next leaf .., then those of rank 1 .., each a bin. It is one int32 vector: begin (LE+1), the first
 * row of each bin, as the routing table has it for all experts; then the rows of each bin of the routing table and of
 * this one (LE each). i: experts, most rows here, most rows of an owner, leaves. */
static dt_tensor dt__moe_bins(dt_graph *g, dt_tensor route)
{
    const dt__node *n = dt__at(g, route);
    dt__route r = dt__route_at(n, NULL);
    int64_t ranks = dt__expert_ranks(g), own = r.experts / ranks;
    dt__node bins = dt__node_make(DT__OP_MOE_BINS, dt_shape1(3 * r.bins + 1), route, dt__tensor(0), dt__tensor(0));
    bins.i[0] = r.experts, bins.i[3] = r.leaves;
    bins.i[1] = dt__min(r.tokens * r.active, r.bins * n->i[2]);
    bins.i[2] = ranks * dt__min(r.tokens * dt__min(r.active, own), r.leaves * own * n->i[2]);
    bins.dtype = DT_I32;
    return dt__push(g, &bins, NULL);
}
/* Bins of a table of either kind. */
static int64_t dt__table_bins(const dt__node *n) { return n->i[0] * n->i[3]; }
static void dt__run_moe_bins(const dt__call *c)
{
    const dt__ep *ep = &c->env->ep;
    int64_t bins = dt__table_bins(c->n);
    int32_t *begin, *here, *there, next = 0;
    dt__route r = dt__route_at(dt__in(c, 0), c->in[0]);
    float *of_here = c->out + bins + 1, *of_there = of_here + bins;
    memcpy(&begin, &c->out, sizeof begin); /* words seen as int32 */
    here = begin + bins + 1, there = here + bins;
    for (int64_t b = 0; b < bins; b++) here[b] = r.begin[b + 1] - r.begin[b];
    for (int64_t b = 0; b <= bins; b++) begin[b] = (int32_t)b;
    ep->trade(ep->user, of_there, begin, of_here, begin, bins / dt__expert_ranks(c->g), 1);
    for (int64_t b = 0; b < bins; next += there[b++]) begin[b] = next;
    begin[bins] = next;
}

/* in: rows (R,C) or parts (S,R,C), table, bins. out: the rows of all tokens of this rank's experts by bin; i[0]: back
 * again, the rows of this rank's tokens by expert. +0 behind them. */
static dt_tensor dt__moe_trade(dt_graph *g, dt_tensor rows, dt_tensor route, dt_tensor bins, int back)
{
    dt_shape s;
    dt__node n;
    if (!rows.id || !bins.id) return dt__tensor(0);
    s = dt_shape_of(g, rows);
    s.n[s.dims - 2] = dt__at(g, bins)->i[back ? 1 : 2];
    n = dt__node_make(DT__OP_MOE_TRADE, s, rows, route, bins);
    n.i[0] = back;
    return dt__push(g, &n, NULL);
}
static void dt__run_moe_trade(const dt__call *c)
{
    const dt__ep *ep = &c->env->ep;
    const dt__node *x = dt__in(c, 0);
    int64_t cols = dt__cols(x), from = x->shape.n[x->shape.dims - 2], to = c->n->shape.n[x->shape.dims - 2];
    int64_t bins = dt__table_bins(dt__in(c, 2));
    const int32_t *here, *there, *give, *take;
    memcpy(&here, &c->in[1], sizeof here);
    memcpy(&there, &c->in[2], sizeof there);
    give = c->n->i[0] ? there : here, take = c->n->i[0] ? here : there;
    for (int64_t p = 0; p < dt__count(x) / (from * cols); p++) {
        float *out = c->out + p * to * cols;
        int64_t used = take[bins];
        ep->trade(ep->user, out, take, c->in[0] + p * from * cols, give, bins / dt__expert_ranks(c->g), cols);
        memset(out + used * cols, 0, 4 * (size_t)((to - used) * cols));
    }
}

/* in: rows (R,C), table [, w (N,k)]. out (N,C): each token adds its rows, [w *] row, in the order of experts. Rows of
 * several tensor shards are parts (S,R,C), and out is (S,N,C) (R10). */
static dt_tensor dt__moe_sum(dt_graph *g, dt_tensor rows, dt_tensor route, dt_tensor w)
{
    dt__route r = dt__route_at(dt__at(g, route), NULL);
    dt_shape s = dt_shape_of(g, rows);
    s.n[s.dims - 2] = r.tokens;
    return dt__push_op(g, DT__OP_MOE_SUM, s, rows, route, w);
}
/* Tokens of all parts, counted through. */
static void dt__moe_sum_part(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    dt__route r = dt__route_of(c);
    int64_t cols = dt__cols(c->n), rows = dt__in(c, 0)->shape.n[c->n->shape.dims - 2];
    (void)worker;
    memset(c->out + begin * cols, 0, 4 * (size_t)((end - begin) * cols));
    for (int64_t n = begin; n < end; n++) {
        const float *x = c->in[0] + n / r.tokens * rows * cols;
        for (int64_t i = n % r.tokens * r.active, last = i + r.active; i < last; i++)
            if (r.row[i] >= 0)
                c->env->k->add_scaled(c->out + n * cols, x + r.row[i] * cols, cols,
                                      c->n->inputs > 2 ? c->in[2][i] : 1.0f);
    }
}
static void dt__run_moe_sum(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__moe_sum_part); }

/* in: dy (N,C), table, rows (R,C) or parts (S,R,C). out (N,k) or (S,N,k): dy of the token . the choice's row, +0 for a
 * dropped one. */
static void dt__moe_dot_part(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    dt__route r = dt__route_of(c);
    const dt__node *x = dt__in(c, 2);
    int64_t cols = dt__cols(x), rows = x->shape.n[x->shape.dims - 2], choices = r.tokens * r.active;
    (void)worker;
    for (int64_t i = begin * r.active; i < end * r.active; i++) {
        int64_t at = i % choices, row = r.row[at];
        const float *part = c->in[2] + i / choices * rows * cols;
        c->out[i] = row < 0 ? 0.0f : c->env->k->row_dot(c->in[0] + at / r.active * cols, part + row * cols, cols);
    }
}
static void dt__run_moe_dot(const dt__call *c) { dt__split(c, dt__rows(c->n), 16, dt__moe_dot_part); }

/* How an expert's product is cut: b, or c when it is a gradient, is a weight (E,..), of which this rank has so many
 * experts and shards. A bin of its table has rows of one expert from one source, which is a context leaf of a rank; a
 * gradient is a sum for each source (R10). */
typedef struct dt__moe_cut {
    int along_m, along_n, along_k;
    int64_t shards, width;       /* width: of a shard along what is cut */
    int64_t bins, experts;       /* bin b is of expert b % experts and of source b / experts: by rank, then leaf */
    int64_t of_shard, of_expert; /* floats from one to the next */
    const int32_t *begin;        /* (bins + 1) rows */
} dt__moe_cut;

static dt__moe_cut dt__moe_cut_of(const dt__call *c, const dt__node *weight, int transpose)
{
    const dt__param *p = dt__cut_param(c->g, weight), *stored = dt__node_param(c->g, weight);
    dt__moe_cut cut;
    memset(&cut, 0, sizeof cut);
    memcpy(&cut.begin, &c->in[1], sizeof cut.begin);
    cut.bins = dt__table_bins(dt__in(c, 1));
    cut.experts = dt__in(c, 1)->i[0] / dt__expert_ranks(c->g);
    cut.shards = p ? c->g->own_shards : 1;
    if (stored && stored->experts) {
        cut.of_shard = dt__shard_step(stored, c->g->tensor_shards);
        cut.of_expert = cut.shards * cut.of_shard;
    } else cut.of_expert = dt__count(weight) / cut.experts;
    if (!p) return cut;
    cut.width = dt__param_width(p, c->g->tensor_shards) / (p->shape.dims == 1 ? p->groups : 1);
    if (weight == c->n) cut.along_n = p->cut == 2, cut.along_m = p->cut == 1;
    else cut.along_n = (p->cut == 2) != transpose, cut.along_k = !cut.along_n;
    return cut;
}

/* Where the gradient of bin b's expert is that its source's rows make. */
static float *dt__moe_sum_of(const dt__call *c, const dt__moe_cut *cut, int64_t b)
{
    int64_t leaves = dt__leaves(c->g), source = b / cut->experts, rank = source / leaves, leaf = source % leaves;
    float *sum = leaf ? dt__slice(c, rank * (leaves - 1) + leaf) : c->out + rank * c->of_rank;
    return sum + b % cut->experts * cut->of_expert;
}

/* in: x (R,K), table, w (E,K,H) [, bias (E*H)]. out (R,H): the rows of expert e times w[e]; i[0]: times its transpose,
 * x (R,H) and out (R,K). Where shards cut what is summed over, out is parts (S,R,H), and the first of all shards has
 * the bias. */
static dt_tensor dt__moe_linear(dt_graph *g, dt_tensor x, dt_tensor route, dt_tensor w, dt_tensor bias, int transpose)
{
    const dt__param *p = dt__cut_param(g, dt__at(g, w));
    dt_shape s = dt_shape2(dt_dim(g, x, 0), dt_dim(g, w, transpose ? 1 : 2));
    dt__node n;
    if (p && (p->cut == 2) == transpose) s = dt_shape3(g->own_shards, s.n[0], s.n[1]);
    n = dt__node_make(DT__OP_MOE_LINEAR, s, x, route, w);
    if (bias.id) n.in[n.inputs++] = bias.id;
    n.i[0] = transpose;
    return dt__push(g, &n, NULL);
}

/* All bins of one shard. bias: floats from one expert's to the next. */
static void dt__moe_product(const dt__call *c, const dt__moe_cut *w, const dt__gemm *of_row_0, int64_t bias)
{
    dt__gemm job = *of_row_0;
    for (int64_t b = 0; b < w->bins; b++) {
        int64_t e = b % w->experts;
        job.m = w->begin[b + 1] - w->begin[b];
        job.a = of_row_0->a + w->begin[b] * job.ars;
        job.b = of_row_0->b + e * w->of_expert;
        job.c = of_row_0->c + w->begin[b] * job.ldc;
        job.bias = of_row_0->bias ? of_row_0->bias + e * bias : NULL;
        c->env->k->gemm(c->env->pool, &job);
    }
}
static void dt__run_moe_linear(const dt__call *c)
{
    int transpose = (int)c->n->i[0], biased = c->n->inputs > 3;
    dt__moe_cut cut = dt__moe_cut_of(c, dt__in(c, 2), transpose), of_bias;
    int64_t used = cut.begin[cut.bins], rows = c->n->shape.n[c->n->shape.dims - 2];
    dt__gemm job;
    memset(&job, 0, sizeof job);
    memset(&of_bias, 0, sizeof of_bias);
    if (biased) of_bias = dt__moe_cut_of(c, dt__in(c, 3), 0);
    job.ldc = dt__cols(c->n);
    job.ars = dt__cols(dt__in(c, 0)), job.acs = 1;
    job.n = cut.along_n ? cut.width : job.ldc;
    job.k = cut.along_k ? cut.width : job.ars;
    job.brs = transpose ? 1 : job.n, job.bcs = transpose ? job.k : 1;
    for (int64_t v = 0; v < cut.shards; v++) {
        job.a = c->in[0] + (cut.along_k ? v * cut.width : 0);
        job.b = c->in[2] + v * cut.of_shard;
        job.c = c->out + (cut.along_k ? v * rows * job.ldc : v * cut.width);
        job.bias = biased && (!cut.along_k || c->g->first_shard + v == 0) ? c->in[3] + v * of_bias.of_shard : NULL;
        dt__moe_product(c, &cut, &job, of_bias.of_expert);
        if (cut.along_k || !v) memset(job.c + used * job.ldc, 0, 4 * (size_t)((rows - used) * job.ldc));
    }
}

/* in: x (R,K), table, dy (R,H). out (E,K,H): one chain per element over the rows of the expert; +0 without rows. */
static void dt__run_moe_dw(const dt__call *c)
{
    dt__moe_cut cut = dt__moe_cut_of(c, c->n, 0);
    dt__gemm job;
    memset(&job, 0, sizeof job);
    job.acs = dt__cols(dt__in(c, 0)), job.brs = dt__cols(dt__in(c, 2));
    job.ars = job.bcs = 1;
    job.m = cut.along_m ? cut.width : job.acs;
    job.n = job.ldc = cut.along_n ? cut.width : job.brs;
    job.accumulate = !c->fresh;
    for (int64_t i = 0; i < cut.shards * cut.bins; i++) {
        int64_t v = i / cut.bins, b = i % cut.bins;
        job.k = cut.begin[b + 1] - cut.begin[b];
        job.a = c->in[0] + cut.begin[b] * job.acs + (cut.along_m ? v * cut.width : 0);
        job.b = c->in[2] + cut.begin[b] * job.brs + (cut.along_n ? v * cut.width : 0);
        job.c = dt__moe_sum_of(c, &cut, b) + v * cut.of_shard;
        if (job.k || c->fresh) c->env->k->gemm(c->env->pool, &job);
    }
}
/* in: dy (R,H), table. out (E*H): column sums of the rows of the expert. */
static void dt__moe_db_cols(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    dt__moe_cut cut = dt__moe_cut_of(c, c->n, 0);
    int64_t cols = dt__cols(dt__in(c, 0)), width = cols / cut.shards;
    (void)worker;
    for (int64_t n; begin < end; begin += n) {
        n = dt__min(end, (begin / width + 1) * width) - begin;
        for (int64_t b = 0; b < cut.bins; b++) {
            float *sum = dt__moe_sum_of(c, &cut, b) + begin / width * cut.of_shard + begin % width;
            if (c->fresh) memset(sum, 0, 4 * (size_t)n);
            c->env->k->col_sum(sum, c->in[0] + cut.begin[b] * cols + begin, cut.begin[b + 1] - cut.begin[b], n, cols);
        }
    }
}
static void dt__run_moe_db(const dt__call *c) { dt__split(c, dt__cols(dt__in(c, 0)), 64, dt__moe_db_cols); }

/* x (N,..) of all tokens as (L,N/L,..), one for each context leaf; without context shards as it is. */
static dt_tensor dt__moe_leaves(dt_graph *g, dt_tensor x)
{
    dt_shape s = dt_shape_of(g, x), leaves = s;
    if (!g->context_shards || !x.id) return x;
    leaves.dims = s.dims + 1;
    leaves.n[0] = dt__leaves(g), leaves.n[1] = s.n[0] / leaves.n[0], leaves.n[2] = s.n[1];
    return dt_reshape(g, x, leaves);
}

/* The router: adds its two losses to p (N,E), and returns the table. Each context leaf is a unit of its own. */
static dt_tensor dt__moe_router(dt_graph *g, dt_tensor logits, const dt_moe_options *o, dt_tensor *p)
{
    int64_t leaves = dt__leaves(g), tokens = dt_dim(g, logits, 0) / leaves, choices = tokens * o->active;
    int64_t bins = leaves * o->experts, capacity = tokens;
    unsigned over = g->context_shards ? 2 : 1; /* the axis behind that of leaves */
    double even = (double)o->capacity * (double)choices / (double)o->experts;
    dt_tensor ids, route, share, z;
    *p = dt_softmax(g, logits, -1);
    dt_top_k(g, *p, o->active, &ids);
    if (o->capacity > 0.0f && even < (double)tokens) {
        capacity = (int64_t)even;
        capacity += (double)capacity < even;
    }
    route = dt__moe_route(g, ids, o->experts, capacity);
    share = dt_slice(g, route, 0, bins + 1, 2 * bins + 1);
    share = dt_scale(g, dt_cast(g, share, DT_F32), 1.0f / (float)choices); /* f (E) of each leaf */
    share = dt_sum(g, dt_mul(g, dt__moe_leaves(g, share), dt_mean(g, dt__moe_leaves(g, *p), over)), over);
    *p = dt_auxiliary_loss(g, *p, dt_scale(g, share, (float)o->experts), o->balance);
    if (o->z_loss > 0.0f) {
        z = dt_logsumexp(g, logits, 2);
        *p = dt_auxiliary_loss(g, *p, dt_mean(g, dt__moe_leaves(g, dt_mul(g, z, z)), over), o->z_loss);
    }
    return route;
}

/* Expert weights "<name>.experts.<part>" (E,K,H), and with biases "<name>.experts.<part>_bias" (E*H). Shards cut axis
 * `cut` of the weights, which is so many groups. */
static dt_tensor dt__moe_layer(dt_graph *g, dt_tensor x, dt_tensor route, const char *name, const char *part,
                               const dt_moe_options *o, dt_shape shape, int cut, int64_t groups, float std)
{
    char full[96];
    dt_tensor w, b = dt__tensor(0);
    if (!x.id || !route.id) return dt__tensor(0);
    snprintf(full, sizeof full, "%s.experts.%s", name, part);
    w = dt__param_of_experts(g, full, shape, DT_INIT_NORMAL, std, cut, groups, 0, o->experts);
    snprintf(full, sizeof full, "%s.experts.%s_bias", name, part);
    if (o->bias)
        b = dt__param_of_experts(g, full, dt_shape1(shape.n[0] * shape.n[2]), DT_INIT_ZEROS, 0.0f, cut == 2 ? 0 : -1,
                                 cut == 2 ? shape.n[0] * groups : 1, 0, o->experts);
    return dt__moe_linear(g, x, route, w, b, 0);
}

static int dt__moe_ok(dt_graph *g, dt_tensor x, const dt_moe_options *o)
{
    char text[96];
    if (!x.id) return 0;
    if (dt__at(g, x)->shape.dims < 2)
        dt__poison(g, DT_E_SHAPE, "moe: x %s must be (..,C): tokens, then channels",
                   dt__shape_text(&dt__at(g, x)->shape, text));
    else if (o->experts < 1 || o->experts > 65536 || o->active < 1 || o->active > o->experts)
        dt__poison(g, DT_E_USAGE, "moe: %lld of %lld experts per token: active is 1 to experts, experts 1 to 65536",
                   (long long)o->active, (long long)o->experts);
    else if (o->width < 0 || dt__rows(dt__at(g, x)) * o->active > INT32_MAX / 4)
        dt__poison(g, DT_E_SHAPE, "moe: width %lld must be 0 or more, and tokens times active at most %d",
                   (long long)o->width, INT32_MAX / 4);
    else if (!(o->capacity >= 0.0f && o->capacity <= 1e6f && o->balance >= 0.0f && o->balance <= 1e6f &&
               o->z_loss >= 0.0f && o->z_loss <= 1e6f && o->down_std >= 0.0f && o->down_std <= 1e6f))
        dt__poison(g, DT_E_USAGE, "moe: capacity %g, balance %g, z_loss %g and down_std %g must be from 0 to a million",
                   (double)o->capacity, (double)o->balance, (double)o->z_loss, (double)o->down_std);
    else if (o->experts % dt__expert_ranks(g))
        dt__poison(g, DT_E_USAGE, "moe: %lld experts cannot be shared by %lld ranks: --ep one of %s",
                   (long long)o->experts, (long long)g->expert_ranks, dt__shards_text(o->experts, text, sizeof text));
    return !g->result;
}

/* gelu(x Wup) or silu(x Wgate) * (x Wup) of gathered rows, then the second weights. */
static dt_tensor dt__moe_experts(dt_graph *g, dt_tensor x, dt_tensor route, const char *name, const dt_moe_options *o,
                                 int64_t width)
{
    int64_t c = dt_dim(g, x, 1);
    float std = o->down_std > 0.0f ? o->down_std : 0.02f;
    dt_tensor h, parts[2];
    if (!x.id) return x;
    if (o->gated) { /* (R,2H): gate, up, of each tensor shard */
        h = dt__moe_layer(g, x, route, name, "gate_up_proj", o, dt_shape3(o->experts, c, 2 * width), 2, 2, 0.02f);
        if (!h.id) return h;
        for (int i = 0; i < 2; i++) parts[i] = dt__shard_piece(g, h, 2, i);
        h = dt_mul(g, dt_silu(g, parts[0]), parts[1]);
    } else h = dt_gelu(g, dt__moe_layer(g, x, route, name, "up_proj", o, dt_shape3(o->experts, c, width), 2, 1, 0.02f));
    return dt__moe_layer(g, h, route, name, "down_proj", o, dt_shape3(o->experts, width, c), 1, 1, std);
}

/* Every rank routes all rows; tensor shards cut the experts' hidden units. Where ranks share the experts, rows go to
 * their owners and back. */
DT_API dt_tensor dt_moe(dt_graph *g, dt_tensor x, const char *name, const dt_moe_options *o)
{
    dt_tensor tokens, alike, gate, route, bins, p, w, h;
    int64_t width, choices, at;
    int shared = dt__expert_ranks(g) > 1;
    char full[96];
    if (!dt__moe_ok(g, x, o)) return dt__tensor(0);
    tokens = dt__all_rows_matrix(g, x); /* (N,C) */
    alike = dt__same_rows(g, tokens);
    choices = dt_dim(g, tokens, 0) * o->active;
    width = o->width ? o->width : 4 * dt_dim(g, x, -1);
    if (dt__in_shards(g) && !dt__cuts(g, "hidden units of an expert", width)) return dt__tensor(0);
    snprintf(full, sizeof full, "%s.gate.weight", name);
    gate = dt_param(g, full, dt_shape2(dt_dim(g, x, -1), o->experts), DT_INIT_NORMAL, 0.02f);
    gate = dt__param_rows(g, gate, dt_dim(g, tokens, 0), 2);
    route = dt__moe_router(g, dt_matmul(g, alike, gate, 0, 0), o, &p);
    at = 2 * dt__leaves(g) * o->experts + 1; /* the chosen experts of the table */
    w = dt_reshape(g, dt_slice(g, route, 0, at, at + choices), dt_shape2(choices / o->active, o->active));
    w = dt_gather(g, p, 1, w);
    if (!o->raw_weights) w = dt_div(g, w, dt_sum(g, w, 2 | DT_KEEP));
    bins = shared ? dt__moe_bins(g, route) : route;
    h = dt__moe_rows(g, tokens, route, dt__tensor(0)); /* (R,C) */
    if (shared) h = dt__moe_trade(g, h, route, bins, 0);
    h = dt__moe_experts(g, h, bins, name, o, width);
    if (shared) h = dt__moe_trade(g, h, route, bins, 1);
    if (!h.id) return h;
    h = dt__moe_sum(g, h, route, w);
    if (dt__in_shards(g)) h = dt__combine_shards(g, h, 1);
    return h.id ? dt_reshape(g, h, dt__at(g, x)->shape) : h;
}

/* out += x: a parameter's gradient that did not come from a chain over tokens; it is in the first row slice. */
static void dt__accumulate_part(const dt__call *c, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    for (int64_t v = 1; c->fresh && v < dt__slices(c); v++)
        memset(dt__slice(c, v) + begin, 0, 4 * (size_t)(end - begin));
    if (c->fresh) memcpy(c->out + begin, c->in[0] + begin, 4 * (size_t)(end - begin));
    else c->env->k->binary(DT__OP_ADD, c->out + begin, c->out + begin, 1, c->in[0] + begin, 1, end - begin);
}
static void dt__run_accumulate(const dt__call *c) { dt__split(c, dt__count(c->n), 4096, dt__accumulate_part); }

/* ============================================================================================
 * H7  gradients
 * ========================================================================================= */

/* One use's share of a tensor's gradient. Shares add in forward-use order: key = consumer and input (R13). */
typedef struct dt__share {
    int32_t target, tensor;
    int64_t key;
} dt__share;
typedef struct dt__shares {
    dt__share *list;
    int32_t count, capacity;
} dt__shares;

static int dt__wants(const dt_graph *g, int32_t id, int input) { return g->nodes[g->nodes[id].in[input]].needs_grad; }
static dt_tensor dt__input(const dt_graph *g, int32_t id, int input) { return dt__tensor(g->nodes[id].in[input]); }
static dt_tensor dt__nothing(void) { return dt__tensor(0); }

/* Is input `input` of node `id` a parameter whose gradient is accumulated in a slot? */
static int dt__to_slot(const dt_graph *g, int32_t id, int input)
{
    return !g->eager && g->nodes[g->nodes[id].in[input]].op == DT__OP_PARAM;
}

/* Says that `t` is the gradient of input `input` of node `id`. */
static void dt__flow(dt_graph *g, int32_t id, int input, dt_tensor t)
{
    int32_t target = g->nodes[id].in[input];
    dt__share *s;
    if (!t.id || !g->nodes[target].needs_grad) return;
    if (dt__to_slot(g, id, input)) {
        dt__node n = dt__node_make(DT__OP_ACCUMULATE, g->nodes[target].shape, t, dt__nothing(), dt__nothing());
        n.slot = g->nodes[id].use[input];
        dt__push(g, &n, NULL);
        return;
    }
    if (!dt__grow((void **)&g->shares->list, g->shares->count, &g->shares->capacity, sizeof *s)) {
        dt__poison(g, DT_E_MEMORY, "no memory for the gradient graph");
        return;
    }
    s = &g->shares->list[g->shares->count++];
    s->target = target;
    s->tensor = t.id;
    s->key = (int64_t)id * DT__MAX_IN + input;
}

/* The same for a node (with a second output of shape *aux, or NULL) that is a chain over tokens: a parameter's slot
 * continues it in place (R3). */
static void dt__flow_chain_aux(dt_graph *g, int32_t id, int input, dt__node *chain, const dt_shape *aux)
{
    if (!dt__wants(g, id, input)) return;
    if (dt__to_slot(g, id, input)) {
        chain->slot = g->nodes[id].use[input];
        dt__push(g, chain, aux);
    } else dt__flow(g, id, input, dt__push(g, chain, aux));
}
static void dt__flow_chain(dt_graph *g, int32_t id, int input, dt__node *chain)
{
    dt__flow_chain_aux(g, id, input, chain, NULL);
}

/* Sums dy over the axes along which input `input` was broadcast, and flows it. */
static void dt__flow_reduced(dt_graph *g, int32_t id, int input, dt_tensor dy)
{
    dt_shape to, from;
    unsigned mask = 0;
    int extra;
    if (!dy.id || !dt__wants(g, id, input)) return;
    to = dt__at(g, dt__input(g, id, input))->shape;
    from = dt__at(g, dy)->shape;
    extra = from.dims - to.dims;
    for (int i = 0; i < from.dims; i++)
        if (i < extra || (to.n[i - extra] == 1 && from.n[i] != 1)) mask |= 1u << i;
    if (mask && extra && mask == (1u << extra) - 1u) {
        dt__node chain = dt__node_make(DT__OP_COL_SUM, to, dy, dt__nothing(), dt__nothing());
        dt__flow_chain(g, id, input, &chain);
    } else dt__flow(g, id, input, mask ? dt_reshape(g, dt_sum(g, dy, mask), to) : dy);
}

static void dt__grad_reshape(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_reshape(g, dy, dt__at(g, dt__input(g, id, 0))->shape));
}
static void dt__grad_permute(dt_graph *g, int32_t id, dt_tensor dy)
{
    int inverse[DT_MAX_DIMS];
    for (int i = 0; i < g->nodes[id].shape.dims; i++) inverse[g->nodes[id].i[i]] = i;
    dt__flow(g, id, 0, dt_permute(g, dy, inverse));
}
static void dt__grad_slice(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__node n = dt__node_make(DT__OP_PAD, dt__at(g, dt__input(g, id, 0))->shape, dy, dt__nothing(), dt__nothing());
    n.i[0] = g->nodes[id].i[0];
    n.i[1] = g->nodes[id].i[1];
    dt__flow(g, id, 0, dt__push(g, &n, NULL));
}
static void dt__grad_pad(dt_graph *g, int32_t id, dt_tensor dy)
{
    int axis = (int)g->nodes[id].i[0];
    int64_t begin = g->nodes[id].i[1], n = dt_dim(g, dt__input(g, id, 0), axis);
    dt__flow(g, id, 0, dt_slice(g, dy, axis, begin, begin + n));
}
static void dt__grad_concat(dt_graph *g, int32_t id, dt_tensor dy)
{
    int axis = (int)g->nodes[id].i[0];
    int64_t at = 0;
    for (int i = 0; i < g->nodes[id].inputs; i++) {
        int64_t n = dt_dim(g, dt__input(g, id, i), axis);
        if (dt__wants(g, id, i)) dt__flow(g, id, i, dt_slice(g, dy, axis, at, at + n));
        at += n;
    }
}
static void dt__grad_cast(dt_graph *g, int32_t id, dt_tensor dy) { dt__flow(g, id, 0, dy); }
static void dt__grad_gather(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__node chain = dt__node_make(DT__OP_SCATTER_ADD, dt__at(g, dt__input(g, id, 0))->shape, dt__input(g, id, 1), dy,
                                   dt__nothing());
    chain.i[0] = g->nodes[id].i[0];
    dt__flow_chain(g, id, 0, &chain);
}
static void dt__grad_scatter_add(dt_graph *g, int32_t id, dt_tensor dy)
{
    if (dt__wants(g, id, 1)) dt__flow(g, id, 1, dt_gather(g, dy, (int)g->nodes[id].i[0], dt__input(g, id, 0)));
    dt__flow(g, id, 2, dy);
}
static void dt__grad_cumsum(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__node n = dt__node_make(DT__OP_CUMSUM, g->nodes[id].shape, dy, dt__nothing(), dt__nothing());
    n.i[0] = g->nodes[id].i[0];
    n.i[1] = !g->nodes[id].i[1];
    dt__flow(g, id, 0, dt__push(g, &n, NULL));
}
static void dt__grad_expand(dt_graph *g, int32_t id, dt_tensor dy) { dt__flow_reduced(g, id, 0, dy); }
/* Every part of a combined sum has the sum's gradient. */
static void dt__grad_combine(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt_shape parts = dt__at(g, dt__input(g, id, 0))->shape, one = parts;
    int op;
    one.n[0] = 1;
    dy = dt_reshape(g, g->nodes[id].i[1] ? dt__all_rows(g, dy) : dy, one);
    op = g->nodes[g->nodes[id].in[0]].op;
    if (op == DT__OP_MATMUL || op == DT__OP_MOE_SUM) dt__flow(g, id, 0, dy); /* which takes it once for all */
    else dt__flow(g, id, 0, parts.n[0] == 1 ? dy : dt_expand(g, dy, parts));
}
/* The gradient of all rows comes from products, whose sums over ranks were scattered: it is that of a rank's own. */
static void dt__grad_all_rows(dt_graph *g, int32_t id, dt_tensor dy) { dt__flow(g, id, 0, dy); }
static void dt__grad_own_rows(dt_graph *g, int32_t id, dt_tensor dy) { dt__flow(g, id, 0, dt__all_rows(g, dy)); }
static void dt__grad_same_rows(dt_graph *g, int32_t id, dt_tensor dy) { dt__flow(g, id, 0, dt__own_rows(g, dy)); }

static void dt__grad_neg(dt_graph *g, int32_t id, dt_tensor dy) { dt__flow(g, id, 0, dt_neg(g, dy)); }
static void dt__grad_scale(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_scale(g, dy, g->nodes[id].f));
}
static void dt__grad_exp(dt_graph *g, int32_t id, dt_tensor dy) { dt__flow(g, id, 0, dt_mul(g, dy, dt__tensor(id))); }
static void dt__grad_log(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_div(g, dy, dt__input(g, id, 0)));
}
static void dt__grad_tanh(dt_graph *g, int32_t id, dt_tensor dy) /* dy - dy y y */
{
    dt__flow(g, id, 0, dt_sub(g, dy, dt_mul(g, dt_mul(g, dy, dt__tensor(id)), dt__tensor(id))));
}
static void dt__grad_sqrt(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_div(g, dt_scale(g, dy, 0.5f), dt__tensor(id)));
}
static void dt__grad_rsqrt(dt_graph *g, int32_t id, dt_tensor dy) /* -dy/2 y y y */
{
    dt_tensor y = dt__tensor(id);
    dt__flow(g, id, 0, dt_mul(g, dt_mul(g, dt_mul(g, dt_scale(g, dy, -0.5f), y), y), y));
}
/* The gradient is one kernel of x and dy. */
static void dt__grad_by_kernel(dt_graph *g, int32_t id, dt_tensor dy, int op)
{
    dt__flow(g, id, 0, dt__push_op(g, op, g->nodes[id].shape, dt__input(g, id, 0), dy, dt__nothing()));
}
static void dt__grad_gelu(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__grad_by_kernel(g, id, dy, DT__OP_GELU_GRAD);
}
static void dt__grad_gelu_erf(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__grad_by_kernel(g, id, dy, DT__OP_GELU_ERF_GRAD);
}
static void dt__grad_silu(dt_graph *g, int32_t id, dt_tensor dy) { dt__grad_by_kernel(g, id, dy, DT__OP_SILU_GRAD); }
static void dt__grad_sigmoid(dt_graph *g, int32_t id, dt_tensor dy) /* dy y - dy y y */
{
    dt_tensor share = dt_mul(g, dy, dt__tensor(id));
    dt__flow(g, id, 0, dt_sub(g, share, dt_mul(g, share, dt__tensor(id))));
}
static void dt__grad_softplus(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_mul(g, dy, dt_sigmoid(g, dt__input(g, id, 0))));
}
static void dt__grad_relu(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_select(g, dt__tensor(id), dy, dt__constant(g, 0.0f)));
}
static void dt__grad_abs(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt_tensor x = dt__input(g, id, 0);
    dt__flow(g, id, 0, dt_select(g, x, dt_mul(g, dy, dt_sign(g, x)), dt__constant(g, 0.0f)));
}
static void dt__grad_square(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_mul(g, dt_scale(g, dy, 2.0f), dt__input(g, id, 0)));
}
static void dt__grad_reciprocal(dt_graph *g, int32_t id, dt_tensor dy) /* -dy y y */
{
    dt_tensor y = dt__tensor(id);
    dt__flow(g, id, 0, dt_neg(g, dt_mul(g, dt_mul(g, dy, y), y)));
}
static void dt__grad_exp2(dt_graph *g, int32_t id, dt_tensor dy) /* dy y ln 2 */
{
    dt__flow(g, id, 0, dt_scale(g, dt_mul(g, dy, dt__tensor(id)), 0.693147181f));
}
static void dt__grad_log2(dt_graph *g, int32_t id, dt_tensor dy) /* dy / x / ln 2 */
{
    dt__flow(g, id, 0, dt_scale(g, dt_div(g, dy, dt__input(g, id, 0)), 1.44269504f));
}
static void dt__grad_expm1(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_mul(g, dy, dt_exp(g, dt__input(g, id, 0))));
}
static void dt__grad_log1p(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_div(g, dy, dt_add(g, dt__input(g, id, 0), dt__constant(g, 1.0f))));
}
static void dt__grad_erf(dt_graph *g, int32_t id, dt_tensor dy) /* dy 2/sqrt(pi) e^(-x^2) */
{
    dt_tensor gauss = dt_exp(g, dt_neg(g, dt_square(g, dt__input(g, id, 0))));
    dt__flow(g, id, 0, dt_mul(g, dt_scale(g, dy, 1.12837917f), gauss));
}
static void dt__grad_sin(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_mul(g, dy, dt_cos(g, dt__input(g, id, 0))));
}
static void dt__grad_cos(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_neg(g, dt_mul(g, dy, dt_sin(g, dt__input(g, id, 0)))));
}
static void dt__grad_tan(dt_graph *g, int32_t id, dt_tensor dy) /* dy + dy y y */
{
    dt_tensor y = dt__tensor(id);
    dt__flow(g, id, 0, dt_add(g, dy, dt_mul(g, dt_mul(g, dy, y), y)));
}

static void dt__grad_bce(dt_graph *g, int32_t id, dt_tensor dy) /* dx = dy (sigmoid(x) - t), dt = -dy x */
{
    dt_tensor x = dt__input(g, id, 0), t = dt__input(g, id, 1);
    if (dt__wants(g, id, 0)) dt__flow(g, id, 0, dt_mul(g, dy, dt__binary_op(g, DT__OP_BCE_GRAD, x, t)));
    if (dt__wants(g, id, 1)) dt__flow(g, id, 1, dt_neg(g, dt_mul(g, dy, x)));
}

static void dt__grad_add(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow_reduced(g, id, 0, dy);
    dt__flow_reduced(g, id, 1, dy);
}
static void dt__grad_sub(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow_reduced(g, id, 0, dy);
    if (dt__wants(g, id, 1)) dt__flow_reduced(g, id, 1, dt_neg(g, dy));
}
static void dt__grad_mul(dt_graph *g, int32_t id, dt_tensor dy)
{
    for (int i = 0; i < 2; i++)
        if (dt__wants(g, id, i)) dt__flow_reduced(g, id, i, dt_mul(g, dy, dt__input(g, id, 1 - i)));
}
static void dt__grad_div(dt_graph *g, int32_t id, dt_tensor dy) /* da = dy/b, db = -(dy/b) y */
{
    dt_tensor da = dt_div(g, dy, dt__input(g, id, 1));
    dt__flow_reduced(g, id, 0, da);
    if (dt__wants(g, id, 1)) dt__flow_reduced(g, id, 1, dt_neg(g, dt_mul(g, da, dt__tensor(id))));
}

/* da = dy b a^(b-1), +0 where b is 0; db = dy y log a, +0 where a is 0: there the products would be 0 times inf. */
static void dt__grad_pow(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt_tensor a = dt__input(g, id, 0), b = dt__input(g, id, 1), zero = dt__constant(g, 0.0f), slope;
    if (dt__wants(g, id, 0)) {
        slope = dt_mul(g, b, dt_pow(g, a, dt_sub(g, b, dt__constant(g, 1.0f))));
        dt__flow_reduced(g, id, 0, dt_select(g, b, dt_mul(g, dy, slope), zero));
    }
    if (dt__wants(g, id, 1)) {
        slope = dt_mul(g, dt__tensor(id), dt_log(g, a));
        dt__flow_reduced(g, id, 1, dt_select(g, a, dt_mul(g, dy, slope), zero));
    }
}
/* dy to input `first` where mask is set, else to the other of two neighbours; +0 to the one that was not taken. */
static void dt__flow_taken(dt_graph *g, int32_t id, int first, dt_tensor mask, dt_tensor dy)
{
    dt_tensor zero = dt__constant(g, 0.0f);
    if (dt__wants(g, id, first)) dt__flow_reduced(g, id, first, dt_select(g, mask, dy, zero));
    if (dt__wants(g, id, first + 1)) dt__flow_reduced(g, id, first + 1, dt_select(g, mask, zero, dy));
}
static void dt__grad_maximum(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow_taken(g, id, 0, dt_greater(g, dt__input(g, id, 0), dt__input(g, id, 1)), dy);
}
static void dt__grad_minimum(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow_taken(g, id, 0, dt_less(g, dt__input(g, id, 0), dt__input(g, id, 1)), dy);
}
static void dt__grad_select(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow_taken(g, id, 1, dt__input(g, id, 0), dy);
}

/* Both sums repeat dy over the axes they removed: last ones for a row sum, first ones for a column sum. */
static void dt__grad_row_sum(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt_shape x = dt__at(g, dt__input(g, id, 0))->shape, kept = x;
    for (int i = g->nodes[id].shape.dims; i < x.dims; i++) kept.n[i] = 1;
    dt__flow(g, id, 0, dt_expand(g, dt_reshape(g, dy, kept), x));
}
static void dt__grad_col_sum(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_expand(g, dy, dt__at(g, dt__input(g, id, 0))->shape));
}
static void dt__grad_row_max(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt_tensor x = dt__input(g, id, 0);
    dt__flow(g, id, 0, dt__push_op(g, DT__OP_MAX_GRAD, dt__at(g, x)->shape, x, dt__tensor(id), dy));
}

/* Of the softmaxes: from y and dy. */
static void dt__grad_rows(dt_graph *g, int32_t id, int op, dt_tensor dy)
{
    dt__flow(g, id, 0, dt__push_op(g, op, g->nodes[id].shape, dt__tensor(id), dy, dt__nothing()));
}
static void dt__grad_softmax(dt_graph *g, int32_t id, dt_tensor dy) { dt__grad_rows(g, id, DT__OP_SOFTMAX_GRAD, dy); }
static void dt__grad_log_softmax(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__grad_rows(g, id, DT__OP_LOG_SOFTMAX_GRAD, dy);
}

/* (X..,L..,M,N) as (L..,X*M,N): the first `extra` axes move behind the next ones, and join the rows. */
static dt_tensor dt__join_rows(dt_graph *g, dt_tensor x, int extra, int transpose)
{
    dt_shape s = dt__at(g, x)->shape;
    int axes[DT_MAX_DIMS], lead = s.dims - 2 - extra;
    if (!extra && !transpose) return x;
    for (int i = 0; i < s.dims; i++) axes[i] = i < lead ? i + extra : i < s.dims - 2 ? i - lead : i;
    if (transpose) axes[s.dims - 2] = s.dims - 1, axes[s.dims - 1] = s.dims - 2;
    x = dt_permute(g, x, axes);
    s = dt__at(g, x)->shape;
    s.n[lead] = dt__span(&s, lead, s.dims - 1);
    s.n[lead + 1] = s.n[s.dims - 1];
    s.dims = lead + 2;
    return x.id ? dt_reshape(g, x, s) : x;
}

/* Flows dB of a batched product; 0 when B is no batch of weights: B (L..,K,N) with its leading axes in A and dC
 * too, behind others. One chain per element over those others and the rows (R3). */
static int dt__flow_batch_chain(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt_tensor a = dt__input(g, id, 0);
    dt_shape sa = dt__at(g, a)->shape, sb = dt__at(g, dt__input(g, id, 1))->shape, sy = dt__at(g, dy)->shape;
    int ta = (int)g->nodes[id].i[0], tb = (int)g->nodes[id].i[1], extra = sy.dims - sb.dims;
    dt__node chain;
    if (extra < 0 || sa.dims != sy.dims) return 0;
    for (int i = 0; i < sy.dims - 2; i++)
        if (sa.n[i] != sy.n[i] || (i >= extra && sb.n[i - extra] != sy.n[i])) return 0;
    a = dt__join_rows(g, a, extra, ta);
    dy = dt__join_rows(g, dy, extra, 0);
    chain = tb ? dt__node_make(DT__OP_MATMUL, sb, dy, a, dt__nothing())
               : dt__node_make(DT__OP_MATMUL, sb, a, dy, dt__nothing());
    chain.i[0] = 1;
    dt__flow_chain(g, id, 1, &chain);
    return 1;
}

/* Of products that share an x, the first that is used makes x's gradient. It is differentiated last, and all uses come
 * behind the products, so it is known by now whether an earlier one has a share. */
static int dt__columns_first(const dt_graph *g, int32_t id)
{
    for (int32_t i = 0; i < g->shares->count; i++)
        if (g->shares->list[i].target < id && g->shares->list[i].target >= id - g->nodes[id].i[4]) return 0;
    return 1;
}

/* The gradient of an x that product `id` and those behind it share: for every slice of their columns one chain. */
static dt_tensor dt__columns_dx(dt_graph *g, int32_t id, int64_t parts)
{
    dt_shape s = dt__at(g, dt__input(g, id, 0))->shape;
    dt__node n = dt__node_make(DT__OP_MATMUL, s, dt__nothing(), dt__nothing(), dt__nothing());
    char text[96];
    if (s.dims == DT_MAX_DIMS)
        return dt__poison(g, DT_E_SHAPE, "matmul: %s has too many axes for a column-parallel product",
                          dt__shape_text(&s, text));
    for (int32_t i = 0; i < g->nodes[id].i[5] - g->nodes[id].i[4]; i++) {
        int64_t width = dt__cols(&g->nodes[id + i]);
        if (!g->nodes[id + i].grad) continue; /* not used */
        if (width % parts && !dt__in_shards(g))
            return dt__poison(g, DT_E_SHAPE, "matmul: %lld does not divide into %lld tensor shards", (long long)width,
                              (long long)parts);
        n.in[n.inputs++] = g->nodes[id + i].grad;
        n.in[n.inputs++] = g->nodes[id + i].in[1];
    }
    memmove(n.shape.n + 1, n.shape.n, sizeof(int64_t) * (size_t)n.shape.dims++);
    n.shape.n[0] = parts;
    n.i[1] = 1, n.i[2] = parts;
    return dt__push(g, &n, NULL);
}

/* C = op(A) op(B): dA = dC op(B)^T, dB = op(A)^T dC, each transposed when its operand was. */
static void dt__grad_matmul(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt_tensor a = dt__input(g, id, 0), b = dt__input(g, id, 1), da, rows;
    int ta = (int)g->nodes[id].i[0], tb = (int)g->nodes[id].i[1];
    int64_t parts = g->nodes[id].i[2], grad_parts = g->nodes[id].i[3];
    dt__node chain;
    if (parts) { /* every part has the same gradient: dt__grad_combine gives it once */
        dt_shape s = dt__at(g, dy)->shape;
        dy = s.n[0] > 1 ? dt_slice(g, dy, 0, 0, 1) : dy;
        memmove(s.n, s.n + 1, sizeof(int64_t) * (size_t)(--s.dims));
        dy = dt_reshape(g, dy, s);
    }
    if (dt__wants(g, id, 0) && dt__columns_first(g, id)) { /* of several that share A one speaks for all */
        if (g->nodes[id].i[5]) da = dt__columns_dx(g, id, grad_parts);
        else da = ta ? dt__matmul(g, b, dy, tb, 1, 0, 0) : dt__matmul(g, dy, b, 0, !tb, grad_parts, 0);
        if (!grad_parts) dt__flow_reduced(g, id, 0, da);
        else dt__flow(g, id, 0, dt__combine_shards(g, da, dt__at(g, a)->op == DT__OP_ALL_ROWS));
    }
    if (!dy.id || !dt__wants(g, id, 1)) return;
    if (dt__at(g, b)->shape.dims == 2 && (!ta || dt__at(g, a)->shape.dims == 2)) {
        rows = dt__as_matrix(g, dy);
        a = dt__as_matrix(g, a);
        chain = tb ? dt__node_make(DT__OP_MATMUL, dt__at(g, b)->shape, rows, a, dt__nothing())
                   : dt__node_make(DT__OP_MATMUL, dt__at(g, b)->shape, a, rows, dt__nothing());
        chain.i[0] = tb ? 1 : !ta;
        chain.i[1] = tb ? ta : 0;
        dt__flow_chain(g, id, 1, &chain);
    } else if (!dt__flow_batch_chain(g, id, dy))
        dt__flow_reduced(g, id, 1, tb ? dt__matmul(g, dy, a, 1, ta, 0, 0) : dt__matmul(g, a, dy, !ta, 0, 0, 0));
}

static void dt__grad_conv(dt_graph *g, int32_t id, dt_tensor dy)
{
    static const int channels_last[2][4] = {{0, 2, 1, 0}, {0, 2, 3, 1}};
    dt_tensor x = dt__input(g, id, 0), w = dt__input(g, id, 1);
    dt__node n = dt__node_make(DT__OP_CONV_DX, dt__at(g, x)->shape, dy, w, dt__nothing());
    dt__node chain = dt__node_make(DT__OP_CONV_DW, dt__at(g, w)->shape, dy, x, dt__nothing());
    dt_shape scratch;
    memcpy(n.i, g->nodes[id].i, sizeof n.i);
    memcpy(chain.i, g->nodes[id].i, sizeof n.i);
    scratch = dt__conv_aux(g, &n);
    if (dt__wants(g, id, 0)) dt__flow(g, id, 0, dt__push(g, &n, &scratch));
    scratch = dt__conv_aux(g, &chain);
    dt__flow_chain_aux(g, id, 1, &chain, &scratch);
    if (g->nodes[id].inputs > 2 && dt__wants(g, id, 2)) {
        dt_tensor rows = dt_permute(g, dy, channels_last[dt__at(g, x)->shape.dims - 3]);
        dt__node sum =
            dt__node_make(DT__OP_COL_SUM, dt_shape1(dt__at(g, w)->shape.n[0]), rows, dt__nothing(), dt__nothing());
        dt__flow_chain(g, id, 2, &sum);
    }
}

static void dt__grad_pool(dt_graph *g, int32_t id, dt_tensor dy)
{
    int op = g->nodes[id].op == DT__OP_MAX_POOL ? DT__OP_MAX_POOL_GRAD : DT__OP_AVG_POOL_GRAD;
    dt_tensor x = dt__input(g, id, 0);
    dt__node n =
        dt__node_make(op, dt__at(g, x)->shape, dy, op == DT__OP_MAX_POOL_GRAD ? x : dt__nothing(), dt__nothing());
    memcpy(n.i, g->nodes[id].i, sizeof n.i);
    dt__flow(g, id, 0, dt__push(g, &n, NULL));
}

static void dt__grad_embed(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__node chain =
        dt__node_make(DT__OP_EMBED_GRAD, dt__at(g, dt__input(g, id, 0))->shape, dt__input(g, id, 1), dy, dt__nothing());
    dt__flow_chain(g, id, 0, &chain);
}

/* Of x and gamma; `dx` is the op that makes the first. */
static void dt__grad_norm(dt_graph *g, int32_t id, int dx, dt_tensor dy)
{
    dt_tensor x = dt__input(g, id, 0), gamma = dt__input(g, id, 1), stats = dt__tensor(g->nodes[id].aux);
    dt__node n = dt__node_make(dx, g->nodes[id].shape, dy, x, stats);
    dt__node chain = dt__node_make(DT__OP_LAYERNORM_DGAMMA, dt__at(g, gamma)->shape, dy, x, stats);
    n.in[n.inputs++] = gamma.id;
    if (dt__wants(g, id, 0)) dt__flow(g, id, 0, dt__push(g, &n, NULL));
    dt__flow_chain(g, id, 1, &chain);
}
static void dt__grad_layernorm(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__grad_norm(g, id, DT__OP_LAYERNORM_DX, dy);
    dt__flow_reduced(g, id, 2, dy);
}
static void dt__grad_rmsnorm(dt_graph *g, int32_t id, dt_tensor dy) { dt__grad_norm(g, id, DT__OP_RMSNORM_DX, dy); }

/* Of separate inputs the three gradients are pieces of one flat tensor. */
static void dt__grad_attention(dt_graph *g, int32_t id, dt_tensor dy)
{
    int fused = !g->nodes[id].i[3], inputs = fused ? 1 : 3;
    dt__node n = dt__node_make(DT__OP_ATTENTION_GRAD, dt__at(g, dt__input(g, id, 0))->shape, dt__nothing(),
                               dt__nothing(), dt__nothing());
    dt_tensor all;
    int64_t at = 0;
    memcpy(n.i, g->nodes[id].i, sizeof n.i);
    n.f = g->nodes[id].f;
    for (int i = 0; i < inputs; i++) n.in[n.inputs++] = g->nodes[id].in[i];
    n.in[n.inputs++] = g->nodes[id].aux;
    n.in[n.inputs++] = id;
    n.in[n.inputs++] = dy.id;
    if (g->nodes[id].inputs > inputs) n.in[n.inputs++] = g->nodes[id].in[inputs];
    if (!fused) {
        n.shape = dt_shape1(0);
        for (int i = 0; i < 3; i++) n.shape.n[0] += dt__count(dt__at(g, dt__input(g, id, i)));
    }
    all = dt__push(g, &n, NULL);
    if (fused) dt__flow(g, id, 0, all);
    for (int i = 0; !fused && all.id && i < 3; i++) {
        dt_shape s = dt__at(g, dt__input(g, id, i))->shape;
        if (dt__wants(g, id, i)) dt__flow(g, id, i, dt_reshape(g, dt_slice(g, all, 0, at, at + dt_shape_count(s)), s));
        at += dt_shape_count(s);
    }
}

static void dt__grad_rope(dt_graph *g, int32_t id, dt_tensor dy) /* the rotation back */
{
    dt__node n = dt__node_make(DT__OP_ROPE, g->nodes[id].shape, dy, dt__nothing(), dt__nothing());
    n.i[0] = g->nodes[id].i[0], n.i[1] = -1;
    n.table = g->nodes[id].table;
    dt__flow(g, id, 0, dt__push(g, &n, NULL));
}

static void dt__grad_dropout(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__node n = dt__node_make(DT__OP_DROPOUT, g->nodes[id].shape, dy, dt__nothing(), dt__nothing());
    memcpy(n.i, g->nodes[id].i, sizeof n.i);
    n.f = g->nodes[id].f;
    dt__flow(g, id, 0, dt__push(g, &n, NULL));
}

static void dt__grad_cross_entropy(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt_tensor logits = dt__input(g, id, 0);
    dt__node n = dt__node_make(DT__OP_CROSS_ENTROPY_GRAD, dt__at(g, logits)->shape, logits,
                               dt__tensor(g->nodes[id].aux), dt__input(g, id, 1));
    n.in[n.inputs++] = dy.id;
    memcpy(n.i, g->nodes[id].i, sizeof n.i);
    n.f = g->nodes[id].f;
    dt__flow(g, id, 0, dt__push(g, &n, NULL));
}
static void dt__grad_loss(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__node n = dt__node_make(DT__OP_LOSS_GRAD, dt__at(g, dt__input(g, id, 0))->shape, dy,
                               g->eager ? dt__nothing() : g->targets, dt__nothing());
    n.i[0] = g->nodes[id].i[0];
    dt__flow(g, id, 0, dt__push(g, &n, NULL));
}

static void dt__grad_aux_loss(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt_tensor loss = dt__input(g, id, 1);
    dt__node n = dt__node_make(DT__OP_AUX_LOSS_GRAD, dt__at(g, loss)->shape, loss, dt__nothing(), dt__nothing());
    n.f = g->nodes[id].f;
    dt__flow(g, id, 0, dy);
    if (dt__wants(g, id, 1)) dt__flow(g, id, 1, dt__push(g, &n, NULL));
}

/* Parts of the gradient, one from each tensor shard, are summed by token, then over shards. */
static void dt__grad_moe_rows(dt_graph *g, int32_t id, dt_tensor dy)
{
    int parts = dt__at(g, dy)->shape.dims == 3;
    dt_tensor dx = dt__moe_sum(g, dy, dt__input(g, id, 1), dt__nothing());
    if (parts) dx = dt__combine_shards(g, dx, dt__at(g, dt__input(g, id, 0))->op == DT__OP_ALL_ROWS);
    dt__flow(g, id, 0, dx);
}
/* Rows in parts have one gradient, that of their sum; the weights' is summed over the parts. */
static void dt__grad_moe_sum(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt_tensor rows = dt__input(g, id, 0), route = dt__input(g, id, 1), w = dt__input(g, id, 2), dw;
    dt_shape s = dt__at(g, rows)->shape, sw = dt__at(g, w)->shape;
    int parts = s.dims == 3;
    if (parts) dy = dt_reshape(g, dy, dt_shape2(sw.n[0], s.n[2]));
    dt__flow(g, id, 0, dt__moe_rows(g, dy, route, w));
    if (!dt__wants(g, id, 2)) return;
    dw = dt__push_op(g, DT__OP_MOE_DOT, parts ? dt_shape3(s.n[0], sw.n[0], sw.n[1]) : sw, dy, route, rows);
    dt__flow(g, id, 2, parts ? dt__combine_shards(g, dw, 0) : dw);
}
/* What went to the owners comes back, and the other way round. */
static void dt__grad_moe_trade(dt_graph *g, int32_t id, dt_tensor dy)
{
    int back = (int)g->nodes[id].i[0];
    dt__flow(g, id, 0, dt__moe_trade(g, dy, dt__input(g, id, 1), dt__input(g, id, 2), !back));
}
static void dt__grad_moe_linear(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt_tensor x = dt__input(g, id, 0), route = dt__input(g, id, 1), w = dt__input(g, id, 2);
    dt__node dw = dt__node_make(DT__OP_MOE_DW, dt__at(g, w)->shape, x, route, dy), db;
    if (dt__wants(g, id, 0)) dt__flow(g, id, 0, dt__moe_linear(g, dy, route, w, dt__nothing(), 1));
    dt__flow_chain(g, id, 2, &dw);
    if (g->nodes[id].inputs < 4) return;
    db = dt__node_make(DT__OP_MOE_DB, dt__at(g, dt__input(g, id, 3))->shape, dy, route, dt__nothing());
    dt__flow_chain(g, id, 3, &db);
}

#define DT__OP_ROW(name, in_place, run, grad) {#name, in_place, run, grad},
static const dt__op *dt__op_of(int op)
{
    static const dt__op table[] = {DT__OPS(DT__OP_ROW)};
    return &table[op];
}
#undef DT__OP_ROW

/* The shares of `target`, added in forward-use order. */
static dt_tensor dt__add_shares(dt_graph *g, int32_t target)
{
    dt_tensor sum = dt__nothing();
    int64_t last = -1;
    for (;;) {
        const dt__share *next = NULL;
        for (int32_t i = 0; i < g->shares->count; i++) {
            const dt__share *s = &g->shares->list[i];
            if (s->target == target && s->key > last && (!next || s->key < next->key)) next = s;
        }
        if (!next) return sum;
        last = next->key;
        sum = sum.id ? dt_add(g, sum, dt__tensor(next->tensor)) : dt__tensor(next->tensor);
    }
}

/* Appends the gradient graph below `output`, whose own gradient is `seed`. */
static dt_result dt__differentiate(dt_graph *g, dt_tensor output, dt_tensor seed)
{
    dt__shares shares;
    memset(&shares, 0, sizeof shares);
    g->shares = &shares;
    g->nodes[output.id].grad = seed.id;
    for (int32_t id = output.id; id > 0 && !g->result; id--) {
        dt_tensor dy = id == output.id ? seed : dt__add_shares(g, id);
        g->nodes[id].grad = dy.id;
        if (dy.id && dt__op_of(g->nodes[id].op)->grad) dt__op_of(g->nodes[id].op)->grad(g, id, dy);
    }
    g->shares = NULL;
    dt__free(shares.list);
    return dt_graph_result(g);
}

DT_API dt_result dt_backward(dt_graph *g, dt_tensor loss)
{
    float one = 1.0f;
    if (g->result) return dt_graph_result(g);
    if (!loss.id || dt__count(dt__at(g, loss)) != 1 || g->forward_count || !g->eager) {
        dt__poison(g, DT_E_USAGE, "dt_backward: needs a scalar loss of an eager graph, once per graph");
        return dt_graph_result(g);
    }
    g->forward_count = g->count;
    return dt__differentiate(g, loss, dt_tensor_from(g, dt__at(g, loss)->shape, &one));
}

DT_API dt_tensor dt_grad(dt_graph *g, dt_tensor t)
{
    return t.id && dt__at(g, t)->grad
               ? dt__tensor(dt__at(g, t)->grad)
               : dt__poison(g, DT_E_USAGE,
                            "dt_grad: the loss does not depend on this tensor, or dt_backward was not called");
}

/* ---- plan: a segment's ops in order, with a place for every value ------------------------------
 * Values are in one of these places. SAVED lives from forward to backward of one unit of work; TEMP is reused as
 * values die; CACHE lives from run to run; the rest is bound by the executor. Today's only pass is dead-code removal
 * and reuse in place; the compiler (H9) will rewrite the graph before this. */
enum { DT__AT_NOWHERE, DT__AT_INPUT, DT__AT_OUTPUT, DT__AT_TARGETS, DT__AT_GRAD_OUT, DT__AT_GRAD_IN, DT__AT_PARAM,
       DT__AT_SLOT, DT__AT_SAVED, DT__AT_TEMP, DT__AT_CACHE, DT__PLACES };

typedef struct dt__home {
    int32_t place;
    int64_t offset; /* floats; PARAM and SLOT: index */
} dt__home;

typedef struct dt__plan {
    dt_graph *g;
    dt_tensor output, grad_in; /* grad_in: gradient of the input, or poison */
    dt__home *home;            /* per node */
    int32_t *order;            /* forward ops, then backward ops, then those of weights alone */
    int32_t forward_count, backward_count;
    int32_t weights_count;      /* what grad_in does not need, when it is split off */
    int64_t saved, temp, cache; /* floats */
    double forward_flops, backward_flops; /* of all tensor and context ranks */
} dt__plan;

/* The node whose memory `id` shares: aliases, and a COMBINE of one part on one rank, are other names of their input. */
static int32_t dt__root(const dt_graph *g, int32_t id)
{
    for (;;) {
        const dt__node *n = &g->nodes[id];
        if (!dt__is_alias(n->op) && !(n->op == DT__OP_COMBINE && g->nodes[n->in[0]].shape.n[0] == 1 && !n->i[0]))
            return id;
        id = n->in[0];
    }
}

static void dt__mark(const dt_graph *g, uint8_t *live, int32_t id)
{
    if (!id || live[id]) return;
    live[id] = 1;
    for (int i = 0; i < g->nodes[id].inputs; i++) dt__mark(g, live, g->nodes[id].in[i]);
}

static int dt__is_leaf(int op) { return op == DT__OP_INPUT || op == DT__OP_PARAM; }

static double dt__node_flops(const dt_graph *g, const dt__node *n)
{
    if (n->op == DT__OP_MATMUL) {
        double terms = 0.0; /* of a chain, in all parts together */
        for (int i = 0; i < n->inputs; i += 2) {
            const dt_shape *a = &g->nodes[n->in[i]].shape;
            terms += (double)a->n[a->dims - 1 - n->i[0]];
        }
        return 2.0 * (double)dt__count(n) * terms / (double)dt__max(1, n->i[2]);
    }
    if (n->op == DT__OP_MOE_LINEAR || n->op == DT__OP_MOE_DW) { /* one expert per row: active experts count */
        const dt__node *x = &g->nodes[n->in[0]], *y = n->op == DT__OP_MOE_DW ? &g->nodes[n->in[2]] : n;
        const dt__node *table = &g->nodes[n->in[1]]; /* an owner's share of the rows of all */
        double share = table->op == DT__OP_MOE_BINS ? (double)table->i[1] / (double)table->i[2] : 1.0;
        return 2.0 * share * (double)dt__count(x) * (double)dt__cols(y);
    }
    if (n->op == DT__OP_CONV || n->op == DT__OP_CONV_DX || n->op == DT__OP_CONV_DW) { /* all taps, in the padding too */
        const dt__node *w = n->op == DT__OP_CONV_DW ? n : &g->nodes[n->in[1]];
        const dt__node *y = n->op == DT__OP_CONV ? n : &g->nodes[n->in[0]];
        return 2.0 * (double)dt__count(y) * (double)dt__count(w) / (double)w->shape.n[0];
    }
    if (n->op == DT__OP_ATTENTION || n->op == DT__OP_ATTENTION_GRAD) { /* model FLOPs: recomputed scores do not count */
        dt__attention a = dt__attention_sizes(g, n);
        double pairs = (double)a.t * (double)a.s * (a.causal ? 0.5 : 1.0) * (double)dt__max(1, g->context_shards);
        return (n->op == DT__OP_ATTENTION ? 4.0 : 8.0) * (double)a.b * pairs * (double)(a.h * a.d);
    }
    return 0.0;
}

/* Ranks that do a node's work together, each for its tensor shards and context leaves. */
static double dt__node_ranks(const dt_graph *g, const dt__node *n)
{
    int cut = dt__cut_param(g, n) || ((n->op == DT__OP_ATTENTION || n->op == DT__OP_ATTENTION_GRAD) && n->i[5]);
    for (int i = 0; i < n->inputs; i++) cut = cut || dt__cut_param(g, &g->nodes[n->in[i]]);
    return (cut ? (double)g->tensor_shards / (double)dt__own(g) : 1.0) *
           (double)dt__max(1, g->context_shards / dt__leaves(g));
}

typedef struct dt__block {
    int64_t offset, size;
    int32_t last; /* position of the last reader */
} dt__block;

/* Lowest offset at which `size` floats fit beside the blocks that still live at `now`. */
static int64_t dt__fit(const dt__block *blocks, int32_t count, int32_t now, int64_t size)
{
    int64_t offset = 0;
    for (int again = 1; again;) {
        again = 0;
        for (int32_t i = 0; i < count; i++)
            if (blocks[i].last >= now && blocks[i].offset < offset + size &&
                offset < blocks[i].offset + blocks[i].size) {
                offset = blocks[i].offset + blocks[i].size;
                again = 1;
            }
    }
    return offset;
}

typedef struct dt__planner {
    dt__plan *p;
    uint8_t *live, *early; /* early: grad_in needs it */
    int again;             /* attention is computed again in backward */
    int32_t *last; /* per root: position in the order of its last reader */
    dt__block *blocks;
    int32_t block_count;
} dt__planner;

/* An input of node `id` that dies here and whose memory the op may take over; 0 if there is none. */
static int32_t dt__reusable(const dt__planner *w, int32_t id, int32_t now)
{
    const dt_graph *g = w->p->g;
    const dt__node *n = &g->nodes[id];
    for (int i = 0; i < n->inputs; i++) {
        int32_t r = dt__root(g, n->in[i]);
        if (!(dt__op_of(n->op)->in_place >> i & 1u) || w->last[r] != now || dt__count(&g->nodes[r]) != dt__count(n))
            continue;
        if (!dt__same_shape(&g->nodes[n->in[i]].shape, &n->shape)) continue;
        if (w->p->home[r].place == DT__AT_TEMP || (w->p->home[r].place == DT__AT_SAVED && now >= w->p->forward_count))
            return r;
    }
    return 0;
}

/* The end of the phase in which position `now` of the order is. */
static int32_t dt__phase_end(const dt__plan *p, int32_t now)
{
    if (now < p->forward_count) return p->forward_count;
    return p->forward_count + p->backward_count + (now < p->forward_count + p->backward_count ? 0 : p->weights_count);
}

/* A value that backward computes again: its place is free from the end of forward until then. */
static int dt__place_again(const dt__planner *w, int32_t id)
{
    const dt_graph *g = w->p->g;
    if (g->nodes[id].op == DT__OP_AUX) id = g->nodes[id].in[0];
    return w->again && g->nodes[id].op == DT__OP_ATTENTION;
}

/* Takes a place of its own for what lives to position `last`. */
static void dt__place_block(dt__planner *w, dt__home *home, int64_t size, int32_t now, int32_t last)
{
    dt__block *b = &w->blocks[w->block_count++];
    if (!home->place) home->offset = dt__fit(w->blocks, w->block_count - 1, now, size);
    home->place = DT__AT_TEMP;
    b->offset = home->offset;
    b->size = size;
    b->last = last > now ? last : now;
    w->p->temp = dt__max(w->p->temp, b->offset + size);
}

/* Gives a computed value its place: `now` is its position in the order. */
static void dt__place(dt__planner *w, int32_t id, int32_t now)
{
    dt__plan *p = w->p;
    dt__home *home = &p->home[id];
    int64_t size = dt__round_up(dt__floats(&p->g->nodes[id]), 16);
    int32_t reuse, end = dt__phase_end(p, now);
    if (home->place) return;
    reuse = p->g->nodes[id].op == DT__OP_AUX ? 0 : dt__reusable(w, id, now);
    if (p->g->nodes[id].op == DT__OP_CACHE) {
        home->place = DT__AT_CACHE;
        home->offset = p->cache;
        p->cache += size;
    } else if (dt__place_again(w, id) && w->last[id] < p->forward_count + p->backward_count) {
        dt__place_block(w, home, size, now, end - 1);
    } else if (w->last[id] >= end) {
        home->place = DT__AT_SAVED;
        home->offset = p->saved;
        p->saved += size;
    } else if (reuse) {
        *home = p->home[reuse];
        for (int32_t i = 0; home->place == DT__AT_TEMP && i < w->block_count; i++)
            if (w->blocks[i].offset == home->offset && w->blocks[i].last == now) w->blocks[i].last = w->last[id];
    } else dt__place_block(w, home, size, now, w->last[id]);
}

/* Appends the live ops of nodes [from, to) to the order, with `early` 0 or 1 only those that are so. */
static int32_t dt__plan_order(dt__planner *w, int32_t from, int32_t to, int early, int32_t count)
{
    dt__plan *p = w->p;
    dt_graph *g = p->g;
    for (int32_t id = from; id < to; id++) {
        const dt__node *n = &g->nodes[id];
        if (!w->live[id] || dt__is_leaf(n->op) || n->op == DT__OP_AUX || dt__root(g, id) != id) continue;
        if (early >= 0 && w->early[id] != early) continue;
        for (int i = 0; i < n->inputs; i++) w->last[dt__root(g, n->in[i])] = count;
        *(id < g->forward_count ? &p->forward_flops : &p->backward_flops) +=
            dt__node_flops(g, n) * dt__node_ranks(g, n);
        p->order[count++] = id;
    }
    return count;
}

/* Backward begins with the ops that are computed again, in the places that they had. */
static void dt__plan_again(dt__planner *w, int32_t now)
{
    for (int32_t id = 1; id < w->p->g->forward_count; id++) {
        dt__home *home = &w->p->home[id];
        if (dt__place_again(w, id) && home->place == DT__AT_TEMP)
            dt__place_block(w, home, dt__round_up(dt__floats(&w->p->g->nodes[id]), 16), now, w->last[id]);
    }
}

/* Order of the live ops, last readers, then a place for each value. */
static void dt__plan_lay_out(dt__planner *w, int split)
{
    dt__plan *p = w->p;
    dt_graph *g = p->g;
    int32_t count = p->forward_count = dt__plan_order(w, 1, g->forward_count, -1, 0);
    for (int32_t i = 0; i < p->forward_count && w->again; i++) {
        const dt__node *n = &g->nodes[p->order[i]];
        if (!dt__place_again(w, p->order[i])) continue;
        for (int k = 0; k < n->inputs; k++) w->last[dt__root(g, n->in[k])] = count;
        p->order[count++] = p->order[i];
    }
    if (split) dt__mark(g, w->early, p->grad_in.id);
    count = dt__plan_order(w, g->forward_count, g->count, split ? 1 : -1, count);
    p->backward_count = count - p->forward_count;
    if (split) count = dt__plan_order(w, g->forward_count, g->count, 0, count);
    p->weights_count = count - p->forward_count - p->backward_count;
    w->last[dt__root(g, g->prediction.id)] = count; /* read after the run */
    for (int32_t i = 0; i < count; i++) {
        int32_t id = p->order[i], aux = g->nodes[id].aux;
        if (i == p->forward_count || i == p->forward_count + p->backward_count)
            w->block_count = 0; /* temporaries are dead */
        if (i == p->forward_count) dt__plan_again(w, i);
        dt__place(w, id, i);
        if (aux) dt__place(w, aux, i);
    }
}

static void dt__plan_close(dt__plan **plan)
{
    dt__plan *p = *plan;
    if (!p) return;
    dt_graph_close(&p->g);
    dt__free(p->home);
    dt__free(p->order);
    dt__free(p);
    *plan = NULL;
}

/* Plans a recorded graph; the plan owns it. grad_in may be poison. how: DT__PLAN_SPLIT, backward of what grad_in does
 * not need comes later, in a phase of its own; DT__PLAN_AGAIN, attention is computed again in backward (Korthikanti et
 * al. 2022), so that its output need not be kept; its probabilities never are. */
enum { DT__PLAN_SPLIT = 1, DT__PLAN_AGAIN = 2 };
static dt_result dt__plan_open(dt__plan **plan, dt_graph *g, dt_tensor output, dt_tensor grad_in, int how)
{
    dt__plan *p = (dt__plan *)dt__alloc((int64_t)sizeof *p, "a plan");
    dt__planner w;
    memset(&w, 0, sizeof w);
    *plan = p;
    if (!p) return dt_graph_close(&g), DT_E_MEMORY;
    w.p = p;
    p->g = g;
    p->output = output;
    p->grad_in = grad_in;
    p->home = (dt__home *)dt__alloc((int64_t)sizeof *p->home * g->count, "a plan");
    p->order = (int32_t *)dt__alloc((int64_t)sizeof *p->order * 2 * g->count, "a plan");
    w.live = (uint8_t *)dt__alloc(2 * g->count, "a plan");
    w.last = (int32_t *)dt__alloc((int64_t)sizeof *w.last * g->count, "a plan");
    w.blocks = (dt__block *)dt__alloc((int64_t)sizeof *w.blocks * g->count, "a plan");
    if (p->home && p->order && w.live && w.last && w.blocks) {
        w.early = w.live + g->count;
        for (int32_t id = 1; id < g->count; id++) {
            dt__node *n = &g->nodes[id];
            w.last[id] = -1;
            if (n->slot >= 0) dt__mark(g, w.live, id), p->home[id].place = DT__AT_SLOT, p->home[id].offset = n->slot;
            if (n->op == DT__OP_PARAM) p->home[id].place = DT__AT_PARAM, p->home[id].offset = n->param;
        }
        dt__mark(g, w.live, output.id);
        dt__mark(g, w.live, grad_in.id);
        dt__mark(g, w.live, g->prediction.id);
        p->home[g->input.id].place = DT__AT_INPUT;
        p->home[g->targets.id].place = DT__AT_TARGETS;
        p->home[g->loss_seed.id].place = DT__AT_GRAD_OUT;
        p->home[dt__root(g, output.id)].place = DT__AT_OUTPUT;
        p->home[dt__root(g, grad_in.id)].place = DT__AT_GRAD_IN;
        p->home[0].place = DT__AT_NOWHERE;
        w.again = how & DT__PLAN_AGAIN && g->count > g->forward_count;
        dt__plan_lay_out(&w, how & DT__PLAN_SPLIT);
    }
    dt__free(w.live);
    dt__free(w.last);
    dt__free(w.blocks);
    if (p->home && p->order && w.blocks) return DT_OK;
    dt__plan_close(plan);
    return DT_E_MEMORY;
}

/* Where a plan's places are for one unit of work. */
typedef struct dt__bind {
    float *at[DT__PLACES]; /* INPUT, OUTPUT, TARGETS, GRAD_OUT, GRAD_IN, SAVED, TEMP, CACHE */
    float *params, *slots; /* bases; param[i] and slot[i] are offsets in floats */
    const int64_t *param, *slot; /* behind the slots' offsets: of their row slices but the first, in slices; -1: none;
                                  * then of experts that ranks share from one rank's sum to the next, else 0 */
    float *slices;
} dt__bind;

static float *dt__where(const dt__plan *p, const dt__bind *b, int32_t id)
{
    const dt__home *h = &p->home[dt__root(p->g, id)];
    if (h->place == DT__AT_PARAM) return b->params + b->param[h->offset];
    if (h->place == DT__AT_SLOT) return b->slots + b->slot[h->offset];
    DT_ASSERT(h->place == DT__AT_NOWHERE || b->at[h->place]);
    return h->place == DT__AT_NOWHERE ? NULL : b->at[h->place] + h->offset;
}

/* Runs ops [begin, begin + count) of the order. fresh: gradient slots start from +0. */
static void dt__plan_run(const dt__plan *p, int32_t begin, int32_t count, const dt__bind *b, const dt__env *env,
                         int fresh)
{
    for (int32_t k = begin; k < begin + count; k++) {
        const dt__node *n = &p->g->nodes[p->order[k]];
        dt__call c;
        c.g = p->g;
        c.n = n;
        c.env = env;
        c.fresh = n->slot < 0 || fresh;
        c.slices = NULL, c.of_rank = 0;
        if (n->slot >= 0 && (dt__in_shards(p->g) || p->g->expert_ranks > 1 || p->g->context_shards)) {
            const int64_t *slices = b->slot + p->g->slot_count + n->slot;
            if (*slices >= 0) c.slices = b->slices + *slices;
            c.of_rank = slices[p->g->slot_count];
        }
        c.out = dt__where(p, b, p->order[k]);
        c.aux = n->aux ? dt__where(p, b, n->aux) : NULL;
        for (int i = 0; i < DT__MAX_IN; i++) c.in[i] = i < n->inputs ? dt__where(p, b, n->in[i]) : NULL;
        dt__op_of(n->op)->run(&c);
    }
}

/* ============================================================================================
 * H8  models: segments, GPT-2, Llama
 * ========================================================================================= */

DT_API dt_tensor dt_targets(dt_graph *g)
{
    return g->targets.id ? g->targets : dt__poison(g, DT_E_USAGE, "dt_targets: only a segment has targets");
}

DT_API dt_tensor dt_prediction(dt_graph *g, dt_tensor x)
{
    if (!x.id) return x;
    if (dt__at(g, x)->dtype != DT_F32 || !dt__at(g, x)->shape.dims)
        return dt__poison(g, DT_E_SHAPE, "dt_prediction: it is fp32 (B,..), this is %s of %d dimensions",
                          dt__format_of[dt__at(g, x)->dtype].name, (int)dt__at(g, x)->shape.dims);
    return g->prediction = x;
}

/* What a family's mixture is like: its model's fields, and the deviation of weights that end in the residual. */
static dt_moe_options dt__model_moe(const dt_model *m)
{
    dt_moe_options o;
    memset(&o, 0, sizeof o);
    o.experts = m->experts;
    o.active = m->active ? m->active : 2;
    o.raw_weights = o.active == 1;
    o.capacity = m->capacity;
    o.balance = m->balance;
    o.down_std = 0.02f / dt__sqrtf(2.0f * (float)m->layers);
    return o;
}

/* ---- GPT-2 (Radford et al. 2019): pre-norm blocks, learned positions, tied head ---------------- */

typedef struct dt__gpt2 {
    int64_t layers, heads, width, vocabulary;
    float dropout;
    dt_moe_options moe; /* experts 0: none */
} dt__gpt2;

static dt_tensor dt__gpt2_embed(dt_graph *g, dt_tensor tokens, const void *user) /* (B,T) -> (B,T,C) */
{
    const dt__gpt2 *m = (const dt__gpt2 *)user;
    dt_tensor wte = dt__table_param(g, "wte.weight", m->vocabulary, m->width);
    dt_tensor wpe = dt__positions(g, "wpe.weight", dt_dim(g, tokens, 1), m->width);
    return dt__own_rows(g, dt_dropout(g, dt_add(g, dt_embed(g, wte, tokens), wpe), m->dropout));
}

/* The residual projections start smaller, by 1/sqrt(2 layers), so that the sum of the blocks keeps its size. */
static dt_tensor dt__gpt2_block(dt_graph *g, dt_tensor x, const void *user) /* (B,T,C) -> (B,T,C) */
{
    const dt__gpt2 *m = (const dt__gpt2 *)user;
    float residual = 0.02f / dt__sqrtf(2.0f * (float)m->layers);
    dt_tensor h = dt_layernorm(g, x, "ln_1");
    if (!dt__cuts(g, "heads", m->heads)) return dt__tensor(0);
    h = dt__linear_column(g, h, "attn.c_attn", 3 * m->width, 3, 0.02f); /* (B,T,3C): q, k, v of each tensor shard */
    h = dt_attention(g, h, m->heads, 1, m->dropout);
    h = dt_linear_row(g, h, "attn.c_proj", m->width, residual);
    x = dt_add(g, x, dt_dropout(g, h, m->dropout));
    h = dt_layernorm(g, x, "ln_2");
    if (m->moe.experts) h = dt_moe(g, h, "mlp", &m->moe);
    else {
        h = dt_gelu(g, dt_linear_column(g, h, "mlp.c_fc", 4 * m->width, 0.02f)); /* (B,T,4C) */
        h = dt_linear_row(g, h, "mlp.c_proj", m->width, residual);
    }
    return dt_add(g, x, dt_dropout(g, h, m->dropout));
}

/* Cross-entropy of the logits h table^T (B,T,V), of which tensor shards have columns. */
static dt_tensor dt__next_token_loss(dt_graph *g, dt_tensor h, dt_tensor table)
{
    return dt_cross_entropy(g, dt__matmul(g, dt__all_rows(g, h), table, 0, 1, 0, dt__own(g)), dt_targets(g));
}

static dt_tensor dt__gpt2_head(dt_graph *g, dt_tensor x, const void *user) /* (B,T,C) -> loss */
{
    const dt__gpt2 *m = (const dt__gpt2 *)user;
    dt_tensor h = dt_layernorm(g, x, "ln_f");
    return dt__next_token_loss(g, h, dt__table_param(g, "/transformer.wte.weight", m->vocabulary, m->width));
}

typedef struct dt__size {
    const char *name;
    int layers, heads, width;
} dt__size;
static const dt__size dt__gpt2_sizes[] = {{"nano", 2, 2, 64},     {"micro", 3, 4, 128},   {"tiny", 4, 4, 192},
                                          {"small", 6, 6, 384},   {"124M", 12, 12, 768},  {"355M", 24, 16, 1024},
                                          {"774M", 36, 20, 1280}, {"1558M", 48, 25, 1600}};
enum { DT__SIZES = (int)(sizeof dt__gpt2_sizes / sizeof *dt__gpt2_sizes) };

DT_API dt_model dt_model_gpt2(const char *size)
{
    dt_model m;
    memset(&m, 0, sizeof m);
    for (int i = 0; i < DT__SIZES; i++)
        if (size && !strcmp(size, dt__gpt2_sizes[i].name)) {
            m.layers = dt__gpt2_sizes[i].layers;
            m.heads = dt__gpt2_sizes[i].heads;
            m.width = dt__gpt2_sizes[i].width;
            m.balance = 0.01f;
        }
    return m;
}

/* ---- Llama (Touvron et al. 2023): RMSNorm, rotary positions, grouped queries, SwiGLU, no biases ---- */

/* The fields that may be 0 for their usual value. */
static dt_model dt__llama_settled(dt_model m)
{
    if (!m.kv_heads) m.kv_heads = m.heads;
    if (!m.hidden) m.hidden = dt__round_up(8 * m.width / 3, m.width < 1024 ? 32 : 256);
    if (m.rope_base == 0.0f) m.rope_base = 10000.0f;
    if (m.norm_eps == 0.0f) m.norm_eps = 1e-5f;
    return m;
}

static dt_tensor dt__llama_table(dt_graph *g, const dt_model *m, int head)
{
    const char *name = head && !m->tied ? "/lm_head.weight" : "/model.embed_tokens.weight";
    return dt__table_param(g, name, m->vocabulary, m->width);
}

static dt_tensor dt__llama_embed(dt_graph *g, dt_tensor tokens, const void *user) /* (B,T) -> (B,T,C) */
{
    return dt__own_rows(g, dt_embed(g, dt__llama_table(g, (const dt_model *)user, 0), tokens));
}

static dt_tensor dt__llama_attention(dt_graph *g, dt_tensor x, const dt_model *m, float residual) /* (B,T,C) -> same */
{
    static const char *const names[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    int64_t d = m->width / m->heads, widths[3];
    dt_attention_options o;
    dt_tensor y[3];
    memset(&o, 0, sizeof o);
    o.heads = m->heads, o.kv_heads = m->kv_heads, o.causal = 1;
    widths[0] = m->width, widths[1] = widths[2] = m->kv_heads * d;
    if (!dt__cuts(g, "heads", m->heads) || !dt__cuts(g, "heads of the keys", m->kv_heads)) return dt__tensor(0);
    dt__columns(g, dt_rmsnorm_eps(g, x, "input_layernorm", m->norm_eps), names, widths, 3, 0.02f, y);
    y[0] = dt_rope(g, y[0], m->heads, (double)m->rope_base, 0, &m->rope_scaling);
    y[1] = dt_rope(g, y[1], m->kv_heads, (double)m->rope_base, 0, &m->rope_scaling);
    return dt__row(g, dt_attend(g, y[0], y[1], y[2], dt__tensor(0), &o), "self_attn.o_proj", m->width, residual);
}

static dt_tensor dt__llama_mlp(dt_graph *g, dt_tensor x, const dt_model *m, float residual) /* (B,T,C) -> same */
{
    static const char *const names[] = {"mlp.gate_proj", "mlp.up_proj"};
    int64_t widths[2];
    dt_tensor y[2]; /* (B,T,hidden) */
    dt_tensor h = dt_rmsnorm_eps(g, x, "post_attention_layernorm", m->norm_eps);
    widths[0] = widths[1] = m->hidden;
    if (m->experts) {
        dt_moe_options o = dt__model_moe(m);
        o.gated = 1;
        o.width = m->hidden;
        return dt_moe(g, h, "mlp", &o);
    }
    if (!dt__cuts(g, "hidden units", m->hidden)) return dt__tensor(0);
    dt__columns(g, h, names, widths, 2, 0.02f, y);
    return dt__row(g, dt_mul(g, dt_silu(g, y[0]), y[1]), "mlp.down_proj", m->width, residual);
}

/* The residual projections start smaller, as GPT-2's do. */
static dt_tensor dt__llama_block(dt_graph *g, dt_tensor x, const void *user) /* (B,T,C) -> (B,T,C) */
{
    const dt_model *m = (const dt_model *)user;
    float residual = 0.02f / dt__sqrtf(2.0f * (float)m->layers);
    x = dt_add(g, x, dt__llama_attention(g, x, m, residual));
    return dt_add(g, x, dt__llama_mlp(g, x, m, residual));
}

static dt_tensor dt__llama_head(dt_graph *g, dt_tensor x, const void *user) /* (B,T,C) -> loss */
{
    const dt_model *m = (const dt_model *)user;
    dt_tensor h = dt_rmsnorm_eps(g, x, "norm", m->norm_eps);
    return dt__next_token_loss(g, h, dt__llama_table(g, m, 1));
}

typedef struct dt__llama_size {
    const char *name;
    int layers, heads, kv_heads, width, hidden, tied; /* hidden 0: by the rule */
    float rope_base, slowing;                         /* slowing: of Llama 3's rotary frequencies; 0: none */
} dt__llama_size;
static const dt__llama_size dt__llama_sizes[] = {
    {"llama-nano", 2, 4, 2, 64, 0, 0, 1e4f, 0.0f},         {"llama-micro", 3, 4, 2, 128, 0, 0, 1e4f, 0.0f},
    {"llama-tiny", 4, 6, 2, 192, 0, 0, 1e4f, 0.0f},        {"llama-small", 6, 6, 2, 384, 0, 0, 1e4f, 0.0f},
    {"llama-1.1B", 22, 32, 4, 2048, 0, 0, 1e4f, 0.0f},     {"llama-7B", 32, 32, 32, 4096, 0, 0, 1e4f, 0.0f},
    {"llama-13B", 40, 40, 40, 5120, 0, 0, 1e4f, 0.0f},     {"llama3-8B", 32, 32, 8, 4096, 14336, 0, 5e5f, 0.0f},
    {"llama3.2-1B", 16, 32, 8, 2048, 8192, 1, 5e5f, 32.0f}};
enum { DT__LLAMA_SIZES = (int)(sizeof dt__llama_sizes / sizeof *dt__llama_sizes) };

DT_API dt_model dt_model_llama(const char *size)
{
    dt_model m;
    memset(&m, 0, sizeof m);
    m.family = DT_LLAMA;
    m.balance = 0.01f;
    for (int i = 0; i < DT__LLAMA_SIZES; i++) {
        const dt__llama_size *s = &dt__llama_sizes[i];
        if (!size || strcmp(size, s->name)) continue;
        m.layers = s->layers, m.heads = s->heads, m.kv_heads = s->kv_heads, m.width = s->width, m.hidden = s->hidden;
        m.tied = s->tied;
        m.rope_base = s->rope_base;
        if (s->slowing == 0.0f) continue;
        m.rope_scaling.factor = (double)s->slowing;
        m.rope_scaling.low_freq_factor = 1.0, m.rope_scaling.high_freq_factor = 4.0;
        m.rope_scaling.original_context = 8192;
    }
    return m;
}

DT_API dt_model dt_model_segments(const dt_segment *segments, int64_t count, int64_t vocabulary)
{
    dt_model m;
    memset(&m, 0, sizeof m);
    m.segments = segments;
    m.segment_count = count;
    m.vocabulary = vocabulary;
    return m;
}

/* ---- a network: segments built and planned for one size of unit --------------------------------- */

typedef struct dt__built {
    dt__plan *plan;
    int owner; /* this segment's graph is the plan's; others with the same plan only have other parameters */
    int32_t *param_of, *use; /* its parameters in the net's list; 4 x parameter + use of its gradient slots */
    int64_t *param, *slot, *window; /* where these are (H15), in floats, as in dt__bind; window: gathered parameters */
    int64_t input, output; /* floats of its input and output */
    int64_t out_at, saved_at, gradient_at; /* places in the memory of a unit in work (H15) */
    int32_t stage, chunk;  /* who works on it (H15) */
    int64_t routed;        /* experts of the mixtures before this segment */
    int watched;           /* it has mixtures or auxiliary losses */
} dt__built;

typedef struct dt__net_param {
    dt__param is;
    int64_t offset; /* floats; -1: none of it is on this rank */
    int64_t count;  /* of this rank's shards, to the end of the last */
    int32_t uses;
    int32_t stage[4]; /* who has each use */
    int64_t slices;   /* row slices that a leaf's gradient is summed by (R7); 1: it is one sum */
    int64_t slot[4];  /* of each use's gradient; -1: not on this rank */
} dt__net_param;

/* Parameters are listed in definition order; where a rank keeps them, at multiples of 1024 floats (R11), H15 decides.
 * Of tensor_shards (Vt) this rank has own_shards from first_shard on, of context_shards (Vc) own_leaves from first_leaf
 * on; these fields may be set before the network is opened. */
typedef struct dt__net {
    int64_t tensor_shards, first_shard, own_shards; /* 0: 1, 0, all */
    int64_t expert_ranks, expert_rank;              /* ranks that share experts; 0: this one has all */
    int64_t context_shards, first_leaf, own_leaves; /* 0: sequences are whole */
    int sequence_parallel;
    dt__built *segments;
    int64_t count;
    dt__net_param *params;
    int32_t param_count;
    int64_t weights;                            /* of the whole model */
    int how;                                    /* to plan (dt__plan_open) */
    int64_t saved, most_saved, temp, boundary,
        widest;                                 /* floats: sum and most of segments, largest temp, outputs, largest */
    int64_t cache;                              /* floats that decode graphs keep from run to run, sum over segments */
    int64_t tables;                             /* floats of the ops' constants */
    int64_t sliced;                             /* floats that attention over context slices works in */
    double forward_flops, backward_flops;       /* of one unit */
    const dt_source *source;                    /* what goes in and what is expected; NULL: tokens and tokens */
    int64_t ids[2];                             /* inputs, targets used as ids must be below; INT64_MAX: none are */
    int64_t routed;                             /* experts of all mixtures */
    int watched;                                /* are there mixtures or auxiliary losses? */
    dt__gpt2 gpt2;
    dt_model llama;
    dt_segment *own; /* a family's list */
    char *names;
} dt__net;

static int32_t dt__net_find(const dt__net *net, const char *name)
{
    for (int32_t i = 0; i < net->param_count; i++)
        if (!strcmp(net->params[i].is.name, name)) return i;
    return -1;
}

/* Enters a graph's parameter into the network's list, or finds it there. */
static dt_result dt__net_param_add(dt__net *net, const dt__param *p, int32_t *index)
{
    dt__net_param *list;
    char a[96], b[96];
    *index = dt__net_find(net, p->name);
    if (*index >= 0) {
        const dt__param *q = &net->params[*index].is;
        if (q->cut != p->cut || q->rows != p->rows)
            return dt__error(DT_E_SHAPE, "parameter %s is used in a tensor-parallel form and in another one", p->name);
        if (dt__same_shape(&net->params[*index].is.shape, &p->shape)) return DT_OK;
        return dt__error(DT_E_SHAPE,
                         "parameter %s is used with shape %s and with shape %s: a shared name needs one shape", p->name,
                         dt__shape_text(&net->params[*index].is.shape, a), dt__shape_text(&p->shape, b));
    }
    list = (dt__net_param *)dt__alloc((int64_t)sizeof *list * (net->param_count + 1), "the parameter list");
    if (!list) return DT_E_MEMORY;
    if (net->param_count) memcpy(list, net->params, sizeof *list * (size_t)net->param_count);
    dt__free(net->params);
    net->params = list;
    *index = net->param_count++;
    list[*index].is = *p;
    list[*index].count = dt__param_local(p, net->tensor_shards, net->own_shards);
    list[*index].offset = -1;
    net->weights += dt_shape_count(p->shape);
    return DT_OK;
}

/* A leaf cannot be an output: it has a place already. */
static dt_tensor dt__computed(dt_graph *g, dt_tensor t)
{
    return t.id && dt__is_leaf(g->nodes[dt__root(g, t.id)].op) ? dt_scale(g, t, 1.0f) : t;
}

/* Records segment s over an input of `shape`: forward, then its gradient; with a context forward alone, and the last
 * one's output is its logits. The plan owns the graph. `source` has the types of the model's input and targets; NULL:
 * tokens. */
static dt_result dt__segment_record(dt_graph *g, const dt_segment *s, dt_shape shape, dt_shape targets,
                                    int64_t context, int first, int last, const dt_source *source, int how,
                                    dt__plan **plan)
{
    dt_tensor y, dx = dt__nothing();
    dt_result r;
    snprintf(g->prefix, sizeof g->prefix, "%s", s->name);
    g->context = context;
    g->input = dt__leaf(g, DT__OP_INPUT, shape, !first ? (int)DT_F32 : source ? (int)source->input_type : (int)DT_I32);
    g->targets = dt__leaf(g, DT__OP_INPUT, targets, source ? (int)source->target_type : (int)DT_I32);
    y = s->build(g, g->input, s->user);
    if (dt__at(g, y)->dtype != DT_F32)
        y = dt__poison(g, DT_E_SHAPE, "a segment returns fp32 numbers, this one %s: dt_cast it to DT_F32",
                       dt__format_of[dt__at(g, y)->dtype].name);
    y = dt__computed(g, y);
    if (!g->result && last && (!y.id || dt__count(dt__at(g, y)) != 1))
        dt__poison(g, DT_E_SHAPE, "the last segment must return a scalar loss (dt_cross_entropy, dt_loss, ..)");
    if (context && last) y = g->logits;
    g->forward_count = g->count;
    if (!g->result && !context) {
        g->loss_seed = dt__leaf(g, DT__OP_INPUT, dt__at(g, y)->shape, DT_F32);
        dt__differentiate(g, y, g->loss_seed);
        dx = dt__computed(g, dt__tensor(first ? 0 : dt__at(g, g->input)->grad));
        if (!g->result && !first && !dx.id)
            dt__poison(g, DT_E_SHAPE, "the segment's output does not depend on its input");
    }
    r = dt_graph_result(g);
    if (r) return dt_graph_close(&g), r;
    return dt__plan_open(plan, g, y, dx, how);
}
/* The same in a graph of its own, on one rank and one tensor shard. */
static dt_result dt__segment_plan(const dt_segment *s, dt_shape shape, dt_shape targets, int64_t context, int first,
                                  int last, const dt_source *source, dt__plan **plan)
{
    dt_graph *g = dt__graph_new(0, 0);
    return g ? dt__segment_record(g, s, shape, targets, context, first, last, source, 0, plan) : DT_E_MEMORY;
}

/* A graph for this rank's tensor shards of a unit of (B,T). */
static dt_graph *dt__net_graph(const dt__net *net, const dt_shape *unit)
{
    dt_graph *g = dt__graph_new(0, 0);
    if (!g) return g;
    g->tensor_shards = net->tensor_shards;
    g->first_shard = net->first_shard, g->own_shards = net->own_shards;
    g->sequence_parallel = net->sequence_parallel;
    g->expert_ranks = net->expert_ranks, g->expert_rank = net->expert_rank;
    g->context_shards = net->context_shards, g->first_leaf = net->first_leaf, g->own_leaves = net->own_leaves;
    g->samples = unit->n[0], g->positions = unit->n[1];
    return g;
}

/* Notes what a segment uses as ids: rows of a table, or classes. Through ops that only pick, the ids are the same. */
static void dt__net_ids(dt__net *net, const dt_graph *g, int first)
{
    for (int32_t i = 1; i < g->forward_count; i++) {
        const dt__node *n = &g->nodes[i];
        int32_t id = n->op == DT__OP_EMBED || n->op == DT__OP_CROSS_ENTROPY ? n->in[1] : 0;
        int64_t count = n->op == DT__OP_EMBED ? g->nodes[n->in[0]].shape.n[0] : id ? dt__cols(&g->nodes[n->in[0]]) : 0;
        const dt__param *table = n->op == DT__OP_EMBED ? dt__cut_param(g, &g->nodes[n->in[0]]) : NULL;
        if (table) count = table->shape.n[0];
        if (n->op == DT__OP_CROSS_ENTROPY && n->i[0]) count = n->i[0];
        while (dt__takes(g->nodes[id].op, 0) == DT__ANY && g->nodes[id].op != DT__OP_CAST) id = g->nodes[id].in[0];
        if (id && id == g->targets.id) net->ids[1] = dt__min(net->ids[1], count);
        if (id && id == g->input.id && first) net->ids[0] = dt__min(net->ids[0], count);
    }
}

/* Builds segment `at`; takes over the plan of an earlier segment that is the same but for its parameters. */
static dt_result dt__net_segment(dt__net *net, const dt_segment *list, int64_t at, dt_shape *shape, dt_shape targets,
                                 int64_t context)
{
    dt__built *b = &net->segments[at];
    dt_graph *g = dt__net_graph(net, &targets);
    dt_result r = !g ? DT_E_MEMORY
                     : dt__segment_record(g, &list[at], *shape, targets, context, at == 0, at == net->count - 1,
                                          net->source, net->how, &b->plan);
    if (r) return r;
    b->owner = 1;
    g = b->plan->g;
    dt__net_ids(net, g, at == 0);
    b->input = dt_shape_count(*shape);
    *shape = dt__at(g, b->plan->output)->shape;
    b->output = dt_shape_count(*shape);
    b->param = (int64_t *)dt__alloc(16 * g->param_count, "a segment");
    b->slot = (int64_t *)dt__alloc(24 * g->slot_count, "a segment");
    b->param_of = (int32_t *)dt__alloc(4 * (g->param_count + g->slot_count), "a segment");
    if (!b->param || !b->slot || !b->param_of) return DT_E_MEMORY;
    b->window = b->param + g->param_count;
    b->use = b->param_of + g->param_count;
    for (int32_t i = 0; i < g->param_count; i++) {
        int32_t index;
        if ((r = dt__net_param_add(net, &g->params[i], &index)) != DT_OK) return r;
        b->param_of[i] = index;
    }
    for (int32_t i = 0; i < g->slot_count; i++) {
        int32_t index = dt__net_find(net, g->params[g->slots[i].param].name);
        if (net->params[index].uses == 4)
            return dt__error(DT_E_SHAPE, "parameter %s is used more than four times", net->params[index].is.name);
        net->params[index].slices = dt__row_slices(g, &net->params[index].is);
        b->use[i] = index * 4 + net->params[index].uses++;
    }
    for (int64_t e = at - 1; e >= 0; e--) {
        dt__built *o = &net->segments[e];
        if (!o->owner || list[e].build != list[at].build || list[e].user != list[at].user ||
            o->plan->g->count != g->count || e == 0 || at == net->count - 1 ||
            !dt__same_shape(&dt__at(o->plan->g, o->plan->g->input)->shape, &dt__at(g, g->input)->shape))
            continue;
        dt__plan_close(&b->plan);
        b->plan = o->plan;
        b->owner = 0;
        break;
    }
    return DT_OK;
}

/* The gradient of a parameter of several arrays: its padding, and what other segments may have left between them, which
 * the norm counts as +0 (R11). */
static void dt__net_pad(const dt__net *net, const dt__param *p, float *slot)
{
    int64_t vt = net->tensor_shards, floats = dt__shard_floats(p, vt), step = dt__shard_step(p, vt);
    for (int64_t v = 0; dt__param_arrays(p, vt) > 1 && v < dt__param_shards(p, vt, net->own_shards); v++) {
        int64_t width = p->pad ? dt__param_width(p, vt) : 1, filled = floats;
        if (p->pad)
            filled = dt__max(0, dt__min(width, p->shape.n[0] - (net->first_shard + v) * width)) * (floats / width);
        memset(slot + v * step + filled, 0, 4 * (size_t)(step - filled));
    }
}

/* to += from, in pieces on the pool. */
typedef struct dt__add_job {
    const dt__kernels *k;
    float *to;
    const float *from;
    int64_t n;
} dt__add_job;
static void dt__add_task(void *context, int64_t task, int worker)
{
    const dt__add_job *j = (const dt__add_job *)context;
    int64_t at = task * 65536;
    (void)worker;
    j->k->binary(DT__OP_ADD, j->to + at, j->to + at, 1, j->from + at, 1, dt__min(65536, j->n - at));
}

/* Folds the row slices of a complete gradient (R2, R7) in slot i of a graph: TREE over this rank's slices of each leaf,
 * where rows are split over those of all ranks too, then over its leaves. The sums are at `first`, and from the second
 * on at `more`. */
static void dt__slot_fold(const dt__net *net, const dt_graph *g, int32_t i, float *first, float *more,
                          const dt__env *env)
{
    const dt__param *p = &g->params[g->slots[i].param];
    int64_t slices = dt__row_slices(g, p), leaf = dt__leaf_slices(g, p), width;
    dt__add_job j;
    j.k = env->k;
    j.n = dt__param_local(p, net->tensor_shards, net->own_shards);
    width = dt__round_up(j.n, DT__BLOCK);
    for (int64_t near = 1; near <= slices; near *= 2) {
        for (int64_t v = 0; near == leaf && p->rows == 1 && dt__splits_rows(g) && v < slices; v += leaf) {
            j.to = v ? more + (v - 1) * width : first;
            env->tp.combine(env->tp.user, DT__TP_SUM, j.to, j.to, j.n);
        }
        for (int64_t v = 0; near < slices && v < slices; v += 2 * near) {
            j.to = v ? more + (v - 1) * width : first;
            j.from = more + (v + near - 1) * width;
            dt__parallel(env->pool, dt__ceil_div(j.n, 65536), dt__add_task, &j);
        }
    }
}

/* The same for segments [begin, end) in a gradient set, whose slices are elsewhere. Before the leaf is added to others.
 */
static void dt__net_fold(const dt__net *net, int64_t begin, int64_t end, float *set, float *slices, const dt__env *env)
{
    for (int64_t s = begin; s < end; s++) {
        const dt__built *b = &net->segments[s];
        const dt_graph *g = b->plan->g;
        for (int32_t i = 0; i < g->slot_count; i++) {
            const dt__param *p = &g->params[g->slots[i].param];
            int64_t width = dt__round_up(dt__param_local(p, net->tensor_shards, net->own_shards), DT__BLOCK);
            int64_t more = (dt__row_slices(g, p) - 1) * width;
            for (int64_t r = 0; r < dt__param_copies(p); r++) {
                float *to = set + b->slot[i] + r * b->slot[2 * g->slot_count + i];
                dt__slot_fold(net, g, i, to, slices + b->slot[g->slot_count + i] + r * more, env);
                dt__net_pad(net, p, to);
            }
        }
    }
}

static void dt__net_close(dt__net *net)
{
    for (int64_t s = 0; net->segments && s < net->count; s++) {
        if (net->segments[s].owner) dt__plan_close(&net->segments[s].plan);
        dt__free(net->segments[s].param);
        dt__free(net->segments[s].slot);
        dt__free(net->segments[s].param_of);
    }
    dt__free(net->segments);
    dt__free(net->params);
    dt__free(net->own);
    dt__free(net->names);
    memset(net, 0, sizeof *net);
}

/* A family as a list of segments: embedding, blocks, head. */
static dt_result dt__family_list(dt__net *net, const dt_model *m)
{
    dt__gpt2 *c = &net->gpt2;
    int llama = m->family == DT_LLAMA;
    const char *model = llama ? "model" : "transformer", *blocks = llama ? "model.layers" : "transformer.h";
    c->layers = m->layers, c->heads = m->heads, c->width = m->width, c->vocabulary = m->vocabulary;
    c->dropout = m->dropout;
    net->llama = dt__llama_settled(*m);
    c->moe = dt__model_moe(m);
    c->moe.bias = 1;
    net->count = m->layers + 2;
    net->own = (dt_segment *)dt__alloc((int64_t)sizeof *net->own * net->count, "the model");
    net->names = (char *)dt__alloc(24 * m->layers, "the model");
    if (!net->own || !net->names) return DT_E_MEMORY;
    for (int64_t s = 0; s < net->count; s++) {
        char *name = net->names + 24 * (s - 1);
        dt_segment *o = &net->own[s];
        if (s > 0 && s <= m->layers) snprintf(name, 24, "%s.%d", blocks, (int)(s - 1));
        o->name = s == 0 || s > m->layers ? model : name;
        if (llama) o->build = s == 0 ? dt__llama_embed : s > m->layers ? dt__llama_head : dt__llama_block;
        else o->build = s == 0 ? dt__gpt2_embed : s > m->layers ? dt__gpt2_head : dt__gpt2_block;
        o->user = llama ? (const void *)&net->llama : (const void *)c;
    }
    return DT_OK;
}

/* The fields that are 0 for their usual values. */
static dt_result dt__net_shards(dt__net *net, const dt_model *m)
{
    if (!net->tensor_shards) net->tensor_shards = 1;
    if (!net->own_shards) net->own_shards = net->tensor_shards;
    if (!dt__is_pow2(net->tensor_shards) || net->tensor_shards > DT__TENSOR_SHARDS)
        return dt__error(DT_E_USAGE, "%lld tensor shards: it is a power of two up to %d",
                         (long long)net->tensor_shards, (int)DT__TENSOR_SHARDS);
    if (m->segments && net->sequence_parallel)
        return dt__error(DT_E_USAGE, "sequence parallelism is for the model families: their blocks say where rows are "
                         "split");
    return DT_OK;
}

/* Can context shards cut what this model does with sequences of so many tokens? */
static dt_result dt__net_context(const dt__net *net, const dt_model *m, int64_t sequence)
{
    char list[256];
    size_t used = 0;
    if (!net->context_shards) return DT_OK;
    if (m->segments)
        return dt__error(DT_E_USAGE, "context shards cut the sequences of the model families: a model of one's own has "
                         "--context-shards 1");
    if (sequence % (2 * net->context_shards) == 0) return DT_OK;
    list[0] = 0;
    for (int64_t v = 2; sequence % (2 * v) == 0 && used + 24 < sizeof list; v *= 2)
        used += (size_t)snprintf(list + used, sizeof list - used, ", %lld", (long long)v);
    return dt__error(DT_E_USAGE, "%lld tokens do not divide into two slices for each of %lld context shards: "
                     "--context-shards one of 1%s, or another --sequence", (long long)sequence,
                     (long long)net->context_shards, list);
}

/* Builds and plans a model for units of `rows` samples of T tokens, or of what net->source says; with a context
 * (families alone) in the decode form: T of so many positions, against the keys and values of those before. net must be
 * zero but for the source, and must not move afterwards. */
static dt_result dt__net_open_at(dt__net *net, const dt_model *m, int64_t rows, int64_t sequence, int64_t context)
{
    int64_t leaves = dt__max(1, net->own_leaves), cut = dt__max(1, net->context_shards);
    dt_shape shape = dt_shape2(rows * leaves, (net->source ? net->source->inputs : sequence) / cut);
    dt_shape targets = dt_shape2(rows * leaves, (net->source ? net->source->targets : sequence) / cut);
    const dt_segment *list = m->segments;
    dt_result r = dt__net_shards(net, m);
    if (!r) r = dt__net_context(net, m, net->source ? net->source->inputs : sequence);
    if (r) return r;
    net->ids[0] = net->ids[1] = INT64_MAX;
    net->count = m->segment_count;
    if (!list) r = dt__family_list(net, m);
    if (r) return r;
    if (!list) list = net->own;
    net->segments = (dt__built *)dt__alloc((int64_t)sizeof *net->segments * net->count, "the model");
    if (!net->segments) return DT_E_MEMORY;
    for (int64_t s = 0; s < net->count && !r; s++) r = dt__net_segment(net, list, s, &shape, targets, context);
    if (r) return r;
    for (int32_t i = 0; i < net->param_count && !context; i++)
        if (!net->params[i].uses)
            return dt__error(DT_E_SHAPE, "the loss does not depend on parameter %s: use it, or leave it out",
                             net->params[i].is.name);
    for (int64_t s = 0; s < net->count; s++) {
        dt__built *b = &net->segments[s];
        b->routed = net->routed;
        for (int32_t id = 1; id < b->plan->g->forward_count; id++) {
            const dt__node *n = &b->plan->g->nodes[id];
            if (n->op == DT__OP_MOE_ROUTE) net->routed += n->i[0];
            if (n->op == DT__OP_MOE_ROUTE || n->op == DT__OP_AUX_LOSS) b->watched = net->watched = 1;
            if (n->op == DT__OP_ATTENTION && net->context_shards)
                net->sliced = dt__max(net->sliced, dt__sliced_floats(b->plan->g, n));
        }
        net->saved += b->plan->saved;
        net->most_saved = dt__max(net->most_saved, b->plan->saved);
        net->cache += b->plan->cache;
        if (b->owner) net->tables += b->plan->g->table_floats;
        net->temp = dt__max(net->temp, b->plan->temp);
        net->boundary += dt__round_up(b->output, 16);
        net->widest = dt__max(net->widest, dt__round_up(b->output, 16));
        net->forward_flops += b->plan->forward_flops;
        net->backward_flops += b->plan->backward_flops;
    }
    return DT_OK;
}

static dt_result dt__net_open(dt__net *net, const dt_model *m, int64_t rows, int64_t sequence)
{
    return dt__net_open_at(net, m, rows, sequence, 0);
}

/* Elements of `bytes` each between this rank's shards of a parameter and the whole one; cut: to the shards. */
static void dt__net_move(const dt__net *net, const dt__net_param *p, char *shards, char *whole, int64_t bytes, int cut)
{
    int64_t vt = net->tensor_shards, size = dt__shard_floats(&p->is, vt), step = dt__shard_step(&p->is, vt), run;
    for (int64_t v = 0; v < dt__param_shards(&p->is, vt, net->own_shards); v++)
        for (int64_t at = 0; at < size; at += run) {
            int64_t array = dt__param_array(&p->is, vt, net->first_shard, net->own_shards, v);
            int64_t place = dt__param_index(&p->is, vt, array, at);
            char *a = shards + (v * step + at) * bytes, *b = whole + place * bytes;
            run = dt__param_run(&p->is, vt, at);
            if (place >= 0) memcpy(cut ? a : b, cut ? b : a, (size_t)(run * bytes));
        }
}
static void dt__net_whole(const dt__net *net, const dt__net_param *p, const void *shards, int64_t bytes, void *whole)
{
    char *from;
    memcpy(&from, &shards, sizeof from); /* only read */
    dt__net_move(net, p, from, (char *)whole, bytes, 0);
}

static void dt__net_cut(const dt__net *net, const dt__net_param *p, const void *whole, int64_t bytes, void *shards)
{
    char *from;
    memcpy(&from, &whole, sizeof from); /* only read */
    dt__net_move(net, p, (char *)shards, from, bytes, 1);
}

/* Widths that the row kernels' scratch must hold. */
static int64_t dt__net_scratch(const dt__net *net, const dt__kernels *k)
{
    int64_t bytes = k->gemm_scratch();
    for (int64_t s = 0; s < net->count; s++)
        for (int32_t id = 1; id < net->segments[s].plan->g->count; id++)
            bytes = dt__max(bytes, dt__node_scratch(k, net->segments[s].plan->g, id));
    return bytes;
}

/* ============================================================================================
 * H10  optimizer and schedules
 * ========================================================================================= */

DT_API dt_recipe dt_recipe_default(void)
{
    dt_recipe r;
    memset(&r, 0, sizeof r);
    r.model = dt_model_gpt2("tiny");
    r.steps = 200;
    r.batch = 16;
    r.sequence = 128;
    r.seed = 1;
    r.data_shards = 8;
    r.tensor_shards = r.context_shards = 1;
    r.warmup = 20;
    r.schedule = DT_COSINE;
    r.accumulation = DT_SHARD;
    r.learning_rate = 1e-3f;
    r.final_rate = 0.1f;
    r.beta1 = 0.9f;
    r.beta2 = 0.95f;
    r.epsilon = 1e-8f;
    r.weight_decay = 0.1f;
    r.clip = 1.0f;
    r.validation = 0.05f;
    return r;
}

DT_API float dt_learning_rate(const dt_recipe *r, int64_t step)
{
    double peak = (double)r->learning_rate, floor = (double)r->final_rate, x;
    int64_t tail = r->decay > 0 ? r->decay : dt__max(1, r->steps / 10);
    if (step < r->warmup) return (float)(peak * (double)(step + 1) / (double)r->warmup);
    if (r->schedule == DT_CONSTANT) return r->learning_rate;
    if (r->schedule == DT_WSD) x = (double)dt__max(0, step - (r->steps - tail)) / (double)tail;
    else x = (double)(step - r->warmup) / (double)dt__max(1, r->steps - r->warmup);
    if (x > 1.0) x = 1.0;
    if (r->schedule == DT_COSINE) return (float)(peak * (floor + (1.0 - floor) * 0.5 * (1.0 + dt__cospi(x))));
    return (float)(peak * (1.0 - (1.0 - floor) * x));
}

/* Bytes that 256 weights have in array `which` of the optimizer's state: 1024 floats, 256 codes, 4 a scale, 0 none. */
static int64_t dt__state_bytes(const dt_recipe *r, int which)
{
    static const int16_t bytes[][DT__STATE_AVERAGE] = {
        {1024, 1024, 0, 0}, {1024, 1024, 0, 0}, {1024, 0, 0, 0}, {1024, 0, 0, 0}, {256, 256, 4, 4}};
    if (which == DT__STATE_AVERAGE) return r->ema > 0.0f ? 1024 : 0;
    if (r->optimizer < DT_ADAMW || r->optimizer > DT_ADAMW8) return 0;
    return r->optimizer == DT_SGD && !(r->momentum > 0.0f) ? 0 : bytes[r->optimizer][which];
}

DT_API double dt_optimizer_bytes(const dt_recipe *r)
{
    int64_t bytes = 0;
    for (int i = 0; i < DT__STATE_COUNT; i++) bytes += dt__state_bytes(r, i);
    return (double)bytes / (double)DT__MOMENT_BLOCK;
}

/* Running products beta^t, kept in double from step to step (R13). */
typedef struct dt__powers {
    double power1, power2;
} dt__powers;

/* The scalars of the next step for parameters that decay (1) or not (0). */
static dt__update dt__update_of(const dt__powers *p, const dt_recipe *r, float lr, float clip_scale, int decays)
{
    int coupled = r->optimizer == DT_ADAM || r->optimizer == DT_SGD;
    int corrected = r->optimizer != DT_SGD && r->optimizer != DT_LION;
    dt__update u;
    memset(&u, 0, sizeof u);
    u.beta1 = r->beta1;
    u.one_minus_beta1 = (float)(1.0 - (double)r->beta1);
    u.beta2 = r->beta2;
    u.one_minus_beta2 = (float)(1.0 - (double)r->beta2);
    u.eps = r->epsilon;
    u.clip = clip_scale;
    u.limit = r->clip_value > 0.0f ? r->clip_value : __builtin_inff();
    u.decay = decays && coupled ? r->weight_decay : 0.0f;
    u.keep = decays && !coupled ? (float)(1.0 - (double)lr * (double)r->weight_decay) : 1.0f;
    u.step = corrected ? (float)((double)lr / (1.0 - p->power1)) : lr;
    u.root_scale = (float)(1.0 / __builtin_sqrt(1.0 - p->power2));
    u.momentum = r->momentum;
    u.nesterov = r->nesterov;
    u.average = r->ema;
    u.one_minus_average = (float)(1.0 - (double)r->ema);
    return u;
}

/* Sums of squares of blocks of 1024 (R5). */
typedef struct dt__squares {
    const dt__kernels *k;
    const float *x;
    int64_t n;
    float *sums;
} dt__squares;
static void dt__squares_task(void *context, int64_t task, int worker)
{
    const dt__squares *s = (const dt__squares *)context;
    int64_t blocks = dt__ceil_div(s->n, DT__BLOCK);
    (void)worker;
    for (int64_t b = task * 64; b < dt__min(blocks, task * 64 + 64); b++) {
        const float *x = s->x + b * DT__BLOCK;
        s->sums[b] = s->k->row_dot(x, x, dt__min(DT__BLOCK, s->n - b * DT__BLOCK));
    }
}
static void dt__block_squares(const dt__kernels *k, dt_pool *pool, const float *x, int64_t n, float *sums)
{
    dt__squares s;
    s.k = k, s.x = x, s.n = n, s.sums = sums;
    dt__parallel(pool, dt__ceil_div(dt__ceil_div(n, DT__BLOCK), 64), dt__squares_task, &s);
}

/* TREE over n values, which are lost. */
static float dt__tree(float *x, int64_t n)
{
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i + step < n; i += 2 * step) x[i] = x[i] + x[i + step];
    return x[0];
}

/* ============================================================================================
 * H11  data, tokenizers
 * ========================================================================================= */

/* ---- files --------------------------------------------------------------------------------- */

/* Maps a whole plain file, read-only; *map stays NULL for an empty one. munmap() gives it back. */
static dt_result dt__file_map(const char *path, void **map, int64_t *bytes)
{
    struct stat info;
    int file;
    *map = NULL;
    if (stat(path, &info)) return dt__error(DT_E_FILE, "cannot find %s (%s): check the name", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return dt__error(DT_E_FILE, "%s is a directory: name a file in it, or use the pattern %s/*", path, path);
    if (!S_ISREG(info.st_mode)) /* before open(), which would wait for the other end of a FIFO */
        return dt__error(DT_E_FILE, "%s is a pipe or a device, but it is read in any order: copy it to a file", path);
    *bytes = info.st_size;
    if (!*bytes) return DT_OK;
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return dt__error(DT_E_FILE, "cannot read %s (%s): check its permissions", path, strerror(errno));
    *map = mmap(NULL, (size_t)*bytes, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (*map != MAP_FAILED) return DT_OK;
    *map = NULL;
    return dt__error(DT_E_FILE, "cannot map %s (%s): copy it to a local disk", path, strerror(errno));
}

/* A file that appears under its name only when it is complete: open, write, end, publish. After an error of open or
 * end nothing is left; dt__draft_drop() gives up one that was ended and not published. */
typedef struct dt__draft {
    FILE *file;
    char name[PATH_MAX]; /* while it is written */
} dt__draft;

static dt_result dt__draft_open(dt__draft *d, const char *path)
{
    /* process and place: ranks that are threads write different files, too */
    if ((size_t)snprintf(d->name, sizeof d->name, "%s.%ld.%p.tmp", path, (long)getpid(), (void *)d) >= sizeof d->name)
        return dt__error(DT_E_FILE, "the file name %.60s... is too long: use a shorter one", path);
    d->file = fopen(d->name, "wb");
    if (d->file) return DT_OK;
    return dt__error(DT_E_FILE, "cannot create %s (%s): choose another directory", d->name, strerror(errno));
}

static dt_result dt__draft_failed(const dt__draft *d, const char *path, int why)
{
    unlink(d->name);
    return dt__error(DT_E_FILE, "cannot write %s (%s): free some space or choose another place", path, strerror(why));
}

static void dt__draft_drop(dt__draft *d)
{
    if (d->file) fclose(d->file);
    d->file = NULL;
    unlink(d->name);
}

/* To the disk, and closed. */
static dt_result dt__draft_end(dt__draft *d, const char *path)
{
    int fine, why;
    fine = !ferror(d->file) && !fflush(d->file) && !fsync(fileno(d->file));
    why = errno;
    if (fclose(d->file) && fine) {
        fine = 0;
        why = errno;
    }
    d->file = NULL;
    return fine ? DT_OK : dt__draft_failed(d, path, why);
}

static dt_result dt__draft_publish(dt__draft *d, const char *path)
{
    return rename(d->name, path) ? dt__draft_failed(d, path, errno) : DT_OK;
}

static int dt__name_order(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Appends the files that a name or pattern stands for. A pattern without a match stays as it is: opening it then says
 * that it is missing. glob() would sort by the locale, and the order of shards decides bits. */
static int dt__names_add(glob_t *names, const char *pattern)
{
    size_t old = names->gl_pathc;
    if (glob(pattern, GLOB_NOSORT | GLOB_NOCHECK | (old ? GLOB_APPEND : 0), NULL, names)) return 0;
    qsort(names->gl_pathv + old, names->gl_pathc - old, sizeof *names->gl_pathv, dt__name_order);
    return 1;
}

/* The files of a list. On success the caller frees them with globfree(). */
static dt_result dt__names_list(glob_t *names, const char *path)
{
    int64_t size = (int64_t)strlen(path) + 1;
    char *list = (char *)dt__alloc(size, "a list of file names"), *name, *comma;
    int fine = 1;
    if (!list) return DT_E_MEMORY;
    memset(names, 0, sizeof *names);
    memcpy(list, path, (size_t)size);
    for (name = list; name && fine; name = comma) {
        comma = access(path, F_OK) ? strchr(name, ',') : NULL; /* a file may have a comma in its name */
        if (comma) *comma++ = 0;
        if (*name) fine = dt__names_add(names, name);
    }
    dt__free(list);
    if (fine && names->gl_pathc) return DT_OK;
    globfree(names);
    return fine ? dt__error(DT_E_USAGE, "no file is named in \"%s\": give the name of a text", path)
                : dt__error(DT_E_SYSTEM, "cannot look for %s: name the files one by one", path);
}

/* ---- JSON (RFC 8259), strictly -------------------------------------------------------------
 * A cursor over a mapped text. Functions return 0 after an error, whose sentence has line and byte; the first error is
 * kept, and later calls do nothing. Decoded strings are UTF-8 and may hold zero bytes. */

enum { DT__JSON_DEPTH = 64 };

typedef struct dt__json {
    const char *path, *text;
    int64_t bytes, at;
    char *string; /* the last string, decoded; at least one byte of room is behind it */
    int64_t length, room;
    int depth;
    dt_result result;
} dt__json;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int dt__json_fail(dt__json *j, const char *format, ...)
{
    char what[512];
    int64_t line = 1;
    va_list args;
    if (j->result) return 0;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    for (int64_t i = 0; i < j->at && i < j->bytes; i++) line += j->text[i] == '\n';
    j->result = dt__error(DT_E_DATA, "%s, line %lld, byte %lld of the file: %s", j->path, (long long)line,
                          (long long)j->at, what);
    return 0;
}

static int dt__json_room(dt__json *j, int64_t more)
{
    if (dt__reserve((void **)&j->string, j->length, &j->room, j->length + more + 1, 1, "a string")) return 1;
    j->result = DT_E_MEMORY;
    return 0;
}

/* The next character that is no white space; 0 at the end. */
static int dt__json_peek(dt__json *j)
{
    while (j->at < j->bytes && memchr(" \t\r\n", j->text[j->at], 4)) j->at++;
    return j->at < j->bytes ? (unsigned char)j->text[j->at] : 0;
}

static int dt__json_take(dt__json *j, char c)
{
    if (j->result) return 0;
    if (dt__json_peek(j) != c)
        return dt__json_fail(j, "a '%c' is missing here: the file is cut or no JSON, copy it again", c);
    j->at++;
    return 1;
}

static int dt__json_enter(dt__json *j, char open)
{
    if (j->depth == DT__JSON_DEPTH)
        return dt__json_fail(j, "more than %d brackets are open: no tokenizer needs that, copy the file again",
                             (int)DT__JSON_DEPTH);
    if (!dt__json_take(j, open)) return 0;
    j->depth++;
    return 1;
}

/* Is there another element? Takes the comma before it, or the closing bracket. *count is 0 before the first call. */
static int dt__json_more(dt__json *j, char close, int64_t *count)
{
    if (j->result) return 0;
    if (dt__json_peek(j) == close) {
        j->at++;
        j->depth--;
        return 0;
    }
    return !(*count)++ || dt__json_take(j, ',');
}

/* The length of the well-formed UTF-8 sequence at p[0..n-1] and its code point (Unicode 14.0, table 3-7), or 0. */
static int dt__utf8(const unsigned char *p, int64_t n, uint32_t *code)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    int length = p[0] < 0x80 ? 1 : p[0] < 0xc0 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf8 ? 4 : 0;
    if (!length || length > n) return 0;
    *code = length == 1 ? p[0] : (uint32_t)p[0] & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (p[i] & 0x3fu);
    }
    return *code < least[length] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000) ? 0 : length;
}

/* Writes 1 to 4 bytes and returns how many. */
static int dt__utf8_put(uint32_t code, char *out)
{
    int length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, code >>= 6) out[i] = (char)(unsigned char)(0x80 | (code & 0x3f));
    out[0] = (char)(unsigned char)(length == 1 ? code : (0xf00u >> length & 0xf0u) | code);
    return length;
}

/* Four hexadecimal digits. */
static int dt__json_hex(dt__json *j, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        int c = j->at < j->bytes ? j->text[j->at] : 0, digit = -1;
        if (c >= '0' && c <= '9') digit = c - '0';
        else if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
        else if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
        if (digit < 0) return dt__json_fail(j, "\\u needs four hexadecimal digits: write the string again");
        *code = *code << 4 | (uint32_t)digit;
    }
    return 1;
}

/* What stands behind a backslash; the cursor is on it. */
static int dt__json_escape(dt__json *j)
{
    static const char name[] = "\"\\/bfnrt", value[] = "\"\\/\b\f\n\r\t";
    int c = j->at < j->bytes ? j->text[j->at++] : 0;
    const char *found = c ? strchr(name, c) : NULL;
    uint32_t code = 0, low = 0;
    if (found) return j->string[j->length++] = value[found - name], 1;
    if (c != 'u') return dt__json_fail(j, "a backslash before something else than \"\\/bfnrtu: write the string again");
    if (!dt__json_hex(j, &code)) return 0;
    if (code >= 0xd800 && code < 0xdc00 && j->bytes - j->at >= 2 && !memcmp(j->text + j->at, "\\u", 2)) {
        j->at += 2;
        if (!dt__json_hex(j, &low)) return 0;
        if (low >= 0xdc00 && low < 0xe000) code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code >= 0xd800 && code < 0xe000)
        return dt__json_fail(j, "half of a surrogate pair: write the character's two \\u escapes, or itself");
    j->length += dt__utf8_put(code, j->string + j->length);
    return 1;
}

/* A string, appended to what j->string holds. */
static int dt__json_append(dt__json *j)
{
    if (!dt__json_take(j, '"')) return 0;
    while (j->at < j->bytes && j->text[j->at] != '"') {
        const unsigned char *p = (const unsigned char *)j->text + j->at;
        uint32_t code;
        int length = 1;
        if (!dt__json_room(j, 4)) return 0;
        if (*p == '\\') {
            j->at++;
            if (!dt__json_escape(j)) return 0;
            continue;
        }
        if (*p < 0x20) return dt__json_fail(j, "a control character in a string: write it as \\u%04x", *p);
        if (*p >= 0x80) length = dt__utf8(p, j->bytes - j->at, &code);
        if (!length) return dt__json_fail(j, "a byte 0x%02x that is not UTF-8: save the file as UTF-8", *p);
        memcpy(j->string + j->length, p, (size_t)length);
        j->length += length;
        j->at += length;
    }
    if (j->at == j->bytes) return dt__json_fail(j, "a string without an end: the file is cut, copy it again");
    j->at++;
    return dt__json_room(j, 0);
}
static int dt__json_string(dt__json *j)
{
    j->length = 0;
    return dt__json_append(j);
}
static int dt__json_key(dt__json *j) { return dt__json_string(j) && dt__json_take(j, ':'); }

static int dt__json_digits(dt__json *j)
{
    int64_t from = j->at;
    while (j->at < j->bytes && j->text[j->at] >= '0' && j->text[j->at] <= '9') j->at++;
    return j->at > from || dt__json_fail(j, "a digit is missing here: write the number again");
}

/* A number; *whole becomes its value, or -1 when it is negative, has a fraction or is beyond 10^15. */
static int dt__json_number(dt__json *j, int64_t *whole)
{
    int64_t from, digits;
    int plain;
    dt__json_peek(j);
    plain = j->at == j->bytes || j->text[j->at] != '-';
    if (!plain) j->at++;
    from = j->at;
    if (!dt__json_digits(j)) return 0;
    digits = j->at - from;
    if (digits > 1 && j->text[from] == '0') return dt__json_fail(j, "a number that begins with 0: write it without");
    *whole = plain && digits <= 15 ? 0 : -1;
    for (int64_t i = from; i < j->at && *whole >= 0; i++) *whole = 10 * *whole + (j->text[i] - '0');
    if (j->at < j->bytes && j->text[j->at] == '.') {
        j->at++;
        *whole = -1;
        if (!dt__json_digits(j)) return 0;
    }
    if (j->at < j->bytes && (j->text[j->at] == 'e' || j->text[j->at] == 'E')) {
        j->at++;
        *whole = -1;
        if (j->at < j->bytes && (j->text[j->at] == '+' || j->text[j->at] == '-')) j->at++;
        return dt__json_digits(j);
    }
    return 1;
}

/* Takes the word true, false or null when it stands here. */
static int dt__json_word(dt__json *j, const char *word)
{
    int64_t length = (int64_t)strlen(word);
    dt__json_peek(j);
    if (j->result || j->bytes - j->at < length || memcmp(j->text + j->at, word, (size_t)length)) return 0;
    j->at += length;
    return 1;
}

/* Any value, checked and left out. */
static int dt__json_skip(dt__json *j)
{
    int64_t count = 0;
    int c = dt__json_peek(j);
    if (c == '"') return dt__json_string(j);
    if (c == '{' || c == '[') {
        if (!dt__json_enter(j, (char)c)) return 0;
        while (dt__json_more(j, c == '{' ? '}' : ']', &count))
            if ((c == '{' && !dt__json_key(j)) || !dt__json_skip(j)) return 0;
        return !j->result;
    }
    if (c == '-' || (c >= '0' && c <= '9')) return dt__json_number(j, &count);
    if (dt__json_word(j, "true") || dt__json_word(j, "false") || dt__json_word(j, "null")) return 1;
    return dt__json_fail(j, "a value is missing here: the file is cut or no JSON, copy it again");
}

static int dt__json_is(const dt__json *j, const char *text)
{
    return j->length == (int64_t)strlen(text) && !memcmp(j->string, text, (size_t)j->length);
}

/* Walks an object and notes where the values of some keys begin, a list that ends with NULL; -1: there is none. */
static int dt__json_members(dt__json *j, const char *const *key, int64_t *place)
{
    int64_t count = 0;
    for (int i = 0; key[i]; i++) place[i] = -1;
    if (!dt__json_enter(j, '{')) return 0;
    while (dt__json_more(j, '}', &count)) {
        int64_t *known = NULL;
        if (!dt__json_key(j)) return 0;
        for (int i = 0; key[i]; i++)
            if (dt__json_is(j, key[i])) known = &place[i];
        if (known && *known >= 0) return dt__json_fail(j, "\"%.40s\" stands here a second time: keep one", j->string);
        dt__json_peek(j);
        if (known) *known = j->at;
        if (!dt__json_skip(j)) return 0;
    }
    return !j->result;
}

/* true or false at a place that dt__json_members() found, `missing` when there is none. */
static int dt__json_flag(dt__json *j, int64_t place, int missing)
{
    if (place < 0 || j->result) return missing;
    j->at = place;
    if (dt__json_word(j, "true")) return 1;
    if (!dt__json_word(j, "false")) dt__json_fail(j, "true or false is missing here: write one of them");
    return 0;
}

/* Is there no value at the place, or null? */
static int dt__json_absent(dt__json *j, int64_t place)
{
    if (place < 0) return 1;
    j->at = place;
    return dt__json_word(j, "null");
}

/* The string at a place; an empty one, and an error, when it is something else. */
static const char *dt__json_text(dt__json *j, int64_t place, const char *what)
{
    if (place < 0) {
        dt__json_fail(j, "there is no %s: the file is of another kind, or cut", what);
        return "";
    }
    j->at = place;
    if (!dt__json_string(j)) return "";
    j->string[j->length] = 0;
    return j->string;
}

/* ---- classes of characters ------------------------------------------------------------------
 * Runs of code points of Unicode 14.0 that are not letters, are, are not .. (general categories L* and N*), from 0 on.
 * A length is a number to the base 30, the leading digits as a to ~ (0 to 29), the last one as 0 to 9, A to T. */
static const char dt__letters[] =
    "c5Q6QbH1A1415N1b11p84CE57111e951224116113111K1cN1eJ8fG1b8216bBcBR44bFbDb521d911F272A321G11b0TcTB1Ob392415M419131"
    "NP7B5O16HbCbSbO31I17AFG48222M17113431G1D213E2A186422M17121212b1411J3G9131M17121531I1F2N1B8222M17121531b0213F1H11"
    "6331432111232333CM1bM8131N1G31Q32122b0148131N1A1531b1212F2H9131bB21G15383O65I3O191127bSbI12C7bS211151O111A129125"
    "11L4b21c381b6R5dPbDK1G6443132734DC1Hb811512bD1l3142711142bB142b3142711142F1bR142c7b7GGcQ263uK2H1Q5cF687IDJEIED13"
    "FbMb5141c7cT752b4115cAAb1bJb025BbE4QbON9bNcM1d3bHH8bOb0D2AbEQb6bB3Ab6297bD23bB41612315gCc4j8262b826281111111b12b"
    "N1711331734264D5317dQ1D1GDdB1412A1135611111141B245541bM2c~DhJ6432Cb811512bQ71GN9717171717171717cK1pJ2bC5524cQ631"
    "d0145bD1d4Hb2bIGr2hjMc4ysHc7bG2iT3GA2KbHGb12cAbJ92dD2c4521115OG13141NTbMEbKc263112BSANPT7bHS1G51AA51bBN318KN313b"
    "K1132252111O32B73C6262697171bD1E6dPTmmCCN4bJjlMm62dGb87C5511A1D151112121dIb3m3Ic42bObACdQ51eFb6Q6QBcT36262623b5C"
    "1Q1J121F2Eb4e3mTT3bJbHb2DK186b8Ab02b648bIf8Ib64b64bA8bMCB1F17121B1F1712c7kB9MA8O61bC19c96211bE12312NAN9b1c5J12AM"
    "AQcAbQ62c41F4131TbCT3Tb581SRbOAMAJDIdKcDbPbLDbLDb6lIbC62cITA18MbCIbGLRNCbNbR221DbFb2PQb6T1218b531CbIE4L111b5I1Pc"
    "O711141F1A7bHb88222M17121531I1C5f8bNI4K3b0bIK211g4bHbB4b6bIK1bTbDD1cBRb77g5bEdQc4b182128121OF111d482b9G111S1AbA7"
    "1L1BbGJ1IcDiN91b7H1bJb0dM7121b8L1P6121b2E1kRJg91cJbaMhKgGc|Qd7FbfLeoTtDjrNsT7b1HcJHb0IbIG4b1L5JwSc4e8cF51c6Dc421"
    "1SgyG8bl8bC9j|P417121jLbF3H48n6cqSdH5D397AgtKcP1cB122122241C11171c51428171S141511371lA2P1P1b11P1b11P1b11P1b11P18"
    "cbEb1q1bFA7G1kLb0IbEbm8714121F1gHbTc871bk441R1211211A141111614111111312112111111111121124171414111A1H53151He|Abr"
    "o0b2esD7hC2gm2Eij3dnDs2bu6foJ";
static const char dt__numbers[] =
    "bIAe025123bs1AeEAgIAnMAdSA46dIAdSAdSA26dKDdPA87dDAdE77JdJAd6AdSAcAKiSAcAAxTK~B3hTA6AMAk0Ae8BfFA6Ag2AcQAeEA6AbeQ1"
    "366AgIbL25y6c0cIMv0b0bq51zR1P9E3lD4eIAb081Fb2Ab9FbcyGAg8AkK6f4Ab8AgIAMAcQAnGAxt0AqDbFCbRH2lBRb64T181eE5gMAbbC8P7"
    "b99cF5M6fA22G2bGc49bM2b03cF5dE8O8bB7l06bIAjOb1f8AbC4dM7eEb0e8Ac0AeOA7KiBAlCAdSAmEAdCAdCCo0Jd3Az8ThHAcAArOLbfHdLt"
    "{PAcQAeEA17{IN}pNKdIPbgTbKcsSAo2AbtF9e8A{BbT1314cGbF1Fbc2DdcRA";

enum { DT__OTHER, DT__LETTER, DT__NUMBER, DT__SPACE };
enum { DT__CODES = 0x110000 };

static void dt__classes_run(uint8_t *map, uint32_t from, uint32_t to, int kind)
{
    for (uint32_t c = from; c < to; c++) map[c >> 2] = (uint8_t)(map[c >> 2] | kind << 2 * (c & 3));
}

static void dt__classes_unpack(uint8_t *map, const char *runs, int kind)
{
    uint32_t at = 0, length = 0;
    int inside = 0;
    for (; *runs; runs++) {
        if (*runs >= 'a') {
            length = 30 * (length + (uint32_t)(*runs - 'a'));
            continue;
        }
        length += (uint32_t)(*runs >= 'A' ? *runs - 'A' + 10 : *runs - '0');
        if (inside) dt__classes_run(map, at, at + length, kind);
        at += length;
        length = 0;
        inside = !inside;
    }
}

/* The class of every code point, two bits each; NULL without memory. */
static uint8_t *dt__classes(void)
{
    static const uint32_t space[][2] = {{9, 14},          {32, 33},         {0x85, 0x86},     {0xa0, 0xa1},
                                        {0x1680, 0x1681}, {0x2000, 0x200b}, {0x2028, 0x202a}, {0x202f, 0x2030},
                                        {0x205f, 0x2060}, {0x3000, 0x3001}};
    uint8_t *map = (uint8_t *)dt__alloc(DT__CODES / 4, "the classes of characters");
    if (!map) return NULL;
    dt__classes_unpack(map, dt__letters, DT__LETTER);
    dt__classes_unpack(map, dt__numbers, DT__NUMBER);
    for (size_t i = 0; i < sizeof space / sizeof *space; i++) dt__classes_run(map, space[i][0], space[i][1], DT__SPACE);
    return map;
}

/* The class of the character at p[0..n-1], n at least 1, and its length. */
static int dt__class_of(const uint8_t *map, const unsigned char *p, int64_t n, int *length)
{
    uint32_t code = 0;
    *length = dt__utf8(p, n, &code);
    if (!*length) return *length = 1, DT__OTHER;
    return map[code >> 2] >> 2 * (code & 3) & 3;
}

/* Where the run of characters of one class that goes on at `at` ends. */
static int64_t dt__class_end(const uint8_t *map, const unsigned char *p, int64_t at, int64_t n, int kind)
{
    int length;
    while (at < n && dt__class_of(map, p + at, n - at, &length) == kind) at += length;
    return at;
}

/* ---- pre-tokens ------------------------------------------------------------------------------ */

/* The length of 's 't 're 've 'm 'll 'd, or 0. In any case: also in capitals, and with the long s (U+017F), which folds
 * to s. */
static int64_t dt__contraction(const unsigned char *p, int64_t n, int any_case)
{
    unsigned char a, b;
    if (n < 2 || p[0] != '\'') return 0;
    if (any_case && n >= 3 && p[1] == 0xc5 && p[2] == 0xbf) return 3;
    a = p[1];
    b = n >= 3 ? p[2] : 0;
    if (any_case && a >= 'A' && a <= 'Z') a = (unsigned char)(a + 32);
    if (any_case && b >= 'A' && b <= 'Z') b = (unsigned char)(b + 32);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* White space at the beginning: up to its last line end where `lines`; else all of it at the end of the text, and all
 * but the last character before something else, which takes that one when it can. */
static int64_t dt__white_space(const uint8_t *map, const unsigned char *p, int64_t n, int lines)
{
    int64_t end = 0, last = 0, line = 0;
    int length;
    while (end < n && dt__class_of(map, p + end, n - end, &length) == DT__SPACE) {
        last = end;
        end += length;
        if (lines && (p[last] == '\n' || p[last] == '\r')) line = end;
    }
    if (line) return line;
    return end < n && last > 0 ? last : end;
}

/* The length of the first pre-token of p[0..n-1], n at least 1. */
static int64_t dt__pretoken_gpt2(const uint8_t *map, const unsigned char *p, int64_t n)
{
    int64_t end = dt__contraction(p, n, 0), from = p[0] == ' ' && n > 1;
    int length, kind = dt__class_of(map, p + from, n - from, &length);
    if (end) return end;
    return kind == DT__SPACE ? dt__white_space(map, p, n, 0) : dt__class_end(map, p, from, n, kind);
}

static int64_t dt__pretoken_llama3(const uint8_t *map, const unsigned char *p, int64_t n)
{
    int64_t end = dt__contraction(p, n, 1), from = p[0] == ' ' && n > 1;
    int length, next, kind = dt__class_of(map, p, n, &length);
    if (end) return end;
    if (kind == DT__LETTER) return dt__class_end(map, p, 0, n, DT__LETTER);
    if (kind == DT__NUMBER) {
        for (int i = 0; i < 3 && end < n && dt__class_of(map, p + end, n - end, &length) == DT__NUMBER; i++)
            end += length;
        return end;
    }
    if (p[0] != '\r' && p[0] != '\n') { /* one character of any other kind goes with the letters behind it */
        end = dt__class_end(map, p, length, n, DT__LETTER);
        if (end > length) return end;
    }
    if (dt__class_of(map, p + from, n - from, &next) != DT__OTHER) return dt__white_space(map, p, n, 1);
    end = dt__class_end(map, p, from, n, DT__OTHER);
    while (end < n && (p[end] == '\r' || p[end] == '\n')) end++;
    return end;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* From a 64-bit key to values of 1 and more: open addressing, at most half full, nothing is ever taken out. */
typedef struct dt__entry {
    uint64_t key;
    int64_t value; /* 0: free */
} dt__entry;
typedef struct dt__map {
    dt__entry *slot;
    int64_t size, used; /* size: a power of two, or 0 */
} dt__map;

/* The next slot with this key behind *probe, which is -1 at first; or the free slot where it would stand. NULL in a
 * table without slots. */
static dt__entry *dt__map_seek(const dt__map *m, uint64_t key, int64_t *probe)
{
    uint64_t mixed = (key ^ key >> 29) * 0x9e3779b97f4a7c15u;
    if (!m->size) return NULL;
    *probe = *probe < 0 ? (int64_t)(mixed >> 20) & (m->size - 1) : (*probe + 1) & (m->size - 1);
    while (m->slot[*probe].value && m->slot[*probe].key != key) *probe = (*probe + 1) & (m->size - 1);
    return &m->slot[*probe];
}

/* The value of a key that stands in the table once at most; 0: it does not. */
static int64_t dt__map_get(const dt__map *m, uint64_t key)
{
    int64_t probe = -1;
    const dt__entry *s = dt__map_seek(m, key, &probe);
    return s ? s->value : 0;
}

/* Adds another value under a key; 0 without memory. */
static int dt__map_add(dt__map *m, uint64_t key, int64_t value)
{
    int64_t probe = -1;
    dt__entry *s;
    if (2 * m->used >= m->size) {
        dt__map bigger;
        bigger.size = m->size ? 2 * m->size : 64;
        bigger.used = 0;
        bigger.slot = (dt__entry *)dt__alloc((int64_t)sizeof *s * bigger.size, "a table of tokens");
        if (!bigger.slot) return 0;
        for (int64_t i = 0; i < m->size; i++)
            if (m->slot[i].value) dt__map_add(&bigger, m->slot[i].key, m->slot[i].value);
        dt__free(m->slot);
        *m = bigger;
    }
    do s = dt__map_seek(m, key, &probe);
    while (s->value);
    s->key = key;
    s->value = value;
    m->used++;
    return 1;
}

/* Strings of bytes under numbers, found by their bytes. */
typedef struct dt__chars {
    int64_t at;
    int32_t length; /* 0: no string has this number */
    int32_t kind;   /* of a token: DT__TOKEN_* */
} dt__chars;
typedef struct dt__strings {
    dt__chars *span;
    char *bytes;
    int64_t count, spans, used, room;
    dt__map map;
} dt__strings;

/* FNV-1a (Fowler, Noll, Vo). */
static uint64_t dt__bytes_hash(const void *bytes, int64_t n)
{
    const unsigned char *p = (const unsigned char *)bytes;
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* The number of a string, or -1. */
static int64_t dt__strings_find(const dt__strings *s, const void *bytes, int64_t n)
{
    uint64_t key = dt__bytes_hash(bytes, n);
    int64_t probe = -1;
    for (;;) {
        const dt__entry *slot = dt__map_seek(&s->map, key, &probe);
        const dt__chars *span;
        if (!slot || !slot->value) return -1;
        span = &s->span[slot->value - 1];
        if (span->length == n && !memcmp(s->bytes + span->at, bytes, (size_t)n)) return slot->value - 1;
    }
}

/* Writes the bytes of string `number`, whatever they were before; `bytes` is not among s->bytes. */
static int dt__strings_set(dt__strings *s, int64_t number, const void *bytes, int64_t n)
{
    if (!dt__reserve((void **)&s->span, s->count, &s->spans, number + 1, (int64_t)sizeof *s->span, "tokens")) return 0;
    if (!dt__reserve((void **)&s->bytes, s->used, &s->room, s->used + n, 1, "the bytes of tokens")) return 0;
    memcpy(s->bytes + s->used, bytes, (size_t)n);
    s->span[number].at = s->used;
    s->span[number].length = (int32_t)n;
    s->used += n;
    s->count = dt__max(s->count, number + 1);
    return 1;
}
/* The same for a new string, which can be found from now on. */
static int dt__strings_put(dt__strings *s, int64_t number, const void *bytes, int64_t n)
{
    return dt__strings_set(s, number, bytes, n) && dt__map_add(&s->map, dt__bytes_hash(bytes, n), number + 1);
}

static void dt__strings_free(dt__strings *s)
{
    dt__free(s->span);
    dt__free(s->bytes);
    dt__free(s->map.slot);
}

/* A heap of pairs of numbers, the smallest on top. */
typedef struct dt__heap_item {
    uint64_t first, second;
} dt__heap_item;
typedef struct dt__heap {
    dt__heap_item *item;
    int64_t count, room;
} dt__heap;

static int dt__heap_less(const dt__heap_item *a, const dt__heap_item *b)
{
    return a->first != b->first ? a->first < b->first : a->second < b->second;
}

/* There must be room. */
static void dt__heap_push(dt__heap *h, uint64_t first, uint64_t second)
{
    int64_t at = h->count++;
    dt__heap_item item;
    item.first = first, item.second = second;
    for (; at > 0 && dt__heap_less(&item, &h->item[(at - 1) / 2]); at = (at - 1) / 2)
        h->item[at] = h->item[(at - 1) / 2];
    h->item[at] = item;
}

/* It must not be empty. */
static dt__heap_item dt__heap_pop(dt__heap *h)
{
    dt__heap_item top = h->item[0], item = h->item[--h->count];
    int64_t at = 0, child;
    while ((child = 2 * at + 1) < h->count) {
        if (child + 1 < h->count && dt__heap_less(&h->item[child + 1], &h->item[child])) child++;
        if (!dt__heap_less(&h->item[child], &item)) break;
        h->item[at] = h->item[child];
        at = child;
    }
    h->item[at] = item;
    return top;
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

enum { DT__TOKEN_LIMIT = 1 << 20, DT__FILE_LIMIT = 1 << 30 };
enum {
    DT__TOKEN_MADE = 1,    /* by a merge */
    DT__TOKEN_LITERAL = 2, /* its text in the file was no spelling of bytes by the alphabet */
    DT__TOKEN_ADDED = 4,   /* found in the text before it is cut into pre-tokens ... */
    DT__TOKEN_LATE = 8,    /* ... but behind those without this ("normalized") */
    DT__TOKEN_SPECIAL = 16 /* only when the caller wants special tokens */
};

typedef struct dt__merge {
    int32_t left, right, made;
} dt__merge;

typedef struct dt__special {
    int32_t length, id;
    unsigned char first;
} dt__special;

struct dt_tokenizer {
    dt_pretokens rule;
    int whole_words; /* a pre-token that is a token needs no merges ("ignore_merges") */
    uint8_t *classes;
    dt__strings token; /* by id; added tokens that were not in the vocabulary cannot be found by their bytes */
    dt__merge *merge;  /* by rank */
    int64_t merges, merge_room;
    dt__map rank; /* of left * 2^32 + right, plus 1 */
    int32_t byte_id[256];
    dt__special *special; /* added tokens by their first byte, the longest first */
    int32_t specials, special_from[257];
};

static uint64_t dt__pair_key(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

/* GPT-2 spells bytes as characters that are visible: a printable byte of Latin-1 as itself, the others as U+0100 and
 * up. The id of a byte in GPT-2's own order, which is that of these characters, is what the second function gives. */
static int dt__byte_visible(int byte) { return (byte > 32 && byte < 127) || (byte > 160 && byte != 173); }
static int dt__byte_order(int byte)
{
    int below = 0;
    for (int b = 0; b < byte; b++) below += dt__byte_visible(b) == dt__byte_visible(byte);
    return dt__byte_visible(byte) ? below : 188 + below;
}
static uint32_t dt__byte_code(int byte)
{
    return dt__byte_visible(byte) ? (uint32_t)byte : 256 + (uint32_t)dt__byte_order(byte) - 188;
}
static int dt__code_byte(uint32_t code)
{
    if (code < 256) return dt__byte_visible((int)code) ? (int)code : -1;
    return code < 289 ? (int)code - 256 : code < 323 ? (int)code - 289 + 127 : code == 323 ? 173 : -1;
}

/* Turns UTF-8 text in place into the bytes it spells and returns their number, or leaves it as it is when a character
 * spells no byte; then *literal is 1. */
static int64_t dt__unspell(char *text, int64_t n, int *literal)
{
    const unsigned char *p = (const unsigned char *)text;
    uint32_t code = 0;
    int64_t length = 0;
    *literal = 0;
    for (int64_t i = 0; i < n; i += dt__utf8(p + i, n - i, &code))
        if (!dt__utf8(p + i, n - i, &code) || dt__code_byte(code) < 0) return *literal = 1, n;
    for (int64_t i = 0; i < n; length++) {
        i += dt__utf8(p + i, n - i, &code);
        text[length] = (char)(unsigned char)dt__code_byte(code);
    }
    return length;
}

DT_API void dt_tokenizer_close(dt_tokenizer **handle)
{
    dt_tokenizer *t = *handle;
    if (!t) return;
    dt__free(t->classes);
    dt__strings_free(&t->token);
    dt__free(t->merge);
    dt__free(t->rank.slot);
    dt__free(t->special);
    dt__free(t);
    *handle = NULL;
}

static dt_tokenizer *dt__tokenizer_new(void)
{
    dt_tokenizer *t = (dt_tokenizer *)dt__alloc((int64_t)sizeof *t, "a tokenizer");
    if (!t) return NULL;
    t->classes = dt__classes();
    if (!t->classes) dt_tokenizer_close(&t);
    return t;
}

/* Adds the merge of the next rank; 0 without memory. */
static int dt__merge_add(dt_tokenizer *t, int32_t left, int32_t right, int32_t made)
{
    dt__merge *m;
    if (!dt__reserve((void **)&t->merge, t->merges, &t->merge_room, t->merges + 1, (int64_t)sizeof *m, "merges"))
        return 0;
    m = &t->merge[t->merges++];
    m->left = left, m->right = right, m->made = made;
    t->token.span[made].kind |= DT__TOKEN_MADE;
    return dt__map_add(&t->rank, dt__pair_key(left, right), t->merges);
}

static int dt__special_order(const void *a, const void *b)
{
    const dt__special *x = (const dt__special *)a, *y = (const dt__special *)b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Lists the added tokens. */
static dt_result dt__tokenizer_specials(dt_tokenizer *t)
{
    int32_t count = 0;
    for (int64_t id = 0; id < t->token.count; id++) count += (t->token.span[id].kind & DT__TOKEN_ADDED) != 0;
    t->special = (dt__special *)dt__alloc((int64_t)sizeof *t->special * count, "special tokens");
    if (!t->special) return DT_E_MEMORY;
    for (int64_t id = 0; id < t->token.count; id++) {
        const dt__chars *span = &t->token.span[id];
        dt__special *s = &t->special[t->specials];
        if (!(span->kind & DT__TOKEN_ADDED)) continue;
        s->length = span->length;
        s->id = (int32_t)id;
        s->first = (unsigned char)t->token.bytes[span->at];
        t->specials++;
    }
    if (count) qsort(t->special, (size_t)count, sizeof *t->special, dt__special_order);
    for (int first = 0, i = 0; first <= 256; first++) {
        while (i < count && t->special[i].first < first) i++;
        t->special_from[first] = i;
    }
    return DT_OK;
}

DT_API int64_t dt_tokenizer_size(const dt_tokenizer *t) { return t->token.count; }
DT_API int64_t dt_tokenizer_merges(const dt_tokenizer *t) { return t->merges; }

DT_API int dt_tokenizer_merge(const dt_tokenizer *t, int64_t rank, int32_t *left, int32_t *right)
{
    if (rank < 0 || rank >= t->merges) return 0;
    *left = t->merge[rank].left;
    *right = t->merge[rank].right;
    return 1;
}

DT_API const char *dt_tokenizer_token(const dt_tokenizer *t, int64_t id, int64_t *bytes)
{
    const dt__chars *span = id >= 0 && id < t->token.count ? &t->token.span[id] : NULL;
    if (!span || !span->length) return NULL;
    *bytes = span->length;
    return t->token.bytes + span->at;
}

DT_API int64_t dt_tokenizer_find(const dt_tokenizer *t, const void *bytes, int64_t count)
{
    for (int32_t i = 0; i < t->specials; i++)
        if (t->special[i].length == count &&
            !memcmp(t->token.bytes + t->token.span[t->special[i].id].at, bytes, (size_t)count))
            return t->special[i].id;
    return dt__strings_find(&t->token, bytes, count);
}

/* ---- text to ids and back ---------------------------------------------------------------------- */

/* Walks a text: `word` gets each pre-token, `token` each special token's id. */
typedef struct dt__visitor {
    const dt_tokenizer *t;
    int special; /* are special tokens wanted? */
    void *context;
    dt_result (*word)(void *context, const unsigned char *p, int64_t n);
    dt_result (*token)(void *context, int32_t id);
} dt__visitor;

/* The longest added token that p[0..n-1] begins with, of those that are looked for in this pass; NULL: none. */
static const dt__special *dt__special_at(const dt__visitor *v, const unsigned char *p, int64_t n, int late)
{
    const dt_tokenizer *t = v->t;
    for (int32_t i = t->special_from[p[0]]; i < t->special_from[p[0] + 1]; i++) {
        const dt__special *s = &t->special[i];
        const dt__chars *span = &t->token.span[s->id];
        if (s->length > n || ((span->kind & DT__TOKEN_LATE) != 0) != late) continue;
        if ((span->kind & DT__TOKEN_SPECIAL) && !v->special) continue;
        if (!memcmp(t->token.bytes + span->at, p, (size_t)s->length)) return s;
    }
    return NULL;
}

/* Pass 0 cuts at the added tokens, pass 1 at the late ones, pass 2 into pre-tokens. */
static dt_result dt__walk(const dt__visitor *v, const unsigned char *p, int64_t n, int pass)
{
    const dt_tokenizer *t = v->t;
    int64_t from = 0, at = 0;
    dt_result r = DT_OK;
    if (pass == 2 || !t->specials) {
        for (; at < n && !r; at += from) {
            from = t->rule == DT_PRETOKENS_GPT2 ? dt__pretoken_gpt2(t->classes, p + at, n - at)
                                                : dt__pretoken_llama3(t->classes, p + at, n - at);
            r = v->word(v->context, p + at, from);
        }
        return r;
    }
    while (at < n && !r) {
        const dt__special *s = dt__special_at(v, p + at, n - at, pass);
        if (!s) {
            at++;
            continue;
        }
        r = dt__walk(v, p + from, at - from, pass + 1);
        if (!r) r = v->token(v->context, s->id);
        from = at += s->length;
    }
    return r ? r : dt__walk(v, p + from, n - from, pass + 1);
}

/* Where ids go: to `ids`, and when `room` of them are there and there is a flush, to it. */
typedef struct dt__encoder {
    const dt_tokenizer *t;
    int32_t *ids;
    int64_t count, room;
    dt_result (*flush)(void *context, const int32_t *ids, int64_t count);
    void *context;
    int32_t *symbol; /* (capacity) ids of the pre-token, a list: */
    int32_t *next, *prev;
    int64_t capacity;
    dt__heap heap; /* (rank, place) of pairs that may be merged */
} dt__encoder;

static dt_result dt__encoder_token(void *context, int32_t id)
{
    dt__encoder *e = (dt__encoder *)context;
    dt_result r;
    e->ids[e->count++] = id;
    if (e->count < e->room || !e->flush) return DT_OK;
    r = e->flush(e->context, e->ids, e->count);
    e->count = 0;
    return r;
}

static void dt__encoder_free(dt__encoder *e)
{
    dt__free(e->symbol);
    dt__free(e->heap.item);
    e->symbol = NULL;
    e->heap.item = NULL;
}

/* Room for a pre-token of n bytes. Each of at most n - 1 merges makes two new pairs. */
static dt_result dt__encoder_reserve(dt__encoder *e, int64_t n)
{
    if (n <= e->capacity) return DT_OK;
    if (n > DT__FILE_LIMIT)
        return dt__error(DT_E_DATA, "%lld bytes of the text are one word, which is too long: put line ends into it",
                         (long long)n);
    dt__encoder_free(e);
    e->capacity = dt__max(n + n / 2, 256);
    e->symbol = (int32_t *)dt__alloc(3 * e->capacity * (int64_t)sizeof *e->symbol, "a long word");
    e->heap.item = (dt__heap_item *)dt__alloc(3 * e->capacity * (int64_t)sizeof *e->heap.item, "a long word");
    if (!e->symbol || !e->heap.item) return e->capacity = 0, DT_E_MEMORY;
    e->next = e->symbol + e->capacity;
    e->prev = e->next + e->capacity;
    return DT_OK;
}

/* Notes that the symbol at `at` may be merged with the next one. */
static void dt__encoder_pair(dt__encoder *e, int32_t at)
{
    int64_t rank;
    if (at < 0 || e->next[at] < 0) return;
    rank = dt__map_get(&e->t->rank, dt__pair_key(e->symbol[at], e->symbol[e->next[at]]));
    if (rank) dt__heap_push(&e->heap, (uint64_t)rank - 1, (uint64_t)at);
}

/* Merges the pre-token in e->symbol, the lowest rank first. What is left is the list that begins at 0. */
static void dt__encoder_merge(dt__encoder *e)
{
    while (e->heap.count) {
        dt__heap_item top = dt__heap_pop(&e->heap);
        const dt__merge *m = &e->t->merge[top.first];
        int32_t at = (int32_t)top.second, gone = e->next[at];
        if (e->symbol[at] != m->left || gone < 0 || e->symbol[gone] != m->right) continue; /* merged meanwhile */
        e->symbol[at] = m->made;
        e->symbol[gone] = -1;
        e->next[at] = e->next[gone];
        if (e->next[at] >= 0) e->prev[e->next[at]] = at;
        dt__encoder_pair(e, e->prev[at]);
        dt__encoder_pair(e, at);
    }
}

static dt_result dt__encoder_word(void *context, const unsigned char *p, int64_t n)
{
    dt__encoder *e = (dt__encoder *)context;
    int64_t whole = e->t->whole_words ? dt__strings_find(&e->t->token, p, n) : -1;
    dt_result r = dt__encoder_reserve(e, n);
    if (r || whole >= 0) return r ? r : dt__encoder_token(e, (int32_t)whole);
    for (int32_t i = 0; i < n; i++) {
        e->symbol[i] = e->t->byte_id[p[i]];
        e->next[i] = i + 1 < n ? i + 1 : -1;
        e->prev[i] = i - 1;
    }
    for (int32_t i = 0; i < n; i++) dt__encoder_pair(e, i);
    dt__encoder_merge(e);
    for (int32_t i = 0; i >= 0 && !r; i = e->next[i]) r = dt__encoder_token(e, e->symbol[i]);
    return r;
}

/* Encodes a text into e, which the caller has zeroed but for ids, room, flush and context. The last ids are flushed. */
static dt_result dt__encode(dt__encoder *e, const dt_tokenizer *t, const void *text, int64_t bytes, int special)
{
    dt__visitor v;
    dt_result r;
    e->t = v.t = t;
    v.special = special;
    v.context = e;
    v.word = dt__encoder_word;
    v.token = dt__encoder_token;
    r = dt__walk(&v, (const unsigned char *)text, bytes, 0);
    if (!r && e->flush && e->count) r = e->flush(e->context, e->ids, e->count);
    dt__encoder_free(e);
    return r;
}

DT_API dt_result dt_tokenizer_encode(const dt_tokenizer *t, const void *text, int64_t bytes, int special, int32_t *ids,
                                     int64_t *count)
{
    dt__encoder e;
    dt_result r;
    memset(&e, 0, sizeof e);
    e.ids = ids;
    e.room = bytes;
    r = dt__encode(&e, t, text, bytes, special);
    *count = e.count;
    return r;
}

DT_API dt_result dt_tokenizer_decode(const dt_tokenizer *t, const int32_t *ids, int64_t count, char *text,
                                     int64_t *bytes)
{
    *bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t length;
        const char *token = dt_tokenizer_token(t, ids[i], &length);
        if (!token)
            return dt__error(DT_E_DATA,
                             "id %d at place %lld is not in the vocabulary, which has ids up to %lld: use "
                             "the tokenizer that made the ids",
                             (int)ids[i], (long long)i, (long long)t->token.count - 1);
        if (text) memcpy(text + *bytes, token, (size_t)length);
        *bytes += length;
    }
    return DT_OK;
}

/* ---- tokenizer files: reading ------------------------------------------------------------------ */

/* The two rules, as files spell them. */
static const char dt__rule_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char dt__rule_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* A whole file under the cursor. dt__json_close() gives it back, also after an error. */
static dt_result dt__json_open(dt__json *j, const char *path)
{
    void *map;
    memset(j, 0, sizeof *j);
    j->path = path;
    j->result = dt__file_map(path, &map, &j->bytes);
    j->text = (const char *)map;
    if (!j->result && !j->bytes) j->result = dt__error(DT_E_DATA, "%s is empty: copy it again", path);
    if (!j->result && j->bytes > DT__FILE_LIMIT)
        j->result = dt__error(DT_E_DATA, "%s has %.1f GB, more than any tokenizer's 1 GB: name another file", path,
                              (double)j->bytes / 1e9);
    return j->result;
}
static void dt__json_close(dt__json *j)
{
    if (j->text) munmap((void *)(uintptr_t)j->text, (size_t)j->bytes);
    dt__free(j->string);
}

/* The number of a token at the cursor. */
static int dt__read_id(dt__json *j, int32_t *id)
{
    int64_t whole = -1;
    int c = dt__json_peek(j);
    if (c != '-' && (c < '0' || c > '9'))
        return dt__json_fail(j, "a token's id is missing here: this is neither a tokenizer.json nor a vocab.json, "
                                "name another file");
    if (!dt__json_number(j, &whole)) return 0;
    *id = (int32_t)whole;
    return (whole >= 0 && whole < DT__TOKEN_LIMIT) ||
           dt__json_fail(j, "a token's id is a whole number from 0 to %d: write another", (int)DT__TOKEN_LIMIT - 1);
}

/* {"token": id, ..} */
static int dt__read_vocabulary(dt_tokenizer *t, dt__json *j)
{
    int64_t count = 0;
    if (!dt__json_enter(j, '{')) return 0;
    while (dt__json_more(j, '}', &count)) {
        int32_t id = 0;
        int literal;
        if (!dt__json_key(j) || !dt__read_id(j, &id)) return 0;
        j->length = dt__unspell(j->string, j->length, &literal);
        if (!j->length) return dt__json_fail(j, "token %d is empty: give it a text", (int)id);
        if (id < t->token.count && t->token.span[id].length)
            return dt__json_fail(j, "a second token with the id %d: give each its own", (int)id);
        if (dt__strings_find(&t->token, j->string, j->length) >= 0)
            return dt__json_fail(j, "token %d has the bytes of another one: keep one of them", (int)id);
        if (!dt__strings_put(&t->token, id, j->string, j->length)) return j->result = DT_E_MEMORY, 0;
        t->token.span[id].kind = literal ? DT__TOKEN_LITERAL : 0;
    }
    return !j->result;
}

/* Adds the merge whose two sides stand in j->string, `left` bytes and, from `right` on, the rest. */
static int dt__read_merge(dt_tokenizer *t, dt__json *j, int64_t left, int64_t right)
{
    char *a = j->string, *b = j->string + right;
    int64_t of_a = left, of_b = j->length - right, x, y, made;
    int literal;
    of_a = dt__unspell(a, of_a, &literal);
    of_b = dt__unspell(b, of_b, &literal);
    x = dt__strings_find(&t->token, a, of_a);
    y = dt__strings_find(&t->token, b, of_b);
    memmove(a + of_a, b, (size_t)of_b);
    made = dt__strings_find(&t->token, a, of_a + of_b);
    if (x < 0 || y < 0 || made < 0)
        return dt__json_fail(j, "merge %lld has %s that the vocabulary lacks: take both from the same tokenizer",
                             (long long)t->merges, x < 0 ? "a left side" : y < 0 ? "a right side" : "a result");
    if (dt__map_get(&t->rank, dt__pair_key((int32_t)x, (int32_t)y)))
        return dt__json_fail(j, "merge %lld stands here a second time: keep the first", (long long)t->merges);
    if (!dt__merge_add(t, (int32_t)x, (int32_t)y, (int32_t)made)) return j->result = DT_E_MEMORY, 0;
    return 1;
}

/* A merge written as "left right": the text in j->string. */
static int dt__read_merge_line(dt_tokenizer *t, dt__json *j)
{
    const char *space = (const char *)memchr(j->string, ' ', (size_t)j->length);
    int64_t left = space ? space - j->string : 0, right = left + 1;
    if (!left || right == j->length || memchr(space + 1, ' ', (size_t)(j->length - right)))
        return dt__json_fail(j, "a merge is two tokens with one space between: write it so");
    return dt__read_merge(t, j, left, right);
}

/* ["left right", ..] or [["left", "right"], ..] */
static int dt__read_merges(dt_tokenizer *t, dt__json *j)
{
    int64_t count = 0, sides, left = 0;
    if (!dt__json_enter(j, '[')) return 0;
    while (dt__json_more(j, ']', &count)) {
        if (dt__json_peek(j) != '[') {
            if (!dt__json_string(j) || !dt__read_merge_line(t, j)) return 0;
            continue;
        }
        if (!dt__json_enter(j, '[')) return 0;
        j->length = 0;
        for (sides = 0; dt__json_more(j, ']', &sides); left = sides == 1 ? j->length : left)
            if (!dt__json_append(j)) return 0;
        if (j->result) return 0;
        if (sides != 2) return dt__json_fail(j, "a merge has %lld sides: write two", (long long)sides);
        if (!dt__read_merge(t, j, left, left)) return 0;
    }
    return !j->result;
}

/* merges.txt: a first line that begins with #version, then a merge per line. */
static int dt__read_merges_text(dt_tokenizer *t, dt__json *j)
{
    static const char version[] = "#version";
    uint32_t code;
    while (j->at < j->bytes) {
        const char *line = j->text + j->at;
        const char *end = (const char *)memchr(line, '\n', (size_t)(j->bytes - j->at));
        int64_t length = end ? end - line : j->bytes - j->at, next = j->at + length + 1;
        if (length && line[length - 1] == '\r') length--;
        j->length = 0;
        if (!dt__json_room(j, length)) return 0;
        memcpy(j->string, line, (size_t)length);
        j->length = length;
        for (int64_t i = 0, step; i < length; i += step) {
            step = dt__utf8((const unsigned char *)line + i, length - i, &code);
            if (!step) return dt__json_fail(j, "a line that is not UTF-8: save the file as UTF-8");
        }
        if (!(j->at == 0 && length >= 8 && !memcmp(line, version, 8)) && (length || next < j->bytes) &&
            !dt__read_merge_line(t, j))
            return 0;
        j->at = dt__min(next, j->bytes);
    }
    return 1;
}

/* One element of "added_tokens": its content is taken letter by letter. */
static int dt__read_added_token(dt_tokenizer *t, dt__json *j)
{
    static const char *const key[] = {"id",     "content",    "single_word", "lstrip",
                                      "rstrip", "normalized", "special",     NULL};
    int64_t place[7], end;
    int32_t id = 0;
    int kind;
    if (!dt__json_members(j, key, place)) return 0;
    end = j->at;
    kind = DT__TOKEN_ADDED | DT__TOKEN_LITERAL | (dt__json_flag(j, place[6], 0) ? DT__TOKEN_SPECIAL : 0);
    kind |= dt__json_flag(j, place[5], !(kind & DT__TOKEN_SPECIAL)) ? DT__TOKEN_LATE : 0;
    if (dt__json_flag(j, place[2], 0) || dt__json_flag(j, place[3], 0) || dt__json_flag(j, place[4], 0))
        return dt__json_fail(j, "an added token with single_word, lstrip or rstrip, which are not supported: it would "
                                "swallow white space; set them to false");
    if (place[0] < 0) return dt__json_fail(j, "an added token without an id: give it one");
    j->at = place[0];
    if (!dt__read_id(j, &id)) return 0;
    dt__json_text(j, place[1], "content of an added token");
    if (j->result) return 0;
    if (!j->length) return dt__json_fail(j, "added token %d is empty: give it a text", (int)id);
    if (id < t->token.count && (t->token.span[id].kind & DT__TOKEN_ADDED))
        return dt__json_fail(j, "a second added token with the id %d: give each its own", (int)id);
    if (!dt__strings_set(&t->token, id, j->string, j->length)) return j->result = DT_E_MEMORY, 0;
    t->token.span[id].kind = kind | (t->token.span[id].kind & DT__TOKEN_MADE);
    j->at = end;
    return 1;
}

static int dt__read_added(dt_tokenizer *t, dt__json *j)
{
    int64_t count = 0;
    if (!dt__json_enter(j, '[')) return 0;
    while (dt__json_more(j, ']', &count))
        if (!dt__read_added_token(t, j)) return 0;
    return !j->result;
}

/* The rule that a pre-tokenizer {"type": "Split"} follows, and that it is one of ours. */
static int dt__read_split(dt_tokenizer *t, dt__json *j, int64_t pattern, int64_t behavior, int64_t invert)
{
    static const char *const key[] = {"Regex", NULL};
    int64_t regex;
    const char *text;
    if (pattern < 0) return dt__json_fail(j, "Split has no pattern: the file is damaged, copy it again");
    j->at = pattern;
    if (!dt__json_members(j, key, &regex)) return 0;
    text = dt__json_text(j, regex, "Regex in the pattern of Split");
    if (!j->result && !strcmp(text, dt__rule_gpt2)) t->rule = DT_PRETOKENS_GPT2;
    else if (!j->result && !strcmp(text, dt__rule_llama3)) t->rule = DT_PRETOKENS_LLAMA3;
    else
        return dt__json_fail(j, "Split by another pattern than those of GPT-2 and Llama 3, which are the ones that are "
                                "supported: use a tokenizer with one of them");
    text = dt__json_text(j, behavior, "behavior of Split");
    if (!j->result && (strcmp(text, "Isolated") || dt__json_flag(j, invert, 0)))
        return dt__json_fail(j, "Split must have the behavior Isolated and not be inverted: use another tokenizer");
    return !j->result;
}

/* One pre-tokenizer; *found gathers which ones there were: 1 Split, 2 ByteLevel that splits, 4 ByteLevel that does not.
 * `inner`: it is an element of a Sequence. */
static int dt__read_pretokenizer(dt_tokenizer *t, dt__json *j, int inner, int *found)
{
    static const char *const key[] = {"type",    "add_prefix_space", "use_regex", "pretokenizers",
                                      "pattern", "behavior",         "invert",    NULL};
    int64_t place[7], end, count = 0;
    const char *type;
    if (!dt__json_members(j, key, place)) return 0;
    end = j->at;
    type = dt__json_text(j, place[0], "type of the pre-tokenizer");
    if (j->result) return 0;
    if (!strcmp(type, "ByteLevel")) {
        if (dt__json_flag(j, place[1], 1))
            return dt__json_fail(j, "ByteLevel with add_prefix_space, which puts a space before the text: set it to "
                                    "false, or decoding does not give the text back");
        *found |= dt__json_flag(j, place[2], 1) ? 2 : 4;
    } else if (!strcmp(type, "Split") && inner) {
        if (*found || !dt__read_split(t, j, place[4], place[5], place[6]))
            return dt__json_fail(j, "a second pre-tokenizer Split: use a tokenizer with one");
        *found |= 1;
    } else if (!strcmp(type, "Sequence") && !inner && place[3] >= 0) {
        j->at = place[3];
        if (!dt__json_enter(j, '[')) return 0;
        while (dt__json_more(j, ']', &count))
            if (!dt__read_pretokenizer(t, j, 1, found)) return 0;
    } else {
        return dt__json_fail(j,
                             "the pre-tokenizer \"%.40s\" is not supported: use a tokenizer with ByteLevel (GPT-2), "
                             "or with Split and ByteLevel (Llama 3)",
                             type);
    }
    j->at = end;
    return !j->result;
}

static int dt__read_pretokenizers(dt_tokenizer *t, dt__json *j, int64_t place)
{
    int found = 0;
    if (dt__json_absent(j, place))
        return dt__json_fail(j, "there is no pre_tokenizer: use a tokenizer with ByteLevel (GPT-2), or with Split and "
                                "ByteLevel (Llama 3)");
    j->at = place;
    if (!dt__read_pretokenizer(t, j, 0, &found)) return 0;
    return found == 2 || found == 5 ||
           dt__json_fail(j, "the pre-tokenizers are neither ByteLevel with use_regex nor one Split and ByteLevel "
                            "without: use a tokenizer of GPT-2 or Llama 3");
}

/* What a BPE model may not have, as it would change ids. */
static int dt__read_model_limits(dt__json *j, const int64_t *place)
{
    int64_t whole = -1;
    if (place[0] >= 0 && !j->result && strcmp(dt__json_text(j, place[0], "type of the model"), "BPE"))
        return dt__json_fail(j, "the model \"%.40s\" is not supported: use a tokenizer with a BPE model",
                             j->result ? "?" : j->string);
    if (!dt__json_absent(j, place[1]) && !(dt__json_number(j, &whole) && whole == 0))
        return dt__json_fail(j, "BPE dropout makes ids random: set it to null");
    for (int i = 2; i < 4; i++)
        if (!dt__json_absent(j, place[i]) && dt__json_text(j, place[i], "prefix")[0])
            return dt__json_fail(j, "prefixes and suffixes of sub-words are not supported: use a byte-level tokenizer");
    if (dt__json_flag(j, place[4], 0))
        return dt__json_fail(j, "byte_fallback is not supported: use a byte-level tokenizer");
    return !j->result;
}

static int dt__read_model(dt_tokenizer *t, dt__json *j)
{
    static const char *const key[] = {"type", "dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                      "byte_fallback", "ignore_merges", "vocab", "merges", NULL};
    int64_t place[8];
    if (!dt__json_members(j, key, place) || !dt__read_model_limits(j, place)) return 0;
    t->whole_words = dt__json_flag(j, place[5], 0);
    for (int i = 6; i < 8; i++)
        if (place[i] < 0)
            return dt__json_fail(j, "the model has no \"%s\": it is cut or of another kind, copy it again", key[i]);
    j->at = place[6];
    if (!dt__read_vocabulary(t, j)) return 0;
    j->at = place[7];
    return dt__read_merges(t, j);
}

/* Nothing may follow the value that was read; `end` is behind it. */
static int dt__read_end(dt__json *j, int64_t end)
{
    j->at = end;
    dt__json_peek(j);
    return j->result == DT_OK &&
           (j->at == j->bytes || dt__json_fail(j, "something follows the last bracket: remove it"));
}

/* A tokenizer.json, or the whole of a vocab.json; *flat says that it was the second. */
static int dt__read_json(dt_tokenizer *t, dt__json *j, int *flat)
{
    static const char *const key[] = {"model", "normalizer", "pre_tokenizer", "added_tokens", NULL};
    int64_t place[4];
    if (!dt__json_members(j, key, place) || !dt__read_end(j, j->at)) return 0;
    *flat = place[0] < 0 || j->text[place[0]] != '{';
    if (*flat) {
        j->at = 0;
        return dt__read_vocabulary(t, j);
    }
    if (!dt__json_absent(j, place[1]))
        return dt__json_fail(j, "a normalizer changes the text before it is encoded, which is not supported: use a "
                                "tokenizer without one");
    if (!dt__read_pretokenizers(t, j, place[2])) return 0;
    j->at = place[0];
    if (!dt__read_model(t, j)) return 0;
    if (dt__json_absent(j, place[3])) return 1;
    j->at = place[3];
    return dt__read_added(t, j);
}

/* Entries of a vocab.json that nothing else could produce are special tokens, and their text means itself. */
static dt_result dt__tokenizer_infer_specials(dt_tokenizer *t)
{
    for (int64_t id = 0; id < t->token.count; id++) {
        dt__chars span = t->token.span[id];
        char *text;
        int64_t length = 0;
        int fine;
        if (span.length < 2 || (span.kind & DT__TOKEN_MADE)) continue;
        t->token.span[id].kind = DT__TOKEN_ADDED | DT__TOKEN_SPECIAL | DT__TOKEN_LITERAL;
        if (span.kind & DT__TOKEN_LITERAL) continue;
        text = (char *)dt__alloc(2 * (int64_t)span.length, "a special token");
        if (!text) return DT_E_MEMORY;
        for (int32_t i = 0; i < span.length; i++)
            length += dt__utf8_put(dt__byte_code((unsigned char)t->token.bytes[span.at + i]), text + length);
        fine = dt__strings_set(&t->token, id, text, length);
        dt__free(text);
        if (!fine) return DT_E_MEMORY;
    }
    return DT_OK;
}

/* What every tokenizer needs at last. */
static dt_result dt__tokenizer_finish(dt_tokenizer *t, const char *path)
{
    for (int i = 0; i < 256; i++) {
        char byte = (char)(unsigned char)i;
        int64_t id = dt__strings_find(&t->token, &byte, 1);
        if (id < 0)
            return dt__error(DT_E_DATA,
                             "%s has no token for the byte 0x%02x, so not every text can be encoded: use a "
                             "byte-level tokenizer, trained with the alphabet of all bytes",
                             path, (unsigned)i);
        t->byte_id[i] = (int32_t)id;
    }
    return dt__tokenizer_specials(t);
}

static dt_result dt__path_join(char joined[PATH_MAX], const char *folder, const char *name)
{
    if ((size_t)snprintf(joined, PATH_MAX, "%s/%s", folder, name) < PATH_MAX) return DT_OK;
    return dt__error(DT_E_FILE, "the name %.60s... is too long: use a shorter one", folder);
}

/* The merges.txt beside a vocab.json. */
static dt_result dt__read_beside(dt_tokenizer *t, const char *vocabulary)
{
    char path[PATH_MAX];
    const char *slash = strrchr(vocabulary, '/');
    dt__json j;
    dt_result r;
    if ((size_t)snprintf(path, sizeof path, "%.*smerges.txt", slash ? (int)(slash - vocabulary) + 1 : 0, vocabulary) >=
        sizeof path)
        return dt__error(DT_E_FILE, "the name %.60s... is too long: use a shorter one", vocabulary);
    if (access(path, F_OK))
        return dt__error(DT_E_FILE, "cannot find %s (%s): it belongs beside vocab.json", path, strerror(errno));
    r = dt__json_open(&j, path);
    if (!r && !dt__read_merges_text(t, &j)) r = j.result;
    dt__json_close(&j);
    return r ? r : dt__tokenizer_infer_specials(t);
}

static dt_result dt__tokenizer_read(dt_tokenizer *t, const char *path)
{
    dt__json j;
    int flat = 0;
    dt_result r = dt__json_open(&j, path);
    if (!r && !dt__read_json(t, &j, &flat)) r = j.result;
    dt__json_close(&j);
    if (!r && flat) r = dt__read_beside(t, path);
    return r ? r : dt__tokenizer_finish(t, path);
}

DT_API dt_result dt_tokenizer_open(dt_tokenizer **handle, const char *path)
{
    char file[PATH_MAX];
    struct stat info;
    dt_tokenizer *t;
    dt_result r;
    *handle = NULL;
    if (!path || !*path) return dt__error(DT_E_USAGE, "no tokenizer is named: give a directory or a .json file");
    if (stat(path, &info))
        return dt__error(DT_E_FILE, "cannot find the tokenizer %s (%s): check the name", path, strerror(errno));
    r = dt__path_join(file, path, "tokenizer.json");
    if (!r && S_ISDIR(info.st_mode) && access(file, F_OK)) r = dt__path_join(file, path, "vocab.json");
    if (r) return r;
    if (S_ISDIR(info.st_mode) && access(file, F_OK))
        return dt__error(DT_E_FILE, "%s has neither tokenizer.json nor vocab.json: name the directory of a tokenizer",
                         path);
    t = dt__tokenizer_new();
    r = t ? dt__tokenizer_read(t, S_ISDIR(info.st_mode) ? file : path) : DT_E_MEMORY;
    if (r) dt_tokenizer_close(&t);
    *handle = t;
    return r;
}

/* ---- tokenizer files: writing ------------------------------------------------------------------ */

/* A token as text: bytes by the alphabet, a special one as it is; with the escapes of JSON where `json`. */
static void dt__write_token(FILE *f, const dt_tokenizer *t, int64_t id, int json)
{
    const dt__chars *span = &t->token.span[id];
    for (int32_t i = 0; i < span->length; i++) {
        int byte = (unsigned char)t->token.bytes[span->at + i], length = 1;
        char text[4];
        text[0] = (char)(unsigned char)byte;
        if (!(span->kind & DT__TOKEN_ADDED)) length = dt__utf8_put(dt__byte_code(byte), text);
        if (json && length == 1 && (byte == '"' || byte == '\\')) fputc('\\', f);
        if (json && length == 1 && byte < 32) fprintf(f, "\\u%04x", (unsigned)byte);
        else fwrite(text, 1, (size_t)length, f);
    }
}

static void dt__write_vocabulary(FILE *f, const dt_tokenizer *t)
{
    const char *comma = "{";
    for (int64_t id = 0; id < t->token.count; id++) {
        if (!t->token.span[id].length) continue;
        fprintf(f, "%s\"", comma);
        dt__write_token(f, t, id, 1);
        fprintf(f, "\":%lld", (long long)id);
        comma = ",\n";
    }
    fprintf(f, "}");
}

static void dt__write_merges(FILE *f, const dt_tokenizer *t, int json)
{
    for (int64_t i = 0; i < t->merges; i++) {
        fprintf(f, "%s", json ? i ? ",\n\"" : "\n\"" : "");
        dt__write_token(f, t, t->merge[i].left, json);
        fprintf(f, " ");
        dt__write_token(f, t, t->merge[i].right, json);
        fprintf(f, "%s", json ? "\"" : "\n");
    }
}

static void dt__write_json_text(FILE *f, const char *text)
{
    for (; *text; text++) fprintf(f, "%s%c", *text == '\\' || *text == '"' ? "\\" : "", *text);
}

static void dt__write_added(FILE *f, const dt_tokenizer *t)
{
    const char *comma = "\n";
    for (int64_t id = 0; id < t->token.count; id++) {
        int kind = t->token.span[id].kind;
        if (!(kind & DT__TOKEN_ADDED)) continue;
        fprintf(f, "%s{\"id\":%lld,\"content\":\"", comma, (long long)id);
        dt__write_token(f, t, id, 1);
        fprintf(f, "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":%s,\"special\":%s}",
                kind & DT__TOKEN_LATE ? "true" : "false", kind & DT__TOKEN_SPECIAL ? "true" : "false");
        comma = ",\n";
    }
}

static void dt__write_json(FILE *f, const dt_tokenizer *t)
{
    int split = t->rule == DT_PRETOKENS_LLAMA3;
    fprintf(f, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n\"added_tokens\":[");
    dt__write_added(f, t);
    fprintf(f, "],\n\"normalizer\":null,\n\"pre_tokenizer\":");
    if (split) {
        fprintf(f, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"");
        dt__write_json_text(f, dt__rule_llama3);
        fprintf(f, "\"},\"behavior\":\"Isolated\",\"invert\":false},\n");
    }
    fprintf(f, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":%s}%s,\n",
            split ? "false" : "true", split ? "]}" : "");
    fprintf(f, "\"post_processor\":null,\n\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
               "\"trim_offsets\":true,\"use_regex\":true},\n");
    fprintf(f, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
               "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":%s,\n"
               "\"vocab\":", t->whole_words ? "true" : "false");
    dt__write_vocabulary(f, t);
    fprintf(f, ",\n\"merges\":[");
    dt__write_merges(f, t, 1);
    fprintf(f, "]}}\n");
}

DT_API dt_result dt_tokenizer_save(const dt_tokenizer *t, const char *folder)
{
    static const char *const name[3] = {"vocab.json", "merges.txt", "tokenizer.json"};
    char path[3][PATH_MAX];
    dt__draft draft[3];
    dt_result r = DT_OK;
    int ended = 0, published = 0;
    if (mkdir(folder, 0777) && errno != EEXIST)
        return dt__error(DT_E_FILE, "cannot make the directory %s (%s): choose another place", folder, strerror(errno));
    for (; ended < 3 && !r; ended += !r) {
        r = dt__path_join(path[ended], folder, name[ended]);
        if (!r) r = dt__draft_open(&draft[ended], path[ended]);
        if (r) break;
        if (ended == 0) dt__write_vocabulary(draft[0].file, t);
        else if (ended == 2) dt__write_json(draft[2].file, t);
        else fprintf(draft[1].file, "#version: 0.2\n"), dt__write_merges(draft[1].file, t, 0);
        r = dt__draft_end(&draft[ended], path[ended]);
    }
    for (; published < 3 && !r; published++) r = dt__draft_publish(&draft[published], path[published]);
    for (int i = published; i < ended; i++) dt__draft_drop(&draft[i]);
    return r;
}

/* ---- learning a vocabulary ---------------------------------------------------------------------
 * The different pre-tokens of the text stand one behind the other as lists of symbols; a pair knows how often it
 * occurs and where. A merge visits the places of its pair alone and corrects the counts of their neighbours, so all
 * merges together take about as long as there are symbols. The heap may hold old counts: an item counts when the pair
 * still has that count, and a pair that grew was pushed again. */

typedef struct dt__pair {
    int32_t left, right;
    int64_t count;       /* over the whole text */
    int64_t first, last; /* of its list in `place`; -1: empty */
    int64_t touched;     /* the last merge after which it is pushed again */
} dt__pair;

typedef struct dt__occurrence {
    int64_t next;
    int32_t at;
} dt__occurrence;

typedef struct dt__learner {
    dt_tokenizer *t;
    dt__strings word; /* different pre-tokens */
    int64_t *count;   /* of each in the text */
    int64_t counts;
    int32_t *symbol, *next, *prev, *owner; /* (symbols) id, -1 when merged away; neighbours in the word; the word */
    dt__pair *pair;
    int64_t pairs, pair_room;
    dt__map pair_of;
    dt__occurrence *place;
    int64_t places, place_room;
    int64_t *grown; /* pairs to push */
    int64_t growns, grown_room;
    dt__heap heap;
    int64_t round;
} dt__learner;

static void dt__learner_free(dt__learner *l)
{
    dt__strings_free(&l->word);
    dt__free(l->count);
    dt__free(l->symbol);
    dt__free(l->pair);
    dt__free(l->pair_of.slot);
    dt__free(l->place);
    dt__free(l->grown);
    dt__free(l->heap.item);
}

/* Counts a pre-token. */
static dt_result dt__learner_word(void *context, const unsigned char *p, int64_t n)
{
    dt__learner *l = (dt__learner *)context;
    int64_t word = dt__strings_find(&l->word, p, n);
    if (word < 0) {
        word = l->word.count;
        if (l->word.used + n > INT32_MAX)
            return dt__error(DT_E_DATA, "the text has more than 2 GB of different words: learn from a part of it");
        if (!dt__strings_put(&l->word, word, p, n) ||
            !dt__reserve((void **)&l->count, word, &l->counts, word + 1, (int64_t)sizeof *l->count, "counts of words"))
            return DT_E_MEMORY;
        l->count[word] = 0;
    }
    l->count[word]++;
    return DT_OK;
}
static dt_result dt__learner_token(void *context, int32_t id)
{
    (void)context;
    (void)id;
    return DT_OK;
}

/* The number of a pair, which is made when it is new; -1 without memory. */
static int64_t dt__learner_pair(dt__learner *l, int32_t left, int32_t right)
{
    int64_t known = dt__map_get(&l->pair_of, dt__pair_key(left, right));
    dt__pair *pair;
    if (known) return known - 1;
    if (!dt__reserve((void **)&l->pair, l->pairs, &l->pair_room, l->pairs + 1, (int64_t)sizeof *pair, "pairs") ||
        !dt__map_add(&l->pair_of, dt__pair_key(left, right), l->pairs + 1))
        return -1;
    pair = &l->pair[l->pairs];
    memset(pair, 0, sizeof *pair);
    pair->left = left, pair->right = right;
    pair->first = pair->last = pair->touched = -1;
    return l->pairs++;
}

/* The pair at `at` is one more, as often as its word occurs; it will be pushed. 0 without memory. */
static int dt__learner_more(dt__learner *l, int32_t at)
{
    int64_t number = dt__learner_pair(l, l->symbol[at], l->symbol[l->next[at]]), place = l->places;
    dt__pair *pair;
    if (number < 0 || !dt__reserve((void **)&l->place, l->places, &l->place_room, l->places + 1,
                                   (int64_t)sizeof *l->place, "places of pairs"))
        return 0;
    pair = &l->pair[number];
    pair->count += l->count[l->owner[at]];
    l->place[place].at = at;
    l->place[place].next = -1;
    if (pair->first < 0) pair->first = place;
    else l->place[pair->last].next = place;
    pair->last = place;
    l->places++;
    if (pair->touched == l->round) return 1;
    pair->touched = l->round;
    if (!dt__reserve((void **)&l->grown, l->growns, &l->grown_room, l->growns + 1, (int64_t)sizeof *l->grown, "pairs"))
        return 0;
    l->grown[l->growns++] = number;
    return 1;
}

/* The pair at `at` is one less. */
static void dt__learner_less(dt__learner *l, int32_t at)
{
    int64_t number = dt__map_get(&l->pair_of, dt__pair_key(l->symbol[at], l->symbol[l->next[at]])) - 1;
    l->pair[number].count -= l->count[l->owner[at]];
}

/* Pairs that occur once are no gain. The order: count, then the smaller ids. */
static int dt__learner_push(dt__learner *l)
{
    dt__heap *h = &l->heap;
    if (!dt__reserve((void **)&h->item, h->count, &h->room, h->count + l->growns, (int64_t)sizeof *h->item, "pairs"))
        return 0;
    for (int64_t i = 0; i < l->growns; i++) {
        const dt__pair *pair = &l->pair[l->grown[i]];
        if (pair->count > 1) dt__heap_push(h, ~(uint64_t)pair->count, dt__pair_key(pair->left, pair->right));
    }
    l->growns = 0;
    return 1;
}

/* Words become lists of symbols, whose pairs are counted. */
static dt_result dt__learner_start(dt__learner *l)
{
    int64_t symbols = l->word.used;
    int32_t at = 0;
    l->symbol = (int32_t *)dt__alloc(4 * symbols * (int64_t)sizeof *l->symbol, "the symbols of all words");
    if (!l->symbol) return DT_E_MEMORY;
    l->next = l->symbol + symbols;
    l->prev = l->next + symbols;
    l->owner = l->prev + symbols;
    for (int32_t word = 0; word < l->word.count; word++) {
        const dt__chars *span = &l->word.span[word];
        for (int32_t i = 0; i < span->length; i++, at++) {
            l->symbol[at] = l->t->byte_id[(unsigned char)l->word.bytes[span->at + i]];
            l->next[at] = i + 1 < span->length ? at + 1 : -1;
            l->prev[at] = i ? at - 1 : -1;
            l->owner[at] = word;
        }
    }
    for (at = 0; at < symbols; at++)
        if (l->next[at] >= 0 && !dt__learner_more(l, at)) return DT_E_MEMORY;
    return dt__learner_push(l) ? DT_OK : DT_E_MEMORY;
}

/* Merges a pair wherever it still stands, in the order of the text: new pairs have the new id in them, so every list of
 * places is made in one go, from left to right. */
static int dt__learner_merge(dt__learner *l, int64_t number, int32_t made)
{
    int32_t left = l->pair[number].left, right = l->pair[number].right;
    l->round++;
    for (int64_t i = l->pair[number].first; i >= 0; i = l->place[i].next) {
        int32_t at = l->place[i].at, gone = l->next[at], before = l->prev[at], behind;
        if (l->symbol[at] != left || gone < 0 || l->symbol[gone] != right) continue;
        behind = l->next[gone];
        if (before >= 0) dt__learner_less(l, before);
        if (behind >= 0) dt__learner_less(l, gone);
        l->symbol[at] = made;
        l->symbol[gone] = -1;
        l->next[at] = behind;
        if (behind >= 0) l->prev[behind] = at;
        if (before >= 0 && !dt__learner_more(l, before)) return 0;
        if (behind >= 0 && !dt__learner_more(l, at)) return 0;
    }
    l->pair[number].count = 0;
    return dt__learner_push(l);
}

/* Adds a pair's token and returns its id; -1 without memory. No token has these bytes yet: as long as no merge crosses
 * the ends of a string, it is cut the same way wherever it stands, so a second pair cannot make it. */
static int64_t dt__learner_made(dt__learner *l, const dt__pair *pair)
{
    dt__strings *s = &l->t->token;
    int64_t left = s->span[pair->left].length, right = s->span[pair->right].length;
    int fine;
    char *bytes = (char *)dt__alloc(left + right, "a token");
    if (!bytes) return -1;
    memcpy(bytes, s->bytes + s->span[pair->left].at, (size_t)left);
    memcpy(bytes + left, s->bytes + s->span[pair->right].at, (size_t)right);
    fine = dt__strings_put(s, s->count, bytes, left + right);
    dt__free(bytes);
    return fine ? s->count - 1 : -1;
}

static dt_result dt__learner_run(dt__learner *l, int64_t vocabulary)
{
    while (l->t->token.count < vocabulary && l->heap.count) {
        dt__heap_item top = dt__heap_pop(&l->heap);
        int64_t number = dt__map_get(&l->pair_of, top.second) - 1, made;
        const dt__pair *pair = &l->pair[number];
        if (pair->count != (int64_t)~top.first) {
            if (pair->count > 1 && pair->count < (int64_t)~top.first)
                dt__heap_push(&l->heap, ~(uint64_t)pair->count, top.second); /* in the place of the popped one */
            continue;
        }
        made = dt__learner_made(l, pair);
        if (made < 0 || !dt__merge_add(l->t, pair->left, pair->right, (int32_t)made) ||
            !dt__learner_merge(l, number, (int32_t)made))
            return DT_E_MEMORY;
    }
    return DT_OK;
}

/* The bytes and the special tokens. */
static dt_result dt__learner_begin(dt_tokenizer *t, const char *const *special)
{
    for (int i = 0; i < 256; i++) {
        char byte = (char)(unsigned char)i;
        t->byte_id[i] = dt__byte_order(i);
        if (!dt__strings_put(&t->token, t->byte_id[i], &byte, 1)) return DT_E_MEMORY;
    }
    for (; special && *special; special++) {
        int64_t length = 0, id = t->token.count;
        while ((*special)[length] > ' ' && (*special)[length] < 127) length++;
        if (length < 2 || (*special)[length])
            return dt__error(DT_E_USAGE,
                             "the special token \"%.60s\": use 2 or more printable ASCII characters, such as "
                             "<|endoftext|>",
                             *special);
        if (id == DT__TOKEN_LIMIT || length > DT__FILE_LIMIT)
            return dt__error(DT_E_USAGE, "too many special tokens: name fewer than %d", (int)DT__TOKEN_LIMIT);
        for (const char *const *other = special + 1; *other; other++)
            if (!strcmp(*special, *other))
                return dt__error(DT_E_USAGE, "the special token %.60s is named twice: name it once", *special);
        if (!dt__strings_set(&t->token, id, *special, length)) return DT_E_MEMORY;
        t->token.span[id].kind = DT__TOKEN_ADDED | DT__TOKEN_SPECIAL | DT__TOKEN_LITERAL;
    }
    return dt__tokenizer_specials(t);
}

/* Counts the pre-tokens of one file. */
static dt_result dt__learner_file(dt__learner *l, const char *path)
{
    dt__visitor v;
    void *map;
    int64_t bytes = 0;
    dt_result r = dt__file_map(path, &map, &bytes);
    v.t = l->t;
    v.special = 1;
    v.context = l;
    v.word = dt__learner_word;
    v.token = dt__learner_token;
    if (!r && !bytes) r = dt__error(DT_E_DATA, "%s is empty: give a file with text", path);
    if (!r) r = dt__walk(&v, (const unsigned char *)map, bytes, 0);
    if (map) munmap(map, (size_t)bytes);
    return r;
}

static dt_result dt__tokenizer_learn(dt_tokenizer *t, const char *path, int64_t vocabulary, const char *const *special)
{
    dt__learner l;
    glob_t names;
    dt_result r;
    memset(&l, 0, sizeof l);
    l.t = t;
    r = dt__learner_begin(t, special);
    if (!r && (vocabulary < t->token.count || vocabulary > DT__TOKEN_LIMIT))
        r = dt__error(DT_E_USAGE, "a vocabulary of %lld ids: use %lld (bytes and special tokens) to %d",
                      (long long)vocabulary, (long long)t->token.count, (int)DT__TOKEN_LIMIT);
    if (!r) r = dt__names_list(&names, path);
    if (r) return r;
    for (size_t i = 0; i < names.gl_pathc && !r; i++) r = dt__learner_file(&l, names.gl_pathv[i]);
    globfree(&names);
    if (!r) r = dt__learner_start(&l);
    if (!r) r = dt__learner_run(&l, vocabulary);
    dt__learner_free(&l);
    return r;
}

DT_API dt_result dt_tokenizer_train(dt_tokenizer **handle, const char *path, int64_t vocabulary, dt_pretokens rule,
                                    const char *const *special)
{
    dt_tokenizer *t;
    dt_result r;
    *handle = NULL;
    if (!path) return dt__error(DT_E_USAGE, "no text to learn from is named: give the name of a file");
    if (rule != DT_PRETOKENS_GPT2 && rule != DT_PRETOKENS_LLAMA3)
        return dt__error(DT_E_USAGE, "there is no rule %d for pre-tokens: use DT_PRETOKENS_GPT2 or DT_PRETOKENS_LLAMA3",
                         (int)rule);
    t = dt__tokenizer_new();
    if (t) t->rule = rule;
    r = t ? dt__tokenizer_learn(t, path, vocabulary, special) : DT_E_MEMORY;
    if (r) dt_tokenizer_close(&t);
    *handle = t;
    return r;
}

/* ---- data ------------------------------------------------------------------------------------ */

enum { DT__BIN_MAGIC = 20240520, DT__BIN_VERSION = 1, DT__BIN_HEADER = 1024 /* bytes */ };

typedef struct dt__shard {
    void *map;
    int64_t bytes;             /* of the mapping */
    const unsigned char *data; /* the tokens, `width` bytes each, inside the mapping */
    int width;                 /* 1: bytes, 2: uint16 token ids, 4: int32 token ids */
    void *encoded;             /* instead of the mapping: ids of a text */
    int64_t room;              /* ids that fit into it */
    int64_t first, tokens;     /* place of its first token among all, and how many */
} dt__shard;

struct dt_data {
    dt__shard *shard;
    int shards, width;
    const dt_tokenizer *tokenizer; /* while it is opened: encodes text */
    int64_t vocabulary;            /* of the tokenizer, when it encoded something */
    int64_t sequence;
    int64_t first[2], tokens[2]; /* of each dt_split: a run of tokens */
};

/* ---- opening ------------------------------------------------------------------------------ */

/* Checks the header of a .bin shard, whose magic is known to be right. */
static dt_result dt__shard_ids(dt__shard *s, const char *path)
{
    int32_t header[3];
    if (s->bytes < DT__BIN_HEADER)
        return dt__error(DT_E_DATA, "%s has %lld bytes, fewer than its header: it is cut, copy it again", path,
                         (long long)s->bytes);
    memcpy(header, s->map, sizeof header);
    if (header[1] != DT__BIN_VERSION)
        return dt__error(DT_E_DATA, "%s is a token file of version %d, not %d: make it with llm.c's current scripts",
                         path, (int)header[1], (int)DT__BIN_VERSION);
    if (header[2] <= 0) return dt__error(DT_E_DATA, "%s promises %d tokens: write it again", path, (int)header[2]);
    if (s->bytes != DT__BIN_HEADER + 2 * (int64_t)header[2])
        return dt__error(DT_E_DATA, "%s has %lld bytes, but %d tokens need %lld: it is cut or damaged, copy it again",
                         path, (long long)s->bytes, (int)header[2],
                         (long long)(DT__BIN_HEADER + 2 * (int64_t)header[2]));
    s->data = (const unsigned char *)s->map + DT__BIN_HEADER;
    s->tokens = header[2];
    s->width = 2;
    return DT_OK;
}

/* Decides by the magic what a mapped file holds. */
static dt_result dt__shard_recognise(dt__shard *s, const char *path)
{
    size_t length = strlen(path);
    int32_t magic = 0;
    if (s->bytes >= (int64_t)sizeof magic) memcpy(&magic, s->map, sizeof magic);
    if (magic == DT__BIN_MAGIC) return dt__shard_ids(s, path);
    if (length >= 4 && !strcmp(path + length - 4, ".bin"))
        return dt__error(DT_E_DATA, "%s does not begin like a token file (%d): make it with llm.c's scripts, "
                         "or rename it if its bytes are the text", path, (int)DT__BIN_MAGIC);
    s->data = (const unsigned char *)s->map;
    s->tokens = s->bytes;
    s->width = 1;
    return DT_OK;
}

static dt_result dt__shard_open(dt__shard *s, const char *path)
{
    dt_result r = dt__file_map(path, &s->map, &s->bytes);
    if (r) return r;
    if (!s->bytes) return dt__error(DT_E_DATA, "%s is empty: give a file with text or tokens", path);
    return dt__shard_recognise(s, path);
}

/* More ids of a text. */
static dt_result dt__shard_more(void *context, const int32_t *ids, int64_t count)
{
    dt__shard *s = (dt__shard *)context;
    uint16_t *narrow;
    if (!dt__reserve(&s->encoded, s->tokens, &s->room, s->tokens + count, s->width, "the ids of a text"))
        return DT_E_MEMORY;
    narrow = (uint16_t *)s->encoded + s->tokens;
    if (s->width == 4) memcpy((int32_t *)s->encoded + s->tokens, ids, sizeof *ids * (size_t)count);
    else for (int64_t i = 0; i < count; i++) narrow[i] = (uint16_t)ids[i];
    s->tokens += count;
    return DT_OK;
}

/* Bytes of memory that encoded texts take. */
static int64_t dt__data_memory(const dt_data *d)
{
    int64_t bytes = 0;
    for (int i = 0; i < d->shards; i++) bytes += d->shard[i].room * d->shard[i].width;
    return bytes;
}

enum { DT__FLUSH = 4096 }; /* ids that are encoded before they are stored or written */

/* Encodes a shard of text and lets the file go. */
static dt_result dt__shard_encode(dt__shard *s, const dt_tokenizer *t)
{
    int32_t ids[DT__FLUSH];
    dt__encoder e;
    dt_result r;
    memset(&e, 0, sizeof e);
    e.ids = ids;
    e.room = DT__FLUSH;
    e.flush = dt__shard_more;
    e.context = s;
    s->width = dt_tokenizer_size(t) > 65536 ? 4 : 2;
    s->tokens = 0;
    r = dt__encode(&e, t, s->map, s->bytes, 1);
    munmap(s->map, (size_t)s->bytes);
    s->map = NULL;
    s->data = (const unsigned char *)s->encoded;
    return r;
}

static dt_result dt__data_open_shards(dt_data *d, char *const *path)
{
    for (int i = 0; i < d->shards; i++) {
        dt__shard *s = &d->shard[i];
        dt_result r = dt__shard_open(s, path[i]);
        if (!r && s->width == 1 && d->tokenizer) {
            r = dt__shard_encode(s, d->tokenizer);
            d->vocabulary = dt_tokenizer_size(d->tokenizer);
        }
        if (r) return r;
        if ((s->width == 1) != (d->shard[0].width == 1))
            return dt__error(DT_E_DATA, "%s holds %s and %s %s: give files of one kind", path[0],
                             s->width == 1 ? "token ids" : "text", path[i], s->width == 1 ? "text" : "token ids");
        s->first = i ? s[-1].first + s[-1].tokens : 0;
    }
    d->width = d->shard[0].width;
    return DT_OK;
}

/* Cuts the tokens into the training part and, behind it, the validation part. */
static dt_result dt__data_cut(dt_data *d, const char *path, double fraction)
{
    const dt__shard *last = &d->shard[d->shards - 1];
    int64_t all = last->first + last->tokens, validation = (int64_t)((double)all * fraction), need = d->sequence + 1;
    if (all < need)
        return dt__error(DT_E_DATA, "%s has %lld tokens, and one sequence needs %lld (%lld and the last target): "
                         "use a longer text or a shorter sequence", path, (long long)all, (long long)need,
                         (long long)d->sequence);
    if (fraction > 0 && (validation < need || all - validation < need))
        return dt__error(DT_E_DATA, "%s: a validation fraction of %g cuts %lld tokens into %lld and %lld, but each "
                         "part needs %lld for one sequence: use a longer text, a shorter sequence or another fraction",
                         path, fraction, (long long)all, (long long)(all - validation), (long long)validation,
                         (long long)need);
    d->tokens[DT_TRAIN] = all - validation;
    d->first[DT_VALIDATION] = all - validation;
    d->tokens[DT_VALIDATION] = validation;
    return DT_OK;
}

static dt_result dt__data_fill(dt_data *d, const glob_t *names, const char *path, double fraction)
{
    dt_result r;
    d->shard = (dt__shard *)dt__alloc((int64_t)sizeof *d->shard * (int64_t)names->gl_pathc, "a list of data files");
    if (!d->shard) return DT_E_MEMORY;
    d->shards = (int)names->gl_pathc;
    r = dt__data_open_shards(d, names->gl_pathv);
    return r ? r : dt__data_cut(d, path, fraction);
}

DT_API dt_result dt_data_open(dt_data **handle, const char *path, int64_t sequence, double validation_fraction)
{
    return dt_data_open_tokenized(handle, path, NULL, sequence, validation_fraction);
}

DT_API dt_result dt_data_open_tokenized(dt_data **handle, const char *path, const dt_tokenizer *t, int64_t sequence,
                                        double validation_fraction)
{
    glob_t names;
    dt_result r;
    dt_data *d;
    *handle = NULL;
    if (!path) return dt__error(DT_E_USAGE, "no data is named: give the name of a text");
    if (sequence < 1 || sequence > INT32_MAX)
        return dt__error(DT_E_USAGE, "a sequence of %lld tokens: use 1 or more", (long long)sequence);
    if (!(validation_fraction >= 0.0 && validation_fraction < 1.0))
        return dt__error(DT_E_USAGE, "a validation fraction of %g: use 0 to below 1, such as 0.1", validation_fraction);
    r = dt__names_list(&names, path);
    if (r) return r;
    d = (dt_data *)dt__alloc((int64_t)sizeof *d, "the data");
    if (d) d->sequence = sequence, d->tokenizer = t;
    r = d ? dt__data_fill(d, &names, path, validation_fraction) : DT_E_MEMORY;
    globfree(&names);
    if (r) dt_data_close(&d);
    if (d) d->tokenizer = NULL;
    *handle = d;
    return r;
}

DT_API void dt_data_close(dt_data **handle)
{
    dt_data *d = *handle;
    if (!d) return;
    for (int i = 0; i < d->shards; i++) {
        if (d->shard[i].map) munmap(d->shard[i].map, (size_t)d->shard[i].bytes);
        dt__free(d->shard[i].encoded);
    }
    dt__free(d->shard);
    dt__free(d);
    *handle = NULL;
}

/* ---- reading ------------------------------------------------------------------------------ */

DT_API int64_t dt_data_tokens(const dt_data *d, dt_split split) { return d->tokens[split]; }

DT_API int64_t dt_data_samples(const dt_data *d, dt_split split)
{
    return d->tokens[split] > 0 ? (d->tokens[split] - 1) / d->sequence : 0;
}

/* The largest token and 1; reads all of them. */
static int64_t dt__data_ids(const dt_data *d)
{
    int64_t largest = dt__max(d->vocabulary, 1) - 1;
    for (int i = 0; i < d->shards; i++) {
        const unsigned char *byte = d->shard[i].data;
        const uint16_t *id = (const uint16_t *)(const void *)byte;
        for (int64_t j = 0; !d->shard[i].encoded && j < d->shard[i].tokens; j++) {
            int token = d->width == 1 ? byte[j] : id[j];
            if (token > largest) largest = token;
        }
    }
    return largest + 1;
}
DT_API int64_t dt_data_vocabulary(const dt_data *d) { return d->width == 1 ? 256 : dt__data_ids(d); }

/* Tokens [at, at + n) of all, across the ends of shards. */
static void dt__data_read(const dt_data *d, int64_t at, int64_t n, int32_t *out)
{
    int low = 0, high = d->shards - 1;
    while (low < high) { /* the last shard that begins at or before `at` */
        int middle = (low + high + 1) / 2;
        if (d->shard[middle].first <= at) low = middle;
        else high = middle - 1;
    }
    for (const dt__shard *s = &d->shard[low]; n > 0; s++) {
        int64_t skip = at - s->first, run = dt__min(n, s->tokens - skip);
        const unsigned char *byte = s->data + skip * s->width;
        const uint16_t *id = (const uint16_t *)(const void *)byte;
        if (s->width == 4) memcpy(out, byte, sizeof *out * (size_t)run);
        else if (s->width == 1) for (int64_t i = 0; i < run; i++) out[i] = byte[i];
        else for (int64_t i = 0; i < run; i++) out[i] = id[i];
        out += run;
        at += run;
        n -= run;
    }
}

DT_API dt_result dt_data_fetch(const dt_data *d, dt_split split, int64_t sample, int32_t *tokens, int32_t *targets)
{
    int64_t n = d->sequence, at, samples = dt_data_samples(d, split);
    if (sample < 0 || sample >= samples)
        return dt__error(DT_E_USAGE, "there is no %s sample %lld: there are %lld, counted from 0",
                         split == DT_TRAIN ? "training" : "validation", (long long)sample, (long long)samples);
    at = d->first[split] + sample * n;
    dt__data_read(d, at, n, tokens);
    memcpy(targets, tokens + 1, (size_t)(n - 1) * sizeof *targets);
    dt__data_read(d, at + n, 1, targets + n - 1);
    return DT_OK;
}

/* ---- order -------------------------------------------------------------------------------- */

enum { DT__FEISTEL_ROUNDS = 6 };

/* Where place i of 0..n-1 goes in the permutation of (seed, epoch). A Feistel network permutes the numbers of 2 * half
 * bits, whatever its round function is; a result of n or more is sent through again until it falls below n, which
 * leaves a permutation of 0..n-1. There are at most 4n such numbers, so it takes 4 passes or fewer on average. */
static int64_t dt__permute(int64_t n, int64_t i, uint64_t seed, int64_t epoch)
{
    uint64_t x = (uint64_t)i;
    uint32_t mask, low = (uint32_t)epoch, high = (uint32_t)((uint64_t)epoch >> 32);
    int half = 1;
    while (half < 31 && ((int64_t)1 << (2 * half)) < n) half++;
    mask = ((uint32_t)1 << half) - 1;
    do {
        uint32_t left = (uint32_t)(x >> half), right = (uint32_t)x & mask;
        for (uint32_t round = 0; round < DT__FEISTEL_ROUNDS; round++) {
            dt__rng rng = dt__rng_make(seed, DT__RNG_SHUFFLE, low, high, round);
            uint32_t mixed = left ^ (dt__rng_word(&rng, right) & mask);
            left = right;
            right = mixed;
        }
        x = (uint64_t)left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* Of n samples, the one at a place of an endless run. */
static int64_t dt__sample_at(int64_t n, uint64_t seed, int64_t global_index)
{
    return dt__permute(n, global_index % n, seed, global_index / n);
}
DT_API int64_t dt_data_sample(const dt_data *d, uint64_t seed, int64_t global_index)
{
    return dt__sample_at(dt_data_samples(d, DT_TRAIN), seed, global_index);
}

/* ---- a feed: files or a source of the program's own, and what its ids must be below ------------- */

typedef struct dt__feed {
    dt_source is;
    int own;        /* the program's: not trusted */
    int64_t ids[2]; /* of inputs and targets; INT64_MAX: no ids */
} dt__feed;

static dt_result dt__file_fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    return dt_data_fetch((const dt_data *)user, split, sample, (int32_t *)input, (int32_t *)target);
}

/* Files as a source: tokens, and the same shifted by one. */
static void dt__feed_files(dt__feed *f, dt_data *d)
{
    memset(f, 0, sizeof *f);
    f->is.user = d;
    f->is.samples[DT_TRAIN] = dt_data_samples(d, DT_TRAIN);
    f->is.samples[DT_VALIDATION] = dt_data_samples(d, DT_VALIDATION);
    f->is.inputs = f->is.targets = d->sequence;
    f->is.input_type = f->is.target_type = DT_I32;
    f->is.fetch = dt__file_fetch;
}

static const char *dt__split_name(dt_split split) { return split == DT_TRAIN ? "training" : "validation"; }

/* Are the inputs (part 0) or targets (1) of a sample such as the model can read? `whose` begins the sentence. */
static dt_result dt__feed_check(const dt__feed *f, int part, const void *values, const char *whose, int64_t sample)
{
    int64_t n = part ? f->is.targets : f->is.inputs, below = f->ids[part], i = 0;
    const int32_t *id = (const int32_t *)values;
    const float *number = (const float *)values;
    const char *what = part ? "target" : "input";
    if ((part ? f->is.target_type : f->is.input_type) == DT_F32) {
        while (i < n && number[i] - number[i] == 0.0f) i++;
        if (i == n) return DT_OK;
        return dt__error(DT_E_DATA, "%s sample %lld: %s %lld is %g: write finite numbers, and all of them", whose,
                         (long long)sample, what, (long long)i, (double)number[i]);
    }
    while (i < n && id[i] < below && (id[i] >= 0 || part || below == INT64_MAX)) i++;
    if (i == n) return DT_OK;
    return dt__error(DT_E_DATA, "%s sample %lld: %s %lld is %d, but the model has %lld %s: mend the data or make the "
                     "model larger", whose, (long long)sample, what, (long long)i, (int)id[i], (long long)below,
                     part ? "classes" : "rows to look it up in");
}

/* Writes a sample, like dt_source.fetch; with the library's rounding mode, whichever thread asks (R15). */
static dt_result dt__feed_fetch(const dt__feed *f, dt_split split, int64_t sample, void *input, void *target)
{
    char why[sizeof dt__thread.error] = "fetch returned an error";
    dt_result r, before = dt__thread.code;
    unsigned saved;
    if (!f->own) return f->is.fetch(f->is.user, split, sample, input, target);
    memset(input, 0xff, 4 * (size_t)f->is.inputs); /* NaN and -1: what is not written does not go unseen */
    memset(target, 0xff, 4 * (size_t)f->is.targets);
    saved = dt__fp_enter();
    dt__thread.code = DT_OK;
    r = f->is.fetch(f->is.user, split, sample, input, target);
    dt__fp_leave(saved);
    if (r) {
        if (dt__thread.code) memcpy(why, dt__thread.error, sizeof why);
        return dt__error(r, "%s sample %lld: %.400s (%s)", dt__split_name(split), (long long)sample, why,
                         dt_result_name(r));
    }
    dt__thread.code = before;
    r = dt__feed_check(f, 0, input, dt__split_name(split), sample);
    return r ? r : dt__feed_check(f, 1, target, dt__split_name(split), sample);
}

/* ---- prefetch ------------------------------------------------------------------------------
 * A loader prepares the batches of steps first, first + 1, ... on its own thread, in a ring of slots: one is with the
 * caller, the others are filled ahead. What is in a batch depends on the step alone, never on which thread was faster.
 * One thread at a time may use a loader. */

enum { DT__LOADER_MAX_SLOTS = 4 };

/* The sample for row `row` of step `step`. Called on the loader's thread, also for steps that are never asked for. */
typedef int64_t (*dt__sample_fn)(const void *context, int64_t step, int64_t row);

typedef struct dt__batch {
    int64_t step;
    uint32_t *input, *target; /* (rows,inputs), (rows,targets) words: int32 or floats */
} dt__batch;

typedef struct dt__loader {
    const dt__feed *feed;
    dt_split split;
    dt__sample_fn sample;
    const void *context;
    int64_t rows, first;
    int slots;
    dt__batch slot[DT__LOADER_MAX_SLOTS];
    uint32_t *memory;
    int64_t filled, taken; /* batches prepared; batches handed out, of which the last is still in use */
    double waited;         /* seconds that the caller waited for data */
    dt_result result;      /* of the first batch that could not be prepared; no more are */
    char error[sizeof dt__thread.error];
#ifndef DT_NO_THREADS
    pthread_t thread;
    pthread_mutex_t lock; /* guards filled, taken, result, quit */
    pthread_cond_t change;
    int running, quit;
#endif
} dt__loader;

/* Prepares batch number n, counted from the first. Its slot belongs to the caller. */
static dt_result dt__loader_fill(dt__loader *l, int64_t n)
{
    dt__batch *b = &l->slot[n % l->slots];
    const dt_source *s = &l->feed->is;
    b->step = l->first + n;
    for (int64_t row = 0; row < l->rows; row++) {
        int64_t sample = l->sample(l->context, b->step, row);
        dt_result r =
            dt__feed_fetch(l->feed, l->split, sample, b->input + row * s->inputs, b->target + row * s->targets);
        if (r) return r;
    }
    return DT_OK;
}

/* Records how batch `filled` went. The sentence has to reach the thread that asks. */
static void dt__loader_filled(dt__loader *l, dt_result r)
{
    if (!r) l->filled++;
    else if (!l->result) {
        l->result = r;
        memcpy(l->error, dt__thread.error, sizeof l->error);
    }
}

#ifndef DT_NO_THREADS
static void *dt__loader_main(void *argument)
{
    dt__loader *l = (dt__loader *)argument;
    pthread_mutex_lock(&l->lock);
    while (!l->quit && !l->result) {
        int64_t in_use = l->taken ? 1 : 0;
        dt_result r;
        if (l->filled - l->taken + in_use >= l->slots) {
            pthread_cond_wait(&l->change, &l->lock);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        r = dt__loader_fill(l, l->filled); /* only this thread writes `filled` */
        pthread_mutex_lock(&l->lock);
        dt__loader_filled(l, r);
        pthread_cond_broadcast(&l->change);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}
#endif

static void dt__loader_close(dt__loader **handle)
{
    dt__loader *l = *handle;
    if (!l) return;
#ifndef DT_NO_THREADS
    if (l->running) {
        pthread_mutex_lock(&l->lock);
        l->quit = 1;
        pthread_cond_broadcast(&l->change);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    if (l->memory) { /* then dt__loader_start() made them */
        pthread_mutex_destroy(&l->lock);
        pthread_cond_destroy(&l->change);
    }
#endif
    dt__free(l->memory);
    dt__free(l);
    *handle = NULL;
}

static dt_result dt__loader_start(dt__loader *l)
{
#ifndef DT_NO_THREADS
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->change, NULL);
    l->running = !pthread_create(&l->thread, NULL, dt__loader_main, l);
    if (!l->running)
        return dt__error(DT_E_SYSTEM, "cannot start the thread that reads data: raise the limit of ulimit -u");
#else
    (void)l;
#endif
    return DT_OK;
}

/* Batches of `rows` samples of one split from step `first` on. `slots`: 2 to 4. `feed` and `context` outlive it. */
static dt_result dt__loader_open(dt__loader **handle, const dt__feed *feed, dt_split split, int64_t rows,
                                 int64_t first, int slots, dt__sample_fn sample, const void *context)
{
    dt__loader *l = (dt__loader *)dt__alloc((int64_t)sizeof *l, "the data loader");
    int64_t words = rows * (feed->is.inputs + feed->is.targets);
    dt_result r = DT_E_MEMORY;
    *handle = NULL;
    if (!l) return r;
    l->feed = feed;
    l->split = split;
    l->sample = sample;
    l->context = context;
    l->rows = rows;
    l->first = first;
    l->slots = (int)dt__max(2, dt__min(slots, DT__LOADER_MAX_SLOTS));
    l->memory = (uint32_t *)dt__alloc(l->slots * words * (int64_t)sizeof *l->memory, "batches of samples");
    for (int i = 0; i < l->slots && l->memory; i++) {
        l->slot[i].input = l->memory + i * words;
        l->slot[i].target = l->slot[i].input + rows * feed->is.inputs;
    }
    if (l->memory) r = dt__loader_start(l);
    if (r) dt__loader_close(&l);
    *handle = l;
    return r;
}

/* Waits a moment for the batch of the next step; 1 when there is no need to wait any more. For a caller that has other
 * things to do every 50 ms; when the system's clock is set, such a moment may be longer. */
static int dt__loader_ready(dt__loader *l)
{
#ifndef DT_NO_THREADS
    double start = dt__now();
    int ready;
    pthread_mutex_lock(&l->lock);
    ready = l->filled > l->taken || l->result;
    if (!ready) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += (until.tv_nsec + 50000000) / 1000000000;
        until.tv_nsec = (until.tv_nsec + 50000000) % 1000000000;
        pthread_cond_timedwait(&l->change, &l->lock, &until);
    }
    pthread_mutex_unlock(&l->lock);
    l->waited += dt__now() - start;
    return ready;
#else
    (void)l;
    return 1;
#endif
}

/* The batch of the next step, valid until the next call or the close. Waits for it if need be. */
static dt_result dt__loader_next(dt__loader *l, dt__batch *batch)
{
    double start = dt__now();
    int64_t n;
    dt_result r;
#ifndef DT_NO_THREADS
    pthread_mutex_lock(&l->lock);
    n = l->taken++; /* gives the previous batch back */
    pthread_cond_broadcast(&l->change);
    while (l->filled <= n && !l->result) pthread_cond_wait(&l->change, &l->lock);
    r = l->filled > n ? DT_OK : l->result;
    pthread_mutex_unlock(&l->lock);
#else
    n = l->taken++;
    if (!l->result) dt__loader_filled(l, dt__loader_fill(l, n));
    r = l->result;
#endif
    l->waited += dt__now() - start;
    if (r) return dt__error(r, "%s", l->error);
    *batch = l->slot[n % l->slots];
    return DT_OK;
}

/* ---- a text for machines that have none ---------------------------------------------------- */

/* A grammar without recursion. $x stands for one of the alternatives of x, all equally likely; $t is the person that
 * the paragraph is about, so that a reader who remembers the beginning guesses better. */
typedef struct dt__prose_rule {
    char symbol;
    const char *alternatives;
} dt__prose_rule;

static const dt__prose_rule dt__prose_rules[] = {
    { 's', "$t $v the $a $o $w.|$t $v the $o, and $n $v the $o too.|in the $m, $t $k $w.|the $o $w was $a and $a.|"
           "\"where is the $o?\" asked $n, but $t $k $w.|$n and $t $k $w until the $m.|"
           "when the $j came, $t $k $w and $v the $o.|nobody $v the $o, but $t still had the $a $o.|"
           "$t told the $j about the $o $w.|the $m was $a, and the $j $k $w." },
    { 'n', "Anna|Bruno|Clara|David|Edith|Felix|Greta|Henry|Irene|Jonas|Klara|Leo|Maria|Nina|Oscar|Paula" },
    { 'j', "baker|sailor|teacher|farmer|doctor|miller|painter|gardener|fisherman|clockmaker|"
           "old neighbour|young captain" },
    { 'v', "found|lost|carried|mended|painted|sold|hid|forgot|borrowed|cleaned|bought|dropped|kept|saw" },
    { 'k', "waited|slept|sang|walked|worked|rested|laughed|played|listened|stood" },
    { 'o', "lamp|boat|basket|letter|clock|violin|kettle|ladder|map|blanket|bell|chair|coat|key|book|wheel" },
    { 'a', "old|small|heavy|red|broken|quiet|bright|cold|wooden|strange|clean|empty|blue|warm" },
    { 'w', "$i the $b|$i the $a $b|$i the $b $i the $b" },
    { 'i', "behind|near|under|above|beside|in front of|across from" },
    { 'b', "house|bridge|river|mill|harbour|garden|market|school|forest|tower|road|station|church|hill" },
    { 'm', "morning|evening|winter|spring|summer|autumn|night|afternoon" },
};

typedef struct dt__prose {
    dt__rng rng;
    uint64_t draws;
    uint32_t topic;  /* the person of the paragraph */
    char text[1024]; /* the sentence; the longest one has under 300 bytes */
    size_t length;
} dt__prose;

static uint32_t dt__prose_draw(dt__prose *p) { return dt__rng_word(&p->rng, p->draws++); }

/* Alternative number `draw`, modulo their count, of a list with | between. */
static const char *dt__prose_pick(const char *list, uint32_t draw)
{
    uint32_t count = 1;
    for (const char *c = list; *c; c++) count += *c == '|';
    for (draw %= count; draw; draw--) list = strchr(list, '|') + 1;
    return list;
}

/* Appends one alternative of the symbol, with the symbols in it replaced. */
static void dt__prose_expand(dt__prose *p, char symbol)
{
    const dt__prose_rule *rule = dt__prose_rules;
    const char *c;
    while (rule->symbol != (symbol == 't' ? 'n' : symbol)) rule++;
    for (c = dt__prose_pick(rule->alternatives, symbol == 't' ? p->topic : dt__prose_draw(p)); *c && *c != '|'; c++) {
        if (*c == '$') dt__prose_expand(p, *++c);
        else p->text[p->length++] = *c;
    }
}

/* The next sentence, with the space or the paragraph's end behind it. */
static void dt__prose_sentence(dt__prose *p)
{
    char *first = p->text;
    p->length = 0;
    dt__prose_expand(p, 's');
    if (*first == '"') first++;
    if (*first >= 'a' && *first <= 'z') *first = (char)(*first - 'a' + 'A');
    if (dt__prose_draw(p) % 6) {
        p->text[p->length++] = ' ';
        return;
    }
    p->text[p->length++] = '\n';
    p->text[p->length++] = '\n';
    p->topic = dt__prose_draw(p);
}

/* Writes exactly `bytes` bytes, the last one a newline. Errors stay with the file. */
static void dt__prose_write(FILE *file, int64_t bytes, uint64_t seed)
{
    dt__prose p;
    memset(&p, 0, sizeof p);
    p.rng = dt__rng_make(seed, DT__RNG_TEXT, 0, 0, 0);
    p.topic = dt__prose_draw(&p);
    for (int64_t left = bytes - 1; left > 0; left -= (int64_t)p.length) {
        dt__prose_sentence(&p);
        if ((int64_t)p.length > left) p.length = (size_t)left;
        if (fwrite(p.text, 1, p.length, file) != p.length) return;
    }
    fputc('\n', file);
}

DT_API dt_result dt_data_generate(const char *path, int64_t bytes, uint64_t seed)
{
    dt__draft draft;
    dt_result r;
    if (bytes < 1) return dt__error(DT_E_USAGE, "a text of %lld bytes: ask for 1 or more", (long long)bytes);
    r = dt__draft_open(&draft, path);
    if (r) return r;
    dt__prose_write(draft.file, bytes, seed);
    r = dt__draft_end(&draft, path);
    return r ? r : dt__draft_publish(&draft, path);
}

/* ---- token files ------------------------------------------------------------------------------ */

typedef struct dt__shard_writer {
    const char *output;
    int64_t limit;  /* ids per file; 0: one file */
    int64_t tokens; /* in the file that is open */
    int64_t total;
    dt__draft *draft; /* of every file, ended but for an open last one */
    int64_t drafts, room;
} dt__shard_writer;

/* The name of file `index`. */
static dt_result dt__shard_name(const dt__shard_writer *w, int64_t index, char name[PATH_MAX])
{
    size_t stem = strlen(w->output);
    int length;
    if (stem >= 4 && !strcmp(w->output + stem - 4, ".bin")) stem -= 4;
    length = w->limit ? snprintf(name, PATH_MAX, "%.*s_%06lld.bin", (int)stem, w->output, (long long)index)
                      : snprintf(name, PATH_MAX, "%s", w->output);
    if (length < PATH_MAX) return DT_OK;
    return dt__error(DT_E_FILE, "the file name %.60s... is too long: use a shorter one", w->output);
}

/* Begins the next file, with a header that is right when it ends. */
static dt_result dt__shard_begin(dt__shard_writer *w)
{
    static const char header[DT__BIN_HEADER] = {0};
    char name[PATH_MAX];
    dt_result r = dt__shard_name(w, w->drafts, name);
    if (r) return r;
    if (!dt__reserve((void **)&w->draft, w->drafts, &w->room, w->drafts + 1, (int64_t)sizeof *w->draft, "token files"))
        return DT_E_MEMORY;
    r = dt__draft_open(&w->draft[w->drafts], name);
    if (r) return r;
    fwrite(header, 1, sizeof header, w->draft[w->drafts++].file);
    w->tokens = 0;
    return DT_OK;
}

static dt_result dt__shard_end(dt__shard_writer *w)
{
    dt__draft *d = w->drafts ? &w->draft[w->drafts - 1] : NULL;
    char name[PATH_MAX];
    int32_t header[3];
    dt_result r;
    if (!d || !d->file) return DT_OK;
    r = dt__shard_name(w, w->drafts - 1, name);
    if (r) return r;
    header[0] = DT__BIN_MAGIC;
    header[1] = DT__BIN_VERSION;
    header[2] = (int32_t)w->tokens;
    if (!fseek(d->file, 0, SEEK_SET)) fwrite(header, 1, sizeof header, d->file);
    r = dt__draft_end(d, name);
    if (r) w->drafts--;
    return r;
}

/* Writes ids, into as many files as they need. */
static dt_result dt__shard_write(void *context, const int32_t *ids, int64_t count)
{
    dt__shard_writer *w = (dt__shard_writer *)context;
    int64_t limit = w->limit ? w->limit : INT32_MAX;
    uint16_t narrow[DT__FLUSH];
    dt_result r = DT_OK;
    while (count && !r) {
        int64_t run = dt__min(count, DT__FLUSH);
        if (!w->drafts || w->tokens == limit) {
            if (w->drafts && !w->limit)
                return dt__error(DT_E_DATA,
                                 "%s gets more than %d tokens, which its header cannot count: give a number "
                                 "of tokens per shard",
                                 w->output, INT32_MAX);
            r = dt__shard_end(w);
            if (!r) r = dt__shard_begin(w);
            continue;
        }
        run = dt__min(run, limit - w->tokens);
        for (int64_t i = 0; i < run; i++) narrow[i] = (uint16_t)ids[i];
        if ((int64_t)fwrite(narrow, sizeof *narrow, (size_t)run, w->draft[w->drafts - 1].file) != run) {
            char name[PATH_MAX];
            r = dt__shard_name(w, w->drafts - 1, name);
            return r ? r : dt__draft_end(&w->draft[--w->drafts], name); /* says why */
        }
        w->tokens += run;
        w->total += run;
        ids += run;
        count -= run;
    }
    return r;
}

/* Encodes one text. */
static dt_result dt__shard_file(dt__shard_writer *w, const dt_tokenizer *t, const char *path, int special)
{
    int32_t ids[DT__FLUSH];
    dt__encoder e;
    void *map;
    int64_t bytes = 0;
    dt_result r = dt__file_map(path, &map, &bytes);
    if (!r && !bytes) r = dt__error(DT_E_DATA, "%s is empty: give a file with text", path);
    memset(&e, 0, sizeof e);
    e.ids = ids;
    e.room = DT__FLUSH;
    e.flush = dt__shard_write;
    e.context = w;
    if (!r) r = dt__encode(&e, t, map, bytes, special);
    if (map) munmap(map, (size_t)bytes);
    return r;
}

DT_API dt_result dt_data_tokenize(const char *path, const dt_tokenizer *t, const char *output, int64_t shard_tokens,
                                  int special, int64_t *tokens)
{
    dt__shard_writer w;
    glob_t names;
    char name[PATH_MAX];
    int64_t published = 0;
    dt_result r;
    memset(&w, 0, sizeof w);
    w.output = output;
    w.limit = shard_tokens;
    if (tokens) *tokens = 0;
    if (shard_tokens < 0 || shard_tokens > INT32_MAX)
        return dt__error(DT_E_USAGE, "shards of %lld tokens: use 1 to %d, or 0 for one file", (long long)shard_tokens,
                         INT32_MAX);
    if (dt_tokenizer_size(t) > 65536)
        return dt__error(DT_E_DATA,
                         "the vocabulary has %lld ids, and a .bin file holds ids up to 65535: give the text "
                         "and the tokenizer to dt_data_open_tokenized()",
                         (long long)dt_tokenizer_size(t));
    r = dt__names_list(&names, path);
    if (r) return r;
    for (size_t i = 0; i < names.gl_pathc && !r; i++) r = dt__shard_file(&w, t, names.gl_pathv[i], special);
    globfree(&names);
    if (!r) r = dt__shard_end(&w);
    for (; published < w.drafts && !r; published++) {
        r = dt__shard_name(&w, published, name);
        if (!r) r = dt__draft_publish(&w.draft[published], name);
    }
    for (int64_t i = published; i < w.drafts; i++) dt__draft_drop(&w.draft[i]);
    dt__free(w.draft);
    if (tokens && !r) *tokens = w.total;
    return r;
}

/* ============================================================================================
 * H12  probes: counters, events, rules
 * ========================================================================================= */

/* Best GEMM rate of this rank in GFLOP/s on a 384^3 product: what a share of peak refers to. */
static dt_result dt__gemm_rate(const dt__kernels *k, dt_pool *pool, double *gflops)
{
    enum { SIDE = 384 };
    float *x = (float *)dt__alloc(3 * 4 * SIDE * SIDE, "the speed test");
    dt__gemm g;
    double best = 1e9;
    if (!x) return DT_E_MEMORY;
    memset(&g, 0, sizeof g);
    g.m = g.n = g.k = SIDE;
    g.a = x, g.b = x + SIDE * SIDE, g.c = x + 2 * SIDE * SIDE;
    g.ars = g.brs = g.ldc = SIDE;
    g.acs = g.bcs = 1;
    for (int i = 0; i < 8; i++) {
        double start = dt__now();
        k->gemm(pool, &g);
        if (dt__now() - start < best) best = dt__now() - start;
    }
    dt__free(x);
    *gflops = 2e-9 * (double)SIDE * (double)SIDE * (double)SIDE / best;
    return DT_OK;
}

/* A JSON-lines file of numbers: dt__metrics_begin, dt__metrics_number .., dt__metrics_end per line. Not-a-number is
 * written as null. The first error is kept and returned by dt__metrics_end. */
typedef struct dt__metrics {
    FILE *file;
    const char *path;
    const char *comma;
    int error; /* errno of the first failure */
} dt__metrics;

static dt_result dt__metrics_error(const dt__metrics *m)
{
    return dt__error(DT_E_FILE, "cannot write metrics to %s: %s", m->path, strerror(m->error));
}
static dt_result dt__metrics_open(dt__metrics *m, const char *path)
{
    memset(m, 0, sizeof *m);
    m->path = path;
    m->file = fopen(path, "w");
    if (m->file) return DT_OK;
    m->error = errno;
    return dt__metrics_error(m);
}
static void dt__metrics_begin(dt__metrics *m)
{
    m->comma = "{";
}
static void dt__metrics_number(dt__metrics *m, const char *name, double value)
{
    int bad = value - value == 0.0 ? fprintf(m->file, "%s\"%s\":%.9g", m->comma, name, value) < 0
                                   : fprintf(m->file, "%s\"%s\":null", m->comma, name) < 0;
    if (bad && !m->error) m->error = errno;
    m->comma = ",";
}
static dt_result dt__metrics_end(dt__metrics *m)
{
    int bad = fputs("}\n", m->file) < 0 || fflush(m->file);
    if (bad && !m->error) m->error = errno;
    return m->error ? dt__metrics_error(m) : DT_OK;
}
static void dt__metrics_close(dt__metrics *m)
{
    if (m->file) fclose(m->file);
    m->file = NULL;
}

/* ============================================================================================
 * H13  transports and collectives
 * ============================================================================================
 * The local transport. Ranks are processes that map one memfd, or threads of one process; the code is the same.
 *
 *   job   one per launch: a lane per rank (signs of life, how it ended), the first fault, the stop request
 *   area  one per communicator: a slot per rank (arrival counter, published calls), a channel per pair of ranks,
 *         a stage per rank (buffers through which private memory travels)
 *   region dt_comm_alloc memory: (size, bytes), mapped by all
 *
 * Everything is built on two moves. A *step*: publish, raise the own counter, wait until all counters are there.
 * A *parcel*: one sender tells one receiver where data lies, the receiver copies and says so. What a rank publishes or
 * stages for step s lies in half s & 1 and is written again at s + 2 at the earliest, when all have passed s + 1 and so
 * have read it: a collective on small data needs one step, one on symmetric memory two.
 * Counters are 32 bits and wrap: they are compared by difference. */

enum { DT__RANKS_MAX = 1024, DT__EAGER = 2048, DT__TREE_DEPTH = 20, DT__PARCELS = 4 };
#define DT__JOB_MAGIC 0x64745231u
#define DT__GONE 0x40000000u /* in dt__lane.gone, beside the wait status */

#define DT__CALLS(X)                                                                                         \
    X(DT__CALL_OPEN, "opening") X(DT__CALL_BARRIER, "barrier") X(DT__CALL_BROADCAST, "broadcast")            \
    X(DT__CALL_ALL_REDUCE, "all-reduce") X(DT__CALL_REDUCE_SCATTER, "reduce-scatter")                        \
    X(DT__CALL_ALL_GATHER, "all-gather") X(DT__CALL_ALL_TO_ALL, "all-to-all")                                \
    X(DT__CALL_REDUCE_PARTS, "reduce-parts") X(DT__CALL_ALLOC, "allocation") X(DT__CALL_SPLIT, "split")      \
    X(DT__CALL_SEND, "send") X(DT__CALL_RECV, "receive")
#define DT__CALL_ENUM(code, name) code,
#define DT__CALL_NAME(code, name) case code: return name;
enum { DT__CALLS(DT__CALL_ENUM) DT__CALL_COUNT };

static const char *dt__call_name(int op)
{
    switch (op) { DT__CALLS(DT__CALL_NAME) default: return "call"; }
}

/* A counter that others wait for. */
typedef struct dt__event {
    uint32_t value, sleepers;
} dt__event;

/* Faults of a job or of one communicator: (kind << 16 | rank in the job), 0 when fine; the first one stays. */
enum { DT__FAULT_DIED = 1, DT__FAULT_FROZEN, DT__FAULT_DEADLOCK, DT__FAULT_LEFT, DT__FAULT_LENGTH };

/* What a thread of a rank does: line 0 is the rank's own thread, line 1 the one that communicates for it (H15). */
enum { DT__LINES = 2, DT__OTHER_LINE = -1 };
typedef struct dt__line {
    int32_t waiting; /* 1 + the rank whose thread of this line it waits for; DT__OTHER_LINE; 0 when it works */
    uint32_t stamp;  /* milliseconds, renewed while it waits for a rank */
} dt__line;

/* One rank of the job. Written by that rank, `gone` and `pid` by the supervisor. */
typedef struct dt__lane {
    uint32_t tick;    /* signs of life */
    uint32_t gone;    /* 0, or DT__GONE | status as waitpid tells it */
    int32_t pid;
    uint32_t opened;  /* communicators opened by dt_comm_init */
    dt__line line[DT__LINES];
    char pad[96];
} dt__lane;

typedef struct dt__job {
    uint32_t magic;
    int32_t size, threads, timeout_ms;
    uint32_t fault;
    int32_t stop;     /* 1: requested, 2: waits end with DT_E_STOPPED */
    int32_t grace_ms; /* how long the job may go on after a request (dt__comm_stop_grace) */
    uint32_t told;    /* a rank has said what failed (dt_fail) */
    int64_t end;      /* file offset of the next region */
    int64_t where;    /* the area of the communicator being opened, -1 when there was no memory */
    dt__event opened; /* raised by rank 0 when `where` is valid */
    char pad2[72];
} dt__job;            /* dt__lane lanes[size] follow */

typedef struct dt__published {
    int64_t sequence, count;
    int64_t where, detail; /* address of the data for peers or -1; op's own */
    int32_t op, extra;     /* DT__CALL_*; dt_op or root */
} dt__published;

typedef struct dt__seat {
    dt__event arrived;
    uint32_t left; /* dt_comm_free */
    uint32_t out;  /* this rank's calls fail now */
    char pad[48];
    dt__published call[2];
    char pad2[48];
} dt__seat;

typedef struct dt__parcel {
    int64_t where, count, total;
} dt__parcel;

typedef struct dt__channel { /* from one rank to one rank */
    dt__event posted, taken;
    dt__parcel parcel[DT__PARCELS];
    char pad[16];
} dt__channel;

typedef struct dt__area {
    uint32_t fault, outs; /* outs: ranks whose slot says out */
    int32_t inside;       /* ranks that have not left: the last one returns the memory */
    char pad[116];
} dt__area; /* dt__seat slots[size], dt__channel channels[size][size] (from, to), float stage[size][6][chunk] follow */

typedef struct dt__region {
    struct dt__region *next;
    char *base;
    int64_t where;  /* how peers name base: file offset, or the address itself when ranks are threads */
    int64_t bytes;  /* mapped */
    int64_t stride; /* bytes of one rank */
} dt__region;

/* What a thread that is a rank knows about itself (dt__thread.rank). */
struct dt__local_rank {
    dt__job *job;
    int rank;
};

struct dt_comm {
    int rank, size;
    int line;           /* of the thread that uses it */
    int fd;             /* the job's memfd, -1 for threads */
    int spins;          /* polls before sleeping */
    dt__job *job;       /* NULL when this rank is alone */
    dt_comm *parent;    /* communicator that this one was split from */
    int *up;            /* (size) rank in parent */
    int *lane;          /* (size) rank in the job */
    float **view;       /* (size) the peers' data of the current call */
    const float **from; /* (size) scratch of one reduction */
    int64_t *sent;      /* (size) bytes of this rank's data that reached each peer */
    int64_t collectives;
    double waited;      /* seconds */
    double rate, met;   /* of an emulated link, bytes per second, 0: none; when the collective began to send */
    int64_t owed;       /* the bytes that it sends */
    dt__area *area;
    dt__region *regions; /* newest first; the area is the last */
    int64_t chunk;      /* floats in one stage buffer */
    uint32_t step;
    uint32_t shared_step; /* thread ranks: the step since which peers may read this rank's private memory */
    int sharing;
    dt__published call;
    dt_result failed;
    char message[512];
};

static dt__lane *dt__job_lane(dt__job *job, int rank) { return (dt__lane *)(void *)(job + 1) + rank; }
static dt__seat *dt__comm_slot(const dt_comm *c, int rank) { return (dt__seat *)(void *)(c->area + 1) + rank; }
static dt__lane *dt__comm_lane(const dt_comm *c, int rank) { return dt__job_lane(c->job, c->lane[rank]); }
static dt__channel *dt__comm_channel(const dt_comm *c, int from, int to)
{
    return (dt__channel *)(void *)dt__comm_slot(c, c->size) + (int64_t)from * c->size + to;
}
/* Buffers 0, 1: a step's input; 2, 3: its result; 4, 5: parcels. */
static float *dt__comm_stage(const dt_comm *c, int rank, uint32_t buffer)
{
    return (float *)(void *)dt__comm_channel(c, c->size, 0) + (6 * (int64_t)rank + buffer) * c->chunk;
}

/* Regions begin at whole pages of the shared file; pages are 4 to 64 kB, depending on the processor and the kernel. */
static int64_t dt__pages(int64_t bytes) { return dt__round_up(bytes, (int64_t)sysconf(_SC_PAGESIZE)); }

static int64_t dt__job_bytes(int size)
{
    return dt__pages((int64_t)sizeof(dt__job) + (int64_t)size * (int64_t)sizeof(dt__lane));
}
static int64_t dt__chunk_floats(int size) { return size <= 16 ? 32768 : 4096; }
static int64_t dt__area_bytes(int size)
{
    int64_t n = size;
    return dt__pages((int64_t)sizeof(dt__area) + n * (int64_t)sizeof(dt__seat) + n * n * (int64_t)sizeof(dt__channel) +
                     n * 6 * dt__chunk_floats(size) * (int64_t)sizeof(float));
}

/* ---- signs of life ---- */

/* Compute code calls this often, so that a long stretch of work does not look like a frozen rank. */
static void dt__comm_tick(dt_comm *c)
{
    uint32_t *tick;
    if (!c->job) return;
    tick = &dt__comm_lane(c, c->rank)->tick;
    __atomic_fetch_add(tick, 1u, __ATOMIC_RELAXED);
}

/* Whether Ctrl-C or SIGTERM was seen. Ranks see it at different moments: agree by a collective before acting. */
static int dt__comm_stop_requested(const dt_comm *c) 
{
    return c->job && __atomic_load_n(&c->job->stop, __ATOMIC_RELAXED);
}

/* Lets collectives go on for `seconds` after a stop request, so that a step can end and be saved. */
static void dt__comm_stop_grace(dt_comm *c, double seconds)
{
    if (c->job) __atomic_store_n(&c->job->grace_ms, (int32_t)(seconds * 1e3), __ATOMIC_RELAXED);
}

static void dt__blame(uint32_t *fault, int kind, int rank)
{
    uint32_t none = 0, word = (uint32_t)kind << 16 | (uint32_t)rank;
    __atomic_compare_exchange_n(fault, &none, word, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void dt__format_end(char *text, size_t size, uint32_t gone)
{
    int status = (int)(gone & ~DT__GONE), sig = WTERMSIG(status);
    if (WIFSIGNALED(status)) snprintf(text, size, "was killed by signal %d (%s)", sig, strsignal(sig));
    else snprintf(text, size, "ended with status %d", WEXITSTATUS(status));
}

static void dt__format_fault(char *text, size_t size, dt__job *job, uint32_t fault)
{
    int rank = (int)(fault & 0xffffu);
    char end[128];
    switch (fault >> 16) {
    case DT__FAULT_DIED:
        dt__format_end(end, sizeof end, __atomic_load_n(&dt__job_lane(job, rank)->gone, __ATOMIC_ACQUIRE));
        snprintf(text, size, "rank %d %s", rank, end);
        break;
    case DT__FAULT_FROZEN:
        snprintf(text, size, "rank %d has not moved for %g s (frozen? if it works for so long, raise --timeout)", rank,
                 job->timeout_ms * 1e-3);
        break;
    case DT__FAULT_DEADLOCK:
        snprintf(text, size, "rank %d waits for a rank that waits for it (a send without its receive, or ranks that "
                 "call different communicators in different order)", rank);
        break;
    case DT__FAULT_LEFT: snprintf(text, size, "rank %d left (dt_comm_free, or the end of its program)", rank); break;
    default: snprintf(text, size, "rank %d got a message of another length than it asked for", rank); break;
    }
}

/* ---- failing ---- */

static void dt__nap(void)
{
    struct timespec t;
    t.tv_sec = 0;
    t.tv_nsec = 100000;
    nanosleep(&t, NULL);
}

/* Thread ranks read each other's private buffers. A failing rank must not give its buffer back to the caller while a
 * peer that arrived at the same step still reads it. A peer that arrives later sees `outs` and does not read. */
static void dt__comm_drain(dt_comm *c)
{
    double start = dt__now();
    for (int p = 0; p < c->size; p++) {
        dt__seat *slot = dt__comm_slot(c, p);
        while (p != c->rank && __atomic_load_n(&slot->arrived.value, __ATOMIC_SEQ_CST) == c->shared_step &&
               !__atomic_load_n(&slot->out, __ATOMIC_SEQ_CST) && !__atomic_load_n(&slot->left, __ATOMIC_SEQ_CST) &&
               (dt__now() - start) * 1e3 < c->job->timeout_ms)
            dt__nap();
    }
}

/* The communicator fails for good, here and (through `outs`) at every peer. The sentence is c->message. */
static dt_result dt__comm_fail(dt_comm *c, dt_result code)
{
    c->failed = code;
    if (c->area) {
        __atomic_store_n(&dt__comm_slot(c, c->rank)->out, 1u, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&c->area->outs, 1u, __ATOMIC_SEQ_CST);
        if (c->sharing) dt__comm_drain(c);
    }
    return dt__error(code, "%s", c->message);
}

/* The first fault. What a rank does because of a fault (leave, end) comes later and must not be blamed for it. */
static uint32_t dt__comm_fault(const dt_comm *c)
{
    uint32_t fault = c->area ? __atomic_load_n(&c->area->fault, __ATOMIC_SEQ_CST) : 0;
    return fault ? fault : __atomic_load_n(&c->job->fault, __ATOMIC_SEQ_CST);
}

static dt_result dt__comm_explain(dt_comm *c)
{
    uint32_t fault = dt__comm_fault(c);
    char text[300], call[64];
    snprintf(call, sizeof call, "%s #%lld", dt__call_name(c->call.op), (long long)c->call.sequence);
    if (!fault) {
        snprintf(c->message, sizeof c->message, "stopped on request in %s", call);
        return dt__comm_fail(c, DT_E_STOPPED);
    }
    dt__format_fault(text, sizeof text, c->job, fault);
    snprintf(c->message, sizeof c->message, "%s while this rank (%d) was in %s", text, c->lane[c->rank], call);
    return dt__comm_fail(c, DT_E_PEER);
}

/* The loads are acquire: a peer that arrived before the trouble began is then seen to have arrived (dt__give_up). */
static int dt__comm_troubled(const dt_comm *c)
{
    return __atomic_load_n(&c->job->fault, __ATOMIC_ACQUIRE) || __atomic_load_n(&c->job->stop, __ATOMIC_ACQUIRE) == 2 ||
           (c->area && (__atomic_load_n(&c->area->outs, __ATOMIC_SEQ_CST) ||
                        __atomic_load_n(&c->area->fault, __ATOMIC_ACQUIRE)));
}

/* ---- waiting ---- */

static int dt__event_reached(const dt__event *e, uint32_t target)
{
    return (int32_t)(__atomic_load_n(&e->value, __ATOMIC_ACQUIRE) - target) >= 0;
}

static void dt__event_raise(dt__event *e, uint32_t value)
{
    __atomic_store_n(&e->value, value, __ATOMIC_SEQ_CST);
#ifdef __linux__
    if (__atomic_load_n(&e->sleepers, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &e->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
#endif
}

/* Sleeps until the event is raised, at most 20 ms: a slice, after which the caller looks at its peers. */
static void dt__event_sleep(dt__event *e, uint32_t target)
{
#ifdef __linux__
    struct timespec slice;
    uint32_t seen;
    slice.tv_sec = 0;
    slice.tv_nsec = 20000000;
    __atomic_fetch_add(&e->sleepers, 1u, __ATOMIC_SEQ_CST);
    seen = __atomic_load_n(&e->value, __ATOMIC_SEQ_CST);
    if ((int32_t)(seen - target) < 0) syscall(SYS_futex, &e->value, FUTEX_WAIT, seen, &slice, NULL, 0);
    __atomic_fetch_sub(&e->sleepers, 1u, __ATOMIC_SEQ_CST);
#else
    (void)e, (void)target;
    dt__nap();
#endif
}

typedef struct dt__watch {
    int suspect;     /* 1 + rank in the job */
    uint32_t moved;  /* its signs of life when last seen to change */
    double silence, looked;
} dt__watch;

static uint32_t dt__clock_ms(void) { return (uint32_t)(int64_t)(dt__now() * 1e3); }

/* Follows "waits for" from a peer to the rank that holds all up, thread by thread: one that waits for a rank waits for
 * the thread there that makes the same calls, and one that waits for the other thread of its rank for what that waits
 * for. A thread renews its stamp while it waits for a rank, so an old one belongs to a rank that froze meanwhile.
 * Returns the rank, or DT__RANKS_MAX for a circle; *life is what must change. */
static int dt__find_culprit(dt_comm *c, int rank, uint32_t *life)
{
    uint32_t now = dt__clock_ms();
    int32_t old = c->job->timeout_ms / 4;
    int line = c->line;
    *life = 0;
    for (int hops = 0; hops <= DT__LINES * c->job->size; hops++) {
        dt__lane *lane = dt__job_lane(c->job, rank);
        uint32_t stamp = __atomic_load_n(&lane->line[line].stamp, __ATOMIC_RELAXED);
        int waiting = __atomic_load_n(&lane->line[line].waiting, __ATOMIC_RELAXED);
        *life += __atomic_load_n(&lane->tick, __ATOMIC_RELAXED);
        if (waiting == DT__OTHER_LINE) {
            line = 1 - line;
            continue;
        }
        if (!waiting || (int32_t)(now - stamp) > old) return *life += stamp, rank;
        rank = waiting - 1;
    }
    return DT__RANKS_MAX;
}

/* Adds up how long the culprit has been silent. At most 0.1 s counts per look, so that time during which this very rank
 * did not run (a stopped job, a sleeping laptop) counts for nobody. */
static int dt__silent_too_long(dt_comm *c, int peer, dt__watch *w)
{
    uint32_t life;
    int suspect = 1 + dt__find_culprit(c, c->lane[peer], &life);
    double now = dt__now(), passed = now - w->looked;
    w->looked = now;
    if (suspect != w->suspect || life != w->moved) {
        w->suspect = suspect;
        w->moved = life;
        w->silence = 0;
        return 0;
    }
    w->silence += passed < 0.1 ? passed : 0.1;
    if (w->silence * 1e3 < c->job->timeout_ms) return 0;
    if (suspect - 1 < DT__RANKS_MAX) dt__blame(&c->job->fault, DT__FAULT_FROZEN, suspect - 1);
    else dt__blame(&c->job->fault, DT__FAULT_DEADLOCK, c->lane[peer]);
    return 1;
}

/* Whether to give up waiting for `peer`. The event is looked at again after each bad sign: a peer may arrive, then
 * leave. */
static int dt__give_up(dt_comm *c, int peer, dt__event *e, uint32_t target, dt__watch *w)
{
    uint32_t gone = __atomic_load_n(&dt__comm_lane(c, peer)->gone, __ATOMIC_ACQUIRE);
    uint32_t left = c->area ? __atomic_load_n(&dt__comm_slot(c, peer)->left, __ATOMIC_ACQUIRE) : 0;
    int troubled = dt__comm_troubled(c) || gone || left;
    if (!troubled) troubled = dt__silent_too_long(c, peer, w);
    if (!troubled || dt__event_reached(e, target)) return 0;
    if (dt__comm_fault(c) || __atomic_load_n(&c->job->stop, __ATOMIC_SEQ_CST) == 2 || !(gone || left)) return 1;
    if (gone & ~DT__GONE) dt__blame(&c->job->fault, DT__FAULT_DIED, c->lane[peer]);
    else dt__blame(c->area ? &c->area->fault : &c->job->fault, DT__FAULT_LEFT, c->lane[peer]);
    return 1;
}

static dt_result dt__wait_asleep(dt_comm *c, int peer, dt__event *e, uint32_t target)
{
    dt__line *me = &dt__comm_lane(c, c->rank)->line[c->line];
    dt__watch watch;
    int up = 0;
    memset(&watch, 0, sizeof watch);
    watch.looked = dt__now();
    __atomic_store_n(&me->stamp, dt__clock_ms(), __ATOMIC_RELAXED);
    __atomic_store_n(&me->waiting, 1 + c->lane[peer], __ATOMIC_RELAXED);
    while (!dt__event_reached(e, target)) {
        dt__event_sleep(e, target);
        __atomic_store_n(&me->stamp, dt__clock_ms(), __ATOMIC_RELAXED);
        if ((up = dt__give_up(c, peer, e, target, &watch)) != 0) break;
    }
    __atomic_store_n(&me->waiting, 0, __ATOMIC_RELAXED);
    return up ? dt__comm_explain(c) : DT_OK;
}

/* Waits until the event, which `peer` raises, has the target value. */
static dt_result dt__wait(dt_comm *c, int peer, dt__event *e, uint32_t target)
{
    double start;
    dt_result r = DT_OK;
    if (dt__event_reached(e, target)) return DT_OK;
    start = dt__now();
    for (int i = 0; i < c->spins && !dt__event_reached(e, target); i++) dt__relax();
    for (int i = 0; i < 8 && !dt__event_reached(e, target); i++) sched_yield();
    if (!dt__event_reached(e, target)) r = dt__wait_asleep(c, peer, e, target);
    c->waited += dt__now() - start;
    return r;
}

/* ---- shared memory ---- */

/* The number behind `key` in a file of the kernel, -1 when there is none. */
static int64_t dt__read_number(const char *path, const char *key)
{
    char line[256];
    int64_t value = -1;
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    while (value < 0 && fgets(line, (int)sizeof line, f)) {
        char *end, *start = line + strlen(key);
        if (strncmp(line, key, strlen(key))) continue;
        value = (int64_t)strtoll(start, &end, 10);
        if (end == start) break;
    }
    fclose(f);
    return value;
}

/* Bytes that can be allocated without swapping or being killed: of the machine, and of the container's limit. */
static int64_t dt__memory_available(void)
{
    int64_t free_kb = dt__read_number("/proc/meminfo", "MemAvailable:");
    int64_t limit = dt__read_number("/sys/fs/cgroup/memory.max", "");
    int64_t used = dt__read_number("/sys/fs/cgroup/memory.current", "");
    int64_t cache = dt__read_number("/sys/fs/cgroup/memory.stat", "inactive_file ");
    int64_t available = free_kb < 0 ? INT64_MAX : free_kb * 1024;
    if (limit > 0 && used >= 0) available = dt__min(available, limit - used + dt__max(cache, 0));
    return dt__max(available, 0);
}

/* Fixes memory behind [where, where + bytes) of the job's file now: a lack of it is an error then, not a SIGBUS. */
static int dt__file_reserve(int fd, int64_t where, int64_t bytes)
{
#ifdef __linux__
    int failed;
    do failed = (int)syscall(SYS_fallocate, fd, 0, (off_t)where, (off_t)bytes);
    while (failed && errno == EINTR);
    return failed;
#else
    (void)fd, (void)where, (void)bytes;
    return -1;
#endif
}

/* Gives the memory of one region back. Processes: only the last one to leave may free the file's pages. */
static void dt__region_drop(dt_comm *c, dt__region *region, int last)
{
    if (c->fd >= 0 || last) munmap(region->base, (size_t)region->bytes);
#ifdef __linux__
    if (c->fd >= 0 && last)
        (void)!syscall(SYS_fallocate, c->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)region->where,
                       (off_t)region->bytes);
#endif
    dt__free(region);
}

/* New anonymous memory, shared with threads only; NULL when refused. */
static char *dt__map_private(int64_t bytes)
{
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : (char *)p;
}

/* Makes the name of new shared memory: run by one rank, which tells the others. -1 when memory is short. */
static int64_t dt__region_create(dt__job *job, int64_t bytes)
{
    char *base;
    if (bytes > dt__memory_available()) return -1;
    if (!job->threads) return __atomic_fetch_add(&job->end, bytes, __ATOMIC_RELAXED);
    base = dt__map_private(bytes);
    return base ? (int64_t)(intptr_t)base : -1;
}

/* Maps shared memory that dt__region_create named and puts it on the list. NULL when that fails. */
static dt__region *dt__region_join(dt_comm *c, int64_t where, int64_t bytes, int64_t stride)
{
    dt__region *region = (dt__region *)dt__alloc((int64_t)sizeof *region, "a shared region");
    void *base = (void *)(intptr_t)where;
    if (!region) return NULL;
    if (c->fd >= 0) base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, (off_t)where);
    if (base == MAP_FAILED) {
        dt__free(region);
        return NULL;
    }
    region->base = (char *)base;
    region->where = where;
    region->bytes = bytes;
    region->stride = stride;
    region->next = c->regions;
    c->regions = region;
    return region;
}

/* How peers name this memory, or -1 when it is private. Looks at the parents' memory too. */
static int64_t dt__locate(const dt_comm *c, const void *data, int64_t bytes)
{
    const char *p = (const char *)data;
    for (; c; c = c->parent)
        for (const dt__region *g = c->regions; g; g = g->next)
            if (p >= g->base && p < g->base + g->bytes && bytes <= g->base + g->bytes - p)
                return g->where + (p - g->base);
    return -1;
}

/* Where memory that a peer named lies here. */
static float *dt__resolve(const dt_comm *c, int64_t where)
{
    if (c->fd < 0) return (float *)(intptr_t)where;
    for (; c; c = c->parent)
        for (const dt__region *g = c->regions; g; g = g->next)
            if (where >= g->where && where < g->where + g->bytes)
                return (float *)(void *)(g->base + (where - g->where));
    return NULL;
}

/* ---- steps ---- */

static dt_result dt__step(dt_comm *c)
{
    dt_result r = DT_OK;
    c->step++;
    dt__event_raise(&dt__comm_slot(c, c->rank)->arrived, c->step);
    for (int i = 1; i < c->size && !r; i++) {
        int peer = (c->rank + i) % c->size;
        r = dt__wait(c, peer, &dt__comm_slot(c, peer)->arrived, c->step);
    }
    return r;
}

static const dt__published *dt__peer_call(const dt_comm *c, int rank)
{
    return &dt__comm_slot(c, rank)->call[c->step & 1u];
}

static void dt__format_call(char *text, size_t size, const dt__published *call)
{
    const char *unit = call->op == DT__CALL_ALLOC ? "bytes" : "floats";
    const char *extra = call->op == DT__CALL_BROADCAST ? "root" : "kind";
    snprintf(text, size, "%s #%lld (%lld %s, %s %d)", dt__call_name(call->op), (long long)call->sequence,
             (long long)call->count, unit, extra, call->extra);
}

/* All ranks see the same published calls, so all of them find the same first difference from rank 0. */
static dt_result dt__check_calls(dt_comm *c)
{
    const dt__published *a = dt__peer_call(c, 0);
    char first[128], other[128];
    for (int p = 1; p < c->size; p++) {
        const dt__published *b = dt__peer_call(c, p);
        if (a->op == b->op && a->sequence == b->sequence && a->count == b->count && a->extra == b->extra) continue;
        dt__format_call(first, sizeof first, a);
        dt__format_call(other, sizeof other, b);
        snprintf(c->message, sizeof c->message, "ranks disagree: rank %d is in %s, rank %d in %s; all ranks must "
                 "make the same calls in the same order", c->lane[0], first, c->lane[p], other);
        return dt__comm_fail(c, DT_E_PEER);
    }
    return DT_OK;
}

/* Names the call that begins, and refuses it when the communicator has failed. */
static dt_result dt__begin(dt_comm *c, int op, int64_t count, int extra)
{
    if (c->failed) return dt__error(c->failed, "%s", c->message);
    c->call.op = op;
    c->call.count = count;
    c->call.extra = extra;
    c->call.where = -1;
    c->call.detail = 0;
    if (op < DT__CALL_SEND) {
        c->call.sequence++;
        c->collectives++;
    }
    if (count < 0)
        return dt__error(DT_E_USAGE, "%s of %lld floats: the count is negative", dt__call_name(op), (long long)count);
    if (!c->job) return DT_OK;
    dt__comm_tick(c);
    return dt__comm_troubled(c) ? dt__comm_explain(c) : DT_OK;
}

/* The first step of a collective: all ranks publish their call and see that they agree. */
static dt_result dt__meet(dt_comm *c)
{
    dt_result r;
    dt__comm_slot(c, c->rank)->call[(c->step + 1) & 1u] = c->call;
    c->shared_step = c->step + 1;
    c->sharing = c->job->threads && c->call.where >= 0;
    r = dt__step(c);
    c->owed = 0;
    c->met = c->rate > 0.0 ? dt__now() : 0.0;
    if (!r) r = dt__check_calls(c);
    if (!r && c->sharing && dt__comm_troubled(c)) r = dt__comm_explain(c); /* see dt__comm_drain */
    return r;
}

/* After dt__meet: fills c->view when every rank's data can be read in place. */
static int dt__views(dt_comm *c)
{
    for (int p = 0; p < c->size; p++) {
        int64_t where = dt__peer_call(c, p)->where;
        if (where < 0) return 0;
        c->view[p] = dt__resolve(c, where);
    }
    return 1;
}

/* Waits as long as an emulated link still needs. */
static void dt__link(dt_comm *c)
{
    while (c->rate > 0.0 && dt__now() < c->met + (double)c->owed / c->rate) dt__nap(), dt__comm_tick(c);
}

/* The last step of a collective that read or wrote peers' memory. */
static dt_result dt__conclude(dt_comm *c)
{
    dt_result r;
    dt__link(c);
    r = dt__step(c);
    c->sharing = 0;
    dt__comm_tick(c);
    return r;
}

/* How peers can reach this rank's data: thread ranks read private memory too. */
static int64_t dt__publish(const dt_comm *c, const void *data, int64_t count)
{
    return c->job->threads ? (int64_t)(intptr_t)data : dt__locate(c, data, count * (int64_t)sizeof(float));
}

/* ---- sums in tree order ---- */

/* A partial sum that a rank holds: the subtree (level, index) over leaves [index << level, (index + 1) << level). */
typedef struct dt__part {
    int level;
    int64_t index;
    int64_t offset; /* floats from the start of the rank's data */
} dt__part;

typedef struct dt__sum {
    dt_op op;
    int size;
    const float *const *from; /* (size) the ranks' data */
    const dt__part *parts;    /* rank by rank, each rank's in the order of leaves; NULL: one leaf per rank */
    const int *counts;        /* (size) parts of each rank */
    float *const *to;         /* (outputs) where results go */
    int outputs;
} dt__sum;

/* The outputs may be the inputs, but only at the same index. */
#if defined(__clang__)
#define DT__IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define DT__IVDEP _Pragma("GCC ivdep")
#ifndef DT_DEBUG
#pragma GCC push_options
#pragma GCC optimize("O3") /* for the vectorizer */
#endif
#endif

#define DT__COMBINE(name, expression)                                                                        \
    static void name(float *d, float *e, const float *a, const float *b, int64_t n)                          \
    {                                                                                                        \
        DT__IVDEP for (int64_t i = 0; i < n; i++) {                                                          \
            float x = a[i], y = b[i];                                                                        \
            d[i] = e[i] = (expression);                                                                      \
        }                                                                                                    \
    }
DT__COMBINE(dt__combine_sum, x + y)
DT__COMBINE(dt__combine_max, x > y ? x : y)
DT__COMBINE(dt__combine_min, x < y ? x : y)
#if !defined(__clang__) && !defined(DT_DEBUG)
#pragma GCC pop_options
#endif

/* d and e get op(a, b). d may be a, e may be b or d. */
static void dt__combine(dt_op op, float *d, float *e, const float *a, const float *b, int64_t n)
{
    if (op == DT_SUM) dt__combine_sum(d, e, a, b, n);
    else if (op == DT_MAX) dt__combine_max(d, e, a, b, n);
    else dt__combine_min(d, e, a, b, n);
}

/* One block of the sum, n <= DT__BLOCK. A stack of subtrees: a node is combined with its left neighbour as soon as
 * both are there; at the end what is left over is folded from the right. The last combination writes the outputs. An
 * output may be the first source of its rank: by then this block of it has been read. */
static void dt__sum_block(const dt__sum *s, int64_t at, int64_t n)
{
    float temp[DT__TREE_DEPTH][DT__BLOCK];
    const float *value[DT__TREE_DEPTH];
    int level[DT__TREE_DEPTH], depth = 0, copied = 1;
    const dt__part *part = s->parts;
    for (int r = 0; r < s->size; r++)
        for (int j = 0, count = s->parts ? s->counts[r] : 1; j < count; j++) {
            int64_t index = part ? part->index : r;
            int last = r == s->size - 1 && j == count - 1;
            level[depth] = part ? part->level : 0;
            value[depth++] = s->from[r] + (part ? part->offset : 0) + at;
            if (part) part++;
            while (depth > 1 && (last || (level[depth - 2] == level[depth - 1] && (index & 1)))) {
                int final = last && depth == 2;
                float *d = final ? s->to[0] + at : temp[depth - 2];
                float *e = final && s->outputs > 1 ? s->to[1] + at : d;
                dt__combine(s->op, d, e, value[depth - 2], value[depth - 1], n);
                if (final) copied = s->outputs > 1 ? 2 : 1;
                value[--depth - 1] = d;
                level[depth - 1]++;
                index >>= 1;
            }
        }
    if (value[0] != s->to[0] + at) memcpy(s->to[0] + at, value[0], (size_t)n * sizeof(float));
    for (int k = copied; k < s->outputs; k++) memcpy(s->to[k] + at, s->to[0] + at, (size_t)n * sizeof(float));
}

static void dt__sum_range(dt_comm *c, const dt__sum *s, int64_t begin, int64_t end)
{
    unsigned saved = dt__fp_enter();
    for (int64_t at = begin; at < end; at += DT__BLOCK) {
        dt__sum_block(s, at, dt__min(DT__BLOCK, end - at));
        if ((at - begin) % (1024 * DT__BLOCK) == 0) dt__comm_tick(c);
    }
    dt__fp_leave(saved);
}

/* Boundary r of `size` nearly equal pieces of [0, count), cut at blocks. */
static int64_t dt__piece(int64_t count, int size, int r)
{
    return dt__min(count, dt__ceil_div(count, DT__BLOCK) * r / size * DT__BLOCK);
}

/* ---- collectives ---- */

/* One data movement. in is (sections,count). */
typedef struct dt__move {
    int op;
    const float *in;
    float *out;
    int64_t count, sections;
    dt_op reduce;
    int root;
} dt__move;

static void dt__copy(float *to, const float *from, int64_t n)
{
    if (n > 0 && to != from) memcpy(to, from, (size_t)n * sizeof(float));
}

static void dt__pack(const dt_comm *c, const dt__move *m, int64_t begin, int64_t n, float *stage)
{
    if (m->op == DT__CALL_BROADCAST && c->rank != m->root) return;
    for (int64_t s = 0; s < m->sections; s++) dt__copy(stage + s * n, m->in + s * m->count + begin, n);
}

/* Takes elements [begin, begin + n) of every section from c->from, where sections lie `stride` floats apart. */
static void dt__unpack(dt_comm *c, const dt__move *m, int64_t begin, int64_t n, int64_t stride)
{
    dt__sum s;
    float *to = m->out + begin;
    int64_t mine = m->sections > 1 ? c->rank * stride : 0;
    for (int p = 0; p < c->size; p++) c->from[p] += mine;
    switch (m->op) {
    case DT__CALL_BROADCAST:
        if (c->rank != m->root) dt__copy(to, c->from[m->root], n);
        return;
    case DT__CALL_ALL_GATHER:
    case DT__CALL_ALL_TO_ALL:
        for (int p = 0; p < c->size; p++) dt__copy(to + p * m->count, c->from[p], n);
        return;
    default: break;
    }
    memset(&s, 0, sizeof s);
    s.op = m->reduce;
    s.size = c->size;
    s.from = c->from;
    s.to = &to;
    s.outputs = 1;
    dt__sum_range(c, &s, 0, n);
}

/* Bytes that reach a peer count in this communicator and in those that it was split from, which another thread may
 * use. */
static void dt__count_sent(dt_comm *c, int peer, int64_t floats)
{
    for (; c; peer = c->up[peer], c = c->parent)
        __atomic_fetch_add(&c->sent[peer], floats * (int64_t)sizeof(float), __ATOMIC_RELAXED);
}

/* Everyone reads the section meant for it. */
static void dt__count_bytes(dt_comm *c, const dt__move *m)
{
    for (int p = 0; p < c->size; p++)
        if (p != c->rank && (m->op != DT__CALL_BROADCAST || c->rank == m->root)) {
            dt__count_sent(c, p, m->count);
            c->owed += 4 * m->count;
        }
}

static void dt__from_stage(dt_comm *c, uint32_t buffer)
{
    for (int p = 0; p < c->size; p++) c->from[p] = dt__comm_stage(c, p, buffer);
}

static dt_result dt__exchange_staged(dt_comm *c, const dt__move *m)
{
    int64_t width = c->chunk / m->sections;
    dt_result r = DT_OK;
    for (int64_t at = 0; at < m->count && !r; at += width) {
        int64_t n = dt__min(width, m->count - at);
        dt__pack(c, m, at, n, dt__comm_stage(c, c->rank, (c->step + 1) & 1u));
        if ((r = dt__step(c)) != DT_OK) break;
        dt__comm_tick(c);
        dt__from_stage(c, c->step & 1u);
        dt__unpack(c, m, at, n, n);
    }
    dt__link(c);
    return r;
}

/* Every collective but the large all-reduce: small data rides on the first step, symmetric data is read in place, the
 * rest goes through the stages chunk by chunk. */
static dt_result dt__exchange(dt_comm *c, const dt__move *m)
{
    int64_t total = m->count * m->sections;
    int eager = total <= DT__EAGER;
    dt_result r;
    if (eager) dt__pack(c, m, 0, m->count, dt__comm_stage(c, c->rank, (c->step + 1) & 1u));
    else c->call.where = dt__publish(c, m->in, total);
    if ((r = dt__meet(c)) != DT_OK) return r;
    dt__count_bytes(c, m);
    if (eager) {
        dt__from_stage(c, c->step & 1u);
        dt__unpack(c, m, 0, m->count, m->count);
        return DT_OK;
    }
    if (!dt__views(c)) {
        c->sharing = 0;
        return dt__exchange_staged(c, m);
    }
    for (int p = 0; p < c->size; p++) c->from[p] = c->view[p];
    dt__unpack(c, m, 0, m->count, m->count);
    return dt__conclude(c);
}

/* The whole of a collective when there is only this rank. */
static dt_result dt__exchange_alone(const dt__move *m)
{
    if (m->op != DT__CALL_BROADCAST) dt__copy(m->out, m->in, m->count);
    return DT_OK;
}

static dt_result dt__collective(dt_comm *c, int op, const float *in, float *out, int64_t count, int sections, int extra)
{
    dt__move m;
    dt_result r = dt__begin(c, op, count, extra);
    if (r) return r;
    m.op = op;
    m.in = in;
    m.out = out;
    m.count = count;
    m.sections = sections;
    m.reduce = extra == DT_MAX ? DT_MAX : extra == DT_MIN ? DT_MIN : DT_SUM;
    m.root = extra;
    return c->job ? dt__exchange(c, &m) : dt__exchange_alone(&m);
}

static dt_result dt__check_rank(const dt_comm *c, const char *what, int rank)
{
    if (rank >= 0 && rank < c->size) return DT_OK;
    return dt__error(DT_E_USAGE, "%s %d: the ranks are 0..%d", what, rank, c->size - 1);
}

static dt_result dt__check_op(dt_op op)
{
    if (op == DT_SUM || op == DT_MAX || op == DT_MIN) return DT_OK;
    return dt__error(DT_E_USAGE, "operation %d: it is DT_SUM, DT_MAX or DT_MIN", (int)op);
}

DT_API dt_result dt_barrier(dt_comm *c)
{
    dt_result r = dt__begin(c, DT__CALL_BARRIER, 0, 0);
    return r || !c->job ? r : dt__meet(c);
}

DT_API dt_result dt_broadcast(dt_comm *c, float *data, int64_t count, int root)
{
    dt_result r = dt__check_rank(c, "broadcast from rank", root);
    return r ? r : dt__collective(c, DT__CALL_BROADCAST, data, data, count, 1, root);
}

DT_API dt_result dt_reduce_scatter(dt_comm *c, const float *in, float *out, int64_t count, dt_op op)
{
    dt_result r = dt__check_op(op);
    return r ? r : dt__collective(c, DT__CALL_REDUCE_SCATTER, in, out, count, c->size, (int)op);
}

DT_API dt_result dt_all_gather(dt_comm *c, const float *in, float *out, int64_t count)
{
    return dt__collective(c, DT__CALL_ALL_GATHER, in, out, count, 1, 0);
}

DT_API dt_result dt_all_to_all(dt_comm *c, const float *in, float *out, int64_t count)
{
    return dt__collective(c, DT__CALL_ALL_TO_ALL, in, out, count, c->size, 0);
}

/* Three chunks are under way: this step copies one in, reduces this rank's piece of the one before and copies out the
 * one before that, so each chunk costs one wait. */
static dt_result dt__all_reduce_staged(dt_comm *c, float *data, int64_t count, dt_op op)
{
    int64_t chunks = dt__ceil_div(count, c->chunk);
    dt__sum s;
    float *to;
    dt_result r = DT_OK;
    memset(&s, 0, sizeof s);
    s.op = op;
    s.size = c->size;
    s.from = c->from;
    s.to = &to;
    s.outputs = 1;
    for (int64_t k = 0; k < chunks + 2 && !r; k++) {
        uint32_t half = (c->step + 1) & 1u;
        int64_t in = k * c->chunk, reduce = (k - 1) * c->chunk, done = (k - 2) * c->chunk;
        if (k < chunks) dt__copy(dt__comm_stage(c, c->rank, half), data + in, dt__min(c->chunk, count - in));
        if (k >= 1 && k <= chunks) {
            int64_t n = dt__min(c->chunk, count - reduce);
            dt__from_stage(c, half ^ 1u);
            to = dt__comm_stage(c, c->rank, 2 + half);
            dt__sum_range(c, &s, dt__piece(n, c->size, c->rank), dt__piece(n, c->size, c->rank + 1));
        }
        for (int p = 0; k >= 2 && p < c->size; p++) {
            int64_t n = dt__min(c->chunk, count - done);
            int64_t low = dt__piece(n, c->size, p), high = dt__piece(n, c->size, p + 1);
            dt__copy(data + done + low, dt__comm_stage(c, p, 2 + (half ^ 1u)) + low, high - low);
        }
        dt__comm_tick(c);
        if (k < chunks + 1) r = dt__step(c);
    }
    dt__link(c);
    return r;
}

/* Every rank reduces its piece from all ranks' memory into all ranks' memory. */
static void dt__all_reduce_direct(dt_comm *c, int64_t count, dt_op op)
{
    dt__sum s;
    memset(&s, 0, sizeof s);
    for (int p = 0; p < c->size; p++) c->from[p] = c->view[p];
    s.op = op;
    s.size = c->size;
    s.from = c->from;
    s.to = c->view;
    s.outputs = c->size;
    dt__sum_range(c, &s, dt__piece(count, c->size, c->rank), dt__piece(count, c->size, c->rank + 1));
}

/* A rank sends a peer the piece that the peer reduces, and the result of its own piece; with cuts (a reduce-scatter) it
 * keeps that. */
static void dt__count_reduce(dt_comm *c, int64_t count, int64_t parts, const int64_t *cuts)
{
    int64_t own = cuts ? 0 : dt__piece(count, c->size, c->rank + 1) - dt__piece(count, c->size, c->rank);
    for (int p = 0; p < c->size; p++) {
        int64_t theirs = dt__piece(count, c->size, p + 1) - dt__piece(count, c->size, p);
        if (cuts) theirs = cuts[p + 1] - cuts[p];
        if (p == c->rank) continue;
        dt__count_sent(c, p, theirs * parts + own);
        c->owed += 4 * (theirs * parts + own);
    }
}

DT_API dt_result dt_all_reduce(dt_comm *c, float *data, int64_t count, dt_op op)
{
    dt_result r = dt__check_op(op);
    if (r) return r;
    if (!c->job || count <= DT__EAGER) return dt__collective(c, DT__CALL_ALL_REDUCE, data, data, count, 1, (int)op);
    if ((r = dt__begin(c, DT__CALL_ALL_REDUCE, count, (int)op)) != DT_OK) return r;
    c->call.where = dt__publish(c, data, count);
    if ((r = dt__meet(c)) != DT_OK) return r;
    dt__count_reduce(c, count, 1, NULL);
    if (!dt__views(c)) {
        c->sharing = 0;
        return dt__all_reduce_staged(c, data, count, op);
    }
    dt__all_reduce_direct(c, count, op);
    return dt__conclude(c);
}

/* The same into other memory. Two ranks read all of each other's: no more bytes than as pieces and sums, and fewer
 * copies and waits. */
static dt_result dt__all_reduce_apart(dt_comm *c, const float *in, float *out, int64_t count, dt_op op)
{
    if (c->size == 2 && in != out) return dt__collective(c, DT__CALL_ALL_REDUCE, in, out, count, 1, (int)op);
    dt__copy(out, in, count);
    return dt_all_reduce(c, out, count, op);
}

/* The parts must cover the leaves 0..V-1 in order, V a power of two. */
static dt_result dt__check_parts(const dt_comm *c, const dt__part *parts, const int *counts)
{
    int64_t leaf = 0;
    for (int r = 0; r < c->size; r++) {
        if (counts[r] < 1) return dt__error(DT_E_USAGE, "rank %d owns no part of the sum", c->lane[r]);
        for (int j = 0; j < counts[r]; j++, parts++) {
            if (parts->level < 0 || parts->level >= DT__TREE_DEPTH - 2 || parts->index << parts->level != leaf)
                return dt__error(DT_E_USAGE, "part %d of rank %d does not begin at leaf %lld", j, c->lane[r],
                                 (long long)leaf);
            leaf += (int64_t)1 << parts->level;
        }
    }
    if (!dt__is_pow2(leaf))
        return dt__error(DT_E_USAGE, "the parts cover %lld leaves, not a power of two", (long long)leaf);
    return DT_OK;
}

/* The exact all-reduce over nodes of the tree of leaves (R1, R2). `mine` is this rank's data in symmetric memory.
 * `parts` lists every rank's parts, rank by rank in the order of leaves, `counts` (size) how many each has: the same
 * on all ranks. The sum of elements [begin, begin + count) of all parts replaces those of every rank's first part.
 * With `cuts` (size + 1, relative to begin, rising from 0 to count) the sum of [cuts[r], cuts[r + 1]) goes only to
 * rank r: a reduce-scatter. */
static dt_result dt__reduce_parts(dt_comm *c, float *mine, const dt__part *parts, const int *counts, int64_t begin,
                                  int64_t count, const int64_t *cuts)
{
    dt__sum s;
    int64_t low, high, reach = 0;
    const dt__part *first = parts;
    dt_result r = dt__begin(c, DT__CALL_REDUCE_PARTS, count, cuts ? 1 : 0);
    if (!r) r = dt__check_parts(c, parts, counts);
    if (r) return r;
    c->view[0] = mine;
    if (c->job) {
        for (int p = 0; p < c->rank; p++) first += counts[p];
        for (int j = 0; j < counts[c->rank]; j++) reach = dt__max(reach, first[j].offset + begin + count);
        if ((c->call.where = dt__locate(c, mine, reach * (int64_t)sizeof(float))) < 0)
            return dt__error(DT_E_USAGE, "reduce-parts needs memory of dt_comm_alloc");
        if ((r = dt__meet(c)) != DT_OK) return r;
        dt__views(c);
        dt__count_reduce(c, count, counts[c->rank], cuts);
    }
    memset(&s, 0, sizeof s);
    first = parts;
    for (int p = 0; p < c->size; first += counts[p++]) {
        c->from[p] = c->view[p] + begin;
        c->view[p] += begin + first->offset;
    }
    s.op = DT_SUM;
    s.size = c->size;
    s.from = c->from;
    s.parts = parts;
    s.counts = counts;
    s.to = cuts ? c->view + c->rank : c->view;
    s.outputs = cuts ? 1 : c->size;
    low = cuts ? cuts[c->rank] : dt__piece(count, c->size, c->rank);
    high = cuts ? cuts[c->rank + 1] : dt__piece(count, c->size, c->rank + 1);
    dt__sum_range(c, &s, low, high);
    return c->job ? dt__conclude(c) : DT_OK;
}

/* A piece that a rank has: floats [from, from + count) of its memory, which come to `to` of the reader's. */
typedef struct dt__extent {
    int rank;
    int64_t from, to, count;
} dt__extent;

/* An all-gather of pieces of any size: every rank lists the same pieces, and `mine` is symmetric memory of `reach`
 * floats. Where out is mine itself, a rank's own pieces are in their place already. The caller counts what it sends. */
static dt_result dt__gather_spans(dt_comm *c, float *mine, int64_t reach, const dt__extent *span, int count, float *out)
{
    int64_t floats = 0;
    dt_result r;
    for (int i = 0; i < count; i++) floats += span[i].count;
    r = dt__begin(c, DT__CALL_ALL_GATHER, floats, 1);
    if (r) return r;
    if ((c->call.where = dt__locate(c, mine, reach * (int64_t)sizeof(float))) < 0)
        return dt__error(DT_E_USAGE, "a gather of pieces needs memory of dt_comm_alloc");
    if ((r = dt__meet(c)) != DT_OK) return r;
    dt__views(c);
    for (int i = 0; i < count; i++) {
        dt__copy(out + span[i].to, c->view[span[i].rank] + span[i].from, span[i].count);
        if (span[i].rank == c->rank) c->owed += 4 * span[i].count * (c->size - 1);
    }
    return dt__conclude(c);
}

/* An all-to-all of rows of `width` floats: rank p gets rows [give[p * bins], give[(p + 1) * bins]) of `from`, and rank
 * p's come to rows [take[p * bins], ..) of `to`; who takes knows how many. `stage` is symmetric memory for size + 1
 * words, rounded up to 16, and all rows of `from`. */
static dt_result dt__all_to_all_rows(dt_comm *c, float *stage, float *to, const int32_t *take, const float *from,
                                     const int32_t *give, int64_t bins, int64_t width)
{
    int64_t head = dt__round_up(c->size + 1, 16), floats = give[c->size * bins] * width;
    dt_result r = dt__begin(c, DT__CALL_ALL_TO_ALL, width, 1);
    if (r) return r;
    if ((c->call.where = dt__locate(c, stage, (head + floats) * (int64_t)sizeof(float))) < 0)
        return dt__error(DT_E_USAGE, "an exchange of rows needs memory of dt_comm_alloc");
    for (int p = 0; p <= c->size; p++) memcpy(stage + p, give + p * bins, sizeof *give);
    dt__copy(stage + head, from, floats);
    if ((r = dt__meet(c)) != DT_OK) return r;
    dt__views(c);
    for (int p = 0; p < c->size; p++) {
        int64_t mine = take[p * bins], rows = take[(p + 1) * bins] - mine;
        int32_t first;
        memcpy(&first, c->view[p] + c->rank, sizeof first);
        dt__copy(to + mine * width, c->view[p] + head + first * width, rows * width);
        if (p == c->rank) continue;
        dt__count_sent(c, p, (give[(p + 1) * bins] - give[p * bins]) * width);
        c->owed += 4 * (give[(p + 1) * bins] - give[p * bins]) * width;
    }
    return dt__conclude(c);
}

/* ---- point to point ---- */

/* Posts data that peers can read; it must stay as it is until dt__send_finish(ticket). Waits when DT__PARCELS are
 * posted. */
static dt_result dt__post(dt_comm *c, int to, const dt__parcel *parcel, uint32_t *ticket)
{
    dt__channel *channel = dt__comm_channel(c, c->rank, to);
    uint32_t next = channel->posted.value + 1;
    dt_result r = dt__wait(c, to, &channel->taken, next - DT__PARCELS);
    if (r) return r;
    channel->parcel[next % DT__PARCELS] = *parcel;
    dt__count_sent(c, to, parcel->count);
    dt__event_raise(&channel->posted, *ticket = next);
    return DT_OK;
}

static dt_result dt__begin_pair(dt_comm *c, int op, int64_t count, int peer)
{
    dt_result r = dt__check_rank(c, op == DT__CALL_SEND ? "send to rank" : "receive from rank", peer);
    if (r) return r;
    if (peer == c->rank) return dt__error(DT_E_USAGE, "rank %d in a %s with itself", peer, dt__call_name(op));
    return dt__begin(c, op, count, peer);
}

/* A send that does not wait: data (count) in symmetric memory must not change before dt__send_finish(ticket). */
static dt_result dt__send_start(dt_comm *c, const float *data, int64_t count, int to, uint32_t *ticket)
{
    dt__parcel parcel;
    dt_result r = dt__begin_pair(c, DT__CALL_SEND, count, to);
    if (r) return r;
    parcel.where = dt__locate(c, data, count * (int64_t)sizeof(float));
    parcel.count = parcel.total = count;
    if (parcel.where < 0) return dt__error(DT_E_USAGE, "a send in the background needs memory of dt_comm_alloc");
    return dt__post(c, to, &parcel, ticket);
}

static dt_result dt__send_finish(dt_comm *c, int to, uint32_t ticket)
{
    if (c->failed) return dt__error(c->failed, "%s", c->message);
    return dt__wait(c, to, &dt__comm_channel(c, c->rank, to)->taken, ticket);
}

/* Private memory: two stage buffers in turn. */
static dt_result dt__send_staged(dt_comm *c, const float *data, int64_t count, int to)
{
    dt__parcel parcel;
    uint32_t ticket[2], k = 0;
    dt_result r = DT_OK;
    int64_t at = 0;
    memset(ticket, 0, sizeof ticket);
    parcel.total = count;
    do {
        float *stage = dt__comm_stage(c, c->rank, 4 + (k & 1u));
        if (k >= 2) r = dt__send_finish(c, to, ticket[k & 1u]);
        if (r) return r;
        parcel.count = dt__min(c->chunk, count - at);
        parcel.where = dt__locate(c, stage, 1);
        dt__copy(stage, data + at, parcel.count);
        dt__comm_tick(c);
        r = dt__post(c, to, &parcel, &ticket[k++ & 1u]);
        at += parcel.count;
    } while (at < count && !r);
    return r ? r : dt__send_finish(c, to, ticket[(k - 1) & 1u]);
}

DT_API dt_result dt_send(dt_comm *c, const float *data, int64_t count, int to)
{
    uint32_t ticket = 0;
    dt_result r;
    if (c->job && count > 0 && dt__locate(c, data, count * (int64_t)sizeof(float)) >= 0) {
        r = dt__send_start(c, data, count, to, &ticket);
        return r ? r : dt__send_finish(c, to, ticket);
    }
    r = dt__begin_pair(c, DT__CALL_SEND, count, to);
    return r ? r : dt__send_staged(c, data, count, to);
}

DT_API dt_result dt_recv(dt_comm *c, float *data, int64_t count, int from)
{
    int64_t at = 0;
    dt__channel *channel;
    dt_result r = dt__begin_pair(c, DT__CALL_RECV, count, from);
    if (r) return r;
    channel = dt__comm_channel(c, from, c->rank);
    do {
        uint32_t next = channel->taken.value + 1;
        dt__parcel parcel;
        if ((r = dt__wait(c, from, &channel->posted, next)) != DT_OK) return r;
        parcel = channel->parcel[next % DT__PARCELS];
        if (parcel.total != count) {
            dt__blame(&c->area->fault, DT__FAULT_LENGTH, c->lane[c->rank]);
            snprintf(c->message, sizeof c->message, "rank %d sends %lld floats where rank %d receives %lld",
                     c->lane[from], (long long)parcel.total, c->lane[c->rank], (long long)count);
            return dt__comm_fail(c, DT_E_PEER);
        }
        dt__copy(data + at, dt__resolve(c, parcel.where), parcel.count);
        dt__event_raise(&channel->taken, next);
        dt__comm_tick(c);
        at += parcel.count;
    } while (at < count);
    return DT_OK;
}

/* ---- symmetric memory ---- */

static dt_result dt__alloc_refused(int size, int64_t bytes, int64_t available)
{
    return dt__error(DT_E_MEMORY, "no shared memory for %d x %.1f MB (%.1f MB are free): use fewer ranks or a smaller "
                     "model", size, (double)bytes / 1e6, (double)available / 1e6);
}

/* All ranks learn whether all succeeded. */
static dt_result dt__agree(dt_comm *c, int ok, int *all)
{
    dt_result r;
    c->call.where = ok ? 0 : -1;
    dt__comm_slot(c, c->rank)->call[(c->step + 1) & 1u] = c->call;
    if ((r = dt__step(c)) != DT_OK) return r;
    *all = 1;
    for (int p = 0; p < c->size; p++) *all = *all && dt__peer_call(c, p)->where >= 0;
    return DT_OK;
}

static dt_result dt__comm_alloc_shared(dt_comm *c, int64_t bytes, dt__region **region)
{
    int64_t stride = dt__pages(dt__max(bytes, 1)), total = stride * c->size, where, available;
    int all = 1, ok;
    dt_result r;
    if (c->rank == 0) {
        c->call.detail = dt__memory_available();
        c->call.where = dt__region_create(c->job, total);
    }
    r = dt__meet(c);
    c->sharing = 0;
    if (r) return r;
    where = dt__peer_call(c, 0)->where;
    available = dt__peer_call(c, 0)->detail;
    if (where < 0) return dt__alloc_refused(c->size, bytes, available);
    ok = c->fd < 0 || !dt__file_reserve(c->fd, where + c->rank * stride, stride);
    *region = ok ? dt__region_join(c, where, total, stride) : NULL;
    if ((r = dt__agree(c, *region != NULL, &all)) != DT_OK || all) return r;
    if (*region) {
        c->regions = (*region)->next;
        dt__region_drop(c, *region, 1);
    }
    return dt__alloc_refused(c->size, bytes, available);
}

/* One rank alone: the same region without peers. */
static dt_result dt__comm_alloc_alone(dt_comm *c, int64_t bytes, dt__region **region)
{
    int64_t stride = dt__pages(dt__max(bytes, 1)), available = dt__memory_available();
    char *base = stride > available ? NULL : dt__map_private(stride);
    if (!base) return dt__alloc_refused(1, bytes, available);
    *region = dt__region_join(c, (int64_t)(intptr_t)base, stride, stride);
    return *region ? DT_OK : DT_E_MEMORY;
}

DT_API dt_result dt_comm_alloc(dt_comm *c, int64_t bytes, void **mine)
{
    dt__region *region = NULL;
    dt_result r = dt__begin(c, DT__CALL_ALLOC, bytes, 0);
    *mine = NULL;
    if (!r && bytes > INT64_MAX / 2 / c->size) r = dt__alloc_refused(c->size, bytes, dt__memory_available());
    if (!r) r = c->job ? dt__comm_alloc_shared(c, bytes, &region) : dt__comm_alloc_alone(c, bytes, &region);
    if (!r) *mine = region->base + c->rank * region->stride;
    return r;
}

DT_API void *dt_comm_peer(dt_comm *c, const void *mine, int rank)
{
    const char *p = (const char *)mine;
    if (rank < 0 || rank >= c->size) return NULL;
    for (; c; c = c->parent) {
        for (dt__region *g = c->regions; g; g = g->next)
            if (p >= g->base && p < g->base + g->bytes) return g->base + rank * g->stride + (p - g->base) % g->stride;
        if (c->parent) rank = c->up[rank];
    }
    return NULL;
}

/* ---- opening and closing ---- */

DT_API int dt_comm_rank(const dt_comm *c) { return c->rank; }
DT_API int dt_comm_size(const dt_comm *c) { return c->size; }
DT_API int64_t dt_comm_sent(const dt_comm *c, int peer)
{
    return peer >= 0 && peer < c->size ? __atomic_load_n(&c->sent[peer], __ATOMIC_RELAXED) : 0;
}
static int64_t dt__comm_sent(const dt_comm *c)
{
    int64_t bytes = 0;
    for (int p = 0; p < c->size; p++) bytes += dt_comm_sent(c, p);
    return bytes;
}

/* The handle and its tables, without memory that is shared. */
static dt_comm *dt__comm_new(int rank, int size, dt__job *job, int fd)
{
    int64_t n = size, tables = n * (int64_t)(2 * sizeof(int) + 2 * sizeof(float *) + sizeof(int64_t));
    dt_comm *c = (dt_comm *)dt__alloc((int64_t)sizeof *c + tables, "a communicator");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (!c) return NULL;
    c->rank = rank;
    c->size = size;
    c->job = job;
    c->fd = fd;
    c->spins = job && job->size <= cores ? 400 : 20;
    c->chunk = dt__chunk_floats(size);
    c->view = (float **)(void *)(c + 1);
    c->from = (const float **)(void *)(c->view + size);
    c->sent = (int64_t *)(void *)(c->from + size);
    c->up = (int *)(void *)(c->sent + size);
    c->lane = c->up + size;
    for (int p = 0; p < size; p++) c->up[p] = c->lane[p] = p;
    return c;
}

/* Maps the area that one rank has named; all ranks of the communicator are there when this returns. */
static dt_result dt__comm_join(dt_comm *c, int64_t where)
{
    dt__region *region;
    int64_t bytes = dt__area_bytes(c->size);
    if (where < 0 || (region = dt__region_join(c, where, bytes, bytes)) == NULL)
        return dt__alloc_refused(1, bytes, dt__memory_available());
    c->area = (dt__area *)(void *)region->base;
    __atomic_fetch_add(&c->area->inside, 1, __ATOMIC_SEQ_CST);
    return dt__meet(c);
}

/* Makes an area for `size` ranks. -1 when memory is short. */
static int64_t dt__area_create(dt__job *job, int fd, int size)
{
    int64_t bytes = dt__area_bytes(size), where = dt__region_create(job, bytes);
    if (where >= 0 && fd >= 0 && dt__file_reserve(fd, where, bytes)) return -1;
    return where;
}

/* What DT_LINK_RATE says; 0 without it. */
static dt_result dt__link_rate(double *rate)
{
    const char *text = getenv("DT_LINK_RATE");
    char *end = NULL;
    *rate = text && *text ? strtod(text, &end) : 0.0;
    if (!end || (!*end && *rate >= 1.0)) return DT_OK;
    return dt__error(DT_E_USAGE, "DT_LINK_RATE=%s: it is a number of bytes per second, e.g. 1e8", text);
}

/* A communicator over all ranks of the job; a job of NULL is a rank alone. The job's mapping (not for threads) and fd
 * stay with the communicator. */
static dt_result dt__comm_open(dt_comm **handle, dt__job *job, int rank, int fd)
{
    dt_comm *c = dt__comm_new(rank, job ? job->size : 1, job, fd);
    dt_result r = DT_OK;
    *handle = c;
    if (!c) return DT_E_MEMORY;
    r = dt__link_rate(&c->rate);
    if (job && !r) {
        uint32_t ordinal = ++dt__job_lane(job, rank)->opened;
        if (rank == 0) {
            job->where = dt__area_create(job, fd, job->size);
            dt__event_raise(&job->opened, ordinal);
        }
        c->call.op = DT__CALL_OPEN;
        r = dt__wait(c, 0, &job->opened, ordinal);
        if (!r) r = dt__comm_join(c, job->where);
    }
    if (r) dt_comm_free(handle);
    return r;
}

/* The members of one color: how many, and this rank's number among them; `up` (members) gets their ranks in c, unless
 * NULL. */
static int dt__color_members(const dt_comm *c, int color, int *rank, int *up)
{
    int members = 0;
    for (int p = 0; p < c->size; p++) {
        if (dt__peer_call(c, p)->detail != color) continue;
        if (p == c->rank) *rank = members;
        if (up) up[members] = p;
        members++;
    }
    return members;
}

/* A second step in which the first member of each color names the area that it made. */
static dt_result dt__split_area(dt_comm *c, dt_comm *s)
{
    dt_result r;
    c->call.where = s->rank == 0 ? dt__area_create(c->job, c->fd, s->size) : -1;
    dt__comm_slot(c, c->rank)->call[(c->step + 1) & 1u] = c->call;
    r = dt__step(c);
    return r ? r : dt__comm_join(s, dt__peer_call(c, s->up[0])->where);
}

DT_API dt_result dt_comm_split(dt_comm *c, int color, dt_comm **sub)
{
    int rank = 0, members = 1;
    dt_comm *s;
    dt_result r = dt__begin(c, DT__CALL_SPLIT, 0, 0);
    *sub = NULL;
    if (!r && color < 0) r = dt__error(DT_E_USAGE, "color %d: it must not be negative", color);
    c->call.detail = color;
    if (!r && c->job) r = dt__meet(c);
    if (r) return r;
    if (c->job) members = dt__color_members(c, color, &rank, NULL);
    if (!(s = dt__comm_new(rank, members, c->job, c->fd))) return DT_E_MEMORY;
    s->parent = c;
    s->rate = c->rate;
    if (c->job) {
        dt__color_members(c, color, &rank, s->up);
        for (int p = 0; p < members; p++) s->lane[p] = c->lane[s->up[p]];
        r = dt__split_area(c, s);
    }
    if (r) dt_comm_free(&s);
    *sub = s;
    return r;
}

DT_API void dt_comm_free(dt_comm **handle)
{
    dt_comm *c = *handle;
    int last = !c || !c->job;
    if (!c) return;
    if (c->area) {
        dt__seat *slot = dt__comm_slot(c, c->rank);
        __atomic_store_n(&slot->left, 1u, __ATOMIC_SEQ_CST);
        last = __atomic_fetch_sub(&c->area->inside, 1, __ATOMIC_SEQ_CST) == 1;
    }
    while (c->regions) {
        dt__region *region = c->regions;
        c->regions = region->next;
        dt__region_drop(c, region, last);
    }
    if (c->job && c->fd >= 0 && !c->parent) munmap(c->job, (size_t)dt__job_bytes(c->job->size));
    dt__free(c);
    *handle = NULL;
}

/* ============================================================================================
 * H15  mesh, layout, step programs, executor
 * ========================================================================================= */

DT_API dt_sampling dt_sampling_default(void)
{
    dt_sampling s;
    memset(&s, 0, sizeof s);
    s.temperature = 0.7f;
    return s;
}

DT_API dt_layout dt_layout_default(void)
{
    dt_layout l;
    memset(&l, 0, sizeof l);
    l.tp = l.pp = l.ep = l.cp = 1;
    l.chunks = 2;
    l.horizon = 1;
    l.bucket = 25000000;
    l.eval_every = 100;
    l.eval_batches = 8;
    l.sample_length = 200;
    l.sampling = dt_sampling_default();
    return l;
}

/* "1, 2, 3, 6": the divisors of n up to `most`, for error sentences. */
static const char *dt__divisors(int64_t n, int64_t most, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int64_t d = 1; d <= n && d <= most && used + 24 < size; d++)
        if (n % d == 0) used += (size_t)snprintf(text + used, size - used, "%s%lld", used ? ", " : "", (long long)d);
    return text;
}

/* ---- mesh: ranks as points (data, context, pipeline, tensor) --------------------------------------- */

enum { DT__DATA, DT__PIPE, DT__TENSOR, DT__CONTEXT, DT__AXES };

typedef struct dt__mesh {
    int size[DT__AXES];   /* degrees */
    int stride[DT__AXES]; /* ranks from one to the next along an axis */
    int at[DT__AXES];     /* this rank */
} dt__mesh;

/* Of those with this place, the one that has the first context leaves. */
static int dt__mesh_rank(const dt__mesh *m, int data, int pipe, int tensor)
{
    return data * m->stride[DT__DATA] + pipe * m->stride[DT__PIPE] + tensor * m->stride[DT__TENSOR];
}

/* The axes of an order of letters, slowest first, C inside D when it is not there; 0 when it is none. */
static int dt__mesh_order(const char *order, int axis[DT__AXES])
{
    static const char letters[] = "DPTC";
    int seen = 0, count = 0, implied;
    if (!order || !strcmp(order, "cluster")) order = "DPT";
    if (!strcmp(order, "spread")) order = "TPD";
    implied = !strchr(order, 'C');
    for (; *order && count < DT__AXES; order++) {
        const char *at = strchr(letters, *order);
        if (!at) return 0;
        seen |= 1 << (axis[count++] = (int)(at - letters));
        if (implied && *order == 'D' && count < DT__AXES) seen |= 1 << (axis[count++] = DT__CONTEXT);
    }
    return seen == (1 << DT__AXES) - 1 && count == DT__AXES && !*order;
}

static dt_result dt__mesh_open(dt__mesh *m, const dt_layout *l, int ranks, int rank)
{
    int axis[DT__AXES], stride = 1;
    char list[256];
    memset(m, 0, sizeof *m);
    if (l->tp < 1 || ranks % l->tp)
        return dt__error(DT_E_USAGE, "tensor parallel degree %lld does not divide %d ranks: --tp one of %s",
                         (long long)l->tp, ranks, dt__divisors(ranks, ranks, list, sizeof list));
    if (l->pp < 1 || ranks / l->tp % l->pp)
        return dt__error(DT_E_USAGE, "%lld pipeline stages do not divide %d ranks by tp %lld: --pp one of %s",
                         (long long)l->pp, ranks, (long long)l->tp,
                         dt__divisors(ranks / l->tp, ranks, list, sizeof list));
    if (l->cp < 1 || ranks / l->tp / l->pp % l->cp)
        return dt__error(DT_E_USAGE, "context parallel degree %lld does not divide %d ranks by tp %lld and pp %lld: "
                         "--cp one of %s", (long long)l->cp, ranks, (long long)l->tp, (long long)l->pp,
                         dt__divisors(ranks / l->tp / l->pp, ranks, list, sizeof list));
    if (!dt__mesh_order(l->order, axis))
        return dt__error(DT_E_USAGE, "mesh order '%s': it is cluster (DPT), spread (TPD) or another order of the "
                         "letters D, P and T, and C inside D or where it is put, slowest first", l->order);
    m->size[DT__TENSOR] = (int)l->tp;
    m->size[DT__PIPE] = (int)l->pp;
    m->size[DT__CONTEXT] = (int)l->cp;
    m->size[DT__DATA] = ranks / (int)(l->tp * l->pp * l->cp);
    for (int i = DT__AXES; i-- > 0;) {
        m->stride[axis[i]] = stride;
        m->at[axis[i]] = rank / stride % m->size[axis[i]];
        stride *= m->size[axis[i]];
    }
    return DT_OK;
}

/* Does a tensor group have ranks on several nodes? Each of its blocks then waits for the network four times. */
static int dt__mesh_crosses(const dt__mesh *m, int ranks_per_node)
{
    int reach = (m->size[DT__TENSOR] - 1) * m->stride[DT__TENSOR];
    for (int d = 0; d < m->size[DT__DATA] * m->size[DT__CONTEXT]; d++)
        for (int p = 0; p < m->size[DT__PIPE]; p++) {
            int first = dt__mesh_rank(m, d / m->size[DT__CONTEXT], p, 0);
            first += d % m->size[DT__CONTEXT] * m->stride[DT__CONTEXT];
            if (first / ranks_per_node != (first + reach) / ranks_per_node) return 1;
        }
    return 0;
}
static const char dt__crossing[] =
    "warning: tensor groups lie across nodes, and every block waits for two all-reduces over the network, forward and "
    "backward: keep tp within a node (order cluster), and pp or data parallel between nodes\n";

DT_API dt_result dt_mesh_table(const dt_layout *l, int ranks, int ranks_per_node, char *text, int64_t size)
{
    size_t used = 0, room = (size_t)dt__max(0, size);
    dt__mesh m;
    dt_result r = dt__mesh_open(&m, l, ranks, 0);
    if (r) return r;
    if (ranks_per_node < 1) return dt__error(DT_E_USAGE, "%d ranks per node: it is 1 or more", ranks_per_node);
    for (int rank = -1; rank <= ranks; rank++) {
        char context[16];
        int n;
        if (rank == ranks && !dt__mesh_crosses(&m, ranks_per_node)) break;
        (void)dt__mesh_open(&m, l, ranks, rank < 0 || rank == ranks ? 0 : rank);
        context[0] = 0;
        if (l->cp > 1 && rank < 0) snprintf(context, sizeof context, " context");
        else if (l->cp > 1) snprintf(context, sizeof context, " %7d", m.at[DT__CONTEXT]);
        if (rank < 0) n = snprintf(text + used, room - used, "rank node data%s pipe tensor\n", context);
        else if (rank == ranks) n = snprintf(text + used, room - used, "%s", dt__crossing);
        else n = snprintf(text + used, room - used, "%4d %4d %4d%s %4d %6d\n", rank, rank / ranks_per_node,
                          m.at[DT__DATA], context, m.at[DT__PIPE], m.at[DT__TENSOR]);
        if ((size_t)n >= room - used)
            return dt__error(DT_E_USAGE, "the table of %d ranks does not fit into %lld bytes: give %d or more", ranks,
                             (long long)size,
                             (l->cp > 1 ? 36 : 28) * (ranks + 1) +
                                 (dt__mesh_crosses(&m, ranks_per_node) ? (int)sizeof dt__crossing : 0));
        used += (size_t)n;
    }
    return DT_OK;
}

/* ---- partition ---------------------------------------------------------------------------------------- */

/* Least sum of squares of the costs of `parts` runs of at most `limit` each; cut[j][i]: where the last of j runs that
 * end at i begins. Returns it, or a negative number when there are none. */
static double dt__partition_under(const double *sum, int64_t n, int64_t parts, double limit, double *best, int32_t *cut)
{
    for (int64_t i = 0; i <= n; i++) best[i] = i ? -1.0 : 0.0;
    for (int64_t j = 1; j <= parts; j++) {
        double *now = best + j * (n + 1);
        const double *before = now - (n + 1);
        for (int64_t i = 0; i <= n; i++) {
            now[i] = -1.0;
            for (int64_t c = i - 1; c >= 0 && sum[i] - sum[c] <= limit; c--) {
                double square = before[c] + (sum[i] - sum[c]) * (sum[i] - sum[c]);
                if (before[c] < 0.0 || (now[i] >= 0.0 && now[i] <= square)) continue;
                now[i] = square;
                cut[j * (n + 1) + i] = (int32_t)c;
            }
        }
    }
    return best[parts * (n + 1) + n];
}

/* The dearest run of the best partition is one of the sums of neighbours: bisection over values. */
DT_API dt_result dt_partition(const double *costs, int64_t n, int64_t parts, int64_t *begin)
{
    double *best, *sum, low = 0.0, high = 0.0;
    int32_t *cut;
    if (parts < 1 || n < parts || n > 100000)
        return dt__error(DT_E_USAGE, "%lld segments cannot be cut into %lld parts: use at most %lld", (long long)n,
                         (long long)parts, (long long)n);
    best = (double *)dt__alloc(8 * ((parts + 2) * (n + 1)), "the partition");
    cut = (int32_t *)dt__alloc(4 * (parts + 1) * (n + 1), "the partition");
    if (!best || !cut) return dt__free(best), dt__free(cut), DT_E_MEMORY;
    sum = best + (parts + 1) * (n + 1);
    for (int64_t i = 0; i < n; i++) {
        sum[i + 1] = sum[i] + (costs[i] > 0.0 ? costs[i] : 0.0);
        low = costs[i] > low ? costs[i] : low;
    }
    high = sum[n];
    for (int k = 0; k < 60 && dt__partition_under(sum, n, parts, low, best, cut) < 0.0; k++) {
        double middle = low + (high - low) / 2;
        if (dt__partition_under(sum, n, parts, middle, best, cut) < 0.0) low = middle;
        else high = middle;
        if (high - low <= 1e-12 * high) low = high;
    }
    for (int64_t j = parts, i = n; j >= 0; j--) {
        begin[j] = i;
        if (j) i = cut[j * (n + 1) + i];
    }
    dt__free(best);
    dt__free(cut);
    return DT_OK;
}

/* ---- schedules: in which order a stage works on units and chunks -------------------------------------- */

/* One stage of work. A stage owns `chunks` runs of segments; run c of stage s is the (c stages + s)-th of the model. */
enum { DT__WORK_FORWARD, DT__WORK_BACKWARD, DT__WORK_WEIGHTS };
typedef struct dt__work {
    int32_t kind, unit, chunk;
    int32_t slot; /* memory of the chunk that holds the unit from forward until its last work */
} dt__work;

typedef struct dt__pipe {
    int kind, stages, chunks, units;
} dt__pipe;

static int64_t dt__pipe_length(const dt__pipe *p)
{
    return (int64_t)p->units * p->chunks * (p->kind == DT_ZERO_BUBBLE ? 3 : 2);
}

/* The k-th forward or backward of a stage: groups of `stages` units go through the chunks in turn. */
static dt__work dt__pipe_nth(const dt__pipe *p, int kind, int64_t k)
{
    dt__work w;
    int64_t inside = k % ((int64_t)p->stages * p->chunks);
    w.kind = kind;
    w.chunk = (int32_t)(inside / p->stages);
    if (kind != DT__WORK_FORWARD) w.chunk = p->chunks - 1 - w.chunk;
    w.unit = (int32_t)(p->chunks == 1 ? k : k / ((int64_t)p->stages * p->chunks) * p->stages + k % p->stages);
    if (p->chunks == 1) w.chunk = 0;
    w.slot = -1;
    return w;
}

/* Forwards that a stage does before its first backward, less the one right before it. GPipe: all (Huang et al. 2019).
 * 1F1B: what fills the stages behind (Narayanan et al. 2019). Interleaved: the same over chunks (Narayanan et al.
 * 2021). Zero-bubble as 1F1B; a stage puts off the gradients of its weights by as many units as there are stages before
 * it, so that they fill the end (ZB-H1 of Qi et al. 2023). Weight gradients are in the order of units in each (R3). */
static void dt__pipe_order(const dt__pipe *p, int stage, dt__work *list)
{
    int64_t total = (int64_t)p->units * p->chunks, ahead = p->stages - 1 - stage, f = 0, b = 0, w = 0;
    int split = p->kind == DT_ZERO_BUBBLE;
    if (p->kind == DT_GPIPE) ahead = total;
    if (p->chunks > 1) ahead = 2 * ahead + (int64_t)(p->chunks - 1) * p->stages;
    while (b < total) {
        if (f < total && f - b <= ahead) {
            *list++ = dt__pipe_nth(p, DT__WORK_FORWARD, f++);
            continue;
        }
        *list++ = dt__pipe_nth(p, DT__WORK_BACKWARD, b++);
        if (split && b - w > stage) *list++ = dt__pipe_nth(p, DT__WORK_WEIGHTS, w++);
    }
    while (split && w < total) *list++ = dt__pipe_nth(p, DT__WORK_WEIGHTS, w++);
}

/* Gives every unit in flight a slot of its chunk; slots[c] becomes how many chunk c needs. slot_of (chunks, units) is
 * scratch. */
static void dt__pipe_slots(const dt__pipe *p, dt__work *list, int32_t *slots, int32_t *slot_of)
{
    int last = p->kind == DT_ZERO_BUBBLE ? DT__WORK_WEIGHTS : DT__WORK_BACKWARD;
    for (int c = 0; c < p->chunks; c++) slots[c] = 0;
    for (int64_t i = 0; i < (int64_t)p->chunks * p->units; i++) slot_of[i] = -1;
    for (int64_t i = 0; i < dt__pipe_length(p); i++) {
        dt__work *w = &list[i];
        int32_t *of = slot_of + (int64_t)w->chunk * p->units;
        if (w->kind == DT__WORK_FORWARD) {
            int32_t slot = 0;
            for (int32_t u = 0; u < p->units; u++)
                if (of[u] == slot) slot++, u = -1;
            of[w->unit] = slot;
            if (slot + 1 > slots[w->chunk]) slots[w->chunk] = slot + 1;
        }
        w->slot = of[w->unit];
        if (w->kind == last) of[w->unit] = -1;
    }
}

/* When the work of all stages begins if a forward takes `time[0]`, a backward time[1], weights time[2], and sending
 * nothing. list, begin (stages, length). Returns the time of the whole, or a negative number when stages wait for each
 * other for ever. end (3, stages x chunks, units) is scratch. */
static double dt__pipe_clock(const dt__pipe *p, const dt__work *list, const double *time, double *begin, double *end)
{
    int64_t length = dt__pipe_length(p), runs = (int64_t)p->stages * p->chunks, all = runs * p->units, done = 0;
    double *free_at = end + 3 * all, whole = 0.0;
    int64_t *next = (int64_t *)(void *)(free_at + p->stages);
    for (int64_t i = 0; i < 3 * all; i++) end[i] = -1.0;
    for (int s = 0; s < p->stages; s++) free_at[s] = 0.0, next[s] = 0;
    for (int moved = 1; moved;) {
        moved = 0;
        for (int s = 0; s < p->stages; s++)
            for (; next[s] < length; next[s]++, moved = 1, done++) {
                const dt__work *w = &list[s * length + next[s]];
                int64_t run = (int64_t)w->chunk * p->stages + s, at = run * p->units + w->unit;
                double start = free_at[s], need = 0.0;
                if (w->kind == DT__WORK_FORWARD && run) need = end[at - p->units];
                if (w->kind == DT__WORK_BACKWARD) need = end[run == runs - 1 ? at : all + at + p->units];
                if (w->kind == DT__WORK_WEIGHTS) need = end[all + at];
                if (need < 0.0) break;
                begin[s * length + next[s]] = start = start > need ? start : need;
                free_at[s] = end[w->kind * all + at] = start + time[w->kind];
                whole = whole > free_at[s] ? whole : free_at[s];
            }
    }
    return done == length * p->stages ? whole : -1.0;
}

static dt_result dt__pipe_check(const dt__pipe *p)
{
    if (p->kind < DT_1F1B || p->kind > DT_ZERO_BUBBLE)
        return dt__error(DT_E_USAGE, "%d is no pipeline schedule: DT_1F1B, DT_GPIPE, DT_INTERLEAVED, DT_ZERO_BUBBLE",
                         p->kind);
    if (p->chunks > 1 && p->units % p->stages)
        return dt__error(DT_E_USAGE,
                         "the interleaved schedule takes micro-batches in groups of %d stages, a rank has up to %d: "
                         "make (shards of the rank) x (micro-batches) a multiple, or use --pipeline 1f1b",
                         p->stages, p->units);
    return DT_OK;
}

/* The picture of a clock: one line per stage, `cell` characters per unit of time. */
static void dt__pipe_draw(const dt__pipe *p, const dt__work *list, const double *begin, const double *time,
                          int64_t width, char *text)
{
    int64_t length = dt__pipe_length(p), line = 9 + 3 * width + 1;
    char cell[32];
    for (int s = 0; s < p->stages; s++) {
        char *row = text + s * line;
        memset(row, ' ', (size_t)line);
        snprintf(cell, sizeof cell, "stage %-3d", s);
        memcpy(row, cell, 9);
        row[line - 1] = '\n';
        for (int64_t i = 0; i < length; i++) {
            const dt__work *w = &list[s * length + i];
            int64_t from = (int64_t)(begin[s * length + i] + 0.5), n = (int64_t)time[w->kind];
            char kind = w->chunk % 2 ? "fbw"[w->kind] : "FBW"[w->kind];
            for (int64_t k = 0; k < n; k++) {
                snprintf(cell, sizeof cell, "%c%-2d", kind, (int)(w->unit % 100));
                memcpy(row + 9 + 3 * (from + k), cell, 3);
            }
        }
    }
    text[p->stages * line] = 0;
}

DT_API dt_result dt_pipeline_grid(const dt_layout *l, int64_t units, char *text, int64_t size, double *idle)
{
    const double time[2][3] = {{1.0, 2.0, 0.0}, {1.0, 1.0, 1.0}};
    dt__pipe p;
    dt__work *list;
    double *begin, whole, busy;
    int64_t length, all;
    dt_result r;
    if (l->pp < 1 || l->pp > 1000 || l->chunks < 1 || l->chunks > 1000 || units < 1 || units > 100000)
        return dt__error(DT_E_USAGE, "--pp and --chunks are 1 to 1000, micro-batches 1 to 100000");
    p.kind = l->pipeline, p.stages = (int)l->pp, p.units = (int)units;
    p.chunks = l->pipeline == DT_INTERLEAVED ? (int)l->chunks : 1;
    if ((r = dt__pipe_check(&p)) != DT_OK) return r;
    length = dt__pipe_length(&p);
    all = (int64_t)p.stages * p.chunks * p.units;
    list = (dt__work *)dt__alloc((int64_t)sizeof *list * length * p.stages, "the schedule");
    begin = (double *)dt__alloc(8 * (length * p.stages + 3 * all + 2 * p.stages), "the schedule");
    if (!list || !begin) return dt__free(list), dt__free(begin), DT_E_MEMORY;
    for (int s = 0; s < p.stages; s++) dt__pipe_order(&p, s, list + s * length);
    whole = dt__pipe_clock(&p, list, time[p.kind == DT_ZERO_BUBBLE], begin, begin + length * p.stages);
    busy = 3.0 * (double)p.units * (double)p.chunks;
    DT_ASSERT(whole > 0.0);
    if (idle) *idle = 1.0 - busy / whole;
    if (text && ((int64_t)whole * 3 + 10) * p.stages >= size)
        r = dt__error(DT_E_USAGE, "the grid does not fit into %lld bytes: give %lld", (long long)size,
                      ((long long)whole * 3 + 10) * p.stages + 1);
    else if (text) dt__pipe_draw(&p, list, begin, time[p.kind == DT_ZERO_BUBBLE], (int64_t)whole, text);
    dt__free(list);
    dt__free(begin);
    return r;
}

/* ---- where this rank keeps parameters and gradients ---------------------------------------------------- */

/* Gradients of neighbouring segments that are reduced together. Parameters lie in the order of the slots, so a piece of
 * a bucket is a piece of both. A tied parameter has a bucket for each use (R8). */
typedef struct dt__bucket {
    int64_t slot, floats; /* its slots in a gradient set; whole blocks */
    int64_t buffer;       /* the same in the buffer that takes the place of a set, or in one of two in turn */
    int64_t param;        /* its parameters; -1: a later use of a tied one */
    int64_t sum;          /* where this rank keeps its piece of the sum when it keeps no other */
    int32_t last, top;    /* of segments last to top; complete after backward of the last */
    int32_t group;        /* buckets of the same segments have the same */
    int32_t tied, use;    /* the parameter, or -1; which of its uses */
    int64_t copies;       /* sums that a set has of it, one behind another: of experts as many as ranks share them */
    int64_t total;        /* its place in a sum of which there is one */
} dt__bucket;

/* A run of segments that a stage works on at once. */
typedef struct dt__chunk {
    int32_t begin, end;  /* segments */
    int32_t first, last; /* of the model? */
    int32_t slots;       /* units in flight */
    int64_t floats;      /* of one slot: input, outputs, saved values */
    float *memory;       /* (slots, floats) */
} dt__chunk;

typedef struct dt__store {
    dt__bucket *bucket;
    int32_t buckets;
    int shards, piece;                  /* of how many ranks that share state this is which one (ZeRO; 1, 0: none do) */
    int64_t slot_floats, buffer_floats; /* a set; the buckets of the same segments, the most, or twice that */
    int64_t total_floats;               /* a set that has one sum of everything */
    int64_t param_floats;               /* of all parameters of this rank's segments */
    int64_t own_params, own_slots;      /* of this rank's pieces */
    int64_t most_params;                /* own_params of the rank that has the most */
    int64_t slice_floats;               /* row slices (R2, R7), of the leaf in work */
    int64_t window;                     /* parameters of the largest segment */
    int64_t *cut;                       /* (buckets, shards + 1): where the owners' pieces of a bucket begin */
    int64_t *own;                       /* (buckets + 1, shards): where a rank keeps its piece of the parameters */
    int32_t *reader;                    /* (buckets): the first segment that reads its parameters */
    int32_t *late;                      /* (segments): of the buckets with its parameters that read last */
} dt__store;

static const int64_t *dt__store_cut(const dt__store *s, int32_t bucket)
{
    return s->cut + (int64_t)bucket * (s->shards + 1);
}

/* Of how many ranks that share the state of a bucket this is which one: experts are shared by those alone that have the
 * same. `rank` counts in the whole group. And the group's rank that has piece j. */
static int dt__bucket_shards(const dt__store *s, int32_t b) { return (int)dt__max(1, s->shards / s->bucket[b].copies); }
static int dt__bucket_piece(const dt__store *s, int32_t b, int rank)
{
    return dt__bucket_shards(s, b) > 1 ? rank / (int)s->bucket[b].copies : 0;
}
static int dt__bucket_owner(const dt__store *s, int32_t b, int j)
{
    int copies = (int)s->bucket[b].copies;
    return dt__bucket_shards(s, b) > 1 ? j * copies + s->piece % copies : s->piece;
}

/* Opens a bucket at the end of the slots. */
static dt__bucket *dt__store_bucket(dt__store *s, int32_t *capacity, int32_t tied, int64_t copies)
{
    dt__bucket *b;
    if (!dt__grow((void **)&s->bucket, s->buckets, capacity, sizeof *s->bucket)) return NULL;
    b = &s->bucket[s->buckets++];
    memset(b, 0, sizeof *b);
    b->slot = s->slot_floats;
    b->total = s->total_floats;
    b->param = s->param_floats;
    b->tied = tied;
    b->copies = copies;
    return b;
}

/* Gives slot k of a segment its place at the end of bucket b, and its parameter, if this is its first use here. */
static void dt__store_slot(dt__store *s, dt__net *net, dt__built *seg, int32_t k, dt__bucket *b)
{
    dt__net_param *p = &net->params[seg->use[k] / 4];
    int64_t floats = dt__round_up(p->count, DT__BLOCK);
    seg->slot[k] = p->slot[seg->use[k] % 4] = b->slot + b->floats;
    s->slot_floats += b->copies * floats;
    s->total_floats += floats;
    b->floats += floats;
    b->use = seg->use[k] % 4;
    if (p->offset < 0) p->offset = s->param_floats, s->param_floats += floats;
    else b->param = -1;
}

/* The buckets of one chunk, in backward order: whole segments of at least `bytes` each but the last. What is summed by
 * other ranks has a bucket of its own: experts that ranks share, and each use of a tied parameter. */
static dt_result dt__store_chunk(dt__store *s, dt__net *net, const dt__chunk *c, int64_t bytes, int32_t *capacity)
{
    enum { MOST, EXPERTS, TIED, KINDS };
    int32_t begun = c->end; /* first segment behind those of the open bucket */
    for (int32_t at = c->end - 1; at >= c->begin; at--) {
        int64_t floats[KINDS] = {0, 0, 0};
        for (int32_t q = at; q < begun; q++)
            for (int32_t k = 0; k < net->segments[q].plan->g->slot_count; k++) {
                const dt__net_param *p = &net->params[net->segments[q].use[k] / 4];
                if (p->uses == 1) floats[dt__param_copies(&p->is) > 1] += dt__round_up(p->count, DT__BLOCK);
            }
        if (4 * (floats[MOST] + floats[EXPERTS]) < bytes && at > c->begin) continue;
        for (int kind = 0; kind < KINDS; kind++) {
            dt__bucket *b = NULL;
            for (int32_t q = begun - 1; q >= at; q--) {
                dt__built *seg = &net->segments[q];
                for (int32_t k = 0; k < seg->plan->g->slot_count; k++) {
                    const dt__net_param *p = &net->params[seg->use[k] / 4];
                    int64_t copies = dt__param_copies(&p->is);
                    if ((p->uses > 1 ? (int)TIED : copies > 1) != kind) continue;
                    if (!b || kind == TIED)
                        b = dt__store_bucket(s, capacity, kind == TIED ? (int32_t)(seg->use[k] / 4) : -1, copies);
                    if (!b) return DT_E_MEMORY;
                    dt__store_slot(s, net, seg, k, b);
                    b->last = kind == TIED ? q : at;
                    b->top = kind == TIED ? q : begun - 1;
                    b->group = at;
                }
            }
        }
        begun = at;
    }
    return DT_OK;
}

/* Places in the buffer: buckets of the same segments are filled together and lie side by side; of two buffers those of
 * the next segments take the other one. */
static void dt__store_buffer(dt__store *s, int buffers)
{
    int64_t most = 0;
    int turn = 0;
    for (int32_t b = 0; b < s->buckets; b++) {
        s->bucket[b].buffer = 0;
        for (int32_t o = 0; o < b; o++)
            if (s->bucket[o].group == s->bucket[b].group)
                s->bucket[b].buffer += s->bucket[o].floats * s->bucket[o].copies;
        most = dt__max(most, s->bucket[b].buffer + s->bucket[b].floats * s->bucket[b].copies);
    }
    s->buffer_floats = most;
    for (int32_t b = 0; b < s->buckets && buffers > 1; b++) {
        if (b && s->bucket[b].group != s->bucket[b - 1].group) turn = !turn, s->buffer_floats = 2 * most;
        s->bucket[b].buffer += turn * most;
    }
}

/* Does backward of a segment write where a bucket's gradients are? */
static int dt__store_writes(const dt__store *s, int buffered, int32_t segment, int32_t bucket)
{
    const dt__bucket *b = &s->bucket[bucket];
    for (int32_t i = 0; i < s->buckets; i++) {
        const dt__bucket *w = &s->bucket[i];
        if (segment < w->last || segment > w->top) continue;
        if (i == bucket) return 1;
        if (buffered && w->buffer < b->buffer + b->floats * b->copies && b->buffer < w->buffer + w->floats * w->copies)
            return 1;
    }
    return 0;
}

/* Where segment's gradients are: in the buffer rather than in the slots; from one sum of shared experts to the next. */
static void dt__store_places(const dt__store *s, dt__built *seg, int buffered)
{
    int32_t slots = seg->plan->g->slot_count;
    for (int32_t k = 0; k < slots; k++) {
        const dt__bucket *b = s->bucket;
        while (seg->slot[k] < b->slot || seg->slot[k] >= b->slot + b->floats) b++;
        if (buffered) seg->slot[k] += b->buffer - b->slot;
        seg->slot[2 * slots + k] = b->copies > 1 ? b->floats : 0;
    }
}

/* Places of row slices but the first, which is the slot; `shared`: leaves are complete after one unit of work, and all
 * segments use the same place. */
static void dt__store_slices(dt__store *s, const dt__net *net, const dt__chunk *c, int shared)
{
    for (int32_t q = c->begin; q < c->end; q++) {
        const dt__built *seg = &net->segments[q];
        int32_t slots = seg->plan->g->slot_count;
        int64_t at = shared ? 0 : s->slice_floats;
        for (int32_t k = 0; k < slots; k++) {
            const dt__net_param *p = &net->params[seg->use[k] / 4];
            seg->slot[slots + k] = p->slices > 1 ? at : -1;
            at += (p->slices - 1) * dt__param_copies(&p->is) * dt__round_up(p->count, DT__BLOCK);
        }
        s->slice_floats = dt__max(s->slice_floats, at);
    }
}

/* With parameters cut over ranks (ZeRO 3) a segment's are gathered into a window before its work: where they are there.
 */
static void dt__store_windows(dt__store *s, dt__net *net, const dt__chunk *c)
{
    for (int32_t q = c->begin; q < c->end; q++) {
        dt__built *seg = &net->segments[q];
        int64_t at = 0;
        for (int32_t i = 0; i < seg->plan->g->param_count; i++) {
            seg->window[i] = at;
            at += dt__round_up(net->params[seg->param_of[i]].count, DT__BLOCK);
        }
        s->window = dt__max(s->window, at);
    }
}

/* Cuts every bucket over the owners: blocks as evenly as possible, those that are left over to another owner in each
 * bucket. Tied buckets are cut alike on all stages. */
static dt_result dt__store_cuts(dt__store *s)
{
    int shards = s->shards;
    s->cut = (int64_t *)dt__alloc(8 * s->buckets * (shards + 1), "the layout");
    s->own = (int64_t *)dt__alloc(8 * (s->buckets + 1) * shards, "the layout");
    if (!s->cut || !s->own) return DT_E_MEMORY;
    for (int32_t b = 0; b < s->buckets; b++) {
        int pieces = dt__bucket_shards(s, b), piece = dt__bucket_piece(s, b, s->piece);
        int64_t blocks = s->bucket[b].floats / DT__BLOCK, each = blocks / pieces, more = blocks % pieces;
        int64_t *cut = s->cut + (int64_t)b * (shards + 1), *own = s->own + (int64_t)b * shards;
        int turn = s->bucket[b].tied >= 0 ? 0 : b % pieces;
        for (int j = 0; j < pieces; j++)
            cut[j + 1] = cut[j] + (each + ((j - turn + pieces) % pieces < more)) * DT__BLOCK;
        for (int rank = 0; rank < shards; rank++) {
            int64_t *of = cut + dt__bucket_piece(s, b, rank);
            own[shards + rank] = own[rank] + (s->bucket[b].param >= 0 ? of[1] - of[0] : 0);
        }
        s->bucket[b].sum = s->own_slots;
        s->own_slots += cut[piece + 1] - cut[piece];
    }
    s->own_params = s->own[(int64_t)s->buckets * shards + s->piece];
    for (int j = 0; j < shards; j++) s->most_params = dt__max(s->most_params, s->own[(int64_t)s->buckets * shards + j]);
    return DT_OK;
}

/* The bucket of a parameter's first use here. */
static int32_t dt__bucket_of(const dt__store *s, int64_t param)
{
    int32_t b = 0;
    while (s->bucket[b].param < 0 || param < s->bucket[b].param || param >= s->bucket[b].param + s->bucket[b].floats)
        b++;
    return b;
}

/* Who needs new parameters first: a tied one is in the bucket of its last use. */
static dt_result dt__store_readers(dt__store *s, const dt__net *net, const dt__chunk *chunks, int count)
{
    s->reader = (int32_t *)dt__alloc(4 * s->buckets, "the layout");
    s->late = (int32_t *)dt__alloc(4 * net->count, "the layout");
    if (!s->reader || !s->late) return DT_E_MEMORY;
    for (int32_t b = 0; b < s->buckets; b++) s->reader[b] = -1;
    for (int c = 0; c < count; c++)
        for (int32_t q = chunks[c].begin; q < chunks[c].end; q++) {
            const dt__built *seg = &net->segments[q];
            s->late[q] = -1;
            for (int32_t i = 0; i < seg->plan->g->param_count; i++) {
                int32_t b = dt__bucket_of(s, net->params[seg->param_of[i]].offset);
                if (s->reader[b] < 0) s->reader[b] = q;
                if (s->late[q] < 0 || s->reader[b] > s->reader[s->late[q]] ||
                    (s->reader[b] == s->reader[s->late[q]] && b > s->late[q]))
                    s->late[q] = b;
            }
        }
    return DT_OK;
}

static void dt__store_close(dt__store *s)
{
    dt__free(s->bucket);
    dt__free(s->cut);
    dt__free(s->own);
    dt__free(s->reader);
    dt__free(s->late);
    memset(s, 0, sizeof *s);
}

/* Lays out the parameters and gradients of chunks[0..count-1]. Later segments' gradients are complete first.
 * buffered: a leaf's gradients live in so many buffers; shared: as above. */
static dt_result dt__store_open(dt__store *s, dt__net *net, const dt__chunk *chunks, int count, int64_t bytes,
                                int buffered, int shared)
{
    int32_t capacity = 0;
    for (int32_t i = 0; i < net->param_count; i++) {
        net->params[i].offset = -1;
        for (int u = 0; u < 4; u++) net->params[i].slot[u] = -1;
    }
    for (int c = count - 1; c >= 0; c--) {
        dt_result r = dt__store_chunk(s, net, &chunks[c], bytes, &capacity);
        if (r) return r;
        dt__store_windows(s, net, &chunks[c]);
        for (int32_t q = chunks[c].begin; q < chunks[c].end; q++)
            for (int32_t i = 0; i < net->segments[q].plan->g->param_count; i++)
                net->segments[q].param[i] = net->params[net->segments[q].param_of[i]].offset;
    }
    dt__store_buffer(s, buffered);
    for (int c = 0; c < count; c++) dt__store_slices(s, net, &chunks[c], shared);
    for (int c = 0; c < count; c++)
        for (int32_t q = chunks[c].begin; q < chunks[c].end; q++) dt__store_places(s, &net->segments[q], buffered);
    if (dt__store_readers(s, net, chunks, count)) return DT_E_MEMORY;
    return dt__store_cuts(s);
}

/* ---- partial sums over data shards ------------------------------------------------------------------------ */

/* Rank r of `ranks` owns the contiguous run [lo, hi) of V shards, as even as possible, longer runs first (R1). */
static void dt__run_of(int64_t shards, int ranks, int rank, int64_t *lo, int64_t *hi)
{
    int64_t each = shards / ranks, more = shards % ranks;
    *lo = rank * each + dt__min(rank, more);
    *hi = *lo + each + (rank < more);
}

/* What a rank's partial sums are when its run is done. */
static void dt__run_parts(int64_t lo, int64_t hi, dt__stack *s)
{
    int32_t set, from;
    memset(s, 0, sizeof *s);
    for (int64_t shard = lo; shard < hi; shard++) {
        dt__stack_push(s, 0, shard);
        while (dt__stack_join(s, &set, &from)) continue;
    }
}

/* ---- the generator of step programs ------------------------------------------------------------------------- */

/* What the generator has to know of a rank. */
typedef struct dt__shape_of_work {
    dt__pipe pipe;
    int stage;
    int64_t lo, hi, micros; /* data shards; micro-batches */
    int64_t ghosts;         /* shards of other ranks beyond its own, where all must gather or reduce in one order */
    int accumulation, zero, recompute;
    int horizon;            /* of offloaded inputs; 0: none are */
    int buffered;           /* one leaf's gradients live in so many bucket buffers, the sum in the total */
    int total;              /* totals are kept apart from the sets */
    int reduce;             /* there are other ranks with gradients of these segments */
    int overlap;            /* and a thread that communicates with them */
    int context;            /* there are others with the other context leaves of the same data shards */
} dt__shape_of_work;

typedef struct dt__program {
    dt_instr *list;
    int32_t count, capacity;
    dt__work *work;
    int64_t works;
    dt__stack parts; /* this rank's partial sums at the end of the run */
    dt_result result;
} dt__program;

/* A unit of work of this rank: in `shard` order all micro-batches of a shard, in `each` all shards of a micro-batch. */
typedef struct dt__work_unit {
    int32_t shard, micro, set;
    int32_t fresh, done; /* first, last micro-batch of its leaf */
    int32_t reduce;      /* the rank's sum is complete */
    int32_t ghost;       /* no work: the rank only gives others its weights */
    dt__stack stack;     /* before the leaf is folded */
} dt__work_unit;

static dt_instr *dt__emit(dt__program *p, int op, int32_t segment, const dt__work_unit *u, const dt__work *w)
{
    dt_instr *i;
    if (!dt__grow((void **)&p->list, p->count, &p->capacity, sizeof *p->list))
        return p->result = DT_E_MEMORY, p->list + p->count - 1;
    i = &p->list[p->count];
    memset(i, 0, sizeof *i);
    i->op = op;
    i->segment = segment;
    i->bucket = i->set = i->from = i->after[1] = -1;
    i->shard = u ? u->shard : -1;
    i->micro = u ? u->micro : -1;
    i->slot = w ? w->slot : -1;
    i->chunk = w ? w->chunk : -1;
    i->after[0] = -1;
    p->count++;
    return i;
}

static void dt__program_units(const dt__shape_of_work *s, dt__work_unit *unit)
{
    int64_t shards = s->hi - s->lo + s->ghosts, count = shards * s->micros;
    int each = s->accumulation == DT_EACH;
    dt__stack stack;
    int32_t set, from;
    memset(&stack, 0, sizeof stack);
    for (int64_t i = 0; i < count; i++) {
        dt__work_unit *u = &unit[i];
        u->shard = (int32_t)(s->lo - s->ghosts + (each ? i % shards : i / s->micros));
        u->micro = (int32_t)(each ? i / shards : i % s->micros);
        if ((u->ghost = u->shard < s->lo) != 0) continue;
        u->fresh = each || u->micro == 0;
        u->done = each || u->micro == s->micros - 1;
        u->reduce = u->done && u->shard == s->hi - 1;
        if (each && u->shard == s->lo) memset(&stack, 0, sizeof stack);
        if (u->fresh) dt__stack_push(&stack, 0, u->shard);
        u->set = stack.node[stack.count - 1].set;
        u->stack = stack;
        while (u->done && dt__stack_join(&stack, &set, &from)) continue;
    }
}

/* After backward of a segment: folds, reduces and adds up the buckets that it completes. */
static void dt__program_buckets(dt__program *p, const dt__shape_of_work *s, const dt__store *store, int32_t segment,
                                const dt__work_unit *u)
{
    for (int32_t b = 0; b < store->buckets; b++) {
        dt__stack joined = u->stack;
        int32_t into, from;
        dt_instr *i;
        if (store->bucket[b].last != segment || !u->done) continue;
        if (s->context) {
            i = dt__emit(p, DT_CONTEXT, -1, NULL, NULL);
            i->bucket = b, i->set = u->set;
        }
        while (dt__stack_join(&joined, &into, &from)) {
            i = dt__emit(p, DT_FOLD, -1, NULL, NULL);
            i->bucket = b, i->set = into, i->from = from;
        }
        if (!u->reduce) continue;
        if (s->reduce) {
            i = dt__emit(p, DT_REDUCE, -1, NULL, NULL);
            i->bucket = b, i->set = joined.node[0].set, i->micro = u->micro;
        }
        if (!s->total) continue;
        i = dt__emit(p, DT_TOTAL, -1, NULL, NULL);
        i->bucket = b, i->from = joined.node[0].set, i->fresh = s->accumulation == DT_SHARD || u->micro == 0;
    }
}

/* The parameters of a segment, unless they were the last to be gathered. */
static void dt__program_gather(dt__program *p, const dt__shape_of_work *s, int32_t segment)
{
    if (s->zero < 3) return;
    for (int32_t i = p->count - 1; i >= 0; i--) {
        if (p->list[i].op != DT_GATHER) continue;
        if (p->list[i].segment == segment) return;
        break;
    }
    dt__emit(p, DT_GATHER, segment, NULL, NULL);
}

static void dt__program_forward(dt__program *p, const dt__shape_of_work *s, const dt__chunk *c, const dt__work_unit *u,
                                const dt__work *w)
{
    if (!u->ghost) dt__emit(p, DT_LOAD, -1, u, w);
    if (!u->ghost && !c->first) dt__emit(p, DT_RECV, c->begin, u, w);
    for (int32_t q = c->begin; q < c->end; q++) {
        dt__program_gather(p, s, q);
        if (u->ghost) continue;
        dt__emit(p, DT_FORWARD, q, u, w);
        if (s->horizon && q) dt__emit(p, DT_OFFLOAD, q, u, w);
    }
    if (!u->ghost && !c->last) dt__emit(p, DT_SEND, c->end - 1, u, w);
}

/* The values that backward of a segment needs are not there any more, unless its forward was the last one
 * and they were not moved away. */
static void dt__program_again(dt__program *p, const dt__shape_of_work *s, int32_t segment, const dt__work_unit *u,
                              const dt__work *w)
{
    if (s->recompute != DT_RECOMPUTE_FULL) return;
    for (int32_t i = p->count - 1; i >= 0 && !s->horizon; i--) {
        const dt_instr *f = &p->list[i];
        if (f->op != DT_FORWARD && f->op != DT_RECOMPUTE) continue;
        if (f->segment == segment && f->shard == u->shard && f->micro == u->micro) return;
        break;
    }
    dt__emit(p, DT_RECOMPUTE, segment, u, w);
}

static void dt__program_backward(dt__program *p, const dt__shape_of_work *s, const dt__store *store, const dt__chunk *c,
                                 const dt__work_unit *u, const dt__work *w)
{
    if (!u->ghost) dt__emit(p, DT_LOAD, -1, u, w);
    if (!u->ghost && !c->last && w->kind == DT__WORK_BACKWARD) dt__emit(p, DT_RECV, c->end - 1, u, w)->back = 1;
    for (int32_t q = c->end - 1; q >= c->begin; q--) {
        dt_instr *i;
        dt__program_gather(p, s, q);
        if (u->ghost) continue;
        for (int32_t f = q == c->end - 1 ? q : q - s->horizon; f >= q - s->horizon && f >= c->begin && s->horizon; f--)
            if (f) dt__emit(p, DT_FETCH, f, u, w);
        if (w->kind == DT__WORK_BACKWARD) dt__program_again(p, s, q, u, w);
        i = dt__emit(p, w->kind == DT__WORK_WEIGHTS ? DT_WEIGHTS : DT_BACKWARD, q, u, w);
        i->set = u->set;
        i->fresh = u->fresh;
        i->completes = u->done && (s->pipe.kind != DT_ZERO_BUBBLE || i->op == DT_WEIGHTS);
        if (s->pipe.kind != DT_ZERO_BUBBLE || w->kind == DT__WORK_WEIGHTS) dt__program_buckets(p, s, store, q, u);
    }
    if (!u->ghost && !c->first && w->kind == DT__WORK_BACKWARD) dt__emit(p, DT_SEND, c->begin, u, w)->back = 1;
}

static int dt__is_work(const dt_instr *i)
{
    return i->op == DT_FORWARD || i->op == DT_RECOMPUTE || i->op == DT_BACKWARD || i->op == DT_WEIGHTS;
}

/* With overlap the parameters of a segment are gathered while the one before is worked with: before the first work with
 * that, when all work with the one whose window they take is done. Each gather moves to the place of the one before it,
 * so they stand between the same reductions on all ranks, also where a ghost has no work. */
static dt_result dt__program_ahead(dt__program *p)
{
    dt_instr *list = (dt_instr *)dt__alloc((int64_t)sizeof *list * p->count, "the step program");
    int32_t n = 0, seen = 0, moved = 0, next = 0; /* gathers; next: where the next one to move is */
    if (!list) return DT_E_MEMORY;
    for (int32_t i = 0; i < p->count; i++) {
        if (p->list[i].op == DT_GATHER) seen++;
        else list[n] = p->list[i], list[n++].window = dt__is_work(&p->list[i]) && !(seen & 1);
        for (; moved <= seen; moved++, next++) {
            while (next < p->count && p->list[next].op != DT_GATHER) next++;
            if (next == p->count) break;
            list[n] = p->list[next], list[n++].window = moved & 1;
        }
    }
    dt__free(p->list);
    p->list = list;
    p->capacity = p->count;
    return DT_OK;
}

/* The last instruction on the other line that work of line 0 needs: the gather of its parameters, and reductions that
 * read what it writes. reduced (buckets): 1 + the last instruction of line 1 that read a bucket. */
static int32_t dt__program_needs(const dt__program *p, const dt__shape_of_work *s, const dt__store *store, int32_t at,
                                 const int32_t *reduced)
{
    const dt_instr *i = &p->list[at];
    int32_t need = -1, g = at;
    if (s->zero > 2) {
        while (p->list[g].op != DT_GATHER || p->list[g].segment != i->segment) g--;
        need = g;
    } else if (s->zero && i->op == DT_FORWARD && store->late[i->segment] >= 0) {
        for (g = p->count - 1; p->list[g].bucket != store->late[i->segment];) g--; /* of the step before */
        need = g;
    }
    for (int32_t b = 0; b < store->buckets && (i->op == DT_BACKWARD || i->op == DT_WEIGHTS); b++)
        if (reduced[b] > need + 1 && dt__store_writes(store, s->buffered, i->segment, b)) need = reduced[b] - 1;
    return need;
}

/* Which line each instruction is on, and what it needs of the other one. */
static dt_result dt__program_lines(dt__program *p, const dt__shape_of_work *s, const dt__store *store)
{
    int32_t *reduced = (int32_t *)dt__alloc(4 * store->buckets, "the step program"), last[DT__LINES];
    if (!reduced) return DT_E_MEMORY;
    last[0] = last[1] = -1;
    for (int32_t k = 0; k < p->count; k++) {
        dt_instr *i = &p->list[k];
        i->line = s->overlap && (i->op == DT_REDUCE || i->op == DT_TOTAL || i->op == DT_GATHER);
        i->after[0] = last[i->line];
        if (i->line) i->after[1] = last[0];
        else if (s->overlap && dt__is_work(i)) i->after[1] = dt__program_needs(p, s, store, k, reduced);
        else if (i->op == DT_TIE || i->op == DT_UPDATE) i->after[1] = last[1];
        if (i->line && i->bucket >= 0) reduced[i->bucket] = k + 1;
        last[i->line] = k;
    }
    dt__free(reduced);
    return DT_OK;
}

static void dt__program_close(dt__program *p)
{
    dt__free(p->list);
    dt__free(p->work);
    memset(p, 0, sizeof *p);
}

/* The program of a rank: its stage's work in the order of the schedule, then the update. Sets chunks[].slots. */
static dt_result dt__program_open(dt__program *p, const dt__shape_of_work *s, const dt__store *store, dt__chunk *chunks)
{
    dt__work_unit *unit = (dt__work_unit *)dt__alloc((int64_t)sizeof *unit * s->pipe.units, "the step program");
    int32_t *slot = (int32_t *)dt__alloc(4 * ((int64_t)s->pipe.chunks * (s->pipe.units + 1)), "the step program");
    p->works = dt__pipe_length(&s->pipe);
    p->work = (dt__work *)dt__alloc((int64_t)sizeof *p->work * p->works, "the step program");
    if (!unit || !slot || !p->work) return dt__free(unit), dt__free(slot), DT_E_MEMORY;
    dt__run_parts(s->lo, s->hi, &p->parts);
    dt__program_units(s, unit);
    dt__pipe_order(&s->pipe, s->stage, p->work);
    dt__pipe_slots(&s->pipe, p->work, slot, slot + s->pipe.chunks);
    for (int c = 0; c < s->pipe.chunks; c++) chunks[c].slots = slot[c];
    for (int64_t k = 0; k < p->works; k++) {
        const dt__work *w = &p->work[k];
        if (w->kind == DT__WORK_FORWARD) dt__program_forward(p, s, &chunks[w->chunk], &unit[w->unit], w);
        else dt__program_backward(p, s, store, &chunks[w->chunk], &unit[w->unit], w);
    }
    dt__emit(p, DT_TIE, -1, NULL, NULL);
    dt__emit(p, DT_UPDATE, -1, NULL, NULL);
    for (int c = 0; c < s->pipe.chunks && s->zero && s->zero < 3; c++) /* in the order in which they will be read */
        for (int32_t q = chunks[c].begin; q < chunks[c].end; q++)
            for (int32_t b = 0; b < store->buckets; b++)
                if (store->bucket[b].param >= 0 && store->reader[b] == q)
                    dt__emit(p, DT_GATHER, -1, NULL, NULL)->bucket = b;
    if (!p->result && s->overlap && s->zero > 2) p->result = dt__program_ahead(p);
    if (!p->result) p->result = dt__program_lines(p, s, store);
    dt__free(unit);
    dt__free(slot);
    return p->result;
}

#define DT__INSTR_NAME(code, name) name,
static const char *const dt__instr_names[] = {DT_INSTRUCTIONS(DT__INSTR_NAME)};
#undef DT__INSTR_NAME

/* "BACKWARD shard 2 micro 0 segment 4 set 1": one line of the printed program. */
static void dt__instr_text(const dt_instr *i, char *text, size_t size)
{
    const struct {
        const char *name;
        int32_t value;
    } field[] = {{"shard", i->shard}, {"micro", i->micro}, {"segment", i->segment}, {"slot", i->slot},
                 {"bucket", i->bucket}, {"set", i->set}, {"from", i->from}, {"after", i->line ? -1 : i->after[1]}};
    int used =
        snprintf(text, size, "%s%-9s%s", i->line ? "| " : "", dt__instr_names[i->op], i->back ? " gradient" : "");
    for (int f = 0; f < 8; f++)
        if (field[f].value >= 0 && (size_t)used < size)
            used += snprintf(text + used, size - (size_t)used, " %s %d", field[f].name, field[f].value);
}

/* ---- work in the background ------------------------------------------------------------------------------ */

/* A thread that does jobs one after another in the order in which another one, its user, asks for them. Jobs are
 * numbered from 0; a ticket is one more. After the first that fails it does no others. Without threads a job is done
 * when it is asked for. */
typedef dt_result (*dt__job_fn)(void *owner, int64_t job);
typedef struct dt__queue {
    dt__job_fn run;
    void *owner;
    int64_t room;           /* jobs that may be under way */
    int64_t asked, done;
    double waited, hidden;  /* seconds: the user waited; a job was under way and the user did not wait */
    double since;           /* when they were added up last */
    int busy, waiting;
    int64_t wanted;         /* the ticket that the user waits for */
    dt__lane *lane;         /* of the rank whose threads call communicators; NULL: they do not */
    dt_result result;
    char error[sizeof dt__thread.error];
#ifndef DT_NO_THREADS
    pthread_mutex_t lock; /* guards all that changes, but the user alone writes asked */
    pthread_cond_t change;
    pthread_t thread;
    int quit;
#endif
    int running;
} dt__queue;

/* Time goes to one of the two sums at most, so what they add up to is what the jobs took. Others who wait for this rank
 * find out for whom it waits (dt__find_culprit). */
static void dt__queue_mark(dt__queue *q, int busy, int waiting)
{
    double now = dt__now();
    int user = waiting && q->done < q->wanted ? DT__OTHER_LINE : 0, thread = busy ? 0 : DT__OTHER_LINE;
    if (q->waiting) q->waited += now - q->since;
    else if (q->busy) q->hidden += now - q->since;
    q->since = now;
    if (q->lane && (q->waiting || waiting)) __atomic_store_n(&q->lane->line[0].waiting, user, __ATOMIC_RELAXED);
    if (q->lane && q->busy != busy) __atomic_store_n(&q->lane->line[1].waiting, thread, __ATOMIC_RELAXED);
    q->busy = busy;
    q->waiting = waiting;
}

#ifndef DT_NO_THREADS
static void *dt__queue_main(void *argument)
{
    dt__queue *q = (dt__queue *)argument;
    unsigned saved = dt__fp_enter();
    pthread_mutex_lock(&q->lock);
    for (;;) {
        dt_result r = q->result;
        while (q->done == q->asked && !q->quit) pthread_cond_wait(&q->change, &q->lock);
        if (q->done == q->asked) break;
        pthread_mutex_unlock(&q->lock);
        if (!r) r = q->run(q->owner, q->done);
        pthread_mutex_lock(&q->lock);
        if (r && !q->result) memcpy(q->error, dt__thread.error, sizeof q->error);
        q->result = r;
        q->done++;
        dt__queue_mark(q, q->done < q->asked, q->waiting);
        pthread_cond_broadcast(&q->change);
    }
    pthread_mutex_unlock(&q->lock);
    dt__fp_leave(saved);
    return NULL;
}
#endif

/* `what` the thread does, for the sentence when there is none. */
static dt_result dt__queue_open(dt__queue *q, dt__job_fn run, void *owner, int64_t room, const char *what)
{
    memset(q, 0, sizeof *q);
    q->run = run;
    q->owner = owner;
    q->room = room;
#ifndef DT_NO_THREADS
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->change, NULL);
    if ((errno = pthread_create(&q->thread, NULL, dt__queue_main, q)) != 0) {
        pthread_mutex_destroy(&q->lock);
        pthread_cond_destroy(&q->change);
        return dt__error(DT_E_SYSTEM, "no thread to %s (%s)", what, strerror(errno));
    }
#else
    (void)what;
#endif
    q->running = 1;
    return DT_OK;
}

/* Ends after the last job that was asked for. */
static void dt__queue_close(dt__queue *q)
{
    if (!q->running) return;
#ifndef DT_NO_THREADS
    pthread_mutex_lock(&q->lock);
    q->quit = 1;
    pthread_cond_broadcast(&q->change);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->change);
#endif
    q->running = 0;
}

/* Returns when the job of this ticket is done; what failed is the caller's error then. */
static dt_result dt__queue_wait(dt__queue *q, int64_t ticket)
{
    dt_result r;
#ifndef DT_NO_THREADS
    pthread_mutex_lock(&q->lock);
    if (q->done < ticket) {
        q->wanted = ticket;
        dt__queue_mark(q, q->busy, 1);
        while (q->done < ticket) pthread_cond_wait(&q->change, &q->lock);
        dt__queue_mark(q, q->busy, 0);
    }
    r = q->result;
    pthread_mutex_unlock(&q->lock);
#else
    (void)ticket;
    r = q->result;
#endif
    return r ? dt__error(r, "%s", q->error) : DT_OK;
}

/* The number of the next job, when there is room for it; then dt__queue_ask. */
static int64_t dt__queue_next(dt__queue *q)
{
    (void)dt__queue_wait(q, q->asked - q->room + 1);
    return q->asked;
}

/* Asks for it; returns its ticket. */
static int64_t dt__queue_ask(dt__queue *q)
{
#ifndef DT_NO_THREADS
    pthread_mutex_lock(&q->lock);
    q->asked++;
    dt__queue_mark(q, 1, 0);
    pthread_cond_broadcast(&q->change);
    pthread_mutex_unlock(&q->lock);
#else
    q->result = q->result ? q->result : q->run(q->owner, q->asked);
    q->done = ++q->asked;
#endif
    return q->asked;
}

/* Is anything left to be done? */
static int dt__queue_pending(dt__queue *q)
{
    int pending;
#ifndef DT_NO_THREADS
    pthread_mutex_lock(&q->lock);
    pending = q->done < q->asked;
    pthread_mutex_unlock(&q->lock);
#else
    pending = q->done < q->asked;
#endif
    return pending;
}

/* The two sums up to now. */
static void dt__queue_times(dt__queue *q, double *waited, double *hidden)
{
#ifndef DT_NO_THREADS
    if (q->running) pthread_mutex_lock(&q->lock);
    dt__queue_mark(q, q->busy, q->waiting);
#endif
    *waited = q->waited;
    *hidden = q->hidden;
#ifndef DT_NO_THREADS
    if (q->running) pthread_mutex_unlock(&q->lock);
#endif
}

/* ---- the way to a second memory --------------------------------------------------------------------- */

/* Copies in the background. With a rate each takes as long as the bytes would take over such a link. */
enum { DT__MOVES = 64 };
typedef struct dt__mover {
    dt__queue queue;
    struct {
        float *to;
        const float *from;
        int64_t count;
    } move[DT__MOVES];
    double rate; /* bytes per second, 0: any */
} dt__mover;

static dt_result dt__mover_copy(void *owner, int64_t job)
{
    dt__mover *m = (dt__mover *)owner;
    const int64_t bytes = 4 * m->move[job % DT__MOVES].count;
    double end = dt__now() + (m->rate > 0.0 ? (double)bytes / m->rate : 0.0);
    memcpy(m->move[job % DT__MOVES].to, m->move[job % DT__MOVES].from, (size_t)bytes);
    while (m->rate > 0.0 && dt__now() < end) dt__nap();
    return DT_OK;
}

/* Asks for a copy; neither side may be touched before dt__queue_wait() of the ticket that it returns. */
static int64_t dt__mover_ask(dt__mover *m, float *to, const float *from, int64_t count)
{
    int64_t n = dt__queue_next(&m->queue);
    m->move[n % DT__MOVES].to = to;
    m->move[n % DT__MOVES].from = from;
    m->move[n % DT__MOVES].count = count;
    return dt__queue_ask(&m->queue);
}

/* The inputs and outputs of the segments in work while those of units in flight are in the second memory: a ring of
 * buffers. */
typedef struct dt__ring {
    dt__mover mover;
    float *memory;   /* (places, widest), then one output that nobody keeps */
    int64_t *ticket; /* (places): the last copy from or to it */
    int32_t *place;  /* (segments): where its input is */
    int places, next, output;
} dt__ring;

/* A free place of the ring. */
static int dt__ring_take(dt__ring *r)
{
    int place = r->next++ % r->places;
    (void)dt__queue_wait(&r->mover.queue, r->ticket[place]);
    return place;
}

/* ---- the executor ---------------------------------------------------------------------------------- */

enum { DT__OUTBOX = 4 }; /* messages to a neighbour that may be under way */

/* A stage's way to its neighbours in one direction: activations go to later stages, gradients to earlier ones. */
typedef struct dt__outbox {
    dt_comm *comm;   /* the stages of this rank's pipeline */
    float *memory;   /* (DT__OUTBOX, widest) */
    uint32_t ticket[DT__OUTBOX];
    int32_t to[DT__OUTBOX], count;
} dt__outbox;

/* The ranks that keep the same parameters. */
typedef struct dt__sharing {
    dt_comm *data;     /* they sum gradients; NULL: this rank alone, as below */
    dt_comm *group;    /* of those, the ones that share one copy of the state (ZeRO) */
    dt_comm *replicas; /* those with the same piece of other copies (hybrid sharding) */
} dt__sharing;

/* Everything that one rank runs a program with. Memory is allocated once, before step 1. */
typedef struct dt__engine {
    const dt_recipe *recipe;
    const dt_layout *layout;
    dt_comm *comm;     /* all ranks */
    dt_comm *same;     /* those with the same segments and tensor shards; NULL: this rank alone, as below */
    dt__sharing ranks, expert_ranks; /* of those, the ones with the same context leaves; and the same shared experts */
    dt_comm *context;  /* those with the other context leaves of the same samples */
    dt_comm *expert;   /* those with the other experts of the same segments */
    dt_comm *tensor;   /* those with the other tensor shards of the same segments and samples */
    dt_comm *copy;     /* the ranks that hold one copy of the whole state together */
    dt__outbox out[2]; /* activations, gradients */
    uint32_t posted[DT__CP_PLACES]; /* blocks on their way to context ranks, and to which, 1 more; 0: to none */
    int32_t posted_to[DT__CP_PLACES];
    dt__mesh mesh;
    const dt__kernels *k;
    dt_pool *pool;
    dt__net net;
    dt__chunk *chunks;
    dt__store store;
    dt__shape_of_work shape;
    dt__program program;
    int64_t lo, hi, micros, rows; /* this rank's shards; micro-batches; samples per unit */
    float *params;                /* weights: all of this rank's segments, or its pieces (ZeRO 3) */
    float *stage;                 /* rows on their way to the ranks with their experts, or back */
    float *window;                /* ZeRO 3: the parameters of the segment in work */
    void *state[DT__STATE_COUNT]; /* of the optimizer, for this rank's pieces; NULL where there is none */
    float *sets;                  /* (sets, set_floats): gradients */
    float *total;                 /* their sum, when it is kept apart */
    float *row_slices;            /* of the leaf in work */
    int64_t set_floats;
    int32_t sets_count;
    float *saved;                 /* of the segment in work, when values are recomputed */
    dt__ring ring;                /* of offloaded inputs */
    float *temp, *gradient[2];
    float *tie[2];                /* the gradients of tied parameters on their way between stages */
    dt__extent *spans;            /* the pieces of one gather */
    float *sums;                  /* block sums of all gradients */
    int64_t blocks;
    dt__part *parts, *replica_parts; /* partial sums of ranks.data or group; and where each rank has one, of others */
    int *part_count, *replica_count;
    dt__env env;
    dt__powers powers;
    float *shard_loss;            /* (shards of this rank, leaves of this rank) */
    float *shard_auxiliary;       /* (shards, leaves, segments): auxiliary losses times their coefficients */
    float *asked;                 /* (net.routed): choices of each expert in this step, of this rank's units */
    float inv_valid, norm, rate;
    int64_t step;
    dt_result exchanged;          /* of what ops do with other ranks, which cannot fail where it is done */
    const void *input, *target;   /* of the unit in work: (rows,inputs) and (rows,targets), int32 or floats */
    dt__queue queue;              /* of line 1 of the program; not running without overlap */
    int32_t *queued;              /* (program.count), in turn: what a job is (dt__engine_ask) */
    int64_t *ticket;              /* (program.count): of the last job that an instruction was */
    int window_in_work;
    double seconds_sending;       /* on line 0: without overlap all communication, with it that of stages and shards */
    uint32_t *own_tokens;         /* with context shards these: the rows' tokens and targets of this rank's leaves */
    double *when;                 /* (instructions, 2): begin and end of each in this step; NULL: nobody looks */
} dt__engine;

static int dt__engine_last(const dt__engine *e) { return e->chunks[e->shape.pipe.chunks - 1].last; }

/* ---- opening: mesh, partition, communicators, memory ---- */

/* A communicator of `size` ranks, NULL for one; all ranks when it has them all. Collective over `from`. */
static dt_result dt__engine_split(dt_comm *from, int size, int color, dt_comm **sub)
{
    *sub = NULL;
    if (size == 1) return DT_OK;
    if (size == dt_comm_size(from)) return *sub = from, DT_OK;
    return dt_comm_split(from, color, sub);
}

/* The shard groups of ZeRO: `group` ranks along the data axis share one copy of the state. Across groups whole subtrees
 * are added, so a group's shards must be one. */
static dt_result dt__engine_groups(dt__engine *e, int *group)
{
    const dt_layout *l = e->layout;
    int dp = e->mesh.size[DT__DATA];
    int64_t shards = e->recipe->data_shards;
    char list[256];
    *group = l->zero ? (l->zero_group ? (int)dt__min(l->zero_group, dp + 1) : dp) : 1;
    if (l->zero_group && !l->zero)
        return dt__error(DT_E_USAGE, "--zero-group %lld: nothing is shared without --zero 1, 2 or 3",
                         (long long)l->zero_group);
    if (l->zero < 0 || l->zero > 3)
        return dt__error(DT_E_USAGE, "ZeRO stage %lld: it is 0 (nothing is shared), 1 (optimizer state), 2 (and "
                         "gradients) or 3 (and weights)", (long long)l->zero);
    if (l->zero_group < 0 || dp % *group)
        return dt__error(DT_E_USAGE, "groups of %lld do not divide %d data-parallel ranks: --zero-group one of %s",
                         (long long)l->zero_group, dp, dt__divisors(dp, dp, list, sizeof list));
    if (*group < dp && *group > 1 && (shards % dp || !dt__is_pow2(dp / *group)))
        return dt__error(DT_E_USAGE, "groups of %d among %d ranks with %lld data shards are not whole branches of the "
                         "tree: let dp be a power of two, or leave --zero-group out", *group, dp, (long long)shards);
    return DT_OK;
}

/* The ranks that share experts work on as many units each, in step, and their sums are whole branches of the tree: so
 * many neighbours at most, or a smaller power of two. Other groups may have fewer shards. */
static int64_t dt__experts_most(int64_t shards, int dp)
{
    int64_t lo, hi, first, end, ep = 1;
    for (; dp % (2 * ep) == 0; ep *= 2)
        for (int d = 0; d < dp; d++) {
            dt__run_of(shards, dp, d, &lo, &hi);
            dt__run_of(shards, dp, (int)(d - d % (2 * ep)), &first, &end);
            if (hi - lo != end - first || !dt__is_pow2(hi - lo) || first % (2 * ep * (hi - lo))) return ep;
        }
    return ep;
}
static dt_result dt__engine_experts(const dt__engine *e)
{
    const dt_layout *l = e->layout;
    int dp = e->mesh.size[DT__DATA];
    int64_t most = dt__experts_most(e->recipe->data_shards, dp);
    char list[256];
    if (l->ep < 1 || dp % l->ep)
        return dt__error(DT_E_USAGE, "expert parallel degree %lld does not divide %d data-parallel ranks: --ep one of "
                         "%s", (long long)l->ep, dp, dt__divisors(dp, dp, list, sizeof list));
    if (l->ep > 1 && (!dt__is_pow2(l->ep) || l->ep > most))
        return dt__error(DT_E_USAGE,
                         "--ep %lld: the ranks of each group need as many data shards, together a branch of the tree: "
                         "with %d data-parallel ranks on %lld shards --ep one of %s, or let dp be a power of two",
                         (long long)l->ep, dp, (long long)e->recipe->data_shards,
                         dt__divisors(most, most, list, sizeof list));
    return DT_OK;
}

/* Who sums gradients with whom. */
static dt_result dt__engine_comms(dt__engine *e, int group)
{
    const dt__mesh *m = &e->mesh;
    int d = m->at[DT__DATA], p = m->at[DT__PIPE], t = m->at[DT__TENSOR], dp = m->size[DT__DATA], pp = m->size[DT__PIPE];
    int tp = m->size[DT__TENSOR], ep = (int)e->layout->ep, most = (int)dt__max(group, ep);
    int c = m->at[DT__CONTEXT], cp = m->size[DT__CONTEXT];
    dt__sharing *x = &e->expert_ranks;
    dt_result r = dt__engine_split(e->comm, dp * cp, p * tp + t, &e->same);
    if (!r && dp > 1)
        r = e->shape.overlap ? dt_comm_split(e->same, c, &e->ranks.data) /* another thread's own */
                             : dt__engine_split(e->same, dp, c, &e->ranks.data);
    if (!r && cp > 1) r = dt__engine_split(e->same, cp, d, &e->context);
    if (!r && group > 1) r = dt__engine_split(e->ranks.data, group, d / group, &e->ranks.group);
    if (!r && group > 1) r = dt__engine_split(e->ranks.data, dp / group, d % group, &e->ranks.replicas);
    if (!r && ep > 1) r = dt__engine_split(e->comm, ep, ((p * tp + t) * cp + c) * dp + d / ep, &e->expert);
    if (!r && ep > 1) r = dt__engine_split(e->ranks.data, dp / ep, d % ep, &x->data);
    if (!r && ep > 1 && group > ep) r = dt__engine_split(x->data, group / ep, d / group, &x->group);
    if (!r && ep > 1 && group > ep) r = dt__engine_split(x->data, dp / group, d % group / ep, &x->replicas);
    if (!r) r = dt__engine_split(e->comm, tp, (d * cp + c) * pp + p, &e->tensor);
    if (!r) r = dt__engine_split(e->comm, most * pp * tp, d / most * cp + c, &e->copy);
    for (int way = 0; way < 2 && !r && pp > 1; way++) {
        void *memory = NULL;
        r = dt_comm_split(e->comm, (d * cp + c) * tp + t, &e->out[way].comm);
        if (!r) r = dt_comm_alloc(e->out[way].comm, 4 * DT__OUTBOX * e->net.widest, &memory);
        e->out[way].memory = (float *)memory;
    }
    return r;
}

/* Segments to stages by cost: time in FLOPs, memory in bytes of state and saved values. */
static dt_result dt__engine_partition(dt__engine *e)
{
    int64_t n = e->net.count, runs = (int64_t)e->shape.pipe.stages * e->shape.pipe.chunks, *begin;
    double *cost, flops = e->net.forward_flops + e->net.backward_flops, weight = (double)e->layout->memory_weight;
    double bytes = 16.0 * (double)e->net.weights + 4.0 * (double)e->net.saved;
    dt_result r;
    if (runs > n)
        return dt__error(DT_E_USAGE, "%lld segments cannot fill %d stages%s: --pp up to %lld, or more --layers",
                         (long long)n, e->shape.pipe.stages, e->shape.pipe.chunks > 1 ? " of several chunks" : "",
                         (long long)(n / e->shape.pipe.chunks));
    cost = (double *)dt__alloc(8 * n + 8 * (runs + 1), "the partition");
    e->chunks = (dt__chunk *)dt__alloc((int64_t)sizeof *e->chunks * e->shape.pipe.chunks, "the partition");
    if (!cost || !e->chunks) return dt__free(cost), DT_E_MEMORY;
    begin = (int64_t *)(void *)(cost + n);
    for (int64_t s = 0; s < n; s++) {
        const dt__plan *p = e->net.segments[s].plan;
        double weights = 0.0;
        for (int32_t i = 0; i < p->g->param_count; i++) weights += (double)dt_shape_count(p->g->params[i].shape);
        cost[s] = weight * (16.0 * weights + 4.0 * (double)p->saved) / bytes;
        if (flops > 0.0) cost[s] += (1.0 - weight) * (p->forward_flops + p->backward_flops) / flops;
    }
    r = dt_partition(cost, n, runs, begin);
    for (int c = 0; c < e->shape.pipe.chunks && !r; c++) {
        int64_t run = (int64_t)c * e->shape.pipe.stages + e->mesh.at[DT__PIPE];
        e->chunks[c].begin = (int32_t)begin[run];
        e->chunks[c].end = (int32_t)begin[run + 1];
        e->chunks[c].first = run == 0;
        e->chunks[c].last = run == runs - 1;
    }
    for (int64_t s = 0; s < n && !r; s++) {
        int64_t run = 0;
        while (begin[run + 1] <= s) run++;
        e->net.segments[s].stage = (int32_t)(run % e->shape.pipe.stages);
        for (int32_t k = 0; k < e->net.segments[s].plan->g->slot_count; k++) {
            int32_t use = e->net.segments[s].use[k];
            e->net.params[use / 4].stage[use % 4] = e->net.segments[s].stage;
        }
    }
    dt__free(cost);
    return r;
}

#ifdef DT_NO_THREADS
enum { DT__THREADS = 0 };
#else
enum { DT__THREADS = 1 };
#endif
/* Threads of a rank: as asked for, or its share of the cores. */
static int64_t dt__engine_threads(const dt_layout *l, int64_t ranks)
{
    return l->threads ? l->threads : dt__max(1, (int64_t)sysconf(_SC_NPROCESSORS_ONLN) / ranks);
}
static int dt__engine_overlaps(const dt__engine *e)
{
    int64_t ranks = dt_comm_size(e->comm);
    if (!DT__THREADS || e->layout->overlap == DT_OVERLAP_OFF) return 0;
    if (e->layout->overlap == DT_OVERLAP_ON) return 1;
    return ranks * dt__engine_threads(e->layout, ranks) < (int64_t)sysconf(_SC_NPROCESSORS_ONLN);
}

/* What the layout makes of the work. */
static dt_result dt__engine_shape(dt__engine *e)
{
    const dt_layout *l = e->layout;
    dt__shape_of_work *s = &e->shape;
    int dp = e->mesh.size[DT__DATA];
    dt__run_of(e->recipe->data_shards, dp, e->mesh.at[DT__DATA], &e->lo, &e->hi);
    s->pipe.kind = l->pipeline;
    s->pipe.stages = e->mesh.size[DT__PIPE];
    s->pipe.chunks = l->pipeline == DT_INTERLEAVED && s->pipe.stages > 1 ? (int)l->chunks : 1;
    s->stage = e->mesh.at[DT__PIPE];
    s->lo = e->lo, s->hi = e->hi, s->micros = e->micros;
    s->accumulation = e->micros > 1 ? e->recipe->accumulation : DT_SHARD;
    s->zero = dp > 1 && l->zero_group != 1 ? (int)l->zero : 0;
    s->ghosts = s->zero > 2 || s->pipe.chunks > 1 ? dt__ceil_div(e->recipe->data_shards, dp) - (e->hi - e->lo) : 0;
    s->pipe.units = (int)((e->hi - e->lo + s->ghosts) * e->micros);
    s->recompute = l->recompute;
    s->horizon = l->offload ? (int)l->horizon : 0;
    s->reduce = dp > 1;
    s->overlap = dp > 1 && dt__engine_overlaps(e);
    s->context = e->mesh.size[DT__CONTEXT] > 1;
    s->buffered = dp == e->recipe->data_shards && (s->accumulation == DT_EACH || (e->micros == 1 && s->zero > 1));
    s->buffered += s->buffered && s->overlap;
    s->total = s->buffered || s->accumulation == DT_EACH;
    if (!DT__THREADS && l->overlap == DT_OVERLAP_ON)
        return dt__error(DT_E_USAGE, "--overlap on needs a thread, and this program was built with DT_NO_THREADS: "
                         "leave it out, or build without");
    if (l->pipeline == DT_INTERLEAVED && l->chunks < 1)
        return dt__error(DT_E_USAGE, "--chunks %lld: the interleaved schedule has 1 or more per stage",
                         (long long)l->chunks);
    if (l->offload && l->recompute != DT_RECOMPUTE_FULL)
        return dt__error(DT_E_USAGE, "--offload moves the inputs of segments that --recompute full keeps: choose both");
    if (l->offload && (l->horizon < 1 || l->horizon > 1000 || !(l->offload_rate >= 0.0f)))
        return dt__error(DT_E_USAGE, "--horizon %lld is 1 to 1000 segments, and --offload-rate %g 0 or more bytes/s",
                         (long long)l->horizon, (double)l->offload_rate);
    if (l->pipeline == DT_ZERO_BUBBLE && l->recompute == DT_RECOMPUTE_FULL)
        return dt__error(DT_E_USAGE, "zero-bubble keeps values until the weights' gradients: choose --recompute none, "
                         "or another --pipeline");
    return dt__pipe_check(&s->pipe);
}

/* Partial sums of `ranks` ranks from data-parallel rank `from` on, counted from their first leaf. */
static dt_result dt__engine_parts(dt__engine *e, int from, int ranks, dt__part **parts, int **counts)
{
    int64_t shards = e->recipe->data_shards, base = 0, hi, count = 0;
    dt__stack s;
    *parts = (dt__part *)dt__alloc((int64_t)sizeof **parts * 64 * ranks, "the reduction plan");
    *counts = (int *)dt__alloc((int64_t)sizeof **counts * ranks, "the reduction plan");
    if (!*parts || !*counts) return DT_E_MEMORY;
    for (int rank = 0; rank < ranks; rank++) {
        int64_t lo;
        dt__run_of(shards, e->mesh.size[DT__DATA], from + rank, &lo, &hi);
        if (!rank) base = lo;
        dt__run_parts(lo, hi, &s);
        (*counts)[rank] = s.count;
        for (int i = 0; i < s.count; i++, count++) {
            (*parts)[count].level = s.node[i].level;
            (*parts)[count].index = s.node[i].index - (base >> s.node[i].level);
            (*parts)[count].offset = s.node[i].set * e->set_floats;
        }
        if (s.sets > e->sets_count) e->sets_count = s.sets; /* symmetric memory */
    }
    return DT_OK;
}

/* How gradients are reduced: over all ranks of the data axis, or inside a group, and then between groups. */
static dt_result dt__engine_reduction(dt__engine *e, int group)
{
    int d = e->mesh.at[DT__DATA], dp = e->mesh.size[DT__DATA], ranks = group > 1 ? group : dp;
    int uneven = e->recipe->data_shards % dp != 0; /* then there are replicas of experts alone: a branch of ep ranks */
    int64_t ep = uneven ? e->layout->ep : 1, lo, hi;
    dt_result r = DT_OK;
    e->set_floats = e->shape.buffered ? e->store.buffer_floats : e->store.slot_floats;
    e->sets_count = 1;
    r = dt__engine_parts(e, group > 1 ? d / group * group : 0, ranks, &e->parts, &e->part_count);
    if (r || (!e->ranks.replicas && !e->expert_ranks.data)) return r;
    e->replica_parts = (dt__part *)dt__alloc((int64_t)sizeof *e->parts * dp, "the reduction plan");
    e->replica_count = (int *)dt__alloc((int64_t)sizeof(int) * dp, "the reduction plan");
    if (!e->replica_parts || !e->replica_count) return DT_E_MEMORY;
    for (int i = 0; i < dp; i++) {
        dt__part *part = &e->replica_parts[i];
        dt__run_of(uneven ? e->recipe->data_shards : dp, dp, (int)(i * ep % dp), &lo, &hi);
        e->replica_count[i] = 1;
        part->level = 0;
        while ((int64_t)1 << part->level < ep * (hi - lo)) part->level++;
        part->index = lo >> part->level;
        part->offset = e->program.parts.node[0].set * e->set_floats;
    }
    return DT_OK;
}

static int64_t dt__engine_total_floats(const dt__engine *e)
{
    if (!e->shape.total) return 0;
    return e->shape.zero > 1 ? e->store.own_slots : e->store.total_floats;
}

/* Floats of one slot of a chunk: its input, its segments' outputs, what they save, and for zero-bubble the gradients of
 * their outputs. Sets the places of the segments. */
static void dt__engine_slots(dt__engine *e)
{
    for (int c = 0; c < e->shape.pipe.chunks; c++) {
        dt__chunk *chunk = &e->chunks[c];
        int64_t at = chunk->first ? 0 : dt__round_up(e->net.segments[chunk->begin].input, 16);
        for (int32_t q = chunk->begin; q < chunk->end; q++) {
            dt__built *seg = &e->net.segments[q];
            seg->chunk = c;
            seg->out_at = at, at += dt__round_up(seg->output, 16);
            if (e->shape.recompute != DT_RECOMPUTE_FULL) seg->saved_at = at, at += seg->plan->saved;
            if (e->shape.pipe.kind == DT_ZERO_BUBBLE) seg->gradient_at = at, at += dt__round_up(seg->output, 16);
        }
        chunk->floats = at;
    }
}

/* Are the weights of this pass in pieces on the ranks of the group, to be gathered before each segment? */
static int dt__engine_gathers(const dt__engine *e, int inference)
{
    return e->shape.zero > 2 || (e->shape.zero && inference && e->recipe->evaluate_ema);
}
static int dt__engine_windows(const dt__engine *e) { return e->shape.overlap && e->shape.zero > 2 ? 2 : 1; }
static int64_t dt__engine_window(const dt__engine *e)
{
    return dt__engine_gathers(e, 1) ? e->store.window * dt__engine_windows(e) : 0;
}

/* Floats of the largest tied parameter: the uses of one are added at a time. */
static int64_t dt__engine_tied(const dt__engine *e)
{
    int64_t floats = 0;
    for (int32_t b = 0; b < e->store.buckets; b++)
        if (e->store.bucket[b].tied >= 0) floats = dt__max(floats, e->store.bucket[b].floats);
    return floats;
}

/* Floats of the largest exchange of rows between the ranks that share experts, and its table. A text sample may have
 * more tokens than a rank has of a unit: those of a whole sequence. */
static int64_t dt__engine_staged(const dt__engine *e)
{
    int64_t floats = 0, samples = dt__ceil_div(e->mesh.size[DT__CONTEXT], e->rows);
    for (int64_t q = 0; q < e->net.count && e->expert; q++) {
        const dt_graph *g = e->net.segments[q].plan->g;
        for (int32_t id = 1; id < g->count; id++) {
            const dt__node *n = &g->nodes[id], *x = &g->nodes[n->in[0]];
            if (n->op == DT__OP_MOE_BINS) floats = dt__max(floats, dt__table_bins(n));
            if (n->op == DT__OP_MOE_TRADE) floats = dt__max(floats, x->shape.n[x->shape.dims - 2] * dt__cols(x));
        }
    }
    return floats ? floats * samples + dt__round_up(e->layout->ep + 1, 16) : 0;
}

/* Context leaves of this rank, and words of the tokens and targets of a unit's rows there. */
static int64_t dt__engine_leaves(const dt__engine *e) { return dt__max(1, e->net.own_leaves); }
static int64_t dt__engine_own_tokens(const dt__engine *e)
{
    return e->net.context_shards ? 2 * e->rows * e->recipe->sequence / e->mesh.size[DT__CONTEXT] : 0;
}

/* What the engine will allocate. */
static dt_memory dt__engine_plan(const dt__engine *e)
{
    dt_memory m;
    const dt__store *s = &e->store;
    int64_t own = s->shards > 1 ? s->own_params : s->param_floats;
    memset(&m, 0, sizeof m);
    m.weights = 4 * (e->shape.zero > 2 ? s->own_params : s->param_floats);
    m.gradients = 4 * (e->set_floats * e->sets_count + dt__engine_total_floats(e) + s->slice_floats);
    m.optimizer = (int64_t)(dt_optimizer_bytes(e->recipe) * (double)own);
    for (int c = 0; c < e->shape.pipe.chunks; c++)
        *(e->shape.horizon ? &m.offloaded : &m.activations) += 4 * e->chunks[c].slots * e->chunks[c].floats;
    if (e->shape.horizon) m.activations += 4 * (e->shape.horizon + 3) * e->net.widest;
    if (e->shape.recompute == DT_RECOMPUTE_FULL) m.activations += 4 * e->net.most_saved;
    m.activations += 4 * (e->net.temp + 2 * e->net.widest);
    m.buffers += 4 * (dt__engine_window(e) + dt__engine_staged(e));
    if (e->shape.pipe.stages > 1) m.buffers += 2 * 4 * DT__OUTBOX * e->net.widest;
    m.activations += 4 * e->net.sliced;
    m.buffers += 4 * dt__engine_own_tokens(e);
    m.buffers += 4 * e->blocks + 8 * dt__engine_tied(e);
    return m;
}

/* The optimizer's state before step 1. The average starts as the weights, which are drawn later. */
static dt_result dt__engine_state(dt__engine *e)
{
    int64_t own = e->store.shards > 1 ? e->store.own_params : e->store.param_floats;
    e->powers.power1 = e->powers.power2 = 1.0;
    for (int i = 0; i < DT__STATE_COUNT; i++) {
        int64_t bytes = dt__state_bytes(e->recipe, i);
        if (i == DT__STATE_AVERAGE && bytes && e->shape.zero && e->recipe->evaluate_ema) { /* peers read it */
            dt_result r = dt_comm_alloc(e->ranks.data, 4 * e->store.most_params, &e->state[i]);
            if (r) return r;
            continue;
        }
        if (bytes) e->state[i] = dt__alloc(own / DT__MOMENT_BLOCK * bytes, "the optimizer's state");
        if (bytes && !e->state[i]) return DT_E_MEMORY;
    }
    return DT_OK;
}

/* Memory that peers read in place, or private memory when there are none; both zeroed. Private memory is freed by
 * dt__engine_close. */
static dt_result dt__engine_shared(dt_comm *c, int64_t floats, const char *what, float **memory)
{
    void *shared = NULL;
    dt_result r = DT_OK;
    if (c) r = dt_comm_alloc(c, 4 * floats, &shared);
    else if (!(shared = dt__alloc(4 * floats, what))) r = DT_E_MEMORY;
    *memory = (float *)shared;
    return r;
}

/* The most pieces that one gather has. */
static int64_t dt__engine_pieces(const dt__engine *e)
{
    int64_t params = 1;
    for (int64_t q = 0; q < e->net.count; q++) params = dt__max(params, e->net.segments[q].plan->g->param_count);
    return params * e->store.shards;
}

static dt_result dt__engine_job(void *owner, int64_t job);

/* The communicators between data-parallel ranks. */
static void dt__engine_others(const dt__engine *e, dt_comm *comms[6])
{
    comms[0] = e->ranks.data, comms[1] = e->ranks.group, comms[2] = e->ranks.replicas;
    comms[3] = e->expert_ranks.data, comms[4] = e->expert_ranks.group, comms[5] = e->expert_ranks.replicas;
}

/* From here on another thread alone uses them. */
static dt_result dt__engine_overlap(dt__engine *e)
{
    dt_comm *comms[6];
    dt_result r = dt__queue_open(&e->queue, dt__engine_job, e, e->program.count, "overlap communication with");
    if (r) return r;
    e->queue.lane = dt__comm_lane(e->ranks.data, e->ranks.data->rank);
    dt__engine_others(e, comms);
    for (int i = 0; i < 6; i++)
        if (comms[i]) comms[i]->line = 1;
    return DT_OK;
}

static dt_result dt__engine_allocate(dt__engine *e)
{
    int64_t widest = dt__engine_tied(e), shards = e->hi - e->lo, leaves = dt__engine_leaves(e);
    int64_t pieces = dt__engine_pieces(e);
    dt_result r = DT_OK;
    r = dt__engine_shared(e->same, e->shape.zero > 2 ? e->store.most_params : e->store.param_floats, "weights",
                          &e->params);
    if (!r) r = dt__engine_shared(e->same, e->set_floats * e->sets_count, "gradients", &e->sets);
    if (!r && e->expert) r = dt__engine_shared(e->expert, dt__engine_staged(e), "rows for experts", &e->stage);
    if (!r) r = dt__engine_shared(e->context, e->net.sliced, "attention over context slices", &e->env.cp.work);
    if (!r) r = dt__engine_state(e);
    for (int c = 0; c < e->shape.pipe.chunks && !r; c++) {
        e->chunks[c].memory = (float *)dt__alloc(4 * e->chunks[c].slots * e->chunks[c].floats, "activations");
        if (!e->chunks[c].memory) r = DT_E_MEMORY;
    }
    if (r) return r;
    e->total = (float *)dt__alloc(4 * dt__engine_total_floats(e), "the sum of gradients");
    e->row_slices = (float *)dt__alloc(4 * e->store.slice_floats, "row slices of gradients");
    e->window = (float *)dt__alloc(4 * dt__engine_window(e), "gathered weights");
    e->spans = (dt__extent *)dt__alloc((int64_t)sizeof *e->spans * pieces, "gathered weights");
    e->saved = (float *)dt__alloc(e->shape.recompute == DT_RECOMPUTE_FULL ? 4 * e->net.most_saved : 0, "activations");
    if (e->shape.horizon) {
        dt__ring *ring = &e->ring;
        ring->places = e->shape.horizon + 2;
        ring->output = ring->places;
        ring->memory = (float *)dt__alloc(4 * (ring->places + 1) * e->net.widest, "activations");
        ring->ticket = (int64_t *)dt__alloc(8 * (ring->places + 1), "activations");
        ring->place = (int32_t *)dt__alloc(4 * (e->net.count + 1), "activations");
        if (!ring->memory || !ring->ticket || !ring->place) return DT_E_MEMORY;
        r = dt__queue_open(&ring->mover.queue, dt__mover_copy, &ring->mover, DT__MOVES, "move activations");
        if (r) return r;
        ring->mover.rate = (double)e->layout->offload_rate;
    }
    if (e->layout->timeline) {
        e->when = (double *)dt__alloc(16 * (int64_t)e->program.count, "the timeline");
        if (!e->when) return DT_E_MEMORY;
    }
    e->temp = (float *)dt__alloc(4 * (e->net.temp + 2 * e->net.widest), "activations");
    e->tie[0] = (float *)dt__alloc(8 * widest, "tied gradients");
    e->sums = (float *)dt__alloc(4 * e->blocks, "block sums");
    e->env.rng = (dt__rng *)dt__alloc((int64_t)sizeof(dt__rng) * e->rows * leaves, "random streams");
    e->own_tokens = (uint32_t *)dt__alloc(4 * dt__engine_own_tokens(e), "the tokens of context leaves");
    e->shard_loss = (float *)dt__alloc(4 * shards * leaves * (1 + e->net.count), "losses");
    e->asked = (float *)dt__alloc(4 * e->net.routed, "the experts' counts");
    e->queued = (int32_t *)dt__alloc(4 * e->program.count, "the step program");
    e->ticket = (int64_t *)dt__alloc(8 * e->program.count, "the step program");
    if (!e->total || !e->row_slices || !e->window || !e->spans || !e->saved || !e->temp || !e->tie[0] || !e->sums ||
        !e->env.rng || !e->own_tokens || !e->shard_loss || !e->asked || !e->queued || !e->ticket)
        return DT_E_MEMORY;
    e->shard_auxiliary = e->shard_loss + shards * leaves;
    e->gradient[0] = e->temp + e->net.temp;
    e->gradient[1] = e->gradient[0] + e->net.widest;
    e->tie[1] = e->tie[0] + widest;
    return e->shape.overlap ? dt__engine_overlap(e) : DT_OK;
}

/* This rank's tensor shards of a network that is to be built; and its context leaves. */
static void dt__engine_context(const dt__engine *e, dt__net *net)
{
    if (e->recipe->context_shards < 2) return;
    net->context_shards = e->recipe->context_shards;
    net->own_leaves = net->context_shards / e->mesh.size[DT__CONTEXT];
    net->first_leaf = net->own_leaves * e->mesh.at[DT__CONTEXT];
}
static void dt__engine_shards(const dt__engine *e, dt__net *net, int split_rows)
{
    net->tensor_shards = e->recipe->tensor_shards;
    net->own_shards = net->tensor_shards / e->mesh.size[DT__TENSOR];
    net->first_shard = net->own_shards * e->mesh.at[DT__TENSOR];
    net->sequence_parallel = split_rows;
    net->expert_ranks = e->layout->ep;
    net->expert_rank = e->mesh.at[DT__DATA] % e->layout->ep;
}

/* Mesh and shape of the work; before the network is built. recipe, layout, comm are set. */
static dt_result dt__engine_layout(dt__engine *e)
{
    int group;
    dt_result r = dt__mesh_open(&e->mesh, e->layout, dt_comm_size(e->comm), dt_comm_rank(e->comm));
    e->micros = e->recipe->batch / e->recipe->micro_batch;
    e->rows = e->recipe->micro_batch / e->recipe->data_shards;
    if (!r) r = dt__engine_groups(e, &group);
    if (!r) r = dt__engine_experts(e);
    if (!r && e->recipe->tensor_shards % e->layout->tp)
        r = dt__error(DT_E_USAGE,
                      "tp %lld does not divide %lld tensor shards: --tp up to %lld, a power of two, or raise "
                      "--tensor-shards (a recipe choice: other bits)",
                      (long long)e->layout->tp, (long long)e->recipe->tensor_shards,
                      (long long)e->recipe->tensor_shards);
    if (!r && (!dt__is_pow2(e->layout->cp) || e->recipe->context_shards % e->layout->cp))
        r = dt__error(DT_E_USAGE,
                      "cp %lld does not divide %lld context shards: --cp up to %lld, a power of two, or raise "
                      "--context-shards (a recipe choice: other bits)",
                      (long long)e->layout->cp, (long long)e->recipe->context_shards,
                      (long long)e->recipe->context_shards);
    if (!r && e->layout->sequence_parallel && e->layout->tp < 2)
        r = dt__error(DT_E_USAGE, "--sequence-parallel splits rows over the ranks of a tensor group: set --tp, e.g. 2");
    if (!r) r = dt__engine_shape(e);
    if (!r) dt__engine_shards(e, &e->net, e->layout->sequence_parallel);
    if (!r) dt__engine_context(e, &e->net);
    if (e->layout->pipeline == DT_ZERO_BUBBLE) e->net.how |= DT__PLAN_SPLIT;
    if (e->layout->recompute == DT_RECOMPUTE_SELECTIVE) e->net.how |= DT__PLAN_AGAIN;
    return r;
}

/* Blocks of the whole parameter. */
static int64_t dt__engine_blocks(const dt__engine *e, const dt__param *p)
{
    int64_t vt = e->net.tensor_shards;
    return dt__param_arrays(p, vt) * dt__shard_step(p, vt) / DT__BLOCK;
}

static void dt__engine_combine(void *user, int kind, float *to, const float *from, int64_t count);
static void dt__engine_trade(void *user, float *to, const int32_t *take, const float *from, const int32_t *give,
                             int64_t bins, int64_t width);
static void dt__engine_post(void *user, int place, const float *data, int64_t count, int to);
static void dt__engine_posted(void *user, int place);
static void dt__engine_take(void *user, float *to, int64_t count, int from);

/* Everything but memory, for the network that was built. */
static dt_result dt__engine_open(dt__engine *e)
{
    int group = 1;
    dt_result r = dt__engine_groups(e, &group);
    if (!r) r = dt__engine_partition(e);
    if (r) return r;
    e->store.shards = group;
    e->store.piece = e->mesh.at[DT__DATA] % group;
    r = dt__store_open(&e->store, &e->net, e->chunks, e->shape.pipe.chunks, e->shape.zero > 2 ? 1 : e->layout->bucket,
                       e->shape.buffered, e->shape.accumulation == DT_EACH || e->micros == 1);
    if (!r) r = dt__program_open(&e->program, &e->shape, &e->store, e->chunks);
    if (!r) r = dt__engine_comms(e, group);
    if (!r) r = dt__engine_reduction(e, group);
    for (int32_t i = 0; i < e->net.param_count; i++) e->blocks += dt__engine_blocks(e, &e->net.params[i].is);
    e->env.tp.combine = dt__engine_combine;
    e->env.cp.post = dt__engine_post, e->env.cp.settle = dt__engine_posted, e->env.cp.take = dt__engine_take;
    e->env.ep.trade = dt__engine_trade;
    e->env.tp.user = e->env.cp.user = e->env.ep.user = e;
    dt__engine_slots(e);
    return r;
}

static void dt__engine_close(dt__engine *e)
{
    dt_comm **comms[11];
    dt__sharing *x = &e->expert_ranks;
    dt__queue_close(&e->queue);
    dt__queue_close(&e->ring.mover.queue);
    dt__free(e->queued);
    dt__free(e->ticket);
    dt__free(e->ring.memory);
    dt__free(e->ring.ticket);
    dt__free(e->ring.place);
    if (!e->same) dt__free(e->params), dt__free(e->sets);
    if (!e->context) dt__free(e->env.cp.work);
    dt__free(e->own_tokens);
    for (int c = 0; e->chunks && c < e->shape.pipe.chunks; c++) dt__free(e->chunks[c].memory);
    dt__free(e->chunks);
    dt__store_close(&e->store);
    dt__program_close(&e->program);
    dt__net_close(&e->net);
    for (int i = 0; i < DT__STATE_COUNT; i++)
        if (i != DT__STATE_AVERAGE || !e->shape.zero || !e->recipe->evaluate_ema) dt__free(e->state[i]);
    dt__free(e->spans);
    dt__free(e->total);
    dt__free(e->row_slices);
    dt__free(e->window);
    dt__free(e->saved);
    dt__free(e->temp);
    dt__free(e->tie[0]);
    dt__free(e->sums);
    dt__free(e->when);
    dt__free(e->parts);
    dt__free(e->replica_parts);
    dt__free(e->part_count);
    dt__free(e->replica_count);
    dt__free(e->env.rng);
    dt__free(e->shard_loss);
    dt__free(e->asked);
    comms[0] = &x->group, comms[1] = &x->replicas, comms[2] = &x->data, comms[3] = &e->expert;
    comms[4] = &e->ranks.group, comms[5] = &e->ranks.replicas, comms[6] = &e->ranks.data, comms[7] = &e->context;
    comms[8] = &e->same, comms[9] = &e->copy, comms[10] = &e->tensor;
    for (int i = 0; i < 11; i++) { /* one that has all ranks of another is the other */
        int again = *comms[i] == e->comm;
        for (int k = i + 1; k < 11; k++) again |= *comms[i] == *comms[k];
        if (again) *comms[i] = NULL;
        dt_comm_free(comms[i]);
    }
    for (int way = 0; way < 2; way++) dt_comm_free(&e->out[way].comm);
}

/* ---- segments ---- */

/* The weights that a pass reads: training its own, validation and text samples the average when the recipe says so. */
static float *dt__engine_weights(const dt__engine *e, int inference)
{
    return inference && e->recipe->evaluate_ema ? (float *)e->state[DT__STATE_AVERAGE] : e->params;
}

/* Binds segment q in a slot of its chunk: its parameters, its input (the output before it), its saved values. */
static void dt__engine_bind(const dt__engine *e, int64_t q, int slot, int set, dt__bind *b)
{
    const dt__built *seg = &e->net.segments[q];
    const dt__chunk *chunk = &e->chunks[seg->chunk];
    float *memory = chunk->memory + slot * chunk->floats;
    int zero_bubble = e->net.how & DT__PLAN_SPLIT, gathers = dt__engine_gathers(e, e->env.inference);
    memset(b, 0, sizeof *b);
    b->params = gathers ? e->window + e->window_in_work * e->store.window : dt__engine_weights(e, e->env.inference);
    b->param = gathers ? seg->window : seg->param;
    b->slots = e->sets + (int64_t)dt__max(0, set) * e->set_floats;
    b->slices = e->row_slices;
    b->slot = seg->slot;
    b->at[DT__AT_TEMP] = e->temp;
    b->at[DT__AT_SAVED] = e->shape.recompute == DT_RECOMPUTE_FULL ? e->saved : memory + seg->saved_at;
    b->at[DT__AT_OUTPUT] = memory + seg->out_at;
    if (e->shape.horizon) {
        b->at[DT__AT_INPUT] = e->ring.memory + e->ring.place[q] * e->net.widest;
        b->at[DT__AT_OUTPUT] = e->ring.memory + e->ring.output * e->net.widest;
    } else if (q > chunk->begin) b->at[DT__AT_INPUT] = memory + e->net.segments[q - 1].out_at;
    else b->at[DT__AT_INPUT] = memory;
    if (!q) memcpy(&b->at[DT__AT_INPUT], &e->input, sizeof e->input); /* int32 seen as words */
    memcpy(&b->at[DT__AT_TARGETS], &e->target, sizeof e->target);
    b->at[DT__AT_GRAD_OUT] = zero_bubble ? memory + seg->gradient_at : e->gradient[(chunk->end - q) & 1];
    b->at[DT__AT_GRAD_IN] = zero_bubble && q > chunk->begin ? memory + e->net.segments[q - 1].gradient_at
                                                            : e->gradient[(chunk->end - q + 1) & 1];
}

/* dt__tp.combine over the ranks with the other tensor shards. */
static void dt__engine_combine(void *user, int kind, float *to, const float *from, int64_t count)
{
    dt__engine *e = (dt__engine *)user;
    dt_result *r = &e->exchanged;
    double start = dt__now();
    if (*r) return;
    if (kind == DT__TP_GATHER) *r = dt_all_gather(e->tensor, from, to, count);
    else if (kind == DT__TP_SCATTER)
        *r = dt_reduce_scatter(e->tensor, from, to, count / dt_comm_size(e->tensor), DT_SUM);
    else *r = dt__all_reduce_apart(e->tensor, from, to, count, kind == DT__TP_MAX ? DT_MAX : DT_SUM);
    e->seconds_sending += dt__now() - start;
}

/* dt__ep.trade over the ranks with the other experts. */
static void dt__engine_trade(void *user, float *to, const int32_t *take, const float *from, const int32_t *give,
                             int64_t bins, int64_t width)
{
    dt__engine *e = (dt__engine *)user;
    dt_result *r = &e->exchanged;
    double start = dt__now();
    if (!*r) *r = dt__all_to_all_rows(e->expert, e->stage, to, take, from, give, bins, width);
    if (*r) memset(to, 0, 4 * (size_t)(take[dt_comm_size(e->expert) * bins] * width));
    e->seconds_sending += dt__now() - start;
}

/* dt__cp over the ranks with the other context leaves. */
static void dt__engine_post(void *user, int place, const float *data, int64_t count, int to)
{
    dt__engine *e = (dt__engine *)user;
    double start = dt__now();
    if (!e->exchanged) e->exchanged = dt__send_start(e->context, data, count, to, &e->posted[place]);
    e->posted_to[place] = to + 1;
    e->seconds_sending += dt__now() - start;
}
static void dt__engine_posted(void *user, int place)
{
    dt__engine *e = (dt__engine *)user;
    int to = e->posted_to[place] - 1;
    double start = dt__now();
    if (to >= 0 && !e->exchanged) e->exchanged = dt__send_finish(e->context, to, e->posted[place]);
    e->posted_to[place] = 0;
    e->seconds_sending += dt__now() - start;
}
static void dt__engine_take(void *user, float *to, int64_t count, int from)
{
    dt__engine *e = (dt__engine *)user;
    double start = dt__now();
    if (!e->exchanged) e->exchanged = dt_recv(e->context, to, count, from);
    e->seconds_sending += dt__now() - start;
}

static void dt__engine_forward(dt__engine *e, int64_t q, int slot)
{
    dt__bind b;
    const dt__plan *p = e->net.segments[q].plan;
    dt__engine_bind(e, q, slot, -1, &b);
    e->env.segment = (uint32_t)q;
    dt__plan_run(p, 0, p->forward_count, &b, &e->env, 0);
}

/* After forward of segment q: adds its auxiliary losses, to those of each leaf in `auxiliary` (leaves, segments), and
 * counts what its experts were asked for. */
static void dt__engine_watch(dt__engine *e, int64_t q, int slot, float *auxiliary)
{
    const dt__built *seg = &e->net.segments[q];
    const dt_graph *g = seg->plan->g;
    float *asked = e->asked + seg->routed;
    dt__bind b;
    dt__engine_bind(e, q, slot, -1, &b);
    for (int32_t id = 1; seg->watched && id < g->forward_count; id++) {
        const dt__node *n = &g->nodes[id];
        const float *value = n->op == DT__OP_AUX_LOSS    ? dt__where(seg->plan, &b, n->in[1])
                             : n->op == DT__OP_MOE_ROUTE ? dt__where(seg->plan, &b, id)
                                                         : NULL;
        for (int64_t l = 0; value && n->op == DT__OP_AUX_LOSS && l < dt__leaves(g); l++) {
            float *sum = auxiliary + l * e->net.count + q;
            *sum = dt__fmaf(n->f, value[l], *sum);
        }
        for (int64_t i = 0; value && n->op == DT__OP_MOE_ROUTE && i < dt__table_bins(n); i++)
            asked[i % n->i[0]] += (float)dt__route_at(n, value).asked[i];
        if (n->op == DT__OP_MOE_ROUTE) asked += n->i[0];
    }
}

/* Adds the sum of the unit's losses to loss[0], after forward of the last segment; with context shards the row sums of
 * each leaf, to loss (leaves) (R12). */
static void dt__engine_loss(const dt__engine *e, int slot, float *loss)
{
    const dt__plan *p = e->net.segments[e->net.count - 1].plan;
    int64_t leaves = dt__engine_leaves(e), rows = e->rows * e->recipe->sequence / dt__max(1, e->net.context_shards);
    dt__bind b;
    dt__engine_bind(e, e->net.count - 1, slot, -1, &b);
    if (!e->net.context_shards) loss[0] = loss[0] + b.at[DT__AT_OUTPUT][0];
    for (int32_t id = 1; id < p->g->forward_count && e->net.context_shards; id++) {
        const dt__node *n = &p->g->nodes[id];
        for (int64_t l = 0; n->op == DT__OP_CROSS_ENTROPY && l < leaves; l++)
            loss[l] = loss[l] + e->k->row_sum(dt__where(p, &b, n->aux) + (2 * leaves + l) * rows, rows);
    }
}

/* Backward of a segment: all of it, or the part that its input's gradient needs and then the rest (zero-bubble). */
static void dt__engine_backward(dt__engine *e, const dt_instr *i)
{
    dt__bind b;
    const dt__plan *p = e->net.segments[i->segment].plan;
    int weights = i->op == DT_WEIGHTS;
    dt__engine_bind(e, i->segment, i->slot, i->set, &b);
    if (i->segment == e->net.count - 1) b.at[DT__AT_GRAD_OUT][0] = e->inv_valid;
    e->env.segment = (uint32_t)i->segment;
    dt__plan_run(p, p->forward_count + (weights ? p->backward_count : 0),
                 weights ? p->weights_count : p->backward_count, &b, &e->env, i->fresh);
    if (i->completes) dt__net_fold(&e->net, i->segment, i->segment + 1, b.slots, b.slices, &e->env);
}

/* ---- the second memory ---- */

/* Before forward: the output goes to a place of the ring, where the next segment finds its input. */
static void dt__engine_advance(dt__engine *e, int64_t q)
{
    if (!e->shape.horizon) return;
    e->ring.place[q + 1] = e->ring.output = dt__ring_take(&e->ring);
}

/* Where the second memory keeps the input of segment i: its chunk's, or the output before it. */
static float *dt__engine_kept(const dt__engine *e, const dt_instr *i)
{
    const dt__chunk *chunk = &e->chunks[e->net.segments[i->segment].chunk];
    float *memory = chunk->memory + i->slot * chunk->floats;
    return i->segment > chunk->begin ? memory + e->net.segments[i->segment - 1].out_at : memory;
}

static void dt__engine_offload(dt__engine *e, const dt_instr *i)
{
    dt__ring *r = &e->ring;
    int place = r->place[i->segment];
    r->ticket[place] = dt__mover_ask(&r->mover, dt__engine_kept(e, i), r->memory + place * e->net.widest,
                                     e->net.segments[i->segment].input);
}

static void dt__engine_fetch(dt__engine *e, const dt_instr *i)
{
    dt__ring *r = &e->ring;
    int place = r->place[i->segment] = dt__ring_take(r);
    r->ticket[place] = dt__mover_ask(&r->mover, r->memory + place * e->net.widest, dt__engine_kept(e, i),
                                     e->net.segments[i->segment].input);
}

/* Before a segment is computed again: its input has come, and its output is of no use. */
static void dt__engine_arrive(dt__engine *e, int64_t q)
{
    if (!e->shape.horizon) return;
    if (q) (void)dt__queue_wait(&e->ring.mover.queue, e->ring.ticket[e->ring.place[q]]);
    e->ring.output = e->ring.places;
}

/* Input and target of the unit in work, from its samples (rows,T): with context shards the slices of this rank's
 * leaves, (leaves,rows,2,slice). */
static void dt__engine_samples(dt__engine *e, const uint32_t *input, const uint32_t *target)
{
    const dt__net *net = &e->net;
    int64_t slice = net->context_shards ? e->recipe->sequence / (2 * net->context_shards) : 0;
    uint32_t *to = e->own_tokens, *targets = to + dt__engine_own_tokens(e) / 2;
    e->input = slice ? (const void *)to : input;
    e->target = slice ? (const void *)targets : target;
    for (int64_t i = 0; slice && i < 2 * net->own_leaves * e->rows; i++, to += slice, targets += slice) {
        int64_t leaf = net->first_leaf + i / (2 * e->rows);
        int64_t at = i / 2 % e->rows * e->recipe->sequence +
                     slice * (i & 1 ? 2 * net->context_shards - 1 - leaf : leaf);
        memcpy(to, input + at, 4 * (size_t)slice);
        memcpy(targets, target + at, 4 * (size_t)slice);
    }
}

/* ---- between stages ---- */

/* Where a message of this instruction lies here: what a chunk takes or gives. */
static float *dt__engine_message(const dt__engine *e, const dt_instr *i, int64_t *count, int *peer)
{
    const dt__built *seg = &e->net.segments[i->segment];
    int forward = (i->op == DT_SEND) == !i->back, pp = e->shape.pipe.stages, stage = e->shape.stage;
    dt__bind b;
    dt__engine_bind(e, i->segment, i->slot, -1, &b);
    *peer = forward ? (stage + 1) % pp : (stage + pp - 1) % pp;
    *count = forward ? seg->output : seg->input;
    if (i->op == DT_SEND) return b.at[i->back ? DT__AT_GRAD_IN : DT__AT_OUTPUT];
    return b.at[i->back ? DT__AT_GRAD_OUT : DT__AT_INPUT];
}

/* Waits until a neighbour has the message that was sent from this place of the outbox. */
static dt_result dt__outbox_wait(dt__outbox *o, int place)
{
    dt_result r = o->to[place] ? dt__send_finish(o->comm, o->to[place] - 1, o->ticket[place]) : DT_OK;
    o->to[place] = 0;
    return r;
}

static dt_result dt__engine_send(dt__engine *e, const dt_instr *i)
{
    dt__outbox *o = &e->out[i->back];
    int place = o->count % DT__OUTBOX, to;
    int64_t count;
    const float *data = dt__engine_message(e, i, &count, &to);
    float *copy = o->memory + place * e->net.widest;
    dt_result r = dt__outbox_wait(o, place);
    if (r) return r;
    dt__copy(copy, data, count);
    r = dt__send_start(o->comm, copy, count, to, &o->ticket[place]);
    o->to[place] = to + 1;
    o->count++;
    return r;
}

static dt_result dt__engine_recv(dt__engine *e, const dt_instr *i)
{
    int from;
    int64_t count;
    float *data;
    if (e->shape.horizon && !i->back) e->ring.place[i->segment] = dt__ring_take(&e->ring);
    data = dt__engine_message(e, i, &count, &from);
    return dt_recv(e->out[i->back].comm, data, count, from);
}

/* ---- between data-parallel ranks ---- */

/* Adds or copies slot range pieces on the pool. */
typedef struct dt__fold_job {
    const dt__kernels *k;
    float *to;
    const float *from;
    int64_t n;
    int fresh;
} dt__fold_job;
static void dt__fold_task(void *context, int64_t task, int worker)
{
    const dt__fold_job *f = (const dt__fold_job *)context;
    int64_t at = task * 65536, n = dt__min(65536, f->n - at);
    (void)worker;
    if (f->fresh) memcpy(f->to + at, f->from + at, 4 * (size_t)n);
    else f->k->binary(DT__OP_ADD, f->to + at, f->to + at, 1, f->from + at, 1, n);
}

/* Where a bucket begins in a set. */
static int64_t dt__bucket_at(const dt__engine *e, int32_t b)
{
    return e->shape.buffered ? e->store.bucket[b].buffer : e->store.bucket[b].slot;
}

/* This rank's piece of a bucket: [*from, *from + *count), and where its sum is. */
static float *dt__bucket_sum(const dt__engine *e, int32_t bucket, int64_t *from, int64_t *count)
{
    const dt__store *s = &e->store;
    const int64_t *cut = dt__store_cut(s, bucket);
    int piece = dt__bucket_piece(s, bucket, s->piece);
    *from = cut[piece];
    *count = cut[piece + 1] - *from;
    if (!e->shape.total)
        return e->sets + e->program.parts.node[0].set * e->set_floats + dt__bucket_at(e, bucket) + *from;
    if (e->shape.zero > 1) return e->total + s->bucket[bucket].sum;
    return e->total + s->bucket[bucket].total + *from;
}

static void dt__engine_fold(dt__engine *e, const dt_instr *i)
{
    int64_t begin = dt__bucket_at(e, i->bucket), from = 0;
    dt__fold_job f;
    f.k = e->k;
    f.n = e->store.bucket[i->bucket].floats * e->store.bucket[i->bucket].copies;
    f.fresh = i->op == DT_TOTAL && i->fresh;
    if (i->op == DT_TOTAL) f.to = dt__bucket_sum(e, i->bucket, &from, &f.n);
    else f.to = e->sets + i->set * e->set_floats + begin;
    f.from = e->sets + i->from * e->set_floats + begin + from;
    dt__parallel(i->line ? NULL : e->pool, dt__ceil_div(f.n, 65536), dt__fold_task, &f);
}

/* The ranks that keep a bucket's parameters. */
static const dt__sharing *dt__engine_sharing(const dt__engine *e, const dt__bucket *b)
{
    return b->copies > 1 ? &e->expert_ranks : &e->ranks;
}

/* Sums of shared experts over the tokens of each rank that shares them: a branch of the tree over shards, in the first
 * one's place. */
static void dt__engine_sources(const dt__engine *e, const dt__bucket *b, dt_pool *pool, float *first)
{
    dt__fold_job f;
    f.k = e->k, f.n = b->floats, f.fresh = 0;
    for (int64_t near = 1; near < b->copies; near *= 2)
        for (int64_t rank = 0; rank < b->copies; rank += 2 * near) {
            f.to = first + rank * b->floats;
            f.from = first + (rank + near) * b->floats;
            dt__parallel(pool, dt__ceil_div(f.n, 65536), dt__fold_task, &f);
        }
}

/* The tree over all ranks' partial sums of a bucket: to all, or each piece to its owner, and then over the groups. */
static dt_result dt__engine_reduce(dt__engine *e, const dt_instr *i)
{
    const dt__bucket *b = &e->store.bucket[i->bucket];
    const dt__sharing *w = dt__engine_sharing(e, b);
    const dt__part *parts = b->copies > 1 ? e->replica_parts : e->parts;
    const int *counts = b->copies > 1 ? e->replica_count : e->part_count;
    int64_t begin = dt__bucket_at(e, i->bucket);
    const int64_t *cuts = dt__store_cut(&e->store, i->bucket);
    int piece = dt__bucket_piece(&e->store, i->bucket, e->store.piece);
    dt_result r;
    dt__engine_sources(e, b, i->line ? NULL : e->pool, e->sets + i->set * e->set_floats + begin);
    if (!w->data) return DT_OK;
    if (!w->group) return dt__reduce_parts(w->data, e->sets, parts, counts, begin, b->floats, NULL);
    r = dt__reduce_parts(w->group, e->sets, parts, counts, begin, b->floats, cuts);
    if (r || !w->replicas) return r;
    return dt__reduce_parts(w->replicas, e->sets, e->replica_parts, e->replica_count, begin + cuts[piece],
                            cuts[piece + 1] - cuts[piece], NULL);
}

/* The pieces of `count` floats of a bucket's parameters from `at` on, which come to `to`. Where owners keep them:
 * `whole` in their place, else one behind another. */
static int dt__bucket_spans(const dt__store *s, int32_t bucket, int64_t at, int64_t count, int64_t to, int whole,
                            dt__extent *span)
{
    const int64_t *cut = dt__store_cut(s, bucket);
    int n = 0;
    for (int j = 0; j < dt__bucket_shards(s, bucket); j++) {
        int64_t lo = cut[j], hi = cut[j + 1], base;
        base = whole ? s->bucket[bucket].param
                     : s->own[(int64_t)bucket * s->shards + dt__bucket_owner(s, bucket, j)] - lo;
        lo = dt__max(lo, at), hi = dt__min(hi, at + count);
        if (lo >= hi) continue;
        span[n].rank = j;
        span[n].from = base + lo;
        span[n].to = to + lo - at;
        span[n++].count = hi - lo;
    }
    return n;
}

/* A rank's pieces go to the others of its group. */
static void dt__engine_count(dt_comm *group, int64_t floats)
{
    for (int p = 0; group && p < dt_comm_size(group); p++)
        if (p != dt_comm_rank(group)) dt__count_sent(group, p, floats);
}

/* Pieces of parameters come from the ranks of the group that have them; where that is this one alone, they are here. */
static dt_result dt__engine_collect(dt__engine *e, dt_comm *group, float *array, int64_t reach, int pieces, float *out)
{
    if (group) return dt__gather_spans(group, array, reach, e->spans, pieces, out);
    for (int i = 0; i < pieces; i++) dt__copy(out + e->spans[i].to, array + e->spans[i].from, e->spans[i].count);
    return DT_OK;
}

/* ZeRO 3: the parameters of a segment come into a window, from `array`: weights or their average. */
static dt_result dt__engine_gather_segment(dt__engine *e, int64_t q, float *array, int window)
{
    const dt__built *seg = &e->net.segments[q];
    float *to = e->window + window * e->store.window;
    dt_result r = DT_OK;
    for (int shared = 0; shared < 2 && !r; shared++) {
        dt_comm *group = shared ? e->expert_ranks.group : e->ranks.group;
        int n = 0;
        for (int32_t i = 0; i < seg->plan->g->param_count; i++) {
            const dt__net_param *p = &e->net.params[seg->param_of[i]];
            int32_t b = dt__bucket_of(&e->store, p->offset);
            if ((e->store.bucket[b].copies > 1) != shared) continue;
            n += dt__bucket_spans(&e->store, b, p->offset - e->store.bucket[b].param, dt__round_up(p->count, DT__BLOCK),
                                  seg->window[i], 0, e->spans + n);
        }
        for (int k = 0; k < n; k++)
            if (group && e->spans[k].rank == dt_comm_rank(group)) dt__engine_count(group, e->spans[k].count);
        if (!shared || n) r = dt__engine_collect(e, group, array, e->store.most_params, n, to);
    }
    return r;
}

/* ZeRO 1 and 2: everyone gets the others' pieces of a bucket's new parameters. What is sent is counted when it is asked
 * for: in the step that made the parameters. */
static dt_result dt__engine_gather_bucket(dt__engine *e, int32_t bucket)
{
    const dt__bucket *b = &e->store.bucket[bucket];
    int n = dt__bucket_spans(&e->store, bucket, 0, b->floats, b->param, 1, e->spans);
    return dt__engine_collect(e, dt__engine_sharing(e, b)->group, e->params, e->store.param_floats, n, e->params);
}

/* ---- update ---- */

/* One use of a tied parameter: its gradient comes from this rank, or from the stage that has the use. */
static dt_result dt__engine_use(dt__engine *e, const dt__net_param *p, int use, const float **gradient, float *room)
{
    int stage = p->stage[use], self = e->shape.stage;
    dt_comm *c = e->out[0].comm;
    dt_result r = DT_OK;
    int64_t from, count;
    const float *own = NULL;
    for (int32_t b = 0; b < e->store.buckets; b++) {
        const dt__bucket *k = &e->store.bucket[b];
        if (k->tied < 0 || &e->net.params[k->tied] != p) continue;
        own = dt__bucket_sum(e, b, &from, &count); /* all uses are cut alike */
        if (k->use == use) break;
    }
    if (!own) return DT_OK; /* the parameter is not on this stage */
    *gradient = stage == self ? own : room;
    for (int s = 0; s < e->shape.pipe.stages && !r; s++) {
        int holds = 0;
        for (int u = 0; u < p->uses; u++) holds |= p->stage[u] == s;
        if (!holds || s == stage) continue;
        if (stage == self) r = dt_send(c, own, count, s);
        else if (s == self) r = dt_recv(c, room, count, stage);
    }
    return r;
}

/* R8: the uses of a tied parameter, each summed over leaves before, are added in the order of use; the sum takes the
 * place of the first use here. Stages that share the parameter all do the same. */
static dt_result dt__engine_tie(dt__engine *e)
{
    dt_result r = DT_OK;
    for (int32_t i = 0; i < e->net.param_count && !r; i++) {
        const dt__net_param *p = &e->net.params[i];
        float *first = NULL;
        int64_t from, count = 0;
        for (int32_t b = e->store.buckets - 1; b >= 0; b--)
            if (e->store.bucket[b].tied == i && e->store.bucket[b].param >= 0)
                first = dt__bucket_sum(e, b, &from, &count);
        for (int u = 0; u < p->uses && first && p->uses > 1 && !r; u++) {
            const float *g = NULL;
            r = dt__engine_use(e, p, u, &g, e->tie[1]);
            if (r) break;
            if (u) e->k->binary(DT__OP_ADD, e->tie[0], e->tie[0], 1, g, 1, count);
            else dt__copy(e->tie[0], g, count);
        }
        if (first && p->uses > 1) dt__copy(first, e->tie[0], count);
    }
    return r;
}

/* This rank's piece of a parameter: elements [*from, *from + count) of it, where their gradient, weight and state are.
 */
typedef struct dt__piece_of {
    int64_t from, count;
    float *gradient, *weight;
    int64_t state;
} dt__piece_of;
static dt__piece_of dt__engine_piece(const dt__engine *e, const dt__net_param *p)
{
    dt__piece_of x;
    const dt__store *s = &e->store;
    memset(&x, 0, sizeof x);
    if (p->offset >= 0) {
        int32_t b = dt__bucket_of(s, p->offset);
        int64_t at = p->offset - s->bucket[b].param, lo, count, skip;
        float *sum = dt__bucket_sum(e, b, &lo, &count);
        x.from = dt__max(0, lo - at);
        x.count = dt__min(p->count, lo + count - at) - x.from;
        skip = at + x.from - lo; /* floats of the rank's piece before this one */
        x.gradient = sum + skip;
        x.state = s->own[(int64_t)b * s->shards + s->piece] + skip;
        x.weight = e->params + (e->shape.zero > 2 ? x.state : p->offset + x.from);
        if (x.count < 0) x.count = 0;
    }
    return x;
}

/* Sums of the blocks of this rank's piece of a parameter's gradient, to their places among those of the whole. */
static void dt__engine_square(dt__engine *e, const dt__net_param *p, float *sums)
{
    int64_t vt = e->net.tensor_shards, step = dt__shard_step(&p->is, vt);
    dt__piece_of x = dt__engine_piece(e, p);
    for (int64_t i = 0; i < dt__param_shards(&p->is, vt, e->net.own_shards); i++) {
        int64_t low = dt__max(x.from, i * step), end = dt__min(x.from + x.count, (i + 1) * step);
        int64_t array = dt__param_array(&p->is, vt, e->net.first_shard, e->net.own_shards, i);
        if (low < end)
            dt__block_squares(e->k, e->pool, x.gradient + low - x.from, end - low,
                              sums + (array * step + low - i * step) / DT__BLOCK);
    }
}

/* The squared norm of all gradients (R11): sums of blocks, from one rank that has them; TREE per array; a chain by
 * parameter, expert and tensor shard. Each expert's shard is an array of its own, so that no block lies in two experts,
 * which may be on two ranks. Padding is +0. */
static dt_result dt__engine_squares(dt__engine *e, float *squares)
{
    int64_t at = 0, vt = e->net.tensor_shards;
    int once = e->mesh.at[DT__DATA] % dt__max(e->store.shards, e->layout->ep) < e->store.shards;
    dt_result r = DT_OK;
    if (e->copy) memset(e->sums, 0, 4 * (size_t)e->blocks);
    for (int32_t i = 0; i < e->net.param_count; i++) {
        const dt__net_param *p = &e->net.params[i];
        if (p->stage[0] == e->shape.stage && (dt__param_is_cut(&p->is, vt) || !e->mesh.at[DT__TENSOR]) &&
            (once || dt__param_copies(&p->is) > 1))
            dt__engine_square(e, p, e->sums + at);
        at += dt__engine_blocks(e, &p->is);
    }
    if (e->copy) r = dt_all_reduce(e->copy, e->sums, e->blocks, DT_SUM); /* of one number and zeros */
    at = 0;
    *squares = 0.0f;
    for (int32_t i = 0; i < e->net.param_count && !r; i++) {
        const dt__param *p = &e->net.params[i].is;
        int64_t blocks = dt__ceil_div(dt__shard_floats(p, vt), DT__BLOCK);
        for (int64_t v = 0; v < dt__param_arrays(p, vt); v++) {
            *squares = *squares + dt__tree(e->sums + at, blocks);
            at += blocks;
        }
    }
    return r;
}

typedef struct dt__update_job {
    const dt__engine *e;
    const dt__piece_of *x;
    const dt__update *u;
} dt__update_job;
static void dt__update_task(void *context, int64_t task, int worker)
{
    const dt__update_job *j = (const dt__update_job *)context;
    const dt_recipe *r = j->e->recipe;
    int64_t at = task * 65536;
    void *state[DT__STATE_COUNT];
    (void)worker;
    for (int i = 0; i < DT__STATE_COUNT; i++) {
        char *base = (char *)j->e->state[i];
        state[i] = base ? base + (j->x->state + at) / DT__MOMENT_BLOCK * dt__state_bytes(r, i) : NULL;
    }
    j->e->k->update(r->optimizer, j->x->weight + at, state, j->x->gradient + at, dt__min(65536, j->x->count - at),
                    j->u);
}

/* The norm, then clipping, optimizer and average in one pass over this rank's pieces. */
static dt_result dt__engine_update(dt__engine *e)
{
    const dt_recipe *r = e->recipe;
    float squares = 0.0f, clip = 1.0f;
    dt__update decayed, plain;
    dt_result result = dt__engine_squares(e, &squares);
    if (result) return result;
    e->norm = dt__sqrtf(squares);
    if (!(squares <= 3.402823466e38f)) /* also NaN */
        return dt__error(DT_E_NUMERIC,
                         "the gradient norm of step %lld is not finite: lower --learning-rate, or raise --warmup",
                         (long long)e->step + 1);
    if (r->clip > 0.0f && e->norm > r->clip) clip = r->clip / (e->norm + 1e-6f);
    e->rate = dt_learning_rate(r, e->step);
    e->powers.power1 *= (double)r->beta1;
    e->powers.power2 *= (double)r->beta2;
    decayed = dt__update_of(&e->powers, r, e->rate, clip, 1);
    plain = dt__update_of(&e->powers, r, e->rate, clip, 0);
    for (int32_t i = 0; i < e->net.param_count; i++) {
        dt__update_job j;
        dt__piece_of x = dt__engine_piece(e, &e->net.params[i]);
        j.e = e;
        j.x = &x;
        j.u = e->net.params[i].is.shape.dims >= 2 ? &decayed : &plain;
        dt__parallel(e->pool, dt__ceil_div(x.count, 65536), dt__update_task, &j);
    }
    return DT_OK;
}

/* ---- a step, and a pass without gradients ---- */

/* Where a unit's samples come from: the trainer sets engine->input, target and the samples' random streams. */
typedef void (*dt__load_fn)(void *owner, int64_t shard, int64_t micro);

static dt_result dt__engine_run(dt__engine *e, const dt_instr *i, dt__load_fn load, void *owner)
{
    int64_t shard = i->shard - e->lo, leaves = dt__engine_leaves(e);
    switch (i->op) {
    case DT_LOAD: load(owner, i->shard, i->micro); return DT_OK;
    case DT_FORWARD:
        dt__engine_advance(e, i->segment);
        dt__engine_forward(e, i->segment, i->slot);
        dt__engine_watch(e, i->segment, i->slot, e->shard_auxiliary + shard * leaves * e->net.count);
        if (i->segment == e->net.count - 1) dt__engine_loss(e, i->slot, e->shard_loss + shard * leaves);
        return DT_OK;
    case DT_RECOMPUTE:
        dt__engine_arrive(e, i->segment);
        dt__engine_forward(e, i->segment, i->slot);
        return DT_OK;
    case DT_OFFLOAD: dt__engine_offload(e, i); return DT_OK;
    case DT_FETCH: dt__engine_fetch(e, i); return DT_OK;
    case DT_BACKWARD:
    case DT_WEIGHTS: dt__engine_backward(e, i); return DT_OK;
    case DT_SEND: return dt__engine_send(e, i);
    case DT_RECV: return dt__engine_recv(e, i);
    case DT_CONTEXT:
        return dt_all_reduce(e->context, e->sets + i->set * e->set_floats + dt__bucket_at(e, i->bucket),
                             e->store.bucket[i->bucket].floats * e->store.bucket[i->bucket].copies, DT_SUM);
    case DT_FOLD:
    case DT_TOTAL: dt__engine_fold(e, i); return DT_OK;
    case DT_REDUCE: return dt__engine_reduce(e, i);
    case DT_GATHER:
        return i->bucket < 0 ? dt__engine_gather_segment(e, i->segment, e->params, i->window)
                             : dt__engine_gather_bucket(e, i->bucket);
    case DT_TIE: return dt__engine_tie(e);
    default: return dt__engine_update(e);
    }
}

/* A job of line 1. */
static dt_result dt__engine_job(void *owner, int64_t job)
{
    dt__engine *e = (dt__engine *)owner;
    int32_t at = e->queued[job % e->queue.room];
    double start = dt__now();
    dt_result r;
    if (at < 0) return dt__engine_gather_segment(e, -1 - at, dt__engine_weights(e, 1), 0);
    r = dt__engine_run(e, &e->program.list[at], NULL, NULL);
    if (e->when) e->when[2 * at] = start, e->when[2 * at + 1] = dt__now();
    return r;
}

/* Asks the other thread for an instruction of the program, or for the weights of segment -1 - at. */
static int64_t dt__engine_ask(dt__engine *e, int32_t at)
{
    int64_t job = dt__queue_next(&e->queue);
    e->queued[job % e->queue.room] = at;
    return dt__queue_ask(&e->queue);
}

/* Returns when the other thread has done all that it was asked for. Weights are whole then; with ZeRO 1 and 2 the next
 * step's forward goes on without. */
static dt_result dt__engine_settle(dt__engine *e)
{
    return e->queue.running ? dt__queue_wait(&e->queue, e->queue.asked) : DT_OK;
}

/* A step that fails on this rank leaves nothing to be done by the other thread, and no peer waiting for it. `r` and its
 * sentence stay. */
static dt_result dt__engine_abandon(dt__engine *e, dt_result r)
{
    dt_comm *comms[6];
    char error[sizeof dt__thread.error];
    dt__job *job = e->comm->job;
    if (!e->queue.running) return r;
    memcpy(error, dt__thread.error, sizeof error);
    dt__engine_others(e, comms);
    for (int i = 0; i < 6 && dt__queue_pending(&e->queue) && job; i++)
        if (comms[i] && !__atomic_load_n(&job->fault, __ATOMIC_SEQ_CST) &&
            __atomic_load_n(&job->stop, __ATOMIC_SEQ_CST) != 2)
            dt__blame(&comms[i]->area->fault, DT__FAULT_LEFT, dt_comm_rank(e->comm));
    (void)dt__engine_settle(e);
    return dt__error(r, "%s", error);
}

/* Of what runs on line 0: is it communication? */
static int dt__engine_sends(const dt__engine *e, const dt_instr *i)
{
    return i->op == DT_REDUCE || i->op == DT_CONTEXT || i->op == DT_SEND || i->op == DT_RECV || i->op == DT_GATHER ||
           (i->op == DT_TIE && e->shape.pipe.stages > 1);
}

/* Runs one optimizer step. shard_loss (s - lo, leaf) becomes the chain of the leaf's losses over micro-batches (R12),
 * on the last stage; shard_auxiliary that of its auxiliary losses per segment. */
static dt_result dt__engine_step(dt__engine *e, dt__load_fn load, void *owner)
{
    dt_result r = DT_OK;
    unsigned saved = dt__fp_enter();
    memset(e->shard_loss, 0, 4 * (size_t)((e->hi - e->lo) * dt__engine_leaves(e) * (1 + e->net.count)));
    for (int64_t i = 0; i < e->net.routed; i++) e->asked[i] = 0.0f;
    for (int32_t k = 0; k < e->program.count && !r; k++) {
        const dt_instr *i = &e->program.list[k];
        double start, end;
        dt__comm_tick(e->comm);
        if (i->op == DT_GATHER && i->bucket >= 0) {
            const int64_t *cut = dt__store_cut(&e->store, i->bucket);
            int piece = dt__bucket_piece(&e->store, i->bucket, e->store.piece);
            dt__engine_count(dt__engine_sharing(e, &e->store.bucket[i->bucket])->group, cut[piece + 1] - cut[piece]);
        }
        if (i->line) {
            e->ticket[k] = dt__engine_ask(e, k);
            continue;
        }
        if (i->after[1] >= 0) r = dt__queue_wait(&e->queue, e->ticket[i->after[1]]);
        if (r) break;
        e->window_in_work = i->window;
        start = dt__now();
        r = dt__engine_run(e, i, load, owner);
        if (!r) r = e->exchanged;
        end = dt__now();
        if (dt__engine_sends(e, i)) e->seconds_sending += end - start;
        if (e->when) e->when[2 * k] = start, e->when[2 * k + 1] = end;
    }
    dt__fp_leave(saved);
    return r ? dt__engine_abandon(e, r) : DT_OK;
}

/* A segment's weights, or their average, for a pass without gradients. */
static dt_result dt__engine_gather(dt__engine *e, int64_t q)
{
    e->window_in_work = 0;
    if (!e->queue.running) return dt__engine_gather_segment(e, q, dt__engine_weights(e, 1), 0);
    return dt__queue_wait(&e->queue, dt__engine_ask(e, (int32_t)(-1 - q)));
}

/* Seconds of communication so far, and those in which the rank waited for it. */
static void dt__engine_times(dt__engine *e, double *all, double *exposed)
{
    double waited, hidden;
    dt__queue_times(&e->queue, &waited, &hidden);
    *exposed = e->seconds_sending + waited;
    *all = *exposed + hidden;
}

/* Forward of segments [0, end) without gradients, through all stages; input and target are set. All ranks of this
 * rank's pipeline, and with gathered weights of its group, call it together. */
static dt_result dt__engine_pass(dt__engine *e, int64_t end)
{
    dt_result r = DT_OK;
    for (int c = 0; c < e->shape.pipe.chunks && !r; c++) {
        const dt__chunk *chunk = &e->chunks[c];
        dt_instr i;
        memset(&i, 0, sizeof i);
        i.op = DT_RECV, i.segment = chunk->begin;
        if (!chunk->first && chunk->begin < end) r = dt__engine_recv(e, &i);
        for (int64_t q = chunk->begin; q < chunk->end && q < end && !r; q++) {
            if (dt__engine_gathers(e, e->env.inference)) r = dt__engine_gather(e, q);
            if (r) break;
            dt__engine_advance(e, q);
            dt__engine_forward(e, q, 0);
            r = e->exchanged;
        }
        i.op = DT_SEND, i.segment = chunk->end - 1;
        if (!chunk->last && chunk->end < end && !r) r = dt__engine_send(e, &i);
        dt__comm_tick(e->comm);
    }
    return r;
}

/* ============================================================================================
 * H16  trainer, launcher, restarts
 * ============================================================================================
 * The launcher. The supervisor is the program that was started with --ranks: it starts N copies of itself, waits for
 * them and for signals, and exits. Ranks learn who they are from the environment (as threads, from dt__thread.rank). A
 * rank dies with its supervisor; when a rank fails, the others get a grace time to report it and are then ended. */

#define DT__LAUNCH_OPTIONS(X)                                                                                \
    X("--ranks", "N", "run on N local ranks (default 1)")                                                    \
    X("--launch", "KIND", "ranks are processes or threads (default processes)")                              \
    X("--timeout", "SECONDS", "a rank silent for so long counts as frozen (default 10)")

typedef struct dt__launch_plan {
    int ranks, threads;
    double timeout; /* seconds */
} dt__launch_plan;

static dt_result dt__launch_value(dt__launch_plan *plan, const char *name, const char *value)
{
    char *end = NULL;
    const char *shown = value ? value : "needs a value";
    if (!strcmp(name, "--launch")) {
        plan->threads = value && !strcmp(value, "threads");
        if (value && (plan->threads || !strcmp(value, "processes"))) return DT_OK;
        return dt__error(DT_E_USAGE, "--launch %s: it is processes or threads", shown);
    }
    if (!strcmp(name, "--ranks")) {
        long ranks = value ? strtol(value, &end, 10) : 0;
        plan->ranks = (int)(ranks < 1 || ranks > DT__RANKS_MAX ? 0 : ranks);
        if (plan->ranks && end != value && !*end) return DT_OK;
        return dt__error(DT_E_USAGE, "--ranks %s: it is a whole number from 1 to %d", shown, DT__RANKS_MAX);
    }
    plan->timeout = value ? strtod(value, &end) : 0;
    if (value && end != value && !*end && plan->timeout >= 0.05 && plan->timeout <= 1e6) return DT_OK;
    return dt__error(DT_E_USAGE, "%s %s: it is a number of seconds from 0.05 to 1e6", name, shown);
}

/* The name of the launcher option at `text`, or NULL; *value points behind "=" or is NULL. */
static const char *dt__launch_option(const char *text, const char **value)
{
#define DT__LAUNCH_MATCH(name, argument, sentence)                                                           \
    if (!strncmp(text, name, sizeof(name) - 1) && (!text[sizeof(name) - 1] || text[sizeof(name) - 1] == '=')) {   \
        *value = text[sizeof(name) - 1] ? text + sizeof(name) : NULL;                                        \
        return name;                                                                                         \
    }
    DT__LAUNCH_OPTIONS(DT__LAUNCH_MATCH)
#undef DT__LAUNCH_MATCH
    return NULL;
}

/* Takes the launcher's options out of argv, up to a "--". A program asked for help runs alone and says it once. */
static dt_result dt__launch_parse(dt__launch_plan *plan, int *argc, char **argv)
{
    int kept = 1, i = 1, help = 0;
    dt_result r = DT_OK;
    for (; i < *argc && strcmp(argv[i], "--") && !r; i++) {
        const char *value = NULL, *name = dt__launch_option(argv[i], &value);
        if (!name) {
            help = help || !strcmp(argv[i], "--help");
            argv[kept++] = argv[i];
            continue;
        }
        if (!value && i + 1 < *argc) value = argv[++i];
        r = dt__launch_value(plan, name, value);
    }
    if (r) return r;
    while (i < *argc) argv[kept++] = argv[i++];
    *argc = kept;
    argv[kept] = NULL;
    if (help) plan->ranks = 1;
    return DT_OK;
}

static int dt__environment_int(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* ---- what ranks of both kinds share with the supervisor ---- */

static void dt__job_init(dt__job *job, const dt__launch_plan *plan)
{
    job->magic = DT__JOB_MAGIC;
    job->size = plan->ranks;
    job->threads = plan->threads;
    job->timeout_ms = (int32_t)dt__min((int64_t)(plan->timeout * 1e3), INT32_MAX / 2);
    job->end = dt__job_bytes(plan->ranks);
    for (int r = 0; r < plan->ranks; r++) dt__job_lane(job, r)->line[1].waiting = DT__OTHER_LINE; /* has no work yet */
}

/* One rank has ended with this wait status. Its end is written before the fault that refers to it. */
static void dt__job_ended(dt__job *job, int rank, int status)
{
    __atomic_store_n(&dt__job_lane(job, rank)->gone, DT__GONE | (uint32_t)status, __ATOMIC_SEQ_CST);
    if (status && !__atomic_load_n(&job->stop, __ATOMIC_RELAXED)) dt__blame(&job->fault, DT__FAULT_DIED, rank);
}

typedef struct dt__supervisor {
    dt__job *job;
    int alive, announced;
    int signal;        /* first SIGINT, SIGTERM or SIGHUP, else 0 */
    int status;        /* wait status of the first rank that failed */
    double deadline;   /* when the next means is used: 0 none yet */
    int means;         /* 0 patience, 1 SIGTERM was sent, 2 SIGKILL was sent */
} dt__supervisor;

/* Counts a rank that has ended. */
static void dt__supervise_end(dt__supervisor *s, int rank, int status)
{
    s->alive--;
    if (!s->status) s->status = status;
    dt__job_ended(s->job, rank, status);
}

/* Says once, in one line, why the job ends early, and starts the clock. */
static void dt__supervise_announce(dt__supervisor *s)
{
    uint32_t fault = __atomic_load_n(&s->job->fault, __ATOMIC_SEQ_CST);
    char text[300];
    int rank = (int)(fault & 0xffffu), pid;
    if (s->announced || !fault || s->signal) return;
    pid = dt__job_lane(s->job, rank)->pid;
    dt__format_fault(text, sizeof text, s->job, fault);
    if (pid) fprintf(stderr, "dtrain: rank %d (pid %d)%s", rank, pid, strchr(text + 5, ' '));
    else fprintf(stderr, "dtrain: %s", text);
    fprintf(stderr, s->alive ? "; stopping the rest (%d)\n" : "\n", s->alive);
    s->announced = 1;
    s->deadline = dt__now() + 2;
}

/* A signal that asks for an end. A second Ctrl-C is impatience. */
static void dt__supervise_signal(dt__supervisor *s, int sig)
{
    int32_t grace = __atomic_load_n(&s->job->grace_ms, __ATOMIC_RELAXED);
    double patience = grace * 1e-3 + 2;
    if (s->signal) {
        if (sig == SIGINT) s->deadline = dt__now();
        return;
    }
    s->signal = sig;
    __atomic_store_n(&s->job->stop, grace > 0 ? 1 : 2, __ATOMIC_SEQ_CST);
    fprintf(stderr, "dtrain: stopped by signal %d; waiting up to %.0f s for %d ranks\n", sig, patience, s->alive);
    s->deadline = dt__now() + patience;
}

/* The exit status of the job: of the rank that died first, however late the supervisor came to look at it. */
static int dt__supervise_status(const dt__supervisor *s)
{
    uint32_t fault = s->job->fault;
    int status = s->status;
    if (fault >> 16 == DT__FAULT_DIED) status = (int)(dt__job_lane(s->job, (int)(fault & 0xffffu))->gone & ~DT__GONE);
    if (s->alive && !status) status = 1 << 8;
    if (!status) return 0;
    if (s->signal) return 128 + s->signal;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

#ifdef __linux__
/* The signals that the supervisor takes with sigtimedwait; they are blocked in it and not in its ranks. */
static void dt__supervise_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGCHLD);
}

/* Waits at most 20 ms for a signal. */
static void dt__supervise_listen(dt__supervisor *s, const sigset_t *set)
{
    struct timespec slice;
    int sig;
    slice.tv_sec = 0;
    slice.tv_nsec = 20000000;
    sig = sigtimedwait(set, NULL, &slice);
    if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP) dt__supervise_signal(s, sig);
}
#endif

/* ---- ranks as processes ---- */

#ifdef __linux__
static void dt__supervise_reap(dt__supervisor *s)
{
    for (int r = 0; r < s->job->size; r++) {
        dt__lane *lane = dt__job_lane(s->job, r);
        int status = 0;
        if (lane->gone || !lane->pid || waitpid(lane->pid, &status, WNOHANG) != lane->pid) continue;
        dt__supervise_end(s, r, status);
    }
}

static void dt__supervise_kill(dt__supervisor *s, int sig)
{
    for (int r = 0; r < s->job->size; r++) {
        dt__lane *lane = dt__job_lane(s->job, r);
        if (!lane->gone && lane->pid) kill(lane->pid, sig);
    }
}

/* Patience, then SIGTERM, then SIGKILL, two seconds each. A rank that its peers call frozen gets no patience once it is
 * the only one left, nor does anyone get it from an impatient user. */
static void dt__supervise_press(dt__supervisor *s)
{
    uint32_t fault = __atomic_load_n(&s->job->fault, __ATOMIC_SEQ_CST);
    int only_frozen = s->alive == 1 && fault >> 16 == DT__FAULT_FROZEN &&
                      !dt__job_lane(s->job, (int)(fault & 0xffffu))->gone;
    if (s->means == 2) return;
    if (only_frozen) s->means = 1;
    else if (s->deadline <= 0 || dt__now() < s->deadline) return;
    if (s->means == 0) __atomic_store_n(&s->job->stop, 2, __ATOMIC_SEQ_CST);
    dt__supervise_kill(s, s->means == 0 ? SIGTERM : SIGKILL);
    s->means++;
    s->deadline = dt__now() + 2;
}

static void dt__setenv_int(const char *name, int value)
{
    char text[32];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

extern char **environ; /* unistd.h hides it from programs that did not ask for GNU extensions */

/* Starts one rank: this very program, with the launcher's options removed. */
static int dt__spawn_rank(dt__job *job, int rank, char **argv, const posix_spawnattr_t *attributes)
{
    pid_t pid = 0;
    int failed;
    dt__setenv_int("RANK", rank);
    dt__setenv_int("LOCAL_RANK", rank);
    failed = posix_spawn(&pid, "/proc/self/exe", NULL, attributes, argv, environ);
    if (!failed) dt__job_lane(job, rank)->pid = (int32_t)pid;
    return failed;
}

static int dt__spawn_ranks(dt__supervisor *s, int fd, char **argv)
{
    posix_spawnattr_t attributes;
    sigset_t none;
    int failed = 0;
    dt__setenv_int("WORLD_SIZE", s->job->size);
    dt__setenv_int("LOCAL_WORLD_SIZE", s->job->size);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 0);
    dt__setenv_int("DT_MEMFD", fd);
    dt__setenv_int("DT_SUPERVISOR", (int)getpid());
    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &none);
    for (int r = 0; r < s->job->size && !failed; r++) {
        failed = dt__spawn_rank(s->job, r, argv, &attributes);
        s->alive += !failed;
    }
    posix_spawnattr_destroy(&attributes);
    return failed;
}

/* Starts and watches the ranks. Returns only when they cannot be started. */
static dt_result dt__launch_processes(const dt__launch_plan *plan, char **argv)
{
    dt__supervisor s;
    sigset_t set;
    int64_t bytes = dt__job_bytes(plan->ranks);
    int fd = (int)syscall(SYS_memfd_create, "dtrain", 0u), failed;
    void *job = MAP_FAILED;
    if (fd >= 0 && !dt__file_reserve(fd, 0, bytes))
        job = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (job == MAP_FAILED) {
        if (fd >= 0) close(fd);
        return dt__error(DT_E_SYSTEM, "no shared memory for %d ranks (%s): try --launch threads", plan->ranks,
                         strerror(errno));
    }
    memset(&s, 0, sizeof s);
    s.job = (dt__job *)job;
    dt__job_init(s.job, plan);
    dt__supervise_signals(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGCHLD, SIG_DFL); /* where it is ignored, waitpid cannot tell how a rank ended */
    fflush(NULL);
    failed = dt__spawn_ranks(&s, fd, argv);
    if (failed) {
        dt__supervise_kill(&s, SIGKILL);
        while (s.alive) dt__supervise_reap(&s), dt__nap();
        sigprocmask(SIG_UNBLOCK, &set, NULL);
        return dt__error(DT_E_SYSTEM, "cannot start %d ranks (%s): use fewer", plan->ranks, strerror(failed));
    }
    while (s.alive) {
        dt__supervise_listen(&s, &set);
        dt__supervise_reap(&s);
        dt__supervise_announce(&s);
        dt__supervise_press(&s);
    }
    dt__supervise_announce(&s);
    exit(dt__supervise_status(&s));
}

/* A rank leaves Ctrl-C and a closed terminal to the supervisor and passes SIGTERM on to it, so that whoever gets the
 * signal the whole job stops in order. SIGTERM from the supervisor is its last word. */
static void dt__rank_signal(int sig, siginfo_t *info, void *context)
{
    int saved = errno;
    (void)context;
    if (sig == SIGTERM && info->si_pid == getppid()) {
        signal(SIGTERM, SIG_DFL);
        raise(SIGTERM);
    } else if (sig == SIGTERM) {
        kill(getppid(), SIGTERM);
    }
    errno = saved;
}

/* The job whose memory was inherited, or NULL when this process was not started by a supervisor. */
static dt__job *dt__attach(int fd)
{
    dt__job head;
    void *job;
    if (fd < 0 || pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != DT__JOB_MAGIC) return NULL;
    job = mmap(NULL, (size_t)dt__job_bytes(head.size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return job == MAP_FAILED ? NULL : (dt__job *)job;
}

/* Makes this process a good rank. It must not outlive its supervisor: the death signal comes first, then the look
 * whether the supervisor died before it was set. */
static void dt__become_rank(int fd)
{
    struct sigaction action;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if ((int)getppid() != dt__environment_int("DT_SUPERVISOR", 0)) raise(SIGKILL);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    memset(&action, 0, sizeof action);
    action.sa_sigaction = dt__rank_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}
#endif

/* ---- ranks as threads ---- */

#ifndef DT_NO_THREADS
/* The program's main, called again by every thread rank. Another name for it: main itself must not be called. */
#ifdef __APPLE__
#define DT__MAIN_SYMBOL "_main"
#else
#define DT__MAIN_SYMBOL "main"
#endif
#ifdef __cplusplus
extern "C"
#else
extern
#endif
int dt__user_main(int argc, char **argv) __asm__(DT__MAIN_SYMBOL) __attribute__((weak));

typedef struct dt__rank_thread {
    pthread_t thread;
    struct dt__local_rank self;
    int argc, done, seen; /* done: atomic */
    int status;
    char **argv;
} dt__rank_thread;

static void *dt__rank_main(void *argument)
{
    dt__rank_thread *t = (dt__rank_thread *)argument;
    dt__thread.rank = &t->self;
    t->status = (dt__user_main(t->argc, t->argv) & 255) << 8; /* as waitpid tells it */
    dt__job_ended(t->self.job, t->self.rank, t->status);
    __atomic_store_n(&t->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static dt_result dt__start_thread(dt__rank_thread *t, dt__job *job, int rank, int argc, char **argv)
{
    pthread_attr_t attributes;
    size_t stack = 0;
    int failed;
    t->self.job = job;
    t->self.rank = rank;
    t->argc = argc;
    t->argv = (char **)dt__alloc((argc + 1) * (int64_t)sizeof *argv, "a rank's arguments");
    if (!t->argv) return DT_E_MEMORY;
    for (int i = 0; i < argc; i++) t->argv[i] = argv[i];
    pthread_attr_init(&attributes);
    pthread_attr_getstacksize(&attributes, &stack);
    if (stack < (size_t)8 << 20) pthread_attr_setstacksize(&attributes, (size_t)8 << 20);
    failed = pthread_create(&t->thread, &attributes, dt__rank_main, t);
    pthread_attr_destroy(&attributes);
    if (!failed) return DT_OK;
    return dt__error(DT_E_SYSTEM, "cannot start rank %d as a thread (%s): use fewer", rank, strerror(failed));
}

/* Threads cannot be killed: what does not end in time is left behind by exit. */
static void dt__supervise_threads(dt__supervisor *s, dt__rank_thread *threads, int ranks)
{
#ifdef __linux__
    sigset_t set;
    dt__supervise_signals(&set);
#endif
    while (s->alive && (s->deadline <= 0 || dt__now() < s->deadline + 2)) {
#ifdef __linux__
        dt__supervise_listen(s, &set);
#else
        dt__nap();
#endif
        for (int r = 0; r < ranks; r++) {
            dt__rank_thread *t = &threads[r];
            if (t->seen || !__atomic_load_n(&t->done, __ATOMIC_ACQUIRE)) continue;
            t->seen = 1;
            pthread_join(t->thread, NULL);
            dt__free(t->argv);
            s->alive--;
            if (!s->status) s->status = t->status;
        }
        dt__supervise_announce(s);
        if (s->deadline > 0 && dt__now() > s->deadline) __atomic_store_n(&s->job->stop, 2, __ATOMIC_SEQ_CST);
    }
}

static dt_result dt__launch_threads(const dt__launch_plan *plan, int argc, char **argv)
{
    dt__supervisor s;
    dt__rank_thread *threads;
    int status;
    dt_result r = DT_OK;
    memset(&s, 0, sizeof s);
    if (!dt__user_main) return dt__error(DT_E_USAGE, "--launch threads: no main function to call; use processes");
    s.job = (dt__job *)dt__alloc(dt__job_bytes(plan->ranks), "the ranks' shared state");
    threads = (dt__rank_thread *)dt__alloc(plan->ranks * (int64_t)sizeof *threads, "the rank threads");
    if (!s.job || !threads) return dt__free(s.job), dt__free(threads), DT_E_MEMORY;
    dt__job_init(s.job, plan);
#ifdef __linux__
    sigset_t set;
    dt__supervise_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
#endif
    for (int i = 0; i < plan->ranks && !r; i++) {
        r = dt__start_thread(&threads[i], s.job, i, argc, argv);
        s.alive += !r;
    }
    if (r) { /* the ranks that did start must not wait for the others */
        __atomic_store_n(&s.job->stop, 2, __ATOMIC_SEQ_CST);
        fprintf(stderr, "dtrain: %s\n", dt_last_error());
        s.status = dt_exit_code(r) << 8;
        s.announced = 1;
        s.deadline = dt__now() + 2;
    }
    dt__supervise_threads(&s, threads, plan->ranks);
    dt__supervise_announce(&s);
    status = dt__supervise_status(&s);
    if (s.alive) {
        fprintf(stderr, "dtrain: %d rank threads did not end\n", s.alive);
        fflush(NULL);
        _exit(status);
    }
    dt__free(threads);
    dt__free(s.job);
    exit(status);
}
#endif

/* ---- dt_launch ---- */

/* Nothing asked for ranks: alone, unless another launcher expects this process to be one of several. */
static dt_result dt__check_foreign(void)
{
    int world = dt__environment_int("WORLD_SIZE", 1);
    if (world <= 1 || dt__thread.rank || getenv("DT_MEMFD") || !getenv("RANK")) return DT_OK;
    return dt__error(DT_E_USAGE, "the environment makes this rank %s of %d, but this program is built without an "
                     "engine for several machines (DT_MPI, DT_NCCL, DT_OFI): rebuild with one, or start it once with "
                     "--ranks %d",
                     getenv("RANK"), world, world);
}

DT_API dt_result dt_launch(int *argc, char ***argv)
{
    dt__launch_plan plan;
    dt_result r;
    memset(&plan, 0, sizeof plan);
    plan.ranks = 1;
    plan.timeout = 10;
    if (dt__thread.rank) return DT_OK;
#ifdef __linux__
    {
        int fd = dt__environment_int("DT_MEMFD", -1);
        dt__job *job = dt__attach(fd);
        if (job) {
            munmap(job, (size_t)dt__job_bytes(job->size));
            dt__become_rank(fd);
            return DT_OK;
        }
    }
#else
    plan.threads = 1;
#endif
    r = getenv("DT_TIMEOUT") ? dt__launch_value(&plan, "DT_TIMEOUT", getenv("DT_TIMEOUT")) : DT_OK;
    if (!r) r = dt__launch_parse(&plan, argc, *argv);
    if (r) return r;
    if (plan.ranks == 1) return dt__check_foreign();
#ifndef DT_NO_THREADS
    if (plan.threads) return dt__launch_threads(&plan, *argc, *argv);
#endif
#ifdef __linux__
    if (!plan.threads) return dt__launch_processes(&plan, *argv);
#endif
    return dt__error(DT_E_USAGE, "--ranks %d: this build cannot run several ranks that way", plan.ranks);
}

DT_API dt_result dt_comm_init(dt_comm **c, int *argc, char ***argv)
{
    dt_result r = argc && argv ? dt_launch(argc, argv) : dt__check_foreign();
    dt__job *job = NULL;
    *c = NULL;
    if (r) return r;
    if (dt__thread.rank) return dt__comm_open(c, dt__thread.rank->job, dt__thread.rank->rank, -1);
#ifdef __linux__
    {
        int fd = dt__environment_int("DT_MEMFD", -1);
        if ((job = dt__attach(fd)) != NULL) return dt__comm_open(c, job, dt__environment_int("RANK", 0), fd);
    }
#endif
    return dt__comm_open(c, job, 0, -1);
}

/* ---- dt_fail ---------------------------------------------------------------------------------------- */

/* Is it this rank's turn to say what failed? Mostly all ranks fail in the same way, and the first one says it; which
 * rank died or froze, the supervisor says. */
static int dt__fail_speaks(void)
{
    dt__job *job = dt__thread.rank ? dt__thread.rank->job : NULL;
    int speaks = 1, mapped = !job;
#ifdef __linux__
    if (!job) job = dt__attach(dt__environment_int("DT_MEMFD", -1));
#endif
    if (!job) return 1;
    if (dt__thread.code == DT_E_PEER && __atomic_load_n(&job->fault, __ATOMIC_SEQ_CST)) speaks = 0;
    else speaks = !__atomic_exchange_n(&job->told, 1u, __ATOMIC_SEQ_CST);
    if (mapped) munmap(job, (size_t)dt__job_bytes(job->size));
    return speaks;
}

DT_API int dt_fail(const char *what)
{
    if (dt__thread.code != DT_E_HELP && dt__fail_speaks()) fprintf(stderr, "%s: %s\n", what, dt_last_error());
    return dt_exit_code(dt__thread.code == DT_OK ? DT_E_SYSTEM : dt__thread.code);
}

/* ---- options ------------------------------------------------------------------------------------- */

enum { DT__TYPE_INT, DT__TYPE_FLOAT, DT__TYPE_TEXT, DT__TYPE_FLAG, DT__TYPE_NAME, DT__TYPE_MODEL };

typedef struct dt__option {
    const char *name, *argument, *sentence;
    int type, in_layout;
    size_t offset;
    const char *names; /* TYPE_NAME: the values 0, 1, .. */
} dt__option;

#define DT__RECIPE(name, argument, type, field, sentence)                                                    \
    {name, argument, sentence, type, 0, offsetof(dt_recipe, field), NULL}
#define DT__LAYOUT(name, argument, type, field, sentence)                                                    \
    {name, argument, sentence, type, 1, offsetof(dt_layout, field), NULL}
#define DT__CHOSEN(name, field, names, sentence)                                                             \
    {name, "KIND", sentence, DT__TYPE_NAME, 1, offsetof(dt_layout, field), names}
#define DT__NAMED(name, field, names, sentence)                                                              \
    {name, "KIND", sentence, DT__TYPE_NAME, 0, offsetof(dt_recipe, field), names}
#define DT__MODEL_NAMES                                                                                                \
    "GPT-2: nano, micro, tiny, small, 124M, 355M, 774M, 1558M; llama-nano, -micro, -tiny, -small, -1.1B, -7B, -13B, "  \
    "llama3-8B, llama3.2-1B"
static const dt__option dt__options[] = {
    DT__RECIPE("data", "FILE", DT__TYPE_TEXT, data, "text or .bin token shards; a comma list or a pattern"),
    DT__RECIPE("tokenizer", "PATH", DT__TYPE_TEXT, tokenizer,
               "directory or .json file that encodes a text; none: bytes"),
    DT__RECIPE("model", "NAME", DT__TYPE_MODEL, model, DT__MODEL_NAMES),
    DT__RECIPE("layers", "N", DT__TYPE_INT, model.layers, "blocks"),
    DT__RECIPE("heads", "N", DT__TYPE_INT, model.heads, "attention heads"),
    DT__RECIPE("width", "N", DT__TYPE_INT, model.width, "channels"),
    DT__RECIPE("kv-heads", "N", DT__TYPE_INT, model.kv_heads, "Llama: heads of the keys and values; 0: heads"),
    DT__RECIPE("hidden", "N", DT__TYPE_INT, model.hidden, "Llama: width of the MLP; 0: 8/3 width, rounded up"),
    DT__RECIPE("rope-base", "X", DT__TYPE_FLOAT, model.rope_base, "Llama: of the rotary frequencies; 0: 10000"),
    DT__RECIPE("norm-eps", "X", DT__TYPE_FLOAT, model.norm_eps, "Llama: of the normalisations; 0: 1e-5"),
    DT__RECIPE("tied", NULL, DT__TYPE_FLAG, model.tied, "Llama: one table for embedding and head"),
    DT__RECIPE("experts", "N", DT__TYPE_INT, model.experts, "mixture of experts in the place of each MLP; 0: the MLP"),
    DT__RECIPE("active", "N", DT__TYPE_INT, model.active, "experts per token; 0: 2"),
    DT__RECIPE("capacity", "X", DT__TYPE_FLOAT, model.capacity, "tokens an expert takes, over the even share; 0: all"),
    DT__RECIPE("balance", "X", DT__TYPE_FLOAT, model.balance, "coefficient of the load-balance loss"),
    DT__RECIPE("vocabulary", "N", DT__TYPE_INT, model.vocabulary, "token ids; 0: what the data has"),
    DT__RECIPE("dropout", "P", DT__TYPE_FLOAT, dropout, "probability"),
    DT__RECIPE("steps", "N", DT__TYPE_INT, steps, "optimizer steps"),
    DT__RECIPE("batch", "N", DT__TYPE_INT, batch, "sequences per step"),
    DT__RECIPE("micro-batch", "N", DT__TYPE_INT, micro_batch, "sequences per micro-batch; 0: the batch"),
    DT__RECIPE("sequence", "T", DT__TYPE_INT, sequence, "tokens per sequence"),
    DT__RECIPE("seed", "N", DT__TYPE_INT, seed, "of weights, order and dropout"),
    DT__RECIPE("data-shards", "N", DT__TYPE_INT, data_shards, "logical shards, a power of two: up to so many ranks"),
    DT__RECIPE("tensor-shards", "N", DT__TYPE_INT, tensor_shards, "slices of heads and hidden units, a power of two"),
    DT__RECIPE("context-shards", "N", DT__TYPE_INT, context_shards, "parts of each sequence, a power of two"),
    DT__NAMED("accumulation", accumulation, "shard,each", "shard or each: how micro-batches add up"),
    DT__NAMED("schedule", schedule, "constant,cosine,linear,wsd", "constant, cosine, linear or wsd"),
    DT__RECIPE("learning-rate", "X", DT__TYPE_FLOAT, learning_rate, "peak"),
    DT__RECIPE("final-rate", "X", DT__TYPE_FLOAT, final_rate, "share of the peak at the end"),
    DT__RECIPE("warmup", "N", DT__TYPE_INT, warmup, "steps of linear warm-up"),
    DT__RECIPE("decay", "N", DT__TYPE_INT, decay, "steps of wsd's final decay; 0: a tenth"),
    DT__NAMED("optimizer", optimizer, "adamw,adam,sgd,lion,adamw8", "adamw, adam, sgd, lion or adamw8 (8-bit moments)"),
    DT__RECIPE("beta1", "X", DT__TYPE_FLOAT, beta1, "AdamW, Adam, Lion"),
    DT__RECIPE("beta2", "X", DT__TYPE_FLOAT, beta2, "AdamW, Adam, Lion (there 0.99 is usual)"),
    DT__RECIPE("epsilon", "X", DT__TYPE_FLOAT, epsilon, "AdamW, Adam"),
    DT__RECIPE("momentum", "X", DT__TYPE_FLOAT, momentum, "SGD; 0: none"),
    DT__RECIPE("nesterov", NULL, DT__TYPE_FLAG, nesterov, "SGD: Nesterov's momentum"),
    DT__RECIPE("weight-decay", "X", DT__TYPE_FLOAT, weight_decay, "not on norms and biases; part of g in Adam and SGD"),
    DT__RECIPE("clip", "X", DT__TYPE_FLOAT, clip, "limit of the gradient norm; 0: none"),
    DT__RECIPE("clip-value", "X", DT__TYPE_FLOAT, clip_value, "limit of every gradient element, after --clip; 0: none"),
    DT__RECIPE("ema", "X", DT__TYPE_FLOAT, ema, "decay of an average of the weights; 0: none"),
    DT__RECIPE("evaluate-ema", NULL, DT__TYPE_FLAG, evaluate_ema, "validation and samples use the average"),
    DT__RECIPE("validation", "X", DT__TYPE_FLOAT, validation, "share of the data kept for validation"),
    DT__LAYOUT("threads", "N", DT__TYPE_INT, threads, "threads per rank; 0: cores / ranks"),
    DT__LAYOUT("tp", "N", DT__TYPE_INT, tp, "tensor parallel degree"),
    DT__LAYOUT("sequence-parallel", NULL, DT__TYPE_FLAG, sequence_parallel,
               "tensor groups split rows between products"),
    DT__LAYOUT("pp", "N", DT__TYPE_INT, pp, "stages of the pipeline"),
    DT__LAYOUT("cp", "N", DT__TYPE_INT, cp,
               "context parallel degree (ring attention); the rest of the ranks is data parallel"),
    DT__LAYOUT("order", "DPT", DT__TYPE_TEXT, order, "of the mesh, slowest axis first; cluster is DPT, spread TPD"),
    DT__CHOSEN("pipeline", pipeline, "1f1b,gpipe,interleaved,zero-bubble", "1f1b, gpipe, interleaved or zero-bubble"),
    DT__LAYOUT("chunks", "N", DT__TYPE_INT, chunks, "interleaved: runs of segments per stage"),
    DT__LAYOUT("memory-weight", "X", DT__TYPE_FLOAT, memory_weight, "stages balance time (0) to memory (1)"),
    DT__LAYOUT("ep", "N", DT__TYPE_INT, ep, "expert parallel degree: data-parallel ranks that share the experts"),
    DT__LAYOUT("zero", "N", DT__TYPE_INT, zero,
               "ZeRO stage: ranks share 1 optimizer state, 2 and gradients, 3 and weights"),
    DT__LAYOUT("zero-group", "N", DT__TYPE_INT, zero_group, "ranks that share (hybrid sharding); 0: all"),
    DT__CHOSEN("recompute", recompute, "none,selective,full", "in backward: none, selective (attention) or full"),
    DT__LAYOUT("offload", NULL, DT__TYPE_FLAG, offload, "what --recompute full keeps goes to a second memory"),
    DT__LAYOUT("horizon", "N", DT__TYPE_INT, horizon, "offload: segments before its use that an input is fetched"),
    DT__LAYOUT("offload-rate", "X", DT__TYPE_FLOAT, offload_rate, "offload: bytes per second; 0: no limit"),
    DT__LAYOUT("bucket", "BYTES", DT__TYPE_INT, bucket, "gradient bytes per reduction"),
    DT__CHOSEN("overlap", overlap, "auto,off,on", "a thread communicates meanwhile: auto (on a free core), off or on"),
    DT__LAYOUT("eval-every", "N", DT__TYPE_INT, eval_every, "steps between validations; 0: at the end"),
    DT__LAYOUT("eval-batches", "N", DT__TYPE_INT, eval_batches, "batches per validation; 0: all"),
    DT__LAYOUT("sample-every", "N", DT__TYPE_INT, sample_every, "steps between text samples; 0: at the end"),
    DT__LAYOUT("sample-length", "N", DT__TYPE_INT, sample_length, "bytes per sample; 0: none"),
    DT__LAYOUT("temperature", "X", DT__TYPE_FLOAT, sampling.temperature, "of samples; 0: always the likeliest token"),
    DT__LAYOUT("top-k", "N", DT__TYPE_INT, sampling.top_k, "samples draw from so many tokens; 0: all"),
    DT__LAYOUT("top-p", "P", DT__TYPE_FLOAT, sampling.top_p, "samples draw from so much probability; 0: all"),
    DT__LAYOUT("no-cache", NULL, DT__TYPE_FLAG, no_cache, "samples compute the whole sequence for every token"),
    DT__LAYOUT("metrics", "FILE", DT__TYPE_TEXT, metrics, "JSON lines, one per step"),
    DT__LAYOUT("timeline", "FILE", DT__TYPE_TEXT, timeline, "the last step as SVG, or as a trace (.json)"),
    DT__LAYOUT("quiet", NULL, DT__TYPE_FLAG, quiet, "no progress"),
    DT__LAYOUT("show-program", NULL, DT__TYPE_FLAG, show_program, "print the step program of rank 0"),
    DT__LAYOUT("no-memory-check", NULL, DT__TYPE_FLAG, no_memory_check, "start although memory looks too small"),
};
#undef DT__RECIPE
#undef DT__LAYOUT
#undef DT__NAMED
#undef DT__CHOSEN
enum { DT__OPTION_COUNT = (int)(sizeof dt__options / sizeof *dt__options) };

static void *dt__option_place(const dt__option *o, dt_recipe *recipe, dt_layout *layout)
{
    return (char *)(o->in_layout ? (void *)layout : (void *)recipe) + o->offset;
}

/* The idx-th of "a,b,c" has `length` characters at the returned place; NULL past the end. */
static const char *dt__name_at(const char *names, int index, size_t *length)
{
    for (; index > 0; index--) {
        names = strchr(names, ',');
        if (!names) return NULL;
        names++;
    }
    *length = strcspn(names, ",");
    return names;
}

static dt_result dt__option_set(const dt__option *o, const char *value, void *place)
{
    char *end = NULL;
    if (o->type == DT__TYPE_FLAG) {
        *(int32_t *)place = 1;
        return DT_OK;
    }
    if (!value) return dt__error(DT_E_USAGE, "option --%s needs a value: --%s %s", o->name, o->name, o->argument);
    if (o->type == DT__TYPE_TEXT) {
        *(const char **)place = value;
        return DT_OK;
    }
    if (o->type == DT__TYPE_INT) {
        errno = 0;
        *(int64_t *)place = (int64_t)strtoll(value, &end, 10);
        if (end != value && !*end && !errno) return DT_OK;
        return dt__error(DT_E_USAGE, "option --%s: '%s' is not a whole number", o->name, value);
    }
    if (o->type == DT__TYPE_FLOAT) {
        *(float *)place = strtof(value, &end);
        if (end != value && !*end && *(float *)place - *(float *)place == 0.0f) return DT_OK;
        return dt__error(DT_E_USAGE, "option --%s: '%s' is not a number", o->name, value);
    }
    if (o->type == DT__TYPE_MODEL) {
        dt_model m = dt_model_gpt2(value);
        if (!m.layers) m = dt_model_llama(value);
        if (!m.layers) return dt__error(DT_E_USAGE, "option --model: there is no size '%s': %s", value, o->sentence);
        *(dt_model *)place = m;
        return DT_OK;
    }
    for (int i = 0;; i++) {
        size_t length = 0;
        const char *name = dt__name_at(o->names, i, &length);
        if (!name) return dt__error(DT_E_USAGE, "option --%s: '%s' is not one of %s", o->name, value, o->names);
        if (strlen(value) == length && !strncmp(name, value, length)) return *(int32_t *)place = i, DT_OK;
    }
}

/* Edit distance of two short names (Levenshtein). */
static int dt__distance(const char *a, const char *b)
{
    int row[64], n = (int)dt__min(63, (int64_t)strlen(b));
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int change = corner + (a[i - 1] != b[j - 1]), best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            corner = row[j];
            row[j] = change < best ? change : best;
        }
    }
    return row[n];
}

static dt_result dt__unknown_option(const char *text)
{
#define DT__LAUNCH_NAME(name, argument, sentence) &name[2],
    static const char *const launch[] = {DT__LAUNCH_OPTIONS(DT__LAUNCH_NAME) "help"};
#undef DT__LAUNCH_NAME
    enum { LAUNCH = (int)(sizeof launch / sizeof *launch) };
    char name[48];
    const char *nearest = "help";
    int best = 1000;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, "="), text);
    for (int i = 0; i < DT__OPTION_COUNT + LAUNCH; i++) {
        const char *candidate = i < LAUNCH ? launch[i] : dt__options[i - LAUNCH].name;
        int d = dt__distance(name, candidate);
        if (d < best) best = d, nearest = candidate;
    }
    return dt__error(DT_E_USAGE, "unknown option --%s: did you mean --%s? --help lists all", name, nearest);
}

static void dt__help_value(const dt__option *o, const void *place, char *text, size_t size)
{
    size_t length = 0;
    text[0] = 0;
    if (o->type == DT__TYPE_INT) snprintf(text, size, " [%lld]", (long long)*(const int64_t *)place);
    else if (o->type == DT__TYPE_FLOAT) snprintf(text, size, " [%g]", (double)*(const float *)place);
    else if (o->type == DT__TYPE_NAME) {
        const char *name = dt__name_at(o->names, *(const int32_t *)place, &length);
        snprintf(text, size, " [%.*s]", (int)length, name);
    } else if (o->type == DT__TYPE_TEXT && *(const char *const *)place)
        snprintf(text, size, " [%s]", *(const char *const *)place);
}

static void dt__help(const char *program, dt_recipe *recipe, dt_layout *layout)
{
    char left[48], value[96];
    printf("Usage: %s [OPTION]...\nTrains a GPT-2 or a Llama. The recipe decides the bits; the layout decides where "
           "and when, and never changes one.\n",
           program);
    for (int part = 0; part < 2; part++) {
        printf("\n%s\n", part ? "Layout" : "Recipe");
        for (int i = 0; i < DT__OPTION_COUNT; i++) {
            const dt__option *o = &dt__options[i];
            if (o->in_layout != part) continue;
            snprintf(left, sizeof left, "--%s%s%s", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
            dt__help_value(o, dt__option_place(o, recipe, layout), value, sizeof value);
            printf("  %-24s %s%s\n", left, o->sentence, value);
        }
    }
#define DT__LAUNCH_HELP(name, argument, sentence) printf("  %-24s %s\n", name " " argument, sentence);
    DT__LAUNCH_OPTIONS(DT__LAUNCH_HELP)
#undef DT__LAUNCH_HELP
    printf("  %-24s %s\n", "--help", "this text");
}

DT_API dt_result dt_args(int *argc, char ***argv, dt_recipe *recipe, dt_layout *layout)
{
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        const char *text = (*argv)[i], *equals = strchr(text, '='), *value;
        const dt__option *o = NULL;
        dt_result r;
        size_t length = equals ? (size_t)(equals - text) : strlen(text);
        if (strncmp(text, "--", 2) || !text[2]) {
            (*argv)[kept++] = (*argv)[i];
            continue;
        }
        if (!strcmp(text, "--help")) {
            dt__help((*argv)[0], recipe, layout);
            return dt__error(DT_E_HELP, "help was printed");
        }
        for (int k = 0; k < DT__OPTION_COUNT && !o; k++)
            if (strlen(dt__options[k].name) == length - 2 && !strncmp(dt__options[k].name, text + 2, length - 2))
                o = &dt__options[k];
        if (!o) return dt__unknown_option(text + 2);
        value = equals ? equals + 1 : NULL;
        if (!equals && o->type != DT__TYPE_FLAG && i + 1 < *argc) value = (*argv)[++i];
        r = dt__option_set(o, value, dt__option_place(o, recipe, layout));
        if (r) return r;
    }
    *argc = kept;
    (*argv)[kept] = NULL;
    return DT_OK;
}

/* ---- trainer ----------------------------------------------------------------------------------------- */

enum { DT__PREFILL = 32 };

/* What draws text: the whole sequence at once, or the decode form, DT__PREFILL positions at a time or one, against a
 * cache of keys and values. The two decode nets have the same cache. */
typedef struct dt__generator {
    dt__net whole, several, one;
    float *memory, *cache;         /* memory: what the largest of the nets needs */
    int64_t memory_floats, cache_floats;
    int64_t cached;                /* positions whose keys and values are in the cache */
    float *weight;                 /* (vocabulary): exp of the logits */
    float *row;                    /* (vocabulary): logits of which this rank has the columns of its tensor shards */
    int32_t *heap;                 /* (vocabulary): tokens, for top_k and top_p */
} dt__generator;

struct dt_trainer {
    dt_recipe recipe;
    dt_layout layout;
    dt_comm *comm;
    dt_pool *pool;
    dt_tokenizer *tokenizer; /* NULL: bytes */
    dt_data *data;           /* NULL with a source */
    dt__feed feed;
    dt__loader *loader;
    dt__batch batch; /* this rank's samples of the step */
    dt__engine e;
    dt__generator generator; /* text samples */
    uint32_t *unit; /* validation samples: input and target words of one unit */
    char *text;           /* a text sample */
    float *whole;         /* a parameter put together from its tensor shards; NULL when there is one shard */
    float *gathered;      /* (shards, 1 or segments): losses of all ranks */
    float *counts;        /* (ranks, 16): words of each */
    dt__metrics metrics; /* rank 0, when asked for */
    FILE *timeline;      /* the same */
    char hash[68];
    int64_t hashed; /* the step whose hash it is; -1: none */
    double peak_gflops, started, printed, waited;
    dt_memory planned;
};

DT_API dt_step_info dt_step_info_zero(void)
{
    dt_step_info s;
    memset(&s, 0, sizeof s);
    s.validation = __builtin_nanf("");
    return s;
}
DT_API int dt_is_root(const dt_trainer *t) { return dt_comm_rank(t->comm) == 0; }
DT_API int64_t dt_trainer_sent(const dt_trainer *t, int peer) { return dt_comm_sent(t->comm, peer); }
DT_API int64_t dt_trainer_weights(const dt_trainer *t) { return t->e.net.weights; }
/* The part of an array of weights, or NULL, that is the parameter of this name, when this rank has it whole: a copy
 * when tensor shards cut it. */
static const float *dt__trainer_part(const dt_trainer *t, const float *array, const char *name, int64_t *count)
{
    const dt__net *net = &t->e.net;
    int32_t i = array ? dt__net_find(net, name) : -1;
    const dt__net_param *p = i < 0 || net->params[i].offset < 0 ? NULL : &net->params[i];
    int cut = p && dt__param_arrays(&p->is, net->tensor_shards) > 1;
    if (cut &&
        dt__param_shards(&p->is, net->tensor_shards, net->own_shards) < dt__param_arrays(&p->is, net->tensor_shards))
        p = NULL;
    if (count) *count = p ? dt_shape_count(p->is.shape) : 0;
    if (!p || !cut) return p ? array + p->offset : NULL;
    dt__net_whole(net, p, array + p->offset, 4, t->whole);
    return t->whole;
}
DT_API const float *dt_trainer_parameter(const dt_trainer *t, const char *name, int64_t *count)
{
    if (dt__engine_settle((dt__engine *)(uintptr_t)&t->e)) return NULL;
    return dt__trainer_part(t, t->e.shape.zero < 3 ? t->e.params : NULL, name, count);
}
DT_API const float *dt_trainer_average(const dt_trainer *t, const char *name, int64_t *count)
{
    return dt__trainer_part(t, t->e.shape.zero ? NULL : (const float *)t->e.state[DT__STATE_AVERAGE], name, count);
}

DT_API dt_result dt_trainer_experts(dt_trainer *t, int64_t index, float *counts)
{
    const dt__net *net = &t->e.net;
    const float *asked = t->e.asked;
    int64_t left = index;
    for (int64_t s = 0; s < net->count && left >= 0; s++)
        for (int32_t id = 1; id < net->segments[s].plan->g->forward_count; id++) {
            const dt__node *n = &net->segments[s].plan->g->nodes[id];
            if (n->op != DT__OP_MOE_ROUTE) continue;
            if (!left--) {
                for (int64_t i = 0; i < n->i[0]; i++) counts[i] = t->e.mesh.at[DT__TENSOR] ? 0.0f : asked[i];
                return dt_all_reduce(t->comm, counts, n->i[0], DT_SUM);
            }
            asked += n->i[0];
        }
    return dt__error(DT_E_USAGE, "dt_trainer_experts: there is no mixture %lld in the model: count from 0",
                     (long long)index);
}

/* ---- checks: one sentence each, before anything is opened ---------------------------------------------- */

static dt_result dt__check_llama(const dt_model *m)
{
    char list[256];
    if (m->kv_heads < 0 || (m->kv_heads && m->heads % m->kv_heads))
        return dt__error(DT_E_USAGE, "%lld heads of the keys do not divide %lld heads: --kv-heads one of %s",
                         (long long)m->kv_heads, (long long)m->heads, dt__divisors(m->heads, 64, list, sizeof list));
    if (m->width / m->heads % 2)
        return dt__error(DT_E_USAGE,
                         "a head of width %lld (width %lld / %lld heads) cannot be rotated in pairs: make it even",
                         (long long)(m->width / m->heads), (long long)m->width, (long long)m->heads);
    if (m->hidden < 0 || m->hidden > 1000000)
        return dt__error(DT_E_USAGE, "--hidden %lld: it is 1 to a million, or 0 for 8/3 of the width",
                         (long long)m->hidden);
    if (!(m->rope_base == 0.0f || (m->rope_base >= 1.0f && m->rope_base <= 1e30f)) ||
        !(m->norm_eps >= 0.0f && m->norm_eps <= 1.0f))
        return dt__error(DT_E_USAGE, "--rope-base is 1 or more and --norm-eps 0 to 1 (0: the usual value)");
    if (m->dropout > 0.0f) return dt__error(DT_E_USAGE, "--dropout: the Llama family has none, set it to 0");
    return DT_OK;
}

static dt_result dt__check_model(const dt_model *m)
{
    char list[256];
    if (m->segments)
        return m->segment_count >= 2
                   ? DT_OK
                   : dt__error(DT_E_USAGE, "a model needs at least two segments: tokens in, loss out");
    if (m->layers < 1 || m->layers > 1000 || m->heads < 1 || m->width < 1 || m->width > 65536)
        return dt__error(DT_E_USAGE,
                         "the model has %lld layers, %lld heads, width %lld: choose a --model (" DT__MODEL_NAMES
                         ") or set --layers, --heads, --width to 1 or more",
                         (long long)m->layers, (long long)m->heads, (long long)m->width);
    if (m->width % m->heads)
        return dt__error(DT_E_USAGE, "%lld heads do not divide width %lld: --heads one of %s", (long long)m->heads,
                         (long long)m->width, dt__divisors(m->width, 64, list, sizeof list));
    if (m->experts < 0 || m->active < 0 || (m->experts && (m->active ? m->active : 2) > m->experts))
        return dt__error(DT_E_USAGE,
                         "--experts %lld with --active %lld: experts is 0 or more, active 1 to experts (0: 2)",
                         (long long)m->experts, (long long)m->active);
    if (!(m->capacity >= 0.0f && m->capacity <= 1e6f && m->balance >= 0.0f && m->balance <= 1e6f))
        return dt__error(DT_E_USAGE, "--capacity %g and --balance %g must be from 0 to a million", (double)m->capacity,
                         (double)m->balance);
    if (m->family == DT_LLAMA) return dt__check_llama(m);
    if (m->family != DT_GPT2)
        return dt__error(DT_E_USAGE, "%d is no family of models: DT_GPT2 or DT_LLAMA", (int)m->family);
    if (m->kv_heads || m->hidden || m->rope_base != 0.0f || m->norm_eps != 0.0f || m->tied)
        return dt__error(DT_E_USAGE,
                         "--kv-heads, --hidden, --rope-base, --norm-eps and --tied are for the Llama family: "
                         "--model llama-nano, or leave them out");
    return DT_OK;
}

/* dp: data-parallel ranks. */
static dt_result dt__check_batch(const dt_recipe *r, int dp)
{
    char list[256];
    if (r->batch < 1 || r->sequence < 1 || r->steps < 1 || r->batch > 1000000 || r->sequence > 1000000)
        return dt__error(
            DT_E_USAGE, "--batch, --sequence and --steps must be 1 or more (and batch and sequence at most a million)");
    if (r->micro_batch < 1 || r->batch % r->micro_batch)
        return dt__error(DT_E_USAGE, "micro-batch %lld does not divide batch %lld: --micro-batch one of %s",
                         (long long)r->micro_batch, (long long)r->batch,
                         dt__divisors(r->batch, r->batch, list, sizeof list));
    if (!dt__is_pow2(r->data_shards) || r->data_shards > 1024)
        return dt__error(
            DT_E_USAGE,
            "%lld data shards: it is a power of two up to 1024 (the tree over shards must not depend on ranks)",
            (long long)r->data_shards);
    if (r->micro_batch % r->data_shards)
        return dt__error(DT_E_USAGE,
                         "micro-batch %lld does not divide into %lld data shards: make it a multiple, or lower "
                         "--data-shards (a recipe choice: other bits)",
                         (long long)r->micro_batch, (long long)r->data_shards);
    if (!dt__is_pow2(r->tensor_shards) || r->tensor_shards > DT__TENSOR_SHARDS)
        return dt__error(DT_E_USAGE,
                         "%lld tensor shards: it is a power of two up to %d (the tree over shards must not depend on "
                         "ranks)",
                         (long long)r->tensor_shards, (int)DT__TENSOR_SHARDS);
    if (!dt__is_pow2(r->context_shards) || r->context_shards > 1024)
        return dt__error(DT_E_USAGE,
                         "%lld context shards: it is a power of two up to 1024 (the tree over shards must not depend "
                         "on ranks)", (long long)r->context_shards);
    if (dp > r->data_shards)
        return dt__error(DT_E_USAGE,
                         "%d data-parallel ranks cannot share %lld data shards: use up to %lld, or raise --data-shards "
                         "(a recipe choice: other bits)",
                         dp, (long long)r->data_shards, (long long)r->data_shards);
    return DT_OK;
}

static dt_result dt__check_optimizer(const dt_recipe *r)
{
    if (r->optimizer < DT_ADAMW || r->optimizer > DT_ADAMW8)
        return dt__error(DT_E_USAGE, "optimizer %d: it is DT_ADAMW, DT_ADAM, DT_SGD, DT_LION or DT_ADAMW8",
                         r->optimizer);
    if (!(r->momentum >= 0.0f && r->momentum < 1.0f && r->ema >= 0.0f && r->ema < 1.0f && r->clip_value >= 0.0f))
        return dt__error(DT_E_USAGE, "--momentum %g, --ema %g: they lie in [0, 1); --clip-value %g: 0 or more",
                         (double)r->momentum, (double)r->ema, (double)r->clip_value);
    if (r->optimizer != DT_SGD && (r->momentum > 0.0f || r->nesterov))
        return dt__error(DT_E_USAGE, "--momentum and --nesterov belong to --optimizer sgd: the others have --beta1");
    if (r->nesterov && !(r->momentum > 0.0f))
        return dt__error(DT_E_USAGE, "--nesterov looks ahead by the momentum: set --momentum, e.g. 0.9");
    if (r->evaluate_ema && !(r->ema > 0.0f))
        return dt__error(DT_E_USAGE, "--evaluate-ema: there is no average of the weights: set --ema, e.g. 0.999");
    return DT_OK;
}

static dt_result dt__check_source(const dt_recipe *r)
{
    const dt_source *s = r->source;
    const int64_t most = (int64_t)1 << 60, widest = (int64_t)1 << 30;
    if (r->data && r->data[0])
        return dt__error(DT_E_USAGE, "the recipe has files (%s) and a source: give one of them", r->data);
    if (r->tokenizer)
        return dt__error(DT_E_USAGE, "a source gives token ids itself: leave --tokenizer %s out", r->tokenizer);
    if (!s->fetch) return dt__error(DT_E_USAGE, "the source has no fetch: set the function that writes a sample");
    if (s->samples[DT_TRAIN] < 1 || s->samples[DT_VALIDATION] < 0 || s->samples[DT_TRAIN] > most ||
        s->samples[DT_VALIDATION] > most)
        return dt__error(DT_E_USAGE, "the source has %lld training and %lld validation samples: it needs 1 or more, "
                         "and 0 or more", (long long)s->samples[DT_TRAIN], (long long)s->samples[DT_VALIDATION]);
    if (s->inputs < 1 || s->targets < 1 || s->inputs > widest || s->targets > widest)
        return dt__error(DT_E_USAGE, "a sample of the source has %lld inputs and %lld targets: each must be 1 to 2^30",
                         (long long)s->inputs, (long long)s->targets);
    if ((s->input_type != DT_F32 && s->input_type != DT_I32) || (s->target_type != DT_F32 && s->target_type != DT_I32))
        return dt__error(DT_E_USAGE, "the source's types are DT_F32 or DT_I32: dt_cast in a segment makes others");
    if (!r->model.segments && r->model.vocabulary < 1)
        return dt__error(DT_E_USAGE, "a source does not say how many token ids there are: set model.vocabulary");
    return DT_OK;
}

static dt_result dt__check_sampling(const dt_sampling *s)
{
    if (s->temperature >= 0.0f && s->temperature <= 1e30f && s->top_k >= 0 && s->top_p >= 0.0f && s->top_p <= 1.0f)
        return DT_OK;
    return dt__error(DT_E_USAGE, "--temperature %g and --top-k %lld must be 0 or more, --top-p %g 0 to 1",
                     (double)s->temperature, (long long)s->top_k, (double)s->top_p);
}

static dt_result dt__check_rest(const dt_recipe *r, const dt_layout *l)
{
    if (!r->source && (!r->data || !r->data[0]))
        return dt__error(DT_E_USAGE, "no data: --data FILE names a text or .bin token shards");
    if (!(r->learning_rate >= 0.0f && r->final_rate >= 0.0f && r->beta1 >= 0.0f && r->beta1 < 1.0f &&
          r->beta2 >= 0.0f && r->beta2 < 1.0f && r->epsilon > 0.0f && r->weight_decay >= 0.0f && r->clip >= 0.0f))
        return dt__error(
            DT_E_USAGE,
            "learning rate, final rate, weight decay and clip must be 0 or more, betas in [0, 1), epsilon above 0");
    if (!(r->dropout >= 0.0f && r->dropout < 1.0f))
        return dt__error(DT_E_USAGE, "--dropout %g is outside [0, 1)", (double)r->dropout);
    if (!(r->validation >= 0.0f && r->validation < 1.0f))
        return dt__error(DT_E_USAGE, "--validation %g is outside [0, 1)", (double)r->validation);
    if (r->warmup < 0 || r->decay < 0 || r->schedule < DT_CONSTANT || r->schedule > DT_WSD ||
        r->accumulation < DT_SHARD || r->accumulation > DT_EACH)
        return dt__error(DT_E_USAGE,
                         "--warmup and --decay must be 0 or more; schedule and accumulation one of --help's words");
    if (l->threads < 0 || l->threads > 1024 || l->bucket < 1 || l->eval_every < 0 || l->eval_batches < 0 ||
        l->sample_every < 0 || l->sample_length < 0)
        return dt__error(DT_E_USAGE, "--threads is 0 to 1024, --bucket 1 or more, --eval-*, --sample-* 0 or more");
    if (!(l->memory_weight >= 0.0f && l->memory_weight <= 1.0f))
        return dt__error(DT_E_USAGE, "--memory-weight %g: it is 0 (stages balance time) to 1 (memory)",
                         (double)l->memory_weight);
    return dt__check_sampling(&l->sampling);
}

/* ---- opening -------------------------------------------------------------------------------------------- */

/* Row `row` of this rank's batch of a step: units in order of (shard, micro), each of `rows` samples. */
static int64_t dt__trainer_index(const dt_trainer *t, int64_t step, int64_t row)
{
    const dt__engine *e = &t->e;
    int64_t unit = row / e->rows, shard = e->lo + unit / e->micros, micro = unit % e->micros;
    return step * t->recipe.batch + micro * t->recipe.micro_batch + shard * e->rows + row % e->rows;
}
static int64_t dt__trainer_row(const void *context, int64_t step, int64_t row)
{
    const dt_trainer *t = (const dt_trainer *)context;
    return dt__sample_at(t->feed.is.samples[DT_TRAIN], (uint64_t)t->recipe.seed, dt__trainer_index(t, step, row));
}

/* Samples and random streams of unit (shard, micro). */
static void dt__trainer_load(void *owner, int64_t shard, int64_t micro)
{
    dt_trainer *t = (dt_trainer *)owner;
    dt__engine *e = &t->e;
    int64_t row = ((shard - e->lo) * e->micros + micro) * e->rows;
    dt__engine_samples(e, t->batch.input + row * t->feed.is.inputs, t->batch.target + row * t->feed.is.targets);
    for (int64_t i = 0; i < e->rows * dt__engine_leaves(e); i++)
        e->env.rng[i] = dt__rng_make((uint64_t)t->recipe.seed, DT__RNG_DROPOUT,
                                     (uint32_t)dt__trainer_index(t, e->step, row + i % e->rows), (uint32_t)e->step, 0);
}

/* Floats of the largest parameter that must be put together from its tensor shards or experts. */
static int64_t dt__trainer_longest(const dt_trainer *t)
{
    int64_t longest = 0;
    for (int32_t i = 0; i < t->e.net.param_count; i++)
        if (dt__param_arrays(&t->e.net.params[i].is, t->e.net.tensor_shards) > 1)
            longest = dt__max(longest, dt_shape_count(t->e.net.params[i].is.shape));
    return longest;
}

/* What will be allocated on this rank. */
static dt_memory dt__memory_plan(const dt_trainer *t)
{
    const dt__engine *e = &t->e;
    int64_t sample = t->feed.is.inputs + t->feed.is.targets;
    dt_memory m = dt__engine_plan(e);
    m.buffers +=
        dt__net_scratch(&e->net, e->k) * e->pool->workers + 12 * e->rows * (e->hi - e->lo) * e->micros * sample;
    m.buffers += 4 * e->rows * sample + 4 * dt__trainer_longest(t);
    if (t->data) m.buffers += dt__data_memory(t->data);
    m.buffers +=
        4 * (e->net.tables + t->generator.whole.tables + t->generator.several.tables + t->generator.one.tables);
    if (t->layout.sample_length) m.buffers += 4 * t->generator.memory_floats + 12 * t->recipe.model.vocabulary;
    m.cache = 4 * t->generator.cache_floats;
    m.total = m.weights + m.gradients + m.optimizer + m.activations + m.buffers + m.cache;
    return m;
}

/* One line of the plan: megabytes, and the formula behind them. */
static void dt__memory_line(const char *what, int64_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void dt__memory_line(const char *what, int64_t bytes, const char *format, ...)
{
    char formula[160];
    va_list list;
    if (!bytes) return;
    va_start(list, format);
    vsnprintf(formula, sizeof formula, format, list);
    va_end(list);
    printf("         %-11s %8.1f MB  %s\n", what, (double)bytes / 1e6, formula);
}

/* The memory of rank 0 beside its formulas: P weights, here those of its stage. */
static void dt__memory_print(const dt_trainer *t)
{
    static const char *const optimizers[] = {"AdamW", "Adam", "SGD", "Lion", "AdamW, 8-bit moments"};
    const dt__engine *e = &t->e;
    const dt_memory *m = &t->planned;
    int64_t ep = t->layout.ep, part = e->shape.pipe.stages > 1 || ep > 1;
    char share[48], experts[48], leaves[48];
    share[0] = experts[0] = leaves[0] = 0;
    if (e->net.own_leaves > 1)
        snprintf(leaves, sizeof leaves, ", and sums of %d context leaves", (int)e->net.own_leaves);
    if (e->shape.zero) snprintf(share, sizeof share, " / %d", e->store.shards);
    if (ep > 1) snprintf(experts, sizeof experts, ", experts / %lld", (long long)ep);
    if (ep > 1 && e->shape.zero)
        snprintf(share, sizeof share, " / %d (experts / %lld)", e->store.shards,
                 (long long)dt__max(1, e->store.shards / ep));
    printf("memory   %.1f MB per rank\n", (double)m->total / 1e6);
    dt__memory_line("weights", m->weights, "4 P%s, P = %lld%s%s", e->shape.zero > 2 ? share : "",
                    (long long)(part ? e->store.param_floats : e->net.weights),
                    e->shape.pipe.stages > 1 ? " on this stage" : "", experts);
    if (ep > 1) snprintf(experts, sizeof experts, " (experts x %lld)", (long long)ep);
    if (e->shape.buffered)
        dt__memory_line("gradients", m->gradients, "4 P%s, and %s of %lld floats%s", e->shape.zero > 1 ? share : "",
                        e->shape.buffered > 1 ? "two buckets together" : "a bucket",
                        (long long)e->store.buffer_floats, leaves);
    else
        dt__memory_line("gradients", m->gradients, "4 P%s x %d sets (data shards %lld..%lld)%s%s%s", experts,
                        e->sets_count, (long long)e->lo, (long long)e->hi - 1,
                        e->shape.total ? " and the total, 4 P" : "",
                        e->shape.total && e->shape.zero > 1 ? share : "", leaves);
    dt__memory_line("optimizer", m->optimizer, "%g P%s (%s%s)", dt_optimizer_bytes(&t->recipe), share,
                    optimizers[t->recipe.optimizer], t->recipe.ema > 0.0f ? ", average of the weights" : "");
    dt__memory_line("activations", m->activations, "up to %d unit%s of %lld x %lld %s%s", e->chunks[0].slots,
                    e->chunks[0].slots == 1 ? "" : "s", (long long)e->rows,
                    (long long)t->feed.is.inputs / e->mesh.size[DT__CONTEXT], t->feed.own ? "inputs" : "tokens",
                    e->shape.horizon ? ", of one segment" : e->shape.recompute == DT_RECOMPUTE_FULL
                        ? ", inputs of segments and one segment's values" : "");
    dt__memory_line("offloaded", m->offloaded, "inputs of segments, in the second memory, not counted above");
    dt__memory_line("buffers", m->buffers, "kernel scratch, messages, prefetched %s, %s%ssampling",
                    t->feed.own ? "samples" : "tokens", e->net.tables ? "rotary angles, " : "",
                    dt__engine_windows(e) > 1 ? "weights of two segments, "
                    : dt__engine_gathers(e, 1) ? "weights of a segment, " : "");
    dt__memory_line("cache", m->cache, "keys and values of %lld positions, for samples", (long long)t->recipe.sequence);
}

DT_API dt_memory dt_trainer_memory(const dt_trainer *t) { return t->planned; }

/* The budget of a rank in bytes; -1: none. */
static dt_result dt__memory_limit(int64_t *limit)
{
    const char *text = getenv("DT_MEM_LIMIT");
    char *end = NULL;
    double value = text && *text ? strtod(text, &end) : -1.0, unit = 1.0;
    *limit = -1;
    if (value < 0.0 && !end) return DT_OK;
    if (*end == 'k' || *end == 'K') unit = 1e3, end++;
    else if (*end == 'M') unit = 1e6, end++;
    else if (*end == 'G') unit = 1e9, end++;
    if (end == text || *end || !(value * unit >= 1.0 && value * unit < 9e18))
        return dt__error(DT_E_USAGE, "DT_MEM_LIMIT=%s: it is a number of bytes, or of k, M or G of 1000, 1e6 or 1e9 of "
                         "them, e.g. 200M", text);
    *limit = (int64_t)(value * unit);
    return DT_OK;
}

/* Do the plans of all ranks fit into the budget and the machine? All ranks see all plans and come to the same answer.
 */
static dt_result dt__check_memory(dt_trainer *t)
{
    enum { LINES = (int)(sizeof(dt_memory) / 8), TOTAL = 6 };
    const char *const names[TOTAL] = {"weights", "gradients", "optimizer", "activations", "buffers", "cache"};
    int64_t free_bytes = dt__memory_available(), limit, all = 0, most = 0, line[LINES], largest[LINES];
    int ranks = dt_comm_size(t->comm), who = 0, which = 0;
    dt_result r = dt__memory_limit(&limit);
    if (!r) r = dt_all_gather(t->comm, (const float *)(const void *)&t->planned, t->counts, 2 * LINES);
    if (r) return r;
    for (int rank = 0; rank < ranks; rank++) {
        memcpy(line, t->counts + 2 * LINES * rank, sizeof line);
        all += line[TOTAL] + line[TOTAL + 1];
        if (line[TOTAL] <= most) continue;
        most = line[TOTAL], who = rank;
        memcpy(largest, line, sizeof line);
    }
    for (int i = 1; i < TOTAL; i++)
        if (largest[i] > largest[which]) which = i;
    if (limit >= 0 && most > limit)
        return dt__error(DT_E_MEMORY, "rank %d needs %.3f MB, %.3f MB more than DT_MEM_LIMIT allows, and %.3f MB of it "
                         "for %s: share more (--zero, --pp, --tp), keep less (--recompute full), or use a smaller "
                         "micro-batch", who, (double)most / 1e6, (double)(most - limit) / 1e6,
                         (double)largest[which] / 1e6, names[which]);
    if (t->layout.no_memory_check || free_bytes < 0 || all <= free_bytes) return DT_OK;
    return dt__error(DT_E_MEMORY,
                     "the plan needs up to %.2f GB on each of %d ranks and %.2f GB are free: use a smaller model, "
                     "sequence or micro-batch, or fewer ranks (--no-memory-check starts all the same)",
                     (double)most / 1e9, ranks, (double)free_bytes / 1e9);
}

/* The memory that a net needs here: the input of this rank's first segment, and what its segments make. */
static int64_t dt__generator_floats(const dt__engine *e, const dt__net *net, int64_t *cache)
{
    int64_t floats = net->widest + net->temp;
    *cache = 0;
    for (int64_t q = 0; q < net->count; q++) {
        const dt__built *seg = &net->segments[q];
        if (e->net.segments[q].stage != e->shape.stage) continue;
        floats += seg->plan->saved + dt__round_up(seg->output, 16);
        *cache += seg->plan->cache;
    }
    return floats;
}

/* A net that draws text finds its parameters where those of the trained one are. */
static void dt__generator_adopt(const dt__engine *e, dt__net *net)
{
    for (int64_t q = 0; q < net->count; q++) {
        const dt__built *from = &e->net.segments[q];
        dt__built *to = &net->segments[q];
        for (int32_t i = 0; i < to->plan->g->param_count; i++)
            for (int32_t k = 0; k < from->plan->g->param_count; k++)
                if (!strcmp(net->params[to->param_of[i]].is.name, e->net.params[from->param_of[k]].is.name))
                    to->param[i] = dt__engine_gathers(e, 1) ? from->window[k] : from->param[k];
    }
}

/* Plans the nets that draw text for sequences of `length`. */
static dt_result dt__generator_open(dt__generator *d, const dt__engine *e, int64_t length)
{
    const dt_model *m = &e->recipe->model;
    dt__net *nets[3];
    dt_result r = DT_OK;
    nets[0] = &d->whole, nets[1] = &d->several, nets[2] = &d->one;
    /* What a capacity drops depends on all tokens. */
    if (m->segments || e->layout->no_cache || (m->experts && m->capacity > 0.0f))
        r = dt__net_open(&d->whole, m, 1, length);
    else {
        r = dt__net_open_at(&d->one, m, 1, 1, length);
        if (!r && length >= DT__PREFILL) r = dt__net_open_at(&d->several, m, 1, DT__PREFILL, length);
    }
    for (int i = 0; i < 3 && !r; i++) {
        if (!nets[i]->count) continue;
        dt__generator_adopt(e, nets[i]);
        d->memory_floats = dt__max(d->memory_floats, dt__generator_floats(e, nets[i], &d->cache_floats));
    }
    return r;
}

static dt_result dt__generator_allocate(dt__generator *d, int64_t vocabulary)
{
    d->memory = (float *)dt__alloc(4 * d->memory_floats, "sampling");
    d->weight = (float *)dt__alloc(4 * vocabulary, "sampling");
    d->row = (float *)dt__alloc(4 * vocabulary, "sampling");
    d->heap = (int32_t *)dt__alloc(4 * vocabulary, "sampling");
    if (d->one.count) d->cache = (float *)dt__alloc(4 * d->cache_floats, "the cache of keys and values");
    return d->memory && d->weight && d->row && d->heap && (d->cache || !d->one.count) ? DT_OK : DT_E_MEMORY;
}

static void dt__generator_close(dt__generator *d)
{
    dt__net_close(&d->whole);
    dt__net_close(&d->several);
    dt__net_close(&d->one);
    dt__free(d->memory);
    dt__free(d->cache);
    dt__free(d->weight);
    dt__free(d->row);
    dt__free(d->heap);
}

/* The memory of steps; none is allocated later. */
static dt_result dt__trainer_allocate(dt_trainer *t)
{
    dt__engine *e = &t->e;
    int64_t losses = t->recipe.context_shards * (e->net.watched ? e->net.count : 1) * t->recipe.data_shards;
    int64_t longest = dt__trainer_longest(t);
    dt_result r = dt__engine_allocate(e);
    if (r) return r;
    if (longest && !(t->whole = (float *)dt__alloc(4 * longest, "a parameter"))) return DT_E_MEMORY;
    t->unit = (uint32_t *)dt__alloc(4 * e->rows * (t->feed.is.inputs + t->feed.is.targets), "validation samples");
    t->gathered = (float *)dt__alloc(4 * losses, "losses");
    t->text = (char *)dt__alloc(t->layout.sample_length + 1, "a text sample");
    if (!t->unit || !t->text || !t->gathered) return DT_E_MEMORY;
    if (t->layout.sample_length && dt__generator_allocate(&t->generator, t->recipe.model.vocabulary))
        return DT_E_MEMORY;
    return dt__pool_reserve(t->pool, dt__max(dt__net_scratch(&e->net, e->k), dt__net_scratch(&t->generator.one, e->k)));
}

/* GEMM rate of all ranks together, measured at the same time. */
static dt_result dt__measure_peak(dt_trainer *t)
{
    double rate = 0.0, workers = (double)t->pool->workers * dt_comm_size(t->comm);
    double cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    float own;
    dt_result r = dt_barrier(t->comm);
    if (!r) r = dt__gemm_rate(t->e.k, t->pool, &rate);
    own = (float)rate;
    if (!r) r = dt_all_gather(t->comm, &own, t->counts, 1);
    for (int i = 0; i < dt_comm_size(t->comm); i++) t->peak_gflops += (double)t->counts[i];
    if (workers > cores) t->peak_gflops *= cores / workers; /* each was measured in its slices of time */
    return r;
}

/* What the launcher chose. */
static const char *dt__ranks_text(const dt_comm *c, char *text, size_t size)
{
    if (dt_comm_size(c) == 1) snprintf(text, size, "1 rank");
    else snprintf(text, size, "%d local ranks (%s, shared memory)", dt_comm_size(c),
                  dt__thread.rank ? "threads" : "processes");
    return text;
}

static void dt__trainer_banner(const dt_trainer *t)
{
    const dt_recipe *r = &t->recipe;
    char text[160];
    if (!r->model.segments && r->model.family == DT_LLAMA) {
        const dt_model *m = &t->e.net.llama;
        printf(
            "model    Llama, %lld layers, %lld heads (%lld of the keys), width %lld, hidden %lld, vocabulary %lld%s: "
            "%lld parameters\n",
            (long long)m->layers, (long long)m->heads, (long long)m->kv_heads, (long long)m->width,
            (long long)m->hidden, (long long)m->vocabulary, m->tied ? ", tied" : "", (long long)t->e.net.weights);
    } else if (!r->model.segments)
        printf("model    GPT-2, %lld layers, %lld heads, width %lld, vocabulary %lld: %lld parameters\n",
               (long long)r->model.layers, (long long)r->model.heads, (long long)r->model.width,
               (long long)r->model.vocabulary, (long long)t->e.net.weights);
    else
        printf("model    %lld segments of the program's own: %lld parameters\n", (long long)r->model.segment_count,
               (long long)t->e.net.weights);
    if (!r->model.segments && r->model.experts)
        printf("         %lld experts in each block, %lld per token, whose FLOPs alone count\n",
               (long long)r->model.experts, (long long)dt__model_moe(&r->model).active);
    if (t->feed.own)
        printf("data     of the program's own: %lld training samples of %lld inputs and %lld targets, ",
               (long long)t->feed.is.samples[DT_TRAIN], (long long)t->feed.is.inputs, (long long)t->feed.is.targets);
    else
        printf("data     %s: %lld training sequences of %lld tokens, ", r->data,
               (long long)t->feed.is.samples[DT_TRAIN], (long long)r->sequence);
    printf("%lld for validation\n", (long long)t->feed.is.samples[DT_VALIDATION]);
    printf("recipe   %lld steps of %lld %s, micro-batch %lld, %lld data shards, ", (long long)r->steps,
           (long long)r->batch, t->feed.own ? "samples" : "sequences",
           (long long)r->micro_batch, (long long)r->data_shards);
    if (r->tensor_shards > 1) printf("%lld tensor shards, ", (long long)r->tensor_shards);
    if (r->context_shards > 1) printf("%lld context shards, ", (long long)r->context_shards);
    printf("seed %lld\n", (long long)r->seed);
    printf("layout   %s x %d thread%s%s, %s kernels, exact; GEMM peak %.1f GFLOP/s together\n",
           dt__ranks_text(t->comm, text, sizeof text), t->pool->workers, t->pool->workers == 1 ? "" : "s",
           t->e.shape.overlap ? " and one that communicates" : "", t->e.k->name, t->peak_gflops);
    if (dt__mesh_crosses(&t->e.mesh, dt__environment_int("LOCAL_WORLD_SIZE", dt_comm_size(t->comm))))
        printf("%s", dt__crossing);
    dt__memory_print(t);
    for (int32_t i = 0; t->layout.show_program && i < t->e.program.count; i++) {
        dt__instr_text(&t->e.program.list[i], text, sizeof text);
        printf("program  %4d %s\n", i, text);
    }
    fflush(stdout);
}

/* No id of the data is outside the model's tables and classes: of files now, of a source as its samples come. */
static dt_result dt__trainer_ids(dt_trainer *t)
{
    const int64_t *below = t->e.net.ids;
    int64_t least = dt__min(below[0], below[1]), ids;
    memcpy(t->feed.ids, below, sizeof t->feed.ids);
    if (t->feed.own || least >= t->recipe.model.vocabulary || least >= (ids = dt__data_ids(t->data))) return DT_OK;
    return dt__error(DT_E_USAGE, "the data has token ids up to %lld, but the model's %s has %lld: make it larger",
                     (long long)ids - 1, below[0] < ids ? "table" : "loss", (long long)least);
}

/* Columns of the logits that this rank has, from the first of its tensor shards on. */
static int64_t dt__logits_columns(const dt__net *net, int64_t vocabulary, int64_t *first)
{
    int64_t width = dt__ceil_div(vocabulary, net->tensor_shards);
    *first = net->first_shard * width;
    return dt__min(net->own_shards * width, vocabulary - *first);
}

/* Has the model a row of logits for each of a unit's `words` tokens, so that text can be drawn from it? */
static int dt__predicts_text(const dt__net *net, int64_t words, int64_t vocabulary)
{
    int64_t first;
    if (net->source && (net->source->input_type != DT_I32 || net->source->target_type != DT_I32 ||
                        net->source->inputs != net->source->targets))
        return 0;
    for (int64_t s = 0; s < net->count; s++) {
        const dt_graph *g = net->segments[s].plan->g;
        int64_t columns = dt__at(g, g->logits)->cut ? dt__logits_columns(net, vocabulary, &first) : vocabulary;
        if (g->logits.id && dt__count(dt__at(g, g->logits)) == words * columns) return 1;
    }
    return 0;
}

/* The initial weights of this rank's pieces: no rank ever has more (delayed initialisation). */
static dt_result dt__trainer_draw(dt_trainer *t)
{
    dt__engine *e = &t->e;
    for (int32_t i = 0; i < e->net.param_count; i++) {
        const dt__net_param *p = &e->net.params[i];
        dt__piece_of x = dt__engine_piece(e, p);
        int whole = e->shape.zero < 3;
        if (p->offset < 0) continue;
        dt__comm_tick(t->comm);
        dt__init_shards(&p->is, e->net.tensor_shards, e->net.first_shard, e->net.own_shards, (uint64_t)t->recipe.seed,
                        t->pool, whole ? e->params + p->offset : x.weight, whole ? 0 : x.from,
                        whole ? p->count : x.count);
        if (t->recipe.ema > 0.0f)
            memcpy((float *)e->state[DT__STATE_AVERAGE] + x.state, x.weight, 4 * (size_t)x.count);
    }
    return DT_OK;
}

/* Model, plan, program and their memory. */
static dt_result dt__trainer_engine(dt_trainer *t)
{
    dt__engine *e = &t->e;
    const dt_recipe *r = &t->recipe;
    int64_t words = e->rows * r->sequence / e->mesh.size[DT__CONTEXT];
    dt_result result;
    e->pool = e->env.pool = t->pool;
    e->env.k = e->k;
    e->env.unit_share = 1.0f / (float)(e->micros * r->data_shards * r->context_shards);
    if (t->feed.own) e->net.source = t->generator.whole.source = &t->feed.is;
    dt__engine_shards(e, &t->generator.whole, 0);
    dt__engine_shards(e, &t->generator.several, 0);
    dt__engine_shards(e, &t->generator.one, 0);
    result = dt__net_open(&e->net, &r->model, e->rows, r->sequence);
    if (!result && t->layout.ep > 1 && !e->net.routed)
        result = dt__error(DT_E_USAGE, "--ep %lld: the model has no experts to share: set --experts, or leave --ep out",
                           (long long)t->layout.ep);
    if (!result) result = dt__trainer_ids(t);
    if (!result && !dt__predicts_text(&e->net, words, r->model.vocabulary)) t->layout.sample_length = 0;
    if (!result) result = dt__engine_open(e);
    if (!result && t->layout.sample_length) result = dt__generator_open(&t->generator, e, r->sequence);
    if (result) return result;
    t->planned = dt__memory_plan(t);
    t->counts = (float *)dt__alloc((int64_t)sizeof(dt_memory) * dt_comm_size(t->comm), "counts");
    result = t->counts ? dt__check_memory(t) : DT_E_MEMORY;
    if (!result) result = dt__trainer_allocate(t);
    return result ? result : dt__trainer_draw(t);
}

/* Opens the files, or takes the source. */
static dt_result dt__trainer_feed(dt_trainer *t)
{
    dt_recipe *r = &t->recipe;
    dt_result result;
    int64_t tokens;
    if (r->source) {
        result = dt__check_source(r);
        if (result) return result;
        t->feed.is = *r->source;
        t->feed.own = 1;
        r->sequence = r->source->inputs;
        return DT_OK;
    }
    result = r->tokenizer ? dt_tokenizer_open(&t->tokenizer, r->tokenizer) : DT_OK;
    if (!result) result = dt_data_open_tokenized(&t->data, r->data, t->tokenizer, r->sequence, (double)r->validation);
    if (result) return result;
    dt__feed_files(&t->feed, t->data);
    tokens = dt_data_vocabulary(t->data);
    if (t->tokenizer && tokens > dt_tokenizer_size(t->tokenizer))
        return dt__error(DT_E_USAGE,
                         "the data has token ids up to %lld, the tokenizer %s up to %lld: name the one that made them",
                         (long long)tokens - 1, r->tokenizer, (long long)dt_tokenizer_size(t->tokenizer) - 1);
    if (t->tokenizer) tokens = dt_tokenizer_size(t->tokenizer); /* a sample may use any */
    if (!r->model.vocabulary) r->model.vocabulary = tokens;
    if (r->model.vocabulary >= tokens) return DT_OK;
    return dt__error(DT_E_USAGE, "the data has token ids up to %lld, the vocabulary holds %lld: raise --vocabulary",
                     (long long)tokens - 1, (long long)r->model.vocabulary);
}

/* Defaults that depend on the data and the machine. */
static dt_result dt__trainer_settle(dt_trainer *t)
{
    dt_recipe *r = &t->recipe;
    dt_result result;
    if (!r->micro_batch) r->micro_batch = r->batch;
    if (r->dropout > 0.0f) r->model.dropout = r->dropout;
    t->e.recipe = r;
    t->e.layout = &t->layout;
    t->e.comm = t->comm;
    result = dt__check_model(&r->model);
    if (!result) result = dt__mesh_open(&t->e.mesh, &t->layout, dt_comm_size(t->comm), dt_comm_rank(t->comm));
    if (!result) result = dt__check_batch(r, t->e.mesh.size[DT__DATA]);
    if (!result) result = dt__engine_layout(&t->e);
    if (!result) result = dt__check_optimizer(r);
    if (!result) result = dt__check_rest(r, &t->layout);
    if (!result) result = dt__trainer_feed(t);
    if (result) return result;
    return dt__pool_open(&t->pool, (int)dt__engine_threads(&t->layout, dt_comm_size(t->comm)));
}

/* ---- the last step as a picture ---------------------------------------------------------------------------- */

/* What a rank did from begin to end: an instruction, or neighbours in the program that differ in the segment alone. */
typedef struct dt__bar {
    double begin, end;                           /* seconds of the machine's clock */
    int32_t op, back, shard, micro, first, last; /* segments */
    int32_t line;                                /* of the program: 1 is the thread that communicates */
} dt__bar;
enum { DT__BAR_WORDS = (int)sizeof(dt__bar) / 4 };

static dt_result dt__timeline_error(const dt_trainer *t)
{
    return dt__error(DT_E_FILE, "cannot write the timeline to %s: %s", t->layout.timeline, strerror(errno));
}

static dt_result dt__timeline_open(dt_trainer *t)
{
    t->timeline = fopen(t->layout.timeline, "w");
    return t->timeline ? DT_OK : dt__timeline_error(t);
}

/* A file that is not whole does not stay; a device does. */
static dt_result dt__timeline_close(dt_trainer *t, int whole)
{
    struct stat is;
    int regular = !fstat(fileno(t->timeline), &is) && S_ISREG(is.st_mode);
    int bad = ferror(t->timeline) | fclose(t->timeline);
    dt_result r = bad ? dt__timeline_error(t) : DT_OK;
    t->timeline = NULL;
    if ((bad || !whole) && regular) remove(t->layout.timeline);
    return r;
}

/* The bars of this rank; room for one per instruction. */
static int32_t dt__timeline_bars(const dt__engine *e, dt__bar *bar)
{
    int32_t count = 0;
    for (int32_t k = 0; k < e->program.count; k++) {
        const dt_instr *i = &e->program.list[k];
        dt__bar *b = &bar[count - 1];
        if (!count || b->op != i->op || b->back != i->back || b->shard != i->shard || b->micro != i->micro) {
            b = &bar[count++];
            b->begin = e->when[2 * k];
            b->op = i->op, b->back = i->back, b->shard = i->shard, b->micro = i->micro, b->first = i->segment;
            b->line = i->line;
        }
        b->last = i->segment;
        b->end = e->when[2 * k + 1];
    }
    return count;
}

/* "FORWARD of shard 2, micro-batch 0, segments 1 to 4". */
static const char *dt__bar_text(const dt__bar *b, char *text, size_t size)
{
    int used = snprintf(text, size, "%s%s", dt__instr_names[b->op], b->back ? " gradient" : "");
    if (b->shard >= 0)
        used += snprintf(text + used, size - (size_t)used, " of shard %d, micro-batch %d", b->shard, b->micro);
    if (b->first >= 0)
        snprintf(text + used, size - (size_t)used, b->first == b->last ? ", segment %d" : ", segments %d to %d",
                 b->first, b->last);
    return text;
}

/* Chrome's trace event format: complete events, times in microseconds. The second threads of ranks come after all. */
static void dt__timeline_trace(FILE *f, const dt__bar *bars, int64_t most, int ranks, double from)
{
    const char *comma = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    char text[96];
    for (int rank = 0; rank < ranks; rank++)
        for (const dt__bar *b = bars + rank * most, *end = b + most; b < end && b->end > 0; b++) {
            fprintf(f, "%s{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f}",
                    comma, dt__bar_text(b, text, sizeof text), dt__instr_names[b->op], rank + b->line * ranks,
                    1e6 * (b->begin - from), 1e6 * (b->end - b->begin));
            comma = ",\n";
        }
    fprintf(f, "\n]}\n");
}

/* Colours of the instructions, in their order: work in blue and orange, waiting for others in grey and red. */
static const char *const dt__bar_colours[DT__INSTR_COUNT] = {"#8cd17d", "#4e79a7", "#a0cbe8", "#d4a6c8", "#b07aa1",
                                                             "#f28e2b", "#ffbe7d", "#79706e", "#bab0ac", "#b6992d",
                                                             "#9d7660", "#e15759", "#d7b5a6", "#499894", "#ff9d9a",
                                                             "#59a14f"};

/* What each kind of instruction took, as a share of all ranks' time, under the bars from y on. */
static void dt__timeline_legend(FILE *f, const dt__bar *bars, int64_t count, double all, int y)
{
    double share[DT__INSTR_COUNT], rest = 1;
    int at = 0;
    memset(share, 0, sizeof share);
    for (int64_t i = 0; i < count; i++) {
        double took = (bars[i].end - bars[i].begin) / all;
        share[bars[i].op] += took;
        if (!bars[i].line) rest -= took;
    }
    for (int op = 0; op < DT__INSTR_COUNT; op++) {
        if (share[op] < 0.0005) continue;
        fprintf(f,
                "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%d\" y=\"%d\">%s %.1f "
                "%%</text>\n",
                80 + at % 7 * 160, y + at / 7 * 20, dt__bar_colours[op], 96 + at % 7 * 160, y + 10 + at / 7 * 20,
                dt__instr_names[op], 100 * share[op]);
        at++;
    }
    fprintf(f, "<text x=\"%d\" y=\"%d\">between them %.1f %%</text>\n", 96 + at % 7 * 160, y + 10 + at / 7 * 20,
            100 * rest);
}

/* A line per rank, 1120 points wide; a unit's data shard and micro-batch stand in bars that have room. Below lies what
 * a second thread does. */
static void dt__timeline_picture(const dt_trainer *t, const dt__bar *bars, int64_t most, double from, double to)
{
    const int left = 80, wide = 1120, top = 56, step = 34;
    FILE *f = t->timeline;
    static const char *const schedules[] = {", 1F1B", ", GPipe", ", interleaved", ", zero-bubble"};
    const int *size = t->e.mesh.size;
    int ranks = dt_comm_size(t->comm), bottom = top + ranks * step;
    double scale = to > from ? wide / (to - from) : 0;
    char text[96];
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"%d\" y=\"24\" font-size=\"15\">step %lld: %.3f ms, dp %d, cp %d, tp %d, pp %d%s</text>\n",
            left + wide + 20, bottom + 90, left, (long long)t->e.step, 1e3 * (to - from), size[DT__DATA],
            size[DT__CONTEXT], size[DT__TENSOR], size[DT__PIPE],
            size[DT__PIPE] > 1 ? schedules[t->layout.pipeline] : "");
    for (int i = 0; i <= 10; i++)
        fprintf(f,
                "<path d=\"M%d %dV%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.3g</text>\n",
                left + i * wide / 10, top - 4, bottom, left + i * wide / 10, top - 8, 1e2 * (to - from) * i);
    for (int rank = 0; rank < ranks; rank++) {
        int y = top + rank * step;
        fprintf(f, "<text x=\"8\" y=\"%d\">rank %d</text>\n", y + 18, rank);
        for (const dt__bar *b = bars + rank * most, *end = b + most; b < end && b->end > 0; b++) {
            double x = left + (b->begin - from) * scale, w = (b->end - b->begin) * scale;
            if (w < 0.05) continue;
            fprintf(f,
                    "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"><title>%s: %.3f "
                    "ms</title></rect>\n",
                    x, y + 22 * b->line, w, b->line ? 8 : t->e.shape.overlap ? 22 : 26, dt__bar_colours[b->op],
                    dt__bar_text(b, text, sizeof text), 1e3 * (b->end - b->begin));
            if (w >= 24 && b->shard >= 0)
                fprintf(f, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\" fill=\"#fff\">%d.%d</text>\n", x + w / 2,
                        y + 17, b->shard, b->micro);
        }
    }
    dt__timeline_legend(f, bars, ranks * most, (to - from) * ranks, bottom + 14);
    fprintf(f, "<text x=\"%d\" y=\"%d\">milliseconds; in the bars: data shard.micro-batch</text>\n</svg>\n", left,
            bottom + 76);
}

/* Rank 0 gets the bars of all and draws them. Collective. */
static dt_result dt__timeline_write(dt_trainer *t)
{
    int ranks = dt_comm_size(t->comm);
    float count = (float)t->e.program.count;
    dt_result r = dt_all_reduce(t->comm, &count, 1, DT_MAX);
    int64_t most = (int64_t)count, floats = most * DT__BAR_WORDS;
    dt__bar *bars;
    double from = 1e300, to = 0;
    const char *dot = strrchr(t->layout.timeline, '.');
    if (r) return r;
    bars = (dt__bar *)dt__alloc((ranks + 1) * 4 * floats, "the timeline"); /* zeroed */
    if (!bars) return DT_E_MEMORY;
    dt__timeline_bars(&t->e, bars);
    r = dt_all_gather(t->comm, (float *)(void *)bars, (float *)(void *)(bars + most), floats);
    for (int64_t i = most; i < (ranks + 1) * most; i++) {
        if (bars[i].end > 0 && bars[i].begin < from) from = bars[i].begin;
        if (bars[i].end > to) to = bars[i].end;
    }
    from = from < to ? from : to; /* no work: a step without targets */
    if (!r && dt_is_root(t)) {
        if (dot && !strcmp(dot, ".json"))
            dt__timeline_trace(t->timeline, bars + most, most, ranks, from);
        else
            dt__timeline_picture(t, bars + most, most, from, to);
        r = dt__timeline_close(t, 1);
    }
    dt__free(bars);
    return r;
}

DT_API dt_result dt_trainer_open(dt_trainer **handle, const dt_recipe *recipe, const dt_layout *layout)
{
    dt_trainer *t = (dt_trainer *)dt__alloc((int64_t)sizeof *t, "the trainer");
    dt_result r;
    *handle = NULL;
    if (!t) return DT_E_MEMORY;
    t->recipe = *recipe;
    t->layout = *layout;
    t->hashed = -1;
    r = dt_comm_init(&t->comm, NULL, NULL);
    if (!r) r = dt__trainer_settle(t);
    if (!r) r = dt__choose_kernels(&t->e.k);
    if (!r) r = dt__self_check(t->e.k, t->pool);
    if (!r) r = dt__trainer_engine(t);
    if (!r) r = dt__measure_peak(t);
    if (!r && t->layout.metrics && dt_is_root(t)) r = dt__metrics_open(&t->metrics, t->layout.metrics);
    if (!r && t->layout.timeline && dt_is_root(t)) r = dt__timeline_open(t);
    if (!r)
        r = dt__loader_open(&t->loader, &t->feed, DT_TRAIN, (t->e.hi - t->e.lo) * t->e.micros * t->e.rows, 0, 3,
                            dt__trainer_row, t);
    if (!r && dt_is_root(t) && !t->layout.quiet) dt__trainer_banner(t);
    t->started = t->printed = dt__now();
    if (r) dt_trainer_close(&t);
    *handle = t;
    return r;
}

DT_API void dt_trainer_close(dt_trainer **handle)
{
    dt_trainer *t = *handle;
    if (!t) return;
    dt__loader_close(&t->loader);
    dt__metrics_close(&t->metrics);
    if (t->timeline) dt__timeline_close(t, 0);
    dt__generator_close(&t->generator);
    dt__free(t->unit);
    dt__free(t->whole);
    dt__free(t->text);
    dt__free(t->counts);
    dt__free(t->gathered);
    dt__engine_close(&t->e);
    dt_data_close(&t->data);
    dt_tokenizer_close(&t->tokenizer);
    dt__pool_close(&t->pool);
    dt_comm_free(&t->comm);
    dt__free(t);
    *handle = NULL;
}

/* ---- stepping ---------------------------------------------------------------------------------------------- */

/* Sums of losses over all ranks: own (shards of this rank, its leaves, each) of the ranks whose word counts; each chain
 * of `each` in order, then TREE over the leaves of all shards. Where nothing is added +0 is, everywhere, so that every
 * layout has the same bits. */
static dt_result dt__tree_loss(dt_trainer *t, const float *own, int64_t leaves, int64_t each, int counts, float *sum)
{
    int64_t whole = leaves * t->e.mesh.size[DT__CONTEXT], shards = t->recipe.data_shards * whole;
    int64_t run = leaves * each, first = leaves * t->e.mesh.at[DT__CONTEXT];
    float *all = t->gathered;
    dt_result r;
    memset(all, 0, 4 * (size_t)(shards * each));
    for (int64_t i = 0; i < (t->e.hi - t->e.lo) * run && counts; i++)
        all[((t->e.lo + i / run) * whole + first) * each + i % run] = own[i] + 0.0f;
    r = dt_all_reduce(t->comm, all, shards * each, DT_SUM);
    for (int64_t s = 0; s < shards; s++) {
        float chain = all[s * each];
        for (int64_t i = 1; i < each; i++) chain = chain + all[s * each + i];
        all[s] = chain;
    }
    *sum = dt__tree(all, shards);
    return r;
}

/* Is this rank the one that speaks for those with the same samples? */
static int dt__trainer_counts(const dt_trainer *t)
{
    return !t->e.mesh.at[DT__PIPE] && !t->e.mesh.at[DT__TENSOR] && !t->e.mesh.at[DT__CONTEXT];
}

/* Valid targets over all ranks, from each rank's own, counted in integers (R12). */
static dt_result dt__sum_valid(dt_trainer *t, int64_t own, int64_t *total)
{
    float words[2];
    dt_result r;
    if (!dt__trainer_counts(t)) own = 0;
    memcpy(words, &own, 8);
    r = dt_all_gather(t->comm, words, t->counts, 2);
    *total = 0;
    for (int i = 0; i < dt_comm_size(t->comm) && !r; i++) {
        memcpy(&own, t->counts + 2 * i, 8);
        *total += own;
    }
    return r;
}

/* Forward alone for one unit of validation samples; rows past `end` have no target. Adds its losses, unless loss is
 * NULL, and valid targets. */
static dt_result dt__evaluate_unit(dt_trainer *t, int64_t first, int64_t end, float *loss, int64_t *valid)
{
    dt__engine *e = &t->e;
    const dt_source *s = &t->feed.is;
    uint32_t *input = t->unit, *target = input + e->rows * s->inputs;
    dt_result r;
    for (int64_t i = 0; i < e->rows; i++) {
        r = dt__feed_fetch(&t->feed, DT_VALIDATION, dt__min(first + i, end - 1), input + i * s->inputs,
                                     target + i * s->targets);
        if (r) return r;
        dt__comm_tick(t->comm);
        if (first + i >= end) memset(target + i * s->targets, 0xff, 4 * (size_t)s->targets); /* -1 or NaN */
    }
    dt__engine_samples(e, input, target);
    *valid += dt__valid_targets(target, s->target_type, e->rows * s->targets);
    r = dt__engine_pass(e, e->net.count);
    if (!r && dt__engine_last(e) && loss) dt__engine_loss(e, 0, loss);
    return r;
}

/* Units of validation samples go to shards in turn; shard sums, then TREE: the same bits in every layout. */
DT_API dt_result dt_trainer_evaluate(dt_trainer *t, int64_t batches, float *loss)
{
    dt__engine *e = &t->e;
    int64_t samples = t->feed.is.samples[DT_VALIDATION], units, valid = 0;
    int64_t shards = t->recipe.data_shards, dp = e->mesh.size[DT__DATA], leaves = dt__engine_leaves(e);
    dt_result r = DT_OK;
    unsigned saved;
    if (batches) samples = dt__min(samples, batches * t->recipe.batch);
    if (!samples)
        return dt__error(DT_E_USAGE, "there is no validation data: %s",
                         t->feed.own ? "the source's samples[DT_VALIDATION] is 0" : "--validation is 0");
    if ((r = dt__engine_settle(e)) != DT_OK) return r;
    units = dt__ceil_div(samples, e->rows);
    saved = dt__fp_enter();
    e->env.inference = 1;
    memset(e->shard_loss, 0, 4 * (size_t)((e->hi - e->lo) * leaves));
    /* Ranks that gather weights or share experts go through as many units as the one with the most. */
    for (int64_t own = 0; own < dt__ceil_div(shards, dp) && !r; own++)
        for (int64_t u = e->lo + own, k = 0; k < dt__ceil_div(units, shards) && !r; u += shards, k++) {
            int mine = own < e->hi - e->lo && u < units;
            if (!mine && !e->shape.zero && e->layout->ep == 1) continue;
            r = dt__evaluate_unit(t, (mine ? u : units) * e->rows, samples, mine ? e->shard_loss + own * leaves : NULL,
                                  &valid);
        }
    e->env.inference = 0;
    if (!r) r = dt__tree_loss(t, e->shard_loss, leaves, 1, dt__engine_last(e) && !e->mesh.at[DT__TENSOR], loss);
    if (!r) r = dt__sum_valid(t, valid, &valid);
    if (!r) *loss = *loss / (float)dt__max(1, valid);
    dt__fp_leave(saved);
    return r;
}

/* Rows of logits (rows,V) from the columns that the ranks of a tensor group have: -0 + x is x. */
static dt_result dt__whole_logits(dt__engine *e, const float *columns, int64_t rows, float *whole)
{
    int64_t vocabulary = e->recipe->model.vocabulary, first, count = dt__logits_columns(&e->net, vocabulary, &first);
    for (int64_t i = 0; i < rows * vocabulary; i++) whole[i] = -0.0f;
    for (int64_t i = 0; i < rows; i++) dt__copy(whole + i * vocabulary + first, columns + i * count, count);
    return dt_all_reduce(e->tensor, whole, rows * vocabulary, DT_SUM);
}

/* Logits (samples,T,V) of a unit's first samples in the order of positions, from the rows and columns that the ranks of
 * a context group, and in it of a tensor group, have. */
static dt_result dt__whole_rows(dt__engine *e, const dt_graph *g, const float *columns, int64_t samples, float *whole)
{
    int64_t vocabulary = e->recipe->model.vocabulary, first, count = dt__logits_columns(&e->net, vocabulary, &first);
    int64_t length = e->recipe->sequence;
    dt_result r = DT_OK;
    for (int64_t i = 0; i < samples * length * vocabulary; i++) whole[i] = -0.0f;
    for (int64_t i = 0; i < g->samples * g->positions; i++) {
        int64_t sample = i / g->positions % e->rows;
        float *to = whole + (sample * length + dt__row_position(g, i)) * vocabulary + first;
        if (sample < samples) dt__copy(to, columns + i * count, count);
    }
    if (e->tensor) r = dt_all_reduce(e->tensor, whole, samples * length * vocabulary, DT_SUM);
    if (e->context && !r) r = dt_all_reduce(e->context, whole, samples * length * vocabulary, DT_SUM);
    return r;
}

/* The segment that makes the prediction, and which of its values it is. */
static const dt__built *dt__net_prediction(const dt__net *net, int64_t *at, int32_t *id)
{
    for (int marked = 1; marked >= 0; marked--)
        for (*at = 0; *at < net->count; ++*at) {
            const dt_graph *g = net->segments[*at].plan->g;
            *id = marked ? g->prediction.id : g->logits.id;
            if (*id) return &net->segments[*at];
        }
    return NULL;
}

/* Units of samples, as in validation; the last one is filled up with copies of its last sample. */
DT_API dt_result dt_trainer_predict(dt_trainer *t, const void *inputs, int64_t count, float *predictions, int64_t each)
{
    dt__engine *e = &t->e;
    const dt_source *s = &t->feed.is;
    uint32_t *input = t->unit, *target = input + e->rows * s->inputs;
    int64_t at, has;
    int32_t id;
    int cut;
    const dt__built *segment = dt__net_prediction(&e->net, &at, &id);
    dt_result r = DT_OK;
    unsigned saved = dt__fp_enter();
    has = segment ? dt__count(&segment->plan->g->nodes[id]) / e->rows * e->mesh.size[DT__CONTEXT] : 0;
    cut = segment && e->tensor && segment->plan->g->nodes[id].cut;
    if (cut) has = has / dt__cols(&segment->plan->g->nodes[id]) * t->recipe.model.vocabulary;
    if (!segment) r = dt__error(DT_E_USAGE, "the model predicts nothing: mark it with dt_prediction in a segment");
    else if (count < 0 || each != has)
        r = dt__error(DT_E_USAGE, "the model predicts %lld numbers for each sample: %lld x %lld cannot be asked for",
                      (long long)has, (long long)count, (long long)each);
    for (int64_t i = 0; i < count && !r; i++)
        r = dt__feed_check(&t->feed, 0, (const uint32_t *)inputs + i * s->inputs, "predict:", i);
    if (!r) r = dt__engine_settle(e);
    e->env.inference = 1;
    memset(target, 0xff, 4 * (size_t)(e->rows * s->targets));
    for (int64_t first = 0; first < count && !r; first += e->rows) {
        dt__bind b;
        int64_t n;
        for (int64_t i = 0; i < e->rows; i++)
            memcpy(input + i * s->inputs, (const uint32_t *)inputs + dt__min(first + i, count - 1) * s->inputs,
                   4 * (size_t)s->inputs);
        dt__engine_samples(e, input, target);
        r = dt__engine_pass(e, at + 1);
        if (r) break;
        if (segment->stage == e->shape.stage) {
            dt__engine_bind(e, at, 0, -1, &b);
            n = dt__min(e->rows, count - first) * each;
            if (e->net.context_shards)
                r = dt__whole_rows(e, segment->plan->g, dt__where(segment->plan, &b, id), n / each,
                                   predictions + first * each);
            else if (cut)
                r = dt__whole_logits(e, dt__where(segment->plan, &b, id), n / t->recipe.model.vocabulary,
                                     predictions + first * each);
            else memcpy(predictions + first * each, dt__where(segment->plan, &b, id), 4 * (size_t)n);
        }
    }
    e->env.inference = 0;
    dt__fp_leave(saved);
    if (!r && e->out[0].comm) r = dt_broadcast(e->out[0].comm, predictions, count * each, segment->stage);
    return r;
}

/* ---- text ---------------------------------------------------------------------------------------------------- */

/* One unit through segment q of a net that draws text: bound to `memory` and the cache, which it moves on. */
static void dt__generator_segment(dt_trainer *t, const dt__net *net, int64_t q, float *input, float **memory,
                                  float **cache, const dt__env *env, dt__bind *b)
{
    dt__engine *e = &t->e;
    const dt__built *seg = &net->segments[q];
    memset(b, 0, sizeof *b);
    b->params = dt__engine_gathers(e, 1) ? e->window : dt__engine_weights(e, 1);
    b->param = seg->param;
    b->at[DT__AT_TEMP] = t->generator.memory + net->widest;
    b->at[DT__AT_CACHE] = *cache;
    b->at[DT__AT_INPUT] = input;
    b->at[DT__AT_OUTPUT] = *memory;
    b->at[DT__AT_SAVED] = *memory + dt__round_up(seg->output, 16);
    *memory += dt__round_up(seg->output, 16) + seg->plan->saved;
    if (*cache) *cache += seg->plan->cache;
    memcpy(&b->at[DT__AT_TARGETS], &e->target, sizeof e->target);
    dt__plan_run(seg->plan, 0, seg->plan->forward_count, b, env, 0);
}

/* *logits: (T,V) of the T tokens that `net` takes, the first of them at `position`, on the stage that has them, else
 * NULL; they live until the next call. The stages of a pipeline call it together. */
static dt_result dt__logits(dt_trainer *t, const dt__net *net, const int32_t *tokens, int64_t position,
                            const float **logits)
{
    dt__engine *e = &t->e;
    dt_comm *stages = e->out[0].comm;
    int pp = e->shape.pipe.stages, stage = e->shape.stage;
    float *memory = t->generator.memory + net->widest + net->temp, *cache = t->generator.cache, *input;
    dt__env env = e->env;
    dt_result r = DT_OK;
    env.inference = 1;
    env.position = position;
    *logits = NULL;
    for (int c = 0; c < e->shape.pipe.chunks && !r; c++) {
        const dt__chunk *chunk = &e->chunks[c];
        if (chunk->first) memcpy(&input, &tokens, sizeof tokens);
        else r = dt_recv(stages, input = t->generator.memory, net->segments[chunk->begin].input, (stage + pp - 1) % pp);
        for (int64_t q = chunk->begin; q < chunk->end && !r; q++) {
            const dt__plan *p = net->segments[q].plan;
            dt__bind b;
            if (dt__engine_gathers(e, 1)) r = dt__engine_gather(e, q);
            if (r) break;
            dt__generator_segment(t, net, q, input, &memory, &cache, &env, &b);
            r = e->exchanged;
            if (p->g->logits.id) *logits = dt__where(p, &b, p->g->logits.id);
            input = b.at[DT__AT_OUTPUT];
        }
        if (!chunk->last && !r) r = dt_send(stages, input, net->segments[chunk->end - 1].output, (stage + 1) % pp);
    }
    return r;
}

/* The logits (V) after the first `used` of `tokens`. Those that are in the cache already are not looked at again. */
static dt_result dt__next_logits(dt_trainer *t, const int32_t *tokens, int64_t used, const float **logits)
{
    dt__generator *d = &t->generator;
    int64_t vocabulary = t->recipe.model.vocabulary, n = used;
    dt_result r = DT_OK;
    if (!d->cache) r = dt__logits(t, &d->whole, tokens, 0, logits);
    for (; d->cache && d->cached < used && !r; d->cached += n) {
        n = d->several.count && used - d->cached >= DT__PREFILL ? DT__PREFILL : 1;
        r = dt__logits(t, n > 1 ? &d->several : &d->one, tokens + d->cached, d->cached, logits);
    }
    if (!*logits || r) return r;
    if (t->e.tensor) {
        int64_t first, columns = dt__logits_columns(&t->e.net, vocabulary, &first);
        r = dt__whole_logits(&t->e, *logits + (n - 1) * columns, 1, d->row);
        *logits = d->row;
    } else *logits += (n - 1) * vocabulary;
    return r;
}

/* Is token a before b, by falling logits and, where these are equal, rising numbers? */
static int dt__before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Restores the order of a heap of n tokens, first one at the top, below place i. */
static void dt__best_sift(int32_t *heap, int64_t n, int64_t i, const float *logits)
{
    int32_t token = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && dt__before(logits, heap[child + 1], heap[child])) child++;
        if (!dt__before(logits, heap[child], token)) break;
        heap[i] = heap[child];
    }
    heap[i] = token;
}
static void dt__best_make(int32_t *heap, int64_t n, const float *logits)
{
    for (int64_t i = n / 2; i-- > 0;) dt__best_sift(heap, n, i, logits);
}
/* Moves the top behind the n - 1 others. */
static int32_t dt__best_pop(int32_t *heap, int64_t n, const float *logits)
{
    int32_t top = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    dt__best_sift(heap, n - 1, 0, logits);
    return top;
}

/* Sets the weights of all tokens but those that top_k and top_p keep to 0. */
static void dt__keep_top(const dt_sampling *s, const float *logits, float *weight, int32_t *heap, int64_t n)
{
    int64_t left = n;
    float sum = 0.0f, kept = 0.0f;
    for (int64_t i = 0; i < n; i++) heap[i] = (int32_t)i;
    dt__best_make(heap, n, logits);
    if (s->top_k && s->top_k < n) {
        while (n - left < s->top_k) dt__best_pop(heap, left--, logits);
        for (int64_t i = 0; i < left; i++) weight[heap[i]] = 0.0f;
    }
    if (!(s->top_p > 0.0f && s->top_p < 1.0f)) return;
    for (int64_t i = 0; i < n; i++) sum = sum + weight[i];
    if (left < n) { /* what top_k kept lies behind the rest */
        heap += left;
        n -= left;
        dt__best_make(heap, n, logits);
    }
    for (left = n; left && kept < s->top_p * sum;) kept = kept + weight[dt__best_pop(heap, left--, logits)];
    for (int64_t i = 0; i < left; i++) weight[heap[i]] = 0.0f;
}

/* Draws a token by `how` from logits (n) with a uniform number in (0,1). */
static int32_t dt__draw(dt__generator *d, const dt__kernels *k, const dt_sampling *how, const float *logits, int64_t n,
                        double uniform)
{
    float top = k->row_max(logits, n), sum = 0.0f, limit, at = 0.0f;
    if (how->temperature == 0.0f) return (int32_t)dt__first_max(logits, top, n);
    for (int64_t i = 0; i < n; i++) d->weight[i] = dt__expf((logits[i] - top) / how->temperature);
    if (how->top_k || how->top_p > 0.0f) dt__keep_top(how, logits, d->weight, d->heap, n);
    for (int64_t i = 0; i < n; i++) sum = sum + d->weight[i];
    limit = (float)uniform * sum;
    for (int64_t i = 0; i < n; i++)
        if ((at = at + d->weight[i]) >= limit && d->weight[i] > 0.0f) return (int32_t)i;
    return (int32_t)dt__first_max(logits, top, n);
}

/* The stage that has the logits of text. */
static int dt__logits_stage(const dt__engine *e)
{
    int stage = e->net.segments[e->net.count - 1].stage;
    for (int64_t q = 0; q < e->net.count; q++)
        if (e->net.segments[q].plan->g->logits.id) stage = e->net.segments[q].stage;
    return stage;
}

/* Draws the token after the first *used ones and appends it; a full sequence keeps its later half. */
static dt_result dt__next_token(dt_trainer *t, int32_t *tokens, int64_t *used, const dt_sampling *how, double uniform,
                                int32_t *token)
{
    int64_t length = t->recipe.sequence, vocabulary = t->recipe.model.vocabulary;
    dt_comm *stages = t->e.out[0].comm;
    unsigned saved = dt__fp_enter();
    const float *logits = NULL;
    float word;
    dt_result r = dt__next_logits(t, tokens, *used, &logits);
    if (logits && !r) *token = dt__draw(&t->generator, t->e.k, how, logits, vocabulary, uniform);
    dt__fp_leave(saved);
    memcpy(&word, token, sizeof word);
    if (stages && !r) r = dt_broadcast(stages, &word, 1, dt__logits_stage(&t->e));
    memcpy(token, &word, sizeof word);
    if (*used == length) {
        memmove(tokens, tokens + length / 2, sizeof *tokens * (size_t)(length - length / 2));
        *used = length - length / 2;
        t->generator.cached = 0; /* every position has changed */
    }
    tokens[(*used)++] = *token;
    return r;
}

/* The first ids of a prompt, at most T - 1, at the beginning of `tokens` (T); *used: how many. */
static dt_result dt__sample_prompt(const dt_trainer *t, const char *prompt, int32_t *tokens, int64_t *used)
{
    int64_t bytes = (int64_t)strlen(prompt), most = t->recipe.sequence - 1;
    int32_t *ids;
    dt_result r = DT_OK;
    memset(tokens, 0, sizeof *tokens * (size_t)t->recipe.sequence);
    if (!t->tokenizer) {
        *used = dt__min(bytes, most);
        for (int64_t i = 0; i < *used; i++) tokens[i] = (int32_t)(unsigned char)prompt[i];
        return DT_OK;
    }
    ids = (int32_t *)dt__alloc(bytes * (int64_t)sizeof *ids, "a prompt");
    if (!ids) return DT_E_MEMORY;
    r = dt_tokenizer_encode(t->tokenizer, prompt, bytes, 1, ids, used);
    *used = dt__min(*used, most);
    if (!r) memcpy(tokens, ids, sizeof *ids * (size_t)*used);
    dt__free(ids);
    return r;
}

/* Appends the bytes of a token to text, which has room for `room` of them; returns how many it wrote. */
static int64_t dt__sample_text(const dt_trainer *t, int32_t token, char *text, int64_t room)
{
    int64_t bytes = 1;
    const char *of = t->tokenizer ? dt_tokenizer_token(t->tokenizer, token, &bytes) : NULL;
    if (!of) return *text = t->tokenizer ? '?' : (char)token, 1; /* ?: an id between those of the vocabulary */
    bytes = dt__min(bytes, room);
    memcpy(text, of, (size_t)bytes);
    return bytes;
}

DT_API dt_result dt_trainer_sample(dt_trainer *t, const char *prompt, int64_t count, const dt_sampling *how, char *text)
{
    int64_t length = t->recipe.sequence, used = 0, written = 0;
    int32_t *tokens = (int32_t *)(void *)t->unit, *targets = tokens + length;
    dt_sampling usual = dt_sampling_default();
    uint64_t seed;
    dt__rng rng;
    dt_result r;
    if (!how) how = &usual;
    if (!t->generator.memory)
        return dt__error(DT_E_USAGE,
                         "text samples are off: --sample-length is 0, or the model has no logits of next tokens");
    r = dt__sample_prompt(t, prompt, tokens, &used);
    if (!r) r = dt__check_sampling(how);
    if (!r) r = dt__engine_settle(&t->e);
    if (r) return r;
    if ((t->recipe.model.vocabulary > 256 && !t->tokenizer) || used < 1)
        return dt__error(DT_E_USAGE, "a text sample needs a byte vocabulary or a tokenizer, and a prompt");
    memcpy(&seed, &how->seed, sizeof seed);
    rng = dt__rng_make((uint64_t)t->recipe.seed, DT__RNG_TEXT, (uint32_t)t->e.step, (uint32_t)seed,
                       (uint32_t)(seed >> 32));
    for (int64_t i = 0; i < length; i++) targets[i] = -1;
    t->e.target = targets;
    t->generator.cached = 0; /* of other weights */
    for (int64_t i = 0; written < count && !r; i++) {
        int32_t token = 0;
        r = dt__next_token(t, tokens, &used, how, dt__uniform(&rng, (uint64_t)i), &token);
        if (!r) written += dt__sample_text(t, token, text + written, count - written);
        dt__comm_tick(t->comm);
    }
    text[written] = 0;
    return r;
}

/* An array for the hash: weights, or something that the optimizer keeps. */
typedef struct dt__hashed {
    char *array;
    int64_t bytes; /* of 256 weights */
    int pieces;    /* the ranks of the group have pieces, one behind another */
} dt__hashed;

/* Bytes of `count` weights. Some share a number. */
static int64_t dt__hashed_bytes(const dt__hashed *a, int64_t count)
{
    int64_t units = a->bytes < DT__MOMENT_BLOCK ? DT__MOMENT_BLOCK : 1;
    return dt__ceil_div(count, units) * a->bytes * units / DT__MOMENT_BLOCK;
}

/* Sends bytes to rank 0, or takes them there. */
static dt_result dt__trainer_pass_on(dt_trainer *t, int from, char *data, int64_t bytes)
{
    float block[1024];
    dt_result r = DT_OK;
    for (int64_t at = 0; at < bytes && !r; at += (int64_t)sizeof block) {
        int64_t n = dt__min((int64_t)sizeof block, bytes - at), words = dt__ceil_div(n, 4);
        if (dt_comm_rank(t->comm) == from) {
            memcpy(block, data + at, (size_t)n);
            r = dt_send(t->comm, block, words, 0);
        } else if (dt_is_root(t)) {
            r = dt_recv(t->comm, block, words, from);
            memcpy(data + at, block, (size_t)n);
        }
    }
    return r;
}

/* Rank 0 gets the piece of a parameter that data-parallel rank j of the first copy of the state has, with the shards of
 * place `tensor`; where it belongs, the owner says. */
static dt_result dt__trainer_collect(dt_trainer *t, const dt__hashed *a, const dt__net_param *p, int j, int tensor,
                                     char *room)
{
    const dt__engine *e = &t->e;
    int from = dt__mesh_rank(&e->mesh, j, p->stage[0], tensor), self = dt_comm_rank(t->comm);
    int64_t where[2], place = 0;
    dt_result r = DT_OK;
    if (self != from && self) return DT_OK;
    if (self == from) {
        dt__piece_of x = dt__engine_piece(e, p);
        where[0] = a->pieces ? x.from : 0;
        where[1] = a->pieces ? x.count : p->count;
        place = (a->pieces ? x.state : p->offset) / DT__MOMENT_BLOCK * a->bytes;
    }
    if (from) r = dt__trainer_pass_on(t, from, (char *)where, 16);
    if (r) return r;
    room += where[0] / DT__MOMENT_BLOCK * a->bytes;
    if (!from) memcpy(room, a->array + place, (size_t)dt__hashed_bytes(a, where[1]));
    else r = dt__trainer_pass_on(t, from, self ? a->array + place : room, dt__hashed_bytes(a, where[1]));
    return r;
}

/* Adds a parameter's part of an array: what ranks store, those with the first experts first, then by tensor shards.
 * Elements go in the order of the whole parameter; numbers that blocks of weights share in that of its arrays. */
static void dt__hash_param(const dt_trainer *t, dt__sha256 *h, const dt__hashed *a, const dt__net_param *p,
                           const char *at)
{
    int64_t vt = t->e.net.tensor_shards, cut = dt__param_is_cut(&p->is, vt), shards = cut ? vt : 1;
    int64_t own = cut ? t->e.net.own_shards : 1, experts = dt__max(1, p->is.own_experts), cuts = shards / own;
    int64_t step = dt__shard_step(&p->is, vt), run = experts * own * step, arrays = dt__param_arrays(&p->is, vt);
    dt__net_param q = *p;
    dt__net part;
    memset(&part, 0, sizeof part);
    part.tensor_shards = vt, part.own_shards = own;
    for (int64_t i = 0; i < arrays * step / run && arrays > 1 && a->bytes >= DT__MOMENT_BLOCK; i++) {
        part.first_shard = i % cuts * own;
        q.is.first_expert = i / cuts * experts;
        dt__net_whole(&part, &q, at + i * run / DT__MOMENT_BLOCK * a->bytes, a->bytes / DT__MOMENT_BLOCK, t->whole);
    }
    if (arrays > 1 && a->bytes >= DT__MOMENT_BLOCK)
        dt__sha256_add(h, t->whole, dt_shape_count(p->is.shape) * a->bytes / DT__MOMENT_BLOCK);
    else for (int64_t i = 0; i < arrays; i++) {
        int64_t e = i / shards, v = i % shards, rank = e / experts * cuts + v / own;
        int64_t place = rank * run + (e % experts * own + v % own) * step;
        dt__sha256_add(h, at + place / DT__MOMENT_BLOCK * a->bytes, dt__hashed_bytes(a, dt__shard_floats(&p->is, vt)));
    }
}

/* Adds one array, parameter by parameter; where ranks have only parts, rank 0 collects each in `room`. */
static dt_result dt__hash_array(dt_trainer *t, dt__sha256 *h, const dt__hashed *a, char *room)
{
    const dt__engine *e = &t->e;
    dt_result r = DT_OK;
    for (int32_t i = 0; i < e->net.param_count && !r; i++) {
        const dt__net_param *p = &e->net.params[i];
        int64_t vt = e->net.tensor_shards, copies = dt__param_copies(&p->is);
        int64_t run = dt__param_shards(&p->is, vt, e->net.own_shards) * dt__shard_step(&p->is, vt);
        int places = dt__param_is_cut(&p->is, vt) ? e->mesh.size[DT__TENSOR] : 1;
        int ranks = (int)(a->pieces ? dt__max(e->store.shards, copies) : copies);
        for (int place = 0; place < places && room; place++)
            for (int j = 0; j < ranks && !r; j++)
                r = dt__trainer_collect(t, a, p, j, place,
                                        room + (j % copies * places + place) * run / DT__MOMENT_BLOCK * a->bytes);
        if (!room) dt__hash_param(t, h, a, p, a->array + p->offset / DT__MOMENT_BLOCK * a->bytes);
        else if (dt_is_root(t)) dt__hash_param(t, h, a, p, room);
        dt__comm_tick(t->comm);
    }
    return r;
}

/* Has every rank all of the state? */
static int dt__trainer_whole(const dt_trainer *t) { return !t->e.copy; }

static dt_result dt__trainer_hash(dt_trainer *t)
{
    dt__sha256 h;
    dt__hashed a;
    char *room = NULL;
    int64_t most = 0;
    float words[17];
    dt_result r = DT_OK;
    for (int32_t i = 0; i < t->e.net.param_count; i++)
        most = dt__max(most, DT__BLOCK * dt__engine_blocks(&t->e, &t->e.net.params[i].is));
    if (!dt__trainer_whole(t) && !(room = (char *)dt__alloc(dt_is_root(t) ? 4 * most : 1, "the hash")))
        return DT_E_MEMORY;
    dt__sha256_begin(&h);
    a.array = (char *)t->e.params, a.bytes = 4 * DT__MOMENT_BLOCK, a.pieces = t->e.shape.zero > 2;
    r = dt__engine_settle(&t->e);
    if (!r) r = dt__hash_array(t, &h, &a, room);
    for (int i = 0; i < DT__STATE_COUNT && !r; i++) {
        a.array = (char *)t->e.state[i], a.bytes = dt__state_bytes(&t->recipe, i), a.pieces = t->e.shape.zero > 0;
        if (a.bytes) r = dt__hash_array(t, &h, &a, room);
    }
    dt__free(room);
    dt__sha256_end(&h, t->hash);
    memcpy(words, t->hash, 65);
    if (!r && !dt__trainer_whole(t)) r = dt_broadcast(t->comm, words, 17, 0);
    memcpy(t->hash, words, 65);
    t->hashed = r ? -1 : t->e.step;
    return r;
}

DT_API const char *dt_trainer_hash(dt_trainer *t)
{
    if (t->hashed != t->e.step && dt__trainer_hash(t)) t->hash[0] = 0;
    return t->hash;
}

/* Draws and prints a text sample; control characters show as '?'. */
static dt_result dt__trainer_print_sample(dt_trainer *t, int64_t step)
{
    static const char prompt[] = "The ";
    dt_result r = dt_trainer_sample(t, prompt, t->layout.sample_length, &t->layout.sampling, t->text);
    if (r || !dt_is_root(t)) return r;
    for (int64_t i = 0; i < t->layout.sample_length; i++)
        if ((unsigned char)t->text[i] < 32 && t->text[i] != '\n' && t->text[i] != '\t') t->text[i] = '?';
    printf("---- sample at step %lld ----\n%s%s\n----\n", (long long)step, prompt, t->text);
    return DT_OK;
}

/* Is the loss a cross-entropy as it is? Of others nothing is known but the number. */
static int dt__loss_in_nats(const dt_trainer *t)
{
    const dt__plan *p = t->e.net.segments[t->e.net.count - 1].plan;
    return p->g->nodes[p->output.id].op == DT__OP_CROSS_ENTROPY;
}

/* Text is drawn by rank 0 alone when it has the model, else by all ranks together. */
static int dt__trainer_draws(const dt_trainer *t)
{
    const dt_layout *l = &t->layout;
    if (!l->sample_length || (!t->tokenizer && t->recipe.model.vocabulary > 256)) return 0;
    return dt__trainer_whole(t) ? dt_is_root(t) && !l->quiet : !l->quiet;
}

/* The validation that is due after this step, a text sample, and the hash while all ranks are here. */
static dt_result dt__trainer_due(dt_trainer *t, dt_step_info *info)
{
    const dt_layout *l = &t->layout;
    int last = info->step == t->recipe.steps, speaks = dt_is_root(t) && !l->quiet;
    dt_result r = DT_OK;
    info->validation = __builtin_nanf("");
    if (t->feed.is.samples[DT_VALIDATION] && (last || (l->eval_every && info->step % l->eval_every == 0)))
        r = dt_trainer_evaluate(t, l->eval_batches, &info->validation);
    if (r) return r;
    if (speaks && info->validation == info->validation) {
        printf("step %lld/%lld  validation loss ", (long long)info->step, (long long)t->recipe.steps);
        if (dt__loss_in_nats(t))
            printf("%.4f nats, %.3f bits per %s\n", (double)info->validation,
                   (double)info->validation * 1.4426950408889634, t->feed.own ? "target" : "token");
        else printf("%.5g\n", (double)info->validation);
    }
    if (dt__trainer_draws(t) && (last || (l->sample_every && info->step % l->sample_every == 0)))
        r = dt__trainer_print_sample(t, info->step);
    if (!r && last && !dt__trainer_whole(t)) r = dt__trainer_hash(t);
    if (!r && last && l->timeline) r = dt__engine_settle(&t->e);
    if (!r && last && l->timeline) r = dt__timeline_write(t);
    if (speaks) fflush(stdout);
    return r;
}

static void dt__trainer_progress(dt_trainer *t, const dt_step_info *i)
{
    double now = dt__now(), left = (now - t->started) / (double)i->step * (double)(t->recipe.steps - i->step);
    if (i->step > 1 && i->step < t->recipe.steps && now - t->printed < 2.0) return;
    printf(dt__loss_in_nats(t) ? "step %lld/%lld  loss %.4f" : "step %lld/%lld  loss %.5g", (long long)i->step,
           (long long)t->recipe.steps, (double)i->loss);
    printf("  lr %.2e  norm %.3f  %.0f %s/s  %.1f GFLOP/s (%.0f %% of GEMM peak)  ", (double)i->learning_rate,
           (double)i->norm, (double)i->tokens / i->seconds, t->feed.own ? "samples" : "tokens", i->gflops,
           100.0 * i->peak_share);
    if (dt_comm_size(t->comm) > 1)
        printf("comm %.0f %%, %.0f %% exposed  ", 100.0 * i->comm_seconds / i->seconds,
               100.0 * i->exposed_seconds / i->seconds);
    printf("eta %dm%02ds\n", (int)(left / 60.0), (int)left % 60);
    fflush(stdout);
    t->printed = now;
}

static dt_result dt__trainer_log(dt_trainer *t, const dt_step_info *i)
{
    dt__metrics *m = &t->metrics;
    if (!m->file) return DT_OK;
    dt__metrics_begin(m);
    dt__metrics_number(m, "step", (double)i->step);
    dt__metrics_number(m, "loss", (double)i->loss);
    if (t->e.net.watched) dt__metrics_number(m, "auxiliary", (double)i->auxiliary);
    dt__metrics_number(m, "validation", (double)i->validation);
    dt__metrics_number(m, "norm", (double)i->norm);
    dt__metrics_number(m, "learning_rate", (double)i->learning_rate);
    dt__metrics_number(m, "tokens", (double)i->tokens);
    dt__metrics_number(m, "seconds", i->seconds);
    dt__metrics_number(m, "gflops", i->gflops);
    dt__metrics_number(m, "peak_share", i->peak_share);
    dt__metrics_number(m, "comm_seconds", i->comm_seconds);
    dt__metrics_number(m, "exposed_seconds", i->exposed_seconds);
    dt__metrics_number(m, "data_seconds", i->data_seconds);
    dt__metrics_number(m, "sent_bytes", (double)i->sent_bytes);
    return dt__metrics_end(m);
}

static dt_result dt__trainer_step(dt_trainer *t, dt_step_info *info)
{
    dt__engine *e = &t->e;
    double start = dt__now(), before[2], after[2], units = (double)(t->recipe.data_shards * e->micros);
    int64_t sent = dt__comm_sent(t->comm), valid = 0;
    int64_t targets = (e->hi - e->lo) * e->micros * e->rows * t->feed.is.targets, leaves = dt__engine_leaves(e);
    float loss = 0.0f, auxiliary = 0.0f;
    dt_result r;
    dt__engine_times(e, &before[0], &before[1]);
    while (!dt__loader_ready(t->loader)) dt__comm_tick(t->comm); /* who waits for data is alive */
    r = dt__loader_next(t->loader, &t->batch);
    if (!r) r = dt__sum_valid(t, dt__valid_targets(t->batch.target, t->feed.is.target_type, targets), &valid);
    e->inv_valid = 1.0f / (float)dt__max(1, valid);
    memset(e->shard_loss, 0, 4 * (size_t)((e->hi - e->lo) * leaves * (1 + e->net.count))); /* without valid targets */
    if (!r && valid) r = dt__engine_step(e, dt__trainer_load, t);
    if (!r) r = dt__tree_loss(t, e->shard_loss, leaves, 1, dt__engine_last(e) && !e->mesh.at[DT__TENSOR], &loss);
    if (!r && e->net.watched)
        r = dt__tree_loss(t, e->shard_auxiliary, leaves, e->net.count, !e->mesh.at[DT__TENSOR], &auxiliary);
    if (r) return r;
    loss = loss / (float)dt__max(1, valid);
    if (!(loss - loss == 0.0f))
        return dt__error(DT_E_NUMERIC, "the loss of step %lld is not finite: lower --learning-rate",
                         (long long)e->step + 1);
    info->step = ++e->step;
    info->tokens = t->recipe.batch * (t->feed.own ? 1 : t->recipe.sequence);
    info->loss = loss;
    info->auxiliary = auxiliary * e->env.unit_share;
    info->norm = e->norm;
    info->learning_rate = e->rate;
    info->seconds = dt__now() - start;
    info->gflops = 1e-9 * units * (e->net.forward_flops + e->net.backward_flops) / info->seconds;
    info->peak_share = info->gflops / t->peak_gflops;
    dt__engine_times(e, &after[0], &after[1]);
    info->comm_seconds = after[0] - before[0];
    info->exposed_seconds = after[1] - before[1];
    info->data_seconds = t->loader->waited - t->waited;
    info->sent_bytes = dt__comm_sent(t->comm) - sent;
    t->waited = t->loader->waited;
    if (dt_is_root(t) && !t->layout.quiet) dt__trainer_progress(t, info);
    r = dt__trainer_due(t, info);
    return r ? r : dt__trainer_log(t, info);
}

/* The caller's rounding mode and flush-to-zero reach no host arithmetic either (R15). */
DT_API dt_result dt_trainer_step(dt_trainer *t, dt_step_info *info)
{
    unsigned saved = dt__fp_enter();
    dt_result r = dt__trainer_step(t, info);
    dt__fp_leave(saved);
    return r;
}

DT_API dt_result dt_trainer_run(dt_trainer *t, dt_step_info *info)
{
    dt_result r = DT_OK;
    while (!r && t->e.step < t->recipe.steps) r = dt_trainer_step(t, info);
    return r;
}

#if defined(__clang__)
#pragma clang diagnostic pop
#if defined(__x86_64__)
#pragma float_control(pop)
#else
#pragma STDC FP_CONTRACT DEFAULT
#endif
#else
#pragma GCC diagnostic pop
#pragma GCC pop_options
#endif
#ifdef __cplusplus
}
#endif
#endif /* implementation */
#endif /* DT__ISA */

/*
 * This file is available under two licences; choose either.
 *
 * A: MIT No Attribution (MIT-0). Copyright (c) 2026 the dtrain.h authors.
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
 * documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
 * rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
 * permit persons to whom the Software is furnished to do so. THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY
 * KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR
 * PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR
 * OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
 * SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 *
 * B: Public domain (www.unlicense.org).
 * This is free and unencumbered software released into the public domain. Anyone is free to copy, modify, publish, use,
 * compile, sell, or distribute this software, either in source code form or as a compiled binary, for any purpose,
 * commercial or non-commercial, and by any means. In jurisdictions that recognize copyright laws, the author or authors
 * of this software dedicate any and all copyright interest in the software to the public domain. We make this
 * dedication for the benefit of the public at large and to the detriment of our heirs and successors. We intend this
 * dedication to be an overt act of relinquishment in perpetuity of all present and future rights to this software under
 * copyright law. THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT
 * LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL
 * THE AUTHORS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE,
 * ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 */
