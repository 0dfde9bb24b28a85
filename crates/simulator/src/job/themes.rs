//! Themes: histories in which events meet that chance alone brings together once in thousands. Each
//! is about one kind of work under way, with little else that goes wrong, few nodes and a short
//! time, so that many of them are run in the time of one with all faults.

use outlive_base::{Level, Levels, Time};

use super::{Meetings, Options, Weights};
use crate::network::LossyOptions;
use crate::world::Faults;

/// What a history is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Theme {
    /// Agents end, and now and then nodes, while ranks capture and copies are written.
    Restarts,
    /// Ranks fail while copies are written, which take longer than the next start to come to
    /// versions of the same numbers.
    LateWrites,
    /// The coordinator's node is lost with a decision on its way.
    Decisions,
    /// The shared directory refuses a decision, and ranks fail soon after.
    Refusals,
    /// The coordinator's agent ends while it decides and the shared directory goes out of reach; now
    /// and then all nodes are lost.
    Outages,
    /// Openings meet removals, losses and restarts.
    Openings,
    /// The coordinator's agent ends when it has recorded, last of all, that an incarnation is open.
    Begins,
    /// The job ends while copies are written.
    Ends,
    /// The coordinator and others are lost while they write to shared storage, where that appears
    /// when the next incarnation is open.
    Latecomers,
    /// Ranks wait for most of their versions, while agents end and storage refuses some.
    Waits,
    /// Nodes are lost, one after another, and the memory server that has their parities.
    Served,
    /// Launchers end, one after another, and the job's file is gone or an older one is in its place.
    Forgotten,
    /// Captures in memory are overwritten, and ranks and agents end.
    Overwritten,
    /// Agents end, and come back, while ranks capture what they force and wait for.
    Captures,
}

impl Theme {
    /// All of them.
    pub const ALL: [Theme; 14] = [
        Theme::Restarts,
        Theme::LateWrites,
        Theme::Decisions,
        Theme::Refusals,
        Theme::Outages,
        Theme::Openings,
        Theme::Begins,
        Theme::Ends,
        Theme::Latecomers,
        Theme::Waits,
        Theme::Served,
        Theme::Forgotten,
        Theme::Overwritten,
        Theme::Captures,
    ];

    /// Makes the options of a seed those of a history of this theme.
    pub fn apply(self, options: &mut Options) {
        plain(options);
        let meetings = &mut options.meetings;
        match self {
            Theme::Restarts => {
                (meetings.captures, meetings.writes) = (100_000, 100_000);
                (meetings.agent, meetings.node, meetings.rank) = (5, 1, 1);
                meetings.apart = Time::from_ms(50);
                options.slow = 30_000;
                options.net.loss = 50_000;
                options.net.straggle = 20_000;
            }
            Theme::LateWrites => {
                meetings.writes = 900_000;
                (meetings.agent, meetings.node, meetings.rank) = (0, 0, 1);
                meetings.apart = Time::from_ms(700);
                // Steps are long and versions few: of the few that a start comes to most are
                // those that the start before was writing.
                (options.nodes, options.bare) = (2, 0);
                options.coordinator %= 2;
                (options.step_max, options.stride) = (Time::from_ms(250), 10);
                options.commit_ms = 4_000;
                options.lasts.0 = Time::from_ms(2_500);
            }
            Theme::Decisions => {
                meetings.decides = 400_000;
                (meetings.agent, meetings.node, meetings.rank) = (0, 1, 0);
                meetings.apart = Time::from_ms(300);
                options.faults.sync_max = Time::from_ms(20);
                options.net.loss = 250_000;
                options.net.straggle = 150_000;
            }
            Theme::Refusals => {
                options.levels = Levels::of(&[Level::MEMORY, Level::DISK, Level::SHARED]);
                meetings.shares = 600_000;
                (meetings.agent, meetings.node, meetings.rank) = (0, 0, 1);
                meetings.apart = Time::from_ms(300);
                options.sparse = 6;
            }
            Theme::Outages => {
                options.levels = Levels::of(&[Level::MEMORY, Level::DISK, Level::SHARED]);
                meetings.shares = 600_000;
                (meetings.agent, meetings.node, meetings.rank) = (1, 0, 0);
                meetings.apart = Time::from_ms(600);
                (options.weights.all, options.tick) = (1, Time::from_ms(1_500));
                options.sparse = 6;
            }
            Theme::Openings => {
                (meetings.removes, meetings.opens, meetings.begins) = (300_000, 150_000, 300_000);
                (meetings.agent, meetings.node, meetings.rank) = (2, 1, 2);
                meetings.apart = Time::from_ms(200);
                // So that incarnations open at all.
                (options.weights.rank, options.tick) = (1, Time::from_ms(1_000));
                options.slow = 30_000;
                options.sparse = 4;
            }
            Theme::Begins => begin(options),
            Theme::Latecomers => {
                options.levels =
                    Levels::of(&[Level::MEMORY, Level::DISK, Level::PARTNER, Level::SHARED]);
                (meetings.sends, meetings.writes, meetings.opens) = (400_000, 20_000, 400_000);
                (meetings.agent, meetings.node, meetings.rank) = (0, 3, 1);
                meetings.apart = Time::from_ms(100);
                options.faults.sync_max = Time::from_ms(30);
                (options.late, options.sparse, options.slow) = (900_000, 2, 0);
                // So that a start ends before it has a version of its own.
                (options.step_max, options.stride) = (Time::from_ms(60), 5);
            }
            Theme::Waits => {
                options.levels = options.levels.with(Level::SHARED);
                options.waits = 900_000;
                (meetings.captures, meetings.writes) = (50_000, 50_000);
                (meetings.agent, meetings.node, meetings.rank) = (6, 1, 1);
                meetings.apart = Time::from_ms(300);
                (options.faults.refuse, options.sparse) = (20_000, 3);
                options.net.loss = 20_000;
            }
            Theme::Served => serve(options),
            Theme::Forgotten => {
                options.forgets = 700_000;
                let weights = &mut options.weights;
                (weights.launcher, weights.agent, weights.rank, weights.node) = (12, 1, 1, 1);
                options.tick = Time::from_ms(700);
                (options.breaks, options.slow) = (options.breaks.max(100_000), 20_000);
            }
            Theme::Overwritten => {
                options.weights.memory = 1;
                options.tick = Time::from_ms(250);
                (meetings.agent, meetings.node, meetings.rank) = (2, 0, 1);
                // So that one level of a version is stable, and others are not yet.
                (options.slow, options.faults.refuse) = (0, 0);
                options.lasts.0 = Time::from_ms(400);
            }
            Theme::Captures => capture(options),
            Theme::Ends => end(options),
        }
    }
}

/// What [`Theme::Ends`] is.
const fn end(options: &mut Options) {
    options.lasts.1 = Time::from_ms(150);
    options.faults.refuse = 0;
}

/// What [`Theme::Begins`] is.
const fn begin(options: &mut Options) {
    let meetings = &mut options.meetings;
    meetings.begins = 700_000;
    (meetings.agent, meetings.node, meetings.rank) = (1, 0, 0);
    meetings.apart = Time::from_ms(300);
    (options.weights.rank, options.tick) = (1, Time::from_ms(600));
    (options.slow, options.faults.refuse) = (0, 0);
    options.net.loss = 50_000;
}

/// What [`Theme::Captures`] is.
const fn capture(options: &mut Options) {
    let meetings = &mut options.meetings;
    (meetings.fills, meetings.fill_us) = (100_000, 300_000);
    (meetings.agent, meetings.node, meetings.rank) = (12, 0, 1);
    meetings.apart = Time::from_ms(400);
    (options.forces, options.waits, options.stretch) = (3, 900_000, 20_000);
    // What is left to its bound stands out.
    (options.commit_ms, options.faults.refuse, options.sparse) = (60_000, 0, 3);
}

/// What [`Theme::Served`] is.
fn serve(options: &mut Options) {
    let level = Level::memory_server(3).into_iter();
    options.levels = level.fold(Levels::of(&[Level::MEMORY, Level::DISK]), Levels::with);
    (options.nodes, options.bare) = (options.nodes.max(3), 0);
    let weights = &mut options.weights;
    (weights.node, weights.server, weights.damage) = (4, 2, 1);
    // Nothing stands still: with slow storage, what a replaced coordinator opens late
    // would be all that the judge sees.
    (weights.agent, weights.rank) = (1, 1);
    options.tick = Time::from_ms(900);
    (options.slow, options.sparse) = (50_000, 3);
}

/// Nothing goes wrong but what storage refuses, in jobs of at most four nodes.
fn plain(options: &mut Options) {
    options.weights = Weights::default();
    options.nodes = options.nodes.min(4);
    options.bare = options.bare.min(1);
    options.coordinator %= options.nodes - options.bare;
    options.domains.clear();
    options.levels = Levels::of(&[Level::MEMORY, Level::DISK, Level::PARTNER]);
    options.net = LossyOptions::CALM;
    options.faults = Faults {
        crash: 0,
        ..options.faults.clone()
    };
    options.step_max = Time::from_ms(20);
    (options.scrub, options.waits, options.late) = (None, 0, 0);
    (options.heal, options.end) = (Time::from_secs(8), Time::from_secs(18));
    (options.last, options.late_restarts) = (options.end, 0);
    (options.stretch, options.early) = (0, 0);
    options.meetings = Meetings::default();
}
