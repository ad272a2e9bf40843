"""Callbacks: objects that act between outer steps. The solver knows none of them by name."""

from calibrant.bilevel.callbacks.base import Callback, Checkpoint, History, ProgressBar
from calibrant.bilevel.callbacks.early_stopping import EarlyStopping
from calibrant.bilevel.callbacks.moving_average import MovingAverage
from calibrant.bilevel.problem.evaluation import pooled

__all__ = ["Callback", "Checkpoint", "EarlyStopping", "History", "MovingAverage", "ProgressBar", "pooled"]
