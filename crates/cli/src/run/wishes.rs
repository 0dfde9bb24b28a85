//! What the owner asks of a policy that decides by itself.

use std::time::{SystemTime, UNIX_EPOCH};

use outlive_base::Result;
use outlive_control::ended;
use outlive_control::orders::Bounds;
use outlive_control::steering::{Energy, Powers, Wishes};

use crate::config::{Config, refuse, short};

use super::time;

/// What only a policy can keep to.
pub(super) const AUTO_ONLY: [&str; 7] = [
    "overhead-max",
    "redo-max",
    "time-limit",
    "notice",
    "preempt-signal",
    "watts-compute",
    "watts-checkpoint",
];

/// What the owner asks of the policy.
pub(super) fn wishes(config: &Config, bounds: &Bounds) -> Result<Wishes> {
    let given = |key: &str, least_ms: u64| match config.get(key) {
        "" => Ok(None),
        _ => time(config, key, least_ms).map(Some),
    };
    let overhead_max = match config.get("overhead-max") {
        "" => None,
        text => {
            let share = text
                .trim()
                .strip_suffix('%')
                .and_then(|n| n.trim().parse().ok());
            let share = share.filter(|percent: &f64| *percent > 0.0 && *percent <= 100.0);
            let Some(share) = share else {
                let reason = format!("'{}' is no share of the time", short(text));
                let remedy = "give percent above 0 and up to 100, for example 1%";
                return Err(refuse(config, "overhead-max", reason, remedy));
            };
            Some(share / 100.0)
        }
    };
    Ok(Wishes {
        overhead_max,
        lost_max_ms: given("redo-max", 1_000)?,
        ends_after_ms: given("time-limit", 1_000)?.or_else(slurm_left_ms),
        notice_ms: given("notice", 1_000)?,
        preempts: preempt_signal(config)?.is_some(),
        powers: powers(config)?,
        commit_ms: bounds.commit_ms,
        ..Wishes::default()
    })
}

/// The signal that announces a preemption.
pub(super) fn preempt_signal(config: &Config) -> Result<Option<i32>> {
    let key = "preempt-signal";
    let signal = match config.get(key) {
        "" => return Ok(None),
        "TERM" | "SIGTERM" => ended::SIGTERM,
        "USR1" | "SIGUSR1" => ended::SIGUSR1,
        text => {
            let reason = format!("'{}' announces nothing", short(text));
            return Err(refuse(config, key, reason, "give TERM or USR1"));
        }
    };
    if config.get("notice").is_empty() {
        let reason = "how long after it the run is ended is not known".to_owned();
        let remedy = "give --notice too, for example 30s or 2min";
        return Err(refuse(config, key, reason, remedy));
    }
    Ok(Some(signal))
}

/// The powers, where energy is to be saved.
fn powers(config: &Config) -> Result<Powers> {
    let (compute, checkpoint) = ("watts-compute", "watts-checkpoint");
    let given = |key: &str| !config.get(key).is_empty();
    let off = |key: &str| config.get(key).trim() == "off";
    let (without, with) = match (given(compute), given(checkpoint)) {
        (false, false) => return Ok(Powers::AsBefore),
        (true, true) if off(compute) && off(checkpoint) => return Ok(Powers::Off),
        (true, false) if off(compute) => return Ok(Powers::Off),
        (false, true) if off(checkpoint) => return Ok(Powers::Off),
        (true, true) => {
            return Ok(Powers::Given(Energy {
                compute: watts(config, compute)?,
                checkpoint: watts(config, checkpoint)?,
            }));
        }
        (true, false) => (checkpoint, compute),
        (false, true) => (compute, checkpoint),
    };
    let reason = format!("without {without} nothing follows from it");
    Err(refuse(config, with, reason, "give both powers, or none"))
}

/// A power in watts.
fn watts(config: &Config, key: &str) -> Result<f64> {
    let text = config.get(key).trim();
    let (number, times) = [("MW", 1e6), ("kW", 1e3), ("W", 1.0)]
        .iter()
        .find_map(|(unit, times)| Some((text.strip_suffix(unit)?, *times)))
        .unwrap_or((text, 1.0));
    let power = number.trim().parse().ok().map(|n: f64| n * times);
    power
        .filter(|watts| Energy::is_power(*watts))
        .ok_or_else(|| {
            let reason = format!("'{}' is no power", short(text));
            let remedy = "give watts, for example 350, 350W, 90kW or 12MW; off for both: save time";
            refuse(config, key, reason, remedy)
        })
}

/// What is left of the Slurm job in which this runs, in milliseconds.
pub(super) fn slurm_left_ms() -> Option<u64> {
    let end: u64 = std::env::var("SLURM_JOB_END_TIME").ok()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    end.checked_mul(1_000)?
        .checked_sub(u64::try_from(now.as_millis()).ok()?)
}
