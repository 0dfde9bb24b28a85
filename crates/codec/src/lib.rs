//! Checksums and coding.
