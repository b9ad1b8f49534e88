#!/usr/bin/env python3
"""Counts the test cases of one ctest run: 'N passed, N failed, N skipped'.

usage: count_tests.py REPORTS

REPORTS holds ctest.junit (of ctest --output-junit) and the XML report of each GoogleTest binary. A
ctest entry with a report counts by its cases, any other entry counts as one. An entry that failed
without a failed case in its report (it crashed, or ran past its time) counts as one failure. Exit
status 1 where anything failed or nothing ran.
"""

import pathlib
import sys
import xml.etree.ElementTree as xml


def count_cases(report):
    """(passed, failed, skipped) of one GoogleTest report."""
    passed = failed = skipped = 0
    for case in xml.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None:
            failed += 1
        elif case.get("result") == "skipped" or case.find("skipped") is not None:
            skipped += 1
        elif case.get("status") == "run":
            passed += 1
    return passed, failed, skipped


def count_entry(entry, reports):
    """The same of one ctest entry."""
    status = entry.get("status")
    if status == "disabled" or status == "notrun":
        return (0, 0, 1) if status == "disabled" else (0, 1, 0)
    if entry.find("skipped") is not None:
        return 0, 0, 1
    entry_failed = status == "fail" or entry.find("failure") is not None
    # A repeated entry writes NAME_1.xml beside NAME.xml: the last one counts.
    found = [reports / f"{entry.get('name')}{suffix}.xml" for suffix in ("_1", "")]
    report = next((path for path in found if path.exists()), None)
    if report is None:
        return (0, 1, 0) if entry_failed else (1, 0, 0)
    try:
        passed, failed, skipped = count_cases(report)
    except xml.ParseError:
        return 0, 1, 0
    if entry_failed and failed == 0:
        failed = 1
    return passed, failed, skipped


def main():
    reports = pathlib.Path(sys.argv[1])
    totals = [0, 0, 0]
    for entry in xml.parse(reports / "ctest.junit").getroot().iter("testcase"):
        totals = [sum(pair) for pair in zip(totals, count_entry(entry, reports))]
    print("{} passed, {} failed, {} skipped".format(*totals))
    sys.exit(1 if totals[1] or not totals[0] else 0)


if __name__ == "__main__":
    main()
