//! Puts and gets of 64 MiB directly and over TCP, beside a copy in memory and a bare TCP
//! connection in the same process, in turn; prints the median of each and the ratios.
//!
//! `cargo run --release -p outlive-memory-server --example memory-bench [MEBIBYTES [ROUNDS]]`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use outlive_memory::{Client, Options, RegionKind, Rights, Server, ServerOptions, Transport};
use outlive_network::JobKey;

/// Gigabytes a second.
type Rates = Vec<f64>;

fn timed(
    bytes: usize,
    rates: &mut Rates,
    run: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    run()?;
    rates.push(bytes as f64 / begin.elapsed().as_secs_f64() / 1e9);
    Ok(())
}

fn median(rates: &Rates) -> f64 {
    let mut sorted = rates.clone();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// A connection whose other end takes all that comes and says when it has so much.
fn bare(bytes: usize) -> anyhow::Result<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    std::thread::spawn(move || {
        let mut buffer = vec![0; bytes];
        // Until this process ends.
        while other.read_exact(&mut buffer).is_ok() && other.write_all(&[1]).is_ok() {}
    });
    Ok(socket)
}

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let mut number = |default: usize| words.next().map_or(Ok(default), |word| word.parse());
    let (bytes, rounds) = (number(64)? << 20, number(9)?);
    let key = JobKey::generate()?;
    let mut options = ServerOptions::new(bytes as u64 * 2 + (1 << 20));
    options.jobs = vec![Rights {
        job: "bench".into(),
        key: key.clone().into(),
        quota: None,
    }];
    let server = Server::start(&options)?;
    let connect = |transport| {
        let options = Options {
            transport,
            ..Options::default()
        };
        Client::connect(&server.address().to_string(), "bench", &key, options)
    };
    let (direct, tcp) = (connect(Transport::Shared)?, connect(Transport::Tcp)?);
    direct.allocate("r", bytes as u64, RegionKind::Plain)?;
    // All of it touched before anything is measured.
    let (from, mut to) = (vec![7u8; bytes], vec![1u8; bytes]);
    direct.put("r", 0, &from)?;
    let mut socket = bare(bytes)?;
    let mut rates: [Rates; 6] = Default::default();
    for _ in 0..rounds {
        let [copy, bare, put, get, tcp_put, tcp_get] = &mut rates;
        timed(bytes, copy, || {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&to);
            Ok(())
        })?;
        timed(bytes, bare, || {
            socket.write_all(&from)?;
            Ok(socket.read_exact(&mut [0])?)
        })?;
        timed(bytes, put, || Ok(direct.put("r", 0, &from)?))?;
        timed(bytes, get, || Ok(direct.get("r", 0, &mut to)?))?;
        timed(bytes, tcp_put, || Ok(tcp.put("r", 0, &from)?))?;
        timed(bytes, tcp_get, || Ok(tcp.get("r", 0, &mut to)?))?;
    }
    let (copy, bare) = (median(&rates[0]), median(&rates[1]));
    println!("{} MiB, median of {rounds}, GB/s", bytes >> 20);
    for (name, of, limit) in [
        ("memcpy", 0, copy),
        ("bare TCP", 1, bare),
        ("put, direct", 2, copy),
        ("get, direct", 3, copy),
        ("put, TCP", 4, bare),
        ("get, TCP", 5, bare),
    ] {
        let rate = median(&rates[of]);
        println!("{name:<12} {rate:6.2}  {:4.2} of its limit", rate / limit);
    }
    Ok(())
}
