//! Frames between two processes, there and back: latency and bandwidth of a rail.
//!
//!     rails RAIL SIZE ROUNDS
//!
//! RAIL is `tcp` or `ucx`, SIZE the bytes of a body. Of ROUNDS round trips, after a tenth as
//! many to warm up, half the median time is the latency, and SIZE by that the bandwidth.
//! Prints a line of JSON, in microseconds and MB/s. `bench/collectives/rails.py` compares.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use outlive_base::{Result, Time};
use outlive_network::rail::tcp;
use outlive_network::rail::tcp::{KEY_BYTES, Listener, Tcp};
use outlive_network::rail::ucx::{self, Door, Ucx};
use outlive_network::rail::{Content, Frame, Key, Rail};

const SECRET: [u8; KEY_BYTES] = [3; KEY_BYTES];
const BOUND: Duration = Duration::from_secs(60);
/// Looks at the rail before it is waited on: the processes may share a core.
const SPINS: u32 = 2000;

fn frame(content: &Content) -> Frame {
    let key = Key {
        comm: 1,
        sequence: 0,
        incarnation: 0,
        protocol: 1,
    };
    let body = Some(content.clone());
    Frame {
        key,
        msg: [0; 32],
        body,
    }
}

fn next(rail: &mut impl Rail, end: Instant) -> Option<Frame> {
    let mut spins = 0;
    loop {
        if let Some((_, frame)) = rail.receive() {
            return Some(frame);
        }
        if rail.news().is_some() || Instant::now() > end {
            return None;
        }
        spins += 1;
        if spins > SPINS {
            rail.wait(rail.now() + Time::from_ms(1));
        }
    }
}

/// Process 1 sends back what comes, until process 0 is gone.
fn echo(mut rail: impl Rail) {
    while let Some(frame) = next(&mut rail, Instant::now() + BOUND) {
        rail.send(0, frame);
    }
}

/// The median time of a round trip, in seconds; `None` if the other is gone.
fn ping(rail: &mut impl Rail, size: usize, rounds: u32) -> Option<f64> {
    let content = Content::new(vec![7; size]);
    let warm = rounds / 10;
    let mut times = Vec::new();
    for round in 0..rounds + warm {
        let start = Instant::now();
        rail.send(1, frame(&content));
        let back = next(rail, start + BOUND)?;
        assert_eq!(back.body.map(|body| body.bytes.len()), Some(size));
        if round >= warm {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

fn report(rail: &str, size: usize, trip: Option<f64>) -> ExitCode {
    let Some(trip) = trip else {
        eprintln!("the other process is gone");
        return ExitCode::FAILURE;
    };
    let (latency, bandwidth) = (trip * 5e5, size as f64 * 2.0 / trip / 1e6);
    println!(
        "{{\"rail\": \"{rail}\", \"bytes\": {size}, \"latency_us\": {latency:.3}, \
         \"bandwidth_mb_s\": {bandwidth:.1}}}"
    );
    ExitCode::SUCCESS
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.trim().as_bytes().chunks_exact(2);
    digits
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// Tells the other process `own` and hears its line.
fn exchange(own: &str, to: &mut impl Write, from: &mut impl BufRead) -> String {
    writeln!(to, "{own}").expect("the other process listens");
    to.flush().expect("the other process listens");
    let mut line = String::new();
    from.read_line(&mut line).expect("the other process tells");
    line.trim().to_owned()
}

fn run(
    me: u32,
    words: &[String],
    to: &mut impl Write,
    from: &mut impl BufRead,
) -> Result<ExitCode> {
    let number = |place: usize| words[place].parse::<u32>().expect("a number");
    let (size, rounds) = (number(1) as usize, number(2));
    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let both = |own: String, other: String| match me {
        0 => [own, other],
        _ => [other, own],
    };
    if words[0] == "ucx" {
        let door = Door::open(listener, ucx::Options::default())?;
        let own = hex(&door.card());
        let cards = both(own.clone(), exchange(&own, to, from)).map(|card| unhex(&card));
        let mut rail = Ucx::new(door, me, &cards, SECRET)?;
        rail.meet(BOUND)?;
        if me == 1 {
            echo(rail);
            return Ok(ExitCode::SUCCESS);
        }
        return Ok(report("ucx", size, ping(&mut rail, size, rounds)));
    }
    let own = listener.address()?.to_string();
    let addresses = both(own.clone(), exchange(&own, to, from));
    let addresses = addresses.map(|address| address.parse().expect("an address"));
    let options = tcp::Options::default();
    let mut rail = Tcp::new(listener, me, addresses.to_vec(), SECRET, options)?;
    if me == 1 {
        echo(rail);
        return Ok(ExitCode::SUCCESS);
    }
    Ok(report("tcp", size, ping(&mut rail, size, rounds)))
}

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let child = words.first().is_some_and(|word| word == "--echo");
    if child {
        words.remove(0);
    }
    if words.len() != 3 || !["tcp", "ucx"].contains(&words[0].as_str()) {
        eprintln!("rails tcp|ucx SIZE ROUNDS");
        return ExitCode::from(64);
    }
    let ended = if child {
        run(
            1,
            &words,
            &mut std::io::stdout(),
            &mut std::io::stdin().lock(),
        )
    } else {
        let own = std::env::current_exe().expect("this program");
        let mut command = Command::new(own);
        command.arg("--echo").args(&words);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut other = spawned.expect("starts");
        let mut to = other.stdin.take().expect("a pipe");
        let mut from = BufReader::new(other.stdout.take().expect("a pipe"));
        let ended = run(0, &words, &mut to, &mut from);
        drop(to);
        let _ = other.wait();
        ended
    };
    ended.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(error.code().exit_status())
    })
}
