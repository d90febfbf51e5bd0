/* 96_checklist: a job of several nodes on EC2 or on SageMaker. What is still missing for its fast network?
 *
 * What you learn
 *     - On EC2 five things are yours: a cluster placement group; one launch request for all instances, of one type (a
 *       second request or type makes "insufficient capacity" likelier); one subnet, since EFA's own traffic is not
 *       routed; a security group that admits all traffic from and to itself; EFA attached at the launch, its driver,
 *       libfabric and aws-ofi-nccl on the machine.
 *     - SageMaker chooses a place and hands EFA to the container. It installs nothing there (its Deep Learning
 *       Containers have the software) and writes no rule into a security group of yours.
 *     - So with an image and a VPC of your own, SageMaker provides three of the five items.
 *     - No metric says "EFA is on". The engine does: NCCL_DEBUG=INFO prints "Selected provider is efa".
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 96_checklist.c -o 96_checklist -lm -lpthread
 *     ./96_checklist
 *     ./96_checklist on=ec2 nodes=4 group=spread requests=1 subnets=2 rule=self software=driver,libfabric
 *     ./96_checklist on=sagemaker nodes=2 vpc=own image=own rule=anyone
 *
 * What it prints
 *     EC2, one node                    given 5, missing 0:
 *     EC2, 4 nodes, as launched        given 0, missing 5: placement group; one request; one subnet; rule; software
 *     EC2, 4 nodes, all but the rule   given 0, missing 1: rule
 *     SageMaker, its image, its VPC    given 5, missing 0:
 *     SageMaker, its image, your VPC   given 4, missing 1: rule
 *     SageMaker, your image, your VPC  given 3, missing 2: rule; software
 *     ok: 6 of 6 jobs lack what they should, 9 of 30 items
 *     your job                         given 0, missing 3: placement group; one subnet; software
 *       placement group: group=spread. Launch into a placement group with the strategy "cluster"
 *       one subnet: subnets=2. Launch all instances into one subnet: EFA is not routed
 *       software: software=driver,libfabric. Install in the image: aws-ofi-nccl
 *     ok: 3 of 5 items to do
 *
 * Predict first: which item does a job on one node need?
 * Exercise: add a sixth item, an instance type with EFA, by the catalogue of tools/cost.h (type=p4d). It is yours on
 *     SageMaker, too. What does the list say for type=p3.16, and for type=p3dn?
 *
 * Read on: 100_roofline.c, the next chapter; 97_racks.c for what placement costs when machines fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a launch says, by key; the first ITEMS are what a fast network needs on several nodes. */
enum { GROUP, REQUESTS, SUBNETS, RULE, SOFTWARE, ITEMS, ON = ITEMS, NODES, VPC, IMAGE, KEYS };
static const char *const keys[KEYS] = {"group", "requests", "subnets", "rule", "software",
                                       "on",    "nodes",    "vpc",     "image"};
static const char *const parts[3] = {"driver", "libfabric", "aws-ofi-nccl"};
static const struct {
    const char *name, *wanted, *remedy;
} items[ITEMS] = {
    {"placement group", "cluster", "Launch into a placement group with the strategy \"cluster\""},
    {"one request", "1", "Launch all instances, of one type, by one request"},
    {"one subnet", "1", "Launch all instances into one subnet: EFA is not routed"},
    {"rule", "self", "Let the security group admit all traffic from itself and to itself"},
    {"software", "driver,libfabric,aws-ofi-nccl", "Install in the image:"}};

typedef struct job { char value[KEYS][48]; } job; /* "": not said */

/* Reads a word "key=value". 0, with a sentence: there is no such key, or the value is too long. */
static int set(job *j, const char *word)
{
    for (int k = 0; k < KEYS; k++) {
        size_t n = strlen(keys[k]);
        if (strncmp(word, keys[k], n) || word[n] != '=' || strlen(word + n + 1) >= sizeof j->value[k]) continue;
        return strcpy(j->value[k], word + n + 1), 1;
    }
    fprintf(stderr, "96_checklist: what is '%s'? The words are KEY=VALUE:", word);
    for (int k = 0; k < KEYS; k++) fprintf(stderr, " %s", keys[k]);
    return fprintf(stderr, "\n"), 0;
}

static int says(const job *j, int key, const char *what) { return !strcmp(j->value[key], what); }

/* What the platform does by itself. A VPC that is not yours has its rule, an image that is not yours the software. */
static int given(const job *j, int item)
{
    if (says(j, NODES, "1")) return 1;
    return says(j, ON, "sagemaker") && !(item == RULE && says(j, VPC, "own")) &&
           !(item == SOFTWARE && says(j, IMAGE, "own"));
}

static int lacks(const job *j, int item)
{
    int all = 1;
    for (int k = 0; k < 3; k++) all = all && strstr(j->value[SOFTWARE], parts[k]);
    return !given(j, item) && !(item == SOFTWARE ? all : says(j, item, items[item].wanted));
}

/* One line about a job; with `detail` one more for each item that is missing. Returns how many are. */
static int check(const char *name, const job *j, int detail)
{
    int own = 0, missing = 0;
    for (int k = 0; k < ITEMS; k++) own += given(j, k), missing += lacks(j, k);
    printf("%-32s given %d, missing %d:", name, own, missing);
    for (int k = 0, n = 0; k < ITEMS; k++)
        if (lacks(j, k)) printf("%s %s", n++ ? ";" : "", items[k].name);
    printf("\n");
    for (int k = 0; k < ITEMS && detail; k++) {
        if (!lacks(j, k)) continue;
        printf("  %s: %s=%s. %s", items[k].name, keys[k], j->value[k], items[k].remedy);
        for (int i = 0, n = 0; i < 3 && k == SOFTWARE; i++)
            if (!strstr(j->value[k], parts[i])) printf("%s %s", n++ ? "," : "", parts[i]);
        printf("\n");
    }
    return missing;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name, *words;
        int missing;
    } jobs[] = {{"EC2, one node", "on=ec2 nodes=1", 0},
                {"EC2, 4 nodes, as launched", "on=ec2 nodes=4 group=none requests=4 subnets=2 rule=none", 5},
                {"EC2, 4 nodes, all but the rule", "on=ec2 nodes=4 group=cluster requests=1 subnets=1 rule=anyone "
                 "software=driver,libfabric,aws-ofi-nccl", 1},
                {"SageMaker, its image, its VPC", "on=sagemaker nodes=4", 0},
                {"SageMaker, its image, your VPC", "on=sagemaker nodes=4 vpc=own", 1},
                {"SageMaker, your image, your VPC", "on=sagemaker nodes=4 vpc=own image=own", 2}};
    static job own;
    int good = 0, all = 0, count = (int)(sizeof jobs / sizeof *jobs);
    for (int i = 1; i < argc; i++)
        if (!set(&own, argv[i])) return 2;
    if (argc > 1 && ((!says(&own, ON, "ec2") && !says(&own, ON, "sagemaker")) || atoi(own.value[NODES]) < 1))
        return fprintf(stderr, "96_checklist: say on=ec2 or on=sagemaker, and nodes=N, 1 or more\n"), 2;
    if (argc > 1) return printf("ok: %d of %d items to do\n", check("your job", &own, 1), ITEMS), 0;
    for (int i = 0; i < count; i++) {
        char text[200];
        job j;
        int missing;
        memset(&j, 0, sizeof j), strcpy(text, jobs[i].words);
        for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) good -= !set(&j, word);
        missing = check(jobs[i].name, &j, 0), good += missing == jobs[i].missing, all += missing;
    }
    if (good < count) return fprintf(stderr, "FAILED: %d jobs lack other items\n", count - good), 1;
    return printf("ok: %d of %d jobs lack what they should, %d of %d items\n", good, count, all, count * ITEMS), 0;
}
