#!/usr/bin/env python3
"""Checks the rules of the tree: layers (who includes whom), figures (sizes, pages), third-party
(each library that a daemon links is named in THIRD_PARTY.md).

usage: check.py layers|figures
       check.py third-party BINARY…
       check.py tests

`tests` shows on small made-up trees that each rule finds what it is there to find. Exit status 1 on
any fault.
"""

import pathlib
import subprocess
import sys

import figures
import layers
import rules_test
import third_party

ROOT = pathlib.Path(__file__).resolve().parents[2]


def tree(suffixes):
    """{path: text} of the tracked files, and of new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
        check=True, capture_output=True).stdout.decode().split("\0")
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in listed
            if path.endswith(suffixes) and (ROOT / path).is_file()}


def main(arguments):
    if arguments == ["layers"]:
        faults = layers.check({path: text for path, text in tree((".h", ".cc", ".cu", ".cuh")).items()
                               if layers.module_of(path)})
    elif arguments == ["figures"]:
        faults = figures.check(tree((".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".md")))
    elif arguments[:1] == ["third-party"] and len(arguments) > 1:
        faults = third_party.check((ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8"),
                                   third_party.linked_libraries(arguments[1:]))
    elif arguments == ["tests"]:
        return rules_test.run()
    else:
        print(__doc__, file=sys.stderr)
        return 2
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
