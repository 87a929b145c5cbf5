//! What the fuzz targets read, on mutated examples (`fuzz/seeds`): quick, on every change. `ROUNDS=N` tries more, `SEED=N` others, and
//! `MUTATED_SLOWEST=1` says with `--nocapture` which text took longest.

#[path = "../../fuzz/entry.rs"]
mod entry;

use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
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

/// The files of a directory of examples, in the order of their names.
fn seeds(directory: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let entries = fs::read_dir(&directory).expect("a directory of examples");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).expect("an example")).collect()
}

fn of_text(read: fn(&str)) -> impl Fn(&[u8]) {
    move |bytes| read(&String::from_utf8_lossy(bytes))
}

#[test]
fn mutated_policies() {
    let mut all = seeds("src/policy/presets");
    all.extend(vec![seeds("../fuzz/seeds/policy"); 4].concat());
    each(&all, of_text(entry::policy));
}

#[test]
fn mutated_settings() {
    each(
        &[seeds("../fuzz/seeds/import"), seeds("../fuzz/seeds/policy")].concat(),
        of_text(entry::import),
    );
}

#[test]
fn mutated_events() {
    each(&seeds("../fuzz/seeds/learn"), of_text(entry::learn));
}

#[test]
fn mutated_hellos() {
    each(&seeds("tests/hellos"), entry::hello);
}

#[test]
fn mutated_questions() {
    each(&seeds("../fuzz/seeds/names"), entry::names);
}
