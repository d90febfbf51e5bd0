#!/usr/bin/env perl
# Follows the recipe "To add an op" of tests/README.md on a copy of dtrain.h: a map op, CUBE, by one row, and a row op, UNIT (a row over
# its length), by a row for its value, a row for its gradient, and a builder.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

plan skip_all => 'compiles a copy by itself, without sanitizers' if sanitized();

my $text = slurp("$root/dtrain.h");
my ($recipe) = slurp("$root/tests/README.md") =~ /^(To add an op, .*?)\n\n/ms;
like($recipe, qr/a row in the table of ops.*For a map op add its declaration.*A row op, whose passes are in its row, needs a builder/s,
    'the recipe says what a map op and a row op need');

sub after { # inserts behind the first match of a pattern; the place must exist
    my ($what, $pattern, $insertion) = @_;
    ok($text =~ s/($pattern)/$1$insertion/s, $what);
}
after('rows in the table', qr/    MAP\(NEG, A, [^\n]*\n/, <<'C');
    MAP(CUBE, A, UNARY, dt_cube, a * a * a, GRAD(CUBE, 0, AD, dy * 3.0f * a * a)) \
    ROW(UNIT, "r", 0, SAME, REFUSE, DT__DOT(s0, a, a, 1.0f / dt__v_sqrt(r)) DT__OUT(a * s0), ROWS, SOME(row_op), NONE, \
        RULE(UNIT, 0, UNIT_GRAD, AD, FLOW)) \
    ROW(UNIT_GRAD, "rr", 0, SAME, REFUSE, \
        DT__DOT(s0, a, a, 1.0f / dt__v_sqrt(r)) DT__DOT(s1, a, b, r * s0 * s0) DT__OUT((b - a * s1) * s0), \
        ROWS, SOME(row_op), NONE, ) \
C
after('the declarations', qr/DT_API dt_tensor dt_gelu\(dt_graph \*g, dt_tensor x\);\n/,
    "DT_API dt_tensor dt_cube(dt_graph *g, dt_tensor x);\nDT_API dt_tensor dt_unit(dt_graph *g, dt_tensor x);\n");
after("the row op's builder", qr/DT_API dt_tensor dt_softmax\(dt_graph \*g, dt_tensor x, unsigned axes\)\s*\{[^}]*\}\n/,
    "DT_API dt_tensor dt_unit(dt_graph *g, dt_tensor x) { return dt__refuses(g, \"x#\", x) ? dt__none() : dt__along(g, DT__OP_UNIT, x, DT_LAST, \"unit\"); }\n");
spew("$tmp/dtrain.h", $text);
spew("$tmp/ops.c", <<'C');
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
int main(void)
{
    static const float x[5] = {-3.0f, -0.5f, 0.0f, 1.5f, 1e3f};
    static const float square[2] = {3.0f, 4.0f}, value[2] = {0.6f, 0.8f}, slope[2] = {0.128f, -0.096f};
    dt_graph *g = NULL;
    dt_tensor t, y;
    if (dt_graph_open(&g, 1)) return dt_fail("graph");
    t = dt_tensor_of(g, DT_F32, dt_shape1(5), x);
    y = dt_cube(g, t);
    if (dt_backward(g, dt_sum(g, y, DT_ALL))) return dt_fail("gradient");
    for (int i = 0; i < 5; i++)
        if (dt_value(g, y)[i] != x[i] * x[i] * x[i] || dt_value(g, dt_grad(g, t))[i] != 3.0f * x[i] * x[i]) return 1;
    dt_graph_close(&g);
    puts("cube");
    if (dt_graph_open(&g, 1)) return dt_fail("graph");
    t = dt_tensor_of(g, DT_F32, dt_shape2(1, 2), square);
    y = dt_unit(g, t); /* (3, 4) -> (0.6, 0.8); the gradient of its first element is (1 - 0.36, -0.48) / 5 */
    if (dt_backward(g, dt_sum(g, dt_slice(g, y, 1, 0, 1), DT_ALL))) return dt_fail("gradient");
    for (int i = 0; i < 2; i++)
        if (fabsf(dt_value(g, y)[i] - value[i]) > 1e-6f || fabsf(dt_value(g, dt_grad(g, t))[i] - slope[i]) > 1e-6f) return 2;
    dt_graph_close(&g);
    puts("unit");
    return 0;
}
C
my $cc = $ENV{CC} || 'cc';
my ($status, undef, $err) = run(300, "$cc -std=gnu11 -O0 -DDT_DEBUG -Wall -Wextra -Werror ops.c -o ops -lm -lpthread");
is($status, 0, 'it compiles') or diag($err);
for my $isa (@{(isas())[0]}) {
    my ($ran, $out) = run(30, "DT_ISA=$isa ./ops");
    is("$ran $out", "0 cube\nunit\n", "values and gradients are right with $isa kernels");
}
done_testing();
