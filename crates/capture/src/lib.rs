//! Memory shared by a rank and its agent: control block, slabs, the datagrams
//! between them, and the region table that describes what a rank protects.

pub mod region;
