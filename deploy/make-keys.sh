#!/usr/bin/env bash
# Makes what the daemons prove themselves by: a CURVE key pair that all nodes of one installation
# share, and API keys of clients. Nothing that exists is overwritten.
#
#   deploy/make-keys.sh DIR                   DIR/curve.key and DIR/api-keys, readable by the owner
#   deploy/make-keys.sh DIR --api-keys N      N API keys instead of one
#   deploy/make-keys.sh DIR --secret [NAME]   and prints a Kubernetes Secret of both, for
#                                             `kubectl apply -n NAMESPACE -f -` [anchorkv-keys]
#
# Nodes with a key each instead: one curve.key a node, and --curve-peers with all public keys.
# Needs python3 and libzmq (libzmq5).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  say "make-keys.sh: $*"
  exit 2
}

folder="" count=1 secret=""
while (($#)); do
  case "$1" in
    -h | --help)
      sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    --api-keys)
      [[ ${2:-} =~ ^[1-9][0-9]{0,3}$ ]] || usage "--api-keys: got \"${2:-}\", takes 1 to 9999"
      count="$2"
      shift
      ;;
    --secret)
      secret=anchorkv-keys
      if [[ ${2:-} =~ ^[a-z0-9][a-z0-9.-]*$ ]]; then
        secret="$2"
        shift
      fi
      ;;
    -*) usage "got \"$1\", takes DIR, --api-keys N and --secret [NAME]" ;;
    *) folder="$1" ;;
  esac
  shift
done
[[ -n $folder ]] || usage "takes a folder; --help says more"

umask 077
mkdir -p "$folder"
python3 - "$folder" "$count" "$secret" <<'PYTHON'
import base64, ctypes, ctypes.util, pathlib, secrets, sys

folder, count, secret = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def curve_pair():
    zmq = ctypes.CDLL(ctypes.util.find_library("zmq") or "libzmq.so.5")
    public, private = ctypes.create_string_buffer(41), ctypes.create_string_buffer(41)
    if zmq.zmq_curve_keypair(public, private) != 0:
        sys.exit("error: this libzmq has no CURVE")
    return f"public {public.value.decode()}\nsecret {private.value.decode()}\n"


def write(name, make):
    path = folder / name
    if path.exists():
        print(f"{path} is there already, left as it is", file=sys.stderr)
    else:
        path.write_text(make())
    return path.read_bytes()


files = {"curve.key": write("curve.key", curve_pair),
         "api-keys": write("api-keys", lambda: "".join(
             f"akv-{secrets.token_urlsafe(32)}\n" for _ in range(count)))}
if secret:
    print(f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: {secret}\ntype: Opaque\ndata:")
    for name, data in files.items():
        print(f"  {name}: {base64.b64encode(data).decode()}")
PYTHON
