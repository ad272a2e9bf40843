"""The results section of README.md: a few sentences from the stored results."""

from __future__ import annotations

from docs.generate import first_paper, tables
from docs.generate.stored import bullets, stored


def sentences() -> list[str]:
    """Tables first, then wrong labels, the first paper, speed, and what is not known yet."""
    return [
        "**Tables** (`SelfCalibratedClassifier` beside boosted trees and networks, alone and calibrated, on PMLB "
        f"tables). {' '.join(tables.rank_sentences())} "
        "[All rows and targets](docs/reproducing.md#twenty-tables).",
        f"**Wrong labels.** {' '.join(tables.noise_sentences())}",
        f"**The first paper.** {' '.join(first_paper.sentences()[:2])}",
        "**Self-calibration on the first paper's data.** "
        f"{first_paper.self_calibrated('bo4sc', first_paper.SEEN, missed=False)} "
        f"{first_paper.self_calibrated('bo4sc-more-seeds', first_paper.UNSEEN)}",
        f"**Speed.** {_speed()}",
        f"**Images.** {_images()}",
    ]


PAGE = "[All results](docs/meta-regularisation.md#what-we-found)."
IMAGES = {"meta-reg-cifar10": "CIFAR-10", "meta-reg-cifar100": "CIFAR-100"}


def _images() -> str:
    told, fewest = [], []
    for name, title in IMAGES.items():
        seeds: dict[str, set[int]] = {}
        for record in stored(name).records:
            seeds.setdefault(record["method"], set()).add(record["seed"])
        least, most = min(map(len, seeds.values())), max(map(len, seeds.values()))
        number = f"{least} to {most}" if least < most else str(most)
        told.append(f"{title} ({number} seed{'s' * (most > 1)} for each method)")
        fewest.append(least)
    caution = " So few seeds support no claim." if min(fewest) < 3 else ""
    return f"The second paper's methods have run on {' and '.join(told)}.{caution} {PAGE}"


def _speed() -> str:
    ratios = {r["name"]: r["value"] for r in stored("bench").records}
    ece, smooth = (ratios[f"metrics/{name}"] for name in ("ece time over torchmetrics", "smooth_ece time over relplot"))
    return (
        f"On ten million predictions `ece` takes {ece:.2g} of the time of torchmetrics, and `smooth_ece` {smooth:.2g} "
        "of that of relplot. [All measurements](docs/reproducing.md#speed-and-memory)."
    )


SECTIONS = {"readme": lambda: bullets(sentences())}
