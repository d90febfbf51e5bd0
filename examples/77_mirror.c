/* 77_mirror: a machine is lost, and its disk with it. Where is the checkpoint?
 *
 * What you learn
 *     - Clouds synchronise a local directory with a prefix of a bucket, in the background, and fill the directory from
 *       the bucket when a new machine starts. Three things surprise.
 *     - All machines of a job share the prefix. If each writes a file of the same name, the last one wins. Names must
 *       contain the rank (here: shard-003), or one rank writes.
 *     - A synchronisation may mirror deletions: what is deleted locally is then deleted in the bucket. Here only --keep
 *       removes checkpoints, and it counts those of the bucket by themselves.
 *     - What is put into the bucket after the start is not fetched: the bucket is read once.
 *     - If files are synchronised while they are written, the bucket gets half a checkpoint. Here a copy, too, gets its
 *       name when it is complete.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 77_mirror.c -o 77_mirror -lm -lpthread
 *     ./77_mirror                                (--cut: the machine is lost while step 30 is copied)
 *
 * What it prints
 *     1. One prefix for all machines
 *       four ranks wrote checkpoint.pt; files, and what is in them:  1, rank 3
 *       dtrain: complete checkpoints in the bucket                   step-000000010 step-000000020
 *     2. Deleted here, deleted there
 *       a synchronisation that mirrors deletions leaves              step-000000010
 *       dtrain: what was deleted here is still there                 step-000000010 step-000000020
 *     3. Put into the bucket after the start
 *     The machine is lost, with its disk
 *       restored from the bucket:                                    resumes with step 31
 *     sha256 4627fb720a05d5b07dfe21ebece598dc2cb4dad78e02803c7313aad053d53b20
 *     ok: 2 complete checkpoints in the bucket when 1 was left here; restored at step 30, the run has the same hash
 *
 * Predict first: the mirror keeps one checkpoint, and the machine is lost while a newer one is copied. With which step
 *     does training resume?
 * Exercise: let a second job, with another seed and an empty directory, share the prefix. What does its start say?
 *
 * Read on: 78_elastic.c for ranks that are lost; a real bucket: --mirror 's3://bucket/run aws s3 sync "$DT_FROM"
 *     "$DT_TO" --exclude "*.tmp*"'. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdarg.h>
#include <unistd.h>

#define EXPECTED "4627fb720a05d5b07dfe21ebece598dc2cb4dad78e02803c7313aad053d53b20"
enum { STEPS = 40, EVERY = 10 };

/* Runs a shell's line; its first line of output, which stays until the next call. */
static const char *shell(const char *format, ...)
{
    static char text[256];
    char line[600];
    va_list args;
    FILE *out;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    text[0] = 0;
    out = popen(line, "r");
    if (out && !fgets(text, sizeof text, out)) text[0] = 0;
    if (out) pclose(out);
    text[strcspn(text, "\n")] = 0;
    return text;
}

/* Trains from the newest checkpoint until `until`. hash: at the end, or ""; *first: the first step that was done. */
static dt_result train(const char *text, const char *here, const char *there, int64_t until, int64_t *first,
                       char hash[65])
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text, recipe.sequence = 32, recipe.steps = STEPS, recipe.validation = 0;
    recipe.batch = 8, recipe.data_shards = 4;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    l.checkpoint.place = here, l.checkpoint.interval = EVERY;
    l.checkpoint.mirror = there;
    e = dt_trainer_open(&t, &recipe, &l);
    for (*first = 0; !e && info.step < until;) {
        e = dt_trainer_step(t, &info);
        if (!*first) *first = info.step;
    }
    hash[0] = 0;
    if (!e && info.step == STEPS) memcpy(hash, dt_trainer_hash(t), 65);
    dt_trainer_close(&t); /* waits for the copy */
    return e;
}

/* Does the directory hold the checkpoint of this step? names: all that it holds. */
static int holds(const char *place, const char *step, char *names, size_t size)
{
    snprintf(names, size, "%s", shell("ls %s | grep step | tr '\\n' ' '", place));
    return strstr(names, step) != NULL;
}

static int check(int good, const char *what, const char *seen)
{
    printf("  %-60s %s%s\n", what, seen, good ? "" : "   <- NOT AS IT SHOULD BE");
    return good;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX", base[64], here[80], there[80], plain[80], seen[80], hash[65];
    int good, kept, saved = 0, cut;
    int64_t first = 0;
    dt_result e;
    if (dt_launch(&argc, &argv)) return dt_fail("77_mirror");
    cut = argc == 2 && !strcmp(argv[1], "--cut");
    if (argc > 1 + cut) return fprintf(stderr, "77_mirror: the option is --cut; it runs on one rank\n"), 2;
    snprintf(base, sizeof base, "/tmp/dtrain_mirror.%ld", (long)getpid());
    snprintf(here, sizeof here, "%s/here", base), snprintf(there, sizeof there, "%s/bucket", base);
    snprintf(plain, sizeof plain, "%s/plain", base);
    printf("1. One prefix for all machines\n");
    shell("mkdir -p %s/naive; for r in 0 1 2 3; do echo rank $r > %s/naive/checkpoint.pt; done", base, base);
    check(1, "four ranks wrote checkpoint.pt; files, and what is in them:",
          shell("ls %s/naive | wc -l | tr -d ' \\n'; echo ', '$(cat %s/naive/checkpoint.pt)", base, base));
    e = prose_temporary(text, 50000);
    if (!e) e = train(text, here, there, 25, &first, hash);
    good = !e && check(holds(there, "020", seen, sizeof seen), "dtrain: complete checkpoints in the bucket", seen);
    printf("2. Deleted here, deleted there\n");
    shell("cp -r %s %s; rm -rf %s/step-*20", here, plain, here);
    shell("cd %s && for f in *; do [ -e %s/$f ] || rm -rf $f; done", plain, here); /* as sync --delete does */
    kept = holds(plain, "020", seen, sizeof seen);
    good = check(!kept, "a synchronisation that mirrors deletions leaves", seen) && good;
    kept = holds(there, "020", seen, sizeof seen);
    good = check(kept, "dtrain: what was deleted here is still there", seen) && good;
    for (const char *at = seen; (at = strstr(at, "step")) != NULL; at++) saved++;
    printf("3. Put into the bucket after the start\n");
    shell("mkdir %s/step-000000033", there); /* somebody's */
    if (!e) e = train(text, here, there, 35, &first, hash);
    snprintf(seen, sizeof seen, "began with step %lld", (long long)first);
    good = !e && check(first == 11, "dtrain looks there only when it has nothing here", seen) && good;
    shell("rm -rf %s/step-000000033", there);
    printf("The machine is lost, with its disk\n");
    shell("rm -rf %s", here);
    if (cut) shell("mv %s/step-000000030 %s/step-000000030.tmp", there, there); /* the name of an unfinished copy */
    if (!e) e = train(text, here, there, STEPS, &first, hash);
    snprintf(seen, sizeof seen, "resumes with step %lld", (long long)first);
    good = !e && check(first == (cut ? 21 : 31), "restored from the bucket:", seen) && good;
    remove(text);
    shell("rm -rf %s", base);
    if (e) return dt_fail("77_mirror");
    printf("sha256 %s\n", hash);
    if (!good || strcmp(hash, EXPECTED))
        return fprintf(stderr, "FAILED: a directory or the hash is not what it should be\n"), 1;
    return printf("ok: %d complete checkpoints in the bucket when 1 was left here; restored at step %lld, the run has "
                  "the same hash\n", saved, (long long)first - 1), 0;
}
