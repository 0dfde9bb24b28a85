//! What fails: a machine's nodes, groups of nodes that fall together, servers of shared
//! storage; and the levels at which a job can save on it. Read from TOML by `parse`.
//!
//! Invariants of a [`Machine`]: at least one node and one source of failures, positive
//! times, members of groups are nodes of the machine, every level lies on something that
//! exists and survives something.

mod parse;

pub use parse::{job, machine};

/// How long something lives between two failures.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Life {
    /// Mean time between two failures in seconds.
    pub mtbf: f64,
    /// Shape of the Weibull distribution of the times between failures; 1: exponential.
    pub shape: f64,
}

impl Life {
    /// An exponential life.
    pub const fn exponential(mtbf: f64) -> Life {
        Life { mtbf, shape: 1.0 }
    }
    /// Scale of the Weibull distribution, for which the mean is the MTBF.
    pub fn scale(&self) -> f64 {
        self.mtbf / libm::tgamma(1.0 + 1.0 / self.shape)
    }
}

/// Lognormal time of repair.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Repair {
    /// Half of the repairs take less, in seconds.
    pub median: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
}

impl Repair {
    /// Mean in seconds: median e^(sigma^2 / 2).
    pub fn mean(&self) -> f64 {
        self.median * libm::exp(self.sigma * self.sigma / 2.0)
    }
}

/// The compute nodes, numbered from 0.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Nodes {
    /// How many.
    pub count: u32,
    /// Fatal faults of a node: it is lost with all that it stores.
    pub fatal: Option<Life>,
    /// Light faults on a node: processes die, the node and its storage stay.
    pub light: Option<Life>,
    /// Until a lost node is back in service.
    pub repair: Option<Repair>,
    /// Nodes held ready to take the place of lost ones; none given: always enough.
    pub spares: Option<u32>,
}

/// Sets of `size` nodes whose numbers are `stride` apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Nodes in a set.
    pub size: u32,
    /// From one member to the next.
    pub stride: u32,
}

impl Layout {
    /// The set of a node.
    pub fn set_of(&self, node: u32) -> u32 {
        let block = u64::from(self.size) * u64::from(self.stride);
        let (index, rest) = (u64::from(node) / block, u64::from(node) % block);
        (index * u64::from(self.stride) + rest % u64::from(self.stride)) as u32
    }
    /// The members of a set below `nodes`, ascending.
    pub fn members(&self, set: u32, nodes: u32) -> impl Iterator<Item = u32> + use<> {
        let stride = u64::from(self.stride);
        let first =
            u64::from(set) / stride * stride * u64::from(self.size) + u64::from(set) % stride;
        let of = (0..u64::from(self.size)).map(move |place| first + place * stride);
        of.take_while(move |&node| node < u64::from(nodes))
            .map(|node| node as u32)
    }
    /// One more than the highest number of a set; sets without members below `nodes` among
    /// them are empty.
    pub fn sets(&self, nodes: u32) -> u32 {
        let block = u64::from(self.size) * u64::from(self.stride);
        (u64::from(nodes).div_ceil(block) * u64::from(self.stride)).min(u64::from(u32::MAX)) as u32
    }
}

/// Which nodes belong to a group.
#[derive(Clone, PartialEq, Debug)]
pub enum Members {
    /// All nodes, in sets of equal size: all racks, all power supplies.
    Every(Layout),
    /// One set, ascending.
    These(Vec<u32>),
}

/// Nodes that fall together: a rack, a switch, a power supply, a burst.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Name.
    pub name: String,
    /// Of each set.
    pub life: Life,
    /// The probability with which an event takes each member.
    pub hits: f64,
    /// Which nodes.
    pub members: Members,
}

impl Group {
    /// The number of sets on the first `nodes` nodes.
    pub fn sets(&self, nodes: u32) -> u32 {
        match &self.members {
            Members::Every(layout) => layout.sets(nodes),
            Members::These(_) => 1,
        }
    }
    /// The members of a set below `nodes`, ascending.
    pub fn set(&self, set: u32, nodes: u32) -> Vec<u32> {
        match &self.members {
            Members::Every(layout) => layout.members(set, nodes).collect(),
            Members::These(these) => these.iter().copied().filter(|&n| n < nodes).collect(),
        }
    }
}

/// Servers of shared storage: a burst buffer, a file system, memory servers.
#[derive(Clone, PartialEq, Debug)]
pub struct Servers {
    /// Name.
    pub name: String,
    /// How many; the loss of one takes the versions of every level that lies on them.
    pub count: u32,
    /// Of each.
    pub life: Option<Life>,
    /// Until a lost one is back: so long the levels on them cannot be written. None: at once.
    pub repair: Option<Repair>,
    /// Whether the loss of one also stops jobs.
    pub stops_jobs: bool,
}

/// Scheme and store of a level.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scheme {
    /// The node's own memory or storage: survives light faults.
    Local,
    /// A second copy on the node `distance` further on (around the job's nodes): survives
    /// what does not take a node and its partner.
    Partner {
        /// From a node to its partner.
        distance: u32,
    },
    /// XOR (parity 1) or Reed-Solomon over sets of nodes: survives `parity` of each set.
    Erasure {
        /// Where the sets lie.
        layout: Layout,
        /// Losses per set that are survived.
        parity: u32,
    },
    /// Shared storage: survives the loss of any nodes, not that of its servers.
    Shared {
        /// Place in [`Machine::servers`].
        servers: usize,
    },
}

impl Scheme {
    /// Whether versions survive that these nodes (ascending, of `nodes` in the job) lack
    /// their part.
    pub fn survives(&self, lost: &[u32], nodes: u32) -> bool {
        match *self {
            Scheme::Local => lost.is_empty(),
            Scheme::Partner { distance } => !lost.iter().any(|&node| {
                let partner = (u64::from(node) + u64::from(distance)) % u64::from(nodes);
                lost.binary_search(&(partner as u32)).is_ok()
            }),
            Scheme::Erasure { layout, parity } => {
                if lost.len() <= parity as usize {
                    return true;
                }
                let mut sets: Vec<u32> = lost.iter().map(|&node| layout.set_of(node)).collect();
                sets.sort_unstable();
                !sets
                    .windows(parity as usize + 1)
                    .any(|run| run[0] == run[parity as usize])
            }
            Scheme::Shared { .. } => true,
        }
    }
    /// True for levels that keep their parts on the job's nodes, with redundancy.
    pub fn is_redundant(&self) -> bool {
        matches!(self, Scheme::Partner { .. } | Scheme::Erasure { .. })
    }
}

/// What a level costs, before the job's size is known.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Price {
    /// Seconds, whatever the job.
    Fixed(f64),
    /// A time that every operation takes, and bytes per second: of each node, or of all nodes
    /// together for shared storage.
    Rate {
        /// Seconds.
        latency: f64,
        /// Bytes per second.
        bandwidth: f64,
    },
}

/// A level of the machine.
#[derive(Clone, PartialEq, Debug)]
pub struct LevelSpec {
    /// Name: unique.
    pub name: String,
    /// Where its versions lie and what they survive.
    pub scheme: Scheme,
    /// Of a write.
    pub write: Price,
    /// Of a restart from it.
    pub read: Price,
    /// Whether the program goes on while it is written.
    pub asynchronous: bool,
}

/// A machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// Name.
    pub name: String,
    /// Its nodes.
    pub nodes: Nodes,
    /// Groups that fall together; they may overlap.
    pub groups: Vec<Group>,
    /// Shared storage.
    pub servers: Vec<Servers>,
    /// Levels at which a job can save.
    pub levels: Vec<LevelSpec>,
}

/// A job, on the nodes from 0 on.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    /// Name.
    pub name: String,
    /// Its nodes.
    pub nodes: u32,
    /// Seconds of computing, without failures and checkpoints.
    pub work: f64,
    /// Bytes of a checkpoint on each node.
    pub bytes: f64,
    /// Seconds for which each checkpoint stops the program, whatever its levels.
    pub capture: f64,
    /// Seconds from a failure until something is read: detection, allocation, start.
    pub restart: f64,
}

/// A level with the costs that it has for a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Level {
    /// Name.
    pub name: String,
    /// Where its versions lie and what they survive.
    pub scheme: Scheme,
    /// Seconds for which a checkpoint at this level stops the program, in addition.
    pub cost: f64,
    /// Seconds that are written in the background after it.
    pub background: f64,
    /// Seconds from a failure until a restart from it computes again.
    pub restart: f64,
}

/// The levels of a machine as a job pays for them.
pub fn priced(machine: &Machine, job: &Job) -> Vec<Level> {
    let level = |spec: &LevelSpec| {
        let bytes = match spec.scheme {
            Scheme::Shared { .. } => job.bytes * f64::from(job.nodes),
            _ => job.bytes,
        };
        let seconds = |price: Price| match price {
            Price::Fixed(seconds) => seconds,
            Price::Rate { latency, bandwidth } => latency + bytes / bandwidth,
        };
        let write = seconds(spec.write);
        let (cost, background) = match spec.asynchronous {
            true => (0.0, write),
            false => (write, 0.0),
        };
        Level {
            name: spec.name.clone(),
            scheme: spec.scheme,
            cost,
            background,
            restart: job.restart + seconds(spec.read),
        }
    };
    machine.levels.iter().map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_partition_the_nodes() {
        for (size, stride, nodes) in [(4, 1, 16), (4, 3, 24), (3, 5, 37), (7, 1, 5), (1, 1, 3)] {
            let layout = Layout { size, stride };
            let mut seen = vec![0; nodes as usize];
            for set in 0..layout.sets(nodes) {
                for node in layout.members(set, nodes) {
                    assert_eq!(layout.set_of(node), set);
                    seen[node as usize] += 1;
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "{layout:?}: {seen:?}");
        }
    }

    #[test]
    fn what_a_scheme_survives() {
        let partner = Scheme::Partner { distance: 2 };
        assert!(partner.survives(&[0, 1], 6));
        assert!(!partner.survives(&[0, 2], 6));
        assert!(!partner.survives(&[0, 4], 6), "around the end");
        let layout = Layout { size: 3, stride: 2 };
        let xor = Scheme::Erasure { layout, parity: 1 };
        assert!(xor.survives(&[0, 1], 6));
        assert!(!xor.survives(&[0, 4], 6));
        let rs = Scheme::Erasure { layout, parity: 2 };
        assert!(rs.survives(&[0, 2, 3, 5], 6));
        assert!(!rs.survives(&[0, 2, 4], 6));
        assert!(Scheme::Local.survives(&[], 6));
        assert!(!Scheme::Local.survives(&[3], 6));
    }

    #[test]
    fn the_scale_gives_the_mean() {
        // Weibull of shape 1/2: mean 2 eta; shape 1: eta.
        let life = Life {
            mtbf: 10.0,
            shape: 0.5,
        };
        assert!((life.scale() - 5.0).abs() < 1e-12);
        assert!((Life::exponential(10.0).scale() - 10.0).abs() < 1e-12);
        let repair = Repair {
            median: 2.0,
            sigma: 1.0,
        };
        assert!((repair.mean() - 2.0 * libm::exp(0.5)).abs() < 1e-12);
    }
}
