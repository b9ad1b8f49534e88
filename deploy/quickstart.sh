#!/usr/bin/env bash
# From a clone to an answer: installs what is missing, builds, starts prefill_node and decode_node
# as two processes on 127.0.0.1, asks a question about a document of about 7,500 tokens, streams the
# answer, prints what crossed between the two, and stops both.
#
#   --serve          leave the daemons running; print the URL and a curl line
#   --prompt FILE    a document of yours (default: deploy/quickstart/document.txt)
#   --question TEXT  what to ask about it
#   --model FILE     a GGUF model (default: SmolLM2-135M-Instruct, fetched)
#   --theta X        share of the dense KV bytes to keep, in (0, 1] (default: auto; 0.05 is 20x)
#   --port N         HTTP port (default: a free one)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$AKV_ROOT"

prompt="$AKV_ROOT/deploy/quickstart/document.txt"
question="What is the special magic number for harbor?"
model="$AKV_DEFAULT_MODEL"
theta=auto
port=0
serve=0

usage_error() {
  say "quickstart.sh: $1; --help lists the options"
  exit 2
}

while (($#)); do
  case "$1" in
    --serve) serve=1 ;;
    -h | --help)
      sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    --prompt | --question | --model | --theta | --port)
      (($# >= 2)) || usage_error "$1 takes a value"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    *) usage_error "got \"$1\"" ;;
  esac
  shift
done
[[ -r $prompt ]] || usage_error "--prompt: cannot read \"$prompt\""
[[ $port =~ ^[0-9]+$ ]] && ((port <= 65535)) || usage_error "--port: got \"$port\", takes 0..65535"
[[ $model == "$AKV_DEFAULT_MODEL" || -r $model ]] || usage_error "--model: cannot read \"$model\""
[[ $theta == auto || $theta =~ ^(0?\.[0-9]+|1(\.0*)?)$ ]] ||
  usage_error "--theta: got \"$theta\", takes auto or a number in (0, 1]"
prompt="$(realpath "$prompt")"
model="$(realpath -m "$model")"

prefill_bin=build/release/prefill_node/prefill_node
decode_bin=build/release/decode_node/decode_node
run_dir="$AKV_CACHE/quickstart"
prefill_pid=
decode_pid=

# Stops what still runs; called at every exit, also by Ctrl-C. The first SIGTERM lets requests end,
# the second does not.
stop_daemons() {
  local pid attempt
  for attempt in 1 2; do
    for pid in $decode_pid $prefill_pid; do kill -TERM "$pid" 2>/dev/null || true; done
    for _ in $(seq 100); do
      kill -0 $decode_pid $prefill_pid 2>/dev/null || break 2
      sleep 0.1
    done
  done
  for pid in $decode_pid $prefill_pid; do wait "$pid" 2>/dev/null || true; done
}
trap stop_daemons EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# wait_ready NAME PID: until the daemon's ready line stands in its output. The daemon's own words
# where it ends before.
wait_ready() {
  local name="$1" pid="$2" begin=$SECONDS
  until grep -q '^ready {' "$run_dir/$name.out" 2>/dev/null; do
    if ! kill -0 "$pid" 2>/dev/null; then
      say "$name ended before it was ready; its log:"
      tail -n 20 "$run_dir/$name.log" >&2
      exit 1
    fi
    ((SECONDS - begin < 120)) || die "$name was not ready after 120 s; see $run_dir/$name.log"
    sleep 0.1
  done
}

# address NAME KEY: HOST:PORT from the ready line.
address() {
  sed -n 's/^ready //p' "$run_dir/$1.out" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$2"
}

start_daemons() {
  mkdir -p "$run_dir"
  rm -f "$run_dir"/*.out "$run_dir"/*.log
  "$prefill_bin" --model "$model" --control 127.0.0.1:0 --state 127.0.0.1:0 \
    --metrics 127.0.0.1:0 >"$run_dir/prefill_node.out" 2>"$run_dir/prefill_node.log" &
  prefill_pid=$!
  wait_ready prefill_node "$prefill_pid"
  "$decode_bin" --model "$model" --http "127.0.0.1:$port" --control 127.0.0.1:0 \
    --state 127.0.0.1:0 --metrics 127.0.0.1:0 --theta "$theta" \
    --prefill "$(address prefill_node control)" \
    >"$run_dir/decode_node.out" 2>"$run_dir/decode_node.log" &
  decode_pid=$!
  wait_ready decode_node "$decode_pid"
}

# Until a request could succeed: the two have said hello and agree on the model.
wait_peers() {
  local url="$1/health/ready" begin=$SECONDS
  until curl -fsS -o /dev/null --max-time 5 "$url" 2>/dev/null; do
    ((SECONDS - begin < 30)) || die "not ready after 30 s: $(curl -sS --max-time 5 "$url" 2>&1)"
    sleep 0.1
  done
}

deploy/install-deps.sh --build
[[ -f build/release/build.ninja ]] || step "configure (build/release)" cmake --preset release
step "build (the first time takes some minutes)" \
  ninja -C build/release -j "$(build_jobs)" prefill_node decode_node
say "start prefill_node and decode_node (logs: $run_dir)"
start_daemons
url="http://$(address decode_node http)"
wait_peers "$url"

status=0
python3 deploy/quickstart/ask.py --url "$url" --document "$prompt" --question "$question" \
  --theta "$theta" || status=$?

if ((serve)); then
  cat <<TEXT

serving on $url (prefill_node $prefill_pid, decode_node $decode_pid; Ctrl-C stops both)
  curl -N $url/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"messages":[{"role":"user","content":"What is a lighthouse?"}],"stream":true,"max_tokens":64}'
TEXT
  wait -n "$prefill_pid" "$decode_pid" || true
  die "a daemon ended by itself; see $run_dir"
fi
exit "$status"
