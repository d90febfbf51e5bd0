/* 91_distribution: what does a SageMaker estimator's `distribution` start, or what is wrong with it?
 *
 * What you learn
 *     - The dictionary names a launcher and a library in one word, and each word has one spelling:
 *         {"smdistributed": {"dataparallel": {"enabled": true}}}      mpirun; SMDDP, AWS's own collectives
 *         {"pytorchddp": {"enabled": true}}                           mpirun; DDP over NCCL, or SMDDP as its backend
 *         {"torch_distributed": {"enabled": true}}                    torchrun; the same, without SMDDP's all-reduce
 *         {"mpi": {"enabled": true, "processes_per_host": 8}}         mpirun; Horovod, which has no estimator
 *         {"smdistributed": {"modelparallel": ..}, "mpi": ..}         mpirun; SMP 1. SMP 2: torchrun
 *     - Version 2 of the SDK ignores a word that it does not know and starts one process on each machine: eight
 *       instances then train eight models. Version 3 has classes instead: Torchrun, MPI, SMP. A job has one launcher.
 *     - SMDDP is for p4d and p4de, on two instances or more. The SDK refuses it on p5; jobs do not fall back to NCCL,
 *       single operations do. A script asks for it by backend="smddp"; the old wrapper of the model is deprecated.
 *     - SMP 1 (archived) has pipelines, for PyTorch and TensorFlow. SMP 2 is FSDP with tensor, context and expert
 *       parallel, for PyTorch alone, and has no pipeline.
 *
 * Build and run it, in this folder
 *     cc -O2 91_distribution.c -o 91_distribution -lm -lpthread
 *     ./91_distribution
 *     ./91_distribution all
 *     ./91_distribution '{"smdistributed":{"dataparallel":{"enabled":true}}}'
 *     ./91_distribution '{"torch_distributed":{"enabled":true}}' ml.trn1.32xlarge 4
 *     After the dictionary: instance type, count, a line of the script. JSON has true for Python's True.
 *
 * What it prints (some of it)
 *     {"smdistributed":{"dataparallel":{"enabled":true}}}  2 x ml.p5.48xlarge
 *       starts nothing
 *       wrong: the SDK refuses SMDDP on p5: take torch_distributed, with NCCL over EFA
 *     {"pytorchx":{"enabled":true}}
 *       starts nothing
 *       wrong: "pytorchx" is not a key: DDP is "pytorchddp"; "pytorchxla" is the Training Compiler's
 *     {}
 *       starts nothing
 *       warning: no strategy: one process on each machine, and none knows of the others
 *     ok: 42 dictionaries as expected: 8 fine, 8 with a warning, 26 wrong
 *
 * Predict first: what does {"pytorchddp":{"enabled":true},"mpi":{"enabled":true}} start?
 * Exercise: warn of torch_distributed on several p4d when the script names neither "nccl" nor "smddp" as its backend.
 *     Add a case that has the warning and one that does not.
 *
 * Read on: 92_placement.c for where the machines stand, 41_zero.c and 51_pipeline.c for what SMP does. */
#include <stdio.h>
#include <string.h>
#include "distribution.h"

/* ---- cases: ` stands for "; the first USUAL are shown without "all" ---- */

enum { USUAL = 13 };
#define ON "{`enabled`:true}"
#define SMDDP "{`smdistributed`:{`dataparallel`:" ON "}}"
static const struct { const char *text; machines m; verdict verdict; const char *starts, *says; } cases[] = {
    {SMDDP, {"ml.p4d.24xlarge", "backend=`smddp`", 2}, FINE, "mpirun, SMDDP", ""},
    {SMDDP, {"ml.p4d.24xlarge", NULL, 1}, WARNING, "mpirun, SMDDP", "gains nothing on one instance"},
    {SMDDP, {"ml.p5.48xlarge", NULL, 2}, WRONG, "nothing", "refuses SMDDP on p5"},
    {SMDDP, {"ml.g5.48xlarge", NULL, 2}, WARNING, "mpirun, SMDDP", "nothing falls back"},
    {"{`smdistributed_dataparallel`:" ON "}", {0}, WRONG, "nothing", "{\"smdistributed\":{\"dataparallel\":"},
    {"{`pytorchddp`:" ON "}", {"ml.p5.48xlarge", "backend=`nccl`", 2}, FINE, "mpirun, PyTorch DDP", ""},
    {"{`pytorchx`:" ON "}", {0}, WRONG, "nothing", "DDP is \"pytorchddp\""},
    {"{`torch_distributed`:" ON "}", {"ml.p4d.24xlarge", "backend=`smddp`", 2}, WARNING, "torchrun, PyTorch",
     "all-gather"},
    {"{`torch_distributed`:" ON "}", {"ml.trn1.32xlarge", NULL, 4}, FINE, "torchrun, PyTorch", ""},
    {"{`mpi`:{`enabled`:true,`processes_per_host`:8}}", {0}, FINE, "mpirun, Horovod or other MPI", ""},
    {"{`hrovod`:" ON "}", {0}, WRONG, "nothing", "Horovod is {\"mpi\":"},
    {"{`pytorchddp`:" ON ",`torch_distributed`:" ON "}", {0}, WRONG, "nothing", "2 launchers at once"},
    {"{`mpi`:{`enabled`:True}}", {0}, WRONG, "nothing", "byte 19: this is Python"},
    {SMDDP, {"ml.p4de.24xlarge", NULL, 2}, FINE, "mpirun, SMDDP", ""},
    {SMDDP, {"ml.p3.16xlarge", NULL, 2}, WARNING, "mpirun, SMDDP", "old list"},
    {SMDDP, {NULL, "import smdistributed.dataparallel.torch.distributed", 0}, WARNING, "mpirun, SMDDP", "deprecated"},
    {SMDDP, {NULL, "backend=`nccl`", 0}, WARNING, "mpirun, SMDDP", "leaves SMDDP unused"},
    {"{`smdistributed`:{`dataparallel`:{`enabled`:false}}}", {0}, WARNING, "nothing", "one process on each machine"},
    {"{`smdistributed`:{`dataparallel`:{`enabled`:`true`}}}", {0}, WRONG, "nothing", "is true or false"},
    {"{`smdistributed`:true}", {0}, WRONG, "nothing", "is a dictionary"},
    {"{`smdistributed`:{`dataparalel`:" ON "}}", {0}, WRONG, "nothing", "nearest is \"dataparallel\""},
    {"{`smdp`:" ON "}", {0}, WRONG, "nothing", "called SMDDP"},
    {"{`zero`:" ON "}", {0}, WRONG, "nothing", "not a key here: try"},
    {"{`torch_distribute`:" ON "}", {0}, WRONG, "nothing", "nearest is \"torch_distributed\""},
    {"{`mpi`:{`enabled`:true,`process_per_host`:8}}", {0}, WRONG, "nothing", "nearest is \"processes_per_host\""},
    {"{`torch_distributed`:" ON "}", {"ml.g5.12xlarge", NULL, 2}, FINE, "torchrun, PyTorch", ""},
    {"{`torch_distributed`:" ON "}", {"ml.c5.xlarge", NULL, 2}, WRONG, "nothing", "GPUs or Trainium"},
    {"{`pytorchddp`:" ON "}", {"ml.trn1.32xlarge", NULL, 4}, WRONG, "nothing", "Trainium allows torch_dist"},
    {"{`smdistributed`:{`dataparallel`:" ON ",`modelparallel`:" ON "}}", {0}, WRONG, "nothing", "SMDDP or SMP"},
    {"{`smdistributed`:{`modelparallel`:" ON "}}", {0}, WRONG, "nothing", "takes a launcher"},
    {"{`smdistributed`:{`modelparallel`:" ON "},`mpi`:" ON "}", {0}, WRONG, "nothing", "pipeline_parallel_degree"},
    {"{`smdistributed`:{`modelparallel`:{`enabled`:true,`parameters`:{`pipeline_parallel_degree`:2}}},`mpi`:" ON "}",
     {0}, FINE, "mpirun, SMP", ""},
    {"{`smdistributed_modelparallel`:{`microbatches`:4,`placement_strategy`:`spread`}}", {0}, WRONG, "nothing",
     "{\"modelparallel\":{..}},\"mpi\""},
    {"{`smdistributed`:{`modelparallel`:{`enabled`:true,`parameters`:{`pipeline_parallel_degree`:2}}},"
     "`torch_distributed`:" ON "}", {0}, WRONG, "nothing", "SMP 2 has no pipeline"},
    {"{`smdistributed`:{`modelparallel`:{`enabled`:true,`parameters`:{`hybrid_shard_degree`:8}}},"
     "`torch_distributed`:" ON "}", {"ml.p5.48xlarge", NULL, 4}, FINE, "torchrun, SMP", ""},
    {"{`smdistributed`:{`modelparallel`:{`enabled`:true,`parameters`:{`pipeline_parallel_degree`:1,"
     "`sharded_data_parallel_degree`:8,`tensor_parallel_degree`:2}}},`mpi`:" ON "}", {0}, WRONG, "nothing", "not both"},
    {"{}", {0}, WARNING, "nothing", "no strategy"},
    {"{'mpi':{}}", {0}, WRONG, "nothing", "byte 2: strings stand in \" and not in '"},
    {"{`mpi`:" ON, {0}, WRONG, "nothing", "byte 24: a comma is missing, or the closing bracket"},
    {"{`mpi`:" ON ",}", {0}, WRONG, "nothing", "byte 25: a string in \" is missing"},
    {"{`mpi`:" ON ",`mpi`:{}}", {0}, WRONG, "nothing", "byte 31: this name stands twice"},
    {"{`mpi`:{`processes_per_host`:08}}", {0}, WRONG, "nothing", "byte 30: a value is missing"}};

static void quotes(char *to, size_t room, const char *from)
{
    snprintf(to, room, "%s", from ? from : "");
    for (; *to; to++)
        if (*to == '`') *to = '"';
}

int main(int argc, char **argv)
{
    static const char *const titles[] = {"", "  warning: ", "  wrong: "};
    int count = (int)(sizeof cases / sizeof *cases), good = 0, kinds[3] = {0};
    int shown = argc > 1 && !strcmp(argv[1], "all") ? count : USUAL;
    answer a;
    if (argc > 1 && *argv[1] == '-')
        return fprintf(stderr, "91_distribution: give 'all', or a dictionary, a type, how many, a line\n"), 2;
    if (argc > 1 && shown == USUAL) {
        machines own = {argc > 2 ? argv[2] : NULL, argc > 4 ? argv[4] : NULL, argc > 3 ? atoi(argv[3]) : 0};
        if (decide(argv[1], &own, &a) == WRONG) return fprintf(stderr, "91_distribution: %s\n", a.text), 1;
        return printf("%s%s%sok: it starts %s\n", titles[a.verdict], a.text, *a.text ? "\n" : "", a.starts), 0;
    }
    for (int i = 0; i < count; i++) {
        char text[250], script[100];
        machines m = cases[i].m;
        int same;
        quotes(text, sizeof text, cases[i].text), quotes(script, sizeof script, m.script);
        if (m.script) m.script = script;
        decide(text, &m, &a);
        same = a.verdict == cases[i].verdict && !strcmp(a.starts, cases[i].starts) && strstr(a.text, cases[i].says) &&
               !*a.text == !*cases[i].says;
        good += same, kinds[a.verdict]++;
        if (same && i >= shown) continue;
        printf("%s%s", same ? "" : "UNEXPECTED: ", text);
        if (m.instances) printf("  %d x %s", m.instances, m.instance);
        printf("%s%s\n  starts %s\n%s%s%s", *script ? "  " : "", script, a.starts, titles[a.verdict], a.text,
               a.verdict ? "\n" : "");
    }
    if (shown < count) printf("%d more, of rarer mistakes: ./91_distribution all\n", count - shown);
    if (good == count)
        return printf("ok: %d dictionaries as expected: %d fine, %d with a warning, %d wrong\n", good, kinds[FINE],
                      kinds[WARNING], kinds[WRONG]), 0;
    return fprintf(stderr, "FAILED: %d dictionaries mean something else\n", count - good), 1;
}
