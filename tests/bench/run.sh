#!/usr/bin/env bash
# Benchmarks: one JSON object a line on stdout, progress on stderr, results and plots in build/bench.
#   tests/bench/run.sh [--quick] [--peers] [--isa avx2] [--check] [--store] [--list] [SUITE...]
# --peers measures llama.cpp (PyPI llama-cpp-python, built from source: about ten minutes, once) in
# the same run. --isa avx2 holds ours, oneDNN and a second build of llama.cpp to AVX2. --check warns
# of ratios beyond 20% of those in ratios.json. Status 1 where a configuration gave no figure.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"
cd "$AKV_ROOT"
isa=native want_peers=0
previous=""
for argument in "$@"; do
  [[ $argument == --list ]] && exec python3 tests/bench/run.py --list
  [[ $argument == --peers ]] && want_peers=1
  [[ $previous == --isa || $argument == --isa=* ]] && [[ ${argument#--isa=} == avx2 ]] && isa=avx2
  previous="$argument"
done
deploy/install-deps.sh --eval
[[ -f build/release/build.ninja ]] || step "configure" cmake --preset release
step "build" ninja -C build/release -j "$(build_jobs)" engine_bench stages_bench codec_bench \
  transfer_bench prefill_node decode_node
peers="$AKV_CACHE/peers-$isa"
((want_peers)) && tests/bench/build_peer.sh "$isa" "$peers"
exec "$AKV_VENV/bin/python" tests/bench/run.py --model "$AKV_DEFAULT_MODEL" \
  --peers-python "$peers/bin/python" "$@"
