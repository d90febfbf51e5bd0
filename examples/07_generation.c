/* 07_generation: how is text drawn from a model?
 *
 * What you learn
 *     - A language model gives a number (a logit) to every token that could come next. Greedy drawing, temperature 0,
 *       takes the largest logit; such texts soon run in circles.
 *     - Temperature divides the logits before the softmax: below 1 the likely tokens gain, above 1 the others gain.
 *       Top-k keeps the k likeliest tokens. Top-p keeps the likeliest ones until their probabilities sum to p: few
 *       where the model is sure, many where it is not (Holtzman et al. 2020).
 *     - Seed, step and place in the text decide each draw: the same call gives the same text on every machine.
 *     - Token n + 1 needs the keys and values of all n tokens before it. They do not change, so the key-value cache
 *       keeps them. "Caching is an approximation" is wrong: the bits are the same.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 07_generation.c -o 07_generation -lm -lpthread
 *     ./07_generation
 *
 * What it prints
 *     trained a model: loss 1.399, sha256 785d5d133ba06518..
 *     greedy  The clarked stood the brint bood the bout the charket behe tood stood the bout the charket beh
 *     trained again, without a cache: loss 1.399, sha256 785d5d133ba06518..
 *     ~240 tokens: ~0.009 s with the cache, ~0.166 s recomputed, ~19 times as long
 *     ok: with and without the cache: the same 240 tokens, the same weights 785d5d13..
 *
 * Predict first: which writes more words that do not exist: temperature 1.5 alone, or with top-k 3?
 * Exercise: draw with seeds 0 and 1 at temperature 0, and at 0.7. At which letter do the two texts first differ?
 *
 * Read on: 08_generate.c for a checkpoint in use; 06_train.c has these choices as --temperature, --top-k, --top-p and
 *     --no-cache. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LENGTH = 90, LONG = 240 };

/* Opens a trainer on a generated text and runs all its steps. */
static dt_result train(dt_trainer **t, int no_cache)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_result e;
    r.model = dt_model_llama("llama-nano");
    r.data = text;
    r.sequence = 256;
    r.batch = 4;
    r.data_shards = 1;
    r.steps = 150;
    r.warmup = 10;
    r.learning_rate = 1e-2f;
    r.validation = 0;
    l.output.no_cache = no_cache;
    l.threads = 1;
    l.output.quiet = 1;
    e = prose_temporary(text, 100000);
    if (!e) e = dt_trainer_open(t, &r, &l);
    remove(text); /* open files live on without a name */
    if (!e) e = dt_trainer_run(*t, &info);
    if (!e) printf("trained %s: loss %.3f, sha256 %.16s..\n", no_cache ? "again, without a cache" : "a model",
                   (double)info.loss, dt_trainer_hash(*t));
    return e;
}

/* Draws and prints one text; bytes outside ASCII would spoil a terminal. */
static dt_result show(dt_trainer *t, const char *how, float temperature, int64_t top_k, float top_p)
{
    dt_sampling s = dt_generation_default().sampling;
    char text[LENGTH + 1];
    dt_result e;
    s.temperature = temperature, s.top_k = top_k, s.top_p = top_p;
    e = dt_trainer_sample(t, "The ", LENGTH, &s, text);
    for (int i = 0; i < LENGTH && !e; i++)
        if (text[i] < ' ' || text[i] > '~') text[i] = '.';
    if (!e) printf("%-22s The %s\n", how, text);
    return e;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A long text, and how long it took: the shorter of two times. */
static dt_result draw(dt_trainer *t, char text[LONG + 1], double *shortest)
{
    dt_sampling s = dt_generation_default().sampling;
    dt_result e = DT_OK;
    *shortest = 1e9;
    for (int i = 0; i < 2 && !e; i++) {
        double start = seconds(), took;
        s.temperature = 1.0f;
        e = dt_trainer_sample(t, "The ", LONG, &s, text);
        took = seconds() - start;
        if (took < *shortest) *shortest = took;
    }
    return e;
}

static dt_result show_all(dt_trainer *t)
{
    dt_result e = show(t, "greedy", 0.0f, 0, 0.0f);
    if (!e) e = show(t, "temperature 0.7", 0.7f, 0, 0.0f);
    if (!e) e = show(t, "temperature 1", 1.0f, 0, 0.0f);
    if (!e) e = show(t, "temperature 1.5", 1.5f, 0, 0.0f);
    if (!e) e = show(t, "the same, top-k 3", 1.5f, 3, 0.0f);
    if (!e) e = show(t, "the same, top-p 0.8", 1.5f, 0, 0.8f);
    return e;
}

int main(int argc, char **argv)
{
    dt_trainer *t = NULL, *again = NULL;
    char cached[LONG + 1], whole[LONG + 1], hash[65] = "";
    double with = 0, without = 0;
    int same = 0;
    dt_result e = dt_launch(&argc, &argv);
    if (!e && argc > 1) return fprintf(stderr, "07_generation: there are no options\n"), dt_exit_code(DT_E_USAGE);
    if (!e) e = train(&t, 0);
    if (!e) e = show_all(t);
    if (!e) e = train(&again, 1);
    if (!e) e = draw(t, cached, &with);
    if (!e) e = draw(again, whole, &without);
    if (!e) snprintf(hash, sizeof hash, "%s", dt_trainer_hash(t));
    if (!e) same = !strcmp(hash, dt_trainer_hash(again)) && !memcmp(cached, whole, LONG);
    dt_trainer_close(&t);
    dt_trainer_close(&again);
    if (e) return dt_fail("07_generation");
    printf("%d tokens: %.3f s with the cache, %.3f s recomputed, %.0f times as long\n", LONG, with, without,
           without / with);
    if (same) return printf("ok: with and without the cache: the same %d tokens, the same weights %.8s..\n", LONG,
                            hash), 0;
    return fprintf(stderr, "FAILED: without the cache the text or the weights differ\n"), 1;
}
