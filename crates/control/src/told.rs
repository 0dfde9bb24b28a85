//! What was told, so that the same is counted and not told again.
//!
//! A warning belongs to a *kind*: its code, who says it, and its words without numbers
//! and names of files. The first few of a kind are told in full; what follows is counted.
//!
//! Invariants: a code has at most [`KINDS_MAX`] kinds, a kind at most [`FULL_MAX`]
//! entries; so whatever strangers, disks or programs repeat, other warnings have room.

use outlive_base::{Code, Entity, Error, NodeId};

/// True for what is seen of a peer that is gone.
pub fn is_of_connection(error: &Error) -> bool {
    matches!(
        error.code(),
        Code::Network | Code::AgentUnreachable | Code::AgentTimeout
    )
}

/// Warnings of a kind that are told in full.
pub const FULL_MAX: usize = 3;
/// Kinds of one code that are told apart; what comes after is counted with the last.
pub const KINDS_MAX: usize = 32;
/// Characters that tell kinds apart.
const SHAPE_MAX: usize = 160;

/// A warning, and how often the like of it was said after it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Who said it: a node's agent, or the launcher.
    pub source: Option<NodeId>,
    /// What was said.
    pub error: Error,
    /// So many more like it.
    pub more: u64,
    shape: String,
    shown: u64,
}

/// What became of a warning.
#[derive(Clone, PartialEq, Debug)]
pub enum Said {
    /// To be told.
    New,
    /// Counted, and the count is worth a line now.
    Grown(Error, u64),
    /// Counted.
    Again,
}

/// The warnings of a run.
#[derive(Clone, Debug, Default)]
pub struct Told(Vec<Entry>);

impl Told {
    /// What was met before anybody could be told.
    pub fn of(errors: Vec<Error>) -> Told {
        let mut told = Told::default();
        for error in errors {
            told.add(None, error);
        }
        told
    }

    /// Takes in a warning of `source`.
    pub fn add(&mut self, source: Option<NodeId>, error: Error) -> Said {
        let shape = shape(&error);
        let same = |entry: &&mut Entry| entry.error == error && entry.source == source;
        if let Some(entry) = self.0.iter_mut().find(same) {
            return entry.count();
        }
        let like = |entry: &&Entry| entry.is_like(source, &error, &shape);
        let full = self.0.iter().filter(like).count() < FULL_MAX;
        let code = error.code();
        let of_code = |entry: &&Entry| entry.error.code() == code;
        if full && self.0.iter().filter(of_code).count() < FULL_MAX * KINDS_MAX {
            self.0.push(Entry {
                source,
                error,
                more: 0,
                shape,
                shown: 0,
            });
            return Said::New;
        }
        let last = |entry: &Entry| entry.is_like(source, &error, &shape);
        let at = self.0.iter().rposition(last);
        let at = at.or_else(|| self.0.iter().rposition(|entry| entry.error.code() == code));
        at.map_or(Said::Again, |at| self.0[at].count())
    }

    /// True if this, or enough like it, was told.
    pub fn knows(&self, source: Option<NodeId>, error: &Error) -> bool {
        let shape = shape(error);
        let like = |entry: &Entry| entry.is_like(source, error, &shape);
        self.0.iter().any(like)
    }

    /// What was told in full, oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// The counts that no line has told yet.
    pub fn untold(&mut self) -> Vec<(Error, u64)> {
        let grown = self.0.iter_mut().filter(|entry| entry.more > entry.shown);
        grown
            .map(|entry| {
                entry.shown = entry.more;
                (entry.error.clone(), entry.more)
            })
            .collect()
    }
}

impl Entry {
    fn is_like(&self, source: Option<NodeId>, error: &Error, shape: &str) -> bool {
        self.source == source && self.error.code() == error.code() && self.shape == shape
    }

    /// The same again: worth a line at ten, a hundred, a thousand.
    fn count(&mut self) -> Said {
        self.more += 1;
        if self.more < 10 || self.more < self.shown.max(1).saturating_mul(10) {
            return Said::Again;
        }
        self.shown = self.more;
        Said::Grown(self.error.clone(), self.more)
    }
}

/// The words of an error without what differs from case to case.
fn shape(error: &Error) -> String {
    let entity = match error.entity() {
        Entity::File(_) => "file".to_owned(),
        Entity::Address(_) => "address".to_owned(),
        Entity::Version(_) => "version".to_owned(),
        Entity::Region(_) => "region".to_owned(),
        Entity::Rank(_) => "rank".to_owned(),
        // Few, and each matters.
        other => other.to_string(),
    };
    let reason = error.reason().split_whitespace();
    // A code's own words follow what a file is called.
    let words = reason.filter(|word| !word.contains('/') || error.code() == Code::Internal);
    let mut shape = entity;
    for word in words {
        shape.push(' ');
        let mut number = false;
        for letter in word.chars() {
            match letter.is_ascii_digit() {
                true if number => {}
                true => shape.push('#'),
                false => shape.push(letter),
            }
            number = letter.is_ascii_digit();
        }
        if shape.len() > SHAPE_MAX {
            break;
        }
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stranger(port: u32) -> Error {
        let at = Entity::Address(format!("127.0.0.1:{port}"));
        Error::new(Code::KeyMismatch, at, "does not hold the key", "end it")
    }

    fn full(version: u32) -> Error {
        let file = Entity::File(format!("/n/containers/i1-v{version}-n1.olc"));
        Error::new(Code::NoSpace, file, "write: no storage space", "free it")
    }

    #[test]
    fn a_hundred_strangers_leave_room_and_are_counted() {
        let mut told = Told::default();
        let said: Vec<Said> = (0..100)
            .map(|port| told.add(None, stranger(port)))
            .collect();
        let new = said.iter().filter(|said| **said == Said::New).count();
        assert_eq!(new, FULL_MAX);
        let grown = said.iter().filter(|said| matches!(said, Said::Grown(..)));
        assert_eq!(grown.count(), 1, "a line at ten, none at 97");
        assert_eq!(told.add(Some(NodeId(1)), full(10)), Said::New);
        assert_eq!(told.entries().len(), FULL_MAX + 1);
        assert_eq!(told.entries()[FULL_MAX - 1].more, 97);
        assert_eq!(told.untold(), [(stranger(2), 97)]);
        assert!(told.untold().is_empty());
    }

    #[test]
    fn no_kind_takes_the_room_of_another() {
        let mut told = Told::default();
        for version in 0..100_000 {
            told.add(Some(NodeId(version % 1000)), full(version));
        }
        assert!(told.entries().len() <= FULL_MAX * KINDS_MAX);
        assert_eq!(told.add(None, stranger(1)), Said::New);
        let counted: u64 = told.entries().iter().map(|entry| entry.more + 1).sum();
        assert_eq!(counted, 100_001, "nothing is left out of the count");
    }

    #[test]
    fn the_same_from_another_node_is_told() {
        let mut told = Told::default();
        assert_eq!(told.add(Some(NodeId(1)), full(10)), Said::New);
        assert_eq!(told.add(Some(NodeId(2)), full(10)), Said::New);
        assert_eq!(told.add(Some(NodeId(2)), full(10)), Said::Again);
        assert!(told.knows(Some(NodeId(2)), &full(20)));
        assert!(!told.knows(Some(NodeId(3)), &full(20)));
        // Words that differ are another kind, numbers are not.
        let other = Error::new(Code::NoSpace, full(1).entity().clone(), "list: x", "y");
        assert!(!told.knows(Some(NodeId(2)), &other));
    }
}
