"""A study: one declaration, from which its command, its store, its dry runs and its report follow.

:meth:`Study.run` is the one runner: it plans the runs of a command, makes those that the store lacks, writes
``results.json`` and makes the report. A study says what its runs are (``plan``), in which order its records come
(``order``), and what its report shows.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.base.atomic_write import usable_folder
from calibrant.base.locks import lock
from calibrant.base.words import count
from calibrant.report import as_json
from studies.common.commands import command_of
from studies.common.dry_run import list_runs
from studies.common.keys import Key
from studies.common.options import DryRun, Export, Fresh, Out, Sources
from studies.common.shared import in_order, made
from studies.common.store import Line, Store, combined
from studies.report import Record, Report, Results, read_results, write_results


@dataclass(frozen=True)
class Plan:
    """What a command is about to do.

    Parameters
    ----------
    keys : all runs of the command, finished or not
    config : what the result file says about them, besides the experiment, the command and the date
    make : makes missing runs and adds their records to the store
    expected : the key that a stored run would have now, or None if this command cannot know it; default: that of the
        planned run with the same name. A stored run with another key is out of date. It stays in the store but no
        longer counts
    folder : the default folder, if it is not that of the study
    """

    keys: Sequence[Key]
    config: Mapping[str, Any]
    make: Callable[[Store, list[Key]], object]
    expected: Callable[[Line], Key | None] | None = None
    folder: str = ""


@dataclass(frozen=True)
class Study:
    """The declaration of a study.

    Parameters
    ----------
    name : the experiment, as result files name it
    axes : the fields of a record that identify its run
    plan : the plan of a command; its annotated arguments are the options of the command
    order : from the config of a result file, the fields by which its records are sorted, each with its values in order
        or None for the order of numbers and texts
    report : makes the report from a result file; the second argument is the path of the file
    screen : what the command prints at its end; default: the whole report
    needed : entries of the config that the report needs
    beside : writes further files beside ``results.json``, from the store
    after : writes further files beside the report
    extend : from the config and the records of a store, further entries of the config
    folder : where results go by default, in ``out``; default: the name
    shares : functions to which the plan passes options on; their annotated arguments are options too
    """

    name: str
    axes: tuple[str, ...]
    plan: Callable[..., Plan]
    order: Callable[[Mapping[str, Any]], Mapping[str, Iterable[Any] | None]]
    report: Callable[[Results, Path], Report]
    screen: Callable[[Results], str] | None = None
    needed: tuple[str, ...] = ()
    beside: Callable[[Store, Path], object] | None = None
    after: Callable[[Results, Path], object] | None = None
    extend: Callable[[Mapping[str, Any], list[Record]], Mapping[str, Any]] = lambda config, records: {}
    folder: str = ""
    shares: tuple[Callable[..., Any], ...] = ()

    def arguments(self) -> list[inspect.Parameter]:
        """The arguments of the command: those of its plan, then those of every command."""
        functions: list[Callable[..., Any]] = [self.plan, *self.shares, self.run]
        signatures = (inspect.signature(function, eval_str=True) for function in functions)
        return [argument for signature in signatures for argument in signature.parameters.values()]

    def run(
        self,
        *,
        out: Out = None,
        source: Sources = None,
        fresh: Fresh = False,
        dry_run: DryRun = False,
        export: Export = None,
        **options: Any,
    ) -> Path | str:
        """Make the missing runs, and write results and report; returns the path of the report.

        With ``source``, the report is made from result files or stores, without training. With ``dry_run``, nothing
        happens; the planned runs are returned as a text. The other options are those of ``plan``.
        """
        paths = [Path(path) for path in ([source] if isinstance(source, str | Path) else source or ())]
        if dry_run:
            plan = self.plan(**options | ({"download": False} if "download" in options else {}))
            folder = self._folder(out, plan)
            stored = [] if fresh else self.read(paths).records if paths else self.stored(folder)
            return list_runs(plan.keys, stored, self.axes)
        if paths:
            return self.publish(paths, usable_folder(self._folder(out)), export)
        if out:
            usable_folder(out)  # before anything slow
        plan = self.plan(**options)
        folder = self._folder(out, plan)
        return self.publish([self.make(plan, folder, fresh=fresh)], folder, export)

    def _folder(self, out: str | Path | None, plan: Plan | None = None) -> Path:
        return Path(out or Path("out") / (self.folder or (plan and plan.folder) or self.name))

    def make(self, plan: Plan, folder: Path, *, fresh: bool = False) -> Path:
        """Make the runs of a plan that the store of a folder lacks; returns the path of the result file."""
        store = self.open(folder, plan.config.get("device", "cpu"))
        config = {"experiment": self.name, **plan.config, **made()}
        plan.make(store, begin(store, config, plan.keys, expected=plan.expected, fresh=fresh))
        if not store.current:
            raise ValueError("No run was finished. Run the same command again to continue, or allow it more time.")
        return self.export(store)

    def open(self, folder: str | Path, device: str = "cpu") -> Store:
        """Open the store of a folder; raises an error if the folder holds another experiment's results.

        If the folder has a result file but no store, the new store starts with the records of that file.
        """
        store = Store(usable_folder(folder), device=device)
        if self._holds_records(store) and not store.commands:
            store.adopt(read_results(exported(store)), self.axes)
        return store

    def stored(self, folder: str | Path) -> list[Record]:
        """The records that `open` would find in a folder. Writes nothing; the folder need not exist."""
        store = Store(folder)
        if not self._holds_records(store):
            return []
        return (store.results() if store.commands else read_results(exported(store))).records

    def _holds_records(self, store: Store) -> bool:
        """Whether the folder of a store holds results of this experiment; results of another one raise an error."""
        if store.commands:
            path, config = store.path, store.commands[-1]["config"]
        elif (path := exported(store)).exists():
            config = read_results(path).config
        else:
            return False
        if config.get("experiment") != self.name:
            whose = command_of(config.get("experiment"))
            raise ValueError(
                f"{path} holds results of {f'`{whose}`' if whose else 'another program'}; choose another folder with "
                "--out."
            )
        return True

    def export(self, store: Store) -> Path:
        """Write the current records of a store to ``results.json`` beside it; returns the path.

        A lock makes processes read the store and write the file one after the other. Otherwise a process that read the
        store early could overwrite a file with newer records.
        """
        path = exported(store)
        with lock(store.folder / ".results.json.lock"):
            content = self.contents(store)
            write_results(path, content.config, content.records, content.versions)
            if self.beside is not None:
                self.beside(store, path)
        return path

    def contents(self, store: Store) -> Results:
        """The current records of a store, in the form of a result file."""
        config, made_with, records = store.results()
        records = in_order(records, self.order(config))
        config = {**config, **self.extend(config, records)}
        return Results(config, made_with, [{k: v for k, v in r.items() if k != "settings"} for r in records])

    def read(self, paths: Sequence[str | Path]) -> Results:
        """Read result files or stores of this study. If several hold the same run, the first one counts."""
        contents = [self._read(Path(path)) for path in paths]
        if len(contents) == 1:
            return contents[0]
        records: dict[tuple[Any, ...], Record] = {}
        for content in contents:
            for record in content.records:
                records.setdefault(tuple(record.get(name) for name in self.axes), record)
        config = combined(contents)
        return Results(config, contents[0].versions, in_order(records.values(), self.order(config)))

    def _read(self, path: Path) -> Results:
        """Read one file or store. A file of another experiment raises an error that names the right command."""
        store = Store(path) if path.suffix == ".jsonl" else None
        results = read_results(path) if store is None else store.results()
        whose = command_of(results.config.get("experiment"))
        if whose is None:
            raise ValueError(
                f"{path} is not a result file of calibrant: its config does not name an experiment. Give a file that a "
                "command of calibrant wrote."
            )
        if results.config["experiment"] != self.name:
            raise ValueError(f"{path} is a result file of `{whose}`; use `{whose} --from {path}`.")
        if store is not None and results.records:
            results = self.contents(store)
        lacking = [key for key in self.needed if key not in results.config] + ["records"] * (not results.records)
        if lacking:
            raise ValueError(
                f"{path} is not a complete result file of `{whose}`: it lacks {', '.join(lacking)}. Run the command "
                "again."
            )
        return results

    def publish(self, paths: Sequence[Path], out: Path, export: str | Path | None = None) -> Path:
        """Write the report from result files or stores, and the results to ``export`` too; returns its path."""
        results = self.read(paths)
        if export is not None:
            write_results(export, results.config, results.records, results.versions)
        report = self.report(results, paths[0])
        print(report.to_markdown() if self.screen is None else self.screen(results))
        if self.after is not None:
            self.after(results, out)
        return report.write(out)


def exported(store: Store) -> Path:
    """The path of the result file beside a store."""
    return store.folder / "results.json"


def begin(
    store: Store,
    config: Mapping[str, Any],
    keys: Sequence[Key],
    *,
    expected: Callable[[Line], Key | None] | None = None,
    fresh: bool = False,
) -> list[Key]:
    """Record a command in the store, report how many of its runs are finished, and return the others.

    ``expected`` is that of a :class:`Plan`; ``fresh`` repeats all runs of the command.
    """
    planned = {key.name: key for key in keys}
    changed = []
    for name, line in store.current.items():
        key = planned.get(name) if expected is None else expected(line)
        if key is not None and not key.matches(line):
            changed.append(name)
    if again := len(planned.keys() & set(changed)):
        tell_user(f"Re-running {count(again, 'run')}: their data, settings or code changed.")
    if left := len(changed) - again:
        tell_user(
            f"Leaving out {count(left, 'stored run')}: their data, settings or code changed. Name them to re-run them."
        )
    store.forget([*changed, *(planned if fresh else ())])
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


def tell_user(sentence: str) -> None:
    """Print a message to standard error."""
    print(sentence, file=sys.stderr)
