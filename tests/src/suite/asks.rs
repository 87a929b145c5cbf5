//! Programs that a person is asked about before they run.

use super::layers::Managed;
use crate::harness::{
    Bystander, Denial, Ground, Policy, Runner, Session, Why, eventually, sandbox, trial, verb,
    write,
};
use crate::probe::{Call, Operation, Place};
use anyhow::ensure;
use libtest_mimic::Trial;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("asks::programs_wait_for_a_person", every_way),
        trial("asks::a_person_lets_a_program_run", granted),
    ]
}

const ASK: &str = "files.exec.ask";

fn start(path: &Place, words: &[&str], by: Call) -> Operation {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    Operation::Start { path: path.clone(), words, by }
}

fn asked(path: &Place, layer: &'static str, rule: &str) -> Denial {
    Denial::by(&["bprm_creds_for_exec"])
        .access("execute")
        .path(path)
        .error(libc::EACCES)
        .because(Why::Asked(layer, rule.to_owned()))
}

fn by(path: &Place, rule: &str) -> Denial {
    asked(path, "user", rule)
}

/// A program that ends at once, whatever it is told: `sandbox` without the privilege to do anything.
fn program(at: &Place) -> anyhow::Result<Place> {
    std::fs::copy(sandbox(), at.path())?;
    std::fs::set_permissions(at.path(), std::fs::Permissions::from_mode(0o755))?;
    Ok(at.clone())
}

fn link(at: &Place, to: &Place) -> anyhow::Result<Place> {
    if let Some(parent) = at.path().parent() {
        std::fs::create_dir_all(parent)?;
    }
    symlink(to.path(), at.path())?;
    Ok(at.clone())
}

fn every_way() -> anyhow::Result<()> {
    let ground = Ground::new("asks")?;
    let workspace = ground.workspace();
    let tool = program(&workspace.join("tool"))?;
    let other = Place::from(std::fs::canonicalize(sandbox())?);
    // Called by the rule's name, and by another one.
    let called = link(&workspace.join("called").join("tool"), &other)?;
    let renamed = link(&workspace.join("renamed"), &tool)?;
    let script = workspace.join("script");
    write(&script, &format!("#!{other} help\n"))?;
    std::fs::set_permissions(script.path(), std::fs::Permissions::from_mode(0o755))?;
    let policy = Policy::preset()
        .with(ASK, "tool push")
        .with(ASK, "tool remote add")
        .with(ASK, "tool reset --hard")
        .with(ASK, "script go")
        .with(ASK, "whole");
    let whole = link(&workspace.join("whole"), &other)?;
    let mut session = Session::start(&ground, &policy)?;
    let push = "tool push";
    let many: Vec<&str> = std::iter::repeat_n("-x", 65).collect();
    let refused: &[(&Place, &Place, &[&str], &str)] = &[
        (&tool, &tool, &["push"], push),
        (&tool, &tool, &["push", "origin", "main"], push),
        (&tool, &tool, &["-C", "there", "--no-pager", "push"], push),
        (&tool, &tool, &["remote", "-v", "add", "x"], "tool remote add"),
        (&tool, &tool, &["reset", "HEAD", "--hard"], "tool reset --hard"),
        (&tool, &tool, &many, push),
        (&called, &other, &["push"], push),
        (&renamed, &tool, &["push"], push),
        (&script, &script, &["go"], "script go"),
        (&whole, &other, &[], "whole"),
        (&whole, &other, &["any", "thing"], "whole"),
    ];
    let mut bystander = Bystander::new()?;
    for (path, object, words, rule) in refused {
        let answer = bystander.perform(&start(path, words, Call::Execve))?;
        ensure!(answer.errno == 0, "a bystander is asked about {path} {words:?}: {answer}");
        for call in [Call::Execve, Call::Execveat, Call::Old] {
            // Of a descriptor only the object's own name is known.
            if call == Call::Execveat && path != object {
                continue;
            }
            let name = format!("{call:?} of {path} {words:?}");
            session.refused(&name, &start(path, words, call), &by(object, rule))?;
        }
    }
    let allowed: &[(&Place, &[&str])] = &[
        (&tool, &[]),
        (&tool, &["status", "push"]),
        (&tool, &["stash", "push"]),
        (&tool, &["pushed"]),
        (&tool, &["remote", "show", "add"]),
        (&tool, &["reset"]),
        (&tool, &many[1..]),
        (&other, &["push"]),
        (&script, &["stop"]),
    ];
    for (path, words) in allowed {
        for call in [Call::Execve, Call::Execveat, Call::Old] {
            // The interpreter of a script opens it by the name of a descriptor that is closed then.
            if call == Call::Execveat && *path == &script {
                continue;
            }
            let name = format!("{call:?} of {path} {words:?}");
            session.allowed(&name, &start(path, words, call))?;
        }
    }
    // The last slash at every place of the parts in which a name is looked at.
    for length in [1, 2, 60, 61, 62, 63, 64, 65, 126, 127, 255] {
        let deep = workspace.join("d".repeat(length).as_str()).join("tool");
        let deep = link(&deep, &other)?;
        let name = format!("a name of {} bytes", deep.bytes().len());
        session.refused(&name, &start(&deep, &["push"], Call::Execve), &by(&other, push))?;
    }
    for then in [
        Operation::Fork { then: Box::new(start(&tool, &["push"], Call::Execve)) },
        Operation::Daemon { then: Box::new(start(&tool, &["push"], Call::Execve)) },
        Operation::Thread { then: Box::new(start(&tool, &["push"], Call::Execve)) },
    ] {
        session.refused("from elsewhere", &then, &by(&tool, push))?;
    }
    session.finish()
}

fn granted() -> anyhow::Result<()> {
    let ground = Ground::new("asked")?;
    let tool = program(&ground.workspace().join("tool"))?;
    let site = "version = 1\n[files]\nexec.ask = [\"tool publish\"]\n";
    let managed = Managed::put("10-site.toml", site)?;
    let policy = Policy::preset().with(ASK, "tool push").with(ASK, "tool tag");
    let mut session = Session::start(&ground, &policy)?;
    let id = session.id()?;
    let papers = ground.papers("verbs");
    let enter = |words: &[&str], code: i32, part: &str| -> anyhow::Result<()> {
        let finished = verb(&papers, words)?;
        let right =
            finished.code() == Some(code) && (finished.err.clone() + &finished.out).contains(part);
        ensure!(right, "{words:?} should end with {code} and say {part:?}: {}", finished.report());
        Ok(())
    };
    let push = start(&tool, &["push"], Call::Execve);
    let publish = start(&tool, &["publish"], Call::Execve);
    session.refused("push", &push, &by(&tool, "tool push"))?;
    enter(&["why"], 0, &format!("sandbox grant --session {id} run 'tool push'"))?;
    enter(
        &["grant", "run", "tool pull"],
        1,
        "no rule asks about \"tool pull\", but about \"tool publish\", \"tool push\"",
    )?;
    enter(&["grant", "run", "/bin/tool push"], 1, "write its name alone")?;
    enter(&["grant", "--session", &id, "run", "tool push"], 0, "granted")?;
    session.allowed("push, granted", &push)?;
    session.refused("tag", &start(&tool, &["tag"], Call::Execve), &by(&tool, "tool tag"))?;
    enter(&["revoke", "--session", &id, "run", "tool push"], 0, "taken back")?;
    session.refused("push, taken back", &push, &by(&tool, "tool push"))?;
    // Whoever asks, a person may answer.
    session.refused("publish", &publish, &asked(&tool, "managed", "tool publish"))?;
    // Long enough for one operation on a busy machine; then waited for.
    enter(&["grant", "run", "tool publish", "--for", "20s"], 0, "granted")?;
    session.allowed("publish, granted", &publish)?;
    let over = || (session.perform(&publish).ok()?.errno != 0).then_some(());
    ensure!(eventually(Duration::from_mins(2), over).is_some(), "the grant does not end");
    session.finish()?;

    // Only reported.
    drop(managed);
    let mut runner = Runner::new(&ground, &Policy::preset())?;
    runner.written.text =
        "version = 1\nmode = \"audit\"\nextends = [\"default\"]\nfiles.exec.ask = [\"tool push\"]\n"
            .into();
    std::fs::write(&runner.policy, &runner.written.text)?;
    let mut session = runner.open()?;
    let answer = session.allowed("push, reported only", &push)?;
    let told = || {
        let denials = session.events().denials_of(answer.pid);
        let audited =
            |event: &serde_json::Value| event["verdict"] == "audited" && event["reason"] == "asked";
        denials.iter().any(audited).then_some(())
    };
    ensure!(eventually(Duration::from_secs(10), told).is_some(), "no event tells of it");
    ensure!(!Path::new("/etc/sandbox").exists());
    session.finish()
}
