//! When agents do what need not be done at once, and the user's own command on each node: the settings.

use outlive_base::{Code, Entity, Error, Result};
use outlive_control::slots::{ServiceSettings, Slots};
use outlive_control::units::duration_ms;

use crate::config::{Config, short};

const SLOTS: &str = "service-slots";
const DAEMON: &str = "daemon";
/// What switches one off.
const OFF: &str = "off";
/// Periods that are taken, in milliseconds: below, nodes would be woken up more than is saved; above, what
/// waits for its slot would wait as long as what has a bound.
const PERIODS_MS: std::ops::RangeInclusive<u64> = 100..=10_000;
/// The shortest slot, in milliseconds.
const LENGTH_MIN_MS: u64 = 5;

/// What the configuration says.
///
/// # Errors
/// If a value is not understood.
pub fn settings(config: &Config) -> Result<ServiceSettings> {
    let slots = match config.get(SLOTS) {
        OFF => Slots::default(),
        text => slots(text).map_err(|error| config.blame(SLOTS, &error))?,
    };
    let daemon = match config.get(DAEMON).trim() {
        OFF | "" => None,
        command => Some(command.to_owned()),
    };
    Ok(ServiceSettings { slots, daemon })
}

fn slots(text: &str) -> Result<Slots> {
    let refuse = |reason: String, remedy: String| {
        let entity = Entity::Option(SLOTS.to_owned());
        Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
    };
    let Some((period, length)) = text.split_once('/') else {
        let reason = format!("'{}' is no PERIOD/LENGTH", short(text));
        return refuse(reason, "write for example 1s/50ms, or off".to_owned());
    };
    let (period_ms, length_ms) = (duration_ms(SLOTS, period)?, duration_ms(SLOTS, length)?);
    if !PERIODS_MS.contains(&period_ms) {
        let (least, most) = (PERIODS_MS.start(), PERIODS_MS.end());
        let remedy = format!("give a period from {least} ms to {most} ms");
        return refuse(format!("a period of {period_ms} ms"), remedy);
    }
    if !(LENGTH_MIN_MS..=period_ms / 2).contains(&length_ms) {
        let most = period_ms / 2;
        let remedy = format!("give slots from {LENGTH_MIN_MS} ms to {most} ms, half of the period");
        return refuse(format!("slots of {length_ms} ms"), remedy);
    }
    Ok(Slots {
        period_ms,
        length_ms,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_a_period_and_a_length() {
        let of = |period_ms, length_ms| Slots {
            period_ms,
            length_ms,
        };
        assert_eq!(slots("1s/50ms").unwrap(), of(1_000, 50));
        assert_eq!(slots("10s/5s").unwrap(), of(10_000, 5_000));
        for bad in [
            "",
            "1s",
            "/",
            "1s/",
            "0s/0s",
            "1s/600ms",
            "1s/0ms",
            "1s/4ms",
            "99ms/10ms",
            "11s/1s",
            "1s/50ms/1",
            "x/y",
        ] {
            let error = slots(bad).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{bad}: {error}");
        }
    }
}
