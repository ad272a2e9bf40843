"""Move files and rename public names by a table, and rewrite every reference to them in the repository.

``python tools/move.py TABLE`` applies the lines of a table; ``--dry-run`` only prints what it would do. The lines are::

    src/calibrant/bilevel/level.py src/calibrant/bilevel/problem/derivatives.py
    src/calibrant/experiments studies
    calibrant.bilevel.level:Level LossDerivatives

A file moves to a path, a folder with all that git tracks in it; of two lines that fit, the longer one counts. A name is
given with the module that defines it, by its former path. Empty lines and those that start with ``#`` are skipped, and
so are lines that are done already: with ``--again``, references to them are rewritten once more, for code that was
merged since. All lines are applied at once, so ``a b`` and ``b c`` do not chain.

Rewritten are imports (relative ones too), dotted names (``calibrant.bilevel.level.Level``) and paths
(``src/calibrant/bilevel/level.py``, ``calibrant/bilevel/level.py``, ``bilevel/level.py``) in all text files that git
tracks, except those in ``results``. A renamed name is also rewritten wherever a file imports it, from any folder that
shows it; local variables of that name stay. Afterwards run ``ruff check --fix`` and ``ruff format``, which sort the
imports. The script prints what needs a look: a former name that is left in prose, ``__file__`` in a moved file, folders
without ``__init__.py``.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TEXTS = {".py", ".pyi", ".md", ".rst", ".toml", ".txt", ".yaml", ".yml", ".cfg", ".sh", ".html", ".ipynb", ""}
LEFT_OUT = ("results/", "tools/", "constraints.txt", "LICENSE", "docs/api/")
DONE = "\ue000"
"""Stands before a reference that is rewritten, so that no other line of the table applies to it; removed at the end."""


def git(*arguments: str) -> str:
    """What a command of git prints."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def module_of(path: str) -> str:
    """The dotted name of a file or folder: ``src/calibrant/data/__init__.py`` is ``calibrant.data``."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Table:
    """The moves and the new names, and what they make of paths, modules and texts."""

    def __init__(self, text: str, files: list[str], again: bool):
        self.moves: dict[str, str] = {}
        self.names: dict[tuple[str, str], str] = {}
        for line in text.splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            old, new = line.split()
            if ":" in old:
                module, _, name = old.partition(":")
                self.names[module, name] = new
            elif again or any(file == old or file.startswith(f"{old}/") for file in files):
                self.moves[old] = new
        self.modules = {module_of(old): module_of(new) for old, new in self.moves.items()}
        self.paths = {file: self.path(file) for file in files if self.path(file) != file}
        self.slashed = self._slashed()

    def path(self, file: str) -> str:
        """Where a file goes."""
        return longest(self.moves, file, "/")

    def module(self, name: str) -> str:
        """Where a module goes."""
        return longest(self.modules, name, ".")

    def _slashed(self) -> dict[str, str]:
        """The paths that texts may contain, with what replaces them; short ones only of Python files."""
        replaced = {}
        for old, new in [*self.moves.items(), *self.paths.items()]:
            if "/" in old:
                replaced[old] = new
            if old.startswith("src/calibrant/"):
                replaced[old.removeprefix("src/")] = new.removeprefix("src/")
                short = old.removeprefix("src/calibrant/")
                if short.endswith(".py") and "/" in short and not short.endswith("__init__.py"):
                    replaced[short] = new.removeprefix("src/calibrant/")
        return replaced


def longest(table: dict[str, str], name: str, separator: str) -> str:
    """A path with its longest listed beginning replaced."""
    parts = name.split(separator)
    for length in range(len(parts), 0, -1):
        beginning = separator.join(parts[:length])
        if beginning in table:
            return separator.join([table[beginning], *parts[length:]])
    return name


class Source:
    """A Python file: its syntax tree, and edits by position."""

    def __init__(self, path: str, text: str):
        self.path, self.text, self.tree = path, text, ast.parse(text)
        self.module = module_of(path)
        self.package = self.module if path.endswith("__init__.py") else self.module.rpartition(".")[0]
        self.edits: set[tuple[int, int, str]] = set()
        self.starts = [0]
        for line in text.encode().splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def replace(self, node, new: str, length: int | None = None) -> None:
        begin = self.starts[node.lineno - 1] + node.col_offset
        end = begin + length if length is not None else self.starts[node.end_lineno - 1] + node.end_col_offset
        self.edits.add((begin, end, new))

    def replace_in(self, node, pattern: str, new: str) -> None:
        """Replace what a pattern matches in the text of a node."""
        begin = self.starts[node.lineno - 1] + node.col_offset
        segment = self.text.encode()[begin : self.starts[node.end_lineno - 1] + node.end_col_offset].decode()
        for match in re.finditer(pattern, segment):
            at = begin + len(segment[: match.start()].encode())
            self.edits.add((at, at + len(match[0].encode()), new))

    def edited(self) -> str:
        content = self.text.encode()
        for begin, end, new in sorted(self.edits, reverse=True):
            content = content[:begin] + new.encode() + content[end:]
        return content.decode()

    def imports(self):
        """Each ``from`` statement with the absolute name of its module."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                if node.level:
                    base = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
                    yield node, ".".join([*base, *([node.module] if node.module else [])])
                else:
                    yield node, node.module


def shown(source: Source) -> set[str]:
    """Names that a package shows besides its submodules: a module of such a name is hidden by it."""
    names = {n.name for n in source.tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node, module in source.imports():
        names |= {alias.asname or alias.name for alias in node.names if module != source.module}
    for node in source.tree.body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "_HOMES"
            and isinstance(node.value, ast.Dict)
        ):
            names |= {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    return names


def bound(function) -> set[str]:
    """Names that a function binds: arguments, assignments and imports, without those of functions inside it."""
    arguments = function.args
    names = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    names |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a}
    stack = list(function.body) if isinstance(function.body, list) else [function.body]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        stack += ast.iter_child_nodes(node)
    return names


def free_names(node, name: str, hidden: bool = False):
    """The uses of a name that are not those of a local variable."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        inner = hidden or name in bound(node)
        for child in ast.iter_child_nodes(node):
            outside = child in getattr(node, "decorator_list", ()) or child is getattr(node, "returns", None)
            yield from free_names(child, name, hidden if outside else inner)
        return
    if isinstance(node, ast.Name) and node.id == name and not hidden:
        yield node
    for child in ast.iter_child_nodes(node):
        yield from free_names(child, name, hidden)


def dotted(node) -> str:
    """The text of ``a.b.c``; "" for anything else."""
    if isinstance(node, ast.Attribute):
        return f"{before}.{node.attr}" if (before := dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def texts(tree):
    """The strings of a file."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def providers(sources: dict[str, Source], module: str, name: str) -> set[str]:
    """The module that defines a name, and those that import it, since others may import it from them."""
    homes, size = {module}, 0
    while size != len(homes):
        size = len(homes)
        for source in sources.values():
            late = source.path.endswith("__init__.py") and re.search(rf'"{name}": "({"|".join(homes)})"', source.text)
            if late or any(m in homes and any(a.name == name for a in n.names) for n, m in source.imports()):
                homes.add(source.module)
    return homes


def module_names(source: Source, modules: set[str]) -> dict[str, str]:
    """The names by which a file speaks of modules: {"bilevel": "calibrant.bilevel"}."""
    names = {}
    for node, module in source.imports():
        names |= {a.asname or a.name: f"{module}.{a.name}" for a in node.names if f"{module}.{a.name}" in modules}
    for node in ast.walk(source.tree):
        for alias in node.names if isinstance(node, ast.Import) else ():
            top = alias.name.split(".")[0]
            names |= {alias.asname: alias.name} if alias.asname else {top: top}
    return names


def rename(sources: dict[str, Source], module: str, name: str, new: str) -> set[str]:
    """Enter the edits that rename one name; return the modules that show it."""
    homes = providers(sources, module, name)
    modules = {source.module for source in sources.values()}
    for source in sources.values():
        uses = source.module == module
        for node, origin in source.imports():
            for alias in node.names:
                if origin in homes and alias.name == name:
                    source.replace(alias, new, len(name))
                    uses |= not alias.asname
        if uses:
            for node in source.tree.body if source.module == module else ():
                if getattr(node, "name", "") == name:
                    line = source.text.encode()[source.starts[node.lineno - 1] :].decode()
                    place = ast.Name(name, lineno=node.lineno, col_offset=len(line[: line.index(name)].encode()))
                    source.replace(place, new, len(name))
            for node in free_names(source.tree, name):
                source.replace(node, new, len(name))
        for node in texts(source.tree):  # annotations, __all__, docstrings, code for another process
            if imports_name(node.value, homes, name) or (uses and (node.value == name or distinctive(name))):
                source.replace_in(node, rf"(?<![\w.-]){name}(?![\w-])", new)
            elif uses:
                source.replace_in(node, rf"(?<=`){name}(?=[`(])", new)
        names = module_names(source, modules)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and node.attr == name:
                if longest(names, dotted(node.value), ".") in homes:
                    end = ast.Name(name, lineno=node.end_lineno, col_offset=node.end_col_offset - len(name))
                    source.replace(end, new, len(name))
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr") and len(node.args) > 1:
                owner, text = node.args[:2]
                if getattr(text, "value", "") == name and longest(names, dotted(owner), ".") in homes:
                    source.replace_in(text, name, new)
    return homes


def imports_name(text: str, homes: set[str], name: str) -> bool:
    """Whether a text has code that imports a name."""
    return bool(re.search(rf"from ({'|'.join(map(re.escape, homes))}) import [^\n]*\b{name}\b", text))


def rename_in_page(text: str, homes: set[str], name: str, new: str) -> str:
    """Rewrite a name in a document: everywhere if it is no word, or else in the code of a page that imports it."""
    pattern = rf"(?<![\w.-]){name}(?![\w-])"
    if distinctive(name):
        return re.sub(pattern, new, text)
    if not imports_name(text, homes, name):
        return text
    return re.sub(r"```.*?```|`[^`\n]+`", lambda code: re.sub(pattern, new, code[0]), text, flags=re.DOTALL)


def distinctive(name: str) -> bool:
    """Whether a name is no word of prose."""
    return "_" in name.strip("_") or bool(re.search(r"[a-z0-9][A-Z]|[A-Z]{2}", name))


def rewrite_imports(source: Source, table: Table, modules: set[str], faces: dict[str, set[str]]) -> list[str]:
    """Enter the edits of a file's ``from`` statements; return remarks."""
    remarks, package = [], module_of(table.path(source.path))
    package = package if source.path.endswith("__init__.py") else package.rpartition(".")[0]
    for node, origin in source.imports():
        parts = defaultdict(list)
        changed = bool(node.level) and source.path in table.paths
        for alias in node.names:
            whole = f"{origin}.{alias.name}"
            home, name, called = table.module(origin), alias.name, alias.asname
            if whole in modules and alias.name not in faces.get(origin, ()):
                home, _, name = table.module(whole).rpartition(".")
                if name != alias.name and not called:
                    called = alias.name
                    if not hides(source, alias.name, name):
                        called = None
                        for use in free_names(source.tree, alias.name):
                            source.replace(use, name, len(alias.name))
            changed |= (home, name) != (origin, alias.name)
            parts[home].append(name if not called or called == name != alias.asname else f"{name} as {called}")
        if not changed or (node.level and list(parts) == [origin] and package == source.package):
            continue
        if not node.level and list(parts) == [table.module(origin)] and parts[table.module(origin)] == same(node):
            continue  # only the module's name changes, as in any text
        segment = ast.get_source_segment(source.text, node) or ""
        if "#" in segment:
            remarks.append(f"{source.path}:{node.lineno}: the comment within this import is lost")
        lines = []
        for home, names in parts.items():
            start = f"from {DONE}{home} import " if home else "import "
            lines.append(start + (f"({', '.join(names)})" if len(names) > 4 else ", ".join(names)))
        source.replace(node, ("\n" + " " * node.col_offset).join(lines))
    return remarks


def same(node) -> list[str]:
    """The names of an import as they stand."""
    return [ast.unparse(alias) for alias in node.names]


def hides(source: Source, old: str, new: str) -> bool:
    """Whether a module cannot be called by its new name in a file, since something else there has that name."""
    used = {n.id for n in ast.walk(source.tree) if isinstance(n, ast.Name)}
    used |= {n.arg for n in ast.walk(source.tree) if isinstance(n, ast.arg)}
    return new in used


def rewrite_text(text: str, table: Table, names: dict[str, str], faces: dict[str, set[str]]) -> str:
    """Rewrite dotted names and paths in a text."""
    if names:
        pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        text = re.sub(rf"(?<![\w./{DONE}])({pattern})(?!\w)", lambda m: names[m[0]], text)

    def module(match):
        parent, _, name = match[0].rpartition(".")
        if name in faces.get(parent, ()) and not re.match(r"\.[a-zA-Z_]| import ", text[match.end() :]):
            return match[0]  # what the package shows, not its file
        return DONE + table.modules[match[0]]

    several = sorted((m for m in table.modules if "." in m), key=len, reverse=True)
    if several:
        text = re.sub(rf"(?<![\w./{DONE}-])({'|'.join(map(re.escape, several))})(?!\w|-\w)", module, text)
    for old in table.modules:
        if "." not in old:
            text = re.sub(rf"(?<![\w./{DONE}-]){old}(?=\.[a-z_]+\.|\.[a-z_]+ import )", DONE + table.modules[old], text)
            text = re.sub(rf"(?<=[\"']){old}(?=\.[a-z_{{])", DONE + table.modules[old], text)
            text = re.sub(rf"(?<=-m ){old}(?![\w-])", DONE + table.modules[old], text)
            text = re.sub(rf"^( *(?:from|import) ){old}(?!\w)", rf"\1{DONE}{table.modules[old]}", text, flags=re.M)
    paths = sorted(table.slashed, key=len, reverse=True)
    if paths:
        pattern = "|".join(map(re.escape, paths))
        text = re.sub(rf"(?<![\w.{DONE}-])(?<![\w.]/)({pattern})(?![\w-])", lambda m: DONE + table.slashed[m[0]], text)
    return text.replace(DONE, "")


def main() -> None:
    """Apply a table to the files that git tracks in the working folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--again", action="store_true", help="rewrite references to what has moved already, too")
    parser.add_argument("--dry-run", action="store_true", help="print what would change")
    options = parser.parse_args()

    files = [file for file in git("ls-files").splitlines() if Path(file).is_file()]
    table = Table(options.table.read_text(encoding="utf-8"), files, options.again)
    texts_of = {}
    for file in files:
        if Path(file).suffix in TEXTS and not file.startswith(LEFT_OUT) and Path(file) != options.table:
            try:
                texts_of[file] = Path(file).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    before = dict(texts_of)

    sources = {file: Source(file, text) for file, text in texts_of.items() if file.endswith(".py")}
    names = {}
    for (module, name), new in table.names.items():
        defined = re.compile(rf"^(class |(async )?def )?{name}\b", re.MULTILINE)
        if options.again or any(s.module == module and defined.search(s.text) for s in sources.values()):
            homes = rename(sources, module, name, new)
            names |= {f"{home}.{name}": f"{home}.{new}" for home in homes}
            for file in (file for file in texts_of if file.endswith((".md", ".rst"))):
                texts_of[file] = rename_in_page(texts_of[file], homes, name, new)
        else:
            print(f"{module} defines no {name}: this line is left out", file=sys.stderr)
    texts_of |= {file: source.edited() for file, source in sources.items()}

    sources = {file: Source(file, texts_of[file]) for file in sources}
    modules = {source.module for source in sources.values()}
    if options.again:
        modules |= set(table.modules)
    faces = {source.module: shown(source) for file, source in sources.items() if file.endswith("__init__.py")}
    remarks = []
    for source in sources.values():
        remarks += rewrite_imports(source, table, modules, faces)
        if source.path in table.paths and "__file__" in source.text:
            remarks.append(f"{source.path}: moved, and uses __file__")
    texts_of |= {file: source.edited() for file, source in sources.items()}
    texts_of = {file: rewrite_text(text, table, names, faces) for file, text in texts_of.items()}
    for _, name in table.names:
        for file, text in texts_of.items():
            for number, line in enumerate(text.splitlines(), 1):
                left = re.search(rf"(?<![\w.]){name}(?!\w)", line)
                if left and (distinctive(name) or file.endswith((".md", ".rst"))):
                    remarks.append(f"{file}:{number}: still has {name}")

    changed = [file for file in texts_of if texts_of[file] != before[file]]
    for old, new in table.paths.items():
        print(f"{old} -> {new}")
        if not options.dry_run:
            Path(new).parent.mkdir(parents=True, exist_ok=True)
            git("mv", old, new)
    for file in changed:
        print(f"rewritten: {table.path(file)}")
        if not options.dry_run:
            Path(table.path(file)).write_text(texts_of[file], encoding="utf-8")
    for folder in sorted({str(Path(new).parent) for new in table.paths.values() if new.endswith(".py")}):
        if not (Path(folder) / "__init__.py").is_file() and f"{folder}/__init__.py" not in table.paths.values():
            remarks.append(f"{folder} has no __init__.py")
        if f"{folder}.py" in files and f"{folder}.py" not in table.paths:
            remarks.append(f"{folder} hides {folder}.py")
    print("\n".join(["", *remarks]), file=sys.stderr)


if __name__ == "__main__":
    main()
