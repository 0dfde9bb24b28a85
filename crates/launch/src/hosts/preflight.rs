//! A look at all hosts before a job runs on them: each answers for itself, says what time it is,
//! and tries to reach others.
//!
//! Started on each host through the source's own command, as a job's nodes are, with the same lines
//! of words. Nothing is left there: a host's end of the line ends with the line.
//!
//! Invariant: no wait is longer than [`Request::within`], whatever a host does or does not say.

use std::io::{BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use outlive_base::{Code, Entity, Error, Ports, Result};
use outlive_network::listen_within;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::address::{self, Subnet};
use super::advice;
use super::clock::{ClockOffset, unix_ms};
use super::line::next_line;
use super::relay;
use super::serve;
use super::source::{Host, Source};
use crate::{host_words as words, process};

/// Others that each host tries to reach: those that follow it, round the list.
pub const PEERS: usize = 8;
/// How long one other may take to answer.
const PEER_ANSWERS: Duration = Duration::from_secs(2);
/// How long a program that connects may take to end when its line has, before it is killed.
const ENDS: Duration = Duration::from_secs(2);
/// What is kept of what the program that connects has said last, in characters.
const LAST_WORDS_MAX: usize = 200;

/// What hosts are asked.
#[derive(Debug)]
pub struct Request<'a> {
    /// Where they come from, and how they are reached.
    pub source: &'a dyn Source,
    /// Where outlive lies on them; `None`: where this program does.
    pub executable: Option<PathBuf>,
    /// The network between them.
    pub network: Option<Subnet>,
    /// The ports that are open between them.
    pub ports: Ports,
    /// Directory of all jobs.
    pub store: PathBuf,
    /// Each host's own directory.
    pub node_storage: PathBuf,
    /// What stands in a file of the store, and that file: who reads it there sees this store.
    pub token: (PathBuf, String),
    /// For each of three answers.
    pub within: Duration,
}

/// What a host is told to look at.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Question {
    /// Directory of all jobs.
    pub store: PathBuf,
    /// The host's own directory.
    pub node_storage: PathBuf,
    /// A file of the store and what stands in it.
    pub token: (PathBuf, String),
    /// Hosts read the job's key there.
    pub key_in_store: bool,
    /// The ports that are open between hosts.
    pub ports: Ports,
    /// Where whoever asks may be reached.
    launchers: Vec<SocketAddr>,
}

#[derive(Serialize, Deserialize)]
enum ToHost {
    Look(Question),
    /// Try to reach these.
    Reach(Vec<(String, SocketAddr)>),
}

#[derive(Serialize, Deserialize)]
enum FromHost<T> {
    /// The first word.
    Hello { version: String, program: u64 },
    /// The answer to [`ToHost::Look`] at once: milliseconds since 1970.
    Clock { unix_ms: f64 },
    /// And when it has looked.
    Found(Found<T>),
    /// Those that were not reached, each with the reason.
    Unreached(Vec<(String, String)>),
}

#[derive(Serialize, Deserialize)]
struct Found<T> {
    what: T,
    /// Where whoever asked was reached, and this host's own address on that way.
    way: std::result::Result<(SocketAddr, IpAddr), String>,
    listens: Option<SocketAddr>,
}

/// What is known of a host that has answered.
#[derive(Debug)]
pub struct Answer<T> {
    /// The version of its program.
    pub version: String,
    /// It is the same build.
    pub same_build: bool,
    /// Its clock.
    pub clock: Option<ClockOffset>,
    /// Where it has reached this machine, and under which address it did; or why it has not.
    pub way: std::result::Result<(SocketAddr, IpAddr), String>,
    /// What it has found at home.
    pub what: T,
    /// Of so many others that it was to reach,
    pub tried: usize,
    /// those that it has not reached, each with the reason; `None`: it did not say in time.
    pub unreached: Option<Vec<(String, String)>>,
}

/// A host's end of the line: looks at what it is asked for, by `look`, until the line ends.
///
/// # Errors
/// Those of reading this program.
pub fn answer<T: Serialize>(look: impl FnOnce(&Question) -> T) -> Result<u8> {
    let mut from = BufReader::new(std::io::stdin());
    let say = |word: &FromHost<T>| -> Result<()> {
        let mut out = std::io::stdout().lock();
        let text = words::write(word)?;
        // Nobody reads it any more: the line's end follows.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        Ok(())
    };
    say(&FromHost::Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        program: serve::program()?,
    })?;
    let mut look = Some(look);
    while let Some(line) = next_line(&mut from)? {
        match words::read::<ToHost>(&line)? {
            Some(ToHost::Look(question)) => {
                let unix_ms = unix_ms();
                say(&FromHost::Clock { unix_ms })?;
                let way = address::reach(&question.launchers);
                let way = way.map_err(|error| error.reason().to_owned());
                // Where others look for it, whether the launcher is reached or not.
                let own = match &way {
                    Ok((_, own)) => Some(*own),
                    Err(_) => relay::own_address(&question.launchers).ok(),
                };
                let listens = own.and_then(|own| listen(own, question.ports));
                if let Some(look) = look.take() {
                    let what = look(&question);
                    say(&FromHost::Found(Found { what, way, listens }))?;
                }
            }
            Some(ToHost::Reach(others)) => say(&FromHost::Unreached(try_all(others)))?,
            None => {}
        }
    }
    Ok(0)
}

/// Takes connections until this process ends.
fn listen(own: IpAddr, ports: Ports) -> Option<SocketAddr> {
    let listener = listen_within(own, ports).ok()?;
    let address = listener.local_addr().ok()?;
    let accept = move || listener.incoming().for_each(drop);
    let thread = std::thread::Builder::new().name("accept".into());
    thread.spawn(accept).ok().map(|_| address)
}

/// All at once: what drops packets costs its time only once.
fn try_all(others: Vec<(String, SocketAddr)>) -> Vec<(String, String)> {
    let attempt = |(name, address): (String, SocketAddr)| {
        let reached = move || TcpStream::connect_timeout(&address, PEER_ANSWERS).map(drop);
        (name, address, std::thread::spawn(reached))
    };
    let attempts: Vec<_> = others.into_iter().map(attempt).collect();
    let unreached = attempts.into_iter().filter_map(|(name, address, thread)| {
        let reached = thread.join().unwrap_or(Ok(()));
        Some((name, format!("{address}: {}", reached.err()?)))
    });
    unreached.collect()
}

/// One host, as whoever asks sees it.
struct Call<T> {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<(Instant, Result<FromHost<T>>)>,
    last_words: Arc<Mutex<String>>,
    /// Ends when nothing more is said on the standard error.
    said_all: Receiver<()>,
}

impl<T> Call<T> {
    /// How it has ended; it is killed if it has not by then.
    fn end(&mut self, until: Instant) -> std::io::Result<ExitStatus> {
        self.to = None;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        // Most have ended by now, in `examine`.
        let _ = self.end(Instant::now());
    }
}

impl<T: DeserializeOwned + Send + 'static> Call<T> {
    fn open(request: &Request<'_>, host: &Host, program: &str) -> Result<Call<T>> {
        let words = [program, "doctor", "--answer"].map(str::to_owned);
        let mut command = request.source.shell(host, &words);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Without a terminal nobody can be asked there.
        process::detach(&mut command);
        let mut child = command.spawn().map_err(|error| {
            Error::internal(format!("{}: {error}", command.get_program().display()))
        })?;
        let (said, from) = unbounded();
        let last_words: Arc<Mutex<String>> = Arc::default();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut out = BufReader::new(out);
                while let Ok(Some(line)) = next_line(&mut out) {
                    if let Some(word) = words::read(&line).transpose()
                        && said.send((Instant::now(), word)).is_err()
                    {
                        return;
                    }
                }
            });
        }
        let (errors_end, said_all) = bounded(0);
        if let Some(errors) = child.stderr.take() {
            let kept = Arc::clone(&last_words);
            std::thread::spawn(move || {
                let _errors_end: Sender<()> = errors_end;
                let mut errors = BufReader::new(errors);
                while let Ok(Some(line)) = next_line(&mut errors) {
                    if !line.trim().is_empty() {
                        *kept.lock().unwrap_or_else(PoisonError::into_inner) =
                            line.trim().chars().take(LAST_WORDS_MAX).collect();
                    }
                }
            });
        }
        Ok(Call {
            to: child.stdin.take(),
            child,
            from,
            last_words,
            said_all,
        })
    }

    fn say(&mut self, word: &ToHost) -> Result<()> {
        let text = words::write(word)?;
        if let Some(to) = &mut self.to {
            // A line that has ended is found when an answer is waited for.
            let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
        }
        Ok(())
    }

    /// The next word; else why there is none.
    fn hear(&mut self, until: Instant) -> std::result::Result<(Instant, FromHost<T>), String> {
        match self.from.recv_deadline(until) {
            Ok((at, Ok(word))) => Ok((at, word)),
            Ok((_, Err(error))) => Err(error.reason().to_owned()),
            Err(RecvTimeoutError::Timeout) => Err("does not answer in time".to_owned()),
            Err(RecvTimeoutError::Disconnected) => Err(self.ending()),
        }
    }

    /// How the program that connects has ended.
    fn ending(&mut self) -> String {
        let until = Instant::now() + ENDS;
        let status = self.end(until);
        // What it has started may hold its standard error for longer.
        let _ = self.said_all.recv_deadline(until);
        let words = self.last_words.lock();
        let words = words.unwrap_or_else(PoisonError::into_inner).clone();
        let how = match status {
            Ok(status) if status.code() == Some(127) => "outlive is not there".to_owned(),
            Ok(status) => format!("the command that connects has ended ({status})"),
            Err(error) => error.to_string(),
        };
        match words.is_empty() {
            true => how,
            false => format!("{how}: {}", advice::with(&words)),
        }
    }

    /// Begins: the host's first words.
    fn meet(&mut self, until: Instant, question: &Question, ours: u64) -> Step<Answer<Option<T>>> {
        let (_, hello) = self.hear(until)?;
        let FromHost::Hello { version, program } = hello else {
            return Err("speaks out of turn".to_owned());
        };
        let asked = Instant::now();
        let look = ToHost::Look(question.clone());
        self.say(&look).map_err(|error| error.reason().to_owned())?;
        let (at, clock) = self.hear(until)?;
        let FromHost::Clock { unix_ms } = clock else {
            return Err("speaks out of turn".to_owned());
        };
        // This machine's clock now, not when the answer came: another answer may have been
        // waited for since.
        let passed = at.elapsed();
        let clock = ClockOffset::within(
            unix_ms + passed.as_secs_f64() * 1e3,
            asked.elapsed() - passed,
        );
        Ok(Answer {
            version,
            same_build: program == ours,
            clock: Some(clock),
            way: Err(String::new()),
            what: None,
            tried: 0,
            unreached: None,
        })
    }
}

/// Why a host is given up.
type Step<T> = std::result::Result<T, String>;

/// Asks all hosts of a source; in their order, what each has said or why it has not.
///
/// # Errors
/// [`outlive_base::Code::Network`] if this machine has no address in the network; those of
/// reading this program.
pub fn examine<T: DeserializeOwned + Send + 'static>(
    request: &Request<'_>,
) -> Result<Vec<Step<Answer<T>>>> {
    let listener = listen_within(address::any_address(), request.ports).map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::AddrInUse => Code::AddressInUse,
            _ => Code::Network,
        };
        let entity = Entity::Option("ports".to_owned());
        let remedy = "give other ports, or a wider range";
        Error::new(code, entity, format!("listen: {error}"), remedy)
    })?;
    let port = listener.local_addr().map_or(0, |address| address.port());
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let question = Question {
        store: request.store.clone(),
        node_storage: request.node_storage.clone(),
        token: request.token.clone(),
        key_in_store: !request.source.keeps_secrets(),
        ports: request.ports,
        launchers: address::of_this_machine(port, request.network)?,
    };
    let program = match &request.executable {
        Some(path) => path.clone(),
        None => serve::program_path()?,
    };
    let program = program.display().to_string();
    let (ours, hosts) = (serve::program()?, request.source.hosts());
    let text = |error: Error| error.reason().to_owned();
    let open = |host| Call::<T>::open(request, host, &program).map_err(text);
    let mut calls: Vec<Step<Call<T>>> = hosts.iter().map(open).collect();
    let until = Instant::now() + request.within;
    let mut met = Vec::new();
    for call in &mut calls {
        let call = call.as_mut().map_err(|why| why.clone());
        met.push(call.and_then(|call| call.meet(until, &question, ours)));
    }
    let until = Instant::now() + request.within;
    let mut listening = Vec::new();
    for (at, answer) in met.iter_mut().enumerate() {
        let found = match (&mut calls[at], &answer) {
            (Ok(call), Ok(_)) => call.hear(until).map(|(_, word)| word),
            _ => continue,
        };
        match (found, answer.as_mut()) {
            (Ok(FromHost::Found(found)), Ok(answer)) => {
                (answer.what, answer.way) = (Some(found.what), found.way);
                listening.extend(found.listens.map(|address| (at, address)));
            }
            (Ok(_), _) => *answer = Err("speaks out of turn".to_owned()),
            (Err(why), _) => *answer = Err(why),
        }
    }
    reach_others(request, &mut calls, &mut met, &listening);
    // All at once: each host's end of the line ends with the line.
    for call in calls.iter_mut().flatten() {
        call.to = None;
    }
    let until = Instant::now() + ENDS;
    for call in calls.iter_mut().flatten() {
        let _ = call.end(until);
    }
    let whole = |answer: Answer<Option<T>>| {
        let Answer {
            version,
            same_build,
            clock,
            way,
            what,
            tried,
            unreached,
        } = answer;
        Ok(Answer {
            what: what.ok_or("has not said what it found")?,
            version,
            same_build,
            clock,
            way,
            tried,
            unreached,
        })
    };
    Ok(met.into_iter().map(|met| met.and_then(whole)).collect())
}

/// Lets each host try those that follow it.
fn reach_others<T: DeserializeOwned + Send + 'static>(
    request: &Request<'_>,
    calls: &mut [Step<Call<T>>],
    met: &mut [Step<Answer<Option<T>>>],
    listening: &[(usize, SocketAddr)],
) {
    let name = |at: usize| request.source.hosts()[at].name.clone();
    for (place, (at, _)) in listening.iter().enumerate() {
        let others = listening.iter().cycle().skip(place + 1);
        let others = others.take(PEERS.min(listening.len() - 1));
        let others: Vec<_> = others.map(|(other, to)| (name(*other), *to)).collect();
        if let (Ok(call), Ok(answer)) = (&mut calls[*at], &mut met[*at]) {
            answer.tried = others.len();
            if let Err(error) = call.say(&ToHost::Reach(others)) {
                tracing::info!(%error, "a host is not asked whom it reaches");
            }
        }
    }
    let until = Instant::now() + request.within;
    for (at, _) in listening {
        if let (Ok(call), Ok(answer)) = (&mut calls[*at], &mut met[*at])
            && let Ok((_, FromHost::Unreached(unreached))) = call.hear(until)
        {
            answer.unreached = Some(unreached);
        }
    }
}
