"""Networks, and the pure form of any module."""

from calibrant.models.architectures.convolutional import (
    ResNet,
    SmallCNN,
    WideResNet,
    resnet18,
    resnet50,
    small_cnn,
    wide_resnet,
)
from calibrant.models.architectures.mlp import mlp
from calibrant.models.functional.functional_module import FunctionalModule
from calibrant.models.functional.network import Network

__all__ = [
    "FunctionalModule",
    "Network",
    "ResNet",
    "SmallCNN",
    "WideResNet",
    "mlp",
    "resnet18",
    "resnet50",
    "small_cnn",
    "wide_resnet",
]
