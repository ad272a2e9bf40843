"""Images: published data sets and your own folders, augmentation on the device, and shifted test images."""

from calibrant.data.vision.augment import CropAndFlip, Mixup, Normalise
from calibrant.data.vision.distort import Distort
from calibrant.data.vision.images import Images, Parts, download_missing, load_images, load_parts, split
from calibrant.data.vision.noisy import NOISY_LABELS, load_noisy_labels
from calibrant.data.vision.own_images import load_folder
from calibrant.data.vision.shifts import SHIFTS, Shift, brightness, contrast, gaussian_blur, gaussian_noise
from calibrant.data.vision.sources import SOURCES

__all__ = [
    "NOISY_LABELS",
    "SHIFTS",
    "SOURCES",
    "CropAndFlip",
    "Distort",
    "Images",
    "Mixup",
    "Normalise",
    "Parts",
    "Shift",
    "brightness",
    "contrast",
    "download_missing",
    "gaussian_blur",
    "gaussian_noise",
    "load_folder",
    "load_images",
    "load_noisy_labels",
    "load_parts",
    "split",
]
