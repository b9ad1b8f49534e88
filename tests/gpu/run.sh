#!/usr/bin/env bash
# Proves and times the GPU's part on one device, in at most five minutes after the build: kernel and
# engine tests, compute-sanitizer where it is installed, the pair end to end, the benchmarks.
# usage: tests/gpu/run.sh [BUILD_DIR]     in the tree; default build/release, target gpu_tests built
#        ./run.sh                         in an unpacked bundle (tests/gpu/bundle.sh)
# stdout: one JSON object a line ({"bench","config","metric","value","unit",...}); stderr: progress.
# Exit status: 0 all passed, 1 something failed, 77 no GPU that works (the reason is printed).
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
budget_s="${AKV_GPU_BUDGET_S:-300}"
begin=$SECONDS

say() { echo "[$((SECONDS - begin)) s] $*" >&2; }
left() { echo $((budget_s - (SECONDS - begin))); }

if [[ -d "$here/bin" ]]; then
  find_binary() { find "$here/bin" -maxdepth 1 -name "$1" -type f | sort; }
  export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
else
  build="${1:-$here/../../build/release}"
  find_binary() { find "$build" -name "$1" -type f -perm -u+x -not -path '*/CMakeFiles/*' | sort; }
fi
prefill="$(find_binary prefill_node | head -1)"
decode="$(find_binary decode_node | head -1)"
writer="$(find_binary write_small_model | head -1)"
for needed in "$prefill" "$decode" "$writer"; do
  [[ -n "$needed" ]] || { say "not built: prefill_node, decode_node, target gpu_tests"; exit 1; }
done

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
model="${AKV_MODEL_FILE:-$here/model.gguf}"
if [[ ! -f "$model" ]]; then
  model="$work/small.gguf"
  "$writer" "$model" || exit 1
fi
if ! reason="$("$prefill" --model "$model" --device cuda --check 2>&1)"; then
  say "no device: $reason"
  exit 77
fi
say "device: $(nvidia-smi -L 2>/dev/null | head -1)"

failed=()
passed=0
for test in $(find_binary '*_test_gpu'); do
  limit=$(($(left) - 60))
  ((limit > 10)) || { failed+=("$(basename "$test") (no time left)"); continue; }
  if timeout "$limit" "$test" --gtest_brief=1 >"$work/log" 2>&1; then
    passed=$((passed + 1))
    say "ok   $(basename "$test")"
  else
    failed+=("$(basename "$test")")
    say "FAIL $(basename "$test")"
    tail -40 "$work/log" >&2
  fi
done

sanitizer="$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)"
engines="$(find_binary engines_test_gpu | head -1)"
if [[ -x "$sanitizer" && -n "$engines" ]] && (($(left) > 120)); then
  if timeout 60 "$sanitizer" --error-exitcode 9 "$engines" \
    --gtest_filter='Engines.PrefillGivesTheCpusLogits:Engines.ReplayedGraphsEqualEagerSteps' \
    >"$work/log" 2>&1; then
    say "ok   compute-sanitizer"
  elif [[ $? == 124 ]]; then
    say "cut  compute-sanitizer after 60 s"
  else
    failed+=(compute-sanitizer)
    tail -40 "$work/log" >&2
  fi
else
  say "no compute-sanitizer"
fi

if timeout "$(($(left) > 90 ? 80 : 30))" python3 "$here/pair.py" "$prefill" "$decode" "$model"; then
  say "ok   pair"
else
  failed+=(pair)
fi

for bench in $(find_binary 'cuda_*_bench'); do
  limit=$(left)
  ((limit > 5)) || { say "no time left for $(basename "$bench")"; continue; }
  timeout "$limit" "$bench" || failed+=("$(basename "$bench")")
done

printf '{"bench":"gpu","config":"all","metric":"tests passed","value":%d,"unit":"binaries"}\n' "$passed"
if ((${#failed[@]})); then
  say "failed: ${failed[*]}"
  exit 1
fi
say "all passed"
