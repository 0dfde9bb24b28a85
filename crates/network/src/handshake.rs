//! The handshake as a pure state machine over bytes: both the event loop and
//! blocking callers drive it.
//!
//! Invariants: it asks for exactly the bytes of its next step, so nothing is
//! ever read beyond the handshake; what it holds is bounded; the listener's
//! side tells nothing of a caller before a transport message has proven that
//! the caller is alive (a recorded first message can be replayed); where each
//! caller has a key of its own, nobody speaks as the peer of another key.

use std::sync::Arc;

use outlive_base::{Code, Entity, Error, NodeId};
use snow::{Builder, HandshakeState, StatelessTransportState};

use crate::identity::Identity;
use crate::key::JobKey;
use crate::wire::{
    self, CLAIM_BYTES_MAX, CONFIRM_BYTES_MAX, Confirm, HANDSHAKE_BYTES_MAX, HEAD_BYTES, Head,
    HeadError, Hello, PROTOCOL_VERSION, Purpose, RECORD_BYTES_MAX, Status, TAG_BYTES, Verdict,
};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// What both ends must share.
#[derive(Clone)]
pub(crate) struct Secret {
    pub(crate) key: Arc<JobKey>,
    pub(crate) job_hash: u64,
    /// Whose key it is, as a caller says it in the clear; empty where all have one.
    pub(crate) claim: Arc<str>,
}

/// Who may call one that listens for many, each under a key of its own.
#[derive(Clone, Debug)]
pub struct Guest {
    /// What it must prove to hold.
    pub key: JobKey,
    /// The only peer that it may speak as.
    pub peer: NodeId,
}

/// Who makes a claim, if anybody may.
pub type Guests = Arc<dyn Fn(&str) -> Option<Guest> + Send + Sync>;

/// Whom a listener hears.
#[derive(Clone)]
pub(crate) enum Door {
    /// Who holds this.
    One(Secret),
    /// Whoever is a guest by its claim.
    Each { job_hash: u64, guests: Guests },
}

impl Door {
    /// What this end calls others with; none of one that is only called.
    pub(crate) fn own(&self) -> Option<&Secret> {
        match self {
            Door::One(secret) => Some(secret),
            Door::Each { .. } => None,
        }
    }

    /// What a caller with this claim must hold, and the only peer that it may be.
    fn open(&self, claim: &str) -> Result<(Secret, Option<NodeId>), Failure> {
        let (job_hash, guests) = match self {
            // Another claim than its own makes another prologue: refused as a wrong key is.
            Door::One(secret) => return Ok((secret.clone(), None)),
            Door::Each { job_hash, guests } => (*job_hash, guests),
        };
        let (key, peer) = match guests(claim) {
            Some(Guest { key, peer }) => (key, Some(peer)),
            // Nobody holds it: the handshake fails as it does with a wrong key.
            None => (
                JobKey::generate()
                    .map_err(|_| Failure::Ours("the kernel gives no random bytes"))?,
                None,
            ),
        };
        let secret = Secret {
            key: Arc::new(key),
            job_hash,
            claim: claim.into(),
        };
        Ok((secret, peer))
    }
}

impl Secret {
    /// Of a job all of whose peers share this key.
    pub(crate) fn shared(key: JobKey, job_hash: u64) -> Secret {
        Secret {
            key: Arc::new(key),
            job_hash,
            claim: "".into(),
        }
    }

    /// The claim as it stands before the first message.
    fn claim_bytes(&self) -> Result<Vec<u8>, Failure> {
        let length = u8::try_from(self.claim.len()).unwrap_or(u8::MAX);
        if usize::from(length) > CLAIM_BYTES_MAX {
            return Err(Failure::Ours("claim above its bound"));
        }
        let mut bytes = vec![length];
        bytes.extend_from_slice(self.claim.as_bytes());
        Ok(bytes)
    }

    fn noise(&self, purpose: Purpose, caller: bool) -> Result<HandshakeState, Failure> {
        let mut prologue = b"outlive-network".to_vec();
        prologue.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        prologue.extend_from_slice(&self.job_hash.to_le_bytes());
        prologue.push(purpose.number());
        prologue.extend_from_slice(&self.claim_bytes()?);
        let build = || {
            let builder = Builder::new(PATTERN.parse()?)
                .psk(0, self.key.bytes())?
                .prologue(&prologue)?;
            if caller {
                builder.build_initiator()
            } else {
                builder.build_responder()
            }
        };
        build().map_err(|_: snow::Error| Failure::Ours("the cipher suite cannot be set up"))
    }
}

/// Why a handshake did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// Another program speaks.
    NotOurs,
    /// Another version of ours speaks.
    Version(u16),
    /// Another key or another job.
    Key,
    /// The listener turned the caller away.
    Turned(Verdict),
    /// Another peer answers than was called.
    WrongPeer(NodeId),
    /// A peer that holds the key breaks the protocol.
    Protocol,
    /// A fault of this end.
    Ours(&'static str),
    /// Not finished in time.
    Timeout,
    /// The other end closed.
    Closed,
    /// The address cannot be reached.
    Unreachable(std::io::ErrorKind),
}

impl Failure {
    /// As a user meets it; `entity` is the peer or its address.
    pub(crate) fn error(self, entity: Entity) -> Error {
        let key_remedy = "give both ends the key file of the same job";
        let (code, reason, remedy): (Code, String, &str) = match self {
            Failure::NotOurs => (
                Code::Network,
                "it speaks another protocol".into(),
                "check the address",
            ),
            Failure::Version(theirs) => (
                Code::PeerVersion,
                format!("it speaks version {theirs}, this end {PROTOCOL_VERSION}"),
                "install the same version of outlive on all nodes",
            ),
            Failure::Key => (
                Code::KeyMismatch,
                "its key or its job is another".into(),
                key_remedy,
            ),
            Failure::Turned(verdict) => {
                let (code, text) = verdict.explain();
                (
                    code,
                    text.into(),
                    "check which agents run and where they listen",
                )
            }
            Failure::WrongPeer(peer) => (
                Code::Network,
                format!("{peer} answers there"),
                "check which agents run and where they listen",
            ),
            Failure::Protocol => (
                Code::Network,
                "it breaks the protocol".into(),
                "install the same version of outlive on all nodes",
            ),
            Failure::Ours(text) => return Error::internal(text),
            Failure::Timeout => (
                Code::AgentTimeout,
                "no answer in time (connect_timeout, handshake_timeout)".into(),
                "check that the node lives and the network works",
            ),
            Failure::Closed => (
                Code::AgentUnreachable,
                "the connection was closed during the handshake".into(),
                "check that the agent lives",
            ),
            Failure::Unreachable(kind) => (
                Code::AgentUnreachable,
                format!("cannot connect: {kind}"),
                "check that the agent lives and that no firewall is between",
            ),
        };
        Error::new(code, entity, reason, remedy)
    }
}

/// The cipher of an open connection. Each direction counts its records, and the
/// count is the nonce: the holder keeps it and never uses one twice.
pub(crate) struct Cipher(StatelessTransportState);

impl Cipher {
    /// Appends one record. `plain` is at most [`Cipher::PLAIN_BYTES_MAX`] long.
    pub(crate) fn seal(&self, nonce: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let length = plain.len() + TAG_BYTES;
        let wire = u16::try_from(length).map_err(|_| Failure::Ours("record above its bound"))?;
        let start = out.len() + 2;
        out.extend_from_slice(&wire.to_le_bytes());
        out.resize(start + length, 0);
        self.0
            .write_message(nonce, plain, &mut out[start..])
            .map_err(|_| Failure::Ours("a record cannot be encrypted"))?;
        Ok(())
    }

    /// Decrypts one record (without its length) to the end of `out`.
    pub(crate) fn open(&self, nonce: u64, record: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let length = record
            .len()
            .checked_sub(TAG_BYTES)
            .ok_or(Failure::Protocol)?;
        let start = out.len();
        // Noise decrypts in place and wants room for the tag as well.
        out.resize(start + record.len(), 0);
        let opened = self.0.read_message(nonce, record, &mut out[start..]);
        out.truncate(start + length);
        opened.map(drop).map_err(|_| Failure::Protocol)
    }

    /// Longest plain text of a record, in bytes.
    pub(crate) const PLAIN_BYTES_MAX: usize = RECORD_BYTES_MAX - TAG_BYTES;
}

/// A finished handshake. Record 0 of each direction was used by it.
pub(crate) struct Established {
    pub(crate) remote: Hello,
    pub(crate) purpose: Purpose,
    pub(crate) confirm: Confirm,
    pub(crate) cipher: Cipher,
    /// Known to both ends, different for every connection, never 0.
    pub(crate) id: u64,
}

/// The first record after the handshake has this nonce.
pub(crate) const FIRST_NONCE: u64 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Head,
    Body(Head),
    RecordLength,
    Record,
    Decision,
    Over,
}

/// How far the handshake is.
pub(crate) enum Progress {
    /// It wants more bytes.
    More,
    /// The listener's owner must [`Handshake::answer`].
    Decide,
    /// The caller's side is through.
    Done(Box<Established>),
}

/// One side of a handshake.
pub(crate) struct Handshake {
    caller: bool,
    door: Door,
    mine: Hello,
    purpose: Purpose,
    confirm: Confirm,
    phase: Phase,
    noise: Option<Box<HandshakeState>>,
    cipher: Option<Cipher>,
    id: u64,
    remote: Option<Hello>,
    /// The only peer that the caller's key speaks for, if it has one of its own.
    bound: Option<NodeId>,
    buffer: Vec<u8>,
    wants: usize,
}

impl Handshake {
    fn new(caller: bool, door: Door, mine: Hello, purpose: Purpose) -> Handshake {
        Handshake {
            caller,
            door,
            mine,
            purpose,
            confirm: Confirm::default(),
            phase: Phase::Head,
            noise: None,
            cipher: None,
            id: 0,
            remote: None,
            bound: None,
            buffer: Vec::new(),
            wants: HEAD_BYTES,
        }
    }

    /// Begins a call; the first bytes go to `out`.
    pub(crate) fn call(
        secret: Secret,
        mine: Hello,
        purpose: Purpose,
        header: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Handshake, Failure> {
        let (noise, claim) = (secret.noise(purpose, true)?, secret.claim_bytes()?);
        let mut this = Handshake::new(true, Door::One(secret), mine, purpose);
        this.confirm.header = header.to_vec();
        this.noise = Some(Box::new(noise));
        this.write_noise(&claim, out)?;
        Ok(this)
    }

    /// Waits for a caller that holds the same.
    pub(crate) fn listen(secret: Secret, mine: Hello) -> Handshake {
        Handshake::listen_at(Door::One(secret), mine)
    }

    /// Waits for a caller whom this door hears.
    pub(crate) fn listen_at(door: Door, mine: Hello) -> Handshake {
        Handshake::new(false, door, mine, Purpose::Control)
    }

    /// The caller's last control connection with this peer; told in its proof.
    pub(crate) fn set_last(&mut self, last: u64) {
        self.confirm.last = last;
    }

    /// How many bytes the next step still wants; 0 if it wants none.
    pub(crate) fn wants(&self) -> usize {
        self.wants - self.buffer.len()
    }

    /// True once the other end has shown that it holds the key (perhaps by a
    /// replayed message).
    pub(crate) fn shown_key(&self) -> bool {
        self.remote.is_some()
    }

    /// True once the caller's proof was sent: the connection may stand any time.
    #[cfg(test)]
    fn awaits_verdict(&self) -> bool {
        self.caller && self.cipher.is_some()
    }

    /// The peer, the epoch and the last connection, as the caller proved them.
    pub(crate) fn asked(&self) -> Option<(Hello, Purpose, u64)> {
        let remote = self.remote.filter(|_| self.phase == Phase::Decision)?;
        Some((remote, self.purpose, self.confirm.last))
    }

    /// True if a caller that has proven its key speaks as a peer that the key is not of.
    pub(crate) fn is_anothers(&self) -> bool {
        let speaks = self.remote.map(|remote| remote.identity.peer);
        self.bound.is_some() && speaks != self.bound
    }

    /// What a caller with [`Handshake::asked`] carries in its proof.
    pub(crate) fn asked_header(&self) -> &[u8] {
        &self.confirm.header
    }

    /// Takes at most [`Handshake::wants`] bytes; answers go to `out`, also when
    /// it fails (a refusal that names the reason, sent as far as it goes).
    pub(crate) fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Progress, Failure> {
        if bytes.len() > self.wants() {
            return Err(Failure::Ours("handshake fed beyond its step"));
        }
        self.buffer.extend_from_slice(bytes);
        if self.wants() > 0 {
            return Ok(Progress::More);
        }
        let input = core::mem::take(&mut self.buffer);
        self.wants = 0;
        match self.phase {
            Phase::Head => self.on_head(&input, out),
            Phase::Body(head) => self.on_body(head, &input, out),
            Phase::RecordLength => self.on_record_length(&input),
            Phase::Record => self.on_record(&input),
            Phase::Decision | Phase::Over => Ok(Progress::More),
        }
    }

    fn on_head(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Progress, Failure> {
        let head = Head::parse(input).map_err(|error| match error {
            HeadError::NotOurs => Failure::NotOurs,
            HeadError::Version(theirs) => {
                self.refuse(Status::Version, out);
                Failure::Version(theirs)
            }
        })?;
        match (self.caller, head.status) {
            (_, Status::Fine) => {}
            (true, Status::Key) => return Err(Failure::Key),
            // It says that our version is another, and its HEAD has ours.
            (true, Status::Version) | (false, _) => return Err(Failure::NotOurs),
        }
        if self.caller && head.purpose != self.purpose {
            return Err(Failure::NotOurs);
        }
        self.phase = Phase::Body(head);
        self.wants = usize::from(head.length);
        if self.wants == 0 {
            Err(Failure::NotOurs)
        } else {
            Ok(Progress::More)
        }
    }

    fn on_body(
        &mut self,
        head: Head,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Progress, Failure> {
        let mut input = input;
        if !self.caller {
            let (claim, rest) = wire::claim(input).map_err(|_| Failure::NotOurs)?;
            let (secret, bound) = self.door.open(claim)?;
            (self.purpose, self.bound, input) = (head.purpose, bound, rest);
            self.noise = Some(Box::new(secret.noise(head.purpose, false)?));
        }
        let mut payload = [0; HANDSHAKE_BYTES_MAX];
        let noise = self
            .noise
            .as_mut()
            .ok_or(Failure::Ours("handshake out of order"))?;
        let Ok(length) = noise.read_message(input, &mut payload) else {
            if !self.caller {
                self.refuse(Status::Key, out);
            }
            return Err(Failure::Key);
        };
        let remote = Hello::parse(&payload[..length]).map_err(|_| Failure::Protocol)?;
        if self.caller && remote.identity.peer != self.mine.wanted {
            return Err(Failure::WrongPeer(remote.identity.peer));
        }
        self.remote = Some(remote);
        if !self.caller {
            self.mine.wanted = remote.identity.peer;
            self.write_noise(&[], out)?;
        }
        let noise = self
            .noise
            .take()
            .ok_or(Failure::Ours("handshake out of order"))?;
        let mut id = [0; 8];
        id.copy_from_slice(&noise.get_handshake_hash()[..8]);
        self.id = u64::from_le_bytes(id).max(1);
        let state = noise
            .into_stateless_transport_mode()
            .map_err(|_| Failure::Ours("handshake out of order"))?;
        let cipher = Cipher(state);
        if self.caller {
            cipher.seal(0, &self.confirm.bytes(), out)?;
        }
        self.cipher = Some(cipher);
        self.phase = Phase::RecordLength;
        self.wants = 2;
        Ok(Progress::More)
    }

    fn on_record_length(&mut self, input: &[u8]) -> Result<Progress, Failure> {
        let length = usize::from(u16::from_le_bytes([input[0], input[1]]));
        if !(TAG_BYTES..=CONFIRM_BYTES_MAX).contains(&length) {
            return Err(Failure::Protocol);
        }
        self.phase = Phase::Record;
        self.wants = length;
        Ok(Progress::More)
    }

    fn on_record(&mut self, input: &[u8]) -> Result<Progress, Failure> {
        let cipher = self
            .cipher
            .as_ref()
            .ok_or(Failure::Ours("handshake out of order"))?;
        let mut plain = Vec::new();
        cipher.open(0, input, &mut plain)?;
        if !self.caller {
            self.confirm = Confirm::parse(&plain).map_err(|_| Failure::Protocol)?;
            self.phase = Phase::Decision;
            return Ok(Progress::Decide);
        }
        let verdict = match plain[..] {
            [number] => Verdict::from_number(number).ok_or(Failure::Protocol)?,
            _ => return Err(Failure::Protocol),
        };
        self.phase = Phase::Over;
        match verdict {
            Verdict::Accept => self.finish().map(|done| Progress::Done(Box::new(done))),
            verdict => Err(Failure::Turned(verdict)),
        }
    }

    /// The listener's word. `Accept` gives the connection, which stands once
    /// `out` was sent.
    pub(crate) fn answer(
        &mut self,
        verdict: Verdict,
        out: &mut Vec<u8>,
    ) -> Result<Option<Established>, Failure> {
        if self.phase != Phase::Decision {
            return Err(Failure::Ours("handshake out of order"));
        }
        self.phase = Phase::Over;
        // Whatever the owner says: it is not who it says.
        let verdict = match self.is_anothers() {
            true => Verdict::NotYours,
            false => verdict,
        };
        let cipher = self
            .cipher
            .as_ref()
            .ok_or(Failure::Ours("handshake out of order"))?;
        cipher.seal(0, &[verdict.number()], out)?;
        if verdict == Verdict::Accept {
            self.finish().map(Some)
        } else {
            Ok(None)
        }
    }

    fn finish(&mut self) -> Result<Established, Failure> {
        match (self.cipher.take(), self.remote) {
            (Some(cipher), Some(remote)) => Ok(Established {
                remote,
                purpose: self.purpose,
                confirm: core::mem::take(&mut self.confirm),
                cipher,
                id: self.id,
            }),
            _ => Err(Failure::Ours("handshake out of order")),
        }
    }

    /// Writes HEAD, what stands in the clear before the message, and the message.
    fn write_noise(&mut self, clear: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let noise = self
            .noise
            .as_mut()
            .ok_or(Failure::Ours("handshake out of order"))?;
        let mut body = [0; HANDSHAKE_BYTES_MAX];
        let length = noise
            .write_message(&self.mine.bytes(), &mut body)
            .map_err(|_| Failure::Ours("handshake message cannot be made"))?;
        let wire = u16::try_from(clear.len() + length)
            .map_err(|_| Failure::Ours("handshake above its bound"))?;
        Head {
            purpose: self.purpose,
            status: Status::Fine,
            length: wire,
        }
        .write(out);
        out.extend_from_slice(clear);
        out.extend_from_slice(&body[..length]);
        Ok(())
    }

    fn refuse(&self, status: Status, out: &mut Vec<u8>) {
        if !self.caller {
            Head {
                purpose: self.purpose,
                status,
                length: 0,
            }
            .write(out);
        }
    }
}

/// Who the peer is, once it is known.
impl Established {
    pub(crate) fn identity(&self) -> Identity {
        self.remote.identity
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
