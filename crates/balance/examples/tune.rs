use outlive_balance::{
    diffusion, geometric, metrics,
    scenario::{Kind, Scenario},
};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let get = |n: &str, d: f64| {
        a.iter()
            .position(|x| x == n)
            .map_or(d, |i| a[i + 1].parse().unwrap())
    };
    let kind = if a.iter().any(|x| x == "cloud") {
        Kind::Cloud
    } else {
        Kind::Shock
    };
    let p = get("-p", 384.0) as usize;
    let (from, steps) = (get("-f", 80.0) as u32, get("-s", 6.0) as u32);
    let mut s = Scenario::new(kind, p, get("-k", 1.0) as usize, 1).unwrap();
    let mut o = diffusion::Options::default();
    o.tolerance = get("-t", o.tolerance);
    o.migration_price = get("-m", o.migration_price);
    o.band_depth = get("-d", 3.0) as u32;
    o.sweeps = get("-w", 1.0) as u32;
    o.passes = get("-q", 2.0) as u32;
    o.rounds_max = get("-r", 6.0) as u32;
    s.go_to(from).unwrap();
    let mut parts = geometric::bisection(&s.graph, &s.processes).unwrap();
    let m = metrics::measure(&s.graph, &s.processes, &parts, &parts);
    println!(
        "rcb imb {:.4} cutmax {:.4} cut {}",
        m.imbalance, m.edge_cut_max, m.edge_cut_total
    );
    for step in from + 1..=from + steps {
        s.go_to(step).unwrap();
        let t = std::time::Instant::now();
        let r = diffusion::balance(&s.graph, &s.processes, &parts, &o).unwrap();
        let el = t.elapsed().as_secs_f64();
        let before = metrics::measure(&s.graph, &s.processes, &parts, &parts);
        let m = metrics::measure(&s.graph, &s.processes, &parts, &r.parts);
        let ns = el * 1e9 / r.cost.operations_total as f64;
        println!(
            "{step} before {:.3} imb {:.4} mig {:.4} migtot {:.4} cutmax {:.4} cut {} rounds {} it {} R {} ops {} msg {} bytes {} ns/op {:.2} modelled {:.3} ms real {:.2}s nbmax {}",
            before.imbalance,
            m.imbalance,
            m.migration,
            m.migration_total,
            m.edge_cut_max,
            m.edge_cut_total,
            r.rounds,
            r.cost.iterations,
            r.cost.rounds,
            r.cost.operations_max,
            r.cost.messages_max,
            r.cost.bytes_max,
            ns,
            1e3 * r.cost.seconds(&Default::default(), ns),
            el,
            m.neighbours_max
        );
        parts = r.parts;
    }
}
