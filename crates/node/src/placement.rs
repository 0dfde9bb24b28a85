//! Where on a machine of several NUMA nodes something runs: a program near its memory, a helper near those whom
//! it helps.
//!
//! Persistent memory lies on one node of a machine, and whoever touches it from another
//! one waits for it longer: mini-ckpts measured 25 % without pinning and 5 to 8 % with it.
//! So it is with what two threads share, as a decoupled thread and its partner do.
//! All that is known comes from sysfs, whose root is a parameter. What cannot be read there
//! is unknown, never guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Result};

use crate::cpus::Cpus;

/// Where sysfs is mounted.
pub const SYSFS: &str = "/sys";
/// How many layers of mapped devices are looked through.
const LAYERS: u32 = 4;

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

/// The numbers of the nodes that are online; none if the kernel knows no nodes.
pub fn online(root: &Path) -> BTreeSet<u32> {
    online_by(&read_below(root))
}

/// The nodes with CPUs. Nodes of nothing but memory are left out: nothing can run there.
pub fn nodes(root: &Path) -> Nodes {
    nodes_by(&read_below(root))
}

fn read_below(root: &Path) -> impl Fn(&str) -> Option<String> {
    |path| std::fs::read_to_string(root.join(path)).ok()
}

fn online_by(read: &dyn Fn(&str) -> Option<String>) -> BTreeSet<u32> {
    let text = read("devices/system/node/online");
    let numbers = text.and_then(|text| Cpus::of_list(&text));
    numbers.unwrap_or_default().iter().collect()
}

/// As [`nodes`], with what reads a file of sysfs.
pub fn nodes_by(read: &dyn Fn(&str) -> Option<String>) -> Nodes {
    let cpus =
        |node: &u32| Cpus::of_list(&read(&format!("devices/system/node/node{node}/cpulist"))?);
    let all = online_by(read).into_iter();
    let with_cpus = all.filter_map(|node| Some((node, cpus(&node).filter(|c| !c.is_empty())?)));
    with_cpus.collect()
}

/// Where the files of a file system lie, by its device number (`st_dev`).
pub fn home(root: &Path, device: u64) -> Home {
    let (major, minor) = (libc::major(device), libc::minor(device));
    device_home(root, &format!("dev/block/{major}:{minor}"))
}

/// Where a disk lies, by its name; nowhere if there is none.
pub fn disk_home(root: &Path, name: &str) -> Home {
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
        let nodes: Cpus = known.nodes.keys().copied().collect();
        return Ok(Decision::Tell(format!(
            "{what}, and there are CPUs on nodes {nodes}: pin the program by numactl; \
             --placement any says that it shall run anywhere"
        )));
    };
    let here = cpus.and(&known.allowed);
    let overlaps = |other: &Cpus| !other.is_disjoint(&known.allowed);
    let beyond = known
        .nodes
        .iter()
        .filter(|(n, cpus)| **n != node && overlaps(cpus));
    let others: Cpus = beyond.map(|(other, _)| *other).collect();
    let lies = format!("the memory lies on NUMA node {node} (CPUs {cpus})");
    if here.is_empty() {
        let what = format!("{lies}, and only CPUs {} are allowed", known.allowed);
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
        "{lies}; {why}, so the program runs on node {others} too, where memory is farther away: \
         --placement near keeps it on node {node}, --placement any says that this is meant"
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
    let allowed = Cpus::of_thread(0).map_err(|error| Error::io(own, "read", &error))?;
    let omp = std::env::var("OMP_NUM_THREADS").ok();
    let known = Known {
        nodes,
        home: home(root, std::fs::metadata(memory).map_err(failed)?.dev()),
        allowed,
        threads: omp.as_deref().and_then(threads),
    };
    decide(placement, &known)
}

/// The CPUs of `of` from which helpers serve those of `served`: for each node with some of `served`, its own of `of`,
/// or all where it has none.
pub fn helpers(nodes: &Nodes, served: &Cpus, of: &Cpus) -> Vec<(Cpus, Cpus)> {
    let mut groups: Vec<(Cpus, Cpus)> = Vec::new();
    let mut left = served.clone();
    for cpus in nodes.values() {
        let (here, near) = (served.and(cpus), of.and(cpus));
        if here.is_empty() || near.is_empty() {
            continue;
        }
        left = left.without(&here);
        groups.push((here, near));
    }
    if !left.is_empty() {
        groups.push((left, of.clone()));
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn cpus(text: &str) -> Cpus {
        Cpus::of_list(text).unwrap()
    }

    #[test]
    fn helpers_are_on_the_node_of_those_whom_they_help() {
        let nodes: Nodes = [(0, cpus("0-3")), (1, cpus("4-7")), (2, cpus("8-11"))].into();
        let of = |served: &str, of: &str| {
            let groups = helpers(&nodes, &cpus(served), &cpus(of)).into_iter();
            let shown = groups.map(|(served, by)| format!("{served}:{by}"));
            shown.collect::<Vec<_>>().join(";")
        };
        assert_eq!(of("1-3,5-7", "0,4"), "1-3:0;5-7:4");
        assert_eq!(of("1-3,5-7", "0"), "1-3:0;5-7:0", "none on node 1");
        assert_eq!(of("1,8-11", "0,4"), "1:0;8-11:0,4");
        // Nobody is left out, whatever the kernel tells of nodes.
        assert_eq!(of("1,20", "0,4"), "1:0;20:0,4");
        assert_eq!(helpers(&Nodes::new(), &cpus("1"), &cpus("0")).len(), 1);
        assert_eq!(of("", "0"), "");
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
