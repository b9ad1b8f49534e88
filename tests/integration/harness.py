"""Starts real daemons on free ports and talks to them as a client would. No mocks: every test that
uses this runs the model, the codec, UCX and ZeroMQ."""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("AKV_BUILD_DIR", ROOT / "build/release"))
CACHE = pathlib.Path(os.environ.get("AKV_CACHE", pathlib.Path(
    os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "akv"))
MODEL = pathlib.Path(os.environ.get("AKV_MODEL_FILE",
                                    CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
TEXT = (ROOT / "tests/golden/text/licence.txt")
START_TIMEOUT_S = 60


def binary(program):
    """Those that end in _next speak another state format, those in _shim have a GPU of the tests."""
    folders = {"next": "tests/integration", "shim": "tests/gpu"}
    return BUILD / folders.get(program.rsplit("_", 1)[-1], program) / program


class Daemon:
    """One daemon process; `ready` holds the addresses of its ready line."""

    def __init__(self, program, *flags, env=None, wait=True):
        self.program = program
        self.log = tempfile.NamedTemporaryFile("w+b", suffix=f".{program}.log", delete=False)
        command = [str(binary(program)), *map(str, flags)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log,
                                        env={**os.environ, **(env or {})})
        self.ready = self._wait_ready() if wait else None

    def _wait_ready(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        os.set_blocking(self.process.stdout.fileno(), False)
        text = b""
        while time.monotonic() < deadline:
            text += self.process.stdout.read() or b""
            match = re.search(rb"^ready (\{.*\})$", text, re.M)
            if match:
                return json.loads(match.group(1))
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"{self.program} is not ready (status {self.process.poll()}):\n"
                           + self.logs()[-3000:])

    def logs(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def log_events(self, event):
        lines = [json.loads(line) for line in self.logs().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s=30):
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self.process.stdout.close()
        self.log.close()
        os.unlink(self.log.name)

    def metrics(self):
        """{name or name{labels}: value}; the label node is left out."""
        connection = http.client.HTTPConnection(self.ready["metrics"], timeout=10)
        connection.request("GET", "/metrics")
        values = {}
        for line in connection.getresponse().read().decode().splitlines():
            if line.startswith("#") or not line:
                continue
            name, value = line.rsplit(" ", 1)
            name = re.sub(r'node="[^"]*",?', "", name).replace(",}", "}").replace("{}", "")
            values[name] = float(value)
        connection.close()
        return values


def prefill(*flags, program="prefill_node", **kw):
    return Daemon(program, "--model", MODEL, "--control", "127.0.0.1:0", "--metrics",
                  "127.0.0.1:0", *flags, **kw)


def decode(*flags, program="decode_node", **kw):
    return Daemon(program, "--model", MODEL, "--http", "127.0.0.1:0", "--control",
                  "127.0.0.1:0", "--metrics", "127.0.0.1:0", *flags, **kw)


class Pair:
    """A prefill and a decode node, stopped at the end of the with block."""

    def __init__(self, prefill_flags=(), decode_flags=()):
        self.prefill = prefill(*prefill_flags)
        self.decode = decode("--prefill", self.prefill.ready["control"], *decode_flags)
        wait_ready(self.decode)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            for daemon in (self.prefill, self.decode):
                print(f"--- {daemon.program}\n{daemon.logs()[-6000:]}")
        self.decode.close()
        self.prefill.close()


def wait_until(condition, timeout_s=20, what="condition"):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come true in {timeout_s} s")


def get(daemon, path, key="http"):
    connection = http.client.HTTPConnection(daemon.ready[key], timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def wait_ready(daemon, timeout_s=20):
    wait_until(lambda: get(daemon, "/health/ready")[0] == 200, timeout_s, "/health/ready")


def post(daemon, path, body, headers=None, timeout_s=120):
    connection = http.client.HTTPConnection(daemon.ready["http"], timeout=timeout_s)
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    connection.request("POST", path, data, {"Content-Type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, text


class Stream:
    """A streamed completion; iterate over its JSON chunks. The answer's header comes with the first
    token, so nothing is read before the iteration."""

    def __init__(self, daemon, path, body, timeout_s=120):
        self.connection = http.client.HTTPConnection(daemon.ready["http"], timeout=timeout_s)
        self.connection.request("POST", path, json.dumps({**body, "stream": True}),
                                {"Content-Type": "application/json"})
        self.socket = self.connection.sock
        self.status = None
        self.done = False

    def __iter__(self):
        answer = self.connection.getresponse()
        self.status = answer.status
        assert answer.status == 200, answer.read()
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                self.done = True
                return
            yield json.loads(data)

    def text(self):
        return "".join(c["choices"][0].get("text", "") or
                       c["choices"][0].get("delta", {}).get("content", "")
                       for c in self if c["choices"])

    def abandon(self):
        """The client goes away."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.connection.close()


def long_prompt(tokens=1300, seed=0):
    """About so many tokens of licence text, different for each seed."""
    words = TEXT.read_text().split(" ")
    count = int(tokens * 0.78)
    start = seed * 37 % 400
    return f"Note {seed}. " + " ".join(words[start:start + count])


def completion(prompt, **more):
    return {"prompt": prompt, "temperature": 0, "max_tokens": 16, **more}


def assert_all_free(pair, timeout_s=20):
    """No session, no reserved or resident byte, no outbox byte, no queue on either side."""
    levels = ["akv_sessions", "akv_state_reserved_bytes", "akv_state_resident_bytes",
              "akv_suffix_bytes", "akv_queue_requests", "akv_queue_tokens"]

    def free():
        d, p = pair.decode.metrics(), pair.prefill.metrics()
        return (all(d[name] == 0 for name in levels) and p["akv_outbox_bytes"] == 0
                and p["akv_queue_tokens"] == 0 and p["akv_prefill_dense_kv_bytes"] == 0)

    wait_until(free, timeout_s, "everything free")
