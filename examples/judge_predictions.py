"""Judge the predictions of any model, and correct them: ``python examples/judge_predictions.py [FOLDER]``.

Naive Bayes is over-confident on most tables. Half of the rows that it has not seen choose and fit a calibrator, and the
other half judge the model before and after. ``FOLDER/report.html`` shows both side by side.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

import calibrant
from calibrant.posthoc import Auto

CANDIDATES = ["temperature", "vector", "isotonic-confidence"]  # None compares all, which takes some minutes


def main(folder: str | Path = "out") -> None:
    X, y = load_digits(return_X_y=True)
    X_train, X_rest, y_train, y_rest = train_test_split(X, y, train_size=0.4, stratify=y, random_state=0)
    X_fit, X_test, y_fit, y_test = train_test_split(X_rest, y_rest, train_size=0.5, stratify=y_rest, random_state=0)

    model = GaussianNB().fit(X_train, y_train)
    calibrator = Auto(CANDIDATES, from_probs=True).fit(model.predict_proba(X_fit), y_fit)
    print(f"chosen calibrator: {calibrator.choice_}")

    before = model.predict_proba(X_test)
    result = calibrant.evaluate({"before": before, "after": calibrator.predict_proba(before)}, y_test)
    for name, verdict in result.verdicts.items():
        print(f"{name}: {verdict}")
    Path(folder).mkdir(parents=True, exist_ok=True)
    result.to_html(Path(folder) / "report.html")
    print(f"see {Path(folder) / 'report.html'}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
