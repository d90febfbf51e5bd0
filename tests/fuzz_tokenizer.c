/* Feeds the tokenizer readers, the encoder and the learner with bytes that nobody wrote. The first byte chooses what the
 * others are: a .json file, merges for a fixed vocabulary, a text to encode by four tokenizers and to decode again, or a
 * text to learn from. Found are crashes, what the sanitizers see, and texts that do not come back.
 *
 *     clang -g -O1 -DDT_DEBUG -DDT_FUZZER -fsanitize=fuzzer,address,undefined -I. tests/fuzz_tokenizer.c -o fuzz -lm -lpthread
 *     mkdir corpus; ./fuzz -max_total_time=600 corpus
 * or, with mutations of its own and any compiler, for so many seconds:
 *     gcc -g -O1 -DDT_DEBUG -fsanitize=address,undefined -I. tests/fuzz_tokenizer.c -o fuzz -lm -lpthread
 *     ./fuzz 600 */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/tools/tokenizer.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void stop(const char *what)
{
    fprintf(stderr, "fuzz_tokenizer: %s: %s\n", what, dt_last_error());
    abort();
}

/* A cursor over a copy whose NUL is the last byte of its memory. */
static dt__json cursor(const unsigned char *data, size_t size)
{
    dt__json j;
    char *copy = (char *)malloc(size + 1);
    if (!copy) stop("no memory");
    memcpy(copy, data, size);
    copy[size] = 0;
    memset(&j, 0, sizeof j);
    j.path = "input";
    j.text = copy;
    j.bytes = (int64_t)size;
    return j;
}
static void done(dt__json *j)
{
    free((void *)(uintptr_t)j->text);
    dt__free(j->string);
}

/* Encodes and decodes; every id must be known, and the text must come back. */
static void round_trip(const dt_tokenizer *t, const unsigned char *text, size_t size)
{
    int64_t n = (int64_t)size, count, bytes;
    int32_t *ids = (int32_t *)malloc(sizeof *ids * size + 1);
    char *back = (char *)malloc(size + 1);
    if (!ids || !back) stop("no memory");
    for (int special = 0; special < 2; special++) {
        if (dt_tokenizer_encode(t, text, n, special, ids, &count)) stop("encode");
        if (count > n || dt_tokenizer_decode(t, ids, count, NULL, &bytes) || bytes != n) stop("length");
        if (dt_tokenizer_decode(t, ids, count, back, &bytes) || (n && memcmp(back, text, size))) stop("round trip");
    }
    free(ids);
    free(back);
}

static void fuzz_json(const unsigned char *data, size_t size)
{
    dt__json j = cursor(data, size);
    dt_tokenizer *t = (dt_tokenizer *)dt__alloc((int64_t)sizeof *t, "a tokenizer");
    if (!t) stop("no memory");
    dt__classes(t->classes);
    if (dt__read_json(t, &j) && !dt__tokenizer_finish(t, "input"))
        round_trip(t, data, size);
    else if (!strchr(dt_last_error(), ':') && !strstr(dt_last_error(), ". ")) stop("an error without a sentence");
    dt_tokenizer_close(&t);
    done(&j);
}

/* Read once: the golden tokenizers. */
static const dt_tokenizer *known(int which)
{
    static const char *const name[2] = {"gpt2.json", "llama3.json"};
    static dt_tokenizer *t[2];
    char path[512];
    const char *slash = strrchr(__FILE__, '/');
    snprintf(path, sizeof path, "%.*sgolden/tokens/%s", slash ? (int)(slash - __FILE__) + 1 : 0, __FILE__, name[which]);
    if (!t[which] && dt_tokenizer_open(&t[which], path)) stop("open");
    return t[which];
}

/* Learns from the text in a file, by one rule or the other. */
static void fuzz_learn(const unsigned char *data, size_t size)
{
    static const char *const special[] = {"<|end|>", "ab", NULL};
    static char name[3][100];
    const char *text = name[0];
    tokenizer_learned is;
    dt_tokenizer *t;
    FILE *f;
    if (!*name[0]) {
        snprintf(name[0], sizeof name[0], "/tmp/fuzz_tokenizer_%ld.txt", (long)getpid());
        snprintf(name[1], sizeof name[1], "/tmp/fuzz_tokenizer_%ld", (long)getpid());
        snprintf(name[2], sizeof name[2], "%.80s/tokenizer.json", name[1]);
    }
    f = fopen(text, "wb");
    if (!f || fwrite(data, 1, size, f) != size || putc('.', f) < 0 || fclose(f)) stop("write");
    if (tokenizer_learn(&text, 1, 400, size & 1 ? DT_PRETOKENS_LLAMA3 : DT_PRETOKENS_GPT2, special, name[1], 1, &is) ||
        dt_tokenizer_open(&t, name[1]))
        stop("learn");
    round_trip(t, data, size);
    dt_tokenizer_close(&t);
    if (unlink(name[2]) || rmdir(name[1]) || unlink(text)) stop("remove");
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    int kind = size ? data[0] % 3 : 0;
    if (size) data++, size--;
    if (kind == 0) fuzz_json(data, size);
    else if (kind == 1) for (int i = 0; i < 2; i++) round_trip(known(i), data, size);
    else fuzz_learn(data, size);
    return 0;
}

#ifndef DT_FUZZER
#include "fuzz.h"

static const char *const words[] = {"\"", "{", "}", "[", "]", ",", ":", "\\u", "\\ud83d\\ude00", "null", "true", "1e9",
                                    "\"a b\"", "\"id\":", "\"vocab\":", "\"merges\":", "<|end|>", "'s", "\xff", "\xe2\x82",
                                    " ", "\n", "\r\n", "123", "\xcc\x81", "\"type\":", "[tool]", "-", "0", NULL};

/* A seed: a golden file, a piece of it, or a few words. */
static size_t seed(unsigned char *p)
{
    static const char *const name[] = {"llama3.json", "gpt2.json", "train.txt", "cases.txt"};
    static const unsigned char kind[] = {0, 0, 1, 2};
    static unsigned char file[1 << 17];
    uint32_t which = draw(4), from;
    char path[512];
    const char *slash = strrchr(__FILE__, '/');
    size_t n;
    FILE *f;
    snprintf(path, sizeof path, "%.*sgolden/tokens/%s", slash ? (int)(slash - __FILE__) + 1 : 0, __FILE__, name[which]);
    f = fopen(path, "rb");
    if (!f) stop(path);
    n = fread(file, 1, sizeof file, f);
    fclose(f);
    from = which > 1 ? draw((uint32_t)n) : 0;
    n -= from;
    if (which > 1 || n > MOST / 2) n = n < 2000 ? n : which < 2 ? MOST / 2 : draw(2000);
    p[0] = kind[which];
    memcpy(p + 1, file + from, n);
    return n + 1;
}

int main(int argc, char **argv)
{
    fuzz(argc, argv, words, seed);
    for (int i = 0; i < 2; i++) { /* so that a leak is only what leaked */
        dt_tokenizer *t = (dt_tokenizer *)(uintptr_t)known(i);
        dt_tokenizer_close(&t);
    }
    return 0;
}
#endif
