/* 96_checklist: a job of several nodes on EC2 or on SageMaker. What is still missing for its fast network?
 *
 * What you learn
 *     - On EC2 five things are yours: a cluster placement group; one launch request for all instances, of one type (a
 *       second request or type makes "insufficient capacity" likelier); one subnet, since EFA's own traffic is not
 *       routed; a security group that admits all traffic from and to itself; EFA attached at the launch, its driver,
 *       libfabric and aws-ofi-nccl on the machine.
 *     - SageMaker chooses a place and hands EFA to the container. It installs nothing there (its Deep Learning
 *       Containers have the software) and writes no rule into a security group of yours.
 *     - "SageMaker switches EFA on" is three fifths of the truth with an image and a VPC of your own.
 *     - No metric says "EFA is on". The engine does: NCCL_DEBUG=INFO prints "Selected provider is efa".
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 96_checklist.c -o 96_checklist -lm -lpthread
 *     ./96_checklist
 *
 * What it prints
 *     EC2, one node                    given 5, missing 0:
 *     EC2, 4 nodes, as launched        given 0, missing 5: placement group; one request; one subnet; rule; software
 *     EC2, 4 nodes, all but the rule   given 0, missing 1: rule
 *     SageMaker, its image, its VPC    given 5, missing 0:
 *     SageMaker, its image, your VPC   given 4, missing 1: rule
 *     SageMaker, your image, your VPC  given 3, missing 2: rule; software
 *     ok: on EC2 all five are yours, on SageMaker those of your own image and VPC
 *
 * Predict first: which item does a job on one node need?
 * Exercise: write the sixth item of your own cluster, and a case that lacks it.
 *
 * Read on: README.md, the list of programs; 92_placement.c for what placement costs. */
#include <stdio.h>

enum { GROUP = 1, REQUEST = 2, SUBNET = 4, RULE = 8, SOFTWARE = 16, ALL = 31, ITEMS = 5 };
static const char *const items[ITEMS] = {"placement group", "one request", "one subnet", "rule", "software"};

typedef struct job {
    const char *name;
    int nodes, sagemaker, own_vpc, own_image;
    int has; /* what is set up by hand, of the items */
} job;

/* What the platform does by itself. A VPC that is not yours has its rules. */
static int given(const job *j)
{
    int of_sagemaker = GROUP | REQUEST | SUBNET | (j->own_vpc ? 0 : RULE) | (j->own_image ? 0 : SOFTWARE);
    return j->nodes == 1 ? ALL : j->sagemaker ? of_sagemaker : 0;
}

static int missing(const job *j) { return ALL & ~(given(j) | j->has); }

static int count(int set)
{
    int n = 0;
    for (int k = 0; k < ITEMS; k++) n += set >> k & 1;
    return n;
}

int main(void)
{
    static const job jobs[] = {{"EC2, one node", 1, 0, 1, 1, 0},
                               {"EC2, 4 nodes, as launched", 4, 0, 1, 1, 0},
                               {"EC2, 4 nodes, all but the rule", 4, 0, 1, 1, ALL & ~RULE},
                               {"SageMaker, its image, its VPC", 4, 1, 0, 0, 0},
                               {"SageMaker, its image, your VPC", 4, 1, 1, 0, 0},
                               {"SageMaker, your image, your VPC", 4, 1, 1, 1, 0}};
    static const int expected[] = {0, 5, 1, 0, 1, 2};
    int good = 1;
    for (int i = 0; i < 6; i++) {
        int lacks = missing(&jobs[i]);
        printf("%-32s given %d, missing %d:", jobs[i].name, count(given(&jobs[i])), count(lacks));
        for (int k = 0, first = 1; k < ITEMS; k++)
            if (lacks >> k & 1) printf("%s %s", first ? "" : ";", items[k]), first = 0;
        printf("\n");
        good = good && count(lacks) == expected[i];
    }
    if (!good) return fprintf(stderr, "FAILED: another number of items is missing\n"), 1;
    return printf("ok: on EC2 all five are yours, on SageMaker those of your own image and VPC\n"), 0;
}
