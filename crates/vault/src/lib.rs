//! Containers, records, catalogue: the checkpoint format on disk.
