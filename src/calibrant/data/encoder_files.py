"""Saving and loading encoders as JSON and as files. They hold only plain values: reading executes no code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from calibrant._files import Format
from calibrant.data.encodings import Categorical, Dropped, Encoding, Numeric

FORMAT = "calibrant.encoder"
VERSION = 2
FILE = Format("encoder", {"TableEncoder": dict}, "TableEncoder.save")
KINDS: dict[str, type] = {cls.kind: cls for cls in (Numeric, Categorical, Dropped)}


def to_json(
    params: dict[str, Any], columns: Sequence[Encoding], *, named: bool, limit: float, notes: Sequence[str]
) -> str:
    """Return an encoder's parameters and fitted state as JSON."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "params": params,
        "named": named,
        "limit": limit,
        "columns": [{"kind": encoding.kind, **asdict(encoding)} for encoding in columns],
        "notes": list(notes),
    }
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)


def from_json(text: str) -> tuple[dict[str, Any], list[Encoding], dict[str, Any]]:
    """Return the parameters, the encodings and the rest of the state from :func:`to_json`; other text is an error."""
    content = json.loads(text)
    if (content["format"], content["version"]) != (FORMAT, VERSION):
        raise ValueError(f"its format is {content['format']} {content['version']}")
    rest = {
        "named": bool(content["named"]),
        "limit": float(content["limit"]),
        "notes": [str(note) for note in content["notes"]],
    }
    return dict(content["params"]), [_encoding(dict(entry)) for entry in content["columns"]], rest


def write_encoder(path: str | os.PathLike[str], text: str) -> None:
    """Write the output of :func:`to_json` to a file."""
    FILE.write(path, "TableEncoder", {}, encoder=json.loads(text))


def read_encoder(path: str | os.PathLike[str]) -> str:
    """Read the text that :func:`write_encoder` wrote."""
    return str(FILE.read(path, lambda _, header, __: json.dumps(header["encoder"])))


def _encoding(entry: dict[str, Any]) -> Encoding:
    cls = KINDS[entry.pop("kind")]
    found: Encoding = cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
    return found
