#!/usr/bin/env bash
# Proof without a container engine that the .deb stands alone: a bare Debian 12 by debootstrap, the
# package installed and configured in it by deploy/README.md, both daemons run there as an ordinary
# user, a question answered.
#
#   tests/deploy/rootfs.sh [FOLDER]     FOLDER is kept; without one a temporary folder is used
#
# Needs root, debootstrap, a built release tree, the default model, and a Debian mirror (that of
# apt's own list). Exit status 77 (skipped) where root or debootstrap is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"
source "$AKV_ROOT/tests/deploy/debian_root.sh"

debian_root "${1:-}" "$@"
cd "$AKV_ROOT"
build="${AKV_BUILD_DIR:-$AKV_ROOT/build/release}"

package() {
  rm -rf "$root.deb"
  (cd "$build" && cpack -G DEB -B "$root.deb/stage" -D "CPACK_OUTPUT_FILE_PREFIX=$root.deb")
}

install_package() {
  cp "$root.deb"/*.deb "$root/tmp/anchorkv.deb"
  chroot "$root" apt-get update
  chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    /tmp/anchorkv.deb
  # Without systemd the package has no tool that makes its user.
  chroot "$root" getent passwd anchorkv >/dev/null ||
    chroot "$root" useradd --system --no-create-home anchorkv
}

# As deploy/README.md says, with the examples of the package; only the ports are other ones, so that
# nothing else of this machine is in the way.
configure() {
  local etc="$root/etc/anchorkv" examples="$root/usr/share/doc/anchorkv/examples" name
  mkdir -p "$etc" "$root/var/lib/anchorkv/models" # systemd-tmpfiles makes them where it is
  install -m 0644 "$AKV_DEFAULT_MODEL" "$root/var/lib/anchorkv/models/"
  for name in common.env prefill.env decode.env daemon.json; do
    sed 's/^\(AKV_.*:\)\([789][0-9]\{3\}\)$/\11\2/' "$examples/$name.example" >"$etc/$name"
  done
  echo 127.0.0.1:17100 >"$etc/prefill-peers"
  deploy/make-keys.sh "$root.deb/keys"
  install -m 0640 "$root.deb/keys/curve.key" "$root.deb/keys/api-keys" "$etc/"
  chroot "$root" chgrp anchorkv /etc/anchorkv/curve.key /etc/anchorkv/api-keys
}

# In the root, as the package's user and as the units start them, until `stop` is there; both daemons
# must end with 0.
serve() {
  # shellcheck disable=SC2016  # these variables are the inner shell's
  chroot "$root" setpriv --reuid=anchorkv --regid=anchorkv --clear-groups sh -eu -c '
    run() {
      set -a
      . /etc/anchorkv/common.env
      . "/etc/anchorkv/$1.env"
      set +a
      "${1}_node" --check
      exec "${1}_node"
    }
    (run prefill) & prefill=$!
    (run decode) & decode=$!
    while [ ! -e /tmp/stop ]; do sleep 0.2; done
    kill -TERM $decode
    wait $decode
    kill -TERM $prefill
    wait $prefill'
}

ask() {
  local answer="" question='{"temperature":0,"max_tokens":12,
    "messages":[{"role":"user","content":"What is the capital of France?"}]}'
  serve &
  local daemons=$!
  for _ in $(seq 1 150); do
    answer="$(curl -s "http://127.0.0.1:18080/v1/chat/completions" -d "$question" \
      -H "Authorization: Bearer $(head -n 1 "$root/etc/anchorkv/api-keys")" || true)"
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
step "configure it" configure
mount_places
ask
say "packages in the root: $(chroot "$root" dpkg-query -W | wc -l), size: $(du -sxh "$root" | cut -f 1)"
