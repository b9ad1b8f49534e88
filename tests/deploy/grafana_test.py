#!/usr/bin/env python3
"""The dashboards against the daemons: both run, a real Prometheus scrapes them with the project's
own configuration and rules, traffic flows, and every panel's every expression gives data."""
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

import support

sys.path.insert(0, str(support.ROOT / "tests/integration"))
import harness as h  # noqa: E402

GRAFANA = support.DEPLOY / "grafana"
DASHBOARDS = {path.stem: json.loads(path.read_text())
              for path in sorted((GRAFANA / "dashboards").glob("*.json"))}
UNITS = {"s": "_seconds", "bytes": "_bytes", "Bps": "_bytes_total"}
# Units of numbers without a dimension, and of rates.
OTHER_UNITS = {"short", "percentunit", "reqps", "ops"}


def expressions():
    for name, board in DASHBOARDS.items():
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield name, panel, target["expr"]


class Files(unittest.TestCase):
    def test_are_those_that_the_script_writes(self):
        with tempfile.TemporaryDirectory() as folder:
            done = support.run(sys.executable, GRAFANA / "make_dashboards.py", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            written = {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}
        self.assertEqual(written, {path.name: path.read_text()
                                   for path in (GRAFANA / "dashboards").glob("*.json")})

    def test_ids_are_unique_and_only_the_data_source_is_a_variable(self):
        self.assertEqual(set(DASHBOARDS), {"overview", "prefill", "decode", "transfer", "capacity"})
        self.assertEqual(len({board["uid"] for board in DASHBOARDS.values()}), len(DASHBOARDS))
        for name, board in DASHBOARDS.items():
            ids = [panel["id"] for panel in board["panels"]]
            self.assertEqual(len(ids), len(set(ids)), name)
            self.assertEqual([v["type"] for v in board["templating"]["list"]], ["datasource"])
            variables = set(re.findall(r"\$\{?(\w+)", json.dumps(board)))
            self.assertEqual(variables, {"datasource", "__rate_interval"}, name)

    def test_no_panel_overlaps_or_leaves_the_grid(self):
        for name, board in DASHBOARDS.items():
            cells = set()
            for panel in board["panels"]:
                at = panel["gridPos"]
                mine = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                        for y in range(at["y"], at["y"] + at["h"])}
                self.assertLessEqual(at["x"] + at["w"], 24)
                self.assertFalse(mine & cells, f"{name}: {panel['title']}")
                cells |= mine

    def test_units_fit_their_metrics(self):
        for name, panel, expression in expressions():
            unit = panel["fieldConfig"]["defaults"]["unit"]
            self.assertIn(unit, set(UNITS) | OTHER_UNITS)
            if unit in UNITS:
                self.assertRegex(expression, rf"{UNITS[unit]}|:ratio|_bytes:|:state_bytes",
                                 f"{name}: {panel['title']}")
            elif unit == "short":
                self.assertNotRegex(expression, r"^\w+_(seconds|bytes)$", panel["title"])


class Live(unittest.TestCase):
    """Rates are taken over 30 s, scrapes come every second, so that the test stays short."""

    @classmethod
    def setUpClass(cls):
        # Short prompts: what is tested is data in every panel, not speed.
        cls.pair = h.Pair(decode_flags=["--min-compress-tokens", "0", "--theta", "0.4"])
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="akv-prometheus."))
        cls.port = cls.free_port()
        cls.write_configuration()
        cls.log = open(cls.folder / "log", "wb")
        cls.prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={cls.folder}/prometheus.yml",
             f"--storage.tsdb.path={cls.folder}/data",
             f"--web.listen-address=127.0.0.1:{cls.port}"],
            cwd=cls.folder, stdout=cls.log, stderr=cls.log)
        try:
            cls.traffic()
        except BaseException:
            cls.tearDownClass()
            raise

    @staticmethod
    def free_port():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    @classmethod
    def write_configuration(cls):
        """deploy/prometheus as it is, but for the intervals and the targets' addresses."""
        for name in ("recording.yml", "alerts.yml"):
            shutil.copy(support.DEPLOY / "prometheus" / name, cls.folder)
        text = (support.DEPLOY / "prometheus/prometheus.yml").read_text()
        for setting in ("scrape_interval", "scrape_timeout", "evaluation_interval"):
            text = re.sub(rf"{setting}: \w+", f"{setting}: 1s", text)
        (cls.folder / "prometheus.yml").write_text(text)
        (cls.folder / "targets").mkdir()
        for name, daemon in (("prefill", cls.pair.prefill), ("decode", cls.pair.decode)):
            (cls.folder / f"targets/{name}.yml").write_text(
                json.dumps([{"targets": [daemon.ready["metrics"]]}]))

    @classmethod
    def traffic(cls):
        h.wait_until(lambda: cls.query('sum(up{job=~"akv-.*"})') == ["2"], 60, "both scraped")
        for seed in range(3):
            status, reply = h.post(cls.pair.decode, "/v1/completions",
                                   h.completion(h.long_prompt(200, seed), max_tokens=4))
            assert status == 200, reply
            assert reply["kv"]["codec"] == "anchorkv", reply["kv"]
        # Rules are evaluated every second; a rate needs two samples after the first count.
        h.wait_until(lambda: cls.query("akv:ttft_slow:ratio_rate1h"), 30, "recording rules")
        time.sleep(3)

    @classmethod
    def tearDownClass(cls):
        cls.prometheus.terminate()
        cls.prometheus.wait(20)
        cls.log.close()
        cls.pair.__exit__(None, None, None)
        shutil.rmtree(cls.folder)

    @classmethod
    def query(cls, expression):
        """Values of an instant query; empty while Prometheus is not up."""
        url = f"http://127.0.0.1:{cls.port}/api/v1/query?" + urllib.parse.urlencode(
            {"query": expression.replace("$__rate_interval", "2m")})
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                result = json.load(answer)["data"]["result"]
        except OSError as error:
            if getattr(error, "code", 503) != 503:  # 503: starting
                raise AssertionError(f"{expression}: {error.read().decode()}") from error
            return []
        return [sample["value"][1] for sample in result]

    def test_every_expression_gives_data(self):
        empty, not_a_number = [], []
        for name, panel, expression in expressions():
            values = self.query(expression)
            line = f"{name}: {panel['title']}: {expression}"
            if not values:
                empty.append(line)
            elif "NaN" in values:
                not_a_number.append(line)
        self.assertEqual(empty, [])
        self.assertEqual(not_a_number, [])

    def test_every_name_of_the_rules_is_scraped(self):
        names = set().union(*(support.metrics_in(path.read_text())
                              for path in support.DEPLOY.glob("prometheus/*.yml")))
        for name in names:
            found = self.query(f'count({{__name__=~"{name}(_count)?"}})')
            self.assertTrue(found, name)

    def test_nothing_is_refused_by_promtool_and_a_scrape_is_small(self):
        for daemon in (self.pair.prefill, self.pair.decode):
            begin = time.monotonic()
            status, text = h.get(daemon, "/metrics", "metrics")
            seconds = time.monotonic() - begin
            self.assertEqual(status, 200)
            if shutil.which("promtool"):
                done = subprocess.run(["promtool", "check", "metrics"], input=text,
                                      capture_output=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            series = sum(not line.startswith(b"#") for line in text.splitlines())
            print(f"{daemon.program}: {series} series, {len(text)} bytes, {seconds * 1e3:.1f} ms")
            self.assertLess(series, 500)
            self.assertLess(len(text), 64 << 10)


if __name__ == "__main__":
    support.need("prometheus")
    for program in support.PROGRAMS:
        support.binary(program)
    if not h.MODEL.exists():
        print(f"skipped: no model at {h.MODEL}")
        sys.exit(support.SKIPPED)
    support.main()
