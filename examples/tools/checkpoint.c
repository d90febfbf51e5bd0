/* checkpoint: what is in a checkpoint, is it whole, and how do two differ?
 *
 *     ./build.sh checkpoint show build/runs/NAME         --help lists what else
 *
 * Of a folder with several checkpoints the newest counts. What the kinds are, and why: 72_checkpoint_tool.c.
 * By hand, in the folder of dtrain.h:
 *     cc -O2 -I. examples/tools/checkpoint.c -o checkpoint -lm -lpthread */
#define DTRAIN_IMPLEMENTATION
#include "checkpoint.h"

static const char usage[] =
    "Usage: checkpoint show DIR           files, sizes, hashes, arrays\n"
    "       checkpoint verify DIR         does every file have the size and SHA-256 of the manifest?\n"
    "       checkpoint convert DIR TO sharded|full|bf16   another kind; bf16: only weights, in TO/step-N\n"
    "       checkpoint diff DIR DIR       the arrays that differ; exit status 1 if any do\n";

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    int64_t differ = 0, kind = 2;
    dt_result r;
    while (kind >= 0 && (argc < 5 || strcmp(argv[4], checkpoint_kinds[kind]))) kind--;
    if (!strcmp(verb, "--help")) return fputs(usage, stdout) < 0;
    if (argc == 3 && !strcmp(verb, "show")) r = checkpoint_show(argv[2], INT64_MAX);
    else if (argc == 3 && !strcmp(verb, "verify")) r = checkpoint_verify(argv[2]);
    else if (argc == 5 && !strcmp(verb, "convert") && kind >= 0)
        r = checkpoint_convert(argv[2], argv[3], (dt_checkpoint_kind)kind);
    else if (argc == 4 && !strcmp(verb, "diff")) r = checkpoint_diff(argv[2], argv[3], &differ);
    else return fputs(usage, stderr), dt_exit_code(DT_E_USAGE);
    if (!r && (fflush(stdout) || ferror(stdout))) r = dt_error(DT_E_FILE, "cannot write the output: is the disk full?");
    if (r) return dt_fail(verb);
    return differ > 0;
}
