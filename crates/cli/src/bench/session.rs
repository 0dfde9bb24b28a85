//! A job that is measured: `outlive run` in a process of its own, and a conversation
//! with its ranks, one line to and fro, over a socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error, Result};

use super::machine::{clock_ns, cores, descendants};

/// Where a rank finds the benchmark.
pub const SOCKET_VARIABLE: &str = "OUTLIVE_BENCH_SOCKET";
/// Longest time that any one step takes.
const PATIENCE: Duration = Duration::from_secs(180);
/// From the word to the common start of all ranks.
const LEAD_NS: u64 = 3_000_000;

pub fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::io("the benchmark", what, error)
}

pub fn odd(reason: impl Into<String>) -> Error {
    Error::new(
        Code::CommandFailed,
        Entity::Call,
        reason,
        "look at what the job said on standard error",
    )
}

/// The role of the process that removes a [`Scratch`].
pub const REMOVE: &str = "remove";
/// The most that is waited for the job of a killed benchmark to end.
const REMOVED_MAX: Duration = Duration::from_secs(60);

/// A directory that goes when this does, also when the benchmark is killed: another process
/// removes it as soon as the pipe between them breaks.
pub struct Scratch {
    path: PathBuf,
    remover: Child,
}

impl Scratch {
    /// Makes one in an existing directory, or in that of temporary files.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory.
    pub fn new(within: Option<&Path>) -> Result<Scratch> {
        let base = within.map_or_else(std::env::temp_dir, Path::to_owned);
        if !base.is_dir() {
            return Err(Error::new(
                Code::NotFound,
                Entity::File(base.display().to_string()),
                "there is no such directory",
                "check the spelling of --dir, or make the directory first",
            ));
        }
        let path = base.join(format!("outlive-bench-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let me = std::env::current_exe().map_err(|error| failed("find itself", &error))?;
        let remover = Command::new(me)
            .args(["bench", "save", "--role", REMOVE, "--dir"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // What ends this process group, Ctrl-C above all, does not end it.
            .process_group(0)
            .spawn()
            .map_err(|error| failed("start what cleans up", &error))?;
        std::fs::create_dir(&path).map_err(|error| Error::io(&path, "create", &error))?;
        Ok(Scratch { path, remover })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}

/// Removes `path` when standard input ends; goes on for as long as a job that is ending
/// writes there.
pub fn remove(path: Option<&Path>) -> u8 {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    let Some(path) = path else { return 0 };
    let until = Instant::now() + REMOVED_MAX;
    let mut absent = 0;
    while path.exists() || (1..10).contains(&absent) {
        if Instant::now() > until {
            return 1;
        }
        absent = match std::fs::remove_dir_all(path) {
            Err(_) if !path.exists() => absent + 1,
            _ => 1,
        };
        std::thread::sleep(Duration::from_millis(100));
    }
    0
}

/// A rank that answers.
struct Rank {
    to: UnixStream,
    from: BufReader<UnixStream>,
}

impl Rank {
    fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.to, "{line}").map_err(|error| failed("ask a rank", &error))
    }

    fn hear(&mut self) -> Result<Vec<String>> {
        let mut line = String::new();
        let heard = self.from.read_line(&mut line);
        match heard.map_err(|error| failed("hear a rank", &error))? {
            0 => Err(odd("a rank of the measured job has ended")),
            _ => {
                let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
                match words.first().map(String::as_str) {
                    Some("error") => Err(odd(format!("a rank says: {}", line.trim()))),
                    _ => Ok(words),
                }
            }
        }
    }
}

/// A running job.
pub struct Session {
    child: Child,
    listener: UnixListener,
    ranks: Vec<Rank>,
    store: PathBuf,
    report: PathBuf,
}

impl Session {
    /// Starts a job of `ranks` ranks with these options of `outlive run`.
    pub fn start(scratch: &Scratch, name: &str, ranks: usize, options: &[&str]) -> Result<Session> {
        Session::start_as(scratch, name, &format!("ranks:{ranks}"), options)
    }

    /// Starts a job whose command is this program in another role.
    pub fn start_as(
        scratch: &Scratch,
        name: &str,
        role: &str,
        options: &[&str],
    ) -> Result<Session> {
        let me = std::env::current_exe().map_err(|error| failed("find itself", &error))?;
        let socket = scratch.path().join(format!("{name}.sock"));
        let report = scratch.path().join(format!("{name}.json"));
        let store = scratch.path().join(name);
        let listener =
            UnixListener::bind(&socket).map_err(|error| Error::io(&socket, "listen", &error))?;
        let mut command = Command::new(&me);
        command
            .args(["run", "--quiet", "--job", "bench"])
            .arg("--store")
            .arg(&store)
            .arg("--report")
            .arg(&report)
            .args(options)
            .arg("--")
            .arg(&me)
            .args(["bench", "save", "--role", role])
            .env(SOCKET_VARIABLE, &socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        // A benchmark that is killed leaves no job that waits for it.
        outlive_launch::process::tie(&mut command);
        let child = command
            .spawn()
            .map_err(|error| failed("start outlive run", &error))?;
        Ok(Session {
            child,
            listener,
            ranks: Vec::new(),
            store: store.join("bench"),
            report,
        })
    }

    /// Waits until all ranks of a start have said hello.
    pub fn gather(&mut self, ranks: usize) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut met: Vec<Option<Rank>> = (0..ranks).map(|_| None).collect();
        self.listener
            .set_nonblocking(true)
            .map_err(|error| failed("wait for ranks", &error))?;
        while met.iter().any(Option::is_none) {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(_) => {
                    let ended = self.child.try_wait().ok().flatten();
                    if ended.is_some() || Instant::now() > until {
                        return Err(odd("the ranks of the measured job do not come up"));
                    }
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
            };
            let set = stream
                .set_nonblocking(false)
                .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
                .and_then(|()| stream.try_clone());
            let from = BufReader::new(set.map_err(|error| failed("talk to a rank", &error))?);
            let mut rank = Rank { to: stream, from };
            let hello = rank.hear()?;
            let number = hello.get(1).and_then(|word| word.parse::<usize>().ok());
            match number.and_then(|number| met.get_mut(number)) {
                Some(place) => *place = Some(rank),
                None => return Err(odd("a rank introduces itself oddly")),
            }
        }
        self.ranks = met.into_iter().flatten().collect();
        Ok(())
    }

    /// Says the same to all ranks and gives their answers.
    pub fn all(&mut self, line: &str) -> Result<Vec<Vec<String>>> {
        for rank in &mut self.ranks {
            rank.say(line)?;
        }
        // An error of one leaves no answer of another unread.
        let heard: Vec<_> = self.ranks.iter_mut().map(Rank::hear).collect();
        heard.into_iter().collect()
    }

    /// Says something to one rank.
    pub fn one(&mut self, rank: usize, line: &str) -> Result<Vec<String>> {
        let rank = self
            .ranks
            .get_mut(rank)
            .ok_or_else(|| odd("no such rank"))?;
        rank.say(line)?;
        rank.hear()
    }

    /// As [`Session::all`], with a common time to start at as the last word.
    pub fn together(&mut self, line: &str) -> Result<Vec<Vec<String>>> {
        let at = clock_ns() + LEAD_NS * (1 + self.ranks.len().div_ceil(cores())) as u64;
        self.all(&format!("{line} {at}"))
    }

    /// The launcher, and the keepers and agents.
    pub fn services(&self) -> Vec<(u32, String)> {
        let launcher = self.child.id();
        let mut found: Vec<(u32, String)> = descendants(launcher)
            .into_iter()
            .filter(|(_, word)| word == "keeper" || word == "agent")
            .collect();
        found.push((launcher, "run".into()));
        found
    }

    /// Identifies the job in its records.
    pub fn job_hash(&self) -> Result<u64> {
        outlive_launch::job_hash("bench", &self.store.join(outlive_launch::layout::KEY))
    }

    /// The job's directory.
    pub fn job_dir(&self) -> &Path {
        &self.store
    }

    /// Storage of a node.
    pub fn node_dir(&self, node: u32) -> PathBuf {
        self.store
            .join(outlive_launch::layout::NODES)
            .join(format!("node-{node}"))
    }

    /// Waits for the end of a job whose ranks end by themselves; its report.
    pub fn finish(mut self) -> Result<serde_json::Value> {
        for rank in &mut self.ranks {
            let _ = rank.say("close");
        }
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().ok().flatten().is_none() {
            if Instant::now() > until {
                return Err(odd("the measured job does not end"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let text =
            std::fs::read(&self.report).map_err(|error| Error::io(&self.report, "read", &error))?;
        serde_json::from_slice(&text).map_err(|error| odd(format!("the report: {error}")))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // In order first: the launcher ends everything that it started.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let until = Instant::now() + Duration::from_secs(20);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The nth word of an answer as a number.
pub fn word(answer: &[String], nth: usize) -> f64 {
    answer
        .get(nth)
        .and_then(|word| word.parse().ok())
        .unwrap_or(f64::NAN)
}
