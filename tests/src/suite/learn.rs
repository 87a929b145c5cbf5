//! `sandbox learn`: what a command wanted becomes a policy under which it gets that, and nothing that is closed
//! knowingly.

use crate::harness::{
    Denial, Ground, HOME, Policy, Runner, Stands, Upstream, capture, key, probe_words, sandbox,
    trial,
};
use crate::probe::{Answer, LookupWay, Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

pub(super) fn trials() -> Vec<Trial> {
    // Not seen on every kernel yet: by `--ignored`.
    vec![trial("learn::what_was_wanted_becomes_a_policy", learned).with_ignored_flag(true)]
}

fn create(path: &Place) -> Operation {
    Operation::Create { path: path.clone() }
}

fn learned() -> anyhow::Result<()> {
    let ground = Ground::new("learn")?;
    let key = key()?;
    let out = ground.outside();
    let tool = out.join("tool");
    std::fs::create_dir(tool.path())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let upstream =
        Upstream::start(&[("service.example.com", Stands::For(vec![Ipv4Addr::LOCALHOST.into()]))])?;
    let papers = ground.papers("learn");
    std::fs::create_dir_all(&papers)?;
    let present = papers.join("present.toml");
    let text = format!(
        "# Kept.\nversion = 1\nextends = [\"default\"]\nnetwork.resolvers = [\"{}\"]\n",
        upstream.address
    );
    std::fs::write(&present, text)?;

    let read = Operation::Open { path: key.clone(), flags: libc::O_RDONLY };
    let lookup = Operation::Lookup {
        server: (Ipv4Addr::new(192, 0, 2, 53), 53).into(),
        name: "service.example.com".into(),
        kind: 1,
        way: LookupWay::Connected,
    };
    let connect = Operation::Tcp { address: (Ipv4Addr::LOCALHOST, port).into() };
    let mut operations: Vec<Operation> =
        ["a", "b", "c"].iter().map(|name| create(&tool.join(name))).collect();
    operations.extend([create(&out.join("one")), read.clone(), lookup, connect]);
    let lines: Vec<String> =
        operations.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    let proposed = papers.join("proposed.toml");
    let mut command = Command::new(sandbox());
    command.args(["learn", "--policy"]).arg(&present).arg("--workspace");
    command.arg(ground.workspace().path()).arg("--output").arg(&proposed).arg("--");
    command.args(probe_words(&["serve"])?).current_dir(ground.workspace().path()).env("HOME", HOME);
    let finished = capture(&mut command, &papers, &(lines.join("\n") + "\n"))?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    for (operation, line) in operations.iter().zip(finished.out.lines()) {
        let answer: Answer = serde_json::from_str(line).context("an answer")?;
        ensure!(answer.errno == 0, "{operation:?} was refused: {answer:?}\n{}", finished.report());
    }
    let text = std::fs::read_to_string(&proposed)?;
    let rules = [
        "# Kept.".to_owned(),
        format!("\"~{}/**\",", tool.to_string().trim_start_matches(HOME)),
        format!("\"service.example.com:{port}/tcp\","),
        format!("\"127.0.0.1:{port}/tcp\","),
    ];
    for part in rules {
        ensure!(text.contains(&part), "{part} is not in\n{text}\n{}", finished.report());
    }
    let left = format!("left out of files.read.allow: {key}");
    ensure!(
        !text.contains(&key.to_string()) && finished.err.contains(&left),
        "{}",
        finished.report()
    );

    // The same under the proposal, and no more.
    let mut runner = Runner::new(&ground, &Policy::preset())?;
    runner.written.text = text;
    std::fs::write(&runner.policy, &runner.written.text)?;
    let mut session = runner.open()?;
    session.allowed("another file of the tool", &create(&tool.join("d")))?;
    session.allowed("the service", &operations[operations.len() - 1])?;
    session.refused("the key", &read, &Denial::read(&key).of_key())?;
    let other = out.join("other");
    let denial = Denial::by(&["path_mknod"]).access("create").path(&other);
    session.refused("another file", &create(&other), &denial)?;
    session.finish()
}
