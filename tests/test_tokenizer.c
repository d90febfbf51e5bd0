/* H11 tokenizers: pre-tokens, ids against the reference implementations (golden/tokens, made by make_golden_tokens.py),
 * merging and the tool's learning against plain references, files of every bad kind, token shards, memory that runs out.
 * With an argument: writes tokenizers and cases into that folder, for test_tokenizer.t. */
#include <stddef.h>
void *test_malloc(size_t bytes);
void test_free(void *p);
#define DT_MALLOC(bytes) test_malloc(bytes)
#define DT_FREE(p) test_free(p)
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <dirent.h>
#include "../examples/tools/tokenizer.h"
#include "tap.h"

/* Has the id these bytes? */
static int token_is(const dt_tokenizer *t, int64_t id, const char *bytes, int64_t count)
{
    int64_t has = 0;
    const char *text = dt_tokenizer_token(t, id, &has);
    return text && has == count && !memcmp(text, bytes, (size_t)count);
}

/* ---- memory that fails at the n-th request --------------------------------------------------- */

static int64_t requests, fail_at = -1, alive; /* fail_at: -1 never */

void *test_malloc(size_t bytes)
{
    if (requests++ == fail_at) return NULL;
    alive++;
    return malloc(bytes);
}
void test_free(void *p)
{
    alive -= p != NULL;
    free(p);
}

/* ---- helpers ----------------------------------------------------------------------------------- */

static char folder[64];

/* A path in the test's own folder. The last 64 answers stay valid. */
static const char *in(const char *name)
{
    static char path[64][256];
    static int next;
    next = (next + 1) % 64;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

static const char *golden(const char *name)
{
    static char path[64][512];
    static int next;
    const char *slash = strrchr(__FILE__, '/');
    next = (next + 1) % 64;
    snprintf(path[next], sizeof path[next], "%.*sgolden/tokens/%s", slash ? (int)(slash - __FILE__) + 1 : 0, __FILE__,
             name);
    return path[next];
}

static void put(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in(name), "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) tap_bail("cannot write %s", in(name));
}
static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

/* A whole file, ended by a NUL; to be freed. */
static char *slurp(const char *path, int64_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *text = (char *)malloc(1 << 22);
    *bytes = f && text ? (int64_t)fread(text, 1, (1 << 22) - 1, f) : 0;
    if (!f || !text) tap_bail("cannot read %s", path);
    text[*bytes] = 0;
    fclose(f);
    return text;
}

static dt_tokenizer *opened(const char *path)
{
    dt_tokenizer *t;
    if (dt_tokenizer_open(&t, path)) tap_bail("%s", dt_last_error());
    return t;
}

/* Learns a vocabulary and opens it. */
static dt_tokenizer *learned(const char *text, int64_t vocabulary, dt_pretokens rule, const char *const *special)
{
    tokenizer_learned is;
    unlink(in("learned/tokenizer.json"));
    if (tokenizer_learn(&text, 1, vocabulary, rule, special, in("learned"), 1, &is)) tap_bail("cannot learn");
    return opened(in("learned"));
}

static uint32_t state = 1;
static uint32_t draw(uint32_t n) /* 0..n-1 */
{
    state = state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(state >> 8) * n >> 24);
}

/* ---- pre-tokens ---------------------------------------------------------------------------------- */

static void test_classes(const char *want)
{
    static char digits[DT__CODES];
    static uint8_t map[DT__CODES];
    char hex[65], text[4];
    dt__sha256 h;
    dt__classes(map);
    for (uint32_t c = 0; c < DT__CODES; c++) {
        int length = 0, bytes = dt__utf8_put(c, text);
        int kind = dt__class_of(map, (const unsigned char *)text, bytes, &length);
        if (c < 0xd800 || c >= 0xe000 ? length != bytes : length != 1 || kind) tap_bail("U+%04X is misread", c);
        digits[c] = (char)('0' + kind);
    }
    dt__sha256_begin(&h);
    dt__sha256_add(&h, digits, sizeof digits);
    dt__sha256_end(&h, hex);
    tap_ok(!strncmp(hex, want, 64), "letters, numbers and white space are those of the reference: every code point");
}

/* Where the rules cut, as text with | between. A byte that is not UTF-8 is a character of no class. */
static void test_cuts(void)
{
    static const struct {
        const char *text, *gpt2, *llama3;
    } row[] = {
        {"\xff", "\xff", "\xff"},
        {"a\xff", "a|\xff", "a|\xff"},
        {"\xff" "a", "\xff|a", "\xff" "a"},
        {" \xff!a", " \xff!|a", " \xff!|a"},
        {"\xe2\x82" "b 1", "\xe2\x82|b| 1", "\xe2\x82|b| |1"},
        {"\xc0\x80" "1", "\xc0\x80|1", "\xc0\x80|1"},           /* overlong */
        {"\xed\xa0\x80 x", "\xed\xa0\x80| x", "\xed\xa0\x80| x"}, /* a surrogate */
        {"\xf4\x90\x80\x80", "\xf4\x90\x80\x80", "\xf4\x90\x80\x80"},
        {"\xf8\x88\x80\x80", "\xf8\x88\x80\x80", "\xf8\x88\x80\x80"},
        {"x\xc3", "x|\xc3", "x|\xc3"},
        {"12345's", "12345|'s", "123|45|'s"},
        {"'\xc5\xbfx'LLy", "'|\xc5\xbfx|'|LLy", "'\xc5\xbf|x|'LL|y"}, /* the long s */
        {"\t\xff\n\nq", "\t|\xff|\n|\n|q", "\t|\xff\n\n|q"},
    };
    static uint8_t map[DT__CODES];
    dt__classes(map);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const unsigned char *p = (const unsigned char *)row[i].text;
        int64_t n = (int64_t)strlen(row[i].text);
        for (int rule = 0; rule < 2; rule++) {
            char cut[64];
            int64_t used = 0, length;
            for (int64_t at = 0; at < n; at += length) {
                length = dt__pretoken(map, (dt_pretokens)rule, p + at, n - at);
                if (at) cut[used++] = '|';
                memcpy(cut + used, p + at, (size_t)length);
                used += length;
            }
            cut[used] = 0;
            if (!tap_ok(!strcmp(cut, rule ? row[i].llama3 : row[i].gpt2), "cuts %d, rule %d", (int)i, rule))
                tap_note("%s", cut);
        }
    }
}

/* ---- golden ids ----------------------------------------------------------------------------------- */

/* Does t give the ids behind the colon of a line, and the text back? */
static int case_is_right(const dt_tokenizer *t, const char *line, int special)
{
    static unsigned char text[4096], back[4096];
    static int32_t ids[4096];
    int64_t n = 0, count, bytes;
    char *end;
    for (; *line != ':'; line += 2, n++) {
        char hex[3] = {line[0], line[1], 0};
        text[n] = (unsigned char)strtol(hex, NULL, 16);
    }
    if (dt_tokenizer_encode(t, text, n, special, ids, &count)) return 0;
    line++;
    for (int64_t i = 0; i < count; i++, line = end)
        if (strtol(line, &end, 10) != ids[i] || end == line) return 0;
    if (line[strspn(line, " ")] != '\n') return 0;
    return !dt_tokenizer_decode(t, ids, count, (char *)back, &bytes) && bytes == n && !memcmp(text, back, (size_t)n);
}

static void test_golden(void)
{
    static const char *const kind[2] = {"gpt2", "llama3"};
    dt_tokenizer *t[2];
    int64_t bytes;
    int cases[2] = {0, 0}, wrong[2] = {0, 0};
    char *text = slurp(golden("cases.txt"), &bytes), *line = text;
    t[0] = opened(golden("gpt2.json"));
    t[1] = opened(golden("llama3.json"));
    test_classes(line + strlen("classes "));
    while ((line = strchr(line, '\n')) != NULL && *++line) {
        int which = 0;
        while (which < 2 && strncmp(line, kind[which], strlen(kind[which]))) which++;
        if (which == 2) tap_bail("an unknown line in cases.txt");
        cases[which]++;
        if (case_is_right(t[which], line + strlen(kind[which]) + 3, line[strlen(kind[which]) + 1] == '1')) continue;
        if (!wrong[which]++) tap_note("%.*s", (int)strcspn(line, "\n"), line);
    }
    for (int i = 0; i < 2; i++) {
        tap_ok(cases[i] > 10 && !wrong[i], "%s: %d texts have the ids of the reference and decode to themselves", kind[i],
               cases[i]);
        dt_tokenizer_close(&t[i]);
    }
    free(text);
}

/* ---- round trip on any bytes ------------------------------------------------------------------------ */

static void test_round_trip(void)
{
    static const char *const pieces[] = {"'s", "<|end|>", " ", "\n", "[tool]", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "12",
                                         "the", "\xcc\x81", "\xff", "\xe2\x82", "<|a b|>", "'\xc5\xbf", "\r\n", "<|end|>>"};
    static const int64_t sizes[] = {0, 1, 2, 3, 31, 32, 33, 255, 256, 257, 1000, 5000};
    static const char *const files[2] = {"gpt2.json", "llama3.json"};
    static unsigned char text[8192], back[8192];
    static int32_t ids[8192];
    for (int f = 0; f < 2; f++) {
        dt_tokenizer *t = opened(golden(files[f]));
        int fine = 1;
        for (int round = 0; round < 600 && fine; round++) {
            int64_t n = 0, want = sizes[round % 12], count, bytes;
            while (n < want) {
                const char *piece = pieces[draw(16)];
                if (round % 3 == 0) text[n++] = (unsigned char)draw(256);
                else for (; *piece && n < want; piece++) text[n++] = (unsigned char)*piece;
                if (round % 3 == 2 && draw(4) == 0) text[n - 1] = (unsigned char)draw(256);
            }
            fine = !dt_tokenizer_encode(t, text, n, round & 1, ids, &count) && count <= n &&
                   !dt_tokenizer_decode(t, ids, count, NULL, &bytes) && bytes == n &&
                   !dt_tokenizer_decode(t, ids, count, (char *)back, &bytes) && !memcmp(text, back, (size_t)n);
        }
        tap_ok(fine, "%s: 600 random texts of bytes decode to themselves", files[f]);
        ids[0] = 999999, ids[1] = -1;
        tap_ok(dt_tokenizer_decode(t, ids, 1, NULL, &(int64_t){0}) == DT_E_DATA, "%s", dt_last_error());
        tap_ok(dt_tokenizer_decode(t, ids + 1, 1, NULL, &(int64_t){0}) == DT_E_DATA, "%s", dt_last_error());
        dt_tokenizer_close(&t);
    }
}

/* ---- merging and learning, as plainly as they can be written --------------------------------------- */

static int32_t rank_of[400][400]; /* 1 + the rank of the merge of two ids; 0: there is none */
static void plain_ranks(const dt_tokenizer *t)
{
    int32_t left, right;
    memset(rank_of, 0, sizeof rank_of);
    for (int32_t rank = 0; dt_tokenizer_merge(t, rank, &left, &right); rank++) rank_of[left][right] = rank + 1;
}

/* Merges the pair of the lowest rank, the leftmost of equals, until there is none. */
static int64_t plain_merge(const dt_tokenizer *t, int32_t *symbol, int64_t n)
{
    for (;;) {
        int32_t best = 0;
        int64_t at = -1;
        for (int64_t i = 0; i + 1 < n; i++) {
            int32_t rank = rank_of[symbol[i]][symbol[i + 1]];
            if (rank && (!best || rank < best)) best = rank, at = i;
        }
        if (at < 0) return n;
        symbol[at] = (int32_t)t->merge.entry[best - 1].value;
        memmove(symbol + at + 1, symbol + at + 2, sizeof *symbol * (size_t)(n - at - 2));
        n--;
    }
}

/* Do words of 1 to 150 letters have the ids of the plain reference? */
static int merges_plainly(const dt_tokenizer *t, int rounds)
{
    int32_t ids[200], symbol[200];
    unsigned char word[200];
    int fine = 1;
    plain_ranks(t);
    for (int64_t n = 1; n <= 150; n++) {
        for (int round = 0; round < rounds && fine; round++) {
            int64_t count, want;
            for (int64_t i = 0; i < n; i++) word[i] = (unsigned char)('a' + draw((uint32_t)round % 3 + 1));
            for (int64_t i = 0; i < n; i++) symbol[i] = t->byte_id[word[i]];
            want = plain_merge(t, symbol, n);
            fine = !dt_tokenizer_encode(t, word, n, 1, ids, &count) && count == want &&
                   !memcmp(ids, symbol, sizeof *ids * (size_t)count);
        }
    }
    return fine;
}

/* Gives t every merge of two tokens into a third, in any order: a merge may then make a pair of a lower rank. */
static void shuffle(dt_tokenizer *t)
{
    static int32_t merge[2000][3];
    int64_t count = 0, bytes = 0;
    dt__table_free(&t->merge);
    memset(&t->merge, 0, sizeof t->merge);
    for (int32_t id = 256; id < t->token.count; id++) {
        const char *text = dt_tokenizer_token(t, id, &bytes);
        for (int64_t left = 1; left < bytes && count < 2000; left++) {
            merge[count][0] = (int32_t)dt__table_find(&t->token, text, left);
            merge[count][1] = (int32_t)dt__table_find(&t->token, text + left, bytes - left);
            merge[count][2] = id;
            count += merge[count][0] >= 0 && merge[count][1] >= 0;
        }
    }
    for (; count > 0; count--) {
        int32_t *any = merge[draw((uint32_t)count)];
        if (!dt__table_put(&t->merge, t->merge.count, any, sizeof(int32_t[2]))) tap_bail("no memory");
        t->merge.entry[t->merge.count - 1].value = any[2];
        memmove(any, merge[count - 1], sizeof merge[0]);
    }
}

static void test_merging(void)
{
    dt_tokenizer *t;
    int fine = 1;
    put_text("ab.txt", "abababab aabbaabb abcabcabc aaaaaaaa bbbbbb cacacac abbaabba ccccabab aabaab bcbcbc abcabc "
                       "aaab baaa cabcab abab bbaa aabb aaa bbb ccc abc cba acb aaaa bbbb\n");
    t = learned(in("ab.txt"), 300, DT_PRETOKENS_GPT2, NULL);
    tap_ok(merges_plainly(t, 8), "words of 1 to 150 letters: the merges of the plain reference");
    for (int round = 0; round < 10 && fine; round++) {
        char text[1000];
        for (size_t i = 0; i < sizeof text; i++) text[i] = "aabbc "[draw(6)];
        put("random.txt", text, sizeof text);
        dt_tokenizer_close(&t);
        t = learned(in("random.txt"), 340, DT_PRETOKENS_GPT2, NULL);
        shuffle(t);
        fine = merges_plainly(t, 3);
    }
    tap_ok(fine, "and with every merge of two tokens, in any order");
    dt_tokenizer_close(&t);
}

/* Learns from words without spaces, one per line, by counting all pairs anew before each merge. Fills merge[][2] with
 * bytes of the two sides and returns how many merges there are. */
typedef struct plain_learner {
    char token[400][64]; /* by id */
    int32_t word[64][64], length[64], merge[400][2];
    int words, tokens, merges;
} plain_learner;

static int plain_best(const plain_learner *p, int32_t *left, int32_t *right)
{
    static int count[400][400];
    int best = 1;
    for (int w = 0; w < p->words; w++)
        for (int i = 0; i + 1 < p->length[w]; i++) count[p->word[w][i]][p->word[w][i + 1]]++;
    for (int w = 0; w < p->words; w++)
        for (int i = 0; i + 1 < p->length[w]; i++) {
            int32_t a = p->word[w][i], b = p->word[w][i + 1];
            int n = count[a][b], first = n == best && (a != *left ? a < *left : b < *right);
            if (n > 1 && (n > best || first)) best = n, *left = a, *right = b;
        }
    for (int w = 0; w < p->words; w++)
        for (int i = 0; i + 1 < p->length[w]; i++) count[p->word[w][i]][p->word[w][i + 1]] = 0;
    return best > 1;
}

static void plain_learn(plain_learner *p, int vocabulary)
{
    int32_t left = 0, right = 0;
    while (p->tokens < vocabulary && plain_best(p, &left, &right)) {
        char made[128];
        int id = 0, known = 0;
        snprintf(made, sizeof made, "%s%s", p->token[left], p->token[right]);
        while (id < p->tokens && strcmp(p->token[id], made)) id++;
        if (id == p->tokens) snprintf(p->token[p->tokens++], 64, "%.63s", made);
        for (int i = 0; i < p->merges; i++) known = known || (p->merge[i][0] == left && p->merge[i][1] == right);
        if (!known) p->merge[p->merges][0] = left, p->merge[p->merges++][1] = right;
        for (int w = 0; w < p->words; w++)
            for (int i = 0; i + 1 < p->length[w]; i++) {
                if (p->word[w][i] != left || p->word[w][i + 1] != right) continue;
                p->word[w][i] = id;
                memmove(&p->word[w][i + 1], &p->word[w][i + 2], sizeof(int32_t) * (size_t)(p->length[w] - i - 2));
                p->length[w]--;
            }
    }
}

static void test_learning(void)
{
    static plain_learner p;
    static char text[64 * 66];
    int fine = 1, again = 0;
    for (int round = 0; round < 60 && fine; round++) {
        dt_tokenizer *t;
        int32_t left, right;
        int64_t used = 0;
        memset(&p, 0, sizeof p);
        for (int b = 0; b < 256; b++) p.token[tokenizer_byte_id(b)][0] = (char)(b ? b : 1);
        p.tokens = 256;
        p.words = 1 + (int)draw(40);
        for (int w = 0; w < p.words; w++) { /* letters only: the line end before a word is a pre-token of its own */
            p.length[w] = 1 + (int32_t)draw(20);
            for (int i = 0; i < p.length[w]; i++) {
                text[used++] = "abcd"[draw(2 + (uint32_t)round % 3)];
                p.word[w][i] = tokenizer_byte_id(text[used - 1]);
            }
            text[used++] = '\n';
        }
        put("words.txt", text, (size_t)used);
        plain_learn(&p, 330);
        t = learned(in("words.txt"), 330, (dt_pretokens)(round & 1), NULL);
        again += p.merges > p.tokens - 256;
        fine = t->merge.count == p.merges && t->token.count == p.tokens;
        for (int i = 0; i < p.merges && fine; i++)
            fine = dt_tokenizer_merge(t, i, &left, &right) && left == p.merge[i][0] && right == p.merge[i][1];
        dt_tokenizer_close(&t);
    }
    tap_ok(fine, "60 texts: the merges of the plain reference, in its order");
    tap_ok(!again, "  and no two of them make the same token");
}

/* The same strings in the same order, with the same values. */
static int same_table(const dt__table *a, const dt__table *b)
{
    if (a->count != b->count) return 0;
    for (int64_t i = 0; i < a->count; i++) {
        const dt__entry *x = &a->entry[i], *y = &b->entry[i];
        if (x->length != y->length || x->value != y->value) return 0;
        if (memcmp(a->bytes + x->at, b->bytes + y->at, (size_t)x->length)) return 0;
    }
    return 1;
}

/* The same text, the same vocabulary: the reference's trainer found the merges of the golden file. */
static void test_against_trainer(void)
{
    static const char *const file[2] = {"gpt2.json", "llama3.json"};
    static const int64_t size[2] = {700, 640};
    for (int rule = 0; rule < 2; rule++) {
        dt_tokenizer *t = learned(golden("train.txt"), size[rule], (dt_pretokens)rule, NULL);
        dt_tokenizer *want = opened(golden(file[rule]));
        int same;
        same = t->merge.count == want->merge.count && t->token.count == size[rule];
        same = same && same_table(&t->merge, &want->merge);
        tap_ok(same, "%s: learning gives the %lld merges of the reference's trainer", file[rule], (long long)want->merge.count);
        dt_tokenizer_close(&t);
        dt_tokenizer_close(&want);
    }
}

/* A word of n letters, none of which a cut helps with, takes n log n. */
static void test_long_words(void)
{
    enum { N = 1000000 };
    char *text = (char *)malloc(N);
    int32_t *ids = (int32_t *)malloc(N * sizeof *ids);
    dt_tokenizer *t = opened(golden("gpt2.json"));
    int64_t count = 0;
    if (!text || !ids) tap_bail("no memory");
    for (int i = 0; i < N; i++) text[i] = "thelamp"[draw(7)];
    tap_ok(!dt_tokenizer_encode(t, text, N, 1, ids, &count), "a word of 1 MB: %lld ids", (long long)count);
    dt_tokenizer_close(&t);
    put("long.txt", text, N);
    t = learned(in("long.txt"), 2000, DT_PRETOKENS_GPT2, NULL);
    tap_ok(dt_tokenizer_size(t) == 2000, "2000 ids of it");
    dt_tokenizer_close(&t);
    free(text);
    free(ids);
}

/* ---- files ------------------------------------------------------------------------------------------- */

static void test_saving(void)
{
    static const char *const special[] = {"<|endoftext|>", "\"quoted\\", NULL};
    dt_tokenizer *t;
    int64_t count = 0;
    int32_t ids[64];
    t = learned(golden("train.txt"), 400, DT_PRETOKENS_GPT2, special);
    tap_ok(t->token.count == 400 && token_is(t, 256, "<|endoftext|>", 13) && token_is(t, 257, "\"quoted\\", 8) &&
           t->merge.count == 142, "400 ids: bytes, two special tokens from 256 on, 142 merges");
    tap_ok(!dt_tokenizer_encode(t, "a<|endoftext|>b", 15, 1, ids, &count) && count == 3 && ids[1] == 256, "special");
    tap_ok(!dt_tokenizer_encode(t, "a<|endoftext|>b", 15, 0, ids, &count) && count > 5, "the same as text");
    dt_tokenizer_close(&t);
    put_text("plain", "x");
    t = learned(in("plain"), 300, DT_PRETOKENS_GPT2, NULL);
    tap_ok(t->token.count == 256, "a text without pairs gives 256 ids");
    dt_tokenizer_close(&t);
    dt_tokenizer_close(&t);
}

/* A walk hands out all bytes of a text in order, with the ids of encoding, and returns the error of a piece. */
typedef struct walked {
    int64_t bytes, ids, pieces, stop;
    int32_t id[64];
    char text[64];
} walked;
static dt_result take_piece(void *user, const char *text, int64_t bytes, const int32_t *ids, int64_t count)
{
    walked *w = (walked *)user;
    memcpy(w->text + w->bytes, text, (size_t)bytes);
    memcpy(w->id + w->ids, ids, sizeof *ids * (size_t)count);
    w->bytes += bytes, w->ids += count;
    return ++w->pieces == w->stop ? DT_E_STOPPED : DT_OK;
}
static void test_walk(void)
{
    static const char text[] = "the lamp<|end|>  letter [tool]x\n";
    walked w = {0};
    int64_t n = (int64_t)sizeof text - 1, count;
    int32_t ids[64];
    dt_tokenizer *t = opened(golden("llama3.json"));
    tap_ok(!dt_tokenizer_walk(t, text, n, 1, take_piece, &w) && !dt_tokenizer_encode(t, text, n, 1, ids, &count) &&
           w.bytes == n && !memcmp(w.text, text, (size_t)n) && w.ids == count && !memcmp(w.id, ids, 4 * (size_t)count) &&
           w.pieces == 8, "a walk: all bytes of 8 pieces, with the ids of encoding");
    if (w.pieces != 8) tap_note("%lld pieces", (long long)w.pieces);
    memset(&w, 0, sizeof w);
    w.stop = 2;
    tap_ok(dt_tokenizer_walk(t, text, n, 1, take_piece, &w) == DT_E_STOPPED && w.pieces == 2, "a piece may end it");
    tap_ok(dt_tokenizer_walk(t, text, n, 1, NULL, &w) == DT_E_USAGE, "%s", dt_last_error());
    dt_tokenizer_close(&t);
}

/* A tokenizer.json around these parts; NULL: a sound one. */
static const char *json(const char *pre, const char *rest, const char *added, const char *merges)
{
    static char text[20000];
    int n = snprintf(text, sizeof text, "{\"added_tokens\":%s,\n\"pre_tokenizer\":%s,\n\"model\":{%s,\"vocab\":{",
                     added ? added : "[]", pre ? pre : "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}",
                     rest ? rest : "\"type\":\"BPE\"");
    for (int b = 0; b < 256; b++) {
        char code[5] = {0};
        code[dt__utf8_put((uint32_t)(tokenizer_visible(b) ? b : 256 + tokenizer_byte_id(b) - 188), code)] = 0;
        n += snprintf(text + n, sizeof text - (size_t)n, "\"%s%s\":%d,", b == '"' || b == '\\' ? "\\" : "", code, b);
    }
    snprintf(text + n, sizeof text - (size_t)n, "\"ab\":256},\"merges\":%s}}", merges ? merges : "[\"a b\"]");
    return text;
}

/* Opening must fail with this code and a sentence that has `part` in it and says how to mend it. */
static void refuses(const char *path, dt_result code, const char *part)
{
    dt_tokenizer *t = (dt_tokenizer *)(void *)folder; /* must become NULL */
    int64_t before = alive;
    dt_result r = dt_tokenizer_open(&t, path);
    int fine = r == code && !t && strstr(dt_last_error(), part) && alive == before &&
               (strchr(dt_last_error(), ':') || strstr(dt_last_error(), ". "));
    if (!tap_ok(fine, "refused: %s", part)) tap_note("%s: %s", dt_result_name(r), r ? dt_last_error() : "opened");
    dt_tokenizer_close(&t);
}
static void refuses_text(const char *text, const char *part)
{
    put_text("bad.json", text);
    refuses(in("bad.json"), DT_E_DATA, part);
}

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define VOCABULARY(entries)                                                                                            \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"vocab\":{" entries          \
    "},\"merges\":[]}}"
#define SPLIT(pattern) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"Isolated\",\"invert\":false}"

static void test_json(void)
{
    static char deep[400];
    dt_tokenizer *t;
    put_text("bad.json", json(NULL, NULL, NULL, NULL));
    tap_ok(!dt_tokenizer_open(&t, in("bad.json")) && t->merge.count == 1, "the sound one opens");
    dt_tokenizer_close(&t);
    put_text("bad.json", json(NULL, NULL, "[{\"id\":300,\"content\":\"\\ud83d\\ude00\\u0000\\/\",\"special\":true}]",
                              "[[\"a\",\"b\"]]"));
    tap_ok(!dt_tokenizer_open(&t, in("bad.json")) && token_is(t, 300, "\xf0\x9f\x98\x80\0/", 6) &&
           t->merge.count == 1 && dt_tokenizer_size(t) == 301, "escapes, surrogates, merges as pairs, ids with holes");
    tap_ok(dt_tokenizer_decode(t, &(int32_t){270}, 1, NULL, &(int64_t){0}) == DT_E_DATA, "a hole: %s", dt_last_error());
    dt_tokenizer_close(&t);
    refuses_text("", "a '{' is missing");
    refuses_text("[1]", "line 1, byte 0 of the file: a '{' is missing");
    refuses_text("{\"a\"", "a ':' is missing");
    refuses_text("{\"a\":1", "a ',' is missing");
    refuses_text("{\"a\":1,}", "a '\"' is missing");
    refuses_text("{\"a\":1\n\n \"b\":2}", "line 3, byte 9 of the file: a ',' is missing");
    refuses_text("{\"a\":1} x", "something follows the last bracket");
    refuses_text("{\"a\":tru}", "a value is missing");
    refuses_text("{\"a\":-}", "a number is missing or incomplete");
    refuses_text("{\"a\":01}", "a number is missing or incomplete");
    refuses_text("{\"a\":1.}", "a number is missing or incomplete");
    refuses_text("{\"a\":1e}", "a number is missing or incomplete");
    refuses_text("{\"a\":-", "a number is missing or incomplete");
    refuses_text("{\"a\n\":1}", "a byte 0x0a, a control character or no UTF-8: write \\u000a");
    refuses_text("{\"\xff\":1}", "a byte 0xff, a control character or no UTF-8");
    refuses_text("{\"\xed\xa0\x80\":1}", "a byte 0xed, a control character or no UTF-8");
    refuses_text("{\"abc", "a string without an end");
    refuses_text("{\"\\x\":1}", "a backslash before something else");
    refuses_text("{\"\\u12g4\":1}", "four hexadecimal digits");
    refuses_text("{\"\\u12", "four hexadecimal digits");
    refuses_text("{\"\\ud83d\":1}", "half of a surrogate pair");
    refuses_text("{\"\\ud83d\\u0041\":1}", "half of a surrogate pair");
    refuses_text("{\"\\ude00\":1}", "half of a surrogate pair");
    memset(deep, '[', sizeof deep - 1);
    memcpy(deep, "{\"a\":", 5);
    refuses_text(deep, "more than 64 brackets are open");
    refuses_text(VOCABULARY("\"a\":1.5"), "a whole number from 0 to 1048575");
    refuses_text(VOCABULARY("\"a\":-1"), "a whole number from 0");
    refuses_text(VOCABULARY("\"a\":1048576"), "a whole number from 0");
    refuses_text(VOCABULARY("\"a\":\"b\""), "a number is missing or incomplete");
    refuses_text(VOCABULARY("\"\":1"), "token 1 is empty, or has the id or the text of another one");
    refuses_text(VOCABULARY("\"a\":1,\"b\":1"), "token 1 is empty, or has the id or the text of another one");
    refuses_text(VOCABULARY("\"a\":1,\"a\":2"), "token 2 is empty, or has the id or the text of another one");
    refuses_text("{\"model\":{},\"model\":{}}", "a second time");
}

/* Qwen 2's rule cuts digits one by one, and NFC leaves the texts alone that are in it. */
#define QWEN2 "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|" \
              "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
static void test_qwen2(void)
{
    static const char *const in_nfc[] = {"caf\xc3\xa9 12345's", "\xed\x95\x9c\xea\xb8\x80", "\xe5\xad\x97\xff\xcc", "q\xcc\x95\xcc\x9a",
                                         "\xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d\xe0\xa4\xa4\xe0\xa5\x87"};
    static const struct { const char *text; int at; } changes[] = {
        {"cafe\xcc\x81", 4}, {"\xe2\x84\xab", 0}, {"a\xef\xa4\x80", 1}, {"\xe1\x84\x80\xe1\x85\xa1", 3}, {"<end>x\xcc\x95\xcc\x96", 8}};
    int64_t count = 0;
    int32_t ids[64];
    char said[400];
    dt_tokenizer *t;
    dt_data *d = NULL;
    put_text("qwen2.json", json("{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT(QWEN2) "," BYTE_LEVEL "]}", NULL,
                                "[{\"id\":300,\"content\":\"<end>\",\"special\":true}],\"normalizer\":{\"type\":\"NFC\"}", "[]"));
    t = opened(in("qwen2.json"));
    tap_ok(t->rule == DT_PRETOKENS_QWEN2 && dt__pretoken(t->classes, t->rule, (const unsigned char *)"123", 3) == 1, "Qwen 2's rule");
    for (int i = 0; i < 5; i++)
        tap_ok(!dt_tokenizer_encode(t, in_nfc[i], (int64_t)strlen(in_nfc[i]), 1, ids, &count) &&
               count == (int64_t)strlen(in_nfc[i]), "a text in NFC: %d", i);
    for (int i = 0; i < 5; i++) {
        snprintf(said, sizeof said, "the text, byte %d: the tokenizer normalizes to NFC", changes[i].at);
        tap_ok(dt_tokenizer_encode(t, changes[i].text, (int64_t)strlen(changes[i].text), 1, ids, &count) == DT_E_DATA &&
               strstr(dt_last_error(), said), "%s", dt_last_error());
    }
    put_text("nfd.txt", "a text<end> with cafe\xcc\x81 in it");
    snprintf(said, sizeof said, "%s, byte 21: the tokenizer", in("nfd.txt"));
    tap_ok(dt_data_open(&d, in("nfd.txt"), t, 4, 0) == DT_E_DATA && strstr(dt_last_error(), said), "%s", dt_last_error());
    dt_tokenizer_close(&t);
}

static void test_refusals(void)
{
    refuses(NULL, DT_E_USAGE, "path is NULL");
    refuses(in("nowhere"), DT_E_FILE, "nowhere (No such file or directory): check the name");
    refuses("/dev/null", DT_E_DATA, "is not a plain file");
    mkdir(in("empty"), 0700);
    refuses(in("empty"), DT_E_FILE, "has no tokenizer.json: convert a vocab.json");
    put_text("empty/vocab.json", "{\"a\":1}");
    refuses(in("empty"), DT_E_FILE, "convert a vocab.json");
    refuses(in("empty/vocab.json"), DT_E_DATA, "this is not a tokenizer.json: convert a vocab.json");
    refuses_text(json(NULL, NULL, NULL, "[\"a b\",\"a b\"]"), "merge 1 stands here a second time");
    refuses_text(json(NULL, NULL, NULL, "[\"b x\"]"), "merge 0 has a side or a result that the vocabulary lacks");
    refuses_text(json(NULL, NULL, NULL, "[\"ba b\"]"), "merge 0 has a side or a result that the vocabulary lacks");
    refuses_text(json(NULL, NULL, NULL, "[\"ab\"]"), "a merge is two tokens, in a list or with one space");
    refuses_text(json(NULL, NULL, NULL, "[[\"a\"]]"), "a merge is two tokens, in a list or with one space");
    refuses_text(json(NULL, NULL, NULL, "[[\"a\",\"b\",\"a\"]]"), "a merge is two tokens, in a list or with one space");
    refuses_text(json(NULL, NULL, NULL, "[7]"), "a '\"' is missing");
    refuses_text(json(NULL, "\"type\":\"Unigram\"", NULL, NULL), "type Unigram: choose one of BPE");
    refuses_text(json(NULL, "\"dropout\":0.1", NULL, NULL), "dropout 0.1: choose one of 0,0.0");
    refuses_text(json(NULL, "\"continuing_subword_prefix\":\"##\"", NULL, NULL), "continuing_subword_prefix or end_of_word_suffix is not empty");
    refuses_text(json(NULL, "\"end_of_word_suffix\":\"</w>\"", NULL, NULL), "continuing_subword_prefix or end_of_word_suffix is not empty");
    refuses_text(json(NULL, "\"byte_fallback\":true", NULL, NULL), "byte_fallback true: choose one of false");
    refuses_text(json(NULL, "\"ignore_merges\":1", NULL, NULL), "ignore_merges 1: choose one of false,true");
    refuses_text("{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"vocab\":{}}}",
                 "there is no merges");
    refuses_text("{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"merges\":[]}}",
                 "there is no vocab");
    refuses_text("{\"model\":{\"vocab\":{},\"merges\":[]},\"normalizer\":{\"type\":\"Prepend\",\n\"prepend\":\"_\"}}", "line 1, byte 64 of the file: the normalizer is Prepend, but only NFC is");
    refuses_text("{\"model\":{\"vocab\":{},\"merges\":[]},\"normalizer\":{\"prepend\":\"_\"}}", "there is no type of the normalizer");
    refuses_text("{\"model\":{\"vocab\":{},\"merges\":[]},\"normalizer\":7}", "a '{' is missing");
    refuses_text("{\"normalizer\":{\"type\":\"Sequence\"},\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "of the file: type Unigram: choose one of BPE");
    refuses_text("{\"model\":{\"vocab\":{},\"merges\":[]}}", "the pre_tokenizer is neither ByteLevel with use_regex nor");
    refuses_text(json("null", NULL, NULL, NULL), "the pre_tokenizer is neither ByteLevel with use_regex nor");
    refuses_text(json("{\"type\":\"Whitespace\"}", NULL, NULL, NULL), "type Whitespace: choose one of ByteLevel,Split,Sequence");
    refuses_text(json("{\"a\":1}", NULL, NULL, NULL), "there is no type");
    refuses_text(json("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", NULL, NULL, NULL), "add_prefix_space true: choose one of false");
    refuses_text(json("{\"type\":\"ByteLevel\"}", NULL, NULL, NULL), "there is no add_prefix_space");
    refuses_text(json(BYTE_LEVEL, NULL, NULL, NULL), "is neither ByteLevel with use_regex nor");
    refuses_text(json("{\"type\":\"Sequence\",\"pretokenizers\":[]}", NULL, NULL, NULL), "is neither ByteLevel");
    refuses_text(json("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}]}", NULL, NULL, NULL), "type Digits");
    refuses_text(json("{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT("\\\\w+") "," BYTE_LEVEL "]}", NULL, NULL, NULL),
                 "Split by a pattern that is not GPT-2's");
    refuses_text(json(NULL, NULL, "[{\"id\":300,\"content\":\"x\",\"lstrip\":true}]", NULL), "lstrip true: choose one of false");
    refuses_text(json(NULL, NULL, "[{\"content\":\"x\"}]", NULL), "there is no id");
    refuses_text(json(NULL, NULL, "[{\"id\":300}]", NULL), "there is no content of an added token");
    refuses_text(json(NULL, NULL, "[{\"id\":300,\"content\":\"\"}]", NULL), "added token 300 is empty, or has the id of another one");
    refuses_text(json(NULL, NULL, "[{\"id\":300,\"content\":\"x\"},{\"id\":300,\"content\":\"y\"}]", NULL),
                 "added token 300 is empty, or has the id of another one");
    refuses_text(json(NULL, NULL, "[{\"id\":1,\"content\":\"xyz\"}]", NULL), "no token for the byte 0x01");
}

/* ---- data ---------------------------------------------------------------------------------------------- */

static int folder_has(const char *part)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int found = 0;
    while (dir && (entry = readdir(dir)) != NULL) found = found || strstr(entry->d_name, part);
    if (dir) closedir(dir);
    return found;
}

/* All training tokens of d are `ids`. */
static int holds(const dt_data *d, const int32_t *ids, int64_t count)
{
    int32_t *all = (int32_t *)malloc(sizeof *all * (size_t)count);
    int same = all && dt_data_tokens(d, DT_TRAIN) == count;
    if (same) dt__data_read(d, 0, count, all);
    same = same && !memcmp(all, ids, sizeof *ids * (size_t)count);
    free(all);
    return same;
}

static void test_shards(void)
{
    const char *train = golden("train.txt"), *two[2] = {train, train}, *late[2] = {train, in("missing")}, *empty = in("empty.txt");
    int64_t bytes, count, made = 0, files = 0;
    char *text = slurp(train, &bytes), both[600];
    int32_t *ids = (int32_t *)malloc(2 * sizeof *ids * (size_t)bytes);
    dt_tokenizer *t = opened(golden("llama3.json"));
    dt_data *d = NULL;
    if (!ids || dt_tokenizer_encode(t, text, bytes, 1, ids, &count)) tap_bail("%s", dt_last_error());
    tap_ok(!tokenizer_encode(&train, 1, t, in("one.bin"), 0, &made, &files) && made == count && files == 1, "one file of ids");
    tap_ok(!dt_data_open(&d, in("one.bin"), NULL, 16, 0) && holds(d, ids, count), "which opens and holds them");
    dt_data_close(&d);
    tap_ok(!tokenizer_encode(&train, 1, t, in("many.bin"), 1000, &made, &files), "shards of 1000");
    tap_ok(!dt_data_open(&d, in("many_*.bin"), NULL, 16, 0) && holds(d, ids, count), "the same ids in %d files", d ? d->shards : 0);
    tap_ok(d && d->shards == (int)dt__ceil_div(count, 1000) && d->shard[0].tokens == 1000, "of 1000 each but the last");
    dt_data_close(&d);
    tap_ok(!dt_data_open(&d, golden("train.txt"), t, 16, 0) && holds(d, ids, count), "a text, encoded when opened");
    tap_ok(d && dt__data_vocabulary(d) == dt_tokenizer_size(t), "its vocabulary is the tokenizer's");
    dt_data_close(&d);
    snprintf(both, sizeof both, "%s,%s", golden("train.txt"), in("one.bin"));
    memcpy(ids + count, ids, sizeof *ids * (size_t)count);
    tap_ok(!dt_data_open(&d, both, t, 16, 0) && holds(d, ids, 2 * count), "a text and ids together");
    dt_data_close(&d);
    tap_ok(!tokenizer_encode(two, 2, t, in("two.bin"), 0, &made, &files) && made == 2 * count, "two texts in one file");
    tap_ok(!dt_data_open(&d, golden("train.txt"), NULL, 16, 0) && dt__data_vocabulary(d) == 256, "no tokenizer: bytes");
    dt_data_close(&d);
    put_text("empty.txt", "");
    tap_ok(tokenizer_encode(&empty, 1, t, in("x.bin"), 0, &made, &files), "an empty text is refused");
    tap_ok(tokenizer_encode(&train, 1, t, in("no/x.bin"), 0, &made, &files), "so is a folder that is missing");
    tap_ok(tokenizer_encode(&train, 1, t, in("x.bin"), -1, &made, &files), "so are -1 ids per file");
    tap_ok(tokenizer_encode(&train, 1, t, in("one.bin"), 0, &made, &files), "and a file that is there already");
    tap_ok(tokenizer_encode(late, 2, t, in("late.bin"), 100, &made, &files) && !folder_has("late"),
           "an error behind the first shards leaves none");
    tap_ok(!folder_has(".tmp"), "nothing half-written stays behind");
    dt_tokenizer_close(&t);
    free(ids);
    free(text);
}

/* Files of any size give the same ids; a vocabulary that does not fit into 16 bits. */
static void test_blocks(void)
{
    static const char text[] = "Don't panic: <|end|> 12345\r\n\r\n  the [tool] qu\xff\xe2\x82 \xe2\x82\xac<|end|>> end of lamp";
    int32_t want[200];
    dt_tokenizer *t = opened(golden("llama3.json"));
    dt_data *d = NULL;
    char blocks_name[256];
    const char *blocks = blocks_name;
    int64_t count, made, files;
    int fine = 1;
    if (dt_tokenizer_encode(t, text, sizeof text - 1, 1, want, &count)) tap_bail("%s", dt_last_error());
    put("blocks.txt", text, sizeof text - 1);
    snprintf(blocks_name, sizeof blocks_name, "%s", in("blocks.txt"));
    for (int64_t limit = 1; limit <= 70 && fine; limit++) {
        char name[32], pattern[32];
        snprintf(name, sizeof name, "b%d.bin", (int)limit);
        snprintf(pattern, sizeof pattern, "b%d_*.bin", (int)limit);
        fine = !tokenizer_encode(&blocks, 1, t, in(name), limit, &made, &files) &&
               !dt_data_open(&d, in(pattern), NULL, 2, 0) && holds(d, want, count);
        dt_data_close(&d);
    }
    tap_ok(fine, "files of 1 to 70 ids: the same %lld ids", (long long)count);
    dt_tokenizer_close(&t);
    put_text("wide.json", json(NULL, NULL, "[{\"id\":70000,\"content\":\"<end>\",\"special\":true}]", NULL));
    t = opened(in("wide.json"));
    put_text("wide.txt", "abc<end>ab");
    tap_ok(!dt_data_open(&d, in("wide.txt"), t, 2, 0) && dt__data_vocabulary(d) == 70001, "70001 ids");
    want[0] = 256, want[1] = 'c', want[2] = 70000, want[3] = 256;
    tap_ok(d && holds(d, want, 4), "fit into data that was encoded when it was opened");
    dt_data_close(&d);
    blocks = in("wide.txt");
    tap_ok(!tokenizer_encode(&blocks, 1, t, in("wide.bin"), 0, &made, &files) && !dt_data_open(&d, in("wide.bin"), NULL, 2, 0) &&
           dt__data_vocabulary(d) == 70001 && holds(d, want, 4), "and into a token file of 32-bit ids");
    dt_data_close(&d);
    tap_ok(!tokenizer_encode(&blocks, 1, t, in("wide.bin"), 2, &made, &files) &&
           !dt_data_open(&d, in("wide_*.bin"), NULL, 2, 0) && holds(d, want, 4), "and into two of them");
    dt_data_close(&d);
    dt_tokenizer_close(&t);
}

/* ---- a source of ids with a tokenizer, a vocabulary with rows that no token has, the end of a text ------------------ */

static void keep_text(void *user, const char *text, int64_t bytes) { strncat((char *)user, text, (size_t)bytes); }
static dt_result some_ids(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user, (void)split;
    for (int i = 0; i < 16; i++) {
        ((int32_t *)input)[i] = (int32_t)(sample * 7 + i * i) % 257;
        ((int32_t *)target)[i] = i < 8 ? -1 : (int32_t)(sample + i) % 257;
    }
    return DT_OK;
}

static void test_use(void)
{
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_source source = {NULL, {16, 0}, 16, 16, DT_I32, DT_I32, some_ids};
    dt_generation how = dt_generation_default();
    dt_step_info step;
    dt_trainer *t = NULL;
    dt_trainer *g = NULL;
    char file[500], text[1024], other[20000], *kept[2];
    int64_t tokens = 0, odd = 0, bytes;
    int first;
    mkdir(in("bpe"), 0700);
    put_text("bpe/tokenizer.json", json(NULL, NULL, NULL, NULL));
    put_text("bpe/merges.txt", "#version: 0.2");
    r.model = dt_model_gpt2("nano"), r.source = &source, r.tokenizer = in("bpe"), r.steps = 1, r.batch = r.data_shards = 8;
    r.model.vocabulary = 1500; /* 257 of them are tokens */
    l.output.quiet = 1, l.checkpoint.place = in("runs"), l.checkpoint.kind = DT_FULL;
    tap_ok(!dt_trainer_open(&t, &r, &l) && !dt_trainer_run(t, &step), "a source and its tokenizer: %s", dt_last_error());
    dt_trainer_close(&t);
    snprintf(other, sizeof other, "%s", json(NULL, NULL, NULL, NULL));
    kept[0] = slurp(in("runs/step-000000001/tokenizer.json"), &bytes), kept[1] = slurp(in("runs/step-000000001/merges.txt"), &bytes);
    tap_ok(!strcmp(kept[0], other) && !strcmp(kept[1], "#version: 0.2"), "both are in the checkpoint");
    free(kept[0]), free(kept[1]);
    tap_ok(!dt_predictor_open(&g, in("runs"), NULL, NULL), "which opens");
    how.bytes = 100, how.sampling.temperature = 1e6f;
    how.put = keep_text, how.user = text;
    text[0] = 0;
    tap_ok(!dt_generate(g, "ab", &how, &tokens) && tokens > 50, "and writes text: %s", dt_last_error());
    for (int i = 0; i < 100; i++) odd += text[i] == '?'; /* which stands for ids without a token */
    tap_ok(odd < 10, "ids without a token are never drawn: %d of 100", (int)odd);
    how.sampling.temperature = 0.0f, text[0] = 0;
    tap_ok(!dt_generate(g, "ab", &how, NULL), "greedy");
    tap_ok(dt_generate(g, "", &how, NULL) == DT_E_USAGE && strstr(dt_last_error(), "the prompt is empty"), "%s", dt_last_error());
    dt_trainer_close(&g);
    first = strncmp(text, "ab", 2) ? (unsigned char)text[0] : 256;
    for (int list = 0; list < 2; list++) { /* the first token of that text ends the next one */
        snprintf(file, sizeof file, "{\"eos_token_id\": %s%d%s}", list ? "[1499, " : "", first, list ? "]" : "");
        put_text("runs/step-000000001/generation_config.json", file);
        tap_ok(!dt_predictor_open(&g, in("runs"), NULL, NULL) && !dt_generate(g, "ab", &how, &tokens) && tokens == 1,
               "the end token ends the text: %lld", (long long)tokens);
        how.past_end = 1;
        tap_ok(!dt_generate(g, "ab", &how, &tokens) && tokens >= 50, "unless it goes on behind it");
        how.past_end = 0;
        dt_trainer_close(&g);
    }
    r.tokenizer = NULL, l.checkpoint.place = in("mute");
    tap_ok(!dt_trainer_open(&t, &r, &l) && !dt_trainer_run(t, &step), "the source alone");
    dt_trainer_close(&t);
    r.tokenizer = in("bpe");
    tap_ok(!dt_predictor_open(&g, in("mute"), NULL, NULL) && dt_generate(g, "ab", &how, NULL) == DT_E_USAGE &&
           strstr(dt_last_error(), "1500 token ids and no tokenizer"), "%s", dt_last_error());
    dt_trainer_close(&g);
    r.model.vocabulary = 256;
    tap_ok(dt_trainer_open(&t, &r, &l) == DT_E_USAGE, "%s", dt_last_error());
    source.input_type = DT_F32;
    tap_ok(dt_trainer_open(&t, &r, &l) == DT_E_USAGE, "%s", dt_last_error());
}

/* ---- memory that runs out -------------------------------------------------------------------------------- */

static dt_result everything(void)
{
    static const char text[] = "lamp <|end|> basket letter";
    walked w = {0};
    int32_t ids[64];
    int64_t count;
    dt_tokenizer *t = NULL;
    dt_data *d = NULL;
    dt_result r = dt_tokenizer_open(&t, in("learned"));
    if (!r) r = dt_tokenizer_encode(t, text, sizeof text - 1, 1, ids, &count);
    if (!r) r = dt_data_open(&d, in("ab.txt"), t, 4, 0);
    dt_data_close(&d);
    if (!r) r = dt_tokenizer_walk(t, text, sizeof text - 1, 1, take_piece, &w);
    dt_tokenizer_close(&t);
    return r;
}

static void test_memory(void)
{
    int64_t n = 0, before = alive;
    int fine = 1;
    static const char *const special[] = {"<|end|>", NULL};
    dt_result r = DT_E_MEMORY;
    dt_tokenizer *t = learned(in("ab.txt"), 280, DT_PRETOKENS_LLAMA3, special);
    dt_tokenizer_close(&t);
    for (; r == DT_E_MEMORY && fine; n++) {
        requests = 0;
        fail_at = n;
        r = everything();
        fine = alive == before && (r || requests <= n) && !folder_has(".tmp");
        if (r && r != DT_E_MEMORY) tap_note("%s", dt_last_error());
    }
    fail_at = -1;
    tap_ok(fine && !r && n > 50, "each of %lld requests for memory may fail: an error, and nothing is left", (long long)n);
}

/* ---- for the reference ------------------------------------------------------------------------------------ */

static void write_case(FILE *f, const char *name, const dt_tokenizer *t, const char *text, int64_t n)
{
    int32_t ids[512];
    int64_t count;
    if (dt_tokenizer_encode(t, text, n, 0, ids, &count)) tap_bail("%s", dt_last_error());
    fprintf(f, "%s 0 ", name);
    for (int64_t i = 0; i < n; i++) fprintf(f, "%02x", (unsigned char)text[i]);
    fprintf(f, ":");
    for (int64_t i = 0; i < count; i++) fprintf(f, " %d", ids[i]);
    fprintf(f, "\n");
}

/* Learns, saves, and notes what the lines of the text should become. */
static int write_for_reference(const char *made)
{
    static const char *const kind[2] = {"gpt2", "llama3"}, *const special[] = {"<|endoftext|>", "<|x|>", NULL};
    char path[600];
    int64_t bytes;
    char *text = slurp(golden("train.txt"), &bytes);
    FILE *f;
    snprintf(path, sizeof path, "%s/cases.txt", made);
    f = fopen(path, "w");
    if (!f) tap_bail("cannot write %s", path);
    for (int k = 0; k < 2; k++) {
        const char *train = golden("train.txt");
        tokenizer_learned is;
        int64_t tokens, files;
        dt_tokenizer *t;
        snprintf(path, sizeof path, "%s/%s", made, kind[k]);
        if (tokenizer_learn(&train, 1, 500 + 100 * (k == 1), (dt_pretokens)(k == 1), special, path, 1, &is)) tap_bail("cannot learn");
        t = opened(path);
        snprintf(path, sizeof path, "%s/tokens.bin", made);
        if (!k && tokenizer_encode(&train, 1, t, path, 0, &tokens, &files)) tap_bail("cannot encode");
        for (const char *line = text; *line; line += strcspn(line, "\n") + (strchr(line, '\n') != NULL)) {
            int64_t n = (int64_t)strcspn(line, "\n") + (strchr(line, '\n') != NULL);
            if (n < 500) write_case(f, kind[k], t, line, n);
        }
        dt_tokenizer_close(&t);
    }
    free(text);
    return fclose(f) != 0;
}

static void remove_folder(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL) {
        char name[512];
        snprintf(name, sizeof name, "%s/%.200s", path, entry->d_name);
        if (entry->d_name[0] != '.' && unlink(name)) remove_folder(name);
    }
    if (dir) closedir(dir);
    rmdir(path);
}

int main(int argc, char **argv)
{
    const char *base = getenv("TMPDIR");
    if (argc > 1) return write_for_reference(argv[1]);
    snprintf(folder, sizeof folder, "%.40s/dt_token_XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder)) tap_bail("cannot make %s", folder);
    test_cuts();
    test_golden();
    test_round_trip();
    test_merging();
    test_learning();
    test_against_trainer();
    test_long_words();
    test_saving();
    test_walk();
    test_json();
    test_refusals();
    test_qwen2();
    test_shards();
    test_blocks();
    test_use();
    test_memory();
    tap_ok(alive == 0, "all memory was given back");
    remove_folder(folder);
    return tap_done();
}
