/* test_doctor.c: one fault per branch of examples/doctor.h, and none: which branch is the main finding, the same on all ranks,
 * without a bit changed. Faults are strong, times ten where there is a choice, and no seconds are compared. What cannot
 * be had on one machine (an adapter, containers, many stages) is put into the numbers that the findings follow from.
 *
 *     cc -O2 -I.. test_doctor.c -lm -lpthread && ./a.out */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/doctor.h"
#include "tap.h"

/* ---- the lab: what two ranks do ---- */

#if defined(__has_feature) && !defined(__SANITIZE_ADDRESS__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* work is some fifty times slower */
enum { BATCH = 8, LENGTH = 16, EVEN_LENGTH = 8, LATE = 10 };
#else
enum { BATCH = 64, LENGTH = 64, EVEN_LENGTH = 16, LATE = 10 };
#endif

typedef struct fault {
    const char *name, *rate, *nodes; /* of the environment; NULL: none */
    int64_t batch, inputs, tp;
    int one_core, portable; /* both ranks on core 0; rank 1 without vectors */
    double nap;             /* seconds per sample */
    int64_t bucket;         /* 0: the default, and overlap as it comes */
    double weights;         /* of the model, afterwards */
} fault;

static dt_result fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    const fault *f = (const fault *)user;
    double end = dt__now() + f->nap;
    (void)split;
    for (int i = 0; i < f->inputs; i++) {
        ((int32_t *)input)[i] = (int32_t)((sample * 31 + i * 7) % 100);
        ((int32_t *)target)[i] = (int32_t)((sample * 31 + i * 7 + 7) % 100);
    }
    while (dt__now() < end) dt__nap();
    return DT_OK;
}

static void environment(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void recipe_of(fault *f, dt_source *source, dt_recipe *recipe, dt_layout *layout)
{
    memset(source, 0, sizeof *source);
    source->user = f, source->fetch = fetch, source->samples[DT_TRAIN] = 640;
    source->inputs = source->targets = f->inputs, source->input_type = source->target_type = DT_I32;
    *recipe = dt_recipe_default();
    *layout = dt_layout_default();
    recipe->model = dt_model_gpt2("nano");
    recipe->model.vocabulary = 100, recipe->source = source, recipe->steps = 6;
    recipe->batch = f->batch, recipe->data_shards = 2, recipe->tensor_shards = 2;
    layout->threads = 1, layout->output.quiet = 1, layout->output.sample_length = 0, layout->tp = f->tp;
    if (f->bucket) layout->bucket = f->bucket, layout->overlap = DT_OVERLAP_OFF;
}

/* Trains with a fault; asks the doctor after the fifth step when d is there. Says what it found, and its sum. */
static dt_result lab(fault *f, dt_diagnosis *d, int rank)
{
    char text[DT_DIAGNOSIS_TEXT];
    dt_source source;
    dt_recipe recipe;
    dt_layout layout;
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_probe doctor;
    dt_result r;
    recipe_of(f, &source, &recipe, &layout);
    if (d) dt_doctor_attach(&layout, &doctor);
    environment("DT_LINK_RATE", f->rate);
    environment("DT_NODES", f->nodes);
    environment("DT_ISA", f->portable && rank ? "portable" : NULL);
    r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) f->weights = (double)dt_trainer_weights(t);
    while (!r && info.step < 5) r = dt_trainer_step(t, &info);
    if (!r && d) r = dt_doctor(&doctor, t, d, text);
    if (!r) r = dt_trainer_step(t, &info);
    if (!r) {
        uint64_t sum = 0xcbf29ce484222325u;
        for (size_t i = 0; d && i < sizeof *d; i++) sum = (sum ^ ((const unsigned char *)d)[i]) * 0x100000001b3u;
        printf("rank %d %s first %s sum %llx hash %s\n", rank, f->name, d ? doctor_branches[1 + d->first] : "-",
               (unsigned long long)sum, dt_trainer_hash(t));
    }
    if (!r && d && !rank) {
        for (char *line = strtok(text, "\n"); line && !r; line = strtok(NULL, "\n")) printf("%s: %s\n", f->name, line);
    }
    fflush(stdout);
    dt_trainer_close(&t);
    return r;
}

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < 1024; i++)
        if (core < 0 || i == core) CPU_SET((size_t)i, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

static dt_result refusals(int rank)
{
    fault f;
    dt_source source;
    dt_recipe recipe;
    dt_layout layout;
    dt_diagnosis d;
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_probe doctor;
    dt_result r;
    memset(&f, 0, sizeof f);
    f.batch = 2, f.inputs = 8, f.tp = 1;
    recipe_of(&f, &source, &recipe, &layout);
    dt_doctor_attach(&layout, &doctor);
    recipe.steps = 3, doctor.option[0].value = "1";
    if (dt_trainer_open(&t, &recipe, &layout) == DT_E_USAGE) printf("rank %d refused %s\n", rank, dt_last_error());
    doctor.option[0].value = NULL;
    r = dt_trainer_open(&t, &recipe, &layout);
    while (!r && info.step < 3) r = dt_trainer_step(t, &info);
    if (!r && dt_doctor(&doctor, t, &d, NULL) == DT_E_USAGE) printf("rank %d refused %s\n", rank, dt_last_error());
    dt_trainer_close(&t);
    return r;
}

/* An exchange of 0.65 times the work, which backward could hide, and the bytes of a bucket that is too small. How much
 * work there is in a second, the run before tells; while others use the machine that may be wrong for this one. */
static dt_result exposed(int rank)
{
    fault even = {"even", NULL, "2", BATCH, EVEN_LENGTH, 1, 0, 0, 0.0, 0, 0.0}, overlap = even;
    dt_diagnosis d;
    char rate[32];
    dt_result r = DT_OK;
    overlap.name = "overlap", overlap.rate = rate, overlap.bucket = 1;
    for (int tries = 0; tries < 4 && !r; tries++) {
        even.name = tries ? "again" : "even";
        r = lab(&even, &d, rank);
        snprintf(rate, sizeof rate, "%.0f", 4.0 * even.weights / (0.65 * d.work));
        if (!r) r = lab(&overlap, &d, rank);
        if (d.first == DT_BRANCH_OVERLAP) break;
    }
    return r;
}

/* Samples that are late by many times the work need to know how fast this machine is, too. */
static dt_result all_labs(int rank)
{
    fault healthy = {"healthy", NULL, NULL, BATCH, LENGTH, 1, 0, 0, 0.0, 0, 0.0}, plain = healthy, transport = healthy,
          data = healthy;
    fault batch = {"batch", "2e7", "2", 2, 8, 1, 0, 0, 0.0, 0, 0.0}, tensor = healthy, core = healthy;
    fault slow = {"slow", NULL, NULL, 4, 8, 1, 0, 1, 0.0, 0, 0.0};
    dt_diagnosis d, other;
    dt_result r = lab(&healthy, &d, rank);
    plain.name = "plain";
    transport.name = "transport", transport.rate = "1e6";
    data.name = "data", data.nap = LATE * d.work / (BATCH / 2); /* a rank has half of the samples */
    tensor.name = "tensor", tensor.rate = "1e8", tensor.nodes = "2", tensor.tp = 2;
    core.name = "core", core.one_core = 1;
    if (!r) r = lab(&plain, NULL, rank);
    if (!r) r = lab(&transport, &other, rank);
    if (!r) r = lab(&data, &other, rank);
    if (!r) r = lab(&batch, &other, rank);
    if (!r) r = exposed(rank);
    if (!r) r = lab(&tensor, &other, rank);
    if (!r) r = lab(&slow, &other, rank);
    pin(0);
    if (!r) r = lab(&core, &other, rank);
    pin(-1);
    environment("DT_NODES", NULL);
    environment("DT_LINK_RATE", NULL);
    environment("DT_ISA", NULL);
    return r ? r : refusals(rank);
}

/* ---- what they said ---- */

static char text[200000];

static void run(const char *self, const char *words)
{
    char command[1000];
    size_t used;
    FILE *p;
    snprintf(command, sizeof command, "timeout 300 '%s' %s 2>&1", self, words);
    if (!(p = popen(command, "r"))) tap_bail("cannot run %s", command);
    used = fread(text, 1, sizeof text - 1, p);
    text[used] = 0;
    pclose(p);
}

/* What stands behind "rank R NAME .. WORD ". */
static const char *said(int rank, const char *name, const char *word)
{
    static char value[4][80];
    static int turn;
    char begin[64], key[32];
    const char *at, *found = NULL;
    snprintf(begin, sizeof begin, "rank %d %s first", rank, name);
    snprintf(key, sizeof key, " %s ", word);
    for (const char *last = strstr(text, begin); (at = last) != NULL; last = found)
        if ((found = strstr(last + 1, begin)) == NULL) break; /* the last one */
    found = at ? strstr(at, key) : NULL;
    turn = (turn + 1) % 4;
    snprintf(value[turn], sizeof value[turn], "%.*s", found ? (int)strcspn(found + strlen(key), " \n") : 0,
             found ? found + strlen(key) : "");
    return value[turn];
}

static void explain(const char *name)
{
    char begin[32];
    snprintf(begin, sizeof begin, "%s:", name);
    for (const char *at = strstr(text, begin); at; at = strstr(at + 1, begin))
        tap_note("%.*s", (int)strcspn(at, "\n"), at);
}

static void check_labs(const char *self)
{
    static const struct {
        const char *name, *first;
    } want[] = {{"transport", "transport"}, {"data", "data"},      {"batch", "batch"},   {"overlap", "overlap"},
                {"tensor", "placement"},    {"slow", "placement"}, {"core", "placement"}};
    for (int good = 0, tries = 0; !good && tries < 15; tries++) { /* others use this machine, too */
        run(self, "lab --ranks 2 --timeout 30");
        good = !strcmp(said(0, "healthy", "first"), "none");
        for (int i = 0; i < 7; i++) good &= !strcmp(said(0, want[i].name, "first"), want[i].first);
        if (!good) tap_note("try %d:\n%s", tries + 1, text);
    }
    tap_ok(!strcmp(said(0, "healthy", "first"), "none"), "a healthy run: no finding");
    for (int i = 0; i < 7; i++) {
        const char *first = said(0, want[i].name, "first"), *sum = said(0, want[i].name, "sum");
        if (!tap_ok(!strcmp(first, want[i].first), "%s: the main finding is %s", want[i].name, want[i].first))
            explain(want[i].name);
        tap_ok(*sum && !strcmp(sum, said(1, want[i].name, "sum")), "  the same findings on all ranks");
        if (i == 2 || i == 3 || i == 5) continue; /* other recipes */
        tap_ok(!strcmp(said(0, want[i].name, "hash"), said(0, "plain", "hash")) &&
                   strlen(said(0, "plain", "hash")) == 64,
               "  the bits of a run without it");
    }
    tap_ok(*said(0, "even", "hash") && !strcmp(said(0, "even", "hash"), said(0, "overlap", "hash")),
           "small buckets and a slow link change no bit");
    tap_ok(
        strstr(text,
               "rank 0 refused --doctor looks at 3 steps after the first: --steps 3 is below 4") &&
            strstr(text,
                   "rank 1 refused dt_doctor: 3 steps were made: make 4 or more, it looks at all but the first"),
        "refused: too few steps");
}

/* The text of one case, numbers but those of the bound aside. */
static void check_text(void)
{
    static const char *const lines[] = {
        "transport: doctor   2 ranks on 1 node, 4 steps of ",
        "transport:   1 transport  FIRES   selected provider is shared memory; inside a node ",
        "(bound 20 MB/s)\n",
        "transport:                       do: the link is far slower than a machine's: look for DT_LINK_RATE, which is "
        "set, ",
        "transport:   2 data       ok      rank ",
        "transport:   3 batch      ",
        "transport:   4 overlap    ",
        "transport:   5 placement  ok      tensor groups send 0 MB a step to other nodes (bound 0)",
        "transport: finding  transport\n"};
    const char *at = text;
    for (int i = 0; i < 9; i++) {
        const char *found = strstr(at, lines[i]);
        if (!tap_ok(found != NULL, "the text has, in its place: %.60s", lines[i])) explain("transport");
        at = found ? found : at;
    }
}

/* ---- findings from numbers ---- */

static doctor_rank vitals[4];
static double scratch[4];
static dt_diagnosis found;

/* Four ranks on two nodes that do well: 100 ms of work, 10 of exchange. */
static void good_case(doctor_case *x)
{
    memset(x, 0, sizeof *x);
    memset(vitals, 0, sizeof vitals);
    memset(&found, 0, sizeof found);
    for (int q = 0; q < 4; q++) {
        vitals[q].gflops = 50, vitals[q].node = q / 2, vitals[q].threads = vitals[q].buckets = vitals[q].units = 1;
        vitals[q].cores[0] = (uint64_t)1 << q;
        snprintf(vitals[q].machine, sizeof vitals[q].machine, "m%d", q / 2);
        strcpy(vitals[q].engine, "libfabric 1.17 tcp;ofi_rxm");
        for (int s = 0; s < 3; s++) {
            double *p = vitals[q].pulse[s];
            p[DOCTOR_STEP] = 0.11, p[DOCTOR_WORK] = 0.1, p[DOCTOR_EXPOSED] = 0.01;
            p[DOCTOR_SENT] = 6e6, p[DOCTOR_FAR] = 1e6;
        }
    }
    x->rank = vitals, x->scratch = scratch, x->d = &found;
    x->ranks = x->data = 4, x->steps = 3, x->batch = 32, x->bucket = 25e6;
    found.ranks = 4, found.nodes = 2, found.steps = 3;
    found.alpha[0] = 5e-6, found.alpha[1] = 5e-5, found.rate[0] = 5e9, found.rate[1] = 5e8;
}

static int finding(doctor_case *x)
{
    doctor_judge(x);
    for (int i = 0; i < DT_BRANCH_COUNT; i++) /* advice names a command or an option */
        if (found.finding[i].fires && !strpbrk(found.finding[i].advice, "-=")) return -2;
    return found.first;
}

static void check_judge(void)
{
    doctor_case x;
    double exchange = 2 * 3 * 5e-5 + 5e6 / 5e9 + 2e6 / 5e8; /* alpha, inside, and a node's between */
    good_case(&x);
    tap_ok(finding(&x) == -1 && fabs(found.exchange - exchange) < 1e-9 && fabs(found.speedup - 0.4 / 0.11) < 1e-9,
           "numbers of four healthy ranks: exchange %.3g s, the work of %.2f ranks", found.exchange, found.speedup);
    tap_ok(fabs(found.break_even - 32 * exchange / (3 * 0.1)) < 1e-9 &&
               fabs(found.worthwhile - 32 * 4 * exchange / 0.1) < 1e-9,
           "  they beat one above %.3g samples, are worth it above %.3g", found.break_even, found.worthwhile);
    x.emulated = 1;
    finding(&x);
    tap_ok(fabs(found.exchange - (exchange - 1e6 / 5e8)) < 1e-9, "  an emulated link is one of each rank");
    good_case(&x);
    for (int q = 0; q < 4; q++) vitals[q].efa = 1;
    tap_ok(finding(&x) == DT_BRANCH_TRANSPORT && strstr(found.finding[0].advice, "DT_FABRIC=efa") &&
               strstr(found.finding[0].advice, "fi_info -p efa"),
           "an Elastic Fabric Adapter that is not used");
    strcpy(vitals[0].engine, "libfabric 1.17 efa");
    tap_ok(finding(&x) == -1 && strstr(found.finding[0].text, "selected provider is libfabric 1.17 efa"),
           "  and one that is");
    vitals[3].efa = 0, strcpy(vitals[0].engine, "libfabric 1.17 tcp;ofi_rxm");
    tap_ok(finding(&x) == -1, "  and one that not all ranks have");
    good_case(&x);
    for (int q = 2; q < 4; q++) memcpy(vitals[q].machine, vitals[0].machine, sizeof vitals[0].machine);
    tap_ok(finding(&x) == DT_BRANCH_TRANSPORT && strstr(found.finding[0].advice, "on one machine, but on two nodes"),
           "two nodes that are one machine");
    good_case(&x);
    found.rate[1] = 1e7;
    tap_ok(finding(&x) == DT_BRANCH_TRANSPORT && found.finding[0].bound == 1.25e7, "a link between nodes of 80 Mbit/s");
    good_case(&x);
    for (int s = 0; s < 3; s++) vitals[2].pulse[s][DOCTOR_DATA] = 0.04;
    tap_ok(finding(&x) == DT_BRANCH_DATA && found.finding[1].rank == 2 &&
               fabs(found.finding[1].measured - 0.04 / 0.11) < 1e-9,
           "one rank that waits for data");
    good_case(&x);
    x.idle = 0.6;
    tap_ok(finding(&x) == DT_BRANCH_BATCH && strstr(found.finding[2].advice, "60 % of the time"),
           "a pipeline with few units");
    good_case(&x);
    for (int s = 0; s < 3; s++)
        for (int q = 0; q < 4; q++) vitals[q].pulse[s][DOCTOR_EXPOSED] = 0.05;
    tap_ok(finding(&x) == DT_BRANCH_OVERLAP && strstr(found.finding[3].advice, "--overlap on"),
           "an exchange that is exposed");
    for (int s = 0; s < 3; s++) vitals[s].pulse[s][DOCTOR_EXPOSED] = 0.0;
    tap_ok(finding(&x) == -1, "  but not when one rank, another each time, waits for nobody: they wait for it");
    good_case(&x);
    for (int s = 0; s < 3; s++) vitals[1].pulse[s][DOCTOR_CROSSED] = 1e6;
    tap_ok(finding(&x) == DT_BRANCH_PLACEMENT && strstr(found.finding[4].advice, "--order DPT"),
           "a tensor group across nodes");
    good_case(&x);
    vitals[1].cores[0] = 1;
    tap_ok(finding(&x) == DT_BRANCH_PLACEMENT && found.finding[4].measured == 2.0, "two ranks on one core");
    good_case(&x);
    for (int s = 0; s < 3; s++) vitals[3].pulse[s][DOCTOR_WORK] = 0.5;
    tap_ok(finding(&x) == DT_BRANCH_PLACEMENT && found.finding[4].rank == 3, "a rank that is 5 times as slow");
    vitals[3].units = 5;
    tap_ok(finding(&x) == -1, "  but not when it has 5 times as much to do");
    vitals[3].units = 1, vitals[3].stage = 1;
    tap_ok(finding(&x) == -1, "  or is the only one of its stage");
    vitals[3].gflops = 5;
    tap_ok(finding(&x) == DT_BRANCH_PLACEMENT, "  unless its products of matrices are slow, too");
}

static void check_adapter(void)
{
    char folder[] = "/tmp/dtrain_XXXXXX", path[300];
    static const char *const vendor[] = {"0x15b3\n", "0x1d0f\n"};
    if (!mkdtemp(folder)) tap_bail("no folder in /tmp");
    tap_ok(!doctor_has_efa("/tmp/there_is_no_such_folder") && !doctor_has_efa(folder), "no devices: no adapter");
    for (int i = 0; i < 2; i++) {
        FILE *f;
        snprintf(path, sizeof path, "mkdir -p %s/rdmap%d/device", folder, i);
        if (system(path)) tap_bail("mkdir");
        snprintf(path, sizeof path, "%s/rdmap%d/device/vendor", folder, i);
        if (!(f = fopen(path, "w"))) tap_bail("%s", path);
        fputs(vendor[i], f);
        fclose(f);
        tap_ok(doctor_has_efa(folder) == i, "a device of vendor %.6s is %s", vendor[i], i ? "one" : "none");
    }
    snprintf(path, sizeof path, "rm -r %s", folder);
    if (system(path)) tap_bail("rm");
}

int main(int argc, char **argv)
{
    dt_result r;
    if (argc > 1) {
        dt_comm *c = NULL;
        int rank;
        if (dt_comm_open(&c, &argc, &argv)) return dt_fail("start");
        rank = dt_comm_rank(c);
        dt_comm_close(&c);
        r = all_labs(rank);
        return r ? dt_fail("lab") : 0;
    }
    check_adapter();
    check_judge();
    check_labs(argv[0]);
    check_text();
    return tap_done();
}
