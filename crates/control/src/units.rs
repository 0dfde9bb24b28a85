//! Sizes and durations as people write them: `10s`, `250ms`, `1.5h`, `10MiB`.
//!
//! One grammar for flags, configuration files, variables and injections. Numbers
//! are exact: fractions are kept as integers until the unit is known. A duration
//! needs its unit (except 0), because seconds and milliseconds are both plausible.

use outlive_base::{Code, Entity, Error, Result};

const DURATIONS_NS: &[(&str, u128)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

const SIZES: &[(&str, u128)] = &[
    ("", 1),
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("K", 1 << 10),
    ("KiB", 1 << 10),
    ("M", 1 << 20),
    ("MiB", 1 << 20),
    ("G", 1 << 30),
    ("GiB", 1 << 30),
    ("T", 1 << 40),
    ("TiB", 1 << 40),
];

/// A duration in milliseconds, rounded up: a positive duration is never 0.
///
/// # Errors
/// [`Code::InvalidArgument`] if the text is no number with a unit of time, or is
/// longer than about 580 million years.
pub fn duration_ms(option: &str, text: &str) -> Result<u64> {
    let remedy = "write a number and ms, s, min, h or d, for example 10s";
    duration(option, text, 1_000_000, remedy)
}

/// A duration in nanoseconds, rounded up: a positive duration is never 0.
///
/// # Errors
/// [`Code::InvalidArgument`] if the text is no number with a unit of time, or is
/// longer than about 580 years.
pub fn duration_ns(option: &str, text: &str) -> Result<u64> {
    let remedy = "write a number and us, ms or s, for example 1ms";
    duration(option, text, 1, remedy)
}

/// A duration in units of `unit_ns`, rounded up.
fn duration(option: &str, text: &str, unit_ns: u128, remedy: &str) -> Result<u64> {
    let bad = |reason: &str| error(option, text, reason, remedy);
    let (value, scale, unit) = number(text).ok_or_else(|| bad("is no duration"))?;
    if unit.is_empty() && value == 0 {
        return Ok(0);
    }
    let (_, factor) = DURATIONS_NS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| bad("has no unit of time"))?;
    let ns = value
        .checked_mul(*factor)
        .ok_or_else(|| bad("is too long"))?;
    u64::try_from(ns.div_ceil(scale * unit_ns)).map_err(|_| bad("is too long"))
}

/// A size in bytes, rounded down. `K`, `M`, `G`, `T` count by 1024, as `KiB` does.
///
/// # Errors
/// [`Code::InvalidArgument`] if the text is no number with a unit of size.
pub fn size_bytes(option: &str, text: &str) -> Result<u64> {
    let bad = |reason: &str| {
        error(
            option,
            text,
            reason,
            "write a number and B, KiB, MiB, GiB or TiB, for example 512MiB",
        )
    };
    let (value, scale, unit) = number(text).ok_or_else(|| bad("is no size"))?;
    let (_, factor) = SIZES
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| bad("has no unit of size"))?;
    let bytes = value
        .checked_mul(*factor)
        .ok_or_else(|| bad("is too large"))?
        / scale;
    u64::try_from(bytes).map_err(|_| bad("is too large"))
}

/// Bytes with the largest binary unit that leaves a number of at least 1.
pub fn show_bytes(bytes: u64) -> String {
    let units = [("TiB", 40u32), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (name, shift) in units {
        if bytes >> shift > 0 {
            return format!("{:.1} {name}", bytes as f64 / (1u64 << shift) as f64);
        }
    }
    format!("{bytes} B")
}

/// Milliseconds with the unit that suits them.
pub fn show_ms(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 1_000.0 => format!("{ms:.0} ms"),
        ms if ms < 120_000.0 => format!("{:.1} s", ms / 1e3),
        ms => format!("{:.1} min", ms / 60e3),
    }
}

/// Splits `12.5MiB` into (125, 10, "MiB"): digits, scale, unit. At most 18 digits.
fn number(text: &str) -> Option<(u128, u128, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let (whole, part) = match digits.split_once('.') {
        Some((whole, part)) if !part.is_empty() => (whole, part),
        Some(_) => return None,
        None => (digits, ""),
    };
    if whole.is_empty() || whole.len() + part.len() > 18 || part.contains('.') {
        return None;
    }
    let value = format!("{whole}{part}").parse().ok()?;
    let scale = 10u128.pow(part.len() as u32);
    Some((value, scale, unit.trim_start()))
}

fn error(option: &str, text: &str, reason: &str, remedy: &str) -> Error {
    let shown: String = text.chars().take(60).collect();
    Error::new(
        Code::InvalidArgument,
        Entity::Option(option.into()),
        format!("'{shown}' {reason}"),
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, ms) in [
            ("0", 0),
            ("10s", 10_000),
            ("1.5s", 1_500),
            ("250ms", 250),
            ("1us", 1),
            ("2 min", 120_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0.5d", 43_200_000),
        ] {
            assert_eq!(duration_ms("x", text).unwrap(), ms, "{text}");
        }
        for (text, ns) in [
            ("0", 0),
            ("1ns", 1),
            ("0.1ns", 1),
            ("1.5us", 1_500),
            ("1ms", 1_000_000),
        ] {
            assert_eq!(duration_ns("x", text).unwrap(), ns, "{text}");
        }
        assert!(
            duration_ns("x", "9999999h").is_err(),
            "600 years are more than 64 bits of ns"
        );
        for bad in [
            "",
            "10",
            "s",
            "-1s",
            "1.s",
            "1.2.3s",
            "1e3s",
            "5 parsecs",
            "9999999999999999999s",
            "999999999999999999d",
        ] {
            let error = duration_ms("interval", bad).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("10MiB", 10 << 20),
            ("1.5GiB", 3 << 29),
            ("2 GB", 2_000_000_000),
            ("1K", 1024),
        ] {
            assert_eq!(size_bytes("x", text).unwrap(), bytes, "{text}");
        }
        for bad in ["", "MiB", "-1", "1XB", "99999999TiB", "1..5K"] {
            assert!(size_bytes("x", bad).is_err(), "{bad}");
        }
        assert_eq!(show_bytes(1536), "1.5 KiB");
        assert_eq!(show_bytes(12), "12 B");
        assert_eq!(show_ms(4.25), "4.2 ms");
    }
}
