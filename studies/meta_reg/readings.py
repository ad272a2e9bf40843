"""Readings of the second paper: two ways to fill in what it leaves open, trained with one plain loop.

The paper extends the public code of meta-calibration (Bohdal et al. 2021) and uses "their default settings unless
stated otherwise". ``-code`` is that code with SECE in place of DECE; ``-text`` is what the text states. Both look ahead
with the classifier layer only, because the code does and the text does not say.

``python -m studies.meta_reg.readings METHOD --data DIR --out DIR`` makes one run.
:mod:`studies.meta_reg.readings_queue` makes all runs.
"""

from __future__ import annotations

import argparse
import json
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
from calibrant.bilevel import GammaNet
from calibrant.data.streams.streams import mix
from calibrant.losses import cross_entropy, dece, focal, mmce, sece
from calibrant.methods import Samples
from calibrant.models.functional.heads import divide
from calibrant.posthoc import Temperature
from studies.meta_reg.data import PreparedImages, prepare
from studies.meta_reg.measures import DRAWS, SCORES, scored, softmax

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
CUT_OFF = 3
"""The exit status of a run that the time cut off."""
WARM_UP = 3
"""Steps before one is recorded on a GPU; they are steps of the run."""


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


def _readings() -> dict[str, Reading]:
    sece_code = Reading("gamma-net", "sece")
    forms: tuple[Form, Form] = ("code", "text")
    return {
        "flg-sece-code": sece_code,
        "flg-sece-text": replace(sece_code, form="text"),
        "ce-code": Reading(),
        "focal-code": Reading("focal"),
        **{
            f"flg-sece-{form}-{rate}": replace(sece_code, form=form, outer_rate=float(rate))
            for rate in ("1e-4", "1e-5")
            for form in forms
        },
        "ce-held-out-sece": Reading("ce", "sece", outer_rate=None),
        "ce-held-out-mmce": Reading("ce", "mmce", outer_rate=None),
        **{f"flg-dece-{form}": Reading("gamma-net", "dece", form) for form in forms},
        **{f"flg-{form}": Reading("gamma-net", "nll", form) for form in forms},
        **{f"ce-dece-{form}": Reading("l2", "dece", form) for form in forms},
        **{f"ce-sece-{form}": Reading("l2", "sece", form) for form in forms},
        "ce-text": Reading(form="text"),
        "focal-text": Reading("focal", form="text"),
    }


READINGS = _readings()
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

    def __init__(
        self,
        reading: Reading,
        prepared: PreparedImages,
        *,
        batch: int = BATCH,
        compiled: bool = False,
        recorded: bool = False,
    ) -> None:
        task = prepared.task
        held = task.need_meta("A held-out term")
        self.reading, self.prepared, self.recorded = reading, prepared, recorded
        self.part = task.train if reading.outer else task.train + held
        self.held = held
        self.batch = batch = min(batch, len(held), len(self.part))
        self.device = self.part.labels.device
        assert callable(task.model)
        self.model = task.model(task.seed).to(self.device)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        layer = self.model.get_submodule("fc")
        assert isinstance(layer, nn.Linear)
        self.head: list[Tensor] = [layer.weight, layer.bias]
        self.body: Callable[[Tensor], Tensor] = divide(self.model, "fc").body
        self.fast = torch.compile(self.body) if compiled else self.body
        self.body_parameters: list[Tensor] = [
            p for name, p in self.model.named_parameters() if not name.startswith("fc.")
        ]
        self.momenta: dict[Tensor, Tensor] = {p: torch.zeros_like(p) for p in self.model.parameters()}
        self.steps, self.held_steps = (len(part) // batch for part in (self.part, held))
        self.rate, self.norm = (self.head[0].new_zeros(()) for _ in range(2))
        self.position = torch.zeros((), dtype=torch.long, device=self.device)
        self.rows = torch.arange(batch, device=self.device)
        self.inputs, self.labels = self.part.inputs.clone(), self.part.labels.clone()
        self.held_inputs, self.held_labels = held.inputs.clone(), held.labels.clone()
        self.net = self._gamma_net(layer.in_features, task.n_classes) if reading.inner == "gamma-net" else None
        if self.net is not None:
            self.outer: list[Tensor] = list(self.net.parameters())
        elif reading.inner == "l2":
            self.outer = [torch.zeros_like(p, requires_grad=True) for p in self.head]
        else:
            self.outer = []
        self.adam = None
        if self.outer:
            rate = reading.outer_rate
            assert rate is not None
            self.adam = torch.optim.Adam(self.outer, lr=rate, capturable=self.device.type == "cuda")
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
        cuda = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=cuda, cache_enabled=False):
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
            slopes = torch.autograd.grad(self.inner_loss(cut, self.head, labels), [cut, *self.head])
            self.update([features], slopes)
        elif self.adam is None:
            self._step_with_term(features, cut, labels)
        elif self.reading.form == "code":
            self._step_of_code(features, cut, labels)
        else:
            self._step_of_text(features, cut, labels)
        self.position.add_(1)

    def _step_with_term(self, features: Tensor, cut: Tensor, labels: Tensor) -> None:
        assert self.reading.outer is not None
        images, held_labels = self.held_batch()
        held_features = self.features(images)
        held = held_features.detach().requires_grad_()
        term = _TERMS[self.reading.outer](F.linear(held, *self.head), held_labels)
        loss = self.inner_loss(cut, self.head, labels) + self.batch * STRENGTH * term
        self.update([features, held_features], torch.autograd.grad(loss, [cut, held, *self.head]))

    def _step_of_code(self, features: Tensor, cut: Tensor, labels: Tensor) -> None:
        slopes = torch.autograd.grad(self.inner_loss(cut, self.head, labels), self.head, create_graph=True)
        ahead = [p - self.rate * slope for p, slope in zip(self.head, slopes, strict=True)]
        images, held_labels = self.held_batch()
        held_features = self.features(images)
        held = held_features.detach().requires_grad_()
        loss = self.outer_loss(F.linear(held, *ahead), held_labels)
        found = torch.autograd.grad(loss, [*self.outer, cut, held, *self.head])
        self.move_outer(found[: len(self.outer)])
        of_cut, of_held, *of_head = found[len(self.outer) :]
        own, *of_own = torch.autograd.grad(self.inner_loss(cut, self.head, labels), [cut, *self.head])
        sums = [a + b for a, b in zip(of_head, of_own, strict=True)]
        self.update([features, held_features], [of_cut + own, of_held, *sums])

    def _step_of_text(self, features: Tensor, cut: Tensor, labels: Tensor) -> None:
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
        found = torch.autograd.grad(self.outer_loss(F.linear(held, *ahead), held_labels), self.outer)
        with torch.no_grad():
            for p, momentum, moved in zip(self.head, momenta, ahead, strict=True):
                self.momenta[p].copy_(momentum)
                p.copy_(moved)
        self.move_outer(found)

    def update(self, features: Sequence[Tensor], slopes: Sequence[Tensor]) -> None:
        """Move the network: ``slopes`` are those of the features, then those of the head."""
        count = len(features)
        of_body = torch.autograd.grad(features, self.body_parameters, slopes[:count])
        found = [*of_body, *slopes[count:]]
        if self.reading.form == "code":
            self.norm.copy_(torch.nn.utils.get_total_norm(found))
            torch._foreach_mul_(found, (CLIP / (self.norm + 1e-6)).clamp(max=1.0))
        self.move([*self.body_parameters, *self.head], found)

    @torch.no_grad()
    def move(self, parameters: Sequence[Tensor], slopes: Sequence[Tensor]) -> None:
        """One step of SGD with momentum and weight decay."""
        own, momenta = list(parameters), [self.momenta[p] for p in parameters]
        torch._foreach_mul_(momenta, MOMENTUM)
        torch._foreach_add_(momenta, torch._foreach_add(list(slopes), own, alpha=DECAY))
        torch._foreach_sub_(own, torch._foreach_mul(momenta, self.rate))

    def move_outer(self, slopes: Sequence[Tensor]) -> None:
        """One step of Adam for φ."""
        assert self.adam is not None
        for p, slope in zip(self.outer, slopes, strict=True):
            p.grad = slope
        self.adam.step()

    def fit(self, epochs: int, *, state: Path, until: float | None = None) -> bool:
        """Train up to ``epochs`` epochs. Where the time ``until`` is too short for a further one, save ``state``.

        Returns whether the run is finished.
        """
        if state.exists():
            self._load(state)
        replay: Callable[[], None] | None = None
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

    def _recorded(self) -> tuple[Callable[[], None], int]:
        """The step, recorded on a GPU if that is wanted, and the number of steps that recording it took."""
        if not self.recorded:
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
        probs = softmax(logits.double().cpu(), 1.0)
        found: dict[str, Any] = {
            name: v for name, v in _scores(probs, labels).items() if name in ("error", "nll", "ece")
        }
        if self.net is not None:
            with torch.no_grad():
                gamma = self.net(features).double()
            found |= {"gamma_mean": float(gamma.mean()), "gamma_std": float(gamma.std(correction=0))}
        if found["error"] is not None and found["error"] < min(
            (row["error"] for row in self.curve if row["error"] is not None), default=2.0
        ):
            self.selected = self.state()
        seconds = time.time() - begin
        self.seconds += seconds
        self.curve.append({"epoch": self.epoch, "seconds": seconds, "norm": float(self.norm), **found})

    @torch.no_grad()
    def evaluate(self, part: Samples) -> tuple[Tensor, Tensor, np.ndarray]:
        """Features, logits and labels of a part, in single precision."""
        self.model.eval()
        found = [
            self.body(self._images(part, part.inputs[rows]))
            for rows in torch.arange(len(part), device=self.device).split(2500)
        ]
        self.model.train()
        features = torch.cat(found).to(self.head[0].dtype)
        return features, F.linear(features, *self.head), part.labels.cpu().numpy()

    def measured(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Scores and half-precision logits of the selected and of the last network."""
        val, test = self.prepared.task.need_val("A temperature"), self.prepared.test
        record: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        last = self.state()
        for name, state in (("selected", self.selected), ("last", last)):
            self.model.load_state_dict(state)
            (_, on_val, val_labels), (_, on_test, labels) = (self.evaluate(part) for part in (val, test))
            logits = on_test.double().cpu()
            record[name] = _scores(softmax(logits, 1.0), labels)
            for which, values in (("val", on_val), ("test", on_test)):
                arrays[f"{name}_{which}"] = values.float().cpu().numpy().astype(np.float16)
            arrays |= {"val_labels": val_labels.astype(np.int16), "test_labels": labels.astype(np.int16)}
            if record[name]["error"] is None:
                continue
            confidence = softmax(logits, 1.0).max(1)
            record[name]["floor"] = metrics.noise_floor(confidence=confidence, n_resamples=DRAWS).mean
            temperature = float(Temperature().fit(on_val.double().cpu().numpy(), val_labels).temperature_)
            scaled = _scores(softmax(logits, temperature), labels)
            record[name] |= {"temperature": temperature} | {f"{m}_ts": scaled[m] for m in ("nll", "ece")}
        self.model.load_state_dict(last)
        return record, arrays

    def _save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = {
            "model": self.state(),
            "selected": self.selected,
            "momenta": list(self.momenta.values()),
            "outer": self.outer,
            "adam": self.adam.state_dict() if self.adam else None,
            "progress": (self.epoch, self.seconds, self.curve),
        }
        torch.save(held, path)

    def _load(self, path: Path) -> None:
        held = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(held["model"])
        self.selected = held["selected"]
        with torch.no_grad():
            for p, value in zip((*self.momenta.values(), *self.outer), (*held["momenta"], *held["outer"]), strict=True):
                p.copy_(value)
        if self.adam is not None:
            self.adam.load_state_dict(held["adam"])
        self.epoch, self.seconds, self.curve = held["progress"]


def _scores(probs: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """The columns of Table 1; None if the network diverged."""
    return dict.fromkeys(SCORES) if not np.isfinite(probs).all() else {**scored(probs, labels)}


def run(
    name: str, prepared: PreparedImages, out: Path, *, epochs: int, until: float | None = None, **how: bool
) -> bool:
    """Make one run and write ``NAME.json`` and ``NAME.npz``; False if the time was too short for it.

    ``how`` says whether the network is compiled and the step recorded (:class:`ReadingRun`).
    """
    reading, state = READINGS[name], out / "states" / f"{name}.pt"
    training = ReadingRun(reading, prepared, **how)
    if not training.fit(epochs, state=state, until=until):
        return False
    found, arrays = training.measured()
    record = {
        "method": name,
        "seed": prepared.task.seed,
        "epochs": epochs,
        "train_size": len(training.part),
        "steps": training.steps,
        **asdict(reading),
        **found,
        "seconds": training.seconds,
        "device": torch.cuda.get_device_name() if training.device.type == "cuda" else "cpu",
        "curve": {key: [row.get(key) for row in training.curve] for key in training.curve[-1]},
    }
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    (out / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
    state.unlink(missing_ok=True)
    seconds = np.median(record["curve"]["seconds"])
    print(f"{name}: error {found['selected']['error']}, ECE {found['selected']['ece']}, {seconds:.2f} s an epoch")
    return True


def main(arguments: Sequence[str]) -> int:
    """One run; the status is ``CUT_OFF`` if the time was too short for it."""
    parser = argparse.ArgumentParser(description="One reading of the second paper.")
    parser.add_argument("method", choices=list(READINGS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--model")
    parser.add_argument("--until", type=float, help="a time in seconds since 1970; the run then saves its state")
    parser.add_argument(
        "--plain", action="store_true", help="on a GPU, neither compile the network nor record the step"
    )
    own = parser.parse_args(arguments)
    torch.backends.cudnn.benchmark = True
    fast = torch.cuda.is_available() and not own.plain
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prepared = prepare("cifar10", own.data, own.seed, model=own.model, limit=own.limit).to(device)
    finished = run(own.method, prepared, own.out, epochs=own.epochs, until=own.until, compiled=fast, recorded=fast)
    return 0 if finished else CUT_OFF


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
