//! Coding agents as they are published, each under its preset, against a service on loopback that has them run
//! commands: what is theirs to do works, credentials and what would be run later are refused, and the turn ends
//! well all the same. Their packages lie in [`PACKAGES`], where `cargo xtask agents` puts them.

use super::machine::{Worker, outside};
use crate::harness::{
    PATIENCE, Policy, Upstream, capture_within, difference, eventually, snapshot, trial, write,
};
use crate::probe::Place;
use anyhow::{Context as _, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PACKAGES: &str = "/opt/agents";
/// What they talk to.
const SERVICE: &str = include_str!("agents/api.py");
/// A turn, in a machine without KVM.
const TURN: Duration = Duration::from_mins(20);

/// An agent and how it is called; `PORT` stands for the service's.
struct Agent {
    name: &'static str,
    package: &'static str,
    presets: &'static [&'static str],
    namespaces: bool,
    words: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    /// A place of its own state that stays closed, and what is there.
    settings: (&'static str, &'static str),
    /// Its own sandbox refuses some things before any rule is asked.
    walled: bool,
}

const CODEX: [&str; 16] = [
    "/opt/agents/codex/bin/codex",
    "exec",
    "--skip-git-repo-check",
    "-c",
    "model_provider=local",
    "-c",
    "model_providers.local.name=local",
    "-c",
    "model_providers.local.base_url=http://127.0.0.1:PORT/v1",
    "-c",
    "model_providers.local.wire_api=responses",
    "-c",
    "model_providers.local.env_key=OPENAI_API_KEY",
    "--model=gpt-5",
    "go",
    "--sandbox",
];

const WALLED_CODEX: Agent = Agent {
    name: "agents::codex_in_its_own_bubblewrap",
    package: "codex",
    presets: &["codex"],
    namespaces: true,
    // The preset leaves /tmp closed: as a place to write it would have bubblewrap make /tmp/.git first.
    words: &["workspace-write", "-c", "sandbox_workspace_write.exclude_slash_tmp=true"],
    variables: &[("OPENAI_API_KEY", "not-a-key")],
    settings: (".codex/config.toml", "# mine\n"),
    walled: true,
};
const OPEN_CODEX: Agent = Agent {
    name: "agents::codex",
    package: "codex",
    presets: &["codex"],
    namespaces: false,
    words: &["danger-full-access"],
    variables: &[("OPENAI_API_KEY", "not-a-key")],
    settings: (".codex/config.toml", "# mine\n"),
    walled: false,
};
const CLAUDE_CODE: Agent = Agent {
    name: "agents::claude_code",
    package: "claude-code",
    presets: &["claude-code"],
    namespaces: false,
    words: &[
        "/opt/agents/claude-code/claude",
        "--print",
        "--dangerously-skip-permissions",
        "--model=claude-sonnet-4-5",
        "go",
    ],
    variables: &[
        ("ANTHROPIC_API_KEY", "not-a-key"),
        ("ANTHROPIC_BASE_URL", "http://127.0.0.1:PORT"),
    ],
    settings: (".claude/settings.json", "{}\n"),
    walled: false,
};

const GEMINI_CLI: Agent = Agent {
    name: "agents::gemini_cli",
    package: "gemini-cli",
    presets: &["gemini-cli"],
    namespaces: false,
    words: &[
        "node",
        "/opt/agents/gemini-cli/bundle/gemini.js",
        "--yolo",
        "--skip-trust",
        "--model=gemini-2.5-pro",
        "--prompt",
        "go",
    ],
    variables: &[
        ("GEMINI_API_KEY", "not-a-key"),
        ("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:PORT"),
    ],
    settings: (
        ".gemini/settings.json",
        r#"{"security":{"auth":{"selectedType":"gemini-api-key"}}}"#,
    ),
    walled: false,
};
const OPENCODE: Agent = Agent {
    name: "agents::opencode",
    package: "opencode",
    presets: &["opencode"],
    namespaces: false,
    words: &["/opt/agents/opencode/opencode", "run", "--model", "local/model", "go"],
    variables: &[(
        "OPENCODE_CONFIG_CONTENT",
        r#"{"provider": {"local": {"npm": "@ai-sdk/anthropic", "models": {"model": {"tool_call": true}},
            "options": {"baseURL": "http://127.0.0.1:PORT/v1", "apiKey": "none"}}},
            "permission": {"external_directory": "allow", "bash": "allow", "edit": "allow"}}"#,
    )],
    settings: (".config/opencode/opencode.json", "{}\n"),
    walled: false,
};

const AIDER: Agent = Agent {
    name: "agents::aider",
    package: "aider",
    presets: &["aider"],
    namespaces: false,
    // It offers its model no tool for commands: what it edits is tested.
    words: &[
        "python3",
        "-m",
        "aider",
        "--model=openai/gpt-4o",
        "--openai-api-base=http://127.0.0.1:PORT/v1",
        "--yes-always",
        "--edit-format=diff",
        "--auto-test",
        "--test-cmd=bash steps.sh",
        "--message=go",
    ],
    variables: &[
        ("OPENAI_API_KEY", "not-a-key"),
        ("PYTHONPATH", "/opt/agents/aider"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    ],
    settings: (".gitconfig", "[user]\n\tname = a\n\temail = a@example.org\n"),
    walled: false,
};

type Test = fn() -> anyhow::Result<()>;

/// None where the packages are not in the machine.
pub(super) fn trials() -> Vec<Trial> {
    let all: [(&Agent, Test); 6] = [
        (&WALLED_CODEX, || turn(&WALLED_CODEX)),
        (&OPEN_CODEX, || turn(&OPEN_CODEX)),
        (&CLAUDE_CODE, || turn(&CLAUDE_CODE)),
        (&GEMINI_CLI, || turn(&GEMINI_CLI)),
        (&OPENCODE, || turn(&OPENCODE)),
        (&AIDER, || turn(&AIDER)),
    ];
    let there = |agent: &Agent| Path::new(PACKAGES).join(agent.package).exists();
    let there = all.into_iter().filter(|(agent, _)| there(agent));
    there.map(|(agent, test)| trial(agent.name, test).with_ignored_flag(true)).collect()
}

/// A command of the turn, and what is to come of it.
struct Step {
    command: String,
    /// What it prints, where it is to succeed.
    prints: Option<&'static str>,
    /// The end of the path, or the address, that an event names, where it is to fail.
    told: Option<String>,
}

fn steps(agent: &Agent, closed: u16) -> Vec<Step> {
    let works =
        |command: &str, prints| Step { command: command.into(), prints: Some(prints), told: None };
    let fails = |command: &str, told: &str| Step {
        command: command.into(),
        prints: None,
        told: Some(told.into()),
    };
    let (settings, _) = agent.settings;
    vec![
        works("echo harmless > made.txt && cat made.txt", "harmless"),
        fails("cat ~/.ssh/id_ed25519", "/.ssh/id_ed25519"),
        fails("cat .env", "/.env"),
        fails("echo evil >> ~/.bashrc", "/.bashrc"),
        fails("echo evil > .git/hooks/pre-commit", "/pre-commit"),
        fails("mkdir -p .vscode && echo evil > .vscode/tasks.json", "/tasks.json"),
        fails(&format!("echo evil >> ~/{settings}"), &format!("/{settings}")),
        fails(&format!("exec 3<>/dev/tcp/127.0.0.1/{closed}"), &closed.to_string()),
        works(
            "for i in 1 2 3; do echo $i; done | sort | tail -n1; python3 -c 'print(6*7)'; \
             git log --oneline | grep -c first",
            "42",
        ),
    ]
}

/// The service, outside any session.
struct Service {
    child: Child,
    port: u16,
}

impl Service {
    fn start(papers: &Path, steps: &[Step]) -> anyhow::Result<Self> {
        let commands: Vec<&str> = steps.iter().map(|step| step.command.as_str()).collect();
        let at = |name: &str| papers.join(name);
        std::fs::write(at("api.py"), SERVICE)?;
        std::fs::write(at("commands"), serde_json::to_string(&commands)?)?;
        std::fs::write(at("results"), "")?;
        let child = Command::new("python3")
            .args([at("api.py"), at("commands"), at("results")])
            .stdout(File::create(at("port"))?)
            .stderr(File::create(at("errors"))?)
            .stdin(Stdio::null())
            .spawn()
            .context("starting the service")?;
        let mut service = Self { child, port: 0 };
        let port = || {
            let text = std::fs::read_to_string(at("port")).ok()?;
            text.strip_suffix('\n')?.parse().ok()
        };
        service.port = eventually(PATIENCE, port).context("the service does not begin")?;
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn turn(agent: &Agent) -> anyhow::Result<()> {
    let worker = Worker::dev("agents")?;
    let workspace = worker.ground.workspace();
    let home = Place::from(worker.home.clone());
    outside(
        &workspace,
        "chown 0:0 . && git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first \
         && mkdir -p .git/hooks",
    )?;
    write(&workspace.join(".env"), "SECRET=PRIVATE")?;
    write(&home.join(".bashrc"), "# mine\n")?;
    let (settings, kept) = agent.settings;
    let settings = home.join(settings);
    std::fs::create_dir_all(settings.path().parent().context("the settings lie in a directory")?)?;
    write(&settings, kept)?;
    // As on every machine that somebody works at.
    let usual = "mkdir -p .cache .config .local/share .local/state";
    outside(&home, &format!("{usual}; chown -R --reference=.ssh . {workspace}"))?;

    let closed = TcpListener::bind("127.0.0.1:0")?;
    closed.set_nonblocking(true)?;
    let steps = steps(agent, closed.local_addr()?.port());
    let papers = worker.ground.papers("agent");
    std::fs::create_dir_all(&papers)?;
    let service = Service::start(&papers, &steps)?;
    let here = |text: &str| text.replace("PORT", &service.port.to_string());
    // This machine has no network: names that the preset allows do not exist, and that is said at once.
    let upstream = Upstream::start(&[])?;
    let policy = Policy::presets(agent.presets)
        .connect(here("127.0.0.1:PORT/tcp"))
        .with("network.resolvers", upstream.address.to_string());
    let policy = if agent.namespaces { policy.namespaces() } else { policy };
    let runner = worker.runner(&policy)?;
    let before = snapshot(&workspace.join(".git").path().join("hooks"))?;

    let codex: &[&str] = if agent.package == "codex" { &CODEX } else { &[] };
    let words: Vec<String> = codex.iter().chain(agent.words).map(|word| here(word)).collect();
    let mut command = runner.command(&words);
    command.envs(agent.variables.iter().map(|(name, value)| (*name, here(value))));
    let so_far = || {
        let results = std::fs::read_to_string(papers.join("results")).unwrap_or_default();
        let out = std::fs::read_to_string(papers.join("stdout")).unwrap_or_default();
        format!("stdout: {out}\nresults: {results}\n{}", runner.events.tail(40))
    };
    let finished = capture_within(&mut command, &papers, "", TURN).with_context(so_far)?;
    ensure!(
        finished.code() == Some(0) && finished.out.contains("done"),
        "the turn: {}\n{}\n{}",
        finished.report(),
        std::fs::read_to_string(papers.join("errors"))?,
        runner.events.tail(20)
    );

    let results = std::fs::read_to_string(papers.join("results"))?;
    let results: Vec<Value> =
        results.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("results")?;
    let events: Vec<Value> =
        runner.events.all().into_iter().filter(|event| event["type"] == "denial").collect();
    let mut problems = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let of = |result: &&Value| result["number"] == number;
        let Some(output) = results.iter().find(of).and_then(|result| result["output"].as_str())
        else {
            problems.push(format!("`{}` was not run", step.command));
            continue;
        };
        if output.contains("PRIVATE") {
            problems.push(format!("`{}` showed a secret", step.command));
        }
        if step.prints.is_some_and(|text| !output.contains(text)) {
            problems.push(format!("`{}` must work: {output}", step.command));
        }
        let named = |told: &String| events.iter().any(|event| is_of(&event["object"], told));
        if !agent.walled && step.told.as_ref().is_some_and(|told| !named(told)) {
            problems.push(format!("no event tells of `{}`: {output}", step.command));
        }
    }
    problems.extend(difference(&before, &snapshot(&workspace.join(".git").path().join("hooks"))?));
    for (place, content) in [(home.join(".bashrc"), "# mine\n"), (settings, kept)] {
        if std::fs::read_to_string(place.path())? != content {
            problems.push(format!("{place} was changed"));
        }
    }
    if workspace.join(".vscode").path().join("tasks.json").exists() {
        problems.push("the editor's tasks were written".to_owned());
    }
    if closed.accept().is_ok() {
        problems.push("a connection arrived that no rule allows".to_owned());
    }
    wanted(agent, &events, &steps);
    if !problems.is_empty() {
        bail!("{} problem(s)\n  - {}", problems.len(), problems.join("\n  - "));
    }
    Ok(())
}

/// Whether an object is the one at the end of a path, or the port.
fn is_of(object: &Value, told: &str) -> bool {
    let port = object["port"].as_u64().is_some_and(|port| told.parse() == Ok(port));
    port || object["path"].as_str().is_some_and(|path| path.ends_with(told))
}

/// Prints what the agent wanted besides, and did not get.
fn wanted(agent: &Agent, events: &[Value], steps: &[Step]) {
    let mut besides: BTreeMap<String, u64> = BTreeMap::new();
    for event in events {
        let object = &event["object"];
        let tried =
            steps.iter().filter_map(|step| step.told.as_ref()).any(|told| is_of(object, told));
        if !tried {
            let shown = format!("{} {} by {}", event["access"], object, event["comm"]);
            *besides.entry(shown).or_default() += 1;
        }
    }
    for (what, count) in besides {
        println!("{}: wanted besides, {count} times: {what}", agent.name);
    }
}
