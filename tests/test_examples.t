#!/usr/bin/env perl
# Every example compiles with the cc line of its header comment, and the commands that stand under it (lines that begin
# with ./, cc or DT_LINK_) run as they are written: status 0, and "ok" in the last line. What stands under "What it
# prints" is printed (numbers with ~ may differ), and so are the lines by which a program shows its concepts
# (concepts.md), which no text of the source may hold as it is, and those beside the formulas of cheatsheet.md. Lines
# that begin with mpicc run, too, where MPI is installed. With --full each example compiles as its readers do it; else the first one compiles alone, without optimization, and the others are linked to the tests'
# implementation. Where the commands of a program differ in its ranks alone, they run from the last one on until all that
# the comment and the concepts show has been printed; with --full each of them runs. Of the programs that compute for a
# second or longer a quarter runs, as seeded() draws, and the others only compile; of the programs with lines for mpicc one
# runs under mpirun. With --full all run. Header comments have all of their parts, their questions have answers in the
# page of the chapter (examples/answers), no example is longer than a page of 150 lines, and every concept of the course has a
# program or names what it waits for. The questions of the notebooks have answers, too (examples/answers/notebooks.md).
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use File::Copy qw(copy);
use JSON::PP;
use Test::More;

plan skip_all => 'examples are compiled as their readers do it, without sanitizers' if sanitized();

# The commands of the first comment of a program that begin with one of these, in order.
sub commands {
    my ($file, $begin) = @_;
    my ($comment) = slurp($file) =~ m{^/\*(.*?)\*/}s;
    my @lines = map { s/^\s*\*?\s*//r } split /\n/, $comment || '';
    return map { s/\s{2,}#?.*//r } grep { /^$begin/ } @lines;
}

mkdir "$tmp/tree";
mkdir "$tmp/tree/$_" for qw(examples build);
copy("$root/dtrain.h", "$tmp/tree/dtrain.h");

# The concepts of the course: how many a prefix has, from 1 on. FAQ-1 to -3 and -7 have parts.
my %concepts = (DRV => 34, DP => 15, SMD => 21, FW => 12, PP => 15, TP => 12, SMP => 25, '3D' => 7, INS => 17,
                NET => 17, PLC => 5, TC => 15, CKP => 23, WHN => 11, TRP => 10, DBG => 16, WRM => 5, HET => 4, IOD => 10, JOB => 4,
                MET => 8, B => 46);
my %known = map { $_ => 1 } map({ my $prefix = $_; map { "$prefix-$_" } 1 .. $concepts{$prefix} } keys %concepts),
    map { "FAQ-$_" } qw(1a 1b 1c 2a 2b 2c 3 3b 3c 4 5 6 7a 7b 7c 7d 7e);
my %capability = map { $_ => 1 } 'input modes', 'cluster operations';
# The texts of a program, those that stand side by side as one.
my %texts;
sub texts {
    my $program = shift;
    my $code = slurp("$root/examples/$program.c") =~ s{/\*.*?\*/}{}sgr;
    return $texts{$program} //= join "\n", map { join ' ', split ' ', s/"\s*"//gr =~ s/^"|"$//gr =~ s/\\n/ /gr =~ s/\\"/"/gr =~ s/%%/%/gr }
        $code =~ /("(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*)/g;
}
my $stated = 0; # rows whose line says something that no run can show
my (%shows, %seen, @wrong); # %shows: by program: [concept, a line that it prints]
my $checked = 0;
for (grep { /^\| [0-9A-Z]+-\d/ } split /\n/, slurp("$root/examples/concepts.md")) {
    my ($id, $title, $where, $line) = /^\| (\S+) \| (.*?) \| (.*?) \| (.*?) ?\|$/ or push(@wrong, "not a row: $_"), next;
    push @wrong, "$id: no concept of the course" unless $known{$id};
    push @wrong, "$id: twice" if $seen{$id}++;
    push @wrong, "$id: no title" unless $title =~ /\S/;
    my ($program) = $where =~ /^\[(\w+)\]\(\1\.c\)$/;
    my ($waits) = $where =~ /^waits for: (.*)$/;
    push @wrong, "$id: neither a program nor what it waits for" unless $program || defined $waits;
    push @wrong, "$id: unknown capability $waits" if defined $waits && !$capability{$waits};
    push @wrong, "$id: waits, and has a line" if defined $waits && $line;
    next unless $program;
    my ($printed, $why) = $line =~ /^`(\S.*)`(?:; stated: (\S.*))?$/ or push(@wrong, "$id: no line of $program"), next;
    push @{$shows{$program}}, [$id, $printed = $printed =~ s/\\\|/|/gr];
    $stated++ if $why;
    push @wrong, "$id: its line is a text of $program, nothing that the run computed" if !$why && index(texts($program), $printed) >= 0;
    $checked++ unless $id =~ /^B-/;
}
push @wrong, map { "$_: missing" } grep { !$seen{$_} } sort keys %known;
is(join("\n", @wrong), '', 'examples/concepts.md: every concept has a title, and a line or what it waits for');
cmp_ok($checked, '>=', 250, 'concepts with a line of output, corrections not counted');
cmp_ok($stated, '<=', 20, 'concepts that are stated only');

# The rows of the cheat sheet that quote a line, after the program that prints it.
my ($formulas) = slurp("$root/examples/cheatsheet.md") =~ /^## Formulas\n.*?^\|-[-|]+\n(.*?)^\n/ms;
@wrong = ();
for (split /\n/, $formulas || '') {
    my ($what, $program, $printed) = /^\| (.*?) \|.*\| \[(\w+)\]\(\2\.c\) \| `(\S.*)` \|$/ or push(@wrong, $_), next;
    push @{$shows{$program}}, [$what, $printed =~ s/\\\|/|/gr];
}
ok($formulas, 'examples/cheatsheet.md has formulas');
is(join("\n", @wrong), '', '  each with a program and a line that it prints');

copy($_, "$tmp/tree/examples/") for glob "$root/examples/*.h";
mkdir "$tmp/tree/examples/tools";
copy($_, "$tmp/tree/examples/tools/") for glob "$root/examples/tools/*";
my @examples = sort glob "$root/examples/[0-9]*.c";
for my $example (@examples) { copy($example, "$tmp/tree/examples/") }

my $cc = $ENV{CC} || 'cc';

# What makes an example skip its own implementation: one that the tests have compiled; nothing with --full.
sub once {
    my $name = shift;
    return '' if full();
    my ($object) = implementation($name) =~ /(\S+\.o)/;
    return " -DDTRAIN_IMPLEMENTED $object";
}

# The lines that a program's comment shows and that are not printed, in this order. Blanks do not count.
sub unprinted {
    my ($file, $printed) = @_;
    my ($shown) = slurp($file) =~ m{^ \* What it prints[^\n]*\n(.*?)^ \*\n}ms or return;
    my @printed = map { join ' ', split } split /\n/, $printed;
    my @missing;
    for my $line (map { join ' ', split ' ', s/^ \*//r } split /\n/, $shown) {
        my $pattern = join '', map { /^~/ ? '[\d.e+]+\*?' : quotemeta } split /(~[\d.e+]*\d\*?)/, $line;
        my $at = 0;
        $at++ until $at == @printed || $printed[$at] =~ /^$pattern$/;
        if ($at < @printed) { splice @printed, 0, $at + 1 }
        else { push @missing, $line }
    }
    return @missing;
}

# The program's concepts that are not printed.
sub unseen {
    my ($name, $printed) = @_;
    my $flat = join ' ', split ' ', $printed;
    return map { "$_->[0]: not printed: $_->[1]" } grep { index($flat, $_->[1]) < 0 } @{$shows{$name} || []};
}

# Runs commands until one fails; whether none did, and the last one's last line has "ok". $$all: what they printed.
sub works {
    my ($folder, $all, @commands) = @_;
    my ($status, $out, $err) = (0, '', '');
    for my $command (@commands) {
        ($status, $out, $err) = run_in($folder, 300, $command);
        $$all .= $out;
        diag("$command\nstatus $status\n$out\n$err") if $status;
        return 0 if $status;
    }
    my ($last) = reverse grep { /\S/ } split /\n/, $out;
    return 1 if ($last || '') =~ /\bok\b/;
    diag($out);
    return 0;
}

sub place { return $_[0] =~ /^(\d+)_/ ? $1 : 1000 } # in the course

# What is missing in an example's header comment.
sub parts {
    my ($name, $file) = @_;
    my ($comment) = slurp($file) =~ m{^/\*(.*?)\*/}s;
    my @missing;
    push @missing, 'a question in the first line' unless $comment =~ /^ \Q$name\E: [^\n]*\?/;
    my ($learn) = $comment =~ /^ \* What you learn\n(.*?)^ \*\n/ms;
    my $points = () = ($learn || '') =~ /^ \*     - /mg;
    push @missing, "what you learn, in 1 to 5 points ($points)" if $points < 1 || $points > 5;
    my @heads = ('Build and run it', 'What it prints', 'Exercise: ', 'Read on: ');
    push @missing, grep { $comment !~ /^ \* \Q$_\E/m } @heads;
    push @missing, 'Predict first, a question' unless $comment =~ /^ \* Predict first: [^?]*\?/m;
    my ($on) = $comment =~ /^ \* Read on: (.*)/ms;
    my @named = ($on || '') =~ m{([\w/]+\.(?:c|h|md))}g;
    push @missing, "Read on: $_ is no file" for grep { !-e "$root/examples/$_" && !-e "$root/$_" } @named;
    push @missing, 'Read on, a later program or a page' unless grep { place($_) > place($name) } @named;
    return @missing;
}

# What the page of a program's chapter lacks: its heading, its own question and exercise, an answer, a hint.
sub unanswered {
    my ($name, $file) = @_;
    my ($comment) = slurp($file) =~ m{^/\*(.*?)\*/}s;
    my $page = 'answers/' . int(place($name) / 10) . '.md';
    my $text = -e "$root/examples/$page" ? slurp("$root/examples/$page") : return "$page is missing";
    my @asked = map { join ' ', split ' ', s/^ \*//mgr } $comment =~ /^ \* Predict first: (.*?)^ \* Exercise: (.*?)^ \*\n/ms;
    my ($part) = $text =~ m{^## \[\Q$name\E\]\(\.\./\Q$name\E\)\n(.*?)(?=^## |\z)}ms or return "$page has no heading of $name";
    my @lacks;
    for (['Predict first', 'Answer'], ['Exercise', 'Hint']) {
        my ($question, $answer) = @$_;
        my ($same) = $part =~ m{^\*\*$question:\*\* (.*?)\n\n<details><summary>$answer</summary>\n\n\S.*?\n\n</details>$}ms;
        push @lacks, "$page, $name: not the program's '$question', or no '$answer'"
            if join(' ', split ' ', $same // '') ne shift @asked;
    }
    return @lacks;
}

# Examples of more than 150 lines: these numbers may only fall.
my %length = (
    '12_cnn.c' => 159, '20_network.c' => 294, '23_race.c' => 194, '27_trees.c' => 211,
    '31_data_parallel.c' => 175, '36_compression.c' => 233, '38_parameter_server.c' => 188,
    '50_pipeline_by_hand.c' => 189, '54_ring_attention_by_hand.c' => 181, '58_nodes.c' => 187, '61_scaling.c' => 184,
    '60_when_not.c' => 196, '71_shards_by_hand.c' => 201, '80_doctor.c' => 210,
    '82_rules.c' => 213, '83_report.c' => 327, '90_launchers.c' => 235,
);

# These take 3 to 10 s and 1 to 3 s of a processor each; all others take 30 s together.
seeded();
my @longest = qw(02_gpt 03_optimizers 07_generation 09_saturation 14_llama 15_moe 19_answers 20_network 27_trees 35_overlap 57_mesh 58_nodes 76_async_checkpoint
    80_doctor 83_report 110_fine_tune);
my @long = qw(08_generate 10_own_model 12_cnn 16_llama_by_hand 23_race 24_link 33_accumulation 36_compression 41_zero 43_memory 46_budget 48_fusion 51_pipeline
    53_tensor_parallel 56_expert_parallel 70_checkpoints 75_spot 78_elastic 88_underflow 89_sixteen_bits 92_placement 101_exact_or_fast 111_lora);
my %only_compiles = map { $_ => 1 } @longest, @long;
delete @only_compiles{drawn(4, @longest), drawn(5, @long)};

my $once = once('library');
for my $example (@examples) {
    my ($name) = $example =~ m{([^/]+)$};
    my @commands = commands($example, qr{cc |\./|DT_LINK_});
    ok(@commands && $commands[0] =~ /^cc .*\Q$name\E/, "$name: its header comment says how to compile it") or next;
    is(join("; ", parts($name =~ s{\.c$}{}r, $example)), "",  '  and its header comment has all parts');
    is(join("\n", unanswered($name, $example)), '', '  and its question has an answer');
    cmp_ok(scalar(() = slurp($example) =~ /\n/g), '<=', $length{$name} || 150, '  and it is no longer than a page');
    my $folder = $commands[0] =~ m{examples/} ? "$tmp/tree" : "$tmp/tree/examples";
    my $all = '';
    my $inside = !full() && slurp($example) =~ m{"tools/simulate\.h"}; # it reads plans by private functions
    my ($how, $level) = $inside ? ("$cc " . implementation('open'), '')
                      : $example ne $examples[0] ? ("$cc$once", full() ? '' : ' -O1') : ($cc, full() ? '' : ' -O0 -DDT_DEBUG');
    my ($program) = $name =~ /(.*)\.c$/;
    my ($compilation, @runs) = map { s/^cc (.*)/$how $1 -ldl$level/r } @commands;
    if ($only_compiles{$program}) {
        my ($status, undef, $err) = run_in($folder, 300, "$compilation -O0");
        is($status, 0, "$name: compiles") or diag($err);
        delete $shows{$program};
        next;
    }
    my $alike = !full() && !grep { !m{^(?:DT_LINK_\w+=\S+ )*\./\Q$program\E(?: --\w+ \d+)*$} } @runs;
    my $fine = works($folder, \$all, $compilation, $alike ? pop @runs : splice @runs);
    while ($fine && @runs && (unprinted($example, $all) || unseen($program, $all))) {
        my $more = '';
        $fine = works($folder, \$more, pop @runs);
        $all = "$more$all";
    }
    ok($fine, "$name: runs and ends with ok");
    my @missing = unprinted($example, $all);
    ok(!@missing, '  and prints what its comment shows') or diag(map({ "not printed: $_\n" } @missing), $all);
    @missing = unseen($program, $all);
    ok(!@missing, '  and shows its concepts') or diag(map { "$_\n" } @missing);
    delete $shows{$program};
    next if slurp("$example") =~ /int main\(void\)/ || !-x "$tmp/tree/examples/$program";
    is((run_in("$tmp/tree/examples", 20, "./$program --rank 2"))[0], 2, '  and refuses a mistyped option');
}

my $missing = mpi_missing();
my $mpi_once;
for my $example (drawn(1, grep { commands($_, 'mpicc ') } @examples)) {
    my ($name) = $example =~ m{([^/]+)$};
    my @commands = commands($example, 'mpicc ');
    SKIP: {
        skip "$name under mpirun: $missing", 1 if $missing;
        $mpi_once = once('engines') unless defined $mpi_once;
        my $mpi_libraries = $mpi_once ? join ' ', grep { /^-l(?:fabric|dl)$/ } split ' ', implementation('engines') : '';
        local @ENV{qw(OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM)} = (1, 1); # mpirun asks root for this
        ok(works("$tmp/tree/examples", \my $all, map { s/^mpicc /mpicc$mpi_once $mpi_libraries /r } @commands), "$name: runs under mpirun");
    }
}
is(join(' ', sort keys %shows), '', 'examples/concepts.md and cheatsheet.md name programs that exist');
my @linked = map { slurp($_) =~ /^## \[\S+\]\((\S+)\)/mg } glob "$root/examples/answers/*.md";
is(join(' ', grep { !-e "$root/examples/answers/$_" } @linked), '', 'examples/answers names programs and notebooks that exist');

# What a notebook asks: its paragraphs with Predict or Explain. Where a numbered list follows, each item is a question.
sub asks {
    my @texts = map { join '', @{$_->{source}} } grep { $_->{cell_type} eq 'markdown' } @{JSON::PP->new->decode(slurp($_[0]))->{cells}};
    my @paragraphs = map { split /\n\n+/, s/:\n\n1\. /: 1. /r } @texts;
    return map { join ' ', split } map { split /\n(?=\d\. )/ } grep { /\*\*(?:Explain|Predict)\b/ } @paragraphs;
}

# Each of these questions has an answer, hidden at first, with a line that says what a full one names.
my $page = slurp("$root/examples/answers/notebooks.md");
for my $notebook (glob "$root/notebooks-c/[0-9]*.ipynb") {
    my ($name) = $notebook =~ m{(\w+)\.ipynb$};
    my ($part) = $page =~ m{^## \[$name\]\(\.\./\.\./notebooks-c/$name\.ipynb\)\n(.*?)(?=^## |\z)}ms;
    my @same = ($part // '') =~ m{(\S.*?)\n\n<details><summary>Answer</summary>\n\n[^*\s].*?\n\n\*A full answer names:\* \S.*?\n\n</details>\n}gs;
    is(join("\n", map { join ' ', split } @same), join("\n", asks($notebook)), "$name: its questions have answers");
}
ok(-e "$root/examples/README.md", 'examples/README.md') if @examples > 1;

done_testing();
