/* prose.h: a text for machines that have none. English-like sentences of a small grammar, decided by a number; the
 * same bytes on every machine. Examples and tests train on it; include it after dtrain.h.
 *
 *     if (prose_generate("text.txt", 200000, 1)) return 1;      // exactly 200,000 bytes */
#ifndef PROSE_H
#define PROSE_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A grammar without recursion. $x stands for one of the alternatives of x, all equally likely; $t is the person that
 * the paragraph is about, so that a reader who remembers the beginning guesses better. */
typedef struct prose_rule {
    char symbol;
    const char *alternatives;
} prose_rule;

static const prose_rule prose_rules[] = {
    { 's', "$t $v the $a $o $w.|$t $v the $o, and $n $v the $o too.|in the $m, $t $k $w.|the $o $w was $a and $a.|"
           "\"where is the $o?\" asked $n, but $t $k $w.|$n and $t $k $w until the $m.|"
           "when the $j came, $t $k $w and $v the $o.|nobody $v the $o, but $t still had the $a $o.|"
           "$t told the $j about the $o $w.|the $m was $a, and the $j $k $w." },
    { 'n', "Anna|Bruno|Clara|David|Edith|Felix|Greta|Henry|Irene|Jonas|Klara|Leo|Maria|Nina|Oscar|Paula" },
    { 'j', "baker|sailor|teacher|farmer|doctor|miller|painter|gardener|fisherman|clockmaker|"
           "old neighbour|young captain" },
    { 'v', "found|lost|carried|mended|painted|sold|hid|forgot|borrowed|cleaned|bought|dropped|kept|saw" },
    { 'k', "waited|slept|sang|walked|worked|rested|laughed|played|listened|stood" },
    { 'o', "lamp|boat|basket|letter|clock|violin|kettle|ladder|map|blanket|bell|chair|coat|key|book|wheel" },
    { 'a', "old|small|heavy|red|broken|quiet|bright|cold|wooden|strange|clean|empty|blue|warm" },
    { 'w', "$i the $b|$i the $a $b|$i the $b $i the $b" },
    { 'i', "behind|near|under|above|beside|in front of|across from" },
    { 'b', "house|bridge|river|mill|harbour|garden|market|school|forest|tower|road|station|church|hill" },
    { 'm', "morning|evening|winter|spring|summer|autumn|night|afternoon" },
};

typedef struct prose {
    uint64_t seed, draws;
    uint32_t topic;  /* the person of the paragraph */
    char text[1024]; /* the sentence; the longest one has under 300 bytes */
    size_t length;
} prose;

/* Word number p->draws of a stream of Philox4x32-10 (Salmon et al. 2011), keyed by the seed. */
static uint32_t prose_draw(prose *p)
{
    uint32_t x[4] = {(uint32_t)(p->draws >> 2), 0, 0, 0}, key[2] = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)};
    key[1] ^= 4u << 24;
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * x[0], b = (uint64_t)0xCD9E8D57u * x[2];
        x[0] = (uint32_t)(b >> 32) ^ x[1] ^ key[0];
        x[1] = (uint32_t)b;
        x[2] = (uint32_t)(a >> 32) ^ x[3] ^ key[1];
        x[3] = (uint32_t)a;
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return x[p->draws++ & 3];
}

/* Alternative number `draw`, modulo their count, of a list with | between. */
static const char *prose_pick(const char *list, uint32_t draw)
{
    uint32_t count = 1;
    for (const char *c = list; *c; c++) count += *c == '|';
    for (draw %= count; draw; draw--) list = strchr(list, '|') + 1;
    return list;
}

/* Appends one alternative of the symbol, with the symbols in it replaced. */
static void prose_expand(prose *p, char symbol)
{
    const prose_rule *rule = prose_rules;
    const char *c;
    while (rule->symbol != (symbol == 't' ? 'n' : symbol)) rule++;
    for (c = prose_pick(rule->alternatives, symbol == 't' ? p->topic : prose_draw(p)); *c && *c != '|'; c++) {
        if (*c == '$') prose_expand(p, *++c);
        else p->text[p->length++] = *c;
    }
}

/* The next sentence, with the space or the paragraph's end behind it. */
static void prose_sentence(prose *p)
{
    char *first = p->text;
    p->length = 0;
    prose_expand(p, 's');
    if (*first == '"') first++;
    if (*first >= 'a' && *first <= 'z') *first = (char)(*first - 'a' + 'A');
    if (prose_draw(p) % 6) {
        p->text[p->length++] = ' ';
        return;
    }
    p->text[p->length++] = '\n';
    p->text[p->length++] = '\n';
    p->topic = prose_draw(p);
}

/* Writes exactly `bytes` bytes, the last one a newline. The file appears under its name once complete. DT_E_USAGE:
 * bytes below 1; DT_E_FILE: it cannot be written, and standard error says why. */
__attribute__((unused)) static dt_result prose_generate(const char *path, int64_t bytes, uint64_t start)
{
    char name[4096];
    prose p;
    FILE *file;
    struct stat is;
    int bad;
    memset(&p, 0, sizeof p);
    p.seed = start;
    p.topic = prose_draw(&p);
    if (bytes < 1) return DT_E_USAGE;
    snprintf(name, sizeof name, "%.4000s.%d.tmp", path, (int)getpid());
    errno = EEXIST; /* a device is not replaced */
    if ((!stat(path, &is) && !S_ISREG(is.st_mode)) || (file = fopen(name, "w")) == NULL) {
        fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
        return DT_E_FILE;
    }
    for (int64_t left = bytes - 1; left > 0; left -= (int64_t)p.length) {
        prose_sentence(&p);
        if ((int64_t)p.length > left) p.length = (size_t)left;
        fwrite(p.text, 1, p.length, file);
    }
    bad = fputc('\n', file) == EOF || ferror(file);
    bad = fclose(file) || bad || rename(name, path);
    if (!bad) return DT_OK;
    fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
    remove(name);
    return DT_E_FILE;
}

/* The same in a new file. `name` ends with XXXXXX, which is replaced. */
static inline dt_result prose_temporary(char *name, int64_t bytes)
{
    int file = mkstemp(name);
    if (file < 0) return perror(name), DT_E_FILE;
    close(file);
    return prose_generate(name, bytes, 1);
}

#endif
