//! Compiles the library that is loaded ahead of programs (`c/pages.c`). It is no part of this
//! crate's code: it is carried as bytes, and depends on nothing but the C library.

use std::path::PathBuf;

fn main() {
    const SOURCE: &str = "c/pages.c";
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={SOURCE}");
    let directory = std::env::var_os("OUT_DIR").unwrap_or_default();
    let to = PathBuf::from(directory).join("liboutlive_pages.so");
    // Its compiler and flags for the target; what is built is a whole library, and not the
    // archive that `cc` makes.
    let mut build = cc::Build::new();
    build.std("gnu11").pic(true).opt_level(2).debug(false);
    build.warnings(true).extra_warnings(true);
    let mut command = build.get_compiler().to_command();
    command.args(["-Wpedantic", "-fvisibility=hidden", "-shared"]);
    // Its own calls are resolved before it begins: it moves memory of other objects.
    command.args([
        "-Wl,-soname,liboutlive_pages.so",
        "-Wl,-z,now",
        "-Wl,-z,relro",
    ]);
    command.args(["-Wl,-z,noexecstack", "-s"]);
    let ended = command.arg(SOURCE).arg("-o").arg(&to).status();
    match ended {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("the C compiler cannot build {SOURCE}: {status}"),
        Err(error) => panic!("building {SOURCE} needs a C compiler (Debian: gcc): {error}"),
    }
}
