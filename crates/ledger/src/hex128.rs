//! 128-bit digests for serde: hexadecimal where people read (JSON), a number
//! elsewhere. JSON readers lose the low bits of such a number.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Writes 32 hexadecimal digits or a u128.
pub fn serialize<S: Serializer>(value: &u128, out: S) -> Result<S::Ok, S::Error> {
    if out.is_human_readable() {
        out.serialize_str(&format!("{value:032x}"))
    } else {
        out.serialize_u128(*value)
    }
}

/// Reads what [`serialize`] writes.
pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<u128, D::Error> {
    if input.is_human_readable() {
        let text = String::deserialize(input)?;
        u128::from_str_radix(&text, 16).map_err(D::Error::custom)
    } else {
        u128::deserialize(input)
    }
}
