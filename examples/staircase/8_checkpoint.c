/* 8_checkpoint: saved by one layout, killed, and resumed by another.
 *
 * What changes
 *     Before every fifth step each rank writes its piece of weights and momentum to its place in one file, and the file
 *     gets its name when all pieces are on the disk: a job that dies while it saves leaves the previous file. Samples
 *     follow from the number of the step, so weights, momentum and this number are all that the next step needs. The
 *     file has the numbers in the order of the model, so any number of ranks can resume.
 *
 * Build and run it, in this folder
 *     cc -O2 -I../.. 8_checkpoint.c -o 8_checkpoint -lm -lpthread
 *     ./8_checkpoint --ranks 4 state 8           (dies in step 8; the checkpoint is a file in this folder)
 *     ./8_checkpoint --ranks 2 state
 *
 * What it prints
 *     resumed at step 5
 *     ranks: 2, loss: 0.2313; rank 0 keeps 57344 numbers and sends 8192 bytes in a step
 *     hash e452cf305ce4fd06
 *     ok: 20 updates on 2 ranks end with the hash of one process
 *
 * Predict first: rank 3 dies in step 8. From which step does the job resume, and how many steps are computed twice? */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "staircase.h"
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

/* What a rank saves: `count` of its numbers from `from` on, of weights and momentum. A number has the place in a file
 * that it has in the model, `first` for this rank's number 0, so any layout finds it. part: its numbers of a block. */
typedef struct piece_of { int first, part, from, count; float *array[2]; } piece_of;

/* Reads a file, or writes it. The number of the step is at its end. */
static void transfer(const piece_of *p, int fd, int writes, float *step)
{
    int ok = (writes ? pwrite(fd, step, 4, 8 * WEIGHTS) : pread(fd, step, 4, 8 * WEIGHTS)) == 4;
    for (int a = 0, run = p->count < p->part ? p->count : p->part; a < 2; a++)
        for (int i = 0; i < p->count; i += run) {
            int k = p->from + i, place = a * WEIGHTS + p->first + k / p->part * BLOCK + k % p->part;
            float *x = p->array[a] + i;
            size_t bytes = sizeof *x * (size_t)run;
            ok = ok && (writes ? pwrite(fd, x, bytes, 4 * place) : pread(fd, x, bytes, 4 * place)) == 4 * run;
        }
    if (!ok || (writes && fsync(fd)) || close(fd)) must(dt_error(DT_E_FILE, "cannot read or write: use another file"));
}

/* A block on a shard: y = x + the sum over its slices, which the ranks of the tensor group share. */
static void forward(dt_comm *tensor, const float *w, const float *x, float *y)
{
    float part[SLICES][FLOATS];
    int slices = SLICES / dt_comm_size(tensor);
    for (int t = 0; t < slices; t++) slice_forward(w + t * SLICE, x, part[t]);
    tree_sum(part[0], slices, FLOATS);
    must(dt_all_reduce(tensor, part[0], FLOATS, DT_SUM));
    for (int i = 0; i < FLOATS; i++) y[i] = x[i] + part[0][i];
}

/* dy: the gradient of y, then that of x. dw: that of the block's weights. */
static void backward(dt_comm *tensor, const float *w, const float *x, float *dy, float *dw)
{
    float part[SLICES][FLOATS];
    int slices = SLICES / dt_comm_size(tensor);
    for (int t = 0; t < slices; t++) slice_backward(w + t * SLICE, x, dy, dw + t * SLICE, part[t]);
    tree_sum(part[0], slices, FLOATS);
    must(dt_all_reduce(tensor, part[0], FLOATS, DT_SUM));
    for (int i = 0; i < FLOATS; i++) dy[i] += part[0][i];
}

int main(int argc, char **argv)
{
    dt_comm *c = start(&argc, &argv, 2, 2 * SLICES * SHARDS);
    int degree = dt_comm_size(c) > 1 ? SLICES : 1;        /* so many neighbours share each block */
    int stages = dt_comm_size(c) > degree ? 2 : 1;        /* so many tensor groups have all blocks */
    int rank = dt_comm_rank(c), model = degree * stages; /* so many ranks have all weights */
    dt_comm *tensor = group(c, rank / degree);
    dt_comm *pipeline = group(c, rank / model * degree + rank % degree);
    dt_comm *data = group(c, rank % model); /* the ranks with the same stage and slices */
    int n = dt_comm_size(data), me = dt_comm_rank(data), own = SHARDS / n; /* shards [me * own, (me + 1) * own) */
    int stage = dt_comm_rank(pipeline), last = stages - 1, blocks = BLOCKS / stages;
    int part = BLOCK / degree, numbers = blocks * part, piece = numbers / n; /* of this rank's slices */
    int first = stage * blocks * BLOCK + dt_comm_rank(tensor) * part; /* the place of w[0] in the model */
    float x[BLOCKS + 1][SHARDS][FLOATS], target[SHARDS][FLOATS], dy[SHARDS][FLOATS], loss[SHARDS] = {0};
    int64_t kept = 0, before = bytes_sent(c), sent;
    float *w = floats(numbers, &kept);
    float *v = floats(piece, &kept);
    float *g = floats(own * numbers, &kept); /* a shard is a micro-batch, and each has a gradient */
    float *sum = floats(piece, &kept);
    float *all = floats(WEIGHTS, NULL); /* for the hash at the end */
    piece_of p = {first, part, me * piece, piece, {w + me * piece, v}};
    char draft[256];
    float begin = 0, at;
    int status, fd = argc > 1 ? open(argv[1], O_RDONLY) : -1;
    for (int b = 0; b < blocks; b++) first_weights(w + b * part, first + b * BLOCK, part);
    if (fd >= 0) {
        transfer(&p, fd, 0, &begin);
        must(dt_all_gather(data, w + me * piece, w, piece));
        if (!rank) printf("resumed at step %d\n", (int)begin);
    }
    for (int step = (int)begin; step < STEPS; step++) {
        if (argc > 1 && step % 5 == 0) {
            snprintf(draft, sizeof draft, "%s.tmp", argv[1]), at = (float)step;
            transfer(&p, open(draft, O_WRONLY | O_CREAT, 0666), 1, &at);
            must(dt_barrier(c)); /* all pieces are on the disk */
            if (!rank && rename(draft, argv[1])) must(dt_error(DT_E_FILE, "cannot rename %s", draft));
        }
        if (argc > 2 && step == atoi(argv[2]) && rank == dt_comm_size(c) - 1) raise(SIGKILL);
        for (int s = 0; s < own; s++) {
            samples(step, me * own + s, x[0][s], target[s]);
            if (stage > 0) must(dt_recv(pipeline, x[0][s], FLOATS, stage - 1));
            for (int b = 0; b < blocks; b++) forward(tensor, w + b * part, x[b][s], x[b + 1][s]);
            if (stage < last) must(dt_send(pipeline, x[blocks][s], FLOATS, stage + 1));
        }
        for (int s = 0; s < own; s++) {
            if (stage == last) loss[s] = shard_loss(x[blocks][s], target[s], dy[s]);
            else must(dt_recv(pipeline, dy[s], FLOATS, stage + 1));
            for (int b = blocks; b-- > 0;) backward(tensor, w + b * part, x[b][s], dy[s], g + s * numbers + b * part);
            if (stage > 0) must(dt_send(pipeline, dy[s], FLOATS, stage - 1));
        }
        tree_sum(g, own, numbers);
        must(dt_reduce_scatter(data, g, sum, piece, DT_SUM));
        update(w + me * piece, v, sum, piece);
        must(dt_all_gather(data, w + me * piece, w, piece));
    }
    sent = (bytes_sent(c) - before) / (STEPS - (int)begin);
    tree_sum(loss, own, 1);
    must(dt_all_reduce(data, loss, 1, DT_SUM));
    must(dt_broadcast(pipeline, loss, 1, last));
    for (int b = 0; b < blocks; b++)
        must(dt_all_gather(tensor, w + b * part, all + (stage * blocks + b) * BLOCK, part));
    must(dt_all_gather(pipeline, all + stage * blocks * BLOCK, all, blocks * BLOCK));
    status = report(c, all, loss[0], kept, sent);
    free(w), free(v), free(g), free(sum), free(all);
    dt_comm_close(&tensor), dt_comm_close(&pipeline), dt_comm_close(&data), dt_comm_close(&c);
    return status;
}
