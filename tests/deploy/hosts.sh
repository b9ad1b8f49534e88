#!/usr/bin/env bash
# Several hosts on one machine: network namespaces on a bridge, their links shaped by tbf, the daemons
# in them with CURVE, peers by DNS names (a name server of the test) or by file. Nothing of the
# machine's own network is touched; all is gone when the script ends.
#
#   tests/deploy/hosts.sh [--peers dns|file]   all of it, small
#   … links    transfer and first tokens, dense and compressed, on links of 0.1, 1 and 10 Gbit/s
#              [--tokens 1300] [--gbit 0.1,1,10] [--delay-ms 0]
#   … faults   the name server silent; a link cut for 2 s, and for good, in the middle of an answer
#   … roll     each daemon drained and restarted under load, then a decode host more [--rate 0.5]
#              [--tokens 600] [--seconds 60] [--queue-tokens N] [--patience 300]
#
# Latency is the transport's own delay of each record (netem is not in every kernel). --queue-tokens
# bounds the queues of the front doors; a client that gets 429 or 503 asks again until its patience
# (seconds) ends. The figures of the project: `links --tokens 7500 --delay-ms 0,20` and `roll --rate 4
# --tokens 1300 --seconds 180`.
# Exit status 1 where a request was lost or wrong; 77 (skipped) where namespaces are not allowed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,20s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 0
fi
for tool in ip tc unshare; do
  command -v "$tool" >/dev/null || { say "skipped: no $tool here"; exit 77; }
done
own=(unshare --net --mount)
((EUID == 0)) || own=(unshare --user --map-root-user --net --mount)
"${own[@]}" sh -c 'mount -t tmpfs none /run && ip link add br0 type bridge' 2>/dev/null ||
  { say "skipped: network namespaces are not allowed here"; exit 77; }
exec "${own[@]}" "$AKV_VENV/bin/python" -B "$AKV_ROOT/tests/deploy/hosts.py" "$@"
