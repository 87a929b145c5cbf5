//! Sessions: cgroup, agent process, life-time.

pub mod canary;
