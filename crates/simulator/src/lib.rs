//! Deterministic event engine, lossy network with disks, independent checkers.
