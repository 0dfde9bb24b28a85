//! A command that runs while ranks do not join: its launcher cannot reach a host, or the program
//! has not come to open the library, or never will.
//!
//! Nobody but the command knows which of these it is: it is told once, with what its processes are
//! doing, and what is done about it only if the owner has given the bound.
//!
//! Invariants: time counts as in [`super::hang`], from the command's start or the last rank that
//! joined; of the two no more than one is looked into at a time.

use outlive_base::{Code, Entity, Error, Time, count};

use super::{Action, CommandState, Event, NodeSlot, Phase, Site, Supervisor};
use crate::processes::{self, Process};
use crate::report::HangEntry;
use crate::units::show_ms;

/// What the command's processes do is being found out: the last entry of the report.
#[derive(Debug)]
pub(super) struct Look {
    since: Time,
    number: u32,
    /// Who was there when it began, in words.
    awaited: String,
    found: Option<Vec<Process>>,
}

impl Supervisor {
    /// True while the command runs, all else is well, and not all ranks have joined.
    pub(super) fn awaits_ranks(&self) -> bool {
        let complete = !matches!(
            self.phase,
            Phase::Running {
                complete: false,
                ..
            }
        );
        let gone = !self.left.is_empty() && self.slots.values().all(|slot| slot.ranks.is_empty());
        !complete
            && !gone
            && self.is_alive()
            && self.command == CommandState::Running
            && self.unexplained.is_empty()
            && self.slots.values().all(NodeSlot::speaks)
    }

    fn join_bound(&self) -> Time {
        Time::from_ms(self.set.hang.join_ms)
    }

    /// When it is to be told, or the answer about it is due.
    pub(super) fn next_joining(&self) -> Time {
        if let Some(look) = &self.look {
            return self.look_until(look);
        }
        let waits = self.awaits_ranks() && self.inquiry.is_none();
        let due = self.joining.due_by(self.join_bound());
        due.filter(|_| waits).unwrap_or(Time::NEVER)
    }

    fn look_until(&self, look: &Look) -> Time {
        look.since + Time::from_ms(self.set.hang.answer_ms)
    }

    /// Looks whether ranks have been awaited for too long, and whether all is known of that.
    pub(super) fn check_joining(&mut self, now: Time) {
        let free = self.look.is_none() && self.inquiry.is_none();
        let bound = self.join_bound();
        if free && self.awaits_ranks() && self.joining.over(bound) {
            self.look_at_command(now, bound);
        }
        let Some(look) = &self.look else { return };
        let over = now >= self.look_until(look) || !self.is_running();
        if look.found.is_some() || over {
            self.conclude_look(now);
        }
    }

    fn look_at_command(&mut self, now: Time, bound: Time) {
        let number = self.next_hang_number();
        self.report.hangs.push(HangEntry {
            number,
            file: self.hang_path(number),
            incarnation: self.last_incarnation,
            at_seconds: now.as_secs(),
            still_seconds: self.joining.still().as_secs(),
            bound_seconds: bound.as_secs(),
            joining: true,
            ..HangEntry::default()
        });
        self.look = Some(Look {
            since: now,
            number,
            awaited: self.joined_of(),
            found: None,
        });
        self.actions.push_back(Action::LookAtCommand {
            number,
            within_ms: self.set.hang.answer_ms / 2,
        });
    }

    /// What the command's processes do.
    pub(super) fn on_command_seen(&mut self, number: u32, found: Vec<Process>) {
        if let Some(look) = self.look.as_mut().filter(|look| look.number == number) {
            look.found.get_or_insert(found);
        }
    }

    fn conclude_look(&mut self, now: Time) {
        let may_act = self.is_alive() && self.is_running() && self.set.hang.join_given;
        let on = self.set.hang.on;
        let (Some(look), Some(entry)) = (self.look.take(), self.last_joining()) else {
            return;
        };
        let found = look.found.unwrap_or_default();
        entry.processes = processes::alike(&found);
        if entry.resumed_seconds.is_none() && may_act {
            entry.action = on;
        }
        let entry = entry.clone();
        let head = format!(
            "{} for {} (incarnation {}, bound: {})",
            look.awaited,
            show_ms(entry.still_seconds * 1e3),
            entry.incarnation,
            show_ms(entry.bound_seconds * 1e3)
        );
        let title = format!("job {}: {head}", self.set.job);
        self.actions.push_back(Action::WriteStacks {
            number: entry.number,
            text: processes::text(&title, &found),
        });
        let does = match entry.processes.is_empty() {
            true => "what the command's processes do is not known".to_owned(),
            false => processes::line(&entry.processes),
        };
        let file = &entry.file;
        self.warn(self.not_joined(
            format!("{head}: {does}; all stacks: {file}"),
            "a launcher that waits for a host: look whether it reaches all; a program that works \
             for long before outlive_open, or never calls it: nothing is wrong, and without it \
             nothing is saved; --join-timeout TIME is another bound, and with --on-hang restart \
             or kill the start is ended then",
        ));
        if let Some(seconds) = entry.resumed_seconds {
            return self.tell_joined(seconds);
        }
        let error = self.not_joined(
            format!("{head}; ended by --on-hang kill"),
            &format!("{file} says what the command's processes did"),
        );
        self.act_on_hang(now, Site::Start, head, &entry, error);
    }

    fn not_joined(&self, reason: String, remedy: &str) -> Error {
        let job = Entity::Job(self.set.job.to_string());
        Error::new(Code::NotJoined, job, reason, remedy)
    }

    /// Who is there, in words that "for so long" follows.
    fn joined_of(&self) -> String {
        let here: usize = self.slots.values().map(|slot| slot.ranks.len()).sum();
        match (here + self.left.len(), self.ranks_total) {
            (0, _) | (_, None) => "no rank has joined".to_owned(),
            (here, Some(ranks)) => {
                format!("{here} of {} joined, and no more", count(ranks, "rank"))
            }
        }
    }

    /// The last time that ranks were awaited for too long.
    fn last_joining(&mut self) -> Option<&mut HangEntry> {
        self.report.hangs.iter_mut().rfind(|entry| entry.joining)
    }

    /// A rank has joined that was not there.
    pub(super) fn one_more_joined(&mut self) {
        let Some(still) = self.joining.advanced() else {
            return;
        };
        let seconds = still.as_secs();
        if let Some(entry) = self.last_joining() {
            entry.resumed_seconds = Some(seconds);
        }
        // Else it is said after that it was awaited.
        if self.look.is_none() {
            self.tell_joined(seconds);
        }
    }

    fn tell_joined(&mut self, seconds: f64) {
        let what = format!("a rank has joined after {}", show_ms(seconds * 1e3));
        self.tell(Event::Resumed { what });
    }

    /// What was told of ranks that are awaited, for who watches.
    pub(super) fn awaited_long(&self) -> Option<String> {
        if !self.joining.is_told() {
            return None;
        }
        let still = show_ms(self.joining.still().as_ms());
        let entry = self.report.hangs.iter().rfind(|entry| entry.joining)?;
        let name = entry.file.rsplit('/').next().unwrap_or_default();
        Some(format!("none for {still}, see {name}"))
    }
}
