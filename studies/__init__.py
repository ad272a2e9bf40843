"""Experiments: the commands `python -m studies reproduce`, `sweep`, `ablate` and `bench`, and scripts.

Smaller studies are one script each: `studies.guarantees`, `hostile`, `label_noise` and `networks`.
"""

__all__ = ["bo4sc", "common", "guarantees", "hostile", "label_noise", "meta_reg", "networks", "tables"]
