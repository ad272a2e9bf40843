"""The results section of README.md: a few sentences from the stored results."""

from __future__ import annotations

from docs.generate import first_paper, tables
from docs.generate.stored import bullets, stored, words

from calibrant.metrics import paired_difference
from calibrant.report import format_number


def sentences() -> list[str]:
    """Tables first, then wrong labels, the first paper, speed, and what is not known yet."""
    return [
        "**Tables** (`SelfCalibratedClassifier` compared with boosted trees and networks, alone and calibrated, on "
        f"PMLB tables). {' '.join(tables.rank_sentences())} {_tables_page()}",
        f"**Wrong labels.** {' '.join(tables.noise_sentences())}{_noisy_images()}",
        f"**The first paper.** {' '.join(first_paper.sentences()[:2])}",
        "**Self-calibration on the first paper's data.** "
        f"{first_paper.self_calibrated('bo4sc', first_paper.SEEN, missed=False)} "
        f"{' '.join([first_paper.self_calibrated('bo4sc-more-seeds', first_paper.UNSEEN), *first_paper.pooled()])}",
        f"**Speed.** {_speed()}",
        f"**Images.** {_images()}",
    ]


def _tables_page() -> str:
    """The page with all rows, and the libraries that only this page compares."""
    page, missing = "[All rows and targets](docs/reproducing.md#twenty-tables)", list(tables.unranked())
    if not missing:
        return f"{page}."
    return f"{page}, also for {words(missing)}, which {'lack' if len(missing) > 1 else 'lacks'} some splits."


PAGE = "[All results](docs/meta-regularisation-results.md)."
RIVAL, ENOUGH = "ce-average-ts", 3
IMAGES = {"meta-reg-cifar10": "CIFAR-10", "meta-reg-cifar100": "CIFAR-100"}


def _images() -> str:
    told = []
    for name, title in IMAGES.items():
        seeds: dict[str, set[int]] = {}
        for record in stored(name).records:
            seeds.setdefault(record["method"], set()).add(record["seed"])
        least, most = min(map(len, seeds.values())), max(map(len, seeds.values()))
        number = f"{least} to {most}" if least < most else str(most)
        told.append(f"{title} ({number} seed{'s' * (most > 1)} for each method)")
    ours = _compared("recommended", RIVAL, {"NLL": "nll", "ECE": "ece"})
    learned = _compared("flg-sece", "ce", {"error": "error", "ECE": "ece"})
    return " ".join(
        [
            f"Measured on {' and '.join(told)}; differences are paired by seed, with 95 % intervals.",
            "`recommended` (cross-entropy, averaged weights and a learned confidence map, no step after training) is "
            f"compared with the same network and a temperature. {ours}",
            f"The second paper's method in our form (`flg-sece`) is compared with cross-entropy. {learned}",
            PAGE,
        ]
    )


def _compared(method: str, rival: str, measures: dict[str, str]) -> str:
    """A method compared with its rival, on data sets where both have three seeds or more."""
    told = []
    for name, title in IMAGES.items():
        records = stored(name).records
        found = []
        for measure, key in measures.items():
            ours, other = ({r["seed"]: r[key] for r in records if r["method"] == m} for m in (method, rival))
            seeds = sorted(ours.keys() & other.keys())
            if len(seeds) < ENOUGH:
                break
            difference = paired_difference([ours[s] for s in seeds], [other[s] for s in seeds])
            means = [sum(values[s] for s in seeds) / len(seeds) for values in (ours, other)]
            found.append(f"{measure} {means[0]:.4f} against {means[1]:.4f} (difference {format_number(difference, 4)})")
        if found:
            told.append(f"On {title}, over {len(seeds)} seeds: {' and '.join(found)}.")
    return " ".join(told) or "So few seeds support no claim."


def _noisy_images() -> str:
    """Learned weights on CIFAR-10N, compared with plain training and with training on the clean images too."""
    records = stored("meta-reg-noisy").records
    errors = {m: {r["seed"]: r["error"] for r in records if r["method"] == m} for m in ("weights", "ce", "ce-clean")}
    seeds = sorted(set.intersection(*(set(own) for own in errors.values())))
    if len(seeds) < ENOUGH:
        return ""
    ours, plain, clean = ([100 * own[s] for s in seeds] for own in errors.values())
    lower, below = paired_difference(ours, plain), paired_difference(ours, clean)
    wrong = records[0]["wrong_share"]
    return (
        f" On CIFAR-10N, where {100 * wrong:.0f} % of the training labels are wrong, learned sample weights change the "
        f"error by {lower.value:+.1f} points (95 % interval {lower.low:+.1f} to {lower.high:+.1f}, {len(seeds)} "
        "seeds). "
        f"Compared with training on the clean held-out images as well, the difference is {below.value:+.1f} points "
        f"({below.low:+.1f} to {below.high:+.1f})."
    )


def _speed() -> str:
    ratios = {r["name"]: r["value"] for r in stored("bench").records}
    ece, smooth = (ratios[f"metrics/{name}"] for name in ("ece time over torchmetrics", "smooth_ece time over relplot"))
    return (
        f"On ten million predictions `ece` takes {ece:.2g} of the time of torchmetrics, and `smooth_ece` {smooth:.2g} "
        "of that of relplot. [All measurements](docs/reproducing.md#speed-and-memory)."
    )


SECTIONS = {"readme": lambda: bullets(sentences())}
