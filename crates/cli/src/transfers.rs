//! Copies on their way to shared storage, as `outlive status` shows them.

use std::time::{Duration, UNIX_EPOCH};

use outlive_control::transfers::TransferStatus;
use outlive_control::units::{show_bytes, show_ms};
use outlive_launch::jobs::utc;
use outlive_launch::record::live::Live;
use serde::Serialize;

/// A copy of a node.
#[derive(Serialize)]
pub struct OfNode {
    node: u32,
    host: Option<String>,
    /// When it began, in UTC; null: it waits.
    since: Option<String>,
    #[serde(flatten)]
    transfer: TransferStatus,
}

/// What the nodes of a running job said last, by version and node.
pub fn of(live: &Live) -> Vec<OfNode> {
    let said_ms = live
        .began_unix_ms
        .saturating_add((live.seconds * 1e3) as u64);
    let of_node = live.nodes.iter().flat_map(|node| {
        node.transfers.iter().map(|transfer| OfNode {
            node: node.node,
            host: node.host.clone(),
            since: transfer.age_ms.map(|age| {
                let began = Duration::from_millis(said_ms.saturating_sub(age));
                utc(UNIX_EPOCH.checked_add(began).unwrap_or(UNIX_EPOCH))
            }),
            transfer: transfer.clone(),
        })
    });
    let mut all: Vec<OfNode> = of_node.collect();
    all.sort_by_key(|it| (it.transfer.version, it.node));
    all
}

impl OfNode {
    /// For people.
    pub fn describe(&self) -> String {
        let it = &self.transfer;
        let (version, node, total) = (it.version.0, self.node, show_bytes(it.bytes_total));
        let what = format!("version {version} of node {node} to shared storage");
        let (Some(age), Some(since)) = (it.age_ms, &self.since) else {
            return format!("{what}: {total}, waits for the one before it");
        };
        let far = match it.bytes == it.bytes_total {
            true => format!("all of {total}, not read back yet"),
            false => format!("{} of {total}", show_bytes(it.bytes)),
        };
        format!(
            "{what}: {far}, {} a second for {}, since {since}",
            show_bytes(it.bytes_per_second as u64),
            show_ms(age as f64)
        )
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::Version;

    use super::*;

    fn told(bytes: u64, age_ms: Option<u64>) -> String {
        let transfer = TransferStatus {
            incarnation: 1,
            version: Version(40),
            bytes,
            bytes_total: 4 << 20,
            age_ms,
            bytes_per_second: 1024.0,
        };
        let since = age_ms.map(|_| "2026-01-02T03:04:05Z".to_owned());
        let (node, host) = (2, None);
        let of_node = OfNode {
            node,
            host,
            since,
            transfer,
        };
        of_node.describe()
    }

    #[test]
    fn each_state_has_its_words() {
        let going = told(1 << 20, Some(2500));
        assert_eq!(
            going,
            "version 40 of node 2 to shared storage: 1.0 MiB of 4.0 MiB, 1.0 KiB a second for \
             2.5 s, since 2026-01-02T03:04:05Z"
        );
        assert!(told(4 << 20, Some(1)).contains("all of 4.0 MiB, not read back yet"));
        assert!(told(0, None).ends_with("4.0 MiB, waits for the one before it"));
    }
}
