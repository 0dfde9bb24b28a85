//! The rules of this floor, read from the sources: no clock, socket, file, thread,
//! environment, hash map or floating point in a protocol.

use std::path::{Path, PathBuf};

const FORBIDDEN: &[&str] = &[
    "std::net",
    "std::fs",
    "std::env",
    "std::thread",
    "std::process",
    "Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
    "f32",
    "f64",
    "async ",
    "unsafe ",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    // What cannot be read is missed by the count that the test asserts.
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

fn offences(text: &str) -> Vec<&'static str> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect::<Vec<_>>()
        .join("\n");
    FORBIDDEN
        .iter()
        .copied()
        .filter(|word| code.contains(word))
        .collect()
}

#[test]
fn protocols_touch_nothing_of_the_world() {
    let mut found = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut found,
    );
    assert!(found.len() >= 10, "sources not found");
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(offences(&text), [""; 0], "{}", path.display());
    }
}

#[test]
fn the_rule_sees_an_offence() {
    assert_eq!(offences("use std::fs; // std::net"), ["std::fs"]);
}
