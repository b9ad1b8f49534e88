#!/usr/bin/env bash
# Builds llama.cpp (llama-cpp-python, from source) into a Python environment:
#   tests/bench/build_peer.sh native|avx2 DIRECTORY
# native is this machine's instruction set without AMX: with it, llama.cpp 0.3.36 ends with a
# segmentation fault in its repacked weights, and without repacked weights it would be slower than
# it is. AVX-512, VNNI and BF16 stay on. avx2 is AVX2, FMA, F16C and BMI2, the set of a desktop CPU.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"
cd "$AKV_ROOT"
isa="$1" directory="$2"
[[ -e $directory/built ]] && exit 0
switches=(-DLLAVA_BUILD=OFF)
case "$isa" in
  native)
    no_amx="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    switches+=(-DGGML_NATIVE=ON "-DCMAKE_C_FLAGS='$no_amx'" "-DCMAKE_CXX_FLAGS='$no_amx'")
    ;;
  avx2)
    switches+=(-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON
      -DGGML_BMI2=ON -DGGML_AVX512=OFF)
    ;;
  *) die "build_peer.sh: got \"$isa\", takes native or avx2" ;;
esac
rm -rf "$directory"
"$AKV_VENV/bin/python" -m venv "$directory"
export CMAKE_ARGS="${switches[*]}" CMAKE_BUILD_PARALLEL_LEVEL
CMAKE_BUILD_PARALLEL_LEVEL="$(build_jobs)"
step "build llama.cpp ($isa)" "$directory/bin/python" -m pip install --disable-pip-version-check \
  --no-deps --require-hashes --no-binary llama-cpp-python --no-cache-dir --verbose \
  -r deploy/requirements-peers.txt
echo "$CMAKE_ARGS" >"$directory/built"
