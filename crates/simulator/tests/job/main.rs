//! Histories of a whole job, in a module, so that they can be left out by name: they compute for
//! minutes, and `scripts/test.sh` runs them beside tests that wait.

mod histories;
