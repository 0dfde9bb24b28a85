//! Carries out what the [`Supervisor`] decides, and tells it what happened.
//!
//! One thread decides and acts, so that orders to a slot keep their order and the
//! parent-death signal of the keepers is tied to a thread that lives as long as the
//! process. Everything slow (flushing a report, deleting a directory) is elsewhere.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, bounded, unbounded};
use outlive_base::{Error, Incarnation, NodeId, Result, Time, Version};
use outlive_control::orders::{self, Notice, Order};
use outlive_network as network;

use crate::command::{self, Recipe, Tree};
use crate::coordinator::{Link, Sources};
use crate::domains;
use crate::each;
use crate::hangs::Hangs;
use crate::hosts;
use crate::jobs::{Job, utc};
use crate::layout;
use crate::look::Looks;
use crate::nodes::{Happened, Nodes};
use crate::places;
use crate::recall;
use crate::record::{self, Recorder};
use crate::reporter::Reporter;
use crate::run::Run;
use crate::segments::Segments;
use crate::store::{self, Store};
use crate::timeline::{Timeline, summary_words};
use crate::unnamed::Unnamed;
use crate::watch::{Seen, Watcher};
use outlive_control::report::Report;
use outlive_control::supervisor::{Action, Event, Input, Outcome, Storage, Supervisor, Verdict};

/// Messages from the network that may wait for us; beyond that TCP pushes back.
const NETWORK_QUEUE: usize = 4096;
/// Between two looks at processes that are being ended.
const PRESS_EVERY: Duration = Duration::from_millis(2);
/// Between two writes of the report of a running job, if it has changed; it is also
/// how long the driver waits for anything at most.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Between two writes if it has not: `seconds` goes on.
const REPORT_AT_LEAST_EVERY: Duration = Duration::from_secs(30);

/// Runs a job to its end and returns the exit status.
///
/// # Errors
/// What prevents the job from being started at all; later errors are in the report
/// and the exit status.
pub fn run(run: Run) -> Result<u8> {
    if !run.unnamed {
        return Ok(carry_out(run)?.exit_status);
    }
    let guest = Unnamed::new(&run);
    let ended = carry_out(run);
    match &ended {
        Ok(outcome) if outcome.verdict != Verdict::Ok => guest.stays(),
        _ => guest.leaves(),
    }
    Ok(ended?.exit_status)
}

fn carry_out(mut run: Run) -> Result<Outcome> {
    // Everything the user gave is looked at before the first process starts.
    look(&run)?;
    crate::sys::raise_limit();
    let unknown = domains::ask(&mut run);
    let (happened_to, happened) = unbounded::<Happened>();
    let watcher = Watcher::start(happened_to.clone())?;
    let mut store = Store::open(&run.store, &run.settings.job, &run.wanted())?;
    let set = &mut run.settings;
    let known = store.job().history;
    set.history = known.map_or(Incarnation(0), |known| known.incarnation);
    set.last_incarnation = store.job().incarnation;
    set.epoch_base = store.job().epoch;
    let sources = match set.auto {
        Some(_) => Sources::of(&store, set)?,
        None => None,
    };
    let coordinated = store.dir().parent().unwrap_or(store.dir()).to_owned();
    let mut notes: Vec<Error> = unknown.into_iter().chain(store.take_notes()).collect();
    if let Some(wishes) = &mut set.auto {
        notes.extend(recall::recall(wishes, &store));
    }
    let known = store.job().key_hash;
    let (key, job_hash) = store.key(set.fresh, run.hosts.is_none())?;
    let kept_key = key.clone();
    let (events_to, events) = bounded(NETWORK_QUEUE);
    let identity = network::Identity {
        peer: NodeId::LAUNCHER,
        epoch: 1,
    };
    let options = listening(&run);
    let endpoint = network::Endpoint::bind(identity, job_hash, key, options, events_to)?;
    let each = each::Starts::of(&run, store.dir(), job_hash);
    let machines = run.hosts.take();
    if machines.is_none() {
        notes.extend(places::short(&run, &store));
    }
    let lives = places::Lives {
        run: &run,
        store: &store,
        known,
        job_hash,
        launcher: endpoint.local_addr(),
    };
    let looks = Looks::new(happened_to.clone());
    let mut fleet = lives.nodes(machines, happened_to)?;
    domains::settle(&mut run.settings, &mut *fleet, &run.timeline);
    let recipe = Recipe {
        words: each::line(&run),
        job: run.settings.job.clone(),
        nodes: run.settings.nodes,
        environment: run.environment.clone(),
        prepare: run.prepare.clone(),
    };
    begin_files(&run)?;
    let last = Job::at(store.dir(), run.settings.job.clone());
    let was_finished = last
        .report
        .is_some_and(|report| report.result == "finished");
    notes.extend(store.take_notes());
    let hangs = Hangs::of(store.dir());
    let hang = &mut run.settings.hang;
    (hang.dir, hang.before) = (store.dir().display().to_string(), hangs.last());
    let mut driver = Driver {
        finished: (was_finished && !run.settings.fresh).then_some(last.changed),
        key: kept_key,
        begun: Instant::now(),
        tree: Tree::new(recipe)?,
        fleet,
        each,
        to_start: None,
        reporter: Reporter::start(store.dir().join(layout::REPORT)),
        recorder: Recorder::start(
            store.dir(),
            &run.settings.job,
            run.settings.nodes,
            run.metrics.as_deref(),
        ),
        segments: Segments::start(store.dir()),
        hangs,
        looks,
        supervisor: Supervisor::new(run.settings.clone(), Time::ZERO),
        store,
        watcher,
        happened,
        events,
        coordinator: sources.map(|sources| Link::new(&coordinated, &run, sources)),
        endpoint,
        timeline: run.timeline,
        reported: Instant::now(),
        written_at: Instant::now(),
        written: None,
    };
    for error in notes {
        driver.tell(Input::Note { error });
    }
    Ok(driver.run(run.report.as_deref()))
}

/// Where agents reach the launcher.
fn listening(run: &Run) -> network::Options {
    let options = network::Options {
        message_bytes_max: orders::MESSAGE_BYTES_MAX,
        queue_bytes_max: orders::QUEUE_BYTES_MAX,
        ..network::Options::default()
    };
    match &run.hosts {
        None => options,
        Some(machines) => network::Options {
            bind: (hosts::address::any_address(), 0).into(),
            ports: machines.ports,
            ..options
        },
    }
}

/// Begins the files that the user wants: that one cannot be written is better known now than
/// after days.
fn begin_files(run: &Run) -> Result<()> {
    let set = &run.settings;
    if let Some(path) = &run.report {
        store::write_named(path, Report::new(&set.job, set.nodes).to_json().as_bytes())?;
    }
    match &run.metrics {
        Some(path) => record::metrics::begin(path, &set.job),
        None => Ok(()),
    }
}

/// Writes the report of a run that could not begin, where the user wants one: an older
/// report must not be taken for this run's.
///
/// # Errors
/// Those of the file system.
pub fn report_refusal(path: &Path, job: &str, nodes: u32, error: &Error) -> Result<()> {
    store::write_named(
        path,
        Report::refused(job, nodes, error).to_json().as_bytes(),
    )
}

/// The command must be here, unless it is started on hosts alone.
fn look(run: &Run) -> Result<()> {
    if !run.each || run.hosts.is_none() {
        let executable = command::find(&run.words)?;
        tracing::info!(command = %executable.display(), "found");
    }
    Ok(())
}

struct Driver {
    /// When the run before ended, if it ended well; until that has been said.
    finished: Option<SystemTime>,
    /// For its file, should somebody remove it.
    key: network::JobKey,
    begun: Instant,
    supervisor: Supervisor,
    store: Store,
    fleet: Box<dyn Nodes>,
    /// The command is started on each node.
    each: Option<each::Starts>,
    /// The command is to be started for this incarnation.
    to_start: Option<Incarnation>,
    tree: Tree,
    watcher: Watcher,
    happened: Receiver<Happened>,
    events: Receiver<network::Event>,
    endpoint: network::Endpoint,
    /// To the coordinator of the shared storage, if the policy decides what goes there.
    coordinator: Option<Link>,
    timeline: Timeline,
    reporter: Reporter,
    recorder: Recorder,
    segments: Segments,
    /// Writes down where the ranks are if they stand still.
    hangs: Hangs,
    looks: Looks,
    /// The last look at the report, the last write, and what was written.
    reported: Instant,
    written_at: Instant,
    written: Option<Report>,
}

impl Driver {
    fn now(&self) -> Time {
        self.begun.elapsed().into()
    }

    fn run(mut self, report_file: Option<&Path>) -> Outcome {
        loop {
            if let Some(outcome) = self.act() {
                return self.end(outcome, report_file);
            }
            self.wait();
            self.press();
            if self.happened.is_empty() && self.events.is_empty() {
                self.tell(Input::Timer);
            }
            if self.reported.elapsed() >= REPORT_EVERY {
                self.write_report();
            }
            if let Some(error) = self.store.not_recorded() {
                self.tell(Input::Refused { error });
            }
            let now = self.now();
            self.recorder
                .look(now, &self.supervisor, || self.fleet.hosts());
        }
    }

    /// Writing it costs a sync: only what is new is worth that.
    fn write_report(&mut self) {
        self.reported = Instant::now();
        let late = self.written_at.elapsed() >= REPORT_AT_LEAST_EVERY;
        if late || self.written.as_ref() != Some(self.supervisor.report()) {
            self.written_at = Instant::now();
            self.written = Some(self.supervisor.report().clone());
            let text = self.report().to_json();
            self.reporter.write(text);
        }
    }

    fn tell(&mut self, input: Input) {
        self.supervisor.handle(self.now(), input);
    }

    /// Waits for something to happen, and takes in what is there.
    fn wait(&mut self) {
        let left = self.supervisor.deadline().since(self.now());
        let mut timeout = Duration::from(left).min(REPORT_EVERY);
        timeout = timeout.min(self.segments.due().unwrap_or(timeout));
        if self.tree.is_ending() || self.fleet.is_busy() || self.to_start.is_some() {
            timeout = timeout.min(PRESS_EVERY);
        }
        let never = crossbeam_channel::never();
        let link = self.coordinator.as_ref();
        let coordinator = link.map_or(&never, Link::events).clone();
        crossbeam_channel::select! {
            recv(coordinator) -> event => if let Ok(event) = event { self.on_coordinator(event) },
            recv(self.happened) -> happened => match happened {
                Ok(Happened::Seen(seen)) => self.on_seen(seen),
                Ok(Happened::Line(line, heard)) => {
                    let inputs = self.fleet.heard(line, heard);
                    inputs.into_iter().for_each(|input| self.tell(input));
                }
                Ok(Happened::Looked(number, found)) => {
                    self.tell(Input::CommandSeen { number, found });
                }
                Err(_) => {}
            },
            recv(self.events) -> event => if let Ok(event) = event { self.on_event(event) },
            default(timeout) => {}
        }
    }

    fn on_seen(&mut self, seen: Seen) {
        match seen {
            Seen::Rank { rank, pid, ended } => self.tell(Input::RankGone { rank, pid, ended }),
            Seen::Signal(caught) => self.tell(Input::Interrupt {
                signal: caught.signal,
                // A command with a group of its own hears nothing of the terminal.
                from_terminal: caught.from_terminal && self.tree.shares_terminal(),
            }),
            Seen::Child { pid, ended } => {
                if let Some(inputs) = self.fleet.child_ended(pid, ended) {
                    inputs.into_iter().for_each(|input| self.tell(input));
                } else if self.tree.ended(pid, ended) {
                    self.tell(Input::CommandEnded { ended });
                }
                // Others are orphans of the command.
            }
        }
    }

    fn on_event(&mut self, event: network::Event) {
        match event {
            network::Event::Message { from, bytes } => match orders::decode::<Notice>(&bytes) {
                Ok(notice) => {
                    let (node, epoch) = (from.peer, from.epoch);
                    let is_sign = notice.is_sign_of_life();
                    self.recorder.traffic.receives(is_sign, bytes.len());
                    self.recorder.notice(self.now(), node, epoch, &notice);
                    self.tell(Input::Notice {
                        node,
                        epoch,
                        notice,
                    });
                }
                Err(error) => self.tell(Input::Refused { error }),
            },
            network::Event::Down { peer, reason } => {
                tracing::info!(?peer, ?reason, "connection ended");
                self.tell(Input::LinkDown {
                    node: peer.peer,
                    epoch: peer.epoch,
                });
            }
            network::Event::Refused { addr, error } => {
                tracing::info!(%addr, %error, "refused");
                self.tell(Input::Refused { error });
            }
            network::Event::Up { identity, addr } => {
                tracing::info!(?identity, %addr, "connection");
            }
            // Nobody has bulk data for the launcher.
            network::Event::Stream { .. } => {}
        }
    }

    fn on_coordinator(&mut self, event: network::Event) {
        let link = self.coordinator.as_mut();
        match link.and_then(|link| link.on_event(event)) {
            Some(Ok(said)) => self.tell(Input::Coordinator(said)),
            Some(Err(error)) => self.tell(Input::Refused { error }),
            None => {}
        }
    }

    /// Goes on with what takes several looks: ending and fencing.
    fn press(&mut self) {
        let now = self.now();
        for input in self.fleet.press(now) {
            self.tell(input);
        }
        self.start_command();
        if let Some(error) = self.hangs.take_error() {
            self.tell(Input::Refused { error });
        }
        if let Some(error) = self.coordinator.as_mut().and_then(Link::look) {
            self.tell(Input::Refused { error });
        }
        if let Some(said) = self.coordinator.as_ref().and_then(Link::tiers) {
            self.tell(Input::Coordinator(said));
        }
        self.segments
            .press(|| (self.fleet.pids(), self.fleet.ranks_here()));
        if self.tree.is_ending() && self.tree.press(now, &self.fleet.pids()) {
            self.segments.command_ended();
            self.tell(Input::TreeEnded);
        }
    }

    /// Notes what processes that are killed next map.
    fn before_killing(&self) {
        self.segments
            .before_killing(self.fleet.pids(), self.fleet.ranks_here());
    }

    /// Carries out all actions; the outcome if it was the last.
    fn act(&mut self) -> Option<Outcome> {
        loop {
            let actions = self.supervisor.take_actions();
            if actions.is_empty() {
                return None;
            }
            for action in actions {
                if let Action::Done(outcome) = action {
                    return Some(outcome);
                }
                self.carry_out(action);
            }
        }
    }

    fn carry_out(&mut self, action: Action) {
        let now = self.now();
        match action {
            Action::StartNode {
                node,
                epoch,
                storage,
            } => self.start_node(node, epoch, storage),
            Action::Order { node, order } => self.send(node, &order),
            Action::Fence { node, epoch, pids } => {
                self.before_killing();
                self.fleet.fence(node, epoch, &pids);
                self.endpoint.forget(node);
            }
            Action::KillNode { node, pids } => {
                self.before_killing();
                self.fleet
                    .kill_node(node, &pids, &self.store.node_dir(node));
            }
            Action::KillKeeper { node } => self.fleet.kill_keeper(node),
            Action::Kill { node, pids } => {
                self.before_killing();
                self.fleet.kill(node, &pids);
            }
            Action::Freeze {
                node,
                keeper,
                pids,
                stop,
            } => self.fleet.freeze(node, keeper, &pids, stop),
            Action::WatchRank { node, rank, pid } => {
                self.segments.command_changed();
                if let Some(gone) = self.fleet.watch(node, rank, pid, &self.watcher) {
                    self.tell(gone);
                }
            }
            Action::StartCommand { incarnation } => {
                self.to_start = Some(incarnation);
                self.fleet.sweep();
                self.start_command();
            }
            Action::EndCommand { signal, grace_ms } => {
                self.before_killing();
                self.to_start = None;
                self.tree.end(signal, now + Time::from_ms(grace_ms));
                self.press();
            }
            Action::StopNode { node } => {
                self.fleet.stop(node, now, Time::from_ms(STOP_GRACE_MS));
            }
            Action::RecordIncarnation { incarnation, epoch } => {
                let ranks = self.supervisor.report().ranks;
                if let Err(error) = self.store.record(incarnation.0, epoch, ranks) {
                    self.tell(Input::Refused { error });
                }
            }
            Action::RecordHistory { history } => self.store.record_history(history),
            Action::RecordLearned(learned) => self.store.record_learned(learned),
            Action::WriteStacks { number, text } => self.hangs.write(number, text),
            Action::LookAtCommand { number, within_ms } => {
                self.looks.begin(number, self.fleet.pids(), within_ms);
            }
            Action::Coordinate(ask) => {
                if let Some(link) = &self.coordinator {
                    link.send(&ask);
                }
            }
            Action::Tell(event) => {
                if let Event::Opened { restored, .. } = &event {
                    self.say_finished(*restored);
                }
                self.timeline.show(now, &event);
                self.recorder.event(now, &event);
            }
            Action::Done(_) => {}
        }
    }

    fn start_node(&mut self, node: NodeId, epoch: u64, storage: Storage) {
        let dir = self.store.node_dir(node);
        let started = self.store.ensure(&self.key).and_then(|note| {
            self.fleet.start(node, epoch, &dir, storage)?;
            self.store.record_hosts(self.fleet.hosts());
            Ok(note)
        });
        if let Some(words) = self.fleet.astray(node) {
            self.timeline.say(&words);
        }
        if let Ok(Some(error)) = started {
            self.tell(Input::Refused { error });
        } else if let Err(error) = started {
            self.tell(Input::NodeFailed { node, epoch, error });
        }
    }

    /// Starts the command as soon as what it left elsewhere is being ended no more.
    fn start_command(&mut self) {
        let Some(incarnation) = self.to_start.filter(|_| self.fleet.is_clear()) else {
            return;
        };
        self.to_start = None;
        self.fleet.part();
        self.segments.command_changed();
        let environment = self.fleet.environment();
        let environment = environment.and_then(|mut it| {
            if let Some(each) = &self.each {
                it.push(each.plan(self.fleet.ways(), incarnation)?);
            }
            Ok(it)
        });
        let started = environment.and_then(|it| self.tree.start(incarnation, it));
        if let Err(error) = started {
            self.tell(Input::CommandFailed { error });
        }
    }

    fn send(&mut self, node: NodeId, order: &Order) {
        let sent = orders::encode(order).and_then(|bytes| {
            let traffic = &mut self.recorder.traffic;
            traffic.sends(order.is_sign_of_life(), bytes.len());
            self.endpoint.send(node, &bytes)
        });
        if let Err(error) = sent {
            tracing::info!(%node, %error, "order not sent");
        }
    }

    /// A command that is repeated after its end does not begin anew, which who repeats it
    /// may expect.
    fn say_finished(&mut self, restored: Option<Version>) {
        if let Some(at) = self.finished.take() {
            let job = &self.store.job().name;
            let what = restored.map_or_else(
                || "no version of it can be restored: it begins anew".to_owned(),
                |version| format!("it goes on from {version}; --fresh begins anew"),
            );
            let text = format!("job {job} ended well on {}: {what}", utc(at));
            self.timeline.say(&text);
        }
    }

    fn report(&self) -> Report {
        let mut report = self.supervisor.report().clone();
        report.seconds = self.begun.elapsed().as_secs_f64();
        report
    }

    fn end(mut self, outcome: Outcome, report_file: Option<&Path>) -> Outcome {
        self.before_killing();
        self.fleet.end();
        self.tree.kill_all(&BTreeSet::new());
        self.segments.command_ended();
        if self.fleet.pids().is_empty() {
            self.store.tidy();
        }
        let report = self.report();
        let text = report.to_json();
        self.timeline.summary(&report, outcome.verdict);
        let (now, hosts) = (self.now(), self.fleet.hosts());
        let words = summary_words(&report);
        self.recorder
            .finish(now, &self.supervisor, &hosts, &report, &words);
        self.reporter.finish(text.clone());
        let late = [self.hangs.finish(), self.store.settle()];
        for error in late.iter().flatten() {
            self.timeline.error(error);
        }
        self.endpoint.shutdown();
        if let Some(link) = self.coordinator.take() {
            link.shutdown();
        }
        if let Some(path) = report_file
            && let Err(error) = store::write_named(path, text.as_bytes())
        {
            // The job's own end counts: the report lies in its directory too.
            self.timeline.error(&error);
        }
        outcome
    }
}

/// From SIGTERM to SIGKILL of a keeper whose work is done.
const STOP_GRACE_MS: u64 = 2_000;
