#!/usr/bin/env perl
# The kernel of the C notebooks, and every notebook, run without a browser: notebook_kernel.py and execute.py print TAP.
# Two notebooks, which seeded() draws, run with the learner's cells left blank, too; with --full all of them do.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $python = "$root/build/notebooks/venv/bin/python";
plan skip_all => 'the notebooks load the library without sanitizers' if sanitized();
plan skip_all => 'no kernel: ./build.sh notebooks installs what it needs' if !-x $python || system("$python -c 'import ipykernel, nbclient' 2>/dev/null");
plan skip_all => 'no gnuplot: install gnuplot-nox' if system('command -v gnuplot >/dev/null');

# Passes on the TAP that a command prints.
sub passes_on {
    my ($name, $command) = @_;
    open my $lines, '-|', "$command 2>&1" or die;
    my ($count, $planned) = (0, 0);
    while (<$lines>) {
        if (/^(not )?ok \d+ - (.*)/) { ok(!$1, $2); $count++ }
        elsif (/^1\.\.(\d+)/) { $planned = $1 }
        else { diag($_ =~ s/^# //r =~ s/\n//r) }
    }
    close $lines;
    ok($count && $count == $planned, "$name: $count tests");
}

run(300, "$python $root/notebooks-c/kernel.py --library"); # now, for no client waits that long for a kernel
passes_on('the kernel', "timeout 300 $python $root/tests/notebook_kernel.py");
seeded();
my @notebooks = glob "$root/notebooks-c/[0-9]*.ipynb";
my %blank = map { $_ => 1 } drawn(2, sort @notebooks);
for my $notebook (sort @notebooks) {
    my $what = $blank{$notebook} ? 'check' : 'solved';
    passes_on($notebook =~ s{.*/}{}r, "timeout 300 $python $root/notebooks-c/execute.py $what $notebook");
}
done_testing();
