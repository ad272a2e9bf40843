"""Batches as functions of the step: from tensors, from loaders, and of many problems at once."""
