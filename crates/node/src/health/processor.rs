//! Processors: steal, pressure, machine checks, throttling, temperatures.

use outlive_control::health::{Sample, Sensor};

use super::root::{Root, short};

pub(super) fn read(root: &Root, samples: &mut Vec<Sample>) {
    single(samples, Sensor::CpuSteal, root.text("proc/stat"), |text| {
        steal(text).map(Some)
    });
    let pressures = [
        (Sensor::CpuPressure, "cpu", "some"),
        (Sensor::MemoryPressure, "memory", "full"),
        (Sensor::IoPressure, "io", "full"),
    ];
    for (sensor, what, line) in pressures {
        let text = root.text(&format!("proc/pressure/{what}"));
        single(samples, sensor, text, |text| pressure(text, line));
    }
    let interrupts = root.text("proc/interrupts");
    single(samples, Sensor::MachineChecks, interrupts, machine_checks);
    throttling(root, samples);
    temperatures(root, samples);
}

/// A sample of something of which there is one, if it is there.
pub(super) fn single(
    samples: &mut Vec<Sample>,
    sensor: Sensor,
    text: Result<Option<String>, String>,
    parse: impl Fn(&str) -> Result<Option<f64>, String>,
) {
    let found = text.and_then(|text| match text {
        Some(text) => parse(&text),
        None => Ok(None),
    });
    add(samples, sensor, "", found);
}

/// A sample, if there is something to read.
pub(super) fn add(
    samples: &mut Vec<Sample>,
    sensor: Sensor,
    source: &str,
    found: Result<Option<f64>, String>,
) {
    match found {
        Ok(Some(value)) => samples.push(Sample::of(sensor, source, value)),
        Ok(None) => {}
        Err(reason) => samples.push(Sample::unknown(sensor, source, reason)),
    }
}

/// Time stolen from the processors, as hundredths of a second of all of them: what is added in a
/// second is a share in percent.
fn steal(stat: &str) -> Result<f64, String> {
    let bad = || "/proc/stat is not understood".to_owned();
    let is_one = |line: &&str| {
        let digits = line.strip_prefix("cpu").unwrap_or_default();
        digits.starts_with(|it: char| it.is_ascii_digit())
    };
    let processors = stat.lines().filter(is_one).count();
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let ticks = all.and_then(|line| line.split_whitespace().nth(7));
    // A tick of what is shown to programs is a hundredth of a second on all machines of today.
    let ticks: f64 = ticks.and_then(|it| it.parse().ok()).ok_or_else(bad)?;
    match processors {
        0 => Err(bad()),
        processors => Ok(ticks / processors as f64),
    }
}

/// The mean of the last minute. `None`: the line is not there, as `full` of processors.
fn pressure(text: &str, line: &str) -> Result<Option<f64>, String> {
    let mut lines = text.lines().map(str::split_whitespace);
    let Some(mut words) = lines.find_map(|mut words| (words.next() == Some(line)).then_some(words))
    else {
        return match text.trim().is_empty() {
            true => Err("the kernel says nothing of pressure".to_owned()),
            false => Ok(None),
        };
    };
    let mean = words.find_map(|word| word.strip_prefix("avg60="));
    let mean = mean.and_then(|it| it.parse().ok());
    let mean = mean.filter(|it: &f64| (0.0..=100.0).contains(it));
    mean.map(Some)
        .ok_or_else(|| "no share of the last minute".to_owned())
}

/// Machine-check exceptions of the processor that had most: some machines tell all of each.
/// Polls (`MCP`) are no errors.
fn machine_checks(interrupts: &str) -> Result<Option<f64>, String> {
    let mut lines = interrupts.lines().map(str::trim_start);
    let Some(rest) = lines.find_map(|line| line.strip_prefix("MCE:")) else {
        return Ok(None);
    };
    let counts = rest
        .split_whitespace()
        .map_while(|it| it.parse::<u64>().ok());
    let most = counts.max().map(|it| it as f64);
    most.map(Some)
        .ok_or_else(|| "no count of machine checks".to_owned())
}

/// Of a core and of its package; the greater, as one often is the other.
fn throttling(root: &Root, samples: &mut Vec<Sample>) {
    const CPUS: &str = "sys/devices/system/cpu";
    let (mut most, mut unread) = (None, None);
    for cpu in root.entries(CPUS) {
        let number = cpu.strip_prefix("cpu").unwrap_or_default();
        if !number.starts_with(|it: char| it.is_ascii_digit()) {
            continue;
        }
        for count in ["core_throttle_count", "package_throttle_count"] {
            match root.number(&format!("{CPUS}/{cpu}/thermal_throttle/{count}")) {
                Ok(found) => most = found.into_iter().chain(most).reduce(f64::max),
                Err(reason) => unread = Some(reason),
            }
        }
    }
    let found = match (most, unread) {
        (None, Some(reason)) => Err(reason),
        (most, _) => Ok(most),
    };
    add(samples, Sensor::Throttling, "", found);
}

/// Those that have a critical limit.
fn temperatures(root: &Root, samples: &mut Vec<Sample>) {
    const HWMON: &str = "sys/class/hwmon";
    for device in root.entries(HWMON) {
        let at = format!("{HWMON}/{device}");
        let name = root.text(&format!("{at}/name")).ok().flatten();
        let name = name.map_or_else(|| device.clone(), |name| short(name.trim()));
        for file in root.entries(&at) {
            let Some(sensor) = file.strip_suffix("_input") else {
                continue;
            };
            if !sensor.starts_with("temp") {
                continue;
            }
            let critical = root.number(&format!("{at}/{sensor}_crit"));
            // Drivers say 0 or nonsense where there is none.
            let Some(critical) = critical.ok().flatten().filter(|it| sane(*it) && *it > 0.0) else {
                continue;
            };
            let found = match root.number(&format!("{at}/{sensor}_fault")) {
                Ok(Some(1.0)) => Err("the sensor is broken".to_owned()),
                _ => root.number(&format!("{at}/{file}")),
            };
            let found = found.and_then(|value| match value {
                Some(value) if !sane(value) => Err(format!("{value} thousandths of a degree")),
                value => Ok(value.map(|value| (critical - value) / 1_000.0)),
            });
            let source = format!("{name} {device}/{sensor}");
            add(samples, Sensor::Temperature, &source, found);
        }
    }
}

/// A temperature that something in a machine can have, in thousandths of a degree.
fn sane(value: f64) -> bool {
    (-55_000.0..=200_000.0).contains(&value)
}

#[cfg(test)]
mod tests {
    use super::super::root::tests_support::Planted;
    use super::*;

    #[test]
    fn steal_is_a_share_of_all_processors() {
        let stat = "cpu  1 2 3 4 5 6 7 400 9 0\ncpu0 1 1 1 1 1 1 1 100 0 0\ncpu1 1\nintr 5\n";
        assert_eq!(steal(stat), Ok(200.0));
        for bad in [
            "",
            "cpu  1 2 3\ncpu0 1",
            "cpu  1 2 3 4 5 6 7 x\ncpu0",
            "cpu  1 2 3 4 5 6 7 8\n",
        ] {
            assert!(steal(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pressure_is_that_of_the_last_minute() {
        let text = "some avg10=1.00 avg60=12.50 avg300=0.00 total=5\nfull avg10=0.00 avg60=3.25 avg300=0.00 total=1\n";
        assert_eq!(pressure(text, "some"), Ok(Some(12.5)));
        assert_eq!(pressure(text, "full"), Ok(Some(3.25)));
        assert_eq!(pressure("some avg60=1.00\n", "full"), Ok(None));
        for bad in [
            "",
            "some avg60=x",
            "some avg10=0.00",
            "some avg60=NaN",
            "some avg60=400",
        ] {
            assert!(pressure(bad, "some").is_err(), "{bad}");
        }
    }

    #[test]
    fn machine_checks_are_exceptions_not_polls() {
        let text = "      CPU0  CPU1\n MCE:   0  3  Machine check exceptions\n MCP:  99 99  Machine check polls\n";
        assert_eq!(machine_checks(text), Ok(Some(3.0)));
        assert_eq!(machine_checks(" MCP: 9 9\n"), Ok(None));
        assert!(machine_checks(" MCE: many\n").is_err());
    }

    #[test]
    fn throttling_and_temperatures_are_found_where_the_kernel_has_them() {
        let planted = Planted::new();
        planted.write(
            "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count",
            "4\n",
        );
        planted.write(
            "sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count",
            "9\n",
        );
        planted.write(
            "sys/devices/system/cpu/cpufreq/thermal_throttle/core_throttle_count",
            "99\n",
        );
        planted.write("sys/class/hwmon/hwmon2/name", "coretemp\n");
        for (sensor, input, critical) in [
            ("temp1", "97000", "100000"),
            ("temp2", "40000", "0"),
            ("temp3", "-128000", "100000"),
            ("temp4", "", "100000"),
        ] {
            planted.write(&format!("sys/class/hwmon/hwmon2/{sensor}_input"), input);
            planted.write(&format!("sys/class/hwmon/hwmon2/{sensor}_crit"), critical);
        }
        planted.write("sys/class/hwmon/hwmon2/in0_input", "12\n");
        let mut samples = Vec::new();
        throttling(&planted.root, &mut samples);
        temperatures(&planted.root, &mut samples);
        assert_eq!(samples[0], Sample::of(Sensor::Throttling, "", 9.0));
        let hot = Sample::of(Sensor::Temperature, "coretemp hwmon2/temp1", 3.0);
        assert_eq!(samples[1], hot);
        assert!(samples[2].value.is_err() && samples[3].value.is_err());
        assert_eq!(samples.len(), 4);
    }
}
