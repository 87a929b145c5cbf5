//! Everyday programs and the name that TLS asks for: the allowed one works as ever, others reach nobody.

use super::clients::{ALLOWED, FORBIDDEN, HERE, World};
use super::machine::{Worker, outside};
use super::work::works;
use crate::harness::{Events, PATIENCE, Policy, Stands, Upstream, eventually, trial};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::process::{Child, Command, Stdio};

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("network::names_in_tls_with_everyday_programs", everyday),
        trial("network::no_second_flow_joins_a_checked_connection", joins),
    ]
}

const OTHER: &str = "another.example.org";

fn policy(upstream: &Upstream) -> Policy {
    Policy::preset()
        .except(&["persistence"])
        .with("network.resolvers", upstream.address.to_string())
        .connect(format!("{ALLOWED}:443/tcp sni"))
        .connect(format!("{ALLOWED}:{JOINED}/tcp sni"))
}

/// What the session told.
fn events(worker: &Worker) -> Events {
    Events::new(&worker.ground.papers("session").join("events.jsonl"))
}

/// What the packets' denials say of the names in TLS: the reasons and what was asked for, sorted.
fn told(worker: &Worker) -> Vec<(String, Option<String>)> {
    let events = events(worker);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut told: Vec<_> = events
        .all()
        .iter()
        .filter(|event| event["hook"] == "egress")
        .map(|event| {
            let reason = text(&event["reason"]).unwrap_or_default();
            (reason, text(&event["object"]["server_name"]))
        })
        .collect();
    told.sort();
    told
}

fn everyday() -> anyhow::Result<()> {
    let worker = Worker::dev("tls-names")?;
    let out = worker.ground.outside();
    let _world = World::new(&out)?;
    let upstream = Upstream::start(&[(ALLOWED, Stands::For(vec![HERE.into()]))])?;
    let given = format!("CA={out}/ca.pem");
    // openssl ends with an error where the server just closes.
    let fetch =
        |script: &str| format!("{given}; {{ {script} || true; }} > told; grep -q text told");
    let client = "printf 'GET /file HTTP/1.0\\r\\n\\r\\n' | openssl s_client -quiet";
    let allowed = [
        ("curl", format!("curl -fsS --max-time 60 --cacert $CA https://{ALLOWED}/file")),
        ("wget", format!("wget -q -t 1 -T 60 -O - --ca-certificate=$CA https://{ALLOWED}/file")),
        (
            "python",
            format!(
                "python3 -c \"import ssl, sys, urllib.request as r; \
                 c = ssl.create_default_context(cafile=sys.argv[1]); \
                 print(r.urlopen(sys.argv[2], context=c, timeout=60).read().decode(), end='')\" \
                 $CA https://{ALLOWED}/file"
            ),
        ),
        (
            "node",
            format!(
                "NODE_EXTRA_CA_CERTS=$CA node -e \"fetch(process.argv[1]).then(r => r.text())\
                 .then(t => process.stdout.write(t))\" https://{ALLOWED}/file"
            ),
        ),
        (
            "git",
            format!(
                "rm -rf cloned; GIT_SSL_CAINFO=$CA git clone -q https://{ALLOWED}/served.git cloned \
                 && cat cloned/file"
            ),
        ),
        ("openssl", format!("{client} -connect {ALLOWED}:443 -CAfile $CA 2>/dev/null")),
    ];
    // None is told that it was refused: each ends by its own patience, so all wait together.
    let patience = 40;
    let refused = [
        format!(
            "curl -skS --max-time {patience} --resolve {FORBIDDEN}:443:{HERE} https://{FORBIDDEN}/file"
        ),
        format!("timeout {patience} openssl s_client -connect {HERE}:443 -servername {OTHER}"),
        format!("timeout {patience} openssl s_client -connect {HERE}:443 -noservername"),
        format!("wget -q -t 1 -T {patience} --no-check-certificate -O - https://{HERE}/file"),
        format!("curl -sS --max-time {patience} http://{ALLOWED}:443/file"),
    ];
    let begun = refused.map(|script| format!("( {script} ) </dev/null & pids=\"$pids $!\"; "));
    let together = format!(
        "pids=; {} for pid in $pids; do if wait $pid; then exit 9; fi; done",
        begun.concat()
    );
    let mut work: Vec<_> = allowed.iter().map(|(what, script)| (*what, fetch(script))).collect();
    work.push(("what asks for other names", together));
    let work: Vec<_> = work.iter().map(|(what, script)| (*what, script.as_str())).collect();
    works(&worker, &policy(&upstream), &work)?;

    let mut expected = vec![
        ("server_name".to_owned(), Some(FORBIDDEN.to_owned())),
        ("server_name".to_owned(), Some(OTHER.to_owned())),
        ("no_server_name".to_owned(), None),
        ("no_server_name".to_owned(), None),
        ("not_tls".to_owned(), None),
    ];
    expected.sort();
    ensure!(told(&worker) == expected, "told was {:?}", told(&worker));
    // Of all that nothing has arrived.
    let asked = fs::read_to_string(out.path().join("asked"))?;
    let others: Vec<_> = asked.lines().filter(|name| *name != ALLOWED).collect();
    ensure!(others.is_empty() && !asked.is_empty(), "the server was asked for {others:?}");
    // The harmless twin.
    outside(
        &out,
        &format!("curl -skS --resolve {FORBIDDEN}:443:{HERE} https://{FORBIDDEN}/file >/dev/null"),
    )?;
    let asked = fs::read_to_string(out.path().join("asked"))?;
    ensure!(asked.lines().any(|name| name == FORBIDDEN), "the server does not tell who asked");
    Ok(())
}

/// Where a server speaks MPTCP.
const JOINED: u16 = 4443;

const SERVE: &str = "
import socket, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('site.pem', 'site.key')
server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('0.0.0.0', int('PORT')))
server.listen()
while True:
    stream = context.wrap_socket(server.accept()[0], server_side=True)
    while data := stream.recv(4096):
        stream.sendall(data)
    stream.close()
";

/// Speaks TLS by MPTCP for a while, in which second flows have time to begin.
const SPEAK: &str = "\
import socket, ssl, sys, time
context = ssl.create_default_context(cafile=sys.argv[1])
stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
stream.connect((sys.argv[2], int(sys.argv[3])))
stream = context.wrap_socket(stream, server_hostname=sys.argv[2])
for _ in range(20):
    stream.sendall(b'x' * 1000)
    left = 1000
    while left:
        left -= len(stream.recv(left))
    time.sleep(0.1)
assert stream.version()
";

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many second flows have asked to join a connection, of this machine's counters.
fn joined() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/net/netstat")?;
    let mut lines = text.lines().filter(|line| line.starts_with("MPTcpExt:"));
    let (names, numbers) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut pairs = names.split(' ').zip(numbers.split(' '));
    let (_, count) = pairs.find(|(name, _)| *name == "MPJoinSynRx").context("no such counter")?;
    Ok(count.parse()?)
}

fn joins() -> anyhow::Result<()> {
    let worker = Worker::dev("tls-joins")?;
    let out = worker.ground.outside();
    let _world = World::new(&out)?;
    let upstream = Upstream::start(&[(ALLOWED, Stands::For(vec![HERE.into()]))])?;
    let child = Command::new("python3")
        .args(["-c", &SERVE.replace("PORT", &JOINED.to_string())])
        .current_dir(out.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting the server")?;
    let _server = Server(child);
    outside(
        &out,
        "ip mptcp limits set subflow 2 add_addr_accepted 2; ip mptcp endpoint flush; \
         ip mptcp endpoint add 203.0.113.6 dev lo subflow",
    )?;
    fs::write(out.path().join("speak.py"), SPEAK)?;
    // A bystander's connection gets a second flow.
    let before = joined()?;
    let hosts = format!("echo {HERE} {ALLOWED} >> /etc/hosts");
    let speak = format!("python3 {out}/speak.py {out}/ca.pem {ALLOWED} {JOINED}");
    let speaks = || outside(&out, &speak).ok();
    outside(&out, &format!("cp /etc/hosts hosts; {hosts}"))?;
    let spoken = eventually(PATIENCE, speaks);
    outside(&out, "cat hosts > /etc/hosts")?;
    spoken.context("a bystander cannot speak MPTCP")?;
    ensure!(joined()? > before, "no second flow of a bystander began");

    let before = joined()?;
    works(&worker, &policy(&upstream), &[("MPTCP", &speak)])?;
    ensure!(joined()? == before, "a second flow began");
    // A worker of the kernel connects second flows, which is no member; what leaves would be looked at as well.
    let events = events(&worker).all();
    let denied: Vec<_> = events.iter().filter(|event| event["type"] == "denial").collect();
    let of_join = |event: &&Value| {
        let object = &event["object"];
        let hook = event["hook"].as_str().unwrap_or_default();
        ["connect4", "egress"].contains(&hook)
            && object["address"] == HERE.to_string()
            && object["port"] == JOINED
    };
    ensure!(!denied.is_empty() && denied.iter().all(of_join), "told was {denied:?}");
    outside(&out, "ip mptcp endpoint flush")
}
