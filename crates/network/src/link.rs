//! An open control connection.
//!
//! Invariants: bounded memory (one unfinished record, one unfinished message,
//! at most one message plus [`OUT_BYTES_LOW`] of sealed output); records are
//! opened and sealed in order, each nonce once; a byte that no correct peer
//! sends ends the connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use crate::event::DownReason;
use crate::handshake::{Cipher, Established, FIRST_NONCE, Failure};
use crate::identity::Identity;
use crate::socket::down_reason;
use crate::wire::{Assembler, TAG_BYTES, frame};

/// Messages are sealed while less than this waits for the kernel.
pub(crate) const OUT_BYTES_LOW: usize = 256 * 1024;
/// One connection reads at most this often in a row before others have a turn.
const READS_IN_A_ROW: usize = 4;

pub(crate) struct Link {
    pub(crate) socket: TcpStream,
    pub(crate) identity: Identity,
    pub(crate) addr: SocketAddr,
    pub(crate) id: u64,
    /// True if this end called.
    pub(crate) called: bool,
    pub(crate) since: Instant,
    /// The end of the connection, seen while isolated and told later.
    pub(crate) ended: Option<DownReason>,
    /// Since when the kernel took nothing of the output.
    pub(crate) stalled: Option<Instant>,
    /// Whether the loop waits for room in the kernel, as epoll was last told.
    pub(crate) watched: Option<bool>,
    cipher: Cipher,
    seal_nonce: u64,
    open_nonce: u64,
    input: Vec<u8>,
    plain: Vec<u8>,
    assembler: Assembler,
    frames: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
}

impl Link {
    pub(crate) fn new(
        socket: TcpStream,
        addr: SocketAddr,
        called: bool,
        done: Established,
        message_bytes_max: usize,
    ) -> Link {
        Link {
            socket,
            identity: done.identity(),
            addr,
            id: done.id,
            called,
            since: Instant::now(),
            ended: None,
            stalled: None,
            watched: None,
            cipher: done.cipher,
            seal_nonce: FIRST_NONCE,
            open_nonce: FIRST_NONCE,
            input: Vec::new(),
            plain: Vec::new(),
            assembler: Assembler::new(message_bytes_max),
            frames: Vec::new(),
            output: Vec::new(),
            sent: 0,
        }
    }

    /// Reads what is there, up to a fair share, and gives every whole message.
    pub(crate) fn read(
        &mut self,
        scratch: &mut [u8],
        sink: &mut dyn FnMut(Vec<u8>),
    ) -> Result<(), DownReason> {
        for _ in 0..READS_IN_A_ROW {
            match self.socket.read(scratch) {
                Ok(0) => return Err(DownReason::Closed),
                Ok(count) => {
                    self.input.extend_from_slice(&scratch[..count]);
                    self.open_records(sink).map_err(|failure| {
                        tracing::warn!(peer = %self.identity.peer, ?failure, "protocol broken");
                        DownReason::Protocol
                    })?;
                    if count < scratch.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(down_reason(&error)),
            }
        }
        Ok(())
    }

    fn open_records(&mut self, sink: &mut dyn FnMut(Vec<u8>)) -> Result<(), Failure> {
        let mut at = 0;
        while let [low, high, rest @ ..] = &self.input[at..] {
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            if length < TAG_BYTES {
                return Err(Failure::Protocol);
            }
            let Some(record) = rest.get(..length) else {
                break;
            };
            self.plain.clear();
            self.cipher.open(self.open_nonce, record, &mut self.plain)?;
            self.open_nonce += 1;
            self.assembler
                .feed(&self.plain, sink)
                .map_err(|_| Failure::Protocol)?;
            at += 2 + length;
        }
        self.input.drain(..at);
        Ok(())
    }

    /// True if it may take another message.
    pub(crate) fn hungry(&self) -> bool {
        self.output.len() - self.sent < OUT_BYTES_LOW
    }

    /// True if nothing waits for the kernel.
    pub(crate) fn drained(&self) -> bool {
        self.output.is_empty()
    }

    /// Seals messages into as few records as they fit.
    pub(crate) fn push(&mut self, messages: &[Vec<u8>]) -> Result<(), DownReason> {
        self.frames.clear();
        messages
            .iter()
            .for_each(|message| frame(message, &mut self.frames));
        for chunk in self.frames.chunks(Cipher::PLAIN_BYTES_MAX) {
            let sealed = self.cipher.seal(self.seal_nonce, chunk, &mut self.output);
            self.seal_nonce += 1;
            sealed.map_err(|_| DownReason::Protocol)?;
        }
        Ok(())
    }

    /// Gives the kernel what it takes.
    pub(crate) fn write(&mut self) -> Result<(), DownReason> {
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(0) => return Err(DownReason::Reset),
                Ok(count) => {
                    self.sent += count;
                    self.stalled = None;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stalled.get_or_insert_with(Instant::now);
                    if self.sent >= OUT_BYTES_LOW {
                        self.output.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(down_reason(&error)),
            }
        }
        self.output.clear();
        self.sent = 0;
        self.stalled = None;
        if self.output.capacity() > 2 * OUT_BYTES_LOW {
            self.output = Vec::new();
            self.frames = Vec::new();
        }
        Ok(())
    }
}
