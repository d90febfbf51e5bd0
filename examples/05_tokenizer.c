/* 05_tokenizer: how does a text become numbers, and back?
 *
 * What you learn
 *     - Byte-pair encoding begins with 256 ids, the bytes. It gives the most frequent pair of neighbours a new id, and
 *       repeats that. The list of these merges is the tokenizer: encoding makes the merges in their order, decoding
 *       replaces each id by its bytes.
 *     - Text is first cut into words, numbers, punctuation and white space, and no merge crosses a cut. GPT-2 and
 *       Llama 3 cut by different rules. A space belongs to the word that follows it: " the" and "the" are two tokens.
 *     - All 256 bytes are tokens, so no word is unknown: decoding returns the bytes of any text.
 *     - A special token such as <|endoftext|> is an id that no merge makes. The caller decides whether its name in a
 *       text means the token; in text from strangers it should not.
 *     - With more bytes per token the same text takes fewer steps, but each id is a row of a table, and a row learns
 *       only where its id occurs. Compare losses of two vocabularies per byte: divide them by the bytes per token.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 05_tokenizer.c -o 05_tokenizer -lm -lpthread
 *     ./05_tokenizer
 *     Another text and size: ./05_tokenizer book.txt 4096
 *
 * What it prints
 *     512 ids: 256 bytes, <|endoftext|> and 255 merges
 *       merge    0  "h" + "e"
 *       merge    1  " " + "t"
 *       merge  254  "et" + "ter"
 *     44 bytes, 9 tokens: "The" " clock" " la" "y" " under" " the" " bridge" "." "<|endoftext|>"
 *     500000 bytes are 151649 tokens: 3.30 bytes per token
 *     ok: 2 sentences came back to the byte, and 151649 ids in the file are those of the text
 *
 * Predict first: is "the" or " the" the more frequent token of a book?
 * Exercise: print the bytes per token of 64, 128, 256, 512 and 1024 merges. What does each doubling gain?
 *
 * Read on: tools/tokenizer.h, which learns; tools/tokenizer.c keeps one (./build.sh tokenizer book.txt -o FOLDER);
 *     06_train.c, which trains on tokens: --data book.txt --tokenizer FOLDER. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include "tools/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A token in quotes; bytes that are not printable as \xNN. */
static void print_token(const dt_tokenizer *t, int64_t id)
{
    int64_t bytes = 0;
    const char *p = dt_tokenizer_token(t, id, &bytes);
    putchar('"');
    for (int64_t i = 0; i < bytes; i++)
        printf(p[i] >= 32 && p[i] < 127 ? "%c" : "\\x%02x", p[i] >= 32 && p[i] < 127 ? p[i] : (unsigned char)p[i]);
    putchar('"');
}

static void print_merges(const dt_tokenizer *t, int64_t from, int64_t to)
{
    int32_t left, right;
    for (int64_t rank = from; rank < to && dt_tokenizer_merge(t, rank, &left, &right); rank++) {
        printf("  merge %4lld  ", (long long)rank);
        print_token(t, left);
        printf(" + ");
        print_token(t, right);
        putchar('\n');
    }
}

/* Encodes, prints and decodes one sentence; is it the same again? */
static int show(const dt_tokenizer *t, const char *text)
{
    int32_t ids[256];
    char back[256];
    int64_t bytes = (int64_t)strlen(text), count = 0, length = 0;
    if (dt_tokenizer_encode(t, text, bytes, 1, ids, &count)) return 0;
    printf("%lld bytes, %lld tokens:", (long long)bytes, (long long)count);
    for (int64_t i = 0; i < count; i++) {
        putchar(' ');
        print_token(t, ids[i]);
    }
    putchar('\n');
    return !dt_tokenizer_decode(t, ids, count, back, &length) && length == bytes && !memcmp(text, back, (size_t)bytes);
}

/* Writes the text's ids into a file, and compares them with those that a text gets when it is opened. */
static int write_and_compare(const dt_tokenizer *t, const char *folder, const char *text, int64_t *tokens, int *same)
{
    int32_t a[2][64], b[2][64]; /* inputs and targets of a sample */
    char bin[64];
    int64_t files;
    dt_data *encoded = NULL, *file = NULL;
    int failed;
    snprintf(bin, sizeof bin, "%s/tokens.bin", folder);
    if (tokenizer_encode(&text, 1, t, bin, 0, tokens, &files)) return 1;
    failed = dt_data_open(&file, bin, NULL, 64, 0.0) || dt_data_open(&encoded, text, t, 64, 0.0);
    *same = !failed && dt_data_samples(file, DT_TRAIN) == dt_data_samples(encoded, DT_TRAIN);
    for (int64_t i = 0; *same && i < dt_data_samples(file, DT_TRAIN); i++) {
        dt_data_fetch(file, DT_TRAIN, i, a[0], a[1]);
        dt_data_fetch(encoded, DT_TRAIN, i, b[0], b[1]);
        *same = !memcmp(a, b, sizeof a);
    }
    dt_data_close(&file);
    dt_data_close(&encoded);
    return failed && dt_fail("05_tokenizer");
}

int main(int argc, char **argv)
{
    static const char *const special[] = {"<|endoftext|>", NULL};
    static const char *const made[] = {"text.txt", "tokens.bin", "tokenizer.json"};
    char folder[] = "/tmp/dtrain_XXXXXX", own[64], path[64];
    const char *text = argc > 1 ? argv[1] : own;
    long long size = argc > 2 ? atoll(argv[2]) : 512;
    tokenizer_learned learned;
    int64_t tokens = 0, bytes = 0;
    int failed, fine = 0, same = 0;
    dt_tokenizer *t = NULL;
    dt_data *d = NULL;
    if (argc > 3 || (argc > 1 && *argv[1] == '-')) return fprintf(stderr, "Usage: 05_tokenizer [TEXT [SIZE]]\n"), 2;
    if (!mkdtemp(folder)) return perror("05_tokenizer: no directory in /tmp"), 1;
    snprintf(own, sizeof own, "%s/text.txt", folder);
    failed = (argc < 2 && prose_generate(own, 500000, 1)) || dt_data_open(&d, text, NULL, 1, 0.0);
    if (!failed) bytes = dt_data_tokens(d, DT_TRAIN);
    dt_data_close(&d);
    if (failed) dt_fail("05_tokenizer");
    if (!failed) failed = tokenizer_learn(&text, 1, size, DT_PRETOKENS_GPT2, special, folder, 1, &learned);
    if (!failed && dt_tokenizer_open(&t, folder)) failed = dt_fail("05_tokenizer");
    if (!failed) {
        printf("%lld ids: 256 bytes, <|endoftext|> and %lld merges\n", (long long)learned.ids,
               (long long)learned.merges);
        print_merges(t, 0, 6);
        print_merges(t, learned.merges - 3, learned.merges);
        fine += show(t, "The clock lay under the bridge.<|endoftext|>");
        fine += show(t, "caf\xc3\xa9 \xf0\x9f\x98\x80 12345 \xff\xfe"); /* and two bytes that are not text */
        failed = write_and_compare(t, folder, text, &tokens, &same);
    }
    if (!failed) printf("%lld bytes are %lld tokens: %.2f bytes per token\n", (long long)bytes, (long long)tokens,
                        (double)bytes / (double)tokens);
    dt_tokenizer_close(&t);
    for (int i = 0; i < 3; i++) snprintf(path, sizeof path, "%s/%s", folder, made[i]), remove(path);
    rmdir(folder);
    if (failed) return 1;
    if (fine < 2 || !same)
        return fprintf(stderr, "FAILED: %s\n", fine < 2 ? "a sentence did not come back" : "the file has other ids"), 1;
    return printf("ok: %d sentences came back to the byte, and %lld ids in the file are those of the text\n", fine,
                  (long long)tokens), 0;
}
