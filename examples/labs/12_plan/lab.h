/* Lab 12: a planner. */
typedef enum lab_strategy {
    USE_NOTHING,  /* it does not fit */
    USE_ONE_GPU,
    USE_REPLICAS, /* data parallel */
    USE_SHARDS,   /* data parallel with ZeRO 1, 2 or 3 */
    USE_CUTS,     /* tensor and pipeline parallel, and replicas of that */
    USE_JOBS,     /* independent trainings, each on a GPU */
    USE_NO_MORE   /* more GPUs do not help: something else is slow */
} lab_strategy;

typedef struct lab_type { /* of instance */
    int gpus;
    double gb, price; /* of a GPU; dollars an hour of a node */
} lab_type;

typedef struct lab_job {
    double params_b;        /* 1e9 parameters; AdamW, AMP: 16 bytes each */
    double hours, deadline; /* of one training on one GPU; until the result is due */
    double efficiency;      /* over several nodes, relative to linear */
    int max_nodes, trials;  /* trials: independent trainings; 1: one */
    int may_shard;          /* 0: the model must be cut into tensors and stages */
    double gpu_use, io_wait; /* percent, of the run so far; -1: not measured */
    int types;
    lab_type type[3]; /* candidates */
} lab_job;

typedef struct lab_answer {
    lab_strategy strategy;
    int type, nodes, zero, tp, pp, dp; /* type: place in job->type; zero: stage, or 0; 1 where nothing is cut */
    double hours;                      /* of all of it */
    int late;                          /* 1: after the deadline */
} lab_answer;

/* Decides. *answer is zeros. */
void decide(const lab_job *job, lab_answer *answer);
