"""What a daemon says when it is started wrongly, and how pairs that do not fit are refused."""
import json
import pathlib
import shutil
import socket
import subprocess

import pytest

import harness as h

GOLDEN = h.ROOT / "tests/golden"


def run(program, *flags, timeout_s=30):
    return subprocess.run([str(h.BUILD / program / program), *map(str, flags)], capture_output=True,
                          text=True, timeout=timeout_s)


@pytest.mark.parametrize("program", ["prefill_node", "decode_node"])
def test_help_version_and_dump(program):
    assert "--model" in run(program, "--help").stdout
    version = (h.ROOT / "VERSION").read_text().strip()
    assert version in run(program, "--version").stdout
    dumped = json.loads(run(program, "--model", h.MODEL, "--dump-config").stdout)
    assert dumped["heartbeat-ms"] == 1000
    assert run(program, "--model", h.MODEL, "--check").returncode == 0


@pytest.mark.parametrize("program, flags, words", [
    ("prefill_node", [], ["model"]),
    ("prefill_node", ["--model", "/nowhere.gguf"], ["/nowhere.gguf"]),
    ("prefill_node", ["--heartbeat-ms", "x"], ["heartbeat-ms", "x"]),
    ("prefill_node", ["--hearbeat-ms", "10"], ["heartbeat-ms"]),
    ("prefill_node", ["--control", "0.0.0.0:0"], ["control", "insecure"]),
    ("prefill_node", ["--state-fault", "burn=1"], ["state-fault", "burn=1"]),
    ("decode_node", ["--theta", "0"], ["theta", "0"]),
    ("decode_node", ["--theta", "1.01"], ["theta", "1.01"]),
    ("decode_node", ["--codec", "zip"], ["codec", "zip"]),
    ("decode_node", ["--codec-option", "layout=round"], ["layout", "round"]),
    ("decode_node", ["--local", "--prefill", "127.0.0.1:1"], ["local"]),
    ("decode_node", ["--prefill", "127.0.0.1:1", "--prefill-file", "/x"], ["prefill"]),
])
def test_bad_configuration_is_status_2_and_names_the_key(program, flags, words):
    if "--model" not in flags and flags:
        flags = ["--model", h.MODEL, *flags]
    ran = run(program, *flags)
    assert ran.returncode == 2, (ran.stdout, ran.stderr)
    for word in words:
        assert word in ran.stderr, ran.stderr


def damage(name, change):
    def make(folder):
        data = bytearray((GOLDEN / "random_gguf/qwen2.gguf").read_bytes())
        path = folder / f"{name}.gguf"
        path.write_bytes(bytes(change(data)))
        return path
    make.__name__ = name
    return make


@pytest.mark.parametrize("make", [
    damage("truncated", lambda d: d[:len(d) // 2]),
    damage("empty", lambda d: b""),
    damage("magic", lambda d: b"GGUX" + d[4:]),
    damage("architecture", lambda d: d.replace(b"qwen2", b"qwenX")),
    damage("version", lambda d: d[:4] + b"\x09" + d[5:]),
], ids=lambda make: make.__name__)
def test_bad_models_are_status_2(make, tmp_path):
    path = make(tmp_path)
    ran = run("prefill_node", "--model", path, "--check")
    assert ran.returncode == 2, (ran.stdout, ran.stderr)
    assert len(ran.stderr.strip()) > 20


def test_taken_port_is_status_3():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for program, flag in [("prefill_node", "--control"), ("prefill_node", "--metrics"),
                              ("decode_node", "--http"), ("decode_node", "--control"),
                              ("decode_node", "--state")]:
            ran = run(program, "--model", h.MODEL, "--http" if program == "decode_node"
                      else "--metrics", "127.0.0.1:0", flag, address)
            assert ran.returncode == 3, (program, flag, ran.stderr)
            assert address.split(":")[1] in ran.stderr


def test_pairs_of_different_models_are_refused(tmp_path):
    """The same file with other bytes in a tensor is another model: refused at hello, named in
    health and logs, and no request is taken."""
    other = tmp_path / "other.gguf"
    shutil.copy(h.MODEL, other)
    with open(other, "r+b") as file:
        file.seek(-100, 2)
        file.write(b"\x01\x02\x03\x04")
    prefill = h.Daemon("prefill_node", "--model", other)
    decode = h.decode("--prefill", prefill.ready["control"])
    try:
        h.wait_until(lambda: b"fingerprint" in h.get(decode, "/health/ready")[1], what="the reason")
        status, body = h.get(decode, "/health/ready")
        assert status == 503 and prefill.ready["control"].encode() in body
        assert decode.log_events("peer does not fit")
        assert h.post(decode, "/v1/completions", h.completion("x"))[0] == 503
    finally:
        decode.close()
        prefill.close()


def test_no_peer_is_503_with_retry_after():
    decode = h.decode()
    try:
        import http.client
        connection = http.client.HTTPConnection(decode.ready["http"])
        connection.request("POST", "/v1/completions", json.dumps(h.completion("x")))
        answer = connection.getresponse()
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert h.get(decode, "/health/live")[0] == 200
        assert h.get(decode, "/health/ready")[0] == 503
    finally:
        decode.close()


def test_a_full_queue_is_429():
    with h.Pair(decode_flags=["--max-queue", "1"]) as pair:
        waiting = h.Stream(pair.decode, "/v1/completions", h.completion(h.long_prompt(1300)))
        h.wait_until(lambda: pair.decode.metrics()["akv_queue_requests"] == 1)
        status, reply = h.post(pair.decode, "/v1/completions", h.completion("x"))
        assert status == 429, reply
        waiting.abandon()
        h.assert_all_free(pair)


def test_local_needs_no_second_process_and_says_the_same():
    prompt = h.long_prompt(800, 2)
    with h.Pair() as pair:
        expected = h.post(pair.decode, "/v1/completions", h.completion(prompt))[1]
    local = h.decode("--local")
    try:
        h.wait_ready(local)
        reply = h.post(local, "/v1/completions", h.completion(prompt))[1]
        assert reply["choices"][0]["text"] == expected["choices"][0]["text"]
        assert reply["kv"]["state_bytes"] == expected["kv"]["state_bytes"]
        assert local.metrics()["akv_outbox_bytes"] == 0
        assert local.stop() == 0
    finally:
        local.close()


def test_unreachable_theta_can_be_an_error():
    with h.Pair(decode_flags=["--on-unreachable-theta", "error"]) as pair:
        status, reply = h.post(pair.decode, "/v1/completions",
                               h.completion(h.long_prompt(700), kv={"theta": 0.001}))
        assert status == 400
        assert reply["error"]["param"] == "kv.theta" or reply["error"]["param"] == "theta"
        assert any(c.isdigit() for c in reply["error"]["message"])


def test_peers_come_from_a_file_that_changes(tmp_path):
    peers = tmp_path / "peers"
    peers.write_text("# none yet\n")
    prefill = h.prefill()
    decode = h.decode("--prefill-file", peers)
    try:
        assert h.get(decode, "/health/ready")[0] == 503
        peers.write_text(prefill.ready["control"] + "\n")
        h.wait_ready(decode)
        peers.write_text("")
        h.wait_until(lambda: h.get(decode, "/health/ready")[0] == 503)
    finally:
        decode.close()
        prefill.close()


def test_curve_keys_are_required_when_given(tmp_path):
    import zmq_keys
    server, client, stranger = (zmq_keys.write(tmp_path / n) for n in ("server", "client", "other"))
    allowed = tmp_path / "allowed"
    allowed.write_text(client + "\n")
    servers = tmp_path / "servers"
    prefill = h.prefill("--curve-key", tmp_path / "server", "--curve-peers", allowed)
    servers.write_text(f"{server} {prefill.ready['control']}\n")
    good = h.decode("--prefill", prefill.ready["control"], "--curve-key", tmp_path / "client",
                    "--curve-peers", servers)
    bad = h.decode("--prefill", prefill.ready["control"], "--curve-key", tmp_path / "other",
                   "--curve-peers", servers)
    plain = h.decode("--prefill", prefill.ready["control"])
    try:
        h.wait_ready(good)
        assert h.post(good, "/v1/completions", h.completion("One two"))[0] == 200
        for daemon in (bad, plain):
            assert h.get(daemon, "/health/ready")[0] == 503
    finally:
        for daemon in (good, bad, plain, prefill):
            daemon.close()


def moved(daemon, event):
    return h.wait_until(lambda: daemon.log_events(event), what=event)[0]


def test_weights_go_to_huge_pages_where_the_budgets_leave_room():
    node = h.decode("--local")
    try:
        h.wait_ready(node)
        h.wait_until(lambda: node.log_events("weights on huge pages")
                     or node.log_events("weights stay mapped"), what="an answer on huge pages")
        if node.log_events("weights stay mapped"):
            assert "huge pages" in moved(node, "weights stay mapped")["reason"]
            pytest.skip("no huge pages here")
        size = h.MODEL.stat().st_size
        assert size - (2 << 20) < moved(node, "weights on huge pages")["bytes"] <= size
        reply = h.post(node, "/v1/completions", h.completion("One, two, three,", max_tokens=4))
        assert reply[0] == 200
    finally:
        node.close()


def test_weights_stay_mapped_where_states_may_take_all_memory():
    node = h.decode("--local", "--max-state-bytes", "100000G")
    try:
        assert "memory" in moved(node, "weights stay mapped")["reason"]
    finally:
        node.close()
