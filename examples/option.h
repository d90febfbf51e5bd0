/* option.h: numbers of a program that its command line may change, so that a prediction can be tried.
 *
 *     double stages = 4;
 *     option list[] = {{"--stages", 2, 16, &stages}};
 *     if (!options_read(argc, argv, list, 1)) return 2; */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct option {
    const char *name;
    double low, high; /* the least and the largest number */
    double *number;
} option;

/* Reads "--name number" pairs; 0, with a sentence, when a word is no such pair. */
static int options_read(int argc, char **argv, const option *list, int count)
{
    for (int i = 1; i < argc; i += 2) {
        int k = 0;
        char *end = NULL;
        while (k < count && strcmp(argv[i], list[k].name)) k++;
        if (k < count && i + 1 < argc) *list[k].number = strtod(argv[i + 1], &end);
        if (end && end > argv[i + 1] && !*end && list[k].low <= *list[k].number && *list[k].number <= list[k].high)
            continue;
        fprintf(stderr, "%s: wrong option. Give", argv[0]);
        for (k = 0; k < count; k++)
            fprintf(stderr, "%s %s N, N from %g to %g", k ? " or" : "", list[k].name, list[k].low, list[k].high);
        fprintf(stderr, "\n");
        return 0;
    }
    return 1;
}
