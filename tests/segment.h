/* A segment, recorded and planned, or compiled, as a network does it (included after dtrain.h). */
static inline dt_result segment_plan(dt_graph *g, const dt_segment *s, dt_shape x, dt_shape targets, int first, int last, dt__compiler *compiler, dt__segment_plan **plan)
{
    dt_tensor y, dx;
    dt_result r = dt__segment_record(g, s, x, targets, first, last, NULL, &y, &dx);
    if (r) return dt_graph_close(&g), r;
    return compiler ? compiler->open(compiler, plan, g, y, dx, 0) : dt__segment_open(plan, g, y, dx, 0);
}
