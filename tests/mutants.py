"""Which small changes of the code no test notices: ``python -m tests.mutants ROOM … --count 8 --seed 0``.

A random sample of changes is made in a copy of each room, one at a time: a comparison, an operator, a number or a truth
value is another one, a branch is never taken, a mean is a sum. The tests of the room then run until one fails. The
command prints each change that all tests passed, and the share that they noticed. Some of the changes left have no
effect, so the true share is higher.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src", "calibrant")
OTHERS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod, ast.Mod: ast.Mult,
}  # fmt: skip
NAMES = {"mean": "sum", "sum": "mean", "any": "all", "all": "any", "min": "max", "max": "min", "argmax": "argmin"}
NAMES |= {"amax": "amin", "amin": "amax", "zeros": "ones", "ones": "zeros", "clamp_min": "clamp_max", "exp": "log"}


def changed(node):
    """Another version of an expression or of an ``if``; None if this kind of node is not changed."""
    new = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        new.ops = [OTHERS[type(node.ops[0])]()]
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OTHERS:
        new.op = OTHERS[type(node.op)]()
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        return new.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        new.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        new.value = node.value + 1 if isinstance(node.value, int) else node.value * 1.1 or 0.1
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in NAMES:
        new.func.attr = NAMES[node.func.attr]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "abs":
        return new.args[0]
    elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue):
        return ast.Constant(False)  # stands for the condition
    else:
        return None
    return new


def changes(path):
    """Every change of a file: (line, start and end of the replaced text in bytes, its new text)."""
    raw = path.read_bytes()
    starts = [0]
    for line in raw.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    tree = ast.parse(raw)
    texts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        new = None if id(node) in texts else changed(node)
        if new is not None:
            place = node.test if isinstance(node, ast.If) else node
            begin = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            yield place.lineno, begin, end, f"({ast.unparse(new)})" if isinstance(new, ast.expr) else ""


def sandbox(folder):
    """A copy of the code and its tests; other files are links."""
    for place in ROOT.iterdir():
        if place.name in ("src", "tests"):
            shutil.copytree(place, folder / place.name)
        elif not place.name.startswith(".") and place.name not in ("out", "dist"):
            (folder / place.name).symlink_to(place)


def run_tests(folder, room, first, limit):
    """Whether the tests of a room pass; those that name the changed module run first."""
    files = sorted((folder / "tests" / room).rglob("test_*.py"))
    files.sort(key=lambda file: first not in file.read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *map(str, files)]
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=limit, text=True)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def measure(room, count, seed):
    """Print the changes of a sample that no test of the room notices; returns how many were noticed, and made."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sandbox(folder)
        begin = time.monotonic()
        if not run_tests(folder, room, "", None):
            raise SystemExit(f"The tests of {room} fail without a change. Mend them first.")
        limit = 60 + 3 * (time.monotonic() - begin)
        files = sorted((folder / PACKAGE / room).rglob("*.py"))
        every = [(file, *change) for file in files for change in changes(file)]
        sample = random.Random(f"{room} {seed}").sample(every, min(count, len(every)))
        noticed = 0
        for file, line, begin, end, text in sample:
            raw = file.read_bytes()
            file.write_bytes(raw[:begin] + text.encode() + raw[end:])
            for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
                compiled.unlink()
            if run_tests(folder, room, file.stem, limit):
                print(f"{file.relative_to(folder)}:{line}: {raw[begin:end].decode()} → {text}", flush=True)
            else:
                noticed += 1
            file.write_bytes(raw)
    print(f"{room}: {noticed} of {len(sample)} noticed", flush=True)
    return noticed, len(sample)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="+")
    parser.add_argument("--count", type=int, default=8, help="changes per room")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results = [measure(room, options.count, options.seed) for room in options.rooms]
    noticed, made = map(sum, zip(*results, strict=True))
    print(f"all: {noticed} of {made} noticed ({noticed / made:.0%})")
