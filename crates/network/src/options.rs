//! What may be set.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Ports};

/// Every bound of an endpoint. `Options::default()` suits a job; tests shorten
/// the times.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen. Port 0 takes a free one. Default 127.0.0.1:0: the
    /// caller chooses the interface, never this crate.
    pub bind: SocketAddr,
    /// Of which one is taken where the port of `bind` is 0. Default: any.
    pub ports: Ports,
    /// Bound of a TCP connection attempt. Default 3 s.
    pub connect_timeout: Duration,
    /// Bound of a whole handshake, on both sides. Default 3 s.
    pub handshake_timeout: Duration,
    /// A peer that takes no byte for this long is down; also TCP_USER_TIMEOUT.
    /// Default 10 s.
    pub write_timeout: Duration,
    /// Bound of every single read of a stream. Default 30 s.
    pub stream_read_timeout: Duration,
    /// Bound of every single write of a stream. Default 30 s.
    pub stream_write_timeout: Duration,
    /// First delay before connecting again; doubles. Default 20 ms.
    pub backoff_min: Duration,
    /// Largest delay before connecting again. Default 1 s.
    pub backoff_max: Duration,
    /// [`crate::Endpoint::shutdown`] tries to hand queued messages to the
    /// kernel for this long. Default 200 ms.
    pub linger: Duration,
    /// Longest control message, in bytes. Default 1 MiB.
    pub message_bytes_max: usize,
    /// Messages queued to one peer. Default 1024.
    pub queue_messages_max: usize,
    /// Bytes queued to one peer. Default 16 MiB.
    pub queue_bytes_max: usize,
    /// Unfinished handshakes of unknown callers at once. When one more calls,
    /// the oldest that has not shown the key is dropped. Default 64.
    pub handshakes_max: usize,
    /// Bulk streams open at once, both directions together. Default 256.
    pub streams_max: usize,
    /// [`crate::Event::Refused`] told in one second; the rest is only traced.
    /// Default 32.
    pub refusals_per_second: u32,
    /// Encrypt bulk streams too. Both ends must agree. Default false: the frames
    /// inside carry checksums, and bulk data is the job's own business.
    pub encrypt_streams: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            ports: Ports::ANY,
            connect_timeout: Duration::from_secs(3),
            handshake_timeout: Duration::from_secs(3),
            write_timeout: Duration::from_secs(10),
            stream_read_timeout: Duration::from_secs(30),
            stream_write_timeout: Duration::from_secs(30),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(1),
            linger: Duration::from_millis(200),
            message_bytes_max: 1 << 20,
            queue_messages_max: 1024,
            queue_bytes_max: 16 << 20,
            handshakes_max: 64,
            streams_max: 256,
            refusals_per_second: 32,
            encrypt_streams: false,
        }
    }
}

impl Options {
    /// Refuses bounds that would stop everything or wait for ever.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let times = [
            ("connect_timeout", self.connect_timeout),
            ("handshake_timeout", self.handshake_timeout),
            ("write_timeout", self.write_timeout),
            ("stream_read_timeout", self.stream_read_timeout),
            ("stream_write_timeout", self.stream_write_timeout),
            ("backoff_min", self.backoff_min),
            ("backoff_max", self.backoff_max),
        ];
        let counts = [
            ("message_bytes_max", self.message_bytes_max),
            ("queue_messages_max", self.queue_messages_max),
            ("queue_bytes_max", self.queue_bytes_max),
            ("handshakes_max", self.handshakes_max),
            ("streams_max", self.streams_max),
        ];
        let day = Duration::from_secs(86_400);
        let bad_time = times
            .iter()
            .find(|(_, t)| *t < Duration::from_millis(1) || *t > day);
        let bad_count = counts.iter().find(|(_, n)| *n == 0 || *n > 1 << 30);
        let bad = bad_time
            .map(|(name, _)| *name)
            .or(bad_count.map(|(name, _)| *name));
        match bad {
            None => Ok(()),
            Some(name) => Err(Error::new(
                Code::InvalidArgument,
                Entity::Option(name.into()),
                "out of range",
                "times lie between 1 ms and 1 day, counts between 1 and 2^30",
            )),
        }
    }
}
