"""The result file of `calibrant bench tables`: what is measured is kept as long as nothing that made it has changed."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import calibrant
from calibrant.experiments.table_peers import PEERS
from calibrant.report import Results, read_results, versions, write_results

SKLEARN = "scikit-learn"
MEASURED = ("data", "metrics", "selective")
"""The folders of our source that every record depends on: how a table is read, encoded and split, and the scores."""
TRAINED = ("methods", "bilevel", "posthoc", "losses", "models")
"""Those that records of our own methods depend on besides."""


class Store:
    """The result file: what it holds of equal settings is kept, and every addition is written at once.

    ``config`` is this run's. ``fresh`` forgets what the file holds of its tables and methods.
    """

    def __init__(self, path: Path, config: dict[str, Any], *, fresh: bool = False) -> None:
        self.path, self.config, self.records = path, config, list[dict[str, Any]]()
        if path.exists():
            asked = (set(config["tables"]), set(config["methods"])) if fresh else (set[str](), set[str]())
            self._merge(read_results(path), *asked)

    def _merge(self, before: Results, tables: set[str], methods: set[str]) -> None:
        for key in ("split", "nll_floor"):
            if before.config.get(key) != self.config[key]:
                raise ValueError(
                    f"{self.path} was made with {key} {before.config.get(key)}, and this run has {self.config[key]}; "
                    "choose another folder for results."
                )
        old = {"made_by": {}, **before.config}  # a file that does not say what made it is taken for another code's
        gone = {*self.config["left_out"], *self.config.get("unsuitable", ())}  # methods, and tables
        records = [r for r in before.records if not gone & {r["method"], r["table"]}]
        records = [r for r in records if not (r["table"] in tables and r["method"] in methods)]
        for keys, name in ((("methods", "made_by"), "method"), (("tables",), "table")):
            held = {r[name] for r in records}
            changed = {n for key in keys for n, v in self.config[key].items() if n in held and old[key].get(n) != v}
            if changed:
                print(f"Measured again, for it has changed: {', '.join(sorted(changed))}.", file=sys.stderr)
            records = [r for r in records if r[name] not in changed]
        for key in ("methods", "made_by", "costs", "tables"):
            self.config[key] = {n: v for n, v in old.get(key, {}).items() if n not in gone} | self.config[key]
        self.records = records
        if records:
            told = {key: old[key] for key in ("command", "date", "device", "machine") if key in old}
            self.config["other_runs"] = [*old.get("other_runs", []), told | {"versions": before.versions}]

    def has(self, table: str, method: str, seed: int) -> bool:
        """Whether this was measured already."""
        return any((r["table"], r["method"], r["seed"]) == (table, method, seed) for r in self.records)

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Keep records, and write the file."""
        self.records += records
        self.records.sort(key=lambda r: (r["table"], list(self.config["methods"]).index(r["method"]), r["seed"]))
        write_results(self.path, self.config, self.records)


def made_by(methods: Sequence[str]) -> dict[str, str]:
    """What code stands behind each method's records: a digest of ours, and for a peer scikit-learn's version too.

    Files of older versions have it in another form, which equals none of these: their records are measured again.
    """
    peers = f"{SKLEARN} {versions()[SKLEARN]}, code {code_digest(*MEASURED)}"
    return {name: peers if name in PEERS else f"code {code_digest(*TRAINED, *MEASURED)}" for name in methods}


@cache
def code_digest(*folders: str) -> str:
    """A digest of the source in these folders of the package: another one may give other numbers."""
    package = Path(calibrant.__file__).parent
    found = hashlib.sha256()
    for path in sorted(p for folder in folders for p in (package / folder).rglob("*.py")):
        found.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]
