"""The whole path on short prompts, quick enough for sanitized daemons: dense and compressed states,
a batch, a client that leaves, a lost engine, drain. A sanitizer's report ends a daemon with a
status that is not 0."""
import concurrent.futures
import signal

import harness as h

COMPRESS_SHORT = ["--min-compress-tokens", "0", "--theta", "0.3"]


def test_path_batch_cancel_and_drain():
    with h.Pair(decode_flags=COMPRESS_SHORT) as pair:
        bodies = [h.completion(h.long_prompt(260, seed), max_tokens=6) for seed in range(3)]
        bodies.append(h.completion("One, two,", max_tokens=6))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda b: h.post(pair.decode, "/v1/completions", b), bodies))
        assert [status for status, _ in answers] == [200] * 4
        assert [reply["kv"]["codec"] for _, reply in answers] == ["anchorkv"] * 3 + ["none"]
        stream = h.Stream(pair.decode, "/v1/completions", h.completion(
            h.long_prompt(260), max_tokens=2000, ignore_eos=True))
        next(iter(stream))
        stream.abandon()
        h.assert_all_free(pair, 60)
        assert pair.decode.stop(60) == 0
        assert pair.prefill.stop(60) == 0


def test_a_lost_engine_is_replaced():
    prefill = h.prefill("--heartbeat-ms", "300")
    engines = [h.decode("--heartbeat-ms", "300") for _ in range(2)]
    front = h.decode("--max-sessions", "0", "--heartbeat-ms", "300", *COMPRESS_SHORT,
                     "--prefill", prefill.ready["control"],
                     "--decode", ",".join(e.ready["control"] for e in engines))
    try:
        h.wait_ready(front)
        h.wait_until(lambda: front.metrics().get('akv_peers{role="decode",state="up"}') == 2)
        body = h.completion(h.long_prompt(260), max_tokens=60, ignore_eos=True)
        expected = h.post(front, "/v1/completions", body)[1]["choices"][0]["text"]
        text = ""
        for count, chunk in enumerate(h.Stream(front, "/v1/completions", body)):
            text += chunk["choices"][0]["text"]
            if count == 3:
                holder = h.wait_until(lambda: next(
                    (e for e in engines if e.process.poll() is None
                     and e.metrics()["akv_state_resident_bytes"] > 0), None))
                holder.signal(signal.SIGKILL)
        assert text == expected
        for daemon in (front, prefill, *(e for e in engines if e is not holder)):
            assert daemon.stop(60) == 0
    finally:
        for daemon in (front, prefill, *engines):
            daemon.close()
