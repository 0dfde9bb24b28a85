//! What several jobs write to: a shared tier of storage, by a name that each of them makes alike.
//!
//! Invariant: a tier's name is short and of visible ASCII, whoever sends it, so that it can stand
//! in any line that is shown.

use core::fmt;
use std::collections::BTreeMap;

use outlive_base::level::StoreKind;
use serde::{Deserialize, Serialize};

/// Longest name of a tier, in bytes.
pub const TIER_BYTES_MAX: usize = 128;

/// A tier: what two jobs name alike they share, and what they name otherwise they do not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tier(String);

/// Where the levels of a job lie that other jobs may write to as well.
pub type Tiers = BTreeMap<StoreKind, Tier>;

/// It can be no name of a tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoTier;

impl fmt::Display for NoTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a tier's name has 1 to {TIER_BYTES_MAX} visible ASCII characters"
        )
    }
}

impl Tier {
    /// The tier of this name.
    ///
    /// # Errors
    /// If it is none.
    pub fn new(name: impl Into<String>) -> Result<Tier, NoTier> {
        let name = name.into();
        let visible = name.bytes().all(|byte| byte.is_ascii_graphic());
        let sound = visible && (1..=TIER_BYTES_MAX).contains(&name.len());
        sound.then_some(Tier(name)).ok_or(NoTier)
    }

    /// The tier of which this is said, which may be any text: what cannot be shown is written as
    /// `%xx`, and what is too long is cut off. Two that are alike up to there are one tier.
    pub fn of(text: &str) -> Tier {
        let mut name = String::new();
        for byte in text.bytes().take(TIER_BYTES_MAX) {
            match byte.is_ascii_graphic() && byte != b'%' {
                true => name.push(char::from(byte)),
                false => name += &format!("%{byte:02x}"),
            }
        }
        // All of it is ASCII.
        name.truncate(TIER_BYTES_MAX);
        if name.is_empty() {
            name.push('-');
        }
        Tier(name)
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Tier {
    type Error = NoTier;
    fn try_from(name: String) -> Result<Tier, NoTier> {
        Tier::new(name)
    }
}

impl From<Tier> for String {
    fn from(tier: Tier) -> String {
        tier.0
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_can_be_shown() {
        let longest = "x".repeat(TIER_BYTES_MAX);
        for name in ["nfs4:10.0.0.1", "s3://bucket", longest.as_str()] {
            let tier = Tier::new(name).unwrap();
            let bytes = postcard::to_extend(&tier, Vec::new()).unwrap();
            assert_eq!(postcard::from_bytes::<Tier>(&bytes).unwrap(), tier);
        }
        let long = "x".repeat(TIER_BYTES_MAX + 1);
        for name in ["", "a b", "a\nb", "\u{1b}[2J", "\u{e4}", long.as_str()] {
            assert_eq!(Tier::new(name), Err(NoTier), "{name:?}");
            // Nor does it come from the network.
            let bytes = postcard::to_extend(&name, Vec::new()).unwrap();
            assert!(postcard::from_bytes::<Tier>(&bytes).is_err());
            // Of what may be any text one is made.
            let tier = Tier::of(name);
            assert_eq!(Tier::new(tier.as_str()), Ok(tier));
        }
        assert_eq!(Tier::of("nfs:a b%").as_str(), "nfs:a%20b%25");
        let escaped = Tier::of(&"\u{e4}".repeat(TIER_BYTES_MAX));
        assert_eq!(escaped.as_str().len(), TIER_BYTES_MAX);
    }
}
