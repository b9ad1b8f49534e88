#!/usr/bin/env python3
"""decode_node --plan against a pair that runs: bytes to the byte, transfer time over a link of a
known rate."""
import json
import sys
import unittest

import support

sys.path.insert(0, str(support.ROOT / "tests/integration"))
import harness as h  # noqa: E402

# Slower than prefill makes records, so that the link is what a transfer takes.
RATE_BYTES_PER_S = 500_000
CODEC = ["--theta", "0.3", "--min-compress-tokens", "0"]


def plan(*options):
    done = support.run(support.binary("decode_node"), "--plan", "--model", h.MODEL, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Live(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pair = h.Pair(["--state-rate", RATE_BYTES_PER_S], CODEC)

    @classmethod
    def tearDownClass(cls):
        cls.pair.__exit__(None, None, None)

    def reply(self, tokens, **kv):
        body = h.completion(h.long_prompt(tokens), max_tokens=3, **({"kv": kv} if kv else {}))
        status, reply = h.post(self.pair.decode, "/v1/completions", body)
        self.assertEqual(status, 200, reply)
        return reply["kv"]

    def test_bytes_are_those_of_a_reply(self):
        kv = self.reply(250)
        planned = plan("--plan-prompt-tokens", kv["prompt_tokens"], *CODEC)
        for key in ("codec", "dense_bytes", "state_bytes"):
            self.assertEqual(planned[key], kv[key], key)
        self.assertAlmostEqual(planned["ratio"], kv["ratio"], 3)
        # What the sender counted is the plan, too.
        h.wait_until(lambda: self.pair.prefill.metrics()["akv_state_sent_bytes_total"]
                     >= planned["state_bytes"], 20, "state sent")

    def test_transfer_takes_bytes_over_rate(self):
        for tokens, choice in ((150, {"codec": "none"}), (200, {})):
            kv = self.reply(tokens, **choice)
            rate = kv["prompt_tokens"] / (kv["prefill_ms"] / 1000)
            planned = plan("--plan-prompt-tokens", kv["prompt_tokens"], *CODEC,
                           "--plan-link", RATE_BYTES_PER_S * 8 / 1e9, "--plan-prefill-rate", rate,
                           *(["--codec", "none"] if choice else []))
            self.assertEqual(planned["state_bytes"], kv["state_bytes"])
            print(f"{kv['codec']}: {kv['state_bytes']} bytes, planned "
                  f"{planned['exposed_transfer_ms']:.0f} to {planned['transfer_ms']:.0f} ms, "
                  f"took {kv['transfer_ms']:.0f} ms")
            # Between what prefill cannot hide and the whole; a limiter lets a burst pass, a busy
            # machine adds to it.
            self.assertGreater(kv["transfer_ms"], 0.7 * planned["exposed_transfer_ms"])
            self.assertLess(kv["transfer_ms"], 1.5 * planned["transfer_ms"] + 3000)


class Options(unittest.TestCase):
    def test_more_memory_more_sessions_and_rates_give_nodes(self):
        sizes = [plan("--max-state-bytes", f"{mib}M", "--max-sessions", "60000")["sessions"]
                 for mib in (512, 1024, 2048)]
        self.assertTrue(0 < sizes[0] < sizes[1] < sizes[2], sizes)
        whole = plan("--plan-requests", "2", "--plan-prefill-rate", "1500",
                     "--plan-decode-rate", "100")
        self.assertAlmostEqual(whole["prefill_nodes"], 2 * 7500 / 1500)
        self.assertAlmostEqual(whole["decode_per_prefill"],
                               whole["decode_nodes"] / whole["prefill_nodes"])
        self.assertNotIn("prefill_nodes", plan())

    def test_bad_options_end_with_status_2(self):
        for options, named in ((["--plan-link", "0"], "plan-link"), ([], "model"),
                               (["--model", "/nowhere"], "/nowhere")):
            done = support.run(support.binary("decode_node"), "--plan", *options)
            self.assertEqual(done.returncode, 2, options)
            self.assertIn(named, done.stderr)


if __name__ == "__main__":
    support.binary("prefill_node")
    if not h.MODEL.exists():
        print(f"skipped: no model at {h.MODEL}")
        sys.exit(support.SKIPPED)
    support.main()
