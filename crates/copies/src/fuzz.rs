//! The parsers of bytes from other agents, for fuzz targets: none may panic or hold more than its
//! bounds, whatever the input. Not meant for other use.

use outlive_base::NodeId;
use outlive_control::orders::decode;

use crate::peers::{StreamRequest, read_reply, read_request, send_reply, send_request};

/// What opens a stream, then requests and answers as they follow each other on one.
///
/// # Panics
/// If what was understood is not understood again.
pub fn streams(bytes: &[u8]) {
    let peer = NodeId(1);
    let _ = decode::<StreamRequest>(bytes);
    let mut left = bytes;
    while let Ok(request) = read_request(&mut left, peer) {
        let mut again = Vec::new();
        let sent = send_request(&mut again, peer, &request);
        assert!(sent.is_ok() && read_request(&mut &again[..], peer).is_ok());
    }
    let mut left = bytes;
    while let Ok(reply) = read_reply(&mut left, peer) {
        let mut again = Vec::new();
        let sent = send_reply(&mut again, peer, &reply);
        assert!(sent.is_ok() && read_reply(&mut &again[..], peer).is_ok());
    }
}
