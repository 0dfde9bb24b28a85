//! Bulk streams.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use common::{Node, eventually, node_with, options};
use outlive_base::{Code, NodeId};
use outlive_network::{Options, Stream};

fn nodes(options: &Options) -> (Node, Node) {
    let a = node_with(1, 1, 1, 1, options.clone());
    let b = node_with(2, 1, 1, 1, options.clone());
    a.knows(&b);
    (a, b)
}

fn open(a: &Node, b: &Node) -> (Stream, Stream) {
    let mine = a.endpoint.open_stream(NodeId(2), b"what it is").unwrap();
    let (header, theirs) = b.stream();
    assert_eq!(header, b"what it is");
    assert_eq!(
        (mine.peer().peer, theirs.peer().peer),
        (NodeId(2), NodeId(1))
    );
    (mine, theirs)
}

#[test]
fn bytes_pass_in_both_directions_raw_and_encrypted() {
    for encrypt_streams in [false, true] {
        let (a, b) = nodes(&Options {
            encrypt_streams,
            ..options()
        });
        let (mine, theirs) = open(&a, &b);
        let data: Vec<u8> = (0..3_000_000u32).map(|n| (n ^ (n >> 9)) as u8).collect();
        std::thread::scope(|scope| {
            for stream in [&mine, &theirs] {
                let (mut writer, mut reader) =
                    (stream.try_clone().unwrap(), stream.try_clone().unwrap());
                let data = &data;
                scope.spawn(move || {
                    writer.write_all(data).unwrap();
                    writer.shutdown(Shutdown::Write).unwrap();
                });
                scope.spawn(move || {
                    let mut got = Vec::new();
                    reader.read_to_end(&mut got).unwrap();
                    assert!(got == *data);
                });
            }
        });
        assert_eq!(
            (a.endpoint.streams_open(), b.endpoint.streams_open()),
            (1, 1)
        );
        drop((mine, theirs));
        assert_eq!(
            (a.endpoint.streams_open(), b.endpoint.streams_open()),
            (0, 0)
        );
    }
}

#[test]
fn the_listener_may_speak_first_and_vectors_are_written() {
    let (a, b) = nodes(&options());
    let (mut mine, mut theirs) = open(&a, &b);
    let count = theirs
        .write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b"cde")])
        .unwrap();
    assert_eq!(count, 5);
    let mut got = [0; 5];
    mine.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"abcde");
}

#[test]
fn reads_and_writes_are_bounded_and_a_late_peer_loses_nothing() {
    let bound = Duration::from_millis(30);
    for encrypt_streams in [false, true] {
        let (a, b) = nodes(&Options {
            stream_read_timeout: bound,
            stream_write_timeout: bound,
            encrypt_streams,
            ..options()
        });
        let (mut mine, mut theirs) = open(&a, &b);
        assert_eq!(
            theirs.read(&mut [0; 1]).unwrap_err().kind(),
            ErrorKind::TimedOut
        );
        // Nobody reads: the kernel's buffers fill, then the write gives up.
        let mut written = 0usize;
        let error = loop {
            match mine.write(&[written as u8; 1000]) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let reader = std::thread::spawn(move || {
            let mut got = 0;
            let mut chunk = [0; 65536];
            loop {
                match theirs.read(&mut chunk) {
                    Ok(0) => return got,
                    Ok(count) => got += count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut),
                }
            }
        });
        while mine.flush().is_err() {}
        mine.shutdown(Shutdown::Write).unwrap();
        assert_eq!(reader.join().unwrap(), written);
    }
}

#[test]
fn streams_are_counted_and_bounded_on_both_sides() {
    let (a, b) = nodes(&Options {
        streams_max: 2,
        ..options()
    });
    let first = open(&a, &b);
    let second = open(&a, &b);
    let error = a.endpoint.open_stream(NodeId(2), b"").unwrap_err();
    assert!(error.reason().contains("streams_max"), "{error}");
    let c = node_with(3, 1, 1, 1, options());
    c.knows(&b);
    let error = c.endpoint.open_stream(NodeId(2), b"").unwrap_err();
    assert!(error.reason().contains("too many streams"), "{error}");
    drop((first, second));
    c.endpoint.open_stream(NodeId(2), b"now").unwrap();
}

#[test]
fn bad_calls_are_refused() {
    let (a, b) = nodes(&options());
    let long = vec![0; outlive_network::STREAM_HEADER_BYTES_MAX + 1];
    assert_eq!(
        a.endpoint.open_stream(NodeId(2), &long).unwrap_err().code(),
        Code::InvalidArgument
    );
    a.endpoint.open_stream(NodeId(2), &long[1..]).unwrap();
    assert_eq!(b.stream().0.len(), long.len() - 1);
    assert_eq!(
        a.endpoint.open_stream(NodeId(9), b"").unwrap_err().code(),
        Code::AgentUnreachable
    );
}

#[test]
fn a_partition_stalls_streams_and_lets_them_go_on() {
    let bound = Duration::from_millis(40);
    let (a, b) = nodes(&Options {
        stream_read_timeout: bound,
        stream_write_timeout: bound,
        connect_timeout: bound,
        ..options()
    });
    let (mut mine, mut theirs) = open(&a, &b);
    a.endpoint.isolate(true);
    assert_eq!(mine.write(b"x").unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(
        theirs.read(&mut [0; 1]).unwrap_err().kind(),
        ErrorKind::TimedOut
    );
    let error = a.endpoint.open_stream(NodeId(2), b"").unwrap_err();
    assert_eq!(error.code(), Code::AgentTimeout);
    a.endpoint.isolate(false);
    mine.write_all(b"y").unwrap();
    let mut got = [0; 1];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"y");
}

#[test]
fn a_slow_network_is_slow() {
    let (a, b) = nodes(&options());
    let (mut mine, mut theirs) = open(&a, &b);
    a.endpoint.slow(Some(1_000_000));
    let before = Instant::now();
    let reader = std::thread::spawn(move || std::io::copy(&mut theirs, &mut std::io::sink()));
    mine.write_all(&[0; 200_000]).unwrap();
    // The lower bound only: 200,000 bytes at 1,000,000 bytes a second.
    assert!(before.elapsed() >= Duration::from_millis(190));
    a.endpoint.slow(None);
    mine.write_all(&[0; 200_000]).unwrap();
    drop(mine);
    assert_eq!(reader.join().unwrap().unwrap(), 400_000);
}

#[test]
fn a_stream_outlives_its_endpoint_and_ends_with_its_peer() {
    let (a, b) = nodes(&options());
    let (mut mine, mut theirs) = open(&a, &b);
    a.endpoint.shutdown();
    mine.write_all(b"z").unwrap();
    drop(mine);
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"z");
    eventually("the write fails", || theirs.write(b"x").is_err());
}

#[test]
fn a_stream_that_is_parked_is_used_again_until_its_peer_is_replaced() {
    for encrypt_streams in [false, true] {
        let (a, b) = nodes(&Options {
            encrypt_streams,
            ..options()
        });
        let (mut mine, theirs) = open(&a, &b);
        assert!(mine.is_idle());
        b.endpoint.park(theirs);
        let mut parked = 0;
        for round in 0..3u8 {
            mine.write_all(&[round; 5]).unwrap();
            let (header, mut theirs) = b.stream();
            assert!(header.is_empty());
            let mut got = [9; 5];
            theirs.read_exact(&mut got).unwrap();
            assert_eq!(got, [round; 5]);
            b.endpoint.park(theirs);
            parked += 1;
        }
        assert_eq!((parked, a.endpoint.streams_open()), (3, 1));
        // Another one of the same peer takes its place.
        let (mut newer, theirs) = open(&a, &b);
        b.endpoint.park(theirs);
        eventually("closed", || !mine.is_idle());
        assert_eq!(mine.read(&mut [0]).unwrap(), 0);
        b.endpoint.forget(NodeId(1));
        eventually("closed too", || !newer.is_idle());
        assert_eq!(newer.read(&mut [0]).unwrap(), 0);
        eventually("counted", || b.endpoint.streams_open() == 0);
    }
}

#[test]
fn a_peer_that_was_forgotten_and_taken_back_has_its_stream_kept() {
    let (a, b) = nodes(&options());
    a.send(2, b"hello");
    b.up();
    assert_eq!(b.message(), b"hello", "its epoch is known");
    b.endpoint.forget(NodeId(1));
    b.knows(&a);
    let (mut mine, theirs) = open(&a, &b);
    b.endpoint.park(theirs);
    mine.write_all(b"again").unwrap();
    let (header, mut theirs) = b.stream();
    assert!(header.is_empty());
    let mut got = [0; 5];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"again");
}

#[test]
fn the_end_of_a_parked_stream_is_told() {
    let (a, b) = nodes(&options());
    let (mine, theirs) = open(&a, &b);
    b.endpoint.park(theirs);
    drop(mine);
    let (header, mut theirs) = b.stream();
    assert!(header.is_empty());
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
}
