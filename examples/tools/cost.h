/* cost.h: what training needs and costs, as formulas: bytes of states and activations, bubbles, messages, hours, money,
 * and a catalogue of instances. plan.h decides by them; the programs of chapters 4 and 6 print them. GB is 1e9 bytes;
 * NAN is a number that is not known. */
#ifndef COST_H
#define COST_H

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- instances ---- */

enum { COST_TYPES = 64, COST_COLUMNS = 40 };

typedef struct cost_type {
    char name[32], accel[16], intra[16]; /* intra: kind of the links in a node, and GB/s of a GPU, both ways together */
    int count, bf16, efa, smddp;         /* count: GPUs */
    double gb, teraflops, gbit, host_gib, nvme_gb, dollars; /* of a GPU; of the node */
} cost_type;

typedef struct cost_catalogue {
    cost_type type[COST_TYPES];
    int count;
    char date[16]; /* of the prices */
} cost_catalogue;

/* EC2's figures and on-demand dollars an hour in us-east-1. SageMaker's own prices are higher. */
static const char cost_instances[] =
    "instance\taccel\tcount\tgb_each\tbf16\tpeak_tflops\tintra\tnet_gbps\tefa\tvcpu\thost_gib\tnvme_gb\tsmddp\t"
    "ec2_usd_h_useast1_20260720\n"
    "ml.p3.2xlarge\tV100\t1\t16\t0\t125\t-\t10\t0\t8\t61\t0\t0\t3.06\n"
    "ml.p3.8xlarge\tV100\t4\t16\t0\t125\tNVLink200\t10\t0\t32\t244\t0\t0\t12.24\n"
    "ml.p3.16xlarge\tV100\t8\t16\t0\t125\tNVLink300\t25\t0\t64\t488\t0\t0\t24.48\n"
    "ml.p3dn.24xlarge\tV100\t8\t32\t0\t125\tNVLink300\t100\t1\t96\t768\t1800\t0\t31.212\n"
    "ml.p4d.24xlarge\tA100\t8\t40\t1\t312\tNVSwitch600\t400\t1\t96\t1152\t8000\t1\t21.957642\n"
    "ml.p4de.24xlarge\tA100\t8\t80\t1\t312\tNVSwitch600\t400\t1\t96\t1152\t8000\t1\t27.44705\n"
    "ml.p5.48xlarge\tH100\t8\t80\t1\t989\tNVSwitch900\t3200\t1\t192\t2048\t30720\t0\t55.04\n"
    "ml.p5e.48xlarge\tH200\t8\t141\t1\t989\tNVSwitch900\t3200\t1\t192\t2048\t30720\t0\t-\n"
    "ml.p5en.48xlarge\tH200\t8\t141\t1\t989\tNVSwitch900\t3200\t1\t192\t2048\t30720\t0\t63.296\n"
    "ml.g5.12xlarge\tA10G\t4\t24\t1\t70\tPCIe4\t40\t1\t48\t192\t3800\t0\t5.672\n"
    "ml.g5.48xlarge\tA10G\t8\t24\t1\t70\tPCIe4\t100\t1\t192\t768\t7600\t0\t16.288\n"
    "ml.g4dn.12xlarge\tT4\t4\t16\t0\t65\tPCIe3\t50\t1\t48\t192\t900\t0\t3.912\n"
    "ml.trn1.32xlarge\tTrainium\t16\t32\t1\t190\tNeuronLink\t800\t1\t128\t512\t7600\t0\t21.5\n";

/* The next field of a text, up to a separator; NULL after the last one. Empty fields count, unlike with strtok. */
static inline char *cost_field(char **at, char separator)
{
    char *field = *at, *end = field ? strchr(field, separator) : NULL;
    if (end) *end = 0;
    *at = end ? end + 1 : NULL;
    return field;
}

/* The next line that is neither empty nor a comment; NULL: none is left. *number counts lines. */
static inline char *cost_line(char **at, int *number)
{
    for (char *line; (line = cost_field(at, '\n')) != NULL;) {
        ++*number, line[strcspn(line, "\r")] = 0;
        if (*line && *line != '#') return line;
    }
    return NULL;
}

/* Reads a file. 0: it cannot be read, is not a text, or there is no room for it. */
static inline int cost_load(const char *name, char *text, size_t room)
{
    FILE *f = fopen(name, "rb");
    size_t n = f ? fread(text, 1, room, f) : room;
    if (f && ferror(f)) n = room;
    if (f) fclose(f);
    if (n < room) text[n] = 0;
    return n < room && strlen(text) == n;
}

/* A tool begins with this: when its output or a file is too large for the disk or a limit, it says so and fails. */
static inline void cost_end(void)
{
    if (fflush(stdout) || ferror(stdout)) fputs("cannot write the output: is the disk full?\n", stderr), _Exit(1);
}
static inline void cost_begin(void) { signal(SIGXFSZ, SIG_IGN), atexit(cost_end); }

/* Closes a file that was written. 0: not all of it was, and no part of it is left. */
static inline int cost_closed(FILE *f, const char *name)
{
    struct stat is;
    int bad = fflush(f) || ferror(f);
    bad = fclose(f) || bad;
    if (bad && !stat(name, &is) && S_ISREG(is.st_mode)) remove(name);
    return !bad;
}

/* A finite number of 0 or more that is all of a text; else NAN. */
static inline double cost_number(const char *text)
{
    char *end;
    double n = strtod(text, &end);
    return end == text || *end || !isfinite(n) || n < 0 ? (double)NAN : n;
}

/* Sets a column of a type; that of prices ends with their date. 0: not a number, or out of its bounds. */
static inline int cost_column(cost_type *t, const char *name, const char *value)
{
    static const char *const names[] = {"count", "bf16", "efa", "smddp", "gb_each", "peak_tflops", "net_gbps",
                                        "host_gib", "nvme_gb", "ec2_usd_h"};
    int *const whole[] = {&t->count, &t->bf16, &t->efa, &t->smddp};
    double *const real[] = {&t->gb, &t->teraflops, &t->gbit, &t->host_gib, &t->nvme_gb, &t->dollars};
    double n = !strcmp(value, "-") ? (double)NAN : cost_number(value);
    int k = 0;
    if (!strcmp(name, "instance")) return snprintf(t->name, sizeof t->name, "%.31s", value), *value != 0;
    if (!strcmp(name, "accel")) return snprintf(t->accel, sizeof t->accel, "%.15s", value), 1;
    if (!strcmp(name, "intra")) return snprintf(t->intra, sizeof t->intra, "%.15s", value), 1;
    while (k < 10 && strcmp(name, names[k]) && (k < 9 || strncmp(name, names[k], strlen(names[k])))) k++;
    if (k == 10) return 1; /* a column that nothing here uses */
    if (k < 4) return n >= (k == 0) && n <= 1024 ? *whole[k] = (int)n, 1 : 0;
    *real[k - 4] = n;
    return k > 4 || n >= 0.1;
}

/* Reads a catalogue, which it cuts into fields: tab-separated, a row of column names first. NULL, or what is wrong. */
static inline const char *cost_read(cost_catalogue *c, char *text)
{
    static char wrong[200];
    int columns = 0, row = 0;
    char *line = cost_line(&text, &row), *name[COST_COLUMNS], *value;
    size_t n = line ? strlen(line) : 0;
    memset(c, 0, sizeof *c);
    if (!line || strncmp(line, "instance\t", 9)) return "the first line does not begin with 'instance'";
    if (strspn(line + n - 8, "0123456789") == 8)
        snprintf(c->date, sizeof c->date, "%.4s-%.2s-%.2s", line + n - 8, line + n - 4, line + n - 2);
    while (columns < COST_COLUMNS && (name[columns] = cost_field(&line, '\t')) != NULL) columns++;
    while ((line = cost_line(&text, &row)) != NULL) {
        cost_type *t = &c->type[c->count];
        if (c->count == COST_TYPES)
            return snprintf(wrong, sizeof wrong, "line %d: more than %d types", row, COST_TYPES), wrong;
        t->teraflops = t->gbit = t->host_gib = t->nvme_gb = t->dollars = (double)NAN;
        for (int k = 0; k < columns && (value = cost_field(&line, '\t')) != NULL; k++)
            if (!cost_column(t, name[k], value))
                return snprintf(wrong, sizeof wrong, "line %d: %.40s cannot be '%.40s'", row, name[k], value), wrong;
        if (!t->count || !(t->gb > 0)) return snprintf(wrong, sizeof wrong, "line %d: no count or gb_each", row), wrong;
        c->count++;
    }
    return c->count ? NULL : "there is no type in it";
}

/* The catalogue of a file, or the built-in one. NULL, or what is wrong. */
static inline const char *cost_open(cost_catalogue *c, const char *file)
{
    static char text[1 << 16];
    if (file && !cost_load(file, text, sizeof text)) return "the file cannot be read as a text of 64 kB";
    return cost_read(c, file ? text : strcpy(text, cost_instances));
}

static inline const char *cost_short(const cost_type *t) { return t->name + (strncmp(t->name, "ml.", 3) ? 0 : 3); }

/* A type by its name, with or without "ml.", or by its beginning (p4d, p3.16): then the largest of its family. */
static inline const cost_type *cost_find(const cost_catalogue *c, const char *name, size_t length)
{
    const cost_type *found = NULL;
    if (length >= 3 && !strncmp(name, "ml.", 3)) name += 3, length -= 3;
    for (int i = 0; i < c->count && length; i++) {
        const char *own = cost_short(&c->type[i]);
        if (strlen(own) < length || strncmp(own, name, length)) continue;
        if (!own[length]) return &c->type[i];
        if (own[length] == '.' || (own[length] == 'x' && memchr(name, '.', length))) found = &c->type[i];
    }
    return found;
}

/* Bytes per second of a GPU to the others in its node, one way; of a node to other nodes. */
static inline double cost_inside(const cost_type *t)
{
    double both = atof(t->intra + strcspn(t->intra, "0123456789"));
    return both > 10 ? both / 2 * 1e9 : 16e9; /* PCIe: assumed */
}
static inline double cost_outside(const cost_type *t) { return (isnan(t->gbit) ? 10 : t->gbit) / 8 * 1e9; }
static inline double cost_alpha(const cost_type *t) { return t->efa ? 20e-6 : 50e-6; } /* assumed; inside a node 5e-6 */

/* ---- memory ---- */

static const double cost_usable = 0.9; /* of a GPU's memory: the rest is the driver's, fragments and buffers */

enum { COST_FP32, COST_AMP_FP16, COST_AMP_BF16, COST_BF16 };
enum { COST_SGD, COST_SGDM, COST_ADAM, COST_ADAMW, COST_ADAM8, COST_LORA };

typedef struct cost_bytes { /* of one parameter; trainable: the share that has more than weights */
    double weights, gradients, master, moments, trainable;
} cost_bytes;

/* LoRA has a frozen model in 16 bits and AdamW on its adapters. */
static inline cost_bytes cost_of(int precision, int optimizer, double trainable)
{
    static const double in_fp32[] = {0, 4, 8, 8, 2, 8};
    cost_bytes b;
    int wide = precision == COST_FP32, pure = precision == COST_BF16;
    b.weights = wide ? 4 : 2, b.gradients = b.weights;
    b.master = wide || pure ? 0 : 4;
    b.moments = in_fp32[optimizer] / (pure && optimizer != COST_ADAM8 ? 2 : 1);
    b.trainable = trainable;
    return b;
}
static inline double cost_together(const cost_bytes *b) { return b->weights + b->gradients + b->master + b->moments; }

/* Bytes of states per parameter on one of n ranks: nothing shared, or ZeRO 1, 2, 3. Rajbhandari et al. 2020. */
static inline double cost_zero(const cost_bytes *b, int stage, double n)
{
    double f = b->trainable, frozen = f < 1 ? b->weights : 0;
    return frozen / (stage > 2 ? n : 1) + f * (b->weights / (stage > 2 ? n : 1) + b->gradients / (stage > 1 ? n : 1) +
                                               (b->master + b->moments) / (stage > 0 ? n : 1));
}

typedef struct cost_shape { /* a transformer; 0 layers: not known */
    double layers, hidden, heads, sequence, micro;
} cost_shape;

/* Bytes of activations of a micro-batch of `micro` texts in 16 bits, all layers: Korthikanti et al. 2022. With
 * recompute the layers' inputs and one whole layer. */
static inline double cost_activations(const cost_shape *s, double tp, int recompute)
{
    double rows = s->sequence * s->micro, one;
    if (!(s->layers > 0)) return 0;
    one = rows * s->hidden * (10 + 24 / tp + 5 * s->heads * s->sequence / (s->hidden * tp));
    return recompute ? s->layers * 2 * rows * s->hidden + one : s->layers * one;
}

/* ---- time ---- */

/* Of p stages and m micro-batches: the idle share of the time; the time, times that without idling. */
static inline double cost_bubble(double p, double m) { return (p - 1) / (m + p - 1); }
static inline double cost_slowdown(double p, double m) { return (m + p - 1) / m; }
/* The fewest micro-batches with an idle share of at most 0.2. */
static inline double cost_least_micro(double p) { return p > 1 ? 4 * (p - 1) : 1; }

/* Seconds of a ring all-reduce of n; of rings inside nodes of g GPUs, and one between the nodes. */
static inline double cost_ring(double n, double bytes, double alpha, double rate)
{
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * bytes / rate;
}
static inline double cost_nodes_sum(double g, double nodes, double bytes, double inside, double alpha, double outside)
{
    return cost_ring(g, bytes, 5e-6, inside) + cost_ring(nodes, bytes, alpha, outside);
}

/* Seconds of forward and backward: 6 operations per weight and token. */
static inline double cost_computing(double weights, double tokens, double flops)
{
    return 6 * weights * tokens / flops;
}

/* GPUs that bring `alone` hours on one GPU down to a deadline. */
static inline double cost_gpus(double alone, double deadline, double efficiency)
{
    return ceil(alone / (deadline * efficiency) - 1e-9);
}

static inline double cost_break_even(double compile, double speedup) /* of a compiler; in the unit of `compile` */
{
    return speedup > 1 ? compile * speedup / (speedup - 1) : (double)INFINITY;
}
static inline double cost_spot_hours(double hours, double rework_percent, double interruptions, double each)
{
    return hours * (1 + rework_percent / 100) + interruptions * each;
}
/* The best interval between saves of C where a failure comes every M: Young 1974. */
static inline double cost_interval(double save, double failures) { return sqrt(2 * save * failures); }

#endif
