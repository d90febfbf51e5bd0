/* tokenizer: learns a vocabulary from your texts and keeps it, and writes texts as token files.
 *
 *     ./build.sh tokenizer book.txt -o build/book            learn 8192 ids, keep build/book/tokenizer.json
 *     ./build.sh run --data book.txt --tokenizer build/book  train with it
 *
 * With --shards a large text is encoded once, into files that the trainer maps (llm.c's .bin format). --help lists the
 * options.
 *
 * What is learned, and why: 05_tokenizer.c. By hand, in the folder of dtrain.h:
 *     cc -O2 -I. examples/tools/tokenizer.c -o tokenizer -lm -lpthread */
#define DTRAIN_IMPLEMENTATION
#include "tokenizer.h"

static const char usage[] =
    "Usage: tokenizer TEXT ... -o DIR [OPTION]             learn a vocabulary, keep DIR/tokenizer.json\n"
    "       tokenizer TEXT ... --tokenizer DIR --shards NAME.bin [OPTION]\n"
    "                                                      write the ids of the texts\n"
    "\n"
    "  -o DIR               the directory to create for the tokenizer; --shards may be added\n"
    "  --vocabulary N       ids: 256 bytes, the special tokens, the merges (default 8192, at most 1048576)\n"
    "  --rule NAME          how text is cut into words: gpt2 (default) or llama3\n"
    "  --special A,B        special tokens; \"\" for none (default <|endoftext|>)\n"
    "  --tokenizer PATH     an existing tokenizer: a directory or a .json file\n"
    "  --shards NAME.bin    the file of ids, in llm.c's format\n"
    "  --shard-tokens N     NAME_000000.bin and so on, with N ids each\n";

typedef struct options {
    const char *folder, *rule, *tokenizer, *shards, *texts[1024];
    char *special;
    long long vocabulary, limit;
    int count;
} options;

static int fails(const char *what, const char *name)
{
    return fprintf(stderr, "tokenizer: %s%s. --help lists the options\n", what, name), 2;
}

/* A whole number from `least` on, or -1. */
static long long number(const char *text, long long least)
{
    char *end;
    long long n = strtoll(text, &end, 10);
    return end == text || *end || n < least ? -1 : n;
}

static int parse(options *o, int argc, char **argv)
{
    static const char *const name[] = {"-o", "--vocabulary", "--rule", "--special", "--tokenizer", "--shards", "--shard-tokens"};
    for (int i = 1; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        size_t length = value && argv[i][1] == '-' ? (size_t)(value - argv[i]) : strlen(argv[i]);
        int which = 0;
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return fputs(usage, stdout), -1;
        if (argv[i][0] != '-' || !argv[i][1]) {
            if (o->count == 1024) return fails("more than 1024 texts: join them", "");
            o->texts[o->count++] = argv[i];
            continue;
        }
        while (which < 7 && (strlen(name[which]) != length || strncmp(name[which], argv[i], length))) which++;
        if (which == 7) return fails("there is no option ", argv[i]);
        value = length < strlen(argv[i]) ? value + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value || (!*value && which != 3)) return fails("a value is missing after ", name[which]);
        if (which == 0) o->folder = value;
        else if (which == 1 && (o->vocabulary = number(value, 256)) < 0) return fails("--vocabulary is a whole number of 256 or more, not ", value);
        else if (which == 2) o->rule = value;
        else if (which == 3) o->special = argv[i] + (value - argv[i]);
        else if (which == 4) o->tokenizer = value;
        else if (which == 5) o->shards = value;
        else if (which == 6 && (o->limit = number(value, 1)) < 0) return fails("--shard-tokens is a whole number of 1 or more, not ", value);
    }
    if (strcmp(o->rule, "gpt2") && strcmp(o->rule, "llama3")) return fails("--rule is gpt2 or llama3, not ", o->rule);
    if (!o->count) return fails("name a text", "");
    if (!o->folder == !o->tokenizer) return fails("give either -o DIR, to learn, or --tokenizer DIR, to use what was learned", "");
    if (o->tokenizer && !o->shards) return fails("--tokenizer needs --shards NAME.bin, the file to write", "");
    if (o->limit && !o->shards) return fails("--shard-tokens needs --shards NAME.bin", "");
    return 0;
}

/* A name as a word for a shell. */
static void print_word(const char *before, const char *name)
{
    const char *quote = name[strcspn(name, " \t\n'\"\\$`*?[]{}()<>|&;#~!")] ? "'" : "";
    for (printf("%s%s", before, quote); *name; name++) printf(*name == '\'' ? "'\\%c'" : "%c", *name);
    printf("%s", quote);
}

static int learn(const options *o)
{
    const char *special[65] = {NULL};
    tokenizer_learned is;
    int64_t bytes = 0;
    int specials = 0;
    for (char *token = strtok(o->special, ","); token && specials < 64; token = strtok(NULL, ",")) special[specials++] = token;
    for (int i = 0; i < o->count; i++) {
        struct stat file;
        if (!stat(o->texts[i], &file)) bytes += file.st_size;
    }
    fprintf(stderr, "learning up to %lld ids from %.1f MB of text\n", o->vocabulary, 1e-6 * (double)bytes);
    if (tokenizer_learn(o->texts, o->count, o->vocabulary, strcmp(o->rule, "gpt2") ? DT_PRETOKENS_LLAMA3 : DT_PRETOKENS_GPT2,
                        special, o->folder, 0, &is))
        return 1;
    if (is.ids < o->vocabulary)
        printf("the text has too few pairs that occur twice for %lld ids: %lld were learned\n", o->vocabulary, (long long)is.ids);
    printf("kept %s/tokenizer.json: %lld ids, which are 256 bytes, %lld special tokens and %lld merges\n", o->folder,
           (long long)is.ids, (long long)(is.ids - 256 - is.merges), (long long)is.merges);
    printf("%lld bytes of %lld different words are %lld tokens: %.2f bytes per token\n", (long long)bytes, (long long)is.words,
           (long long)is.tokens, (double)bytes / (double)is.tokens);
    return 0;
}

static int encode(const options *o)
{
    const char *from = o->tokenizer ? o->tokenizer : o->folder;
    dt_tokenizer *t = NULL;
    int64_t tokens = 0, files = 0;
    int failed;
    if (dt_tokenizer_open(&t, from)) return dt_fail("tokenizer");
    failed = tokenizer_encode(o->texts, o->count, t, o->shards, o->limit, &tokens, &files);
    dt_tokenizer_close(&t);
    if (!failed) printf("wrote %lld tokens into %lld file%s\n", (long long)tokens, (long long)files, files == 1 ? "" : "s");
    return failed;
}

int main(int argc, char **argv)
{
    static char end_of_text[] = "<|endoftext|>";
    static options o = {.rule = "gpt2", .special = end_of_text, .vocabulary = 8192};
    int failed = parse(&o, argc, argv);
    char shards[TOKENIZER_PATH];
    size_t stem;
    if (failed) return failed < 0 ? 0 : failed;
    if (o.folder) failed = learn(&o);
    if (!failed && o.shards) failed = encode(&o);
    if (failed) return failed;
    stem = o.shards ? strlen(o.shards) : 0;
    if (stem > 4 && !strcmp(o.shards + stem - 4, ".bin")) stem -= 4;
    snprintf(shards, sizeof shards, "%.*s%s.bin", (int)stem, o.shards ? o.shards : "", o.limit ? "_*" : "");
    if (o.shards) o.texts[0] = shards, o.count = 1;
    printf("next: ./build.sh run --data");
    for (int i = 0; i < o.count; i++) print_word(i ? "," : " ", o.texts[i]);
    print_word(" --tokenizer ", o.tokenizer ? o.tokenizer : o.folder);
    return putchar('\n') == EOF || fflush(stdout);
}
