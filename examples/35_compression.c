/* 35_compression: gradients in fewer bytes, what is lost on the way, and when that pays.
 *
 * What you learn
 *     Data-parallel ranks send their gradients to each other in every step. Half as many bytes take half as long: fp16
 *     and bf16 halve them, int8 with a scale per block of 256 nearly quarters them, top-k sends the largest 1 % with
 *     their places, PowerSGD a matrix as a product of two narrow ones. All of that is a technique that any library can
 *     offer. (SMDDP, of which it is often told, has no such feature: AWS's page merely says that fp16 or int8 are worth
 *     a try.)
 *     What a format cannot hold is lost, unless the rank keeps it and adds it to its next gradient: error feedback.
 *     Then what was sent and what is still kept are the sum of all gradients, to rounding.
 *     The second table shows what that is good for: a linear model with few loud inputs and many quiet ones. The noise
 *     in the gradients of the loud weights is larger than the quiet ones' whole gradient, so top-k always sends the
 *     loud ones. Without feedback the quiet weights are never sent and never learned; with it theirs add up until it is
 *     their turn.
 *     It is no cure for all. What top-k sends has waited for up to 1 / share steps and comes at once: at a larger
 *     learning rate the weights swing. AdamW divides by the size of what comes, so for it the bursts are poison: after
 *     200 steps this GPT with top-k is at 3.0 with feedback, 2.4 without, 2.0 in fp32 (Tang et al. 2021 met the same
 *     with one bit).
 *     Formats that send something of everything in every step, like int8, are not late, and fit any optimizer.
 *     Coding takes time, too: it pays only on a link on which the saved bytes would take longer.
 *     And it does not scale as the sum does: payloads cannot be added on the way, so each goes to all other ranks,
 *     (N-1) times its bytes, where an all-reduce sends 2 (N-1)/N: fp16 saves nothing from 4 ranks on, int8 from 8 on.
 *     PowerSGD's factors can be added, which is what makes it worth its arithmetic.
 *     The bits depend on how many data-parallel ranks there are (on nothing else: not on nodes, buckets, threads, tp or
 *     pp). One alone sends nothing, and has the exact bits.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 35_compression.c -o 35_compression -lm -lpthread
 *     ./35_compression
 *     ./35_compression --ranks 2                 (the one to read)
 *
 * What you should see
 *     For each format the bytes that a rank sends per step, to the byte what the formula says for the linear model;
 *     the time of coding, and below which speed of the link it pays; the loss, and its distance to fp32, with feedback
 *     and without. Then the quiet inputs, learned or not. On one rank all are equal. The hash is the same in every
 *     run.
 *
 * Read on: 24_overlap.c hides communication instead; 06_accumulation.c communicates less often. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXACT "ad28982f1dd4a4daa1e48de9fee0c2c815bd219bac9f81811bb57f9e57c52a79"
#define TWO "88ff6e7fe20c49695b1e489e5a7dcb8395cc1b060e99f23a952975465b22c8d6"
enum { INPUTS = 64, LOUD = 16, OUTPUTS = 16, FORMATS = 6 };
static const char *const formats[FORMATS] = {"fp32", "fp16", "bf16", "int8", "topk", "powersgd"};

typedef struct result {
    int64_t sent, plain;
    double coding, loss; /* coding: of the fastest step */
    int root;
    char hash[65];
} result;

static dt_result train(const dt_recipe *recipe, result *out)
{
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    float loss = 0.0f;
    dt_result e;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0, l.output.eval_every = 0, l.output.eval_batches = 0;
    e = dt_trainer_open(&t, recipe, &l);
    out->coding = 1e9;
    while (!e && info.step < recipe->steps) {
        e = dt_trainer_step(t, &info);
        if (info.wire_seconds < out->coding) out->coding = info.wire_seconds;
    }
    if (!e) e = dt_trainer_evaluate(t, 0, &loss);
    out->sent = info.wire_bytes, out->plain = info.wire_plain, out->loss = (double)loss;
    if (!e) out->root = dt_is_root(t), snprintf(out->hash, sizeof out->hash, "%s", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return e;
}

/* ---- a GPT ---- */

static dt_result gpt(const char *text, int wire, int forget, result *out)
{
    dt_recipe r = dt_recipe_default();
    r.model = dt_model_gpt2("nano");
    r.data = text, r.sequence = 32, r.batch = 8, r.data_shards = 2, r.steps = 40, r.warmup = 10;
    r.learning_rate = 3e-3f, r.validation = 0.1f;
    r.wire = wire, r.wire_forget = forget;
    return train(&r, out);
}

/* ---- loud and quiet inputs: whole numbers, so that the data is the same on every machine ---- */

static uint64_t word(uint64_t n) /* the finaliser of splitmix64 (Vigna 2015) */
{
    n = (n + 1) * 0x9e3779b97f4a7c15u;
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
    n = (n ^ n >> 27) * 0x94d049bb133111ebu;
    return n ^ n >> 31;
}

/* Every input adds as much to the outputs; the quiet ones are a quarter as large, and their weights four times. The
 * noise is four dice of 32 sides: its variance is 4 (32 * 32 - 1) / 12 / 16^2. */
static const double noise = 341.0 / 256.0;
static dt_result sample(void *user, dt_split split, int64_t i, void *input, void *target)
{
    uint64_t key = ((uint64_t)i * 2 + (split == DT_VALIDATION)) << 8;
    int x[INPUTS];
    (void)user;
    for (int k = 0; k < INPUTS; k++) {
        x[k] = (int)(word(key + (uint64_t)k) & 127) - 64;
        ((float *)input)[k] = (float)x[k] / (k < LOUD ? 32.0f : 128.0f);
    }
    for (int o = 0; o < OUTPUTS; o++) {
        uint64_t dice = word(key + 128 + (uint64_t)o);
        int sum = 0, off = (int)((dice & 31) + (dice >> 8 & 31) + (dice >> 16 & 31) + (dice >> 24 & 31)) - 62;
        for (int k = 0; k < INPUTS; k++) sum += word((uint64_t)(k * OUTPUTS + o) + 999) & 1 ? x[k] : -x[k];
        ((float *)target)[o] = (float)(sum + 16 * off) / 256.0f;
    }
    return DT_OK;
}

static dt_tensor as_it_is(dt_graph *g, dt_tensor x, const void *user) { return (void)g, (void)user, x; }
static dt_tensor line(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_mse(g, dt_linear_column(g, x, "w", OUTPUTS, 0.001f), dt_targets(g));
}

static dt_result linear(int wire, int forget, float rate, result *out)
{
    static const dt_segment net[] = {{"in", as_it_is, NULL}, {"out", line, NULL}};
    dt_recipe r = dt_recipe_default();
    dt_source s;
    memset(&s, 0, sizeof s);
    s.samples[DT_TRAIN] = 9600, s.samples[DT_VALIDATION] = 512, s.inputs = INPUTS, s.targets = OUTPUTS,
    s.fetch = sample;
    r.source = &s, r.model.segments = net, r.model.segment_count = 2;
    r.batch = 16, r.data_shards = 2, r.steps = 600, r.warmup = 0, r.schedule = DT_CONSTANT;
    r.optimizer = DT_SGD, r.learning_rate = rate, r.weight_decay = 0, r.clip = 0;
    r.wire = wire, r.wire_forget = forget, r.wire_keep = 0.02f, r.wire_rank = 2;
    return train(&r, out);
}

/* Bytes of the linear model's gradients to one other rank: a matrix of INPUTS x OUTPUTS and a vector of OUTPUTS. */
static int64_t formula(int wire)
{
    int64_t n = INPUTS * OUTPUTS;
    switch (wire) {
    case DT_WIRE_FP32: return 4 * (n + 1024); /* which rounds parameters up to blocks of 1024 */
    case DT_WIRE_INT8: return n / 256 * (4 + 256) + 4 + OUTPUTS;
    case DT_WIRE_TOPK: return 8 * ((n * 2 + 99) / 100) + 8; /* rounded up; one of the vector */
    case DT_WIRE_POWERSGD: return 4 * 2 * (INPUTS + OUTPUTS) + 4 * OUTPUTS; /* rank 2; what 2 ranks send */
    default: return 2 * (n + OUTPUTS);
    }
}

/* ---- the tables ---- */

static void row(int wire, const result *with, const result *without, const result *plain)
{
    double saved = (double)(with->plain - with->sent), coding = with->coding > 1e-9 ? with->coding : 1e-9;
    printf("  %-9s %9lld %6.3f", formats[wire], (long long)with->sent,
           with->plain ? (double)with->sent / (double)with->plain : 1.0);
    if (!with->plain) printf(" %8s %10s %9s", "", "", "");
    else printf(" %8.2f %10.0f %9.2f", 1e3 * coding, 1e-6 * saved / coding, 1e3 * (saved / 125e6 - coding));
    printf(" %7.3f %+7.3f %+7.3f\n", with->loss, with->loss - plain->loss, without->loss - plain->loss);
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    static result g[FORMATS][2], l[FORMATS][2], swings, again;
    int file, good = 1, several;
    dt_result e = DT_OK;
    if (dt_launch(&argc, &argv)) return dt_fail("35_compression");
    if (argc > 1) return fprintf(stderr, "35_compression: the option is --ranks 1 or 2\n"), 2;
    if ((file = mkstemp(text)) < 0) return perror("35_compression: no file in /tmp"), 1;
    close(file);
    e = dt_data_generate(text, 60000, 1);
    for (int w = 0; w < FORMATS && !e; w++)
        for (int forget = 0; forget < 2 && !e; forget++) {
            e = gpt(text, w, forget, &g[w][forget]);
            if (!e) e = linear(w, forget, 0.75f, &l[w][forget]);
        }
    if (!e) e = linear(DT_WIRE_TOPK, 0, 3.0f, &swings);
    if (!e) e = linear(DT_WIRE_TOPK, 0, 0.75f, &again);
    remove(text);
    if (e || !g[0][0].root) return e ? dt_fail("35_compression") : 0;
    several = l[DT_WIRE_INT8][0].plain > 0;
    g[0][0].sent = g[DT_WIRE_INT8][0].plain, l[0][0].sent = l[DT_WIRE_INT8][0].plain;
    printf("A GPT, AdamW, 40 steps. Bytes that a rank sends per step; coding pays on links below so many MB/s, and\n"
           "saves so much per step at 1 Gbit/s; validation loss, and its distance to fp32 with error feedback and "
           "without:\n");
    printf("  %-9s %9s %6s %8s %10s %9s %7s %7s %7s\n", "wire", "bytes", "ratio", "coding", "pays below", "saves ms",
           "loss", "with", "without");
    for (int w = 0; w < FORMATS; w++) row(w, &g[w][0], &g[w][1], &g[0][0]);
    printf("Loud and quiet inputs, a linear model, SGD, 600 steps. Bytes by formula; the loss above the noise:\n");
    printf("  %-9s %9s %9s %9s %9s\n", "wire", "bytes", "formula", "with", "without");
    for (int w = 0; w < FORMATS; w++)
        printf("  %-9s %9lld %9lld %9.3f %9.3f\n", formats[w], (long long)l[w][0].sent,
               several ? (long long)formula(w) : 0LL, l[w][0].loss - noise, l[w][1].loss - noise);
    printf("  topk at four times the learning rate, with feedback: %.3g\n", swings.loss - noise);
    for (int w = 1; w < FORMATS; w++) {
        good = good && (several ? l[w][0].sent == formula(w) : !l[w][0].sent && !strcmp(l[w][0].hash, l[0][0].hash));
        good = good && fabs(l[w][0].loss - l[0][0].loss) < 0.1; /* with feedback near fp32 */
        good = good && (w > DT_WIRE_INT8 || fabs(g[w][0].loss - g[0][0].loss) < 0.01);
    }
    good = good && (!several || l[DT_WIRE_TOPK][1].loss > l[0][0].loss + 0.4); /* the quiet ones are lost */
    good = good && !strcmp(l[0][0].hash, EXACT) && !strcmp(l[DT_WIRE_TOPK][0].hash, several ? TWO : EXACT);
    good = good && !strcmp(again.hash, l[DT_WIRE_TOPK][0].hash);
    printf("sha256 %s\n", l[DT_WIRE_TOPK][0].hash);
    if (good) return printf("ok: bytes by formula, with error feedback the loss of fp32; one hash\n"), 0;
    return fprintf(stderr, "FAILED: bytes, a loss or a hash is not what it should be\n"), 1;
}
