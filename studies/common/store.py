"""Store the finished runs of an experiment in a JSON Lines file, each run as soon as it ends.

A line is a JSON object of one ``kind``: ``command`` (the settings of a command), ``record`` (one finished run and its
origin) or ``forget`` (runs that no longer count). Lines are never removed; if a run has two records, the later one
counts. Several processes can add to a store at the same time, because a lock keeps their lines apart. An addition
counts completely or not at all: its first line says how many lines belong ``together``. If a crash leaves an incomplete
addition at the end, it is ignored, and the next addition replaces it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from calibrant.base.locks import lock, try_lock
from calibrant.report import as_json, machine, versions
from studies.common.keys import FIRST, Key, name_of
from studies.report import Record, Results

ORIGIN = ("command", "date", "device", "machine")
"""The entries of a config that say how its runs were made."""


def merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two configs: tables and lists are combined; for other entries, the later value wins.

    >>> merged({"sets": ["bac"], "rates": {"a": 1}, "device": "cpu"}, {"sets": ["iris"], "rates": {"a": 2, "b": 3}})
    {'sets': ['bac', 'iris'], 'rates': {'a': 2, 'b': 3}, 'device': 'cpu'}
    """
    config = dict(before)
    for name, value in after.items():
        old = config.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and name != "machine":
            value = {**old, **value}
        elif isinstance(old, list) and isinstance(value, list):
            value = [*old, *(item for item in value if item not in old)]
        config[name] = value
    return config


def origin(config: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, Any]:
    """How the runs of a command were made, as an entry of ``other_runs``."""
    return {name: config[name] for name in ORIGIN if name in config} | {"versions": dict(versions)}


def combined(contents: Sequence[Results]) -> dict[str, Any]:
    """The config of several result files: that of the first one, with the commands of the others in ``other_runs``."""
    first, *others = contents
    config = dict(first.config)
    made_by = {name: config[name] for name in ORIGIN if name in config}
    origins: list[dict[str, Any]] = list(config.get("other_runs", []))
    for results in others:
        config = merged(config, results.config)
        origins += [*results.config.get("other_runs", []), origin(results.config, results.versions)]
    unique: list[dict[str, Any]] = []
    for other in origins:
        if other != origin(first.config, first.versions) and other not in unique:
            unique.append(other)
    return config | made_by | ({"other_runs": unique} if unique else {})


FILE = "results.jsonl"
BESIDE = "beside"
"""The field of a record that stays in the store and is not exported, such as the numbers of figures."""
Line = dict[str, Any]


class Store:
    """Finished runs of one experiment in ``folder / "results.jsonl"``.

    Parameters
    ----------
    path : the file itself, or the folder that holds it
    device : the device that added records name

    A long experiment can run in any number of processes::

        for key in store.take(keys):
            store.add({key: train(key, store.checkpoint(key))})
    """

    def __init__(self, path: str | Path, *, device: str = "cpu") -> None:
        path = Path(path)
        self.path = path if path.suffix == ".jsonl" else path / FILE
        self.folder, self.device = self.path.parent, device
        self.command = ""
        """The id of the command that adds records, set by `begin`."""
        self._clear()

    def __getstate__(self) -> dict[str, Any]:
        """The state that another process needs to add records; it reads the lines from the file."""
        return {"path": self.path, "device": self.device, "command": self.command}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], device=state["device"])  # type: ignore[misc]
        self.command = state["command"]

    def begin(self, config: Mapping[str, Any]) -> None:
        """Record the settings of a command; the records that follow belong to it.

        Raises an error if another command has started another experiment in this store in the meantime.
        """
        self.command = uuid4().hex[:12]
        about = {"machine": machine(), **config}
        line = {"kind": "command", "id": self.command, "config": about, "versions": versions(), "date": now()}
        if not self._append([line], unless=lambda: self._is_of_another(config.get("experiment"))):
            raise ValueError(
                f"Another command has started another experiment in {self.path}; choose another folder with --out."
            )

    def add(self, records: Mapping[Key, Record]) -> None:
        """Write the records of finished runs to disk, one line per record."""
        origin_of_runs = {"versions": versions(), "device": self.device, "date": now(), "command": self.command}
        lines: list[Line] = []
        for key, record in records.items():
            about = {"settings": key.settings, "data": key.data, "config": key.config, "code": key.code}
            kept = {name: value for name, value in record.items() if name != BESIDE}
            line = {"kind": "record", "key": dict(key.fields), **about, **origin_of_runs, "record": kept}
            lines.append(line | ({BESIDE: record[BESIDE]} if BESIDE in record else {}))
        self._append(lines)

    def adopt(self, results: Results, identity: Sequence[str]) -> None:
        """Start with the records of a result file; the fields ``identity`` of a record identify its run.

        A record without a version has the first one.
        """
        command, here = uuid4().hex[:12], results.config
        dated = {"versions": results.versions, "date": here.get("date", "")}
        lines: list[Line] = [{"kind": "command", "id": command, "config": here, **dated}]
        for record in results.records:
            about = {"config": record.get("config", ""), "code": record.get("code", FIRST)}
            kept = {name: value for name, value in record.items() if name not in about}
            origin_of_run = {**dated, "device": record.get("device", here.get("device", "")), "command": command}
            key = {name: record[name] for name in identity if name in record}
            text = here.get("methods", {}).get(record.get("method"), "")
            about["settings"] = text.get(record.get("dataset"), "") if isinstance(text, dict) else text
            lines.append({"kind": "record", "key": key, "data": "", **about, **origin_of_run, "record": kept})
        self._append(lines, unless=lambda: bool(self._commands))  # unless another process has done so

    def forget(self, names: Iterable[str]) -> None:
        """Ignore the records of these runs (`Key.name`) from now on; their lines stay in the file."""
        if held := [name for name in names if name in self.current]:
            self._append([{"kind": "forget", "names": held, "date": now()}])

    def has(self, key: Key) -> bool:
        """Whether this run is stored already, with the same settings, data and version."""
        line = self.current.get(key.name)
        return line is not None and key.matches(line)

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """The runs that are not finished, or whose settings, data or code have changed."""
        return [key for key in keys if not self.has(key)]

    @contextmanager
    def claim(self, key: Key) -> Iterator[bool]:
        """Reserve a run for this process. Yields True if the run is missing and no other process has claimed it.

        The claim ends with the ``with`` block, or with the process if that is killed.
        """
        folder = self.folder / "claims"
        folder.mkdir(parents=True, exist_ok=True)
        with try_lock(folder / f"{key.file_name}.lock") as mine:
            yield mine and not self.has(key)

    def take(self, keys: Sequence[Key]) -> Iterator[Key]:
        """Yield the missing runs that no other process has claimed; each is claimed until the next one.

        Call it again at the end to take the runs of processes that were killed.
        """
        for key in keys:
            with self.claim(key) as mine:
                if mine:
                    yield key

    def checkpoint(self, key: Key) -> Path:
        """The folder for the checkpoints of a run; it is created if it does not exist."""
        folder = self.folder / "checkpoints" / key.file_name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def current(self) -> dict[str, Line]:
        """The lines of the current records by `Key.name`, including those that other processes have added."""
        self._read()
        return self._current

    @property
    def commands(self) -> list[Line]:
        """The lines of all commands, oldest first."""
        self._read()
        return list(self._commands.values())

    def results(self) -> Results:
        """The current records in the form of a result file.

        The config is that of the last command. Lists and tables of earlier commands that left records are merged into
        it, and ``other_runs`` describes those commands. Each record also gets its settings, the digest of its
        config and the version of its code.
        """
        lines, commands = list(self.current.values()), self.commands
        if not commands:
            raise ValueError(
                f"{self.path} is not a store of calibrant: it has no line of a command. Give a file that a command of "
                "calibrant wrote."
            )
        used = {line["command"] for line in lines}
        *before, last = [c for c in commands if c["id"] in used or c is commands[-1]]
        config: dict[str, Any] = {}
        for command in (*before, last):
            config = merged(config, command["config"])
        if before:
            config["other_runs"] = [origin(c["config"], c["versions"]) for c in before]
        records = [line["record"] | {k: line[k] for k in ("settings", "config", "code")} for line in lines]
        return Results(config, last["versions"], records)

    def _clear(self) -> None:
        self._offset = 0
        self._current: dict[str, Line] = {}
        self._commands: dict[str, Line] = {}

    def _is_of_another(self, experiment: str | None) -> bool:
        experiments = [command["config"].get("experiment") for command in self._commands.values()]
        return experiment is not None and any(other not in (None, experiment) for other in experiments)

    def _append(self, lines: Sequence[Line], *, unless: Callable[[], bool] = lambda: False) -> bool:
        """Add lines, except if ``unless`` is true of the lines so far; returns whether they were added."""
        if not lines:
            return False
        first = {**lines[0], "together": len(lines)} if len(lines) > 1 else lines[0]
        texts = (json.dumps(as_json(line), allow_nan=False, separators=(",", ":")) for line in (first, *lines[1:]))
        content = "".join(f"{text}\n" for text in texts).encode()
        self.folder.mkdir(parents=True, exist_ok=True)
        with lock(self.path.with_name(f".{self.path.name}.lock")):
            self._read()  # under the lock: anything after the offset is an incomplete addition
            if unless():
                return False
            try:
                with open(self.path, "ab+") as file:
                    file.truncate(self._offset)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise ValueError(
                    f"{self.path} cannot be written: {error.strerror}. Fix this and run the same command again to "
                    "continue."
                ) from error
        return True

    def _read(self) -> None:
        """Read the complete additions since the last call."""
        if not self.path.exists():
            return self._clear()
        with open(self.path, "rb") as file:
            if file.seek(0, os.SEEK_END) < self._offset:
                self._clear()
            file.seek(self._offset)
            text = file.read()
        raw = text[: text.rfind(b"\n") + 1].splitlines(keepends=True)
        place = 0
        while place < len(raw):
            try:
                first = json.loads(raw[place])
                end = place + first.get("together", 1)
                if end > len(raw):
                    break
                for line in (first, *map(json.loads, raw[place + 1 : end])):
                    self._take_in(line)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{self.path} holds a line that is not calibrant's, after byte {self._offset}: {error}. Remove "
                    "that line, or choose another folder."
                ) from error
            self._offset += sum(map(len, raw[place:end]))
            place = end
        return None

    def _take_in(self, line: Line) -> None:
        if line["kind"] == "command":
            self._commands[line["id"]] = line
        elif line["kind"] == "forget":
            for name in line["names"]:
                self._current.pop(name, None)
        else:
            self._current[name_of(line["key"].items())] = line


def now() -> str:
    """The current date and time, for a record."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
