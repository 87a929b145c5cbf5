//! The same programs aimed at what is forbidden: they fail, an event explains, nothing changes.

use super::machine::{Worker, outside, shell};
use crate::harness::{Denial, HOME, Policy, Why, difference, snapshot, trial, write};
use anyhow::{Context as _, bail};
use libtest_mimic::Trial;
use std::path::Path;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A36", "forbidden::programs_fail_and_nothing_changes"),
    ("A1", "forbidden::programs_fail_and_nothing_changes"),
    ("A4", "forbidden::programs_fail_and_nothing_changes"),
    ("A6", "forbidden::programs_fail_and_nothing_changes"),
    ("D4.69", "forbidden::programs_fail_and_nothing_changes"),
    ("D4.70", "forbidden::programs_fail_and_nothing_changes"),
    ("D4.76", "forbidden::programs_fail_and_nothing_changes"),
    ("D5.88", "forbidden::programs_fail_and_nothing_changes"),
    ("D5.88", "forbidden::own_rules_are_named_with_their_line"),
    ("D1.24", "forbidden::programs_fail_and_nothing_changes"),
    ("D2.34", "forbidden::programs_fail_and_nothing_changes"),
    ("D2.45", "forbidden::programs_fail_and_nothing_changes"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("forbidden::programs_fail_and_nothing_changes", programs),
        trial("forbidden::own_rules_are_named_with_their_line", own_rules),
        trial("forbidden::bubblewrap_does_not_help", bubblewrap),
    ]
}

/// A script, and what the event must say.
type Case = (&'static str, &'static str, Denial);

fn cases(worker: &Worker) -> Vec<Case> {
    let out = worker.ground.outside();
    let rc = format!("{HOME}/.bashrc");
    let key = &worker.key;
    let by = |hooks: &[&'static str], access| Denial::by(hooks).access(access).beneath(&out);
    let in_etc = |hook| Denial::by(&[hook]).access("create").beneath("/etc/");
    let read_key = || Denial::read(key).of_key();
    let write_rc = || Denial::write(&rc).because(Why::Preset("files.write.deny", "~/.{bashrc"));
    let never = |hook| Denial::by(&[hook]).any_object().because(Why::Reason(&["never"]));
    let outsider = |hook| Denial::by(&[hook]).any_object().because(Why::Reason(&["outsider"]));
    // The bus, or systemd's own socket.
    let by_bus = || Denial::by(&["unix_stream_connect"]).access("connect").beneath("/run/");
    let moved = || Denial::by(&["path_rename"]).because(Why::Reason(&["default", "gain", "rule"]));
    vec![
        (
            "git commit",
            "cd $OUT/repo && git commit -q --allow-empty -m more",
            by(&["path_mknod"], "create"),
        ),
        (
            "tar",
            "mkdir -p t/t && tar cf t.tar -C t t && tar xf t.tar -C /etc",
            in_etc("path_mkdir"),
        ),
        (
            "python",
            "python3 -c 'import os; open(os.path.expanduser(\"~/.bashrc\"), \"a\")'",
            write_rc(),
        ),
        ("bash redirection", "echo evil >> ~/.bashrc", write_rc()),
        ("cat", "cat ~/.ssh/id_ed25519", read_key()),
        ("cp of the key", "cp ~/.ssh/id_ed25519 stolen", read_key()),
        ("tar of the key", "tar cf stolen.tar -C ~/.ssh id_ed25519", read_key()),
        (
            "ln of the key",
            "ln ~/.ssh/id_ed25519 stolen",
            Denial::by(&["path_link"]).because(Why::Reason(&["rule", "default", "gain"])),
        ),
        ("mv of the key", "mv ~/.ssh/id_ed25519 stolen", moved()),
        ("cp over", "echo evil > evil && cp evil $OUT/file", by(&["file_open"], "write")),
        ("cp to a new name", "echo evil > evil && cp evil /etc/evil", in_etc("path_mknod")),
        ("mv over", "echo evil > evil && mv -f evil ~/.bashrc", moved()),
        ("mv out of", "mv $OUT/file here", moved()),
        ("rm -rf", "rm -rf $OUT/tree", by(&["path_unlink", "path_rmdir"], "delete")),
        ("sed -i", "sed -i s/content/evil/ $OUT/file", by(&["path_mknod"], "create")),
        ("touch", "touch $OUT/new", by(&["path_mknod"], "create")),
        ("mkdir", "mkdir $OUT/new", by(&["path_mkdir"], "create")),
        ("ln -s", "ln -s / $OUT/new", by(&["path_symlink"], "create")),
        ("chmod", "chmod 777 $OUT/file", by(&["path_chmod"], "attributes")),
        ("chown", "chown 1000 $OUT/file", by(&["path_chown"], "attributes")),
        ("truncate", "truncate -s 0 $OUT/file", by(&["file_open", "path_truncate"], "write")),
        ("dd", "dd if=/dev/zero of=$OUT/file count=1", by(&["file_open"], "write")),
        ("systemd-run", "systemd-run --wait --pipe cat ~/.ssh/id_ed25519 > stolen", by_bus()),
        ("systemd-run --scope", "systemd-run --scope cat ~/.ssh/id_ed25519 > stolen", by_bus()),
        ("systemctl", "systemctl restart dbus", by_bus()),
        // As an agent does that wants to be where its limits are not.
        (
            "StartTransientUnit of its own process",
            "busctl call org.freedesktop.systemd1 /org/freedesktop/systemd1 \
             org.freedesktop.systemd1.Manager StartTransientUnit 'ssa(sv)a(sa(sv))' \
             out.scope fail 1 PIDs au 1 $$ 0",
            by_bus(),
        ),
        (
            "writing cgroup.procs",
            "echo $$ > /sys/fs/cgroup/cgroup.procs",
            Denial::write("/sys/fs/cgroup/cgroup.procs"),
        ),
        (
            "typing into a terminal",
            "python3 -c 'import fcntl, os; fcntl.ioctl(os.openpty()[1], 0x5412, b\"x\")'",
            never("file_ioctl"),
        ),
        ("the loader", "/lib64/ld-linux-x86-64.so.2 /bin/cat ~/.ssh/id_ed25519", read_key()),
        ("renice", "python3 -c 'import os; os.setpriority(0, 1, 5)'", outsider("task_setnice")),
        ("memory of init", "python3 -c 'open(\"/proc/1/mem\")'", outsider("ptrace_access_check")),
        (
            "sysctl",
            "echo '|/bin/true' > /proc/sys/kernel/core_pattern",
            Denial::write("/proc/sys/kernel/core_pattern"),
        ),
    ]
}

fn programs() -> anyhow::Result<()> {
    let worker = Worker::root("forbidden")?;
    let out = worker.ground.outside();
    outside(
        &out,
        "git init -q repo; cd repo; git config user.email a@example.org; git config user.name a; \
         git commit -q --allow-empty -m first; cd ..; \
         mkdir -p tree/branch; echo leaf > tree/branch/leaf; echo content > file; touch ~/.bashrc",
    )?;
    let startup = Path::new(HOME).join(".bashrc");
    let places = [out.path(), &startup, Path::new("/etc")];
    let before = places.map(snapshot);
    let runner = worker.runner(&Policy::preset())?;
    // One session for all of them: starting and ending one takes seconds in a machine.
    let cases = cases(&worker);
    let quoted = |text: String| format!("'{}'", text.replace('\'', r"'\''"));
    let scripts: Vec<String> = cases
        .iter()
        .enumerate()
        .map(|(at, (_, script, _))| {
            let script = quoted(format!("OUT={out}; {script}"));
            format!("bash -c {script} </dev/null 2>.{at}.err; echo $? >.{at}.status; ")
        })
        .collect();
    let finished = shell(&worker, &runner, &scripts.concat())?;
    let mut problems = Vec::new();
    for (at, (what, _, denial)) in cases.iter().enumerate() {
        let read = |kind: &str| {
            let path = worker.ground.workspace().join(format!(".{at}.{kind}"));
            std::fs::read_to_string(path.path())
                .with_context(|| format!("{what}: {}", finished.report()))
        };
        let (status, errors) = (read("status")?, read("err")?);
        let told = ["Permission denied", "Operation not permitted", "Access denied"];
        if status.trim() == "0" || !told.iter().any(|text| errors.contains(text)) {
            problems.push(format!("{what} must fail and say so: status {status}{errors}"));
        }
        if let Err(error) = runner.told(denial) {
            problems.push(format!("{what}: {error:#}"));
        }
    }
    for (place, before) in places.iter().zip(before) {
        let changes = difference(&before?, &snapshot(place)?);
        problems.extend(changes.iter().map(|change| format!("on disk: {change}")));
    }
    report(&problems)?;
    // The programs themselves are able: without a session the same works.
    let script = "rm -r tree; touch new; chmod 700 file; mv file moved";
    outside(&out, script).context("the same outside a session")
}

fn report(problems: &[String]) -> anyhow::Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{} problem(s)\n  - {}", problems.len(), problems.join("\n  - "))
}

/// As an ordinary user, with rules of a policy file.
fn own_rules() -> anyhow::Result<()> {
    let worker = Worker::dev("own-rules")?;
    let workspace = worker.ground.workspace();
    for directory in ["private", "hooks"] {
        std::fs::create_dir(workspace.join(directory))?;
        worker.give(&workspace.join(directory))?;
    }
    let (secret, hook) = (workspace.join("private/token"), workspace.join("hooks/hook"));
    for file in [&secret, &hook] {
        write(file, "content")?;
        worker.give(file)?;
    }
    let (read, written) = ("${WORKSPACE}/private/**", "${WORKSPACE}/hooks/**");
    let runner = worker.runner(&Policy::preset().read_deny(read).write_deny(written))?;
    let mut problems = Vec::new();
    let of_secret = || Denial::read(&secret).rule("files.read.deny", read);
    for (script, denial) in [
        ("cat private/token", of_secret()),
        ("/lib64/ld-linux-x86-64.so.2 /bin/cat private/token", of_secret()),
        ("python3 -c 'open(\"private/token\")'", of_secret()),
        ("echo evil > hooks/hook", Denial::write(&hook).rule("files.write.deny", written)),
    ] {
        let finished = shell(&worker, &runner, script)?;
        if finished.status.success() || !finished.err.contains("Permission denied") {
            problems.push(format!("{script} must fail: {}", finished.report()));
        }
        if let Err(error) = runner.told(&denial) {
            problems.push(format!("{script}: {error:#}"));
        }
    }
    let finished = shell(&worker, &runner, "cat hooks/hook && echo fine > beside")?;
    if finished.code() != Some(0) {
        problems.push(format!("what is beside the rules: {}", finished.report()));
    }
    report(&problems)
}

/// Mounts made by the member do not lead around the rules, whether or not they are allowed.
fn bubblewrap() -> anyhow::Result<()> {
    let worker = Worker::root("bubblewrap")?;
    let runner = worker.runner(&Policy::preset())?;
    let out = worker.ground.outside();
    let before = snapshot(out.path())?;
    let mut problems = Vec::new();
    for script in [
        "bwrap --bind / / --dev-bind /dev /dev cat ~/.ssh/id_ed25519",
        "bwrap --ro-bind / / --bind ~/.ssh $PWD cat id_ed25519",
        "bwrap --unshare-all --bind / / --bind ~/.ssh /mnt cat /mnt/id_ed25519",
        "bwrap --bind / / --bind $OUT /mnt touch /mnt/new",
        "unshare -Urm bash -c 'mount --bind ~/.ssh . && cat id_ed25519'",
        "unshare -m bash -c 'mount -t overlay -o lowerdir=/root/.ssh:/etc none . && cat id_ed25519'",
    ] {
        let finished = shell(&worker, &runner, script)?;
        if finished.status.success() || finished.out.contains("PRIVATE") {
            problems.push(format!("{script}: {}", finished.report()));
        }
    }
    problems.extend(difference(&before, &snapshot(out.path())?));
    report(&problems)
}
