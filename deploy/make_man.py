#!/usr/bin/env python3
"""Writes a man page from a daemon's --help, compressed the way Debian wants it.

usage: make_man.py PROGRAM VERSION OUTPUT.1.gz
"""
import gzip
import pathlib
import re
import subprocess
import sys


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return "\\&" + text if text.startswith((".", "'")) else text


def options(lines):
    """.TP entries: an option, and its words on the same or on the following lines."""
    for line in lines:
        match = re.match(r"  (--\S.*?)(?:\s{2,}(.*))?$", line)
        if match and line.startswith("  --"):
            yield ".TP\n.B " + escape(match[1])
            if match[2]:
                yield escape(match[2])
        elif line.startswith("    "):
            yield escape(line.strip())
        elif line.strip():
            yield ".SS " + escape(line.strip())


def page(name, version, text):
    summary = re.match(rf"{name}: (.*)", text)[1]
    body, end = text.split("\n\nA flag beats", 1)
    lines = body.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  --"))
    usage = next(line for line in lines if line.startswith("usage: ")).removeprefix("usage: ")
    return "\n".join([
        f'.TH {name.upper()} 1 "" "anchorkv {version}" "AnchorKV"',
        ".SH NAME", f"{escape(name)} \\- {escape(summary)}",
        ".SH SYNOPSIS", escape(usage),
        ".SH OPTIONS", *options(lines[first:]),
        ".SH ENVIRONMENT AND EXIT STATUS",
        *(escape(line) for line in ("A flag beats" + end).strip().splitlines()),
        ".SH SEE ALSO", "The units anchorkv\\-prefill.service and anchorkv\\-decode.service; "
        "/usr/share/doc/anchorkv/RUNBOOK.md.", ""])


def main():
    program, version, output = sys.argv[1:4]
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    roff = page(pathlib.PurePath(program).name, version, text)
    # No name and no time in the gzip header: the same input gives the same bytes.
    pathlib.Path(output).write_bytes(gzip.compress(roff.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
