#!/usr/bin/env perl
# Wrong arguments of every public function. A function checks its arguments with dt__refused or dt__refuses, or with
# DT__REQUIRE or DT__NEEDS, which return. From these calls and from the declarations a C program is made that passes each
# argument once as what it must not be: NULL, a number
# that is not finite, no value of an enum, no tensor, another graph's tensor. What is not checked is listed here, with why.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

# NULL, or any number, that the documentation allows. A function's name: all that it takes.
my %allowed = map { $_ => 1 } qw(dt_fail.what dt_comm_open.argc dt_comm_open.argv dt_top_k.indices
    dt_rope.scaling dt_data_open.t dt_error.code dt_error.format dt_comm_agree.r dt_comm_fail.code dt_trainer_sample.how dt_predictor_open.model dt_predictor_open.layout
    dt_generate.tokens dt_evaluate.tokens dt_evaluate.bytes dt_optimizer_step.c
    dt_optimizer_step.info dt_full.value dt_clamp.low dt_clamp.high dt_tokenizer_decode.text dt_model_gpt2.size dt_model_llama.size
    dt_trainer_parameter.count dt_trainer_parameter_at.shape
    dt_graph_parameters.list dt_optimizer_parameters.list);
# Checked by other sentences, which other tests look at: results and functions have names of any number, the model of no
# segments is refused by the trainer.
$allowed{$_} = 1 for qw(dt_result_name.r dt_exit_code.r dt_map.f dt_map2.f dt_model_segments.segments);

my $header = slurp("$root/dtrain.h");
my ($public, $code) = split m{^/\* =+\n \* H1  }m, $header, 2;
my (%type, %returns, %spec);
while ($public =~ /^DT_API ([^;{}()]*?)(\w+)\(([^;{}()]*)\);/mg) {
    my ($returns, $name, $arguments) = ($1, $2, $3);
    $returns{$name} = $returns =~ s/\s+$//r;
    $type{$name} = [map { [/^(.*?)(\w+)$/s] } grep { $_ ne '...' } map { s/\s+/ /gr =~ s/^ | $//gr } $arguments eq 'void' ? () : split /,/, $arguments];
}
while ($code =~ /^DT_API [^;{}()]*?(\w+)\([^;{}()]*\)\s*(\{[^\n]+\}$|\{\n.*?^\})/msg) {
    my ($name, $body) = ($1, $2);
    my ($check, $words) = $body =~ /(dt__refuse[ds]|DT__REQUIRE|DT__NEEDS)\((?:\w+, )?"([^"]*)"/ or next;
    $spec{$name} = [scalar($check =~ /refuses|NEEDS/), $words];
}
$spec{$_} = [1, $code =~ /DT__BUILD_UNARY.*?"(x#)"/s] for qw(dt_tanh dt_silu dt_gelu dt_relu);
$spec{$_} = [1, $code =~ /DT__BUILD_BINARY.*?"(a# b#)"/s] for qw(dt_add dt_sub dt_mul);

my @calls;
for my $name (sort keys %type) {
    my ($of_graph, $words) = @{$spec{$name} || [0, '']};
    my %kind = map { /^(\w+)(.*)$/ ? ($1 => $2) : () } split ' ', $words;
    $kind{g} = '' if $of_graph;
    my %declared = map { $_->[1] => $_->[0] } @{$type{$name}};
    is(join(' ', grep { !exists $declared{$_} } keys %kind), '', "$name checks arguments that it has");
    my @open = grep { $declared{$_} =~ /\*|\(|dt_tensor|float|double|dt_\w+ $/ && $declared{$_} !~ /dt_shape $/ && !exists $kind{$_} } keys %declared;
    is(join(' ', grep { !$allowed{"$name.$_"} } sort @open), '', "$name checks all its arguments");
    my %good = map {
        my ($t, $n) = @$_;
        $n => $t =~ /dt_graph \*$/ ? 'g' : $t =~ /dt_tensor $/ ? 'x' : $t =~ /dt_shape $/ ? 'dt_shape1(1)' : $t =~ /\*/ ? "($t)room" : $t =~ /action/ ? 'NULL' : "($t)1"
    } @{$type{$name}};
    $good{$_} = "($declared{$_})0" for grep { $kind{$_} =~ /</ } keys %kind;
    for my $bad (sort keys %kind) {
        my $t = $declared{$bad};
        my @wrong = $kind{$bad} =~ /~/ ? map { "($t)$_" } qw(NAN INFINITY)
            : $kind{$bad} =~ /<(\d+)/ ? map { "($t)$_" } -1, $1
            : $kind{$bad} =~ /#/ ? qw(none foreign old) : $kind{$bad} =~ /\?/ ? qw(foreign old) : 'NULL';
        for my $value (@wrong) {
            my $call = "$name(" . join(', ', map { $_->[1] eq $bad ? $value : $good{$_->[1]} } @{$type{$name}}) . ')';
            my $r = $returns{$name};
            my $right = $r eq 'dt_result' ? "$call == DT_E_USAGE" : $r eq 'dt_tensor' ? "!$call.id" : $r eq 'void' ? "($call, 1)" : $r eq 'const char *' ? "neutral($call)"
                : $name eq 'dt_dim' ? "$call == 1" : $r =~ /^dt_(mesh|memory|link|shape)$/ ? "((void)$call, 1)" : "!$call";
            $right .= ' && dt_graph_result(g) == DT_E_USAGE && strstr(dt_last_error(), want)' if $of_graph && $bad ne 'g';
            push @calls, qq[    start("$name: $bad is "); check($right, "$name with $bad ] . $value . qq[");\n];
        }
    }
}
cmp_ok(scalar @calls, '>', 250, 'there are ' . @calls . ' wrong calls');

# What is called: a graph with a tensor, one of another graph, and one of a graph that is closed, whose place may be used again.
splice @calls, 0, 0, <<'C';
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
static char room[1 << 16];
static const char *want;
static dt_graph *g, *other;
static dt_tensor x, none, foreign, old;
static int failed;
static void start(const char *sentence)
{
    static const float one = 1.0f;
    want = sentence;
    dt_graph_close(&g), dt_graph_close(&other);
    dt_graph_open(&g, 1);
    old = dt_tensor_of(g, DT_F32, dt_shape1(1), &one);
    dt_graph_close(&g);
    dt_graph_open(&g, 1), dt_graph_open(&other, 1);
    x = dt_tensor_of(g, DT_F32, dt_shape1(1), &one), foreign = dt_tensor_of(other, DT_F32, dt_shape1(1), &one);
    dt__error(DT_OK, "nothing was said");
}
static int neutral(const char *text) { return !text || !*text; }
static void check(int right, const char *what)
{
    int said = !strncmp(dt_last_error(), want, strlen(want));
    if (!right || !said) printf("%s: %s%s\n", what, right ? "" : "a wrong result; ", dt_last_error()), failed++;
}
int main(void)
{
C
spew("$tmp/arguments.c", join '', @calls, "    return failed != 0;\n}\n");
linked_with('open', 'arguments.c', 'arguments');
my ($failed, $out, $said) = run(120, './arguments');
is($failed, 0, 'each is refused, and the sentence names function and argument') or diag($out . $said);
is($out, '', 'nothing else was said');
done_testing();
