//! Placeholder of btf.
