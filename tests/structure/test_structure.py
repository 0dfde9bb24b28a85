"""The structure of the repository, and proofs that each rule catches what it must."""

import datetime
import sys
import tomllib
import unittest
from pathlib import Path

import rules
from rules import ROOT

sys.path.insert(0, str(ROOT / "tests"))
import flaky
import skip
import summarise


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def files(*patterns: str) -> list[Path]:
    out = []
    for pattern in patterns:
        out += [p for p in sorted(ROOT.glob(pattern)) if "target" not in p.parts]
    return out


class Repository(unittest.TestCase):
    """The rules, applied."""

    def none(self, violations: list[str]) -> None:
        if violations:
            self.fail("\n" + "\n".join(violations))

    def test_dependencies_run_down_the_floors(self) -> None:
        crates = {p.parent.name: tomllib.loads(p.read_text()) for p in files("crates/*/Cargo.toml")}
        self.assertGreater(len(crates), 5)
        self.none(rules.floor_violations(crates))

    def test_floor_two_is_pure(self) -> None:
        found = []
        for crate in rules.PURE:
            for path in files(f"crates/{crate}/src/**/*.rs"):
                found += rules.purity_violations(
                    crate, str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
                )
        self.none(found)

    def test_nothing_is_unfinished_or_ignored_without_reason(self) -> None:
        found = []
        for path in files("crates/**/*.rs", "tests/**/*.rs", "fuzz/**/*.rs"):
            name = str(path.relative_to(ROOT))
            found += rules.unfinished_violations(name, path.read_text(encoding="utf-8"))
        self.none(found)

    def test_no_file_needs_one_that_needs_it(self) -> None:
        for crate in sorted((rules.ROOT / "crates").iterdir()):
            folder = crate / "src"
            sources = {}
            for path in folder.rglob("*.rs"):
                parts = path.relative_to(folder).with_suffix("").parts
                if parts[0] == "bin":
                    continue
                parts = parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts
                sources[parts] = path.read_text(encoding="utf-8")
            # A file and what lies in the folder of its name are one room, which may be walked
            # through as one likes.
            self.none(rules.file_circles(crate.name, sources))

    def test_levels_are_asked_and_names_of_a_jobs_files_are_constants(self) -> None:
        paths = files("crates/**/*.rs")
        sources = {str(it.relative_to(ROOT)): it.read_text(encoding="utf-8") for it in paths}
        self.none(rules.level_violations(sources))
        self.none(rules.layout_violations(sources))

    def test_no_file_of_the_kernel_module_does_either(self) -> None:
        folder = ROOT / "kernel" / "minickpt"
        header = (folder / "omk.h").read_text(encoding="utf-8")
        sources = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.c")}
        edges = rules.module_edges(header, sources)
        self.assertIn("omk_task.c", edges["omk_save.c"])
        self.none(rules.circles(edges))
        # What would be found.
        edges["omk_task.c"].add("omk_save.c")
        self.assertTrue(rules.circles(edges))

    def test_files_are_short(self) -> None:
        failures, warnings = [], []
        kinds = ("rs", "py", "c", "h", "hpp", "f90", "sh")
        for top in ("crates", "tests", "examples", "scripts", "fuzz", "kernel", "bench"):
            for path in files(*(f"{top}/**/*.{kind}" for kind in kinds)):
                name = str(path.relative_to(ROOT))
                bad, warn = rules.length_violations(name, path.read_text(encoding="utf-8"))
                failures += bad
                warnings += warn
        for line in warnings:
            print(f"warning: {line}", file=sys.stderr)
        self.none(failures)

    def test_functions_are_short(self) -> None:
        found = []
        listed = set(rules.LONG_FUNCTIONS)
        for top in ("crates", "tests", "examples", "scripts", "fuzz", "kernel", "bench"):
            for path in files(*(f"{top}/**/*{kind}" for kind in rules.FUNCTIONS)):
                name, source = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
                found += rules.function_violations(name, source)
                if any(file == name for file, _ in listed):
                    functions = rules.FUNCTIONS[path.suffix](source)
                    limit = rules.FUNCTION_LINES_MAX
                    listed -= {(name, function) for function, lines in functions if lines > limit}
        self.none(found)
        self.none([f"{file}: {name} is short or gone: strike it out" for file, name in listed])

    def test_error_codes_agree_everywhere(self) -> None:
        self.none(
            rules.error_violations(
                read("crates/base/src/error.rs"),
                read("crates/client/include/outlive.h"),
                read("docs/errors.md"),
            )
        )

    def test_every_dependency_is_explained(self) -> None:
        self.none(
            rules.dependency_violations(
                tomllib.loads(read("Cargo.toml")), read("docs/dependencies.md")
            )
        )

    def test_links_lead_somewhere(self) -> None:
        found = []
        for page in files("*.md", "docs/**/*.md", "examples/**/*.md"):
            found += rules.link_violations(page, page.read_text(encoding="utf-8"))
        self.none(found)

    def test_files_that_pages_name_are_there(self) -> None:
        found = []
        for page in files("*.md", "docs/**/*.md", "examples/**/*.md"):
            if page.name != "CHANGELOG.md":  # which speaks of what was
                found += rules.stale_files(page, page.read_text(encoding="utf-8"))
        self.none(found)

    def test_randomised_tests_take_fresh_seeds(self) -> None:
        found = []
        for path in files("crates/**/*.rs", "tests/**/*.py", "tests/**/*.c", "crates/**/*.c"):
            name = str(path.relative_to(ROOT))
            if name.startswith("tests/structure/"):
                continue
            found += rules.seed_violations(name, path.read_text(encoding="utf-8"))
        for path in files("crates/*/tests/*.py", "crates/*/tests/**/*.c"):
            name = str(path.relative_to(ROOT))
            found += rules.seed_violations(name, path.read_text(encoding="utf-8"))
        self.none(sorted(set(found)))

    def test_kept_seeds_are_run(self) -> None:
        found = []
        for path in files("crates/*/tests/seeds"):
            crate = path.parents[1]
            sources = [one.read_text(encoding="utf-8") for one in crate.glob("**/*.rs")]
            name = str(path.relative_to(ROOT))
            found += rules.kept_seed_violations(name, path.read_text(encoding="utf-8"), sources)
        self.none(found)

    def test_no_folder_of_tests_passes_for_a_module(self) -> None:
        folders = [p.name for p in sorted((ROOT / "tests").iterdir()) if p.is_dir()]
        paths = files("crates/**/*.py", "examples/**/*.py", "tests/**/*.py")
        sources = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in paths}
        self.none(rules.shadow_violations(folders, sources))

    def test_skip_list_is_readable(self) -> None:
        self.assertIn("mdbook", skip.allowed())

    def test_flaky_tests_are_listed_for_a_month_at_most(self) -> None:
        listed = flaky.entries(read("tests/flaky-list"))
        self.none(flaky.expired(listed, datetime.date.today()))


class FloorsCatch(unittest.TestCase):
    def test_upward(self) -> None:
        found = rules.floor_violations({"base": {"dependencies": {"outlive-vault": {}}}})
        self.assertIn("upwards", found[0])

    def test_build_and_target_dependencies(self) -> None:
        up = {"outlive-cli": {}}
        self.assertTrue(rules.floor_violations({"base": {"build-dependencies": up}}))
        self.assertTrue(
            rules.floor_violations({"base": {"target": {"cfg(unix)": {"dependencies": up}}}})
        )

    def test_circle_on_one_floor(self) -> None:
        found = rules.floor_violations(
            {
                "agent": {"dependencies": {"outlive-launch": {}}},
                "launch": {"dependencies": {"outlive-agent": {}}},
            }
        )
        self.assertEqual(len([f for f in found if f.startswith("circle")]), 1)

    def test_circle_of_files(self) -> None:
        files = {
            (): "mod a; mod b; mod c; pub use a::A;",
            ("a",): "use crate::{b::B, c};",
            ("b",): "use super::c::C;",
            ("c",): "fn f() -> crate::a::A {}",
            ("c", "inner"): "use super::C;",
            ("d",): "// crate::e\nuse crate::a::A; #[cfg(test)] mod tests { use crate::e; }",
            ("e",): "use crate::d::D;",
        }
        found = rules.file_circles("some", files)
        self.assertEqual([line.split(": ")[1][0] for line in found], ["a", "b", "c"])

    def test_unknown_crates(self) -> None:
        self.assertTrue(rules.floor_violations({"surprise": {}}))
        self.assertTrue(
            rules.floor_violations({"vault": {"dependencies": {"outlive-surprise": {}}}})
        )

    def test_impure_crate_on_floor_two(self) -> None:
        self.assertTrue(rules.floor_violations({"planner": {"dependencies": {"tokio": {}}}}))

    def test_down_sideways_and_dev_are_allowed(self) -> None:
        crates = {
            "base": {"dev-dependencies": {"outlive-simulator": {}}},
            "protocols": {"dependencies": {"outlive-base": {}}},
            "launch": {"dependencies": {"outlive-agent": {}, "outlive-base": {}}},
            "agent": {"dependencies": {"outlive-vault": {}}},
        }
        self.assertEqual(rules.floor_violations(crates), [])


class PurityCatches(unittest.TestCase):
    def caught(self, source: str, crate: str = "protocols") -> list[str]:
        return rules.purity_violations(crate, "x.rs", source)

    def test_every_forbidden_name(self) -> None:
        for line in (
            "use std::net::TcpStream;",
            "use std::fs;",
            "let x = std::env::var(NAME);",
            "std::process::exit(1);",
            "use std::time::Instant;",
            "use std::time::SystemTime;",
            "let t = Instant::now();",
            "use std::{collections::BTreeMap, net::TcpStream};",
            "use std::{\n    time::{\n        Duration,\n        Instant,\n    },\n};",
            "use std::collections::HashMap;",
            "let s: HashSet<u32>;",
            "use tokio::spawn;",
            "async fn f() {}",
            "let f = async move { 1 };",
            "use std::thread;",
            "thread::spawn(f);",
            "use rayon::prelude::*;",
        ):
            self.assertTrue(self.caught(line), line)

    def test_the_line_is_named(self) -> None:
        self.assertEqual(
            self.caught('/* a\n b */\n"x\ny";\nuse std::fs;'), ["x.rs:5: std::fs in a pure crate"]
        )

    def test_code_after_a_test_module_is_still_checked(self) -> None:
        source = "#[cfg(test)]\nmod tests { fn f() {} }\nuse std::fs;"
        self.assertEqual(self.caught(source), ["x.rs:3: std::fs in a pure crate"])

    def test_strings_do_not_hide_code(self) -> None:
        self.assertTrue(self.caught("let quote = '\"'; use std::fs; let other = '\"';"))
        self.assertTrue(self.caught('let raw = r#"a " b"#; use std::fs;'))
        self.assertTrue(self.caught("fn f<'a>(x: &'a u8) { std::fs::read(p) }"))

    def test_comments_strings_and_tests_are_exempt(self) -> None:
        for source in (
            "// std::fs is forbidden",
            "/* nested /* std::net */ */",
            'let s = "std::fs";',
            "#[cfg(test)]\nmod tests {\n    use std::collections::HashMap;\n}",
            "#[cfg(test)]\nuse std::fs;",
            "use core::time::Duration;",
            "use std::collections::BTreeMap;",
        ):
            self.assertEqual(self.caught(source), [], source)

    def test_threads_only_in_protocols_and_files_above_floor_two(self) -> None:
        self.assertEqual(self.caught("use std::thread;", "codec"), [])
        self.assertEqual(self.caught("use std::fs;", "vault"), [])


class OtherRulesCatch(unittest.TestCase):
    def test_unfinished(self) -> None:
        for line in ("todo!()", 'unimplemented!("later")', "#[ignore]"):
            self.assertTrue(rules.unfinished_violations("x.rs", line), line)
        self.assertEqual(rules.unfinished_violations("x.rs", '#[ignore = "needs root"]'), [])
        self.assertEqual(rules.unfinished_violations("x.rs", "// todo!()"), [])

    def test_fixed_seeds(self) -> None:
        for line in (
            "let mut random = Sequence::new(7, 0);",
            "for seed in 0..40 {",
            "for seed in [1, 2] {",
            "let runs = broadcasts.sweep(1, 40, 2);",
            "let summary = sweep_late(0..2_000, 2, None);",
            "let n = rng::draw(1, 2, i);",
            "(0..20).filter(|&seed| run(seed));",
            "(0..N / 4)\n    .filter(|seed| run(*seed));",
            "proptest! { fn f() {} }",
        ):
            self.assertTrue(rules.seed_violations("crates/x/tests/x.rs", line), line)
            reason = "// Fixed seed: a published\n// figure.\n" + line
            self.assertEqual(rules.seed_violations("crates/x/tests/x.rs", reason), [], line)
        inner = "fn f() { rng::draw(7, 0, i); }\n#[cfg(test)]\nmod tests {\n for seed in 0..9 {} }"
        found = rules.seed_violations("crates/x/src/x.rs", inner)
        self.assertEqual([line.split(":")[1] for line in found], ["4"])
        fresh = "for seed in seeds!(40) { Sequence::new(seed, 0); sweep(seed, 40, 2); }"
        self.assertEqual(rules.seed_violations("crates/x/tests/x.rs", fresh), [])
        for line in (
            "chance = random.Random(1)",
            'Job(CHAOS=f"7:8")',
            "np.default_rng(3)",
            "seed = random.randrange(1 << 32)",
            "if random.random() < 0.2:",
            "chance = random.Random()",
            "chance = random.SystemRandom()",
        ):
            self.assertTrue(rules.seed_violations("tests/x.py", line), line)
        for line in ("random.Random(seed)", "self.random.random() < 0.2", "chance.randrange(3)"):
            self.assertEqual(rules.seed_violations("tests/x.py", line), [])
        self.assertTrue(rules.seed_violations("tests/x.c", "srand(4);"))

    def test_levels_that_are_named(self) -> None:
        reasons = {"crates/a/src/a.rs": "a default"}
        named = {"crates/a/src/a.rs": "let a = Level::DISK;"}
        self.assertEqual(rules.level_violations(named, reasons), [])
        self.assertTrue(rules.level_violations({"crates/a/src/a.rs": ""}, reasons))
        for line in ("if it == Level::PARTNER {}", "Level::SHARED => 1,", "base::Level::MEMORY"):
            other = {**named, "crates/a/src/b.rs": line}
            self.assertEqual(len(rules.level_violations(other, reasons)), 1, line)
        for line in ("// Level::DISK", "#[cfg(test)]\nmod tests { Level::DISK }", "Level::FIRST"):
            other = {**named, "crates/a/src/b.rs": line, "crates/a/tests/b.rs": "Level::DISK"}
            self.assertEqual(rules.level_violations(other, reasons), [], line)

    def test_names_in_the_directory_of_a_job(self) -> None:
        layout = {rules.JOB_LAYOUT: 'pub const KEY: &str = "key";'}
        for line, found in (('dir.join("key")', 1), ("dir.join(layout::KEY)", 0)):
            self.assertEqual(
                len(rules.layout_violations({**layout, "crates/cli/src/a.rs": line})), found
            )
        tests = {"crates/cli/src/a.rs": '#[cfg(test)]\nmod tests { dir.join("key") }'}
        self.assertEqual(rules.layout_violations({**layout, **tests}), [])

    def test_kept_seeds_of_tests_that_do_not_run_them(self) -> None:
        lines = "# TEST SEED WHAT\nrow 7 lost a message\n"
        row = "#[test]\nfn row() {\n    for seed in outlive_base::seeds!(4) {}\n}\n"
        one = "#[test]\nfn row() {\n    let seed = seed!();\n}\n"
        self.assertEqual(rules.kept_seed_violations("x", lines, ["", row]), [])
        for source in ("", one, one + row.replace("row", "other"), row.replace("row", "a_row")):
            self.assertTrue(rules.kept_seed_violations("x", lines, [source]), source)

    def test_folders_that_pass_for_modules(self) -> None:
        sources = {
            "a.py": "def f():\n    import torch\n",
            "pages.py": "from mpi.x import y\nimport pages",
        }
        self.assertEqual(rules.shadow_violations(["torchrun", "pages"], sources), [])
        for folder in ("torch", "mpi"):
            self.assertEqual(len(rules.shadow_violations([folder], sources)), 1, folder)

    def test_length(self) -> None:
        self.assertEqual(rules.length_violations("x.rs", "\n" * 500), ([], []))
        self.assertTrue(rules.length_violations("x.rs", "\n" * 501)[1])
        self.assertTrue(rules.length_violations("x.rs", "\n" * 701)[0])

    def test_long_functions(self) -> None:
        body = "    x;\n" * 100
        for path, source in {
            "x.rs": "impl A {\n    fn long(&self, a: [u8; 3]) -> u8 {\n" + body + "    }\n}\n",
            "x.py": "def long():\n" + "    x = 1\n" * 100,
            "x.c": "static int\nlong(int a,\n     int b)\n{\n" + body + "}\n",
        }.items():
            self.assertEqual(len(rules.function_violations(path, source)), 1, path)
            short = source.replace("    x;\n", "", 10).replace("    x = 1\n", "", 10)
            self.assertEqual(rules.function_violations(path, short), [])
        declared = "trait A {\n    fn no_body(&self, a: [u8; 3]);\n}\n" + "\n" * 110
        self.assertEqual(rules.function_violations("x.rs", declared), [])

    def test_error_codes(self) -> None:
        rust = '    RegionSize = 104, "region has another size";\n'
        header = "#define OUTLIVE_E_REGION_SIZE 104\n"
        row = "| OL-104 | region has another size | what it means | what to do |\n"
        self.assertEqual(rules.error_violations(rust, header, row), [])
        self.assertTrue(rules.error_violations(rust, header, ""))
        self.assertTrue(rules.error_violations(rust, "", row))
        self.assertTrue(rules.error_violations(rust, header, row.replace("104", "105")))
        self.assertTrue(rules.error_violations(rust, header, row.replace("another", "other")))
        self.assertTrue(rules.error_violations(rust, header, row.replace("what to do", "-")))
        self.assertTrue(rules.error_violations(rust, header, row + row))
        self.assertTrue(rules.error_violations("", header, row))

    def test_dependencies(self) -> None:
        manifest = {"workspace": {"dependencies": {"serde": "1", "outlive-base": {}}}}
        self.assertEqual(rules.dependency_violations(manifest, "| `serde` | why |"), [])
        self.assertTrue(rules.dependency_violations(manifest, ""))

    def test_files_that_pages_name(self) -> None:
        page = ROOT / "docs" / "x.md"
        self.assertTrue(rules.stale_files(page, "see `crates/agent/src/nowhere.rs`"))
        self.assertEqual(rules.stale_files(page, "`crates/agent/src/run.rs`, `docs/`"), [])
        self.assertEqual(rules.stale_files(page, "`tests/seeds` of its crate"), [])
        self.assertEqual(rules.stale_files(page, "`tests/failed-seeds`"), [])

    def test_links(self) -> None:
        page = ROOT / "docs" / "x.md"
        self.assertTrue(rules.link_violations(page, "[a](nowhere.md)"))
        self.assertTrue(rules.link_violations(page, "[a](../../outside.md)"))
        self.assertEqual(rules.link_violations(page, "[b](https://x.y)"), [])
        self.assertEqual(rules.link_violations(page, "[a](guarantees.md#the-same-bits)"), [])
        self.assertTrue(rules.link_violations(page, "[a](guarantees.md#the-same-bytes)"))
        self.assertEqual(rules.link_violations(page, "`[a](nowhere.md)`"), [])
        self.assertEqual(rules.link_violations(page, "![a](pictures/bypass.svg)"), [])
        self.assertTrue(rules.link_violations(page, "![a](pictures/nobody.svg)"))


class SummaryCounts(unittest.TestCase):
    def test_each_kind(self) -> None:
        cargo = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n" * 2
        self.assertEqual(str(summarise.count(cargo, 0)), "6 passed, 0 failed, 2 skipped")
        pytest = "...\n1 failed, 5 passed, 2 skipped, 1 error in 0.10s\n"
        self.assertEqual(str(summarise.count(pytest, 1)), "5 passed, 2 failed, 2 skipped")
        unit = "Ran 12 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=3)\n"
        self.assertEqual(str(summarise.count(unit, 1)), "6 passed, 3 failed, 3 skipped")
        unit = "Ran 12 tests in 0.1s\n\nOK\n"
        self.assertEqual(str(summarise.count(unit, 0)), "12 passed, 0 failed, 0 skipped")
        shell = "PASS a\nPASS b\nSKIP c: no d\n"
        self.assertEqual(str(summarise.count(shell, 0)), "2 passed, 0 failed, 1 skipped")

    def test_a_refused_skip_is_one_failure(self) -> None:
        pytest = "FAIL thing: skipped in CI\n12 passed, 1 error in 3.57s\n"
        self.assertEqual(str(summarise.count(pytest, 1)), "12 passed, 1 failed, 0 skipped")

    def test_status_decides(self) -> None:
        self.assertEqual(str(summarise.count("", 0)), "1 passed, 0 failed, 0 skipped")
        self.assertEqual(str(summarise.count("", 1)), "0 passed, 1 failed, 0 skipped")
        self.assertEqual(str(summarise.count("PASS a\n", 101)), "1 passed, 1 failed, 0 skipped")


class FlakyTestsAreJudged(unittest.TestCase):
    LISTED = flaky.entries("2026-01-10 tests/x.py::test_a slow\n2026-01-10 net::link::breaks why")

    def test_entries(self) -> None:
        self.assertEqual(flaky.entries("# comment\n\n"), [])
        for bad in ("2026-01-10 tests/x.py::test_a", "yesterday name reason"):
            with self.assertRaises(ValueError):
                flaky.entries(bad)

    def test_an_old_entry_is_a_failure(self) -> None:
        for day, count in ((10, 0), (9, 2)):  # the last is dated after today
            self.assertEqual(len(flaky.expired(self.LISTED, datetime.date(2026, 1, day))), count)
        self.assertEqual(flaky.expired(self.LISTED, datetime.date(2026, 2, 9)), [])
        self.assertEqual(len(flaky.expired(self.LISTED, datetime.date(2026, 2, 10))), 2)
        emulated = flaky.entries("2026-01-10 tests/minickpt/test_x.py::test_a hangs")
        self.assertTrue(flaky.expired(emulated, datetime.date(2026, 1, 11)))

    def test_only_what_is_listed_may_fail(self) -> None:
        a = "FAILED tests/x.py::test_a - boom\n1 failed, 2 passed in 0.1s\n"
        b = "FAILED tests/x.py::test_b\n"
        running = "     Running unittests src/lib.rs (target/debug/deps/net-0123456789abcdef)\n"
        c = running + "test link::breaks ... FAILED\n"
        d = "   Doc-tests other\ntest link::breaks ... FAILED\n"
        for log, status, want in (
            (a, 1, 0),
            (a + b, 1, 1),
            (a, 2, 2),
            (c, 101, 0),
            (c + d, 101, 101),
            (c + "(signal: 11, SIGSEGV)", 101, 101),
            ("", 1, 1),
            ("", 0, 0),
        ):
            self.assertEqual(flaky.judge(log, status, self.LISTED)[0], want, (log, status))
        log = a + "FLAKY tests/x.py::test_a: slow\n"
        self.assertEqual(str(summarise.count(log, 0)), "2 passed, 0 failed, 1 skipped")
        self.assertEqual(str(summarise.count(log, 1)), "2 passed, 1 failed, 0 skipped")


class SkipsAreListed(unittest.TestCase):
    def test_only_listed_names_in_ci(self) -> None:
        self.assertTrue(skip.judge("mdbook", "absent", ci=True)[0])
        self.assertFalse(skip.judge("unlisted", "absent", ci=True)[0])
        self.assertTrue(skip.judge("unlisted", "absent", ci=False)[0])


if __name__ == "__main__":
    unittest.main()
