"""Shared parts of the experiments: studies and their store, jobs, measures, verdicts and report sections."""
