use std::os::unix::fs::symlink;

use outlive_base::Code;
use outlive_memory::{Rights, ServerOptions};

use super::*;

fn mount(line: &str) -> Mount {
    Mount::parse(line).unwrap_or_else(|| panic!("{line}"))
}

fn tier(line: &str) -> Tier {
    mount(line).tier("machine", 7)
}

#[test]
fn two_paths_of_one_file_system_are_one_tier() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    std::fs::create_dir_all(a.join("deep/er")).unwrap();
    std::fs::create_dir(&b).unwrap();
    let link = dir.path().join("link");
    symlink(&a, &link).unwrap();
    let wanted = of_directory(&a).unwrap();
    let again = Path::new("/proc/self/root").join(a.strip_prefix("/").unwrap());
    for path in [&b, &link, &link.join("deep/er"), &again, &b.join("../a/")] {
        assert_eq!(of_directory(path).unwrap(), wanted, "{path:?}");
    }
    // Another file system is another tier, also by way of a link.
    let other = dir.path().join("other");
    symlink("/proc", &other).unwrap();
    assert_ne!(of_directory(&other).unwrap(), wanted);
    let error = of_directory(&dir.path().join("none")).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    // Nothing of where it lies is told.
    let user = dir
        .path()
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    assert!(!wanted.as_str().contains(&user), "{wanted}");
}

#[test]
fn what_is_mounted_twice_is_one_tier_wherever_it_is() {
    let same = |lines: &[&str]| {
        let tiers: Vec<Tier> = lines.iter().map(|line| tier(line)).collect();
        assert!(
            tiers.iter().all(|it| *it == tiers[0]),
            "{lines:?} {tiers:?}"
        );
        tiers[0].clone()
    };
    // A bind mount of a part of a local file system.
    let ext4 = same(&[
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard",
        "80 27 254:0 /srv/jobs /mnt/a\\040b rw shared:1 master:2 - ext4 /dev/root ro",
    ]);
    assert!(ext4.as_str().starts_with("ext4:"), "{ext4}");
    // Exports of one server, of several versions, under several names and paths.
    let nfs = same(&[
        "90 27 0:45 / /home rw - nfs4 nas:/home rw,vers=4.2,clientaddr=10.0.0.9,addr=10.0.0.1",
        "91 27 0:46 / /scratch rw - nfs4 nas.example:/scratch rw,addr=10.0.0.1",
        "92 27 0:47 / /old rw - nfs 10.0.0.1:/old rw,vers=3,addr=10.0.0.1,mountaddr=10.0.0.3",
    ]);
    assert_eq!(nfs.as_str(), "nfs:10.0.0.1");
    let named = same(&[
        "90 27 0:45 / /a rw - nfs4 NAS:/a rw",
        "91 27 0:46 /x /b rw - nfs4 nas:/b rw",
    ]);
    assert_eq!(named.as_str(), "nfs:nas");
    assert_eq!(
        tier("9 2 0:4 / /a rw - nfs4 [fe80::1]:/a rw").as_str(),
        "nfs:[fe80::1]"
    );
    let lustre = same(&[
        "93 27 0:48 / /scratch rw - lustre 10.0.0.1@tcp:10.0.0.2@tcp:/scratch rw,flock",
        "94 27 0:49 / /mnt/b rw - lustre 10.1.0.1@o2ib:/scratch/project rw",
    ]);
    assert_eq!(lustre.as_str(), "lustre:scratch");
    let smb = same(&[
        "95 27 0:50 / /a rw - cifs //Files/a rw,username=anna,addr=10.0.0.4",
        "96 27 0:51 / /b rw - smb3 //files.example/b rw,username=bert,addr=10.0.0.4",
    ]);
    assert_eq!(smb.as_str(), "smb:10.0.0.4");
    same(&[
        "97 27 0:52 / /a rw - gpfs scratch rw",
        "98 27 0:53 / /b rw - gpfs /dev/scratch rw",
    ]);
    same(&[
        "97 27 0:52 / /a rw - ceph 10.0.0.1:6789,10.0.0.2:6789:/ rw,name=anna",
        "98 27 0:53 / /b rw - ceph anna@3f1d.cephfs=/b rw",
    ]);
    same(&[
        "97 27 0:52 / /a rw - zfs tank/a rw",
        "98 27 0:53 / /b rw - zfs tank/b rw",
    ]);
    let other = same(&[
        "97 27 0:52 / /a rw - fuse.sshfs anna@host:/data rw,user_id=1000",
        "98 27 0:53 / /b rw - fuse.sshfs bert@host:/data rw",
    ]);
    assert!(!other.as_str().contains("anna") && !other.as_str().contains("host"));
}

#[test]
fn other_file_systems_and_machines_are_other_tiers() {
    let lines = [
        "27 1 254:0 / / rw - ext4 /dev/vda rw",
        "27 1 254:1 / / rw - ext4 /dev/vda rw",
        "27 1 254:0 / / rw - xfs /dev/vda rw",
        "90 27 0:45 / /home rw - nfs4 nas:/home rw,addr=10.0.0.1",
        "90 27 0:45 / /home rw - nfs4 nas:/home rw,addr=10.0.0.2",
        "93 27 0:48 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw",
        "93 27 0:48 / /scratch rw - lustre 10.0.0.1@tcp:/home rw",
        "97 27 0:52 / /a rw - zfs tank/a rw",
        "97 27 0:52 / /a rw - zfs other/a rw",
        "97 27 0:52 / /a rw - 9p one rw",
        "97 27 0:52 / /a rw - 9p other rw",
    ];
    let tiers: std::collections::BTreeSet<Tier> = lines.iter().map(|line| tier(line)).collect();
    assert_eq!(tiers.len(), lines.len(), "{tiers:?}");
    // What is local is another on each machine; what is not is the same.
    for (line, same) in [
        (lines[0], false),
        (lines[3], true),
        (lines[7], false),
        (lines[9], true),
    ] {
        assert_eq!(mount(line).tier("another", 7) == tier(line), same, "{line}");
    }
    for line in [
        "",
        "x 1 254:0 / / rw - ext4 /dev/vda rw",
        "27 1 - ext4",
        "27 1 254:0 / / rw",
    ] {
        assert_eq!(Mount::parse(line), None, "{line}");
    }
}

#[test]
fn a_bucket_is_one_tier_whatever_is_written_behind_it() {
    let tier = |url: &str| of_bucket(&url.parse().unwrap());
    assert_eq!(tier("gs://bucket"), tier("gs://bucket/of/a/job/"));
    assert_eq!(tier("gs://bucket/").as_str(), "gs://bucket");
    assert_ne!(tier("gs://bucket"), tier("gs://other"));
    assert!(tier("s3://bucket/x").as_str().ends_with("/bucket"));
}

/// A server for two jobs, with a key file each.
fn server(dir: &Path) -> (outlive_memory::Server, [PathBuf; 2]) {
    let keys = ["a", "b"].map(|name| dir.join(format!("{name}.key")));
    let mut options = ServerOptions::new(1 << 20);
    for (name, path) in ["a", "b"].into_iter().zip(&keys) {
        if !path.exists() {
            JobKey::create(path).unwrap();
        }
        options.jobs.push(Rights {
            job: name.to_owned(),
            key: JobKey::load(path).unwrap().into(),
            quota: None,
        });
    }
    (outlive_memory::Server::start(&options).unwrap(), keys)
}

#[test]
fn a_memory_server_is_one_tier_for_all_its_jobs_until_it_is_started_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (first, keys) = server(dir.path());
    let of = |name: &str, key: &Path, host: &str, port: u16| Server {
        address: format!("{host}:{port}"),
        job: JobName::new(name).unwrap(),
        key: key.to_owned(),
    };
    let port = first.address().port();
    let a = of("a", &keys[0], "127.0.0.1", port);
    let b = of("b", &keys[1], "localhost", port);
    let tier = a.tier().unwrap();
    assert_eq!(b.tier().unwrap(), tier);
    // Who does not hold the key learns nothing.
    let error = of("b", &keys[0], "127.0.0.1", port).tier().unwrap_err();
    assert_eq!(error.code(), Code::KeyMismatch);
    let sources = Sources {
        shared: Some(Shared::Directory(dir.path().to_owned())),
        server: Some(a.clone()),
    };
    let known = sources.look(&Tiers::new());
    assert_eq!(known.get(&StoreKind::Server), Some(&tier));
    assert_eq!(
        known.get(&StoreKind::Shared),
        Some(&of_directory(dir.path()).unwrap())
    );
    // One that is gone is what it was; another is another.
    drop(first);
    assert_eq!(sources.look(&known), known);
    let (second, _) = server(dir.path());
    let sources = Sources {
        server: Some(of("a", &keys[0], "127.0.0.1", second.address().port())),
        ..sources
    };
    let looks = Looks::start(sources).unwrap();
    let bound = std::time::Duration::from_secs(30);
    let found = looks.found.recv_timeout(bound).unwrap();
    assert_ne!(found.get(&StoreKind::Server), Some(&tier));
    assert_eq!(found.get(&StoreKind::Shared), known.get(&StoreKind::Shared));
    // Nothing has changed: that is no news.
    looks.again();
    assert_eq!(looks.news(), None);
}
