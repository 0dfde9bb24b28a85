//! The rail over the job's own point-to-point messages, on the shadow communicator.
//!
//! A frame is one message: header, body, list of the absent. Sending is non-blocking
//! and owns its bytes; receiving probes for any source. Under ULFM a failed process
//! makes such a probe fail: the failure is acknowledged and the probe goes on (design:
//! the shadow communicator is never revoked). Deaths come from ULFM only.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use outlive_base::Time;
use outlive_network::rail::{Can, Frame, News, Rail, STALL};

use crate::native::{Handle, Native, Status};

/// The tag of frames on the shadow communicator; pairs use those above.
pub const FRAME_TAG: c_int = 0;
/// Most sends under way before machines are no longer pulled.
const SENDS_MAX: usize = 4096;
/// Receives without news between two questions about failures.
const IDLE_POLLS: u32 = 64;

struct Sending {
    request: Handle,
    /// Read by MPI until the request is done.
    bytes: Vec<u8>,
    begun: Instant,
}

/// See the module.
pub struct Shadow {
    native: &'static Native,
    comm: Handle,
    me: u32,
    size: u32,
    start: Instant,
    sending: Vec<Sending>,
    ulfm: bool,
    idle: u32,
    dead: Vec<bool>,
    news: VecDeque<News>,
}

impl Shadow {
    /// Over `comm`, a duplicate of the world that returns errors.
    pub fn new(native: &'static Native, comm: Handle, me: u32, size: u32, ulfm: bool) -> Shadow {
        Shadow {
            native,
            comm,
            me,
            size,
            start: Instant::now(),
            sending: Vec::new(),
            ulfm,
            idle: 0,
            dead: vec![false; size as usize],
            news: VecDeque::new(),
        }
    }

    /// Acknowledges failures and notes who is newly dead.
    fn ask_failures(&mut self) {
        let (Some(ack), Some(get)) = (self.native.failure_ack, self.native.failure_get_acked)
        else {
            return;
        };
        if !self.ulfm {
            return;
        }
        let native = self.native;
        let (mut failed, mut world) = (0, 0);
        // SAFETY: MPI is initialised; the communicator is ours; pointers to locals.
        unsafe {
            let mut count = 0;
            if ack(self.comm) != 0 || get(self.comm, &mut failed) != 0 {
                return;
            }
            (native.group_size)(failed, &mut count);
            if count > 0 && (native.comm_group)(self.comm, &mut world) == 0 {
                let places: Vec<c_int> = (0..count).collect();
                let mut ranks = vec![-1; places.len()];
                (native.group_translate)(failed, count, places.as_ptr(), world, ranks.as_mut_ptr());
                for rank in ranks {
                    self.note(rank);
                }
                (native.group_free)(&mut world);
            }
            (native.group_free)(&mut failed);
        }
    }

    fn note(&mut self, rank: c_int) {
        if let Ok(rank) = usize::try_from(rank)
            && let Some(dead) = self.dead.get_mut(rank)
            && !std::mem::replace(dead, true)
        {
            self.news.push_back(News::Dead(rank as u32));
        }
    }

    fn finish_sends(&mut self) {
        let native = self.native;
        self.sending.retain_mut(|one| {
            let (mut done, mut status) = (0, Status::default());
            // SAFETY: the request is live and its bytes are kept beside it.
            let result =
                unsafe { (native.test)(&mut one.request, &mut done, (&raw mut status).cast()) };
            // A send to a dead process ends with an error: it vanishes.
            result == 0 && done == 0
        });
    }

    fn probe(&mut self) -> Option<(c_int, c_int)> {
        let any = self.native.constants.any_source;
        let (mut flag, mut status) = (0, Status::default());
        // SAFETY: our communicator, pointers to locals, a status with room for all layouts.
        let result = unsafe {
            let status = (&raw mut status).cast();
            (self.native.iprobe)(any, FRAME_TAG, self.comm, &mut flag, status)
        };
        if result != 0 {
            self.ask_failures();
            return None;
        }
        if flag == 0 {
            return None;
        }
        let mut bytes = 0;
        // SAFETY: the status was filled by the probe.
        unsafe {
            let byte = self.native.constants.byte;
            (self.native.get_count)((&raw const status).cast(), byte, &mut bytes);
        }
        Some((status.source(&self.native.constants), bytes))
    }
}

impl Rail for Shadow {
    fn me(&self) -> u32 {
        self.me
    }
    fn size(&self) -> u32 {
        self.size
    }
    fn name(&self) -> &'static str {
        "MPI messages"
    }
    fn can(&self) -> Can {
        Can {
            native_pairs: true,
            tells_deaths: self.ulfm,
            ..Can::default()
        }
    }
    fn now(&self) -> Time {
        Time::from(self.start.elapsed())
    }
    fn ready(&self) -> bool {
        self.sending.len() < SENDS_MAX
    }
    fn waiting(&self) -> usize {
        let Some(since) = Instant::now().checked_sub(STALL) else {
            return 0;
        };
        let moving = self.sending.iter().filter(|one| one.begun >= since);
        moving.map(|one| one.bytes.len()).sum()
    }
    fn send(&mut self, to: u32, frame: Frame) {
        if self.dead.get(to as usize).copied().unwrap_or(true) {
            return;
        }
        let bytes = frame.bytes();
        let Ok(count) = c_int::try_from(bytes.len()) else {
            return; // the layer sends nothing as long (see `calls::BYTES_MAX`)
        };
        let mut request = 0;
        let byte = self.native.constants.byte;
        // SAFETY: the bytes live in `sending` until the request is done; a Vec's heap
        // block does not move with it.
        let result = unsafe {
            let data = bytes.as_ptr().cast();
            (self.native.isend)(
                data,
                count,
                byte,
                to as c_int,
                FRAME_TAG,
                self.comm,
                &mut request,
            )
        };
        if result == 0 {
            self.sending.push(Sending {
                request,
                bytes,
                begun: Instant::now(),
            });
        }
    }
    fn receive(&mut self) -> Option<(u32, Frame)> {
        if !self.sending.is_empty() {
            self.finish_sends();
        }
        let Some((source, count)) = self.probe() else {
            self.idle += 1;
            if self.idle >= IDLE_POLLS {
                self.idle = 0;
                self.ask_failures();
            }
            return None;
        };
        self.idle = 0;
        let mut bytes = vec![0; usize::try_from(count).ok()?];
        let byte = self.native.constants.byte;
        // SAFETY: the buffer has room for the message that was probed; only this rail
        // receives with this tag, under the layer's lock.
        let result = unsafe {
            let (data, ignore) = (
                bytes.as_mut_ptr().cast(),
                self.native.constants.status_ignore,
            );
            (self.native.recv)(
                data,
                count,
                byte,
                source,
                FRAME_TAG,
                self.comm,
                ignore as *mut _,
            )
        };
        if result != 0 {
            self.ask_failures();
            return None;
        }
        let frame = Frame::parse(&bytes).ok()?;
        Some((u32::try_from(source).ok()?, frame))
    }
    fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }
    fn look(&mut self) {
        self.ask_failures();
    }
    fn wait(&mut self, _until: Time) {
        // MPI makes progress only when it is called; others may need this core.
        std::thread::yield_now();
    }
    fn flushed(&mut self) -> bool {
        self.finish_sends();
        self.sending.is_empty()
    }
    fn leave(&mut self, _bound: Duration) {
        // The native finalisation follows.
    }
}
