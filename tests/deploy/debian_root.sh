# shellcheck shell=bash disable=SC2154
# A bare Debian 12 in a folder, for rootfs.sh and fresh.sh. Sourced after deploy/lib.sh.

# debian_root FOLDER SCRIPT'S ARGUMENTS…: sets `root` (FOLDER, kept, or a temporary folder where that
# is empty); what it mounts and makes is gone when the script ends. Skips without root or debootstrap;
# starts the script again where its mounts are its own.
debian_root() {
  keep="$1"
  shift
  if ((EUID != 0)) || ! command -v debootstrap >/dev/null; then
    say "skipped: needs root and debootstrap"
    exit 77
  fi
  if [[ -z ${AKV_ROOTFS_OWN_MOUNTS:-} ]]; then
    export AKV_ROOTFS_OWN_MOUNTS=1
    exec unshare --mount "${BASH_SOURCE[1]}" "$@"
  fi
  root="${keep:-$(mktemp -d "${TMPDIR:-/tmp}/akv-root.XXXXXX")}"
  mkdir -p "$root"
  chmod 755 "$root" # an ordinary user must pass it
  trap finish_root EXIT
}

finish_root() {
  local place
  for place in proc sys dev/shm ccache; do
    umount -R "$root/$place" 2>/dev/null || true
  done
  rm -rf "$root.deb"
  [[ -n $keep ]] || rm -rf --one-file-system "$root"
}

# Debian 12 itself and nothing more; apt in it goes where apt here goes.
bootstrap() {
  [[ ! -x $root/usr/bin/apt-get ]] || return 0
  local mirror
  mirror="$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list \
    /etc/apt/sources.list.d 2>/dev/null | head -n 1 | tr -d ' ' || true)"
  debootstrap --variant=minbase bookworm "$root" ${mirror:+"$mirror"}
  cp -rT /etc/apt/sources.list.d "$root/etc/apt/sources.list.d" 2>/dev/null || true
  cp -rT /etc/apt/apt.conf.d "$root/etc/apt/apt.conf.d" 2>/dev/null || true
  if [[ -f /etc/apt/apt.conf ]]; then cp /etc/apt/apt.conf "$root/etc/apt/"; fi
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  # Authorities that this machine trusts beside Debian's; ca-certificates takes them in.
  if [[ -d /usr/local/share/ca-certificates ]]; then
    cp -rT /usr/local/share/ca-certificates "$root/usr/local/share/ca-certificates"
  fi
}

# What any host has: UCX reads the network devices from /sys and maps memory in /dev/shm.
mount_places() {
  mount -t proc proc "$root/proc"
  mount --rbind --make-rslave /sys "$root/sys"
  mkdir -p "$root/dev/shm"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
}
