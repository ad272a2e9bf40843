"""Images: your own folders, and augmentation on the device."""

from calibrant.data.vision.augment import CropAndFlip, Mixup, Normalise
from calibrant.data.vision.distort import Distort
from calibrant.data.vision.images import Images, Parts, load_folder, split

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
