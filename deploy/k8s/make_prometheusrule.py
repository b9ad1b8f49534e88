#!/usr/bin/env python3
"""Writes overlays/monitoring/prometheusrule.yaml from ../prometheus; a test holds the file to it.

usage: make_prometheusrule.py [FILE]
"""
import pathlib
import sys

HEAD = """# Written by make_prometheusrule.py from deploy/prometheus: change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: anchorkv
spec:
  groups:
"""


def main():
    here = pathlib.Path(__file__).resolve().parent
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else (
        here / "overlays/monitoring/prometheusrule.yaml")
    lines = []
    for name in ("recording", "alerts"):
        text = (here.parent / f"prometheus/{name}.yml").read_text()
        lines += text.split("\ngroups:\n", 1)[1].splitlines()
    output.write_text(HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines))


if __name__ == "__main__":
    main()
