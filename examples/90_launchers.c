/* 90_launchers: who started this process, and as which rank of how many?
 *
 * What you learn
 *     - A launcher starts the same program many times. Environment variables tell each copy which one it is, of how
 *       many, and where they meet. A training script that asks for nothing else runs unmodified under any launcher.
 *       The library looks for MPI, then Slurm, then torchrun's variables, then SageMaker.
 *     - Some texts say that torchrun is "MPI-style" and needs p3, p4 or trn1. It starts ordinary processes anywhere;
 *       on Trainium it is the only choice.
 *     - A `distribution` of SageMaker (91_distribution.c) starts mpirun for pytorchddp, smdistributed and mpi, and
 *       torchrun for torch_distributed.
 *     - With libfabric (-DDT_OFI, -lfabric) or MPI (-DDT_MPI) the ranks of foreign launchers add their numbers. Under
 *       yours --show prints its variables: srun -n 2, torchrun --no-python --nproc-per-node 2, mpirun -n 2.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 90_launchers.c -o 90_launchers -lm -lpthread
 *     ./90_launchers
 *
 * What it prints (among the variables; ~: differs)
 *     torchrun: one machine
 *       -> torchrun: rank 0 of 2 (0 of 2 here) on 1 host, meeting at 127.0.0.1, port ~46792
 *     Slurm: two machines (srun)
 *       -> Slurm: rank 0 of 2 (0 of 1 here) on 2 hosts, meeting at 127.0.0.1, port ~53473
 *     SageMaker: two hosts; the file: {"current_host": "algo-1", "hosts": ["algo-1", "algo-2"], ..}
 *       -> SageMaker: rank 0 of 2 (0 of 1 here) on 2 hosts, meeting at 127.0.0.1, port ~42025
 *     mpirun of Open MPI: one machine
 *       -> Open MPI: rank 0 of 2 (0 of 2 here) on 1 host
 *     All of them at once: MPI counts
 *     None of them, and --ranks 2: the program is its own launcher
 *       -> rank 0 of 2, node 0 of 1: the sum is 3
 *     ok: 9 starts of 2 ranks: rank, size and place are what the launcher set
 *
 * Predict first: torchrun's and Slurm's variables are both set. Which of them is right, and when?
 * Exercise: start rank 0 of two with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT alone, then without each of them.
 *     Which variable can be left out?
 *
 * Read on: 91_distribution.c for SageMaker's dictionary, 92_placement.c for where the machines stand, 98_lost_rank.c
 *     for a rank that dies. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* In values # stands for the rank, @ for a free port, ^ for the next one, ~ for a folder. */
typedef struct variable { const char *name, *value, *meaning; } variable;
typedef struct launcher {
    const char *line; /* what the library should make of it */
    int nodes;        /* and how many there are when the ranks are connected; 0: that takes MPI */
    variable set[13];
} launcher;
#define SUM "rank %d of 2, node %d of %d: the sum is 3" /* of 1 and 2 */
enum { TORCHRUN, SLURM, SAGEMAKER, MPI, LAUNCHERS, ROOM = 16384 };
static int starts; /* of two ranks */
#define MEET {"MASTER_ADDR", "127.0.0.1", "where rank 0 listens"}, {"MASTER_PORT", "@", "and at which port"}
static const launcher known[LAUNCHERS] = {
    {"torchrun: rank # of 2 (# of 2 here) on 1 host, meeting at 127.0.0.1, port ^", 1,
     {{"RANK", "#", "which process this is"}, {"WORLD_SIZE", "2", "of how many"},
      {"LOCAL_RANK", "#", "which on this machine: the GPU to take"}, {"LOCAL_WORLD_SIZE", "2", "of how many here"},
      {"GROUP_RANK", "0", "which machine this is"}, {"GROUP_WORLD_SIZE", "1", "of how many"}, MEET,
      {"TORCHELASTIC_USE_AGENT_STORE", "True", "that port is torchrun's own: take the next one"},
      {"TORCHELASTIC_RUN_ID", "play", "the job: no rank of another one may join"},
      {"TORCHELASTIC_RESTART_COUNT", "0", "how often the workers were started again"}}},
    {"Slurm: rank # of 2 (0 of 1 here) on 2 hosts, meeting at 127.0.0.1, port @", 2,
     {{"SLURM_JOB_ID", "4711", "the job"}, {"SLURM_STEP_ID", "0", "set by srun: the script of a batch job is not a rank"},
      {"SLURM_PROCID", "#", "which process this is"}, {"SLURM_NTASKS", "2", "of how many"},
      {"SLURM_LOCALID", "0", "which on this machine"}, {"SLURM_NODEID", "#", "which machine this is"},
      {"SLURM_STEP_TASKS_PER_NODE", "1(x2)", "how many on each: 1, on two machines"},
      {"SLURM_STEP_NODELIST", "gpu[07-08]", "the machines; ranks meet at the first, or where the script says:"}, MEET}},
    {"SageMaker: rank # of 2 (0 of 1 here) on 2 hosts, meeting at 127.0.0.1, port @", 2,
     {{"DT_SAGEMAKER_CONFIG", "~/#.json", "here for /opt/ml/input/config/resourceconfig.json"},
      {"TRAINING_JOB_NAME", "play-1", "the job"}, MEET}}, /* the PyTorch container sets both, to the first host */
    {"Open MPI: rank # of 2 (# of 2 here) on 1 host", 0,
     {{"OMPI_COMM_WORLD_RANK", "#", "which process this is"}, {"OMPI_COMM_WORLD_SIZE", "2", "of how many"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "#", "which on this machine"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2", "of how many here"}, {"PMIX_RANK", "#", "the same, for any MPI with PMIx"},
      {"PMIX_NAMESPACE", "1966866433", "the job. No address: MPI alone connects its ranks"}}}};

/* The training program, the same for all launchers. */
static int rank_main(int argc, char **argv)
{
    float sum;
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    setvbuf(stdout, NULL, _IOFBF, ROOM); /* all that a rank says in one piece */
    for (int i = 0; i < LAUNCHERS; i++)
        for (const variable *v = known[i].set; v->name; v++)
            if (getenv(v->name) && (i == TORCHRUN || strncmp(v->name, "MASTER", 6) != 0))
                printf("  %-28s %s\n", v->name, getenv(v->name));
    sum = r ? 0 : (float)dt_comm_rank(c) + 1;
    if (!r) r = dt_all_reduce(c, &sum, 1, DT_SUM);
    printf("%s", argc > 2 ? argv[2] : ""); /* which of two this is, for the one that started both */
    if (r) printf("%s\n", dt_last_error());
    else printf("rank %d of %d, node %d of %d: the sum is %g\n", dt_comm_rank(c), dt_comm_size(c),
                dt_comm_node(c, dt_comm_rank(c)), dt_comm_nodes(c), (double)sum);
    if (!r) printf("%s%s\n", argc > 2 ? argv[2] : "", dt_comm_launcher(c));
    dt_comm_close(&c);
    return dt_exit_code(r);
}

/* A value, for one rank. */
static void fill(char *to, size_t room, const char *from, int rank, int port, const char *folder)
{
    size_t n = 0;
    for (to[0] = 0; *from && n + 1 < room; from++, n = strlen(to)) {
        if (*from == '#') snprintf(to + n, room - n, "%d", rank);
        else if (*from == '@' || *from == '^') snprintf(to + n, room - n, "%d", port + (*from == '^'));
        else if (*from == '~') snprintf(to + n, room - n, "%s", folder);
        else to[n] = *from, to[n + 1] = 0;
    }
}

/* A port that is free now, as is mostly the next one. */
static int free_port(void)
{
    struct sockaddr_in a;
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0), good;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    good = fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a) && !getsockname(fd, (struct sockaddr *)&a, &size);
    if (fd >= 0) close(fd);
    return good ? ntohs(a.sin_port) : 0;
}

/* Runs a command of the shell. text (ROOM): what it says; returns its exit status. */
static int run(const char *command, char *text)
{
    FILE *out = (fflush(NULL), popen(command, "r"));
    int status;
    text[out ? fread(text, 1, ROOM - 1, out) : 0] = 0;
    status = out ? pclose(out) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* Did the processes say this, after that? */
static int said(const char *text, const char *before, const char *want)
{
    char whole[512];
    int found = (snprintf(whole, sizeof whole, "%s%s", before, want), strstr(text, whole) != NULL);
    printf("  %s %s\n", found ? "->" : "MISSING:", found ? want : whole);
    return found || (printf("in:\n%s\n", text), 0);
}

/* Two ranks as launchers first .. last start them, of which number `counts` is the one that counts. */
static int play(const char *program, const char *title, int first, int last, int counts, const char *folder)
{
    static char text[ROOM], command[ROOM];
    const launcher *l = &known[counts];
    char value[2][128], want[256], before[80];
    int port = free_port(), engine = 0, good = 1, status;
    size_t n = 0;
#if defined(DT_OFI)
    engine = l->nodes > 0;
#elif defined(DT_MPI)
    if (!l->nodes) return printf("\n%s: left out, for this build would ask MPI itself\n", title), 1;
#endif
    printf("\n%s\n", title), starts++;
    for (const variable *v = known[first].set; v->name && first == last; v++) {
        for (int r = 0; r < 2; r++) fill(value[r], sizeof value[r], v->value, r, port, "..");
        printf("  %-28s %-10s %-10s  %s\n", v->name, value[0], strcmp(value[0], value[1]) ? value[1] : "", v->meaning);
    }
    for (int r = 0; r < 2; r++) { /* env -i: with these variables and no others */
        n += (size_t)sprintf(command + n, "env -i DT_RENDEZVOUS_TIMEOUT=15 DT_NODES=%d", l->nodes); /* played nodes */
        for (int i = first; i <= last; i++)
            for (const variable *v = known[i].set; v->name; v++) {
                fill(value[0], sizeof value[0], v->value, r, port, folder);
                n += (size_t)sprintf(command + n, " %s='%s'", v->name, value[0]);
            }
        n += (size_t)sprintf(command + n, " '%.1000s' --show %d: 2>&1 & ", program, r);
        n += (size_t)sprintf(command + n, r ? "wait $a && wait $!" : "a=$!; ");
    }
    status = run(command, text);
    for (int r = 0; r < 2; r++) {
        fill(want, sizeof want, l->line, r, port, folder);
        snprintf(before, sizeof before, engine ? "%d:" : "%d:the environment makes this rank %d of 2 (", r, r);
        good = said(text, before, want) && good;
        snprintf(want, sizeof want, SUM, r, l->nodes == 2 ? r : 0, l->nodes);
        good = (!engine || said(text, before, want)) && good;
    }
    if (!engine) good = said(text, "", l->nodes ? "rebuild with DT_OFI or DT_MPI" : "rebuild with DT_MPI") && good;
    return good && status == (engine ? 0 : dt_exit_code(DT_E_USAGE));
}

/* The own launcher, whose ranks have torchrun's variables. */
static int own(const char *program)
{
    static char text[ROOM];
    char command[1200], sum[2][80];
    int good;
    snprintf(command, sizeof command, "exec 2>&1; env -i '%.1000s' --ranks 2 --show", program);
    for (int r = 0; r < 2; r++) snprintf(sum[r], sizeof sum[r], SUM, r, 0, 1);
    printf("\nNone of them, and --ranks 2: the program is its own launcher\n"), starts++;
    good = !run(command, text) && said(text, "", "RANK                         1");
    good = said(text, "", "MASTER_ADDR                  127.0.0.1") && good;
    good = said(text, "", "the program itself: rank 1 of 2 (1 of 2 here) on 1 host") && good;
    good = said(text, "", sum[0]) && said(text, "", sum[1]) && good;
    return good;
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/dtrain_XXXXXX", path[2][64];
    FILE *f;
    int good = 1;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--show")) return rank_main(argc, argv);
    if (argc > 1) return fprintf(stderr, "90_launchers: the option is --show\n"), 2;
    if (!mkdtemp(folder)) return perror("90_launchers: no folder in /tmp"), 1;
    for (int r = 0; r < 2; r++) { /* what each host of a SageMaker job finds in its file */
        snprintf(path[r], sizeof path[r], "%s/%d.json", folder, r);
        if (!(f = fopen(path[r], "w"))) return perror(path[r]), 1;
        fprintf(f, "{\"current_host\": \"algo-%d\", \"hosts\": [\"algo-1\", \"algo-2\"], "
                   "\"network_interface_name\": \"lo\"}\n", r + 1);
        if (fclose(f)) return perror(path[r]), 1;
    }
    printf("Variables in rank 0, in rank 1 where it differs, and what they mean; -> what the library says\n");
    good = play(argv[0], "torchrun: one machine", TORCHRUN, TORCHRUN, TORCHRUN, folder) && good;
    good = play(argv[0], "Slurm: two machines (srun)", SLURM, SLURM, SLURM, folder) && good;
    good = play(argv[0], "SageMaker: two hosts; the file: {\"current_host\": \"algo-1\", \"hosts\": [\"algo-1\", "
                "\"algo-2\"], ..}", SAGEMAKER, SAGEMAKER, SAGEMAKER, folder) && good;
    good = play(argv[0], "mpirun of Open MPI: one machine", MPI, MPI, MPI, folder) && good;
    good = play(argv[0], "All of them at once: MPI counts", TORCHRUN, MPI, MPI, folder) && good;
    good = play(argv[0], "All but torchrun: MPI counts", SLURM, MPI, MPI, folder) && good;
    good = play(argv[0], "A step of Slurm on SageMaker: Slurm counts", SLURM, SAGEMAKER, SLURM, folder) && good;
    good = play(argv[0], "A torchrun in a step of Slurm on SageMaker: torchrun counts", TORCHRUN, SAGEMAKER, TORCHRUN,
                folder) && good;
    good = own(argv[0]) && good;
    remove(path[0]), remove(path[1]), rmdir(folder);
    if (good) return printf("\nok: %d starts of 2 ranks: rank, size and place are what the launcher set\n", starts), 0;
    return fprintf(stderr, "FAILED: a launcher, rank or place is not what was set\n"), 1;
}
