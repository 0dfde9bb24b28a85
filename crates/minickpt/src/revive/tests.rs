//! What is tried, given up and left to another attempt.

use std::cell::Cell;

use super::*;

#[test]
fn only_the_memory_of_programs_is_swept() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["p12-1", "p-1", "p1-x", "data-1"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    for name in ["shared-3", "shared-x", "journal", "last.json"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    sweep(dir.path()).unwrap();
    let names = std::fs::read_dir(dir.path()).unwrap();
    let mut names: Vec<_> = names.map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        ["data-1", "journal", "last.json", "p-1", "p1-x", "shared-x"]
    );
}

/// A module that holds one image.
struct Fake {
    query: Query,
    image: Vec<u8>,
    acknowledged: Cell<Option<u64>>,
    attempts: Cell<u32>,
}

impl Keeper for Fake {
    fn query(&self) -> Result<Query> {
        Ok(self.query)
    }
    fn image(&self, _query: &Query) -> Result<Vec<u8>> {
        Ok(self.image.clone())
    }
    fn acknowledge(&self, generation: u64) -> Result<()> {
        self.acknowledged.set(Some(generation));
        Ok(())
    }
    fn attempted(&self) -> Result<u32> {
        self.attempts.set(self.attempts.get() + 1);
        Ok(self.attempts.get())
    }
}

fn fake(state: State, image: Vec<u8>) -> Fake {
    Fake {
        query: Query {
            state,
            generation: 3,
            image_at: 0,
            image_bytes: image.len() as u64,
            registered: 0,
            armed: true,
            blind: false,
            retries: 4,
            panics: 5,
        },
        image,
        acknowledged: Cell::new(None),
        attempts: Cell::new(0),
    }
}

fn on(memory: &Path, dax: bool) -> Policy {
    Policy {
        memory: memory.to_path_buf(),
        dax,
        fork: crate::supervisor::Fork::Refuse,
        special: filter::Special::Refuse,
        files: Files::Through,
    }
}

/// An image of the running kernel.
fn of_this_kernel() -> Vec<u8> {
    let (release, _, _) = restore::running_kernel().unwrap();
    let build = std::fs::read_to_string("/proc/sys/kernel/version").unwrap();
    area::tests::whole_image(&release, build.trim())
}

/// Reads and rebuilds as a restore does, up to the first fault.
fn tried(keeper: &Fake, policy: &Policy) -> (Error, Report) {
    let mut said = Report::default();
    let result = attempt(keeper, &mut said, |query, said| {
        let mut image = read(keeper, query, policy, said)?;
        // Its memory is told to be elsewhere: nothing of it is touched.
        image.processes[0]
            .mappings
            .push(outlive_image::model::Mapping {
                start: 0x1000_0000,
                end: 0x1000_1000,
                protection: 1,
                shared: true,
                grows_down: false,
                backing: outlive_image::model::Backing::File {
                    path: policy.memory.join("gone").display().to_string(),
                    offset: 0,
                    size: 0,
                    modified_ns: 0,
                },
                runs: Vec::new(),
            });
        let options = Options::default();
        restore::restore(&image, &Contents::none(), &options).map_err(Fault::Now)
    });
    (result.unwrap_err(), said)
}

#[test]
fn memory_that_is_not_mounted_leaves_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = fake(State::Ready, of_this_kernel());
    for (attempts, dax, code) in [
        (1, false, Code::KernelUnready),
        (2, false, Code::KernelUnready),
        (3, true, Code::NotFound),
    ] {
        let (error, said) = tried(&keeper, &on(dir.path(), dax));
        assert_eq!(error.code(), code, "{error}");
        assert!(
            error.reason().contains("image 3, which still waits"),
            "{error}"
        );
        assert!(error.remedy().contains("restore again"), "{error}");
        assert_eq!((said.waits, said.attempts), (true, attempts));
        assert_eq!(keeper.acknowledged.get(), None, "{error}");
    }
}

#[test]
fn only_an_image_that_cannot_be_repaired_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let good = of_this_kernel();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let foreign = area::tests::whole_image("6.1.0-other", "#1 SMP");
    for (state, image, code) in [
        (State::Damaged, Vec::new(), Code::Corrupt),
        (State::Ready, flipped, Code::Corrupt),
        (State::Foreign, foreign, Code::ImageForeign),
        (State::GivenUp, good, Code::Corrupt),
    ] {
        let keeper = fake(state, image);
        // Whether or not the memory is there.
        let dax = state != State::Foreign;
        let (error, said) = tried(&keeper, &on(dir.path(), dax));
        assert_eq!(error.code(), code, "{state:?}: {error}");
        assert_eq!(keeper.acknowledged.get(), Some(3), "{state:?}");
        assert_eq!((said.waits, keeper.attempts.get()), (false, 0), "{state:?}");
    }
    // Nothing is left that could be given up.
    let mut keeper = fake(State::Damaged, Vec::new());
    keeper.query.generation = 0;
    let (error, _) = tried(&keeper, &on(dir.path(), true));
    assert_eq!(error.code(), Code::Corrupt);
    assert!(error.reason().contains("images are lost"), "{error}");
    assert_eq!(keeper.acknowledged.get(), None);
    let keeper = fake(State::Done, Vec::new());
    let (error, _) = tried(&keeper, &on(dir.path(), true));
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(
        (keeper.acknowledged.get(), keeper.attempts.get()),
        (None, 0)
    );
}
