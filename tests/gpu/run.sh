#!/usr/bin/env bash
# Proves and times the GPU's part on one device, in at most five minutes after the build: kernel and
# engine tests, the pair end to end, the benchmarks, compute-sanitizer where it is installed.
# usage: tests/gpu/run.sh [BUILD_DIR]     in the tree; default build/release, target gpu_tests built
#        ./run.sh                         in an unpacked bundle (tests/gpu/bundle.sh)
# stdout: one JSON object a line ({"bench","config","metric","value","unit",...}); a part that fails
# has "error" instead of a value, a peer that is not on this machine "missing". stderr: progress.
# Exit status: 0 all passed, 1 something failed, 77 no GPU that works (the reason is printed).
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
budget_s="${AKV_GPU_BUDGET_S:-300}"
begin=$SECONDS

say() { echo "[$((SECONDS - begin)) s] $*" >&2; }
left() { echo $((budget_s - (SECONDS - begin))); }

# Libraries that Python packages bring (cuDNN, cuBLAS, NCCL, the CUDA runtime), as a search path.
package_libraries() {
  python3 - 2>/dev/null <<'PYTHON'
import glob, site, sysconfig
roots = sorted({sysconfig.get_paths()["purelib"], *site.getsitepackages()})
print(":".join(path for root in roots for path in sorted(glob.glob(root + "/nvidia/*/lib"))))
PYTHON
}

if [[ -d "$here/bin" ]]; then
  find_binary() { find "$here/bin" -maxdepth 1 -name "$1" -type f | sort; }
  libraries="$here/lib"
else
  build="${1:-$here/../../build/release}"
  find_binary() { find "$build" -name "$1" -type f -perm -u+x -not -path '*/CMakeFiles/*' | sort; }
  libraries=""
fi
for more in "${LD_LIBRARY_PATH:-}" /usr/local/cuda/lib64 "$(package_libraries)"; do
  libraries="$libraries${libraries:+${more:+:}}$more"
done
# Only what is ours sees them: the machine's own programs keep their libraries.
ours=(env "LD_LIBRARY_PATH=$libraries")

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
  "${ours[@]}" "$writer" "$model" || exit 1
fi
if ! reason="$("${ours[@]}" "$prefill" --model "$model" --device cuda --check 2>&1)"; then
  say "no device: $reason"
  exit 77
fi
say "device: $(nvidia-smi -L 2>/dev/null | head -1)"

failed=()
passed=0
# NAME STATUS: a JSON line and a word.
fails() {
  local why="exit status $2"
  (($2 == 124)) && why="out of time"
  failed+=("$1")
  printf '{"bench":"gpu","config":"all","metric":"%s","error":"%s"}\n' "$1" "$why"
  say "FAIL $1: $why"
}

# limited RESERVE LIMIT COMMAND…: within LIMIT seconds, and RESERVE of the budget stay; status 124
# where that was not enough.
limited() {
  local limit=$(($(left) - $1))
  ((limit > $2)) && limit=$2
  ((limit > 5)) || return 124
  timeout "$limit" "${@:3}"
}

for test in $(find_binary '*_test_gpu'); do
  name="$(basename "$test")"
  if limited 160 60 "${ours[@]}" "$test" --gtest_brief=1 >"$work/log" 2>&1; then
    passed=$((passed + 1))
    say "ok   $name"
  else
    fails "$name" $?
    tail -40 "$work/log" >&2
  fi
done

if limited 120 60 env "AKV_LIBRARY_PATH=$libraries" \
  python3 "$here/pair.py" "$prefill" "$decode" "$model"; then
  say "ok   pair"
else
  fails pair $?
fi

mapfile -t benches < <(find_binary 'cuda_*_bench')
for i in "${!benches[@]}"; do
  name="$(basename "${benches[i]}")"
  after=$((${#benches[@]} - i - 1)) # each keeps 15 seconds
  if limited $((5 + 15 * after)) 120 "${ours[@]}" "${benches[i]}"; then
    say "ok   $name"
  else
    fails "$name" $?
  fi
done

sanitizer="$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)"
engines="$(find_binary engines_test_gpu | head -1)"
if [[ -x "$sanitizer" && -n "$engines" ]]; then
  limited 2 60 "${ours[@]}" "$sanitizer" --error-exitcode 9 "$engines" \
    --gtest_filter='Engines.PrefillGivesTheCpusLogits:Engines.ReplayedGraphsEqualEagerSteps' \
    >"$work/log" 2>&1
  status=$?
  case $status in
    0) say "ok   compute-sanitizer" ;;
    124) say "cut  compute-sanitizer: out of time" ;;
    *)
      fails compute-sanitizer $status
      tail -40 "$work/log" >&2
      ;;
  esac
else
  say "no compute-sanitizer"
fi

printf '{"bench":"gpu","config":"all","metric":"tests passed","value":%d,"unit":"binaries"}\n' "$passed"
if ((${#failed[@]})); then
  say "failed: ${failed[*]}"
  exit 1
fi
say "all passed"
