//! What a command of the batch system says, within a bound of time and of bytes.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};

/// What is kept of its standard error, in bytes.
const ERRORS_BYTES_MAX: u64 = 4 << 10;
/// Longest piece of it that is shown, in characters.
const SHOWN_MAX: usize = 200;
/// Between two looks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What the command prints; nothing is waited for longer than `within`. A command that goes on
/// is killed, and buried beside this thread: one that no signal ends costs no more either.
///
/// # Errors
/// What was seen: it cannot be started, failed, said too much, or nothing in time.
pub(super) fn of(
    mut command: Command,
    within: Duration,
    bytes_max: u64,
) -> std::result::Result<String, String> {
    let until = Instant::now() + within;
    let late = || format!("no answer within {} s", within.as_secs_f64());
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| error.to_string())?;
    let out = child.stdout.take().map(|out| read(out, bytes_max + 1));
    let errors = child.stderr.take().map(|out| read(out, ERRORS_BYTES_MAX));
    let said = |from: &Option<Receiver<Vec<u8>>>| from.as_ref()?.recv_deadline(until).ok();
    let printed = said(&out);
    let too_long = printed
        .as_ref()
        .is_some_and(|it| it.len() as u64 > bytes_max);
    let ended = loop {
        match child.try_wait() {
            Ok(None) if printed.is_some() && !too_long && Instant::now() < until => {
                std::thread::sleep(LOOK_EVERY);
            }
            ended => break ended,
        }
    };
    if !matches!(ended, Ok(Some(_))) {
        let _ = child.kill();
        std::thread::spawn(move || child.wait());
    }
    let printed = printed.ok_or_else(late)?;
    if too_long {
        return Err(format!("more than {bytes_max} bytes"));
    }
    let status = ended.map_err(|error| error.to_string())?.ok_or_else(late)?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&printed).into_owned());
    }
    let words = said(&errors).unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    let words: String = words.trim().chars().take(SHOWN_MAX).collect();
    Err(match words.is_empty() {
        true => status.to_string(),
        false => format!("{words} ({status})"),
    })
}

/// The first bytes of a stream, once it has ended or brought so many; it is closed then.
fn read(from: impl Read + Send + 'static, bytes_max: u64) -> Receiver<Vec<u8>> {
    let (to, read) = bounded(1);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.take(bytes_max).read_to_end(&mut bytes);
        let _ = to.send(bytes);
    });
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_script(script: &str, within: Duration) -> std::result::Result<String, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        of(command, within, 1_000)
    }

    #[test]
    fn what_is_said_and_what_goes_wrong() {
        let long = Duration::from_secs(60);
        assert_eq!(of_script("echo one; echo two", long).unwrap(), "one\ntwo\n");
        let failed = of_script("echo half; echo no controller >&2; exit 3", long).unwrap_err();
        assert!(
            failed.starts_with("no controller (") && failed.contains('3'),
            "{failed}"
        );
        let killed = of_script("kill -9 $$", long).unwrap_err();
        assert!(killed.contains("signal"), "{killed}");
        let endless = of_script("yes", long).unwrap_err();
        assert_eq!(endless, "more than 1000 bytes");
        let missing = of(Command::new("/no/such/program"), long, 10).unwrap_err();
        assert!(missing.contains("No such file"), "{missing}");
    }

    /// Also what has closed its output and goes on, or left a child that holds it.
    #[test]
    fn what_hangs_is_given_up() {
        let short = Duration::from_millis(100);
        for hangs in [
            "exec sleep 1000",
            "echo x; exec sleep 1000 >&- 2>&-",
            "sleep 3 & echo x",
        ] {
            let late = of_script(hangs, short).unwrap_err();
            assert_eq!(late, "no answer within 0.1 s", "{hangs}");
        }
    }
}
