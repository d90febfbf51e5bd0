#!/usr/bin/env perl
# The kernel of the C notebooks, and the notebooks, run without a browser: notebook_kernel.py and execute.py print
# TAP. Of every notebook the stored outputs must be up to date. Four, which seeded() draws, run with their solutions,
# and one of those with the learner's cells left blank and with wrong answers, too; with --full all of them do all
# three. Without it a cc in front of the compiler leaves optimization out where it compiles the library, but for the
# kernels' own, and gives it another version, so that a reader's notebook does not find that library.
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

if (!full()) {
    my $cc = $ENV{CC} || 'cc';
    spew("$tmp/cc", <<"TEXT");
#!/bin/sh
case "\$*" in
--version) $cc --version; exec echo -O0 ;;
*notebook.c*) exec $cc "\$@" -O0 ;;
esac
exec $cc "\$@"
TEXT
    chmod 0755, "$tmp/cc";
    $ENV{CC} = "$tmp/cc";
}

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
my @solved = drawn(4, sort @notebooks);
my %how = ((map { $_ => 'solved' } @solved), map { $_ => 'check' } drawn(1, @solved));
for my $notebook (sort @notebooks) {
    my $what = $how{$notebook} || 'current';
    passes_on($notebook =~ s{.*/}{}r, "timeout 300 $python $root/notebooks-c/execute.py $what $notebook");
}

# A learner's cell that would decide its own checks.
mkdir "$tmp/filled-in";
my $book = slurp("$root/notebooks-c/solutions/5_pipeline.ipynb");
my $more = q{"double build(void (*order)(int s, int p, int m), int p, int m, int drawn) { return 3 * m; }\n", "#pragma once\n", };
$book =~ s/(?="void one_f_one_b)/$more/ or die;
spew("$tmp/filled-in/5_pipeline.ipynb", $book);
my ($status, $out) = run(60, "$python $root/notebooks-c/execute.py grade $tmp/filled-in/5_pipeline.ipynb");
is($status, 1, 'grade refuses a cell that changes others');
like($out, qr/ defines build, which another cell defines\. .*'#pragma once'\. Use #define/s, '  and says what') or diag($out);
done_testing();
