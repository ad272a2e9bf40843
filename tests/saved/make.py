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
    if hasattr(classifier, "encoder_"):
        frame(name, folder, told, classifier, X, labels)
        text(name, folder, told, classifier, labels)
    scores = np.eye(3)[y] * 2 + random.normal(size=(36, 3)).round(2)
    told["scores"] = scores[:5].tolist()
    kinds = {k: posthoc.make_calibrator(k) for k in ("temperature", "isotonic", "neural")}
    if hasattr(posthoc, "Auto"):
        kinds["auto"] = posthoc.Auto()
    for kind, calibrator in kinds.items():
        posthoc.save_calibrator(calibrator.fit(scores, y), folder / f"{name}-{kind}.calibrant")
        told[kind] = {"probs": calibrator.predict_proba(scores[:5]).tolist()}
    if hasattr(calibrant.Trained, "save"):
        network(name, folder, told)
        network_with_map(f"{name}-map", folder)
    (folder / f"{name}.json").write_text(json.dumps(told))


def network(name, folder, told):
    """A user's network, with a temperature."""
    import torch

    torch.manual_seed(0)
    x = torch.randn(60, 2)
    y = (x[:, 0] + 0.5 * torch.randn(60) > 0).long()
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    method = calibrant.methods.Standard(epochs=5)
    result = calibrant.fit(net, (x[:40], y[:40]), (x[40:], y[40:]), method=method)
    result.save(folder / f"{name}-network.calibrant")
    told["network"] = {"rows": x[:5].tolist(), "probs": result.probs(x[:5]).tolist()}


def network_with_map(name, folder):
    """A network with a confidence map; it has its own JSON file."""
    import torch

    from calibrant.methods.confidence import Mapped, fit_map

    torch.manual_seed(0)
    x = torch.randn(60, 2)
    y = (x[:, 0] + 0.5 * torch.randn(60) > 0).long()
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    result = calibrant.fit(net, (x[:40], y[:40]), (x[40:], y[40:]), networks=1, epochs=5)
    logits = torch.randn(4000, 2) * 3
    labels = (logits[:, 0] + 2 * torch.randn(4000) < logits[:, 1]).long()
    model = result.fitted.model
    result = dataclasses.replace(result, fitted=Mapped(model, fit_map(logits, labels), extras={"confidence": "map"}))
    result.save(folder / f"{name}-network.calibrant")
    told = {"network": {"rows": x[:5].tolist(), "probs": result.probs(x[:5]).tolist()}}
    (folder / f"{name}.json").write_text(json.dumps(told))


def frame(name, folder, told, classifier, X, labels):
    """A table with text, missing values and truth values, for classifiers that have an encoder."""
    import pandas as pd

    from calibrant.data import TableEncoder

    table = pd.DataFrame(X, columns=["width", "height"]).assign(
        town=np.array(["Bern", "Rom"])[np.arange(len(X)) % 2], new=labels == "low"
    )
    table.loc[0, "width"] = None
    classifier.set_params(members=("network",)).fit(table, labels).save(folder / f"{name}-frame.calibrant")
    told["frame"] = {
        "classes": classifier.classes_.tolist(),
        "probs": classifier.predict_proba(table[:5]).tolist(),
        "table": json.loads(table[:5].to_json(orient="split")),
    }
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
    classifier.set_params(members=("network", "linear"), text_columns=["wine"]).fit(table, labels)
    classifier.save(folder / f"{name}-text.calibrant")
    told["text"] = {
        "classes": classifier.classes_.tolist(),
        "probs": classifier.predict_proba(table[:5]).tolist(),
        "table": json.loads(table[:5].to_json(orient="split")),
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
