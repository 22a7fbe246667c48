"""A trained model, used: bundles of a run, scores of new rows, models for other systems."""
