/* 78_elastic: a rank is lost. Can the job continue with the others?
 *
 * What you learn
 *     - A synchronous step needs every rank. So the launcher ends the others and starts again from the last
 *       checkpoint, with a new rank in the lost one's place (--max-restarts), or without it (--elastic MIN:MAX).
 *     - If a start makes no new checkpoint, the launcher waits longer before the next one, and after too many of them
 *       it gives up: what fails at once will fail again.
 *     - "With fewer ranks the batch is smaller, so the learning rate must be scaled" is true if the share of a rank is
 *       fixed. Here the recipe fixes the batch and its 4 shards; one of three ranks computes two of them. Steps
 *       take longer and have the same bits.
 *     - With tensor or pipeline parallelism, ranks count in groups: with tp 2, the loss of one of 4 leaves 2 that can
 *       work.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 78_elastic.c -o 78_elastic -lm -lpthread
 *     ./78_elastic                               (--min 3: at least so many ranks, 1 to 4)
 *
 * What it prints
 *     start  ranks  steps     done twice
 *         0      4   1 to 13           0
 *         1      3  11 to 23           3
 *         2      2  21 to 40           3
 *     sha256 4627fb720a05d5b07dfe21ebece598dc2cb4dad78e02803c7313aad053d53b20
 *     ok: after 3 starts the hash of a run without losses; 6 steps done twice, with a save every 5
 *
 * Predict first: with --elastic 3:4, what happens at the second loss?
 * Exercise: kill two ranks at once, after step 13. How many starts are there, and how many steps are done twice?
 *
 * Read on: 79_spot_bill.c for what interruptions cost, 81_stragglers.c for ranks that are slow. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECTED "4627fb720a05d5b07dfe21ebece598dc2cb4dad78e02803c7313aad053d53b20"
enum { STEPS = 40, EVERY = 5, STARTS = 3 };
static const int lost_rank[STARTS] = {1, 0, -1}, lost_after[STARTS] = {13, 23, 0};

/* The job: a usual trainer, but with ranks that die. Rank 0 reports each step. */
static int job(const char *text, const char *place)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    int start = getenv("DT_RESTARTS") ? atoi(getenv("DT_RESTARTS")) : 0;
    int rank = getenv("RANK") ? atoi(getenv("RANK")) : 0;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text, recipe.sequence = 32, recipe.steps = STEPS, recipe.validation = 0;
    recipe.batch = 8, recipe.data_shards = 4;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    l.checkpoint.place = place, l.checkpoint.interval = EVERY;
    e = dt_trainer_open(&t, &recipe, &l);
    while (!e && info.step < STEPS) {
        e = dt_trainer_step(t, &info);
        if (!e && dt_trainer_is_root(t))
            printf("start %d ranks %s step %lld\n", start, getenv("WORLD_SIZE"), (long long)info.step), fflush(stdout);
        if (!e && start < STARTS && rank == lost_rank[start] && info.step == lost_after[start]) raise(SIGKILL);
    }
    if (!e && dt_trainer_is_root(t)) printf("sha256 %s\n", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return e ? dt_fail("job") : 0;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX", place[64], line[400], hash[80] = "";
    int first[STARTS] = {0}, last[STARTS] = {0}, ranks[STARTS] = {0}, start, world, step, good, status, twice = 0;
    double min = 2; /* ranks */
    option list[] = {{"--min", 1, 4, &min}};
    FILE *out;
    if (dt_launch(&argc, &argv)) return dt_fail("78_elastic");
    if (argc == 4 && !strcmp(argv[1], "--job")) return job(argv[2], argv[3]);
    if (!options_read(argc, argv, list, 1)) return 2;
    if (prose_temporary(text, 50000)) return dt_fail("78_elastic");
    snprintf(place, sizeof place, "/tmp/dtrain_elastic.%ld", (long)getpid());
    snprintf(line, sizeof line, "DT_BACKOFF=0.1 '%s' --job %s %s --ranks 4 --max-restarts 4 --elastic %.0f:4", argv[0],
             text, place, min);
    fflush(stdout);
    out = popen(line, "r");
    while (out && fgets(line, sizeof line, out)) {
        if (sscanf(line, "sha256 %70s", hash) == 1) continue;
        if (sscanf(line, "start %d ranks %d step %d", &start, &world, &step) != 3 || start >= STARTS) continue;
        if (!first[start]) first[start] = step;
        last[start] = step, ranks[start] = world;
    }
    status = out ? pclose(out) : -1;
    remove(text);
    snprintf(line, sizeof line, "rm -rf '%s'", place);
    if (system(line)) return 1;
    printf("start  ranks  steps     done twice\n");
    for (start = 0, good = 1; start < STARTS && ranks[start]; start++) {
        int again = start ? last[start - 1] - first[start] + 1 : 0;
        printf("%5d  %5d  %2d to %-2d  %10d\n", start, ranks[start], first[start], last[start], again);
        good = good && ranks[start] == 4 - start && again >= 0 && again <= EVERY, twice += again;
    }
    if (good && start == 5 - (int)min && status)
        return printf("ok: %d starts, then fewer than %.0f ranks are left, and the job ends\n", start, min), 0;
    printf("sha256 %s\n", hash);
    if (status || strcmp(hash, EXPECTED) || !good || start < STARTS)
        return fprintf(stderr, "FAILED: a start or the hash is not what it should be\n"), 1;
    return printf("ok: after %d starts the hash of a run without losses; %d steps done twice, with a save every %d\n",
                  start, twice, EVERY), 0;
}
