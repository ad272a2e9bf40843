"""Tables to numbers: a scikit-learn transformer that is fitted on training rows and saved without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, TypeGuard

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from calibrant.base.files import Arrays, Format
from calibrant.base.settings import check_choice
from calibrant.base.warning import warn
from calibrant.data.columns.encoding import (
    Categorical,
    Dropped,
    Encoding,
    Numeric,
    Used,
    choose,
    choose_text,
    encoding_from_plain,
    encoding_to_plain,
)
from calibrant.data.columns.forms import as_columns, column_names
from calibrant.data.columns.values import Columns
from calibrant.data.free_text import FreeText
from calibrant.data.scaling import LIMIT, Scaling

FORMAT = "calibrant.encoder"
VERSION = 3
FILE = Format("encoder", {"TableEncoder": dict}, "TableEncoder.save")


class TableEncoder(TransformerMixin, BaseEstimator):
    """Encode columns of any kind as one array of numbers.

    Numbers are scaled robustly to mean 0 and variance 1, and values beyond ten deviations are compressed. A missing
    number becomes the mean, with an additional indicator. Categories become one input each, dates become days, and
    truth values become 0 and 1, scaled as numbers. Constant columns and identifiers are left out (``dropped_`` has the
    reasons).

    Free text becomes up to 64 numbers, with at least 10 training rows for each: the truncated SVD of the TF-IDF of
    words and of groups of three to five letters. The vocabulary holds the most frequent words and groups, at most
    10,000 of each. A column is free text if it is named in ``text``, or if its values have at least two words or 20
    letters on average and differ: without digits, more than ``max_categories`` values are different, or more than half
    of the rows in a small table. Missing texts count as empty.

    Text is read as numbers if all of it are numbers with a decimal point or none, and as dates if all of it are dates
    in the ISO format (2024-12-31). Codes stay text: a column that is named in ``categorical``, has pandas' category
    type, or has leading zeros (007). A warning names columns that look like numbers or dates in another format, and an
    option of ``calibrant train``; in Python, pass it to :func:`read_columns`, or to ``pandas.read_csv``.

    The columns of a data frame or dictionary are matched by name: their order does not matter, and additional columns
    are ignored. Those of an array are matched by position.

    Parameters
    ----------
    categorical : names of columns, or one name
        Columns whose numbers are codes of categories, not quantities. Columns of an array are called x0, x1, …
    text : names of columns, or one name
        Columns of free text, in addition to those that are recognised.
    rare : float
        Categories in less than this share of the training rows, or in one row only, share one input.
    max_categories : int
        The largest number of inputs for the categories of a column. The most frequent ones have their own input, and
        the others share one, as in :class:`sklearn.preprocessing.OneHotEncoder`.
    unseen : {"rare", "error"}
        What to do with a category that was not in the training rows: count it as rare (all 0 if there are no rare
        ones), or raise an error.
    output : {"one-hot", "ordinal", "sparse"}
        ``"one-hot"`` is for networks and linear models: float32, everything finite. ``"ordinal"`` is for trees with
        native categories, such as ``HistGradientBoostingClassifier(categorical_features=…)``: float64, one output per
        column (several for free text), unscaled numbers, categories as codes from 0 on (rare ones share the last code,
        −1 is unseen), NaN for missing values. ``"sparse"`` is as ``"ordinal"``, but a table with free text becomes a
        sparse matrix: the other columns, and then one column for each term, with its TF-IDF.

    Attributes
    ----------
    columns_ : list
        The encoding of each training column, in order.
    categorical_features_ : (n_outputs,) array of bool
        Whether an output belongs to a category: its code (``output="ordinal"``) or one of its 0/1 inputs.
    scaling_ : calibrant.data.scaling.Scaling
        From ordinal to one-hot outputs.
    notes_ : list of str
        The warnings of ``fit``.
    n_features_in_, feature_names_in_ : as in every scikit-learn estimator

    Examples
    --------
    >>> from calibrant.data import TableEncoder
    >>> encoder = TableEncoder().fit({"age": [20, 40, None, 60], "town": ["Bern", "Rom", "Rom", "Bern"]})
    >>> encoder.get_feature_names_out().tolist()
    ['age', 'age missing', 'town=Bern', 'town=Rom']
    >>> encoder.transform({"town": ["Rom"], "age": [40]}).tolist()
    [[0.0, 0.0, 0.0, 1.0]]
    """

    def __init__(
        self,
        *,
        categorical: Sequence[Any] | str = (),
        text: Sequence[Any] | str = (),
        rare: float = 0.002,
        max_categories: int = 64,
        unseen: Literal["rare", "error"] = "rare",
        output: Literal["one-hot", "ordinal", "sparse"] = "one-hot",
    ) -> None:
        self.categorical = categorical
        self.text = text
        self.rare = rare
        self.max_categories = max_categories
        self.unseen = unseen
        self.output = output

    def fit(self, X: Any, y: Any = None) -> TableEncoder:
        """Learn the encoding from training rows: a data frame, a dictionary of columns, or an array. y is not used."""
        return self._fit(as_columns(X), named=column_names(X) is not None)

    def transform(self, X: Any) -> Any:
        """The rows as numbers, one column per name in :meth:`get_feature_names_out`."""
        check_is_fitted(self)
        columns = as_columns(X)
        return self._transform(self._matched(columns, named=column_names(X) is not None))

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """``fit`` and ``transform`` of the same rows."""
        columns = as_columns(X)
        return self._fit(columns, named=column_names(X) is not None)._transform(columns)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the outputs: ``age``, ``age missing``, ``town=Bern``, ``town=(rare)``, …"""
        check_is_fitted(self)
        input_names = _check_feature_names_in(self, input_features)
        names_out = dict(zip((e.name for e in self.columns_), map(str, input_names), strict=True))
        used = [replace(e, name=names_out[e.name]) for e in self._used]
        ordinal = self.output != "one-hot"
        names = [[e.name] if ordinal and not isinstance(e, FreeText) else e.outputs for e in used]
        names += [encoding.term_names for encoding in used if self._is_sparse(encoding)]
        return np.array([name for outputs in names for name in outputs], dtype=object)

    @property
    def dropped_(self) -> dict[str, str]:
        """The columns that are left out, and why."""
        check_is_fitted(self)
        return {e.name: e.why for e in self.columns_ if isinstance(e, Dropped)}

    def to_json(self, arrays: Arrays | None = None) -> str:
        """The fitted encoder as JSON. The matrices of text columns go to ``arrays``, which they need."""
        check_is_fitted(self)
        content = {
            "format": FORMAT,
            "version": VERSION,
            "params": self.get_params() | {"categorical": self._named("categorical"), "text": self._named("text")},
            "named": hasattr(self, "feature_names_in_"),
            "limit": self.scaling_.limit,
            "columns": [encoding_to_plain(e, f"column.{place}", arrays) for place, e in enumerate(self.columns_)],
            "notes": self.notes_,
        }
        return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, arrays: Arrays | None = None) -> TableEncoder:
        """The encoder that ``to_json`` wrote, from the text and the arrays; nothing in them is executed."""
        try:
            content = json.loads(text)
            if (content["format"], content["version"]) != (FORMAT, VERSION):
                raise ValueError(f"its format is {content['format']} {content['version']}")
            encoder = cls(**content["params"])
            encoder._check()
            columns = [encoding_from_plain(entry, arrays or {}) for entry in content["columns"]]
            named, limit = bool(content["named"]), float(content["limit"])
            encoder._set(columns, notes=[str(note) for note in content["notes"]], named=named, limit=limit)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"This is not an encoder that this version's TableEncoder.to_json wrote ({error!r}). Fit it again."
            ) from None
        return encoder

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted encoder to one file, with a checksum."""
        arrays: Arrays = {}
        FILE.write(path, "TableEncoder", arrays, encoder=json.loads(self.to_json(arrays)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TableEncoder:
        """Read what ``save`` wrote. Loading executes nothing."""

        def build(_: type, header: dict[str, Any], arrays: Arrays) -> TableEncoder:
            return cls.from_json(json.dumps(header["encoder"]), arrays)

        encoder: TableEncoder = FILE.read(path, build)
        return encoder

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "columns_")

    def _fit(self, columns: Columns, *, named: bool) -> TableEncoder:
        self._check()
        rows = len(next(iter(columns.values()))) if columns else 0
        if not rows:
            raise ValueError(
                f"The table must have at least one column and one row; got {rows} rows and {len(columns)} columns."
            )
        categorical, text = self._named("categorical"), self._named("text")
        for option, names in (("categorical", categorical), ("text", text)):
            if unknown := [name for name in names if name not in columns]:
                raise ValueError(
                    f"{option} must name columns of the table; got {', '.join(unknown)}, and the table has "
                    f"{', '.join(columns)}."
                )
        if both := [name for name in text if name in categorical]:
            raise ValueError(f"A column is either categorical or text; got {', '.join(both)} in both. Name it in one.")
        rules: dict[str, Any] = {"rare": self.rare, "max_categories": self.max_categories}
        reduce = self.output != "sparse"
        chosen = [
            choose_text(name, column, reduce=reduce)
            if name in text
            else choose(name, column, codes=name in categorical, reduce=reduce, **rules)
            for name, column in columns.items()
        ]
        if all(isinstance(encoding, Dropped) for encoding, _ in chosen):
            reasons = ", ".join(f"{e.name!r}: {e.why}" for e, _ in chosen if isinstance(e, Dropped))
            raise ValueError(
                f"No column of the table can be used (n_samples={rows}; {reasons}). Give columns that vary, or name "
                "columns of free text."
            )
        notes = [note for _, note in chosen if note]
        self._set([encoding for encoding, _ in chosen], notes=notes, named=named, limit=LIMIT)
        for note in notes:
            warn(note)
        return self

    def _set(self, columns: list[Encoding], *, notes: list[str], named: bool, limit: float) -> None:
        self.columns_, self.notes_, self.n_features_in_ = columns, notes, len(columns)
        if named:
            self.feature_names_in_ = np.array([e.name for e in columns], dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        used = self._used
        moments = [(e.mean, e.std) if isinstance(e, Numeric | FreeText) else (0.0, 1.0) for e in used]
        mean, scale = (np.concatenate([np.atleast_1d(part) for part in parts]) for parts in zip(*moments, strict=True))
        scale[scale == 0] = np.inf
        widths = [_width(e) for e in used]
        missing, sizes = np.repeat([e.missing for e in used], widths), np.repeat([e.size for e in used], widths)
        self.scaling_ = Scaling(mean, scale, missing, sizes, limit)
        terms = sum(len(e.idf) for e in used if self._is_sparse(e))
        self.categorical_features_ = np.append(sizes > 0, np.zeros(terms, dtype=bool))
        if self.output == "one-hot":
            self.categorical_features_ = self.categorical_features_[self.scaling_.sources][self._kept]

    def _matched(self, columns: Columns, *, named: bool) -> Columns:
        """The columns under the names of the training table."""
        names = [e.name for e in self.columns_]
        if named and hasattr(self, "feature_names_in_"):
            absent = [e.name for e in self._used if e.name not in columns]
            if absent:
                raise ValueError(
                    f"The table lacks {'columns' if len(absent) > 1 else 'a column'} of the training table: "
                    f"{', '.join(absent)}. Add {'them' if len(absent) > 1 else 'it'}; the table has "
                    f"{', '.join(columns) or 'none'}."
                )
            return columns
        if len(columns) != len(names):
            raise ValueError(
                f"X has {len(columns)} features, but {type(self).__name__} is expecting {len(names)} features as input."
            )
        if named:
            warn(f"X has feature names, but {type(self).__name__} was fitted without feature names")
        elif hasattr(self, "feature_names_in_"):
            warn(f"X does not have valid feature names, but {type(self).__name__} was fitted with feature names")
        return dict(zip(names, columns.values(), strict=True))

    def _is_sparse(self, encoding: Encoding) -> TypeGuard[FreeText]:
        return self.output == "sparse" and isinstance(encoding, FreeText)

    def _transform(self, columns: Columns) -> Any:
        used = self._used
        if self.unseen == "error":
            for encoding in used:
                if isinstance(encoding, Categorical) and (new := encoding.unseen(columns[encoding.name])):
                    raise ValueError(
                        f"Column {encoding.name!r} holds categories not seen in training: {', '.join(new[:5])}. "
                        "Use unseen='rare' to allow them."
                    )
        ends = np.cumsum([_width(encoding) for encoding in used])
        encoded_table = np.empty((len(columns[used[0].name]), ends[-1]))
        for outputs, encoding in zip(np.split(np.arange(ends[-1]), ends[:-1]), used, strict=True):
            encoded = encoding.encode(columns[encoding.name])
            encoded_table[:, outputs] = encoded if encoded.ndim == 2 else encoded[:, None]
        if texts := [encoding.terms(columns[encoding.name]) for encoding in used if self._is_sparse(encoding)]:
            return sparse.hstack([encoded_table, *texts], format="csr")
        if self.output != "one-hot":
            return encoded_table
        encoded_table, kept = self.scaling_.transform(encoded_table), self._kept
        return encoded_table if kept.all() else encoded_table[:, kept]

    @property
    def _used(self) -> list[Used]:
        return [e for e in self.columns_ if not isinstance(e, Dropped)]

    @property
    def _kept(self) -> np.ndarray:
        """The one-hot outputs that vary; a constant that is sometimes missing has only the indicator."""
        kept = np.ones(self.scaling_.width, dtype=bool)
        kept[self.scaling_.numbers] = np.isfinite(self.scaling_.scale[self.scaling_.categories == 0])
        return kept

    def _named(self, option: str) -> list[str]:
        """The names in ``categorical`` or ``text`` as text, as those of a table's columns are."""
        names = getattr(self, option)
        return [str(name) for name in ([names] if isinstance(names, str) else names)]

    def _check(self) -> None:
        for option in ("categorical", "text"):
            if not isinstance(getattr(self, option), Iterable):
                raise ValueError(f"{option} must be a list of column names; got {getattr(self, option)!r}.")
        if not isinstance(self.rare, Real) or not 0 <= self.rare < 1:
            raise ValueError(f"rare must be a share of the rows, at least 0 and below 1; got {self.rare!r}.")
        if not isinstance(self.max_categories, Integral) or self.max_categories < 2:
            raise ValueError(f"max_categories must be a whole number of at least 2; got {self.max_categories!r}.")
        check_choice("unseen", self.unseen, ("rare", "error"))
        check_choice("output", self.output, ("one-hot", "ordinal", "sparse"))


@dataclass(frozen=True)
class EncodedTable:
    """Rows that a fitted encoder with ``output="sparse"`` has encoded. Classifiers take them in place of a table.

    So a table is encoded once, and the classifier stores the encoder.
    """

    matrix: Any
    encoder: TableEncoder

    def describe(self, estimator: Any) -> None:
        """Set the fitted attributes of an estimator that say which columns it reads, and how."""
        names = np.array([e.name for e in self.encoder.columns_ if not isinstance(e, Dropped)], dtype=object)
        estimator.encoder_, estimator.feature_names_in_, estimator.n_features_in_ = self.encoder, names, len(names)


def _width(encoding: Used) -> int:
    """The number of ordinal outputs."""
    return len(encoding.mean) if isinstance(encoding, FreeText) else 1
