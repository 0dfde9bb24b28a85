//! Memory: what is left, faults, kills, errors that were corrected and that were not.

use outlive_control::health::{Sample, Sensor};

use super::processor::{add, single};
use super::root::Root;

pub(super) fn read(root: &Root, samples: &mut Vec<Sample>) {
    let meminfo = root.text("proc/meminfo");
    single(samples, Sensor::MemoryAvailable, meminfo.clone(), available);
    single(samples, Sensor::MemoryCorrupted, meminfo, |text| {
        field(text, "HardwareCorrupted:")
    });
    let vmstat = root.text("proc/vmstat");
    single(samples, Sensor::MajorFaults, vmstat.clone(), |text| {
        field(text, "pgmajfault")
    });
    single(samples, Sensor::OomKills, vmstat, |text| {
        field(text, "oom_kill")
    });
    ecc(root, samples);
}

/// The number after a name; `None`: this kernel has no such line.
fn field(text: &str, name: &str) -> Result<Option<f64>, String> {
    let mut lines = text.lines().map(str::split_whitespace);
    let Some(mut words) = lines.find_map(|mut words| (words.next() == Some(name)).then_some(words))
    else {
        return match text.trim().is_empty() {
            true => Err("the kernel says nothing of memory".to_owned()),
            false => Ok(None),
        };
    };
    let value = words.next().and_then(|it| it.parse::<u64>().ok());
    value
        .map(|it| Some(it as f64))
        .ok_or_else(|| format!("no number after {name}"))
}

/// In percent.
fn available(meminfo: &str) -> Result<Option<f64>, String> {
    let (Some(available), Some(total)) = (
        field(meminfo, "MemAvailable:")?,
        field(meminfo, "MemTotal:")?,
    ) else {
        return Ok(None);
    };
    match total > 0.0 && available <= total {
        true => Ok(Some(100.0 * available / total)),
        false => Err(format!("{available} KiB of {total} KiB are available")),
    }
}

/// Corrected errors of each module, where the driver tells them apart; uncorrected ones of each
/// memory controller.
fn ecc(root: &Root, samples: &mut Vec<Sample>) {
    const EDAC: &str = "sys/devices/system/edac/mc";
    for controller in root.entries(EDAC) {
        if !controller.starts_with("mc") {
            continue;
        }
        let at = format!("{EDAC}/{controller}");
        let is_module = |name: &String| name.starts_with("dimm") || name.starts_with("rank");
        let mut modules = root.entries(&at);
        modules.retain(is_module);
        for module in &modules {
            let label = root
                .text(&format!("{at}/{module}/dimm_label"))
                .ok()
                .flatten();
            let label = label.map(|it| it.trim().to_owned());
            let source = match label.filter(|it| !it.is_empty()) {
                Some(label) => format!("{controller}/{module} {label}"),
                None => format!("{controller}/{module}"),
            };
            let found = root.number(&format!("{at}/{module}/dimm_ce_count"));
            add(samples, Sensor::EccCorrected, &source, found);
        }
        let (count, source) = match modules.is_empty() {
            true => ("ce_count", controller.clone()),
            false => ("ce_noinfo_count", format!("{controller} unknown module")),
        };
        let found = root.number(&format!("{at}/{count}"));
        add(samples, Sensor::EccCorrected, &source, found);
        let found = root.number(&format!("{at}/ue_count"));
        add(samples, Sensor::EccUncorrected, &controller, found);
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::tests_support::Planted;
    use super::*;

    #[test]
    fn memory_is_a_share_and_lines_that_are_not_there_are_no_zero() {
        let text =
            "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  30 kB\nHardwareCorrupted: 4 kB\n";
        assert_eq!(available(text), Ok(Some(3.0)));
        assert_eq!(field(text, "HardwareCorrupted:"), Ok(Some(4.0)));
        assert_eq!(field("pgfault 3\n", "oom_kill"), Ok(None));
        assert_eq!(available("MemTotal: 1000 kB\n"), Ok(None));
        for bad in [
            "",
            "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
            "MemTotal: x\nMemAvailable: 1\n",
        ] {
            assert!(available(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn corrected_errors_are_told_by_module_and_uncorrected_by_controller() {
        let planted = Planted::new();
        let write = |path: &str, text: &str| {
            planted.write(&format!("sys/devices/system/edac/mc/{path}"), text);
        };
        write("mc0/dimm0/dimm_ce_count", "5\n");
        write("mc0/dimm0/dimm_label", "CPU_SrcID#0_Chan#0\n");
        write("mc0/dimm1/dimm_ce_count", "0\n");
        write("mc0/ce_count", "6\n");
        write("mc0/ce_noinfo_count", "1\n");
        write("mc0/ue_count", "2\n");
        write("mc1/ce_count", "7\n");
        write("mc1/ue_count", "damaged\n");
        write("power/control", "auto\n");
        let mut samples = Vec::new();
        ecc(&planted.root, &mut samples);
        let of = |source: &str, value| Sample::of(Sensor::EccCorrected, source, value);
        assert_eq!(samples[0], of("mc0/dimm0 CPU_SrcID#0_Chan#0", 5.0));
        assert_eq!(samples[1], of("mc0/dimm1", 0.0));
        assert_eq!(samples[2], of("mc0 unknown module", 1.0));
        assert_eq!(samples[3], Sample::of(Sensor::EccUncorrected, "mc0", 2.0));
        assert_eq!(samples[4], of("mc1", 7.0));
        assert!(samples[5].value.is_err());
        assert_eq!(samples.len(), 6);
    }
}
