//! What a coordinator was told, in one order, and what it knows by that.
//!
//! Invariants: the same batches in the same order give the same state and the same answers,
//! bit for bit, also from a state that was written down between them; time never runs backwards,
//! whoever says it, and stands still while nobody does.

use outlive_base::Time;
use outlive_planner::coordinate::JobId;
use serde::{Deserialize, Serialize};

use super::{Answer, Ask, Service};

/// What happens to a coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Word {
    /// A job says something.
    Heard(JobId, Ask),
    /// The connection to a job is gone.
    Gone(JobId),
}

/// What has happened by a moment; without words, that it is reached.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Batch {
    /// The moment, on the clock of [`Kept::time`].
    pub at: Time,
    /// In this order.
    pub words: Vec<Word>,
}

/// The service, and the moment up to which it was told.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Kept {
    time: Time,
    service: Service,
}

impl Kept {
    /// Takes a batch; the answers, each with the job that it is for.
    pub fn apply(&mut self, batch: &Batch) -> Vec<(JobId, Answer)> {
        // One who led before may have said a later moment.
        self.time = self.time.max(batch.at);
        let mut answers = Vec::new();
        for word in &batch.words {
            match word {
                Word::Heard(job, ask) => {
                    let answer = self.service.on(self.time, *job, ask.clone());
                    answers.extend(answer.map(|answer| (*job, answer)));
                }
                Word::Gone(job) => self.service.gone(*job),
            }
        }
        self.service.on_time(self.time);
        answers
    }

    /// The newest moment that it was told: who leads next goes on from there.
    pub const fn time(&self) -> Time {
        self.time
    }

    /// What it knows.
    pub const fn service(&self) -> &Service {
        &self.service
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outlive_base::rng::Sequence;
    use outlive_base::{JobName, seed};

    use super::super::{Need, SILENT, Tier};
    use super::*;

    fn tier(draw: &mut Sequence) -> Tier {
        let names = ["files", "memory", "s3://bucket"];
        Tier::new(names[draw.below(3) as usize]).unwrap()
    }

    fn ask(draw: &mut Sequence) -> Ask {
        match draw.below(14) {
            0 | 1 => Ask::Join {
                job: JobName::new("job").unwrap(),
                tier: tier(draw),
                need: Need {
                    nodes: draw.below(4) as u32,
                    mtbf_ms: 1 + draw.below(1_000_000),
                    write_ms: 1 + draw.below(9_000),
                },
                since_ms: draw.below(60_000),
                writing_ms: (draw.below(3) == 0).then(|| draw.below(3_000)),
            },
            2..=7 => Ask::Offer {
                tier: tier(draw),
                sequence: draw.below(100) as u32,
            },
            8 | 9 => Ask::Ended { tier: tier(draw) },
            10 => Ask::Paused,
            11 => Ask::Resumed,
            12 => match draw.below(4) {
                0 => Ask::Quit { tier: tier(draw) },
                _ => Ask::Alive,
            },
            _ => Ask::Alive,
        }
    }

    fn batch(draw: &mut Sequence, at: &mut u64) -> Batch {
        // Now and then a leader whose clock is behind.
        match draw.below(10) {
            0 => *at = at.saturating_sub(draw.below(5_000)),
            _ => *at += draw.below(4_000),
        }
        let mut word = |_| match draw.below(20) {
            0 => Word::Gone(draw.below(6)),
            _ => Word::Heard(draw.below(6), ask(draw)),
        };
        let words = (0..3).map(&mut word).collect();
        Batch {
            at: Time::from_ms(*at),
            words,
        }
    }

    #[test]
    fn who_takes_over_from_what_was_written_down_answers_as_the_other_would() {
        let mut draw = Sequence::new(seed!(), 0);
        let (mut one, mut at) = (Kept::default(), 0);
        let mut other = one.clone();
        let mut newest = Time::ZERO;
        for _ in 0..400 {
            let batch = batch(&mut draw, &mut at);
            let (said, again) = (one.apply(&batch), other.apply(&batch));
            assert_eq!(said, again);
            assert!(one.time() >= newest, "time runs backwards");
            newest = one.time();
            let bytes = postcard::to_extend(&one, Vec::new()).unwrap();
            if draw.below(4) == 0 {
                other = postcard::from_bytes(&bytes).unwrap();
            }
            // Bit for bit: what compares as equal may be written differently.
            assert_eq!(postcard::to_extend(&other, Vec::new()).unwrap(), bytes);
        }
        let counts = one.service().counts();
        assert!(counts.accepted > 0 && counts.later > 0, "{counts:?}");
        // What is written down has what each tier knows.
        assert_eq!(other.service().tiers().count(), 3);
        assert!(one.service().tiers().eq(other.service().tiers()));
    }

    /// What writes were measured to take is known to all that were told the same, also to one that
    /// takes over from what was written down, and outlasts that a job announces itself again.
    #[test]
    fn what_was_measured_is_the_same_for_all_that_serve() {
        let tier = || Tier::new("files").unwrap();
        let joins = |nodes, mtbf_ms, write_ms| Ask::Join {
            job: JobName::new("job").unwrap(),
            tier: tier(),
            need: Need {
                nodes,
                mtbf_ms,
                write_ms,
            },
            since_ms: 0,
            writing_ms: None,
        };
        let join = |write_ms| joins(4, 100_000, write_ms);
        // Another lives there, which hardly ever writes: one that is alone is always accepted.
        let second = || Word::Heard(2, joins(1, 1_000_000_000_000, 1));
        let offers = |sequence| Ask::Offer {
            tier: tier(),
            sequence,
        };
        let heard = |at, words: Vec<Ask>| Batch {
            at: Time::from_secs(at),
            words: words
                .into_iter()
                .map(|ask| Word::Heard(1, ask))
                .chain([Word::Heard(2, Ask::Alive)])
                .collect(),
        };
        let mut first = heard(0, vec![join(2_000)]);
        first.words.push(second());
        let mut history = vec![first];
        for round in 0..5 {
            let at = 25 * (1 + 2 * round);
            history.push(heard(at, vec![Ask::Alive]));
            history.push(heard(at + 24, vec![offers(1)]));
            history.push(heard(at + 32, vec![Ask::Ended { tier: tier() }]));
        }
        let end = 25 * 11 + 10;
        history.push(Batch {
            at: Time::from_secs(end),
            words: vec![Word::Gone(1)],
        });
        let (mut one, mut other) = (Kept::default(), Kept::default());
        for batch in &history {
            assert_eq!(one.apply(batch), other.apply(batch));
            other =
                postcard::from_bytes(&postcard::to_extend(&other, Vec::new()).unwrap()).unwrap();
        }
        let fresh = |words| {
            let mut fresh = Kept::default();
            fresh.apply(&words);
            fresh
        };
        let words = || {
            let mut words = heard(end, vec![join(2_000)]);
            words.words.insert(0, second());
            words
        };
        let mut anew = fresh(words());
        assert_eq!(one.apply(&words()), other.apply(&words()));
        assert_eq!(one, other);
        // Its interval is that of writes of 8 s, not of the 2 s that it says.
        let after = |kept: &mut Kept| {
            let offer = heard(end + 1, vec![offers(2)]);
            match kept.apply(&offer).pop() {
                Some((1, Answer::Later { after_ms, .. })) => after_ms,
                answer => panic!("{answer:?}"),
            }
        };
        let (known, said) = (after(&mut one), after(&mut anew));
        assert_eq!(after(&mut other), known);
        assert!(known > said * 3 / 2, "{known} {said}");
    }

    #[test]
    fn a_moment_alone_ends_what_is_late_and_time_stands_still_between_leaders() {
        let mut kept = Kept::default();
        let mut draw = Sequence::new(seed!(), 0);
        let join = loop {
            match ask(&mut draw) {
                Ask::Join { need, .. } if need.nodes == 0 => {}
                join @ Ask::Join { .. } => break join,
                _ => {}
            }
        };
        let at = Time::from_secs(100);
        kept.apply(&Batch {
            at,
            words: vec![Word::Heard(1, join)],
        });
        // Another leads, and begins at an earlier moment.
        let words = Vec::new();
        kept.apply(&Batch {
            at: Time::ZERO,
            words,
        });
        assert_eq!((kept.time(), kept.service().jobs().count()), (at, 1));
        let silent = at + SILENT;
        assert!(kept.service().is_due(silent));
        kept.apply(&Batch {
            at: silent,
            words: Vec::new(),
        });
        assert!(!kept.service().is_due(silent));
        assert_eq!(kept.service().jobs().count(), 0);
    }
}
