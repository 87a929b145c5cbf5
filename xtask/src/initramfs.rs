//! What a machine starts with: guest-init, the programs, the modules, and what is to be done.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::command::line;
use crate::cpio::Archive;
use crate::machine::Machine;
use crate::modules::Modules;

/// Loaded where the kernel has them as modules: the disk, and what the tests and agents use.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_blk",
    "ext4",
    "overlay",
    "fuse",
    "af_packet",
    "sctp",
    "vsock_loopback",
    "autofs4",
    "loop",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "nls_iso8859-1",
];

/// The programs, the modules, and under `/vm` what guest-init is to do.
pub(crate) fn write(machine: &Machine, path: &Path) -> Result<()> {
    let mut archive = Archive::new(io::BufWriter::new(fs::File::create(path)?));
    archive.character_device(Path::new("/dev/console"), (5, 1))?;
    for directory in ["/proc", "/sys", "/tmp", "/root", "/run", "/etc"] {
        archive.directory(Path::new(directory))?;
    }
    let users = "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n\
                 nobody:x:65534:65534::/nonexistent:/bin/false\n";
    archive.file(Path::new("/etc/passwd"), 0o644, users.as_bytes())?;
    let groups = "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n";
    archive.file(Path::new("/etc/group"), 0o644, groups.as_bytes())?;

    let entries = fs::read_dir(&machine.programs).with_context(|| {
        let programs = machine.programs.display();
        format!("no programs in {programs}; run: cargo xtask build")
    })?;
    for entry in entries {
        let entry = entry?;
        let is_init = entry.file_name() == "guest-init";
        let guest =
            if is_init { "/init".into() } else { Path::new("/bin").join(entry.file_name()) };
        archive.file(&guest, 0o755, &read(&entry.path())?)?;
    }

    let dep = fs::read_to_string(machine.kernel.modules.join("modules.dep"))
        .with_context(|| format!("no modules.dep in {}", machine.kernel.modules.display()))?;
    let mut list = String::new();
    let more = machine.modules.iter().map(String::as_str);
    let modules: Vec<&str> = MODULES.iter().copied().chain(more).collect();
    for module in Modules::parse(&dep).order(&modules) {
        let guest = Path::new("/lib/modules").join(module.trim_end_matches(".xz"));
        archive.file(&guest, 0o644, &module_code(&machine.kernel.modules.join(module))?)?;
        writeln!(list, "{}", guest.display())?;
    }
    archive.file(Path::new("/vm/modules"), 0o644, list.as_bytes())?;
    let command: Vec<_> = machine.command.iter().map(|word| word.as_bytes()).collect();
    archive.file(Path::new("/vm/command"), 0o644, &command.join(&0))?;
    if machine.disk.is_some() {
        archive.file(Path::new("/vm/debian"), 0o644, b"")?;
    }
    for copied in &machine.copies {
        let guest = copied.guest.strip_prefix("/").context("a relative path in the machine")?;
        add(&mut archive, &copied.host, &Path::new("/vm/copy").join(guest))?;
    }
    archive.finish()?.into_inner().context("flushing")?;
    Ok(())
}

/// Adds a file, or a directory with all in it.
fn add<W: io::Write>(archive: &mut Archive<W>, host: &Path, guest: &Path) -> Result<()> {
    let about = fs::metadata(host).with_context(|| format!("cannot read {}", host.display()))?;
    if !about.is_dir() {
        return Ok(archive.file(guest, about.permissions().mode(), &read(host)?)?);
    }
    archive.directory(guest)?;
    for entry in fs::read_dir(host)? {
        let entry = entry?;
        add(archive, &entry.path(), &guest.join(entry.file_name()))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// A module as the kernel loads it; not every kernel can decompress by itself.
fn module_code(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return read(path);
    }
    let mut xz = Command::new("xz");
    let output = xz.args(["--decompress", "--stdout"]).arg(path).output()?;
    if !output.status.success() {
        bail!("failed: {}: {}", line(&xz), String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}
