"""Both daemons with --device cuda, on the CPU shim of CUDA: kernels, engines, transport and front
door as they are, a random model small enough for the shim."""
import concurrent.futures
import os
import subprocess

import pytest

import harness as h

CODEC = ["--codec-option", "window=8", "--min-compress-tokens", "0", "--theta", "0.5"]
LONG = [(i * 31 + 7) % 256 for i in range(110)]
SHORT = [(i * 17 + 3) % 256 for i in range(20)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    subprocess.run([h.BUILD / "tests/model/write_small_model", path], check=True)
    return path


def start(program, model, gpu, *flags, env=None):
    """A daemon on the shim's GPU, or the real daemon on the CPU."""
    flags = ["--model", model, "--control", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
             "--device", "cuda" if gpu else "cpu", *flags]
    if program == "decode_node":
        flags += ["--http", "127.0.0.1:0", *CODEC]
    return h.Daemon(f"{program}_shim" if gpu else program, *flags, env=env)


class Pair:
    def __init__(self, model, prefill_gpu, decode_gpu, prefill_env=None, prefill_flags=(),
                 decode_flags=()):
        self.prefill = start("prefill_node", model, prefill_gpu, *prefill_flags, env=prefill_env)
        try:
            self.decode = start("decode_node", model, decode_gpu, "--prefill",
                                self.prefill.ready["control"], *decode_flags)
            h.wait_ready(self.decode)
        except Exception:
            self.prefill.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            for daemon in (self.prefill, self.decode):
                print(f"--- {daemon.program}\n{daemon.logs()[-6000:]}")
        self.decode.close()
        self.prefill.close()


def complete(daemon, prompt, tokens=6, **more):
    return h.post(daemon, "/v1/completions",
                  {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                   "logprobs": None, **more})


def answers(pair):
    got = []
    for prompt, codec in ((LONG, "anchorkv"), (SHORT, "none")):
        status, reply = complete(pair.decode, prompt, kv={"codec": codec})
        assert status == 200, reply
        assert reply["kv"]["codec"] == codec, reply["kv"]
        assert reply["usage"]["completion_tokens"] == 6
        got.append(reply["choices"][0]["text"])
    return got


@pytest.fixture(scope="module")
def expected(model):
    with Pair(model, False, False) as pair:
        return answers(pair)


@pytest.mark.parametrize("prefill_gpu, decode_gpu", [(True, True), (True, False), (False, True)])
def test_tokens_are_those_of_the_cpu(model, expected, prefill_gpu, decode_gpu):
    with Pair(model, prefill_gpu, decode_gpu) as pair:
        assert answers(pair) == expected
        for daemon, gpu in ((pair.prefill, prefill_gpu), (pair.decode, decode_gpu)):
            started = daemon.log_events("started")[0]
            assert (started["device"] != "cpu") == gpu, started
            assert started["device_reason"] == f"--device {'cuda' if gpu else 'cpu'}"
        h.wait_until(lambda: pair.decode.metrics()["akv_state_resident_bytes"] == 0,
                     what="all states freed")


def test_records_go_from_device_to_device_between_gpus(model):
    # Dense, so that they are large enough for a rendezvous.
    replies = []
    for prefill_gpu, decode_gpu in ((True, True), (False, True), (True, False)):
        with Pair(model, prefill_gpu, decode_gpu) as pair:
            status, reply = complete(pair.decode, LONG, kv={"codec": "none"})
            assert status == 200, reply
            replies.append(reply["choices"][0]["text"])
            ended = h.wait_until(lambda p=pair: p.decode.log_events("session ended"),
                                 what="the session's end is logged")
            layers = 2
            assert ended[0]["device_records"] == (layers if prefill_gpu and decode_gpu else 0), ended
    assert len(set(replies)) == 1, replies


@pytest.mark.skipif(not h.MODEL.exists(), reason="the model is not fetched")
def test_the_default_model_says_the_same():
    # About 30 s of CPU on the shim: a hundred tokens through 30 layers, and three steps.
    body = {"prompt": h.TEXT.read_text()[:420], "max_tokens": 4, "temperature": 0,
            "kv": {"codec": "anchorkv"}}
    replies = []
    for gpu in (False, True):
        with Pair(h.MODEL, gpu, gpu) as pair:
            status, reply = h.post(pair.decode, "/v1/completions", body, timeout_s=500)
            assert status == 200, reply
            assert reply["kv"]["codec"] == "anchorkv", reply["kv"]
            replies.append(reply)
    assert replies[0]["usage"] == replies[1]["usage"]
    assert replies[0]["choices"][0]["text"] == replies[1]["choices"][0]["text"]


def test_short_state_memory_parks_states_in_host_memory(model):
    prompts = [[(i * 31 + 7 * n) % 256 for i in range(110)] for n in range(3)]
    body = {"max_tokens": 200, "temperature": 0, "ignore_eos": True}
    with Pair(model, False, False) as pair:
        alone = [h.post(pair.decode, "/v1/completions", {"prompt": p, **body})[1] for p in prompts]
    # One session needs a state of 56K and four pages of 64K at its end; with all three states that is more.
    with Pair(model, False, True, decode_flags=["--max-state-bytes", "400K"]) as pair:
        with concurrent.futures.ThreadPoolExecutor(3) as threads:
            replies = list(threads.map(
                lambda p: h.post(pair.decode, "/v1/completions", {"prompt": p, **body}), prompts))
        for (status, reply), expected in zip(replies, alone):
            assert status == 200, reply
            assert reply["choices"][0]["text"] == expected["choices"][0]["text"]
        assert pair.decode.log_events("state sent away")
        assert pair.decode.log_events("state brought back")
        h.wait_until(lambda: pair.decode.metrics()["akv_state_resident_bytes"] == 0,
                     what="all states freed")


def test_a_device_without_room_for_an_engine(model):
    # The weights fit, the prefill engine's scratch does not.
    env = {"AKV_SHIM_MEMORY_BYTES": "2000000"}
    flags = ["--model", model, "--control", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    daemon = h.Daemon("prefill_node_shim", *flags, env=env)
    started = daemon.log_events("started")[0]
    daemon.close()
    assert started["device"] == "cpu" and "memory" in started["device_reason"], started
    refused = subprocess.run([h.binary("prefill_node_shim"), *flags, "--device", "cuda"],
                             env={**os.environ, **env}, capture_output=True, text=True)
    assert refused.returncode == 2, refused
    assert "device" in refused.stderr and "memory" in refused.stderr, refused.stderr


def test_a_prompt_beyond_the_devices_memory_fails_alone(model, expected):
    # Weights and scratch take 35 MB of the shim's device; the rest is for one short prompt.
    env = {"AKV_SHIM_MEMORY_BYTES": str(35_600_000)}
    flags = ["--chunk-tokens", "128", "--max-prefill-bytes", "1G"]
    with Pair(model, True, False, prefill_env=env, prefill_flags=flags) as pair:
        status, reply = complete(pair.decode, [5] * 500)
        assert status in (400, 429, 503), (status, reply)
        assert "memory" in reply["error"]["message"] or "bytes" in reply["error"]["message"], reply
        assert answers(pair) == expected


def test_a_lost_decode_device_hands_its_streams_over(model):
    # The device goes while the first answer is decoded; another node takes the stream over.
    body = {"prompt": LONG, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    with Pair(model, False, False) as pair:
        whole = h.post(pair.decode, "/v1/completions", body)[1]["choices"][0]["text"]
        lossy = start("decode_node", model, True, "--prefill", pair.prefill.ready["control"],
                      env={"AKV_SHIM_LOSE_DEVICE": "1500"})
        front = start("decode_node", model, False, "--max-sessions", "0", "--prefill",
                      pair.prefill.ready["control"], "--decode",
                      f"{lossy.ready['control']},{pair.decode.ready['control']}")
        try:
            h.wait_ready(front)
            for _ in range(4):
                status, reply = h.post(front, "/v1/completions", body)
                assert status == 200, reply
                assert reply["choices"][0]["text"] == whole
                if lossy.log_events("device lost"):
                    break
            assert lossy.log_events("device lost"), "the device was never lost"
            h.wait_until(lambda: h.get(lossy, "/health/ready", "metrics")[0] == 503,
                         what="the node is not ready")
            assert h.get(lossy, "/health/live", "metrics")[0] == 200
        except Exception:
            print(lossy.logs()[-6000:])
            raise
        finally:
            front.close()
            lossy.close()
