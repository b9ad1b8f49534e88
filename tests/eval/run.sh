#!/usr/bin/env bash
# Quality tables: what a compressed state costs. A text table on stdout; results.json and plots in a
# folder that the last line names.
#   tests/eval/run.sh                every suite
#   tests/eval/run.sh golden         the two golden prompts of 7,500 tokens
#   tests/eval/run.sh lengths        synthetic needles at 1,000 to 6,000 tokens
#   tests/eval/run.sh --list
# AKV_EVAL_MODEL takes another model, AKV_EVAL_OUT another folder.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"
cd "$AKV_ROOT"
deploy/install-deps.sh --eval
[[ -f build/release/build.ninja ]] || step "configure" cmake --preset release
step "build" ninja -C build/release -j "$(build_jobs)" fidelity
exec "$AKV_VENV/bin/python" tests/eval/run.py \
  --model "${AKV_EVAL_MODEL:-$AKV_DEFAULT_MODEL}" \
  --out "${AKV_EVAL_OUT:-$AKV_ROOT/build/eval}" "$@"
