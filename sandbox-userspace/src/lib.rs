//! Policy, loader and sessions: everything of `sandbox` that runs in user space.
//!
//! Data flows one way: [`policy`] is read, checked and compiled to a slot; [`engine`] publishes it
//! to the maps that the hooks read and brings their events back; [`session`] makes the cgroup and
//! the agent's process; [`sinks`] print. [`kernel`] knows the running kernel, [`cli`] the verbs;
//! [`selftest`] attacks all of it.

pub mod cli;
pub mod dns;
pub mod engine;
pub mod import;
pub mod kernel;
pub mod learn;
pub mod policy;
pub mod selftest;
pub mod session;
pub mod sinks;
