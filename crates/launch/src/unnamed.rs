//! Jobs whose name was made up for one run: nobody will ask for what they keep once they
//! have ended well, and whoever wants to go on with one that failed must be told its name.

use std::path::PathBuf;

use outlive_base::{Code, JobName};

use crate::delete::Deletion;
use crate::record::metrics;
use crate::run::Run;
use crate::timeline::Timeline;

/// A job whose name nobody chose.
pub(crate) struct Unnamed {
    job: JobName,
    /// The store, and where the nodes keep their data; true if they are there already.
    places: Vec<(PathBuf, bool)>,
    /// The file of its numbers, if there is one.
    metrics: Option<PathBuf>,
    timeline: Timeline,
}

impl Unnamed {
    pub(crate) fn new(run: &Run) -> Unnamed {
        let places = std::iter::once(&run.store).chain(&run.node_storage);
        Unnamed {
            job: run.settings.job.clone(),
            places: places.map(|path| (path.clone(), path.exists())).collect(),
            metrics: run
                .metrics
                .as_deref()
                .map(|path| metrics::file(path, &run.settings.job)),
            timeline: run.timeline,
        }
    }

    /// Nobody will ask for what it kept.
    pub(crate) fn leaves(self) {
        let store = &self.places[0].0;
        let nodes = self.places.get(1).map(|(path, _)| path.as_path());
        let deletion = Deletion::prepare(store, &self.job, nodes);
        match deletion.and_then(Deletion::carry_out_unless_pinned) {
            Ok(false) => return self.stays(),
            Err(error) if error.code() != Code::NotFound => self.timeline.error(&error),
            _ => {}
        }
        if let Some(path) = &self.metrics {
            // A device, as /dev/null, stays.
            let _ = path.is_file().then(|| std::fs::remove_file(path));
        }
        for (path, _) in self.places.iter().filter(|(_, there)| !there) {
            // Another job may be in it by now.
            let _ = std::fs::remove_dir(path);
        }
    }

    /// It may go on: says how.
    pub(crate) fn stays(&self) {
        let (store, job) = (&self.places[0].0, &self.job);
        let dir = store.join(job.as_str());
        self.timeline.say(&format!(
            "what it stored stays in {}\n  \
             to go on: the same command with --job {job}\n  \
             to delete it: outlive checkpoints delete {job} --store {}",
            dir.display(),
            store.display()
        ));
    }
}
