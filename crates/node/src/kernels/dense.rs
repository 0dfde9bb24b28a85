//! Dense kernels: matrix multiplication, McCalpin's STREAM, forces among bodies.

type Call = Box<dyn FnMut() -> f64 + Send>;

/// C = A B for square matrices in rows.
type Multiply = fn(usize, &[f64], &[f64], &mut [f64]);

fn filled(count: usize) -> Vec<f64> {
    (0..count).map(|at| 1.0 + (at % 7) as f64 / 8.0).collect()
}

pub(super) fn dgemm(bytes: u64, multiply: Multiply) -> (u64, Call) {
    let size = (bytes / 24).isqrt() as usize;
    let (a, b) = (filled(size * size), filled(size * size));
    let mut c = vec![0.0; size * size];
    let call = move || {
        multiply(size, &a, &b, &mut c);
        c.iter().sum()
    };
    (24 * (size * size) as u64, Box::new(call))
}

/// Inner products: the sum is one chain, which the compiler may not reorder into vectors.
pub(super) fn naive(size: usize, a: &[f64], b: &[f64], c: &mut [f64]) {
    for i in 0..size {
        for j in 0..size {
            c[i * size + j] = (0..size).map(|k| a[i * size + k] * b[k * size + j]).sum();
        }
    }
}

/// Rows added to rows: independent sums, which the compiler makes into vectors.
pub(super) fn vector(size: usize, a: &[f64], b: &[f64], c: &mut [f64]) {
    c.fill(0.0);
    for (row, a) in c.chunks_exact_mut(size).zip(a.chunks_exact(size)) {
        for (&factor, b) in a.iter().zip(b.chunks_exact(size)) {
            for (sum, &value) in row.iter_mut().zip(b) {
                *sum += factor * value;
            }
        }
    }
}

/// Copy, scale, add and triad, from the same begin at each call.
pub(super) fn stream(bytes: u64) -> (u64, Call) {
    let count = (bytes / 24) as usize;
    let (mut a, mut b, mut c) = (vec![0.0; count], vec![0.0; count], vec![0.0; count]);
    let call = move || {
        a.fill(1.0);
        c.copy_from_slice(&a);
        b.iter_mut().zip(&c).for_each(|(b, c)| *b = 3.0 * c);
        c.iter_mut()
            .zip(a.iter().zip(&b))
            .for_each(|(c, (a, b))| *c = a + b);
        a.iter_mut()
            .zip(b.iter().zip(&c))
            .for_each(|(a, (b, c))| *a = b + 3.0 * c);
        a.iter().sum::<f64>() / count as f64
    };
    (24 * count as u64, Box::new(call))
}

/// At most so many bodies feel each force: the work of a call grows with the working set,
/// not with its square.
const PARTNERS_MAX: usize = 256;

/// Short-range softened gravity, as HACCmk computes it: positions are read in order.
pub(super) fn nbody(bytes: u64) -> (u64, Call) {
    let count = (bytes / 48) as usize;
    let place = |at: usize, by: usize| ((at * by) % 1_009) as f64 / 1_009.0;
    let [x, y, z] = [7, 31, 211].map(|by| (0..count).map(|at| place(at, by)).collect::<Vec<_>>());
    let mut force = [vec![0.0; count], vec![0.0; count], vec![0.0; count]];
    let call = move || {
        let centre = count.min(PARTNERS_MAX);
        for i in 0..count {
            let mut sum = [0.0; 3];
            for j in 0..centre {
                let (dx, dy, dz) = (x[j] - x[i], y[j] - y[i], z[j] - z[i]);
                let square = dx * dx + dy * dy + dz * dz + 0.01;
                let weight = 1.0 / (square * square.sqrt());
                sum[0] += weight * dx;
                sum[1] += weight * dy;
                sum[2] += weight * dz;
            }
            force
                .iter_mut()
                .zip(sum)
                .for_each(|(force, sum)| force[i] = sum);
        }
        force.iter().flatten().map(|one| one.abs()).sum()
    };
    (48 * count as u64, Box::new(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_products_are_those_of_the_definition() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
        for multiply in [naive as Multiply, vector] {
            let mut c = [9.0; 4];
            multiply(2, &a, &b, &mut c);
            assert_eq!(c, [19.0, 22.0, 43.0, 50.0]);
        }
    }

    #[test]
    fn stream_has_the_value_of_its_four_steps() {
        // a = 1, c = 1, b = 3, c = 4, a = 3 + 12.
        assert_eq!(stream(24_000).1(), 15.0);
    }
}
