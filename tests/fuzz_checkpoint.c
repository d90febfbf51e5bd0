/* Feeds the readers of checkpoints with bytes that nobody wrote. The first byte chooses what the others are: a safetensors
 * file, the header of one with as many numbers as it says, a manifest with a seal that is right, names and shapes for a
 * header that is written and read, or other numbers for the manifest of a whole checkpoint. Found are crashes, what the
 * sanitizers see, files that were accepted though they do not hold what they say, errors without a sentence, and headers
 * that do not come back.
 *
 *     clang -g -O1 -DDT_DEBUG -DDT_FUZZER -fsanitize=fuzzer,address,undefined -I. tests/fuzz_checkpoint.c -o fuzz -lm -lpthread
 *     mkdir corpus; ./fuzz -max_total_time=600 corpus
 * or, with mutations of its own and any compiler, for so many seconds:
 *     gcc -g -O1 -DDT_DEBUG -fsanitize=address,undefined -I. tests/fuzz_checkpoint.c -o fuzz -lm -lpthread
 *     ./fuzz 600 */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void stop(const char *what)
{
    fprintf(stderr, "fuzz_checkpoint: %s: %s\n", what, dt_last_error());
    abort();
}

static void refused(void)
{
    if (!strchr(dt_last_error(), ':')) stop("an error without a sentence");
}

/* A copy whose NUL is the last byte of its memory. */
static char *copy_of(const unsigned char *data, size_t size)
{
    char *copy = (char *)malloc(size + 1);
    if (!copy) stop("no memory");
    memcpy(copy, data, size);
    copy[size] = 0;
    return copy;
}

static void seal(dt__text *t)
{
    char text[128];
    if (t->failed) return;
    (void)dt__manifest_seal(t->at, t->length, text);
    dt__text_add(t, "%s", text);
}

/* What was accepted: tensors that fill the numbers' place without a gap, each with the bytes of its shape; found by name,
 * unless one is there twice. */
static void check_tensors(dt__tensors *t, int64_t data, int64_t bytes)
{
    int64_t end = data;
    for (int64_t i = 0; i < t->count; i++) {
        const dt__stored *s = &t->list[i];
        if (s->at != end || s->bytes < 0 || s->bytes > data + bytes - end) stop("a gap");
        if (s->shape.dims >= 0 && dt_shape_count(s->shape) * dt__stored_types[s->type].bytes != s->bytes) stop("a shape");
        end += s->bytes;
    }
    if (end != data + bytes) stop("bytes of nobody");
    if (dt__tensors_sort(t)) {
        refused();
        return;
    }
    for (int64_t i = 0; i < t->count; i++)
        if (dt__tensors_find(t, t->list[i].name) != &t->list[i]) stop("a tensor that is not found");
}

static dt_result read_header(dt__tensors *t, const char *text, int64_t length, int64_t bytes)
{
    dt__json j;
    memset(t, 0, sizeof *t);
    memset(&j, 0, sizeof j);
    j.path = "header", j.text = text, j.bytes = length;
    if (!dt__tensors_header(t, &j, 8 + length, bytes) && !j.result) stop("neither read nor refused");
    dt__free(j.string);
    return j.result;
}

/* data: four bytes that count the numbers' bytes, then the header. */
static void fuzz_header(const unsigned char *data, size_t size)
{
    dt__tensors t;
    int64_t bytes = 0, length = (int64_t)size - 4;
    char *text;
    if (length < 0) return;
    for (int i = 4; i-- > 0;) bytes = bytes << 8 | data[i];
    text = copy_of(data + 4, size - 4);
    if (read_header(&t, text, length, bytes)) refused();
    else {
        t.file = (dt__stored_file *)dt__alloc((int64_t)sizeof *t.file, "a file");
        if (!t.file) stop("no memory");
        for (int64_t i = 0; i < t.count; i++) t.list[i].file = 0;
        check_tensors(&t, 8 + length, bytes);
    }
    dt__tensors_close(&t);
    free(text);
}

/* A whole file, in memory. */
static void fuzz_file(const unsigned char *data, size_t size)
{
    dt__tensors t;
    char path[64];
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) stop("a file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    memset(&t, 0, sizeof t);
    if (dt__tensors_add(&t, path)) refused();
    else {
        int64_t first = 8;
        for (int i = 8; i-- > 0;) first += (int64_t)data[i] << 8 * i;
        check_tensors(&t, first, (int64_t)size - first);
    }
    dt__tensors_close(&t);
    close(fd);
}

/* The text with its seal must have it, without it not; then it is read, and compared with a recipe. */
static void fuzz_manifest(const unsigned char *data, size_t size)
{
    static dt_trainer t;
    static dt__checkpoint c;
    dt__manifest *m = &c.m;
    dt__text text;
    char *was;
    memset(&text, 0, sizeof text);
    t.recipe = dt_recipe_default();
    dt__text_add(&text, "%.*s", (int)size, (const char *)data);
    if (!dt__manifest_check("manifest", text.at, text.length)) stop("a manifest without its seal");
    seal(&text);
    if (text.failed || dt__manifest_check("manifest", text.at, text.length)) stop("the seal");
    was = copy_of((const unsigned char *)text.at, (size_t)text.length);
    m->json.path = "manifest", m->json.text = was, m->json.bytes = text.length;
    if (dt__manifest_parse(m)) refused();
    else {
        memcpy(t.save.now.model, m->model, sizeof m->model);
        memcpy(t.save.now.data, m->data, sizeof m->data);
        if (dt__trainer_agrees(&t, &c)) refused();
        for (int64_t i = 0; i < m->files; i++)
            if (!*m->file[i].name || strchr(m->file[i].name, '/')) stop("a file elsewhere");
    }
    free(was);
    m->json.text = NULL;
    dt__manifest_close(m);
    dt__free(text.at);
}

/* The shapes of a manifest: every parameter that is taken has numbers, all at places in it. */
static void fuzz_shapes(const unsigned char *data, size_t size)
{
    dt__manifest m;
    dt__net net;
    char *was;
    memset(&m, 0, sizeof m);
    memset(&net, 0, sizeof net);
    net.tensor_shards = net.own_shards = 2;
    was = copy_of(data, size);
    m.json.path = "manifest", m.json.text = was, m.json.bytes = (int64_t)size;
    if (dt__net_read(&net, &m)) refused();
    for (int32_t i = 0; i < net.param_count; i++) {
        const dt__param *p = &net.params[i].is;
        int64_t array = dt__param_arrays(p) - 1, last = dt__shard_floats(p) - 1;
        if (last < 0 || net.params[i].count <= last || dt__param_run(p, last) < 1 ||
            dt__param_index(p, array, last) >= dt_shape_count(p->shape))
            stop("a parameter without numbers");
    }
    dt__net_close(&net);
    dt__free(m.json.string);
    free(was);
}

/* Names of 1 to 40 letters that JSON must escape or not, numbered so that all differ. */
static void fuzz_names(const unsigned char *data, size_t size)
{
    dt__tensor_file w;
    dt__tensors t;
    char names[64][64];
    int64_t count = 0;
    (void)dt__tensor_file_begin(&w, dt__path_of("./none"));
    for (size_t i = 0; i + 2 < size && count < 64; count++) {
        size_t length = 1 + data[i] % 40, used = 0;
        dt_shape shape = dt_shape2(data[i + 1] % 7, 3);
        int type = data[i + 2] % 4;
        for (i += 3; used < length && i < size; i++) names[count][used++] = (char)(data[i] % 127 + 1);
        snprintf(names[count] + used, 8, "#%d", (int)count);
        dt__tensor_file_name(&w, names[count], type, &shape);
    }
    dt__text_add(&w.header, "}");
    if (w.header.failed || read_header(&t, w.header.at, w.header.length, w.bytes)) stop("our own header");
    t.file = (dt__stored_file *)dt__alloc((int64_t)sizeof *t.file, "a file");
    if (!t.file) stop("no memory");
    check_tensors(&t, 8 + w.header.length, w.bytes);
    if (t.count != count) stop("another number of tensors");
    for (int64_t i = 0; i < count; i++)
        if (!dt__tensors_find(&t, names[i])) stop("a name that does not come back");
    dt__tensors_close(&t);
    dt__free(w.header.at);
}

/* A checkpoint that a trainer wrote (tests/checkpoints), some numbers of whose manifest are others: opened and read, its
 * recipe taken and a generator made of it. The seal is right. */
static void fuzz_numbers(const unsigned char *data, size_t size)
{
    static const char *const names[] = {"full", "sharded", "zero3", "tensor", "experts", "segments", "text"};
    static const char *const odd[] = {"0", "1", "-1", "2", "3", "7", "1024", "65536", "1099511627776", "4611686018427387904",
                                      "9223372036854775807", "-9223372036854775808", "1e308", "1e999", "0.5", "\"x\"", "null", "[1]"};
    static char scratch[] = "/tmp/dtrain-fuzz-XXXXXX";
    static float numbers[1 << 16];
    static int made; /* the folder */
    char path[300], line[600], *was;
    const char *name = names[size ? data[0] % 7 : 0];
    int64_t bytes, count = 0;
    int quoted = 0;
    dt__text text;
    dt_checkpoint *c = NULL;
    dt_trainer *g = NULL;
    dt_recipe recipe;
    dt_layout layout = dt_layout_default();
    memset(&text, 0, sizeof text);
    if (!made) {
        made = 1;
        if (!mkdtemp(scratch)) stop("no scratch directory");
        snprintf(line, sizeof line, "cp -r %.*scheckpoints/. %s", (int)(strrchr(__FILE__, '/') + 1 - __FILE__), __FILE__, scratch);
        if (system(line)) stop(line);
        setenv("DT_MEM_LIMIT", "64M", 1);
    }
    snprintf(path, sizeof path, "%s/%s/manifest", scratch, name);
    if (access(path, F_OK)) {
        snprintf(line, sizeof line, "cp %s/%s/step-000000002/manifest.json %s", scratch, name, path);
        if (system(line)) stop(line);
    }
    if (dt__file_get(path, 1 << 20, &was, &bytes)) stop("a manifest");
    bytes -= (int64_t)sizeof DT__MANIFEST_SEAL - 1 + 64 + 4;
    for (const char *p = was; p < was + bytes;) {
        size_t run = strspn(p, quoted ? "" : "-+.e0123456789");
        const char *change = NULL;
        if (run) count++;
        for (size_t i = 1; i + 2 < size && run; i += 3)
            if ((data[i] + 256 * data[i + 1]) % 140 == count - 1) change = odd[data[i + 2] % (sizeof odd / sizeof *odd)];
        if (!run) run = 1, quoted ^= *p == '"';
        if (change) dt__text_add(&text, "%s", change);
        else dt__text_add(&text, "%.*s", (int)run, p);
        p += run;
    }
    seal(&text);
    snprintf(path, sizeof path, "%s/%s/step-000000002/manifest.json", scratch, name);
    if (text.failed || dt__file_put(path, text.at, text.length)) stop("a manifest");
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    if (dt_checkpoint_open(&c, path) || dt_checkpoint_verify(c)) refused();
    for (int64_t i = 0; c && i < c->arrays; i++)
        if (c->array[i].bytes <= (int64_t)sizeof numbers && dt_checkpoint_read(c, i, numbers)) refused();
    dt_checkpoint_close(&c);
    layout.threads = 1;
    if (dt_recipe_from(&recipe, path)) refused();
    if (dt_predictor_open(&g, path, NULL, &layout)) refused();
    dt_trainer_close(&g);
    dt__free(text.at);
    dt__free(was);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    int kind = size ? data[0] % 6 : 0;
    if (size) data++, size--;
    if (kind == 0) fuzz_file(data, size);
    else if (kind == 1) fuzz_header(data, size);
    else if (kind == 2) fuzz_manifest(data, size);
    else if (kind == 3) fuzz_names(data, size);
    else if (kind == 4) fuzz_shapes(data, size);
    else fuzz_numbers(data, size);
    return 0;
}

#ifndef DT_FUZZER
#include "fuzz.h"

static const char *const words[] = {"\"", "{", "}", "[", "]", ",", ":", "\\u0041", "\\", "null", "true", "1e9", "-1", "0", "00",
                                    "9223372036854775807", "18446744073709551616", "999999999999999", "\"dtype\":\"F32\"",
                                    "\"F16\"", "\"U8\"", "\"shape\":[", "\"data_offsets\":[", "\"__metadata__\":{}", "\"files\":",
                                    "\"recipe\":{}", "\"step\":", "\"full\"", "\"version\": 2", "\"version\": 3", "\"sha256\":",
                                    "\"../x\"", "\xff", " ", "\n", NULL};

/* A header of some tensors; all their bytes. */
static int64_t seed_header(dt__text *text)
{
    static const char *const name[] = {"weight/transformer.wte.weight/000000/000000000000", "lm_head.weight", "x", "first.y"};
    dt__tensor_file w;
    (void)dt__tensor_file_begin(&w, dt__path_of("./none"));
    for (int i = 0; i < 4; i++) {
        dt_shape shape = i == 2 ? dt_shape1(0) : dt_shape2(1 + draw(5), 1 + draw(9));
        dt__tensor_file_name(&w, name[i], (int)draw(4), &shape);
    }
    dt__text_add(&w.header, "}");
    *text = w.header;
    return w.bytes;
}

/* A manifest as a trainer writes it, without the seal. */
static void seed_manifest(dt__text *text)
{
    static dt_trainer t;
    dt__part_file file[2];
    memset(file, 0, sizeof file);
    memset(text, 0, sizeof *text);
    if (!t.comm && dt_comm_open(&t.comm, NULL, NULL)) stop("comm");
    t.recipe = dt_recipe_default();
    t.layout = dt_layout_default();
    t.layout.checkpoint.kind = (int32_t)draw(2);
    t.feed.is.samples[DT_TRAIN] = 100;
    t.save.now.full = t.layout.checkpoint.kind == DT_FULL;
    for (int i = 0; i < 2; i++) {
        snprintf(file[i].name, sizeof file[i].name, "shard-%03d.safetensors", i);
        memset(file[i].hash, 'a', 64);
        file[i].bytes = draw(100000);
    }
    dt__options_preset(dt__manifest_members, 0, &t.save.now);
    t.save.now.step = draw(1000);
    memset(t.save.now.model, 'b', 64);
    memset(t.save.now.data, 'c', 64);
    dt__trainer_manifest(&t, text, file, 1 + draw(2));
    text->length -= (int64_t)sizeof DT__MANIFEST_SEAL - 1 + 64 + 4;
    dt_comm_close(&t.comm);
}

/* Parameters with and without a cut, padding, groups and experts. */
static void seed_shapes(dt__text *text)
{
    dt__net net;
    int32_t index;
    memset(&net, 0, sizeof net);
    memset(text, 0, sizeof *text);
    net.tensor_shards = net.own_shards = 2;
    for (int i = 0; i < 4; i++) {
        dt__param p;
        memset(&p, 0, sizeof p);
        snprintf(p.name, sizeof p.name, "part.%d", i);
        p.shape = dt_shape2(4 * (1 + (int)draw(9)) - (i == 3), 4 * (1 + (int)draw(9)));
        p.cut = i == 3 ? 0 : i - 1, p.groups = i == 3 ? 1 : 1 + (int)draw(2), p.pad = i == 3;
        p.shards = p.own_shards = p.cut < 0 ? 1 : 2, p.experts = p.own_experts = i == 2 ? 2 : 0;
        if (dt__net_param_add(&net, &p, &index)) stop("a parameter");
    }
    dt__text_add(text, "{");
    dt__net_text(text, &net);
    dt__text_add(text, "}");
    dt__net_close(&net);
}

static size_t seed(unsigned char *p)
{
    dt__text text;
    int64_t bytes, n = 1;
    p[0] = (unsigned char)draw(6);
    if (p[0] == 3 || p[0] == 5) {
        for (; n < (p[0] == 3 ? 400 : 8); n++) p[n] = (unsigned char)draw(256);
        return (size_t)n;
    }
    if (p[0] == 4) seed_shapes(&text), bytes = 0;
    else if (p[0] == 2) seed_manifest(&text), bytes = 0;
    else bytes = seed_header(&text);
    if (p[0] == 0)
        for (int i = 0; i < 8; i++) p[n++] = (unsigned char)((uint64_t)text.length >> 8 * i);
    if (p[0] == 1)
        for (int i = 0; i < 4; i++) p[n++] = (unsigned char)((uint64_t)bytes >> 8 * i);
    if (text.failed) stop("no memory");
    memcpy(p + n, text.at, (size_t)text.length);
    n += text.length;
    for (; p[0] == 0 && bytes; bytes--) p[n++] = (unsigned char)draw(256);
    dt__free(text.at);
    return (size_t)n;
}

int main(int argc, char **argv)
{
    fuzz(argc, argv, words, seed);
    return 0;
}
#endif
