/* slot.h: where the numbers of a parameter are. */

/* Where a use of a parameter has its gradient, in floats from the begin of a set; -1: on another rank. */
static inline int64_t slot_of(const dt__net *net, const dt__net_param *p, int use)
{
    for (int64_t q = 0; q < net->count && p->offset >= 0; q++)
        for (int32_t k = 0; k < net->segments[q].plan->g->slot_count; k++) {
            const dt__use *u = &net->segments[q].use[k];
            if (&net->params[u->param] == p && u->nth == use) return net->segments[q].slot[k];
        }
    return -1;
}

/* Cuts the whole of a parameter into the shards of this rank: what dt__param_whole() puts together. */
static inline void cut_up(const dt__param *p, const float *whole, float *shards)
{
    for (int64_t v = 0; v < dt__param_shards(p); v++)
        for (int64_t at = 0; at < dt__shard_floats(p); at++) {
            int64_t place = dt__param_index(p, dt__param_array(p, v), at);
            if (place >= 0) shards[v * dt__shard_step(p) + at] = whole[place];
        }
}
