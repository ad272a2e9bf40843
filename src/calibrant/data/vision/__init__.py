"""Images: your own folders, and augmentation on the device."""

from calibrant.data.vision.augment import CropAndFlip, Mixup, Normalise
from calibrant.data.vision.distort import Distort
from calibrant.data.vision.images import Images, Parts, split
from calibrant.data.vision.own_images import load_folder

__all__ = [
    "CropAndFlip",
    "Distort",
    "Images",
    "Mixup",
    "Normalise",
    "Parts",
    "load_folder",
    "split",
]
