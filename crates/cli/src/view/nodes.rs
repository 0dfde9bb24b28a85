//! The table of nodes of `outlive top`.

use std::collections::BTreeSet;

use outlive_base::{Level, Version};
use outlive_control::health::Verdict;
use outlive_control::supervisor::NodeState;
use outlive_control::units::show_bytes;
use outlive_launch::record::live::LiveNode;

use super::paint::{Column, Line, Room, Tone, row};
use super::show_seconds;

/// The table of nodes. If not all have room, those that are not up come first.
pub fn table(nodes: &[LiveNode], room: Room) -> Vec<Line> {
    let mut order: Vec<&LiveNode> = nodes.iter().collect();
    let fits = nodes.len() <= room.height;
    let rows = if fits {
        nodes.len()
    } else {
        room.height.saturating_sub(1)
    };
    if !fits {
        order.sort_by_key(|node| (node.state == NodeState::Up, node.node));
        let first = room.scroll.min(nodes.len().saturating_sub(rows));
        order.rotate_left(first);
    }
    order.truncate(rows);
    let mut columns = columns(&order);
    let width = |columns: &[Column]| columns.iter().map(|it| it.width() + 2).sum::<usize>();
    while width(&columns) > room.width + 2 {
        let last = (0..columns.len()).max_by_key(|at| columns[*at].goes);
        match last.filter(|at| columns[*at].goes > 0) {
            Some(at) => drop(columns.remove(at)),
            None => break,
        }
    }
    let mut lines = vec![row(&columns, |column| (Tone::Dim, column.name.clone()))];
    for at in 0..order.len() {
        lines.push(row(&columns, |column| column.cells[at].clone()));
    }
    if !fits {
        let hidden = nodes.len() - order.len();
        let text = format!("and {} more; those that are not up come first", hidden);
        lines.push(Line::of(Tone::Dim, text));
    }
    lines
}

fn columns(nodes: &[&LiveNode]) -> Vec<Column> {
    let column = |name: &str, goes, right, cell: &dyn Fn(&LiveNode) -> (Tone, String)| Column {
        name: name.to_owned(),
        cells: nodes.iter().map(|node| cell(node)).collect(),
        goes,
        right,
    };
    let usual = |text: String| (Tone::Usual, text);
    let known = |node: &LiveNode, text: String| match node.memory_bytes_max {
        0 => (Tone::Dim, "-".to_owned()),
        _ => (Tone::Usual, text),
    };
    let mut columns = vec![column("NODE", 0, true, &|node| {
        usual(node.node.to_string())
    })];
    if nodes.iter().any(|node| node.host.is_some()) {
        columns.push(column("HOST", 0, false, &|node| {
            usual(
                node.host
                    .clone()
                    .unwrap_or_default()
                    .chars()
                    .take(16)
                    .collect(),
            )
        }));
    }
    columns.extend([
        column("STATE", 0, false, &|node| state(node.state)),
        column("RANKS", 0, true, &|node| usual(node.ranks.to_string())),
        column("STAGED", 3, true, &|node| {
            known(node, show_bytes(node.memory_bytes))
        }),
        column("OF", 5, true, &|node| {
            known(node, show_bytes(node.memory_bytes_max))
        }),
        column("STORAGE", 4, true, &|node| {
            known(node, show_bytes(node.disk_bytes))
        }),
        column("HEARD", 2, true, &|node| heard(node)),
    ]);
    // Where all machines are well there is nothing to say.
    if nodes.iter().any(|node| node.health.verdict.is_bad()) {
        columns.push(column("HEALTH", 0, false, &|node| health(node)));
    }
    let levels: BTreeSet<Level> = nodes
        .iter()
        .flat_map(|node| node.stable.keys())
        .filter_map(|level| level.parse().ok())
        .collect();
    for level in levels {
        let name = level.name().to_uppercase();
        columns.push(column(
            &name,
            1,
            true,
            &|node| match node.stable.get(level.name()) {
                Some(Version(version)) => usual(version.to_string()),
                None => (Tone::Dim, "-".to_owned()),
            },
        ));
    }
    columns
}

fn state(state: NodeState) -> (Tone, String) {
    let (tone, text) = match state {
        NodeState::Starting => (Tone::Warn, "starting"),
        NodeState::Up => (Tone::Good, "up"),
        NodeState::Silent => (Tone::Bad, "silent"),
        NodeState::Lost => (Tone::Bad, "lost"),
        NodeState::Ended => (Tone::Dim, "ended"),
    };
    (tone, text.to_owned())
}

fn health(node: &LiveNode) -> (Tone, String) {
    let tone = match node.health.verdict {
        Verdict::Ok => Tone::Good,
        Verdict::Unknown => Tone::Dim,
        Verdict::Warning => Tone::Warn,
        Verdict::Failing => Tone::Bad,
    };
    (tone, node.health.verdict.to_string())
}

/// Less than a second is now: states are written so often.
fn heard(node: &LiveNode) -> (Tone, String) {
    match node.heard_ms {
        0..1_000 => (Tone::Usual, "now".to_owned()),
        ms => (Tone::Warn, show_seconds(ms as f64 / 1e3)),
    }
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A node that has told how it is.
    pub fn node(node: u32, state: NodeState) -> LiveNode {
        LiveNode {
            node,
            host: None,
            state,
            ranks: 2,
            heard_ms: 3,
            memory_bytes: 5 << 20,
            memory_bytes_max: 8 << 30,
            disk_bytes: 7 << 30,
            disk_free_bytes: 1 << 40,
            agent_restarts: 0,
            offered: Some(Version(1_234_567)),
            stable: BTreeMap::from([
                ("memory".to_owned(), Version(1_234_560)),
                ("disk".to_owned(), Version(1_234_550)),
                ("partner".to_owned(), Version(1_234_550)),
            ]),
            traffic: Default::default(),
            health: Default::default(),
            clock: None,
            transfers: Vec::new(),
        }
    }

    #[test]
    fn health_is_a_column_once_a_machine_is_not_well() {
        let mut all = vec![node(0, NodeState::Up), node(1, NodeState::Up)];
        let room = Room {
            width: 80,
            height: 10,
            scroll: 0,
        };
        let heading = |all: &[LiveNode]| table(all, room)[0].show(80, false);
        assert!(!heading(&all).contains("HEALTH"));
        all[1].health.verdict = Verdict::Failing;
        assert!(heading(&all).contains("HEALTH"));
        assert!(table(&all, room)[2].show(80, false).contains("failing"));
    }

    #[test]
    fn of_many_nodes_those_that_are_not_up_come_first() {
        let mut all: Vec<LiveNode> = (0..500).map(|n| node(n, NodeState::Up)).collect();
        all[444].state = NodeState::Lost;
        let room = Room {
            width: 80,
            height: 10,
            scroll: 0,
        };
        let lines = table(&all, room);
        assert!(
            lines[1]
                .show(80, false)
                .trim_start()
                .starts_with("444  lost")
        );
        assert_eq!(lines.len(), 11, "heading, nine nodes, the rest");
        assert!(lines[10].show(80, false).contains("491 more"));
        let end = table(
            &all,
            Room {
                scroll: 9_999,
                ..room
            },
        );
        assert!(end[9].show(80, false).trim_start().starts_with("499"));
    }
}
