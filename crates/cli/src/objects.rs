//! The object store and the memory server that a job may have.

use outlive_base::Result;
use outlive_base::level::StoreKind;
use outlive_control::orders::LevelSetting;
use outlive_launch::shared::ObjectStoreUrl;

use crate::config::{Config, refuse, short};

/// Where the level shared lies, if not in the job's directory.
///
/// # Errors
/// If it is no such place, or nothing would be kept there.
pub fn wanted(
    config: &Config,
    levels: &[LevelSetting],
    named: bool,
) -> Result<Option<ObjectStoreUrl>> {
    let text = match config.get("object-store") {
        "" => return Ok(None),
        text => text,
    };
    let place = text.parse::<ObjectStoreUrl>().map_err(|error| {
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
    if !levels
        .iter()
        .any(|it| it.level.store() == StoreKind::Shared)
    {
        let reason = "nothing would be kept there: the level shared is not in use".to_owned();
        let remedy = "add it, for example --levels memory,disk,shared/4";
        return Err(refuse(config, "object-store", reason, remedy));
    }
    Ok(Some(place))
}

/// Where the memory server is: `HOST:PORT`.
///
/// # Errors
/// If it is no address, nothing would be kept there, or a level needs one.
pub fn memory_server(
    config: &Config,
    levels: &[LevelSetting],
    named: bool,
) -> Result<Option<String>> {
    let refuse = |reason: String, remedy: &str| {
        let key = "memory-server";
        Err(refuse(config, key, reason, remedy))
    };
    let served = |it: &&LevelSetting| it.level.store() == StoreKind::Server;
    let level = levels.iter().find(served).map(|it| it.level);
    let address = config.get("memory-server");
    let port = address.rsplit_once(':').map(|(_, port)| port.parse());
    match (address, level) {
        ("", None) => Ok(None),
        ("", Some(level)) => refuse(
            format!("the level {level} needs a memory server"),
            "start one (outlive memory-server) and say where it is: --memory-server HOST:PORT",
        ),
        (_, _) if !matches!(port, Some(Ok(1..=u16::MAX))) => refuse(
            format!("'{}' is no address", short(address)),
            "write HOST:PORT, as the server says it when it starts",
        ),
        (_, None) => refuse(
            "nothing would be kept there: no level uses it".to_owned(),
            "add one, for example --levels memory,disk,memory-server:4",
        ),
        (_, Some(_)) if !named => refuse(
            "a job without a name has no key that the server could know".to_owned(),
            "name it with --job, and give the server the same name",
        ),
        (address, Some(_)) => Ok(Some(address.to_owned())),
    }
}
