#!/usr/bin/env bash
# The live half on the oldest torch it supports: torch 2.1.2 with NumPy 1. Usage: bash tests/oldest_torch.sh [pytest arguments]
# Environment: VENV (default .venv-oldest), PYTHON (default python3; any from 3.9 to 3.11).
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv-oldest}
[ -x "$VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$VENV"
"$VENV/bin/pip" install -q --disable-pip-version-check "torch==2.1.2" "numpy<2" h5py pytest hypothesis
PYTHONPATH=. "$VENV/bin/python" -m pytest -q -p no:cacheprovider tests/core tests/numerics tests/storage tests/recording tests/replay "$@"
