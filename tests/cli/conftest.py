"""Fixtures for the tests of the command line."""

import numpy as np
import pytest
from scipy.special import softmax

from calibrant.report.evaluation import numbers
from tests.cli.cases import NAMES, logits_and_labels


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """Noise floors from twenty draws, which is enough for these tests."""
    monkeypatch.setattr(numbers, "BUDGET", 1.0)


@pytest.fixture
def table(tmp_path):
    """A file of predictions; `kind` says in which form."""
    pd = pytest.importorskip("pandas")
    logits, labels = logits_and_labels()
    probs = np.exp(logits)
    two_logits, two = logits_and_labels(n_classes=2)
    score = softmax(two_logits, axis=1)[:, 1]
    country = np.where(np.arange(600) % 2, "FR", "DE")
    forms = {
        "probs": {f"prob_{name}": probs[:, k] for k, name in enumerate(NAMES)} | {"label": NAMES[labels]},
        "numbers": {f"p{k}": probs[:, k] for k in range(3)} | {"y": labels},
        "named": {name: probs[:, k] for k, name in enumerate(NAMES)} | {"churn": NAMES[labels]},
        "logits": {f"logit_{name}": logits[:, k] for k, name in enumerate(NAMES)} | {"label": NAMES[labels]},
        "score": {"score": score, "label": np.array(["no", "yes"])[two]},
        "logit": {"logit": np.log(score / (1 - score)), "label": two},
        "pairs": {"confidence": probs.max(axis=1), "correct": probs.argmax(axis=1) == labels},
    }

    def write(kind="probs", name="a.csv", **more):
        path = tmp_path / name
        columns = {"id": np.arange(600), "country": country} | forms[kind] | more
        if path.suffix == ".parquet":
            pd.DataFrame(columns).to_parquet(path)
        elif path.suffix == ".npz":
            np.savez(path, probs=probs, labels=labels)
        else:
            pd.DataFrame(columns).to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
        return path

    return write
