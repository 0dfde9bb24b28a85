//! A second broadcast over LogP, slow and plain: it steps through every unit of time,
//! keeps every message in one list, makes the trees by recursion and keeps sets where
//! the code under test keeps numbers. It shares no code with it but the parameters.

use std::collections::{BTreeMap, BTreeSet};

use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::broadcast::{Correction, Start};
use outlive_simulator::broadcast::{Parameters, Spread};

/// What the reference finds.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub colouring_time: u64,
    pub quiescence: u64,
    pub messages: u64,
    pub uncoloured_live: u64,
    pub max_gap: u32,
}

type Children = BTreeMap<u64, Vec<u64>>;

/// Children of every rank in the order of sending (interleaved; binomial and k-ary also
/// in order), built outwards from the root.
pub fn children(shape: Shape, order: Order, p: u64, delay: u64, gap: u64) -> Children {
    let mut all = Children::new();
    match (shape, order) {
        (Shape::Binomial, Order::Interleaved) => grow(p, 1, 1, false, &mut all),
        (Shape::Lame(k), Order::Interleaved) => grow(p, u64::from(k), 1, false, &mut all),
        (Shape::Optimal, Order::Interleaved) => grow(p, delay, gap, true, &mut all),
        (Shape::Kary(k), Order::Interleaved) => {
            // Level by level: the c-th child of each in turn.
            let mut level = vec![0];
            let mut next = 1;
            while next < p {
                let mut below = Vec::new();
                for _ in 0..k {
                    for &parent in &level {
                        if next < p {
                            all.entry(parent).or_default().push(next);
                            below.push(next);
                            next += 1;
                        }
                    }
                }
                level = below;
            }
        }
        (Shape::Binomial, Order::InOrder) => {
            for rank in 1..p {
                // The lowest bit leads to the parent; large subtrees are served first.
                let bit = rank & rank.wrapping_neg();
                all.entry(rank - bit).or_default().push(rank);
            }
            for list in all.values_mut() {
                list.sort_by(|a, b| b.cmp(a));
            }
        }
        (Shape::Kary(k), Order::InOrder) => split(0, p, u64::from(k), &mut all),
        (shape, order) => panic!("no reference for {shape:?} {order:?}"),
    }
    all
}

/// Who has the message hands it on every `gap`; new ones are numbered by (when they
/// have it, parent). If fewer are needed at last than could be served, the lowest serve
/// them, or the highest.
fn grow(p: u64, delay: u64, gap: u64, highest: bool, all: &mut Children) {
    let mut has = vec![(0u64, 0u64)]; // (time, rank)
    let mut time = 0;
    while (has.len() as u64) < p {
        time += 1;
        let mut senders: Vec<u64> = has
            .iter()
            .filter(|(at, _)| time >= at + delay && (time - at - delay).is_multiple_of(gap))
            .map(|&(_, rank)| rank)
            .collect();
        let needed = (p - has.len() as u64) as usize;
        if highest && senders.len() > needed {
            senders.drain(..senders.len() - needed);
        }
        for sender in senders {
            let rank = has.len() as u64;
            if rank < p {
                all.entry(sender).or_default().push(rank);
                has.push((time, rank));
            }
        }
    }
}

fn split(head: u64, size: u64, k: u64, all: &mut Children) {
    let mut next = head + 1;
    for i in 0..k {
        let own = (size - 1) / k + u64::from(i < (size - 1) % k);
        if own > 0 {
            all.entry(head).or_default().push(next);
            split(next, own, k, all);
            next += own;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Child {
    Tree,
    Left,
    Right,
}

#[derive(Default, Clone)]
struct Process {
    coloured: Option<u64>,
    by_correction: bool,
    takes_part: bool,
    children_served: usize,
    left: u64,
    right: u64,
    /// Distances of the senders heard, in the order of hearing.
    heard_left: Vec<u64>,
    heard_right: Vec<u64>,
    skip_left: BTreeSet<u64>,
    skip_right: BTreeSet<u64>,
    send_free: u64,
    receive_free: u64,
    busy: u64,
}

struct Flight {
    /// When the sender had the message, for the tree; when the send starts, for others.
    decided: u64,
    arrives: u64,
    from: u64,
    to: u64,
    kind: Child,
    /// End of the reception that has begun.
    ends: Option<u64>,
}

/// One run without chance: named dead, tree dissemination.
pub fn run(parameters: &Parameters) -> Found {
    let Spread::Tree(shape, order) = parameters.spread else {
        panic!("trees only");
    };
    let p = u64::from(parameters.ring.processes);
    let root = u64::from(parameters.ring.root);
    let model = parameters.model;
    let (l, o, g) = (model.logp.latency, model.logp.overhead, model.logp.gap);
    let tree = children(shape, order, p, l + 2 * o, g);
    let dead: BTreeSet<u64> = parameters
        .faults
        .dead
        .iter()
        .map(|&d| (u64::from(d) + p - root) % p)
        .collect();
    let synchronized = parameters.start == Start::Synchronized;
    let from = if synchronized {
        ends(&tree, 0, l + 2 * o, g)
    } else {
        0
    };
    // Corrections that do not pass the root.
    let line = match parameters.correction {
        Correction::Checked => !synchronized,
        Correction::Opportunistic(_) => true,
        Correction::OptimizedOpportunistic(_) => synchronized,
        Correction::None | Correction::FailureProof(_) => false,
    };
    let mut all = vec![Process::default(); p as usize];
    let mut flights: Vec<Flight> = Vec::new();
    let (mut messages, mut quiescence, mut idle) = (0, 0, 0);
    all[0].coloured = Some(0);
    all[0].takes_part = true;
    let mut now = 0;
    // Nothing can happen any more once nobody acted for a whole round trip.
    while idle < 4 * (l + 2 * o + g) + from + 4 {
        idle += 1;
        // Receptions end.
        for flight in flights.iter().filter(|f| f.ends == Some(now)) {
            idle = 0;
            quiescence = quiescence.max(now);
            let distance = match flight.kind {
                Child::Right => (flight.to + p - flight.from) % p,
                _ => (flight.from + p - flight.to) % p,
            };
            hear(
                &mut all[flight.to as usize],
                flight.kind,
                distance,
                now,
                parameters,
                from,
            );
        }
        flights.retain(|f| f.ends != Some(now));
        // Receptions begin, then sends: lower ranks before higher.
        // What was decided on first is received first of all that have arrived.
        flights.sort_by_key(|f| (f.decided, f.kind != Child::Tree, (f.from + root) % p));
        for flight in &mut flights {
            let process = &mut all[flight.to as usize];
            let free = process
                .receive_free
                .max(if model.half_duplex { process.busy } else { 0 });
            if flight.ends.is_none() && flight.arrives <= now && free <= now {
                flight.ends = Some(now + o);
                process.receive_free = now + g;
                process.busy = now + o;
            }
        }
        for me in 0..p {
            let process = &mut all[me as usize];
            let busy = model.half_duplex && process.busy > now;
            if process.coloured.is_none() || process.send_free > now || busy {
                continue;
            }
            let Some((to, kind)) = next(process, me, p, &tree, now, from, line, parameters) else {
                continue;
            };
            idle = 0;
            messages += 1;
            quiescence = quiescence.max(now + o + l); // It arrives, also at the dead.
            process.send_free = now + g;
            process.busy = now + o;
            if !dead.contains(&to) {
                flights.push(Flight {
                    decided: match kind {
                        Child::Tree => process.coloured.unwrap_or(now),
                        _ => now,
                    },
                    arrives: now + o + l,
                    from: me,
                    to,
                    kind,
                    ends: None,
                });
            }
        }
        now += 1;
    }
    let spread =
        |place: u64| all[place as usize].coloured.is_some() && !all[place as usize].by_correction;
    // The longest gap: walk twice round the ring.
    let (mut gap, mut longest) = (0, 0);
    for step in 0..2 * p {
        gap = if spread(step % p) { 0 } else { gap + 1 };
        longest = longest.max(gap.min(p));
    }
    let live = (0..p).filter(|me| !dead.contains(me));
    Found {
        colouring_time: live
            .clone()
            .filter_map(|me| all[me as usize].coloured)
            .max()
            .unwrap_or(0),
        quiescence,
        messages,
        uncoloured_live: live
            .filter(|&me| all[me as usize].coloured.is_none())
            .count() as u64,
        max_gap: longest as u32,
    }
}

fn ends(tree: &Children, rank: u64, delay: u64, gap: u64) -> u64 {
    let below = tree.get(&rank).into_iter().flatten().enumerate();
    let ends = below.map(|(i, &child)| i as u64 * gap + delay + ends(tree, child, delay, gap));
    ends.max().unwrap_or(0)
}

fn hear(
    process: &mut Process,
    kind: Child,
    distance: u64,
    now: u64,
    parameters: &Parameters,
    from: u64,
) {
    let d = match parameters.correction {
        Correction::Opportunistic(d) | Correction::OptimizedOpportunistic(d) => u64::from(d),
        _ => 0,
    };
    let optimized = matches!(parameters.correction, Correction::OptimizedOpportunistic(_));
    match kind {
        Child::Tree => {}
        // From the left: all to our left, and d - d/2 - distance to our right, is served.
        Child::Right => {
            process.heard_left.push(distance);
            if optimized {
                process.skip_left.extend(1..=d);
                process
                    .skip_right
                    .extend((1..=d).filter(|x| x + distance <= d - d / 2));
            }
        }
        Child::Left => {
            process.heard_right.push(distance);
            if optimized {
                process.skip_right.extend(1..=d);
                process
                    .skip_left
                    .extend((1..=d).filter(|x| x + distance <= d / 2));
            }
        }
    }
    let first = process.coloured.is_none();
    if first {
        process.coloured = Some(now);
        process.by_correction = kind != Child::Tree;
    }
    let in_time = parameters.start == Start::Overlapped || now <= from;
    match parameters.correction {
        Correction::None => {}
        Correction::FailureProof(_)
        | Correction::Opportunistic(_)
        | Correction::OptimizedOpportunistic(_) => process.takes_part = true,
        Correction::Checked => process.takes_part |= first && kind == Child::Tree && in_time,
    }
}

#[allow(clippy::too_many_arguments)]
fn next(
    process: &mut Process,
    me: u64,
    p: u64,
    tree: &Children,
    now: u64,
    from: u64,
    line: bool,
    parameters: &Parameters,
) -> Option<(u64, Child)> {
    let serves = !process.by_correction || parameters.start == Start::Overlapped;
    if serves
        && let Some(&child) = tree
            .get(&me)
            .and_then(|list| list.get(process.children_served))
    {
        process.children_served += 1;
        return Some((child, Child::Tree));
    }
    if p == 1 || !process.takes_part || now < from {
        return None;
    }
    let optimized = matches!(parameters.correction, Correction::OptimizedOpportunistic(_));
    let leftward = match parameters.correction {
        Correction::None => return None,
        Correction::Opportunistic(d) | Correction::OptimizedOpportunistic(d) => {
            let (left, right) = (u64::from(d / 2), u64::from(d - d / 2));
            let (left, right) = match line {
                true => (left.min(me), right.min(p - 1 - me)),
                // Nobody is served from both sides.
                false => (left.min((p - 1).saturating_sub(right)), right.min(p - 1)),
            };
            // Whoever was heard serves all the others.
            let heard = !process.heard_left.is_empty() || !process.heard_right.is_empty();
            if optimized && heard && !line && u64::from(d) >= p - 1 {
                return None;
            }
            while process.left < left && process.skip_left.contains(&(process.left + 1)) {
                process.left += 1;
            }
            while process.right < right && process.skip_right.contains(&(process.right + 1)) {
                process.right += 1;
            }
            match (process.left < left, process.right < right) {
                (false, false) => return None,
                (to_left, to_right) => to_left && (!to_right || process.left < process.right),
            }
        }
        Correction::Checked | Correction::FailureProof(_) => {
            let f = match parameters.correction {
                Correction::FailureProof(f) => f as usize,
                _ => 0,
            };
            let done = |heard: &[u64], sent: u64| match f {
                0 => heard.iter().min().is_some_and(|&nearest| sent >= nearest),
                _ => heard.len() > f && sent >= heard[..=f].iter().copied().max().unwrap_or(0),
            };
            let mut left = done(&process.heard_left, process.left);
            let mut right = done(&process.heard_right, process.right);
            if line {
                left |= process.left == me;
                right |= process.right == p - 1 - me;
            }
            if left && right || process.left + process.right >= p {
                return None;
            }
            !left && (right || process.left <= process.right)
        }
    };
    if leftward {
        process.left += 1;
        return Some(((me + 2 * p - process.left) % p, Child::Left));
    }
    process.right += 1;
    Some(((me + process.right) % p, Child::Right))
}
