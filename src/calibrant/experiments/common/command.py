"""What every command does around its runs: try the folder, open the store, say what is done already, export results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant._locks import lock
from calibrant._whole import usable_folder
from calibrant.experiments.common.contents import KINDS, Arrange, contents, experiment_of
from calibrant.experiments.common.keys import Key
from calibrant.experiments.common.shared import count
from calibrant.experiments.common.store import Line, Store
from calibrant.report import read_results, write_results
from calibrant.report.results import as_json


def open_store(out: str | Path, experiment: str, *, device: Any = "cpu") -> Store:
    """The store of one experiment in this folder; a folder with another experiment's results is an error.

    A folder that has a result file and no store is gone on with: the store begins with the records of the file.
    """
    folder = usable_folder(out)
    store, exported = Store(folder, device=str(device)), folder / "results.json"
    if store.commands:
        found = experiment_of(store.commands[-1]["config"])
        before = store.path
    elif exported.exists():
        results, before = read_results(exported), exported
        found = experiment_of(results.config)
        if found == experiment:
            store.adopt(results, KINDS[experiment].identity)
    else:
        return store
    if found != experiment:
        whose = f"`calibrant {KINDS[found].command}`" if found else "another program"
        raise ValueError(f"{before} holds results of {whose}; choose another folder with --out.")
    return store


def begin(
    store: Store,
    config: Mapping[str, Any],
    keys: Sequence[Key],
    *,
    expected: Callable[[Line], Key | None],
    fresh: bool = False,
) -> list[Key]:
    """Note a command in the store; returns the runs that are still to be done, and says how many are not.

    Parameters
    ----------
    keys : the runs that the command is asked for
    expected : the key that the run of a stored line would have now, or None where this command cannot know. If it is
        another one, the record is out of date: it is kept in the file and no longer counts.
    fresh : run everything again that the command is asked for
    """
    asked = {key.name for key in keys}
    changed = []
    for name, line in store.current.items():
        key = expected(line)
        if key is not None and (line["config"], line["code"]) != (key.config, key.code):
            changed.append(name)
    again = len(asked.intersection(changed))
    if again:
        tell_user(f"Re-running {count(again, 'run')}: their data, settings or code changed.")
    if left := len(changed) - again:
        tell_user(
            f"Leaving out {count(left, 'stored run')}: their data, settings or code changed. Ask for them to re-run."
        )
    store.forget([*changed, *(asked if fresh else ())])
    missing = store.missing(keys)
    if missing or not said_before(store, config):
        store.begin(config)
    if len(missing) < len(keys):
        tell_user(f"Found {len(keys) - len(missing)} of {count(len(keys), 'run')} in {store.path}.")
    return missing


def said_before(store: Store, config: Mapping[str, Any]) -> bool:
    """Whether the last command was asked for the same: one that has nothing to add then leaves no trace."""
    last = store.commands[-1]["config"] if store.commands else {}
    return all(last.get(name) == value for name, value in as_json(config).items() if name not in ("command", "date"))


def export(store: Store, arrange: Arrange, beside: Callable[[Path], Any] | None = None) -> Path:
    """Write what counts in the store as ``results.json`` beside it; returns the path.

    ``beside`` is given the path and writes what belongs to it. Of several processes, each reads and writes while the
    others wait: one that read earlier must not write later, or the records of the others would be missing.
    """
    path = store.folder / "results.json"
    with lock(store.folder / ".results.json.lock"):
        content = contents(store, arrange)
        write_results(path, content.config, content.records)
        if beside is not None:
            beside(path)
    return path


def tell_user(sentence: str) -> None:
    """Say something beside the results."""
    print(sentence, file=sys.stderr)
