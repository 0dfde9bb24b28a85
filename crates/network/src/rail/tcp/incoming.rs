//! A connection that another process opened: its proof, then frames.

use std::io::{self, ErrorKind, Read as _, Write};
use std::net::TcpStream;

use super::proof::{self, ANSWER_BYTES, CHALLENGE_BYTES, KEY_BYTES};
use crate::rail::frame::{Frame, HEADER_BYTES, Header};

pub(super) enum Read {
    /// Nothing whole yet.
    Later,
    /// A frame from a process.
    Frame(u32, Frame),
    /// The connection is over, or was never worth it.
    Ended,
}

pub(super) struct Incoming {
    socket: TcpStream,
    challenge: [u8; CHALLENGE_BYTES],
    /// Who it is, once proved.
    pub(super) from: Option<u32>,
    head: [u8; HEADER_BYTES],
    filled: usize,
    body: Option<(Header, Vec<u8>)>,
}

impl Incoming {
    /// Sends the challenge; a fresh socket has room for it.
    pub(super) fn greet(socket: TcpStream) -> io::Result<Incoming> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let challenge = proof::challenge().ok_or(ErrorKind::Other)?;
        (&socket).write_all(&challenge)?;
        Ok(Incoming {
            socket,
            challenge,
            from: None,
            head: [0; HEADER_BYTES],
            filled: 0,
            body: None,
        })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The next frame, as far as bytes are here.
    pub(super) fn read(&mut self, key: &[u8; KEY_BYTES], size: u32) -> Read {
        match self.advance(key, size) {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Read::Later,
            Err(_) => Read::Ended,
        }
    }

    fn advance(&mut self, key: &[u8; KEY_BYTES], size: u32) -> io::Result<Read> {
        if self.from.is_none() {
            self.fill(ANSWER_BYTES)?;
            let mut given = [0; ANSWER_BYTES];
            given.copy_from_slice(&self.head[..ANSWER_BYTES]);
            let from = proof::verify(key, &self.challenge, &given).filter(|rank| *rank < size);
            self.from = Some(from.ok_or(ErrorKind::PermissionDenied)?);
            self.filled = 0;
        }
        let from = self.from.ok_or(ErrorKind::PermissionDenied)?;
        if self.body.is_none() {
            self.fill(HEADER_BYTES)?;
            self.filled = 0;
            let header = Header::parse(&self.head).map_err(|_| ErrorKind::InvalidData)?;
            self.body = Some((header, Vec::new()));
        }
        if let Some((header, bytes)) = &mut self.body {
            let left = header.tail_bytes() - bytes.len() as u64;
            if left > 0 {
                // Grows with what arrives: an announced length alone reserves nothing.
                let read = (&self.socket).take(left).read_to_end(bytes)?;
                if (read as u64) < left {
                    return Ok(Read::Ended);
                }
            }
        }
        match self.body.take() {
            Some((header, bytes)) => Ok(Read::Frame(from, header.with(bytes))),
            None => Ok(Read::Later),
        }
    }

    fn fill(&mut self, upto: usize) -> io::Result<()> {
        while self.filled < upto {
            match (&self.socket).read(&mut self.head[self.filled..upto]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
