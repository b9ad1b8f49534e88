# shellcheck shell=bash disable=SC2034
# Shared by the scripts of deploy/, tests/ and .ci/: where things are, and steps that show their
# progress. Sourced by bash with `set -euo pipefail`; defines names only.

AKV_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
AKV_CACHE="${AKV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/akv}"
export AKV_CACHE
AKV_VENV="$AKV_CACHE/venv"
AKV_MODEL_NAME=SmolLM2-135M-Instruct.Q4_1.gguf
AKV_MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
AKV_DEFAULT_MODEL="$AKV_CACHE/models/$AKV_MODEL_NAME"

# Objects of one checkout serve another.
export CCACHE_BASEDIR="$AKV_ROOT" CCACHE_NOHASHDIR=1

say() { printf '%s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}

# step TITLE COMMAND…: runs the command with its output in a log file; on a terminal shows the
# seconds and, for ninja, the last "[done/all]". Prints one line at the end, and the end of the log
# on failure. Returns the command's status.
step() {
  local title="$1" log begin pid status=0 shown
  shift
  log="$(mktemp "${TMPDIR:-/tmp}/akv-step.XXXXXX")"
  begin=$SECONDS
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  local next=2 pause=15
  [[ -n ${CI:-} ]] && pause=60
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if ((SECONDS - begin >= next)); then
      shown="$(tail -c 4096 "$log" | grep -oE '^\[[0-9]+/[0-9]+\]' | tail -n 1 || true)"
      if [[ -t 2 ]]; then
        printf '\r%s … %ds %s ' "$title" $((SECONDS - begin)) "$shown" >&2
        next=$((SECONDS - begin + 1))
      else
        say "$title … $((SECONDS - begin))s $shown"
        next=$((SECONDS - begin + pause))
      fi
    fi
  done
  wait "$pid" || status=$?
  [[ -t 2 ]] && printf '\r\033[K' >&2
  if ((status == 0)); then
    say "$title: $((SECONDS - begin))s"
  else
    say "$title: FAILED (status $status) after $((SECONDS - begin))s; the end of its output:"
    tail -n 40 "$log" >&2
  fi
  rm -f "$log"
  return "$status"
}

# Jobs for a build: CPUs, or fewer where memory is short (a translation unit takes up to 1.5 GiB).
build_jobs() {
  local cpus kib
  cpus="$(nproc)"
  kib="$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)"
  local by_memory=$((kib / 1572864))
  ((by_memory < 1)) && by_memory=1
  echo $((cpus < by_memory ? cpus : by_memory))
}
