/* slot.h: where a use of a parameter has its gradient, in floats from the begin of a set; -1: on another rank. */
static inline int64_t slot_of(const dt__net *net, const dt__net_param *p, int use)
{
    for (int64_t q = 0; q < net->count && p->offset >= 0; q++)
        for (int32_t k = 0; k < net->segments[q].plan->g->slot_count; k++) {
            const dt__use *u = &net->segments[q].use[k];
            if (&net->params[u->param] == p && u->nth == use) return net->segments[q].slot[k];
        }
    return -1;
}
