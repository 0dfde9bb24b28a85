//! A bulk connection of its own between two peers.
//!
//! Invariants: both ends were authenticated by the same handshake as control
//! messages; every call is bounded by a time (P5); nonces of an encrypted
//! stream are used once. The end of a stream is not authenticated: what travels
//! inside carries its own lengths and checksums.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::faults::Faults;
use crate::handshake::{Cipher, FIRST_NONCE};
use crate::identity::Identity;
use crate::options::Options;
use crate::wire::{RECORD_BYTES_MAX, TAG_BYTES};

/// A bulk stream. Reads and writes may run in different threads: use
/// [`Stream::try_clone`]. Dropping the last clone closes it.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    socket: TcpStream,
    peer: Identity,
    addr: SocketAddr,
    sealed: Option<Sealed>,
    faults: Permit,
    read_timeout: Duration,
    write_timeout: Duration,
}

struct Sealed {
    cipher: Cipher,
    opener: Mutex<Opener>,
    sealer: Mutex<Sealer>,
}

struct Opener {
    nonce: u64,
    /// An unfinished record with its length in front.
    record: Vec<u8>,
    plain: Vec<u8>,
    given: usize,
}

struct Sealer {
    nonce: u64,
    record: Vec<u8>,
    /// How much of `record` was sent.
    sent: usize,
}

/// Longest plain text of a stream's record, in bytes: smaller than the bound,
/// so that a slow reader sees progress.
const SEALED_CHUNK_BYTES: usize = 32 * 1024;

/// Counts a stream while it is open.
pub(crate) struct Permit(Arc<Faults>);

impl Permit {
    /// None if `streams_max` are open.
    pub(crate) fn take(faults: &Arc<Faults>, streams_max: usize) -> Option<Permit> {
        let claim = |open: usize| (open < streams_max).then_some(open + 1);
        faults
            .streams
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim)
            .ok()
            .map(|_| Permit(faults.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Stream {
    /// Wraps a blocking socket whose handshake is over.
    pub(crate) fn new(
        socket: TcpStream,
        peer: Identity,
        addr: SocketAddr,
        cipher: Option<Cipher>,
        permit: Permit,
        options: &Options,
    ) -> io::Result<Stream> {
        socket.set_read_timeout(Some(options.stream_read_timeout))?;
        socket.set_write_timeout(Some(options.stream_write_timeout))?;
        let sealed = cipher.map(|cipher| Sealed {
            cipher,
            opener: Mutex::new(Opener {
                nonce: FIRST_NONCE,
                record: Vec::new(),
                plain: Vec::new(),
                given: 0,
            }),
            sealer: Mutex::new(Sealer {
                nonce: FIRST_NONCE,
                record: Vec::new(),
                sent: 0,
            }),
        });
        Ok(Stream(Arc::new(Inner {
            socket,
            peer,
            addr,
            sealed,
            faults: permit,
            read_timeout: options.stream_read_timeout,
            write_timeout: options.stream_write_timeout,
        })))
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Identity {
        self.0.peer
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// Another handle of the same stream; only the handle is copied, and it
    /// never fails.
    ///
    /// # Errors
    /// None today; the signature is that of [`TcpStream::try_clone`].
    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(self.clone())
    }

    /// Ends one direction or both; blocked calls of other handles return.
    ///
    /// # Errors
    /// What the kernel says; a stream that ended already is no error.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self.0.socket.shutdown(how) {
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    /// True if the peer has neither ended the stream nor said anything on it: an idle
    /// stream can be used again.
    pub fn is_idle(&self) -> bool {
        use rustix::net::RecvFlags;
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = rustix::net::recv(&self.0.socket, &mut [0; 1][..], flags);
        matches!(peeked, Err(rustix::io::Errno::AGAIN))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.0.socket
    }

    fn faults(&self) -> &Faults {
        &self.0.faults.0
    }

    fn read_raw(&self, out: &mut [u8]) -> io::Result<usize> {
        let bound = self.0.read_timeout;
        if !self.faults().wait_healed(bound) {
            return Err(timed_out("stream_read_timeout"));
        }
        let count = out.len().min(self.faults().slice(out.len()));
        let read = (&self.0.socket)
            .read(&mut out[..count])
            .map_err(|error| bounded(error, "stream_read_timeout"))?;
        // Bytes that came in during a partition arrive when it is over.
        if !self.faults().wait_healed(bound) {
            let _ = self.shutdown(Shutdown::Both);
            return Err(timed_out("stream_read_timeout"));
        }
        self.faults().pace(read);
        Ok(read)
    }

    fn write_raw(&self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.faults().wait_healed(self.0.write_timeout) {
            return Err(timed_out("stream_write_timeout"));
        }
        let first = bytes.iter().find(|slice| !slice.is_empty());
        let total: usize = bytes.iter().map(|slice| slice.len()).sum();
        let mut socket = &self.0.socket;
        let written = match first {
            None => Ok(0),
            Some(first) if self.faults().slice(total) < total => {
                socket.write(&first[..self.faults().slice(first.len())])
            }
            Some(_) => socket.write_vectored(bytes),
        };
        let written = written.map_err(|error| bounded(error, "stream_write_timeout"))?;
        self.faults().pace(written);
        Ok(written)
    }

    fn read_sealed(&self, sealed: &Sealed, out: &mut [u8]) -> io::Result<usize> {
        let mut guard = sealed.opener.lock().unwrap_or_else(PoisonError::into_inner);
        let opener = &mut *guard;
        while opener.given == opener.plain.len() {
            if !self.fill_record(opener)? {
                return Ok(0);
            }
            opener.plain.clear();
            opener.given = 0;
            let opened = sealed
                .cipher
                .open(opener.nonce, &opener.record[2..], &mut opener.plain);
            opener.record.clear();
            opener.nonce += 1;
            if opened.is_err() {
                opener.plain.clear();
                let _ = self.shutdown(Shutdown::Both);
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "a record was damaged",
                ));
            }
        }
        let rest = &opener.plain[opener.given..];
        let count = rest.len().min(out.len());
        out[..count].copy_from_slice(&rest[..count]);
        opener.given += count;
        Ok(count)
    }

    /// Completes the record; false at the end of the stream. What was read stays
    /// when a read times out.
    fn fill_record(&self, opener: &mut Opener) -> io::Result<bool> {
        let mut chunk = [0; 16 * 1024];
        let deadline = Instant::now() + self.0.read_timeout;
        loop {
            let wanted = match opener.record[..] {
                [low, high, ..] => 2 + usize::from(u16::from_le_bytes([low, high])),
                _ => 2,
            };
            if wanted > 2 && opener.record.len() == wanted {
                return Ok(true);
            }
            if opener.record.len() >= 2 && wanted < 2 + TAG_BYTES {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "a record is too short",
                ));
            }
            let missing = (wanted - opener.record.len()).min(chunk.len());
            match self.read_raw(&mut chunk[..missing])? {
                0 if opener.record.is_empty() => return Ok(false),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => opener.record.extend_from_slice(&chunk[..count]),
            }
            debug_assert!(opener.record.len() <= 2 + RECORD_BYTES_MAX);
            if Instant::now() >= deadline {
                return Err(timed_out("stream_read_timeout"));
            }
        }
    }

    /// A record is in flight until it is sent whole, and only then does the
    /// next call take bytes: a timeout in the middle loses nothing.
    fn write_sealed(&self, sealed: &Sealed, bytes: &[u8]) -> io::Result<usize> {
        let mut guard = sealed.sealer.lock().unwrap_or_else(PoisonError::into_inner);
        self.drain(&mut guard)?;
        let count = bytes.len().min(SEALED_CHUNK_BYTES);
        let sealer = &mut *guard;
        sealed
            .cipher
            .seal(sealer.nonce, &bytes[..count], &mut sealer.record)
            .map_err(|_| io::Error::other("a record cannot be encrypted"))?;
        sealer.nonce += 1;
        match self.drain(sealer) {
            // The record holds the bytes: they count as written.
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(count),
            Err(error) => Err(error),
            Ok(()) => Ok(count),
        }
    }

    fn drain(&self, sealer: &mut Sealer) -> io::Result<()> {
        let deadline = Instant::now() + self.0.write_timeout;
        while sealer.sent < sealer.record.len() {
            match self.write_raw(&[IoSlice::new(&sealer.record[sealer.sent..])])? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => sealer.sent += count,
            }
            if sealer.sent < sealer.record.len() && Instant::now() >= deadline {
                return Err(timed_out("stream_write_timeout"));
            }
        }
        sealer.record.clear();
        sealer.sent = 0;
        Ok(())
    }
}

fn timed_out(bound: &str) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("no progress within {bound}"))
}

/// The kernel reports a socket's time-out as "would block".
fn bounded(error: io::Error, bound: &str) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock {
        timed_out(bound)
    } else {
        error
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &self.0.sealed {
            _ if out.is_empty() => Ok(0),
            None => self.read_raw(out),
            Some(sealed) => self.read_sealed(sealed, out),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.0.sealed {
            None => self.write_raw(bytes),
            Some(sealed) => match bytes.iter().find(|slice| !slice.is_empty()) {
                None => Ok(0),
                Some(first) => self.write_sealed(sealed, first),
            },
        }
    }

    /// Sends what an encrypted stream still holds after a time-out.
    fn flush(&mut self) -> io::Result<()> {
        match &self.0.sealed {
            None => Ok(()),
            Some(sealed) => {
                self.drain(&mut sealed.sealer.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }
}

impl core::fmt::Debug for Stream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stream")
            .field("peer", &self.0.peer)
            .field("addr", &self.0.addr)
            .finish()
    }
}
