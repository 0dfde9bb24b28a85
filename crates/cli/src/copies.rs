//! Where second copies go, how copies come to shared storage, how all copies are read before they are
//! needed, and what a version may not hold: the settings.

use outlive_base::{Code, Entity, Error, Result};
use outlive_control::refused::Refused;
use outlive_control::supervisor::Settings;
use outlive_control::transfers::TransferSetting;
use outlive_control::units::size_bytes;

use crate::config::{Config, number, short};

/// Nodes that take turns at one node's copies, at most.
const PARTNERS_MAX: u32 = 1024;

/// What switches a bound off.
const OFF: &str = "off";

/// Takes over what the configuration says of copies.
///
/// # Errors
/// If a value is not understood.
pub fn apply(config: &Config, settings: &mut Settings) -> Result<()> {
    settings.scrub = crate::scrub::setting(config)?;
    settings.transfer = TransferSetting {
        from_disk: from_disk(config)?,
        bytes_per_s: rate(config, "shared-rate")?,
        bytes_per_s_job: rate(config, "shared-rate-job")?,
    };
    settings.refused = refused(config)?;
    settings.partners = number(config, "partners", 1, PARTNERS_MAX)?;
    Ok(())
}

/// The numbers that a version may not hold.
fn refused(config: &Config) -> Result<Refused> {
    let given = config.get("refuse");
    let mut refused = Refused::default();
    if given == OFF {
        return Ok(refused);
    }
    for word in given.split(',') {
        match word.trim() {
            "nan" => refused.nan = true,
            "inf" => refused.infinite = true,
            other => {
                let reason = format!("'{}' is neither nan nor inf", short(other));
                let remedy = "give nan, inf, nan,inf or off";
                return Err(refuse(config, "refuse", reason, remedy));
            }
        }
    }
    Ok(refused)
}

fn from_disk(config: &Config) -> Result<bool> {
    match config.get("shared-from") {
        "disk" => Ok(true),
        "memory" => Ok(false),
        other => {
            let reason = format!("'{}' is neither disk nor memory", short(other));
            Err(refuse(config, "shared-from", reason, "give disk or memory"))
        }
    }
}

/// 0: no bound.
fn rate(config: &Config, key: &'static str) -> Result<u64> {
    let value = config.get(key);
    if value == OFF {
        return Ok(0);
    }
    match size_bytes(key, value).map_err(|error| config.blame(key, &error))? {
        0 => {
            let reason = "nothing is written at 0 bytes a second".to_owned();
            let remedy = "give more, or off for no bound; without the level shared nothing is \
                          written there";
            Err(refuse(config, key, reason, remedy))
        }
        rate => Ok(rate),
    }
}

fn refuse(config: &Config, key: &str, reason: String, remedy: &str) -> Error {
    let entity = Entity::Option(key.to_owned());
    let error = Error::new(Code::InvalidArgument, entity, reason, remedy);
    config.blame(key, &error)
}
