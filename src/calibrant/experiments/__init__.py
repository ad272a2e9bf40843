"""Experiments: each command of `calibrant reproduce`, `sweep`, `ablate` and `bench` is one function here."""
