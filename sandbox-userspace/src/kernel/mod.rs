//! What the running kernel is and has.

pub mod bpf;
pub mod btf;
pub mod features;
pub mod layout;
pub mod mounts;
pub mod preemption;
