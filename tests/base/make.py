"""Make the sample files of this folder with the calibrant that is on the path: ``python make.py NAME FOLDER``.

A change of the file format adds the samples of the version before it, made with the code before the change. Every
sample is small, and ``NAME.json`` holds the rows and the probabilities that the fitted objects gave for them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

import calibrant
from calibrant import posthoc


def main(name: str, folder: Path) -> None:
    """Fit, save, and store the predictions of the fitted objects."""
    random = np.random.default_rng(0)
    y = np.arange(36) % 3
    X = (np.stack([np.cos(2 * y), np.sin(2 * y)], 1) * 2 + 2 * random.normal(size=(36, 2))).round(2)
    X[:, 0] *= np.where(np.abs(X[:, 0]) % 2 < 1, 1, -1)  # something for trees to find
    labels = np.array(["low", "mid", "high"])[y]
    quick = {"epochs": 5, "learning_rate": 0.05, "random_state": 0}
    classifiers = {"bo4sc": calibrant.BO4SCClassifier((3,), **quick)}
    classifiers["self"] = calibrant.SelfCalibratedClassifier((3,), folds=2, repeats=1, steps=2, **quick)
    told = {"rows": X[:5].tolist()}
    for kind, classifier in classifiers.items():
        classifier.fit(X, labels).save(folder / f"{name}-{kind}.calibrant")
        told[kind] = {"classes": classifier.classes_.tolist(), "probs": classifier.predict_proba(X[:5]).tolist()}
    frame(name, folder, told, classifier, X, labels)
    text(name, folder, told, classifier, labels)
    scores = np.eye(3)[y] * 2 + random.normal(size=(36, 3)).round(2)
    told["scores"] = scores[:5].tolist()
    kinds = {k: posthoc.make_calibrator(k) for k in ("temperature", "isotonic", "neural")} | {"auto": posthoc.Auto()}
    for kind, calibrator in kinds.items():
        posthoc.save_calibrator(calibrator.fit(scores, y), folder / f"{name}-{kind}.calibrant")
        told[kind] = {"probs": calibrator.predict_proba(scores[:5]).tolist()}
    told["network"] = network(folder / f"{name}-network.calibrant")
    (folder / f"{name}.json").write_text(json.dumps(told))
    with_map = network(folder / f"{name}-map-network.calibrant", confidence_map=True)
    (folder / f"{name}-map.json").write_text(json.dumps({"network": with_map}))


def network(path, *, confidence_map=False):
    """A user's network with a temperature or a confidence map, which has its own JSON file."""
    import torch

    from calibrant.methods.confidence import Mapped, fit_map

    torch.manual_seed(0)
    x = torch.randn(60, 2)
    y = (x[:, 0] + 0.5 * torch.randn(60) > 0).long()
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    given = {"networks": 1, "epochs": 5} if confidence_map else {"method": calibrant.methods.Standard(epochs=5)}
    result = calibrant.fit(net, (x[:40], y[:40]), (x[40:], y[40:]), **given)
    if confidence_map:
        logits = torch.randn(4000, 2) * 3
        labels = (logits[:, 0] + 2 * torch.randn(4000) < logits[:, 1]).long()
        mapped = Mapped(result.fitted.model, fit_map(logits, labels), extras={"confidence": "map"})
        result = dataclasses.replace(result, fitted=mapped)
    result.save(path)
    return {"rows": x[:5].tolist(), "probs": result.probs(x[:5]).tolist()}


def frame(name, folder, told, classifier, X, labels):
    """A table with text, missing values and truth values, for classifiers that have an encoder."""
    import pandas as pd

    from calibrant.data import TableEncoder

    table = pd.DataFrame(X, columns=["width", "height"]).assign(
        town=np.array(["Bern", "Rom"])[np.arange(len(X)) % 2], new=labels == "low"
    )
    table.loc[0, "width"] = None
    fitted("frame", name, folder, told, classifier.set_params(members=("network",)), table, labels)
    encoder = TableEncoder().fit(table)
    encoder.save(folder / f"{name}-encoder.calibrant")
    told["encoder"] = {"numbers": encoder.transform(table[:5]).tolist()}


def text(name, folder, told, classifier, labels):
    """A table with free text, which linear models see as sparse columns."""
    import pandas as pd

    words = np.array(["red", "dry", "old", "ripe", "sweet", "young"])
    places = np.random.default_rng(1).integers(0, 6, (len(labels), 2))
    table = pd.DataFrame({"wine": [f"{a} {b} {c}" for (a, b), c in zip(words[places], labels, strict=True)]})
    table["price"] = np.arange(len(labels)) % 7
    table.loc[1, "wine"] = None
    classifier = classifier.set_params(members=("network", "linear"), text_columns=["wine"])
    fitted("text", name, folder, told, classifier, table, labels)


def fitted(kind, name, folder, told, classifier, table, labels):
    """Fit and save a classifier of a data frame, and store its probabilities."""
    classifier.fit(table, labels).save(folder / f"{name}-{kind}.calibrant")
    told[kind] = {
        "classes": classifier.classes_.tolist(),
        "probs": classifier.predict_proba(table[:5]).tolist(),
        "table": json.loads(table[:5].to_json(orient="split")),
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
