#!/usr/bin/env perl
# Checkpoints: saved in one layout, resumed in another, in the middle of a warm-up and of an epoch, the hash is that of a
# run that nothing disturbed. A save that dies, fails or is cut at its n-th operation leaves complete checkpoints only; so
# do kills at any moment, and losses after which the ranks that are left go on (--elastic). Damaged, foreign and newer
# checkpoints are refused, and the one before is used. Then retention, mirrors, --checkpoint-every auto, and what is
# refused. A fuzzer of the readers runs for a few seconds.
# A random sample of all that by default (DT_SEED=N draws sample N), much more with DT_FULL=1.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Digest::SHA qw(sha256_hex);
use Dt;
use JSON::PP qw(decode_json);
use Layouts;
use List::Util qw(max min shuffle);
use POSIX qw(:sys_wait_h);
use Test::More;
use Time::HiRes qw(sleep time);

seeded();
my $stopped = 75; # the exit status of a run that was asked to stop and has saved
my $program = trainer();
my $kind = $only_threads ? ' --launch threads' : '';
my $short = sanitized() && !full();

# ---- runs and what they leave ----

# Recipes of this test beside those whose hashes are written down. epochs: there are 62 samples, so that an epoch ends
# in the middle of steps 8 and 16.
my %text = (epochs => 2000);
$recipe{epochs} = '--batch 8 --sequence 32 --steps 18 --warmup 12 --dropout 0.1';
$recipe{little} = '--layers 1 --width 32 --heads 2 --batch 8 --sequence 16 --steps 4';
$recipe{llama_little} = '--model llama-nano --tied --layers 1 --batch 8 --sequence 16 --steps 4 --optimizer lion';
$recipe{untied} = '--model llama-nano --layers 1 --batch 8 --sequence 16 --steps 4 --optimizer sgd --momentum 0.9 --learning-rate 0.1';
$recipe{long} = '--layers 1 --width 32 --heads 2 --batch 8 --sequence 16 --steps 300 --warmup 100 --ema 0.9';
$recipe{longer} = '--layers 2 --batch 16 --micro-batch 8 --sequence 8 --steps 150 --warmup 100 --accumulation shard --experts 4';

sub command_of {
    my ($name, $options) = @_;
    return "$program --data " . corpus($text{$name} || 20000) . " --model nano --warmup 2 --validation 0 --sample-length 0 --quiet "
        . "--threads 1 $recipe{$name} --metrics $tmp/metrics $options";
}

sub steps_done { return map { /^\{"step":(\d+),.*\}$/ ? $1 : () } split /\n/, slurp("$tmp/metrics") }

# A run: its exit status, hash, messages, and the steps that it did.
sub train {
    my ($name, $options, $environment) = @_;
    unlink "$tmp/metrics";
    my ($status, $out, $err) = run(300, join ' ', $environment || (), command_of($name, $options));
    return {status => $status, out => $out, err => $err, hash => $out =~ /^sha256 (\w+)$/m ? $1 : '', steps => [steps_done()]};
}

$recipe{$_} =~ s/--steps (\d+)/'--steps ' . $1 \/ 5/e for $short ? qw(long longer) : ();
my %want = golden();
for my $name (qw(epochs little llama_little untied long longer)) {
    my $r = train($name, '--ranks 1');
    $want{$name} = $r->{hash};
    like($r->{hash}, qr/^\w{64}$/, "$name: a run that nothing disturbs") or diag($r->{err});
}

my $folders = 0;
sub fresh { return "$tmp/checkpoints." . $folders++ }
sub forget { my $dir = shift; system "rm -rf $dir" }
sub copy_of { my ($from, $to) = (shift, fresh()); system "cp -r $from $to"; return $to }
sub name_of { return sprintf 'step-%09d', shift }
sub steps_in { my $dir = shift; my @steps = sort { $b <=> $a } map { m{/step-(\d{9})$} ? $1 + 0 : () } glob "$dir/step-*"; return @steps }
sub keep_only {
    my ($dir, @steps) = @_;
    my %stay = map { $_ => 1 } @steps;
    $stay{$_} || forget("$dir/" . name_of($_)) for steps_in($dir);
}

# A file is checked by one rank, while others read what they need of it: what they see comes before a hash that is wrong.
my $damage = qr/its SHA-256 is not the one in the manifest|or not a safetensors file|byte \d+ of the file: |the checkpoint does not hold/;
my $seal = qr/,\n "sha256": "(\w{64})"\n\}\n\z/;

# What is wrong with the checkpoint of a directory, or nothing.
sub flaw {
    my $dir = shift;
    my $text = slurp("$dir/manifest.json");
    return "$dir: no seal" if $text !~ $seal;
    return "$dir: another seal" if sha256_hex(substr $text, 0, $-[0]) ne $1;
    for my $file (@{decode_json($text)->{files}}) {
        my $content = slurp("$dir/$file->{name}");
        return "$dir/$file->{name} is not whole" if length $content != $file->{bytes} || sha256_hex($content) ne $file->{sha256};
    }
    return '';
}

# What is wrong with a directory of checkpoints: each must be whole.
sub flaws {
    my $dir = shift;
    my @wrong = grep { $_ } map { flaw("$dir/" . name_of($_)) } steps_in($dir);
    return join ', ', @wrong;
}

# ---- any layout, any other layout ----

sub places { # options of a random layout, and how it saves
    my ($name, $most) = @_;
    my $saves = (qw(sharded sharded full), 'sharded --checkpoint-async')[rand 4];
    return options(draw($name, $most)) . " --checkpoint-kind $saves";
}

# A chain of runs over random layouts: all but the last save at every step, then everything behind a random one is lost.
sub chain {
    my ($name, $links) = @_;
    my ($steps) = reverse $recipe{$name} =~ /--steps (\d+)/g;
    my @stop = sort { $a <=> $b } (shuffle 1 .. $steps - 1)[0 .. min($links, $steps - 1) - 1];
    my ($dir, @first, @hash, @where) = (fresh());
    for my $stop (@stop, $steps) {
        my $place = places($name, 8);
        my $r = train($name, "--checkpoint $dir --checkpoint-every 1 --keep 0 $place");
        push @where, $place;
        push @hash, $r->{hash} || "none (status $r->{status}): $r->{err}";
        push @first, $r->{steps}[0];
        keep_only($dir, 1 .. $stop);
    }
    is("@first @hash", join(' ', 1, (map { $_ + 1 } @stop), ($want{$name}) x @where), "$name: " . join(', after the next step: ', @where));
    is(flaws($dir), '', '  all checkpoints are whole');
    forget($dir);
}
my @names = grep { !/long|base/ } sort keys %recipe;
for my $name (drawn($short ? 6 : 10, @names)) {
    chain($name, $_) for full() ? (map { 1 + $_ % 3 } 1 .. 9) : 1 + (rand(3) < 1);
}

# ---- every n ----

sub faulty { my ($options, $fault) = @_; return train('little', $options, "DT_FAULT=$fault") }

# How many operations a rank does.
sub operations {
    my ($options, $rank, $source) = @_;
    my $dir = $source ? copy_of($source) : fresh();
    spew("$tmp/operations", '');
    faulty("--checkpoint $dir $options", "count:0:$rank");
    forget($dir);
    return -s "$tmp/operations";
}

my $sentence = qr/: cannot (create|write|read|read the directory|open|rename|remove|make the directory) \S+ \((Input\/output error|No space left on device)\): (check the disk|free some space)/;

# After a run with this fault: complete checkpoints only, of which the newest is at most an interval old; and the same
# command goes on from there.
sub after_fault {
    my ($dir, $options, $fault) = @_;
    my $most = $options =~ /async/ ? 4 : 2; # behind training a save may take up to the next one
    my $r = faulty("--checkpoint $dir $options", $fault);
    my @done = @{$r->{steps}};
    my $newest = (steps_in($dir))[0] // 0;
    my $flaws = flaws($dir);
    my $late = @done ? $done[-1] - $newest : 0;
    my $fine = $fault =~ /^(die|cut)/ ? $r->{status} == 137 || !$r->{status} : !$r->{status} || ($r->{status} == 1 && $r->{err} =~ $sentence);
    $fine = 0 if !$r->{status} && $r->{hash} ne $want{little};
    my $again = train('little', "--checkpoint $dir $options");
    $fine = 0 if $again->{status} || $again->{hash} ne $want{little} || ($again->{steps}[0] // 5) != $newest + 1;
    ok($fine && !$flaws && $late <= $most, "DT_FAULT=$fault $options: the same command goes on") or
        diag("$flaws, status $r->{status}, newest $newest, steps @done, then $again->{status}, $again->{hash}, @{$again->{steps}}\n$r->{err}$again->{err}");
    forget($dir);
}

my $ground = fresh(); # checkpoints after steps 1, 2 and 3
train('little', "--checkpoint $ground --checkpoint-every 1 --keep 0 --ranks 2$kind");
keep_only($ground, 1, 2, 3);
my @ways = $only_threads ? () : ( # a thread rank cannot die alone
    ['--ranks 1 --checkpoint-kind sharded', 0], ['--ranks 1 --checkpoint-kind full', 0], ['--ranks 2 --checkpoint-kind sharded', 0],
    ['--ranks 2 --zero 2 --checkpoint-kind sharded --checkpoint-async', 1], ['--ranks 2 --zero 3 --checkpoint-kind full', 0]);
for my $way (@ways) {
    my ($options, $rank) = ("$way->[0] --checkpoint-every 2 --keep 1", $way->[1]);
    next if $short && rand(2) < 1;
    my $count = operations($options, $rank);
    cmp_ok($count, '>', 40, "$options: $count operations on rank $rank");
    for my $fault (qw(die fail full cut)) { # most hangs on the last ones, when a checkpoint gets its name and others go
        my @n = full() ? 1 .. $count : $fault eq 'die' && $way == $ways[0] ? $count - 15 .. $count : 1 + int rand $count;
        after_fault(fresh(), $options, "$fault:$_:$rank") for @n;
    }
}
for my $way (@ways ? @ways[0, 2] : ()) { # reading, too: from checkpoints after steps 1, 2 and 3
    my ($options, $rank) = ("$way->[0] --checkpoint-every 2 --keep 0", $way->[1]);
    my $count = full() ? operations($options, $rank, $ground) : 20;
    for my $fault (qw(die fail)) {
        my @n = full() ? 1 .. $count : 1 + int rand $count;
        after_fault(copy_of($ground), $options, "$fault:$_:$rank") for @n;
    }
    my $dir = copy_of($ground);
    keep_only($dir, 2);
    my $r = faulty("--checkpoint $dir $options", 'fail:' . (17 + int rand 10) . ":$rank");
    ok($r->{status} == 1 && $r->{err} =~ /cannot read .*trying the checkpoint before it/ && $r->{err} =~ /holds no intact checkpoint \(1 are damaged\)/,
        "$options: the only checkpoint cannot be read") or diag("status $r->{status}\n$r->{err}");
    is(train('little', "--checkpoint $dir $options")->{hash}, $want{little}, '  but later');
    forget($dir);
}

# ---- kills at any moment ----

sub start {
    my ($name, $options) = @_;
    unlink "$tmp/metrics";
    my $command = command_of($name, $options);
    my $pid = fork;
    die "fork: $!" unless defined $pid;
    return $pid if $pid;
    open STDOUT, '>', "$tmp/out";
    open STDERR, '>', "$tmp/err";
    $ENV{DT_BACKOFF} = 0.01;
    exec split ' ', $command;
}

# Waits for the end, and for that of the ranks; the exit status as a shell tells it.
sub ended {
    my ($pid, @ranks) = @_;
    my $late = 0;
    local $SIG{ALRM} = sub { $late = 1; kill 'KILL', $pid, @ranks };
    alarm 300;
    waitpid $pid, 0;
    my $status = WIFSIGNALED($?) ? 128 + WTERMSIG($?) : WEXITSTATUS($?);
    alarm 0;
    for (1 .. 1000) { last if !grep { kill 0, $_ } @ranks; sleep 0.01 }
    my @left = grep { kill 0, $_ } @ranks;
    kill 'KILL', @left;
    return $late ? 'late' : @left ? "status $status, ranks are left" : $status;
}

# Takes ranks from a job, one by one, once it is at work; all that were seen.
sub lose {
    my ($pid, $after, $count) = @_;
    my @all;
    for (1 .. 3000) { last if steps_done(); sleep 0.01 }
    for (1 .. $count) {
        my @ranks = Dt::ranks_of($pid) or last;
        push @all, @ranks;
        kill @ranks > 1 && rand(4) < 1 ? 'STOP' : 'KILL', $ranks[rand @ranks]; # nobody sees that the last one is frozen
        sleep rand $after / 4;
    }
    return (@all, Dt::ranks_of($pid));
}

# Disturbs a run after a while: returns what was done, and the exit status.
sub disturb {
    my ($name, $options, $after, $how) = @_;
    my $pid = start($name, $options . ($how =~ /STOP a rank|lose/ ? ' --timeout 2' : ''));
    return ($how, ended($pid)) if $how eq 'nothing';
    return ($how, ended($pid, lose($pid, $after, $1))) if $how =~ /lose (\d)/;
    sleep $after;
    my @ranks = Dt::ranks_of($pid);
    my $victim = @ranks ? $ranks[rand @ranks] : $pid;
    $how = 'KILL all' if @ranks < 2 && $how eq 'STOP a rank'; # nobody would see it
    my %to = ('KILL a rank' => [KILL => $victim], 'KILL the supervisor' => [KILL => $pid], 'KILL all' => [KILL => $pid, @ranks],
        'TERM' => [TERM => $pid], 'STOP a rank' => [STOP => $victim]);
    kill @{$to{$how}};
    return ($how, ended($pid, @ranks));
}

# A layout that can go on with fewer ranks, as many as it needs or more.
sub elastic_places {
    my ($name, $most) = @_;
    while (1) {
        my $places = places($name, $most);
        my ($ranks) = $places =~ /--ranks (\d+)/;
        my $unit = 1;
        $unit *= $1 while $places =~ /--(?:tp|pp|cp|ep|zero-group) ([1-9])/g;
        return "$places --max-restarts 5 --elastic $unit:$ranks" if $places =~ /--launch processes/ && $ranks > $unit;
    }
}

# One job, killed again and again, each time in another layout, until it is done; the first time as `first` says. Returns
# how many kills it took.
my $shrunk = 0; # times that one went on with fewer ranks
sub campaign {
    my ($name, $seconds, $first) = @_;
    my @hows = ('KILL a rank', 'KILL the supervisor', 'KILL all', 'TERM', 'STOP a rank', $only_threads ? () : map { "lose $_ of the ranks" } 1 .. 3);
    my ($dir, $kills, $last, $most, $wrong) = (fresh(), 0, 0, 1, '');
    my @story;
    while (!$wrong) {
        my $how = $kills >= 12 ? 'nothing' : !@story && $first ? $first : $hows[rand @hows];
        my $places = $how =~ /lose/ ? elastic_places($name, full() ? 8 : 4) : places($name, 4);
        my $every = 1 + int rand 20;
        $places .= ' --max-restarts 2' if $places =~ /--launch processes/ && $how !~ /lose/ && rand(4) < 1;
        my $options = "--checkpoint $dir --checkpoint-every $every --keep 2 $places";
        my $status;
        $how = 'KILL all' if $options =~ /--launch threads/ && $how =~ /a rank/;
        ($how, $status) = disturb($name, $options, rand $seconds, $how);
        push @story, "$how ($status) at step $last: $options";
        my $often = $every * ($places =~ /async/ ? 2 : 1); # behind training a save may take up to the next one
        for my $step (steps_done()) {
            $wrong .= "took up step $step after $last, " if $last - $step + 1 > $most;
            ($last, $most) = ($step, $often);
        }
        my $text = slurp("$tmp/err");
        $shrunk += () = $text =~ /continuing with \d+ of \d+ ranks/g;
        $kills += $1 - ($status eq '0' ? 0 : 1) if $how =~ /lose (\d)/;
        $wrong .= flaws($dir);
        $wrong .= "stopped, but no checkpoint of step $1" if $text =~ /stopped on request after step (\d+)/ && ($status ne $stopped || (steps_in($dir))[0] != $1);
        last if $status eq '0' || $how eq 'nothing';
        $kills++;
        $wrong .= "status $status: $text" if $status !~ ($how eq 'TERM' ? qr/^($stopped|143)$/ : qr/^(137|1)$/);
    }
    my ($hash) = slurp("$tmp/out") =~ /^sha256 (\w+)$/m;
    ok(($hash || '') eq $want{$name} && !$wrong, "$name: killed $kills times") or diag(join "\n", $wrong, @story, slurp("$tmp/err"));
    forget($dir);
    return $kills;
}
my $began = time;
train('long', '--ranks 2' . $kind);
my $whole_run = time - $began;
my ($kills, $jobs) = (0, 0);
while ($kills < (full() ? 300 : $short ? 5 : 8) && $jobs < (full() ? 200 : 12)) {
    $kills += campaign(('long', 'longer')[$jobs % 2], $whole_run, $only_threads || $jobs % 3 ? () : 'lose 2 of the ranks');
    $jobs++;
}
cmp_ok($kills, '>=', full() ? 300 : 5, "$kills kills in $jobs jobs");
cmp_ok($shrunk, '>=', $only_threads ? 0 : 1, "$shrunk times they went on with fewer ranks");
for (['long', '--zero 2 --zero-group 2', 4], ['longer', '--ep 2', 6]) { # of 8 ranks 6 or 7 are left: not all can be
    last if $only_threads;
    my ($name, $groups, $use) = @$_;
    my $dir = fresh();
    my $pid = start($name, "--checkpoint $dir --checkpoint-every 5 --ranks 8 $groups --max-restarts 1 --elastic 2:8");
    for (1 .. 3000) { last if @{[steps_done()]} > 6; sleep 0.01 }
    my @ranks = Dt::ranks_of($pid);
    kill 'KILL', @ranks[2, 5];
    my $status = ended($pid, @ranks);
    my ($hash) = slurp("$tmp/out") =~ /^sha256 (\w+)$/m;
    my $said = slurp("$tmp/err");
    ok($status eq '0' && ($hash || '') eq $want{$name} && $said =~ /continuing with $use of 8 ranks(: the layout cannot use all [67] that are left)?$/m,
        "$groups: 8 ranks go on as $use") or diag("status $status, hash " . ($hash || 'none') . "\n$said");
    forget($dir);
}

# ---- corruption ----

# Resumes from checkpoints 1, 2 and 3, of which the newest is damaged by `how`; then where it is the only one.
sub damaged {
    my ($what, $source, $how, $says) = @_;
    my $ranks = (1, 2, 3)[rand 3];
    my $options = "--ranks $ranks$kind --checkpoint-every 0";
    for my $others (1, 0) {
        my $dir = copy_of($source);
        keep_only($dir, 3) if !$others;
        $how->("$dir/" . name_of(3), $dir);
        my $r = train('little', "--checkpoint $dir $options");
        my $said = $r->{err} =~ $says && $r->{err} =~ /^dtrain: .*: .*; trying the checkpoint before it$/m;
        if ($others) { $said &&= !$r->{status} && $r->{hash} eq $want{little} && $r->{steps}[0] == 3 }
        else { $said &&= $r->{status} == 1 && $r->{err} =~ /holds no intact checkpoint \(1 are damaged\)/ }
        ok($said, "$what: " . ($others ? 'the one before is used' : 'a clean failure when there is none')) or
            diag("status $r->{status}, hash $r->{hash}, steps @{$r->{steps}}\n$r->{err}$r->{out}");
        forget($dir);
        last if !full() && rand(3) > 1;
    }
}

sub change { my ($file, $how) = @_; local $_ = slurp($file); $how->(); spew($file, $_) }
sub flip { my $at = shift; substr($_, $at, 1) ^= chr(1 << int rand 8) }
sub reseal { my ($file, $how) = @_; change($file, sub { s/$seal// or die; $how->(); $_ .= ",\n \"sha256\": \"" . sha256_hex($_) . "\"\n}\n" }) }

# Changes a file of the checkpoint and makes the manifest agree with it.
sub forge {
    my ($dir, $name, $how) = @_;
    change("$dir/$name", $how);
    my ($bytes, $hash) = (-s "$dir/$name", sha256_hex(slurp("$dir/$name")));
    reseal("$dir/manifest.json", sub { s/("name": "\Q$name\E", "bytes": )\d+(, "sha256": )"\w+"/$1$bytes$2"$hash"/ or die });
}
sub header { my $how = shift; my $n = unpack 'Q<', $_; my $data = substr $_, 8 + $n; $_ = substr $_, 8, $n; $how->(); $_ = pack('Q<', length) . $_ . $data }

my $full = fresh();
train('little', "--checkpoint $full --checkpoint-every 1 --keep 0 --checkpoint-kind full --ranks 1");
keep_only($full, 1, 2, 3);
sub some { my ($count, @all) = @_; return full() ? @all : (shuffle @all)[0 .. min($count, scalar @all) - 1] }

# Every key and every value of the manifest, one bit of it.
my @place;
{
    my $text = slurp("$ground/" . name_of(3) . '/manifest.json');
    push @place, [$1, $-[1], length $1] while $text =~ /("[^"]*"|-?\d[\d.e+-]*)/g;
}
for my $place (some($short ? 3 : 8, @place)) {
    my ($what, $at, $length) = @$place;
    damaged("manifest, a bit in $what at byte $at", $ground, sub { change("$_[0]/manifest.json", sub { flip($at + int rand $length) }) }, qr/manifest\.json is cut or damaged/);
}

my %shard = ($ground => 'shard-001.safetensors', $full => 'model.safetensors');
my @damages = ( # what, how, and the words that it must be refused with
    ['manifest, no bytes', sub { spew("$_[0]/manifest.json", '') }, qr/manifest\.json is cut or damaged/],
    ['manifest, its last byte missing', sub { change("$_[0]/manifest.json", sub { chop }) }, qr/manifest\.json is cut or damaged/],
    ['manifest, its half missing', sub { change("$_[0]/manifest.json", sub { $_ = substr $_, 0, length() / 2 }) }, qr/manifest\.json is cut or damaged/],
    ['manifest, a byte more', sub { change("$_[0]/manifest.json", sub { $_ .= "\n" }) }, qr/manifest\.json is cut or damaged/],
    ['manifest, missing', sub { unlink "$_[0]/manifest.json" }, qr/holds no checkpoint: name one with manifest\.json/],
    ['manifest, a directory', sub { unlink "$_[0]/manifest.json"; mkdir "$_[0]/manifest.json" }, qr/manifest\.json is not a plain file/],
    ['manifest, a pipe', sub { unlink "$_[0]/manifest.json"; POSIX::mkfifo("$_[0]/manifest.json", 0666) }, qr/manifest\.json is not a plain file/],
    ['manifest, of the checkpoint before', sub { system "cp $_[3]/" . name_of(2) . "/manifest.json $_[0]" },
        qr/is damaged: its SHA-256 is not the one in the manifest/],
    ['manifest, a newer version', sub { reseal("$_[0]/manifest.json", sub { s/"version": 2/"version": 3/ or die }) }, qr/byte \d+ of the file: version 3: choose a whole number in \[2,2\]/],
    ['manifest, another format', sub { reseal("$_[0]/manifest.json", sub { s/dtrain checkpoint/drain checkpoint/ or die }) }, qr/format drain checkpoint: choose one of dtrain checkpoint/],
    ['manifest, no step', sub { reseal("$_[0]/manifest.json", sub { s/"step": 3,// or die }) }, qr/manifest\.json, line \d+, byte \d+ of the file: /],
    ['manifest, no list of files', sub { reseal("$_[0]/manifest.json", sub { s/"files"/"fills"/ or die }) }, qr/manifest\.json, line \d+, byte \d+ of the file: /],
    ['manifest, no recipe', sub { reseal("$_[0]/manifest.json", sub { s/"recipe"/"recite"/ or die }) }, qr/manifest\.json, line \d+, byte \d+ of the file: /],
    ['manifest, no powers', sub { reseal("$_[0]/manifest.json", sub { s/"power1"/"tower1"/ or die }) }, qr/there is no power1/],
    ['manifest, a file elsewhere', sub { reseal("$_[0]/manifest.json", sub { s/"name": "/"name": "..\// or die }) }, qr/a file has no name, size or hash/],
    ['manifest, of the other kind', sub { reseal("$_[0]/manifest.json", sub { s/"kind": "full"/"kind": "sharded"/ or s/"kind": "sharded"/"kind": "full"/ or die }) }, qr/the checkpoint does not hold /],
    ['manifest, a file not listed', sub { reseal("$_[0]/manifest.json", sub { s/\n  \{"name": "[^"]*\.safetensors"[^}]*\},// or die }) }, qr/the checkpoint does not hold /],
    ['a file missing', sub { unlink "$_[0]/$_[2]" }, qr/cannot read \S+ \(No such file/],
    ['a file that is a directory', sub { unlink "$_[0]/$_[2]"; mkdir "$_[0]/$_[2]" }, qr/is not a plain file/],
    ['a file that is a pipe', sub { unlink "$_[0]/$_[2]"; POSIX::mkfifo("$_[0]/$_[2]", 0666) }, qr/is not a plain file/],
    ['a file of another checkpoint', sub { system "cp $_[3]/" . name_of(2) . "/$_[2] $_[0]" }, qr/is damaged: its SHA-256/],
    ['a foreign file', sub { forge($_[0], $_[2], sub { my $h = '{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'; $_ = pack('Q<', length $h) . $h . "\0" x 8 }) }, qr/the checkpoint does not hold /],
    ['no safetensors', sub { forge($_[0], $_[2], sub { $_ = "PK\3\4" . 'x' x 100 }) }, qr/does not begin with a header's length/],
    ['an empty file', sub { forge($_[0], $_[2], sub { $_ = '' }) }, qr/has 0 bytes: it is cut/],
    ['a header of 2^63 bytes', sub { forge($_[0], $_[2], sub { substr($_, 0, 8) = "\0" x 7 . "\x80" }) }, qr/does not begin with a header's length/],
    ['a header beyond the file', sub { forge($_[0], $_[2], sub { substr($_, 0, 8) = pack 'Q<', length() - 7 }) }, qr/does not begin with a header's length/],
    ['a header without an end', sub { forge($_[0], $_[2], sub { header(sub { s/\}\s*$/ / }) }) }, qr/safetensors, line \d+, byte \d+ of the file: /],
    ['a tensor twice', sub { forge($_[0], $_[2], sub { header(sub { s/("\w[^"]*":\{"dtype[^}]*\})/$1,$1/ or die }) }) }, qr/does not begin where the tensor before it ends/],
    ['a tensor of another type', sub { forge($_[0], $_[2], sub { header(sub { s/"F32"/"I32"/ or die }) }) }, qr/the checkpoint does not hold |it is of another model/],
    ['a tensor of an unknown type', sub { forge($_[0], $_[2], sub { header(sub { s/"F32"/"F33"/ or die }) }) }, qr/numbers of type F33 are not known/],
    ['a tensor of another shape', sub { forge($_[0], $_[2], sub { header(sub { s/"shape":\[\d+/"shape":[7/ or die }) }) }, qr/do not fit its shape/],
    ['a tensor of a huge shape', sub { forge($_[0], $_[2], sub { header(sub { s/"shape":\[\d+/"shape":[999999999999999,999999999999999,0/ or die }) }) }, qr/do not fit its shape/],
    ['a tensor at a negative place', sub { forge($_[0], $_[2], sub { header(sub { s/"data_offsets":\[\d+/"data_offsets":[-8/ or die }) }) }, qr/data_offsets|whole numbers/],
    ['a tensor beyond the end', sub { forge($_[0], $_[2], sub { header(sub { s/,(\d+)\]\}(\}\s*)$/",".($1+4)."]}$2"/e or die }) }) }, qr/do not fit its shape/],
    ['bytes behind the last tensor', sub { forge($_[0], $_[2], sub { $_ .= 'tail' }) }, qr/4 bytes belong to no tensor/],
    (map { my ($what, $at) = @$_; ["a bit in $what", sub { change("$_[0]/$_[2]", sub { flip($at->()) }) }, $damage] }
        ['the length', sub { int rand 8 }], ['the header', sub { 8 + int rand unpack 'Q<', $_ }], ['the first number', sub { 8 + unpack('Q<', $_) + int rand 4 }],
        ['the data', sub { my $n = 8 + unpack 'Q<', $_; $n + int rand length($_) - $n }], ['the last byte', sub { length($_) - 1 }]),
    (map { my ($what, $to) = @$_; ["cut $what", sub { change("$_[0]/$_[2]", sub { $_ = substr $_, 0, $to->() }) }, qr/$damage|has \d bytes: it is cut/] }
        ['to nothing', sub { 0 }], ['in the length', sub { 7 }], ['behind the length', sub { 8 }], ['in the header', sub { 100 }], ['in the data', sub { length() / 2 }], ['by a byte', sub { length() - 1 }]),
    ['a byte more', sub { change("$_[0]/$_[2]", sub { $_ .= "\0" }) }, $damage],
);
for my $case (some($short ? 8 : 24, @damages)) {
    my ($what, $how, $says) = @$case;
    my $source = ($ground, $full)[rand 2];
    damaged("$shard{$source}, $what", $source, sub { $how->(@_, $shard{$source}, $source) }, $says);
}
damaged('two files swapped', $ground, sub { rename "$_[0]/shard-000.safetensors", "$_[0]/x"; rename "$_[0]/shard-001.safetensors", "$_[0]/shard-000.safetensors"; rename "$_[0]/x", "$_[0]/shard-001.safetensors" },
    qr/is damaged/);
damaged('an empty directory', $ground, sub { forget($_[0]); mkdir $_[0] }, qr/holds no checkpoint/);
damaged('a plain file', $ground, sub { forget($_[0]); spew($_[0], '') }, qr/holds no checkpoint/);

# A newer one that cannot be read counts for nothing when old ones are taken away.
SKIP: {
    skip 'thread ranks cannot die alone', 2 if $only_threads;
    my $dir = fresh();
    train('little', "--checkpoint $dir --checkpoint-every 1 --keep 0 --ranks 1");
    keep_only($dir, 1, 4);
    unlink "$dir/" . name_of(4) . '/manifest.json';
    my $last = operations('--checkpoint-every 2 --keep 1 --ranks 1', 0, $dir) - 34; # in the save of step 4
    my $r = train('little', "--checkpoint $dir --checkpoint-every 2 --keep 1 --ranks 1", "DT_FAULT=fail:$last");
    keep_only($dir, grep { !flaw("$dir/" . name_of($_)) } steps_in($dir));
    is(join(' ', steps_in($dir)), '2', 'the one before a damaged one stays while there is no newer one') or diag($r->{err});
    is(train('little', "--checkpoint $dir --ranks 1")->{hash}, $want{little}, '  and is enough');
}

# ---- what a checkpoint must agree with ----

sub refused {
    my ($what, $options, $status, $says, $name) = @_;
    my $r = train($name || 'little', $options);
    my @said = grep { !/^dtrain: rank \d+ (\(pid \d+\) )?ended with status/ } split /\n/, $r->{err};
    ok($r->{status} == $status && @said && $said[-1] =~ $says && !@{$r->{steps}}, "refused: $what") or diag("status $r->{status}\n$r->{err}");
}
{
    my $dir = copy_of($ground);
    reseal("$dir/" . name_of(3) . '/manifest.json', sub { s/"recipe": \{\n/"data_parallel": 2,\n "recipe": {\n  "wire": "fp32",\n/ or die });
    is(train('little', "--checkpoint $dir --ranks 1")->{hash}, $want{little}, 'members of a manifest that are gone do not matter');
}
for my $case (some(6, ['--seed 2', 'seed 1', 2], ['--learning-rate 0.01', 'learning-rate', '0.01'], ['--batch 16', 'batch 8', 16], ['--beta2 0.98', 'beta2', '0.98'],
    ['--steps 5', 'steps 4', 5], ['--warmup 1', 'warmup 2', 1], ['--optimizer adam', 'optimizer adamw', 'adam'], ['--data-shards 4', 'data-shards 8', 4], ['--dropout 0.5', 'dropout 0', '0.5'],
    ['--accumulation each', 'accumulation shard', 'each'], ['--weight-decay 0.5', 'weight-decay', '0.5'], ['--clip 2', 'clip 1', 2], ['--ema 0.5', 'ema', '0.5'], ['--schedule linear', 'schedule', 'linear'])) {
    my ($options, $was, $is) = @$case;
    refused($options, "--checkpoint $ground --ranks 1 $options", 2, qr/step-000000003 was made with --$was.*, this run has \Q$is\E: the recipe decides the bits, give the same, or another --checkpoint and --weights \S+ to begin with its weights/);
}
refused($_, "--checkpoint $ground --ranks 2$kind $_", 2, qr/step-000000003 (is of another model: .*|was made with --\S+ \S+, this run has .*)$/) for some(2, '--width 64', '--layers 2', '--model llama-nano --heads 4', '--vocabulary 300', '--experts 4');
refused('other data', "--checkpoint $ground --ranks 1 --data " . corpus(20001), 2, qr/is of a run with other data: give the same/);
refused('--resume never', "--checkpoint $ground --ranks 2$kind --resume never", 2, qr/holds checkpoints, and --resume is never/);
refused('--resume only', "--checkpoint $tmp/nowhere --ranks 2$kind --resume only", 2, qr/holds no checkpoint to resume from/);
refused('--resume perhaps', "--checkpoint $tmp/nowhere --resume perhaps", 2, qr/--resume perhaps: choose one of auto,never,only/);
refused($_->[0], "$_->[0] --ranks 1", 2, $_->[1]) for (
    ['--checkpoint-every 2', qr/no directory for checkpoints: name one with --checkpoint DIR/],
    ['--checkpoint=', qr/--checkpoint/],
    ["--checkpoint $tmp/x --checkpoint-every -2", qr/--checkpoint-every/],
    ["--checkpoint $tmp/x --checkpoint-every often", qr/checkpoint-every/],
    ["--checkpoint $tmp/x --keep -1", qr/--keep/],
    ["--checkpoint $tmp/x --deadline 0", qr/--deadline/],
    ["--checkpoint $tmp/x --mtbf 0", qr/--mtbf/],
    ["--checkpoint $tmp/x --mirror $tmp/y --mirror-command cp", qr/unknown option --mirror-command: did you mean --mirror/],
    ["--mirror $tmp/y", qr/no directory for checkpoints/],
    ['--checkpoint-async', qr/no directory for checkpoints/],
    ['--resume-step 7', qr/no directory for checkpoints/],
    ["--checkpoint $tmp/x --checkpoint-async --checkpoint-kind full", qr/--checkpoint-async is for --checkpoint-kind sharded/],
    ["--checkpoint $tmp/x --checkpoint-kind half", qr/--checkpoint-kind half: choose one of sharded,full/],
    ["--checkpoint $tmp/" . 'x' x 5000, qr/--checkpoint needs the name of a directory, of up to \d+ bytes/],
);

# ---- a run that is complete; a step to resume from; a place that cannot be written; a save that fails ----
{
    my $dir = fresh();
    my $r = train('little', "--checkpoint $dir --checkpoint-every 1 --keep 0 --ranks 1");
    my ($loss) = $r->{out} =~ /^ok: .* loss ([\d.]+)/m;
    my $done = train('little', "--checkpoint $dir --ranks 2$kind");
    ok(!$done->{status} && $done->{hash} eq $want{little} && !@{$done->{steps}} && $done->{out} =~ /^ok: 4 steps, loss \Q$loss\E /m, 'a run that is complete gives its loss and its hash');
    my $from = train('little', "--checkpoint $dir --ranks 2$kind --resume-step 2");
    ok($from->{hash} eq $want{little} && $from->{steps}[0] == 3, '--resume-step 2') or diag($from->{err});
    refused('--resume-step 9', "--checkpoint $dir --ranks 1 --resume-step 9", 2, qr/holds no intact checkpoint of step 9: choose another --resume-step/);
    refused('a place without room', "--checkpoint /proc/none --ranks 1", 1, qr/cannot make the directory \/proc\/none/);
    SKIP: {
        my $small = "$tmp/small";
        mkdir $small;
        skip 'no file system of one\'s own here', 2 if system "mount -t tmpfs -o size=100k none $small 2>/dev/null";
        refused('a file system too small for a checkpoint', "--checkpoint $small --ranks 1", 1, qr/small has 0.1 MB free, a checkpoint takes [\d.]+ MB/);
        system "mount -o remount,ro $small";
        refused('a read-only file system', "--checkpoint $small/x --ranks 1", 1, qr/Read-only file system/);
        system "umount $small";
    }
    my $place = fresh();
    $r = train('little', "--checkpoint $place --checkpoint-every 2 --ranks 1", 'DT_FAULT=full:30');
    ok($r->{status} == 1 && $r->{err} =~ /Step \d is not saved; (no checkpoint is left|steps up to \d are saved) in \Q$place\E$/m && !(grep { /\.tmp$/ } glob "$place/*"), 'a save that fails says what is left, and leaves nothing behind') or diag($r->{err});
}

spew("$tmp/plain", '');
refused('a plain file for a directory', "--checkpoint $tmp/plain --ranks 2$kind", 1, qr{plain/.* \(Not a directory\)});
refused('where no directory can be', "--checkpoint $tmp/plain/x --ranks 1", 1, qr/plain\/x.*\(Not a directory\)/);

# ---- retention, running again ----

for my $case ([1, '4'], [2, '4 3'], [0, '4 3 2 1']) {
    my $dir = fresh();
    my $options = "--checkpoint $dir --checkpoint-every 1 --keep $case->[0] --ranks 2 --zero 3$kind";
    is(train('little', $options)->{hash}, $want{little}, "--keep $case->[0]");
    is(join(' ', steps_in($dir)), $case->[1], '  so many stay');
    my $r = train('little', $options . ' --resume only');
    is("$r->{status} $r->{hash} @{$r->{steps}}", "0 $want{little} ", 'a run that is complete: no step is done, the same hash') or diag($r->{err});
    forget($dir);
}
{
    my ($dir, $constant) = (fresh(), '--schedule constant');
    my $longer = train('little', "$constant --steps 7 --ranks 1")->{hash};
    train('little', "$constant --checkpoint $dir --ranks 2$kind");
    my $r = train('little', "$constant --steps 7 --checkpoint $dir --checkpoint-kind full --ranks 3$kind");
    is("$r->{hash} @{$r->{steps}}", "$longer 5 6 7", 'two runs, one behind the other: as one run of all steps');
    refused('fewer steps than a checkpoint has', "$constant --steps 5 --checkpoint $dir --ranks 1", 2, qr/is of step 7, this run ends after 5: raise --steps/);
    forget($dir);
}
{
    my ($dir, $wsd) = (fresh(), '--schedule wsd --decay 2'); # of 4 steps, the first two are stable; of 7, the first five
    my $longer = train('little', "$wsd --steps 7 --ranks 1")->{hash};
    train('little', "$wsd --checkpoint $dir --checkpoint-every 1 --keep 0 --ranks 2$kind");
    refused('other steps when the decay has begun', "$wsd --steps 7 --checkpoint $dir --ranks 1", 2, qr/was made with --steps 4, this run has 7.*\(--resume-step, up to step 2\)/);
    keep_only($dir, 1, 2);
    my $r = train('little', "$wsd --steps 7 --checkpoint $dir --ranks 3$kind");
    is("$r->{hash} @{$r->{steps}}", "$longer 3 4 5 6 7", 'wsd extends from its stable phase: as one run of all steps') or diag($r->{err});
    forget($dir);
}
{
    my $dir = copy_of($ground);
    keep_only($dir, 2);
    my $first = slurp("$tmp/metrics");
    spew("$tmp/kept", "{\"version\": \"first\"}\n");
    train('little', "--checkpoint $dir --ranks 1 --metrics $tmp/kept");
    like(slurp("$tmp/kept"), qr/^\{"version": "first"\}\n\{"version.*\n\{"step":3,.*\n\{"step":4,.*\n\z/, 'metrics of a run that was resumed stand behind those that are there');
    train('little', "--ranks 1 --metrics $tmp/kept");
    like(slurp("$tmp/kept"), qr/^\{"version": "\d.*\n\{"step":1,/, 'of one that begins anew, alone');
    forget($dir);
}

# ---- how often ----

{
    my $dir = fresh();
    my $command = command_of('little', "--checkpoint $dir --checkpoint-every auto --mtbf 1e-9 --keep 0 --ranks 2$kind");
    $command =~ s/ --quiet//;
    my (undef, $out) = run(100, $command);
    like($out, qr/^checkpoint every 0\.0 s: sqrt\(2 x [\d.]+ s that a save costs x 0 s between failures\) is 0\.0 s \(Young 1974\), at most 30 minutes are lost$/m, '--checkpoint-every auto says why');
    is(join(' ', steps_in($dir)), '4 3 2 1', '  and saves as often');
    $command =~ s/1e-9/1e9/;
    forget($dir);
    (undef, $out) = run(100, $command);
    like($out, qr/^checkpoint every 1800\.0 s: /m, '  at least every half hour');
    is(join(' ', steps_in($dir)), '4 1', '  the first one tells what one costs');
    forget($dir);
    run(100, "$command --checkpoint-async");
    is(join(' ', steps_in($dir)), '4 1', '  one behind training as well');
    forget($dir);
    $command =~ s/$/ --deadline 1e-6/;
    (undef, $out) = run(100, $command);
    like($out, qr/^a save takes [\d.]+ s, but between a request to stop and the end are 0\.0 s \(--deadline\): it will not fit/m, 'a deadline that is too short is said');
    forget($dir);
}

# ---- two jobs in one place ----

{
    my $dir = fresh();
    my $pid = start('little', "--steps 1000000 --schedule constant --checkpoint $dir --checkpoint-every 2 --ranks 1");
    for (1 .. 3000) { last if steps_in($dir); sleep 0.01 }
    my ($host, $process) = slurp("$dir/in-use") =~ /^(\S+) (\d+) \S*\n\z/;
    my ($status, undef, $err) = run(60, command_of('little', "--steps 4 --checkpoint $dir"));
    ok($status == 1 && $err =~ /$dir is in use by process $process on \Q$host\E: end that job, or name another directory$/m,
        'a second job in the same place is told whose it is') or diag("status $status\n$err");
    utime time - 4000, time - 4000, "$dir/in-use";
    ($status, undef, $err) = run(60, command_of('little', "--steps 4 --checkpoint $dir.b --mirror $dir"));
    like($err, qr/$dir is in use by process $process/, '  at any age, and for a mirror as well');
    ok(!-e "$dir.b/in-use" && -e "$dir/in-use", '  which takes away its own mark only');
    kill 'KILL', $pid;
    ended($pid);
    ok(-e "$dir/in-use", 'a job that is killed leaves its mark');
    ($status, undef, $err) = run(60, command_of('little', "--steps 1000000 --schedule constant --checkpoint $dir --deadline 0 --stop-on LossNotDecreasing --rules --resume never"));
    unlike($err, qr/in use/, '  which the next job takes over');
    forget($_) for $dir, "$dir.b";
    mkdir $dir;
    spew("$dir/in-use", "elsewhere 1\n");
    is((run(60, command_of('little', "--checkpoint $dir")))[0], 0, 'a mark without a lock is taken over, of another host as well');
    ok(!-e "$dir/in-use", '  and a job that ends takes its own away');
    mkdir "$dir/in-use";
    ($status, undef, $err) = run(60, command_of('little', "--checkpoint $dir --resume auto"));
    ok($status == 1 && $err =~ m{cannot open $dir/in-use \(Is a directory\): }, 'a mark that cannot be opened is an error') or diag("status $status\n$err");
    forget($dir);
    my @both = map { start('little', "--steps 1000000 --schedule constant --checkpoint $dir --ranks 1") } 1, 2;
    my $first = waitpid -1, 0;
    is(WEXITSTATUS($?), 1, 'of two jobs that start at the same time one is refused');
    my ($winner) = grep { $_ != $first } @both;
    is(waitpid($winner, WNOHANG), 0, '  and the other one trains');
    kill 'KILL', $winner;
    ended($winner);
    forget($dir);
}

# ---- a rank that hangs while the job is asked to stop ----

SKIP: {
    skip 'a thread rank cannot be stopped alone', 1 if $only_threads;
    my $dir = fresh();
    my $pid = start('little', "--steps 1000000 --schedule constant --checkpoint $dir --checkpoint-every 2 --ranks 3 --deadline " . (sanitized() ? 20 : 4) . ' --timeout 60');
    for (1 .. 3000) { last if steps_in($dir); sleep 0.01 }
    my @ranks = Dt::ranks_of($pid);
    kill 'STOP', $ranks[1];
    kill 'TERM', $pid;
    my $status = ended($pid, @ranks);
    my $err = slurp("$tmp/err");
    ok($status eq '143' && $err =~ /^dtrain: rank 1 \(pid $ranks[1]\) has not stopped, \d in all; the newest checkpoint is of step \d+$/m,
        '--deadline ends the job and names the rank that hangs and the checkpoint that is left') or diag("status $status\n$err");
    forget($dir);
}

# ---- mirrors ----

{
    my ($dir, $mirror) = (fresh(), fresh());
    my $options = "--checkpoint $dir --mirror $mirror --checkpoint-every 1 --keep 2 --ranks 2$kind";
    is(train('little', $options)->{hash}, $want{little}, '--mirror');
    is((steps_in($mirror))[0], 4, '  has the newest') or diag(`ls $mirror`);
    is(flaws($mirror), '', '  whole');
    cmp_ok(scalar(steps_in($mirror)), '<=', 2, '  and no more than --keep');
    is(join(' ', (steps_in($dir))[0, 1]), '4 3', '  beside those of the run');
    forget($dir);
    my $r = train('little', $options);
    is("$r->{hash} @{$r->{steps}} $r->{status}", "$want{little}  0", 'where there is none, it is restored from the mirror');
    is(flaws($dir) . join(' ', steps_in($dir)), join(' ', steps_in($mirror)), '  whole');
    forget($_) for $dir, $mirror;

    $mirror = copy_of($ground);
    change("$mirror/" . name_of(3) . '/shard-000.safetensors', sub { flip(200) });
    $r = train('little', $options =~ s/--mirror \S+/--mirror $mirror/r);
    is("$r->{hash} @{$r->{steps}}", "$want{little} 3 4", 'from a damaged one the one before');
    like($r->{err}, qr/(?:$damage).*trying the checkpoint before it/, '  which is said');
    forget($dir);
    forget("$mirror/" . name_of($_)) for 1, 2, 4;
    change("$mirror/" . name_of(3) . '/shard-000.safetensors', sub { flip(200) }) if !flaw("$mirror/" . name_of(3));
    refused('a mirror with nothing whole', "--checkpoint $dir --mirror $mirror --ranks 2$kind", 1, qr/holds no intact checkpoint \(1 are damaged\)/);
    forget($_) for $dir, $mirror;

    $mirror = fresh();
    my $copy = "mkdir -p \$DT_FROM \$DT_TO && cp -r \$DT_FROM/. \$DT_TO";
    $options = "--checkpoint $dir --mirror '$mirror $copy' --checkpoint-every 2 --keep 0 --ranks 2$kind";
    is(train('little', $options)->{hash}, $want{little}, "--mirror with the command '$copy'");
    is(flaws($mirror) . join(' ', steps_in($mirror)), '4 2', '  has all');
    forget($dir);
    forget("$mirror/" . name_of(4));
    $r = train('little', $options);
    is("$r->{hash} @{$r->{steps}}", "$want{little} 3 4", '  and gives them back');
    forget($_) for $dir, $mirror;

    $mirror = fresh();
    $r = train('little', "--checkpoint $dir --mirror '$mirror [ \$DT_TO != $mirror ]' --checkpoint-every 2 --ranks 1");
    is("$r->{status} $r->{hash}", "0 $want{little}", 'a command that fails does not end training');
    like($r->{err}, qr/^dtrain: step 4 was not mirrored: the mirror's command ended with status 1: run it by hand with DT_FROM=\S+ DT_TO=\S+ to see why; training continues$/m, '  but is said');
    forget($dir);
    $r = train('little', "--checkpoint $dir --mirror '$mirror false \$DT_TO' --ranks 2$kind");
    ok($r->{status} == 1 && $r->{err} =~ /the mirror's command ended with status 1: run it by hand/, 'one that cannot bring back what may be there does') or diag($r->{err});
    forget($dir);
    $r = train('little', "--checkpoint $dir --mirror $tmp/plain/x --checkpoint-every 2 --ranks 1");
    ok($r->{status} == 1 || $r->{err} =~ /step 4 was not mirrored: cannot make the directory/, 'a mirror that cannot be is said') or diag($r->{err});
    forget($dir);

    forget($_) for $dir, $mirror;
}

# ---- fuzzing the readers ----

fuzz('checkpoint', full() ? 600 : 4);
done_testing();
