"""Checks of one recorded training by itself: updates, gradients, scales, inputs, replicas, the first NaN."""
