"""Shared parts of the experiments: the store of finished runs, jobs, measures, verdicts and report sections."""
