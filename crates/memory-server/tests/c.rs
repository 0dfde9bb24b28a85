//! The C face: every call, in C, over both transports.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::Command;

use support::{key, rights, server};

#[test]
fn a_program_in_c_can_do_all_that_the_header_offers() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Where cargo puts the library for this test: beside the test itself.
    let library = std::env::current_exe().unwrap();
    let library = library.parent().unwrap();
    assert!(library.join("liboutlive_memory.so").exists());
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("client");
    let built = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-O1",
        ])
        .arg("-I")
        .arg(here.join("include"))
        .arg(here.join("tests/programs/client.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(library)
        .arg("-loutlive_memory")
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    // The library is known by its soname to the programs that need it.
    let soname = dir.path().join("liboutlive_memory.so.0");
    std::os::unix::fs::symlink(library.join("liboutlive_memory.so"), soname).unwrap();
    let file = dir.path().join("key");
    key(1).save(&file).unwrap();
    let server = server(4 << 20, vec![rights("job", 1, None)]);
    for transport in ["0", "1", "2"] {
        let ran = Command::new(&program)
            .arg(server.address().to_string())
            .args(["job", file.to_str().unwrap(), transport])
            .env("LD_LIBRARY_PATH", dir.path())
            .output()
            .unwrap();
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
}
