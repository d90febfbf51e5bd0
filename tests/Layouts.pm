# The space of layouts: every parallel mode in every combination that fits 8 ranks.
package Layouts;
use strict;
use warnings;
use Dt;
use Exporter qw(import);
our @EXPORT = qw(@axes $only_threads layouts options draw);

our $only_threads = ($ENV{DT_SANITIZE} || '') =~ /thread/; # TSan cannot see what processes share

sub divisors { my $n = shift; return grep { $n % $_ == 0 } 1 .. $n }
sub dp { my $l = shift; return $l->{ranks} / $l->{pp} / $l->{tp} / $l->{cp} }
sub chunks_of { my $l = shift; return $l->{pipeline} eq 'interleaved' && $l->{pp} > 1 ? $l->{chunks} : 1 }

# Shards of the data: each rank owns a run of them, as even as possible. With ZeRO 3 all gather weights as often as those
# with the longest run.
my $shards = 8;
sub runs {
    my $l = shift;
    my ($least, $longest) = (int($shards / dp($l)), int(($shards + dp($l) - 1) / dp($l)));
    return $l->{zero} > 2 && $l->{zero_group} ne 1 ? $longest : ($least, $longest);
}

# ZeRO shares state among all data-parallel ranks (0) or in groups, which are whole branches of the tree over shards.
sub groups {
    my $l = shift;
    return 'no' if !$l->{zero};
    return (0, 1, grep { $_ > 1 && $_ < dp($l) && $shards % dp($l) == 0 } divisors(dp($l)));
}

# Tensor ranks and context ranks share the recipe's shards, expert ranks its experts. The stages need a segment for each of their chunks; interleaved, the units of
# every rank come in groups of stages.
sub fits {
    my ($name, $l) = @_;
    my %of = (layers => 2, batch => 8, 'micro-batch' => 8, $recipe{$name} =~ /--(layers|batch|micro-batch) (\d+)/g);
    my ($cuts) = $recipe{$name} =~ /--tensor-shards (\d+)/;
    my ($leaves) = $recipe{$name} =~ /--context-shards (\d+)/;
    my ($experts) = $recipe{$name} =~ /--experts (\d+)/;
    return 0 if ($cuts || 1) % $l->{tp} || ($leaves || 1) % $l->{cp} || ($experts || 1) % $l->{ep};
    return 0 if $l->{pp} * chunks_of($l) > 2 + $of{layers};
    return 1 if chunks_of($l) == 1;
    return !grep { $_ * $of{batch} / $of{'micro-batch'} % $l->{pp} } runs($l);
}

# The axes of the draw: name, every value or one drawn for each layout, the values given those of the axes before. Each
# but recipe is an option: yes is one without a value, no leaves it out. No values: there is no such layout. A new axis is
# a line here.
our @axes = (
    [ranks => 'every', sub { 1 .. 8 }],
    [nodes => 'one', sub { $_[0]{ranks} > 1 ? (1, 2, $_[0]{ranks}) : 'no' }], # the ranks of one share memory
    [tp => 'every', sub { my $ranks = $_[0]{ranks}; grep { $ranks % $_ == 0 } 1, 2, 4 }],
    [sequence_parallel => 'one', sub { $_[0]{tp} > 1 ? ('yes', 'no') : 'no' }],
    [cp => 'every', sub { my $ranks = $_[0]{ranks} / $_[0]{tp}; grep { $ranks % $_ == 0 } 1, 2, 4 }],
    [pp => 'every', sub { divisors($_[0]{ranks} / $_[0]{tp} / $_[0]{cp}) }],
    [ep => 'every', sub { my $dp = dp($_[0]); $dp == 6 ? (1, 2) : $shards % $dp ? 1 : divisors($dp) }], # as many shards on every rank of a group
    [zero => 'every', sub { dp($_[0]) > 1 ? (0 .. 3) : (0, 3) }],
    [zero_group => 'every', \&groups],
    [pipeline => 'every', sub { $_[0]{pp} > 1 ? qw(1f1b gpipe interleaved zero-bubble) : qw(1f1b gpipe zero-bubble) }],
    [chunks => 'every', sub { $_[0]{pipeline} eq 'interleaved' ? (2, 3) : 'no' }],
    [recompute => 'every', sub { $_[0]{pipeline} eq 'zero-bubble' ? qw(none selective) : qw(none selective full) }],
    [offload => 'every', sub { $_[0]{recompute} eq 'full' ? qw(yes no) : 'no' }],
    [horizon => 'one', sub { $_[0]{offload} eq 'yes' ? (1, 2, 5) : 'no' }],
    [offload_rate => 'one', sub { $_[0]{offload} eq 'yes' ? (0, 2e7) : 'no' }],
    [recipe => 'one', sub { my $l = shift; grep { fits($_, $l) } qw(base llama dropout shard each sgd experts switch dropless deep tensor tensor_llama tensor_experts context context_llama context_experts context_switch bf16 bf16_tensor bf16_context bf16_experts fp16) }],
    [compile => 'one', sub { qw(off on) }],
    [memory_weight => 'one', sub { (0, 0.5, 1) }],
    [bucket => 'one', sub { (1, 5000, 100000, 25000000) }],
    [overlap => 'one', sub { qw(off on) }],
    [order => 'one', sub { qw(cluster spread DPT DTP PDT PTD TDP TPD CDPT TPCD PCTD) }],
    [threads => 'one', sub { (1, 2) }],
    [launch => 'one', sub { $only_threads ? 'threads' : qw(processes threads) }],
);

sub layouts {
    my ($l, @left) = @_;
    return $l if !@left;
    my ($name, $which, $values) = @{shift @left};
    my @values = $values->($l);
    @values = $values[rand @values] if @values && $which eq 'one';
    return map { layouts({%$l, $name => $_}, @left) } @values;
}

sub options {
    my $l = shift;
    my @words;
    for my $name (grep { $_ ne 'recipe' && $l->{$_} ne 'no' } map { $_->[0] } @axes) {
        (my $option = "--$name") =~ tr/_/-/;
        push @words, $l->{$name} eq 'yes' ? $option : "$option $l->{$name}";
    }
    return join ' ', @words;
}

# A layout for a recipe with up to so many ranks, each axis drawn.
sub draw {
    my ($name, $most) = @_;
    while (1) {
        my $l = {};
        for my $axis (@axes) {
            my @values = $axis->[0] eq 'recipe' ? $name : $axis->[2]->($l);
            last if !@values;
            $l->{$axis->[0]} = $values[rand @values];
        }
        return $l if defined $l->{launch} && $l->{ranks} <= $most && fits($name, $l);
    }
}

1;
