#!/usr/bin/env python3
"""The scripts around the daemons: options, the quickstart's client, the counting of results."""

import contextlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
USAGE = {"codec": "anchorkv", "profile": "pooled", "theta": 0.05, "prompt_tokens": 7500,
         "dense_bytes": 172800000, "state_bytes": 8600000, "ratio": 20.093, "prefill_ms": 5000.0,
         "compress_ms": 120.0, "transfer_ms": 40.0, "prefill_node": "127.0.0.1:1"}


def run(*command):
    return subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True,
                          timeout=60)


class Options(unittest.TestCase):
    def test_bad_options_are_named_and_change_nothing(self):
        for script, options, named in [
                ("quickstart.sh", ["--theta", "2"], "--theta"),
                ("quickstart.sh", ["--theta", "0"], "--theta"),
                ("quickstart.sh", ["--port", "70000"], "--port"),
                ("quickstart.sh", ["--prompt", "/nowhere"], "--prompt"),
                ("quickstart.sh", ["--model", "/nowhere"], "--model"),
                ("quickstart.sh", ["--question"], "--question"),
                ("quickstart.sh", ["--nonsense"], "--nonsense"),
                ("install-deps.sh", ["--nonsense"], "--nonsense")]:
            with self.subTest(script=script, options=options):
                done = run(ROOT / "deploy" / script, *options)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(named, done.stderr)

    def test_help_lists_every_option(self):
        text = run(ROOT / "deploy/quickstart.sh", "--help").stdout
        for option in ["--serve", "--prompt", "--question", "--model", "--theta", "--port"]:
            self.assertIn(option, text)
        self.assertIn("--eval", run(ROOT / "deploy/install-deps.sh", "--help").stdout)


@contextlib.contextmanager
def server(status, events):
    """An HTTP server that answers each POST with the events; yields (URL, requests seen)."""
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()
            self.wfile.write("".join(events).encode())

        def log_message(self, *_):
            pass

    httpd = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}", seen
    finally:
        httpd.shutdown()
        httpd.server_close()


def event(payload):
    return f"data: {json.dumps(payload)}\n\n"


def delta(text):
    return event({"choices": [{"delta": {"content": text}, "finish_reason": None}], "usage": None})


class Ask(unittest.TestCase):
    def ask(self, url, *options):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as document:
            document.write("the document")
            document.flush()
            return run(sys.executable, ROOT / "deploy/quickstart/ask.py", "--url", url,
                       "--document", document.name, "--question", "the question", *options)

    def test_streams_and_prints_the_table(self):
        end = event({"choices": [], "usage": {"completion_tokens": 2}, "kv": USAGE})
        with server(200, [": ping\n\n", delta("for"), delta("ty"), end, "data: [DONE]\n\n"]) as (
                url, seen):
            done = self.ask(url, "--theta", "0.05")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("answer: forty\n", done.stdout)
        for text in ["7,500", "172,800,000", "8,600,000", "20.09x", "prefill 5.00 s", "0.040 s"]:
            self.assertIn(text, done.stdout)
        self.assertEqual(seen[0]["kv"], {"theta": 0.05})
        self.assertEqual(seen[0]["messages"][0]["content"], "the document\nthe question")

    def test_errors_end_with_status_1_and_the_servers_words(self):
        with server(503, ['{"error":{"message":"no prefill peer"}}']) as (url, _):
            done = self.ask(url)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no prefill peer", done.stderr)
        with server(200, [delta("for"), event({"error": {"message": "the state was corrupt"}})]) as (
                url, _):
            done = self.ask(url)
        self.assertEqual(done.returncode, 1)
        self.assertIn("the state was corrupt", done.stderr)
        with server(200, ["data: [DONE]\n\n"]) as (url, _):
            self.assertEqual(self.ask(url).returncode, 1)


class CountTests(unittest.TestCase):
    def count(self, entries, reports):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in reports.items():
                (pathlib.Path(folder) / f"{name}.xml").write_text(text)
            cases = "".join(f'<testcase name="{name}" status="{status}">{inner}</testcase>'
                            for name, status, inner in entries)
            (pathlib.Path(folder) / "ctest.junit").write_text(f"<testsuite>{cases}</testsuite>")
            return run(sys.executable, ROOT / "tests/support/count_tests.py", folder)

    def test_cases_crashes_and_skips(self):
        report = ('<testsuites><testsuite>'
                  '<testcase name="a" status="run" result="completed"/>'
                  '<testcase name="b" status="run" result="completed"><failure/></testcase>'
                  '<testcase name="c" status="run" result="skipped"/>'
                  '<testcase name="d" status="notrun" result="suppressed"/>'
                  '</testsuite></testsuites>')
        done = self.count([("unit", "fail", "<failure/>"), ("script", "run", ""),
                           ("crashed", "fail", "<failure/>"), ("missing", "notrun", ""),
                           ("left_out", "disabled", "")], {"unit": report})
        self.assertEqual(done.stdout, "2 passed, 3 failed, 2 skipped\n")
        self.assertEqual(done.returncode, 1)

    def test_a_crash_after_passing_cases_is_a_failure(self):
        report = '<testsuites><testcase name="a" status="run" result="completed"/></testsuites>'
        done = self.count([("unit", "fail", "<failure/>")], {"unit": report})
        self.assertEqual(done.stdout, "1 passed, 1 failed, 0 skipped\n")

    def test_nothing_run_is_no_success(self):
        self.assertEqual(self.count([], {}).returncode, 1)
        self.assertEqual(self.count([("unit", "run", "")], {}).returncode, 0)


if __name__ == "__main__":
    os.environ.pop("AKV_PRESET", None)
    unittest.main()
