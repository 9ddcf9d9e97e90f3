"""Measured numbers: timing on a GPU, and results kept with their provenance."""
