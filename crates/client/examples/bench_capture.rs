//! What a program pays: a skipped call in nanoseconds, and the time that a capture
//! blocks it, beside a memcpy of the same bytes in the same run.
//!
//!     cargo run --release -p outlive-client --example bench_capture [MIB_PER_REGION]
//!
//! All memory is held and touched before; memcpy and capture alternate; medians.
#![allow(clippy::unwrap_used)] // a measurement, not a library

#[path = "../tests/support/mod.rs"]
mod support;

use outlive::{Job, Options, Outcome};
use outlive_capture::slab::Slab;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::TestAgent;

const ROUNDS: usize = 11;
const SKIPPED_NS_LIMIT: f64 = 50.0;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e3
}

fn skipped_rust(job: &mut Job) -> f64 {
    const CALLS: u64 = 20_000_000;
    let mut version = 0;
    (0..5)
        .map(|_| {
            let ms = timed(|| {
                for _ in 0..CALLS {
                    assert!(matches!(job.checkpoint(version), Ok(Outcome::Skipped)));
                    version += 1;
                }
            });
            ms * 1e6 / CALLS as f64
        })
        .fold(f64::INFINITY, f64::min)
}

/// Nanoseconds from C, or `None` without gcc or the library.
fn skipped_c(agent: Option<&TestAgent>) -> Option<f64> {
    let directory = tempfile::tempdir().ok()?;
    // target/release/examples/bench_capture: the library is one up.
    let library = std::env::current_exe()
        .ok()?
        .parent()?
        .parent()?
        .join("liboutlive.so");
    std::os::unix::fs::symlink(&library, directory.path().join("liboutlive.so.0")).ok()?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = directory.path().join("skipped");
    let built = Command::new("gcc")
        .args(["-std=c11", "-O2"])
        .arg("-I")
        .arg(here.join("include"))
        .arg(here.join("examples/skipped.c"))
        .arg(&library)
        .arg("-o")
        .arg(&program)
        .status()
        .ok()?;
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", directory.path());
    if let Some(agent) = agent {
        command.envs(agent.environment(0));
    }
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (built.success() && output.status.success()).then(|| text.trim().parse().ok())?
}

fn row(what: &str, ours: f64, limit: f64, unit: &str) {
    println!(
        "{what:<44} {ours:>9.2} {limit:>9.2} {unit:<3} {:>6.3}",
        ours / limit
    );
}

fn skipped() {
    let agent = TestAgent::start(1);
    let mut job = agent.open(0, 10_000).unwrap();
    row(
        "skipped call, Rust",
        skipped_rust(&mut job),
        SKIPPED_NS_LIMIT,
        "ns",
    );
    job.close().unwrap();
    let mut job = Job::open_with(&Options::default(), &|_| None).unwrap();
    row(
        "skipped call, Rust, unprotected",
        skipped_rust(&mut job),
        SKIPPED_NS_LIMIT,
        "ns",
    );
    let agent = TestAgent::start(1);
    for (what, agent) in [
        ("skipped call, C", Some(&agent)),
        ("skipped call, C, unprotected", None),
    ] {
        match skipped_c(agent) {
            Some(ns) => row(what, ns, SKIPPED_NS_LIMIT, "ns"),
            None => println!("{what:<44} not measured: needs gcc and liboutlive.so"),
        }
    }
}

fn capture(region_bytes: usize, threads: usize) {
    let agent = TestAgent::start(1);
    let environment = agent.environment(0);
    let options = Options {
        timeout: Duration::from_secs(60),
        copy_threads: threads,
        ..Options::default()
    };
    let mut job = Job::open_with(&options, &|name| {
        environment
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.clone())
    })
    .unwrap();
    let mut regions = [vec![1u8; region_bytes], vec![2u8; region_bytes]];
    for (name, region) in ["a", "b"].into_iter().zip(&mut regions) {
        // SAFETY: the vectors live, unmoved, longer than the job.
        unsafe { job.protect(name, region.as_mut_ptr(), region.len()) }.unwrap();
    }
    let mut target = vec![3u8; 2 * region_bytes];
    let mut copied = Vec::new();
    let mut blocked = Vec::new();
    let mut told = Vec::new();
    // The first two map the two slabs: they are shown apart.
    let mut first = Vec::new();
    for version in 0..(ROUNDS + 2) as u64 {
        let copy = timed(|| {
            for (region, half) in regions.iter().zip(target.chunks_mut(region_bytes)) {
                half.copy_from_slice(region);
            }
        });
        std::hint::black_box(&mut target);
        agent.arm(0, version).unwrap();
        let block = timed(|| assert_eq!(job.checkpoint(version).unwrap(), Outcome::Taken));
        agent.captured(version);
        if version < 2 {
            first.push(block);
        } else {
            copied.push(copy);
            blocked.push(block);
            told.push(job.status().blocked_ns as f64 / 1e6);
        }
    }
    let ratios: Vec<f64> = blocked.iter().zip(&copied).map(|(b, c)| b / c).collect();
    let mib = (2 * region_bytes) >> 20;
    println!(
        "capture of {mib} MiB, {threads} thread(s): {:.1} ms, memcpy {:.1} ms; median of paired \
         ratios {:.3}; first use of each slab {:.1} and {:.1} ms",
        median(blocked),
        median(copied),
        median(ratios),
        first[0],
        first[1],
    );
    job.close().unwrap();
}

/// What write protection of a captured slab would cost.
fn protection(bytes: usize) {
    let (mut slab, _fd) = Slab::create(bytes as u64).unwrap();
    let both = |slab: &mut Slab| {
        timed(|| slab.protect(true).unwrap()) + timed(|| slab.protect(false).unwrap())
    };
    let protect: Vec<f64> = (0..ROUNDS).map(|_| both(&mut slab)).collect();
    let mib = bytes >> 20;
    println!(
        "mprotect of {mib} MiB, to read-only and back: {:.2} ms",
        median(protect)
    );
}

fn main() {
    let mib: usize = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(512);
    println!("{:<44} {:>9} {:>9}     {:>6}", "", "ours", "limit", "ratio");
    skipped();
    protection(mib << 20);
    capture(mib << 20, 1);
    capture(mib << 20, 2);
}
