"""Data: batches, and streams that give the same batch for the same step, always."""

from calibrant.data.batch import Batch
from calibrant.data.streams import Indexed, LoaderStream, Stream, TensorStream, as_stream
from calibrant.data.synthetic import Synthetic, blobs, spirals

__all__ = ["Batch", "Indexed", "LoaderStream", "Stream", "Synthetic", "TensorStream", "as_stream", "blobs", "spirals"]
