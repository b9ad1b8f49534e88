#!/usr/bin/env python3
"""Scrape configuration, rules and their cases: promtool, names, and the page they link to."""
import re
import unittest

import support

yaml = support.need_module("yaml")
PROMETHEUS = support.DEPLOY / "prometheus"
RULES = [PROMETHEUS / name for name in ("recording.yml", "alerts.yml")]
CASES = sorted((support.ROOT / "tests/deploy/prometheus").glob("*_test.yml"))


def rules():
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def alerts():
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


class Promtool(unittest.TestCase):
    def promtool(self, *arguments):
        done = support.run("promtool", *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_rules_and_configuration_are_valid(self):
        self.promtool("check", "rules", *RULES)
        self.promtool("check", "config", PROMETHEUS / "prometheus.yml")

    def test_cases_hold(self):
        self.promtool("test", "rules", *CASES)


class Names(unittest.TestCase):
    def test_every_metric_is_exported(self):
        exported = support.exported_metrics()
        self.assertIn("akv_ttft_seconds", exported)
        for rule in rules():
            self.assertLessEqual(support.metrics_in(rule["expr"]), exported, rule)

    def test_every_recorded_name_that_is_used_is_recorded(self):
        recorded = {rule["record"] for rule in rules() if "record" in rule}
        for rule in rules():
            used = set(re.findall(r"akv:[a-z0-9_:]+", rule["expr"]))
            self.assertLessEqual(used, recorded, rule)


class EveryAlert(unittest.TestCase):
    def test_has_a_case_for_firing_and_one_for_silence(self):
        fires, silent = set(), set()
        for path in CASES:
            for case in yaml.safe_load(path.read_text())["tests"]:
                for check in case["alert_rule_test"]:
                    if check["exp_alerts"]:
                        fires.add(check["alertname"])
                    elif case["name"].endswith("is silent"):
                        silent.add(check["alertname"])
        self.assertEqual(fires, set(alerts()))
        self.assertEqual(silent, set(alerts()))

    def test_links_a_paragraph_of_the_runbook(self):
        runbook = (support.DEPLOY / "RUNBOOK.md").read_text()
        paragraphs = dict(re.findall(r"^### (\w+)\n(.*?)(?=^#|\Z)", runbook, re.M | re.S))
        self.assertEqual(set(paragraphs), set(alerts()))
        for name, rule in alerts().items():
            self.assertEqual(rule["annotations"]["runbook"],
                             f"deploy/RUNBOOK.md#{name.lower()}")
            for word in ("Means:", "Look at:", "Do:"):
                self.assertIn(word, paragraphs[name], name)
            self.assertIn(rule["labels"]["severity"], ("page", "ticket"))


if __name__ == "__main__":
    support.need("promtool")
    support.main()
