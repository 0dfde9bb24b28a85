//! Copies at `shared` that are made of containers in node storage, one after the other.
//!
//! Invariants: one copy is on its way at a time; what nobody wants any more is stopped; one that
//! comes no further for as long as a version may take is given up, for the storage that hangs says
//! nothing; an opening ends what an incarnation before it had begun.

use outlive_base::{Code, ContainerId, Entity, Error, Result, Time};
use outlive_ledger::Part;

use super::Planted;
use super::copies::{Brake, OnTheWay, Progress, Transferring};
use super::core::{Core, News};
use super::service::{Service, Silent};
use super::shell::{Ask, Done, Shell};

/// How often it is looked how far a copy is, of the time after which it is given up.
const LOOKS: u64 = 4;

/// The copy that is on its way.
struct Going {
    part: Part,
    id: ContainerId,
    brake: Brake,
    began: Time,
    progress: Progress,
    /// How far it was, and since when it is no further.
    seen: (u64, Time),
    /// Nobody waits for it any more; it has not ended.
    given_up: bool,
}

/// What is on its way, and what comes next.
pub struct Transfer {
    waiting: Vec<Part>,
    going: Option<Going>,
}

impl Service for Transfer {
    type Word = Silent;

    fn new(_: Time) -> Transfer {
        Transfer {
            waiting: Vec::new(),
            going: None,
        }
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        match news {
            News::OwnWritten { part } => {
                self.waiting.push(part.clone());
                self.begin_next(core);
            }
            News::Opening => {
                self.waiting.clear();
                self.stop();
            }
            News::Aborted(_) | News::Stable { .. } => self.stop_unwanted(core),
            _ => return,
        }
        self.tell(core);
    }

    fn on_done<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        done: Done<S::Slab>,
    ) -> Option<Done<S::Slab>> {
        match done {
            Done::Transferred { id, result } => {
                self.on_transferred(core, id, result);
                self.tell(core);
                None
            }
            done => Some(done),
        }
    }

    fn on_time<S: Shell>(&mut self, core: &mut Core<S>) {
        let (now, bound) = (core.now(), patience(core));
        let Some(going) = self.going.as_mut().filter(|going| !going.given_up) else {
            return;
        };
        let bytes = going.progress.bytes();
        if bytes != going.seen.0 {
            going.seen = (bytes, now);
        } else if now.since(going.seen.1) >= bound {
            going.given_up = true;
            going.brake.stop();
            let id = going.id;
            core.transferred(
                (id.incarnation, id.version),
                Err(too_late(id, bytes, bound)),
            );
            self.tell(core);
        }
    }

    fn deadline<S: Shell>(&self, core: &Core<S>) -> Option<Time> {
        let going = self.going.as_ref().filter(|going| !going.given_up)?;
        let next = core.now() + Time(patience(core).0 / LOOKS).max(Time::from_ms(1));
        Some(next.min(going.seen.1 + patience(core)))
    }
}

/// How long a copy may come no further.
fn patience<S: Shell>(core: &Core<S>) -> Time {
    let bounds = core.config().map(|config| config.bounds);
    Time::from_ms(bounds.unwrap_or_default().commit_ms)
}

fn too_late(id: ContainerId, bytes: u64, bound: Time) -> Error {
    Error::new(
        Code::Io,
        Entity::Version(id.version.0),
        format!(
            "shared storage has taken nothing of its copy for {:.0} s, after {bytes} bytes",
            bound.as_secs()
        ),
        "look at the shared storage; raise --commit-timeout if it is only slow",
    )
}

impl Transfer {
    /// Notes what is on its way, for whoever asks how the node is.
    fn tell<S: Shell>(&self, core: &mut Core<S>) {
        let going = self.going.iter().filter(|going| !going.given_up);
        let going = going.map(|it| (&it.part, Some((it.began, it.progress.clone()))));
        let waiting = self.waiting.iter().map(|part| (part, None));
        let all = going.chain(waiting).map(|(part, going)| OnTheWay {
            id: part.id,
            length: part.length,
            going,
        });
        core.note_transfers(all.collect());
    }

    fn stop(&mut self) {
        if let Some(going) = &mut self.going {
            going.given_up = true;
            going.brake.stop();
        }
    }

    /// What has ended, or is older than what shared storage has by now. Others may still wait for
    /// this node's word on it.
    fn stop_unwanted<S: Shell>(&mut self, core: &mut Core<S>) {
        let open = core.incarnation();
        let unwanted = |core: &Core<S>, id: ContainerId| {
            id.incarnation == open && !core.wants_transfer(id.version)
        };
        let waiting = self.waiting.iter().map(|part| part.id);
        let going = self.going.iter().filter(|going| !going.given_up);
        let all = waiting.chain(going.map(|going| going.id));
        let gone: Vec<ContainerId> = all.filter(|id| unwanted(core, *id)).collect();
        for id in gone {
            self.waiting.retain(|part| part.id != id);
            if self.going.as_ref().is_some_and(|going| going.id == id) {
                self.stop();
            }
            core.end_transfer(id.version);
        }
    }

    fn begin_next<S: Shell>(&mut self, core: &mut Core<S>) {
        self.stop_unwanted(core);
        if self.going.is_some() {
            return;
        }
        // The oldest: once a newer one is there it would be of no use.
        let oldest = self.waiting.iter().map(|part| part.id).min();
        let at = self.waiting.iter().position(|part| Some(part.id) == oldest);
        let Some(part) = at.map(|at| self.waiting.swap_remove(at)) else {
            return;
        };
        let (brake, progress) = (Brake::default(), Progress::default());
        self.going = Some(Going {
            part: part.clone(),
            id: part.id,
            brake: brake.clone(),
            began: core.now(),
            progress: progress.clone(),
            seen: (0, core.now()),
            given_up: false,
        });
        let bytes_per_s = core.shared_rate();
        core.begin(Ask::Transfer(Box::new(Transferring {
            part,
            bytes_per_s,
            // What it says then says more than that it took too long.
            patience: Time(patience(core).0 / 4 * 3),
            brake,
            progress,
        })));
    }

    fn on_transferred<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        id: ContainerId,
        result: Result<Option<Part>>,
    ) {
        let going = self.going.take_if(|going| going.id == id);
        let told = going.as_ref().is_some_and(|going| going.given_up);
        match result {
            Err(_) if core.has_planted(Planted::TrustTransfer) => {
                let part = going.map(|going| going.part);
                part.into_iter()
                    .for_each(|part| core.transferred((id.incarnation, id.version), Ok(part)));
            }
            // Also if it came late: what is there is there.
            Ok(Some(part)) => core.transferred((id.incarnation, id.version), Ok(part)),
            Err(error) if !told => core.transferred((id.incarnation, id.version), Err(error)),
            Ok(None) | Err(_) => {}
        }
        self.begin_next(core);
    }
}
