"""Checks and times the library on a GPU: see `./build.sh gpu-check`, which builds the programs of BUILD and calls
gpu_check.py BUILD JSON STAND_IN PART ... Prints a table, writes the JSON file after every row, and ends with `ok` and the
hash that GPU and CPU share, or with exit status 1."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

BUILD, JSON, STAND_IN, PARTS = sys.argv[1], sys.argv[2], sys.argv[3] == "1", sys.argv[4:]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYOUTS = [
    "--model nano", "--model nano --dropout 0.1 --ranks 2", "--model nano --ranks 2 --tp 2 --tensor-shards 2",
    "--model llama-nano", "--model llama-nano --experts 4", "--model llama-nano --experts 4 --ranks 2 --ep 2",
    "--model nano --precision bf16", "--model llama-nano --precision fp16 --ranks 2", "--model nano --ranks 2 --zero 3",
    "--model micro --ranks 2 --pp 2", "--model nano --recompute full --offload", "--model small",
    "--model nano --context-shards 2 --ranks 2 --cp 2", "--model nano --optimizer lion --ema 0.9",
    "--model nano --ranks 4 --tp 2 --tensor-shards 2",
]
if STAND_IN:
    LAYOUTS = [LAYOUTS[0], LAYOUTS[4] + " --precision bf16"]
BIG = "--model 124M --vocabulary 50304 --sequence 1024 --batch 8 --micro-batch 8 --data-shards 1 --steps 100 --warmup 10"
SMALL = "--model nano --layers 1 --sequence 32 --batch 4 --data-shards 2 --steps 8 --warmup 1"
QUIET = "--validation 0 --sample-length 0"
rows, begun = [], time.monotonic()
scratch = tempfile.mkdtemp(prefix="dtrain-gpu-")
data = os.path.join(scratch, "text")


def row(part, name, result, value=None, unit="", detail=""):
    """result: ok, fail, "not run: why", or "" for a figure."""
    rows.append({"part": part, "name": name, "result": result, "value": value, "unit": unit, "detail": detail})
    with open(JSON, "w") as f:
        json.dump({"seconds": round(time.monotonic() - begun, 1), "stand_in": STAND_IN, "rows": rows}, f, indent=1)
    figure = "" if value is None else f"{value:10.4g} {unit}"
    print(f"{part:9} {name:58} {figure or result}{'  ' + detail if detail else ''}", flush=True)


def run(command, limit=100):
    try:
        done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=limit)
        return done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as e:
        out, err = (x.decode() if isinstance(x, bytes) else x or "" for x in (e.stdout, e.stderr))
        return 124, out, err + f"stopped after {limit} s"


def rows_of(name, command, limit=100):
    """The rows that a program prints, and what it prints besides; rows that say ok become one."""
    status, out, err = run(command, limit)
    found, good = [], 0
    for line in out.splitlines():
        field = line.split("\t") + [""] * 3
        if field[0] == "row" and re.fullmatch(r"[-0-9.e+]+", field[2]):
            found.append((field[1], "", float(field[2]), field[3], field[4]))
        elif field[0] == "row" and field[2] == "ok" or line.startswith("ok "):
            good += 1
        elif field[0] == "row" or line.startswith("not ok "):
            found.append((field[1] or line, "fail", None, "", field[3]))
    if good or status or not found:
        found.append((f"{name}: {good} right" if good else name, "fail" if status else "ok", None, "", err.strip()[-300:] if status else ""))
    return found, out


def program(part, name, command, limit=100):
    found, out = rows_of(name, command, limit)
    for line in found:
        row(part, *line)
    return out


def together(part, jobs):
    """The rows of functions that run at a time, in the order of the functions."""
    with ThreadPoolExecutor(1 if STAND_IN else 8) as pool:
        for found in pool.map(lambda job: job(), jobs):
            for line in found:
                row(part, *line)


def hash_of(command, limit=100):
    status, out, err = run(command, limit)
    found = re.search(r"\b[0-9a-f]{64}\b", out)
    return (found.group(0) if found and not status else None), out + err


def equal(name, want, got, said):
    return [(name, "ok" if want and got == want else "fail", None, "", "" if want and got == want else said[-200:])]


def layout(options):
    shape = "--steps 2 --sequence 32 --layers 1" if STAND_IN else "--steps 3 --sequence 64"
    options = f"--data {data} {shape} --warmup 1 --batch 4 --data-shards 2 --threads 2 {QUIET} {options}"
    want, _ = hash_of(f"{BUILD}/train {options} --device cpu")
    return want, *hash_of(f"{BUILD}/train {options} --device cuda")


def lesson(name):
    status, out, err = run(f"{BUILD}/{name}", 60)
    good = not status and "no GPU" not in out
    return [(f"examples/{name}.c", "ok" if good else "fail", None, "", "" if good else (out + err)[-300:])]


def check():
    jobs = [lambda: rows_of("products and attention, bits of the CPU", f"{BUILD}/gpu_kernels check {'small' if STAND_IN else ''}")[0],
            lambda: rows_of("fast products against doubles", f"{BUILD}/gpu_fast")[0],
            lambda: rows_of("fast attention against doubles", f"{BUILD}/gpu_attention")[0]]
    jobs += [lambda o=o: equal(f"hash of the CPU: {o}", *layout(o)) for o in LAYOUTS]
    jobs += [lambda n=n: equal(f"the README's hash, ranks: {n}", readme, *hash_of(f"{BUILD}/one_hash --device cuda --ranks {n} --quiet", 900 if STAND_IN else 300))
             for n in ((1,) if STAND_IN else (1, 4))]
    jobs += [lambda n=n: lesson(n) for n in (() if STAND_IN else ("100_roofline", "101_exact_or_fast", "102_copy_and_compute"))]
    together("check", jobs)


def sanitized(name, how):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    title = f"compute-sanitizer {name}{', fast' if how else ''}"
    if STAND_IN or not os.path.exists(tool):
        return [(title, f"not run: {'no GPU is here' if STAND_IN else 'compute-sanitizer is not installed'}")]
    options = f"--data {data} --steps 2 --warmup 1 --batch 2 --data-shards 1 --sequence 32 --model nano --layers 1 --threads 1 {QUIET} --device cuda"
    status, out, err = run(f"{tool} --tool {name} --error-exitcode 9 {BUILD}/train {options} {how}", 60)
    text = out + err
    if "SUMMARY" not in text:
        return [(title, f"not run: {text.strip()[-160:] or 'it does not start'}")]
    clean = not status and re.search(r"SUMMARY: 0 (errors|hazards)", text)
    return [(title, "ok" if clean else "fail", None, "", "" if clean else text[-300:])]


def sanitize():
    together("sanitize", [lambda t=t, h=h: sanitized(t, h) for t in ("memcheck", "racecheck", "synccheck", "initcheck")
                          for h in ("", "--numerics fast --precision bf16")])


def speed():
    program("speed", "kernels", f"{BUILD}/gpu_kernels speed {'small' if STAND_IN else ''}")
    for what in () if STAND_IN else ("gpu_fast", "gpu_attention"):
        program("speed", what, f"{BUILD}/{what} speed")
    shape = SMALL if STAND_IN else BIG
    for name, how in (("exact", ""), ("fast, bf16", "--precision bf16 --numerics fast")):
        found, out = rows_of("step", f"{BUILD}/gpu_kernels profile --data {data} {shape} {QUIET} --device cuda {how}", 120)
        for title, *rest in found:
            row("speed", f"{name}: {title}", *rest)
        print("\n".join(line for line in out.splitlines() if line.startswith("  ") and ("%" in line or "on the host" in line)))
    status, _, err = run("python3 -c 'import torch; assert torch.cuda.is_available(), \"it sees no GPU\"'")
    if STAND_IN or status:
        why = "no GPU is here" if STAND_IN else "PyTorch: " + (err.strip().splitlines() or ["absent"])[-1]
        row("speed", "PyTorch on the same model", f"not run: {why}")
        row("speed", "200 losses beside PyTorch's", f"not run: {why}")
        return
    program("speed", "PyTorch", "python3 tests/gpu_torch.py speed 8 1024", 150)
    folder = os.path.join(scratch, "curve")
    os.mkdir(folder)
    options = BIG.replace("--steps 100 --warmup 10", "--steps 200 --warmup 40 --schedule constant --learning-rate 3e-4 --weight-decay 0")
    program("speed", "curve", f"{BUILD}/gpu_kernels curve {folder} --data {data} {options} {QUIET} --precision bf16 --numerics fast --device cuda", 120)
    out = program("speed", "curve in PyTorch", f"python3 tests/gpu_torch.py curve {folder} 8 1024", 120)
    far = re.search(r"largest distance from PyTorch's curve\t([0-9.e+-]+)", out)
    row("speed", "200 losses within 0.01 of PyTorch's", "ok" if far and float(far.group(1)) <= 0.01 else "fail")


def main():
    global readme
    readme = re.search(r'EXPECTED "([0-9a-f]{64})"', open(f"{ROOT}/examples/32_one_hash.c").read()).group(1)
    words = ["".join(chr(97 + (i * i + 7 * j * i + j) % 26) for j in range(2 + i % 7)) for i in range(500)]
    state = 7
    with open(data, "w") as f:
        for _ in range(2000 if STAND_IN else 60000):
            line = []
            for _ in range(9):
                state = (state * 1103515245 + 12345) % 2**31
                line.append(words[int(500 * (state / 2**31) ** 2)])
            f.write(" ".join(line) + ".\n")
    try:
        status, out, err = run(f"{BUILD}/gpu_kernels name", 100)
        if status:
            print((out + err).strip().replace("gpu_kernels: ", "gpu-check: "))
            return 1
        row("GPU", out.strip(), "ok", detail="" if STAND_IN else run("nvidia-smi --query-gpu=driver_version,memory.total --format=csv,noheader")[1].strip())
        for part in PARTS:
            {"check": check, "speed": speed, "sanitize": sanitize}[part]()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    bad = [r["name"] for r in rows if r["result"] == "fail"]
    print(f"{len(rows)} rows in {time.monotonic() - begun:.0f} s, in {JSON}")
    print(f"not ok: {len(bad)} failed" if bad else f"ok {readme}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
