//! Sans-IO protocol state machines: commit, detector.
