"""Limits of size and form that every source file keeps, and each folder's page."""

import posixpath
import re

MAX_FILE_LINES = 800
# Scripts may be wider than C++, whose width clang-format keeps anyway.
MAX_LINE_CHARACTERS = {".h": 100, ".cc": 100, ".cu": 100, ".cuh": 100, ".py": 110, ".sh": 110}
# Words of comments that mean unfinished work.
_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_SOURCE = (".h", ".cc", ".cu", ".cuh", ".py", ".sh")


def check_file(path, text):
    """Faults of one file, as lines for people."""
    faults = []
    lines = text.split("\n")
    suffix = posixpath.splitext(path)[1]
    width = MAX_LINE_CHARACTERS[suffix]
    if len(lines) > MAX_FILE_LINES:
        faults.append(f"{path}: {len(lines)} lines, at most {MAX_FILE_LINES}")
    for number, line in enumerate(lines, 1):
        if len(line) > width:
            faults.append(f"{path}:{number}: {len(line)} characters, at most {width}")
        if line != line.rstrip() or "\t" in line:
            faults.append(f"{path}:{number}: a tab or spaces at the end")
        if _UNFINISHED.search(line) and not path.startswith("tests/rules/"):
            faults.append(f"{path}:{number}: unfinished: {line.strip()}")
    # An -inl.h is compiled once for each instruction set, so it is guarded by its own means.
    if suffix in (".h", ".cuh") and not path.endswith("-inl.h") and "#pragma once" not in text:
        faults.append(f"{path}: no #pragma once")
    if text and not text.endswith("\n"):
        faults.append(f"{path}: no newline at the end")
    return faults


def check(files):
    """Faults of a tree given as {path: text}: sources, and a README.md for each folder of them."""
    faults = []
    folders = set()
    for path, text in sorted(files.items()):
        # Golden data comes with the scripts that made it, kept as they ran.
        if not path.endswith(_SOURCE) or path.startswith("tests/golden/"):
            continue
        faults += check_file(path, text)
        if path.endswith((".h", ".cc", ".cu", ".cuh")):
            folders.add(posixpath.dirname(path))
    for folder in sorted(folders):
        # The folders of tests share one page.
        page = "tests" if folder.startswith("tests/") else folder
        if f"{page}/README.md" not in files:
            faults.append(f"{page}: no README.md")
    return sorted(set(faults))
