//! How an attempt ended: what each process votes, and what all agree on.

use outlive_base::wire::{Reader, Writer};
use outlive_base::{Code, Entity, Error};
use outlive_collectives::Operator;

/// Of two votes the larger counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Vote {
    /// Got through.
    Done,
    /// Someone failed: without them again.
    Again,
    /// The input, or this process, is at fault: again would not help.
    Refuse,
}

/// A vote, or all of them together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    pub(super) vote: Vote,
    /// Processes that failed or left, ascending.
    pub(super) failed: Vec<u32>,
    /// The lowest process that refused.
    pub(super) refuser: Option<u32>,
}

impl Verdict {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(self.vote as u8)
            .u32(self.refuser.unwrap_or(u32::MAX));
        for &rank in &self.failed {
            out.u32(rank);
        }
        out.into_vec()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Verdict> {
        let mut reader = Reader::new(bytes);
        let vote = match reader.u8().ok()? {
            0 => Vote::Done,
            1 => Vote::Again,
            2 => Vote::Refuse,
            _ => return None,
        };
        let refuser = Some(reader.u32().ok()?).filter(|&rank| rank != u32::MAX);
        let rest = &bytes[5..];
        let whole = rest.len().is_multiple_of(4);
        let ranks = rest.chunks_exact(4);
        let ranks = ranks.map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        whole.then(|| Verdict {
            vote,
            failed: ranks.collect(),
            refuser,
        })
    }

    fn unite(self, other: Verdict) -> Verdict {
        let mut failed = self.failed;
        failed.extend(other.failed);
        failed.sort_unstable();
        failed.dedup();
        Verdict {
            vote: self.vote.max(other.vote),
            failed,
            refuser: self.refuser.into_iter().chain(other.refuser).min(),
        }
    }

    /// The error of processes that did not refuse themselves.
    pub(super) fn refusal(&self) -> Error {
        Error::new(
            Code::InvalidArgument,
            Entity::Rank(self.refuser.unwrap_or(u32::MAX)),
            "this process could not take part in the balancing",
            "see the error of that rank",
        )
    }
}

/// Unites verdicts.
pub(super) struct Union;

impl Operator for Union {
    fn combine(&mut self, _: u32, acc: &mut Vec<u8>, arg: &[u8], _: bool) -> bool {
        let (Some(one), Some(two)) = (Verdict::decode(acc), Verdict::decode(arg)) else {
            return false;
        };
        *acc = one.unite(two).encode();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_vote_counts_and_lists_are_united() {
        let of = |vote, failed: &[u32], refuser| Verdict {
            vote,
            failed: failed.to_vec(),
            refuser,
        };
        let mut acc = of(Vote::Done, &[1, 4], None).encode();
        let arg = of(Vote::Refuse, &[3, 4], Some(2)).encode();
        assert!(Union.combine(0, &mut acc, &arg, true));
        let both = Verdict::decode(&acc).unwrap();
        assert_eq!(both, of(Vote::Refuse, &[1, 3, 4], Some(2)));
        for cut in [0, 3, arg.len() - 1] {
            assert_eq!(Verdict::decode(&arg[..cut]), None);
            assert!(!Union.combine(0, &mut acc.clone(), &arg[..cut], true));
        }
    }
}
