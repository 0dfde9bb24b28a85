//! Writing to standard output and standard error.

use std::io::Write;
use std::path::Path;

use outlive_base::{Error, Result};
use outlive_launch::timeline::error_line;
use serde::Serialize;

/// Shows an error: the line and its remedy.
pub fn error(error: &Error) {
    let mut to = std::io::stderr().lock();
    let _ = writeln!(to, "{}\n  remedy: {}", error_line(error), error.remedy());
}

/// Says what does not stop the command.
pub fn warn(what: &str) {
    let _ = writeln!(std::io::stderr().lock(), "outlive: warning: {what}");
}

/// Says what a service does.
pub fn note(what: &str) {
    let _ = writeln!(std::io::stderr().lock(), "outlive: {what}");
}

/// Writes bytes to standard output. A reader that went away (`| head`) is no error.
pub fn bytes(bytes: &[u8]) -> Result<u8> {
    let mut to = std::io::stdout().lock();
    match to.write_all(bytes).and_then(|()| to.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("standard output", "write", &error))
        }
        _ => Ok(0),
    }
}

/// Writes bytes to a file that the user named, or to standard output for `-`.
pub fn to(path: &Path, content: &[u8]) -> Result<u8> {
    if path == Path::new("-") {
        return bytes(content);
    }
    // As any file of the user's, who may want to show it to others.
    std::fs::write(path, content).map_err(|error| Error::io(path, "write", &error))?;
    Ok(0)
}

/// Writes text and a line feed.
pub fn text(text: &str) -> Result<u8> {
    bytes(format!("{text}\n").as_bytes())
}

/// Writes text and a line feed; false if the reader went away.
pub fn is_read(text: &str) -> Result<bool> {
    let mut to = std::io::stdout().lock();
    match writeln!(to, "{text}").and_then(|()| to.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::io("standard output", "write", &error)),
    }
}

/// Writes a value as JSON.
pub fn json(value: &impl Serialize) -> Result<u8> {
    let text_of = serde_json::to_string_pretty(value)
        .map_err(|error| Error::internal(format!("JSON: {error}")))?;
    text(&text_of)
}

/// Lines up columns; the first row is the heading.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["a".into(), "long".into()],
            vec!["bcd".into(), "x".into()],
        ];
        assert_eq!(table(&rows), "a    long\nbcd  x");
    }
}
