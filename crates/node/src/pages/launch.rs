//! The environment under which a program gets huge pages. What the user has set stays.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The tunable of glibc's malloc.
const TUNABLE: &str = "glibc.malloc.hugetlb";

/// What the text of a program becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Text {
    /// Collapsed where it lies, if the kernel can.
    Collapse,
    /// Copied into anonymous memory.
    Copy,
    /// Left alone.
    No,
}

/// How memory becomes huge.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Heap, data and bss on pages that were reserved, instead of transparent ones.
    pub hugetlbfs: bool,
    /// The program's text.
    pub text: Text,
    /// Shorter mappings of the program stay; 0: those shorter than a huge page.
    pub least_bytes: u64,
}

/// What the environment holds now, of what is changed.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// `LD_PRELOAD`.
    pub preload: Option<OsString>,
    /// `GLIBC_TUNABLES`.
    pub tunables: Option<OsString>,
}

impl Before {
    /// That of this process.
    pub fn here() -> Before {
        Before {
            preload: std::env::var_os("LD_PRELOAD"),
            tunables: std::env::var_os("GLIBC_TUNABLES"),
        }
    }
}

/// The variables to set. `report`: where the library appends what it did.
pub fn environment(
    settings: &Settings,
    library: &Path,
    report: Option<&Path>,
    before: &Before,
) -> Vec<(OsString, OsString)> {
    // Behind the user's own: a library of theirs that stands before `mmap` is still called first.
    let preload = joined(before.preload.as_deref(), library.as_os_str());
    let mut variables = vec![("LD_PRELOAD".into(), preload)];
    let tunables = before.tunables.as_deref();
    if !tunables.is_some_and(is_chosen) {
        let value = format!("{TUNABLE}={}", if settings.hugetlbfs { 2 } else { 1 });
        let value = joined(tunables, OsStr::new(&value));
        variables.push(("GLIBC_TUNABLES".into(), value));
    }
    let text = match settings.text {
        Text::Collapse => "collapse",
        Text::Copy => "copy",
        Text::No => "no",
    };
    let data = if settings.hugetlbfs {
        "hugetlbfs"
    } else {
        "thp"
    };
    variables.push(("OUTLIVE_PAGES_TEXT".into(), text.into()));
    variables.push(("OUTLIVE_PAGES_DATA".into(), data.into()));
    if settings.least_bytes > 0 {
        let bytes = settings.least_bytes.to_string();
        variables.push(("OUTLIVE_PAGES_LEAST".into(), bytes.into()));
    }
    if let Some(report) = report {
        variables.push(("OUTLIVE_PAGES_REPORT".into(), report.into()));
    }
    variables
}

/// Whether `GLIBC_TUNABLES` says already how malloc takes huge pages.
fn is_chosen(tunables: &OsStr) -> bool {
    let text = tunables.to_string_lossy();
    let mut names = text.split(':').filter_map(|one| one.split_once('='));
    names.any(|(name, _)| name == TUNABLE)
}

/// A list with colons, ours at its end.
pub(crate) fn joined(before: Option<&OsStr>, ours: &OsStr) -> OsString {
    match before.filter(|before| !before.is_empty()) {
        Some(before) => {
            let mut all = before.to_owned();
            all.push(":");
            all.push(ours);
            all
        }
        None => ours.to_owned(),
    }
}

/// Whether the loader takes a library at this path: it parts names at colons and blanks, and
/// replaces what begins with a dollar sign.
pub fn can_be_preloaded(library: &Path) -> bool {
    let bytes = library.as_os_str().as_encoded_bytes();
    library.is_absolute() && !bytes.iter().any(|byte| b": \t\n$".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(before: &Before, hugetlbfs: bool) -> Vec<(String, String)> {
        let settings = Settings {
            hugetlbfs,
            text: Text::Collapse,
            least_bytes: 0,
        };
        let text = |word: OsString| word.into_string().unwrap();
        environment(&settings, Path::new("/l.so"), None, before)
            .into_iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    fn value(before: &Before, name: &str) -> Option<String> {
        let found = of(before, false).into_iter().find(|one| one.0 == name);
        found.map(|one| one.1)
    }

    #[test]
    fn what_the_user_has_set_stays_and_comes_first() {
        let none = Before::default();
        assert_eq!(value(&none, "LD_PRELOAD").unwrap(), "/l.so");
        let set = |text: &str| Some(text.into());
        let before = |preload, tunables| Before { preload, tunables };
        assert_eq!(
            value(&before(set("a.so b.so"), None), "LD_PRELOAD").unwrap(),
            "a.so b.so:/l.so"
        );
        assert_eq!(
            value(&before(set(""), None), "LD_PRELOAD").unwrap(),
            "/l.so"
        );
        let ours = "glibc.malloc.hugetlb=1";
        for (given, made) in [
            (None, Some(ours.to_owned())),
            (
                set("glibc.malloc.check=3"),
                Some(format!("glibc.malloc.check=3:{ours}")),
            ),
            // Only a name like ours.
            (set("x.hugetlb=0"), Some(format!("x.hugetlb=0:{ours}"))),
            (set("a=1:glibc.malloc.hugetlb=0"), None),
        ] {
            assert_eq!(value(&before(None, given), "GLIBC_TUNABLES"), made);
        }
        let huge = of(&none, true);
        assert!(huge.contains(&("GLIBC_TUNABLES".into(), "glibc.malloc.hugetlb=2".into())));
        assert!(huge.contains(&("OUTLIVE_PAGES_DATA".into(), "hugetlbfs".into())));
    }

    #[test]
    fn paths_that_the_loader_would_part_are_known() {
        for (path, good) in [
            ("/usr/lib/l.so", true),
            ("l.so", false),
            ("/my lib/l.so", false),
            ("/a:b/l.so", false),
            ("/$LIB/l.so", false),
        ] {
            assert_eq!(can_be_preloaded(Path::new(path)), good, "{path}");
        }
    }
}
