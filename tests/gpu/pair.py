"""The pair on a GPU as two processes, against the same on the CPU: the same greedy tokens for a
compressed and a dense prompt. Prints a JSON line per figure. Standard library only: it runs from
the bundle.

usage: pair.py PREFILL_NODE DECODE_NODE MODEL
AKV_LIBRARY_PATH, where it is set, is the daemons' LD_LIBRARY_PATH, and not this program's.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

PROMPTS = [("anchorkv", 400), ("none", 40)]
CODEC = ["--min-compress-tokens", "0", "--theta", "0.5"]


class Daemon:
    def __init__(self, program, *flags):
        self.log = tempfile.NamedTemporaryFile("w+b")
        environment = dict(os.environ)
        if "AKV_LIBRARY_PATH" in environment:
            environment["LD_LIBRARY_PATH"] = environment["AKV_LIBRARY_PATH"]
        self.process = subprocess.Popen([program, *flags], stdout=subprocess.PIPE, stderr=self.log,
                                        env=environment)
        line = self.process.stdout.readline().decode()
        ready = re.match(r"ready (\{.*\})", line)
        if not ready:
            raise SystemExit(f"{program} is not ready: {self.tail()}")
        self.ready = json.loads(ready.group(1))

    def tail(self):
        with open(self.log.name, errors="replace") as log:
            return log.read()[-3000:]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def post(address, path, body):
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def wait_ready(address):
    for _ in range(500):
        try:
            urllib.request.urlopen(f"http://{address}/health/ready", timeout=5)
            return
        except OSError:
            time.sleep(0.02)
    raise SystemExit("the pair is not ready")


def run(prefill, decode, model, device):
    common = ["--model", model, "--control", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
              "--device", device]
    daemons = [Daemon(prefill, *common)]
    try:
        daemons.append(Daemon(decode, *common, *CODEC, "--http", "127.0.0.1:0", "--prefill",
                              daemons[0].ready["control"]))
        http = daemons[1].ready["http"]
        wait_ready(http)
        replies = []
        for codec, tokens in PROMPTS:
            body = {"prompt": [(i * 31 + 7) % 256 for i in range(tokens)], "max_tokens": 24,
                    "temperature": 0, "ignore_eos": True, "kv": {"codec": codec}}
            post(http, "/v1/completions", body)  # warms up
            begin = time.monotonic()
            reply = post(http, "/v1/completions", body)
            replies.append((reply, time.monotonic() - begin))
        return replies
    except Exception:
        for daemon in daemons:
            print(daemon.tail(), file=sys.stderr)
        raise
    finally:
        for daemon in reversed(daemons):
            daemon.stop()


def main():
    prefill, decode, model = sys.argv[1:]
    expected = run(prefill, decode, model, "cpu")
    got = run(prefill, decode, model, "cuda")
    same = True
    for (codec, tokens), (cpu, _), (gpu, seconds) in zip(PROMPTS, expected, got):
        text = [reply["choices"][0]["text"] for reply in (cpu, gpu)]
        same = same and text[0] == text[1]
        config = f"{codec}, {tokens} tokens"
        figures = [("whole request", 1000 * seconds, "ms"),
                   ("prefill", gpu["kv"]["prefill_ms"], "ms"),
                   ("compression", gpu["kv"]["compress_ms"], "ms"),
                   ("tokens as on the CPU", int(text[0] == text[1]), "")]
        for metric, value, unit in figures:
            print(json.dumps({"bench": "gpu_pair", "config": config, "metric": metric,
                              "value": value, "unit": unit}), flush=True)
    if not same:
        print("the GPU's tokens are not the CPU's", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
