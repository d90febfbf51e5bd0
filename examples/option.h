/* option.h: numbers of a program that its command line may change, so that a prediction can be tried.
 *
 *     double stages = 4;
 *     option list[] = {{"--stages", 2, 16, &stages}};
 *     if (!options_read(argc, argv, list, 1)) return 2;
 *
 * option_take takes one such pair out of the words and leaves the others to whoever reads them next. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct option {
    const char *name;
    double low, high; /* the least and the largest number */
    double *number;
} option;

/* Reads "--name number" pairs; 0, with a sentence, when a word is no such pair. */
static inline int options_read(int argc, char **argv, const option *list, int count)
{
    char text[400];
    for (int i = 1; i < argc; i += 2) {
        int k = 0;
        char *end = NULL;
        while (k < count && strcmp(argv[i], list[k].name)) k++;
        if (k < count && i + 1 < argc) *list[k].number = strtod(argv[i + 1], &end);
        if (end && end > argv[i + 1] && !*end && list[k].low <= *list[k].number && *list[k].number <= list[k].high)
            continue;
        for (k = 0, *text = 0; k < count; k++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s %s N, N from %g to %g", k ? " or" : "",
                     list[k].name, list[k].low, list[k].high);
        fprintf(stderr, "%s: wrong option. Give%s\n", argv[0], text); /* at once: several ranks may say it */
        return 0;
    }
    return 1;
}

/* Takes "name number" out of the words, if it is there; 0, with a sentence, when it is not a number in its bounds. */
static inline int option_take(int *argc, char **argv, const option *o)
{
    for (int i = 1; i < *argc; i++) {
        char *words[] = {argv[0], argv[i], i + 1 < *argc ? argv[i + 1] : NULL};
        if (strcmp(argv[i], o->name)) continue;
        if (!options_read(words[2] ? 3 : 2, words, o, 1)) return 0;
        for (*argc -= 2; i <= *argc; i++) argv[i] = argv[i + 2]; /* with the NULL at the end */
        return 1;
    }
    return 1;
}
