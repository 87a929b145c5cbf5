//! Reaching for the kernel itself and for what all processes share.

use super::files::checked;
use super::{Failure, Outcome, Place, Stage};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::ffi::CString;
use std::os::fd::AsRawFd as _;

/// What is tried. The kernel's own complaints about the arguments count as having got through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Surface {
    /// Every command of `bpf(2)`; refused only where all are.
    Bpf,
    /// `perf_event_open` of the caller itself
    Perf,
    /// `init_module`
    InitModule,
    /// `finit_module` of this file
    LoadModule(Place),
    /// `delete_module` of one that does not exist
    DeleteModule,
    /// `kexec_load`
    Kexec,
    /// `kexec_file_load` of this file
    KexecFile(Place),
    /// Reading the kernel's log by `syslog(2)`
    Log,
    /// `clock_settime` to now
    SetClock,
    /// `adjtimex` with what it already has
    BendClock,
    /// `quotactl(Q_SYNC)` of every file system
    Quota,
    /// `swapoff` of a file
    SwapOff(Place),
    /// `reboot(LINUX_REBOOT_CMD_CAD_OFF)`
    Reboot,
    /// `ioperm` of a port
    Port,
    /// `sethostname` to what it is
    HostName,
    /// `acct` without a file
    Accounting,
    /// `SIOCSIFMTU` of the loopback interface to what it is
    Interface,
    /// `TIOCSTI` on a terminal of its own
    Type,
    /// `TIOCLINUX` on it
    Paste,
    /// `TIOCGWINSZ` on it
    AskTerminal,
    /// `clock_gettime`, `adjtimex` that only asks, `SIOCGIFMTU`
    Ask,
    /// Adds a key to the user's keyring and finds it.
    OwnKey,
    /// `KEYCTL_READ` of this key
    Key(i32),
    /// Attaches the System V shared memory of this key.
    SharedMemory(i32),
    /// Finds the System V message queue of this key.
    MessageQueue(i32),
    /// Finds the System V semaphores of this key.
    Semaphores(i32),
    /// Makes all three and uses them.
    OwnIpc,
    /// `mq_open` of this name, for reading
    PosixQueue(String),
}

/// The kernel's complaint about arguments means that nobody refused.
fn reached(result: libc::c_long, stage: &'static str) -> Result<i64, Failure> {
    match checked(result, stage) {
        Err(failure) if !matches!(failure.errno, Errno::PERM | Errno::ACCESS) => Ok(-1),
        other => other,
    }
}

pub(super) fn reach(surface: &Surface) -> Outcome {
    match surface {
        Surface::Bpf => return bpf(),
        Surface::OwnKey => return own_key(),
        Surface::OwnIpc => return own_ipc(),
        Surface::Ask => return ask(),
        Surface::Type | Surface::Paste | Surface::AskTerminal => return terminal(surface),
        Surface::Interface => return interface(true),
        Surface::LoadModule(path) => {
            let file = read_only(path)?;
            let empty = c"".as_ptr();
            // SAFETY: a descriptor and a string that live until the call returns.
            let result =
                unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), empty, 0) };
            reached(result, "finit_module")
        }
        Surface::KexecFile(path) => {
            let file = read_only(path)?;
            let (call, empty) = (libc::SYS_kexec_file_load, c"".as_ptr());
            // Flag `KEXEC_FILE_NO_INITRAMFS`.
            // SAFETY: as above; one byte of command line, which is the zero.
            reached(
                unsafe { libc::syscall(call, file.as_raw_fd(), -1, 1, empty, 4) },
                "kexec_file_load",
            )
        }
        other => simple(other),
    }?;
    Ok(Value::Null)
}

fn read_only(path: &Place) -> Result<rustix::fd::OwnedFd, Failure> {
    rustix::fs::open(path.path(), OFlags::RDONLY, Mode::empty()).stage("openat")
}

fn c_text(text: &[u8]) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure { errno: Errno::INVAL, stage: "text" })
}

/// One system call each.
fn simple(surface: &Surface) -> Result<i64, Failure> {
    // SAFETY: numbers, and pointers to locals that outlive the calls.
    unsafe {
        match surface {
            Surface::Perf => {
                // `struct perf_event_attr`: PERF_TYPE_SOFTWARE, its size, PERF_COUNT_SW_CPU_CLOCK.
                let mut attribute = [0u32; 32];
                attribute[0] = 1;
                attribute[1] = 128;
                let call = libc::SYS_perf_event_open;
                let result = libc::syscall(call, attribute.as_ptr(), 0, -1, -1, 0);
                reached(result, "perf_event_open")
            }
            Surface::InitModule => {
                let image = [0u8; 64];
                let (call, empty) = (libc::SYS_init_module, c"".as_ptr());
                reached(libc::syscall(call, image.as_ptr(), image.len(), empty), "init_module")
            }
            Surface::DeleteModule => {
                let (call, name) = (libc::SYS_delete_module, c"no_such_module".as_ptr());
                reached(libc::syscall(call, name, libc::O_NONBLOCK), "delete_module")
            }
            Surface::Kexec => {
                let none = std::ptr::null::<u8>();
                reached(libc::syscall(libc::SYS_kexec_load, 0, 1, none, 0), "kexec_load")
            }
            Surface::Log => {
                let mut text = [0u8; 64];
                let size = libc::c_int::try_from(text.len()).unwrap_or_default();
                // `SYSLOG_ACTION_READ_ALL`
                reached(libc::klogctl(3, text.as_mut_ptr().cast(), size).into(), "syslog")
            }
            Surface::SetClock => {
                let mut now: libc::timespec = std::mem::zeroed();
                libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now);
                let result = libc::clock_settime(libc::CLOCK_REALTIME, &raw const now);
                reached(result.into(), "clock_settime")
            }
            Surface::BendClock => {
                let mut clock: libc::timex = std::mem::zeroed();
                libc::adjtimex(&raw mut clock);
                clock.modes = libc::ADJ_FREQUENCY;
                reached(libc::adjtimex(&raw mut clock).into(), "adjtimex")
            }
            Surface::Quota => {
                // `Q_SYNC` of users, and no device.
                let (command, none) = (0x8000_0100_u32, std::ptr::null::<u8>());
                reached(libc::syscall(libc::SYS_quotactl, command, none, 0, none), "quotactl")
            }
            Surface::SwapOff(path) => {
                let path = c_text(path.bytes())?;
                reached(libc::swapoff(path.as_ptr()).into(), "swapoff")
            }
            Surface::Reboot => {
                reached(libc::reboot(libc::LINUX_REBOOT_CMD_CAD_OFF).into(), "reboot")
            }
            Surface::Port => reached(libc::ioperm(0x80, 1, 1).into(), "ioperm"),
            Surface::HostName => {
                let mut name = [0 as libc::c_char; 64];
                libc::gethostname(name.as_mut_ptr(), name.len());
                let length = libc::strnlen(name.as_ptr(), name.len());
                reached(libc::sethostname(name.as_ptr(), length).into(), "sethostname")
            }
            Surface::Accounting => reached(libc::acct(std::ptr::null()).into(), "acct"),
            Surface::Key(key) => {
                let mut text = [0u8; 64];
                // `KEYCTL_READ`
                let call = libc::SYS_keyctl;
                checked(libc::syscall(call, 11, *key, text.as_mut_ptr(), text.len()), "KEYCTL_READ")
            }
            Surface::SharedMemory(key) => {
                let id = checked(libc::shmget(*key, 0, 0).into(), "shmget")?;
                let at = libc::shmat(i32::try_from(id).unwrap_or(-1), std::ptr::null(), 0);
                checked(at as libc::c_long, "shmat")
            }
            Surface::MessageQueue(key) => checked(libc::msgget(*key, 0).into(), "msgget"),
            Surface::Semaphores(key) => checked(libc::semget(*key, 1, 0).into(), "semget"),
            Surface::PosixQueue(name) => {
                let name = c_text(name.as_bytes())?;
                checked(libc::mq_open(name.as_ptr(), libc::O_RDONLY).into(), "mq_open")
            }
            _ => Err(Failure { errno: Errno::NOSYS, stage: "the test's own table" }),
        }
    }
}

/// More commands than any kernel has.
const COMMANDS: i32 = 48;

fn bpf() -> Outcome {
    let mut through = Vec::new();
    for command in 0..COMMANDS {
        let mut attribute = [0u64; 18];
        let size = size_of_val(&attribute);
        // SAFETY: a valid buffer of that many bytes; all zeros name nothing.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, attribute.as_mut_ptr(), size) };
        if reached(result, "bpf").is_ok() {
            through.push(command);
        }
    }
    if through.is_empty() {
        return Err(Failure { errno: Errno::PERM, stage: "bpf, every command" });
    }
    Ok(json!(through))
}

/// The loopback interface's MTU, asked for or also set.
fn interface(set: bool) -> Outcome {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").stage("socket")?;
    // SAFETY: all zero bytes are a valid `ifreq`; the kernel reads and writes that structure only.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = from.cast_signed();
        }
        let number = socket.as_raw_fd();
        let asked = libc::ioctl(number, libc::SIOCGIFMTU, &raw mut request);
        checked(asked.into(), "SIOCGIFMTU")?;
        if set {
            let changed = libc::ioctl(number, libc::SIOCSIFMTU, &raw mut request);
            reached(changed.into(), "SIOCSIFMTU")?;
        }
    }
    Ok(Value::Null)
}

fn ask() -> Outcome {
    // SAFETY: valid places for what is asked; a `timex` of zeros asks only.
    unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        checked(libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now).into(), "clock_gettime")?;
        let mut clock: libc::timex = std::mem::zeroed();
        checked(libc::adjtimex(&raw mut clock).into(), "adjtimex")?;
    }
    interface(false)
}

fn terminal(surface: &Surface) -> Outcome {
    let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
    let terminal = rustix::pty::openpt(flags).stage("openpt")?;
    let mut room = [1u8; 16];
    let request: libc::Ioctl = match surface {
        Surface::Type => 0x5412,
        Surface::Paste => 0x541c,
        _ => libc::TIOCGWINSZ,
    };
    // SAFETY: the longest of these reads or writes eight bytes.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), request, room.as_mut_ptr()) };
    reached(result.into(), "ioctl")?;
    Ok(Value::Null)
}

/// Adds a key to the session keyring; gives its number.
pub(crate) fn add_key(text: &str) -> Result<i32, Errno> {
    /// `KEY_SPEC_SESSION_KEYRING`, include/uapi/linux/keyctl.h
    const SESSION: i32 = -3;
    let (kind, name) = (c"user".as_ptr(), c"probe".as_ptr());
    let (at, len) = (text.as_ptr(), text.len());
    // SAFETY: strings and a buffer that live until the call returns.
    let key = unsafe { libc::syscall(libc::SYS_add_key, kind, name, at, len, SESSION) };
    i32::try_from(key)
        .ok()
        .filter(|key| *key > 0)
        .ok_or_else(|| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

fn own_key() -> Outcome {
    let key = add_key("own").stage("add_key")?;
    simple(&Surface::Key(key))?;
    Ok(Value::Null)
}

/// Where System V objects of a test have their key.
pub(crate) const IPC_KEY: i32 = 0x5eed;

fn own_ipc() -> Outcome {
    let make = libc::IPC_CREAT | 0o600;
    // SAFETY: plain numbers; what is made is removed again.
    unsafe {
        let memory = checked(libc::shmget(IPC_KEY, 4096, make).into(), "shmget")?;
        simple(&Surface::SharedMemory(IPC_KEY))?;
        let queue = checked(libc::msgget(IPC_KEY, make).into(), "msgget")?;
        let semaphores = checked(libc::semget(IPC_KEY, 1, make).into(), "semget")?;
        let id = |number: i64| i32::try_from(number).unwrap_or(-1);
        libc::shmctl(id(memory), libc::IPC_RMID, std::ptr::null_mut());
        libc::msgctl(id(queue), libc::IPC_RMID, std::ptr::null_mut());
        libc::semctl(id(semaphores), 0, libc::IPC_RMID);
    }
    Ok(Value::Null)
}
