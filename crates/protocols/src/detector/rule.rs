//! When silence is suspicion, and when it is death. The one place where that is judged, by the
//! agents' detector and by the launcher alike; what they do about it is theirs.

use outlive_base::Time;

/// The bounds of silence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Silence after which a node is suspected.
    pub suspect: Time,
    /// Silence after which a node is dead, if a second witness agrees.
    pub dead: Time,
}

/// What others say of a node that an observer does not hear.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Words {
    /// Another observer misses it too, or there is none who could.
    pub missed: bool,
    /// Others agreed that it is dead.
    pub dead: bool,
}

impl Rule {
    /// True if a node that is silent for so long is suspected.
    pub fn suspects(&self, silent: Time) -> bool {
        silent >= self.suspect
    }

    /// True if it has been silent for so long that this observer is a witness of its death.
    pub fn is_witness(&self, silent: Time) -> bool {
        silent >= self.dead
    }

    /// What an agent calls dead: it cannot end a node, so it needs a second witness.
    pub fn is_dead_to_peer(&self, silent: Time, missed: bool) -> bool {
        self.is_witness(silent) && missed
    }

    /// What the launcher calls dead. It hears every node and can end it, so a second witness is
    /// no matter of safety, only of cost: without one, twice the silence is enough.
    pub fn is_dead_to_launcher(&self, silent: Time, words: Words) -> bool {
        self.is_dead_to_peer(silent, words.missed)
            || (self.suspects(silent) && words.dead)
            || silent >= self.dead + self.dead
    }

    /// When the verdict on a node that was last heard then may next change by time alone, after
    /// `now`.
    pub fn next(&self, heard: Time, now: Time) -> Option<Time> {
        let steps = [self.suspect, self.dead, self.dead + self.dead];
        steps
            .map(|step| heard + step)
            .into_iter()
            .find(|at| *at > now)
    }
}

/// When a node counts as heard last, if its observer itself did not run for `absent` up to `now`:
/// everyone is given that time.
pub fn excused(heard: Time, absent: Time, now: Time) -> Time {
    (heard + absent).min(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        suspect: Time::from_secs(1),
        dead: Time::from_secs(10),
    };

    #[test]
    fn death_takes_two_witnesses_or_twice_the_time() {
        let words = |missed, dead| Words { missed, dead };
        let cases = [
            (0, words(true, true), false, false),
            (1, words(true, false), false, false),
            (1, words(false, true), false, true),
            (10, words(false, false), false, false),
            (10, words(true, false), true, true),
            (19, words(false, false), false, false),
            (20, words(false, false), false, true),
        ];
        for (seconds, words, peer, launcher) in cases {
            let silent = Time::from_secs(seconds);
            assert_eq!(RULE.is_dead_to_peer(silent, words.missed), peer);
            assert_eq!(RULE.is_dead_to_launcher(silent, words), launcher);
        }
    }

    #[test]
    fn the_next_change_is_later_than_now() {
        let heard = Time::from_secs(5);
        let next = |now| RULE.next(heard, Time::from_secs(now));
        assert_eq!(next(5), Some(Time::from_secs(6)));
        assert_eq!(next(6), Some(Time::from_secs(15)));
        assert_eq!(next(15), Some(Time::from_secs(25)));
        assert_eq!(next(25), None);
    }

    #[test]
    fn nobody_is_heard_later_than_now() {
        let seconds = Time::from_secs;
        assert_eq!(excused(seconds(5), seconds(2), seconds(9)), seconds(7));
        assert_eq!(excused(seconds(5), seconds(8), seconds(9)), seconds(9));
    }
}
