"""Experiment on the guarantees of rejection rules and prediction sets (`python -m studies bench guarantees`)."""
