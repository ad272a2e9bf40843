"""Hypergradients, and the derivatives that they are made of."""
