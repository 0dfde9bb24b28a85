//! Where a program runs: on the NUMA node on which its memory lies.
//!
//! Persistent memory lies on one node of a machine, and whoever touches it from another
//! one waits for it longer: mini-ckpts measured 25 % without pinning and 5 to 8 % with it.
//! All that is known comes from sysfs, whose root is a parameter. What cannot be read there
//! is unknown, never guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Result};

/// Where sysfs is mounted.
pub const SYSFS: &str = "/sys";
/// The kernel's own bound for CPUs and nodes (NR_CPUS_RANGE_END, MAX_NUMNODES): a larger
/// number in a list is none.
const NUMBERS: u32 = 8192;
/// How many layers of mapped devices are looked through.
const LAYERS: u32 = 4;

/// Numbers of CPUs.
pub type Cpus = BTreeSet<u32>;
/// Nodes that have CPUs, and those of their CPUs that are online.
pub type Nodes = BTreeMap<u32, Cpus>;

/// What the user wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Near where the program's threads are known to fit there.
    #[default]
    Auto,
    /// On the CPUs of the node on which the memory lies.
    Near,
    /// Wherever the program may run.
    Any,
}

/// On which node memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// On this one.
    Node(u32),
    /// On one that the kernel does not tell.
    Unknown,
    /// On no device (tmpfs): each page lies where it was touched first.
    Nowhere,
}

/// What is known before a program starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// The nodes of the machine.
    pub nodes: Nodes,
    /// Where the memory lies.
    pub home: Home,
    /// The CPUs on which the program may run.
    pub allowed: Cpus,
    /// How many threads it will use.
    pub threads: Option<usize>,
}

/// What is done about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nothing.
    Leave,
    /// Nothing, and the user is told this.
    Tell(String),
    /// The program runs on these CPUs only.
    Pin(Cpus),
}

/// Reads a list of the kernel, such as `0-3,8,10-11`; empty for an empty one, `None` for
/// anything else.
pub fn list(text: &str) -> Option<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    let number = |text: &str| text.parse().ok().filter(|number| *number < NUMBERS);
    for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found)
}

/// A list as the kernel writes it.
pub fn shown(numbers: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let words = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(",")
}

/// The numbers of the nodes that are online; none if the kernel knows no nodes.
pub(crate) fn online(root: &Path) -> BTreeSet<u32> {
    let text = std::fs::read_to_string(root.join("devices/system/node/online"));
    text.ok().and_then(|text| list(&text)).unwrap_or_default()
}

/// The nodes with CPUs. Nodes of nothing but memory are left out: nothing can run there.
pub fn nodes(root: &Path) -> Nodes {
    let cpus = |node: &u32| {
        let path = root.join(format!("devices/system/node/node{node}/cpulist"));
        list(&std::fs::read_to_string(path).ok()?)
    };
    let all = online(root).into_iter();
    let with_cpus = all.filter_map(|node| Some((node, cpus(&node).filter(|c| !c.is_empty())?)));
    with_cpus.collect()
}

/// Where the files of a file system lie, by its device number (`st_dev`).
pub fn home(root: &Path, device: u64) -> Home {
    let (major, minor) = (libc::major(device), libc::minor(device));
    device_home(root, &format!("dev/block/{major}:{minor}"))
}

/// Where a disk lies, by its name; nowhere if there is none.
pub(crate) fn disk_home(root: &Path, name: &str) -> Home {
    device_home(root, &format!("block/{name}"))
}

fn device_home(root: &Path, link: &str) -> Home {
    match (root.canonicalize(), root.join(link).canonicalize()) {
        (Ok(root), Ok(block)) => {
            block_node(&root, &block, LAYERS).map_or(Home::Unknown, Home::Node)
        }
        _ => Home::Nowhere,
    }
}

/// The node of a block device, by its directory in sysfs. That of a partition lies in its
/// disk's, whose `device` is what drives it; a bus above may know what that does not.
fn block_node(root: &Path, block: &Path, layers: u32) -> Option<u32> {
    let entries = std::fs::read_dir(block.join("slaves"))
        .into_iter()
        .flatten();
    let parts: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok()?.path().canonicalize().ok())
        .collect();
    if !parts.is_empty() {
        // A mapped device lies somewhere only if all its parts lie there.
        let layers = layers.checked_sub(1)?;
        let nodes = parts.iter().map(|part| block_node(root, part, layers));
        let nodes: BTreeSet<u32> = nodes.collect::<Option<_>>()?;
        return nodes.first().copied().filter(|_| nodes.len() == 1);
    }
    let above = block.ancestors().take_while(|dir| *dir != root);
    let files = above.flat_map(|dir| [dir.join("device/numa_node"), dir.join("numa_node")]);
    // Negative where the kernel does not know.
    let mut known =
        files.filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok());
    known.next()
}

/// How many threads OpenMP will use, by the value of OMP_NUM_THREADS: its first number is
/// that of the outermost region.
pub fn threads(value: &str) -> Option<usize> {
    let first = value.split(',').next()?.trim();
    first.parse().ok().filter(|threads| *threads > 0)
}

/// What is done with a program.
///
/// # Errors
/// [`Code::InvalidArgument`] if it shall run near its memory and cannot, or nobody knows
/// where that is.
pub fn decide(placement: Placement, known: &Known) -> Result<Decision> {
    if placement == Placement::Any || known.nodes.len() < 2 {
        return Ok(Decision::Leave);
    }
    let near = placement == Placement::Near;
    let refused = |what: String, remedy: &str| {
        let entity = Entity::Option("--placement near".into());
        Err(Error::new(Code::InvalidArgument, entity, what, remedy))
    };
    let place = match known.home {
        Home::Node(node) => known.nodes.get(&node).map(|cpus| (node, cpus)),
        Home::Unknown => None,
        Home::Nowhere if near => None,
        Home::Nowhere => return Ok(Decision::Leave),
    };
    let Some((node, cpus)) = place else {
        let what = match known.home {
            Home::Node(node) => format!("the memory lies on NUMA node {node}, which has no CPUs"),
            _ => "the kernel does not tell on which NUMA node the memory lies".to_owned(),
        };
        if near {
            return refused(
                what,
                "pin the program by taskset or numactl, with --placement any",
            );
        }
        let nodes = shown(&known.nodes.keys().copied().collect());
        return Ok(Decision::Tell(format!(
            "{what}, and there are CPUs on nodes {nodes}: pin the program by numactl; \
             --placement any says that it shall run anywhere"
        )));
    };
    let here: Cpus = cpus.intersection(&known.allowed).copied().collect();
    let overlaps = |other: &Cpus| !other.is_disjoint(&known.allowed);
    let beyond = known
        .nodes
        .iter()
        .filter(|(n, cpus)| **n != node && overlaps(cpus));
    let others: BTreeSet<u32> = beyond.map(|(other, _)| *other).collect();
    let lies = format!("the memory lies on NUMA node {node} (CPUs {})", shown(cpus));
    if here.is_empty() {
        let what = format!(
            "{lies}, and only CPUs {} are allowed",
            shown(&known.allowed)
        );
        let remedy = "allow CPUs of that node (taskset, cpuset), or give --placement any";
        return match near {
            true => refused(what, remedy),
            false => Ok(Decision::Tell(format!("{what}: {remedy}"))),
        };
    }
    if others.is_empty() {
        return Ok(Decision::Leave);
    }
    if near || known.threads.is_some_and(|threads| threads <= here.len()) {
        return Ok(Decision::Pin(here));
    }
    let why = match known.threads {
        Some(threads) => format!("OMP_NUM_THREADS={threads} does not fit there"),
        None => "OMP_NUM_THREADS does not say how many threads there will be".to_owned(),
    };
    Ok(Decision::Tell(format!(
        "{lies}; {why}, so the program runs on node {} too, where memory is farther away: \
         --placement near keeps it on node {node}, --placement any says that this is meant",
        shown(&others)
    )))
}

/// What is done with a program that this process starts, with memory in `memory`.
///
/// # Errors
/// As [`decide`]; [`Code::Io`] and its like if the directory is not there.
pub fn of_program(placement: Placement, root: &Path, memory: &Path) -> Result<Decision> {
    use std::os::unix::fs::MetadataExt;
    let nodes = nodes(root);
    if placement == Placement::Any || nodes.len() < 2 {
        return Ok(Decision::Leave);
    }
    let failed = |error| Error::io(memory, "look at", &error);
    let own = Path::new("/proc/self/status");
    let allowed =
        outlive_image::sys::affinity(0).map_err(|error| Error::io(own, "read", &error))?;
    let omp = std::env::var("OMP_NUM_THREADS").ok();
    let known = Known {
        nodes,
        home: home(root, std::fs::metadata(memory).map_err(failed)?.dev()),
        allowed: of_mask(&allowed),
        threads: omp.as_deref().and_then(threads),
    };
    decide(placement, &known)
}

/// The CPUs of an affinity mask.
fn of_mask(bytes: &[u8]) -> Cpus {
    let bits = (0..).zip(
        bytes
            .iter()
            .flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1)),
    );
    bits.filter(|(_, set)| *set == 1)
        .map(|(cpu, _)| cpu)
        .collect()
}

/// The affinity mask of CPUs, as sched_setaffinity(2) takes it: whole words.
pub(crate) fn mask(cpus: &Cpus) -> Vec<u8> {
    let last = cpus.last().map_or(0, |cpu| *cpu as usize);
    let mut bytes = vec![0; (last / 64 + 1) * 8];
    for cpu in cpus {
        bytes[*cpu as usize / 8] |= 1 << (cpu % 8);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn cpus(text: &str) -> Cpus {
        list(text).unwrap()
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        for text in ["", "0", "0-3,8,10-11", "5,7", "0-8191"] {
            assert_eq!(shown(&cpus(text)), text);
        }
        assert_eq!(cpus(" 0-1\n"), [0, 1].into());
        assert_eq!(cpus("\n"), [].into());
        for rubbish in [
            "x",
            "1-",
            "-1",
            "3-1",
            "1,,2",
            "1,",
            "0-8192",
            "99999999999",
            "0-3:1/2",
        ] {
            assert_eq!(list(rubbish), None, "{rubbish}");
        }
        let mask = mask(&cpus("0,9,64"));
        assert_eq!(mask.len(), 16);
        assert_eq!(of_mask(&mask), cpus("0,9,64"));
    }

    #[test]
    fn threads_are_those_of_the_outermost_region() {
        for (value, known) in [("4", Some(4)), ("4,2", Some(4)), (" 8 ", Some(8))] {
            assert_eq!(threads(value), known);
        }
        for rubbish in ["", "0", "-1", "x", ",4", "4x", "1e3"] {
            assert_eq!(threads(rubbish), None, "{rubbish}");
        }
    }

    /// A sysfs: directories are made for each file.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn only_nodes_that_are_online_and_have_cpus_count() {
        let node = |n: u32| format!("devices/system/node/node{n}/cpulist");
        let paths: Vec<String> = (0..5).map(node).collect();
        let dir = tree(&[
            ("devices/system/node/online", "0-3\n"),
            (&paths[0], "0-3,8\n"),
            // Memory without CPUs, CPUs without memory, rubbish, and one that is offline.
            (&paths[1], "\n"),
            (&paths[2], "4-7\n"),
            (&paths[3], "?\n"),
            (&paths[4], "12\n"),
        ]);
        assert_eq!(
            nodes(dir.path()),
            [(0, cpus("0-3,8")), (2, cpus("4-7"))].into()
        );
        // A kernel that knows no nodes.
        assert_eq!(nodes(tree(&[]).path()), Nodes::new());
    }

    const PMEM: &str = "devices/platform/e820_pmem/ndbus0/region0/namespace0.0";

    /// A device of persistent memory with a partition, and a disk on PCI.
    fn devices(pmem: &str) -> tempfile::TempDir {
        let node = format!("{PMEM}/numa_node");
        let block = format!("{PMEM}/block/pmem0/size");
        let part = format!("{PMEM}/block/pmem0/pmem0p1/size");
        let dir = tree(&[
            (&node, pmem),
            (&block, "1"),
            (&part, "1"),
            ("devices/pci0000:00/0000:00:03.0/numa_node", "0\n"),
            (
                "devices/pci0000:00/0000:00:03.0/virtio1/block/vda/size",
                "1",
            ),
            ("devices/virtual/block/dm-0/slaves/none", ""),
            ("devices/virtual/block/dm-1/slaves/none", ""),
            ("dev/block/none", ""),
        ]);
        let at = |name: &str| dir.path().join(name);
        let pmem0 = format!("{PMEM}/block/pmem0");
        symlink("../../../namespace0.0", at(&format!("{pmem0}/device"))).unwrap();
        let disk = "devices/pci0000:00/0000:00:03.0/virtio1/block/vda";
        symlink("../../../virtio1", at(&format!("{disk}/device"))).unwrap();
        let links = [
            ("259:0", pmem0.clone()),
            ("259:1", format!("{pmem0}/pmem0p1")),
            ("254:0", disk.to_owned()),
            ("253:0", "devices/virtual/block/dm-0".to_owned()),
            ("253:1", "devices/virtual/block/dm-1".to_owned()),
        ];
        for (number, path) in &links {
            symlink(format!("../../{path}"), at(&format!("dev/block/{number}"))).unwrap();
        }
        for (mapped, parts) in [("dm-0", vec![&pmem0]), ("dm-1", vec![&pmem0, &links[2].1])] {
            let slaves = format!("devices/virtual/block/{mapped}/slaves");
            std::fs::remove_file(at(&format!("{slaves}/none"))).unwrap();
            for (number, part) in parts.iter().enumerate() {
                let link = at(&format!("{slaves}/{number}"));
                symlink(format!("../../../../../{part}"), link).unwrap();
            }
        }
        dir
    }

    #[test]
    fn the_node_is_that_of_the_device() {
        let dir = devices("1\n");
        let of = |major, minor| home(dir.path(), libc::makedev(major, minor));
        assert_eq!(of(259, 0), Home::Node(1));
        assert_eq!(of(259, 1), Home::Node(1), "a partition");
        assert_eq!(of(254, 0), Home::Node(0), "the bus above");
        assert_eq!(of(253, 0), Home::Node(1), "a mapped device");
        assert_eq!(of(253, 1), Home::Unknown, "a mapped device on two nodes");
        assert_eq!(of(0, 25), Home::Nowhere, "tmpfs");
        for unknown in ["-1\n", "", "x"] {
            let dir = devices(unknown);
            assert_eq!(home(dir.path(), libc::makedev(259, 0)), Home::Unknown);
            assert_eq!(home(dir.path(), libc::makedev(253, 0)), Home::Unknown);
        }
    }

    fn known(home: Home, allowed: &str, threads: Option<usize>) -> Known {
        Known {
            nodes: [(0, cpus("0-1")), (1, cpus("2-3"))].into(),
            home,
            allowed: cpus(allowed),
            threads,
        }
    }

    fn tells(decision: Result<Decision>) -> String {
        match decision.unwrap() {
            Decision::Tell(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_fits_is_kept_near_and_the_rest_is_told() {
        use Placement::{Any, Auto, Near};
        let there = Home::Node(1);
        let pinned = |text| Decision::Pin(cpus(text));
        for (placement, home, allowed, threads, done) in [
            (Auto, there, "0-3", Some(2), pinned("2-3")),
            (Near, there, "0-3", None, pinned("2-3")),
            (Near, there, "0-3", Some(64), pinned("2-3")),
            (Auto, there, "1-2", Some(1), pinned("2")),
            (Near, there, "1-2", Some(2), pinned("2")),
            (Any, there, "0-3", Some(2), Decision::Leave),
            // It is there already, however many threads it has.
            (Auto, there, "2-3", None, Decision::Leave),
            (Auto, Home::Nowhere, "0-3", Some(2), Decision::Leave),
        ] {
            let decided = decide(placement, &known(home, allowed, threads)).unwrap();
            assert_eq!(decided, done, "{placement:?} {allowed} {threads:?}");
        }
        for (threads, why) in [(Some(3), "OMP_NUM_THREADS=3"), (None, "does not say")] {
            let text = tells(decide(Auto, &known(there, "0-3", threads)));
            for part in [
                why,
                "node 1 (CPUs 2-3)",
                "node 0 too",
                "--placement near",
                "any",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        let text = tells(decide(Auto, &known(there, "1-2", Some(2))));
        assert!(text.contains("OMP_NUM_THREADS=2 does not fit"), "{text}");
        let text = tells(decide(Auto, &known(there, "0", Some(1))));
        assert!(text.contains("only CPUs 0 are allowed"), "{text}");
        let text = tells(decide(Auto, &known(Home::Unknown, "0-3", Some(1))));
        assert!(
            text.contains("does not tell") && text.contains("0-1"),
            "{text}"
        );
        // A node of nothing but memory.
        let text = tells(decide(Auto, &known(Home::Node(2), "0-3", Some(1))));
        assert!(text.contains("node 2, which has no CPUs"), "{text}");
    }

    #[test]
    fn near_is_refused_where_it_cannot_be() {
        for (home, allowed, what) in [
            (Home::Node(1), "0-1", "only CPUs 0-1 are allowed"),
            (Home::Node(2), "0-3", "no CPUs"),
            (Home::Unknown, "0-3", "does not tell"),
            (Home::Nowhere, "0-3", "does not tell"),
        ] {
            let error = decide(Placement::Near, &known(home, allowed, Some(1))).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.reason().contains(what), "{error}");
            assert!(error.remedy().contains("--placement any"), "{error}");
        }
    }

    #[test]
    fn on_one_node_nothing_is_done() {
        for home in [Home::Node(0), Home::Unknown, Home::Nowhere] {
            for placement in [Placement::Auto, Placement::Near, Placement::Any] {
                let mut known = known(home, "0-1", None);
                known.nodes.remove(&1);
                assert_eq!(decide(placement, &known).unwrap(), Decision::Leave);
            }
        }
    }
}
