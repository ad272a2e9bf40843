"""Published sets of images, their noisy labels, and shifted test images."""

from studies.images.noisy import NOISY_LABELS, load_noisy_labels
from studies.images.published import SOURCES, download_missing, load_parts
from studies.images.shifts import SHIFTS

__all__ = ["NOISY_LABELS", "SHIFTS", "SOURCES", "download_missing", "load_noisy_labels", "load_parts"]
