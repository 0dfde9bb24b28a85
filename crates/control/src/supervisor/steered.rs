//! What the policy that decides by itself is told, and what is done of what it wants.

use std::collections::BTreeSet;

use crate::orders::{Order, Step};
use outlive_base::{Code, Entity, Error, Level, NodeId, Time, Version};
use outlive_planner::online::learned::Lost;

use super::{Action, Event, Phase, Said, Settings, Site, Storage, Supervisor, Verdict};
use crate::report::{PolicyEntry, PolicyLevel};
use crate::steering::Steering;
use crate::units::show_ms;

/// What an orderly end takes beside the command's own: the last words of the agents and files.
const ORDERLY_MS: u64 = 1_000;

/// A version that some nodes have captured.
#[derive(Debug)]
pub(super) struct Capturing {
    version: Version,
    nodes: BTreeSet<NodeId>,
    blocked_ns: u64,
}

/// The policy of a run that begins, if it decides by itself.
pub(super) fn begin(set: &Settings, now: Time) -> Option<Steering> {
    let levels: Vec<Level> = set.levels.iter().map(|setting| setting.level).collect();
    let wishes = set.auto.as_ref().filter(|_| !levels.is_empty())?;
    Some(Steering::new(&levels, set.nodes, wishes, now))
}

impl Storage {
    /// What is lost with a node whose next holder finds this.
    pub(super) const fn lost(self) -> Lost {
        match self {
            Storage::Keep => Lost::Memory,
            Storage::Empty => Lost::Storage,
        }
    }
}

impl Supervisor {
    /// What the report says of it.
    pub(super) fn policy_entry(&mut self, now: Time) -> PolicyEntry {
        match &mut self.steering {
            Some(steering) => steering.entry(now).0.clone(),
            None => given(&self.set),
        }
    }

    /// Carries out what the policy wants now.
    pub(super) fn steer(&mut self, now: Time) {
        let Some(steering) = &mut self.steering else {
            return;
        };
        if let Some(signal) = self.announced
            && steering.is_time_to_leave(now)
            && self.verdict.is_none()
        {
            self.end_command(now, Some(crate::ended::SIGTERM), self.set.kill_grace_ms);
            let status = crate::ended::Ended::Signal(signal).exit_status();
            return self.wind_down(now, Verdict::Interrupted(status));
        }
        let levels = steering.ask(now);
        let (entry, news) = steering.entry(now);
        if self.report.policy.as_ref() != Some(entry) {
            self.report.policy = Some(entry.clone());
        }
        let why = news.then(|| entry.why.clone());
        let said = steering.take_said(now);
        let silent = steering.take_silent();
        self.actions
            .extend(said.into_iter().map(Action::Coordinate));
        if let Some(learned) = steering.keep(now, false) {
            self.actions.push_back(Action::RecordLearned(learned));
        }
        if let Some(levels) = levels {
            self.order(self.set.coordinator, Order::CheckpointNow { levels });
        }
        if let Some(why) = why {
            self.tell(Event::Steered { why });
        }
        if silent {
            self.warn_uncoordinated("it does not answer");
        }
    }

    /// A batch system says that it will end the job: what was computed so far is to last.
    ///
    /// A version goes to all levels at once, for the length of the notice may not be known or not
    /// be kept to. Where it is known, the policy takes another one as late as is sure to be whole.
    pub(super) fn on_warned(&mut self, now: Time) {
        self.warned = self.is_alive();
        if let Some(steering) = &mut self.steering {
            steering.warned(now, None);
        }
        self.tell(Event::Warned);
        self.checkpoint_if_warned();
    }

    /// The machines will be taken away: as a warning, and the run ends itself before, so that its
    /// last version is whole and its files say so.
    pub(super) fn on_announced(&mut self, now: Time, signal: i32) {
        self.announced = Some(signal);
        self.warned = true;
        if let Some(steering) = &mut self.steering {
            let reserve = Time::from_ms(self.set.kill_grace_ms.saturating_add(ORDERLY_MS));
            steering.warned(now, Some(reserve));
        }
        let wishes = self.set.auto.as_ref();
        let notice_ms = wishes.and_then(|wishes| wishes.notice_ms).unwrap_or(0);
        self.tell(Event::Announced { signal, notice_ms });
        self.checkpoint_if_warned();
    }

    /// Asks for a checkpoint at all levels, once the ranks are there who can take it.
    pub(super) fn checkpoint_if_warned(&mut self) {
        let complete = matches!(self.phase, Phase::Running { complete: true, .. });
        if complete && std::mem::take(&mut self.warned) {
            let levels = self
                .set
                .levels
                .iter()
                .map(|setting| setting.level)
                .collect();
            self.order(self.set.coordinator, Order::CheckpointNow { levels });
        }
    }

    /// The coordinator of the shared storage is there, answers, or is gone.
    pub(super) fn on_coordinator(&mut self, now: Time, said: &Said) {
        let Some(steering) = &mut self.steering else {
            return;
        };
        match said {
            Said::Tiers(tiers) => steering.on_tiers(now, tiers),
            Said::Up => steering.served(now, &self.set.job, self.set.nodes),
            // One that did not answer, and does again.
            Said::Answer(_) if !steering.is_served() => {
                steering.served(now, &self.set.job, self.set.nodes);
            }
            Said::Answer(answer) => steering.answered(answer),
            Said::Down => {
                steering.not_served();
                if self.is_alive() {
                    self.warn_uncoordinated("the connection to it is gone");
                }
            }
        }
    }

    fn warn_uncoordinated(&mut self, reason: &str) {
        self.warn(Error::new(
            Code::AgentUnreachable,
            Entity::Job(self.set.job.to_string()),
            format!("no turns on shared storage from its coordinator: {reason}; the job goes on"),
            "start outlive coordinator --store again, if jobs shall take turns",
        ));
    }

    pub(super) fn note_offered(&mut self, now: Time, offered: Option<Version>) {
        if offered > self.newest_offered {
            self.newest_offered = offered;
            self.pace.step(now);
            self.came_forward();
            if let Some(steering) = &mut self.steering {
                steering.offered(now);
            }
        }
    }

    pub(super) fn steer_reopened(&mut self, restored: Option<Version>, from: Option<Level>) {
        self.capturing = None;
        if let Some(steering) = &mut self.steering {
            steering.reopened(restored, from);
        }
    }

    pub(super) fn steer_ready(&mut self, now: Time) {
        if let Some(steering) = &mut self.steering {
            steering.ready(now);
        }
    }

    pub(super) fn steer_lost(&mut self, now: Time, place: Site) {
        let Some(steering) = &mut self.steering else {
            return;
        };
        let lost = match place {
            Site::Rank(_) | Site::Command | Site::Hang | Site::Start => Lost::Process,
            // Of its storage its loss has told.
            Site::Node(..) => Lost::Memory,
        };
        steering.failed(now, lost);
    }

    pub(super) fn steer_ended(&mut self, now: Time) {
        let Some(steering) = &mut self.steering else {
            return;
        };
        steering.ended();
        if let Some(learned) = steering.keep(now, true) {
            self.actions.push_back(Action::RecordLearned(learned));
        }
        let said = steering.take_said(now);
        let entry = steering.entry(now).0.clone();
        self.report.policy = Some(entry);
        self.actions
            .extend(said.into_iter().map(Action::Coordinate));
    }

    pub(super) fn steer_step(&mut self, now: Time, node: NodeId, version: Version, step: &Step) {
        let Some(steering) = &mut self.steering else {
            return;
        };
        match step {
            Step::Armed => {}
            Step::Captured { blocked_ns, .. } => {
                if self
                    .capturing
                    .as_ref()
                    .is_none_or(|it| it.version < version)
                {
                    self.capturing = Some(Capturing {
                        version,
                        nodes: BTreeSet::new(),
                        blocked_ns: 0,
                    });
                }
                let Some(it) = self.capturing.as_mut().filter(|it| it.version == version) else {
                    return;
                };
                it.nodes.insert(node);
                it.blocked_ns = it.blocked_ns.max(*blocked_ns);
                if it.nodes.len() == self.set.nodes as usize {
                    self.all_captured(now);
                }
            }
            Step::Stable(level) => {
                if self.stable_here.is_known(version, *level) {
                    return;
                }
                // A node's word that it has captured was lost.
                if self
                    .capturing
                    .as_ref()
                    .is_some_and(|it| it.version == version)
                {
                    self.all_captured(now);
                }
                if let Some(steering) = &mut self.steering {
                    steering.stable(now, version, *level);
                }
            }
            Step::Aborted { level, .. } => {
                if level.is_none() {
                    self.capturing.take_if(|it| it.version == version);
                }
                steering.given_up(now, version, *level);
            }
        }
    }

    fn all_captured(&mut self, now: Time) {
        if let (Some(steering), Some(it)) = (&mut self.steering, self.capturing.take()) {
            steering.captured(now, it.version, it.blocked_ns as f64 / 1e9);
        }
    }
}

/// What the owner has given.
fn given(set: &Settings) -> PolicyEntry {
    let interval = set.policy.interval_ms;
    let every = set.policy.every;
    let mode = match (interval, every) {
        (Some(_), Some(_)) => "interval,every",
        (Some(_), None) => "interval",
        (None, _) => "every",
    };
    let time = interval.map(|ms| format!("every {}", show_ms(ms as f64)));
    let versions = every.map(|every| format!("at versions divisible by {every}"));
    let words: Vec<String> = time.into_iter().chain(versions).collect();
    let level = |setting: &crate::orders::LevelSetting| PolicyLevel {
        level: setting.level.name().to_owned(),
        seconds: interval
            .filter(|_| every.is_none())
            .map(|ms| ms as f64 / 1e3 * f64::from(setting.every)),
        ..PolicyLevel::default()
    };
    PolicyEntry {
        mode: mode.to_owned(),
        why: format!("{}, as given", words.join(" or ")),
        levels: set.levels.iter().map(level).collect(),
        ..PolicyEntry::default()
    }
}
