"""Input checks of the classifiers: inputs, labels, weights and held-out rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, _check_y, check_consistent_length, validate_data
from torch import Tensor

from calibrant.base.settings import shown
from calibrant.base.warning import warn
from calibrant.data.columns.encoder import EncodedTable, TableEncoder
from calibrant.data.columns.forms import check_names, column_names, readable
from calibrant.data.columns.read import NAMELESS, numbers_rows
from calibrant.data.columns.values import is_missing
from calibrant.data.projection import Projection, fit_projection
from calibrant.data.scaling import Scaling, fit_scaling
from calibrant.data.splits.exact_copies import row_codes
from calibrant.data.splits.stratified import group_folds, split_indices
from calibrant.methods import Samples
from calibrant.methods.tabular import WIDE

LARGEST_DENSE = 2 * 2**30
"""The largest size in bytes of a sparse matrix that is converted to a dense one."""
LARGEST_WEIGHT = 1e30
LARGEST_SHIFT = 0.01
"""A larger change of a class's share by ``class_weight`` gets a warning."""


@dataclass(frozen=True)
class Inputs:
    """Checked inputs: the columns of a table as one dense array, and many further columns as a sparse matrix.

    Linear models see all columns. Networks and trees see the dense ones and a projection of the sparse ones.
    """

    dense: np.ndarray
    sparse: Any = None
    """A SciPy matrix in CSR format, or None."""

    def __len__(self) -> int:
        return len(self.dense)

    def __getitem__(self, rows: Any) -> Inputs:
        return Inputs(self.dense[rows], None if self.sparse is None else self.sparse[rows])


class Preparation(NamedTuple):
    """What was learned from the training rows to convert inputs into the form that methods accept."""

    scaling: Scaling
    projection: Projection | None

    @classmethod
    def of(cls, inputs: Inputs, weights: np.ndarray | None, encoder: TableEncoder | None, seed: int) -> Preparation:
        """Learn the preparation of these rows, which ``encoder`` encoded."""
        scaling = fit_scaling(inputs.dense, weights, None if encoder is None else encoder.scaling_.categories)
        return cls(scaling, None if inputs.sparse is None else fit_projection(inputs.sparse, seed))

    def apply(self, inputs: Inputs) -> tuple[Tensor, sparse.csr_array | None]:
        """The inputs of networks and trees, and those of linear models; None if these are the same."""
        dense = self.scaling.apply(inputs.dense)
        if self.projection is None:
            return dense, None
        projected, columns = self.projection.apply(inputs.sparse)
        if dense.shape[1]:
            columns = sparse.csr_array(sparse.hstack([dense.numpy(), columns], format="csr"))
        return torch.cat([dense, torch.from_numpy(projected)], 1), columns

    def samples(
        self, inputs: Inputs, codes: np.ndarray, weights: np.ndarray | None = None, groups: np.ndarray | None = None
    ) -> Samples:
        """Rows in the form that a method accepts, with class column numbers, weights and group numbers."""
        dense, columns = self.apply(inputs)
        sample_weight, numbers = (None if values is None else torch.from_numpy(values) for values in (weights, groups))
        projected = 0 if self.projection is None else self.projection.width
        labels = torch.from_numpy(codes)
        return Samples(dense, labels, sample_weight, groups=numbers, sparse=columns, projected=projected)


def read(estimator: Any, X: Any, *y: Any, reset: bool, wide: bool | None = None) -> Any:
    """Return :class:`Inputs` of floats, followed by labels if they are given.

    All columns of a matrix are sparse if ``wide``; by default, if it is sparse and has more than ``WIDE`` columns.
    Missing values are NaN. A table with text, categories or dates is encoded by ``estimator.encoder_``, which is fitted
    if ``reset`` and is None for numeric tables; categories become codes. An :class:`EncodedTable` brings its encoder.
    ``reset`` also sets ``n_features_in_`` and ``feature_names_in_``; without it, the columns must be those of the
    training table.
    """
    encoded = isinstance(X, EncodedTable)
    X = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    X, y = X if encoded else _filled(as_table(X)), tuple(map(as_targets, y))
    if reset and encoded:
        X.describe(estimator)
    elif reset:
        warn_of_row_numbers(X)
        text = estimator.text_columns
        estimator.encoder_ = TableEncoder(text=text, output="sparse") if len(text) or needs_encoder(X) else None
    encoder = estimator.encoder_
    if encoder is None:
        checked = _numbers(estimator, X, *y, reset=reset)
        matrix, *labels = checked if y else (checked,)
        inputs = inputs_of(matrix, wide)
    else:
        if not encoded:
            X = X if hasattr(X, "columns") else np.asarray(X, dtype=object)
            validate_data(estimator, X, *y, reset=reset, skip_check_array=True)
        matrix = X.matrix if encoded else encoder.fit_transform(X) if reset else encoder.transform(X)
        labels = [_check_y(each, estimator=estimator) for each in y]
        check_consistent_length(matrix, *labels)
        inputs = inputs_of(matrix, table=len(encoder.scaling_.mean))
    return (inputs, *labels) if y else inputs


def _numbers(estimator: Any, X: Any, *y: Any, reset: bool) -> Any:
    try:
        return validate_data(
            estimator,
            X,
            *y,
            reset=reset,
            dtype=(np.float64, np.float32),
            accept_sparse=("csr", "csc"),
            ensure_all_finite="allow-nan",
        )
    except ValueError as error:
        if "Complex data not supported" in str(error):  # scikit-learn's message holds the whole table
            raise ValueError("Complex data not supported: give real and imaginary parts as separate columns.") from None
        if "could not convert string to float" not in str(error):
            raise
        problem = "X must be a table, but it is" if reset else "All training columns were numeric, but X holds"
        advice = "Give text as a column of a data frame" if reset else "Write values as numbers, or leave them empty"
        raise ValueError(f"{problem} text ({error}). {advice}.") from error


def needs_encoder(X: Any) -> bool:
    """Whether some columns are neither numeric nor boolean."""
    if sparse.issparse(X):
        return False
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        return not all(map(is_plain, X.dtypes))
    try:
        array = np.asarray(X)
    except ValueError:  # rows of unequal length: scikit-learn's checks explain it
        return False
    holds_text = array.dtype.kind == "O" and any(isinstance(v, str) for v in array.flat)
    return array.ndim == 2 and (holds_text or array.dtype.kind in "USMm")


def as_table(X: Any) -> Any:
    """Check the form of a table. Masked entries become missing, and a PyArrow table becomes a data frame."""
    if sparse.issparse(X):  # one of its formats is a dictionary
        return X
    if isinstance(X, Mapping):
        raise ValueError("X must be an array or a data frame; got a dictionary. Give pandas.DataFrame(X).")
    if isinstance(X, list | tuple) and len(X) and isinstance(X[0], Mapping):
        raise ValueError("X must be an array or a data frame; got a list of dictionaries. Give pandas.DataFrame(X).")
    X = readable(X)
    names = column_names(X)
    if names is not None:
        check_names(names)
    return X


def warn_of_row_numbers(X: Any) -> None:
    """Warn if the first column of a data frame is an index that was written to a file without a name.

    ``calibrant train`` leaves such a column out of a file. The columns of a data frame are the user's choice.
    """
    names = column_names(X)
    if names is None or len(names) < 2 or names[0] not in NAMELESS or not numbers_rows(np.asarray(X[names[0]])):
        return
    warn(
        f"The first column of X, {names[0]!r}, holds row numbers and is used as an input. Row numbers often depend on "
        f"the order of collection. Leave the column out with X.drop(columns={names[0]!r}), or read the file with "
        "pandas.read_csv(…, index_col=0). If it is an input, give it a name."
    )


def has_fill_values(X: Any) -> bool:
    """Whether all columns of a pandas data frame are sparse, and one stands for a value other than 0 where it is empty.

    SciPy and scikit-learn have no such matrices.
    """
    is_sparse_frame = hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2 and hasattr(X, "sparse")
    return is_sparse_frame and any(dtype.fill_value != 0 for dtype in X.dtypes)


def _filled(X: Any) -> Any:
    return X.sparse.to_dense() if has_fill_values(X) else X


def is_plain(dtype: Any) -> bool:
    """Whether a dtype of a pandas or polars data frame is numeric or boolean."""
    if isinstance(getattr(dtype, "kind", None), str):
        return dtype.kind in "biufc"
    return bool(getattr(dtype, "is_numeric", bool)()) or str(dtype) == "Boolean"


def inputs_of(X: Any, wide: bool | None = None, table: int | None = None) -> Inputs:
    """Divide a checked matrix into dense and sparse columns; see :func:`read`.

    The first columns of an encoded table, which is sparse if it has free text, are dense; ``table`` is their number.
    """
    if wide is None:
        wide = sparse.issparse(X) and (table is not None or X.shape[1] > WIDE)
    if not wide:
        return Inputs(_dense(X) if sparse.issparse(X) else X)
    if not table:
        return Inputs(np.empty((X.shape[0], 0), dtype=np.float32), sparse.csr_array(X))
    return Inputs(X[:, :table].toarray(), sparse.csr_array(X[:, table:]))


def _dense(X: Any) -> np.ndarray:
    size = 4 * X.shape[0] * X.shape[1]
    if size > LARGEST_DENSE:
        raise ValueError(
            f"X is sparse and would take {size / 2**30:.1f} GB as a dense array, more than {LARGEST_DENSE / 2**30:.0f} "
            "GB. Reduce its columns first, with sklearn.decomposition.TruncatedSVD or a feature selection."
        )
    dense: np.ndarray = X.astype(np.float32).toarray(order="C")
    return dense


def as_targets(y: Any) -> Any:
    """Check labels before scikit-learn's checks, whose messages about these mistakes are hard to understand.

    Missing labels and a mixture of text and numbers are errors. Objects that are all numbers or truth values become an
    array of these, because scikit-learn refuses them. Anything else is returned unchanged.
    """
    if np.ma.is_masked(y):
        raise ValueError(_missing(int(np.ma.getmaskarray(y).sum()), np.ma.size(y)))
    try:
        labels = np.asarray(y)
    except ValueError:  # rows of unequal length: scikit-learn's checks explain it
        return y
    if labels.ndim != 1 or labels.dtype.kind != "O":
        # scikit-learn turns integers of pandas' own type into floats
        return labels if labels.dtype.kind in "biu" else y
    values = labels.tolist()
    if absent := sum(map(is_absent, values)):
        raise ValueError(_missing(absent, len(values)))
    if all(isinstance(value, Real | np.bool_) for value in values):
        return np.array(values)
    kinds = {"str" if isinstance(value, str) else type(value).__name__ for value in values}  # np.str_ is text too
    if len(kinds) > 1 and "str" in kinds:
        raise ValueError(
            f"y must hold labels of one kind; got {', '.join(sorted(kinds))}. Convert all of them to text, for example "
            "with [str(label) for label in y]."
        )
    return y


def is_absent(value: Any) -> bool:
    """None, NaN, and the missing values of pandas; empty text is a label."""
    return not isinstance(value, str) and is_missing(value)


def _missing(absent: int, rows: int) -> str:
    return f"y must not have missing labels; {absent} of its {rows} entries are missing. Remove these rows."


def as_weights(sample_weight: Any, X: np.ndarray, class_weight: Any = None, y: Any = None) -> np.ndarray | None:
    """Return float64 weights times the weight of each row's class in ``y``; None if all are equal."""
    if sample_weight is None and class_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if weights.max() > LARGEST_WEIGHT:
        weights = weights / weights.max()  # only their proportions count, and float32 would overflow
    if not weights.any():
        raise ValueError("sample_weight must be positive for some rows; got zeros only.")
    if class_weight is not None:
        weights = weights * compute_sample_weight(class_weight, y)
        if not np.all(weights >= 0) or not weights.any():
            raise ValueError(f"class_weight must not be negative, nor zero for all classes; got {shown(class_weight)}.")
    return None if np.all(weights == weights[0]) else weights


def warn_of_class_weight(
    classes: np.ndarray, codes: np.ndarray, sample_weight: Any, weights: np.ndarray | None
) -> None:
    """Warn if ``class_weight`` changes the share of a class, and with it the meaning of all probabilities."""
    sums = [np.bincount(codes, values) for values in (as_weights(sample_weight, codes), weights)]
    before, after = (total / total.sum() for total in sums)
    largest = np.abs(after - before).argmax()
    if np.abs(after - before)[largest] > LARGEST_SHIFT:
        warn(
            f"With class_weight, class {classes.tolist()[largest]!r} has a share of {after[largest]:.1%} instead of "
            f"{before[largest]:.1%}. The probabilities are those of such a population, not of your data. Leave "
            "class_weight out if they should hold for your data."
        )


def encode(y: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes and each row's class as a column number; rows of positive weight must have two classes."""
    classes, codes = np.unique(y, return_inverse=True)
    present = codes if weights is None else codes[weights > 0]
    if np.all(present == present[0]):
        raise ValueError(
            f"y must hold samples of at least two classes; got one class only, {classes.tolist()[present[0]]!r} "
            f"(n_samples={len(present)}" + (", not counting rows of weight zero)." if len(present) < len(y) else ").")
        )
    return classes, codes.astype(np.int64)


_PIECES = 20
"""The number of parts that groups are divided into; some of them are held out."""


def hold_out(
    codes: np.ndarray, share: float, *, seed: int, groups: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return stratified training and validation rows; rare classes go to training first, and neither part is empty.

    With ``groups``, the rows of a group stay in one part, and the split is stratified as far as this allows.
    """
    if not isinstance(share, Real) or not 0 < share < 1:
        raise ValueError(f"validation_fraction must lie between 0 and 1; got {shown(share)}.")
    if groups is not None:
        number = min(_PIECES, len(np.unique(groups)))
        apart = group_folds(groups, number, seed=seed, stratify=codes) < min(max(1, round(share * number)), number - 1)
        return np.flatnonzero(~apart), np.flatnonzero(apart)
    held = min(max(1, round(share * len(codes))), len(codes) - 1)
    train, val = split_indices(len(codes), (len(codes) - held, held), seed=seed, stratify=codes)
    return np.sort(train), np.sort(val)


def digest(X: Inputs, codes: np.ndarray) -> str:
    """Return a hash that identifies the data."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in (X.dense, X.sparse):
        if part is not None:
            hasher.update(row_codes(part).data)  # type: ignore[union-attr]
    hasher.update(np.ascontiguousarray(codes, dtype=np.int64).data)
    return hasher.hexdigest()
