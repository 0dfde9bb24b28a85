//! Quantities with units in texts: `10 years`, `118 GB`, `30 TB/s`.
//!
//! A number without a unit is refused: nobody remembers what it was meant in. Years have
//! 365.25 days; KB, MB, ... are powers of 1000 and KiB, MiB, ... of 1024.

use serde::{Deserialize, Deserializer, de};

/// Between what was seen and its remedy in a message of a deserialiser.
pub(crate) const REMEDY: char = '\u{1f}';

/// A time in seconds, at least 0.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Seconds(pub f64);

/// A number of bytes, at least 0.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Bytes(pub f64);

/// Bytes per second, above 0.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Bandwidth(pub f64);

const TIMES: &[(&str, f64)] = &[
    ("us", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("second", 1.0),
    ("seconds", 1.0),
    ("min", 60.0),
    ("minute", 60.0),
    ("minutes", 60.0),
    ("h", 3600.0),
    ("hour", 3600.0),
    ("hours", 3600.0),
    ("d", 86_400.0),
    ("day", 86_400.0),
    ("days", 86_400.0),
    ("week", 604_800.0),
    ("weeks", 604_800.0),
    ("year", 31_557_600.0),
    ("years", 31_557_600.0),
];

const SIZES: &[(&str, f64)] = &[
    ("B", 1.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("PB", 1e15),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("PiB", 1_125_899_906_842_624.0),
];

/// A number and its unit. Errors are (what was seen, what to do).
fn quantity(text: &str, units: &[(&str, f64)], example: &str) -> Result<f64, (String, String)> {
    let text = text.trim();
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-' | '_')))
        .unwrap_or(text.len());
    // The exponent of 1e6: an e that a digit or sign follows.
    let (mut number, mut unit) = text.split_at(split);
    if let Some(rest) = unit.strip_prefix(['e', 'E'])
        && rest.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+')
    {
        let end = rest
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '-' | '+')))
            .unwrap_or(rest.len());
        (number, unit) = text.split_at(split + 1 + end);
    }
    let plain: String = number.chars().filter(|&c| c != '_').collect();
    let Ok(value) = plain.parse::<f64>() else {
        let remedy = format!("write a number and a unit, for example \"{example}\"");
        return Err((format!("'{text}' is no number with a unit"), remedy));
    };
    let unit = unit.trim();
    if unit.is_empty() {
        let remedy = format!("add the unit, for example \"{example}\"");
        return Err((format!("'{text}' has no unit"), remedy));
    }
    let Some(&(_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        let remedy = format!("use one of {}", names.join(", "));
        return Err((format!("'{text}' has the unknown unit '{unit}'"), remedy));
    };
    let value = value * factor;
    if !(value.is_finite() && value >= 0.0) {
        return Err((
            format!("'{text}' is negative or too large"),
            "give a positive value".into(),
        ));
    }
    Ok(value)
}

impl Seconds {
    /// A time: `90 s`, `2.5 h`, `10 years`.
    ///
    /// # Errors
    /// What was seen and what to do, if it is no number of at least 0 with a known unit.
    pub fn parse(text: &str) -> Result<Seconds, (String, String)> {
        quantity(text, TIMES, "90 s").map(Seconds)
    }
}

impl Bytes {
    /// A size: `118 GB`, `64 GiB`.
    ///
    /// # Errors
    /// What was seen and what to do, if it is no number of at least 0 with a known unit.
    pub fn parse(text: &str) -> Result<Bytes, (String, String)> {
        quantity(text, SIZES, "118 GB").map(Bytes)
    }
}

impl Bandwidth {
    /// A rate: `15 GB/s`.
    ///
    /// # Errors
    /// What was seen and what to do, if it is no number above 0 with a known unit.
    pub fn parse(text: &str) -> Result<Bandwidth, (String, String)> {
        let example = "15 GB/s";
        let Some(size) = text.trim().strip_suffix("/s") else {
            let remedy = format!("write bytes per second, for example \"{example}\"");
            return Err((format!("'{text}' is no rate"), remedy));
        };
        match quantity(size, SIZES, example)? {
            0.0 => Err(("a rate of 0".into(), "give a rate above 0".into())),
            rate => Ok(Bandwidth(rate)),
        }
    }
}

struct Text<T>(fn(&str) -> Result<T, (String, String)>, &'static str);

impl<T> de::Visitor<'_> for Text<T> {
    type Value = T;
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a text with a unit such as \"{}\"", self.1)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(|(seen, remedy)| E::custom(format!("{seen}{REMEDY}{remedy}")))
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Seconds, D::Error> {
        from.deserialize_any(Text(Seconds::parse, "90 s"))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        from.deserialize_any(Text(Bytes::parse, "118 GB"))
    }
}

impl<'de> Deserialize<'de> for Bandwidth {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bandwidth, D::Error> {
        from.deserialize_any(Text(Bandwidth::parse, "15 GB/s"))
    }
}

/// A time as a person says it: `41 s`, `7 min 30 s`, `3 h 20 min`, `12 days`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "for ever".into();
    }
    let short = |value: f64| match value {
        v if v >= 100.0 || (v - libm::round(v)).abs() < 0.05 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    };
    match seconds {
        s if s < 0.0995 => format!("{} ms", short(s * 1e3)),
        s if s < 99.5 => format!("{} s", short(s)),
        s if s < 3_570.0 => format!("{} min", short(s / 60.0)),
        s if s < 172_800.0 => {
            let minutes = libm::round(s / 60.0);
            let (hours, rest) = (libm::floor(minutes / 60.0), minutes % 60.0);
            match rest {
                0.0 => format!("{hours} h"),
                rest => format!("{hours} h {rest} min"),
            }
        }
        s if s < 730.0 * 86_400.0 => format!("{} days", short(s / 86_400.0)),
        s => format!("{} years", short(s / 31_557_600.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read() {
        assert_eq!(Seconds::parse("90 s"), Ok(Seconds(90.0)));
        assert_eq!(Seconds::parse("2.5h"), Ok(Seconds(9_000.0)));
        assert_eq!(Seconds::parse("1e3 h"), Ok(Seconds(3.6e6)));
        assert_eq!(Seconds::parse("1_000 years"), Ok(Seconds(3.155_76e10)));
        assert_eq!(Bytes::parse("118 GB"), Ok(Bytes(118e9)));
        assert_eq!(
            Bytes::parse("1 EB").map_err(|e| e.0),
            Err("'1 EB' has the unknown unit 'EB'".into())
        );
        assert_eq!(Bandwidth::parse("2 GiB/s"), Ok(Bandwidth(2_147_483_648.0)));
    }

    #[test]
    fn what_has_no_unit_or_sense_is_refused() {
        for (text, seen) in [
            ("90", "'90' has no unit"),
            ("", "'' is no number with a unit"),
            ("fast", "'fast' is no number with a unit"),
            ("-1 s", "'-1 s' is negative or too large"),
            ("5 parsecs", "'5 parsecs' has the unknown unit 'parsecs'"),
        ] {
            let (found, remedy) = Seconds::parse(text).expect_err("no time");
            assert_eq!(found, seen);
            assert!(!remedy.is_empty());
        }
        assert!(Bandwidth::parse("15 GB").is_err());
        assert!(Bandwidth::parse("0 GB/s").is_err());
    }

    #[test]
    fn times_as_a_person_says_them() {
        for (seconds, said) in [
            (0.0125, "12.5 ms"),
            (41.2, "41.2 s"),
            (41.0, "41 s"),
            (450.0, "7.5 min"),
            (12_000.0, "3 h 20 min"),
            (7_200.0, "2 h"),
            (1_036_800.0, "12 days"),
            (f64::INFINITY, "for ever"),
        ] {
            assert_eq!(duration(seconds), said);
        }
    }
}
