"""Result files, `{"config": …, "versions": …, "records": […]}`, with the provenance of every number."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from calibrant.base.atomic_write import write_text_whole
from calibrant.report import as_json, machine, versions

Record = dict[str, Any]


class Results(NamedTuple):
    """The content of a result file: the settings, the versions of packages, and one record for each run."""

    config: dict[str, Any]
    versions: dict[str, str]
    records: list[Record]


def command() -> str:
    """The command line of this process, without folders of programs and absolute paths."""
    arguments = getattr(sys, "orig_argv", sys.argv) if Path(sys.argv[0]).suffix == ".py" else sys.argv
    return shlex.join(map(_without_folders, arguments))


def _without_folders(argument: str) -> str:
    option, equals, path = argument.rpartition("=")
    return option + equals + (Path(path).name or path if os.path.isabs(path) else path)


def write_results(
    path: str | Path,
    config: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    made_with: Mapping[str, str] | None = None,
) -> Path:
    """Write a result file whole or not at all; returns its path.

    The machine is added to `config` unless it is named there. NumPy and torch scalars become numbers, paths become
    text, and numbers that are not finite become null, because JSON cannot represent them. `made_with` are the versions
    of the packages that made the records; by default, the installed ones.
    """
    path = Path(path)
    content = {
        "config": {"machine": machine(), **config},
        "versions": dict(made_with or versions()),
        "records": list(records),
    }
    text = as_text(as_json(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_whole(path, text)
    return path


def as_text(content: Mapping[str, Any]) -> str:
    """JSON with one line for each record, for readers and for version control."""
    head = json.dumps({key: content[key] for key in ("config", "versions")}, indent=1, allow_nan=False)
    rows = ",\n".join(f"  {json.dumps(record, allow_nan=False)}" for record in content["records"])
    return head[: -len("\n}")] + f',\n "records": [\n{rows}\n ]\n}}\n'


def read_results(path: str | Path) -> Results:
    """Read a result file; an error says what is missing in any other file."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no result file {path}. Give a file that a command of calibrant wrote.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not a JSON file: {error}. Give a file that a command of calibrant wrote."
        ) from error
    shapes = {"config": dict, "versions": dict, "records": list}
    fields = content if isinstance(content, dict) else {}
    missing = [key for key, shape in shapes.items() if not isinstance(fields.get(key), shape)]
    if missing:
        raise ValueError(
            f"{path} is not a result file of calibrant: it lacks {', '.join(missing)}. Give a file that a command of "
            "calibrant wrote."
        )
    if not all(isinstance(record, dict) for record in content["records"]):
        raise ValueError(
            f"{path} is not a result file of calibrant: its records must be JSON objects; got others. Give a file that "
            "a command of calibrant wrote."
        )
    return Results(*(content[key] for key in Results._fields))


def provenance(config: Mapping[str, Any] | None = None, **facts: Any) -> dict[str, Any]:
    """The foot of a report: command, date, versions and machine of this run, and `facts`.

    For a report from a result file, pass that file's `config` and `versions`.
    """
    entry: dict[str, Any] = {"command": command(), "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
    if config is not None:
        entry["config"] = {k: v for k, v in config.items() if k != "machine"}
    entry["machine"] = (config or {}).get("machine") or machine()
    return {**entry, "versions": versions(), **facts}


def by_seed(records: Iterable[Mapping[str, Any]], metric: str, **where: Any) -> dict[Any, float]:
    """Return a metric by seed, from the records whose fields equal `where`: `by_seed(records, "nll", method="bo4sc")`.

    Two matching records with the same seed are an error: `where` must name further fields.
    """
    values: dict[Any, float] = {}
    conditions = where.items()
    for record in records:
        if not conditions <= record.items():
            continue
        if record["seed"] in values:
            raise ValueError(
                f"where must select one record per seed; got several of seed {record['seed']} for {where}."
            )
        values[record["seed"]] = record[metric]
    return values
