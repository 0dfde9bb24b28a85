//! A program that was not started under `outlive run`.

use outlive::{Code, Job, Options, Outcome, Restored, Survives, Waited};

#[test]
fn without_an_agent_every_call_succeeds_and_saves_nothing() {
    let mut job = Job::open_with(&Options::default(), &|name| {
        // A puzzling launcher must not matter.
        (name == "PMI_RANK").then(|| "x".into())
    })
    .unwrap();
    let mut u = vec![7u8; 100];
    // SAFETY: `u` outlives the job.
    unsafe { job.protect("u", u.as_mut_ptr(), u.len()) }.unwrap();
    assert_eq!(job.restore().unwrap(), Restored::Fresh);
    assert_eq!(job.query("u").unwrap(), None);
    assert!(!job.wanted(1).unwrap());
    assert_eq!(job.checkpoint(1).unwrap(), Outcome::Skipped);
    assert_eq!(job.checkpoint_now(2).unwrap(), Outcome::Skipped);
    assert_eq!(
        job.wait(2, Survives::AllNodes, None).unwrap(),
        Waited::Unprotected
    );
    let old = job.route(3, "x").unwrap();
    std::fs::write(&old, b"x").unwrap();
    assert_eq!(job.checkpoint(3).unwrap(), Outcome::Skipped);
    let new = job.route(4, "x").unwrap();
    std::fs::write(&new, b"x").unwrap();
    assert!(!old.exists() && new.exists());
    let status = job.status();
    assert_eq!(status.version_surviving, [None; 5]);
    assert_eq!(job.levels(), []);
    assert!(!status.is_protected && status.incarnation == 0 && status.ranks == 1);
    job.close().unwrap();
    assert!(!new.exists());
    let impossible = Options {
        rank: Some(3),
        ranks: Some(2),
        ..Options::default()
    };
    let error = Job::open_with(&impossible, &|_| None).unwrap_err();
    assert_eq!(error.code(), Code::RankUnknown);
}
