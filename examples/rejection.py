"""Abstain on the doubtful rows of a table, with a stated risk: ``python examples/rejection.py``.

A classifier is trained on three quarters of scikit-learn's breast-cancer table. Its rejection rule and prediction sets
use out-of-fold probabilities of the same rows, so no further rows are set aside. They are tested on the last quarter.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from calibrant import SelfCalibratedClassifier

RISK, LEVEL, COVERAGE = 0.02, 0.9, 0.98


def main() -> None:
    table = load_breast_cancer(as_frame=True)
    names = table.target_names[table.target]
    X, X_new, y, y_new = train_test_split(table.data, names, stratify=names, random_state=0)
    clf = SelfCalibratedClassifier(random_state=0).fit(X, y)

    rule = clf.rejection_rule(risk=RISK, level=LEVEL)
    print(rule)
    if rule.found:
        answer = clf.predict(X_new, reject=rule, reject_label="ask a doctor")
        given = answer != "ask a doctor"
        print(f"new rows: {len(y_new)}, answered {given.sum()}, wrong {np.sum(answer[given] != y_new[given])}")
    print(f"without the rule: wrong {np.sum(clf.predict(X_new) != y_new)} of {len(y_new)}")

    for score in ("aps", "lac"):
        sets = clf.predict_set(X_new, coverage=COVERAGE, score=score)
        held = sets[np.arange(len(y_new)), np.searchsorted(clf.classes_, y_new)]
        sizes = np.bincount(sets.sum(axis=1), minlength=3)
        print(f"{score}: {held.mean():.1%} of sets hold the true class; {sizes[1]} of one class, {sizes[2]} of both")


if __name__ == "__main__":
    main()
