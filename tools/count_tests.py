#!/usr/bin/env python3
"""Sums ctest's JUnit reports in a folder and prints `N passed, N failed, N skipped`.

    count_tests.py FOLDER [--failed-if-none STATUS]

With `--failed-if-none STATUS` a STATUS other than 0 counts as one failure where the reports show
none: something broke outside of the tests, such as the build. Exits 1 if nothing passed.
"""
import pathlib
import sys
import xml.etree.ElementTree


def outcome(case):
    """passed, failed or skipped, for one <testcase> of ctest."""
    status = case.get("status")
    if status == "run":
        return "passed"
    if status == "disabled":
        return "skipped"
    skipped = case.find("skipped")
    # ctest calls a test that could not start `notrun` too: that one has failed.
    if status == "notrun" and skipped is not None:
        if skipped.get("message", "").startswith("SKIP_"):
            return "skipped"
    return "failed"


def count(folder):
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    for report in sorted(pathlib.Path(folder).glob("*.xml")):
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            totals[outcome(case)] += 1
    return totals


def main(arguments):
    totals = count(arguments[0])
    if arguments[1:2] == ["--failed-if-none"] and arguments[2] != "0" and totals["failed"] == 0:
        totals["failed"] = 1
    print(", ".join(f"{number} {name}" for name, number in totals.items()))
    return 0 if totals["passed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
