use std::net::TcpListener;
use std::thread;

use super::*;
use outlive_base::Code;

const BOUND: Duration = Duration::from_secs(20);

fn key(byte: u8) -> Arc<JobKey> {
    Arc::new(JobKey::from_bytes([byte; 32]))
}

/// A caller with this key for this job meets a service that knows `job` with key 1.
fn meet(
    job: &'static str,
    its: u8,
    sealed: bool,
) -> (Result<Channel, Error>, Result<(Channel, String), Error>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let caller = thread::spawn(move || Channel::call(addr, job, &key(its), sealed, BOUND));
    let (socket, from) = listener.accept().unwrap();
    let known = |name: &str| (name == "job").then(|| key(1));
    let heard = Channel::accept(socket, from, &known, BOUND);
    (caller.join().unwrap(), heard)
}

#[test]
fn messages_and_bytes_travel_both_ways() {
    for sealed in [false, true] {
        let (called, heard) = meet("job", 1, sealed);
        let (mut called, (mut heard, job)) = (called.unwrap(), heard.unwrap());
        assert_eq!((job.as_str(), heard.is_sealed()), ("job", sealed));
        assert!(!heard.is_over());
        let bytes: Vec<u8> = (0..100_001_u32).map(|i| (i % 251) as u8).collect();
        let copy = bytes.clone();
        let other = thread::spawn(move || {
            called.send(b"first", &mut within(BOUND)).unwrap();
            called.send_bytes(&copy, &mut within(BOUND)).unwrap();
            called.send(b"", &mut within(BOUND)).unwrap();
            called.receive(&mut within(BOUND)).unwrap()
        });
        assert_eq!(heard.receive(&mut within(BOUND)).unwrap(), b"first");
        let mut got = vec![0; bytes.len()];
        heard.receive_bytes(&mut got, &mut within(BOUND)).unwrap();
        assert_eq!(got, bytes);
        assert_eq!(heard.receive(&mut within(BOUND)).unwrap(), b"");
        heard.send(b"back", &mut within(BOUND)).unwrap();
        assert_eq!(other.join().unwrap(), b"back");
        let ended = heard.receive(&mut within(BOUND)).unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::UnexpectedEof);
        assert!(heard.is_over());
    }
}

#[test]
fn another_key_and_another_job_are_refused_alike() {
    for (job, its) in [("job", 2), ("other", 1)] {
        let (called, heard) = meet(job, its, false);
        assert_eq!(called.unwrap_err().code(), Code::KeyMismatch, "{job}");
        assert_eq!(heard.unwrap_err().code(), Code::KeyMismatch, "{job}");
    }
}

#[test]
fn strangers_are_refused() {
    use std::io::Write;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for (said, code) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], Code::Network),
        (b"OLCH\x09\x00\x03job", Code::PeerVersion),
        (b"OLCH\x01\x00\x02\xff\xfe", Code::Network),
        (b"OLCH\x01", Code::AgentUnreachable),
    ] {
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        caller.write_all(said).unwrap();
        drop(caller);
        let (socket, from) = listener.accept().unwrap();
        let heard = Channel::accept(socket, from, &|_| None, BOUND);
        assert_eq!(heard.unwrap_err().code(), code);
    }
    // One that says nothing is not waited for.
    let _caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, from) = listener.accept().unwrap();
    let heard = Channel::accept(socket, from, &|_| None, Duration::from_millis(1));
    assert_eq!(heard.unwrap_err().code(), Code::AgentTimeout);
}

#[test]
fn descriptors_come_with_their_byte() {
    let (one, two) = UnixStream::pair().unwrap();
    let caller = thread::spawn(move || Channel::call_unix(one, "job", &key(1), BOUND).unwrap());
    let (mut heard, _) = Channel::accept_unix(two, &|_| Some(key(1)), BOUND).unwrap();
    let mut called = caller.join().unwrap();
    let file = tempfile::tempfile().unwrap();
    heard.send(b"here", &mut within(BOUND)).unwrap();
    heard
        .send_descriptor(file.as_fd(), &mut within(BOUND))
        .unwrap();
    heard.send(b"after", &mut within(BOUND)).unwrap();
    assert_eq!(called.receive(&mut within(BOUND)).unwrap(), b"here");
    let fd = called.receive_descriptor(&mut within(BOUND)).unwrap();
    let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
    assert_eq!(inode(fd.as_fd()), inode(file.as_fd()));
    assert_eq!(called.receive(&mut within(BOUND)).unwrap(), b"after");
}

#[test]
fn a_record_that_was_changed_is_refused() {
    let (called, heard) = meet("job", 1, false);
    let (mut called, (mut heard, _)) = (called.unwrap(), heard.unwrap());
    // Bytes where a message is expected: what a broken peer does.
    called.send_bytes(&[40, 0], &mut within(BOUND)).unwrap();
    called.send_bytes(&[1; 40], &mut within(BOUND)).unwrap();
    let refused = heard.receive(&mut within(BOUND)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidData);
}
