"""Data: batches, and streams that give the same batch for the same step, always."""

from calibrant.data.batch import Batch
from calibrant.data.streams import Indexed, LoaderStream, Stream, TensorStream, as_stream

__all__ = ["Batch", "Indexed", "LoaderStream", "Stream", "TensorStream", "as_stream"]
