"""Experiments: commands of `python -m studies reproduce`, `sweep`, `ablate` and `bench`, and smaller studies, one script each."""

__all__ = ["bo4sc", "common", "guarantees", "hostile", "label_noise", "meta_reg", "networks", "tables"]
