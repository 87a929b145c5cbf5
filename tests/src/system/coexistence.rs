//! Other guards of a full system decide at the same hooks: what either refuses is refused.

use super::machine::{Worker, outside, shell};
use crate::harness::{Denial, Policy, trial, write};
use anyhow::{Context as _, bail, ensure};
use libtest_mimic::Trial;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("coexistence::apparmor", apparmor),
        trial("coexistence::restrictions_of_systemd", systemd),
    ]
}

/// Everything but one file.
fn profile(program: &str, file: &str) -> String {
    format!(
        "abi <abi/4.0>,\nprofile sandbox-test {program} flags=(attach_disconnected) {{\n  \
         file,\n  deny {file} r,\n  network,\n  unix,\n  signal,\n  capability,\n}}\n"
    )
}

fn apparmor() -> anyhow::Result<()> {
    let enabled = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")?;
    ensure!(enabled.trim() == "Y", "AppArmor is not enabled: {enabled:?}");
    let worker = Worker::root("apparmor")?;
    let out = worker.ground.outside();
    let [closed, open] = ["closed", "open"].map(|name| out.join(name));
    for file in [&closed, &open] {
        write(file, "content")?;
    }
    let program = out.join("guarded");
    outside(&out, &format!("cp /bin/cat {program}"))?;
    let text = worker.ground.papers("profile");
    std::fs::write(&text, profile(&program.to_string(), &closed.to_string()))?;
    outside(&out, &format!("apparmor_parser --replace {}", text.display()))?;
    let result = both(&worker, &program.to_string());
    outside(&out, &format!("apparmor_parser --remove {}", text.display()))?;
    result
}

fn both(worker: &Worker, guarded: &str) -> anyhow::Result<()> {
    let runner = worker.runner(&Policy::preset())?;
    let script = format!(
        "cat $OUT/closed >/dev/null && echo plain; {guarded} $OUT/closed; \
         {guarded} $OUT/open >/dev/null && echo twin; {guarded} ~/.ssh/id_ed25519"
    );
    let finished = shell(worker, &runner, &script)?;
    let refusals = finished.err.matches("Permission denied").count();
    ensure!(finished.out == "plain\ntwin\n" && refusals == 2, "{}", finished.report());
    runner.told(&Denial::read(&worker.key).of_key())?;
    let told = runner.events.all().iter().filter(|event| event["type"] == "denial").count();
    ensure!(told == 1, "of AppArmor's denial nothing is to be told: {}", runner.events.tail(9));
    // Its profile allows the key: what refused that in the session was not AppArmor.
    outside(&worker.ground.outside(), &format!("{guarded} {} >/dev/null", worker.key))
        .context("outside a session")
}

/// systemd's program for `RestrictFileSystems=`, which looks at every open of the machine.
fn systemd() -> anyhow::Result<()> {
    let worker = Worker::root("restricted")?;
    let out = worker.ground.outside();
    let unit = "restricted-test";
    let start = format!(
        "mkdir ram; mount -t ramfs none ram; echo content > ram/file; \
         systemd-run --quiet --unit={unit} -p RestrictFileSystems=~ramfs sleep infinity; \
         systemd-run --quiet --wait --pipe -p RestrictFileSystems=~ramfs \
         bash -c '! cat {out}/ram/file 2>/dev/null'; \
         systemd-run --quiet --wait --pipe -p RestrictFileSystems=~tmpfs cat {out}/ram/file >/dev/null"
    );
    outside(&out, &start).context("systemd's own restriction")?;
    let runner = worker.runner(&Policy::preset())?;
    let finished = shell(&worker, &runner, "cat $OUT/ram/file; cat ~/.ssh/id_ed25519")?;
    outside(&out, &format!("systemctl stop {unit}; umount ram; rmdir ram"))?;
    runner.told(&Denial::read(&worker.key).of_key())?;
    if finished.out != "content\n" || !finished.err.contains("Permission denied") {
        bail!("a session beside a restricted unit: {}", finished.report());
    }
    Ok(())
}
