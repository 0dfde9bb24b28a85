//! How copies are read before they are needed: the options, and what is shown of it.

use outlive_base::{Code, Entity, Error, Result, count};
use outlive_control::report::Report;
use outlive_control::scrubbing::ScrubSetting;
use outlive_control::units::{duration_ms, show_bytes, show_ms, size_bytes};

use crate::config::Config;

/// What switches it off.
const OFF: &str = "off";

/// `--scrub-every` and `--scrub-rate`.
///
/// # Errors
/// If one is not understood, or nothing could be read at that rate.
pub fn setting(config: &Config) -> Result<ScrubSetting> {
    let blamed = |key: &'static str| move |error: Error| config.blame(key, &error);
    let every = config.get("scrub-every");
    let every_ms = match every {
        OFF => None,
        _ => Some(duration_ms("scrub-every", every).map_err(blamed("scrub-every"))?),
    };
    let rate = config.get("scrub-rate");
    let bytes_per_s = size_bytes("scrub-rate", rate).map_err(blamed("scrub-rate"))?;
    let none = |key: &'static str, reason: &str| {
        let entity = Entity::Option(key.to_owned());
        let remedy = "give more, or --scrub-every off for no reading at all";
        blamed(key)(Error::new(Code::InvalidArgument, entity, reason, remedy))
    };
    if every_ms == Some(0) {
        return Err(none("scrub-every", "copies cannot be read all the time"));
    }
    if bytes_per_s == 0 {
        return Err(none("scrub-rate", "nothing is read at 0 bytes a second"));
    }
    Ok(ScrubSetting {
        every_ms,
        bytes_per_s,
    })
}

/// What was read before it was needed, for people; nothing if nothing was.
pub fn describe(report: &Report) -> Vec<String> {
    let scrub = &report.scrub;
    if scrub.read == 0 && scrub.damaged == 0 {
        return Vec::new();
    }
    let (read, bytes) = (count(scrub.read, "copy"), show_bytes(scrub.read_bytes));
    let mut text = format!("{read} read before needed, {bytes}");
    if scrub.damaged > 0 {
        let (damaged, mended) = (scrub.damaged, scrub.mended);
        text += &format!("; {damaged} damaged, {mended} of them mended");
    }
    let mut lines = vec![text];
    for read in &scrub.versions {
        let ago = read.read_seconds.map(|at| (report.seconds - at).max(0.0));
        let when = ago.map_or_else(
            || "not read whole".to_owned(),
            |ago| format!("read whole {} ago", show_ms(ago * 1e3)),
        );
        lines.push(format!(
            "version {} at {}: {when}",
            read.version, read.level
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use outlive_base::JobName;
    use outlive_control::scrubbing::{ReadVersion, ScrubEntry};

    use super::*;

    #[test]
    fn what_was_read_is_shown_with_its_age() {
        let mut report = Report::new(&JobName::new("job").unwrap(), 2);
        assert!(describe(&report).is_empty());
        report.seconds = 400.0;
        let version = |version, read_seconds| ReadVersion {
            version,
            level: "disk".into(),
            read_seconds,
        };
        report.scrub = ScrubEntry {
            read: 3,
            read_bytes: 2048,
            damaged: 2,
            mended: 1,
            versions: vec![version(8, Some(40.0)), version(7, None)],
        };
        let lines = describe(&report);
        assert!(lines[0].contains("3 copies") && lines[0].contains("2 damaged, 1 of them mended"));
        assert_eq!(lines[1], "version 8 at disk: read whole 6.0 min ago");
        assert_eq!(lines[2], "version 7 at disk: not read whole");
    }
}
