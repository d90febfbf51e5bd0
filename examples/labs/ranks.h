/* ranks.h: the ranks of a lab and their messages. Each rank is a process with its own memory. The calls have the
 * arguments of dt_send, dt_all_reduce, .. in dtrain.h, but no result: after a mistake the grader stops the run and
 * names the mistake. */
#ifndef LAB_RANKS_H
#define LAB_RANKS_H
#include <stdint.h>

typedef struct lab_comm lab_comm;

int lab_rank(const lab_comm *c); /* of this process, from 0 */
int lab_size(const lab_comm *c); /* number of ranks */

/* A message has one sender and one receiver, which name each other and the same count. Messages between two ranks
 * arrive in the order of the sends. A send may wait until the message is received, as a large message does in most
 * libraries. */
void lab_send(lab_comm *c, const float *data, int64_t count, int to);
void lab_recv(lab_comm *c, float *data, int64_t count, int from);

/* Collectives: all ranks make the same calls in the same order. Sums follow one fixed tree of rank numbers,
 * ((0 + 1) + (2 + 3)) + .., for every element. */
void lab_barrier(lab_comm *c);
void lab_broadcast(lab_comm *c, float *data, int64_t count, int root);
void lab_all_reduce(lab_comm *c, float *data, int64_t count); /* data: the sum over the ranks */
/* in: size x count floats; out: the sum over the ranks of this rank's count floats. */
void lab_reduce_scatter(lab_comm *c, const float *in, float *out, int64_t count);
/* in: count floats; out: size x count floats, those of rank 0 first. in may be a part of out. */
void lab_all_gather(lab_comm *c, const float *in, float *out, int64_t count);

/* Zeroed memory that the grader counts, for the labs with a limit: the limit is for the bytes in use at one time. */
void *lab_alloc(lab_comm *c, int64_t bytes);
void lab_free(lab_comm *c, void *p);

#endif
