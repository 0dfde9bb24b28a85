//! A job's file `job.json`, what names the job, and where the directories of its nodes lie.

use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Incarnation, JobName, NodeId, Result, Version};
use outlive_control::steering::Energy;
use outlive_planner::online::learned::Learned;
use serde::{Deserialize, Serialize};

use crate::files::write_atomic;
use crate::input;
use crate::layout;

/// The schema of `job.json`.
pub(crate) const JOB_SCHEMA: &str = "outlive.job/1";

/// Most nodes that a job can have.
pub(crate) const NODES_MAX: u32 = 1 << 16;

/// The object store of the job in `dir`, by what lies beside its key.
///
/// # Errors
/// If that cannot be read.
pub(crate) fn remembered(dir: &Path) -> Result<Option<String>> {
    let path = dir.join(layout::REMEMBERED);
    let text = match input::read(&path, input::TEXT_BYTES_MAX) {
        Err(error) if error.code() == Code::NotFound => return Ok(None),
        read => read?,
    };
    let damaged = || {
        Error::new(
            Code::Corrupt,
            Entity::File(path.display().to_string()),
            "its checksum does not match",
            "write the job's object store into it, as --object-store said it: s3://BUCKET/DIRECTORY",
        )
    };
    let text = String::from_utf8(text).map_err(|_| damaged())?;
    let line = text.strip_suffix('\n').ok_or_else(damaged)?;
    match line.split_once('\n') {
        Some((place, _)) if text == with_sum(place) => Ok(Some(place.to_owned())),
        Some(_) => Err(damaged()),
        // A line of its own, as versions before this one wrote it, is none that has lost its end.
        None if is_torn(line) => Err(damaged()),
        None => Ok(Some(line.trim().to_owned())),
    }
}

/// True if both lines stand in one.
fn is_torn(line: &str) -> bool {
    let end = line.len().checked_sub(SUM_DIGITS + 1);
    let parts = end.and_then(|end| line.split_at_checked(end));
    parts.is_some_and(|(place, rest)| {
        let sum = rest.get(1..);
        sum.is_some_and(|sum| with_sum(place).trim_end().ends_with(sum))
    })
}

/// The name of the field, as the file has it.
const CHECKSUM: &[u8] = b"\"checksum\"";
/// Digits of a checksum.
const SUM_DIGITS: usize = 16;

/// That file's text: a second line has the checksum of the first.
fn with_sum(place: &str) -> String {
    format!(
        "{place}\n{:016x}\n",
        xxhash_rust::xxh3::xxh3_64(place.as_bytes())
    )
}

/// Remembers the object store of the job in `dir`, if another or none is remembered there, or what is cannot
/// be read.
///
/// # Errors
/// Those of the file system.
pub(crate) fn remember(dir: &Path, place: &str) -> Result<()> {
    if remembered(dir).is_ok_and(|known| known.as_deref() == Some(place)) {
        return Ok(());
    }
    write_atomic(&dir.join(layout::REMEMBERED), with_sum(place).as_bytes())
}

/// What `job.json` says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobFile {
    /// `outlive.job/1`.
    pub schema: String,
    /// The job's name.
    pub name: JobName,
    /// Number of slots, fixed for the job's life.
    pub nodes: u32,
    /// Number of ranks, once known.
    pub ranks: Option<u32>,
    /// When the job was made, in UTC.
    pub created: String,
    /// Directory that holds the nodes' directories.
    pub node_storage: PathBuf,
    /// The last incarnation that was opened, 0 if none.
    pub incarnation: u32,
    /// The largest epoch that was used.
    pub epoch: u64,
    /// The number that the key and the name give ([`crate::job_hash`]): under
    /// another key the checkpoints are not this job's.
    #[serde(default, alias = "key", skip_serializing_if = "Option::is_none")]
    pub key_hash: Option<u64>,
    /// The newest version that is known to have been stable; absent: none ever was, or the
    /// owner began anew. As long as it is here, a start that finds nothing is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<Known>,
    /// What was learned of the costs of checkpoints and of failures, in all runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<Learned>,
    /// The job's directory when this was written: one that was moved brings its nodes along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The host of each slot in the last run, where nodes are machines of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Where the level shared lies, if not in the job's directory: `s3://BUCKET/PREFIX`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_store: Option<String>,
    /// Where its memory server was in the last run that named one: `HOST:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_server: Option<String>,
    /// The powers of its nodes by the last run that said something of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub powers: Option<Energy>,
    /// XXH3-64 of this file without this line: a flipped bit must not be another number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<u64>,
}

impl JobFile {
    /// Of a job that was never run.
    pub(crate) fn new(name: JobName, nodes: u32, node_storage: PathBuf) -> JobFile {
        JobFile {
            schema: JOB_SCHEMA.to_owned(),
            name,
            nodes,
            ranks: None,
            created: jiff::Timestamp::now().to_string(),
            node_storage,
            incarnation: 0,
            epoch: 0,
            key_hash: None,
            history: None,
            learned: None,
            directory: None,
            hosts: Vec::new(),
            object_store: None,
            memory_server: None,
            powers: None,
            checksum: None,
        }
    }

    /// The file's text, with its checksum.
    pub(crate) fn text(&self) -> Result<Vec<u8>> {
        let job = JobFile {
            checksum: Some(self.sum()?),
            ..self.clone()
        };
        serde_json::to_vec_pretty(&job)
            .map_err(|error| Error::internal(format!("job.json: {error}")))
    }

    pub(crate) fn sum(&self) -> Result<u64> {
        let plain = JobFile {
            checksum: None,
            ..self.clone()
        };
        let text = serde_json::to_vec(&plain)
            .map_err(|error| Error::internal(format!("job.json: {error}")))?;
        Ok(xxhash_rust::xxh3::xxh3_64(&text))
    }
}

/// A version that is known to have been stable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Known {
    /// The incarnation that captured it, or restored it.
    pub incarnation: Incarnation,
    /// The version.
    pub version: Version,
}

/// A hash of name and key: differs between jobs of the same name in two stores, and
/// says nothing useful about the 256 bits of the key. Of a job that was found in an object store
/// the number that it has there.
///
/// # Errors
/// Those of reading the key's file.
pub fn job_hash(name: &str, key_file: &Path) -> Result<u64> {
    match adopted(key_file)? {
        Some(number) => Ok(number),
        None => key_hash(name, key_file),
    }
}

/// [`job_hash`] by name and key alone: of a job that two stores know each has its own, and so have
/// its sockets.
pub(crate) fn key_hash(name: &str, key_file: &Path) -> Result<u64> {
    let mut bytes = input::read(key_file, input::TEXT_BYTES_MAX)?;
    bytes.extend_from_slice(name.as_bytes());
    let hash = xxhash_rust::xxh3::xxh3_64(&bytes);
    bytes.fill(0);
    Ok(hash)
}

/// The number beside a key's file, if the job was found in an object store.
///
/// # Errors
/// If it is there and cannot be understood.
pub(crate) fn adopted(key_file: &Path) -> Result<Option<u64>> {
    let path = key_file.with_file_name(layout::IDENTITY);
    let text = match input::read(&path, input::TEXT_BYTES_MAX) {
        Err(error) if error.code() == Code::NotFound => return Ok(None),
        read => read?,
    };
    let text = String::from_utf8_lossy(&text);
    let digits = text.trim();
    let number = u64::from_str_radix(digits, 16)
        .ok()
        .filter(|_| digits.len() == 16);
    number.map(Some).ok_or_else(|| {
        Error::new(
            Code::Corrupt,
            Entity::File(path.display().to_string()),
            "no number of a job",
            "remove the job's directory here: its next run finds it in its object store again",
        )
    })
}

/// Where the directories of all slots lie by default: in the job's own directory.
pub fn own_nodes(dir: &Path) -> PathBuf {
    dir.join(layout::NODES)
}

/// Where they lie if not there: `NODE/JOB`.
pub fn nodes_outside(job: &JobFile, dir: &Path) -> Option<PathBuf> {
    let is_outside = job.node_storage != own_nodes(dir);
    is_outside.then(|| job.node_storage.join(job.name.as_str()))
}

/// Where they lie.
pub fn nodes_dir(job: &JobFile, dir: &Path) -> PathBuf {
    nodes_outside(job, dir).unwrap_or_else(|| own_nodes(dir))
}

/// The directory of a slot, `node-N`.
pub fn node_dir(job: &JobFile, dir: &Path, node: NodeId) -> PathBuf {
    nodes_dir(job, dir).join(format!("node-{}", node.0))
}

/// Reads `job.json` of a job's directory without taking its lock.
///
/// # Errors
/// [`Code::NotFound`] if there is none; [`Code::NoValidCheckpoint`] if it is another
/// job's; [`Code::FormatUnknown`].
pub fn read_job_of(dir: &Path) -> Result<JobFile> {
    if let Some(job) = read_job(dir)? {
        return check_name(job, dir);
    }
    if let Some(other) = elsewhere(dir) {
        return Err(renamed(dir, &other));
    }
    let entity = Entity::File(dir.display().to_string());
    Err(match dir.join(layout::KEY).exists() {
        true => Error::new(
            Code::NotFound,
            entity,
            "the job's file job.json is gone",
            "run the job again: outlive run builds the file from the records, or says why not",
        ),
        false => Error::new(
            Code::NotFound,
            entity,
            "no job is stored there",
            "check --job and --store; outlive status without --job lists the jobs",
        ),
    })
}

/// Refuses the file of another job: its directory was renamed or copied, and what is
/// committed there says the other name.
pub(crate) fn check_name(job: JobFile, dir: &Path) -> Result<JobFile> {
    let name = dir.file_name().map(|name| name.to_string_lossy());
    if name.is_none_or(|name| name == job.name.as_str()) {
        return Ok(job);
    }
    Err(Error::new(
        Code::NoValidCheckpoint,
        Entity::File(dir.display().to_string()),
        format!(
            "this is the directory of the job {}, renamed or copied",
            job.name
        ),
        format!(
            "rename it to {} and use --job {}, or begin anew with --fresh",
            job.name, job.name
        ),
    ))
}

/// A directory of the same store that has the job of this name with something committed, while
/// there is nothing where it belongs.
pub(crate) fn elsewhere(dir: &Path) -> Option<PathBuf> {
    if [layout::JOB, layout::KEY]
        .iter()
        .any(|file| dir.join(file).exists())
    {
        return None;
    }
    let name = dir.file_name()?;
    let others = std::fs::read_dir(dir.parent()?).ok()?.flatten();
    let has_it = |path: &PathBuf| {
        let job = read_job(path).ok().flatten();
        job.is_some_and(|job| name == job.name.as_str() && job.history.is_some())
    };
    let mut others = others.map(|entry| entry.path());
    others.find(|path| path.file_name() != Some(name) && has_it(path))
}

/// What is said of that.
pub(crate) fn renamed(dir: &Path, other: &Path) -> Error {
    Error::new(
        Code::NoValidCheckpoint,
        Entity::File(dir.display().to_string()),
        format!(
            "nothing is there, and what this job committed lies in {}, which was renamed or \
             copied",
            other.display()
        ),
        "rename it back (first remove what is empty in its place), or begin anew with --fresh",
    )
}

pub(crate) fn read_job(dir: &Path) -> Result<Option<JobFile>> {
    let path = &dir.join(layout::JOB);
    let text = match input::read(path, input::TEXT_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.code() == Code::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let unknown = |reason: String| {
        Error::new(
            Code::FormatUnknown,
            Entity::File(path.display().to_string()),
            reason,
            "use the version of outlive that wrote it; a damaged one, move it away: the next \
             run builds it again from the records",
        )
    };
    let mut job: JobFile =
        serde_json::from_slice(&text).map_err(|error| unknown(error.to_string()))?;
    if job.schema != JOB_SCHEMA {
        return Err(unknown(format!("schema {}", job.schema)));
    }
    // What is counted up must not overflow, and nodes are listed one by one.
    let counted = job.incarnation < u32::MAX / 2 && job.epoch < u64::MAX / 2;
    if !counted || !(1..=NODES_MAX).contains(&job.nodes) {
        return Err(unknown("a number is out of range".to_owned()));
    }
    // Of what was written with a checksum each byte counts, also those of which none of it is made: the
    // names of fields, or white space.
    let is_sound = match job.checksum {
        Some(sum) => job.sum().ok() == Some(sum) && job.text().is_ok_and(|it| it == text),
        // Of a version before there were any; or a brace has moved, and it belongs to something else.
        None => !text.windows(CHECKSUM.len()).any(|it| it == CHECKSUM),
    };
    if !is_sound {
        return Err(Error::new(
            Code::Corrupt,
            Entity::File(path.display().to_string()),
            "its checksum does not match",
            "move it away: the next run builds it again from the records",
        ));
    }
    // The default lies in the job's directory, wherever that was moved.
    let before = job.directory.as_deref();
    let default = match before {
        Some(before) => job.node_storage == own_nodes(before),
        // As versions before this one wrote it.
        None => {
            let there = dir.join("nodes/node-0").exists();
            there
                && job
                    .node_storage
                    .ends_with(Path::new(job.name.as_str()).join(layout::NODES))
        }
    };
    if default {
        job.node_storage = own_nodes(dir);
    }
    Ok(Some(job))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use outlive_base::rng::Sequence;

    use super::*;
    use crate::harms::harms;

    /// A job's directory in which each field of its file has something.
    fn full(dir: &Path) -> PathBuf {
        let home = dir.join("job");
        fs::create_dir(&home).unwrap();
        let mut job = JobFile::new(JobName::new("job").unwrap(), 3, own_nodes(&home));
        (job.ranks, job.incarnation, job.epoch) = (Some(12), 7, 1 << 40);
        job.key_hash = Some(0x1234_5678_9abc_def0);
        job.history = Some(Known {
            incarnation: Incarnation(7),
            version: Version(420),
        });
        job.learned = Some(Learned::default());
        job.directory = Some(home.clone());
        job.hosts = vec!["n1".into(), "n2".into(), "n3".into()];
        job.object_store = Some("s3://bucket/jobs".into());
        job.memory_server = Some("10.0.0.9:7000".into());
        job.powers = Some(Energy {
            compute: 1.0 / 3.0,
            checkpoint: 200.0,
        });
        fs::write(home.join(layout::JOB), job.text().unwrap()).unwrap();
        home
    }

    /// Nothing of the file is passed over: not a number, nor the name of a field, nor white space.
    #[test]
    fn each_damage_to_the_job_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let home = full(dir.path());
        let path = home.join(layout::JOB);
        let good = fs::read(&path).unwrap();
        assert!(read_job_of(&home).is_ok());
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        let all = harms(&good, &mut random);
        assert!(all.len() > 1_500, "{}", all.len());
        for bytes in all {
            fs::write(&path, &bytes).unwrap();
            let said = || String::from_utf8_lossy(&bytes).into_owned();
            let error = match read_job_of(&home) {
                Err(error) => error,
                Ok(_) => panic!("passed over: {}", said()),
            };
            let known = [Code::Corrupt, Code::FormatUnknown];
            assert!(known.contains(&error.code()), "{error}: {}", said());
            assert!(error.remedy().contains("builds it again"), "{error}");
        }
    }

    #[test]
    fn each_damage_to_the_name_of_the_object_store_is_found_and_mended_by_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let place = "s3://bucket/jobs/of-mine";
        let path = dir.path().join(layout::REMEMBERED);
        assert_eq!(remembered(dir.path()).unwrap(), None);
        remember(dir.path(), place).unwrap();
        assert_eq!(remembered(dir.path()).unwrap().as_deref(), Some(place));
        let good = fs::read(&path).unwrap();
        let mut random = Sequence::new(outlive_base::seed!(), 1);
        for bytes in harms(&good, &mut random) {
            // One that was cut off where its first line ends is as versions before this one wrote it.
            let is_old = bytes == good[..=place.len()];
            fs::write(&path, &bytes).unwrap();
            let read = remembered(dir.path());
            match is_old {
                true => assert_eq!(read.unwrap().as_deref(), Some(place)),
                false => assert_eq!(read.unwrap_err().code(), Code::Corrupt, "{bytes:?}"),
            }
            remember(dir.path(), place).unwrap();
            assert_eq!(remembered(dir.path()).unwrap().as_deref(), Some(place));
        }
        // People write it without a checksum.
        fs::write(&path, "s3://other/place\n").unwrap();
        let read = remembered(dir.path()).unwrap();
        assert_eq!(read.as_deref(), Some("s3://other/place"));
    }

    /// The number of a job that was adopted: another one is not taken for it.
    #[test]
    fn each_damage_to_the_number_of_a_job_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (key, path) = (
            dir.path().join(layout::KEY),
            dir.path().join(layout::IDENTITY),
        );
        fs::write(&key, [7; 32]).unwrap();
        let good = b"0123456789abcdef\n";
        fs::write(&path, good).unwrap();
        let number = job_hash("job", &key).unwrap();
        let mut random = Sequence::new(outlive_base::seed!(), 2);
        for bytes in harms(good, &mut random) {
            fs::write(&path, &bytes).unwrap();
            // White space around it is nothing.
            let text = std::str::from_utf8(&bytes).map(str::trim);
            let same = text.is_ok_and(|it| it.eq_ignore_ascii_case("0123456789abcdef"));
            match job_hash("job", &key) {
                Ok(read) => assert_eq!(read == number, same, "{bytes:?}"),
                Err(error) => assert_eq!(error.code(), Code::Corrupt),
            }
        }
    }
}
