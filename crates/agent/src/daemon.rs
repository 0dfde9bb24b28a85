//! The user's own command on this node, such as a collector of metrics: it runs in slots for service work, and
//! stands still between them (SIGSTOP and SIGCONT to its group of processes).
//!
//! Invariants: one at a time; it ends with this agent, also if that is killed; one that has ended by itself is
//! started again, but not at once.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error, Result};
use outlive_control::node::shell::{DaemonAct, Done};
use outlive_control::orders::AgentSpec;
use outlive_copies::memory::Work;
use outlive_copies::reports::Reports;
use rustix::process::{Pid, Signal, kill_process_group};

/// One that has ended is started again so long after it was started.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// How long it has to end by itself when it is told to.
const ENDS_WITHIN: Duration = Duration::from_millis(500);
const STEP: Duration = Duration::from_millis(5);

/// See the module.
pub struct Daemon {
    command: Option<String>,
    job: String,
    node: u32,
    log: PathBuf,
    child: Option<Child>,
    started: Option<Instant>,
    is_paused: bool,
}

impl Daemon {
    /// Of the user of this agent; it does not run yet.
    pub fn new(spec: &AgentSpec) -> Daemon {
        let log = spec.node_dir.join("daemon.log");
        let (job, node) = (spec.job.to_string(), spec.node.0);
        Daemon::of(spec.service.daemon.clone(), (job, node), log)
    }

    fn of(command: Option<String>, (job, node): (String, u32), log: PathBuf) -> Daemon {
        Daemon {
            command,
            job,
            node,
            log,
            child: None,
            started: None,
            is_paused: false,
        }
    }

    /// Does what the node wants; what goes wrong it is told.
    pub fn act(&mut self, act: DaemonAct, work: &Reports<Work>) {
        let outcome = match act {
            DaemonAct::Run => self.run(),
            DaemonAct::Pause => {
                self.signal(Signal::STOP);
                self.is_paused = true;
                Ok(())
            }
            DaemonAct::End => {
                self.end();
                Ok(())
            }
        };
        if let Err(error) = outcome {
            let _ = work.send(Done::Daemon(error));
        }
    }

    fn run(&mut self) -> Result<()> {
        let ended = self.child.as_mut().map(Child::try_wait);
        match ended {
            Some(Ok(None)) => {
                if std::mem::take(&mut self.is_paused) {
                    self.signal(Signal::CONT);
                }
                return Ok(());
            }
            Some(ended) => {
                // What it started may live on.
                self.signal(Signal::KILL);
                self.child = None;
                let how = match ended {
                    Ok(Some(status)) => status.to_string(),
                    Ok(None) => String::new(),
                    Err(error) => error.to_string(),
                };
                return Err(self.failed(format!("has ended: {how}")));
            }
            None => {}
        }
        if self.started.is_some_and(|at| at.elapsed() < AGAIN_AFTER) {
            return Ok(());
        }
        let Some(command) = self.command.clone() else {
            return Ok(());
        };
        self.started = Some(Instant::now());
        self.is_paused = false;
        let child = self.start(&command);
        self.child =
            Some(child.map_err(|error| self.failed(format!("cannot be started: {error}")))?);
        Ok(())
    }

    fn start(&self, command: &str) -> std::io::Result<Child> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)?;
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", command])
            .env("OUTLIVE_JOB", &self.job)
            .env("OUTLIVE_NODE", self.node.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        let agent = rustix::process::getpid();
        // SAFETY: `follow` only makes system calls and allocates nothing.
        unsafe { shell.pre_exec(move || follow(agent)) };
        shell.spawn()
    }

    fn failed(&self, what: String) -> Error {
        Error::new(
            Code::CommandFailed,
            Entity::Node(self.node),
            format!("the daemon (--daemon) {what}"),
            format!(
                "see what it wrote in {}; it is started again {} s after its last start",
                self.log.display(),
                AGAIN_AFTER.as_secs()
            ),
        )
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().map(Child::id);
        let group = id.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group
            && let Err(error) = kill_process_group(group, signal)
        {
            tracing::debug!(%error, ?signal, "the daemon's processes");
        }
    }

    fn end(&mut self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
        let since = Instant::now();
        let lives = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        while self.child.as_mut().is_some_and(lives) && since.elapsed() < ENDS_WITHIN {
            std::thread::sleep(STEP);
        }
        self.signal(Signal::KILL);
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

/// In the child: it ends when the agent does, also while it stands still.
fn follow(agent: Pid) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The agent may have ended before the line above took effect.
    match rustix::process::getppid() == Some(agent) {
        true => Ok(()),
        false => Err(std::io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};

    use super::*;

    fn until(what: &str, mut is: impl FnMut() -> bool) {
        let since = Instant::now();
        while !is() {
            assert!(since.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(STEP);
        }
    }

    fn state(pid: u32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    fn daemon(command: &str) -> (tempfile::TempDir, Daemon, Reports<Work>, Receiver<Work>) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("daemon.log");
        let (to, from) = unbounded::<Work>();
        let daemon = Daemon::of(Some(command.to_owned()), ("job".into(), 3), log);
        (dir, daemon, Reports::unwatched(to), from)
    }

    #[test]
    fn it_stands_still_and_goes_on_with_all_that_it_has_started() {
        let (dir, mut daemon, work, told) =
            daemon("echo $OUTLIVE_JOB/$OUTLIVE_NODE; sleep 600 & echo $!; wait");
        daemon.act(DaemonAct::Run, &work);
        let log = dir.path().join("daemon.log");
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        until("it says who it is", || said().lines().count() == 2);
        let child: u32 = said().lines().last().unwrap().parse().unwrap();
        assert!(said().starts_with("job/3\n"));
        let shell = daemon.child.as_ref().unwrap().id();
        for _ in 0..2 {
            daemon.act(DaemonAct::Pause, &work);
            until("both stand", || [shell, child].map(state) == [Some('T'); 2]);
            daemon.act(DaemonAct::Run, &work);
            until("both go on", || [shell, child].map(state) == [Some('S'); 2]);
        }
        daemon.act(DaemonAct::Pause, &work);
        daemon.act(DaemonAct::End, &work);
        until("both are gone", || {
            [shell, child]
                .iter()
                .all(|pid| matches!(state(*pid), None | Some('Z')))
        });
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn one_that_ends_is_told_with_its_status_and_not_started_again_at_once() {
        let (_dir, mut daemon, work, told) = daemon("exit 3");
        daemon.act(DaemonAct::Run, &work);
        let mut error = None;
        until("its end is told", || {
            daemon.act(DaemonAct::Run, &work);
            error = told.try_recv().ok();
            error.is_some()
        });
        let Some(Done::Daemon(error)) = error else {
            panic!("another word");
        };
        assert_eq!(error.code(), Code::CommandFailed);
        assert!(error.reason().contains("exit status: 3"), "{error}");
        daemon.act(DaemonAct::Run, &work);
        assert!(daemon.child.is_none());
    }

    #[test]
    fn one_that_cannot_be_started_is_told() {
        let (dir, mut daemon, work, told) = daemon("true");
        drop(dir);
        daemon.act(DaemonAct::Run, &work);
        let Ok(Done::Daemon(error)) = told.try_recv() else {
            panic!("nothing is told");
        };
        assert!(error.reason().contains("cannot be started"), "{error}");
    }
}
