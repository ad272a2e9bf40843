"""Data: replayable streams of batches, synthetic problems with a known posterior, splits, and tables."""

from calibrant.data.bac import BAC, BACConstants, bac, bac_level
from calibrant.data.columns.encoder import TableEncoder
from calibrant.data.columns.read import LabelledTable, read_columns, read_table
from calibrant.data.splits.stratified import folds, split_indices, train_val_test
from calibrant.data.streams.batch import Batch
from calibrant.data.streams.loaders import Indexed, LoaderStream
from calibrant.data.streams.streams import Stream, TensorStream, as_stream
from calibrant.data.suite import FITTED_SETS, SETS, SyntheticProblem, flip_labels, fresh, load_problem
from calibrant.data.synthetic import Synthetic, blobs, spirals

__all__ = [
    "BAC",
    "FITTED_SETS",
    "SETS",
    "BACConstants",
    "Batch",
    "Indexed",
    "LabelledTable",
    "LoaderStream",
    "Stream",
    "Synthetic",
    "SyntheticProblem",
    "TableEncoder",
    "TensorStream",
    "as_stream",
    "bac",
    "bac_level",
    "blobs",
    "flip_labels",
    "folds",
    "fresh",
    "load_problem",
    "read_columns",
    "read_table",
    "spirals",
    "split_indices",
    "train_val_test",
]
