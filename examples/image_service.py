"""An image model in production that hands doubtful images to a person: ``python examples/image_service.py [FOLDER]``.

1. Train and calibrate a network. Choose a rejection rule on images that it has not seen. Save both.
2. In the service, load both files. No code is stored in them. Answer, or pass the image on.
3. Watch the calibration of the answers with constant memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import calibrant
from calibrant.metrics import StreamingECE
from calibrant.selective import RejectionRule, threshold_for_risk

PERSON = -1


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(folder: Path, images: Tensor, labels: Tensor, epochs: int | None) -> None:
    """Train on the first 400 images, calibrate on the next 200, and choose the rule on the others."""
    parts = [(images[:400], labels[:400]), (images[400:600], labels[400:600])]
    result = calibrant.fit(network(), *parts, epochs=epochs, networks=1)
    held_out, known = images[600:], labels[600:]
    rule = threshold_for_risk(result.confidence(held_out), result.predict(held_out) == known, risk=0.05, level=0.9)
    print(rule)
    result.save(folder / "digits.calibrant")
    (folder / "rule.json").write_text(rule.to_json())


class Service:
    """Answers a batch of images; -1 marks images for a person."""

    def __init__(self, folder: Path) -> None:
        self.model = calibrant.Trained.load(folder / "digits.calibrant", network())
        self.rule = RejectionRule.from_json((folder / "rule.json").read_text())
        self.watch = StreamingECE()

    def answer(self, images: Tensor) -> Tensor:
        probs = self.model.probs(images)
        return torch.where(self.rule.accepts(probs.max(dim=1).values), probs.argmax(dim=1), PERSON)

    def feedback(self, images: Tensor, labels: Tensor) -> None:
        """Add images whose true class became known later."""
        self.watch.update(self.model.probs(images), labels)


def main(folder: str | Path = "out/service", epochs: int | None = None) -> None:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    # Noise makes the digits hard enough that some images should be rejected.
    noise = 0.25 * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(1))
    images, labels = (pixels / 16 + noise).float()[order], labels[order]
    train(folder, images[:1200], labels[:1200], epochs)

    service = Service(folder)
    if not service.rule.found:
        return
    new, known = images[1200:], labels[1200:]
    answers = service.answer(new)
    given = answers != PERSON
    wrong = (answers[given] != known[given]).double().mean()
    print(f"answered {given.double().mean():.1%} of the new images; {wrong:.1%} of the answers are wrong")
    service.feedback(new, known)
    print(f"calibration error so far: {service.watch.compute():.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
