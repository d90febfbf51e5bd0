"""Runs notebooks without a browser.

    execute.py store FILE ...    runs with the solutions; stores the outputs, and a hash of what they were made from
    execute.py check FILE ...    TAP: the outputs are up to date; with the solutions every graded cell is ok; with the
                                 learner's cells left blank no graded cell is
    execute.py solved FILE ...   the same without the blank cells
    execute.py current FILE ...  the same without running anything

A cell's metadata has {"dtrain": {"role": "learner", "solution": TEXT}} for a cell that the learner fills in, and
{"role": "grade"} for one that grades. The stored outputs are those of the solutions.
"""
import copy
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

HERE = Path(__file__).resolve().parent
MADE_FROM = [HERE.parent / "dtrain.h", HERE.parent / "examples/layers.h",
             HERE.parent / "examples/gpu.h", HERE.parent / "examples/kernels.h",
             HERE.parent / "examples/tools/plan.h", HERE.parent / "examples/tools/cost.h",
             HERE.parent / "examples/tools/runs.h", HERE / "notebook.h", HERE / "notebook.c"]


def role(cell):
    return cell.metadata.get("dtrain", {}).get("role")


def sources_hash(book):
    """Of all that decides the outputs: the cells, the solutions, the library."""
    cells = [[c.cell_type, c.source, c.metadata.get("dtrain", {})] for c in book.cells]
    text = json.dumps(cells, sort_keys=True).encode()
    return hashlib.sha256(text + b"".join(p.read_bytes() for p in MADE_FROM)).hexdigest()


def executed(book, solved):
    """A copy with outputs. A cell that fails does not keep the others from running."""
    book = copy.deepcopy(book)
    for cell in book.cells:
        if solved and role(cell) == "learner":
            cell.source = cell.metadata["dtrain"]["solution"]
    try:
        NotebookClient(book, timeout=300, allow_errors=True, kernel_name="dtrain-c").execute(stderr=subprocess.DEVNULL)
    except DeadKernelError:
        print("# the kernel died")
    return book


def errors(cell):
    return [o for o in cell.get("outputs", []) if o.output_type == "error"]


def store(path):
    book = nbformat.read(path, 4)
    done = executed(book, True)
    for cell, result in zip(book.cells, done.cells):
        if cell.cell_type != "code":
            continue
        for error in errors(result):
            sys.exit(f"{path}: this cell fails ({error.ename}: {error.evalue}):\n{result.source}\n{text_of(result)}")
        cell.outputs, cell.execution_count = joined(result.outputs), result.execution_count
        cell.metadata.pop("execution", None)  # the time of day
    book.metadata["dtrain"] = {"made_from": sources_hash(book)}
    nbformat.write(book, path)
    print(f"{path}: {sum(bool(c.get('outputs')) for c in book.cells)} outputs stored")


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
    made_from = book.metadata.get("dtrain", {}).get("made_from")
    tap.ok(made_from == sources_hash(book), f"{name}: its outputs are up to date",
           f"its cells or the library have changed: ./build.sh notebooks run notebooks-c/{name}")
    if what == "current":
        return
    solved = executed(book, True)
    bad = [f"{errors(c)[0].evalue}\n{c.source}\n{text_of(c)}" for c in solved.cells if errors(c)]
    tap.ok(not bad, f"{name}: runs, and with the solutions every graded cell is ok", "\n".join(bad))
    if what == "solved":
        return
    blank = executed(book, False)
    graded = [c for c in blank.cells if role(c) == "grade"]
    passed = [c.source for c in graded if not any(e.ename == "check" for e in errors(c))]
    tap.ok(graded and not passed, f"{name}: with blank cells each of {len(graded)} graded cells says what is not ok",
           "\n".join(f"{c.source}\n{text_of(c)}\n{errors(c)}" for c in graded if c.source in passed))
    others = [c for c in blank.cells if errors(c) and role(c) != "grade"]
    tap.ok(not others, f"{name}: with blank cells the others run",
           "\n".join(f"{c.source}\n{text_of(c)}" for c in others))


def main():
    what, files = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if what not in ("store", "check", "solved", "current") or not files:
        sys.exit(__doc__)
    tap = Tap()
    for path in files:
        store(path) if what == "store" else check(path, tap, what)
    if what != "store":
        print(f"1..{tap.count}")
    sys.exit(tap.failed > 0)


if __name__ == "__main__":
    main()
