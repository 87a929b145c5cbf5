//! Everyday programs do their work in the workspace under the preset alone.

use super::machine::{Worker, outside, shell};
use crate::harness::{PATIENCE, Policy, capture_within, trial};
use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use std::fmt::Write as _;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("D7.109", "work::everyday_programs_as_root"),
    ("D7.109", "work::everyday_programs_as_an_ordinary_user"),
    ("D7.110", "work::everyday_programs_as_root"),
    ("D7.110", "work::everyday_programs_as_an_ordinary_user"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("work::everyday_programs_as_root", as_root),
        trial("work::everyday_programs_as_an_ordinary_user", as_dev),
        trial("work::ordinary_user_is_that_user", identity),
        trial("work::credentials_of_the_ordinary_user_are_closed", credentials),
    ]
}

/// What is done, and the script that fails unless it worked.
const WORK: [(&str, &str); 16] = [
    (
        "git",
        "cd repo && echo text > file && git add file \
         && git commit -qm first && git log --oneline | grep -q first && git status --short",
    ),
    (
        "git branches and worktrees",
        "cd repo && git checkout -qb side && echo more >> file && git commit -qam second \
         && git checkout -q - && git merge -q side && git worktree add -q ../tree side \
         && cd ../tree && echo third > third && git add third && git commit -qm third && git gc -q",
    ),
    (
        "venv",
        "python3 -m venv --without-pip venv && venv/bin/python -c 'print(6 * 7)' | grep -qx 42",
    ),
    (
        "python writes, locks and forks",
        "python3 -c 'import sqlite3, subprocess, tempfile\n\
         db = sqlite3.connect(\"data.db\"); db.execute(\"create table t (x)\"); db.commit()\n\
         subprocess.check_call([\"true\"]); tempfile.TemporaryFile().write(b\"x\")'",
    ),
    (
        "tar",
        "mkdir pack && echo packed > pack/file && tar czf pack.tgz pack && rm -r pack \
         && tar xzf pack.tgz && grep -q packed pack/file",
    ),
    (
        "make",
        "printf 'all: made\\nmade:\\n\\techo done > made\\n' > Makefile && make -s && grep -q done made",
    ),
    ("here-document", "cat > here <<END\ntext\nEND\ngrep -q text here"),
    (
        "large here-document",
        "wc -c <<END | grep -q 100001\n$(head -c 100000 /dev/zero | tr '\\0' x)\nEND",
    ),
    (
        "find and grep",
        "mkdir -p a/b && echo needle > a/b/c && find . -name c | grep -q c && grep -rq needle a",
    ),
    (
        "mktemp",
        "t=$(mktemp) && echo x > \"$t\" && d=$(mktemp -d) && touch \"$d/x\" && rm -r \"$t\" \"$d\"",
    ),
    (
        "process substitution",
        "diff <(echo same) <(echo same) && echo x | tee /dev/null | grep -q x",
    ),
    (
        "sed, sort, xargs",
        "printf 'b\\na\\n' > s && sed -i s/a/c/ s && sort s | xargs echo | grep -qx 'b c'",
    ),
    (
        "copy, move, link, remove",
        "echo x > c1 && cp -a c1 c2 && mv c2 c3 && ln c3 c4 && ln -s c4 c5 && cat c5 && rm c1 c3 c4 c5",
    ),
    ("modes and times", "touch m && chmod 755 m && touch -d 2020-01-01 m && mkfifo p && rm m p"),
    ("strace of an own child", "strace -f -o trace true && grep -q execve trace"),
    ("background job", "sleep 0.1 & wait $! && (setsid true)"),
];

/// Each of these scripts must succeed, one after the other in the same session.
pub(super) fn works(worker: &Worker, policy: &Policy, work: &[(&str, &str)]) -> anyhow::Result<()> {
    let runner = worker.runner(policy)?;
    let mut script = format!("OUT={}; export OUT LC_ALL=C; ", worker.ground.outside());
    for (at, (_, part)) in work.iter().enumerate() {
        let part = quoted(part);
        write!(
            script,
            "bash -c {part} </dev/null >$TMPDIR/told 2>&1; status=$?; \
             echo; echo \"@{at} $status\"; test $status = 0 || cat $TMPDIR/told; "
        )?;
    }
    // Starting a session is slow in a machine, and so is a compiler.
    let patience = PATIENCE * (2 + u32::try_from(work.len())?);
    let mut command = runner.command(&["bash", "-c", script.as_str()]);
    let papers = worker.ground.papers("session");
    let finished = capture_within(&mut command, &papers, "", patience)?;
    let mut problems = Vec::new();
    for (at, (what, _)) in work.iter().enumerate() {
        let told = finished.out.split_once(&format!("\n@{at} ")).map(|(_, rest)| rest);
        let told = told.and_then(|rest| rest.split("\n@").next()).unwrap_or("was not reached");
        if told.trim() != "0" {
            problems.push(format!("{what}: status {told}"));
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    let events = runner.events.tail(30);
    let problems = problems.join("\n  - ");
    bail!("problems:\n  - {problems}\n    last events:\n{events}\n{}", finished.err)
}

/// A word for the shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// In a workspace with a repository: making one is not everyday work, and refused.
fn everyday(worker: &Worker) -> anyhow::Result<()> {
    repository(worker, "repo")?;
    works(worker, &Policy::preset(), &WORK)
}

/// An empty repository in the workspace, made by the worker outside any session.
pub(super) fn repository(worker: &Worker, name: &str) -> anyhow::Result<()> {
    let workspace = worker.ground.workspace();
    let script = format!(
        "git init -q {name}; cd {name}; git config user.email dev@example.org; \
         git config user.name dev; chown -R --reference=.. ."
    );
    outside(&workspace, &script)
}

fn as_root() -> anyhow::Result<()> {
    everyday(&Worker::root("work")?)
}

fn as_dev() -> anyhow::Result<()> {
    everyday(&Worker::dev("work")?)
}

fn identity() -> anyhow::Result<()> {
    let worker = Worker::dev("identity")?;
    let runner = worker.runner(&Policy::preset())?;
    let finished =
        shell(&worker, &runner, "echo \"$(id -un) $HOME $USER\"; touch mine; stat -c %U mine")?;
    ensure!(finished.out == "dev /home/dev dev\ndev\n", "{}", finished.report());
    Ok(())
}

fn credentials() -> anyhow::Result<()> {
    let worker = Worker::dev("credentials")?;
    let runner = worker.runner(&Policy::preset())?;
    let finished = shell(&worker, &runner, "cat ~/.ssh/id_ed25519")?;
    ensure!(finished.code() == Some(1), "{}", finished.report());
    ensure!(finished.err.contains("Permission denied"), "{}", finished.report());
    runner.told(&crate::harness::Denial::read(&worker.key).of_key())
}
