//! git where the workspace is a linked worktree, and what its `.git` file cannot open.

use super::machine::{Worker, outside, shell};
use super::work::{quoted, works};
use crate::harness::{Denial, Policy, Why, difference, snapshot, trial};
use crate::probe::Place;
use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use std::fmt::Write as _;
use std::process::Command;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("D2.40", "worktree::nothing_else_of_the_repository_is_open"),
    ("D2.40", "worktree::a_git_file_opens_no_other_repository"),
    ("D7.103", "worktree::git_works_as_root"),
    ("D7.103", "worktree::git_works_as_an_ordinary_user"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("worktree::git_works_as_root", || git_works(&Worker::root("worktree")?)),
        trial("worktree::git_works_as_an_ordinary_user", || git_works(&Worker::dev("worktree")?)),
        trial("worktree::nothing_else_of_the_repository_is_open", nothing_else),
        trial("worktree::a_git_file_opens_no_other_repository", no_other),
    ]
}

/// A repository `main` in the place outside, and the workspace as a linked worktree of it.
fn link(worker: &Worker) -> anyhow::Result<Place> {
    let out = worker.ground.outside();
    let workspace = worker.ground.workspace();
    let script = format!(
        "git init -q -b main main; cd main; git config user.email a@example.org; \
         git config user.name a; git config commit.gpgsign false; echo text > file; git add file; \
         git commit -qm first; git branch old; git worktree add -q {workspace} -b side; \
         test -f {workspace}/.git; cd ..; git clone -q --bare main remote.git"
    );
    outside(&out, &script)?;
    for place in [&out, &workspace] {
        give_tree(worker, place)?;
    }
    Ok(out.join("main/.git"))
}

fn give_tree(worker: &Worker, place: &Place) -> anyhow::Result<()> {
    let found = Command::new("find").arg(place.path()).output()?;
    for line in String::from_utf8_lossy(&found.stdout).lines() {
        worker.give(&std::path::PathBuf::from(line).into())?;
    }
    Ok(())
}

const GIT: [(&str, &str); 8] = [
    (
        "add, commit, log",
        "echo more > more && git add more && git commit -qm second && git status --short \
         && git log --oneline | grep -q second",
    ),
    (
        "branch, checkout, tag, notes",
        "git checkout -q -b new && echo n > n && git add n && git commit -qm n && git tag one \
         && git tag -a -m two two && git notes add -m note && git checkout -q side \
         && git branch -q -D new && git tag -d two",
    ),
    (
        "stash, reset, clean, restore",
        "echo change >> file && git stash -q && git stash pop -q && git reset -q --hard \
         && echo x > untracked && git clean -qf && git rm -q more && git restore --staged --worktree more",
    ),
    (
        "merge, rebase, cherry-pick, revert",
        "git checkout -q -b topic && echo t > t && git add t && git commit -qm t \
         && git checkout -q side && git merge -q --no-ff -m merged topic && git checkout -q topic \
         && echo u > u && git add u && git commit -qm u && git rebase -q side \
         && git checkout -q side && git cherry-pick topic && git revert --no-edit HEAD",
    ),
    (
        "conflict",
        "git checkout -q -b left && echo 1 > file && git commit -qam 1 && git checkout -q side \
         && echo 2 > file && git commit -qam 2 && ! git -c rerere.enabled=true merge -q left \
         && echo 3 > file && git -c rerere.enabled=true commit -qam 3",
    ),
    (
        "bisect",
        "git bisect start -q && git bisect bad && git bisect good HEAD~1 && git bisect reset",
    ),
    (
        "fetch, also shallow",
        "git fetch -q $OUT/remote.git main && git rev-parse FETCH_HEAD \
         && git fetch -q --depth 1 file://$OUT/remote.git main:refs/remotes/shallow/main",
    ),
    (
        "pack-refs, commit-graph",
        "git pack-refs --all && git branch -q -D old && git commit-graph write",
    ),
];

fn git_works(worker: &Worker) -> anyhow::Result<()> {
    let main = link(worker)?;
    let closed = ["config", "hooks", "info", "HEAD", "index", "description"];
    let look = || closed.map(|name| snapshot(main.join(name).path()));
    let before = look();
    works(worker, &Policy::preset(), &GIT)?;
    let mut problems = Vec::new();
    for (before, after) in before.into_iter().zip(look()) {
        problems.extend(difference(&before?, &after?));
    }
    ensure!(problems.is_empty(), "the shared repository: {problems:?}");
    // Everybody else finds it sound.
    outside(
        &main,
        "git config --global --add safe.directory '*'; git fsck --no-dangling && git log side -1",
    )
}

fn nothing_else() -> anyhow::Result<()> {
    let worker = Worker::dev("worktree-closed")?;
    let main = link(&worker)?;
    let workspace = worker.ground.workspace();
    let own = main.join("worktrees/workspace");
    ensure!(own.path().is_dir(), "the worktree is not called workspace");
    let made = |path: &Place| Why::Workspace("files.write.deny", path.to_string());
    let by_preset = || Why::Preset("files.write.deny", "**/.git/");
    let create = |path: &Place| Denial::by(&["path_mknod"]).access("create").path(path.clone());
    let write = |path: &Place| Denial::write(path.clone());
    let cases = [
        (
            "echo evil > $M/hooks/post-commit",
            create(&main.join("hooks/post-commit")).because(by_preset()),
        ),
        ("echo evil >> $M/config", write(&main.join("config")).because(by_preset())),
        ("git config core.fsmonitor evil", create(&main.join("config.lock"))),
        ("git remote add evil /", create(&main.join("config.lock"))),
        ("echo ref: refs/heads/side > $M/HEAD", write(&main.join("HEAD"))),
        (
            "mv $M/objects $M/refs/objects",
            Denial::by(&["path_rename"]).access("delete").path(main.join("objects")),
        ),
        (
            "rm -r $M/worktrees/workspace/gitdir",
            Denial::by(&["path_unlink"])
                .access("delete")
                .path(own.join("gitdir"))
                .because(made(&own.join("gitdir"))),
        ),
        (
            "echo /tmp > $M/worktrees/workspace/commondir",
            write(&own.join("commondir")).because(made(&own.join("commondir"))),
        ),
        (
            "echo evil > $M/worktrees/workspace/config.worktree",
            create(&own.join("config.worktree")).because(made(&own.join("config.worktree"))),
        ),
        (
            "mkdir -p $M/worktrees/workspace/modules/m/hooks",
            Denial::by(&["path_mkdir"])
                .access("create")
                .path(own.join("modules"))
                .because(made(&own.join("modules"))),
        ),
        (
            "mkdir $M/worktrees/other",
            Denial::by(&["path_mkdir"]).access("create").path(main.join("worktrees/other")),
        ),
        (
            "echo /tmp > $M/objects/info/alternates",
            create(&main.join("objects/info/alternates"))
                .because(made(&main.join("objects/info/alternates"))),
        ),
        (
            "echo gitdir: /tmp > .git",
            write(&workspace.join(".git")).because(made(&workspace.join(".git"))),
        ),
        (
            "mv .git elsewhere",
            Denial::by(&["path_rename"])
                .access("delete")
                .path(workspace.join(".git"))
                .because(made(&workspace.join(".git"))),
        ),
        ("echo evil >> $OUT/main/file", write(&worker.ground.outside().join("main/file"))),
        ("git gc -q", create(&main.join("gc.pid.lock"))),
    ];
    let places = ["config", "hooks", "info", "HEAD", "worktrees"].map(|name| main.join(name));
    let look = || -> anyhow::Result<Vec<_>> {
        places.iter().map(|place| snapshot(place.path())).collect()
    };
    let before = look()?;
    let runner = worker.runner(&Policy::preset())?;
    // One session for all of them: starting one takes seconds in a machine.
    let mut scripts = format!("export M={main} OUT; ");
    for (at, (script, _)) in cases.iter().enumerate() {
        let script = quoted(script);
        write!(scripts, "bash -c {script} </dev/null && echo \"done: {at}\"; ")?;
    }
    let finished = shell(&worker, &runner, &scripts)?;
    let mut problems: Vec<_> = finished.out.lines().map(str::to_owned).collect();
    for (script, denial) in &cases {
        if let Err(error) = runner.told(denial) {
            problems.push(format!("{script}: {error:#}"));
        }
    }
    for (before, after) in before.iter().zip(look()?) {
        problems.extend(difference(before, &after));
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{} problem(s)\n  - {}", problems.len(), problems.join("\n  - "))
}

/// An earlier session's agent may have written the workspace's `.git`.
fn no_other() -> anyhow::Result<()> {
    let worker = Worker::dev("worktree-forged")?;
    let out = worker.ground.outside();
    outside(
        &out,
        "git init -q -b main main; cd main; git config user.email a@example.org; \
         git config user.name a; git commit -q --allow-empty -m first; \
         git worktree add -q ../victim -b side",
    )?;
    give_tree(&worker, &out)?;
    let main = out.join("main/.git");
    let git = worker.ground.workspace().join(".git");
    for (target, said) in [
        (main.join("worktrees/victim"), "victim/.git, not"),
        (main.clone(), "not one that linked worktrees share"),
        (worker.home.join(".ssh").into(), "not one that linked worktrees share"),
    ] {
        crate::harness::write(&git, &format!("gitdir: {target}\n"))?;
        worker.give(&git)?;
        let runner = worker.runner(&Policy::preset())?;
        let script = format!(
            "for d in {main}/objects {main}/refs/heads {main}/worktrees/victim ~/.ssh; do \
             touch $d/new && exit 1; done; touch fine"
        );
        let finished = shell(&worker, &runner, &script)?;
        ensure!(finished.code() == Some(0), "{target}: {}", finished.report());
        let notice = |event: &serde_json::Value| {
            event["type"] == "notice"
                && event["level"] == "warning"
                && event["message"].as_str().is_some_and(|message| message.contains(said))
        };
        let events = runner.events.all();
        ensure!(
            events.iter().any(notice),
            "{target}: no notice says {said:?}:\n{}",
            runner.events.tail(9)
        );
        runner
            .told(&Denial::by(&["path_mknod"]).access("create").path(main.join("objects/new")))?;
    }
    Ok(())
}
