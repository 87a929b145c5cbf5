//! One operation, performed by system calls, and how it went.
//!
//! `kernel-tests probe serve` reads operations from its standard input, one JSON object a line,
//! performs each in a child of its own and answers with one line. The same program inside and
//! outside a session is a member and its harmless twin.

mod answer;
mod attributes;
mod descriptors;
mod files;
mod greed;
mod hello;
mod kinds;
mod landlock;
mod listen;
mod lookup;
mod names;
mod network;
mod operation;
mod outsider;
mod place;
mod process;
mod programs;
mod stage;
mod start;
mod surface;
mod unix;
mod uring;

pub(crate) use answer::{Answer, Failure};
use answer::{Outcome, Stage};
pub(crate) use attributes::Attribute;
pub(crate) use descriptors::{Use, send};
pub(crate) use files::deep_directory;
pub(crate) use hello::ANSWER;
pub(crate) use kinds::{SocketKind, SocketWay, kinds_of, socket_kinds};
pub(crate) use listen::add_address;
pub(crate) use lookup::LookupWay;
pub(crate) use operation::{ENOUGH, Handle, Heard, HelloWay, Operation, UdpWay};
pub(crate) use outsider::{Act, Whom};
pub(crate) use place::Place;
pub(crate) use process::Identity;
pub(crate) use programs::SIGNALLED;
pub(crate) use stage::Step;
pub(crate) use start::Call;
pub(crate) use surface::{IPC_KEY, Surface, add_key};
pub(crate) use unix::UnixName;

use std::process::ExitCode;

/// Performs the operation in this process, or in its children where the operation says so.
#[expect(clippy::too_many_lines, reason = "a line for each operation")]
pub(crate) fn perform(operation: &Operation) -> Answer {
    use Operation as O;
    let name = operation.name();
    let outcome = match operation {
        O::Fork { then } => return process::in_child(name, || perform(then)),
        O::Daemon { then } => return process::daemon(name, then),
        O::Thread { then } => return process::thread(name, then),
        O::Chroot { root, then } => match process::chroot(root) {
            Ok(()) => return perform(then),
            Err(failure) => Err(failure),
        },
        O::Namespace { user, binds, then } => match process::namespace(*user, binds) {
            Ok(()) => return perform(then),
            Err(failure) => Err(failure),
        },
        O::As { uid, then } => match process::ordinary(*uid) {
            Ok(()) => return perform(then),
            Err(failure) => Err(failure),
        },
        O::Landlocked { beneath, then } => match landlock::confine(beneath) {
            Ok(()) => return perform(then),
            Err(failure) => Err(failure),
        },
        O::Named { name: called, then } => match process::named(called) {
            Ok(()) => return perform(then),
            Err(failure) => Err(failure),
        },
        O::OldOpen { path, flags } => process::old_open(path, *flags),
        O::UringPolled { path, flags } => uring::open_polled(path, *flags),
        O::Flood { path, flags, times } => files::flood(path, *flags, *times),
        O::Many { directory, files } => greed::many(directory, *files),
        O::Bomb { path } => greed::bomb(path),
        O::Mounted { kind, at, options, then } => match process::mounted(kind, at, options) {
            Ok(()) => return perform(then),
            Err(failure) => Err(failure),
        },
        O::FsMounted { kind, options } => process::fs_mounted(kind, options),
        O::Unmount { path, lazy } => process::unmount(path, *lazy),
        O::Siege { path, address, stop, pause } => network::siege(path, *address, stop, *pause),
        O::Run { words } => process::run(words),
        O::Other { whom, act } => outsider::act(*whom, act),
        O::Reach { surface } => surface::reach(surface),
        O::ExecuteMemory { then } => return process::execute_memory(name, then),
        O::Crash {} => return process::crash(name),
        O::VforkOpen { path } => return process::vfork_open(name, path),
        O::Identity {} => process::identity(),
        O::Execute { path, descriptor } => {
            let by = if *descriptor { Call::Execveat } else { Call::Execve };
            return start::start(name, path, &["probe", "exit", "0"].map(str::to_owned), by);
        }
        O::Start { path, words, by } => return start::start(name, path, words, *by),
        O::IntoCgroup { cgroup } => process::into_cgroup(cgroup),
        O::Leftover {} => process::leftover(),
        O::Open { path, flags } => files::open(path, *flags),
        O::Openat2 { path, flags } => files::openat2(path, *flags),
        O::Reopen { path, flags } => files::reopen(path, *flags),
        O::OpenDeep { base, level, depth, name, flags } => {
            files::open_deep(base, level, *depth, name, *flags)
        }
        O::OpenTree { directory, name, flags } => files::open_tree(directory, name, *flags),
        O::Handle { path } => files::handle(path),
        O::OpenHandle { mount, handle, flags } => files::open_handle(mount, handle, *flags),
        O::UringOpen { path, flags, worker } => uring::open(path, *flags, *worker),
        O::Write { path, text, flags } => files::write(path, text, *flags),
        O::Truncate { path, length } => files::truncate(path, *length),
        O::OwnMemory {} => files::own_memory(),
        O::Create { path } => names::create(path),
        O::Mkdir { path } => names::mkdir(path),
        O::Rmdir { path } => names::rmdir(path),
        O::Unlink { path } => names::unlink(path),
        O::Symlink { target, path } => names::symlink(target, path),
        O::Link { from, to } => names::link(from, to),
        O::LinkDescriptor { from, to, through_proc } => {
            names::link_descriptor(from, to, *through_proc)
        }
        O::LinkTemporary { directory, to, through_proc } => {
            names::link_temporary(directory, to, *through_proc)
        }
        O::Rename { from, to, flags } => names::rename(from, to, *flags),
        O::UringRename { from, to } => uring::rename(from, to),
        O::UringUnlink { path } => uring::unlink(path),
        O::Mknod { path, kind, device } => names::mknod(path, *kind, *device),
        O::BindSocket { path } => names::bind_socket(path),
        O::Chmod { path, mode } => names::chmod(path, *mode),
        O::Chown { path, uid } => names::chown(path, *uid),
        O::RemoveTree { path } => names::remove_tree(path),
        O::Change { path, attribute } => attributes::change(path, *attribute),
        O::UseFile { path, flags, usage } => descriptors::of_file(path, *flags, *usage),
        O::UseInherited { number, usage } => descriptors::inherited(*number, *usage),
        O::UseReceived { from, usage } => descriptors::received(from, *usage),
        O::UseTaken { pid, number, usage } => descriptors::taken(*pid, *number, *usage),
        O::PassOwn { path, flags } => descriptors::passed(path, *flags),
        O::UringPersonality { path, flags } => uring::open_as_personality(path, *flags),
        O::Tcp { address } => network::tcp(*address),
        O::TcpAcross { address, until } => network::tcp_across(*address, until),
        O::TcpFastOpen { address } => network::tcp_fast_open(*address),
        O::UringTcp { address } => uring::connect(*address),
        O::Hello { address, parts, way, answered } => hello::send(*address, parts, *way, *answered),
        O::Udp { address, way } => network::udp(*address, *way),
        O::Hear { to } => network::hear(to),
        O::Hammer { address, threads } => Ok(network::hammer(*address, *threads)),
        O::Socket { domain, kind, protocol } => network::socket(*domain, *kind, *protocol),
        O::SocketTable { way } => kinds::table(*way),
        O::Between { one, other, until, threads } => names::between(one, other, until, *threads),
        O::Lookup { server, name, kind, way } => lookup::lookup(*server, name, *kind, *way),
        O::LookupGarbage { server } => lookup::garbage(*server),
        O::Bind { address, udp } => listen::bind(*address, *udp),
        O::Listen { address, unbound } => listen::listen(*address, *unbound),
        O::OwnTcp { at, to } => listen::own_tcp(*at, *to),
        O::ListenOn { ip } => listen::listen_on(*ip),
        O::OwnUdp { at } => listen::own_udp(*at),
        O::AfterOwn { address } => listen::after_own(*address),
        O::Routed { address, via } => listen::routed(*address, *via),
        O::DisconnectInherited { number } => listen::disconnect_inherited(*number),
        O::UnixStream { to } => unix::stream(to),
        O::UnixDatagram { to } => unix::datagram(to),
        O::UnixConnected { to } => unix::connected(to),
        O::UnixOwn { at } => unix::own(at),
    };
    Answer::new(name, outcome)
}

/// What the command line asks for besides the suite: `probe …`, `stage …`, the tests
/// that can be run longer, and a list of what is tested.
pub(crate) fn command_line() -> Option<ExitCode> {
    let mut words = std::env::args().skip(1);
    let first = words.next();
    let rest: Vec<String> = words.collect();
    match first.as_deref() {
        Some("probe") => Some(programs::probe(&rest)),
        Some("stage") => Some(stage::main(&rest)),
        Some("coverage") => Some(crate::coverage::command()),
        Some("race") => Some(crate::race::command(&rest)),
        Some("differential") => Some(crate::differential::command(&rest)),
        _ => None,
    }
}
