//! The C face: constants of the header, compilers and language levels, and whole
//! programs in C, C++ and Fortran under the test agent.

#![allow(clippy::unwrap_used)] // helpers of tests

mod support;

use outlive_base::{Code, Survives};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::TestAgent;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where cargo puts `liboutlive.so` for this test: beside the test itself.
fn library_directory() -> PathBuf {
    let directory = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned();
    assert!(
        directory.join("liboutlive.so").exists(),
        "{}",
        directory.display()
    );
    directory
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{text}");
    text
}

fn installed(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        eprintln!("{tool} is not installed: not tested with it");
    }
    found
}

/// Builds a program against the library.
fn build(compiler: &str, flags: &[&str], source: &Path, target: &Path) {
    let library = library_directory();
    let text = run(Command::new(compiler)
        .args(flags)
        .arg("-I")
        .arg(here("include"))
        .arg(source)
        .arg("-o")
        .arg(target)
        .arg("-L")
        .arg(&library)
        .arg("-loutlive")
        .arg("-lm"));
    assert_eq!(text, "", "warnings of {compiler}");
}

/// Runs `program first` with version 3 armed, then `program second` on what it left,
/// then `program alone`.
fn first_second_alone(program: &Path, names: &[&str]) {
    let beside = program.parent().unwrap();
    let library = library_directory().join("liboutlive.so");
    std::os::unix::fs::symlink(library, beside.join("liboutlive.so.0")).unwrap();
    let command = |agent: Option<&TestAgent>, mode: &str| {
        let mut command = Command::new(program);
        command.arg(mode).env("LD_LIBRARY_PATH", beside);
        if let Some(agent) = agent {
            command.envs(agent.environment(0));
        }
        command
    };
    let agent = TestAgent::start(1);
    agent.prepare(0);
    agent.arm_with(0, 3, 1 << 20).unwrap();
    run(&mut command(Some(&agent), "first"));
    let content = agent.content(0, 3);
    for name in names {
        assert!(
            content.iter().any(|(region, _)| region.name == *name),
            "{name}"
        );
    }
    agent.next_incarnation();
    agent.offer(0, 3, &content);
    run(&mut command(Some(&agent), "second"));
    run(&mut command(None, "alone"));
}

#[test]
fn the_header_has_all_codes_and_no_others() {
    let header = std::fs::read_to_string(here("include/outlive.h")).unwrap();
    let mut found = BTreeMap::new();
    for line in header
        .lines()
        .filter_map(|line| line.strip_prefix("#define OUTLIVE_E_"))
    {
        let (name, number) = line.split_once(' ').unwrap();
        found.insert(number.trim().parse::<u16>().unwrap(), name.replace('_', ""));
    }
    let known: BTreeMap<u16, String> = Code::ALL
        .iter()
        .map(|code| (code.number(), format!("{code:?}").to_uppercase()))
        .collect();
    assert_eq!(found, known);
    let fortran = std::fs::read_to_string(here("fortran/outlive.f90"))
        .unwrap()
        .to_uppercase();
    for line in header
        .lines()
        .filter_map(|line| line.strip_prefix("#define OUTLIVE_"))
    {
        let mut words = line.split_whitespace();
        let (Some(name), Some(value)) = (words.next(), words.next()) else {
            continue;
        };
        let Ok(value) = value.parse::<u32>() else {
            continue;
        };
        let constant = format!("OUTLIVE_{name} = {value}\n");
        assert!(
            name == "ABI" || fortran.contains(&constant),
            "Fortran lacks {constant}"
        );
    }
    for survives in Survives::ALL {
        let name = survives.name().to_uppercase().replace('-', "_");
        let constant = format!("OUTLIVE_SURVIVES_{name} = {}", survives as u8);
        assert!(header.contains(&constant), "C lacks {constant}");
        assert!(fortran.contains(&constant), "Fortran lacks {constant}");
    }
}

#[test]
fn the_header_compiles_everywhere_without_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"];
    let include = format!("-I{}", here("include").display());
    let check = |compiler: &str, standard: &str, name: &str, text: &str| {
        if installed(compiler) {
            let source = directory.path().join(name);
            std::fs::write(&source, text).unwrap();
            run(Command::new(compiler)
                .args(strict)
                .arg(standard)
                .arg(&include)
                .arg(&source));
        }
    };
    let c = "#include <outlive.h>\nint main(void) { return OUTLIVE_OK; }\n";
    let hpp = "#include <outlive.hpp>\nint main() { return OUTLIVE_OK; }\n";
    for compiler in ["gcc", "clang"] {
        check(compiler, "-std=c99", "a.c", c);
        check(compiler, "-std=c11", "a.c", c);
    }
    for compiler in ["g++", "clang++"] {
        check(compiler, "-std=c++11", "a.cpp", c);
        check(compiler, "-std=c++17", "a.cpp", c);
        check(compiler, "-std=c++17", "b.cpp", hpp);
        check(compiler, "-std=c++20", "b.cpp", hpp);
    }
}

#[test]
fn a_c_program_survives() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("smoke");
    let flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2"];
    build("gcc", &flags, &here("tests/programs/smoke.c"), &program);
    first_second_alone(&program, &["field", "nothing"]);
    run(Command::new(&program)
        .arg("zeros")
        .env("LD_LIBRARY_PATH", directory.path())
        .env("OUTLIVE_RANK", "2")
        .env("OUTLIVE_SIZE", "3"));
}

#[test]
fn a_cpp_program_survives() {
    if !installed("g++") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("smoke");
    let flags = [
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-O2",
    ];
    build("g++", &flags, &here("tests/programs/smoke.cpp"), &program);
    first_second_alone(&program, &["field", "scalar", "span"]);
}

#[test]
fn a_fortran_program_survives() {
    if !installed("gfortran") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("smoke");
    let library = library_directory();
    let text = run(Command::new("gfortran")
        .args([
            "-std=f2008",
            "-Wall",
            "-Wextra",
            "-Wno-compare-reals",
            "-pedantic",
            "-Werror",
            "-O2",
        ])
        .arg(format!("-J{}", directory.path().display()))
        .arg(here("fortran/outlive.f90"))
        .arg(here("tests/programs/smoke.f90"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&library)
        .arg("-loutlive"));
    assert_eq!(text, "", "warnings of gfortran");
    first_second_alone(&program, &["field", "step", "matrix", "z"]);
}

#[test]
fn the_library_exports_only_its_own_names_and_has_a_soname() {
    let library = library_directory().join("liboutlive.so");
    if installed("nm") {
        let names = run(Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(&library));
        let names: Vec<&str> = names
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .collect();
        let header = std::fs::read_to_string(here("include/outlive.h")).unwrap();
        assert!(names.len() >= 14, "{names:?}");
        for name in names {
            assert!(name.starts_with("outlive_"), "{name} is exported");
            assert!(
                header.contains(&format!("{name}(")),
                "{name} is not in the header"
            );
        }
    }
    if installed("readelf") {
        let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
        assert!(dynamic.contains("soname: [liboutlive.so.0]"), "{dynamic}");
    }
}

#[test]
fn an_installed_library_is_found_by_pkg_config_and_cmake() {
    let prefix = tempfile::tempdir().unwrap();
    run(Command::new("sh")
        .arg(here("install.sh"))
        .arg(prefix.path())
        .env("OUTLIVE_LIBRARY_DIR", library_directory()));
    let prefix = prefix.path();
    for file in [
        "include/outlive.h",
        "include/outlive.hpp",
        "lib/liboutlive.so.0",
        "lib/liboutlive.a",
    ] {
        assert!(prefix.join(file).exists(), "{file}");
    }
    let program = prefix.join("program");
    if installed("pkg-config") {
        let flags = run(Command::new("pkg-config")
            .args(["--cflags", "--libs", "outlive"])
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
        run(Command::new("gcc")
            .arg(here("tests/programs/smoke.c"))
            .args(flags.split_whitespace())
            .arg("-o")
            .arg(&program));
        // As a user starts it: nothing says where the library lies but the program.
        run(Command::new(&program)
            .arg("alone")
            .env_remove("LD_LIBRARY_PATH"));
        let flags = run(Command::new("pkg-config")
            .args(["--cflags", "--libs", "--static", "outlive"])
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
        let flags = flags.replace("-loutlive", "-l:liboutlive.a");
        run(Command::new("gcc")
            .arg(here("tests/programs/smoke.c"))
            .args(flags.split_whitespace())
            .arg("-o")
            .arg(&program));
        run(Command::new(&program)
            .arg("alone")
            .env_remove("LD_LIBRARY_PATH"));
    }
    if installed("cmake") {
        let source = prefix.join("project");
        std::fs::create_dir(&source).unwrap();
        let smoke = here("tests/programs/smoke.c");
        let lists = format!(
            "cmake_minimum_required(VERSION 3.16)\nproject(p C)\n\
             find_package(outlive 0.1 REQUIRED)\nadd_executable(p {})\n\
             target_link_libraries(p outlive::outlive)\n\
             add_executable(s {})\ntarget_link_libraries(s outlive::outlive-static)\n",
            smoke.display(),
            smoke.display()
        );
        std::fs::write(source.join("CMakeLists.txt"), lists).unwrap();
        let build = prefix.join("build");
        run(Command::new("cmake")
            .arg("-S")
            .arg(&source)
            .arg("-B")
            .arg(&build)
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
        run(Command::new("cmake").arg("--build").arg(&build));
        run(Command::new(build.join("p")).arg("alone"));
        run(Command::new(build.join("s")).arg("alone"));
    }
}
