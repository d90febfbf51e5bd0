/* Which launcher started this process (DESIGN: Open MPI, Slurm, torchrun, SageMaker, in this order): the variables that
 * each really sets, malformed ones, and several at once. Then the rendezvous: all ranks get what each brings; strangers
 * change nothing, and every failure has its sentence. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"

extern char **environ;
static char folder[64];

/* Detects with these variables and no others: "NAME=value", up to a NULL. */
static dt_result detect(dt__world *w, const char *const *variable)
{
    char config[128];
    clearenv();
    snprintf(config, sizeof config, "%s/resourceconfig.json", folder);
    setenv("DT_SAGEMAKER_CONFIG", config, 1);
    for (; *variable; variable++) putenv((char *)(uintptr_t)*variable);
    return dt__world_detect(w);
}

static const char *const none[] = {NULL};
static const char *const openmpi[] = {
    "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
    "OMPI_COMM_WORLD_NODE_RANK=1", "OMPI_UNIVERSE_SIZE=4", "PMIX_RANK=3", "PMIX_NAMESPACE=1966866433", NULL};
static const char *const slurm[] = {
    "SLURM_JOB_ID=123456", "SLURM_JOBID=123456", "SLURM_STEP_ID=2", "SLURM_STEPID=2", "SLURM_PROCID=5",
    "SLURM_LOCALID=1", "SLURM_NODEID=2", "SLURM_NTASKS=9", "SLURM_NPROCS=9", "SLURM_STEP_NUM_TASKS=7",
    "SLURM_STEP_TASKS_PER_NODE=2(x3),1", "SLURM_STEP_NUM_NODES=4", "SLURM_NNODES=13", "SLURM_TASKS_PER_NODE=9", "SLURM_STEP_NODELIST=gpu[07-09,12]",
    "SLURM_JOB_NODELIST=gpu[07-09,12-20]", "SLURM_NODELIST=gpu[07-09,12-20]", NULL};
static const char *const torchrun[] = {
    "RANK=6", "WORLD_SIZE=8", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=1", "GROUP_WORLD_SIZE=2", "ROLE_RANK=6",
    "ROLE_WORLD_SIZE=8", "MASTER_ADDR=10.0.0.7", "MASTER_PORT=29400", "TORCHELASTIC_RUN_ID=abc",
    "TORCHELASTIC_RESTART_COUNT=1", "TORCHELASTIC_MAX_RESTARTS=3", "TORCHELASTIC_USE_AGENT_STORE=True", NULL};
static const char *const plain[] = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=node0", "MASTER_PORT=1234", NULL};
static const char *const sagemaker[] = {
    "SM_HOSTS=[\"algo-1\",\"algo-2\", \"algo-3\"]", "SM_CURRENT_HOST=algo-2", "SM_NUM_GPUS=0", "SM_NUM_CPUS=8",
    "SM_NETWORK_INTERFACE_NAME=eth0", "TRAINING_JOB_NAME=my-job-7", NULL};

/* All that is found, in one string. */
static const char *told(const dt__world *w)
{
    static char text[1400];
    snprintf(text, sizeof text, "%d: %d/%d local %d/%d host %d/%d at %s:%d job %s net %s", w->kind, w->rank,
             w->size, w->local_rank, w->local_size, w->host, w->hosts, w->address, w->port, w->job, w->network);
    return text;
}

static void finds(const char *const *variable, const char *want, const char *line, const char *what)
{
    dt__world w;
    dt_result r = detect(&w, variable);
    if (!tap_ok(!r && !strcmp(told(&w), want), "%s: all is found", what))
        tap_note("%s\n# got  %s\n# want %s", r ? dt_last_error() : "", told(&w), want);
    if (!tap_ok(!strcmp(w.line, line), "%s: and said in one line", what)) tap_note("%s", w.line);
}

static void test_launchers(void)
{
    finds(none, "0: 0/1 local 0/1 host 0/1 at :29500 job  net ", "alone", "nothing");
    finds(openmpi, "1: 3/4 local 1/2 host 0/2 at :29500 job mpi 1966866433 net ",
          "Open MPI: rank 3 of 4 (1 of 2 here) on 2 hosts", "Open MPI");
    finds(slurm, "2: 5/7 local 1/2 host 2/4 at gpu07:27650 job slurm 123456.2 net ",
          "Slurm: rank 5 of 7 (1 of 2 here) on 4 hosts, meeting at gpu07, port 27650", "Slurm");
    finds(torchrun, "3: 6/8 local 2/4 host 1/2 at 10.0.0.7:29401 job torchrun abc 1 net ",
          "torchrun: rank 6 of 8 (2 of 4 here) on 2 hosts, meeting at 10.0.0.7, port 29401", "torchrun");
    finds(plain, "3: 1/2 local 0/0 host 0/0 at node0:1234 job torchrun  0 net ",
          "torchrun: rank 1 of 2, meeting at node0, port 1234", "the four variables alone");
    finds(sagemaker, "4: 1/3 local 0/1 host 1/3 at algo-1:29500 job sagemaker my-job-7 net eth0",
          "SageMaker: rank 1 of 3 (0 of 1 here) on 3 hosts, meeting at algo-1, port 29500", "SageMaker");
}

/* A container of SageMaker without its toolkit has the file alone. */
static void test_config(void)
{
    static const char *const cases[][2] = {
        {"{\"current_host\": \"algo-2\", \"current_instance_type\": \"ml.c5.xlarge\", \"current_group_name\": "
         "\"homogeneousCluster\", \"hosts\": [\"algo-1\", \"algo-2\"], \"instance_groups\": [{\"instance_group_name\": "
         "\"homogeneousCluster\", \"instance_type\": \"ml.c5.xlarge\", \"hosts\": [\"algo-2\", \"algo-1\"]}], "
         "\"network_interface_name\": \"eth0\"}", NULL},
        {"{\"current_host\": \"algo-9\", \"hosts\": [\"algo-1\", \"algo-2\"]}", "is not among the 2 hosts"},
        {"{\"current_host\": \"algo-1\"}", "there is no list of hosts"},
        {"{\"hosts\": [\"algo-1\"]}", "there is no current_host"},
        {"{\"current_host\": \"algo-1\", \"hosts\": [\"algo-1\", 7]}", "a '\"' is missing"},
        {"{\"current_host\": \"algo-1\", \"hosts\": [\"al", "a string without an end"},
        {"", "a '{' is missing"}};
    char name[128];
    dt__world w;
    FILE *f;
    snprintf(name, sizeof name, "%s/resourceconfig.json", folder);
    for (int i = 0; i < 7; i++) {
        dt_result r;
        if (!(f = fopen(name, "w")) || fputs(cases[i][0], f) < 0 || fclose(f)) tap_bail("cannot write %s", name);
        r = detect(&w, none);
        if (cases[i][1]) tap_ok(r && strstr(dt_last_error(), cases[i][1]), "resourceconfig.json: %s", dt_last_error());
        else
            tap_ok(!r && !strcmp(told(&w), "4: 1/2 local 0/1 host 1/2 at algo-1:29500 job sagemaker  net eth0"),
                   "resourceconfig.json of two hosts: %s", told(&w));
    }
    unlink(name);
}

/* Variables that are refused, and a part of the sentence. One replaces or removes (no '=') those of a launcher. */
static void test_refused(void)
{
    static const struct {
        const char *const *base;
        const char *change, *sentence;
    } cases[] = {
        {torchrun, "RANK=8", "RANK=8: it is a whole number from 0 to 7"},
        {torchrun, "RANK=-1", "RANK=-1: it is"},
        {torchrun, "RANK=two", "RANK=two: it is"},
        {torchrun, "RANK=1x", "RANK=1x: it is"},
        {torchrun, "RANK", "RANK is not set, but other variables of its launcher are"},
        {torchrun, "WORLD_SIZE=0", "WORLD_SIZE=0: it is"},
        {torchrun, "WORLD_SIZE=99999999999", "WORLD_SIZE=99999999999: it is"},
        {torchrun, "WORLD_SIZE", "WORLD_SIZE is not set"},
        {torchrun, "LOCAL_RANK=4", "LOCAL_RANK=4: it is a whole number from 0 to 3"},
        {torchrun, "LOCAL_WORLD_SIZE=9", "LOCAL_WORLD_SIZE=9: it is a whole number from 1 to 8"},
        {torchrun, "MASTER_ADDR", "this is rank 6 of 8, but nothing says where they meet"},
        {torchrun, "MASTER_PORT=70000", "MASTER_PORT=70000: it is"},
        {torchrun, "DT_RENDEZVOUS_TIMEOUT=soon", "DT_RENDEZVOUS_TIMEOUT=soon: it is a number of seconds"},
        {openmpi, "OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_RANK=4: it is"},
        {openmpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK is not set"},
        {slurm, "SLURM_PROCID=7", "SLURM_PROCID=7: it is a whole number from 0 to 6"},
        {slurm, "SLURM_LOCALID", "SLURM_LOCALID is not set"},
        {slurm, "SLURM_STEP_NODELIST=gpu[07-", "the first host in Slurm's list cannot be read: \"gpu[07-\""},
        {slurm, "SLURM_STEP_NODELIST=gpu[a-b]", "cannot be read"},
        {slurm, "SLURM_STEP_NODELIST=gpu]1[", "cannot be read"},
        {slurm, "SLURM_STEP_NODELIST=rack[1-2]node[1-3]", "cannot be read"},
        {slurm, "SLURM_STEP_NODELIST=,gpu1", "cannot be read"},
        {slurm, "SLURM_STEP_NUM_NODES=0", "SLURM_STEP_NUM_NODES=0: it is"},
        {sagemaker, "SM_CURRENT_HOST", "SM_CURRENT_HOST is not set, but SM_HOSTS is"},
        {sagemaker, "SM_CURRENT_HOST=algo-4", "this host, \"algo-4\", is not among the 3 hosts"},
        {sagemaker, "SM_HOSTS=algo-1,algo-2", "SM_HOSTS, line 1, byte 0"},
        {sagemaker, "SM_HOSTS=[\"algo-1\",", "SM_HOSTS, line 1"},
        {sagemaker, "SM_HOSTS=[]", "is not among the 0 hosts"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *variable[32], *change = cases[i].change;
        size_t name = strcspn(change, "="), n = 0;
        dt__world w;
        dt_result r;
        for (const char *const *v = cases[i].base; *v; v++)
            if (strncmp(*v, change, name) != 0 || (*v)[name] != '=') variable[n++] = *v;
        if (change[name]) variable[n++] = change;
        variable[n] = NULL;
        r = detect(&w, variable);
        if (!tap_ok(r == DT_E_USAGE || r == DT_E_DATA, "refused: %s", r ? dt_last_error() : change)) continue;
        if (!strstr(dt_last_error(), cases[i].sentence)) tap_ok(0, "but not with: %s", cases[i].sentence);
    }
}

/* Which one counts when several have left their variables. */
static void test_precedence(void)
{
    static const char *const *const lists[] = {openmpi, slurm, torchrun, sagemaker};
    static const char *const place[] = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=::1", "MASTER_PORT=4000",
                                        "DT_INTERFACE=ib0", "DT_FABRIC=net", NULL};
    const char *variable[64];
    dt__world w;
    for (int first = 0; first < 4; first++) {
        int n = 0, want = first + 1;
        for (int k = first; k < 4; k++)
            for (const char *const *v = lists[k]; *v; v++)
                if (strncmp(*v, "TORCHELASTIC_RUN_ID", 19) != 0 && (first > 1 || k != 2)) variable[n++] = *v;
        variable[n] = NULL;
        tap_ok(!detect(&w, variable) && w.kind == want, "of all from %d on, the first counts: %s", want, w.line);
    }
    for (int i = 0, n = 0; i < 2; i++) {
        for (const char *const *v = lists[1 + i]; *v; v++) variable[n++] = *v;
        variable[n] = NULL;
    }
    tap_ok(!detect(&w, variable) && w.kind == DT__WORLD_TORCHRUN, "a torchrun in a step of Slurm counts: %s", w.line);
    for (int n = 0; n < 16; n++) variable[n] = slurm[n] && strncmp(slurm[n], "SLURM_STEP", 10) ? slurm[n] : "A=b";
    variable[16] = NULL;
    tap_ok(!detect(&w, variable) && w.kind == DT__WORLD_ALONE, "the script of a batch job is not a rank: %s", w.line);
    for (int n = 0; n < 14; n++) variable[n] = torchrun[n];
    variable[14] = "DT_MEMFD=7";
    variable[15] = NULL;
    tap_ok(!detect(&w, variable) && w.kind == DT__WORLD_ALONE, "nor is one of the own supervisor: %s", w.line);
    tap_ok(!detect(&w, place) && !strcmp(w.address, "::1") && w.port == 4000 && !strcmp(w.network, "ib0") &&
           !strcmp(w.fabric, "net"), "MASTER_ADDR and MASTER_PORT, DT_INTERFACE, DT_FABRIC: %s", w.line);
}

/* A launcher inside a launcher: a WORLD_SIZE above 1 counts, or is refused together with the other one. */
static void test_nested(void)
{
    static const struct {
        const char *const *base;
        const char *change[3], *want;
    } cases[] = {
        {slurm, {"WORLD_SIZE=7", "RANK=5", "A=b"}, "2: 5/7"},
        {slurm, {"WORLD_SIZE=7", "A=b", "A=b"}, "2: 5/7"},
        {slurm, {"WORLD_SIZE=1", "A=b", "A=b"}, "2: 5/7"},
        {slurm, {"WORLD_SIZE=8", "RANK=5", "A=b"}, "two launchers number this process: Slurm: rank 5 of 7 (1 of 2 here) on 4 hosts, meeting at gpu07, port 27650, and the variables RANK and WORLD_SIZE say 5 of 8"},
        {slurm, {"WORLD_SIZE=7", "RANK=4", "A=b"}, "two launchers"},
        {slurm, {"WORLD_SIZE=8", "A=b", "A=b"}, "two launchers"},
        {slurm, {"WORLD_SIZE=2", "RANK=2", "A=b"}, "RANK=2: it is a whole number from 0 to 1"},
        {openmpi, {"WORLD_SIZE=4", "RANK=3", "A=b"}, "1: 3/4"},
        {openmpi, {"WORLD_SIZE=8", "RANK=3", "A=b"}, "two launchers number this process: Open MPI: rank 3 of 4"},
        {sagemaker, {"WORLD_SIZE=4", "RANK=3", "MASTER_ADDR=[::1]"}, "3: 3/4 local 0/0 host 0/0 at ::1:"},
        {NULL, {"WORLD_SIZE=2", "RANK=1", "MASTER_ADDR=a"}, "3: 1/2"},
        {NULL, {"WORLD_SIZE=2", "MASTER_ADDR=a", "A=b"}, "Slurm: rank 0 of 1, and the variables RANK and WORLD_SIZE say 0 of 2"}};
    static const char *const one[] = {"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_STEP_NUM_TASKS=1"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *variable[64];
        int n = 0;
        dt__world w;
        dt_result r;
        if (!cases[i].base) for (; n < 5; n++) variable[n] = one[n];
        for (const char *const *v = cases[i].base; v && *v; v++) variable[n++] = *v;
        for (int k = 0; k < 3; k++) variable[n++] = cases[i].change[k];
        variable[n] = NULL;
        r = detect(&w, variable);
        if (!tap_ok(strstr(r ? dt_last_error() : told(&w), cases[i].want) != NULL, "%s in %s: %s", cases[i].change[0],
                    cases[i].base == slurm ? "Slurm" : cases[i].base == openmpi ? "Open MPI" : cases[i].base ? "SageMaker" : "a step of one task", cases[i].want))
            tap_note("%s", r ? dt_last_error() : told(&w));
    }
}

/* Where checkpoints are without and with --checkpoint. */
static void test_checkpoints(void)
{
    static const struct {
        const char *hosts, *option, *what;
        int there, found;
    } cases[] = {{"[\"algo-1\"]", NULL, "one host", 1, 1},
                 {"[\"algo-1\"]", "--checkpoint=mine", "what the user says counts", 1, 0},
                 {"[\"algo-1\"]", NULL, "no such folder", 0, 0},
                 {"[\"algo-1\", \"algo-2\"]", NULL, "two hosts, who share none", 1, 0},
                 {"[", NULL, "a list that is broken", 1, 0},
                 {NULL, NULL, "another launcher", 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char option[32], *list[] = {option, option, NULL}, **argv = list;
        int argc = cases[i].option ? 2 : 1, good;
        dt_recipe recipe = dt_recipe_default();
        dt_layout layout = dt_layout_default();
        const char *want = cases[i].found ? folder : cases[i].option ? "mine" : NULL;
        clearenv();
        snprintf(option, sizeof option, "%s", cases[i].option ? cases[i].option : "train");
        setenv("DT_SAGEMAKER_CONFIG", "/nonexistent", 1);
        setenv("DT_SAGEMAKER_CHECKPOINTS", cases[i].there ? folder : "/nonexistent", 1);
        if (cases[i].hosts) setenv("SM_HOSTS", cases[i].hosts, 1), setenv("SM_CURRENT_HOST", "algo-1", 1);
        good = !dt_args(&argc, &argv, &recipe, &layout);
        good &= want && layout.checkpoint.place ? !strcmp(layout.checkpoint.place, want) : !want && !layout.checkpoint.place;
        tap_ok(good, "checkpoints on SageMaker, %s: %s", cases[i].what, layout.checkpoint.place ? layout.checkpoint.place : "none");
    }
    clearenv();
}

static void test_slurm_lists(void)
{
    static const char *const cases[][2] = {{"one", "one"}, {"a,b,c", "a"}, {"n[1-3]", "n1"}, {"n[08-11]", "n08"},
                                           {"n[001-100,205]-ib,m[3],k", "n001-ib"}, {"m[7],k", "m7"},
                                           {"x.example.org,r[1-2]n[1-3]", "x.example.org"}};
    static const struct {
        const char *list;
        int host, tasks;
    } tasks[] = {{"4", 0, 4}, {"4", 1, 0}, {"2(x3),1", 2, 2}, {"2(x3),1", 3, 1}, {"x", 0, 0}, {"2(x", 0, 0}};
    char host[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tap_ok(dt__host_first(cases[i][0], host, sizeof host) && !strcmp(host, cases[i][1]), "%s: the first host is %s",
               cases[i][0], host);
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        tap_ok(dt__host_tasks(tasks[i].list, tasks[i].host) == tasks[i].tasks, "%s: %d on host %d", tasks[i].list,
               tasks[i].tasks, tasks[i].host);
}

/* ---- rendezvous ---- */

enum { BYTES = 100 };

/* One rank in a process of its own, `late` seconds later; the sentence of what failed goes to a file. */
static pid_t attend(const dt__world *world, int rank, double late, const char *change)
{
    dt__world w = *world;
    char mine[BYTES], name[128], *all;
    struct timespec t;
    pid_t pid = fork();
    int bad = 0;
    FILE *f;
    if (pid) return pid;
    w.rank = rank;
    if (change && *change == 'j') dt__world_copy(w.job, sizeof w.job, "another");
    if (change && *change == 's') w.size++;
    if (change && *change == 'k') setenv("DT_JOB_KEY", change + 1, 1);
    t.tv_sec = (time_t)late;
    t.tv_nsec = (long)((late - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
    all = (char *)malloc((size_t)(w.size * BYTES));
    memset(mine, rank + 1, BYTES);
    if (dt__rendezvous(&w, mine, BYTES, all)) {
        snprintf(name, sizeof name, "%s/error.%d", folder, rank);
        f = fopen(name, "w");
        if (f && fputs(dt_last_error(), f) >= 0) fclose(f);
        _exit(1);
    }
    for (int i = 0; i < w.size * BYTES; i++) bad |= all[i] != i / BYTES + 1;
    free(all);
    _exit(bad ? 2 : 0);
}

static int ended(pid_t pid)
{
    int status = 0;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* What a rank said when it failed. */
static const char *said(int rank)
{
    static char text[1024];
    char name[128];
    FILE *f;
    size_t n = 0;
    snprintf(name, sizeof name, "%s/error.%d", folder, rank);
    if ((f = fopen(name, "r")) != NULL) n = fread(text, 1, sizeof text - 1, f), fclose(f);
    text[n] = 0;
    unlink(name);
    return text;
}

/* A rank that ends with such a sentence. */
static void fails(const dt__world *w, int rank, const char *sentence, const char *what)
{
    int status = ended(attend(w, rank, 0, NULL));
    const char *text = said(rank);
    tap_ok(status == 1 && strstr(text, sentence), "%s: %s", what, text);
}

/* A port of the loopback interface that nobody has just now. */
static int free_port(const char *address)
{
    int port = 20000 + (int)getpid() % 9000;
    for (;; port++) {
        const char *why;
        struct addrinfo *a = dt__host_addresses(address, port, 0, &why);
        int fd = a ? dt__socket_open(a, 1) : -1;
        if (a) freeaddrinfo(a);
        else return 0;
        if (fd < 0 && errno == EADDRINUSE) continue;
        if (fd >= 0) close(fd);
        return fd < 0 ? 0 : port;
    }
}

static int everyone(const dt__world *w, double late)
{
    pid_t pid[64];
    int bad = 0;
    for (int r = 0; r < w->size; r++) pid[r] = attend(w, r, r ? 0 : late, NULL);
    for (int r = 0; r < w->size; r++) bad += ended(pid[r]) != 0;
    return bad;
}

/* Strangers at the door: one who is silent, one who talks nonsense, one who hangs up. */
static int stranger(const dt__world *w, const char *text)
{
    const char *why;
    struct addrinfo *a = dt__host_addresses(w->address, w->port, 0, &why);
    double end = dt__now() + 5;
    int fd = -1;
    while (a && fd < 0 && dt__now() < end) {
        fd = dt__socket_open(a, 0);
        if (fd < 0) dt__nap();
    }
    if (a) freeaddrinfo(a);
    if (fd >= 0 && *text && send(fd, text, strlen(text), MSG_NOSIGNAL) < 0) return fd;
    return fd;
}

static void test_tcp(const char *address, const char *family)
{
    dt__world w;
    pid_t pid[4];
    int fd[3], idle[100], bad, port = free_port(address);
    memset(&w, 0, sizeof w);
    if (!port) {
        tap_skip(8, "no %s here", family);
        return;
    }
    dt__world_copy(w.address, sizeof w.address, address);
    dt__world_copy(w.job, sizeof w.job, "this");
    w.port = port;
    w.hosts = 1;
    w.patience = 10;
    w.size = 5;
    tap_ok(!everyone(&w, 0), "%s: five ranks get what each brings", family);
    tap_ok(!everyone(&w, 0.4), "%s: again at once, and rank 0 comes late", family);
    w.size = 40;
    tap_ok(!everyone(&w, 0), "%s: forty ranks", family);
    w.size = 2;
    pid[0] = attend(&w, 0, 0, NULL);
    for (int i = 0; i < 3; i++) fd[i] = stranger(&w, i == 1 ? "GET / HTTP/1.1\r\n\r\n" : i ? "dtmeet01" : "");
    if (fd[2] >= 0) close(fd[2]);
    pid[1] = attend(&w, 1, 0.1, NULL);
    bad = ended(pid[0]) + ended(pid[1]);
    tap_ok(!bad && fd[0] >= 0, "%s: strangers do not disturb", family);
    pid[0] = attend(&w, 0, 0, NULL);
    for (int i = 0; i < 100; i++) idle[i] = stranger(&w, i % 3 ? "" : "dtmeet02and no more");
    pid[1] = attend(&w, 1, 0, NULL);
    bad = ended(pid[0]) + ended(pid[1]);
    tap_ok(!bad, "%s: nor do a hundred connections that stay", family);
    for (int i = 0; i < 100; i++) close(idle[i]);
    for (int i = 0; i < 2; i++) close(fd[i]);
    pid[0] = attend(&w, 0, 0, NULL);
    pid[2] = attend(&w, 1, 0.1, "job");
    pid[3] = attend(&w, 1, 0.1, "size");
    bad = ended(pid[2]) != 1 || ended(pid[3]) != 1;
    pid[1] = attend(&w, 1, 0, NULL);
    tap_ok(!bad && !ended(pid[0]) && !ended(pid[1]), "%s: nor does a rank of another job, or of another size", family);
    tap_ok(strstr(said(1), "answered rank 1: ") != NULL, "%s: who is told so", family);
    w.size = 4;
    w.patience = 1.5;
    pid[0] = attend(&w, 0, 0, NULL);
    pid[2] = attend(&w, 2, 0, NULL);
    bad = ended(pid[0]) != 1 || ended(pid[2]) != 1;
    tap_ok(!bad && strstr(said(0), "2 of 4 ranks were missing (1, 3)"), "%s: rank 0 says who is missing", family);
    tap_ok(strstr(said(2), "2 of 4 ranks were missing (1, 3)") != NULL, "%s: and tells those who are there", family);
}

static void test_tcp_failures(void)
{
    dt__world w;
    pid_t pid;
    int fd, bad;
    const char *why, *text;
    struct addrinfo *a;
    memset(&w, 0, sizeof w);
    dt__world_copy(w.address, sizeof w.address, "127.0.0.1");
    w.port = free_port(w.address);
    w.size = 2;
    w.hosts = 1;
    w.patience = 0.5;
    fails(&w, 1, "within 0.5 s: Connection refused. Check that rank 0 runs", "nobody listens");
    a = dt__host_addresses(w.address, w.port, 0, &why);
    fd = a ? dt__socket_open(a, 4) : -1;
    if (a) freeaddrinfo(a);
    fails(&w, 0, "Another program has the port", "the port is taken");
    w.patience = 10;
    pid = attend(&w, 1, 0, NULL);
    for (int i = 0, guest = -1; i < 30000 && guest < 0; i++) { /* answers when it has read: else its end is a reset */
        char question[4096];
        if ((guest = accept(fd, NULL, NULL)) < 0) dt__nap();
        else if (recv(guest, question, sizeof question, 0) > 0 &&
                 send(guest, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL) == 28)
            close(guest);
    }
    bad = ended(pid);
    text = said(1);
    tap_ok(bad == 1 && strstr(text, "another program than rank 0"), "a stranger answers: %s", text);
    close(fd);
}

/* A connection that sends a byte every 50 ms, or for ever as fast as it can, until rank 0 hangs up. */
static pid_t sender(const dt__world *w, int slow)
{
    pid_t pid = fork();
    int fd;
    if (pid) return pid;
    signal(SIGPIPE, SIG_IGN);
    fd = stranger(w, "dtmeet02");
    for (int i = 0; fd >= 0 && i < 100000000; i++) {
        if (slow) usleep(50000);
        if (write(fd, "aaaaaaaaaaaaaaaa", slow ? 1 : 16) < 0 && errno != EAGAIN) break;
    }
    _exit(0);
}

static void test_keys(void)
{
    dt__world w;
    pid_t pid[4];
    int bad;
    uint8_t proof[32];
    char hex[65] = "";
    memset(&w, 0, sizeof w);
    setenv("DT_JOB_KEY", "Jefe", 1);
    dt__job_proof(proof, "what do ya want for nothing?", 28);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", proof[i]);
    tap_ok(!strcmp(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"), "HMAC: RFC 4231, test case 2");
    {
        char key[132], data[] = "Test Using Larger Than Block-Size Key - Hash Key First";
        memset(key, 0xaa, 131);
        key[131] = 0;
        setenv("DT_JOB_KEY", key, 1);
        dt__job_proof(proof, data, 54);
    }
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", proof[i]);
    tap_ok(!strcmp(hex, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"), "HMAC: RFC 4231, test case 6");
    dt__world_copy(w.address, sizeof w.address, "127.0.0.1");
    dt__world_copy(w.job, sizeof w.job, "this");
    w.port = free_port(w.address);
    w.hosts = 1;
    w.patience = 20;
    w.size = 3;
    setenv("DT_JOB_KEY", "a secret", 1);
    tap_ok(!everyone(&w, 0), "three ranks with one key");
    w.size = 2;
    pid[0] = attend(&w, 0, 0, NULL);
    pid[1] = attend(&w, 1, 0, "kanother secret");
    bad = ended(pid[1]);
    tap_ok(bad == 1 && strstr(said(1), "another DT_JOB_KEY than rank 1"), "a rank with another key refuses rank 0");
    pid[1] = attend(&w, 1, 0, "k");
    bad = ended(pid[1]);
    tap_ok(bad == 1 && strstr(said(1), "another DT_JOB_KEY"), "so does a rank without a key");
    {
        const char *why;
        struct addrinfo *a = dt__host_addresses(w.address, w.port, 0, &why);
        int fd = dt__socket_open(a, 0);
        dt__hello h;
        dt__welcome in;
        char guess[32 + BYTES], c;
        memset(&h, 0, sizeof h);
        memset(guess, 1, sizeof guess);
        memcpy(h.magic, dt__meet_magic, sizeof h.magic);
        dt__world_copy(h.job, sizeof h.job, w.job);
        h.rank = 1, h.size = 2, h.bytes = BYTES;
        bad = dt__transfer(fd, &h, sizeof h, 1, dt__now() + 5) || dt__transfer(fd, &in, sizeof in, 0, dt__now() + 5) ||
              dt__transfer(fd, guess, sizeof guess, 1, dt__now() + 5);
        tap_ok(!bad && !in.text[0] && dt__transfer(fd, &c, 1, 0, dt__now() + 5), "a caller with a guessed proof gets no address");
        close(fd);
        freeaddrinfo(a);
    }
    pid[2] = sender(&w, 1);
    pid[3] = sender(&w, 0);
    pid[1] = attend(&w, 1, 0.2, NULL);
    bad = ended(pid[0]) || ended(pid[1]);
    tap_ok(!bad, "slow and endless senders do not keep the ranks apart");
    ended(pid[2]);
    ended(pid[3]);
    unsetenv("DT_JOB_KEY");
}

/* A name that is not an address of this host: rank 0 listens on all interfaces, and says so. */
static void test_everywhere(void)
{
    dt__world w;
    dt__meeting m;
    memset(&w, 0, sizeof w);
    memset(&m, 0, sizeof m);
    dt__world_copy(w.address, sizeof w.address, "192.0.2.1");
    w.port = free_port("127.0.0.1");
    w.size = 2;
    w.hosts = 2;
    for (int i = 0; i < 3; i++) {
        int want = i < 2;
        m.w = &w;
        m.listener = -1;
        tap_ok(!dt__meet_listen(&m) && w.everywhere == want, "%s, %d hosts: rank 0 listens %s", w.address, w.hosts,
               want ? "on all interfaces" : "there alone");
        if (m.listener >= 0) close(m.listener);
        dt__world_copy(w.address, sizeof w.address, "127.0.0.1");
        if (i) w.hosts = 1;
    }
}

static void test_interface(void)
{
    char text[128];
    dt__world w;
    memset(&w, 0, sizeof w);
    w.size = 2;
    dt__world_copy(w.address, sizeof w.address, "127.0.0.1");
    tap_ok(!dt__own_address(&w, text, sizeof text) && !strcmp(text, "127.0.0.1"), "the way to 127.0.0.1: %s", text);
    dt__world_copy(w.network, sizeof w.network, "lo");
    tap_ok(!dt__own_address(&w, text, sizeof text) && !strcmp(text, "127.0.0.1"), "interface lo: %s", text);
    dt__world_copy(w.network, sizeof w.network, "::1");
    tap_ok(!dt__own_address(&w, text, sizeof text) && !strcmp(text, "::1"), "an address as it is: %s", text);
    dt__world_copy(w.network, sizeof w.network, "none7");
    tap_ok(dt__own_address(&w, text, sizeof text) && strstr(dt_last_error(), "no interface \"none7\""), "%s",
           dt_last_error());
}

int main(void)
{
    snprintf(folder, sizeof folder, "/tmp/dtrain-environment-XXXXXX");
    if (!mkdtemp(folder)) tap_bail("no folder in /tmp");
    test_launchers();
    test_config();
    test_refused();
    test_precedence();
    test_nested();
    test_checkpoints();
    test_slurm_lists();
    test_tcp("127.0.0.1", "IPv4");
    test_tcp("::1", "IPv6");
    test_tcp_failures();
    test_keys();
    test_everywhere();
    test_interface();
    rmdir(folder);
    return tap_done();
}
