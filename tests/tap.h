/* tap.h: helpers for the test programs, which print TAP (the Test Anything Protocol) and are run by `prove`.
 *
 *     #include "tap.h"
 *     int main(void)
 *     {
 *         tap_ok(1 + 1 == 2, "one and one is %d", 2);
 *         tap_same_bits(got, want, n, "layernorm, forward");     // the bits of n 32-bit words
 *         tap_near(got, want, n, 1e-6, "layernorm against the golden file");
 *         tap_skip(3, "no GPU here");
 *         return tap_done();                                     // prints the plan
 *     }
 *
 * Only one thread of a program may report. Include it once, in the file that has main(). */
#ifndef TAP_H
#define TAP_H

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TAP_FN __attribute__((unused)) static
#define TAP_PRINTF(text, first) __attribute__((format(printf, text, first)))

static int tap__run, tap__failed;

/* A comment line of the output. */
TAP_PRINTF(1, 2) TAP_FN void tap_note(const char *format, ...)
{
    va_list args;
    printf("# ");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

/* One test. Returns `pass`, so that a failure can be explained by notes. */
TAP_PRINTF(2, 3) TAP_FN int tap_ok(int pass, const char *format, ...)
{
    va_list args;
    printf("%s %d - ", pass ? "ok" : "not ok", ++tap__run);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout); /* a test may fork or be killed next */
    if (!pass) tap__failed++;
    return pass;
}

/* `count` tests that cannot run here, and why. */
TAP_PRINTF(2, 3) TAP_FN void tap_skip(int count, const char *format, ...)
{
    char reason[400];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    for (int i = 0; i < count; i++) printf("ok %d # SKIP %s\n", ++tap__run, reason);
    fflush(stdout);
}

/* Nothing can be tested any more: ends the program. */
__attribute__((noreturn)) TAP_PRINTF(1, 2) TAP_FN void tap_bail(const char *format, ...)
{
    va_list args;
    printf("Bail out! ");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    exit(1);
}

/* Prints the plan; the value to return from main(). */
TAP_FN int tap_done(void)
{
    printf("1..%d\n", tap__run);
    if (tap__failed) tap_note("%d of %d tests failed", tap__failed, tap__run);
    return tap__failed != 0;
}

/* ---- comparisons -------------------------------------------------------------------------- */

/* Do n 32-bit words (float or int32_t) have the same bits? If not, says where first and how often they differ. */
TAP_FN int tap_same_bits(const void *got, const void *want, int64_t n, const char *what)
{
    int64_t first = -1, differing = 0;
    uint32_t a, b;
    float x, y;
    if (tap_ok(memcmp(got, want, (size_t)n * sizeof a) == 0, "%s", what)) return 1;
    for (int64_t i = 0; i < n; i++) {
        memcpy(&a, (const char *)got + 4 * i, sizeof a);
        memcpy(&b, (const char *)want + 4 * i, sizeof b);
        if (a == b) continue;
        if (first < 0) first = i;
        differing++;
    }
    memcpy(&x, (const char *)got + 4 * first, sizeof x);
    memcpy(&y, (const char *)want + 4 * first, sizeof y);
    memcpy(&a, &x, sizeof a);
    memcpy(&b, &y, sizeof b);
    tap_note("%lld of %lld differ, the first at [%lld]: got %.9g (0x%08x), want %.9g (0x%08x)", (long long)differing,
             (long long)n, (long long)first, (double)x, a, (double)y, b);
    return 0;
}

/* The largest |got - want|, divided by the largest |want| (by 1 where all of want is 0); NaN where one of them is.
 * *at (may be NULL) is the index of that difference. */
TAP_FN double tap_error(const float *got, const float *want, int64_t n, int64_t *at)
{
    double error = 0.0, scale = 0.0;
    int64_t worst = 0;
    for (int64_t i = 0; i < n && error == error; i++) {
        double e = fabs((double)got[i] - (double)want[i]), s = fabs((double)want[i]);
        if (!(e <= error)) { /* true for NaN, which ends the loop */
            error = e;
            worst = i;
        }
        if (s > scale) scale = s;
    }
    if (at) *at = worst;
    return scale > 0.0 ? error / scale : error;
}

/* Is tap_error() at most `tolerance`? */
TAP_FN int tap_near(const float *got, const float *want, int64_t n, double tolerance, const char *what)
{
    int64_t at;
    double error = tap_error(got, want, n, &at);
    if (tap_ok(error <= tolerance, "%s (error %.1e, at most %.1e)", what, error, tolerance)) return 1;
    tap_note("the worst is [%lld] of %lld: got %.9g, want %.9g", (long long)at, (long long)n, (double)got[at],
             (double)want[at]);
    return 0;
}

/* ---- golden files -------------------------------------------------------------------------
 * A reader for the safetensors files of make_golden.py: 8 bytes little-endian header length, a JSON header, the data.
 * Names hold no escapes. It believes in nothing else: what it cannot read, it bails out on. */

enum { TAP_RANK = 6, TAP_NAME = 80 };

typedef struct tap_tensor {
    char name[TAP_NAME], dtype[8]; /* "F32", "I32", "I64" */
    int rank;
    int64_t shape[TAP_RANK], count;
    const void *data; /* owned by the file */
} tap_tensor;

typedef struct tap_golden {
    char *header, *data;
    tap_tensor *tensor;
    int count;
} tap_golden;

static void tap__expect(const char **p, char c)
{
    *p += strspn(*p, " ");
    if (**p != c) tap_bail("golden file: '%c' expected at \"%.20s\"", c, *p);
    (*p)++;
}

static int tap__more(const char **p) /* after an item: a comma, or the end of the list */
{
    *p += strspn(*p, " ");
    return **p == ',' ? (*p)++, 1 : 0;
}

static void tap__string(const char **p, char *out, size_t size)
{
    size_t n;
    tap__expect(p, '"');
    n = strcspn(*p, "\"");
    if (n >= size) tap_bail("golden file: the name \"%.100s\" is too long", *p);
    memcpy(out, *p, n);
    out[n] = 0;
    *p += n;
    tap__expect(p, '"');
}

static int tap__integers(const char **p, int64_t *out, int limit)
{
    int n = 0;
    tap__expect(p, '[');
    if (**p != ']') do {
        char *end;
        if (n == limit) tap_bail("golden file: more than %d numbers", limit);
        out[n++] = strtoll(*p, &end, 10);
        *p = end;
    } while (tap__more(p));
    tap__expect(p, ']');
    return n;
}

static void tap__entry(const char **p, tap_tensor *t, const char *data, int64_t bytes)
{
    int64_t range[2] = { 0, 0 }, unit;
    char key[16];
    tap__expect(p, '{');
    do {
        tap__string(p, key, sizeof key);
        tap__expect(p, ':');
        if (!strcmp(key, "dtype")) tap__string(p, t->dtype, sizeof t->dtype);
        else if (!strcmp(key, "shape")) t->rank = tap__integers(p, t->shape, TAP_RANK);
        else if (!strcmp(key, "data_offsets")) tap__integers(p, range, 2);
        else tap_bail("golden file: unknown key %s", key);
    } while (tap__more(p));
    tap__expect(p, '}');
    t->count = 1;
    for (int i = 0; i < t->rank; i++) t->count *= t->shape[i];
    unit = !strcmp(t->dtype, "I64") ? 8 : 4;
    if (range[0] < 0 || range[1] > bytes || range[1] - range[0] != unit * t->count)
        tap_bail("golden file: the size of %s is wrong", t->name);
    t->data = data + range[0];
}

static void tap__parse(tap_golden *g, int64_t bytes)
{
    const char *p = g->header;
    tap__expect(&p, '{');
    do {
        tap_tensor *t;
        if ((g->count & 63) == 0)
            g->tensor = (tap_tensor *)realloc(g->tensor, ((size_t)g->count + 64) * sizeof *t);
        if (!g->tensor) tap_bail("no memory");
        t = &g->tensor[g->count++];
        memset(t, 0, sizeof *t);
        tap__string(&p, t->name, sizeof t->name);
        tap__expect(&p, ':');
        tap__entry(&p, t, g->data, bytes);
    } while (tap__more(&p));
    tap__expect(&p, '}');
}

/* Opens tests/golden/<name> from the top of the source tree, golden/<name> from tests/, or <name>. */
TAP_FN tap_golden *tap_golden_open(const char *name)
{
    static const char *const places[] = { "tests/golden/", "golden/", "" };
    tap_golden *g = (tap_golden *)calloc(1, sizeof *g);
    unsigned char size[8];
    char path[512];
    FILE *f = NULL;
    uint64_t length = 0;
    int64_t bytes;
    for (int i = 0; i < 3 && !f; i++) {
        if ((size_t)snprintf(path, sizeof path, "%s%s", places[i], name) < sizeof path) f = fopen(path, "rb");
    }
    if (!f || !g || fread(size, 1, 8, f) != 8) tap_bail("cannot open tests/golden/%s", name);
    for (int i = 7; i >= 0; i--) length = length << 8 | size[i];
    fseek(f, 0, SEEK_END);
    bytes = (int64_t)ftell(f) - 8 - (int64_t)length;
    if (length > 1u << 20 || bytes < 0) tap_bail("%s is no safetensors file", path);
    fseek(f, 8, SEEK_SET);
    g->header = (char *)calloc(1, (size_t)length + 1);
    g->data = (char *)malloc((size_t)bytes + 1);
    if (!g->header || !g->data || fread(g->header, 1, (size_t)length, f) != length ||
        fread(g->data, 1, (size_t)bytes, f) != (size_t)bytes)
        tap_bail("cannot read %s", path);
    fclose(f);
    tap__parse(g, bytes);
    return g;
}

TAP_FN void tap_golden_close(tap_golden *g)
{
    free(g->header);
    free(g->data);
    free(g->tensor);
    free(g);
}

/* The tensor of that name, or NULL. */
TAP_FN const tap_tensor *tap_golden_find(const tap_golden *g, const char *name)
{
    for (int i = 0; i < g->count; i++)
        if (!strcmp(g->tensor[i].name, name)) return &g->tensor[i];
    return NULL;
}

static const void *tap__typed(const tap_golden *g, const char *name, const char *dtype, int64_t count)
{
    const tap_tensor *t = tap_golden_find(g, name);
    if (!t) tap_bail("the golden file has no %s", name);
    if (strcmp(t->dtype, dtype)) tap_bail("%s is %s, not %s", name, t->dtype, dtype);
    if (count >= 0 && t->count != count)
        tap_bail("%s has %lld elements, not %lld", name, (long long)t->count, (long long)count);
    return t->data;
}

/* The elements of a tensor that must be there, be of that type, and number `count` (-1: any number). */
TAP_FN const float *tap_golden_f32(const tap_golden *g, const char *name, int64_t count)
{
    return (const float *)tap__typed(g, name, "F32", count);
}
TAP_FN const int32_t *tap_golden_i32(const tap_golden *g, const char *name, int64_t count)
{
    return (const int32_t *)tap__typed(g, name, "I32", count);
}
/* A single I64 number. */
TAP_FN int64_t tap_golden_int(const tap_golden *g, const char *name)
{
    int64_t value;
    memcpy(&value, tap__typed(g, name, "I64", 1), sizeof value);
    return value;
}

/* ---- standard output ----------------------------------------------------------------------------------------- */

/* From here on standard output goes to a file, until tap_printed gives what was written: text (size). */
TAP_FN int tap_print_begin(void)
{
    FILE *file = tmpfile();
    int kept = dup(1);
    fflush(stdout);
    if (!file || kept < 0 || dup2(fileno(file), 1) < 0) tap_bail("cannot redirect standard output");
    fclose(file);
    return kept;
}
TAP_FN void tap_printed(int kept, char *text, size_t size)
{
    ssize_t n;
    fflush(stdout);
    n = pread(1, text, size - 1, 0);
    text[n < 0 ? 0 : n] = 0;
    dup2(kept, 1);
    close(kept);
}

#endif
