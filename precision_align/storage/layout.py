"""What a dump file looks like: names, column types, flags. Version 1.

Version 0 had BLAKE2b hashes, sketches of kind 0, and neither `digest_kind` nor `sketch_kind`.

Everything here is fixed once written: a change means a new ``SCHEMA_VERSION`` and a reader for the old one.
"""

from __future__ import annotations

import re

import numpy as np

from precision_align.core.terms import Pass, Tier

FORMAT = "precision-align dump"
MAX_DIMS = 8
ALIGNMENT = 64

RANK_FOLDER = re.compile(r"rank(\d{5,})")
PART_FILE = re.compile(r"step(-?\d{7,})-(-?\d{7,})\.part(\d{3,})\.h5")
UNFINISHED = ".tmp"
SERIES_FILE = "series.jsonl"
RUN_FILE = "run.json"

TIERS = tuple(Tier)
PASSES = tuple(Pass)

REQUIRES_GRAD = 1
HAS_DIGEST = 2
HAS_STATISTICS = 4
HAS_PAYLOAD = 8
HAS_SKETCH = 16
HAS_SAMPLE = 32  # then `sketch_offset` and `sketch_length` are of the sample, which stands among the sketches

# One row a tensor. `word`: NumPy dtype of the raw words; `shape`, `stride` in elements, the first `ndim` of them valid
# (more than 8 dimensions: see `wide`); `offset`, `stored`: where the payload lies in `blob`, in bytes; `expanded`: bit
# d is set where dimension d is stored once and repeats; `sketch_offset`, `sketch_length`: in elements of `sketches`.
# `layout`, `device`, `reason`, `extra`, `dtype_name`, `wide` are line numbers of `strings`.
INDEX = np.dtype(
    [
        ("step", "<i8"),
        ("micro", "<i8"),
        ("rank", "<i8"),
        ("order", "<i8"),
        ("dtype", "<u2"),
        ("word", "S4"),
        ("tier", "u1"),
        ("flags", "<u2"),
        ("ndim", "<u2"),
        ("expanded", "u1"),
        ("shape", "<i8", (MAX_DIMS,)),
        ("stride", "<i8", (MAX_DIMS,)),
        ("offset", "<i8"),
        ("stored", "<i8"),
        ("nbytes", "<i8"),
        ("digest", "u1", (16,)),
        ("numel", "<i8"),
        ("nan", "<i8"),
        ("inf", "<i8"),
        ("zero", "<i8"),
        ("subnormal", "<i8"),
        ("minimum", "<f8"),
        ("maximum", "<f8"),
        ("mean", "<f8"),
        ("l2", "<f8"),
        ("sketch_offset", "<i8"),
        ("sketch_length", "<u4"),
        ("dtype_name", "<u4"),
        ("layout", "<u4"),
        ("device", "<u4"),
        ("reason", "<u4"),
        ("extra", "<u4"),
        ("wide", "<u4"),
    ]
)

# One row a module call; the columns typed u4 are line numbers of `strings`.
CALLS = np.dtype(
    [
        ("step", "<i8"),
        ("micro", "<i8"),
        ("rank", "<i8"),
        ("scope", "<u4"),
        ("call", "<i8"),
        ("pass_", "u1"),
        ("kind", "<u4"),
        ("identity", "<i8"),
        ("parent", "<i8"),
        ("enter", "<i8"),
        ("exit", "<i8"),
        ("leaf", "?"),
        ("training", "?"),
        ("grad_enabled", "?"),
        ("arguments", "<u4"),
        ("output", "<u4"),
        ("attributes", "<u4"),
        ("autocast", "<u4"),
        ("modes", "<u4"),
        ("source", "<u4"),
        ("error", "<u4"),
    ]
)

SERIES = np.dtype([("step", "<i8"), ("micro", "<i8"), ("name", "<u4"), ("value", "<f8")])

# Of the tables below, those with columns.
ROWS = {"index": INDEX, "calls": CALLS, "series": SERIES}

# The tables of a file whose hashes stand in its root attribute `digests`; payloads have theirs in the index.
TABLES = ("info", "strings", "keys", "index", "calls", "series", "sketches")


def name_rank(rank: int) -> str:
    """The folder of one rank."""
    return f"rank{rank:05d}"


def name_part(first: int, last: int, part: int) -> str:
    """The file of one part, from its first and last step."""
    return f"step{first:08d}-{last:08d}.part{part:03d}.h5"


def name_blob(itemsize: int) -> str:
    """The dataset of compressed payloads whose words have ``itemsize`` bytes: a codec shuffles the bytes of a word."""
    return f"blob{itemsize}"
