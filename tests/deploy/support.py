"""Shared by the checks of deploy/: paths, what the binaries know, and skips that ctest counts."""
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BUILD = pathlib.Path(os.environ.get("AKV_BUILD_DIR", ROOT / "build/release"))
PROGRAMS = ("prefill_node", "decode_node")
SKIPPED = 77  # SKIP_RETURN_CODE of the ctest entries


def need(*tools):
    """Ends the entry as skipped where a tool of the system is missing."""
    for tool in tools:
        if shutil.which(tool) is None:
            print(f"skipped: no {tool} here")
            sys.exit(SKIPPED)


def need_module(name):
    try:
        return __import__(name)
    except ImportError:
        print(f"skipped: no Python module {name} here (deploy/install-deps.sh)")
        sys.exit(SKIPPED)


def run(*command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=120, **more)


def binary(program):
    path = BUILD / program / program
    if not path.exists():
        print(f"skipped: {path} is not built")
        sys.exit(SKIPPED)
    return path


@functools.lru_cache(maxsize=None)
def flags(program):
    """{--flag, …} of a daemon's --help."""
    done = run(binary(program), "--help")
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^\s+(--[a-z][a-z-]*)", done.stdout, re.M)) | {
        "--version", "--help", "--config", "--check", "--dump-config"}


def defaults(program):
    """The daemon's configuration without any flag, as --dump-config prints it."""
    done = run(binary(program), "--dump-config", env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def exported_metrics():
    """Names that the daemons' sources register; which of them carry data is the live test's."""
    names = set()
    for folder in ("prefill_node", "decode_node", "common/app", "common/metrics"):
        for path in (ROOT / folder).rglob("*.cc"):
            names |= set(re.findall(r'"(akv_[a-z_]+)"', path.read_text()))
    return names


def metrics_in(expression):
    """Names of exported metrics in a PromQL expression, without a histogram's suffixes."""
    return {re.sub(r"_(bucket|sum|count)$", "", name)
            for name in re.findall(r"(?<![\w:])akv_[a-z_]+", expression)}


def main():
    result = unittest.main(exit=False, verbosity=1).result
    if not result.wasSuccessful() or result.testsRun == 0:
        sys.exit(1)
    sys.exit(SKIPPED if len(result.skipped) == result.testsRun else 0)
