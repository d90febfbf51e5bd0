"""A Jupyter kernel for C: it compiles each cell into a shared object, which a running program loads.

At its top level C allows declarations whose initializers are constants. A cell may hold more: statements, initializers
that call functions, and, when it runs again, the same declarations once more. `Translator` rewrites a cell so that C
accepts it. `Interpreter` compiles it and runs it in a process that keeps the variables. `Kernel` speaks to Jupyter.
"""
import codecs
import ctypes
import hashlib
import math
import os
import random
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ipykernel.kernelbase import Kernel as KernelBase

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "notebooks"
INCLUDE = [ROOT, HERE, ROOT / "examples"]
FLAGS = ["-std=gnu11", "-ffp-contract=off", *(f"-I{folder}" for folder in INCLUDE)]
WARNINGS = ["-Wall", "-Werror=implicit-function-declaration", "-Werror=int-conversion",
            "-Werror=incompatible-pointer-types", "-Wno-unused-variable", "-Wno-unused-function", "-Wno-unused-value"]
# A division by zero stops the cell. Without these options the compiler folds 1 / x, which then is 0 for x = 0.
DIVISIONS = ["-fsanitize=integer-divide-by-zero", "-fsanitize-undefined-trap-on-error"]
# What the compiler says of a type that an earlier cell has made otherwise.
RETYPED = re.compile(r"redefinition of '(struct|union|enum) |redeclaration of (enumerator|'(struct|union|enum)) |"
                     r"conflicting types for '")


# The first line of a cell of the notebook that grades: it has a hash of the rest.
GRADES = "/* GRADES {} */\n"


def with_mark(cell):
    """A graded cell with its first line. A cell that has been changed gets another one."""
    rest = re.sub(GRADES.replace("*", r"\*").format(r"\w+"), "", cell, count=1)
    return GRADES.format(hashlib.sha256(rest.encode()).hexdigest()[:8]) + rest


# ---- a cell becomes C ------------------------------------------------------------------------------------------------

TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\w+|\s+|.""", re.S)
STATEMENT_WORDS = {"sizeof", "if", "for", "while", "do", "switch", "return", "goto", "break", "continue", "else"}
DECLARATION_WORDS = {
    "void", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "const", "volatile", "struct",
    "union", "enum", "static", "extern", "inline", "typedef", "_Bool", "__typeof__", "typeof", "_Static_assert"}


class Item:
    """One declaration or statement of a cell: its text, and where the text begins (lines and columns from 0)."""

    def __init__(self, text, line, column):
        self.text, self.line, self.column = text, line, column

    def words(self):
        return [t for t in TOKEN.findall(self.text) if not t.isspace() and not t.startswith(("//", "/*"))]


def split(cell):
    """The items of a cell. An item ends at a ; or } outside of all brackets, a preprocessor line at its end."""
    items, text, depth, line, column, start = [], "", 0, 0, 0, None
    tokens = TOKEN.findall(cell)
    i = 0

    def advance(token):
        nonlocal line, column
        line += token.count("\n")
        column = len(token) - token.rfind("\n") - 1 if "\n" in token else column + len(token)

    while i < len(tokens):
        token = tokens[i]
        blank = token.isspace() or token.startswith(("//", "/*"))
        if start is None and blank:
            advance(token)
            i += 1
            continue
        if start is None:
            start = (line, column)
            if token == "#":
                while i < len(tokens) and not ("\n" in tokens[i] and not text.rstrip(" \t").endswith("\\")):
                    text += tokens[i]
                    advance(tokens[i])
                    i += 1
                items.append(Item(text, *start))
                text, start = "", None
                continue
        text += token
        advance(token)
        i += 1
        depth += (token in "([{") - (token in ")]}") if len(token) == 1 else 0
        if depth or token not in (";", "}"):
            continue
        following = next((t for t in tokens[i:] if not t.isspace() and not t.startswith(("//", "/*"))), "")
        if token == "}" and (following in ("else", ";", ",") or is_initializer(text) or
                             (following == "while" and re.match(r"do\b", text)) or
                             re.match(r"typedef\b|(struct|union|enum)\s*\w*\s*\{", text)):
            continue
        if token == ";" and following == "else":
            continue
        items.append(Item(text, *start))
        text, start = "", None
    if start is not None and text.strip():
        items.append(Item(text, *start))
    return items


def is_initializer(text):
    """Does the text end with the braces of an initializer or of a compound literal, and not of a body?"""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == "}") - (text[at] == "{")
        if depth == 0:
            before = text[:at].rstrip()
            return before.endswith("=") or (before.endswith(")") and re.search(r"=[^;{}]*$", before) is not None)
    return False


def top_level(text, separator):
    """Splits text at a character outside of brackets and strings. Yields (offset, part)."""
    depth, begin, at = 0, 0, 0
    for token in TOKEN.findall(text):
        if len(token) == 1:
            depth += (token in "([{") - (token in ")]}")
            if depth == 0 and token == separator:
                yield begin, text[begin:at]
                begin = at + 1
        at += len(token)
    yield begin, text[begin:]


def without_comments(text):
    """The same text, each comment replaced by blanks."""
    blank = [re.sub(r"[^\n]", " ", t) if t.startswith(("//", "/*")) else t for t in TOKEN.findall(text)]
    return "".join(blank)


def normal(text):
    return " ".join(Item(text, 0, 0).words())


def unnamed(words):
    """The text of a type without the names of parameters."""
    return re.sub(r"(\w+|\*) (\w+)(?= [],)[])", lambda m: m[0] if m[2] in DECLARATION_WORDS else m[1], words)


def at(number, source, line, column, message):
    """A message at a line and column of a cell (from 0), as the compiler writes it."""
    text = (source.split("\n") + [""])[line]
    return f"cell {number}:{line + 1}:{column + 1}: {message}\n{line + 1:5} | {text}\n      | {' ' * column}^\n"


def unbalanced(source):
    """(line, column, message) of a bracket without its other half, or None."""
    closes, opened, line, column = {")": "(", "]": "[", "}": "{"}, [], 0, 0
    for token in TOKEN.findall(source):
        if token in closes.values():
            opened.append((token, line, column))
        elif token in closes and (not opened or opened.pop()[0] != closes[token]):
            return line, column, f"error: no '{closes[token]}' belongs to this '{token}'"
        line += token.count("\n")
        column = len(token) - token.rfind("\n") - 1 if "\n" in token else column + len(token)
    return (*opened[-1][1:], f"error: this '{opened[-1][0]}' is never closed") if opened else None


def holds_in_graded(name, text):
    """Whether a graded cell sees this declaration of an earlier cell: no macros, no headers but the system's and the
    project's, no other symbols for the names of functions."""
    header = re.match(r'#\s*include\s*([<"])(\w[\w./-]*)[>"]', text)
    if header:
        return ".." not in header[2] and (header[1] == "<" or any((folder / header[2]).exists() for folder in INCLUDE))
    return not text.lstrip().startswith("#") and not (name == normal(text) and re.search(r"\b(__)?asm", text))


class Refused(Exception):
    """A cell that the translator refuses. Its argument is the message."""


class Translator:
    """Rewrites cells. It remembers what earlier cells have declared, and how a later cell declares it again."""

    def __init__(self):
        self.types = {}   # by name: the text of a variable's type, or of a function's
        self.before = {}  # by name, or by its own text: a declaration for later cells
        self.bodies = {}  # by a function's name: the words of its body

    def translate(self, source, number, key):
        """C text with a function nb_cell_NUMBER, which runs the cell. `keep` remembers what the cell has declared.
        key: what its checks say, or 0. In a graded cell, which has one, macros of other cells do not hold."""
        self.number, self.new_types, self.declared = number, dict(self.types), dict(self.before)
        self.out, self.statements, self.calls, self.replaced, self.redefined = [], [], [], set(), set()
        self.source, self.new_bodies, self.stale = source, dict(self.bodies), {}
        for item in split(source):
            self.item(item)
        self.flush()
        before = [text.replace("(*const ", "(*", 1) if name in self.redefined else text
                  for name, text in self.before.items()
                  if name not in self.replaced and (not key or holds_in_graded(name, text))]
        lines = ['#include "notebook.h"', "#undef NB_KEY", f"#define NB_KEY {key:#x}u", *before, *self.out,
                 f"void nb_cell_{number}(void) {{", *self.calls, "}"]
        return "\n".join(lines) + "\n"

    def keep(self):
        self.types, self.before, self.bodies = self.new_types, self.declared, self.new_bodies

    def warnings(self):
        """Which functions of earlier cells still call a function that the cell has given another signature."""
        text = ""
        for name, (line, column, callers) in self.stale.items():
            if callers:
                text += at(self.number, self.source, line, column, f"warning: '{name}' has a new signature. Run the cells "
                           f"of its callers again, which still call the old one: {', '.join(sorted(callers))}")
        return text

    def lines(self, text, line, column=0):
        return [f'#line {line + 1} "cell {self.number}"', " " * column + text]

    def flush(self):
        """The statements so far become a function."""
        if self.statements:
            name = f"nb_statements_{self.number}_{len(self.calls)}"
            self.out += [f"static void {name}(void) {{", *self.statements, "}"]
            self.calls.append(f"{name}();")
            self.statements = []

    def declare(self, text, line, column=0, later=None, name=None):
        """Text at the top level; later cells see `later`, under a name that a new declaration takes over."""
        self.flush()
        self.out += self.lines(text, line, column)
        if later:
            self.declared.pop(name, None)
            self.declared[name] = later
            self.replaced.add(name)

    def item(self, item):
        words = item.words()
        if not words or words == [";"]:
            return
        if words[0] == "#":
            macro = re.match(r"#\s*(?:define|undef)\s+(\w+)", item.text)
            if macro and macro[1] in ("check", "compare"):
                self.reserved(macro[1], item.line)
            if macro and item.words()[1] == "define":
                self.declare(f"#undef {macro[1]}", item.line)
                self.declare(item.text, item.line, item.column, f"#undef {macro[1]}\n{item.text}",
                             "#define " + macro[1])
            else:
                self.once(item)
        elif not self.is_declaration(words):
            self.statements += self.lines(item.text, item.line, item.column)
        elif words[0] in ("typedef", "extern", "_Static_assert") or \
                (words[0] in ("struct", "union", "enum") and re.match(r"\w+\s*(\w+\s*)?\{", item.text)):
            self.once(item)
        elif item.text.endswith("}") and not is_initializer(item.text):
            self.function(item)
        else:
            self.variables(item)

    def is_declaration(self, words):
        """TYPE NAME or TYPE *NAME or TYPE (*NAME)(.. begins a declaration."""
        if words[0] in STATEMENT_WORDS or not re.match(r"[A-Za-z_]", words[0]):
            return False
        return words[0] in DECLARATION_WORDS or \
            re.match(r"\w+ (\* )*([A-Za-z_]\w* [=;,[(]|\( \* \w+ \) \()", " ".join(words)) is not None

    def once(self, item):
        """A file or a type whose text is known is not declared again."""
        text = normal(item.text)
        if text not in self.declared:
            self.declare(item.text, item.line, item.column, item.text, text)

    def function(self, item):
        """A function becomes a pointer, which keeps its name, and a body, so that a later cell can set a new body. It
        is constant in the cells that only call it."""
        text = without_comments(item.text)
        head = text[:text.index("{")]
        found = re.match(r"(?:static\s+|inline\s+)*(.*?)(\w+)\s*(\(.*\))\s*$", head, re.S)
        if not found:
            self.declare(item.text, item.line, item.column)
            return
        result, name, arguments = found[1], found[2], found[3]
        old = self.new_types.get(name)
        self.redefined.add(name)
        new = self.define(f"{result}(*", name, f"){arguments}", "0", item.line, function=True)
        if new and old and "( * )" in old:
            callers = {caller for caller, body in self.new_bodies.items() if name in body and caller != name}
            self.stale[name] = (item.line, item.column, callers)
        for _, _, callers in self.stale.values():
            callers.discard(name)
        self.new_bodies[name] = set(TOKEN.findall(text[len(head):]))
        body = f"{name}__{self.number}"
        self.declare(result + body + arguments + text[len(head.rstrip()):], item.line, item.column)
        self.calls.append(f"{name} = {body};")

    def reserved(self, name, line):
        raise Refused(at(self.number, self.source, line, 0, f"error: {name} belongs to the " + (
            "program that runs the cells. To run a whole program, begin its cell with %%program" if name == "main" else
            "cells that grade. Choose another name")))

    def define(self, before, name, after, value, line, fixed=False, late=False, function=False):
        """A variable, unless an earlier cell has one of this name and type. A new type gets a new symbol. fixed: the
        value never changes. late: the value is set when the statements run. function: a pointer that is constant in
        other cells."""
        if name in ("main", "check", "compare"):
            self.reserved(name, line)
        kind = unnamed(normal(f"{before} {after}")) + (value if fixed else "")
        if self.new_types.get(name) == kind:
            return False
        label = f'__asm__("{name}.{self.number}")'
        later = after
        if re.match(r"\s*\[\s*\]", after):  # an array without a size: that of its initializer
            rest = after[after.index("]") + 1:]
            literal = f"({before}[]{rest}){value}" if value.startswith("{") else value
            count = sum(bool(part.strip()) for _, part in top_level(value[1:-1], ","))
            later = f"[{count}]{rest}" if late else f"[sizeof({literal}) / sizeof({before}{rest})]{rest}"
        self.new_types[name] = kind
        self.declare(f"extern {before}{name}{later if late else after} {label};", line)
        text = f"{before}{name}{later} = {{0}};" if late else f"{before}{name}{after} = {value};"
        self.declare(text, line, 0, f"extern {before}{'const ' * function}{name}{later} {label};", name)
        return True

    def variables(self, item):
        """TYPE a = x, *b; A variable is defined as zero, and gets its value when the statements run."""
        text = re.sub(r"^((?:static|inline)\s+)+", lambda m: " " * len(m[0]),
                      without_comments(item.text).rstrip().rstrip(";"))
        parts = list(top_level(text, ","))
        first = re.match(r"\s*((?:(?:struct|union|enum)\s+\w+|__typeof__\s*\([^)]*\)|\w+)(?:\s+\w+)*?\s*)"
                         r"(?=(?:[*\s]|const\b)*\(?\**\w+\s*\)?\s*(?:[\[(=]|$))", parts[0][1], re.S)
        if not first:
            self.declare(item.text, item.line, item.column)
            return
        for index, (offset, part) in enumerate(parts):
            if index == 0:
                offset, part = offset + first.end(), part[first.end():]
            before = text[:offset]
            line = item.line + before.count("\n")
            column = len(before) - before.rfind("\n") - 1 + (0 if "\n" in before else item.column)
            self.variable(first[1], part, line, column)

    def variable(self, kind, part, line, column):
        sides = list(top_level(part, "="))
        declarator = sides[0][1].rstrip()
        value = part[sides[1][0]:].strip() if len(sides) > 1 else None
        found = re.match(r"((?:[\s*]|const\b)*(?:\(\s*\*\s*)?)(\w+)(.*)$", declarator, re.S)
        if not found:
            self.declare(f"{kind}{part};", line)
            return
        stars, name, after = found.groups()
        if value is None and re.match(r"\s*\(", after):  # a prototype
            self.define(f"{kind}{stars}(*", name, f"){after}", "0", line, function=True)
            return
        listed = value is not None and (value[0] == "{" or (value[0] == '"' and "[" in after))
        fixed = "const" in (kind + stars).split("*")[-1].split()  # the variable itself is const
        late = listed and not fixed and (re.search(r"[A-Za-z_]\w*\s*\(", value) is not None or
                                         any(word in self.new_types for word in normal(value).split()))
        new = self.define(kind + stars, name, after, value if value and (listed or fixed) else "{0}", line, fixed, late)
        if fixed or (new and not late and (listed or value is None)):
            return
        if value is None:
            text = f"memset(&{name}, 0, sizeof {name});"
        elif listed:
            literal = value if value[0] == "{" else "{" + value + "}"
            text = f"memcpy(&{name}, &(__typeof__({name})){literal}, sizeof {name});"
        else:
            text = f"{name} = {value};"
        self.statements += self.lines(text, line, column + part.find(name))


# ---- the process that runs cells -------------------------------------------------------------------------------------

def compiler():
    return os.environ.get("CC", "cc")


def built(name, *command):
    """A file that the compiler makes, once for each content of the sources. Returns its path."""
    sources = [ROOT / "dtrain.h", HERE / "notebook.h", HERE / "notebook.c"]
    version = subprocess.run([compiler(), "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(version + repr(command).encode() + b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]
    path = BUILD / f"{key}-{name}"
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        partial = BUILD / f"{os.getpid()}-{name}"
        command = [compiler(), *FLAGS, "-O2", *command, "-o", str(partial), "-lm", "-lpthread", "-ldl"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        partial.rename(path)
    return path


def library():
    return built("library.so", "-fPIC", "-shared", str(HERE / "notebook.c"))


def runner():
    """The program that loads cells: the library's nb_main."""
    start = BUILD / "runner.c"
    path = library()
    start.write_text("int nb_main(void);\nint main(void) { return nb_main(); }\n")
    return built("runner", str(start), str(path))


def interruptible():
    """In a new process: the kernel ignores SIGINT, its programs do not. On Linux they end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def arriving(streams, output, meanwhile=lambda: None):
    """What comes from the streams: (stream, bytes), without bytes at its end. Meanwhile the output goes on."""
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(Output.PAUSE):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                yield key.fileobj, data
            output.send_waiting()
            meanwhile()


class Ended(Exception):
    """The process that runs cells has ended. Its argument is a sentence that says how."""


class Interpreter:
    interrupted = math.inf  # when the kernel was interrupted last, while the cell runs
    PATIENCE = 2

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="cells-"))
        files = self.folder / "files"  # those of the cells, apart from the compiler's
        files.mkdir()
        self.process = subprocess.Popen([str(runner())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, bufsize=0, cwd=files, preexec_fn=interruptible)
        self.checks = (0, 0)  # of the last cell: those that are ok, all

    def compile(self, source, text, number, output):
        """Makes a shared object of a cell's C text, and shows the compiler's messages. Returns its path, or None."""
        (self.folder / f"cell {number}").write_text(source)  # here the compiler finds the line that it shows
        (self.folder / "cell.c").write_text(text)
        path = self.folder / f"cell-{number}.so"
        done = subprocess.run([compiler(), *FLAGS, "-O1", "-fPIC", "-shared", *WARNINGS, *DIVISIONS, "cell.c",
                               "-o", path.name], capture_output=True, text=True, cwd=self.folder,
                              env={**os.environ, "LC_ALL": "C"})
        (self.folder / "cell.c").unlink()  # a graded cell's has the key
        messages = re.sub(r"^(cell[^:]*: (In function '[^']*'|At top level):|cc1: some warnings .* errors)\n", "",
                          done.stderr, flags=re.M)
        bracket = done.returncode and unbalanced(source)
        if bracket:
            messages = at(number, source, *bracket)
        elif done.returncode and RETYPED.search(messages):
            messages += "A type stays what its first cell made it. Restart the kernel and run the cells again, or " \
                        "choose another name.\n"
        output.show("stderr", messages)
        return path if done.returncode == 0 else None

    def run(self, path, number, key, seed, output):
        """Runs a cell. Its output is shown as it comes. Returns how it went (nb_main has the words)."""
        Interpreter.interrupted = math.inf
        mark = secrets.token_hex(8)  # so that nothing which the cell prints is taken for a message of nb_main
        self.mark = f"\x1e{mark} ".encode()
        try:
            self.process.stdin.write(f"{number} {mark} {key:x} {seed:x} {path}\n".encode())
        except BrokenPipeError:
            pass
        streams = {self.process.stdout: "stdout", self.process.stderr: "stderr"}
        decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in streams}
        rest, ends = dict.fromkeys(streams, b""), {}
        for stream, data in arriving(streams, output, self.end_if_deaf):
            rest[stream], end = self.pass_on(rest[stream] + data, streams[stream], decoders[stream], output.show)
            if end:
                ends[stream] = end
            if len(ends) == 2:
                _, how, good, checks = ends[self.process.stdout]
                self.checks = (int(good), int(checks))
                return how
        return self.ended()

    def end_if_deaf(self):
        """Ends a cell that an interrupt has not stopped."""
        if time.monotonic() > self.interrupted + self.PATIENCE:
            self.process.kill()

    def pass_on(self, data, stream, decoder, show):
        """Shows what is complete. Returns (what is left, the words of the message that ends a cell, or None)."""
        while True:
            begin = data.find(self.mark)
            if begin < 0:  # a message may have begun
                part = next((k for k in range(len(self.mark) - 1, 0, -1) if data.endswith(self.mark[:k])), 0)
                show(stream, decoder.decode(data[:len(data) - part]))
                return data[len(data) - part:], None
            show(stream, decoder.decode(data[:begin], True))
            line, found, after = data[begin + len(self.mark):].partition(b"\n")
            words = line.decode().split()
            if found and words[0] == "end":
                return b"", words
            if not found or len(after) < int(words[1]):
                return data[begin:], None
            show("picture", after[:int(words[1])].decode(errors="replace"))
            data = after[int(words[1]):]

    def ended(self):
        status = self.process.wait()
        self.close()
        if status == -signal.SIGKILL and self.interrupted < math.inf:
            raise Ended("interrupted, and the cell did not stop by itself")
        if status in (128 + signal.SIGINT, -signal.SIGINT):
            raise Ended("interrupted while ranks were running")
        if status < 0:
            why = {signal.SIGSEGV: " (a pointer that points nowhere, an index out of bounds, a function that no cell "
                                   "defines, or a recursion without an end)",
                   signal.SIGILL: " (an integer division by zero)", signal.SIGABRT: " (abort)"}
            number = signal.Signals(-status)
            raise Ended(f"the cell crashed with {number.name}{why.get(number, '')}")
        raise Ended(f"the cell called exit({status})")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


# ---- Jupyter ---------------------------------------------------------------------------------------------------------

class Output:
    """What a cell shows. Its text is sent at most ten times a second and cut at a length, so that a loop that prints
    leaves the notebook's page usable: at 64 kB of text or 256 kB of pictures, since many short lines are what takes a
    browser time."""
    PAUSE, LENGTH, TEXT = 0.1, 1 << 18, 4

    def __init__(self, send):
        self.send, self.waiting, self.length, self.more, self.next = send, {}, 0, 0, 0.0

    def show(self, stream, text):
        """stream: stdout, stderr, or picture, which is shown as a whole or not at all."""
        each = 1 if stream == "picture" else self.TEXT
        room = 0 if self.more else (self.LENGTH - self.length) // each
        shown = text[:room] if stream != "picture" or len(text) <= room else ""
        self.length += len(shown) * each
        if stream == "picture" and shown:
            self.send_waiting(now=True)
            self.send(stream, shown)
        elif shown:
            self.waiting[stream] = self.waiting.get(stream, "") + shown
        if len(shown) < len(text) and not self.more:
            self.waiting["stderr"] = self.waiting.get("stderr", "") + "\noutput is cut here: "
        self.more += len(text) - len(shown)
        self.send_waiting()

    def send_waiting(self, now=False):
        if now or time.monotonic() >= self.next:
            for stream, text in self.waiting.items():
                self.send(stream, text)
            self.waiting, self.next = {}, time.monotonic() + self.PAUSE

    def end(self):
        if self.more:
            self.waiting["stderr"] = self.waiting.get("stderr", "") + \
                f"{-(-self.more // 100000) / 10} MB more were not shown\n"
        self.send_waiting(now=True)


class Kernel(KernelBase):
    implementation = "dtrain-c"
    implementation_version = "1"
    banner = "C with dtrain.h"
    language_info = {"name": "c", "mimetype": "text/x-csrc", "file_extension": ".c"}

    def __init__(self, **arguments):
        super().__init__(**arguments)
        signal.signal(signal.SIGINT, self.interrupt)  # the interpreter gets the signal as well, and handles it
        self.header = (ROOT / "dtrain.h").read_text().split("#ifdef DTRAIN_IMPLEMENTATION")[0]
        self.interpreter = None
        self.scores = {}  # by a graded cell's text: its checks that are ok, and all of them
        self.seed = int(os.environ.get("NOTEBOOK_SEED") or secrets.randbelow(10 ** 6))

    def interrupt(self, *_):
        Interpreter.interrupted = time.monotonic()

    def pre_handler_hook(self):
        """Leaves SIGINT to the interpreter."""

    def post_handler_hook(self):
        """Leaves SIGINT to the interpreter."""

    def start_interpreter(self):
        self.translator = Translator()
        self.interpreter = Interpreter()

    def show(self, stream, text):
        """Sends output to the notebook."""
        if stream == "picture":
            content = {"data": {"image/svg+xml": text, "text/plain": "picture"}, "metadata": {}}
            self.send_response(self.iopub_socket, "display_data", content)
            return
        self.send_response(self.iopub_socket, "stream", {"name": stream, "text": text})

    def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False, **_):
        output = Output((lambda *_: None) if silent else self.show)
        run = self.program if code.startswith("%%program") else self.score if code.startswith("%%score") else self.cell
        try:
            how = run(code, output)
        except (Ended, OSError, subprocess.CalledProcessError) as error:
            self.interpreter = None
            how = (f"{error}. The program starts anew: its variables are gone. Run the cells above again."
                   if isinstance(error, Ended) else f"{error} {getattr(error, 'stderr', '') or ''}")
        output.end()
        reply = {"execution_count": self.execution_count}
        if how == "ok":
            return {"status": "ok", **reply, "payload": [], "user_expressions": {}}
        name, sentence = {"error": ("error", "the cell was not compiled, and nothing of it has run"),
                          "failed": ("check", "a check is not ok"),
                          "interrupted": ("interrupted", "the rest of the cell was left out")}.get(how, ("ended", how))
        content = {"ename": name, "evalue": sentence, "traceback": [f"{name}: {sentence}"]}
        if not silent:
            self.send_response(self.iopub_socket, "error", content)
        return {"status": "error", **reply, **content}

    def cell(self, code, output):
        if not self.interpreter:
            self.start_interpreter()
        number = self.execution_count
        graded = code == with_mark(code)
        key = secrets.randbits(63) if graded else 0
        if not graded and code.startswith(GRADES[:9]):
            output.show("stderr", "This cell has been changed. Its checks do not count.\n")
        self.scores.pop(code, None)
        try:
            text = self.translator.translate(code, number, key)
        except Refused as error:
            output.show("stderr", str(error))
            return "error"
        path = self.interpreter.compile(code, text, number, output)
        if not path:
            return "error"
        output.show("stderr", self.translator.warnings())
        seed = random.Random(f"{self.seed} {number}").getrandbits(64)
        how = self.interpreter.run(path, number, key, seed, output)
        if how != "error":
            self.translator.keep()
        if self.interpreter.checks[1]:
            self.scores[code] = self.interpreter.checks
        return how

    def score(self, code, output):
        """%%score N: how many of the notebook's N checks are ok. NOTEBOOK_SEED=.. draws the same inputs again."""
        total = int(re.sub(r"\D", "", code) or 0)
        good, seen = (sum(score[k] for score in self.scores.values()) for k in (0, 1))
        missing = f"; {total - seen} have not run yet" if seen < total else ""
        output.show("stdout", f"score: {good} of {total} checks{missing}; inputs of seed {self.seed}\n")
        return "ok"

    def program(self, code, output):
        """%%program ARGUMENTS: the rest of the cell is a program. It is compiled, linked with the library and run."""
        first, _, source = code.partition("\n")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "program.c").write_text(f"\n{source}\n")
            compiled = subprocess.run([compiler(), *FLAGS, "-O2", "-Wall",
                                       "-DDTRAIN_IMPLEMENTED", "program.c", "-o", "program", str(library()), "-lm",
                                       "-lpthread"], capture_output=True, text=True, cwd=folder)
            output.show("stderr", compiled.stderr)
            if compiled.returncode:
                return "error"
            command = f'exec ./program {first[len("%%program"):]}'
            with subprocess.Popen(["sh", "-c", command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  stdin=subprocess.DEVNULL, preexec_fn=interruptible) as process:
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                for _, data in arriving([process.stdout], output):
                    output.show("stdout", decoder.decode(data, not data))
            if process.returncode in (-signal.SIGINT, 128 + signal.SIGINT):
                return "interrupted"
            return "ok" if process.returncode == 0 else f"the program ended with status {process.returncode}"

    def do_complete(self, code, cursor_pos):
        word = re.search(r"\w*$", code[:cursor_pos])[0]
        names = set(re.findall(r"\b(?:dt|DT)_\w+", self.header)) | set(re.findall(r"\w+", code))
        matches = sorted(n for n in names if word and n.startswith(word) and n != word and not n.startswith("dt__"))
        return {"status": "ok", "matches": matches, "cursor_start": cursor_pos - len(word), "cursor_end": cursor_pos,
                "metadata": {}}

    def do_inspect(self, code, cursor_pos, detail_level=0, omit_sections=()):
        """The declaration of the name under the cursor, with the comment above it."""
        word = re.search(r"\w*$", code[:cursor_pos])[0] + re.match(r"\w*", code[cursor_pos:])[0]
        pattern = r"((?:/\*(?:(?!\*/).)*\*/\n)?)^DT_API [^;\n]*\b" + word + r"\([^;]*;[^\n]*"
        found = word and re.search(pattern, self.header, re.M | re.S)
        data = {"text/plain": found[0]} if found else {}
        return {"status": "ok", "found": bool(found), "data": data, "metadata": {}}

    def do_shutdown(self, restart):
        if self.interpreter:
            self.interpreter.close()
        self.interpreter = None
        return {"status": "ok", "restart": restart}


if __name__ == "__main__":
    from ipykernel.kernelapp import IPKernelApp
    if sys.argv[1:] == ["--library"]:
        print(library())
    else:
        IPKernelApp.launch_instance(kernel_class=Kernel)
