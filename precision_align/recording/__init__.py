"""Sessions that record a training run: taps, staging, the optimizer (torch)."""
