"""Saving and loading encoders as JSON and as files. They hold only plain values: reading executes no code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from calibrant._container import read_bytes
from calibrant._files import Format
from calibrant.data.encodings import Categorical, Dropped, Encoding, Numeric
from calibrant.data.scaling import LIMIT

FORMAT = "calibrant.encoder"
VERSION = 2
FILE = Format("encoder", {"TableEncoder": dict}, "TableEncoder.save")
KINDS: dict[str, type] = {cls.kind: cls for cls in (Numeric, Categorical, Dropped)}
LIMITS = {1: 1e30, 2: LIMIT}
"""The limit beyond which scaled values are compressed, by version of the format."""


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
    version = content["version"]
    if content["format"] != FORMAT or version not in LIMITS:
        raise ValueError(f"its format is {content['format']} {version}")
    rest = {
        "named": bool(content.get("named", True)),
        "limit": float(content.get("limit", LIMITS[version])),
        "notes": [str(note) for note in content["notes"]],
    }
    return dict(content["params"]), [_encoding(dict(entry)) for entry in content["columns"]], rest


def write_encoder(path: str | os.PathLike[str], text: str) -> None:
    """Write the output of :func:`to_json` to a file."""
    FILE.write(path, "TableEncoder", {}, encoder=json.loads(text))


def read_encoder(path: str | os.PathLike[str]) -> str:
    """Read the text written by :func:`write_encoder`, or a plain text file as written by early versions."""
    raw = read_bytes(path)
    if not raw.lstrip().startswith(b"{"):
        return str(FILE.read_raw(path, raw, lambda _, header, __: json.dumps(header["encoder"])))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8; give a file that TableEncoder.save wrote.") from None


def _encoding(entry: dict[str, Any]) -> Encoding:
    cls = KINDS[entry.pop("kind")]
    found: Encoding = cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
    return found
