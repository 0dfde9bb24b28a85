//! What the launcher orders, what peers say, and carrying out what the machines
//! want.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outlive_base::machine::Machine;
use outlive_base::{Code, Entity, Error, Level, NodeId, Result, Time};
use outlive_network::{DownReason, Event as NetEvent, Identity};
use outlive_protocols::commit::Why;
use outlive_protocols::{commit, detector};
use outlive_vault::{NodeStore, Record, SharedStore};

use crate::contents::short;
use crate::core::{Agent, AtVersion, Work};
use crate::machines::{Driver, Effect};
use crate::peers::PeerMessage;
use outlive_control::orders::{Fault, JobConfig, Notice, Order, encode};

/// What may be put off at a fail point; then its wait is over.
const PUT_OFF_MAX: usize = 1 << 16;

/// The order in a message of the launcher.
fn launchers_order(event: &NetEvent) -> Option<Order> {
    match event {
        NetEvent::Message { from, bytes } if from.peer == NodeId::LAUNCHER => {
            outlive_control::orders::decode(bytes).ok()
        }
        _ => None,
    }
}

impl Agent {
    pub(crate) fn on_order(&mut self, order: Order) {
        match order {
            Order::Configure(config) => self.configure(config),
            Order::Open {
                incarnation,
                replaced,
                fenced,
                fresh,
                history,
            } => self.open(incarnation, replaced, (fenced, fresh), history),
            Order::Ranks { incarnation, ranks } => {
                if incarnation == self.incarnation {
                    self.job_ranks = Some(ranks);
                    self.capture_nothing();
                }
            }
            Order::EndRanks => self.end_ranks(),
            Order::Inject { id, fault } => self.inject(id, fault),
            Order::InjectDone { id } => self.release_held(id),
            Order::Silent { node } => self.tell_detector(|machine, cx| {
                let message = detector::Msg::Silent { node: node.0 };
                machine.on_message(cx, NodeId::LAUNCHER.0, message, None);
            }),
            Order::Status => {
                let status = self.status();
                self.tell(&Notice::Status(status));
            }
            Order::CheckpointNow => self.policy.now_wanted = true,
            Order::Finish { success } => self.finish(success),
        }
    }

    fn configure(&mut self, config: JobConfig) {
        for member in &config.members {
            if member.node != self.me {
                let known = self
                    .config
                    .as_ref()
                    .and_then(|known| known.members.iter().find(|other| other.node == member.node));
                if known != Some(member) {
                    let newer = known.is_some_and(|known| known.epoch < member.epoch);
                    if newer {
                        let epoch = member.epoch;
                        self.endpoint.replace(member.node, epoch, member.address);
                    } else {
                        self.endpoint.forget(member.node);
                        self.endpoint.set_address(member.node, member.address);
                    }
                    let node = member.node;
                    self.tell_detector(|machine, cx| {
                        machine.on_command(cx, detector::Command::Joined { node });
                    });
                }
            }
        }
        let first = self.commit.is_none();
        self.contents
            .set_job(config.members.iter().map(|member| member.node).collect(), 0);
        self.config = Some(config);
        if first && let Err(error) = self.start_machines() {
            self.warn(error);
        }
    }

    fn start_machines(&mut self) -> Result<()> {
        let Some(config) = &self.config else {
            return Ok(());
        };
        let bounds = config.bounds;
        let nodes = config.members.len() as u32;
        let levels = self.all_levels();
        let commit = commit::Config {
            nodes,
            levels,
            domains: config.members.iter().map(|member| member.domain).collect(),
            arm_timeout: Time::from_ms(bounds.arm_ms),
            commit_timeout: Time::from_ms(bounds.commit_ms),
            recovery_timeout: Time::from_ms(bounds.recovery_ms),
            stride: match (config.policy.every, config.policy.interval_ms) {
                (Some(every), None) => every.max(1),
                _ => 1,
            },
            ..commit::Config::default()
        };
        let detector = detector::Config {
            nodes,
            interval: Time::from_ms(bounds.heartbeat_ms),
            suspect_timeout: Time::from_ms(bounds.suspect_ms),
            dead_timeout: Time::from_ms(bounds.silence_ms()),
            ..detector::Config::default()
        };
        let scan = self.found_records.take();
        let scan = scan.unwrap_or_else(|| Err(Error::internal("started twice")))?;
        for path in scan.damaged {
            let path = path.display();
            tracing::warn!(%path, "a damaged record is ignored");
        }
        let kept = std::mem::take(&mut self.kept_records);
        let records = || scan.records.iter().chain(&kept);
        for record in records() {
            self.contents.learn(record);
        }
        let log: Vec<commit::Record> = records().filter_map(short).collect();
        let (now, me) = (self.now(), self.me.0);
        self.commit = Some(Driver::recover(commit, me, self.spec.job_hash, now, log));
        self.detector = Some(Driver::recover(
            detector,
            me,
            self.spec.job_hash,
            now,
            Vec::new(),
        ));
        // A first look: an agent that was started anew asks to rejoin.
        let now = self.now();
        if let Some(driver) = &mut self.commit {
            driver.input(now, &mut self.commit_effects, |_, _| {});
        }
        self.tell_detector(|_, _| {});
        Ok(())
    }

    fn end_ranks(&mut self) {
        self.kill_ranks();
        self.tell(&Notice::RanksEnded);
    }

    /// SIGKILL to every connected rank.
    pub(crate) fn kill_ranks(&self) {
        for link in self.ranks.iter().filter_map(|entry| entry.link.as_ref()) {
            if let Some(pid) = rustix::process::Pid::from_raw(link.pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    fn inject(&mut self, id: u32, fault: Fault) {
        match fault {
            Fault::Isolate { for_ms } => {
                self.endpoint.isolate(true);
                self.isolated_until = for_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
            }
            Fault::Slow(rate) => {
                self.faults.set_slow(rate);
                self.endpoint.slow((rate != 0).then_some(rate));
            }
            Fault::Full(on) => self.faults.set_full(on),
            Fault::Corrupt(level) => self.corrupt(level),
            Fault::FailPoint { point, nth } => self.faults.add_point(id, point, nth),
            Fault::AtVersion { rank, version } => {
                self.injections.push(AtVersion {
                    id,
                    rank,
                    version,
                    told: false,
                    held: Vec::new(),
                });
                self.set_injections();
            }
        }
    }

    /// Lets a worker damage the newest container at a level.
    fn corrupt(&mut self, level: Level) {
        let (store, shared, me) = (Arc::clone(&self.store), Arc::clone(&self.shared), self.me);
        let work = self.work.clone();
        let job = move || {
            let result = corrupt(&store, &shared, me, level);
            let _ = work.send(Work::Protected { result });
        };
        if let Err(error) = self.incoming.run(job) {
            self.warn(error);
        }
    }

    /// Tells the launcher if an injection waits at this place, and waits for it.
    pub(crate) fn fail_point(&mut self, name: &str) {
        debug_assert!(outlive_control::orders::FAIL_POINTS.contains(&name));
        let Some(id) = self.faults.reached(name) else {
            return;
        };
        self.tell(&Notice::InjectReached { id, version: None });
        self.endpoint.flush();
        let held = Instant::now();
        self.hold_for_injection(id, held + Agent::hold_max());
        self.turns.excuse(held.elapsed());
    }

    fn hold_for_injection(&mut self, id: u32, until: Instant) {
        while let Ok(event) = self.network.recv_deadline(until) {
            match launchers_order(&event) {
                Some(Order::InjectDone { id: done }) if done == id => return,
                // What is to happen here, unless it ends this process.
                Some(Order::Inject { id, fault }) => self.inject(id, fault),
                _ => self.put_off.push_back(event),
            }
            if self.put_off.len() >= PUT_OFF_MAX {
                return;
            }
        }
    }

    fn finish(&mut self, success: bool) {
        if self.finishing.is_some() {
            // Asked again: the answer may have been lost.
            if self.finished {
                self.tell(&Notice::Finished);
            }
            return;
        }
        let drain = self
            .config
            .as_ref()
            .map_or(60_000, |config| config.bounds.drain_ms);
        self.finishing = Some(Instant::now() + Duration::from_millis(drain));
        if success && self.incarnation.0 != 0 {
            let version = self
                .stable
                .iter()
                .flatten()
                .map(|(_, version)| *version)
                .max();
            let record = Record::Finished {
                incarnation: self.incarnation,
                version,
            };
            let (store, work) = (Arc::clone(&self.store), self.work.clone());
            let job = move || {
                let records = store.records();
                let made = store.make(&records.directory().join("-"));
                let result = made.and_then(|()| records.persist(&record));
                let result = result.map_err(Error::from);
                let _ = work.send(Work::Protected { result });
            };
            if let Err(error) = self.recorder.run(job) {
                self.warn(error);
            }
        }
    }

    // ---- peers ----

    pub(crate) fn on_peer_message(&mut self, from: Identity, bytes: &[u8]) {
        let message = match outlive_control::orders::decode::<PeerMessage>(bytes) {
            Ok(message) => message,
            Err(error) => return self.warn(error),
        };
        let peer = from.peer;
        match message {
            PeerMessage::Commit { msg, records } => {
                tracing::trace!(from = peer.0, ?msg, "message");
                for record in PeerMessage::records(&records, self.spec.job_hash) {
                    self.contents.learn(&record);
                }
                let now = self.now();
                if let Some(driver) = &mut self.commit {
                    driver.input(now, &mut self.commit_effects, |machine, cx| {
                        machine.on_message(cx, peer.0, msg, None);
                    });
                }
                self.tell_detector(|machine, cx| {
                    machine.on_command(cx, detector::Command::Heard { node: peer });
                });
            }
            PeerMessage::Detector(msg) => self.tell_detector(|machine, cx| {
                machine.on_message(cx, peer.0, msg, None);
            }),
        }
    }

    pub(crate) fn on_peer_up(&mut self, identity: Identity) {
        if identity.peer == NodeId::LAUNCHER {
            // What was under way on the last connection may be lost.
            return self.introduce();
        }
        let node = identity.peer;
        self.tell_detector(|machine, cx| {
            machine.on_command(cx, detector::Command::Heard { node });
        });
    }

    pub(crate) fn on_peer_down(&mut self, peer: Identity, reason: DownReason) {
        // The launcher knows from the keeper whether the node or only its agent
        // is gone; silence is the detector's business.
        tracing::info!(peer = peer.peer.0, ?reason, "a connection ended");
    }

    fn tell_detector(
        &mut self,
        input: impl FnOnce(&mut detector::Detector, &outlive_base::machine::Cx<'_, detector::Detector>),
    ) {
        let now = self.now();
        if let Some(driver) = &mut self.detector {
            driver.input(now, &mut self.detector_effects, input);
        }
    }

    pub(crate) fn fire_deadlines(&mut self) {
        let now = self.now();
        if let Some(driver) = &mut self.commit
            && driver.deadline(now).is_some_and(|at| at <= now)
        {
            driver.input(now, &mut self.commit_effects, |machine, cx| {
                machine.on_timeout(cx)
            });
        }
        if let Some(driver) = &mut self.detector
            && driver.deadline(now).is_some_and(|at| at <= now)
        {
            driver.input(now, &mut self.detector_effects, |machine, cx| {
                machine.on_timeout(cx)
            });
        }
    }

    // ---- what the machines want ----

    /// Carries out all effects, in order, until there are none.
    pub(crate) fn carry_out(&mut self) {
        loop {
            if let Some(effect) = self.commit_effects.pop_front() {
                self.carry_out_commit(effect);
            } else if let Some(effect) = self.detector_effects.pop_front() {
                self.carry_out_detector(effect);
            } else {
                return;
            }
        }
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
            commit::Kind::Commit { .. } => self.fail_point("commit:send"),
            commit::Kind::Prepared { .. } => self.fail_point("prepared:send"),
            commit::Kind::Stable { .. } => self.fail_point("stable:send"),
            _ => {}
        }
        if to == self.me.0 {
            let now = self.now();
            if let Some(driver) = &mut self.commit {
                driver.input(now, &mut self.commit_effects, |machine, cx| {
                    machine.on_message(cx, to, msg, None);
                });
            }
            return;
        }
        let open = msg.ballot.incarnation;
        let records = self
            .contents
            .attachments(&msg.kind, self.me, open, msg.ballot);
        let job = self.spec.job_hash;
        let records = records
            .iter()
            .filter_map(|record| record.encode(job))
            .collect();
        self.send_peer(NodeId(to), &PeerMessage::Commit { msg, records });
    }

    fn send_peer(&mut self, to: NodeId, message: &PeerMessage) {
        // A message that cannot be sent is a lost one: the machine repeats it.
        if let Ok(bytes) = encode(message)
            && let Err(error) = self.endpoint.post(to, &bytes)
        {
            tracing::debug!(%error, to = to.0, "a message was not sent");
        }
    }

    fn persist(&mut self, op: outlive_base::machine::Op, short: &commit::Record) {
        match short {
            commit::Record::Commit { .. } => self.fail_point("commit:persist"),
            commit::Record::Prepared { .. } => self.fail_point("prepared:persist"),
            _ => {}
        }
        let record = self.contents.long(short, self.me);
        let Some(record) = record else {
            let error = Error::internal(format!("nothing is known of {short:?}"));
            let _ = self.work.send(Work::Persisted {
                op,
                result: Err(error),
            });
            return;
        };
        self.contents.learn(&record);
        let shared = self
            .concerns_shared(&record)
            .then(|| Arc::clone(&self.shared));
        self.recorder.persist(op, record, shared);
    }

    /// The coordinator writes what concerns shared storage there too, so that a
    /// later allocation with other nodes finds it.
    fn concerns_shared(&self, record: &Record) -> bool {
        self.me == NodeId(0)
            && self.all_levels().contains(Level::Shared)
            && matches!(
                record,
                Record::Commit {
                    level: Level::Shared,
                    ..
                } | Record::Incarnation { .. }
            )
    }

    pub(crate) fn on_commit_event(&mut self, event: commit::Event) {
        use commit::Event as E;
        self.stirred = true;
        match event {
            E::Arm { version, levels } => self.on_arm(version, levels),
            E::Join { version, levels } => self.on_join(version, levels),
            E::Disarm { version } => self.on_disarmed(version),
            E::Resumed { version, levels } => self.resume_round(version, levels),
            E::AllCaptured { version } => {
                tracing::debug!(version = version.0, "captured everywhere");
                self.policy.rounds += 1;
                self.policy.wanted = None;
                self.policy.misses = 0;
                self.policy.passed = 0;
            }
            E::Committed { .. } => {}
            E::Stable { version, level } => {
                self.look_now |= self.me == NodeId(0);
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
                    self.want_later();
                }
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
    pub(crate) fn epoch_of(&self, node: NodeId) -> u64 {
        let mut members = self.config.iter().flat_map(|config| &config.members);
        let member = members.find(|member| member.node == node);
        member.map_or(0, |member| member.epoch)
    }

    fn carry_out_detector(&mut self, effect: Effect<detector::Detector>) {
        match effect {
            Effect::Send(to, msg) if to == NodeId::LAUNCHER.0 => match msg {
                detector::Msg::Heartbeat => {
                    let offered = self.ranks.called_max();
                    self.tell(&Notice::Alive { offered });
                }
                detector::Msg::Silent { node } => self.tell(&Notice::Silent { node: NodeId(node) }),
                _ => {}
            },
            Effect::Send(to, msg) => self.send_peer(NodeId(to), &PeerMessage::Detector(msg)),
            Effect::Persist(..) => {}
            Effect::Event(event) => match event {
                detector::Event::Suspected { node, silent_for } => {
                    let silent_ms = silent_for.as_ms() as u64;
                    let epoch = self.epoch_of(node);
                    self.tell(&Notice::Suspected {
                        node,
                        epoch,
                        silent_ms,
                    });
                }
                detector::Event::Cleared { node } => {
                    self.tell(&Notice::Cleared { node });
                    self.command(commit::Command::Heard { node });
                }
                detector::Event::Dead { node, .. } => {
                    let epoch = self.epoch_of(node);
                    self.tell(&Notice::Dead { node, epoch });
                    self.command(commit::Command::Lost { node });
                }
            },
        }
    }

    pub(crate) fn on_work(&mut self, work: Work) {
        match work {
            Work::Together(all) => {
                for work in all {
                    self.on_work(work);
                    // As if each had come by itself.
                    self.carry_out();
                }
            }
            Work::SlabMade {
                rank,
                slot,
                ticket,
                made,
            } => self.on_slab_made(rank, slot, ticket, made),
            Work::Routed {
                rank,
                sequence,
                message,
            } => self.answer(rank, sequence, message),
            Work::DiskUsage(found) => self.disk_usage.1 = found,
            Work::Persisted { op, result } => {
                tracing::trace!(?op, ok = result.is_ok(), "persisted");
                let trouble = result.as_ref().map_or_else(Some, Option::as_ref);
                self.unwritable = trouble.is_some();
                match trouble.cloned() {
                    Some(error) => self.warn_of_storage(error),
                    // Records may fit where containers do not.
                    None if !self.has_containers_here() => self.storage_trouble = None,
                    None => {}
                }
                let result = result
                    .map(drop)
                    .map_err(|_| outlive_base::machine::Fault::Storage);
                let now = self.now();
                if let Some(driver) = &mut self.commit {
                    driver.input(now, &mut self.commit_effects, |machine, cx| {
                        machine.on_done(cx, op, result);
                    });
                }
            }
            Work::LevelDone {
                source,
                version,
                level,
                result,
            } => {
                self.on_level_done(source, version, level, result);
            }
            Work::FlushOver { source, version } => self.flush_over(source, version),
            Work::Inventory {
                incarnation,
                available,
                records,
                traces,
            } => {
                self.on_traces(traces);
                self.on_inventory(incarnation, available, records);
            }
            // Of an opening that was given up since, nothing is wanted.
            Work::Rebuilt {
                incarnation,
                result,
                ..
            } if incarnation != self.opening_or_open() => {
                self.give_back(result.into_iter().flat_map(|it| it.slabs).collect());
            }
            Work::Rebuilt {
                source,
                version,
                result,
                ..
            } => {
                tracing::trace!(version = version.0, ok = result.is_ok(), "rebuilt");
                self.on_rebuilt(source, version, result);
            }
            Work::Collected { result } => self.on_collected(result),
            Work::Protected { result } => {
                if let Err(error) = result {
                    self.warn_of_copy(Level::Partner, error);
                }
            }
            Work::Kept { result } => match result {
                Ok(()) => self.storage_trouble = None,
                Err(error) => self.warn_of_copy(Level::Partner, error),
            },
        }
    }
}

/// Flips one bit in the middle of the newest container at a level.
fn corrupt(store: &NodeStore, shared: &SharedStore, me: NodeId, level: Level) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let level = level.max(Level::Disk);
    let mut found = if level == Level::Shared {
        shared.found()
    } else {
        store.found()
    }?;
    found.retain(|found| found.level == level && (level != Level::Shared || found.id.node == me));
    let newest = found.into_iter().max_by_key(|found| found.id);
    let path = newest
        .map(|found| found.path)
        .ok_or_else(|| Error::internal("there is no container to damage"))?;
    let damage = || -> std::io::Result<()> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)?;
        let at = file.metadata()?.len() / 2;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        byte[0] ^= 0x10;
        file.write_all_at(&byte, at)?;
        file.sync_all()
    };
    damage().map_err(|error| Error::io(&path, "damage", &error))
}
