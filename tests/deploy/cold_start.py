#!/usr/bin/env python3
"""Seconds from the start of a pod's commands to ready, with nothing of it in the page cache.

usage: cold_start.py [--rounds 3]

Each daemon gets a folder of its own, as a pod on another host would: the installed build, a copy of
the model and of every library that it loads (the C library aside). Before a start the kernel drops
their pages. Measured is what a pod does: the init container's check of the model's hash, then the
daemon to its ready line; and the daemon alone, as where the hash was checked before. A decode node
is ready when /health/ready says 200: its prefill peer is up and the two have said hello. By hand: it
times.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import support

sys.path.insert(0, str(support.ROOT / "tests/integration"))
import harness as h  # noqa: E402

ALWAYS_LOADED = ("libc.so", "ld-linux", "libm.so")


class Pod(h.Daemon):
    """A daemon that starts from a folder of its own."""

    def __init__(self, folder, program, *flags):
        self.program, self.folder, self.process = program, folder / program, None
        self.flags = ("--control", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--ucx-tls", "tcp",
                      *flags)
        self.model = self.folder / "model.gguf"
        done = support.run("cmake", "--install", support.BUILD, "--prefix", self.folder)
        assert done.returncode == 0, done.stderr
        shutil.copy(h.MODEL, self.model)
        self.libraries = self.folder / "libraries"
        self.libraries.mkdir()
        text = support.run("ldd", self.folder / "bin" / program).stdout
        for name, path in re.findall(r"(\S+) => (/\S+)", text):
            if not name.startswith(ALWAYS_LOADED) and not path.startswith(str(self.folder)):
                shutil.copy(path, self.libraries / name)
        os.sync()

    def forget(self):
        """The kernel drops the pages of every file; the bytes that stay all the same."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        for path in files:
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        text = support.run("fincore", "--bytes", "--noheadings", "--output", "RES", *files).stdout
        return sum(map(int, text.split()))

    def check_hash(self):
        begin = time.monotonic()
        with open(self.model, "rb") as file:
            hashlib.file_digest(file, "sha256")
        return time.monotonic() - begin

    def start(self, *flags):
        """Seconds to the ready line."""
        self.log = tempfile.NamedTemporaryFile("w+b", suffix=f".{self.program}.log", delete=False)
        begin = time.monotonic()
        self.process = subprocess.Popen(
            [self.folder / "bin" / self.program, "--model", self.model, *self.flags, *flags],
            stdout=subprocess.PIPE, stderr=self.log,
            env={**os.environ, "LD_LIBRARY_PATH": str(self.libraries)})
        self.ready = self._wait_ready()
        return time.monotonic() - begin


def start_pair(prefill, decode, cold, hash_first):
    figures = {}
    for pod in (prefill, decode):
        figures[f"{pod.program} bytes cached before"] = pod.forget() if cold else None
    try:
        for pod in (prefill, decode):
            begin = time.monotonic()
            if hash_first:
                figures[f"{pod.program} hash"] = pod.check_hash()
            peer = ("--prefill", prefill.ready["control"]) if pod is decode else ()
            figures[f"{pod.program} start"] = pod.start(*peer)
            if pod is decode:
                h.wait_ready(decode)
            figures[f"{pod.program} ready"] = time.monotonic() - begin
    finally:
        for pod in (prefill, decode):
            if pod.process is not None:
                pod.close()
                pod.process = None
    return {key: value for key, value in figures.items() if value is not None}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    folder = pathlib.Path(tempfile.mkdtemp(prefix="akv-cold.", dir=support.BUILD))
    try:
        prefill = Pod(folder, "prefill_node")
        decode = Pod(folder, "decode_node", "--http", "127.0.0.1:0")
        for title, cold, hash_first in (("cold", True, False), ("cold, hash first", True, True),
                                        ("warm", False, False)):
            for _ in range(rounds):
                figures = start_pair(prefill, decode, cold, hash_first)
                print(json.dumps({"bench": "cold_start", "case": title, **{
                    key: round(value, 3) for key, value in figures.items()}}), flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    for name in support.PROGRAMS:
        support.binary(name)
    main()
