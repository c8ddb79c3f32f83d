"""Pairs records of two runs: names, wrappers, calls, steps."""
