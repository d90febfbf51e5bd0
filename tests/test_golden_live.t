#!/usr/bin/env perl
# Where torch is installed: make_golden.py computes the golden files again and compares them with the committed ones.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my @candidates = grep { defined $_ && have($_) } $ENV{PYTHON}, 'python3', '/usr/bin/python3', 'python';
my ($python) = grep { (run(60, "'$_' -c 'import torch'"))[0] == 0 } @candidates;
plan skip_all => @candidates ? "no Python here has torch (tried @candidates)" : 'no Python here' unless $python;

my ($status, $out, $error) = run(300, "'$python' '$root/tests/make_golden.py' --check '$root/tests/golden'");
is($status, 0, "the golden files are what $python computes");
diag("$out$error") if $status;
my @files = map { m{([^/]+)$} } glob "$root/tests/golden/*.safetensors";
like($out, qr/$_: \d+ tensors, all the same/, $_) for @files;

# A number that is off must be noticed.
my $copy = slurp("$root/tests/golden/ops.safetensors");
substr($copy, -1, 1) = chr(ord(substr($copy, -1, 1)) ^ 0x40); # the highest byte of the last number
mkdir "$tmp/golden";
spew("$tmp/golden/$_", $_ eq 'ops.safetensors' ? $copy : slurp("$root/tests/golden/$_")) for @files;
($status, $out) = run(300, "'$python' '$root/tests/make_golden.py' --check '$tmp/golden'");
is($status, 1, 'a changed file is found');
like($out, qr/ops.safetensors: \d+ tensors, 1 differ/, 'and named');
done_testing;
