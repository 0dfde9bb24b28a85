//! The client of one server.
//!
//! Invariants: every call ends within its bound; silence for longer than [`Options::silence`] is
//! the server's loss, said as [`Code::ServerLost`], and so is every call after that.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result};
use outlive_network::JobKey;
use outlive_network::channel::{Channel, JOB_BYTES_MAX, within};

use crate::fault::{invalid, of_region};
use crate::stream::{Incoming, Next, Outgoing, hear, next_length, say, unexpected};
use crate::wire::{
    About, INLINE_BYTES_MAX, Message, Part, RegionKind, SOURCES_MAX, Source, Stat, check_name,
};

/// How bytes reach the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// Direct access where client and server are on one machine, else TCP.
    #[default]
    Auto,
    /// Direct access to the regions' memory, or no connection.
    Shared,
    /// TCP.
    Tcp,
}

/// How to connect. `Options::default()` suits a job.
#[derive(Clone, Debug)]
pub struct Options {
    /// How bytes reach the server.
    pub transport: Transport,
    /// Bound of connecting. Default 3 s.
    pub connect: Duration,
    /// A server that is silent for this long is lost. It says once a second that it is still
    /// busy. Default 10 s.
    pub silence: Duration,
    /// How long to wait for others who read or write the same part. Default 30 s.
    pub bound: Duration,
    /// Compare a digest (XXH3-128) of what was sent with what came, over TCP. Default true.
    pub digests: bool,
    /// Encrypt bytes on TCP, too; requests always are. Default false.
    pub encrypt: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            transport: Transport::Auto,
            connect: Duration::from_secs(3),
            silence: Duration::from_secs(10),
            bound: Duration::from_secs(30),
            digests: true,
            encrypt: false,
        }
    }
}

/// A connection to a server. Its calls may come from any thread; one at a time is served.
#[derive(Debug)]
pub struct Client {
    address: String,
    direct: bool,
    options: Options,
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    /// None once the server was lost.
    channel: Option<Channel>,
    /// The memory that was accessed last, and its number.
    memory: Option<(u64, Arc<File>)>,
}

/// How a call failed: told by the server, or with the connection.
enum Failure {
    Told(Error),
    Lost(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Lost(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Told(error)
    }
}

type Outcome<T> = core::result::Result<T, Failure>;

impl Client {
    /// Connects to the server at `address` (`host:port`) as a client of `job`.
    ///
    /// # Errors
    /// [`Code::ServerLost`] if nobody answers there, [`Code::KeyMismatch`] if the server does not
    /// serve this job or its key is another, [`Code::PeerVersion`], [`Code::InvalidArgument`],
    /// [`Code::Network`] if direct access is demanded and not to be had.
    pub fn connect(address: &str, job: &str, key: &JobKey, options: Options) -> Result<Client> {
        if !(1..=JOB_BYTES_MAX).contains(&job.len()) {
            let entity = Entity::Job(job.to_owned());
            let remedy = "use 1 to 255 bytes";
            return Err(Error::new(
                Code::InvalidArgument,
                entity,
                "no name of a job",
                remedy,
            ));
        }
        let mut client = Client {
            address: address.to_owned(),
            direct: false,
            options,
            line: Mutex::new(Line {
                channel: None,
                memory: None,
            }),
        };
        let mut last = None;
        for addr in resolve(address)? {
            let options = &client.options;
            match Channel::call(addr, job, key, options.encrypt, options.connect) {
                Ok(channel) => {
                    client.line().channel = Some(channel);
                    let about = client.about()?;
                    client.choose(&about, job, key)?;
                    return Ok(client);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(match last {
            Some(error) if error.code() == Code::KeyMismatch => Error::new(
                Code::KeyMismatch,
                Entity::Address(client.address),
                format!("the server does not serve job {job}, or under another key"),
                "give the job's name and key file as the server was given them (--job NAME=FILE)",
            ),
            Some(error) if !matches!(error.code(), Code::AgentUnreachable | Code::AgentTimeout) => {
                error
            }
            Some(error) => client.lost(error.reason()),
            None => client.lost("the name has no address"),
        })
    }

    /// Goes over to direct access if that is wanted and possible.
    fn choose(&mut self, about: &About, job: &str, key: &JobKey) -> Result<()> {
        // Who wants bytes encrypted on the network may have them directly all the same: there
        // is no network then.
        if self.options.transport == Transport::Tcp {
            return Ok(());
        }
        let reached = self.reach(about, job, key);
        match (reached, self.options.transport) {
            (Ok(channel), _) => {
                self.line().channel = Some(channel);
                self.direct = true;
                Ok(())
            }
            (Err(_), Transport::Auto) => Ok(()),
            (Err(reason), _) => {
                // It may have been lost meanwhile, which is another thing.
                self.about()?;
                Err(Error::new(
                    Code::Network,
                    Entity::Address(self.address.clone()),
                    format!("no direct access: {reason}"),
                    "run client and server on one machine, or choose the transport auto or tcp",
                ))
            }
        }
    }

    fn reach(
        &self,
        about: &About,
        job: &str,
        key: &JobKey,
    ) -> core::result::Result<Channel, String> {
        if about.unix.is_empty() {
            return Err("the server does not offer it".into());
        }
        let far =
            |_| "the server is on another machine, or in another network name space".to_owned();
        let name = std::os::unix::net::SocketAddr::from_abstract_name(&about.unix).map_err(far)?;
        let socket = UnixStream::connect_addr(&name).map_err(far)?;
        // It shows the same key, and its name was told by the server under that key.
        let mut channel = Channel::call_unix(socket, job, key, self.options.connect)
            .map_err(|error| error.reason().to_owned())?;
        let silence = &mut within(self.options.silence);
        let asked = say(&mut channel, &Message::Hello, silence);
        match asked.and_then(|()| hear(&mut channel, silence)) {
            Ok(Message::About(it)) if it.instance == about.instance => Ok(channel),
            Ok(_) => Err("another server answers".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether bytes are accessed directly, and not over TCP.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // A call that panicked left the line in the middle of something: it is judged by what
        // comes next on it, which is out of order.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self, reason: &str) -> Error {
        Error::new(
            Code::ServerLost,
            Entity::Address(self.address.clone()),
            reason,
            "look whether the server lives (its address, its log) and connect anew",
        )
    }

    /// Runs one exchange. After the loss of the connection there is none.
    fn call<T>(&self, run: impl FnOnce(&mut Line, &mut Channel) -> Outcome<T>) -> Result<T> {
        let mut line = self.line();
        let Some(mut channel) = line.channel.take() else {
            return Err(self.lost("the connection was lost before"));
        };
        match run(&mut line, &mut channel) {
            Ok(value) => {
                line.channel = Some(channel);
                Ok(value)
            }
            // The server's last word.
            Err(Failure::Told(error)) if error.code() == Code::ServerLost => {
                Err(self.lost(error.reason()))
            }
            Err(Failure::Told(error)) => {
                line.channel = Some(channel);
                Err(error)
            }
            Err(Failure::Lost(error)) => {
                // It may have said why before it closed.
                let farewell = hear(&mut channel, &mut within(Duration::ZERO));
                Err(match farewell {
                    Ok(Message::Failed(last)) if last.code() == Code::ServerLost => {
                        self.lost(last.reason())
                    }
                    _ => self.lost(&error.to_string()),
                })
            }
        }
    }

    /// Sends a request and gives its answer.
    fn ask(&self, channel: &mut Channel, request: &Message) -> Outcome<Message> {
        let silence = &mut within(self.options.silence);
        say(channel, request, silence)?;
        match hear(channel, silence)? {
            Message::Failed(error) => Err(error.into()),
            answer => Ok(answer),
        }
    }

    fn ask_done(&self, request: &Message) -> Result<u64> {
        self.call(|_, channel| done(self.ask(channel, request)?))
    }

    /// What the server has, and what of it the job.
    ///
    /// # Errors
    /// [`Code::ServerLost`]. So may all calls.
    pub fn about(&self) -> Result<About> {
        self.call(|_, channel| match self.ask(channel, &Message::Hello)? {
            Message::About(about) => Ok(about),
            _ => Err(unexpected().into()),
        })
    }

    /// Makes a region of `bytes`, full of zeroes; false if it is there already with that size.
    ///
    /// # Errors
    /// [`Code::NoSpace`] beyond the job's quota or the server's memory;
    /// [`Code::InvalidArgument`] if it is there and is another one.
    pub fn allocate(&self, name: &str, bytes: u64, kind: RegionKind) -> Result<bool> {
        let request = Message::Allocate(named(name)?, bytes, kind);
        Ok(self.ask_done(&request)? == 1)
    }

    /// Removes a region, whoever uses it.
    ///
    /// # Errors
    /// [`Code::NotFound`].
    pub fn delete(&self, name: &str) -> Result<()> {
        self.ask_done(&Message::Delete(named(name)?)).map(drop)
    }

    /// What is known of a region.
    ///
    /// # Errors
    /// [`Code::NotFound`].
    pub fn stat(&self, name: &str) -> Result<Stat> {
        let request = Message::Stat(named(name)?);
        self.call(|_, channel| match self.ask(channel, &request)? {
            Message::Region(stat) => Ok(stat),
            _ => Err(unexpected().into()),
        })
    }

    /// All regions of the job, in the order of their names. Of what is incomplete in each the
    /// first range alone is told.
    ///
    /// # Errors
    /// [`Code::ServerLost`].
    pub fn list(&self) -> Result<Vec<Stat>> {
        let mut all: Vec<Stat> = Vec::new();
        loop {
            let after = all
                .last()
                .map_or_else(String::new, |stat| stat.name.clone());
            let request = Message::List(after);
            let more = self.call(|_, channel| match self.ask(channel, &request)? {
                Message::Listing(more) => Ok(more),
                _ => Err(unexpected().into()),
            })?;
            if more.is_empty() {
                return Ok(all);
            }
            all.extend(more);
        }
    }

    fn bound(&self) -> u32 {
        to_ms(self.options.bound)
    }

    /// Writes `bytes` at `offset`. Nobody reads a part of them: who reads there waits until all
    /// are there, and if this process is lost in between, the part counts as incomplete.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] beyond the region's end, [`Code::NotFound`], [`Code::TimedOut`]
    /// if others read or write there for too long, [`Code::Corrupt`] and [`Code::Incomplete`] if
    /// it must be done again.
    pub fn put(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let part = part(name, offset, bytes.len() as u64)?;
        if bytes.len() <= INLINE_BYTES_MAX {
            let request = Message::Put(part, self.bound(), Some(bytes.to_vec()));
            return self.ask_done(&request).map(drop);
        }
        if self.direct {
            return self.directly(&part, true, |file| file.write_all_at(bytes, offset));
        }
        let request = Message::Put(part, self.bound(), None);
        self.call(|_, channel| self.stream(channel, &request, bytes))
    }

    /// Sends the bytes of a put or push when the server is ready for them.
    fn stream(&self, channel: &mut Channel, request: &Message, bytes: &[u8]) -> Outcome<()> {
        match self.ask(channel, request)? {
            Message::Go => {}
            _ => return Err(unexpected().into()),
        }
        let silence = &mut within(self.options.silence);
        let mut stream = Outgoing::new(self.options.digests);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(next_length(rest.len() as u64));
            stream.send(channel, chunk, silence)?;
            rest = after;
        }
        stream.end(channel, silence)?;
        match hear(channel, silence)? {
            Message::Failed(error) => Err(error.into()),
            answer => done(answer).map(drop),
        }
    }

    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// As [`Client::put`], and [`Code::Incomplete`] if a writer was lost there: `out` is worth
    /// nothing after an error.
    pub fn get(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        let part = part(name, offset, out.len() as u64)?;
        if self.direct && out.len() > INLINE_BYTES_MAX {
            return self.directly(&part, false, |file| file.read_exact_at(out, offset));
        }
        let length = part.length;
        let request = Message::Get(part, self.bound(), self.options.digests);
        self.call(|_, channel| {
            say(channel, &request, &mut within(self.options.silence))?;
            self.fill(channel, length, out)
        })
    }

    fn fill(&self, channel: &mut Channel, length: u64, out: &mut [u8]) -> Outcome<()> {
        let silence = &mut within(self.options.silence);
        let (mut stream, mut at) = (Incoming::new(length), 0);
        loop {
            let wants = stream.wants();
            match stream.next(channel, &mut out[at..at + wants], silence)? {
                Next::Bytes => at += wants,
                Next::End => return Ok(()),
                Next::Failed(error) => return Err(error.into()),
            }
        }
    }

    /// Borrows a part and accesses its memory: one copy, by this thread.
    fn directly(
        &self,
        part: &Part,
        writes: bool,
        access: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<()> {
        self.call(|line, channel| {
            let silence = &mut within(self.options.silence);
            let known = line.memory.as_ref().map_or(0, |(number, _)| *number);
            let request = Message::Lend(part.clone(), self.bound(), writes, known);
            let Message::Lent(number, follows) = self.ask(channel, &request)? else {
                return Err(unexpected().into());
            };
            if follows {
                let file = channel.receive_descriptor(silence)?;
                line.memory = Some((number, Arc::new(file.into())));
            }
            let file = match &line.memory {
                Some((has, file)) if *has == number => file.clone(),
                _ => return Err(unexpected().into()),
            };
            let accessed = access(&file);
            // The answer tells whether the part was ours to the end.
            done(self.ask(channel, &Message::Return(accessed.is_ok()))?)?;
            accessed.map_err(|error| {
                let remedy = "see whether it is still there, and do it again";
                let reason = format!("its memory was taken back meanwhile: {error}");
                of_region(Code::Incomplete, &part.name, reason, remedy).into()
            })
        })
    }

    /// Has the server add up the sources (XOR) into a part of a region: parity that no node
    /// computes, or from the parity and what is left the source that was lost. Shorter sources
    /// count as if zeroes followed. With one source it is a copy.
    ///
    /// # Errors
    /// As [`Client::put`], and [`Code::Network`] if a source is lost or silent: then the part is
    /// incomplete.
    pub fn sum(&self, name: &str, offset: u64, length: u64, sources: &[Source]) -> Result<()> {
        let part = part(name, offset, length)?;
        if sources.is_empty() || sources.len() > SOURCES_MAX {
            return Err(invalid(
                name,
                format!("1 to {SOURCES_MAX} sources can be added"),
            ));
        }
        let request = Message::Sum(part, self.bound(), sources.to_vec());
        self.ask_done(&request).map(drop)
    }

    /// The digest (XXH3-128) of a part, which the server reads for it.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn digest(&self, name: &str, offset: u64, length: u64) -> Result<u128> {
        let request = Message::Digest(part(name, offset, length)?, self.bound());
        self.call(|_, channel| match self.ask(channel, &request)? {
            Message::End(Some(digest)) => Ok(digest),
            _ => Err(unexpected().into()),
        })
    }

    /// Waits until the region has had more puts, sums or pushes than `after`, and gives their
    /// number: a notification that cannot be missed. [`Stat::puts`] tells the number now.
    ///
    /// # Errors
    /// [`Code::TimedOut`] after `bound`, [`Code::NotFound`] also if the region is deleted.
    pub fn wait(&self, name: &str, after: u64, bound: Duration) -> Result<u64> {
        self.ask_done(&Message::Wait(named(name)?, after, to_ms(bound)))
    }

    /// Adds a message to a ring, waiting up to `bound` for room.
    ///
    /// # Errors
    /// [`Code::TimedOut`]; [`Code::InvalidArgument`] if the ring can never hold it.
    pub fn push(&self, name: &str, bytes: &[u8], bound: Duration) -> Result<()> {
        let (name, length) = (named(name)?, bytes.len() as u64);
        let bound = to_ms(bound);
        if bytes.len() <= INLINE_BYTES_MAX {
            let request = Message::Push(name, length, bound, Some(bytes.to_vec()));
            return self.ask_done(&request).map(drop);
        }
        let request = Message::Push(name, length, bound, None);
        self.call(|_, channel| self.stream(channel, &request, bytes))
    }

    /// Takes the oldest message of a ring, waiting up to `bound` for one. A message whose taker
    /// is lost on the way stays.
    ///
    /// # Errors
    /// [`Code::TimedOut`].
    pub fn pop(&self, name: &str, bound: Duration) -> Result<Vec<u8>> {
        let request = Message::Pop(named(name)?, to_ms(bound));
        self.call(|_, channel| {
            let Message::Length(length) = self.ask(channel, &request)? else {
                return Err(unexpected().into());
            };
            let length_here = usize::try_from(length).map_err(|_| unexpected())?;
            let mut out = Vec::new();
            // The server is trusted with the message, and not with this process.
            out.try_reserve_exact(length_here)
                .map_err(|_| unexpected())?;
            out.resize(length_here, 0);
            self.fill(channel, length, &mut out)?;
            done(self.ask(channel, &Message::Taken)?)?;
            Ok(out)
        })
    }
}

fn done(answer: Message) -> Outcome<u64> {
    match answer {
        Message::Done(value) => Ok(value),
        Message::Failed(error) => Err(error.into()),
        _ => Err(unexpected().into()),
    }
}

fn named(name: &str) -> Result<String> {
    match check_name(name) {
        true => Ok(name.to_owned()),
        false => Err(invalid(
            name,
            "a name has 1 to 255 bytes and no control characters",
        )),
    }
}

fn part(name: &str, offset: u64, length: u64) -> Result<Part> {
    Ok(Part {
        name: named(name)?,
        offset,
        length,
    })
}

fn to_ms(bound: Duration) -> u32 {
    u32::try_from(bound.as_millis()).unwrap_or(u32::MAX)
}

/// The addresses of `host:port`.
///
/// # Errors
/// [`Code::InvalidArgument`] if it is none, or its name is not known.
pub fn resolve(address: &str) -> Result<Vec<SocketAddr>> {
    let found = address.to_socket_addrs().map_err(|error| {
        Error::new(
            Code::InvalidArgument,
            Entity::Address(address.to_owned()),
            format!("no address: {error}"),
            "write HOST:PORT, as the server says it when it starts",
        )
    })?;
    Ok(found.collect())
}
