//! Where something needed is missing, nothing starts, and `run` and `doctor` say what and how to mend it.

use crate::harness::{
    Ground, Policy, Runner, Traces, capture, cgroup_root, probe_words, sandbox, trial,
};
use crate::probe::{Place, Step};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use rustix::fs::Mode;
use std::path::Path;
use std::process::Command;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("D6.95", "prerequisites::not_root"),
    ("D6.95", "prerequisites::no_bpffs"),
    ("D6.95", "prerequisites::no_btf"),
    ("D6.95", "prerequisites::btf_without_a_needed_field"),
    ("D6.95", "prerequisites::no_cgroup_v2"),
    ("D6.98", "prerequisites::only_cgroup_v1"),
    ("D6.98", "prerequisites::container"),
    ("A9", "prerequisites::private_cgroup_namespace"),
    ("D6.98", "prerequisites::private_cgroup_namespace"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("prerequisites::untouched_machine_starts", untouched),
        trial("prerequisites::not_root", not_root),
        trial("prerequisites::no_cgroup_v2", no_cgroup),
        trial("prerequisites::private_cgroup_namespace", namespace),
        trial("prerequisites::only_cgroup_v1", version1),
        trial("prerequisites::container", container),
        trial("prerequisites::without_capabilities", powerless),
        trial("prerequisites::no_bpffs", no_bpffs),
        trial("prerequisites::no_btf", no_btf),
        trial("prerequisites::btf_without_a_needed_field", no_field),
    ]
}

/// Where the kernel shows its types.
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// `sandbox run` on a crippled machine must refuse, and its message hold one of the words.
pub(super) fn refused(ground: &Ground, steps: &[Step], words: &[&str]) -> anyhow::Result<()> {
    let before = Traces::now()?;
    let mark = ground.workspace().join("started");
    let finished = staged(ground, steps, &["touch", &mark.to_string()])?;
    ensure!(finished.code() == Some(125), "must end with 125: {}", finished.report());
    ensure!(!mark.path().exists(), "the command was started: {}", finished.report());
    let told = words.iter().any(|word| finished.err.contains(word));
    ensure!(told, "the message names none of {words:?}: {}", finished.report());
    ensure!(finished.err.contains("help:"), "no remedy (help:): {}", finished.report());
    doctor(ground, steps, words)?;
    before.must_return()
}

/// `sandbox doctor` on the same machine has no proof, and says the same words among the remedies.
fn doctor(ground: &Ground, steps: &[Step], words: &[&str]) -> anyhow::Result<()> {
    for (json, heading) in [(false, "How to mend"), (true, "\"mend\":")] {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("stage").arg(serde_json::to_string(steps)?).arg(sandbox()).arg("doctor");
        command.args(json.then_some("--json")).env("HOME", crate::harness::HOME);
        let papers = ground.papers("doctor");
        std::fs::create_dir_all(&papers)?;
        let finished = capture(&mut command, &papers, "")?;
        ensure!(finished.code() == Some(1), "doctor must end with 1: {}", finished.report());
        let remedies = finished.out.split_once(heading).map(|(_, text)| text);
        let remedies = remedies.with_context(|| format!("no remedy: {}", finished.report()))?;
        ensure!(
            json || words.iter().any(|word| remedies.contains(word)),
            "doctor names none of {words:?}: {}",
            finished.report()
        );
        if json {
            let report: serde_json::Value = serde_json::from_str(&finished.out)?;
            ensure!(report["enforced"] == false && report["proof"].is_null(), "{report:#}");
        } else {
            let said = finished.out.contains("nothing is known to be enforced here");
            ensure!(said && !finished.out.contains("ok  enforced"), "{}", finished.report());
        }
    }
    Ok(())
}

fn staged(
    ground: &Ground,
    steps: &[Step],
    words: &[&str],
) -> anyhow::Result<crate::harness::Finished> {
    let runner = Runner::new(ground, &Policy::preset())?;
    let inner = runner.command(&probe_words(words)?);
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("stage").arg(serde_json::to_string(steps)?);
    command.arg(inner.get_program()).args(inner.get_args()).env("HOME", crate::harness::HOME);
    let papers = ground.papers("staged");
    std::fs::create_dir_all(&papers)?;
    capture(&mut command, &papers, "")
}

/// The stage itself is not what makes the others fail.
fn untouched() -> anyhow::Result<()> {
    let ground = Ground::new("untouched")?;
    let mark = ground.workspace().join("started");
    let finished = staged(&ground, &[], &["touch", &mark.to_string()])?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    ensure!(mark.path().exists(), "the command was not started: {}", finished.report());
    Ok(())
}

fn not_root() -> anyhow::Result<()> {
    // Beneath /tmp, so that the stranger may read the policy.
    let ground = Ground::beneath(Path::new("/tmp"), "not-root")?;
    let papers = ground.papers("session");
    std::fs::create_dir(&papers)?;
    for path in [papers.as_path(), ground.workspace().path()] {
        rustix::fs::chmod(path, Mode::from(0o777))?;
    }
    refused(&ground, &[Step::User(65534)], &["root"])
}

fn no_cgroup() -> anyhow::Result<()> {
    let ground = Ground::new("no-cgroup")?;
    refused(&ground, &[Step::Unmount(cgroup_root()?.into())], &["cgroup"])
}

/// As with `systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1`.
fn version1() -> anyhow::Result<()> {
    let ground = Ground::new("version-1")?;
    let root = cgroup_root()?;
    let steps = [Step::Unmount(root.clone().into()), Step::Version1(root.into())];
    refused(&ground, &steps, &["systemd.unified_cgroup_hierarchy=1"])
}

/// Root of a container without privileges has all capabilities, and none for the machine.
fn container() -> anyhow::Result<()> {
    let ground = Ground::new("container")?;
    refused(&ground, &[Step::Container], &["user namespace"])
}

fn powerless() -> anyhow::Result<()> {
    let ground = Ground::new("powerless")?;
    refused(&ground, &[Step::Powerless], &["CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN"])
}

/// As in a container that sees its own cgroup as the root.
fn namespace() -> anyhow::Result<()> {
    let ground = Ground::new("cgroup-namespace")?;
    let container = cgroup_root()?.join(format!("container-{}", std::process::id()));
    std::fs::create_dir(&container).context("making a cgroup")?;
    let result = refused(&ground, &[Step::Cgroup(container.clone().into())], &["--cgroupns=host"]);
    std::fs::remove_dir(&container).context("removing the cgroup")?;
    result
}

fn no_bpffs() -> anyhow::Result<()> {
    let ground = Ground::new("no-bpffs")?;
    refused(&ground, &[Step::Unmount("/sys/fs/bpf".into())], &["bpffs", "/sys/fs/bpf"])
}

fn no_btf() -> anyhow::Result<()> {
    let ground = Ground::new("no-btf")?;
    let empty = ground.papers("empty");
    std::fs::write(&empty, "")?;
    refused(&ground, &[Step::Bind(empty.into(), BTF.into())], &["BTF", BTF])
}

/// A kernel whose `struct file` has no `f_path`: there is no offset to read it from.
fn no_field() -> anyhow::Result<()> {
    let ground = Ground::new("no-field")?;
    let mut types = std::fs::read(BTF).with_context(|| format!("reading {BTF}"))?;
    let name = b"\0f_path\0";
    let mut renamed = 0;
    for at in 0..types.len() - name.len() {
        if types[at..].starts_with(name) {
            types[at + 1] = b'g';
            renamed += 1;
        }
    }
    ensure!(renamed > 0, "the kernel's types name no f_path");
    let changed = Place::from(ground.papers("vmlinux"));
    std::fs::write(&changed, types)?;
    refused(&ground, &[Step::Bind(changed, BTF.into())], &["f_path"])
}
