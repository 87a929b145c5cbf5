//! git and curl over a loopback server: to the allowed port they work, to others they fail.

use super::machine::{Worker, outside, shell};
use crate::harness::{Denial, PATIENCE, Policy, eventually, trial};
use crate::probe::Place;
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("network::git_and_curl", git_and_curl)]
}

/// `python3 -m http.server` of a directory, outside any session.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(directory: &Place) -> anyhow::Result<Self> {
        // The port is free now and nobody else is about to take one.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new("python3")
            .args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()])
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting python3 -m http.server")?;
        let server = Self { child, port };
        let answers = || TcpStream::connect(("127.0.0.1", port)).ok();
        eventually(PATIENCE, answers).context("the server does not answer")?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn git_and_curl() -> anyhow::Result<()> {
    let worker = Worker::dev("network")?;
    let out = worker.ground.outside();
    outside(
        &out,
        "git init -q source; cd source; git config user.email a@example.org; \
         git config user.name a; echo text > file; git add file; git commit -qm first; cd ..; \
         git clone -q --bare source served.git; cd served.git; git update-server-info",
    )?;
    let server = Server::start(&out)?;
    let closed = TcpListener::bind("127.0.0.1:0")?;
    closed.set_nonblocking(true)?;
    let address = closed.local_addr()?;
    let port = address.port();
    let runner = worker.runner(
        &Policy::preset()
            .except(&["persistence"])
            .connect(format!("127.0.0.1:{}/tcp", server.port)),
    )?;

    let url = format!("http://127.0.0.1:{}", server.port);
    let clone = format!("git clone -q {url}/served.git clone && grep -q text clone/file");
    let finished = shell(&worker, &runner, &clone)?;
    ensure!(
        finished.code() == Some(0),
        "git clone: {}\n{}",
        finished.report(),
        runner.events.tail(8)
    );
    let fetch = format!("curl -fsS --max-time 30 {url}/source/file");
    let finished = shell(&worker, &runner, &fetch)?;
    ensure!(finished.out == "text\n", "curl: {}\n{}", finished.report(), runner.events.tail(8));

    for script in [
        format!("curl -sS --max-time 30 http://127.0.0.1:{port}/"),
        format!("git clone -q http://127.0.0.1:{port}/served.git refused"),
        format!("exec 3<>/dev/tcp/127.0.0.1/{port}"),
    ] {
        let finished = shell(&worker, &runner, &script)?;
        ensure!(!finished.status.success(), "{script} must fail: {}", finished.report());
        ensure!(closed.accept().is_err(), "{script}: a connection arrived");
    }
    runner.told(&Denial::by(&["connect4"]).access("connect").address(address, "tcp"))
}
