/* maps.h: the functions of dt_map and dt_map2 by name, for tables of builders, and some functions made of ops. Include
 * it after dtrain.h. */
#ifndef MAPS_H
#define MAPS_H

#define MAP_ONE(name, code)                                                       \
    static inline dt_tensor map_##name(dt_graph *g, dt_tensor x) { return dt_map(g, code, x); }
#define MAP_TWO(name, code)                                                       \
    static inline dt_tensor map_##name(dt_graph *g, dt_tensor a, dt_tensor b) { return dt_map2(g, code, a, b); }
MAP_ONE(neg, DT_NEG)
MAP_ONE(square, DT_SQUARE)
MAP_ONE(sigmoid, DT_SIGMOID)
MAP_ONE(reciprocal, DT_RECIPROCAL)
MAP_ONE(sqrt, DT_SQRT)
MAP_ONE(rsqrt, DT_RSQRT)
MAP_ONE(exp, DT_EXP)
MAP_ONE(log, DT_LOG)
MAP_ONE(abs, DT_ABS)
MAP_TWO(div, DT_DIV)
MAP_TWO(maximum, DT_MAXIMUM)
MAP_TWO(minimum, DT_MINIMUM)
MAP_TWO(greater_equal, DT_GREATER_EQUAL)

/* Attention over rows [q | k | v]. */
static inline dt_tensor attention(dt_graph *g, dt_tensor qkv, int64_t heads, int causal, float dropout)
{
    dt_attention_options o;
    dt_tensor none;
    memset(&o, 0, sizeof o);
    o.heads = heads, o.causal = causal, o.dropout = dropout;
    none.id = 0;
    return dt_attend(g, qkv, none, none, none, &o);
}
static inline dt_tensor map_min(dt_graph *g, dt_tensor x, unsigned axes)
{
    return map_neg(g, dt_max(g, map_neg(g, x), axes));
}
/* sum (x - mean)^2 / n, or / (n - 1) when unbiased. */
static inline dt_tensor map_var(dt_graph *g, dt_tensor x, unsigned axes, int unbiased)
{
    dt_tensor d = dt_sub(g, x, dt_mean(g, x, axes | DT_KEEP)), var = dt_mean(g, dt_mul(g, d, d), axes);
    float n = var.id ? (float)(dt_shape_count(dt_shape_of(g, x)) / dt_shape_count(dt_shape_of(g, var))) : 2.0f;
    return unbiased ? dt_scale(g, var, n / (n - 1.0f)) : var;
}
/* x cut into `count` equal parts along an axis. */
static inline void map_chunk(dt_graph *g, dt_tensor x, int axis, int64_t count, dt_tensor *part)
{
    int64_t each = dt_dim(g, x, axis) / count;
    for (int64_t i = 0; i < count; i++) part[i] = dt_slice(g, x, axis, i * each, (i + 1) * each);
}
#endif
