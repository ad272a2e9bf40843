"""Splits of samples, and samples that belong together: exact and near copies."""
