//! Who works where: the administrator, and an ordinary user.

use crate::harness::{Finished, Ground, HOME, Policy, Runner, dev, key};
use crate::probe::Place;
use anyhow::Context as _;
use rustix::fs::{Gid, Uid};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A person at work: home, private key, ground.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) ground: Ground,
    pub(crate) home: PathBuf,
    pub(crate) key: Place,
    user: Option<Uid>,
}

impl Worker {
    /// The administrator.
    pub(crate) fn root(name: &str) -> anyhow::Result<Self> {
        Ok(Self { ground: Ground::new(name)?, home: HOME.into(), key: key()?, user: None })
    }

    /// The ordinary user `dev`, made where the machine has none.
    pub(crate) fn dev(name: &str) -> anyhow::Result<Self> {
        let uid = Uid::from_raw(dev()?);
        let home = PathBuf::from("/home/dev");
        let keys = home.join(".ssh");
        fs::create_dir_all(&keys).context("making ~dev/.ssh")?;
        let key = keys.join("id_ed25519");
        fs::write(&key, "PRIVATE KEY")?;
        let ground = Ground::beneath(&home, name)?;
        for path in [&home, &keys, &key, ground.workspace().path(), ground.outside().path()] {
            own(path, uid)?;
        }
        // The way down to the workspace was made by the administrator.
        Ok(Self { ground, home, key: key.into(), user: Some(uid) })
    }

    pub(crate) fn runner(&self, policy: &Policy) -> anyhow::Result<Runner> {
        let mut runner = Runner::new(&self.ground, policy)?;
        runner.home = self.home.to_string_lossy().into_owned();
        Ok(if self.user.is_some() { runner.options(&["--user", "dev"]) } else { runner })
    }

    /// Gives a file to the worker.
    pub(crate) fn give(&self, path: &Place) -> anyhow::Result<()> {
        self.user.map_or(Ok(()), |uid| own(path.path(), uid))
    }
}

fn own(path: &Path, uid: Uid) -> anyhow::Result<()> {
    let group = Gid::from_raw(uid.as_raw());
    rustix::fs::chown(path, Some(uid), Some(group))
        .with_context(|| format!("chown {}", path.display()))
}

/// `bash -c script` in a session; `$OUT` is the place outside. Afterwards the runner's events are
/// those of this session alone.
pub(crate) fn shell(worker: &Worker, runner: &Runner, script: &str) -> anyhow::Result<Finished> {
    let outside = worker.ground.outside();
    runner.events.forget()?;
    let script = format!("OUT={outside}; export LC_ALL=C; {script}");
    runner.run(&["bash", "-c", script.as_str()])
}

/// A command of the test itself, outside any session, that must succeed.
pub(crate) fn outside(directory: &Place, script: &str) -> anyhow::Result<()> {
    let mut command = Command::new("bash");
    let output =
        command.args(["-ec", script]).current_dir(directory.path()).env("HOME", HOME).output();
    let output = output.context("starting bash")?;
    let told = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{script}: {}: {told}", output.status);
    Ok(())
}
