"""Steps of every experiment command: open the store, find the missing runs, export the results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant.base.atomic_write import usable_folder
from calibrant.base.locks import lock
from calibrant.report import read_results, write_results
from calibrant.report.results import Record, as_json
from studies.common.contents import KINDS, Arrange, contents, experiment_of
from studies.common.dry_run import LISTING, Listed, list_runs
from studies.common.keys import Key
from studies.common.shared import count
from studies.common.store import Line, Store


def open_store(out: str | Path, experiment: str, *, device: Any = "cpu") -> Store:
    """Open the store of an experiment in a folder; raises an error if the folder holds another experiment's results.

    If the folder has a result file but no store, the new store starts with the records of that file.
    """
    listing = LISTING.get()
    store = Store(out if listing else usable_folder(out), device=str(device), read_only=listing)
    if not _holds_records(store, experiment) or listing:
        return store
    if not store.commands:
        store.adopt(read_results(_exported(store)), KINDS[experiment].identity)
    return store


def stored_records(out: str | Path, experiment: str) -> list[Record]:
    """The records that `open_store` would find in a folder. Writes nothing; the folder need not exist."""
    store = Store(out)
    if not _holds_records(store, experiment):
        return []
    return (store.results() if store.commands else read_results(_exported(store))).records


def _exported(store: Store) -> Path:
    return store.folder / "results.json"


def _holds_records(store: Store, experiment: str) -> bool:
    """Whether the folder of a store holds results of the experiment; results of another one raise an error."""
    if store.commands:
        path, config = store.path, store.commands[-1]["config"]
    elif (path := _exported(store)).exists():
        config = read_results(path).config
    else:
        return False
    found = experiment_of(config)
    if found != experiment:
        whose = f"`python -m studies {KINDS[found].command}`" if found else "another program"
        raise ValueError(f"{path} holds results of {whose}; choose another folder with --out.")
    return True


def begin(
    store: Store,
    config: Mapping[str, Any],
    keys: Sequence[Key],
    *,
    expected: Callable[[Line], Key | None],
    fresh: bool = False,
) -> list[Key]:
    """Record a command in the store, report how many of its runs are finished, and return the others.

    A dry run ends here: its runs are listed, and nothing is recorded.

    Parameters
    ----------
    keys : the runs of the command
    expected : the key that a stored run would have now, or None if this command cannot know it. If that key differs
        from the stored one, the record is out of date. It stays in the file but no longer counts.
    fresh : repeat all runs of the command
    """
    if LISTING.get():
        experiment = config["experiment"]
        raise Listed(list_runs(keys, [] if fresh else stored_records(store.folder, experiment), experiment))
    asked = {key.name for key in keys}
    changed = []
    for name, line in store.current.items():
        key = expected(line)
        if key is not None and not key.matches(line):
            changed.append(name)
    again = len(asked.intersection(changed))
    if again:
        tell_user(f"Re-running {count(again, 'run')}: their data, settings or code changed.")
    if left := len(changed) - again:
        tell_user(
            f"Leaving out {count(left, 'stored run')}: their data, settings or code changed. Name them to re-run them."
        )
    store.forget([*changed, *(asked if fresh else ())])
    missing = store.missing(keys)
    if missing or not said_before(store, config):
        store.begin(config)
    if len(missing) < len(keys):
        tell_user(f"Found {len(keys) - len(missing)} of {count(len(keys), 'run')} in {store.path}.")
    return missing


def said_before(store: Store, config: Mapping[str, Any]) -> bool:
    """Whether the last command had the same config. If it also has nothing to run, it is not recorded again."""
    last = store.commands[-1]["config"] if store.commands else {}
    return all(last.get(name) == value for name, value in as_json(config).items() if name not in ("command", "date"))


def export(store: Store, arrange: Arrange, beside: Callable[[Path], Any] | None = None) -> Path:
    """Write the current records of the store to ``results.json`` beside it; returns the path.

    ``beside`` gets that path and writes further files. A lock makes processes read the store and write the file one
    after the other. Otherwise a process that read the store early could overwrite a file with newer records.
    """
    path = _exported(store)
    with lock(store.folder / ".results.json.lock"):
        content = contents(store, arrange)
        write_results(path, content.config, content.records, content.versions)
        if beside is not None:
            beside(path)
    return path


def tell_user(sentence: str) -> None:
    """Print a message to standard error."""
    print(sentence, file=sys.stderr)
