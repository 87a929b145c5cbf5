//! What was decided of an address and of a cgroup is remembered, and never beyond what it was decided by.

use super::network::{Service, V4, must_arrive, must_be_refused, refusal, ways};
use crate::harness::{Denial, Ground, Policy, Runner, Session, Why, trial, verb};
use crate::probe::{Operation, UdpWay};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::path::{Path, PathBuf};

/// How often the policy changes beneath members that ask without a pause.
const CHANGES: usize = 3;
/// How often two sessions take turns.
const TURNS: usize = 6;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("network::verdicts_end_with_their_policy", changes),
        trial("network::verdicts_are_of_one_session", sessions),
    ]
}

/// Two policies: with the rule, and without.
fn policies(papers: &Path, rule: &str) -> anyhow::Result<[PathBuf; 2]> {
    std::fs::create_dir_all(papers)?;
    let (open, closed) = (papers.join("open.toml"), papers.join("closed.toml"));
    let preset = "version = 1\nextends = [\"default\"]\n";
    std::fs::write(&open, format!("{preset}network.allow = [\"{rule}\"]\n"))?;
    std::fs::write(&closed, preset)?;
    Ok([open, closed])
}

/// Sessions open and close an address, by policies and by grants, while threads of the member have just asked
/// about it, and go on asking on every processor.
fn changes() -> anyhow::Result<()> {
    let ground = Ground::new("changed-network")?;
    let service = Service::new(V4)?;
    let address = service.address;
    let rule = address.to_string();
    let tcp = Operation::Tcp { address };
    let mut session = Session::start(&ground, &Policy::preset().connect(&rule))?;
    let id = session.id()?;
    let papers = ground.papers("policies");
    let [open, closed] = policies(&papers, &rule)?.map(|file| file.display().to_string());
    let does = |words: &[&str]| -> anyhow::Result<()> {
        let done = verb(&papers, words)?;
        ensure!(done.code() == Some(0), "{words:?}: {}", done.report());
        Ok(())
    };
    let set = |policy: &str| does(&["policy", "set", "--session", &id, policy]);
    must_arrive(&mut session, "before any change", &tcp, &service)?;
    for (change, policy) in [&closed, &open, &closed].into_iter().enumerate() {
        set(policy)?;
        for (name, protocol, operation) in ways(address) {
            let name = format!("{name}, change {change}");
            if policy == &open {
                must_arrive(&mut session, &name, &operation, &service)?;
            } else {
                let denial = refusal(&service, protocol);
                must_be_refused(&mut session, &name, &operation, &service, &denial)?;
            }
        }
    }
    let denial = refusal(&service, "tcp");
    for turn in 0..2 {
        does(&["grant", "--session", &id, "connect", &rule])?;
        must_arrive(&mut session, &format!("granted, {turn}"), &tcp, &service)?;
        does(&["revoke", "--session", &id, "connect", &rule])?;
        let name = format!("taken back, {turn}");
        must_be_refused(&mut session, &name, &tcp, &service, &denial)?;
    }
    session.allowed("threads that ask", &Operation::Hammer { address, threads: 2 })?;
    let datagram = Operation::Udp { address, way: UdpWay::Sendto };
    for change in 0..CHANGES {
        set(&open)?;
        session.allowed(&format!("open, among others, change {change}"), &datagram)?;
        set(&closed)?;
        // What was sent before that.
        while service.arrived().is_some() {}
        for operation in [&datagram, &tcp] {
            let answer = session.perform(operation)?;
            if answer.errno != libc::EPERM {
                session.problem(format!("closed, among others, change {change}: {answer}"));
            }
        }
        if let Some(what) = service.arrived() {
            session.problem(format!("{what} arrived after change {change} had closed {address}"));
        }
    }
    session.finish()
}

/// One session may, the other may not, in turn; also after one was moved into the other's cgroup.
fn sessions() -> anyhow::Result<()> {
    let ground = Ground::new("two-networks")?;
    let service = Service::new(V4)?;
    let address = service.address;
    let policy = Policy::preset().connect(address.to_string());
    let mut open = Session::start(&ground, &policy)?;
    let mut closed = Runner::named(&ground, &Policy::preset(), "closed")?.open()?;
    let denial = refusal(&service, "tcp");
    let (tcp, datagram) =
        (Operation::Tcp { address }, Operation::Udp { address, way: UdpWay::Sendto });
    for turn in 0..TURNS {
        let name = format!("turn {turn}");
        must_arrive(&mut open, &name, &datagram, &service)?;
        must_be_refused(&mut closed, &name, &tcp, &service, &denial)?;
        must_arrive(&mut open, &name, &tcp, &service)?;
    }
    let agent = closed.identity()?.pid.to_string();
    std::fs::write(open.cgroup()?.join("cgroup.procs"), agent)
        .context("moving one session's agent into the other's cgroup")?;
    let moved = Denial::by(&["socket_create"]).any_object().because(Why::Reason(&["moved"]));
    must_be_refused(&mut closed, "in the other's cgroup", &tcp, &service, &moved)?;
    must_arrive(&mut open, "beside the one that was moved", &tcp, &service)?;
    closed.finish()?;
    must_arrive(&mut open, "after the other has ended", &tcp, &service)?;
    open.finish()
}
