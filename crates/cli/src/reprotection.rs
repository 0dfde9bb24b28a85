//! What is made again of what lost nodes had kept, as `outlive status` and others show it.

use outlive_base::{NodeId, count};
use outlive_control::report::Report;
use outlive_control::reprotection::{Reprotecting, ReprotectionEntry};
use outlive_control::supervisor::named;
use outlive_control::units::{show_bytes, show_ms};

/// How far it is, and what would not be survived now: a line each.
pub fn going_on(it: &Reprotecting) -> Vec<String> {
    let nodes: Vec<NodeId> = it.nodes.iter().map(|node| NodeId(node.node)).collect();
    let far = far((it.copies, it.copies_total), (it.bytes, it.bytes_total));
    let lasted = show_ms(it.lasted_ms as f64);
    let mut lines = vec![format!("on {}: {far}, for {lasted}", named(&nodes))];
    if !it.not_survived.is_empty() {
        let nodes: Vec<NodeId> = it.not_survived.iter().copied().map(NodeId).collect();
        let (version, nodes) = (it.version, named(&nodes));
        lines.push(match it.not_survived.len() {
            1 => format!("version {version} would not survive the loss of {nodes} now"),
            _ => format!("version {version} would not survive the loss of one of {nodes} now"),
        });
    }
    lines
}

/// What a run has made again, a line for each node that took the place of a lost one.
pub fn describe(report: &Report) -> Vec<String> {
    report.reprotections.iter().map(entry).collect()
}

fn entry(entry: &ReprotectionEntry) -> String {
    let after = format!("node {} in incarnation {}", entry.node, entry.incarnation);
    match entry.seconds {
        Some(seconds) => {
            let (copies, bytes) = (count(entry.copies, "copy"), show_bytes(entry.bytes));
            format!("{after}: {copies}, {bytes}, in {}", show_ms(seconds * 1e3))
        }
        None => {
            let (copies, bytes) = (
                (entry.copies, entry.copies_total),
                (entry.bytes, entry.bytes_total),
            );
            format!("{after}: {}, not all", far(copies, bytes))
        }
    }
}

fn far((copies, copies_total): (u64, u64), (bytes, bytes_total): (u64, u64)) -> String {
    let (bytes, bytes_total) = (show_bytes(bytes), show_bytes(bytes_total));
    let total = count(copies_total, "copy");
    format!("{copies} of {total}, {bytes} of {bytes_total}")
}

#[cfg(test)]
mod tests {
    use outlive_base::JobName;
    use outlive_control::reprotection::ReprotectingNode;

    use super::*;

    #[test]
    fn what_is_lacking_is_told_with_what_it_means() {
        let node = |node| ReprotectingNode {
            node,
            ..ReprotectingNode::default()
        };
        let mut it = Reprotecting {
            version: 30,
            lasted_ms: 1500,
            copies: 1,
            copies_total: 3,
            bytes: 1 << 20,
            bytes_total: 3 << 20,
            not_survived: vec![0, 1],
            nodes: vec![node(2)],
        };
        let lines = going_on(&it);
        assert_eq!(
            lines[0],
            "on node 2: 1 of 3 copies, 1.0 MiB of 3.0 MiB, for 1.5 s"
        );
        assert_eq!(
            lines[1],
            "version 30 would not survive the loss of one of nodes 0 and 1 now"
        );
        it.not_survived = vec![1];
        let last = "version 30 would not survive the loss of node 1 now";
        assert_eq!(going_on(&it)[1], last);
        it.not_survived.clear();
        assert_eq!(going_on(&it).len(), 1);
    }

    #[test]
    fn a_report_says_how_long_it_took_or_that_it_was_not_done() {
        let mut report = Report::new(&JobName::new("job").unwrap(), 3);
        assert!(describe(&report).is_empty());
        let mut entry = ReprotectionEntry {
            node: 2,
            incarnation: 2,
            version: 30,
            copies: 2,
            copies_total: 2,
            bytes: 2048,
            bytes_total: 2048,
            seconds: Some(0.25),
            ..ReprotectionEntry::default()
        };
        report.reprotections.push(entry.clone());
        (entry.copies, entry.seconds) = (1, None);
        report.reprotections.push(entry);
        let lines = describe(&report);
        assert_eq!(
            lines[0],
            "node 2 in incarnation 2: 2 copies, 2.0 KiB, in 250 ms"
        );
        assert!(
            lines[1].ends_with("1 of 2 copies, 2.0 KiB of 2.0 KiB, not all"),
            "{lines:?}"
        );
    }
}
