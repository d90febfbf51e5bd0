#!/usr/bin/env perl
# Follows the recipe "How to add an op" of dtrain.h on a copy: CUBE, x * x * x, with derivative 3 x x dy. Four insertions.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

plan skip_all => 'compiles a copy by itself, without sanitizers' if sanitized();

my $text = slurp("$root/dtrain.h");
my ($recipe) = $text =~ /(How to add an op\..*?)\*\//s;
like($recipe, qr/1\. a row in this table.*2\. its kernel in H3.*3\. its builder in H6.*4\. its derivative in H7/s, 'the recipe has four steps');

sub after { # inserts behind the first match of a pattern; the place must exist
    my ($what, $pattern, $insertion) = @_;
    ok($text =~ s/($pattern)/$1$insertion/s, "step $what");
}
after('1: a row in the table', qr/    X\(GELU, 1, dt__run_unary, dt__grad_gelu\) *\\\n/, "    X(CUBE, 1, dt__run_unary, dt__grad_cube) \\\n");
after('2: a case in the kernel', qr/    case DT__OP_NEG: [^\n]*\n/, "    case DT__OP_CUBE: DT__MAP(n, DT__X * DT__X * DT__X, DT__XN * DT__XN * DT__XN); break;\n");
after('3: the builder', qr/DT_API dt_tensor dt_gelu\(dt_graph \*g, dt_tensor x\)\s*\{[^}]*\}\n/,
    "DT_API dt_tensor dt_cube(dt_graph *g, dt_tensor x)\n{\n    return dt__unary_op(g, DT__OP_CUBE, x, 0.0f);\n}\n");
after('4: the derivative', qr/static void dt__grad_gelu\(.*?\n\}\n/s, <<'C');
static void dt__grad_cube(dt_graph *g, int32_t id, dt_tensor dy)
{
    dt__flow(g, id, 0, dt_mul(g, dt_mul(g, dt_scale(g, dy, 3.0f), dt__input(g, id, 0)), dt__input(g, id, 0)));
}
C
spew("$tmp/dtrain.h", $text);
spew("$tmp/cube.c", <<'C');
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
int main(void)
{
    static const float x[5] = {-3.0f, -0.5f, 0.0f, 1.5f, 1e3f};
    dt_graph *g = NULL;
    dt_tensor t, y;
    if (dt_graph_open(&g, 1)) return dt_fail("graph");
    t = dt_tensor_from(g, dt_shape1(5), x);
    y = dt_cube(g, t);
    if (dt_backward(g, dt_sum(g, y, DT_ALL))) return dt_fail("gradient");
    for (int i = 0; i < 5; i++)
        if (dt_value(g, y)[i] != x[i] * x[i] * x[i] || dt_value(g, dt_grad(g, t))[i] != 3.0f * x[i] * x[i]) return 1;
    dt_graph_close(&g);
    puts("cube");
    return 0;
}
C
my $cc = $ENV{CC} || 'cc';
my ($status, undef, $err) = run(300, "$cc -std=gnu11 -O1 -DDT_DEBUG -Wall -Wextra -Werror cube.c -o cube -lm -lpthread");
is($status, 0, 'it compiles') or diag($err);
for my $isa (@{(isas())[0]}) {
    my ($ran, $out) = run(30, "DT_ISA=$isa ./cube");
    is("$ran $out", "0 cube\n", "value and gradient are right with $isa kernels");
}
done_testing();
