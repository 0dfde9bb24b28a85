//! Sets of levels.

use core::fmt;
use serde::{Deserialize, Serialize};

use crate::level::{Level, StoreKind};

/// Most levels of one job.
pub const LEVELS_MAX: usize = 8;

/// At most [`LEVELS_MAX`] levels, nearest first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// Ascending; after them [`NONE`].
    codes: [u8; LEVELS_MAX],
}

/// No level.
const NONE: u8 = u8::MAX;

impl Levels {
    /// No level.
    pub const NONE: Levels = Levels {
        codes: [NONE; LEVELS_MAX],
    };

    /// The set of these levels. Beyond [`LEVELS_MAX`] the farthest are left out.
    pub fn of(levels: &[Level]) -> Levels {
        levels.iter().copied().collect()
    }
    /// This set and `level`.
    #[must_use]
    pub fn with(self, level: Level) -> Levels {
        if self.contains(level) {
            return self;
        }
        let mut codes = self.codes;
        let at = codes.partition_point(|code| *code < level.code());
        if at < LEVELS_MAX {
            codes.copy_within(at..LEVELS_MAX - 1, at + 1);
            codes[at] = level.code();
        }
        Levels { codes }
    }
    /// This set less `level`.
    #[must_use]
    pub fn without(self, level: Level) -> Levels {
        self.iter().filter(|other| *other != level).collect()
    }
    /// The levels that are in one of the sets.
    #[must_use]
    pub fn or(self, other: Levels) -> Levels {
        other.iter().fold(self, Levels::with)
    }
    /// This set less those of the other.
    #[must_use]
    pub fn less(self, other: Levels) -> Levels {
        other.iter().fold(self, Levels::without)
    }
    /// The levels that are in both sets.
    #[must_use]
    pub fn and(self, other: Levels) -> Levels {
        self.iter().filter(|level| other.contains(*level)).collect()
    }
    /// The levels of this set whose bytes this kind of store keeps.
    #[must_use]
    pub fn kept_in(self, store: StoreKind) -> Levels {
        self.iter().filter(|level| level.store() == store).collect()
    }
    /// All others.
    #[must_use]
    pub fn kept_elsewhere(self, store: StoreKind) -> Levels {
        self.iter().filter(|level| level.store() != store).collect()
    }
    /// True if this kind of store keeps the bytes of a level of this set.
    pub fn uses(self, store: StoreKind) -> bool {
        !self.kept_in(store).is_empty()
    }
    /// True if `level` is in the set.
    pub fn contains(self, level: Level) -> bool {
        self.codes.contains(&level.code())
    }
    /// True if no level is in the set.
    pub const fn is_empty(self) -> bool {
        self.codes[0] == NONE
    }
    /// Where `level` stands in the set.
    pub fn place(self, level: Level) -> Option<usize> {
        self.codes.iter().position(|code| *code == level.code())
    }
    /// The set as a word that processes share.
    pub const fn to_word(self) -> u64 {
        u64::from_le_bytes(self.codes)
    }
    /// The inverse of [`Levels::to_word`]; what is no level is left out.
    pub fn from_word(word: u64) -> Levels {
        let codes = word.to_le_bytes().into_iter();
        codes.filter_map(Level::from_code).collect()
    }
    /// The levels, nearest first.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Level> {
        self.codes.into_iter().filter_map(Level::from_code)
    }
}

impl Default for Levels {
    fn default() -> Levels {
        Levels::NONE
    }
}

impl FromIterator<Level> for Levels {
    fn from_iter<I: IntoIterator<Item = Level>>(levels: I) -> Levels {
        levels.into_iter().fold(Levels::NONE, Levels::with)
    }
}

impl fmt::Debug for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Serialize for Levels {
    fn serialize<S: serde::Serializer>(&self, out: S) -> core::result::Result<S::Ok, S::Error> {
        // Some formats want the length first, which a filter does not know.
        self.iter().collect::<Vec<_>>().serialize(out)
    }
}

impl<'de> Deserialize<'de> for Levels {
    fn deserialize<D: serde::Deserializer<'de>>(
        input: D,
    ) -> core::result::Result<Levels, D::Error> {
        Ok(Vec::<Level>::deserialize(input)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_levels_is_small_ascending_and_bounded() {
        assert_eq!(size_of::<Levels>(), 8);
        let xor = Level::xor(4).unwrap();
        let set = Levels::of(&[Level::SHARED, Level::DISK, xor, Level::DISK]);
        let listed: Vec<Level> = set.iter().collect();
        assert_eq!(listed, [Level::DISK, xor, Level::SHARED]);
        assert!(set.contains(xor) && !set.contains(Level::MEMORY));
        assert_eq!(set.without(xor), Levels::of(&[Level::DISK, Level::SHARED]));
        assert_eq!(
            set.and(Levels::of(&[xor, Level::MEMORY])),
            Levels::of(&[xor])
        );
        assert!(set.without(xor).and(Levels::of(&[xor])).is_empty());
        assert_eq!(Levels::from_word(set.to_word()), set);
        assert_eq!(Levels::from_word(u64::MAX), Levels::NONE);
        assert_eq!((set.place(xor), set.place(Level::MEMORY)), (Some(1), None));
        let (memory, shared) = (StoreKind::Keeper, StoreKind::Shared);
        assert_eq!(set.kept_in(shared), Levels::of(&[Level::SHARED]));
        assert_eq!(set.kept_in(StoreKind::Node), set.kept_elsewhere(shared));
        assert_eq!(set.kept_elsewhere(memory), set);
        assert!(set.uses(shared) && !set.uses(memory));
        let many: Levels = (3..=32).filter_map(Level::xor).collect();
        assert_eq!(many.iter().count(), LEVELS_MAX);
    }
}
