"""The rules of the house, as functions from text to a list of violations.

Each takes what it checks as an argument, so that test_structure.py can plant a
violation and prove that it is caught.
"""

import ast
import itertools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The floors of ARCHITECTURE.md. A crate may depend on lower floors, and on its
# own floor where that makes no circle.
FLOORS = {
    "base": 1,
    "protocols": 2,
    "codec": 2,
    "planner": 2,
    "control": 2,
    "ledger": 2,
    "balance": 2,
    "simulator": 3,
    "network": 3,
    "capture": 3,
    "image": 3,
    "node": 3,
    "stacks": 3,
    "vault": 4,
    "objects": 4,
    "minickpt": 4,
    "keeper": 4,
    "copies": 5,
    "agent": 5,
    "memory-server": 5,
    "client": 5,
    "sessions": 5,
    "launch": 5,
    "coordinator": 5,
    "collectives": 5,
    "mpilib": 5,
    "runtime": 5,
    "mpi": 6,
    "balance-mpi": 6,
    "python": 6,
    "cli": 6,
}
PURE = [name for name, floor in FLOORS.items() if floor == 2]

LINES_WARN = 500
LINES_MAX = 700
# Longer files, each with its reason.
LONG = {
    # Fortran 2008 has no generics over kind and rank: 35 procedures alike in one module.
    "crates/client/fortran/outlive.f90",
}

# What a pure crate may not name, as paths after `use` groups are spread out.
IMPURE = {
    r"\bstd::net\b": "std::net",
    r"\bstd::fs\b": "std::fs",
    r"\bstd::env\b": "std::env",
    r"\bstd::process\b": "std::process",
    r"\bstd::time::(Instant|SystemTime)\b": "the clock",
    r"\b(Instant|SystemTime)::now\b": "the clock",
    r"\bHash(Map|Set)\b": "HashMap or HashSet, whose order is random",
    r"\b(tokio|async_std|smol|futures)::": "an async runtime",
    r"\basync\s+(fn|move|\{)": "async code",
}
THREADS = {
    r"\bstd::thread\b": "threads",
    r"\bthread::(spawn|scope)\b": "threads",
    r"\b(rayon|crossbeam\w*)::": "threads",
}
IMPURE_CRATES = {"tokio", "async-std", "smol", "futures", "rand", "getrandom", "rustix", "libc"}


def floor_violations(crates: dict[str, dict]) -> list[str]:
    """`crates`: directory name -> parsed Cargo.toml."""
    found = []
    edges: dict[str, set[str]] = {}
    for name, manifest in crates.items():
        if name not in FLOORS:
            found.append(f"crates/{name} has no floor: add it to FLOORS and ARCHITECTURE.md")
            continue
        tables = [manifest, *manifest.get("target", {}).values()]
        depends: set[str] = set()
        for table in tables:
            for kind in ("dependencies", "build-dependencies"):
                depends |= set(table.get(kind, {}))
        inner = {d.removeprefix("outlive-") for d in depends if d.startswith("outlive-")}
        edges[name] = inner
        for other in sorted(inner):
            if other not in FLOORS:
                found.append(f"crates/{name} depends on outlive-{other}, which has no floor")
            elif FLOORS[other] > FLOORS[name]:
                found.append(
                    f"crates/{name} (floor {FLOORS[name]}) depends upwards on "
                    f"{other} (floor {FLOORS[other]})"
                )
        if name in PURE:
            for crate in sorted(depends & IMPURE_CRATES):
                found.append(f"crates/{name} is pure and depends on {crate}")
    return found + circles(edges)


def circles(edges: dict[str, set[str]]) -> list[str]:
    """Circles among the crates."""
    found, done = [], set()

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            found.append("circle: " + " -> ".join([*path[path.index(name) :], name]))
            return
        if name not in done:
            for other in sorted(edges.get(name, ())):
                walk(other, [*path, name])
            done.add(name)

    for name in sorted(edges):
        walk(name, [])
    return found


def file_edges(sources: dict[tuple[str, ...], str]) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Which module's file names which other's, by module path; tests are exempt. Between a
    module and what lies in its folder there is no edge."""
    edges: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for module, source in sources.items():
        found: set[tuple[str, ...]] = set()
        code = "" if module[-1:] == ("tests",) else spread(without_tests(code_only(source)))
        for match in re.finditer(r"\b(crate|super|self)((?:::\w+)+)", code):
            names = match[2].split("::")[1:]
            path = {"crate": (), "self": module}.get(match[1], module[:-1])
            while names and names[0] == "super":
                path, names = path[:-1], names[1:]
            full = (*path, *names)
            while full and full not in sources:
                full = full[:-1]
            if full in sources and full[: len(module)] != module and module[: len(full)] != full:
                found.add(full)
        edges[module] = found
    return edges


def module_edges(header: str, sources: dict[str, str]) -> dict[str, set[str]]:
    """Which file of a kernel module calls what another declares: the header names, before its
    declarations, the file that each group is of."""
    home: dict[str, str] = {}
    file = ""
    for line in header.splitlines():
        if section := re.fullmatch(r"/\* (\w+\.c) \*/", line):
            file = section[1]
        elif file and (name := re.search(r"(\w+)(?:\(|;)", line)):
            home[name[1]] = file
    edges = {}
    for name, source in sources.items():
        code = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
        words = set(re.findall(r"\w+", code))
        edges[name] = {home[word] for word in words & home.keys()} - {name}
    return edges


def file_circles(crate: str, sources: dict[tuple[str, ...], str]) -> list[str]:
    """Circles among the files of a crate; each module is named by its path below `src`."""
    edges = file_edges(sources)
    reach: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for module in edges:
        seen, next_ones = set(), list(edges[module])
        while next_ones:
            one = next_ones.pop()
            if one not in seen:
                seen.add(one)
                next_ones += edges[one]
        reach[module] = seen
    rooms = sorted(module for module in edges if module in reach[module])
    return [f"crates/{crate}: {'/'.join(room)} needs itself by way of others" for room in rooms]


# Files that name a level, each with what it names it for. All others ask what a level is (its
# store, scheme, members, what it survives), so that a new one need not be told to them.
NAME_LEVELS = {
    "crates/cli/src/bench/tiers.rs": "compares two levels",
    "crates/cli/src/plan/words.rs": "what --levels calls the schemes of the planner",
    "crates/control/src/inject.rs": "which copy is damaged if the user names none",
    "crates/control/src/node/copies.rs": "what the copies of a node are called",
    "crates/control/src/node/core/opening.rs": "copies that may be there and are not recorded",
    "crates/control/src/node/core/through.rs": "the one level that is made of a container",
    "crates/control/src/node/shell.rs": "what the targets of a writing are called",
    "crates/control/src/node/still.rs": "nodes of unit tests",
    "crates/ledger/src/retention.rs": "what a version of unknown levels may have had",
    "crates/protocols/src/commit/types.rs": "the levels of a machine that is told of none",
    "crates/vault/src/vault.rs": "what the copies of a store are called",
    "crates/vault/src/versions.rs": "copies that may be there and are not recorded",
}


def level_violations(sources: dict[str, str], reasons: dict[str, str] = NAME_LEVELS) -> list[str]:
    """`sources`: path -> Rust source. The crate that defines levels, simulated jobs, which draw
    theirs, and tests are exempt."""
    exempt = re.compile(r"crates/(base|simulator)/|/(tests|benches|examples)/|/tests\.rs$")
    named = set()
    for path, source in sources.items():
        code = "" if exempt.search(path) else without_tests(code_only(source))
        if re.search(r"\bLevel\s*::\s*(MEMORY|DISK|PARTNER|SHARED)\b", code):
            named.add(path)
    unknown = [f"{path} names a level: ask what it is" for path in sorted(named - set(reasons))]
    idle = [f"{path} names none: strike it out" for path in sorted(set(reasons) - named)]
    return unknown + idle


# Where the names of what lies in a job's directory are written, and what may join them to a path.
JOB_LAYOUT = "crates/launch/src/layout.rs"
JOINED = re.compile(r'\.join\(\s*"([^"]+)"\s*\)')


def layout_violations(sources: dict[str, str]) -> list[str]:
    """`sources`: path -> Rust source. A name of `STORE/JOB` is joined to a path by its constant."""
    names = set(re.findall(r'const \w+: &str = "([^"]+)";', sources[JOB_LAYOUT]))
    exempt = re.compile(r"/(tests|benches|examples)/|/tests\.rs$|/layout\.rs$")
    return [
        f"{path} joins {name!r}: use the constant of {JOB_LAYOUT}"
        for path, source in sorted(sources.items())
        if re.match(r"crates/(launch|cli)/", path) and not exempt.search(path)
        for name in JOINED.findall(without_tests(source))
        if name in names
    ]


def code_only(source: str) -> str:
    """Rust source with comments and the contents of strings blanked; lines stay."""
    out, i, n = [], 0, len(source)
    raw = re.compile(r'\bb?r(#*)"')
    char = re.compile(r"b?'(\\(x[0-9a-fA-F]{2}|u\{[0-9a-fA-F_]+\}|.)|[^'\\\n])'")
    while i < n:
        two = source[i : i + 2]
        if two == "//":
            end = source.find("\n", i)
            i = n if end < 0 else end
            continue
        if two == "/*":
            depth, start = 1, i
            i += 2
            while i < n and depth:
                if source.startswith("/*", i):
                    depth, i = depth + 1, i + 2
                elif source.startswith("*/", i):
                    depth, i = depth - 1, i + 2
                else:
                    i += 1
            out.append("\n" * source.count("\n", start, i))
            continue
        match = raw.match(source, i)
        if match:
            end = source.find('"' + match[1], match.end())
            end = n if end < 0 else end + 1 + len(match[1])
            out.append('""' + "\n" * source.count("\n", i, end))
            i = end
            continue
        if source[i] == '"':
            start = i
            i += 1
            while i < n and source[i] != '"':
                i += 2 if source[i] == "\\" else 1
            i += 1
            out.append('""' + "\n" * source.count("\n", start, i))
            continue
        match = char.match(source, i)
        if match:
            out.append("' '")
            i = match.end()
            continue
        out.append(source[i])
        i += 1
    return "".join(out)


def block_end(code: str, opening: int) -> int:
    """The position after the brace that closes the one at `opening`."""
    depth = 0
    for i in range(opening, len(code)):
        depth += (code[i] == "{") - (code[i] == "}")
        if depth == 0:
            return i + 1
    return len(code)


def without_tests(code: str) -> str:
    """Code (see code_only) without its #[cfg(test)] items; lines stay."""
    while match := re.search(r"#\[cfg\(test\)\]", code):
        brace, semicolon = code.find("{", match.end()), code.find(";", match.end())
        if brace < 0 or 0 <= semicolon < brace:
            end = len(code) if semicolon < 0 else semicolon + 1
        else:
            end = block_end(code, brace)
        code = code[: match.start()] + "\n" * code.count("\n", match.start(), end) + code[end:]
    return code


def spread(code: str) -> str:
    """`use a::{b, c::{d}};` as `use a::b;use a::c::d;` on the first line."""

    def paths(prefix: str, tree: str) -> list[str]:
        found, depth, start = [], 0, 0
        for i, letter in enumerate(tree + ","):
            depth += (letter == "{") - (letter == "}")
            if letter == "," and depth == 0:
                item = tree[start:i].strip()
                start = i + 1
                if item.endswith("}") and "{" in item:
                    head, _, rest = item.partition("{")
                    found += paths(prefix + head.strip(), rest[:-1])
                elif item:
                    found.append(prefix + item)
        return found

    def one(match: re.Match) -> str:
        tree = re.sub(r"\s+", " ", match[1])
        flat = "".join(f"use {path};" for path in paths("", tree))
        return flat + "\n" * match[0].count("\n")

    return re.sub(r"\buse\s+([^;]*\{[^;]*\})\s*;", one, code)


def lines_matching(code: str, patterns: dict[str, str]) -> list[tuple[int, str]]:
    """Line numbers (from 1) and what was found there."""
    found = []
    for number, line in enumerate(code.splitlines(), 1):
        for pattern, what in patterns.items():
            if re.search(pattern, line):
                found.append((number, what))
    return found


def purity_violations(crate: str, path: str, source: str) -> list[str]:
    """A source file of a pure crate; tests are exempt."""
    if crate not in PURE:
        return []
    code = spread(without_tests(code_only(source)))
    patterns = IMPURE | (THREADS if crate == "protocols" else {})
    return [f"{path}:{n}: {what} in a pure crate" for n, what in lines_matching(code, patterns)]


def unfinished_violations(path: str, source: str) -> list[str]:
    """todo!, unimplemented!, and tests ignored without a reason."""
    patterns = {
        r"\btodo!\s*[(\[{]": "todo!()",
        r"\bunimplemented!\s*[(\[{]": "unimplemented!()",
        r"#\[ignore\]": "#[ignore] without a reason",
    }
    return [f"{path}:{n}: {what}" for n, what in lines_matching(code_only(source), patterns)]


# A seed that is written down makes a randomised test one test. See crates/base/src/seed.rs.
FIXED_SEEDS = {
    ".rs": {
        r"\bSequence::new\(\s*(0x)?\d": "a fixed seed (use seed!())",
        r"\bdraw\(\s*(0x)?\d+,": "a fixed seed (use seed!())",
        r"\bseed in \(?[\d\[]": "fixed seeds (use seeds!(N))",
        r"\b(sweep\w*|run_seed)\(\s*\d": "a fixed seed (use seed!())",
        r"6364136223846793005|<< 13;": "a random source of its own (use base::rng)",
        r"failure_persistence: None": "seeds that failed are not kept",
    },
    ".py": {
        r"\bRandom\(\s*\d|\b(default_rng|manual_seed|random\.seed)\(\s*\d": "a fixed seed",
        r"\bseed=\d|\bCHAOS=f?[\"']\d|parametrize\([\"']seed": "a fixed seed",
        # One that nobody can set, and that is not kept when the test fails.
        r"\bSystemRandom\b|\bRandom\(\)|\bdefault_rng\(\)": "a seed of its own (use seed)",
        r"(?<![\w.])random\.(rand|get|choice|shuffle|sample|uniform|random\()": (
            "a seed of its own (use seed)"
        ),
    },
    ".c": {r"\bsrand(om)?\(\s*\d|6364136223846793005": "a fixed seed"},
}
FIXED_SEED_REASON = re.compile(r"(//|#|\*).*\bfixed seeds?:", re.I)


def kept_seed_violations(path: str, lines: str, sources: list[str]) -> list[str]:
    """Lines of a crate's tests/seeds of a test that would not run them."""
    found = []
    names = {line.split()[0] for line in lines.splitlines() if line and line[0] != "#"}
    for name in sorted(names):
        bodies = [re.split(rf"\bfn {name}\(\)", source)[1:] for source in sources]
        if not any("seeds!(" in body.split("\n#[test]")[0] for text in bodies for body in text):
            found.append(f"{path}: no test {name} takes its seeds with seeds!(N)")
    return found


def shadow_violations(folders: list[str], sources: dict[str, str]) -> list[str]:
    """Folders of tests/, which tests put on Python's path, with the name of a module that a test
    asks for: where the module is missing, Python takes the folder for it."""
    asked: dict[str, str] = {}
    for path, source in sources.items():
        for name in re.findall(r"^\s*(?:import|from)\s+(\w+)", source, re.M):
            asked.setdefault(name, path)
    own = {Path(path).stem for path in sources}  # which is never missing
    found = [name for name in folders if name in asked and name not in own]
    return [f"tests/{name}: {asked[name]} imports {name}" for name in found]


def tests_only(code: str) -> str:
    """Code (see code_only) of its #[cfg(test)] items alone; lines stay."""
    lines, rest = code.splitlines(), without_tests(code).splitlines()
    pairs = itertools.zip_longest(lines, rest, fillvalue="")
    return "\n".join(line if line != other else "" for line, other in pairs)


def seed_violations(path: str, source: str) -> list[str]:
    """Seeds written down in tests, unless `fixed seed: REASON` stands there or just above."""
    suffix = Path(path).suffix
    code = source
    if suffix == ".rs":
        code = code_only(source)
        if not re.search(r"(^|/)tests/|tests\.rs$", path):
            code = tests_only(code)
    lines = source.splitlines()
    found = []
    places = lines_matching(code, FIXED_SEEDS.get(suffix, {}))
    if suffix == ".rs":
        for match in re.finditer(r"\(\d+\.\.[^()]*\)\s*\.\w+\(\|&?seed\b", code):
            places.append((code.count("\n", 0, match.start()) + 1, "fixed seeds (use seeds!(N))"))
        for match in re.finditer(r"\bproptest! \{", code):
            if "/tests/" in path and "WithSource" not in code:
                line = code.count("\n", 0, match.start()) + 1
                places.append((line, "seeds that failed are not kept (FileFailurePersistence)"))
    if path == "tests/seed.py":
        places = []
    for number, what in places:
        # A comment may have several lines, and stand above a statement of several lines.
        first = number - 1
        while first > 0 and not re.search(r"[;{}]\s*$", lines[first - 1]):
            first -= 1
        if not any(FIXED_SEED_REASON.search(line) for line in lines[first:number]):
            found.append(f"{path}:{number}: {what}")
    return found


def length_violations(path: str, source: str) -> tuple[list[str], list[str]]:
    """Failures and warnings about a file's length."""
    lines = source.count("\n")
    if lines > LINES_MAX and str(path) not in LONG:
        return [f"{path}: {lines} lines, at most {LINES_MAX}"], []
    if lines > LINES_WARN:
        return [], [f"{path}: {lines} lines, better below {LINES_WARN}"]
    return [], []


# Functions should have fewer than about 70 lines (CONTRIBUTING.md); more than this is refused.
FUNCTION_LINES_MAX = 100
# Longer ones, each with its reason.
LONG_FUNCTIONS = {
    ("crates/cli/tests/command_line.rs", "mistakes_are_coded"): "a table of mistakes",
    (
        "crates/cli/tests/balance.rs",
        "bad_input_is_coded_and_has_a_remedy",
    ): "a table of mistakes",
    ("crates/client/tests/support/mod.rs", "answer"): "a double of the agent, message by message",
    ("crates/launch/src/timeline.rs", "describe"): "one sentence for each event",
    ("crates/minickpt/src/memory.rs", "map"): "mmap(2), whose steps share a dozen facts",
    ("crates/mpi/tests/programs/requests.c", "main"): "one kind of request after another",
    ("crates/simulator/src/job/mod.rs", "act"): "one line for each action",
    ("crates/simulator/src/jobs/grid.rs", "cases"): "a table of cases",
    ("crates/simulator/tests/reference/mod.rs", "run"): "the published algorithm as it is printed",
}


def rust_functions(source: str) -> list[tuple[str, int]]:
    """Each function with a body, and its lines."""
    code, found = code_only(source), []
    for match in re.finditer(r"\bfn\s+(\w+)", code):
        brace, semicolon = code.find("{", match.end()), code.find(";", match.end())
        # A semicolon may also stand in an array's type among the parameters.
        while 0 <= semicolon < brace and code[match.end() : semicolon].count("[") > code[
            match.end() : semicolon
        ].count("]"):
            semicolon = code.find(";", semicolon + 1)
        if brace < 0 or 0 <= semicolon < brace:
            continue
        end = block_end(code, brace)
        found.append((match[1], code.count("\n", match.start(), end) + 1))
    return found


def python_functions(source: str) -> list[tuple[str, int]]:
    """Each function, and its lines."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in nodes]


def c_functions(source: str) -> list[tuple[str, int]]:
    """Each function, and its lines: its body ends with a brace in the first column."""
    found = []
    lines = source.splitlines()
    for number, line in enumerate(lines):
        alone = line == "{"
        if not (alone or re.match(r"[A-Za-z].*\)\s*(const\s*)?\{$", line)):
            continue
        # The name stands in the line before the brace or, where parameters are many, above.
        first = number - 1 if alone else number
        while first > 0 and "(" not in lines[first]:
            first -= 1
        name = re.search(r"(\w+)\s*\(", lines[first])
        end = next((at for at in range(number, len(lines)) if lines[at].startswith("}")), number)
        if name:
            found.append((name[1], end - first + 1))
    return found


FUNCTIONS = {
    ".rs": rust_functions,
    ".py": python_functions,
    ".c": c_functions,
    ".h": c_functions,
    ".hpp": c_functions,
}


def function_violations(path: str, source: str) -> list[str]:
    """Functions that are too long and not listed."""
    functions = FUNCTIONS.get(Path(path).suffix, lambda _: [])
    return [
        f"{path}: {name} has {lines} lines, at most {FUNCTION_LINES_MAX}"
        for name, lines in functions(source)
        if lines > FUNCTION_LINES_MAX and (path, name) not in LONG_FUNCTIONS
    ]


def snake(name: str) -> str:
    """`RegionSize` as `REGION_SIZE`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()


def rust_codes(source: str) -> dict[int, tuple[str, str]]:
    """number -> (name, text) from the table in error.rs."""
    rows = re.findall(r'^ {4}(\w+) = (\d+), "([^"]+)";$', source, re.M)
    return {int(number): (name, text) for name, number, text in rows}


def error_violations(rust: str, header: str, page: str) -> list[str]:
    """error.rs, outlive.h and docs/errors.md must list the same codes."""
    codes = rust_codes(rust)
    found = [] if codes else ["error.rs: no codes found"]
    c = dict(re.findall(r"^#define OUTLIVE_E_(\w+) (\d+)$", header, re.M))
    want = {snake(name): str(number) for number, (name, _) in codes.items()}
    for name in sorted(want.keys() | c.keys()):
        if want.get(name) != c.get(name):
            found.append(f"{name}: error.rs has {want.get(name)}, outlive.h has {c.get(name)}")
    rows = re.findall(r"^\| OL-(\d+) \| ([^|]+?) \| ([^|]+?) \| ([^|]+?) \|$", page, re.M)
    numbers = [int(row[0]) for row in rows]
    if numbers != sorted(set(numbers)):
        found.append("docs/errors.md: codes twice or not ascending")
    for number in sorted(codes.keys() - set(numbers)):
        found.append(f"docs/errors.md lacks OL-{number} {codes[number][1]}")
    for number, text, meaning, remedy in rows:
        if int(number) not in codes:
            found.append(f"docs/errors.md has OL-{number}, error.rs has not")
        elif codes[int(number)][1] != text:
            found.append(
                f"docs/errors.md calls OL-{number} '{text}', error.rs '{codes[int(number)][1]}'"
            )
        if len(meaning) < 10 or len(remedy) < 10:
            found.append(f"docs/errors.md: OL-{number} needs a meaning and a remedy")
    return found


# Pages that a link may name before they are written.
AWAITED: set[str] = set()


def link_violations(page: Path, text: str, root: Path = ROOT) -> list[str]:
    """Relative links of a Markdown page that lead nowhere."""
    found = []
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", "", text)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.is_relative_to(root):
            found.append(f"{page.relative_to(root)}: {target} leads out of the repository")
        elif path.parent == root / "docs/pictures":
            # Drawn by the program when the book is built.
            script = (root / "scripts/pictures.sh").read_text(encoding="utf-8")
            if not re.search(rf"^draw {re.escape(path.name)} ", script, re.M):
                found.append(f"{page.relative_to(root)}: nobody draws {target}")
        elif not path.exists() and str(path.relative_to(root)) not in AWAITED:
            found.append(f"{page.relative_to(root)}: no {target}")
        elif heading and path.suffix == ".md" and heading not in anchors(path):
            found.append(f"{page.relative_to(root)}: no heading {target}")
    return found


NAMED_FILE = re.compile(
    r"`((?:bench|crates|docs|examples|fuzz|kernel|requirements|scripts|tests)/[\w./-]+)`"
)


def stale_files(page: Path, text: str, root: Path = ROOT) -> list[str]:
    """Files that a page names and that are not there, from the root or, in a note about one
    crate, from that crate. What git ignores need not be there."""
    found = []
    ignored = {f"/{line.strip('/')}" for line in (root / ".gitignore").read_text().split()}
    for number, line in enumerate(text.splitlines(), 1):
        for name in NAMED_FILE.findall(line):
            there = (root / name).exists() or any(root.glob(f"crates/*/{name}"))
            if not there and f"/{name.strip('/')}" not in ignored:
                found.append(f"{page}:{number}: there is no {name}")
    return found


def anchors(page: Path) -> set[str]:
    """The names under which headings of a page can be linked to."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*?)\s*$", text, flags=re.M)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def dependency_violations(manifest: dict, page: str) -> list[str]:
    """Every external crate of the root Cargo.toml has a line in docs/dependencies.md."""
    crates = [d for d in manifest["workspace"]["dependencies"] if not d.startswith("outlive-")]
    rows = set(re.findall(r"^\| `([^`]+)` \|", page, re.M))
    return [f"docs/dependencies.md lacks {crate}" for crate in crates if crate not in rows]
