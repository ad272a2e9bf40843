"""Train a calibrated classifier on a table in a file, and predict other files.

>>> from calibrant.tables import Order, train, predict
>>> train(Order("churn.csv", target="churn", out="churn"))                  # doctest: +SKIP
>>> predict("churn/model.calibrant", "new.csv", "predictions.csv")         # doctest: +SKIP

On the command line these are `calibrant train` and `calibrant predict`.
"""

from calibrant.tables.model import TableModel, load_model, save_model
from calibrant.tables.order import Order
from calibrant.tables.predicting import Summary, predict
from calibrant.tables.results import TrainingResult
from calibrant.tables.training import train

__all__ = ["Order", "Summary", "TableModel", "TrainingResult", "load_model", "predict", "save_model", "train"]
