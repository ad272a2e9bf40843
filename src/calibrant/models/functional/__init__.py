"""Modules as pure functions, and what they need from torch."""
