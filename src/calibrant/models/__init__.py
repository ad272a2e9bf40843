"""Networks, and the pure form of any module."""

from calibrant.models.cnn import SmallCNN, small_cnn
from calibrant.models.functional import FunctionalModule
from calibrant.models.mlp import mlp
from calibrant.models.network import Network
from calibrant.models.resnet import ResNet, resnet18, resnet50
from calibrant.models.wide_resnet import WideResNet, wide_resnet

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
