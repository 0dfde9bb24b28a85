//! Sums of pieces of a group, and pieces made of what is left of theirs.
//!
//! Invariants: memory of a sum is bounded by two transfers, and by what is read ahead of each
//! piece, whatever its length; what a sum gives is checked by who takes it, against the digest of
//! what is wanted; what cannot be had is left out, and what of the rest is not sound is found
//! where it lies.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;

use outlive_base::{Code, Entity, Error, Result};
use outlive_codec::field::add_multiple;
use outlive_ledger::scheme::{Group, Piece, Term};

use crate::error::ReadError;

/// Bytes of a transfer.
const CHUNK: usize = 1 << 20;

/// What opens ranges of pieces, wherever they are.
pub type Opener<'a> = dyn FnMut(Piece, Range<u64>) -> io::Result<Box<dyn Read>> + 'a;

/// A term that counts from here on.
struct Running {
    from: Piece,
    factor: u8,
    left: u64,
    reader: Box<dyn Read>,
}

/// The bytes of a sum, from its beginning to its end.
pub struct Sum<'a> {
    open: &'a mut Opener<'a>,
    /// Ascending by where they count, then by node.
    terms: Vec<Term>,
    running: Vec<Running>,
    next: usize,
    at: u64,
    length: u64,
    /// For all terms but the first.
    scratch: Vec<u8>,
    /// The piece that could not be had.
    failed: Option<Piece>,
}

impl<'a> Sum<'a> {
    /// The sum of these terms, `length` bytes.
    pub fn new(mut terms: Vec<Term>, length: u64, open: &'a mut Opener<'a>) -> Sum<'a> {
        terms.retain(|term| !term.range.is_empty() && term.factor != 0);
        // A node has so many threads that send. All who open pieces do so in one order, so that
        // nobody holds one that another waits for, who holds what the first waits for.
        terms.sort_by_key(|term| (term.at, term.from.node()));
        Sum {
            open,
            terms,
            running: Vec::new(),
            next: 0,
            at: 0,
            length,
            scratch: Vec::new(),
            failed: None,
        }
    }

    /// The piece that ended the sum, if one could not be had.
    pub fn failed(&self) -> Option<Piece> {
        self.failed
    }

    /// Opens the terms that begin here; how far no other begins or ends.
    fn turn(&mut self) -> io::Result<u64> {
        // Closed before others are opened.
        self.running.retain(|running| running.left > 0);
        while let Some(term) = self.terms.get(self.next).filter(|term| term.at <= self.at) {
            let opened = (self.open)(term.from, term.range.clone());
            if opened.is_err() {
                self.failed = Some(term.from);
            }
            self.running.push(Running {
                from: term.from,
                factor: term.factor,
                left: term.range.end - term.range.start,
                reader: opened?,
            });
            self.next += 1;
        }
        let begins = self.terms.get(self.next).map(|term| term.at - self.at);
        let ends = self.running.iter().map(|running| running.left);
        let most = self.length - self.at;
        Ok(ends.chain(begins).fold(most, u64::min))
    }
}

impl Read for Sum<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if bytes.is_empty() || self.at == self.length {
            return Ok(0);
        }
        let most = self.turn()?.min(CHUNK as u64);
        let count = bytes.len().min(most as usize);
        let bytes = &mut bytes[..count];
        self.scratch.resize(self.scratch.len().max(count), 0);
        let scratch = &mut self.scratch[..count];
        let mut begun = false;
        for running in &mut self.running {
            // The first is read where it belongs, if it counts as it is.
            let in_place = !begun && running.factor == 1;
            let into = match in_place {
                true => &mut *bytes,
                false => &mut *scratch,
            };
            if let Err(error) = running.reader.read_exact(into) {
                self.failed = Some(running.from);
                return Err(error);
            }
            running.left -= count as u64;
            if !begun && !in_place {
                bytes.fill(0);
            }
            if !in_place {
                add_multiple(bytes, scratch, running.factor);
            }
            begun = true;
        }
        if !begun {
            bytes.fill(0);
        }
        self.at += count as u64;
        Ok(count)
    }
}

/// The pieces of a group, wherever they are.
pub trait Pieces {
    /// Opens bytes of a piece. An [`Error`] in the error is told as it is.
    fn open(&mut self, piece: Piece, range: Range<u64>) -> io::Result<Box<dyn Read>>;
    /// Reads all of a piece where it lies.
    ///
    /// # Errors
    /// If it is not what was committed.
    fn check(&mut self, piece: Piece) -> Result<()>;
}

/// Makes a piece of what there is of its group. `take` reads the sum to its end and says whether
/// it is what is wanted ([`Code::Corrupt`]: it is not); it may be called several times.
///
/// A piece that cannot be had is left out, and another sum taken, as long as there is one. If all
/// came and the sum is not what is wanted, its pieces are checked where they lie.
///
/// # Errors
/// What `take` says; what hinders the pieces, if too few are left: a holder that does not answer
/// first if its piece would do, for it may answer soon. If it would not, its silence is no cause.
pub fn make<T>(
    group: &Group,
    want: Piece,
    length: u64,
    have: &dyn Fn(Piece) -> bool,
    pieces: &mut dyn Pieces,
    take: &mut dyn FnMut(&mut Sum<'_>) -> Result<T>,
) -> Result<T> {
    let mut gone: BTreeMap<Piece, Error> = BTreeMap::new();
    let others = || group.members.iter().filter(|node| **node != want.node());
    // Where there is a choice, what is not there is best known before many bytes are read.
    let is_choice = others().any(|node| have(Piece::Parity(*node)));
    if group.level.protection().m > 1 && is_choice {
        for node in others() {
            for piece in [Piece::Whole(*node), Piece::Parity(*node)] {
                if have(piece)
                    && let Err(error) = pieces.open(piece, 0..0)
                {
                    gone.insert(piece, of_the_sum(error));
                }
            }
        }
    }
    loop {
        let there = |piece: Piece| have(piece) && !gone.contains_key(&piece);
        let Some(terms) = group.terms(want, there) else {
            let may_come = |piece: Piece| have(piece) && gone.get(&piece).is_none_or(is_away);
            let is_awaited = group.terms(want, may_come).is_some();
            return Err(too_little(gone, is_awaited));
        };
        let mut used: Vec<Piece> = terms.iter().map(|term| term.from).collect();
        let mut open = |piece, range| pieces.open(piece, range);
        let mut sum = Sum::new(terms, length, &mut open);
        let error = match take(&mut sum) {
            Ok(made) => return Ok(made),
            Err(error) => error,
        };
        let failed = sum.failed();
        // Who is asked next may be one that is still sending.
        drop(sum);
        match failed {
            Some(piece) => drop(gone.insert(piece, error)),
            None if error.code() == Code::Corrupt => {
                used.sort_unstable();
                used.dedup();
                let before = gone.len();
                for piece in used {
                    if let Err(error) = pieces.check(piece) {
                        gone.insert(piece, error);
                    }
                }
                if gone.len() == before {
                    return Err(error);
                }
            }
            None => return Err(error),
        }
    }
}

/// The error of a piece as its opener told it, if it told one.
pub fn of_the_sum(error: io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::io("a sum of pieces", "read", &error),
    }
}

/// The error of a container that was received from a sum.
pub fn of_received(error: ReadError) -> Error {
    match error {
        ReadError::Lost { source, .. } => of_the_sum(source),
        error => error.into(),
    }
}

/// True if a holder does not answer, and may later.
fn is_away(error: &Error) -> bool {
    use Code::{AgentTimeout, AgentUnreachable, Network};
    matches!(error.code(), Network | AgentUnreachable | AgentTimeout)
}

/// Why nothing can be made; `is_awaited`: it could be with what is away.
fn too_little(gone: BTreeMap<Piece, Error>, is_awaited: bool) -> Error {
    let mut errors: Vec<Error> = gone.into_values().collect();
    errors.sort_by_key(|error| is_away(error) != is_awaited);
    let Some(first) = errors.first() else {
        return Error::internal("nothing is known of a group");
    };
    let code = match is_away(first) && !is_awaited {
        true => Code::NotFound,
        false => first.code(),
    };
    let each = errors.iter().map(|error| match error.entity() {
        _ if errors.len() == 1 => error.reason().to_owned(),
        Entity::File(_) => error.reason().to_owned(),
        entity => format!("{entity}: {}", error.reason()),
    });
    let reasons = each.collect::<Vec<_>>().join("; ");
    Error::new(code, first.entity().clone(), reasons, first.remedy())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use outlive_base::rng::Sequence;
    use outlive_base::{Level, NodeId};

    use super::*;

    #[test]
    fn a_sum_is_the_sum_of_all_terms_at_each_byte() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        for _ in 0..200 {
            let length = 1 + random.below(9000);
            let source: Vec<u8> = (0..20_000).map(|_| random.below(256) as u8).collect();
            let mut expected = vec![0; length as usize];
            let mut terms = Vec::new();
            for _ in 0..random.below(9) {
                let at = random.below(length);
                let bytes = random.below(length - at + 1);
                let start = random.below(10_000);
                let range = start..start + bytes;
                let factor = [0, 1, 1, random.below(256) as u8][random.below(4) as usize];
                let into = &mut expected[at as usize..(at + bytes) as usize];
                let from = &source[start as usize..][..bytes as usize];
                add_multiple(into, from, factor);
                terms.push(Term {
                    from: Piece::Whole(NodeId(random.below(3) as u32)),
                    range,
                    at,
                    factor,
                });
            }
            let mut open = |_: Piece, range: Range<u64>| {
                let part = source[range.start as usize..range.end as usize].to_vec();
                Ok(Box::new(io::Cursor::new(part)) as Box<dyn Read>)
            };
            let mut sum = Sum::new(terms, length, &mut open);
            let mut got = Vec::new();
            sum.read_to_end(&mut got).unwrap();
            assert_eq!((got, sum.failed()), (expected, None));
        }
    }

    /// Pieces in memory, some of which are missing, break off or have rotted.
    #[derive(Clone, Default)]
    struct Held {
        bytes: BTreeMap<Piece, Vec<u8>>,
        missing: BTreeSet<Piece>,
        away: BTreeSet<Piece>,
        broken: BTreeSet<Piece>,
        rotten: BTreeSet<Piece>,
        /// Bytes that were asked for.
        read: u64,
        open: std::rc::Rc<std::cell::Cell<usize>>,
        most_open: usize,
        checked: BTreeSet<Piece>,
    }

    /// Knows that it is closed.
    struct Counted(io::Cursor<Vec<u8>>, std::rc::Rc<std::cell::Cell<usize>>);

    impl Read for Counted {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0.read(bytes)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.set(self.1.get() - 1);
        }
    }

    fn fails(code: Code, piece: Piece) -> Error {
        Error::new(code, Entity::Node(piece.node().0), "fails", "none")
    }

    impl Pieces for Held {
        fn open(&mut self, piece: Piece, range: Range<u64>) -> io::Result<Box<dyn Read>> {
            if self.away.contains(&piece) {
                return Err(io::Error::other(fails(Code::Network, piece)));
            }
            if self.missing.contains(&piece) {
                return Err(io::Error::other(fails(Code::NotFound, piece)));
            }
            self.read += range.end - range.start;
            let mut bytes = self.bytes[&piece][range.start as usize..range.end as usize].to_vec();
            if self.broken.contains(&piece) {
                bytes.truncate(bytes.len() / 2);
            }
            if let Some(first) = bytes.first_mut().filter(|_| self.rotten.contains(&piece)) {
                *first ^= 0x40;
            }
            self.open.set(self.open.get() + 1);
            self.most_open = self.most_open.max(self.open.get());
            Ok(Box::new(Counted(io::Cursor::new(bytes), self.open.clone())))
        }

        fn check(&mut self, piece: Piece) -> Result<()> {
            self.checked.insert(piece);
            assert_eq!(self.open.get(), 0, "nobody is kept waiting meanwhile");
            match self.rotten.contains(&piece) || self.broken.contains(&piece) {
                true => Err(fails(Code::Corrupt, piece)),
                false => Ok(()),
            }
        }
    }

    fn group_of(level: Level, random: &mut Sequence) -> Group {
        let members = level.members().unwrap();
        let most = 1 + random.below(50_000);
        Group {
            level,
            members: (0..u32::from(members)).map(NodeId).collect(),
            lengths: (0..members).map(|_| 1 + random.below(most)).collect(),
        }
    }

    fn made_of(group: &Group, held: &mut Held, want: Piece) -> Result<()> {
        let expected = held.bytes[&want].clone();
        let have = |piece: Piece| piece.node() != want.node();
        make(
            group,
            want,
            expected.len() as u64,
            &have,
            held,
            &mut |sum| {
                // As a container is checked: before all has come.
                for expected in expected.chunks(512) {
                    let mut got = vec![0; expected.len()];
                    sum.read_exact(&mut got).map_err(of_the_sum)?;
                    if got != expected {
                        return Err(fails(Code::Corrupt, want));
                    }
                }
                Ok(())
            },
        )
    }

    fn held(group: &Group, random: &mut Sequence) -> Held {
        let mut held = Held::default();
        for (node, length) in group.members.iter().zip(&group.lengths) {
            let bytes = (0..*length).map(|_| random.below(256) as u8).collect();
            held.bytes.insert(Piece::Whole(*node), bytes);
        }
        for node in &group.members {
            let want = Piece::Parity(*node);
            let have = |piece| matches!(piece, Piece::Whole(_));
            let bytes = group.parity_bytes();
            let parity = make(group, want, bytes, &have, &mut held, &mut |sum| {
                let mut got = Vec::new();
                sum.read_to_end(&mut got).map_err(of_the_sum)?;
                Ok(got)
            });
            held.bytes.insert(want, parity.unwrap());
        }
        held
    }

    /// As many things as the level tolerates go wrong, each in its own way, at other members.
    #[test]
    fn what_goes_wrong_is_left_out() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        let levels = [Level::rs(2, 2), Level::rs(4, 2), Level::rs(3, 4)];
        for turn in 0..90 {
            let level = levels[turn % 3].unwrap();
            let group = group_of(level, &mut random);
            let good = held(&group, &mut random);
            assert!(good.most_open <= group.members.len());
            let mut nodes: Vec<NodeId> = group.members.clone();
            let mut any = || nodes.remove(random.below(nodes.len() as u64) as usize);
            let lost = any();
            let mut hurt = good.clone();
            let others: Vec<NodeId> = (1..level.protection().m).map(|_| any()).collect();
            for node in others {
                for piece in [Piece::Whole(node), Piece::Parity(node)] {
                    let how = match random.below(4) {
                        0 => &mut hurt.missing,
                        1 => &mut hurt.away,
                        2 => &mut hurt.broken,
                        _ => &mut hurt.rotten,
                    };
                    how.insert(piece);
                }
            }
            for want in [Piece::Whole(lost), Piece::Parity(lost)] {
                made_of(&group, &mut hurt, want).unwrap();
            }
            assert_eq!(hurt.open.get(), 0, "all are closed");
        }
    }

    #[test]
    fn with_xor_there_is_no_choice() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        let group = Group {
            level: Level::xor(4).unwrap(),
            members: (0..4).map(NodeId).collect(),
            lengths: vec![30_000; 4],
        };
        let good = held(&group, &mut random);
        let (want, other) = (Piece::Whole(NodeId(1)), Piece::Whole(NodeId(3)));
        let mut hurt = good.clone();
        made_of(&group, &mut hurt, want).unwrap();
        assert!(hurt.checked.is_empty());
        hurt.rotten.insert(other);
        assert_eq!(
            made_of(&group, &mut hurt, want).unwrap_err(),
            fails(Code::Corrupt, other)
        );
        hurt.away.insert(Piece::Parity(NodeId(0)));
        let error = made_of(&group, &mut hurt, want).unwrap_err();
        assert_eq!(error.code(), Code::Network, "{error}");
    }

    /// Who does not answer may soon; so that is what is told.
    #[test]
    fn what_hinders_is_told_and_who_is_away_first() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        let group = Group {
            level: Level::rs(2, 2).unwrap(),
            members: (0..4).map(NodeId).collect(),
            lengths: vec![30_000; 4],
        };
        let mut hurt = held(&group, &mut random);
        hurt.missing = [Piece::Whole(NodeId(1)), Piece::Parity(NodeId(1))].into();
        hurt.away = [Piece::Whole(NodeId(2)), Piece::Parity(NodeId(2))].into();
        hurt.read = 0;
        let error = made_of(&group, &mut hurt, Piece::Whole(NodeId(0))).unwrap_err();
        assert_eq!(
            (error.code(), error.entity()),
            (Code::Network, &Entity::Node(2))
        );
        assert!(error.reason().contains("node 1: fails"), "{error}");
        assert_eq!(hurt.read, 0, "nothing was read in vain");
        // Whoever is away would not help: nobody need wait.
        let third = [Piece::Whole(NodeId(3)), Piece::Parity(NodeId(3))];
        hurt.missing.extend(third);
        let error = made_of(&group, &mut hurt, Piece::Whole(NodeId(0))).unwrap_err();
        assert_eq!(
            error.code(),
            fails(Code::NotFound, third[0]).code(),
            "{error}"
        );
        // It was the taker that failed, and no piece is bad.
        let mut good = held(&group, &mut random);
        let have = |piece: Piece| piece.node() != NodeId(0);
        let want = Piece::Whole(NodeId(0));
        for (code, checked) in [(Code::Corrupt, true), (Code::NoSpace, false)] {
            let error = make(&group, want, 30_000, &have, &mut good, &mut |sum| {
                io::copy(sum, &mut io::sink()).map_err(of_the_sum)?;
                Err::<(), Error>(fails(code, want))
            });
            assert_eq!(error, Err(fails(code, want)));
            assert_eq!(!std::mem::take(&mut good.checked).is_empty(), checked);
        }
    }
}
