//! The diagnosis for people.

use super::Diagnosis;
use crate::engine::Way;
use crate::session::canary::Outcome;
use anstyle::{AnsiColor, Style};
use std::fmt::{self, Write as _};
use std::path::Path;

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const DIM: Style = Style::new().dimmed();

/// The table, the proof, and how to mend what is missing. Colours are stripped where the output is
/// no terminal.
pub(super) fn render(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, diagnosis);
    text
}

fn write(out: &mut String, diagnosis: &Diagnosis) -> fmt::Result {
    let Diagnosis { kernel, btf, lsms, attach, cgroup2, bpffs, hooks, missing, proof, .. } =
        diagnosis;
    row(out, "kernel", true, kernel)?;
    let fields = format!("{} of {} fields of its structures found", btf.fields, btf.of);
    row(out, "types (BTF)", btf.readable && btf.fields == btf.of, &fields)?;
    let list = lsms.as_ref().map_or("cannot be seen".into(), |lsms| lsms.join(","));
    row(out, "active LSMs", lsms.is_some(), &list)?;
    let attaching = match attach {
        Some(Way::BpfLsm) => "as BPF-LSM programs",
        Some(Way::ModifyReturn) => "as fmod_ret programs, since `bpf` is not an active LSM",
        None => "impossible",
    };
    row(out, "attaching", attach.is_some(), attaching)?;
    row(out, "cgroup v2", cgroup2.is_some(), &place(cgroup2.as_deref()))?;
    row(out, "bpffs", bpffs.is_some(), &place(bpffs.as_deref()))?;

    heading(out, "Hooks")?;
    for hook in hooks {
        let good =
            matches!(hook.state, "present" | "cgroup") || hook.state == "absent" && !hook.required;
        let meaning = hook.meaning.map_or(String::new(), |meaning| format!(": {meaning}"));
        row(out, hook.hook, good, &format!("{}{meaning}", hook.state))?;
    }

    heading(out, "Proof")?;
    match proof {
        Some(classes) => {
            for proved in classes {
                let good = !matches!(proved.outcome, Outcome::Failed { .. });
                row(out, &proved.class.to_string(), good, &proved.outcome.to_string())?;
            }
        }
        None => writeln!(out, "  {BAD}not tried{BAD:#}: nothing is known to be enforced here")?,
    }

    if !diagnosis.orphans.is_empty() {
        heading(out, "Sessions left behind")?;
        for orphan in &diagnosis.orphans {
            writeln!(out, "  {orphan}")?;
        }
    }
    if !missing.is_empty() {
        heading(out, "How to mend")?;
        for remedy in missing {
            writeln!(out, "  {BAD}{}{BAD:#}", remedy.what.replace('\n', "\n  "))?;
            for line in remedy.mend.lines() {
                writeln!(out, "    {line}")?;
            }
        }
    }
    let verdict = if diagnosis.enforced {
        format!("{GOOD}Everything needed was seen to deny.{GOOD:#}")
    } else {
        format!("{BAD}sandbox does not start agents here.{BAD:#}")
    };
    writeln!(out, "\n{verdict}")
}

fn heading(out: &mut String, name: &str) -> fmt::Result {
    writeln!(out, "\n{name}")
}

fn row(out: &mut String, name: &str, good: bool, value: &str) -> fmt::Result {
    let style = if good { GOOD } else { BAD };
    let mark = if good { "ok" } else { "no" };
    writeln!(out, "  {DIM}{name:<22}{DIM:#} {style}{mark}{style:#}  {value}")
}

fn place(path: Option<&Path>) -> String {
    path.map_or("not mounted".into(), |path| path.display().to_string())
}
