"""Recordings of other tools as one side of a comparison: msprobe dumps, .npy, .npz, .pt and safetensors files.

Nothing here runs code that a file brings: .npy files are read without pickle, .pt files by an unpickler that knows
tensors and plain containers only, and no torch is needed.
"""
