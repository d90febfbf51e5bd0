/* H11 data: bad input of every kind, splits and shards, the order of samples (R16), the loader, the generator. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/prose.h"
#include <dirent.h>
#include <glob.h>
#include <limits.h>
#include "tap.h"

static char folder[64];

/* A path in the test's own folder. The last four answers stay valid. */
static const char *in(const char *name)
{
    static char path[4][256];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

static void put(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in(name), "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) tap_bail("cannot write %s", in(name));
}

/* A token file whose header promises `promised` ids; `n` ids follow: first, first + 1, ... */
static void put_ids(const char *name, int magic, int version, int promised, int n, int first)
{
    static unsigned char bytes[1024 + 2 * 4096];
    int32_t header[3];
    header[0] = magic;
    header[1] = version;
    header[2] = promised;
    memset(bytes, 0, 1024);
    memcpy(bytes, header, sizeof header);
    for (int i = 0; i < n; i++) {
        uint16_t id = (uint16_t)(first + i);
        memcpy(bytes + 1024 + 2 * i, &id, sizeof id);
    }
    put(name, bytes, (size_t)(1024 + 2 * n));
}

static void put_wide(const char *name, int magic, int version, int n) /* 32-bit ids from 128000 on */
{
    static int32_t file[256 + 1000];
    memset(file, 0, sizeof file);
    file[0] = magic, file[1] = version, file[2] = n;
    for (int i = 0; i < n; i++) file[256 + i] = 128000 + i;
    put(name, file, 4 * (256 + (size_t)n));
}

static void put_counting(const char *name, int n) /* bytes 0, 1, ..., 250, 0, 1, ... */
{
    static unsigned char bytes[8192];
    for (int i = 0; i < n; i++) bytes[i] = (unsigned char)(i % 251);
    put(name, bytes, (size_t)n);
}

/* ---- bad input ---------------------------------------------------------------------------- */

/* Opening must fail with this code and a sentence that has `part` in it and a way to mend it behind a colon. */
static void refuses(const char *path, int64_t sequence, double fraction, dt_result code, const char *part)
{
    dt_data *d = (dt_data *)(void *)folder; /* must become NULL */
    dt_result r = dt_data_open(&d, path, NULL, sequence, fraction);
    int fine = r == code && !d && strstr(dt_last_error(), part) && (strchr(dt_last_error(), ':') || strstr(dt_last_error(), ". "));
    if (!tap_ok(fine, "refused: %s", part)) tap_note("%s: %s", dt_result_name(r), r ? dt_last_error() : "opened");
    dt_data_close(&d);
}

static void test_refusals(void)
{
    const int32_t magic = 20240520;
    char both[600];
    put_counting("a.txt", 100);
    put("empty.txt", "", 0);
    put("text.bin", "this is no token file", 21);
    put_ids("short.bin", 20240520, 1, 50, 40, 0);
    put_ids("long.bin", 20240520, 1, 30, 40, 0);
    put_ids("version.bin", 20240520, 3, 40, 40, 0);
    put_ids("minus.bin", 20240520, -1, 40, 40, 0);
    put_ids("mixed.bin", 20240801, 1, 40, 40, 0);
    put_ids("magic.bin", 20240521, 1, 40, 40, 0);
    put_ids("none.bin", 20240520, 1, 0, 0, 0);
    put_ids("negative.bin", 20240520, 1, -5, 0, 0);
    put_ids("good.bin", 20240520, 1, 40, 40, 0);
    put("header.bin", &magic, sizeof magic);
    refuses(NULL, 8, 0, DT_E_USAGE, "path is NULL");
    refuses("", 8, 0, DT_E_USAGE, "no file is named");
    refuses(",,", 8, 0, DT_E_USAGE, "no file is named");
    refuses(in("a.txt"), 0, 0, DT_E_USAGE, "a sequence of 0 tokens");
    refuses(in("a.txt"), 8, 1.0, DT_E_USAGE, "a validation fraction of 1");
    refuses(in("a.txt"), 8, -0.1, DT_E_USAGE, "a validation fraction of -0.1");
    refuses(in("a.txt"), 8, (double)NAN, DT_E_USAGE, "validation_fraction is nan");
    refuses(in("missing.txt"), 8, 0, DT_E_FILE, "missing.txt");
    refuses(in("missing*.bin"), 8, 0, DT_E_FILE, "missing*.bin");
    refuses(folder, 8, 0, DT_E_DATA, "is not a plain file");
    refuses("/dev/null", 8, 0, DT_E_DATA, "is not a plain file");
    if (!mkfifo(in("fifo"), 0600)) refuses(in("fifo"), 8, 0, DT_E_DATA, "is not a plain file");
    refuses(in("empty.txt"), 8, 0, DT_E_DATA, "is empty");
    refuses(in("a.txt"), 100, 0, DT_E_DATA, "cuts 100 tokens into 100 and 0, but one sequence needs 101");
    refuses(in("text.bin"), 8, 0, DT_E_DATA, "has no header of a token file (nanoGPT's train.bin has none): put 256 int32");
    refuses(in("magic.bin"), 8, 0, DT_E_DATA, "has no header of a token file");
    refuses(in("version.bin"), 8, 0, DT_E_DATA, "of version 3 (magic 20240520). Write magic 20240520 with version 1");
    refuses(in("minus.bin"), 8, 0, DT_E_DATA, "of version -1 (magic 20240520)");
    refuses(in("mixed.bin"), 8, 0, DT_E_DATA, "of version 1 (magic 20240801)");
    refuses(in("short.bin"), 8, 0, DT_E_DATA, "has 1104 bytes, but 50 tokens (1 or more) need 1124");
    refuses(in("long.bin"), 8, 0, DT_E_DATA, "has 1104 bytes, but 30 tokens (1 or more) need 1084");
    refuses(in("none.bin"), 8, 0, DT_E_DATA, "but 0 tokens (1 or more) need 1024");
    refuses(in("negative.bin"), 8, 0, DT_E_DATA, "but -5 tokens (1 or more) need");
    refuses(in("header.bin"), 8, 0, DT_E_DATA, "has 4 bytes, but 0 tokens (1 or more) need 1024");
    refuses(in("a.txt"), 20, 0.1, DT_E_DATA, "cuts 100 tokens into 90 and 10");
    refuses(in("a.txt"), 20, 0.9, DT_E_DATA, "cuts 100 tokens into 10 and 90");
    snprintf(both, sizeof both, "%s,%s", in("a.txt"), in("good.bin"));
    refuses(both, 8, 0, DT_E_DATA, "files of one kind");
}

static void test_unreadable(void)
{
    put_counting("secret.txt", 100);
    chmod(in("secret.txt"), 0);
    chmod(folder, 0755);
    if (geteuid() == 0 && seteuid(65534)) {
        tap_skip(1, "root reads everything");
        return;
    }
    refuses(in("secret.txt"), 8, 0, DT_E_FILE, "check the disk and the permissions");
    if (getuid() == 0 && seteuid(0)) tap_bail("cannot become root again");
}

/* ---- reading ------------------------------------------------------------------------------ */

/* Every sample of a split holds value(first), value(first + 1), ..., and the targets are one ahead. */
static int counts_on(const dt_data *d, dt_split split, int64_t first, int64_t sequence, int modulus)
{
    int32_t tokens[64], targets[64];
    for (int64_t i = 0; i < dt_data_samples(d, split); i++) {
        if (dt_data_fetch(d, split, i, tokens, targets)) return 0;
        for (int64_t j = 0; j < sequence; j++) {
            int64_t at = first + i * sequence + j;
            if (tokens[j] != at % modulus || targets[j] != (at + 1) % modulus) return 0;
        }
    }
    return 1;
}

static void test_bytes(void)
{
    static const unsigned char binary[9] = { 0, 255, 10, 0, 128, 13, 26, 0, 1 };
    int32_t tokens[8], targets[8];
    dt_data *d;
    put_counting("count.txt", 1000);
    tap_ok(!dt_data_open(&d, in("count.txt"), NULL, 7, 0.2), "a text opens");
    tap_ok(dt_data_tokens(d, DT_TRAIN) == 800 && dt_data_tokens(d, DT_VALIDATION) == 200, "it is cut at 800 of 1000");
    tap_ok(dt_data_samples(d, DT_TRAIN) == 114 && dt_data_samples(d, DT_VALIDATION) == 28, "(tokens - 1) / T samples");
    tap_ok(counts_on(d, DT_TRAIN, 0, 7, 251), "training samples, targets shifted by one");
    tap_ok(counts_on(d, DT_VALIDATION, 800, 7, 251), "validation samples are behind them: no token is in both");
    tap_ok(dt__data_vocabulary(d) == 256, "256 bytes");
    tap_ok(dt_data_fetch(d, DT_TRAIN, 114, tokens, targets) == DT_E_USAGE, "too far: %s", dt_last_error());
    tap_ok(dt_data_fetch(d, DT_VALIDATION, -1, tokens, targets) == DT_E_USAGE, "no sample -1: %s", dt_last_error());
    dt_data_close(&d);
    put("binary.txt", binary, 9);
    tap_ok(!dt_data_open(&d, in("binary.txt"), NULL, 8, 0), "T + 1 bytes are one sample, NUL and 255 included");
    tap_ok(!dt_data_fetch(d, DT_TRAIN, 0, tokens, targets) && tokens[0] == 0 && tokens[1] == 255 && targets[7] == 1 &&
           dt_data_samples(d, DT_TRAIN) == 1, "their values");
    tap_ok(dt_data_samples(d, DT_VALIDATION) == 0 && dt_data_tokens(d, DT_VALIDATION) == 0, "no validation part");
    dt_data_close(&d);
    tap_ok(!d, "closed");
    dt_data_close(&d);
}

static void test_shards(void)
{
    static const int count[4] = { 1, 500, 2, 497 }; /* 1000 ids from 0 on, in shards of odd sizes */
    char name[32], list[1024];
    int64_t length = 0;
    dt_data *d;
    for (int i = 0, first = 0; i < 4; first += count[i++]) {
        snprintf(name, sizeof name, "part_%d.bin", i);
        put_ids(name, 20240520, 1, count[i], count[i], first);
        length += snprintf(list + length, sizeof list - (size_t)length, "%s%s", i ? "," : "", in(name));
    }
    tap_ok(!dt_data_open(&d, list, NULL, 9, 0.25), "a list of shards opens");
    tap_ok(dt_data_samples(d, DT_TRAIN) == 83 && dt_data_samples(d, DT_VALIDATION) == 27, "they count as one");
    tap_ok(counts_on(d, DT_TRAIN, 0, 9, 65536), "training samples cross their ends");
    tap_ok(counts_on(d, DT_VALIDATION, 750, 9, 65536), "validation samples go on behind them");
    tap_ok(dt__data_vocabulary(d) == 1000, "the vocabulary is the largest id + 1");
    dt_data_close(&d);
    tap_ok(!dt_data_open(&d, in("part_*.bin"), NULL, 9, 0) && counts_on(d, DT_TRAIN, 0, 9, 65536), "a pattern with *");
    dt_data_close(&d);
    tap_ok(!dt_data_open(&d, in("part_?.bin"), NULL, 9, 0) && dt_data_tokens(d, DT_TRAIN) == 1000, "a pattern with ?");
    dt_data_close(&d);
    put_ids("ids.dat", 20240520, 1, 4000, 4000, 61536);
    tap_ok(!dt_data_open(&d, in("ids.dat"), NULL, 9, 0), "ids are known by the magic, not the name");
    tap_ok(dt__data_vocabulary(d) == 65536, "ids go to 65535");
    dt_data_close(&d);
    put_counting("x[1].txt", 100), put("x1.txt", "wrong", 5), put_counting("y*?.txt", 90), put("y1?.txt", "wrong", 5);
    put_counting("a,b", 80), put_counting("[a].txt", 70);
    snprintf(list, sizeof list, "%s,%s,%s,%s", in("x[1].txt"), in("y*?.txt"), in("a,b"), in("[*.txt"));
    tap_ok(!dt_data_open(&d, list, NULL, 9, 0) && dt_data_tokens(d, DT_TRAIN) == 340, "the name of a file is no pattern");
    dt_data_close(&d);
    put_wide("llama3.bin", 20240801, 7, 100);
    tap_ok(!dt_data_open(&d, in("llama3.bin"), NULL, 9, 0) && dt__data_vocabulary(d) == 128100, "llm.c's file for Llama 3");
    dt_data_close(&d);
    put_wide("wide.bin", 20240520, 2, 100);
    tap_ok(!dt_data_open(&d, in("wide.bin"), NULL, 9, 0) && dt__data_vocabulary(d) == 128100, "version 2: 32-bit ids");
    dt_data_close(&d);
    put_counting("with,comma.txt", 100);
    tap_ok(!dt_data_open(&d, in("with,comma.txt"), NULL, 9, 0), "a file may have a comma in its name");
    dt_data_close(&d);
}

/* ---- order -------------------------------------------------------------------------------- */

static int64_t permute(int64_t n, int64_t i, uint64_t seed, int64_t epoch) { return dt__sample_at(n, seed, epoch * n + i); }

static int is_permutation(int64_t n, uint64_t seed, int64_t epoch)
{
    unsigned char *seen = (unsigned char *)calloc((size_t)n, 1);
    int fine = seen != NULL;
    for (int64_t i = 0; i < n && fine; i++) {
        int64_t at = permute(n, i, seed, epoch);
        fine = at >= 0 && at < n && !seen[at];
        if (fine) seen[at] = 1;
    }
    free(seen);
    return fine;
}

/* How often each of 5 samples comes first within 5000 epochs: 1000 each, give or take. */
static int is_even(void)
{
    int times[5] = { 0, 0, 0, 0, 0 };
    for (int64_t epoch = 0; epoch < 5000; epoch++) times[permute(5, 0, 9, epoch)]++;
    for (int i = 0; i < 5; i++)
        if (times[i] < 850 || times[i] > 1150) return 0;
    return 1;
}

static void test_order(void)
{
    static const int64_t large[] = { 4095, 4096, 4097, 65537, 1000000 };
    int64_t same = 0, kept = 0;
    int fine = 1;
    for (int64_t n = 1; n <= 200; n++)
        for (int64_t epoch = 0; epoch < 4; epoch++) fine = fine && is_permutation(n, 77, epoch);
    tap_ok(fine, "R16: a permutation for n = 1 to 200, 4 epochs each");
    for (int i = 0; i < 5; i++)
        tap_ok(is_permutation(large[i], 0xfedcba9876543210u, 3), "R16: a permutation for %lld", (long long)large[i]);
    tap_ok(permute((int64_t)1 << 40, 12345, 1, 2) < (int64_t)1 << 40, "n = 2^40 stays in range");
    for (int64_t i = 0; i < 10000; i++) {
        same += permute(10000, i, 5, 0) == permute(10000, i, 5, 1);
        same += permute(10000, i, 5, 0) == permute(10000, i, 6, 0);
        kept += permute(10000, i, 5, 0) == permute(10000, (i + 1) % 10000, 5, 0) - 1;
    }
    tap_ok(same < 20, "R16: another epoch or seed is another order (%lld of 20000 places agree)", (long long)same);
    tap_ok(kept < 20, "R16: neighbours part (%lld of 10000 stay together)", (long long)kept);
    tap_ok(is_even(), "R16: every sample comes first equally often");
    tap_ok(permute(1000, 0, 1, 0) == 312 && permute(1000, 999, 1, 7) == 280,
           "R16: the order of this version: %lld, %lld", (long long)permute(1000, 0, 1, 0),
           (long long)permute(1000, 999, 1, 7));
}

/* ---- the loader --------------------------------------------------------------------------- */

static struct {
    dt_data *data;
    int64_t rows, wrong_from; /* samples from this step on do not exist */
    int64_t calls;
    int delay;                /* a batch is up to that many microseconds late */
} feed;

static dt_result feed_fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    int64_t step = feed.calls / feed.rows, row = feed.calls % feed.rows;
    (void)user;
    feed.calls++;
    if (feed.delay && row == 0) usleep((unsigned)(step * 7919 % feed.delay));
    return dt_data_fetch(feed.data, split, step >= feed.wrong_from ? -1 : sample, (int32_t *)input, (int32_t *)target);
}

static dt_trainer *open_loader(int64_t first)
{
    dt_trainer *t = (dt_trainer *)dt__alloc((int64_t)sizeof *t, "a trainer");
    if (!t || dt__choose_kernels(&t->e.k)) tap_bail("%s", dt_last_error());
    dt__feed_files(&t->feed, feed.data);
    t->feed.is.fetch = feed_fetch, feed.calls = first * feed.rows;
    t->recipe.seed = 11, t->recipe.batch = t->recipe.micro_batch = t->e.p.rows = feed.rows;
    t->e.p.hi = t->e.p.micros = 1, t->e.step = first;
    if (dt__loader_open(t)) tap_bail("%s", dt_last_error());
    return t;
}

static void close_loader(dt_trainer *t)
{
    dt__loader_close(t);
    dt__free(t);
}

static int batch_is_right(const dt_trainer *t, int64_t step, int64_t sequence)
{
    int32_t tokens[64], targets[64];
    size_t bytes = (size_t)sequence * sizeof *tokens;
    for (int64_t row = 0; row < feed.rows; row++) {
        int64_t sample = dt__sample_at(dt_data_samples(feed.data, DT_TRAIN), 11, step * feed.rows + row);
        if (dt_data_fetch(feed.data, DT_TRAIN, sample, tokens, targets)) return 0;
        if (memcmp(tokens, t->loader.input + row * sequence, bytes)) return 0;
        if (memcmp(targets, t->loader.target + row * sequence, bytes)) return 0;
    }
    return 1;
}

/* `steps` batches from step 5 on; the caller, too, is slow now and then, and looks again at the end of its delay. */
static void run_loader(int steps, int delay)
{
    dt_trainer *t = open_loader(5);
    int fine = 1;
    for (int64_t step = 5; step < 5 + steps && fine; step++) {
        fine = !dt__loader_next(t) && batch_is_right(t, step, 7);
        if (delay) usleep((unsigned)(step * 104729 % delay));
        fine = fine && batch_is_right(t, step, 7);
    }
    tap_ok(fine, "%d batches in order, reader <= %d us late, caller <= %d us", steps, feed.delay, delay);
    tap_ok(feed.delay <= delay || t->loader.waited > 1e-3, "waited %.1f ms", 1e3 * t->loader.waited);
    close_loader(t);
}

static void test_loader(void)
{
    dt_trainer *t;
    int fine = 1;
    if (dt_data_open(&feed.data, in("count.txt"), NULL, 7, 0.2)) tap_bail("%s", dt_last_error());
    feed.rows = 3;
    feed.wrong_from = INT64_MAX;
    run_loader(300, 0);
    run_loader(100, 400);
    feed.delay = 400;
    run_loader(100, 0);
    run_loader(100, 400);
    for (int taken = 0; taken < 60 && fine; taken++) { /* close at any moment */
        feed.delay = taken % 3 * 100;
        t = open_loader(0);
        for (int i = 0; i < taken % 7 && fine; i++) fine = !dt__loader_next(t);
        if (taken % 2) usleep(50);
        close_loader(t);
    }
    tap_ok(fine, "closed early 60 times");
    feed.wrong_from = 3;
    feed.delay = 0;
    t = open_loader(0);
    for (int i = 0; i < 3; i++) fine = fine && !dt__loader_next(t);
    tap_ok(fine && dt__loader_next(t) == DT_E_USAGE && strstr(dt_last_error(), "no training sample -1"),
           "an error arrives with its step: %s", dt_last_error());
    tap_ok(dt__loader_next(t) == DT_E_USAGE, "and stays");
    close_loader(t);
    dt_data_close(&feed.data);
}

/* ---- the generator ------------------------------------------------------------------------ */

/* The last three answers stay valid. */
static char *slurp(const char *name, int64_t *bytes)
{
    static char text[3][300000];
    static int next;
    FILE *f = fopen(in(name), "rb");
    next = (next + 1) % 3;
    *bytes = f ? (int64_t)fread(text[next], 1, sizeof text[next] - 1, f) : 0;
    text[next][*bytes] = 0;
    if (f) fclose(f);
    return text[next];
}

static int folder_has(const char *part)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int found = 0;
    while (dir && (entry = readdir(dir)) != NULL) found = found || strstr(entry->d_name, part);
    if (dir) closedir(dir);
    return found;
}

static void test_generate(void)
{
    int64_t n, m;
    char *a, *b;
    int plain = 1;
    dt_data *d;
    tap_ok(!prose_generate(in("made.txt"), 200000, 1), "a text is generated");
    a = slurp("made.txt", &n);
    for (int64_t i = 0; i < n; i++) plain = plain && (a[i] == '\n' || (a[i] >= ' ' && a[i] <= '~'));
    tap_ok(n == 200000 && plain && a[n - 1] == '\n', "200000 bytes of printable ASCII, the last a newline");
    tap_ok(strstr(a, "\n\n") && !strchr(a, '$') && !strchr(a, '|'), "paragraphs, and every symbol replaced");
    tap_note("%.*s", (int)strcspn(a, "\n"), a);
    tap_ok(!prose_generate(in("made2.txt"), 200000, 1), "again");
    b = slurp("made2.txt", &m);
    tap_ok(n == m && !memcmp(a, b, (size_t)n), "the same bytes for the same seed");
    tap_ok(!prose_generate(in("made2.txt"), 200000, 2), "another seed, over the old file");
    b = slurp("made2.txt", &m);
    tap_ok(n == m && memcmp(a, b, (size_t)n), "another text");
    tap_ok(!prose_generate(in("one.txt"), 1, 1) && slurp("one.txt", &n)[0] == '\n' && n == 1, "one byte");
    tap_ok(!dt_data_open(&d, in("made.txt"), NULL, 128, 0.1), "and it opens");
    dt_data_close(&d);
    tap_ok(prose_generate(in("x.txt"), 0, 1) == DT_E_USAGE, "0 bytes: %s", dt_last_error());
    tap_ok(prose_generate(in("no/x.txt"), 10, 1) == DT_E_FILE, "no directory: %s", dt_last_error());
    mkdir(in("taken"), 0700);
    tap_ok(prose_generate(in("taken"), 10, 1) == DT_E_FILE, "a directory in the way: %s", dt_last_error());
    rmdir(in("taken"));
    tap_ok(!folder_has(".tmp"), "nothing half-written stays behind");
}

static void remove_folder(void)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.') unlink(in(entry->d_name));
    if (dir) closedir(dir);
    rmdir(folder);
}

int main(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.40s/dt_data_XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder)) tap_bail("cannot make %s", folder);
    test_refusals();
    test_unreadable();
    test_bytes();
    test_shards();
    test_order();
    test_loader();
    test_generate();
    remove_folder();
    return tap_done();
}
