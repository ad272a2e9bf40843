"""What a solved problem has learned: the weights of its samples, and its other outer variables by name."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calibrant.bilevel import L2, LabelNoise, LabelSmoothing, OuterVariables, SampleWeights, Solution, WeightNetwork
from calibrant.data.batch import Batch
from calibrant.data.loaders import LoaderStream
from calibrant.data.streams import TensorStream


@torch.no_grad()
def weights_at(phi: Tensor, solution: Solution) -> Tensor:
    """The weight of every training sample for a given φ of a solved problem."""
    stream = solution.problem.train
    assert isinstance(stream, TensorStream | LoaderStream)
    whole = stream.whole
    return solution.problem.outer_view.run(phi.to(solution.phi), lambda outer: _weights(outer, whole)).cpu()


def suspicion(weights: Tensor, probs: Tensor, labels: Tensor) -> Tensor:
    """How wrong a training label looks, 0 to 1: ``1 − w_i·p(y_i | x_i)``.

    A label is trusted if training kept its weight *and* the trained network agrees with it.
    """
    return 1 - weights.double() * probs.double().gather(1, labels.cpu().unsqueeze(1)).squeeze(1)


def variables_of(outer: nn.Module) -> list[nn.Module]:
    """The single variables of an outer module, in order."""
    return list(outer.parts) if isinstance(outer, OuterVariables) else [outer]


def _weights(outer: nn.Module, whole: Batch) -> Tensor:
    """The weight of every training sample."""
    dtype = next(outer.parameters()).dtype
    (part,) = (part for part in variables_of(outer) if isinstance(part, SampleWeights | WeightNetwork))
    return part.weigh(torch.ones(len(whole.targets), device=whole.targets.device, dtype=dtype), whole)


def read_outer(outer: nn.Module) -> dict[str, Tensor]:
    """The outer variables other than the weights, by name, on their natural scale."""
    found = {}
    for part in variables_of(outer):
        if isinstance(part, L2):
            found["l2"] = part.coefficients().cpu()
        elif isinstance(part, LabelSmoothing):
            found["label_smoothing"] = part.smoothing().cpu()
        elif isinstance(part, LabelNoise):
            found["label_noise"] = part.rate().cpu()
    return found
