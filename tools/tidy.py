#!/usr/bin/env python3
"""House rules that no compiler checks. Prints `file:line: rule: what to do`; exits 1 if any.

    tidy.py [--root FOLDER] [--build FOLDER] [FILE...]

With FILEs only what can be said of each alone is checked (the commit hook does that); without, also
what holds between files. `--build` names a build folder whose compile commands must cover every
source. The rules are the functions below whose names begin with `rule_`; tests/tidy_test.py plants
a violation of each. Exceptions stand in tools/tidy_exceptions.txt with their reason.
"""
import argparse
import json
import os
import pathlib
import re
import sys

# A file includes its own folder and folders of lower levels. ARCHITECTURE.md has the picture,
# docs/decisions/0002-levels.md the reasons; cluster, server and python are there to come.
LEVELS = [
    {"base"}, {"tensor", "io"}, {"checkpoint", "kernels", "text"}, {"store"},
    {"experts", "convert"}, {"model", "cluster"}, {"engine"}, {"server", "python"}, {"cli"}]
LEVEL = {folder: level for level, folders in enumerate(LEVELS) for folder in folders}

COLUMNS_MAX = 100
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70

CXX = {".h", ".cc"}
DOCUMENTS = {".md", ".txt", ".json", ".tsv", ".toml"}
SOURCES = CXX | {".py", ".sh", ".cmake", ".rs"}
SKIPPED_FOLDERS = {".git", "build", "target", "models", "__pycache__"}
SCRIPT_NAMES = {"CMakeLists.txt", "commit-msg", "install_hooks", "pre-commit", "run"}

# pattern, where it may stand (path prefixes), what to write instead. Looked for in code, not in
# comments or strings.
BANNED = [
    (r"(?<![\w])assert\s*\(", (), "SMOE_CHECK, which stays in release builds"),
    (r"\breinterpret_cast\b",
     ("src/base/", "src/kernels/", "src/tensor/quantise_avx", "src/io/", "src/text/"),
     "LoadStruct or std::as_bytes; only base, kernels, io and text's C ABI may"),
    (r"\bstd::(cout|cerr|clog)\b", ("src/cli/", "bench/"), "base/log, or return a Result"),
    (r"\b(std::)?f?printf\s*\(", ("src/cli/", "src/base/check", "bench/"),
     "base/log, or return a Result"),
    (r"\busing\s+namespace\b", (), "the qualified name, or an alias inside the function"),
    (r"\bthrow\b", ("src/server/http", "python/"), "return a Result"),
    (r"\bstd::(format|expected|jthread|source_location)\b", (),
     "fmt, Result, std::thread: both compilers must have it"),
    (r"\bstd::regex\b", (), "a small parser: std::regex recurses on its input"),
    (r"\bsleep_for\b|\busleep\s*\(|\bsleep\s*\(", ("src/io/fake_", "bench/"),
     "wait for the event itself"),
    (r"\bDISABLED_", (), "mend the test or remove it"),
]
BANNED_IN = [
    (("src/experts/", "src/model/"), r"\bshared_ptr\b", "one owner: unique_ptr, or borrow"),
]
# A third-party header has one door each: the one file of src/ that includes it.
DOORS = [r"liburing\.h", r"nlohmann/", r"simdjson\.h", r"xxhash\.h", r"spdlog/", r"mpi\.h"]
# In two halves, so that this list does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(wo" r"rk|ho" r"me|ro" r"ot|Us" r"ers)/\w")


EXCEPTIONS = "tools/tidy_exceptions.txt"
EXCEPTION = re.compile(r"([^#\s:][^\s:]*(?::\S+)?)\s+(\d+)\s+\S.{9,}")


class Tree:
    """The files to look at, read once."""

    def __init__(self, root, names=None):
        self.root = pathlib.Path(root)
        self.names = sorted(names if names is not None else self._walk())
        self._texts = {}
        self.exceptions = self._read_exceptions()

    def _walk(self):
        for folder, folders, files in os.walk(self.root):
            folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS]
            for name in files:
                yield os.path.relpath(os.path.join(folder, name), self.root)

    def _read_exceptions(self):
        """{subject: lines allowed} from lines `subject lines reason`; # begins a comment."""
        path = self.root / EXCEPTIONS
        found = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            match = EXCEPTION.match(line)
            if match:
                found[match[1]] = int(match[2])
        return found

    def sources(self, suffixes=SOURCES):
        for name in self.names:
            path = pathlib.PurePosixPath(name)
            scripts = suffixes is SOURCES and (path.name in SCRIPT_NAMES)
            if path.suffix in suffixes or scripts:
                yield name

    def text(self, name):
        if name not in self._texts:
            self._texts[name] = (self.root / name).read_bytes().decode("utf-8", "replace")
        return self._texts[name]

    def lines(self, name):
        return self.text(name).split("\n")


# Comments, raw strings, strings, characters (but not the ' between digits).
LEXEME = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*\""""
    r"""|(?<![0-9a-zA-Z])'(?:\\.|[^'\\\n])+'""", re.DOTALL)


def code_of(text):
    """`text` with comments and literals blanked, line for line."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match[0])
    return LEXEME.sub(blank, text)


def rule_levels(tree):
    for name in tree.sources(CXX):
        parts = pathlib.PurePosixPath(name).parts
        if parts[0] != "src" or len(parts) < 3:
            continue
        here = parts[1]
        if here not in LEVEL:
            yield name, 1, f"folder '{here}' has no level; give it one in tools/tidy.py"
            continue
        for number, line in enumerate(tree.lines(name), 1):
            match = re.match(r'\s*#\s*include\s+"([a-z_]+)/', line)
            if not match or match[1] == here:
                continue
            there = match[1]
            if there not in LEVEL:
                yield name, number, f"include from '{there}', which has no level"
            elif LEVEL[there] >= LEVEL[here]:
                yield name, number, (f"{here} (level {LEVEL[here]}) includes {there} (level "
                                     f"{LEVEL[there]}); move what both need to a lower level")


def rule_ascii(tree):
    for name in tree.sources():
        for number, line in enumerate(tree.lines(name), 1):
            odd = [c for c in line if ord(c) > 126 or (ord(c) < 32 and c != "\t")]
            if odd:
                yield name, number, f"character U+{ord(odd[0]):04X}; write it as an escape"


def rule_pragma_once(tree):
    for name in tree.sources({".h"}):
        # The header that Rust and C share has a guard that C89 tools understand too.
        if not re.search(r"^#pragma once$", tree.text(name), re.M):
            yield name, 1, "add `#pragma once` after the opening comment"


def rule_columns(tree):
    for name in tree.sources():
        for number, line in enumerate(tree.lines(name), 1):
            if len(line) > COLUMNS_MAX:
                yield name, number, f"{len(line)} columns; break it at {COLUMNS_MAX}"


def rule_whitespace(tree):
    for name in tree.sources():
        for number, line in enumerate(tree.lines(name), 1):
            if line != line.rstrip():
                yield name, number, "remove the blanks at the end"
            if "\t" in line:
                yield name, number, "spaces, not tabs"
        if tree.text(name) and not tree.text(name).endswith("\n"):
            yield name, len(tree.lines(name)), "end the file with a newline"


def rule_file_length(tree):
    for name in tree.sources():
        count = len(tree.lines(name)) - 1
        allowed = max(FILE_LINES_MAX, tree.exceptions.get(name, 0))
        if count > allowed:
            yield name, count, (f"{count} lines, {allowed} allowed; split it, or give a reason in "
                                "tools/tidy_exceptions.txt")


def functions_of(text):
    """Yields (first line, line count, head) of each function body, by matching braces."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]),
                  code_of(text), flags=re.M)
    stack, statement, line, inside = [], "", 1, None
    for index, char in enumerate(code):
        if char == "\n":
            line += 1
        if char == "{":
            kind = "block"
            if inside is None:
                if index and (code[index - 1].isalnum() or code[index - 1] in "_>)="):
                    kind = "initialiser"
                elif re.search(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$", statement):
                    kind = "scope"
                elif "(" in statement and not re.search(r"=\s*$", statement):
                    kind = "function"
                    inside = (len(stack), line, " ".join(statement.split()))
            stack.append(kind)
        if char == "}" and stack:
            kind = stack.pop()
            if inside and len(stack) == inside[0]:
                yield inside[1], line - inside[1] + 1, inside[2]
                inside, statement = None, ""
                continue
            if kind == "initialiser":
                continue
        if inside is None:
            statement = "" if char in ";{}" and (not stack or stack[-1] != "initialiser") else (
                statement + char)


def name_of_function(head):
    macro = re.match(r"TEST(?:_[FP])?\s*\(\s*(\w+)\s*,\s*(\w+)", head)
    if macro:
        return f"{macro[1]}.{macro[2]}"
    match = re.search(r"([\w:~]+)\s*\(", head)
    return match[1] if match else "?"


def rule_function_length(tree):
    for name in tree.sources(CXX):
        for number, count, head in functions_of(tree.text(name)):
            function = name_of_function(head)
            allowed = max(FUNCTION_LINES_MAX, tree.exceptions.get(f"{name}:{function}", 0))
            if count > allowed:
                yield name, number, (f"{function} has {count} lines, {allowed} allowed; let it "
                                     "decide and call smaller ones that compute")


def rule_banned(tree):
    for name in tree.sources(CXX):
        code = code_of(tree.text(name)).split("\n")
        applied = [(p, hint) for p, where, hint in BANNED if not name.startswith(tuple(where))]
        applied += [(p, hint) for where, p, hint in BANNED_IN if name.startswith(where)]
        for number, line in enumerate(code, 1):
            for pattern, hint in applied:
                match = re.search(pattern, line)
                if match:
                    yield name, number, f"`{match[0].strip()}`: instead {hint}"


def rule_todo(tree):
    for name in tree.sources():
        for number, line in enumerate(tree.lines(name), 1):
            if re.search(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b(?!\(#\d+\))", line):
                yield name, number, "a note without an issue number: add (#12), or do it now"


def rule_machine_paths(tree):
    for name in tree.names:
        if pathlib.PurePosixPath(name).suffix not in SOURCES | DOCUMENTS:
            continue
        for number, line in enumerate(tree.lines(name), 1):
            match = MACHINE_PATH.search(line)
            if match:
                yield name, number, f"`{match[0]}...` is a path of one machine; make it relative"


def rule_own_header_first(tree):
    for name in tree.sources({".cc"}):
        header = re.sub(r"(_test)?\.cc$", ".h", name)
        if not name.startswith("src/") or not (tree.root / header).exists():
            continue
        first = re.search(r'^#include\s+(\S+)', tree.text(name), re.M)
        wanted = '"' + header[len("src/"):] + '"'
        if first and first[1] != wanted and not name.endswith("_test.cc"):
            yield name, 1, f"include {wanted} first: it proves that the header stands alone"


def rule_one_door(tree):
    for door in DOORS:
        users = []
        for name in tree.sources(CXX):
            if not name.startswith("src/"):
                continue
            for number, line in enumerate(tree.lines(name), 1):
                if re.match(rf'\s*#\s*include\s+[<"]{door}', line):
                    users.append((name, number))
                    break
        for name, number in users[1:]:
            yield name, number, f"second door to {door}; the first is {users[0][0]}"


def rule_decisions_listed(tree):
    folder = "docs/decisions/"
    index = tree.text(folder + "README.md") if folder + "README.md" in tree.names else ""
    for name in tree.names:
        if name.startswith(folder) and name.endswith(".md") and not name.endswith("README.md"):
            if pathlib.PurePosixPath(name).name not in index:
                yield name, 1, f"list it in {folder}README.md"


def rule_commands_documented(tree):
    """The README's table has every command of the program."""
    name, document = "src/cli/commands.cc", "README.md"
    rows = [line for line in tree.lines(document) if line.startswith("| `")] if (
        document in tree.names) else []
    for number, line in enumerate(tree.lines(name) if name in tree.names else [], 1):
        command = re.match(r'\s*\{"([a-z-]+)", k[A-Z]', line)
        if command and not any(re.search(rf"`{command[1]}[ `]", row) for row in rows):
            yield name, number, f"give `{command[1]}` a row in the table of {document}"


def rule_exceptions(tree):
    """Each has a reason and is still about something: a split file takes its line with it."""
    for number, line in enumerate(tree.lines(EXCEPTIONS) if EXCEPTIONS in tree.names else [], 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = EXCEPTION.match(line)
        if not match:
            yield EXCEPTIONS, number, "want: FILE[:FUNCTION] LINES REASON"
        elif match[1].split(":")[0] not in tree.names:
            yield EXCEPTIONS, number, f"{match[1]}: no such file; remove the line"


def rule_goldens_named(tree):
    tests = [n for n in tree.sources() if re.search(r"_test\.(cc|py)$|_fuzz\.cc$|^tests/", n)]
    words = "\n".join(tree.text(n) for n in tests)
    for name in tree.names:
        path = pathlib.PurePosixPath(name)
        if name.startswith("tests/golden/") and path.name != "README.md" and path.name not in words:
            yield name, 1, "no test names this golden file; use it or remove it"
        if name.startswith("fuzz/corpus/") and len(path.parts) > 3:
            if f"corpus/{path.parts[2]}" not in words and path.parts[2] not in words:
                yield name, 1, f"no test names the corpus folder {path.parts[2]}"


def every_source_compiled(tree, build):
    """Every .cc is in the compile commands: a file that nothing builds rots unseen."""
    commands = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    compiled = {os.path.realpath(os.path.join(c["directory"], c["file"])) for c in commands}
    fuzzing = any(path.endswith("_fuzz.cc") for path in compiled)
    for name in tree.sources({".cc"}):
        if name.endswith("_fuzz.cc") and not fuzzing:
            continue
        if os.path.realpath(tree.root / name) not in compiled:
            yield name, 1, "nothing compiles it; add it to a CMakeLists.txt or remove it"


RULES = {name[len("rule_"):]: rule for name, rule in sorted(globals().items())
         if name.startswith("rule_")}
# These need the whole tree to say anything.
BETWEEN_FILES = {"one_door", "commands_documented", "decisions_listed", "exceptions",
                 "goldens_named"}


def violations(tree, build=None, whole=True):
    for name, rule in RULES.items():
        if whole or name not in BETWEEN_FILES:
            for path, number, message in rule(tree):
                if f"{path}:{name}" not in tree.exceptions:
                    yield f"{path}:{number}: {name}: {message}"
    if build and whole:
        for path, number, message in every_source_compiled(tree, build):
            yield f"{path}:{number}: compiled: {message}"


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--build")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args(arguments)
    tree = Tree(options.root, options.files or None)
    found = list(violations(tree, options.build, whole=not options.files))
    for line in found:
        print(line)
    print(f"tidy: {len(tree.names)} files, {len(found)} violations", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
