"""Runs notebooks without a browser.

    execute.py store FILE ...    runs with the solutions; stores them and their outputs in the folder solutions, with a
                                 hash of what they were made from
    execute.py check FILE ...    TAP: the stored outputs are up to date; with the solutions every check is ok; with the
                                 learner's cells left blank none is, and no message has the answer; with wrong ones
                                 the cells that grade them say so
    execute.py solved FILE ...   the same without the blank and the wrong cells
    execute.py current FILE ...  the same without running anything
    execute.py grade FILE ...    the score of the learner's cells of FILE in the notebook as it was stored: whatever
                                 else has been changed in FILE does not count

A cell's metadata has {"dtrain": {"role": "learner", "solution": TEXT}} for a cell that the learner fills in,
{"role": "grade"} for one that grades, and {"role": "score"} for the last one. Some learner's cells have {"wrong": TEXT}
beside it: the numbers of the text's examples, or of a run above, typed in or copied. The learner's file has no outputs.
"""
import copy
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

from kernel import Refused, Translator, with_mark, without_comments

HERE = Path(__file__).resolve().parent
MADE_FROM = [HERE.parent / "dtrain.h", HERE.parent / "examples/layers.h",
             HERE.parent / "examples/gpu.h", HERE.parent / "examples/kernels.h",
             HERE.parent / "examples/tools/plan.h", HERE.parent / "examples/tools/cost.h",
             HERE.parent / "examples/tools/runs.h", HERE / "notebook.h", HERE / "notebook.c"]
TYPESET = re.compile(r"`[^`]*`|\$\$[^$]+\$\$|\$[^$\n]+\$")  # code, and formulas of MathJax
# What belongs into a formula: powers, = after a letter or f(x), sums in brackets, products and quotients of letters.
RAW = re.compile(r"\w ?\^ ?\w|[²³√×·$]|\b[A-Za-z](\(\w+\))? ?= ?\S|\(\w+ [-+] \w+\)|\(\w[-+]\w\)|"
                 r"\b\w ?[-+*/] ?\(|\w\) ?[/*] ?\w|\b\w+ x \w+\b|\b[A-Za-z] / \w|\b\d [A-Za-z] [A-Za-z]\b")
FULL = re.compile(r"score: ([1-9]\d*) of \1 checks; inputs of seed \d+\n")
# What could give names of other cells another meaning.
FOREIGN = re.compile(r"^\s*(?:#|%:)\s*(?!(?:define|undef|if\w*|el\w+|endif)\b|include\s*<\w[\w.]*>)[^\n]*|"
                     r"\b(?:__asm__|__asm|asm|_Pragma)\b", re.M)


def role(cell):
    return cell.metadata.get("dtrain", {}).get("role")


def sources_hash(book):
    """Of all that decides the outputs: the cells, the solutions, the library."""
    cells = [[c.cell_type, c.source, c.metadata.get("dtrain", {})] for c in book.cells]
    text = json.dumps(cells, sort_keys=True).encode()
    return hashlib.sha256(text + b"".join(p.read_bytes() for p in MADE_FROM)).hexdigest()


def executed(book, *keys):
    """A copy with outputs, whose learner's cells have the first of these texts that they have. A cell that fails does
    not keep the others from running."""
    book = copy.deepcopy(book)
    for cell in book.cells:
        cell.source = next((cell.metadata["dtrain"][key] for key in keys if key in cell.metadata.get("dtrain", {})),
                           cell.source)
    try:
        NotebookClient(book, timeout=300, allow_errors=True, kernel_name="dtrain-c").execute(stderr=subprocess.DEVNULL)
    except DeadKernelError:
        print("# the kernel died")
    return book


def functions(source):
    """The names of the functions that a cell defines."""
    translator = Translator()
    try:
        translator.translate(source, 0, 0)
    except Refused:
        pass
    return set(translator.new_bodies)


def submitted(path):
    """The stored notebook of this name with the learner's cells of a file; sentences on what in them would change
    other cells. Macros of a learner's cell end with it."""
    book = nbformat.read(HERE / "solutions" / Path(path).name, 4)
    theirs = {cell.id: cell.source for cell in nbformat.read(path, 4).cells}
    given, wrong = set(), ""
    for cell in book.cells:
        if role(cell) == "learner":
            stored, cell.source = functions(cell.source), theirs.get(cell.id, "")
            for name in (functions(cell.source) - stored) & given:
                wrong += f"a cell of yours defines {name}, which another cell defines. Choose another name.\n"
            for text in FOREIGN.findall(without_comments(cell.source)):
                wrong += f"a cell of yours has '{text.strip()}'. Use #define, #if or #include <...> instead.\n"
            macros = re.findall(r"^\s*#\s*define\s+(\w+)", cell.source, re.M)
            cell.source += "".join(f"\n#undef {name}" for name in macros)
        elif cell.cell_type == "code" and not role(cell):
            given |= functions(cell.source)
    return book, wrong


def grade(path):
    """Prints what the graded cells say, and the score. Returns whether it is full."""
    book, wrong = submitted(path)
    if wrong:
        print(f"{path}: not graded:\n{wrong}", end="")
        return False
    book = executed(book)
    for cell in book.cells:
        if role(cell) in ("grade", "score"):
            print(f"{path}: {text_of(cell)}" if role(cell) == "score" else text_of(cell), end="")
            print("".join(f"{e.ename}: {e.evalue}\n" for e in errors(cell)), end="")
    return FULL.fullmatch(text_of(book.cells[-1])) is not None


def errors(cell):
    return [o for o in cell.get("outputs", []) if o.output_type == "error"]


def solved_file(path):
    return Path(path).parent / "solutions" / Path(path).name


def store(path):
    book = nbformat.read(path, 4)
    for cell in book.cells:
        if role(cell) == "grade":
            cell.source = with_mark(cell.source)
    nbformat.write(book, path)
    os.environ["NOTEBOOK_SEED"] = "1"
    done = executed(book, "solution")
    for cell in done.cells:
        for error in errors(cell):
            sys.exit(f"{path}: this cell fails ({error.ename}: {error.evalue}):\n{cell.source}\n{text_of(cell)}")
        cell.metadata.pop("execution", None)  # the time of day
        for key in ("solution", "wrong"):
            cell.metadata.get("dtrain", {}).pop(key, None)
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    done.metadata["dtrain"] = {"made_from": sources_hash(book)}
    solved_file(path).parent.mkdir(exist_ok=True)
    nbformat.write(done, solved_file(path))
    print(f"{solved_file(path)}: {sum(bool(c.get('outputs')) for c in done.cells)} outputs stored")


def joined(outputs):
    """Lines of the same stream in one output."""
    result = []
    for output in outputs:
        if result and output.output_type == result[-1].output_type == "stream" and output.name == result[-1].name:
            result[-1].text += output.text
        else:
            result.append(output)
    return result


def text_of(cell):
    return "".join(o.get("text", "") for o in cell.get("outputs", []))


def touching(svg):
    """The texts of a chart of gnuplot that touch: (text, other text). The width of a text is a guess."""
    boxes, pairs = [], []
    for x, y, turned, anchor, text in re.findall(r'<g transform="translate\(([\d.]+),([\d.]+)\)( rotate[^"]*)?"[^>]*'
                                                 r'text-anchor="(\w+)">\s*<text>(.*?)</text>', svg, re.S):
        text = re.sub(r"<[^>]*>", "", text).strip()
        left = {"start": 0, "middle": -3.3, "end": -6.6}[anchor] * len(text)
        box = (-10, -left - 6.6 * len(text), 3, -left) if turned else (left, -10, left + 6.6 * len(text), 3)
        boxes.append((text, *(float(at) + side for at, side in zip((x, y, x, y), box))))
    for i, (a, *one) in enumerate(boxes):
        pairs += [(a, b) for b, *other in boxes[:i]
                  if all(one[k] < other[k + 2] and other[k] < one[k + 2] for k in (0, 1))]
    return pairs if len(boxes) > 3 or "gnuplot" not in svg else [("no text", "is found")]


class Tap:
    def __init__(self):
        self.count = self.failed = 0

    def ok(self, true, name, details=""):
        self.count += 1
        self.failed += not true
        print(f"{'ok' if true else 'not ok'} {self.count} - {name}", flush=True)
        if not true:
            print("".join(f"# {line}\n" for line in details.splitlines()), end="", flush=True)


def check(path, tap, what):
    book = nbformat.read(path, 4)
    name = Path(path).name
    stored = solved_file(path).exists() and nbformat.read(solved_file(path), 4).metadata.get("dtrain", {})
    tap.ok(stored and stored.get("made_from") == sources_hash(book), f"{name}: its stored outputs are up to date",
           f"its cells or the library have changed: ./build.sh notebooks run notebooks-c/{name}")
    tap.ok(not any(c.get("outputs") for c in book.cells), f"{name}: a learner's copy starts without outputs",
           "clear its outputs")
    tap.ok(all(c.source == with_mark(c.source) and c.metadata.get("tags") == ["raises-exception"]
               for c in book.cells if role(c) == "grade"),
           f"{name}: graded cells have the hash of their text, and Run All goes on after one that fails",
           "./build.sh notebooks run, and the tag raises-exception")
    texts = [TYPESET.sub(" ", c.source) for c in book.cells if c.cell_type == "markdown"]
    raw = [match[0] for text in texts for match in RAW.finditer(text)]
    tap.ok(not raw, f"{name}: formulas of its text are between $", "\n".join(raw))
    charts = [o.data["image/svg+xml"] for c in nbformat.read(solved_file(path), 4).cells for o in c.get("outputs", [])
              if "image/svg+xml" in o.get("data", {})]
    touches = [pair for chart in charts for pair in touching(chart)]
    tap.ok(not touches, f"{name}: no texts of its {len(charts)} charts touch", "\n".join(map(str, touches)))
    if what == "current":
        return
    solved = executed(book, "solution")
    bad = [f"{errors(c)[0].evalue}\n{c.source}\n{text_of(c)}" for c in solved.cells if errors(c)]
    tap.ok(not bad, f"{name}: runs, and with the solutions every graded cell is ok", "\n".join(bad))
    score = text_of(solved.cells[-1])
    tap.ok(FULL.fullmatch(score), f"{name}: with the solutions the score is full", score)
    if what == "solved":
        return
    blank = executed(submitted(path)[0])
    graded = [c for c in blank.cells if role(c) == "grade"]
    passed = [c.source for c in graded if not any(e.ename == "check" for e in errors(c))]
    tap.ok(graded and not passed, f"{name}: with blank cells each of {len(graded)} graded cells says what is not ok",
           "\n".join(f"{c.source}\n{text_of(c)}\n{errors(c)}" for c in graded if c.source in passed))
    said = "".join(text_of(c) for c in graded)
    tap.ok(not re.search(r"^ok |expected:", said, re.M) and text_of(blank.cells[-1]).startswith("score: 0 of "),
           f"{name}: with blank cells no check is ok, and none says what is expected", said + text_of(blank.cells[-1]))
    wrong = executed(book, "wrong", "solution").cells
    graded = [next(c for c in wrong[k:] if role(c) == "grade")
              for k, cell in enumerate(wrong) if "wrong" in cell.metadata.get("dtrain", {})]
    fooled = [f"{c.source}\n{text_of(c)}" for c in graded if not any(e.ename == "check" for e in errors(c))]
    tap.ok(graded and not fooled, f"{name}: with answers typed in or copied {len(graded)} graded cells fail",
           "\n".join(fooled))
    others = [c for c in blank.cells if errors(c) and role(c) != "grade"]
    tap.ok(not others, f"{name}: with blank cells the others run",
           "\n".join(f"{c.source}\n{text_of(c)}" for c in others))


def main():
    what, files = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if what not in ("store", "check", "solved", "current", "grade") or not files:
        sys.exit(__doc__)
    if what == "grade":
        sys.exit(not all([grade(path) for path in files]))
    tap = Tap()
    for path in files:
        store(path) if what == "store" else check(path, tap, what)
    if what != "store":
        print(f"1..{tap.count}")
    sys.exit(tap.failed > 0)


if __name__ == "__main__":
    main()
