"""Recorded calls executed again in float64 and in their own dtype (torch)."""
