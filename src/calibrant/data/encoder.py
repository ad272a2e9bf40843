"""Tables to numbers: an encoder that is fitted on training rows, applied to any, and saved as plain JSON."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.data.columns import as_columns
from calibrant.data.encodings import Categorical, Dropped, Encoding, Numeric, choose
from calibrant.data.labels import as_labels

FORMAT = "calibrant.encoder"
FORMAT_VERSION = 1
_KINDS: dict[str, type] = {cls.kind: cls for cls in (Numeric, Categorical, Dropped)}


class TableEncoder:
    """Columns of any kind as one float32 array, and labels of any kind as whole numbers.

    Numbers are standardised (missing: the mean, and an indicator), however few their values; text becomes one input per
    category; dates become days; constant columns, names and free text are left out (``dropped_`` says why). Text of
    which 95 % or more are numbers is taken as numbers, the rest as missing, unless it is named in ``categorical``, is
    of pandas' category type, or begins with zeros as codes do (007). Columns are matched by name: their order does not
    matter, and further ones are ignored.

    Parameters
    ----------
    categorical : names of columns (or one name) whose numbers are codes of categories, not quantities
    rare : categories in less than this share of the training rows, or in one row only, share one input
    max_categories : at most so many categories of a column, the commonest, have an input of their own
    unseen : ``"rare"`` counts a category that training did not see as a rare one (all 0 where there are none);
        ``"error"`` refuses it

    Attributes
    ----------
    columns_ : the encoding of each training column, in order
    feature_names_ : the names of the outputs
    classes_ : the labels in order, or None when fitted without labels
    notes_ : the sentences that ``fit`` gave as warnings
    """

    def __init__(
        self,
        *,
        categorical: Sequence[Any] | str = (),
        rare: float = 0.002,
        max_categories: int = 64,
        unseen: str = "rare",
    ) -> None:
        self.categorical, self.rare, self.max_categories, self.unseen = categorical, rare, max_categories, unseen

    def fit(self, data: Any, labels: Any = None) -> TableEncoder:
        """Learn the encoding from training rows (and the classes from their labels)."""
        self._check()
        columns = as_columns(data)
        rows = len(next(iter(columns.values()))) if columns else 0
        if not rows:
            raise ValueError("An encoder needs at least one column and one row to be fitted on; the table is empty.")
        categorical = self._categorical()
        if unknown := [name for name in categorical if name not in columns]:
            raise ValueError(f"categorical names {', '.join(unknown)}, and the table has {', '.join(columns)}.")
        chosen = [
            choose(name, column, codes=name in categorical, rare=self.rare, max_categories=self.max_categories)
            for name, column in columns.items()
        ]
        if all(isinstance(encoding, Dropped) for encoding, _ in chosen):
            reasons = ", ".join(f"{e.name!r}: {e.why}" for e, _ in chosen if isinstance(e, Dropped))
            raise ValueError(f"No column of the table tells its rows apart ({reasons}).")
        classes = None
        if labels is not None:
            labels = as_labels(labels)
            if len(labels) != rows:
                raise ValueError(f"There must be one label per row; got {len(labels)} labels for {rows} rows.")
            classes = np.unique(labels)
        self._set([encoding for encoding, _ in chosen], classes, [note for _, note in chosen if note])
        for note in self.notes_:
            warnings.warn(note, stacklevel=2)
        return self

    def transform(self, data: Any) -> np.ndarray:
        """The rows as float32, one column per name in ``feature_names_``."""
        self._require_fitted()
        columns = as_columns(data)
        used = [e for e in self.columns_ if not isinstance(e, Dropped)]
        absent = [e.name for e in used if e.name not in columns]
        if absent:
            raise ValueError(
                f"The table lacks {'columns' if len(absent) > 1 else 'a column'} of the training table: "
                f"{', '.join(absent)}. It has {', '.join(columns) or 'none'}."
            )
        if self.unseen == "error":
            for encoding in used:
                if isinstance(encoding, Categorical) and (new := encoding.unseen(columns[encoding.name])):
                    raise ValueError(
                        f"Column {encoding.name!r} holds categories not seen in training: {', '.join(new[:5])}."
                    )
        return np.concatenate([e.encode(columns[e.name]) for e in used], axis=1)

    def fit_transform(self, data: Any, labels: Any = None) -> np.ndarray:
        """``fit`` and ``transform`` of the same rows."""
        columns = as_columns(data)
        return self.fit(columns, labels).transform(columns)

    def encode_labels(self, labels: Any) -> np.ndarray:
        """Each label as its place in ``classes_``."""
        classes = self._require_classes()
        labels = as_labels(labels, like=classes)
        places = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
        strange = labels[classes[places] != labels]
        if strange.size:
            names = ", ".join(repr(v) for v in np.unique(strange).tolist()[:5])
            raise ValueError(f"{strange.size} labels are of no class known from training ({names}).")
        return places

    def decode_labels(self, places: Any) -> np.ndarray:
        """The inverse of ``encode_labels``."""
        classes, places = self._require_classes(), np.asarray(places)
        if np.any((places < 0) | (places >= len(classes))):
            raise ValueError(
                f"Classes are numbered from 0 to {len(classes) - 1}; got {places.min()} to {places.max()}."
            )
        return classes[places]

    @property
    def dropped_(self) -> dict[str, str]:
        """The columns that are left out, and why."""
        self._require_fitted()
        return {e.name: e.why for e in self.columns_ if isinstance(e, Dropped)}

    def to_json(self) -> str:
        """Everything the encoder knows, as JSON."""
        self._require_fitted()
        content = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "params": {
                "categorical": self._categorical(),
                "rare": self.rare,
                "max_categories": self.max_categories,
                "unseen": self.unseen,
            },
            "columns": [{"kind": e.kind, **asdict(e)} for e in self.columns_],
            "classes": None if self.classes_ is None else self.classes_.tolist(),
            "notes": self.notes_,
        }
        return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> TableEncoder:
        """The encoder that ``to_json`` wrote; nothing in the text is executed."""
        try:
            content = json.loads(text)
            if content["format"] != FORMAT or content["version"] > FORMAT_VERSION:
                raise ValueError(f"its format is {content['format']} {content['version']}")
            encoder = cls(**content["params"])
            encoder._check()
            columns = [_encoding(dict(entry)) for entry in content["columns"]]
            classes = None if content["classes"] is None else as_labels(content["classes"])
            encoder._set(columns, classes, list(content["notes"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"This is not an encoder that this version's TableEncoder.to_json wrote ({error!r}). Fit it again."
            ) from None
        return encoder

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``to_json`` to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TableEncoder:
        """Read what ``save`` wrote."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not text in UTF-8, and so no file that TableEncoder.save wrote.") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def _set(self, columns: list[Encoding], classes: np.ndarray | None, notes: list[str]) -> None:
        self.columns_, self.classes_, self.notes_ = columns, classes, notes
        self.feature_names_ = _distinct([name for encoding in columns for name in encoding.outputs])

    def _categorical(self) -> list[str]:
        """The names as text, as those of a table's columns are."""
        return [str(name) for name in ([self.categorical] if isinstance(self.categorical, str) else self.categorical)]

    def _check(self) -> None:
        if not 0 <= self.rare < 1:
            raise ValueError(f"rare is a share of the rows, at least 0 and below 1; got {self.rare}.")
        if self.max_categories < 2:
            raise ValueError(f"max_categories must be at least 2; got {self.max_categories}.")
        if self.unseen not in ("rare", "error"):
            raise ValueError(f"unseen must be 'rare' or 'error'; got {self.unseen!r}.")

    def _require_fitted(self) -> None:
        if not hasattr(self, "columns_"):
            raise ValueError("This encoder is not fitted; call fit with the training rows first.")

    def _require_classes(self) -> np.ndarray:
        self._require_fitted()
        if self.classes_ is None:
            raise ValueError("This encoder was fitted without labels; give them to fit.")
        return self.classes_


def _distinct(names: list[str]) -> list[str]:
    """The names in order; one that occurred before, or would then, gets the next free number behind it."""
    found: dict[str, None] = {}
    for name in names:
        number, unique = 1, name
        while unique in found or (number > 1 and unique in names):
            number += 1
            unique = f"{name} ({number})"
        found[unique] = None
    return list(found)


def _encoding(entry: dict[str, Any]) -> Encoding:
    cls = _KINDS[entry.pop("kind")]
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
