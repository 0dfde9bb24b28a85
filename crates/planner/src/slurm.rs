//! A machine from what Slurm knows: `scontrol show node`, `scontrol show topology` or
//! `topology.conf`, and `sacct`.
//!
//! - `scontrol --oneliner show node`: the nodes, in this order numbered from 0;
//! - `topology.conf` of the tree plugin, or what `scontrol show topology` makes of it: each leaf
//!   switch is a group of nodes;
//! - `sacct --allusers --allocations --parsable2 --format=State,ElapsedRaw,NNodes`: node-hours,
//!   and how many jobs a node's failure ended (`NODE_FAIL`): the MTBF of a node.
//!
//! What Slurm does not know, what storage there is and how fast, is written down as a level to
//! be corrected. Formats: the manual pages scontrol(1), topology.conf(5) and sacct(1) of Slurm
//! 23; answers of 22.05. Bytes from outside: every number and list is bounded.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use outlive_base::{Code, Entity, Error, Result};

/// No more nodes.
pub const NODES_MAX: usize = 1 << 20;
/// No longer names: so long is a name of the DNS at most.
const NAME_BYTES_MAX: usize = 255;

/// What was read.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cluster {
    /// Names of nodes, in order.
    pub nodes: Vec<String>,
    /// Leaf switches: name and numbers of nodes, ascending.
    pub switches: Vec<(String, Vec<u32>)>,
    /// Node-seconds of jobs, and jobs that a node's failure ended.
    pub used: f64,
    /// How many.
    pub node_failures: u64,
}

fn refuse(file: &str, line: usize, seen: String, remedy: &str) -> Error {
    let seen = format!("line {line}: {seen}");
    Error::new(Code::Config, Entity::File(file.into()), seen, remedy)
}

/// The names of a host list: `tux[0-3,07],login`.
///
/// # Errors
/// What was seen: unbalanced brackets, ranges that go down, more than [`NODES_MAX`] names, names that
/// nothing has.
pub fn hosts(list: &str) -> std::result::Result<Vec<String>, String> {
    let mut found = Vec::new();
    for part in split(list)? {
        expand(part, &mut found)?;
    }
    Ok(found)
}

/// At commas outside brackets.
fn split(list: &str) -> std::result::Result<Vec<&str>, String> {
    let (mut depth, mut begin) = (0_u32, 0);
    let mut parts = Vec::new();
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if depth == 0 => depth = 1,
            b']' if depth == 1 => depth = 0,
            b'[' | b']' => return Err(format!("'{list}' has brackets that do not match")),
            b',' if depth == 0 => {
                parts.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if depth != 0 {
        return Err(format!("'{list}' has brackets that do not match"));
    }
    parts.push(&list[begin..]);
    parts.retain(|part| !part.trim().is_empty());
    Ok(parts)
}

/// One name, or all of its ranges; the first brackets are expanded, then the rest.
fn expand(part: &str, found: &mut Vec<String>) -> std::result::Result<(), String> {
    let part = part.trim();
    let Some((before, rest)) = part.split_once('[') else {
        return push(part.to_owned(), found);
    };
    let Some((ranges, after)) = rest.split_once(']') else {
        return Err(format!("'{part}' has brackets that do not match"));
    };
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let value = text.parse::<u32>().ok().filter(|_| digits);
            value.ok_or_else(|| format!("'{range}' in '{part}' is no range"))
        };
        let (from, to) = (number(low)?, number(high)?);
        if from > to || (to - from) as usize >= NODES_MAX {
            return Err(format!("'{range}' in '{part}' goes down, or is too long"));
        }
        // A number of zeros would make each name as long.
        let width = low.len().min(NAME_BYTES_MAX + 1);
        for at in from..=to {
            expand(&format!("{before}{at:0width$}{after}"), found)?;
        }
    }
    Ok(())
}

fn push(name: String, found: &mut Vec<String>) -> std::result::Result<(), String> {
    if found.len() >= NODES_MAX {
        return Err(format!("more than {NODES_MAX} nodes"));
    }
    if name.len() > NAME_BYTES_MAX {
        let begin: String = name.chars().take(20).collect();
        return Err(format!(
            "'{begin}...' is longer than {NAME_BYTES_MAX} bytes"
        ));
    }
    found.push(name);
    Ok(())
}

/// `Key=value` fields of a line that are separated by blanks.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let mut fields = line
        .split_whitespace()
        .filter_map(|field| field.split_once('='));
    fields
        .find(|(name, _)| name.eq_ignore_ascii_case(key))
        .map(|(_, value)| value)
}

/// False for a switch above others, and for what is no switch (a block of the block plugin).
fn is_leaf(line: &str) -> bool {
    let above = field(line, "Switches").is_some_and(|below| !below.is_empty());
    let level = field(line, "Level").unwrap_or("0");
    !above && level == "0" && field(line, "BlockName").is_none()
}

impl Cluster {
    /// Nodes of `scontrol --oneliner show node`, those that a state begins with `FUTURE` left
    /// out.
    ///
    /// # Errors
    /// [`Code::Config`] with the line: no `NodeName`, a name twice, no node at all.
    pub fn nodes(text: &str, file: &str) -> Result<Cluster> {
        let remedy = "give what scontrol --oneliner show node prints";
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let mut cluster = Cluster::default();
        for (at, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let Some(name) = field(line, "NodeName") else {
                return Err(refuse(file, at + 1, "no NodeName".into(), remedy));
            };
            if field(line, "State").is_some_and(|state| state.starts_with("FUTURE")) {
                continue;
            }
            if let Some(before) = seen.insert(name, at + 1) {
                let what = format!("node '{name}' stands in line {before} already");
                return Err(refuse(file, at + 1, what, "name each node once"));
            }
            if cluster.nodes.len() >= NODES_MAX {
                let what = format!("more than {NODES_MAX} nodes");
                return Err(refuse(file, at + 1, what, "describe a part of the machine"));
            }
            cluster.nodes.push(name.to_owned());
        }
        match cluster.nodes.is_empty() {
            true => Err(refuse(file, 1, "no node".into(), remedy)),
            false => Ok(cluster),
        }
    }

    /// Adds the leaf switches of a `topology.conf` of the tree plugin, or of what
    /// `scontrol show topology` prints: there switches above have the nodes below them too.
    /// Nodes that are not of this machine, and switches with fewer than two, are left out.
    ///
    /// # Errors
    /// [`Code::Config`] with the line: a switch without a name, a list that is none, more than
    /// [`NODES_MAX`] names in all.
    pub fn topology(&mut self, text: &str, file: &str) -> Result<()> {
        let numbers: BTreeMap<&str, u32> = (0..)
            .zip(&self.nodes)
            .map(|(at, name)| (&**name, at))
            .collect();
        let mut switches = Vec::new();
        let mut named = 0;
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let Some(list) = field(line, "Nodes").filter(|_| is_leaf(line)) else {
                continue;
            };
            let Some(name) = field(line, "SwitchName") else {
                let remedy = "write SwitchName=NAME Nodes=LIST, as topology.conf(5) says";
                return Err(refuse(
                    file,
                    at + 1,
                    "Nodes without a SwitchName".into(),
                    remedy,
                ));
            };
            let names = hosts(list).map_err(|seen| {
                refuse(file, at + 1, seen, "write a host list such as tux[0-31]")
            })?;
            named += names.len();
            if named > NODES_MAX {
                let what = format!("more than {NODES_MAX} nodes under switches");
                return Err(refuse(
                    file,
                    at + 1,
                    what,
                    "name each node under one switch",
                ));
            }
            let mut members: Vec<u32> = names
                .iter()
                .filter_map(|name| numbers.get(&**name).copied())
                .collect();
            members.sort_unstable();
            members.dedup();
            if members.len() > 1 {
                switches.push((name.to_owned(), members));
            }
        }
        self.switches = switches;
        Ok(())
    }

    /// Counts the jobs of `sacct --parsable2` with the columns State, ElapsedRaw and NNodes.
    ///
    /// # Errors
    /// [`Code::Config`] with the line: columns that lack, numbers that are none.
    pub fn accounting(&mut self, text: &str, file: &str) -> Result<()> {
        let remedy = "give what sacct --allusers --allocations --parsable2 --format=State,ElapsedRaw,NNodes prints";
        let mut lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty());
        let (_, header) = lines.next().unwrap_or((0, ""));
        let names: Vec<&str> = header.split('|').map(str::trim).collect();
        let column = |name: &str| {
            names
                .iter()
                .position(|other| other.eq_ignore_ascii_case(name))
        };
        let (Some(state), Some(elapsed), Some(nodes)) =
            (column("State"), column("ElapsedRaw"), column("NNodes"))
        else {
            let seen = format!(
                "the header '{}' lacks a column",
                header.chars().take(80).collect::<String>()
            );
            return Err(refuse(file, 1, seen, remedy));
        };
        for (at, line) in lines {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let number = |column: usize| {
                let cell = cells.get(column).copied().unwrap_or_default();
                let value = cell.parse::<u32>().map(f64::from);
                value.map_err(|_| refuse(file, at + 1, format!("'{cell}' is no number"), remedy))
            };
            self.used += number(elapsed)? * number(nodes)?;
            let ended = cells.get(state).copied().unwrap_or_default();
            self.node_failures += u64::from(ended.starts_with("NODE_FAIL"));
        }
        Ok(())
    }

    /// Seconds between two failures of a node: node-seconds over failures; where none was
    /// seen, that at which a probability of a half would have shown none. None without
    /// accounting.
    pub fn mtbf(&self) -> Option<f64> {
        let seconds = Some(self.used).filter(|used| *used > 0.0)?;
        match self.node_failures {
            0 => Some(seconds / core::f64::consts::LN_2),
            failures => Some(seconds / failures as f64),
        }
    }

    /// The machine as TOML that `outlive plan --machine` reads; what Slurm does not know is
    /// marked.
    pub fn toml(&self, name: &str) -> String {
        let mut out = String::from(
            "# Made from what Slurm knows. What it does not know is marked: correct it.\n",
        );
        let name: String = name
            .chars()
            .filter(|c| !c.is_control() && !matches!(c, '"' | '\\'))
            .collect();
        let _ = writeln!(
            out,
            "name = \"{name}\"\n\n[nodes]\ncount = {}",
            self.nodes.len()
        );
        match self.mtbf() {
            Some(mtbf) => {
                let _ = writeln!(
                    out,
                    "mtbf = \"{:.0} h\"  # {} ended by NODE_FAIL in {:.0} node-hours{}",
                    (mtbf / 3600.0).max(1.0),
                    outlive_base::count(self.node_failures, "job"),
                    self.used / 3600.0,
                    if self.node_failures == 0 {
                        ": at least this with a probability of a half"
                    } else {
                        ""
                    }
                );
            }
            None => out.push_str("mtbf = \"5 years\"  # a guess: no accounting was given\n"),
        }
        out.push_str("light-mtbf = \"5 years\"  # a guess: processes die, the node stays; Slurm does not tell them from other ends\n");
        for (switch, members) in &self.switches {
            let switch: String = switch
                .chars()
                .filter(|c| !c.is_control() && !matches!(c, '"' | '\\'))
                .collect();
            let _ = writeln!(
                out,
                "\n[[groups]]\nname = \"switch {switch}\"\nmtbf = \"30 years\"  # a guess\nnodes = [{}]",
                ranges(members)
            );
        }
        out.push_str(
            "\n[[servers]]\nname = \"files\"\ncount = 1\n\n\
             [[levels]]\nkind = \"local\"\nwrite = \"1 GB/s\"  # a guess: measure with outlive bench save\nread = \"1 GB/s\"\n",
        );
        let largest = self.switches.iter().map(|(_, members)| members.len()).max();
        // A node alone has no partner.
        if let Some(most) = self.nodes.len().checked_sub(1).filter(|most| *most > 0) {
            let distance = largest.unwrap_or(1).clamp(1, most);
            let _ = writeln!(
                out,
                "\n[[levels]]\nkind = \"partner\"\ndistance = {distance}  # beyond the largest switch\nwrite = \"0.5 GB/s\"  # a guess\nread = \"0.5 GB/s\"\nasynchronous = true"
            );
        }
        out.push_str(
            "\n[[levels]]\nkind = \"shared\"\nservers = \"files\"\nwrite = \"20 GB/s\"  # of all nodes together: a guess\nread = \"20 GB/s\"\nasynchronous = true\n",
        );
        out
    }
}

/// `"0-3", "7"`.
fn ranges(members: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &node in members {
        match runs.last_mut() {
            Some(last) if last.1 + 1 == node => last.1 = node,
            _ => runs.push((node, node)),
        }
    }
    let of = |&(from, to): &(u32, u32)| match from == to {
        true => format!("\"{from}\""),
        false => format!("\"{from}-{to}\""),
    };
    runs.iter().map(of).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use outlive_base::rng::Sequence;

    use super::*;

    const NODES: &str = "\
NodeName=tux0 Arch=x86_64 CoresPerSocket=32 CPUAlloc=0 State=IDLE ThreadsPerCore=2 Partitions=batch
NodeName=tux1 Arch=x86_64 CoresPerSocket=32 State=ALLOCATED Partitions=batch
NodeName=tux2 Arch=x86_64 State=DOWN*+DRAIN Reason=fan [root@2026-01-05T10:00:00]
NodeName=tux3 Arch=x86_64 State=IDLE
NodeName=spare1 State=FUTURE
";
    const TOPOLOGY: &str = "\
# topology.conf
SwitchName=s0 Nodes=tux[0-1]
SwitchName=s1 Nodes=tux[2-3],login1   # login1 is not of this machine
SwitchName=top Switches=s[0-1]
";
    const SACCT: &str = "\
State|ElapsedRaw|NNodes
COMPLETED|3600|4
NODE_FAIL|1800|4
CANCELLED by 1001|0|1
TIMEOUT|7200|2
";

    fn cluster() -> Cluster {
        let mut cluster = Cluster::nodes(NODES, "nodes.txt").expect("good");
        cluster.topology(TOPOLOGY, "topology.conf").expect("good");
        cluster.accounting(SACCT, "sacct.txt").expect("good");
        cluster
    }

    /// Not only their number is bounded: a short list could ask for gigabytes.
    #[test]
    fn names_that_are_too_long_are_refused_before_they_are_made() {
        let zeros = "0".repeat(10_000);
        let long = "x".repeat(10_000);
        for list in [
            format!("n[{zeros}-1048575]"),
            format!("{long}[0-1048575]"),
            long,
        ] {
            let refused = hosts(&list).expect_err("too long");
            assert!(refused.contains("longer than 255 bytes"), "{refused}");
            assert!(refused.len() < 200, "{refused}");
        }
        assert_eq!(hosts("n[007-008]").expect("good"), ["n007", "n008"]);
    }

    #[test]
    fn recorded_answers_become_a_machine_that_can_be_planned_for() {
        let cluster = cluster();
        assert_eq!(cluster.nodes, ["tux0", "tux1", "tux2", "tux3"]);
        assert_eq!(
            cluster.switches,
            [("s0".to_owned(), vec![0, 1]), ("s1".to_owned(), vec![2, 3])]
        );
        // 4 h + 2 h + 4 h of nodes, one failure.
        assert_eq!(cluster.mtbf(), Some(36_000.0));
        let text = cluster.toml("a \"name\"\n");
        let machine = crate::machine::machine(&text, "machine.toml").expect(&text);
        assert_eq!(
            (machine.nodes.count, machine.groups.len(), &*machine.name),
            (4, 2, "a name")
        );
        assert_eq!(machine.nodes.fatal.map(|life| life.mtbf), Some(36_000.0));
        assert_eq!(machine.groups[1].set(0, 4), [2, 3]);
    }

    /// What `scontrol show topology` of Slurm 22.05 prints.
    #[test]
    fn of_what_scontrol_prints_the_leaves_are_taken() {
        let printed = "\
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[3-5]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-5] Switches=s1,s2
";
        let of = |names: &[&str], text: &str| {
            let mut cluster = Cluster {
                nodes: names.iter().map(ToString::to_string).collect(),
                ..Cluster::default()
            };
            let read = cluster.topology(text, "scontrol");
            read.map(|()| cluster.switches)
        };
        let leaf = |name: &str, members: &[u32]| (name.to_owned(), members.to_vec());
        assert_eq!(
            of(&["n2", "n1", "n4", "n5"], printed).expect("good"),
            [leaf("s1", &[0, 1]), leaf("s2", &[2, 3])]
        );
        // One that is alone under its switch, and one that is under none.
        assert_eq!(of(&["n1", "n3", "x"], printed).expect("good"), []);
        // Cut off by SLURM_TOPO_LEN, as Slurm does it.
        assert_eq!(
            of(&["n1", "n2"], "SwitchName=s1 Level=\n").expect("good"),
            []
        );
        let cut = of(
            &["n1", "n2"],
            "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-\n",
        );
        assert_eq!(cut.expect_err("cut").code(), Code::Config);
        let block = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n";
        assert_eq!(of(&["n1", "n2"], block).expect("no switch"), []);
    }

    /// Ten thousand nodes take no time; lists without end are refused early.
    #[test]
    fn many_switches_are_read_and_too_many_are_refused() {
        let mut cluster = Cluster {
            nodes: (0..10_000).map(|node| format!("n{node}")).collect(),
            ..Cluster::default()
        };
        let line = |at: usize| {
            let (from, to) = (at * 32, at * 32 + 31);
            format!("SwitchName=s{at} Level=0 LinkSpeed=1 Nodes=n[{from}-{to}]\n")
        };
        let text: String = (0..313).map(line).collect();
        cluster.topology(&text, "scontrol").expect("good");
        assert_eq!(cluster.switches.len(), 313);
        assert_eq!(cluster.switches[312].1, (9_984..10_000).collect::<Vec<_>>());
        let endless = "SwitchName=s Nodes=n[0-999999]\n".repeat(10_000);
        let seen = cluster.topology(&endless, "f").expect_err("too many");
        assert!(seen.reason().starts_with("line 2: more than"), "{seen}");
    }

    #[test]
    fn host_lists() {
        for (list, names) in [
            ("a", "a"),
            ("a,b", "a b"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[08-10,3]x,c", "n08x n09x n10x n3x c"),
            ("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"),
            ("", ""),
        ] {
            assert_eq!(hosts(list).expect(list).join(" "), names, "{list}");
        }
        for list in [
            "n[1-",
            "n]1[",
            "n[3-1]",
            "n[a]",
            "n[1-4294967295]",
            "n[[1]]",
            "n[0-9999][0-9999]",
            "n[-3]",
        ] {
            assert!(hosts(list).is_err(), "{list}");
        }
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let nodes = |text: &str| {
            Cluster::nodes(text, "f")
                .expect_err(text)
                .reason()
                .to_owned()
        };
        assert!(nodes("\n\nNode=1\n").starts_with("line 3: no NodeName"));
        assert!(nodes("NodeName=a\nNodeName=a\n").starts_with("line 2: node 'a' stands in line 1"));
        assert!(nodes("").starts_with("line 1: no node"));
        let mut good = cluster();
        let seen = good.topology("\nNodes=tux0\n", "f").expect_err("bad");
        assert!(seen.reason().starts_with("line 2: Nodes without"));
        let seen = good.accounting("State|NNodes\n", "f").expect_err("bad");
        assert!(seen.reason().contains("lacks a column"));
        let seen = good
            .accounting("State|ElapsedRaw|NNodes\nCOMPLETED|x|1\n", "f")
            .expect_err("bad");
        assert!(seen.reason().starts_with("line 2: 'x' is no number"));
    }

    /// Bytes from outside: whatever comes, it ends and does not panic.
    #[test]
    fn noise_is_read_or_refused() {
        let seed = outlive_base::seed!();
        let mut random = Sequence::new(seed, 0);
        let words = [
            "NodeName=",
            "a[0-",
            "]",
            ",",
            "\n",
            "SwitchName=s ",
            "Level=0 ",
            "Switches=",
            "Nodes=",
            "1",
            "9",
            "-",
            "|",
            "State|ElapsedRaw|NNodes\n",
            " ",
            "é",
            "[",
        ];
        for _ in 0..3_000 {
            let length = random.below(24);
            let text: String = (0..length)
                .map(|_| words[random.below(words.len() as u64) as usize])
                .collect();
            let _ = hosts(&text);
            let _ = Cluster::nodes(&text, "f");
            let mut good = cluster();
            let _ = good.topology(&text, "f");
            let _ = good.accounting(&text, "f");
        }
    }
}
