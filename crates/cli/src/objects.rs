//! The object store that a job may have.

use outlive_base::{Level, Result};
use outlive_control::orders::LevelSetting;
use outlive_launch::shared::ObjectPlace;

use crate::config::Config;
use crate::run::refuse;

/// Where the level shared lies, if not in the job's directory.
///
/// # Errors
/// If it is no such place, or nothing would be kept there.
pub fn wanted(
    config: &Config,
    levels: &[LevelSetting],
    named: bool,
) -> Result<Option<ObjectPlace>> {
    let text = match config.get("object-store") {
        "" => return Ok(None),
        text => text,
    };
    let place = text.parse::<ObjectPlace>().map_err(|error| {
        refuse(
            config,
            "object-store",
            error.reason().to_owned(),
            error.remedy(),
        )
    })?;
    if !named {
        let reason = "a job without a name leaves nothing behind".to_owned();
        let remedy = "name it with --job: by its name another cluster finds it";
        return Err(refuse(config, "object-store", reason, remedy));
    }
    if !levels.iter().any(|it| it.level == Level::SHARED) {
        let reason = "nothing would be kept there: the level shared is not in use".to_owned();
        let remedy = "add it, for example --levels memory,disk,shared/4";
        return Err(refuse(config, "object-store", reason, remedy));
    }
    Ok(Some(place))
}
