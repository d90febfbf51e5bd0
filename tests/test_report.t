#!/usr/bin/env perl
# The report of a real run on 2 ranks: well-formed HTML whose numbers are those of the metrics, several runs, files that are
# cut, hostile or not metrics, a browser of two widths, --follow while a run goes on, event files as TensorBoard reads them, and mutated files under
# the sanitizers. The commands that the report and the rules tell to try are commands that the trainer takes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use JSON::PP;
use List::Util qw(sum max);
use POSIX qw(mkfifo);
use Test::More;
use Time::HiRes qw(sleep time);

my $report = "$tmp/report";
my $checks = sanitizers_missing() ? '' : '-fsanitize=address,undefined -fno-sanitize-recover=all';
my ($status, $out, $err) = run(120, ($ENV{CC} || 'cc') . " -std=gnu11 -O1 -g -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror $checks $root/examples/tools/report.c -o $report -lm");
is($status, 0, 'compiles without a warning, of dtrain.h the declarations alone') or BAIL_OUT($err);
my ($python) = grep { have($_) } 'python3', 'python';

# ---- a run, its page, its numbers ----

my $nano = '--data ' . corpus(60000) . ' --model nano --batch 8 --sequence 64 --ranks 2';
($status, $out, $err) = run(60, trainer() . " $nano --steps 30 --eval-every 10 --sample-length 40 --metrics a.jsonl --timeline a.json --rules");
is($status, 0, 'a run') or diag($err);
my ($head, @step) = map { decode_json($_) } split /\n/, slurp("$tmp/a.jsonl");
($status, $out, $err) = run(60, "$report a.jsonl --timeline a.json --simulated a.json");
is("$status$err", '0', 'its report');
like($out, qr/^a  Complete: step 30 of 30, loss [\d.]+ to [\d.]+, .*\n  Healthy.*\n  next: .*\n  \.\/build\.sh run --data .*\npage a\.html\n\z/, '  prints the verdict');
my $page = slurp("$tmp/a.html");

# The cells of the row with this name in a section.
sub row {
    my ($section, $name) = @_;
    my ($part) = $page =~ /<h2>\Q$section\E<\/h2>(.*?)(?:<h2>|\z)/s or return 'no section';
    my ($cells) = $part =~ /<th scope="row">(?:<svg.*?<\/svg> )?\Q$name\E<\/th>(.*?)<\/tr>/s or return 'no row';
    return join '|', $cells =~ /<td[^>]*>([^<]*)<\/td>/g;
}
sub seconds { my $x = shift; return sprintf("%.4g\xc2\xa0" . ($x < 1e-3 ? "\xc2\xb5s" : $x < 1 ? 'ms' : 's'), $x * ($x < 1e-3 ? 1e6 : $x < 1 ? 1e3 : 1)) }
sub column { my $name = shift; return map { $_->{$name} } @step }
my @sorted = sort { $a <=> $b } column('seconds');
is(row('In numbers', 'loss'), sprintf('%.6g', $step[-1]{loss}), 'the last loss is that of the metrics');
is(row('In numbers', 'validation loss, last'), sprintf('%.6g', $step[-1]{validation}), '  and the validation loss');
is(row('In numbers', 'SHA-256'), $step[-1]{sha256}, '  and the hash');
is(row('In numbers', 'bytes sent by rank 0'), sum(column('sent_bytes')), '  and bytes');
is(row('In numbers', 'parameters'), $head->{parameters}, '  and parameters');
my %percentile = (shortest => 0, median => 14, p90 => 26, p99 => 29, longest => 29);
is(row('In numbers', "step, $_"), seconds($sorted[$percentile{$_}]), "percentiles of step times: $_") for sort keys %percentile;
is(row('In numbers', 'step, mean'), seconds(sum(@sorted) / 30), '  and their mean');
# What bars and a table show: cells without their shares.
sub amounts { return row(@_) =~ s/, [^|]+%//gr }
my %part = ('computing' => 'work', 'exposed communication' => 'exposed', 'waiting for late ranks' => 'agree', 'waiting for data' => 'data');
for my $part (sort keys %part) {
    my @own = map { my $q = $_; sum map { $_->[$q] } column("rank_$part{$part}") } 0, 1;
    is(amounts('Where time goes', $part), join('|', map { seconds($_) } sum(@own) / 2, @own), "time goes to $part: the mean, and each rank");
}
is(row('Where time goes', 'checkpoints') =~ s/\|.*//r, seconds(0) . ", 0.0\xc2\xa0%", '  checkpoints: none');
sub bytes { my ($x, $k) = (shift, 0); ($x /= 1000, $k++) while $x >= 1000; return sprintf "%.4g\xc2\xa0%s", $x, (qw(B kB MB GB))[$k] }
is((split /\|/, amounts('Memory', $_))[1], bytes($head->{memory}{$_}), "planned memory: $_") for qw(weights gradients optimizer activations buffers cache);
is((split /\|/, amounts('Memory', 'optimizer'))[0], bytes(8 * $head->{parameters}), '  and by formula');
is(amounts('Bytes by link', 'gradients and weights'), "$step[-1]{gradient_bytes}|0", 'bytes by link');
my @events = @{decode_json(slurp("$tmp/a.json"))->{traceEvents}};
my $forward = 1e-6 * sum map { $_->{dur} } grep { ($_->{cat} || '') eq 'FORWARD' && $_->{pid} == 0 } @events;
is(amounts('Timeline', 'forward'), join('|', (seconds($forward)) x 2), 'the timeline, beside itself as simulated');
my ($bits) = reverse column('rules_fired');
is(scalar(() = $page =~ /<b>\w+<\/b> at step \d+[^<]*: [^<]*<\/p><pre><code>/g), unpack('%32b*', pack 'L', $bits), 'the rules that --rules saw') or diag($bits);

# Well-formed, self-contained, with texts beside pictures. Reads the files that are named; prints what is wrong.
my $reader = <<'PYTHON';
import html.parser, sys, xml.etree.ElementTree as tree
for name in sys.argv[1:]:
    text = open(name, encoding='utf-8').read()
    top = tree.fromstring(text)
    html.parser.HTMLParser().feed(text)
    ids = [e.get('id') for e in top.iter() if e.get('id')]
    if len(ids) != len(set(ids)): print(name, 'has an id twice')
    for e in top.iter():
        if e.tag in ('script', 'img', 'iframe') or any(k.startswith('on') for k in e.attrib): print(name, 'has', e.tag)
        if any('http' in v for k, v in e.attrib.items() if k != 'http-equiv'): print(name, 'needs a network')
        if e.tag == 'svg' and e.get('aria-hidden') != 'true' and not set(e.get('aria-labelledby').split()) <= set(ids): print(name, 'has a picture without a text')
        if e.tag == 'table' and e.find('thead') is None: print(name, 'has a table without a head')
        if e.tag == 'path' and ('nan' in e.get('d') or 'inf' in e.get('d')): print(name, 'has no number in a path')
print('read', len(sys.argv) - 1)
PYTHON
spew("$tmp/reader.py", $reader);
sub well_formed {
    my ($what, @files) = @_;
  SKIP: {
        skip('no python3 to read HTML', 1) unless $python;
        my @read = run(60, "$python reader.py @files");
        is("$read[0]$read[1]", '0read ' . @files . "\n", $what) or diag($read[2]);
    }
}
my @pages = 'a.html';

# ---- several runs; files that are cut, hostile, or not metrics ----

run(60, trainer() . " $nano --steps 12 --ranks 1 --learning-rate 30 --clip 0 --sample-length 0 --metrics b.jsonl");
($status, $out) = run(60, "$report a.jsonl b.jsonl -o two.html");
like($out, qr/^b  Complete.*\n  Not healthy: the loss rose.*\n  next: Train with a quarter .*\n.* --learning-rate 7\.5 --clip 1 /m, 'two runs, and one of them diverges');
$page = slurp("$tmp/two.html");
is(row('Side by side', 'loss'), join('|', map { sprintf '%.6g', $_ } $step[-1]{loss}, decode_json((split /\n/, slurp("$tmp/b.jsonl"))[-1])->{loss}), '  side by side');
like((run(60, "$report" . ' a.jsonl' x 2 . ' -o same.html'))[0] . slurp("$tmp/same.html"), qr/^0.*<th scope="col">a-2<.*The hashes are equal/s, '  with equal hashes and names of their own');

my $whole = slurp("$tmp/a.jsonl");
my @lines = split /^/, $whole;
spew("$tmp/cut.jsonl", substr join('', @lines[0 .. 20]), 0, -30);
($status, $out) = run(60, "$report cut.jsonl");
like($out, qr/^cut  Stopped early: step 19 of 30.* left out: 1\..*\n.*\n  next: No checkpoint was kept/, 'a run that was killed');
spew("$tmp/again.jsonl", join '', @lines[0 .. 20], $lines[0], @lines[11 .. 30]);
like((run(60, "$report again.jsonl"))[1], qr/Complete: step 30 of 30.*Times resumed: 1; steps repeated: 10/, 'a run that was resumed');
spew("$tmp/ill.jsonl", join '', @lines[0 .. 5], qq({"step":5,"error":"the loss of step 6 is not finite: lower --learning-rate"}\n), qq({"later": [1, {"x": "}"}]}\n));
like((run(60, "$report ill.jsonl"))[1], qr/Failed: step 5 of 30.*Error: the loss of step 6 is not finite.*\n  Not healthy.*\n.*\n.*--learning-rate 0\.00025 /, 'a run that failed');
my $late = join '', $lines[0], map { s/"rank_(\w+)":\[[^\]]*\]/{work => qq("rank_work":[0.01,0.09]), exposed => qq("rank_exposed":[0,0]), agree => qq("rank_agree":[0.08,0]), seconds => qq("rank_seconds":[0.1,0.1])}->{$1} || $&/ger } @lines[1 .. 30];
spew("$tmp/late.jsonl", $late =~ s/"loss":[\d.]+/"loss":4/gr);
like((run(60, "$report late.jsonl"))[1], qr/Not healthy: the loss stands still.*; rank 1 waits least: the others wait for it\.\n  next: The loss stands still: raise .*\n.*--learning-rate 0\.003$/m, 'a loss that stands still, and a rank that is late');
spew("$tmp/head.jsonl", $lines[0]);
like((run(60, "$report head.jsonl"))[1], qr/no step was taken/, 'a run without a step');
my $name = q(<img src=x onerror=alert(1)>&"'`$(touch owned)`%s.jsonl);
spew("$tmp/$name", $whole =~ s/"sample":"/"sample":"<\/pre><script>alert(1)<\/script>\\ud800\\u0000\xff\xc3\x28/r =~ s/"validation":null/"onload=\\"x\\"<i>":1,"validation":null/r);
($status, $out, $err) = run(60, "$report '" . $name =~ s/'/'\\''/gr . "' -o hostile.html --tensorboard hostile");
my ($command) = $out =~ /^  (\.\/build\.sh .*)/m;
my $beside = $name =~ s/(?=\.jsonl)/-next/r;
(undef, my $words) = run(10, $command =~ s/^\.\/build\.sh run/printf '%s\\n'/r);
ok($status == 0 && slurp("$tmp/hostile.html") !~ /<(?:img|script|i>)|\0/ && $words =~ /^\Q$beside\E$/m && !-e "$tmp/owned", 'a hostile name and a hostile sample are texts') or diag($out . $err);
for (['an empty file', '', qr/is empty: the run has not begun/], ['a text', "once upon\n", qr/is not a file of --metrics/], ['a trace', slurp("$tmp/a.json"), qr/is not a file of --metrics/]) {
    spew("$tmp/bad.jsonl", $_->[1]);
    ($status, undef, $err) = run(60, "$report bad.jsonl");
    ok($status == 1 && $err =~ $_->[2] && !-e "$tmp/bad.html", "refused: $_->[0]") or diag($err);
}
mkfifo("$tmp/pipe", 0600) or die "pipe: $!"; # like a device, in whose place no page may be put
for (['no file', '', 2, qr/name a file/], ['an absent one', 'none.jsonl', 1, qr/cannot read none/], ['a pipe', 'pipe', 1, qr/cannot read pipe/], ['an option', 'a.jsonl --colour', 2, qr/what is '--colour'/], ['no value', 'a.jsonl -o', 2, qr/-o needs a name/],
     ['nine runs', 'a.jsonl ' x 9, 2, qr/up to 8 runs/], ['a page over the metrics', 'a.jsonl -o b.jsonl', 1, qr/b\.jsonl exists and is not a page/], ['metrics as a trace', 'a.jsonl --timeline a.jsonl', 1, qr/is not a trace/],
     ['an absent folder', 'a.jsonl -o none/a.html', 1, qr/cannot write none/], ['a pipe as a page', 'a.jsonl -o pipe', 1, qr/pipe exists and is not a page/],
     ['an empty name', "a.jsonl --tensorboard ''", 2, qr/--tensorboard needs a name/], ['a full disk', 'a.jsonl -o full.html >/dev/full', 1, qr/cannot write the verdict/],
 ['events in a file', 'a.jsonl --tensorboard a.json', 1, qr/cannot write a\.json/]) {
    ($status, undef, $err) = run(60, "$report $_->[1]");
    ok($status == $_->[2] && $err =~ $_->[3], "refused: $_->[0]") or diag("status $status\n$err");
}
is(slurp("$tmp/a.jsonl"), $whole, '  and the metrics are as they were');
like((run(60, "ulimit -f 8; $report a.jsonl -o large.html"))[2], qr/^report: cannot write large\.html: File too large$/, 'a page that grows too large');
push @pages, qw(two.html cut.html again.html ill.html head.html hostile.html);

# In a browser: pages with all of their pictures fit into 360 and 1200 pixels, and the browser has nothing to say.
my ($browser) = grep { have($_) } qw(chromium chromium-browser google-chrome);
SKIP: {
    skip('no Chromium to show pages', 1) unless $browser;
    my $frames = join '', map { my $width = $_; map { qq(<iframe style="width:${width}px" src="$_"></iframe>) } qw(a.html two.html) } 360, 1200;
    spew("$tmp/frames.html", qq(<!DOCTYPE html><title>frames</title>$frames<script>onload = () => {
        for (const frame of document.querySelectorAll('iframe')) {
            const page = frame.contentDocument, html = page.documentElement;
            document.body.append(`\${html.scrollWidth - html.clientWidth} beyond, \${page.querySelectorAll('svg.plot').length} pictures; `);
        }
    }</script>));
    my @seen = run(60, "$browser --headless --no-sandbox --disable-gpu --allow-file-access-from-files --user-data-dir=$tmp/browser --enable-logging=stderr --dump-dom file://$tmp/frames.html");
    is(join(' ', $seen[1] =~ /(\d+ beyond, \d+ pictures;)/g, $seen[2] =~ /(CONSOLE.*)/g), join(' ', ('0 beyond, 9 pictures;', '0 beyond, 10 pictures;') x 2), 'pages fit into 360 and 1200 pixels');
}

# ---- while a run goes on ----

my $follower = fork // die;
if (!$follower) {
    chdir $tmp;
    open STDOUT, '>', 'follow.out';
    exec $report, 'long.jsonl', '--follow', '--tensorboard', 'events', '-o', 'long.html';
}
sleep 0.2;
my $run = fork // die;
if (!$run) {
    chdir $tmp;
    open STDOUT, '>', '/dev/null';
    exec split ' ', trainer() . " $nano --steps 150 --sample-every 50 --sample-length 40 --metrics long.jsonl";
}
my ($running, $half, $began) = (0, 0, time);
while (!waitpid($follower, POSIX::WNOHANG()) && time < $began + 40) {
    $page = slurp("$tmp/long.html");
    $half++ if $page ne '' && $page !~ /<\/html>\n\z/;
    $running++ if $page =~ /http-equiv="refresh"/ && $page =~ /Running: step \d+ of 150/;
    sleep 0.02;
}
is($?, 0, '--follow waits for a run, and ends with it') or kill('KILL', $follower);
waitpid $run, 0;
cmp_ok(scalar(() = slurp("$tmp/follow.out") =~ /^waiting/mg), '<=', 1, '  it says once that it waits');
ok($running && !$half, "  it wrote pages of a run that went on ($running were seen), each of them whole");
$page = slurp("$tmp/long.html");
like($page, qr/Complete: step 150 of 150/, '  and the last one of all steps');
unlike($page, qr/http-equiv="refresh"/, '  which stays');
push @pages, 'long.html';
is(join(' ', map { s/.*\///r } glob "$tmp/*.tmp"), '', '  and leaves no other file');

# ---- event files ----

my ($last) = map { decode_json($_) } (split /\n/, slurp("$tmp/long.jsonl"))[-1];
my ($tensorboard) = grep { defined && (run(60, "'$_' -c 'import tensorboard'"))[0] == 0 } "$root/build/notebooks/venv/bin/python", $python;
SKIP: {
    skip('no Python here has tensorboard (pip install tensorboard)', 1) unless $tensorboard;
    spew("$tmp/events.py", <<'PYTHON');
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
for name in sys.argv[1:]:
    e = EventAccumulator(name, size_guidance={'scalars': 0, 'tensors': 0})
    e.Reload()
    loss = e.Scalars('loss')
    print(len(loss), loss[-1].step, '%.6g' % loss[-1].value, int(e.Scalars('sent_bytes')[-1].value), len(e.Tensors('sample')), e.Tensors('sample')[-1].tensor_proto.string_val[0].decode())
PYTHON
    my @read = run(60, "'$tensorboard' events.py events/long");
    (my $sample = $last->{sample}) =~ s/[\x00-\x08\x0b-\x1f\x7f]/?/g;
    utf8::encode($sample);
    is($read[1], join(' ', 150, 150, sprintf('%.6g', $last->{loss}), $last->{sent_bytes}, 3, $sample) . "\n", 'TensorBoard reads every step and the samples') or diag($read[2]);
}
{ # the same by hand: lengths and their checksums
    my ($data, $at, $records, $bad) = (slurp("$tmp/events/long/events.out.tfevents.dtrain"), 0, 0, 0);
    for (; $at + 12 <= length $data; $records++) {
        my ($length, $check) = unpack 'Q<L<', substr $data, $at, 12;
        my $crc = 0xffffffff;
        for my $byte (unpack 'C8', substr $data, $at, 8) { $crc ^= $byte; $crc = $crc >> 1 ^ ($crc & 1 ? 0x82f63b78 : 0) for 1 .. 8 }
        $crc ^= 0xffffffff;
        $bad++ unless $check == (($crc >> 15 | $crc << 17 & 0xffffffff) + 0xa282ead8 & 0xffffffff);
        $at += 16 + $length;
    }
    is("$records $bad " . ($at - length $data), '151 0 0', 'event files have a version and a record for each step');
}

# ---- commands to try ----

my ($table) = slurp("$root/examples/rules.h") =~ /rules_table\[.*?= \{(.*?)\n *\{"none"/s;
my @next = $table =~ /",\s*"(--[^"]+)"\}/g;
is(scalar @next, 20, 'every rule names options to try');
my @refused;
for my $try (@next) {
    (my $options = $try) =~ s/LR\*3/0.003/;
    $options =~ s/LR\/4/0.00025/, $options =~ s/BATCH\*4/32/, $options =~ s/BEST/20/;
    my ($bad, undef, $why) = run(30, trainer() . " $nano $options --dry-run 0:2 --vocabulary 256 --quiet" =~ s/--ranks 2//r);
    push @refused, "$options: $why" if $bad;
}
is(join("\n", @refused), '', '  that the trainer takes');
($command) = map { /<pre><code>\.\/build\.sh run (.*?)<\/code>/ } slurp("$tmp/a.html");
$command =~ s/&#(\d+);/chr $1/ge;
like($command, qr/--sequence 64 .*--data-shards 8 .*--learning-rate 0\.001 --warmup 20 .*--ranks 2 /, '  the command says what build.sh run would choose otherwise');
(my $tried = $command) =~ s/--ranks 2//;
is((run(30, trainer() . " $tried --dry-run 0:2 --vocabulary 256"))[0], 0, '  and so is the command of the page') or diag($command);
run(60, trainer() . " $nano --steps 8 --ranks 1 --sample-length 0 --checkpoint kept/ --resume auto --metrics done.jsonl");
($command) = (run(60, "$report done.jsonl"))[1] =~ /^  \.\/build\.sh run (.*)/m;
($status, $out, $err) = run(60, trainer() . " $command");
like("$status $out", qr/^0 .*^ok: (?:16|8) steps/ms, '  which, of a run that is complete, makes the steps of another run') or diag("$command\n$err");
ok(-e "$tmp/done-next.jsonl" && -d "$tmp/kept-next" && slurp("$tmp/done.jsonl") =~ tr/\n// == 9, '  beside it');

# ---- bytes that nobody wrote ----

seeded();
my @values = ('', '0', '-1', '1e308', 'nan', 'null', '"', '\\', '{', '}', '[', ']', ',', ':', "\n", "\0", "\xff", '\\u', '\\ud800', '[1,2,3]', '{"step":', '"ranks": 4096', '"ranks": -3', '"step":9e15', '"rank_work":[', '"error":"', 'x' x 5000, '9' x 300);
sub mutated {
    my $text = shift;
    for (0 .. rand 6) {
        my $at = int rand(1 + length $text);
        if (rand() < 0.7) { substr($text, $at, int rand 9) = $values[rand @values] }
        elsif (rand() < 0.5) { substr($text, $at, int rand 2000) = '' }
        else { substr($text, $at, 0) = substr $text, int rand length $text, int rand 500 }
    }
    return $text;
}
my $bad = 0;
my $trace = slurp("$tmp/a.json");
for my $n (1 .. (full() ? 1000 : 40)) {
    spew("$tmp/fuzz$_.jsonl", mutated($whole)) for 0, 1;
    spew("$tmp/fuzz.json", mutated($trace));
    ($status, $out, $err) = run(30, "$report fuzz0.jsonl " . ($n % 2 ? 'fuzz1.jsonl' : '--timeline fuzz.json') . ' -o fuzz.html --tensorboard fuzz');
    $bad++, diag("status $status\n" . substr $err, -2000) if $status > 1;
    next if $status || $n % 15;
    run(5, "cp fuzz.html fuzz$n.html"), push @pages, "fuzz$n.html";
}
is($bad, 0, 'nothing crashes on mutated files');
well_formed('all pages are well-formed, need nothing else, and have texts for pictures', @pages);

done_testing();
