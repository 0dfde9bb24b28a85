//! A server, its clients, and clients that die where they like.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::fs::File;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::Duration;

use outlive_memory::wire::{CHUNK_BYTES, Message, Part};
use outlive_memory::{Client, Options, Rights, Server, ServerOptions, Transport};
use outlive_network::JobKey;
use outlive_network::channel::{Channel, within};

/// Far above what anything takes: reached only by a hang.
pub const BOUND: Duration = Duration::from_secs(60);

pub fn key(of: u8) -> JobKey {
    JobKey::from_bytes([of; 32])
}

pub fn rights(job: &str, of: u8, quota: Option<u64>) -> Rights {
    Rights {
        job: job.into(),
        key: key(of).into(),
        quota,
    }
}

pub fn server(memory: u64, jobs: Vec<Rights>) -> Server {
    let mut options = ServerOptions::new(memory);
    options.jobs = jobs;
    Server::start(&options).unwrap()
}

pub fn options(transport: Transport) -> Options {
    Options {
        transport,
        silence: BOUND,
        connect: BOUND,
        bound: BOUND,
        ..Options::default()
    }
}

pub fn client(server: &Server, job: &str, of: u8, transport: Transport) -> Client {
    let address = server.address().to_string();
    Client::connect(&address, job, &key(of), options(transport)).unwrap()
}

/// A client that says what it likes.
pub struct Raw(pub Channel);

impl Raw {
    pub fn tcp(server: &Server, job: &str, of: u8) -> Raw {
        Raw(Channel::call(server.address(), job, &key(of), false, BOUND).unwrap())
    }

    pub fn unix(client: &Client, job: &str, of: u8) -> Raw {
        let name = UnixAddr::from_abstract_name(client.about().unwrap().unix).unwrap();
        let socket = UnixStream::connect_addr(&name).unwrap();
        Raw(Channel::call_unix(socket, job, &key(of), BOUND).unwrap())
    }

    pub fn say(&mut self, message: &Message) {
        self.0.send(&message.bytes(), &mut within(BOUND)).unwrap();
    }

    pub fn hear(&mut self) -> Message {
        loop {
            let bytes = self.0.receive(&mut within(BOUND)).unwrap();
            match Message::parse(&bytes).unwrap() {
                Message::Busy => {}
                message => return message,
            }
        }
    }

    /// Sends so many chunks of a stream.
    pub fn chunks(&mut self, bytes: &[u8], count: usize) {
        for chunk in bytes.chunks(CHUNK_BYTES).take(count) {
            self.say(&Message::Chunk(chunk.len() as u32));
            self.0.send_bytes(chunk, &mut within(BOUND)).unwrap();
        }
    }

    /// Borrows a part; the memory's file is new to this client.
    pub fn lend(&mut self, part: Part, writes: bool) -> File {
        self.say(&Message::Lend(part, 60_000, writes, 0));
        assert!(matches!(self.hear(), Message::Lent(_, true)));
        self.0
            .receive_descriptor(&mut within(BOUND))
            .unwrap()
            .into()
    }
}

pub fn part(name: &str, offset: u64, length: u64) -> Part {
    Part {
        name: name.into(),
        offset,
        length,
    }
}
