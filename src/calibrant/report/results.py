"""Result files, `{"config": …, "versions": …, "records": […]}`, with the provenance of every number."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from calibrant._version import __version__
from calibrant.base.atomic_write import write_text_whole

Record = dict[str, Any]


class Results(NamedTuple):
    """The content of a result file: the settings, the versions of packages, and one record for each run."""

    config: dict[str, Any]
    versions: dict[str, str]
    records: list[Record]


def versions() -> dict[str, str]:
    """Versions of the packages that the numbers depend on."""
    import numpy
    import scipy
    import sklearn
    import torch

    return {
        "calibrant": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
    }


def machine() -> dict[str, Any]:
    """The machine that the numbers were measured on."""
    import torch

    return {
        "processor": _processor(),
        "cores": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
    }


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


def as_json(value: Any) -> Any:
    """A value for JSON: numbers that are not finite become null, NumPy and torch numbers plain ones."""
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy and torch, scalars and arrays
        return as_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
