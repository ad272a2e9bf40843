"""Reading rules from JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

Rule = TypeVar("Rule")


def read_rule(text: str, form: str, noun: str, build: Callable[[dict[str, Any]], Rule]) -> Rule:
    """Return `build(fields)` for the fields of a rule in JSON; an error if its format is not `form`."""
    try:
        fields = json.loads(text)
    except (TypeError, json.JSONDecodeError, RecursionError):
        raise ValueError(
            f"text must be JSON, as written by to_json; got {str(text)[:40]!r}. Pass the content of the file."
        ) from None
    text_format = fields.pop("format", None) if isinstance(fields, dict) else type(fields).__name__
    if text_format != form:
        raise ValueError(f"text must be JSON with format {form!r}, as written by to_json; got {text_format!r}.")
    try:
        return build(fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"The {noun} is incomplete or has unknown fields: {error}. Write it again with to_json."
        ) from error
