//! What coding agents need of a machine, under the preset alone.

use super::machine::{Worker, shell};
use super::work::{repository, works};
use crate::harness::{Denial, Policy, Why, capture, trial};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::os::unix::fs::{PermissionsExt as _, symlink};

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("D7.108", "needs::as_root"),
    ("D7.108", "needs::as_an_ordinary_user"),
    ("D7.110", "needs::builds_and_packages"),
    ("D7.110", "needs::caches_are_kept_by_a_preset"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("needs::as_root", || needs(&Worker::root("needs")?)),
        trial("needs::as_an_ordinary_user", || needs(&Worker::dev("needs")?)),
        // Minutes in a machine without KVM: by `--ignored`.
        trial("needs::builds_and_packages", builds).with_ignored_flag(true),
        trial("needs::caches_are_kept_by_a_preset", caches).with_ignored_flag(true),
        trial("needs::tmux_is_not_the_callers", tmux),
        trial("needs::dotfiles_may_be_symbolic_links", dotfiles),
        trial("needs::what_is_absent_is_said_to_be_absent", absent),
    ]
}

const NEEDS: [(&str, &str); 8] = [
    (
        "POSIX shared memory and semaphores",
        "python3 -c 'import multiprocessing as m\n\
         from multiprocessing import shared_memory\n\
         s = shared_memory.SharedMemory(create=True, size=100); s.buf[0] = 7\n\
         t = shared_memory.SharedMemory(s.name); assert t.buf[0] == 7; t.close()\n\
         s.close(); s.unlink()\n\
         with m.Pool(2) as pool: assert pool.map(abs, [-1, 2]) == [1, 2]\n\
         q = m.Queue(); q.put(1); assert q.get() == 1'",
    ),
    (
        "pidfd, memfd, eventfd, epoll, timerfd",
        "python3 -c 'import os, select, signal, subprocess, time\n\
         child = subprocess.Popen([\"sleep\", \"100\"]); fd = os.pidfd_open(child.pid)\n\
         signal.pidfd_send_signal(fd, signal.SIGTERM); assert child.wait() == -15\n\
         m = os.memfd_create(\"x\"); os.write(m, b\"#!/bin/sh\\nexit 42\\n\")\n\
         name = f\"/proc/self/fd/{m}\"; assert len(open(name).read()) == 18\n\
         assert subprocess.run([name], pass_fds=[m]).returncode == 42\n\
         e = os.eventfd(1); p = select.epoll(); p.register(e); assert p.poll(1)\n\
         os.timerfd_create(time.CLOCK_MONOTONIC)'",
    ),
    (
        "ripgrep and pipes",
        "mkdir -p tree/a tree/b && echo needle | tee tree/a/one tree/b/two > tree/three \
         && rg --files tree | wc -l | grep -qx 3 && rg -l needle . | wc -l | grep -qx 3 \
         && rg needle /usr/lib/python3 | wc -l | grep -qx '[0-9]*'",
    ),
    ("script", "script -qec 'tty; echo inside' typescript && grep -q ^inside typescript"),
    (
        "tmux, server and client",
        "tmux -f /dev/null new-session -d 'echo made > made; tmux wait-for -S done; sleep 100' \
         && tmux wait-for done && tmux list-sessions && grep -q made made && tmux kill-server",
    ),
    (
        "python at a terminal",
        "python3 -c 'import os, pty\n\
         pid, fd = pty.fork()\n\
         if pid == 0: os.execvp(\"python3\", [\"python3\", \"-i\"])\n\
         os.write(fd, b\"print(6*7)\\nexit()\\n\")\n\
         out = b\"\"\n\
         try:\n\
         \x20   while data := os.read(fd, 999): out += data\n\
         except OSError: pass\n\
         assert b\"42\" in out and os.waitpid(pid, 0)[1] == 0, out'",
    ),
    (
        "a debugger's view of an own child",
        "sleep 100 & strace -f -o trace -p $! & for i in $(seq 600); do \
         test -s trace && break; sleep 0.1; done; kill %1; wait; grep -q SIGTERM trace",
    ),
    (
        "looking around",
        "ps aux | grep -q bash && df . > /dev/null && id > /dev/null && uptime > /dev/null \
         && cat /proc/self/status /proc/meminfo /proc/cpuinfo > /dev/null && ls /proc/self/fd \
         && bash -lc true && getent passwd root && locale > /dev/null",
    ),
];

fn needs(worker: &Worker) -> anyhow::Result<()> {
    works(worker, &Policy::preset(), &NEEDS)
}

const BUILDS: [(&str, &str); 4] = [
    (
        "make and gcc",
        "printf '#include <stdio.h>\\nint main(void) { puts(\"built\"); }\\n' > a.c \
         && printf 'a: a.c\\n\\tgcc -O1 -o a a.c\\n' > Makefile && make -s && ./a | grep -qx built",
    ),
    (
        "cargo",
        "cargo new -q --vcs none hello && cd hello && cargo build -q \
         && target/debug/hello | grep -q Hello && cargo clean -q",
    ),
    (
        "npm, from a tarball",
        "mkdir package app && echo 'module.exports = 42' > package/index.js \
         && echo '{\"name\": \"package\", \"version\": \"1.0.0\"}' > package/package.json \
         && echo '{\"name\": \"app\", \"version\": \"1.0.0\"}' > app/package.json \
         && (cd package && npm pack --silent) && cd app \
         && npm install --offline --no-audit --no-fund ../package/package-1.0.0.tgz \
         && node -p 'require(\"package\")' | grep -qx 42",
    ),
    (
        "pip, from a wheel",
        "python3 -c 'import zipfile\n\
         names = [\"demo.py\"] + [f\"demo-1.0.dist-info/{n}\" for n in (\"METADATA\", \"WHEEL\", \"RECORD\")]\n\
         texts = [\"answer = 42\\n\", \"Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n\",\n\
         \x20        \"Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n\",\n\
         \x20        \"\".join(f\"{n},,\\n\" for n in names)]\n\
         with zipfile.ZipFile(\"demo-1.0-py3-none-any.whl\", \"w\") as z:\n\
         \x20   for name, text in zip(names, texts): z.writestr(name, text)' \
         && python3 -m venv venv && venv/bin/pip install -q --no-index ./demo-1.0-py3-none-any.whl \
         && venv/bin/python -c 'import demo; print(demo.answer)' | grep -qx 42",
    ),
];

/// As an ordinary user, with a `~/.cargo` and `~/.npm` that cannot be written.
fn builds() -> anyhow::Result<()> {
    let worker = Worker::dev("builds")?;
    for name in [".cargo", ".npm", ".npm/_cacache", ".cache"] {
        let directory = worker.home.join(name).into();
        std::fs::create_dir_all(&directory)?;
        worker.give(&directory)?;
    }
    works(&worker, &Policy::preset(), &BUILDS)
}

/// With the preset `toolchains` npm keeps what it fetched, and only that place is open.
fn caches() -> anyhow::Result<()> {
    let worker = Worker::dev("caches")?;
    let npm = worker.home.join(".npm");
    std::fs::create_dir_all(&npm)?;
    worker.give(&npm.clone().into())?;
    let policy = Policy::presets(&["default", "toolchains"]);
    works(&worker, &policy, &[BUILDS[2]])?;
    ensure!(npm.join("_cacache").is_dir(), "npm's cache was not kept in {}", npm.display());
    let runner = worker.runner(&policy)?;
    let finished = shell(&worker, &runner, "mkdir ~/.npm/_npx")?;
    ensure!(finished.err.contains("Permission denied"), "{}", finished.report());
    runner.told(&Denial::by(&["path_mkdir"]).access("create").path(npm.join("_npx")))
}

/// Started within tmux, `tmux` of a session must not look for that one: it is out of reach.
fn tmux() -> anyhow::Result<()> {
    let worker = Worker::dev("tmux")?;
    let runner = worker.runner(&Policy::preset())?;
    let script = "tmux -f /dev/null new-session -d 'sleep 100' && tmux kill-server; echo $? $TMUX";
    let mut command = runner.command(&["bash", "-c", script]);
    command.env("TMUX", "/tmp/tmux-0/default,1,0").env("TMUX_PANE", "%0");
    let finished = capture(&mut command, &worker.ground.papers("session"), "")?;
    ensure!(finished.out.trim() == "0", "{}", finished.report());
    Ok(())
}

/// Configuration kept elsewhere in the home, with links to it; a closed place stays closed.
fn dotfiles() -> anyhow::Result<()> {
    let worker = Worker::dev("dotfiles")?;
    let kept = worker.home.join("dotfiles");
    std::fs::create_dir_all(kept.join("bash"))?;
    std::fs::write(kept.join("gitconfig"), "[user]\n\tname = linked\n")?;
    std::fs::write(kept.join("bash/profile"), "export LINKED=yes\n")?;
    // Else the kernel itself refuses, before any hook is asked.
    let everyone = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(kept.join("gitconfig"), everyone)?;
    for (link, target) in [
        (".gitconfig", "dotfiles/gitconfig"),
        (".bash_profile", "dotfiles/bash/profile"),
        ("key", ".ssh/id_ed25519"),
    ] {
        let link = worker.home.join(link);
        // Another test's worker may have left it.
        let _ = std::fs::remove_file(&link);
        symlink(target, &link).with_context(|| format!("symlink {}", link.display()))?;
    }
    let work =
        [("git", "git config user.name | grep -qx linked"), ("bash", "bash -lc 'test $LINKED'")];
    works(&worker, &Policy::preset(), &work)?;
    let runner = worker.runner(&Policy::preset())?;
    let finished = shell(&worker, &runner, "cat ~/key || echo evil >> ~/.gitconfig")?;
    for link in [".gitconfig", ".bash_profile", "key"] {
        std::fs::remove_file(worker.home.join(link))?;
    }
    ensure!(!finished.out.contains("PRIVATE"), "{}", finished.report());
    runner.told(&Denial::read(&worker.key).of_key())?;
    let by_preset = Why::Preset("files.write.deny", "~/.{gitconfig");
    runner.told(&Denial::write(kept.join("gitconfig")).because(by_preset))
}

/// The lookup of a name is the kernel's own: what is not there is not there, also where a rule would
/// close it. Where it is there, programs that look into credentials by the way go on without.
fn absent() -> anyhow::Result<()> {
    let worker = Worker::dev("absent")?;
    let work = [
        (
            "reading what is absent and closed",
            "cat ~/.git-credentials 2>&1 | grep -q 'No such file' \
             && cat ~/.ssh/absent 2>&1 | grep -q 'No such file' \
             && python3 -c 'import netrc\ntry: netrc.netrc()\nexcept FileNotFoundError: print(\"absent\")' \
             | grep -qx absent",
        ),
        (
            "creating it is refused, and it stays absent",
            "(echo x > ~/.git-credentials) 2>&1 | grep -q 'Permission denied' \
             && cat ~/.git-credentials 2>&1 | grep -q 'No such file'",
        ),
        (
            "git looks for credentials that are absent",
            "export GIT_TERMINAL_PROMPT=0; git config --file helper credential.helper store; \
             printf 'protocol=https\\nhost=example.org\\n\\n' \
             | GIT_CONFIG_GLOBAL=$PWD/helper strace -f -o trace git credential fill 2>&1 \
             | grep -q 'could not read Username' && grep git-credentials trace | grep -q ENOENT \
             && ! grep git-credentials trace | grep -q EACCES",
        ),
    ];
    works(&worker, &Policy::preset(), &work)?;
    repository(&worker, "repo")?;
    let credentials = worker.home.join(".git-credentials");
    std::fs::write(&credentials, "https://u:PRIVATE@example.org\n")?;
    worker.give(&credentials.clone().into())?;
    let there = [
        (
            "git finds credentials that are closed",
            "export GIT_TERMINAL_PROMPT=0; printf 'protocol=https\\nhost=example.org\\n\\n' \
             | GIT_CONFIG_GLOBAL=$PWD/helper git credential fill > out 2>&1; \
             grep -q 'could not read Username' out && ! grep -q PRIVATE out",
        ),
        ("git goes on", "cd repo && git status --short"),
    ];
    let result = works(&worker, &Policy::preset(), &there);
    std::fs::remove_file(&credentials)?;
    result
}
