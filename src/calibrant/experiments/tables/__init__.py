"""Every method on every table of a folder, beside scikit-learn's own calibrated networks."""

from calibrant.experiments.tables.study import run

__all__ = ["run"]
