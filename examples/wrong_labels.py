"""Find wrong labels in a training set, and train well despite them: ``python examples/wrong_labels.py``.

A fifth of the training labels of scikit-learn's digits is changed at random; a small validation part is clean.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

from calibrant import SelfCalibratedClassifier
from calibrant.data import split_indices
from calibrant.metrics import accuracy, nll


def main() -> None:
    X, y = load_digits(return_X_y=True)
    train, val, test = split_indices(len(y), (0.6, 0.15, 0.25), seed=0, stratify=y)
    generator = np.random.default_rng(1)
    flipped = generator.permutation(len(train)) < 0.2 * len(train)
    labels = np.where(flipped, (y[train] + generator.integers(1, 10, len(train))) % 10, y[train])

    plain = MLPClassifier((64, 64), early_stopping=True, max_iter=500, random_state=0)
    plain.fit(np.concatenate([X[train], X[val]]) / 16, np.concatenate([labels, y[val]]))
    clf = SelfCalibratedClassifier(random_state=0).fit(X[train], labels, X_val=X[val], y_val=y[val])

    found = "none" if clf.label_noise_ is None else f"{clf.label_noise_:.1%}"
    print(f"candidate taken: {clf.candidate_}; wrong labels: {flipped.mean():.1%}, estimated {found}")
    for name, probs in {
        "scikit-learn": plain.predict_proba(X[test] / 16),
        "calibrant": clf.predict_proba(X[test]),
    }.items():
        print(f"{name:13} accuracy {accuracy(probs, y[test]):.3f}, NLL {nll(probs, y[test]):.3f}")
    print(f"wrong labels found: area under the ROC curve {roc_auc_score(flipped, clf.suspicion_):.3f}")
    first = clf.suspects(X[train], labels, n=10)
    print(f"the ten most suspect rows {first.tolist()}; {flipped[first].sum()} of them were changed")


if __name__ == "__main__":
    main()
