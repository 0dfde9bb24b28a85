//! Streams of bytes over a channel: chunks of [`CHUNK_BYTES`] and an end, with the digest of all
//! if it is wanted. Never more than one chunk is held.

use std::io::{self, ErrorKind};

use outlive_base::{Code, Entity, Error};
use outlive_codec::Digest;
use outlive_network::channel::{Channel, Patience};

use crate::wire::{CHUNK_BYTES, Message};

/// Bytes of the next chunk of a stream of which `left` bytes are left.
pub fn next_length(left: u64) -> usize {
    left.min(CHUNK_BYTES as u64) as usize
}

/// Sends a message.
///
/// # Errors
/// Those of the channel.
pub fn say(channel: &mut Channel, message: &Message, patience: Patience<'_>) -> io::Result<()> {
    channel.send(&message.bytes(), patience)
}

/// Receives the next message that is more than a sign of life.
///
/// # Errors
/// Those of the channel; [`ErrorKind::InvalidData`] if it is none.
pub fn hear(channel: &mut Channel, patience: Patience<'_>) -> io::Result<Message> {
    loop {
        let bytes = channel.receive(patience)?;
        let broken = |error| io::Error::new(ErrorKind::InvalidData, format!("{error}"));
        match Message::parse(&bytes).map_err(broken)? {
            Message::Busy => {}
            message => return Ok(message),
        }
    }
}

/// The other end says something that no correct one says.
pub fn unexpected() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a message out of order")
}

/// A stream on its way out.
#[derive(Default)]
pub struct Outgoing {
    digest: Option<Digest>,
}

impl Outgoing {
    /// One whose end tells the digest, if `digested`.
    pub fn new(digested: bool) -> Outgoing {
        Outgoing {
            digest: digested.then(Digest::new),
        }
    }

    /// Sends the next chunk, of [`next_length`] bytes.
    ///
    /// # Errors
    /// Those of the channel.
    pub fn send(
        &mut self,
        channel: &mut Channel,
        bytes: &[u8],
        patience: Patience<'_>,
    ) -> io::Result<()> {
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
        let length = u32::try_from(bytes.len()).map_err(|_| unexpected())?;
        say(channel, &Message::Chunk(length), patience)?;
        channel.send_bytes(bytes, patience)
    }

    /// Ends it.
    ///
    /// # Errors
    /// Those of the channel.
    pub fn end(self, channel: &mut Channel, patience: Patience<'_>) -> io::Result<()> {
        let digest = self.digest.map(|digest| digest.finish());
        say(channel, &Message::End(digest), patience)
    }
}

/// A stream on its way in.
pub struct Incoming {
    left: u64,
    digest: Digest,
}

/// What came of a stream.
#[derive(Debug)]
pub enum Next {
    /// The next chunk: as many bytes as were asked for.
    Bytes,
    /// The stream is whole.
    End,
    /// The stream is worth nothing.
    Failed(Error),
}

impl Incoming {
    /// A stream of so many bytes.
    pub fn new(length: u64) -> Incoming {
        Incoming {
            left: length,
            digest: Digest::new(),
        }
    }

    /// Bytes of the next chunk; 0: the end is next.
    pub fn wants(&self) -> usize {
        next_length(self.left)
    }

    /// Receives the next chunk into `out`, of which as many bytes are used as are wanted; or the
    /// end.
    ///
    /// # Errors
    /// Those of the channel, and of messages out of order.
    pub fn next(
        &mut self,
        channel: &mut Channel,
        out: &mut [u8],
        patience: Patience<'_>,
    ) -> io::Result<Next> {
        let wants = self.wants();
        match hear(channel, patience)? {
            Message::Chunk(length) if length as usize == wants && wants > 0 => {
                let out = out.get_mut(..wants).ok_or_else(unexpected)?;
                channel.receive_bytes(out, patience)?;
                self.digest.update(out);
                self.left -= wants as u64;
                Ok(Next::Bytes)
            }
            Message::End(told) if wants == 0 => {
                if told.is_none_or(|told| told == self.digest.finish()) {
                    return Ok(Next::End);
                }
                Ok(Next::Failed(Error::new(
                    Code::Corrupt,
                    Entity::Call,
                    "the bytes that came are not those that were sent",
                    "do it again; if it repeats, look for a fault of the network or the memory",
                )))
            }
            Message::Failed(error) => Ok(Next::Failed(error)),
            _ => Err(unexpected()),
        }
    }
}
