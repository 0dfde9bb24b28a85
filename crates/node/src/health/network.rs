//! Network: errors of interfaces and of InfiniBand ports.

use outlive_control::health::{Sample, Sensor};

use super::processor::add;
use super::root::Root;

pub(super) fn read(root: &Root, samples: &mut Vec<Sample>) {
    const NET: &str = "sys/class/net";
    for interface in root.entries(NET) {
        let at = format!("{NET}/{interface}");
        // Those without a device are made of others, or of nothing.
        if !root.has(&format!("{at}/device")) {
            continue;
        }
        let both = |what: &str| {
            let received = root.number(&format!("{at}/statistics/rx_{what}"))?;
            let sent = root.number(&format!("{at}/statistics/tx_{what}"))?;
            Ok(received.into_iter().chain(sent).reduce(|a, b| a + b))
        };
        add(samples, Sensor::NetworkErrors, &interface, both("errors"));
        add(samples, Sensor::NetworkDrops, &interface, both("dropped"));
        let found = root.number(&format!("{at}/carrier_changes"));
        add(samples, Sensor::NetworkCarrier, &interface, found);
    }
    const FABRIC: &str = "sys/class/infiniband";
    for adapter in root.entries(FABRIC) {
        for port in root.entries(&format!("{FABRIC}/{adapter}/ports")) {
            let source = format!("{adapter}/{port}");
            let counter = |what: &str| {
                root.number(&format!("{FABRIC}/{adapter}/ports/{port}/counters/{what}"))
            };
            add(
                samples,
                Sensor::LinkSymbolErrors,
                &source,
                counter("symbol_error"),
            );
            add(samples, Sensor::LinkDowned, &source, counter("link_downed"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::tests_support::Planted;
    use super::*;

    #[test]
    fn interfaces_with_a_device_and_ports_of_adapters() {
        let planted = Planted::new();
        let net = |path: &str, text: &str| planted.write(&format!("sys/class/net/{path}"), text);
        net("eth0/device/vendor", "0x8086\n");
        net("eth0/statistics/rx_errors", "3\n");
        net("eth0/statistics/tx_errors", "4\n");
        net("eth0/statistics/rx_dropped", "oops\n");
        net("eth0/carrier_changes", "2\n");
        net("lo/statistics/rx_errors", "9\n");
        let port = "sys/class/infiniband/mlx5_0/ports/1/counters";
        planted.write(&format!("{port}/symbol_error"), "65535\n");
        planted.write(&format!("{port}/link_downed"), "1\n");
        let mut samples = Vec::new();
        read(&planted.root, &mut samples);
        assert_eq!(samples[0], Sample::of(Sensor::NetworkErrors, "eth0", 7.0));
        assert!(samples[1].value.is_err());
        assert_eq!(samples[2], Sample::of(Sensor::NetworkCarrier, "eth0", 2.0));
        assert_eq!(
            samples[3],
            Sample::of(Sensor::LinkSymbolErrors, "mlx5_0/1", 65_535.0)
        );
        assert_eq!(samples[4], Sample::of(Sensor::LinkDowned, "mlx5_0/1", 1.0));
        assert_eq!(samples.len(), 5);
    }
}
