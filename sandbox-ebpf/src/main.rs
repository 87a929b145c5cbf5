//! The programs that enforce: BPF-LSM hooks and cgroup socket-address programs.
//!
//! Every hook is three steps: read the arguments, decide (`sandbox_common::decide`), and one shared
//! [`finish`] that applies the mode, counts and reports.

#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "atomic addition, see `counter`")]

mod cgroup;
mod counter;
mod event;
mod finish;
mod hooks;
mod kernel;
mod layout;
mod maps;
mod nested;
mod net;
mod notes;
mod own;
mod path;
mod peer;
mod recent;
mod seat;
mod session;
mod shelf;
mod subject;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier refuses a program in which this can be reached.
    loop {}
}

/// The kernel offers some helpers to GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
