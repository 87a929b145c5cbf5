//! The kernel itself, and what all processes of a machine share, are out of reach: for an ordinary user,
//! for the agent that is root, and for a member that has every capability.

use crate::harness::{
    Attack, Bystander, Denial, Ground, Policy, Session, Why, both, bystander_is_free, engines,
    member_is_refused, trial,
};
use crate::probe::{IPC_KEY, Operation, Place, Surface, add_key};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;

pub(super) const ROWS: &[(&str, &str)] = &[
    ("A46", "surface::ordinary_user"),
    ("A47", "surface::ordinary_user"),
    ("A48", "surface::ordinary_user"),
    ("A51", "surface::ordinary_user"),
    ("A52", "surface::ordinary_user"),
    ("A57", "surface::ordinary_user"),
    ("D4.75", "surface::ordinary_user"),
    ("A46", "surface::member_with_every_capability"),
    ("A46", "surface::agent_that_is_root"),
    ("A47", "surface::member_with_every_capability"),
    ("A48", "surface::agent_that_is_root"),
    ("A51", "surface::agent_that_is_root"),
    ("A51", "surface::member_with_every_capability"),
    ("A52", "surface::agent_that_is_root"),
    ("A57", "surface::agent_that_is_root"),
    ("A58", "surface::keys_and_ipc_of_outsiders"),
    ("D4.75", "surface::agent_that_is_root"),
];

pub(super) fn trials() -> Vec<Trial> {
    let twice = [both("surface::keys_and_ipc_of_outsiders", shared)];
    let once = [
        trial("surface::ordinary_user", || surfaces(Who::User)),
        trial("surface::agent_that_is_root", || surfaces(Who::Root)),
        trial("surface::member_with_every_capability", || surfaces(Who::Adopted)),
    ];
    twice.into_iter().flatten().chain(once).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    User,
    Root,
    Adopted,
}

const USER: u32 = 65_534;

fn attacks(who: Who, ground: &Ground) -> anyhow::Result<Vec<Attack>> {
    let file = ground.file(&ground.workspace())?;
    let as_who = |operation| match who {
        Who::User => Operation::As { uid: USER, then: Box::new(operation) },
        Who::Root | Who::Adopted => operation,
    };
    let reach = |surface| as_who(Operation::Reach { surface });
    // A member that has no right to it is refused before anybody is asked.
    let hook = |name, told| {
        let denial = Denial::by(name).task().because(Why::Reason(&["never"]));
        if told || who == Who::Adopted { denial } else { denial.perhaps_untold() }
    };
    let twin = || reach(Surface::Ask);
    let attack = |name, surface, hooks, told| Attack {
        name,
        operation: reach(surface),
        denial: hook(hooks, told),
        twin: twin(),
    };
    let terminal = |name, surface| Attack {
        name,
        operation: reach(surface),
        denial: hook(&["file_ioctl"], true),
        twin: reach(Surface::AskTerminal),
    };
    let mut attacks = vec![
        attack("every command of bpf", Surface::Bpf, &["bpf"], true),
        attack("perf_event_open", Surface::Perf, &["perf_event_open"], false),
        attack("quotactl", Surface::Quota, &["quotactl"], true),
        attack("init_module", Surface::InitModule, &["kernel_load_data"], false),
        attack("finit_module", Surface::LoadModule(file.clone()), &["kernel_read_file"], false),
        attack("kexec_load", Surface::Kexec, &["kernel_load_data"], false),
        attack("the kernel's log", Surface::Log, &["syslog"], who == Who::Root),
        attack("the clock", Surface::SetClock, &["settime"], false),
        terminal("typing into a terminal", Surface::Type),
        terminal("pasting into a console", Surface::Paste),
    ];
    if who != Who::Adopted {
        // No hook holds these: the agent lacks the capability.
        let without = |name, surface| attack(name, surface, &[], false);
        let unmount = |lazy| Attack {
            name: "umount of the pins",
            operation: as_who(Operation::Unmount { path: "/sys/fs/bpf".into(), lazy }),
            denial: hook(&["sb_umount"], false),
            twin: twin(),
        };
        attacks.extend([false, true].map(unmount));
        attacks.extend([
            without("delete_module", Surface::DeleteModule),
            without("bending the clock", Surface::BendClock),
            without("swapoff", Surface::SwapOff(file)),
            without("reboot", Surface::Reboot),
            without("a port", Surface::Port),
            without("the host's name", Surface::HostName),
            without("accounting", Surface::Accounting),
            without("a network interface", Surface::Interface),
        ]);
    }
    Ok(attacks)
}

fn surfaces(who: Who) -> anyhow::Result<()> {
    let ground = Ground::new("surface")?;
    let mut attacks = attacks(who, &ground)?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    if who == Who::Adopted {
        session.adopt()?;
        mounts(&mut session, &ground)?;
    }
    member_is_refused(&mut session, &attacks)?;
    if who == Who::Root {
        // But for the pins, which the next tests need.
        attacks.retain(|attack| !attack.name.starts_with("umount"));
        bystander_is_free(&attacks, &[])?;
    }
    session.finish()
}

/// The mount hooks, which only a member with the capability ever reaches.
fn mounts(session: &mut Session, ground: &Ground) -> anyhow::Result<()> {
    let at = ground.directory(&ground.workspace())?;
    let namespace =
        |binds| Operation::Namespace { user: false, binds, then: Box::new(Operation::Identity {}) };
    let denial =
        |hooks| Denial::by(hooks).task().because(Why::Reason(&["never"])).error(libc::EPERM);
    let bind = namespace(vec![(ground.outside(), at.clone())]);
    session.refused("mount --bind", &bind, &denial(&["sb_mount"]))?;
    let user = Operation::Namespace {
        user: true,
        binds: Vec::new(),
        then: Box::new(Operation::Identity {}),
    };
    session.refused("a user namespace", &user, &denial(&["userns_create"]))?;
    let pins: Place = "/sys/fs/bpf".into();
    for lazy in [false, true] {
        let unmount = Operation::Unmount { path: pins.clone(), lazy };
        session.refused("umount of the pins", &unmount, &denial(&["sb_umount"]))?;
    }
    ensure!(engines().pop().context("the pins are gone")?.exists(), "the pins are gone");
    session.allowed("a mount namespace", &namespace(Vec::new()))?;
    Ok(())
}

/// Objects of outsiders that have a key or a number.
fn shared() -> anyhow::Result<()> {
    // SAFETY: plain numbers; removed below.
    let (memory, queue, semaphores) = unsafe {
        let make = libc::IPC_CREAT | 0o666;
        let memory = libc::shmget(IPC_KEY + 1, 4096, make);
        (memory, libc::msgget(IPC_KEY + 1, make), libc::semget(IPC_KEY + 1, 1, make))
    };
    ensure!(memory >= 0 && queue >= 0 && semaphores >= 0, "no System V objects");
    let name = c"/sandbox-probe";
    // SAFETY: a string that lives until the call returns, and plain numbers.
    let posix = unsafe {
        let nothing = std::ptr::null::<libc::c_void>();
        libc::mq_open(name.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o666, nothing)
    };
    ensure!(posix >= 0, "no POSIX queue: {}", std::io::Error::last_os_error());
    // Whatever the suite's mask took from its mode.
    // SAFETY: plain numbers.
    unsafe { libc::fchmod(posix, 0o666) };
    let key = add_key("outsider's").context("adding a key")?;
    // Everybody may read it, as far as the key itself goes. `KEYCTL_SETPERM`
    // SAFETY: plain numbers.
    let set = unsafe { libc::syscall(libc::SYS_keyctl, 5, key, 0x3f3f_3f3f) };
    ensure!(set == 0, "KEYCTL_SETPERM: {}", std::io::Error::last_os_error());
    let result = reach_shared(key);
    // SAFETY: what was made above; the machine is thrown away anyway.
    unsafe {
        libc::shmctl(memory, libc::IPC_RMID, std::ptr::null_mut());
        libc::msgctl(queue, libc::IPC_RMID, std::ptr::null_mut());
        libc::semctl(semaphores, 0, libc::IPC_RMID);
        libc::mq_unlink(name.as_ptr());
        libc::close(posix);
    }
    result
}

fn reach_shared(key: i32) -> anyhow::Result<()> {
    let ground = Ground::new("shared")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let mut bystander = Bystander::new()?;
    let reach = |surface| Operation::Reach { surface };
    // There is no such thing where the member is, so nothing is denied.
    let absent = Denial::by(&[]).perhaps_untold().error(libc::ENOENT);
    let keys = Denial::by(&["key_permission"])
        .task()
        .because(Why::Reason(&["outsider"]))
        // As if there were no such key.
        .error(libc::ENOKEY);
    let attacks = [
        ("shared memory", reach(Surface::SharedMemory(IPC_KEY + 1)), absent.clone()),
        ("a message queue", reach(Surface::MessageQueue(IPC_KEY + 1)), absent.clone()),
        ("semaphores", reach(Surface::Semaphores(IPC_KEY + 1)), absent.clone()),
        ("a POSIX queue", reach(Surface::PosixQueue("/sandbox-probe".into())), absent),
        ("a key", reach(Surface::Key(key)), keys),
    ];
    for (name, attack, denial) in &attacks {
        session.refused(name, attack, denial)?;
        let answer = bystander.perform(attack)?;
        if answer.errno != 0 {
            session.problem(format!("{name}: a bystander was hindered: {answer}"));
        }
    }
    session.allowed("System V objects of its own", &reach(Surface::OwnIpc))?;
    session.allowed("a key of its own", &reach(Surface::OwnKey))?;
    session.finish()
}
