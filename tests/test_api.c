/* Arguments at the edges of the public functions: sizes whose product overflows, tensors and names that do not belong,
 * lists that files cannot hold, and NaN in maxima. tests/fuzz_api.c draws arguments; what it found is here. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"

static const int64_t huge = (int64_t)1 << 62;
static const float zeros[4096];

static dt_graph *opened(void)
{
    dt_graph *g = NULL;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    return g;
}
/* t is poison, the graph has `code`, and the sentence has these words. Closes the graph. */
static void refused(dt_graph *g, dt_tensor t, dt_result code, const char *words, const char *what)
{
    dt_result r = dt_graph_result(g);
    tap_ok(!t.id && r == code && strstr(dt_last_error(), words), "%s is refused", what) || (tap_note("%s: %s", dt_result_name(r), dt_last_error()), 0);
    dt_graph_close(&g);
}
static void says(int right, const char *words, const char *what)
{
    tap_ok(right && strstr(dt_last_error(), words), "%s", what) || (tap_note("%s", dt_last_error()), 0);
}

/* ---- sizes ---- */

static void check_sizes(void)
{
    dt_rope_scaling none;
    dt_moe_options m;
    dt_shape dims = dt_shape1(1);
    memset(&none, 0, sizeof none), memset(&m, 0, sizeof m);
    m.experts = 65536, m.active = 65536, m.width = INT32_MAX;
    for (int i = 0; i < 14; i++) {
        dt_graph *g = opened();
        dt_tensor x = dt_tensor_of(g, DT_F32, dt_shape3(2, 3, 4), zeros), t = {0, 0};
        switch (i) {
        case 0: t = dt_full(g, dt_shape2(huge, 4), 1.0f); break;
        case 1: t = dt_linear(g, x, "w", huge); break;
        case 2: t = dt_reshape(g, x, dt_shape2(huge + 6, 4)); break;
        case 3: t = dt_expand(g, x, dt_shape4(huge, 2, 3, 4)); break;
        case 4: t = dt_param(g, "p", dt_shape3(huge, huge, 2), DT_INIT_NORMAL, 1.0f); break;
        case 5: t = dt_tensor_of(g, DT_F32, dt_shape4((int64_t)1 << 32, (int64_t)1 << 32, 1, 1), zeros); break;
        case 6: t = dt_rope(g, x, huge + 2, 10000.0, 0, &none); break;
        case 7: t = dt_moe(g, x, "m", &m); break;
        case 8: dims.dims = 7, t = dt_full(g, dims, 1.0f); break;
        case 9: dims.dims = INT32_MAX, t = dt_reshape(g, x, dims); break;
        case 10: dims.dims = INT32_MIN, t = dt_param(g, "p", dims, DT_INIT_ONES, 0.0f); break;
        case 11: t = dt_full(g, dt_shape2(0, 3), 1.0f); break;
        case 12: t = dt_linear(g, x, "w", -4); break;
        default: t = dt_full(g, dt_shape1(((int64_t)1 << 40) + 1), 1.0f);
        }
        refused(g, t, i == 7 ? dt_graph_result(g) : DT_E_SHAPE, i == 7 ? "" : i == 10 ? "too many axes" : "(", "a size that overflows, or no size");
    }
    dims = dt_shape3(huge, 2, 2);
    says(dt_shape_count(dims) == 0, "dt_shape_count", "dt_shape_count of a product that overflows is 0, with a sentence");
    dims.dims = 1000;
    tap_ok(dt_shape_count(dims) == 0 && dt_shape_count(dt_shape0()) == 1, "dt_shape_count of 1000 axes is 0, of a scalar 1");
}

/* ---- tensors of others ---- */

static int returned; /* what the segment returns */
static dt_tensor elsewhere;
static dt_tensor strays(dt_graph *g, dt_tensor x, const void *user)
{
    static const dt_tensor none = {0, 0};
    dt_tensor forged = x;
    (void)user;
    (void)dt_linear(g, x, "a", 3);
    forged.id = 1000000;
    return returned == 0 ? elsewhere : returned == 1 ? none : forged;
}
static dt_tensor drops(dt_graph *g, dt_tensor x, const void *user)
{
    for (int i = 0; i < *(const int *)user; i++) x = dt_dropout(g, x, 0.5f);
    return dt_loss(g, dt_linear(g, x, "a", 3));
}
static dt_tensor plain(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_linear(g, x, "a", 4);
}
static dt_tensor ends(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_loss(g, dt_linear(g, x, "a", 3));
}
static dt_result fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user, (void)split;
    for (int i = 0; i < 4; i++) ((float *)input)[i] = (float)(sample + i) / 8.0f, ((float *)target)[i] = 1.0f;
    return DT_OK;
}
static dt_result trains(const dt_segment *segments, int64_t count, const char *place, char hash[65])
{
    static dt_source source;
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_trainer *t = NULL;
    dt_step_info info = dt_step_info_zero();
    dt_result result;
    memset(&source, 0, sizeof source);
    source.samples[0] = 8, source.inputs = source.targets = 4, source.fetch = fetch;
    r.model = dt_model_segments(segments, count, 0), r.source = &source, r.steps = 2, r.batch = 8, r.validation = 0;
    l.threads = 1, l.output.quiet = 1, l.output.sample_length = 0, l.checkpoint.place = place;
    result = dt_trainer_open(&t, &r, &l);
    if (!result && place) result = dt_trainer_run(t, &info);
    if (!result && hash) snprintf(hash, 65, "%s", dt_trainer_hash(t));
    if (!result) says(!dt_trainer_parameter(t, "no such", NULL), "no such", "dt_trainer_parameter says that there is none of the name"), says(!dt_trainer_parameter_at(t, 99, NULL), "99", "and dt_trainer_parameter_at none of the number");
    dt_trainer_close(&t);
    return result;
}
static void check_segments(void)
{
    static const int sites[2] = {256, 257};
    char name[100] = "";
    dt_segment one = {"s", strays, NULL}, two[2] = {{"a", plain, NULL}, {"a", ends, NULL}};
    dt_graph *g = opened();
    elsewhere = dt_full(g, dt_shape0(), 1.0f);
    for (returned = 0; returned < 3; returned++)
        says(trains(&one, 1, NULL, NULL) == DT_E_USAGE, returned == 1 ? "no tensor" : "another graph", "a segment that returns what it did not make is refused");
    dt_graph_close(&g), returned = 0;
    says(trains(&one, 1, NULL, NULL) == DT_E_USAGE, "another graph", "and a tensor of a closed graph");
    one.build = drops, one.user = &sites[1];
    says(trains(&one, 1, NULL, NULL) == DT_E_SHAPE, "256", "a 257th dropout of a segment is refused");
    one.user = &sites[0];
    tap_ok(trains(&one, 1, NULL, NULL) == DT_OK, "256 are not");
    says(trains(two, 2, NULL, NULL) == DT_E_USAGE, "twice", "two segments of one name are refused");
    memset(name, 'n', 64), two[0].name = name;
    says(trains(two, 2, NULL, NULL) == DT_E_USAGE, "63", "a segment's name of 64 bytes is refused with the limit");
    two[0].name = "caf\xe9";
    says(trains(two, 2, NULL, NULL) == DT_E_USAGE, "UTF-8", "so is one that is not UTF-8");
    two[0].name = NULL;
    says(trains(two, 2, NULL, NULL) == DT_E_USAGE, "missing", "and none");
    two[0].name = "b", two[0].build = NULL;
    says(trains(two, 2, NULL, NULL) == DT_E_USAGE, "build", "and one without a function");
}

/* ---- names, and the circle of writer and reader ---- */

static const char *odd_name(int i)
{
    static char longer[4][200];
    static const char *const names[] = {"plain", "a \"quote\"", "back\\slash", "tab\tnewline\n\x01\x1f\x7f", "f\xc3\xbcr \xe2\x82\xac \xf0\x9f\x98\x80", "a/b", "first.x", ".", " ", "{}[],:", "%s%n",
                                        "", "caf\xe9", "\xff", "\xc3", "\xed\xa0\x80", "__metadata__"};
    static const int length[4] = {95, 96, 159, 160};
    if (i < (int)(sizeof names / sizeof *names)) return names[i];
    i -= (int)(sizeof names / sizeof *names);
    if (i >= 4) return NULL;
    memset(longer[i], 'n', (size_t)length[i]), memcpy(longer[i], "\xc3\xbc", 2);
    return longer[i];
}
static void check_circle(void)
{
    static const int written = 11; /* of the names above; the rest but the longer ones is refused */
    float a[6] = {1, 2, 3, 4, 5, 6}, b[6];
    for (int i = 0; odd_name(i); i++) {
        const char *name = odd_name(i);
        size_t length = strlen(name);
        int right = i < written || (length >= 95 && length < 160), as_weight = i < written || length == 95;
        dt_parameter p = {name, dt_shape2(2, 3), a, NULL};
        dt_graph *g = opened();
        dt_result r;
        unlink("circle.safetensors");
        r = dt_parameters_save("circle.safetensors", &p, 1);
        if (right) {
            memset(b, 0, sizeof b), p.values = b;
            r = r ? r : dt_parameters_load("circle.safetensors", &p, 1);
            tap_ok(!r && !memcmp(a, b, sizeof a), "a list with the name of %d bytes, number %d, comes back", (int)length, i) || (tap_note("%s", dt_last_error()), 0);
        } else tap_ok(r == DT_E_USAGE && access("circle.safetensors", F_OK), "a list with the name of %d bytes, number %d, is refused, and no file is written", (int)length, i);
        if (as_weight) {
            (void)dt_param(g, name, dt_shape1(2), DT_INIT_ONES, 0.0f);
            tap_ok(dt_graph_parameters(g, &p, 1) == 1 && !strcmp(p.name, name), "it is a parameter's whole name");
            dt_graph_close(&g);
        } else refused(g, dt_param(g, name, dt_shape1(2), DT_INIT_ONES, 0.0f), DT_E_USAGE, "95 bytes of UTF-8", "as a parameter's name it");
    }
    for (int i = 0; i < 7; i++) {
        dt_parameter p[2] = {{"x", dt_shape1(2), a, NULL}, {"y", dt_shape1(2), b, NULL}};
        const char *words[] = {"twice", "lacks values", "lacks a shape", "lacks a shape", "lacks a shape", "missing", "lacks a shape"};
        if (i == 0) p[1].name = "x";
        if (i == 1) p[1].values = NULL;
        if (i == 2) p[1].shape = dt_shape1(0);
        if (i == 3) p[1].shape.dims = 7;
        if (i == 4) p[1].shape = dt_shape2(huge, 4);
        if (i == 5) p[0].name = NULL;
        if (i == 6) p[1].shape = dt_shape1(-2);
        unlink("circle.safetensors");
        says(dt_parameters_save("circle.safetensors", p, 2) == DT_E_USAGE && access("circle.safetensors", F_OK), words[i], "what a file cannot hold is not written");
        says(dt_parameters_load("circle.safetensors", p, 2) == DT_E_USAGE, words[i], "and not asked for");
    }
    unlink("circle.safetensors");
}
/* A checkpoint of own segments, resumed: segments and parameters with odd names. */
static const char *weight_name;
static dt_tensor named(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_loss(g, dt_matmul(g, x, dt_param(g, weight_name, dt_shape2(4, 2), DT_INIT_NORMAL, 1.0f), 0, 0));
}
static void check_checkpoints(void)
{
    static const char *const segment[] = {"", "s", "a \"b\" \\", "\x01\n", "\xc3\xbc\xe2\x82\xac", "../up", "x/y"};
    static char longest[64];
    memset(longest, 's', 63);
    for (int i = 0; i < 8; i++) {
        dt_segment s = {i < 7 ? segment[i] : longest, named, NULL};
        char first[65] = "a", again[65] = "b";
        if (system("rm -rf names.ck")) tap_bail("rm");
        weight_name = i == 7 ? "a weight whose full name has 95" : segment[(i + 1) % 7][0] ? segment[(i + 1) % 7] : "w";
        tap_ok(!trains(&s, 1, "names.ck", first) && !trains(&s, 1, "names.ck", again) && !strcmp(first, again), "a checkpoint of odd names, number %d, is read back", i) || (tap_note("%s", dt_last_error()), 0);
    }
    if (system("rm -rf names.ck")) tap_bail("rm");
}

/* ---- lists and counts ---- */

static void check_lists(void)
{
    dt_graph *g = opened();
    dt_optimizer *o = NULL;
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_mesh mesh;
    double costs[3] = {1, 2, 3};
    int64_t begin[4];
    dt_parameter p = {"x", dt_shape1(2), NULL, NULL};
    (void)dt_param(g, "a", dt_shape1(2), DT_INIT_ONES, 0.0f);
    tap_ok(dt_graph_parameters(g, NULL, 0) == 1 && dt_graph_parameters(g, NULL, -5) == 1, "no room asks for the number alone");
    says(dt_graph_parameters(g, NULL, 4) == 0, "list is NULL", "room without a list is refused");
    dt_graph_close(&g);
    says(dt_optimizer_open(&o, &recipe, NULL, 2) == DT_E_USAGE && !o, "list is NULL", "an optimizer of no list");
    says(dt_optimizer_open(&o, &recipe, &p, -1) == DT_E_USAGE && !o, "a list of -1", "of a negative number");
    says(dt_optimizer_open(&o, &recipe, &p, 1) == DT_E_USAGE && !o, "lacks values", "of no values");
    says(dt_parameters_save("x.safetensors", &p, -1) == DT_E_USAGE, "a list of -1", "a file of a negative number");
    if (dt_optimizer_open(&o, &recipe, NULL, 0)) tap_bail("%s", dt_last_error());
    says(dt_optimizer_parameters(o, NULL, 4) == 0, "list is NULL", "what an optimizer keeps, without a list");
    dt_optimizer_close(&o);
    says(dt_comm_fail(NULL, DT_E_PEER) == DT_E_USAGE, "dt_comm_fail", "dt_comm_fail of nothing");
    {
        dt_comm *c = NULL;
        if (dt_comm_open(&c, NULL, NULL)) tap_bail("%s", dt_last_error());
        says(dt_comm_fail(c, DT_OK) == DT_E_USAGE, "code is 0", "dt_comm_fail without a failure");
        says(dt_comm_fail(c, (dt_result)99) == DT_E_USAGE, "code is 99", "with a code that there is not");
        says(dt_comm_alive(c) == DT_OK && dt_comm_agree(c, dt_error(DT_E_DATA, "my file is %d", 7)) == DT_E_DATA, "my file is 7", "one rank agrees with itself");
        dt_error(DT_E_SYSTEM, "my device is gone");
        says(dt_comm_fail(c, DT_E_SYSTEM) == DT_E_SYSTEM, "my device is gone", "a communicator fails with the program's error");
        says(dt_barrier(c) == DT_E_SYSTEM, "my device is gone", "and every later call does");
        dt_comm_close(&c);
    }
    says(dt_comm_alive(NULL) == DT_E_USAGE, "dt_comm_alive", "dt_comm_alive of nothing");
    says(dt_comm_agree(NULL, DT_OK) == DT_E_USAGE, "dt_comm_agree", "dt_comm_agree of nothing");
    costs[1] = INFINITY;
    says(dt_partition(costs, 3, 2, begin) == DT_E_USAGE, "finite", "a partition of an infinite cost");
    costs[1] = NAN;
    says(dt_partition(costs, 3, 2, begin) == DT_E_USAGE, "finite", "and of NaN");
    says(dt_mesh_of(&l, 0, 0, &mesh) == DT_E_USAGE && dt_mesh_of(&l, 2, 2, &mesh) == DT_E_USAGE, "rank 2 of 2", "a rank that there is not");
    g = opened();
    tap_ok(dt_dim(g, dt_linear(g, dt_full(g, dt_shape1(3), 1.0f), "w", 5), 0) == 5, "dt_linear takes a vector");
    dt_graph_close(&g), g = opened();
    refused(g, dt_linear_with(g, dt_full(g, dt_shape2(2, 3), 1.0f), "w", 4, 1.0f, DT_ROWS | DT_COLUMNS), DT_E_USAGE, "DT_COLUMNS or DT_ROWS", "rows and columns of one weight");
}

/* ---- R14: a NaN wins ---- */

static void check_nan(void)
{
    const float nan = __builtin_nanf("");
    for (int64_t n = 1; n < 80; n += 13)
        for (int64_t at = 0; at < n; at += 1 + n / 9) {
            dt_graph *g = opened();
            float x[80], other[80];
            dt_tensor t, y, grad, places;
            for (int i = 0; i < 80; i++) x[i] = i % 5 ? (float)i : INFINITY, other[i] = -INFINITY;
            x[at] = nan;
            t = dt_tensor_of(g, DT_F32, dt_shape3(1, 1, n), x), y = dt_tensor_of(g, DT_F32, dt_shape3(1, 1, n), other);
            const float most = dt_value(g, dt_max(g, t, DT_ALL))[0];
            const float *a = dt_value(g, dt_map2(g, DT_MAXIMUM, t, y)), *b = dt_value(g, dt_map2(g, DT_MAXIMUM, y, t)), *c = dt_value(g, dt_map2(g, DT_MINIMUM, t, y)), *d = dt_value(g, dt_map2(g, DT_MINIMUM, y, t));
            const float *e = dt_value(g, dt_clamp(g, t, 0.0f, 1.0f)), *f = dt_value(g, dt_relu(g, t)), *k = dt_value(g, dt_top_k(g, t, n > 2 ? 2 : 1, &places)), *s = dt_value(g, dt_softmax(g, t, DT_LAST));
            int wins = most != most && k[0] != k[0] && dt_value(g, dt_cast(g, places, DT_F32))[0] == (float)at && s[0] != s[0];
            wins &= a[at] != a[at] && b[at] != b[at] && c[at] != c[at] && d[at] != d[at] && e[at] != e[at] && f[at] != f[at];
            wins &= !dt_backward(g, dt_max(g, t, DT_ALL));
            grad = dt_grad(g, t);
            for (int64_t i = 0; i < n; i++) wins &= dt_value(g, grad)[i] == (i == at ? 1.0f : 0.0f);
            tap_ok(wins, "R14 a NaN at %d of %d wins, and has the gradient", (int)at, (int)n);
            dt_graph_close(&g);
        }
}

/* ---- attention: a fused input and a mask ---- */

static void check_mask(void)
{
    dt_attention_options o = {2, 0, 1, 0.0f, 0.0f};
    float data[2 * 5 * 24], holes[25];
    float result[2][2 * 5 * 8], back[2][2 * 5 * 24];
    for (int i = 0; i < 240; i++) data[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    for (int i = 0; i < 25; i++) holes[i] = (float)(i % 3);
    for (int i = 0; i < 2; i++) {
        dt_graph *g = opened();
        dt_tensor x = dt_tensor_of(g, DT_F32, dt_shape3(2, 5, 24), data), mask = dt_tensor_of(g, DT_F32, dt_shape2(5, 5), holes), none = {0, 0}, y;
        y = i ? dt_attend(g, x, none, none, mask, &o) : dt_attend(g, dt_slice(g, x, 2, 0, 8), dt_slice(g, x, 2, 8, 16), dt_slice(g, x, 2, 16, 24), mask, &o);
        if (!y.id || dt_backward(g, dt_sum(g, dt_mul(g, y, y), DT_ALL))) tap_bail("%s", dt_last_error());
        memcpy(result[i], dt_value(g, y), sizeof result[i]);
        memcpy(back[i], dt_value(g, dt_grad(g, x)), sizeof back[i]);
        dt_graph_close(&g);
    }
    tap_same_bits(result[1], result[0], 80, "attention over a fused input sees the mask");
    tap_same_bits(back[1], back[0], 240, "and so does its gradient");
}

int main(void)
{
    char place[] = "/tmp/test_api.XXXXXX";
    if (!mkdtemp(place) || chdir(place)) tap_bail("no directory for files");
    check_sizes();
    check_segments();
    check_circle();
    check_checkpoints();
    check_lists();
    check_nan();
    check_mask();
    if (chdir("/") || rmdir(place)) tap_note("%s is not empty", place);
    return tap_done();
}
