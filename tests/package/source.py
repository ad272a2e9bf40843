"""The source files of the package and of the studies, parsed, and the names that they import."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "calibrant"
FILES = sorted(PACKAGE.rglob("*.py"))
STUDIES = sorted((ROOT / "studies").rglob("*.py"))


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def name_of(file: Path) -> str:
    """The path of a file in its tree, for messages and test ids."""
    return file.relative_to(ROOT).as_posix()


def imported(tree: ast.AST) -> Iterator[str]:
    """The dotted names that a file imports from calibrant, such as "calibrant.metrics.ece"; not "calibrant" itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "Imports must be absolute."
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        else:
            continue
        yield from (name for name in found if name.startswith("calibrant."))


SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(file: Path) -> int:
    """The lines of a file that hold code: no docstrings, comments and blank lines."""
    prose, code = set(), set()
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, node.end_lineno + 1))
    for token in tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline):
        if token.type not in SKIPPED:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - prose)
