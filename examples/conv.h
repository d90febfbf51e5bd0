/* conv.h: convolutions and pooling as functions over the ops of dtrain.h, which has none of its own. Include it after
 * dtrain.h. Each tap of the window reads a strided slice of the padded input. A pooling is the maximum or mean of the
 * slices. For a convolution they are the columns of a matrix with a row for each position (im2col), and the convolution
 * is its product with the weights: the matrix has as many elements as the slices together, and is kept for the backward
 * pass. */
#ifndef CONV_H
#define CONV_H
#include <math.h>
#include <stdio.h>

/* The window along (height, width), or along the one axis of a sequence in [0]. What is 0 has its default. */
typedef struct conv_window {
    int64_t size[2];
    int64_t stride[2];   /* 0: 1 for a convolution, size for a pooling */
    int64_t padding[2];  /* places outside the tensor at each side */
    int64_t dilation[2]; /* distance of neighbouring taps, 0: 1 */
    int64_t groups;      /* output channels of a group see the input channels of it alone; 0: 1 */
} conv_window;

static inline int64_t conv_or(int64_t value, int64_t fallback) { return value ? value : fallback; }

/* x with `before` and `after` elements added along an axis, all `value`. */
static inline dt_tensor conv_pad(dt_graph *g, dt_tensor x, int axis, int64_t before, int64_t after, float value)
{
    dt_shape s = dt_shape_of(g, x);
    dt_tensor part[3];
    int64_t count = 0;
    if (before > 0) s.n[axis] = before, part[count++] = dt_full(g, s, value);
    part[count++] = x;
    if (after > 0) s.n[axis] = after, part[count++] = dt_full(g, s, value);
    return dt_concat(g, part, count, axis);
}

/* Elements first, first + stride, .. of an axis of x (B,C,H,W): `count` of them. */
static inline dt_tensor conv_every(dt_graph *g, dt_tensor x, int axis, int64_t first, int64_t stride, int64_t count)
{
    dt_shape s = dt_shape_of(g, x), apart = s;
    x = dt_slice(g, x, axis, first, first + count * stride);
    if (stride == 1) return x;
    apart.dims = 5, apart.n[axis] = count, apart.n[axis + 1] = stride;
    for (int i = axis + 1; i < 4; i++) apart.n[i + 1] = s.n[i];
    apart.n[axis + 1] = stride, s.n[axis] = count;
    return dt_reshape(g, dt_slice(g, dt_reshape(g, x, apart), axis + 1, 0, 1), s);
}

enum { CONV_TAPS = 256 }; /* at most */

/* What each tap of the window reads of x (B,C,H,W): returns how many taps there are, 0: none fits, and tap[i]
 * (B,C,H',W'), whose sizes are n. Outside x every element is `outside`. The last tap is made first: the gradient of x
 * adds, in the order of the ops, by ascending position. */
static inline int64_t conv_taps(dt_graph *g, dt_tensor x, const conv_window *w, int pools, float outside, int64_t n[2],
                                dt_tensor *tap)
{
    int64_t size[2], stride[2], dilation[2], taps;
    for (int k = 0; k < 2; k++) {
        int64_t reach, places = dt_dim(g, x, 2 + k) + 2 * w->padding[k];
        size[k] = conv_or(w->size[k], 1), dilation[k] = conv_or(w->dilation[k], 1);
        stride[k] = conv_or(w->stride[k], pools ? size[k] : 1);
        reach = dilation[k] * (size[k] - 1) + 1;
        n[k] = places < reach ? 0 : (places - reach) / stride[k] + 1;
        reach += n[k] * stride[k] - 1; /* what conv_every reads */
        x = conv_pad(g, x, 2 + k, w->padding[k], reach - places + w->padding[k], outside);
    }
    taps = size[0] * size[1];
    if (taps > CONV_TAPS || n[0] < 1 || n[1] < 1) return 0;
    for (int64_t t = taps - 1; t >= 0; t--) {
        tap[t] = conv_every(g, x, 2, t / size[1] * dilation[0], stride[0], n[0]);
        tap[t] = conv_every(g, tap[t], 3, t % size[1] * dilation[1], stride[1], n[1]);
    }
    return taps;
}

/* A sequence (B,C,L) as an image of height 1, whose window w becomes. */
static inline dt_tensor conv_image(dt_graph *g, dt_tensor x, conv_window *w)
{
    dt_shape s = dt_shape_of(g, x);
    if (s.dims != 3) return x;
    w->size[1] = w->size[0], w->stride[1] = w->stride[0], w->padding[1] = w->padding[0];
    w->dilation[1] = w->dilation[0];
    w->size[0] = w->stride[0] = 1, w->padding[0] = w->dilation[0] = 0;
    return dt_reshape(g, x, dt_shape4(s.n[0], s.n[1], 1, s.n[2]));
}
static inline dt_tensor conv_shaped(dt_graph *g, dt_tensor y, int dims, int64_t channels, const int64_t n[2])
{
    int64_t b = dt_dim(g, y, 0);
    return dt_reshape(g, y, dims == 3 ? dt_shape3(b, channels, n[1]) : dt_shape4(b, channels, n[0], n[1]));
}

/* Cross-correlation (LeCun et al. 1989) of x (B,C,L) with weight (O,C/groups,K) -> (B,O,L'), or of x (B,C,H,W) with
 * weight (O,C/groups,KH,KW) -> (B,O,H',W'); n' = (n + 2 padding - dilation (size - 1) - 1) / stride + 1, with the
 * size of weight. bias (O), or id 0: none. Each output is one chain over (input channel, tap), the bias added last; the
 * weight's gradient is one over (sample, position). In both, places outside the tensor are terms with the value 0. */
static inline dt_tensor conv_of(dt_graph *g, dt_tensor x, dt_tensor weight, dt_tensor bias, const conv_window *window)
{
    dt_shape sx = dt_shape_of(g, x), sw = dt_shape_of(g, weight);
    conv_window w;
    int64_t groups = conv_or(window->groups, 1), of_group = sx.n[1] / groups, made = sw.n[0] / groups, n[2];
    int64_t rows = dt_shape_count(sw) / sw.n[0];
    static const int last[4] = {0, 3, 1, 2}, back[3] = {0, 2, 1};
    dt_tensor tap[CONV_TAPS], all, part[64];
    int64_t taps;
    w = *window;
    for (int k = 0; k < sw.dims - 2; k++) w.size[k] = sw.n[2 + k];
    x = conv_image(g, x, &w);
    taps = conv_taps(g, x, &w, 0, 0.0f, n, tap);
    if (!taps || groups < 1 || groups > 64) return dt_slice(g, x, 0, 0, 0); /* refused: an empty slice */
    for (int64_t t = 0; t < taps; t++) tap[t] = dt_reshape(g, tap[t], dt_shape4(sx.n[0], sx.n[1], 1, n[0] * n[1]));
    weight = dt_reshape(g, weight, dt_shape2(sw.n[0], rows));
    all = dt_permute(g, dt_concat(g, tap, taps, 2), last); /* (B,positions,C,taps) */
    for (int64_t i = 0; i < groups; i++) {
        dt_tensor from = groups > 1 ? dt_slice(g, all, 2, i * of_group, (i + 1) * of_group) : all;
        dt_tensor by = groups > 1 ? dt_slice(g, weight, 0, i * made, (i + 1) * made) : weight;
        from = dt_reshape(g, from, dt_shape2(sx.n[0] * n[0] * n[1], rows));
        part[i] = dt_matmul(g, from, by, 0, 1);
    }
    all = dt_concat(g, part, groups, 1); /* (B positions,O) */
    if (bias.id) all = dt_add(g, all, bias);
    all = dt_permute(g, dt_reshape(g, all, dt_shape3(sx.n[0], n[0] * n[1], sw.n[0])), back);
    return conv_shaped(g, all, sx.dims, sw.n[0], n);
}

/* The same with parameters "<name>.weight" ~ N(0, 2/n), n the inputs of an output (He et al. 2015), and "<name>.bias" =
 * 0 (O), for `channels` outputs O. */
static inline dt_tensor conv(dt_graph *g, dt_tensor x, const char *name, int64_t channels, const conv_window *window)
{
    char full[96];
    dt_shape s = dt_shape_of(g, x);
    dt_tensor weight, bias;
    s.n[1] /= conv_or(window->groups, 1), s.n[0] = channels;
    for (int k = 0; k < s.dims - 2; k++) s.n[2 + k] = window->size[k];
    snprintf(full, sizeof full, "%s.weight", name);
    weight = dt_param(g, full, s, DT_INIT_NORMAL, sqrtf(2.0f * (float)channels / (float)dt_shape_count(s)));
    snprintf(full, sizeof full, "%s.bias", name);
    bias = dt_param(g, full, dt_shape1(channels), DT_INIT_ZEROS, 0.0f);
    return conv_of(g, x, weight, bias, window);
}

/* Largest element, or mean, of every window: (B,C,L) -> (B,C,L') or (B,C,H,W) -> (B,C,H',W'), as above. Outside the
 * tensor are -inf for a maximum, 0 for a mean, the sum in window order / size. The first maximum gets the gradient. */
static inline dt_tensor pool(dt_graph *g, dt_tensor x, int mean, const conv_window *window)
{
    int dims = dt_shape_of(g, x).dims;
    conv_window w = *window;
    dt_tensor tap[CONV_TAPS], y;
    int64_t n[2], taps;
    x = conv_image(g, x, &w);
    taps = conv_taps(g, x, &w, 1, mean ? 0.0f : -INFINITY, n, tap);
    if (!taps) return dt_slice(g, x, 0, 0, 0);
    y = tap[0];
    for (int64_t t = 1; t < taps; t++) y = mean ? dt_add(g, y, tap[t]) : dt_map2(g, DT_MAXIMUM, tap[t], y);
    if (mean) y = dt_map2(g, DT_DIV, y, dt_full(g, dt_shape0(), (float)taps));
    return conv_shaped(g, y, dims, dt_dim(g, x, 1), n);
}
#endif
