//! `outlive bench levels`: how soon each protection keeps a version, beside what the machine does
//! at best with the bytes that it must move, and what it costs.
//!
//! One job after the other, each with one level, real agents and ranks that hold and have touched
//! their memory. The floors are measured in turns with the versions, by the same ranks and on the
//! same storage.

mod lines;
mod server;

use std::path::Path;
use std::time::Duration;

use outlive_base::level::StoreKind;
use outlive_base::{Code, Entity, Error, Level, Result};
use outlive_control::units::{show_bytes, size_bytes};

use self::lines::{Beside, Levels, Line, Measured, Used};
use self::server::MemoryServer;
use super::floors::{self, Disk, Moves, Rates};
use super::machine::{self, Machine};
use super::save::{STRIDE, save};
use super::session::{Scratch, Session, failed, odd, word};
use super::table::Stat;
use crate::args::BenchOptions;
use crate::memory;

/// Emulated nodes where none are given.
const NODES: u32 = 4;
/// Of work between two calls of the busy run, in microseconds of a core.
const UNIT_US: u64 = 1000;
/// The busy run lasts so many times as long as a version takes, within these seconds: what is
/// done in the background falls into it.
const RUN: (f64, f64, f64) = (3.0, 0.5, 6.0);
/// For the next version to be armed.
const PAUSE: Duration = Duration::from_millis(150);
/// Bytes of a floor of the network, least and most: fewer say nothing of the rate, more no more.
const LINK: (u64, u64) = (16 << 20, 256 << 20);
/// Beside two slots, for each node, and for tables of each rank.
const BUDGET_MORE: u64 = 16 << 20;
/// Versions of which a memory server has parities at once, at most.
const SERVED: u64 = 4;
/// Versions that lie on storage at once, at most: two that are kept and one that is written.
const STORED: f64 = 3.0;

/// What is asked for.
pub struct Wanted {
    pub levels: Vec<(Level, Moves)>,
    pub nodes: u32,
    pub ranks: u32,
    /// Of each rank.
    pub bytes: u64,
    pub versions: u32,
    pub more: Vec<String>,
}

fn refuse(option: &str, reason: impl Into<String>, remedy: &str) -> Error {
    let entity = Entity::Option(option.into());
    Error::new(Code::InvalidArgument, entity, reason, remedy)
}

/// A level by name that these nodes can have.
fn level(name: &str, nodes: u32) -> Result<(Level, Moves)> {
    let at = |error: &Error| refuse("levels", error.reason().to_owned(), error.remedy());
    let level: Level = name.trim().parse().map_err(|error| at(&error))?;
    if level.protection().m > 0 && nodes < 2 {
        let reason = format!("the level {level} needs two nodes");
        return Err(refuse("levels", reason, "give more --nodes"));
    }
    let moves = Moves::of(level, nodes).map_err(|error| at(&error))?;
    Ok((level, moves))
}

impl Wanted {
    /// From the command line.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for what means nothing, needs more nodes, or more memory than
    /// there is; [`Code::NoSpace`] if storage cannot hold it.
    pub fn new(options: &BenchOptions, names: &[String]) -> Result<Wanted> {
        let nodes = options.agents.nodes.unwrap_or(NODES);
        let ranks = match options.collectives.ranks.as_deref() {
            None => nodes.max(machine::cores() as u32),
            Some([ranks]) if *ranks >= nodes && *ranks <= 1024 => *ranks,
            Some(_) => {
                let remedy = "give one number, at least one for each node and at most 1024";
                return Err(refuse("ranks", "is no number of ranks of this job", remedy));
            }
        };
        let mut levels: Vec<(Level, Moves)> = Vec::new();
        for name in names {
            let found = level(name, nodes)?;
            if levels.iter().any(|(level, _)| *level == found.0) {
                let reason = format!("'{}' is given twice", found.0);
                return Err(refuse("levels", reason, "give each level once"));
            }
            levels.push(found);
        }
        let bytes = size_bytes("bytes", &options.levels.bytes)?;
        let each = bytes / u64::from(ranks) / 8 * 8;
        if each == 0 {
            let reason = format!("{bytes} bytes are too few for {ranks} ranks");
            return Err(refuse(
                "bytes",
                reason,
                "give 8 bytes or more for each rank",
            ));
        }
        let wanted = Wanted {
            levels,
            nodes,
            ranks,
            bytes: each,
            versions: options.levels.versions,
            more: options.levels.run_option.clone(),
        };
        // The program's memory, a place to copy it to, and two slots.
        let what = format!(
            "a program of {}, its copy and two slots for it",
            show_bytes(wanted.all())
        );
        memory::fits("bytes", &what, wanted.all().saturating_mul(4))?;
        Ok(wanted)
    }

    /// Protected bytes of a version.
    pub const fn all(&self) -> u64 {
        self.bytes * self.ranks as u64
    }

    /// Most bytes of files that a level alone keeps for each protected byte.
    fn copies(&self) -> f64 {
        let each = self.levels.iter().map(|(_, moves)| moves.disk);
        each.fold(0.0, f64::max)
    }

    /// Refuses what storage has no room for, with so many copies of a version, and a floor.
    ///
    /// # Errors
    /// [`Code::NoSpace`].
    pub fn has_room(&self, dir: &Path, copies: f64) -> Result<()> {
        let needed = (self.all() as f64 * (copies * STORED + 1.0)) as u64;
        let stat = rustix::fs::statvfs(dir)
            .map_err(|error| Error::io(dir, "ask for free space of", &error.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if needed <= free {
            return Ok(());
        }
        Err(Error::new(
            Code::NoSpace,
            Entity::File(dir.display().to_string()),
            format!(
                "{} are free there, and this takes up to {}",
                show_bytes(free),
                show_bytes(needed)
            ),
            "give fewer --bytes, or --dir on storage with more room",
        ))
    }

    /// Options of `outlive run` for these levels.
    pub fn settings(&self, levels: &str) -> Vec<String> {
        let on_a_node = u64::from(self.ranks.div_ceil(self.nodes));
        let budget = on_a_node * (2 * self.bytes + (2 << 20)) + BUDGET_MORE;
        let words = [
            "--emulate-nodes",
            &self.nodes.to_string(),
            "--levels",
            levels,
            "--every",
            &STRIDE.to_string(),
            "--memory",
            &format!("{budget}B"),
            "--commit-timeout",
            "120s",
        ];
        let words = words.map(str::to_owned).into_iter();
        words.chain(self.more.iter().cloned()).collect()
    }

    /// The server that a level needs: with room for the parities of the versions that are kept,
    /// of those that are on their way and of one that is removed, each as long as the largest
    /// container of its group.
    fn server(&self, scratch: &Scratch, name: &str, level: Level) -> Result<Option<MemoryServer>> {
        if level.store() != StoreKind::Server {
            return Ok(None);
        }
        let domains: Vec<u32> = (0..self.nodes).collect();
        let groups = outlive_vault::groups(level, &domains)?.len() as u64;
        let container = u64::from(self.ranks.div_ceil(self.nodes)) * (self.bytes + (1 << 20));
        let bytes = (groups * container).saturating_mul(SERVED) + BUDGET_MORE;
        memory::fits("bytes", "the memory server", bytes)?;
        MemoryServer::start(&scratch.path().join(name), bytes).map(Some)
    }

    /// Starts a job with ranks that hold their memory and have offered a version.
    ///
    /// # Errors
    /// What the job says.
    pub fn start(&self, scratch: &Scratch, name: &str, levels: &str) -> Result<Session> {
        self.start_with(scratch, name, levels, None)
    }

    fn start_with(
        &self,
        scratch: &Scratch,
        name: &str,
        levels: &str,
        server: Option<&MemoryServer>,
    ) -> Result<Session> {
        let mut settings = self.settings(levels);
        if let Some(server) = server {
            settings.extend(["--memory-server".to_owned(), server.address.clone()]);
        }
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let ranks = self.ranks as usize;
        let mut session = Session::start(scratch, name, ranks, &settings)?;
        session.gather(ranks)?;
        session.all(&format!("fill {} 7", self.bytes))?;
        session.all("target")?;
        session.all("open")?;
        session.all("offer 1 0")?;
        Ok(session)
    }
}

/// From the first rank's call until the last rank knows that a version survives this, in seconds.
pub fn until(
    session: &mut Session,
    offered: &[Vec<String>],
    version: u64,
    survives: &str,
) -> Result<f64> {
    let called = offered
        .iter()
        .map(|answer| word(answer, 3) - word(answer, 1));
    let called = called.fold(f64::INFINITY, f64::min);
    let known = session.all(&format!("wait {version} {survives}"))?;
    let known = known.iter().map(|answer| word(answer, 1));
    Ok((known.fold(0.0, f64::max) - called) / 1e9)
}

/// Bytes of the containers and parities of a version, wherever they lie below a directory.
fn stored(dir: &Path, version: u64) -> u64 {
    let of = format!("-v{version}-");
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let each = entries.map(|entry| {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        let kind = path.extension().and_then(|it| it.to_str());
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => stored(&path, version),
            Ok(meta) if name.contains(&of) && matches!(kind, Some("olc" | "olp")) => meta.len(),
            _ => 0,
        }
    });
    each.sum()
}

/// What a memory server is among the services of a job.
const SERVER: &str = "memory-server";

struct Bench<'a> {
    wanted: &'a Wanted,
    scratch: &'a Scratch,
    disk: &'a mut Disk,
    session: Session,
    services: Vec<(u32, String)>,
    level: Level,
    version: u64,
}

impl Bench<'_> {
    fn used(&mut self) -> Result<Used> {
        let ranks = self.session.all("cpu")?;
        let mut used = Used {
            ranks: ranks.iter().map(|answer| word(answer, 1)).sum::<f64>() / 1e9,
            ..Used::default()
        };
        for (pid, what) in &self.services {
            let seconds = machine::core_seconds(*pid);
            match what.as_str() {
                "run" => used.launcher += seconds,
                SERVER => used.server += seconds,
                _ => used.agents += seconds,
            }
        }
        Ok(used)
    }

    fn rates(&mut self) -> Result<Rates> {
        let all = self.wanted.all();
        let copies = self.session.together("copy")?;
        let slowest = copies.iter().map(|answer| word(answer, 1));
        let wrong = |error: std::io::Error| failed("measure what the machine does", &error);
        let connections = machine::cores().min(self.wanted.nodes as usize);
        Ok(Rates {
            memory: all as f64 / (slowest.fold(0.0, f64::max) / 1e9),
            link: floors::link(all.clamp(LINK.0, LINK.1), connections).map_err(wrong)?,
            disk: self.disk.write(self.scratch.path(), all).map_err(wrong)?,
        })
    }

    fn save(&mut self) -> Result<f64> {
        let offered = save(&mut self.session, &mut self.version)?;
        let survives = self.level.survives().name();
        until(&mut self.session, &offered, self.version, survives)
    }

    fn versions(&mut self, measured: &mut Measured) -> Result<()> {
        // The first use of each slot, of files and of threads is not what is asked about.
        for _ in 0..2 {
            self.save()?;
        }
        self.rates()?;
        for nth in 0..self.wanted.versions {
            // Before, after: a drift of the machine hits both.
            let before = match nth % 2 {
                0 => Some(self.rates()?),
                _ => None,
            };
            let begun = self.used()?;
            measured.seconds.push(self.save()?);
            let ended = self.used()?;
            measured.used.ranks += ended.ranks - begun.ranks;
            measured.used.agents += ended.agents - begun.agents;
            measured.used.launcher += ended.launcher - begun.launcher;
            measured.used.server += ended.server - begun.server;
            let rates = match before {
                Some(rates) => rates,
                None => self.rates()?,
            };
            measured.rates.push(rates);
        }
        let files = stored(self.session.job_dir(), self.version);
        measured.stored = (files > 0).then_some(files);
        Ok(())
    }

    /// Pairs of runs on all cores, without and with a version after a third of it.
    fn runs(&mut self, measured: &mut Measured) -> Result<()> {
        let (times, least, most) = RUN;
        let seconds = (times * Stat::of(&measured.seconds).median).clamp(least, most);
        self.session.all(&format!("calibrate {UNIT_US}"))?;
        let share = machine::cores() as f64 / f64::from(self.wanted.ranks);
        let units = (seconds * 1e6 / UNIT_US as f64 * share.min(1.0)).max(30.0) as u64;
        let longest = |answers: &[Vec<String>]| {
            let each = answers.iter().map(|answer| word(answer, 1));
            each.fold(0.0, f64::max) / 1e9
        };
        let plain = format!("compute {units} -");
        for nth in 0..self.wanted.versions {
            let mut without = None;
            if nth % 2 == 0 {
                without = Some(longest(&self.session.together(&plain)?));
            }
            std::thread::sleep(PAUSE);
            self.version += STRIDE;
            let first = self.version - units / 3;
            let answers = self.session.together(&format!("compute {units} {first}"))?;
            let taken = answers.iter().all(|answer| word(answer, 3) == 1.0);
            let version = word(&answers[0], 4) as u64;
            if taken {
                let survives = self.level.survives().name();
                self.session.all(&format!("wait {version} {survives}"))?;
            }
            let without = match without {
                Some(seconds) => seconds,
                None => longest(&self.session.together(&plain)?),
            };
            if taken {
                measured.with.push(longest(&answers));
                measured.without.push(without);
            }
        }
        match measured.with.is_empty() {
            true => Err(odd("no version was taken during a run on all cores")),
            false => Ok(()),
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Those of [`Wanted::new`], and of the jobs.
pub fn run(options: &BenchOptions) -> Result<u8> {
    let wanted = Wanted::new(options, &options.levels.levels)?;
    let machine = Machine::here();
    let scratch = Scratch::new(options.dir.as_deref())?;
    wanted.has_room(scratch.path(), wanted.copies())?;
    let mut disk = Disk::new(machine::cores().min(wanted.nodes as usize));
    let mut levels = Vec::new();
    for (nth, &(level, moves)) in wanted.levels.iter().enumerate() {
        let name = format!("level-{nth}");
        let server = wanted.server(&scratch, &name, level)?;
        let session = wanted.start_with(&scratch, &name, level.name(), server.as_ref())?;
        let mut services = session.services();
        services.extend(server.as_ref().map(|it| (it.pid(), SERVER.to_owned())));
        let mut bench = Bench {
            services,
            wanted: &wanted,
            scratch: &scratch,
            disk: &mut disk,
            session,
            level,
            version: 0,
        };
        let mut measured = Measured {
            bytes: wanted.all(),
            ..Measured::default()
        };
        bench.versions(&mut measured)?;
        bench.runs(&mut measured)?;
        bench.session.finish()?;
        // The next level finds the storage as this one did.
        let _ = std::fs::remove_dir_all(scratch.path().join(&name));
        levels.push(Line::new(level, moves, &measured));
    }
    let table = Levels {
        schema: "outlive.bench.levels/1",
        machine,
        bytes: wanted.all(),
        nodes: wanted.nodes,
        ranks: wanted.ranks,
        versions: wanted.versions,
        compared: Beside::of(&levels),
        levels,
        notes: notes(&wanted),
    };
    table.print(options.json)
}

fn notes(wanted: &Wanted) -> Vec<String> {
    let mut notes = vec![
        "MB/s: protected bytes, from the call until all ranks know that the version is stable; \
         stored: bytes of files for each protected byte"
            .to_owned(),
        "limit: the slowest of memory copy, loopback link and disk with sync, measured in turns \
         with the versions, over the bytes that the level must move on each; reading back what \
         was written is not in it"
            .to_owned(),
        "partner: each copy is sent from memory while the node's own is written, as Buddy does; \
         there is no way that reads it from disk first, so none is compared"
            .to_owned(),
    ];
    let cores = machine::cores() as u32;
    if wanted.ranks < cores {
        notes.push(format!(
            "{} ranks keep as many of {cores} cores busy: give more --ranks",
            wanted.ranks
        ));
    }
    notes.push(format!("load {} at the end", machine::load()));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_version_are_counted_wherever_they_lie() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, bytes: usize| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, vec![0; bytes]).unwrap();
        };
        put("nodes/node-0/containers/i1-v20-n0.olc", 100);
        put("nodes/node-1/partner/i1-v20-n0.olc", 100);
        put("nodes/node-0/parity/i1-v20-n0.xor4.olp", 7);
        put("shared/containers/i1-v20-n0.olc", 100);
        put("nodes/node-0/containers/i1-v200-n0.olc", 1000);
        put("nodes/node-0/records/commit-i1-v20-disk-b1.rec", 1000);
        assert_eq!(stored(dir.path(), 20), 307);
        assert_eq!(stored(&dir.path().join("absent"), 20), 0);
    }

    #[test]
    fn storage_without_room_is_refused_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let with = |bytes| Wanted {
            levels: vec![level("memory", 2).unwrap(), level("partner", 2).unwrap()],
            nodes: 2,
            ranks: 2,
            bytes,
            versions: 1,
            more: Vec::new(),
        };
        assert_eq!(with(8).copies(), 2.0);
        assert!(with(8).has_room(dir.path(), 2.0).is_ok());
        let error = with(1 << 60).has_room(dir.path(), 2.0).unwrap_err();
        assert_eq!(error.code(), Code::NoSpace);
        // Three versions of two copies, and a floor.
        assert!(error.reason().contains("up to 14680064.0 TiB"), "{error}");
        let absent = with(8)
            .has_room(Path::new("/no/such/place"), 2.0)
            .unwrap_err();
        assert_eq!(absent.code(), Code::NotFound);
    }

    #[test]
    fn levels_that_these_nodes_cannot_have_are_refused() {
        assert!(level("partner", 2).is_ok() && level(" disk", 1).is_ok());
        for (name, nodes, says) in [
            ("tape", 4, "'tape' is no checkpoint level"),
            ("partner", 1, "the level partner needs two nodes"),
            ("xor:4", 3, "needs at least 4 nodes"),
            ("rs:4+2", 5, "needs at least 6 nodes"),
            ("", 4, "is no checkpoint level"),
        ] {
            let error = level(name, nodes).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.reason().contains(says), "{error}");
        }
    }
}
