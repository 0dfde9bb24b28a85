//! Compiles the libraries that are loaded ahead of programs (`c/pages.c`, `c/lock.c`, `c/decouple`). They are no part
//! of this crate's code: they are carried as bytes, and depend on nothing but the C library.

use std::path::PathBuf;

/// What decouples threads; on machines other than x86-64 its begin alone, which does nothing.
const DECOUPLE: [&str; 6] = [
    "c/decouple/begin.c",
    "c/decouple/calls.c",
    "c/decouple/caller.c",
    "c/decouple/forward.c",
    "c/decouple/gate.c",
    "c/decouple/partner.c",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=c/decouple/decouple.h");
    library("liboutlive_pages.so", &["c/pages.c"], &[]);
    library("liboutlive_lock.so", &["c/lock.c"], &[]);
    match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        // Registers of the program are its own: nothing may use vectors where it does not expect it,
        // and a partner has no canary of its own.
        Ok("x86_64") => library(
            "liboutlive_decouple.so",
            &DECOUPLE,
            &[
                "-mgeneral-regs-only",
                "-fno-stack-protector",
                "-fcf-protection=none",
            ],
        ),
        _ => library("liboutlive_decouple.so", &DECOUPLE[..1], &[]),
    }
}

fn library(name: &str, sources: &[&str], flags: &[&str]) {
    for source in sources {
        println!("cargo:rerun-if-changed={source}");
    }
    let directory = std::env::var_os("OUT_DIR").unwrap_or_default();
    let to = PathBuf::from(directory).join(name);
    // Its compiler and flags for the target; what is built is a whole library, and not the
    // archive that `cc` makes.
    let mut build = cc::Build::new();
    build.std("gnu11").pic(true).opt_level(2).debug(false);
    build.warnings(true).extra_warnings(true);
    let mut command = build.get_compiler().to_command();
    command.args(["-Wpedantic", "-fvisibility=hidden", "-shared"]);
    command.args(flags);
    // Its own calls are resolved before it begins: it moves memory of other objects, or runs in
    // handlers of signals.
    command.arg(format!("-Wl,-soname,{name}"));
    command.args(["-Wl,-z,now", "-Wl,-z,relro"]);
    command.args(["-Wl,-z,noexecstack", "-s"]);
    let ended = command.args(sources).arg("-o").arg(&to).status();
    match ended {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("the C compiler cannot build {name}: {status}"),
        Err(error) => panic!("building {name} needs a C compiler (Debian: gcc): {error}"),
    }
}
