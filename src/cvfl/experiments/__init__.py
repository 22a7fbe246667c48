"""Runs: configuration in, a run directory with metrics and a report out."""
