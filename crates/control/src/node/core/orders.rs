//! What the launcher orders, what peers say, and carrying out what the machines
//! want.

use std::sync::Arc;

use outlive_base::level::StoreKind;
use outlive_base::machine::{Cx, Machine};
use outlive_base::{Code, Entity, Error, NodeId, Result, Time};
use outlive_ledger::Record;
use outlive_protocols::commit::Why;
use outlive_protocols::commit::{self, Commit};

use super::contents::short;
use super::{Core, News};
use crate::node::machines::{Driver, Effect};
use crate::node::shell::{Ask, DecisionKey, Done, PeerMessage, Shell};
use crate::orders::{Fault, JobConfig, Notice, Order};

impl<S: Shell> Core<S> {
    /// The launcher orders something that is no service's.
    pub(in crate::node) fn on_order(&mut self, order: Order) {
        match order {
            Order::Configure(config) => self.configure(config),
            Order::Members { revision, changed } => {
                if let Some(config) = &self.config {
                    let config = config.with(revision, &changed);
                    self.configure(config);
                }
            }
            Order::Open {
                incarnation,
                replaced,
                fenced,
                fresh,
                history,
            } => self.open(incarnation, replaced, (fenced, fresh), history),
            Order::Ranks { incarnation, ranks } => {
                if incarnation == self.open.incarnation() {
                    self.open.note_ranks(ranks);
                    self.capture_nothing();
                }
            }
            Order::EndRanks => self.end_ranks(),
            Order::Inject { id, fault } => self.inject(id, fault),
            // Of services.
            Order::InjectDone { .. }
            | Order::Silent { .. }
            | Order::Status
            | Order::Stacks { .. }
            | Order::CheckpointNow { .. }
            | Order::Finish { .. } => {}
        }
    }

    fn configure(&mut self, config: JobConfig) {
        let mut joined = Vec::new();
        for member in config.members.iter() {
            if member.node != self.me {
                let known = self.config.as_ref();
                let known = known.and_then(|known| known.member(member.node));
                if known != Some(member) {
                    self.shell.meet(member, known);
                    self.leaving.forget(member.node);
                    joined.push(member.node);
                }
            }
        }
        let first = self.commit.is_none();
        self.contents
            .set_job(config.members.iter().map(|member| member.node).collect(), 0);
        self.config = Some(config);
        for level in self
            .all_levels()
            .iter()
            .filter(|level| level.members().is_some())
        {
            match self.groups_at(level) {
                Ok(groups) => self.contents.set_groups(level, groups),
                Err(error) => self.warn(error),
            }
        }
        if first && let Err(error) = self.start_commit() {
            return self.warn(error);
        }
        self.news(News::Configured { joined });
    }

    fn start_commit(&mut self) -> Result<()> {
        let Some(config) = &self.config else {
            return Ok(());
        };
        let bounds = config.bounds;
        let nodes = config.members.len() as u32;
        let levels = self.all_levels();
        let commit = commit::Config {
            nodes,
            coordinator: self.spec.coordinator.0,
            levels,
            domains: config.members.iter().map(|member| member.domain).collect(),
            arm_timeout: Time::from_ms(bounds.arm_ms),
            commit_timeout: Time::from_ms(bounds.commit_ms),
            recovery_timeout: Time::from_ms(bounds.recovery_ms),
            background: self.background(),
            stride: match (config.policy.every, config.policy.interval_ms) {
                (Some(every), None) => every.max(1),
                _ => 1,
            },
            ..self.base.clone()
        };
        let records = self.found.take()?;
        for record in &records {
            self.contents.learn(record);
        }
        let log: Vec<commit::Record> = records.iter().filter_map(short).collect();
        let (now, me) = (self.now, self.me.0);
        self.commit = Some(Driver::recover(commit, me, self.spec.job_hash, now, log));
        if self.found.is_shared_unseen() {
            self.command(commit::Command::Doubt);
        }
        // A first look: an agent that was started anew asks to rejoin.
        self.commit_input(|_, _| {});
        Ok(())
    }

    fn end_ranks(&mut self) {
        self.kill_ranks();
        self.tell(&Notice::RanksEnded);
    }

    /// Ends every connected rank.
    pub fn kill_ranks(&mut self) {
        let links = self.ranks.iter().filter_map(|entry| entry.link);
        for pid in links.map(|link| link.pid).collect::<Vec<_>>() {
            self.shell.kill(pid);
        }
    }

    // ---- peers ----

    /// The commit machine of another node says something.
    pub(in crate::node) fn on_commit_message(
        &mut self,
        peer: NodeId,
        msg: commit::Msg,
        records: &[Arc<[u8]>],
        keys: (&[DecisionKey], &[DecisionKey]),
    ) {
        tracing::trace!(from = peer.0, ?msg, "message");
        for record in self.shell.read_records(records, self.spec.job_hash) {
            self.contents.learn(&record);
        }
        if self.takes(peer, &msg.kind, keys) {
            self.commit_input(|machine, cx| machine.on_message(cx, peer.0, msg, None));
        }
        self.news(News::Heard(peer));
    }

    /// A peer has not what was left out for it.
    pub(in crate::node) fn on_lacks(&mut self, peer: NodeId) {
        self.leaving.forget(peer);
        self.news(News::Heard(peer));
    }

    /// There is a new connection with the launcher or a peer.
    pub(in crate::node) fn on_up(&mut self, node: NodeId) {
        if node == NodeId::LAUNCHER {
            // What was under way on the last connection may be lost.
            return self.introduce();
        }
        self.news(News::Heard(node));
    }

    fn commit_input(&mut self, input: impl FnOnce(&mut Commit, &Cx<'_, Commit>)) {
        if let Some(driver) = &mut self.commit {
            driver.input(self.now, &mut self.turn.wishes, input);
        }
    }

    /// Gives a command to the commit machine.
    pub(in crate::node) fn command(&mut self, command: commit::Command) {
        self.commit_input(|machine, cx| machine.on_command(cx, command));
    }

    /// Tells the commit machine of the time, if it waits for that.
    pub(in crate::node) fn on_time(&mut self) {
        if self.deadline().is_some_and(|at| at <= self.now) {
            self.commit_input(|machine, cx| machine.on_timeout(cx));
        }
    }

    /// When the commit machine is to be told of the time.
    pub(in crate::node) fn deadline(&self) -> Option<Time> {
        self.commit.as_ref()?.deadline(self.now)
    }

    // ---- what the machines want ----

    /// What was done without the shell, or carries out the next wish of the commit machine;
    /// `None`: there is no other.
    pub(in crate::node) fn next(&mut self) -> Option<Option<Done<S::Slab>>> {
        if let Some(done) = self.turn.next_done() {
            return Some(Some(done));
        }
        let effect = self.turn.wishes.pop_front()?;
        self.carry_out_commit(effect);
        Some(None)
    }

    fn carry_out_commit(&mut self, effect: Effect<commit::Commit>) {
        match effect {
            Effect::Send(to, msg) => self.send_commit(to, msg),
            Effect::Persist(op, record) => self.persist(op, &record),
            Effect::Event(event) => self.on_commit_event(event),
        }
    }

    fn send_commit(&mut self, to: u32, msg: commit::Msg) {
        tracing::trace!(to, ?msg, "send");
        match msg.kind {
            commit::MsgKind::Commit { .. } => self.fail_point("commit:send"),
            commit::MsgKind::Prepared { .. } => self.fail_point("prepared:send"),
            commit::MsgKind::Stable { .. } => self.fail_point("stable:send"),
            _ => {}
        }
        if to == self.me.0 {
            return self.commit_input(|machine, cx| machine.on_message(cx, to, msg, None));
        }
        let open = msg.ballot.incarnation;
        let job = self.spec.job_hash;
        let by = (open, msg.ballot);
        let named = self.named(NodeId(to), &msg.kind);
        let known = self.leaving.of(NodeId(to));
        let (records, left_out) = self
            .contents
            .attachments(&msg.kind, (self.me, known), by, job);
        let message = PeerMessage::Commit {
            msg,
            records,
            named,
            left_out,
        };
        self.shell.send(NodeId(to), &message);
    }

    pub(super) fn persist(&mut self, op: outlive_base::machine::Op, short: &commit::Record) {
        match short {
            commit::Record::Commit { .. } => self.fail_point("commit:persist"),
            commit::Record::Prepared { .. } => self.fail_point("prepared:persist"),
            _ => {}
        }
        // An agent that was started anew knows it from the control blocks, before a rank says
        // it again.
        self.contents.know_ranks(self.ranks_of_job().unwrap_or(0));
        let record = self.contents.long(short, self.me);
        let Some(record) = record else {
            tracing::info!(?short, "its contents have not come yet");
            return self.turn.is_done(Done::Unknown { op });
        };
        let shared = self.concerns_shared(&record);
        self.records(op, &record, shared);
        self.contents.learn(&record);
        self.shell.ask(Ask::Persist { op, record, shared });
    }

    /// The coordinator writes what concerns shared storage there too, so that a
    /// later allocation with other nodes finds it.
    fn concerns_shared(&self, record: &Record) -> bool {
        self.is_coordinator()
            && self.all_levels().uses(StoreKind::Shared)
            && match record {
                Record::Commit { level, .. } => level.store() == StoreKind::Shared,
                record => matches!(record, Record::Incarnation { .. }),
            }
    }

    pub(super) fn on_commit_event(&mut self, event: commit::Event) {
        use commit::Event as E;
        self.turn.stir(true);
        match event {
            E::Arm { version, levels } => self.on_arm(version, levels),
            E::Join { version, levels } => self.on_join(version, levels),
            E::Disarm { version } => self.on_disarmed(version),
            E::Resumed { version, levels } => self.resume_round(version, levels),
            E::AllCaptured { version, levels } => {
                tracing::debug!(version = version.0, "captured everywhere");
                self.news(News::CapturedEverywhere(levels));
            }
            E::Committed { .. } => {}
            E::Stable { version, level } => {
                self.look_for_the_next();
                self.on_stable(version, level);
            }
            E::Aborted {
                version,
                level,
                why,
                culprit,
            } => {
                self.on_aborted(version, level, why, culprit);
            }
            E::Declined { at_least, why, .. } => {
                tracing::debug!(version = at_least.0, ?why, "no round now");
                // An armed version that the ranks have not reached yet is what was
                // wanted: nothing to ask for until it ends.
                if why != Why::Busy || !self.is_armed_here() {
                    self.news(News::Declined);
                }
            }
            E::Unready { version, culprit } => {
                tracing::info!(version = version.0, ?culprit, "not armed in time");
                self.warn(Error::new(
                    Code::CommitAborted,
                    culprit.map_or(Entity::Version(version.0), |it| Entity::Node(it.0)),
                    "was not ready for a checkpoint within its bound: that version was skipped",
                    "raise --arm-timeout where ranks wait for slow storage; look at the node \
                     otherwise",
                ));
            }
            E::RejoinLate { culprit, .. } => self.warn(Error::new(
                Code::AgentTimeout,
                culprit.map_or(Entity::Job(self.spec.job.to_string()), |it| {
                    Entity::Node(it.0)
                }),
                "has not answered the coordinator's agent, which was started anew: no checkpoint \
                 is taken until it does",
                "look at the node and at the network between the nodes",
            )),
            E::Undecided { version, level } => {
                tracing::warn!(version = version.0, %level, "the decision is late");
            }
            E::CollectInventory { incarnation } => self.collect_inventory(incarnation),
            E::Plan { source, version } => {
                let ok = self.can_be_made(source, version);
                self.command(commit::Command::Planned {
                    source,
                    version,
                    ok,
                });
            }
            E::Rebuild {
                source, version, ..
            } => self.rebuild(source, version),
            E::Opened {
                incarnation,
                skipped,
                uncertain,
                ..
            } => {
                self.on_opened(incarnation, event.restored(), skipped, uncertain);
            }
            E::OpenFailed {
                incarnation,
                why,
                culprit,
                known,
            } => {
                self.on_open_failed(incarnation, why, culprit, known);
            }
            E::Rejoined { incarnation } => self.rejoined(incarnation),
        }
    }

    /// The epoch of a node's holder, as far as is known here.
    pub(in crate::node) fn epoch_of(&self, node: NodeId) -> u64 {
        let member = self.config.as_ref();
        let member = member.and_then(|config| config.member(node));
        member.map_or(0, |member| member.epoch)
    }

    fn recorded(
        &mut self,
        op: outlive_base::machine::Op,
        result: std::result::Result<(), outlive_base::machine::Fault>,
    ) {
        self.commit_input(|machine, cx| machine.on_done(cx, op, result));
    }

    /// Something that took time is done, and is no service's.
    pub(in crate::node) fn on_done(&mut self, done: Done<S::Slab>) {
        match done {
            // Of services, or taken apart before.
            Done::Together(_)
            | Done::ParityMade { .. }
            | Done::Collected { .. }
            | Done::DiskUsage(_)
            | Done::Scrubbed { .. }
            | Done::Printed { .. }
            | Done::Transferred { .. }
            | Done::Health(_)
            | Done::Daemon(_)
            | Done::Stacks { .. } => {}
            Done::SlabMade {
                rank,
                slot,
                ticket,
                made,
            } => self.on_slab_made(rank, slot, ticket, made),
            Done::Routed {
                rank,
                sequence,
                message,
            } => self.answer(rank, sequence, message),
            Done::Persisted {
                op,
                result,
                by_shared,
            } => {
                tracing::trace!(?op, ok = result.is_ok(), "persisted");
                match self.trouble.after_record(&result, by_shared).cloned() {
                    Some(error) => self.warn_of_storage(error),
                    // Records may fit where containers do not.
                    None if !self.has_containers_here() => self.trouble.storage_works(),
                    None => {}
                }
                let result = result.map(drop);
                self.was_recorded(op, result.is_ok());
                self.recorded(
                    op,
                    result.map_err(|_| outlive_base::machine::Fault::Storage),
                );
            }
            Done::Unknown { op } => {
                self.recorded(op, Err(outlive_base::machine::Fault::Storage));
            }
            Done::LevelDone {
                source,
                version,
                level,
                result,
            } => {
                self.on_level_done(source, version, level, result);
            }
            Done::FlushOver { source, version } => self.flush_over(source, version),
            Done::Inventory { incarnation, found } => self.on_inventory(incarnation, found),
            // Of an opening that was given up since, nothing is wanted.
            Done::Rebuilt {
                incarnation,
                result,
                ..
            } if incarnation != self.opening_or_open() => {
                let slabs = result.into_iter().flat_map(|it| it.slabs);
                self.give_back(slabs.map(|(_, slab)| Arc::new(slab)).collect());
            }
            Done::Rebuilt {
                source,
                version,
                result,
                ..
            } => {
                tracing::trace!(version = version.0, ok = result.is_ok(), "rebuilt");
                self.on_rebuilt(source, version, result);
            }
            Done::Protected { result } => {
                if let Err(error) = result {
                    self.warn_of_copy(StoreKind::Node, error);
                }
            }
            Done::Corrupted { id, level, result } => {
                self.on_corrupted(id, Fault::Corrupt(level), result);
            }
            Done::Kept { result } => match result {
                Ok(()) => self.trouble.storage_works(),
                Err(error) => self.warn_of_copy(StoreKind::Node, error),
            },
        }
    }
}
