"""A Jupyter kernel for C: it splits cells into declarations and statements and hands them to clang-repl.

At its top level C allows declarations whose initializers are constants. A cell may hold more: statements, initializers
that call functions, and, when it runs again, the same declarations once more. `Translator` rewrites a cell so that C
accepts it. `Interpreter` is the process that runs it. `Kernel` speaks to Jupyter.
"""
import hashlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ipykernel.kernelbase import Kernel as KernelBase

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "notebooks"
WARNINGS = ["-Wall", "-Wno-unused-variable", "-Wno-unused-function", "-Wno-unused-value"]


# ---- a cell becomes C ------------------------------------------------------------------------------------------------

TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\w+|\s+|.""", re.S)
STATEMENT_WORDS = {"if", "for", "while", "do", "switch", "return", "goto", "break", "continue", "else"}
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
                             re.match(r"(typedef|struct|union|enum)\b(?!.*\))", text, re.S)):
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


def normal(text):
    return " ".join(Item(text, 0, 0).words())


class Translator:
    """Rewrites cells. It remembers what earlier cells have declared: the name, and the text of its type."""

    def __init__(self, types):
        self.types = set(types)  # names of types from headers
        self.known = {}
        self.before = []  # the declarations of the cells before, as plain C

    def translate(self, source, number):
        """C text for clang-repl. self.plain is the same text as plain C, for a compiler that looks for errors. `keep`
        remembers what the cell has declared."""
        self.cell, self.fresh, self.fresh_types = number, dict(self.known), set(self.types)
        self.out, self.plain, self.declared, self.statements, self.groups = [], list(self.before), [], [], 0
        for item in split(source):
            self.item(item)
        self.flush()
        self.plain = "\n".join(self.plain) + "\n"
        return "\n".join(self.out) + "\n"

    def keep(self):
        self.known, self.types = self.fresh, self.fresh_types
        self.before += self.declared

    def lines(self, text, line, column):
        return [f'#line {line + 1} "cell {self.cell}"', " " * column + text]

    def call(self, text):
        """A statement at the top level, which plain C has not."""
        self.out.append(text)
        self.plain.append(f"void nb_call_{len(self.plain)}(void) {{ {text} }}")

    def flush(self):
        """Statements become a function, which nb_run calls and can interrupt."""
        if self.statements:
            name = f"nb_cell_{self.cell}_{self.groups}"
            self.groups += 1
            function = [f"void {name}(void) {{", *self.statements, "}"]
            self.out += function
            self.plain += function
            self.statements = []
            self.call(f"nb_run({name});")

    def declare(self, text, line, column=0, body=False):
        """At the top level. Later cells need it, too, unless it is the body of a function."""
        self.flush()
        lines = self.lines(text, line, column)
        self.out += lines
        self.plain += lines
        if not body:
            self.declared += lines

    def item(self, item):
        words = item.words()
        if not words or words == [";"]:
            return
        if words[0] == "#":
            macro = re.match(r"#\s*define\s+(\w+)", item.text)
            if macro:
                self.declare(f"#undef {macro[1]}", item.line)
            self.declare(item.text, item.line, item.column)
        elif not self.is_declaration(words):
            self.statements += self.lines(item.text, item.line, item.column)
        elif words[0] == "typedef" or (words[0] in ("struct", "union", "enum") and re.match(r"\w+\s*(\w+\s*)?\{", item.text)):
            self.type(item, words)
        elif words[0] in ("extern", "_Static_assert"):
            self.declare(item.text, item.line, item.column)
        elif item.text.endswith("}") and not is_initializer(item.text):
            self.function(item)
        else:
            self.variables(item)

    def is_declaration(self, words):
        if words[0] in STATEMENT_WORDS or words[0] == "{":
            return False
        return words[0] in DECLARATION_WORDS or words[0] in self.fresh_types

    def type(self, item, words):
        """A type whose text is known is not declared again."""
        text = normal(item.text)
        if words[0] == "typedef":
            name = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(|(\w+)\s*(?:\[[^]]*\]\s*)*;\s*$", item.text)
            if name:
                self.fresh_types.add(name[1] or name[2])
        if self.fresh.get(text) != "type":
            self.fresh[text] = "type"
            self.declare(item.text, item.line, item.column)

    def function(self, item):
        """A function becomes a pointer, which keeps its name, and a body, so that a later cell can set a new body."""
        head = item.text[:item.text.index("{")]
        found = re.match(r"(?:static\s+|inline\s+)*(.*?)(\w+)\s*(\(.*\))\s*$", head, re.S)
        if not found:
            self.declare(item.text, item.line, item.column)
            return
        result, name, arguments = found[1], found[2], found[3]
        self.pointer(item, name, result, arguments)
        body = f"{name}__{self.cell}"
        self.declare(result + body + arguments + item.text[len(head.rstrip()):], item.line, item.column, body=True)
        self.call(f"{name} = {body};")

    def pointer(self, item, name, result, arguments):
        kind = normal(f"{result}(*){arguments}")
        if self.fresh.get(name) != kind:
            again = name in self.fresh  # as a prototype, say: the compiler compares the types
            self.fresh[name] = kind
            self.declare(f"extern {result}(*{name}){arguments};" if again else f"{result}(*{name}){arguments} = 0;", item.line)

    def variables(self, item):
        """TYPE a = x, *b; A variable is declared once, as zero or with its constant; then it gets its value."""
        text = re.sub(r"^((?:static|inline)\s+)+", lambda m: " " * len(m[0]), item.text.rstrip().rstrip(";"))
        parts = list(top_level(text, ","))
        first = re.match(r"\s*((?:(?:struct|union|enum)\s+\w+|__typeof__\s*\([^)]*\)|\w+)(?:\s+\w+)*?\s*)"
                         r"(?=(?:[*\s]|const\b)*\(?\**\w+\s*\)?\s*(?:[\[(=]|$))", parts[0][1], re.S)
        if not first:
            self.declare(item.text, item.line, item.column)
            return
        kind = first[1]
        for index, (offset, part) in enumerate(parts):
            if index == 0:
                offset, part = offset + first.end(), part[first.end():]
            self.variable(item, kind, part, text[:offset])

    def variable(self, item, kind, part, before):
        declarator, value = part, None
        sides = list(top_level(part, "="))
        if len(sides) > 1:
            declarator, value = sides[0][1], part[sides[1][0]:].strip()
        line = item.line + before.count("\n")
        column = len(before) - before.rfind("\n") - 1 + (0 if "\n" in before else item.column)
        prototype = re.match(r"([\s*]*)(\w+)\s*(\(.*\))\s*$", declarator, re.S)
        if prototype and value is None:
            self.pointer(item, prototype[2], kind + prototype[1], prototype[3])
            return
        name = re.search(r"\w+", declarator.replace("const ", ""))
        if not name:
            self.declare(item.text, item.line, item.column)
            return
        name = name[0]
        type_text = normal(kind + declarator)
        constant = value is not None and (value.startswith(("{", '"')) or not re.search(r"[A-Za-z_]\w*\s*[(\w]|&|->", value)
                                          and not re.search(r"\b[A-Za-z_]\w*\b(?<!\df)", re.sub(r"\b[\d.]\w*", "", value)))
        if "const" in kind.split() and "*" not in declarator and constant:
            if self.fresh.get(name) != type_text + value:
                self.fresh[name] = type_text + value
                self.declare(f"{kind}{declarator} = {value};", line)
            return
        new = self.fresh.get(name) != type_text
        self.fresh[name] = type_text
        braces = value is not None and value.startswith(("{", '"')) and "*" not in declarator
        if new:
            zero = value if braces or (constant and value is not None) else "{0}"
            self.declare(f"{kind}{declarator} = {zero};", line)
        if value is None:
            text = f"memset(&{name}, 0, sizeof {name});"
        elif braces:
            text = f"memcpy(&{name}, &(__typeof__({name})){value if value[0] == '{' else '{' + value + '}'}, sizeof {name});"
        else:
            text = f"{name} = {value};"
        if not (new and (braces or value is None)):
            self.statements += self.lines(text, line, max(column + part.find(name), 0))


def types_of(text):
    """Names that a header's typedefs declare, well enough to tell a declaration from a statement."""
    return set(re.findall(r"(?:^typedef\b[^;{(]*?|\}\s*)\b(\w+);", text, re.M)) | \
        set(re.findall(r"^typedef\b[^;{(]*\(\s*\*\s*(\w+)\s*\)", text, re.M))


# ---- the process that runs cells -------------------------------------------------------------------------------------

def built(name, sources, *command, libraries=()):
    """A file that a command makes of the last source, once for each content of the sources. Returns its path."""
    version = subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(version + b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]
    path = BUILD / f"{key}-{name}"
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        partial = BUILD / f"{os.getpid()}-{name}"
        subprocess.run([*command, "-std=gnu11", "-O2", f"-I{ROOT}", f"-I{HERE}", str(sources[-1]), "-o", str(partial),
                        *libraries], check=True, capture_output=True, text=True)
        partial.rename(path)
    return path


def library():
    sources = [ROOT / "dtrain.h", HERE / "notebook.h", HERE / "notebook.c"]
    return built("library.so", sources, os.environ.get("CC", "cc"), "-fPIC", "-shared", libraries=("-lm", "-lpthread"))


def declarations():
    sources = [ROOT / "dtrain.h", HERE / "notebook.h"]
    return built("notebook.pch", sources, find("clang"), "-xc-header")


def find(tool):
    for version in (19, 20, 21):
        if shutil.which(f"{tool}-{version}"):
            return f"{tool}-{version}"
    raise FileNotFoundError(f"no {tool}-19: install the Debian package clang-tools-19 (./build.sh notebooks does)")


class Ended(Exception):
    """The interpreter's process has ended. Its argument is a sentence that says how."""


class Interpreter:
    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="cells-"))
        flags = ["-xc", "-std=gnu11", "-O2", "-w", f"-I{ROOT}", f"-I{HERE}"]
        command = [find("clang-repl")] + [f"-Xcc={flag}" for flag in flags]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        bufsize=0, cwd=self.folder)
        self.number = 0
        self.interrupted = None
        self.say(f"%lib {library()}\n")
        ok = self.run('#include "notebook.h"\nvoid nb_run(void (*)(void)); void nb_done(int, int); void nb_start(void);\n'
                      "int nb_ran = 0;\nnb_start();\n", lambda *_: None)
        if ok != "ok":
            raise Ended("the interpreter does not start: try ./build.sh notebooks")

    def say(self, text):
        try:
            self.process.stdin.write(text.encode())
        except BrokenPipeError:
            pass

    def wrong(self, plain, show):
        """Shows the compiler's errors and warnings. clang-repl does not survive an error, so it gets none to see."""
        path = self.folder / "cell.c"
        path.write_text("void nb_run(void (*)(void));\n" + plain)
        found = subprocess.run([find("clang"), "-fsyntax-only", "-xc", "-std=gnu11", "-O2", f"-I{ROOT}", f"-I{HERE}",
                                "-include-pch", str(declarations()), *WARNINGS, str(path)], capture_output=True, text=True)
        text = re.sub(r"^(\d+ (warning|error)s?( and \d+ errors?)?) generated\.\n", "", found.stderr, flags=re.M)
        if text:
            show("stderr", text)
        return found.returncode != 0

    def run(self, code, show):
        """Runs C text. show(stream, text) gets the output as it comes. Returns how it went (nb_done has the words)."""
        self.number += 1
        path = self.folder / f"cell-{self.number}.c"
        path.write_text(code + f"nb_ran = {self.number};\n")
        self.say(f'#include "{path}"\nnb_done({self.number}, nb_ran == {self.number});\n')
        return self.listen(show)

    def listen(self, show):
        streams = {self.process.stdout: "stdout", self.process.stderr: "stderr"}
        rest = dict.fromkeys(streams, b"")
        how = None
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(0.2):
                    stream = key.fileobj
                    data = os.read(stream.fileno(), 1 << 16)
                    if b"Failed to materialize symbols" in data:
                        self.close()
                        raise Ended("the cell calls a function that is declared but not defined")
                    rest[stream], end = self.pass_on(rest[stream] + data, streams[stream], show)
                    if end:
                        how = end if stream is self.process.stdout else how
                    if end or not data:
                        selector.unregister(stream)
                        if not data and not end:
                            return self.ended()
        return how

    def pass_on(self, data, stream, show):
        """Shows what is complete. Returns (what is left, the word after the mark that ends a cell, or None)."""
        while data:
            mark = min((at for at in (data.find(b"\x1e"), data.find(b"\x1d")) if at >= 0), default=-1)
            if mark != 0:
                text = data if mark < 0 else data[:mark]
                tail = b""
                if mark < 0:  # not the first half of a character
                    while len(tail) < 4 and text and text[-1] & 0xC0 == 0x80:
                        text, tail = text[:-1], text[-1:] + tail
                    if text and text[-1] >= 0xC0:
                        text, tail = text[:-1], text[-1:] + tail
                    complete = (text + tail).decode(errors="ignore").encode() == text + tail
                    text, tail = (text + tail, b"") if complete else (text, tail)
                show(stream, text.decode(errors="replace"))
                data = tail if mark < 0 else data[mark:]
                if mark < 0:
                    return data, None
                continue
            line, found, after = data[1:].partition(b"\n")
            if not found:
                return data, None
            if data[:1] == b"\x1e":
                return b"", line.decode().split()[-1]
            size = int(line)
            if len(after) < size:
                return data, None
            show("picture", after[:size].decode(errors="replace"))
            data = after[size:]
        return b"", None

    def ended(self):
        status = self.process.wait()
        self.close()
        if status in (128 + signal.SIGINT, -signal.SIGINT):
            raise Ended("interrupted while ranks were running")
        if status < 0:
            why = {signal.SIGSEGV: " (a pointer that points nowhere, or an index out of bounds)",
                   signal.SIGFPE: " (an integer division by zero)", signal.SIGABRT: " (abort)"}
            number = signal.Signals(-status)
            raise Ended(f"the cell crashed with {number.name}{why.get(number, '')}")
        raise Ended(f"the cell called exit({status})")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


# ---- Jupyter -----------------------------------------------------------------------------------------------------------

class Kernel(KernelBase):
    implementation = "dtrain-c"
    implementation_version = "1"
    banner = "C, interpreted by clang-repl, with dtrain.h"
    language_info = {"name": "c", "mimetype": "text/x-csrc", "file_extension": ".c"}

    def __init__(self, **arguments):
        super().__init__(**arguments)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interpreter gets the signal as well, and handles it
        self.header = (ROOT / "dtrain.h").read_text().split("#ifdef DTRAIN_IMPLEMENTATION")[0]
        self.interpreter = None

    def pre_handler_hook(self):
        """Leaves SIGINT to the interpreter."""

    def post_handler_hook(self):
        """Leaves SIGINT to the interpreter."""

    def start_interpreter(self):
        known = types_of(self.header) | types_of((HERE / "notebook.h").read_text())
        self.translator = Translator(known | {"FILE", "size_t", "time_t", "ssize_t"} |
                                     {f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)})
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the interpreter shall not inherit that it is ignored
        self.interpreter = Interpreter()
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def show(self, stream, text):
        if stream == "picture":
            content = {"data": {"image/svg+xml": text, "text/plain": "picture"}, "metadata": {}}
            self.send_response(self.iopub_socket, "display_data", content)
            return
        if text:
            self.send_response(self.iopub_socket, "stream", {"name": stream, "text": text})

    def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False, **_):
        show = (lambda *_: None) if silent else self.show
        try:
            how = self.program(code, show) if code.startswith("%%program") else self.cell(code, show)
        except (Ended, OSError, subprocess.CalledProcessError) as error:
            self.interpreter = None
            how = (f"{error}. The interpreter starts anew: its variables are gone. Run the cells above again."
                   if isinstance(error, Ended) else f"{error} {getattr(error, 'stderr', '') or ''}")
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

    def cell(self, code, show):
        if not self.interpreter:
            self.start_interpreter()
        text = self.translator.translate(code, self.execution_count)
        if self.interpreter.wrong(self.translator.plain, show):
            return "error"
        how = self.interpreter.run(text, show)
        self.translator.keep()
        return how

    def program(self, code, show):
        """%%program ARGUMENTS: the rest of the cell is a program. It is compiled, linked with the library and run."""
        first, _, source = code.partition("\n")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "program.c").write_text(f"\n{source}\n")
            compiled = subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-Wall", f"-I{ROOT}", f"-I{HERE}",
                                       "-DDTRAIN_IMPLEMENTED", "program.c", "-o", "program", str(library()), "-lm",
                                       "-lpthread"], capture_output=True, text=True, cwd=folder)
            if compiled.stderr:
                show("stderr", compiled.stderr)
            if compiled.returncode:
                return "error"
            command = f'exec ./program {first[len("%%program"):]}'
            with subprocess.Popen(["sh", "-c", command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  stdin=subprocess.DEVNULL) as process:
                for line in process.stdout:
                    show("stdout", line.decode(errors="replace"))
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
        found = word and re.search(r"((?:/\*(?:(?!\*/).)*\*/\n)?)^DT_API [^;\n]*\b" + word + r"\([^;]*;[^\n]*", self.header,
                                   re.M | re.S)
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
