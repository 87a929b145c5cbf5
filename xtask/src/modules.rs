//! Kernel modules in the order in which they must be loaded, from depmod's `modules.dep`.

use std::collections::{HashMap, HashSet};

/// What `modules.dep` says: each module's path and the paths of all it needs.
pub(crate) struct Modules<'a> {
    needs: HashMap<&'a str, Vec<&'a str>>,
}

impl<'a> Modules<'a> {
    /// Reads lines of the form `kernel/a.ko.xz: kernel/b.ko.xz kernel/c.ko.xz`; others are skipped.
    pub(crate) fn parse(text: &'a str) -> Self {
        let needs = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(path, needs)| (path.trim(), needs.split_whitespace().collect()))
            .collect();
        Self { needs }
    }

    /// The paths to load, in order, for those of `names` that are modules in this kernel.
    /// The others are built in, or this kernel lacks them.
    pub(crate) fn order(&self, names: &[&str]) -> Vec<&'a str> {
        let mut order = Vec::new();
        let mut seen = HashSet::new();
        for name in names {
            let wanted = name.replace('-', "_");
            if let Some(path) = self.needs.keys().find(|path| module_name(path) == wanted) {
                self.visit(path, &mut seen, &mut order);
            }
        }
        order
    }

    fn visit(&self, path: &'a str, seen: &mut HashSet<&'a str>, order: &mut Vec<&'a str>) {
        if seen.insert(path) {
            for need in self.needs.get(path).into_iter().flatten() {
                self.visit(need, seen, order);
            }
            order.push(path);
        }
    }
}

/// `kernel/net/vmw_vsock/hv_sock.ko.xz` is `hv_sock`; to the kernel `-` and `_` are the same.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/fs/overlayfs/overlay.ko.xz:
kernel/net/vsock/vsock_loopback.ko.xz: kernel/net/vsock/virtio-common.ko.xz kernel/net/vsock/vsock.ko.xz
kernel/net/vsock/virtio-common.ko.xz: kernel/net/vsock/vsock.ko.xz
kernel/net/vsock/vsock.ko.xz:
kernel/drivers/char/hw_random/virtio-rng.ko.xz:
";

    #[test]
    fn dependencies_come_first_and_once() {
        let order = Modules::parse(DEP).order(&["vsock_loopback", "vsock"]);
        assert_eq!(
            order,
            [
                "kernel/net/vsock/vsock.ko.xz",
                "kernel/net/vsock/virtio-common.ko.xz",
                "kernel/net/vsock/vsock_loopback.ko.xz"
            ]
        );
    }

    #[test]
    fn built_in_modules_are_left_out() {
        assert_eq!(
            Modules::parse(DEP).order(&["ext4", "overlay"]),
            ["kernel/fs/overlayfs/overlay.ko.xz"]
        );
    }

    #[test]
    fn dash_and_underscore_are_the_same() {
        let order = Modules::parse(DEP).order(&["virtio_rng"]);
        assert_eq!(order, ["kernel/drivers/char/hw_random/virtio-rng.ko.xz"]);
        assert_eq!(Modules::parse(DEP).order(&["virtio-rng"]), order);
    }
}
