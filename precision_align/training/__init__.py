"""Tools on whole trainings: loss curves."""
