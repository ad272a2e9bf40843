"""Data: replayable streams of batches, splits, and tables."""

from calibrant.data.columns.encoder import TableEncoder
from calibrant.data.columns.read import read_columns
from calibrant.data.splits.stratified import folds, split_indices
from calibrant.data.streams.batch import Batch
from calibrant.data.streams.loaders import Indexed, LoaderStream, as_stream
from calibrant.data.streams.streams import Stream, TensorStream

__all__ = [
    "Batch",
    "Indexed",
    "LoaderStream",
    "Stream",
    "TableEncoder",
    "TensorStream",
    "as_stream",
    "folds",
    "read_columns",
    "split_indices",
]
