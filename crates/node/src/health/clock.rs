//! The clock: whether it is kept in step, and whether somebody has set it.

use outlive_control::health::{Sample, Sensor};
use rustix::time::{ClockId, clock_gettime};

pub(super) fn read(samples: &mut Vec<Sample>) {
    match kernel() {
        Ok((status, error_us)) => kept(status, error_us, samples),
        Err(error) => {
            let reason = error.to_string();
            samples.push(Sample::unknown(Sensor::ClockUnsynchronised, "", reason));
        }
    }
    let seconds = |clock| {
        let now = clock_gettime(clock);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    // The clock that nobody sets, and that runs while the machine sleeps.
    let apart = seconds(ClockId::Realtime) - seconds(ClockId::Boottime);
    samples.push(Sample::of(Sensor::ClockJump, "", apart));
}

/// What the kernel says of its clock: status bits, and the error as whoever keeps it estimates it,
/// in microseconds.
fn kernel() -> std::io::Result<(i32, i64)> {
    // SAFETY: all of its fields are integers, for which zero is a value; no mode asks for a change.
    let mut clock: libc::timex = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel fills the structure that the pointer names, and nothing else.
    match unsafe { libc::adjtimex(&raw mut clock) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok((clock.status, clock.esterror)),
    }
}

fn kept(status: i32, error_us: i64, samples: &mut Vec<Sample>) {
    let alone = status & libc::STA_UNSYNC != 0;
    let value = f64::from(u8::from(alone));
    samples.push(Sample::of(Sensor::ClockUnsynchronised, "", value));
    // Of a clock that nobody keeps nobody knows its error.
    if !alone {
        let error_ms = error_us as f64 / 1e3;
        samples.push(Sample::of(Sensor::ClockError, "", error_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_clock_is_known_where_somebody_keeps_it() {
        let mut samples = Vec::new();
        kept(libc::STA_PLL, 2_500, &mut samples);
        kept(libc::STA_PLL | libc::STA_UNSYNC, 16_000_000, &mut samples);
        assert_eq!(
            samples,
            [
                Sample::of(Sensor::ClockUnsynchronised, "", 0.0),
                Sample::of(Sensor::ClockError, "", 2.5),
                Sample::of(Sensor::ClockUnsynchronised, "", 1.0)
            ]
        );
    }

    #[test]
    fn this_machine_has_a_clock() {
        let mut samples = Vec::new();
        read(&mut samples);
        let jump = samples.iter().find(|it| it.sensor == Sensor::ClockJump);
        assert!(jump.unwrap().value.is_ok());
    }
}
