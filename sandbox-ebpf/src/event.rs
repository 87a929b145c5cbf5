//! Records for the ring.

use crate::kernel::task::{self, Task};
use crate::kernel::vfs::{DentryAddress, InodeAddress, SuperBlockAddress};
use crate::maps::{FAULTS, LOST, RINGS};
use crate::path::{self, Chain, ended};
use crate::subject::{self, Member};
use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_kernel_str, bpf_ringbuf_output};
use core::ffi::{c_long, c_void};
use core::mem::MaybeUninit;
use sandbox_common::decide::Decision;
use sandbox_common::event::{
    Header, Hook, Kind, MOVED_BYTES, MovedEvent, NetEvent, NetPayload, PATH_BYTES, PATH_SLACK,
    PathPayload, ProcessEvent, ProcessPayload, Reason, ServerEvent, UnixEvent, VERSION,
    fault_counter,
};
use sandbox_common::net::AbstractName;
use sandbox_common::path::WALK_DEPTH;
use sandbox_common::subject::TaskState;

#[inline(always)]
fn header(kind: Kind, hook: Hook, member: &Member, decision: Decision) -> Header {
    let mut header = MaybeUninit::<Header>::uninit();
    // SAFETY: plain numbers, and `fill` sets every field.
    unsafe {
        fill(&mut *header.as_mut_ptr(), kind, hook as u8, member, decision);
        header.assume_init()
    }
}

/// Field by field: the stack has no room for a second header.
#[inline(always)]
fn fill(header: &mut Header, kind: Kind, hook: u8, member: &Member, decision: Decision) {
    (header.pid, header.tid) = task::ids();
    header.version = VERSION;
    header.kind = kind as u8;
    header.hook = hook;
    header.reason = decision.reason as u8;
    header.access = u32::from(decision.denied);
    header.session = member.subject.session;
    header.rule = decision.rule;
    header.time = task::boot_time();
    header.cgroup = member.cgroup;
    header.uid = task::uid();
    header.mode = member.subject.mode;
    task::write_comm(&mut header.comm);
    if let Some(index) = fault_counter(hook, decision.reason)
        && let Some(count) = FAULTS.get_ptr_mut(index)
    {
        // SAFETY: this CPU's own counter; a count lost to preemption is a count of faults.
        unsafe { *count += 1 };
    }
}

/// Sends `len` bytes, for `reason`, to the member's session. What has no ring or finds no room on it is counted.
/// What was allowed has a ring of its own, and takes no room from what was denied.
#[inline(always)]
fn send<T>(member: &Member, reason: u16, record: *const T, len: u32) {
    let number = member.subject.session + u32::from(reason == Reason::Allowed as u16);
    // SAFETY: a ring that is taken out of the map meanwhile lives until this program has ended.
    let status = match unsafe { RINGS.get(&number) } {
        // SAFETY: the verifier checks that `len` bytes of the record may be read.
        Some(ring) => unsafe {
            bpf_ringbuf_output(
                core::ptr::from_ref(ring).cast_mut().cast(),
                record.cast_mut().cast(),
                u64::from(len),
                0,
            )
        },
        None => -1,
    };
    if status == 0 {
        return;
    }
    if let Some(lost) = LOST.get_ptr_mut(number).or_else(|| LOST.get_ptr_mut(0)) {
        // SAFETY: this CPU's own counter; a count lost to preemption is a count of losses.
        unsafe { *lost += 1 };
    }
}

/// About the object and the decision in the current member's state. 0 where there is no memory for its names.
///
/// A global function: the verifier follows it once by itself, not once for each way that leads to it. So it takes
/// numbers only (of which a pointer is none, to the verifier), and finds the member anew.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn tell_path(hook: u32) -> u32 {
    let Some(member) = subject::current() else { return 0 };
    let Some(state) = member.state() else { return 0 };
    let (decision, dentry) = (state.decision, DentryAddress(state.object));
    let chain = path::names(dentry);
    if chain.is_null() {
        return 0;
    }
    // SAFETY: not null, and nobody else has this task's storage at hand.
    let chain = unsafe { &mut *chain };
    let inode = dentry.inode();
    let dev = dentry.superblock().and_then(SuperBlockAddress::dev);
    fill(&mut chain.event.header, Kind::Path, hook as u8, &member, decision);
    chain.event.path = PathPayload {
        dev: dev.unwrap_or(0),
        rdev: inode.and_then(InodeAddress::rdev).unwrap_or(0),
        mode: inode.and_then(InodeAddress::mode).unwrap_or(0),
        len: 0,
        truncated: u32::from(chain.ended != ended::AT_ROOT),
        pad: 0,
    };
    let mut context = Context { chain };
    let fixed = (size_of::<Header>() + size_of::<PathPayload>()) as u32;
    // SAFETY: the context outlives the call, and the verifier follows `append`.
    unsafe {
        bpf_loop(WALK_DEPTH as u32, append as *mut c_void, (&raw mut context).cast(), 0);
    }
    let mut len = chain.event.path.len;
    if len > PATH_BYTES as u32 {
        len = PATH_BYTES as u32;
    }
    send(&member, decision.reason, &raw const chain.event, fixed + len);
    1
}

/// About an object and the decision in `state`, which is the current member's. False where there is no memory for
/// its names.
#[inline(always)]
pub(crate) fn path(hook: Hook, state: &mut TaskState, dentry: DentryAddress) -> bool {
    state.object = dentry.0;
    tell_path(hook as u32) != 0
}

struct Context {
    chain: *mut Chain,
}

/// Appends one component's name. Returns 1 to stop.
unsafe extern "C" fn append(index: u32, context: *mut Context) -> c_long {
    // SAFETY: `path` passes its own context, and the verifier follows the pointers.
    let chain = unsafe { &mut *(*context).chain };
    if index >= chain.depth {
        return 1;
    }
    let used = chain.event.path.len;
    let name = chain.dentries[index as usize & (WALK_DEPTH - 1)].name_address();
    let names = (&raw mut chain.event.names).cast::<u8>();
    let written = match name {
        // SAFETY: masked, the start is within the text, and the slack has room for a whole name.
        Some(name) => unsafe {
            bpf_probe_read_kernel_str(
                names.add(used as usize & (PATH_BYTES - 1)).cast(),
                PATH_SLACK as u32,
                name as *const c_void,
            )
        },
        None => -1,
    };
    if written <= 0 || i64::from(used) + written > PATH_BYTES as i64 {
        chain.event.path.truncated = 1;
        return 1;
    }
    chain.event.path.len = used + written as u32;
    0
}

/// About an address.
#[inline(always)]
pub(crate) fn net(hook: Hook, member: &Member, decision: Decision, net: NetPayload) {
    let event = NetEvent { header: header(Kind::Net, hook, member, decision), net };
    send(member, decision.reason, &raw const event, size_of::<NetEvent>() as u32);
}

/// About a unix socket with an abstract name. A function of its own, for its stack.
#[inline(never)]
pub(crate) fn unix(hook: Hook, member: &Member, decision: Decision, name: &AbstractName) {
    let mut event = MaybeUninit::<UnixEvent>::uninit();
    // SAFETY: plain numbers, and every one of them is set.
    let event = unsafe {
        let event = &mut *event.as_mut_ptr();
        fill(&mut event.header, Kind::Unix, hook as u8, member, decision);
        let from = core::ptr::from_ref(name).cast::<u32>();
        let to = (&raw mut event.name).cast::<u32>();
        // Word by word: left to the compiler it becomes a call.
        for word in 0..size_of::<AbstractName>() / 4 {
            to.add(word).write_volatile(from.add(word).read_volatile());
        }
        event
    };
    send(member, decision.reason, core::ptr::from_ref(event), size_of::<UnixEvent>() as u32);
}

/// About a packet. Whose task sends or gets it is not known.
#[inline(always)]
pub(crate) fn packet(hook: Hook, member: &Member, decision: Decision, net: NetPayload) {
    let event = NetEvent { header: of_packet((Kind::Net, hook), member, decision), net };
    send(member, decision.reason, &raw const event, size_of::<NetEvent>() as u32);
}

/// The same with the name that TLS asks for, which `event` holds already.
#[inline(always)]
pub(crate) fn server(
    member: &Member,
    decision: Decision,
    net: NetPayload,
    event: &mut ServerEvent,
) {
    event.header = of_packet((Kind::Server, Hook::Egress), member, decision);
    event.server.net = net;
    send(member, decision.reason, core::ptr::from_ref(event), size_of::<ServerEvent>() as u32);
}

#[inline(always)]
fn of_packet((kind, hook): (Kind, Hook), member: &Member, decision: Decision) -> Header {
    Header {
        version: VERSION,
        kind: kind as u8,
        hook: hook as u8,
        reason: decision.reason as u8,
        access: u32::from(decision.denied),
        session: member.subject.session,
        rule: decision.rule,
        time: task::boot_time(),
        cgroup: member.cgroup,
        pid: 0,
        tid: 0,
        uid: 0,
        mode: member.subject.mode,
        comm: [0; 16],
    }
}

/// About the task itself.
#[inline(never)]
pub(crate) fn task(hook: Hook, member: &Member, decision: Decision) {
    let header = header(Kind::Task, hook, member, decision);
    send(member, decision.reason, &raw const header, size_of::<Header>() as u32);
}

/// That a member was moved to the cgroup of this path, by the current task.
#[inline(always)]
pub(crate) fn moved(member: &Member, task: Task, to: u64) {
    let mut event = MaybeUninit::<MovedEvent>::zeroed();
    // SAFETY: plain numbers, of which zero is one.
    let event = unsafe { &mut *event.as_mut_ptr() };
    fill(&mut event.header, Kind::Moved, Hook::CgroupAttachTask as u8, member, Decision::ALLOW);
    event.moved.pid = task.pid();
    event.moved.comm = task.comm();
    // SAFETY: there is so much room; what cannot be read or is longer is cut, and ends in a zero.
    unsafe {
        bpf_probe_read_kernel_str(
            event.moved.to.as_mut_ptr().cast(),
            MOVED_BYTES as u32,
            to as *const c_void,
        );
    }
    send(member, 0, event, size_of::<MovedEvent>() as u32);
}

/// About another process.
#[inline(always)]
pub(crate) fn process(hook: Hook, member: &Member, decision: Decision, task: Task, request: u32) {
    let process = ProcessPayload { pid: task.pid(), request, comm: task.comm() };
    let event = ProcessEvent { header: header(Kind::Process, hook, member, decision), process };
    send(member, decision.reason, &raw const event, size_of::<ProcessEvent>() as u32);
}
