#!/usr/bin/env bash
# Builds, runs, tests and measures dtrain.h. `./build.sh help` lists the commands.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
started_in=$PWD
cd "$root"

build=build
jargon=/usr/share/doc/jargon-text/jargon.txt.gz
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"

# The recipe of the main job (./build.sh run), and how its 2 ranks share the work. The README has its hash.
recipe=(--model micro --sequence 128 --batch 8 --data-shards 4 --steps 6000 --learning-rate 3e-3 --warmup 200)
layout=(--ranks 2 --threads 1 --eval-every 1000 --sample-every 3000 --sample-length 400 --checkpoint-every 1000)
check=(--steps 10 --warmup 5 --eval-every 0 --sample-length 0 --quiet)

say() { printf '%s\n' "$*"; }
die() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }
die_usage() { printf 'build.sh: %s\n' "$*" >&2; exit 2; }
have() { command -v "$1" >/dev/null 2>&1; }

usage() {
    cat <<'TEXT'
Usage: ./build.sh [COMMAND]

  (none)        detect the compiler and build the examples
  run [OPTION]  the main job: train a byte-level GPT on the Jargon File with 2 local ranks, print samples and the
                SHA-256, and show that 1 rank gives the same. --data FILE trains on your text; every option of the
                trainer passes through: run --data FILE --steps 50 --ranks 1; run --help lists the common ones,
                run --help all lists every one. Checkpoints stay in build/runs; the same command resumes from them
  generate [CHECKPOINT] --prompt TEXT
                continue a text with what was trained: the last run, a checkpoint, or a directory of Hugging Face (--help
                lists the options)
  eval [CHECKPOINT] --data FILE
                its loss, perplexity and bits per byte on a text
  checkpoint show DIR | verify DIR | convert DIR TO sharded|full|bf16 | diff DIR DIR
                what is in a checkpoint, whether it is whole, another kind of it, how two differ
  plan --FIELD VALUE ..
                from a model, hours, money and a deadline to a strategy, instances, warnings and a command line; plan
                --cases FILE [--check] answers many at once; plan --help lists the fields
  drill [--domain NAME] [--count N] [--export FILE]
                questions as an exam asks them, with the reason for each answer: written by hand, or drawn and answered by
                the planner; what you know returns later (build/drill.state); drill --help lists the options
  report RUN.jsonl [MORE.jsonl ..] [-o FILE.html]
                from files of run --metrics FILE: was the run healthy, where did its time go, what to do next; one page
                for a browser. --timeline FILE and --simulated FILE add traces; --tensorboard DIR writes event files;
                --follow keeps all up to date while the run goes on
  simulate [RECIPE AND LAYOUT] --nodes N --instance TYPE
                how long a step takes on a cluster, and why: MFU, messages, bubble, memory, money; --search tries layouts,
                --trace writes a timeline, --calibrate FILE measures this machine; simulate --help lists the options
  draw [NAME ..] -o DIR
                draw the pictures of the course (examples/pictures) from plans and formulas, or those named
  tokenizer TEXT ... -o DIR
                learn a vocabulary from texts and keep DIR/tokenizer.json, for run --tokenizer DIR; --help lists the
                options, among them token files of a large text
  test [--full] install what is missing (as root) and pass every test that this machine can run
  lab N [FILE] [--seed N] [--json]
                compile your solution of a lab (default: the lab's stub), test it, print a score; without N: list the
                labs, which are in examples/labs. The seed draws the inputs; --json prints one object, for an instructor
  exercise N    the solution of the exercise of program N of examples, as a change of the program, and what it prints
  staircase [N] from a serial training loop to 3-D parallel in nine small programs, which are in examples/staircase: what
                step N changes of the step before, and how to run it; without N: list the steps
  notebooks [open | solutions | grade FILE ... | run [FILE ...]]
                install what the C notebooks need; open them in JupyterLab; open their solutions with outputs; grade the
                learner's cells of a file in the notebook as it is stored; run the solutions and store them with outputs
  bench [NAME]  benchmarks, or the one named: attention, comm (collectives by size, beside Open MPI's), compile (seconds
                to compile, beside an older header), compile-passes (what passes and 16 bits do to a step), gemm, load
                (training beside two busy loops), modes, ..: ratios against OpenBLAS, Open MPI and PyTorch where they
                are installed
  doctor        what was found, what is missing, and the line that installs it
  cuda-text     print the code for GPUs that DT_CUDA gives to NVRTC
  gpu-check [--stand-in] [--part check|sanitize|speed] [-o FILE.json]
                on a machine with a GPU: are all bits the CPU's, does compute-sanitizer find anything, how fast is it, beside
                PyTorch where it is installed; a table and a JSON file. --stand-in runs the script without a GPU
  lines         lines and bytes of dtrain.h per section, its public functions, and seconds to compile it
  clean         remove build/
  help          this text

Environment: CC, CXX, CFLAGS; DT_SANITIZE=address, undefined, thread (a comma list) for test;
DT_ISA=portable, avx2, avx512, neon forces an instruction set; JOBS, the compilations at the same time (default: cores)
and the tests (default: 4).
TEXT
}

# ---- what is here and what is missing --------------------------------------------------------------

find_cc() {
    local c
    for c in ${CC:-cc gcc clang}; do
        have "$c" && say "$c" && return
    done
    return 1
}

has_libfabric() { [ -e /usr/include/rdma/fabric.h ] || ! have dpkg; }
has_libc_headers() { [ -e /usr/include/stdlib.h ] || ! have dpkg; }

# Debian packages that are missing, of those that a command needs: compiler, test, data, arm, bench.
missing_packages() {
    local need
    for need in "$@"; do
        case $need in
        compiler)
            find_cc >/dev/null || [ -n "${CC:-}" ] || say gcc
            has_libc_headers || say libc6-dev ;;
        test)
            have make || say make
            have patch || say patch
            have mpicc || say libopenmpi-dev openmpi-bin
            has_libfabric || say libfabric-dev libfabric-bin
            { have prove && perl -MTest::More -e 1 2>/dev/null; } || say perl ;;
        data) [ -e "$jargon" ] || say jargon-text ;;
        notebooks)
            have gnuplot || say gnuplot-nox
            python3 -c 'import venv, ensurepip' 2>/dev/null || say python3-venv ;;
        arm) # tests/test_isa.t runs programs for it in an emulator
            have qemu-aarch64 || say qemu-user
            have aarch64-linux-gnu-gcc || say gcc-aarch64-linux-gnu
            [ -e /usr/aarch64-linux-gnu/lib/libc.a ] || say libc6-dev-arm64-cross ;;
        bench)
            { compgen -G '/usr/include/*/cblas.h' && compgen -G '/usr/lib/*/libopenblas.so'; } >/dev/null || has_openblas || say libopenblas-dev
            have mpicc || say libopenmpi-dev openmpi-bin
            has_libfabric || say libfabric-dev ;;
        esac
    done
}

# Installs what is missing for these needs, or says how; then goes on, and what cannot be done without is seen later.
install_missing() {
    local packages
    packages=$(missing_packages "$@" | sort -u | tr '\n' ' ')
    packages=${packages% }
    [ -n "$packages" ] || return 0
    if [ "$(id -u)" != 0 ] || ! have apt-get; then
        say "missing: $packages; install with: sudo apt-get install $packages"
        return 0
    fi
    say "installing $packages"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    { apt-get install -qq -y --no-install-recommends $packages ||
        { apt-get update -qq && apt-get install -qq -y --no-install-recommends $packages; }; } >/dev/null 2>&1 ||
        say "could not install $packages: try apt-get update && apt-get install $packages"
}

choose_compiler() {
    local found
    found=$(find_cc) || die "no C compiler${CC:+ '$CC'}: install gcc or clang (apt-get install gcc libc6-dev)${CC:+, or unset CC}"
    export CC=$found
}

# ---- compiling ---------------------------------------------------------------------------------------

# compile SOURCE OUTPUT [FLAGS]: unless OUTPUT is newer than all it is made of and was made by the same command.
compile() {
    local source=$1 output=$2 libraries="-lm -lpthread"
    shift 2
    case " $* " in *" -c "*) libraries= ;; esac
    local command="$CC -std=gnu11 -O2 ${CFLAGS:-} $source -o $output $* -I. -Itests $libraries"
    if [ -e "$output" ] && [ "$(cat "$output.command" 2>/dev/null)" = "$command" ] &&
        ! [ "$source" -nt "$output" ] && ! [ dtrain.h -nt "$output" ] && ! [ tests/tap.h -nt "$output" ] &&
        { [[ $source = $build/* ]] || newer "$output" examples/*.h examples/tools/*.h; }; then
        return 0
    fi
    mkdir -p "$(dirname "$output")"
    case $source in $build/*) say "cc dtrain.h, once" ;; *) say "${compile_count:-cc} $source" ;; esac
    $command || { say "build.sh: this failed: $command" >&2; return 1; }
    say "$command" >"$output.command"
}

# Runs its arguments, each a call of compile as one string, ${JOBS} at a time, and counts them. Fails when one of them does.
compile_all() {
    local call n=0
    for call in "$@"; do printf '%s\0' "$((++n)) of $#" "$call"; done |
        xargs -0 -r -n 2 -P "${JOBS:-$(nproc 2>/dev/null || echo 2)}" "$root/build.sh" compile
}

# ---- one implementation for many programs ----
# The header takes seconds to compile, its declarations none: an implementation is compiled once, and programs are linked
# to it. implementation NAME prints the call of compile that makes it; uses NAME, what the compiler needs to use it:
#   build     as a user compiles it with all that examples switch on
#   library   the same for tests: files fail where DT_FAULT says
#   open      its private functions are declared to tests, which can replace its allocator and its disk
#   engines   open, with the engines for MPI and libfabric that can be had here
#   checked   open, under the sanitizers that fuzz targets need
#   device    open, with the code for GPUs
#   gpu       the same for tests, whose graphs run on the GPU if DT_GPU says so (tests/on_gpu.h)
# open and engines are one. With DT_SANITIZE, library and open are one, because the sanitizers take a minute for each.
one_of() {
    case ${DT_SANITIZE:+sanitized-}$1 in engines | sanitized-library) say open ;; *) say "$1" ;; esac
}
implementation() {
    local name tests="-include tests/disk.h -include tests/mirror.h"
    name=$(one_of "$1")
    case $name in
    build) say "$build/dtrain.c $build/dtrain.o -c -DDT_COMPILER" ;;
    library) say "$build/dtrain.c $test_build/library.o -c $train_cflags -DDT_COMPILER $tests" ;;
    open | engines) say "$build/open/dtrain.c $test_build/$name.o -c $test_cflags $(switches "$name" | xargs) $tests -include tests/memory.h" ;;
    checked) say "$build/open/dtrain.c $test_build/checked.o -c -g $checked_cflags -include tests/memory.h" ;;
    device) say "$build/open/dtrain.c $build/gpu/dtrain.o -c -DDT_CUDA -DDT_COMPILER=" ;;
    gpu) say "$build/open/dtrain.c $test_build/gpu.o -c $gpu_cflags -include tests/on_gpu.h" ;;
    esac
}
uses() {
    local name
    name=$(one_of "$1")
    case $1 in
    build) say "-DDTRAIN_IMPLEMENTED $build/dtrain.o -ldl" ;; # of this folder, whose name may have blanks
    library) say "-DDTRAIN_IMPLEMENTED $root/$test_build/$name.o $train_cflags -ldl" ;;
    open | engines) say "-I$root/$build/open $root/$test_build/$name.o $test_cflags $(switches "$name" | xargs) -ldl" ;;
    checked) say "-I$root/$build/open -g $checked_cflags $root/$test_build/checked.o" ;;
    device) say "-I$root/$build/open $root/$build/gpu/dtrain.o -DDT_CUDA -DDT_COMPILER= -ldl" ;;
    gpu) say "-I$root/$build/open $root/$test_build/gpu.o $gpu_cflags -ldl" ;;
    esac
}
# What open or engines has: the meeting of ranks as well where no engine needs it.
switches() {
    say -DDT__MEET -DDT_COMPILER= # as programs define them
    [ "${DT_SANITIZE:+$1}" = open ] || engine_flags
}
engine_flags() {
    ! have mpicc || say "-DDT_MPI $(mpi_flags)"
    ! [ -e /usr/include/rdma/fabric.h ] || say "-DDT_OFI -lfabric"
}
implementation_source() {
    mkdir -p $build
    [ -e $build/dtrain.c ] || printf '#define DTRAIN_IMPLEMENTATION\n#include "dtrain.h"\n' >$build/dtrain.c
    [ -z "${test_build:-}" ] || newer $build/open/dtrain.h dtrain.h tests/open.pl || perl tests/open.pl $build/open
}

# For tests/Dt.pm: makes an implementation, and prints what the compiler needs to use it.
command_object() {
    choose_compiler
    test_flags
    implementation_source
    # shellcheck disable=SC2046
    compile $(implementation "$1") >&2
    uses "$1"
}

# Compiles one example; the header before it, unless that is done.
compile_example() {
    implementation_source
    # shellcheck disable=SC2046
    compile $(implementation build)
    # shellcheck disable=SC2046
    compile "$1" "$build/examples/$(basename "$1" .c)" $(uses build)
}

# The calls of compile for sources that match a pattern: "SOURCE build/.../NAME FLAGS".
calls_for() {
    local folder=$1 flags=$2 source
    shift 2
    for source in "$@"; do
        [ -e "$source" ] && say "$source $folder/$(basename "$source" .c) $flags"
    done
    return 0
}

bench_calls() {
    local source name
    for source in tests/bench_*.c; do
        [ -e "$source" ] || continue
        name=$build/bench/$(basename "$source" .c)
        case $source in
        *bench_mpi*) have mpicc && say "$source $name $(mpi_flags)" ;;
        *comm*)
            say "$source $name"
            have mpicc && has_libfabric && say "$source ${name}_nodes -DDT_MPI -DDT_OFI -lfabric $(mpi_flags)" ;;
        *link*) have mpicc && has_libfabric && say "$source $name -DDT_MPI -DDT_OFI -lfabric $(mpi_flags)" ;;
        *) if grep -q cblas.h "$source"; then
               has_openblas && say "$source $name -lopenblas"
           else
               say "$source $name"
           fi ;;
        esac
    done
    return 0
}

has_sanitizers() { printf 'int main(void) { return 0; }\n' | $CC -x c - -o /dev/null $checked_cflags >/dev/null 2>&1; }
has_openblas() { # its header and its library
    printf '#include <cblas.h>\nint main(void) { return cblas_ddot(0, 0, 1, 0, 1) > 0; }\n' |
        ${CC:-cc} -x c - -o /dev/null -lopenblas >/dev/null 2>&1
}
# What mpicc adds, on one line, with mpi.h as a system header, whose warnings are not ours.
mpi_flags() { { mpicc --showme:compile; mpicc --showme:link; } 2>/dev/null | tr '\n' ' ' | sed 's/\(^\| \)-I/\1-isystem /g'; }

# ---- commands ------------------------------------------------------------------------------------------

command_build() {
    choose_compiler
    local calls
    implementation_source
    # shellcheck disable=SC2046
    compile $(implementation build)
    mapfile -t calls < <(calls_for $build/examples "$(uses build)" examples/[0-9]*.c)
    compile_all "${calls[@]}"
    say "built ${#calls[@]} examples in $build/examples in $SECONDS s"
    say_next
}

# What to do next: command and purpose; a command that this script lacks is left out.
say_next() {
    say "next:"
    printf '  %-28s %s\n' "./build.sh run" "train a GPT on a real text, on 2 ranks, and compare its hash with 1 rank" \
        "less examples/README.md" "the course: twelve chapters; its programs are built"
    ! declare -F command_lab >/dev/null || printf '  %-28s %s\n' "./build.sh lab 1" "the labs: write a mechanism, and let it be graded"
    ! declare -F command_notebooks >/dev/null || printf '  %-28s %s\n' "./build.sh notebooks" "the course as notebooks: predict, run, explain"
    printf '  %-28s %s\n' "./build.sh test" "every test that this machine can run"
}

# The Jargon File as plain text, or generated text; prints the name.
main_data() {
    mkdir -p $build/data
    if [ -e "$jargon" ]; then
        gzip -dc "$jargon" >$build/data/jargon.tmp && mv $build/data/jargon.tmp $build/data/jargon.txt
        say $build/data/jargon.txt
    else
        say "without the package jargon-text: training on a generated text instead; the README's loss and hash do not apply" >&2
        $build/examples/06_train --generate $build/data/generated.txt 1700000
        say $build/data/generated.txt
    fi
}

# The SHA-256 of the short run with these options.
short_hash() { $build/examples/06_train "$@" "${check[@]}" | sed -n 's/^sha256 //p'; }

show_equal_hashes() {
    local two one
    say "the same recipe, 10 steps, on 2 ranks and on 1:"
    two=$(short_hash "$@" --ranks 2 --threads 1)
    one=$(short_hash "$@" --ranks 1 --threads 2)
    say "2 ranks  $two"
    say "1 rank   $one"
    if [ -z "$one" ] || [ "$one" != "$two" ]; then
        die "the hashes differ: please report this with the output of ./build.sh doctor"
    fi
    say "equal: the layout did not change a bit"
}

# Is there an option of this name among the arguments?
given() {
    local name=$1 argument
    shift
    for argument in "$@"; do
        case $argument in "$name" | "$name"=*) return 0 ;; esac
    done
    return 1
}

# A file named on the command line is meant where the caller is.
run_from_caller() { (cd "$started_in" && "$root/$build/examples/06_train" "$@"); }

# The value of an option among the arguments; the last one counts.
value_of() {
    local name=$1 value=
    shift
    while [ $# -gt 0 ]; do
        case $1 in "$name") value=${2:-} ;; "$name"=*) value=${1#*=} ;; esac
        shift
    done
    say "$value"
}

# Where a run is kept unless --checkpoint says it: build/runs, the name of the data, and the options of the recipe.
run_place() {
    local name options=
    name=$(value_of --data "$@")
    name=$(basename "${name:-jargon}")
    while [ $# -gt 0 ]; do
        case $1 in
        --data) [ $# -eq 1 ] || shift ;;
        --data=*) ;;
        --*)
            if grep -qx -e "${1%%=*}" $build/runs/options; then
                options+=$1
                case "$1${2:---}" in *=* | *--*--*) ;; *) options+=-$2 && shift ;; esac
            fi ;;
        esac
        shift
    done
    say "$root/$build/runs/${name%.*}$(say "$options" | sed 's/--/-/g; s/[^A-Za-z0-9.-]/_/g' | cut -c1-150)"
}

# DT_README_QUICK shortens the main job, for tests/test_readme.t.
command_run() {
    local data=() place steps status=0 needs=(compiler data) own=() quick=()
    if given --data "$@" || given --help "$@"; then needs=(compiler); fi
    install_missing "${needs[@]}"
    choose_compiler
    compile_example examples/06_train.c
    [ -z "${DT_README_QUICK:-}" ] || quick=(--steps 20 --eval-every 0 --sample-every 0 --sample-length 40 --eval-batches 1 --warmup 2)
    if given --help "$@"; then
        run_from_caller "${recipe[@]}" "${layout[@]}" "$@"
        return
    fi
    given --data "$@" || data=(--data "$root/$(main_data)")
    steps=$(value_of --steps "$@")
    case ${steps:-6000} in
    *[!0-9]* | ????????*) ;; # the trainer says what is wrong
    *)
        if ! given --warmup "$@" && [ "${steps:-6000}" -lt 2000 ]; then
            own=(--warmup $((steps / 10)))
            say "warm-up: $((steps / 10)) of $steps steps, a tenth; --warmup sets another"
        fi ;;
    esac
    mkdir -p $build/runs
    $build/examples/06_train --help all | sed -n '/^Recipe/,/^Layout/s/^  \(--[a-z0-9-]*\) .*/\1/p' >$build/runs/options
    place=$(value_of --checkpoint "$@")
    if [ -z "$place" ]; then place=$(run_place "$@"); else place=$(cd "$started_in" && realpath -m "$place"); fi
    [ "$started_in" != "$root" ] || place=${place#"$root/"}
    run_from_caller ${data[@]+"${data[@]}"} "${recipe[@]}" ${own[@]+"${own[@]}"} "${layout[@]}" "$@" --checkpoint "$place" \
        ${quick[@]+"${quick[@]}"} || status=$?
    if (cd "$started_in" && ls -d "$place"/step-* >/dev/null 2>&1); then
        (cd "$started_in" && realpath "$place") >$build/runs/last
        say "kept in $place; to continue a text with it:"
        say "./build.sh generate $(printf %q "$place") --prompt 'The '"
    fi
    [ $status -eq 0 ] || return $status
    [ ${#data[@]} -eq 0 ] || given --ranks "$@" || show_equal_hashes "${data[@]}" "${recipe[@]}"
}

# Without a checkpoint the last run's counts.
command_generate() {
    local last=
    install_missing compiler
    choose_compiler
    compile_example examples/tools/generate.c
    [ ! -e $build/runs/last ] || last=$(cat $build/runs/last)
    (cd "$started_in" && "$root/$build/examples/generate" "$@" --default "$last")
}
command_eval() { command_generate eval "$@"; }

command_checkpoint() {
    install_missing compiler
    choose_compiler
    compile_example examples/tools/checkpoint.c
    (cd "$started_in" && "$root/$build/examples/checkpoint" "$@")
}

command_draw() {
    install_missing compiler
    choose_compiler
    compile_example examples/tools/draw.c
    (cd "$started_in" && "$root/$build/examples/draw" "$@")
}

command_tokenizer() {
    install_missing compiler
    choose_compiler
    compile_example examples/tools/tokenizer.c
    (cd "$started_in" && "$root/$build/examples/tokenizer" "$@")
}

run_alone() { # NAME [OPTION ..]: a tool that is one program, which includes of dtrain.h what it needs
    local tool=$1
    shift
    install_missing compiler
    choose_compiler
    newer $build/examples/$tool dtrain.h examples/*.h examples/tools/*.[ch] ||
        { mkdir -p $build/examples && $CC -O2 -I. examples/tools/$tool.c -o $build/examples/$tool -lm -lpthread -ldl; }
    (cd "$started_in" && "$root/$build/examples/$tool" "$@")
}
command_plan() { run_alone plan "$@"; }
command_report() { run_alone report "$@"; }
command_simulate() { run_alone simulate "$@"; }
command_drill() { run_alone drill --folder "$root/examples/tools/" --state "$root/$build/drill.state" "$@"; }

# Folder and flags of the tests: the usual, or with sanitizers. The implementation that tests look into is compiled with
# less optimisation than the trainer's; with --full it has the same.
test_flags() {
    test_build=$build/tests
    test_cflags="$warnings -O1 -DDT_DEBUG"
    [ -z "${DT_FULL:-}" ] || test_cflags="$warnings"
    train_cflags="$warnings"
    gpu_cflags="-O${DT_FULL:-0} -DDT_DEBUG -DDT_CUDA -DDT_COMPILER=" # as programs define it
    checked_cflags="-O${DT_FULL:-0} -DDT_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all" # -O1 with --full
    [ -n "${DT_SANITIZE:-}" ] || return 0
    test_build=$build/tests-$(say "$DT_SANITIZE" | tr , -)
    test_cflags="$warnings -g -O1 -DDT_DEBUG -fno-omit-frame-pointer -fno-sanitize-recover=all -fsanitize=$DT_SANITIZE"
    train_cflags=$test_cflags
    export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
}

# The test programs. One compiles the implementation itself, to reach into kernels; one has a disk of its own.
test_calls() {
    local source
    for source in tests/test_*.c; do
        case $source in
        *_kernels.c) ;;
        *_interrupted.c) calls_for "$test_build" "$(uses open) -Wl,--wrap=syscall,--wrap=flock" "$source" ;;
        *) calls_for "$test_build" "$(uses open)" "$source" ;;
        esac
    done
}

command_test() {
    local calls test files objects=(open)
    [ -z "${DT_README_QUICK:-}" ] || { say "not again: this is the test of the README"; return 0; }
    case "${1:-}" in
    --full) export DT_FULL=1 ;;
    "") ;;
    *) die_usage "test takes --full alone, not '$1'" ;;
    esac
    install_missing compiler test data arm notebooks
    prepare_notebooks ipykernel nbclient || say "skipping the notebooks"
    prepare_notebooks tensorboard || say "skipping TensorBoard as a reader of event files"
    choose_compiler
    have prove || die "no prove: install perl (apt-get install perl)"
    test_flags
    export DT_TEST_BUILD=$test_build DT_TEST_CFLAGS="$test_cflags"
    implementation_source
    if [ -n "${DT_SANITIZE:-}" ]; then
        [ -z "$(engine_flags)" ] || objects+=(engines)
    else
        objects=(library open)
        ! has_sanitizers || objects=(checked "${objects[@]}")
    fi
    mapfile -t calls < <(for test in "${objects[@]}"; do implementation "$test"; done
                         calls_for "$test_build" "$test_cflags -DDT_STATIC" tests/test_kernels.c) # only what it calls
    compile_all "${calls[@]}"
    mapfile -t calls < <(calls_for "$test_build" "$(uses library)" examples/06_train.c
                         test_calls
                         ! have mpicc || calls_for "$test_build" "$(uses engines)" tests/mpi_*.c)
    compile_all "${calls[@]}"
    mapfile -t files < <(test_files)
    prove -j "${JOBS:-4}" --timer "${files[@]}" # more than cores: many wait
}

# What prove runs: those that take longest first, so that none of them is alone at the end.
test_files() {
    local long=(tests/test_{examples,nodes,api,checkpoints,notebooks,compile,readme,layouts,compiler,ofi,labs,launch,hash,isa,mirror}.t
                tests/test_{comm,plan,interrupted,random,formulas}.c)
    printf '%s\n' "${long[@]}" tests/test_*.[ct] | awk '!seen[$0]++' | sed "s#^tests/\(.*\)\.c\$#$test_build/\1#"
}

# Python's packages of these names into build/notebooks/venv, where the kernel is registered. Fails when that cannot be.
venv=$build/notebooks/venv
prepare_notebooks() {
    local package missing=()
    [ -x $venv/bin/python ] || python3 -m venv --system-site-packages $venv || return 1
    for package in "$@"; do $venv/bin/python -c "import $package" 2>/dev/null || missing+=("$package"); done
    if [ ${#missing[@]} -gt 0 ]; then
        say "installing ${missing[*]} in $venv"
        $venv/bin/python -m pip install -q --disable-pip-version-check "${missing[@]}" || return 1
    fi
    mkdir -p $venv/share/jupyter/kernels/dtrain-c
    cat >$venv/share/jupyter/kernels/dtrain-c/kernel.json <<TEXT
{"argv": ["$root/$venv/bin/python", "$root/notebooks-c/kernel.py", "-f", "{connection_file}"],
 "display_name": "C (dtrain)", "language": "c"}
TEXT
}

# DT_README_QUICK leaves JupyterLab out, for tests/test_readme.t.
command_notebooks() {
    local what=${1:-} packages=(ipykernel nbclient)
    [ $# -eq 0 ] || shift
    case $what in
    "" | open | solutions) [ -n "${DT_README_QUICK:-}" ] || packages+=(jupyterlab) ;;
    run) ;;
    grade) [ $# -gt 0 ] || die_usage "notebooks grade takes the notebooks that you have filled in" ;;
    *) die_usage "notebooks takes nothing, open, solutions, grade FILE .., or run [FILE ...], not '$what'" ;;
    esac
    install_missing compiler notebooks
    prepare_notebooks "${packages[@]}" || {
        [ -z "${DT_README_QUICK:-}" ] || return 0
        die "the notebooks need ${packages[*]} from PyPI in $venv"
    }
    export JUPYTER_DATA_DIR=$root/$build/notebooks/data # has the signatures by which stored pictures are shown
    [[ $what == run || $what == grade ]] || $venv/bin/jupyter trust notebooks-c/{,solutions/}*.ipynb >/dev/null
    case $what in
    "")
        say "ready: ./build.sh notebooks open starts JupyterLab in your browser; begin with 1_ring.ipynb"
        say "in another editor choose the Python of $root/$venv and the kernel \"C (dtrain)\"" ;;
    open) exec $venv/bin/jupyter lab --notebook-dir=notebooks-c "$@" ;;
    grade) $venv/bin/python notebooks-c/execute.py grade "$@" ;;
    solutions) exec $venv/bin/jupyter lab --notebook-dir=notebooks-c/solutions "$@" ;;
    run)
        [ $# -gt 0 ] || set -- notebooks-c/[0-9]*.ipynb
        $venv/bin/python notebooks-c/execute.py store "$@" ;;
    esac
}

command_bench() {
    local program calls only=${1:-*}
    [ "$only" != compile ] || { tests/bench_compile.sh; return; }
    compgen -G "tests/bench_$only.c" >/dev/null ||
        die_usage "no benchmark '$only': $(printf '%s\n' tests/bench_*.c | sed 's/.*bench_//; s/\.c$//' | paste -sd, | sed 's/,/, /g')"
    install_missing compiler bench
    choose_compiler
    mapfile -t calls < <(bench_calls | grep "bench_${only//\*/}")
    compile_all "${calls[@]}"
    has_openblas || say "skipped: the comparison with OpenBLAS (apt-get install libopenblas-dev)"
    have mpicc || say "skipped: the comparison with Open MPI (apt-get install libopenmpi-dev openmpi-bin)"
    for program in tests/bench_$only.c; do
        program=$build/bench/$(basename "$program" .c)
        [ -x "$program" ] || continue
        say "== $(basename "$program")"
        bench_one "$program"
    done
    [ "$only" != '*' ] || { say "== compile"; tests/bench_compile.sh; }
}

has_hosts() { have ip && have tc && [ "$(id -u)" = 0 ]; }

bench_one() {
    local nodes engine bind
    case $1 in
    *bench_mpi) mpirun --allow-run-as-root --oversubscribe -np 2 "$1" ;;
    *comm*)
        "$1" --ranks 2
        [ -x "$1_nodes" ] || return 0
        [ "$(nproc)" -lt 2 ] && bind=none || bind=core
        for nodes in 1 2; do DT_NODES=$nodes mpirun --allow-run-as-root --oversubscribe --bind-to $bind -np 2 "$1_nodes"; done
        has_hosts || return 0
        tests/hosts.sh mpi - "$1_nodes"
        for engine in net 'tcp;ofi_rxm'; do # beside MPI's own
            BENCH_FABRIC=$engine MASTER_ADDR=10.77.7.1 tests/hosts.sh mpi - "$1_nodes"
        done ;;
    *link*)
        has_hosts || { say "skipped: two hosts are network namespaces, which need root, ip and tc (iproute2)"; return 0; }
        for engine in mpi net 'tcp;ofi_rxm'; do tests/hosts.sh "$engine" 1gbit "$1" 1e9; done ;;
    *) OPENBLAS_NUM_THREADS=1 "$1" ;;
    esac
}

# "NAME  first line of NAME --version", or that it is missing.
doctor_tool() {
    if have "$1"; then printf '%-22s %s\n' "$1" "$("$@" 2>&1 | head -1)"; else printf '%-22s %s\n' "$1" "not found"; fi
}

command_doctor() {
    local packages
    for tool in gcc clang g++ clang++ aarch64-linux-gnu-gcc qemu-aarch64 prove nvcc mpirun fi_info; do doctor_tool "$tool" --version; done
    printf '%-22s %s\n' torch "$(python3 -c 'import torch; print(torch.__version__)' 2>/dev/null || say 'not found (only live golden files need it)')"
    printf '%-22s %s\n' cores "$(nproc)" memory "$(awk '/MemAvailable/ { printf "%.1f GB free", $2 / 1e6 }' /proc/meminfo)"
    printf '%-22s %s\n' processor "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
    printf '%-22s %s\n' sets "$(grep -m1 -E '^(flags|Features)' /proc/cpuinfo | tr ' ' '\n' | grep -xE 'fma|avx2|avx512(f|dq|bw|vl)|asimd' | tr '\n' ' ')"
    packages=$(missing_packages compiler test data arm notebooks bench | sort -u | tr '\n' ' ')
    if [ -n "$packages" ]; then say "missing: ${packages}; install with: sudo apt-get install ${packages}"; else say "nothing is missing"; fi
}

# Is a file there, and newer than the others?
newer() {
    local file=$1 other
    shift
    for other in "$@"; do [ "$file" -nt "$other" ] || return 1; done
}

# FOLDER NUMBER [END]: what has the name NUMBER_..END in a folder.
numbered() {
    case $2 in *[!0-9]*) ;; *) compgen -G "$1/$2_*${3-}" || true ;; esac
}

list_labs() {
    say "The labs; ./build.sh lab N FILE grades a file. The handout of lab N is examples/labs/N_*/README.md."
    printf '%s\n' examples/labs/[0-9]*/README.md | sort -V | xargs -n 1 sed -n '1s/^# Lab /  /p'
}

# Builds the grader of a lab, with the library if the lab uses it, unless it is there. The library is compiled without
# optimization, because that takes a third of the time and labs compute little.
build_grader() {
    local folder=$1 grader=$2 flags=$3 library=
    if grep -q '^#include "dtrain.h"' "$folder"/*.h "$folder/grade.c"; then
        library=$build/labs/dtrain.o
        newer $library dtrain.h build.sh || {
            say "cc dtrain.h, once" >&2
            printf '#define DTRAIN_IMPLEMENTATION\n#include "dtrain.h"\n' |
                $CC -std=gnu11 -O0 -DDT_DEBUG -I. -x c - -c -o $library
        }
    fi
    # shellcheck disable=SC2086
    newer "$grader" dtrain.h build.sh examples/{,labs/,tools/}*.h "$folder"/*.[ch] ||
        $CC $flags "$folder/grade.c" $library -rdynamic -o "$grader" -Wl,--no-as-needed -lm -lpthread -ldl
}

# FNV-1a of 64 bits.
fnv() {
    local LC_ALL=C hash=-3750763034362895579 i byte
    for ((i = 0; i < ${#1}; i++)); do
        printf -v byte %d "'${1:i:1}"
        hash=$(((hash ^ byte) * 1099511628211))
    done
    printf '%016x' "$hash"
}

allocators='malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|memalign|valloc|pvalloc|strdup|strndup|v?asprintf'
allocators+='|getline|getdelim|open_memstream|mmap|mmap64|mremap|s?brk|syscall|dlopen|dlsym|pthread_create|__libc_[a-z]*alloc'
allocators+='|fmemopen|fopen|fdopen|wcsdup|setenv|putenv|hcreate|tsearch'

# The files in a rule of make, which the compiler wrote, one a line; the first of them is the one that was compiled.
prerequisites() { sed 's/\\ /?/g; s/\\$//; 1s/^[^:]*://' "$@" | tr -s ' ' '\n' | grep . || true; }

# The learner's file becomes a shared object, which only the processes of the ranks load. The grader gets a number through a
# pipe that no rank has, and signs its verdict with it; a verdict without that signature is refused.
command_lab() {
    local folder file="" grader object status=0 flags options=() nonce verdict said calls other
    [ $# -gt 0 ] || { list_labs; return; }
    folder=$(numbered examples/labs "$1")
    [ -d "$folder" ] || { list_labs >&2; die_usage "no lab '$1'"; }
    local lab=$1
    shift
    while [ $# -gt 0 ]; do
        case $1 in
        --seed) options+=("$1" "${2:-}"); [ $# -lt 2 ] || shift ;;
        -*) options+=("$1") ;;
        *) [ -z "$file" ] || die_usage "lab $lab grades one file, not $file and $1"
           file=$1 ;;
        esac
        shift
    done
    flags="-std=gnu11 -O1 -g -ffp-contract=off -I. -iquote examples -I$folder"
    case $file in "") file=$folder/stub.c ;; /*) ;; *) file=$started_in/$file ;; esac
    [ -r "$file" ] || die_usage "cannot read $file: name the file with your solution of lab $lab"
    install_missing compiler
    choose_compiler
    mkdir -p $build/labs
    grader=$build/labs/$(basename "$folder") object=$grader.$$.so said=$grader.$$.out
    build_grader "$folder" "$grader" "$flags"
    # shellcheck disable=SC2086
    (ulimit -t 60 -v 4000000 -f 100000 && # for a file that compiles endlessly
        exec $CC $flags -Wall -Wextra -shared -fPIC -Wl,-Bsymbolic -MMD -MF "$said" "$file" -o "$object" -lm) || {
        rm -f "$said"
        die "$file does not compile: correct the first error above"
    }
    # shellcheck disable=SC2086
    other=$(prerequisites "$said" | tail -n +2 | grep -m 1 -vxF -f <($CC $flags -MM "$folder/stub.c" | prerequisites) || true)
    rm -f "$said"
    if [ -n "$other" ]; then
        rm -f "$object"
        die "$file includes $other, which the lab's stub does not: write what you need from it into your file"
    fi
    if grep -q 'GCC poison' "$folder/lab.h" &&
        calls=$({ nm -D --undefined-only "$object" && objdump -d "$object"; } | grep -owE "$allocators|svc" | tail -n 1); then
        rm -f "$object"
        die "$file calls $calls for memory, which the grader cannot count: take arrays from lab_alloc"
    fi
    basename "$file" >>"$grader.tries"
    nonce=$(od -An -N8 -tx8 /dev/urandom | tr -d ' ')
    "$grader" "$file" $build/labs "$folder/stub.c" "$object" "${options[@]}" \
        --tries "$(grep -cFx "$(basename "$file")" "$grader.tries")" --nonce 3< <(printf %s "$nonce") |
        { trap '' PIPE; tee "$said" 2>/dev/null; } || status=${PIPESTATUS[0]}
    verdict=$(tail -n 1 "$said" | grep -o '[0-9]* of [0-9]*, seed [0-9]*, [0-9a-f]*' | tail -n 1 || true)
    rm -f "$object" "$said"
    [ "$status" -le 1 ] || return "$status"
    if [ -n "$verdict" ]; then
        [ "${verdict##*, }" = "$(fnv "$nonce${verdict%, *}")" ] || die "the verdict is not the grader's: grade $file again"
    elif [ "$status" = 0 ]; then die "the grader ended without a verdict: grade $file again"; fi
    return "$status"
}

# What step N of the staircase changes: its comment, and the difference of its code to that of the step before.
command_staircase() {
    local folder=examples/staircase file before
    if [ $# -eq 0 ]; then
        say "The staircase: one program, from a serial loop to 3-D parallel. ./build.sh staircase N shows what step N changes."
        awk 'FNR == 1 { sub("^/[*] ", ""); at = index($0, ": "); printf "  %-16s %s\n", substr($0, 1, at - 1), substr($0, at + 2) }' $folder/[0-9]_*.c
        return
    fi
    file=$(numbered $folder "$1" .c)
    [ -f "$file" ] || die_usage "no step '$1' of the staircase: without a number the command lists the steps"
    if [ "$1" = 0 ]; then cat "$file"; return; fi
    before=$(compgen -G "$folder/$(($1 - 1))_*.c")
    sed '/^#define DTRAIN_IMPLEMENTATION/,$d' "$file"
    diff -u --color=auto --label "$(basename "$before")" --label "$(basename "$file")" \
        <(sed -n '/^#define DTRAIN_IMPLEMENTATION/,$p' "$before") <(sed -n '/^#define DTRAIN_IMPLEMENTATION/,$p' "$file") || true
}

# The solution of the exercise of program N: the answer, what it prints, and the change of the program.
command_exercise() {
    local file name
    file=$(numbered examples/answers/patches "${1-}" .patch)
    [ -f "$file" ] || die_usage "no solution of '${1-}': name the number of a program in examples, as in ./build.sh exercise 40"
    name=$(basename "$file" .patch)
    cat "$file"
    say
    say "To try it, in examples (compile solution.c as the comment of $name.c says):"
    say "patch -o solution.c $name.c answers/patches/$name.patch"
}

# The device's text of dtrain.h, compiled without optimisation, since it only prints.
command_cuda_text() {
    mkdir -p $build
    choose_compiler
    $CC -std=gnu11 -O0 -DDT_DEBUG -w -I. tests/cuda_text.c -o $build/cuda_text -lm -lpthread -ldl
    $build/cuda_text
}

# The programs of tests/gpu_check.py, built side by side; libraries of CUDA that the loader does not know are named.
command_gpu_check() {
    local parts=() json=$build/gpu/check.json stand_in=0 into=$build/gpu name of found jobs=()
    local programs=(gpu_kernels gpu_fast gpu_attention train one_hash)
    while [ $# -gt 0 ]; do
        case $1 in
        --stand-in) stand_in=1 ;;
        --part) case ${2:-} in check | sanitize | speed) parts+=("$2") ;; *) die_usage "--part is check, sanitize or speed" ;; esac; shift ;;
        -o) json=${2:-}; [ -n "$json" ] || die_usage "-o needs a file"; shift ;;
        *) die_usage "gpu-check takes --stand-in, --part and -o, not '$1'" ;;
        esac
        shift
    done
    [ ${#parts[@]} -gt 0 ] || parts=(check sanitize speed)
    have python3 || die "gpu-check is written in Python: apt-get install python3"
    mkdir -p "$into/cache"
    choose_compiler
    [ $stand_in = 1 ] || programs+=(100_roofline 101_exact_or_fast 102_copy_and_compute)
    test_flags
    implementation_source
    # shellcheck disable=SC2046
    compile $(implementation device)
    for name in "${programs[@]}"; do
        of=tests/$name.c
        [ -e "$of" ] || of=examples/$name.c
        [ $name != train ] || of=examples/06_train.c
        [ $name != one_hash ] || of=examples/32_one_hash.c
        # shellcheck disable=SC2046
        $CC -std=gnu11 -O2 "$of" -o "$into/$name" $(uses device) -I. -Iexamples -lm -lpthread &
        jobs+=($!)
    done
    if [ $stand_in = 1 ]; then
        have "${CXX:-g++}" || die "the stand-in is compiled by ${CXX:-g++}: apt-get install g++"
        command_cuda_text >"$into/text"
        "${CXX:-g++}" -std=c++17 -O2 -ffp-contract=off -mfma -shared -fPIC -w -Itests -DDT__TEXT="\"$PWD/$into/text\"" \
            tests/cuda_stand_in.cpp -o "$into/stand_in.so" -lpthread
        export DT_CUDA_LIBRARY=$PWD/$into/stand_in.so DT_NVRTC_LIBRARY=$PWD/$into/stand_in.so DT_CUBLAS_LIBRARY=$PWD/$into/stand_in.so
    else
        for name in NVRTC:nvrtc CUBLAS:cublasLt; do
            of=DT_${name%%:*}_LIBRARY found=$(compgen -G "/usr/local/cuda*/lib64/lib${name##*:}.so.1?" | tail -1)
            [ -n "${!of:-}" ] || [ -z "$found" ] || export "$of=$found"
        done
    fi
    for name in "${jobs[@]}"; do wait "$name" || die "a program of gpu-check does not compile"; done
    XDG_CACHE_HOME=$PWD/$into/cache python3 tests/gpu_check.py "$PWD/$into" "$json" $stand_in "${parts[@]}"
}

# A section begins at its banner: the line that follows /* ==== and reads " * H6  tensors and graph". Declarations end where
# the implementation begins.
command_lines() {
    choose_compiler
    LC_ALL=C awk '
        /^ \* H[0-9]+  / && before ~ /^\/\* ====/ { name = substr($0, 4) }
        /^#define DTRAIN_IMPLEMENTED/ { if (name == first) name = "requirements of the build" }
        BEGIN { first = name = "documentation, declarations" }
        { if (!(name in count)) order[++n] = name; count[name]++; bytes[name] += length($0) + 1; all += length($0) + 1; before = $0 }
        name == first && /^DT_API / { public++ }
        END { for (i = 1; i <= n; i++) printf "%6d lines %8d bytes  %s\n", count[order[i]], bytes[order[i]], order[i]
              printf "%6d lines %8d bytes  total, %d public functions\n", NR, all, public }' dtrain.h
    mkdir -p $build
    printf '#define DTRAIN_IMPLEMENTATION\n#include "dtrain.h"\n' >$build/lines.c
    for level in -O0 -O2; do
        TIMEFORMAT="%U s to compile with $CC $level"
        time $CC -std=gnu11 $level -I. -c $build/lines.c -o $build/lines.o
    done
}

main() {
    local command=${1:-build}
    [ $# -eq 0 ] || shift
    case $command in
    build | run | generate | eval | checkpoint | draw | tokenizer | plan | simulate | report | drill | test | lab | exercise | staircase | notebooks | bench | doctor | lines | cuda-text | gpu-check) "command_${command//-/_}" "$@" ;;
    compile) # for compile_all: [COUNT] CALL
        [ -n "${CC:-}" ] || choose_compiler
        [ $# -eq 1 ] || { compile_count=$1; shift; }
        # shellcheck disable=SC2086
        compile $1 ;;
    object) command_object "$1" ;;
    clean) rm -rf $build ;;
    help | --help | -h) usage ;;
    *) die_usage "unknown command '$command': build, run, generate, eval, checkpoint, draw, tokenizer, plan, simulate, report, drill, test, lab, exercise, staircase, notebooks, bench, doctor, cuda-text, gpu-check, lines, clean or help" ;;
    esac
}

main "$@"
