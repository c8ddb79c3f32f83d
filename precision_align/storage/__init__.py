"""Dumps on disk and in memory: one protocol, packed HDF5 by default."""
