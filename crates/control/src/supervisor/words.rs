//! What is said of trouble that stops nothing, and how often.
//!
//! Invariants:
//! - The same is told once and counted afterwards ([`Told`]); no kind of warning takes
//!   the room of another.
//! - A version is told of as given up at most once for each level; those after it, for
//!   the same reason, are counted until the level keeps a version again.
//! - What a node's loss, or that of its agent, explains (a broken connection, a copy that did
//!   not arrive) waits for [`HOLD_MS`]: a failure that is found meanwhile says it all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::told::{Said, Told, is_of_connection};
use outlive_base::{Code, Entity, Error, Level, NodeId, Time, Version};

use super::{Event, NodeSlotState, Phase, Site, Supervisor};

/// How long a word waits that the loss of a node would explain.
const HOLD_MS: u64 = 1_000;
/// How long the end of a rank waits, in which that of its node is seen.
const FAILURE_HOLD_MS: u64 = 200;
/// Words that wait; more are told at once.
const HELD_MAX: usize = 256;
/// Versions of which is remembered that they were given up.
const GIVEN_UP_MAX: usize = 256;

/// What was said, and what waits to be.
#[derive(Debug, Default)]
pub(super) struct Words {
    told: Told,
    held: Vec<(Time, Held)>,
    /// What a lost node explained, newest last: a status repeats it.
    explained: VecDeque<(NodeId, Error)>,
    /// A rank's end, seen at that time, which may turn out to be that of its node.
    pub(super) unsaid_failure: Option<(Time, Site, Event)>,
    /// That its processes are gone, which is told after it.
    unsaid_end: Option<Event>,
    /// Versions that were given up in this incarnation, for each level.
    given_up: BTreeSet<(Version, Option<Level>)>,
    /// Since a level kept a version last.
    streaks: BTreeMap<Option<Level>, Streak>,
}

#[derive(Debug)]
enum Held {
    Warning(Option<NodeId>, Error),
    GivenUp(Version, Option<Level>, Error),
}

/// Versions in a row that a level did not keep.
#[derive(Debug)]
struct Streak {
    last: Version,
    versions: u64,
}

impl Supervisor {
    /// A warning of the launcher's own.
    pub(super) fn warn(&mut self, error: Error) {
        self.warn_of(None, error);
    }

    /// A warning of a node's agent, or of the launcher.
    pub(super) fn warn_of(&mut self, source: Option<NodeId>, error: Error) {
        match self.words.told.add(source, error.clone()) {
            Said::New => {
                self.report.warnings.push((&error).into());
                self.tell(Event::Warning(error));
            }
            Said::Grown(first, more) => self.tell(Event::More { error: first, more }),
            Said::Again => tracing::info!(%error, "not told again"),
        }
        let entries = self.words.told.entries();
        for (entry, told) in self.report.warnings.iter_mut().zip(entries) {
            entry.more = told.more;
        }
    }

    pub(super) fn was_told(&self, source: Option<NodeId>, error: &Error) -> bool {
        self.words.told.knows(source, error)
    }

    /// True if this, or enough like it, was told or waits to be.
    pub(super) fn is_known(&self, node: NodeId, error: &Error) -> bool {
        let waits = |(_, held): &(Time, Held)| matches!(held, Held::Warning(_, e) if e == error);
        self.was_told(Some(node), error)
            || self.words.held.iter().any(waits)
            || self.words.was_explained(node, error)
            || self.is_explained(error)
    }

    /// Somebody who is no agent of ours, or an agent that cannot be reached.
    pub(super) fn on_refused(&mut self, error: Error) {
        // Whether a node is silent is judged by its heartbeats alone.
        match is_of_connection(&error) && matches!(error.entity(), Entity::Node(_)) {
            true => tracing::info!(%error, "no connection"),
            false => self.warn(error),
        }
    }

    /// An agent warns. What a lost node would explain waits.
    pub(super) fn on_warning(&mut self, now: Time, node: NodeId, error: Error) {
        if self.is_explained(&error) || self.is_of_new_agent(now, &error) {
            tracing::info!(%error, "a lost node or agent explains it");
            return self.words.keep_explained(Some(node), error);
        }
        if is_of_connection(&error) && matches!(error.entity(), Entity::Node(_)) {
            return self.hold(now, Held::Warning(Some(node), error));
        }
        self.warn_of(Some(node), error);
    }

    /// True for what the loss of a node, found already, or the end explains.
    fn is_explained(&self, error: &Error) -> bool {
        let away = match error.entity() {
            Entity::Node(node) => {
                let slot = self.slots.get(&NodeId(*node));
                slot.is_none_or(|slot| slot.state != NodeSlotState::Up || slot.suspected.is_some())
            }
            _ => false,
        };
        let ending = matches!(self.phase, Phase::Finishing { .. } | Phase::Stopping { .. });
        is_of_connection(error) && (away || ending || !self.open.is_empty())
    }

    /// True for a connection with an agent that was started anew a moment ago.
    fn is_of_new_agent(&self, now: Time, error: &Error) -> bool {
        let Entity::Node(node) = error.entity() else {
            return false;
        };
        let anew = self.slots.get(&NodeId(*node)).and_then(|slot| slot.anew);
        is_of_connection(error) && anew.is_some_and(|at| now.since(at) < Time::from_ms(HOLD_MS))
    }

    /// An agent was started anew: that explains what waits about connections with it, and about
    /// versions.
    pub(super) fn drop_explained_by(&mut self, node: NodeId) {
        let words = &mut self.words;
        for (due, held) in std::mem::take(&mut words.held) {
            match held {
                Held::GivenUp(_, level, _) => drop(words.streaks.remove(&level)),
                Held::Warning(source, error) if *error.entity() == Entity::Node(node.0) => {
                    words.keep_explained(source, error);
                }
                held => words.held.push((due, held)),
            }
        }
    }

    /// A version will not be kept, at a level or at all.
    pub(super) fn on_given_up(
        &mut self,
        now: Time,
        version: Version,
        level: Option<Level>,
        error: Error,
    ) {
        let unused = |level: Level| self.set.levels.iter().all(|set| set.level != level);
        if level.is_some_and(unused) || !self.words.given_up.insert((version, level)) {
            return;
        }
        if self.words.given_up.len() > GIVEN_UP_MAX {
            self.words.given_up.pop_first();
        }
        self.report.checkpoints.aborted += 1;
        // The failure itself is told by who finds it, and explains what was under way.
        if matches!(error.code(), Code::RankLost | Code::NodeLost) || !self.open.is_empty() {
            return;
        }
        if let Some(streak) = self.words.streaks.get_mut(&level) {
            (streak.last, streak.versions) = (version, streak.versions + 1);
            return;
        }
        self.words.streaks.insert(
            level,
            Streak {
                last: version,
                versions: 1,
            },
        );
        self.hold(now, Held::GivenUp(version, level, error));
    }

    /// True if this version was given up at this level.
    pub(super) fn was_given_up(&self, version: Version, level: Level) -> bool {
        self.words.given_up.contains(&(version, Some(level)))
    }

    /// A level keeps versions again.
    pub(super) fn kept_again(&mut self, version: Version, level: Option<Level>) {
        // An older version that is late says nothing of those given up since.
        let after = |streak: &Streak| streak.last < version;
        if !self.words.streaks.get(&level).is_some_and(after) {
            return;
        }
        let Some(streak) = self.words.streaks.remove(&level) else {
            return;
        };
        let of_level = |held: &Held| matches!(held, Held::GivenUp(_, at, _) if *at == level);
        self.speak_if(|_, held| of_level(held));
        if streak.versions > 1 {
            self.tell(Event::KeptAgain {
                version,
                level,
                given_up: streak.versions,
            });
        }
    }

    fn hold(&mut self, now: Time, held: Held) {
        self.words.held.push((now + Time::from_ms(HOLD_MS), held));
        if self.words.held.len() > HELD_MAX {
            self.speak_if(|_, _| true);
        }
    }

    /// When the next word is due.
    pub(super) fn next_word(&self) -> Time {
        let failure = self.words.unsaid_failure.as_ref();
        let failure = failure.map(|(at, ..)| *at + Time::from_ms(FAILURE_HOLD_MS));
        let due = self.words.held.iter().map(|(due, _)| *due);
        due.chain(failure).min().unwrap_or(Time::NEVER)
    }

    /// Tells of a rank's end that has waited long enough.
    pub(super) fn say_failure(&mut self, now: Time) {
        let hold = Time::from_ms(FAILURE_HOLD_MS);
        let due = |(at, ..): &mut (Time, Site, Event)| now.since(*at) >= hold;
        if let Some((.., event)) = self.words.unsaid_failure.take_if(due) {
            self.actions.push_back(super::Action::Tell(event));
            self.say_end();
        }
    }

    /// Tells that what failed is gone, if that waited for the failure to be told.
    pub(super) fn say_end(&mut self) {
        if self.words.unsaid_failure.is_none()
            && let Some(event) = self.words.unsaid_end.take()
        {
            self.actions.push_back(super::Action::Tell(event));
        }
    }

    /// True if this waits with the failure that it follows.
    pub(super) fn waits(&mut self, event: &Event) -> bool {
        let waits = matches!(event, Event::Cleared { .. }) && self.words.unsaid_failure.is_some();
        if waits {
            self.words.unsaid_end = Some(event.clone());
        }
        waits
    }

    /// What follows a failure is not told before it.
    pub(super) fn speak_before(&mut self, event: &Event) {
        let follows = matches!(
            event,
            Event::BackOff { .. } | Event::Opened { .. } | Event::Finishing | Event::Fatal(_)
        );
        if follows {
            self.say_failure(Time::NEVER);
        }
    }

    /// Says what has waited long enough.
    pub(super) fn speak(&mut self, now: Time) {
        self.say_failure(now);
        self.speak_if(|due, _| due <= now);
    }

    fn speak_if(&mut self, which: impl Fn(Time, &Held) -> bool) {
        let which = |held: &mut (Time, Held)| which(held.0, &held.1);
        let due: Vec<_> = self.words.held.extract_if(.., which).collect();
        for (_, held) in due {
            match held {
                Held::Warning(source, error) if self.is_explained(&error) => {
                    self.words.keep_explained(source, error);
                }
                Held::Warning(source, error) => self.warn_of(source, error),
                Held::GivenUp(version, level, error) => self.tell(Event::Aborted {
                    version,
                    level,
                    error,
                }),
            }
        }
    }

    /// A failure was found: it explains what waits about connections and versions.
    pub(super) fn drop_explained(&mut self) {
        let words = &mut self.words;
        for (_, held) in std::mem::take(&mut words.held) {
            match held {
                Held::GivenUp(_, level, _) => drop(words.streaks.remove(&level)),
                Held::Warning(source, error) => words.keep_explained(source, error),
            }
        }
    }

    /// Another incarnation counts its versions anew.
    pub(super) fn forget_given_up(&mut self) {
        self.words.given_up.clear();
    }

    /// The end: what waits, and what was counted since it was told last.
    pub(super) fn last_words(&mut self) {
        self.say_failure(Time::NEVER);
        self.speak_if(|_, _| true);
        for (error, more) in self.words.told.untold() {
            self.tell(Event::More { error, more });
        }
        for (level, streak) in std::mem::take(&mut self.words.streaks) {
            if streak.versions > 1 {
                self.tell(Event::NotKept {
                    level,
                    versions: streak.versions,
                    last: streak.last,
                });
            }
        }
    }
}

impl Words {
    fn keep_explained(&mut self, source: Option<NodeId>, error: Error) {
        let Some(source) = source.filter(|source| !self.was_explained(*source, &error)) else {
            return;
        };
        if self.explained.len() == HELD_MAX {
            self.explained.pop_front();
        }
        self.explained.push_back((source, error));
    }

    fn was_explained(&self, source: NodeId, error: &Error) -> bool {
        self.explained
            .iter()
            .any(|(node, known)| *node == source && known == error)
    }
}
