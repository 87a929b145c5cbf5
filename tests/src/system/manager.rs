//! The user's own systemd would run anything for its user, outside the session: it is asked by the ways that
//! agents take, and by the cgroups that it lets its user manage.

use super::machine::{Worker, outside, shell};
use crate::harness::{Denial, PATIENCE, Policy, cgroup_root, eventually, trial};
use crate::probe::Place;
use anyhow::{Context as _, bail, ensure};
use libtest_mimic::Trial;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A1", "manager::of_the_user_does_not_act_for_a_member"),
    ("A4", "manager::of_the_user_does_not_act_for_a_member"),
    ("D4.69", "manager::of_the_user_does_not_act_for_a_member"),
    ("A6", "manager::of_the_user_does_not_act_for_a_member"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("manager::of_the_user_does_not_act_for_a_member", manager)]
}

/// A manager and a bus as a login brings them, without the packages (and the PAM) that make them come with one.
const UNITS: [(&str, &str); 3] = [
    (
        "system/user@.service.d/runtime.conf",
        "[Service]\nPAMName=\nEnvironment=XDG_RUNTIME_DIR=/run/user/%i\n",
    ),
    ("user/dbus.socket", "[Socket]\nListenStream=%t/bus\n"),
    (
        "user/dbus.service",
        "[Unit]\nRequires=dbus.socket\n[Service]\nType=notify\nExecStart=/usr/bin/dbus-daemon --session \
         --address=systemd: --nofork --nopidfile --systemd-activation\n",
    ),
];

/// A script that does nothing but what anybody may, what it is called, and what is wrong with it in a session.
fn cases(unit: &str, delegated: &Place) -> Vec<(&'static str, String, Denial)> {
    let by_socket = || Denial::by(&["unix_stream_connect"]).access("connect").beneath("/run/user/");
    let processes = delegated.join("cgroup.procs");
    vec![
        ("a scope", format!("systemd-run --user --scope --unit={unit}-scope true"), by_socket()),
        (
            "a service",
            format!("systemd-run --user --wait --pipe --unit={unit}-service true"),
            by_socket(),
        ),
        (
            "StartTransientUnit of its own process",
            format!(
                "busctl --user call org.freedesktop.systemd1 /org/freedesktop/systemd1 \
                 org.freedesktop.systemd1.Manager StartTransientUnit 'ssa(sv)a(sa(sv))' \
                 {unit}.scope fail 1 PIDs au 1 $$ 0"
            ),
            by_socket(),
        ),
        (
            "a cgroup of its user",
            format!("mkdir {delegated}/{unit}"),
            Denial::by(&["path_mkdir"]).access("create").beneath(delegated),
        ),
        ("the processes of one", format!(": >> {processes}"), Denial::write(&processes)),
    ]
}

fn manager() -> anyhow::Result<()> {
    let worker = Worker::dev("manager")?;
    let uid = std::fs::metadata(&worker.home)?.uid();
    let runtime = format!("/run/user/{uid}");
    for (name, text) in UNITS {
        let path = Path::new("/run/systemd").join(name);
        std::fs::create_dir_all(path.parent().context("a directory")?)?;
        std::fs::write(&path, text)?;
    }
    let root = Place::from(Path::new("/"));
    outside(&root, "systemctl daemon-reload")?;
    outside(&root, &format!("systemctl start user@{uid}.service"))?;
    let service = format!("user.slice/user-{uid}.slice/user@{uid}.service");
    // Where a user may make cgroups and move its processes.
    let delegated = Place::from(cgroup_root()?.join(service).join("app.slice"));
    let as_user = |script: &str| -> anyhow::Result<(bool, String)> {
        let id = uid.to_string();
        let output = Command::new("setpriv")
            .args(["--reuid", &id, "--regid", &id, "--clear-groups", "bash", "-c", script])
            .env("XDG_RUNTIME_DIR", &runtime)
            .env("HOME", &worker.home)
            .output()
            .context("starting setpriv")?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((output.status.success(), told))
    };
    let bus = || as_user("systemctl --user start dbus.socket").ok().filter(|told| told.0);
    ensure!(eventually(PATIENCE, bus).is_some(), "no bus of the user: {:?}", bus());

    let mut problems = Vec::new();
    let runner = worker.runner(&Policy::preset())?;
    // One session for all: starting one takes seconds in a machine.
    let cases = |unit| cases(unit, &delegated);
    let mut scripts = vec![format!("export XDG_RUNTIME_DIR={runtime}")];
    for (what, script, _) in cases("member") {
        scripts.push(format!("({script}) </dev/null && echo 'done: {what}'"));
    }
    let finished = shell(&worker, &runner, &scripts.join("; "))?;
    for (what, _, denial) in cases("member") {
        if finished.out.contains(&format!("done: {what}")) {
            problems.push(format!("{what} was done"));
        }
        if let Err(error) = runner.told(&denial) {
            problems.push(format!("{what}: {error:#}\n{}", finished.report()));
        }
    }
    // It does all of it for the same user outside.
    for (what, script, _) in cases("outsider") {
        let (done, told) = as_user(&script)?;
        if !done {
            problems.push(format!("{what}, outside: {told}"));
        }
    }
    outside(&root, &format!("systemctl stop user@{uid}.service"))?;
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{} problem(s)\n  - {}", problems.len(), problems.join("\n  - "))
}
