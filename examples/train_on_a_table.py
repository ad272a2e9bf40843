"""Train a classifier on a CSV file and predict new rows: ``python examples/train_on_a_table.py [FOLDER]``.

The table is synthetic: customers with numbers, text, dates and missing values. It does the same as these commands::

    calibrant train customers.csv --target left --out model
    calibrant predict model/model.calibrant new.csv --out predictions.csv
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from calibrant.tables import Order, load_model, predict, train


def customers(rows: int, seed: int) -> pd.DataFrame:
    """Customers who are more likely to leave if they are new, pay much, or have the small plan."""
    rng = np.random.default_rng(seed)
    months, plan = rng.integers(1, 60, rows), rng.choice(["small", "large", "family"], rows, p=[0.5, 0.3, 0.2])
    bill = rng.gamma(4, 12, rows)
    odds = 0.5 - 0.06 * months + 0.03 * bill + 0.8 * (plan == "small")
    started = pd.Timestamp("2026-01-01") - pd.to_timedelta(30 * months, unit="D")
    return pd.DataFrame(
        {
            "started": started.strftime("%Y-%m-%d"),
            "plan": plan,
            "bill": np.where(rng.uniform(size=rows) < 0.1, np.nan, bill.round(2)),
            "left": np.where(rng.uniform(size=rows) < 1 / (1 + np.exp(-odds)), "yes", "no"),
        }
    )


def main(folder: str | Path = "out/customers", rows: int = 500, **settings: Any) -> None:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    customers(rows, seed=0).to_csv(folder / "customers.csv", index=False)
    customers(200, seed=1).drop(columns="left").to_csv(folder / "new.csv", index=False)

    result = train(
        Order(folder / "customers.csv", target="left", out=folder / "model", risk=0.2, settings=settings), print
    )
    print(result.evaluation.verdict)

    predict(folder / "model" / "model.calibrant", folder / "new.csv", folder / "predictions.csv")
    print(pd.read_csv(folder / "predictions.csv").head())
    print(load_model(folder / "model" / "model.calibrant").rule.summary())


if __name__ == "__main__":
    main(*sys.argv[1:2])
