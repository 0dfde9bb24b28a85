//! How long the agent's thread takes for a turn: it answers heartbeats, so nothing on it
//! may take longer than one. What does is told, with what it was.
//!
//! Counted is the time that the thread itself took: not the time that it waited for a
//! core, which says something of the machine, nor what an injection held it for, nor a
//! turn in which the process was stopped.

use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error};
use outlive_keeper::Caught;

/// The longest turn so far.
pub(crate) struct Turns {
    begun: Instant,
    /// Time waited for a core up to some moment before `begun`.
    queued: Duration,
    /// When that was looked up.
    looked: Instant,
    /// What an injection held this thread for in this turn.
    excused: Duration,
    longest: Duration,
    /// Readable if this process was stopped and goes on.
    pub resumed: Option<Caught>,
}

/// How old the time waited for a core may be: what it has grown by since is not counted
/// as the turn's own.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Turns {
    pub fn new() -> Turns {
        let now = Instant::now();
        Turns {
            begun: now,
            queued: queued(),
            looked: now,
            excused: Duration::ZERO,
            longest: Duration::ZERO,
            resumed: None,
        }
    }

    fn was_stopped(&self) -> bool {
        self.resumed.as_ref().is_some_and(Caught::has_come)
    }

    /// A turn begins.
    pub fn begin(&mut self) {
        // A stop between two turns is none of this one's.
        self.was_stopped();
        self.begun = Instant::now();
        self.excused = Duration::ZERO;
        if self.begun.duration_since(self.looked) >= LOOK_AGAIN {
            self.looked = self.begun;
            self.queued = queued();
        }
    }

    /// So much of this turn was an injection's.
    pub fn excuse(&mut self, held: Duration) {
        self.excused += held;
    }

    /// A turn ends, in which `what` was done. A warning if it took longer than a heartbeat
    /// may, and twice as long as any before.
    pub fn end(&mut self, node: u32, what: &str, heartbeat: Duration) -> Option<Error> {
        let wall = self.begun.elapsed().saturating_sub(self.excused);
        if wall <= heartbeat.max(self.longest * 2) || self.was_stopped() {
            return None;
        }
        let (before, now) = (self.queued, queued());
        (self.queued, self.looked) = (now, Instant::now());
        let own = wall.saturating_sub(now.saturating_sub(before));
        if own <= heartbeat.max(self.longest * 2) {
            return None;
        }
        self.longest = own;
        Some(Error::new(
            Code::AgentTimeout,
            Entity::Node(node),
            format!(
                "its agent was busy for {} ms with {what}; a heartbeat is due every {} ms",
                own.as_millis(),
                heartbeat.as_millis()
            ),
            "please report this with the log; a larger dead_ms keeps such a node from being \
             given up",
        ))
    }
}

/// Time that this thread has waited for a core, as the scheduler counts it; 0 if the
/// kernel does not tell.
fn queued() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_slow_operation_is_told_once_and_an_injection_is_not() {
        let heartbeat = Duration::from_millis(20);
        let mut turns = Turns::new();
        let slow = || std::thread::sleep(Duration::from_millis(60));
        turns.begin();
        slow();
        let told = turns.end(3, "a planted pause", heartbeat).unwrap();
        assert_eq!(told.code(), Code::AgentTimeout);
        assert!(told.reason().contains("a planted pause"), "{told}");
        turns.begin();
        let begin = Instant::now();
        slow();
        turns.excuse(begin.elapsed());
        assert_eq!(turns.end(3, "an injection", heartbeat), None);
        turns.begin();
        assert_eq!(turns.end(3, "nothing", heartbeat), None);
    }

    #[test]
    fn a_longer_turn_is_told_again_only_if_it_is_twice_as_long() {
        let heartbeat = Duration::from_millis(20);
        let mut turns = Turns::new();
        let mut turn = |length| {
            turns.begin();
            std::thread::sleep(length);
            turns.end(3, "a planted pause", heartbeat)
        };
        assert!(turn(Duration::from_millis(60)).is_some());
        assert_eq!(
            turn(Duration::from_millis(50)),
            None,
            "no longer than before"
        );
        assert!(turn(Duration::from_millis(400)).is_some());
    }

    #[test]
    fn a_turn_in_which_the_process_was_stopped_is_not_its_own() {
        let heartbeat = Duration::from_millis(20);
        let mut turns = Turns::new();
        turns.resumed = Some(Caught::catch(libc::SIGCONT).unwrap());
        let resumed = || {
            // SAFETY: sends this thread, which has blocked it, a signal that changes nothing.
            assert_eq!(unsafe { libc::raise(libc::SIGCONT) }, 0);
        };
        turns.begin();
        std::thread::sleep(Duration::from_millis(60));
        resumed();
        assert_eq!(turns.end(3, "a stop", heartbeat), None);
        // A stop between two turns excuses neither.
        resumed();
        turns.begin();
        std::thread::sleep(Duration::from_millis(60));
        assert!(turns.end(3, "a planted pause", heartbeat).is_some());
    }
}
