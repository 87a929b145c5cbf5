//! Agents' own sandboxes: bubblewrap works where the policy permits namespaces, and every rule holds in
//! it.

use super::machine::{Worker, outside, shell};
use crate::harness::{Denial, Policy, Why, difference, snapshot, trial, write};
use anyhow::{Context as _, bail};
use libtest_mimic::Trial;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("D5.87", "nested::bubblewrap_of_root"),
    ("D5.87", "nested::bubblewrap_of_an_ordinary_user"),
    ("D7.113", "nested::bubblewrap_of_root"),
    ("D7.113", "nested::bubblewrap_of_an_ordinary_user"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("nested::bubblewrap_of_root", || bubblewrap(&Worker::root("nested")?)),
        trial("nested::bubblewrap_of_an_ordinary_user", || bubblewrap(&Worker::dev("nested")?)),
    ]
}

/// As Codex calls it: the whole machine to be read, the workspace and the usual temporary places to be
/// written, users, processes, System V objects and network of its own.
const BWRAP: &str = "bwrap --new-session --die-with-parent --unshare-user --unshare-pid --unshare-ipc \
                     --unshare-net --ro-bind / / --bind \"$PWD\" \"$PWD\" --tmpfs /mnt --dev /dev \
                     --proc /proc";

/// What must work in it.
const WORKS: [(&str, &str); 6] = [
    ("the start of codex", "true"),
    ("the workspace", "echo text > new && grep -q text new && rm new"),
    (
        "memory of its own",
        "mkdir /mnt/d && echo text > /mnt/d/f && mv /mnt/d/f /mnt/g && cat /mnt/g",
    ),
    ("devices", "echo x > /dev/null && head -c1 /dev/urandom > /dev/null && test -e /dev/pts/ptmx"),
    (
        "processes of its own",
        "test $(ls -d /proc/[0-9]* | wc -l) -lt 10 || exit 1; sleep 9 & kill $!",
    ),
    (
        "git",
        "git init -q repo && cd repo && git -c user.email=a@b -c user.name=a commit -q \
         --allow-empty -m first && cd .. && rm -rf repo",
    ),
];

/// What must fail in it, and what the event says.
fn forbidden(worker: &Worker) -> Vec<(&'static str, &'static str, Denial)> {
    let (key, out) = (&worker.key, worker.ground.outside());
    let file = out.join("file");
    vec![
        ("the key", "cat ~/.ssh/id_ed25519", Denial::read(key).of_key()),
        (
            "a bind of the keys",
            "bwrap --unshare-user --ro-bind / / --bind ~/.ssh /mnt cat /mnt/id_ed25519",
            Denial::by(&["file_open"]).access("read").any_object().of_key(),
        ),
        (
            "a bind of what is outside",
            "bwrap --unshare-user --ro-bind / / --bind $OUT /mnt bash -c 'echo evil > /mnt/file'",
            Denial::by(&["file_open"]).access("write").any_object(),
        ),
        ("a write beside the bind", "echo evil > $OUT/file", Denial::write(&file)),
        (
            "a setting of the kernel",
            "echo evil > /proc/sys/kernel/core_pattern",
            // In a procfs of its own, of which no policy says that it may be written.
            Denial::by(&["path_mknod", "file_open"])
                .any_object()
                .because(Why::Reason(&["unknown_filesystem"])),
        ),
        (
            "an overlay over the keys",
            "unshare -Urm bash -c 'mount -t overlay -o lowerdir=$HOME/.ssh:/etc none /mnt && cat \
             /mnt/id_ed25519'",
            Denial::by(&["sb_mount", "fs_context_parse_param", "kernel_module_request"])
                .task()
                .because(Why::Reason(&["never"])),
        ),
        (
            "bpf as root of a namespace",
            // BPF_OBJ_GET: loading and map creation 6.1 refuses before any hook is asked.
            "unshare -Ur python3 -c 'import ctypes; ctypes.CDLL(None, use_errno=True).syscall(321, 7, \
             (ctypes.c_char * 128)(), 128) == 0 or exit(1)'",
            Denial::by(&["bpf"]).task().because(Why::Reason(&["never"])),
        ),
    ]
}

fn bubblewrap(worker: &Worker) -> anyhow::Result<()> {
    let out = worker.ground.outside();
    write(&out.join("file"), "content")?;
    worker.give(&out.join("file"))?;
    let before = snapshot(out.path())?;
    let runner = worker.runner(&Policy::preset().except(&["persistence"]).namespaces())?;
    let forbidden = forbidden(worker);
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let step =
        |name: String, line: String| format!("{line} 2>.{name}.err; echo $? >.{name}.status; ");
    let works = WORKS.iter().enumerate().map(|(at, (_, script))| {
        step(format!("w{at}"), format!("{BWRAP} bash -c {} </dev/null", quoted(script)))
    });
    let fails = forbidden.iter().enumerate().map(|(at, (_, script, _))| {
        // Where a bind is to be tried, the agent's own bubblewrap makes it.
        let direct = script.starts_with("bwrap") || script.starts_with("unshare");
        let script = quoted(&format!("OUT={out}; {script}"));
        let line =
            if direct { format!("bash -c {script}") } else { format!("{BWRAP} bash -c {script}") };
        step(format!("f{at}"), format!("{line} </dev/null"))
    });
    let script: String = works.chain(fails).collect();
    let finished = shell(worker, &runner, &script)?;
    let read = |name: String| {
        let path = worker.ground.workspace().join(&name);
        std::fs::read_to_string(path.path())
            .with_context(|| format!("{name}: {}", finished.report()))
    };
    let mut problems = Vec::new();
    for (at, (what, _)) in WORKS.iter().enumerate() {
        let (status, errors) = (read(format!(".w{at}.status"))?, read(format!(".w{at}.err"))?);
        if status.trim() != "0" {
            problems.push(format!("{what} must work in bubblewrap: status {status}{errors}"));
        }
    }
    for (at, (what, _, denial)) in forbidden.iter().enumerate() {
        let (status, errors) = (read(format!(".f{at}.status"))?, read(format!(".f{at}.err"))?);
        if status.trim() == "0" {
            problems.push(format!("{what} must fail in bubblewrap: {errors}"));
        }
        if let Err(error) = runner.told(denial) {
            problems.push(format!("{what}: {error:#}"));
        }
    }
    if finished.out.contains("PRIVATE") {
        problems.push(format!("the key was shown: {}", finished.out));
    }
    problems.extend(difference(&before, &snapshot(out.path())?));
    if !problems.is_empty() {
        bail!("{} problem(s)\n  - {}", problems.len(), problems.join("\n  - "));
    }
    // The attacks are real: without a session they succeed.
    outside(
        &out,
        "bwrap --unshare-user --ro-bind / / --bind ~/.ssh /mnt cat /mnt/id_ed25519 >/dev/null",
    )
}
