//! `struct linux_binprm`: a program that is about to run, and what its caller says to it.

use super::vfs::File;
use super::{load, read};
use crate::layout::{LAYOUT, Offset};
use crate::path::opaque;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task_btf, bpf_loop, bpf_probe_read_kernel_str, bpf_probe_read_user,
    bpf_probe_read_user_str, bpf_task_pt_regs,
};
use core::ffi::{c_long, c_void};
use core::mem::MaybeUninit;
use sandbox_common::ask::Word;

/// `struct linux_binprm *`
#[derive(Clone, Copy)]
pub(crate) struct Program(pub(crate) *const c_void);

impl Program {
    /// What was opened: of a script the script.
    #[inline(always)]
    pub(crate) fn file(self) -> File {
        File(load(self.0, &LAYOUT.program_file))
    }

    /// The last component of the name that the caller gave, whatever links that goes through. `None` where it
    /// cannot be read.
    #[inline(always)]
    pub(crate) fn called(self) -> Option<Word> {
        let name: u64 = load(self.0, &LAYOUT.program_name);
        let mut search = Search { at: name, last: name };
        // SAFETY: the context outlives the call, and the verifier follows `look`.
        unsafe {
            bpf_loop(PARTS, look as *mut c_void, (&raw mut search).cast(), 0);
        }
        kernel_word(search.last)
    }
}

/// Bytes of a name that are looked at together: one less, for the zero.
const PART: usize = 64;
/// So many make any name (`PATH_MAX` is 4096).
const PARTS: u32 = 66;

struct Search {
    /// What is to be looked at.
    at: u64,
    /// Behind the last slash.
    last: u64,
}

/// Looks for slashes in a part of a name. Returns 1 to stop.
unsafe extern "C" fn look(_: u32, search: *mut Search) -> c_long {
    // SAFETY: `called` passes its own context.
    let search = unsafe { &mut *search };
    let mut part = [opaque(0_u64); PART / 8];
    // SAFETY: there is so much room.
    let read = unsafe {
        bpf_probe_read_kernel_str(part.as_mut_ptr().cast(), PART as u32, search.at as *const c_void)
    };
    let mut last = search.last;
    let mut index = 0;
    while index < PART {
        if part[index / 8] >> (index % 8 * 8) & 0xff == u64::from(b'/') {
            last = search.at + index as u64 + 1;
        }
        index += 1;
    }
    search.last = last;
    if read < PART as c_long {
        if read < 0 {
            search.last = 0;
        }
        return 1;
    }
    search.at += PART as u64 - 1;
    0
}

/// Bytes that are read of a word: one more than it may have, to tell a longer one, and the zero.
const READ: u32 = sandbox_common::ask::WORD as u32 + 2;

/// A text of the kernel's, as far as a word goes.
#[inline(always)]
pub(crate) fn kernel_word(address: u64) -> Option<Word> {
    let mut text = [opaque(0_u64); 5];
    // SAFETY: there is so much room.
    let read = unsafe {
        bpf_probe_read_kernel_str(text.as_mut_ptr().cast(), READ, address as *const c_void)
    };
    if read < 0 { None } else { Some(Word([text[0], text[1], text[2], text[3]])) }
}

/// The arguments in the memory of who calls `execve`, which other threads of it may change before the kernel
/// has its copy.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    /// Where the list of their addresses begins; 0 is an empty list.
    pub(crate) at: u64,
    /// Bytes of an address.
    pub(crate) width: u32,
}

/// One of the arguments.
pub(crate) enum Argument {
    Word(Word),
    /// There are no more.
    End,
    Unreadable,
}

impl Arguments {
    /// Of the call that the current task is in; `None` where that is none of `execve`, `execveat` and
    /// the `execve` of 32-bit programs (arch/x86/entry/syscalls).
    #[inline(always)]
    pub(crate) fn of_call() -> Option<Self> {
        // SAFETY: helpers, for the current task.
        let registers = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as u64;
        let register =
            |offset: &'static Offset| read::<u64>(registers.wrapping_add(offset.get() as u64));
        let call = register(&LAYOUT.registers_call)? as u32;
        let (register, width) = match call {
            59 => (register(&LAYOUT.registers_si)?, 8),
            322 => (register(&LAYOUT.registers_dx)?, 8),
            // Of 32 bits.
            11 => (u64::from(register(&LAYOUT.registers_cx)? as u32), 4),
            _ => return None,
        };
        Some(Self { at: register, width })
    }

    /// By its index, from 0.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> Argument {
        if self.at == 0 {
            return Argument::End;
        }
        let at = self.at.wrapping_add(u64::from(index) * u64::from(self.width));
        let address =
            if self.width == 8 { user::<u64>(at) } else { user::<u32>(at).map(u64::from) };
        let address = match address {
            Some(0) => return Argument::End,
            Some(address) => address,
            None => return Argument::Unreadable,
        };
        let mut text = [opaque(0_u64); 5];
        // SAFETY: there is so much room.
        let read = unsafe {
            bpf_probe_read_user_str(text.as_mut_ptr().cast(), READ, address as *const c_void)
        };
        if read < 0 {
            return Argument::Unreadable;
        }
        Argument::Word(Word([text[0], text[1], text[2], text[3]]))
    }
}

/// A number in the caller's memory.
#[inline(always)]
fn user<T: Copy>(address: u64) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the helper writes the whole value or fails.
    unsafe {
        let status = bpf_probe_read_user(
            value.as_mut_ptr().cast(),
            size_of::<T>() as u32,
            address as *const c_void,
        );
        if status == 0 { Some(value.assume_init()) } else { None }
    }
}
