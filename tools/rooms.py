"""Move, merge and rename the modules of the library, and rewrite everything that names them.

``python -m tools.rooms tools/rooms/bilevel.txt`` reads a table:

```
> bilevel/gradients/loss_derivatives.py    A file, made of the bodies of the following files in their order.
: The first line of its docstring.         (left out: that of the first file)
bilevel/detached.py                        A file that it replaces, or a name that gets another one in it:
  _equal = _equal_checks
= Ties = SharedPhi                         A name that changes everywhere: in code, and in backticks in texts.
= ties = shared_phi in bilevel             The same, in files whose path contains a word only.
= Part = Samples in imports of calibrant.methods    The same, in files that import the name, and in that room.
```

Imports and dotted names in src, studies, tests, docs, examples and benchmarks follow, and so do paths in texts.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PLACES = ["src", "studies", "tests", "docs", "examples", "benchmarks"]
TEXTS = ["CONTRIBUTING.md", "README.md", "Makefile", "pyproject.toml", ".github"]
FACE = "__init__.py"
DONE = "DONE_"
"""Stands before a module whose path is new already, so that it is not rewritten twice."""


@dataclass
class Target:
    """A file to be written: its path, the first line of its docstring, its sources and the names that change there."""

    path: str
    about: str = ""
    sources: list[str] = field(default_factory=list)
    renamed: dict[str, dict[str, str]] = field(default_factory=dict)


def read_table(text):
    """The files and the new names of a table."""
    targets, names = [], {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(">"):
            targets.append(Target(line[1:].strip()))
        elif line.startswith(":"):
            targets[-1].about = line[1:].strip()
        elif line.startswith("="):
            old, new = line[1:].split("=")
            new, _, scope = new.partition(" in ")
            names.setdefault(scope.strip(), {})[old.strip()] = new.strip()
        elif line.startswith(" "):
            old, new = line.split("=")
            targets[-1].renamed.setdefault(targets[-1].sources[-1], {})[old.strip()] = new.strip()
        else:
            targets[-1].sources.append(line.strip())
    return targets, names


def module_of(path):
    """The dotted name of a file below ``src/calibrant``."""
    return "calibrant." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_shadowed(module):
    """Whether the face of a package shows a function with the name of one of its modules, such as ``models.mlp``."""
    home, _, name = module.rpartition(".")
    face = SOURCE.joinpath(*home.split("."), FACE)
    if not face.exists():
        return False
    nodes = [node for node in ast.parse(face.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    return any(alias.name == name and node.module != home for node in nodes for alias in node.names)


def rename_inside(text, names):
    """Names inside the braces of a formatted string."""
    for old, name in names.items():
        text = re.sub(rf"(?<![\w'\"]){old}(?![\w'\"])", name, text)
    return text


def rename_blocks(text, names):
    """Names in the Python blocks of a page."""
    return re.sub(r"(?<=```python\n).*?(?=```)", lambda hit: rename_inside(hit[0], names), text, flags=re.DOTALL)


def rename_tokens(text, names, *, face=False):
    """Python code with other names; attributes and keywords of the same name change too, strings only in backticks."""
    if not names or not any(old in text for old in names):
        return text
    lines = text.splitlines(keepends=True)
    tokens, from_module = [], False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        from_module = (from_module or token.string == "from") and token.string != "import"
        if not from_module:
            tokens.append(token)
        from_module = from_module and token.type != tokenize.NEWLINE
    for token in reversed(tokens):
        (row, start), (last, end) = token.start, token.end
        if token.type == tokenize.NAME and token.string in names:
            line = lines[row - 1]
            lines[row - 1] = line[:start] + names[token.string] + line[end:]
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            new = rename_words(token.string, names, quoted=face or "setattr(" in token.line)
            new = re.sub(r"^ *(>>>|\.\.\.) .*", lambda hit: rename_inside(hit[0], names), new, flags=re.MULTILINE)
            if re.match("[rR]?[fF]", new) and token.type == tokenize.STRING:
                new = re.sub(r"\{[^{}]*\}", lambda hit: rename_inside(hit[0], names), new)
            if new != token.string:
                head, tail = lines[row - 1][:start], lines[last - 1][end:]
                lines[row - 1 : last] = [head + new + tail]
    return "".join(lines)


def rename_words(text, names, *, quoted=False):
    """Names in backticks, in quotes of their own and behind a dot."""
    for old, new in names.items():
        text = re.sub(rf"(`[^`\n]*?(?<![\w-])){old}(?![\w-])(?=[^`\n]*`)", rf"\g<1>{new}", text)
        text = re.sub(rf"(?<=\w\.){old}(?![\w.])", new, text) if old[0].isupper() else text
        if quoted and text in (f'"{old}"', f"'{old}'"):
            text = text.replace(old, new)
    return text


class Rewriter:
    """Rewrites imports, dotted names and paths by a map of old and new files."""

    def __init__(self, targets):
        self.paths = {old: target.path for target in targets for old in target.sources}
        self.modules = {module_of(old): module_of(new) for old, new in self.paths.items()}
        self.shadowed = {name for name in self.modules if is_shadowed(name)}
        self.renamed = {module_of(old): names for target in targets for old, names in target.renamed.items()}
        folders = {}
        for old, new in self.paths.items():
            if old.endswith(FACE) and new.endswith(FACE):
                folders[old.removesuffix(FACE)] = new.removesuffix(FACE)
        self.folders = folders
        dotted = sorted(set(self.modules) - self.shadowed, key=len, reverse=True)
        self.dotted = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, dotted)) + r")(?!\w)")
        files = sorted([*self.paths, *folders], key=len, reverse=True)
        self.files = re.compile(
            r"(?<![\w/-])((?:src/calibrant/|calibrant/)?)(" + "|".join(map(re.escape, files)) + r")( {2,})?"
        )

    def text(self, text):
        """Rewrite dotted names and paths in any text."""
        text = self.dotted.sub(lambda hit: self.modules[hit[1]], text)

        def path(hit):
            new = self.paths.get(hit[2]) or self.folders[hit[2]]
            gap = hit[3] or ""
            return hit[1] + new + (" " * max(2, len(hit[2]) + len(gap) - len(new)) if gap else "")

        return self.files.sub(path, text)

    def code(self, text, module):
        """A Python file: its imports statement by statement, then everything else as text."""
        tree = ast.parse(text)
        lines = text.splitlines(keepends=True)
        edits, local = [], {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calibrant"):
                new = self.statement(node, module, local)
                if new is not None:
                    edits.append((node.lineno, node.end_lineno, new, node.col_offset))
        for first, last, new, column in sorted(edits, reverse=True):
            lines[first - 1 : last] = [" " * column + line + "\n" for line in new]
        text = "".join(lines)
        for prefix, plain in local.items():
            text = (
                re.sub(rf"(?<![\w.]){prefix}\.(?=\w)", "", text)
                if plain is None
                else rename_tokens(text, {prefix: plain})
            )
        return self.text(text).replace(DONE, "")

    def statement(self, node, module, local):
        """The lines that replace an import; None if it stays, [] if it goes."""
        groups, changed = {}, False
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if whole in self.modules and whole not in self.shadowed:
                changed = True
                new = self.modules[whole]
                name = alias.asname or alias.name
                if new == module:
                    local[name] = None
                    continue
                home, _, base = new.rpartition(".")
                groups.setdefault(home, []).append(base if base == name else f"{base} as {name}")
            elif node.module in self.modules:
                changed = True
                new = self.modules[node.module]
                name = self.renamed.get(node.module, {}).get(alias.name, alias.name)
                if new == module:
                    if (alias.asname or alias.name) != name:
                        local[alias.asname or alias.name] = name
                    continue
                shown = alias.asname or (alias.name if name != alias.name else None)
                groups.setdefault(new, []).append(name + (f" as {shown}" if shown else ""))
            else:
                groups.setdefault(node.module, []).append(alias.name + (f" as {alias.asname}" if alias.asname else ""))
        lines = [f"from {DONE}{home} import {', '.join(names)}" for home, names in groups.items()]
        return (lines or ["pass"] * (node.col_offset > 0)) if changed else None


def parts_of(text):
    """Docstring, imports with their conditions, and the body of a module."""
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    doc, imports, typed, taken = "", [], [], set()
    for position, node in enumerate(tree.body):
        if position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            doc = ast.get_docstring(tree, clean=False)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.append("".join(lines[node.lineno - 1 : node.end_lineno]))
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            typed += [ast.unparse(inner) for inner in node.body if not isinstance(inner, ast.Pass)]
        else:
            continue
        taken |= set(range(node.lineno - 1, node.end_lineno))
    body = "".join(line for k, line in enumerate(lines) if k not in taken).strip("\n")
    return doc, imports, typed, body


def defined(text):
    """The names that the top level of a file defines."""
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            goals = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for goal in goals for name in ast.walk(goal) if isinstance(name, ast.Name)}
    return names


def imported(statement):
    """The names that an import makes, with what they stand for."""
    return {
        alias.asname or alias.name: ast.unparse(node) if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
        for node in ast.parse(statement.strip()).body
        for alias in node.names
    }


def in_one(text, about):
    """A docstring whose first line opens its first paragraph, or goes if it is the first line of the new file."""
    first, _, rest = text.rstrip().partition("\n\n")
    if not about:
        return text.rstrip()
    if first == about:
        return rest
    paragraph, _, others = rest.partition("\n\n")
    if not re.match("[A-Z`]", paragraph):
        return text.rstrip()
    code = r"``.+?``|`.+?`"
    words = re.sub(code, lambda hit: re.sub(r"\s+", "\xa0", hit[0]), f"{first} {paragraph}", flags=re.DOTALL)
    joined = textwrap.fill(words, 120, break_long_words=False, break_on_hyphens=False).replace("\xa0", " ")
    return "\n\n".join(part for part in (joined, others) if part)


def without_repeats(body, earlier):
    """The body without assignments that an earlier body has in the same words."""
    said = {ast.unparse(node) for text in earlier for node in ast.parse(text).body if isinstance(node, ast.Assign)}
    lines = body.splitlines(keepends=True)
    for node in reversed(ast.parse(body).body):
        if isinstance(node, ast.Assign) and ast.unparse(node) in said:
            del lines[node.lineno - 1 : node.end_lineno]
    return "".join(lines).strip("\n")


def merge(target, rewriter):
    """The text of a file made of several."""
    module = module_of(target.path)
    docs, imports, typed, bodies, homes, origin = [], [], [], [], {}, {}
    for source in target.sources:
        text = (SOURCE / "calibrant" / source).read_text(encoding="utf-8")
        text = rewriter.code(text, module)
        text = rename_tokens(text, target.renamed.get(source, {}))
        doc, some, types, body = parts_of(text)
        body = without_repeats(body, bodies)
        docs.append(doc)
        imports += some
        typed += types
        bodies.append(body)
        for name in defined(body) if body else ():
            if name in homes:
                raise SystemExit(f"{target.path}: {name} is defined in {homes[name]} and in {source}.")
            homes[name] = source
        for statement in some:
            for name, home in imported(statement).items():
                if origin.setdefault(name, home) != home:
                    raise SystemExit(f"{target.path}: {name} is {origin[name]} and {home}.")
    clash = set(origin) & set(homes)
    if clash:
        raise SystemExit(f"{target.path}: imported by one file and defined in another: {sorted(clash)}")
    future = "from __future__ import annotations\n"
    imports = [text for text in imports if text.strip() != future.strip()]
    typed = [text for text in typed if not set(imported(text)) & set(origin) - set()]
    if len(docs) == 1:
        first, _, rest = docs[0].partition("\n")
        doc = (target.about or first) + (f"\n{rest}" if rest.strip() else "")
    else:
        # With a first line for all of them, those that say one sentence are dropped: the names below say as much.
        kept = [in_one(text, target.about) for text in docs if not target.about or "\n" in text.strip()]
        rest = "\n\n".join(text for text in kept if text)
        first, _, others = rest.partition("\n") if not target.about else (target.about, "", rest and f"\n{rest}")
        doc = f"{first}\n{others}\n" if others.strip() else first
    head = f'"""{doc}"""\n\n'
    has_code = any(bodies) or imports
    head += future + "\n" if has_code and not target.path.endswith(FACE) else ""
    head += "".join(dict.fromkeys(text if text.endswith("\n") else text + "\n" for text in imports))
    if typed:
        head += "\nif TYPE_CHECKING:\n" + "".join(f"    {text}\n" for text in dict.fromkeys(typed))
    return head + "\n\n" + "\n\n\n".join(body for body in bodies if body) + "\n"


def chosen(names, file):
    """The names that change in a file."""
    path = file.relative_to(ROOT).as_posix()
    text = file.read_text(encoding="utf-8")
    fitting = {}
    for scope, some in names.items():
        home = scope.removeprefix("imports of ")
        for old, new in some.items():
            imports = rf"from {re.escape(home)}[\w.]* import (\([^)]*|[^(\n]*)\b{old}\b"
            shown = rf"{imports}|{re.escape(home)}\.{old}\b|methods\.{old}\b"
            inside = home != scope and (re.search(shown, text) or home.replace(".", "/") in path)
            if inside or (home == scope and scope in path):
                fitting[old] = new
    return fitting


def files(*endings):
    """The files of the repository with one of these endings, tracked or new."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *PLACES, *TEXTS],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines() if name.endswith(endings) and (ROOT / name).exists()]


def main(table):
    """Apply a table."""
    targets, names = read_table(Path(table).read_text(encoding="utf-8"))
    rewriter = Rewriter(targets) if targets else None
    written = {}
    for target in targets:
        written[target.path] = merge(target, rewriter) if target.sources else f'"""{target.about}"""\n'
    for target in targets:
        place = SOURCE / "calibrant" / target.path
        place.parent.mkdir(parents=True, exist_ok=True)
        largest = max(target.sources, key=lambda name: (SOURCE / "calibrant" / name).stat().st_size, default=None)
        if largest and largest != target.path:
            moved = SOURCE / "calibrant" / largest
            if moved.exists() and largest not in written:
                subprocess.run(["git", "mv", "-f", str(moved), str(place)], cwd=ROOT, check=True)
    for target in targets:
        for source in target.sources:
            if source not in written and (SOURCE / "calibrant" / source).exists():
                subprocess.run(["git", "rm", "-qf", f"src/calibrant/{source}"], cwd=ROOT, check=True)
    for path, text in written.items():
        (SOURCE / "calibrant" / path).write_text(text, encoding="utf-8")
    new = {SOURCE / "calibrant" / path for path in written}
    for file in files(".py"):
        text = before = file.read_text(encoding="utf-8")
        if rewriter and file not in new:
            inside = file.is_relative_to(SOURCE)
            module = module_of(file.relative_to(SOURCE / "calibrant").as_posix()) if inside else ""
            text = rewriter.code(text, module)
        text = rename_tokens(text, chosen(names, file), face=file.name == FACE)
        if text != before:
            file.write_text(text, encoding="utf-8")
    for file in files(".md", ".toml", ".rst", ".yml", ".yaml", ".txt", "Makefile", ".ipynb"):
        if "tools" in file.parts or file.name == "CHANGELOG.md":
            continue
        text = before = file.read_text(encoding="utf-8")
        some = chosen(names, file)
        text = rename_words(rewriter.text(text) if rewriter else text, some)
        text = rename_blocks(text, some)
        if text != before:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for table in sys.argv[1:]:
        main(table)
