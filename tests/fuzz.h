/* What the programs fuzz_*.c share where no fuzzing library drives them: inputs that grow from seeds by mutations. */
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static uint32_t state = 1;
static uint32_t draw(uint32_t n) /* 0..n-1 */
{
    state = state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(state >> 8) * n >> 24);
}

enum { MOST = 1 << 15 };

/* Changes some bytes, cuts pieces out, repeats pieces, puts words of the format in (a list that ends with NULL). */
static size_t mutate(unsigned char *p, size_t n, const char *const *words)
{
    uint32_t count = 0;
    while (words[count]) count++;
    for (uint32_t round = draw(8); round < 8; round++) {
        uint32_t at = draw((uint32_t)n + 1), length = draw(40), to = draw((uint32_t)n + 1);
        const char *word = words[draw(count)];
        switch (draw(4)) {
        case 0:
            if (at < n) p[at] = (unsigned char)draw(256);
            break;
        case 1:
            if (at + length < n) memmove(p + at, p + at + length, n - at - length), n -= length;
            break;
        case 2:
            if (at + length < n && n + length < MOST) {
                unsigned char piece[40];
                memcpy(piece, p + at, length);
                memmove(p + to + length, p + to, n - to);
                memcpy(p + to, piece, length);
                n += length;
            }
            break;
        default:
            if (n + strlen(word) < MOST) {
                memmove(p + at + strlen(word), p + at, n - at);
                memcpy(p + at, word, strlen(word));
                n += strlen(word);
            }
        }
    }
    return n;
}

/* For as many seconds as the first argument says. A seed is up to MOST + 1 bytes, of which the first one stays. */
static void fuzz(int argc, char **argv, const char *const *words, size_t (*seed)(unsigned char *p))
{
    static unsigned char input[2 * MOST];
    double start = dt__now(), seconds = argc > 1 ? atof(argv[1]) : 3.0;
    long runs = 0;
    for (size_t n = 0; dt__now() - start < seconds; runs++) {
        if (runs % 16 == 0) n = seed(input);
        else n = 1 + mutate(input + 1, n - 1, words);
        LLVMFuzzerTestOneInput(input, n);
    }
    printf("%ld runs in %.0f s: nothing found\n", runs, seconds);
}
