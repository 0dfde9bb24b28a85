//! Small files of JSON that programs write for each other, with a checksum of their own.
//!
//! Invariants: of what was written with a checksum each byte counts, also those of which nothing is
//! made: names of fields, white space. What versions before this one wrote, which has none, is
//! read, and they read what this one writes.

use std::path::Path;

use outlive_base::{Code, Entity, Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What every such file says first.
#[derive(Deserialize)]
struct Kind {
    schema: String,
}

/// What stands before the checksum, the last field.
const FIELD: &[u8] = b",\n  \"checksum\": ";
/// How a file ends, with a checksum and without.
const END: &[u8] = b"\n}";

/// Why a file is not believed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unsound {
    /// It says something else than what was asked for, or nothing that can be understood.
    Unknown(String),
    /// It says something, and not what was written.
    Changed,
}

impl Unsound {
    /// As it is told: [`Code::FormatUnknown`] or [`Code::Corrupt`].
    pub fn of(self, path: &Path, remedy: impl Into<String>) -> Error {
        let (code, reason) = match self {
            Unsound::Unknown(reason) => (Code::FormatUnknown, reason),
            Unsound::Changed => (Code::Corrupt, "its checksum does not match".to_owned()),
        };
        Error::new(
            code,
            Entity::File(path.display().to_string()),
            reason,
            remedy.into(),
        )
    }
}

fn plain<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(value)
        .map_err(|error| Error::internal(format!("cannot be written: {error}")))
}

/// The text of a file that says this: an object with a field `schema`. Its checksum is XXH3-64 of the
/// text without that line.
///
/// # Errors
/// [`Code::Internal`] if it is no object.
pub fn text<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let plain = plain(value)?;
    let body = plain.strip_suffix(END);
    let body = body.ok_or_else(|| Error::internal("no object is to be written"))?;
    Ok(sealed(body))
}

fn sealed(body: &[u8]) -> Vec<u8> {
    let sum = xxhash_rust::xxh3::xxh3_64(&[body, END].concat());
    [body, FIELD, sum.to_string().as_bytes(), END].concat()
}

/// What a file's text says, which is of this schema.
///
/// # Errors
/// [`Unsound`].
pub fn parse<T: Serialize + DeserializeOwned>(
    bytes: &[u8],
    schema: &str,
) -> std::result::Result<T, Unsound> {
    let unknown = |error: serde_json::Error| Unsound::Unknown(error.to_string());
    let kind: Kind = serde_json::from_slice(bytes).map_err(unknown)?;
    if kind.schema != schema {
        let reason = format!("schema {}, expected {schema}", kind.schema);
        return Err(Unsound::Unknown(reason));
    }
    let value: T = serde_json::from_slice(bytes).map_err(unknown)?;
    let field = bytes.windows(FIELD.len()).rposition(|it| it == FIELD);
    let written = match field {
        Some(at) => sealed(&bytes[..at]) == bytes,
        // Without a checksum, in one of the two forms that versions before this one wrote; else it
        // is the name of that field that has changed.
        None => {
            let short = serde_json::to_vec(&value).is_ok_and(|it| it == bytes);
            short || plain(&value).is_ok_and(|it| it == bytes)
        }
    };
    written.then_some(value).ok_or(Unsound::Changed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outlive_base::rng::Sequence;

    use super::*;
    use crate::harms::harms;

    const SCHEMA: &str = "outlive.test/1";

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Said {
        schema: String,
        number: u8,
        names: BTreeMap<String, u32>,
    }

    fn said() -> Said {
        Said {
            schema: SCHEMA.to_owned(),
            number: 3,
            names: [("a".to_owned(), 1), ("b".to_owned(), 20)].into(),
        }
    }

    #[test]
    fn each_damage_is_found() {
        let good = text(&said()).unwrap();
        assert_eq!(parse::<Said>(&good, SCHEMA), Ok(said()));
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        for bytes in harms(&good, &mut random) {
            let read = parse::<Said>(&bytes, SCHEMA);
            assert!(read.is_err(), "{}", String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn versions_without_checksums_read_it_and_are_read() {
        let new: Said = serde_json::from_slice(&text(&said()).unwrap()).unwrap();
        assert_eq!(new, said());
        for old in [
            serde_json::to_vec(&said()).unwrap(),
            serde_json::to_vec_pretty(&said()).unwrap(),
        ] {
            assert_eq!(parse::<Said>(&old, SCHEMA), Ok(said()));
        }
        // One that says more is read by this one too, if it is whole.
        let more = sealed(
            b"{\n  \"schema\": \"outlive.test/1\",\n  \"number\": 3,\n  \"names\": {},\n  \"x\": 1",
        );
        assert_eq!(parse::<Said>(&more, SCHEMA).unwrap().number, 3);
        let other = parse::<Said>(&more, "outlive.test/2").unwrap_err();
        assert!(matches!(other, Unsound::Unknown(_)), "{other:?}");
        let path = Path::new("file");
        let error = Unsound::Changed.of(path, "do this");
        assert_eq!((error.code(), error.remedy()), (Code::Corrupt, "do this"));
        let error = parse::<Said>(b"{}", SCHEMA)
            .unwrap_err()
            .of(path, "do that");
        assert_eq!(error.code(), Code::FormatUnknown);
    }
}
