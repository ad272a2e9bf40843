"""Shared parts of the experiments: the store of finished runs, jobs, measures, verdicts and report sections."""

__all__ = [
    "command",
    "contents",
    "jobs",
    "keys",
    "records",
    "runs",
    "sections",
    "shared",
    "store",
    "summary",
    "synthetic",
    "verdicts",
    "words",
]
