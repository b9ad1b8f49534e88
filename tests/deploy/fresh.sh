#!/usr/bin/env bash
# Proof that a stranger's machine suffices: a bare Debian 12 by debootstrap, a clone of this tree in
# it, then the two commands of the README as they are. What the lists of deploy/packages-*.txt and
# deploy/requirements-*.txt leave out is not there and fails here.
#
#   tests/deploy/fresh.sh configure [FOLDER]   installs what quickstart.sh installs, configures, and
#                                              builds the libraries that link every dependency
#   tests/deploy/fresh.sh quickstart [FOLDER]  deploy/quickstart.sh to its answer
#   tests/deploy/fresh.sh tests [FOLDER]       tests/run.sh, all that it installs and builds
#
# FOLDER is kept, and used again; without one a temporary folder is used. What is committed is what is
# cloned. Needs root, debootstrap, git, a Debian mirror and PyPI; AKV_CACHE/ccache is shared with the
# root where it is there. Exit status 77 (skipped) where root or debootstrap is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"
source "$AKV_ROOT/tests/deploy/debian_root.sh"

part="${1:-}"
case "$part" in
  configure | quickstart | tests) ;;
  *)
    sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    [[ $part == -h || $part == --help ]] && exit 0
    exit 2
    ;;
esac
debian_root "${2:-}" "$@"

clone() {
  rm -rf "$root/src"
  git clone --quiet --no-hardlinks "$AKV_ROOT" "$root/src"
  mkdir -p "$root/cache"
}

# Compiled objects of this machine serve the root: same compiler, same sources.
share_ccache() {
  local folder="${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ccache}"
  [[ -d $folder ]] || return 0
  mkdir -p "$root/ccache"
  mount --bind "$folder" "$root/ccache"
}

# inside COMMAND: in the clone, with an empty environment but for what leads to the registries.
inside() {
  local -a pass
  mapfile -t pass < <(env | grep -E '^(PIP_INDEX_URL|PIP_CERT|https?_proxy|no_proxy)=' || true)
  if [[ -f /etc/pip.conf ]]; then cp /etc/pip.conf "$root/etc/pip.conf"; fi
  chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 CI=1 \
    AKV_CACHE=/cache CCACHE_DIR=/ccache CCACHE_BASEDIR=/src CCACHE_NOHASHDIR=1 "${pass[@]}" \
    bash -euo pipefail -c "cd /src; $1"
}

step "bootstrap Debian 12" bootstrap
step "clone $(git -C "$AKV_ROOT" rev-parse --short HEAD)" clone
mount_places
share_ccache
case "$part" in
  configure)
    inside "deploy/install-deps.sh --build && cmake --preset release &&
      ninja -C build/release akv_common_{base,log,net,metrics,model} akv_{kernels,transport_ucx}"
    ;;
  quickstart) inside deploy/quickstart.sh ;;
  tests) inside tests/run.sh ;;
esac
say "packages in the root: $(chroot "$root" dpkg-query -W | wc -l), size: $(du -sxh "$root" | cut -f 1)"
