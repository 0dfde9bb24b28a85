//! Where an image comes from and goes to: a container of a head, the image and the
//! contents of its memory.
//!
//! Layout, little-endian: magic `OUTLIMG1`, version u32, CRC-32C u32 of the image bytes,
//! length u64 of the image, length u64 of the contents; the image (postcard); padding to
//! a page; the contents. The same bytes travel through a file, a vault container or a
//! socket: [`receive`] takes any reader. Contents that the processes keep in files of
//! their own (protected memory) are not in it: their mappings name the files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use outlive_base::{Code, Entity, Error, Result};

use crate::model::{Image, PAGE};

const MAGIC: &[u8; 8] = b"OUTLIMG1";
const VERSION: u32 = 2;
const HEAD: usize = 32;
/// An encoded image is at most this long, in bytes.
pub const IMAGE_BYTES_MAX: u64 = 1 << 30;

/// The contents of the memory of an image: a file and where they start in it.
#[derive(Debug)]
pub struct Contents {
    file: Option<File>,
    start: u64,
    length: u64,
}

impl Contents {
    /// No contents: all memory stands in files of its own.
    pub fn none() -> Contents {
        Contents {
            file: None,
            start: 0,
            length: 0,
        }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Reads bytes at `at`.
    ///
    /// # Errors
    /// Beyond the end, or what the file says.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let end = at.checked_add(bytes.len() as u64);
        match (&self.file, end) {
            (Some(file), Some(end)) if end <= self.length => {
                file.read_exact_at(bytes, self.start + at)
            }
            _ => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "contents end early",
            )),
        }
    }
}

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn corrupt(name: &str, reason: &str) -> Error {
    let remedy = "take another image; nothing was started from this one";
    Error::new(Code::Corrupt, Entity::File(name.to_owned()), reason, remedy)
}

/// Writes an image and, from `contents` (a file from its start), its contents.
///
/// # Errors
/// What the writer says, as [`Code::Io`] or [`Code::NoSpace`].
pub fn send(to: &mut impl Write, name: &str, image: &Image, contents: &File) -> Result<()> {
    let body = postcard::to_allocvec(image)
        .map_err(|error| Error::internal(format!("encode an image: {error}")))?;
    let length = image.contents_bytes();
    let mut head = Vec::with_capacity(HEAD);
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&crc(&body).to_le_bytes());
    head.extend_from_slice(&(body.len() as u64).to_le_bytes());
    head.extend_from_slice(&length.to_le_bytes());
    let padding = (HEAD + body.len()).next_multiple_of(PAGE as usize) - HEAD - body.len();
    let mut write = || -> io::Result<()> {
        to.write_all(&head)?;
        to.write_all(&body)?;
        to.write_all(&vec![0; padding])?;
        let mut contents = contents;
        contents.seek(SeekFrom::Start(0))?;
        let copied = io::copy(&mut contents.take(length), to)?;
        if copied < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.flush()
    };
    write().map_err(|error| Error::io(name, "write a process image", &error))
}

/// Reads head and image; the reader then stands at the contents, whose length is returned.
fn receive_image(from: &mut impl Read, name: &str) -> Result<(Image, u64, u64)> {
    let failed = |error: io::Error| Error::io(name, "read a process image", &error);
    let mut head = [0u8; HEAD];
    from.read_exact(&mut head).map_err(failed)?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(word)
    };
    if &head[..8] != MAGIC {
        return Err(corrupt(name, "this is no process image"));
    }
    let (version, want) = (word(8) as u32, (word(8) >> 32) as u32);
    if version != VERSION {
        return Err(Error::new(
            Code::FormatUnknown,
            Entity::File(name.to_owned()),
            format!("process image of version {version}"),
            "restore it with the release that wrote it",
        ));
    }
    let (length, contents) = (word(16), word(24));
    if length > IMAGE_BYTES_MAX {
        return Err(corrupt(name, "the image claims to be too long"));
    }
    // Grows with what really comes.
    let mut body = Vec::new();
    from.take(length).read_to_end(&mut body).map_err(failed)?;
    if body.len() as u64 != length || crc(&body) != want {
        return Err(corrupt(name, "the image does not match its checksum"));
    }
    let image: Image = postcard::from_bytes(&body)
        .map_err(|error| corrupt(name, &format!("the image cannot be read: {error}")))?;
    image.check()?;
    if image.contents_bytes() > contents {
        return Err(corrupt(name, "the image points beyond its contents"));
    }
    let start = (HEAD as u64 + length).next_multiple_of(PAGE);
    let mut padding = vec![0; (start - HEAD as u64 - length) as usize];
    from.read_exact(&mut padding).map_err(failed)?;
    Ok((image, start, contents))
}

/// Receives an image from any reader (a socket); contents go through a temporary file in
/// `spool`, which is unlinked at once.
///
/// # Errors
/// [`Code::Corrupt`], [`Code::FormatUnknown`], [`Code::Truncated`], or of the reader.
pub fn receive(from: &mut impl Read, name: &str, spool: &Path) -> Result<(Image, Contents)> {
    let (image, _, length) = receive_image(from, name)?;
    let path = spool.join(format!("image-{}.spool", std::process::id()));
    let failed = |error: io::Error| Error::io(&path, "spool a process image", &error);
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)?;
    let copied = io::copy(&mut from.take(length), &mut file).map_err(failed)?;
    if copied < length {
        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok((
        image,
        Contents {
            file: Some(file),
            start: 0,
            length,
        },
    ))
}

/// Opens an image that lies in a file; contents are read in place.
///
/// # Errors
/// As [`receive`].
pub fn open(path: &Path) -> Result<(Image, Contents)> {
    let name = path.display().to_string();
    let mut file = File::open(path).map_err(|e| Error::io(path, "open a process image", &e))?;
    let (image, start, length) = receive_image(&mut file, &name)?;
    let there = file
        .metadata()
        .map_err(|e| Error::io(path, "stat", &e))?
        .len();
    if there < start.saturating_add(length) {
        return Err(Error::io(
            path,
            "read contents",
            &io::ErrorKind::UnexpectedEof.into(),
        ));
    }
    Ok((
        image,
        Contents {
            file: Some(file),
            start,
            length,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Action, Process, Thread};
    use proptest::prelude::*;

    fn image() -> Image {
        let thread = Thread {
            tid: 7,
            registers: vec![1; 27],
            xstate: vec![2; 832],
            ..Thread::default()
        };
        let process = Process {
            pid: 7,
            actions: vec![Action::default(); 64],
            threads: vec![thread],
            ..Process::default()
        };
        Image {
            processes: vec![process],
            ..Image::default()
        }
    }

    fn bytes() -> Vec<u8> {
        let mut bytes = Vec::new();
        let contents = tempfile::tempfile().unwrap();
        send(&mut bytes, "test", &image(), &contents).unwrap();
        bytes
    }

    #[test]
    fn what_is_sent_is_received() {
        let dir = tempfile::tempdir().unwrap();
        let (back, contents) = receive(&mut bytes().as_slice(), "test", dir.path()).unwrap();
        assert_eq!(back, image());
        assert!(contents.is_empty());
        // Nothing of the spool is left.
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    proptest! {
        #[test]
        fn damage_is_told_and_never_believed(at in 0usize..900, bit in 0u8..8, cut in 0usize..900) {
            let dir = tempfile::tempdir().unwrap();
            let mut damaged = bytes();
            damaged[at] ^= 1 << bit;
            // The image itself: head and body up to the padding.
            let got = receive(&mut damaged.as_slice(), "test", dir.path());
            prop_assert!(got.is_err());
            let short = &bytes()[..cut];
            prop_assert!(receive(&mut &short[..], "test", dir.path()).is_err());
        }
    }
}
