//! Everyday programs and names: allowed ones work as ever, others fail and reach nobody.
//!
//! Every IPv4 address is this machine's own (a local route), so whatever a session sends to whatever address
//! arrives, is seen by a reader of all packets, and is answered by the test's servers.

use super::machine::{Worker, outside};
use super::work::works;
use crate::harness::{PATIENCE, Policy, Stands, Upstream, Wire, eventually, trial, write};
use crate::probe::Place;
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

pub(super) const ROWS: &[(&str, &str)] = &[
    ("D3.46", "network::names_with_everyday_programs"),
    ("D3.64", "network::names_with_everyday_programs"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("network::names_with_everyday_programs", everyday)]
}

/// Of networks for documentation (RFC 5737).
pub(super) const HERE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
pub(super) const THERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// What programs believe to be the name server.
const SERVER: &str = "192.0.2.53";

pub(super) const ALLOWED: &str = "api.example.com";
pub(super) const FORBIDDEN: &str = "forbidden.example.net";

/// Programs that fetch a file, by a URL's host: each prints the file, or else says that there is no such host.
const FETCH: [(&str, &str, &str); 9] = [
    ("curl", "curl -fsS --max-time 60 --cacert $CA https://$HOST/file", "Could not resolve host"),
    ("curl over HTTP", "curl -fsS --max-time 60 http://$HOST/file", "Could not resolve host"),
    (
        "wget",
        "wget -nv -t 1 -T 60 -O - --ca-certificate=$CA https://$HOST/file",
        "unable to resolve host address",
    ),
    (
        "python",
        "python3 -c \"import ssl, sys, urllib.request as r; \
         c = ssl.create_default_context(cafile=sys.argv[1]); \
         print(r.urlopen(sys.argv[2], context=c, timeout=60).read().decode(), end='')\" \
         $CA https://$HOST/file",
        GLIBC,
    ),
    (
        "requests",
        "python3 -c \"import requests, sys; \
         r = requests.get(sys.argv[2], verify=sys.argv[1], timeout=60); r.raise_for_status(); \
         print(r.text, end='')\" $CA https://$HOST/file",
        GLIBC,
    ),
    (
        "node",
        "NODE_EXTRA_CA_CERTS=$CA node -e \"fetch(process.argv[1]).then(r => r.text())\
         .then(t => process.stdout.write(t))\" https://$HOST/file",
        "ENOTFOUND|EAI_AGAIN",
    ),
    (
        "git",
        "rm -rf cloned; GIT_SSL_CAINFO=$CA git clone -q https://$HOST/served.git cloned && \
         cat cloned/file",
        "Could not resolve host",
    ),
    // Its resolver pays no attention to REFUSED, and would ask again until five seconds have passed.
    ("a static program of musl", "$MUSL $HOST", "Name does not resolve"),
    ("a static program", "busybox wget -q -T 60 -O - http://$HOST/file", "bad address"),
];

/// What programs say that have glibc ask for them.
const GLIBC: &str = "Name or service not known|Temporary failure in name resolution";

/// Programs that ask for a name: each prints its address, or else that it was refused.
const ASK: [(&str, &str, &str); 5] = [
    ("getent", "getent ahosts $HOST || echo status $?", "status 2"),
    ("dig", "dig +tries=1 +time=60 $HOST @$SERVER", "status: REFUSED"),
    ("dig over TCP", "dig +tcp +tries=1 +time=60 $HOST @$SERVER", "status: REFUSED"),
    ("a static resolver", "busybox nslookup $HOST $SERVER", "REFUSED"),
    (
        "python",
        "python3 -c \"import socket, sys; print(socket.gethostbyname(sys.argv[1]))\" $HOST",
        GLIBC,
    ),
];

/// Fetches a file by HTTP.
const MUSL: &str = r#"
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int count, char **words) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (count < 2) return 2;
    int error = getaddrinfo(words[1], "80", &hints, &found);
    if (error) return dprintf(2, "%s\n", gai_strerror(error)), 2;
    int s = socket(found->ai_family, SOCK_STREAM, 0);
    if (connect(s, found->ai_addr, found->ai_addrlen)) return 3;
    dprintf(s, "GET /file HTTP/1.0\r\nHost: %s\r\n\r\n", words[1]);
    char part[4096];
    for (ssize_t got; (got = read(s, part, sizeof part)) > 0;) fwrite(part, 1, got, stdout);
    return 0;
}
"#;

/// Servers of the world: HTTPS and HTTP at every address. What names TLS asked for they write to `asked`.
const SERVE: &str = "
import http.server, ssl, threading
def note(socket, name, context):
    with open('asked', 'a') as file:
        print(name, file=file)
def serve(port, context):
    server = http.server.ThreadingHTTPServer(('0.0.0.0', port), http.server.SimpleHTTPRequestHandler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('site.pem', 'site.key')
context.sni_callback = note
threading.Thread(target=serve, args=(80, None)).start()
serve(443, context)
";

/// The world of these tests, as long as it lives.
pub(super) struct World {
    server: Child,
    directory: Place,
}

impl World {
    /// Gives this machine every IPv4 address, and servers at all of them, with what they serve and need in the directory:
    /// `file` and the repository `served.git`, by HTTPS with certificates of `ca.pem`.
    pub(super) fn new(directory: &Place) -> anyhow::Result<Self> {
        outside(directory, &format!("echo nameserver {SERVER} > /etc/resolv.conf"))?;
        outside(
            directory,
            &format!(
                "git init -q source; cd source; git config user.email a@example.org; \
                 git config user.name a; echo text > file; git add file; git commit -qm first; cd ..; \
                 git clone -q --bare source served.git; (cd served.git; git update-server-info); \
                 cp source/file file; \
                 openssl req -quiet -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
                   -addext keyUsage=critical,keyCertSign,cRLSign \
                   -subj /CN=authority -keyout ca.key -out ca.pem; \
                 openssl req -quiet -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
                   -subj /CN={ALLOWED} -keyout site.key -out site.csr; \
                 printf '%s\\n' subjectAltName=DNS:{ALLOWED},DNS:{FORBIDDEN} \
                   subjectKeyIdentifier=hash authorityKeyIdentifier=keyid > names; \
                 openssl x509 -req -in site.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
                   -extfile names -out site.pem 2>/dev/null; chmod a+r ca.pem"
            ),
        )?;
        outside(directory, "ip route add local default dev lo table local")?;
        let server = Command::new("python3")
            .args(["-c", SERVE])
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the servers")?;
        let world = Self { server, directory: directory.clone() };
        let answers = || TcpStream::connect(("127.0.0.1", 443)).ok();
        eventually(PATIENCE, answers).context("the servers do not answer")?;
        Ok(world)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.server.kill();
        let _ = self.server.wait();
        // What it would disturb tells.
        let _ = outside(&self.directory, "ip route del local default dev lo table local");
    }
}

fn everyday() -> anyhow::Result<()> {
    let worker = Worker::dev("clients")?;
    let out = worker.ground.outside();
    let _world = World::new(&out)?;
    write(&out.join("fetch.c"), MUSL)?;
    outside(&out, "musl-gcc -static -o fetch fetch.c; chmod a+rx fetch")?;

    let at = |address: Ipv4Addr| Stands::For(vec![address.into()]);
    let upstream = Upstream::start(&[(ALLOWED, at(HERE)), (FORBIDDEN, at(THERE))])?;
    let wire = Wire::watch()?;
    let policy = Policy::preset()
        .except(&["persistence"])
        .with("network.resolvers", upstream.address.to_string())
        .connect(format!("{ALLOWED}:443/tcp"))
        .connect(format!("{ALLOWED}:80/tcp"));
    let given = format!("CA={out}/ca.pem MUSL={out}/fetch SERVER={SERVER}; export CA MUSL SERVER");
    let mut work = Vec::new();
    let fetched = FETCH.iter().map(|client| (client, "text".to_owned()));
    for ((way, print, said), expected) in
        fetched.chain(ASK.iter().map(|client| (client, HERE.to_string())))
    {
        let run = |host| format!("{given}; HOST={host}; export HOST; {print}");
        work.push((
            format!("{way}: an allowed name"),
            format!("{{ {}; }} > told && grep -q '{expected}' told", run(ALLOWED)),
        ));
        // It hears that there is nothing, and does not wait until its own patience is over.
        work.push((
            format!("{way}: another name"),
            format!("{{ {}; }} > told 2>&1; grep -Eq '{said}' told || ! cat told", run(FORBIDDEN)),
        ));
    }
    // The address itself, that name servers elsewhere, and another port of the name.
    for script in [
        format!("curl -skS --max-time 60 https://{THERE}/file"),
        format!("curl -fsS --max-time 60 --resolve {FORBIDDEN}:80:{THERE} http://{FORBIDDEN}/file"),
        format!("python3 -c \"import socket; socket.create_connection(('{HERE}', 22), 60)\""),
        format!(
            "python3 -c \"import socket; \
             socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('{THERE}', 443))\""
        ),
    ] {
        work.push((script.clone(), format!("! {{ {script}; }}")));
    }
    let work: Vec<(&str, &str)> =
        work.iter().map(|(what, script)| (what.as_str(), script.as_str())).collect();
    works(&worker, &policy, &work)?;

    // Nobody asked for another name than the allowed one.
    let asked: BTreeSet<String> =
        upstream.asked().iter().map(|name| name.trim_end_matches('.').to_owned()).collect();
    ensure!(asked == BTreeSet::from([ALLOWED.to_owned()]), "asked upstream: {asked:?}");
    // Nothing went elsewhere than to its address.
    let tcp = |address: Ipv4Addr, port: u16| (SocketAddr::from((address, port)), 6);
    let expected = BTreeSet::from([tcp(HERE, 80), tcp(HERE, 443)]);
    ensure!(wire.seen() == expected, "on the wire: {:?}", wire.seen());
    // The wire shows what is sent: the harmless twin.
    TcpStream::connect((THERE, 443)).context("a bystander's connection")?;
    let shown = || wire.seen().contains(&tcp(THERE, 443)).then_some(());
    eventually(PATIENCE, shown).context("a bystander's connection is not on the wire")
}
