#!/usr/bin/env bash
# Benchmarks: one JSON object a line on stdout, progress on stderr.
#   tests/bench/run.sh [--quick] [--peers] [--list] [SUITE...]
# --peers installs llama.cpp (PyPI llama-cpp-python, built from source: about ten minutes, once) and
# measures it in the same run; AKV_PEERS_VENV names an environment that has it already.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"
cd "$AKV_ROOT"
for argument in "$@"; do
  [[ $argument == --list ]] && exec python3 tests/bench/run.py --list
done
deploy/install-deps.sh
[[ -f build/release/build.ninja ]] || step "configure" cmake --preset release
step "build" ninja -C build/release -j "$(build_jobs)" engine_bench transfer_bench prefill_node \
  decode_node
peers="${AKV_PEERS_VENV:-$AKV_CACHE/peers}"
for argument in "$@"; do
  if [[ $argument == --peers && ! -x $peers/bin/python ]]; then
    python3 -m venv "$peers"
    step "build llama.cpp" "$peers/bin/python" -m pip install --disable-pip-version-check \
      --no-binary llama-cpp-python -r deploy/requirements-peers.txt
  fi
done
exec "$AKV_VENV/bin/python" tests/bench/run.py --model "$AKV_DEFAULT_MODEL" \
  --peers-python "$peers/bin/python" "$@"
