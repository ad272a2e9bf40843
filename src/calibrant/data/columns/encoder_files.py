"""Saving and loading encoders as JSON and as files. They hold only plain values: reading executes no code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from calibrant.base.files import Arrays, Format
from calibrant.data.columns.encoding import Categorical, Dropped, Encoding, Numeric
from calibrant.data.free_text import FreeText

FORMAT = "calibrant.encoder"
VERSION = 3
FILE = Format("encoder", {"TableEncoder": dict}, "TableEncoder.save")
KINDS: dict[str, type] = {cls.kind: cls for cls in (Numeric, Categorical, FreeText, Dropped)}


def to_json(
    params: dict[str, Any],
    columns: Sequence[Encoding],
    arrays: Arrays | None = None,
    *,
    named: bool,
    limit: float,
    notes: Sequence[str],
) -> str:
    """Return an encoder's parameters and fitted state as JSON. The matrices of text columns go to ``arrays``."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "params": params,
        "named": named,
        "limit": limit,
        "columns": [_entry(encoding, f"column.{place}", arrays) for place, encoding in enumerate(columns)],
        "notes": list(notes),
    }
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)


def from_json(text: str, arrays: Arrays | None = None) -> tuple[dict[str, Any], list[Encoding], dict[str, Any]]:
    """Return the parameters, the encodings and the rest of the state from :func:`to_json`; other text is an error."""
    content = json.loads(text)
    if (content["format"], content["version"]) != (FORMAT, VERSION):
        raise ValueError(f"its format is {content['format']} {content['version']}")
    rest = {
        "named": bool(content["named"]),
        "limit": float(content["limit"]),
        "notes": [str(note) for note in content["notes"]],
    }
    return dict(content["params"]), [_encoding(dict(entry), arrays or {}) for entry in content["columns"]], rest


def write_encoder(path: str | os.PathLike[str], text: str, arrays: Arrays) -> None:
    """Write the output of :func:`to_json` to a file."""
    FILE.write(path, "TableEncoder", arrays, encoder=json.loads(text))


def read_encoder(path: str | os.PathLike[str]) -> tuple[str, Arrays]:
    """Read the text and arrays that :func:`write_encoder` wrote."""
    text, arrays = FILE.read(path, lambda _, header, arrays: (json.dumps(header["encoder"]), arrays))
    return text, arrays


def _entry(encoding: Encoding, key: str, arrays: Arrays | None) -> dict[str, Any]:
    entry = {"kind": encoding.kind, **asdict(encoding)}
    for name, value in entry.items():
        if isinstance(value, np.ndarray):
            if arrays is None:
                raise ValueError(
                    f"Column {encoding.name!r} is free text, whose matrices to_json cannot write; use save, or pass a "
                    "dictionary as arrays."
                )
            arrays[f"{key}.{name}"] = value
            entry[name] = {"array": f"{key}.{name}"}
    return entry


def _encoding(entry: dict[str, Any], arrays: Arrays) -> Encoding:
    def value_of(part: Any) -> Any:
        return arrays[part["array"]] if isinstance(part, dict) else tuple(part) if isinstance(part, list) else part

    cls = KINDS[entry.pop("kind")]
    encoding: Encoding = cls(**{name: value_of(part) for name, part in entry.items()})
    return encoding
