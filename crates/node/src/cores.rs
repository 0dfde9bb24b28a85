//! The cores of this machine and their caches, and the place of a thread.

use std::fs;
use std::path::Path;

use outlive_base::{Code, Entity, Error, Result};

use crate::cpus::Cpus;

/// Where the kernel describes the cores.
pub const CPU_ROOT: &str = "/sys/devices/system/cpu";

fn refuse(option: &str, reason: String, remedy: String) -> Error {
    Error::new(
        Code::InvalidArgument,
        Entity::Option(option.into()),
        reason,
        remedy,
    )
}

/// A list of cores as the kernel writes it, `0-2,5`: ascending, each once.
///
/// # Errors
/// [`Code::InvalidArgument`] on option `cores` for what is no such list, or a core beyond
/// what a mask of the kernel's can hold.
pub fn parse(text: &str) -> Result<Vec<u32>> {
    let most = crate::cpus::MOST;
    let wrong = |part: &str| {
        let reason = format!("'{part}' is no core or range of cores");
        let remedy = format!("write numbers below {most} and ranges, as in 0-2,5");
        refuse("cores", reason, remedy)
    };
    let mut cores = Cpus::default();
    for part in text.trim().split(',') {
        let of_it = Cpus::of_list(part).filter(|of_it| !of_it.is_empty());
        cores = cores.or(&of_it.ok_or_else(|| wrong(part))?);
    }
    Ok(cores.iter().collect())
}

/// The chosen cores, all allowed ones if none are named.
///
/// # Errors
/// [`Code::InvalidArgument`] for a core that does not exist, is offline, or is not among
/// those that this process may use; those of reading `root`.
pub fn choose(root: &Path, wanted: Option<&str>) -> Result<Vec<u32>> {
    let read = |name: &str| {
        let path = root.join(name);
        let text = fs::read_to_string(&path).map_err(|error| Error::io(&path, "read", &error))?;
        parse(&text)
    };
    let (present, online) = (read("present")?, read("online")?);
    let set = Cpus::of_thread(0);
    let set = set.map_err(|error| Error::internal(format!("own affinity: {error}")))?;
    let allowed = |core: &u32| set.contains(*core);
    let Some(wanted) = wanted else {
        return Ok(online.into_iter().filter(allowed).collect());
    };
    let wanted = parse(wanted)?;
    for core in &wanted {
        let (reason, remedy) = if !present.contains(core) {
            let there = shown(&present);
            (
                "does not exist",
                format!("choose among those of this machine: {there}"),
            )
        } else if !online.contains(core) {
            let path = root.join(format!("cpu{core}/online"));
            let remedy = format!(
                "choose among {}, or as root write 1 to {}",
                shown(&online),
                path.display()
            );
            ("is offline", remedy)
        } else if !allowed(core) {
            let remedy =
                "choose another one, or widen the cpuset or taskset that holds this process";
            (
                "is not among the cores that this process may use",
                remedy.to_owned(),
            )
        } else {
            continue;
        };
        return Err(refuse("cores", format!("core {core} {reason}"), remedy));
    }
    Ok(wanted)
}

fn shown(cores: &[u32]) -> String {
    let words: Vec<String> = cores.iter().map(u32::to_string).collect();
    words.join(",")
}

/// Binds the calling thread to one core.
///
/// # Errors
/// [`Code::InvalidArgument`] on option `cores` if the kernel refuses.
pub fn pin(core: u32) -> Result<()> {
    let one: Cpus = [core].into_iter().collect();
    one.affinity().apply(0).map_err(|error| {
        let reason = format!("core {core}: the kernel refuses to run there: {error}");
        refuse("cores", reason, "choose another core".into())
    })
}

/// The size in bytes of the data cache of `core` at `level`, as sysfs says it; `None` if
/// there is none or it does not say.
pub fn cache_bytes(root: &Path, core: u32, level: u32) -> Option<u64> {
    let directory = root.join(format!("cpu{core}/cache"));
    (0..16).find_map(|index| {
        let read = |name: &str| {
            let path = directory.join(format!("index{index}")).join(name);
            Some(fs::read_to_string(path).ok()?.trim().to_owned())
        };
        if read("level")?.parse() != Ok(level) || read("type")? == "Instruction" {
            return None;
        }
        let size = read("size")?;
        match size.strip_suffix(['K', 'M']) {
            Some(number) => {
                let unit = if size.ends_with('K') {
                    1 << 10
                } else {
                    1 << 20
                };
                number.parse::<u64>().ok()?.checked_mul(unit)
            }
            None => size.parse().ok(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_those_of_the_kernel() {
        assert_eq!(parse("0-2,5\n").unwrap(), [0, 1, 2, 5]);
        assert_eq!(parse("3,1,3").unwrap(), [1, 3]);
        for bad in [
            "",
            "a",
            "2-1",
            "1-",
            "-1",
            "0,,1",
            "99999999",
            "0-4294967295",
        ] {
            assert_eq!(
                parse(bad).unwrap_err().code(),
                Code::InvalidArgument,
                "{bad}"
            );
        }
    }

    #[test]
    fn cores_that_are_not_there_are_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let here = Cpus::of_thread(0).unwrap();
        let mine = here.iter().next().unwrap();
        write("present", "0-1023\n");
        write("online", "0-1000\n");
        let error = choose(dir.path(), Some("1023")).unwrap_err().to_string();
        assert!(error.contains("1023 is offline"), "{error}");
        let other = (0..1000).find(|&core| !here.contains(core)).unwrap();
        let error = choose(dir.path(), Some(&other.to_string())).unwrap_err();
        assert!(error.to_string().contains("may use"), "{error}");
        assert_eq!(choose(dir.path(), Some(&mine.to_string())).unwrap(), [mine]);
        write("present", "0\n");
        let error = choose(dir.path(), Some("7")).unwrap_err().to_string();
        assert!(error.contains("does not exist"), "{error}");
        for (index, (level, kind, size)) in [
            ("1", "Instruction", "64K"),
            ("1", "Data", "48K"),
            ("2", "Unified", "2M"),
        ]
        .iter()
        .enumerate()
        {
            write(&format!("cpu0/cache/index{index}/level"), level);
            write(&format!("cpu0/cache/index{index}/type"), kind);
            write(&format!("cpu0/cache/index{index}/size"), size);
        }
        assert_eq!(cache_bytes(dir.path(), 0, 1), Some(48 << 10));
        assert_eq!(cache_bytes(dir.path(), 0, 2), Some(2 << 20));
        assert_eq!(cache_bytes(dir.path(), 0, 3), None);
    }
}
