#!/usr/bin/env perl
# The seam at which a device comes in: above the operations, tensor memory (weights, gradients, optimizer state,
# activations) is touched by verbs (dt__mem_*) alone, and host code gets its address from dt__host, dt__download,
# dt__upload or, for collectives, dt__comm_in. Looks at every function of H10 to H16: no other call and no subscript has
# an expression of tensor memory, or a variable that holds one.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

# What names tensor memory.
my $memory = qr/\be(?:->|\.)(?:params|sets|total|row_slices|window|temp|saved|units|tie\[\w+\]|gradient\[\w+\]|state\[[^]]+\])(?!\w)
    | \bdt__(?:where|bucket_sum|set|sums|engine_message|engine_weights|own_gradient|own_weights)\( | \bat\[DT__AT_ 
    | \b(?:ring|generator)(?:->|\.)memory\b | \bo->memory\b/x;
# Calls that read or write through a pointer on the host.
my $touches = qr/\b(?:memcpy|memset|memmove|fwrite|fread|pread|pwrite|dt__copy|dt__tree|dt__tree_sum|dt__normals|dt__sha256_add|dt__param_whole|dt__row_value
    |dt_all_reduce|dt_all_gather|dt_reduce_scatter|dt_broadcast|dt_send|dt_recv|dt__send_start|dt__reduce_parts|dt__gather|dt__gather_extents
    |dt__all_to_all_rows|dt__init_shards|dt__whole_rows
    |\w+->(?:unary|binary|convert|select|row_\w+|col_sum|add_scaled|gemm|update))(?=\()/x;
# What host code and tests may not see through: each of these says why.
my %exempt = ();

sub arguments { # the text between the parentheses that open at $at
    my ($text, $at) = @_;
    my $depth = 0;
    for my $i ($at .. length($text) - 1) {
        my $c = substr $text, $i, 1;
        $depth += $c eq '(' ? 1 : $c eq ')' ? -1 : 0;
        return substr $text, $at + 1, $i - $at - 1 if !$depth;
    }
    die 'a call without an end';
}

sub without_host { # leaves out what passes through the seam
    my $text = shift;
    while ($text =~ /\bdt__(?:host|download|upload|comm_in)(?=\()/g) {
        my ($from, $at) = ($-[0], $+[0]);
        substr($text, $from, $at - $from + 2 + length arguments($text, $at)) = '0';
        pos($text) = $from;
    }
    return $text;
}

# What is wrong with the body of a function.
sub faults {
    my $body = shift;
    $body =~ s{/\*.*?\*/}{}gs;
    $body =~ s/"(?:[^"\\]|\\.)*"/""/g;
    $body = without_host($body);
    my (%holds, @faults);
    for (1 .. 3) { # a variable may get its value from another one
        my $held = join '|', keys %holds;
        my $value = $held ? qr/$memory|(?<![\w.>&])(?:$held)\b(?!\s*(?:->|\.|\())/ : $memory;
        while ($body =~ /(?:float|char|void)[\w ]*\*\s*(\w+) = ([^;,]*)|(?<![\w.>\])])(\w+) = ([^;,]*)/g) {
            my ($declared, $name, $from) = defined $1 ? (1, $1, $2) : (0, $3, $4);
            $holds{$name} = 1 if $from =~ /$value/ && ($declared || $body =~ /(?:float|char|void) (?:[^;(]*, )?\*\s*$name\b/);
        }
    }
    my $held = join '|', keys %holds;
    my $tensor = $held ? qr/$memory|(?<![\w.>&])(?:$held)\b(?!\s*(?:->|\.|\())/ : $memory;
    while ($body =~ /$touches/g) {
        my $call = substr $body, $-[0], $+[0] - $-[0];
        my $in = arguments($body, $+[0]);
        push @faults, "$call($in)" if $in =~ /$tensor/;
    }
    push @faults, $1 while $held && $body =~ /((?<![\w.>&])(?:$held)\s*\[[^]]*\])/g;
    push @faults, $1 while $body =~ /(\bat\[DT__AT_\w+\]\[[^]]*\])/g;
    return map { s/\s+/ /gr } @faults;
}

# The test can fail: what the executor did before there were verbs.
my @bad = ('float *sum = dt__bucket_sum(e, b, &from, &count); memset(sum, 0, 4);', 'memcpy(e->params + 3, w, 4);', 'float *g = dt__set(e, 1); float *h = g + 2; x = h[0];',
    'char *data = kind ? (char *)e->state[kind - 1] + at : (char *)w; r = dt__gather_extents(c, data, reach, e, count, out);',
    'b.at[DT__AT_GRAD_OUT][0] = 1.0f;', 'r = dt_all_reduce(c, e->sets + i, n, DT_SUM);', 'float *g = dt__own_gradient(e, p); e->k->binary(DT__OP_ADD, g, g, 1, all, 1, n);');
ok(scalar faults($_), "refused: $_") for @bad;
my @good = ('float *sum = dt__bucket_sum(e, b, &from, &count); dt__mem_fill(NULL, sum, 0.0f, 4);', 'memcpy(dt__host(e->params) + 3, w, 4);',
    'loss = dt__download(b.at[DT__AT_OUTPUT], 1)[0];', 'const float *v = dt__download(dt__where(p, b, id), n); x = v[0];', 'r = dt_all_reduce(c, dt__host(e->sets + i), n, DT_SUM);');
is(join(' ', faults($_)), '', "allowed: $_") for @good;

my $header = slurp("$root/dtrain.h");
my @gone = grep { $header !~ /\b$_\(/ } map { /\bdt__\w+/g } "$touches";
push @gone, grep { $header !~ /\bdt__$_\(/ } split /\|/, ("$memory" =~ /dt__\(\?:([\w|]+)\)/)[0];
is("@gone", '', 'each function that is looked for exists');

my ($section, $name, $body, $functions) = ('', '', '', 0);
for my $line (split /\n/, $header) {
    $section = $1 if $line =~ /^ \* H(\d+)  \S/;
    next unless $section && $section >= 10 && $section <= 16;
    $name = $1 if $line =~ /^(?:static|DT_API) [^=;]*?\b(dt_\w+)\(/ && $line !~ /;$/;
    $body .= "$line\n" if $name;
    next unless $name && $line =~ /^\}/;
    $functions++;
    my @faults = $exempt{$name} ? () : faults($body);
    fail("$name: $_") for @faults;
    ($name, $body) = ('', '');
}
cmp_ok($functions, '>', 300, "$functions functions of H10 to H16 reach tensor memory by verbs and dt__host alone");
done_testing();
