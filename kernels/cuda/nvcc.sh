#!/usr/bin/env bash
# Compiler launcher: runs nvcc (behind ccache where it is given), and keeps what ptxas says of each
# kernel in OBJECT.ptxas, where .ci/cuda reads it, instead of printing it with every build.
# usage: nvcc.sh [CCACHE] NVCC ARGUMENTS…
set -uo pipefail
object=""
previous=""
for argument in "$@"; do
  [[ $previous == -o ]] && object="$argument"
  previous="$argument"
done
# ccache's preprocessor mode sees one architecture's text only; depend mode hashes the files.
export CCACHE_DEPEND=1
if [[ -z $object || $object == *.d ]]; then exec "$@"; fi
said="$(mktemp)"
trap 'rm -f "$said"' EXIT
"$@" 2>"$said"
status=$?
if ((status == 0)); then
  grep -E '^(ptxas info|\s+[0-9]+ bytes stack frame)' "$said" >"$object.ptxas"
fi
grep -vE '^(ptxas info|\s+[0-9]+ bytes stack frame)' "$said" >&2
exit "$status"
