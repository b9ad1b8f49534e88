"""A client that goes away, in every phase of its request: nothing of it stays anywhere.
AKV_CANCEL_TIMES sets how often each phase is tried (a few in CI, 50 for the figures)."""
import os
import threading
import time

import pytest

import harness as h

TIMES = int(os.environ.get("AKV_CANCEL_TIMES", "3"))


@pytest.fixture(scope="module")
def pair():
    with h.Pair() as running:
        yield running


@pytest.fixture(scope="module")
def slow_pair():
    """Each record is held back, so that sending and landing last."""
    with h.Pair(prefill_flags=["--state-delay-ms", "40"]) as running:
        yield running


def abandon_after(daemon, body, condition):
    """Streams a request and goes away once condition() holds."""
    stream = h.Stream(daemon, "/v1/completions", body)
    try:
        h.wait_until(condition, 20, "the phase to cancel in")
    finally:
        stream.abandon()


def test_queued(pair):
    for i in range(TIMES):
        blockers = [h.Stream(pair.decode, "/v1/completions",
                             h.completion(h.long_prompt(1300, 10 * i + k), max_tokens=2))
                    for k in range(2)]
        h.wait_until(lambda: pair.prefill.metrics()["akv_queue_requests"] == 2)
        longer = h.completion(h.long_prompt(1500, 10 * i + 5), max_tokens=4)
        abandon_after(pair.decode, longer,
                      lambda: pair.prefill.metrics()["akv_queue_requests"] >= 3)
        for blocker in blockers:
            blocker.abandon()
        h.assert_all_free(pair)


def test_prefilling(pair):
    for i in range(TIMES):
        abandon_after(pair.decode, h.completion(h.long_prompt(1300, i)),
                      lambda: pair.prefill.metrics()["akv_prefill_dense_kv_bytes"] > 0)
        started = time.monotonic()
        h.assert_all_free(pair)
        assert time.monotonic() - started < 5


def test_sending(slow_pair):
    for i in range(TIMES):
        abandon_after(slow_pair.decode, h.completion(h.long_prompt(700, i)),
                      lambda: slow_pair.prefill.metrics()["akv_outbox_bytes"] > 0
                      and slow_pair.prefill.metrics()["akv_queue_requests"] == 0)
        h.assert_all_free(slow_pair)


def test_landing(slow_pair):
    for i in range(TIMES):
        first = threading.Event()
        stream = h.Stream(slow_pair.decode, "/v1/completions", h.completion(h.long_prompt(700, i)))
        for _ in stream:  # the first token is here, the state is not
            first.set()
            break
        assert first.is_set()
        assert slow_pair.decode.metrics()["akv_state_reserved_bytes"] > 0
        stream.abandon()
        h.assert_all_free(slow_pair)


def test_decoding(pair):
    for i in range(TIMES):
        stream = h.Stream(pair.decode, "/v1/completions",
                          h.completion(h.long_prompt(1300, i), max_tokens=4000, ignore_eos=True))
        for count, _ in enumerate(stream):
            if count == 5:
                break
        assert pair.decode.metrics()["akv_state_resident_bytes"] > 0
        stream.abandon()
        h.assert_all_free(pair)


def test_without_streaming_too(pair):
    import http.client
    import json
    connection = http.client.HTTPConnection(pair.decode.ready["http"])
    connection.request("POST", "/v1/completions", json.dumps(h.completion(
        h.long_prompt(1300), max_tokens=4000, ignore_eos=True)))
    h.wait_until(lambda: pair.decode.metrics()["akv_state_resident_bytes"] > 0)
    connection.sock.close()
    connection.close()
    h.assert_all_free(pair)
