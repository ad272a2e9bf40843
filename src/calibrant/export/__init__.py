"""Export of calibrated classifiers to other runtimes: ONNX files that give the same probabilities."""

from calibrant.export.onnx import to_onnx

__all__ = ["to_onnx"]
