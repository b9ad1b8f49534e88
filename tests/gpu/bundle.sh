#!/usr/bin/env bash
# Packs what tests/gpu/run.sh needs on a machine without the source tree: the GPU tests and
# benchmarks, both daemons, their libraries and a small model. Target gpu_bundle runs it.
# usage: tests/gpu/bundle.sh BUILD_DIR OUT.tar.gz
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="$1"
out="$2"
limit_bytes=$((64 << 20))
stage="$(mktemp -d)"
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/bin" "$stage/lib"
while read -r binary; do
  cp "$binary" "$stage/bin/"
done < <(find "$build" -type f -perm -u+x -not -path '*/CMakeFiles/*' \
  \( -name '*_test_gpu' -o -name 'cuda_*_bench' -o -name prefill_node -o -name decode_node \
  -o -name write_small_model \))
# UCX finds its modules beside its library.
ucx="$(ldd "$stage/bin/prefill_node" | awk '/libucp/ {print $3}')"
modules="$(dirname "$ucx")/ucx"
if [[ -d "$modules" ]]; then
  mkdir -p "$stage/lib/ucx"
  cp -L "$modules"/lib*.so.0 "$stage/lib/ucx/"
fi
# Everything but the parts of the C library, which fit only each other; the driver's library is the
# machine's too.
c_library='/(libc|libm|libmvec|libdl|librt|libpthread|libresolv|libutil|libanl|libcuda)\.so'
for binary in "$stage"/bin/* "$modules"/lib*.so.0; do
  [[ -e "$binary" ]] || continue
  ldd "$binary" | awk '$2 == "=>" && $3 ~ /^\// {print $3}'
done | sort -u | grep -vE "$c_library" | while read -r library; do
  cp -L "$library" "$stage/lib/"
done
# Loaded by name, by UCX and by cuDNN's frontend; a few hundred KiB.
cudart="$(sed -n 's/^CUDA_CUDART:FILEPATH=//p' "$build/CMakeCache.txt")"
if [[ -f "$cudart" ]]; then
  cp -L "$cudart" "$stage/lib/$(readelf -d "$cudart" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')"
fi
strip --strip-unneeded "$stage"/bin/* "$stage"/lib/*.so* 2>/dev/null || true
cp "$here/run.sh" "$here/pair.py" "$stage/"
tar -C "$stage" -czf "$out" .
bytes="$(stat -c %s "$out")"
echo "$out: $((bytes >> 20)) MiB, $(find "$stage/bin" -type f | wc -l) binaries"
((bytes < limit_bytes)) || { echo "the bundle is over 64 MiB" >&2; exit 1; }
