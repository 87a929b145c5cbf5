//! What large policies take. For a quiet machine, by `--ignored --nocapture`: the numbers of docs/benchmarks.md.

use super::super::load::OBJECT;
use super::super::maps::Maps;
use super::*;
use crate::kernel::mounts::MountTable;
use crate::policy::services::Surroundings;
use crate::policy::{Context, compile, load_text};
use aya::{Btf, EbpfLoader};
use sandbox_common::layout::KernelLayout;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

/// Three of five rules close files in a thousand directories, one opens them to writing, one opens addresses.
fn policy(rules: usize) -> String {
    let mut text = "version = 1\nextends = [\"default\"]\n".to_owned();
    let mut list = |key: &str, count: usize, rule: &dyn Fn(usize) -> String| {
        let entries: Vec<String> = (0..count).map(|n| format!("'{}'", rule(n))).collect();
        writeln!(text, "{key} = [{}]", entries.join(",\n")).unwrap();
    };
    let file =
        |top: &'static str| move |n: usize| format!("/nonexistent-{top}/d{}/f{n}", n % 1_000);
    list("files.read.deny", rules / 5 * 3, &file("r"));
    list("files.write.allow", rules / 5, &file("w"));
    let address = |n: usize| format!("10.{}.{}.{}:443/tcp", n >> 16, n >> 8 & 255, n & 255);
    list("network.allow", rules / 5, &address);
    text
}

/// The maps alone: programs that no kernel has to take.
fn maps(pins: &Path) -> Engine {
    let btf = Btf::from_sys_fs().unwrap();
    let layout = KernelLayout::<u32>::default();
    let mut loader = EbpfLoader::new();
    let loader = loader.btf(Some(&btf)).allow_unsupported_maps();
    let ebpf = loader.override_global("LAYOUT", &layout, true).load(OBJECT).unwrap();
    let dir = pins.join("maps");
    std::fs::create_dir(&dir).unwrap();
    for (name, map) in ebpf.maps().filter(|(name, _)| !name.starts_with('.')) {
        map.pin(dir.join(name)).unwrap();
    }
    Maps::make(&dir).unwrap();
    Engine { maps: Maps::open(&dir).unwrap(), pins: pins.to_owned() }
}

#[test]
#[ignore = "says times; wants root, and in BPFFS the directory of a bpffs"]
fn a_hundred_thousand_rules() {
    let bpffs = std::env::var_os("BPFFS").expect("BPFFS names the directory of a bpffs");
    // A bpffs takes no dots in names.
    let pins = tempfile::Builder::new().prefix("large-").tempdir_in(bpffs).unwrap();
    let mut engine = maps(pins.path());
    let context = Context {
        home: "/nonexistent/home".into(),
        workspace: "/nonexistent/w".into(),
        tmpdir: "/nonexistent/t".into(),
        terminal: None,
        surroundings: Surroundings::default(),
    };
    let table = MountTable::read(None).unwrap();
    for (slot, rules) in [(1, 1_000), (2, 10_000), (3, 100_000)] {
        let text = policy(rules);
        let mut begin = Instant::now();
        let mut lap = || {
            let elapsed = begin.elapsed();
            begin = Instant::now();
            elapsed
        };
        let read = load_text("large.toml", text).unwrap();
        let parsed = lap();
        let (mut compiled, _) = compile(&read, &context, &table).unwrap();
        let compiling = lap();
        engine.publish(slot, &mut compiled).unwrap();
        let entered = lap();
        engine.withdraw(slot, &compiled).unwrap();
        let (withdrawn, edges) = (lap(), compiled.edges.len() + compiled.folded.len());
        println!(
            "{rules} rules, {edges} edges: read {parsed:?}, compiled {compiling:?}, entered {entered:?}, \
             withdrawn {withdrawn:?}"
        );
    }
}
