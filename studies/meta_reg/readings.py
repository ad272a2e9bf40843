"""Readings of the second paper: two ways to fill in what it leaves open, trained with one plain loop.

The paper extends the public code of meta-calibration (Bohdal et al. 2021) and uses "their default settings unless
stated otherwise". ``-code`` is that code with SECE in place of DECE; ``-text`` is what the text states. Both look ahead
with the classifier layer only, because the code does and the text does not say.

``python -m studies.meta_reg.readings --data DIR --work DIR --out DIR --seconds 560`` makes the missing runs, several at
once on one GPU, until the time is up. A run that the time cuts off keeps its state in the work folder, and the same
command continues it. ``--out`` gets one JSON file and one .npz file of all finished runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant import metrics
from calibrant.base.locks import try_lock
from calibrant.bilevel import GammaNet
from calibrant.data.streams.streams import mix
from calibrant.losses import cross_entropy, dece, focal, mmce, sece
from calibrant.methods import Samples
from calibrant.models.functional.heads import divide
from calibrant.posthoc import Temperature
from studies.common.shared import made
from studies.meta_reg.data import PreparedImages, prepare
from studies.meta_reg.measures import DRAWS, SCORES, scored, softmax
from studies.report import write_results

Form = Literal["code", "text"]
BATCH, RATE, MOMENTUM, DECAY = 128, 0.1, 0.9, 5e-4
"""Batch size and SGD of the paper, which are those of the public code."""
DROPS = (150 / 350, 250 / 350)
"""When the learning rate is divided by ten, as shares of the run."""
CLIP = 2.0
"""The largest norm of the gradient in the public code."""
BESIDE = 0.5
"""The weight of the calibration error beside cross-entropy in the public code's outer loss."""
STRENGTH = 0.1
"""The weight of the held-out term beside the mean training loss, where there is no outer level."""
WARM_UP = 3
"""Steps before one is recorded on a GPU; they are steps of the run."""
MARGIN, LEAST = 20.0, 45.0
"""Seconds for the end of a run and for the merged files, and the shortest time left in which a run is started."""


@dataclass(frozen=True)
class Reading:
    """One reading.

    Parameters
    ----------
    inner : the training loss: cross-entropy, focal with γ = 1 or with γ from γ-Net, or cross-entropy with learned L2
        strengths of the head's weights
    outer : the term that held-out images are judged by; None: no held-out images
    form : "code": losses are summed over the batch, the gradient is clipped, φ moves before the network, its outer loss
        is CE + 0.5 × the term, and the gradient of the outer loss is added to the network's, because the code does not
        clear it. "text": means, no clipping, φ moves after the network, and the term is the outer loss
    outer_rate : Adam's learning rate for φ. None: no outer level, and the network's own loss contains the term
    """

    inner: Literal["ce", "focal", "gamma-net", "l2"] = "ce"
    outer: Literal["sece", "dece", "mmce", "nll"] | None = None
    form: Form = "code"
    outer_rate: float | None = 1e-3


FLG_SECE = Reading("gamma-net", "sece")
FORMS: tuple[Form, Form] = ("code", "text")
READINGS: dict[str, Reading] = {
    "flg-sece-code": FLG_SECE,
    "flg-sece-text": replace(FLG_SECE, form="text"),
    "ce-code": Reading(),
    "focal-code": Reading("focal"),
    **{
        f"flg-sece-{form}-{rate}": replace(FLG_SECE, form=form, outer_rate=float(rate))
        for rate in ("1e-4", "1e-5")
        for form in FORMS
    },
    "ce-held-out-sece": Reading("ce", "sece", outer_rate=None),
    "ce-held-out-mmce": Reading("ce", "mmce", outer_rate=None),
    **{f"flg-dece-{form}": Reading("gamma-net", "dece", form) for form in FORMS},
    **{f"flg-{form}": Reading("gamma-net", "nll", form) for form in FORMS},
    **{f"ce-dece-{form}": Reading("l2", "dece", form) for form in FORMS},
    **{f"ce-sece-{form}": Reading("l2", "sece", form) for form in FORMS},
    "ce-text": Reading(form="text"),
    "focal-text": Reading("focal", form="text"),
}
"""Readings by id, in the order in which they are run."""

_TERMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sece": sece,
    "dece": dece,
    "mmce": mmce,
    "nll": lambda logits, labels: cross_entropy(logits, labels).mean(),
}


class ReadingRun:
    """A network, the outer variables and one training step of a reading.

    All tensors keep their addresses, so a GPU can record the step once and replay it.
    """

    def __init__(self, reading: Reading, prepared: PreparedImages, *, batch: int = BATCH) -> None:
        task, self.held = prepared.task, prepared.task.need_meta("A held-out term")
        self.reading, self.prepared = reading, prepared
        self.part = task.train if reading.outer else task.train + self.held
        self.batch = batch = min(batch, len(self.held), len(self.part))
        self.steps, self.held_steps = (len(part) // batch for part in (self.part, self.held))
        self.device = self.part.labels.device
        self.cuda = self.device.type == "cuda"
        assert callable(task.model)
        self.model: nn.Module = task.model(task.seed).to(self.device)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        layer = self.model.get_submodule("fc")
        assert isinstance(layer, nn.Linear)
        self.head: list[Tensor] = [layer.weight, layer.bias]
        self.body: Callable[[Tensor], Tensor] = divide(self.model, "fc").body
        self.fast = torch.compile(self.body) if self.cuda else self.body
        self.body_parameters: list[Tensor] = [
            p for name, p in self.model.named_parameters() if not name.startswith("fc.")
        ]
        self.momenta: dict[Tensor, Tensor] = {p: torch.zeros_like(p) for p in self.model.parameters()}
        self.rate, self.norm = (self.head[0].new_zeros(()) for _ in range(2))
        self.position = torch.zeros((), dtype=torch.long, device=self.device)
        self.rows = torch.arange(batch, device=self.device)
        self.inputs, self.labels = self.part.inputs.clone(), self.part.labels.clone()
        self.held_inputs, self.held_labels = self.held.inputs.clone(), self.held.labels.clone()
        self.net = self._gamma_net(layer.in_features, task.n_classes) if reading.inner == "gamma-net" else None
        self.outer: list[Tensor] = [] if self.net is None else list(self.net.parameters())
        if reading.inner == "l2":
            self.outer = [torch.zeros_like(p, requires_grad=True) for p in self.head]
        self.adam: torch.optim.Adam | None = None
        if self.outer:
            assert reading.outer_rate is not None
            self.adam = torch.optim.Adam(self.outer, lr=reading.outer_rate, capturable=self.cuda)
        self.epoch, self.seconds, self.curve = 0, 0.0, list[dict[str, Any]]()
        self.selected = self.state()

    def _gamma_net(self, width: int, n_classes: int) -> GammaNet:
        """γ-Net as published, with a mean γ of 1 on the first batch."""
        net = GammaNet(width, n_classes, form="published", seed=self.prepared.task.seed)
        net = net.to(self.device, self.head[0].dtype)
        self.shuffle(0)
        with torch.no_grad():
            net.rescale(self.features(*self.train_batch()[:1]))
        return net

    def state(self) -> dict[str, Tensor]:
        """A copy of the network's parameters and buffers."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def shuffle(self, epoch: int) -> None:
        """A new order, and new crops and flips of all images."""
        generator = torch.Generator(self.device).manual_seed(mix(self.prepared.task.seed, epoch) % (1 << 62))
        order = torch.randperm(len(self.part), generator=generator, device=self.device)
        inputs = self.part.inputs[order]
        self.inputs.copy_(self.part.augment(inputs, generator) if self.part.augment else inputs)
        self.labels.copy_(self.part.labels[order])
        order = torch.randperm(len(self.held), generator=generator, device=self.device)
        self.held_inputs.copy_(self.held.inputs[order])
        self.held_labels.copy_(self.held.labels[order])
        self.position.zero_()

    def train_batch(self) -> tuple[Tensor, Tensor]:
        """The current batch of training images; a last batch that is smaller is left out."""
        rows = self.position * self.batch + self.rows
        return self._images(self.part, self.inputs[rows]), self.labels[rows]

    def held_batch(self) -> tuple[Tensor, Tensor]:
        """The current batch of held-out images, which repeat within an epoch of training images."""
        rows = (self.position % self.held_steps) * self.batch + self.rows
        return self._images(self.held, self.held_inputs[rows]), self.held_labels[rows]

    def _images(self, part: Samples, images: Tensor) -> Tensor:
        assert part.prepare is not None
        prepared: Tensor = part.prepare(images)
        return prepared.to(self.head[0].dtype).contiguous(memory_format=torch.channels_last)

    def features(self, images: Tensor) -> Tensor:
        """The features before the head; on a GPU, the body runs in bfloat16."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda, cache_enabled=False):
            return self.fast(images).to(self.head[0].dtype)

    def inner_loss(self, features: Tensor, head: Sequence[Tensor], labels: Tensor) -> Tensor:
        """The training loss; features do not learn to change γ."""
        logits = F.linear(features, *head)
        if self.net is not None:
            losses = focal(logits, labels, self.net(features.detach()))
        else:
            losses = focal(logits, labels, 1.0) if self.reading.inner == "focal" else cross_entropy(logits, labels)
        loss = losses.sum() if self.reading.form == "code" else losses.mean()
        if self.reading.inner == "l2":
            loss = loss + sum((strength * p.square()).sum() for strength, p in zip(self.outer, head, strict=True))
        return loss

    def outer_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of held-out images that moves φ."""
        assert self.reading.outer is not None
        term = _TERMS[self.reading.outer](logits, labels)
        if self.reading.form == "text" or self.reading.outer == "nll":
            return term
        return cross_entropy(logits, labels).mean() + BESIDE * term

    def step(self) -> None:
        """One training step of the network and of φ."""
        images, labels = self.train_batch()
        features = self.features(images)
        cut = features.detach().requires_grad_()
        if self.reading.outer is None:
            self.update([features], torch.autograd.grad(self.inner_loss(cut, self.head, labels), [cut, *self.head]))
        elif self.reading.form == "code":
            self._step_of_code(features, cut, labels)
        else:
            self._step_of_text(features, cut, labels)
        self.position.add_(1)

    def _step_of_code(self, features: Tensor, cut: Tensor, labels: Tensor) -> None:
        """φ moves first; the gradient of the held-out term is added to that of the training loss."""
        images, held_labels = self.held_batch()
        held_features = self.features(images)
        held = held_features.detach().requires_grad_()
        if self.adam is None:
            assert self.reading.outer is not None
            term = self.batch * STRENGTH * _TERMS[self.reading.outer](F.linear(held, *self.head), held_labels)
        else:
            slopes = torch.autograd.grad(self.inner_loss(cut, self.head, labels), self.head, create_graph=True)
            ahead = [p - self.rate * slope for p, slope in zip(self.head, slopes, strict=True)]
            term = self.outer_loss(F.linear(held, *ahead), held_labels)
        moved = [cut, held, *self.head]
        slopes_of_term = torch.autograd.grad(term, [*moved, *self.outer], materialize_grads=True)
        self.move_outer(slopes_of_term[len(moved) :])
        of_term = slopes_of_term[: len(moved)]
        of_loss = torch.autograd.grad(self.inner_loss(cut, self.head, labels), moved, materialize_grads=True)
        self.update([features, held_features], [a + b for a, b in zip(of_term, of_loss, strict=True)])

    def _step_of_text(self, features: Tensor, cut: Tensor, labels: Tensor) -> None:
        """The network moves first, and φ through the step of the head, with its momentum."""
        loss = self.inner_loss(cut, self.head, labels)
        of_cut, *slopes = torch.autograd.grad(loss, [cut, *self.head], create_graph=True)
        momenta = [
            MOMENTUM * self.momenta[p] + slope + DECAY * p.detach() for p, slope in zip(self.head, slopes, strict=True)
        ]
        ahead = [p.detach() - self.rate * momentum for p, momentum in zip(self.head, momenta, strict=True)]
        self.move(self.body_parameters, torch.autograd.grad(features, self.body_parameters, of_cut.detach()))
        images, held_labels = self.held_batch()
        with torch.no_grad():
            held = self.features(images)
        of_outer = torch.autograd.grad(self.outer_loss(F.linear(held, *ahead), held_labels), self.outer)
        with torch.no_grad():
            for p, momentum, moved in zip(self.head, momenta, ahead, strict=True):
                self.momenta[p].copy_(momentum)
                p.copy_(moved)
        self.move_outer(of_outer)

    def update(self, features: Sequence[Tensor], slopes: Sequence[Tensor]) -> None:
        """Move the network: ``slopes`` are those of the features, then those of the head."""
        count = len(features)
        gradients = [*torch.autograd.grad(features, self.body_parameters, slopes[:count]), *slopes[count:]]
        if self.reading.form == "code":
            self.norm.copy_(torch.nn.utils.get_total_norm(gradients))
            torch._foreach_mul_(gradients, (CLIP / (self.norm + 1e-6)).clamp(max=1.0))
        self.move([*self.body_parameters, *self.head], gradients)

    @torch.no_grad()
    def move(self, parameters: Sequence[Tensor], slopes: Sequence[Tensor]) -> None:
        """One step of SGD with momentum and weight decay."""
        values, momenta = list(parameters), [self.momenta[p] for p in parameters]
        torch._foreach_mul_(momenta, MOMENTUM)
        torch._foreach_add_(momenta, torch._foreach_add(list(slopes), values, alpha=DECAY))
        torch._foreach_sub_(values, torch._foreach_mul(momenta, self.rate))

    def move_outer(self, slopes: Sequence[Tensor]) -> None:
        """One step of Adam for φ."""
        for p, slope in zip(self.outer, slopes, strict=True):
            p.grad = slope
        if self.adam is not None:
            self.adam.step()

    def fit(self, epochs: int, *, state: Path, until: float | None = None) -> bool:
        """Train up to ``epochs`` epochs. Where the time ``until`` is too short for a further one, save ``state``.

        Returns whether the run is finished.
        """
        if state.exists():
            self._load(state)
        replay: Callable[[], object] | None = None
        for epoch in range(self.epoch, epochs):
            begin, done = time.time(), 0
            self.rate.fill_(RATE * 0.1 ** sum(epoch >= round(share * epochs) for share in DROPS))
            self.shuffle(epoch)
            if replay is None:
                replay, done = self._recorded()
            for _ in range(done, self.steps):
                replay()
            self.epoch = epoch + 1
            self._note(begin)
            if until is not None and self.epoch < epochs and time.time() + 1.5 * self.curve[-1]["seconds"] > until:
                self._save(state)
                return False
        return True

    def _recorded(self) -> tuple[Callable[[], object], int]:
        """The step, recorded on a GPU, and the number of steps that recording it took."""
        if not self.cuda:
            return self.step, 0
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay, WARM_UP

    def _note(self, begin: float) -> None:
        """Add an epoch to the curve, and keep the network with the lowest validation error."""
        features, logits, labels = self.evaluate(self.prepared.task.need_val("The choice of a state"))
        scores = _scores(softmax(logits.double().cpu(), 1.0), labels)
        found: dict[str, Any] = {name: scores[name] for name in ("error", "nll", "ece")}
        if self.net is not None:
            with torch.no_grad():
                gamma = self.net(features).double()
            found |= {"gamma_mean": float(gamma.mean()), "gamma_std": float(gamma.std(correction=0))}
        before = [row["error"] for row in self.curve if row["error"] is not None]
        if found["error"] is not None and found["error"] < min(before, default=2.0):
            self.selected = self.state()
        seconds = time.time() - begin
        self.seconds += seconds
        self.curve.append({"epoch": self.epoch, "seconds": seconds, "norm": float(self.norm), **found})

    @torch.no_grad()
    def evaluate(self, part: Samples) -> tuple[Tensor, Tensor, np.ndarray]:
        """Features, logits and labels of a part, in single precision."""
        self.model.eval()
        rows = torch.arange(len(part), device=self.device).split(2500)
        features = torch.cat([self.body(self._images(part, part.inputs[piece])) for piece in rows])
        self.model.train()
        return features, F.linear(features.to(self.head[0].dtype), *self.head), part.labels.cpu().numpy()

    def measured(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Scores and half-precision logits of the selected and of the last network."""
        val, test = self.prepared.task.need_val("A temperature"), self.prepared.test
        record: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        for name, state in (("selected", self.selected), ("last", self.state())):
            self.model.load_state_dict(state)
            (_, on_val, val_labels), (_, on_test, labels) = (self.evaluate(part) for part in (val, test))
            arrays |= {f"{name}_val": _half(on_val), f"{name}_test": _half(on_test)}
            arrays |= {"val_labels": val_labels.astype(np.int16), "test_labels": labels.astype(np.int16)}
            logits = on_test.double().cpu()
            probs = softmax(logits, 1.0)
            record[name] = _scores(probs, labels)
            if record[name]["error"] is None:
                continue
            temperature = float(Temperature().fit(on_val.double().cpu().numpy(), val_labels).temperature_)
            scaled = _scores(softmax(logits, temperature), labels)
            record[name]["floor"] = metrics.noise_floor(confidence=probs.max(1), n_resamples=DRAWS).mean
            record[name] |= {"temperature": temperature} | {f"{m}_ts": scaled[m] for m in ("nll", "ece")}
        return record, arrays

    def _save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = {
            "model": self.state(),
            "selected": self.selected,
            "tensors": [*self.momenta.values(), *self.outer],
            "adam": self.adam.state_dict() if self.adam else None,
            "progress": (self.epoch, self.seconds, self.curve),
        }
        torch.save(held, path)

    def _load(self, path: Path) -> None:
        held = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(held["model"])
        with torch.no_grad():
            for p, value in zip((*self.momenta.values(), *self.outer), held["tensors"], strict=True):
                p.copy_(value)
        if self.adam is not None:
            self.adam.load_state_dict(held["adam"])
        self.selected, (self.epoch, self.seconds, self.curve) = held["selected"], held["progress"]


def _half(logits: Tensor) -> np.ndarray:
    return logits.float().cpu().numpy().astype(np.float16)


def _scores(probs: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """The columns of Table 1; None if the network diverged."""
    return {**scored(probs, labels)} if np.isfinite(probs).all() else dict.fromkeys(SCORES)


def run(name: str, prepared: PreparedImages, work: Path, *, epochs: int, until: float | None = None) -> bool:
    """Make one run and write ``NAME.json`` and ``NAME.npz``; False if the time was too short for it."""
    reading, state = READINGS[name], work / "states" / f"{name}.pt"
    training = ReadingRun(reading, prepared)
    if not training.fit(epochs, state=state, until=until):
        return False
    states, arrays = training.measured()
    record = {
        "method": name,
        "seed": prepared.task.seed,
        "epochs": epochs,
        "train_size": len(training.part),
        "steps": training.steps,
        **asdict(reading),
        **states,
        "seconds": training.seconds,
        "device": torch.cuda.get_device_name() if training.cuda else "cpu",
        "curve": {key: [row.get(key) for row in training.curve] for key in training.curve[-1]},
    }
    work.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(work / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    (work / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
    state.unlink(missing_ok=True)
    return True


def work_through(options: argparse.Namespace) -> None:
    """Make runs that no other process makes; those that were cut off come first."""
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    work: Path = options.work
    prepared = prepare("cifar10", options.data, options.seed, model=options.model).to(device)
    for name in sorted(options.methods, key=lambda name: not (work / "states" / f"{name}.pt").exists()):
        with try_lock(work / f"{name}.lock") as mine:
            if mine and not (work / f"{name}.json").exists() and time.time() < options.until - LEAST:
                finished = run(name, prepared, work, epochs=options.epochs, until=options.until)
                print(f"{name}: {'finished' if finished else 'cut off'}", flush=True)


def merge(work: Path, out: Path) -> None:
    """One result file and one file of logits from all finished runs."""
    records: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for name in READINGS:
        if (work / f"{name}.json").exists():
            records.append(json.loads((work / f"{name}.json").read_text(encoding="utf-8")))
            with np.load(work / f"{name}.npz") as stored:
                arrays |= {key if key.endswith("labels") else f"{name}/{key}": stored[key] for key in stored.files}
    sgd = {"batch": BATCH, "learning_rate": RATE, "momentum": MOMENTUM, "weight_decay": DECAY, "clip": CLIP}
    write_results(out / "readings.json", {"experiment": "readings", **sgd, **made()}, records)
    np.savez_compressed(out / "readings-logits.npz", **arrays)  # type: ignore[arg-type]


def main(arguments: Sequence[str]) -> None:
    """Start the workers of one call, wait for them, and merge what is finished."""
    begin = time.time()
    parser = argparse.ArgumentParser(description="Readings of the second paper, several at once.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="the folder of the runs; keep it between calls")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", choices=list(READINGS), default=list(READINGS))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="another network, for tests")
    parser.add_argument("--seconds", type=float, default=560.0, help="the time of this call")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.until is not None:
        return work_through(options)
    call = [sys.executable, "-m", "studies.meta_reg.readings", *arguments]
    call += ["--until", str(begin + options.seconds - MARGIN)]
    for worker in [subprocess.Popen(call) for _ in range(options.workers)]:
        worker.wait()
    return merge(options.work, options.out)


if __name__ == "__main__":
    main(sys.argv[1:])
