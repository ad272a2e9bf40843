"""Where numbers come from: the versions of packages and the machine; and values for JSON."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrant._version import __version__


def versions() -> dict[str, str]:
    """Versions of the packages that the numbers depend on."""
    import numpy
    import scipy
    import sklearn
    import torch

    return {
        "calibrant": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
    }


def machine() -> dict[str, Any]:
    """The machine that the numbers were measured on."""
    import torch

    return {
        "processor": _processor(),
        "cores": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
    }


def as_json(value: Any) -> Any:
    """A value for JSON: numbers that are not finite become null, NumPy and torch numbers plain ones."""
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy and torch, scalars and arrays
        return as_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
