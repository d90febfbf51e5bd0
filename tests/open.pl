#!/usr/bin/env perl
# Makes two files of dtrain.h, for tests that reach its private functions: FOLDER/dtrain.c, the implementation whose
# private functions and variables other files can link to, and FOLDER/dtrain.h, which declares them. So the
# implementation is compiled once for all tests. Usage: open.pl FOLDER, beside dtrain.h.
use strict;
use warnings;

my ($folder) = @ARGV;
open my $in, '<', 'dtrain.h' or die "dtrain.h: $!\n";
my @line = <$in>;
my ($code, $declarations) = ("#define DTRAIN_IMPLEMENTATION\n#define DT_HEADER \"dtrain.c\"\n#define DT_SOURCE_PATH \"dtrain.h\"\n", '');
my ($private, $kernels) = (0, 0); # inside of the implementation, of the text that is included once per instruction set
for (my $i = 0; $i < @line; $i++) {
    my $text = $line[$i];
    $private = 1 if $text =~ /^#define DTRAIN_IMPLEMENTED/;
    $kernels = 1 if $text eq "#ifdef DT__ISA\n";
    $text .= $line[++$i] while $text =~ /\\$/; # a macro
    if (!$private || $kernels || $text !~ /^(static(?! inline)|DT_API|DT__[A-Z_]+\(|const int DT__LINK)/ || $text =~ /^static (?:const|union|struct|enum)?[^(]*(?:=|\{)/) {
        $code .= $text;
        $declarations .= $text unless $kernels && $text !~ /^#define dt__v_\w+\(/ || $text =~ /^#include DT_HEADER/;
        $kernels = 0 if $text =~ /^#endif .* end of the kernel text/;
        next;
    }
    # A definition: up to a closing brace in the first column, or to the end of its line.
    $text .= $line[++$i] while $text !~ /(?:;|\}|^\{|^DT__.*\))\s*(?:\/\*.*)?\n\z/m || $text =~ /^\{\n(?!.*^\})/ms;
    $code .= $text =~ s/^static //r;
    my ($head) = $text =~ /^static (.*?)(?:;|\s*\{)/s or next;
    $declarations .= "extern $head;\n";
}
mkdir $folder;
$declarations =~ s/^__asm__\("\.pushsection .*?\);\n//ms; # one text of the header, that of the implementation
for (['dtrain.c', $code], ['dtrain.h', $declarations]) {
    open my $out, '>', "$folder/$_->[0]" or die "$folder/$_->[0]: $!\n";
    print $out $_->[1];
}
