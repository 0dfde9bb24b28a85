//! `outlive noise`: how quiet the cores of this machine are. The work is in the crate `node`.

mod compare;
mod forward;
mod mpi;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use outlive_base::{Code, Entity, Error, Result};
use outlive_launch::input;
use outlive_node::model::{self, NOISE, Noise};
use outlive_node::{cores, cycles, kernels, measure, page, picture, text, variation};

use crate::{memory, output};

/// The longest file of a measurement.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// The most files on one page.
const FILES_MAX: usize = 100;

/// Groups of options.
const OUTPUT: &str = "Output";
const EXTRAPOLATION: &str = "Extrapolation to many ranks";

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive noise fwq --cores 1 --samples 10000 --json > core1.json
  outlive noise report --html noise.html core1.json")]
pub struct NoiseOptions {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Fixed work quanta: how long the same work takes, again and again
    Fwq(Quanta),
    /// Fixed time quanta: how much work is done in the same time, and the spectrum of it
    Ftq(Quanta),
    /// Kernels whose run times show how much the hardware itself varies
    Variation(VariationOptions),
    /// MPI-FWQ: fixed work quanta in every rank of an MPI job, alone or in steps
    Mpi(Box<mpi::MpiOptions>),
    /// The same work on a core that is unprotected, bound, real-time and isolated, in turn
    Compare(Box<compare::CompareOptions>),
    /// What a system call costs, made by a thread itself and by the partner of a decoupled one
    Forward(forward::ForwardOptions),
    /// Measures, or disturbs (started by compare)
    #[command(hide = true)]
    Part(Box<compare::part::PartOptions>),
    /// One HTML page of measurements
    Report(Report),
}

#[derive(Args, Debug)]
struct Shared {
    /// Cores, as in 0-2,5; they are measured one after the other
    /// [default: all that this process may use]
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Draw the result as SVG [default: no picture]
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    svg: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct Quanta {
    #[command(flatten)]
    shared: Shared,
    /// Length of a quantum in microseconds, 1 to 1000000
    #[arg(long, value_name = "US", default_value_t = 1_000)]
    quantum_us: u64,
    /// Samples on each core, 2 to 100000000; at most an hour of them
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    samples: u64,
    /// A sample is long when it takes this much more than the least, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    long: f64,
    /// What hits long samples is taken from the kernel's tracer, or from counters alone
    #[arg(long, value_name = "SOURCE", value_enum, default_value_t = Events::Auto)]
    events: Events,
    /// Consecutive samples in a step of the job that the noise is extrapolated to
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = EXTRAPOLATION)]
    step_quanta: u64,
    /// Seed of the steps that are replayed
    #[arg(long, default_value_t = 1, help_heading = EXTRAPOLATION)]
    seed: u64,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Events {
    /// The tracer if it can be used, else counters
    Auto,
    /// Counters before and after
    Counters,
}

#[derive(Args, Debug)]
struct VariationOptions {
    #[command(flatten)]
    shared: Shared,
    /// Kernels: fwq, dgemm-naive, dgemm-vector, sha256, stream, capacity, nbody, cg,
    /// fem
    /// [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    kernels: Vec<String>,
    /// The level of the data cache that working sets are a part of, 1 to 3
    #[arg(long, value_name = "N", default_value_t = 1)]
    level: u32,
    /// That part, in percent; above 100 it does not fit
    #[arg(long, value_name = "PERCENT", default_value_t = 70)]
    fill: u32,
    /// Runs of each kernel on each core
    #[arg(long, value_name = "N", default_value_t = 50)]
    runs: u32,
    /// Length of a run in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10)]
    run_ms: u32,
}

#[derive(Args, Debug)]
struct Report {
    /// Write the page there
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
    /// What the other commands wrote with --json
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Options out of bounds, cores that cannot be used, more samples than there is memory
/// (OL-100); files that cannot be read or written, or are no measurements; those of [`mpi::run`],
/// [`compare::run`] and [`forward::run`].
pub fn run(options: &NoiseOptions) -> Result<u8> {
    match &options.what {
        What::Fwq(quanta) => noise(model::Benchmark::Fwq, quanta),
        What::Ftq(quanta) => noise(model::Benchmark::Ftq, quanta),
        What::Variation(options) => vary(options),
        What::Mpi(options) => mpi::run(options),
        What::Compare(options) => compare::run(options),
        What::Forward(options) => forward::run(options),
        What::Part(options) => compare::part::run(options),
        What::Report(options) => report(options),
    }
}

fn noise(kind: model::Benchmark, options: &Quanta) -> Result<u8> {
    let settings = measure::Settings {
        kind,
        // Beyond 64 bits it is out of bounds in any case.
        quantum_ns: options.quantum_us.saturating_mul(1_000),
        samples: options.samples,
        long_percent: options.long,
        step_quanta: options.step_quanta,
        seed: options.seed,
        no_trace: options.events == Events::Counters,
    };
    settings.check()?;
    let what = format!("{} samples", options.samples);
    memory::fits("samples", &what, settings.bytes())?;
    let chosen = cores::choose(Path::new(cores::CPU_ROOT), options.shared.cores.as_deref())?;
    let mut notes = Vec::new();
    let measured = chosen
        .iter()
        .map(|core| measure::measure(&settings, *core, &mut notes))
        .collect::<Result<_>>()?;
    let noise = Noise {
        schema: NOISE.to_owned(),
        kind,
        quantum_ns: settings.quantum_ns,
        samples: settings.samples,
        counter: cycles::COUNTER.to_owned(),
        long_percent: settings.long_percent,
        seed: settings.seed,
        step_quanta: settings.step_quanta,
        notes,
        cores: measured,
    };
    draw(options.shared.svg.as_deref(), || picture::noise(&noise))?;
    match options.shared.json {
        true => output::json(&noise),
        false => output::text(&text::noise(&noise)),
    }
}

fn vary(options: &VariationOptions) -> Result<u8> {
    let names = match options.kernels.is_empty() {
        true => kernels::NAMES.map(str::to_owned).to_vec(),
        false => options.kernels.clone(),
    };
    let settings = variation::Settings {
        kernels: names,
        level: options.level,
        fill_percent: options.fill,
        runs: options.runs,
        run_ms: options.run_ms,
    };
    settings.check()?;
    let root = Path::new(cores::CPU_ROOT);
    let chosen = cores::choose(root, options.shared.cores.as_deref())?;
    let first = chosen.first().copied().unwrap_or(0);
    let (bytes, _) = settings.bytes(root, first);
    // The walk is ordered before it is laid out.
    memory::fits("fill", "a working set", bytes.saturating_mul(2))?;
    let measured = variation::measure(&settings, root, &chosen)?;
    draw(options.shared.svg.as_deref(), || {
        picture::variation(&measured)
    })?;
    match options.shared.json {
        true => output::json(&measured),
        false => output::text(&text::variation(&measured)),
    }
}

fn draw(path: Option<&Path>, picture: impl FnOnce() -> String) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, picture()).map_err(|error| Error::io(path, "write", &error))
}

fn report(options: &Report) -> Result<u8> {
    if options.files.len() > FILES_MAX {
        let reason = format!("{} files are too many for one page", options.files.len());
        let remedy = format!("give at most {FILES_MAX}");
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Call,
            reason,
            remedy,
        ));
    }
    let read = |path: &PathBuf| {
        let name = path.display().to_string();
        let measured = page::parse(&name, &input::read_text(path, FILE_BYTES_MAX)?)?;
        Ok((name, measured))
    };
    let all = options.files.iter().map(read).collect::<Result<Vec<_>>>()?;
    draw(Some(&options.html), || page::html(&all))?;
    Ok(0)
}
