#!/usr/bin/env perl
# Every public function with odd arguments, under AddressSanitizer and UBSan: tests/fuzz_api.c for 60 s, or 600 s with
# DT_FULL. DT_SEED: another start; what fails names seed and batch.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $missing = sanitizers_missing();
plan skip_all => $missing if $missing;
my ($seconds, $seed) = ($ENV{DT_FULL} ? 600 : 60, $ENV{DT_SEED} || 1);
linked_with('checked', "$root/tests/fuzz_api.c", "$tmp/fuzz_api");

my ($public) = split m{^/\* =+\n \* H1  }m, slurp("$root/dtrain.h"), 2;
my %declared = map { $_ => 1 } $public =~ /^DT_API [^;{}()]*?(\w+)\([^;{}]*?\);/smg;
my (undef, $names) = run(60, './fuzz_api names');
my %called = map { $_ => 1 } split ' ', $names;
cmp_ok(scalar keys %declared, '>', 100, 'there are ' . keys(%declared) . ' public functions');
is(join(' ', sort grep { !$called{$_} } keys %declared), '', 'each is called: a new one needs a row in tests/fuzz_api.c');

my ($status, $out, $err) = run($seconds + 900, "env ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 ./fuzz_api $seconds $seed");
is($status, 0, "nothing crashes, hangs or leaks: $seconds s") or diag($out, $err);
diag($1) if $out =~ /^(seed .*)/m;
done_testing();
