//! One session between two ranks, as a pure state machine: no socket, no clock.
//!
//! It survives its links. Data frames are numbered; the receiver's cumulative
//! acknowledgement frees the sender's replay buffer; a new link begins with both
//! ends telling the first number that they miss, and the sender goes on there.
//!
//! Invariants:
//! - Every payload is delivered exactly once and in order: a number below the
//!   next expected is dropped, one above it cuts the link.
//! - At most one link carries data. Links are ordered by their attach number
//!   (twice a counter, plus one if the lower rank called); a link is taken up
//!   only if its number is larger than that of every link taken up before, on
//!   either side, so crossing calls and calls that come late end in one link.
//! - A peer with another incarnation has lost its memory: no replay can help,
//!   and the session ends with [`Code::RankLost`].
//! - Time in which this end itself was away (stopped, or its kernel dead) is not
//!   held against the peer, and a clock that jumps back only restarts the timers.
//! - All state is in this value: a process whose memory survives goes on with
//!   it, whatever became of its descriptors.
//!
//! Source of the idea: librlmpi in mini-ckpts (Fiala, Mueller, Ferreira,
//! Engelmann, ICS 2016): lost connections are made again and messages in
//! progress rolled back.

use std::io::IoSlice;

use outlive_base::{Code, Entity, Error, Time, rng};

use super::frame::{FrameKind, HEAD_BYTES, Head, Resume};
use super::replay::{Replay, Unfit};

/// The bounds of a session.
#[derive(Clone, Debug)]
pub struct Config {
    /// Size of the replay buffer, in bytes: what one peer may not have
    /// acknowledged. A send that does not fit waits. Default 4 MiB.
    pub window_bytes: usize,
    /// Longest payload of one frame, in bytes. Default 128 KiB.
    pub frame_bytes_max: usize,
    /// An end that sent nothing for this long says that it lives. Default 250 ms.
    pub heartbeat: Time,
    /// A link on which nothing came for this long is cut. Default 3 s.
    pub silence: Time,
    /// A peer without a link for this long is given up. Default 300 s.
    pub give_up: Time,
    /// First delay before calling again; doubles. Default 20 ms.
    pub backoff_min: Time,
    /// Largest delay before calling again. Default 500 ms.
    pub backoff_max: Time,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            window_bytes: 4 << 20,
            frame_bytes_max: 128 << 10,
            heartbeat: Time::from_ms(250),
            silence: Time::from_secs(3),
            give_up: Time::from_secs(300),
            backoff_min: Time::from_ms(20),
            backoff_max: Time::from_ms(500),
        }
    }
}

impl Config {
    /// # Errors
    /// [`Code::InvalidArgument`] if a bound contradicts another.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str, remedy: &str| {
            Err(Error::new(
                Code::InvalidArgument,
                Entity::Call,
                what,
                remedy,
            ))
        };
        if self.frame_bytes_max < 64 || u32::try_from(self.frame_bytes_max).is_err() {
            return wrong("frames below 64 bytes or above 4 GiB", "choose 128 KiB");
        }
        if self.window_bytes < 2 * (self.frame_bytes_max + HEAD_BYTES) {
            return wrong(
                "the window holds fewer than two frames",
                "make it four frames or more",
            );
        }
        if self.heartbeat == Time::ZERO || self.silence.0 / 3 < self.heartbeat.0 {
            return wrong(
                "silence is shorter than three heartbeats",
                "lower the heartbeat or raise the silence",
            );
        }
        if self.give_up < self.silence || self.backoff_min == Time::ZERO {
            return wrong(
                "give_up is below silence, or the backoff is zero",
                "raise give_up or backoff_min",
            );
        }
        if self.backoff_max < self.backoff_min {
            return wrong("backoff_max is below backoff_min", "raise backoff_max");
        }
        Ok(())
    }
}

/// An acknowledgement is sent after so many bytes at the latest: the sender's
/// buffer then stays small enough for a processor's cache.
const ACK_BYTES: usize = 256 << 10;

/// No pair of ranks makes so many connections: counting on cannot overflow.
const ATTACH_MAX: u64 = 1 << 60;

/// A connection, as its driver numbers it; never used twice in a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Link(pub u64);

/// What came in with a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incoming {
    /// A payload that is new: call [`Session::received`] once it is complete.
    Fresh {
        /// Its length in bytes.
        length: usize,
        /// The sender's flags.
        flags: u8,
    },
    /// A payload that was received before: read over it.
    Again {
        /// Its length in bytes.
        length: usize,
    },
    /// A welcome: pass its payload to [`Session::welcomed`].
    Welcome,
    /// Nothing follows.
    Nothing,
}

/// Why a link must be closed; the session goes on unless it has
/// [`Session::failed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// The link is not, or no longer, the session's.
    NotCurrent,
    /// Bytes that are no frame, or a gap in the numbers.
    Garbled,
    /// One of the two lost its memory. A listener still sends [`Session::welcome`], so that
    /// the caller learns of it, too.
    Forgotten,
    /// The peer asks for what is gone.
    Lost,
    /// A later link was taken up before.
    Stale,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    link: Link,
    attach: u64,
}

/// Counts since the session began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Links taken up.
    pub links: u64,
    /// Payloads received once more and dropped.
    pub again: u64,
    /// Links cut for silence.
    pub silences: u64,
    /// Times this end found that it had been away.
    pub absences: u64,
    /// Acknowledgements and signs of life sent alone.
    pub alive: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Session {
    config: Config,
    me: u32,
    peer: u32,
    incarnation: u64,
    met: u64,
    replay: Replay,
    next: u64,
    unacked_bytes: usize,
    /// Largest attach number taken up, and largest proposed.
    taken: u64,
    proposed: u64,
    current: Option<Pending>,
    calling: Option<Pending>,
    control: Vec<u8>,
    control_sent: usize,
    control_open: bool,
    now: Time,
    heard: Time,
    said: Time,
    down_since: Time,
    call_at: Time,
    backoff: Time,
    draws: u64,
    failed: Option<Code>,
    bye_wanted: bool,
    bye_sent: bool,
    bye_heard: bool,
    counts: Counts,
}

impl Session {
    /// A session of rank `me` with `peer`. `incarnation` is drawn at random once
    /// for the life of this process's memory, and is not 0.
    pub fn new(config: Config, me: u32, peer: u32, incarnation: u64, now: Time) -> Session {
        let replay = Replay::new(config.window_bytes);
        Session {
            me,
            peer,
            incarnation,
            met: 0,
            replay,
            next: 0,
            unacked_bytes: 0,
            taken: 0,
            proposed: 0,
            current: None,
            calling: None,
            control: Vec::new(),
            control_sent: 0,
            control_open: false,
            now,
            heard: now,
            said: now,
            down_since: now,
            // Left to the one who has something to say, but not for ever.
            call_at: now + config.backoff_max,
            backoff: config.backoff_min,
            draws: 0,
            failed: None,
            bye_wanted: false,
            bye_sent: false,
            bye_heard: false,
            counts: Counts::default(),
            config,
        }
    }

    /// There is something to say: if the two never had a link, the first call is made now.
    /// Whoever only waits to hear calls after [`Config::backoff_max`], if it was not called:
    /// fewer crossing calls.
    pub fn hurry(&mut self) {
        if self.taken == 0 && self.proposed == 0 {
            self.call_at = self.now;
        }
    }

    /// After a cut the higher rank calls at once, the lower one only if it was not called.
    fn next_call(&self) -> Time {
        if self.me > self.peer {
            self.now
        } else {
            self.now + self.config.backoff_max
        }
    }

    /// How long a payload can be queued now, in bytes, at most
    /// [`Config::frame_bytes_max`]; `None` until the peer acknowledges some.
    pub fn room(&self) -> Option<usize> {
        let room = self.replay.room()?.min(self.config.frame_bytes_max);
        (room > 0).then_some(room)
    }

    /// Queues one payload, given in parts; false if it is longer than
    /// [`Session::room`].
    pub fn push(&mut self, flags: u8, parts: &[&[u8]]) -> bool {
        let fits = self.replay.push(flags, self.next, parts);
        if fits {
            self.hurry();
            self.unacked_bytes = 0; // The header tells.
        }
        fits
    }

    /// True if a call should be made now.
    pub fn wants_call(&self) -> bool {
        self.open() && self.current.is_none() && self.calling.is_none() && self.now >= self.call_at
    }

    /// True while a call of this end is on its way.
    pub fn is_calling(&self) -> bool {
        self.calling.is_some()
    }

    fn open(&self) -> bool {
        self.failed.is_none() && !self.ended()
    }

    /// Begins a call over `link`: what its proof must carry.
    pub fn call(&mut self, link: Link) -> Resume {
        let turn = self.taken.max(self.proposed) / 2 + 1;
        let attach = 2 * turn + u64::from(self.me < self.peer);
        self.proposed = attach;
        self.calling = Some(Pending { link, attach });
        self.resume(attach)
    }

    /// The proof for a call that was begun, as of now.
    pub fn proof(&self, link: Link) -> Option<Resume> {
        let call = self.calling.filter(|call| call.link == link)?;
        Some(self.resume(call.attach))
    }

    fn resume(&self, attach: u64) -> Resume {
        Resume {
            incarnation: self.incarnation,
            met: self.met,
            attach,
            next: self.next,
        }
    }

    /// The peer calls over `link`. On success the welcome is queued and an older
    /// link, which the driver closes, is given back.
    ///
    /// # Errors
    /// Why the call must be turned down.
    pub fn called(&mut self, link: Link, theirs: &Resume) -> Result<Vec<Link>, Cut> {
        if theirs.attach > ATTACH_MAX {
            return Err(Cut::Garbled);
        }
        if theirs.attach <= self.taken || theirs.attach % 2 != u64::from(self.peer < self.me) {
            return Err(Cut::Stale);
        }
        self.meet(theirs)?;
        let closed = self.take_up(link, theirs)?;
        self.control = self.welcome(theirs);
        Ok(closed)
    }

    /// The listener's first frame to a caller who presents `theirs`, as bytes. The session
    /// queues it when it takes up the call.
    pub fn welcome(&self, theirs: &Resume) -> Vec<u8> {
        let payload = self.resume(theirs.attach).bytes();
        let head = Head {
            kind: FrameKind::Welcome,
            flags: 0,
            length: payload.len() as u32,
            seq: 0,
            ack: self.next,
            link: theirs.attach as u32,
        };
        [&head.bytes()[..], &payload].concat()
    }

    /// The payload of a welcome came over `link`.
    ///
    /// # Errors
    /// Why the link must be closed.
    pub fn welcomed(&mut self, link: Link, payload: &[u8]) -> Result<Vec<Link>, Cut> {
        let theirs = Resume::parse(payload).map_err(|_| Cut::Garbled)?;
        let call = self.calling.filter(|call| call.link == link);
        let call = call.ok_or(Cut::NotCurrent)?;
        if theirs.attach != call.attach {
            return Err(Cut::Garbled);
        }
        if call.attach <= self.taken {
            return Err(Cut::Stale);
        }
        self.meet(&theirs)?;
        self.calling = None;
        self.take_up(link, &theirs)
    }

    fn meet(&mut self, theirs: &Resume) -> Result<(), Cut> {
        let known = self.met == 0 || self.met == theirs.incarnation;
        let knows_me = theirs.met == 0 || theirs.met == self.incarnation;
        if !known || !knows_me || theirs.incarnation == 0 {
            self.failed = Some(Code::RankLost);
            return Err(Cut::Forgotten);
        }
        self.met = theirs.incarnation;
        Ok(())
    }

    fn take_up(&mut self, link: Link, theirs: &Resume) -> Result<Vec<Link>, Cut> {
        match self.replay.rewind(theirs.next) {
            Ok(()) => {}
            // It called, was called by us meanwhile, and has moved on.
            Err(Unfit::Old) => return Err(Cut::Stale),
            Err(Unfit::Unsent) => {
                self.failed = Some(Code::RankLost);
                return Err(Cut::Lost);
            }
        }
        let attach = theirs.attach;
        let mut closed = Vec::new();
        closed.extend(self.current.take().map(|old| old.link));
        // A call of ours with a larger number may still be taken up by the peer.
        if self.calling.is_some_and(|call| call.attach < attach) {
            closed.extend(self.calling.take().map(|call| call.link));
        }
        self.current = Some(Pending { link, attach });
        self.taken = attach;
        self.control.clear();
        self.control_sent = 0;
        self.control_open = false;
        self.unacked_bytes = 0;
        self.bye_sent = false;
        self.heard = self.now;
        self.said = self.now;
        self.backoff = self.config.backoff_min;
        self.counts.links += 1;
        Ok(closed)
    }

    /// A call did not lead to a link, or a link broke.
    pub fn cut(&mut self, link: Link) {
        if self.calling.is_some_and(|call| call.link == link) {
            self.calling = None;
            let jitter = rng::draw(self.incarnation, u64::from(self.peer), self.draws);
            self.draws += 1;
            let delay = self.backoff.0 / 2 + rng::below(jitter, self.backoff.0);
            self.call_at = self.now + Time(delay);
            self.backoff = Time(self.backoff.0.saturating_mul(2)).min(self.config.backoff_max);
        }
        if self.current.is_some_and(|current| current.link == link) {
            self.current = None;
            self.down_since = self.now;
            self.call_at = self.next_call();
        }
    }

    /// A header came over `link`.
    ///
    /// # Errors
    /// Why the link must be closed; call [`Session::cut`] then.
    pub fn header(&mut self, link: Link, bytes: &[u8; HEAD_BYTES]) -> Result<Incoming, Cut> {
        let length_max = u32::try_from(self.config.frame_bytes_max).unwrap_or(u32::MAX);
        let head = Head::parse(bytes, length_max).ok_or(Cut::Garbled)?;
        if let Some(call) = self.calling.filter(|call| call.link == link) {
            let fits = head.kind == FrameKind::Welcome && head.link == call.attach as u32;
            return if fits {
                Ok(Incoming::Welcome)
            } else {
                Err(Cut::Garbled)
            };
        }
        let current = self.current.filter(|current| current.link == link);
        let current = current.ok_or(Cut::NotCurrent)?;
        if head.kind != FrameKind::Data && head.link != current.attach as u32 {
            return Err(Cut::Garbled);
        }
        self.heard = self.now;
        // A replayed frame has an old acknowledgement: below the base is fine.
        if !self.replay.acknowledged(head.ack) {
            return Err(Cut::Garbled);
        }
        let length = head.length as usize;
        match head.kind {
            FrameKind::Data if head.seq == self.next => Ok(Incoming::Fresh {
                length,
                flags: head.flags,
            }),
            FrameKind::Data if head.seq < self.next => {
                self.counts.again += 1;
                Ok(Incoming::Again { length })
            }
            FrameKind::Data | FrameKind::Welcome => Err(Cut::Garbled),
            FrameKind::Alive => Ok(Incoming::Nothing),
            FrameKind::Bye => {
                self.bye_heard = true;
                Ok(Incoming::Nothing)
            }
        }
    }

    /// The payload of a [`Incoming::Fresh`] frame is complete.
    pub fn received(&mut self, length: usize) {
        self.next += 1;
        self.unacked_bytes += length + HEAD_BYTES;
        if self.unacked_bytes >= (self.config.window_bytes / 4).min(ACK_BYTES) {
            self.say_alive();
        }
    }

    /// Bytes came over `link` that are not yet a frame: a sign of life.
    pub fn heard(&mut self, link: Link) {
        if self.current.is_some_and(|current| current.link == link) {
            self.heard = self.now;
        }
    }

    fn say_alive(&mut self) {
        if self.current.is_some() && self.control.is_empty() {
            self.queue_control(FrameKind::Alive);
            self.counts.alive += 1;
            self.unacked_bytes = 0;
        }
    }

    fn queue_control(&mut self, kind: FrameKind) {
        let head = Head {
            kind,
            flags: 0,
            length: 0,
            seq: 0,
            ack: self.next,
            link: self.taken as u32,
        };
        self.control.extend_from_slice(&head.bytes());
    }

    /// What `link` may send now, in order; all empty if nothing.
    pub fn output(&self, link: Link) -> [IoSlice<'_>; 3] {
        if self.current.is_none_or(|current| current.link != link) {
            return [IoSlice::new(&[]), IoSlice::new(&[]), IoSlice::new(&[])];
        }
        let waits = !self.control.is_empty();
        if waits && self.replay.inside() && !self.control_open {
            let [first, second] = self.replay.unsent(true);
            return [IoSlice::new(&[]), first, second];
        }
        let [first, second] = self.replay.unsent(false);
        [
            IoSlice::new(&self.control[self.control_sent..]),
            first,
            second,
        ]
    }

    /// True if [`Session::output`] has something.
    pub fn has_output(&self) -> bool {
        self.current.is_some() && (!self.control.is_empty() || self.replay.has_unsent())
    }

    /// `link` took `count` bytes of [`Session::output`].
    pub fn wrote(&mut self, link: Link, count: usize) {
        if count == 0 || self.current.is_none_or(|current| current.link != link) {
            return;
        }
        self.said = self.now;
        let mut rest = count;
        if !self.control.is_empty() && (self.control_open || !self.replay.inside()) {
            let part = rest.min(self.control.len() - self.control_sent);
            self.control_sent += part;
            self.control_open = true;
            rest -= part;
            if self.control_sent == self.control.len() {
                self.control.clear();
                self.control_sent = 0;
                self.control_open = false;
            }
        }
        self.replay.took(rest);
    }

    /// The clock. Cuts a silent link (given back for closing), tells that this
    /// end lives, and gives the peer up in time.
    pub fn tick(&mut self, now: Time) -> Option<Link> {
        let away = now.since(self.now);
        if now < self.now || away.0 > self.config.silence.0 / 2 {
            self.counts.absences += 1;
            let shift = |then: Time, old: Time| now - old.since(then);
            self.heard = now;
            self.said = Time::ZERO;
            self.down_since = shift(self.down_since, self.now);
            self.call_at = self.call_at.min(now);
        }
        self.now = now;
        if !self.open() {
            return None;
        }
        let Some(current) = self.current else {
            if now.since(self.down_since) >= self.config.give_up {
                self.failed = Some(Code::NodeLost);
            }
            return None;
        };
        if now.since(self.heard) >= self.config.silence {
            self.counts.silences += 1;
            self.cut(current.link);
            return Some(current.link);
        }
        if self.bye_wanted && !self.bye_sent && self.replay.is_empty() && self.control.is_empty() {
            self.bye_sent = true;
            self.queue_control(FrameKind::Bye);
        } else if now.since(self.said) >= self.config.heartbeat && !self.replay.has_unsent() {
            self.say_alive();
        }
        None
    }

    /// The layer above is through: say goodbye once all is acknowledged.
    pub fn finish(&mut self) {
        self.bye_wanted = true;
        // A partner that also ends owes an acknowledgement, and now is the time.
        if self.unacked_bytes > 0 {
            self.say_alive();
        }
    }

    /// True once both ends have said goodbye.
    pub fn ended(&self) -> bool {
        self.bye_heard && self.bye_sent && self.control.is_empty()
    }

    /// True once the peer has said goodbye: it has all that it wants.
    pub fn bye_heard(&self) -> bool {
        self.bye_heard
    }

    /// Bytes that no link has taken yet.
    pub fn unsent_bytes(&self) -> usize {
        self.replay.unsent_bytes()
    }

    /// True if the peer has acknowledged everything.
    pub fn drained(&self) -> bool {
        self.replay.is_empty()
    }

    /// The link that carries data.
    pub fn current(&self) -> Option<Link> {
        self.current.map(|current| current.link)
    }

    /// Counts since the beginning.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Why the session ended for good, if it did.
    pub fn failed(&self) -> Option<Error> {
        let code = self.failed?;
        let (reason, remedy) = if code == Code::RankLost {
            (
                "it came back without its memory, or asks for what it acknowledged".to_string(),
                "restart the job from its last checkpoint",
            )
        } else {
            (
                format!("no connection for {} (give_up)", self.config.give_up),
                "check the node and the network; raise the bound if nodes reboot more slowly",
            )
        };
        Some(Error::new(code, Entity::Rank(self.peer), reason, remedy))
    }
}
