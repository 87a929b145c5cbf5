//! What the fuzz targets read, on mutated examples: quick, on every change. `ROUNDS=N` tries more, `SEED=N` others, and
//! `MUTATED_SLOWEST=1` says with `--nocapture` which text took longest.

#[path = "../../fuzz/entry.rs"]
mod entry;

use rustix::time::{ClockId, clock_gettime};
use sandbox_userspace::policy::preset;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How many texts each target reads where nobody says.
const ROUNDS: usize = 400;
/// What means something in any of the grammars.
const TOKENS: &[&str] = &[
    "[",
    "]",
    "{",
    "}",
    "(",
    "\"",
    "'",
    "\"\"\"",
    "'''",
    "\\",
    "\\u0000",
    "\0",
    "\n",
    "\r\n",
    "=",
    ":",
    ",",
    ".",
    "/",
    "//",
    "..",
    "~",
    "~/",
    "$",
    "${WORKSPACE}",
    "${TMPDIR}",
    "*",
    "**",
    "/**/",
    "?",
    "[!a-z]",
    "{a,b}",
    "{,",
    "@",
    "@\\x00",
    "#",
    "/*",
    "*/",
    "-",
    "--",
    " ",
    "\t",
    "\u{feff}",
    "\u{fc}",
    "\u{1f980}",
    "\u{202e}",
    "null",
    "true",
    "1",
    "-1",
    "1e999",
    "18446744073709551616",
    "10.0.0.0/8",
    "[::]/0",
    ":443/tcp",
    "max 5MB",
    "*.example.com",
    "xn--",
    "version",
    "extends",
    "default",
    "files.read.deny",
    "$schema",
    "a.a.a.a.a.a.a.a",
];
const POLICIES: &[&str] = &[
    "version = 1\nextends = [\"default\"]\nexcept = [\"persistence\"]\nmode = \"audit\"\n[files]\nread.deny = \
     [\"${WORKSPACE}/s/**\", \"**/.env{,.local}\", '/srv/\\[id\\]/[0-9]*']\nwrite.allow = [\"~/.cache/pip/**\"]\n\
     exec.default = \"deny\"\n[network]\nallow = [\"10.0.0.0/8:5432/tcp max 50MB\", \"[2001:db8::]/32:443\", \
     \"*.example.org:443/tcp count\"]\nlisten = [\"0.0.0.0:3000/tcp\"]\nresolvers = [\"192.0.2.1:53\"]\n\
     unix.allow = [\"ssh-agent\", \"@my\\\\x00service\"]\n[environment]\ndeny = [\"AWS_*\"]\nsecrets = \"deny\"\n\
     [processes]\nnamespaces = true\n[limits]\nmemory = \"8GiB\"\npids = 24\ncpu = \"150%\"\n",
    "{\"version\": 1, // why\n \"files\": {\"read\": {\"deny\": [\"~/x\", \"/a/**/b\"], \"default\": \"deny\"}}, \
     \"network\": {\"unix\": {\"allow\": [\"docker\"]}}}",
];
const SETTINGS: &[&str] = &[
    "{\"permissions\": {\"deny\": [\"Read(./.env)\", \"Edit(//etc/**)\", \"Bash(rm:*)\", \"Read(~/.ssh/**)\"]}, \
     \"sandbox\": {\"filesystem\": {\"allowWrite\": [\"//tmp/x\", \"~/y\"], \"denyRead\": [\"/z\"]}, \"network\": \
     {\"allowedDomains\": [\"*.example.com\"], \"allowUnixSockets\": [\"/run/x\"], \"httpProxyPort\": 1}}}",
    "{\"network\": {\"allowedDomains\": [\"a.b\", \"*\"], \"deniedDomains\": [\"c.d\"], \"allowLocalBinding\": true}, \
     \"filesystem\": {\"denyRead\": [\"~/.ssh\"], \"allowWrite\": [\".\", \"/data/a\"], \"denyWrite\": [\".env\", \"/data\"]}}",
    "{\"type\": \"workspace_readwrite\", \"additionalReadwritePaths\": [\"/a\"], \"networkPolicy\": {\"default\": \"deny\", \
     \"allow\": [\"*.x.org\", \"10.0.0.0/8\"]}}",
    "sandbox_mode = \"workspace-write\"\n[sandbox_workspace_write]\nwritable_roots = [\"/a\"]\nnetwork_access = true\n\
     exclude_slash_tmp = true\n[shell_environment_policy]\nexclude = [\"AWS_*\"]\ninclude_only = [\"PATH\"]\n",
    "default_permissions = \"p\"\n[permissions.p]\nextends = \":workspace\"\n[permissions.p.filesystem]\n\"~/x\" = \"write\"\n\
     \":root\" = \"read\"\n[permissions.p.network]\nenabled = true\n[permissions.p.network.domains]\n\"*.x.org\" = \"allow\"\n",
    "{\"tools\": {\"sandbox\": \"docker\"}, \"context\": {\"includeDirectories\": [\"~/a\", \"../b\"]}, \"security\": \
     {\"environmentVariableRedaction\": {\"enabled\": true, \"allowed\": [\"A\"], \"blocked\": [\"B*\"]}}}",
    "ExecStart=/usr/bin/landrun --rox /usr --ro=/etc,/opt --rw ~/x --env A=b --connect-tcp 443 --bind-tcp=80 -- ls 'a b'\n",
    "{\"workspaceFolder\": \"/w\", \"mounts\": [\"source=${localEnv:HOME}/x,target=/y,type=bind,readonly\", {\"source\": \"/a\", \
     \"target\": \"/b\", \"type\": \"bind\"}], \"runArgs\": [\"-v\", \"/c:/d:ro\", \"--env\", \"A=b\"], \"appPort\": [\"3000:3000\"]}",
];
const EVENTS: &[&str] = &[
    r#"{"type":"denial","session":"0123abcd","hook":"file_open","access":["write"],"reason":"default","comm":"node","object":{"kind":"path","path":"/nonexistent/home/.cache/t/a b","exists":true},"rule":null}"#,
    r#"{"type":"denial","hook":"connect4","access":["connect"],"reason":"default","comm":"curl","object":{"kind":"address","address":"10.1.2.3","port":443,"protocol":"tcp","names":["a.example.org"]},"rule":null}"#,
    r#"{"type":"denial","hook":"resolver","access":["connect"],"reason":"default","comm":"","object":{"kind":"name","name":"b.example.org","record":"A"},"rule":null}"#,
    r#"{"type":"denial","hook":"unix_stream_connect","access":["connect"],"reason":"default","object":{"kind":"abstract","name":"\u0000x\\"},"rule":null}"#,
];
/// A question for `a.example.com`, RFC 1035.
const QUESTION: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\x07example\x03com\0\0\x01\0\x01";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Of this thread on a processor.
fn spent() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// One step away from `bytes`.
fn mutate(random: &mut fastrand::Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    let at = random.usize(..=bytes.len());
    let to = (at + random.usize(..20)).min(bytes.len());
    let token = TOKENS[random.usize(..TOKENS.len())];
    match random.u8(..8) {
        0 => drop(bytes.drain(at..to)),
        1 => {
            let part = bytes[at..to].repeat(random.usize(1..40));
            bytes.splice(at..at, part);
        }
        2 | 3 => drop(bytes.splice(at..at, token.bytes())),
        4 => drop(bytes.splice(at..to, token.repeat(random.usize(1..60)).into_bytes())),
        5 => {
            let other = &others[random.usize(..others.len())];
            let from = random.usize(..=other.len());
            let part = other[from..].iter().take(80).copied().collect::<Vec<_>>();
            bytes.splice(at..to, part);
        }
        6 => bytes.truncate(at),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.u8(..8);
            }
        }
    }
}

fn each(seeds: &[Vec<u8>], target: impl Fn(&[u8])) {
    let rounds = number("ROUNDS").and_then(|count| usize::try_from(count).ok()).unwrap_or(ROUNDS);
    let mut random = fastrand::Rng::with_seed(number("SEED").unwrap_or(1));
    let mut slowest = (Duration::ZERO, Vec::new());
    for round in 0..rounds + seeds.len() {
        // Each example as it is, too.
        let mut bytes = seeds[round % seeds.len()].clone();
        if round >= seeds.len() {
            for _ in 0..random.usize(1..10) {
                mutate(&mut random, &mut bytes, seeds);
            }
        }
        let begin = spent();
        let done = catch_unwind(AssertUnwindSafe(|| target(&bytes)));
        assert!(done.is_ok(), "round {round} ends with:\n{}", bytes.escape_ascii());
        let took = spent().saturating_sub(begin);
        if took > slowest.0 {
            slowest = (took, bytes);
        }
    }
    if std::env::var_os("MUTATED_SLOWEST").is_some() {
        println!("{:?} for {}", slowest.0, slowest.1.escape_ascii());
    }
}

fn texts(lists: &[&[&str]]) -> Vec<Vec<u8>> {
    lists.iter().copied().flatten().map(|text| text.as_bytes().to_vec()).collect()
}

fn of_text(read: fn(&str)) -> impl Fn(&[u8]) {
    move |bytes| read(&String::from_utf8_lossy(bytes))
}

#[test]
fn mutated_policies() {
    let presets = preset::NAMES.iter().filter_map(|name| preset::source(name));
    let mut seeds: Vec<Vec<u8>> = presets.map(|source| source.text().as_bytes().to_vec()).collect();
    seeds.extend(texts(&[POLICIES, POLICIES, POLICIES, POLICIES]));
    each(&seeds, of_text(entry::policy));
}

#[test]
fn mutated_settings() {
    each(&texts(&[SETTINGS, POLICIES]), of_text(entry::import));
}

#[test]
fn mutated_events() {
    each(&texts(&[EVENTS]), of_text(entry::learn));
}

#[test]
fn mutated_hellos() {
    let hellos: [&[u8]; 3] = [
        include_bytes!("hellos/openssl-3.0.bin"),
        include_bytes!("hellos/openssl-3.0-tls12.bin"),
        include_bytes!("hellos/curl-7.88.bin"),
    ];
    each(&hellos.map(<[u8]>::to_vec), entry::hello);
}

#[test]
fn mutated_questions() {
    each(&[QUESTION.to_vec()], entry::names);
}
