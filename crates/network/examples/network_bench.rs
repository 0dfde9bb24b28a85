//! Moves 256 MiB between two endpoints over loopback, and over a plain TCP
//! connection in the same process, and prints both and their ratio; then the
//! round-trip time of a control message.
//!
//! `cargo run --release --example network-bench [MEBIBYTES]`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crossbeam_channel::{Receiver, unbounded};
use outlive_base::NodeId;
use outlive_network::{Endpoint, Event, Identity, JobKey, Options};

/// Bytes a call of read or write.
const CHUNK_BYTES: usize = 256 * 1024;
const REPEATS: usize = 5;
const ROUND_TRIPS: u32 = 5000;
const PATIENCE: Duration = Duration::from_secs(10);

fn endpoint(node: u32, encrypt_streams: bool) -> Result<(Endpoint, Receiver<Event>)> {
    let (sender, events) = unbounded();
    let options = Options {
        encrypt_streams,
        ..Options::default()
    };
    let identity = Identity {
        peer: NodeId(node),
        epoch: 1,
    };
    let endpoint = Endpoint::bind(identity, 1, JobKey::from_bytes([1; 32]), options, sender)?;
    Ok((endpoint, events))
}

/// Seconds to move `bytes` from one end to the other, until the last arrived.
fn transfer(mut from: impl Write, to: impl Read + Send, bytes: usize) -> Result<f64> {
    let mut to = to.take(bytes as u64);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || -> std::io::Result<usize> {
            let (mut sum, mut chunk) = (0, vec![0; CHUNK_BYTES]);
            loop {
                match to.read(&mut chunk)? {
                    0 => return Ok(sum),
                    count => sum += count,
                }
            }
        });
        let chunk = vec![0x5a; CHUNK_BYTES];
        let begin = Instant::now();
        for _ in 0..bytes / CHUNK_BYTES {
            from.write_all(&chunk)?;
        }
        let received = reader
            .join()
            .map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        if received != bytes {
            bail!("{received} of {bytes} bytes arrived");
        }
        Ok(begin.elapsed().as_secs_f64())
    })
}

fn ours(bytes: usize, encrypt: bool) -> Result<f64> {
    let (a, _a_events) = endpoint(1, encrypt)?;
    let (b, b_events) = endpoint(2, encrypt)?;
    a.set_address(NodeId(2), b.local_addr());
    let stream = a.open_stream(NodeId(2), b"bench")?;
    match b_events.recv_timeout(PATIENCE)? {
        Event::Stream { stream: theirs, .. } => transfer(stream, theirs, bytes),
        other => bail!("unexpected {other:?}"),
    }
}

fn plain(bytes: usize) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let from = TcpStream::connect(listener.local_addr()?)?;
    let (to, _) = listener.accept()?;
    from.set_nodelay(true)?;
    transfer(from, to, bytes)
}

fn round_trip() -> Result<f64> {
    let (a, a_events) = endpoint(1, false)?;
    let (b, b_events) = endpoint(2, false)?;
    a.set_address(NodeId(2), b.local_addr());
    let message = |events: &Receiver<Event>| -> Result<()> {
        loop {
            if let Event::Message { .. } = events.recv_timeout(PATIENCE)? {
                return Ok(());
            }
        }
    };
    let mut begin = Instant::now();
    for n in 0..=ROUND_TRIPS {
        a.send(NodeId(2), b"ping")?;
        message(&b_events)?;
        b.send(NodeId(1), b"pong")?;
        message(&a_events)?;
        if n == 0 {
            begin = Instant::now();
        }
    }
    Ok(begin.elapsed().as_secs_f64() / f64::from(ROUND_TRIPS))
}

fn median(mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut times = (0..REPEATS).map(|_| run()).collect::<Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[REPEATS / 2])
}

fn main() -> Result<()> {
    let mib: usize = match std::env::args().nth(1) {
        Some(text) => text.parse().context("the argument is a number of MiB")?,
        None => 256,
    };
    let bytes = mib << 20;
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    let tcp = median(|| plain(bytes))?;
    let raw = median(|| ours(bytes, false))?;
    let sealed = median(|| ours(bytes, true))?;
    println!("{mib} MiB over loopback, median of {REPEATS}");
    println!("plain TCP         {:6.2} GB/s", rate(tcp));
    println!(
        "stream            {:6.2} GB/s  {:.2} of plain",
        rate(raw),
        tcp / raw
    );
    println!(
        "encrypted stream  {:6.2} GB/s  {:.2} of plain",
        rate(sealed),
        tcp / sealed
    );
    println!(
        "control message   {:6.1} us round trip",
        round_trip()? * 1e6
    );
    Ok(())
}
