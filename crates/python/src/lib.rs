//! The Python package outlive.
