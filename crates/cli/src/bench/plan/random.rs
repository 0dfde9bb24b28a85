//! Random machines of 50,000 nodes with three to five levels, and jobs on them: what a
//! planner may be asked.

use std::fmt::Write as _;

use outlive_base::rng::Sequence;

/// Draws of one machine.
struct Draw(Sequence);

impl Draw {
    /// Uniform on a logarithmic scale.
    fn between(&mut self, from: f64, to: f64) -> f64 {
        let share = self.0.below(1 << 32) as f64 / (1_u64 << 32) as f64;
        from * (to / from).powf(share)
    }
    fn chance(&mut self, percent: u32) -> bool {
        self.0.chance(percent * 10_000)
    }
}

/// A level besides the local one: its text up to its rates, and bytes per second from and to.
struct Candidate {
    text: &'static str,
    from: f64,
    to: f64,
    unit: &'static str,
}

const XOR: Candidate = Candidate {
    text: "kind = \"xor\"\ngroup = 16",
    from: 1.0,
    to: 16.0,
    unit: "GB/s",
};
const RS: Candidate = Candidate {
    text: "kind = \"rs\"\ngroup = 16\nparity = 2",
    ..XOR
};
const PARTNER: Candidate = Candidate {
    text: "kind = \"partner\"\ndistance = 64",
    to: 10.0,
    ..XOR
};
const BUFFER: Candidate = Candidate {
    text: "kind = \"shared\"\nservers = \"buffer\"",
    from: 10.0,
    to: 80.0,
    unit: "TB/s",
};
const FILES: Candidate = Candidate {
    text: "kind = \"shared\"\nservers = \"files\"",
    from: 2.0,
    to: 30.0,
    unit: "TB/s",
};
/// Which of the three middle levels there are; all of them twice as often.
const MIDDLE: [[bool; 3]; 7] = [
    [true, true, true],
    [true, true, false],
    [true, false, true],
    [false, true, true],
    [true, false, false],
    [false, true, false],
    [true, true, true],
];

/// The texts of a machine and of a job on it: failures of nodes, with or without those of
/// racks and of power supplies that cut across them; 6 to 240 GB a node; in three of five
/// machines four of five levels are written in the background, in every second the buffer is away
/// until it is repaired.
pub fn texts(seed: u64) -> (String, String) {
    let mut draw = Draw(Sequence::new(seed, 0));
    let mut text = format!(
        "name = \"random\"\n[nodes]\ncount = 50000\nmtbf = \"{:.0} h\"\nlight-mtbf = \"{:.0} h\"\n",
        draw.between(4e3, 1e5),
        draw.between(1e4, 2e5)
    );
    for (name, layout) in [("rack", "size = 64"), ("power", "size = 16\nstride = 64")] {
        if draw.chance(50) {
            let mtbf = draw.between(5e4, 1e6);
            let _ = write!(
                text,
                "[[groups]]\nname = \"{name}\"\n{layout}\nmtbf = \"{mtbf:.0} h\"\n"
            );
        }
    }
    let _ = write!(
        text,
        "[[servers]]\nname = \"files\"\ncount = 1\n[[servers]]\nname = \"buffer\"\ncount = 1\nmtbf = \"{:.0} h\"\n",
        draw.between(2e3, 1e5)
    );
    if draw.chance(50) {
        let (median, sigma) = (draw.between(1.0, 24.0), draw.between(0.5, 1.5));
        let _ = writeln!(
            text,
            "repair = {{ median = \"{median:.2} h\", sigma = {sigma:.2} }}"
        );
    }
    let background = draw.chance(60);
    let middle = MIDDLE[draw.0.below(MIDDLE.len() as u64) as usize];
    let _ = write!(
        text,
        "[[levels]]\nkind = \"local\"\nwrite = \"{:.3} GB/s\"\nread = \"{:.3} GB/s\"\n",
        draw.between(2.0, 40.0),
        draw.between(2.0, 40.0)
    );
    let parity = if draw.chance(50) { XOR } else { RS };
    let levels = [
        (middle[0], parity),
        (middle[1], PARTNER),
        (middle[2], BUFFER),
        (true, FILES),
    ];
    for (used, kind) in levels {
        let Candidate { from, to, unit, .. } = kind;
        let (write, read) = (draw.between(from, to), draw.between(from, to));
        let asynchronous = background && draw.chance(80);
        if used {
            let _ = write!(
                text,
                "[[levels]]\n{}\nwrite = \"{write:.3} {unit}\"\nread = \"{read:.3} {unit}\"\nasynchronous = {asynchronous}\n",
                kind.text
            );
        }
    }
    let job = format!(
        "nodes = 50000\nwork = \"100 h\"\ncheckpoint = \"{:.1} GB\"\nrestart = \"{:.0} s\"\n",
        draw.between(6.0, 240.0),
        draw.between(10.0, 120.0)
    );
    (text, job)
}
