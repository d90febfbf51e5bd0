/* test_overlap.c: the thread that communicates while its rank computes: the queue by itself, who is found to hold all up
 * when two threads of a rank wait, and training on ranks: one hash, one order of collectives, hidden and exposed time,
 * errors of either thread. (Step programs on symbols are in test_numerics.c, kills and freezes in test_layouts.t.)
 *
 *     cc -O2 -I.. test_overlap.c -lm -lpthread && ./a.out */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"

#ifdef DT_NO_THREADS
int main(void)
{
    tap_skip(1, "built with DT_NO_THREADS");
    return tap_done();
}
#else

static void nap_ms(double ms)
{
    double end = dt__now() + 1e-3 * ms;
    while (dt__now() < end) dt__nap();
}

/* ---- the queue ---- */

typedef struct job_list {
    int64_t seen[64], count, fail; /* fail: this job does */
    double ms;
} job_list;
static dt_result run_job(void *owner, int64_t job)
{
    job_list *l = (job_list *)owner;
    nap_ms(l->ms);
    l->seen[l->count++] = job;
    return job == l->fail ? dt__error(DT_E_DATA, "job %d is bad", (int)job) : DT_OK;
}

static void check_queue(void)
{
    dt__queue q;
    job_list l;
    double waited, hidden, start, elapsed;
    int64_t ticket[40];
    int good = 1;
    memset(&l, 0, sizeof l);
    l.fail = -1;
    if (dt__queue_open(&q, run_job, &l, 4, "test")) tap_bail("%s", dt_last_error());
    for (int i = 0; i < 40; i++) good &= dt__queue_next(&q) == i, ticket[i] = dt__queue_ask(&q);
    good &= !dt__queue_wait(&q, ticket[7]) && !dt__queue_wait(&q, 0) && !dt__queue_wait(&q, -5);
    good &= !dt__queue_wait(&q, ticket[39]) && l.count == 40 && !dt__queue_pending(&q, q.asked);
    for (int i = 0; i < 40; i++) good &= l.seen[i] == i && ticket[i] == i + 1;
    tap_ok(good, "jobs are done in order, 40 in a queue with room for 4");
    dt__queue_close(&q);

    l.count = 0, l.ms = 20.0;
    if (dt__queue_open(&q, run_job, &l, 4, "test")) tap_bail("%s", dt_last_error());
    start = dt__now();
    for (int i = 0; i < 3; i++) {
        int64_t t = dt__queue_next(&q) < 0 ? 0 : dt__queue_ask(&q);
        if (i != 1) nap_ms(i ? 40.0 : 8.0); /* part of the first is hidden, nothing of the second, the third as a whole */
        good &= !dt__queue_wait(&q, t);
    }
    dt__queue_times(&q, &waited, &hidden);
    elapsed = dt__now() - start;
    tap_ok(good && waited + hidden >= 0.06 && waited + hidden <= elapsed, "hidden %.0f ms and waited %.0f ms are the 60 ms of the jobs, or what the machine made of them, in %.0f ms",
           1e3 * hidden, 1e3 * waited, 1e3 * elapsed);
    tap_ok(hidden >= 0.027 && waited >= 0.019, "  and at least 28 of them were hidden, 20 waited for");
    nap_ms(5.0);
    dt__queue_times(&q, &start, &elapsed);
    tap_ok(start == waited && elapsed == hidden, "time without jobs counts for nothing");
    l.ms = 0.0, l.fail = 4, l.count = 0;
    for (int i = 0; i < 4; i++) (void)dt__queue_next(&q), ticket[i] = dt__queue_ask(&q);
    good = dt__queue_wait(&q, ticket[3]) == DT_E_DATA && !strcmp(dt_last_error(), "job 4 is bad") && l.count == 2;
    good &= dt__queue_wait(&q, 1) == DT_E_DATA && (dt__queue_next(&q), dt__queue_ask(&q)) == 8;
    dt__queue_close(&q);
    tap_ok(good && l.count == 2, "a job that fails ends the work; its code and sentence reach the user's thread");
    dt__queue_close(&q);
}

/* ---- who holds all up? ---- */

enum { RANKS = 4, FREE = 0, OTHER = DT__OTHER_STREAM };
/* What the two threads of ranks 0..3 wait for: FREE, OTHER, or 1 + rank. */
typedef struct standing {
    const char *what;
    int wait[RANKS][2];
    int line, peer, culprit; /* of who looks; DT__RANKS_MAX: a circle */
    int frozen;              /* rank whose stamps are old, -1: none */
} standing;
static const standing standings[] = {
    {"a rank that computes", {{0, OTHER}, {FREE, OTHER}, {0, OTHER}, {0, OTHER}}, 1, 1, 1, -1},
    {"a thread without work waits for its rank, which waits for 2", {{0, OTHER}, {3, OTHER}, {FREE, OTHER}, {0, OTHER}}, 1, 1, 2, -1},
    {"a rank waits for its thread, which waits for 3", {{0, OTHER}, {OTHER, 4}, {0, OTHER}, {FREE, FREE}}, 0, 1, 3, -1},
    {"there and back", {{0, OTHER}, {OTHER, 3}, {4, OTHER}, {FREE, OTHER}}, 0, 1, 3, -1},
    {"the rank computes while its thread waits", {{0, 2}, {FREE, 3}, {FREE, OTHER}, {0, OTHER}}, 0, 1, 1, -1},
    {"two threads of two ranks wait for each other", {{2, 2}, {OTHER, 1}, {0, OTHER}, {0, OTHER}}, 1, 1, DT__RANKS_MAX, -1},
    {"a circle through both threads", {{2, OTHER}, {OTHER, 1}, {0, OTHER}, {0, OTHER}}, 0, 1, DT__RANKS_MAX, -1},
    {"one that froze while it waited", {{0, OTHER}, {OTHER, 3}, {OTHER, 4}, {FREE, FREE}}, 0, 1, 2, 2},
};

/* One rule for both streams: who spins has a core of its own. */
static void check_spins(dt_comm *c)
{
    cpu_set_t old, one;
    size_t first = 0;
    int ranks = c->job->size, pinned;
    sched_getaffinity(0, sizeof old, &old);
    while (!CPU_ISSET(first, &old)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    c->job->size = 1;
    c->stream = 1, c->spins = dt__spins(c->job, DT__STREAMS);
    tap_ok((c->spins == DT__SPINS) == (CPU_COUNT(&old) > 1), "a second stream spins if there is a second core");
    sched_setaffinity(0, sizeof one, &one);
    c->stream = 1, c->spins = dt__spins(c->job, DT__STREAMS);
    pinned = c->spins;
    sched_setaffinity(0, sizeof old, &old);
    tap_ok(pinned < DT__SPINS, "streams that share one core do not spin");
    c->job->size = DT__RANKS_MAX;
    tap_ok(dt__spins(c->job, 1) < DT__SPINS && !((c->stream = 1, c->spins = dt__spins(c->job, DT__STREAMS)), c->spins == DT__SPINS),
           "nor do the ranks of a job that is larger than the machine");
    c->job->size = ranks;
}

static void check_culprits(void)
{
    int64_t bytes = dt__job_bytes(RANKS);
    dt__job *job = (dt__job *)calloc(1, (size_t)bytes);
    dt__launch_plan plan;
    dt_comm *c;
    if (!job) tap_bail("no memory");
    memset(&plan, 0, sizeof plan);
    plan.ranks = RANKS, plan.timeout = 10.0;
    dt__job_init(job, &plan);
    c = dt__comm_new(0, RANKS, NULL, job, -1);
    tap_ok(dt__job_rank(job, RANKS - 1)->stream[1].waiting == OTHER, "before there is a second thread it counts as one without work");
    for (int i = 0; i < (int)(sizeof standings / sizeof *standings); i++) {
        const standing *s = &standings[i];
        uint32_t life;
        int found;
        for (int r = 0; r < RANKS; r++)
            for (int k = 0; k < 2; k++) {
                dt__stream *l = &dt__job_rank(job, r)->stream[k];
                l->waiting = s->wait[r][k];
                l->stamp = dt__clock_ms() - (r == s->frozen ? 9000u : 0u);
            }
        c->stream = s->line;
        found = dt__find_culprit(c->job, c->stream, s->peer, &life);
        if (!tap_ok(found == s->culprit, "held up by: %s", s->what)) tap_note("found %d, not %d", found, s->culprit);
    }
    check_spins(c);
    dt__free(c);
    free(job);
}

/* ---- ranks: this program, started with: train KIND [options] [--ranks N] ---- */

static dt_result fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user, (void)split;
    for (int i = 0; i < 16; i++) {
        ((int32_t *)input)[i] = (int32_t)((sample * 31 + i * 7) % 100);
        ((int32_t *)target)[i] = (int32_t)((sample * 17 + i * 5 + 3) % 100);
    }
    return DT_OK;
}

/* The engine's jobs, watched. */
typedef struct hook {
    dt__engine *e;
    dt__job_fn real;
    double slow;         /* milliseconds more of each */
    int64_t took;        /* nanoseconds of all; those after the update may end in the next step */
    int64_t jobs, fail;  /* fail: after so many */
    uint64_t order;      /* hash of the instructions */
} hook;
static dt_result watched(void *owner, int64_t job)
{
    hook *h = (hook *)owner;
    const dt__engine *e = h->e;
    int32_t at = e->queued[job % e->queue.room];
    double start = dt__now();
    dt_result r = h->jobs++ == h->fail ? dt__error(DT_E_DATA, "the link is broken") : h->real(h->e, job);
    const dt_instr *i = at < 0 ? NULL : &e->p.program.list[at];
    if (!i || i->op != DT_TOTAL) /* a rank without part in a bucket */
        h->order = (h->order ^ (uint64_t)(i ? i->op * 10000 + (i->bucket + 1) * 100 + i->segment + 1 : at)) * 0x100000001b3u;
    nap_ms(h->slow);
    __atomic_fetch_add(&h->took, (int64_t)((dt__now() - start) * 1e9), __ATOMIC_RELAXED);
    return r;
}

static __thread int loads; /* of this rank, which may be a thread */
static void breaking_load(void *owner, int64_t shard, int64_t micro)
{
    dt_trainer *t = (dt_trainer *)owner;
    dt__trainer_load(owner, shard, micro);
    if (++loads == 2 && dt_comm_rank(t->comm) == 1) t->e.exchanged = dt__error(DT_E_DATA, "the rank is broken");
}

static dt_result steps(dt_trainer *t, hook *h, const char *kind)
{
    dt_step_info info = dt_step_info_zero();
    const float *value;
    int64_t count;
    float loss;
    dt_result r = DT_OK;
    for (int s = 0; s < 3 && !r; s++) {
        int64_t took = __atomic_load_n(&h->took, __ATOMIC_RELAXED);
        if (!strcmp(kind, "rank") && s == 1) {
            t->e.inv_valid = 0.01f;
            r = dt__engine_step(&t->e, breaking_load, t);
            break;
        }
        if (!strcmp(kind, "between") && !(r = dt_trainer_evaluate(t, 0, &loss))) {
            value = dt_trainer_parameter(t, "block0.norm1.gain", &count);
            r = dt_trainer_step(t, &info);
            if (!r && value != dt_trainer_parameter(t, "block0.norm1.gain", &count)) r = DT_E_SHAPE;
        } else if (!r) r = dt_trainer_step(t, &info);
        if (!r) printf("rank %d step %d comm %.9f exposed %.9f seconds %.9f jobs %.9f sent %lld\n", dt_comm_rank(t->comm), s, info.comm_seconds,
                       info.exposed_seconds, info.seconds, 1e-9 * (double)(__atomic_load_n(&h->took, __ATOMIC_RELAXED) - took), (long long)info.sent_bytes);
    }
    return r;
}

static int train(int argc, char **argv)
{
    const char *kind = argv[2];
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_source source;
    dt_trainer *t = NULL;
    hook h;
    dt_result r;
    memset(&source, 0, sizeof source);
    memset(&h, 0, sizeof h);
    h.fail = -1;
    recipe.model = dt_model_gpt2("nano");
    recipe.model.vocabulary = 100, recipe.model.layers = 3;
    recipe.source = &source;
    recipe.batch = 16, recipe.micro_batch = 8, recipe.steps = 3, recipe.accumulation = DT_EACH;
    layout.threads = 1, layout.output.quiet = 1, layout.output.sample_length = 0, layout.output.eval_every = 0, layout.bucket = 20000;
    source.samples[DT_TRAIN] = 64, source.samples[DT_VALIDATION] = 8;
    source.inputs = source.targets = 16, source.input_type = source.target_type = DT_I32, source.fetch = fetch;
    if (dt_launch(&argc, &argv) || dt_args(&argc, &argv, &recipe, &layout)) return dt_fail("start");
    if ((r = dt_trainer_open(&t, &recipe, &layout)) != DT_OK) return dt_fail("open");
    if (t->e.queue.running) { /* nothing was asked for yet */
        h.e = &t->e, h.real = t->e.queue.run;
        if (!strcmp(kind, "slow")) h.slow = 4.0;
        if (!strcmp(kind, "job") && dt_comm_rank(t->comm) == 1) h.fail = 5;
        t->e.queue.run = watched, t->e.queue.owner = &h;
    }
    r = steps(t, &h, kind);
    if (!r) {
        const char *hash = dt_trainer_hash(t);
        r = dt__engine_wait(&t->e);
        printf("rank %d order %llx hash %s\n", dt_comm_rank(t->comm), (unsigned long long)h.order, hash);
    } else printf("rank %d: %s: %s\n", dt_comm_rank(t->comm), dt_result_name(r), dt_last_error());
    fflush(stdout);
    dt_trainer_close(&t);
    return 0;
}

static const char *self;
static char text[100000];

/* Runs it on ranks; returns the seconds that it took. */
static double run(const char *words)
{
    char command[1000];
    double start = dt__now();
    size_t used;
    FILE *p;
    snprintf(command, sizeof command, "timeout 100 '%s' train %s 2>&1", self, words);
    if (!(p = popen(command, "r"))) tap_bail("cannot run %s", command);
    used = fread(text, 1, sizeof text - 1, p);
    text[used] = 0;
    pclose(p);
    return dt__now() - start;
}

/* What stands behind "rank R ... WORD " the n-th time. */
static const char *said(int rank, const char *word, int n)
{
    static char value[200];
    char begin[32], key[32];
    const char *at = text;
    snprintf(begin, sizeof begin, "rank %d", rank);
    snprintf(key, sizeof key, " %s ", word);
    for (; (at = strstr(at, begin)) != NULL; at++) {
        const char *found = strstr(at, key), *end = strchr(at, '\n');
        if (!found || (end && found > end) || n-- > 0) continue;
        snprintf(value, sizeof value, "%.*s", (int)strcspn(found + strlen(key), " \n"), found + strlen(key));
        return value;
    }
    return "";
}
static double number(int rank, const char *word, int n) { return atof(said(rank, word, n)); }

static const char *const layouts[] = {
    "--ranks 2 --data-shards 2", "--ranks 3 --data-shards 8", "--ranks 3 --data-shards 8 --zero 3", "--ranks 4 --data-shards 4 --zero 3 --zero-group 2",
    "--ranks 4 --pp 2 --data-shards 2 --zero 2", "--ranks 2 --data-shards 4 --zero 1", "--ranks 4 --tp 2 --tensor-shards 2 --data-shards 2 --zero 3"};
enum { LAYOUTS = (int)(sizeof layouts / sizeof *layouts) };

/* Groups that communicate: data-parallel ranks of one place in pipeline and tensor group (order DPT). */
static int same_order(const char *layout, int ranks)
{
    int inside = strstr(layout, "--pp 2") || strstr(layout, "--tp 2") ? 2 : 1, same = 1;
    char order[200];
    for (int r = inside; r < ranks; r++) {
        snprintf(order, sizeof order, "%s", said(r, "order", 0));
        same &= order[0] && !strcmp(order, said(r % inside, "order", 0));
    }
    return same;
}

static void check_layout(const char *layout, const char *launch)
{
    int ranks = atoi(strstr(layout, "--ranks ") + 8), fine = 1, off = 1, busy = 1;
    char words[400], want[200], sent[3][32];
    snprintf(words, sizeof words, "plain --overlap off --launch %s %s", launch, layout);
    run(words);
    snprintf(want, sizeof want, "%s", said(0, "hash", 0));
    for (int s = 0; s < 3; s++) {
        snprintf(sent[s], sizeof sent[s], "%s", said(0, "sent", s));
        for (int r = 0; r < ranks; r++) off &= number(r, "comm", s) > 0.0 && number(r, "comm", s) == number(r, "exposed", s);
    }
    tap_ok(off && strlen(want) == 64, "%s: without overlap all communication is exposed", words);
    for (int kind = 0; kind < 2; kind++) {
        snprintf(words, sizeof words, "%s --overlap on --launch %s %s", kind ? "between" : "plain", launch, layout);
        run(words);
        for (int r = 0; r < ranks; r++)
            for (int s = 0; s < 3 && !kind; s++) {
                double comm = number(r, "comm", s), exposed = number(r, "exposed", s), seconds = number(r, "seconds", s);
                int both = strstr(layout, "--pp") || strstr(layout, "--tp"); /* the rank's own thread communicates, too */
                fine &= exposed >= 0.0 && comm >= exposed && (1 + both) * seconds >= comm;
                /* with ZeRO 1 and 2 gathers go on in the next step; validation follows the last */
                busy &= strstr(layout, "--zero 1") || strstr(layout, "--zero 2") || s == 2 || comm >= number(r, "jobs", s);
            }
        if (!tap_ok(!strcmp(want, said(0, "hash", 0)) && same_order(layout, ranks), "%s: the same hash; one order of collectives on the ranks of a group", words))
            tap_note("%s", text);
        for (int s = 0; s < 3 && !kind; s++) fine &= !strcmp(sent[s], said(0, "sent", s));
    }
    tap_ok(fine, "  0 <= exposed <= communication, within the step; the bytes of every step are the same");
    tap_ok(busy, "  communication takes no less than the other thread's jobs");
}

/* Every collective takes 4 ms more, in which nobody computes for it. */
static void check_hidden(void)
{
    double comm = 0.0, exposed = 0.0, jobs = 0.0;
    run("slow --overlap on --ranks 2 --data-shards 2");
    for (int s = 0; s < 2; s++)
        for (int r = 0; r < 2; r++) comm += number(r, "comm", s), exposed += number(r, "exposed", s), jobs += number(r, "jobs", s);
    if (!tap_ok(comm >= jobs && jobs > 0.1 && exposed < comm && exposed > 0.0, "on a slow link a part is hidden: %.0f ms of %.0f ms are exposed", 1e3 * exposed, 1e3 * comm)) tap_note("%s", text);
}

static void check_errors(const char *launch)
{
    static const struct { const char *kind, *layout, *own; } cases[] = {
        {"job", "--data-shards 2", "DT_E_DATA: the link is broken"}, {"rank", "--data-shards 2", "DT_E_DATA: the rank is broken"},
        {"job", "--data-shards 2 --zero 3", "DT_E_DATA: the link is broken"}, {"rank", "--data-shards 8 --zero 1", "DT_E_DATA: the rank is broken"}};
    for (int i = 0; i < 4; i++) {
        char words[300], want[100];
        double seconds;
        snprintf(words, sizeof words, "%s --overlap on --ranks 2 --timeout 30 --launch %s %s", cases[i].kind, launch, cases[i].layout);
        snprintf(want, sizeof want, "rank 1: %s\n", cases[i].own);
        seconds = run(words);
        if (!tap_ok(strstr(text, want) && strstr(text, "rank 0: DT_E_PEER: rank 1 left") && seconds < 20.0, "%s: the step gives the error, the peer learns who left, nobody waits", words))
            tap_note("%.1f s: %s", seconds, text);
    }
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "train")) return train(argc, argv);
    self = argv[0];
    check_queue();
    check_culprits();
    for (int i = 0; i < LAYOUTS; i++) check_layout(layouts[i], i % 2 ? "threads" : "processes");
    check_hidden();
    check_errors("processes");
    check_errors("threads");
    return tap_done();
}
#endif
