"""Experiments: each command of `python -m studies reproduce`, `sweep`, `ablate` and `bench` is one function here."""

__all__ = ["bo4sc", "common", "guarantees", "hostile", "label_noise", "meta_reg", "networks", "tables"]
