"""Small tensors and parallel test workers: threads would only wait for one another."""

import torch

torch.set_num_threads(1)
