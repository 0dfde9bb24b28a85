//! One HTML page of measurements, with nothing that is loaded from elsewhere.

use outlive_base::{Code, Entity, Error, Result};

use crate::model::{NOISE, Noise, VARIATION, Variation};
use crate::picture::escape;
use crate::ranks::{RANKS, Ranks, show};
use crate::{picture, text};

/// A measurement of any kind.
#[derive(Clone, PartialEq, Debug)]
pub enum Measured {
    /// Of noise.
    Noise(Box<Noise>),
    /// Of variation.
    Variation(Variation),
    /// Of the ranks of an MPI job.
    Ranks(Box<Ranks>),
}

/// Reads what `--json` wrote.
///
/// # Errors
/// [`Code::FormatUnknown`] for another schema, [`Code::Corrupt`] for what is not as its
/// schema says; both on file `name`.
pub fn parse(name: &str, text: &str) -> Result<Measured> {
    let file = || Entity::File(name.to_owned());
    let damaged = |error: serde_json::Error| {
        let remedy = "give a file that outlive noise ... --json wrote";
        Error::new(Code::Corrupt, file(), error.to_string(), remedy)
    };
    let value: serde_json::Value = serde_json::from_str(text).map_err(damaged)?;
    match value["schema"].as_str() {
        Some(NOISE) => Ok(Measured::Noise(
            serde_json::from_value(value).map_err(damaged)?,
        )),
        Some(VARIATION) => Ok(Measured::Variation(
            serde_json::from_value(value).map_err(damaged)?,
        )),
        Some(RANKS) => Ok(Measured::Ranks(
            serde_json::from_value(value).map_err(damaged)?,
        )),
        _ => {
            let reason = format!("is none of {NOISE}, {VARIATION} and {RANKS}");
            let remedy =
                "give files that outlive noise fwq, ftq, variation or mpi wrote with --json";
            Err(Error::new(Code::FormatUnknown, file(), reason, remedy))
        }
    }
}

/// A page with a section for each named measurement.
pub fn html(all: &[(String, Measured)]) -> String {
    let section = |(name, measured): &(String, Measured)| {
        let (words, drawn) = match measured {
            Measured::Noise(noise) => (text::noise(noise), picture::noise(noise)),
            Measured::Variation(one) => (text::variation(one), picture::variation(one)),
            Measured::Ranks(ranks) => (show::text(ranks), show::picture(ranks)),
        };
        let (name, words) = (escape(name), lines(&words));
        format!("<section>\n<h2>{name}</h2>\n<pre>{words}</pre>\n{drawn}</section>\n")
    };
    format!(
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n\
         <meta name='viewport' content='width=device-width'>\n<title>Noise</title>\n\
         <style>body{{font-family:sans-serif;max-width:60rem;margin:1rem auto}}\
         pre{{overflow-x:auto}}svg{{width:100%}}</style>\n</head>\n<body>\n<h1>Noise</h1>\n\
         {}</body>\n</html>\n",
        all.iter().map(section).collect::<String>()
    )
}

/// Escaped text that keeps its lines.
fn lines(text: &str) -> String {
    text.lines().map(|line| escape(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Benchmark, Core};
    use crate::{extrapolate, spectrum, stats};

    fn sample() -> Noise {
        let times: Vec<f64> = (0..500).map(|at| 1_000.0 + f64::from(at % 9)).collect();
        let core = Core {
            core: 3,
            cycles_per_second: 2.5e9,
            memory_locked: true,
            summary: stats::summary(&times).unwrap(),
            histogram: stats::histogram(&times),
            series: stats::envelope(&times),
            spectrum: spectrum::spectrum(&times, 1e-3),
            counted: crate::counters::Counted {
                sources: vec![("thread <script>'x'".into(), 3)],
                ..Default::default()
            },
            source: "counters".into(),
            attribution: None,
            long_samples: 0,
            long_excess_ns: 0.0,
            // fixed seed: any will do, the page is looked at.
            extrapolation: extrapolate::extrapolate(&times, 1_000.0, &[10], 1),
        };
        Noise {
            schema: NOISE.into(),
            kind: Benchmark::Ftq,
            quantum_ns: 1_000,
            samples: 500,
            counter: "tsc".into(),
            long_percent: 10.0,
            seed: 1,
            step_quanta: 1,
            notes: vec!["a & b".into()],
            cores: vec![core],
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_shown_escaped() {
        let noise = sample();
        let text = serde_json::to_string(&noise).unwrap();
        let read = parse("x", &text).unwrap();
        assert_eq!(read, Measured::Noise(Box::new(noise)));
        let page = html(&[("<b>".into(), read)]);
        assert!(!page.contains("<script") && !page.contains("<b>"));
        assert!(page.contains("a &amp; b") && page.contains("&lt;script&gt;"));
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert_eq!(page.matches("<polyline").count(), 2, "series and spectrum");
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        for (text, code) in [
            ("", Code::Corrupt),
            ("[1", Code::Corrupt),
            ("{}", Code::FormatUnknown),
            ("{\"schema\":\"outlive.noise/9\"}", Code::FormatUnknown),
            ("{\"schema\":\"outlive.noise/1\"}", Code::Corrupt),
            (
                "{\"schema\":\"outlive.noise-variation/1\",\"level\":-1}",
                Code::Corrupt,
            ),
        ] {
            assert_eq!(parse("x", text).unwrap_err().code(), code, "{text}");
        }
    }
}
