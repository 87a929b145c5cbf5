//! Job control: a shell in a terminal starts the session, and a person types.

use crate::place::{Place, lives, wait_for};
use crate::stand_in::PLACE;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

pub(crate) fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("agent_reads_the_terminal_and_gives_it_back", terminal),
        ("typed_interrupt_ends_the_agent_not_the_session", interrupt),
        ("typed_stop_stops_the_job_and_fg_continues_it", stop),
        ("a_pipeline_keeps_the_terminal", pipeline),
        ("modes_are_restored", modes),
        ("hang_up_ends_the_session", hang_up),
    ]
}

/// A person at a terminal with a shell.
struct Person {
    keys: File,
    seen: Arc<Mutex<String>>,
    shell: Child,
}

impl Person {
    fn at(place: &Place) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let mut shell = Command::new("bash");
        shell.args(["--norc", "--noprofile", "-i"]).env("PS1", "$ ").env(PLACE, place.path(""));
        shell.env("S", std::env::current_exe().unwrap()).env("TERM", "dumb");
        shell.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
        // SAFETY: two system calls.
        unsafe {
            shell.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let shell = shell.spawn().unwrap();
        let master: OwnedFd = master;
        let keys = File::from(master);
        let seen = Arc::new(Mutex::new(String::new()));
        let (mut screen, text) = (keys.try_clone().unwrap(), seen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(len @ 1..) = screen.read(&mut bytes) {
                text.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..len]));
            }
        });
        Self { keys, seen, shell }
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a text on the screen and forgets all up to it.
    fn sees(&mut self, text: &str) {
        let seen = self.seen.clone();
        let show = || format!("{text:?} on the screen: {:?}", self.seen.lock().unwrap());
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let mut screen = seen.lock().unwrap();
            if let Some(at) = screen.find(text) {
                screen.drain(..at + text.len());
                return;
            }
            drop(screen);
            assert!(std::time::Instant::now() < end, "waited in vain: {}", show());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn terminal() {
    let place = Place::new("terminal");
    let mut person = Person::at(&place);
    person.types("$S sh -c 'read x </dev/tty; echo got:$x; exit 5'; echo code:$?\n");
    wait_for("the session is there", || place.read("events.jsonl").contains("started"));
    person.types("hello\n");
    person.sees("got:hello");
    person.sees("code:5");
    person.types("read y; echo shell:$y\n");
    person.types("again\n");
    person.sees("shell:again");
    place.is_clean();
}

fn interrupt() {
    let place = Place::new("interrupt");
    let mut person = Person::at(&place);
    // One line per signal: it must come once.
    person.types("$S bash -c 'trap \"echo interrupted\" INT; echo rea\"\"dy; sleep 5; echo on; exit 6'; echo code:$?\n");
    person.sees("ready");
    person.types("\x03");
    person.sees("interrupted");
    person.sees("on");
    person.sees("code:6");
    person.types("$S sleep 1000; echo code:$?\n");
    wait_for("the session is there", || place.read("events.jsonl").matches("started").count() == 2);
    person.types("\x03");
    person.sees("code:130");
    place.is_clean();
}

fn stop() {
    let place = Place::new("stop");
    let mut person = Person::at(&place);
    person.types("$S cat\n");
    wait_for("the session is there", || place.read("events.jsonl").contains("started"));
    person.types("one\n");
    person.sees("one\r\none");
    person.types("\x1a");
    person.sees("Stopped");
    person.types("echo in:$((40+2))\n");
    person.sees("in:42");
    person.types("fg\n");
    // What is typed before the shell has set the modes for its job is not the job's.
    person.sees("fg\r\n$S cat");
    person.types("two\n");
    person.sees("two\r\ntwo");
    // In the background it may not read: it stops again, and goes on in the foreground.
    person.types("\x1a");
    person.sees("Stopped");
    person.types("bg\n");
    person.types("echo in:$((40+3))\n");
    person.sees("in:43");
    person.types("\n");
    person.sees("Stopped");
    person.types("fg\n");
    person.sees("fg\r\n$S cat");
    person.types("three\n");
    person.sees("three\r\nthree");
    person.types("\x04");
    person.sees("ended: exit 0");
    place.is_clean();
}

fn pipeline() {
    let place = Place::new("pipeline");
    let mut person = Person::at(&place);
    // The second program reads the terminal while the agent runs, as a pager does.
    person.types("$S sh -c 'echo data; sleep 1' | sh -c 'read d; read x </dev/tty; echo $d:$x'\n");
    wait_for("the session is there", || place.read("events.jsonl").contains("started"));
    person.types("typed\n");
    person.sees("data:typed");
    person.types("$S sleep 1000 | cat\n");
    wait_for("the session is there", || place.read("events.jsonl").matches("started").count() == 2);
    person.types("\x03");
    person.sees("ended: exit 130");
    person.types("echo code:${PIPESTATUS[0]}\n");
    person.sees("code:130");
    place.is_clean();
}

fn modes() {
    let place = Place::new("modes");
    let mut person = Person::at(&place);
    person.types("$S sh -c 'stty raw -echo; echo raw'; stty -a | grep -o -- '[-]*icanon'\n");
    // No carriage return: the agent's raw mode is in force. Our own line comes after it.
    person.sees("\r\nraw\n");
    person.sees("ended: exit 0");
    person.sees("\r\nicanon\r\n");
    place.is_clean();
}

fn hang_up() {
    let place = Place::new("hang-up");
    let mut person = Person::at(&place);
    let ready = place.path("ready");
    person.types(&format!("$S sh -c 'echo $$ > {}; sleep 1000'\n", ready.display()));
    wait_for("the agent is ready", || !place.read("ready").is_empty());
    let agent = place.read("ready");
    person.shell.kill().unwrap();
    drop(person);
    wait_for("the agent has ended", || !lives(agent.trim()));
    wait_for("the session has ended", || place.sessions().is_empty());
    place.is_clean();
}
