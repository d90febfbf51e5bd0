#!/usr/bin/env perl
# The solutions of the exercises: examples/answers/patches has one patch for each program, which begins with the answer in
# words, commands (run: ..) and lines that the changed program prints (prints: ..; ~ before a number: it may differ). All
# patches apply without fuzz, and the changed programs have no error and no warning. Eight, which seeded() draws, are
# linked to the tests' implementation and run: status 0, "ok" in the last line, and the lines. With --full all run, and the
# programs as they were do not print those lines. DT_ONLY=40_zero_by_hand,41_zero takes these alone, and runs them.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use File::Copy qw(copy);
use Test::More;

plan skip_all => 'examples are compiled as their readers do it, without sanitizers' if sanitized();
plan skip_all => 'no patch: install patch' if !have('patch');

my $folder = "$tmp/tree/examples";
system("mkdir -p $folder/tools") and die 'mkdir';
copy("$root/dtrain.h", "$tmp/tree/");
copy($_, $folder) for glob "$root/examples/*.[hc]";
copy($_, "$folder/tools/") for glob "$root/examples/tools/*";

# The cc line of a program's comment with these flags in front.
sub compiler_line {
    my ($name, $flags) = @_;
    my ($line) = slurp("$folder/$name.c") =~ /^ \*\s+cc (.*?)\s*$/m or return 'false';
    return ($ENV{CC} || 'cc') . " -std=gnu11 -Wall -Wextra -Werror $flags $line -ldl";
}

# What a program is compiled with; those with the simulator read plans by private functions.
my %uses;
sub uses {
    my $kind = slurp("$folder/$_[0].c") =~ m{"tools/simulate\.h"} ? 'open' : 'library';
    return $uses{$kind} //= implementation($kind);
}

# Compiles and runs a program; the commands' statuses that are not 0, its output.
sub runs {
    my ($name, @commands) = @_;
    my ($all, @wrong) = ('');
    for my $command (compiler_line($name, uses($name)) . ' -O1', @commands) {
        my ($status, $out, $err) = run_in($folder, 120, $command);
        $all .= $out;
        push @wrong, "$command: status $status\n$out$err" if $status;
    }
    return (join('', @wrong), $all);
}

# Those of the lines that are not printed. Blanks do not count.
sub unprinted {
    my ($printed, @lines) = @_;
    my @printed = map { join ' ', split } split /\n/, $printed;
    return grep {
        my $pattern = join '', map { /^~/ ? '[\d.e+-]+' : quotemeta } split /(~[\d.e+-]*\d)/, join ' ', split;
        !grep { /^$pattern$/ } @printed;
    } @lines;
}

my %only = map { $_ => 1 } split /,/, $ENV{DT_ONLY} || '';
my @names = grep { !%only || $only{$_} } map { m{([^/]+)\.c$} } sort glob "$root/examples/[0-9]*.c";
seeded();
my %drawn = map { $_ => 1 } %only ? @names : drawn(8, @names);
my %patches = map { m{([^/]+)\.patch$} ? ($1 => 1) : () } glob "$root/examples/answers/patches/*";
is(join(' ', sort keys %patches), join(' ', sort @names), 'every exercise has a solution, and nothing else') if !%only;
for my $name (@names) {
    my $file = "$root/examples/answers/patches/$name.patch";
    my ($words, $head) = slurp($file) =~ /\A(\S.*?\.)\n\n((?:run: \S.*\n)+(?:prints: \S.*\n)+)--- \Q$name\E\.c\n\+\+\+ \Q$name\E\.c\n@@/s;
    ok($words, "$name: an answer, commands, lines and a change") or next;
    my $page = slurp("$root/examples/answers/" . ($name =~ /^(\d+)\d_/)[0] . '.md');
    my ($number) = $name =~ /^(\d+)/;
    my $link = "Solution: [the change](patches/$name.patch), or `./build.sh exercise $number` at the top of the repository.";
    ok(index(join(' ', split ' ', $page), $link) >= 0, '  which its page names') or diag("missing: $link");
    my @commands = $head =~ /^run: (.*)$/mg;
    my @lines = $head =~ /^prints: (.*)$/mg;
    if ($drawn{$name} && full()) {
        my (undef, $all) = runs($name, @commands);
        cmp_ok(scalar(unprinted($all, @lines)), '>', 0, '  the program as it was prints something else') or diag($all);
    }
    my ($status, $out) = run_in($folder, 20, "patch -s -F0 $name.c $file 2>&1");
    is("$status$out", '0', '  applies without fuzz') or next;
    ($status, undef, my $err) = run_in($folder, 60, compiler_line($name, (uses($name) =~ s/\S+\.o\b//r) . ' -fsyntax-only'));
    is("$status$err", '0', '  compiles') or next;
    next unless $drawn{$name};
    my ($wrong, $all) = runs($name, @commands);
    like($wrong ? "$wrong FAILED" : (split /\n/, $all)[-1], qr/\bok\b(?!.*FAILED)/s, "  $commands[0]: ok");
    is(join("\n", unprinted($all, @lines)), '', '  and prints what the solution says') or diag($all);
}

my ($status, $out, $err) = run_in($root, 20, './build.sh exercise 40');
ok(!$status && index($out, slurp("$root/examples/answers/patches/40_zero_by_hand.patch")) == 0 && $out =~ /^patch -o /m,
    './build.sh exercise 40 shows the solution and how to try it') or diag($out);
($status, undef, $err) = run_in($root, 20, './build.sh exercise 999');
ok($status == 2 && $err =~ /no solution of '999'/, 'a program that is not there') or diag($err);

done_testing();
