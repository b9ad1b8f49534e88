#!/usr/bin/env bash
# Proof without a container engine that the .deb stands alone: a bare Debian 12 by debootstrap, the
# package installed in it, both daemons run there as an ordinary user, a question answered.
#
#   tests/deploy/rootfs.sh [FOLDER]     FOLDER is kept; without one a temporary folder is used
#
# Needs root, debootstrap, a built release tree, the default model, and a Debian mirror (that of
# apt's own list). Exit status 77 (skipped) where root or debootstrap is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

if ((EUID != 0)) || ! command -v debootstrap >/dev/null; then
  say "skipped: needs root and debootstrap"
  exit 77
fi
# Mounts are this script's own and end with it.
if [[ -z ${AKV_ROOTFS_OWN_MOUNTS:-} ]]; then
  export AKV_ROOTFS_OWN_MOUNTS=1
  exec unshare --mount "${BASH_SOURCE[0]}" "$@"
fi
build="${AKV_BUILD_DIR:-$AKV_ROOT/build/release}"
port=18080
keep="${1:-}"
root="${keep:-$(mktemp -d "${TMPDIR:-/tmp}/akv-root.XXXXXX")}"
mkdir -p "$root"
chmod 755 "$root" # an ordinary user must pass it

finish() {
  local place
  for place in proc sys dev/shm; do umount -R "$root/$place" 2>/dev/null || true; done
  rm -rf "$root.deb"
  [[ -n $keep ]] || rm -rf --one-file-system "$root"
}
trap finish EXIT

package() {
  rm -rf "$root.deb"
  (cd "$build" && cpack -G DEB -B "$root.deb/stage" -D "CPACK_OUTPUT_FILE_PREFIX=$root.deb")
}

bootstrap() {
  local mirror
  mirror="$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list \
    /etc/apt/sources.list.d 2>/dev/null | head -n 1 | tr -d ' ' || true)"
  debootstrap --variant=minbase bookworm "$root" ${mirror:+"$mirror"}
  # apt in the new root goes where apt here goes.
  cp -rT /etc/apt/sources.list.d "$root/etc/apt/sources.list.d" 2>/dev/null || true
  cp -rT /etc/apt/apt.conf.d "$root/etc/apt/apt.conf.d" 2>/dev/null || true
  if [[ -f /etc/apt/apt.conf ]]; then cp /etc/apt/apt.conf "$root/etc/apt/"; fi
  cp /etc/resolv.conf "$root/etc/resolv.conf"
}

install_package() {
  cp "$root.deb"/*.deb "$root/tmp/anchorkv.deb"
  chroot "$root" apt-get update
  chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    /tmp/anchorkv.deb
  # Without systemd the package has no tool that makes its user.
  chroot "$root" getent passwd anchorkv >/dev/null ||
    chroot "$root" useradd --system --no-create-home anchorkv
  mkdir -p "$root/var/lib/anchorkv/models"
  cp "$AKV_DEFAULT_MODEL" "$root/var/lib/anchorkv/models/model.gguf"
}

# What any host has: UCX reads the network devices from /sys and maps memory in /dev/shm.
mount_places() {
  mount -t proc proc "$root/proc"
  mount --rbind --make-rslave /sys "$root/sys"
  mkdir -p "$root/dev/shm"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
}

# In the root, as the package's user, until `stop` is there; both daemons must end with 0.
serve() {
  # shellcheck disable=SC2016  # these variables are the inner shell's
  chroot "$root" setpriv --reuid=anchorkv --regid=anchorkv --clear-groups sh -eu -c '
    model=/var/lib/anchorkv/models/model.gguf
    prefill_node --model $model --control 127.0.0.1:17100 --metrics 127.0.0.1:0 &
    prefill=$!
    decode_node --model $model --http "127.0.0.1:$1" --prefill 127.0.0.1:17100 &
    decode=$!
    while [ ! -e /tmp/stop ]; do sleep 0.2; done
    kill -TERM $decode
    wait $decode
    kill -TERM $prefill
    wait $prefill' sh "$port"
}

ask() {
  local answer="" question='{"temperature":0,"max_tokens":12,
    "messages":[{"role":"user","content":"What is the capital of France?"}]}'
  serve &
  local daemons=$!
  for _ in $(seq 1 150); do
    answer="$(curl -s "http://127.0.0.1:$port/v1/chat/completions" -d "$question" || true)"
    [[ $answer == *choices* ]] && break
    sleep 0.2
  done
  touch "$root/tmp/stop"
  wait "$daemons"
  say "answer: $answer"
  [[ $answer == *Paris* ]]
}

step "make the .deb" package
step "bootstrap Debian 12" bootstrap
step "install the package in it" install_package
mount_places
ask
say "packages in the root: $(chroot "$root" dpkg-query -W | wc -l), size: $(du -sxh "$root" | cut -f 1)"
