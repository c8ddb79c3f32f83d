#!/usr/bin/env bash
# Sets up a fresh machine and runs every check: format, lint, types, layers, Python floor, tests with branch coverage.
# Usage: bash tests/run.sh [pytest arguments]; environment: VENV (default .venv-test), PYTHON (default python3).
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv-test}
PYTHON=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1 TORCH_DEVICE_BACKEND_AUTOLOAD=0

step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

step "chromium, C compiler, Python's headers"
missing=
command -v chromium >/dev/null || missing="chromium"
command -v cc >/dev/null || missing="$missing gcc libc6-dev"
"$PYTHON" -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null ||
  missing="$missing python3-dev"
if [ -n "$missing" ]; then
  if [ "$(id -u)" = 0 ]; then SUDO=; else SUDO=sudo; fi
  $SUDO apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $SUDO apt-get install -y -qq $missing >/dev/null
fi

step "python packages"
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
# The range lets pip take a CPU build that is at hand; newer ones bring gigabytes of CUDA along.
"$VENV/bin/pip" install -q "torch>=2.5,<2.14" -e ".[test]"
PATH="$PWD/$VENV/bin:$PATH"

step "torch_npu over a stub of CANN, in the background"
log=$(mktemp)
python tests/npu/run.py >"$log" 2>&1 &
npu=$!
trap 'kill "$npu" 2>/dev/null || true; rm -f "$log"' EXIT

step "format, lint, types, layers, Python floor"
ruff format --check --quiet .
ruff check --quiet .
mypy
lint-imports --no-cache >/dev/null || lint-imports --no-cache
vermin --no-tips --quiet --target=3.9- --violations \
  precision_align/core precision_align/numerics precision_align/storage precision_align/devices precision_align/replay \
  precision_align/recording precision_align/doctor precision_align/testing precision_align/pytest_plugin.py \
  precision_align/auto.py \
  precision_align/library/{composed,evidence,goldens,values,runner}.py \
  precision_align/cli/{capture,collect,configuration,launchers,unattended,starts,pack,progress,unpack,doctor,case,golden}.py

step "what torch_npu over a stub of CANN said" # before the benchmarks, which measure time
status=0
wait "$npu" || status=$?
cat "$log"
[ "$status" = 0 ]

step "samples of the benchmarks"
python tests/benchmarks/startup.py 2
for sample in diff store scan simulated_device; do
  python "tests/benchmarks/$sample.py" --quick
done

step "tests"
cover="--cov --cov-report=term:skip-covered"
# Coverage takes half their time again of tests such as localization (81 s for 53). Where getting here took so long, all of
# it would take over 15 minutes.
if [ "$SECONDS" -gt 160 ]; then # 129 s where all took 10 minutes, 191 s where it took 18
  cover=
  echo "a slow machine: coverage is not measured"
fi
pytest -n 2 --dist worksteal $cover --durations=10 "$@"
