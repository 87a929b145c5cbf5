//! A session from beginning to end.

use crate::place::{Place, lives, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

pub(crate) fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("agent_is_a_member_from_its_first_instruction", member),
        ("agent_inherits_nothing_it_should_not", inheritance),
        ("exit_codes", exit_codes),
        ("things_are_taken_down_in_reverse_order", order),
        ("nothing_runs_or_stays_when_the_policy_cannot_be_put_in_force", refused),
        ("what_the_command_leaves_running_is_ended", leftovers),
        ("labelled_processes_outside_are_ended", labelled),
        ("signals_are_passed_on", signals),
        ("denials_are_told_while_the_agent_runs", denials),
        ("agent_runs_as_another_user", user),
        ("a_signal_ends_the_command_and_the_session", terminated),
    ]
}

fn member() {
    let place = Place::new("member");
    let (code, text) = place.script(
        "cat /proc/self/cgroup; echo $SANDBOX_SESSION; stat -c '%a %u' $TMPDIR; echo $TMPDIR",
    );
    assert_eq!(code, 0);
    let id = text.lines().nth_back(2).unwrap();
    assert!(
        text.lines().any(|line| line
            == format!("0::/{}/sandbox/{id}", place.path("").file_name().unwrap().display())),
        "{text}"
    );
    assert!(text.ends_with(&format!("{id}\n700 0\n/tmp/sandbox-{id}\n")), "{text}");
    fs::write(place.path("id"), id).unwrap();
    place.is_clean();
}

fn inheritance() {
    let place = Place::new("inheritance");
    // A descriptor, a blocked and an ignored signal that the agent must not get; the shell's own
    // script is not one of them.
    let inner = "ls -l /proc/self/fd | grep -c /etc/hostname; \
                 grep -E '^(NoNewPrivs|SigBlk|SigIgn)' /proc/self/status; \
                 cut -d' ' -f5 /proc/$$/stat; echo $$";
    let script = "exec 7</etc/hostname; trap '' USR1 PIPE; exec \"$@\"";
    let stand_in = place.command(&["sh", "-c", inner]);
    let mut outer = Command::new("sh");
    outer.args(["-c", script, "sh"]).arg(stand_in.get_program()).args(stand_in.get_args());
    outer.envs(stand_in.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let output = outer.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "0", "{text}");
    assert_eq!(lines[1], "SigBlk:\t0000000000000000", "{text}");
    // What was ignored on purpose and is passed on stays ignored: USR1 is bit 9.
    assert_eq!(lines[2], "SigIgn:\t0000000000000200", "{text}");
    assert_eq!(lines[3], "NoNewPrivs:\t1", "{text}");
    assert_eq!(lines[4], lines[5], "the agent leads its process group: {text}");
}

fn exit_codes() {
    let place = Place::new("exit");
    let bare = place.path("bare");
    fs::write(&bare, "").unwrap();
    let broken = place.path("broken");
    fs::write(&broken, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    for (command, expected) in [
        (&["sh", "-c", "exit 7"][..], 7),
        (&["sh", "-c", "exit 255"], 255),
        (&["true"], 0),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["no-such-command"], 127),
        (&["/no/such/command"], 127),
        (&[bare.to_str().unwrap()], 126),
        (&["/etc"], 126),
        (&[broken.to_str().unwrap()], 127),
    ] {
        let output = place.output(command);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{command:?}: {text}");
        place.is_clean();
    }
}

fn order() {
    let place = Place::new("order");
    let (code, _) = place.script(
        "echo $SANDBOX_SESSION > $PLACE/id; exit 3"
            .replace("$PLACE", place.path("").to_str().unwrap())
            .as_str(),
    );
    assert_eq!(code, 3);
    place.is_clean();
    assert_eq!(place.read("log"), "enforce beneath level 1\ndismiss\ndetach\nremove\n");
    let events = place.read("events.jsonl");
    let events: Vec<serde_json::Value> =
        events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let id = place.read("id");
    let [started, ended] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&started["state"], &started["session"]), (&"started".into(), &id.trim().into()));
    assert!(started["pid"].as_i64().unwrap() > 0);
    assert_eq!(ended["exit"], 3);
    assert_eq!(ended["lost"], 0);
}

fn refused() {
    let place = Place::new("refused");
    fs::write(place.path("refuse"), "").unwrap();
    let output = place.output(&["touch", place.path("ran").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "sandbox: error: refused\n");
    assert!(!place.path("ran").exists());
    place.is_clean();
}

fn leftovers() {
    let place = Place::new("leftovers");
    let (code, text) = place.script(
        "setsid sh -c 'trap \"\" TERM; echo $$; exec >/dev/null 2>&1; while :; do sleep 1; done' &
         setsid sleep 1000 >/dev/null 2>&1 &
         sleep 0.3; exit 4",
    );
    assert_eq!(code, 4);
    let pid = text.trim();
    assert!(!pid.is_empty() && !lives(pid), "{text}");
    place.is_clean();
    assert!(place.read("events.jsonl").contains("ending what still runs: "));
}

fn labelled() {
    let place = Place::new("labelled");
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(place.path("labelled"), other.id().to_string()).unwrap();
    let (code, _) = place.script("exit 0");
    assert_eq!(code, 0);
    let status = other.try_wait().unwrap();
    assert!(status.is_some(), "it must be dead before the session has ended");
    place.is_clean();
}

fn signals() {
    let place = Place::new("signals");
    let ready = place.path("ready");
    let script = format!(
        "trap 'echo hup >> {0}' HUP; trap 'exit 9' USR1; echo ready > {0};
         while :; do sleep 0.05; done",
        ready.display()
    );
    let mut supervisor = place.start(&script);
    wait_for("the agent is ready", || place.read("ready") == "ready\n");
    let pid = Pid::from_child(&supervisor);
    kill_process(pid, Signal::HUP).unwrap();
    wait_for("SIGHUP has arrived", || place.read("ready") == "ready\nhup\n");
    kill_process(pid, Signal::USR1).unwrap();
    assert_eq!(supervisor.wait().unwrap().code(), Some(9));
    place.is_clean();
}

fn denials() {
    let place = Place::new("denials");
    let end = place.path("end");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done", end.display());
    let mut supervisor = place.start(&script);
    wait_for("the session is there", || place.read("events.jsonl").contains("started"));
    fs::write(place.ring(), [7]).unwrap();
    wait_for("the denial is told", || place.read("events.jsonl").contains(r#""pid":7"#));
    // A flood does not make it deaf, and what waits at the end is told too.
    fs::write(place.ring(), [8; 5000]).unwrap();
    fs::write(&end, "").unwrap();
    fs::write(place.ring(), [9; 3]).unwrap();
    assert!(supervisor.wait().unwrap().success());
    let events = place.read("events.jsonl");
    assert_eq!(events.matches(r#""type":"denial""#).count(), 5004);
    assert!(events.contains(r#""exit":0,"denials":5004,"lost":0"#));
    place.is_clean();
}

fn user() {
    let place = Place::new("user");
    let output = place.output(&[
        "--user",
        "nobody",
        "sh",
        "-c",
        "id -u; id -G; echo $USER; touch $TMPDIR/x && stat -c %u $TMPDIR; \
         grep -E '^Cap(Prm|Eff)' /proc/self/status",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        "65534\n65534\nnobody\n65534\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    place.is_clean();
}

fn terminated() {
    let place = Place::new("terminated");
    let script = format!("echo ready > {}; sleep 1000", place.path("ready").display());
    let mut supervisor = place.start(&script);
    wait_for("the agent is ready", || place.read("ready") == "ready\n");
    kill_process(Pid::from_child(&supervisor), Signal::TERM).unwrap();
    assert_eq!(supervisor.wait().unwrap().code(), Some(143));
    place.is_clean();
}
