//! Sessions whose supervisor was killed.

use crate::place::{Place, lives, wait_for};
use crate::stand_in::Logs;
use sandbox_userspace::session::orphan::{Finding, Keeper};
use sandbox_userspace::session::state::Registry;
use std::fs;

pub(crate) fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("an_orphan_with_processes_stays_until_it_is_ended", alive),
        ("an_orphan_without_processes_is_removed", dead),
        ("a_living_session_is_left_alone_and_can_be_ended", supervised),
        ("traces_without_a_state_are_removed", traces),
    ]
}

fn keeper(place: &Place) -> Keeper {
    Keeper {
        registry: Registry::open(place.run()).unwrap(),
        tree: place.tree(),
        kernels: Box::new(Logs(place.pins())),
    }
}

/// A session whose command has written its process id; the session's id.
fn started(place: &Place, supervisor: &mut std::process::Child) -> String {
    wait_for("the agent is ready", || !place.read("ready").is_empty());
    assert!(supervisor.try_wait().unwrap().is_none());
    let id = place.sessions().pop().unwrap();
    fs::write(place.path("id"), &id).unwrap();
    id
}

fn script(place: &Place) -> String {
    format!(
        "trap '' TERM HUP; echo $$ > {}; while :; do sleep 0.1; done",
        place.path("ready").display()
    )
}

fn alive() {
    let place = Place::new("alive");
    let mut supervisor = place.start(&script(&place));
    let id = started(&place, &mut supervisor);
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    let keeper = keeper(&place);
    let found = keeper.report().unwrap();
    let [Finding::Alive(found, count @ 1..=2)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((found.as_str(), *count > 0), (id.as_str(), true));
    assert!(place.pins().join(&id).exists(), "what is pinned stays");
    let agent = place.read("ready");
    assert!(lives(agent.trim()));

    let mut told = Vec::new();
    keeper.end(&id.parse().unwrap(), &mut |text| told.push(text)).unwrap();
    assert!(!lives(agent.trim()));
    assert_eq!(told.len(), 1, "{told:?}");
    place.is_clean();
    assert!(keeper.end(&id.parse().unwrap(), &mut |_| {}).is_err());
}

fn dead() {
    let place = Place::new("dead");
    let mut supervisor = place.start(&script(&place));
    let id = started(&place, &mut supervisor);
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    let cgroup = place.tree().open(&id).unwrap();
    cgroup.kill().unwrap();
    assert!(cgroup.wait_empty(std::time::Duration::from_secs(5)).unwrap());

    // A process that was moved out and bears the label keeps it in force.
    let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(place.path("labelled"), other.id().to_string()).unwrap();
    assert_eq!(keeper(&place).report().unwrap(), [Finding::Alive(id.parse().unwrap(), 1)]);
    other.kill().unwrap();
    other.wait().unwrap();

    assert_eq!(keeper(&place).report().unwrap(), [Finding::Removed(id.parse().unwrap())]);
    place.is_clean();
    assert_eq!(keeper(&place).report().unwrap(), []);
}

fn supervised() {
    let place = Place::new("supervised");
    let mut supervisor = place.start(&script(&place));
    let id = started(&place, &mut supervisor);
    assert_eq!(keeper(&place).report().unwrap(), []);
    // The agent ignores SIGTERM, so that its members must be killed. Somebody must wait for the
    // supervisor, who is our child, meanwhile.
    let waiter = std::thread::spawn(move || supervisor.wait().unwrap().code());
    keeper(&place).end(&id.parse().unwrap(), &mut |_| {}).unwrap();
    assert_eq!(waiter.join().unwrap(), Some(137));
    place.is_clean();
}

fn traces() {
    let place = Place::new("traces");
    let tree = place.tree();
    tree.create("0123abcd").unwrap();
    fs::create_dir_all(place.pins().join("0123abce")).unwrap();
    fs::create_dir_all(place.pins().join("something-else")).unwrap();
    let found = keeper(&place).report().unwrap();
    let removed = ["0123abcd", "0123abce"].map(|id| Finding::Removed(id.parse().unwrap()));
    assert_eq!(found, removed);
    assert!(tree.open("0123abcd").is_err());
    assert!(!place.pins().join("0123abce").exists());
    assert!(place.pins().join("something-else").exists(), "only sessions are removed");
}
