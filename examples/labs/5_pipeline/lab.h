/* Lab 5: the order of work on the stages of a pipeline. */
typedef enum lab_kind { FORWARD, BACKWARD } lab_kind;
typedef struct lab_work {
    lab_kind kind;
    int micro; /* micro-batch, from 0 */
} lab_work;

/* Writes the works of a stage in their order, 2 x micros of them: the forward and the backward of every micro-batch.
 * Stages and micros are 1 or more; stage is 0 .. stages - 1. */
void schedule(int stages, int micros, int stage, lab_work *list);
