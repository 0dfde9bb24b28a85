//! Whether a program takes a preloaded library.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What is read of a program's file: headers lie at its begin.
const BYTES_MAX: u64 = 64 << 10;
/// Scripts whose interpreters are scripts.
const DEPTH_MAX: u32 = 5;

/// Why a program takes no preloaded library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is linked statically: there is no loader.
    Static,
    /// Set-user-ID, set-group-ID or with capabilities: the loader takes no stranger's library.
    Privileged,
    /// Its loader is of another C library.
    OtherLibrary(String),
    /// It is for another kind of machine.
    OtherMachine,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Static => write!(
                f,
                "it is linked statically, so that nothing can be preloaded"
            ),
            Refusal::Privileged => {
                write!(
                    f,
                    "it is set-user-ID, set-group-ID or has capabilities, so that its loader takes no preloaded library"
                )
            }
            Refusal::OtherLibrary(loader) => {
                write!(f, "its loader {loader} is not glibc's")
            }
            Refusal::OtherMachine => write!(f, "it is for another kind of machine"),
        }
    }
}

/// The program of this name in PATH, or at this path.
pub fn find(name: &OsStr) -> Option<PathBuf> {
    let runs = |path: &PathBuf| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(runs);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(name));
    places.find(runs)
}

/// Why the program at `path` takes none; `None` if it does, or if nobody can say: a file that
/// may be run and not read.
pub fn refusal(path: &Path) -> Option<Refusal> {
    look(path, DEPTH_MAX)
}

fn look(path: &Path, depth: u32) -> Option<Refusal> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    let mode = file.metadata().ok()?.permissions().mode();
    file.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    if let Some(line) = bytes.strip_prefix(b"#!") {
        // Set-user-ID does nothing for scripts: their interpreter counts.
        let line = line.split(|byte| *byte == b'\n').next()?;
        let mut words = line.split(|byte| b" \t".contains(byte));
        let interpreter = Path::new(OsStr::from_bytes(words.find(|word| !word.is_empty())?));
        if interpreter.ends_with("env") {
            let name = OsStr::from_bytes(words.find(|word| !word.is_empty())?);
            return look(&find(name)?, depth.checked_sub(1)?);
        }
        return look(interpreter, depth.checked_sub(1)?);
    }
    if mode & 0o6000 != 0 || has_capabilities(path) {
        return Some(Refusal::Privileged);
    }
    of_elf(&bytes)
}

fn has_capabilities(path: &Path) -> bool {
    let mut room = [0u8; 64];
    rustix::fs::getxattr(path, "security.capability", &mut room[..]).is_ok()
}

/// The machines that this command runs on, as ELF has them, of 64 bits and little-endian.
const MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else {
    None
};

fn of_elf(bytes: &[u8]) -> Option<Refusal> {
    let word = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    // 64 bits, little-endian.
    if bytes.get(4..6) != Some(&[2, 1]) || MACHINE.is_some_and(|own| word(18) != Some(own)) {
        return Some(Refusal::OtherMachine);
    }
    let (start, size, count) = (long(32)? as usize, word(54)? as usize, word(56)?);
    for n in 0..usize::from(count) {
        let at = start.checked_add(n.checked_mul(size)?)?;
        // The loader of the program (PT_INTERP).
        if u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?) != 3 {
            continue;
        }
        let from = long(at + 8)? as usize;
        let to = from.checked_add(long(at + 32)? as usize)?;
        let name = bytes.get(from..to)?;
        let name = String::from_utf8_lossy(name);
        let name = name.trim_end_matches('\0');
        let file = name.rsplit('/').next().unwrap_or(name);
        // ld-linux-x86-64.so.2 and the like, or ld64.so of some.
        let glibc = file.starts_with("ld-linux") || file.starts_with("ld64.so");
        // Where programs come from a store, its loader has a name of its own.
        return (!glibc && file.contains("musl")).then(|| Refusal::OtherLibrary(name.to_owned()));
    }
    Some(Refusal::Static)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with these program headers, each a kind and a text.
    fn elf(machine: u16, parts: &[(u32, &str)]) -> Vec<u8> {
        let mut bytes = vec![0u8; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&(parts.len() as u16).to_le_bytes());
        let mut texts = Vec::new();
        for (kind, text) in parts {
            let mut head = [0u8; 56];
            head[..4].copy_from_slice(&kind.to_le_bytes());
            let at = 64 + 56 * parts.len() + texts.len();
            head[8..16].copy_from_slice(&(at as u64).to_le_bytes());
            head[32..40].copy_from_slice(&(text.len() as u64).to_le_bytes());
            texts.extend_from_slice(text.as_bytes());
            bytes.extend_from_slice(&head);
        }
        bytes.extend_from_slice(&texts);
        bytes
    }

    #[test]
    fn programs_that_take_no_library_are_known_and_damage_does_no_harm() {
        let own = MACHINE.unwrap_or(62);
        let good = elf(own, &[(1, ""), (3, "/lib64/ld-linux-x86-64.so.2\0")]);
        assert_eq!(of_elf(&good), None);
        let musl = elf(own, &[(3, "/lib/ld-musl-x86_64.so.1\0")]);
        assert!(matches!(of_elf(&musl), Some(Refusal::OtherLibrary(_))));
        assert_eq!(of_elf(&elf(own, &[(1, "")])), Some(Refusal::Static));
        assert_eq!(of_elf(&elf(3, &[])), Some(Refusal::OtherMachine));
        for cut in 0..good.len() {
            of_elf(&good[..cut]);
            for bit in 0..8 {
                let mut damaged = good.clone();
                damaged[cut] ^= 1 << bit;
                of_elf(&damaged);
            }
        }
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("static"), elf(MACHINE.unwrap_or(62), &[])).unwrap();
        let of = |text: String| {
            std::fs::write(path("script"), text).unwrap();
            refusal(&path("script"))
        };
        let interpreter = path("static").display().to_string();
        assert_eq!(of(format!("#! {interpreter} -x\n")), Some(Refusal::Static));
        assert_eq!(of("#!/usr/bin/env no-such-program-here\n".into()), None);
        assert_eq!(of("#!\n".into()), None);
        // One that names itself ends.
        let own = path("script").display().to_string();
        assert_eq!(of(format!("#!{own}\n")), None);
        assert_eq!(refusal(&path("missing")), None);
    }
}
