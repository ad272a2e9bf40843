"""Rules for the tests themselves: short names, and no private functions replaced where a public seam exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.mutants import changes

from .source import ROOT, name_of

FILES = sorted((ROOT / "tests").rglob("*.py"))


# Private functions that a test replaces because nothing public leads there, with the reason.
WITHOUT_A_SEAM = {
    "_basis": "the basis of the multinomial solver changes only the number of evaluations",
}


def replaced(text):
    """The names that a file replaces by ``setattr`` of a monkeypatch."""
    return re.findall(r"patch\.setattr\((?:[^\"\n]*, )?\"([\w.]+)\"", text)


def test_no_private_function_is_replaced():
    """Constants may be, with capital letters and without an underscore."""
    names = {(name_of(file), name.rpartition(".")[2]) for file in FILES for name in replaced(file.read_text())}
    assert len(names) > 30
    private = {(file, name) for file, name in names if re.match("_[^_]", name) and file != name_of(Path(__file__))}
    assert {name for _, name in private} <= set(WITHOUT_A_SEAM), private


def test_small_changes_of_code_are_code_with_another_meaning(tmp_path):
    file = tmp_path / "small.py"
    file.write_text(
        'def f(x, ä=0.5):\n    if x < 1 and not ä:\n        return f"{x + 1}"\n    return abs(x).mean() - 2\n'
    )
    raw, same = file.read_bytes(), ast.dump(ast.parse(file.read_text()))
    found = {(raw[a:b].decode(), text) for _, a, b, text in changes(file)}
    assert {("0.5", "(0.55)"), ("x < 1", "(x <= 1)"), ("not ä", "(ä)"), ("abs(x)", "(x)")} <= {
        (before, re.sub(r"0\.55\d+", "0.55", after)) for before, after in found
    }
    assert ("x < 1 and not ä", "(False)") in found
    for _, begin, end, text in changes(file):
        assert ast.dump(ast.parse(raw[:begin] + text.encode() + raw[end:])) != same
