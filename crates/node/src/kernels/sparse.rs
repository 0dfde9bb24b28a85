//! Irregular access: conjugate gradients on a stencil, as HPCCG, and a walk through memory in
//! which each load needs the one before.

use outlive_base::rng::Sequence;

use crate::rows::{Matrix, solve};

type Call = Box<dyn FnMut() -> f64 + Send>;

/// Iterations of one call.
const ITERATIONS: usize = 10;
/// Of a row: 7 values of 8 bytes and places of 4, its end, and four vectors.
const ROW_BYTES: u64 = 7 * 12 + 4 + 4 * 8;

/// The 7-point stencil on a grid: 8 in the diagonal, -1 for each neighbour.
fn stencil(nx: usize, ny: usize, nz: usize) -> Matrix {
    let (mut ends, mut places, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let rows = nx * ny * nz;
    for row in 0..rows {
        let (x, y, z) = (row % nx, row / nx % ny, row / (nx * ny));
        let neighbours = [
            (z > 0, row.wrapping_sub(nx * ny)),
            (y > 0, row.wrapping_sub(nx)),
            (x > 0, row.wrapping_sub(1)),
            (true, row),
            (x + 1 < nx, row + 1),
            (y + 1 < ny, row + nx),
            (z + 1 < nz, row + nx * ny),
        ];
        for (_, place) in neighbours.into_iter().filter(|one| one.0) {
            places.push(place as u32);
            values.push(if place == row { 8.0 } else { -1.0 });
        }
        ends.push(places.len() as u32);
    }
    Matrix {
        ends,
        places,
        values,
    }
}

pub(super) fn cg(bytes: u64) -> (u64, Call) {
    let rows = (bytes / ROW_BYTES) as usize;
    // A flat grid whose size follows the working set closely.
    let side = (rows as f64).cbrt() as usize;
    let deep = rows / (side * side);
    let matrix = stencil(side, side, deep);
    let rows = side * side * deep;
    let mut vectors = [(); 4].map(|()| vec![0.0; rows]);
    let call = move || solve(&matrix, ITERATIONS, &mut vectors);
    (ROW_BYTES * rows as u64, Box::new(call))
}

/// Bytes between two places of the walk: a line of most caches.
const LINE: usize = 64;

/// One circle through all lines in a random order (Sattolo), so that nothing foresees a load.
fn circle(lines: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..lines as u32).collect();
    // The same walk on every machine, so that figures can be compared.
    let mut random = Sequence::new(1, lines as u64);
    for last in (1..lines).rev() {
        order.swap(last, random.below(last as u64) as usize);
    }
    let words = LINE / 4;
    let mut next = vec![0; lines * words];
    for (line, to) in order.iter().enumerate() {
        next[line * words] = to * words as u32;
    }
    next
}

pub(super) fn capacity(bytes: u64) -> (u64, Call) {
    // Places are numbers of 32 bits.
    let lines = (bytes as usize / LINE).min(1 << 27);
    let next = circle(lines);
    let call = move || {
        let (mut at, mut steps) = (0usize, 0u64);
        loop {
            at = next[at] as usize;
            steps += 1;
            if at == 0 {
                return steps as f64;
            }
        }
    };
    ((lines * LINE) as u64, Box::new(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conjugate_gradients_find_the_solution_of_ones() {
        let matrix = stencil(5, 4, 3);
        let mut vectors = [(); 4].map(|()| vec![0.0; 60]);
        let mean = solve(&matrix, 60, &mut vectors);
        assert!((mean - 1.0).abs() < 1e-9, "{mean}");
        assert!(vectors[0].iter().all(|x| (x - 1.0).abs() < 1e-9));
        let early = solve(&matrix, 1, &mut vectors);
        assert!(
            (early - 1.0).abs() > 1e-6,
            "one step is not enough: {early}"
        );
    }

    #[test]
    fn the_walk_visits_every_line_once() {
        for bytes in [4_096, 22_937, 1 << 20] {
            let (held, mut call) = capacity(bytes);
            assert_eq!(call() as u64, held / LINE as u64);
        }
    }
}
