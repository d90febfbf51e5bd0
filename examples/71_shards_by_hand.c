/* 71_shards_by_hand: how do many ranks save one state so that any number of ranks can resume from it?
 *
 * What you learn
 *     - Each rank writes what it owns into a file that says which numbers these are. No rank has the whole state.
 *     - A checkpoint must be complete or absent. So the files go into a directory with a temporary name. When all of
 *       them are on the disk (fsync), rank 0 lists them and renames the directory, and a rename happens at once or not
 *       at all. A job that dies while it saves leaves the previous checkpoint.
 *     - To resume, a rank reads from each file the part that overlaps with what it owns now: the files of 4 ranks serve
 *       2 ranks, or 1. "A sharded checkpoint needs the ranks that wrote it" is true of programs that load by rank.
 *     - A file that is shorter than its first line says is refused before one of its numbers is used.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 71_shards_by_hand.c -o 71_shards_by_hand -lm -lpthread
 *     ./71_shards_by_hand --ranks 4              (1, 2 or 4; --after-rename: dies later)
 *
 * What it prints
 *     saved step 10 on 4 ranks; died while saving step 15, before the rename
 *     found step 10, 4 of 4 ranks: same bits at the end
 *     found step 10, 2 of 4 ranks: same bits at the end
 *     found step 10, 1 of 4 ranks: same bits at the end
 *     a file that was cut: refused
 *     the trainer, from ZeRO 3 to plain in the middle: one hash
 *     ok: 3 resumed runs have the bits of one never stopped; newest complete step: 10
 *
 * Predict first: which step is found if the job dies after the rename, before rank 0 says that it is done?
 * Exercise: save at steps 4, 7 and 10, and keep the two newest. There must be two complete ones at every moment.
 *
 * Read on: 70_checkpoints.c for the same in the trainer, in every layout; 72_checkpoint_tool.c to look inside. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "layers.h"
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LAST = STEPS, LIVES = 0, BEFORE_RENAME, AFTER_RENAME };

/* What a rank owns: numbers [from, from + count) of the weights and of Adam's m and v. */
typedef struct share {
    int64_t from, count;
    float w[WEIGHTS], m[WEIGHTS], v[WEIGHTS];
} share;

static void own(share *s, int rank, int ranks)
{
    memset(s, 0, sizeof *s);
    s->count = WEIGHTS / ranks, s->from = rank * s->count;
}

/* Adam's step number `step` towards w_i = sin(i), one number at a time: so a rank needs nobody. */
static void train_step(share *s, int step)
{
    for (int64_t i = 0; i < s->count; i++) {
        float g = s->w[i] - sinf((float)(s->from + i)), *m = &s->m[i], *v = &s->v[i];
        *m = 0.9f * *m + 0.1f * g, *v = 0.95f * *v + 0.05f * g * g;
        s->w[i] -= 0.1f * (*m / (1 - powf(0.9f, (float)step))) / (sqrtf(*v / (1 - powf(0.95f, (float)step))) + 1e-8f);
    }
}

/* Writes which numbers follow, then the three arrays. 1: all of it is on the disk. */
static int write_share(const char *folder, int rank, const share *s)
{
    char path[200];
    const float *arrays[3] = {s->w, s->m, s->v};
    FILE *f;
    int fine = 1;
    snprintf(path, sizeof path, "%s/%d", folder, rank);
    if (!(f = fopen(path, "wb"))) return 0;
    fine = fwrite(&s->from, 8, 1, f) == 1 && fwrite(&s->count, 8, 1, f) == 1;
    for (int a = 0; a < 3 && fine; a++) fine = fwrite(arrays[a], 4, (size_t)s->count, f) == (size_t)s->count;
    fine = !fflush(f) && !fsync(fileno(f)) && fine;
    return !fclose(f) && fine;
}

/* dies: when the machine goes away; all files are written by then. */
static dt_result save(dt_comm *c, const char *place, int step, const share *s, int dies)
{
    char draft[160], whole[160], list[200];
    int rank = dt_comm_rank(c);
    float fine;
    FILE *f;
    dt_result r;
    snprintf(draft, sizeof draft, "%s/%d.tmp", place, step), snprintf(whole, sizeof whole, "%s/%d", place, step);
    snprintf(list, sizeof list, "%s/list", draft);
    if (rank == 0) mkdir(draft, 0777);
    r = dt_barrier(c); /* the directory is there */
    fine = !r && write_share(draft, rank, s) ? 1.0f : 0.0f;
    if (!r) r = dt_all_reduce(c, &fine, 1, DT_MIN); /* all files are there */
    if (r || fine == 0.0f || dies == BEFORE_RENAME) return r ? r : fine == 0.0f ? DT_E_FILE : DT_OK;
    if (rank == 0) {
        fine = (f = fopen(list, "w")) && fprintf(f, "%d\n", dt_comm_size(c)) > 0 && !fflush(f) && !fsync(fileno(f));
        if (f) fclose(f);
        if (fine == 0.0f || rename(draft, whole)) fine = 0.0f;
    }
    if (!dies) r = dt_broadcast(c, &fine, 1, 0);
    return r ? r : fine == 0.0f ? DT_E_FILE : DT_OK;
}

/* The numbers of this rank, from the files of any number of ranks. 0: a file is missing or has another size. */
static int load(const char *place, int step, share *s)
{
    char path[200];
    int files = 0, fine;
    FILE *f;
    snprintf(path, sizeof path, "%s/%d/list", place, step);
    fine = (f = fopen(path, "r")) && fscanf(f, "%d", &files) == 1;
    if (f) fclose(f);
    for (int q = 0; q < files && fine; q++) {
        float *arrays[3] = {s->w, s->m, s->v};
        int64_t at[2], begin, end;
        struct stat is;
        snprintf(path, sizeof path, "%s/%d/%d", place, step, q);
        fine = (f = fopen(path, "rb")) && fread(at, 8, 2, f) == 2 && !fstat(fileno(f), &is) &&
               is.st_size == 16 + 12 * at[1];
        begin = fine && at[0] > s->from ? at[0] : s->from;
        end = fine && at[0] + at[1] < s->from + s->count ? at[0] + at[1] : s->from + s->count;
        for (int a = 0; a < 3 && fine && begin < end; a++)
            fine = !fseek(f, (long)(16 + 4 * (a * at[1] + begin - at[0])), SEEK_SET) &&
                   fread(arrays[a] + begin - s->from, 4, (size_t)(end - begin), f) == (size_t)(end - begin);
        if (f) fclose(f);
    }
    return fine;
}

/* The newest complete step; 0: none. */
static int newest(const char *place)
{
    char path[200];
    int step = LAST;
    while (step && (snprintf(path, sizeof path, "%s/%d", place, step), access(path, F_OK))) step--;
    return step;
}

/* The trainer: 20 steps with ZeRO 3, checkpoints at 10 and 20; then from step 10 with whole states. */
static dt_result trainers(const char *place, int n, char hash[2][65])
{
    dt_layout l = dt_layout_default();
    float loss;
    dt_result r;
    l.checkpoint.place = place, l.checkpoint.interval = 10, l.zero = n > 1 ? 3 : 0;
    r = layers_train(&l, NULL, &loss, hash[0]);
    l.checkpoint.step = 10, l.zero = 0;
    return r ? r : layers_train(&l, NULL, &loss, hash[1]);
}

int main(int argc, char **argv)
{
    static share s, whole, again;
    static float end[WEIGHTS];
    char place[64], path[160], hash[2][65] = {"", ""};
    float id = (float)getpid();
    int rank, n, found = 0, resumed = 0, good = 1, dies = BEFORE_RENAME;
    dt_comm *c = NULL, *part = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("71_shards_by_hand");
    rank = dt_comm_rank(c), n = dt_comm_size(c);
    if (argc == 2 && !strcmp(argv[1], "--after-rename")) dies = AFTER_RENAME;
    if (argc > dies || 4 % n) return fprintf(stderr, "71_shards_by_hand: --ranks 1, 2, 4; --after-rename\n"), 2;
    r = dt_broadcast(c, &id, 1, 0); /* one place for all */
    snprintf(place, sizeof place, "/tmp/dtrain_shards.%.0f", (double)id);
    if (rank == 0) mkdir(place, 0777);
    own(&whole, 0, 1), own(&s, rank, n);
    for (int step = 1; step <= LAST; step++) train_step(&whole, step); /* never stopped */
    for (int step = 1; step <= 15 && !r; step++) {
        train_step(&s, step);
        if (step == 10 || step == 15) r = save(c, place, step, &s, step == 15 ? dies : LIVES);
    }
    if (!r && !rank)
        printf("saved step 10 on %d rank%s; died while saving step 15, %s the rename\n", n, n > 1 ? "s" : "",
               dies == BEFORE_RENAME ? "before" : "after");
    for (int ranks = n; ranks > 0 && !r; ranks /= 2) {
        r = dt_comm_split(c, rank >= ranks, &part);
        if (!r && rank >= ranks) dt_comm_close(&part);
        if (r || rank >= ranks) continue;
        own(&again, rank, ranks);
        found = newest(place);
        good = load(place, found, &again) && found == (dies == BEFORE_RENAME ? 10 : 15) && good;
        for (int step = found + 1; step <= LAST; step++) train_step(&again, step);
        r = dt_all_gather(part, again.w, end, again.count);
        good = good && !memcmp(end, whole.w, sizeof end), resumed++;
        if (!rank)
            printf("found step %d, %d of %d ranks: %s\n", found, ranks, n, good ? "same bits at the end" : "OTHER");
        dt_comm_close(&part);
    }
    if (!r) r = dt_barrier(c);
    snprintf(path, sizeof path, "%s/10/%d", place, n - 1);
    if (!rank) good = !truncate(path, 1000) && !load(place, 10, &again) && good;
    if (!rank) printf("a file that was cut: %s\n", good ? "refused" : "TAKEN");
    snprintf(path, sizeof path, "%s/trainer", place);
    if (!r) r = trainers(path, n, hash);
    good = good && !strcmp(hash[0], hash[1]);
    if (!rank) printf("the trainer, from ZeRO 3 to plain in the middle: %s\n", good ? "one hash" : "OTHER BITS");
    snprintf(path, sizeof path, "rm -r '%s'", place);
    if (!rank && system(path)) fprintf(stderr, "%s stays\n", place);
    dt_comm_close(&c);
    if (r) return dt_fail("71_shards_by_hand");
    if (!good) return fprintf(stderr, "FAILED: a checkpoint was lost, or bits differ\n"), 1;
    if (!rank)
        printf("ok: %d resumed runs have the bits of one never stopped; newest complete step: %d\n", resumed, found);
    return 0;
}
