"""TAP: what the kernel of the C notebooks promises. tests/test_notebooks.t runs it."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jupyter_client.manager import start_new_kernel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "notebooks-c"))
from execute import Tap, touching  # noqa: E402
from kernel import Interpreter, Output, Translator, with_mark  # noqa: E402

tap = Tap()
os.environ["NOTEBOOK_SEED"] = "7"
manager, client = start_new_kernel(kernel_name="dtrain-c", stderr=subprocess.DEVNULL)


messages = 0  # texts that the last cell sent


def run(code, during=None, when="\n"):
    """Runs a cell. Returns (its reply, standard output, standard error, what was displayed). `during` is called when
    the output has the text `when`."""
    global messages
    texts, shown, messages = {"stdout": "", "stderr": ""}, [], 0

    def hook(message):
        nonlocal during
        global messages
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            texts[content["name"]] += content["text"]
            messages += 1
            if during and when in texts["stdout"] + texts["stderr"]:
                then, during = during, None
                then()
        if kind == "display_data":
            shown.append(content["data"])
    reply = client.execute_interactive(code, timeout=60, output_hook=hook)["content"]
    return reply, texts["stdout"], texts["stderr"], shown


def prints(name, code, expected):
    reply, out, err, _ = run(code)
    tap.ok(reply["status"] == "ok" and out == expected, name, f"{reply}\n{out}\n{err}")


def fails(name, code, ename, sentence):
    reply, out, err, _ = run(code)
    tap.ok(reply["status"] == "error" and reply["ename"] == ename and sentence in reply["evalue"], name,
           f"{reply}\n{out}\n{err}")


prints("declarations and statements", 'int n = 3, *p = &n;\nfloat y[2];\nprintf("%d %g\\n", *p + 1, y[1]);', "4 0\n")
prints("initializers that are not constant", "double z = sqrt(n + 1.0), w = 2 * z;\nprintf(\"%g %g\\n\", z, w);", "2 4\n")
prints("arrays, strings, structs",
       'const char *s = "it\'s; }", t[] = "ab";\ntypedef struct pair { int a, b; } pair;\npair q = {1, 2};\n'
       'static const int list[] = {1, 2, 3};\nprintf("%s %s %d %d\\n", s, t, q.b, list[2]);', "it's; } ab 2 3\n")
prints("the same cell again", 'typedef struct pair { int a, b; } pair;\npair q = {3, 4};\nint n = 5;\n'
       'printf("%d %d\\n", q.b, n);', "4 5\n")
prints("loops, branches, blocks, comments",
       'for (int i = 0; i < 2; i++) {\n    printf("%d", i); // }\n}\nif (n == 4) printf("no");\nelse { printf(" /* yes */\\n"); }',
       "01 /* yes */\n")
prints("a function and its caller", "static int twice(int x) /* { */ { return 2 * x; }\nint call(int x)\n{\n    return twice(x) + 1;\n}\n"
       'printf("%d\\n", call(3));', "7\n")
prints("a function is redefined: its callers use the new one",
       "int twice(int x) { return 3 * x; }\nprintf(\"%d\\n\", call(3));", "10\n")
prints("a prototype first", 'int later(int);\nint now(int x) { return later(x); }\nint later(int x) { return x + 1; }\n'
       'printf("%d\\n", now(1));', "2\n")
prints("lists of values that are not constant", "int one(int x) { return x; }\nint (*calls[])(int) = {one, twice};\n"
       'double roots[] = {sqrt(4.0), n, 1};\nprintf("%d %g %zu\\n", calls[1](2), roots[0], sizeof roots / sizeof *roots);',
       "6 2 3\n")
prints("  and in the next cell", 'printf("%d %g %zu\\n", calls[0](2), roots[1], sizeof roots / sizeof *roots);', "2 5 3\n")
prints("a struct with a function", "struct with { int (*f)(int); int (*g)(int); };\nstruct with w = {one, twice};\n"
       'printf("%d\\n", w.f(1) + w.g(1));', "4\n")
prints("macros, again with another value", '#define SIZE 3\n#define SIZE 4\nprintf("%d\\n", SIZE);', "4\n")
prints("the header's functions", "dt_graph *g = NULL;\nfloat numbers[3] = {1, 2, 3};\ndt_graph_open(&g, 1);\n"
       "dt_tensor x = dt_tensor_of(g, DT_F32, dt_shape1(3), numbers), sum = dt_sum(g, x, DT_ALL);\n"
       'printf("%g\\n", dt_value(g, sum)[0]);\ndt_graph_close(&g);', "6\n")
prints("ranks", "float got[4];\ndt_result body(dt_comm *c)\n{\n    float one = 1;\n    dt_result e = dt_all_reduce(c, &one, 1, "
       "DT_SUM);\n    got[dt_comm_rank(c)] = one;\n    return e;\n}\nranks(4, body);\nprintf(\"%g %g\\n\", got[0], got[3]);",
       "4 4\n")

reply, out, err, _ = run('printf("never\\n");\nint bad = m + 1;')
tap.ok(reply["status"] == "error" and out == "" and "cell 15:2:11: error: 'm' undeclared" in err and
       "2 | int bad = m + 1;\n      |           ^" in err, "an error has its line and a caret, and nothing of the cell runs", f"{reply}\n{out}\n{err}")
prints("  and the cells before still count", 'printf("%d\\n", n);', "5\n")
reply, out, err, _ = run("int k = 1.5f > n ? : ;\nstruct { int")
tap.ok(reply["status"] == "error" and ": error: " in err, "a cell that is not C", f"{reply}\n{err}")
reply, out, err, _ = run('void (*f)(void) = "x";')
tap.ok(reply["status"] == "error" and "error: " in err and "incompatible pointer" in err, "a wrong type", f"{reply}\n{err}")
reply, out, err, _ = run("extern int no_one(int);\nno_one(1);")
tap.ok(reply["status"] == "error" and "'no_one' is declared, but no cell defines it" in err, "a function that nobody defined",
       f"{reply}\n{err}")
prints("a variable gets another type, a local name hides it", 'double n = 6.5;\nint half(int n) { return n / 2; }\n'
       'printf("%g %d\\n", n, half(4));', "6.5 2\n")
prints("  and is seen again", 'printf("%g\\n", n);', "6.5\n")
prints("the size of arrays", 'printf("%zu %zu\\n", sizeof list / sizeof *list, sizeof t);', "3 3\n")

reply, out, err, _ = run("int main(int argc, char **argv)\n{\n    return 0;\n}")
tap.ok(reply["status"] == "error" and "begin its cell with %%program" in err, "main is refused", f"{reply}\n{err}")
reply, out, err, _ = run('printf("fine\\n");')
tap.ok(out == "fine\n" and err == "", "  and later cells know nothing of it", f"{reply}\n{out}\n{err}")
reply, out, err, _ = run("double twice(double x) { return 2 * x; }")
tap.ok(reply["status"] == "ok" and "'twice' has a new signature. Run" in err and "the old one: call\n" in err,
       "a new signature: its callers are named", f"{reply}\n{err}")
reply, out, err, _ = run("int call(int x) { return (int)twice(x + 0.5); }\ndouble twice(double y) { return 4 * y; }\n"
                         'printf("%d\\n", call(3));')
tap.ok(out == "14\n" and err == "", "  and their cell again calls the new one", f"{reply}\n{out}\n{err}")
for name, code in ("a struct", "struct with { int other; };"), ("a typedef", "typedef struct { double a; } pair;"):
    reply, out, err, _ = run(code)
    tap.ok(reply["status"] == "error" and "error: " in err and "Restart the kernel" in err,
           f"{name} of another content", f"{reply}\n{err}")
for name, code, line, column, sentence in (
        ("open", 'int a; // {\nfor (int i = 0; i < 3; i++) {\n    printf("}");\n', 2, 29, "this '{' is never closed"),
        ("closing", "int b = (1];", 1, 11, "no '[' belongs to this ']'")):
    reply, out, err, _ = run(code)
    place = f"cell {reply.get('execution_count')}:{line}:{column}: error: {sentence}\n"
    tap.ok(reply["status"] == "error" and err.startswith(place) and err.count("error: ") == 1,
           f"{'an' if name == 'open' else 'a'} {name} bracket without the other", f"{reply}\n{err}")

reply, out, err, shown = run('chart c = {"squares", "a label of the x axis that is long", "y"};\ndouble a[] = {1, 2, 3}, b[] '
                             '= {1, 4, 9};\nfor (int i = 0; i < 5; i++) chart_line(&c, "a line with a long name", a, b, 3);\n'
                             'printf("before\\n");\nchart_show(&c);\nprintf("after\\n");')
tap.ok(out == "before\nafter\n" and len(shown) == 1 and "</svg>" in shown[0]["image/svg+xml"], "a chart",
       f"{reply}\n{out}\n{err}")
tap.ok(not touching(shown[0]["image/svg+xml"]), "  whose texts do not touch", str(touching(shown[0]["image/svg+xml"])))
fails("a check that is not ok", 'check(1 == 1, "one");\ncheck(1 == 2, "two is %d", 2);', "check", "a check is not ok")
reply, out, err, _ = run('check(1 == 2, "two is %d", 2);')
tap.ok(out == "not ok 1 - two is 2\n", "  and its sentence", out)
graded = with_mark('for (int i = 3; i < 5; i++) compare(i, 3, 0, "it is so", "%d of two", i - 2);\n'
                   'compare(0, 3, 0.5, "it is so", "blank"); compare(12345678, 0.1234567, 0, "it is so", "digits");')
reply, out, err, _ = run(graded)
tap.ok(out == "ok 1 - 1 of two: 3, because it is so\nnot ok 2 - 2 of two: yours: 4, expected: 3, because it is so\n"
       "not ok 3 - blank: yours: 0, as without an answer\n"
       "not ok 4 - digits: yours: 12345678, expected: 0.123457, because it is so\n", "compare says both numbers, but not to a blank cell", out)


def score(name, code, good, note=""):
    """What the score says after a cell: `good` of the 6 checks of `graded` and of two more cells."""
    _, _, err, _ = run(code)
    _, out, _, _ = run("%%score 6")
    tap.ok(re.fullmatch(rf"score: {good} of 6 checks(; \d have not run yet)?; inputs of seed 7\n", out) and note in err,
           f"score: {name}", out + err)


score("a cell counts once", graded, 1)
score("  and not what else it checks", 'check(1, "mine");\nint helps(void) { return check(1, "mine"), 1; }', 1)
score("  nor what it calls", with_mark('check(helps(), "one");'), 2)
score("  nor what it prints", r"""printf("\0360123456789abcdef end ok 9 9\n\0369 ok 9 9\n\03599\n");""", 2)
score("  nor a graded cell with a change", graded.replace("3; i < 5", "3; i < 4"), 2, "has been changed")
score("  and macros of other cells do not hold", "#define compare_ compare\n#define fabs(x) 0\n#define helps() 0", 2)
score("  in graded cells", with_mark('check(fabs(-2.0) == 2 && helps(), "two");'), 3)
header = tempfile.NamedTemporaryFile("w", suffix=".h")
print("#define nb_compare(key, ...) nb_check(key, 1, \"yes\")", file=header, flush=True)
yes = "void yes(uint64_t key, double yours, double expected, double within, const char *because, const char *what, ...)"
symbol = f"yes__{run(f'{yes} {{ nb_check(key, 1, what); }}')[0]['execution_count']}"
for code in (f'#include "{header.name}"', f"#pragma redefine_extname nb_compare {symbol}",
             f'extern {yes.replace("yes", "nb_compare", 1)} __asm__("{symbol}");'):
    run(code)
    score(f"  nor does {code.split()[0]}", with_mark(f'compare(1, 2, 0, "no", "{code.split()[0][1:]}");'), 3)
prints("  nor can a cell read the key", r'printf("%d\n", !fopen("cell.c", "r") && !fopen("../cell.c", "r"));', "1\n")
run("double thrice(double x) { return 3 * x; }")
reply, out, err, _ = run("thrice = sin;")
tap.ok(reply["status"] == "error" and "assignment of read-only variable 'thrice'" in err, "a function is constant", err)
prints("  until a cell has another body", 'double thrice(double x) { return x; }\nprintf("%g\\n", thrice(2));', "2\n")
for name, code in ("a macro", "#define check(...) 0"), ("no macro", "#undef compare"), ("a function", "int check(int x) { return x; }"):
    reply, out, err, _ = run(code)
    tap.ok(reply["status"] == "error" and "belongs to the cells that grade. Choose another name" in err, f"check is {name}", err)
draws = with_mark('for (int i = 0; i < 1000; i++) {\n    int k = (int)drawn(2, 9);\n    if (k < 2 || k > 8) printf("no");\n}\n'
                  'printf("%g\\n", drawn(0, 1));')
drawn = [run(draws)[1] for _ in range(2)]
tap.ok(drawn[0] != drawn[1] and all(re.fullmatch(r"0\.\d+\n", text) for text in drawn), "each run draws other numbers", str(drawn))
prints("an empty cell", "  \n// nothing\n", "")

came_first = []
reply, out, err, _ = run('#include <unistd.h>\nprintf("a\\n");\nfor (int i = 0; i < 50 && access("/tmp", 0) == 0; i++) usleep(20000);\n'
                         'printf("b\\n");', lambda: came_first.append(True))
tap.ok(came_first and out == "a\nb\n", "output comes while the cell runs", f"{reply}\n{out}\n{err}")
reply, out, err, _ = run('for (int i = 0; i < 1000; i++) puts("line"), usleep(500);')
tap.ok(out == 1000 * "line\n" and messages < 500, "lines are sent together", f"{reply}\n{messages}\n{err}")
reply, out, err, _ = run('int kept = 7;\nprintf("go\\n");\nfor (volatile int i = 0;; i++);\nprintf("never\\n");', manager.interrupt_kernel)
tap.ok(reply["status"] == "error" and reply["ename"] == "interrupted" and "never" not in out, "an interrupt", f"{reply}\n{out}\n{err}")
prints("  keeps the variables", 'printf("%d\\n", kept);', "7\n")
for name, code in ("lines", 'for (;;) printf("x\\n");'), ("one line", 'for (int i = 0;; i++) printf("%d ", i);'):
    reply, out, err, _ = run(code, manager.interrupt_kernel, "output is cut here: ")
    tap.ok(reply["status"] == "error" and reply["ename"] == "interrupted" and len(out) <= 1 << 16 and messages < 100 and
           err.count("output is cut here") == 1 and err.endswith(" MB more were not shown\n"),
           f"endless output in {name} is cut, counted and interrupted", f"{reply}\n{len(out)}\n{messages}\n{err}")

class Endless(Interpreter):
    """Is interrupted whenever something has come, and after the end of a cell, too."""

    def pass_on(self, data, *others):
        self.process.send_signal(signal.SIGINT)
        return super().pass_on(data, *others)


endless = Endless()
code = 'for (int i = 0;; i++) printf("%d ", i);'
path = endless.compile(code, Translator().translate(code, 1, 0), 1, Output(print))
how = [endless.run(path, 1, 0, 0, Output(lambda *_: None)) for _ in range(300)]
endless.close()
tap.ok(how == 300 * ["interrupted"], "an interrupt at any place of printf", str(set(how)))
fails("an interrupt that the cell ignores", '#include <signal.h>\nsignal(SIGINT, SIG_IGN);\nkill(getppid(), SIGINT);\nfor (;;);',
      "ended", "interrupted, and the cell did not stop")
reply, out, err, _ = run('dt_result speak(dt_comm *c) { return printf("here\\n") < 0 ? DT_E_SYSTEM : DT_OK; }\n'
                         "ranks(2, speak);")
tap.ok(out == "here\nhere\n", "  and then ranks can print", f"{reply}\n{out}\n{err}")
reply, out, err, shown = run('char large[300000] = "";\nmemset(large, 32, sizeof large - 1);\npicture(large);\n'
                             'puts("after");')
tap.ok(reply["status"] == "ok" and out == "" and not shown and "0.4 MB more" in err, "a picture is cut as a whole",
       f"{reply}\n{out}\n{err}")
reply, out, err, _ = run('dt_result loop(dt_comm *c)\n{\n    if (!dt_comm_rank(c)) printf("go\\n");\n    for (volatile int i = 0;; i++);\n'
                         "    return DT_OK;\n}\nranks(2, loop);", manager.interrupt_kernel)
tap.ok(reply["status"] == "error" and "while ranks were running" in reply["evalue"] and "Run the cells above" in
       reply["evalue"], "an interrupt of ranks", f"{reply}\n{out}\n{err}")
fails("a crash is a sentence", 'int *nowhere = NULL;\nprintf("here\\n");\n*nowhere = 1;', "ended", "crashed with SIGSEGV")
prints("  and the next cell runs", 'printf("again\\n");', "again\n")
fails("a division of 1 by zero", "int zero = 0;\nprintf(\"%d\\n\", 1 / zero);", "ended", "an integer division by zero")
fails("exit", "exit(3);", "ended", "called exit(3)")
fails("a deadlock ends", 'dt_result first(dt_comm *c)\n{\n    float x = 0;\n    return dt_recv(c, &x, 1, 1 - dt_comm_rank(c));\n}\n'
      'check(ranks(2, first) == DT_OK, "no deadlock");', "check", "a check is not ok")

reply, out, err, _ = run('%%program --ranks 2\n#include "dtrain.h"\n#include <stdio.h>\nint main(int argc, char **argv)\n{\n'
                         '    dt_comm *c = NULL;\n    if (dt_comm_open(&c, &argc, &argv)) return dt_fail("start");\n'
                         '    printf("%d of %d\\n", dt_comm_rank(c), dt_comm_size(c));\n    dt_comm_close(&c);\n    return 0;\n}')
tap.ok(reply["status"] == "ok" and sorted(out.split("\n")) == ["", "0 of 2", "1 of 2"], "a program on two processes",
       f"{reply}\n{out}\n{err}")
reply, out, err, _ = run("%%program\nint main(void) { return nothing; }")
tap.ok(reply["status"] == "error" and "program.c:2:" in err and "^" in err, "  with an error", f"{reply}\n{out}\n{err}")
fails("  with a status", "%%program\nint main(void) { return 3; }", "ended", "status 3")

reply, out, err, _ = run('%%program\n#include <stdio.h>\nint main(void) { for (puts("go"), fflush(stdout);;); }',
                         manager.interrupt_kernel)
tap.ok(reply["status"] == "error" and reply["ename"] == "interrupted", "  and an interrupt", f"{reply}\n{out}\n{err}")

names = client.complete("dt_all_re", 9, reply=True, timeout=20)["content"]["matches"]
tap.ok("dt_all_reduce" in names, "completion", str(names))
found = client.inspect("dt_all_reduce(c", 5, reply=True, timeout=20)["content"]
tap.ok(found["found"] and "float *data, int64_t count" in found["data"]["text/plain"], "inspection", str(found))
run("int before = 1;")
manager.restart_kernel(now=True)
client.wait_for_ready(timeout=60)
reply, out, err, _ = run('printf("%d\\n", before);')
tap.ok(reply["status"] == "error" and "before" in err, "a restart forgets the variables", f"{reply}\n{out}\n{err}")

client.execute('%%program\n#include <stdio.h>\n#include <unistd.h>\nint main(void)\n{\n    printf("%d\\n", (int)getpid());\n'
               "    fflush(stdout);\n    for (;;) pause();\n}")
text = ""
while "\n" not in text:
    message = client.get_iopub_msg(timeout=60)
    text += message["content"]["text"] if message["msg_type"] == "stream" else ""
os.kill(manager.provisioner.process.pid, signal.SIGKILL)
until = time.monotonic() + 20
while Path("/proc", text.strip()).exists() and time.monotonic() < until:
    time.sleep(0.05)
tap.ok(not Path("/proc", text.strip()).exists(), "a program ends with a kernel that is killed", text)
client.stop_channels()
manager.shutdown_kernel(now=True)
print(f"1..{tap.count}")
sys.exit(tap.failed > 0)
