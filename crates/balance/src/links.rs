//! The process graph: which processes are neighbours, from the task graph.
//!
//! Invariants: the links of a process ascend by neighbour; link `l` from i to j
//! has its opposite `reverse[l]` from j to i; no process links itself; contacts
//! are above zero and equal in both directions.

use crate::graph::Graph;
use crate::processes::Processes;

/// Links between processes in compressed rows.
#[derive(Clone, PartialEq, Debug)]
pub struct Links {
    offsets: Vec<usize>,
    to: Vec<u32>,
    reverse: Vec<usize>,
    contacts: Vec<f64>,
}

impl Links {
    /// From undirected pairs of contact 1, in any order; loops are dropped.
    pub fn from_pairs(count: usize, pairs: impl IntoIterator<Item = (u32, u32)>) -> Links {
        let mut pairs: Vec<_> = pairs
            .into_iter()
            .map(|(a, b)| (a.min(b), a.max(b)))
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        Links::from_contacts(count, pairs.into_iter().map(|(a, b)| (a, b, 1.0)))
    }

    /// From undirected pairs with contacts, each above zero; those given several
    /// times, in either direction, add up in the order given; loops are dropped.
    pub fn from_contacts(count: usize, pairs: impl IntoIterator<Item = (u32, u32, f64)>) -> Links {
        let mut triples: Vec<(u32, u32, f64)> = Vec::new();
        for (a, b, contact) in pairs {
            if a != b {
                triples.push((a, b, contact));
                triples.push((b, a, contact));
            }
        }
        triples.sort_by_key(|&(a, b, _)| (a, b));
        triples.dedup_by(|again, kept| {
            let same = (again.0, again.1) == (kept.0, kept.1);
            if same {
                kept.2 += again.2;
            }
            same
        });
        let both: Vec<(u32, u32)> = triples.iter().map(|&(a, b, _)| (a, b)).collect();
        let contacts = triples.into_iter().map(|triple| triple.2).collect();
        let mut offsets = vec![0; count + 1];
        for &(a, _) in &both {
            offsets[a as usize + 1] += 1;
        }
        for process in 0..count {
            offsets[process + 1] += offsets[process];
        }
        let find = |a: u32, b: u32| both.binary_search(&(b, a)).unwrap_or(0);
        let reverse = both.iter().map(|&(a, b)| find(a, b)).collect();
        let to = both.into_iter().map(|(_, b)| b).collect();
        Links {
            offsets,
            to,
            reverse,
            contacts,
        }
    }

    /// The neighbours that the task graph gives (FFMK 2020, section 2.5, phase
    /// 1), plus bridges: a present process that no edge reaches (it is empty, has
    /// just joined, or its tasks talk to nobody) is tied to the present processes
    /// before and after it in number, and so is the lowest process of every
    /// further component, so that load reaches everywhere.
    ///
    /// The contact of a pair is the edge weight between the two; a bridge has the
    /// largest contact of its ends, or 1.
    pub fn of_tasks(graph: &Graph, processes: &Processes, parts: &[u32]) -> Links {
        let mut pairs: Vec<(u32, u32, f64)> = Vec::new();
        let mut sorted = 0;
        for task in 0..graph.tasks() as u32 {
            let own = parts[task as usize];
            for (to, edge) in graph.adjacent(task) {
                let part = parts[to as usize];
                if part > own && processes.present(own) && processes.present(part) {
                    match pairs.last_mut() {
                        Some(last) if (last.0, last.1) == (own, part) => last.2 += edge,
                        _ => pairs.push((own, part, edge)),
                    }
                }
            }
            if pairs.len() > 2 * sorted + 100_000 {
                merge(&mut pairs);
                sorted = pairs.len();
            }
        }
        merge(&mut pairs);
        Links::bridged(processes, pairs)
    }

    /// Adds the bridges of [`Links::of_tasks`] to pairs with their contacts.
    pub(crate) fn bridged(processes: &Processes, mut pairs: Vec<(u32, u32, f64)>) -> Links {
        let count = processes.count();
        let mut root: Vec<u32> = (0..count as u32).collect();
        let mut contact = vec![0.0f64; count];
        for &(a, b, weight) in &pairs {
            contact[a as usize] = contact[a as usize].max(weight);
            contact[b as usize] = contact[b as usize].max(weight);
            join(&mut root, a, b);
        }
        let bridge = |a: u32, b: u32| match contact[a as usize].max(contact[b as usize]) {
            0.0 => (a, b, 1.0),
            weight => (a, b, weight),
        };
        let present: Vec<u32> = (0..count as u32)
            .filter(|&p| processes.present(p))
            .collect();
        for (slot, &process) in present.iter().enumerate() {
            let before = slot.checked_sub(1).map(|s| present[s]);
            if contact[process as usize] == 0.0 {
                // A chain of such processes would name each of its links twice.
                let after = present.get(slot + 1).copied();
                let after = after.filter(|&next| contact[next as usize] > 0.0);
                for other in before.into_iter().chain(after) {
                    pairs.push(bridge(process, other));
                    join(&mut root, process, other);
                }
            } else if let Some(other) = before
                && find(&mut root, other) != find(&mut root, process)
            {
                pairs.push(bridge(process, other));
                join(&mut root, process, other);
            }
        }
        Links::from_contacts(count, pairs)
    }

    /// A mesh of `x` by `y` processes: the test bed of the published iteration
    /// counts.
    pub fn mesh(x: usize, y: usize) -> Links {
        let at = |i: usize, j: usize| (j * x + i) as u32;
        let row = (0..y).flat_map(|j| (1..x).map(move |i| (at(i - 1, j), at(i, j))));
        let column = (1..y).flat_map(|j| (0..x).map(move |i| (at(i, j - 1), at(i, j))));
        Links::from_pairs(x * y, row.chain(column))
    }

    /// The same links with other contacts: `contact(link)` for each, above zero and the
    /// same for a link and its reverse.
    pub fn with_contacts(&self, contact: impl Fn(usize) -> f64) -> Links {
        Links {
            contacts: (0..self.len()).map(contact).collect(),
            ..self.clone()
        }
    }

    /// The number of processes.
    pub fn count(&self) -> usize {
        self.offsets.len() - 1
    }
    /// The number of directed links.
    pub fn len(&self) -> usize {
        self.to.len()
    }
    /// True if no two processes are neighbours.
    pub fn is_empty(&self) -> bool {
        self.to.is_empty()
    }
    /// The numbers of the links that leave a process.
    pub fn of(&self, process: u32) -> core::ops::Range<usize> {
        self.offsets[process as usize]..self.offsets[process as usize + 1]
    }
    /// Where a link leads.
    pub fn to(&self, link: usize) -> u32 {
        self.to[link]
    }
    /// The neighbours of a process, ascending.
    pub fn neighbours(&self, process: u32) -> &[u32] {
        &self.to[self.of(process)]
    }
    /// The contact of a link: how much border the two processes share.
    pub fn contact(&self, link: usize) -> f64 {
        self.contacts[link]
    }
    /// The sum of the contacts of a process plus their mean: what the weight of
    /// its links in the diffusion is measured by. 1 without links.
    pub fn girth(&self, process: u32) -> f64 {
        girth(&self.contacts[self.of(process)])
    }
    /// The opposite link.
    pub fn reverse(&self, link: usize) -> usize {
        self.reverse[link]
    }
    /// The number of neighbours.
    pub fn degree(&self, process: u32) -> usize {
        self.of(process).len()
    }
    /// The largest number of neighbours.
    pub fn degree_max(&self) -> usize {
        self.offsets
            .windows(2)
            .map(|o| o[1] - o[0])
            .max()
            .unwrap_or(0)
    }
    /// Every pair once, the lower process first, ascending.
    pub fn pairs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..self.count() as u32).flat_map(move |a| {
            let higher = self.neighbours(a).iter().copied().filter(move |&b| b > a);
            higher.map(move |b| (a, b))
        })
    }
}

/// As [`Links::girth`], from the contacts of one process.
pub fn girth(contacts: &[f64]) -> f64 {
    match contacts.len() {
        0 => 1.0,
        count => {
            let sum: f64 = contacts.iter().sum();
            sum + sum / count as f64
        }
    }
}

/// Sorts pairs and adds up those that are equal, in the order given.
pub(crate) fn merge(pairs: &mut Vec<(u32, u32, f64)>) {
    pairs.sort_by_key(|&(a, b, _)| (a, b));
    pairs.dedup_by(|again, kept| {
        let same = (again.0, again.1) == (kept.0, kept.1);
        if same {
            kept.2 += again.2;
        }
        same
    });
}

fn find(root: &mut [u32], mut process: u32) -> u32 {
    while root[process as usize] != process {
        let up = root[process as usize];
        root[process as usize] = root[up as usize];
        process = up;
    }
    process
}

fn join(root: &mut [u32], a: u32, b: u32) {
    let (a, b) = (find(root, a), find(root, b));
    root[a.max(b) as usize] = a.min(b);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_follow_cut_edges_and_reach_the_empty_and_the_separate() {
        let graph = Graph::mesh(6, 1, 1);
        let five = Processes::uniform(5).unwrap();
        let links = Links::of_tasks(&graph, &five, &[0, 0, 2, 2, 4, 4]);
        assert_eq!(
            links.pairs().collect::<Vec<_>>(),
            [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4)]
        );
        for link in 0..links.len() {
            assert_eq!(links.reverse(links.reverse(link)), link);
        }
        let apart = Graph::from_edges(4, &[(0, 1, 1.0), (2, 3, 1.0)], vec![]).unwrap();
        let four = Processes::uniform(4).unwrap();
        let links = Links::of_tasks(&apart, &four, &[0, 1, 2, 3]);
        assert_eq!(links.pairs().collect::<Vec<_>>(), [(0, 1), (1, 2), (2, 3)]);
    }
}
