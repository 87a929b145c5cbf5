//! Bad input gets an error with place and remedy, and nothing is started.

use crate::harness::{Finished, Ground, HOME, Policy, Runner, Traces, trial, verb};
use anyhow::{Context as _, bail, ensure};
use libtest_mimic::Trial;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] =
    &[("D5.93", "bad_input::too_many_rules"), ("D6.98", "bad_input::policies")];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("bad_input::policies", policies),
        trial("bad_input::too_many_rules", too_many_rules),
        trial("bad_input::workspaces", workspaces),
        trial("bad_input::policy_check_says_the_same", check),
    ]
}

/// Policies that are wrong in one line each: what is wrong, the text, the line.
fn wrong() -> Vec<(&'static str, String, u32)> {
    let files =
        |rule: &str| format!("version = 1\n[files]\nread.deny = [\n  \"/ok\",\n  {rule},\n]\n");
    let network = |rule: &str| format!("version = 1\n[network]\nallow = [\n  \"{rule}\",\n]\n");
    vec![
        ("syntax", "version = 1\n[files\n".into(), 2),
        ("unknown key", "version = 1\n[files]\nread.dney = []\n".into(), 3),
        ("unknown table", "version = 1\n\n[netwrok]\nallow = []\n".into(), 3),
        ("unknown version", "\nversion = 2\n".into(), 2),
        ("unknown preset", "version = 1\nextends = [\"no-such-preset\"]\n".into(), 2),
        ("text for a list", "version = 1\n[files]\nread.deny = \"/a\"\n".into(), 3),
        ("number for a text", files("7"), 5),
        ("relative path", files("\"secret/**\""), 5),
        ("empty pattern", files("\"\""), 5),
        ("class that runs backwards", files("\"/root/[a-.pem\""), 5),
        ("class of nothing", files("\"/root/[]x\""), 5),
        ("two stars beside a name", files("\"/root/**x\""), 5),
        ("more alternatives than there may be", files(&format!("\"/{}\"", "{a,b}".repeat(11))), 5),
        ("component of 256 bytes", files(&format!("\"/{}\"", "n".repeat(256))), 5),
        ("zero byte", files("\"/a\\u0000b\""), 5),
        ("unknown variable", files("\"${HOMEE}/x\""), 5),
        ("prefix of 33 bits", network("10.0.0.0/33:80"), 4),
        ("prefix of 129 bits", network("[2001:db8::]/129:80"), 4),
        ("no address", network("10.0.0.256:80"), 4),
        ("port 70000", network("10.0.0.1:70000"), 4),
        ("reversed port range", network("10.0.0.1:9000-8000"), 4),
        ("unknown protocol", network("10.0.0.1:80/sctp"), 4),
        ("star over a public suffix", network("*.co.uk:443"), 4),
        ("star alone", network("*:443"), 4),
        ("two dots in a name", network("foo..bar:443"), 4),
        ("zero byte in a name", network("a\\u0000.example.org"), 4),
        ("name of 254 bytes", network(&format!("{}aaaa:443", "a.".repeat(125))), 4),
    ]
}

/// Runs a command that leaves a mark, and fails if the mark or anything else is left.
fn refused(ground: &Ground, runner: &Runner, before: &Traces) -> anyhow::Result<Finished> {
    let mark = ground.workspace().join("started");
    let finished = runner.probe(&["touch", &mark.to_string()], "")?;
    ensure!(finished.code() == Some(125), "must end with 125: {}", finished.report());
    ensure!(!mark.path().exists(), "the command was started: {}", finished.report());
    before.must_return()?;
    Ok(finished)
}

fn explained(finished: &Finished, place: Option<(&std::path::Path, u32)>) -> anyhow::Result<()> {
    if let Some((file, line)) = place {
        let place = format!("{}:{line}:", file.display());
        ensure!(finished.err.contains(&place), "no {place}COLUMN: {}", finished.report());
    }
    ensure!(finished.err.contains("help:"), "no remedy (help:): {}", finished.report());
    Ok(())
}

fn policies() -> anyhow::Result<()> {
    let ground = Ground::new("bad-policies")?;
    let before = Traces::now()?;
    let runner = Runner::new(&ground, &Policy::preset())?;
    let mut problems = Vec::new();
    for (what, text, line) in wrong() {
        std::fs::write(&runner.policy, text)?;
        let result = refused(&ground, &runner, &before)
            .and_then(|finished| explained(&finished, Some((&runner.policy, line))));
        if let Err(error) = result {
            problems.push(format!("{what}: {error:#}"));
        }
    }
    for (what, text) in [("empty file", ""), ("no version", "[files]\nread.deny = []\n")] {
        std::fs::write(&runner.policy, text)?;
        let result =
            refused(&ground, &runner, &before).and_then(|finished| explained(&finished, None));
        if let Err(error) = result {
            problems.push(format!("{what}: {error:#}"));
        }
    }
    report(&problems)
}

fn report(problems: &[String]) -> anyhow::Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{} problem(s)\n  - {}", problems.len(), problems.join("\n  - "))
}

/// The most that an engine holds is 10,000 rules: one more is refused whole, and all of them work.
fn too_many_rules() -> anyhow::Result<()> {
    let ground = Ground::new("many-rules")?;
    let before = Traces::now()?;
    let with = |count: usize| {
        let rules =
            (0..count).map(|n| format!("    \"/nowhere/{n}\",")).collect::<Vec<_>>().join("\n");
        format!("version = 1\n[files]\nread.deny = [\n{rules}\n]\n")
    };
    let runner = Runner::new(&ground, &Policy::preset())?;
    std::fs::write(&runner.policy, with(200_001))?;
    let finished = refused(&ground, &runner, &before)?;
    explained(&finished, None)?;
    ensure!(
        finished.err.contains("200,000") || finished.err.contains("200000"),
        "{}",
        finished.report()
    );
    std::fs::write(&runner.policy, with(100_000))?;
    let finished = runner.probe(&["exit", "0"], "")?;
    ensure!(finished.code() == Some(0), "100,000 rules: {}", finished.report());
    before.must_return()
}

fn workspaces() -> anyhow::Result<()> {
    let ground = Ground::new("bad-workspaces")?;
    crate::harness::key()?;
    let before = Traces::now()?;
    let mut problems = Vec::new();
    let file = ground.file(&ground.outside())?;
    let home_link = ground.symlink(&HOME.into(), &ground.outside())?;
    for (what, workspace) in [
        ("absent", ground.outside().join("absent")),
        ("the root", "/".into()),
        ("the home", HOME.into()),
        ("the home by a symbolic link", home_link),
        ("a directory above the home", format!("{HOME}/..").into()),
        ("a credential directory", format!("{HOME}/.ssh").into()),
        ("a file", file),
    ] {
        let mut runner = Runner::new(&ground, &Policy::preset())?;
        runner.workspace = workspace;
        // The command's own directory must exist, whatever the workspace is.
        let mut command = runner.command(&crate::harness::probe_words(&["exit", "0"])?);
        command.current_dir("/");
        let papers = ground.papers("workspaces");
        std::fs::create_dir_all(&papers)?;
        let finished = crate::harness::capture(&mut command, &papers, "")?;
        let right = finished.code() == Some(125) && finished.err.contains("workspace");
        if !right {
            problems.push(format!("{what}: must end with 125 and say why: {}", finished.report()));
        }
    }
    before.must_return()?;
    report(&problems)
}

/// `sandbox policy check` needs no session and finds the same.
fn check() -> anyhow::Result<()> {
    let ground = Ground::new("policy-check")?;
    let runner = Runner::new(&ground, &Policy::preset().read_deny("${WORKSPACE}/secret/**"))?;
    let workspace = ground.workspace().to_string();
    let file = runner.policy.to_string_lossy().into_owned();
    let words = ["policy", "check", &file, "--workspace", &workspace];
    let papers = ground.papers("check");
    let good = verb(&papers, &words)?;
    ensure!(good.status.success(), "a good policy: {}", good.report());
    let mut problems = Vec::new();
    for (what, text, line) in wrong() {
        std::fs::write(&runner.policy, text)?;
        let bad = verb(&papers, &words).context(what)?;
        let place = format!("{file}:{line}:");
        let told = format!("{}{}", bad.out, bad.err);
        if bad.status.success() || !told.contains(&place) || !told.contains("help:") {
            problems.push(format!("{what}: {}", bad.report()));
        }
    }
    report(&problems)
}
