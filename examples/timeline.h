/* timeline.h: what every rank did in the last step, as a trace. A companion of dtrain.h: include it after that.
 *
 *     dt_probe timeline;
 *     dt_timeline_attach(&layout, &timeline);    before dt_args
 *
 * gives a program the option --timeline FILE. The file has Chrome's trace event format, for ui.perfetto.dev: an
 * interval per instruction of a rank's program, or per run of instructions that differ only in the segment. Each rank
 * has a line for the thread that computes and, with overlap, one for the thread that communicates. */
#ifndef DTRAIN_TIMELINE_H
#define DTRAIN_TIMELINE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TIMELINE_NAME(name) #name,
static const char *const timeline_names[] = {"EXCHANGE", DT_INSTRUCTIONS(TIMELINE_NAME)}; /* -1 .. */
#undef TIMELINE_NAME

typedef struct timeline_bar {
    double begin, end; /* seconds of the machine's clock */
    int32_t op;        /* dt_instr_op; -1: an exchange inside a segment */
    int32_t back, shard, micro, stream, first, last; /* first, last: segments */
} timeline_bar;
enum { TIMELINE_WORDS = (int)sizeof(timeline_bar) / 4 };

static dt_result timeline_error(const char *path)
{
    return dt_error(DT_E_FILE, "cannot write %s: %s", path, strerror(errno));
}

/* Before the run: is it a file that may be replaced, and can it be written? A new one is taken away again. */
static dt_result timeline_check(const char *path)
{
    static const char begin[] = "{\"displayTimeUnit\"";
    char text[sizeof begin] = "";
    struct stat is;
    int old = !stat(path, &is);
    FILE *f = old && S_ISREG(is.st_mode) ? fopen(path, "r") : NULL;
    size_t n = f ? fread(text, 1, sizeof begin - 1, f) : 0;
    if (f) fclose(f);
    if (old && !S_ISREG(is.st_mode)) return DT_OK; /* a device or a pipe */
    if (n && strncmp(text, begin, n))
        return dt_error(DT_E_USAGE, "--timeline %s exists and is not a file of --timeline: name another, or remove it",
                        path);
    if ((f = fopen(path, "a")) == NULL) return timeline_error(path);
    fclose(f);
    if (!old) remove(path);
    return DT_OK;
}

/* Adds an interval of an instruction, or (NULL) of an exchange inside one, to `count` bars. 0: the last bar goes on,
 * since the instruction differs from the one before it only in the segment. bar NULL: only that. */
static int timeline_add(timeline_bar *bar, int64_t count, const dt_instr *i, const dt_instr *before,
                        const double when[2])
{
    int goes_on = i && before && i->op == before->op && i->back == before->back && i->shard == before->shard &&
                  i->micro == before->micro;
    timeline_bar *b = bar ? &bar[goes_on ? count - 1 : count] : NULL;
    if (!b) return !goes_on;
    b->end = when[1];
    if (goes_on) return b->last = i->segment, 0;
    b->begin = when[0], b->op = b->shard = b->first = -1;
    if (!i) return 1;
    b->op = i->op, b->back = i->back, b->shard = i->shard, b->micro = i->micro, b->stream = i->stream;
    b->first = b->last = i->segment;
    return 1;
}

/* The bars of this rank's last step into `bar`, unless it is NULL; returns how many there are. */
static int64_t timeline_bars(const dt_trainer *t, timeline_bar *bar)
{
    int64_t instructions, count = 0;
    const dt_instr *list = dt_plan_program(dt_trainer_plan(t), &instructions);
    double when[2];
    for (int64_t k = 0; dt_trainer_event(t, k, when); k++) {
        const dt_instr *i = k < instructions ? &list[k] : NULL;
        count += timeline_add(bar, count, i, k && i ? &list[k - 1] : NULL, when);
    }
    return count;
}

/* Microseconds with three decimals, in every locale. */
static void timeline_put_time(FILE *f, const char *name, double seconds)
{
    long long nanoseconds = (long long)(1e9 * (seconds > 0.0 ? seconds : 0.0) + 0.5);
    fprintf(f, ",\"%s\":%lld.%03d", name, nanoseconds / 1000, (int)(nanoseconds % 1000));
}

static void timeline_begin(FILE *f) { fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", f); }
static void timeline_end(FILE *f) { fputs("\n]}\n", f); }

/* Names of a rank and its threads, then complete events with names like "FORWARD of shard 2, micro-batch 0, segments 1
 * to 4", up to `most` or the first that has no end. The communicating threads of all ranks come last. */
static void timeline_put_rank(FILE *f, const char *comma, int rank, int ranks, int node, const timeline_bar *b,
                              int64_t most, int overlap, double from)
{
    fprintf(f, "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d on node %d\"}}",
            comma, rank, rank, node);
    for (int line = 0; line <= overlap; line++)
        fprintf(f, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"rank %d "
                "%s\"}}", rank, rank + line * ranks, rank, line ? "communicates" : "computes");
    for (const timeline_bar *end = b + most; b < end && b->end > 0; b++) {
        const char *name = timeline_names[1 + b->op];
        fprintf(f, ",\n{\"name\":\"%s%s", b->op < 0 ? "exchange" : name, b->back ? " gradient" : "");
        if (b->shard >= 0) fprintf(f, " of shard %d, micro-batch %d", (int)b->shard, (int)b->micro);
        if (b->first >= 0 && b->first == b->last) fprintf(f, ", segment %d", (int)b->first);
        else if (b->first >= 0) fprintf(f, ", segments %d to %d", (int)b->first, (int)b->last);
        fprintf(f, "\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d", name, rank, rank + b->stream * ranks);
        timeline_put_time(f, "ts", b->begin - from);
        timeline_put_time(f, "dur", b->end - b->begin);
        fputs("}", f);
    }
}

/* bars: (ranks, most) */
static void timeline_put(FILE *f, const dt_comm *c, const timeline_bar *bars, int64_t most, int overlap)
{
    int ranks = dt_comm_size(c);
    double from = 1e300;
    for (int64_t i = 0; i < ranks * most; i++)
        if (bars[i].end > 0 && bars[i].begin < from) from = bars[i].begin;
    timeline_begin(f);
    for (int rank = 0; rank < ranks; rank++)
        timeline_put_rank(f, rank ? ",\n" : "", rank, ranks, dt_comm_node(c, rank), bars + rank * most, most,
                          overlap, from);
    timeline_end(f);
}

/* Rank 0 gathers the bars of all ranks and writes them. Collective. */
static dt_result timeline_write(const dt_probe *p, dt_trainer *t)
{
    dt_comm *c = dt_trainer_comm(t);
    const char *path = p->option[0].value;
    int ranks = c ? dt_comm_size(c) : 1;
    float count = (float)timeline_bars(t, NULL);
    dt_result r = c ? dt_all_reduce(c, &count, 1, DT_MAX) : DT_E_PEER;
    int64_t most = (int64_t)count, floats = most * TIMELINE_WORDS;
    timeline_bar *own = r ? NULL : (timeline_bar *)calloc((size_t)((ranks + 1) * most + 1), sizeof *own);
    FILE *f = NULL;
    if (r) return r;
    if (!own) return dt_error(DT_E_MEMORY, "no memory for the timeline: use fewer ranks");
    timeline_bars(t, own);
    r = dt_all_gather(c, (float *)(void *)own, (float *)(void *)(own + most), floats);
    if (!r && dt_trainer_is_root(t) && !(f = fopen(path, "w"))) r = timeline_error(path);
    if (f) timeline_put(f, c, own + most, most, p->layout->overlap == DT_OVERLAP_ON);
    if (f && ferror(f)) r = timeline_error(path);
    if (f && fclose(f)) r = timeline_error(path);
    free(own);
    return r;
}

/* dt_probe.call */
static dt_result timeline_call(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    if (!p->option[0].value) return DT_OK;
    if (when == DT_AT_OPEN) p->layout->output.events = 1;
    if (when == DT_AT_START && dt_trainer_is_root(t)) return timeline_check(p->option[0].value);
    return when == DT_AT_END && info->step == p->recipe->steps ? timeline_write(p, t) : DT_OK;
}

/* Gives the programs of this layout the option --timeline. *p must live as long as the trainer. */
static inline void dt_timeline_attach(dt_layout *layout, dt_probe *p)
{
    static const dt_probe_option timeline = {"timeline", "FILE", "trace of the last step, for ui.perfetto.dev", NULL};
    dt_probe **last = &layout->output.probes;
    memset(p, 0, sizeof *p);
    p->call = timeline_call, p->option[0] = timeline;
    while (*last) last = &(*last)->next;
    *last = p;
}

#endif
