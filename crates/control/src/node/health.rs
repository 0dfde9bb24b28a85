//! How the machine under this node is: its sensors are read now and then, what they say is judged,
//! kept for whoever asks ([`Core::health`]), and told to the launcher when it changes.
//!
//! Invariants: one reading at a time, however long it takes; nothing waits for it; a reading that
//! does not come back makes the node's health unknown, and never well.

use outlive_base::Time;

use super::core::{Core, News};
use super::service::{Service, Silent};
use super::shell::{Ask, Done, Shell};
use crate::health::{CHANGES_MAX, Judge, NodeHealth, Sample};
use crate::orders::Notice;

/// The first reading comes so long after the beginning, in which there is enough to do.
const FIRST_AFTER: Time = Time::from_secs(1);
/// A reading that has not come back after so many intervals hangs.
const HANGS_AFTER: u64 = 3;

/// What is remembered.
pub struct Health {
    /// Made with the first reading, when the settings are known.
    judge: Option<Judge>,
    /// When sensors are read next.
    due: Time,
    /// When the reading was begun that has not come back.
    asked: Option<Time>,
}

impl Service for Health {
    type Word = Silent;

    fn new(now: Time) -> Health {
        Health {
            judge: None,
            due: now + FIRST_AFTER,
            asked: None,
        }
    }

    /// A node looks around often enough, so that nobody is woken for sensors.
    fn on_look<S: Shell>(&mut self, core: &mut Core<S>) {
        let (now, interval) = (core.now(), Time::from_ms(core.spec().health.interval_ms));
        if interval == Time::ZERO || core.is_finishing() {
            return;
        }
        match self.asked {
            Some(asked) => {
                let since = now.since(asked);
                if since >= Time(interval.0.saturating_mul(HANGS_AFTER)) {
                    let seconds = since.as_secs();
                    let reason = format!("the sensors have not answered for {seconds:.0} s");
                    publish(core, NodeHealth::unknown(reason));
                }
            }
            None if now >= self.due && core.may_serve() => {
                self.asked = Some(now);
                self.due = now + interval;
                core.begin(Ask::Health);
            }
            None => {}
        }
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        if matches!(news, News::Serving) {
            self.on_look(core);
        }
    }

    fn on_done<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        done: Done<S::Slab>,
    ) -> Option<Done<S::Slab>> {
        let Done::Health(samples) = done else {
            return Some(done);
        };
        self.asked = None;
        self.take(core, &samples);
        None
    }
}

impl Health {
    fn take<S: Shell>(&mut self, core: &mut Core<S>, samples: &[Sample]) {
        let limits = &core.spec().health.limits;
        let judge = self.judge.get_or_insert_with(|| Judge::new(limits.clone()));
        let (report, mut changes) = judge.judge(core.now(), samples);
        changes.sort_by_key(|change| core::cmp::Reverse(change.now.verdict));
        changes.truncate(CHANGES_MAX);
        if !changes.is_empty() {
            core.tell(&Notice::Health(changes));
        }
        publish(core, report.summary());
    }
}

/// Keeps it for whoever asks, and lets services hear if it is another than before.
fn publish<S: Shell>(core: &mut Core<S>, health: NodeHealth) {
    let before = core.health().verdict;
    let changed = health.verdict != before;
    core.set_health(health);
    if changed {
        core.health_changed();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Input;
    use super::super::still::{Still, alone};
    use super::*;
    use crate::health::{Sensor, Verdict};
    use crate::node::Node;
    use crate::orders::Order;

    const INTERVAL: Time = Time::from_secs(10);

    fn later(node: &mut Node<Still>, by: Time) {
        let now = node.core.now() + by;
        node.core.at(now, false);
        node.look_around();
        node.carry_out();
    }

    fn asked(node: &mut Node<Still>) -> usize {
        let asked = node.core.shell().asked.iter();
        asked.filter(|ask| matches!(ask, Ask::Health)).count()
    }

    fn answer(node: &mut Node<Still>, uncorrected: f64) {
        let samples = vec![
            Sample::of(Sensor::EccUncorrected, "mc0", uncorrected),
            Sample::of(Sensor::MemoryAvailable, "", 50.0),
        ];
        node.on(node.core.now(), Input::Done(Done::Health(samples)));
    }

    fn status(node: &mut Node<Still>) -> NodeHealth {
        node.on(node.core.now(), Input::Order(Order::Status));
        let mut told = node.core.shell().told.iter().rev();
        let status = told.find_map(|notice| match notice {
            Notice::Status(status) => Some(NodeHealth::clone(&status.health)),
            _ => None,
        });
        status.unwrap()
    }

    fn changes(node: &mut Node<Still>) -> Vec<(Verdict, Verdict)> {
        let told = node.core.shell().told.iter();
        let each = told.filter_map(|notice| match notice {
            Notice::Health(changes) => Some(changes),
            _ => None,
        });
        each.flatten()
            .map(|it| (it.before, it.now.verdict))
            .collect()
    }

    #[test]
    fn sensors_are_read_each_interval_and_a_change_is_told_once() {
        let mut node = alone(0);
        later(&mut node, Time::ZERO);
        assert_eq!(
            (asked(&mut node), status(&mut node).verdict),
            (0, Verdict::Unknown)
        );
        later(&mut node, FIRST_AFTER);
        assert_eq!(asked(&mut node), 1);
        answer(&mut node, 0.0);
        later(&mut node, Time::from_secs(3));
        let health = status(&mut node);
        assert_eq!(
            (health.verdict, health.read, health.age_ms),
            (Verdict::Ok, 2, 3_000)
        );
        assert!(changes(&mut node).is_empty());
        for reading in 2..8 {
            later(&mut node, INTERVAL);
            assert_eq!(asked(&mut node), reading);
            answer(&mut node, 1.0);
            assert_eq!(status(&mut node).verdict, Verdict::Failing);
        }
        assert_eq!(
            changes(&mut node),
            [(Verdict::Ok, Verdict::Failing)],
            "once"
        );
        assert_eq!(status(&mut node).findings[0].source, "mc0");
    }

    #[test]
    fn a_reading_that_hangs_is_not_repeated_and_makes_health_unknown() {
        let mut node = alone(0);
        later(&mut node, FIRST_AFTER);
        answer(&mut node, 0.0);
        later(&mut node, INTERVAL);
        later(&mut node, INTERVAL + INTERVAL);
        assert_eq!(status(&mut node).verdict, Verdict::Ok, "not yet");
        for _ in 0..50 {
            later(&mut node, INTERVAL);
        }
        assert_eq!(asked(&mut node), 2);
        let health = status(&mut node);
        assert_eq!(health.verdict, Verdict::Unknown);
        assert!(health.reason.unwrap().contains("not answered"));
        // It comes back after all.
        answer(&mut node, 0.0);
        assert_eq!(status(&mut node).verdict, Verdict::Ok);
        later(&mut node, INTERVAL);
        assert_eq!(asked(&mut node), 3);
    }

    #[test]
    fn who_wants_no_readings_has_none() {
        let mut node = alone(0);
        node.core.set_health_interval(0);
        for _ in 0..10 {
            later(&mut node, INTERVAL);
        }
        assert_eq!(asked(&mut node), 0);
    }
}
