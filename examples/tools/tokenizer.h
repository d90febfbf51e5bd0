/* tokenizer.h: learns a byte-level BPE vocabulary from texts, and writes texts as token files. tokenizer.c is the
 * program; 05_tokenizer.c shows what the numbers mean. Every function returns 0, or prints a sentence and returns 1.
 *
 * Learning (Sennrich et al. 2016): the texts are cut into pre-tokens by dt_tokenizer_walk() of a tokenizer that has no
 * merges yet. The different ones become words of ids, which are bytes at first, with a count each. The most frequent pair
 * of neighbours becomes a new id, in all words, until the vocabulary is full. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "dtrain.h"
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TOKENIZER_MOST = 1 << 20, TOKENIZER_PATH = 4096 }; /* ids that a tokenizer may have; bytes of a name */

#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
static int tokenizer_fails(const char *format, ...)
{
    va_list args;
    fprintf(stderr, "tokenizer: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    return 1;
}
static int tokenizer_no_memory(void) { return tokenizer_fails("out of memory: use a shorter text"); }

/* Makes room for `need` elements of `size` bytes in *list, which has *room; 0 without memory. */
static int tokenizer_grow(void **list, int64_t *room, int64_t need, size_t size)
{
    int64_t more = need > 2 * *room ? need + 64 : 2 * *room;
    void *bigger;
    if (need <= *room) return 1;
    bigger = realloc(*list, (size_t)more * size);
    if (!bigger) return 0;
    *list = bigger, *room = more;
    return 1;
}

/* Reads a whole text; free() frees it. */
static int tokenizer_read(const char *path, char **text, int64_t *bytes)
{
    struct stat is;
    FILE *f;
    *text = NULL, *bytes = 0;
    if (stat(path, &is)) return tokenizer_fails("cannot read %s: check the name", path);
    if (!S_ISREG(is.st_mode)) return tokenizer_fails("%s is not a plain file: name a text", path);
    if (!is.st_size) return tokenizer_fails("%s is empty: name a text", path);
    if (!(f = fopen(path, "rb"))) return tokenizer_fails("cannot read %s: check its permissions", path);
    if ((*text = (char *)malloc((size_t)is.st_size)) != NULL) *bytes = (int64_t)fread(*text, 1, (size_t)is.st_size, f);
    fclose(f);
    if (*text && *bytes == is.st_size) return 0;
    return *text ? tokenizer_fails("%s ended while it was read: copy it again", path) : tokenizer_no_memory();
}

/* Calls piece() for every piece of every text. */
typedef dt_result tokenizer_piece(void *user, const char *text, int64_t bytes, const int32_t *ids, int64_t count);
static int tokenizer_walk(const dt_tokenizer *t, const char *const *texts, int count, tokenizer_piece *piece, void *user)
{
    for (int i = 0; i < count; i++) {
        char *text;
        int64_t bytes;
        dt_result r = DT_OK;
        int failed = tokenizer_read(texts[i], &text, &bytes);
        if (!failed) r = dt_tokenizer_walk(t, text, bytes, 1, piece, user);
        free(text);
        if (r == DT_E_MEMORY) failed = tokenizer_no_memory();
        else if (r == DT_E_DATA) failed = tokenizer_fails("%s: %s", texts[i], dt_last_error());
        if (failed || r) return 1; /* any other error was piece()'s, whose caller says it */
    }
    return 0;
}

/* Makes a directory and its parents. */
static int tokenizer_folder(const char *path)
{
    char part[TOKENIZER_PATH];
    struct stat is;
    if (snprintf(part, sizeof part, "%s/", path) >= (int)sizeof part) return tokenizer_fails("%.60s...: the name is too long", path);
    for (char *p = part + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        (void)mkdir(part, 0777);
        *p = '/';
    }
    if (!stat(path, &is) && S_ISDIR(is.st_mode)) return 0;
    return tokenizer_fails("cannot make the directory %s: check the name and the permissions", path);
}

/* ---- the file ---- */

/* GPT-2 spells bytes as visible characters: a printable byte of Latin-1 as itself, the others as U+0100 and up. The ids
 * of the bytes are in the order of these characters. */
static int tokenizer_visible(int byte) { return (byte > 32 && byte < 127) || (byte > 160 && byte != 173); }
static int tokenizer_byte_id(int byte)
{
    static int id[256], known;
    for (int next = 0; !known; known = 1)
        for (int hidden = 0; hidden < 2; hidden++)
            for (int b = 0; b < 256; b++)
                if (tokenizer_visible(b) != hidden) id[b] = next++;
    return id[byte];
}
static void tokenizer_put_bytes(FILE *f, const char *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int byte = (unsigned char)bytes[i], code = tokenizer_visible(byte) ? byte : 256 + tokenizer_byte_id(byte) - 188;
        if (code == '"' || code == '\\') putc('\\', f);
        if (code > 127) putc(0xc0 | code >> 6, f), putc(0x80 | (code & 63), f);
        else putc(code, f);
    }
}

/* A vocabulary that is learned: tokens by id, merges by rank, the special tokens after the 256 bytes. */
typedef struct tokenizer_model {
    dt_pretokens rule;
    const char *const *special; /* ends with NULL; NULL: none */
    char **token;               /* the bytes of the ids, and how many */
    int64_t *length;
    int32_t (*merge)[2];
    int64_t tokens, merges, first; /* first: the id of the first merge */
} tokenizer_model;

/* Writes tokenizer.json as Hugging Face's tokenizers read it. */
static int tokenizer_write(const tokenizer_model *m, const char *path)
{
    static const char *const before[] = {
        "", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
            "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
            "\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},\n"};
    int llama = m->rule == DT_PRETOKENS_LLAMA3, bad;
    FILE *f = fopen(path, "wb");
    if (!f) return tokenizer_fails("cannot create %s: check the name and the permissions", path);
    fprintf(f, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n\"added_tokens\":[");
    for (int64_t id = 256; id < m->first; id++) {
        fprintf(f, "%s\n{\"id\":%lld,\"content\":\"", id > 256 ? "," : "", (long long)id);
        tokenizer_put_bytes(f, m->token[id], m->length[id]);
        fprintf(f, "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}");
    }
    fprintf(f, "],\n\"normalizer\":null,\n\"pre_tokenizer\":%s{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
            "\"trim_offsets\":true,\"use_regex\":%s}%s,\n\"post_processor\":null,\n\"decoder\":{\"type\":\"ByteLevel\","
            "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\n\"model\":{\"type\":\"BPE\","
            "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
            "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\n\"vocab\":{",
            before[llama], llama ? "false" : "true", llama ? "]}" : "");
    for (int64_t id = 0; id < m->tokens; id++) {
        fprintf(f, "%s\n\"", id ? "," : "");
        tokenizer_put_bytes(f, m->token[id], m->length[id]);
        fprintf(f, "\":%lld", (long long)id);
    }
    fprintf(f, "},\n\"merges\":[");
    for (int64_t i = 0; i < m->merges; i++) {
        fprintf(f, "%s\n\"", i ? "," : "");
        tokenizer_put_bytes(f, m->token[m->merge[i][0]], m->length[m->merge[i][0]]);
        putc(' ', f);
        tokenizer_put_bytes(f, m->token[m->merge[i][1]], m->length[m->merge[i][1]]);
        putc('"', f);
    }
    fprintf(f, "]}}\n");
    bad = ferror(f) || fflush(f) || fsync(fileno(f));
    return fclose(f) || bad ? tokenizer_fails("cannot write %s: free some space", path) : 0;
}

static int tokenizer_add(tokenizer_model *m, const char *a, int64_t of_a, const char *b, int64_t of_b)
{
    char *text = (char *)malloc((size_t)(of_a + of_b));
    if (!text) return tokenizer_no_memory();
    memcpy(text, a, (size_t)of_a);
    if (of_b) memcpy(text + of_a, b, (size_t)of_b);
    m->token[m->tokens] = text;
    m->length[m->tokens++] = of_a + of_b;
    return 0;
}

static void tokenizer_free(tokenizer_model *m)
{
    for (int64_t id = 0; id < m->tokens; id++) free(m->token[id]);
    free(m->token), free(m->length), free(m->merge);
}

/* The bytes and the special tokens. */
static int tokenizer_begin(tokenizer_model *m, int64_t vocabulary)
{
    int64_t least = 256;
    for (const char *const *s = m->special; s && *s; s++, least++) {
        size_t length = 0;
        while ((*s)[length] > ' ' && (*s)[length] < 127) length++;
        if (length < 2 || (*s)[length])
            return tokenizer_fails("the special token \"%.60s\": use 2 or more printable ASCII characters, such as "
                                   "<|endoftext|>", *s);
        for (const char *const *other = s + 1; *other; other++)
            if (!strcmp(*s, *other)) return tokenizer_fails("the special token %.60s is named twice: name it once", *s);
    }
    if (vocabulary < least || vocabulary > TOKENIZER_MOST)
        return tokenizer_fails("a vocabulary of %lld ids: use %lld (bytes and special tokens) to %d", (long long)vocabulary,
                               (long long)least, (int)TOKENIZER_MOST);
    m->token = (char **)calloc((size_t)vocabulary, sizeof *m->token);
    m->length = (int64_t *)calloc((size_t)vocabulary, sizeof *m->length);
    m->merge = (int32_t(*)[2])calloc((size_t)vocabulary, sizeof *m->merge);
    if (!m->token || !m->length || !m->merge) return tokenizer_no_memory();
    for (int id = 0; id < 256; id++) {
        int byte = 0;
        char c;
        while (tokenizer_byte_id(byte) != id) byte++;
        c = (char)(unsigned char)byte;
        if (tokenizer_add(m, &c, 1, NULL, 0)) return 1;
    }
    for (const char *const *s = m->special; s && *s; s++)
        if (tokenizer_add(m, *s, (int64_t)strlen(*s), NULL, 0)) return 1;
    m->first = m->tokens;
    return 0;
}

/* ---- learning ---- */

typedef struct tokenizer_word {
    int64_t at, length, count; /* its ids are id[at..at+length-1] of the learner; how often the texts have it */
} tokenizer_word;

typedef struct tokenizer_pair {
    int32_t left, right;
    int64_t count;
    int64_t *word, words, room; /* words that have, or had, the pair */
} tokenizer_pair;

/* Words and pairs are found by open addressing in tables of a power of two, at most half full. */
typedef struct tokenizer_learner {
    tokenizer_model *model;
    int32_t *id;
    tokenizer_word *word;
    tokenizer_pair *pair;
    int64_t *word_slot, *pair_slot; /* 1 + the number of a word or pair; 0: free */
    int64_t ids, id_room, words, word_room, word_slots, pairs, pair_room, pair_slots;
    struct { int64_t count, pair; } *heap; /* a binary heap; counts may be out of date, and are then too high */
    int64_t heaped, heap_room;
    int64_t specials; /* of these tokens in the texts */
    int failed;
} tokenizer_learner;

static uint64_t tokenizer_hash(const int32_t *id, int64_t n)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a of the ids, then a mix of the high bits */
    for (int64_t i = 0; i < n; i++) hash = (hash ^ (uint32_t)id[i]) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

static int64_t *tokenizer_word_slot(const tokenizer_learner *l, const int32_t *id, int64_t n)
{
    for (uint64_t hash = tokenizer_hash(id, n);; hash++) {
        int64_t *slot = &l->word_slot[hash & (uint64_t)(l->word_slots - 1)];
        const tokenizer_word *w = *slot ? &l->word[*slot - 1] : NULL;
        if (!w || (w->length == n && !memcmp(l->id + w->at, id, sizeof *id * (size_t)n))) return slot;
    }
}
static int64_t *tokenizer_pair_slot(const tokenizer_learner *l, int32_t left, int32_t right)
{
    const int32_t id[2] = {left, right};
    for (uint64_t hash = tokenizer_hash(id, 2);; hash++) {
        int64_t *slot = &l->pair_slot[hash & (uint64_t)(l->pair_slots - 1)];
        const tokenizer_pair *p = *slot ? &l->pair[*slot - 1] : NULL;
        if (!p || (p->left == left && p->right == right)) return slot;
    }
}

/* Counts a piece, whose ids are its bytes, or one id when it is a special token. */
static dt_result tokenizer_count(void *user, const char *text, int64_t bytes, const int32_t *ids, int64_t count)
{
    tokenizer_learner *l = (tokenizer_learner *)user;
    int64_t *slot;
    (void)text;
    if (count != bytes) return l->specials++, DT_OK;
    if (2 * l->words >= l->word_slots) {
        free(l->word_slot);
        l->word_slots = l->word_slots ? 2 * l->word_slots : 1024;
        l->word_slot = (int64_t *)calloc((size_t)l->word_slots, sizeof *l->word_slot);
        if (!l->word_slot) return DT_E_MEMORY;
        for (int64_t i = 0; i < l->words; i++)
            *tokenizer_word_slot(l, l->id + l->word[i].at, l->word[i].length) = i + 1;
    }
    slot = tokenizer_word_slot(l, ids, count);
    if (*slot) return l->word[*slot - 1].count++, DT_OK;
    if (!tokenizer_grow((void **)&l->word, &l->word_room, l->words + 1, sizeof *l->word) ||
        !tokenizer_grow((void **)&l->id, &l->id_room, l->ids + count, sizeof *l->id))
        return DT_E_MEMORY;
    l->word[l->words] = (tokenizer_word){l->ids, count, 1};
    memcpy(l->id + l->ids, ids, sizeof *ids * (size_t)count);
    l->ids += count;
    *slot = ++l->words;
    return DT_OK;
}

/* Changes the count of a pair, which `word` has from now on if `by` is positive. */
static void tokenizer_pair_add(tokenizer_learner *l, int32_t left, int32_t right, int64_t by, int64_t word)
{
    tokenizer_pair *p;
    int64_t *slot;
    if (2 * l->pairs >= l->pair_slots) {
        free(l->pair_slot);
        l->pair_slots = l->pair_slots ? 2 * l->pair_slots : 1024;
        l->pair_slot = (int64_t *)calloc((size_t)l->pair_slots, sizeof *l->pair_slot);
        for (int64_t i = 0; i < l->pairs && l->pair_slot; i++)
            *tokenizer_pair_slot(l, l->pair[i].left, l->pair[i].right) = i + 1;
    }
    if (!l->pair_slot || !tokenizer_grow((void **)&l->pair, &l->pair_room, l->pairs + 1, sizeof *l->pair)) {
        l->failed = 1;
        return;
    }
    slot = tokenizer_pair_slot(l, left, right);
    if (!*slot) {
        l->pair[l->pairs] = (tokenizer_pair){left, right, 0, NULL, 0, 0};
        *slot = ++l->pairs;
    }
    p = &l->pair[*slot - 1];
    p->count += by;
    if (by < 0 || (p->words && p->word[p->words - 1] == word)) return;
    if (!tokenizer_grow((void **)&p->word, &p->room, p->words + 1, sizeof *p->word)) l->failed = 1;
    else p->word[p->words++] = word;
}

/* Does entry a go before b? The higher count; of equal counts the smaller left id, then right id. */
static int tokenizer_before(const tokenizer_learner *l, int64_t a, int64_t b)
{
    const tokenizer_pair *x = &l->pair[l->heap[a].pair], *y = &l->pair[l->heap[b].pair];
    if (l->heap[a].count != l->heap[b].count) return l->heap[a].count > l->heap[b].count;
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}
static void tokenizer_swap(tokenizer_learner *l, int64_t a, int64_t b)
{
    int64_t count = l->heap[a].count, pair = l->heap[a].pair;
    l->heap[a] = l->heap[b];
    l->heap[b].count = count, l->heap[b].pair = pair;
}
static void tokenizer_push(tokenizer_learner *l, int64_t pair)
{
    int64_t at = l->heaped;
    if (l->pair[pair].count < 2) return;
    if (!tokenizer_grow((void **)&l->heap, &l->heap_room, at + 1, sizeof *l->heap)) {
        l->failed = 1;
        return;
    }
    l->heap[at].count = l->pair[pair].count, l->heap[at].pair = pair;
    l->heaped++;
    for (; at && tokenizer_before(l, at, (at - 1) / 2); at = (at - 1) / 2) tokenizer_swap(l, at, (at - 1) / 2);
}

/* Takes the first pair whose count is right, or returns -1. */
static int64_t tokenizer_best(tokenizer_learner *l)
{
    while (l->heaped && !l->failed) {
        int64_t pair = l->heap[0].pair, count = l->heap[0].count, at = 0;
        l->heap[0] = l->heap[--l->heaped];
        for (int64_t child; (child = 2 * at + 1) < l->heaped; at = child) {
            if (child + 1 < l->heaped && tokenizer_before(l, child + 1, child)) child++;
            if (!tokenizer_before(l, child, at)) break;
            tokenizer_swap(l, child, at);
        }
        if (count == l->pair[pair].count) return pair;
        tokenizer_push(l, pair);
    }
    return -1;
}

/* Merges a pair wherever it stands in a word, from left to right. */
static void tokenizer_merge_word(tokenizer_learner *l, int64_t number, int32_t left, int32_t right, int32_t made)
{
    tokenizer_word *w = &l->word[number];
    int32_t *id = l->id + w->at;
    int64_t kept = 0, times = w->count;
    for (int64_t i = 0; i < w->length; i++) {
        if (id[i] != left || i + 1 == w->length || id[i + 1] != right) {
            id[kept++] = id[i];
            continue;
        }
        if (kept) {
            tokenizer_pair_add(l, id[kept - 1], left, -times, number);
            tokenizer_pair_add(l, id[kept - 1], made, times, number);
        }
        if (i + 2 < w->length) {
            tokenizer_pair_add(l, right, id[i + 2], -times, number);
            tokenizer_pair_add(l, made, id[i + 2], times, number);
        }
        id[kept++] = made;
        i++;
    }
    w->length = kept;
}

/* Merges until the vocabulary is full or no pair occurs twice. */
static int tokenizer_merges(tokenizer_learner *l, int64_t vocabulary, int quiet)
{
    tokenizer_model *m = l->model;
    int64_t best;
    for (int64_t w = 0; w < l->words; w++)
        for (int64_t i = 1; i < l->word[w].length; i++)
            tokenizer_pair_add(l, l->id[l->word[w].at + i - 1], l->id[l->word[w].at + i], l->word[w].count, w);
    for (int64_t i = 0; i < l->pairs; i++) tokenizer_push(l, i);
    while (m->tokens < vocabulary && (best = tokenizer_best(l)) >= 0) {
        tokenizer_pair *p = &l->pair[best];
        int32_t left = p->left, right = p->right, made = (int32_t)m->tokens;
        int64_t *word = p->word, words = p->words, known = l->pairs;
        m->merge[m->merges][0] = left, m->merge[m->merges++][1] = right;
        if (tokenizer_add(m, m->token[left], m->length[left], m->token[right], m->length[right])) return 1;
        p->word = NULL, p->words = p->room = 0; /* the list moves while pairs are added */
        for (int64_t i = 0; i < words; i++) tokenizer_merge_word(l, word[i], left, right, made);
        l->pair[best].count = 0;
        free(word);
        for (int64_t i = known; i < l->pairs; i++) tokenizer_push(l, i); /* older pairs only became rarer */
        if (!quiet && isatty(2) && m->tokens % 64 == 0)
            fprintf(stderr, "\rlearning: %lld of %lld ids ", (long long)m->tokens, (long long)vocabulary);
    }
    if (!quiet && isatty(2)) fprintf(stderr, "\r\033[K");
    return l->failed ? tokenizer_no_memory() : 0;
}

/* What was learned. */
typedef struct tokenizer_learned {
    int64_t ids, merges, words, tokens; /* words: different pre-tokens; tokens: of the texts */
} tokenizer_learned;

#if defined(__GNUC__)
#define TOKENIZER_FN __attribute__((unused)) static
#else
#define TOKENIZER_FN static
#endif

/* Learns up to `vocabulary` ids from texts and keeps folder/tokenizer.json, which must not exist. */
TOKENIZER_FN int tokenizer_learn(const char *const *texts, int count, int64_t vocabulary, dt_pretokens rule,
                                 const char *const *special, const char *folder, int quiet, tokenizer_learned *learned)
{
    tokenizer_model m = {rule, special, NULL, NULL, NULL, 0, 0, 0};
    tokenizer_learner l = {0};
    char path[TOKENIZER_PATH], draft[TOKENIZER_PATH + 32];
    dt_tokenizer *bytes = NULL;
    int failed = tokenizer_begin(&m, vocabulary) || tokenizer_folder(folder);
    l.model = &m;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    snprintf(draft, sizeof draft, "%s.%ld.tmp", path, (long)getpid());
    if (!failed && !access(path, F_OK))
        failed = tokenizer_fails("%s is there already: choose another directory, or remove it", path);
    if (!failed) {
        failed = tokenizer_write(&m, draft);
        if (!failed && dt_tokenizer_open(&bytes, draft)) failed = tokenizer_fails("%s", dt_last_error());
        if (!failed) failed = tokenizer_walk(bytes, texts, count, tokenizer_count, &l) || tokenizer_merges(&l, vocabulary, quiet);
        if (!failed) failed = tokenizer_write(&m, draft);
        if (!failed && rename(draft, path)) failed = tokenizer_fails("cannot rename %s: check the permissions", draft);
        if (failed) unlink(draft);
    }
    *learned = (tokenizer_learned){m.tokens, m.merges, l.words, l.specials};
    for (int64_t i = 0; i < l.words; i++) learned->tokens += l.word[i].count * l.word[i].length;
    dt_tokenizer_close(&bytes);
    tokenizer_free(&m);
    for (int64_t i = 0; i < l.pairs; i++) free(l.pair[i].word);
    free(l.id), free(l.word), free(l.pair), free(l.word_slot), free(l.pair_slot), free(l.heap);
    return failed;
}

/* ---- token files: 256 int32 (magic, version, number of tokens), then the ids ---- */

typedef struct tokenizer_shards {
    const char *output;
    int64_t limit, files, tokens, total; /* tokens: in the open file */
    int width;                           /* bytes of an id */
    FILE *file;
    int failed;
} tokenizer_shards;

/* NAME.bin, or with a limit NAME_000000.bin and so on; while it is written, with a suffix. */
static void tokenizer_shard_name(const tokenizer_shards *s, int64_t index, int draft, char name[TOKENIZER_PATH])
{
    size_t length = strlen(s->output);
    int stem = (int)(length > 4 && !strcmp(s->output + length - 4, ".bin") ? length - 4 : length);
    char tail[32] = "";
    if (draft) snprintf(tail, sizeof tail, ".%ld.tmp", (long)getpid());
    if (s->limit) snprintf(name, TOKENIZER_PATH, "%.*s_%06lld.bin%s", stem, s->output, (long long)index, tail);
    else snprintf(name, TOKENIZER_PATH, "%.*s.bin%s", stem, s->output, tail);
}

/* Writes the header that the tokens so far need and closes the file. llm.c's two kinds: uint16 ids, or uint32. */
static void tokenizer_shard_end(tokenizer_shards *s)
{
    int32_t header[256] = {s->width == 2 ? 20240520 : 20240801, s->width == 2 ? 1 : 7, (int32_t)s->tokens};
    if (!s->file) return;
    s->failed |= fseek(s->file, 0, SEEK_SET) || fwrite(header, sizeof header, 1, s->file) != 1 || fflush(s->file) ||
                 fsync(fileno(s->file));
    s->failed |= fclose(s->file) != 0;
    s->file = NULL;
    s->total += s->tokens;
}

static dt_result tokenizer_shard_put(void *user, const char *text, int64_t bytes, const int32_t *ids, int64_t count)
{
    tokenizer_shards *s = (tokenizer_shards *)user;
    (void)text, (void)bytes;
    for (int64_t i = 0; i < count && !s->failed; i++) {
        uint16_t narrow = (uint16_t)ids[i];
        if (s->file && s->tokens == (s->limit ? s->limit : INT32_MAX)) tokenizer_shard_end(s);
        if (!s->file && !s->limit && s->files) s->failed = 2;
        else if (!s->file) {
            static const char header[1024];
            char name[TOKENIZER_PATH];
            tokenizer_shard_name(s, s->files, 1, name);
            s->file = fopen(name, "wb");
            s->failed = !s->file || fwrite(header, sizeof header, 1, s->file) != 1;
            s->files++, s->tokens = 0;
        }
        if (!s->failed) s->failed = fwrite(s->width == 2 ? (const void *)&narrow : &ids[i], (size_t)s->width, 1, s->file) != 1;
        s->tokens++;
    }
    return s->failed ? DT_E_FILE : DT_OK;
}

/* Encodes texts, with their special tokens, into NAME.bin, or into NAME_000000.bin and so on with `limit` ids each. The
 * files must not exist, and appear when all are complete. */
TOKENIZER_FN int tokenizer_encode(const char *const *texts, int count, const dt_tokenizer *t, const char *output,
                                  int64_t limit, int64_t *tokens, int64_t *files)
{
    tokenizer_shards s = {output, limit, 0, 0, 0, dt_tokenizer_size(t) > 65536 ? 4 : 2, NULL, 0};
    char draft[TOKENIZER_PATH], name[TOKENIZER_PATH];
    int failed;
    if (strlen(output) + 64 > TOKENIZER_PATH) return tokenizer_fails("%.60s...: the name is too long", output);
    if (limit < 0 || limit > INT32_MAX)
        return tokenizer_fails("%lld tokens per file: use 1 to %d", (long long)limit, INT32_MAX);
    tokenizer_shard_name(&s, 0, 0, name);
    if (!access(name, F_OK)) return tokenizer_fails("%s is there already: choose another name, or remove it", name);
    failed = tokenizer_walk(t, texts, count, tokenizer_shard_put, &s);
    tokenizer_shard_end(&s);
    if (s.failed == 2)
        failed = tokenizer_fails("%s gets more than %d tokens, which its header cannot count: give --shard-tokens", output,
                                 INT32_MAX);
    else if (s.failed) failed = tokenizer_fails("cannot write %s: check the name and the free space", output);
    for (int64_t i = 0; i < s.files; i++) {
        tokenizer_shard_name(&s, i, 1, draft);
        tokenizer_shard_name(&s, i, 0, name);
        if (!failed && rename(draft, name)) failed = tokenizer_fails("cannot rename %s: check the permissions", draft);
        if (failed) unlink(draft);
    }
    *tokens = s.total, *files = s.files;
    return failed;
}
#endif
