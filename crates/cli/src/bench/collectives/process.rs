//! One process of the measured job: says its address, hears those of all, then calls
//! Allreduce at each time that it is told, and says when it ended, the sum, and how many
//! were absent.

use std::io::{BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result, Time};
use outlive_collectives::Operator;
use outlive_collectives::engine::{Bounds, Engine, Start};
use outlive_network::rail::tcp::{KEY_BYTES, Listener, Options, Tcp};
use outlive_network::rail::{Content, Key, News, Rail};
use outlive_protocols::broadcast::LogP;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::collective::{Call, CollectiveKind, Command, Event};
use outlive_protocols::ftco::{Config, Machine, Plan};

use crate::bench::machine::clock_ns;
use crate::bench::session::failed;

/// A call ends after this at the latest.
const BOUND: Time = Time::from_secs(300);
/// Longest sleep before a process looks around again.
const NAP: Time = Time::from_ms(2);

const KEY: Key = Key {
    comm: 1,
    sequence: 0,
    incarnation: 0,
    protocol: 1,
};

/// The tree of the measured job.
pub fn plan(processes: u32) -> Result<Plan> {
    let model = LogP {
        latency: 2,
        overhead: 1,
        gap: 1,
    };
    Plan::new(Shape::Binomial, Order::Interleaved, processes, &model)
}

struct Sum;

impl Operator for Sum {
    fn combine(&mut self, _: u32, acc: &mut Vec<u8>, arg: &[u8], _: bool) -> bool {
        let (Ok(a), Ok(b)) = (acc[..].try_into(), arg.try_into()) else {
            return false;
        };
        *acc = (u64::from_le_bytes(a) + u64::from_le_bytes(b))
            .to_le_bytes()
            .to_vec();
        true
    }
}

struct Process {
    rail: Tcp,
    engine: Engine<Machine>,
    /// The engine is told of deaths that the kernel knows.
    known: bool,
    calls: u32,
}

/// The role `collective:RANK:TIMEOUT_MS:KNOWN`.
pub fn run(words: &[&str]) -> Result<u8> {
    let number = |nth: usize| words.get(nth).and_then(|word| word.parse::<u64>().ok());
    let (Some(rank), Some(timeout), Some(known)) = (number(1), number(2), number(3)) else {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("role".into()),
            "is not one that a benchmark gives",
            "leave the option away",
        ));
    };
    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    say(&listener.address()?.to_string())?;
    let mut lines = std::io::stdin().lock().lines();
    let mut hear = || match lines.next() {
        None => Ok(None),
        Some(line) => line
            .map(Some)
            .map_err(|error| failed("hear the benchmark", &error)),
    };
    let addresses = hear()?.unwrap_or_default();
    let addresses: Vec<SocketAddr> = addresses
        .split(',')
        .filter_map(|word| word.parse().ok())
        .collect();
    let mut process = Process::new(listener, rank as u32, addresses, timeout, known != 0)?;
    say("ready")?;
    // The benchmark ends by closing the pipe, or kills.
    while let Some(start) = hear()? {
        let start: u64 = start.trim().parse().unwrap_or(0);
        std::thread::sleep(Duration::from_nanos(start.saturating_sub(clock_ns())));
        say(&process.call()?)?;
    }
    Ok(0)
}

fn say(line: &str) -> Result<()> {
    let mut to = std::io::stdout().lock();
    writeln!(to, "{line}")
        .and_then(|()| to.flush())
        .map_err(|error| failed("tell the benchmark", &error))
}

impl Process {
    fn new(
        listener: Listener,
        rank: u32,
        addresses: Vec<SocketAddr>,
        timeout_ms: u64,
        known: bool,
    ) -> Result<Process> {
        let processes = addresses.len() as u32;
        let options = Options {
            silence: Duration::from_secs(60),
            incarnation: 0,
        };
        let mut rail = Tcp::new(listener, rank, addresses, [7; KEY_BYTES], options)?;
        if known {
            rail.call_all();
        }
        let mut config = Config::new(plan(processes)?);
        config.timeout = Time::from_ms(timeout_ms);
        config.patience = Time::from_ms(2 * timeout_ms);
        config.bound = BOUND;
        let mut engine = Engine::new(0, Bounds::default());
        let start = Start {
            key: KEY,
            members: (0..processes).collect(),
            me: rank,
            machine: Machine::new(),
            config: Arc::new(config),
            seed: 1,
        };
        engine.start(&rail, start);
        Ok(Process {
            rail,
            engine,
            known,
            calls: 0,
        })
    }

    fn round(&mut self) {
        while let Some((from, frame)) = self.rail.receive() {
            self.engine.deliver(&self.rail, from, frame);
        }
        while let Some(news) = self.rail.news() {
            if let (News::Dead(dead), true) = (news, self.known) {
                self.engine.death(&self.rail, dead);
            }
        }
        self.engine.pump(&mut self.rail, KEY, Some(&mut Sum));
    }

    /// One Allreduce: when it ended, the sum, and how many were absent.
    fn call(&mut self) -> Result<String> {
        let number = self.calls;
        self.calls += 1;
        let value = u64::from(self.rail.me()) + 1;
        let content = Content::new(value.to_le_bytes().to_vec());
        let call = |value| {
            Command::Start(Call {
                kind: CollectiveKind::Allreduce,
                root: 0,
                value,
                ordered: false,
            })
        };
        self.engine
            .command(&self.rail, KEY, Some((number, content)), call);
        loop {
            self.round();
            while let Some((event, content)) = self.engine.event(KEY) {
                match event {
                    Event::Done { seq, .. } if seq == number => {
                        let end = clock_ns();
                        self.flush();
                        let content = content.ok_or_else(|| fault("no result"))?;
                        let sum = content.bytes[..].try_into().map_or(0, u64::from_le_bytes);
                        return Ok(format!("{end} {sum} {}", content.absent.len()));
                    }
                    Event::Failed { why, .. } => return Err(fault(&format!("{why:?}"))),
                    _ => {}
                }
            }
            let now = self.rail.now();
            let until = self
                .engine
                .deadline()
                .map_or(now + NAP, |at| at.min(now + NAP));
            self.rail.wait(until);
        }
    }

    /// What was sent leaves before this process sleeps in its pipe.
    fn flush(&mut self) {
        let end = self.rail.now() + Time::from_secs(5);
        while !self.rail.flushed() && self.rail.now() < end {
            self.round();
            let until = self.rail.now() + NAP;
            self.rail.wait(until);
        }
    }
}

fn fault(reason: &str) -> Error {
    Error::new(
        Code::CommandFailed,
        Entity::Call,
        format!("Allreduce: {reason}"),
        "give a longer --timeout-ms",
    )
}
