"""Peers that die, hang, restart, lie: each request ends right or with a clear error."""
import concurrent.futures
import signal
import threading
import time

import pytest

import harness as h


def reference(prompt, tokens):
    with h.Pair() as pair:
        status, reply = h.post(pair.decode, "/v1/completions",
                               h.completion(prompt, max_tokens=tokens, ignore_eos=True))
        assert status == 200
        return reply["choices"][0]["text"]


def two_by_two():
    """A pure front door, two prefill nodes and two decode nodes."""
    prefills = [h.prefill("--heartbeat-ms", "200") for _ in range(2)]
    decodes = [h.decode("--heartbeat-ms", "200") for _ in range(2)]
    front = h.decode("--max-sessions", "0", "--heartbeat-ms", "200",
                     "--prefill", ",".join(p.ready["control"] for p in prefills),
                     "--decode", ",".join(d.ready["control"] for d in decodes))
    h.wait_ready(front)
    h.wait_until(lambda: front.metrics().get('akv_peers{role="decode",state="up"}') == 2
                 and front.metrics().get('akv_peers{role="prefill",state="up"}') == 2)
    return prefills, decodes, front


@pytest.fixture
def cluster():
    prefills, decodes, front = two_by_two()
    yield prefills, decodes, front
    for daemon in [front, *decodes, *prefills]:
        daemon.close()


def holder(daemons, metric):
    return h.wait_until(lambda: next((d for d in daemons if d.process.poll() is None
                                      and d.metrics()[metric] > 0), None), what=metric)


def test_idle_peers_take_turns(cluster):
    prefills, decodes, front = cluster
    for seed in range(4):
        assert h.post(front, "/v1/completions", h.completion(h.long_prompt(60, seed),
                                                             max_tokens=3))[0] == 200
    # Not two each for sure: a heartbeat may still tell of work that is done.
    assert all(p.metrics().get('akv_requests_total{outcome="ok"}', 0) >= 1 for p in prefills)
    assert all(d.metrics()["akv_batch_size_count"] >= 1 for d in decodes)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_decode_dies_and_the_stream_goes_on(cluster, how):
    prefills, decodes, front = cluster
    prompt = h.long_prompt(900)
    expected = reference(prompt, 120)
    stream = h.Stream(front, "/v1/completions",
                      h.completion(prompt, max_tokens=120, ignore_eos=True))
    text = ""
    for count, chunk in enumerate(stream):
        text += chunk["choices"][0]["text"]
        if count == 20:
            holder(decodes, "akv_state_resident_bytes").signal(how)
    assert stream.done
    assert text == expected
    # The prompt was prefilled once: the outbox sent the state again.
    assert sum(p.metrics()["akv_prompt_tokens_total"] for p in prefills) < 1300
    h.wait_until(lambda: all(p.metrics()["akv_outbox_bytes"] == 0 for p in prefills))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_prefill_dies_and_another_takes_over(cluster, how):
    prefills, decodes, front = cluster
    prompt = h.long_prompt(1200, 5)
    expected = reference(prompt, 12)
    answers = []
    asker = threading.Thread(target=lambda: answers.append(
        h.post(front, "/v1/completions", h.completion(prompt, max_tokens=12, ignore_eos=True))))
    asker.start()
    holder(prefills, "akv_prefill_dense_kv_bytes").signal(how)
    asker.join(60)
    status, reply = answers[0]
    assert status == 200, reply
    assert reply["choices"][0]["text"] == expected


def test_restarted_prefill_is_used_again():
    first = h.prefill("--heartbeat-ms", "200")
    address = first.ready["control"]
    decode = h.decode("--heartbeat-ms", "200", "--prefill", address)
    try:
        h.wait_ready(decode)
        assert h.post(decode, "/v1/completions", h.completion("One two"))[0] == 200
        first.kill()
        h.wait_until(lambda: h.get(decode, "/health/ready")[0] == 503, 5, "not ready")
        status, reply = h.post(decode, "/v1/completions", h.completion("One two"))
        assert status == 503 and reply["error"]["type"] == "unavailable_error"
        second = h.prefill("--heartbeat-ms", "200", "--control", address)
        h.wait_ready(decode)
        assert h.post(decode, "/v1/completions", h.completion(h.long_prompt(700)))[0] == 200
        second.close()
    finally:
        decode.close()
        first.close()


def test_flipped_bit_never_decodes():
    with h.Pair(prefill_flags=["--state-fault", "corrupt=7"]) as pair:
        status, reply = h.post(pair.decode, "/v1/completions", h.completion(h.long_prompt(700)))
        # The first token was not streamed yet to a client that does not stream: a plain error.
        assert status >= 500, reply
        assert "choices" not in reply
        assert pair.decode.metrics()["akv_checksum_failures_total"] >= 1
        h.assert_all_free(pair)


@pytest.mark.parametrize("fault", ["corrupt=3:1", "cut=5:1", "stall=9:1"])
def test_one_bad_transfer_is_sent_again(fault):
    prompt = h.long_prompt(700)
    expected = reference(prompt, 16)
    flags = ["--state-fault", fault, "--transfer-timeout-ms", "1500"]
    with h.Pair(prefill_flags=flags) as pair:
        status, reply = h.post(pair.decode, "/v1/completions",
                               h.completion(prompt, ignore_eos=True))
        assert status == 200, reply
        assert reply["choices"][0]["text"] == expected
        assert pair.prefill.metrics()["akv_prompt_tokens_total"] < 1000
        h.assert_all_free(pair)


def test_drain_finishes_what_runs_and_refuses_new():
    with h.Pair() as pair:
        stream = h.Stream(pair.decode, "/v1/completions",
                          h.completion(h.long_prompt(600), max_tokens=200, ignore_eos=True))
        chunks = iter(stream)
        next(chunks)
        pair.decode.signal(signal.SIGTERM)
        h.wait_until(lambda: h.get(pair.decode, "/health/ready")[0] == 503, 5, "not ready")
        status, _ = h.post(pair.decode, "/v1/completions", h.completion("x"))
        assert status == 503
        for _ in chunks:
            pass
        assert stream.done
        assert pair.decode.process.wait(20) == 0
        assert pair.prefill.stop() == 0


def test_a_drain_that_takes_too_long_says_so_to_every_client():
    with h.Pair(decode_flags=["--drain-timeout-ms", "300"]) as pair:
        body = h.completion(h.long_prompt(60), max_tokens=5000, ignore_eos=True)
        stream = h.Stream(pair.decode, "/v1/completions", body)
        chunks = iter(stream)
        next(chunks)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(h.post, pair.decode, "/v1/completions",
                                  h.completion(h.long_prompt(4000), max_tokens=500))
            h.wait_until(lambda: pair.decode.metrics()["akv_queue_requests"] == 1, what="queued")
            pair.decode.signal(signal.SIGTERM)
            errors = [chunk["error"] for chunk in chunks if "error" in chunk]
            status, reply = waiting.result()
        assert [error["message"] for error in errors] == ["the server stops now; ask another one"]
        assert (status, reply["error"]["message"]) == (503, errors[0]["message"])
        assert pair.decode.process.wait(20) == 0


def test_sessions_beyond_page_memory_are_parked_and_lose_nothing():
    bodies = [h.completion(h.long_prompt(600, seed), max_tokens=250, ignore_eos=True,
                           kv={"codec": "none"}) for seed in range(4)]
    with h.Pair() as pair:
        replies = [h.post(pair.decode, "/v1/completions", b)[1] for b in bodies]
    expected = [r["choices"][0]["text"] for r in replies]
    # All four states fit the share that states may take; the rest holds one output of four
    # pages, not several.
    memory = int(sum(r["kv"]["state_bytes"] for r in replies) / 0.875) + 4096
    with h.Pair(decode_flags=["--max-state-bytes", memory]) as pair:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(h.post, pair.decode, "/v1/completions", b) for b in bodies]
            h.wait_until(lambda: pair.decode.metrics()["akv_sessions_parked"] > 0, 60, "parking")
            answers = [answer.result() for answer in asked]
        assert [a[0] for a in answers] == [200] * 4
        assert [a[1]["choices"][0]["text"] for a in answers] == expected
        assert pair.decode.log_events("session parked")
        h.assert_all_free(pair)


def test_killed_front_door_frees_everything(cluster):
    prefills, decodes, front = cluster
    stream = h.Stream(front, "/v1/completions",
                      h.completion(h.long_prompt(900), max_tokens=2000, ignore_eos=True))
    next(iter(stream))
    front.kill()
    time.sleep(0.1)
    h.wait_until(lambda: all(d.metrics()["akv_sessions"] == 0 and
                             d.metrics()["akv_state_resident_bytes"] == 0 for d in decodes))
    h.wait_until(lambda: all(p.metrics()["akv_outbox_bytes"] == 0 for p in prefills))
