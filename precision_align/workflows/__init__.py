"""Whole jobs made of the layers below: compare, lockstep, assertions."""
