//! Programs that a person is asked about before they run.
//!
//! What is looked at is what the caller says: the program's names, and the arguments in the caller's memory. A
//! program of the agent's own making does the same by other names; see docs/policy.md.

use super::member;
use crate::finish;
use crate::kernel::program::{Argument, Arguments, Program, kernel_word};
use crate::maps::{self, LABELS};
use crate::subject::Member;
use aya_ebpf::helpers::generated::bpf_loop;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use core::ffi::{c_long, c_void};
use sandbox_common::Access;
use sandbox_common::ask::{ARGUMENTS, AskKey, Asks, Following, Progress, RULES, Word};
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, Reason};
use sandbox_common::subject::{ASKS, TaskState};

/// `int security_bprm_creds_for_exec(struct linux_binprm *bprm)`: once for every `execve`, of a script before
/// its interpreter is looked for.
#[lsm(hook = "bprm_creds_for_exec")]
pub(crate) fn bprm_creds_for_exec(ctx: LsmContext) -> i32 {
    let program = Program(ctx.arg(0));
    member(&ctx, 1, Hook::BprmCredsForExec, |member, state| {
        if member.subject.permits & ASKS == 0 {
            return 0;
        }
        let dentry = program.file().dentry();
        let mut decision = judge(member, state, program.called());
        if decision.allowed() {
            // A program may be called by a link of another name.
            decision = judge(member, state, kernel_word(dentry.name_address()));
        }
        finish::path(Hook::BprmCredsForExec, member, decision, dentry)
    })
}

/// `int security_bprm_check(struct linux_binprm *bprm)`: for what is to run, and after a script for its interpreter.
/// Whether it may was asked when it was opened.
#[lsm(hook = "bprm_check_security")]
pub(crate) fn bprm_check_security(ctx: LsmContext) -> i32 {
    let program = Program(ctx.arg(0));
    member(&ctx, 1, Hook::BprmCheckSecurity, |member, _| {
        let dentry = program.file().dentry();
        finish::path(Hook::BprmCheckSecurity, member, Decision::ALLOW, dentry)
    })
}

/// What the rules about a program of this name say of the arguments.
#[inline(always)]
fn judge(member: &Member, state: &mut TaskState, name: Option<Word>) -> Decision {
    let Some(program) = name else {
        return Decision::deny(Reason::Unreadable, Access::EXECUTE);
    };
    state.following.asked = AskKey { slot: member.subject.slot, pad: 0, program };
    match asking() {
        0 => Decision::ALLOW,
        NO_MEMORY => Decision::deny(Reason::NoMemory, Access::EXECUTE),
        rule => Decision {
            denied: Access::EXECUTE.bits() as u16,
            rule: rule as u32,
            reason: Reason::Asked as u16,
        },
    }
}

/// In the place of a rule: the current member has no state.
const NO_MEMORY: u64 = u64::MAX;

/// The rule that asks about the program in the current member's state, with the arguments of the call; 0 is none.
///
/// A global function, which the verifier follows once, not for each of the program's names.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn asking() -> u64 {
    let state = LABELS.of_current(false);
    if state.is_null() {
        return NO_MEMORY;
    }
    // SAFETY: not null, and nobody else writes to the storage of a task that runs.
    let state = unsafe { &mut *state };
    let following = &mut state.following;
    let asked: &AskKey = &following.asked;
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    let Some(asks) = (unsafe { maps::ASKS.get(asked) }) else { return 0 };
    following.progress = [Progress::START; RULES];
    (following.valued, following.ended) = (0, 0);
    if let Some(arguments) = Arguments::of_call() {
        (following.at, following.width) = (arguments.at, arguments.width);
        let mut context = Context { asks, following };
        // SAFETY: the context outlives the call, and the verifier follows `follow`.
        unsafe {
            bpf_loop(ARGUMENTS + 1, follow as *mut c_void, (&raw mut context).cast(), 0);
        }
    }
    let mut index = 0;
    while index < RULES {
        let ask = &asks.rules[index];
        let progress = state.following.progress[index];
        let asked = progress.is_whole(ask) || state.following.ended == 0 && progress.is_possible();
        if ask.rule != 0 && asked {
            return u64::from(ask.rule);
        }
        index += 1;
    }
    0
}

struct Context {
    asks: *const Asks,
    following: *mut Following,
}

/// One more argument; the program itself is the first. Returns 1 to stop.
unsafe extern "C" fn follow(index: u32, context: *mut Context) -> c_long {
    // SAFETY: `asking` passes its own context, and the verifier follows the pointers.
    let (asks, following) = unsafe { (&*(*context).asks, &mut *(*context).following) };
    let arguments = Arguments { at: following.at, width: following.width };
    let argument = match arguments.get(index + 1) {
        Argument::Word(_) if index == ARGUMENTS => return 1,
        Argument::Word(word) => word,
        Argument::End => {
            following.ended = 1;
            return 1;
        }
        Argument::Unreadable => return 1,
    };
    let valued = following.valued != 0;
    let mut rule = 0;
    while rule < RULES {
        let progress = following.progress[rule];
        following.progress[rule] = progress.after(&asks.rules[rule], &argument, valued);
        rule += 1;
    }
    following.valued = u32::from(argument.is_option());
    0
}
