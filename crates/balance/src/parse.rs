//! Text formats: METIS graphs, MatrixMarket matrices, partitions.
//!
//! Bytes come from outside (P7): nothing here panics, and nothing is reserved
//! that the bytes given could not fill. Lines are numbered from 1.

use std::fmt::Write as _;

use outlive_base::count;

use crate::error::BalanceError;
use crate::graph::Graph;
use crate::processes::Processes;

type Result<T> = std::result::Result<T, BalanceError>;

/// A METIS `.graph` file (METIS manual 5.1, section 4.1): a header `tasks edges
/// [format [constraints]]`, then a line a task: `[size] [weight] (neighbour
/// [edge weight])...`, numbered from 1. Comments start with `%`. Vertex sizes
/// are read over; one constraint is supported. Weights may be decimal fractions.
///
/// # Errors
/// `CutOff`, `Syntax` or `Dialect` with the line; whatever [`Graph::new`] refuses.
pub fn metis(bytes: &[u8]) -> Result<Graph> {
    let mut lines = Lines::new(bytes);
    let (line, header) = lines.next_data().ok_or_else(|| cut_off(1, "no header"))?;
    let fields: Vec<&str> = text(line, header)?.split_ascii_whitespace().collect();
    if !(2..=4).contains(&fields.len()) {
        return Err(syntax(line, "the header needs 2 to 4 numbers"));
    }
    let tasks: usize = number(line, fields[0])?;
    let edges: usize = number(line, fields[1])?;
    let format = fields.get(2).copied().unwrap_or("0");
    if format.len() > 3 || !format.bytes().all(|b| b == b'0' || b == b'1') {
        return Err(dialect(line, format!("format {format}")));
    }
    let flag =
        |place: usize| format.len() > place && format.as_bytes()[format.len() - 1 - place] == b'1';
    let (edge_weighted, task_weighted, sized) = (flag(0), flag(1), flag(2));
    if fields.get(3).is_some_and(|&constraints| constraints != "1") {
        return Err(dialect(line, format!("{} constraints", fields[3])));
    }
    if tasks > bytes.len() {
        return Err(cut_off(
            line,
            format!("{} announced", count(tasks as u64, "task")),
        ));
    }
    let mut offsets = vec![0];
    let (mut to, mut edge_weights, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for task in 0..tasks {
        let (line, row) = lines.next_row().ok_or_else(|| {
            cut_off(
                lines.line,
                format!("there are {task} of {}", count(tasks as u64, "task")),
            )
        })?;
        let mut words = text(line, row)?.split_ascii_whitespace();
        if sized {
            words.next();
        }
        if task_weighted {
            let word = words.next().ok_or_else(|| cut_off(line, "no weight"))?;
            weights.push(number::<f64>(line, word)?);
        }
        while let Some(word) = words.next() {
            let neighbour: u64 = number(line, word)?;
            if neighbour == 0 || neighbour > tasks as u64 {
                return Err(syntax(line, format!("no task has number {neighbour}")));
            }
            to.push((neighbour - 1) as u32);
            if edge_weighted {
                let word = words
                    .next()
                    .ok_or_else(|| cut_off(line, "no edge weight"))?;
                edge_weights.push(number::<f64>(line, word)?);
            }
        }
        offsets.push(to.len());
    }
    if let Some((line, _)) = lines.next_data() {
        return Err(syntax(line, "more lines than tasks"));
    }
    if to.len() != edges.saturating_mul(2) {
        return Err(cut_off(
            lines.line,
            format!(
                "{} of {} neighbour entries are there",
                to.len(),
                edges.saturating_mul(2)
            ),
        ));
    }
    Graph::new(offsets, to, edge_weights, weights)
}

/// Writes a METIS `.graph` with task and edge weights, as [`metis`] reads it.
pub fn write_metis(graph: &Graph) -> String {
    let mut out = format!("{} {} 011\n", graph.tasks(), graph.edges());
    for task in 0..graph.tasks() as u32 {
        // Writing to a String cannot fail.
        let _ = write!(out, "{}", graph.weight(task));
        for (to, weight) in graph.adjacent(task) {
            let _ = write!(out, " {} {weight}", to + 1);
        }
        out.push('\n');
    }
    out
}

/// A MatrixMarket `.mtx` file (Boisvert, Pozo, Remington 1996): coordinate form,
/// square, `general` or `symmetric`, with real, integer or pattern entries. A
/// task is a row; its weight is the number of entries of the row (at least 1),
/// the work of a product with a vector; entries off the diagonal are edges of
/// weight 1. The pattern of a general matrix must be symmetric.
///
/// # Errors
/// `CutOff`, `Syntax` or `Dialect` with the line; `Asymmetric`; `Duplicate`.
pub fn matrix_market(bytes: &[u8]) -> Result<Graph> {
    let mut lines = Lines::new(bytes);
    let (line, banner) = lines.next_row().ok_or_else(|| cut_off(1, "no banner"))?;
    let banner = text(line, banner)?.to_ascii_lowercase();
    let words: Vec<&str> = banner.split_ascii_whitespace().collect();
    let ["%%matrixmarket", "matrix", "coordinate", field, symmetry] = words[..] else {
        return Err(dialect(line, "no coordinate matrix"));
    };
    let values = match field {
        "real" | "integer" => 1,
        "pattern" => 0,
        "complex" => 2,
        _ => return Err(dialect(line, format!("field {field}"))),
    };
    let symmetric = match symmetry {
        "general" => false,
        "symmetric" | "skew-symmetric" | "hermitian" => true,
        _ => return Err(dialect(line, format!("symmetry {symmetry}"))),
    };
    let (line, sizes) = lines.next_data().ok_or_else(|| cut_off(line, "no sizes"))?;
    let sizes = numbers::<3>(line, sizes, 3)?;
    let [rows, columns, entries] = sizes.map(|size| size as usize);
    if rows != columns {
        return Err(dialect(
            line,
            format!(
                "{} and {}",
                count(rows as u64, "row"),
                count(columns as u64, "column")
            ),
        ));
    }
    if entries > bytes.len() || rows > entries.saturating_mul(2).saturating_add(bytes.len()) {
        return Err(cut_off(
            line,
            format!(
                "{} and {} announced",
                count(rows as u64, "row"),
                count(entries as u64, "entry")
            ),
        ));
    }
    let mut weights = vec![0.0; rows];
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    for entry in 0..entries {
        let (line, row) = lines.next_data().ok_or_else(|| {
            cut_off(
                lines.line,
                format!("there are {entry} of {}", count(entries as u64, "entry")),
            )
        })?;
        let [i, j] = numbers::<2>(line, row, 2 + values)?;
        if i == 0 || j == 0 || i.max(j) > rows as u64 {
            return Err(syntax(line, format!("no entry ({i}, {j})")));
        }
        let (i, j) = ((i - 1) as u32, (j - 1) as u32);
        weights[i as usize] += 1.0;
        if i != j {
            pairs.push((i, j));
            if symmetric {
                weights[j as usize] += 1.0;
                pairs.push((j, i));
            }
        }
    }
    if let Some((line, _)) = lines.next_data() {
        return Err(syntax(line, "more lines than entries"));
    }
    from_entries(rows, pairs, weights)
}

/// A graph from sorted-out matrix entries off the diagonal, in both directions.
fn from_entries(rows: usize, mut pairs: Vec<(u32, u32)>, mut weights: Vec<f64>) -> Result<Graph> {
    pairs.sort_unstable();
    let mut offsets = vec![0usize; rows + 1];
    for &(i, _) in &pairs {
        offsets[i as usize + 1] += 1;
    }
    for row in 0..rows {
        offsets[row + 1] += offsets[row];
    }
    weights
        .iter_mut()
        .for_each(|weight| *weight = f64::max(*weight, 1.0));
    Graph::new(
        offsets,
        pairs.iter().map(|p| p.1).collect(),
        vec![],
        weights,
    )
}

/// A partition: the part of each task, a line each, from 0, as METIS writes it.
///
/// # Errors
/// `CutOff` or `Syntax` if the file has another number of lines than `tasks`;
/// `Range` if a part is not below `parts`.
pub fn partition(bytes: &[u8], tasks: usize, parts: usize) -> Result<Vec<u32>> {
    let mut lines = Lines::new(bytes);
    let mut found = Vec::new();
    while let Some((line, row)) = lines.next_data() {
        let part: u64 = number(line, text(line, row)?.trim())?;
        if part >= parts as u64 {
            return Err(BalanceError::Range {
                what: "part",
                value: part,
                bound: parts as u64,
            });
        }
        if found.len() == tasks {
            return Err(syntax(line, "more lines than tasks"));
        }
        found.push(part as u32);
    }
    if found.len() < tasks {
        let what = format!(
            "there are {} of {}",
            found.len(),
            count(tasks as u64, "part")
        );
        return Err(cut_off(lines.line, what));
    }
    Ok(found)
}

/// What so many `processes` can do, a line each: the speed and, if there is any, the load
/// that cannot move. Lines that begin with `%` are comments.
///
/// # Errors
/// `CutOff` or `Syntax` if the file has another number of lines than processes; what
/// [`Processes::new`] refuses.
pub fn capacities(bytes: &[u8], processes: usize) -> Result<Processes> {
    let mut lines = Lines::new(bytes);
    let (mut speeds, mut background) = (Vec::new(), Vec::new());
    while let Some((line, row)) = lines.next_data() {
        let words: Vec<&str> = text(line, row)?.split_ascii_whitespace().collect();
        if words.len() > 2 {
            return Err(syntax(line, "more than a speed and a load"));
        }
        if speeds.len() == processes {
            return Err(syntax(line, "more lines than processes"));
        }
        speeds.push(number(line, words[0])?);
        background.push(match words.get(1) {
            Some(word) => number(line, word)?,
            None => 0.0,
        });
    }
    if speeds.len() < processes {
        let what = format!(
            "there are {} of {}",
            speeds.len(),
            count(processes as u64, "process")
        );
        return Err(cut_off(lines.line, what));
    }
    Processes::new(speeds, background)
}

/// Writes a partition, as [`partition`] reads it.
pub fn write_partition(parts: &[u32]) -> String {
    let mut out = String::with_capacity(parts.len() * 4);
    for part in parts {
        let _ = writeln!(out, "{part}");
    }
    out
}

struct Lines<'a> {
    rest: &'a [u8],
    line: usize,
}

impl<'a> Lines<'a> {
    fn new(bytes: &'a [u8]) -> Lines<'a> {
        Lines {
            rest: bytes,
            line: 0,
        }
    }
    fn next_any(&mut self) -> Option<(usize, &'a [u8])> {
        if self.rest.is_empty() {
            return None;
        }
        self.line += 1;
        let end = self.rest.iter().position(|&b| b == b'\n');
        let (row, rest) = match end {
            Some(end) => (&self.rest[..end], &self.rest[end + 1..]),
            None => (self.rest, &[][..]),
        };
        self.rest = rest;
        Some((self.line, row))
    }
    /// The next line that is no METIS comment; the banner of a matrix counts.
    fn next_row(&mut self) -> Option<(usize, &'a [u8])> {
        loop {
            let (line, row) = self.next_any()?;
            if !row.starts_with(b"%") || row.starts_with(b"%%") {
                return Some((line, row));
            }
        }
    }
    /// The next line that is neither a comment nor blank.
    fn next_data(&mut self) -> Option<(usize, &'a [u8])> {
        loop {
            let (line, row) = self.next_any()?;
            if !row.starts_with(b"%") && !row.iter().all(u8::is_ascii_whitespace) {
                return Some((line, row));
            }
        }
    }
}

fn text(line: usize, row: &[u8]) -> Result<&str> {
    core::str::from_utf8(row).map_err(|_| syntax(line, "not text"))
}

fn number<T: core::str::FromStr>(line: usize, word: &str) -> Result<T> {
    word.parse().map_err(|_| {
        syntax(
            line,
            format!("'{}' is not a number that fits here", clip(word)),
        )
    })
}

/// The first `N` of exactly `words` words as numbers.
fn numbers<const N: usize>(line: usize, row: &[u8], words: usize) -> Result<[u64; N]> {
    let all: Vec<&str> = text(line, row)?
        .split_ascii_whitespace()
        .take(words + 1)
        .collect();
    if all.len() < words {
        return Err(cut_off(
            line,
            format!("{} of {}", all.len(), count(words as u64, "number")),
        ));
    }
    if all.len() > words {
        return Err(syntax(
            line,
            format!("more than {}", count(words as u64, "number")),
        ));
    }
    let mut out = [0; N];
    for (slot, word) in out.iter_mut().zip(all) {
        *slot = number(line, word)?;
    }
    Ok(out)
}

fn clip(word: &str) -> String {
    word.chars().take(40).collect()
}
fn syntax(line: usize, what: impl Into<String>) -> BalanceError {
    let what = what.into();
    BalanceError::Syntax { line, what }
}
fn cut_off(line: usize, what: impl Into<String>) -> BalanceError {
    let what = what.into();
    BalanceError::CutOff { line, what }
}
fn dialect(line: usize, what: impl Into<String>) -> BalanceError {
    let what = what.into();
    BalanceError::Dialect { line, what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::Code;

    #[test]
    fn graphs_round_trip_and_the_manual_example_is_read() {
        let mesh = Graph::mesh(3, 2, 2);
        let mut mesh_read = metis(write_metis(&mesh).as_bytes()).unwrap();
        mesh_read = mesh_read
            .with_coordinates(mesh.coordinates().unwrap().to_vec())
            .unwrap();
        assert_eq!(mesh_read, mesh);
        let sized = b"% a comment\n3 2 111 1\n1 4 2 1\n9 2 1 1 3 2\n1 6 2 2\n";
        let graph = metis(sized).unwrap();
        assert_eq!(graph.weights(), [4.0, 2.0, 6.0]);
        assert_eq!(graph.adjacent(1).collect::<Vec<_>>(), [(0, 1.0), (2, 2.0)]);
        let lonely = metis(b"2 0\n\n\n").unwrap();
        assert_eq!((lonely.tasks(), lonely.edges()), (2, 0));
    }

    #[test]
    fn every_cut_of_a_file_is_refused_or_still_whole_and_never_panics() {
        let whole = write_metis(&Graph::mesh(4, 3, 1));
        for cut in 0..whole.len() - 1 {
            if let Err(error) = metis(&whole.as_bytes()[..cut]) {
                assert!(
                    matches!(
                        error.code(),
                        Code::Truncated | Code::Corrupt | Code::InvalidArgument
                    ),
                    "{cut}: {error}"
                );
            } else {
                panic!("{cut} bytes were taken for the whole file");
            }
        }
        let mtx =
            b"%%MatrixMarket matrix coordinate pattern symmetric\n% c\n3 3 4\n1 1\n2 1\n3 2\n3 3\n";
        let graph = matrix_market(mtx).unwrap();
        assert_eq!(graph.weights(), [2.0, 2.0, 2.0]);
        for cut in 0..mtx.len() - 3 {
            assert!(matrix_market(&mtx[..cut]).is_err(), "{cut}");
        }
        assert_eq!(partition(b"0\n1\n1\n", 3, 2), Ok(vec![0, 1, 1]));
        assert_eq!(
            partition(b"0\n1\n", 3, 2).unwrap_err().code(),
            Code::Truncated
        );
        assert_eq!(
            partition(b"0\n2\n1", 3, 2).unwrap_err().code(),
            Code::InvalidArgument
        );
        assert_eq!(
            partition(b"0\nx\n1", 3, 2).unwrap_err().code(),
            Code::Corrupt
        );
    }

    #[test]
    fn capacities_have_a_line_a_process() {
        let read = capacities(b"% speed load\n1 2.5\n0\n3\n", 3).unwrap();
        assert_eq!(read.speeds(), [1.0, 0.0, 3.0]);
        assert_eq!(read.background(), [2.5, 0.0, 0.0]);
        let code = |text: &str| capacities(text.as_bytes(), 2).unwrap_err().code();
        assert_eq!(code("1\n"), Code::Truncated);
        assert_eq!(code(""), Code::Truncated);
        assert_eq!(code("1\n1\n1\n"), Code::Corrupt);
        assert_eq!(code("1 2 3\n1\n"), Code::Corrupt);
        assert_eq!(code("1\nfast\n"), Code::Corrupt);
        for bad in ["0\n0\n", "1\n-1\n", "1\nnan\n", "1 inf\n1\n", "1 -2\n1\n"] {
            assert_eq!(code(bad), Code::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn dialects_and_lies_in_the_header_are_refused() {
        let code = |text: &str| metis(text.as_bytes()).unwrap_err().code();
        assert_eq!(code("2 1 0 2\n2\n1\n"), Code::FormatUnknown);
        assert_eq!(code("2 1 7\n2\n1\n"), Code::FormatUnknown);
        assert_eq!(code("18446744073709551615 1\n2\n1\n"), Code::Truncated);
        assert_eq!(code("99999999999999999999 1\n"), Code::Corrupt);
        assert_eq!(code("2 1\n3\n1\n"), Code::Corrupt);
        assert_eq!(code("2 1\n2\n\n"), Code::Truncated);
        assert_eq!(code("1 1\n1 1\n"), Code::InvalidArgument);
        assert_eq!(code("2 1 011\n1 2 0\n1 1 0\n"), Code::InvalidArgument);
        let general = b"%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 3.5\n";
        assert_eq!(
            matrix_market(general).unwrap_err(),
            BalanceError::Asymmetric { from: 0, to: 1 }
        );
        assert!(matrix_market(b"%%MatrixMarket matrix array real general\n2 2\n").is_err());
    }
}
