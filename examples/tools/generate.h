/* generate.h: continues a prompt with a trained model, and measures a text with it. generate.c is the program;
 * 08_generate.c shows it with a model of its own. `speaks`: this rank prints. */
#ifndef GENERATE_H
#define GENERATE_H

#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <time.h>

static double generate_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* dt_generation.put: rank 0 prints. */
static void generate_print(void *speaks, const char *text, int64_t bytes)
{
    if (*(const int *)speaks) fwrite(text, 1, (size_t)bytes, stdout), fflush(stdout);
}

/* Continues a prompt `samples` times, each with a seed of its own. */
static dt_result generate_text(dt_trainer *g, const char *prompt, dt_generation how, int64_t samples, int speaks)
{
    dt_result r = DT_OK;
    how.put = generate_print, how.user = &speaks;
    for (int64_t i = 0; i < samples && !r; i++, how.sampling.seed++) {
        double start = generate_seconds();
        int64_t tokens;
        if (speaks) printf("%s%s", i ? "----\n" : "", prompt);
        r = dt_generate(g, prompt, &how, &tokens);
        if (!r && speaks) printf("\n"), fflush(stdout);
        if (!r && speaks)
            fprintf(stderr, "%lld tokens, %.0f tokens/s\n", (long long)tokens,
                    (double)tokens / (generate_seconds() - start));
    }
    return r;
}

/* Loss, perplexity and bits per byte of a text in a file. */
static dt_result generate_loss(dt_trainer *g, const char *data, int speaks)
{
    int64_t tokens = 0, bytes = 0;
    float loss = 0;
    dt_result r = dt_evaluate(g, data, &loss, &tokens, &bytes);
    if (!r && speaks)
        printf("%lld tokens, %lld bytes: loss %.4f nats per token, perplexity %.2f, %.4f bits per byte\n",
               (long long)tokens, (long long)bytes, (double)loss, exp((double)loss),
               (double)loss * (double)tokens / ((double)bytes * log(2)));
    if (!r && speaks) fprintf(stderr, "left out: the first token, which has no context\n");
    return r;
}

#endif
