"""The outer loss, and other criteria, on all validation data together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from calibrant.data.streams.batch import Batch, Tensors, tensors_of
from calibrant.models.functional.network import RecordingNetwork

if TYPE_CHECKING:
    from calibrant.bilevel.problem.bilevel import Bilevel
    from calibrant.bilevel.problem.population import Population
    from calibrant.bilevel.running.run import Run


def join(batches: Sequence[Batch], axes: Batch | None = None) -> Batch:
    """Several batches as one, without their dropout masks. ``axes`` are those of a population's stream.

    Inputs that differ in more than the number of samples, such as sentences padded batch by batch, become None. A loss
    of the head does not need them, because it gets the features.
    """

    def cat(name: str) -> Any:
        parts = [getattr(batch, name) for batch in batches]
        if parts[0] is None or (name == "inputs" and axes is None and not _of_one_shape(parts)):
            return None
        shift = 0 if axes is None else 1
        along = pytree.tree_map(lambda _: 0, parts[0]) if axes is None else getattr(axes, name)
        return pytree.tree_map(
            lambda axis, *leaves: torch.cat(leaves, 0 if axis is None else axis + shift), along, *parts
        )

    joined = {name: cat(name) for name in ("inputs", "targets", "index", "sample_weight")}
    return batches[0]._replace(noise={}, seed=None, **joined)


def _of_one_shape(parts: Sequence[Any]) -> bool:
    """Whether the tensors of all parts have the same shape except for the number of samples."""
    return len({tuple(t.shape[1:] for t in tensors_of(part)) for part in parts}) == 1


def val_batches(problem: Bilevel | Population) -> list[Batch]:
    """All validation data, in the batches of the first outer steps."""
    return [problem.val_batch(step) for step in range(1 if problem.val is None else problem.val.batches)]


def outer_loss_of_all(
    problem: Bilevel | Population, params: Tensor, buffers: Tensors, phi: Tensor, batches: Sequence[Batch]
) -> Tensor:
    """The outer loss of all predictions together, which is not the mean of the losses of batches.

    The network runs batch by batch. Then the loss is evaluated once, on what the network returned.
    """
    one, axes = problem.template, problem.outer_axes

    def network(params: Tensor, buffers: Tensors, batch: Batch, outputs: Sequence[Any] | None = None) -> Any:
        return RecordingNetwork(
            one.view, one.view.unflatten(params), buffers, answers=outputs, train=False, autocast=one.autocast
        )

    def outputs(params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> list[Any]:
        net = network(params, buffers, batch)
        one.outer_value(net, phi, batch)
        return net.answers

    def loss(answers: Sequence[Any], params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> Tensor:
        return one.outer_value(network(params, buffers, batch, answers), phi, batch)

    with torch.no_grad():
        of_each = [problem.each_member("outer", outputs)(params, buffers, phi, batch) for batch in batches]
        dim = 0 if axes is None else 1
        together = [
            pytree.tree_map(lambda *parts: torch.cat(parts, dim) if isinstance(parts[0], Tensor) else parts[0], *calls)
            for calls in zip(*of_each, strict=True)
        ]
        return problem.each_member("outer", loss)(together, params, buffers, phi, join(batches, axes))


@dataclass(frozen=True)
class pooled:
    """A criterion for :class:`EarlyStopping`: ``function(logits, labels)`` on all validation data together.

    Example: ``pooled(calibrant.losses.sece)``. The function returns one value; smaller is better.
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, run: Run) -> Tensor:
        values = []
        for member, problem in enumerate(run.problem.problems):
            state = run.state.member(member) if run.is_population else run.state
            net = problem.view.bind(state.params, state.buffers, train=False, autocast=problem.autocast)
            batches = val_batches(problem)
            with torch.no_grad():
                logits = torch.cat([net.logits(batch.inputs) for batch in batches])
                values.append(self.function(logits, torch.cat([batch.targets for batch in batches])))
        return torch.stack([v if isinstance(v, Tensor) else torch.tensor(v, device="cpu") for v in values])
