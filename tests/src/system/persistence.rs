//! Files by which something would be run later, outside the session.

use super::machine::{Worker, shell};
use super::work::{quoted, repository, works};
use crate::harness::{Denial, Policy, Why, difference, snapshot, trial};
use anyhow::{Context as _, bail};
use libtest_mimic::Trial;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A60", "persistence::nothing_is_left_to_be_run"),
    ("D2.34", "persistence::nothing_is_left_to_be_run"),
    ("D2.39", "persistence::nothing_is_left_to_be_run"),
    ("D4.76", "persistence::nothing_is_left_to_be_run"),
    ("D7.105", "persistence::git_goes_on_without_its_configuration"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("persistence::nothing_is_left_to_be_run", nothing_left),
        trial("persistence::git_goes_on_without_its_configuration", git_goes_on),
        trial("persistence::a_policy_may_leave_it_out", left_out),
    ]
}

/// What is written, and the beginning of the rule that refuses it.
const ATTACKS: [(&str, &str); 15] = [
    ("repo/.git/hooks/post-commit", "**/.git/hooks"),
    ("repo/.git/config", "**/.git/{config"),
    ("repo/.git/info/attributes", "**/.git/{config"),
    ("repo/.git/modules/a/b/hooks/post-checkout", "**/.git/modules/**/hooks"),
    ("repo/.git/modules/a/b/config", "**/.git/modules/**/{config"),
    ("deep/er/.envrc", "**/.envrc"),
    (".vscode/tasks.json", "**/.vscode"),
    ("deep/.vscode/settings.json", "**/.vscode"),
    (".devcontainer/devcontainer.json", "**/.devcontainer"),
    (".claude/settings.json", "${WORKSPACE}/**/.claude"),
    ("deep/.claude/hooks/pre", "${WORKSPACE}/**/.claude"),
    (".mcp.json", "${WORKSPACE}/**/.mcp.json"),
    (".cursor/mcp.json", "${WORKSPACE}/**/.cursor"),
    (".codex/config.toml", "${WORKSPACE}/**/.codex"),
    (".gemini/settings.json", "${WORKSPACE}/**/.{gemini"),
];

fn nothing_left() -> anyhow::Result<()> {
    nothing_left_of(&Worker::dev("persistence")?)?;
    nothing_left_of(&Worker::root("persistence-root")?).context("as root")
}

fn nothing_left_of(worker: &Worker) -> anyhow::Result<()> {
    repository(worker, "repo")?;
    let workspace = worker.ground.workspace();
    let before = snapshot(workspace.join("repo/.git").path())?;
    let runner = worker.runner(&Policy::preset())?;
    let mut script = String::new();
    for (place, _) in ATTACKS {
        // Beside it everything may be made.
        let part =
            format!("mkdir -p $(dirname {place}) && echo evil > {place} && echo done {place}");
        script.push_str("bash -c ");
        script.push_str(&quoted(&part));
        script.push_str(" </dev/null; ");
    }
    script += "mv deep/er deep/moved && echo fine > deep/.envrc.example && echo fine > repo/file";
    let finished = shell(worker, &runner, &script)?;
    let mut problems: Vec<_> = finished.out.lines().map(str::to_owned).collect();
    if finished.code() != Some(0) {
        problems.push(finished.report());
    }
    for (place, rule) in ATTACKS {
        let denial = Denial::by(&["path_mknod", "path_mkdir", "file_open"])
            .beneath(&workspace)
            .because(Why::Preset("files.write.deny", rule));
        if let Err(error) = runner.told(&denial) {
            problems.push(format!("{place}: {error:#}"));
        }
        if workspace.join(place).path().is_file() && place != "repo/.git/config" {
            problems.push(format!("{place} was made"));
        }
    }
    let after = snapshot(workspace.join("repo/.git").path())?;
    // Directories on the way may be made.
    problems.extend(
        difference(&before, &after)
            .into_iter()
            .filter(|text| !text.contains("/modules") && !text.contains("/.git: ")),
    );
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{} problem(s)\n  - {}", problems.len(), problems.join("\n  - "))
}

fn git_goes_on() -> anyhow::Result<()> {
    let worker = Worker::dev("persistence-git")?;
    repository(&worker, "repo")?;
    let work = [
        (
            "commit",
            "cd repo && echo x > x && git add x && git commit -qm x && git branch -M trunk; git log -1",
        ),
        (
            "branches",
            "cd repo && git checkout -q -b side && echo y > y && git add y && git commit -qm y \
             && git checkout -q - && git merge -q side && git branch -q -D side",
        ),
        ("worktrees", "cd repo && git worktree add -q ../tree && cd ../tree && git status --short"),
        (
            "no configuration",
            "cd repo && ! git config core.fsmonitor evil && ! git remote add o /x",
        ),
        ("no new repository", "! git init -q new"),
    ];
    works(&worker, &Policy::preset(), &work)
}

fn left_out() -> anyhow::Result<()> {
    let worker = Worker::dev("persistence-out")?;
    let policy = Policy::preset().except(&["persistence"]);
    let work = [
        (
            "init, clone",
            "git init -q new && git clone -q new clone 2>/dev/null && cd new && git config a.b c",
        ),
        ("settings", "mkdir .vscode && echo '{}' > .vscode/settings.json && touch .envrc"),
    ];
    works(&worker, &policy, &work)
}
