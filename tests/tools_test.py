#!/usr/bin/env python3
"""Tests of the project's own scripts: counting, the commit hooks, the package list, embedding."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROJECT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = PROJECT / "tools"

# As ctest 3.25 writes it: the four kinds of outcome, and a program that could not start.
REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="(empty)" tests="5" failures="1" disabled="1" skipped="1">
  <testcase name="a" status="run"/>
  <testcase name="b" status="fail"><failure message=""/></testcase>
  <testcase name="c" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
  <testcase name="d" status="disabled"/>
  <testcase name="e" status="notrun"><skipped message="Unable to find executable"/></testcase>
</testsuite>
"""


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


class CountTests(unittest.TestCase):
    def count(self, reports, *arguments):
        with tempfile.TemporaryDirectory(prefix="smoe_count_") as folder:
            for index, text in enumerate(reports):
                (pathlib.Path(folder) / f"{index}.xml").write_text(text)
            return run(sys.executable, TOOLS / "count_tests.py", folder, *arguments)[:2]

    def test_sums_reports_and_calls_what_could_not_start_failed(self):
        self.assertEqual(self.count([REPORT]), (0, "1 passed, 2 failed, 2 skipped"))
        self.assertEqual(self.count([REPORT, REPORT]), (0, "2 passed, 4 failed, 4 skipped"))

    def test_no_report_is_no_success(self):
        self.assertEqual(self.count([]), (1, "0 passed, 0 failed, 0 skipped"))
        self.assertEqual(self.count([], "--failed-if-none", "1"),
                         (1, "0 passed, 1 failed, 0 skipped"))


class CommitMessage(unittest.TestCase):
    def check(self, message):
        with tempfile.NamedTemporaryFile("w", prefix="smoe_message_") as file:
            file.write(message)
            file.flush()
            return run(TOOLS / "commit-msg", file.name)[0]

    def test_takes_area_and_subject_of_sixty_characters(self):
        self.assertEqual(self.check("store: " + "x" * 53 + "\n\nWhy.\n"), 0)
        self.assertEqual(self.check("store: " + "x" * 54 + "\n"), 1)

    def test_refuses_a_subject_without_area_or_with_a_full_stop(self):
        self.assertEqual(self.check("Fix the store\n"), 1)
        self.assertEqual(self.check("store: pin all experts.\n"), 1)
        self.assertEqual(self.check("Merge branch 'x'\n"), 0)


class PreCommit(unittest.TestCase):
    """In a scratch repository that has the tools and one staged file."""

    def check(self, name, content):
        with tempfile.TemporaryDirectory(prefix="smoe_hook_") as folder:
            root = pathlib.Path(folder)
            run("git", "init", "-q", root)
            (root / "tools").symlink_to(TOOLS)
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
            run("git", "add", name, cwd=root)
            return run(root / "tools" / "pre-commit", cwd=root)

    def test_takes_a_clean_file_and_names_what_is_wrong_with_others(self):
        self.assertEqual(self.check("docs/a.md", b"Fine.\n")[0], 0)
        status, _, said = self.check("data/big.bin", b"\0" * (1024 * 1024 + 1))
        self.assertEqual(status, 1)
        self.assertIn("data/big.bin: 1048577 bytes, 1048576 allowed", said)
        self.assertEqual(self.check("data/fits.bin", b"\0" * (1024 * 1024))[0], 0)


class Packages(unittest.TestCase):
    def test_list_prints_names_and_installs_nothing(self):
        status, names, _ = run(TOOLS / "setup.sh", "--list")
        self.assertEqual(status, 0)
        self.assertIn("libexpected-dev", names.split())
        self.assertNotIn("clang-14", names.split())
        self.assertIn("clang-14", run(TOOLS / "setup.sh", "--dev", "--list")[1].split())

    def test_unknown_option_is_refused_by_name(self):
        status, _, said = run(TOOLS / "setup.sh", "--frob")
        self.assertEqual(status, 1)
        self.assertIn("--frob", said)


class Embed(unittest.TestCase):
    def test_every_byte_value_arrives(self):
        with tempfile.TemporaryDirectory(prefix="smoe_embed_") as folder:
            root = pathlib.Path(folder)
            content = bytes(range(256)) + b"tail"
            (root / "in.bin").write_bytes(content)
            done = run("cmake", f"-DFILE={root}/in.bin", f"-DSOURCE={root}/out.cc",
                       "-DSYMBOL=Bytes", "-P", PROJECT / "cmake" / "EmbedFile.cmake")
            self.assertEqual(done[0], 0, done)
            text = (root / "out.cc").read_text()
            values = [int(part[:2], 16) for part in text.split("'\\x")[1:]]
            self.assertEqual(bytes(values), content)
            self.assertIn(f"return {{kBytes, {len(content)}}};", text)


if __name__ == "__main__":
    unittest.main()
