//! How the two members of a communicator agree on a lane, or on messages: all or nothing.
//!
//! At the first collective of the communicator the lower rank makes the memory and tells
//! the other where it is; the other maps it and answers whether it could. Each refusal,
//! on either side, is in what the other hears, so both choose alike. What fails (no memory
//! files, no memory, another host, other name spaces, too many lanes) leaves the messages.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::Instant;

use super::Pair;
use crate::lane::segment::{PROOF_BYTES, Segment, place};
use crate::lane::way::{Counted, LANES_MAX, Permit, Way};
use crate::lane::{BYTES, Lane};
use crate::native::Handle;

/// Bytes of what the lower rank tells: numbers, proof, place.
const CARD_BYTES: usize = 256;
/// Which form the card and the memory have.
const FORM: u32 = 2;

/// A message of the agreement did not pass.
enum Failed {
    /// MPI's code; the messages of the call itself will meet it too.
    Mpi,
    Bound,
}

struct Card {
    pid: u32,
    file: i32,
    proof: [u8; PROOF_BYTES],
    place: String,
}

impl Card {
    fn bytes(&self) -> [u8; CARD_BYTES] {
        let mut card = [0; CARD_BYTES];
        card[0..4].copy_from_slice(&FORM.to_le_bytes());
        card[4..8].copy_from_slice(&(BYTES as u32).to_le_bytes());
        card[8..12].copy_from_slice(&self.pid.to_le_bytes());
        card[12..16].copy_from_slice(&self.file.to_le_bytes());
        card[16..16 + PROOF_BYTES].copy_from_slice(&self.proof);
        let (text, at) = (self.place.as_bytes(), 16 + PROOF_BYTES);
        let length = text.len().min(CARD_BYTES - at);
        card[at..at + length].copy_from_slice(&text[..length]);
        card
    }

    /// `None`: the other offers nothing, or another form.
    fn of(card: &[u8; CARD_BYTES]) -> Option<Card> {
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&card[at..at + 4]);
            u32::from_le_bytes(bytes)
        };
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(&card[16..16 + PROOF_BYTES]);
        let text = &card[16 + PROOF_BYTES..];
        let end = text.iter().position(|byte| *byte == 0);
        let text = &text[..end.unwrap_or(text.len())];
        (word(0) == FORM && word(4) == BYTES as u32).then(|| Card {
            pid: word(8),
            file: word(12) as i32,
            proof,
            place: String::from_utf8_lossy(text).into_owned(),
        })
    }
}

/// The way of a pair, agreed on with the other.
pub fn meet(pair: &Pair) -> Way {
    if !pair.layer.settings.shared_memory {
        return Way::Messages;
    }
    let met = if pair.comm.me == 0 {
        offer(pair)
    } else {
        answer(pair)
    };
    let refused = |reason: String| {
        say(pair, &format!("MPI messages: {reason}"));
        Way::Messages
    };
    match met {
        Ok(Ok(way)) => {
            say(pair, "shared memory");
            Way::Lane(Mutex::new(way))
        }
        Ok(Err(reason)) => refused(reason),
        Err(Failed::Mpi) => refused("the other could not be asked".into()),
        Err(Failed::Bound) => Way::None,
    }
}

fn say(pair: &Pair, what: &str) {
    if pair.layer.settings.verbose {
        let (me, peer) = (pair.layer.me, pair.peer);
        // In one piece, so that lines of several ranks do not mix.
        let line = format!("outlive: rank {me} with {peer}, two of a communicator, over {what}\n");
        eprint!("{line}");
    }
}

type Agreed = Result<Result<Counted, String>, Failed>;

fn no_memory(error: std::io::Error) -> String {
    format!("no shared memory: {error}")
}

fn make() -> Result<(Segment, Card, std::os::fd::OwnedFd, Permit), String> {
    let taken = Permit::take().ok_or_else(|| format!("{LANES_MAX} others share memory"))?;
    let mut proof = [0; PROOF_BYTES];
    getrandom::fill(&mut proof).map_err(|error| format!("no random bytes: {error}"))?;
    let (segment, file) = Segment::make(BYTES, &proof).map_err(no_memory)?;
    let card = Card {
        pid: std::process::id(),
        file: file.as_raw_fd(),
        proof,
        place: place().map_err(no_memory)?,
    };
    Ok((segment, card, file, taken))
}

fn offer(pair: &Pair) -> Agreed {
    let made = make();
    let card = match &made {
        Ok((_, card, ..)) => card.bytes(),
        Err(_) => [0; CARD_BYTES],
    };
    give(pair, &card)?;
    let mut verdict = [0];
    take(pair, &mut verdict)?;
    // Here the file is closed: both have it mapped, or it goes.
    Ok(made.and_then(|(segment, _, _file, place)| {
        if verdict[0] != 1 {
            return Err("the other cannot open the memory".into());
        }
        Ok(Counted::new(Lane::new(segment, 0), place))
    }))
}

fn answer(pair: &Pair) -> Agreed {
    let mut card = [0; CARD_BYTES];
    take(pair, &mut card)?;
    let opened = open(&card);
    give(pair, &[u8::from(opened.is_ok())])?;
    Ok(opened)
}

fn open(card: &[u8; CARD_BYTES]) -> Result<Counted, String> {
    let card = Card::of(card).ok_or("the other offers no memory")?;
    if card.place != place().map_err(no_memory)? {
        return Err("another host, or other name spaces".into());
    }
    let taken = Permit::take().ok_or_else(|| format!("{LANES_MAX} others share memory"))?;
    let segment = Segment::open(card.pid, card.file, BYTES, &card.proof).map_err(no_memory)?;
    Ok(Counted::new(Lane::new(segment, 1), taken))
}

fn give(pair: &Pair, data: &[u8]) -> Result<(), Failed> {
    let bytes = data.to_vec();
    transfer(pair, bytes, |pair, bytes, request| {
        let (tag, shadow, byte) = pair.address();
        let count = bytes.len() as c_int;
        // SAFETY: the bytes stay until the request is done.
        unsafe {
            let data = bytes.as_ptr().cast();
            (pair.native.isend)(data, count, byte, pair.peer, tag, shadow, request)
        }
    })
    .map(drop)
}

fn take(pair: &Pair, data: &mut [u8]) -> Result<(), Failed> {
    let bytes = vec![0; data.len()];
    let bytes = transfer(pair, bytes, |pair, bytes, request| {
        let (tag, shadow, byte) = pair.address();
        let count = bytes.len() as c_int;
        // SAFETY: the bytes stay until the request is done.
        unsafe {
            let data = bytes.as_mut_ptr().cast();
            (pair.native.irecv)(data, count, byte, pair.peer, tag, shadow, request)
        }
    })?;
    data.copy_from_slice(&bytes);
    Ok(())
}

/// One message, waited for up to the bound.
fn transfer(
    pair: &Pair,
    mut bytes: Vec<u8>,
    begin: impl FnOnce(&Pair, &mut [u8], &mut Handle) -> c_int,
) -> Result<Vec<u8>, Failed> {
    let mut request = pair.native.constants.request_null;
    if begin(pair, &mut bytes, &mut request) != 0 {
        return Err(Failed::Mpi);
    }
    let start = Instant::now();
    let bound = std::time::Duration::from_nanos(pair.layer.settings.bound.0);
    loop {
        let mut done = 0;
        let ignore = pair.native.constants.status_ignore;
        // SAFETY: a live request.
        let code = unsafe { (pair.native.test)(&mut request, &mut done, ignore as *mut _) };
        if code != 0 {
            return Err(Failed::Mpi);
        }
        if done != 0 {
            return Ok(bytes);
        }
        if start.elapsed() > bound {
            // MPI may still use them.
            std::mem::forget(bytes);
            return Err(Failed::Bound);
        }
        pair.layer.progress();
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_as_it_was_written() {
        let card = Card {
            pid: 77,
            file: 5,
            proof: [9; PROOF_BYTES],
            place: "here".into(),
        };
        let read = Card::of(&card.bytes()).expect("a card");
        assert_eq!((read.pid, read.file, read.proof), (77, 5, [9; PROOF_BYTES]));
        assert_eq!(read.place, "here");
        assert!(Card::of(&[0; CARD_BYTES]).is_none(), "nothing is offered");
        let mut other = card.bytes();
        other[4] ^= 1;
        assert!(Card::of(&other).is_none(), "another size");
    }

    #[test]
    fn one_s_offer_is_opened_and_another_place_s_is_not() {
        let (_segment, card, _file, _place) = make().expect("memory files");
        assert!(open(&card.bytes()).is_ok());
        let elsewhere = Card {
            place: "elsewhere".into(),
            ..card
        };
        let reason = open(&elsewhere.bytes()).err().expect("refused");
        assert!(reason.contains("host"), "{reason}");
    }
}
