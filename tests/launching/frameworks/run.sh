#!/usr/bin/env bash
# Real trainings of transformers, Accelerate, DeepSpeed and Megatron-core under capture, on the CPU (gloo).
# Usage: bash tests/launching/frameworks/run.sh [pytest arguments]; environment: VENV (default .venv-frameworks).
# Prints a report in Markdown; the committed one is reports/frameworks.md.
set -euo pipefail
cd "$(dirname "$0")/../../.."
VENV=${VENV:-.venv-frameworks}
[ -x "$VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$VENV"
"$VENV/bin/pip" install -q --disable-pip-version-check "torch>=2.5,<2.14" numpy h5py pytest jinja2 \
  transformers accelerate deepspeed megatron-core
log=$(mktemp)
status=0
FRAMEWORKS=1 PYTHONPATH=. "$VENV/bin/python" -m pytest -q -p no:cacheprovider tests/launching/frameworks "$@" -rA --durations=0 >"$log" || status=$?
cat "$log" >&2
echo "# Frameworks under capture"
echo
echo "\`bash tests/launching/frameworks/run.sh\` at commit $(git rev-parse --short HEAD), $(date -u +%F), on $(nproc) CPU cores:"
echo "losses and weights bit-equal with and without capture, steps and updates as the framework counts them, and one"
echo "injected fault named by \`compare\` at its module."
echo
echo "| test | outcome |"
echo "|---|---|"
sed -n 's/^\(PASSED\|FAILED\|SKIPPED\) .*::\(test_[^ ]*.*\)/| \2 | \1 |/p' "$log"
echo
echo "Versions: $("$VENV/bin/pip" list --format=freeze 2>/dev/null | grep -E '^(torch|numpy|transformers|accelerate|deepspeed|megatron-core)==' | tr '\n' ' ')"
exit "$status"
