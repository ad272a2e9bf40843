"""Data: replayable streams of batches, splits, and tables."""

from calibrant.data.columns.encoder import TableEncoder
from calibrant.data.columns.read import LabelledTable, read_columns, read_table
from calibrant.data.splits.stratified import folds, split_indices, train_val_test
from calibrant.data.streams.batch import Batch
from calibrant.data.streams.loaders import Indexed, LoaderStream, as_stream
from calibrant.data.streams.streams import Stream, TensorStream

__all__ = [
    "Batch",
    "Indexed",
    "LabelledTable",
    "LoaderStream",
    "Stream",
    "TableEncoder",
    "TensorStream",
    "as_stream",
    "folds",
    "read_columns",
    "read_table",
    "split_indices",
    "train_val_test",
]
