//! What a machine offers of huge pages.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// Where the kernel describes memory.
pub const MEMORY_ROOT: &str = "/sys/kernel/mm";

/// A machine's huge pages.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Machine {
    /// The kernel, as `uname -r` has it.
    pub kernel: String,
    /// A normal page, bytes.
    pub page_bytes: u64,
    /// Transparent ones.
    pub transparent: Transparent,
    /// Reserved ones (hugetlbfs), by size.
    pub pools: Vec<Pool>,
    /// What could be better, with the line that does it.
    pub remedies: Vec<String>,
}

/// Transparent huge pages.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Transparent {
    /// A huge page, bytes; null: the kernel has none.
    pub huge_bytes: Option<u64>,
    /// `always`, `madvise` (for what is advised) or `never`; null: the kernel does not say.
    pub enabled: Option<String>,
    /// What a page fault does when no huge page is free.
    pub defrag: Option<String>,
    /// The same as `enabled` for shared memory.
    pub shmem: Option<String>,
    /// The thread that collapses in the background, as name and value.
    pub khugepaged: Vec<(String, u64)>,
    /// Whether they are forbidden to this process and what it starts (prctl).
    pub forbidden: bool,
}

/// Huge pages of one size that were reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Pool {
    /// A page, bytes.
    pub bytes: u64,
    /// Pages there are.
    pub total: u64,
    /// Those that nobody has.
    pub free: u64,
    /// Those of them that are promised.
    pub reserved: u64,
    /// Those that may be added while they are needed.
    pub overcommit: u64,
}

impl Pool {
    /// Pages that could be had now, without those that may be added.
    pub const fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }
}

fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

/// The chosen word of `always [madvise] never`.
fn chosen(path: &Path) -> Option<String> {
    let text = text(path)?;
    let word = text.split_whitespace().find_map(|word| {
        let word = word.strip_prefix('[')?;
        word.strip_suffix(']')
    });
    word.map(str::to_owned)
}

/// What the machine whose memory is described below `root` offers.
pub fn look(root: &Path) -> Machine {
    let place = root.join("transparent_hugepage");
    let khugepaged = [
        "scan_sleep_millisecs",
        "alloc_sleep_millisecs",
        "pages_to_scan",
        "max_ptes_none",
        "defrag",
    ];
    let khugepaged = khugepaged.iter().filter_map(|name| {
        let value = number(&place.join("khugepaged").join(name))?;
        Some(((*name).to_owned(), value))
    });
    let transparent = Transparent {
        huge_bytes: number(&place.join("hpage_pmd_size")),
        enabled: chosen(&place.join("enabled")),
        defrag: chosen(&place.join("defrag")),
        shmem: chosen(&place.join("shmem_enabled")),
        khugepaged: khugepaged.collect(),
        forbidden: rustix::thread::transparent_huge_pages_are_disabled().unwrap_or(false),
    };
    let pools = pools(&root.join("hugepages"));
    let remedies = remedies(&transparent);
    let release = rustix::system::uname();
    Machine {
        kernel: release.release().to_string_lossy().into_owned(),
        page_bytes: rustix::param::page_size() as u64,
        transparent,
        pools,
        remedies,
    }
}

fn pools(root: &Path) -> Vec<Pool> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let pool = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let size = name.to_str()?.strip_prefix("hugepages-")?;
        let kib: u64 = size.strip_suffix("kB")?.parse().ok()?;
        let of = |name: &str| number(&entry.path().join(name));
        Some(Pool {
            bytes: kib.checked_mul(1024)?,
            total: of("nr_hugepages")?,
            free: of("free_hugepages")?,
            reserved: of("resv_hugepages").unwrap_or(0),
            overcommit: of("nr_overcommit_hugepages").unwrap_or(0),
        })
    };
    let mut pools: Vec<Pool> = entries.filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.bytes);
    pools
}

fn remedies(transparent: &Transparent) -> Vec<String> {
    let mut found = Vec::new();
    if transparent.forbidden {
        found.push(
            "transparent huge pages are forbidden to this process (prctl): start the command from \
             a shell where they are not"
                .to_owned(),
        );
    }
    match transparent.enabled.as_deref() {
        None => found.push(
            "the kernel has no transparent huge pages (or this container hides them): take one \
             with CONFIG_TRANSPARENT_HUGEPAGE, or --hugetlbfs with reserved pages"
                .to_owned(),
        ),
        Some("never") => found.push(
            "transparent huge pages are switched off: as root, \
             echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
                .to_owned(),
        ),
        Some(_) => {}
    }
    if transparent.defrag.as_deref() == Some("never") {
        found.push(
            "page faults wait for no huge page: as root, \
             echo madvise > /sys/kernel/mm/transparent_hugepage/defrag"
                .to_owned(),
        );
    }
    found
}

/// The line that reserves pages for `bytes`.
pub fn reserving(bytes: u64, pool_bytes: u64) -> String {
    let pages = bytes.div_ceil(pool_bytes.max(1));
    let kib = pool_bytes / 1024;
    format!("as root, echo {pages} > {MEMORY_ROOT}/hugepages/hugepages-{kib}kB/nr_hugepages")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn what_the_kernel_says_is_read() {
        let dir = made(&[
            ("transparent_hugepage/enabled", "always [madvise] never\n"),
            (
                "transparent_hugepage/defrag",
                "always defer madvise [never]\n",
            ),
            ("transparent_hugepage/hpage_pmd_size", "2097152\n"),
            ("transparent_hugepage/khugepaged/pages_to_scan", "4096\n"),
            ("hugepages/hugepages-1048576kB/nr_hugepages", "1\n"),
            ("hugepages/hugepages-1048576kB/free_hugepages", "1\n"),
            ("hugepages/hugepages-2048kB/nr_hugepages", "8\n"),
            ("hugepages/hugepages-2048kB/free_hugepages", "6\n"),
            ("hugepages/hugepages-2048kB/resv_hugepages", "2\n"),
            ("hugepages/other", ""),
        ]);
        let machine = look(dir.path());
        let transparent = &machine.transparent;
        assert_eq!(transparent.enabled.as_deref(), Some("madvise"));
        assert_eq!(transparent.huge_bytes, Some(2 << 20));
        assert_eq!(transparent.shmem, None);
        assert_eq!(transparent.khugepaged, [("pages_to_scan".to_owned(), 4096)]);
        let sizes: Vec<u64> = machine.pools.iter().map(|pool| pool.bytes).collect();
        assert_eq!(sizes, [2 << 20, 1 << 30]);
        assert_eq!(machine.pools[0].available(), 4);
        assert!(machine.remedies.iter().any(|line| line.contains("defrag")));
    }

    #[test]
    fn what_is_switched_off_or_missing_has_its_line() {
        let dir = made(&[("transparent_hugepage/enabled", "always madvise [never]\n")]);
        assert!(look(dir.path()).remedies[0].contains("echo madvise"));
        let empty = tempfile::tempdir().unwrap();
        let machine = look(empty.path());
        assert!(machine.pools.is_empty() && machine.remedies[0].contains("no transparent"));
        let line = reserving((3 << 20) + 1, 2 << 20);
        assert!(
            line.contains("echo 2 >") && line.contains("hugepages-2048kB"),
            "{line}"
        );
    }
}
