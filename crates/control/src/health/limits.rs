//! Limits as users write them: `cpu-steal=5/20,major-faults=off`.

use std::collections::BTreeMap;

use outlive_base::{Code, Entity, Error, Result};
use serde::{Deserialize, Serialize};

use super::report::Verdict;
use super::sensors::{ALL, Judged, Sensor};

/// The option that names limits.
const OPTION: &str = "health-limits";

/// From where on a sensor warns, and from where on it says that something is failing.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// `None`: never.
    pub warning: Option<f64>,
    /// `None`: never.
    pub failing: Option<f64>,
}

/// The limits of all sensors.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Those that are not the defaults.
    changed: BTreeMap<Sensor, Limit>,
}

/// How a node's sensors are read and judged.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Between two readings, in milliseconds; 0: they are not read.
    pub interval_ms: u64,
    /// The limits.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            interval_ms: 10_000,
            limits: Limits::default(),
        }
    }
}

impl Limits {
    /// Reads a list of `SENSOR=WARNING/FAILING`, `SENSOR=WARNING` or `SENSOR=off`; `-` stands for
    /// a limit that is never reached. An empty text changes nothing.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for what is not understood.
    pub fn parse(text: &str) -> Result<Limits> {
        let mut limits = Limits::default();
        for word in text.split(',').map(str::trim).filter(|it| !it.is_empty()) {
            let (sensor, limit) = parse_one(word)?;
            if limits.changed.insert(sensor, limit).is_some() {
                return Err(refuse(
                    format!("{sensor} is named twice"),
                    "name each sensor once".into(),
                ));
            }
        }
        Ok(limits)
    }

    /// The limits of a sensor.
    pub fn of(&self, sensor: Sensor) -> Limit {
        let kind = sensor.kind();
        self.changed.get(&sensor).copied().unwrap_or(Limit {
            warning: kind.warning,
            failing: kind.failing,
        })
    }

    /// What is to be thought of a value, and the limit that it reaches.
    pub fn judge(&self, sensor: Sensor, value: f64) -> (Verdict, Option<f64>) {
        let limit = self.of(sensor);
        let reaches = |limit: &f64| match sensor.kind().judged {
            Judged::Low => value <= *limit,
            _ => value >= *limit,
        };
        if let Some(failing) = limit.failing.filter(reaches) {
            return (Verdict::Failing, Some(failing));
        }
        match limit.warning.filter(reaches) {
            Some(warning) => (Verdict::Warning, Some(warning)),
            None => (Verdict::Ok, None),
        }
    }
}

fn refuse(reason: String, remedy: String) -> Error {
    let entity = Entity::Option(OPTION.to_owned());
    Error::new(Code::InvalidArgument, entity, reason, remedy)
}

/// At most this much of what was written is repeated.
fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

fn parse_one(word: &str) -> Result<(Sensor, Limit)> {
    let how = || "write SENSOR=WARNING/FAILING, for example cpu-steal=5/20, or SENSOR=off".into();
    let Some((name, value)) = word.split_once('=') else {
        return Err(refuse(format!("'{}' sets no limit", short(word)), how()));
    };
    let name = name.trim();
    let Ok(sensor) = name.parse::<Sensor>() else {
        let names: Vec<&str> = ALL.iter().map(|kind| kind.name).collect();
        return Err(refuse(
            format!("there is no sensor '{}'", short(name)),
            format!("name one of {}", names.join(", ")),
        ));
    };
    let value = value.trim();
    if value == "off" {
        let never = Limit {
            warning: None,
            failing: None,
        };
        return Ok((sensor, never));
    }
    let number = |text: &str| match text.trim() {
        "-" => Ok(None),
        text => match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(Some(number)),
            _ => Err(refuse(
                format!("{sensor}: '{}' is no limit", short(text)),
                how(),
            )),
        },
    };
    let (warning, failing) = match value.split_once('/') {
        Some((warning, failing)) => (number(warning)?, number(failing)?),
        None => (number(value)?, None),
    };
    if let (Some(warning), Some(failing)) = (warning, failing) {
        let low = sensor.kind().judged == Judged::Low;
        let wrong = if low {
            failing > warning
        } else {
            failing < warning
        };
        if wrong {
            return Err(refuse(
                format!("{sensor}: it is failing ({failing}) before it warns ({warning})"),
                "write the warning first; for what is bad when it is low, the larger number".into(),
            ));
        }
    }
    Ok((sensor, Limit { warning, failing }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_takes_the_place_of_the_default_and_the_rest_stays() {
        let limits =
            Limits::parse(" cpu-steal=5/20, temperature=10/2,major-faults=off,io-pressure=-/90 ");
        let limits = limits.unwrap();
        let of = |sensor, value| limits.judge(sensor, value).0;
        assert_eq!(of(Sensor::CpuSteal, 4.9), Verdict::Ok);
        assert_eq!(of(Sensor::CpuSteal, 5.0), Verdict::Warning);
        assert_eq!(
            limits.judge(Sensor::CpuSteal, 20.0),
            (Verdict::Failing, Some(20.0))
        );
        assert_eq!(of(Sensor::Temperature, 11.0), Verdict::Ok);
        assert_eq!(of(Sensor::Temperature, 10.0), Verdict::Warning);
        assert_eq!(of(Sensor::Temperature, -3.0), Verdict::Failing);
        assert_eq!(of(Sensor::MajorFaults, 1e12), Verdict::Ok);
        assert_eq!(of(Sensor::IoPressure, 89.0), Verdict::Ok);
        assert_eq!(of(Sensor::IoPressure, 90.0), Verdict::Failing);
        assert_eq!(
            of(Sensor::EccUncorrected, 1.0),
            Verdict::Failing,
            "the default"
        );
        assert_eq!(Limits::parse(" , ").unwrap(), Limits::default());
    }

    #[test]
    fn what_is_not_understood_is_refused_with_a_remedy() {
        for (text, word) in [
            ("cpu-steal", "no limit"),
            ("cpu-stele=3", "no sensor 'cpu-stele'"),
            ("cpu-steal=a", "'a' is no limit"),
            ("cpu-steal=-1", "'-1' is no limit"),
            ("cpu-steal=NaN", "'NaN' is no limit"),
            ("cpu-steal=1/inf", "'inf' is no limit"),
            ("cpu-steal=20/5", "before it warns"),
            ("temperature=5/10", "before it warns"),
            ("cpu-steal=5,cpu-steal=6", "twice"),
            ("=", "no sensor ''"),
        ] {
            let error = Limits::parse(text).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.reason().contains(word), "{text}: {}", error.reason());
            assert!(!error.remedy().is_empty());
        }
        let long = Limits::parse(&"x".repeat(100_000)).unwrap_err();
        assert!(long.reason().len() < 100);
    }
}
