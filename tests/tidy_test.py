#!/usr/bin/env python3
"""Plants a violation of each rule of tools/tidy.py in a small tree: it must be found, there."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
sys.dont_write_bytecode = True
import tidy  # noqa: E402

HEADER = "// A header.\n#pragma once\n"
CLEAN = {
    "src/base/bytes.h": HEADER,
    "src/base/bytes.cc": '#include "base/bytes.h"\n\nint F() { return 1; }\n',
    "src/store/vault.cc": '#include "base/bytes.h"\n#include "io/file.h"\n',
    "src/io/file.h": HEADER,
    "README.md": "| `run [MODEL]` | answers |\n",
    "docs/decisions/README.md": "- 0001-first.md\n",
    "docs/decisions/0001-first.md": "# First\n",
}
# Written in pieces, so that tidy finds nothing in this file.
LONG_PATH = "/ho" + "me/someone/x"
NOTE = "TO" + "DO"


def found_in(files, build=None, names=None):
    with tempfile.TemporaryDirectory(prefix="smoe_tidy_") as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        if build is not None:
            commands = [{"directory": folder, "file": name} for name in build]
            (root / "build").mkdir()
            (root / "build" / "compile_commands.json").write_text(json.dumps(commands))
        tree = tidy.Tree(root, names)
        return list(tidy.violations(tree, root / "build" if build is not None else None, not names))


def body(line_count, head="int F() {", inside="  G();\n"):
    """A function of `line_count` lines."""
    return head + "\n" + inside * (line_count - 2) + "}\n"


# rule, file, its text, the line that must be named; several of a rule where it has several sides.
PLANTED = [
    ("levels", "src/base/up.cc", '#include "store/vault.h"\n', 1),
    ("levels", "src/io/sibling.cc", '\n#include "tensor/dtype.h"\n', 2),
    ("levels", "src/checkpoint/up.cc", '#include "store/expert_store.h"\n', 1),
    ("levels", "src/store/odd.cc", '#include "extras/x.h"\n', 1),
    ("levels", "src/extras/x.cc", "int x;\n", 1),
    ("ascii", "src/base/a.cc", "// caf\u00e9\n", 1),
    ("ascii", "tools/a.py", "x = 1\n# \u2192\n", 2),
    ("pragma_once", "src/base/a.h", "// A header.\nint F();\n", 1),
    ("columns", "src/base/a.cc", "// " + "x" * 98 + "\n", 1),
    ("columns", "tests/CMakeLists.txt", "# " + "x" * 99 + "\n", 1),
    ("whitespace", "src/base/a.cc", "int x; \n", 1),
    ("whitespace", "src/base/a.cc", "\tint x;\n", 1),
    ("whitespace", "src/base/a.cc", "int x;", 1),
    ("file_length", "src/base/a.cc", "int x;\n" * 801, 801),
    ("function_length", "src/base/a.cc", "int x;\n" + body(71), 2),
    ("function_length", "src/base/a.cc", body(71, "Foo::Foo(int a) : a_(a), b_{a} {"), 1),
    ("function_length", "src/base/a.cc", "namespace a {\nclass B {\n" + body(71) + "};\n}\n", 3),
    ("function_length", "src/base/a_test.cc", body(71, "TEST(A, B) {"), 1),
    ("function_length", "src/base/a.cc", body(71, "int F() {", '  G("}");  // }\n'), 1),
    ("function_length", "src/base/a.cc", body(71, "auto F(int a = 1) -> int {"), 1),
    ("banned", "src/base/a.cc", "void F() { assert(x); }\n", 1),
    ("banned", "src/store/a.cc", "auto* p = reinterpret_cast<int*>(q);\n", 1),
    ("banned", "src/model/a.cc", "void F() { std::cout << 1; }\n", 1),
    ("banned", "src/model/a.cc", 'void F() { std::fprintf(stderr, "x"); }\n', 1),
    ("banned", "src/model/a.cc", "using namespace std;\n", 1),
    ("banned", "src/model/a.cc", "void F() { throw 1; }\n", 1),
    ("banned", "src/model/a.cc", "std::expected<int, int> x;\n", 1),
    ("banned", "src/model/a.cc", "std::shared_ptr<int> p;\n", 1),
    ("banned", "src/experts/a.cc", "std::shared_ptr<int> p;\n", 1),
    ("banned", "src/text/a.cc", "std::regex r;\n", 1),
    ("banned", "src/base/a_test.cc", "TEST(A, DISABLED_B) {}\n", 1),
    ("banned", "src/base/a_test.cc", "void F() { std::this_thread::sleep_for(x); }\n", 1),
    ("todo", "src/base/a.cc", f"// {NOTE}: later\n", 1),
    ("machine_paths", "docs/a.md", f"see {LONG_PATH}\n", 1),
    ("machine_paths", "src/base/a.cc", f'auto p = "{LONG_PATH}";\n', 1),
    ("own_header_first", "src/io/file.cc", '#include <vector>\n\n#include "io/file.h"\n', 1),
    ("decisions_listed", "docs/decisions/0002-second.md", "# Second\n", 1),
    ("commands_documented", "src/cli/commands.cc", '    {"run", kTalk,\n    {"runs", kTalk,\n', 2),
    ("exceptions", "tools/tidy_exceptions.txt", "src/base/bytes.cc 900\n", 1),
    ("exceptions", "tools/tidy_exceptions.txt", "# x\nsrc/gone.cc 900 it was a long table\n", 2),
    ("goldens_named", "tests/golden/a.bin", "x", 1),
    ("goldens_named", "fuzz/corpus/header/a", "x", 1),
]


class Tidy(unittest.TestCase):
    def test_a_clean_tree_has_no_violation(self):
        self.assertEqual(found_in(CLEAN), [])

    def test_every_planted_violation_is_found_where_it_is(self):
        for rule, name, text, line in PLANTED:
            with self.subTest(rule=rule, text=text[:40]):
                found = found_in({**CLEAN, name: text})
                self.assertEqual([f"{name}:{line}: {rule}"],
                                 sorted({":".join(v.split(":")[:3]) for v in found}))

    def test_every_rule_has_a_planted_violation(self):
        planted = {rule for rule, *_ in PLANTED} | {"one_door"}
        self.assertEqual(planted, set(tidy.RULES))

    def test_a_library_has_one_door(self):
        door = "#include <liburing.h>\n"
        found = found_in({**CLEAN, "src/io/a.cc": door, "src/io/b.cc": door})
        self.assertEqual(len(found), 1)
        self.assertIn("src/io/b.cc:1: one_door", found[0])

    def test_a_source_that_nothing_compiles_is_found(self):
        compiled = [name for name in CLEAN if name.endswith(".cc")]
        self.assertEqual(found_in(CLEAN, build=compiled), [])
        found = found_in(CLEAN, build=compiled[1:])
        self.assertEqual(len(found), 1)
        self.assertIn(compiled[0] + ":1: compiled", found[0])

    def test_limits_hold_at_the_limit(self):
        for name, text in (("src/base/a.cc", body(70)), ("src/base/a.cc", "int x;\n" * 800),
                           ("src/base/a.cc", "// " + "x" * 97 + "\n")):
            self.assertEqual(found_in({**CLEAN, name: text}), [])

    def test_an_exception_is_a_ratchet(self):
        listed = {"tools/tidy_exceptions.txt":
                  "src/base/a.cc 810 one table of a published format\n"
                  "src/base/b.cc:F 80 one switch over all opcodes\n"
                  "src/base/c.cc:columns 0 lines as they were published\n"}
        short = {**CLEAN, **listed, "src/base/a.cc": "int x;\n" * 810, "src/base/b.cc": body(80),
                 "src/base/c.cc": "// " + "x" * 200 + "\n"}
        self.assertEqual(found_in(short), [])
        grown = {**short, "src/base/a.cc": "int x;\n" * 811, "src/base/b.cc": body(81)}
        self.assertEqual(len(found_in(grown)), 2)

    def test_words_in_comments_and_strings_are_not_code(self):
        text = ('// assert(x), using namespace\nstatic_assert(true);\nconst char* a = "throw 1";\n'
                "const int b = 1'000'000;\n/* std::cout */\n"
                'const char* c = R"(using namespace {)";\n')
        self.assertEqual(found_in({**CLEAN, "src/base/a.cc": text}), [])

    def test_braces_of_data_and_types_are_no_functions(self):
        for text in (body(90, "constexpr int kX[] = {", "  1,\n").replace("}\n", "};\n"),
                     body(90, "struct A {", "  int x;\n").replace("}\n", "};\n"),
                     body(90, "namespace a {", "int F();\n"),
                     body(90, "const std::map<int, int> kX = {", "  {1, F(2)},\n") + ";\n"):
            self.assertEqual(found_in({**CLEAN, "src/base/a.cc": text}), [])

    def test_named_files_alone_are_checked_alone(self):
        files = {**CLEAN, "src/base/a.cc": "int x; \n", "src/base/b.cc": "int x; \n"}
        found = found_in(files, names=["src/base/a.cc"])
        self.assertEqual(["src/base/a.cc"], [v.split(":")[0] for v in found])


if __name__ == "__main__":
    unittest.main()
