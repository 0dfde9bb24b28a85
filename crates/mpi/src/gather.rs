//! Collectives whose result has a part of every rank: MPI_Gather, MPI_Gatherv, MPI_Allgather,
//! MPI_Allgatherv, with counts of either size.
//!
//! A contribution is a piece: a rank, a length, packed data. The operator puts pieces one
//! after the other, whatever their order, so every tree and every family serves. Whoever gets
//! the result unpacks each piece into its rank's part of the buffer. Invariant: the part of a
//! rank that is missing stays as it was before the call.
//!
//! Data too long for one message are the native library's where all ranks see that alike.
//! Of a Gatherv only the root knows all lengths: there it is an error.

use std::ffi::{c_int, c_void};

use outlive_collectives::Operator;
use outlive_network::rail::Content;
use outlive_protocols::collective::{Call, CollectiveKind};

use crate::body::{self, Shape};
use crate::calls::{Ours, ours};
use crate::native::{Count, Handle};

/// A collective of this sort, as the layer carries it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Whose machine carries it out.
    pub kind: CollectiveKind,
    /// Every rank's data are as long: all know the length of all.
    pub alike: bool,
}

/// MPI_Gather.
pub const GATHER: Row = Row {
    kind: CollectiveKind::Gather,
    alike: true,
};
/// MPI_Gatherv.
pub const GATHERV: Row = Row {
    kind: CollectiveKind::Gather,
    alike: false,
};
/// MPI_Allgather.
pub const ALLGATHER: Row = Row {
    kind: CollectiveKind::Allgather,
    alike: true,
};
/// MPI_Allgatherv.
pub const ALLGATHERV: Row = Row {
    kind: CollectiveKind::Allgather,
    alike: false,
};

/// How many elements each rank's part of the result has, and where it begins, in elements.
#[derive(Clone, Copy, Debug)]
pub enum Parts {
    /// As many each, one after the other.
    Alike(Count),
    /// By rank.
    Each(*const c_int, *const c_int),
    /// By rank, of the large-count form.
    EachLarge(*const Count, *const isize),
}

impl Parts {
    /// # Safety
    /// Arrays have an entry for each rank, and `rank` is one.
    unsafe fn of(self, rank: usize) -> (Count, isize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Parts::Alike(count) => (count, rank as isize * count as isize),
                Parts::Each(counts, places) => {
                    (Count::from(*counts.add(rank)), *places.add(rank) as isize)
                }
                Parts::EachLarge(counts, places) => (*counts.add(rank), *places.add(rank)),
            }
        }
    }
}

/// The arguments of a call; `root` is `None` where all get the result.
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// The own data, or MPI_IN_PLACE.
    pub give: *const c_void,
    /// How many.
    pub gives: Count,
    /// Of what.
    pub given: Handle,
    /// Where the result goes.
    pub result: *mut c_void,
    /// Its parts.
    pub parts: Parts,
    /// Of what.
    pub taken: Handle,
    /// Who gets it.
    pub root: Option<c_int>,
}

/// Bytes before the data of a piece: the rank, and how many follow.
const HEAD: usize = 12;
/// Stands for the length of data that are too long.
const TOO_LONG: u64 = u64::MAX;

fn piece(rank: u32, bytes: u64) -> Vec<u8> {
    let room = match bytes {
        TOO_LONG => 0,
        bytes => bytes as usize,
    };
    let mut piece = Vec::with_capacity(HEAD + room);
    piece.extend_from_slice(&rank.to_le_bytes());
    piece.extend_from_slice(&bytes.to_le_bytes());
    piece
}

/// The pieces of a result, or `None` from where it makes no sense.
fn pieces(mut data: &[u8]) -> impl Iterator<Item = Option<(u32, Option<&[u8]>)>> {
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let Some((head, rest)) = data.split_first_chunk::<HEAD>() else {
            data = &[];
            return Some(None);
        };
        let rank = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let mut length = [0; 8];
        length.copy_from_slice(&head[4..]);
        let length = u64::from_le_bytes(length);
        if length == TOO_LONG {
            data = rest;
            return Some(Some((rank, None)));
        }
        let found = usize::try_from(length)
            .ok()
            .and_then(|length| rest.split_at_checked(length));
        let Some((own, rest)) = found else {
            data = &[];
            return Some(None);
        };
        data = rest;
        Some(Some((rank, Some(own))))
    })
}

/// Puts pieces one after the other, for one call; frames of others are declined.
struct Append {
    call: u32,
}

impl Operator for Append {
    fn combine(&mut self, call: u32, acc: &mut Vec<u8>, arg: &[u8], _: bool) -> bool {
        if call != self.call || acc.len() + arg.len() > body::BYTES_MAX {
            return false;
        }
        acc.extend_from_slice(arg);
        true
    }
}

/// Why a call has no result.
enum Ends {
    /// It is the native library's.
    Native,
    /// MPI's code.
    Code(c_int),
}

/// Carries a call out; `None` if it is not ours.
///
/// # Safety
/// As the MPI function of `row`.
pub unsafe fn gather(row: Row, args: Args, comm: Handle) -> Option<c_int> {
    let ours = ours(comm)?;
    if let Some(code) = ours.refused(args.root) {
        return Some(ours.end(code));
    }
    // SAFETY: the caller's promise.
    match unsafe { Gathering::of(&ours, row, args).run() } {
        Ok(()) => Some(ours.end(0)),
        Err(Ends::Code(code)) => Some(ours.end(code)),
        Err(Ends::Native) => None,
    }
}

/// One call.
struct Gathering<'a> {
    ours: &'a Ours,
    row: Row,
    args: Args,
    /// The result is due here.
    due: bool,
    in_place: bool,
}

impl Gathering<'_> {
    fn of(ours: &Ours, row: Row, mut args: Args) -> Gathering<'_> {
        let native = ours.native;
        let due = args.root.is_none_or(|root| root == ours.comm.me as c_int);
        // Elsewhere than where the result is due its arguments mean nothing.
        if due {
            args.taken = native.clean(args.taken);
        }
        let in_place = due && args.give as usize == native.constants.in_place;
        if !in_place {
            args.given = native.clean(args.given);
        }
        Gathering {
            ours,
            row,
            args,
            due,
            in_place,
        }
    }

    /// `count` of `datatype`; `None` if they are too long for a message.
    fn shape(&self, count: Count, datatype: Handle) -> Result<Option<Shape>, Ends> {
        let Ours { native, comm, .. } = self.ours;
        let Ok(count) = c_int::try_from(count) else {
            return Ok(None);
        };
        match Shape::of(native, count, datatype, comm.handle) {
            Ok(shape) => Ok(Some(shape)),
            Err(0) => Ok(None),
            Err(code) => Err(Ends::Code(code)),
        }
    }

    /// Bytes of one element.
    fn size(&self, datatype: Handle) -> Result<u128, Ends> {
        let one = self.shape(1, datatype)?;
        Ok(one.map_or(u128::from(u64::MAX), |one| one.data_bytes as u128))
    }

    /// Bytes of all data, where every rank knows them.
    ///
    /// # Safety
    /// As MPI's.
    unsafe fn total(&self) -> Result<Option<u128>, Ends> {
        let ranks = self.ours.comm.members.len();
        let Args {
            gives,
            given,
            parts,
            taken,
            root,
            ..
        } = self.args;
        let bytes = if self.row.alike {
            let (count, datatype) = if self.in_place {
                // SAFETY: the caller's promise.
                (unsafe { parts.of(0) }.0, taken)
            } else {
                (gives, given)
            };
            // The library says what is wrong with it.
            let count = u64::try_from(count).map_err(|_| Ends::Native)?;
            u128::from(count) * self.size(datatype)? * ranks as u128
        } else if root.is_none() {
            // SAFETY: the caller's promise.
            let counts = (0..ranks).map(|rank| unsafe { parts.of(rank) }.0.max(0) as u128);
            counts.sum::<u128>() * self.size(taken)?
        } else {
            return Ok(None);
        };
        Ok(Some(bytes + (ranks * HEAD) as u128))
    }

    /// The own piece; none where the own data are in the result already and nobody else's.
    ///
    /// # Safety
    /// As MPI's.
    unsafe fn own(&self) -> Result<Content, Ends> {
        let me = self.ours.comm.me;
        let (shape, data) = if self.in_place {
            if self.args.root.is_some() {
                return Ok(Content::default());
            }
            // SAFETY: the caller's promise.
            let (shape, at) = unsafe { self.part(me as usize) }?;
            (shape, at.cast_const())
        } else {
            (
                self.shape(self.args.gives, self.args.given)?,
                self.args.give,
            )
        };
        let Some(shape) = shape.filter(|shape| shape.bytes + HEAD <= body::BYTES_MAX) else {
            return Ok(Content::new(piece(me, TOO_LONG)));
        };
        let mut own = piece(me, shape.bytes as u64);
        // SAFETY: the caller's promise.
        unsafe { shape.pack_into(data, &mut own) }.map_err(Ends::Code)?;
        let packed = (own.len() - HEAD) as u64;
        own[4..HEAD].copy_from_slice(&packed.to_le_bytes());
        Ok(Content::new(own))
    }

    /// A rank's part of the result.
    ///
    /// # Safety
    /// As MPI's, where the result is due.
    unsafe fn part(&self, rank: usize) -> Result<(Option<Shape>, *mut c_void), Ends> {
        // SAFETY: the caller's promise.
        let (count, place) = unsafe { self.args.parts.of(rank) };
        let shape = self.shape(count, self.args.taken)?;
        let extent = shape.as_ref().map_or(0, Shape::extent);
        let at = self.args.result.wrapping_byte_offset(place * extent);
        Ok((shape, at))
    }

    /// # Safety
    /// As MPI's.
    unsafe fn run(&self) -> Result<(), Ends> {
        let Gathering {
            ours, row, args, ..
        } = self;
        // SAFETY: the caller's promise.
        let total = unsafe { self.total() }?;
        if total.is_some_and(|total| total > body::BYTES_MAX as u128) {
            return Err(Ends::Native);
        }
        // SAFETY: as above.
        let own = unsafe { self.own() }?;
        let call = Call {
            kind: row.kind,
            root: args.root.unwrap_or(0) as u32,
            value: None,
            ordered: false,
        };
        // A length that ranks know alone must not choose the family.
        let bytes = total.map_or(usize::MAX, |total| total as usize);
        let ended = ours.run(call, bytes, Some(own), |call| Append { call });
        let outcome = ended.map_err(|why| Ends::Code(ours.why(why)))?;
        if !self.due {
            return Ok(());
        }
        let content = outcome.content.ok_or(self.other())?;
        // SAFETY: as above.
        unsafe { self.unpack(&content.bytes) }
    }

    fn other(&self) -> Ends {
        Ends::Code(self.ours.native.constants.err_other)
    }

    /// # Safety
    /// As MPI's, where the result is due.
    unsafe fn unpack(&self, data: &[u8]) -> Result<(), Ends> {
        let comm = &self.ours.comm;
        for piece in pieces(data) {
            let (rank, data) = piece
                .filter(|(rank, _)| (*rank as usize) < comm.members.len())
                .ok_or(self.other())?;
            if self.in_place && rank == comm.me {
                continue;
            }
            // SAFETY: the caller's promise; the rank is one of the communicator.
            let (shape, at) = unsafe { self.part(rank as usize) }?;
            let (Some(shape), Some(data)) = (shape, data) else {
                return Err(self.other());
            };
            if data.len() > shape.bytes {
                return Err(Ends::Code(self.ours.native.constants.err_truncate));
            }
            // SAFETY: as above.
            if !unsafe { shape.unpack(data, at) } {
                return Err(self.other());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::{rng::Sequence, seed};

    use super::*;

    #[test]
    fn pieces_come_back_whatever_their_order_and_half_ones_are_said() {
        let mut random = Sequence::new(seed!(), 0);
        let mut append = Append { call: 7 };
        let (mut all, mut want) = (Vec::new(), Vec::new());
        for rank in 0..20 {
            let data: Vec<u8> = (0..random.below(40)).map(|_| random.u64() as u8).collect();
            let long = random.below(5) == 0;
            let mut one = piece(rank, if long { TOO_LONG } else { data.len() as u64 });
            if !long {
                one.extend_from_slice(&data);
            }
            assert!(append.combine(7, &mut all, &one, random.below(2) == 0));
            want.push((rank, (!long).then_some(data)));
        }
        assert!(!append.combine(8, &mut all, &[], true), "of another call");
        let got: Vec<_> = pieces(&all)
            .map(|piece| piece.map(|(rank, data)| (rank, data.map(<[u8]>::to_vec))))
            .collect();
        assert_eq!(got, want.into_iter().map(Some).collect::<Vec<_>>());
        let mut whole = piece(3, 5);
        whole.extend_from_slice(b"hello");
        for cut in 1..whole.len() {
            let found: Vec<_> = pieces(&whole[..cut]).collect();
            assert_eq!(found, [None], "{cut}");
        }
    }
}
